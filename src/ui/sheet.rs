//! A diff as lines that are safe for a terminal, with its hunks, and as rows of a given width.

use ratatui::text::Span;

use super::words::percent;
use crate::model::{escape_content, escape_name};
use crate::protocol::{ChangeDiff, Held};

/// Columns between tab stops, as in terminals.
const TAB_COLUMNS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This program's words about the change.
    About,
    Header,
    /// The `@@` line of a hunk.
    Place,
    Context,
    Added,
    Removed,
}

/// A line, with its sign kept apart. Invariant: nothing that a terminal obeys or hides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub kind: Kind,
    pub sign: char,
    pub text: String,
}

/// What one change would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    pub lines: Vec<Line>,
    /// The index of each hunk's first line; a hunk ends where the next begins.
    hunks: Vec<usize>,
    /// Two diffs, one that removes and one that adds: their hunks cannot be numbered.
    is_double: bool,
}

/// A part of a line that fits into one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub line: usize,
    pub start: usize,
    pub end: usize,
}

impl Sheet {
    pub fn of(change: &ChangeDiff) -> Self {
        let mut sheet = Self { lines: about(&change.held), ..Self::default() };
        let mut headers = 0;
        let mut in_header = true;
        for line in change.text.0.split_inclusive(|byte| *byte == b'\n') {
            let bare = line.strip_suffix(b"\n").unwrap_or(line);
            let begins_file = bare.starts_with(b"diff --git ");
            headers += usize::from(begins_file);
            in_header = begins_file || (in_header && !bare.starts_with(b"@@"));
            if !in_header && bare.starts_with(b"@@") {
                sheet.hunks.push(sheet.lines.len());
            }
            sheet.lines.push(line_of(bare, in_header));
        }
        sheet.is_double = headers > 1;
        sheet
    }

    /// How many hunks there are to choose from; they are numbered from 1.
    pub fn hunk_count(&self) -> usize {
        if self.is_double { 0 } else { self.hunks.len() }
    }

    /// Returns the hunk that a line belongs to, counted from 0.
    pub fn hunk_at(&self, line: usize) -> Option<usize> {
        let before = self.hunks.partition_point(|first| *first <= line);
        before.checked_sub(1).filter(|_| self.hunk_count() > 0)
    }

    /// Returns the rows of all lines, if a row has room for `columns` beside the sign.
    pub fn rows(&self, columns: usize) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.lines.len());
        for (line, Line { text, .. }) in self.lines.iter().enumerate() {
            let mut start = 0;
            for end in breaks(text, columns.max(1)) {
                rows.push(Row { line, start, end });
                start = end;
            }
            rows.push(Row { line, start, end: text.len() });
        }
        rows
    }
}

/// The lines that tell why the change is held and who wrote it.
fn about(held: &Held) -> Vec<Line> {
    let share = (held.ratio > 0.0).then(|| format!(", {} of file", percent(held.ratio)));
    let mut lines =
        vec![format!("held: {}, +{} -{}{}", held.reason, held.insertions, held.deletions, share.unwrap_or_default())];
    lines.extend(held.detail.as_ref().map(|detail| escape_name(detail.as_bytes())));
    lines.extend(held.looks.iter().map(|looks| escape_name(looks.as_bytes())));
    lines.extend(held.also.0.iter().map(|name| format!("also: {}", escape_name(name.as_bytes()))));
    let program = held.written_by.as_ref().or(held.opened_by.as_ref());
    lines.extend(program.and_then(|program| {
        let what = program.cmdline.as_ref().or(program.exe.as_ref())?;
        Some(format!("by: {} (pid {}, uid {})", escape_name(what.as_bytes()), program.pid, program.uid))
    }));
    lines.push(String::new());
    lines.into_iter().map(|text| Line { kind: Kind::About, sign: ' ', text: shown(&text) }).collect()
}

fn line_of(bare: &[u8], in_header: bool) -> Line {
    let text = |bytes: &[u8]| shown(&escape_content(bytes));
    let signed = |kind, sign| Line { kind, sign, text: text(&bare[1..]) };
    match bare.first() {
        _ if in_header => Line { kind: Kind::Header, sign: ' ', text: text(bare) },
        Some(b'+') => signed(Kind::Added, '+'),
        Some(b'-') => signed(Kind::Removed, '-'),
        Some(b' ') => signed(Kind::Context, ' '),
        Some(b'@') => Line { kind: Kind::Place, sign: ' ', text: text(bare) },
        _ => Line { kind: Kind::Header, sign: ' ', text: text(bare) },
    }
}

/// Turns tabs into blanks, and spells out characters without width, which would be invisible.
pub fn shown(escaped: &str) -> String {
    if escaped.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return escaped.to_owned();
    }
    let mut text = String::with_capacity(escaped.len());
    let mut column = 0;
    for piece in escaped.split_inclusive('\t') {
        for grapheme in graphemes(piece.strip_suffix('\t').unwrap_or(piece)) {
            match width(&grapheme) {
                0 => {
                    let spelled: String = grapheme.chars().flat_map(char::escape_unicode).collect();
                    column += spelled.len();
                    text.push_str(&spelled);
                }
                columns => {
                    column += columns;
                    text.push_str(&grapheme);
                }
            }
        }
        if piece.ends_with('\t') {
            let blanks = TAB_COLUMNS - column % TAB_COLUMNS;
            text.extend(std::iter::repeat_n(' ', blanks));
            column += blanks;
        }
    }
    text
}

/// Returns where to break a text so that no row has more than `columns`.
fn breaks(text: &str, columns: usize) -> Vec<usize> {
    if text.is_ascii() {
        return (1..text.len().div_ceil(columns)).map(|row| row * columns).collect();
    }
    let (mut breaks, mut at, mut used) = (Vec::new(), 0, 0);
    for grapheme in graphemes(text) {
        let columns_more = width(&grapheme);
        if used > 0 && used + columns_more > columns {
            breaks.push(at);
            used = 0;
        }
        used += columns_more;
        at += grapheme.len();
    }
    breaks
}

/// Divides a text into what a terminal shows as one character, in the same way as the drawing library.
fn graphemes(text: &str) -> Vec<String> {
    Span::raw(text).styled_graphemes(ratatui::style::Style::default()).map(|found| found.symbol.to_owned()).collect()
}

/// The width in columns, as the drawing library measures it.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns as much of a text's end as fits, with a sign if something is left out.
pub fn fit_end(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut kept, mut used) = (Vec::new(), 1);
    for grapheme in graphemes(text).into_iter().rev() {
        used += width(&grapheme);
        if used > columns {
            break;
        }
        kept.push(grapheme);
    }
    kept.reverse();
    format!("<{}", kept.concat())
}
