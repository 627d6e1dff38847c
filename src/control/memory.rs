//! Limits how much of the daemon's memory descriptors in `.fettle` may use: open texts, and answers that nobody has read.
//!
//! Askers who may decide as the owner or root have their own share, so that others, who may only look, cannot block them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::{Asker, Project, rights};

/// The most bytes kept before anything new is refused: a dozen diffs of the largest files that are compared.
const BYTES_MAX: usize = 64 << 20;

/// The most long texts that are made at once. Each may take several times its own size meanwhile.
const TURNS: usize = 4;

#[derive(Default)]
pub struct Memory {
    owners: Arc<Share>,
    others: Arc<Share>,
}

#[derive(Default)]
pub struct Share {
    bytes: AtomicUsize,
    /// The number of texts being made.
    making: Mutex<usize>,
    made: Condvar,
}

/// Counts bytes as kept for as long as it lives.
pub struct Kept {
    share: Arc<Share>,
    bytes: usize,
}

/// The right to make a text, for as long as it lives.
#[must_use]
pub struct Turn<'a>(&'a Share);

impl Memory {
    pub fn share(&self, asker: &Asker, project: &Project) -> &Arc<Share> {
        if rights::has_kept_places(asker, project) { &self.owners } else { &self.others }
    }
}

impl Share {
    pub fn has_room(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) < BYTES_MAX
    }

    pub fn keep(self: &Arc<Self>, bytes: usize) -> Kept {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Kept { share: Arc::clone(self), bytes }
    }

    /// Waits until few enough texts are being made.
    pub fn turn(&self) -> Turn<'_> {
        let mut making = self.making.lock();
        self.made.wait_while(&mut making, |making| *making >= TURNS);
        *making += 1;
        Turn(self)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.share.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.making.lock() -= 1;
        self.0.made.notify_one();
    }
}
