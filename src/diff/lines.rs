//! Content split into lines. A line ends at `\n` only, which belongs to it; the last may lack it (SPEC §5).

use std::ops::Range;

#[derive(Debug)]
pub(super) struct Lines<'a> {
    bytes: &'a [u8],
    /// Invariant: ascending, from 0 to `bytes.len()`; line `i` is `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        let mut starts = vec![0];
        starts.extend(memchr::memchr_iter(b'\n', bytes).map(|at| at + 1));
        if starts.last() != Some(&bytes.len()) {
            starts.push(bytes.len());
        }
        Self { bytes, starts }
    }

    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn line(&self, index: usize) -> &'a [u8] {
        self.span(index..index + 1)
    }

    /// The bytes of consecutive lines.
    pub fn span(&self, lines: Range<usize>) -> &'a [u8] {
        &self.bytes[self.starts[lines.start]..self.starts[lines.end]]
    }

    pub fn iter(&self, lines: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
        lines.map(|index| self.line(index))
    }
}
