//! Settling: the moment at which what happened to a path is judged, and lands or is held.
//!
//! The verdict is a function of what a path had, what it has now, and who wrote it. [`super::compare`] gathers the facts, [`policy`](crate::policy) rules, [`super::land`] and [`super::hold`] act. No lock is held while contents are
//! read and compared: an entry is claimed instead. What was judged is what lands: when a write came in between, the entry
//! stays as it is until that writer is done.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::compare::{Comparison, Old};
use super::deny::Denial;
use super::error::Context;
use super::handles::{Handle, OpenFile};
use super::land::is_elsewhere;
use super::side::Side;
use super::uppers::{Recorded, Upper};
use super::{Error, Overlay, Result, State};
use crate::hooks::Answer;
use crate::model::{BackupKind, ChangeId, Reason, RelPath, Stamp, Timestamp};
use crate::protocol::EventName;
use crate::store::{
    self, Base, Below, Durability, Effect, Epilogue, EventDraft, Fate, FileLooks, Kept, Landing, PathEffect, UpperId,
    UpperRow, What, Writer,
};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::Place;
use crate::sys::xattr;

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Lower has the same bytes already.
    Unchanged,
    Landed,
    Held(ChangeId),
    /// Somebody else went on writing: the last one to close decides.
    Postponed,
}

/// An entry taken for judging. Nobody else touches it until the job is given back.
pub(super) struct Job {
    pub row: UpperRow,
    pub open: Option<Arc<OpenFile>>,
    pub version: u64,
    pub synced: bool,
    pub moved_on: bool,
    pub takes_along: Option<(RelPath, Stamp)>,
    /// What it takes along is itself what lands: no upper entry has its content.
    pub takes_place: bool,
    /// Reasons that the moment brings, not the content.
    pub because: Vec<Reason>,
    /// Whether it has been judged a moment ago, and did not land for what somebody did below at that very moment.
    pub is_crossed: bool,
    pub denial: Denial,
    /// What wrote it, where that is judged at a close or at the last release.
    pub through: Option<Arc<Handle>>,
}

impl Job {
    /// What would be judged if a row came to be.
    pub fn to_come(row: UpperRow, takes_along: Option<(RelPath, Stamp)>) -> Self {
        let (synced, moved_on, is_crossed, because) = (false, false, false, Vec::new());
        let (open, version, takes_place, denial, through) = (None, 0, false, Denial::Drops, None);
        Self { row, open, version, synced, moved_on, takes_along, takes_place, because, is_crossed, denial, through }
    }
}

/// An entry that is being judged. Given back however the judging ends: others wait for it.
pub(super) struct Claim<'a> {
    pub overlay: &'a Overlay,
    pub id: UpperId,
    pub judged: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.overlay.state.lock();
        if let Some(upper) = state.uppers.get_mut(self.id) {
            upper.busy = false;
            // An error judged nothing: it is still what it was.
            upper.dirty |= !self.judged;
        }
        self.overlay.changed.notify_all();
    }
}

impl Overlay {
    /// Judges an upper entry and acts on the verdict. What a permission program denies is held.
    pub(super) fn settle(&self, id: UpperId, actor: &Writer) -> Result<Settled> {
        self.settle_because(id, actor, Vec::new())
    }

    /// What was written and not closed when the daemon died is held, however small (SPEC §7). What hides a file that came in
    /// this session was to have it removed with nobody asked, as the source of a rename or by a deletion: so it goes.
    pub(super) fn settle_interrupted(&self, id: UpperId) -> Result<()> {
        let is_structure = self.state.lock().uppers.get(id).is_some_and(|upper| upper.row.what.is_structure());
        if is_structure {
            return self.hold_left_structure(id);
        }
        let goes = self.hides_fresh(id)? && self.policy().hooks.is_empty() && self.is_copied_on_disk();
        let because = if goes { Vec::new() } else { vec![Reason::Interrupted] };
        self.settle_because(id, &Writer::default(), because).map(|_| ())
    }

