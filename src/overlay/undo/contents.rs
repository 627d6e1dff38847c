//! The undo of what an operation did to contents, and to what is held: one landing for all of it.
//!
//! A burst lands in part and is held in part. Its undo puts back what landed ([`super::restore`]) and drops what is held
//! (`review::discard`); the undo of the undo lands the one part again and holds the other again ([`super::hold_again`]).
//! Each of the three modules stages its part of the landing, notes it under the lock once lower is new, and tells the
//! kernel afterwards.

use super::hold_again::{self, HeldAgain, Returned, Returning};
use super::restore::Plan;
use super::{UndoHow, already};
use crate::model::{ChangeId, RelPath};
use crate::overlay::judge::claim::Claim;
use crate::overlay::review::Reviewed;
use crate::overlay::review::discard::Dropping;
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::{ErrorBody, ErrorCode, Outcome};
use crate::store::{Durability, Effect, Epilogue, Landed, Landing, Operation, PathEffect, UpperRow};

/// All that an undo has to do, before any of it is begun.
struct Undoing<'a> {
    operation: &'a Operation,
    how: &'a UndoHow,
    /// What is held of it, and what it held again.
    dropping: Dropping<'a>,
    /// What it did to contents and directories.
    plan: Plan<'a>,
    /// What it discarded.
    returning: Vec<Returning<'a>>,
}

impl Overlay {
    /// `held` is what is still held of the operation.
    pub(super) fn undo_contents(
        &self,
        operation: &Operation,
        mut held: Vec<ChangeId>,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        let _acting = self.acting_at(operation.effects.iter().flat_map(names_of));
        held.extend(self.held_again(operation)?);
        let dropping = self.dropping(self.with_dependents(&held)?)?;
        let plan = self.plan(&operation.effects, &dropping.entries(), how)?;
        let returning = self.returning(operation, &plan, how)?;
        if dropping.is_empty() && plan.is_empty() && returning.is_empty() {
            return Err(already(operation));
        }
        self.carry_out(Undoing { operation, how, dropping, plan, returning })
    }

    /// What an undo has held again and is to be dropped once more: all of it, or nothing if none of it is held any more.
    fn held_again(&self, operation: &Operation) -> Reviewed<Vec<ChangeId>> {
        let again = operation.effects.iter().filter_map(|done| match &done.effect {
            Effect::HeldAgain { id } => Some(id.clone()),
            _ => None,
        });
        let held = self.held_rows();
        let lives = |id: &ChangeId| held.iter().any(|row| row.held.as_ref().is_some_and(|held| held.id == *id));
        let (living, gone): (Vec<ChangeId>, Vec<ChangeId>) = again.partition(lives);
        if living.is_empty() || gone.is_empty() {
            return Ok(living);
        }
        let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
        let message = format!("of {} these are not held any more: {}", operation.id, gone.join(", "));
        Err(ErrorBody::new(ErrorCode::Conflict, message))
    }

    fn carry_out(&self, mut undoing: Undoing<'_>) -> Reviewed<Vec<Outcome>> {
        let mut restored = undoing.plan.outcomes();
        if undoing.how.review.dry_run {
            let returned: Vec<Outcome> = undoing.returning.iter().map(|one| hold_again::outcome(one.row)).collect();
            return Ok([undoing.dropping.outcomes(), &restored, &returned].concat());
        }
        let (landed, again) = self.land_undone(&mut undoing)?;
        let mut returned: Vec<Outcome> = again.rows.iter().map(hold_again::outcome).collect();
        let (dropped, kept) = landed.backups.split_at(undoing.dropping.backups());
        let (replaced, superseded) = kept.split_at(undoing.plan.backups());
        undoing.plan.note_backups(&mut restored, replaced);
        hold_again::note_backups(&undoing.returning, &mut returned, superseded);
        for outcome in restored.iter_mut().chain(&mut returned) {
            outcome.operation = landed.operation.map(|operation| operation.to_string());
        }
        let Undoing { dropping, plan, .. } = undoing;
        let dropped = self.dropped(dropping, dropped, landed.operation);
        self.tell_restored(&plan, &again.rows);
        self.tell_returned(again);
        Ok(dropped.into_iter().chain(restored).chain(returned).collect())
    }

