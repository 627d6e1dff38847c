//! Settling: the moment at which what happened to a path is judged, and lands or is held.
//!
//! The verdict is a function of what a path had, what it has now, and who wrote it. [`super::compare`] gathers the facts,
//! [`policy`](crate::policy) decides, and [`super::land`] or [`super::hold`] acts, on an entry that is claimed
//! ([`super::claim`]). Exactly what was judged lands: if a write comes in between, the entry stays as it is until that
//! writer is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ask::Said;
use super::claim::{Claim, Job};
use super::compare::{Comparison, Old};
use super::deny::Denial;
use super::land::is_elsewhere;
use super::side::Side;
use crate::hooks::Answer;
use crate::model::{ChangeId, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Handle, OpenFile};
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::{Error, Overlay, Result, State};
use crate::store::{self, Base, Below, FileLooks, UpperId, UpperRow, What, Writer};
use crate::sys::file::Meta;

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Lower has the same bytes already.
    Unchanged,
    Landed,
    Held(ChangeId),
    /// Another writer went on writing: the last one to close decides.
    Postponed,
}

/// Why a change is judged now, and who learns of a denial.
pub(super) struct Occasion {
    /// Reasons to hold that come from the moment, not from the content.
    pub because: Vec<Reason>,
    pub denial: Denial,
    /// The handle it was written through, if it is judged at a close or at the last release.
    pub through: Option<Arc<Handle>>,
    /// What permission programs have said of it already.
    pub said: Option<Said>,
}

impl Occasion {
    /// A request under way caused it, and can be told that it is denied.
    pub fn told() -> Self {
        Self { because: Vec::new(), denial: Denial::Fails, through: None, said: None }
    }
}

impl Overlay {
    /// Judges an upper entry and acts on the verdict. If a permission program denies it, it is held.
    pub(in crate::overlay) fn settle(&self, id: UpperId, actor: &Writer) -> Result<Settled> {
        self.settle_because(id, actor, Vec::new())
    }

    /// What was written and not closed when the daemon died is held, however small (SPEC §7). An exception is an entry
    /// that hides a file that came in this session: as the source of a rename or by a deletion that file was to go
    /// without review, and it does.
    pub(in crate::overlay) fn settle_interrupted(&self, id: UpperId) -> Result<()> {
        let is_structure = self.state.lock().uppers.get(id).is_some_and(|upper| upper.row.what.is_structure());
        if is_structure {
            return self.hold_left_structure(id);
        }
        let goes = self.hides_fresh(id)? && self.policy().hooks.is_empty() && self.is_copied_on_disk();
        let because = if goes { Vec::new() } else { vec![Reason::Interrupted] };
        self.settle_because(id, &Writer::default(), because).map(|_| ())
    }

    /// Syncs `stage/`: the file that is about to go may be the disk's only copy of what was renamed to another name.
    fn is_copied_on_disk(&self) -> bool {
        self.store
            .sync_stage()
            .inspect_err(|err| log::error!("what was renamed stays below until reviewed: {err}"))
            .is_ok()
    }

    /// True if the entry hides a file that came in this session and is unchanged; what someone else put there is theirs.
    fn hides_fresh(&self, id: UpperId) -> Result<bool> {
        let hidden = {
            let state = self.state.lock();
            let hiding = state.uppers.row(id).filter(|row| row.what == What::Whiteout);
            hiding.map(|row| (row.path().clone(), row.base.below)).filter(|(path, _)| state.past.is_fresh(path))
        };
        let Some((path, Below::Entry { stamp, .. })) = hidden else { return Ok(false) };
        Ok(self.meta_below(&path)?.is_some_and(|meta| !meta.is_dir() && meta.stamp() == stamp))
    }

    pub(in crate::overlay) fn settle_because(
        &self,
        id: UpperId,
        actor: &Writer,
        because: Vec<Reason>,
    ) -> Result<Settled> {
        self.settle_on(&Occasion { because, denial: Denial::Holds, through: None, said: None }, id, actor)
    }