    /// What goes may be all that the disk has of what was renamed to another name.
    fn is_copied_on_disk(&self) -> bool {
        self.store
            .sync_stage()
            .inspect_err(|err| log::error!("what was renamed stays below until reviewed: {err}"))
            .is_ok()
    }

    /// Of a file that is as it was: what somebody has put there since is his.
    fn hides_fresh(&self, id: UpperId) -> Result<bool> {
        let hidden = {
            let state = self.state.lock();
            let hiding = state.uppers.get(id).map(|upper| &upper.row).filter(|row| row.what == What::Whiteout);
            hiding.map(|row| (row.path().clone(), row.base.below)).filter(|(path, _)| state.past.is_fresh(path))
        };
        let Some((path, Below::Entry { stamp, .. })) = hidden else { return Ok(false) };
        let now = self.lower.stat(&path).doing(|| format!("stat {path}"))?;
        Ok(now.is_some_and(|meta| !meta.is_dir() && meta.stamp() == stamp))
    }

    pub(super) fn settle_because(&self, id: UpperId, actor: &Writer, because: Vec<Reason>) -> Result<Settled> {
        self.settle_as(id, actor, because, Denial::Holds, None)
    }

    /// The same for who can be told that it was denied: by [`Error::Denied`].
    pub(super) fn settle_or_deny(&self, id: UpperId, actor: &Writer, because: Vec<Reason>) -> Result<Settled> {
        self.settle_as(id, actor, because, Denial::Drops, None)
    }

    /// The same of what was written through a handle.
    pub(super) fn settle_written(&self, id: UpperId, through: &Arc<Handle>) -> Result<Settled> {
        self.settle_as(id, &through.actor(), through.because(), Denial::Drops, Some(through))
    }

    pub(super) fn settle_as(
        &self,
        id: UpperId,
        actor: &Writer,
        because: Vec<Reason>,
        denial: Denial,
        through: Option<&Arc<Handle>>,
    ) -> Result<Settled> {
        let _judging = self.judging_upper(id, actor.pid);
        let uncovered = self.follow_file(id).and_then(|()| self.uncover(id, actor));
        let covering = uncovered.inspect_err(|_| self.leave_unjudged(id))?;
        let mut is_crossed = false;
        let mut was_forsaken = false;
        let settled = loop {
            let Some(mut job) = self.take_job(id, denial) else { return Ok(Settled::Unchanged) };
            job.because.extend(because.iter().copied());
            job.through = through.cloned();
            job.is_crossed = is_crossed;
            let mut claim = Claim { overlay: self, id, judged: false };
            let settled = match self.judge(&job, actor) {
                Err(Error::Denied) => Err(Error::Denied),
                // What was read had changed or gone under our hands: who did that has it judged. Not where it is done, and
                // nothing is written any more for want of its record.
                Err(_) if !self.store.is_halted() && self.is_disturbed(&job) => Ok(Settled::Postponed),
                other => other,
            };
            claim.judged = !matches!(settled, Err(_) | Ok(Settled::Postponed));
            drop(claim);
            let is_forsaken = matches!(settled, Ok(Settled::Postponed)) && self.is_forsaken(id, through);
            if is_forsaken || !matches!(settled, Ok(_) | Err(Error::Denied)) {
                self.leave_unjudged(id);
            }
            let may_try_again = !is_crossed && !self.store.is_halted();
            if may_try_again && settled.as_ref().is_err_and(|err| is_to_be_judged_again(&job, err)) {
                // By what is there now.
                is_crossed = true;
                if settled.as_ref().is_err_and(is_elsewhere) {
                    self.raises.store(false, Ordering::Relaxed);
                }
                continue;
            }
            // Renamed meanwhile, perhaps with a directory above: its writer has gone, and nobody else would judge it. Nor what a
            // permission program wrote while it was asked.
            let may_go_on = self.is_renamed(&job) || is_forsaken && !was_forsaken;
            if !matches!(settled, Ok(Settled::Postponed)) || !may_go_on {
                break settled;
            }
            was_forsaken |= is_forsaken;
        };
        match &settled {
            Ok(Settled::Landed | Settled::Unchanged) => self.evict(id),
            Ok(Settled::Held(_) | Settled::Postponed) | Err(_) => {}
        }
        // What this one came to is done: who hears of an error would take it back.
        if let Some(Err(err)) = covering.map(|covering| self.settle(covering, actor)) {
            log::error!("judge what was put out of the way: {err}");
        }
        settled
    }

