//! Paths below a project's root, as bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::ends::common_prefix;

/// A path below the root of a tree: no leading slash, no empty, `.` or `..` component, no NUL.
/// The root itself is the empty path. Ordered so that a directory comes right before what it contains.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct RelPath(Vec<u8>);

/// Why some bytes are not a [`RelPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path is absolute")]
    Absolute,
    #[error("path has an empty, '.' or '..' component")]
    Component,
    #[error("path has a NUL byte")]
    Nul,
    #[error("name is longer than 255 bytes")]
    NameTooLong,
}

/// The longest name a Linux file system takes, in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;

impl RelPath {
    pub fn root() -> Self {
        Self::default()
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, PathError> {
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        if bytes[0] == b'/' {
            return Err(PathError::Absolute);
        }
        for name in bytes.split(|byte| *byte == b'/') {
            check_name(name)?;
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Returns the path of `name` in this directory.
    pub fn join(&self, name: &OsStr) -> Result<Self, PathError> {
        if name.as_bytes().contains(&b'/') {
            return Err(PathError::Component);
        }
        check_name(name.as_bytes())?;
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path as shown to people: the root has no name of its own and becomes `.`.
    pub fn shown(&self) -> &[u8] {
        if self.is_root() { b"." } else { &self.0 }
    }

    /// The directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// The last component; `None` for the root.
    pub fn name(&self) -> Option<&OsStr> {
        self.components().next_back()
    }

    pub fn components(&self) -> impl DoubleEndedIterator<Item = &OsStr> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(OsStr::from_bytes)
    }

    /// Whether this is `ancestor` itself or anything below it.
    pub fn is_within(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || self.0 == ancestor.0
            || (self.0.starts_with(&ancestor.0) && self.0[ancestor.0.len()] == b'/')
    }

    /// Returns this path after its ancestor `from` was renamed to `to`; `None` if it does not lie within `from`.
    pub fn rebase(&self, from: &Self, to: &Self) -> Option<Self> {
        if !self.is_within(from) {
            return None;
        }
        let rest = &self.0[from.0.len()..];
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        let mut bytes = to.0.clone();
        if !bytes.is_empty() && !rest.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(rest);
        Some(Self(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    pub fn to_os_string(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }
}

fn check_name(name: &[u8]) -> Result<(), PathError> {
    match name {
        b"" | b"." | b".." => Err(PathError::Component),
        _ if name.contains(&0) => Err(PathError::Nul),
        _ if name.len() > NAME_BYTES_MAX => Err(PathError::NameTooLong),
        _ => Ok(()),
    }
}

/// `/` sorts before every other byte, so that in an ordered map all of `a/…` stands between `a` and `a-b`.
impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let same = common_prefix(&self.0, &other.0);
        let next = |path: &Self| path.0.get(same).map(|byte| (*byte != b'/', *byte));
        next(self).cmp(&next(other))
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// For messages; escapes control characters and bytes that are not UTF-8.
impl std::fmt::Display for RelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for chunk in self.shown().utf8_chunks() {
            for character in chunk.valid().chars() {
                match character.is_control() {
                    true => write!(f, "{}", character.escape_default())?,
                    false => write!(f, "{character}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for RelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RelPath({self})")
    }
}
