//! Leases: asking the kernel whether a file is open for writing anywhere, and keeping others from opening it.
//!
//! A program that opens a file in a way that the file's lease does not allow waits until the lease is given back. The
//! holder is sent SIGIO, which by default ends a process: it is ignored from the first lease on.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::haste;

/// The kernel takes a lease away after 45 s, unless it was set to another time.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Whether any process has the file open for writing, or mapped so. True where the kernel does not tell. `file` must be
/// open for reading only.
pub fn is_open_for_writing(file: &File) -> bool {
    match set(file, libc::F_RDLCK) {
        Ok(()) => {
            give_back(file);
            false
        }
        Err(_) => true,
    }
}

/// Keeps all others from opening the file, or making it shorter, until [`give_back`]: they wait. Returns false if the
/// file is open already, even by another descriptor of this process, if it is not ours, and on file systems without
/// leases. `file` must be open for writing.
///
/// Names, attributes and times are not kept from changing.
pub fn keep_others_out(file: &File) -> bool {
    set(file, libc::F_WRLCK).is_ok()
}

pub fn give_back(file: &File) {
    if let Err(err) = set(file, libc::F_UNLCK) {
        // The lease goes with the descriptor.
        log::debug!("give a lease back: {err}");
    }
}

/// For an open that must not wait for anything but a lease: with `O_NONBLOCK` the kernel refuses it for as long as a
/// lease makes other opens wait, so it is tried again.
pub fn wait_for_lease<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut give_up = None;
    loop {
        match open() {
            Err(Errno::AGAIN)
                if haste::may_last().is_ok()
                    && *give_up.get_or_insert_with(|| Instant::now() + GIVEN_BACK_WITHIN) > Instant::now() =>
            {
                std::thread::sleep(LOOK_AGAIN);
            }
            opened => return opened,
        }
    }
}

fn set(file: &File, kind: libc::c_int) -> io::Result<()> {
    static IGNORE: Once = Once::new();
    IGNORE.call_once(ignore_breaks);
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
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::sys::{OFlags, file};

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

    #[test]
    fn who_opens_a_file_waits_until_it_is_given_back() {
        let dir = tempfile::tempdir().expect("scratch");
        let path = dir.path().join("f");
        std::fs::write(&path, "x").expect("a file");
        let write = || OpenOptions::new().read(true).write(true).open(&path);
        let ours = write().expect("for writing");
        let reader = File::open(&path).expect("for reading");
        assert!(!keep_others_out(&ours), "somebody has it open");
        drop(reader);
        assert!(keep_others_out(&ours));
        let unwilling = || file::reopen(ours.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK);
        let given_back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = [
                scope.spawn(|| (write().map(drop), given_back.load(Ordering::SeqCst))),
                scope.spawn(|| (unwilling().map(drop), given_back.load(Ordering::SeqCst))),
                scope.spawn(|| (File::create(&path).map(drop), given_back.load(Ordering::SeqCst))),
            ];
            std::thread::sleep(Duration::from_millis(50));
            (&ours).write_all(b"ours").expect("to write");
            assert_eq!(ours.metadata().expect("its size").len(), 4);
            given_back.store(true, Ordering::SeqCst);
            give_back(&ours);
            for waiting in waiting {
                let (opened, was_given_back) = waiting.join().expect("a thread");
                opened.expect("to open it at last");
                assert!(was_given_back);
            }
        });
    }
}