    /// The same for a caller that can be told of a denial, by [`Error::Denied`].
    pub(in crate::overlay) fn settle_or_deny(&self, id: UpperId, actor: &Writer) -> Result<Settled> {
        self.settle_on(&Occasion::told(), id, actor)
    }

    /// The same for what was written through a handle.
    pub(in crate::overlay) fn settle_written(&self, id: UpperId, through: &Arc<Handle>) -> Result<Settled> {
        self.settle_through(id, through, Denial::Drops, None)
    }

    /// The same for one of several that were let through together: a denial comes too late, and holds it.
    pub(in crate::overlay) fn settle_let_through(
        &self,
        id: UpperId,
        through: &Arc<Handle>,
        said: Option<Said>,
    ) -> Result<Settled> {
        self.settle_through(id, through, Denial::Holds, said)
    }

    fn settle_through(
        &self,
        id: UpperId,
        through: &Arc<Handle>,
        denial: Denial,
        said: Option<Said>,
    ) -> Result<Settled> {
        let (because, actor) = (through.because(), through.actor());
        self.settle_on(&Occasion { because, denial, through: Some(Arc::clone(through)), said }, id, &actor)
    }

    fn settle_on(&self, occasion: &Occasion, id: UpperId, actor: &Writer) -> Result<Settled> {
        let _judging = self.judging_upper(id, actor.pid);
        let uncovered = self.follow_file(id).and_then(|()| self.uncover(id, actor));
        let covering = uncovered.inspect_err(|_| self.leave_unjudged(id))?;
        let settled = self.judge_until_settled(occasion, id, actor);
        match &settled {
            Ok(Settled::Landed | Settled::Unchanged) => self.evict(id),
            Ok(Settled::Held(_) | Settled::Postponed) | Err(_) => {}
        }
        // Only logged: this entry's own outcome stands, and a caller that got an error would take it back.
        if let Some(Err(err)) = covering.map(|covering| self.settle(covering, actor)) {
            log::error!("judge what was put out of the way: {err}");
        }
        settled
    }

    /// Judges an entry by what is there, and once more if something changed at that very moment, below or in the entry.
    fn judge_until_settled(&self, occasion: &Occasion, id: UpperId, actor: &Writer) -> Result<Settled> {
        let (mut is_crossed, mut was_forsaken) = (false, false);
        loop {
            let Some(job) = self.take_job(id, occasion, is_crossed) else { return Ok(Settled::Unchanged) };
            let settled = self.judge_claimed(&job, actor);
            let is_forsaken = matches!(settled, Ok(Settled::Postponed)) && self.is_forsaken(&job);
            if is_forsaken || !matches!(settled, Ok(_) | Err(Error::Denied)) {
                self.leave_unjudged(id);
            }
            match &settled {
                Err(err) if !is_crossed && !self.store.is_halted() && is_to_be_judged_again(&job, err) => {
                    is_crossed = true;
                    if is_elsewhere(err) {
                        self.raises.store(false, Ordering::Relaxed);
                    }
                }
                // Renamed, perhaps with a directory above it. Its writer has gone, and no other thread would judge it.
                Ok(Settled::Postponed) if self.is_renamed(&job) => was_forsaken |= is_forsaken,
                // Nor would any judge what a permission program wrote while it was being asked.
                Ok(Settled::Postponed) if is_forsaken && !was_forsaken => was_forsaken = true,
                _ => return settled,
            }
        }
    }

    fn judge_claimed(&self, job: &Job, actor: &Writer) -> Result<Settled> {
        let mut claim = Claim { overlay: self, id: job.row.id, judged: false };
        let settled = match self.judge(job, actor) {
            Err(Error::Denied) => Err(Error::Denied),
            // What was read changed or went while we read it, and whoever did that has it judged. A halted store is
            // different: the change may have landed without a record, and nothing is written any more.
            Err(_) if !self.store.is_halted() && self.is_disturbed(job) => Ok(Settled::Postponed),
            other => other,
        };
        claim.judged = !matches!(settled, Err(_) | Ok(Settled::Postponed));
        // What a writer was denied is gone from the view.
        let is_over = claim.judged || matches!(settled, Err(Error::Denied)) && job.denial == Denial::Drops;
        match &job.open {
            Some(open) if is_over => self.note_judged(open, job.version),
            Some(open) if job.rewritten => open.note_rewritten(),
            Some(_) | None => {}
        }
        settled
    }

