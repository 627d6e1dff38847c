//! Removing names: the deletion of content is judged as a change of all lines to none (SPEC §4.4).

use std::ffi::OsStr;

use super::parting::{Departure, Parting};
use crate::model::{Reason, RelPath};
use crate::overlay::files::handles::Backing;
use crate::overlay::judge::claim::Claim;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::who::goes::Doing;
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::protocol::DELETED;
use crate::store::{Base, Below, Effect, Epilogue, Fate, Held, NodeLooks, PathEffect, UpperId, UpperRow, What, Writer};
use crate::sys::OFlags;
use crate::sys::file::Meta;

/// A file system takes longer to free a file of this size than to remove its name, so it is kept open while its last name
/// goes.
const LARGE_BYTES: u64 = 1 << 20;

impl Overlay {
    pub fn unlink(&self, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.state.lock().nodes.child_path(parent, name)?;
        let origin = self.origin_by_name(&path)?;
        let was = match &origin {
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
            Origin::Lower(meta) | Origin::Upper(_, meta) if meta.is_dir() => return Err(Error::Errno(libc::EISDIR)),
            Origin::Lower(meta) | Origin::Upper(_, meta) => *meta,
        };
        let kind = was.kind;
        match (self.action_by(&path, kind, &self.writer(caller)), origin) {
            (Action::Deny | Action::Freeze, _) => return Err(self.denied(&path, &self.doer(caller))),
            (Action::Pass, Origin::Lower(_)) => return self.unlink_below(&path, (parent, name), &was),
            (_, Origin::Lower(meta)) if !kind.has_content() => {
                debug_assert!(!meta.is_dir());
                return self.unlink_special(&path, (parent, name), &was, caller);
            }
            (_, Origin::Lower(meta)) => self.unlink_judged(&path, &meta, caller)?,
            (_, Origin::Upper(id, meta)) if meta.kind.is_special() => self.end_structure(&path, id, caller)?,
            (_, Origin::Upper(id, _)) => self.unlink_upper(&path, id, caller)?,
            (_, Origin::Nothing | Origin::Hidden(_)) => return Err(Error::Errno(libc::ENOENT)),
        }
        self.state.lock().unnamed(parent, name, &was);
        self.name_changed(&path)
    }

    /// Removes a name. Lower and the nodes change under one lock, so that a lookup sees the name as before or no name.
    fn unlink_below(&self, path: &RelPath, (parent, name): (NodeId, &OsStr), was: &Meta) -> Result<()> {
        let place = self.lower.place(path)?;
        let is_large = was.is_file() && was.size >= LARGE_BYTES;
        // Kept open, so that the file is freed only after the lock is released.
        let _kept = is_large.then(|| self.lower.open_at(path, OFlags::PATH)).transpose()?;
        self.store.record_waiting()?;
        let mut state = self.state.lock();
        place.unlink()?;
        state.unnamed(parent, name, was);
        Ok(())
    }

    /// A FIFO, socket or device goes at once: it has no content that anybody would review.
    fn unlink_special(&self, path: &RelPath, entry: (NodeId, &OsStr), was: &Meta, caller: &Caller) -> Result<()> {
        self.unlink_below(path, entry, was)?;
        let gone = self.state.lock().left(path).into_iter().collect();
        // One with other names would come back as another file.
        let removed = (was.links == 1).then(|| PathEffect::new(path, Effect::SpecialRemoved(NodeLooks::of(was))));
        let what = format!("[{} removed]", was.kind.name());
        if let Err(err) = self.record_structure(path, what, removed, gone, &self.doer(caller)) {
            log::error!("record that {path} is removed, which it is: {err}");
        }
        Ok(())
    }

    /// Hides a path of lower, judges its deletion, and shows it again if that fails.
    fn unlink_judged(&self, path: &RelPath, meta: &Meta, caller: &Caller) -> Result<()> {
        self.learn_other_name(path, meta)?;
        let by = self.doer(caller);
        let id = self.hide(path, meta)?;
        match self.settle_or_deny(id, &by) {
            Ok(_) => Ok(()),
            Err(err) => {
                self.shows_again(id);
                if let Err(second) = self.goes_on_after_all(path) {
                    log::error!(
                        "{path} was written to while it was about to be deleted, and has none of that: {second}"
                    );
                }
                self.tell_content_changed(path);
                Err(err)
            }
        }
    }

