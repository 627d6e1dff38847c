//! One file: what it is, its times and its descriptors; its bytes are in [`content`], its owner and rights in [`looks`].

mod content;
mod looks;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FileType, Mode, StatxFlags, Timespec};

pub use content::{
    Overwritten, TARGET_BYTES_MAX, append, changed_meanwhile, copy_as_found, copy_content, digest,
    has_changed_meanwhile, in_memory, is_mixture, is_small_and_whole, overwrite, read_about, read_all, read_at,
    read_named, same_content, take_back,
};
pub use looks::{
    Listed, OwnLooks, acl_of, clear_set_id, copy_looks, copy_looks_but, copy_metadata, copy_owner, give_looks,
    give_mode, give_times, give_to_owner_of, gives_group, masked_group, mode_beside_list, set_mode, set_owner,
    unless_refused,
};

use crate::model::{Births, InodeKey, Stamp, Timestamp};
use crate::sys::lease;

/// Mode bits that lend the rights of the file's owner or group to those who run it.
pub const SET_UID: u32 = 0o4000;
pub const SET_GID: u32 = 0o2000;
pub const SET_ID: u32 = SET_UID | SET_GID;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    pub fn from_type(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::RegularFile | FileType::Unknown => Self::Regular,
        }
    }

    /// The kind in a mode as `mknod` and `stat` spell it.
    pub fn from_mode(mode: u32) -> Self {
        Self::from_type(FileType::from_raw_mode(mode))
    }

    /// The word for it in the record and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }

    /// A FIFO, socket or device: the kernel itself carries out what is done with it.
    pub fn is_special(self) -> bool {
        match self {
            Self::Fifo | Self::Socket | Self::CharDevice | Self::BlockDevice => true,
            Self::Regular | Self::Directory | Self::Symlink => false,
        }
    }

    /// What upper can hold a copy of: a copy of a FIFO or socket is no substitute, because others have the first one open.
    pub fn has_content(self) -> bool {
        matches!(self, Self::Regular | Self::Symlink)
    }

    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }

    pub fn to_type(self) -> FileType {
        match self {
            Self::Regular => FileType::RegularFile,
            Self::Directory => FileType::Directory,
            Self::Symlink => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharDevice => FileType::CharacterDevice,
            Self::BlockDevice => FileType::BlockDevice,
        }
    }
}

/// What stands at a path, apart from its content: nothing, or an entry of a kind, and which device if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Standing {
    kind: Option<FileKind>,
    /// 0 unless it is a device.
    device: u64,
}

impl Standing {
    pub fn new(kind: Option<FileKind>, device: u64) -> Self {
        Self { kind, device: if kind.is_some_and(FileKind::is_device) { device } else { 0 } }
    }

    /// True for a regular file and for nothing, about which the content tells everything.
    pub fn is_file_or_nothing(self) -> bool {
        matches!(self.kind, None | Some(FileKind::Regular))
    }

    pub fn of(found: Option<&Meta>) -> Self {
        Self::new(found.map(|meta| meta.kind), found.map_or(0, |meta| meta.special_device))
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.map_or("nothing", FileKind::name))?;
        match self.kind.is_some_and(FileKind::is_device) {
            true => write!(f, " {}:{}", fs::major(self.device), fs::minor(self.device)),
            false => Ok(()),
        }
    }
}

/// What `statx` tells of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub device: u64,
    pub inode: u64,
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky; without the kind.
    pub mode: u32,
    pub links: u32,
    /// Another file system begins here, or a file is mounted on this one: it cannot be replaced by a rename.
    pub is_mount_root: bool,
    pub uid: u32,
    pub gid: u32,
    pub special_device: u64,
    pub size: u64,
    pub blocks: u64,
    pub block_size: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

