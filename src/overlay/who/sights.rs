//! What each process tree last saw of a path (SPEC §7): a change that replaces what its writer has never seen is held,
//! `stale`.
//!
//! A tree sees what the view shows it at an open, and what it puts there itself. Only the tree itself can unsee a path: by
//! being told that it is free, or by renaming what was there. What others do to the path, or to a directory above it,
//! leaves what the tree has seen of it as it was, because that is what it is going to save. A file that is renamed is
//! known under its new name as well.
//!
//! If there is no room for more, trees that have ended go first, then what was seen longest ago. What has changed since a
//! tree began is then taken to be unseen by it, if it may have been forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::{Reason, RelPath, Stamp, Timestamp};
use crate::overlay::files::handles::OpenFile;
use crate::overlay::judge::claim::Job;
use crate::overlay::judge::compare::Comparison;
use crate::overlay::names::carry::Move;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Caller, Overlay, Result, State};
use crate::store::{Below, Went, Writer};
use crate::sys::file::{self, Meta};
use crate::sys::process;

/// How much is remembered of all trees together: some 250 bytes each.
const SIGHTS_MAX: usize = 131_072;
/// Of no file: what lower has is not what was seen. A tree goes by what it has seen of the path before.
const UNSEEN: Stamp = {
    let never = Timestamp { seconds: 0, nanoseconds: 0 };
    Stamp { device: 0, inode: 0, size: 0, mtime: never, ctime: never, btime: never }
};
/// How many trees there may be before those that have ended are first looked for: most commands are none of their own.
const TREES_AT_FIRST: usize = 64;

pub(in crate::overlay) struct Sights {
    trees: HashMap<u32, Tree>,
    /// How many trees there may be before those that have ended are looked for.
    trees_max: usize,
    /// How many more sights there may be, at least, before they are counted anew.
    room: usize,
    /// How many were ever noted.
    noted: u64,
}

struct Tree {
    paths: BTreeMap<RelPath, Sight>,
    /// When it saw something first.
    since: Timestamp,
    /// Some of what it has seen is not remembered any more.
    forgets: bool,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(in crate::overlay) struct Sight {
    /// What lower had, or what the change was based on that the view showed instead. `None`: nothing.
    below: Option<Stamp>,
    /// The upper file that the view showed instead.
    above: Option<Stamp>,
    /// Its place in the order of all.
    noted: u64,
}

impl Default for Sights {
    fn default() -> Self {
        Self { trees: HashMap::new(), trees_max: TREES_AT_FIRST, room: SIGHTS_MAX, noted: 0 }
    }
}

impl Sight {
    pub fn of_lower(stamp: Stamp) -> Self {
        Self { below: Some(stamp), ..Self::default() }
    }

    /// Of what the view shows in the place of what lower has.
    fn of_upper(upper: &Upper, shown: &Meta) -> Self {
        let lacks_edits = |reason: &Reason| matches!(reason, Reason::Stale | Reason::External);
        let lacks_edits = upper.row.held.as_ref().is_some_and(|held| held.reasons.iter().any(lacks_edits));
        let below = match upper.row.base.below {
            // It is judged as stale by itself.
            _ if upper.moved_on => None,
            // A held change that lacks edits of others is no sight of those.
            Below::Entry { .. } if lacks_edits => Some(UNSEEN),
            Below::Entry { stamp, .. } => Some(stamp),
            Below::Nothing => None,
        };
        Self { below, above: Some(shown.stamp()), ..Self::default() }
    }

    /// What lower had, for who goes on with that.
    pub fn below(&self) -> Option<Stamp> {
        self.below
    }

    fn is_of(&self, other: &Self) -> bool {
        let number = |sight: &Self| sight.below.map(|stamp| stamp.number());
        number(self).is_some() && number(self) == number(other)
    }
}

impl Sights {
    /// A tree sees something at a path.
    pub fn note(&mut self, tree: u32, path: &RelPath, sight: Sight) {
        self.make_room();
        if !self.trees.contains_key(&tree) && self.trees.len() >= self.trees_max {
            self.forget_ended();
        }
        self.room -= 1;
        self.noted += 1;
        let paths = &mut self.trees.entry(tree).or_insert_with(Tree::begin).paths;
        paths.insert(path.clone(), Sight { noted: self.noted, ..sight });
    }

    /// A tree was told that a path is free.
    pub fn left(&mut self, tree: u32, path: &RelPath) {
        if let Some(tree) = self.trees.get_mut(&tree) {
            tree.paths.remove(path);
        }
    }

    fn last(&self, tree: u32, path: &RelPath) -> Option<&Sight> {
        self.trees.get(&tree)?.paths.get(path)
    }

