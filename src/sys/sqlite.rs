//! A SQLite database reached through a directory descriptor, whatever is mounted over the directory's path.
//!
//! The state directory lies below the mount that shows the view. A path into it leads into the view, so the database is
//! opened as `/proc/self/fd/N/NAME`. SQLite's own VFS follows that link and goes on with the real path, which is the
//! view again: our VFS is a copy of it whose `xFullPathname` leaves the path as it is. The names of the write-ahead log
//! and of the journal are made from that path, so they stay beside the database. The unix VFS opens everything with
//! O_NOFOLLOW, which concerns the last component only, never the `/proc/self/fd/N` before it.
//!
//! Files are opened as SQLite's `unix-excl` opens them: one process owns the database, its connections find the log by an
//! index in the process's heap, and there is no `-shm` file.
//!
//! Its log is written a commit at a time ([`log`]), and moved into the database file by a connection of its own
//! ([`mover`]).
//!
//! Never opens or closes the database file itself: closing any descriptor of it would drop the process's POSIX locks,
//! and with them those of all connections. Begin with [`open_database`].
#![allow(unsafe_code)]

mod log;
mod mover;
#[cfg(test)]
mod tests;
mod transaction;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, ffi};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};

use super::RenameFlags;
use super::tree::Place;
use crate::model::InodeKey;

pub use self::mover::LogMover;
pub use self::transaction::Transaction;

const VFS_NAME: &CStr = c"fettle-unix";

/// An open database and the directory descriptor its path goes through.
///
/// Invariant: `connection` is dropped before the rest (fields drop in order). Closing it checkpoints and removes the log
/// by name, through the descriptor; its commits count into `log_pages`.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    dir: Arc<OwnedFd>,
    name: String,
    log_pages: Box<AtomicU32>,
}

impl Database {
    /// The length of the log that is not moved into the database yet, as of the last commit.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.log_pages.load(Ordering::Relaxed)) * LOG_PAGE_BYTES
    }

    /// To be called after a checkpoint, for which SQLite calls no hook.
    pub fn note_log_moved(&self) {
        self.log_pages.store(0, Ordering::Relaxed);
    }

    /// Returns the kernel's errno, if an error of this connection comes from a system call.
    pub fn errno_of(&self, error: &rusqlite::Error) -> Option<i32> {
        // SAFETY: the handle is open, and nothing else uses the connection meanwhile.
        unsafe { errno_of(self.connection.handle(), error) }
    }

    /// Returns why a call of the connection just opened failed.
    pub fn unopened(&self, error: rusqlite::Error) -> OpenError {
        OpenError::of(&self.connection, error)
    }

    /// Opens the log by a descriptor of its own. The locks are all on the database file, so closing it drops none.
    pub fn open_log(&self) -> io::Result<OwnedFd> {
        self.open_log_to(OFlags::RDONLY)
    }

    fn open_log_to(&self, access: OFlags) -> io::Result<OwnedFd> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, self.log_name(), flags, Mode::empty())?)
    }

    /// The inodes at the names of the database and its log. Looked up by name: see the head of this file.
    pub fn files(&self) -> io::Result<[Option<InodeKey>; 2]> {
        let key = |name: &str| Ok::<_, io::Error>(self.place(name).stat()?.map(|meta| meta.key()));
        Ok([key(&self.name)?, key(&self.log_name())?])
    }

    fn log_name(&self) -> String {
        format!("{}-wal", self.name)
    }

    fn place(&self, name: &str) -> Place {
        Place { dir: Arc::clone(&self.dir), name: name.into() }
    }

    /// Writes all that was committed to a new database of the same name, which must be free, durably. This connection
    /// goes on with the old one, which no other process can open any more. The old log is removed: it would be taken for
    /// the new database's.
    pub fn write_anew(&self) -> Result<(), OpenError> {
        let new = format!("{}.new", self.name);
        let place = self.place(&new);
        if place.stat()?.is_some() {
            place.unlink()?;
        }
        create_private(&self.dir, &new)?;
        self.connection.execute("VACUUM INTO ?1", [format!("/proc/self/fd/{}/{new}", self.dir.as_raw_fd())])?;
        File::from(place.open(OFlags::RDONLY)?).sync_all()?;
        let log = self.place(&self.log_name());
        if log.stat()?.is_some() {
            log.unlink()?;
        }
        place.rename(&self.place(&self.name), RenameFlags::NOREPLACE)?;
        Ok(place.sync_dir()?)
    }

    /// Allocates this many bytes behind the log's end, so that appending them cannot fail for lack of space.
    pub fn widen_log(&self, bytes: u64) -> io::Result<()> {
        let log = self.open_log_to(OFlags::WRONLY)?;
        let end = u64::try_from(rustix::fs::fstat(&log)?.st_size).unwrap_or(0);
        Ok(rustix::fs::fallocate(&log, FallocateFlags::KEEP_SIZE, end, bytes)?)
    }

    /// Frees the blocks behind the log's end. No other connection may be writing: what it appended would be cut off.
    pub fn trim_log(&mut self) -> io::Result<()> {
        let log = self.open_log_to(OFlags::WRONLY)?;
        let end = u64::try_from(rustix::fs::fstat(&log)?.st_size).unwrap_or(0);
        Ok(rustix::fs::ftruncate(&log, end)?)
    }

    /// Moves all of the log into the database, durably, and leaves the log's file empty.
    pub fn empty_log(&self) -> rusqlite::Result<()> {
        let is_busy: bool = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        match is_busy {
            true => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)),
            false => Ok(()),
        }
    }

    /// Has closing leave the log as it is, for the next to open the database.
    pub fn keep_log(&self) -> rusqlite::Result<()> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(|_| ())
    }

    /// Opens a connection that moves the log into the database file while this one goes on.
    pub fn log_mover(&self) -> Result<LogMover, OpenError> {
        LogMover::open(&self.dir, &self.name)
    }
}

