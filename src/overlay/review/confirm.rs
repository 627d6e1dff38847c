//! Confirming: what was reviewed lands, durably, all of it or nothing.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::expiry::Expiry;
use super::{Review, Reviewed, Reviewing, Taken, WAIT_FOR_WRITERS, Writers, failed};
use crate::model::{ChangeId, RelPath};
use crate::overlay::judge::side::Side;
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, Outcome, refused_at};
use crate::store::{self, Below, Kept, Landed, UpperRow, What, Writer};
use crate::sys::file::Meta;
use crate::sys::tree::is_absent;

#[derive(Clone, Debug)]
pub struct ConfirmHow {
    pub review: Review,
    pub force: bool,
    pub wait: bool,
    pub expiry: Expiry,
    pub merging: Merging,
}

impl ConfirmHow {
    /// For changes that no person has picked: their expiry would guard nobody.
    pub fn unasked(review: Review, merging: Merging) -> Self {
        Self { review, force: false, wait: false, expiry: Expiry::Ignore, merging }
    }
}

/// Whether a confirm may merge a change with what others have made below of the same file (SPEC §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    Allowed,
    /// What lands must be what the view shows, because it was tested there.
    Refused,
}

/// One change on its way into lower. Its sides are open only while it is staged, except a merged side, which exists only
/// behind its descriptor.
pub(super) struct Landable {
    pub taken: Taken,
    pub new: Side,
    pub present: Side,
    /// [`Done::Discarded`] if nothing of it is left to land.
    pub done: Done,
    pub backup: Option<Kept>,
}

impl Landable {
    pub(super) fn close(&mut self) {
        self.new = std::mem::take(&mut self.new).closed();
        self.present = std::mem::take(&mut self.present).closed();
    }
}

impl Overlay {
    /// Lands what was reviewed, all of it or nothing.
    pub fn confirm(&self, ids: &[ChangeId], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        self.person_decides(&how.review);
        let deadline = Instant::now() + if how.wait { WAIT_FOR_WRITERS } else { Duration::ZERO };
        let ids = self.with_emptied_dirs(self.with_landing_first(ids));
        self.check_contents_named(&ids)?;
        let mut taken = self.take_all(&ids, Writers::WaitedFor { deadline })?;
        let result = self.confirm_taken(&mut taken, how);
        let taken = taken.give_back();
        let mut outcomes = result?;
        if !how.review.dry_run {
            self.after_landing(&taken, &outcomes);
            outcomes.extend(self.confirm_emptied(&taken, how));
        }
        Ok(outcomes)
    }

    /// Removes hidden directories whose other contents were confirmed by other requests at the same moment: none of those
    /// requests could know that its change was the last one in the directory.
    fn confirm_emptied(&self, landed: &[Taken], how: &ConfirmHow) -> Vec<Outcome> {
        let deleted = landed.iter().filter(|change| change.row.what == What::Whiteout);
        let dirs = deleted.filter_map(|change| change.row.path().parent()).collect();
        let ids = self.emptied(dirs, HashSet::new());
        if ids.is_empty() {
            return Vec::new();
        }
        self.confirm(&ids, how).unwrap_or_else(|err| {
            log::debug!("an emptied directory has gone with another's confirm, or waits on: {}", err.message);
            Vec::new()
        })
    }

