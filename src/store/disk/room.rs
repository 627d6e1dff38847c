//! How much disk space upper content takes, so that there can be a limit to it.
//!
//! As in `du`, each file counts with the blocks that the file system says it has, which leaves out holes and includes
//! what it shares with lower. A file that has lost its name takes space until its last descriptor goes, and counts that
//! long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::store::UpperId;

/// The unit of `st_blocks`, on every file system.
const BLOCK_BYTES: u64 = 512;

#[derive(Debug, Default)]
pub struct Room {
    used: AtomicU64,
    /// What each file of `stage/` takes. A leaf: nothing is taken after it.
    taken: Mutex<HashMap<UpperId, u64>>,
}

impl Room {
    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes how many blocks a file of `stage/` has now.
    pub fn takes(&self, id: UpperId, blocks: u64) {
        let before = self.taken.lock().insert(id, blocks * BLOCK_BYTES).unwrap_or(0);
        self.change(before, blocks * BLOCK_BYTES);
    }

    pub(in crate::store) fn note_gone(&self, id: UpperId) {
        let before = self.taken.lock().remove(&id).unwrap_or(0);
        self.change(before, 0);
    }

    fn change(&self, before: u64, after: u64) {
        self.used.fetch_add(after, Ordering::Relaxed);
        self.used.fetch_sub(before, Ordering::Relaxed);
    }
}

/// The space of a file without a name, given back when this is dropped.
#[derive(Debug)]
pub struct Nameless {
    room: Arc<Room>,
    bytes: u64,
}

impl Nameless {
    pub fn new(room: Arc<Room>) -> Self {
        Self { room, bytes: 0 }
    }

    pub fn takes(&mut self, blocks: u64) {
        self.room.change(self.bytes, blocks * BLOCK_BYTES);
        self.bytes = blocks * BLOCK_BYTES;
    }
}

impl Drop for Nameless {
    fn drop(&mut self) {
        self.room.change(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_counted_once() {
        let room = Arc::new(Room::default());
        let [one, two] = [1, 2].map(UpperId::new);
        room.takes(one, 8);
        room.takes(two, 2);
        room.takes(one, 4);
        assert_eq!(room.used(), 6 * BLOCK_BYTES);
        let mut nameless = Nameless::new(room.clone());
        nameless.takes(10);
        nameless.takes(3);
        room.note_gone(one);
        room.note_gone(one);
        assert_eq!(room.used(), 5 * BLOCK_BYTES);
        drop(nameless);
        room.note_gone(two);
        assert_eq!(room.used(), 0);
    }
}
