//! Compares contents: bytes in, numbers or text out.
//!
//! Begin with [`measure`] (the basis of a verdict), [`hunks`] (what a person confirms one by one), [`unified`] (what a
//! person reads), [`merge`] and [`Blame`]. All five use one edit script (`script.rs`), so their numbers agree. [`delta`]
//! is what a reader with an earlier version is sent, [`apply_anchored`] applies a patch. Nothing here does I/O, reads a
//! clock or knows a limit that a user can set.

mod binary;
mod blame;
mod delta;
mod hunks;
mod lines;
mod measure;
mod merge;
mod patch;
mod quote;
mod script;
mod side;
#[cfg(test)]
mod tests;
mod unified;

pub use blame::Blame;
pub use delta::{DELTA_HUNKS_MAX, DELTA_PERCENT_MAX, Delta, delta};
pub use hunks::{CONTEXT_LINES, Hunk, NoSuchHunk, apply_hunks, hunks};
pub use measure::{Measure, Summary, measure};
pub use merge::{Merge, merge};
pub use patch::{Anchored, Unpatched, apply_anchored};
pub use quote::quote_path;
pub use script::Edit;
pub use side::{Side, TEXT_BYTES_MAX, classify, classify_size};
pub use unified::{FileContent, FileDiff, FileSide, Unreadable, unified};
