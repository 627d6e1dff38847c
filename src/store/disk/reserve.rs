//! Disk space that nothing else can take, so that a full disk stops no recovery, no discard, no purge, no end of a
//! landing and no unmount.
//!
//! It is a file of the state directory that has blocks and no content. A thread that must write and finds the disk full
//! lets the file go, writes in the space that leaves, and takes as much again as there is. Only rows of the database are
//! written then, never contents of files: those are what fills disks.
//!
//! Rows stay, and so does the log that they are written to, until it is moved. So after a write in this space the log is
//! moved as soon as that is worth it, which gives the space back. What programs do gets a share only, which leaves enough
//! for a person.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use rustix::fs::FallocateFlags;

use crate::store::{Error, Result, Store};
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags};

const NAME: &str = "reserve";

/// The largest single thing that must not fail is the end of a confirm: its rows are about 2 KiB a path, twice while they
/// are in the log and in the database. So it is enough for a thousand paths at once.
const RESERVE_BYTES: u64 = 4 << 20;

/// Programs are refused from here on: this is enough for a thousand changes that nobody could judge, or a hundred starts.
const KEPT_FROM_PROGRAMS_BYTES: u64 = RESERVE_BYTES / 2;

/// The reserve is let go in pieces, of this size at first and twice as much each time that is not enough: a program that
/// fills the disk meanwhile gets no more of it. Enough for what is recorded of most acts.
const PIECE_BYTES: u64 = 128 << 10;

/// Less than this is no block on most file systems.
const BLOCK_BYTES: u64 = 4 << 10;

/// With less free space than this, nothing is put off that could still be refused now.
const AMPLE_BYTES: u64 = 4 * RESERVE_BYTES;

/// On a full disk a log longer than this is moved. That takes as much space again at most, so it fits into what programs
/// leave, along with what a person does.
const LOG_BYTES_MAX: u64 = 512 << 10;

/// How much of the reserve a thread that must write may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    OfPrograms,
    All,
}

impl Share {
    /// Returns how much it leaves.
    fn leaves(self) -> u64 {
        match self {
            Self::OfPrograms => KEPT_FROM_PROGRAMS_BYTES,
            Self::All => 0,
        }
    }
}

pub(in crate::store) struct Reserve {
    dir: OwnedFd,
    /// Guarded by itself: one thread at a time lets the reserve go, so that none takes it again while another writes in
    /// its space. That thread may need space for a part of what it does, and is let in again. Taken before the mover of
    /// the log, what was used and the database; after the state of the view.
    in_use: ReentrantMutex<()>,
    /// Its size when it was last taken.
    has_bytes: AtomicU64,
    /// The length of a long log, which may take as much space again when it is moved.
    log_bytes: AtomicU64,
    /// True if the file system can reserve no space: it is not asked again by itself.
    is_refused: AtomicBool,
}

/// The reserve while a thread writes in its space. Taken again, as far as there is space, when this is dropped.
pub(super) struct Used<'a> {
    reserve: &'a Reserve,
    /// True for a part of work that is in the reserve already: only the whole gives it back.
    is_part: bool,
    _in_use: ReentrantMutexGuard<'a, ()>,
}

impl Reserve {
    /// Takes the reserve if there is that much space. If not, the first write that needs it fails as without one.
    pub fn open(state: OwnedFd) -> Self {
        let reserve = Self {
            dir: state,
            in_use: ReentrantMutex::new(()),
            has_bytes: AtomicU64::default(),
            log_bytes: AtomicU64::default(),
            is_refused: AtomicBool::default(),
        };
        reserve.take();
        reserve
    }

