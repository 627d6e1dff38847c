//! Forks into the background, and reports back to the process that waits in front.
//!
//! The parent stays until the child says that it is ready, or why not, or dies. A start that ends without a word is a
//! failure: dropping the [`ReadySignal`] says so. Begin with [`fork`].
//!
//! ```text
//!   fork ─► Parent(Readiness) ── wait ◄────────────┐ one message on a pipe
//!     └───► Child(ReadySignal) ── ready | failed ──┘
//! ```
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus};

/// Which side of the fork this is.
#[derive(Debug)]
pub enum Forked {
    Parent(Readiness),
    Child(ReadySignal),
}

/// The parent's end: the child and the word awaited from it.
#[derive(Debug)]
#[must_use = "a start nobody waits for may have failed"]
pub struct Readiness {
    child: Pid,
    word: File,
}

/// A child that has become ready. Waiting for its end is up to the caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Child(Pid);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    Killed(i32),
}

/// The child's end.
///
/// Invariant: `word` is there until something was said.
#[derive(Debug)]
#[must_use = "the parent waits for it"]
pub struct ReadySignal {
    word: Option<File>,
}

/// Where standard output and error go once the child is ready. Standard input is always `/dev/null`.
#[derive(Clone, Copy, Debug)]
pub enum Output<'fd> {
    Null,
    Log(BorrowedFd<'fd>),
}

/// First byte of a message; a failure is followed by the length of its text (4 bytes) and the text.
const READY: u8 = b'R';
const FAILED: u8 = b'F';

/// Longer than any error we write; a broken child must not make the parent allocate at will.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// How long to wait until only one thread is counted: the kernel still lists a thread that was joined, on a busy machine
/// for some milliseconds.
const THREAD_ENDS_MAX: Duration = Duration::from_secs(2);
const THREADS_COUNTED_EVERY: Duration = Duration::from_millis(1);

/// Forks; the child becomes the leader of a session of its own and stands in `/`, so resolve relative paths before.
///
/// Refused when the process has more than one thread: see [`check_alone`].
pub fn fork() -> io::Result<Forked> {
    check_alone()?;
    fork_among_threads()
}

/// To be called before a fork: other threads would be missing in the child, with their locks held.
pub(super) fn check_alone() -> io::Result<()> {
    match count_left(|| Ok(fs::read_dir("/proc/self/task")?.count()), THREAD_ENDS_MAX)? {
        1 => Ok(()),
        count => Err(io::Error::other(format!("fork with {count} threads running"))),
    }
}

/// How many threads there are, once those that are ending have ended.
fn count_left(mut count: impl FnMut() -> io::Result<usize>, wait_max: Duration) -> io::Result<usize> {
    let begun = Instant::now();
    loop {
        match count()? {
            more if more > 1 && begun.elapsed() < wait_max => std::thread::sleep(THREADS_COUNTED_EVERY),
            left => return Ok(left),
        }
    }
}

impl Readiness {
    pub fn child_pid(&self) -> u32 {
        self.child.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for the child's word: ready, or its reason. A child that dies first is an error naming how it ended, even if
    /// another process has a copy of its [`ReadySignal`].
    pub fn wait(mut self) -> io::Result<Result<Child, String>> {
        let mut first = [0];
        let read = if self.has_word()? { self.word.read(&mut first)? } else { 0 };
        match read {
            0 => {
                let ending = Child(self.child).wait()?;
                Err(io::Error::other(format!("the background process {ending} before it was ready")))
            }
            _ if first[0] == READY => Ok(Ok(Child(self.child))),
            _ => read_reason(&mut self.word).map(Err),
        }
    }

    /// Sleeps until the child says something, or has ended without a word.
    fn has_word(&self) -> io::Result<bool> {
        let child = rustix::process::pidfd_open(self.child, PidfdFlags::empty())?;
        let mut sources = [PollFd::new(&self.word, PollFlags::IN), PollFd::new(&child, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut sources, None))?;
        Ok(!sources[0].revents().is_empty())
    }
}

impl Child {
    /// Sends SIGKILL. The child must still be waited for.
    pub fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::kill_process(self.0, rustix::process::Signal::KILL)?)
    }

    /// Sleeps until it ends.
    pub fn wait(self) -> io::Result<Ending> {
        loop {
            let status = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.0), WaitOptions::empty()))?;
            if let Some(ending) = status.and_then(|(_, status)| Ending::of(status)) {
                return Ok(ending);
            }
        }
    }
}

