//! What paths had when the session began, where that content is now, and what landed a moment ago.
//!
//! An anchor says what a path is a modification of, though lower has nothing there any more; a window what several short
//! writes in a row are one change against (SPEC §4.3, §4.6).

use super::error::Context;
use super::{Known, Overlay, Result, State};
use crate::model::{Digest, RelPath};
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
        let made_here = state.anchors.get(from).is_some_and(|known| known.fresh);
        let moved = AnchorState::Moved { to: to.clone(), stamp: meta.stamp() };
        let source = state.anchors.entry(from.clone()).or_insert(Known { anchor: moved, fresh: false });
        source.fresh = false;
        let target = state.anchors.entry(to.clone()).or_insert(Known { anchor: AnchorState::Nothing, fresh: true });
        target.fresh = made_here || target.anchor == AnchorState::Nothing;
        for known in state.anchors.values_mut() {
            if let AnchorState::Moved { to: at, .. } = &mut known.anchor
                && at == from
            {
                *at = to.clone();
            }
        }
        let told = |path: &RelPath| {
            let known = &state.anchors[path];
            Anchor { path: path.clone(), state: known.anchor.clone(), fresh: known.fresh }
        };
        vec![told(from), told(to)]
    }

    /// Whether what is at a path came in this session.
    pub(super) fn is_fresh(&self, path: &RelPath) -> bool {
        self.state.lock().anchors.get(path).is_some_and(|known| known.fresh)
    }
}

impl State {
    /// Anchors after a landing on `path`, of the path itself and of paths whose content was moved to it.
    pub(super) fn anchor_landed(
        &self,
        path: &RelPath,
        existed: bool,
        replaced: Option<Digest>,
        exists: bool,
    ) -> Vec<Anchor> {
        let mut changed = Vec::new();
        let first = match (existed, replaced) {
            (true, Some(digest)) => AnchorState::Content { digest },
            (true, None) | (false, _) => AnchorState::Nothing,
        };
        let known = self.anchors.get(path).cloned();
        let mut known = known.unwrap_or(Known { anchor: first, fresh: false });
        if !existed {
            known.fresh = known.anchor == AnchorState::Nothing && exists;
        }
        known.fresh &= exists;
        changed.push(Anchor { path: path.clone(), state: known.anchor.clone(), fresh: known.fresh });
        if let Some(digest) = replaced {
            for (from, known) in &self.anchors {
                if matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path) {
                    let state = AnchorState::Content { digest };
                    changed.push(Anchor { path: from.clone(), state, fresh: known.fresh });
                }
            }
        }
        changed
    }

    /// Anchors that a landing has brought, once lower has changed.
    pub(super) fn know(&mut self, anchors: Vec<Anchor>) {
        for Anchor { path, state: anchor, fresh } in anchors {
            self.anchors.insert(path, Known { anchor, fresh });
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

    /// A renamed inode has its first name again, and a copy of it has the other.
    pub(super) fn put_back(&mut self, path: &RelPath, to: &RelPath, outcomes: &[StepOutcome]) {
        self.epoch += 1;
        self.anchors.remove(path);
        let copy = outcomes.iter().rfind(|outcome| outcome.path == *to).and_then(|outcome| outcome.meta);
        if let Some(node) = self.nodes.at(to) {
            self.nodes.set_lower(node, copy.as_ref().map(Meta::key));
        }
    }

    /// The path is free now; what was there went elsewhere.
    pub(super) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.seen.remove(path);
        let known = self.anchors.get_mut(path)?;
        known.fresh = false;
        Some(Anchor { path: path.clone(), state: known.anchor.clone(), fresh: false })
    }

    /// The path that what is at `path` had when the session began, if it was renamed.
    pub(super) fn moved_from(&self, path: &RelPath) -> Option<RelPath> {
        let moved_here = |known: &Known| matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path);
        self.anchors.iter().find(|(_, known)| moved_here(known)).map(|(from, _)| from.clone())
    }

    /// Where what lay at a path is now, if a directory above it was renamed.
    pub(super) fn moved_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        let moved =
            |at: Option<RelPath>, (from, to): &(RelPath, RelPath)| at.as_ref().unwrap_or(path).rebase(from, to).or(at);
        self.moved_dirs.iter().fold(None, moved).filter(|to| to != path)
    }

    /// What path what is at `path` had when the session began, if a directory above it was renamed.
    pub(super) fn moved_here_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        let before =
            |at: Option<RelPath>, (from, to): &(RelPath, RelPath)| at.as_ref().unwrap_or(path).rebase(to, from).or(at);
        self.moved_dirs.iter().rev().fold(None, before).filter(|from| from != path)
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
        let seen: Vec<RelPath> = self.seen.keys().filter(|path| path.is_within(from)).cloned().collect();
        for path in seen {
            if let (Some(moved), Some(seen)) = (path.rebase(from, to), self.seen.remove(&path)) {
                self.seen.insert(moved, seen);
            }
        }
        let fresh: Vec<RelPath> = self
            .anchors
            .iter()
            .filter(|(path, known)| known.fresh && path.is_within(from))
            .map(|(path, _)| path.clone())
            .collect();
        for path in fresh {
            if let Some(known) = self.anchors.get_mut(&path) {
                known.fresh = false;
            }
            if let Some(moved) = path.rebase(from, to) {
                let known = self.anchors.entry(moved).or_insert(Known { anchor: AnchorState::Nothing, fresh: true });
                known.fresh = true;
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
        within
            .map(|(path, known)| Anchor { path: path.clone(), state: known.anchor.clone(), fresh: known.fresh })
            .collect()
    }
}
