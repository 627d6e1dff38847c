//! Files that the kernel's side of FUSE reads and writes by itself (passthrough): whether it will.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::MemfdFlags;

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

/// Whether the kernel takes files to read and write by itself, on a device whose session has begun. It wants
/// CAP_SYS_ADMIN outside of any user namespace (EPERM), and a session that has agreed on it. Tried with a file in memory.
pub fn try_passthrough(device: BorrowedFd<'_>) -> io::Result<()> {
    let file = rustix::fs::memfd_create("passthrough", MemfdFlags::CLOEXEC)?;
    let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the kernel reads one `fuse_backing_map`, which `map` is.
    let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
    if id < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel reads one number of 32 bits, which `id` is.
    match unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
