//! What a person takes from the view, by a discard or an undo, while a program has it open to write.
//!
//! What is open belongs to a node. A node that has a name goes on with what the view shows by that. One that a person has
//! taken the last name from comes back with the next write, as something new, to the place that it had: if nothing is there,
//! and neither rules nor the directory's permissions keep whoever writes from making something there. Its next close has that
//! judged (SPEC §8): what was written and closed is never nobody's. Nor is what was written to a file that was about to be
//! deleted, and is not.
//!
//! Where it may come back to is known together with what is open, under one lock; whatever has changed by the time at which it is
//! to be there, be it the place or what is open, is looked at anew.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::copy_up::Keep;
use super::handles::{Access, Backing, OpenFile};
use super::permission::may_make_in;
use super::reading::access_of;
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Overlay, Result, State};
use crate::store::{UpperFile, UpperId, What, Writer};
use crate::sys::file::FileKind;

/// Where something without a name may come back to, as far as the view's state tells.
#[derive(PartialEq, Eq)]
pub(super) struct WayBack {
    dir: NodeId,
    name: OsString,
    path: RelPath,
    /// A deletion that waits for review.
    hidden_by: Option<UpperId>,
}

impl Overlay {
    /// What was taken from the view is there again, to be written to; or that is to be looked at anew. False where it may not
    /// come back. Under `copying`.
    pub(super) fn comes_back(
        &self,
        open: &OpenFile,
        way: Option<&WayBack>,
        (file, keep): (&File, Keep),
    ) -> Result<bool> {
        let Some(way) = way else { return Ok(false) };
        if !self.may_come_back(open, &way.path)? {
            return Ok(false);
        }
        let (upper, _) = self.copy_to_enter(file, keep)?;
        self.enter_again(open, way, upper).map(|()| true)
    }

    /// Whether nothing is at a path, and whoever writes may make something there.
    fn may_come_back(&self, open: &OpenFile, path: &RelPath) -> Result<bool> {
        let above = match self.dir_in_view(&path.parent().unwrap_or_default()) {
            Err(err) if matches!(err.code(), libc::ENOENT | libc::ENOTDIR) => return Ok(false),
            above => above?,
        };
        match self.origin(path)? {
            Origin::Nothing | Origin::Hidden(_) => self.may_all_make(open, path, &above),
            Origin::Lower(_) | Origin::Upper(..) => Ok(false),
        }
    }

    /// Whether all who write through this may make a file at a path in that directory. The kernel has not asked: to it they
    /// write.
    fn may_all_make(&self, open: &OpenFile, path: &RelPath, dir: &OwnedFd) -> Result<bool> {
        let access = access_of(dir.as_fd()).doing(|| "look at a directory".to_owned())?;
        let writers: Vec<Writer> = {
            let state = self.state.lock();
            let handles = state.handles_on(open.node).filter(|handle| handle.access == Access::Write);
            handles.map(|handle| handle.opener.clone()).collect()
        };
        let may_make = |writer: &Writer| {
            may_make_in(&access, writer) && !self.action_by(path, FileKind::Regular, writer).refuses()
        };
        Ok(writers.iter().all(may_make))
    }

    /// What was to be deleted stays, and with it what was written to it meanwhile, to a copy that nobody was to see.
    pub(in crate::overlay) fn goes_on_after_all(&self, path: &RelPath) -> Result<()> {
        let Some(open) = self.state.lock().nodes.open_at(path).cloned() else { return Ok(()) };
        let _one_at_a_time = open.copying.lock();
        let Backing::Orphan(orphan) = open.backing().clone() else { return Ok(()) };
        let Some(meta) = self.lower.stat(path).doing(|| format!("stat {path}"))? else { return Ok(()) };
        let (upper, _) = self.copy_to_enter(&orphan, Keep::Content)?;
        self.enter_copied(&open, upper, (&orphan, &meta), Keep::Content, false)
    }

    /// Nobody writes any more to what is open: what was taken from the view does not come back, and its directory, if that only
    /// stood in for one that somebody removed below, goes.
    pub(super) fn stays_away(&self, open: &OpenFile) {
        if open.taken_from.lock().is_none() {
            return;
        }
        let path = self.state.lock().was_at(open);
        if let Some(path) = path {
            self.end_emptied_stand_ins(std::iter::once(&path));
        }
    }

