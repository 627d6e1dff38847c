//! Requests and answers as the kernel's `include/uapi/linux/fuse.h` lays them out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType};
use rustix::fs::StatVfs;

use super::super::answer::{GENERATION, small};
use super::super::attr::Shown;

/// The part of a request that is yet to be read. A missing field invalidates the whole request.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A name that ends with a zero.
    pub fn name(&mut self) -> Option<&'a OsStr> {
        let end = memchr::memchr(0, self.0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(OsStr::from_bytes(name))
    }
}

/// The bytes of an answer.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// `struct fuse_entry_out`: the name holds for as long as its attributes.
    pub fn entry(self, attr: &FileAttr, ttl: Duration) -> Self {
        let (seconds, nanoseconds) = (ttl.as_secs(), ttl.subsec_nanos());
        let named = self.u64(attr.ino.0).u64(GENERATION.0).u64(seconds).u64(seconds).u32(nanoseconds).u32(nanoseconds);
        named.attr(attr)
    }

    /// `struct fuse_attr_out`.
    pub fn attributes(self, Shown { attr, ttl }: &Shown) -> Self {
        self.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).attr(attr)
    }

    /// `struct fuse_attr`.
    fn attr(self, attr: &FileAttr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime].map(since_epoch);
        let bytes = self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks);
        let bytes = times.iter().fold(bytes, |bytes, (seconds, _)| bytes.u64(seconds.cast_unsigned()));
        let bytes = times.iter().fold(bytes, |bytes, (_, nanoseconds)| bytes.u32(*nanoseconds));
        let mode = type_of(attr.kind) | u32::from(attr.perm);
        bytes.u32(mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(attr.rdev).u32(attr.blksize).u32(attr.flags)
    }

    /// `struct fuse_statfs_out`.
    pub fn statfs(self, stat: &StatVfs) -> Self {
        let counts = self.u64(stat.f_blocks).u64(stat.f_bfree).u64(stat.f_bavail).u64(stat.f_files).u64(stat.f_ffree);
        counts.u32(small(stat.f_bsize)).u32(small(stat.f_namemax)).u32(small(stat.f_frsize)).zeros(4 + 6 * 4)
    }

    /// `struct fuse_dirent`, padded to a multiple of eight bytes.
    pub fn dirent(self, inode: u64, next: u64, kind: FileType, name: &OsStr) -> Self {
        let length = u32::try_from(name.len()).expect("a name is short");
        let mut bytes = self.u64(inode).u64(next).u32(length).u32(type_of(kind) >> 12);
        bytes.0.extend(name.as_bytes());
        bytes.zeros(name.len().next_multiple_of(8) - name.len())
    }
}

/// Bytes that an entry of a listing takes, without the attributes that READDIRPLUS puts before it.
pub fn dirent_bytes(name: &OsStr) -> usize {
    24 + name.len().next_multiple_of(8)
}

/// Bytes of a `struct fuse_entry_out`.
pub const ENTRY_BYTES: usize = 128;

fn type_of(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => libc::S_IFIFO,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
        FileType::Directory => libc::S_IFDIR,
        FileType::RegularFile => libc::S_IFREG,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Socket => libc::S_IFSOCK,
    }
}

/// Whole seconds, rounded down, and the nanoseconds after them.
fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs().cast_signed(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = -before.as_secs().cast_signed();
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanoseconds => (seconds - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::super::attr::nothing;
    use super::*;

    #[test]
    fn answers_are_as_long_as_the_kernel_s_structures() {
        let attr = nothing();
        assert_eq!(Bytes::default().entry(&attr, Duration::ZERO).0.len(), ENTRY_BYTES);
        assert_eq!(Bytes::default().attributes(&Shown { attr, ttl: Duration::ZERO }).0.len(), 104);
        let stat = rustix::fs::statvfs("/").unwrap();
        assert_eq!(Bytes::default().statfs(&stat).0.len(), 80);
        for name in ["n", "seven77", "eight888", "nine99999"].map(OsStr::new) {
            let dirent = Bytes::default().dirent(1, 2, FileType::Directory, name).0;
            assert_eq!((dirent.len(), dirent.len() % 8, dirent[20]), (dirent_bytes(name), 0, libc::DT_DIR));
        }
    }

    #[test]
    fn times_before_the_epoch_are_seconds_below_it_and_nanoseconds_above_those() {
        let half = Duration::from_millis(500);
        let times =
            [(UNIX_EPOCH + half, (0, 500_000_000)), (UNIX_EPOCH, (0, 0)), (UNIX_EPOCH - half, (-1, 500_000_000))];
        for (time, told) in times {
            assert_eq!(since_epoch(time), told);
        }
        assert_eq!(since_epoch(UNIX_EPOCH - Duration::from_secs(2)), (-2, 0));
    }

    #[test]
    fn a_request_that_is_too_short_has_no_fields() {
        let mut fields = Fields(b"1234567");
        assert_eq!((fields.u64(), fields.u32(), fields.u32()), (None, Some(u32::from_ne_bytes(*b"1234")), None));
        let mut names = Fields(b"first\0second");
        assert_eq!((names.name(), names.name()), (Some(OsStr::new("first")), None));
    }
}
