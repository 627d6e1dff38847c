//! Rename over something: a change of the target, judged by the source's content (SPEC §4.2).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::parting::{Departure, Parted, Parting};
use super::rename::End;
use super::renamed::Renamed;
use crate::model::{ChangeId, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Backing, OpenFile};
use crate::overlay::judge::claim::Claim;
use crate::overlay::judge::settle::Settled;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{
    self, Backup, Base, Below, Durability, Epilogue, Fate, Held, Landing, NewUpper, StagedContent, UpperId, UpperRow,
    What, Writer,
};
use crate::sys::cache;
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::is_absent;

/// What is to stand at a target.
pub(super) struct Taken {
    pub row: UpperRow,
    pub gives_way: GivesWay,
}

/// What stands at a target now.
pub(super) enum GivesWay {
    /// No entry of upper by that name.
    Nothing,
    Goes(UpperId),
    /// Goes on under its other names.
    Parts(Departure),
}

impl GivesWay {
    /// What must still stand there when it gives way.
    pub fn stands(&self) -> Option<UpperId> {
        match self {
            Self::Nothing => None,
            Self::Goes(id) | Self::Parts(Departure { id, .. }) => Some(*id),
        }
    }

    pub fn goes(&self) -> Option<UpperId> {
        match self {
            Self::Goes(id) => Some(*id),
            Self::Nothing | Self::Parts(_) => None,
        }
    }

    pub fn departure(self) -> Option<Departure> {
        match self {
            Self::Parts(departure) => Some(departure),
            Self::Nothing | Self::Goes(_) => None,
        }
    }
}

/// An entry that takes the place of what stands at a target, and all that changes with it.
struct Arrival {
    /// As it is going to be there.
    entry: Upper,
    gives_way: GivesWay,
    /// Hides what lower has at the path that it comes from.
    hiding: Option<Upper>,
    /// The change of which it was one name.
    parts: Option<Departure>,
    /// What else the database shall say then.
    epilogue: Epilogue,
    kept: Option<(StagedContent, Backup)>,
}

/// The rename of a file of lower over something, as long as it is not judged.
struct MovedOver<'a> {
    from: &'a End,
    to: &'a End,
    /// What stands at the target now, and what hides the source.
    upper: UpperId,
    whiteout: UpperId,
    /// The nodes that source and target were.
    nodes: [Option<NodeId>; 2],
}

impl Overlay {
    /// Renames a file of lower over something: the target is judged by the source's content, and the source goes.
    pub(super) fn move_over(&self, from: &End, to: &End, meta: &Meta, caller: &Caller) -> Result<()> {
        let by = self.doer(caller);
        if self.take_over(from, to, meta, &by)? {
            return Ok(());
        }
        self.set_apart(&[from])?;
        let claimed = self.claim_target(to)?;
        let (new, _) = self.copy_to_upper(&from.path)?;
        let synced = self.is_on_disk(&from.path, meta)?;
        if synced && to.upper().is_some() {
            // While nothing has changed yet: what gives way here could not be brought back.
            self.sync_copy(new.id(), &from.path)?;
        }
        let copied = self.open_copy(&new, meta.kind)?;
        let taken = self.take_target(to, new.id(), meta.kind)?;
        let replaced = taken.gives_way.goes();
        let kept = self.keep_replaced_content(replaced, &by)?;
        let hiding = self.whiteout(&from.path, meta);
        let whiteout = hiding.row.id;
        // A passing source is removed by itself, even if it is written to meanwhile.
        let goes_along = !goes_by_review(from) && from.action != Action::Pass;
        let takes_along = goes_along.then(|| (from.path.clone(), meta.stamp()));
        // If the target is lower's alone, it gives way when this is judged, and the database need not know of that
        // before; unless the going of the source is judged by itself, afterwards, or something is put back at the target
        // first (`put_back.rs`), which records what stands there without what hides the source.
        let is_put_back = || Ok::<_, Error>(self.went_from(&to.path)?.is_some());
        let saved = goes_by_review(from) || taken.gives_way.stands().is_some() || is_put_back()?;
        let recorded = if saved { Recorded::Row } else { Recorded::Nothing };
        let entry = Upper { recorded, synced, takes_along, ..Upper::written(taken.row) };
        let (hiding, gives_way, epilogue) = (Some(hiding), taken.gives_way, Epilogue::default());
        let arrival = Arrival { entry, gives_way, hiding, parts: None, epilogue, kept };
        let (nodes, ((upper, renamed), parted)) = {
            let mut state = self.state.lock();
            if state.uppers.at(&from.path).is_some() {
                return Err(Error::Errno(libc::ESTALE));
            }
            let nodes = [from, to].map(|end| state.nodes.child(end.parent, &end.name));
            let arrived =
                self.arrive(&mut state, to, arrival, |state| (new.keep(), state.renamed_to_copy((from, to), copied)))?;
            (nodes, arrived)
        };
        drop(claimed);
        self.after_arrival(to, replaced, (renamed, parted), &by)?;
        let settled = self.settle_over(&MovedOver { from, to, upper, whiteout, nodes }, saved, &by)?;
        self.let_source_go(from, whiteout, meta, (upper, settled), &by)
    }

