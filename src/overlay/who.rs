//! Which program acts, which run and session it belongs to, and what it does in one go.
//!
//! - [`runs`]: which processes are one tree, and in which session
//! - [`shells`]: which shell will be told the effects of a process
//! - [`sights`], [`bursts`]: what a process tree has seen, and how much of it the tree changes at once
//! - [`goes`]: what one process does in one go
//! - [`acting`]: in which directory a request acts; a rename of that directory waits

pub(super) mod acting;
pub(super) mod bursts;
pub(super) mod goes;
pub(super) mod runs;
pub(super) mod shells;
pub(super) mod sights;