    /// It could not be judged, and nobody will come for it: whoever asks next has it tried again, and a removal keeps it.
    fn leave_unjudged(&self, id: UpperId) {
        let mut state = self.state.lock();
        let upper = state.uppers.get_mut(id).filter(|upper| !upper.is_landed() && !upper.row.what.is_structure());
        if let Some(upper) = upper {
            (upper.dirty, upper.left) = (true, true);
        }
    }

    /// Whether nobody comes to judge what was written to an entry while that was judged: neither who has written and not
    /// closed, nor who has closed and waits, nor the release of the handle `through` which it was written.
    fn is_forsaken(&self, id: UpperId, through: Option<&Arc<Handle>>) -> bool {
        let state = self.state.lock();
        let is_through = |handle: &Arc<Handle>| through.is_some_and(|through| Arc::ptr_eq(through, handle));
        let comes = |handle: &Arc<Handle>| handle.writes_to(id) && (handle.is_unjudged() || is_through(handle));
        let is_waiting = state.uppers.get(id).is_some_and(|upper| upper.dirty && upper.awaited == 0);
        is_waiting && !state.handles.values().any(comes)
    }

    fn take_job(&self, id: UpperId, denial: Denial) -> Option<Job> {
        let mut state = self.state.lock();
        while state.uppers.get(id)?.busy {
            state.uppers.get_mut(id)?.awaited += 1;
            self.changed.wait(&mut state);
            let upper = state.uppers.get_mut(id)?;
            // It may have gone meanwhile and have come again, with nobody counted.
            upper.awaited = upper.awaited.saturating_sub(1);
        }
        if state.uppers.get(id)?.row.what.is_structure() {
            return None;
        }
        let path = state.uppers.get(id)?.row.path().clone();
        let open = state.open_of(id, &path).cloned();
        let upper = state.uppers.get_mut(id)?;
        upper.busy = true;
        upper.dirty = false;
        upper.left = false;
        if let Some(open) = &open {
            open.begin_judging();
        }
        Some(Job {
            row: upper.row.clone(),
            version: open.as_ref().map_or(0, |open| open.version()),
            open,
            synced: upper.synced,
            moved_on: upper.moved_on,
            takes_along: upper.takes_along.clone(),
            takes_place: false,
            because: upper.because.clone(),
            is_crossed: false,
            denial,
            through: None,
        })
    }

    /// An entry that nobody is judging, kept from being judged until the claim is dropped; `ESTALE` when it is gone.
    pub(super) fn claim(&self, id: UpperId) -> Result<(UpperRow, Claim<'_>)> {
        let mut state = self.state.lock();
        while state.uppers.get(id).is_some_and(|upper| upper.busy) {
            self.changed.wait(&mut state);
        }
        let upper = state.uppers.get_mut(id).ok_or(Error::Errno(libc::ESTALE))?;
        upper.busy = true;
        Ok((upper.row.clone(), Claim { overlay: self, id, judged: true }))
    }

    pub(super) fn is_disturbed(&self, job: &Job) -> bool {
        !self.is_untouched(&self.state.lock(), job)
    }

