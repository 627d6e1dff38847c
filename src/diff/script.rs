//! The edit script between two contents: which runs of lines replace which.
//!
//! It is a shortest one, found by E. W. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), so that the
//! count that decides a verdict depends on no library's heuristics. Lines that only one side has are set aside before the
//! search: they are in no common subsequence, so the result stays exact, and files that share little cost little.
//!
//! The search is bounded by counting its steps, never by a clock. Past the bound [`exact`] gives up, the verdict counts
//! the file as wholly changed, and [`readable`] asks `similar`, which is faster there because it is less exact. Past a
//! further bound it replaces the whole content.

use super::lines::Lines;
use foldhash::{HashMap, HashMapExt};
use std::ops::Range;

/// A run of old lines replaced by a run of new ones, as indices from 0. One of them may be empty, not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub old: Range<usize>,
    pub new: Range<usize>,
}

/// The most edits the search follows, among the lines that both sides have. Twenty-five times the default ceiling; while
/// it runs, the search keeps half the square of this in memory, four bytes each (8 MiB).
pub(super) const EDITS_MAX: usize = 2_048;

/// The most steps (diagonals tried and lines compared): enough to follow [`EDITS_MAX`] edits, unless long runs of equal
/// lines are read again on many diagonals, as in periodic files. At 3 to 6 ns each that is 10 to 20 ms.
const STEPS_MAX: usize = 3_000_000;

/// The most lines of both sides together for which `similar` is asked: its time grows faster than the file, to a second
/// at 200 000 shuffled lines. Past this the whole file is one replacement; nobody reads such a diff by eye.
const APPROXIMATE_LINES_MAX: usize = 50_000;

/// Returns a shortest script, or `None` past the bound.
pub(super) fn exact(old: &Lines, new: &Lines) -> Option<Vec<Edit>> {
    let (old_middle, new_middle) = strip_common_ends(old, new);
    let (old_shared, new_shared) = shared_lines(old, old_middle.clone(), new, new_middle.clone());
    let kept = search(&old_shared.ids, &new_shared.ids)?;
    let kept = kept.into_iter().map(|(x, y)| (old_shared.at[x], new_shared.at[y]));
    Some(slide(old, new, edits_between(kept, old_middle, new_middle)))
}

/// Returns a script for people to read: the exact one, or past the bound an approximate one.
pub(super) fn readable(old: &Lines, new: &Lines) -> Vec<Edit> {
    exact(old, new).unwrap_or_else(|| {
        if old.len() + new.len() <= APPROXIMATE_LINES_MAX { approximate(old, new) } else { whole(old, new) }
    })
}

/// Replaces all lines of one side by all of the other.
pub(super) fn whole(old: &Lines, new: &Lines) -> Vec<Edit> {
    edits_between(std::iter::empty(), 0..old.len(), 0..new.len())
}

pub(super) fn approximate(old: &Lines, new: &Lines) -> Vec<Edit> {
    let old_lines: Vec<_> = old.iter(0..old.len()).collect();
    let new_lines: Vec<_> = new.iter(0..new.len()).collect();
    let kept = similar::capture_diff_slices(similar::Algorithm::Myers, &old_lines, &new_lines)
        .into_iter()
        .filter(|op| op.tag() == similar::DiffTag::Equal)
        .flat_map(|op| op.old_range().zip(op.new_range()));
    slide(old, new, edits_between(kept, 0..old.len(), 0..new.len()))
}

fn strip_common_ends(old: &Lines, new: &Lines) -> (Range<usize>, Range<usize>) {
    let start = common_run(old.iter(0..old.len()), new.iter(0..new.len()));
    let backwards = |lines: &Lines| (start..lines.len()).rev();
    let end = common_run(backwards(old).map(|at| old.line(at)), backwards(new).map(|at| new.line(at)));
    (start..old.len() - end, start..new.len() - end)
}

/// How many lines are equal, from the first on.
fn common_run<'a>(old: impl Iterator<Item = &'a [u8]>, new: impl Iterator<Item = &'a [u8]>) -> usize {
    old.zip(new).take_while(|(old, new)| old == new).count()
}

/// The lines of one side that the other has too: ids, equal where lines are, and the index each line came from.
struct Shared {
    ids: Vec<u32>,
    at: Vec<usize>,
}

fn shared_lines(old: &Lines, old_middle: Range<usize>, new: &Lines, new_middle: Range<usize>) -> (Shared, Shared) {
    let mut ids: HashMap<&[u8], u32> = HashMap::with_capacity(old_middle.len());
    let mut old_ids = Vec::with_capacity(old_middle.len());
    for line in old.iter(old_middle.clone()) {
        let fresh = ids.len() as u32;
        old_ids.push(*ids.entry(line).or_insert(fresh));
    }
    let mut in_new = vec![false; ids.len()];
    let mut new_shared = Shared { ids: Vec::new(), at: Vec::new() };
    for at in new_middle {
        if let Some(&id) = ids.get(new.line(at)) {
            in_new[id as usize] = true;
            new_shared.ids.push(id);
            new_shared.at.push(at);
        }
    }
    let (old_at, old_ids) = old_middle.zip(old_ids).filter(|&(_, id)| in_new[id as usize]).unzip();
    (Shared { ids: old_ids, at: old_at }, new_shared)
}

