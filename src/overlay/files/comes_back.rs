//! Files that a person takes from the view, by a discard or an undo, while a program has them open for writing.
//!
//! What is open belongs to a node, and a node with a name goes on with what the view shows there. If a person took its
//! last name, the next write brings the file back, as a new one, at its old place: provided nothing else is there, and
//! neither the rules nor the permissions of the directory keep its writers from making a file in it. The next close has
//! it judged (SPEC §8), so that nothing written and closed is ever lost. The same holds for what was written to a file
//! that was about to be deleted, and then was not.
//!
//! The place to come back to is read together with what is open, under one lock. If either has changed by the time the
//! file is entered, both are looked at again.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::copy_up::Keep;
use super::handles::{Access, Backing, OpenFile};
use super::permission::may_make_in;
use super::reading::access_of;
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::state::lookup::{Origin, Walked};
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Overlay, Result, State};
use crate::store::{UpperFile, UpperId, What, Writer};
use crate::sys::file::FileKind;

/// Where the last name of a file was that a person took from the view. The file follows its directory where that is
/// renamed, and goes by the path where somebody has made the directory again below.
#[derive(Clone, Debug)]
pub(in crate::overlay) struct TakenFrom {
    dir: NodeId,
    path: RelPath,
}

/// Where a file without a name may come back to, as far as the view's state tells.
#[derive(PartialEq, Eq)]
pub(super) struct WayBack {
    path: RelPath,
    /// The whiteout at that path, if there is one.
    hidden_by: Option<UpperId>,
}

impl Overlay {
    /// Brings the file back into the view, to be written to. Returns true if it is back, or if the place or what is open
    /// has changed and the caller must look again; false if it may not come back. Under `copying`.
    pub(super) fn comes_back(
        &self,
        open: &OpenFile,
        way: Option<&WayBack>,
        (file, keep): (&File, Keep),
    ) -> Result<bool> {
        let Some(way) = way else { return Ok(false) };
        // The directory may have been made again below since the kernel looked, and stays known until the file is in it.
        let _above = match self.walk(&way.path.parent().unwrap_or_default()) {
            Err(err) if matches!(err.code(), libc::ENOENT | libc::ENOTDIR) => return Ok(false),
            above => above?,
        };
        if !self.may_come_back(open, &way.path)? {
            return Ok(false);
        }
        let (upper, _) = self.copy_to_enter(file, keep)?;
        self.enter_again(open, way, upper).map(|()| true)
    }

    /// True if nothing is at a path, and all writers of the file may make one there.
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

    /// True if all who write through `open` may make a file at a path in that directory. The kernel has not checked this:
    /// to the kernel they only write.
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

    /// A file that was about to be deleted, renamed or replaced stays as it was. What was written to its orphan
    /// meanwhile, which no other program could see, becomes its content in the view.
    pub(in crate::overlay) fn goes_on_after_all(&self, path: &RelPath) -> Result<()> {
        let Some(open) = self.state.lock().nodes.open_at(path).cloned() else { return Ok(()) };
        let _one_at_a_time = open.copying.lock();
        let Backing::Orphan(orphan) = open.backing().clone() else { return Ok(()) };
        let Some(meta) = self.meta_below(path)? else { return Ok(()) };
        let (upper, _) = self.copy_to_enter(&orphan, Keep::Content)?;
        self.enter_copied(&open, upper, (&orphan, &meta), Keep::Content, false)
    }

    /// Makes known the directories of those paths from which a person took what is still open, and to which something is
    /// about to return: the kernel need not have looked since they were made again. They are known as long as what this
    /// returns is kept.
    pub(in crate::overlay) fn ways_back_to<'p>(
        &self,
        paths: impl Iterator<Item = &'p RelPath>,
    ) -> Result<Vec<Walked<'_>>> {
        let dirs: Vec<RelPath> = {
            let state = self.state.lock();
            let taken = paths.filter(|path| state.last_taken_from(path).is_some());
            taken.filter_map(RelPath::parent).filter(|dir| state.nodes.at(dir).is_none()).collect()
        };
        dirs.iter().filter_map(|dir| self.walk_if_any(dir).transpose()).collect()
    }

    /// The last writer is gone: a file that was taken from the view does not come back. Its directory goes, too, if it
    /// only stood in for one that was removed below.
    pub(super) fn stays_away(&self, open: &OpenFile) {
        if open.taken_from.lock().is_none() {
            return;
        }
        let path = self.state.lock().was_at(open);
        if let Some(path) = path {
            self.end_emptied_stand_ins(std::iter::once(&path));
        }
    }

    /// Enters the copy at the old place, unless that place or what is open has changed meanwhile.
    fn enter_again(&self, open: &OpenFile, way: &WayBack, upper: UpperFile<'_>) -> Result<()> {
        let path = &way.path;
        let (dir, name) = {
            let mut state = self.state.lock();
            self.wait_while_busy(&mut state, path);
            if state.way_back_of(open).as_ref() != Some(way) {
                return Ok(());
            }
            let Some((dir, name)) = state.nodes.entry_at(path) else { return Ok(()) };
            let id = self.enter_at(&mut state, upper.new, path, What::File, |row| self.store.save_upper(row))?;
            state.epoch += 1;
            state.named_again(open, dir, name);
            open.set_backing(&mut state.nodes, Backing::Upper(id, Arc::new(upper.file)));
            (dir, name)
        };
        self.tell(|observer| observer.entry_changed(dir, name));
        // The file is back, even if the times of its directory cannot be set.
        if let Err(err) = self.name_changed(path) {
            log::error!("note that {path} is there again: {err}");
        }
        Ok(())
    }
}

