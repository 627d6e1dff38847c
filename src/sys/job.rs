//! Signals of a program that has the whole screen: it gives the terminal back before it does what they ask.
//!
//! They are blocked and read from a descriptor, so that none takes effect while the terminal is ours. [`obey`] then lets
//! it take effect: the program ends or stops by that very signal, as its sender expects to see.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};

use super::signals::{exchange_mask, receive, set_of, signal_descriptor};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobControl {
    /// To end, by the signal of this number.
    End(i32),
    Stop,
    /// To go on after a stop, with a terminal that other programs have used.
    GoOn,
}

const ENDS: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// The signals of a job, which are blocked.
#[derive(Debug)]
pub struct Job {
    signals: OwnedFd,
}

impl Job {
    /// Blocks them in the calling thread and those it starts: call it before any is started.
    pub fn block() -> io::Result<Self> {
        let set = set_of(&[&ENDS[..], &[libc::SIGTSTP, libc::SIGCONT]].concat());
        exchange_mask(libc::SIG_BLOCK, &set)?;
        Ok(Self { signals: signal_descriptor(&set)? })
    }

    /// Sleeps until one comes.
    pub fn wait(&self) -> io::Result<JobControl> {
        loop {
            match rustix::event::poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match receive(&self.signals)?.map(|received| received.number) {
                Some(libc::SIGTSTP) => return Ok(JobControl::Stop),
                Some(libc::SIGCONT) => return Ok(JobControl::GoOn),
                Some(number) => return Ok(JobControl::End(number)),
                None => {}
            }
        }
    }
}

/// Ends as the signal of this number ends a program. Returns only if the signal is ignored.
pub fn end_by(number: i32) -> io::Result<()> {
    obey(number)
}

/// Stops as Ctrl-Z stops a program. Returns when the program is continued, or at once if there is no shell to do that.
pub fn stop() -> io::Result<()> {
    obey(libc::SIGTSTP)
}

/// Sends the signal to this thread alone, which takes it at once: another thread may be reading what is sent to the
/// process.
fn obey(number: libc::c_int) -> io::Result<()> {
    let set = set_of(&[number]);
    // SAFETY: no handler of ours is set for it, so its default action is taken.
    if unsafe { libc::raise(number) } != 0 {
        return Err(io::Error::last_os_error());
    }
    exchange_mask(libc::SIG_UNBLOCK, &set)?;
    exchange_mask(libc::SIG_BLOCK, &set).map(|_before| ())
}
