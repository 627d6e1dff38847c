//! What git has of the project.
//!
//! - [`tracked`]: what must not pass by being ignored, because the index, or HEAD at the mount, has it
//! - [`head`]: what is held and committed already
//! - [`repository`]: how both open the repository, and how long they wait

mod head;
pub(super) mod repository;
pub(super) mod tracked;
