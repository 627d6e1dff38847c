#![allow(unsafe_code)]

use std::process::Command;
use std::thread;

use super::{Origin, Signal, Termination, Wakeup, is_ignored, unblock_in};

/// Sends to the calling thread only: the other tests of this process do not block the signal.
fn send_to_this_thread(signal: Signal) {
    // SAFETY: the calling thread exists, and it blocks the signal.
    assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), signal.number()) }, 0);
}

#[test]
fn each_signal_ends_the_wait_under_its_name() {
    let termination = Termination::block().unwrap();
    for signal in Signal::ALL {
        send_to_this_thread(signal);
        assert_eq!(termination.wait().unwrap(), Wakeup::Signal(signal, Origin::Process));
    }
}

#[test]
fn another_thread_wakes_the_wait_early_or_late() {
    let termination = Termination::block().unwrap();
    let waker = termination.waker();
    waker.wake().unwrap();
    assert_eq!(termination.wait().unwrap(), Wakeup::Woken);
    let other = thread::spawn(move || waker.wake().unwrap());
    assert_eq!(termination.wait().unwrap(), Wakeup::Woken);
    other.join().unwrap();
}

#[test]
fn a_spawned_program_has_them_blocked_unless_told_otherwise() {
    let _termination = Termination::block().unwrap();
    assert_eq!(blocked_in(&mut grep()), "SigBlk:\t0000000000004003\n");
    assert_eq!(blocked_in(unblock_in(&mut grep())), "SigBlk:\t0000000000000000\n");
}

#[test]
fn what_is_ignored_stays_so_and_what_was_blocked_is_not_for_ever() {
    assert!(is_ignored(libc::SIGPIPE), "by the Rust runtime");
    assert!(!is_ignored(libc::SIGINT) && !is_ignored(libc::SIGUSR1));
    Termination::block_heeded().unwrap().unblock().unwrap();
    assert_eq!(blocked_in(&mut grep()), "SigBlk:\t0000000000000000\n");
}

fn grep() -> Command {
    let mut command = Command::new("grep");
    command.args(["SigBlk", "/proc/self/status"]);
    command
}

fn blocked_in(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}
