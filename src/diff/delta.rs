//! What to send a reader who has an earlier version of a text: nothing, the difference, or the whole text again.

use super::hunks::hunks;
use super::side::{Side, classify};
use super::unified::{FileContent, FileDiff, FileSide, Unreadable, unified};
use crate::model::RelPath;

/// More pieces than this are harder to put together than rereading the text (SPEC §16).
pub const DELTA_HUNKS_MAX: usize = 6;

/// The most that a difference may be long, in percent of the new text (SPEC §16).
pub const DELTA_PERCENT_MAX: u128 = 40;

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Same,
    /// A unified diff.
    Diff(Vec<u8>),
    Whole,
}

/// `old` is what the reader has. Content that is not text is sent as a whole.
pub fn delta(path: &RelPath, old: &[u8], new: &[u8]) -> Delta {
    if old == new {
        return Delta::Same;
    }
    let is_text = |content| classify(Some(content)) == Side::Text;
    if !is_text(old) || !is_text(new) || hunks(old, new).len() > DELTA_HUNKS_MAX {
        return Delta::Whole;
    }
    let side = |bytes| Some(FileSide { content: FileContent::Bytes(bytes), mode: PLAIN });
    let text = unified(&FileDiff { path, old: side(old), new: side(new) }, Unreadable::Named);
    // Multiplied out, so that nothing is rounded away.
    match text.len() as u128 * 100 <= new.len() as u128 * DELTA_PERCENT_MAX {
        true => Delta::Diff(text),
        false => Delta::Whole,
    }
}

/// The same on both sides: a reader of text is not told of modes.
const PLAIN: u32 = 0o100_644;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<u8> {
        (0..count).flat_map(|number| format!("line {number}\n").into_bytes()).collect()
    }

    /// Every `step`-th line of `lines(count)` is another, `edits` of them.
    fn edited(count: usize, edits: usize, step: usize) -> Vec<u8> {
        let line = |number: usize| match number.is_multiple_of(step) && number / step < edits {
            true => format!("LINE {number}\n"),
            false => format!("line {number}\n"),
        };
        (0..count).flat_map(|number| line(number).into_bytes()).collect()
    }

    #[test]
    fn a_difference_is_sent_where_it_is_short_and_in_few_pieces() {
        let (is_diff, is_whole) = (|delta| matches!(delta, Delta::Diff(_)), |delta| delta == Delta::Whole);
        let path = RelPath::parse(b"a").unwrap();
        for (old, new, check) in [
            (lines(500), edited(500, 1, 50), is_diff as fn(Delta) -> bool),
            (lines(500), edited(500, 6, 50), is_diff),
            (lines(500), edited(500, 7, 50), is_whole),
            // One hunk, longer than two fifths of what there is.
            (lines(10), edited(10, 1, 50), is_whole),
            (lines(500), Vec::new(), is_whole),
            (Vec::new(), lines(500), is_whole),
            (lines(500), [lines(500), b"\xff".to_vec()].concat(), is_whole),
            (lines(5), lines(5), |delta| delta == Delta::Same),
        ] {
            let sent = delta(&path, &old, &new);
            assert!(check(sent.clone()), "{} -> {} bytes: {sent:?}", old.len(), new.len());
        }
    }

    #[test]
    fn the_share_is_exact_to_the_byte() {
        let path = RelPath::parse(b"a").unwrap();
        let length = |rest: usize| {
            let rest = format!("{}\n", "x".repeat(rest));
            let side = |first: &str| [first.as_bytes(), b"\n\n\n\n\n", rest.as_bytes()].concat();
            let new = side("b");
            let is_diff = matches!(delta(&path, &side("a"), &new), Delta::Diff(_));
            (new.len(), is_diff)
        };
        // Headers, the hunk's line, two lines of a change and three of context: 98 bytes whatever the long line has.
        let side = |bytes| Some(FileSide { content: FileContent::Bytes(bytes), mode: PLAIN });
        let file = FileDiff { path: &path, old: side(b"a\n\n\n\n\nx\n"), new: side(b"b\n\n\n\n\nx\n") };
        let diff = unified(&file, Unreadable::Named);
        let least = (diff.len() * 100).div_ceil(40);
        let fixed = length(0).0;
        assert_eq!(length(least - fixed), (least, true));
        assert_eq!(length(least - fixed - 1), (least - 1, false));
    }
}
