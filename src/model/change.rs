//! Held changes and backups: their ids, kinds and reasons, word for word as in the contract (SPEC §8, §13, §17).

use super::{Digest, Hasher, RelPath};

/// What a held change does to its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    Modify,
    Create,
    Delete,
    /// A file, symlink or directory takes the place of another of these.
    Type,
    Structure,
}

/// Why a change is held. Reasons are checked in this order, and the first that applies is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    Sensitive,
    Rule,
    Hook,
    Stale,
    External,
    Burst,
    Symlink,
    Type,
    Parent,
    Interrupted,
    Risk,
    Backup,
    Bytes,
    Size,
}

/// The event that made a backup of some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackupKind {
    Landed,
    Confirmed,
    Deleted,
    Discarded,
    RolledBack,
}

/// Generates the name table of an enum, so that each name is spelled once for writing and reading.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every variant, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named!(ChangeKind { Modify = "modify", Create = "create", Delete = "delete", Type = "type", Structure = "structure" });
named!(Reason {
    Sensitive = "sensitive", Rule = "rule", Hook = "hook", Stale = "stale", External = "external", Burst = "burst",
    Symlink = "symlink", Type = "type", Parent = "parent", Interrupted = "interrupted", Risk = "risk",
    Backup = "backup", Bytes = "bytes", Size = "size",
});
named!(BackupKind {
    Landed = "landed", Confirmed = "confirmed", Deleted = "deleted", Discarded = "discarded",
    RolledBack = "rolled_back",
});

/// The short name of a held change: the first hex digits (8, more where two collide) of a hash over its exact content.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId(String);

/// The number of hex digits in an id unless two collide, and the fewest that may stand for one (SPEC §8, §12).
pub const ID_DIGITS: usize = 8;
pub const ID_PREFIX_MIN: usize = 4;

/// One side of a change, as far as its id depends on it.
#[derive(Clone, Copy, Default)]
pub struct IdSide<'a> {
    /// `None` if the side has no content.
    pub content: Option<Digest>,
    /// What stands there, unless it is a regular file or nothing: a symlink is another thing than a file with its target
    /// as content.
    pub thing: Option<&'a str>,
}

impl ChangeId {
    /// Returns the full hash of which an id is the beginning. `looks` are absent where the change brings no looks of its own
    /// ([`super::Looks::digest`]).
    pub fn full(path: &RelPath, kind: ChangeKind, base: IdSide<'_>, new: IdSide<'_>, looks: Option<Digest>) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(path.as_bytes());
        hasher.update(b"\0");
        hasher.update(kind.name().as_bytes());
        for side in [base, new] {
            hasher.update(b"\0");
            if let Some(digest) = side.content {
                hasher.update(digest.as_bytes());
            }
            hasher.update(side.thing.unwrap_or_default().as_bytes());
        }
        if let Some(digest) = looks {
            hasher.update(b"\0looks\0");
            hasher.update(digest.as_bytes());
        }
        hasher.finish()
    }

    /// Accepts 4 to 64 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        ((ID_PREFIX_MIN..=64).contains(&text.len()) && text.bytes().all(hex)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ChangeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for ChangeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
