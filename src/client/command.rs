//! Runs a command to its end, and keeps the last lines of its output.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::sys::signals::{self, Origin, Termination, Wakeup, unblock_in};

/// How much of the output is kept: what a person or an agent reads of it, and fits into an answer.
const TAIL_BYTES_MAX: usize = 8 << 10;
const TAIL_LINES_MAX: usize = 40;

/// How often a waiting caller is told that the command still runs.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// How many pieces of output may wait for the receiver; then the command blocks, as on a full pipe.
const PIECES_MAX: usize = 16;

/// How long to wait for output once the command has ended: a process that it left running may keep the pipe open.
const OUTPUT_AFTER_END: Duration = Duration::from_millis(500);

/// How long a command may take to end when told to. Less than the two seconds after which MCP clients lose patience with
/// their server, which must see the command end.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Which signals a command gets.
#[derive(Clone, Copy, Debug)]
pub enum Group<'a> {
    /// The caller's: it is in the caller's process group, so the terminal's signals reach it, and the caller passes on
    /// others. Whether it ends by them is up to the command. A caller that stops waiting does not end it.
    Callers(&'a Termination),
    /// Its own: the command and what it started are ended when the caller stops waiting.
    Own,
}

/// A command that has ended.
pub struct Ran {
    /// As in a shell: 128 and the signal's number, 127 if there is no such program, 126 if it cannot be run. Never 0 if
    /// the command was asked to end.
    pub status: i32,
    pub took: Duration,
    /// The last lines of both streams, in the order in which they came.
    pub tail: Vec<u8>,
}

enum Said {
    Output(Vec<u8>),
    Ended(io::Result<ExitStatus>),
    NothingMore,
    Woken(io::Result<Wakeup>),
}

/// Runs `command` in `directory`, with nothing on standard input. Each time `every` has passed, `progress` gets the time
/// and the last line; it fails if the caller waits no more.
pub fn run(
    command: &[OsString],
    directory: &Path,
    group: Group<'_>,
    every: Duration,
    progress: impl FnMut(Duration, &[u8]) -> io::Result<()>,
) -> io::Result<Ran> {
    let began = Instant::now();
    let (output, child) = match start(command, directory, group)? {
        Ok(started) => started,
        Err(err) => return Ok(not_run(command, &err, began)),
    };
    let leader = Pid::from_child(&child);
    let (tell, said) = sync_channel(PIECES_MAX);
    listen(output, child, &tell)?;
    let Group::Callers(signals) = group else { return wait(leader, group, (began, every), said, progress) };
    std::thread::scope(|scope| {
        scope.spawn(move || tell_signals(signals, &tell));
        let ran = wait(leader, group, (began, every), said, progress);
        signals.waker().wake()?;
        ran
    })
}