    fn is_renamed(&self, job: &Job) -> bool {
        self.state.lock().uppers.get(job.row.id).is_some_and(|upper| upper.row.names != job.row.names)
    }

    pub(super) fn judge(&self, job: &Job, actor: &Writer) -> Result<Settled> {
        let path = job.row.path();
        self.note_anothers(job);
        let mut new = self.job_side(job)?;
        let present = self.present_side(path)?;
        if new.exists() && !present.exists() {
            self.look_at_dir(&path.parent().unwrap_or_default())?;
        }
        self.take_looks_below(&job.row, &mut new, &present)?;
        let is_same = new.same_as(&present).doing(|| format!("compare {path}"))? && self.may_stand_for(&present, job);
        let is_unchanged = is_same && !leaves_other_names(&job.row.base, &present) && !self.brings_names(&job.row)?;
        let brings_looks = is_same && self.brings_looks(&job.row, &new, &present)?;
        if is_unchanged && !brings_looks {
            return self.end_unchanged(job, &new, &present, actor);
        }
        let (old, is_lost) = match self.old_side(job, &present)? {
            Old::Known(side) => (*side, false),
            Old::Lost => (self.present_side(path)?, true),
        };
        let mut comparison = self.compare(job, actor, old, std::mem::take(&mut new), present)?;
        let waits = brings_looks && comparison.is_gated() || comparison.names_wait;
        if is_unchanged && !waits {
            return self.end_unchanged(job, &comparison.new, &comparison.present, actor);
        }
        if is_lost || self.is_stale(job, &comparison, actor)? {
            comparison.add(Reason::Stale);
        }
        let exceeds_burst = !is_same && self.count_in_burst(&comparison, actor);
        if exceeds_burst && comparison.reasons.is_empty() {
            comparison.add(Reason::Burst);
        }
        match (self.ask_hooks(job, &mut comparison, actor), job.denial) {
            (Answer::Land, _) => self.look_below_again(job, &mut comparison)?,
            (Answer::Deny(why), Denial::Drops) => return self.deny(job, &mut comparison, actor, &why),
            (Answer::Hold(why) | Answer::Deny(why), _) => comparison.hold_for_hook(why),
        }
        // With the same bytes there is nothing to review, whatever the deletion waited for that it takes the place of, but
        // how it looks where a rule has the path reviewed, and a name that comes with it.
        if comparison.reasons.is_empty() || is_same && !waits {
            match self.land(job, &mut comparison, actor) {
                Err(err) if !job.is_crossed && is_to_be_judged_again(job, &err) => return Err(err),
                Err(Error::Store(store::Error::Conflict { .. })) => comparison.add(Reason::Stale),
                Err(_) if !comparison.reasons.contains(&Reason::Parent) && self.has_lost_its_dir(path)? => {
                    comparison.add(Reason::Parent);
                }
                other => {
                    self.spend(comparison);
                    return other;
                }
            }
        }
        if is_same && !waits {
            return self.end_unchanged(job, &comparison.new, &comparison.present, actor);
        }
        self.hold(job, &mut comparison, actor)
    }

    /// To ask may take as long as a person does: what somebody has saved below meanwhile is judged with the change, or makes
    /// it stale. His times need not tell, so where content was read it is read again.
    fn look_below_again(&self, job: &Job, comparison: &mut Comparison) -> Result<()> {
        let Comparison { path, present: then, .. } = &*comparison;
        if self.policy().hooks.is_empty() || then.is_dir() {
            return Ok(());
        }
        let now = self.present_side(path)?;
        let stamp = |side: &Side| side.meta.map(|meta| meta.stamp());
        match (stamp(&now), &now.bytes) == (stamp(then), &then.bytes) {
            true => Ok(()),
            false if job.is_crossed => {
                comparison.add(Reason::Stale);
                Ok(())
            }
            false => Err(Error::Store(store::Error::Conflict { path: path.to_string() })),
        }
    }

