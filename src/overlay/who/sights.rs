//! What each process tree last saw of a path (SPEC §7): a change that replaces what its writer has never seen is held,
//! `stale`.
//!
//! Only opens through the view count, and what the tree itself has put there. When a file is renamed, what was seen of it
//! goes along: a program that saves by renaming the file away and making it anew replaces that file. Of what came to the
//! old name since, no tree has seen anything. If there are too many, the oldest are forgotten.

use std::collections::BTreeMap;

use crate::model::{RelPath, Stamp};
use crate::overlay::files::handles::OpenFile;
use crate::overlay::judge::claim::Job;
use crate::overlay::judge::compare::Comparison;
use crate::overlay::names::carry::Move;
use crate::overlay::{Caller, Overlay, Result, State};
use crate::store::{Went, Writer};
use crate::sys::file::Meta;

/// How many paths are remembered in each of `young` and `old`.
const PATHS_MAX: usize = 32_768;
/// How many trees are remembered for each path.
const TREES_MAX: usize = 8;

#[derive(Default)]
pub(in crate::overlay) struct Sights {
    young: BTreeMap<RelPath, Vec<Sight>>,
    /// Forgotten as a whole when `young` is full again.
    old: BTreeMap<RelPath, Vec<Sight>>,
}

/// What lower had when a process of `tree` opened it.
#[derive(Clone, Copy)]
struct Sight {
    tree: u32,
    stamp: Stamp,
}

impl Sights {
    /// A tree sees what lower has at a path. `None`: nothing, or something held, which is compared with its base anyway.
    pub fn note(&mut self, tree: u32, path: &RelPath, stamp: Option<Stamp>) {
        let sights = self.young_at(path);
        sights.retain(|sight| sight.tree != tree);
        if sights.len() == TREES_MAX {
            sights.remove(0);
        }
        sights.extend(stamp.map(|stamp| Sight { tree, stamp }));
    }

    /// The same, if it has seen the same file there already. Without a tree, since it is not known any more: forgets what
    /// was seen of this file.
    fn note_again(&mut self, tree: Option<u32>, path: &RelPath, stamp: Stamp) {
        let is_of_it = |seen: &Stamp| seen.number() == stamp.number();
        match tree {
            Some(tree) if self.last(tree, path).is_some_and(|seen| is_of_it(&seen)) => {
                self.note(tree, path, Some(stamp));
            }
            Some(_) => {}
            None => self.all_at(path).into_iter().for_each(|sights| sights.retain(|sight| !is_of_it(&sight.stamp))),
        }
    }

    fn last(&self, tree: u32, path: &RelPath) -> Option<Stamp> {
        let sights = self.young.get(path).or_else(|| self.old.get(path))?;
        sights.iter().find(|sight| sight.tree == tree).map(|sight| sight.stamp)
    }

    /// Lower has what it had at a path before, or what the view showed there already: a tree that saw that has missed
    /// nothing.
    pub fn unchanged(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        let sights = self.all_at(path).into_iter().flatten();
        sights.filter(|sight| sight.stamp.has_same_content(before)).for_each(|sight| sight.stamp = *after);
    }

    /// What was at or below a path is gone, or something else is there.
    pub fn forget_within(&mut self, path: &RelPath) {
        for sights in [&mut self.young, &mut self.old] {
            drop(take_within(sights, path));
        }
    }

