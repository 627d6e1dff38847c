//! Which changes land or go along with those that a request names, and which it must name as well. These are facts of the
//! table of upper entries and of lower's listings; nothing is claimed here.

use std::collections::{BTreeSet, HashSet};

use super::{Reviewed, unknown};
use crate::model::{ChangeId, RelPath};
use crate::overlay::{Overlay, State};
use crate::protocol::{ErrorBody, ErrorCode, refused_at};
use crate::store::{UpperRow, What};

impl Overlay {
    /// `ids`, with the held directories that they lie in put first: nothing can land in a directory that lower does not
    /// have yet.
    pub(super) fn with_landing_first(&self, ids: &[ChangeId]) -> Vec<ChangeId> {
        let state = self.state.lock();
        let rows = ids.iter().filter_map(|id| state.uppers.of_change(id)).map(|upper| &upper.row);
        // A deletion needs no directory.
        let rows = rows.filter(|row| row.what != What::Whiteout);
        let dirs =
            rows.flat_map(|row| &row.names).flat_map(|name| std::iter::successors(name.parent(), RelPath::parent));
        let mut dirs: Vec<RelPath> = dirs.collect();
        // A path sorts before what is below it.
        dirs.sort();
        let held = |dir: &RelPath| state.uppers.get(state.uppers.held_dir(dir)?)?.row.held.as_ref();
        let first = dirs.iter().filter_map(held).map(|held| held.id.clone());
        each_once(first.chain(ids.iter().cloned()))
    }

    /// An id names exact content (SPEC §8): the id of a directory's removal, or of what takes its place, does not let
    /// deletions in the directory land. They must be named as well.
    pub(super) fn check_contents_named(&self, ids: &[ChangeId]) -> Reviewed<()> {
        let named: HashSet<&ChangeId> = ids.iter().collect();
        for id in ids {
            let state = self.state.lock();
            let upper = state.uppers.of_change(id).ok_or_else(|| unknown(id))?;
            if upper.row.what == What::Dir {
                continue;
            }
            let path = upper.row.path();
            let left = state.left_within(path, &named);
            if !left.is_empty() {
                return Err(goes_only_with(path, &left));
            }
        }
        Ok(())
    }

    /// True if a held change is the removal of a directory in which a deletion is held that is not named.
    pub fn waits_for_more(&self, row: &UpperRow, named: &HashSet<&ChangeId>) -> bool {
        row.removes_dir() && !self.state.lock().left_within(row.path(), named).is_empty()
    }

    /// Adds the removals of directories that are hidden only for the deletions held in them, if these changes are the
    /// last of those: the directories go with them (SPEC §4.8).
    pub(super) fn with_emptied_dirs(&self, mut ids: Vec<ChangeId>) -> Vec<ChangeId> {
        let going: HashSet<RelPath> = {
            let state = self.state.lock();
            let rows = ids.iter().filter_map(|id| state.uppers.of_change(id)).map(|upper| &upper.row);
            rows.filter(|row| row.what == What::Whiteout).map(|row| row.path().clone()).collect()
        };
        let dirs = going.iter().filter_map(RelPath::parent).collect();
        ids.extend(self.emptied(dirs, going));
        ids
    }

    /// The removals of those of `dirs`, and of directories above them, that are hidden only for what is `going`.
    pub(super) fn emptied(&self, mut dirs: BTreeSet<RelPath>, mut going: HashSet<RelPath>) -> Vec<ChangeId> {
        let mut ids = Vec::new();
        // A path sorts before what is below it: each directory comes after all that could go with it.
        while let Some(dir) = dirs.pop_last() {
            if let Some(id) = self.removal_that_waited_for(&going, &dir) {
                ids.push(id);
                dirs.extend(dir.parent());
                going.insert(dir);
            }
        }
        ids
    }

    /// The removal of a directory that is hidden only for what is `going`. The request does not name it: whatever keeps
    /// it from going keeps nothing else from landing.
    fn removal_that_waited_for(&self, going: &HashSet<RelPath>, dir: &RelPath) -> Option<ChangeId> {
        let id = {
            let state = self.state.lock();
            let id = state.uppers.hidden_for_contents(dir).filter(|_| !going.contains(dir))?;
            let mut within = state.uppers.within(dir).into_iter().filter_map(|id| state.uppers.get(id));
            let goes = |path: &RelPath| path == dir || going.contains(path);
            if within.any(|upper| upper.row.held.is_some() && !goes(upper.row.path())) {
                return None;
            }
            id.clone()
        };
        match self.other_entry(dir, |entry| going.contains(entry)) {
            Ok(other) => other.is_none().then_some(id),
            Err(err) => {
                log::warn!("see whether {dir} can go: {}", err.message);
                None
            }
        }
    }

    /// Adds what cannot stay without these changes: the contents of a held directory. A deletion in one of lower's
    /// directories can.
    pub(in crate::overlay) fn with_dependents(&self, ids: &[ChangeId]) -> Reviewed<Vec<ChangeId>> {
        let state = self.state.lock();
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        for id in ids {
            let upper = state.uppers.of_change(id).ok_or_else(|| unknown(id))?;
            let held = upper.row.held.as_ref().ok_or_else(|| unknown(id))?;
            if seen.contains(id) {
                // Added already, with all that is in it.
                continue;
            }
            let within = match upper.row.what {
                What::Dir => state.uppers.within(upper.row.path()),
                What::File | What::Symlink | What::Node | What::Whiteout => Vec::new(),
            };
            let within = within.into_iter().filter_map(|id| state.uppers.get(id)?.row.held.as_ref());
            for held in within.chain([held]) {
                if seen.insert(held.id.clone()) {
                    all.push(held.id.clone());
                }
            }
        }
        Ok(all)
    }
}

impl State {
    /// The changes held at a path or below it that are not named, sorted by path.
    fn left_within(&self, path: &RelPath, named: &HashSet<&ChangeId>) -> Vec<(&ChangeId, &RelPath)> {
        let within = self.uppers.within(path).into_iter().filter_map(|id| {
            let row = &self.uppers.get(id)?.row;
            Some((&row.held.as_ref()?.id, row.path()))
        });
        let mut left: Vec<_> = within.filter(|(id, _)| !named.contains(id)).collect();
        left.sort_by_key(|(_, path)| *path);
        left
    }
}

/// Without the error's id: it would tell programs and people that the confirm can be forced.
fn goes_only_with(path: &RelPath, left: &[(&ChangeId, &RelPath)]) -> ErrorBody {
    let why = "it goes only with what is deleted in it; confirm that, too, or all of it by its path";
    refused_at(path, ErrorCode::Conflict, why).telling(left.iter().copied())
}

fn each_once(ids: impl IntoIterator<Item = ChangeId>) -> Vec<ChangeId> {
    let mut seen = HashSet::new();
    ids.into_iter().filter(|id| seen.insert(id.clone())).collect()
}
