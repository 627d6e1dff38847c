//! Room on the disk that nobody else can take, so that a full disk stops no recovery, no discard, no purge, no end of a
//! landing and no unmount.
//!
//! It is a file of the state directory that has blocks and no content. Who must write and finds the disk full lets it go,
//! writes in the room that leaves, and takes as much again as there is. What is written then is rows of the database,
//! never contents of files: those are what fills disks.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::{Error, Result, Store};
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags};

const NAME: &str = "reserve";

/// The largest single thing that must not fail is the end of a confirm: its rows are about 2 KiB a path, twice while they
/// are in the log and in the database. So it is enough for a thousand paths at once.
const RESERVE_BYTES: u64 = 4 << 20;

/// On a disk that is nearly full it is taken again in pieces of this size, as many as there are.
const PIECE_BYTES: u64 = 128 << 10;

/// With less room than this nothing is put off that could still be refused now.
const AMPLE_BYTES: u64 = 4 * RESERVE_BYTES;

/// Guarded by itself: one lets it go at a time, so that nobody takes it again while another writes in its room.
pub(super) struct Reserve {
    dir: OwnedFd,
    in_use: Mutex<()>,
}

impl Reserve {
    /// Takes the room, if there is that much. Where there is not, the first who needs it fails as without one.
    pub fn open(state: OwnedFd) -> Self {
        let reserve = Self { dir: state, in_use: Mutex::new(()) };
        reserve.take();
        reserve
    }

    /// Whether what is written in a moment will hardly meet a full disk. A quota does not show here.
    pub fn has_ample(&self) -> bool {
        let stat = rustix::fs::fstatvfs(&self.dir);
        stat.is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= AMPLE_BYTES)
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
        if let Err(err) = self.file().and_then(|file| fill(&file)) {
            log::warn!("keep room for a full disk: {err}");
        }
    }

    fn let_go(&self, full: &Error) -> io::Result<()> {
        if let Err(err) = self.file().and_then(|file| file.set_len(0)) {
            // Over its quota btrfs cannot even empty a file; to remove one it always can.
            log::debug!("empty the room that is kept: {err}");
            self.place()?.unlink()?;
        }
        if full.errno() == libc::EDQUOT {
            // And it counts what was freed against the quota until it has written out that it is free.
            rustix::fs::syncfs(&self.dir)?;
        }
        Ok(())
    }
}

/// As much as there is room for.
fn fill(file: &File) -> io::Result<()> {
    let take = |from: u64, bytes: u64| rustix::fs::fallocate(file, FallocateFlags::empty(), from, bytes);
    let has = file.metadata()?.len();
    if has >= RESERVE_BYTES || take(has, RESERVE_BYTES - has).is_ok() {
        return Ok(());
    }
    let mut from = has;
    while from < RESERVE_BYTES {
        match take(from, PIECE_BYTES) {
            Ok(()) => from += PIECE_BYTES,
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

impl Store {
    /// Does what must not fail for want of room and can be begun anew: on a full disk once more, in the room that is kept
    /// for that.
    pub fn vitally<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.reserve.vitally(work)
    }
}

impl Reserve {
    pub fn vitally<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(err) if err.is_full() => self.in_the_room(&err, work),
            other => other,
        }
    }

    fn in_the_room<T>(&self, full: &Error, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let _in_use = self.in_use.lock();
        log::warn!("{full}: going on in the room that is kept for this");
        if let Err(err) = self.let_go(full) {
            log::error!("let go of the room that is kept: {err}");
        }
        let worked = work();
        self.take();
        worked
    }
}
