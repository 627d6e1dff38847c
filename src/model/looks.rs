//! What a change brings beside content: mode, owner and extended attributes that are its own.

use super::{Digest, Hasher};

/// Those that differ from what the change is based on, with their values. All others are those of the file that it lands on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Permissions, with the set-id bits.
    pub mode: Option<u32>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// By name, in order; none: one that it takes away.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

impl Looks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The attributes that it gives.
    pub fn given_xattrs(self) -> Vec<Xattr> {
        self.xattrs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The part that they have in a change's id; none where there are none, so that an id of content alone is one of that.
    pub fn digest(&self) -> Option<Digest> {
        if self.is_empty() {
            return None;
        }
        let mut hasher = Hasher::default();
        let Self { mode, owner, xattrs } = self;
        hasher.update(format!("{mode:?} {owner:?}").as_bytes());
        for (name, value) in xattrs {
            // No name has a zero byte, and with its length a value ends nowhere else.
            hasher.update(format!("\0{:?}\0", value.as_ref().map(Vec::len)).as_bytes());
            hasher.update(name);
            hasher.update(b"\0");
            hasher.update(value.as_deref().unwrap_or_default());
        }
        Some(hasher.finish())
    }
}
