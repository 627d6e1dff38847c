//! Asking the kernel whether a file is open for writing anywhere, by a lease that would be refused then.
//!
//! Whoever opens the file for writing while the lease is held waits until it is given back, and its holder is sent
//! SIGIO, which by default ends a process: it is ignored from the first lease on.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Once;

/// Whether any process has the file open for writing, or mapped so. True where the kernel does not tell. `file` must be
/// open for reading only.
pub fn is_open_for_writing(file: &File) -> bool {
    static IGNORE: Once = Once::new();
    IGNORE.call_once(ignore_breaks);
    match set(file, libc::F_RDLCK) {
        Ok(()) => {
            if let Err(err) = set(file, libc::F_UNLCK) {
                // It goes with the descriptor.
                log::debug!("give a lease back: {err}");
            }
            false
        }
        Err(_) => true,
    }
}

fn set(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the call takes a number besides.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ignore_breaks() {
    // SAFETY: no handler of ours is installed, and nothing else in this process waits for SIGIO.
    let before = unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    debug_assert_ne!(before, libc::SIG_ERR);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_file_is_open_for_writing_while_a_descriptor_or_a_mapping_is() {
        let dir = tempfile::tempdir().expect("scratch");
        let path = dir.path().join("f");
        std::fs::write(&path, "x").expect("a file");
        let reader = File::open(&path).expect("for reading");
        assert!(!is_open_for_writing(&reader));
        let writer = OpenOptions::new().write(true).open(&path).expect("for writing");
        assert!(is_open_for_writing(&reader));
        drop(writer);
        assert!(!is_open_for_writing(&reader));
    }
}
