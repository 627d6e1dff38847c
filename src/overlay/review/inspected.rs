//! What people were shown of operations, so that who decides about one by its name decides about what was shown (SPEC §8).
//!
//! The id of a change names exact content. The name of an operation does not: more joins it while its process goes on, and
//! what is held of it is written again. The first look at one takes all of it that is held for shown, and what comes after
//! that is late until somebody has looked at it as well. A list counts as a look until somebody has seen what the changes
//! would do, and no more from then on: whatever asks for lists again and again must not stand for that person.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;

use crate::model::{ChangeId, OperationId};
use crate::overlay::Overlay;
use crate::store::{self, Depth, Gathered, Held, Inspection, Store};

/// By operations. Guarded by itself; taken before what the store guards, and after every other lock.
#[derive(Default)]
pub(in crate::overlay) struct Inspected(Mutex<HashMap<OperationId, Inspection>>);

/// What is held of operations, each change with its own.
pub type Members = HashMap<OperationId, BTreeSet<ChangeId>>;

/// Of all that was held at one moment.
pub fn members_of<'a>(held: impl IntoIterator<Item = &'a Held>) -> Members {
    let mut members = Members::new();
    for held in held {
        if let Some(operation) = held.operation {
            members.entry(operation).or_default().insert(held.id.clone());
        }
    }
    members
}

impl Inspected {
    fn note(&self, members: &Members, shown: &HashSet<&ChangeId>, depth: Depth, store: &Store) {
        let mut inspected = self.0.lock();
        for (operation, ids) in members {
            let mut shown = ids.iter().filter(|id| shown.contains(id)).peekable();
            if shown.peek().is_none() {
                continue;
            }
            let first = || Inspection { depth, ids: ids.clone() };
            let is_known = inspected.contains_key(operation);
            let inspection = inspected.entry(*operation).or_insert_with(first);
            if !is_known || inspection.takes(shown, depth) {
                saved(store.save_inspection(*operation, inspection, &[]));
            }
        }
    }

    fn is_late(&self, operation: OperationId, id: &ChangeId) -> bool {
        self.0.lock().get(&operation).is_some_and(|inspection| !inspection.ids.contains(id))
    }

    /// Operations have become one. What was in those of them that nobody had looked at is late in the one.
    pub fn renamed(&self, gathered: &Gathered, store: &Store) {
        let mut inspected = self.0.lock();
        let parts: Vec<Inspection> = gathered.were.iter().filter_map(|was| inspected.remove(was)).collect();
        let all = parts.into_iter().chain(inspected.remove(&gathered.operation)).reduce(Inspection::joined);
        if let Some(all) = all {
            saved(store.save_inspection(gathered.operation, &all, &gathered.were));
            inspected.insert(gathered.operation, all);
        }
    }

    fn parted(&self, operation: OperationId, whole: &ChangeId, rest: &ChangeId, store: &Store) {
        let mut inspected = self.0.lock();
        let Some(inspection) = inspected.get_mut(&operation).filter(|one| one.ids.contains(whole)) else { return };
        inspection.ids.insert(rest.clone());
        saved(store.save_inspection(operation, inspection, &[]));
    }

    /// Forgets operations that nothing joins any more and of which nothing is held.
    fn forget_all_but(&self, held: &HashSet<OperationId>, store: &Store) {
        let mut inspected = self.0.lock();
        let gone: Vec<OperationId> = inspected.keys().filter(|operation| !held.contains(operation)).copied().collect();
        if !gone.is_empty() {
            inspected.retain(|operation, _| held.contains(operation));
            saved(store.drop_inspections(&gone));
        }
    }
}

impl Inspection {
    /// Whether that is more than was known.
    fn takes<'a>(&mut self, shown: impl Iterator<Item = &'a ChangeId>, depth: Depth) -> bool {
        if depth < self.depth {
            return false;
        }
        let before = (self.depth, self.ids.len());
        self.depth = depth;
        self.ids.extend(shown.cloned());
        before != (self.depth, self.ids.len())
    }

    fn joined(mut self, other: Self) -> Self {
        self.depth = self.depth.max(other.depth);
        self.ids.extend(other.ids);
        self
    }
}

/// Looking needs no room and no right to write: what cannot be kept holds for as long as this process runs.
fn saved(saved: store::Result<()>) {
    if let Err(err) = saved {
        log::warn!("note what was shown of an operation: {err}");
    }
}

impl Overlay {
    /// What was shown before this process was there. What is held must be known.
    pub(in crate::overlay) fn load_inspections(&self) -> crate::overlay::Result<()> {
        *self.inspected.0.lock() = self.store.load_inspections()?.into_iter().collect();
        self.forget_inspections();
        Ok(())
    }

    pub(in crate::overlay) fn forget_inspections(&self) {
        if self.inspected.0.lock().is_empty() {
            // Mostly: and what is held may be much to go through.
            return;
        }
        let held = {
            let state = self.state.lock();
            state.uppers.iter().filter_map(|upper| upper.row.held.as_ref()?.operation).collect()
        };
        self.inspected.forget_all_but(&held, &self.store);
    }

    /// What is held of operations. To be asked for before what is shown of them is: what comes meanwhile is late.
    pub fn members(&self, wanted: impl Fn(OperationId) -> bool) -> Members {
        let state = self.state.lock();
        let held = state.uppers.iter().filter_map(|upper| upper.row.held.as_ref());
        members_of(held.filter(|held| held.operation.is_some_and(&wanted)))
    }

    /// Somebody who may decide was shown changes.
    pub fn note_shown<'a>(&self, members: &Members, shown: impl IntoIterator<Item = &'a ChangeId>, depth: Depth) {
        self.inspected.note(members, &shown.into_iter().collect(), depth, &self.store);
    }

    /// A person has taken some hunks of a change: who has seen the whole has seen what stays.
    pub(super) fn note_parted(&self, whole: &Held, rest: Option<&ChangeId>) {
        if let (Some(operation), Some(rest)) = (whole.operation, rest) {
            self.inspected.parted(operation, &whole.id, rest, &self.store);
        }
    }

    /// Whether a change of an operation came, or became what it is, after the operation was last shown.
    pub fn is_late(&self, operation: OperationId, id: &ChangeId) -> bool {
        self.inspected.is_late(operation, id)
    }
}
