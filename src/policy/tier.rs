//! Decides by size: the table of SPEC §5, row by row. Rules and the other reasons come first, elsewhere.

use crate::diff::{Measure, Side, classify, measure};
use crate::model::Reason;

/// The user's settings for how much may land unreviewed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Changed lines that land whatever the file's size.
    pub floor: u64,
    /// Changed lines that are held whatever the file's size.
    pub ceil: u64,
    /// The share of the old content that may change, 0 to 1.
    pub ratio: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { floor: 10, ceil: 80, ratio: 0.40 }
    }
}

/// Few changed lines of a reasonable length stay below this; more than this means a giant line (SPEC §5).
pub const HUNK_BYTES_MAX: u64 = 16 * 1024;

/// The deletion of a file that cannot be diffed is judged by its bytes alone (SPEC §5).
pub const UNREAD_DELETION_BYTES_MAX: u64 = 16 * 1024;

/// Everything the verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The new content equals, byte for byte, what the project has now; for a deletion, the project has nothing there.
    pub identical: bool,
    /// Absent only if the path did not exist and has no anchor, so that a deletion of it loses nothing.
    pub old: Side,
    pub old_bytes: u64,
    /// Absent for a deletion.
    pub new: Side,
    /// Needed if the old side is text and the new one text or absent; the change is held without it.
    pub measure: Option<Measure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing happened: no write, no backup.
    Unchanged,
    Land(LandNote),
    Hold(Reason),
}

/// Why a change may land, as reported with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandNote {
    NewFile,
    Small,
    /// The old side, [`Side::Binary`] or [`Side::Large`], could not be compared by lines.
    DiffSkipped(Side),
}

impl Facts {
    /// Facts about contents in memory; large contents may stay on disk, and are then described field by field.
    pub fn of(old: Option<&[u8]>, new: Option<&[u8]>) -> Self {
        let (old_side, new_side) = (classify(old), classify(new));
        let comparable = old_side == Side::Text && matches!(new_side, Side::Text | Side::Absent);
        Self {
            identical: old == new,
            old: old_side,
            old_bytes: old.map_or(0, |content| content.len() as u64),
            new: new_side,
            measure: comparable.then(|| measure(old.unwrap_or_default(), new.unwrap_or_default())),
        }
    }

    fn is_deletion(&self) -> bool {
        self.new == Side::Absent
    }
}

/// Goes through the rows of SPEC §5 in their order.
pub fn judge(facts: &Facts, thresholds: &Thresholds) -> Verdict {
    if facts.identical {
        return Verdict::Unchanged;
    }
    match facts.old {
        Side::Absent => judge_without_old(facts),
        Side::Binary | Side::Large => judge_unread(facts),
        Side::Text => judge_text(facts, thresholds),
    }
}

fn judge_without_old(facts: &Facts) -> Verdict {
    Verdict::Land(if facts.is_deletion() { LandNote::Small } else { LandNote::NewFile })
}

fn judge_unread(facts: &Facts) -> Verdict {
    match facts.is_deletion() && facts.old_bytes > UNREAD_DELETION_BYTES_MAX {
        true => Verdict::Hold(Reason::Size),
        false => Verdict::Land(LandNote::DiffSkipped(facts.old)),
    }
}

fn judge_text(facts: &Facts, thresholds: &Thresholds) -> Verdict {
    match facts.new {
        // One stray byte must not switch the review off.
        Side::Binary | Side::Large => Verdict::Hold(Reason::Risk),
        Side::Text | Side::Absent => match &facts.measure {
            Some(measure) => judge_measure(measure, thresholds),
            None => Verdict::Hold(Reason::Size),
        },
    }
}

fn judge_measure(measure: &Measure, thresholds: &Thresholds) -> Verdict {
    if !is_small(measure, thresholds) {
        Verdict::Hold(Reason::Size)
    } else if has_giant_line(measure, thresholds) {
        Verdict::Hold(Reason::Bytes)
    } else {
        Verdict::Land(LandNote::Small)
    }
}

fn is_small(measure: &Measure, thresholds: &Thresholds) -> bool {
    let changed = measure.changed();
    // A bounded count is an upper bound, so a change at or below the floor by that count lands rightly.
    changed <= thresholds.floor
        || (changed < thresholds.ceil && !measure.bounded && !exceeds(changed, measure.old_lines, thresholds.ratio))
}

fn has_giant_line(measure: &Measure, thresholds: &Thresholds) -> bool {
    measure.changed_bytes > HUNK_BYTES_MAX && exceeds(measure.changed_bytes, measure.total_bytes, thresholds.ratio)
}

/// The precision of a ratio. Integers compare exactly, where 0.40 as a float is a little off.
const RATIO_UNITS: u128 = 1_000_000_000;

/// Whether `part` is more than `ratio` of `total`; never if `total` is 0 (SPEC §5: an empty old file has ratio 0).
fn exceeds(part: u64, total: u64, ratio: f64) -> bool {
    let ratio_units = (ratio * RATIO_UNITS as f64).round() as u128;
    total > 0 && u128::from(part) * RATIO_UNITS > u128::from(total) * ratio_units
}

#[cfg(test)]
mod tests;
