//! Cutting long lists into replies that fit.

use std::convert::Infallible;
use std::io::{self, Write};

use serde::Serialize;

/// Bytes of entries a page may have. Half of a reply, so that what stands around the entries always fits.
const PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 2;

/// Some entries of a longer list, and where the next page begins if this is not the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    pub next: Option<u64>,
}

/// The page of `entries` that begins at entry `offset`, of at most `limit` entries (0 counts as 1). It has at least one entry while
/// there are any, so that a reader always gets on.
pub fn page<T: Serialize>(entries: Vec<T>, offset: u64, limit: Option<u64>) -> Page<T> {
    let mut cut = Cut::new(offset, limit);
    Page { entries: cut.part(entries), next: cut.next() }
}

/// [`page`] of several lists, one behind the other, of which no more is made than the page tells.
pub struct Cut {
    /// Entries that come before the page, and that it may have.
    offset: usize,
    limit: u64,
    /// None where no page is cut.
    room: Option<usize>,
    /// Entries before and on the page so far.
    passed: usize,
    taken: u64,
    next: Option<u64>,
}

impl Cut {
    pub fn new(offset: u64, limit: Option<u64>) -> Self {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let limit = limit.unwrap_or(u64::MAX).max(1);
        Self { offset, limit, room: Some(PAGE_BYTES_MAX), passed: 0, taken: 0, next: None }
    }

    /// Takes everything, for what is no reply.
    pub fn none() -> Self {
        Self { room: None, ..Self::new(0, None) }
    }

    /// How many entries of the next list the page does not have because it begins later.
    pub fn skipped(&self) -> usize {
        self.offset.saturating_sub(self.passed)
    }

    /// Whether the page has ended, so that nothing of the lists that follow is on it.
    pub fn is_full(&self) -> bool {
        self.next.is_some()
    }

    /// Where the next page begins; none while nothing is left for it.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// What the page has of the next list.
    pub fn part<T: Serialize>(&mut self, list: Vec<T>) -> Vec<T> {
        let Ok(told) = self.part_made(list, Ok::<T, Infallible>);
        told
    }

    /// The same, where `make` makes the entries of those of the list.
    pub fn part_made<S, T: Serialize, E>(
        &mut self,
        list: Vec<S>,
        mut make: impl FnMut(S) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let skipped = self.skipped().min(list.len());
        let mut told = Vec::new();
        self.passed += skipped;
        for entry in list.into_iter().skip(skipped) {
            if self.is_full() {
                break;
            }
            let entry = make(entry)?;
            if self.takes(&entry) {
                told.push(entry);
            }
        }
        Ok(told)
    }

    fn takes<T: Serialize>(&mut self, entry: &T) -> bool {
        let Some(room) = self.room else { return true };
        let bytes = json_bytes(entry);
        if self.taken == self.limit || (bytes > room && self.taken > 0) {
            self.next = Some(self.passed as u64);
            return false;
        }
        self.room = Some(room.saturating_sub(bytes));
        self.passed += 1;
        self.taken += 1;
        true
    }
}

/// What does not serialise is cut out as if it were too large; the reply itself then tells the error.
fn json_bytes<T: Serialize>(entry: &T) -> usize {
    let mut bytes = Counted(1);
    serde_json::to_writer(&mut bytes, entry).map_or(PAGE_BYTES_MAX, |()| bytes.0)
}

/// Bytes that are only counted.
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
