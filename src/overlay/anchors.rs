//! What paths had when the session began, and where that content is now.
//!
//! An anchor says what a path is a modification of, though lower has nothing there any more (SPEC §4.3).

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::copy_up::same_content_stamp;
use super::error::Context;
use super::handles::Backing;
use super::known::Anchors;
use super::{Known, Overlay, Result, State, Went};
use crate::model::{RelPath, Stamp};
use crate::store::{Anchor, AnchorState, Kept};
use crate::sys::file::{FileKind, Meta};

/// Begins as temporary names of ours do: nothing in the view can have it.
const BETWEEN: &[u8] = b".fettle-tmp-exchanged";

/// The same for what lies where nobody judges: whoever writes there must not make an anchor by it.
const UNJUDGED: &[u8] = b".fettle-tmp-unjudged";

/// Of a directory: from where, to where.
type Renaming = (RelPath, RelPath);

impl Overlay {
    /// What used to be at a path in this session, also by way of a directory that was renamed.
    pub(super) fn anchor_of(&self, path: &RelPath) -> Result<Option<AnchorState>> {
        let to = {
            let state = self.state.lock();
            if let Some(known) = state.anchors.get(path) {
                return Ok(Some(known.anchor.clone()));
            }
            // Whatever has happened to it there since has made it known by its own.
            let Some(to) = state.came_along(path) else { return Ok(None) };
            to
        };
        let meta = self.lower.stat(&to).doing(|| format!("stat {to}"))?;
        Ok(meta.filter(|meta| !meta.is_dir()).map(|meta| AnchorState::Moved { to, stamp: meta.stamp() }))
    }

    /// Whether a directory that is older than the session used to be at a path.
    pub(super) fn had_dir(&self, path: &RelPath) -> Result<bool> {
        let to = {
            let state = self.state.lock();
            if state.anchors.get(path).is_some_and(|known| known.had_dir) {
                return Ok(true);
            }
            let Some(to) = moved_with_dir(dirs_moved(&state.moved_dirs), path).filter(|to| !state.is_fresh(to)) else {
                return Ok(false);
            };
            to
        };
        let meta = self.lower.stat(&to).doing(|| format!("stat {to}"))?;
        Ok(meta.is_some_and(|meta| meta.is_dir()))
    }
}

impl Overlay {
    /// Whether what is at a path came in this session, so that with it nothing older goes: it is not all that is left of
    /// something that was renamed or linked here. What stands in the first place of that has been judged as a change of it,
    /// if it has content; a directory or a FIFO is no change of anything.
    pub(super) fn loses_nothing(&self, path: &RelPath) -> bool {
        let came_from = {
            let state = self.state.lock();
            match state.anchors.get(path) {
                Some(known) if !known.fresh => return false,
                Some(known) => known.from.clone(),
                None => match state.left_in_moved_dir(path) {
                    Some(from) => Some(from),
                    None => return false,
                },
            }
        };
        came_from.is_none_or(|from| self.has_content_there(&from))
    }

    /// In the project, and not only in what waits for review, which may go without a trace. What cannot be looked for is
    /// taken to be gone.
    fn has_content_there(&self, path: &RelPath) -> bool {
        let has_content = |kind| matches!(kind, Some(FileKind::Regular | FileKind::Symlink));
        let is_below = matches!(self.lower.stat(path), Ok(meta) if has_content(meta.map(|meta| meta.kind)));
        is_below && matches!(self.origin(path), Ok(origin) if has_content(origin.kind()))
    }

    /// Whether what is at a path came in this session, content and all.
    pub(super) fn is_fresh(&self, path: &RelPath) -> bool {
        self.state.lock().is_fresh(path)
    }
}

