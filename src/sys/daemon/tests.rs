#![allow(unsafe_code)]

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use super::*;

/// Forks, runs `child` in the child, which then exits with 7 without unwinding, and gives what the parent heard.
fn heard_from(child: impl FnOnce(ReadySignal)) -> io::Result<Result<Child, String>> {
    match fork_among_threads().unwrap() {
        Forked::Parent(readiness) => {
            let pid = readiness.child;
            let heard = readiness.wait();
            // Already reaped when it died without a word.
            if heard.is_ok() {
                rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap();
            }
            heard
        }
        Forked::Child(signal) => {
            child(signal);
            exit();
        }
    }
}

fn exit() -> ! {
    // SAFETY: ends the child at once; no destructor of the test runner may run in it.
    unsafe { libc::_exit(7) }
}

#[test]
fn ready_and_failed_reach_the_parent() {
    assert!(heard_from(|signal| signal.ready(Output::Null).unwrap()).unwrap().is_ok());
    let reason = "no /dev/fuse\nload the module";
    assert_eq!(heard_from(|signal| signal.failed(reason).unwrap()).unwrap(), Err(reason.to_owned()));
}

#[test]
fn a_long_reason_is_cut() {
    let reason = "x".repeat(MESSAGE_BYTES_MAX + 1);
    assert_eq!(heard_from(|signal| signal.failed(&reason).unwrap()).unwrap().unwrap_err().len(), MESSAGE_BYTES_MAX);
}

#[test]
fn a_child_that_exits_or_is_killed_first_is_named_with_its_status() {
    let exited = heard_from(|_signal| exit()).unwrap_err();
    assert_eq!(exited.to_string(), "the background process exited with status 7 before it was ready");
    // SAFETY: kills the calling process, the forked child.
    let killed = heard_from(|_signal| assert_eq!(unsafe { libc::raise(libc::SIGKILL) }, 0)).unwrap_err();
    assert_eq!(killed.to_string(), "the background process was killed by signal 9 before it was ready");
}

#[test]
fn a_signal_that_is_dropped_is_a_failure() {
    assert_eq!(heard_from(drop).unwrap(), Err("the start was abandoned".to_owned()));
}

#[test]
fn the_child_leads_a_session_in_the_root_directory() {
    let heard = heard_from(|signal| {
        let directory = std::env::current_dir().unwrap();
        let leads = rustix::process::getsid(None) == Ok(rustix::process::getpid());
        signal.failed(&format!("{} {leads}", directory.display())).unwrap();
    });
    assert_eq!(heard.unwrap(), Err("/ true".to_owned()));
}

#[test]
fn output_goes_to_the_log_once_ready_and_the_callers_pipe_is_closed() {
    let (mut log_end, log) = pipe();
    let (mut terminal_end, terminal) = pipe();
    heard_from(|signal| {
        replace(terminal.as_raw_fd(), libc::STDOUT_FILENO).unwrap();
        replace(terminal.as_raw_fd(), libc::STDERR_FILENO).unwrap();
        signal.ready(Output::Log(log.as_fd())).unwrap();
        // The descriptors themselves, past the buffers and the capture of the test runner.
        rustix::io::write(std::io::stdout(), b"out ").unwrap();
        rustix::io::write(std::io::stderr(), b"err").unwrap();
    })
    .unwrap()
    .unwrap();
    drop((log, terminal));
    assert_eq!((text(&mut log_end), text(&mut terminal_end)), ("out err".to_owned(), String::new()));
}

#[test]
fn a_process_with_threads_is_not_forked() {
    let other = std::thread::spawn(std::thread::park);
    let error = fork().unwrap_err();
    assert!(error.to_string().contains("threads running"), "{error}");
    other.thread().unpark();
    other.join().unwrap();
}

/// One that was joined may be counted for a moment still.
#[test]
fn a_thread_that_is_ending_is_waited_for() {
    let mut counts = [3, 2, 2, 1, 2].into_iter();
    let mut next = || Ok(counts.next().unwrap());
    assert_eq!(
        (count_left(&mut next, Duration::from_secs(60)).unwrap(), count_left(next, Duration::ZERO).unwrap()),
        (1, 2)
    );
}

fn pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(read), write)
}

fn text(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}
