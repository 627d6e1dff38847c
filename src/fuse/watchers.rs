//! Programs that watch the view: what changes other than through it makes an event for them, too.
//!
//! The kernel makes events for what is done through a mount, and none for what it is told to forget. So a thread of our
//! own does something through the mount that changes nothing: it sets the time of a file, by its thread id the request is
//! known for ours, and is answered with what is. Watchers get `IN_MODIFY` for the name, or for the directory where the
//! name is gone. That costs a few requests each, and is only done while anybody watches.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::observer::Teller;
use crate::model::RelPath;
use crate::sys::mount::Device;
use crate::sys::watchers::is_anybody_watching;

/// To look for watchers takes at most this share of the time, so that a flood of changes costs no more than a tenth.
const LOOKING_SHARE: u32 = 10;
/// And no change waits longer for the next look.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Says what programs that watch should learn of.
#[derive(Clone)]
pub struct Herald {
    queue: Sender<RelPath>,
    /// The thread that acts; 0 before it runs.
    thread: Arc<AtomicU32>,
}

/// The other end.
pub struct Heralded {
    queue: Receiver<RelPath>,
    thread: Arc<AtomicU32>,
    view: PathBuf,
    device: u64,
    teller: Teller,
}

/// `view` leads to the file system of that number.
pub fn herald((view, number): (&Path, Device), teller: Teller) -> (Herald, Heralded) {
    let (sender, receiver) = channel();
    let thread = Arc::new(AtomicU32::new(0));
    let herald = Herald { queue: sender, thread: thread.clone() };
    let device = rustix::fs::makedev(number.major, number.minor);
    (herald, Heralded { queue: receiver, thread, view: view.to_owned(), device, teller })
}

impl Herald {
    pub fn tell(&self, path: &RelPath) {
        if self.queue.send(path.clone()).is_err() {
            log::debug!("nobody is left to tell watchers: the session has ended");
        }
    }

    /// Whether a request comes from the thread that changes nothing. `pid`: as the kernel tells it, a thread's.
    pub fn is_own(&self, pid: u32) -> bool {
        pid != 0 && pid == self.thread.load(Ordering::Relaxed)
    }
}

impl Heralded {
    /// Until nobody has anything to tell any more.
    pub fn run(self) {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(own.cast_unsigned(), Ordering::Relaxed);
        let device = self.device;
        while let Ok(first) = self.queue.recv() {
            let mut paths = vec![first];
            paths.extend(self.queue.try_iter());
            paths.sort();
            paths.dedup();
            let begun = Instant::now();
            let watched = is_anybody_watching(device).unwrap_or(false);
            let took = begun.elapsed();
            if watched {
                // What is looked at by name must be what is there now.
                self.teller.catch_up();
                paths.iter().for_each(|path| self.touch(path, device));
            }
            std::thread::sleep((took * (LOOKING_SHARE - 1)).min(PAUSE_MAX));
        }
    }

    /// Changes nothing at `path`, or at the nearest directory above it that is there.
    fn touch(&self, path: &RelPath, device: u64) {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            match self.touch_now(&path, device) {
                Ok(()) => return,
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => at = path.parent(),
                Err(err) => return log::debug!("tell watchers of {path}: {err}"),
            }
        }
    }

    fn touch_now(&self, path: &RelPath, device: u64) -> rustix::io::Result<()> {
        // Not kept open: that would keep others from unmounting.
        let root = rustix::fs::openat(CWD, &self.view, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        if rustix::fs::fstat(&root)?.st_dev != device {
            // Something else is mounted there by now.
            return Ok(());
        }
        // The time of modification alone is what the kernel takes for a change of content.
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let name: &[u8] = if path.is_root() { b"." } else { path.as_bytes() };
        rustix::fs::utimensat(&root, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}
