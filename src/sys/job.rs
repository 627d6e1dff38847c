//! Signals of a program that has the whole screen: it gives the terminal back before it does what they say.
//!
//! They are blocked and read from a descriptor, so that none does its work while the terminal is ours. [`obey`] then lets
//! it: the program ends or stops by that very signal, as whoever sent it expects to see.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};

use super::signals::{exchange_mask, receive, set_of, signal_descriptor};

/// What came from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// To end, by the signal of this number.
    End(i32),
    Stop,
    /// It goes on after a stop, with a terminal that somebody else has had.
    GoOn,
}

const ENDS: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// The signals of a job, from when they are blocked.
#[derive(Debug)]
pub struct Job {
    signals: OwnedFd,
}

impl Job {
    /// In the calling thread and those it starts: call it before any is started.
    pub fn block() -> io::Result<Self> {
        let set = set_of(&[&ENDS[..], &[libc::SIGTSTP, libc::SIGCONT]].concat());
        exchange_mask(libc::SIG_BLOCK, &set)?;
        Ok(Self { signals: signal_descriptor(&set)? })
    }

    /// Sleeps until one comes.
    pub fn wait(&self) -> io::Result<Told> {
        loop {
            match rustix::event::poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match receive(&self.signals)?.map(|received| received.number) {
                Some(libc::SIGTSTP) => return Ok(Told::Stop),
                Some(libc::SIGCONT) => return Ok(Told::GoOn),
                Some(number) => return Ok(Told::End(number)),
                None => {}
            }
        }
    }
}

/// Ends as the signal of this number ends a program. Returns only where it is ignored.
pub fn end_by(number: i32) -> io::Result<()> {
    obey(number)
}

/// Stops as Ctrl-Z stops a program; returns when it goes on, and at once where no shell is there to let it.
pub fn stop() -> io::Result<()> {
    obey(libc::SIGTSTP)
}

/// Sent to this thread alone, which takes it at once: another may be reading what is sent to the process.
fn obey(number: libc::c_int) -> io::Result<()> {
    let set = set_of(&[number]);
    // SAFETY: no handler of ours is set for it, so its default action is taken.
    if unsafe { libc::raise(number) } != 0 {
        return Err(io::Error::last_os_error());
    }
    exchange_mask(libc::SIG_UNBLOCK, &set)?;
    exchange_mask(libc::SIG_BLOCK, &set).map(|_before| ())
}