impl Meta {
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::ask(fd, c"", AtFlags::EMPTY_PATH)
    }

    pub fn at(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Self> {
        Self::ask(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn ask<P: rustix::path::Arg>(dir: BorrowedFd<'_>, path: P, flags: AtFlags) -> io::Result<Self> {
        let stat = fs::statx(dir, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let time = |time: fs::StatxTimestamp| Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
        Ok(Self {
            device: fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            kind: FileKind::from_mode(u32::from(stat.stx_mode)),
            mode: u32::from(stat.stx_mode) & 0o7777,
            links: stat.stx_nlink,
            is_mount_root: stat.stx_attributes.contains(fs::StatxAttributes::MOUNT_ROOT),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            special_device: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            block_size: stat.stx_blksize,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
        })
    }

    pub fn stamp(&self) -> Stamp {
        let Self { device, inode, size, mtime, ctime, btime, .. } = *self;
        Stamp { device, inode, size, mtime, ctime, btime }
    }

    pub fn key(&self) -> InodeKey {
        self.stamp().key()
    }

    pub fn number(&self) -> (u64, u64) {
        self.key().number()
    }

    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The time by this machine's clock.
pub fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

pub fn to_timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

/// The mode to create a file with that is going to have `mode`: until then it is ours to fill, and lends no rights.
pub fn mode_at_first(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777 | 0o600)
}

pub fn set_times(fd: BorrowedFd<'_>, access: Timespec, modification: Timespec) -> io::Result<()> {
    let times = fs::Timestamps { last_access: access, last_modification: modification };
    Ok(fs::futimens(fd, &times)?)
}

/// Has reads through this descriptor leave the access time as it is. If this process may not ask for that, they change it
/// as usual.
pub fn keep_access_time(file: &File) -> io::Result<()> {
    // This sets or clears other flags, too, none of which matters to reads at offsets.
    match fs::fcntl_setfl(file, fs::OFlags::NOATIME) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        set => Ok(set?),
    }
}

/// Whether the file system lies on top of another, as overlayfs and FUSE may.
pub fn is_stacked(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const OVERLAYFS: u64 = 0x794c_7630;
    const FUSE: u64 = 0x6573_5546;
    let magic = u64::try_from(fs::fstatfs(fd)?.f_type).unwrap_or_default();
    Ok(matches!(magic, OVERLAYFS | FUSE))
}

/// Returns by what inodes are told apart on the file system of `fd`.
pub fn births(fd: BorrowedFd<'_>) -> io::Result<Births> {
    Ok(if is_stacked(fd)? { Births::Move } else { Births::Stay })
}

/// Opens the file behind a descriptor for reading, even if its mode denies that to this process as its owner. Reads leave
/// the access time as it is, as with [`keep_access_time`].
pub fn reopen_quietly(fd: BorrowedFd<'_>) -> io::Result<File> {
    match reopen_to_read(fd) {
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => reopen_unreadable(fd),
        opened => opened,
    }
}

fn reopen_to_read(fd: BorrowedFd<'_>) -> io::Result<File> {
    let flags = fs::OFlags::RDONLY | fs::OFlags::NONBLOCK | fs::OFlags::NOCTTY;
    match reopen(fd, flags | fs::OFlags::NOATIME) {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => reopen(fd, flags),
        opened => opened,
    }
}

/// Adds the owner's right to read to the mode for as long as opening takes, as an owner may. Afterwards the file has
/// another `ctime`.
fn reopen_unreadable(fd: BorrowedFd<'_>) -> io::Result<File> {
    /// Two threads at a time would take each other's mode for the file's own.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let meta = Meta::of(fd)?;
    if !is_kept_from_owner(&meta) {
        return reopen_to_read(fd);
    }
    set_mode(fd, meta.mode | READ_BY_OWNER)?;
    let opened = reopen_to_read(fd);
    set_mode(fd, meta.mode)?;
    opened
}

const READ_BY_OWNER: u32 = 0o400;

/// True if its mode denies reading to this process as its owner: each [`reopen_quietly`] then gives it another `ctime`.
pub fn is_kept_from_owner(meta: &Meta) -> bool {
    meta.is_file() && is_own(meta) && meta.mode & READ_BY_OWNER == 0
}

/// Whether this process is its owner.
pub fn is_own(meta: &Meta) -> bool {
    meta.uid == rustix::process::geteuid().as_raw()
}

/// Opens the file behind a descriptor once more, with other flags; works for `O_PATH` descriptors and unlinked files too.
pub fn reopen(fd: BorrowedFd<'_>, flags: fs::OFlags) -> io::Result<File> {
    let itself = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    Ok(File::from(lease::wait_for_lease(|| fs::open(&itself, flags | fs::OFlags::CLOEXEC, Mode::empty()))?))
}
