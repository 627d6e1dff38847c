//! The one database: its schema, its pragmas and its counters.
//!
//! When it reaches the disk: [`unsynced`] content first, then the log, by a [`checkpoint`]. After an error of the disk:
//! [`halt`].

pub(super) mod checkpoint;
pub(super) mod halt;
pub(super) mod unsynced;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Condvar;
use rusqlite::{Connection, ErrorCode};
use rustix::fs::StatVfsMountFlags;

use super::database::halt::Halt;
use super::disk::generation;
use super::disk::layout::{LOCK_POLL, RESTART_WAIT, StateDirs, is_removed};
use super::journal::fulfilment::{Going, Waiting};
use super::rows::upper::UpperId;
use super::{Context, Error, Result};
use crate::model::{Digest, InodeKey};
use crate::store::journal::intent;
use crate::store::rows::events;
use crate::sys::sqlite::{self, LogMover, OpenError, Transaction};
use crate::sys::tree::Place;

/// Raised when a table or its rows change their meaning. Other versions are refused, not guessed at: rows up to version 4
/// do not say whether their base was a symlink, and version 5 knows no directories, so that a program of that time would
/// take what is in one for content without a place.
const SCHEMA_VERSION: i64 = 7;

/// The version before, which is taken over. It recorded each rename of a directory, and not where directories are; for a
/// session that a crash has broken off that is forgotten.
const VERSION_BEFORE: i64 = 6;

