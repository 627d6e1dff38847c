//! What paths had when the session began, where that content is now, and what landed a moment ago.
//!
//! An anchor says what a path is a modification of, though lower has nothing there any more; a window what several short
//! writes in a row are one change against (SPEC §4.3, §4.6).

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::copy_up::same_content_stamp;
use super::error::Context;
use super::lookup::Origin;
use super::open::Backing;
use super::{Known, Overlay, Result, State, Window};
use crate::model::{Digest, RelPath, Stamp};
use crate::store::{Anchor, AnchorState, Below};
use crate::sys::file::Meta;

/// Begins as temporary names of ours do: nothing in the view can have it.
const BETWEEN: &[u8] = b".fettle-tmp-exchanged";

/// How many recent landings are remembered before old ones are looked through.
const WINDOWS_MAX: usize = 4096;

impl Overlay {
    /// What used to be at a path in this session, also by way of a directory that was renamed.
    pub(super) fn anchor_of(&self, path: &RelPath) -> Result<Option<AnchorState>> {
        let to = {
            let state = self.state.lock();
            if let Some(known) = state.anchors.get(path) {
                return Ok(Some(known.anchor.clone()));
            }
            let Some(to) = state.moved_with_dir(path) else { return Ok(None) };
            match state.anchors.get(&to) {
                Some(Known { anchor: AnchorState::Nothing, .. }) | None => to,
                Some(known) => return Ok(Some(known.anchor.clone())),
            }
        };
        let meta = self.lower.stat(&to).doing(|| format!("stat {to}"))?;
        Ok(meta.filter(|meta| !meta.is_dir()).map(|meta| AnchorState::Moved { to, stamp: meta.stamp() }))
    }
}

impl Overlay {
    /// Whether what is at a path came in this session, so that with it nothing older goes: it is not all that is left of
    /// something that was renamed or linked here.
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
        came_from.is_none_or(|from| matches!(self.origin(&from), Ok(Origin::Lower(_) | Origin::Upper(..))))
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

    pub(super) fn as_anchor(&self, path: &RelPath) -> Anchor {
        Anchor { path: path.clone(), state: self.anchor.clone(), fresh: self.fresh, from: self.from.clone() }
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
        (replaced, judged_against): (Option<Digest>, Option<Digest>),
        exists: bool,
    ) -> Vec<Anchor> {
        let mut changed = Vec::new();
        let first = match replaced.filter(|_| existed).or(judged_against) {
            Some(digest) => AnchorState::Content { digest },
            None => AnchorState::Nothing,
        };
        let came_with_dir = self.left_in_moved_dir(path).filter(|_| !self.anchors.contains_key(path));
        let unknown = match &came_with_dir {
            Some(from) => Known { anchor: AnchorState::Nothing, fresh: true, from: Some(from.clone()) },
            None => Known { anchor: first, fresh: false, from: None },
        };
        let mut known = self.anchors.get(path).cloned().unwrap_or(unknown);
        if !existed {
            known.fresh = known.anchor == AnchorState::Nothing && exists;
        }
        known.fresh &= exists;
        known.from = known.from.filter(|_| existed && exists);
        changed.push(known.as_anchor(path));
        if let Some(digest) = replaced {
            changed.extend(self.anchors_moved_to(path, digest));
        }
        changed
    }

