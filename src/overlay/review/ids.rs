//! What ids stand for that were given to changes, whether these still live or not. An id names exact content (SPEC §8), and
//! its eight digits are few enough to be forged: what somebody has looked at under one must be all that it ever means.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{ChangeId, Digest};

/// As many as the log tells of, and more. The oldest are forgotten before that is more memory than they are worth.
const GIVEN_MAX: usize = 65_536;

/// Invariant: `order` has each key of `given` once.
#[derive(Default)]
pub(in crate::overlay) struct GivenIds {
    /// The hash that each is the beginning of.
    given: BTreeMap<ChangeId, Digest>,
    /// As they were given.
    order: VecDeque<ChangeId>,
}

impl GivenIds {
    /// What an id was given to stays what it means.
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

    /// Whether an id means something else than the change with this hash.
    pub fn is_anothers(&self, id: &ChangeId, full: Digest) -> bool {
        self.given.get(id).is_some_and(|given| *given != full)
    }

    /// Those that begin with these digits.
    pub fn beginning_with(&self, digits: &ChangeId) -> impl Iterator<Item = &ChangeId> {
        let later = self.given.range(digits..).map(|(id, _)| id);
        later.take_while(move |id| id.as_str().starts_with(digits.as_str()))
    }
}