/// Receives messages until the command has ended.
fn wait(
    leader: Pid,
    group: Group<'_>,
    (began, every): (Instant, Duration),
    said: Receiver<Said>,
    mut progress: impl FnMut(Duration, &[u8]) -> io::Result<()>,
) -> io::Result<Ran> {
    let mut tail = Tail::default();
    let (mut status, mut is_over, mut asked) = (None, false, None);
    let mut until = began + every;
    while !(is_over && status.is_some()) {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Output(bytes)) => tail.push(&bytes),
            // The output may end before the command does, for instance if it closes its streams.
            Ok(Said::NothingMore) => is_over = true,
            Ok(Said::Ended(ended)) => {
                status = Some(ended?);
                until = Instant::now() + OUTPUT_AFTER_END;
            }
            Ok(Said::Woken(woken)) => {
                if let Wakeup::Signal(asking, origin) = woken? {
                    asked = Some(asking);
                    pass_on(asking, origin, leader)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= until {
            if status.is_some() {
                break;
            }
            if let Err(err) = progress(began.elapsed(), tail.last_line()) {
                if matches!(group, Group::Own) {
                    end(leader, &said)?;
                }
                return Err(err);
            }
            until = Instant::now() + every;
        }
    }
    let status = status
        .map_or(-1, |status: ExitStatus| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
    let status = asked.filter(|_| status == 0).map_or(status, |asked| 128 + asked.number());
    Ok(Ran { status, took: began.elapsed(), tail: tail.into_lines() })
}

/// Starts the command with both streams on one pipe, so that lines stay in order. The inner error is the command's own.
fn start(
    command: &[OsString],
    directory: &Path,
    group: Group<'_>,
) -> io::Result<Result<(PipeReader, Child), io::Error>> {
    let (output, input) = io::pipe()?;
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).current_dir(directory).stdin(Stdio::null());
    child.stdout(input.try_clone()?).stderr(input);
    match group {
        Group::Callers(_) => {
            unblock_in(&mut child);
        }
        Group::Own => {
            child.process_group(0);
        }
    }
    Ok(child.spawn().map(|child| (output, child)))
}

fn not_run(command: &[OsString], err: &io::Error, began: Instant) -> Ran {
    let status = if err.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let tail = format!("{}: {err}\n", command[0].display()).into_bytes();
    Ran { status, took: began.elapsed(), tail }
}

fn listen(mut output: PipeReader, mut child: Child, tell: &SyncSender<Said>) -> io::Result<()> {
    let (tell, tell_end) = (tell.clone(), tell.clone());
    std::thread::Builder::new().name("check-output".to_owned()).spawn(move || {
        let mut piece = vec![0; 64 << 10];
        // A failed send means that the receiver is gone. A read error ends the output.
        while let Ok(count @ 1..) = output.read(&mut piece) {
            if tell.send(Said::Output(piece[..count].to_vec())).is_err() {
                return;
            }
        }
        drop(tell.send(Said::NothingMore));
    })?;
    std::thread::Builder::new().name("check-command".to_owned()).spawn(move || {
        drop(tell_end.send(Said::Ended(child.wait())));
    })?;
    Ok(())
}

/// Passes on the signals of this process until it is woken.
fn tell_signals(signals: &Termination, tell: &SyncSender<Said>) {
    let mut goes_on = true;
    while goes_on {
        let woken = signals.wait();
        goes_on = matches!(woken, Ok(Wakeup::Signal(..)));
        // The command may have ended, and the receiver be gone.
        goes_on &= tell.send(Said::Woken(woken)).is_ok();
    }
}

/// Passes a signal on, unless it came from the terminal: the command has received that itself.
fn pass_on(asking: signals::Signal, origin: Origin, leader: Pid) -> io::Result<()> {
    let asking = match (origin, asking) {
        (Origin::Terminal, _) => return Ok(()),
        (Origin::Process, signals::Signal::Terminate) => Signal::TERM,
        (Origin::Process, signals::Signal::Interrupt) => Signal::INT,
        (Origin::Process, signals::Signal::HangUp) => Signal::HUP,
    };
    unless_gone(kill_process(leader, asking))
}

/// Ends a command that still runs, and what it started: first by SIGTERM, then by SIGKILL.
fn end(leader: Pid, said: &Receiver<Said>) -> io::Result<()> {
    signal(leader, Signal::TERM)?;
    let until = Instant::now() + END_WITHIN;
    loop {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Output(_) | Said::NothingMore | Said::Woken(_)) => {}
            // Only the command itself has ended; a process that it started may ignore SIGTERM.
            Ok(Said::Ended(_)) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {
                return signal(leader, Signal::KILL);
            }
        }
    }
}

fn signal(leader: Pid, signal: Signal) -> io::Result<()> {
    unless_gone(kill_process_group(leader, signal))
}

fn unless_gone(sent: rustix::io::Result<()>) -> io::Result<()> {
    match sent {
        // It has already ended.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => sent.map_err(io::Error::from),
    }
}

