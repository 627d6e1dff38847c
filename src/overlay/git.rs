//! What git has of the project.
//!
//! - [`tracked`]: what never passes by being ignored, by the index, or by HEAD at the mount
//! - [`head`]: what is held and committed
//! - [`repository`]: how both open it, and how long they wait

mod head;
pub(super) mod repository;
pub(super) mod tracked;