    /// What other handles have made or emptied was judged with what was written since, as it was at `version`.
    fn note_judged(&self, open: &OpenFile, version: u64) {
        let state = self.state.lock();
        let begun: Vec<_> = state.handles_on(open.node).filter(|handle| handle.waits_for_release()).collect();
        begun.iter().for_each(|handle| handle.note_judged());
        // One of them may have begun only after that. Asked last, so that none is missed.
        if !open.is_still(version) {
            begun.iter().for_each(|handle| handle.note_began());
        }
    }

    /// Marks an entry that could not be judged and that no writer will settle: the next request that looks for such
    /// entries tries again, and a removal keeps its content.
    fn leave_unjudged(&self, id: UpperId) {
        let mut state = self.state.lock();
        let upper = state.uppers.get_mut(id).filter(|upper| !upper.is_landed() && !upper.row.what.is_structure());
        if let Some(upper) = upper {
            (upper.dirty, upper.left) = (true, true);
        }
    }

    /// True if nothing will come to judge what was written to an entry while it was being judged: neither a writer that
    /// has not closed, nor a closer that waits for its turn, nor the release of the handle that was written through.
    fn is_forsaken(&self, job: &Job) -> bool {
        let (id, state) = (job.row.id, self.state.lock());
        let is_through =
            |handle: &Arc<Handle>| job.through.as_ref().is_some_and(|through| Arc::ptr_eq(through, handle));
        let comes = |handle: &Arc<Handle>| handle.writes_to(id) && (handle.is_unjudged() || is_through(handle));
        let is_waiting = state.uppers.get(id).is_some_and(|upper| upper.dirty && upper.awaited == 0);
        is_waiting && !state.handles.values().any(comes)
    }

