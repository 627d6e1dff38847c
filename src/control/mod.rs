//! ANSWER: what people and programs ask of a project, through any of its doors.
//!
//! [`serve`](serve()) answers one request; [`rights`] alone decides who may ask for what. Three doors lead to it: the
//! control file and its neighbours in the view's virtual directory ([`Desk`]), a socket in the state directory
//! ([`Socket`]), and a plain call by a program that holds the project's lock without a mount. Nothing here looks at a
//! kernel's request or draws what a person sees.

mod answers;
mod backups;
mod blame;
mod check;
mod conversation;
mod desk;
mod effects;
mod files;
mod filter;
mod find;
mod held;
mod memory;
mod patch;
mod project;
mod read;
mod requests;
mod rights;
mod runs;
mod serve;
mod socket;

pub use answers::project_file;
pub use desk::{DESK_ROOT, Desk, VirtualMeta};
pub use project::{Mounted, Project, check_nothing_over};
pub use requests::Requests;
pub use rights::{Asker, check_in_no_run, check_outside};
pub use serve::{Served, serve};
pub use socket::Socket;