impl Known {
    /// Content and all came in this session.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh && self.from.is_none()
    }

    pub(super) fn of(anchor: AnchorState) -> Self {
        Self { anchor, fresh: false, from: None, went: None, put_back: false, had_dir: false }
    }

    /// A path that was free.
    pub(super) fn nothing() -> Self {
        Self::of(AnchorState::Nothing)
    }

    pub(super) fn as_anchor(&self, path: &RelPath) -> Anchor {
        let Self { anchor, fresh, from, went, put_back, had_dir } = self.clone();
        Anchor { path: path.clone(), state: anchor, fresh, from, went, put_back, had_dir }
    }

    /// The same once the path is free.
    fn left(self) -> Self {
        Self { fresh: false, from: None, ..self }
    }

    /// The same once what was at or below `from` is at `to`; a copy of it, which has the stamp `copy`. None where that is
    /// not what is remembered.
    fn retargeted(&self, from: &RelPath, to: &RelPath, copy: Option<Stamp>) -> Option<Self> {
        let went = |at: &RelPath, stamp: Stamp| Some((at.rebase(from, to)?, copy.unwrap_or(stamp)));
        let anchor = match &self.anchor {
            AnchorState::Moved { to: at, stamp } => went(at, *stamp),
            AnchorState::Nothing | AnchorState::Content(_) => None,
        };
        let anchor = anchor.map(|(to, stamp)| AnchorState::Moved { to, stamp });
        let last = self.went.as_ref().and_then(|last| went(&last.to, last.stamp)).map(|(to, stamp)| Went { to, stamp });
        if anchor.is_none() && last.is_none() {
            return None;
        }
        let known = self.clone();
        Some(Self { anchor: anchor.unwrap_or(known.anchor), went: last.or(known.went), ..known })
    }

    /// The same once what is at `place` has been replaced, and is `kept`.
    fn replaced_at(&self, place: &RelPath, kept: Kept) -> Option<Self> {
        let is_there = matches!(&self.anchor, AnchorState::Moved { to, .. } if to == place);
        let went_there = self.went.as_ref().is_some_and(|went| went.to == *place);
        if !is_there && !went_there {
            return None;
        }
        let mut known = self.clone();
        if is_there {
            known.anchor = AnchorState::Content(kept);
        }
        known.went = known.went.filter(|went| went.to != *place);
        Some(known)
    }
}

impl State {
    pub(super) fn is_fresh(&self, path: &RelPath) -> bool {
        self.anchors.get(path).is_some_and(Known::is_fresh)
    }

    /// Anchors after a landing on `path` that replaced something, or was `judged_against` what used to be there: of the
    /// path itself and of paths whose content was moved to it.
    pub(super) fn anchor_landed(
        &self,
        path: &RelPath,
        existed: bool,
        (replaced, judged_against): (Option<Kept>, Option<Kept>),
        exists: bool,
    ) -> Vec<Anchor> {
        let mut changed = Vec::new();
        let first = match replaced.filter(|_| existed).or(judged_against) {
            Some(kept) => AnchorState::Content(kept),
            None => AnchorState::Nothing,
        };
        let came_with_dir = self.left_in_moved_dir(path).filter(|_| !self.anchors.contains(path));
        // What goes as it came is remembered where it came from, and there alone.
        let first = if exists || came_with_dir.is_none() { first } else { AnchorState::Nothing };
        let unknown = Known { fresh: came_with_dir.is_some(), from: came_with_dir, ..Known::of(first) };
        let mut known = self.anchors.get(path).cloned().unwrap_or(unknown);
        if !existed {
            known.fresh = known.anchor == AnchorState::Nothing && exists;
        }
        known.fresh &= exists;
        known.from = known.from.filter(|_| existed && exists);
        known.went = None;
        known.put_back &= !exists;
        changed.push(known.as_anchor(path));
        if let Some(kept) = replaced {
            changed.extend(self.anchors_moved_to(path, kept));
        }
        changed
    }

    /// Anchors of paths whose content was moved to `path`, where it is replaced and kept as `kept`.
    pub(super) fn anchors_moved_to(&self, path: &RelPath, kept: Kept) -> Vec<Anchor> {
        let with_dir = self.came_with_dir(path);
        let with_dir = with_dir.map(|from| Known::of(AnchorState::Content(kept)).as_anchor(&from));
        let pinned = |(from, known): (&RelPath, &Known)| Some(known.replaced_at(path, kept)?.as_anchor(from));
        self.anchors.of_place(path).filter_map(pinned).chain(with_dir).collect()
    }

    /// Anchors that a landing has brought, once lower has changed.
    pub(super) fn know(&mut self, anchors: Vec<Anchor>) {
        for Anchor { path, state: anchor, fresh, from, went, put_back, had_dir } in anchors {
            self.anchors.insert(path, Known { anchor, fresh, from, went, put_back, had_dir });
        }
    }

