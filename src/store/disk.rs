//! Where everything stands on disk, and whether that can be relied on.
//!
//! - [`layout`]: the state directory and its lock; [`places`] for content, which may be directories [`elsewhere`]
//! - [`device`] and [`copied`]: lower has another device number, or is a copy; [`boot`]: whether the power went;
//!   [`generation`]: whether the database is an older one
//! - [`renames`]: what the file system must be able to do
//! - [`room`] that content takes, and the [`reserve`] for when there is none

mod boot;
pub(super) mod copied;
mod device;
mod elsewhere;
pub(super) mod generation;
pub(super) mod layout;
mod places;
pub(super) mod renames;
pub(super) mod reserve;
pub(super) mod room;
