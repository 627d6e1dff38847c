//! What a change makes known: a landing, a rename of a file or of directories, what goes and what comes back.

use std::collections::{BTreeMap, BTreeSet};

use super::Past;
use crate::model::{InodeKey, RelPath, Stamp};
use crate::overlay::names::carry::Move;
use crate::store::{Anchor, AnchorState, Kept, Known, Went};
use crate::sys::file::Meta;

impl Known {
    /// True if it came in this session, content and all.
    pub(in crate::overlay) fn is_fresh(&self) -> bool {
        self.fresh && self.from.is_none()
    }

    pub(in crate::overlay) fn of(anchor: AnchorState) -> Self {
        Self { had: Some(anchor), ..Self::default() }
    }

    pub(in crate::overlay) fn as_anchor(&self, path: &RelPath) -> Anchor {
        Anchor { path: path.clone(), known: self.clone() }
    }

    /// What is known once the path is free.
    fn left(self) -> Self {
        Self { fresh: false, from: None, ..self }
    }

    /// What is known once the content that it remembers is elsewhere, as a copy with the stamp `copy` if there is one.
    /// `None` if it remembers nothing that moved.
    fn retargeted(&self, to: impl Fn(&RelPath) -> Option<RelPath>, copy: Option<Stamp>) -> Option<Self> {
        let went = |at: &RelPath, stamp: Stamp| Some((to(at)?, copy.unwrap_or(stamp)));
        let moved = match &self.had {
            Some(AnchorState::Moved { to, stamp }) => went(to, *stamp),
            Some(AnchorState::Nothing | AnchorState::Content(_)) | None => None,
        };
        let had = moved.map(|(to, stamp)| AnchorState::Moved { to, stamp });
        let last = self.went.as_ref().and_then(|last| went(&last.to, last.stamp)).map(|(to, stamp)| Went { to, stamp });
        if had.is_none() && last.is_none() {
            return None;
        }
        let known = self.clone();
        Some(Self { had: had.or(known.had), went: last.or(known.went), ..known })
    }

    /// What is known once what is at `place` has been replaced and kept as `kept`; `None` if it remembers nothing there.
    fn replaced_at(&self, place: &RelPath, kept: Kept) -> Option<Self> {
        let is_there = matches!(&self.had, Some(AnchorState::Moved { to, .. }) if to == place);
        let went_there = self.went.as_ref().is_some_and(|went| went.to == *place);
        if !is_there && !went_there {
            return None;
        }
        let mut known = self.clone();
        if is_there {
            known.had = Some(AnchorState::Content(kept));
        }
        known.went = known.went.filter(|went| went.to != *place);
        Some(known)
    }
}

impl Past {
    /// The anchor of a path at which something new is made, or something older gets a new name, coming `from` another
    /// path. The path was free, unless what it had went along with a directory.
    pub fn made(&self, path: &RelPath, from: Option<RelPath>) -> Anchor {
        let known = self.known(path);
        let had = known.had.clone().or_else(|| self.came_along(path).is_none().then_some(AnchorState::Nothing));
        let fresh = matches!(had, Some(AnchorState::Nothing) | None);
        Known { had, fresh, from, went: None, ..known }.as_anchor(path)
    }

    /// The anchors after a landing on `path` that replaced something, or was `judged_against` what used to be there: of
    /// the path itself and of paths whose content was moved to it.
    pub fn landed(
        &self,
        path: &RelPath,
        existed: bool,
        (replaced, judged_against): (Option<Kept>, Option<Kept>),
        exists: bool,
    ) -> Vec<Anchor> {
        let from = self.older_from(path);
        let mut known = self.known(path);
        let first = match replaced.filter(|_| existed).or(judged_against) {
            // Older content that goes as it came is remembered where it came from, and only there.
            Some(kept) if exists || from.is_none() => AnchorState::Content(kept),
            Some(_) | None => AnchorState::Nothing,
        };
        let had = known.had.get_or_insert(first);
        let is_older = from.is_some() && existed;
        let is_new = !existed && *had == AnchorState::Nothing;
        known.fresh = exists && (is_new || is_older || (existed && known.is_fresh()));
        known.from = from.filter(|_| existed && exists);
        known.went = None;
        known.put_back &= !exists;
        let elsewhere = replaced.map(|kept| self.moved_to(path, kept)).unwrap_or_default();
        [known.as_anchor(path)].into_iter().chain(elsewhere).collect()
    }

