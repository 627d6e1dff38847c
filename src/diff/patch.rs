//! Anchored replacement: exact text in exact surroundings, exactly as often as stated, or nothing (SPEC §16).
//!
//! All hunks are located in the original content, so their order does not matter. A hunk that fits only nearly is never
//! applied; a refusal shows the places that its author may have meant, and those are the only guesses made here.

use memchr::memmem;
use std::ops::Range;

/// One replacement: `old` between `left` and `right` becomes `new`, in `matches` places.
#[derive(Clone, Copy, Debug)]
pub struct Anchored<'a> {
    pub left: &'a [u8],
    pub old: &'a [u8],
    pub right: &'a [u8],
    pub new: &'a [u8],
    pub matches: usize,
    /// It matches only where a line begins.
    pub whole_lines: bool,
}

/// Why a patch was refused. Hunks are numbered from 1; `near` is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpatched {
    #[error("hunk {hunk} has no left, no old and no right: there is nothing to find it by")]
    NoAnchor { hunk: usize },
    #[error("hunk {hunk} matches nowhere")]
    Nowhere { hunk: usize, near: String },
    #[error("hunk {hunk} matches in {} places, not in {want}", places(*.found, *.is_all))]
    Elsewhere { hunk: usize, want: usize, found: usize, is_all: bool, near: String },
    #[error("hunks {first} and {second} replace the same text, or begin at the same place")]
    Overlap { first: usize, second: usize },
    #[error("hunk {hunk} matches in too many places, or they overlap too often: write the file itself")]
    TooMany { hunk: usize },
}

/// How many places all hunks of a file may have together, and how many bytes their anchors: more would keep the daemon
/// busy for minutes. Anchors that do not overlap have no more bytes than the file.
const PLACES_MAX: usize = 1_000_000;
const ANCHORED_BYTES_MAX: usize = 64 << 20;

/// How many places are counted beyond those asked for; a higher count would say no more.
const COUNTED_BEYOND: usize = 100;

/// How many places are shown in an excerpt.
const EXCERPTS_MAX: usize = 3;
/// Lines shown around a place, and lines of an excerpt in all.
const AROUND: usize = 2;
const EXCERPT_LINES_MAX: usize = 8;
/// How many bytes of a line an excerpt shows.
const EXCERPT_LINE_BYTES_MAX: usize = 120;

fn places(found: usize, is_all: bool) -> String {
    if is_all { found.to_string() } else { format!("more than {}", found - 1) }
}

/// One place to be replaced.
struct Replacement<'a> {
    range: Range<usize>,
    new: &'a [u8],
    hunk: usize,
}

/// Returns the content with all hunks applied.
pub fn apply_anchored(content: &[u8], hunks: &[Anchored]) -> Result<Vec<u8>, Unpatched> {
    let mut places: Vec<Replacement> = Vec::new();
    let mut anchored = 0;
    for (hunk, number) in hunks.iter().zip(1..) {
        let bounds = Bounds { places: PLACES_MAX - places.len(), bytes: ANCHORED_BYTES_MAX - anchored };
        let found = find(content, hunk, number, bounds)?;
        anchored += found.len() * anchor_bytes(hunk);
        places.extend(found);
    }
    places.sort_by_key(|place| (place.range.start, place.range.end));
    if let Some(pair) = places.windows(2).find(|pair| is_overlap(&pair[0], &pair[1])) {
        let (first, second) = (pair[0].hunk.min(pair[1].hunk), pair[0].hunk.max(pair[1].hunk));
        return Err(Unpatched::Overlap { first, second });
    }
    let mut out = Vec::with_capacity(content.len());
    let mut at = 0;
    for place in &places {
        out.extend_from_slice(&content[at..place.range.start]);
        out.extend_from_slice(place.new);
        at = place.range.end;
    }
    out.extend_from_slice(&content[at..]);
    Ok(out)
}

