//! The write-ahead log, a commit in one write.
//!
//! SQLite writes each page of a transaction, and a header before each, by a call of its own: some forty calls for what a
//! save commits. Here they gather in memory until the page that ends the transaction, and go to the file as one. If that
//! write fails, so does the call by which SQLite gave the last page, and SQLite rolls back as it always does.
//!
//! Only appended bytes are gathered. Before the file is written elsewhere, read, synced, measured or truncated, what was
//! gathered is written. So a reader through SQLite sees what it would see without us, and so does any reader after a
//! commit.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

/// The header before each page (<https://sqlite.org/fileformat2.html#wal_file_format>). Its second word is the size of the
/// database after a commit, or 0 for a page that does not end a transaction.
const FRAME_HEADER_BYTES: usize = 24;

/// A transaction that is larger than that is written in several pieces. The unix VFS takes no more than 128 KiB at once.
const GATHERED_BYTES_MAX: usize = 64 << 10;
const PIECE_BYTES_MAX: usize = 64 << 10;

type Open = unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, *mut sqlite3_file, c_int, *mut c_int) -> c_int;

/// The unix VFS, and its function for opening files, which tells by the struct it is given that a process is to own them.
struct Unix {
    vfs: *mut sqlite3_vfs,
    open: Open,
}

// SAFETY: SQLite's registered VFS structs live as long as the program and are not changed; the rest is a function.
unsafe impl Send for Unix {}
// SAFETY: as above.
unsafe impl Sync for Unix {}

static UNIX: OnceLock<Unix> = OnceLock::new();

/// What SQLite takes for the file; the unix VFS's own follows it in memory.
#[repr(C)]
struct LogFile {
    base: sqlite3_file,
    gathered: *mut Gathered,
}

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// The offset in the file at which they go.
    at: i64,
    /// The offset behind everything that was appended.
    end: i64,
    /// The page behind the last header ends a transaction.
    is_last: bool,
}

/// Makes a VFS that is a copy of `unix` open logs here, and all else by `unix` itself.
pub fn take_over(copy: &mut sqlite3_vfs, unix: *mut sqlite3_vfs) -> bool {
    let Some(open_unix) = copy.xOpen else { return false };
    let Ok(ours) = c_int::try_from(size_of::<LogFile>()) else { return false };
    UNIX.get_or_init(|| Unix { vfs: unix, open: open_unix });
    copy.xOpen = Some(open);
    copy.szOsFile += ours;
    true
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let Some(unix) = UNIX.get() else { return ffi::SQLITE_CANTOPEN };
    if flags & ffi::SQLITE_OPEN_WAL == 0 {
        // SAFETY: the VFS is the one whose function this is, and the other arguments are SQLite's own for a copy of it.
        return unsafe { (unix.open)(unix.vfs, name, file, flags, flags_out) };
    }
    let log = file.cast::<LogFile>();
    // SAFETY: `file` has room for `szOsFile` bytes: ours, and behind them those of the unix VFS.
    let real = unsafe { log.add(1).cast::<sqlite3_file>() };
    // SAFETY: as above; SQLite's rule is that no methods are set where an open fails, and then nothing is closed.
    unsafe {
        (*log).base.pMethods = std::ptr::null();
        let opened = (unix.open)(unix.vfs, name, real, flags, flags_out);
        if opened == ffi::SQLITE_OK {
            (*log).gathered = Box::into_raw(Box::default());
            (*log).base.pMethods = &METHODS;
        }
        opened
    }
}

/// An open log as the functions below need it: what was gathered, and the unix VFS's file with its methods.
struct Opened<'a> {
    gathered: &'a mut Gathered,
    real: *mut sqlite3_file,
    methods: &'a sqlite3_io_methods,
}

/// # Safety
/// `file` was opened by [`open`] as a log and is not closed yet, and nobody else uses it meanwhile.
unsafe fn opened<'a>(file: *mut sqlite3_file) -> Opened<'a> {
    let log = file.cast::<LogFile>();
    // SAFETY: `open` has set all of these, and they live until `close`.
    unsafe {
        let real = log.add(1).cast::<sqlite3_file>();
        Opened { gathered: &mut *(*log).gathered, real, methods: &*(*real).pMethods }
    }
}

