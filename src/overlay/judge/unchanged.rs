//! What was written is what lower has already: no byte of it lands, but its looks may, and the source of a rename goes.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use super::claim::Job;
use super::settle::Settled;
use super::side::Side;
use crate::model::{BackupKind, RelPath, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::files::inode::{attributes_set, rights_effects};
use crate::overlay::{Overlay, Result, State};
use crate::protocol::{DELETED, EventName};
use crate::store::{Durability, Effect, Epilogue, EventDraft, Fate, FileLooks, Landing, PathEffect, UpperRow, Writer};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::Place;
use crate::sys::xattr;

impl Overlay {
    /// Lower has these bytes already, so there is nothing to write and nothing to keep. The times that a program saw stay
    /// (SPEC §4.10), and what was renamed here brings its attributes.
    pub(super) fn end_unchanged(&self, job: &Job, new: &Side, present: &Side, actor: &Writer) -> Result<Settled> {
        let path = job.row.path();
        if !self.brings_older(job) {
            self.give_looks(&job.row, new, present)?;
            self.record_rights(path, (present.meta, new.meta), actor)?;
        }
        if let (true, Some(below)) = (job.synced, &present.file) {
            self.sync_name(path, below)?;
        }
        let mut epilogue = Epilogue { drop: vec![job.row.id], ..Epilogue::default() };
        if let Some(held) = &job.row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Ended));
            epilogue.events.push(self.hold_ended(path, held, "[equal to the project]", actor));
        }
        // Checked and opened before the source of a rename goes: after that only the disk may be in the way.
        if job.synced {
            self.store.open_log()?;
        }
        self.remove_along(job, new, present, actor)?;
        // An older source may have left its times there.
        let now = self.meta_below(path)?;
        let is_same = self.has_still(path, new, present);
        if !is_same {
            self.take_back_times(path, new.meta, now);
        }
        let mut state = self.state.lock();
        // A write that comes meanwhile is judged against what we ourselves made of lower.
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
            // Some looks could not be given.
            self.tell_landed(path);
        }
        if job.synced {
            // The row was made durable with the content, and must be durably gone before the content is.
            self.store.sync()?;
        }
        Ok(Settled::Unchanged)
    }

    /// True if lower still has the same bytes in the same file. If it cannot be read now, the next look finds out.
    fn has_still(&self, path: &RelPath, new: &Side, present: &Side) -> bool {
        let is_it = self.present_side(path).and_then(|now| {
            let same = is_same_inode(present, &now) && new.same_as(&now).doing(|| format!("compare {path}"))?;
            Ok(same)
        });
        is_it.inspect_err(|err| log::warn!("look again at what has not changed: {err}")).unwrap_or(false)
    }

    /// Someone else has saved the path at the moment at which it was given the times of what was there before: these
    /// would make the saved content pass for the old.
    fn take_back_times(&self, path: &RelPath, given: Option<Meta>, now: Option<Meta>) {
        let Some(now) = now.filter(|now| given.is_some_and(|given| given.mtime == now.mtime)) else { return };
        let [access, modification] = [now.atime, file::now()].map(file::to_timespec);
        let taken_back = self.lower.place(path).and_then(|place| place.set_times(access, modification));
        if let Err(err) = taken_back {
            log::error!("take back the times of {path}, which somebody has saved: {err}");
        }
    }

    /// Tells the kernel that lower has something new at a path.
    fn shows_anew(&self, path: &RelPath) {
        let node = self.state.lock().node_at(path);
        if let Some(node) = node {
            self.forget_attributes(node);
            self.tell(|observer| observer.content_changed(node));
        }
        self.doubt(path);
    }

    /// Gives the same bytes below the entry's owner, attributes, mode and times, if they are still there as at `present`.
    fn give_looks(&self, row: &UpperRow, new: &Side, present: &Side) -> Result<()> {
        let path = row.path();
        let (Some(FileKind::Regular | FileKind::Symlink), Some(ours), Some(theirs)) =
            (new.kind, new.meta, present.meta)
        else {
            return Ok(());
        };
        if self.meta_below(path)?.is_none_or(|now| now.stamp() != theirs.stamp()) {
            return Ok(());
        }
        self.part_nameless_from(&theirs)?;
        let dressed = dress(&self.lower.place(path)?, row, (new, &ours), (present, &theirs));
        match dressed {
            // An ordinary user may not change those of another user's file, and its bytes are as wanted.
            Err(err) if err.kind() == ErrorKind::PermissionDenied && !file::is_own(&theirs) => Ok(()),
            dressed => dressed.doing(|| format!("change attributes of {path}")),
        }
    }

    /// Records that the file was `given` other rights than it had `before`, with no byte changed.
    fn record_rights(
        &self,
        path: &RelPath,
        (before, given): (Option<Meta>, Option<Meta>),
        actor: &Writer,
    ) -> Result<()> {
        let Some((before, given)) = before.zip(given) else { return Ok(()) };
        if rights_effects(&before, &given).next().is_none() {
            return Ok(());
        }
        // If there is another file, somebody else has saved it.
        let Some(after) = self.meta_below(path)?.filter(|after| after.key() == before.key()) else { return Ok(()) };
        // Not all of them can be given by everybody.
        let effects: Vec<_> = rights_effects(&before, &after).collect();
        if effects.is_empty() {
            return Ok(());
        }
        let mode = (before.mode != after.mode).then_some(after.mode);
        let effects = effects.into_iter().map(|effect| PathEffect::on(path, effect, Some(&after)));
        self.record_structure(path, attributes_set(mode, true), effects, Vec::new(), actor)
    }

    /// True if a file older than the session goes by being renamed here.
    fn brings_older(&self, job: &Job) -> bool {
        job.takes_along.as_ref().is_some_and(|(source, _)| !self.state.lock().past.is_fresh(source))
    }

    /// Removes the source of a rename whose target has the same content. A source older than the session leaves its
    /// attributes there; its removal is recorded as an event and can be undone.
    fn remove_along(&self, job: &Job, new: &Side, present: &Side, actor: &Writer) -> Result<()> {
        let Some((source, stamp)) = &job.takes_along else { return Ok(()) };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.remove(&self.lower, source, *stamp)?;
        let path = job.row.path();
        let there = self.meta_below(path)?;
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
            // From here on only the disk can be in the way.
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
            // If the entry was written to meanwhile, the next judging finds the source gone.
            upper.takes_along = None;
        }
        drop(state);
        applied.finish()?;
        Ok(())
    }

    /// Keeps what goes. Returns the event that tells of it and of what its target then has.
    fn stage_twin(
        &self,
        (source, path): (&RelPath, &RelPath),
        (new, present): (&Side, &Side),
        landing: &mut Landing<'_>,
        actor: &Writer,
    ) -> Result<EventDraft> {
        let content = new.stage(&self.store)?;
        let kept = content.as_ref().map(|content| new.kept_as(content.digest));
        if let Some(content) = content {
            let backup = self.backup_there(source, new, &content, BackupKind::Deleted, actor);
            landing.keep(content, backup);
        }
        let effect = |path: &RelPath, before: &Side, after: Option<&Side>| {
            let (before, after) = (before.version(kept), after.and_then(|side| side.version(kept)));
            PathEffect::new(path, Effect::Content { before, after, shared: false })
        };
        let event = self.event(EventName::WriteLanded, source);
        let event = event.with(|event| event.message = Some(DELETED.to_owned())).by(actor);
        Ok(event.doing([effect(path, present, Some(new)), effect(source, new, None)]))
    }
}

