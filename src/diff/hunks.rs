//! Hunks: the parts of a change that a person can confirm or discard one by one (SPEC §8), numbered from 1.

use super::lines::Lines;
use super::script::{self, Edit};
use std::ops::Range;

/// Unchanged lines shown around a change. Changes no further apart than twice this are one hunk, as in git.
pub const CONTEXT_LINES: usize = 3;

/// One hunk, context included. Starts and counts are those of its `@@` line: lines are counted from 1, and an empty side
/// starts at the line before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// From 1, in the order of the file.
    pub number: usize,
    pub old_start: usize,
    pub old_lines: usize,
    pub new_start: usize,
    pub new_lines: usize,
    /// The changes within the hunk, without context. Never empty.
    pub edits: Vec<Edit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no hunk {number}: the change has {count}")]
pub struct NoSuchHunk {
    pub number: usize,
    pub count: usize,
}

pub fn hunks(old: &[u8], new: &[u8]) -> Vec<Hunk> {
    hunks_of(&Lines::of(old), &Lines::of(new))
}

/// Returns the old content with only the hunks of these numbers applied: no hunks give `old`, all give `new`. Order and
/// repetition of the numbers do not matter.
pub fn apply_hunks(old: &[u8], new: &[u8], numbers: &[usize]) -> Result<Vec<u8>, NoSuchHunk> {
    let (old, new) = (Lines::of(old), Lines::of(new));
    let hunks = hunks_of(&old, &new);
    let known = 1..=hunks.len();
    if let Some(&number) = numbers.iter().find(|number| !known.contains(number)) {
        return Err(NoSuchHunk { number, count: hunks.len() });
    }
    let chosen = hunks.iter().filter(|hunk| numbers.contains(&hunk.number)).flat_map(|hunk| &hunk.edits);
    Ok(apply(&old, &new, chosen))
}

fn apply<'a>(old: &Lines, new: &Lines, edits: impl Iterator<Item = &'a Edit>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    for edit in edits {
        out.extend_from_slice(old.span(at..edit.old.start));
        out.extend_from_slice(new.span(edit.new.clone()));
        at = edit.old.end;
    }
    out.extend_from_slice(old.span(at..old.len()));
    out
}

pub(super) fn hunks_of(old: &Lines, new: &Lines) -> Vec<Hunk> {
    let edits = script::readable(old, new);
    in_hunks(&edits).zip(1..).map(|(edits, number)| hunk(old.len(), number, edits)).collect()
}

pub(super) fn in_hunks(edits: &[Edit]) -> impl Iterator<Item = &[Edit]> {
    edits.chunk_by(|above, below| below.old.start - above.old.end <= 2 * CONTEXT_LINES)
}

/// Both sides have the same number of unchanged lines around the edits, so the old side's context serves for both.
fn hunk(old_len: usize, number: usize, edits: &[Edit]) -> Hunk {
    let (first, last) = (&edits[0], &edits[edits.len() - 1]);
    let before = first.old.start.min(CONTEXT_LINES);
    let after = (old_len - last.old.end).min(CONTEXT_LINES);
    let old = first.old.start - before..last.old.end + after;
    let new = first.new.start - before..last.new.end + after;
    let start = |lines: &Range<usize>| lines.start + usize::from(!lines.is_empty());
    Hunk {
        number,
        old_start: start(&old),
        old_lines: old.len(),
        new_start: start(&new),
        new_lines: new.len(),
        edits: edits.to_vec(),
    }
}

impl Hunk {
    /// The old lines that the hunk shows, as indices from 0.
    pub(super) fn old_range(&self) -> Range<usize> {
        let start = self.old_start - usize::from(self.old_lines > 0);
        start..start + self.old_lines
    }
}