    /// Unless the place, or what is open, is another by now.
    fn enter_again(&self, open: &OpenFile, way: &WayBack, upper: UpperFile<'_>) -> Result<()> {
        let WayBack { dir, name, path, .. } = way;
        {
            let mut state = self.state.lock();
            self.wait_while_busy(&mut state, path);
            if state.way_back_of(open).as_ref() != Some(way) {
                return Ok(());
            }
            let id = self.enter_at(&mut state, upper.new, path, What::File, |row| self.store.save_upper(row))?;
            state.epoch += 1;
            state.named_again(open, *dir, name);
            open.set_backing(Backing::Upper(id, Arc::new(upper.file)));
        }
        self.tell(|observer| observer.entry_changed(*dir, name));
        // It is there, whatever the directory's times are.
        if let Err(err) = self.name_changed(path) {
            log::error!("note that {path} is there again: {err}");
        }
        Ok(())
    }
}

impl State {
    /// What is at a path is about to be taken from the view: whoever writes to it may bring it back, unless it has another
    /// name.
    pub(in crate::overlay) fn note_taken(&self, path: &RelPath) {
        let (Some(open), Some((dir, name))) = (self.nodes.open_at(path), self.nodes.entry_at(path)) else { return };
        let is_last = self.nodes.paths(open.node).is_ok_and(|paths| paths.iter().all(|one| one == path));
        if is_last && open.writers() > 0 {
            *open.taken_from.lock() = Some((dir, name.to_owned()));
        }
    }

    /// Where what has no name any more had the last, if nothing has that by now.
    fn taken_from(&self, open: &OpenFile) -> Option<(NodeId, OsString)> {
        let (dir, name) = open.taken_from.lock().clone()?;
        let is_free = self.nodes.path(open.node).is_err() && self.nodes.child(dir, &name).is_none();
        is_free.then_some((dir, name))
    }

    pub(super) fn way_back_of(&self, open: &OpenFile) -> Option<WayBack> {
        let (dir, name) = self.taken_from(open)?;
        let path = self.nodes.child_path(dir, &name).ok()?;
        let there = self.uppers.at(&path).and_then(|id| self.uppers.get(id));
        let hidden_by = there.map(|upper| upper.row.id);
        there.is_none_or(|upper| upper.row.what == What::Whiteout).then_some(WayBack { dir, name, path, hidden_by })
    }

    /// Something is at a path again by another act of a person: gives what was last taken from there, for who has that open
    /// goes on with it.
    pub(in crate::overlay) fn returned_to(&mut self, path: &RelPath) -> Option<Arc<OpenFile>> {
        let (dir, name) = self.nodes.entry_at(path)?;
        let opened = self.handles.iter().filter_map(|(id, handle)| Some((id, handle.judged()?)));
        let was_there = |open: &OpenFile| self.taken_from(open).is_some_and(|at| at.0 == dir && at.1 == name);
        let (_, open) = opened.filter(|(_, open)| was_there(open)).max_by_key(|(id, _)| **id)?;
        let open = open.clone();
        self.named_again(&open, dir, name);
        Some(open)
    }

    /// What somebody has open to write in a directory, or what was taken from there and may come back: without the directory
    /// it would be nobody's.
    pub(in crate::overlay) fn written_within(&self, dir: &RelPath) -> Option<RelPath> {
        let place = |open: &Arc<OpenFile>| self.nodes.path(open.node).ok().or_else(|| self.was_at(open));
        let opened = self.handles.values().filter_map(|handle| handle.judged());
        let mut written = opened.filter(|open| open.writers() > 0).filter_map(place);
        written.find(|path| path.is_within(dir))
    }

    /// Where what a person took from the view would be by now.
    fn was_at(&self, open: &OpenFile) -> Option<RelPath> {
        let (dir, name) = open.taken_from.lock().clone()?;
        self.nodes.child_path(dir, &name).ok()
    }

    fn named_again(&mut self, open: &OpenFile, dir: NodeId, name: &OsStr) {
        self.nodes.set_lower(open.node, None);
        self.nodes.name(open.node, dir, name);
        *open.taken_from.lock() = None;
        *open.nameless.lock() = None;
    }
}
