//! A process beside the daemon that cuts its FUSE connection when it dies, because a daemon may die without ending.
//!
//! ```text
//!   daemon ──start──► guard            one thread; holds a pipe and a pidfd, nothing else
//!     ├───── watch(connection) ────►   sleeps
//!     ├───── dismiss ──────────────►   gone: there is no connection any more
//!     ├───── a word of its abort ──►   the same: its threads wait for one another
//!     └───── its main thread ends ─►   gone with the rest: nothing to do
//!                                      another thread stays behind: abort
//! ```
//! A thread that tells the kernel to forget a name waits for the lock of the directory, and no signal ends that wait. The
//! program that holds the lock may be waiting for an answer from the daemon. If the daemon is killed then, it becomes a
//! process without a main thread that keeps the device open: the kernel goes on waiting for it, and every program for the
//! kernel. Neither its parent nor a pidfd is told of such a death; its children are, by the signal they asked for.
//!
//! When a process aborts, no thread of it ends before all have stopped, for its core file. If one of them waits for the
//! kernel, its children are not told. So the daemon itself says that it aborts.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::daemon::{Child, Forked, Output, ReadySignal, fork};
use super::mount::ConnectionAbort;
use super::signals::{exchange_mask, set_of, signal_descriptor};
use super::spawn::{close_all_but, receive_signals};

/// How long the other threads of a process may take to end after the first. Cutting the connection of a dead daemon too
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

    /// Tells the guard which connection to abort, by the minor number of its mount's device.
    pub fn watch(&mut self, connection: u32) -> io::Result<()> {
        self.word.write_all(&connection.to_ne_bytes())?;
        tell_of_abort(&self.word)
    }

    /// Ends the guard when nothing is left to guard: the number of the connection may soon be another's.
    pub fn dismiss(self) -> io::Result<()> {
        ABORTS_TO.store(-1, Ordering::SeqCst);
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

fn be_the_guard(daemon: Pid, pidfd: OwnedFd, word: File, signal: ReadySignal) -> ! {
    let guarded = prepare(daemon, &pidfd, &word, signal).and_then(|()| stand_guard(&pidfd, word));
    // There is no process to report to; that the project hangs shows by itself.
    std::process::exit(i32::from(guarded.is_err()))
}

fn prepare(daemon: Pid, pidfd: &OwnedFd, word: &File, signal: ReadySignal) -> io::Result<()> {
    // An ignored signal would never arrive.
    receive_signals()?;
    exchange_mask(libc::SIG_BLOCK, &set_of(&[DEATH.as_raw()]))?;
    rustix::process::set_parent_process_death_signal(Some(DEATH))?;
    if rustix::process::getppid() != Some(daemon) {
        return Err(io::Error::other("the daemon died before it was guarded"));
    }
    signal.ready(Output::Null)?;
    // The guard must not keep open what the daemon had open when it forked.
    close_all_but(&[pidfd.as_raw_fd(), word.as_raw_fd()])
}

fn stand_guard(daemon: &OwnedFd, mut word: File) -> io::Result<()> {
    let mut connection = [0; 4];
    if word.read_exact(&mut connection).is_err() {
        // The daemon ended before it had mounted.
        return Ok(());
    }
    // Opened now, because by the time it is needed the number may be another mount's.
    let abort = ConnectionAbort::of(u32::from_ne_bytes(connection));
    wait_for_death(&word)?;
    match ends_within(daemon, END_MAX)? {
        true => Ok(()),
        false => abort.cut(),
    }
}

/// Waits for the death of the daemon's main thread, or its word that it aborts.
fn wait_for_death(word: &File) -> io::Result<()> {
    let death = signal_descriptor(&set_of(&[DEATH.as_raw()]))?;
    let mut told = [PollFd::new(&death, PollFlags::IN), PollFd::new(word, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut told, None))?;
    Ok(())
}

fn ends_within(process: &OwnedFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&time)))? > 0)
}

/// The descriptor by which the handler of an abort reaches the guard; -1 while there is none.
static ABORTS_TO: AtomicI32 = AtomicI32::new(-1);

fn tell_of_abort(word: &File) -> io::Result<()> {
    ABORTS_TO.store(word.as_raw_fd(), Ordering::SeqCst);
    let handler: extern "C" fn(libc::c_int) = say_that_it_aborts;
    // SAFETY: the handler makes one system call, which is safe at any moment, and the abort goes on when it returns.
    match unsafe { libc::signal(libc::SIGABRT, handler as *const () as libc::sighandler_t) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

extern "C" fn say_that_it_aborts(_signal: libc::c_int) {
    // SAFETY: one byte of a constant is written to a number; where that is no descriptor any more nothing happens.
    unsafe { libc::write(ABORTS_TO.load(Ordering::SeqCst), [0_u8].as_ptr().cast(), 1) };
}
