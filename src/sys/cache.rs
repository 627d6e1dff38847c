//! What the page cache holds of a file.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `cachestat(2)`, since Linux 6.5. The number is the same on every architecture but Alpha; `libc` does not have it for all.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    /// 0: to the end.
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    in_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// True if all of a file's content has been written to the disk, though perhaps not flushed there: nothing of it waits in
/// memory. An error when the kernel does not tell.
pub fn is_written_out(file: BorrowedFd<'_>) -> io::Result<bool> {
    let (range, mut pages) = (Range { offset: 0, length: 0 }, Pages::default());
    // SAFETY: both structures are laid out as the kernel's and live until the call has returned.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0) };
    match done {
        0 => Ok(pages.dirty == 0 && pages.in_writeback == 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Begins to write out what waits in memory of a file, without waiting for that. File systems do the same by themselves
/// when a plain rename replaces a file: what a power cut leaves is then the old content or the new.
pub fn start_writeback(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers. From 0 for 0 bytes: to the end.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn content_waits_in_memory_until_it_is_synced() -> io::Result<()> {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR"))?;
        file.write_all(b"content\n")?;
        assert!(!is_written_out(file.as_fd())?);
        file.sync_data()?;
        assert!(is_written_out(file.as_fd())?);
        Ok(())
    }
}
