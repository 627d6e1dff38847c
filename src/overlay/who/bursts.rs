//! Bursts: one process tree deletes or rewrites many files in one go (SPEC §7). What exceeds the limit is held, and all
//! of it is one operation, under the number of its first event.
//!
//! Only paths that had something before the session count: what an agent makes and removes again is no loss. Nor is what
//! it puts back as it was.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::{ChangeId, OperationId, RelPath};
use crate::overlay::judge::claim::Job;
use crate::overlay::judge::compare::Comparison;
use crate::overlay::{Overlay, Result};
use crate::store::{self, Gathered, Held, UpperId, UpperRow, Writer};

/// What a tree does within this time counts as done in one go.
pub(super) const WITHIN: Duration = Duration::from_secs(2);

/// By process tree.
#[derive(Default)]
pub(in crate::overlay) struct Bursts(Mutex<HashMap<u32, Recent>>);

/// What one tree has just done.
#[derive(Default)]
struct Recent {
    /// Each path once, the latest last.
    touched: VecDeque<Touched>,
    part: Part,
}

struct Touched {
    path: RelPath,
    /// When it was last touched.
    at: Instant,
    /// When it was first touched, in milliseconds since the epoch, as events tell it.
    noted: i64,
    /// A person has decided since: the path still counts, but belongs to nothing that comes.
    is_apart: bool,
}

/// What a change is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    OfNothing,
    /// The limit has just been exceeded: all that was touched belongs together.
    OfWhat(Vec<(RelPath, i64)>),
    Of(OperationId),
}

impl Bursts {
    /// Notes that a tree deletes or rewrites what is at `path`. Returns whether that exceeds `limit`.
    fn count(&self, tree: u32, path: &RelPath, limit: u64, now: Instant) -> bool {
        let mut trees = self.0.lock();
        for recent in trees.values_mut() {
            // They are in order of time: where much was touched, not all of it has to be looked at each time.
            while recent.touched.front().is_some_and(|touched| now - touched.at >= WITHIN) {
                recent.touched.pop_front();
            }
        }
        trees.retain(|of, recent| *of == tree || !recent.touched.is_empty());
        let recent = trees.entry(tree).or_default();
        if recent.touched.is_empty() {
            // The last burst is over.
            recent.part = Part::OfNothing;
        }
        let before = recent.touched.iter().position(|touched| touched.path == *path);
        let before = before.and_then(|at| recent.touched.remove(at));
        let noted = before.filter(|before| !before.is_apart).map_or_else(store::now_millis, |before| before.noted);
        recent.touched.push_back(Touched { path: path.clone(), at: now, noted, is_apart: false });
        let exceeded = recent.touched.len() as u64 > limit;
        if exceeded && !matches!(recent.part, Part::Of(_)) {
            let together = recent.touched.iter().filter(|touched| !touched.is_apart);
            recent.part = Part::OfWhat(together.map(|touched| (touched.path.clone(), touched.noted)).collect());
        }
        exceeded
    }

    /// Returns what a change of `path` is part of; for a directory, what changes of files in it are part of.
    fn part(&self, tree: u32, path: &RelPath) -> Part {
        let trees = self.0.lock();
        // Mostly there is no burst, and then the touched paths need not be searched.
        let recent = trees.get(&tree).filter(|recent| recent.part != Part::OfNothing);
        let recent = recent.filter(|recent| recent.touched.iter().any(|touched| touched.path.is_within(path)));
        recent.map(|recent| recent.part.clone()).unwrap_or_default()
    }

    fn is(&self, tree: u32, operation: OperationId) {
        if let Some(recent) = self.0.lock().get_mut(&tree) {
            recent.part = Part::Of(operation);
        }
    }

    /// Events belong to another operation from now on.
    fn renamed(&self, gathered: &Gathered) {
        for recent in self.0.lock().values_mut() {
            if matches!(recent.part, Part::Of(operation) if gathered.were.contains(&operation)) {
                recent.part = Part::Of(gathered.operation);
            }
        }
    }

    /// Later changes do not join the operations so far. Their paths count all the same: no decision makes room for more.
    pub fn end_all(&self) {
        for recent in self.0.lock().values_mut() {
            recent.part = Part::OfNothing;
            recent.touched.iter_mut().for_each(|touched| touched.is_apart = true);
        }
    }
}

impl Overlay {
    /// Counts a change as part of what a tree takes from the project in one go. Returns whether it exceeds the limit.
    pub(in crate::overlay) fn count_in_burst(&self, comparison: &Comparison, tree: u32) -> bool {
        let takes = comparison.old.exists()
            && !comparison.is_back()
            && !self.is_fresh_as(&comparison.path, Some(&comparison.present));
        let limit = self.policy().settings.burst;
        takes && self.bursts.count(tree, &comparison.path, limit, Instant::now())
    }

