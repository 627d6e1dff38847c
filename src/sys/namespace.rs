//! Namespaces: which ones a process is in, and going into some.
//!
//! Two processes are in the same namespace when the numbers are equal. Nothing here forks; whoever goes somewhere has one
//! thread.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec};
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

/// The namespace of this kind that a process or thread is in. An error where it is gone or not ours to see.
pub fn of(pid: u32, kind: Kind) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/{pid}/ns/{}", kind.name()))?.ino())
}

/// The one that we are in.
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
    /// Root may.
    Mounts,
    /// An ordinary user becomes the owner of a user namespace first, where the kernel lets everybody.
    MountsAndUser,
}

/// Leaves the mount namespace for a copy of it, in a user namespace of one's own where that is needed. In the copy mounts
/// come and go with those outside, and what is mounted in it shows in copies of the copy.
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

/// The next child is the first process of a pid namespace.
pub fn leave_pids() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID)
}

/// Goes into the mount namespace of a process, and into its user namespace where that is another.
pub fn enter(process: u32) -> io::Result<()> {
    let mut kinds = ThreadNameSpaceType::MOUNT;
    kinds.set(ThreadNameSpaceType::USER, of(process, Kind::User)? != own(Kind::User)?);
    Ok(rustix::thread::move_into_thread_name_spaces(pidfd_of(process)?.as_fd(), kinds)?)
}

pub fn pidfd_of(process: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether a process of which this is the descriptor has ended.
pub fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// The same uid and gid inside as outside; nobody else has one.
fn keep_ids(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn propagate(how: MountPropagationFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_change("/", how | MountPropagationFlags::REC)?)
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of these flags separates file descriptors, which is what could confuse their owners.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}
