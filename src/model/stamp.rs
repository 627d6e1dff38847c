//! The cheap identity of content: what `stat` tells without reading a byte.

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
}