    /// What was at or below `from` of each move is at or below its `to`.
    pub fn moved(&mut self, moves: &[Move<'_>]) {
        for sights in [&mut self.young, &mut self.old] {
            let taken: Vec<_> = moves.iter().flat_map(|one| take_within(sights, one.from)).collect();
            moves.iter().for_each(|one| drop(take_within(sights, one.to)));
            sights.extend(taken.into_iter().filter_map(|(at, seen)| Some((Move::all(moves, &at)?, seen))));
        }
    }

    /// A copy of what is at `from` is at `to`, and has been seen by the same trees.
    pub fn copied(&mut self, from: &RelPath, to: &RelPath) {
        if let Some(seen) = self.young.get(from).or_else(|| self.old.get(from)).cloned() {
            *self.young_at(to) = seen;
        }
    }

    fn all_at(&mut self, path: &RelPath) -> Option<&mut Vec<Sight>> {
        self.young.get_mut(path).or_else(|| self.old.get_mut(path))
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
    /// True if lower has something else than its writer's tree last saw there. What is held is compared with its base
    /// instead.
    pub(in crate::overlay) fn is_stale(&self, job: &Job, comparison: &Comparison, by: &Writer) -> Result<bool> {
        if job.row.held.is_some() {
            return Ok(false);
        }
        let Some(tree) = self.tree_of(by.pid) else { return Ok(false) };
        let Comparison { path, present, .. } = comparison;
        let last = |at: &RelPath| self.state.lock().sights.last(tree, at);
        Ok(match (present.meta, self.renamed_away(comparison)?) {
            (None, Some((to, now))) => last(&to).is_some_and(|seen| !seen.has_same_content(&now.stamp())),
            (_, _) => last(path).is_some_and(|seen| self.has_other_content(path, &seen, present)),
        })
    }

    /// Notes that a program which makes something at a free path was told that it is free: it replaces nothing, and is no
    /// change of what someone has removed unseen.
    pub(in crate::overlay) fn saw_free(&self, path: &RelPath, caller: &Caller) {
        let tree = self.tree_of(caller.pid);
        self.state.lock().saw(path, None, tree);
    }

    /// Returns where the file that was at a free path is, if it is still there under another name: for a writer that knew
    /// it, what is made at the path is a modification (SPEC §4.3).
    fn renamed_away(&self, comparison: &Comparison) -> Result<Option<(RelPath, Meta)>> {
        let Comparison { path, old, present, .. } = comparison;
        if present.exists() || !old.exists() {
            return Ok(None);
        }
        let Some(Went { to, stamp }) = self.went_from(path)? else { return Ok(None) };
        let meta = self.meta_below(&to)?;
        // The inode tells, not its times, which any program can set.
        let is_it = |meta: &Meta| self.births.may_be_one(stamp.key(), meta.key());
        Ok(meta.filter(is_it).map(|meta| (to, meta)))
    }
}

impl State {
    /// A process of `tree` has opened a file, of which lower had `stamp` in some epoch.
    pub(in crate::overlay) fn saw_opened(
        &mut self,
        path: &RelPath,
        open: &OpenFile,
        (stamp, epoch): (Option<Stamp>, u64),
        tree: Option<u32>,
    ) {
        let is_there = |stamp: Stamp| self.nodes.is_at(open.node, path) && self.nodes.has_lower(open.node, &stamp);
        // Otherwise we have changed it since, and that change noted which tree has seen it. The inode alone does not
        // tell: after two landings a file may have its former number.
        if stamp.is_none_or(|stamp| is_there(stamp) && !open.has_changed_since(epoch)) {
            self.saw(path, stamp, tree);
        }
    }

    /// Returns what `tree` saw of the file that is renamed over something, if that was changed since: a rename shows the
    /// tree no more of it.
    pub(in crate::overlay) fn seen_of_source(&self, job: &Job, tree: Option<u32>) -> Option<Stamp> {
        let ((source, stamp), tree) = job.takes_along.as_ref().zip(tree)?;
        self.sights.last(tree, source).filter(|seen| !seen.has_same_content(stamp))
    }

    /// A process of `tree` has put there what lower has at a path, or sees it there. The kernel does not tell by which of
    /// a file's names: what the tree has seen under others, it sees anew.
    pub(in crate::overlay) fn saw(&mut self, path: &RelPath, stamp: Option<Stamp>, tree: Option<u32>) {
        match tree {
            Some(tree) => self.sights.note(tree, path, stamp),
            // The process has ended, so the tree that has seen it is not known any more.
            None => self.sights.forget_within(path),
        }
        if let Some(stamp) = stamp {
            self.nodes.other_paths(path).iter().for_each(|other| self.sights.note_again(tree, other, stamp));
        }
    }
}

/// Takes out what is at or below a path.
fn take_within(sights: &mut BTreeMap<RelPath, Vec<Sight>>, path: &RelPath) -> Vec<(RelPath, Vec<Sight>)> {
    let within = sights.range(path.clone()..).take_while(|(at, _)| at.is_within(path));
    let within: Vec<RelPath> = within.map(|(at, _)| at.clone()).collect();
    within.into_iter().filter_map(|at| sights.remove_entry(&at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    fn stamp(inode: u64) -> Stamp {
        let time = Timestamp::default();
        Stamp { device: 1, inode, size: 1, mtime: time, ctime: time, btime: time }
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
    fn what_was_seen_goes_along_with_a_name_and_with_all_below_it() {
        let mut sights = Sights::default();
        for (at, inode) in [("d", 1), ("d/a", 2), ("d2/a", 3), ("e", 4), ("e/b", 5)] {
            sights.note(1, &path(at), Some(stamp(inode)));
        }
        sights.moved(&[Move { from: &path("d"), to: &path("e") }]);
        let known = ["d", "d/a", "d2/a", "e", "e/a", "e/b"].map(|at| sights.last(1, &path(at)));
        assert_eq!(known, [None, None, Some(stamp(3)), Some(stamp(1)), Some(stamp(2)), None]);
        sights.copied(&path("e/a"), &path("f"));
        assert_eq!(["e/a", "f"].map(|at| sights.last(1, &path(at))), [Some(stamp(2)); 2]);
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
