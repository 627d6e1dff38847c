//! Cutting long lists into replies that fit.

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
    let limit = limit.unwrap_or(u64::MAX).max(1);
    let mut room = PAGE_BYTES_MAX;
    let mut taken = Vec::new();
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    for (index, entry) in entries.into_iter().enumerate().skip(start) {
        let bytes = json_bytes(&entry);
        if taken.len() as u64 == limit || (bytes > room && !taken.is_empty()) {
            return Page { entries: taken, next: Some(index as u64) };
        }
        room = room.saturating_sub(bytes);
        taken.push(entry);
    }
    Page { entries: taken, next: None }
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