    /// The anchors of paths whose content was moved to `path`, where it is replaced and kept as `kept`.
    pub fn moved_to(&self, path: &RelPath, kept: Kept) -> Vec<Anchor> {
        let with_dir = self.came_with_dir(path);
        let with_dir = with_dir.map(|was| self.with_had(&was, AnchorState::Content(kept)));
        let pinned = |was: &RelPath| Some(self.known(was).replaced_at(path, kept)?.as_anchor(was));
        self.anchors.speaking_of(path).filter_map(pinned).chain(with_dir).collect()
    }

    /// The same for an inode that is written in place, and so under all its names. Changes and extends `known`, the
    /// anchors of the same landing.
    pub fn replaced_by_all_names(&self, inode: InodeKey, kept: Kept, known: &mut Vec<Anchor>) {
        let is_there =
            |known: &Known| matches!(&known.had, Some(AnchorState::Moved { stamp, .. }) if stamp.key() == inode);
        for (was, _) in self.iter().filter(|(_, known)| is_there(known)) {
            let had = AnchorState::Content(kept);
            match known.iter_mut().find(|anchor| anchor.path == *was) {
                Some(anchor) => anchor.known.had = Some(had),
                None => known.push(self.with_had(was, had)),
            }
        }
    }

    fn with_had(&self, path: &RelPath, had: AnchorState) -> Anchor {
        Known { had: Some(had), ..self.known(path) }.as_anchor(path)
    }

    /// The anchor of a path whose content was renamed away: that content may change from now on, the anchor must not.
    pub fn pinned(&self, path: &RelPath, kept: Kept) -> Option<Anchor> {
        let is_moved = matches!(self.had(path)?, AnchorState::Moved { .. });
        is_moved.then(|| self.with_had(path, AnchorState::Content(kept)))
    }

    /// The anchors for content that someone else left at a path: the path is judged against it from now on. The path that
    /// it came from with a directory still has it as its anchor.
    pub fn begun_anew(&self, path: &RelPath, content: Option<Kept>, there: Option<Stamp>) -> Vec<Anchor> {
        let known = Known::of(content.map_or(AnchorState::Nothing, AnchorState::Content)).as_anchor(path);
        let came_from = self.came_with_dir(path).zip(there);
        let came_from =
            came_from.map(|(was, stamp)| self.with_had(&was, AnchorState::Moved { to: path.clone(), stamp }));
        [known].into_iter().chain(came_from).collect()
    }

    /// The anchor of a path that is free now, because what was there went.
    pub fn left(&self, path: &RelPath) -> Option<Anchor> {
        Some(self.get(path)?.clone().left().as_anchor(path))
    }

    /// The same for a directory: of each path at which it was in this session, including the one it had before a
    /// directory above it was renamed.
    pub fn left_dir(&self, path: &RelPath) -> Vec<Anchor> {
        let mut after = After::of(self);
        after.leave(path);
        self.places_of_dir(path).for_each(|place| after.edit(&place).had_dir = true);
        after.changed()
    }

    /// The paths of a directory older than the session; empty for one that was made in it.
    fn places_of_dir(&self, path: &RelPath) -> impl Iterator<Item = RelPath> + use<> {
        let places = [self.dirs.was_anywhere(path), Some(path.clone())];
        let is_older = !self.is_fresh(path);
        places.into_iter().flatten().filter(move |_| is_older)
    }

    /// The anchors once what was at `source` has been renamed over `to`, which is `meta` now. From then on it is what
    /// `source` is a modification of, and so are paths whose content had been renamed to `source` before.
    pub fn carried(&self, source: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        self.once_gone(source, (to, meta.stamp()), Some(meta.stamp())).changed()
    }