    /// True if what is written in a moment will hardly meet a full disk. A quota does not show here.
    pub fn has_ample(&self) -> bool {
        let stat = rustix::fs::fstatvfs(&self.dir);
        stat.is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= AMPLE_BYTES)
    }

    /// True if the reserve is as large as it should be, or never will be.
    pub fn is_whole(&self) -> bool {
        self.has_bytes.load(Ordering::Relaxed) == self.wanted() || self.is_refused.load(Ordering::Relaxed)
    }

    /// From now on reserves space for moving a log of that length, too. A log that has been moved needs none.
    pub fn cover(&self, log_bytes: u64) {
        self.log_bytes.store(log_bytes, Ordering::Relaxed);
        self.refill();
    }

    /// Takes what is missing as far as there is space, or gives back what is too much, unless a thread writes in it.
    pub fn refill(&self) {
        let Some(_in_use) = self.try_enter() else { return };
        if self.has_bytes.load(Ordering::Relaxed) > self.wanted()
            && let Err(err) = self.shrink(self.wanted())
        {
            log::warn!("let go of room that is kept for the log: {err}");
        }
        self.take();
    }

    pub fn vitally<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(err) if err.is_full() => self.enter().work(Share::All, err, work),
            other => other,
        }
    }

    fn enter(&self) -> Used<'_> {
        let is_part = self.in_use.is_owned_by_current_thread();
        Used { reserve: self, is_part, _in_use: self.in_use.lock() }
    }

    /// Returns `None` while any thread writes in it, this one included.
    fn try_enter(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        if self.in_use.is_owned_by_current_thread() { None } else { self.in_use.try_lock() }
    }

    fn wanted(&self) -> u64 {
        RESERVE_BYTES + self.log_bytes.load(Ordering::Relaxed)
    }

    fn place(&self) -> io::Result<Place> {
        Ok(Place { dir: self.dir.try_clone()?.into(), name: NAME.into() })
    }

    fn file(&self) -> io::Result<File> {
        let place = self.place()?;
        match place.open(OFlags::RDWR) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                place.create(OFlags::RDWR, Mode::RUSR | Mode::WUSR).map(File::from)
            }
            other => other.map(File::from),
        }
    }

    /// An error goes to the program's log only: nothing depends on the reserve now, and a write that needs it will fail.
    fn take(&self) {
        match self.file().and_then(|file| fill(&file, self.wanted())) {
            Ok(has) => self.has_bytes.store(has, Ordering::Relaxed),
            Err(err) if is_full(&err) => self.has_bytes.store(0, Ordering::Relaxed),
            Err(err) => {
                log::warn!("keep room for a full disk: {err}");
                self.is_refused.store(true, Ordering::Relaxed);
            }
        }
    }

    fn shrink(&self, bytes: u64) -> io::Result<()> {
        File::from(self.place()?.open(OFlags::RDWR)?).set_len(bytes)
    }

    fn let_go(&self, down_to: u64, full: &Error) -> io::Result<()> {
        let shrunk = self.shrink(down_to);
        if let Err(err) = &shrunk {
            // Over its quota btrfs cannot even empty a file, but it can always remove one.
            log::debug!("make the room that is kept smaller: {err}");
            self.place()?.unlink()?;
        }
        if full.errno() == libc::EDQUOT {
            // It also counts what was freed against the quota until it has written out that it is free.
            rustix::fs::syncfs(&self.dir)?;
        }
        if shrunk.is_err() && down_to > 0 {
            fill(&self.file()?, down_to)?;
        }
        Ok(())
    }

    /// Removes the name as well: an inode may be all that is missing.
    fn remove(&self) -> io::Result<()> {
        match self.place()?.unlink() {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        }
    }
}

impl Used<'_> {
    /// Works in as little of the reserve as is enough. `full` is the error of the attempt without it.
    fn work<T>(&self, share: Share, mut full: Error, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        log::warn!("{full}: going on in the room that is kept for this");
        let mut has = self.reserve.file().and_then(|file| held(&file)).unwrap_or(0);
        let mut piece = PIECE_BYTES;
        while has > share.leaves() {
            has = has.saturating_sub(piece).max(share.leaves());
            piece *= 2;
            if let Err(err) = self.reserve.let_go(has, &full) {
                log::error!("let go of the room that is kept: {err}");
            }
            match work() {
                Err(err) if err.is_full() => full = err,
                other => return other,
            }
        }
        if share == Share::OfPrograms {
            return Err(full);
        }
        if let Err(err) = self.reserve.remove() {
            log::error!("let go of the name of the room that is kept: {err}");
        }
        work()
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if !self.is_part {
            self.reserve.take();
        }
    }
}

fn is_full(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Returns the space that the file has. One that was copied has a length and no blocks, and is no reserve.
fn held(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.blocks() * 512 < meta.len() {
        file.set_len(0)?;
        return Ok(0);
    }
    Ok(meta.len())
}

/// Takes space to the last block that there is: the rest would go to whatever writes next, again and again.
fn fill(file: &File, wanted: u64) -> io::Result<u64> {
    let mut has = held(file)?;
    let mut piece = wanted.saturating_sub(has);
    while has < wanted && piece >= BLOCK_BYTES {
        let bytes = piece.min(wanted - has);
        match rustix::fs::fallocate(file, FallocateFlags::empty(), has, bytes) {
            Ok(()) => has += bytes,
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => piece /= 2,
            Err(err) => return Err(err.into()),
        }
    }
    Ok(has)
}

impl Store {
    /// Does what must not fail for want of space and can be begun anew: on a full disk once more, in the reserve.
    pub fn vitally<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.in_share(Share::All, work)
    }

    /// Like [`Self::vitally`], for what programs may do without end: it fails while enough is left for a reviewer.
    pub fn vitally_for_programs<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.in_share(Share::OfPrograms, work)
    }

    fn in_share<T>(&self, share: Share, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(err) if err.is_full() => {
                let room = self.reserve.enter();
                let worked = room.work(share, err, || {
                    // Before another writer has it.
                    self.database.lock().widen_log(PIECE_BYTES);
                    work()
                });
                if room.is_part {
                    return worked;
                }
                self.shorten_log(&room, share);
                drop(room);
                if !self.reserve.is_whole() {
                    self.checkpointer.look();
                }
                worked
            }
            other => other,
        }
    }

    /// Moves the log, or what is written in the reserve would never leave it. The work itself is done or not, whatever
    /// comes of this.
    fn shorten_log(&self, room: &Used<'_>, share: Share) {
        let log_bytes = {
            let mut database = self.database.lock();
            database.trim_log();
            database.log_bytes()
        };
        if log_bytes < LOG_BYTES_MAX || self.is_halted() {
            return;
        }
        let moved = match self.checkpoint() {
            Err(err) if err.is_full() => room.work(share, err, || self.checkpoint()),
            other => other,
        };
        if let Err(err) = moved {
            log::error!("move the log into the database on a full disk: {err}");
        }
    }
}
