//! Renames of what lower has and of what is held in it: lower, the database and the view change together.
//!
//! Each is one landing under the lock: an intent with the new names, the new ids and what it means for anchors, then the
//! rename, then the record. A daemon that dies in between leaves all of it undone, or the next start finishes it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;

use super::anchors::{exchange_moves, forgotten};
use super::carry::{Cargo, Lifted, Move};
use super::error::Context;
use super::nodes::Nodes;
use super::rename::End;
use super::settle::Claim;
use super::uppers::Upper;
use super::{Caller, Error, Known, NodeId, Overlay, Result, State};
use crate::model::{ChangeId, ChangeKind, OperationId, RelPath};
use crate::policy::rules::Action;
use crate::store::{
    self, Anchor, Base, Below, DirLooks, Durability, Effect, Epilogue, EventDraft, Fate, Held, Landing, PathEffect,
    UpperId, UpperRow,
};
use crate::sys::file::{FileKind, Meta};

/// Two ends of a rename with which upper entries go along.
struct Moving<'a> {
    from: &'a End,
    to: &'a End,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// An empty directory that looks so takes its place, where there is to be one.
    RenameDir {
        leaves: Option<DirLooks>,
    },
    ExchangeDirs,
    /// The file is where it comes from, the directory where it goes.
    ExchangeFileAndDir,
    /// Of what has nothing to judge: what passes, FIFOs, sockets, devices.
    ExchangeBelow,
}

/// What a rename to a free name is to what it leaves.
#[derive(Clone, Copy)]
pub(super) enum Leaves {
    /// A path that is free, and as new or as old as it was.
    Path,
    /// One of several names, which is removed or replaced at this moment.
    Name,
}

/// What a rename has changed of what the kernel knows, to be told with no lock held.
#[must_use]
pub(super) enum Renamed {
    /// The node goes on under its new name.
    Moved,
    /// The same, and the node that it had been set apart from has a link less.
    MovedApart(NodeId),
    /// The new name stands for another node. The old one, where there is one, goes on without a name, or with a link less.
    Parted(Option<NodeId>),
}

impl Moving<'_> {
    /// What upper entries at or below each path are called then.
    fn moves(&self) -> Vec<Move<'_>> {
        let there = Move { from: &self.from.path, to: &self.to.path };
        let back = Move { from: there.to, to: there.from };
        match self.how {
            How::RenameDir { .. } => vec![there],
            How::ExchangeDirs | How::ExchangeFileAndDir | How::ExchangeBelow => vec![there, back],
        }
    }

    /// The same of judged directories alone.
    fn moves_of_dirs(&self) -> Vec<Move<'_>> {
        let [from, to] = [self.from, self.to].map(|end| &end.path);
        match self.how {
            How::RenameDir { .. } | How::ExchangeDirs => self.moves(),
            How::ExchangeFileAndDir => vec![Move { from: to, to: from }],
            How::ExchangeBelow => Vec::new(),
        }
    }

    /// The renames of judged directories that it amounts to, one after the other.
    fn dirs(&self) -> Vec<(RelPath, RelPath)> {
        let (from, to) = (&self.from.path, &self.to.path);
        match self.how {
            How::RenameDir { .. } => vec![(from.clone(), to.clone())],
            How::ExchangeDirs => exchange_moves(from, to).into(),
            How::ExchangeFileAndDir => vec![(to.clone(), from.clone())],
            How::ExchangeBelow => Vec::new(),
        }
    }

    fn passes(&self) -> bool {
        self.from.action == Action::Pass && self.to.action == Action::Pass
    }

    /// The entries of what is lifted, as they are once it has come along.
    fn lifted_rows(&self, state: &State, lifted: &[Lifted<'_>]) -> Result<Vec<UpperRow>> {
        let moves = self.moves();
        let moved = |path: &RelPath| moves.iter().find_map(|one| path.rebase(one.from, one.to));
        lifted.iter().map(|one| one.row(state, moved(&one.path).ok_or(Error::Errno(libc::ESTALE))?)).collect()
    }
}

/// What came of a rename with which upper entries went along.
struct Relocated {
    operation: Option<OperationId>,
    /// What is in upper now and waits to be judged.
    lifted: Vec<UpperId>,
}

impl Overlay {
    /// An entry of lower to a name that was always free, or over one that has nothing to judge.
    pub(super) fn move_below(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        self.move_below_as(from, to, self.renamed_event(from, to, caller)).map(|_| ())
    }