impl State {
    /// Notes that the file at a path is about to be taken from the view: its writers may bring it back, unless it has
    /// another name.
    pub(in crate::overlay) fn note_taken(&self, path: &RelPath) {
        let (Some(open), Some((dir, _))) = (self.nodes.open_at(path), self.nodes.entry_at(path)) else { return };
        let is_last = self.nodes.paths(open.node).is_ok_and(|paths| paths.iter().all(|one| one == path));
        if is_last && open.writers() > 0 {
            *open.taken_from.lock() = Some(TakenFrom { dir, path: path.clone() });
        }
    }

    /// Returns the last path of a file that has none now, unless something else has that name by now.
    fn taken_from(&self, open: &OpenFile) -> Option<RelPath> {
        let is_free = |path: &RelPath| self.nodes.path(open.node).is_err() && self.nodes.at(path).is_none();
        self.was_at(open).filter(is_free)
    }

    pub(super) fn way_back_of(&self, open: &OpenFile) -> Option<WayBack> {
        let path = self.taken_from(open)?;
        let there = self.uppers.upper_at(&path);
        let hidden_by = there.map(|upper| upper.row.id);
        there.is_none_or(|upper| upper.row.what == What::Whiteout).then_some(WayBack { path, hidden_by })
    }

    /// A person has put something at a path again: returns the file that was last taken from there, if it is still open.
    /// Its handles go on with what is there now. The directory must be known ([`Overlay::ways_back_to`]).
    pub(in crate::overlay) fn returned_to(&mut self, path: &RelPath) -> Option<Arc<OpenFile>> {
        let (dir, name) = self.nodes.entry_at(path)?;
        let open = self.last_taken_from(path)?.clone();
        self.named_again(&open, dir, name);
        Some(open)
    }

    fn last_taken_from(&self, path: &RelPath) -> Option<&Arc<OpenFile>> {
        let opened = self.handles.iter().filter_map(|(id, handle)| Some((id, handle.judged()?)));
        let taken = opened.filter(|(_, open)| self.taken_from(open).as_ref() == Some(path));
        taken.max_by_key(|(id, _)| **id).map(|(_, open)| open)
    }

    /// Returns the path of a file in a directory that is open for writing, or that was taken from there and may come
    /// back: without the directory, what is written to it would belong to no path.
    pub(in crate::overlay) fn written_within(&self, dir: &RelPath) -> Option<RelPath> {
        let opened = self.handles.values().filter_map(|handle| handle.judged());
        let mut written = opened.filter(|open| open.writers() > 0).flat_map(|open| self.places_of(open));
        written.find(|path| path.is_within(dir))
    }

    /// Returns where an open file is, or would come back to. A change is where its row says: somebody may have renamed its
    /// directory below, and its node with that.
    fn places_of(&self, open: &OpenFile) -> Vec<RelPath> {
        let row = open.upper().and_then(|id| self.uppers.get(id)).map(|upper| &upper.row);
        let known = self.nodes.path(open.node).ok().or_else(|| self.was_at(open));
        row.into_iter().flat_map(|row| row.names.iter().cloned()).chain(known).collect()
    }

    /// Returns where the file that a person took from the view would be now.
    fn was_at(&self, open: &OpenFile) -> Option<RelPath> {
        let TakenFrom { dir, path } = open.taken_from.lock().clone()?;
        let followed = path.name().and_then(|name| self.nodes.child_path(dir, name).ok());
        Some(followed.unwrap_or(path))
    }

    fn named_again(&mut self, open: &OpenFile, dir: NodeId, name: &OsStr) {
        self.nodes.set_lower(open.node, None);
        self.nodes.name(open.node, dir, name);
        *open.taken_from.lock() = None;
        *open.nameless.lock() = None;
    }
}
