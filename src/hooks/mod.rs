//! ASK: the user's permission programs, which say of a change that is about to land whether it may (SPEC §7 "hook").
//!
//! A [`Program`] is what settings name, resolved to a file outside the project and its view when they are loaded. A
//! [`Runner`] asks programs a [`Question`], one after the other, and gives an [`Answer`]; whatever is not a clear answer
//! in time means hold. Nothing here knows a view, takes a lock of one, or decides what an answer leads to.
//!
//! ```text
//!   daemon ──── question, then an open pipe ────► supervisor ──► program ──► whatever it starts
//!     ◄──────────── what came of it ─────────────     │
//!                                                     └─ at the answer, at the limit, or when the daemon is gone:
//!                                                        SIGKILL to all of them, whatever session they moved to
//! ```
//! Each run has a supervisor of its own, which is this program once more ([`supervise`]). Orphans below it come to it and
//! not to init (`PR_SET_CHILD_SUBREAPER`), so that it can end every one of them without ever naming a pid that may be
//! another's by now: they are its own children, and it has not waited for them. A pid namespace would do the same, but
//! only for root.

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