    /// True if a tree may have seen a file before it was changed, and that is not known any more.
    fn may_have_missed(&self, tree: u32, present: &Stamp) -> bool {
        self.trees.get(&tree).is_some_and(|tree| tree.forgets && present.ctime > tree.since)
    }

    fn all_at(&mut self, path: &RelPath) -> impl Iterator<Item = &mut Sight> {
        self.trees.values_mut().filter_map(move |tree| tree.paths.get_mut(path))
    }

    /// A file at a path, of lower or upper, was `before` and is `after`, with the same content: a tree that saw it has
    /// missed nothing.
    pub fn unchanged(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        let stamps = self.all_at(path).flat_map(|sight| [&mut sight.below, &mut sight.above]).flatten();
        stamps.filter(|stamp| stamp.has_same_content(before)).for_each(|stamp| *stamp = *after);
    }

    /// Lower now has, as `after`, what the view `showed` at a path: a tree that saw it there has missed nothing.
    pub fn landed(&mut self, path: &RelPath, showed: &Stamp, after: &Stamp) {
        let has_seen = |sight: &&mut Sight| sight.above.is_some_and(|above| above.has_same_content(showed));
        self.all_at(path).filter(has_seen).for_each(|sight| sight.below = Some(*after));
    }

    /// What was at or below `from` of each move is at or below its `to`, but for what is `gone`. Who did that knows, and
    /// others know the file under both names: what they go by is the name under which they have seen it.
    pub fn moved(&mut self, moves: &[Move<'_>], by: Option<u32>, gone: &[RelPath]) {
        self.make_room();
        let gone: BTreeSet<&RelPath> = gone.iter().collect();
        for (tree, Tree { paths, .. }) in &mut self.trees {
            let seen: Vec<_> = moves.iter().flat_map(|one| within(paths, one.from)).collect();
            if by == Some(*tree) {
                let ends = moves.iter().flat_map(|one| [one.from, one.to]);
                let left: Vec<_> = ends.flat_map(|end| within(paths, end)).collect();
                left.iter().for_each(|(at, _)| _ = paths.remove(at));
            }
            for (at, sight) in seen.iter().filter(|(at, _)| !gone.contains(at)) {
                let Some(to) = Move::all(moves, at) else { continue };
                if paths.get(&to).is_none_or(|known| known.is_of(sight)) {
                    paths.insert(to, *sight);
                    self.room = self.room.saturating_sub(1);
                }
            }
        }
    }

    fn make_room(&mut self) {
        if self.room > 0 {
            return;
        }
        self.forget_ended();
        let of_all = || self.trees.values().flat_map(|tree| tree.paths.values());
        let mut noted: Vec<u64> = of_all().map(|sight| sight.noted).collect();
        let too_many = noted.len().saturating_sub(SIGHTS_MAX / 2);
        if too_many > 0 {
            let first_kept = *noted.select_nth_unstable(too_many).1;
            self.trees.values_mut().for_each(|tree| tree.forget_before(first_kept));
        }
        self.room = SIGHTS_MAX - (noted.len() - too_many);
    }

    fn forget_ended(&mut self) {
        self.trees.retain(|tree, _| process::has_session(*tree));
        self.trees_max = TREES_AT_FIRST.max(2 * self.trees.len());
    }
}

impl Tree {
    fn begin() -> Self {
        Self { paths: BTreeMap::new(), since: file::now(), forgets: false }
    }

    fn forget_before(&mut self, noted: u64) {
        let known = self.paths.len();
        self.paths.retain(|_, sight| sight.noted >= noted);
        self.forgets |= self.paths.len() < known;
    }
}

impl Overlay {
    /// True if lower has something else than its writer's tree last saw there. What is held is compared with its base
    /// instead.
    pub(in crate::overlay) fn is_stale(&self, job: &Job, comparison: &Comparison, by: &Writer) -> Result<bool> {
        if job.row.held.is_some() {
            return Ok(false);
        }
        let Some(tree) = self.tree_of_job(job, by) else { return Ok(false) };
        let Comparison { path, present, .. } = comparison;
        let last = |at: &RelPath| self.state.lock().sights.last(tree, at).copied();
        if let (None, Some((to, now))) = (present.meta, self.renamed_away(comparison)?) {
            let seen = last(&to).and_then(|seen| seen.below);
            return Ok(seen.is_some_and(|seen| !seen.has_same_content(&now.stamp())));
        }
        Ok(match (last(path), present.meta) {
            // Of what was new in the view it has seen nothing below.
            (Some(seen), _) => seen.below.is_some_and(|seen| self.has_other_content(path, &seen, present)),
            (None, Some(now)) => self.state.lock().sights.may_have_missed(tree, &now.stamp()),
            (None, None) => false,
        })
    }

