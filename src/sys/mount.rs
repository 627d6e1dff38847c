//! Mounts: what is mounted where, mounting FUSE, taking it away again.
//!
//! Mounting is done here and not by fuser, which cannot set the type `fuse.fettlefs` with a source of its own and whose
//! unmounting has faults. The descriptor goes to `fuser::Session::from_fd`, which then leaves the mount to us.
//! Nothing here waits for a daemon, except [`is_dead`] for one that is alive but does not answer.
//! Begin with [`mount_fuse`] and [`mount_at`].

mod aliases;
mod helper;
mod table;
#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags};

pub use aliases::{Alias, aliases};
pub use helper::{HELPERS, mount_fuse_with_helper, unmount_with_helper};
pub use table::{Device, MountEntry, mount_at, mount_on, mountpoint_of, mounts, mounts_elsewhere, origin};

/// What `/proc/mounts` shows as the type; the kernel takes the part behind the dot for a name of ours.
pub const FS_TYPE: &str = "fuse.fettlefs";

/// The device by which a FUSE daemon mounts and serves.
pub const FUSE_DEVICE: &str = "/dev/fuse";

/// The device by which a mount's requests come, and the number of its file system.
#[derive(Debug)]
pub struct Door {
    pub device: OwnedFd,
    pub number: Device,
}

impl Door {
    /// For what has just been mounted at `mountpoint`. Asks nothing of the file system, because no daemon answers yet.
    pub fn at(mountpoint: &Path, device: OwnedFd) -> io::Result<Self> {
        let entry = mount_at(mountpoint)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { device, number: entry.device })
    }
}

/// How to mount. [`FuseMount::new`] gives the usual: nosuid, nodev, for the mounting user only, modes checked by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct FuseMount<'a> {
    /// Shown as the mounted device; any bytes but zero.
    pub source: &'a OsStr,
    pub allow_other: bool,
    pub default_permissions: bool,
    pub suid: bool,
    pub dev: bool,
    pub read_only: bool,
    pub noexec: bool,
    /// Further words of mount(8): see [`kernel_option`] for those understood.
    pub extra: &'a [&'a str],
}

impl<'a> FuseMount<'a> {
    pub fn new(source: &'a OsStr) -> Self {
        Self {
            source,
            allow_other: false,
            default_permissions: true,
            suid: false,
            dev: false,
            read_only: false,
            noexec: false,
            extra: &[],
        }
    }
}

/// A word of mount(8) as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOption<'a> {
    Flag(MountFlags),
    /// Passed on as text, such as `max_read=131072`.
    Data(&'a str),
}

/// What a word of `-o` means to the kernel beyond the fields of [`FuseMount`]; `None` for one it does not know.
pub fn kernel_option(word: &str) -> Option<KernelOption<'_>> {
    let flag = match word {
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        "strictatime" => MountFlags::STRICTATIME,
        "lazytime" => MountFlags::LAZYTIME,
        "sync" => MountFlags::SYNCHRONOUS,
        "dirsync" => MountFlags::DIRSYNC,
        "nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ if word.starts_with("max_read=") && !word.contains(',') => return Some(KernelOption::Data(word)),
        _ => return None,
    };
    Some(KernelOption::Flag(flag))
}

/// How thoroughly to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// EBUSY while a process is inside.
    Plain,
    /// Gone from the tree at once; a process inside keeps what it has open.
    Detach,
}

