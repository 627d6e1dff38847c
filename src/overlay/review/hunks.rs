//! Part of a change: some of its hunks land, or go, and the rest stays held under a new id (SPEC §8).
//!
//! Hunks are those of the diff that the reviewer looked at, by their numbers in it. Confirming lands the old content with
//! the chosen hunks; discarding leaves the old content with the other hunks held. So the two always add up to what was
//! reviewed, and choosing all hunks is the change as a whole.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::confirm::{ConfirmHow, check_mode_below};
use super::discard::discarded_for;
use super::expiry::Expiry;
use super::{Review, Reviewed, Taken, WAIT_FOR_WRITERS, Writers, failed, goes_back, reviewed};
use crate::diff::{self, Measure};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest};
use crate::overlay::error::Context;
use crate::overlay::files::handles::Backing;
use crate::overlay::judge::claim::Claim;
use crate::overlay::judge::land::{Replacement, content_effect};
use crate::overlay::judge::side::Side;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, EventName, Outcome, refused_at};
use crate::store::{
    AnchorState, Below, Durability, Epilogue, EventDraft, Fate, Held, Kept, Known, Landing, PathEffect, UpperFile,
    UpperRow, What,
};
use crate::sys::file;

/// A change with some of its hunks chosen, but not all.
struct Split<'a> {
    change: &'a Taken,
    /// What the hunks are counted against.
    old: Side,
    /// The whole change.
    new: Side,
    chosen: Vec<usize>,
    count: usize,
}

impl Split<'_> {
    fn with(&self, numbers: &[usize]) -> Vec<u8> {
        diff::apply_hunks(self.old.text(), self.new.text(), numbers).expect("they were counted before")
    }

    /// The old content with the chosen hunks.
    fn taken(&self) -> Vec<u8> {
        self.with(&self.chosen)
    }

    /// The old content with the others.
    fn left(&self) -> Vec<u8> {
        let others: Vec<usize> = (1..=self.count).filter(|number| !self.chosen.contains(number)).collect();
        self.with(&others)
    }

    fn numbers(&self) -> String {
        let numbers: Vec<String> = self.chosen.iter().map(usize::to_string).collect();
        let plural = if numbers.len() == 1 { "" } else { "s" };
        format!("hunk{plural} {} of {}", numbers.join(","), self.count)
    }

    /// The change that stays held: `row` with `old` as its old content, and `new`, whose text is `text`, as its new one.
    fn rest(&self, overlay: &Overlay, row: UpperRow, old: &[u8], (new, text): (Digest, &[u8])) -> Result<UpperRow> {
        overlay.held_with(row, self.change.held.clone(), new, Some((old, text)))
    }

    /// What confirm and discard both record: the id is superseded by that of the rest.
    fn superseded(&self, rest: &UpperRow) -> Epilogue {
        let mut epilogue = Epilogue { save: vec![rest.clone()], ..Epilogue::default() };
        if let Some(held) = &rest.held {
            let fate = Fate::Superseded { by: held.id.clone() };
            epilogue.verdicts.push((self.change.held.id.clone(), rest.path().clone(), fate));
        }
        epilogue
    }

    fn outcome(&self, done: Done, taken: &[u8]) -> Outcome {
        let Measure { insertions, deletions, old_lines, .. } = diff::measure(self.old.text(), taken);
        let counts = Some(Counts::of(insertions, deletions, old_lines));
        Outcome { counts, ..self.change.outcome(done) }
    }
}