    /// The process tree whose change this is: that which has opened what is judged at a close or release, even if it has
    /// ended by then.
    pub(in crate::overlay) fn tree_of_job(&self, job: &Job, by: &Writer) -> Option<u32> {
        job.through.as_ref().and_then(|handle| handle.tree).or_else(|| self.tree_of(by.pid))
    }

    /// Notes that a program which makes something at a free path, or has renamed what was there, was told that it is free:
    /// it replaces nothing, and is no change of what someone has removed unseen.
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
    /// What an open of a path shows.
    pub(in crate::overlay) fn shown(&self, origin: &Origin) -> Option<Sight> {
        match origin {
            Origin::Lower(meta) => Some(Sight::of_lower(meta.stamp())),
            Origin::Upper(id, meta) => self.uppers.get(*id).map(|upper| Sight::of_upper(upper, meta)),
            Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    /// A process of `tree` has opened a file and was shown this in some epoch.
    pub(in crate::overlay) fn saw_opened(
        &mut self,
        path: &RelPath,
        open: &OpenFile,
        (sight, epoch): (Sight, u64),
        tree: Option<u32>,
    ) {
        let is_there = match (sight.above, sight.below) {
            (None, Some(stamp)) => self.nodes.is_at(open.node, path) && self.nodes.has_lower(open.node, &stamp),
            (Some(_), _) | (None, None) => true,
        };
        // Otherwise we have changed it since, and that change noted which tree has seen it. The inode alone does not
        // tell: after two landings a file may have its former number.
        if is_there && !open.has_changed_since(epoch) {
            self.saw_as(path, sight, tree);
        }
    }

    /// The change of a process of `tree` waits for review: the view shows what it has put there.
    pub(in crate::overlay) fn saw_held(&mut self, job: &Job, shown: Option<&Meta>, tree: Option<u32>) {
        let path = job.row.path();
        match shown.and_then(|meta| self.shown(&Origin::Upper(job.row.id, *meta))) {
            Some(sight) => self.saw_as(path, sight, tree),
            // A deletion.
            None => self.saw(path, None, tree),
        }
    }

    /// Lower has, as `landed`, what the view showed as `showed`: who has seen that has missed nothing.
    pub(in crate::overlay) fn nothing_missed(&mut self, path: &RelPath, showed: &Meta, landed: &Meta) {
        for name in std::iter::once(path).chain(&self.nodes.other_paths(path)) {
            self.sights.landed(name, &showed.stamp(), &landed.stamp());
        }
    }

    /// Returns what `tree` saw of the file that is renamed over something, if that was changed since: a rename shows the
    /// tree no more of it.
    pub(in crate::overlay) fn seen_of_source(&self, job: &Job, tree: Option<u32>) -> Option<Stamp> {
        let ((source, stamp), tree) = job.takes_along.as_ref().zip(tree)?;
        self.sights.last(tree, source)?.below.filter(|seen| !seen.has_same_content(stamp))
    }

    /// A process of `tree` has put there what lower has at a path, or sees it there.
    pub(in crate::overlay) fn saw(&mut self, path: &RelPath, stamp: Option<Stamp>, tree: Option<u32>) {
        match (stamp, tree) {
            (Some(stamp), _) => self.saw_as(path, Sight::of_lower(stamp), tree),
            (None, Some(tree)) => self.sights.left(tree, path),
            (None, None) => {}
        }
    }

    /// The kernel does not tell by which of a file's names: what the tree has seen under others, it sees anew.
    fn saw_as(&mut self, path: &RelPath, mut sight: Sight, tree: Option<u32>) {
        let Some(tree) = tree else { return };
        if sight.below == Some(UNSEEN) {
            sight.below = self.sights.last(tree, path).and_then(|known| known.below);
        }
        self.sights.note(tree, path, sight);
        for other in self.nodes.other_paths(path) {
            if self.sights.last(tree, &other).is_some_and(|known| known.is_of(&sight)) {
                self.sights.note(tree, &other, sight);
            }
        }
    }
}

fn within(paths: &BTreeMap<RelPath, Sight>, path: &RelPath) -> Vec<(RelPath, Sight)> {
    let within = paths.range(path.clone()..).take_while(|(at, _)| at.is_within(path));
    within.map(|(at, sight)| (at.clone(), *sight)).collect()
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

    fn seen(inode: u64) -> Sight {
        Sight::of_lower(stamp(inode))
    }

    /// Which inode each of the trees last saw at a path.
    fn inodes<const N: usize>(sights: &Sights, trees: [u32; N], at: &str) -> [Option<u64>; N] {
        trees.map(|tree| Some(sights.last(tree, &path(at))?.below?.inode))
    }

    #[test]
    fn a_tree_is_known_by_what_it_saw_last_and_not_by_what_others_saw() {
        let mut sights = Sights::default();
        for (tree, inode) in [(1, 1), (2, 2), (1, 3)] {
            sights.note(tree, &path("a"), seen(inode));
        }
        assert_eq!(inodes(&sights, [1, 2, 3], "a"), [Some(3), Some(2), None]);
        sights.unchanged(&path("a"), &stamp(3), &stamp(4));
        assert_eq!(inodes(&sights, [1, 2], "a"), [Some(4), Some(2)]);
        sights.left(1, &path("a"));
        assert_eq!(inodes(&sights, [1, 2], "a"), [None, Some(2)]);
    }

    #[test]
    fn who_saw_what_lands_has_seen_what_has_landed() {
        let mut sights = Sights::default();
        sights.note(1, &path("a"), Sight { above: Some(stamp(9)), ..seen(1) });
        sights.note(2, &path("a"), Sight { above: Some(stamp(8)), ..seen(1) });
        sights.note(3, &path("a"), seen(1));
        sights.landed(&path("a"), &stamp(9), &stamp(5));
        assert_eq!(inodes(&sights, [1, 2, 3], "a"), [Some(5), Some(1), Some(1)]);
    }

    #[test]
    fn who_renames_knows_what_is_where_and_others_know_a_file_by_both_names() {
        let mut sights = Sights::default();
        for (at, inode) in [("d", 1), ("d/a", 2), ("d2/a", 3), ("e/a", 4), ("e/b", 5)] {
            [1, 2].into_iter().for_each(|tree| sights.note(tree, &path(at), seen(inode)));
        }
        sights.moved(&[Move { from: &path("d"), to: &path("e") }], Some(1), &[]);
        let known = ["d", "d/a", "d2/a", "e", "e/a", "e/b"].map(|at| inodes(&sights, [1, 2], at));
        let [d, d_a, d2_a, e, e_a, e_b] = known;
        assert_eq!((d, d_a), ([None, Some(1)], [None, Some(2)]));
        assert_eq!((e, e_a, e_b), ([Some(1); 2], [Some(2), Some(4)], [None, Some(5)]));
        assert_eq!(d2_a, [Some(3); 2]);
        // As it is now, where it comes back.
        sights.unchanged(&path("e"), &stamp(1), &Stamp { size: 7, ..stamp(1) });
        sights.moved(&[Move { from: &path("e"), to: &path("d") }], Some(1), &[path("e/a")]);
        let back = [1, 2].map(|tree| sights.last(tree, &path("d")).unwrap().below.unwrap().size);
        assert_eq!((back, inodes(&sights, [1, 2], "d/a")), ([7, 7], [None, Some(2)]));
    }

    #[test]
    fn of_too_many_trees_those_that_have_ended_go_first() {
        let (mut sights, own) = (Sights::default(), std::process::id());
        sights.note(own, &path("a"), seen(1));
        // There are no processes with such numbers.
        let ended = i32::MAX as u32 - 10_000;
        (ended..ended + 10_000).for_each(|tree| sights.note(tree, &path("a"), seen(1)));
        assert!(sights.trees.len() <= 2 * TREES_AT_FIRST, "{}", sights.trees.len());
        assert_eq!(inodes(&sights, [own], "a"), [Some(1)]);
        assert!(!sights.may_have_missed(own, &stamp(1)));
    }

    #[test]
    fn what_has_changed_since_a_tree_began_counts_as_missed_once_some_is_forgotten() {
        let (mut sights, own) = (Sights::default(), std::process::id());
        let at = |seconds| Stamp { ctime: Timestamp { seconds, ..Timestamp::default() }, ..stamp(1) };
        (0..SIGHTS_MAX).for_each(|number| sights.note(own, &path(&format!("p{number}")), seen(1)));
        assert_eq!((inodes(&sights, [own], "p0"), sights.may_have_missed(own, &at(i64::MAX))), ([Some(1)], false));
        sights.note(own, &path("last"), seen(2));
        assert_eq!((inodes(&sights, [own], "p0"), inodes(&sights, [own], "last")), ([None], [Some(2)]));
        assert_eq!([0, i64::MAX].map(|seconds| sights.may_have_missed(own, &at(seconds))), [false, true]);
        assert_eq!(inodes(&sights, [own], &format!("p{}", SIGHTS_MAX / 2)), [Some(1)]);
        assert!(sights.trees.values().map(|tree| tree.paths.len()).sum::<usize>() <= SIGHTS_MAX / 2 + 1);
    }
}
