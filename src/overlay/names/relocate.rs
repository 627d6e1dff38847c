//! Renames of what lower has and of what is held in it: lower, the database and the view change together.
//!
//! Each is one landing under the lock: an intent with the new names, the new ids and what it means for anchors, then the
//! rename, then the record. A daemon that dies in between leaves all of it undone, or the next start finishes it.

use super::carry::{Cargo, Lifted, Move};
use super::rename::End;
use super::renamed::Renamed;
use crate::model::{OperationId, RelPath};
use crate::overlay::state::past::Past;
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{
    self, Anchor, Applied, Below, DirLooks, Durability, Effect, Epilogue, EventDraft, Inode, Landing, PathEffect,
    UpperId, UpperRow,
};
use crate::sys::file::{FileKind, Meta};

/// The two ends of a rename that takes upper entries along.
pub(super) struct Moving<'a> {
    pub from: &'a End,
    pub to: &'a End,
    pub how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// An empty directory with the looks of `leaves` takes its place, if there is to be one.
    RenameDir {
        leaves: Option<DirLooks>,
    },
    ExchangeDirs,
    /// `from` is the file, `to` the directory.
    ExchangeFileAndDir,
    /// Of entries with nothing to judge: passing ones, FIFOs, sockets, devices.
    ExchangeBelow,
}

/// What a rename to a free name is to what it leaves.
#[derive(Clone, Copy)]
pub(super) enum Leaves {
    /// A path that is free from then on, and counts as new or old as it did before.
    Path,
    /// One of several names, which is removed or replaced at this moment.
    Name,
}

/// An entry of lower on its way to a name that is free, or that has nothing to judge.
pub(super) struct NameMove<'a> {
    from: &'a End,
    leaves: Leaves,
    to: &'a End,
    /// What lower has at `from`.
    meta: Meta,
    /// The process tree that renames; `None` if it is undone, or only goes to another of its names.
    pub by: Option<u32>,
}

impl NameMove<'_> {
    fn anchors(&self, past: &Past) -> Vec<Anchor> {
        match self.leaves {
            Leaves::Path => past.moved(&self.from.path, &self.to.path, &self.meta),
            Leaves::Name => past.parted(&self.from.path, &self.to.path, &self.meta),
        }
    }
}

impl Moving<'_> {
    /// Where upper entries at or below each path go.
    fn moves(&self) -> Vec<Move<'_>> {
        let there = Move { from: &self.from.path, to: &self.to.path };
        let back = Move { from: there.to, to: there.from };
        match self.how {
            How::RenameDir { .. } => vec![there],
            How::ExchangeDirs | How::ExchangeFileAndDir | How::ExchangeBelow => vec![there, back],
        }
    }

    /// The same for judged directories alone.
    fn moves_of_dirs(&self) -> Vec<Move<'_>> {
        let [from, to] = [self.from, self.to].map(|end| &end.path);
        match self.how {
            How::RenameDir { .. } | How::ExchangeDirs => self.moves(),
            How::ExchangeFileAndDir => vec![Move { from: to, to: from }],
            How::ExchangeBelow => Vec::new(),
        }
    }

    fn passes(&self) -> bool {
        self.from.action == Action::Pass && self.to.action == Action::Pass
    }

    /// The anchors that the rename leads to. `here` is what lower has at `from`; what lies at `gone` does not come along.
    fn anchors(&self, past: &Past, here: Option<&Meta>, gone: &[RelPath]) -> Vec<Anchor> {
        match self.how {
            How::RenameDir { .. } | How::ExchangeDirs => past.moved_dirs(&self.moves_of_dirs(), gone),
            How::ExchangeFileAndDir => past.exchanged(&self.from.path, &self.to.path, here, gone),
            How::ExchangeBelow => Vec::new(),
        }
    }

    /// The rows of what is lifted, at its new paths.
    fn lifted_rows(&self, state: &State, lifted: &[Lifted<'_>]) -> Result<Vec<UpperRow>> {
        let moves = self.moves();
        let moved = |path: &RelPath| Move::all(&moves, path).ok_or(Error::Errno(libc::ESTALE));
        lifted.iter().map(|one| one.row(state, moved(&one.path)?)).collect()
    }
}

