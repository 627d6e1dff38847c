//! Work that no caller needs to wait for. It is done once the caller has its answer, while the kernel wakes it
//! ([`Overlay::after_answer`]), or with the next record, if the answering thread runs on the caller's processor.
//!
//! Letting go of a file that has just been replaced takes the kernel as long as replacing it. The row of a file that is
//! only opened takes a transaction, and is not needed before there is something to lose.

use parking_lot::Mutex;

use crate::overlay::Overlay;
use crate::overlay::judge::compare::Comparison;

/// How many comparisons are kept until the next record, which comes after at most that many landings of small files. Each
/// has up to three files open.
const KEPT_MAX: usize = 32;
/// The room of larger files, on disk and in memory, may be what the next write needs.
const BYTES_MAX: u64 = 256 << 10;

#[derive(Default)]
pub(in crate::overlay) struct Spent(Mutex<Vec<Comparison>>);

impl Overlay {
    /// Takes a comparison that is no longer needed, to drop it later unless it is large.
    pub(in crate::overlay) fn spend(&self, comparison: Comparison) {
        if comparison.new.size + comparison.present.size > BYTES_MAX {
            return;
        }
        let mut spent = self.spent.0.lock();
        if spent.len() < KEPT_MAX {
            spent.push(comparison);
        }
    }

    /// To be called once the caller has its answer, and may go on meanwhile.
    pub fn after_answer(&self) {
        self.store.record_opened();
        self.drop_spent();
    }

    /// Records what is done and drops what is spent, a moment later each time, until the view ends.
    pub fn record_until_the_end(&self) {
        self.store.record_until_the_end(|| self.drop_spent());
    }

    pub(in crate::overlay) fn drop_spent(&self) {
        let spent = std::mem::take(&mut *self.spent.0.lock());
        drop(spent);
    }
}
