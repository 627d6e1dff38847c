//! A program in the foreground, as a shell runs it: same terminal, same process group. We wait for it and stay out of the
//! way.
//!
//! ```text
//!   terminal ── Ctrl-C, Ctrl-\, Ctrl-Z ──► the whole group, us among it: for the program to act on
//!   kill PID ──► us ──► the program
//!   the program stops ──► we stop; we go on ──► it goes on
//!   the program ends ──► its status, as a shell counts; orphans of it come to us, and are reaped
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::daemon::check_alone;
use super::signals::{Received, exchange_mask, receive, set_of, signal_descriptor};

/// Signals that may be sent to us and are meant for the program. Signals that stop, and those that no process can block,
/// act on us as they always do.
const FOR_THE_PROGRAM: [libc::c_int; 10] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGURG,
];

/// Signals that end the wait for an answer, once there is no program to pass them on to.
const FOR_WHO_WAITS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// How much is read from a terminal at once; a read returns a line at most.
const LINE_PIECE_BYTES: usize = 256;

/// Signals that are kept to be passed on, from before the program exists.
pub struct Foreground {
    signals: OwnedFd,
    /// What was blocked before, and what SIGCHLD did.
    mask: libc::sigset_t,
    at_ends: libc::sighandler_t,
}

/// The program, and what it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front(Pid);

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The program has ended: its exit status, or 128 and the number of the signal that ended it.
    Ended(i32),
    /// The other descriptor that was waited for is readable.
    Told,
    TimeIsUp,
}

/// What came first when an answer was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    Answer(T),
    /// The number of a signal that asks us to end.
    Signal(i32),
}

impl Foreground {
    /// Blocks signals from here on, to be passed on later, and makes orphans of descendants our children.
    pub fn prepare() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // If SIGCHLD were ignored, there would be no status to wait for.
        // SAFETY: sets the default action, which calls nothing of ours.
        let at_ends = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let set = set_of(&[&FOR_THE_PROGRAM[..], &[libc::SIGCHLD]].concat());
        let mask = exchange_mask(libc::SIG_BLOCK, &set)?;
        Ok(Self { signals: signal_descriptor(&set)?, mask, at_ends })
    }

    /// For the child, before its `exec`: sets signals as our own parent had set them.
    pub fn hand_signals_back(&self) -> io::Result<()> {
        // SAFETY: the earlier action is no function of ours: nothing else in this process sets one for this signal.
        unsafe { libc::signal(libc::SIGCHLD, self.at_ends) };
        exchange_mask(libc::SIG_SETMASK, &self.mask).map(|_blocked| ())
    }

    /// Forks; the child does `work`, which ends in an `exec` or returns its exit status. Refused when there are other
    /// threads, whose locks would be held for ever in the child.
    pub fn start(&self, work: impl FnOnce() -> i32) -> io::Result<Front> {
        check_alone()?;
        // SAFETY: there is one thread, so the child's memory is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => std::process::exit(work()),
            raw => Pid::from_raw(raw).map(Front).ok_or_else(|| io::Error::other("fork gave no pid")),
        }
    }

    /// Sleeps until the program has ended, `also` is readable, or `pause` is over.
    pub fn wait(&self, front: Front, also: Option<BorrowedFd<'_>>, pause: Option<Duration>) -> io::Result<Happened> {
        let until = pause.map(|pause| Instant::now() + pause);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Happened::TimeIsUp);
            }
            if self.sleep(also, left)? {
                return Ok(Happened::Told);
            }
            while let Some(received) = receive(&self.signals)? {
                if let Some(status) = act_on(received, front)? {
                    return Ok(Happened::Ended(status));
                }
            }
        }
    }

    /// Sleeps until there is a line to read, or a signal comes that would have ended us if it were not blocked. To be
    /// called when the program has ended.
    pub fn hear(&self, terminal: BorrowedFd<'_>) -> io::Result<Heard<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let is_readable = self.sleep(Some(terminal), None)?;
            while let Some(Received { number, .. }) = receive(&self.signals)? {
                if FOR_WHO_WAITS.contains(&number) {
                    return Ok(Heard::Signal(number));
                }
            }
            if is_readable && read_piece(terminal, &mut line)? {
                return Ok(Heard::Answer(line));
            }
        }
    }

    /// Sleeps until there is a signal or `left` is over, or until `also` is readable, and returns whether it is.
    fn sleep(&self, also: Option<BorrowedFd<'_>>, left: Option<Duration>) -> io::Result<bool> {
        let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut sources: Vec<_> = [Some(self.signals.as_fd()), also]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut sources, left.as_ref()) {
            Ok(_) => Ok(sources.get(1).is_some_and(|also| !also.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }
}

/// Reads a piece of a line. Returns whether the line is complete.
fn read_piece(terminal: BorrowedFd<'_>, line: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; LINE_PIECE_BYTES];
    match rustix::io::read(terminal, &mut piece) {
        Ok(count) => {
            line.extend_from_slice(&piece[..count]);
            Ok(count == 0 || line.ends_with(b"\n"))
        }
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

/// Acts on a signal. Returns the program's status if the signal announces its end.
fn act_on(received: Received, front: Front) -> io::Result<Option<i32>> {
    match received {
        Received { number: libc::SIGCHLD, .. } => reap(front),
        // From the terminal: the whole group has got it.
        Received { is_from_kernel: true, .. } => Ok(None),
        Received { number, .. } => pass_on(front, number).map(|()| None),
    }
}

/// Reaps all children that have ended. Stops with the program if that has stopped, and returns its status if it has
/// ended.
fn reap(front: Front) -> io::Result<Option<i32>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == front.0 => match ended(status) {
                Some(status) => return Ok(Some(status)),
                None => stop_too(front)?,
            },
            Ok(Some(_orphan)) => {}
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn ended(status: WaitStatus) -> Option<i32> {
    status.exit_status().or_else(|| Some(128 + status.terminating_signal()?))
}

/// Stops us, so that the shell that waits for us sees it. The first process of a pid namespace cannot stop.
fn stop_too(front: Front) -> io::Result<()> {
    if rustix::process::getpid() == Pid::INIT {
        return Ok(());
    }
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    pass_on(front, libc::SIGCONT)
}

/// Sends the program a signal. That it may be ending at this moment is no error.
fn pass_on(front: Front, number: libc::c_int) -> io::Result<()> {
    // SAFETY: takes two numbers. The child has not been waited for, so its pid is nobody else's.
    match unsafe { libc::kill(front.0.as_raw_nonzero().get(), number) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            err if err.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            err => Err(err),
        },
    }
}
