//! What a person takes from the view, by a discard or an undo, while a program has it open to write. The program's next write
//! brings it back to the place that it had, as something new, and its next close has that judged (SPEC §8): what was written
//! and closed is never nobody's. Nor is what was written to a file that was about to be deleted, and is not.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::copy_up::{Copied, Keep};
use super::error::Context;
use super::handles::{Access, Backing, OpenFile};
use super::lookup::Origin;
use super::nodes::NodeId;
use super::permission::may_make_in;
use super::reading::access_of;
use super::{Overlay, Result, State};
use crate::model::RelPath;
use crate::store::{UpperFile, What, Writer};

impl Overlay {
    /// What was taken from the view is there again, to be written to. False where it was not, or its place is taken or gone.
    /// Under `copying`.
    pub(super) fn comes_back(&self, open: &OpenFile, file: &File, keep: Keep) -> Result<bool> {
        let Some((dir, name)) = open.taken_from.lock().clone() else { return Ok(false) };
        match self.free_path(open, dir, &name)? {
            Some(path) => self.enter_again(open, (&path, dir, &name), self.copy_to_enter(file, keep)?.0),
            None => Ok(false),
        }
    }

    /// Where a name is by now, if nothing is there and whoever writes may make something there.
    fn free_path(&self, open: &OpenFile, dir: NodeId, name: &OsStr) -> Result<Option<RelPath>> {
        // Its directory may have gone.
        let Ok(path) = self.state.lock().nodes.child_path(dir, name) else { return Ok(None) };
        let above = match self.dir_in_view(&path.parent().unwrap_or_default()) {
            Err(err) if matches!(err.code(), libc::ENOENT | libc::ENOTDIR) => return Ok(None),
            above => above?,
        };
        match self.origin(&path)? {
            Origin::Nothing | Origin::Hidden(_) => Ok(self.may_all_make(open, &above)?.then_some(path)),
            Origin::Lower(_) | Origin::Upper(..) => Ok(None),
        }
    }

    /// Whether all who write through this may make something in a directory. The kernel has not asked: to it they write.
    fn may_all_make(&self, open: &OpenFile, dir: &OwnedFd) -> Result<bool> {
        let access = access_of(dir.as_fd()).doing(|| "look at a directory".to_owned())?;
        let writers: Vec<Writer> = {
            let state = self.state.lock();
            let handles = state.handles_on(open.node).filter(|handle| handle.access == Access::Write);
            handles.map(|handle| handle.opener.clone()).collect()
        };
        Ok(writers.iter().all(|writer| may_make_in(&access, writer)))
    }

    /// What was to be deleted stays, and with it what was written to it meanwhile, to a copy that nobody was to see.
    pub(super) fn goes_on_after_all(&self, path: &RelPath) -> Result<()> {
        let Some(open) = self.state.lock().nodes.open_at(path).cloned() else { return Ok(()) };
        let _one_at_a_time = open.copying.lock();
        let Backing::Orphan(orphan) = open.backing().clone() else { return Ok(()) };
        let Some(meta) = self.lower.stat(path).doing(|| format!("stat {path}"))? else { return Ok(()) };
        let (upper, _) = self.copy_to_enter(&orphan, Keep::Content)?;
        let file = Arc::new(upper.file);
        match self.enter_copied(&open, (upper.new.id(), &file), Keep::Content, &meta, false)? {
            Copied::Entered => drop(upper.new.keep()),
            // Its name has gone with another deletion.
            Copied::Nameless | Copied::TooLate => {}
        }
        Ok(())
    }

    /// False where something else has come there meanwhile.
    fn enter_again(
        &self,
        open: &OpenFile,
        (path, dir, name): (&RelPath, NodeId, &OsStr),
        upper: UpperFile<'_>,
    ) -> Result<bool> {
        {
            let mut state = self.state.lock();
            let is_hidden = state.uppers.at(path).and_then(|id| state.uppers.get(id));
            let is_taken = is_hidden.is_some_and(|upper| upper.row.what != What::Whiteout);
            if is_taken || state.nodes.child(dir, name).is_some() {
                return Ok(false);
            }
            let id = self.enter_at(&mut state, upper.new, path, What::File, |row| self.store.save_upper(row))?;
            state.epoch += 1;
            state.named_again(open, dir, name);
            open.set_backing(Backing::Upper(id, Arc::new(upper.file)));
        }
        self.tell(|observer| observer.entry_changed(dir, name));
        // It is there, whatever the directory's times are.
        if let Err(err) = self.name_changed(path) {
            log::error!("note that {path} is there again: {err}");
        }
        Ok(true)
    }
}

impl State {
    /// What is at a path is about to be taken from the view: whoever writes to it may bring it back.
    pub(super) fn note_taken(&self, path: &RelPath) {
        let (Some(open), Some((dir, name))) = (self.nodes.open_at(path), self.nodes.entry_at(path)) else { return };
        if open.writers() > 0 {
            *open.taken_from.lock() = Some((dir, name.to_owned()));
        }
    }

    /// Something is at a path again by another act of a person: gives what was taken from there, for who has that open goes
    /// on with it.
    pub(super) fn returned_to(&mut self, path: &RelPath) -> Option<Arc<OpenFile>> {
        let (dir, name) = self.nodes.entry_at(path)?;
        if self.nodes.child(dir, name).is_some() {
            return None;
        }
        let was_there =
            |open: &&Arc<OpenFile>| open.taken_from.lock().as_ref().is_some_and(|at| at.0 == dir && at.1 == name);
        let open = self.handles.values().filter_map(|handle| handle.judged()).find(was_there)?.clone();
        self.named_again(&open, dir, name);
        Some(open)
    }

    /// Whether somebody has open to write what was taken from a directory, or from one in it.
    pub(super) fn may_come_back_within(&self, dir: &RelPath) -> bool {
        let is_within = |at: NodeId| self.nodes.path(at).is_ok_and(|path| path == *dir || path.is_within(dir));
        let mut opened = self.handles.values().filter_map(|handle| handle.judged());
        opened.any(|open| open.taken_from.lock().as_ref().is_some_and(|(at, _)| is_within(*at)))
    }

    fn named_again(&mut self, open: &OpenFile, dir: NodeId, name: &OsStr) {
        self.nodes.set_lower(open.node, None);
        self.nodes.name(open.node, dir, name);
        *open.taken_from.lock() = None;
        *open.nameless.lock() = None;
    }
}
