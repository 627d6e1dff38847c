//! Everything durable: held changes, backups, content by hash, anchors, events, and the journal by which lower changes.
//!
//! The store knows no mount and no view. It owns one state directory, reached by descriptor, and the database in it. Only
//! the store places or replaces judged content in lower, through a [`Landing`]. A commit reaches the page cache by
//! `write(2)`, so it survives a killed daemon.
//!
//! Start reading at [`Store::open`]. Rooms:
//! - [`disk`]: where everything stands
//! - [`database`], the [`rows`] in it, and [`content`] by hash
//! - [`journal`]: how lower changes
//! - [`check`]: whether all of it is consistent
//!
//! Invariants:
//! - No lower entry is replaced or removed before its content is in [`content`] (DESIGN, invariant 4).
//! - An upper inode becomes a lower inode only if nothing can go on writing to it. The caller tells
//!   [`Landing`] which one that is; all others are copied (invariant 5).
//! - Settled rows and the journal entry that made them change in one database transaction.

mod check;
mod content;
mod database;
mod disk;
mod journal;
pub mod rows;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::RelPath;
use crate::sys::file::Meta;
use crate::sys::tree::{Place, Tree};

pub use check::{Fault, FaultKind, Scope};
pub use content::StagedContent;
pub use disk::layout::{
    BACKUP_VARIABLE, HolderNote, Location, Lock, STAGE_VARIABLE, STATE_DIR_NAME, StateDirs, TEMP_PREFIX, holder_note,
    is_daemons, is_reserved_name, is_temp_name, is_within_reserved, read_instance,
};
pub use disk::renames::check_renames;
pub use disk::room::{Nameless, Room};
pub use journal::intent::{Epilogue, Fate, Landed};
pub use journal::landing::{Applied, Durability, Landing, NewContent, Promised, StepOutcome};
pub use journal::recovery::Recovered;
pub use rows::anchors::{Anchor, AnchorState, DirPlace, Known, MovedDir, Went};
pub use rows::backups::Backup;
pub use rows::events::{Event, EventDraft, Gathered, LOG_BYTES_MAX};
pub use rows::inspections::{Depth, Inspection};
pub use rows::operations::{DirLooks, Effect, Inode, NodeLooks, Operation, PathEffect, Version};
pub use rows::readings::{Baseline, Counted, MeterRow, Reader};
pub use rows::upper::{Base, Below, FileLooks, Held, Kept, NewUpper, UpperFile, UpperId, UpperRow, What, Writer};
pub use rows::verdicts::Verdict;
pub use rows::windows::{RecentLanding, WindowNote};

pub use database::Removed;
use database::checkpoint::Checkpointer;

use content::purge::Purging;
use database::Database;
use database::halt::Halt;
use database::unsynced::Unsynced;
use disk::reserve::Reserve;
use rows::followers::Followers;

/// What can go wrong below, with what was being done to what.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    /// Content that is about to be replaced, or compared with later, could not be kept.
    #[error("{doing}: {cause}")]
    Unkept { doing: String, cause: io::Error },
    #[error("state database: {0}")]
    Database(#[from] rusqlite::Error),
    #[error("state directory {path} is damaged: {what}")]
    Damaged { path: String, what: String },
    #[error("{path} is in use by {holder}")]
    Locked { path: String, holder: String },
    #[error("state directory {path}: another program has fettle.db open")]
    InUse { path: String },
    /// The next start will finish the landing; until then nothing more may be written.
    #[error("the project has changed and that could not be recorded: {0}")]
    Unrecorded(Box<Error>),
    #[error("{path} changed below while it was about to be replaced")]
    Conflict { path: String },
    #[error("nothing is written any more: {0}")]
    Halted(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the errno for a program that waits in a system call.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { cause, .. } | Self::Unkept { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Database(err) if database::is_disk_full(err) => libc::ENOSPC,
            Self::Database(_) | Self::Damaged { .. } => libc::EIO,
            Self::Unrecorded(cause) => cause.errno(),
            Self::Locked { .. } | Self::InUse { .. } | Self::Conflict { .. } => libc::EBUSY,
            Self::Halted(_) => libc::EROFS,
        }
    }

    /// True if the disk or a quota was full.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), libc::ENOSPC | libc::EDQUOT)
    }
}

/// Adds what was being done to an I/O error.
pub(crate) trait Context<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: what(), cause })
    }
}

pub struct Store {
    dirs: StateDirs,
    reserve: Arc<Reserve>,
    halt: Arc<Halt>,
    unsynced: Arc<Unsynced>,
    /// Ends before the database is closed.
    checkpointer: Checkpointer,
    /// Guarded by itself; taken last, after every other lock.
    database: Arc<Mutex<Database>>,
    /// Directories of lower in which recovery will look for temporary names. Taken before `database`.
    announced: Mutex<HashSet<RelPath>>,
    /// Upper files that are no longer needed but could not be removed. A leaf: nothing is taken after it.
    left_over: Mutex<Vec<UpperId>>,
    /// Upper files that are being made or removed: they have no row and yet are no orphans. A leaf.
    in_passing: Mutex<HashSet<UpperId>>,
    /// State for purging while other threads work. Its locks are taken before `database`.
    purging: Purging,
    /// A leaf.
    followers: Followers,
    room: Arc<Room>,
    /// The generation that begins with the session's first file, until that is made. Taken before `database`.
    coming_generation: Mutex<Option<i64>>,
    /// True once the database has recorded in which boot this process makes temporary names. Taken before `database`.
    boot_noted: Mutex<bool>,
}