    /// What was at `from` is now at the other path with the stamp beside it, or a copy of it is, with the stamp `copy`.
    fn once_gone(&self, from: &RelPath, (to, stamp): (&RelPath, Stamp), copy: Option<Stamp>) -> After<'_> {
        let moved = AnchorState::Moved { to: to.clone(), stamp };
        let mut after = After::of(self);
        after.go(from, &moved);
        after.edit(from).went = Some(Went { to: to.clone(), stamp });
        if let Some(was) = self.came_with_dir(from) {
            after.edit(&was).had = Some(moved);
        }
        after.retarget(|at| (at == from).then(|| to.clone()), self.anchors.speaking_of(from), copy);
        after
    }

    /// What is known of a new file at `to` once what was at `source` has been renamed over it: it may be all that is left
    /// of something older, and then does not go without review. Must be asked before the source is known to be gone.
    pub fn taken_over(&self, source: &RelPath, to: &RelPath) -> Option<Anchor> {
        let came_from = self.came_from(source).filter(|came_from| came_from != to)?;
        let known = self.get(to).filter(|known| known.fresh)?.clone();
        Some(Known { from: Some(came_from), ..known }.as_anchor(to))
    }

    /// The anchors once what is at `from` stands at `to`, where it is as new or as old as it was.
    pub fn moved(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        self.once_moved(from, to, meta).changed()
    }

    /// The same if `from` is removed, or replaced by that: new or not, what comes to `from` is a modification of its old
    /// content.
    pub fn parted(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        let mut after = self.once_moved(from, to, meta);
        let left = after.edit(from);
        // No event tells that it went.
        left.put_back = true;
        if left.had == Some(AnchorState::Nothing) {
            left.had = Some(AnchorState::Moved { to: to.clone(), stamp: meta.stamp() });
        }
        after.changed()
    }

    fn once_moved(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> After<'_> {
        let made_here = self.is_fresh(from);
        // Back where it was before a directory was renamed: it is its own anchor.
        let is_home = self.came_along(to).as_ref() == Some(from);
        let came_from = self.came_from(from).filter(|came| came != to);
        let mut after = self.once_gone(from, (to, meta.stamp()), None);
        let target = after.edit(to);
        let moved = || AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
        let had = target.had.get_or_insert_with(|| if is_home { moved() } else { AnchorState::Nothing });
        let came_from = came_from.filter(|_| *had == AnchorState::Nothing);
        (target.fresh, target.from, target.went) = (made_here || came_from.is_some(), came_from, None);
        after
    }

    /// A renamed inode has its first name again: the copy at the other name can go without a loss.
    pub fn put_back(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        self.once_put_back(path, to, stamp).changed()
    }

    /// The same if nothing is left at the other name: what the view shows there came in this session.
    pub fn uncovered(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        let mut after = self.once_put_back(path, to, stamp);
        after.leave(to);
        after.edit(to).put_back = true;
        after.changed()
    }

    fn once_put_back(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> After<'_> {
        let mut after = After::of(self);
        after.retarget(|at| (at == to).then(|| path.clone()), self.anchors.speaking_of(to), None);
        let had = match self.had(path) {
            // What comes back is not what the path had first.
            Some(had @ (AnchorState::Content(_) | AnchorState::Nothing)) => had.clone(),
            Some(AnchorState::Moved { .. }) | None => AnchorState::Moved { to: path.clone(), stamp },
        };
        after.set(path, Known::of(had));
        // A name of which nothing is known had this content all along: a rename over it changed nothing.
        if self.came_here(to) {
            let had = self.had(to).cloned().unwrap_or(AnchorState::Nothing);
            let fresh = had == AnchorState::Nothing;
            after.set(to, Known { fresh, from: Some(path.clone()), ..Known::of(had) });
        }
        after
    }
}