    fn confirm_taken(&self, reviewing: &mut Reviewing<'_>, how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        let taken = reviewing.taken.as_slice();
        if how.expiry == Expiry::Guard {
            // A new directory that replaces nothing, or one that goes, has nothing that a reviewer could have overlooked.
            let shows = |change: &&Taken| {
                !change.row.removes_dir() && (change.row.what != What::Dir || change.row.base.content.is_some())
            };
            taken.iter().filter(shows).try_for_each(|change| self.check_fresh(change, &how.review))?;
        }
        let (dirs, files): (Vec<&Taken>, Vec<&Taken>) = taken.iter().partition(|change| change.row.removes_dir());
        let refused = |change: &Taken, err: &ErrorBody| self.record_failure(change, err, &how.review);
        let check_dir = |dir: &&Taken| {
            self.check_may_land(dir.row.path(), &how.review.by)?;
            self.check_emptied(dir, taken)
        };
        dirs.iter().try_for_each(|dir| check_dir(dir).inspect_err(|err| refused(dir, err)))?;
        let landable = |change| self.landable(change, taken, how).inspect_err(|err| refused(change, err));
        let landables = files.into_iter().map(landable).collect::<Reviewed<Vec<Landable>>>()?;
        let (spent, mut landables): (Vec<_>, Vec<_>) =
            landables.into_iter().partition(|landable| landable.done == Done::Discarded);
        // The replacement of a directory comes before the deletions inside it, and a new directory before what is in it.
        let replaces_dir = |landable: &Landable| landable.present.is_dir() && !landable.new.is_dir();
        let depth = |landable: &Landable| match landable.new.is_dir() {
            true => landable.taken.row.path().components().count(),
            false => usize::MAX,
        };
        // A change that replaces one name of a shared file is based on the file as it is, so it comes before the change
        // that writes the file in place by another name.
        let writes_in_place = |landable: &Landable| landable.taken.row.base.is_shared();
        landables.sort_by_key(|landable| (!replaces_dir(landable), depth(landable), writes_in_place(landable)));
        let outcomes = landables.iter().map(outcome).chain(dirs.iter().map(|dir| dir.outcome(Done::Applied)));
        let mut outcomes: Vec<Outcome> = outcomes.collect();
        if how.review.dry_run {
            outcomes.extend(spent.iter().map(|landable| landable.taken.outcome(Done::Discarded)));
            return Ok(outcomes);
        }
        let mut dropping = self.dropping_of(reviewing, &spent.iter().map(|spent| spent.taken.row.id).collect());
        let dirs: Vec<&Taken> = reviewing.taken.iter().filter(|change| change.row.removes_dir()).collect();
        let Landed { backups, operation } = self.land_all(&mut landables, &dirs, &mut dropping, &how.review)?;
        let mut names = backups.into_iter();
        for (outcome, landable) in outcomes.iter_mut().zip(&landables) {
            outcome.backup = landable.backup.and_then(|_| names.next());
        }
        outcomes.iter_mut().for_each(|outcome| outcome.operation = operation.map(|operation| operation.to_string()));
        outcomes.extend(self.dropped(dropping, &names.collect::<Vec<String>>(), operation));
        Ok(outcomes)
    }

    /// Checks one of `all` changes against its id and against lower as it is now; merges if lower has moved on.
    fn landable(&self, change: &Taken, all: &[Taken], how: &ConfirmHow) -> Reviewed<Landable> {
        let path = change.row.path();
        let fault = |err: Error| failed(path, &err);
        let mut new = self.row_side(&change.row).map_err(fault)?;
        self.check_as_reviewed(change, &mut new)?;
        let mut present = self.present_side(path).map_err(fault)?;
        self.check_rules(&change.row, present.meta.as_ref(), &how.review.by)?;
        let base = self.base_over(&change.row.base, present.meta.as_ref());
        let row = UpperRow { base, ..change.row.clone() };
        let taken = Taken { row, held: change.held.clone(), open: change.open.clone(), version: change.version };
        if new.exists() {
            self.check_way(path)?;
        }
        if present.is_dir() && !new.is_dir() {
            // Not even with `force`: a directory is not one content that could be kept.
            self.check_emptied(change, all)?;
        }
        if !how.force {
            check_mode_below(change, &new, &present)?;
        }
        self.check_further_names(change)?;
        let as_based = self.is_as_based(&change.row, &mut present).map_err(fault)?;
        if !as_based && !how.review.dry_run {
            // Not later: once the two are one, nothing tells the external edit from ours.
            self.tell_external(path);
        }
        let (new, done) = match as_based || how.force {
            true => (new.closed(), Done::Applied),
            false => {
                let mut merged = self.merged(change, &mut new, &mut present, how.merging)?;
                let is_spent = self.is_spent(change, &mut merged, &mut present)?;
                (merged, if is_spent { Done::Discarded } else { Done::Merged })
            }
        };
        Ok(Landable { taken, new, present: present.closed(), done, backup: None })
    }

    /// Rules hold for a confirm as for an undo: they may be younger than the change.
    pub(super) fn check_rules(&self, row: &UpperRow, present: Option<&Meta>, by: &Writer) -> Reviewed<()> {
        row.names.iter().try_for_each(|name| self.check_may_land(name, by))?;
        match row.base.is_shared() {
            true => self.check_may_rewrite(row.path(), present, by),
            false => Ok(()),
        }
    }

    /// An id names exact content: what lands is what was reviewed, or nothing (SPEC §8).
    pub(super) fn check_as_reviewed(&self, change: &Taken, new: &mut Side) -> Reviewed<()> {
        let path = change.row.path();
        let fault = |err: std::io::Error| failed(path, &err.into());
        let looks = new.looks(&change.row).map_err(fault)?.digest();
        let digest = new.digest().map_err(fault)?;
        if change.held.is_of(new.standing(), digest) && looks == change.held.looks {
            return Ok(());
        }
        let message = format!("{} of {path} was written to since it was reviewed", change.held.id);
        Err(ErrorBody::new(ErrorCode::Superseded, message).about(change.held.id.as_str()))
    }

