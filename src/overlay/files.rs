//! What a program does to a file, up to the moment at which it is judged.
//!
//! - [`open`], [`content`], [`close`], and [`handles`]: what all handles on one file share
//! - [`passed`]: a file that passes
//! - [`copy_up`]: how a file's content gets to upper; [`heritage`]: what a new entry takes over from its directory
//! - [`comes_back`]: a file that a person takes from the view while it is being written
//! - [`witness`]: which program writes; [`permission`]: whether the caller may open what is at the path by now
//! - [`attributes`]: how they are reported; [`set_attributes`] and [`xattrs`]: how they change, each at an [`inode`];
//!   [`looks_change`]: mode, owner and xattrs of what is held, or is going to be; [`set_id`]: who may keep set-id bits
//! - [`reading`]: a file as the view shows it; [`passable`]: whether every user may read it
//! - [`patch`]: several files written at one moment
//! - [`spent`]: what is freed only after the caller has its answer

pub(super) mod attributes;
mod close;
mod comes_back;
mod content;
pub(super) mod copy_up;
pub(super) mod handles;
mod heritage;
pub(super) mod inode;
mod looks_change;
pub(super) mod open;
pub(super) mod passable;
pub(super) mod passed;
pub(super) mod patch;
mod permission;
pub(super) mod reading;
pub(super) mod set_attributes;
mod set_id;
pub(super) mod spent;
pub(super) mod witness;
pub(super) mod xattrs;
