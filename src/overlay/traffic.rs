//! What the kernel has asked for, and how often: each request is a wake-up or two, so this is what speed is made of, and
//! what no busy machine changes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

#[derive(Default)]
pub struct Traffic {
    /// By the name of the request. The lock is a leaf, taken for a moment.
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Of who has asked for rings: why they are not had, where they are not.
    rings: OnceLock<Result<(), String>>,
}

impl Traffic {
    pub fn note(&self, request: &'static str) {
        *self.counts.lock().entry(request).or_default() += 1;
    }

    /// Requests come by the kernel's rings, which were asked for, or why they do not. To be said once.
    pub fn tried_rings(&self, tried: Result<(), String>) {
        self.rings.set(tried).unwrap_or(());
    }

    /// None where nobody has asked for rings.
    pub fn rings(&self) -> Option<&Result<(), String>> {
        self.rings.get()
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().iter().map(|(request, count)| ((*request).to_owned(), *count)).collect()
    }
}
