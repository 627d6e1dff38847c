//! A process that keeps a mount namespace in being, and mounts in it for a daemon that stays outside.
//!
//! ```text
//!   watchdog ──start──► keeper          in a mount namespace of its own (and a user namespace, for an ordinary user)
//!     └─ daemon ─ mount ──►  │          mounts, over whatever is there
//!         ▲── the device ────┘
//!   both are gone: end of stream        the keeper ends, and with it the namespace, once no process is in it
//! ```
//! The kernel lets only a process in a namespace mount there, and only with a device that was opened in the same user
//! namespace. A daemon that entered it could not come back, and an ordinary user's daemon would lose the groups that its
//! files have.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::RecvFlags;

use super::daemon::{Forked, Output, ReadySignal, fork};
use super::mount::{Device, Door};
use super::namespace::{Leave, leave_mounts};
use super::parcel;
use super::spawn::close_all_but;

/// The keeper, as those outside know it. It lives as long as any copy of this, in whichever process.
#[derive(Debug)]
pub struct Keeper {
    pid: u32,
    stream: UnixStream,
}

/// Length of the keeper's answer: an errno or 0, and the device number of what it has mounted.
const ANSWER_BYTES: usize = 12;

impl Keeper {
    /// To be called while there is one thread. `mount` is called in the namespace, each time that [`Self::mount`] is
    /// called outside.
    pub fn start(mount: impl Fn(Leave) -> io::Result<Door>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        match fork()? {
            Forked::Parent(readiness) => {
                let pid = readiness.child_pid();
                match readiness.wait()? {
                    Ok(_child) => Ok(Self { pid, stream: ours }),
                    Err(reason) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
                }
            }
            Forked::Child(signal) => {
                drop(ours);
                be_the_keeper(signal, theirs, mount)
            }
        }
    }

    /// The process whose namespaces are to be entered.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Has the keeper mount once more. Only one thread at a time may ask.
    pub fn mount(&self) -> io::Result<Door> {
        (&self.stream).write_all(&[1])?;
        let mut answer = [0; ANSWER_BYTES];
        let (received, device) = parcel::receive(&self.stream, &mut answer, RecvFlags::empty())?;
        if received != ANSWER_BYTES {
            return Err(io::Error::other("whoever keeps the namespace is gone"));
        }
        let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        match device {
            Some(device) => Ok(Door { device, number: Device { major: word(4), minor: word(8) } }),
            None => Err(io::Error::from_raw_os_error(word(0).cast_signed())),
        }
    }
}

fn be_the_keeper(signal: ReadySignal, stream: UnixStream, mount: impl Fn(Leave) -> io::Result<Door>) -> ! {
    let kept = match leave_mounts() {
        Ok(leave) => signal
            .ready(Output::Null)
            .and_then(|()| close_all_but(&[stream.as_raw_fd()]))
            .and_then(|()| answer_all(stream, leave, mount)),
        Err(err) => signal.failed(&err.to_string()),
    };
    // There is no process to report to: the next one that asks finds the keeper gone.
    std::process::exit(i32::from(kept.is_err()))
}

fn answer_all(mut stream: UnixStream, leave: Leave, mount: impl Fn(Leave) -> io::Result<Door>) -> io::Result<()> {
    let mut question = [0];
    while stream.read(&mut question)? != 0 {
        match mount(leave) {
            Ok(Door { device, number }) => send(&stream, (0, number.major, number.minor), Some(device))?,
            Err(err) => send(&stream, (err.raw_os_error().unwrap_or(libc::EIO).cast_unsigned(), 0, 0), None)?,
        }
    }
    Ok(())
}

fn send(stream: &UnixStream, (error, major, minor): (u32, u32, u32), device: Option<OwnedFd>) -> io::Result<()> {
    let answer = [error, major, minor].map(u32::to_ne_bytes).concat();
    parcel::send(stream, &answer, device.as_ref().map(AsFd::as_fd))
}
