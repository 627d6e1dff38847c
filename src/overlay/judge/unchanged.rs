//! What was written is what lower has already: no byte of it is to land, but how it looks may, and the source of a rename goes.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use super::claim::Job;
use super::settle::Settled;
use super::side::Side;
use crate::model::{BackupKind, RelPath, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::{Overlay, Result, State};
use crate::protocol::EventName;
use crate::store::{
    Durability, Effect, Epilogue, EventDraft, Fate, FileLooks, Kept, Landing, PathEffect, UpperRow, Writer,
};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::Place;
use crate::sys::xattr;

impl Overlay {
    /// Lower has these bytes already: nothing to write, nothing to keep, but the times a program saw stay (SPEC §4.10), and
    /// what was renamed here brings its attributes.
    pub(super) fn end_unchanged(&self, job: &Job, new: &Side, present: &Side, actor: &Writer) -> Result<Settled> {
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

fn is_same_inode(one: &Side, other: &Side) -> bool {
    one.meta.map(|meta| meta.key()) == other.meta.map(|meta| meta.key())
}
