//! What a process inherits from the one that starts it: limits, ignored signals, open descriptors. They were meant for
//! the programs of a shell. A daemon that kept them could be killed by them, or keep another process waiting.
//!
//! The kernel holds each program in the view to its own limits, so those of the daemon protect nothing. Hard limits,
//! which only an administrator can raise, stay. Of the rest a daemon keeps what does not end it: priorities, the umask
//! (it makes files with the modes that it is asked for), whether it leaves a core file, and how soon the kernel kills it
//! when memory runs out.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::FileType;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::spawn::{beyond_standard, no_longer_ignore, receive_signals};

/// Limits past which a process is killed, or fails at what it does for others. The stack's is not among them: threads
/// have stacks of their own size.
const LIFTED: [Resource; 6] =
    [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data, Resource::Nproc, Resource::Nofile];

/// The limits as they were before [`survive`], for the programs that a daemon starts.
static FOUND: OnceLock<[Rlimit; LIFTED.len()]> = OnceLock::new();

/// For a process that goes on in the background: drops all that came from the shell but its environment. To be called
/// while there is one thread.
pub fn leave_behind() -> io::Result<()> {
    receive_signals()?;
    close_left_open()?;
    survive()
}

/// For any daemon: raises each limit as far as this process may without privilege, has a file that grows too long
/// reported by an errno instead of a deadly signal, and lets children be waited for.
pub fn survive() -> io::Result<()> {
    no_longer_ignore(libc::SIGCHLD)?;
    // SAFETY: no function of ours is called for the signal.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    FOUND.get_or_init(|| LIFTED.map(getrlimit));
    LIFTED.into_iter().try_for_each(|resource| {
        let limit = getrlimit(resource);
        Ok(setrlimit(resource, Rlimit { current: limit.maximum, ..limit })?)
    })
}

/// Gives a child the limits that this process was started with.
pub fn give_limits_back(child: u32) -> io::Result<()> {
    let Some(found) = FOUND.get() else { return Ok(()) };
    let child = Pid::from_raw(child.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    LIFTED.into_iter().zip(found).try_for_each(|(resource, limit)| {
        prlimit(Some(child), resource, *limit)?;
        Ok(())
    })
}

/// Closes directories that were left open by the process that started this one: by such a descriptor a program would go
/// where no path leads.
pub fn close_directories() -> io::Result<()> {
    left_open()?.filter(|number| is_directory(*number)).for_each(close);
    Ok(())
}

/// Any other descriptor may be a lock, or a pipe at the other end of which a program waits.
fn close_left_open() -> io::Result<()> {
    left_open()?.for_each(close);
    Ok(())
}

/// The descriptors that this program has not opened. What it opens is closed on `exec`.
fn left_open() -> io::Result<impl Iterator<Item = i32>> {
    Ok(beyond_standard()?.into_iter().filter(|number| {
        // SAFETY: it asks for the flags of a number, whether or not that is a descriptor.
        let flags = unsafe { libc::fcntl(*number, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    }))
}

fn is_directory(number: i32) -> bool {
    // SAFETY: the number is a descriptor, which stays open for this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::fs::fstat(descriptor).is_ok_and(|meta| FileType::from_raw_mode(meta.st_mode) == FileType::Directory)
}

fn close(number: i32) {
    // SAFETY: nothing of this program owns it.
    unsafe { libc::close(number) };
}