    pub(super) fn judge(&self, job: &Job, actor: &Writer) -> Result<Settled> {
        let path = job.row.path();
        let mut new = self.job_side(job)?;
        let present = self.present_side(path)?;
        self.note_anothers(job, &present);
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
        let exceeds_burst = !is_same && self.count_in_burst(&comparison, self.tree_of_job_or_itself(job, actor));
        if exceeds_burst && comparison.reasons.is_empty() {
            comparison.add(Reason::Burst);
        }
        match (self.ask_hooks(job, &mut comparison, actor), job.denial) {
            (Answer::Land, _) => self.look_below_again(job, &mut comparison)?,
            (Answer::Deny(why), Denial::Drops | Denial::Fails) => return self.deny(job, &mut comparison, actor, &why),
            (Answer::Hold(why) | Answer::Deny(why), _) => comparison.hold_for_hook(why),
        }
        // Identical bytes need no review, whatever the deletion that they replace was held for. What still does is their
        // looks where a rule gates the path, and a further name that comes with them.
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

    /// Asking may take as long as a person does. What someone saves below meanwhile is judged with the change, or makes
    /// it stale. The file's times need not show it, so content that was read before is read again.
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

    /// What someone else has changed no longer counts as having come in this session, and is not judged, removed or
    /// landed as such.
    fn note_anothers(&self, job: &Job, present: &Side) {
        self.became_anothers(job.row.path(), Some(present));
        if let Some((source, _)) = &job.takes_along {
            self.became_anothers(source, None);
        }
    }

    /// True if lower's identical bytes are as durable as the entry's, which may have been fsynced while lower's never
    /// were. If they cannot be synced, the entry lands as if it differed: a second fsync would falsely report success.
    fn may_stand_for(&self, present: &Side, job: &Job) -> bool {
        let (true, Some(below)) = (job.synced, &present.file) else { return true };
        let synced = below.sync_all();
        synced.inspect_err(|err| log::error!("sync {}, which lands anew: {err}", job.row.path())).is_ok()
    }

    /// True if lower lacks a further name of the entry.
    fn brings_names(&self, row: &UpperRow) -> Result<bool> {
        for name in row.further_names() {
            if !self.is_below(name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks again at the parent directory: true if it has been removed since the last look.
    fn has_lost_its_dir(&self, path: &RelPath) -> Result<bool> {
        self.look_at_dir(&path.parent().unwrap_or_default())?;
        Ok(self.is_in_held_dir(path))
    }

    /// The database no longer has the entry's row, because the entry landed or was discarded. If it was written to meanwhile
    /// it needs a new row. If there is no room for one, the next write is refused; what is done stays done.
    pub(in crate::overlay) fn row_dropped(&self, state: &mut State, id: UpperId) {
        let Some(upper) = state.uppers.get_mut(id) else { return };
        if !upper.dirty {
            upper.recorded = Recorded::Landed;
            return;
        }
        upper.recorded = Recorded::Nothing;
        let path = upper.row.path().clone();
        if let Err(err) = self.save_vitally(upper) {
            log::error!("{path} was written to while it landed or was discarded, and that is not recorded: {err}");
            if let Some(open) = state.nodes.open_of(id) {
                // Makes the next write save a row again.
                open.dirty.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Saves the entry's row, even on a full disk: what it stands for is already done.
    pub(in crate::overlay) fn save_vitally(&self, upper: &mut Upper) -> Result<()> {
        self.store.vitally_for_programs(|| self.store.save_upper(&upper.row))?;
        upper.recorded = Recorded::Row;
        Ok(())
    }
}

/// True if a landing failed on a change that someone made below at that very moment. A file to be written in place was
/// closed for the landing, so whatever was in the way, it is opened anew.
fn is_to_be_judged_again(job: &Job, err: &Error) -> bool {
    match err {
        Error::Denied => false,
        Error::Store(store::Error::Conflict { .. }) => true,
        // On EXDEV the second attempt copies.
        _ => job.row.base.is_shared() || is_elsewhere(err),
    }
}

/// A new file has taken one name of a file with several. Even with the same bytes it is a file of its own: the next write
/// to it must not show under the other names.
pub(super) fn leaves_other_names(base: &Base, present: &Side) -> bool {
    present.is_file() && present.meta.is_some_and(|meta| meta.links > 1) && !base.is_shared()
}

impl State {
    /// The entry's content, which the view showed as `shown`, is now lower's. It stays only for those who have it open.
    pub(super) fn landed(&mut self, job: &Job, shown: Option<&Meta>, meta: Option<&Meta>) {
        self.ends_as(job, meta);
        let path = job.row.path();
        if let (Some(node), Some(meta)) = (self.node_at(path), meta) {
            self.nodes.set_cached(node, &meta.stamp());
            self.nodes.note_shown(node, &meta.stamp());
        }
        // If a rename brought it here, the ctime does move.
        if let (Some(shown), Some(below), None) = (shown, meta, &job.takes_along) {
            self.nodes.keep_ctime(path, shown, below);
        }
    }

    /// The same if lower had the entry's content `before` and someone has put something else there since, which those who
    /// have the entry open have not seen.
    pub(super) fn landed_before(&mut self, job: &Job, before: Option<&Meta>, now: Option<&Meta>) {
        self.ends_as(job, now);
        let node = self.node_at(job.row.path());
        if let (Some(node), Some(before)) = (node, before) {
            self.handles_on(node).for_each(|handle| handle.landed_merged(before.stamp()));
        }
    }

    /// The entry ends, except for those who still have it open: lower has `meta` in its place.
    fn ends_as(&mut self, job: &Job, meta: Option<&Meta>) {
        self.epoch += 1;
        job.open.iter().for_each(|open| open.changed_below(self.epoch));
        let node = self.node_at(job.row.path());
        // Removing one name takes nothing from a file that has others.
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