/// The result of a rename that took upper entries along.
struct Relocated {
    operation: Option<OperationId>,
    /// Lifted entries, which are in upper now and still have to be judged.
    lifted: Vec<UpperId>,
}

impl Overlay {
    /// Renames an entry of lower to a name that was always free, or over one that has nothing to judge.
    pub(super) fn move_below(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        let by = self.tree_of(caller.pid);
        self.move_below_as(from, to, self.renamed_event(from, to, caller), by).map(|_| ())
    }

    fn move_below_as(&self, from: &End, to: &End, event: EventDraft, by: Option<u32>) -> Result<Option<OperationId>> {
        let (renamed, operation) = {
            let mut state = self.state.lock();
            let one = self.name_move(from, Leaves::Path, to)?.ok_or(Error::Errno(libc::ENOENT))?;
            let one = NameMove { by, ..one };
            let epilogue = Epilogue { events: vec![event], ..Epilogue::default() };
            self.land_move(&mut state, &one, epilogue, Vec::new())?
        };
        self.tell_renamed(to, renamed);
        Ok(operation)
    }

    /// Renames an upper entry to a free name. What it is based on moves along in lower, which is an event; an entry that
    /// lower has never had leaves no trace of its earlier names.
    pub(super) fn move_upper(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        let row = self.state.lock().uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        let moves_below = self.below_of(&row, &from.path)?.is_some();
        let events = moves_below.then(|| self.renamed_event(from, to, caller));
        self.move_upper_as(from, to, id, events.into_iter().collect(), self.tree_of(caller.pid)).map(|_| ())
    }

    fn move_upper_as(
        &self,
        from: &End,
        to: &End,
        id: UpperId,
        events: Vec<EventDraft>,
        by: Option<u32>,
    ) -> Result<Option<OperationId>> {
        let (_, claimed) = self.claim(id)?;
        let (renamed, operation) = self.move_claimed(from, to, id, events, by)?;
        drop(claimed);
        self.tell_renamed(to, renamed);
        // It may have landed just before, when our claim kept its entry from being evicted.
        self.evict(id);
        Ok(operation)
    }

    /// The same for a caller that has claimed the entry.
    fn move_claimed(
        &self,
        from: &End,
        to: &End,
        id: UpperId,
        events: Vec<EventDraft>,
        by: Option<u32>,
    ) -> Result<(Renamed, Option<OperationId>)> {
        let mut state = self.state.lock();
        let row = state.uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        let meta = self.below_of(&row, &from.path)?;
        let below = meta.map(|meta| NameMove { from, leaves: Leaves::Path, to, meta, by });
        let (rows, epilogue) = state.renamed_rows(&[id], &[Move { from: &from.path, to: &to.path }])?;
        let epilogue = Epilogue { events, ..epilogue };
        match below {
            Some(one) => self.land_move(&mut state, &one, epilogue, rows),
            None => {
                let operation = self.store.record_operation(&epilogue)?;
                state.rows_changed(rows);
                state.sights.moved(&[Move { from: &from.path, to: &to.path }], by, &[]);
                Ok((state.renamed(from, to), operation))
            }
        }
    }

    fn land_move(
        &self,
        state: &mut State,
        one: &NameMove<'_>,
        epilogue: Epilogue,
        rows: Vec<UpperRow>,
    ) -> Result<(Renamed, Option<OperationId>)> {
        let landing = Landing::new(&self.store, Durability::Cached);
        let applied = self.apply_move(state, one, landing, epilogue)?;
        let is_below = rows.is_empty();
        state.rows_changed(rows);
        let renamed = state.renamed(one.from, one.to);
        let operation = match is_below {
            true => applied.finish_soon()?,
            // Recorded at once: were the daemon to die before a later record, and lower changed by another program, too,
            // what is held would be found under its old name.
            false => applied.finish()?.operation,
        };
        Ok((renamed, operation))
    }