    fn land_undone(&self, undoing: &mut Undoing<'_>) -> Reviewed<(Landed, HeldAgain)> {
        let Undoing { operation, how, dropping, plan, returning } = undoing;
        let of = (*operation, *how);
        let mut landing = Landing::new(&self.store, Durability::Synced);
        if !dropping.is_empty() {
            // A full disk must not keep us from dropping what fills it.
            landing = landing.vital();
        }
        let mut epilogue = Epilogue::default();
        let nothing = |err| self.nothing_undone(err);
        self.stage_dropped(dropping, &how.review, &mut landing, &mut epilogue)?;
        self.stage_plan(plan, of, &mut landing, &mut epilogue).map_err(nothing)?;
        self.look_below(dropping)?;
        let returned = returning.iter().map(|one| self.bring_back(one)).collect::<Result<Vec<_>>>();
        let returned = returned.map_err(nothing)?;
        self.stage_returned(&returned, of, &mut landing, &mut epilogue).map_err(nothing)?;
        // The caller knows what is there then, and is no stale writer.
        let tree = self.tree_of(how.review.by.pid);
        self.apply_undone(landing, epilogue, (dropping, plan, returned), tree).map_err(nothing)
    }

    fn nothing_undone(&self, err: Error) -> ErrorBody {
        match err {
            Error::Errno(libc::EBUSY) => {
                ErrorBody::new(ErrorCode::Conflict, "nothing was undone: somebody wrote there at this very moment")
            }
            other => self.not_landed(other, "nothing was undone"),
        }
    }

    /// Applies the landing and, under the same lock, updates what is known of lower, which `tree` has seen then. `EBUSY`
    /// if a writer came in between.
    fn apply_undone(
        &self,
        landing: Landing<'_>,
        epilogue: Epilogue,
        (dropping, plan, returned): (&mut Dropping<'_>, &Plan<'_>, Vec<Returned<'_>>),
        tree: Option<u32>,
    ) -> Result<(Landed, HeldAgain)> {
        let gone = returned.iter().filter_map(Returned::instead).collect();
        let anchors = epilogue.anchors.clone();
        let returning = plan.files().chain(returned.iter().map(Returned::path));
        let _ways = self.ways_back_to(returning)?;
        let promised = landing.promise(epilogue)?;
        let (applied, rows) = {
            let mut state = self.state.lock();
            if plan.is_busy(&state) || self.is_crossed(&state, &returned)? {
                return Err(Error::Errno(libc::EBUSY));
            }
            let mut applied = promised.apply()?;
            state.know(anchors);
            self.note_restored(&mut state, plan, &applied, tree);
            dropping.note_applied(&applied);
            let mut hold = |one: Returned<'_>| {
                let put = applied.meta_of(one.path());
                state.returned(one, put)
            };
            let rows: Vec<UpperRow> = returned.into_iter().map(&mut hold).collect();
            applied.epilogue().save = rows.clone();
            (applied, rows)
        };
        let claims: Vec<Claim<'_>> = rows.iter().map(|row| Claim { overlay: self, id: row.id, judged: true }).collect();
        let landed = applied.finish()?;
        rows.iter().for_each(|row| self.read_on_in_stand_in(row));
        drop(claims);
        Ok((landed, HeldAgain { rows, gone }))
    }
}

/// Returns every name that an effect concerns: a discarded change may have had several.
fn names_of(done: &PathEffect) -> impl Iterator<Item = &RelPath> {
    let further = match &done.effect {
        Effect::Discarded { row, .. } => row.further_names(),
        _ => &[],
    };
    std::iter::once(&done.path).chain(further)
}

pub(super) fn is_on_held(effect: &Effect) -> bool {
    matches!(effect, Effect::Discarded { .. } | Effect::HeldAgain { .. })
}
