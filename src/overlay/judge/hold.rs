//! Holding: a change gets its id and its reasons and waits for review; lower stays as it was.

use std::sync::atomic::Ordering;

use super::claim::Job;
use super::compare::{self, Comparison, Old};
use super::deny::Denial;
use super::land::is_unkept;
use super::settle::Settled;
use super::side::Side;
use crate::diff::{self, Measure};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, ID_DIGITS, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::who::goes::{Doing, Part};
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::EventName;
use crate::store::{
    self, Backup, Base, Below, Durability, Epilogue, Fate, Held, Landing, Promised, StagedContent, UpperId, UpperRow,
    What, Writer,
};
use crate::sys::file::Standing;

impl Overlay {
    pub(super) fn hold(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<Settled> {
        let is_deletion = job.row.what == What::Whiteout && job.denial == Denial::Fails;
        if is_deletion && job.row.held.is_none() {
            // The deletion has its entry already, and nothing has happened yet that could not be taken back.
            self.check_may_hold()?;
        }
        self.put_back(job, comparison)?;
        let (row, part) = self.held_row(job, comparison, actor)?;
        let id = held_id(&row)?;
        let operation = row.held.as_ref().and_then(|held| held.operation);
        let before = job.row.held.as_ref().map(|held| held.id.clone());
        let is_new = before.as_ref() != Some(&id);
        let mut epilogue = Epilogue { save: vec![row.clone()], ..Epilogue::default() };
        if is_new {
            epilogue.events.extend(self.passed_over(job, comparison)?);
            epilogue.events.push(self.held_event(&row, comparison, actor)?);
            let superseded = |old| (old, comparison.path.clone(), Fate::Superseded { by: id.clone() });
            epilogue.verdicts.extend(before.map(superseded));
        }
        let removal = self.promise_removal(job, &epilogue, actor)?;
        let tree = self.tree_of_job(job, actor);
        let mut state = self.state.lock();
        if state.uppers.get(job.row.id).is_none_or(|upper| upper.row.names != job.row.names) {
            return Ok(Settled::Postponed);
        }
        let removed = match removal {
            Some(promised) => Some(promised.apply()?),
            None => {
                epilogue.save.extend(state.hides_source(job));
                // Even a write that has filled the disk is held: otherwise it could not be discarded.
                self.store.vitally_for_programs(|| self.store.record_epilogue(&epilogue))?;
                None
            }
        };
        state.waits(job, row, &epilogue.save);
        state.saw_held(job, comparison.new.meta.as_ref(), tree);
        if removed.is_some() {
            state.source_went(job);
        }
        drop(state);
        removed.map(|applied| applied.finish()).transpose()?;
        // A change that was held as part of another operation stays part of that one.
        if operation == part.operation {
            self.recorded(&part, None);
        }
        self.counters.held.fetch_add(u64::from(is_new), Ordering::Relaxed);
        Ok(Settled::Held(id))
    }

    /// A rename's source that came in this session goes with the holding of the target, both or neither: a temporary file
    /// without a trace. An older source is held like the target.
    fn promise_removal(&self, job: &Job, epilogue: &Epilogue, actor: &Writer) -> Result<Option<Promised<'_>>> {
        let Some((source, stamp)) = &job.takes_along else { return Ok(None) };
        let left = {
            let state = self.state.lock();
            let anchor = state.past.left(source).filter(|_| state.past.is_fresh(source));
            let is_temporary = replaces_something(job) && state.windows.has_just_landed(source, stamp);
            anchor.map(|anchor| (anchor, state.uppers.at(source), is_temporary))
        };
        let Some((anchor, whiteout, is_temporary)) = left else { return Ok(None) };
        if job.synced {
            // The source is the only copy on disk, and it is about to go.
            self.sync_copy(job.row.id, job.row.path())?;
        }
        let mut landing = Landing::new(&self.store, if job.synced { Durability::Synced } else { Durability::Cached });
        if !is_temporary && let Err(err) = self.keep_source(source, &mut landing, actor) {
            if !is_unkept(&err) {
                return Err(err);
            }
            log::warn!("{source} is held with {}: {err}", job.row.path());
            return Ok(None);
        }
        landing.remove(&self.lower, source, *stamp)?;
        let mut epilogue = epilogue.clone();
        epilogue.anchors.push(anchor);
        epilogue.drop.extend(whiteout);
        Ok(Some(landing.promise(epilogue)?))
    }

