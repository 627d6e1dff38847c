//! Moves the log into the database file, while others commit.
//!
//! A checkpoint copies by a connection of its own, so that commits do not wait for it. The log begins anew only once all
//! of it is moved and on disk, so there may be no commit during the last copy. That should have little left to do: copy
//! and sync before it, as often as that pays.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use super::{LOG_PAGE_BYTES, OpenError, connect, failure};

/// A second connection to a database, used for nothing else.
#[derive(Debug)]
pub struct LogMover {
    connection: Connection,
    /// Kept because the path of the files goes through it.
    _dir: Arc<OwnedFd>,
}

impl LogMover {
    pub(super) fn open(dir: &Arc<OwnedFd>, name: &str) -> Result<Self, OpenError> {
        let connection = connect(dir, name)?;
        // A connection that has read nothing yet does not know of a log.
        connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
        Ok(Self { connection, _dir: Arc::clone(dir) })
    }

    /// Copies what was committed until now, and returns how many bytes of the log, from its beginning, that is. If
    /// nothing was committed meanwhile the file is synced, too.
    pub fn copy(&self) -> rusqlite::Result<u64> {
        let pages: i64 = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(2))?;
        Ok(u64::try_from(pages).unwrap_or(0) * LOG_PAGE_BYTES)
    }

    /// Syncs the database file, by the descriptor that SQLite has of it.
    pub fn sync(&self) -> rusqlite::Result<()> {
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        // SAFETY: the handle is open, and with this operation the argument is a place for a pointer.
        let found = unsafe {
            let place = std::ptr::from_mut(&mut file).cast();
            ffi::sqlite3_file_control(self.connection.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_FILE_POINTER, place)
        };
        if found != ffi::SQLITE_OK || file.is_null() {
            return Err(failure("the database has no file".to_owned()));
        }
        // SAFETY: SQLite's own file, open as long as the connection, which nobody else uses meanwhile.
        let synced = unsafe {
            (*(*file).pMethods).xSync.map_or(ffi::SQLITE_IOERR_FSYNC, |sync| sync(file, ffi::SQLITE_SYNC_NORMAL))
        };
        match synced {
            ffi::SQLITE_OK => Ok(()),
            failed => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(failed), None)),
        }
    }
}
