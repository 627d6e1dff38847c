//! Everything durable: held changes, backups, content by hash, anchors, events, and the journal by which lower changes.
//!
//! The store knows no mount and no view. It owns one state directory, reached by descriptor, and one database in it.
//! It alone changes lower, through a [`landing::Landing`]. What was committed here survives a killed daemon: a commit
//! reaches the page cache by `write(2)`. Begin with [`Store::open`].
//!
//! Invariants:
//! - No lower entry is replaced or removed before its content is in [`content`] (DESIGN, invariant 4).
//! - An upper inode becomes a lower inode only where nobody goes on writing to it: [`landing`] is told so, and copies all
//!   else (invariant 5).
//! - Settled rows and the journal entry that made them change in one database transaction.

mod anchors;
mod backups;
mod boot;
mod check;
mod checkpoint;
mod content;
mod copied;
mod database;
mod device;
mod elsewhere;
mod events;
mod followers;
mod fulfilment;
mod halt;
mod ids;
mod inspections;
mod journal;
mod landing;
mod layout;
pub mod operations;
mod places;
mod purge;
mod readings;
mod recovery;
mod renames;
mod reserve;
mod room;
mod runs;
mod spared;
mod sweep;
#[cfg(test)]
mod tests;
mod unsynced;
mod upper;
mod verdicts;
mod windows;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::RelPath;
use crate::sys::file::Meta;
use crate::sys::tree::{Place, Tree};

pub use anchors::{Anchor, AnchorState, DirPlace, Known, MovedDir, Went};
pub use backups::Backup;
pub use check::{Fault, FaultKind, Scope};
pub use content::StagedContent;
pub use events::{Event, EventDraft, Gathered, LOG_BYTES_MAX};
pub use inspections::{Depth, Inspection};
pub use journal::{Epilogue, Fate, Landed};
pub use landing::{Applied, Durability, Landing, NewContent, Promised, StepOutcome};
pub use layout::{
    BACKUP_VARIABLE, HolderNote, Location, Lock, STAGE_VARIABLE, STATE_DIR_NAME, STATE_VARIABLE, StateDirs,
    TEMP_PREFIX, holder_note, is_temp_name, read_instance,
};
pub use operations::{DirLooks, Effect, Inode, NodeLooks, Operation, PathEffect, Version};
pub use readings::{Baseline, Counted, MeterRow, Reader};
pub use recovery::Recovered;
pub use renames::check_renames;
pub use room::{Nameless, Room};
pub use upper::{Base, Below, FileLooks, Held, Kept, NewUpper, UpperFile, UpperId, UpperRow, What, Writer};
pub use verdicts::Verdict;
pub use windows::{RecentLanding, WindowNote};

use checkpoint::Checkpointer;
pub use database::Removed;

use database::Database;
use followers::Followers;
use halt::Halt;
use purge::Purging;
use reserve::Reserve;
use unsynced::Unsynced;

/// What can go wrong below, with what was being done to which thing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error("state database: {0}")]
    Database(#[from] rusqlite::Error),
    #[error("state directory {path} is damaged: {what}")]
    Damaged { path: String, what: String },
    #[error("{path} is in use by {holder}")]
    Locked { path: String, holder: String },
    /// The next start will finish it; until then nothing more may be written.
    #[error("the project has changed and that could not be recorded: {0}")]
    Unrecorded(Box<Error>),
    #[error("{path} changed below while it was about to be replaced")]
    Conflict { path: String },
    #[error("nothing is written any more: {0}")]
    Halted(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that a program waiting in a system call is told.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Database(err) if database::is_disk_full(err) => libc::ENOSPC,
            Self::Database(_) | Self::Damaged { .. } => libc::EIO,
            Self::Unrecorded(cause) => cause.errno(),
            Self::Locked { .. } | Self::Conflict { .. } => libc::EBUSY,
            Self::Halted(_) => libc::EROFS,
        }
    }

    /// Whether there was no room for it.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), libc::ENOSPC | libc::EDQUOT)
    }
}

/// Says what was being done when an I/O error came.
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
    /// Upper files that nobody needs and that could not be removed. A leaf: nothing is taken after it.
    left_over: Mutex<Vec<UpperId>>,
    /// Upper files that are being made or removed: no row tells of them, and they are no orphans. A leaf.
    in_passing: Mutex<HashSet<UpperId>>,
    /// What a purge while others work must know. Its locks are taken before `database`.
    purging: Purging,
    /// A leaf.
    followers: Followers,
    room: Arc<Room>,
    /// Whether the database knows in which boot this process makes temporary names. Taken before `database`.
    boot_noted: Mutex<bool>,
}