    /// Keeps a backup of a rename's source that goes from lower: otherwise only the held change would have its content,
    /// and that may go without a trace.
    pub(in crate::overlay) fn keep_source(
        &self,
        source: &RelPath,
        landing: &mut Landing<'_>,
        by: &Writer,
    ) -> Result<()> {
        if let Some((content, backup)) = self.stage_source(source, by)? {
            landing.keep(content, backup);
        }
        Ok(())
    }

    /// Prepares the same for a later landing.
    pub(in crate::overlay) fn stage_source(
        &self,
        source: &RelPath,
        by: &Writer,
    ) -> Result<Option<(StagedContent, Backup)>> {
        let side = self.present_side(source)?;
        let content = side.stage(&self.store)?;
        Ok(content.map(|content| {
            let backup = self.backup_there(source, &side, &content, BackupKind::Deleted, by);
            (content, backup)
        }))
    }

    /// The entry's row as it waits for review, its base content kept.
    fn held_row(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<(UpperRow, Part)> {
        let mut is_kept = self.keep_as_found(&mut comparison.old)?;
        let mut row = job.row.clone();
        row.base.content = comparison.old.kept().doing(|| format!("hash {}", comparison.path))?;
        if row.held.is_none() {
            row.base.below = Below::of(comparison.present.meta.as_ref());
            // Without attributes the old side is kept content: what is compared is not what lower has.
            row.base.found = match comparison.old.meta {
                Some(_) => None,
                None => {
                    is_kept &= self.keep_as_found(&mut comparison.present)?;
                    comparison.present.kept().doing(|| format!("hash {} below", comparison.path))?
                }
            };
            if !self.base_over(&job.row.base, comparison.present.meta.as_ref()).is_shared() {
                row.base = row.base.of_one_name();
            }
        }
        if !is_kept {
            comparison.add(Reason::Backup);
        }
        row.looks = self.looks_held(&row, &comparison.new, &comparison.present)?;
        let looks = comparison.new.looks(&row).doing(|| format!("look at {}", comparison.path))?;
        let (held, part) = self.held(job, &row, comparison, looks.digest(), actor)?;
        row.held = Some(held);
        Ok((row, part))
    }

    /// Keeps what is compared with later, or merged on, exactly as it is found, even while someone is writing to it. Returns
    /// false if it cannot be kept: then it is known by its hash, and lower has it.
    fn keep_as_found(&self, side: &mut Side) -> Result<bool> {
        match side.stage_found(&self.store).map_err(Error::from) {
            Ok(Some(content)) => {
                self.store.vitally_for_programs(|| self.store.keep_content(&content))?;
                side.digest = Some(content.digest);
            }
            Ok(None) => {}
            Err(err) if is_unkept(&err) => {
                log::warn!("what a held change is based on: {err}");
                return Ok(false);
            }
            Err(err) => return Err(err),
        }
        Ok(true)
    }

    /// What lower had when the change was held, if it is judged against something older, or goes back to that after
    /// lower has moved on: the diff shown is against lower (SPEC §4.6).
    fn shown_against(&self, base: &Base, comparison: &Comparison) -> Result<Option<Side>> {
        if comparison.is_back() {
            return Ok(Some(comparison.present.clone()));
        }
        let Some(found) = base.found else { return Ok(None) };
        if comparison.present.known() == Some(found) {
            return Ok(Some(comparison.present.clone()));
        }
        match self.kept_side(Some(found), comparison.present.mode)? {
            Old::Known(side) => Ok(Some(*side)),
            Old::Lost => Ok(None),
        }
    }

    /// The measure that is shown for a held change, and the number of hunks in its diff. The measure is the one it was
    /// judged by; if there was nothing before, or the change goes back to that, only the diff tells what goes.
    fn told_measure(&self, base: &Base, comparison: &Comparison) -> Result<(Option<Measure>, u64)> {
        let judged = comparison.measure;
        let Some(old) = self.shown_against(base, comparison)? else {
            return Ok((judged, comparison.hunk_count(&comparison.old, judged)));
        };
        let shown = compare::facts(&old, &comparison.new).measure;
        let told = if comparison.old.exists() && !comparison.is_back() { judged } else { shown };
        Ok((told, comparison.hunk_count(&old, shown)))
    }

    fn held(
        &self,
        job: &Job,
        row: &UpperRow,
        comparison: &mut Comparison,
        looks: Option<Digest>,
        actor: &Writer,
    ) -> Result<(Held, Part)> {
        let doing = || format!("hash {}", job.row.path());
        let new = comparison.new.digest().doing(doing)?;
        comparison.reasons.sort();
        comparison.reasons.dedup();
        let kind = comparison.kind();
        let makes = Some(comparison.new.standing());
        let full = row.full_id_of(kind, (makes, new), looks);
        let id = self.state.lock().unused_id(full, job.row.id)?;
        let now = store::now_millis();
        let same = job.row.held.as_ref().filter(|held| held.id == id);
        let (measure, hunks) = self.told_measure(&row.base, comparison)?;
        let part = self.part_of_job(job, &comparison.path, actor, Doing::Hold);
        let held = Held {
            kind,
            reasons: comparison.reasons.clone(),
            insertions: measure.map_or(0, |measure| measure.insertions),
            deletions: measure.map_or(0, |measure| measure.deletions),
            old_lines: measure.map_or(0, |measure| measure.old_lines),
            hunks,
            new,
            makes,
            looks,
            created: same.map_or(now, |held| held.created),
            renewed: same.map_or(now, |held| held.renewed),
            operation: job.row.held.as_ref().and_then(|held| held.operation).or(part.operation),
            since_session: match &job.row.held {
                Some(held) => held.since_session.clone(),
                None => actor.session.clone(),
            },
            detail: comparison.detail.clone().or_else(|| detail_before(job)),
            // A caller that only had it judged anew did not write it.
            writer: same.map_or_else(|| actor.known().cloned(), |held| held.writer.clone()),
            id,
        };
        Ok((held, part))
    }

    /// The event for what someone else wrote in between. It becomes what the change is based on, and later nothing would
    /// tell of it.
    fn passed_over(&self, job: &Job, comparison: &mut Comparison) -> Result<Option<store::EventDraft>> {
        if !comparison.reasons.contains(&Reason::Stale) {
            return Ok(None);
        }
        let path = &comparison.path;
        let content = comparison.present.kept().doing(|| format!("hash {path} below"))?;
        let found = (&comparison.present, content);
        Ok(self.unheralded(&self.state.lock(), path, &job.row.base, found))
    }

    /// The row of a change that was `held` and now has other content: with the new hash and, for text, the measure of
    /// `texts`, the content that it is compared with and its own. Its writer, reasons and last renewal stay.
    pub(in crate::overlay) fn held_with(
        &self,
        row: UpperRow,
        held: Held,
        new: Digest,
        texts: Option<(&[u8], &[u8])>,
    ) -> Result<UpperRow> {
        let measure = texts.map(|(old, new)| diff::measure(old, new));
        let full = row.full_id_of(held.kind, (held.makes, Some(new)), held.looks);
        let held = Held {
            id: self.state.lock().unused_id(full, row.id)?,
            insertions: measure.map_or(0, |measure| measure.insertions),
            deletions: measure.map_or(0, |measure| measure.deletions),
            old_lines: measure.map_or(0, |measure| measure.old_lines),
            hunks: texts.map_or(0, |(old, new)| diff::hunks(old, new).len() as u64),
            new: Some(new),
            ..held
        };
        Ok(UpperRow { held: Some(held), ..row })
    }

    fn held_event(&self, row: &UpperRow, comparison: &Comparison, actor: &Writer) -> Result<store::EventDraft> {
        let looks = self.looks_brought(row)?.join(", ");
        let event = self.event(EventName::WriteHeld, &comparison.path).with(|event| {
            let held = row.held.as_ref();
            event.id = held.map(|held| held.id.to_string());
            event.reason = held.and_then(|held| held.reasons.first().copied());
            let detail = held.and_then(|held| held.detail.clone());
            event.message = detail.or(Some(looks)).filter(|told| !told.is_empty());
            event.sha256 = held.and_then(|held| held.new);
            event.bytes = comparison.new.exists().then_some(comparison.new.size);
            event.insertions = held.map(|held| held.insertions);
            event.deletions = held.map(|held| held.deletions);
            event.operation = held.and_then(|held| held.operation).map(|operation| operation.to_string());
        });
        Ok(event.by(actor))
    }
}

impl Overlay {
    /// Holds what hides a directory, or a rename's source, for a reason other than its content.
    pub(in crate::overlay) fn hold_whiteout(&self, id: UpperId, reason: Reason, by: &Writer) -> Result<()> {
        let Some(row) = self.state.lock().uppers.row(id).cloned() else { return Ok(()) };
        let path = row.path().clone();
        if !matches!(self.origin_below(&path)?, Origin::Lower(meta) if meta.is_dir()) {
            return self.settle_because(id, by, vec![reason]).map(|_| ());
        }
        let (removed, writer) = (Standing::of(None), by.known().cloned());
        let mut row = self.state.lock().waiting(row, (ChangeKind::Structure, removed), vec![reason], writer)?;
        let part = self.part_of(&path, by, Doing::Hold);
        if let Some(held) = &mut row.held {
            held.operation = part.operation;
        }
        self.store.vitally_for_programs(|| self.store.save_upper(&row))?;
        let mut state = self.state.lock();
        if state.uppers.remove(id).is_some() {
            state.uppers.insert(Upper::held(row));
        }
        drop(state);
        self.recorded(&part, None);
        Ok(())
    }
}

/// The id of a row that waits for review.
pub(in crate::overlay) fn held_id(row: &UpperRow) -> Result<ChangeId> {
    row.held.as_ref().map(|held| held.id.clone()).ok_or(Error::Internal("what is held has no id"))
}

/// True if a rename brought the entry over something that the view had.
fn replaces_something(job: &Job) -> bool {
    match &job.row.held {
        Some(held) => !matches!(held.kind, ChangeKind::Delete | ChangeKind::Structure),
        None => job.row.base.below != Below::Nothing,
    }
}

/// What a permission program said of the change before, if it is still held for that.
fn detail_before(job: &Job) -> Option<String> {
    let held = job.row.held.as_ref().filter(|held| held.reasons.contains(&Reason::Hook));
    held.and_then(|held| held.detail.clone())
}

impl State {
    /// The change now waits for review as `row`, which is `saved` together with those of others.
    fn waits(&mut self, job: &Job, row: UpperRow, saved: &[UpperRow]) {
        self.uppers.set_row(row);
        for row in saved {
            if let Some(upper) = self.uppers.get_mut(row.id) {
                upper.recorded = Recorded::Row;
            }
        }
        if let Some(upper) = self.uppers.get_mut(job.row.id) {
            upper.moved_on = false;
            // What a permission program wrote meanwhile, leaving it to this judging, is judged next.
            match upper.because == job.because {
                true => upper.because.clear(),
                false => upper.left = true,
            }
        }
        if let Some(open) = self.nodes.open_of(job.row.id) {
            // Writes during the judging had no held content to keep; the next one has this.
            open.overwritten.store(false, Ordering::SeqCst);
        }
    }

