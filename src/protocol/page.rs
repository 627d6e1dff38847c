//! Cuts long lists into replies that fit.

use std::convert::Infallible;
use std::io::{self, Write};

use super::{ChangeDiff, DiffReply, DiffText};
use crate::model::{Digest, Hasher};
use serde::Serialize;

/// The most bytes of entries on a page. Half of a reply, so that the rest of the reply always fits.
const PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 2;

/// Some entries of a longer list, and where the next page begins if this is not the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    pub next: Option<u64>,
}

/// Returns the page of `entries` that begins at entry `offset` and has at most `limit` entries (0 counts as 1). It has at
/// least one entry while there are any, so that a reader always makes progress.
pub fn page<T: Serialize>(entries: Vec<T>, offset: u64, limit: Option<u64>) -> Page<T> {
    let mut cut = Cut::new(offset, limit);
    Page { entries: cut.part(entries), next: cut.next() }
}

/// Pages like [`page`] through several lists in a row, making only the entries that are on the page.
pub struct Cut {
    /// The number of entries before the page, and the most entries on it.
    offset: usize,
    limit: u64,
    /// The bytes left on the page; `None` if nothing is cut.
    room: Option<usize>,
    /// The entries before and on the page so far.
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

    /// Takes as much as fits in `bytes`, for an answer without further pages.
    pub fn within(bytes: usize) -> Self {
        Self { room: Some(bytes), ..Self::new(0, None) }
    }

    /// Takes everything, for output that is no reply.
    pub fn none() -> Self {
        Self { room: None, ..Self::new(0, None) }
    }

    /// How many entries of the next list come before the page.
    pub fn skipped(&self) -> usize {
        self.offset.saturating_sub(self.passed)
    }

    /// Whether the page has ended, so that it contains nothing of the lists that follow.
    pub fn is_full(&self) -> bool {
        self.next.is_some()
    }

    /// Where the next page begins; `None` if nothing is left for it so far.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Returns the entries of the next list that are on the page.
    pub fn part<T: Serialize>(&mut self, list: Vec<T>) -> Vec<T> {
        let Ok(told) = self.part_made(list, Ok::<T, Infallible>);
        told
    }

    /// The same, but `make` turns the elements of the list into entries.
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

/// The most bytes of changes on a page of diffs. The rest of a reply is for what surrounds them.
const DIFF_PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 8 * 7;

/// The most bytes that JSON needs for one byte of text: six if it is not printable, and all text once more in base64
/// if not all of it is UTF-8.
const SPELLED_BYTES_MAX: usize = 8;

/// A page of diffs, made one change at a time. Positions count one place for each change, then the bytes of its text, so
/// that even a change without text has a place on some page.
pub struct DiffCut {
    offset: u64,
    end: u64,
    room: usize,
    /// The places and bytes of the changes so far.
    passed: u64,
    page: DiffReply,
    /// A digest of everything up to the end of this page, as far as it has been made.
    told: Hasher,
    before: Option<Digest>,
}

impl DiffCut {
    /// The page that begins at `offset` and covers at most `limit` positions.
    pub fn new(offset: u64, limit: Option<u64>) -> Self {
        let end = offset.saturating_add(limit.unwrap_or(u64::MAX).max(1));
        let (page, told) = (DiffReply::default(), Hasher::default());
        Self { offset, end, room: DIFF_PAGE_BYTES_MAX, passed: 0, page, told, before: None }
    }

    /// Whether the page contains nothing of the changes that follow.
    pub fn is_full(&self) -> bool {
        self.page.next.is_some()
    }

    /// The digest of everything before the page. It differs if the changes are no longer those of the previous pages.
    pub fn before(&self) -> Digest {
        self.before.unwrap_or_else(|| self.told.clone().finish())
    }

    pub fn into_page(self) -> DiffReply {
        DiffReply { told: self.page.next.map(|_| self.told.finish()), ..self.page }
    }

    /// Adds the part of the next change that belongs on this page. The first change that reaches past the page's
    /// start gets at least some text.
    pub fn take(&mut self, mut change: ChangeDiff) {
        let text = std::mem::take(&mut change.text.0);
        let start = self.passed;
        self.passed = start + 1 + text.len() as u64;
        if self.is_full() {
            return;
        }
        if self.passed <= self.offset {
            self.tell(&change, &text);
            return;
        }
        let around = json_bytes(&change);
        let is_first = self.page.changes.is_empty();
        if start >= self.end || (around > self.room && !is_first) {
            self.page.next = Some(start);
            return;
        }
        self.room = self.room.saturating_sub(around);
        let from = self.offset.saturating_sub(start + 1) as usize;
        let to = (self.end.min(self.passed) - start - 1) as usize;
        if start >= self.offset {
            self.begin();
        }
        self.tell(&change, &text[..from]);
        // The page may also begin within the change's text.
        self.begin();
        change.text = DiffText(self.fitting(&text[from..to]));
        self.told.update(&change.text.0);
        self.room = self.room.saturating_sub(json_bytes(&change.text));
        let next = start + 1 + (from + change.text.0.len()) as u64;
        self.page.next = (next < self.passed).then_some(next);
        self.page.changes.push(change);
    }

    /// Fixes the digest of everything before the page, unless the page has begun already.
    fn begin(&mut self) {
        self.before = Some(self.before());
    }

    fn tell(&mut self, change: &ChangeDiff, text: &[u8]) {
        self.told.update(change.held.id.as_str().as_bytes());
        self.told.update(b"\n");
        self.told.update(text);
    }

    /// Returns as much of a text as there is room for, but never nothing.
    fn fitting(&self, text: &[u8]) -> Vec<u8> {
        let whole = DiffText(text.to_vec());
        match json_bytes(&whole) <= self.room {
            true => whole.0,
            false => text[..text.len().min((self.room / SPELLED_BYTES_MAX).max(1))].to_vec(),
        }
    }
}

/// An entry that cannot be serialized counts as too large; serializing the reply then reports the error.
fn json_bytes<T: Serialize>(entry: &T) -> usize {
    let mut bytes = Counted(1);
    serde_json::to_writer(&mut bytes, entry).map_or(PAGE_BYTES_MAX, |()| bytes.0)
}

/// Counts the bytes written to it.
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