    /// What was renamed away from `path` may change from now on; what `path` is judged against may not.
    pub(super) fn pin_anchor(&mut self, path: &RelPath, kept: Kept) {
        if let Some(known) = self.anchors.get(path)
            && matches!(known.anchor, AnchorState::Moved { .. })
        {
            let known = Known { anchor: AnchorState::Content(kept), ..known.clone() };
            self.anchors.insert(path.clone(), known);
        }
    }

    /// Anchors once a renamed inode has its first name again: nothing is lost with the copy at the other.
    pub(super) fn anchors_put_back(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        let home = match self.anchors.get(path).map(|known| &known.anchor) {
            // It is not what the path had first.
            Some(anchor @ (AnchorState::Content(_) | AnchorState::Nothing)) => anchor.clone(),
            Some(AnchorState::Moved { .. }) | None => AnchorState::Moved { to: path.clone(), stamp },
        };
        let had_dir = |path: &RelPath| self.anchors.get(path).is_some_and(|known| known.had_dir);
        // A name that nothing is known of had this content all along: a rename over it changed nothing.
        let there = self.came_here(to).then(|| {
            let there = self.anchors.get(to).map_or(AnchorState::Nothing, |known| known.anchor.clone());
            let fresh = there == AnchorState::Nothing;
            Known { fresh, from: Some(path.clone()), had_dir: had_dir(to), ..Known::of(there) }.as_anchor(to)
        });
        [Known { had_dir: had_dir(path), ..Known::of(home) }.as_anchor(path)].into_iter().chain(there).collect()
    }

    /// Whether something has come to a path in this session, by itself or with a directory.
    pub(super) fn came_here(&self, path: &RelPath) -> bool {
        self.anchors.contains(path) || self.left_in_moved_dir(path).is_some()
    }

    /// The same where nothing is left at the other name: what the view shows there came in this session.
    pub(super) fn anchors_uncovered(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        let mut anchors = self.anchors_put_back(path, to, stamp);
        let there = anchors.iter_mut().filter(|anchor| anchor.path == *to);
        there.for_each(|there| (there.fresh, there.from, there.put_back) = (false, None, true));
        anchors
    }

    /// A renamed inode, which was `moved`, has its first name again, and a copy of it has the other; open where it is a file.
    pub(super) fn put_back(
        &mut self,
        path: &RelPath,
        to: &RelPath,
        moved: &Meta,
        copied: Option<(Meta, Option<File>)>,
    ) {
        self.epoch += 1;
        self.recent_put_back(to, path);
        let Some((copy, file)) = copied else { return };
        self.touched(to, &moved.stamp(), &copy);
        let Some(node) = self.nodes.at(to) else { return };
        if self.nodes.names(node).len() > 1 {
            // Its other names go on being those of the renamed inode, and the copy is a file of its own.
            self.nodes.unname_path(to);
            return;
        }
        self.nodes.set_lower(node, Some(copy.key()));
        if let Some((open, file)) = self.nodes.open_on(node).zip(file)
            && open.upper().is_none()
            && !open.backing().is_orphan()
        {
            open.set_backing(Backing::Lower(Arc::new(file)));
        }
    }

    /// Where what is at a path lay before this session; none: it was made in it.
    pub(super) fn came_from(&self, path: &RelPath) -> Option<RelPath> {
        match self.anchors.get(path) {
            Some(known) if known.fresh => known.from.clone(),
            Some(_) | None => Some(path.clone()),
        }
    }

