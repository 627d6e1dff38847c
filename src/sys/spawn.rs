//! Starts programs so that they cannot outlive their parent, and get nothing that they were not given.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// The program gets SIGKILL when the thread that starts it ends, however that ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec it makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || ask_for_death(parent)) };
}

/// No program started from here on gets a descriptor beyond the three standard ones, even one left open by mistake.
pub fn close_others_on_exec() -> io::Result<()> {
    let (first, flags) = (libc::STDERR_FILENO.unsigned_abs() + 1, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: it sets a flag of descriptors and closes none.
    match unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For a process that only waits, and exits without unwinding: what it inherited by the fork is not its to keep open. The
/// three standard descriptors stay, and those named.
pub fn close_all_but(kept: &[i32]) -> io::Result<()> {
    for number in beyond_standard()?.into_iter().filter(|number| !kept.contains(number)) {
        // SAFETY: whatever owned it is never touched again: this process only waits, and exits without unwinding. One
        // that is closed already, as the listing's own is, gives an error and nothing else.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// The numbers of all open descriptors, the listing's own included, except the three standard ones.
pub(super) fn beyond_standard() -> io::Result<BTreeSet<i32>> {
    let mut open = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|number| number.parse::<i32>().ok()));
    }
    Ok(open.split_off(&(libc::STDERR_FILENO + 1)))
}

/// Lets this process, and what it starts from here on, be sent every signal. A daemon blocks the signals it waits for,
/// and a job in the background of a script ignores Ctrl-C: a program that it runs would inherit that.
pub fn receive_signals() -> io::Result<()> {
    (1..=SIGNAL_LAST).filter(|signal| *signal != libc::SIGPIPE).try_for_each(no_longer_ignore)?;
    unblock_signals()
}

/// The last signal that has a name. SIGPIPE is left out: we ignore it ourselves, and the library gives each child the
/// default.
const SIGNAL_LAST: libc::c_int = 31;

pub(super) fn no_longer_ignore(signal: libc::c_int) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with no new action given, the present one is written to `action`, if the call succeeds.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it succeeded.
    let mut action = unsafe { action.assume_init() };
    if action.sa_sigaction != libc::SIG_IGN {
        return Ok(());
    }
    action.sa_sigaction = libc::SIG_DFL;
    // SAFETY: the action is the one that was there but for its handler, which is none of ours.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unblock_signals() -> io::Result<()> {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set, and the old mask is not asked for.
    let error = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn ask_for_death(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() {
        Some(now) if now == parent => Ok(()),
        // The parent ended in between, when it had no signal to send.
        Some(_) | None => Err(io::ErrorKind::Interrupted.into()),
    }
}
