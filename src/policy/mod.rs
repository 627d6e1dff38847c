//! DECIDE: whether what a program wrote lands, is held or is denied. Facts in, verdict out.
//!
//! Nothing here opens a file or reads the environment or a clock: callers pass texts, maps and paths. [`rules`] says what
//! a path is (judged, passed, gated), [`ignored`] which directories git ignores, [`settings`] what the user asked for.

pub mod ignored;
pub mod risk;
pub mod rules;
pub mod settings;
pub mod tier;
