//! What each process tree last saw of a path (SPEC §7): who writes over what it has never seen is held, `stale`.
//!
//! Only opens through the view count, and what the tree itself has put there. Names that went elsewhere are forgotten: of
//! what came to them since nobody has seen anything. So are the oldest, when there are too many.

use std::collections::BTreeMap;

use super::compare::Comparison;
use super::copy_up::same_content_stamp;
use super::settle::Job;
use super::{NodeId, Overlay, State};
use crate::model::{RelPath, Stamp};
use crate::store::Writer;

/// Of how many paths, twice.
const PATHS_MAX: usize = 32_768;
/// How many trees are remembered of each.
const TREES_MAX: usize = 8;

#[derive(Default)]
pub(super) struct Sights {
    young: BTreeMap<RelPath, Vec<Sight>>,
    /// Forgotten as a whole when there are as many again.
    old: BTreeMap<RelPath, Vec<Sight>>,
}

/// What lower had when a process of `tree` opened it.
#[derive(Clone, Copy)]
struct Sight {
    tree: u32,
    stamp: Stamp,
}

impl Sights {
    /// A tree sees what lower has at a path; none: nothing, or what is held there, of which it will be asked anyway.
    pub fn note(&mut self, tree: u32, path: &RelPath, stamp: Option<Stamp>) {
        let sights = self.young_at(path);
        sights.retain(|sight| sight.tree != tree);
        if sights.len() == TREES_MAX {
            sights.remove(0);
        }
        sights.extend(stamp.map(|stamp| Sight { tree, stamp }));
    }

    fn last(&self, tree: u32, path: &RelPath) -> Option<Stamp> {
        let sights = self.young.get(path).or_else(|| self.old.get(path))?;
        sights.iter().find(|sight| sight.tree == tree).map(|sight| sight.stamp)
    }

    /// Lower has at a path what was there before, or what the view had there already: who saw it has missed nothing.
    pub fn unchanged(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        let sights = self.young.get_mut(path).or_else(|| self.old.get_mut(path)).into_iter().flatten();
        sights.filter(|sight| same_content_stamp(&sight.stamp, before)).for_each(|sight| sight.stamp = *after);
    }

    /// What was at or below a path is not, or something else is.
    pub fn forget_within(&mut self, path: &RelPath) {
        for sights in [&mut self.young, &mut self.old] {
            let within = sights.range(path.clone()..).take_while(|(at, _)| at.is_within(path));
            let within: Vec<RelPath> = within.map(|(at, _)| at.clone()).collect();
            within.iter().for_each(|at| drop(sights.remove(at)));
        }
    }

    fn young_at(&mut self, path: &RelPath) -> &mut Vec<Sight> {
        if !self.young.contains_key(path) {
            if self.young.len() >= PATHS_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            let known = self.old.remove(path).unwrap_or_default();
            self.young.insert(path.clone(), known);
        }
        self.young.get_mut(path).expect("it was put there above")
    }
}

impl Overlay {
    /// Whether lower has something else than its writer's tree last saw there. What is held is asked for its base instead.
    pub(super) fn is_stale(&self, job: &Job, comparison: &Comparison, by: &Writer) -> bool {
        if job.row.held.is_some() {
            return false;
        }
        let Some(tree) = self.tree_of(by.pid) else { return false };
        let seen = self.state.lock().sights.last(tree, &comparison.path);
        let now = comparison.present.meta.map(|meta| meta.stamp());
        seen.is_some_and(|seen| now.is_none_or(|now| !same_content_stamp(&seen, &now)))
    }
}

impl State {
    /// A process of `tree` has opened a node, of which lower had `stamp` a moment ago.
    pub(super) fn saw_opened(&mut self, path: &RelPath, node: NodeId, stamp: Option<Stamp>, tree: Option<u32>) {
        let is_there = |stamp: Stamp| self.nodes.is_at(node, path) && self.nodes.has_lower(node, &stamp);
        // Else something of ours has landed since, of which is noted who has seen it.
        if stamp.is_none_or(is_there) {
            self.saw(path, stamp, tree);
        }
    }

    /// A process of `tree` has put there what lower has at a path.
    pub(super) fn saw(&mut self, path: &RelPath, stamp: Option<Stamp>, tree: Option<u32>) {
        match tree {
            Some(tree) => self.sights.note(tree, path, stamp),
            // It has ended, and nobody knows any more whose tree has seen it.
            None => self.sights.forget_within(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    fn stamp(inode: u64) -> Stamp {
        let time = Timestamp::default();
        Stamp { device: 1, inode, size: 1, mtime: time, ctime: time }
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_tree_is_known_by_what_it_saw_last_and_not_by_what_others_saw() {
        let mut sights = Sights::default();
        sights.note(1, &path("a"), Some(stamp(1)));
        sights.note(2, &path("a"), Some(stamp(2)));
        sights.note(1, &path("a"), Some(stamp(3)));
        assert_eq!((sights.last(1, &path("a")), sights.last(2, &path("a"))), (Some(stamp(3)), Some(stamp(2))));
        assert_eq!((sights.last(3, &path("a")), sights.last(1, &path("b"))), (None, None));
        sights.unchanged(&path("a"), &stamp(3), &stamp(4));
        assert_eq!((sights.last(1, &path("a")), sights.last(2, &path("a"))), (Some(stamp(4)), Some(stamp(2))));
        sights.note(1, &path("a"), None);
        assert_eq!(sights.last(1, &path("a")), None);
    }

    #[test]
    fn names_that_go_are_forgotten_with_all_below_them() {
        let mut sights = Sights::default();
        for at in ["d", "d/a", "d/e/b", "d2/a", "da"] {
            sights.note(1, &path(at), Some(stamp(1)));
        }
        sights.forget_within(&path("d"));
        let known = ["d", "d/a", "d/e/b", "d2/a", "da"].map(|at| sights.last(1, &path(at)).is_some());
        assert_eq!(known, [false, false, false, true, true]);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut sights = Sights::default();
        (0..100).for_each(|tree| sights.note(tree, &path("a"), Some(stamp(1))));
        assert_eq!((sights.last(91, &path("a")), sights.last(92, &path("a"))), (None, Some(stamp(1))));
        for number in 0..3 * PATHS_MAX {
            sights.note(1, &path(&format!("p{number}")), Some(stamp(1)));
        }
        assert!(sights.young.len() + sights.old.len() <= 2 * PATHS_MAX);
        let last = format!("p{}", 3 * PATHS_MAX - 1);
        assert_eq!((sights.last(1, &path(&last)), sights.last(1, &path("p0"))), (Some(stamp(1)), None));
    }
}