impl Store {
    /// Opens the state of a project, making it where there is none.
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
            boot_noted: Mutex::default(),
            left_over: Mutex::default(),
            in_passing: Mutex::default(),
        })
    }

    /// Where the file or symlink of an upper entry stands.
    pub fn upper_place(&self, id: UpperId) -> Result<Place> {
        self.dirs.stage_place(id)
    }

    /// What the file system tells of an upper entry's file or symlink.
    pub fn upper_meta(&self, id: UpperId) -> Result<Meta> {
        let doing = || format!("stat upper file {id}");
        self.dirs.stage_meta(id).doing(doing)
    }

    /// What upper content takes on disk.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Counts the file of an upper entry as it is now.
    pub fn note_room(&self, id: UpperId) {
        // One that cannot be looked at counts when it is written to.
        if let Ok(meta) = self.upper_meta(id) {
            self.room.takes(id, meta.blocks);
        }
    }

    pub fn open_upper(&self, id: UpperId) -> Result<File> {
        self.dirs.open_stage_file(id)
    }

    /// The same, to be read alone.
    pub fn read_upper(&self, id: UpperId) -> Result<File> {
        self.dirs.read_stage_file(id)
    }

    /// Nothing needs the file of an entry that has gone, once that is recorded.
    pub fn drop_upper_file(&self, id: UpperId) {
        self.room.note_gone(id);
        self.in_passing.lock().insert(id);
        if !self.stays_until_recorded(id) {
            self.remove_upper_file(id);
        }
    }

    /// One that cannot be removed costs room and nothing else: it is removed when the session ends, or by the next start.
    fn remove_upper_file(&self, id: UpperId) {
        if let Err(err) = self.dirs.remove_stage_file(id) {
            log::error!("{err}");
            self.left_over.lock().push(id);
        }
        self.in_passing.lock().remove(&id);
    }

    /// A number for an upper entry that has no content of its own: a whiteout, a symlink, a directory.
    pub fn reserve_upper(&self) -> UpperId {
        self.database.lock().next_upper()
    }

    /// Whether somebody has removed the state directory, with all that was in it.
    pub fn is_removed(&self) -> bool {
        Meta::of(self.dirs.state()).is_ok_and(|meta| meta.links == 0)
    }

    /// Whether somebody has removed the database under us.
    pub fn database_removed(&self) -> Option<Removed> {
        self.database.lock().removed()
    }

    /// Where the socket and the like stand.
    pub fn dirs(&self) -> &StateDirs {
        &self.dirs
    }

    /// Before an act that is to be durable: after it only the disk is in the way of [`Self::sync`].
    pub fn open_log(&self) -> Result<()> {
        self.unsynced.sync()?;
        self.database.lock().log_file().map(|_| ())
    }

    /// What was committed so far survives a power cut when this returns. Once a sync has failed nothing does: the next would
    /// say so all the same.
    pub fn sync(&self) -> Result<()> {
        self.record_waiting()?;
        self.halt.check()?;
        self.unsynced.sync()?;
        // By a descriptor of its own: others commit meanwhile.
        let log = self.database.lock().log_file()?;
        halt::sync_log(&log, &self.halt)
    }

    /// The same, and what stands in `stage/` by then, synced by itself or not.
    pub fn sync_names(&self) -> Result<()> {
        self.unsynced.note_names();
        self.sync()
    }

    /// The same, and the content of all that stands there, whoever wrote it: what was being copied is not known any more.
    pub fn sync_stage(&self) -> Result<()> {
        rustix::fs::syncfs(self.dirs.stage_dir()).map_err(io::Error::from).doing(|| "sync what is held".to_owned())?;
        self.sync_names()
    }

    /// Lower has changed, and the database cannot be told because of `cause`: nothing is written any more.
    pub fn unrecorded(&self, cause: Error) -> Error {
        self.halt.unrecorded(cause)
    }

    /// Why nothing may be written any more, when nothing may.
    pub fn halted(&self) -> Option<String> {
        self.halt.why()
    }

    pub fn is_halted(&self) -> bool {
        self.halt.is_halted()
    }

    /// Notes who has the project, for messages.
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
