//! Namespaces: which ones a process is in, and going into some.
//!
//! Two processes are in the same namespace when the numbers are equal. Nothing here forks; a process must have one thread
//! to enter or leave a namespace.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

/// A kind of namespace, by its name in `/proc/PID/ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mount,
    Pid,
    User,
}

/// Returns the namespace of this kind that a process or thread is in. An error if the process is gone or not visible to
/// us.
pub fn of(pid: u32, kind: Kind) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/{pid}/ns/{}", kind.name()))?.ino())
}

/// The namespace that we are in.
pub fn own(kind: Kind) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/self/ns/{}", kind.name()))?.ino())
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Mount => "mnt",
            Self::Pid => "pid",
            Self::User => "user",
        }
    }
}

/// What it takes to have mounts of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// A mount namespace alone, which root may have.
    Mounts,
    /// An ordinary user becomes the owner of a user namespace first, where the kernel lets every user do so.
    MountsAndUser,
}

/// Leaves the mount namespace for a copy of it, in a user namespace of one's own where that is needed. Mounts outside
/// come and go in the copy too, and what is mounted in the copy shows in copies of it.
pub fn leave_mounts() -> io::Result<Leave> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let left = match unshare(UnshareFlags::NEWNS) {
        Ok(()) => Leave::Mounts,
        Err(err) if err.kind() == ErrorKind::PermissionDenied => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            keep_ids(user.as_raw(), group.as_raw())?;
            Leave::MountsAndUser
        }
        Err(err) => return Err(err),
    };
    propagate(MountPropagationFlags::DOWNSTREAM)?;
    propagate(MountPropagationFlags::SHARED)?;
    Ok(left)
}

/// Leaves the mount namespace for a copy that follows it: what is mounted there shows here, and not the other way.
pub fn copy_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    propagate(MountPropagationFlags::DOWNSTREAM)
}

/// Makes the next child the first process of a new pid namespace.
pub fn leave_pids() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID)
}

/// Enters the mount namespace of a process, and its user namespace if that differs from ours. The root directory is that
/// of the process, too.
pub fn enter(process: u32) -> io::Result<()> {
    let mut kinds = ThreadNameSpaceType::MOUNT;
    kinds.set(ThreadNameSpaceType::USER, of(process, Kind::User)? != own(Kind::User)?);
    let root = open_directory(&format!("/proc/{process}/root"))?;
    rustix::thread::move_into_thread_name_spaces(pidfd_of(process)?.as_fd(), kinds)?;
    // The kernel has led to the root of the namespace, which is out of a chroot.
    if is_same_place(&root, &open_directory("/")?)? {
        return Ok(());
    }
    rustix::process::fchdir(&root)?;
    Ok(rustix::process::chroot(".")?)
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether two directories are one, at the same mount.
fn is_same_place(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let ask = |place: &OwnedFd| {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let told = rustix::fs::statx(place, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)?;
        Ok::<_, io::Error>((told.stx_dev_major, told.stx_dev_minor, told.stx_ino, told.stx_mnt_id))
    };
    Ok(ask(one)? == ask(other)?)
}

pub fn pidfd_of(process: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// True if the process behind a pidfd has ended.
pub fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Gives the uid and gid the same numbers inside as outside; no other id is mapped.
fn keep_ids(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn propagate(how: MountPropagationFlags) -> io::Result<()> {
    rustix::mount::mount_change("/", how | MountPropagationFlags::REC).map_err(|errno| match errno {
        Errno::INVAL => {
            io::Error::other("/ is no mount point here, as in a plain chroot: `mount --bind ROOT ROOT` makes one")
        }
        errno => errno.into(),
    })
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of these flags separates file descriptors, which is what could confuse their owners.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}
