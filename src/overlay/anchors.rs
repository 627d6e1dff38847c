//! What paths had when the session began, where that content is now, and what landed a moment ago.
//!
//! An anchor says what a path is a modification of, though lower has nothing there any more; a window what several short
//! writes in a row are one change against (SPEC §4.3, §4.6).

use super::error::Context;
use super::{Known, Overlay, Result, State};
use crate::model::{Digest, RelPath, Stamp};
use crate::store::{Anchor, AnchorState, StepOutcome};
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
    /// What was at `from` is at `to` now, a path that is as new or as old as it was.
    pub(super) fn moved_anchors(&self, from: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        let mut state = self.state.lock();
        if let Some(seen) = state.seen.remove(from) {
            state.seen.insert(to.clone(), seen);
        }
        if let Some(window) = state.windows.remove(from) {
            // A rename in between does not make one change two (SPEC §4.6).
            state.windows.insert(to.clone(), window);
        }
        let made_here = state.is_fresh(from);
        let moved = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
        let source = state.anchors.entry(from.clone());
        let source = source.or_insert(Known { anchor: moved, fresh: false, from: None });
        source.fresh = false;
        let came_from = source.from.take().or(Some(from.clone())).filter(|came| !made_here && came != to);
        // Back where it was before a directory was renamed: it is its own anchor.
        let is_home = state.moved_with_dir(to).as_ref() == Some(from);
        let home = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
        let anchor = if is_home { home } else { AnchorState::Nothing };
        let target = state.anchors.entry(to.clone()).or_insert(Known { anchor, fresh: false, from: None });
        let came_from = came_from.filter(|_| target.anchor == AnchorState::Nothing);
        (target.fresh, target.from) = (made_here || came_from.is_some(), came_from);
        for known in state.anchors.values_mut() {
            if let AnchorState::Moved { to: at, .. } = &mut known.anchor
                && at == from
            {
                *at = to.clone();
            }
        }
        [from, to].iter().map(|path| state.anchors[*path].as_anchor(path)).collect()
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
            for (from, known) in &self.anchors {
                if matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path) {
                    let anchor = AnchorState::Content { digest };
                    changed.push(Known { anchor, ..known.clone() }.as_anchor(from));
                }
            }
            if let Some(from) = came_with_dir.filter(|from| !self.anchors.contains_key(from)) {
                let anchor = AnchorState::Content { digest };
                changed.push(Known { anchor, fresh: false, from: None }.as_anchor(&from));
            }
        }
        changed
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

    /// A renamed inode has its first name again, and a copy of it has the other.
    pub(super) fn put_back(&mut self, to: &RelPath, outcomes: &[StepOutcome]) {
        self.epoch += 1;
        let copy = outcomes.iter().rfind(|outcome| outcome.path == *to).and_then(|outcome| outcome.meta);
        if let Some(node) = self.nodes.at(to) {
            self.nodes.set_lower(node, copy.as_ref().map(Meta::key));
        }
    }

    /// The path is free now; what was there went elsewhere.
    pub(super) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.seen.remove(path);
        let known = self.anchors.get_mut(path)?;
        (known.fresh, known.from) = (false, None);
        Some(known.as_anchor(path))
    }

    /// Where what lay at a path is now, if a directory above it was renamed.
    pub(super) fn moved_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        let moved = |at: RelPath, (from, to): &(RelPath, RelPath)| match at.rebase(from, to) {
            Some(moved) => Some(moved),
            // Nothing was there when a directory came to stand there.
            None if at.is_within(to) => None,
            None => Some(at),
        };
        self.moved_dirs.iter().try_fold(path.clone(), moved).filter(|to| to != path)
    }

    /// Where what lies at `path` was before a directory above it was renamed.
    pub(super) fn left_in_moved_dir(&self, path: &RelPath) -> Option<RelPath> {
        let back = |at: RelPath, (from, to): &(RelPath, RelPath)| at.rebase(to, from).unwrap_or(at);
        let was = self.moved_dirs.iter().rev().fold(path.clone(), back);
        (self.moved_with_dir(&was).as_ref() == Some(path)).then_some(was)
    }

    pub(super) fn forget_old_windows(&mut self) {
        if self.windows.len() > WINDOWS_MAX {
            self.windows.retain(|_, window| window.last.elapsed().as_secs() < 60);
        }
    }
}

impl State {
    /// Anchors of what lay in a directory: the content they speak of is below its new name.
    pub(super) fn moved_dir(&mut self, from: &RelPath, to: &RelPath) {
        self.moved_dirs.push((from.clone(), to.clone()));
        let windows: Vec<RelPath> = self.windows.keys().filter(|path| path.is_within(from)).cloned().collect();
        for path in windows {
            if let (Some(moved), Some(window)) = (path.rebase(from, to), self.windows.remove(&path)) {
                // A rename in between does not make one change two (SPEC §4.6).
                self.windows.insert(moved, window);
            }
        }
        let seen: Vec<RelPath> = self.seen.keys().filter(|path| path.is_within(from)).cloned().collect();
        for path in seen {
            if let (Some(moved), Some(seen)) = (path.rebase(from, to), self.seen.remove(&path)) {
                self.seen.insert(moved, seen);
            }
        }
        for (path, known) in self.anchors.iter_mut().filter(|(path, _)| path.is_within(to)) {
            // Free until now: what comes with the directory is older than its name.
            if known.anchor == AnchorState::Nothing {
                (known.fresh, known.from) = (true, path.rebase(to, from));
            }
        }
        let fresh: Vec<RelPath> = self
            .anchors
            .iter()
            .filter(|(path, known)| known.fresh && path.is_within(from))
            .map(|(path, _)| path.clone())
            .collect();
        for path in fresh {
            let came_from = self.anchors.get_mut(&path).and_then(|known| {
                known.fresh = false;
                known.from.take()
            });
            if let Some(moved) = path.rebase(from, to) {
                let there = self.anchors.entry(moved);
                let there = there.or_insert(Known { anchor: AnchorState::Nothing, fresh: true, from: None });
                (there.fresh, there.from) = (true, came_from);
            }
        }
        for known in self.anchors.values_mut() {
            if let AnchorState::Moved { to: at, .. } = &mut known.anchor
                && let Some(moved) = at.rebase(from, to)
            {
                *at = moved;
            }
        }
    }

    /// Two directories in each other's place: as by way of a third name, which nobody can use.
    pub(super) fn exchanged_dirs(&mut self, one: &RelPath, other: &RelPath) {
        let between = RelPath::parse(BETWEEN).expect("a plain name");
        self.moved_dir(one, &between);
        self.moved_dir(other, one);
        self.moved_dir(&between, other);
        self.anchors.retain(|path, _| !path.is_within(&between));
        for known in self.anchors.values_mut() {
            if let Some(was) = known.from.as_ref().and_then(|from| from.rebase(&between, one)) {
                known.from = Some(was);
            }
        }
    }

    /// A directory takes the path of a file, of which nothing is forgotten by that.
    pub(super) fn moved_dir_over_file(&mut self, dir: &RelPath, file: &RelPath) {
        let known = self.anchors.remove(file);
        self.moved_dir(dir, file);
        self.anchors.remove(file);
        self.anchors.extend(known.map(|known| (file.clone(), known)));
    }

    pub(super) fn anchors_within(&self, dir: &RelPath) -> Vec<Anchor> {
        let within = self.anchors.iter().filter(|(path, _)| path.is_within(dir));
        within.map(|(path, known)| known.as_anchor(path)).collect()
    }
}