    fn move_below_as(&self, from: &End, to: &End, event: EventDraft) -> Result<Option<OperationId>> {
        let (renamed, operation) = {
            let mut state = self.state.lock();
            let meta = self.lower.stat(&from.path).doing(|| format!("stat {}", from.path))?;
            let meta = meta.ok_or(Error::Errno(libc::ENOENT))?;
            let epilogue = Epilogue { events: vec![event], ..Epilogue::default() };
            self.land_move(&mut state, ((from, Leaves::Path), to), &meta, epilogue, Vec::new())?
        };
        self.tell_renamed(to, renamed);
        Ok(operation)
    }

    /// An upper entry to a free name. What it is based on moves along in lower, which is an event; what lower has never had
    /// leaves no trace of its earlier names.
    pub(super) fn move_upper(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        let moves_below = self.lower.exists(&from.path).doing(|| format!("stat {}", from.path))?;
        let events = moves_below.then(|| self.renamed_event(from, to, caller));
        self.move_upper_as(from, to, id, events.into_iter().collect()).map(|_| ())
    }

    fn move_upper_as(&self, from: &End, to: &End, id: UpperId, events: Vec<EventDraft>) -> Result<Option<OperationId>> {
        let (_, claimed) = self.claim(id)?;
        let (renamed, operation) = self.move_claimed((from, Leaves::Path), to, id, events)?;
        drop(claimed);
        self.tell_renamed(to, renamed);
        // It may have landed a moment before, with us in the way of its being let go of.
        self.evict(id)?;
        Ok(operation)
    }

    /// The same for who has claimed it, to a name that is free or that was to be made when it lands.
    pub(super) fn move_claimed(
        &self,
        (from, leaves): (&End, Leaves),
        to: &End,
        id: UpperId,
        events: Vec<EventDraft>,
    ) -> Result<(Renamed, Option<OperationId>)> {
        let mut state = self.state.lock();
        let below = self.lower.stat(&from.path).doing(|| format!("stat {}", from.path))?;
        let (rows, epilogue) = state.renamed_rows(&[id], &[Move { from: &from.path, to: &to.path }])?;
        let epilogue = Epilogue { events, ..epilogue };
        match below {
            Some(meta) => self.land_move(&mut state, ((from, leaves), to), &meta, epilogue, rows),
            None => {
                let operation = self.store.record_operation(&epilogue)?;
                state.rows_changed(rows);
                Ok((state.renamed(from, to), operation))
            }
        }
    }

    fn land_move(
        &self,
        state: &mut State,
        ((from, leaves), to): ((&End, Leaves), &End),
        meta: &Meta,
        epilogue: Epilogue,
        rows: Vec<UpperRow>,
    ) -> Result<(Renamed, Option<OperationId>)> {
        let anchors = match leaves {
            Leaves::Path => state.anchors_moved(&from.path, &to.path, meta),
            Leaves::Name => state.anchors_parted(&from.path, &to.path, meta),
        };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.relocate(&self.lower, &from.path, &to.path, meta.stamp(), to.looks_below())?;
        let promised = landing.promise(Epilogue { anchors: anchors.clone(), ..epilogue })?;
        let applied = promised.apply().map_err(looked_at_too_early)?;
        state.know(anchors);
        state.recent_moved(&from.path, &to.path);
        if let Some(after) = applied.meta_of(&to.path) {
            state.seen_renamed(&to.path, &meta.stamp(), &after.stamp());
        }
        let is_below = rows.is_empty();
        state.rows_changed(rows);
        let renamed = state.renamed(from, to);
        let operation = match is_below {
            true => applied.finish_soon()?,
            // Should somebody change lower in that moment, too, what is held would be found under its old name.
            false => applied.finish()?.operation,
        };
        Ok((renamed, operation))
    }

    /// A directory with all that is in it. Held changes below it come along under new ids.
    pub(super) fn relocate_dir(&self, from: &End, to: &End, cargo: Cargo<'_>, caller: &Caller) -> Result<Vec<UpperId>> {
        self.relocate_told(&Moving { from, to, how: How::RenameDir { leaves: None } }, cargo, caller)
    }

