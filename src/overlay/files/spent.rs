//! What nobody need wait for: it is done once whoever asked has been answered, while the kernel wakes him
//! ([`Overlay::after_answer`]), or with the next record, where who answers runs on the processor of who has asked.
//!
//! To let a file go that has just been replaced takes the kernel as long as to replace it. The row of a file that is only
//! opened takes a transaction, and is not needed before there is something to lose.

use parking_lot::Mutex;

use crate::overlay::Overlay;
use crate::overlay::judge::compare::Comparison;

/// What is kept until the next record, which has that many landings of small files behind it. Each has up to three files open.
const KEPT_MAX: usize = 32;
/// Of larger files the room, on disk and in memory, may be what the next write needs.
const BYTES_MAX: u64 = 256 << 10;

#[derive(Default)]
pub(in crate::overlay) struct Spent(Mutex<Vec<Comparison>>);

impl Overlay {
    /// Nothing asks for a comparison any more.
    pub(in crate::overlay) fn spend(&self, comparison: Comparison) {
        if comparison.new.size + comparison.present.size > BYTES_MAX {
            return;
        }
        let mut spent = self.spent.0.lock();
        if spent.len() < KEPT_MAX {
            spent.push(comparison);
        }
    }

    /// To be called once whoever waited has been answered, and may go on meanwhile.
    pub fn after_answer(&self) {
        self.store.record_opened();
        self.drop_spent();
    }

    /// Records what is done, and lets go what is spent, a moment after it was.
    pub fn record_until_the_end(&self) {
        self.store.record_until_the_end(|| self.drop_spent());
    }

    pub(in crate::overlay) fn drop_spent(&self) {
        let spent = std::mem::take(&mut *self.spent.0.lock());
        drop(spent);
    }
}