    /// The path is free now; what was there went elsewhere.
    pub(super) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.forget_recent(path);
        let left = self.anchor_left(path)?;
        self.know(vec![left.clone()]);
        Some(left)
    }

    /// The same of a directory.
    pub(super) fn dir_left(&mut self, path: &RelPath) -> Vec<Anchor> {
        let places = self.places_of_dir(path);
        let left = self.left(path);
        if places.is_empty() {
            return left.into_iter().collect();
        }
        // The path itself is among them.
        let had_dir = |place: &RelPath| {
            let known = self.anchors.get(place).cloned().unwrap_or_else(Known::nothing);
            Known { had_dir: true, ..known }.as_anchor(place)
        };
        let had: Vec<Anchor> = places.iter().map(had_dir).collect();
        self.know(had.clone());
        had
    }

    /// Where the directory at `path` was in this session: also by the name that it had before one above it was renamed.
    /// Nowhere where it was made in it.
    fn places_of_dir(&self, path: &RelPath) -> Vec<RelPath> {
        match self.is_fresh(path) {
            true => Vec::new(),
            false => left_in_moved_dir(dirs_moved(&self.moved_dirs), path).into_iter().chain([path.clone()]).collect(),
        }
    }

    /// What `left` is going to know: an intent has it before lower changes.
    pub(super) fn anchor_left(&self, path: &RelPath) -> Option<Anchor> {
        Some(self.anchors.get(path)?.clone().left().as_anchor(path))
    }

    /// What was seen at a path and landed there a moment ago is not there any more.
    pub(super) fn forget_recent(&mut self, path: &RelPath) {
        self.seen.remove(path);
        self.windows.forget(path);
        self.sights.forget_within(path);
    }

    /// What was at `source` was renamed over `to`, which is `meta` now. It is what `source` is a modification of from
    /// now on, and paths whose content had been renamed to `source` before.
    pub(super) fn carried(&mut self, source: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        self.forget_recent(source);
        let changed = self.anchors_carried(source, to, meta);
        self.know(changed.clone());
        changed
    }

    /// What `carried` is going to know: an intent has it before lower changes.
    pub(super) fn anchors_carried(&self, source: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        let stamp = meta.stamp();
        let moved = || Known::of(AnchorState::Moved { to: to.clone(), stamp });
        let followed = |known: &Known| known.retargeted(source, to, Some(stamp));
        let was = self.anchors.get(source).cloned().unwrap_or_else(moved);
        let known = followed(&was).unwrap_or(was);
        let left = Known { fresh: false, from: None, went: Some(Went { to: to.clone(), stamp }), ..known };
        let others = self.anchors.of_place(source).filter(|(path, _)| *path != source);
        let others = others.filter_map(|(path, known)| Some(followed(known)?.as_anchor(path)));
        let came_from = self.came_with_dir(source).map(|path| moved().as_anchor(&path));
        others.chain(came_from).chain([left.as_anchor(source)]).collect()
    }

    /// What is known of a new file at `to` once what was at `source` was renamed over it: it may be all that is left of
    /// something older, and does not go unreviewed then. To be asked before the source is known as gone.
    pub(super) fn anchor_taken_over(&self, source: &RelPath, to: &RelPath) -> Option<Anchor> {
        let came_from = self.came_from(source).filter(|came_from| came_from != to)?;
        let known = self.anchors.get(to).filter(|known| known.fresh)?.clone();
        Some(Known { from: Some(came_from), ..known }.as_anchor(to))
    }

    /// Where the file that lay at a path is now, if a directory above it was renamed.
    pub(super) fn came_along(&self, path: &RelPath) -> Option<RelPath> {
        came_along(&self.anchors, &self.moved_dirs, path)
    }

    /// The path at which what is at `path` came along with a directory, where nothing else is known of that.
    pub(super) fn came_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        came_with_dir(&self.anchors, &self.moved_dirs, path)
    }

    /// Where what lies at `path` was before a directory above it was renamed.
    pub(super) fn left_in_moved_dir(&self, path: &RelPath) -> Option<RelPath> {
        left_in_moved_dir(self.moved_dirs.iter(), path)
    }

    /// Lower's file at `path` was `before` and is `after` by our own doing, with the same content.
    pub(super) fn touched(&mut self, path: &RelPath, before: &Stamp, after: &Meta) {
        let stamp = after.stamp();
        self.sights.unchanged(path, before, &stamp);
        if let Some(seen) = self.seen.get_mut(path).filter(|seen| same_content_stamp(&seen.stamp, before)) {
            seen.stamp = stamp;
        }
        self.windows.touched(path, before, &stamp);
        self.uppers.touched(path, before, &stamp);
        if let Some(node) = self.nodes.at(path) {
            self.nodes.note_shown(node, &stamp);
            let handles = self.handles.values().filter(|handle| handle.node == node);
            handles.for_each(|handle| handle.touched(before, &stamp));
        }
    }
}

/// Anchors that a rename changes are told before it happens: they are in its intent, and known once lower has changed.
impl State {
    /// What is at `from` comes to stand at `to`, a path that is as new or as old as it was.
    pub(super) fn anchors_moved(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        let moved = moved_file(&self.anchors, &self.moved_dirs, (from, to), meta);
        moved.iter().map(|(path, known)| known.as_anchor(path)).collect()
    }