    /// Two directories with all that is in them.
    pub(super) fn relocate_dirs(
        &self,
        from: &End,
        to: &End,
        cargo: Cargo<'_>,
        caller: &Caller,
    ) -> Result<Vec<UpperId>> {
        self.relocate_told(&Moving { from, to, how: How::ExchangeDirs }, cargo, caller)
    }

    /// A file, and a directory with all that is in it: each to a name that the other leaves.
    pub(super) fn relocate_file_and_dir(
        &self,
        file: &End,
        dir: &End,
        cargo: Cargo<'_>,
        caller: &Caller,
    ) -> Result<Vec<UpperId>> {
        self.relocate_told(&Moving { from: file, to: dir, how: How::ExchangeFileAndDir }, cargo, caller)
    }

    /// Two entries of lower that nobody judges.
    pub(super) fn exchange_below(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        self.relocate_told(&Moving { from, to, how: How::ExchangeBelow }, Cargo::default(), caller)
    }

    /// Undoes a rename to a free name: whatever is at `from` goes to `to`, and nobody judges it. Where it had taken the place
    /// of an empty directory `leaves` is what that looked like.
    pub(super) fn move_back(
        &self,
        from: &End,
        to: &End,
        leaves: Option<DirLooks>,
        event: EventDraft,
    ) -> Result<Option<OperationId>> {
        match (from.is_dir(), from.upper()) {
            (true, _) => self.relocate_back(&Moving { from, to, how: How::RenameDir { leaves } }, event),
            (false, Some(id)) => self.move_upper_as(from, to, id, vec![event]),
            (false, None) => self.move_below_as(from, to, event),
        }
    }

    /// Undoes an exchange with a directory.
    pub(super) fn exchange_back(&self, one: &End, other: &End, event: EventDraft) -> Result<Option<OperationId>> {
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
        Ok(self.relocate(moving, Cargo { unjudged, ..Cargo::default() }, &[event])?.operation)
    }

    /// Gives what is in upper now and waits to be judged.
    fn relocate_told(&self, moving: &Moving<'_>, cargo: Cargo<'_>, caller: &Caller) -> Result<Vec<UpperId>> {
        Ok(self.relocate(moving, cargo, &self.relocation_events(moving, caller))?.lifted)
    }

    /// Renames in lower, and takes the upper entries at and below both ends along, and what is lifted into them.
    fn relocate(&self, moving: &Moving<'_>, cargo: Cargo<'_>, events: &[EventDraft]) -> Result<Relocated> {
        let within = |state: &State| {
            let mut ids: Vec<UpperId> = moving.moves().iter().flat_map(|one| state.uppers.within(one.from)).collect();
            ids.sort();
            // One may have a name at either end.
            ids.dedup();
            ids
        };
        loop {
            let ids = within(&self.state.lock());
            let claimed = self.claim_all(&ids)?;
            let mut state = self.state.lock();
            let now = within(&state);
            if now.iter().any(|id| !ids.contains(id)) {
                // Something was made in them meanwhile.
                drop(state);
                continue;
            }
            let (renamed, relocated) = self.land_relocation(&mut state, moving, &now, cargo, events)?;
            drop(state);
            drop(claimed);
            self.tell_renamed(moving.to, renamed);
            // One may have landed a moment before, with us in the way of its being let go of.
            ids.iter().try_for_each(|id| self.evict(*id))?;
            return Ok(relocated);
        }
    }

