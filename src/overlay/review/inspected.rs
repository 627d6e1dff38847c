//! What people were shown of operations, so that a decision about an operation by its name is one about what was shown
//! (SPEC §8).
//!
//! The id of a change names exact content. The name of an operation does not: more changes join it while its process goes
//! on, and those that are held are written again. The first look at an operation counts for all of it that is held, and
//! what comes later is late until it has been looked at as well. A list counts as a look only until a person has seen
//! what the changes would do: a program that keeps asking for lists must not stand for that person.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;

use crate::model::{ChangeId, OperationId};
use crate::overlay::Overlay;
use crate::store::{self, Depth, Gathered, Held, Inspection, Store};

/// By operations. Guarded by itself; taken before what the store guards, and after every other lock.
#[derive(Default)]
pub(in crate::overlay) struct Inspected(Mutex<HashMap<OperationId, Inspection>>);

/// The held changes of each operation.
pub type Members = HashMap<OperationId, BTreeSet<ChangeId>>;

/// Groups all that was held at one moment by operation.
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

    /// Several operations have become one. Those changes that were not looked at before are late in it.
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
    /// Adds what was shown, and returns true if that is more than was known.
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

/// Looking needs neither room nor the right to write: what cannot be saved holds for as long as this process runs.
fn saved(saved: store::Result<()>) {
    if let Err(err) = saved {
        log::warn!("note what was shown of an operation: {err}");
    }
}

impl Overlay {
    /// Loads what was shown before this process began. What is held must be loaded already.
    pub(in crate::overlay) fn load_inspections(&self) -> crate::overlay::Result<()> {
        *self.inspected.0.lock() = self.store.load_inspections()?.into_iter().collect();
        self.forget_inspections();
        Ok(())
    }

    pub(in crate::overlay) fn forget_inspections(&self) {
        if self.inspected.0.lock().is_empty() {
            // The usual case, and there may be many held changes to go through.
            return;
        }
        let held = {
            let state = self.state.lock();
            state.uppers.iter().filter_map(|upper| upper.row.held.as_ref()?.operation).collect()
        };
        self.inspected.forget_all_but(&held, &self.store);
    }

    /// The held changes of operations. Ask for these before reading what will be shown of them, so that what comes in
    /// between is late.
    pub fn members(&self, wanted: impl Fn(OperationId) -> bool) -> Members {
        let state = self.state.lock();
        let held = state.uppers.iter().filter_map(|upper| upper.row.held.as_ref());
        members_of(held.filter(|held| held.operation.is_some_and(&wanted)))
    }

    /// Notes that a person who may decide was shown changes.
    pub fn note_shown<'a>(&self, members: &Members, shown: impl IntoIterator<Item = &'a ChangeId>, depth: Depth) {
        self.inspected.note(members, &shown.into_iter().collect(), depth, &self.store);
    }

    /// Some hunks of a change were confirmed or discarded: a person who has seen the whole has seen what stays.
    pub(super) fn note_parted(&self, whole: &Held, rest: Option<&ChangeId>) {
        if let (Some(operation), Some(rest)) = (whole.operation, rest) {
            self.inspected.parted(operation, &whole.id, rest, &self.store);
        }
    }

    /// True if a change of an operation came, or became what it is, after the operation was last shown.
    pub fn is_late(&self, operation: OperationId, id: &ChangeId) -> bool {
        self.inspected.is_late(operation, id)
    }
}
