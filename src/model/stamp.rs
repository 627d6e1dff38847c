//! The cheap identity of content: what `stat` reports without reading a byte.

/// Seconds and nanoseconds since the epoch, as the kernel keeps them; seconds may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// Equal stamps hint that content is unchanged; only a [`super::Digest`] proves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Stamp {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// When the inode was made; all zero if the file system does not report it.
    #[serde(default)]
    pub btime: Timestamp,
}

/// Tells one inode from every other, even from a later one that reuses its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InodeKey {
    pub device: u64,
    pub inode: u64,
    pub btime: Timestamp,
}

impl Stamp {
    pub fn key(&self) -> InodeKey {
        InodeKey { device: self.device, inode: self.inode, btime: self.btime }
    }

    pub fn number(&self) -> (u64, u64) {
        self.key().number()
    }

    /// True if nothing hints at other content. The time of the inode itself does not: a chmod or a rename is no new content.
    pub fn has_same_content(&self, other: &Self) -> bool {
        (self.number(), self.size, self.mtime) == (other.number(), other.size, other.mtime)
    }
}

impl InodeKey {
    /// Tells the inode from all others of its time: soon after that, another may have it.
    pub fn number(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// How an inode of lower is told from a later one that reuses its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Births {
    /// By its birth time, where the file system reports one.
    #[default]
    Stay,
    /// Not by birth time: stacked file systems give a file a new one with its first change.
    Move,
}

impl Births {
    /// Whether the two may be the same inode, as far as numbers and births tell.
    pub fn may_be_one(self, one: InodeKey, other: InodeKey) -> bool {
        one.number() == other.number() && (!self.tell(one, other) || one.btime == other.btime)
    }

    /// Stricter: for callers that must not take another inode for this one. Where births do not tell, a difference in
    /// size or mtime counts as another inode.
    pub fn are_one(self, one: &Stamp, other: &Stamp) -> bool {
        let looks_alike = || (one.size, one.mtime) == (other.size, other.mtime);
        self.may_be_one(one.key(), other.key()) && (self.tell(one.key(), other.key()) || looks_alike())
    }

    fn tell(self, one: InodeKey, other: InodeKey) -> bool {
        let is_told = |key: InodeKey| key.btime != Timestamp::default();
        self == Self::Stay && is_told(one) && is_told(other)
    }
}
