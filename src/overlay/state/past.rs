//! What paths had when the session began, where that content is now, and what is at each path instead.
//!
//! Two questions are asked about a path. What did it *have*, its anchor: whatever is written there is a modification of
//! that (SPEC §4.3). And what is there *now*: something that came in this session, which may go again, or something older
//! under a new name, which may not. The answer is in what is known of the path itself, and otherwise in the directories
//! that were renamed with all that was in them. The rename of a directory changes what is there now at its paths, and the
//! places that are remembered; what a path had stays with the path.
//!
//! What a change means for all this is worked out before it happens, as anchors: they are part of its intent, and become
//! known once lower has changed.

mod anchors;
mod changes;
mod moved_dirs;

use std::collections::HashMap;

pub(in crate::overlay) use moved_dirs::MovedDirs;

use anchors::Anchors;

use crate::model::RelPath;
use crate::store::{Anchor, AnchorState, Known, MovedDir};

#[derive(Clone, Default)]
pub(in crate::overlay) struct Past {
    anchors: Anchors,
    dirs: MovedDirs,
}

impl Past {
    pub fn get(&self, path: &RelPath) -> Option<&Known> {
        self.anchors.get(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, &Known)> {
        self.anchors.iter()
    }

    pub fn dirs(&self) -> &MovedDirs {
        &self.dirs
    }

    /// What is known of a path by itself: of most paths, nothing.
    fn known(&self, path: &RelPath) -> Known {
        self.get(path).cloned().unwrap_or_default()
    }

    /// What is known by now of the paths of these anchors, where it differs from them.
    pub fn known_since(&self, told: &[Anchor]) -> Vec<Anchor> {
        // Of two anchors of the same path the last counts.
        let told: HashMap<&RelPath, &Known> = told.iter().map(|anchor| (&anchor.path, &anchor.known)).collect();
        let now = told.into_iter().map(|(path, known)| (path, known, self.known(path)));
        now.filter(|(_, known, now)| *known != now).map(|(path, _, now)| now.as_anchor(path)).collect()
    }

    /// What the path had, as far as that is known of the path itself.
    pub fn had(&self, path: &RelPath) -> Option<&AnchorState> {
        self.get(path)?.had.as_ref()
    }

    /// True if what is at the path came in this session, content and all.
    pub fn is_fresh(&self, path: &RelPath) -> bool {
        self.get(path).is_some_and(Known::is_fresh)
    }

    /// Where the file that lay at a path is now, if a directory above it was renamed.
    pub fn came_along(&self, path: &RelPath) -> Option<RelPath> {
        self.dirs.now(path).filter(|to| self.is_of(to, path))
    }

    /// True if what is at a path, in a directory that was renamed, lay at `was` before: it did not come by itself since,
    /// as something new, older or put back.
    fn is_of(&self, path: &RelPath, was: &RelPath) -> bool {
        self.get(path).is_none_or(|known| match &known.had {
            _ if known.fresh => known.from.as_ref() == Some(was),
            Some(AnchorState::Moved { to, .. }) => to != path,
            Some(AnchorState::Nothing | AnchorState::Content(_)) | None => true,
        })
    }

    /// Where what is at a path lay before a directory above it was renamed, if no anchor is known of that former path:
    /// what happens to the file now must become known of it.
    pub fn came_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        self.dirs.was(path).filter(|was| self.is_of(path, was) && self.had(was).is_none())
    }

    /// Where what is at a path came from, if it is older than its name here.
    pub fn older_from(&self, path: &RelPath) -> Option<RelPath> {
        match self.get(path) {
            Some(known) if known.fresh => known.from.clone(),
            // It is judged against what the path had, even if it came with a directory.
            Some(Known { had: Some(AnchorState::Content(_) | AnchorState::Moved { .. }), .. }) => None,
            Some(_) | None => self.dirs.was(path).filter(|was| self.went_to(was, path)),
        }
    }

    /// True if what a path had may be at `place` by now.
    fn went_to(&self, path: &RelPath, place: &RelPath) -> bool {
        match self.had(path) {
            Some(AnchorState::Nothing) => false,
            Some(AnchorState::Moved { to, .. }) => to == place,
            Some(AnchorState::Content(_)) | None => true,
        }
    }

    /// Where what is at a path lay before it was renamed by itself; `None` if it was made in this session.
    pub fn came_from(&self, path: &RelPath) -> Option<RelPath> {
        match self.get(path) {
            Some(known) if known.fresh => known.from.clone(),
            Some(_) | None => Some(path.clone()),
        }
    }

    /// True if something has come to a path in this session, by itself or with a directory.
    pub fn came_here(&self, path: &RelPath) -> bool {
        self.get(path).is_some() || self.dirs.was(path).is_some()
    }

    pub fn know(&mut self, anchors: Vec<Anchor>) {
        anchors.into_iter().for_each(|anchor| self.anchors.know(anchor));
    }

    pub fn know_dirs(&mut self, moved: Vec<MovedDir>) {
        self.dirs.know(moved);
    }
}
