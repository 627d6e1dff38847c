//! Waiting for the signals that end the daemon.
//!
//! They are blocked, so that none interrupts a landing half done, and read from a descriptor by the one thread that
//! waits. A blocked signal stays blocked across `exec`: every program started after [`Termination::block`] needs
//! [`unblock_in`], or it cannot be interrupted.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags};

/// A signal that asks the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Terminate,
    Interrupt,
    HangUp,
}

impl Signal {
    const ALL: [Self; 3] = [Self::Terminate, Self::Interrupt, Self::HangUp];

    pub fn number(self) -> libc::c_int {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::HangUp => libc::SIGHUP,
        }
    }
}

/// Where a signal came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The terminal, to its whole foreground process group.
    Terminal,
    Process,
}

/// Why the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    Signal(Signal, Origin),
    /// Another thread called [`Waker::wake`], for instance because the mount ended by itself.
    Woken,
}

/// The blocked signals and the means to wait for them.
#[derive(Debug)]
pub struct Termination {
    blocked: libc::sigset_t,
    signals: OwnedFd,
    woken: Arc<OwnedFd>,
}

/// Ends the wait from another thread. A wake before the wait is not lost.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Termination {
    /// Blocks SIGTERM, SIGINT and SIGHUP in the calling thread and in those it starts: call it before any is started.
    pub fn block() -> io::Result<Self> {
        Self::block_these(signal_set())
    }

    /// The same for those that are not ignored: `nohup` and a script's background jobs are to be spared some.
    pub fn block_heeded() -> io::Result<Self> {
        let heeded = Signal::ALL.map(Signal::number).into_iter().filter(|number| !is_ignored(*number));
        Self::block_these(set_of(&heeded.collect::<Vec<_>>()))
    }

    fn block_these(blocked: libc::sigset_t) -> io::Result<Self> {
        change_mask(libc::SIG_BLOCK, &blocked)?;
        let woken = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { blocked, signals: signal_descriptor(&blocked)?, woken: Arc::new(woken) })
    }

    /// Lets them end the program again, if they reach the calling thread.
    pub fn unblock(self) -> io::Result<()> {
        change_mask(libc::SIG_UNBLOCK, &self.blocked)
    }

    /// True if one of them has come. It is not consumed, so it ends the program once they are unblocked.
    pub fn has_come(&self) -> io::Result<bool> {
        let at_once = rustix::event::Timespec::default();
        let mut sources = [PollFd::new(&self.signals, PollFlags::IN)];
        match rustix::event::poll(&mut sources, Some(&at_once)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.woken))
    }

    /// Sleeps until a signal comes or a [`Waker`] wakes it. Both are consumed, and it can be called again.
    pub fn wait(&self) -> io::Result<Wakeup> {
        loop {
            self.sleep()?;
            if let Some((signal, origin)) = read_signal(&self.signals)? {
                return Ok(Wakeup::Signal(signal, origin));
            }
            if take_wake(&self.woken)? {
                return Ok(Wakeup::Woken);
            }
        }
    }

    fn sleep(&self) -> io::Result<()> {
        let mut sources = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(self.woken.as_ref(), PollFlags::IN)];
        match rustix::event::poll(&mut sources, None) {
            // Interrupted by a signal that is not ours: the descriptors say whether there is something.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Waker {
    pub fn wake(&self) -> io::Result<()> {
        match rustix::io::write(self.0.as_ref(), &1_u64.to_ne_bytes()) {
            // A full counter means that it was woken often enough.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Lets the program that `command` will start receive the signals blocked here.
pub fn unblock_in(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only `sigemptyset`, `sigaddset` and `pthread_sigmask` are called, none of which allocates.
    unsafe { command.pre_exec(|| change_mask(libc::SIG_UNBLOCK, &signal_set())) }
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    exchange_mask(how, set).map(|_before| ())
}

/// Returns the mask as it was.
pub(super) fn exchange_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the set is initialised, and the call fills the other when it succeeds.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: it has succeeded.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn signal_set() -> libc::sigset_t {
    set_of(&Signal::ALL.map(Signal::number))
}

/// Allocates nothing.
pub(super) fn set_of(numbers: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; both calls get a valid pointer and valid signal numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        set.assume_init()
    }
}

pub(super) fn signal_descriptor(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One signal as it came.
pub(super) struct Received {
    pub number: libc::c_int,
    /// Sent by the kernel itself, as a rule for the terminal; otherwise by a process.
    pub is_from_kernel: bool,
}

fn read_signal(signals: &OwnedFd) -> io::Result<Option<(Signal, Origin)>> {
    let Some(Received { number, is_from_kernel }) = receive(signals)? else { return Ok(None) };
    let signal = Signal::ALL.into_iter().find(|signal| signal.number() == number);
    let origin = if is_from_kernel { Origin::Terminal } else { Origin::Process };
    Ok(signal.map(|signal| (signal, origin)))
}

fn is_ignored(number: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set, and the call fills the action when it succeeds.
    let asked = unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it has succeeded.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// The next signal that waits, if one does.
pub(super) fn receive(signals: &OwnedFd) -> io::Result<Option<Received>> {
    let mut record = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let bytes = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is as long as said.
    let read = unsafe { libc::read(signals.as_raw_fd(), record.as_mut_ptr().cast(), bytes) };
    if read < 0 {
        return none_if_would_block(io::Error::last_os_error());
    }
    // SAFETY: plain integers, zeroed at first and then filled by the kernel.
    let record = unsafe { record.assume_init() };
    let number = libc::c_int::try_from(record.ssi_signo).map_err(io::Error::other)?;
    Ok(Some(Received { number, is_from_kernel: record.ssi_code == libc::SI_KERNEL }))
}

fn none_if_would_block<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

fn take_wake(woken: &OwnedFd) -> io::Result<bool> {
    match rustix::io::read(woken, &mut [0_u8; 8]) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