impl Overlay {
    /// Lands some hunks of a change.
    pub fn confirm_hunks(&self, id: &ChangeId, numbers: &[u32], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        self.person_decides(&how.review);
        let ids = std::slice::from_ref(id);
        let deadline = Instant::now() + if how.wait { WAIT_FOR_WRITERS } else { Duration::ZERO };
        let taken = self.take_all(ids, Writers::WaitedFor { deadline })?;
        let change = &taken.taken[0];
        let Some(split) = self.split(change, numbers)? else {
            drop(taken);
            return self.confirm(ids, how);
        };
        if how.expiry == Expiry::Guard {
            self.check_fresh(change, &how.review)?;
        }
        let landed = self.land_hunks(&split, how);
        let outcome = landed.inspect_err(|err| self.record_failure(change, err, &how.review))?;
        self.note_parted(&change.held, outcome.new_id.as_ref());
        if !how.review.dry_run {
            self.tell_changed(change.row.path());
        }
        Ok(vec![outcome])
    }

    /// Drops some hunks of a change from the view; the whole of it is kept as a backup.
    pub fn discard_hunks(&self, id: &ChangeId, numbers: &[u32], review: &Review) -> Reviewed<Vec<Outcome>> {
        self.person_decides(review);
        let ids = std::slice::from_ref(id);
        // A writer would go on writing to what was dropped.
        let taken = self.take_all(ids, Writers::WaitedFor { deadline: Instant::now() })?;
        let change = &taken.taken[0];
        let Some(split) = self.split(change, numbers)? else {
            drop(taken);
            return self.discard(ids, review);
        };
        let outcome = self.drop_hunks(&split, review)?;
        self.note_parted(&change.held, outcome.new_id.as_ref());
        if !review.dry_run {
            self.tell_content_changed(change.row.path());
        }
        Ok(vec![outcome])
    }

