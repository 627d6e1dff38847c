//! The facts a verdict about size is made of. Knows no limits that a user can set.

use super::ends::{common_prefix, common_suffix};
use super::hunks::in_hunks;
use super::lines::Lines;
use super::script::{self, Edit};

/// How much a change changes. Lines end at `\n` only; a modified line is one insertion and one deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
    pub new_lines: u64,
    /// For each run of changed lines, what is left of it without the prefix and suffix its two sides have in common,
    /// the larger side; summed. So one word in a giant line counts as a word.
    pub changed_bytes: u64,
    /// Bytes of the old content, as the line ratio is over old lines.
    pub total_bytes: u64,
    /// In how many parts a person can decide. Unknown where the search gave up: what is shown then is found otherwise.
    pub hunks: Option<u64>,
    /// The search gave up: the file counts as wholly changed, though it may share lines.
    pub bounded: bool,
}

/// What a person is told of a change's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub insertions: u64,
    pub deletions: u64,
    /// Lines modified: as many as were both deleted and inserted (SPEC §5).
    pub modified: u64,
}

/// Measures exactly, by a shortest edit script, or as wholly changed past a bound on the work (see `script.rs`). Depends
/// on nothing but the two contents.
pub fn measure(old: &[u8], new: &[u8]) -> Measure {
    let (old_lines, new_lines) = (Lines::of(old), Lines::of(new));
    match script::exact(&old_lines, &new_lines) {
        Some(edits) => tally(&old_lines, &new_lines, &edits),
        None => Measure {
            bounded: true,
            hunks: None,
            ..tally(&old_lines, &new_lines, &script::whole(&old_lines, &new_lines))
        },
    }
}

fn tally(old: &Lines, new: &Lines, edits: &[Edit]) -> Measure {
    Measure {
        insertions: edits.iter().map(|edit| edit.new.len() as u64).sum(),
        deletions: edits.iter().map(|edit| edit.old.len() as u64).sum(),
        old_lines: old.len() as u64,
        new_lines: new.len() as u64,
        changed_bytes: edits.iter().map(|edit| changed_bytes(old, new, edit)).sum(),
        total_bytes: old.span(0..old.len()).len() as u64,
        hunks: Some(in_hunks(edits).count() as u64),
        bounded: false,
    }
}

fn changed_bytes(old: &Lines, new: &Lines, edit: &Edit) -> u64 {
    let (old, new) = (old.span(edit.old.clone()), new.span(edit.new.clone()));
    let start = common_prefix(old, new);
    let end = common_suffix(&old[start..], &new[start..]);
    (old.len().max(new.len()) - start - end) as u64
}

impl Measure {
    /// Lines inserted and deleted: what floor, ceiling and ratio are compared with.
    pub fn changed(&self) -> u64 {
        self.insertions + self.deletions
    }

    pub fn summary(&self) -> Summary {
        let modified = self.insertions.min(self.deletions);
        Summary { insertions: self.insertions, deletions: self.deletions, modified }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "+{} -{} ~{}", self.insertions, self.deletions, self.modified)
    }
}
