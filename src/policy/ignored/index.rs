//! Reads git's index for where git tracks something and which trees it would write: gitformat-index(5), versions
//! 2 to 4, SHA-1 and SHA-256.
//!
//! Any program may have written the index, so every length is checked, memory is bounded and nothing panics. An index
//! that does not list every tracked file by itself (split index, sparse directories) is an error: the caller then judges
//! everything.

use gix::{ObjectId, hash::Kind};

use super::trees::{IndexTrees, Trees};
use super::unpacked::Unpacked;
use crate::model::RelPath;

/// Bytes before the object's hash: times, device, inode, mode, uid, gid, size.
const STAT_BYTES: usize = 40;
/// The offset of the mode in them.
const MODE_AT: usize = 24;
const MODE_TYPE: u32 = 0o170_000;
const MODE_DIRECTORY: u32 = 0o040_000;
const MODE_SUBMODULE: u32 = 0o160_000;
const FLAG_EXTENDED: u16 = 0x4000;
/// The name's length in the flags; the full mask means "that long or longer".
const NAME_LENGTH_MASK: u16 = 0x0fff;
/// Linux opens no path of half that length.
const NAME_BYTES_MAX: usize = 8192;

/// The reason why an index does not tell what is tracked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("git index: not an index")]
    NotAnIndex,
    #[error("git index: version {0} is not known")]
    Version(u32),
    #[error("git index: malformed")]
    Malformed,
    #[error("git index: needs extension {0:?} (split or sparse index)")]
    Extension(String),
    #[error("git index: has sparse directories")]
    Sparse,
    #[error("git index: has too many long names")]
    TooLarge,
}

/// The contents of an index.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub tracked: TrackedSet,
    pub trees: IndexTrees,
}

/// The directories where git tracks something: a tree has far fewer of them than files, and only
/// directories are asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackedSet {
    /// Submodules, and each directory that directly contains a tracked file. Invariant: sorted, so that whatever lies
    /// within a directory follows it immediately.
    dirs: Vec<RelPath>,
}

impl Index {
    /// The format does not name its hash, so the right one is that with which the index reads cleanly from end to end.
    pub fn read(index: &[u8]) -> Result<Self, IndexError> {
        match Reader::read(index, Kind::Sha1) {
            Err(IndexError::Malformed) => Reader::read(index, Kind::Sha256),
            read => read,
        }
    }
}

impl TrackedSet {
    pub fn of(mut dirs: Vec<RelPath>) -> Self {
        dirs.sort();
        dirs.dedup();
        dirs.shrink_to_fit();
        Self { dirs }
    }

    /// Whether `dir` is a submodule or holds anything tracked, at any depth.
    pub fn any_within(&self, dir: &RelPath) -> bool {
        let at = self.dirs.partition_point(|tracked| tracked < dir);
        self.dirs.get(at).is_some_and(|tracked| tracked.is_within(dir))
    }

    /// Returns the set of directories where either tracks something.
    pub fn and(mut self, other: &Self) -> Self {
        let is_new = |dir: &&RelPath| self.dirs.binary_search(dir).is_err();
        let more: Vec<RelPath> = other.dirs.iter().filter(is_new).cloned().collect();
        if more.is_empty() {
            return self;
        }
        self.dirs.extend(more);
        Self::of(self.dirs)
    }

    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty()
    }
}

struct Entry {
    name: Vec<u8>,
    mode: u32,
    object: ObjectId,
}

struct Reader<'a> {
    rest: &'a [u8],
    version: u32,
    hash: Kind,
}

impl<'a> Reader<'a> {
    fn read(index: &'a [u8], hash: Kind) -> Result<Index, IndexError> {
        let body = index.strip_prefix(b"DIRC").ok_or(IndexError::NotAnIndex)?;
        let mut reader = Self { rest: body, version: 0, hash };
        reader.version = reader.u32()?;
        if !(2..=4).contains(&reader.version) {
            return Err(IndexError::Version(reader.version));
        }
        let count = reader.u32()?;
        let index = reader.entries(count)?;
        reader.extensions()?;
        Ok(index)
    }

    fn entries(&mut self, count: u32) -> Result<Index, IndexError> {
        // Nothing is reserved for `count`, which may lie.
        let (mut dirs, mut before, mut trees) = (Vec::new(), Vec::new(), Trees::new(self.hash));
        let mut unpacked = Unpacked::default();
        for _ in 0..count {
            let Entry { name, mode, object } = self.entry(&before)?;
            // git keeps entries sorted by bytes; an index in any other order is damaged or planted.
            if name < before {
                return Err(IndexError::Malformed);
            }
            if mode & MODE_TYPE == MODE_DIRECTORY {
                return Err(IndexError::Sparse);
            }
            let dir = if mode & MODE_TYPE == MODE_SUBMODULE { &name[..] } else { dir_of(&name) };
            // Neighbours in the same directory add it once.
            if dirs.last().is_none_or(|last: &RelPath| last.as_bytes() != dir) {
                unpacked.add_path(dir)?;
                dirs.push(RelPath::parse(dir).map_err(|_| IndexError::Malformed)?);
            }
            trees.add(&name, mode, object)?;
            before = name;
        }
        Ok(Index { tracked: TrackedSet::of(dirs), trees: trees.finish()? })
    }