    /// In one order and each once: two who need the same entries never wait for each other, nor one for itself.
    pub(super) fn claim_all(&self, ids: &[UpperId]) -> Result<Vec<Claim<'_>>> {
        let mut claimed = Vec::new();
        for id in ids.iter().copied().collect::<BTreeSet<_>>() {
            match self.claim(id) {
                Ok((_, claim)) => claimed.push(claim),
                // Landed while we waited.
                Err(err) if err.code() == libc::ESTALE => {}
                Err(err) => return Err(err),
            }
        }
        Ok(claimed)
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
        // Before the rename: none of them is ever below where it is reviewed.
        for one in &lifted {
            if let Some((content, backup)) = one.kept.clone() {
                landing.keep(content, backup);
            }
            landing.remove(&self.lower, &one.path, one.meta.stamp())?;
        }
        let here = self.stage_relocation(&mut landing, moving)?;
        let entries = moving.lifted_rows(state, &lifted)?;
        let others: Vec<UpperId> =
            ids.iter().copied().filter(|id| entries.iter().all(|entry| entry.id != *id)).collect();
        let (rows, mut epilogue) = state.renamed_rows(&others, &moving.moves())?;
        epilogue.save.extend(entries.iter().cloned());
        let gone: Vec<RelPath> = lifted.iter().map(|one| one.path.clone()).collect();
        let implied = self.implied_anchors(state, &moving.moves_of_dirs())?;
        let anchors = state.anchors_relocated(moving, here.as_ref(), state.anchors_without(&gone, implied));
        let forgotten: Vec<(RelPath, RelPath)> = unjudged.iter().map(forgotten).collect();
        let moved_dirs = moving.dirs().into_iter().chain(forgotten.iter().cloned()).collect();
        let epilogue = Epilogue { anchors: anchors.clone(), moved_dirs, events: events.to_vec(), ..epilogue };
        let applied = landing.promise(epilogue)?.apply().map_err(looked_at_too_early)?;
        gone.iter().for_each(|path| state.forget_recent(path));
        state.know(anchors);
        state.rows_changed(rows);
        let renamed = state.relocated(moving, here.is_some());
        state.moved_dirs.extend(forgotten);
        let lifted = self.enter_lifted(state, lifted, entries);
        Ok((renamed, Relocated { operation: applied.finish()?.operation, lifted }))
    }

    /// Gives what lower has where it comes from.
    fn stage_relocation(&self, landing: &mut Landing<'_>, moving: &Moving<'_>) -> Result<Option<Meta>> {
        let Moving { from, to, how } = moving;
        let stat = |path: &RelPath| self.lower.stat(path).doing(|| format!("stat {path}"));
        let (here, there) = (stat(&from.path)?, stat(&to.path)?);
        match (how, &here, &there) {
            (How::RenameDir { leaves: Some(looks) }, Some(here), None) => {
                // Made where nothing is, with all that a directory looks like: by one rename both are in their places.
                landing.make_dir(&self.lower, &to.path, *looks)?;
                let made = stat(&to.path)?.ok_or(Error::Errno(libc::ENOENT))?;
                landing.exchange(&self.lower, (&from.path, here.stamp()), (&to.path, made.stamp()))?;
            }
            (How::RenameDir { .. }, Some(here), there) => {
                let onto = there.as_ref().map(DirLooks::of);
                landing.relocate(&self.lower, &from.path, &to.path, here.stamp(), onto)?;
            }
            // The file is upper's alone: below only the directory moves.
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
            exchanged(end, with).doing([PathEffect::new(&end.path, Effect::Exchanged { with: with.path.clone() })])
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
        event.doing([PathEffect::new(&to.path, effect)])
    }

    pub(super) fn tell_renamed(&self, to: &End, renamed: Renamed) {
        match renamed {
            Renamed::Moved => {}
            Renamed::MovedApart(node) => self.forget_attributes(node),
            Renamed::Parted(node) => {
                self.tell(|observer| observer.entry_changed(to.parent, &to.name));
                node.into_iter().for_each(|node| self.forget_attributes(node));
            }
        }
    }

    /// A change goes on under another name of its inode: the database learns of it, and of its new id.
    pub(super) fn rename_change(&self, id: UpperId, from: &RelPath, to: &RelPath) -> Result<()> {
        let mut state = self.state.lock();
        let (rows, epilogue) = state.renamed_rows(&[id], &[Move { from, to }])?;
        self.store.record_epilogue(&epilogue)?;
        state.rows_changed(rows);
        Ok(())
    }

    /// The same without one of its names, which was to be made when it lands.
    pub(super) fn drop_change_name(&self, id: UpperId, gone: &RelPath) -> Result<()> {
        let mut state = self.state.lock();
        let Some(upper) = state.uppers.get(id) else { return Ok(()) };
        let mut renamed = RenamedRows::default();
        state.call(upper, upper.row.without_name(gone), &mut renamed)?;
        self.store.record_epilogue(&renamed.epilogue)?;
        state.rows_changed(renamed.rows);
        Ok(())
    }

    /// The same without the name that it is based on, which stays below: under the others it is something new. `whiteout`
    /// hides that name from then on.
    pub(super) fn leave_base(&self, id: UpperId, base: &RelPath, whiteout: Option<UpperRow>) -> Result<()> {
        let mut state = self.state.lock();
        let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ESTALE))?;
        let held = upper.row.held.clone().map(|held| Held { kind: ChangeKind::Create, ..held });
        let row = UpperRow { base: Base::of(Below::Nothing), held, looks: None, ..upper.row.without_name(base) };
        let mut renamed = RenamedRows::default();
        state.call(upper, row, &mut renamed)?;
        let RenamedRows { rows, mut epilogue, .. } = renamed;
        epilogue.save.extend(whiteout.clone());
        self.store.record_epilogue(&epilogue)?;
        state.based_on_nothing(rows);
        whiteout.into_iter().for_each(|row| state.uppers.insert(Upper::written(row)));
        Ok(())
    }

    /// One end of a rename that happens along with something else: what the view has at `path`.
    pub(super) fn end_of(&self, path: &RelPath) -> Result<End> {
        self.learn_name(path)?;
        let (Some(dir), Some(name)) = (path.parent(), path.name()) else { return Err(Error::Errno(libc::EBUSY)) };
        let parent = self.state.lock().nodes.at(&dir).ok_or(Error::Errno(libc::ESTALE))?;
        let (origin, action) = (self.origin_by_name(path)?, self.action(path, FileKind::Regular));
        Ok(End { parent, name: name.to_owned(), path: path.clone(), origin, action })
    }
}

