//! What a program does to a file, up to the moment at which it is judged.
//!
//! - [`open`], [`content`], [`close`], and [`handles`]: what handles on one file share
//! - [`passed`]: a file that nobody judges
//! - [`copy_up`]: content gets a place in upper; [`heritage`]: what a new entry takes over from its directory
//! - [`comes_back`]: what a person took from the view while it is written to
//! - [`witness`]: who writes; [`permission`]: whether who asks may, of what is there by now
//! - [`attributes`] (told), [`set_attributes`] and [`xattrs`] (changed, each at an [`inode`]), [`looks_change`]: mode and
//!   owner of what waits, or is to
//! - [`reading`]: a file as the view shows it; [`passable`]: whether all the world may read it
//! - [`patch`]: several files written at one moment
//! - [`spent`]: what is let go once nobody waits

pub(super) mod attributes;
mod close;
mod comes_back;
mod content;
pub(super) mod copy_up;
pub(super) mod handles;
mod heritage;
mod inode;
mod looks_change;
pub(super) mod open;
pub(super) mod passable;
pub(super) mod passed;
pub(super) mod patch;
mod permission;
pub(super) mod reading;
pub(super) mod set_attributes;
pub(super) mod spent;
pub(super) mod witness;
pub(super) mod xattrs;