impl Store {
    /// Opens the state of a project, creating it if there is none.
    pub fn open(lower: &Tree, location: &Location) -> Result<Self> {
        let dirs = StateDirs::open(lower, location)?;
        let state = dirs.state().try_clone_to_owned().doing(|| "duplicate a descriptor".to_owned())?;
        let (reserve, halt) = (Arc::new(Reserve::open(state)), Arc::new(Halt::default()));
        let database = reserve.vitally(|| Database::open(&dirs, &halt))?;
        let database = Arc::new(Mutex::new(database));
        let unsynced = Arc::new(Unsynced::new(&dirs, &halt));
        let checkpointer = Checkpointer::start(&database, &halt, &unsynced, &reserve)?;
        Ok(Self {
            dirs,
            reserve,
            halt,
            unsynced,
            checkpointer,
            database,
            announced: Mutex::default(),
            purging: Purging::default(),
            followers: Followers::default(),
            room: Arc::default(),
            coming_generation: Mutex::default(),
            boot_noted: Mutex::default(),
            left_over: Mutex::default(),
            in_passing: Mutex::default(),
        })
    }

    /// Returns the place of an upper entry's file or symlink.
    pub fn upper_place(&self, id: UpperId) -> Place {
        self.dirs.stage_place(id)
    }

    /// Stats the file or symlink of an upper entry.
    pub fn upper_meta(&self, id: UpperId) -> Result<Meta> {
        let doing = || format!("stat upper file {id}");
        self.dirs.stage_meta(id).doing(doing)
    }

    /// The disk space that upper content takes.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Counts the present size of an upper entry's file.
    pub fn note_room(&self, id: UpperId) {
        // If the stat fails, the next write to the file counts it.
        if let Ok(meta) = self.upper_meta(id) {
            self.room.takes(id, meta.blocks);
        }
    }

    pub fn open_upper(&self, id: UpperId) -> Result<File> {
        self.dirs.open_stage_file(id)
    }

    /// Like [`Self::open_upper`], but read-only.
    pub fn read_upper(&self, id: UpperId) -> Result<File> {
        self.dirs.read_stage_file(id)
    }

    /// Removes the file of an upper entry that is gone, or leaves it until the landing that drops the entry is recorded.
    pub fn drop_upper_file(&self, id: UpperId) {
        self.room.note_gone(id);
        self.in_passing.lock().insert(id);
        if !self.stays_until_recorded(id) {
            self.remove_upper_file(id);
        }
    }

    /// A file that cannot be removed only costs space: it is removed when the session ends, or by the next start.
    fn remove_upper_file(&self, id: UpperId) {
        if let Err(err) = self.dirs.remove_stage_file(id) {
            log::error!("{err}");
            self.left_over.lock().push(id);
        }
        self.in_passing.lock().remove(&id);
    }

    /// Returns a number for an upper entry that has no file, as a whiteout.
    pub fn reserve_upper(&self) -> UpperId {
        self.database.lock().next_upper()
    }

    /// True if the state directory was removed, with everything in it.
    pub fn is_removed(&self) -> bool {
        disk::layout::is_removed(self.dirs.state())
    }

    /// True if the directory of upper content was removed, with everything in it.
    pub fn is_stage_removed(&self) -> bool {
        disk::layout::is_removed(self.dirs.stage_dir().as_fd())
    }

    /// Returns what became of the open database if its files were removed or replaced.
    pub fn database_removed(&self) -> Option<Removed> {
        self.database.lock().removed()
    }

    /// The directories of the state, where the socket and the like stand too.
    pub fn dirs(&self) -> &StateDirs {
        &self.dirs
    }

    /// Call this before an act that is to be durable: afterwards only the disk can make [`Self::sync`] fail.
    pub fn open_log(&self) -> Result<()> {
        self.unsynced.sync()?;
        self.database.lock().log_file().map(|_| ())
    }

    /// Makes everything committed so far survive a power cut. Once a sync has failed, every later call fails: the kernel
    /// would report the next sync as successful all the same.
    pub fn sync(&self) -> Result<()> {
        self.record_waiting()?;
        self.halt.check()?;
        self.unsynced.sync()?;
        // Through a descriptor of its own, so that other threads can commit meanwhile.
        let log = self.database.lock().log_file()?;
        database::halt::sync_log(&log, &self.halt)
    }

    /// Like [`Self::sync`], and syncs the names in `stage/`, also those that were not synced when they were made.
    pub fn sync_names(&self) -> Result<()> {
        self.unsynced.note_names();
        self.sync()
    }

    /// Like [`Self::sync_names`], and syncs all content in `stage/`, whoever wrote it: after a crash it is no longer
    /// known what was being copied.
    pub fn sync_stage(&self) -> Result<()> {
        rustix::fs::syncfs(self.dirs.stage_dir()).map_err(io::Error::from).doing(|| "sync what is held".to_owned())?;
        self.sync_names()
    }

    /// Stops all writing: lower has changed, and `cause` keeps the database from being told.
    pub fn unrecorded(&self, cause: Error) -> Error {
        self.halt.unrecorded(cause)
    }

    /// Returns why nothing may be written any more, or `None` if writing is allowed.
    pub fn halted(&self) -> Option<String> {
        self.halt.why()
    }

    pub fn is_halted(&self) -> bool {
        self.halt.is_halted()
    }

    /// Records which process holds the project, for messages.
    pub fn write_holder(&self, note: &HolderNote) -> Result<()> {
        self.vitally(|| self.dirs.write_holder(note))
    }

    /// Moves the write-ahead log into the database file, durably.
    pub fn checkpoint(&self) -> Result<()> {
        self.unsynced.sync()?;
        self.checkpointer.empty_log(&self.database)
    }
}

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Milliseconds since the epoch.
pub fn now_millis() -> i64 {
    now().as_millisecond()
}