    /// Hides a path of lower by a whiteout that is not judged yet; the database learns of it when it is held.
    pub(in crate::overlay) fn hide(&self, path: &RelPath, meta: &Meta) -> Result<UpperId> {
        let whiteout = self.whiteout(path, meta);
        let id = whiteout.row.id;
        let mut state = self.state.lock();
        if state.uppers.at(path).is_some() {
            return Err(Error::Errno(libc::ESTALE));
        }
        state.uppers.insert(whiteout);
        state.epoch += 1;
        Ok(id)
    }

    fn shows_again(&self, whiteout: UpperId) {
        let mut state = self.state.lock();
        state.uppers.remove(whiteout);
        state.epoch += 1;
    }

    /// What hides a path of lower, once it is put there.
    pub(super) fn whiteout(&self, path: &RelPath, meta: &Meta) -> Upper {
        let row = deleted(self.store.reserve_upper(), path, Base::of_name(meta));
        Upper { recorded: Recorded::Nothing, ..Upper::written(row) }
    }

    fn unlink_upper(&self, path: &RelPath, id: UpperId, caller: &Caller) -> Result<()> {
        let Some((row, claimed)) = self.claim_if_there(id) else { return self.unlink_again(path, caller) };
        if !row.names.contains(path) {
            // A name in lower of an inode that was changed by another: only the name goes.
            return self.unlink_again(path, caller);
        }
        match self.departure(path, id, &row)? {
            None => {}
            Some(departure) if departure.empties_name() => return self.part(departure),
            Some(departure) => {
                return match self.is_below(path)? {
                    true => self.unlink_name(departure, &row, claimed, caller),
                    false => self.part(departure),
                };
            }
        }
        if let Some(dir) = self.meta_below(path)?.filter(Meta::is_dir) {
            return self.hide_dir_again(path, &dir, row, caller);
        }
        let existed = row.base.below != Below::Nothing || row.base.content.is_some();
        if !existed {
            return match &row.held {
                Some(held) => self.drop_held(path, &row, held, caller),
                None => self.drop_new(&row, &self.doer(caller)),
            };
        }
        self.ask_ahead_of_deletion(&row, caller)?;
        self.delete_changed(row, caller)
    }

    /// Removes what lower has by one name of a change, which is judged by itself; the change goes on under its other
    /// names.
    fn unlink_name(&self, name: Departure, row: &UpperRow, claimed: Claim<'_>, caller: &Caller) -> Result<()> {
        let base = match name.parting {
            Parting::Leaves => Base::of(row.base.of_one_name().below),
            Parting::Unmade | Parting::Other(_) | Parting::Moves(_) => self.base_of_name(&name.path, row)?,
        };
        let id = self.store.reserve_upper();
        let whiteout = deleted(id, &name.path, base);
        self.ask_ahead_of_deletion(&whiteout, caller)?;
        let epilogue = Epilogue { save: vec![whiteout.clone()], ..Epilogue::default() };
        let mut state = self.state.lock();
        let hide = |state: &mut State| state.uppers.insert(Upper::written(whiteout));
        let ((), parted) = self.depart(&mut state, vec![name], epilogue, Vec::new(), hide)?;
        drop(state);
        self.tell_parted(parted);
        drop(claimed);
        self.settle_what_is_shown(id, caller)?;
        self.settle_parted([row.id], &self.doer(caller))
    }

    /// It landed between the look and the lock.
    fn unlink_again(&self, path: &RelPath, caller: &Caller) -> Result<()> {
        let meta = self.meta_below(path)?.ok_or(Error::Errno(libc::ENOENT))?;
        self.unlink_judged(path, &meta, caller)
    }

    /// Removes a new file that was not judged. It leaves no trace, unless judging it was tried.
    fn drop_new(&self, row: &UpperRow, by: &Writer) -> Result<()> {
        let removal = self.removal(row, by)?;
        let epilogue = Epilogue { drop: vec![row.id], ..Epilogue::default() };
        self.orphan(row.id, |state| self.record_removal(state, removal, &epilogue))?;
        self.store.drop_upper_file(row.id);
        Ok(())
    }

