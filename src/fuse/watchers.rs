//! Events for programs that watch the view, about changes that were not made through it.
//!
//! The kernel makes events for what is done through a mount, and none for what it is told to forget. So a thread of ours
//! does something through the mount that changes nothing: it sets the time of a file, and the view, which knows the
//! request by the thread's id, answers with the attributes as they are. Watchers get `IN_MODIFY` for the name, or for the
//! directory where the name is gone. That costs a few requests each, and is only done while any program watches.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::observer::Teller;
use crate::model::RelPath;
use crate::sys::file::Meta;
use crate::sys::mount::Device;
use crate::sys::tree::{Tree, is_absent};
use crate::sys::watchers::is_anybody_watching;

/// Looking for watchers takes at most one part in this many of the time, so that a flood of changes costs no more than a
/// tenth.
const LOOKING_SHARE: u32 = 10;
/// The longest pause between two looks, even if they then take a larger share.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Queues the paths about which programs that watch should learn.
#[derive(Clone)]
pub struct Herald {
    queue: Sender<RelPath>,
    /// The thread that acts; 0 before it runs.
    thread: Arc<AtomicU32>,
}

/// The other end of the queue.
pub struct Heralded {
    queue: Receiver<RelPath>,
    thread: Arc<AtomicU32>,
    view: PathBuf,
    device: u64,
    teller: Teller,
}

/// `view` is a path that leads to the file system with that device number.
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

    /// Whether a request comes from the thread that changes nothing. `pid` is, as the kernel tells it, that of a thread.
    pub fn is_own(&self, pid: u32) -> bool {
        pid != 0 && pid == self.thread.load(Ordering::Relaxed)
    }
}

impl Heralded {
    /// Works until no [`Herald`] is left.
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
                // Looking `paths` up by name must find what is there now.
                self.teller.catch_up();
                paths.iter().for_each(|path| self.touch(path, device));
            }
            std::thread::sleep((took * (LOOKING_SHARE - 1)).min(PAUSE_MAX));
        }
    }

    /// Sets the time of `path`, which changes nothing, or of the nearest directory above it that exists.
    fn touch(&self, path: &RelPath, device: u64) {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            match self.touch_now(&path, device) {
                Ok(()) => return,
                Err(err) if is_absent(&err) => at = path.parent(),
                Err(err) => return log::debug!("tell watchers of {path}: {err}"),
            }
        }
    }

    fn touch_now(&self, path: &RelPath, device: u64) -> io::Result<()> {
        // Not kept open: that would keep others from unmounting.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let view = Tree::from_root(rustix::fs::openat(CWD, &self.view, flags, Mode::empty())?)?;
        if view.device() != device {
            // Something else is mounted there by now.
            return Ok(());
        }
        // The path may lead elsewhere by now: no symlink is followed, which might leave the view, and no mount is
        // touched.
        let found = view.open_at(path, OFlags::PATH)?;
        if Meta::of(found.as_fd())?.device != device {
            return Ok(());
        }
        Ok(modify_nothing(&found)?)
    }
}

/// Sets the modification time alone: only that does the kernel report as a change of content.
fn modify_nothing(inode: &OwnedFd) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    };
    rustix::fs::utimensat(inode, c"", &times, AtFlags::EMPTY_PATH)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn what_a_symlink_leads_to_by_now_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["view", "view/d", "outside"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        for name in ["view/d/f", "outside/f"] {
            std::fs::File::create(at(name)).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        let device = Meta::of(std::fs::File::open(at("view")).unwrap().as_fd()).unwrap().device;
        let number = Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
        let (_herald, heralded) = herald((&at("view"), number), super::super::observer::queue().0);
        let touch = || heralded.touch(&RelPath::parse(b"d/f").unwrap(), device);
        let is_touched = |name: &str| std::fs::metadata(at(name)).unwrap().modified().unwrap() != UNIX_EPOCH;
        touch();
        assert!(is_touched("view/d/f"));
        std::fs::rename(at("view/d"), at("view/moved")).unwrap();
        std::os::unix::fs::symlink(at("outside"), at("view/d")).unwrap();
        touch();
        assert!(!is_touched("outside/f"));
    }
}
