//! The textual form of a patch, for people who write one by hand or in a shell's here-document.
//!
//! ```text
//! FILE src/a.rs
//! BASE_SHA256 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//! HUNK
//! <<<<<<< LEFT
//! fn one() {
//! <<<<<<< OLD
//!     call(1);
//! ======= NEW
//!     call(2);
//! >>>>>>> RIGHT
//! }
//! >>>>>>> END
//! ```
//!
//! Sections are whole lines, taken byte for byte with their line ends, and match whole lines; `LEFT` and `RIGHT` may be
//! absent. `HUNK 3` applies to exactly three places. A line that looks like a marker cannot be content: such a patch is
//! written as JSON.

use super::patch::{FilePatch, PATCH_MATCHES_MAX, PatchHunk};
use crate::model::{Digest, RelPath};

/// The reason why some text is no patch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotBlocks {
    #[error("it is empty")]
    Empty,
    #[error("it is not UTF-8")]
    Encoding,
    #[error("line {line}: {found:?}, where {wanted} was expected")]
    Line { line: usize, found: String, wanted: &'static str },
    #[error("line {line}: {why}")]
    Value { line: usize, why: String },
    #[error("it ends where {wanted} was expected")]
    End { wanted: &'static str },
}

const LEFT: &str = "<<<<<<< LEFT";
const OLD: &str = "<<<<<<< OLD";
const NEW: &str = "======= NEW";
const RIGHT: &str = ">>>>>>> RIGHT";
const END: &str = ">>>>>>> END";
const MARKERS: [&str; 5] = [LEFT, OLD, NEW, RIGHT, END];

/// The most characters of a line that an error repeats.
const FOUND_CHARS_MAX: usize = 60;

pub(super) fn parse_blocks(bytes: &[u8]) -> Result<Vec<FilePatch>, NotBlocks> {
    let text = std::str::from_utf8(bytes).map_err(|_| NotBlocks::Encoding)?;
    let mut reader = Reader { lines: text.split_inclusive('\n').collect(), at: 0 };
    let mut files = Vec::new();
    reader.skip_blank();
    while !reader.is_at_end() {
        files.push(reader.file()?);
    }
    if files.is_empty() { Err(NotBlocks::Empty) } else { Ok(files) }
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn file(&mut self) -> Result<FilePatch, NotBlocks> {
        let path = self.word("FILE ", "`FILE path`")?;
        let path = RelPath::parse(path.as_bytes()).map_err(|err| self.wrong(format!("{path}: {err}")))?;
        let digest = self.word("BASE_SHA256 ", "`BASE_SHA256 hash`")?;
        let base_sha256 =
            Digest::parse(digest).ok_or_else(|| self.wrong(format!("{digest} is not a SHA-256 of 64 digits")))?;
        let mut hunks = vec![self.hunk()?];
        self.skip_blank();
        while self.here().is_some_and(|line| line.starts_with("HUNK")) {
            hunks.push(self.hunk()?);
            self.skip_blank();
        }
        Ok(FilePatch { path, base_sha256, hunks })
    }

    fn hunk(&mut self) -> Result<PatchHunk, NotBlocks> {
        self.skip_blank();
        let matches = match self.word("HUNK", "`HUNK`")?.trim() {
            "" => 1,
            count => self.places(count)?,
        };
        let left = self.section(LEFT)?.unwrap_or_default();
        let old = self.section(OLD)?.ok_or_else(|| self.expected("`<<<<<<< OLD`"))?;
        let new = self.section(NEW)?.ok_or_else(|| self.expected("`======= NEW`"))?;
        let right = self.section(RIGHT)?.unwrap_or_default();
        match self.here() {
            Some(END) => self.at += 1,
            _ => return Err(self.expected("`>>>>>>> END`")),
        }
        Ok(PatchHunk { left, old, right, new, matches, whole_lines: true })
    }

    fn places(&self, count: &str) -> Result<u32, NotBlocks> {
        let places = count.parse().ok().filter(|places| (1..=PATCH_MATCHES_MAX).contains(places));
        places.ok_or_else(|| self.wrong(format!("{count} is not a number of places, 1 to {PATCH_MATCHES_MAX}")))
    }

    /// Returns the lines between this marker and the next; `None` if the current line is not `marker`.
    fn section(&mut self, marker: &str) -> Result<Option<String>, NotBlocks> {
        if self.here() != Some(marker) {
            return Ok(None);
        }
        self.at += 1;
        let length = self.lines[self.at..].iter().position(|line| MARKERS.contains(&bare(line)));
        let length = length.ok_or(NotBlocks::End { wanted: "`>>>>>>> END`" })?;
        let lines = &self.lines[self.at..self.at + length];
        self.at += length;
        Ok(Some(lines.concat()))
    }

    /// Returns what follows `keyword` on the current line, and moves past it.
    fn word(&mut self, keyword: &str, wanted: &'static str) -> Result<&'a str, NotBlocks> {
        let rest = self.here().and_then(|line| line.strip_prefix(keyword)).ok_or_else(|| self.expected(wanted))?;
        self.at += 1;
        Ok(rest)
    }

    fn here(&self) -> Option<&'a str> {
        self.lines.get(self.at).map(|line| bare(line))
    }

    fn is_at_end(&self) -> bool {
        self.at == self.lines.len()
    }

    fn skip_blank(&mut self) {
        while self.here().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
    }

    /// An error about the line that was read last.
    fn wrong(&self, why: String) -> NotBlocks {
        NotBlocks::Value { line: self.at, why }
    }

    fn expected(&self, wanted: &'static str) -> NotBlocks {
        match self.here() {
            Some(found) => {
                NotBlocks::Line { line: self.at + 1, found: found.chars().take(FOUND_CHARS_MAX).collect(), wanted }
            }
            None => NotBlocks::End { wanted },
        }
    }
}

/// Strips the line end, of either kind.
fn bare(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}
