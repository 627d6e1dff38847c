//! How each kind of reply conveys the result of a request.

use std::io;
use std::os::fd::BorrowedFd;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use rustix::fs::StatVfs;

use super::attr::{MISSING_TTL, Named, Shown, nothing};
use crate::overlay::{Handover, Registration};
use crate::sys::backing::clearing_set_id;

/// A node id is never given to another file while the kernel knows it, so generations are not needed.
pub const GENERATION: Generation = Generation(0);

/// The flags of a file that the kernel reads and writes by itself: closing it leaves nothing for us to settle.
pub const PASSED_FLAGS: FopenFlags = FopenFlags::FOPEN_NOFLUSH;

#[derive(Clone, Debug)]
pub struct OpenedFile {
    pub handle: FileHandle,
    pub flags: FopenFlags,
    /// The kernel may read and write this file by itself.
    pub handover: Option<Handover>,
}

impl OpenedFile {
    /// Returns the id by which the kernel knows the file that it may read and write by itself. All descriptors of an
    /// inode share one, made by `register` for the first. `None` if the kernel refuses the file; then no descriptor of it
    /// has an id.
    pub fn backing<B: Send + Sync + 'static>(
        &self,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<B>,
    ) -> Option<&B> {
        let handover = self.handover.as_ref()?;
        let register = |file: BorrowedFd<'_>| -> Option<Registration> {
            let registered = match handover.clears_set_id {
                true => clearing_set_id(|| register(file)),
                false => register(file),
            };
            match registered {
                Ok(id) => Some(Box::new(id)),
                Err(err) => {
                    // The file system below may be stacked too high, for example. The file is then cached like others.
                    log::debug!("hand a file to the kernel: {err}");
                    None
                }
            }
        };
        handover.registration(register)?.downcast_ref()
    }
}

/// A value, or only its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Xattr {
    Size(u32),
    Value(Vec<u8>),
}

pub trait Answer<T>: Send + 'static {
    fn answer(self, done: Result<T, Errno>);
}

impl Answer<()> for ReplyEmpty {
    fn answer(self, done: Result<(), Errno>) {
        match done {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<()> for ReplyDirectory {
    fn answer(self, done: Result<(), Errno>) {
        match done {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<()> for ReplyDirectoryPlus {
    fn answer(self, done: Result<(), Errno>) {
        match done {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<Shown> for ReplyEntry {
    fn answer(self, done: Result<Shown, Errno>) {
        match done {
            Ok(shown) => self.entry(&shown.ttl, &shown.attr, GENERATION),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<Named> for ReplyEntry {
    fn answer(self, done: Result<Named, Errno>) {
        match done {
            Ok(Named::Entry(shown)) => self.answer(Ok(shown)),
            Ok(Named::Missing) => self.entry(&MISSING_TTL, &nothing(), GENERATION),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<Shown> for ReplyAttr {
    fn answer(self, done: Result<Shown, Errno>) {
        match done {
            Ok(shown) => self.attr(&shown.ttl, &shown.attr),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<Vec<u8>> for ReplyData {
    fn answer(self, done: Result<Vec<u8>, Errno>) {
        match done {
            Ok(data) => self.data(&data),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<OpenedFile> for ReplyOpen {
    fn answer(self, done: Result<OpenedFile, Errno>) {
        match done {
            Ok(opened) => match opened.backing(|file| self.open_backing(file)) {
                Some(id) => self.opened_passthrough(opened.handle, PASSED_FLAGS, id),
                None => self.opened(opened.handle, opened.flags),
            },
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<(Shown, OpenedFile)> for ReplyCreate {
    fn answer(self, done: Result<(Shown, OpenedFile), Errno>) {
        match done {
            Ok((shown, opened)) => match opened.backing(|file| self.open_backing(file)) {
                Some(id) => {
                    let (ttl, attr, handle) = (&shown.ttl, &shown.attr, opened.handle);
                    self.created_passthrough(ttl, attr, GENERATION, handle, PASSED_FLAGS, id);
                }
                None => self.created(&shown.ttl, &shown.attr, GENERATION, opened.handle, opened.flags),
            },
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<usize> for ReplyWrite {
    fn answer(self, done: Result<usize, Errno>) {
        match done {
            Ok(count) => self.written(u32::try_from(count).expect("a request writes at most its u32 of bytes")),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<i64> for ReplyLseek {
    fn answer(self, done: Result<i64, Errno>) {
        match done {
            Ok(offset) => self.offset(offset),
            Err(errno) => self.error(errno),
        }
    }
}

impl Answer<Xattr> for ReplyXattr {
    fn answer(self, done: Result<Xattr, Errno>) {
        match done {
            Ok(Xattr::Size(size)) => self.size(size),
            Ok(Xattr::Value(value)) => self.data(&value),
            Err(errno) => self.error(errno),
        }
    }
}

/// FUSE counts blocks in 64 bits, and their sizes in 32.
pub fn small(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl Answer<StatVfs> for ReplyStatfs {
    fn answer(self, done: Result<StatVfs, Errno>) {
        match done {
            Ok(stat) => self.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                small(stat.f_bsize),
                small(stat.f_namemax),
                small(stat.f_frsize),
            ),
            Err(errno) => self.error(errno),
        }
    }
}