    /// Renames in lower, and updates what is known of lower. Upper entries are left to the caller.
    pub(super) fn apply_move<'a>(
        &self,
        state: &mut State,
        one: &NameMove<'_>,
        mut landing: Landing<'a>,
        epilogue: Epilogue,
    ) -> Result<Applied<'a>> {
        let NameMove { from, to, meta, .. } = one;
        let anchors = one.anchors(&state.past);
        landing.relocate(&self.lower, &from.path, &to.path, meta.stamp(), to.looks_below())?;
        let promised = landing.promise(Epilogue { anchors: anchors.clone(), ..epilogue })?;
        let applied = promised.apply().map_err(looked_at_too_early)?;
        state.know(anchors);
        state.recent_moved(&from.path, &to.path);
        state.sights.moved(&[Move { from: &from.path, to: &to.path }], one.by, &[]);
        if let Some(after) = applied.meta_of(&to.path) {
            state.seen_renamed(&to.path, &meta.stamp(), &after.stamp());
        }
        Ok(applied)
    }

    /// What lower has at a name of an entry, if the entry is a change of that. What somebody else has put in the place of
    /// something new stays where it is, and the view shows it once the entry has left.
    pub(super) fn below_of(&self, row: &UpperRow, name: &RelPath) -> Result<Option<Meta>> {
        Ok(self.meta_below(name)?.filter(|meta| self.is_changed_by(row, name, meta)))
    }

    /// True if an entry is a change of what lower has at that name of it.
    pub(super) fn is_changed_by(&self, row: &UpperRow, name: &RelPath, below: &Meta) -> bool {
        match name == row.path() {
            true => row.base.below != Below::Nothing,
            false => self.is_of_file(&row.base, Some(below)),
        }
    }

    /// Returns `None` if lower has nothing at `from`.
    pub(super) fn name_move<'a>(&self, from: &'a End, leaves: Leaves, to: &'a End) -> Result<Option<NameMove<'a>>> {
        Ok(self.meta_below(&from.path)?.map(|meta| NameMove { from, leaves, to, meta, by: None }))
    }

    /// Exchanges two entries of lower that are not judged.
    pub(super) fn exchange_below(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        self.relocate_told(&Moving { from, to, how: How::ExchangeBelow }, Cargo::default(), caller)
    }

    /// Undoes a rename to a free name: whatever is at `from` goes to `to`, unjudged. If it had taken the place of an
    /// empty directory, `leaves` is what that looked like.
    pub(in crate::overlay) fn move_back(
        &self,
        from: &End,
        to: &End,
        leaves: Option<DirLooks>,
        event: EventDraft,
    ) -> Result<Option<OperationId>> {
        match (from.is_dir(), from.upper()) {
            (true, _) => self.relocate_back(&Moving { from, to, how: How::RenameDir { leaves } }, event),
            (false, Some(id)) => self.move_upper_as(from, to, id, vec![event], None),
            (false, None) => self.move_below_as(from, to, event, None),
        }
    }

    /// Undoes an exchange with a directory.
    pub(in crate::overlay) fn exchange_back(
        &self,
        one: &End,
        other: &End,
        event: EventDraft,
    ) -> Result<Option<OperationId>> {
        let moving = match (one.is_dir(), other.is_dir()) {
            (true, true) => Moving { from: one, to: other, how: How::ExchangeDirs },
            (true, false) => Moving { from: other, to: one, how: How::ExchangeFileAndDir },
            (false, true) => Moving { from: one, to: other, how: How::ExchangeFileAndDir },
            (false, false) => return Err(Error::Errno(libc::ENOTDIR)),
        };
        self.relocate_back(&moving, event)
    }

    fn relocate_back(&self, moving: &Moving<'_>, event: EventDraft) -> Result<Option<OperationId>> {
        let _renaming = match moving.how {
            How::RenameDir { .. } => self.renaming(&[moving.from]),
            How::ExchangeDirs | How::ExchangeFileAndDir | How::ExchangeBelow => {
                self.renaming(&[moving.from, moving.to])
            }
        };
        let arrivals = moving.moves().into_iter().map(|one| one.to);
        let unjudged = arrivals.filter(|to| self.action(to, FileKind::Directory) == Action::Pass).cloned().collect();
        Ok(self.relocate(moving, Cargo { unjudged, ..Cargo::default() }, &[event], None)?.operation)
    }

    /// Returns lifted entries, which still have to be judged. Held changes below a directory come along under new ids.
    pub(super) fn relocate_told(&self, moving: &Moving<'_>, cargo: Cargo<'_>, caller: &Caller) -> Result<Vec<UpperId>> {
        let (events, by) = (self.relocation_events(moving, caller), self.tree_of(caller.pid));
        Ok(self.relocate(moving, cargo, &events, by)?.lifted)
    }

    /// Renames in lower, and takes along the upper entries at and below both ends, and what is lifted into upper.
    fn relocate(
        &self,
        moving: &Moving<'_>,
        cargo: Cargo<'_>,
        events: &[EventDraft],
        by: Option<u32>,
    ) -> Result<Relocated> {
        let within = |state: &State| {
            let mut ids: Vec<UpperId> = moving.moves().iter().flat_map(|one| state.uppers.within(one.from)).collect();
            ids.sort();
            // An entry may have a name at either end.
            ids.dedup();
            ids
        };
        loop {
            let ids = within(&self.state.lock());
            let claimed = self.claim_all(&ids);
            let mut state = self.state.lock();
            let now = within(&state);
            if now.iter().any(|id| !ids.contains(id)) {
                // Something was made in them meanwhile.
                drop(state);
                continue;
            }
            let gone: Vec<RelPath> = cargo.lifted.iter().map(|one| one.path.clone()).collect();
            let (renamed, relocated) = self.land_relocation(&mut state, moving, &now, cargo, events)?;
            state.sights.moved(&moving.moves(), by, &gone);
            drop(state);
            drop(claimed);
            let arrivals: Vec<&RelPath> = moving.moves().iter().map(|one| one.to).collect();
            self.forget_what_passes_within(&arrivals);
            self.tell_renamed(moving.to, renamed);
            // One may have landed just before, when our claim kept it from being evicted.
            ids.iter().for_each(|id| self.evict(*id));
            return Ok(relocated);
        }
    }

    fn land_relocation(
        &self,
        state: &mut State,
        moving: &Moving<'_>,
        ids: &[UpperId],
        Cargo { lifted, unjudged }: Cargo<'_>,
        events: &[EventDraft],
    ) -> Result<(Renamed, Relocated)> {
        let mut landing = Landing::new(&self.store, Lifted::durability(&lifted));
        // Removed before the rename, so that none of them is ever in lower at the path where it is reviewed.
        for one in &lifted {
            if let Some((content, backup)) = one.kept.clone() {
                landing.keep(content, backup);
            }
            landing.remove(&self.lower, &one.path, one.meta.stamp())?;
        }
        let here = self.stage_relocation(&mut landing, moving)?;
        let entries = moving.lifted_rows(state, &lifted)?;
        let opened = self.open_lifted(state, &lifted, &entries)?;
        let others: Vec<UpperId> =
            ids.iter().copied().filter(|id| entries.iter().all(|entry| entry.id != *id)).collect();
        let (rows, mut epilogue) = state.renamed_rows(&others, &moving.moves())?;
        epilogue.save.extend(entries.iter().cloned());
        let gone: Vec<RelPath> = lifted.iter().map(|one| one.path.clone()).collect();
        let anchors = moving.anchors(&state.past, here.as_ref(), &gone);
        let moved_dirs = state.past.dirs().after(&moving.moves_of_dirs(), &unjudged);
        let epilogue =
            Epilogue { anchors: anchors.clone(), moved_dirs: moved_dirs.clone(), events: events.to_vec(), ..epilogue };
        let applied = landing.promise(epilogue)?.apply().map_err(looked_at_too_early)?;
        gone.iter().for_each(|path| state.forget_recent(path));
        state.know(anchors);
        state.past.know_dirs(moved_dirs);
        state.rows_changed(rows);
        let renamed = state.relocated(moving);
        let lifted = state.enter_lifted(lifted, entries, opened);
        Ok((renamed, Relocated { operation: applied.finish()?.operation, lifted }))
    }

    /// Returns what lower has at `from`.
    fn stage_relocation(&self, landing: &mut Landing<'_>, moving: &Moving<'_>) -> Result<Option<Meta>> {
        let Moving { from, to, how } = moving;
        let (here, there) = (self.meta_below(&from.path)?, self.meta_below(&to.path)?);
        match (how, &here, &there) {
            (How::RenameDir { leaves: Some(looks) }, Some(here), None) => {
                // Made at the free path, with all its looks, and then exchanged: one rename puts both in their places.
                landing.make_dir(&self.lower, &to.path, *looks)?;
                let made = self.meta_below(&to.path)?.ok_or(Error::Errno(libc::ENOENT))?;
                landing.exchange(&self.lower, (&from.path, here.stamp()), (&to.path, made.stamp()))?;
            }
            (How::RenameDir { .. }, Some(here), there) => {
                let onto = there.as_ref().map(DirLooks::of);
                landing.relocate(&self.lower, &from.path, &to.path, here.stamp(), onto)?;
            }
            // Only upper has the file: in lower just the directory moves.
            (How::ExchangeFileAndDir, None, Some(dir)) => {
                landing.relocate(&self.lower, &to.path, &from.path, dir.stamp(), None)?;
            }
            (How::ExchangeDirs | How::ExchangeFileAndDir | How::ExchangeBelow, Some(here), Some(there)) => {
                landing.exchange(&self.lower, (&from.path, here.stamp()), (&to.path, there.stamp()))?;
            }
            (_, None, _) | (_, _, None) => return Err(Error::Errno(libc::ENOENT)),
        }
        Ok(here)
    }

    fn relocation_events(&self, moving: &Moving<'_>, caller: &Caller) -> Vec<EventDraft> {
        let Moving { from, to, how } = moving;
        let exchanged = |end: &End, with: &End| {
            let what = format!("[exchanged with {}]", with.path);
            self.structure_event(&end.path, what, &self.doer(caller))
        };
        let undoable = |end: &End, with: &End| {
            let other = end.lasting_below().map(Inode::of);
            let effect = Effect::Exchanged { with: with.path.clone(), other };
            exchanged(end, with).doing([PathEffect::on(&end.path, effect, with.lasting_below())])
        };
        match how {
            _ if moving.passes() => Vec::new(),
            How::RenameDir { .. } => vec![self.renamed_event(from, to, caller)],
            How::ExchangeDirs => vec![undoable(from, to), exchanged(to, from)],
            How::ExchangeFileAndDir => vec![undoable(to, from)],
            How::ExchangeBelow => Vec::new(),
        }
    }

    fn renamed_event(&self, from: &End, to: &End, caller: &Caller) -> EventDraft {
        let effect = Effect::Renamed { from: from.path.clone(), onto: to.looks_below() };
        let what = format!("[renamed from {}]", from.path);
        let event = self.structure_event(&to.path, what, &self.doer(caller));
        event.doing([PathEffect::on(&to.path, effect, from.below())])
    }

    /// One end of a rename that is part of another act: what the view has at `path`.
    pub(super) fn end_of(&self, path: &RelPath) -> Result<End> {
        self.learn_name(path)?;
        let (Some(dir), Some(name)) = (path.parent(), path.name()) else { return Err(Error::Errno(libc::EBUSY)) };
        let parent = self.state.lock().nodes.at(&dir).ok_or(Error::Errno(libc::ESTALE))?;
        let (origin, action) = (self.origin_by_name(path)?, self.action(path, FileKind::Regular));
        Ok(End { parent, name: name.to_owned(), path: path.clone(), origin, action })
    }
}

impl State {
    fn relocated(&mut self, moving: &Moving<'_>) -> Renamed {
        let Moving { from, to, how } = moving;
        self.recent_moved_dirs(&moving.moves());
        if matches!(how, How::RenameDir { .. }) {
            return self.renamed(from, to);
        }
        self.epoch += 1;
        self.exchanged(from, to);
        Renamed::Moved
    }
}

/// Another program has just put something else there below: `ESTALE` makes the kernel look it up anew.
fn looked_at_too_early(err: store::Error) -> Error {
    match err {
        store::Error::Conflict { .. } => Error::Errno(libc::ESTALE),
        other => other.into(),
    }
}
