//! Directories watched by inotify, reached through descriptors: what others do in a tree that a mount covers.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// How many watches a user may have. The user's other programs need some too: editors and build tools.
const USER_LIMIT: &str = "/proc/sys/fs/inotify/max_user_watches";
/// One read takes as much as the kernel has ready, and a few hundred events fit.
const BUFFER_BYTES: usize = 64 << 10;

/// All that changes what a name stands for, or what is seen of it. Files that are unlinked but still open make no events.
const ASKED: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// How long events are left to gather once there is one. Far below the second within which a change must show; and our
/// own landings make some, which should not wake us for each save.
const GATHER: Duration = Duration::from_millis(10);
/// A rename makes two events, the first of which may be read before there is the second.
const OTHER_HALF: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// One queue of events and the watches that fill it.
pub struct Watches {
    queue: OwnedFd,
    taken: AtomicUsize,
    max: usize,
}

/// Names a watch for as long as the queue exists; never reused for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(i32);

/// A directory that is watched until this is dropped.
pub struct Watch {
    of: Arc<Watches>,
    pub id: WatchId,
}

/// What a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A name came.
    Appeared(WatchId, OsString),
    /// The content of what a name stands for was written to.
    Written(WatchId, OsString),
    /// What a name stands for has changed otherwise, or the name went.
    Changed(WatchId, OsString),
    /// The directory's own attributes have changed.
    Itself(WatchId),
    /// The directory is gone, and its watch with it.
    Ended(WatchId),
    /// The file system under the directory was taken away.
    Unmounted,
    /// Too many events at once: some of them were lost.
    Overflow,
}

impl Watches {
    /// `max`: how many directories may be watched at once; by default half of what this user may have.
    pub fn new(max: Option<usize>) -> io::Result<Arc<Self>> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let max = match max {
            Some(max) => max,
            None => user_limit()? / 2,
        };
        Ok(Arc::new(Self { queue, taken: AtomicUsize::new(0), max }))
    }

    /// Watches a directory. To watch the same directory again would return the same watch, so the caller must keep only
    /// one. `ENOSPC` when there are as many as there may be.
    pub fn watch(self: &Arc<Self>, dir: BorrowedFd<'_>) -> io::Result<Watch> {
        if self.taken.load(Ordering::Relaxed) >= self.max {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let itself = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let id = WatchId(inotify::add_watch(&self.queue, itself, ASKED)?);
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(Watch { of: self.clone(), id })
    }

    /// Waits until something has been seen or the time is up, and returns all there is.
    pub fn wait(&self, max: Option<Duration>) -> io::Result<Vec<Seen>> {
        let timeout = max.map(|max| rustix::event::Timespec {
            tv_sec: i64::try_from(max.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(max.subsec_nanos()),
        });
        let mut asked = [PollFd::new(&self.queue, PollFlags::IN)];
        match poll(&mut asked, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // One change to a file makes many events. Reading them one by one costs the program that makes it a switch
            // each.
            Ok(_) => std::thread::sleep(GATHER),
            Err(err) => return Err(err.into()),
        }
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = inotify::Reader::new(self.queue.as_fd(), &mut buffer);
        let mut seen = Vec::new();
        let mut half_renamed = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    half_renamed = event.events().contains(ReadFlags::MOVED_FROM);
                    seen.extend(told(&event));
                }
                // The event for the new name is next, unless its directory is not watched.
                Err(rustix::io::Errno::AGAIN) if std::mem::take(&mut half_renamed) => {
                    match poll(&mut asked, Some(&OTHER_HALF)) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(err) => return Err(err.into()),
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(seen),
                Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

fn told(event: &inotify::Event<'_>) -> Option<Seen> {
    let (watch, events) = (WatchId(event.wd()), event.events());
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(Seen::Overflow);
    }
    if events.contains(ReadFlags::UNMOUNT) {
        return Some(Seen::Unmounted);
    }
    if events.contains(ReadFlags::IGNORED) {
        return Some(Seen::Ended(watch));
    }
    let Some(name) = event.file_name() else { return Some(Seen::Itself(watch)) };
    let name = OsStr::from_bytes(name.to_bytes()).to_owned();
    if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        return Some(Seen::Appeared(watch, name));
    }
    Some(match events.contains(ReadFlags::MODIFY) {
        true => Seen::Written(watch, name),
        false => Seen::Changed(watch, name),
    })
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(1, Ordering::Relaxed);
        match inotify::remove_watch(&self.of.queue, self.id.0) {
            // The watch went with its directory.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(err) => log::debug!("end a watch: {err}"),
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}

/// How many directories and files a user may watch.
pub fn user_limit() -> io::Result<usize> {
    let limit = std::fs::read_to_string(USER_LIMIT)?;
    limit.trim().parse().map_err(io::Error::other)
}

/// True if inotify tells of all that happens to the file system of `file`: one on this machine's own disks or in its
/// memory, which only this kernel's calls change. On network file systems, 9p, virtiofs and FUSE another machine or
/// process changes files unseen, and under overlayfs a layer may be changed. A file system that is not known here counts
/// as one of those.
pub fn are_told_of(file: BorrowedFd<'_>) -> io::Result<bool> {
    const EXT: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const BCACHEFS: u64 = 0xca45_1a4e;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const FAT: u64 = 0x4d44;
    const EXFAT: u64 = 0x2011_bab0;
    const NTFS3: u64 = 0x7366_746e;
    let kind = rustix::fs::fstatfs(file)?.f_type;
    // The number has 32 bits, and on some machines a sign.
    let kind = u64::try_from(kind & 0xffff_ffff).unwrap_or_default();
    Ok(matches!(kind, EXT | XFS | BTRFS | BCACHEFS | F2FS | ZFS | TMPFS | RAMFS | FAT | EXFAT | NTFS3))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_watched_directory_tells_of_each_name_until_the_watch_is_dropped() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let watches = Watches::new(None)?;
        let watch = watches.watch(File::open(dir.path())?.as_fd())?;
        let of = |name: &str| (watch.id, OsString::from(name));
        fs::write(dir.path().join("a"), "x")?;
        fs::rename(dir.path().join("a"), dir.path().join("b"))?;
        let seen = watches.wait(Some(Duration::from_secs(10)))?;
        let (a, b) = (of("a"), of("b"));
        let changed = |(watch, name): &(WatchId, OsString)| Seen::Changed(*watch, name.clone());
        let written = |(watch, name): &(WatchId, OsString)| Seen::Written(*watch, name.clone());
        let appeared = |(watch, name): &(WatchId, OsString)| Seen::Appeared(*watch, name.clone());
        assert_eq!(seen, [appeared(&a), written(&a), changed(&a), appeared(&b)]);
        let id = watch.id;
        drop(watch);
        fs::write(dir.path().join("c"), "x")?;
        assert_eq!(watches.wait(Some(Duration::from_secs(10)))?, [Seen::Ended(id)]);
        Ok(())
    }

    #[test]
    fn no_more_directories_are_watched_than_may_be() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let watches = Watches::new(Some(1))?;
        let root = File::open(dir.path())?;
        let first = watches.watch(root.as_fd())?;
        let refused = watches.watch(root.as_fd()).expect_err("there is one already");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        drop(first);
        watches.watch(root.as_fd())?;
        Ok(())
    }

    #[test]
    fn what_only_this_kernel_changes_is_told_of_and_proc_is_not() -> io::Result<()> {
        assert!(are_told_of(File::open("/dev/shm")?.as_fd())?);
        assert!(!are_told_of(File::open("/proc")?.as_fd())?);
        Ok(())
    }
}
