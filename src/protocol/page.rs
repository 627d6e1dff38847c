//! Cutting long lists into replies that fit.

use std::convert::Infallible;
use std::io::{self, Write};

use super::{ChangeDiff, DiffReply, DiffText};
use crate::model::{Digest, Hasher};
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

    /// As much as fits in so many bytes, for what no further page follows.
    pub fn within(bytes: usize) -> Self {
        Self { room: Some(bytes), ..Self::new(0, None) }
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

/// Bytes of changes that a page of diffs may have. The rest of a reply is for what stands around them.
const DIFF_PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 8 * 7;

/// As how many bytes JSON spells one at most: one that is not printable as six, and all once more in base64 where not all is
/// UTF-8.
const SPELLED_BYTES_MAX: usize = 8;

/// A page of diffs, made a change at a time. What is counted is a place for each change and, behind it, the bytes of its text:
/// a change without text has its place on some page, too.
pub struct DiffCut {
    offset: u64,
    end: u64,
    room: usize,
    /// Places and bytes of the changes so far.
    passed: u64,
    page: DiffReply,
    /// All that comes before the page and, once there is some of it, before its end.
    told: Hasher,
    before: Option<Digest>,
}

impl DiffCut {
    /// The page that begins at `offset`, and counts up to `limit`.
    pub fn new(offset: u64, limit: Option<u64>) -> Self {
        let end = offset.saturating_add(limit.unwrap_or(u64::MAX).max(1));
        let (page, told) = (DiffReply::default(), Hasher::default());
        Self { offset, end, room: DIFF_PAGE_BYTES_MAX, passed: 0, page, told, before: None }
    }

    /// Whether nothing of the changes that follow is on the page.
    pub fn is_full(&self) -> bool {
        self.page.next.is_some()
    }

    /// What stands for all that comes before the page: another digest where the changes are not those of the pages before.
    pub fn before(&self) -> Digest {
        self.before.unwrap_or_else(|| self.told.clone().finish())
    }

    pub fn into_page(self) -> DiffReply {
        DiffReply { told: self.page.next.map(|_| self.told.finish()), ..self.page }
    }

    /// Adds the part of the next change that belongs on this page. The first change that reaches past the page's start gets at
    /// least some text.
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
        // Or within it.
        self.begin();
        change.text = DiffText(self.fitting(&text[from..to]));
        self.told.update(&change.text.0);
        self.room = self.room.saturating_sub(json_bytes(&change.text));
        let next = start + 1 + (from + change.text.0.len()) as u64;
        self.page.next = (next < self.passed).then_some(next);
        self.page.changes.push(change);
    }

    /// All that was told so far comes before the page, unless that has begun.
    fn begin(&mut self) {
        self.before = Some(self.before());
    }

    fn tell(&mut self, change: &ChangeDiff, text: &[u8]) {
        self.told.update(change.held.id.as_str().as_bytes());
        self.told.update(b"\n");
        self.told.update(text);
    }

    /// As much of a text as there is room for, and never nothing.
    fn fitting(&self, text: &[u8]) -> Vec<u8> {
        let whole = DiffText(text.to_vec());
        match json_bytes(&whole) <= self.room {
            true => whole.0,
            false => text[..text.len().min((self.room / SPELLED_BYTES_MAX).max(1))].to_vec(),
        }
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
