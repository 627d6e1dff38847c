//! What the view asks about the past, answered with a look at lower.

use crate::model::RelPath;
use crate::overlay::judge::side::Side;
use crate::overlay::{Overlay, Result, State};
use crate::store::{Anchor, AnchorState};
use crate::sys::file::{FileKind, Meta};

impl Overlay {
    /// What a path had earlier in this session, also by way of a directory that was renamed.
    pub(in crate::overlay) fn anchor_of(&self, path: &RelPath) -> Result<Option<AnchorState>> {
        let to = {
            let state = self.state.lock();
            if let Some(had) = state.past.had(path) {
                return Ok(Some(had.clone()));
            }
            // Anything done to it at that place since would have given it a record of its own.
            let Some(to) = state.past.came_along(path) else { return Ok(None) };
            to
        };
        let meta = self.meta_below(&to)?;
        Ok(meta.filter(|meta| !meta.is_dir()).map(|meta| AnchorState::Moved { to, stamp: meta.stamp() }))
    }

    /// True if a directory older than the session used to be at a path.
    pub(in crate::overlay) fn had_dir(&self, path: &RelPath) -> Result<bool> {
        let to = {
            let state = self.state.lock();
            if state.past.get(path).is_some_and(|known| known.had_dir) {
                return Ok(true);
            }
            let to = state.past.dirs().now_anywhere(path).filter(|to| !state.past.is_fresh(to));
            let Some(to) = to else { return Ok(false) };
            to
        };
        self.has_dir_below(&to)
    }

    /// True if nothing older than the session goes with what is at a path: it came in this session, and is not all that
    /// is left of something that was renamed or linked here. What now stands in the first place of that has been judged
    /// as a change of it if it has content; a directory or a FIFO is no change of anything. `read` as in
    /// [`Self::is_fresh_as`].
    pub(in crate::overlay) fn loses_nothing(&self, path: &RelPath, read: Option<&Side>) -> bool {
        if self.is_fresh_as(path, read) {
            return true;
        }
        let from = self.state.lock().past.older_from(path);
        from.is_some_and(|from| self.has_content_there(&from) && self.came_as_it_is(path, &from, read))
    }

    /// True if nobody else has changed what came to a path. What cannot be looked at is taken to be another's.
    fn came_as_it_is(&self, path: &RelPath, from: &RelPath, read: Option<&Side>) -> bool {
        self.is_as_brought(path, from, read).unwrap_or_else(|err| {
            log::warn!("look whether somebody else has changed {path}: {err}");
            false
        })
    }

    /// True if the project itself has content there, not only a held change, which may go without a trace. What cannot be
    /// looked up is taken to be gone.
    fn has_content_there(&self, path: &RelPath) -> bool {
        let is_below = matches!(self.lower.stat(path), Ok(Some(meta)) if meta.kind.has_content());
        is_below && matches!(self.origin(path), Ok(origin) if origin.kind().is_some_and(FileKind::has_content))
    }

    /// Records what is known of a landing's paths once more, where it has changed. The landing recorded its anchors
    /// without the lock under which they became known, and an operation in between, such as a rename of a directory
    /// above, may have recorded newer ones first.
    pub(in crate::overlay) fn record_what_is_known(&self, state: &State, recorded: &[Anchor]) {
        let anew = state.past.known_since(recorded);
        if !anew.is_empty()
            && let Err(err) = self.store.vitally(|| self.store.save_anchors(&anew))
        {
            log::error!("record what is known of {}: {err}", anew[0].path);
        }
    }

    /// True if what is at a path came in this session, content and all, and no one else has changed it since.
    pub(in crate::overlay) fn is_fresh(&self, path: &RelPath) -> bool {
        self.is_fresh_as(path, None)
    }

    /// The same for a path that has just been read as `read`, without another look.
    pub(in crate::overlay) fn is_fresh_as(&self, path: &RelPath, read: Option<&Side>) -> bool {
        let came_in_session = self.state.lock().past.is_fresh(path);
        came_in_session && !self.became_anothers(path, read)
    }
}

impl State {
    /// Takes over the anchors of a landing, once lower has changed.
    pub(in crate::overlay) fn know(&mut self, anchors: Vec<Anchor>) {
        self.past.know(anchors);
    }

    /// The path is free now; what was there went elsewhere.
    pub(in crate::overlay) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.forget_recent(path);
        let left = self.past.left(path)?;
        self.know(vec![left.clone()]);
        Some(left)
    }

    /// What was at `source` was renamed over `to`, which is `meta` now.
    pub(in crate::overlay) fn carried(&mut self, source: &RelPath, to: &RelPath, meta: &Meta) -> Vec<Anchor> {
        self.forget_recent(source);
        let carried = self.past.carried(source, to, meta);
        self.know(carried.clone());
        carried
    }
}
