//! The process beside one run of a program: passes on the question, takes the answer, and leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::sys::process::children;
use crate::sys::spawn::{close_others_on_exec, die_with_parent, receive_signals};

/// The `argv[0]` that tells this program that it was started as a supervisor. No person types it.
const NAME: &str = "fettlefs-hook";

/// An answer is one line; a program that writes more than this has gone wrong.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How much of a program's standard error goes to the log. The rest is read and dropped, so that it never blocks.
const SAID_BYTES_MAX: usize = 4 << 10;
/// A question has at most 200 lines of diff, so it stays far below this.
const QUESTION_BYTES_MAX: u64 = 16 << 20;
/// How long killed processes may take to end before the answer is given anyway: one that waits for the view, which waits
/// for this answer, ends only afterwards.
const END_MAX: Duration = Duration::from_millis(300);
/// Pieces of 16 KiB read at a time: together more than a pipe holds. The limit is checked in between.
const PIECES_MAX: usize = 8;
/// How often to look again for children that cannot be waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The usual soft limit, even if the daemon was started with another: some programs close every
/// descriptor up to the limit.
const DESCRIPTORS: u64 = 1024;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ended {
    Exited(i32),
    Killed(i32),
    TimedOut,
    /// The program wrote more than an answer may have.
    Flooded,
    /// Its answer is not UTF-8.
    Garbled,
    /// The program could not be run, or not be watched.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub ended: Ended,
    pub answer: String,
    /// Standard error, shortened.
    pub said: String,
}

/// The command that supervises one run of `file`. Its standard input takes the question, preceded by its length.
pub(super) fn command(file: &OsStr, arguments: &[String], limit: Duration) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(limit.as_millis().to_string()).arg(file).args(arguments);
    command
}

pub(super) fn write_question(mut to: impl Write, question: &[u8]) -> io::Result<()> {
    to.write_all(&(question.len() as u64).to_le_bytes())?;
    to.write_all(question)
}

pub fn is_supervisor(argv: &[OsString]) -> bool {
    argv.first().is_some_and(|name| name == NAME)
}

/// Runs the program that `argv` names, reports how that ended, and exits once everything it started is gone.
pub fn supervise(argv: &[OsString]) -> ExitCode {
    let report = match Run::begin(argv) {
        Ok(mut run) => run.finish(),
        Err(err) => Report::failed(&err),
    };
    let told = serde_json::to_vec(&report).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        io::stdout().write_all(&line)
    });
    // A process that still waits for the view can end now that the daemon has its answer.
    end_all(None);
    ExitCode::from(u8::from(told.is_err()))
}

impl Report {
    fn failed(err: &io::Error) -> Self {
        Self { ended: Ended::Failed(err.to_string()), answer: String::new(), said: String::new() }
    }
}

struct Run {
    child: Child,
    /// Readable once the child has ended.
    pidfd: OwnedFd,
    deadline: Instant,
    question: Vec<u8>,
    /// How many bytes of the question the program has taken.
    taken: usize,
    answer: Vec<u8>,
    said: Vec<u8>,
}