    /// Returns the burst that a change of `path` is part of. What the tree has done until now becomes part of it, too; if
    /// that fails, the change is held all the same, and only does not say what it came with.
    pub(super) fn burst_of(&self, path: &RelPath, tree: u32) -> Option<OperationId> {
        match self.bursts.part(tree, path) {
            Part::OfNothing => None,
            Part::Of(operation) => Some(operation),
            Part::OfWhat(touched) => {
                let gathered = self.gathered_or_apart(self.gather(&touched, &self.goes.operations_of(tree)))?;
                self.bursts.is(tree, gathered);
                self.goes.end_operation(gathered);
                Some(gathered)
            }
        }
    }

    /// Makes one operation of what was done to paths, each since a time in milliseconds. What was held as part of another
    /// operation before stays with that, unless that is `going_on`.
    pub(super) fn gather(&self, touched: &[(RelPath, i64)], going_on: &[OperationId]) -> Result<Option<OperationId>> {
        let Some(gathered) = self.store.gather(touched, going_on)? else { return Ok(None) };
        let paths = touched.iter().map(|(path, _)| path);
        let of_paths: Vec<UpperId> = paths.filter_map(|path| self.state.lock().uppers.at(path)).collect();
        self.note_gathered(&gathered, &of_paths).map(Some)
    }

    /// Makes one operation of several.
    pub(in crate::overlay) fn unite(&self, operations: &[OperationId]) -> Result<Option<OperationId>> {
        let Some(gathered) = self.store.unite(operations)? else { return Ok(None) };
        self.note_gathered(&gathered, &[]).map(Some)
    }

    /// What is held of these operations becomes part of the new one, and so does what comes.
    fn note_gathered(&self, gathered: &Gathered, also: &[UpperId]) -> Result<OperationId> {
        self.goes.renamed(gathered);
        self.bursts.renamed(gathered);
        self.inspected.renamed(gathered, &self.store);
        let operation = gathered.operation;
        let mut state = self.state.lock();
        let of_them = |held: &Held| held.operation.is_some_and(|was| gathered.were.contains(&was));
        let is_of = |row: &UpperRow| match &row.held {
            Some(held) => of_them(held) || (held.operation.is_none() && also.contains(&row.id)),
            None => false,
        };
        let ids: Vec<UpperId> =
            state.uppers.iter().map(|upper| &upper.row).filter(|row| is_of(row)).map(|row| row.id).collect();
        for id in ids {
            let Some(upper) = state.uppers.get_mut(id) else { continue };
            let mut row = upper.row.clone();
            if let Some(held) = &mut row.held {
                held.operation = Some(operation);
            }
            // The holder of a claim on one may have dropped its row already: then it stays dropped.
            self.store.update_upper(&row)?;
            upper.row = row;
        }
        Ok(operation)
    }

    /// Returns the tree of a writer. A process that has ended is a tree of its own.
    pub(in crate::overlay) fn tree_or_itself(&self, by: &Writer) -> u32 {
        self.tree_of(by.pid).unwrap_or(by.pid)
    }

    /// The same for what is judged, perhaps at the release of what a process had open that has ended.
    pub(in crate::overlay) fn tree_of_job_or_itself(&self, job: &Job, by: &Writer) -> u32 {
        self.tree_of_job(job, by).unwrap_or(by.pid)
    }

    /// Returns the held changes of an operation.
    pub fn held_of(&self, operation: OperationId) -> Vec<ChangeId> {
        let held = self.held_rows().into_iter().filter_map(|row| row.held);
        held.filter(|held| held.operation == Some(operation)).map(|held| held.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_counts_once_and_for_two_seconds_and_each_tree_by_itself() {
        let bursts = Bursts::default();
        let begin = Instant::now();
        let path = |number: u32| RelPath::parse(format!("p{number}").as_bytes()).unwrap();
        let exceeds =
            |tree, number, millis| bursts.count(tree, &path(number), 3, begin + Duration::from_millis(millis));
        assert!((0..3).all(|number| !exceeds(1, number, 0)));
        assert!(!exceeds(1, 2, 100) && !exceeds(2, 3, 100), "again, and by another");
        assert!(exceeds(1, 3, 200));
        assert_eq!(bursts.part(2, &path(3)), Part::OfNothing);
        let Part::OfWhat(touched) = bursts.part(1, &path(3)) else { panic!("a burst begins") };
        assert_eq!(touched.iter().map(|(path, _)| path.to_string()).collect::<Vec<_>>(), ["p0", "p1", "p2", "p3"]);
        bursts.is(1, OperationId::of_first_event(7));
        assert!(exceeds(1, 4, 1900), "five within two seconds");
        assert_eq!(bursts.part(1, &path(4)), Part::Of(OperationId::of_first_event(7)));
        assert_eq!(bursts.part(1, &path(9)), Part::OfNothing, "what was not deleted or rewritten is not part of it");
        // The burst goes on, below the limit.
        assert!(!exceeds(1, 5, 3000) && !exceeds(1, 6, 4000));
        assert_eq!(bursts.part(1, &path(6)), Part::Of(OperationId::of_first_event(7)));
        // And is over.
        assert!(!exceeds(1, 0, 6000));
        assert_eq!(bursts.part(1, &path(0)), Part::OfNothing);
    }
}