    /// Judges what stands at the target now, whose row may be `saved`. If it cannot be judged it is held, or both names
    /// are left as they were.
    fn settle_over(&self, moved: &MovedOver<'_>, saved: bool, by: &Writer) -> Result<Settled> {
        let MovedOver { to, upper, .. } = *moved;
        // An upper entry that has given way already could not be brought back: then a denial is a hold.
        let settled = if to.upper().is_none() { self.settle_or_deny(upper, by) } else { self.settle(upper, by) };
        match settled {
            Ok(settled) => Ok(settled),
            // The source is gone already, and the journal has it: the next start finishes it.
            Err(err @ Error::Store(store::Error::Unrecorded(_))) => Err(err),
            // The target was lower's alone, and lower still has it: the rename is taken back. Not after a disk fault,
            // which may leave the rename recorded.
            Err(err) if to.upper().is_none() && !(saved && err.is_fault()) && self.is_as_moved(moved) => {
                Err(self.undo_move_over(moved, err))
            }
            // Nothing is written any more; the error to report is the one that stopped it.
            Err(err) if self.store.is_halted() => Err(err),
            // This entry has already replaced what was there, so it is held, and the source with it.
            Err(err) => self.hold_moved(upper, by, &err),
        }
    }

    /// Has the source follow a target that was judged.
    fn let_source_go(
        &self,
        from: &End,
        whiteout: UpperId,
        meta: &Meta,
        (upper, settled): (UpperId, Settled),
        by: &Writer,
    ) -> Result<()> {
        match settled {
            Settled::Landed | Settled::Unchanged | Settled::Held(_) if goes_by_review(from) => {
                self.settle_moved(whiteout, by).map(|_| ())
            }
            Settled::Landed | Settled::Unchanged if from.action != Action::Pass => self.forget_whiteout(whiteout),
            Settled::Landed | Settled::Unchanged => self.remove_passed_source(from, whiteout),
            Settled::Held(_) => self.take_source_away(from, (whiteout, meta), upper, by),
            Settled::Postponed => {
                // A writer goes on: the database must know of the content before its source goes.
                self.save_moved(upper)?;
                self.mark_dirty(upper)?;
                self.take_source_away(from, (whiteout, meta), upper, by)
            }
        }
    }

    fn save_moved(&self, id: UpperId) -> Result<()> {
        let mut state = self.state.lock();
        let unsaved = state.uppers.get_mut(id).filter(|upper| !upper.has_row());
        unsaved.map_or(Ok(()), |upper| self.save_vitally(upper))
    }

