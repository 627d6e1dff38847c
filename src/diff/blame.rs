//! With which of its versions each line of a content came.
//!
//! Versions are given one after the other, the oldest first, and only the last is kept: a history is as long as it likes.
//! A line that a version has from the one before keeps what it came with; by the same edit script as everywhere, so that
//! what a diff shows as inserted is what is told to have come then.

use super::lines::Lines;
use super::script;

/// A content, and with what each of its lines came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame<T> {
    content: Vec<u8>,
    /// Invariant: one for each line of `content`.
    came_with: Vec<T>,
}

impl<T: Copy> Blame<T> {
    /// All lines of the oldest version came with `origin`, or before it.
    pub fn begin(content: Vec<u8>, origin: T) -> Self {
        let came_with = vec![origin; Lines::of(&content).len()];
        Self { content, came_with }
    }

    /// The next version: what is new in it came with `origin`.
    pub fn then(self, content: Vec<u8>, origin: T) -> Self {
        let (old, new) = (Lines::of(&self.content), Lines::of(&content));
        let mut came_with = Vec::with_capacity(new.len());
        let mut at = 0;
        for edit in script::readable(&old, &new) {
            came_with.extend_from_slice(&self.came_with[at..edit.old.start]);
            came_with.extend(edit.new.map(|_| origin));
            at = edit.old.end;
        }
        came_with.extend_from_slice(&self.came_with[at..]);
        Self { content, came_with }
    }

    /// Each line of the last version, with its newline if it has one.
    pub fn lines(&self) -> impl Iterator<Item = (&[u8], T)> {
        let lines = Lines::of(&self.content);
        let lines: Vec<&[u8]> = lines.iter(0..lines.len()).collect();
        lines.into_iter().zip(self.came_with.iter().copied())
    }
}