    /// Reopens the sides that were closed after the check, if they still are what they were.
    pub(super) fn reopen(&self, landable: &mut Landable) -> Result<()> {
        let Landable { taken, new, present, done, .. } = landable;
        if *done == Done::Applied && new.has_descriptors() {
            let reopened = new.reopened(self.row_side(&taken.row)?);
            *new = reopened.ok_or_else(|| self.state.lock().crossed(taken))?;
        }
        if present.is_file() {
            let path = taken.row.path();
            let conflict = || store::Error::Conflict { path: path.to_string() };
            *present = present.reopened(self.present_side(path)?).ok_or_else(conflict)?;
        }
        Ok(())
    }

    /// Refuses if something that is not a directory has taken the place of one above `path`. Directories that are gone
    /// are no obstacle: they are made anew.
    pub(in crate::overlay) fn check_way(&self, path: &RelPath) -> Reviewed<()> {
        let mut above = path.parent();
        while let Some(dir) = above {
            if self.state.lock().uppers.held_dir(&dir).is_some() {
                // A held directory lands before what is in it.
                above = dir.parent();
                continue;
            }
            match self.lower.stat(&dir).map_err(|err| failed(path, &err.into()))? {
                Some(meta) if meta.is_dir() => return Ok(()),
                Some(_) => {
                    return Err(refused_at(path, ErrorCode::Conflict, &format!("{dir} is not a directory any more")));
                }
                None => above = dir.parent(),
            }
        }
        Ok(())
    }

    /// Further names are only made, never put in the place of something, not even with `force`: the review shows nothing
    /// of what would be lost there.
    fn check_further_names(&self, change: &Taken) -> Reviewed<()> {
        for name in change.row.further_names() {
            if self.lower.exists(name).map_err(|err| failed(name, &err.into()))? {
                let (first, id) = (change.row.path(), &change.held.id);
                // Without the error's id: it would tell programs and people that the confirm can be forced.
                let why = format!(
                    "something else is there below by now, where {first} is to be linked: move it away, or discard {id}"
                );
                return Err(refused_at(name, ErrorCode::Conflict, &why));
            }
        }
        Ok(())
    }

    /// A directory goes together with the deletions in it. It stays if lower has anything else in it, which the view does
    /// not show.
    fn check_emptied(&self, dir: &Taken, taken: &[Taken]) -> Reviewed<()> {
        let path = dir.row.path();
        let goes =
            |entry: &RelPath| taken.iter().any(|one| one.row.what == What::Whiteout && *one.row.path() == *entry);
        match self.other_entry(path, goes)? {
            Some(other) => {
                let why =
                    format!("{other} has come to be in it below; move it away, or discard {} to see it", dir.held.id);
                Err(refused_at(path, ErrorCode::Conflict, &why))
            }
            None => Ok(()),
        }
    }

    /// Returns an entry of lower's directory that does not go, if there is one.
    pub(super) fn other_entry(&self, dir: &RelPath, goes: impl Fn(&RelPath) -> bool) -> Reviewed<Option<RelPath>> {
        let entries = match self.lower.list(dir) {
            Err(err) if is_absent(&err) => return Ok(None),
            listed => listed.map_err(|err| failed(dir, &err.into()))?,
        };
        Ok(entries.iter().filter_map(|entry| dir.join(&entry.name).ok()).find(|entry| !goes(entry)))
    }

    fn after_landing(&self, taken: &[Taken], outcomes: &[Outcome]) {
        for change in taken {
            self.evict(change.row.id);
        }
        let merged = |path: &RelPath| outcomes.iter().any(|done| done.path == *path && done.action == Done::Merged);
        for change in taken {
            let path = change.row.path();
            if merged(path) { self.tell_content_changed(path) } else { self.tell_changed(path) }
        }
    }
}

/// Refuses to overwrite a mode that the file was given below since: the reviewer has not seen the two side by side.
pub(super) fn check_mode_below(change: &Taken, new: &Side, present: &Side) -> Reviewed<()> {
    let Below::Entry { mode: base, .. } = change.row.base.below else { return Ok(()) };
    let brings_mode = change.row.looks.as_ref().is_some_and(|looks| looks.own.mode && !looks.alone);
    match present.meta.filter(Meta::is_file).map(|meta| meta.mode) {
        Some(now) if brings_mode && now != base && now != new.mode => {
            let (path, id) = (change.row.path(), &change.held.id);
            let why = format!("it was given mode {now:03o} below, since {id} was based on it with {base:03o}");
            Err(refused_at(path, ErrorCode::Conflict, &why).about(id.as_str()))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn outcome(landable: &Landable) -> Outcome {
    let held = &landable.taken.held;
    let mut outcome = landable.taken.outcome(landable.done);
    outcome.size = landable.new.kind.filter(|kind| kind.has_content()).map(|_| landable.new.size);
    outcome.lines = landable.new.lines();
    outcome.counts = Some(Counts::of(held.insertions, held.deletions, held.old_lines));
    outcome
}
