//! Three-way merge by lines. Edits that overlap or touch conflict unless both sides made the same edit, as in git.

use super::lines::Lines;
use super::script::{self, Edit};
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merge {
    Clean(Vec<u8>),
    /// The conflicting places, for people: the line in `ours`, then both versions and the base between markers.
    Conflict {
        hunks: String,
    },
}

/// Merges the changes that `ours` and `theirs` each made to `base`. In a confirm, `ours` is the project as it is now and
/// `theirs` the held content (SPEC §9).
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Merge {
    if ours == theirs || base == theirs {
        return Merge::Clean(ours.to_vec());
    }
    if base == ours {
        return Merge::Clean(theirs.to_vec());
    }
    let sides = Sides { base: Lines::of(base), ours: Lines::of(ours), theirs: Lines::of(theirs) };
    sides.merge()
}

struct Sides<'a> {
    base: Lines<'a>,
    ours: Lines<'a>,
    theirs: Lines<'a>,
}

/// A run of base lines that at least one side changed, and what each side has there.
struct Region {
    base: Range<usize>,
    ours: Range<usize>,
    theirs: Range<usize>,
}

impl Sides<'_> {
    fn merge(&self) -> Merge {
        let (mut out, mut conflicts) = (Vec::new(), Vec::new());
        let mut at = 0;
        for region in self.regions() {
            out.extend_from_slice(self.base.span(at..region.base.start));
            match self.resolve(&region) {
                Some(content) => out.extend_from_slice(content),
                None => self.render(&region, &mut conflicts),
            }
            at = region.base.end;
        }
        out.extend_from_slice(self.base.span(at..self.base.len()));
        if conflicts.is_empty() {
            Merge::Clean(out)
        } else {
            Merge::Conflict { hunks: String::from_utf8_lossy(&conflicts).into_owned() }
        }
    }

    fn regions(&self) -> Vec<Region> {
        let ours = script::readable(&self.base, &self.ours);
        let theirs = script::readable(&self.base, &self.theirs);
        let mut touched: Vec<Range<usize>> = ours.iter().chain(&theirs).map(|edit| edit.old.clone()).collect();
        touched.sort_by_key(|range| (range.start, range.end));
        touched.dedup_by(|below, above| join(above, below));
        let (mut ours, mut theirs) = (Follower::of(&ours), Follower::of(&theirs));
        let region = |base: Range<usize>| Region { ours: ours.image(&base), theirs: theirs.image(&base), base };
        touched.into_iter().map(region).collect()
    }

    /// Returns the region's merged content: that of the one side that changed it, or what both made of it alike.
    fn resolve(&self, region: &Region) -> Option<&[u8]> {
        let base = self.base.span(region.base.clone());
        let ours = self.ours.span(region.ours.clone());
        let theirs = self.theirs.span(region.theirs.clone());
        if theirs == base || ours == theirs {
            Some(ours)
        } else if ours == base {
            Some(theirs)
        } else {
            None
        }
    }

    fn render(&self, region: &Region, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("@@ line {} @@\n", region.ours.start + 1).as_bytes());
        for (marker, content) in [
            ("<<<<<<< project", self.ours.span(region.ours.clone())),
            ("||||||| base", self.base.span(region.base.clone())),
            ("=======", self.theirs.span(region.theirs.clone())),
            (">>>>>>> held", b""),
        ] {
            out.extend_from_slice(marker.as_bytes());
            out.push(b'\n');
            out.extend_from_slice(content);
            if !content.is_empty() && !content.ends_with(b"\n") {
                out.push(b'\n');
            }
        }
    }
}

/// Extends `above` over `below` if they overlap or touch.
fn join(above: &mut Range<usize>, below: &Range<usize>) -> bool {
    let meets = below.start <= above.end;
    if meets {
        above.end = above.end.max(below.end);
    }
    meets
}

/// Maps base lines to the lines of one side, by that side's edits. Must be asked in ascending order.
struct Follower<'a> {
    edits: std::iter::Peekable<std::slice::Iter<'a, Edit>>,
    /// How far base and side have been mapped, past the last edit.
    base: usize,
    side: usize,
}

impl<'a> Follower<'a> {
    fn of(edits: &'a [Edit]) -> Self {
        Self { edits: edits.iter().peekable(), base: 0, side: 0 }
    }

    /// Returns the side's lines for a run of base lines that cuts through no edit.
    fn image(&mut self, base: &Range<usize>) -> Range<usize> {
        let start = self.side + (base.start - self.base);
        while let Some(edit) = self.edits.next_if(|edit| edit.old.end <= base.end) {
            (self.base, self.side) = (edit.old.end, edit.new.end);
        }
        let end = self.side + (base.end - self.base);
        (self.base, self.side) = (base.end, end);
        start..end
    }
}
