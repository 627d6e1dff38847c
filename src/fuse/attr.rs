//! Attributes, file types and times: from the view's types to FUSE's, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use crate::control::VirtualMeta;
use crate::model::Timestamp;
use crate::overlay::{Attributes, Error, Holds, Result, SetTime};
use crate::sys::file::{FileKind, Meta};

/// How long the kernel may answer from its cache where no notice of a change is certain to come: changes below show
/// within a second (SPEC §2). A little less, because the kernel counts from the answer on, in ticks of its own, and
/// rounds up.
pub const BRIEF_TTL: Duration = Duration::from_millis(950);
/// The same for what is watched. Longer would save next to nothing, and this bounds the effect of changes that no event
/// reports: a store through a mapping of lower, say.
pub const TOLD_TTL: Duration = Duration::from_secs(60);
/// The same for names that are missing, where lower is watched. No longer, because the kernel does not tell which missing
/// names it remembers: after lost events they must all lapse by themselves.
pub const MISSING_TTL: Duration = BRIEF_TTL;
/// What the desk shows changes with every request, and is asked for rarely.
pub const DESK_TTL: Duration = Duration::ZERO;

/// Attributes, and for how long they hold.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub attr: FileAttr,
    pub ttl: Duration,
}

impl From<Attributes> for Shown {
    fn from(Attributes { inode, meta, holds }: Attributes) -> Self {
        let ttl = match holds {
            Holds::UntilTold => TOLD_TTL,
            Holds::Briefly => BRIEF_TTL,
        };
        Self { attr: file_attr(inode, &meta), ttl }
    }
}

impl Shown {
    pub fn of_desk(node: u64, meta: &VirtualMeta) -> Self {
        let time = system_time(meta.mtime);
        let attr = FileAttr {
            ino: INodeNo(node),
            size: meta.size,
            blocks: meta.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if meta.is_dir { FileType::Directory } else { FileType::RegularFile },
            perm: permissions(meta.mode),
            nlink: if meta.is_dir { 2 } else { 1 },
            uid: meta.uid,
            gid: meta.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Self { attr, ttl: DESK_TTL }
    }
}

/// The result of looking a name up.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    Entry(Shown),
    /// Nothing is there, and the kernel may remember that.
    Missing,
}

impl Named {
    /// Returns the entry, or `ENOENT` if there is none.
    pub fn entry(self) -> Result<Shown> {
        match self {
            Self::Entry(shown) => Ok(shown),
            Self::Missing => Err(Error::Errno(libc::ENOENT)),
        }
    }
}

/// Attributes that say that nothing is there: inode number 0. The kernel reads no more of them.
pub fn nothing() -> FileAttr {
    let time = UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub fn file_attr(inode: u64, meta: &Meta) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: meta.size,
        blocks: meta.blocks,
        atime: system_time(meta.atime),
        mtime: system_time(meta.mtime),
        ctime: system_time(meta.ctime),
        crtime: system_time(meta.btime),
        kind: file_type(meta.kind),
        perm: permissions(meta.mode),
        nlink: meta.links,
        uid: meta.uid,
        gid: meta.gid,
        rdev: device_number(meta.special_device),
        blksize: meta.block_size,
        flags: 0,
    }
}

pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("twelve bits fit in sixteen")
}

/// The low 32 bits of libc's device number are what the kernel sends and takes, as long as majors stay below 4096 and
/// minors below 2^20; Linux has no others.
fn device_number(device: u64) -> u32 {
    u32::try_from(device & u64::from(u32::MAX)).expect("masked to 32 bits")
}

pub fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    second + Duration::from_nanos(u64::from(time.nanoseconds))
}

/// A time from a request. Before the epoch fuser 0.18.0 subtracts the nanoseconds that it should add (its
/// `system_time_from_time`), so they are read back the same way.
pub fn requested_time(time: SystemTime) -> Timestamp {
    let (negative, distance) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (false, after),
        Err(before) => (true, before.duration()),
    };
    let seconds = i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds: if negative { -seconds } else { seconds }, nanoseconds: distance.subsec_nanos() }
}

pub fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Keep,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::At(requested_time(time)),
    }
}
