//! Everything durable: held changes, backups, content by hash, anchors, events, and the journal by which lower changes.
//!
//! The store knows no mount and no view. It owns one state directory, reached by descriptor, and one database in it.
//! It alone changes lower, through a [`landing::Landing`]. What was committed here survives a killed daemon: a commit
//! reaches the page cache by `write(2)`. Begin with [`Store::open`].
//!
//! Invariants:
//! - No lower entry is replaced or removed before its content is in [`content`] (DESIGN, invariant 4).
//! - An upper inode never becomes a lower inode: landing copies (invariant 5).
//! - Settled rows and the journal entry that made them change in one database transaction.

mod anchors;
mod backups;
mod boot;
mod check;
mod checkpoint;
mod content;
mod database;
mod events;
mod journal;
mod landing;
mod layout;
mod operations;
mod purge;
mod recovery;
#[cfg(test)]
mod tests;
mod upper;
mod verdicts;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::{Digest, RelPath};
use crate::sys::Mode;
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::{Place, Tree};

pub use anchors::{Anchor, AnchorState, Went};
pub use backups::Backup;
pub use check::{Fault, FaultKind, Scope};
pub use content::StagedContent;
pub use events::{Event, EventDraft};
pub use journal::{Epilogue, Fate, Landed};
pub use landing::{Applied, Durability, Landing, NewContent, Promised, StepOutcome};
pub use layout::{HolderNote, Location, Lock, STATE_DIR_NAME, StateDirs, TEMP_PREFIX, holder_note, is_temp_name};
pub use operations::{DirLooks, Effect, Operation, PathEffect, Version};
pub use recovery::Recovered;
pub use upper::{Base, Below, Held, Kept, UpperFile, UpperId, UpperRow, What, Writer};
pub use verdicts::Verdict;

use checkpoint::Checkpointer;
use database::Database;
use purge::Purging;

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
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that a program waiting in a system call is told.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Database(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == rusqlite::ErrorCode::DiskFull =>
            {
                libc::ENOSPC
            }
            Self::Database(_) | Self::Damaged { .. } => libc::EIO,
            Self::Unrecorded(cause) => cause.errno(),
            Self::Locked { .. } | Self::Conflict { .. } => libc::EBUSY,
        }
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
    /// Ends before the database is closed.
    _checkpointer: Checkpointer,
    /// Guarded by itself; taken last, after every other lock.
    database: Arc<Mutex<Database>>,
    /// Directories of lower in which recovery will look for temporary names. Taken before `database`.
    announced: Mutex<HashSet<RelPath>>,
    /// What a purge while others work must know. Its locks are taken before `database`.
    purging: Purging,
    /// Whether the database knows in which boot this process makes temporary names. Taken before `database`.
    boot_noted: Mutex<bool>,
}

impl Store {
    /// Opens the state of a project, making it where there is none.
    pub fn open(lower: &Tree, location: &Location) -> Result<Self> {
        let dirs = StateDirs::open(lower, location)?;
        let database = Arc::new(Mutex::new(Database::open(&dirs)?));
        let checkpointer = Checkpointer::start(&database)?;
        Ok(Self {
            dirs,
            _checkpointer: checkpointer,
            database,
            announced: Mutex::default(),
            purging: Purging::default(),
            boot_noted: Mutex::default(),
        })
    }

    /// A new file of upper content, empty and private.
    pub fn create_upper(&self) -> Result<UpperFile> {
        let id = self.database.lock().next_upper();
        self.dirs.create_stage_file(id)
    }

    /// A symlink of upper content.
    pub fn create_upper_symlink(&self, target: &OsStr) -> Result<UpperId> {
        let id = self.reserve_upper();
        let place = self.dirs.stage_place(id)?;
        place.make_symlink(target).doing(|| format!("make upper symlink {id}"))?;
        Ok(id)
    }

    /// A directory, FIFO, socket or device of upper, private until it is given its mode.
    pub fn create_upper_node(&self, kind: FileKind, device: u64) -> Result<UpperId> {
        let id = self.reserve_upper();
        let place = self.dirs.stage_place(id)?;
        let made = match kind == FileKind::Directory {
            true => place.make_dir(Mode::RWXU),
            false => place.make_node(kind, Mode::RUSR | Mode::WUSR, device),
        };
        made.doing(|| format!("make upper entry {id}"))?;
        Ok(id)
    }

    /// Where the file or symlink of an upper entry stands.
    pub fn upper_place(&self, id: UpperId) -> Result<Place> {
        self.dirs.stage_place(id)
    }

    /// What the file system tells of an upper entry's file or symlink.
    pub fn upper_meta(&self, id: UpperId) -> Result<Meta> {
        let doing = || format!("stat upper file {id}");
        let meta = self.dirs.stage_place(id)?.stat().doing(doing)?;
        meta.ok_or(io::Error::from_raw_os_error(libc::ENOENT)).doing(doing)
    }

    pub fn open_upper(&self, id: UpperId) -> Result<File> {
        self.dirs.open_stage_file(id)
    }

    pub fn drop_upper_file(&self, id: UpperId) -> Result<()> {
        self.dirs.remove_stage_file(id)
    }

    /// A number for an upper entry that has no content of its own: a whiteout, a symlink, a directory.
    pub fn reserve_upper(&self) -> UpperId {
        self.database.lock().next_upper()
    }

    /// Content that was backed up, staged or replaced, by its hash.
    pub fn content(&self, digest: Digest) -> Result<Option<Vec<u8>>> {
        self.note_use(digest);
        content::read(&self.database.lock(), &self.dirs, digest)
    }

    /// Where the socket and the like stand.
    pub fn dirs(&self) -> &StateDirs {
        &self.dirs
    }

    /// What was committed so far survives a power cut when this returns.
    pub fn sync(&self) -> Result<()> {
        // By a descriptor of its own: others commit meanwhile.
        let log = self.database.lock().log_file()?;
        log.sync_data().doing(|| "sync the database's log".to_owned())
    }

    /// Moves the write-ahead log into the database file, durably.
    pub fn checkpoint(&self) -> Result<()> {
        self.database.lock().checkpoint()
    }
}

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Milliseconds since the epoch.
pub fn now_millis() -> i64 {
    now().as_millisecond()
}