    /// Removes a new file that is held. Its content is kept, and an undo holds it again.
    fn drop_held(&self, path: &RelPath, row: &UpperRow, held: &Held, caller: &Caller) -> Result<()> {
        let by = self.doer(caller);
        let removal = self.removal(row, &by)?;
        let part = self.part_of(path, &by, Doing::Unhold);
        let effect = PathEffect::new(path, removal.effect()?);
        let event = self.hold_ended(path, held, DELETED, &by).doing([effect]);
        let event = event.with(|event| event.operation = part.operation_told());
        let verdicts = vec![(held.id.clone(), path.clone(), Fate::Removed)];
        let epilogue = Epilogue { drop: vec![row.id], verdicts, events: vec![event], ..Epilogue::default() };
        let became = self.orphan(row.id, |state| self.record_removal(state, removal, &epilogue))?;
        self.recorded(&part, became);
        self.store.drop_upper_file(row.id);
        Ok(())
    }

    /// Removes a new entry whose creation failed after all.
    pub(in crate::overlay) fn take_back(&self, path: &RelPath, id: UpperId) {
        let row = self.state.lock().uppers.row(id).cloned();
        // In the place of a held deletion it would take that along, so there it stays as it is, made and not written.
        let new = row.filter(UpperRow::is_new);
        if let Some(Err(err)) = new.map(|row| self.drop_new(&row, &Writer::default())) {
            log::error!("take {path} back, which could not be made: {err}");
        }
    }

    /// Takes an entry out of the view; its handles keep its content. `record` makes the database agree, under the lock: a
    /// write in between would save the row anew.
    pub(super) fn orphan<T>(&self, id: UpperId, record: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        let recorded = record(&state)?;
        state.take_out(id);
        Ok(recorded)
    }

    /// The same with a whiteout in its place: at no moment does the path show what lower has.
    fn orphan_hidden<T>(&self, id: UpperId, whiteout: UpperRow, record: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        let recorded = record(&state)?;
        state.take_out(id);
        state.uppers.insert(Upper::written(whiteout));
        Ok(recorded)
    }

    /// Removes what took the place of a hidden directory, which is hidden as before. The directory may have come below
    /// since, in the place of a file that this was a change of.
    fn hide_dir_again(&self, path: &RelPath, dir: &Meta, row: UpperRow, caller: &Caller) -> Result<()> {
        let gated = self.gate_of_dir(path, caller)?;
        let by = self.doer(caller);
        let whiteout = self.whiteout(path, dir).row;
        let id = whiteout.id;
        let removal = self.removal(&row, &by)?;
        let mut epilogue = Epilogue { drop: vec![row.id], save: vec![whiteout.clone()], ..Epilogue::default() };
        if let Some(held) = &row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Removed));
            epilogue.events.push(self.hold_ended(path, held, DELETED, &by));
        }
        self.orphan_hidden(row.id, whiteout, |state| self.record_removal(state, removal, &epilogue))?;
        self.store.drop_upper_file(row.id);
        self.hold_whiteout(id, gated.unwrap_or(Reason::Parent), &by)
    }

    /// The deletion of something changed is judged against what the change was based on. What was held is kept.
    fn delete_changed(&self, row: UpperRow, caller: &Caller) -> Result<()> {
        let id = self.store.reserve_upper();
        let base = row.base.of_one_name();
        let whiteout = UpperRow { id, what: What::Whiteout, base, ..row.clone() };
        let by = self.doer(caller);
        let removal = self.removal(&row, &by)?;
        let epilogue = Epilogue { drop: vec![row.id], save: vec![whiteout.clone()], ..Epilogue::default() };
        self.orphan_hidden(row.id, whiteout, |state| self.record_removal(state, removal, &epilogue))?;
        self.store.drop_upper_file(row.id);
        self.settle_what_is_shown(id, caller)
    }
}

impl State {
    /// Takes an entry out of the view; its handles keep its content.
    pub(super) fn take_out(&mut self, id: UpperId) {
        if let Some(open) = self.nodes.open_of(id).cloned() {
            open.set_backing(&mut self.nodes, Backing::Orphan(open.file()));
        }
        self.uppers.remove(id);
        self.epoch += 1;
    }

    /// The node loses the name; its handles keep the node.
    pub(in crate::overlay) fn unnamed(&mut self, parent: NodeId, name: &OsStr, was: &Meta) {
        self.epoch += 1;
        if let Some(node) = self.nodes.child(parent, name).and_then(|node| self.nodes.get_mut(node).ok()) {
            node.note_removed(was);
        }
        self.nodes.unname(parent, name);
        self.nodes.gone(was);
    }
}

/// The row that hides a path, not judged yet.
fn deleted(id: UpperId, path: &RelPath, base: Base) -> UpperRow {
    UpperRow::new(id, path.clone(), What::Whiteout, base)
}
