//! What a program does to names.
//!
//! - [`make`], [`link`], [`unlink`], [`rmdir`], and [`parting`]: a change loses one of several names
//! - [`rename`]: which kind of rename it is, and renames to a free name; [`rename_over`]: over a file; [`exchange`]
//! - [`take_over`]: a saved temporary file takes its target's place below
//! - [`removal`]: what is kept of a held change that goes or is written over
//! - [`carry`]: what of a renamed directory must be judged; [`relocate`]: what moves along, journalled ([`upper_names`]:
//!   what waits in it, [`renamed`]: which node stands for which name)
//! - [`structure`]: directories and nodes that lower cannot have yet; [`stand_in`]: directories removed below, kept in
//!   the view for what is held in them

pub(super) mod carry;
mod exchange;
mod link;
mod make;
mod parting;
mod relocate;
mod removal;
pub(super) mod rename;
pub(super) mod rename_over;
mod renamed;
mod rmdir;
mod stand_in;
mod structure;
mod take_over;
mod unlink;
mod upper_names;