    /// The same where `from` is removed or replaced by that: new or not, what comes there is a modification of what it had.
    pub(super) fn anchors_parted(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        let mut anchors = self.anchors_moved(from, to, meta);
        if let Some(left) = anchors.iter_mut().find(|anchor| anchor.path == *from) {
            // No event tells that it went.
            left.put_back = true;
            if left.state == AnchorState::Nothing {
                left.state = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
            }
        }
        anchors
    }

    /// A directory is renamed: the content that anchors of what lay in it speak of is below its new name.
    pub(super) fn anchors_moved_dir(
        &self,
        from: &RelPath,
        to: &RelPath,
        mut now: HashMap<RelPath, Known>,
    ) -> Vec<Anchor> {
        self.note_dirs_gone(&mut now, &[from]);
        move_dir(&mut now, &self.moved_dirs, from, to);
        self.changed_to(now)
    }

    /// Two directories in each other's place, by way of a third name, which nobody can use.
    pub(super) fn anchors_exchanged_dirs(
        &self,
        one: &RelPath,
        other: &RelPath,
        mut now: HashMap<RelPath, Known>,
    ) -> Vec<Anchor> {
        self.note_dirs_gone(&mut now, &[one, other]);
        exchange_moves(one, other).iter().for_each(|(from, to)| move_dir(&mut now, &self.moved_dirs, from, to));
        let between = between();
        now.retain(|path, _| !path.is_within(&between));
        for known in now.values_mut() {
            if let Some(was) = known.from.as_ref().and_then(|from| from.rebase(&between, one)) {
                known.from = Some(was);
            }
        }
        self.changed_to(now)
    }

    /// A directory takes the path of a file, of which nothing is forgotten by that; the file, if it is `below`, takes that
    /// of the directory.
    pub(super) fn anchors_exchanged(
        &self,
        file: &RelPath,
        dir: &RelPath,
        below: Option<&Meta>,
        mut now: HashMap<RelPath, Known>,
    ) -> Vec<Anchor> {
        self.note_dirs_gone(&mut now, &[dir]);
        let known = now.remove(file);
        move_dir(&mut now, &self.moved_dirs, dir, file);
        let came = now.remove(file);
        now.extend(known.map(|known| (file.clone(), known)));
        if let Some(meta) = below {
            let anchors = now.iter().map(|(path, known)| (path.clone(), known.clone())).collect();
            // The file came to its place before the directory does.
            let moved = moved_file(&anchors, &self.moved_dirs, (file, dir), meta);
            now.extend(moved);
        }
        // The path remembers what it had; what is there now is the directory.
        if let Some(known) = now.get_mut(file) {
            (known.fresh, known.from) = came.map_or((false, None), |dir| (dir.fresh, dir.from));
        }
        self.changed_to(now)
    }

    fn note_dirs_gone(&self, now: &mut HashMap<RelPath, Known>, dirs: &[&RelPath]) {
        for place in dirs.iter().flat_map(|dir| self.places_of_dir(dir)) {
            now.entry(place).or_insert_with(Known::nothing).had_dir = true;
        }
    }

    /// What is known before directories move, with what is `implied`. What lay at `gone` does not come along in lower.
    pub(super) fn anchors_without(&self, gone: &[RelPath], implied: Vec<(RelPath, Known)>) -> HashMap<RelPath, Known> {
        let mut now = self.anchors.to_map();
        now.extend(implied);
        for path in gone {
            if let Some(known) = now.get_mut(path) {
                *known = known.clone().left();
            }
        }
        now
    }

    fn changed_to(&self, now: HashMap<RelPath, Known>) -> Vec<Anchor> {
        let changed = now.iter().filter(|(path, known)| self.anchors.get(path) != Some(*known));
        changed.map(|(path, known)| known.as_anchor(path)).collect()
    }

    /// What was seen of a file and landed from it a moment ago is known of it under its new name.
    pub(super) fn recent_moved(&mut self, from: &RelPath, to: &RelPath) {
        self.seen_moved(from, to);
        self.windows.moved(from, to);
        self.sights.moved_within(from, to);
    }

