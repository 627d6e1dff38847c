//! fettlefs: a FUSE overlay that reviews what programs write in a project before it lands.
//!
//! The layers, inner to outer; a file names only layers above its own in this list (`tests/it/tidy.rs` keeps it so).
//! `docs/ARCHITECTURE.md` says what each owns and never does.

pub mod model;

pub mod diff;

pub mod policy;

pub mod protocol;

pub mod sys;

pub mod store;

pub mod hooks;

pub mod overlay;

pub mod control;

pub mod fuse;

pub mod client;

pub mod mcp;

pub mod ui;

pub mod cli;
