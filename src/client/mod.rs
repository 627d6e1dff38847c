//! Finds the daemon that answers for a project, and asks it.
//!
//! This layer owns how requests travel: through the view's control file, through the socket in the state directory, or,
//! with no mount, through a function that works on the state directory itself. It also runs the command of a check,
//! between its questions ([`Check`]). It never decides what a request means and prints nothing.
//! Begin with [`Client::open`].

mod ask;
mod check;
mod command;
mod mounts;
mod patience;
mod place;
mod reach;
mod target;
#[cfg(test)]
mod tests;

pub use ask::{Client, ClientError, Offline};
pub use check::{Check, Checked, HAS_MOVED};
pub use command::{Group, PROGRESS_EVERY, Ran};
pub use mounts::{DeadMount, fettle_mounts, projects_elsewhere};
use mounts::{is_root_of, project_of, view_at};
pub use patience::patiently;
pub use place::{Place, find, project_of_state};
pub use reach::{Reach, reach};
pub use target::{NotInProject, path_of, target};

use crate::protocol::{ErrorBody, ErrorCode};

/// The reply does not fit its request.
pub fn other_answer() -> ErrorBody {
    let message = "the daemon answered another question; are its version and this program's the same?";
    ErrorBody::new(ErrorCode::Io, message)
}