    /// Nothing that somebody else has changed is judged as what came in this session, nor goes or lands as that.
    fn note_anothers(&self, job: &Job) {
        let source = job.takes_along.as_ref().map(|(source, _)| source);
        for path in [job.row.path()].into_iter().chain(source) {
            self.became_anothers(path);
        }
    }

    /// Whether the same bytes below are as durable as what is judged: that was perhaps synced, and they never. Where they
    /// cannot be synced it lands as if they were others, for the next try would be told that all is well.
    fn may_stand_for(&self, present: &Side, job: &Job) -> bool {
        let (true, Some(below)) = (job.synced, &present.file) else { return true };
        let synced = below.sync_all();
        synced.inspect_err(|err| log::error!("sync {}, which lands anew: {err}", job.row.path())).is_ok()
    }

    /// Whether lower lacks a further name of what is judged.
    fn brings_names(&self, row: &UpperRow) -> Result<bool> {
        for name in row.further_names() {
            if !self.lower.exists(name).doing(|| format!("stat {name}"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Somebody has removed the directory since the look at it.
    fn has_lost_its_dir(&self, path: &RelPath) -> Result<bool> {
        self.look_at_dir(&path.parent().unwrap_or_default())?;
        Ok(self.is_in_held_dir(path))
    }

    /// Lower has these bytes already: nothing to write, nothing to keep, but the times a program saw stay (SPEC §4.10), and
    /// what was renamed here brings its attributes.
    fn end_unchanged(&self, job: &Job, new: &Side, present: &Side, actor: &Writer) -> Result<Settled> {
        let path = job.row.path();
        if !self.brings_older(job) {
            self.give_looks(&job.row, new, present)?;
        }
        if let (true, Some(below)) = (job.synced, &present.file) {
            self.sync_name(path, below)?;
        }
        let mut epilogue = Epilogue { drop: vec![job.row.id], ..Epilogue::default() };
        if let Some(held) = &job.row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Ended));
            epilogue.events.push(self.hold_ended(path, held, "[equal to the project]", actor));
        }
        // Asked and opened before the source of a rename goes: after that nothing but the disk may be in the way.
        if job.synced {
            self.store.open_log()?;
        }
        self.remove_along(job, new, present, actor)?;
        // An older source has left its times there.
        let now = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let is_same = self.has_still(path, new, present);
        if !is_same {
            self.take_back_times(path, new.meta, now);
        }
        let mut state = self.state.lock();
        // Whoever writes meanwhile is judged against what lower has by our own doing.
        if let (Some(before), Some(after), true) = (present.meta, &now, is_same) {
            state.touched(path, &before.stamp(), after);
        }
        if !self.is_untouched(&state, job) {
            return Ok(Settled::Postponed);
        }
        self.store.record_epilogue(&epilogue)?;
        match is_same {
            true => state.landed(job, new.meta.as_ref(), now.as_ref()),
            false => state.landed_before(job, present.meta.as_ref(), now.as_ref()),
        }
        self.row_dropped(&mut state, job.row.id);
        drop(state);
        if !is_same {
            self.shows_anew(path);
        } else if new.meta.zip(now).is_some_and(|(shown, now)| looks_and_time(&shown) != looks_and_time(&now)) {
            // What could not be given.
            self.tell_landed(path);
        }
        if job.synced {
            // The row was made durable with the content. It must be gone before the content is.
            self.store.sync()?;
        }
        Ok(Settled::Unchanged)
    }

    /// Whether lower has the same bytes still, in the same file. What cannot be read now is looked at again by who asks next.
    fn has_still(&self, path: &RelPath, new: &Side, present: &Side) -> bool {
        let is_it = self.present_side(path).and_then(|now| {
            let same = is_same_inode(present, &now) && new.same_as(&now).doing(|| format!("compare {path}"))?;
            Ok(same)
        });
        is_it.inspect_err(|err| log::warn!("look again at what has not changed: {err}")).unwrap_or(false)
    }

    /// Somebody has saved what lower has at a path at the moment at which it was given the times of what was there before:
    /// they would have his content taken for that.
    fn take_back_times(&self, path: &RelPath, given: Option<Meta>, now: Option<Meta>) {
        let Some(now) = now.filter(|now| given.is_some_and(|given| given.mtime == now.mtime)) else { return };
        let [access, modification] = [now.atime, file::now()].map(file::to_timespec);
        let taken_back = self.lower.place(path).and_then(|place| place.set_times(access, modification));
        if let Err(err) = taken_back {
            log::error!("take back the times of {path}, which somebody has saved: {err}");
        }
    }

    /// Lower has something at a path that the kernel has not been told of.
    fn shows_anew(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.forget_attributes(node);
            self.tell(|observer| observer.content_changed(node));
        }
        self.doubt(path);
    }

