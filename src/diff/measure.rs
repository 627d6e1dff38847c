//! The facts that a verdict about size is based on. Knows no limits that a user can set.

use super::hunks::in_hunks;
use super::lines::Lines;
use super::script::{self, Edit};
use crate::model::{common_prefix, common_suffix};

/// The size of a change. Lines end at `\n` only; a modified line is one insertion and one deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
    pub new_lines: u64,
    /// Sums up, for each run of changed lines, the larger side's bytes without the prefix and suffix that both sides
    /// share. So one changed word in a giant line counts as a word.
    pub changed_bytes: u64,
    /// Bytes of the old content: what `changed_bytes` is compared with, as changed lines are with `old_lines`.
    pub total_bytes: u64,
    /// How many parts a person can decide about. Unknown if the search gave up: the hunks shown are then found otherwise.
    pub hunks: Option<u64>,
    /// The search gave up: the file counts as wholly changed, though the two sides may share lines.
    pub bounded: bool,
}

/// The size of a change as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub insertions: u64,
    pub deletions: u64,
    /// Lines modified: the smaller of insertions and deletions (SPEC §5).
    pub modified: u64,
}

/// Measures exactly, by a shortest edit script, or counts everything as changed past a bound on the work (see
/// `script.rs`). Depends on nothing but the two contents.
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
    /// Lines inserted plus lines deleted: the number compared with floor, ceiling and ratio.
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
