//! Removing directories, or hiding them while something in them is held (SPEC §4.8).

use std::ffi::OsStr;

use crate::model::{Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::who::goes::Doing;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::protocol::EventName;
use crate::store::{DirLooks, Effect, Epilogue, Fate, PathEffect, UpperId, What, Writer};
use crate::sys::Mode;
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::Place;

/// How a directory has gone from the view.
enum Gone {
    /// From lower: where it was, and what it looked like.
    Below(Place, DirLooks),
    /// Its removal is held as this entry.
    Hidden(UpperId),
}

impl Overlay {
    pub fn rmdir(&self, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.state.lock().nodes.child_path(parent, name)?;
        let was = match self.origin(&path)? {
            Origin::Lower(meta) if meta.is_dir() => meta,
            Origin::Upper(id, meta) if meta.is_dir() => {
                self.end_structure(&path, id, caller)?;
                self.state.lock().unnamed(parent, name, &meta);
                return Ok(());
            }
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
            Origin::Lower(_) | Origin::Upper(..) => return Err(Error::Errno(libc::ENOTDIR)),
        };
        let gated = self.gate_of_dir(&path, caller)?;
        let hidden = self.hidden_below(&path)?;
        let waits = gated.or((!hidden.is_empty()).then_some(Reason::Parent));
        let gone = match waits {
            Some(reason) => {
                self.check_may_change(0)?;
                Gone::Hidden(self.hide_dir(&path, reason, &self.doer(caller))?)
            }
            None => self.remove_dir_below(&path, &was)?,
        };
        if self.action(&path, FileKind::Directory) != Action::Pass {
            let noted = self.note_dir_removed(&path, &gone, waits, &self.doer(caller));
            noted.map_err(|err| self.put_dir_back(&path, &gone, err))?;
        }
        self.state.lock().unnamed(parent, name, &was);
        Ok(())
    }

    /// Why the removal of a directory waits, whatever is in it; `EPERM` if a rule forbids it.
    pub(super) fn gate_of_dir(&self, path: &RelPath, caller: &Caller) -> Result<Option<Reason>> {
        match self.action_by(path, FileKind::Directory, &self.writer(caller)) {
            Action::Deny | Action::Freeze => Err(self.denied(path, &self.doer(caller))),
            Action::Hold(source) => Ok(Some(source.reason())),
            Action::Auto | Action::Pass | Action::GitConfig => Ok(None),
        }
    }

    fn remove_dir_below(&self, path: &RelPath, was: &Meta) -> Result<Gone> {
        let place = self.lower.place(path)?;
        let looks = DirLooks::of_going(&place, was)?;
        // Otherwise recovery would look in it for what was renamed out of it.
        self.store.record_waiting()?;
        place.remove_dir()?;
        Ok(Gone::Below(place, looks))
    }

    /// `waits` is why the removal of a hidden directory is held.
    fn note_dir_removed(&self, path: &RelPath, gone: &Gone, waits: Option<Reason>, by: &Writer) -> Result<()> {
        let (doing, looks) = match gone {
            Gone::Below(_, looks) => (Doing::RemoveDir, Some(*looks)),
            // One that is hidden comes back by a discard.
            Gone::Hidden(_) => (Doing::Hold, None),
        };
        let part = self.part_of(path, by, doing);
        let removed = looks.map(|looks| PathEffect::new(path, Effect::DirRemoved(looks)));
        let event = self.structure_event(path, "[directory removed]".to_owned(), by).doing(removed);
        let mut state = self.state.lock();
        let event = event.with(|event| {
            event.operation = part.operation_told();
            if waits.is_some() {
                (event.event, event.reason) = (EventName::WriteHeld, waits);
                event.id = state.uppers.held_at(path).map(|held| held.id.to_string());
            }
        });
        let anchors = match gone {
            Gone::Below(..) => state.past.left_dir(path),
            Gone::Hidden(_) => state.past.left(path).into_iter().collect(),
        };
        let became = self.record_done(event, anchors.clone())?;
        state.forget_recent(path);
        state.know(anchors);
        drop(state);
        self.recorded(&part, became);
        Ok(())
    }

    /// Returns the held deletions in a directory that shows nothing; `ENOTEMPTY` if it shows something.
    pub(super) fn hidden_below(&self, path: &RelPath) -> Result<Vec<UpperId>> {
        let below = self.lower.list(path).doing(|| format!("list {path}"))?;
        let state = self.state.lock();
        let entries: std::collections::HashMap<&OsStr, UpperId> = state.uppers.in_dir(path).collect();
        let is_whiteout = |id: &UpperId| state.uppers.get(*id).is_some_and(|upper| upper.row.what == What::Whiteout);
        let all_hidden =
            entries.values().all(is_whiteout) && below.iter().all(|entry| entries.contains_key(entry.name.as_os_str()));
        match all_hidden {
            true => Ok(entries.into_values().collect()),
            false => Err(Error::Errno(libc::ENOTEMPTY)),
        }
    }

    /// Makes a directory anew whose removal is held, as git does at every switch of branches: lower still has it. What
    /// was deleted in it stays hidden and held.
    pub(super) fn show_dir_again(&self, id: UpperId, path: &RelPath, mode: u32, caller: &Caller) -> Result<()> {
        self.check_not_refused(path, self.action_by(path, FileKind::Directory, &self.writer(caller)), caller)?;
        let heritage = self.heritage(path, FileKind::Directory, mode, caller)?;
        let (row, _claimed) = self.claim(id)?;
        let given = heritage.give_anew(&self.lower.place(path)?, FileKind::Directory);
        given.doing(|| format!("give {path} an owner"))?;
        let by = self.doer(caller);
        let part = self.part_of(path, &by, Doing::Make);
        let event = self.structure_event(path, "[directory]".to_owned(), &by);
        let event = event.with(|event| event.operation = part.operation_told());
        let verdicts = row.held.iter().map(|held| (held.id.clone(), path.clone(), Fate::Ended)).collect();
        // Without an anchor: what lower has there is as old as it was before.
        let epilogue = Epilogue { drop: vec![row.id], verdicts, events: vec![event], ..Epilogue::default() };
        let became = self.orphan(row.id, |_| Ok(self.store.record_operation(&epilogue)?))?;
        self.recorded(&part, became);
        Ok(())
    }

    /// Hides a directory from the view; lower keeps it until its removal is confirmed, or the last deletion in it.
    fn hide_dir(&self, path: &RelPath, reason: Reason, by: &Writer) -> Result<UpperId> {
        let meta = self.meta_below(path)?.ok_or(Error::Errno(libc::ENOENT))?;
        let id = self.hide(path, &meta)?;
        let held = self.hold_whiteout(id, reason, by);
        held.map_err(|err| self.put_dir_back(path, &Gone::Hidden(id), err)).map(|()| id)
    }

    /// Puts back a directory whose removal could not be recorded because of `err`. Returns the error to report.
    fn put_dir_back(&self, path: &RelPath, gone: &Gone, err: Error) -> Error {
        let put_back = match gone {
            Gone::Below(place, looks) => {
                place.make_dir(Mode::RWXU).and_then(|()| looks.give(place)).doing(|| format!("make {path} anew"))
            }
            Gone::Hidden(id) => self.forget_whiteout(*id),
        };
        let Err(second) = put_back else { return err };
        log::error!("put {path} back: {second}");
        match err {
            Error::Store(err) => self.store.unrecorded(err).into(),
            other => other,
        }
    }
}
