//! What the kernel has asked for, and how often: each request is a wake-up or two, so this is what speed is made of, and
//! what no busy machine changes.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Counts by the name of the request. The lock is a leaf, taken for a moment.
#[derive(Default)]
pub struct Traffic(Mutex<BTreeMap<&'static str, u64>>);

impl Traffic {
    pub fn note(&self, request: &'static str) {
        *self.0.lock().entry(request).or_default() += 1;
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().iter().map(|(request, count)| ((*request).to_owned(), *count)).collect()
    }
}