impl Deref for Database {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Database {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Whether an error says that something could not be made durable.
pub fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(failure, _) = error else { return false };
    matches!(failure.extended_code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
}

/// True if another program has the database open.
pub fn is_in_use(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// True if SQLite takes the file for a damaged database, or for none.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Returns the kernel's errno of the handle's last call, if that failed with `error` for a system call.
///
/// # Safety
/// The handle is open, or was returned by an open that failed, and nothing else uses it meanwhile.
unsafe fn errno_of(handle: *mut ffi::sqlite3, error: &rusqlite::Error) -> Option<i32> {
    match error.sqlite_error_code()? {
        ErrorCode::DiskFull => Some(libc::ENOSPC),
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => {
            // SAFETY: as the caller says.
            let errno = unsafe { ffi::sqlite3_system_errno(handle) };
            Some(errno).filter(|errno| *errno != 0)
        }
        _ => None,
    }
}

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A call to the kernel failed.
    #[error(transparent)]
    Below(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
}

impl OpenError {
    /// SQLite itself says no more than that something failed below it, or that a file cannot be opened.
    fn of(connection: &Connection, error: rusqlite::Error) -> Self {
        // SAFETY: the handle is open, and a connection is used by one thread at a time.
        match unsafe { errno_of(connection.handle(), &error) } {
            Some(errno) => Self::Below(io::Error::from_raw_os_error(errno)),
            None => Self::Database(error),
        }
    }
}

/// Opens the database `name` in `dir`, creating it with mode 0600, and sets how it keeps its data.
///
/// Another process that opens it is told that the database is locked.
///
/// - `journal_mode=WAL`, `synchronous=NORMAL`: a commit is in the page cache when it returns, so a killed process loses
///   nothing; what must outlast the power sets `synchronous=FULL` or syncs the log itself.
/// - No checkpoint of its own accord, which would sync to disk in the middle of a commit: the owner makes them, by
///   [`Database::log_bytes`]. Closing makes one.
/// - `temp_store=MEMORY`: the directory for temporary files may lie in the view, which must not be touched from here.
pub fn open_database(dir: BorrowedFd<'_>, name: &str) -> Result<Database, OpenError> {
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err(rusqlite::Error::InvalidPath(name.into()).into());
    }
    register_vfs()?;
    let dir = rustix::io::fcntl_dupfd_cloexec(dir, FIRST_FREE_DESCRIPTOR).map_err(io::Error::from)?;
    create_private(&dir, name)?;
    // SQLite would create it too, but where that fails it does not say why.
    create_private(&dir, &format!("{name}-wal"))?;
    let connection = connect(&dir, name)?;
    // SQLite opens a file to read that it may not write, and says so only at the first change.
    if connection.is_readonly(MAIN_DB)? {
        return Err(io::Error::from_raw_os_error(libc::EACCES).into());
    }
    set_pragmas(&connection).map_err(|err| OpenError::of(&connection, err))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    let log_pages = Box::new(AtomicU32::new(0));
    count_log_pages(&connection, &log_pages);
    Ok(Database { connection, dir: Arc::new(dir), name: name.to_owned(), log_pages })
}

fn connect(dir: &OwnedFd, name: &str) -> Result<Connection, OpenError> {
    let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    let path = CString::new(path).map_err(|_| rusqlite::Error::InvalidPath(name.into()))?;
    let connection = open_file(&path)?;
    connection.busy_timeout(BUSY_WAIT)?;
    grow_before_moving(&connection)?;
    Ok(connection)
}

/// By SQLite's own call: `rusqlite` closes what could not be opened, and with it goes the errno.
fn open_file(path: &CStr) -> Result<Connection, OpenError> {
    let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_NOMUTEX | ffi::SQLITE_OPEN_EXRESCODE;
    let mut handle = std::ptr::null_mut();
    // SAFETY: both texts are C strings, and SQLite makes the handle.
    let opened = unsafe { ffi::sqlite3_open_v2(path.as_ptr(), &mut handle, flags, VFS_NAME.as_ptr()) };
    if opened == ffi::SQLITE_OK {
        // SAFETY: it is open, and nothing else has it.
        return Ok(unsafe { Connection::from_handle_owned(handle) }?);
    }
    let error = rusqlite::Error::SqliteFailure(ffi::Error::new(opened), None);
    // SAFETY: SQLite gives a handle even where the open fails, or none for lack of memory, and both calls take either.
    let errno = unsafe {
        let errno = errno_of(handle, &error);
        ffi::sqlite3_close(handle);
        errno
    };
    Err(errno.map_or(OpenError::Database(error), |errno| io::Error::from_raw_os_error(errno).into()))
}

/// More than there are statements in the program: preparing one anew costs as much as running it.
const STATEMENTS_CACHED_MAX: usize = 64;

/// SQLite's default.
const PAGE_BYTES: c_int = 4096;

/// A page with its header in the log.
const LOG_PAGE_BYTES: u64 = PAGE_BYTES as u64 + 24;

/// After a checkpoint the log's file keeps this much, to be written over: cheaper than growing again.
const LOG_FILE_KEPT_BYTES: i64 = 4 << 20;

/// Pages kept in memory: those that every save reads and changes, and the way to them. More would be no faster: a page
/// that is not here is in the kernel's cache, and a commit that has balanced a tree looks at all of them. Negative means
/// KiB.
const CACHE_KIB: i64 = -2 * 1024;

/// Has a checkpoint allocate all the room it will take before it copies anything: otherwise a program that fills the disk
/// meanwhile would make it fail half-way. SQLite does so for files that grow in pieces of some size, here of a page.
fn grow_before_moving(connection: &Connection) -> rusqlite::Result<()> {
    let mut piece: c_int = PAGE_BYTES;
    // SAFETY: the handle is open, and with this operation the argument is a number.
    let set = unsafe {
        let piece = std::ptr::from_mut(&mut piece).cast();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_CHUNK_SIZE, piece)
    };
    match set {
        ffi::SQLITE_OK => Ok(()),
        failed => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(failed), None)),
    }
}

