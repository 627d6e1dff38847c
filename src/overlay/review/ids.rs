//! What the ids given to changes stand for, whether those changes still live or not. An id names exact content (SPEC §8),
//! but its eight digits are few enough to be forged: what a reviewer has looked at under an id must be all that it ever
//! means.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{ChangeId, Digest};

/// As many as the log tells of, and more. Beyond that the oldest are forgotten, as not worth their memory.
const GIVEN_MAX: usize = 65_536;

/// Invariant: `order` has each key of `given` once.
#[derive(Default)]
pub(in crate::overlay) struct GivenIds {
    /// Each id with the hash that it is the beginning of.
    given: BTreeMap<ChangeId, Digest>,
    /// In the order in which they were given.
    order: VecDeque<ChangeId>,
}

impl GivenIds {
    /// Notes what an id was given to. If it was given before, it keeps its first meaning.
    pub fn note(&mut self, id: ChangeId, full: Digest) {
        if self.given.contains_key(&id) {
            return;
        }
        self.order.push_back(id.clone());
        self.given.insert(id, full);
        if self.order.len() > GIVEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.given.remove(&oldest);
        }
    }

    /// True if an id stands for something other than the change with this hash.
    pub fn is_anothers(&self, id: &ChangeId, full: Digest) -> bool {
        self.given.get(id).is_some_and(|given| *given != full)
    }

    /// The ids that begin with these digits.
    pub fn beginning_with(&self, digits: &ChangeId) -> impl Iterator<Item = &ChangeId> {
        let later = self.given.range(digits..).map(|(id, _)| id);
        later.take_while(move |id| id.as_str().starts_with(digits.as_str()))
    }
}
