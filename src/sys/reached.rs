//! An inode to be looked at and changed: by a descriptor or, if that is an `O_PATH` one, by its name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, Timespec};

use super::file::{self, Meta};
use super::tree::Place;

pub struct Reached {
    file: Arc<File>,
    /// `None` if the descriptor is enough, or the inode has no name.
    place: Option<Place>,
}

impl Reached {
    /// For a file that is open already.
    pub fn opened(file: Arc<File>) -> Self {
        Self { file, place: None }
    }

    /// For what stands at `place`, be it a symlink or a FIFO: it is opened with `O_PATH` only.
    pub fn at(place: Place) -> io::Result<Self> {
        let file = Arc::new(File::from(place.open(OFlags::PATH)?));
        Ok(Self { file, place: Some(place) })
    }

    pub fn meta(&self) -> io::Result<Meta> {
        Meta::of(self.as_fd())
    }

    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        file::set_owner(self.as_fd(), uid, gid)
    }

    /// Not for symlinks, whose mode cannot change.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        file::set_mode(self.as_fd(), mode)
    }

    pub fn set_times(&self, access: Timespec, modification: Timespec) -> io::Result<()> {
        match &self.place {
            // `futimens` refuses the descriptors that symlinks need.
            Some(place) => place.set_times(access, modification),
            None => self.by_descriptor(|fd| file::set_times(fd, access, modification)),
        }
    }

    fn by_descriptor(&self, change: impl Fn(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        match change(self.as_fd()) {
            Err(err) if err.raw_os_error() == Some(libc::EBADF) => {
                let readable = file::reopen(self.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
                change(readable.as_fd())
            }
            changed => changed,
        }
    }
}

impl AsFd for Reached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