    /// The same of one that has its first name again.
    pub(super) fn recent_put_back(&mut self, from: &RelPath, path: &RelPath) {
        self.seen_moved(from, path);
        self.windows.moved_back(from, path);
        // What is left at the other name, if anything, is a copy of it.
        self.sights.copied(from, path);
    }

    /// A rename of ours has moved the ctime of what was seen, and nothing else: its content need not be looked at for that.
    pub(super) fn seen_renamed(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        if let Some(seen) = self.seen.get_mut(path).filter(|seen| seen.stamp == *before) {
            seen.stamp = *after;
        }
    }

    fn seen_moved(&mut self, from: &RelPath, to: &RelPath) {
        if let Some(seen) = self.seen.remove(from) {
            self.seen.insert(to.clone(), seen);
        }
    }

    /// A directory was renamed, and what was known a moment ago of the files in it is known of them there.
    pub(super) fn dir_moved(&mut self, from: &RelPath, to: &RelPath) {
        self.windows.moved_within(from, to);
        self.sights.moved_within(from, to);
        let seen: Vec<RelPath> = self.seen.keys().filter(|path| path.is_within(from)).cloned().collect();
        for path in seen {
            if let (Some(moved), Some(seen)) = (path.rebase(from, to), self.seen.remove(&path)) {
                self.seen.insert(moved, seen);
            }
        }
        self.moved_dirs.push((from.clone(), to.clone()));
    }
}

/// The renames, one after the other, by which two directories come to be in each other's place.
pub(super) fn exchange_moves(one: &RelPath, other: &RelPath) -> [(RelPath, RelPath); 3] {
    [(one.clone(), between()), (other.clone(), one.clone()), (between(), other.clone())]
}

fn between() -> RelPath {
    RelPath::parse(BETWEEN).expect("a plain name")
}

fn unjudged() -> RelPath {
    RelPath::parse(UNJUDGED).expect("a plain name")
}

/// What lies in a directory that has come to where nobody judges is no anchor any more: as if it had gone on to a name
/// that nobody can use.
pub(super) fn forgotten(dir: &RelPath) -> Renaming {
    (dir.clone(), unjudged())
}

/// What is known anew once what was at `from`, which is `meta`, is at `to`.
fn moved_file(
    anchors: &Anchors,
    moved_dirs: &[(RelPath, RelPath)],
    (from, to): (&RelPath, &RelPath),
    meta: &Meta,
) -> Vec<(RelPath, Known)> {
    let moved = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
    let known =
        |path: &RelPath, otherwise: AnchorState| anchors.get(path).cloned().unwrap_or_else(|| Known::of(otherwise));
    let made_here = anchors.get(from).is_some_and(Known::is_fresh);
    let mut source = known(from, moved.clone());
    (source.fresh, source.went) = (false, Some(Went { to: to.clone(), stamp: meta.stamp() }));
    let came_from = source.from.take().or(Some(from.clone())).filter(|came| !made_here && came != to);
    // Back where it was before a directory was renamed: it is its own anchor.
    let is_home = came_along(anchors, moved_dirs, to).as_ref() == Some(from);
    let mut target = known(to, if is_home { moved.clone() } else { AnchorState::Nothing });
    let came_from = came_from.filter(|_| target.anchor == AnchorState::Nothing);
    (target.fresh, target.from, target.went) = (made_here || came_from.is_some(), came_from, None);
    let others = anchors.of_place(from).filter(|(path, _)| *path != from && *path != to);
    let others = others.filter_map(|(path, known)| Some((path.clone(), known.retargeted(from, to, None)?)));
    let both = [(from.clone(), source), (to.clone(), target)];
    let both = both.map(|(path, known)| (path, known.retargeted(from, to, None).unwrap_or(known)));
    let with_dir = came_with_dir(anchors, moved_dirs, from).filter(|was| was != to);
    let with_dir = with_dir.map(|was| (was, Known::of(moved)));
    others.chain(both).chain(with_dir).collect()
}