    /// Returns `None` if all hunks are chosen; `bad_request` if there is no such hunk, or the change has none to choose
    /// from.
    fn split<'a>(&self, change: &'a Taken, numbers: &[u32]) -> Reviewed<Option<Split<'a>>> {
        let (row, id) = (&change.row, &change.held.id);
        let path = row.path();
        let refused = |why: &str| {
            ErrorBody::new(ErrorCode::BadRequest, format!("{id} of {path} {why}")).about(id.as_str()).at(path)
        };
        let mut new = self.row_side(row).map_err(|err| failed(path, &err))?;
        self.check_as_reviewed(change, &mut new)?;
        if goes_back(row) {
            return Err(refused(
                "is a change back to what it was based on, before others changed that: take it as a whole",
            ));
        }
        let old = self.shown_old(row).map_err(|err| failed(path, &err))?;
        let is_text = |side: &Side| side.is_file() && side.diff_side() == diff::Side::Text;
        let is_plain = change.held.kind == ChangeKind::Modify && row.what == What::File && row.names.len() == 1;
        if !(is_plain && is_text(&old) && is_text(&new)) {
            return Err(refused("has no hunks to choose from: only the change of a text with one name has"));
        }
        let mut chosen: Vec<usize> = numbers.iter().map(|number| *number as usize).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let count = diff::hunks(old.text(), new.text()).len();
        if let Some(number) = chosen.iter().find(|number| !(1..=count).contains(*number)) {
            return Err(refused(&format!("has no hunk {number}, but {count}")));
        }
        Ok((chosen.len() < count).then_some(Split { change, old, new, chosen, count }))
    }

    fn land_hunks(&self, split: &Split<'_>, how: &ConfirmHow) -> Reviewed<Outcome> {
        let change = split.change;
        let path = change.row.path();
        let fault = |err: Error| failed(path, &err);
        let mut present = self.present_side(path).map_err(fault)?;
        self.check_rules(&change.row, present.meta.as_ref(), &how.review.by)?;
        if !self.is_as_based(&change.row, &mut present).map_err(fault)? {
            let why = format!("changed below since {} was based on it: take the change as a whole", change.held.id);
            return Err(refused_at(path, ErrorCode::Conflict, &why));
        }
        if !how.force {
            // The rest is based on what lands here, and would bring its mode unasked.
            check_mode_below(change, &split.new, &present)?;
        }
        let text = split.taken();
        let mut outcome = split.outcome(Done::Applied, &text);
        // Where the change stands for a deletion that has landed, it brings the file as well.
        let looks = if present.exists() { &present } else { &split.new };
        let mut landed = self.side_like(looks, path, &text)?;
        (outcome.size, outcome.lines) = (Some(landed.size), landed.lines());
        if how.review.dry_run {
            return Ok(outcome);
        }
        let nothing = |err| self.not_landed(err, "nothing was applied");
        let (landing, epilogue, backup) = self
            .stage_hunks(split, &mut landed, &present, &how.review)
            .map_err(|err| nothing(self.written_meanwhile(err, change)))?;
        let mut rest = epilogue.save[0].clone();
        outcome.new_id = rest.held.as_ref().map(|held| held.id.clone());
        let kept = landed.kept().doing(|| format!("hash {path}")).map_err(fault)?;
        let promised = landing.promise(epilogue).map_err(|err| nothing(err.into()))?;
        let applied = self.apply_as_taken(promised, [change], |state, applied| {
            state.know(applied.epilogue().anchors.clone());
            if let Some(meta) = state.confirmed(applied, &change.row, present.meta.as_ref(), kept) {
                rest.base.below = Below::of(Some(&meta));
                self.nothing_missed(state, &change.row, Some(&meta));
            }
            applied.epilogue().save[0] = rest.clone();
            state.uppers.set_row(rest);
        });
        let finished = applied.and_then(|applied| Ok(applied.finish()?)).map_err(nothing)?;
        outcome.backup = backup.and_then(|_| finished.backups.into_iter().next());
        outcome.operation = finished.operation.map(|operation| operation.to_string());
        Ok(outcome)
    }

    fn stage_hunks(
        &self,
        split: &Split<'_>,
        landed: &mut Side,
        present: &Side,
        review: &Review,
    ) -> Result<(Landing<'_>, Epilogue, Option<Kept>)> {
        let row = &split.change.row;
        let path = row.path();
        let mut landing = Landing::new(&self.store, Durability::Synced);
        landing.make_parents(&self.lower, path)?;
        let by = &review.by;
        let base = self.base_over(&row.base, present.meta.as_ref());
        let change =
            Replacement { path, base: &base, new: landed, raises: None, present, kind: BackupKind::Confirmed, by };
        let backup = self.stage_replacement(&change, &mut landing)?;
        let content = landed.kept().doing(|| format!("hash {path}"))?;
        let mut rest = row.clone();
        (rest.base.content, rest.base.found) = (content, None);
        if let Some(meta) = landing.meta_of(path)? {
            rest.base.below = Below::of(Some(&meta));
        }
        // The rest is based on it.
        self.keep_to_compare(landed)?;
        let whole = (whole_of(&split.change.held)?, split.new.text());
        let rest = split.rest(self, rest, landed.text(), whole)?;
        let mut epilogue = split.superseded(&rest);
        epilogue.anchors.push(Known::of(content.map_or(AnchorState::Nothing, AnchorState::Content)).as_anchor(path));
        let moved = backup.map(|kept| self.state.lock().past.moved_to(path, kept));
        epilogue.anchors.extend(moved.unwrap_or_default());
        let effect = content_effect(&base, (present, backup), landed.version(content));
        let event = self.hunks_event(EventName::Confirmed, split, review).with(|event| {
            event.sha256 = content.map(|kept| kept.digest);
            event.bytes = Some(landed.size);
        });
        let effects = landing.newly_made()?.into_iter().chain([PathEffect::new(path, effect)]);
        epilogue.events.push(event.doing(effects));
        Ok((landing, epilogue, backup))
    }

    fn drop_hunks(&self, split: &Split<'_>, review: &Review) -> Reviewed<Outcome> {
        let change = split.change;
        let path = change.row.path();
        let taken = split.taken();
        let mut outcome = split.outcome(Done::Discarded, &taken);
        if review.dry_run {
            return Ok(outcome);
        }
        let nothing = |err| self.not_landed(err, "nothing was discarded");
        let left = split.left();
        let upper = self.write_left(split, &left).map_err(nothing)?;
        let mut landing = Landing::new(&self.store, Durability::Synced);
        if let Some(content) = split.new.stage(&self.store).map_err(|err| nothing(err.into()))? {
            let backup = self.backup_there(path, &split.new, &content, BackupKind::Discarded, &review.by);
            landing.keep(content, backup);
        }
        let row = UpperRow { id: upper.new.id(), ..change.row.clone() };
        let rest = split.rest(self, row, split.old.text(), (Digest::of(&left), &left)).map_err(nothing)?;
        let mut epilogue = split.superseded(&rest);
        epilogue.drop.push(change.row.id);
        let whole = whole_of(&change.held).map_err(nothing)?;
        let instead = rest.held.as_ref().map(|held| held.id.clone());
        let effect = discarded_for(instead, &change.row, &split.new, Some(whole)).map_err(nothing)?;
        let event = self.hunks_event(EventName::Discarded, split, review);
        epilogue.events.push(event.doing([PathEffect::new(path, effect)]));
        let promised = landing.promise(epilogue).map_err(|err| nothing(err.into()))?;
        let applied = self.apply_as_taken(promised, [change], |state, _| state.trimmed(change, rest.clone(), upper));
        let applied = applied.map_err(nothing)?;
        // Until it is recorded, nothing else may end the rest.
        let claim = Claim { overlay: self, id: rest.id, judged: true };
        let finished = applied.finish().map_err(|err| nothing(err.into()))?;
        drop(claim);
        self.store.drop_upper_file(change.row.id);
        outcome.backup = finished.backups.into_iter().next();
        outcome.operation = finished.operation.map(|operation| operation.to_string());
        outcome.new_id = rest.held.map(|held| held.id);
        Ok(outcome)
    }

    /// What stays, as upper content on disk, with the looks of the whole.
    fn write_left(&self, split: &Split<'_>, text: &[u8]) -> Result<UpperFile<'_>> {
        let path = split.change.row.path();
        let doing = || format!("write what stays of {path}");
        let upper = self.store.create_upper(split.new.mode)?;
        (&upper.file).write_all(text).doing(doing)?;
        if let (Some(whole), Some(meta)) = (&split.new.file, split.new.meta) {
            let now = file::Meta::of(upper.file.as_fd()).doing(doing)?;
            let meta = file::Meta { atime: now.atime, mtime: now.mtime, ..meta };
            file::copy_metadata(whole.as_fd(), &meta, upper.file.as_fd()).doing(doing)?;
        }
        upper.file.sync_all().doing(doing)?;
        Ok(upper)
    }

    fn hunks_event(&self, name: EventName, split: &Split<'_>, review: &Review) -> EventDraft {
        let event = self.event(name, split.change.row.path()).with(|event| {
            event.id = Some(split.change.held.id.to_string());
            event.message = Some(split.numbers());
        });
        reviewed(event, &split.change.held, &review.by)
    }
}

impl State {
    /// Gives what stays of a change an entry of its own, claimed. Readers that have the change open go on with that.
    fn trimmed(&mut self, change: &Taken, rest: UpperRow, upper: UpperFile<'_>) {
        let open = self.nodes.open_of(change.row.id).cloned();
        self.epoch += 1;
        self.uppers.remove(change.row.id);
        let id = upper.new.keep();
        self.uppers.insert(Upper { synced: true, busy: true, ..Upper::held(rest) });
        if let Some(open) = open {
            open.set_backing(&mut self.nodes, Backing::Upper(id, Arc::new(upper.file)));
        }
    }
}

/// The content of the whole change, which a held text always has.
fn whole_of(held: &Held) -> Result<Digest> {
    held.new.ok_or(Error::Internal("a held text has no hash"))
}