impl Opened<'_> {
    /// Writes what was gathered. What could not be written is given up with its transaction.
    fn flush(&mut self) -> c_int {
        if self.gathered.bytes.is_empty() {
            return ffi::SQLITE_OK;
        }
        let bytes = std::mem::take(&mut self.gathered.bytes);
        let mut pieces = (0..).step_by(PIECE_BYTES_MAX).zip(bytes.chunks(PIECE_BYTES_MAX));
        let write = |(from, piece): (i64, &[u8])| self.write(piece, self.gathered.at + from);
        let written = pieces.by_ref().map(write).find(|done| *done != ffi::SQLITE_OK).unwrap_or(ffi::SQLITE_OK);
        self.gathered.bytes = bytes;
        self.gathered.bytes.clear();
        written
    }

    fn write(&self, bytes: &[u8], at: i64) -> c_int {
        let (Some(write), Ok(length)) = (self.methods.xWrite, c_int::try_from(bytes.len())) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        // SAFETY: the file is open, and the bytes live until the call has returned.
        unsafe { write(self.real, bytes.as_ptr().cast(), length, at) }
    }

    fn append(&mut self, bytes: &[u8], at: i64) -> c_int {
        let is_header = bytes.len() == FRAME_HEADER_BYTES;
        if is_header {
            self.gathered.is_last = bytes[4..8] != [0; 4];
        }
        // A page may come in two parts; of the last page each part is written at once.
        let ends = !is_header && self.gathered.is_last;
        let length = bytes.len() as i64;
        // Offset 0 counts as an append: after a checkpoint the log begins anew, in the room it has.
        if at != 0 && at != self.gathered.end {
            self.gathered.end = self.gathered.end.max(at + length);
            return match self.flush() {
                ffi::SQLITE_OK => self.write(bytes, at),
                failed => failed,
            };
        }
        if at == 0 {
            let flushed = self.flush();
            if flushed != ffi::SQLITE_OK {
                return flushed;
            }
        }
        if self.gathered.bytes.is_empty() {
            self.gathered.at = at;
        }
        self.gathered.bytes.extend_from_slice(bytes);
        self.gathered.end = at + length;
        match ends || self.gathered.bytes.len() >= GATHERED_BYTES_MAX {
            true => self.flush(),
            false => ffi::SQLITE_OK,
        }
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, length: c_int, at: sqlite3_int64) -> c_int {
    let Ok(length) = usize::try_from(length) else { return ffi::SQLITE_IOERR_WRITE };
    // SAFETY: SQLite gives an open log, and so many bytes.
    let (mut log, bytes) = unsafe { (opened(file), std::slice::from_raw_parts(bytes.cast::<u8>(), length)) };
    log.append(bytes, at)
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes an open log, once.
    unsafe {
        let mut log = opened(file);
        let flushed = log.flush();
        let closed = log.methods.xClose.map_or(ffi::SQLITE_OK, |close| close(log.real));
        drop(Box::from_raw((*file.cast::<LogFile>()).gathered));
        if flushed == ffi::SQLITE_OK { closed } else { flushed }
    }
}

/// A method that is the unix VFS's, after what was gathered has been written.
macro_rules! after_flush {
    ($name:ident, $method:ident, $failed:expr $(, $argument:ident: $kind:ty)*) => {
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $argument: $kind)*) -> c_int {
            // SAFETY: SQLite gives an open log, and arguments as the method wants them.
            unsafe {
                let mut log = opened(file);
                match (log.flush(), log.methods.$method) {
                    (ffi::SQLITE_OK, Some(method)) => method(log.real $(, $argument)*),
                    (ffi::SQLITE_OK, None) => $failed,
                    (failed, _) => failed,
                }
            }
        }
    };
}

after_flush!(read, xRead, ffi::SQLITE_IOERR_READ, bytes: *mut c_void, length: c_int, at: sqlite3_int64);
after_flush!(truncate, xTruncate, ffi::SQLITE_IOERR_TRUNCATE, size: sqlite3_int64);
after_flush!(sync, xSync, ffi::SQLITE_IOERR_FSYNC, flags: c_int);
after_flush!(file_size, xFileSize, ffi::SQLITE_IOERR_FSTAT, size: *mut sqlite3_int64);
after_flush!(lock, xLock, ffi::SQLITE_IOERR_LOCK, level: c_int);
after_flush!(unlock, xUnlock, ffi::SQLITE_IOERR_UNLOCK, level: c_int);
after_flush!(check_lock, xCheckReservedLock, ffi::SQLITE_IOERR_CHECKRESERVEDLOCK, is_taken: *mut c_int);
after_flush!(control, xFileControl, ffi::SQLITE_NOTFOUND, op: c_int, argument: *mut c_void);
after_flush!(sector_size, xSectorSize, 4096);
after_flush!(characteristics, xDeviceCharacteristics, 0);

/// Version 1: a log has neither shared memory nor is it mapped.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};
