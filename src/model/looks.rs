//! What a change brings besides content: its own mode, owner and extended attributes.

use super::{Digest, Hasher};

/// The attributes that differ from the change's base, with their values. All others come from the file that it lands on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Permissions, with the set-id bits.
    pub mode: Option<u32>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Sorted by name; `None` removes the attribute.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

impl Looks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the attributes that the change sets.
    pub fn given_xattrs(self) -> Vec<Xattr> {
        self.xattrs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The looks' part in a change's id; `None` if there are none, so that the id then depends on content alone.
    pub fn digest(&self) -> Option<Digest> {
        if self.is_empty() {
            return None;
        }
        let mut hasher = Hasher::default();
        let Self { mode, owner, xattrs } = self;
        hasher.update(format!("{mode:?} {owner:?}").as_bytes());
        for (name, value) in xattrs {
            // Names have no zero byte, and the length prefix makes the end of a value unambiguous.
            hasher.update(format!("\0{:?}\0", value.as_ref().map(Vec::len)).as_bytes());
            hasher.update(name);
            hasher.update(b"\0");
            hasher.update(value.as_deref().unwrap_or_default());
        }
        Some(hasher.finish())
    }
}
