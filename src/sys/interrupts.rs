//! Ctrl-C and Ctrl-\ for a program that stands in front of ours on the terminal, such as a pager. The kernel sends them to
//! all processes in the foreground.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The signals of the keyboard that end a program.
const KEYS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

type Dispositions = [libc::sighandler_t; KEYS.len()];

/// As long as it lives these signals do nothing to this process.
#[derive(Debug)]
pub struct Ignored(Dispositions);

impl Ignored {
    fn begin() -> io::Result<Self> {
        set([libc::SIG_IGN; KEYS.len()]).map(Self)
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        if let Err(err) = set(self.0) {
            log::warn!("heed the keyboard again: {err}");
        }
    }
}

/// Starts a program that the keyboard ends while it does not end this one.
pub fn start_in_front(command: &mut Command) -> io::Result<(Child, Ignored)> {
    // From before the start, so that no key is in between.
    let ignored = Ignored::begin()?;
    let before = ignored.0;
    // SAFETY: between fork and exec only `signal` is called, which allocates nothing.
    unsafe { command.pre_exec(move || set(before).map(|_ignored| ())) };
    Ok((command.spawn()?, ignored))
}

/// Returns what was set before.
fn set(wanted: Dispositions) -> io::Result<Dispositions> {
    let mut before = [libc::SIG_DFL; KEYS.len()];
    for ((key, wanted), before) in KEYS.into_iter().zip(wanted).zip(&mut before) {
        // SAFETY: no function of ours is set that was not set already.
        *before = unsafe { libc::signal(key, wanted) };
        if *before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(before)
}
