//! ASK: the user's permission programs, which decide whether a change that is about to land may (SPEC §7 "hook").
//!
//! A [`Program`] is a command from the settings, resolved on loading to a file outside the project and its view. A
//! [`Runner`] asks programs a [`Question`], one after another, and returns an [`Answer`]; anything but a clear answer in
//! time means hold. Nothing here knows a view, takes one of its locks, or decides what an answer leads to.
//!
//! ```text
//!   daemon ──── question, then an open pipe ────► supervisor ──► program ──► whatever it starts
//!     ◄──────────── what came of it ─────────────     │
//!                                                     └─ at the answer, at the limit, or when the daemon is gone:
//!                                                        SIGKILL to all of them, whatever session they moved to
//! ```
//! Each run has a supervisor of its own, which is this program once more ([`supervise`]). Orphans below it are reparented
//! to it and not to init (`PR_SET_CHILD_SUBREAPER`), so it can end every one of them without ever signalling a reused
//! pid: they are its own children, and it has not reaped them. A pid namespace would do the same, but only for root.

mod answer;
mod program;
mod question;
mod runner;
mod supervisor;

pub use answer::Answer;
pub use program::{Program, ProgramError};
pub use question::{Counts, Question, Tier};
pub use runner::Runner;
pub use supervisor::{is_supervisor, supervise};
