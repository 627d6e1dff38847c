//! Requests that come by the kernel's rings, where the administrator has switched them on (`fuse.enable_uring`): to a thread on
//! the very processor of the program that asks, so that neither is woken across processors, and answered in the call that
//! waits for the next. Everything else about a request is as it is by the device.
//!
//! [`crew`] has the threads, [`requests`] a method a request, [`wire`] the layout of what they say.

mod crew;
mod requests;
mod wire;

pub use crew::Crews;
pub use requests::Server;

/// `FUSE_OVER_IO_URING` of the greeting, which fuser does not know by name.
pub const AGREEMENT: u64 = 1 << 41;
