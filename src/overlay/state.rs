//! What there is, and what is known of it: the parts of [`State`](super::State), and how a path is looked up in them.
//!
//! - [`nodes`]: inodes and their names; [`lost_names`]: names that a node has lost below
//! - [`uppers`]: what upper has
//! - [`lookup`]: what stands at a path, from lower and upper together
//! - [`past`]: what paths had when the session began, and where that is now; [`anchors`]: what the view asks about it
//! - [`times`]: times that are newer in the view than below
//! - [`windows`]: what a path had before the first of several short writes
//! - [`recent`]: what was known of paths a moment ago, kept true over our own renames
//! - [`rules`]: how a path is to be treated; [`limits`]: how much programs may take

mod anchors;
pub(super) mod limits;
pub(super) mod lookup;
mod lost_names;
pub(super) mod nodes;
pub(super) mod past;
mod recent;
pub(super) mod rules;
mod times;
pub(super) mod uppers;
pub(super) mod windows;