/// Returns the pairs of a longest common subsequence, in order, or `None` past the bound.
fn search(old: &[u32], new: &[u32]) -> Option<Vec<(usize, usize)>> {
    if old.len().abs_diff(new.len()) > EDITS_MAX {
        return None;
    }
    let mut reach = Reach::begin();
    let mut steps = 0;
    for d in 0..=EDITS_MAX.min(old.len() + new.len()) {
        let mut row = Vec::with_capacity(d + 3);
        row.push(NOWHERE);
        for (i, above) in reach.above(d).array_windows().enumerate() {
            let start = arrive(above);
            let run = run_length(old, new, start, start + d - 2 * i);
            let x = start + run;
            row.push(x as i32);
            if x == old.len() && x + d - 2 * i == new.len() {
                reach.rows.push(row);
                return Some(reach.walk_back(d, i));
            }
            steps += 1 + run;
            if steps > STEPS_MAX {
                return None;
            }
        }
        row.push(NOWHERE);
        reach.rows.push(row);
    }
    None
}

/// How many lines are equal from here on. A path may overshoot an end by the edits it has left; nothing is equal there.
fn run_length(old: &[u32], new: &[u32], x: usize, y: usize) -> usize {
    let mut run = 0;
    // An iterator over both tails costs twice as much where most runs are empty.
    while x + run < old.len() && y + run < new.len() && old[x + run] == new[y + run] {
        run += 1;
    }
    run
}

/// How far into the old side (`x`) each diagonal gets with a given number of edits.
///
/// Invariant: row `d` (after `d` edits) has `d + 1` entries; entry `i` is the diagonal `x - y = 2 i - d`. Each row stands
/// between two [`NOWHERE`], and above the first is an empty one, so that every entry has two neighbours above it.
struct Reach {
    rows: Vec<Vec<i32>>,
}

/// Loses against every real entry, and a deletion from it arrives at 0.
const NOWHERE: i32 = -1;

/// Where a path enters a diagonal: by a deletion from the left neighbour or an insertion from the right
/// one, whichever gets further.
fn arrive(&[left, right]: &[i32; 2]) -> usize {
    (left + 1).max(right) as usize
}

impl Reach {
    fn begin() -> Self {
        Self { rows: vec![vec![NOWHERE; 2]] }
    }

    /// The row above row `d`.
    fn above(&self, d: usize) -> &[i32] {
        &self.rows[d]
    }

    /// Returns the pairs kept on the way to the end of diagonal `i` of row `d`.
    fn walk_back(&self, mut d: usize, mut i: usize) -> Vec<(usize, usize)> {
        let mut kept = Vec::new();
        loop {
            let above = [self.above(d)[i], self.above(d)[i + 1]];
            let run = arrive(&above)..self.above(d + 1)[i + 1] as usize;
            kept.extend(run.rev().map(|x| (x, x + d - 2 * i)));
            if d == 0 {
                break;
            }
            d -= 1;
            i -= usize::from(above[0] >= above[1]);
        }
        kept.reverse();
        kept
    }
}

/// Returns what lies between the kept pairs.
fn edits_between(
    kept: impl Iterator<Item = (usize, usize)>,
    old_middle: Range<usize>,
    new_middle: Range<usize>,
) -> Vec<Edit> {
    let (mut old_at, mut new_at) = (old_middle.start, new_middle.start);
    let mut edits = Vec::new();
    for (x, y) in kept.chain([(old_middle.end, new_middle.end)]) {
        if x > old_at || y > new_at {
            edits.push(Edit { old: old_at..x, new: new_at..y });
        }
        (old_at, new_at) = (x + 1, y + 1);
    }
    edits
}

/// Moves pure insertions and deletions down as far as equal lines allow, and joins those that meet. The counts stay the
/// same in fewer places, and an added function begins at its own first line, as in git.
fn slide(old: &Lines, new: &Lines, edits: Vec<Edit>) -> Vec<Edit> {
    // Collected from last to first, because each may meet the one below it.
    let mut slid: Vec<Edit> = Vec::with_capacity(edits.len());
    for mut edit in edits.into_iter().rev() {
        loop {
            let below = slid.last().map_or(old.len(), |below| below.old.start);
            slide_down(old, new, &mut edit, below);
            match slid.pop_if(|below| below.old.start == edit.old.end) {
                Some(met) => edit = Edit { old: edit.old.start..met.old.end, new: edit.new.start..met.new.end },
                None => break,
            }
        }
        slid.push(edit);
    }
    slid.reverse();
    slid
}

fn slide_down(old: &Lines, new: &Lines, edit: &mut Edit, below: usize) {
    while edit.old.end < below {
        let repeats = match (edit.old.is_empty(), edit.new.is_empty()) {
            (true, false) => new.line(edit.new.start) == new.line(edit.new.end),
            (false, true) => old.line(edit.old.start) == old.line(edit.old.end),
            (true, true) | (false, false) => false,
        };
        if !repeats {
            return;
        }
        *edit = Edit { old: edit.old.start + 1..edit.old.end + 1, new: edit.new.start + 1..edit.new.end + 1 };
    }
}