/// Two insertions at one place overlap as well: their order would be a guess.
fn is_overlap(before: &Replacement, after: &Replacement) -> bool {
    after.range.start < before.range.end || after.range.start == before.range.start
}

/// What is left of [`PLACES_MAX`] and [`ANCHORED_BYTES_MAX`].
struct Bounds {
    places: usize,
    bytes: usize,
}

fn anchor_bytes(hunk: &Anchored) -> usize {
    hunk.left.len() + hunk.old.len() + hunk.right.len()
}

fn find<'a>(
    content: &[u8],
    hunk: &Anchored<'a>,
    number: usize,
    bounds: Bounds,
) -> Result<Vec<Replacement<'a>>, Unpatched> {
    let anchor = [hunk.left, hunk.old, hunk.right].concat();
    if anchor.is_empty() {
        return Err(Unpatched::NoAnchor { hunk: number });
    }
    let counted_max = hunk.matches.saturating_add(COUNTED_BEYOND);
    let affordable = bounds.places.min(bounds.bytes / anchor.len());
    let looked_for = counted_max.min(affordable.saturating_add(1));
    let found: Vec<usize> = match hunk.whole_lines {
        true => at_line_begins(content, &anchor).take(looked_for).collect(),
        false => occurrences(content, &anchor).take(looked_for).collect(),
    };
    if found.len() > affordable {
        return Err(Unpatched::TooMany { hunk: number });
    }
    if found.is_empty() {
        return Err(Unpatched::Nowhere { hunk: number, near: nearby(content, hunk, &anchor) });
    }
    if found.len() != hunk.matches {
        let near = excerpts(content, "it matches here", &found, anchor.len());
        let is_all = found.len() < counted_max;
        return Err(Unpatched::Elsewhere { hunk: number, want: hunk.matches, found: found.len(), is_all, near });
    }
    let place = |at: usize| {
        let start = at + hunk.left.len();
        Replacement { range: start..start + hunk.old.len(), new: hunk.new, hunk: number }
    };
    Ok(found.into_iter().map(place).collect())
}

/// Returns where `anchor` begins. Overlapping occurrences count too: each may be the place that was meant.
fn occurrences<'a>(content: &'a [u8], anchor: &[u8]) -> impl Iterator<Item = usize> + use<'a> {
    let finder = memmem::Finder::new(anchor).into_owned();
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + finder.find(&content[from..])?;
        from = at + 1;
        Some(at)
    })
}

/// The same, only where a line begins. It is looked for with the end of the line before it, so that no other place is
/// compared.
fn at_line_begins<'a>(content: &'a [u8], anchor: &[u8]) -> impl Iterator<Item = usize> + use<'a> {
    let first = content.starts_with(anchor).then_some(0);
    let behind_a_line = [b"\n", anchor].concat();
    first.into_iter().chain(occurrences(content, &behind_a_line).map(|at| at + 1))
}

/// Shows what may have been meant by an anchor that matches nowhere.
fn nearby(content: &[u8], hunk: &Anchored, anchor: &[u8]) -> String {
    if !hunk.old.is_empty() && hunk.old.len() < anchor.len() {
        let bare: Vec<usize> = occurrences(content, hunk.old).take(EXCERPTS_MAX).collect();
        if !bare.is_empty() {
            return excerpts(content, "the old text is here, in other surroundings", &bare, hunk.old.len());
        }
    }
    let text = if hunk.old.is_empty() { anchor } else { hunk.old };
    let spaced = like_but_for_space(content, text);
    if !spaced.is_empty() {
        return excerpts(content, "here it is but for white space", &spaced, text.len());
    }
    match most_alike(content, text) {
        Some(at) => excerpts(content, "did you mean this", &[at], 0),
        None => String::new(),
    }
}

/// The most bytes compared for such a guess. A patch and file of nothing but similar lines may end without one.
const GUESS_BYTES_MAX: usize = 32 << 20;