    /// The database has no row of an entry any more, for that has landed or was discarded; one that was written meanwhile needs
    /// a new one. Without room for it the next write is refused, and what is done is done all the same.
    pub(super) fn row_dropped(&self, state: &mut State, id: UpperId) {
        let Some(upper) = state.uppers.get_mut(id) else { return };
        if !upper.dirty {
            upper.recorded = Recorded::Landed;
            return;
        }
        upper.recorded = Recorded::Nothing;
        let path = upper.row.path().clone();
        if let Err(err) = self.save_vitally(upper) {
            log::error!("{path} was written to while it landed or was discarded, and that is not recorded: {err}");
            if let Some(open) = state.open_of(id, &path) {
                // The next write must note itself again.
                open.dirty.store(false, Ordering::SeqCst);
            }
        }
    }

    /// The database knows of an entry from here on, on a full disk, too: what it stands for is done.
    pub(super) fn save_vitally(&self, upper: &mut Upper) -> Result<()> {
        self.store.vitally_for_programs(|| self.store.save_upper(&upper.row))?;
        upper.recorded = Recorded::Row;
        Ok(())
    }

    /// Owner, attributes, mode and times of what has the same bytes, if it is still there as it was `present`.
    fn give_looks(&self, row: &UpperRow, new: &Side, present: &Side) -> Result<()> {
        let path = row.path();
        let (Some(FileKind::Regular | FileKind::Symlink), Some(ours), Some(theirs)) =
            (new.kind, new.meta, present.meta)
        else {
            return Ok(());
        };
        let now = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        if now.is_none_or(|now| now.stamp() != theirs.stamp()) {
            return Ok(());
        }
        self.part_nameless_from(&theirs)?;
        let dressed = dress(&self.lower.place(path)?, row, (new, &ours), (present, &theirs));
        match dressed {
            // Those of another's file are not an ordinary user's to give, and its bytes are what he wanted them to be.
            Err(err) if err.kind() == ErrorKind::PermissionDenied && !file::is_own(&theirs) => Ok(()),
            dressed => dressed.doing(|| format!("change attributes of {path}")),
        }
    }

    /// Whether a file from before the session goes by being renamed here.
    fn brings_older(&self, job: &Job) -> bool {
        job.takes_along.as_ref().is_some_and(|(source, _)| !self.state.lock().past.is_fresh(source))
    }