    /// `before` is the name of the previous entry.
    fn entry(&mut self, before: &[u8]) -> Result<Entry, IndexError> {
        let start = self.rest.len();
        let stat = self.take(STAT_BYTES)?;
        let object = self.take(self.hash.len_in_bytes())?.try_into().map_err(|_| IndexError::Malformed)?;
        let flags = self.u16()?;
        if flags & FLAG_EXTENDED != 0 {
            if self.version == 2 {
                return Err(IndexError::Malformed);
            }
            self.u16()?;
        }
        let name = if self.version == 4 { self.compressed_name(before)? } else { self.padded_name(start)? };
        check_length(&name, flags)?;
        Ok(Entry { name, mode: mode(stat), object })
    }

    /// Up to version 3, one to eight NULs pad an entry to a multiple of eight bytes.
    fn padded_name(&mut self, start: usize) -> Result<Vec<u8>, IndexError> {
        let name = self.until_nul()?.to_vec();
        let used = start - self.rest.len();
        let padding = self.take(used.next_multiple_of(8) - used)?;
        if padding.iter().any(|byte| *byte != 0) { Err(IndexError::Malformed) } else { Ok(name) }
    }

    /// In version 4 a name is that of the previous entry, less some bytes at its end, plus a suffix of its own.
    fn compressed_name(&mut self, before: &[u8]) -> Result<Vec<u8>, IndexError> {
        let dropped = self.varint()?;
        let kept = before.len().checked_sub(dropped).ok_or(IndexError::Malformed)?;
        Ok([&before[..kept], self.until_nul()?].concat())
    }

    /// Reads the extensions up to the closing checksum. A lower-case name means "must be understood", and none is here.
    fn extensions(&mut self) -> Result<(), IndexError> {
        while self.rest.len() > self.hash.len_in_bytes() {
            let name = self.take(4)?;
            let bytes = usize::try_from(self.u32()?).map_err(|_| IndexError::Malformed)?;
            if !name[0].is_ascii_uppercase() {
                return Err(required(name));
            }
            self.take(bytes)?;
        }
        if self.rest.len() == self.hash.len_in_bytes() { Ok(()) } else { Err(IndexError::Malformed) }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], IndexError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(IndexError::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn until_nul(&mut self) -> Result<&'a [u8], IndexError> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(IndexError::Malformed)?;
        let name = self.take(end)?;
        self.take(1)?;
        Ok(name)
    }

    fn u16(&mut self) -> Result<u16, IndexError> {
        Ok(self.take(2)?.iter().fold(0, |value, byte| value << 8 | u16::from(*byte)))
    }

    fn u32(&mut self) -> Result<u32, IndexError> {
        Ok(self.take(4)?.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    /// git's `decode_varint`: each further byte counts from one more, so that no number has two spellings.
    fn varint(&mut self) -> Result<usize, IndexError> {
        let mut byte = self.take(1)?[0];
        let mut value = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = self.take(1)?[0];
            let shifted = value.checked_add(1).and_then(|value| value.checked_mul(128)).ok_or(IndexError::Malformed)?;
            value = shifted | usize::from(byte & 0x7f);
        }
        Ok(value)
    }
}

fn dir_of(name: &[u8]) -> &[u8] {
    &name[..name.iter().rposition(|byte| *byte == b'/').unwrap_or_default()]
}

fn check_length(name: &[u8], flags: u16) -> Result<(), IndexError> {
    let stated = usize::from(flags & NAME_LENGTH_MASK);
    let fits = if stated == usize::from(NAME_LENGTH_MASK) { name.len() >= stated } else { name.len() == stated };
    if fits && (1..=NAME_BYTES_MAX).contains(&name.len()) { Ok(()) } else { Err(IndexError::Malformed) }
}

fn mode(stat: &[u8]) -> u32 {
    stat[MODE_AT..MODE_AT + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The error for an extension that must be understood. If this is not even a name, the reader was at the wrong place.
fn required(name: &[u8]) -> IndexError {
    match name.is_ascii() && name.iter().all(u8::is_ascii_alphabetic) {
        true => IndexError::Extension(String::from_utf8_lossy(name).into_owned()),
        false => IndexError::Malformed,
    }
}