    /// Anchors of paths whose content was moved to `path`, where it is replaced and kept as `digest`.
    pub(super) fn anchors_moved_to(&self, path: &RelPath, digest: Digest) -> Vec<Anchor> {
        let moved = |known: &Known| matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path);
        let anchor = AnchorState::Content { digest };
        let pinned = |from: &RelPath, known: &Known| Known { anchor: anchor.clone(), ..known.clone() }.as_anchor(from);
        let with_dir = self.left_in_moved_dir(path).filter(|from| !self.anchors.contains_key(from));
        let with_dir = with_dir.map(|from| Known { anchor: anchor.clone(), fresh: false, from: None }.as_anchor(&from));
        let moved = self.anchors.iter().filter(|(_, known)| moved(known));
        moved.map(|(from, known)| pinned(from, known)).chain(with_dir).collect()
    }

    /// Anchors that a landing has brought, once lower has changed.
    pub(super) fn know(&mut self, anchors: Vec<Anchor>) {
        for Anchor { path, state: anchor, fresh, from } in anchors {
            self.anchors.insert(path, Known { anchor, fresh, from });
        }
    }

    /// What was renamed away from `path` may change from now on; what `path` is judged against may not.
    pub(super) fn pin_anchor(&mut self, path: &RelPath, digest: Digest) {
        if let Some(known) = self.anchors.get_mut(path)
            && matches!(known.anchor, AnchorState::Moved { .. })
        {
            known.anchor = AnchorState::Content { digest };
        }
    }

    /// Anchors once a renamed inode has its first name again: nothing is lost with the copy at the other.
    pub(super) fn anchors_put_back(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        let home = AnchorState::Moved { to: path.clone(), stamp };
        let there = self.anchors.get(to).map_or(AnchorState::Nothing, |known| known.anchor.clone());
        let fresh = there == AnchorState::Nothing;
        vec![
            Known { anchor: home, fresh: false, from: None }.as_anchor(path),
            Known { anchor: there, fresh, from: Some(path.clone()) }.as_anchor(to),
        ]
    }

    /// The same where nothing is left at the other name: what the view shows there came in this session.
    pub(super) fn anchors_uncovered(&self, path: &RelPath, to: &RelPath, stamp: Stamp) -> Vec<Anchor> {
        let mut anchors = self.anchors_put_back(path, to, stamp);
        let there = anchors.iter_mut().filter(|anchor| anchor.path == *to);
        there.for_each(|there| (there.fresh, there.from) = (false, None));
        anchors
    }

    /// A renamed inode, which was `moved`, has its first name again, and a copy of it has the other.
    pub(super) fn put_back(&mut self, to: &RelPath, moved: &Meta, copied: Option<(Meta, File)>) {
        self.epoch += 1;
        let Some((copy, file)) = copied else { return };
        self.touched(to, &moved.stamp(), &copy);
        let Some(node) = self.nodes.at(to) else { return };
        self.nodes.set_lower(node, Some(copy.key()));
        if let Ok(found) = self.nodes.get(node)
            && let Some(open) = &found.open
            && open.upper().is_none()
            && !open.backing().is_orphan()
        {
            open.set_backing(Backing::Lower(Arc::new(file)));
        }
    }

    /// The path is free now; what was there went elsewhere.
    pub(super) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.seen.remove(path);
        let known = self.anchors.get_mut(path)?;
        (known.fresh, known.from) = (false, None);
        Some(known.as_anchor(path))
    }

    /// What was at `source` was renamed over `to`, which is `meta` now. It is what `source` is a modification of from
    /// now on, and paths whose content had been renamed to `source` before.
    pub(super) fn carried(&mut self, source: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        self.seen.remove(source);
        let moved = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
        let known = self.anchors.entry(source.clone());
        let known = known.or_insert(Known { anchor: moved.clone(), fresh: false, from: None });
        (known.fresh, known.from) = (false, None);
        let mut changed = Vec::new();
        for (path, known) in &mut self.anchors {
            if matches!(&known.anchor, AnchorState::Moved { to: at, .. } if at == source) {
                known.anchor = moved.clone();
            }
            if path == source || known.anchor == moved {
                changed.push(known.as_anchor(path));
            }
        }
        changed
    }

    /// Where what lay at a path is now, if a directory above it was renamed.
    pub(super) fn moved_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        moved_with_dir(&self.moved_dirs, path)
    }

    /// Where what lies at `path` was before a directory above it was renamed.
    pub(super) fn left_in_moved_dir(&self, path: &RelPath) -> Option<RelPath> {
        let back = |at: RelPath, (from, to): &(RelPath, RelPath)| at.rebase(to, from).unwrap_or(at);
        let was = self.moved_dirs.iter().rev().fold(path.clone(), back);
        (self.moved_with_dir(&was).as_ref() == Some(path)).then_some(was)
    }

    /// Lower's file at `path` was `before` and is `after` by our own doing, with the same content.
    pub(super) fn touched(&mut self, path: &RelPath, before: &Stamp, after: &Meta) {
        let stamp = after.stamp();
        if let Some(seen) = self.seen.get_mut(path).filter(|seen| same_content_stamp(&seen.stamp, before)) {
            seen.stamp = stamp;
        }
        if let Some(landed) = self.windows.get_mut(path).and_then(|window| window.landed.as_mut())
            && same_content_stamp(landed, before)
        {
            *landed = stamp;
        }
        let upper = self.uppers.at(path).and_then(|id| self.uppers.get_mut(id));
        if let Some(Below::Entry { stamp: base, .. }) = upper.map(|upper| &mut upper.row.base.below)
            && same_content_stamp(base, before)
        {
            *base = stamp;
        }
        if let Some(node) = self.nodes.at(path) {
            let handles = self.handles.values().filter(|handle| handle.node() == node);
            handles.for_each(|handle| handle.touched(before, &stamp));
        }
    }

    pub(super) fn forget_old_windows(&mut self) {
        if self.windows.len() > WINDOWS_MAX {
            self.windows.retain(|_, window| window.last.elapsed().as_secs() < 60);
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

    /// A directory is renamed: the content that anchors of what lay in it speak of is below its new name.
    pub(super) fn anchors_moved_dir(&self, from: &RelPath, to: &RelPath) -> Vec<Anchor> {
        let mut now = self.anchors.clone();
        move_dir(&mut now, from, to);
        self.changed_to(now)
    }

    /// Two directories in each other's place, by way of a third name, which nobody can use.
    pub(super) fn anchors_exchanged_dirs(&self, one: &RelPath, other: &RelPath) -> Vec<Anchor> {
        let mut now = self.anchors.clone();
        exchange_moves(one, other).iter().for_each(|(from, to)| move_dir(&mut now, from, to));
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
    pub(super) fn anchors_exchanged(&self, file: &RelPath, dir: &RelPath, below: Option<&Meta>) -> Vec<Anchor> {
        let mut now = self.anchors.clone();
        let known = now.remove(file);
        move_dir(&mut now, dir, file);
        now.remove(file);
        now.extend(known.map(|known| (file.clone(), known)));
        if let Some(meta) = below {
            let mut moved_dirs = self.moved_dirs.clone();
            moved_dirs.push((dir.clone(), file.clone()));
            let moved = moved_file(&now, &moved_dirs, (file, dir), meta);
            now.extend(moved);
        }
        self.changed_to(now)
    }

    fn changed_to(&self, now: HashMap<RelPath, Known>) -> Vec<Anchor> {
        let changed = now.iter().filter(|(path, known)| self.anchors.get(*path) != Some(*known));
        changed.map(|(path, known)| known.as_anchor(path)).collect()
    }

    /// What was seen of a file and landed from it a moment ago is known of it under its new name.
    pub(super) fn recent_moved(&mut self, from: &RelPath, to: &RelPath) {
        if let Some(seen) = self.seen.remove(from) {
            self.seen.insert(to.clone(), seen);
        }
        if let Some(window) = self.windows.remove(from) {
            // A rename in between does not make one change two (SPEC §4.6).
            self.windows.insert(to.clone(), window);
        }
    }

    /// A directory was renamed, and what was known a moment ago of the files in it is known of them there.
    pub(super) fn dir_moved(&mut self, from: &RelPath, to: &RelPath) {
        // Only of files that are there: what was deleted from a path stays with the path.
        let moves = |(path, window): &(&RelPath, &Window)| path.is_within(from) && window.landed.is_some();
        let windows: Vec<RelPath> = self.windows.iter().filter(moves).map(|(path, _)| path.clone()).collect();
        for path in windows {
            if let (Some(moved), Some(window)) = (path.rebase(from, to), self.windows.remove(&path)) {
                self.windows.insert(moved, window);
            }
        }
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

/// What is known anew once what was at `from`, which is `meta`, is at `to`.
fn moved_file(
    anchors: &HashMap<RelPath, Known>,
    moved_dirs: &[(RelPath, RelPath)],
    (from, to): (&RelPath, &RelPath),
    meta: &Meta,
) -> Vec<(RelPath, Known)> {
    let moved = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
    let known = |path: &RelPath, otherwise: AnchorState| {
        anchors.get(path).cloned().unwrap_or(Known { anchor: otherwise, fresh: false, from: None })
    };
    let made_here = anchors.get(from).is_some_and(Known::is_fresh);
    let mut source = known(from, moved.clone());
    source.fresh = false;
    let came_from = source.from.take().or(Some(from.clone())).filter(|came| !made_here && came != to);
    // Back where it was before a directory was renamed: it is its own anchor.
    let is_home = moved_with_dir(moved_dirs, to).as_ref() == Some(from);
    let mut target = known(to, if is_home { moved } else { AnchorState::Nothing });
    let came_from = came_from.filter(|_| target.anchor == AnchorState::Nothing);
    (target.fresh, target.from) = (made_here || came_from.is_some(), came_from);
    let follows = |known: &Known| matches!(&known.anchor, AnchorState::Moved { to: at, .. } if at == from);
    let others = anchors.iter().filter(|(path, known)| *path != from && *path != to && follows(known));
    let mut changed: Vec<_> = others.map(|(path, known)| (path.clone(), known.clone())).collect();
    changed.extend([(from.clone(), source), (to.clone(), target)]);
    for (_, known) in &mut changed {
        if let AnchorState::Moved { to: at, .. } = &mut known.anchor
            && at == from
        {
            *at = to.clone();
        }
    }
    changed
}

/// What lay in a directory lies in another, which was free or empty.
fn move_dir(anchors: &mut HashMap<RelPath, Known>, from: &RelPath, to: &RelPath) {
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
        if let Some(moved) = path.rebase(from, to) {
            let there = anchors.entry(moved);
            let there = there.or_insert(Known { anchor: AnchorState::Nothing, fresh: true, from: None });
            (there.fresh, there.from) = (true, came_from);
        }
    }
    for known in anchors.values_mut() {
        if let AnchorState::Moved { to: at, .. } = &mut known.anchor
            && let Some(moved) = at.rebase(from, to)
        {
            *at = moved;
        }
    }
}

/// Where what lay at a path is now, if a directory above it was renamed.
fn moved_with_dir(moved_dirs: &[(RelPath, RelPath)], path: &RelPath) -> Option<RelPath> {
    let moved = |at: RelPath, (from, to): &(RelPath, RelPath)| match at.rebase(from, to) {
        // The directory itself was there, and no content that anything could be a change of.
        Some(_) if at == *from => None,
        Some(moved) => Some(moved),
        // Nothing was there when a directory came to stand there.
        None if at.is_within(to) => None,
        None => Some(at),
    };
    moved_dirs.iter().try_fold(path.clone(), moved).filter(|to| to != path)
}