    /// The source of a rename goes with what it was renamed over, which has the same content. One that is older than the
    /// session leaves its attributes there; its going is told, and can be undone.
    fn remove_along(&self, job: &Job, new: &Side, present: &Side, actor: &Writer) -> Result<()> {
        let Some((source, stamp)) = &job.takes_along else { return Ok(()) };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.remove(&self.lower, source, *stamp)?;
        let path = job.row.path();
        let there = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let anchors = |state: &State| {
            let carried = there.map(|meta| state.past.carried(source, path, &meta)).unwrap_or_default();
            carried.into_iter().chain(state.past.taken_over(source, path)).collect()
        };
        let is_older = self.brings_older(job);
        if is_older {
            self.go_ends(actor.pid);
        }
        let gone =
            is_older.then(|| self.stage_twin((source, path), (new, present), &mut landing, actor)).transpose()?;
        let epilogue = {
            let state = self.state.lock();
            let drop = state.uppers.at(source).into_iter().collect();
            Epilogue { anchors: anchors(&state), drop, events: gone.into_iter().collect(), ..Epilogue::default() }
        };
        let promised = landing.promise(epilogue)?;
        if is_older {
            // Nothing but the disk is in the way any more.
            self.give_looks(&job.row, new, present)?;
        }
        let mut applied = promised.apply()?;
        let mut state = self.state.lock();
        let taken_over = state.past.taken_over(source, path);
        let mut anchors = match there {
            Some(meta) => state.carried(source, path, &meta),
            None => state.left(source).into_iter().collect(),
        };
        if taken_over.is_some() {
            state.windows.older_came(path);
        }
        state.know(taken_over.iter().cloned().collect());
        anchors.extend(taken_over);
        applied.epilogue().anchors = anchors;
        if let Some(upper) = state.uppers.get_mut(job.row.id) {
            // Should somebody have written meanwhile, the next judging finds it gone.
            upper.takes_along = None;
        }
        drop(state);
        applied.finish()?;
        Ok(())
    }

    /// Keeps what goes; gives the event that tells it, and what its target has of it then.
    fn stage_twin(
        &self,
        (source, path): (&RelPath, &RelPath),
        (new, present): (&Side, &Side),
        landing: &mut Landing<'_>,
        actor: &Writer,
    ) -> Result<EventDraft> {
        let content = new.stage(&self.store)?;
        let kept = content.as_ref().map(|content| Kept { digest: content.digest, symlink: new.is_symlink() });
        if let Some(content) = content {
            let backup = self.backup_there(source, new, &content, BackupKind::Deleted, actor);
            landing.keep(content, backup);
        }
        let effect = |path: &RelPath, before: &Side, after: Option<&Side>| {
            let (before, after) = (before.version(kept), after.and_then(|side| side.version(kept)));
            PathEffect::new(path, Effect::Content { before, after, shared: false })
        };
        let event = self.event(EventName::WriteLanded, source);
        let event = event.with(|event| event.message = Some("[deleted]".to_owned())).by(actor);
        Ok(event.doing([effect(path, present, Some(new)), effect(source, new, None)]))
    }

    /// Nobody wrote to, renamed or removed the entry since it was taken.
    pub(super) fn is_untouched(&self, state: &State, job: &Job) -> bool {
        if job.takes_place {
            return state.are_below(job);
        }
        let same_names = state.uppers.get(job.row.id).is_some_and(|upper| upper.row.names == job.row.names);
        same_names && state.is_still(job.row.id, job.row.path(), job.open.as_ref(), job.version)
    }
}

/// The looks of `new` for the same bytes at `place`, but for those that are lower's.
fn dress(
    place: &Place,
    row: &UpperRow,
    (new, ours): (&Side, &Meta),
    (present, theirs): (&Side, &Meta),
) -> io::Result<()> {
    // A copy has not the owner of what it was copied from where this process cannot give it that.
    let has_own = |has: fn(&FileLooks) -> bool| row.looks.as_ref().is_none_or(has);
    if has_own(FileLooks::has_own_owner) && (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
        place.set_owner(Some(ours.uid), Some(ours.gid))?;
    }
    let files = new.file.as_ref().zip(present.file.as_ref()).filter(|_| has_own(FileLooks::has_own_xattrs));
    let attributes = files.map_or(Ok(false), |(ours, theirs)| xattr::copy(ours.as_fd(), theirs.as_fd(), &[]))?;
    // Last: the bits of the group are a list's mask, and without that list rights of the group.
    if attributes || ours.mode != theirs.mode {
        place.set_mode(ours.mode)?;
    }
    place.set_times(file::to_timespec(ours.atime), file::to_timespec(ours.mtime))
}

