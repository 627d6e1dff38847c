//! What the kernel has asked for, and how often. Each request costs a wake-up or two, so these counts stand for speed,
//! and do not depend on how busy the machine is.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

#[derive(Default)]
pub struct Traffic {
    /// By the name of the request. The lock is a leaf, taken for a moment.
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Set once rings were asked for: why they are not in use, if they are not.
    rings: OnceLock<Result<(), String>>,
}

impl Traffic {
    pub fn note(&self, request: &'static str) {
        *self.counts.lock().entry(request).or_default() += 1;
    }

    /// Requests come by the kernel's rings, which were asked for, or why they do not. To be called once.
    pub fn tried_rings(&self, tried: Result<(), String>) {
        self.rings.set(tried).unwrap_or(());
    }

    /// `None` if rings were not asked for.
    pub fn rings(&self) -> Option<&Result<(), String>> {
        self.rings.get()
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().iter().map(|(request, count)| ((*request).to_owned(), *count)).collect()
    }
}