/// Opens [`FUSE_DEVICE`]. A separate step for callers that must tell a missing /dev/fuse from a missing mount point.
pub fn open_fuse_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts as root (or in a user namespace of one's own) and returns the descriptor by which requests come.
///
/// Returns before the kernel has sent its first request, which the session's handshake answers. Closing the descriptor
/// leaves a dead mount behind.
pub fn mount_fuse(mountpoint: &Path, options: &FuseMount<'_>) -> io::Result<OwnedFd> {
    let device = open_fuse_device()?;
    let data = kernel_data(options, &device)?;
    let source = rustix::path::Arg::into_c_str(options.source)?;
    rustix::mount::mount(source.as_ref(), mountpoint, FS_TYPE, mount_flags(options)?, Some(data.as_c_str()))?;
    Ok(device)
}

fn kernel_data(options: &FuseMount<'_>, device: &OwnedFd) -> io::Result<CString> {
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        // Not asked of the mount point, which may be another mount that does not answer. A file there gives ENOTDIR.
        libc::S_IFDIR,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    for word in data_words(options)? {
        data.push(',');
        data.push_str(word);
    }
    Ok(CString::new(data)?)
}

fn data_words<'a>(options: &FuseMount<'a>) -> io::Result<Vec<&'a str>> {
    let mut words = Vec::new();
    words.extend(options.allow_other.then_some("allow_other"));
    words.extend(options.default_permissions.then_some("default_permissions"));
    for &word in options.extra {
        if let KernelOption::Data(text) = known_option(word)? {
            words.push(text);
        }
    }
    Ok(words)
}

fn mount_flags(options: &FuseMount<'_>) -> io::Result<MountFlags> {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOEXEC, options.noexec);
    for &word in options.extra {
        if let KernelOption::Flag(flag) = known_option(word)? {
            flags |= flag;
        }
    }
    Ok(flags)
}

fn known_option(word: &str) -> io::Result<KernelOption<'_>> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("unknown mount option {word:?}"));
    kernel_option(word).ok_or_else(unknown)
}

/// Unmounts the topmost mount at `path`. Never follows a link in the last component.
pub fn unmount(path: &Path, mode: UnmountMode) -> io::Result<()> {
    let flags = match mode {
        UnmountMode::Plain => UnmountFlags::NOFOLLOW,
        UnmountMode::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Opens the directory that mounts of ours cover, as a place to begin at: in a copy of the mount around it, on which
/// nothing is mounted.
///
/// Needs root. Refused where other mounts lie there or in it, because the copy lacks them.
pub fn open_covered(path: &Path) -> io::Result<OwnedFd> {
    let mounts: Vec<_> = mounts()?.into_iter().filter(|mount| mount.fs_type != FS_TYPE).collect();
    if mounts.iter().any(|mount| mount.mountpoint.starts_with(path)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let around = table::around(path, &mounts).ok_or(io::ErrorKind::NotFound)?;
    let within = path.strip_prefix(&around.mountpoint).map_err(io::Error::other)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = rustix::mount::open_tree(CWD, &around.mountpoint, flags)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&copy, within, flags, Mode::empty())?)
}

/// Whether the daemon behind a mount is gone ("transport endpoint is not connected").
///
/// Asks past the kernel's cache, which would go on answering for a dead daemon as long as its attributes are valid.
/// So it waits for a daemon that is alive but stuck. Another user's mount without `allow_other` counts as alive.
pub fn is_dead(path: &Path) -> bool {
    let answer = rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    answer.is_err_and(|err| is_death(&err.into()))
}

/// True if this is the error of a mount whose daemon is gone, or died over this very question; `ECANCELED` comes for some
/// milliseconds while its rings are being taken down.
pub fn is_death(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A way to cut a FUSE connection: every request waiting for the daemon fails, and the mount is dead. To be made while
/// the mount stands, from the minor number of its device: another mount may get the number later, and is not cut by this.
#[derive(Debug)]
pub struct ConnectionAbort(io::Result<File>);

impl ConnectionAbort {
    pub fn of(minor: u32) -> Self {
        let path = format!("{minor}/abort");
        Self(match OpenOptions::new().write(true).open(Path::new(CONNECTIONS).join(&path)) {
            // Containers and small systems do not mount it there, so we mount it where no other process sees it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open_unmounted(&path),
            opened => opened,
        })
    }

    /// Does nothing to a connection that has ended.
    pub fn cut(&self) -> io::Result<()> {
        match &self.0 {
            Ok(abort) => (&mut &*abort).write_all(b"1"),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

fn open_unmounted(path: &str) -> io::Result<File> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(&root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}
