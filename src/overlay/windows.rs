//! Windows: several short writes in a row are one change (SPEC §4.6).
//!
//! A window is opened by a landing, and says what the next writes are judged against: the content before the first
//! landing. It belongs to the file: it follows renames, and is found by whichever of its names a file is written. An edit
//! by somebody else ends it.

use std::time::{Duration, Instant};

use super::copy_up::same_content_stamp;
use super::side::Side;
use super::{Known, Overlay, Result, State};
use crate::model::{Digest, RelPath, Stamp};
use crate::policy::settings::Window as Setting;
use crate::store::{AnchorState, Kept};

/// How many recent landings are remembered before old ones are looked through.
const WINDOWS_MAX: usize = 4096;

pub(super) struct Window {
    first: Option<Kept>,
    last: Instant,
    /// What the last landing left in lower. Anything else there ends the window: it is somebody else's.
    pub landed: Option<Stamp>,
}

/// A window of a path, when it is about to be judged.
#[derive(Clone, Copy)]
enum Found {
    None,
    Open {
        first: Option<Kept>,
        age: Duration,
    },
    /// Somebody else has changed what lower has there.
    Ended,
}

impl Window {
    /// What the next write is judged against.
    pub fn needed_content(&self) -> Option<Digest> {
        self.first.map(|kept| kept.digest)
    }

    fn is_as_left(&self, present: Option<Stamp>) -> bool {
        match (self.landed, present) {
            (Some(landed), Some(present)) => same_content_stamp(&landed, &present),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Overlay {
    /// Content before the first of several writes that are one change; none when this write is judged alone.
    pub(super) fn window_first(&self, path: &RelPath, present: &Side) -> Result<Option<Option<Kept>>> {
        let setting = self.policy().settings.window;
        if setting == Setting::Each {
            return Ok(None);
        }
        let mut state = self.state.lock();
        if let Some(other) = state.landed_last_by(path, present) {
            self.go_on_by(&mut state, &other, path)?;
        }
        let found = state.find_window(path, present);
        Ok(match (setting, found) {
            (Setting::Seconds(length), Found::Open { first, age }) if age <= length => Some(first),
            (Setting::Session, Found::Ended) => {
                drop(state);
                self.begin_anew_from(path, present)?;
                None
            }
            (Setting::Session, Found::Open { first, .. }) => Some(state.anchor_first(path).unwrap_or(first)),
            (Setting::Session, Found::None) => state.anchor_first(path),
            (Setting::Seconds(_) | Setting::Each, _) => {
                state.windows.remove(path);
                None
            }
        })
    }

    /// A file that landed by one of its names is the same change by another, and was judged against the same.
    fn go_on_by(&self, state: &mut State, other: &RelPath, path: &RelPath) -> Result<()> {
        if let (Some(known), false) = (state.anchors.get(other).cloned(), state.anchors.contains_key(path)) {
            let known = Known { went: None, ..known };
            self.store.save_anchors(&[known.as_anchor(path)])?;
            state.anchors.insert(path.clone(), known);
        }
        if let Some(window) = state.windows.remove(other) {
            state.windows.insert(path.clone(), window);
        }
        Ok(())
    }

    /// What somebody else left at a path is what the session is judged against from now on.
    fn begin_anew_from(&self, path: &RelPath, present: &Side) -> Result<()> {
        let content = present.stage(&self.store)?;
        let known = match content {
            Some(content) => {
                self.store.keep_content(&content)?;
                Known::of(AnchorState::Content(Kept { digest: content.digest, symlink: present.is_symlink() }))
            }
            None => Known::nothing(),
        };
        self.store.save_anchors(&[known.as_anchor(path)])?;
        self.state.lock().anchors.insert(path.clone(), known);
        Ok(())
    }
}

impl State {
    fn find_window(&mut self, path: &RelPath, present: &Side) -> Found {
        let stamp = present.meta.map(|meta| meta.stamp());
        match self.windows.get(path) {
            None => Found::None,
            Some(window) if window.is_as_left(stamp) => Found::Open { first: window.first, age: window.last.elapsed() },
            Some(_) => {
                self.windows.remove(path);
                // What is made where nothing is any more is a change of what was there, whoever removed it.
                if present.exists() { Found::Ended } else { Found::None }
            }
        }
    }

    /// The path by which a file with several names landed last, if that was not `path`.
    fn landed_last_by(&self, path: &RelPath, present: &Side) -> Option<RelPath> {
        let stamp = present.meta.filter(|meta| meta.links > 1)?.stamp();
        let landed_last = |window: &Window| window.landed.is_some() && window.is_as_left(Some(stamp));
        if self.windows.get(path).is_some_and(landed_last) {
            return None;
        }
        self.windows.iter().find(|(_, window)| landed_last(window)).map(|(other, _)| other.clone())
    }

    /// What a path is judged against to the session's end, if something happened to it.
    fn anchor_first(&self, path: &RelPath) -> Option<Option<Kept>> {
        let known = self.anchors.get(path)?;
        match (&known.anchor, &known.from) {
            (AnchorState::Content(kept), _) => Some(Some(*kept)),
            (AnchorState::Nothing, None) => Some(None),
            // Older than its name: against what it was under the other.
            (AnchorState::Nothing, Some(from)) => match self.anchors.get(from)?.anchor {
                AnchorState::Content(kept) => Some(Some(kept)),
                AnchorState::Nothing | AnchorState::Moved { .. } => None,
            },
            (AnchorState::Moved { .. }, _) => None,
        }
    }

    /// A landing at `path` has left `landed` there; a window that it opens begins with what it was `judged_against`.
    pub(super) fn note_window(
        &mut self,
        path: &RelPath,
        judged_against: Option<Kept>,
        landed: Option<Stamp>,
        setting: Setting,
    ) {
        let last = Instant::now();
        let window = self.windows.entry(path.clone()).or_insert(Window { first: judged_against, last, landed });
        (window.last, window.landed) = (last, landed);
        if let (Setting::Seconds(length), true) = (setting, self.windows.len() > WINDOWS_MAX) {
            self.windows.retain(|_, window| window.last.elapsed() <= length);
        }
    }

    /// Only of files that are there: what was deleted from a path stays with the path.
    pub(super) fn move_windows(&mut self, from: &RelPath, to: &RelPath) {
        let moves = |(path, window): &(&RelPath, &Window)| path.is_within(from) && window.landed.is_some();
        let paths: Vec<RelPath> = self.windows.iter().filter(moves).map(|(path, _)| path.clone()).collect();
        for path in paths {
            if let (Some(moved), Some(window)) = (path.rebase(from, to), self.windows.remove(&path)) {
                self.windows.insert(moved, window);
            }
        }
    }
}