impl Run {
    fn begin(argv: &[OsString]) -> io::Result<Self> {
        let [_, limit, file, arguments @ ..] = argv else { return Err(io::ErrorKind::InvalidInput.into()) };
        let limit = limit.to_str().and_then(|limit| limit.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
        let deadline = Instant::now() + Duration::from_millis(limit);
        stand_apart()?;
        let question = read_question()?;
        limit_descriptors()?;
        let mut command = Command::new(file);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        die_with_parent(&mut command);
        let child = command.spawn()?;
        let pidfd = rustix::process::pidfd_open(pid_of(&child)?, PidfdFlags::empty())?;
        let run = Self { child, pidfd, deadline, question, taken: 0, answer: Vec::new(), said: Vec::new() };
        run.set_nonblocking()?;
        Ok(run)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        let Child { stdin, stdout, stderr, .. } = &self.child;
        let descriptors =
            [stdin.as_ref().map(AsFd::as_fd), stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
        descriptors.into_iter().flatten().try_for_each(|fd| Ok(rustix::io::ioctl_fionbio(fd, true)?))
    }

    /// Watches the program until it ends or exceeds the limit, then ends everything it started.
    fn finish(&mut self) -> Report {
        let ended = self.follow().unwrap_or_else(|err| Ended::Failed(err.to_string()));
        drop(self.child.stdin.take());
        // The leader is not reaped yet, so neither its pid nor its group's can have been reused.
        if let Err(err) = self.kill_group() {
            self.said.extend(format!("[kill its process group: {err}]").bytes());
        }
        let ended = match self.reap_leader(ended) {
            Ok(ended) => ended,
            Err(err) => Ended::Failed(err.to_string()),
        };
        end_all(Some(Instant::now() + END_MAX));
        // What the program wrote before it ended is in the pipes.
        let ended = match self.take_output() {
            Ok(()) if self.answer.len() > ANSWER_BYTES_MAX => Ended::Flooded,
            Ok(()) => ended,
            Err(err) => Ended::Failed(err.to_string()),
        };
        let answer = &self.answer[..self.answer.len().min(ANSWER_BYTES_MAX)];
        let ended = match ended {
            Ended::Exited(0) if str::from_utf8(answer).is_err() => Ended::Garbled,
            ended => ended,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Report { ended, answer: text(answer), said: text(&self.said) }
    }

    /// Serves the program's pipes until it ends, exceeds a limit, or the daemon goes away. `Exited(0)` only says that it
    /// has ended: [`Self::reap_leader`] finds out how.
    fn follow(&mut self) -> io::Result<Ended> {
        loop {
            match self.wait()? {
                Event::Ended => return Ok(Ended::Exited(0)),
                Event::Limit => return Ok(Ended::TimedOut),
                Event::DaemonGone => return Ok(Ended::Failed("the daemon is gone".to_owned())),
                Event::Ready => {}
            }
            self.give_question()?;
            self.take_output()?;
            if self.answer.len() > ANSWER_BYTES_MAX {
                return Ok(Ended::Flooded);
            }
        }
    }

    fn wait(&self) -> io::Result<Event> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Event::Limit);
        }
        let Child { stdin, stdout, stderr, .. } = &self.child;
        let daemon = io::stdin();
        // The daemon writes nothing after the question, so readable means end of file.
        let mut watched = vec![PollFd::new(&self.pidfd, PollFlags::IN), PollFd::new(&daemon, PollFlags::IN)];
        watched.extend(stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        watched.extend(stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        watched.extend(stderr.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, Some(&left)))?;
        Ok(match (watched[0].revents().is_empty(), watched[1].revents().is_empty()) {
            (false, _) => Event::Ended,
            (true, false) => Event::DaemonGone,
            (true, true) => Event::Ready,
        })
    }

    /// A program may end or close its input without reading the question.
    fn give_question(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.child.stdin else { return Ok(()) };
        match stdin.write(&self.question[self.taken..]) {
            Ok(count) => self.taken += count,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => self.taken = self.question.len(),
            Err(err) => return Err(err),
        }
        if self.taken == self.question.len() {
            self.child.stdin = None;
        }
        Ok(())
    }

    fn take_output(&mut self) -> io::Result<()> {
        if take(&mut self.child.stdout, &mut self.answer, ANSWER_BYTES_MAX + 1)? {
            self.child.stdout = None;
        }
        if take(&mut self.child.stderr, &mut self.said, SAID_BYTES_MAX)? {
            self.child.stderr = None;
        }
        Ok(())
    }

    fn kill_group(&self) -> io::Result<()> {
        match rustix::process::kill_process_group(pid_of(&self.child)?, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// Returns how a leader ended by itself. One that was killed here may take a moment, and need not be waited for.
    fn reap_leader(&mut self, ended: Ended) -> io::Result<Ended> {
        if ended != Ended::Exited(0) {
            return Ok(ended);
        }
        let status = self.child.wait()?;
        Ok(status.code().map(Ended::Exited).unwrap_or_else(|| Ended::Killed(status.signal().unwrap_or_default())))
    }
}

enum Event {
    Ended,
    Limit,
    DaemonGone,
    Ready,
}

/// Starts a session, so that no terminal's signals reach what runs here, adopts orphaned descendants, and leaves nothing
/// open but the three pipes.
fn stand_apart() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    close_others_on_exec()?;
    receive_signals()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// Called only after the question has come: before it asks, the daemon restores the limits that it was started with.
fn limit_descriptors() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let current = limit.current.map_or(DESCRIPTORS, |current| current.min(DESCRIPTORS));
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit })?)
}

fn read_question() -> io::Result<Vec<u8>> {
    // Unbuffered: what follows the question must stay unread, for `poll` to report.
    let mut stdin = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut length = [0; 8];
    stdin.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > QUESTION_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut question = Vec::new();
    stdin.take(length).read_to_end(&mut question)?;
    Ok(question)
}

/// Reads what is there and keeps as much as fits. Returns whether the pipe has reached its end.
fn take(from: &mut Option<impl Read>, kept: &mut Vec<u8>, bytes_max: usize) -> io::Result<bool> {
    let Some(from) = from else { return Ok(false) };
    let mut piece = [0; 16 << 10];
    for _ in 0..PIECES_MAX {
        match from.read(&mut piece) {
            Ok(0) => return Ok(true),
            Ok(count) => {
                let room = bytes_max.saturating_sub(kept.len());
                kept.extend_from_slice(&piece[..count.min(room)]);
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(err) => return Err(err),
        }
    }
    Ok(false)
}

/// Kills and reaps all children, and those this process inherits when their parents die, until none are
/// left or until `deadline`.
fn end_all(deadline: Option<Instant>) {
    let own = std::process::id();
    while is_parent() {
        let mut ends = Vec::new();
        for child in children(own).into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            // An unreaped child: its pid cannot have been reused. A set-uid program may be out of reach of the signal;
            // it is waited for instead.
            if let Err(err) = rustix::process::kill_process(child, Signal::KILL) {
                log::debug!("kill {child:?}: {err}");
            }
            ends.extend(rustix::process::pidfd_open(child, PidfdFlags::empty()));
        }
        if !wait_for_one(&ends, deadline) {
            return;
        }
    }
}

/// Reaps the children that have ended. Returns whether any are left.
fn is_parent() -> bool {
    loop {
        match rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::NOHANG)) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Waits until one of them has ended, or briefly if there is none to wait for. Returns false when the time is up.
fn wait_for_one(ends: &[OwnedFd], deadline: Option<Instant>) -> bool {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return false;
    }
    let time = if ends.is_empty() { Some(left.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL)) } else { left };
    let mut watched: Vec<PollFd<'_>> = ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    // Without a deadline the caller looks again even if this was interrupted; with one it stops waiting.
    rustix::event::poll(&mut watched, time.as_ref()).is_ok() || left.is_none()
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
