//! Finds the daemon that answers for a project, and asks it.
//!
//! Owns how requests travel: through the view's control file, through the socket in the state directory, or, with
//! no mount, through a function that works on the state directory itself. Never decides what a request means and
//! prints nothing. Begin with [`Client::open`].

mod ask;
mod mounts;
mod place;
mod reach;
mod target;
#[cfg(test)]
mod tests;

pub use ask::{Client, ClientError, Offline};
pub use mounts::{DeadMount, fettle_mounts};
pub use place::{Place, find};
pub use reach::{Reach, reach};
pub use target::{OutsideProject, path_of, target};