/// Gives the same bytes at `place` the looks of `new`, except for those that are lower's.
fn dress(
    place: &Place,
    row: &UpperRow,
    (new, ours): (&Side, &Meta),
    (present, theirs): (&Side, &Meta),
) -> io::Result<()> {
    // A copy lacks the owner of what it was copied from if this process may not set that.
    let has_own = |has: fn(&FileLooks) -> bool| row.looks.as_ref().is_none_or(has);
    if has_own(FileLooks::has_own_owner) && (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
        place.set_owner(Some(ours.uid), Some(ours.gid))?;
    }
    let files = new.file.as_ref().zip(present.file.as_ref()).filter(|_| has_own(FileLooks::has_own_xattrs));
    let attributes = files.map_or(Ok(false), |(ours, theirs)| xattr::copy(ours.as_fd(), theirs.as_fd(), &[]))?;
    // Last, because with an access list the group bits are its mask; without that list they would be rights of the group.
    if attributes || ours.mode != theirs.mode {
        place.set_mode(ours.mode)?;
    }
    place.set_times(file::to_timespec(ours.atime), file::to_timespec(ours.mtime))
}

fn looks_and_time(meta: &Meta) -> (u32, u32, u32, Timestamp) {
    (meta.mode, meta.uid, meta.gid, meta.mtime)
}

fn is_same_inode(one: &Side, other: &Side) -> bool {
    one.meta.map(|meta| meta.key()) == other.meta.map(|meta| meta.key())
}
