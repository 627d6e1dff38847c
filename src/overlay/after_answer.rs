//! What nobody need wait for: it is done once whoever asked has been answered, while the kernel wakes him.
//!
//! To let a file go that has just been replaced takes the kernel as long as to replace it. The row of a file that is only
//! opened takes a transaction, and is not needed before there is something to lose.

use parking_lot::Mutex;

use super::Overlay;
use super::compare::Comparison;

/// What is kept until an answer is out. Nobody need be there to be answered, so it is not more than this.
const KEPT_MAX: usize = 8;
/// Of larger files the room, on disk and in memory, may be what the next write needs.
const BYTES_MAX: u64 = 256 << 10;

#[derive(Default)]
pub(super) struct Spent(Mutex<Vec<Comparison>>);

impl Overlay {
    /// Nothing asks for a comparison any more.
    pub(super) fn spend(&self, comparison: Comparison) {
        if comparison.new.size + comparison.present.size > BYTES_MAX {
            return;
        }
        let mut spent = self.spent.0.lock();
        if spent.len() < KEPT_MAX {
            spent.push(comparison);
        }
    }

    /// To be called once whoever waited has been answered.
    pub fn after_answer(&self) {
        if let Err(err) = self.store.record_rows() {
            // Whoever writes to it, or closes it, is told.
            log::debug!("record what was opened: {err}");
        }
        let spent = std::mem::take(&mut *self.spent.0.lock());
        drop(spent);
    }
}