/// Upper entries as they will be.
#[derive(Default)]
struct RenamedRows {
    rows: Vec<UpperRow>,
    /// The new ids among them.
    changes: BTreeSet<ChangeId>,
    epilogue: Epilogue,
}

impl State {
    /// Upper entries as they will be once each path of `moves` is called by its new name, and what the database shall
    /// say of them. A held change has its path in its id: under a new name it is a new change (SPEC §4.7).
    pub(super) fn renamed_rows(&self, ids: &[UpperId], moves: &[Move<'_>]) -> Result<(Vec<UpperRow>, Epilogue)> {
        let mut renamed = RenamedRows::default();
        for upper in ids.iter().filter_map(|id| self.uppers.get(*id)) {
            let moved = |name: &RelPath| moves.iter().find_map(|one| name.rebase(one.from, one.to));
            let mut names: Vec<RelPath> = Vec::new();
            for name in upper.row.names.iter().map(|name| moved(name).unwrap_or_else(|| name.clone())) {
                // One that was to be made is there already.
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            self.call(upper, UpperRow { names, ..upper.row.clone() }, &mut renamed)?;
        }
        Ok((renamed.rows, renamed.epilogue))
    }

    /// The same for one entry, which is to be `row`.
    fn call(&self, upper: &Upper, mut row: UpperRow, renamed: &mut RenamedRows) -> Result<()> {
        let RenamedRows { rows, changes, epilogue } = renamed;
        let was = &upper.row.names[0];
        if let Some(held) = row.held.as_mut().filter(|_| row.names[0] != *was) {
            let full = ChangeId::full(&row.names[0], held.kind, row.base.digest(), held.new, held.looks);
            let old = std::mem::replace(&mut held.id, self.unused_id(&full, row.id, changes)?);
            changes.insert(held.id.clone());
            if old != held.id {
                epilogue.verdicts.push((old, was.clone(), Fate::Superseded { by: held.id.clone() }));
            }
        }
        if upper.saved {
            // One that is not has landed, and is only open still: the database need not know of it.
            epilogue.save.push(row.clone());
        }
        rows.push(row);
        Ok(())
    }

    pub(super) fn rows_changed(&mut self, rows: Vec<UpperRow>) {
        rows.into_iter().for_each(|row| self.uppers.set_row(row));
    }

    /// The same of changes of what stays behind. What waits for review is to be judged anew, as something new.
    fn based_on_nothing(&mut self, rows: Vec<UpperRow>) {
        self.epoch += 1;
        for row in rows {
            if let Some(node) = self.nodes.at(&row.names[0]) {
                self.nodes.set_lower(node, None);
            }
            if let Some(upper) = self.uppers.get_mut(row.id) {
                (upper.left, upper.moved_on) = (row.held.is_some(), false);
            }
            self.uppers.set_row(row);
        }
    }

    /// `now`: what is known before.
    fn anchors_relocated(&self, moving: &Moving<'_>, here: Option<&Meta>, now: HashMap<RelPath, Known>) -> Vec<Anchor> {
        let (from, to) = (&moving.from.path, &moving.to.path);
        match moving.how {
            How::RenameDir { .. } => self.anchors_moved_dir(from, to, now),
            How::ExchangeDirs => self.anchors_exchanged_dirs(from, to, now),
            How::ExchangeFileAndDir => self.anchors_exchanged(from, to, here, now),
            How::ExchangeBelow => Vec::new(),
        }
    }

    fn relocated(&mut self, moving: &Moving<'_>, had_from: bool) -> Renamed {
        let Moving { from, to, how } = moving;
        moving.dirs().iter().for_each(|(from, to)| self.dir_moved(from, to));
        if *how == How::ExchangeFileAndDir && had_from {
            self.recent_moved(&from.path, &to.path);
        }
        if matches!(how, How::RenameDir { .. }) {
            return self.renamed(from, to);
        }
        self.epoch += 1;
        self.exchanged(from, to);
        Renamed::Moved
    }

    /// What comes is a copy of the source, which is a node of its own. Names that came meanwhile are not the copy's.
    pub(super) fn renamed_as_copy(&mut self, from: &End, to: &End) -> Renamed {
        let node = self.nodes.child(from.parent, &from.name);
        if node.is_none_or(|node| self.nodes.names(node).len() < 2) {
            return self.renamed(from, to);
        }
        self.epoch += 1;
        self.nodes.unname(to.parent, &to.name);
        self.nodes.unname(from.parent, &from.name);
        Renamed::Parted(node)
    }

    /// The source's node has the target's name.
    pub(super) fn renamed(&mut self, from: &End, to: &End) -> Renamed {
        self.epoch += 1;
        let node = self.nodes.child(from.parent, &from.name);
        self.nodes.unname(to.parent, &to.name);
        let Some(node) = node else { return Renamed::Moved };
        if from.action == Action::Pass && to.action != Action::Pass && self.part_if_passed(node) {
            return Renamed::Parted(Some(node));
        }
        let other = self.nodes.end_apart(node);
        // Named anew before the old name goes, so that it is never without one.
        self.nodes.name(node, to.parent, &to.name);
        self.nodes.unname(from.parent, &from.name);
        self.nodes.promote(node, to.parent, &to.name);
        other.map_or(Renamed::Moved, Renamed::MovedApart)
    }

    /// What comes to each end is a copy. A node with other names keeps those, and who has it open goes on with them. Gives
    /// the ends that stand for other nodes than the kernel takes them for.
    pub(super) fn exchanged_as_copies<'a>(&mut self, from: &'a End, to: &'a End) -> Vec<(&'a End, Renamed)> {
        let mut parted = Vec::new();
        for (end, arrival) in [(from, to), (to, from)] {
            let Some(node) = self.nodes.child(end.parent, &end.name) else { continue };
            if self.nodes.names(node).len() > 1 {
                self.nodes.unname(end.parent, &end.name);
                parted.push((arrival, Renamed::Parted(Some(node))));
            } else if let Some(other) = self.nodes.end_apart(node) {
                parted.push((arrival, Renamed::MovedApart(other)));
            }
        }
        self.exchanged(from, to);
        parted
    }

    /// Each of the two nodes has the other's name, as far as there are two.
    pub(super) fn exchanged(&mut self, from: &End, to: &End) {
        let (a, b) = (self.nodes.child(from.parent, &from.name), self.nodes.child(to.parent, &to.name));
        for (node, end) in [(a, to), (b, from)] {
            if let Some(node) = node {
                self.nodes.name(node, end.parent, &end.name);
                self.nodes.promote(node, end.parent, &end.name);
            }
        }
        // Where one was never looked up, the other has kept the name it had.
        for (node, end) in [(a, to), (b, from)] {
            if node.is_none() {
                self.nodes.unname(end.parent, &end.name);
            }
        }
    }
}

/// Somebody has put something else there below a moment ago: the kernel looks it up anew.
fn looked_at_too_early(err: store::Error) -> Error {
    match err {
        store::Error::Conflict { .. } => Error::Errno(libc::ESTALE),
        other => other.into(),
    }
}

impl Nodes {
    /// Makes one of a node's names the first, the one its path is made of.
    fn promote(&mut self, node: NodeId, parent: NodeId, name: &OsStr) {
        if let Ok(node) = self.get_mut(node)
            && let Some(index) = node.names.position(parent, name)
        {
            node.names.swap(0, index);
        }
    }
}