const TAKE_OVER: &str = "
BEGIN;
DROP TABLE moved_dir;
CREATE TABLE moved_dir (origin BLOB PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA user_version = 7;
COMMIT;
";

/// Each B-tree that a save touches costs it a page or two of the log, so there is no index that only rare commands would
/// use. `content` keeps its rows apart from its keys: comparing keys must not read whole contents.
const SCHEMA: &str = "
CREATE TABLE upper   (id INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE content (sha256 TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, bytes BLOB) STRICT;
CREATE TABLE backup  (name TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL, created INTEGER NOT NULL, row TEXT NOT NULL)
                     STRICT;
CREATE TABLE anchor  (path BLOB PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE verdict (id TEXT NOT NULL, path BLOB NOT NULL, fate TEXT NOT NULL, successor TEXT, at INTEGER NOT NULL)
                     STRICT;
CREATE INDEX verdict_by_id ON verdict (id, at);
CREATE TABLE intent  (id INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE sweep   (id INTEGER PRIMARY KEY, path BLOB NOT NULL) STRICT;
CREATE TABLE event   (seq INTEGER PRIMARY KEY, path BLOB, sha256 TEXT, row TEXT NOT NULL) STRICT;
CREATE TABLE moved_dir (origin BLOB PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE doomed_dir (id INTEGER PRIMARY KEY, path BLOB NOT NULL) STRICT;
CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

/// Tables that were added after that version, and an index that was dropped; an older program misses neither. `reading`
/// has its text last, so that a look at the other columns does not read it.
const LATER: &str = "
DROP INDEX IF EXISTS event_by_path;
CREATE TABLE IF NOT EXISTS reader  (uid INTEGER NOT NULL, session TEXT NOT NULL, used INTEGER NOT NULL,
                                    reads INTEGER NOT NULL, asked INTEGER NOT NULL, returned INTEGER NOT NULL,
                                    PRIMARY KEY (uid, session)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reading (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, session TEXT NOT NULL,
                                    path BLOB NOT NULL, sha256 TEXT NOT NULL, own TEXT, size INTEGER NOT NULL,
                                    bytes BLOB NOT NULL, UNIQUE (uid, session, path)) STRICT;
CREATE TABLE IF NOT EXISTS inspection (operation INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS given_id (id TEXT PRIMARY KEY, sha256 TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

const FILE: &str = "fettle.db";
const LOG: &str = "fettle.db-wal";

/// A row that is in the log alone until the log is moved: a database with neither this row nor events has lost its log.
const MADE: &str = "made";

const LOST: &str = "its database fettle.db or the log of that, fettle.db-wal, is gone or damaged, though there is content \
                    that was held or kept";

const WAYS_ON: &str = "put both back from a copy, or move the directory elsewhere: the next mount begins anew, and what was \
                       held is in `stage` there";

/// Like [`LOST`], where nothing but the log is left.
const BARE_LOG: &str = "its database fettle.db is gone or empty, and the log of that, fettle.db-wal, is not";

/// True if nothing was ever written to the database. Asked before SQLite opens it, which removes the log of an empty one.
fn is_empty(dirs: &StateDirs) -> bool {
    !has_bytes(dirs.state(), FILE)
}

/// True if something was committed. A first start that was cut short leaves no such log beside an empty database: SQLite
/// writes the first page of that and syncs it, with its name, before it begins a log.
fn has_log(dirs: &StateDirs) -> bool {
    has_bytes(dirs.state(), LOG)
}

fn has_bytes(state: BorrowedFd<'_>, name: &str) -> bool {
    let stat = rustix::fs::statat(state, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_size > 0)
}

/// What has become of the files of an open database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// They were removed or replaced; all that was committed is in a file there again.
    WrittenAnew,
    /// They were removed or replaced, and all that was committed is lost when this process ends.
    Lost,
}

/// A function to call when the log has grown.
struct LogWatch {
    bytes_min: u64,
    tell: Box<dyn Fn() + Send>,
}

pub struct Database {
    pub(super) connection: sqlite::Database,
    upper_next: i64,
    commits: u64,
    /// Notified after a commit that may have events in it, and when waiting is over. Waited on with the database's lock.
    committed: Arc<Condvar>,
    is_ending: bool,
    log_watch: Option<LogWatch>,
    /// Sweep notes of temporary names that are gone; deleted with the next notes made, for free.
    pub(super) swept: Vec<i64>,
    /// Intents that were undone but could not be retracted: retracted before anything else is written. If the process
    /// dies before that, recovery undoes those of which nothing is done (`recovery.rs`). One without steps, a discard, is
    /// finished: its promise is all of it, and must last once it was answered.
    pub(super) undone: Vec<i64>,
    /// Recorded before anything else is written or read.
    pub(super) waiting: Waiting,
    /// The number of the next event to be written, if it was asked for since the last ones were written.
    event_next: Option<i64>,
    pub(super) halt: Arc<Halt>,
    /// The log, once it was asked for. It stays one file as long as the connection lives: it is emptied, not removed.
    log: Option<Arc<File>>,
    /// The inodes of the database and its log when it was opened.
    files: [Option<InodeKey>; 2],
    removed: Option<Removed>,
    /// The directory of upper content, and the name of the state.
    beside: (Arc<OwnedFd>, Place),
}

/// After a failed sync the log, or what was moved of it, may not be on disk. So the log is kept, and the next start moves
/// all of it again, as far as it is sound.
impl Drop for Database {
    fn drop(&mut self) {
        if self.halt.is_halted()
            && let Err(err) = self.connection.keep_log()
        {
            log::error!("keep the database's log: {err}");
        }
    }
}

impl Database {
    pub fn open(dirs: &StateDirs, halt: &Arc<Halt>) -> Result<Self> {
        let lost = |what| unusable(dirs.state(), dirs.describe(), what);
        if is_empty(dirs) {
            if dirs.is_known() || has_content(dirs)? {
                return Err(lost(LOST));
            }
            if has_log(dirs) {
                return Err(lost(BARE_LOG));
            }
        }
        let connection = connect(dirs)?;
        let version = connection.query_row("PRAGMA user_version", [], |row| row.get(0));
        let version: i64 = version.map_err(|err| unopened(dirs.state(), dirs.describe(), connection.unopened(err)))?;
        let is_known = matches!(version, SCHEMA_VERSION | VERSION_BEFORE);
        let forgets = version == 0 || (is_known && knows_nothing(&connection)?);
        // If it were taken for a new database, all that content would be swept as left over.
        if forgets && (dirs.is_known() || has_content(dirs)?) {
            // The log stays: someone may still find something in it.
            connection.keep_log()?;
            return Err(lost(LOST));
        }
        let made = match version {
            0 => make_tables(&connection),
            VERSION_BEFORE => connection.execute_batch(&format!("{TAKE_OVER}{LATER}")),
            SCHEMA_VERSION => connection.execute_batch(LATER),
            other => {
                let what = format!("its database is of version {other}, this program knows {SCHEMA_VERSION}");
                return Err(Error::Damaged { path: dirs.describe().to_owned(), what });
            }
        };
        made.map_err(|err| failed(&connection, err.into()))?;
        if forgets {
            note_made(&connection).map_err(|err| failed(&connection, err.into()))?;
        }
        let committed = Arc::default();
        let beside = (dirs.stage_dir(), dirs.instance_place()?);
        let mut database = Self {
            connection,
            upper_next: 1,
            commits: 0,
            committed,
            is_ending: false,
            log_watch: None,
            swept: Vec::new(),
            undone: Vec::new(),
            event_next: None,
            waiting: Waiting::default(),
            halt: Arc::clone(halt),
            log: None,
            files: Default::default(),
            removed: None,
            beside,
        };
        database.files =
            database.connection.files().doing(|| format!("look at the database in {}", dirs.describe()))?;
        database.upper_next = database.first_free_upper(dirs)?;
        Ok(database)
    }

    /// Returns a number above every row, every file and all that were ever given, so that a leftover is never taken for
    /// something new.
    fn first_free_upper(&self, dirs: &StateDirs) -> Result<i64> {
        let row: i64 = self.connection.query_row("SELECT COALESCE(MAX(id), 0) FROM upper", [], |row| row.get(0))?;
        let file = dirs.stage_files()?.into_iter().map(UpperId::number).max().unwrap_or(0);
        Ok(row.max(file).max(generation::number_before(&self.connection)?) + 1)
    }

    /// Skips the numbers of rows that only intents knew of and that recovery has saved.
    pub(super) fn pass_saved_uppers(&mut self, dirs: &StateDirs) -> Result<()> {
        self.upper_next = self.upper_next.max(self.first_free_upper(dirs)?);
        Ok(())
    }

    /// Skips the numbers of earlier generations.
    pub(super) fn pass_generation(&mut self) -> Result<()> {
        self.upper_next = self.upper_next.max(generation::number_before(&self.connection)? + 1);
        Ok(())
    }

    pub fn next_upper(&mut self) -> UpperId {
        let id = UpperId::new(self.upper_next);
        self.upper_next += 1;
        id
    }

    /// For reading what is recorded, which may be less than what is done: see [`Store::reading`](super::Store::reading).
    pub fn reader(&self) -> &Connection {
        &self.connection
    }

    /// Commits everything that `work` writes together, or none of it.
    pub fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let value = self.commit(Going::All, work).map_err(|err| failed(&self.connection, err))?;
        self.check_kept()?;
        // It may have events in it.
        self.committed.notify_all();
        Ok(value)
    }

    /// Like [`Self::write`], but notifies no one. What is done and not recorded goes on waiting, unless an intent is
    /// retracted that may be the one to tell that it is done.
    pub(super) fn write_beside_waiting<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let going = if self.undone.is_empty() { Going::Rows } else { Going::All };
        self.commit(going, work).map_err(|err| failed(&self.connection, err))
    }

    /// Like [`Self::write`], for work that makes sweep notes: the notes of names that are gone are deleted with it.
    pub fn write_notes<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let swept = std::mem::take(&mut self.swept);
        let written = self.write(|tx| {
            let mut statement = tx.prepare_cached("DELETE FROM sweep WHERE id = ?1")?;
            swept.iter().try_for_each(|note| statement.execute([note]).map(|_| ()))?;
            work(tx)
        });
        if written.is_err() {
            self.swept = swept;
        }
        written
    }

    /// Like [`Self::write`], and on disk when it returns. A failed sync is not repeated: the kernel would report success,
    /// although what was committed before may be lost, too.
    pub fn write_durably<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.halt.check()?;
        self.connection.execute_batch("PRAGMA synchronous = FULL")?;
        let written = self.commit(Going::All, work);
        self.connection.execute_batch("PRAGMA synchronous = NORMAL")?;
        let written = self.halt.watch_syncs("sync the state database", written);
        let value = written.map_err(|err| failed(&self.connection, err))?;
        self.check_kept()?;
        self.committed.notify_all();
        Ok(value)
    }

    /// Runs one transaction, which also records what was left to it.
    fn commit<T>(&mut self, going: Going, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        if self.removed.is_some() {
            self.halt.check()?;
        }
        let transaction = Transaction::begin(&mut self.connection)?;
        self.undone.iter().try_for_each(|intent| intent::retract(&transaction, *intent))?;
        self.waiting.record(&transaction, going)?;
        let value = work(&transaction)?;
        transaction.commit()?;
        self.note_commit(going);
        Ok(value)
    }

    fn note_commit(&mut self, gone: Going) {
        self.undone.clear();
        self.waiting.note_recorded(gone);
        if gone == Going::All {
            self.event_next = None;
        }
        self.commits += 1;
        if let Some(watch) = &self.log_watch
            && self.connection.log_bytes() >= watch.bytes_min
        {
            (watch.tell)();
        }
    }

    pub(super) fn event_next(&mut self) -> Result<i64> {
        match self.event_next {
            Some(next) => Ok(next),
            None => Ok(*self.event_next.insert(events::next_number(&self.connection)?)),
        }
    }

    /// From now on `tell` is called at each commit that leaves the log at least `bytes_min` long. It must not wait.
    pub fn when_log_passes(&mut self, bytes_min: u64, tell: Box<dyn Fn() + Send>) {
        self.log_watch = Some(LogWatch { bytes_min, tell });
    }

    pub fn committed(&self) -> Arc<Condvar> {
        self.committed.clone()
    }

    /// Ends all waiting for commits.
    pub fn end_waits(&mut self) {
        self.is_ending = true;
        self.committed.notify_all();
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns how many transactions have been committed.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    pub fn log_bytes(&self) -> u64 {
        self.connection.log_bytes()
    }

    /// Returns the log through a descriptor of its own, for syncing. It is kept, because it reports every failure to
    /// write the log that came since it was opened, and because there may be no free descriptor later.
    pub fn log_file(&mut self) -> Result<Arc<File>> {
        if self.removed().is_some() {
            self.halt.check()?;
        }
        if let Some(log) = &self.log {
            return Ok(Arc::clone(log));
        }
        let log = self.connection.open_log().map(File::from).doing(|| "open the database's log".to_owned())?;
        Ok(Arc::clone(self.log.insert(Arc::new(log))))
    }

    /// Fails after a commit that exists only in this process.
    fn check_kept(&mut self) -> Result<()> {
        match self.removed() {
            Some(Removed::Lost) => self.halt.check(),
            Some(Removed::WrittenAnew) | None => Ok(()),
        }
    }

    /// Returns what became of the files if they were removed or replaced. Then all that was committed is written anew, if
    /// possible, and nothing more is written: it would be lost when this process ends.
    pub fn removed(&mut self) -> Option<Removed> {
        if self.removed.is_none() {
            match self.connection.files() {
                Ok(found) if found != self.files => self.removed = Some(self.write_anew(found)),
                Ok(_) => {}
                // If the files cannot be looked at, they may still be there.
                Err(err) => log::warn!("look at the state database: {err}"),
            }
        }
        self.removed
    }

    fn write_anew(&mut self, [database, log]: [Option<InodeKey>; 2]) -> Removed {
        let what = "the state database was removed or replaced";
        let written = match database {
            // The rows would tell of files that are gone, or that the next start does not find.
            None if self.is_alone() => Err("the files beside it were removed, too".to_owned()),
            None => self.connection.write_anew().map_err(|err| err.to_string()),
            Some(_) if database == self.files[0] && log.is_none() => {
                self.connection.empty_log().map_err(|err| err.to_string())
            }
            Some(_) => Err("something else stands there".to_owned()),
        };
        match written {
            Ok(()) => {
                self.halt.halt(&format!("{what}, and is written anew; unmount, and mount again"));
                Removed::WrittenAnew
            }
            Err(err) => {
                let lost = "and what was held and all backups with it; unmount, and mount again";
                self.halt.halt(&format!("{what} (written anew: {err}), {lost}"));
                Removed::Lost
            }
        }
    }

    /// True if what the rows tell of has gone as well.
    fn is_alone(&self) -> bool {
        let (stage, instance) = &self.beside;
        is_removed(stage.as_fd()) || instance.stat().is_ok_and(|instance| instance.is_none())
    }

    /// Reserves `bytes` more of disk space for the log, as far as there is any.
    pub(super) fn widen_log(&self, bytes: u64) {
        if let Err(err) = self.connection.widen_log(bytes) {
            // The next write reports it.
            log::debug!("make room for the log: {err}");
        }
    }

    /// Gives back the reserved space that the log did not need.
    pub(super) fn trim_log(&mut self) {
        if let Err(err) = self.connection.trim_log() {
            log::warn!("give back room of the log: {err}");
        }
    }

    /// Returns a connection that can move the log into the database file while others commit.
    pub fn log_mover(&self) -> Result<LogMover> {
        self.connection.log_mover().map_err(|err| match err {
            OpenError::Below(cause) => Error::Io { doing: "open the state database again".to_owned(), cause },
            OpenError::Database(err) => err.into(),
        })
    }

    /// Notes that so much of the log is moved. If that is all, the next commit begins it anew, in the space it has.
    pub fn note_log_moved(&mut self, bytes: u64) {
        if bytes >= self.log_bytes() {
            self.connection.note_log_moved();
        }
    }

    /// Moves the whole log, durably, and leaves its file empty; if nothing may be written any more, the log stays for the
    /// next start. No other thread may be moving it.
    pub fn empty_log(&mut self) -> Result<()> {
        self.record_waiting()?;
        if self.halt.is_halted() {
            return Ok(());
        }
        let emptied = self.connection.empty_log().map_err(Error::from);
        let emptied = self.halt.watch_syncs("move the log into the database", emptied);
        emptied.map_err(|err| failed(&self.connection, err))?;
        self.connection.note_log_moved();
        Ok(())
    }
}

/// Opens the database. In place of a daemon that died, another program that has it open is waited for, as the lock is.
fn connect(dirs: &StateDirs) -> Result<sqlite::Database> {
    let (begun, longest) = (Instant::now(), if dirs.is_known() { RESTART_WAIT } else { Duration::ZERO });
    loop {
        let opened = sqlite::open_database(dirs.state(), FILE);
        let opened = opened.map_err(|err| unopened(dirs.state(), dirs.describe(), err));
        let is_in_use = matches!(opened, Err(Error::InUse { .. }));
        if !is_in_use || begun.elapsed() >= longest {
            return opened;
        }
        std::thread::sleep(LOCK_POLL);
    }
}

/// Reads a database that is there, before anything is known to be right, and leaves it as it is. Returns `None` if there
/// is none, or one without what is looked for.
pub(in crate::store) fn look_into<T>(
    state: BorrowedFd<'_>,
    description: &str,
    look: impl FnOnce(&Connection) -> Result<T>,
) -> Result<Option<T>> {
    if !has_bytes(state, FILE) {
        return Ok(None);
    }
    let connection = sqlite::open_database(state, FILE).map_err(|err| unopened(state, description, err))?;
    connection.keep_log()?;
    match look(&connection) {
        Err(Error::Database(err)) if err.sqlite_error_code() == Some(ErrorCode::Unknown) => Ok(None),
        Err(Error::Database(err)) => Err(unopened(state, description, connection.unopened(err))),
        looked => looked.map(Some),
    }
}

/// Returns the error for a database that has lost what it had.
fn unusable(state: BorrowedFd<'_>, description: &str, what: &str) -> Error {
    generation::note_damage(state, description);
    Error::Damaged { path: description.to_owned(), what: format!("{what}; {WAYS_ON}") }
}

/// Returns why the database cannot be used. Only what SQLite finds wrong with the file is damage.
fn unopened(state: BorrowedFd<'_>, description: &str, error: OpenError) -> Error {
    let below = |cause| Error::Io { doing: format!("open the state database in {description}"), cause };
    match error {
        // SQLite has its own words for what it cannot write.
        _ if is_read_only(state).unwrap_or(false) => below(io::Error::from_raw_os_error(libc::EROFS)),
        OpenError::Below(cause) => below(cause),
        OpenError::Database(err) if sqlite::is_in_use(&err) => Error::InUse { path: description.to_owned() },
        OpenError::Database(err) if sqlite::is_damage(&err) => {
            unusable(state, description, &format!("its database {FILE}, or the log of that, {LOG}: {err}"))
        }
        OpenError::Database(err) => Error::Database(err),
    }
}

/// On disk when this returns, so that the file has its tables whatever becomes of its log.
fn make_tables(connection: &sqlite::Database) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("BEGIN;{SCHEMA}{LATER}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"))?;
    connection.empty_log()
}

/// On disk when this returns: otherwise a power cut that took the log would look like damage.
fn note_made(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let noted = connection.execute("INSERT INTO setting (key, value) VALUES (?1, '')", [MADE]);
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    noted.map(|_| ())
}

fn knows_nothing(connection: &Connection) -> rusqlite::Result<bool> {
    let query = "SELECT NOT EXISTS (SELECT 1 FROM setting WHERE key = ?1) AND NOT EXISTS (SELECT 1 FROM event)";
    connection.query_row(query, [MADE], |row| row.get(0))
}

/// True if there is content whose use only a database can tell.
fn has_content(dirs: &StateDirs) -> Result<bool> {
    let is_kept = |name: &String| Digest::parse(name).is_some();
    Ok(!dirs.stage_files()?.is_empty() || dirs.content_files()?.iter().any(is_kept))
}

/// Returns the kernel's error where SQLite only says that something failed below it.
fn failed(connection: &sqlite::Database, error: Error) -> Error {
    let Error::Database(database) = &error else { return error };
    match connection.errno_of(database) {
        Some(errno) => {
            let doing = "write to the state database".to_owned();
            Error::Io { doing, cause: std::io::Error::from_raw_os_error(errno) }
        }
        None => error,
    }
}

fn is_read_only(state: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstatvfs(state)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

pub(super) fn is_disk_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}
