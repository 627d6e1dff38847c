//! Directories that stand in for ones removed below (SPEC §9): what is held or being written in one stays visible where
//! it is, until it is confirmed or discarded.
//!
//! Each is a held directory like those of [`structure`](super::structure), so that all that is done in one is done in it,
//! too. What tells it apart is that it is held for [`Reason::External`]: it hides nothing of lower. It is made by the
//! first look at a path where lower has nothing and something of upper shows below, and ended by the first look that
//! finds anything there. Whether lower has something is looked at under `state`, under which our own landings change
//! lower and the rows together.

use super::structure::Made;
use crate::model::{Reason, RelPath};
use crate::overlay::review::discard::dirs_above;
use crate::overlay::state::lookup::Origin;
use crate::overlay::{Caller, Overlay, Result, State};
use crate::store::{Epilogue, Fate};
use crate::sys::file::{FileKind, Meta};

impl Overlay {
    /// Looks whether a directory that upper has something in was removed below, or has come back. Call this before
    /// anything is made, listed or judged in it.
    pub(in crate::overlay) fn look_at_dir(&self, dir: &RelPath) -> Result<()> {
        let is_concerned = {
            let state = self.state.lock();
            state.uppers.has_within(dir) || !state.uppers.stand_ins_to(dir).is_empty()
        };
        if is_concerned {
            self.origin(dir)?;
        }
        Ok(())
    }

    /// Makes a stand-in at a path where the view has nothing, if upper has something to show there. Returns true if the
    /// path must be looked at again.
    pub(in crate::overlay) fn stand_in(&self, path: &RelPath) -> Result<bool> {
        let is_wanted = self.state.lock().uppers.shows_within(path);
        if !is_wanted || self.check_writable().is_err() {
            return Ok(false);
        }
        let above = path.parent().unwrap_or_default();
        let (Origin::Lower(like) | Origin::Upper(_, like)) = self.origin(&above)? else { return Ok(false) };
        if !like.is_dir() {
            // A file has taken the place of a directory above.
            return Ok(false);
        }
        match self.make_stand_in(path, &like) {
            // The directory above has been removed as well since the look at it.
            Err(_) if !self.is_in_held_dir(path) && matches!(self.lower.exists(&above), Ok(false)) => Ok(true),
            Err(err) => {
                // The lookup gets what lower has. What is held shows again when a later look can record the stand-in.
                log::warn!("show {path}, which was removed below and has something held in it: {err}");
                Ok(false)
            }
            made => made,
        }
    }

    /// It gets the looks of the directory above it: those of the directory that was removed are not known.
    fn make_stand_in(&self, path: &RelPath, like: &Meta) -> Result<bool> {
        let owner = Caller { uid: like.uid, gid: like.gid, ..Caller::KERNEL };
        let made = Made { kind: FileKind::Directory, mode: like.mode, device: 0 };
        let new = self.upper_structure(path, made, &owner)?;
        let mut state = self.state.lock();
        let is_missing = match state.is_taken_from_lower(path) {
            true => !self.is_below(path)?,
            false => state.uppers.at(path).is_none(),
        };
        if !is_missing {
            return Ok(true);
        }
        if !state.uppers.shows_within(path) {
            return Ok(false);
        }
        let mut writers = state.uppers.shown_within(path).filter_map(|upper| upper.row.held.as_ref()?.writer.clone());
        let by = writers.next().unwrap_or_default();
        drop(writers);
        self.hold_made(&mut state, path, (new.id(), made), None, vec![Reason::External], by)?;
        new.keep();
        Ok(true)
    }

    /// Ends the stand-ins at and above a path where lower has something again: the view shows that, with what is held in
    /// it.
    pub(in crate::overlay) fn end_stand_ins(&self, path: &RelPath) -> Result<()> {
        let dirs = self.state.lock().uppers.stand_ins_to(path);
        for dir in dirs {
            if !self.is_below(&dir)? {
                // Then it has none of those further down either.
                break;
            }
            if let Err(err) = self.end_stand_in(&dir, |_, below| below.is_some()) {
                log::warn!("show what lower has at {dir} again: {err}");
                break;
            }
        }
        Ok(())
    }

    /// Ends stand-ins above discarded names: those that a look made while the names still showed something, and those
    /// that were left for what could come back.
    pub(in crate::overlay) fn end_emptied_stand_ins<'a>(&self, names: impl Iterator<Item = &'a RelPath>) {
        for dir in dirs_above(names) {
            let is_empty = |state: &State, _: Option<&Meta>| {
                !state.uppers.shows_within(&dir) && state.written_within(&dir).is_none()
            };
            match self.end_stand_in(&dir, is_empty) {
                Ok(true) => self.tell_changed(&dir),
                Ok(false) => {}
                Err(err) => log::warn!("{dir}, which was removed below, is shown though nothing is held in it: {err}"),
            }
        }
    }

    /// Ends a stand-in if `ends`, given what lower has there, says so; returns true if it has ended. One that is being
    /// confirmed or discarded at this moment is left alone: the next look finds what became of it.
    fn end_stand_in(&self, dir: &RelPath, ends: impl FnOnce(&State, Option<&Meta>) -> bool) -> Result<bool> {
        let id = {
            let mut state = self.state.lock();
            let found = state.uppers.stand_in_at(dir).filter(|upper| !upper.busy).map(|upper| upper.row.clone());
            let Some(row) = found else { return Ok(false) };
            let below = self.meta_below(dir)?;
            if !ends(&state, below.as_ref()) {
                return Ok(false);
            }
            let verdicts = row.held.into_iter().map(|held| (held.id, dir.clone(), Fate::Ended)).collect();
            let epilogue = Epilogue { drop: vec![row.id], verdicts, ..Epilogue::default() };
            self.store.vitally_for_programs(|| self.store.record_epilogue(&epilogue))?;
            state.uppers.remove(row.id);
            state.epoch += 1;
            if let (Some(node), Some(meta)) = (state.nodes.at(dir), below)
                && state.nodes.of_lower(meta.key()).is_none()
            {
                // A process that stands in it keeps standing there.
                state.nodes.set_lower(node, Some(meta.key()).filter(|_| meta.is_dir()));
            }
            row.id
        };
        self.store.drop_upper_file(id);
        Ok(true)
    }
}