    /// Renames one name of a file that is held or being written and has other names: what arrives is a copy, judged as a
    /// change of the target. The change stays with the other names, and this one goes as if it were removed.
    pub(super) fn move_name_over(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        self.set_apart(&[from])?;
        let by = self.doer(caller);
        let (row, claimed) = self.claim_with_target(id, to)?;
        let (copy, synced) = self.copy_synced(id, &from.path)?;
        let is_name = row.names.contains(&from.path);
        let parts = if is_name { self.departure(&from.path, id, &row)? } else { None };
        if is_name && parts.is_none() {
            // The other names went meanwhile.
            return Err(Error::Errno(libc::ESTALE));
        }
        let kind = from.kind().unwrap_or(FileKind::Regular);
        let copied = self.open_copy(&copy, kind)?;
        let taken = self.take_target(to, copy.id(), kind)?;
        let replaced = taken.gives_way.goes();
        let kept = self.keep_replaced_content(replaced, &by)?;
        let hiding = self.hiding_left(from, parts.as_ref())?;
        let whiteout = hiding.as_ref().map(|hiding| hiding.row.id);
        let stands = parts.as_ref().map(|parts| parts.id);
        // Saved, because the name that it comes from may go before it is judged.
        let (entry, gives_way) = (Upper { synced, ..Upper::written(taken.row) }, taken.gives_way);
        let arrival = Arrival { entry, gives_way, hiding, parts, epilogue: Epilogue::default(), kept };
        let ((copy, renamed), parted) = {
            let mut state = self.state.lock();
            if state.uppers.at(&from.path) != stands {
                return Err(Error::Errno(libc::ESTALE));
            }
            self.arrive(&mut state, to, arrival, |state| (copy.keep(), state.renamed_to_copy((from, to), copied)))?
        };
        drop(claimed);
        self.after_arrival(to, replaced, (renamed, parted), &by)?;
        // Judged before its old name is: lower may have there what the target had.
        self.settle_moved(copy, &by)?;
        whiteout.map_or(Ok(()), |whiteout| self.settle_moved(whiteout, &by).map(drop))
    }

    /// Makes the other names of a file known to the nodes, which the kernel may not have looked up: what has it open goes
    /// on by them.
    fn learn_names_beside(&self, end: &End) -> Result<()> {
        match &end.origin {
            Origin::Upper(id, meta) if meta.links > 1 => self.learn_other_names(&end.path, *id),
            Origin::Lower(meta) => match self.changed_by_other_name(meta) {
                Some(id) => self.learn_other_names(&end.path, id),
                None => self.learn_other_name(&end.path, meta),
            },
            Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => Ok(()),
        }
    }

    fn learn_other_names(&self, path: &RelPath, id: UpperId) -> Result<()> {
        let row = self.state.lock().uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        let others = row.names.iter().filter(|name| *name != path);
        others.clone().try_for_each(|name| self.learn_name(name))?;
        match others.count() {
            // The search learns the name.
            0 => self.other_name_below(path, &row).map(drop),
            _ => Ok(()),
        }
    }

    /// Gives names that are to stand for copies nodes of their own, if their nodes have other names. On a rename the
    /// kernel gives the new name the node that it knows by the old one. It can be told otherwise only after the answer,
    /// when a program may already have written to that node. So it is made to look first: told that what it knows is
    /// stale, it asks again by itself.
    pub(super) fn set_apart(&self, ends: &[&End]) -> Result<()> {
        ends.iter().try_for_each(|end| self.learn_names_beside(end))?;
        let mut state = self.state.lock();
        let mut looks_again = false;
        for end in ends {
            looks_again |= state.nodes.set_apart(end.parent, &end.name);
        }
        if looks_again { Err(Error::LooksAgain) } else { Ok(()) }
    }

    /// True if a file's content would survive a power cut. A copy of it must survive one too: programs save by writing a
    /// temporary file, syncing it, and renaming it.
    pub(super) fn is_on_disk(&self, path: &RelPath, meta: &Meta) -> Result<bool> {
        if meta.kind != FileKind::Regular {
            return Ok(false);
        }
        let file = self.lower.open_to_read(path).doing(|| format!("open {path}"))?;
        Ok(is_on_disk(file.as_fd()))
    }

    /// Syncs a copy in upper of what was on disk and may go from where it was.
    pub(in crate::overlay) fn sync_copy(&self, copy: UpperId, of: &RelPath) -> Result<()> {
        self.store.read_upper(copy)?.sync_all().doing(|| format!("sync the copy of {of}"))
    }

