//! Room on the disk that nobody else can take, so that a full disk stops no recovery, no discard, no purge, no end of a
//! landing and no unmount.
//!
//! It is a file of the state directory that has blocks and no content. Who must write and finds the disk full lets it go,
//! writes in the room that leaves, and takes as much again as there is. What is written then is rows of the database,
//! never contents of files: those are what fills disks.
//!
//! Rows stay, and so does the log that they come by, until it is moved. So whoever has written here has a log that is worth
//! it moved, which gives the room back; and what programs do has a share of the room that leaves enough for a person.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use rustix::fs::FallocateFlags;

use super::{Error, Result, Store};
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags};

const NAME: &str = "reserve";

/// The largest single thing that must not fail is the end of a confirm: its rows are about 2 KiB a path, twice while they
/// are in the log and in the database. So it is enough for a thousand paths at once.
const RESERVE_BYTES: u64 = 4 << 20;

/// What programs do goes on as long as this much is left: a thousand changes that nobody could judge, or a hundred starts.
const KEPT_FROM_PROGRAMS_BYTES: u64 = RESERVE_BYTES / 2;

/// It is let go by so much, and then by twice as much each time that does not do: whoever fills the disk meanwhile gets
/// no more of it. Enough for what is recorded of most acts.
const PIECE_BYTES: u64 = 128 << 10;

/// What a piece less than that leaves free is no block on most file systems.
const BLOCK_BYTES: u64 = 4 << 10;

/// With less room than this nothing is put off that could still be refused now.
const AMPLE_BYTES: u64 = 4 * RESERVE_BYTES;

/// On a full disk the log is moved when it is longer. To move it takes as much room again at most: so it fits into what
/// programs leave, with what a person does.
const LOG_BYTES_MAX: u64 = 512 << 10;

/// How much of the room who must write may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    OfPrograms,
    All,
}

impl Share {
    /// What it leaves.
    fn leaves(self) -> u64 {
        match self {
            Self::OfPrograms => KEPT_FROM_PROGRAMS_BYTES,
            Self::All => 0,
        }
    }
}

pub(super) struct Reserve {
    dir: OwnedFd,
    /// Guarded by itself: one lets it go at a time, so that nobody takes it again while another writes in its room. Who does
    /// may need room for a part of what he does, and is let in again. Taken before the mover of the log, what was used and the
    /// database; after the state of the view.
    in_use: ReentrantMutex<()>,
    /// As of when it was last taken.
    has_bytes: AtomicU64,
    /// A long log, which may take as much room again when it is moved.
    log_bytes: AtomicU64,
    /// The file system keeps no room for anybody: it is not asked again by itself.
    is_refused: AtomicBool,
}

/// The room while somebody writes in it; taken again, as far as there is room, when he leaves it.
pub(super) struct Used<'a> {
    reserve: &'a Reserve,
    /// For a part of what is done in it: it is left with the whole.
    is_part: bool,
    _in_use: ReentrantMutexGuard<'a, ()>,
}

impl Reserve {
    /// Takes the room, if there is that much. Where there is not, the first who needs it fails as without one.
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

    /// Whether what is written in a moment will hardly meet a full disk. A quota does not show here.
    pub fn has_ample(&self) -> bool {
        let stat = rustix::fs::fstatvfs(&self.dir);
        stat.is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= AMPLE_BYTES)
    }

    /// Whether there is as much as there should be, or will never be.
    pub fn is_whole(&self) -> bool {
        self.has_bytes.load(Ordering::Relaxed) >= self.wanted() || self.is_refused.load(Ordering::Relaxed)
    }

    /// Takes what there is room for again, unless somebody writes in it.
    pub fn refill(&self) {
        if let Some(_in_use) = self.try_enter() {
            self.take();
        }
    }

    /// From now on there is room for moving a log of that length, too. One that has been moved needs none.
    pub fn cover(&self, log_bytes: u64) {
        self.log_bytes.store(log_bytes, Ordering::Relaxed);
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

    /// None while anybody writes in it, be it this thread.
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

    /// Nothing depends on it now, and who needs it tells what is wrong: so it is for the log alone.
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
            // Over its quota btrfs cannot even empty a file; to remove one it always can.
            log::debug!("make the room that is kept smaller: {err}");
            self.place()?.unlink()?;
        }
        if full.errno() == libc::EDQUOT {
            // And it counts what was freed against the quota until it has written out that it is free.
            rustix::fs::syncfs(&self.dir)?;
        }
        if shrunk.is_err() && down_to > 0 {
            fill(&self.file()?, down_to)?;
        }
        Ok(())
    }

    /// The name goes as well: there may be no inode left, and nothing else.
    fn remove(&self) -> io::Result<()> {
        match self.place()?.unlink() {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        }
    }
}

impl Used<'_> {
    /// Works in as little of the room as does. `full`: why it could not be done without.
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

/// The room it has. One that was copied has a length and no blocks, and is no room.
fn held(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.blocks() * 512 < meta.len() {
        file.set_len(0)?;
        return Ok(0);
    }
    Ok(meta.len())
}

/// To the last block that there is: what is left would be taken by whoever writes next, again and again.
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
    /// Does what must not fail for want of room and can be begun anew: on a full disk once more, in the room that is kept
    /// for that.
    pub fn vitally<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.in_share(Share::All, work)
    }

    /// The same for what programs do, and may do without end: it fails before nothing is left for who reviews it.
    pub fn vitally_for_programs<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.in_share(Share::OfPrograms, work)
    }

    fn in_share<T>(&self, share: Share, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(err) if err.is_full() => {
                let room = self.reserve.enter();
                let worked = room.work(share, err, || {
                    // Before somebody else has it.
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

    /// Else what is written in the room would never leave it. What was to be done is done or not whatever comes of this.
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
