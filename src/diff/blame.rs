//! Tells which version of a content each of its lines came with.
//!
//! Versions are passed in one by one, the oldest first, and only the last is kept, so a history may be of any length. A
//! line that a version shares with the one before keeps its origin. The edit script is the same as everywhere, so lines
//! that a diff shows as inserted are attributed to that version.

use super::lines::Lines;
use super::script;

/// A content, and the origin of each of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame<T> {
    content: Vec<u8>,
    /// Invariant: one for each line of `content`.
    came_with: Vec<T>,
}

impl<T: Copy> Blame<T> {
    /// Takes the oldest version: all its lines came with `origin`, or before it.
    pub fn begin(content: Vec<u8>, origin: T) -> Self {
        let came_with = vec![origin; Lines::of(&content).len()];
        Self { content, came_with }
    }

    /// Takes the next version: the lines that are new in it came with `origin`.
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

    /// Returns each line of the last version, with its newline if it has one.
    pub fn lines(&self) -> impl Iterator<Item = (&[u8], T)> {
        let lines = Lines::of(&self.content);
        let lines: Vec<&[u8]> = lines.iter(0..lines.len()).collect();
        lines.into_iter().zip(self.came_with.iter().copied())
    }
}