/// Takes the place of the hook by which SQLite would checkpoint by itself, in the middle of a commit.
fn count_log_pages(connection: &Connection, log_pages: &AtomicU32) {
    let counter = std::ptr::from_ref(log_pages).cast_mut().cast();
    // SAFETY: the handle is open. The counter is boxed, and outlives the connection (see `Database`).
    unsafe { ffi::sqlite3_wal_hook(connection.handle(), Some(note_log_pages), counter) };
}

/// Called after each commit, with the length of the log in pages.
unsafe extern "C" fn note_log_pages(
    counter: *mut c_void,
    _: *mut ffi::sqlite3,
    _: *const c_char,
    pages: c_int,
) -> c_int {
    // SAFETY: it is the counter given with this function, which lives as long as the connection.
    let counter = unsafe { &*counter.cast::<AtomicU32>() };
    counter.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
    ffi::SQLITE_OK
}

/// 0 to 2 are replaced when the process goes into the background.
const FIRST_FREE_DESCRIPTOR: i32 = 3;

/// Long enough for a person's `sqlite3` to finish a query; another owner stays longer than any caller should wait.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// SQLite would create the file with 0644. `mknod` makes it without a descriptor, whose closing would drop locks.
fn create_private(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::mknodat(dir, name, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn set_pragmas(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(failure(format!("journal mode is {mode}, not wal")));
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", LOG_FILE_KEPT_BYTES)?;
    connection.pragma_update(None, "cache_size", CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

fn failure(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(message))
}

/// Registers the VFS at the first call; later calls return the same result.
fn register_vfs() -> rusqlite::Result<()> {
    static OUTCOME: OnceLock<c_int> = OnceLock::new();
    match *OUTCOME.get_or_init(copy_unix_vfs) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// A copy rather than a wrapper: the unix VFS reads nothing of its own struct where it does not open a file, and files are
/// opened by the original.
fn copy_unix_vfs() -> c_int {
    // SAFETY: the name is a C string; `vfs_find` initialises SQLite first if need be.
    let unix = unsafe { ffi::sqlite3_vfs_find(c"unix-excl".as_ptr()) };
    if unix.is_null() {
        return ffi::SQLITE_NOTFOUND;
    }
    // SAFETY: not null, and SQLite's registered VFS structs live as long as the program.
    let mut copy = unsafe { *unix };
    copy.zName = VFS_NAME.as_ptr();
    copy.pNext = std::ptr::null_mut();
    copy.xFullPathname = Some(keep_path);
    if !log::take_over(&mut copy, unix) {
        return ffi::SQLITE_ERROR;
    }
    // SAFETY: the struct and its name are never freed, as registration asks; 0 leaves the default VFS alone.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(copy)), 0) }
}

/// `xFullPathname`: the path as given.
unsafe extern "C" fn keep_path(
    _: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite passes a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if usize::try_from(out_bytes).is_ok_and(|room| path.len() <= room) {
        // SAFETY: `out` has room for `out_bytes` bytes, checked above, and is SQLite's own buffer.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), path.len()) };
        ffi::SQLITE_OK
    } else {
        ffi::SQLITE_CANTOPEN
    }
}