/// Returns where lines stand that differ from those of `text` only in white space.
fn like_but_for_space(content: &[u8], text: &[u8]) -> Vec<usize> {
    let wanted: Vec<Vec<u8>> = lines(text).map(|(_, line)| bare(line).collect()).collect();
    if wanted.iter().all(Vec::is_empty) {
        return Vec::new();
    }
    let mut compared = 0;
    let mut is_like = |line: &[u8], wanted: &[u8]| {
        compared += line.len();
        compared <= GUESS_BYTES_MAX && bare(line).eq(wanted.iter().copied())
    };
    let mut are_like = |at: usize| {
        let mut there = lines(&content[at..]);
        wanted.iter().all(|wanted| there.next().is_some_and(|(_, line)| is_like(line, wanted)))
    };
    lines(content).map(|(at, _)| at).filter(|at| are_like(*at)).take(EXCERPTS_MAX).collect()
}

/// A line without its white space.
fn bare(line: &[u8]) -> impl Iterator<Item = u8> {
    line.iter().copied().filter(|byte| !byte.is_ascii_whitespace())
}

/// Returns the first line that shares most of `text`'s longest line, from both ends, if that is at least half of it.
fn most_alike(content: &[u8], text: &[u8]) -> Option<usize> {
    let wanted = lines(text).map(|(_, line)| line.trim_ascii()).max_by_key(|line| line.len())?;
    let alike = |line: &[u8]| {
        let line = line.trim_ascii();
        let start = line.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let (line, wanted) = (&line[start..], &wanted[start..]);
        start + line.iter().rev().zip(wanted.iter().rev()).take_while(|(a, b)| a == b).count()
    };
    let (shared, _, at) = lines(content)
        .map(|(at, line)| (alike(line), line.trim_ascii().len(), at))
        .min_by_key(|(shared, length, _)| (std::cmp::Reverse(*shared), *length))?;
    (shared > 0 && shared * 2 >= wanted.len()).then_some(at)
}

/// Each line with its offset.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    bytes.split_inclusive(|byte| *byte == b'\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    })
}

fn excerpts(content: &[u8], what: &str, at: &[usize], length: usize) -> String {
    let shown: Vec<String> = at.iter().take(EXCERPTS_MAX).map(|at| excerpt(content, what, *at..*at + length)).collect();
    match at.len().saturating_sub(shown.len()) {
        0 => shown.concat(),
        more => format!("{}and in {more} more\n", shown.concat()),
    }
}

fn excerpt(content: &[u8], what: &str, range: Range<usize>) -> String {
    let line_of = |at: usize| content[..at.min(content.len())].iter().filter(|byte| **byte == b'\n').count();
    let (first, last) = (line_of(range.start), line_of(range.end.saturating_sub(1).max(range.start)));
    let from = first.saturating_sub(AROUND);
    let shown = (last + AROUND + 1 - from).min(EXCERPT_LINES_MAX);
    let mut out = format!("{what}, line {}:\n", first + 1);
    for (number, (_, line)) in lines(content).enumerate().skip(from).take(shown) {
        out.push_str(&format!("{:>6} | {}\n", number + 1, shortened(line)));
    }
    out
}

fn shortened(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    match line.get(..EXCERPT_LINE_BYTES_MAX) {
        Some(start) if line.len() > EXCERPT_LINE_BYTES_MAX => format!("{}…", String::from_utf8_lossy(start)),
        _ => String::from_utf8_lossy(line).into_owned(),
    }
}

impl Unpatched {
    /// The places that may have been meant, for people.
    pub fn near(&self) -> Option<&str> {
        match self {
            Self::Nowhere { near, .. } | Self::Elsewhere { near, .. } => Some(near).filter(|near| !near.is_empty()),
            Self::NoAnchor { .. } | Self::Overlap { .. } | Self::TooMany { .. } => None,
        }
        .map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
