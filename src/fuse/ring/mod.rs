//! Requests that come by the kernel's rings, where the administrator has switched them on (`fuse.enable_uring`). Each
//! comes to a thread on the very processor of the program that asks, so that neither is woken across processors, and is
//! answered by the call that waits for the next. Everything else about a request is as it is by the device.
//!
//! [`crew`] has the threads, [`requests`] one method per request, [`wire`] the layout of requests and answers.

mod crew;
mod requests;
mod wire;

pub use crew::Crews;
pub use requests::Server;

/// `FUSE_OVER_IO_URING`, a flag of FUSE_INIT for which fuser has no name.
pub const AGREEMENT: u64 = 1 << 41;