    /// The shortest prefix of `full` that no other live change has and that never stood for another hash. From now on it
    /// stands for this one.
    pub(in crate::overlay) fn unused_id(&mut self, full: Digest, own: UpperId) -> Result<ChangeId> {
        let digits = full.to_string();
        let is_unused = |id: &ChangeId| !self.uppers.has_change(id, own) && !self.given_ids.is_anothers(id, full);
        let mut ids = (ID_DIGITS..=digits.len()).filter_map(|length| ChangeId::parse(&digits[..length]));
        let unused = ids.clone().find(is_unused).or_else(|| ids.next_back());
        let unused = unused.ok_or(Error::Internal("the hash of a change gives no id"))?;
        self.given_ids.note(unused.clone(), full);
        Ok(unused)
    }

    /// The whiteout over a rename's older source, which is judged by itself when the target is held. It is recorded with
    /// the target, or a death between the two would leave both names.
    fn hides_source(&self, job: &Job) -> Option<UpperRow> {
        let (source, _) = job.takes_along.as_ref()?;
        let hiding = self.uppers.get(self.uppers.at(source)?)?;
        (hiding.row.what == What::Whiteout).then(|| hiding.row.clone())
    }

    /// The source of a rename went when its target was held.
    fn source_went(&mut self, job: &Job) {
        self.epoch += 1;
        if let Some((source, _)) = &job.takes_along {
            self.left(source);
        }
        if let Some(upper) = self.uppers.get_mut(job.row.id) {
            upper.takes_along = None;
        }
    }
}