/// What lay in a directory lies in another, which was free or empty.
fn move_dir(anchors: &mut HashMap<RelPath, Known>, moved_dirs: &[Renaming], from: &RelPath, to: &RelPath) {
    for (path, known) in anchors.iter_mut().filter(|(path, _)| path.is_within(to)) {
        // Free until now: what comes with the directory is older than its name.
        if known.anchor == AnchorState::Nothing {
            (known.fresh, known.from) = (true, path.rebase(to, from));
        }
    }
    let is_fresh = |(path, known): &(&RelPath, &Known)| known.fresh && path.is_within(from);
    let fresh: Vec<RelPath> = anchors.iter().filter(is_fresh).map(|(path, _)| path.clone()).collect();
    for path in fresh {
        let came_from = anchors.get_mut(&path).and_then(|known| {
            known.fresh = false;
            known.from.take()
        });
        let Some(moved) = path.rebase(from, to) else { continue };
        // Nothing older may have come to the name that it says; then this one is still what went with a directory before.
        let went = came_from.is_some() && moved_with_dir(moved_dirs.iter(), &moved).is_some();
        if went && !anchors.contains_key(&moved) {
            continue;
        }
        let there = anchors.entry(moved).or_insert_with(Known::nothing);
        (there.fresh, there.from) = (true, came_from);
    }
    for known in anchors.values_mut() {
        if let Some(now) = known.retargeted(from, to, None) {
            *known = now;
        }
    }
}

/// Where what lay at a path is now, if a directory above it was renamed.
fn moved_with_dir<'a>(mut moved_dirs: impl Iterator<Item = &'a Renaming>, path: &RelPath) -> Option<RelPath> {
    moved_dirs.try_fold(path.clone(), moved_on).filter(|to| to != path)
}

/// Where what is at a path is after one of the renames, if there is something.
fn moved_on(at: RelPath, (from, to): &Renaming) -> Option<RelPath> {
    match at.rebase(from, to) {
        // The directory itself was there, and no content that anything could be a change of.
        Some(_) if at == *from => None,
        Some(moved) => Some(moved),
        // Nothing was there when a directory came to stand there.
        None if at.is_within(to) => None,
        None => Some(at),
    }
}

/// The same of a file. What was made or renamed to that place since was never at the path, nor what was put back to it.
fn came_along(anchors: &Anchors, moved_dirs: &[Renaming], path: &RelPath) -> Option<RelPath> {
    moved_with_dir(moved_dirs.iter(), path).filter(|to| is_of(anchors, moved_dirs, to, path))
}

/// Whether what is at a path, in a directory that was renamed, lay at `was` in it before.
fn is_of(anchors: &Anchors, moved_dirs: &[Renaming], path: &RelPath, was: &RelPath) -> bool {
    let passed_by = |from: &RelPath| passes_by(moved_dirs, was, from);
    anchors.get(path).is_none_or(|known| known.fresh && known.from.as_ref().is_some_and(passed_by))
}

/// Whether what lay at `path` was at `place` for a time, by way of directories that were renamed.
fn passes_by(moved_dirs: &[Renaming], path: &RelPath, place: &RelPath) -> bool {
    let mut at = Some(path.clone());
    let mut places = std::iter::once(at.clone()).chain(moved_dirs.iter().map(|renaming| {
        at = at.take().and_then(|at| moved_on(at, renaming));
        at.clone()
    }));
    places.any(|at| at.as_ref() == Some(place))
}

/// Where what lies at `path` was before a directory above it was renamed.
fn left_in_moved_dir<'a>(
    moved_dirs: impl DoubleEndedIterator<Item = &'a Renaming> + Clone,
    path: &RelPath,
) -> Option<RelPath> {
    let back = |at: RelPath, (from, to): &Renaming| at.rebase(to, from).unwrap_or(at);
    let was = moved_dirs.clone().rev().fold(path.clone(), back);
    (moved_with_dir(moved_dirs, &was).as_ref() == Some(path)).then_some(was)
}

/// The same, where nothing else is known of that path: what happens to the file now must be known of it.
fn came_with_dir(anchors: &Anchors, moved_dirs: &[Renaming], path: &RelPath) -> Option<RelPath> {
    left_in_moved_dir(moved_dirs.iter(), path)
        .filter(|was| is_of(anchors, moved_dirs, path, was) && !anchors.contains(was))
}

/// The renames of directories, without where nobody remembers what lies in one.
fn dirs_moved(moved_dirs: &[Renaming]) -> impl DoubleEndedIterator<Item = &Renaming> + Clone {
    let unjudged = unjudged();
    moved_dirs.iter().filter(move |(_, to)| *to != unjudged)
}
