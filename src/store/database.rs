//! The one database: its schema, its pragmas and its counters.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::layout::StateDirs;
use super::upper::UpperId;
use super::{Error, Result};
use crate::sys::sqlite;

/// Raised when a table changes its meaning; a newer one is refused, not guessed at.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE upper   (id INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE content (sha256 TEXT PRIMARY KEY, size INTEGER NOT NULL, bytes BLOB) STRICT, WITHOUT ROWID;
CREATE TABLE backup  (name TEXT PRIMARY KEY, path BLOB NOT NULL, kind TEXT NOT NULL, sha256 TEXT NOT NULL,
                      size INTEGER NOT NULL, mode INTEGER NOT NULL, created INTEGER NOT NULL, row TEXT NOT NULL) STRICT;
CREATE INDEX backup_by_path ON backup (path, created);
CREATE INDEX backup_by_content ON backup (sha256);
CREATE TABLE anchor  (path BLOB PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE verdict (id TEXT NOT NULL, path BLOB NOT NULL, fate TEXT NOT NULL, successor TEXT, at INTEGER NOT NULL)
                     STRICT;
CREATE INDEX verdict_by_id ON verdict (id, at);
CREATE TABLE intent  (id INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE sweep   (id INTEGER PRIMARY KEY, path BLOB NOT NULL) STRICT;
CREATE TABLE event   (seq INTEGER PRIMARY KEY AUTOINCREMENT, path BLOB, sha256 TEXT, row TEXT NOT NULL) STRICT;
CREATE INDEX event_by_path ON event (path, seq) WHERE sha256 IS NOT NULL;
CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

const FILE: &str = "fettle.db";

/// Whether nothing was ever written to the database. Asked before SQLite opens it, which writes a header.
fn is_empty(dirs: &StateDirs) -> bool {
    let stat = rustix::fs::statat(dirs.state(), FILE, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(true, |stat| stat.st_size == 0)
}

pub struct Database {
    connection: sqlite::Database,
    upper_next: i64,
    /// Sweep notes of temporary names that are gone; deleted with whatever is committed next.
    pub(super) swept: Vec<i64>,
}

impl Database {
    pub fn open(dirs: &StateDirs) -> Result<Self> {
        let damaged = |what: String| Error::Damaged { path: dirs.describe().to_owned(), what };
        // Taken for a new one, it would have all that content swept as left over.
        if is_empty(dirs) && !dirs.stage_files()?.is_empty() {
            return Err(damaged("its database is empty or gone, though there is content that was held".to_owned()));
        }
        let connection = sqlite::open_database(dirs.state(), FILE).map_err(|err| damaged(err.to_string()))?;
        let version: i64 = connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|err| damaged(err.to_string()))?;
        match version {
            0 => connection
                .execute_batch(&format!("BEGIN;{SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"))
                .map_err(|err| damaged(err.to_string()))?,
            SCHEMA_VERSION => {}
            other => {
                return Err(damaged(format!(
                    "its database is of version {other}, this program knows {SCHEMA_VERSION}"
                )));
            }
        }
        let mut database = Self { connection, upper_next: 1, swept: Vec::new() };
        database.upper_next = database.first_free_upper(dirs)?;
        Ok(database)
    }

    /// Above every row and every file, so that a leftover is never taken for something new.
    fn first_free_upper(&self, dirs: &StateDirs) -> Result<i64> {
        let row: i64 = self.connection.query_row("SELECT COALESCE(MAX(id), 0) FROM upper", [], |row| row.get(0))?;
        let file = dirs.stage_files()?.into_iter().map(UpperId::number).max().unwrap_or(0);
        Ok(row.max(file) + 1)
    }

    pub fn next_upper(&mut self) -> UpperId {
        let id = UpperId::new(self.upper_next);
        self.upper_next += 1;
        id
    }

    pub fn reader(&self) -> &Connection {
        &self.connection
    }

    /// All that `work` writes is committed together, or nothing of it.
    pub fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = work(&transaction)?;
        for note in &self.swept {
            transaction.prepare_cached("DELETE FROM sweep WHERE id = ?1")?.execute([note])?;
        }
        transaction.commit()?;
        self.swept.clear();
        Ok(value)
    }

    /// The same, on disk when it returns.
    pub fn write_durably<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.connection.execute_batch("PRAGMA synchronous = FULL")?;
        let result = self.write(work);
        self.connection.execute_batch("PRAGMA synchronous = NORMAL")?;
        result
    }

    pub fn checkpoint(&mut self) -> Result<()> {
        Ok(self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
    }
}
