//! Everything that Linux is asked for, and the only place that may be `unsafe`.
//!
//! Wrappers take borrowed descriptors and return `io::Result`; they know paths and metadata, and nothing of the overlay.
//! Begin with [`tree`] (a directory tree reached by descriptor) and [`file`] (content and metadata of one file).

pub mod backing;
pub mod cache;
pub mod daemon;
pub mod file;
pub mod foreground;
pub mod guard;
pub mod haste;
pub mod inherited;
pub mod interrupts;
pub mod isolation;
pub mod job;
pub mod keeper;
mod keystrokes;
pub mod lease;
pub mod memory;
pub mod mount;
pub mod namespace;
pub mod parcel;
pub mod process;
pub mod processor;
pub mod reached;
pub mod ring;
pub mod signals;
pub mod spawn;
pub mod sqlite;
#[cfg(test)]
pub mod steps;
pub mod thread;
pub mod tree;
pub mod uring;
pub mod watch;
pub mod watchers;
pub mod xattr;

pub use rustix::fs::{Mode, OFlags, RenameFlags};
