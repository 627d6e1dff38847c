//! The programs people and agents save files with (SAVE-PATTERNS), each by itself in a project of its own: a small edit
//! lands at once, a large one is one held change, however the program goes about it.
//!
//! What each must come to is not written here: the same program runs on a plain directory beside the project, and the
//! view, and lower once the change is confirmed, must be what that directory is then. [`saving`] has this oracle; the
//! tables of programs are in the files beside it, one row a program, two tests a row. A program that is not installed is
//! a failure: `scripts/check.sh` installs them all.

mod archives;
mod databases;
mod editors;
mod files;
mod formatters;
mod git;
pub mod saving;
mod scripts;
mod shells;