    /// Copies an entry that the caller has claimed. Also returns whether the entry was synced: then the copy is.
    pub(super) fn copy_synced(&self, id: UpperId, path: &RelPath) -> Result<(NewUpper<'_>, bool)> {
        let (copy, what) = self.copy_of_upper(id)?;
        let synced = what == What::File && self.state.lock().uppers.get(id).is_some_and(|upper| upper.synced);
        if synced {
            self.sync_copy(copy.id(), path)?;
        }
        Ok((copy, synced))
    }

    /// Claims what stands at the target, so that it is not judged, reviewed or evicted.
    fn claim_target(&self, to: &End) -> Result<Option<Claim<'_>>> {
        to.upper().map(|id| Ok(self.claim(id)?.1)).transpose()
    }

    /// Claims that and an entry that is to stand there, in one order, so that two requests for the same entries never
    /// wait for each other.
    fn claim_with_target(&self, id: UpperId, to: &End) -> Result<(UpperRow, [Option<Claim<'_>>; 3])> {
        let first = if to.upper() < Some(id) { self.claim_target(to)? } else { None };
        let (row, claimed) = self.claim(id)?;
        let second = if to.upper() > Some(id) { self.claim_target(to)? } else { None };
        Ok((row, [first, Some(claimed), second]))
    }

    /// The entry that is to stand at the target, with the base of what stands there. The caller has claimed the target.
    pub(super) fn take_target(&self, to: &End, id: UpperId, kind: FileKind) -> Result<Taken> {
        let what = if kind == FileKind::Symlink { What::Symlink } else { What::File };
        let mut gives_way = GivesWay::Nothing;
        let (base, held) = match &to.origin {
            Origin::Nothing => (Base::NOTHING, None),
            Origin::Lower(meta) => (Base::of_name(meta), None),
            Origin::Hidden(old) | Origin::Upper(old, _) => {
                let row = self.state.lock().uppers.row(*old).cloned();
                let row = row.ok_or(Error::Errno(libc::ESTALE))?;
                gives_way = self.giving_way(to, *old, &row)?;
                match &gives_way {
                    GivesWay::Goes(_) => (row.base.of_one_name(), row.held),
                    // One of several names: the change stays with the others.
                    GivesWay::Parts(_) | GivesWay::Nothing => (self.base_of_name(&to.path, &row)?, None),
                }
            }
        };
        Ok(Taken { row: UpperRow { held, ..UpperRow::new(id, to.path.clone(), what, base) }, gives_way })
    }

    fn giving_way(&self, to: &End, old: UpperId, row: &UpperRow) -> Result<GivesWay> {
        if !row.names.contains(&to.path) {
            // A name in lower of a file that was changed by another name.
            return Ok(GivesWay::Nothing);
        }
        Ok(match self.departure(&to.path, old, row)? {
            // What arrives is a change of what lower has there, so that stays.
            Some(base @ Departure { parting: Parting::Moves(_), .. }) => {
                GivesWay::Parts(Departure { parting: Parting::Leaves, ..base })
            }
            Some(departure) => GivesWay::Parts(departure),
            None => GivesWay::Goes(old),
        })
    }

    /// Puts an entry at the target in the place of what gives way there, which may be kept, and has `name` change what
    /// the names stand for. The database learns all of it by one transaction: a death leaves all of it in the view, or
    /// nothing. `ESTALE`, with nothing done, if something else stands there, opened and written to since.
    fn arrive<T>(
        &self,
        state: &mut State,
        to: &End,
        arrival: Arrival,
        name: impl FnOnce(&mut State) -> T,
    ) -> Result<(T, Parted)> {
        let Arrival { entry, gives_way, hiding, parts, mut epilogue, kept } = arrival;
        if state.uppers.at(&to.path) != gives_way.stands() {
            return Err(Error::Errno(libc::ESTALE));
        }
        let (replaced, is_saved) = (gives_way.goes(), entry.has_row());
        let hiding = hiding.map(|hiding| Upper { recorded: entry.recorded, ..hiding });
        if is_saved {
            epilogue.drop.extend(replaced);
            epilogue.save.extend([Some(&entry), hiding.as_ref()].into_iter().flatten().map(|upper| upper.row.clone()));
        }
        let enter = |state: &mut State| {
            state.enter_over(entry, replaced);
            hiding.into_iter().for_each(|hiding| state.uppers.insert(hiding));
            name(state)
        };
        match is_saved {
            true => {
                let departures = parts.into_iter().chain(gives_way.departure()).collect();
                self.depart(state, departures, epilogue, kept.into_iter().collect(), enter)
            }
            false => Ok((enter(state), Parted::default())),
        }
    }

    /// To be called without a claim: the changes whose names have parted are judged, of which what was claimed may be one.
    fn after_arrival(
        &self,
        to: &End,
        replaced: Option<UpperId>,
        (renamed, parted): (Renamed, Parted),
        by: &Writer,
    ) -> Result<()> {
        self.drop_replaced(replaced);
        let parted = self.tell_parted(parted);
        self.tell_renamed(to, renamed);
        self.settle_parted(parted, by)
    }

    /// The whiteout for what lower still has at the source's path, once a change has gone on without that name.
    fn hiding_left(&self, from: &End, departure: Option<&Departure>) -> Result<Option<Upper>> {
        if departure.is_some_and(Departure::empties_name) {
            return Ok(None);
        }
        Ok(self.meta_below(&from.path)?.map(|meta| self.whiteout(&from.path, &meta)))
    }

    /// Judges what the view shows at its new path already. The rename is done, so what cannot be judged is held instead
    /// of refused.
    pub(super) fn settle_moved(&self, id: UpperId, actor: &Writer) -> Result<Settled> {
        match self.settle(id, actor) {
            // The journal has it: the next start finishes it.
            Err(err) if self.store.is_halted() => Err(err),
            Err(err) => self.hold_moved(id, actor, &err),
            settled => settled,
        }
    }

    /// Holds what cannot be judged because of `why`. If it cannot be held either, that is tried again, as after a close
    /// that could not judge.
    fn hold_moved(&self, id: UpperId, actor: &Writer, why: &Error) -> Result<Settled> {
        if why.is_fault() {
            log::warn!("judge what was renamed, which waits for review instead: {why}");
        }
        match self.settle_because(id, actor, vec![Reason::Backup]) {
            Err(err) if err.is_fault() && !self.store.is_halted() => {
                log::error!("hold what was renamed: {err}");
                Ok(Settled::Postponed)
            }
            held => held,
        }
    }

    pub(super) fn drop_replaced(&self, replaced: Option<UpperId>) {
        if let Some(old) = replaced {
            self.store.drop_upper_file(old);
        }
    }

    /// Opens a copy for the handles on its original to go on with. This comes before the view shows the copy: afterwards
    /// the rename could not be refused any more. `None` for a symlink, which no program has open.
    pub(super) fn open_copy(&self, copy: &NewUpper<'_>, kind: FileKind) -> Result<Option<Backing>> {
        if kind == FileKind::Symlink {
            return Ok(None);
        }
        let file = self.store.open_upper(copy.id())?;
        Ok(Some(Backing::Upper(copy.id(), Arc::new(file))))
    }

    /// True if what stands at the target was not judged, so that the source has not gone.
    fn is_as_moved(&self, moved: &MovedOver<'_>) -> bool {
        let state = self.state.lock();
        let waits = state.uppers.get(moved.upper).is_some_and(|upper| upper.row.held.is_none() && !upper.is_landed());
        waits && state.uppers.get(moved.whiteout).is_some()
    }

    /// Takes a rename back because of `err`, which it returns. Handles on source and target go on with those, by the
    /// names that they have again.
    fn undo_move_over(&self, moved: &MovedOver<'_>, err: Error) -> Error {
        let MovedOver { from, to, upper, whiteout, nodes } = *moved;
        let source = self.lower.open_to_read(&from.path).ok().map(Arc::new);
        let mut state = self.state.lock();
        state.uppers.remove(whiteout);
        let entry = state.uppers.remove(upper);
        let is_saved = entry.as_ref().is_some_and(Upper::has_row);
        let is_being_closed = entry.is_some_and(|entry| entry.busy || entry.awaited > 0);
        state.epoch += 1;
        state.nodes.unname(to.parent, &to.name);
        state.nodes.unname(from.parent, &from.name);
        for (node, end) in nodes.into_iter().zip([from, to]) {
            if let Some(node) = node.filter(|node| state.nodes.get(*node).is_ok()) {
                state.nodes.name(node, end.parent, &end.name);
            }
        }
        let is_of_copy = |open: &&Arc<OpenFile>| open.upper().is_none_or(|id| id == upper);
        if let Some(open) = nodes[0].and_then(|node| state.nodes.open_on(node)).filter(is_of_copy).cloned() {
            let is_written = is_being_closed || state.handles_on(open.node).any(|handle| handle.is_unjudged());
            let lower = source.filter(|_| !is_written);
            let backing = lower.map_or_else(|| Backing::Orphan(open.file()), Backing::Lower);
            open.set_backing(&mut state.nodes, backing);
        }
        drop(state);
        for End { path, .. } in [from, to] {
            if let Err(second) = self.goes_on_after_all(path) {
                log::error!("{path} was written to while a rename was about to fail, and has none of that: {second}");
            }
        }
        // The kernel will take the rename as not made, and both names for what they were.
        nodes.into_iter().flatten().for_each(|node| self.forget_attributes(node));
        for end in [from, to] {
            self.tell(|observer| observer.entry_changed(end.parent, &end.name));
        }
        let gone = Epilogue { drop: vec![upper, whiteout], ..Epilogue::default() };
        let recorded = self.store.record_epilogue(&gone);
        let recorded = recorded.inspect_err(|second| log::error!("undo the rename of {}: {second}", from.path));
        // An entry that the database still has keeps its file.
        if recorded.is_ok() || !is_saved {
            self.store.drop_upper_file(upper);
        }
        err
    }

    /// Removes the source of a target that is held. The view shows the rename, so it is done even if the source cannot
    /// go: hidden by its whiteout it is judged later, as after a close that could not judge.
    fn take_source_away(
        &self,
        from: &End,
        (whiteout, meta): (UpperId, &Meta),
        upper: UpperId,
        by: &Writer,
    ) -> Result<()> {
        match self.remove_source(from, (whiteout, meta), upper, by) {
            Err(err) if err.is_fault() => {
                log::error!("remove {}, which was renamed: {err}", from.path);
                // Otherwise the source would be back after a kill, beside the target.
                if let Err(second) = self.mark_dirty(whiteout) {
                    log::error!("record that {} is hidden: {second}", from.path);
                }
                if let Some(hiding) = self.state.lock().uppers.get_mut(whiteout) {
                    hiding.left = true;
                }
                Ok(())
            }
            removed => removed,
        }
    }

    /// Removes a source whose target is held: a passing one leaves no trace, a fresh one leaves its content as a backup,
    /// and the deletion of an older one is held like the target.
    fn remove_source(&self, from: &End, (whiteout, meta): (UpperId, &Meta), upper: UpperId, by: &Writer) -> Result<()> {
        // A judgement under way, for a close, may be taking the source along.
        let claimed = self.claim_if_there(upper);
        let synced = self.state.lock().uppers.get_mut(upper).is_some_and(|upper| {
            upper.takes_along = None;
            upper.synced
        });
        drop(claimed);
        if synced {
            // The source is the only copy on disk, and it goes.
            let copied = self.store.read_upper(upper)?;
            let copied = copied.sync_all().doing(|| format!("sync the copy of {}", from.path));
            if let Err(err) = copied.and_then(|()| Ok(self.store.sync()?)) {
                log::error!("{} stays below until its deletion is reviewed: {err}", from.path);
                return self.hold_whiteout(whiteout, Reason::Backup, by);
            }
        }
        if from.action == Action::Pass {
            return self.remove_passed_source(from, whiteout);
        }
        if !self.is_below(&from.path)? {
            // It went when the target was held.
            return self.forget_whiteout(whiteout);
        }
        if !self.loses_nothing(&from.path, None) {
            return self.hold_whiteout(whiteout, Reason::Parent, by);
        }
        let mut landing = Landing::new(&self.store, Durability::Cached);
        self.keep_source(&from.path, &mut landing, by)?;
        landing.remove(&self.lower, &from.path, meta.stamp())?;
        let anchors = self.state.lock().past.left(&from.path).into_iter().collect();
        let applied = landing.promise(Epilogue { anchors, drop: vec![whiteout], ..Epilogue::default() })?.apply()?;
        {
            let mut state = self.state.lock();
            state.left(&from.path);
            state.uppers.remove(whiteout);
        }
        applied.finish()?;
        Ok(())
    }

    /// A passing name goes at once: its content is the target's, landed or held.
    fn remove_passed_source(&self, from: &End, whiteout: UpperId) -> Result<()> {
        match self.lower.place(&from.path)?.unlink() {
            // Removed below meanwhile.
            Err(err) if is_absent(&err) => {}
            other => other.doing(|| format!("remove {}", from.path))?,
        }
        self.state.lock().epoch += 1;
        self.forget_whiteout(whiteout)
    }

    /// Drops the whiteout of something that is gone. The database has a row of a whiteout that took the place of what was
    /// written.
    pub(super) fn forget_whiteout(&self, whiteout: UpperId) -> Result<()> {
        let gone = self.state.lock().uppers.remove(whiteout);
        match gone.is_some_and(|gone| gone.has_row()) {
            true => Ok(self.store.vitally_for_programs(|| self.store.remove_upper(whiteout))?),
            false => Ok(()),
        }
    }

    /// Renames an upper entry over something: it is judged against what the target was, and what it was based on is
    /// deleted.
    pub(super) fn move_upper_over(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        let by = self.doer(caller);
        let (row, claimed) = self.claim_with_target(id, to)?;
        let taken = self.take_target(to, id, from.kind().unwrap_or(FileKind::Regular))?;
        let replaced = taken.gives_way.goes();
        let below = self.below_of(&row, &from.path)?;
        let hiding = below.map(|meta| self.whiteout(&from.path, &meta));
        let left = below.zip(hiding.as_ref().map(|hiding| hiding.row.id));
        let goes_along = below.filter(|meta| self.leaves_no_trace(from, &row, meta));
        let takes_along = goes_along.map(|meta| (from.path.clone(), meta.stamp()));
        let ended = row.held.as_ref().filter(|_| *row.path() == from.path);
        // Still claimed, until the claim is dropped.
        let coming = UpperRow { what: row.what.clone(), ..taken.row };
        let entry = Upper { busy: true, takes_along, ..Upper::written(coming) };
        let epilogue = ended.map(|held| self.ends_by_rename(from, to, held, &by)).unwrap_or_default();
        let kept = self.keep_replaced_content(replaced, &by)?;
        let arrival = Arrival { entry, gives_way: taken.gives_way, hiding, parts: None, epilogue, kept };
        let (renamed, parted) = self.bring(from, to, arrival)?;
        drop(claimed);
        self.after_arrival(to, replaced, (renamed, parted), &by)?;
        // Judged before its old name is: lower may have there what the target had.
        let settled = self.settle_moved(id, &by)?;
        if let (Some(held), Settled::Held(now)) = (ended, &settled) {
            self.note_successor(&held.id, &from.path, now);
        }
        match left {
            Some((meta, whiteout)) if goes_along.is_some() => {
                self.let_source_go(from, whiteout, &meta, (id, settled), &by)
            }
            Some((_, whiteout)) => self.settle_moved(whiteout, &by).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Ends a held change that is renamed over something else.
    fn ends_by_rename(&self, from: &End, to: &End, held: &Held, by: &Writer) -> Epilogue {
        let verdicts = vec![(held.id.clone(), from.path.clone(), Fate::Ended)];
        let events = vec![self.hold_ended(&from.path, held, &format!("[renamed to {}]", to.path), by)];
        Epilogue { verdicts, events, ..Epilogue::default() }
    }

    /// Lets an upper entry that stands at the source arrive: both names change at once.
    fn bring(&self, from: &End, to: &End, mut arrival: Arrival) -> Result<(Renamed, Parted)> {
        let mut state = self.state.lock();
        let id = arrival.entry.row.id;
        if let Some(source) = state.uppers.get(id) {
            (arrival.entry.synced, arrival.entry.because) = (source.synced, source.because.clone());
        }
        let (renamed, parted) = self.arrive(&mut state, to, arrival, |state| state.renamed(from, to))?;
        // What it was copied up from stays behind, and is another file from now on.
        if let Some(node) = state.nodes.at(&to.path) {
            state.nodes.set_lower(node, None);
        }
        Ok((renamed, parted))
    }

    /// Records the id under which a change that was renamed over something is held, now that it is judged. The rename is
    /// done whether or not that can be recorded.
    fn note_successor(&self, id: &ChangeId, path: &RelPath, now: &ChangeId) {
        let verdicts = vec![(id.clone(), path.clone(), Fate::Superseded { by: now.clone() })];
        let epilogue = Epilogue { verdicts, ..Epilogue::default() };
        let recorded = self.store.vitally_for_programs(|| self.store.record_epilogue(&epilogue));
        if let Err(err) = recorded {
            log::error!("record that {id} became {now}: {err}");
        }
    }

    /// True if what landed of an upper entry came in this session and is as it landed a moment ago: a temporary file that
    /// its writer still has open (SPEC §4.2). Otherwise its removal would lose an outsider's edit, or landed content that
    /// a held change is to replace.
    fn leaves_no_trace(&self, from: &End, row: &UpperRow, below: &Meta) -> bool {
        let is_ours = matches!(row.base.below, Below::Entry { stamp, .. } if stamp == below.stamp());
        let has_just_landed = || self.state.lock().windows.has_just_landed(&from.path, &below.stamp());
        is_ours && row.held.is_none() && from.action == Action::Auto && self.is_fresh(&from.path) && has_just_landed()
    }
}

/// If the kernel does not tell, it is taken to be: that costs a sync, the opposite mistake costs the content.
pub(in crate::overlay) fn is_on_disk(file: BorrowedFd<'_>) -> bool {
    cache::is_written_out(file).unwrap_or(true)
}

/// True if a rule holds what goes from there: its going is reviewed by itself.
fn goes_by_review(from: &End) -> bool {
    matches!(from.action, Action::Hold(_))
}

impl State {
    /// Puts an entry into the view, in the place of another if there is one.
    pub(super) fn enter_over(&mut self, entry: Upper, replaced: Option<UpperId>) {
        if let Some(old) = replaced {
            self.take_out(old);
        }
        self.epoch += 1;
        // One that comes from another path leaves the name that it has there.
        self.uppers.remove(entry.row.id);
        self.uppers.insert(entry);
    }

    /// Makes the names stand for a copy of the source and, under the same lock, switches the source's handles to the
    /// copy: a write in between would go to content without a name.
    fn renamed_to_copy(&mut self, (from, to): (&End, &End), copied: Option<Backing>) -> Renamed {
        let renamed = self.renamed_as_copy(from, to);
        if !self.nodes.open_at(&to.path).is_some_and(|open| open.backing().is_orphan()) {
            self.bind(&to.path, copied);
        }
        renamed
    }

    /// Switches the handles on a path to the copy that stands there.
    pub(super) fn bind(&mut self, path: &RelPath, copied: Option<Backing>) {
        let Some(node) = self.nodes.at(path) else { return };
        self.nodes.set_lower(node, None);
        if let (Some(open), Some(copied)) = (self.nodes.open_on(node).cloned(), copied) {
            open.set_backing(&mut self.nodes, copied);
        }
    }
}