/// Renames of directories, with all that is in them. What lies at `gone` does not come along in lower.
impl Past {
    pub fn moved_dirs(&self, moves: &[Move<'_>], gone: &[RelPath]) -> Vec<Anchor> {
        let mut after = After::of(self);
        gone.iter().filter(|path| self.get(path).is_some()).for_each(|path| after.leave(path));
        moves.iter().flat_map(|one| self.places_of_dir(one.from)).for_each(|place| after.edit(&place).had_dir = true);
        let gone: BTreeSet<&RelPath> = gone.iter().collect();
        // The new path is asked for first, because most of what is known lies elsewhere.
        let along = self.iter().filter_map(|(path, known)| Some((path, Move::all(moves, path)?, known)));
        let comes = |path: &RelPath, known: &Known| {
            !gone.contains(path) && (known.fresh || self.stands_for_itself(path, known))
        };
        let come: Vec<_> = along.filter(|(path, _, known)| comes(path, known)).collect();
        come.iter().for_each(|(path, ..)| after.leave(path));
        for (path, to, known) in &come {
            let from = if known.fresh { known.from.clone() } else { Some((*path).clone()) };
            if from.as_ref() == Some(to) {
                continue;
            }
            let there = after.edit(to);
            (there.fresh, there.from) = (true, from);
            // A directory itself is no change of what its new path had.
            let is_content = moves.iter().all(|one| one.from != *path);
            if is_content && there.had.is_none() && !self.dirs.takes_away(moves, to) {
                there.had = Some(AnchorState::Nothing);
            }
        }
        after.retarget(|at| Move::all(moves, at), self.iter().map(|(path, _)| path), None);
        after.changed()
    }

    /// True if what is at a path is a change of what that path had, though its directory came from elsewhere.
    fn stands_for_itself(&self, path: &RelPath, known: &Known) -> bool {
        let is_judged = match &known.had {
            Some(AnchorState::Content(_)) => true,
            Some(AnchorState::Moved { to, .. }) => to == path,
            Some(AnchorState::Nothing) | None => false,
        };
        is_judged && self.dirs.was(path).is_some()
    }

    /// A directory takes the path of a file, of which what is known stays known. The file, if it is `below`, takes the
    /// path of the directory.
    pub fn exchanged(&self, file: &RelPath, dir: &RelPath, below: Option<&Meta>, gone: &[RelPath]) -> Vec<Anchor> {
        let [of_file, of_dir] = [file, dir].map(|path| self.known(path));
        let mut after = self.clone();
        after.know(self.moved_dirs(&[Move { from: dir, to: file }], gone));
        if let Some(meta) = below {
            // The file comes to its place before the directory does.
            after.know(vec![after.with_came(file, of_file)]);
            after.know(after.moved(file, dir, meta));
        }
        after.know(vec![after.with_came(file, of_dir)]);
        self.changed_to(&after)
    }

    fn with_came(&self, path: &RelPath, Known { fresh, from, .. }: Known) -> Anchor {
        Known { fresh, from, ..self.known(path) }.as_anchor(path)
    }

    fn changed_to(&self, after: &Self) -> Vec<Anchor> {
        let gone = self.iter().filter(|(path, _)| after.get(path).is_none());
        let gone = gone.map(|(path, _)| Known::default().as_anchor(path));
        let changed = after.iter().filter(|(path, known)| self.get(path) != Some(*known));
        changed.map(|(path, known)| known.as_anchor(path)).chain(gone).collect()
    }
}

/// What is going to be known, as far as it differs from what is.
struct After<'a> {
    before: &'a Past,
    edited: BTreeMap<RelPath, Known>,
}

impl<'a> After<'a> {
    fn of(before: &'a Past) -> Self {
        Self { before, edited: BTreeMap::new() }
    }

    fn edit(&mut self, path: &RelPath) -> &mut Known {
        self.edited.entry(path.clone()).or_insert_with(|| self.before.known(path))
    }

    /// Replaces all that is known of a path, except that directories were here.
    fn set(&mut self, path: &RelPath, known: Known) {
        let had_dir = self.edit(path).had_dir;
        self.edited.insert(path.clone(), Known { had_dir, ..known });
    }

    fn leave(&mut self, path: &RelPath) {
        let known = self.edit(path);
        *known = std::mem::take(known).left();
    }

    /// What is at a path goes where `moved` says, and becomes what the path had, unless that is known.
    fn go(&mut self, path: &RelPath, moved: &AnchorState) {
        let known = self.edit(path);
        if !known.fresh {
            known.had.get_or_insert_with(|| moved.clone());
        }
        self.leave(path);
    }

    /// What these paths remember is elsewhere by now, as a copy with the stamp `copy` if there is one.
    fn retarget<'p>(
        &mut self,
        to: impl Fn(&RelPath) -> Option<RelPath>,
        paths: impl Iterator<Item = &'p RelPath>,
        copy: Option<Stamp>,
    ) {
        for path in paths {
            let known = self.edited.get(path).or_else(|| self.before.get(path));
            if let Some(known) = known.and_then(|known| known.retargeted(&to, copy)) {
                self.edited.insert(path.clone(), known);
            }
        }
    }

    fn changed(self) -> Vec<Anchor> {
        let changed = self.edited.into_iter().filter(|(path, known)| self.before.known(path) != *known);
        changed.map(|(path, known)| Anchor { path, known }).collect()
    }
}
