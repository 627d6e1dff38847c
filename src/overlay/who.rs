//! Who does it: which program asks, with what it has begun, and what it does in one go.
//!
//! - [`runs`]: which processes are one tree, and in which session
//! - [`shells`]: whose effects are to be told
//! - [`sights`], [`bursts`]: what somebody has come by, and how much of it he changes at once
//! - [`goes`]: what one process does in one go
//! - [`acting`]: in which directory somebody acts; the rename of one waits

pub(super) mod acting;
pub(super) mod bursts;
pub(super) mod goes;
pub(super) mod runs;
pub(super) mod shells;
pub(super) mod sights;
