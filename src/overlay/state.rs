//! What there is, and what is known of it: the parts of [`State`](super::State), and how a path is looked up in them.
//!
//! - [`nodes`]: inodes and their names; [`lost_names`]: which of several a node has lost below
//! - [`uppers`]: what upper has
//! - [`lookup`]: what stands at a path, by both
//! - [`past`]: what paths had when the session began, and where that is now; [`anchors`]: what the view asks of it
//! - [`windows`]: what a path had before the first of several short writes
//! - [`recent`]: what was known of paths a moment ago, kept true over our own renames
//! - [`rules`]: what is to become of a path; [`limits`]: what may be taken

mod anchors;
pub(super) mod limits;
pub(super) mod lookup;
mod lost_names;
pub(super) mod nodes;
pub(super) mod past;
mod recent;
pub(super) mod rules;
pub(super) mod uppers;
pub(super) mod windows;