fn looks_and_time(meta: &Meta) -> (u32, u32, u32, Timestamp) {
    (meta.mode, meta.uid, meta.gid, meta.mtime)
}

/// Whether somebody was at work below at the very moment of a landing. What is written in place was closed for that: whatever
/// was in the way, it is opened anew.
fn is_to_be_judged_again(job: &Job, err: &Error) -> bool {
    match err {
        Error::Denied => false,
        Error::Store(store::Error::Conflict { .. }) => true,
        // Then it is copied.
        _ => job.row.base.is_shared() || is_elsewhere(err),
    }
}

fn is_same_inode(one: &Side, other: &Side) -> bool {
    one.meta.map(|meta| meta.key()) == other.meta.map(|meta| meta.key())
}

/// A new file has taken one name of a file with several. With the same bytes it still is a file of its own: what is
/// written to it next must not show under the others.
pub(super) fn leaves_other_names(base: &Base, present: &Side) -> bool {
    present.is_file() && present.meta.is_some_and(|meta| meta.links > 1) && !base.is_shared()
}

impl State {
    /// Nobody wrote to an entry since it was taken: neither through what was open then, nor through what was opened
    /// since.
    pub(super) fn is_still(&self, id: UpperId, path: &RelPath, open: Option<&Arc<OpenFile>>, version: u64) -> bool {
        let now = self.nodes.open_at(path);
        let now = now.filter(|now| now.upper() == Some(id) && open.is_none_or(|then| !Arc::ptr_eq(then, now)));
        open.is_none_or(|open| open.is_still(version)) && now.is_none_or(|now| now.is_still(0))
    }

    /// The entry's content, which the view had as `shown`, is lower's now. It stays only for who still has it open.
    pub(super) fn landed(&mut self, job: &Job, shown: Option<&Meta>, meta: Option<&Meta>) {
        self.ends_as(job, meta);
        let path = job.row.path();
        if let (Some(node), Some(meta)) = (self.nodes.at(path), meta) {
            self.nodes.set_cached(node, &meta.stamp());
            self.nodes.note_shown(node, &meta.stamp());
        }
        // A rename, which brought it here, does move the ctime.
        if let (Some(shown), Some(below), None) = (shown, meta, &job.takes_along) {
            self.nodes.keep_ctime(path, shown, below);
        }
    }

    /// The same where lower had the entry's content `before`, and somebody has put something else there since: who has the
    /// entry open has not seen it.
    fn landed_before(&mut self, job: &Job, before: Option<&Meta>, now: Option<&Meta>) {
        self.ends_as(job, now);
        let node = self.nodes.at(job.row.path());
        if let (Some(node), Some(before)) = (node, before) {
            self.handles_on(node).for_each(|handle| handle.landed_merged(before.stamp()));
        }
    }

    /// The entry is no more, but for who still has it open: lower has `meta` in its place.
    fn ends_as(&mut self, job: &Job, meta: Option<&Meta>) {
        self.epoch += 1;
        job.open.iter().for_each(|open| open.changed_below(self.epoch));
        let node = self.nodes.at(job.row.path());
        // A name that goes takes nothing from a file that has others.
        if let Some(node) = node.filter(|node| meta.is_some() || self.nodes.names(*node).len() == 1) {
            self.nodes.set_lower(node, meta.map(Meta::key));
        }
        self.uppers.held_no_more(job.row.id);
        let Some(upper) = self.uppers.get_mut(job.row.id) else { return };
        upper.moved_on = false;
        upper.because.clear();
        upper.takes_along = None;
        upper.row.looks = meta.map(FileLooks::of);
        self.uppers.set_landed(job.row.id, Base::of(Below::of(meta)));
    }
}
