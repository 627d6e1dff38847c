//! A process beside a daemon that cuts its FUSE connection when it dies, for a daemon may die and not end.
//!
//! ```text
//!   daemon ──start──► guard            one thread; holds a pipe and a pidfd, nothing else
//!     ├───── watch(connection) ────►   sleeps
//!     ├───── dismiss ──────────────►   gone: there is no connection any more
//!     └───── its main thread ends ─►   gone with the rest: nothing to do
//!                                      another thread stays behind: abort
//! ```
//! A thread that tells the kernel to forget a name waits for the lock of the directory, and no signal ends that wait.
//! Whoever has the lock may be waiting for an answer of the daemon. Killed then, it is a process without a main thread
//! that keeps the device open, so that the kernel goes on waiting for it, and everybody for the kernel. Its parent is not
//! told of such a death, nor is a pidfd; its children are, by the signal they asked for.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::daemon::{Child, Forked, Output, ReadySignal, fork};
use super::mount::abort_connection;
use super::spawn::{close_all_but, receive_signals};

/// How long the other threads of a process may take to end after the first. To abort the connection of a dead daemon
/// early does no harm.
const END_MAX: Duration = Duration::from_millis(200);

const DEATH: Signal = Signal::USR1;

/// The guard of this process.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    word: File,
}

impl Guard {
    /// To be called by the main thread, before there are others.
    pub fn start() -> io::Result<Self> {
        let daemon = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let own = rustix::process::getpid();
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        match fork()? {
            Forked::Parent(readiness) => match readiness.wait()? {
                Ok(child) => Ok(Self { child, word: File::from(write) }),
                Err(reason) => Err(io::Error::other(reason)),
            },
            Forked::Child(signal) => be_the_guard(own, daemon, File::from(read), signal),
        }
    }

    /// The connection to abort, by the minor number of its mount's device.
    pub fn watch(&mut self, connection: u32) -> io::Result<()> {
        self.word.write_all(&connection.to_ne_bytes())
    }

    /// Nothing is left to guard: the number of the connection may soon be another's.
    pub fn dismiss(self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

fn be_the_guard(daemon: Pid, pidfd: OwnedFd, word: File, signal: ReadySignal) -> ! {
    let guarded = prepare(daemon, &pidfd, &word, signal).and_then(|()| stand_guard(&pidfd, word));
    // There is nobody to tell: whoever asks why a project hangs sees that it does.
    std::process::exit(i32::from(guarded.is_err()))
}

fn prepare(daemon: Pid, pidfd: &OwnedFd, word: &File, signal: ReadySignal) -> io::Result<()> {
    // One that is ignored is never waited for.
    receive_signals()?;
    block_death()?;
    rustix::process::set_parent_process_death_signal(Some(DEATH))?;
    if rustix::process::getppid() != Some(daemon) {
        return Err(io::Error::other("the daemon died before it was guarded"));
    }
    signal.ready(Output::Null)?;
    // What the daemon had open when the guard was forked is not the guard's to keep open.
    close_all_but(&[pidfd.as_raw_fd(), word.as_raw_fd()])
}

fn stand_guard(daemon: &OwnedFd, mut word: File) -> io::Result<()> {
    let mut connection = [0; 4];
    if word.read_exact(&mut connection).is_err() {
        // It ended before it had mounted.
        return Ok(());
    }
    wait_for_death()?;
    match ends_within(daemon, END_MAX)? {
        true => Ok(()),
        false => abort_connection(u32::from_ne_bytes(connection)),
    }
}

fn ends_within(process: &OwnedFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&time)))? > 0)
}

fn death_alone() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; both calls get a valid pointer and a valid signal number.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), DEATH.as_raw());
        set.assume_init()
    }
}

fn block_death() -> io::Result<()> {
    // SAFETY: the set is initialised, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &death_alone(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn wait_for_death() -> io::Result<()> {
    // SAFETY: the set is initialised, and what the signal tells is not asked for.
    while unsafe { libc::sigwaitinfo(&death_alone(), std::ptr::null_mut()) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}
