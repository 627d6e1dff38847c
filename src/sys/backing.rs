//! Files that the kernel's side of FUSE reads and writes by itself (passthrough).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// `struct fuse_backing_map` of `linux/fuse.h`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// A file that the kernel may read and write by itself, until this is dropped.
pub struct Backing {
    device: Arc<OwnedFd>,
    id: u32,
}

impl Backing {
    /// `device` must be that of a session that has begun and has agreed on passthrough. The kernel wants CAP_SYS_ADMIN
    /// outside of any user namespace (EPERM).
    pub fn open(device: Arc<OwnedFd>, file: BorrowedFd<'_>) -> io::Result<Self> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the kernel reads one `fuse_backing_map`, which `map` is.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
        match u32::try_from(id) {
            Ok(id) => Ok(Self { device, id }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// The number by which the kernel knows the file.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the kernel reads one number of 32 bits, which `id` is.
        if unsafe { libc::ioctl(self.device.as_raw_fd(), BACKING_CLOSE, &raw const self.id) } != 0 {
            log::debug!("take a file back from the kernel: {}", io::Error::last_os_error());
        }
    }
}

/// Calls `register`, which gives a file to the kernel, without the right to keep set-id bits. The kernel writes to that file
/// with the rights of this thread, whoever asks; without that one, lower clears the bits of a file that was given them
/// while it is open.
pub fn clearing_set_id<T>(register: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = capabilities(None)?;
    let mut fewer = own;
    fewer.effective.remove(CapabilitySet::FSETID);
    set_capabilities(None, fewer)?;
    let registered = register();
    set_capabilities(None, own)?;
    registered
}

/// Fails if the kernel does not take files to read and write by itself. Tried with a file in memory.
pub fn try_passthrough(device: Arc<OwnedFd>) -> io::Result<()> {
    let file = rustix::fs::memfd_create("passthrough", MemfdFlags::CLOEXEC)?;
    Backing::open(device, file.as_fd()).map(drop)
}