/// The end of an output.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(TAIL_BYTES_MAX);
        self.bytes.drain(..over);
    }

    fn last_line(&self) -> &[u8] {
        let mut lines = self.bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        lines.next_back().unwrap_or_default()
    }

    fn into_lines(self) -> Vec<u8> {
        let lines: Vec<&[u8]> = self.bytes.split_inclusive(|byte| *byte == b'\n').collect();
        lines[lines.len().saturating_sub(TAIL_LINES_MAX)..].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals() -> Termination {
        Termination::block_heeded().unwrap()
    }

    fn ran(script: &str) -> Ran {
        let command = ["sh", "-c", script].map(OsString::from);
        run(&command, Path::new("/"), Group::Callers(&signals()), PROGRESS_EVERY, |_, _| Ok(())).unwrap()
    }

    #[test]
    fn a_command_ends_as_a_shell_would_tell_it() {
        for (script, status, tail) in [
            ("echo out; echo err >&2; echo out", 0, "out\nerr\nout\n"),
            ("exit 3", 3, ""),
            ("kill -9 $$", 137, ""),
            ("cat", 0, ""),
            (
                "seq 1 100 | tail -n 2; seq 1 39",
                0,
                &*format!("100\n{}", (1..40).map(|n| format!("{n}\n")).collect::<String>()),
            ),
        ] {
            let ran = ran(script);
            assert_eq!(
                (ran.status, String::from_utf8_lossy(&ran.tail).into_owned()),
                (status, tail.to_owned()),
                "{script}"
            );
        }
        let run = |program: &str| {
            run(&[OsString::from(program)], Path::new("/"), Group::Callers(&signals()), PROGRESS_EVERY, |_, _| Ok(()))
                .unwrap()
        };
        let missing = run("/no/such/program");
        assert_eq!(missing.status, 127);
        assert!(missing.tail.starts_with(b"/no/such/program: "));
        let directory = run("/");
        assert_eq!(directory.status, 126);
    }

    #[test]
    fn who_waits_is_told_that_it_still_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let fifo = scratch.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let command = ["sh", "-c", "echo working; echo; read line < fifo; echo $line"].map(OsString::from);
        let mut told = Vec::new();
        let progress = |_, line: &[u8]| {
            told.push(line.to_vec());
            // It waits for this, so it cannot end before somebody was told of it.
            std::fs::write(&fifo, "done\n")
        };
        let ran =
            run(&command, scratch.path(), Group::Callers(&signals()), Duration::from_millis(200), progress).unwrap();
        assert_eq!((ran.status, ran.tail.as_slice()), (0, &b"working\n\ndone\n"[..]));
        assert_eq!(told, [b"working"]);
    }

    #[test]
    fn what_a_command_leaves_running_is_not_waited_for() {
        let began = Instant::now();
        let ran = ran("sleep 30 & echo $!");
        assert_eq!(ran.status, 0);
        let pid: i32 = String::from_utf8_lossy(&ran.tail).trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn what_nobody_waits_for_ends_with_what_it_started_and_by_force_if_it_must() {
        let deaf_child = "(trap '' TERM; exec cat fifo) & echo $$ $!; wait";
        for script in ["cat fifo & echo $$ $!; wait", "trap '' TERM; cat fifo & echo $$ $!; wait; wait", deaf_child] {
            let scratch = tempfile::tempdir().unwrap();
            let fifo = scratch.path().join("fifo");
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            let mut pids = String::new();
            let progress = |_, line: &[u8]| {
                pids = String::from_utf8_lossy(line).into_owned();
                if pids.is_empty() { Ok(()) } else { Err(io::Error::other("gone")) }
            };
            let command = ["sh", "-c", script].map(OsString::from);
            let ran = run(&command, scratch.path(), Group::Own, Duration::from_millis(20), progress);
            assert_eq!(ran.err().map(|err| err.to_string()).as_deref(), Some("gone"), "{script}");
            for pid in pids.split_whitespace() {
                let is_gone = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
                    Ok(stat) => stat.contains(") Z "),
                    Err(_) => true,
                };
                let until = Instant::now() + Duration::from_secs(20);
                while !is_gone() {
                    assert!(Instant::now() < until, "{pid} of {script} still runs");
                    std::thread::yield_now();
                }
            }
        }
    }

    #[test]
    fn of_a_flood_only_the_end_is_kept() {
        let ran = ran("yes 'a line of a flood' | head -c 3000000; echo; echo end");
        assert!(ran.tail.len() <= TAIL_BYTES_MAX);
        assert!(ran.tail.ends_with(b"\nend\n"));
    }
}