impl Ending {
    /// Returns `None` for a process that has only stopped.
    fn of(status: WaitStatus) -> Option<Self> {
        let exited = status.exit_status().map(Self::Exited);
        exited.or_else(|| status.terminating_signal().map(Self::Killed))
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with status {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

impl ReadySignal {
    /// Turns the standard descriptors away from the caller's terminal and tells the parent to go.
    ///
    /// EPIPE means that the parent is gone, for instance interrupted; the child may go on or give up.
    pub fn ready(mut self, output: Output<'_>) -> io::Result<()> {
        redirect_standard_descriptors(output)?;
        self.say(&[READY])
    }

    /// Tells the parent why there will be no service. The caller then exits.
    pub fn failed(mut self, reason: &str) -> io::Result<()> {
        self.say(&failure_message(reason))
    }

    fn say(&mut self, message: &[u8]) -> io::Result<()> {
        match self.word.take() {
            Some(mut word) => word.write_all(message),
            None => Ok(()),
        }
    }
}

impl Drop for ReadySignal {
    fn drop(&mut self) {
        if let Err(error) = self.say(&failure_message("the start was abandoned")) {
            log::warn!("tell the waiting process that the start was abandoned: {error}");
        }
    }
}

fn failure_message(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(MESSAGE_BYTES_MAX)];
    let length = u32::try_from(reason.len()).expect("at most MESSAGE_BYTES_MAX");
    [&[FAILED][..], &length.to_ne_bytes(), reason].concat()
}

fn read_reason(word: &mut File) -> io::Result<String> {
    let mut length = [0; 4];
    word.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_ne_bytes(length)).unwrap_or(MESSAGE_BYTES_MAX);
    let mut reason = vec![0; length.min(MESSAGE_BYTES_MAX)];
    word.read_exact(&mut reason)?;
    Ok(String::from_utf8_lossy(&reason).into_owned())
}

/// [`fork`] without its check, for tests, whose process has threads.
fn fork_among_threads() -> io::Result<Forked> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: `fork` asked for one thread, so the child's memory is whole; tests keep to system calls in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child(become_background(write)?)),
        raw => {
            let child = Pid::from_raw(raw).ok_or_else(|| io::Error::other("fork gave no pid"))?;
            Ok(Forked::Parent(Readiness { child, word: File::from(read) }))
        }
    }
}

fn become_background(write: OwnedFd) -> io::Result<ReadySignal> {
    let signal = ReadySignal { word: Some(File::from(write)) };
    let outcome = rustix::process::setsid().and_then(|_| rustix::process::chdir("/"));
    match outcome {
        Ok(()) => Ok(signal),
        Err(errno) => {
            let error = io::Error::from(errno);
            signal.failed(&format!("leave the session: {error}"))?;
            Err(error)
        }
    }
}

/// Turns the standard descriptors away from whatever they were.
pub fn redirect_standard_descriptors(output: Output<'_>) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let target = match output {
        Output::Null => null.as_raw_fd(),
        Output::Log(log) => log.as_raw_fd(),
    };
    replace(null.as_raw_fd(), libc::STDIN_FILENO)?;
    replace(target, libc::STDOUT_FILENO)?;
    replace(target, libc::STDERR_FILENO)
}

fn replace(source: i32, standard: i32) -> io::Result<()> {
    // SAFETY: `source` is open here, and nobody owns the standard descriptors as an `OwnedFd`.
    if unsafe { libc::dup2(source, standard) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
