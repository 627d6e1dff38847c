//! Rolling back: kept content comes back, never judged, and what it replaces becomes a backup.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustix::process::{getegid, geteuid};

use super::check_is_file;
use crate::model::{BackupKind, RelPath};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Backing, OpenFile};
use crate::overlay::judge::land::{Replacement, content_effect};
use crate::overlay::judge::side::Side;
use crate::overlay::review::merge::edited_since;
use crate::overlay::review::permits::Permits;
use crate::overlay::review::{Review, Reviewed, check_no_file_twice, check_not_ours, failed};
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, EventName, Note, Outcome};
use crate::store::{
    AnchorState, Backup, Base, Below, Durability, Effect, Epilogue, EventDraft, Kept, Known, Landed, Landing,
    PathEffect, Version,
};
use crate::sys::file::FileKind;
use crate::sys::tree::is_absent;

/// Where backups are put back, and over what.
#[derive(Clone, Debug, Default)]
pub struct RollbackHow {
    pub review: Review,
    /// Instead of each backup's own path.
    pub to: Option<RelPath>,
    /// Roll back also over what was edited since; that is kept.
    pub force: bool,
    pub permits: Permits,
}

impl RollbackHow {
    fn path_of<'a>(&'a self, backup: &'a Backup) -> &'a RelPath {
        self.to.as_ref().unwrap_or(&backup.path)
    }
}

/// One path on its way back.
struct Rolling<'a> {
    backup: &'a Backup,
    path: &'a RelPath,
    present: Side,
    /// What is to be there instead of the backup's content: that content merged with the edits since.
    merged: Option<Side>,
    /// What it replaces, which becomes a backup.
    replaced: Option<Kept>,
}

impl Overlay {
    /// Puts kept content back where it was, or to `to`. Never judged; what it replaces becomes a backup. Edits since are
    /// merged if possible, as by an undo (SPEC §9).
    pub fn rollback(&self, backups: &[Backup], how: &RollbackHow) -> Reviewed<Vec<Outcome>> {
        self.person_decides(&how.review);
        let _acting = self.acting_at(backups.iter().map(|backup| how.path_of(backup)));
        // Not needed with `force`, which goes over edits.
        let asked = backups.iter().filter(|_| !how.force);
        let landed = self.landed_unseen(asked.map(|backup| how.path_of(backup)))?;
        let rolling = backups.iter().map(|backup| self.check_rollback(backup, how, &landed));
        let mut rolling = rolling.collect::<Reviewed<Vec<Rolling<'_>>>>()?;
        check_each_once(&rolling)?;
        let mut outcomes: Vec<Outcome> = rolling.iter().map(Rolling::outcome).collect();
        if how.review.dry_run {
            return Ok(outcomes);
        }
        let landed = self.land_rolled_back(&mut rolling, how);
        let Landed { backups, operation } = landed.map_err(|err| self.not_landed(err, "nothing was restored"))?;
        let kept = rolling.iter().zip(&mut outcomes).filter(|(one, _)| one.replaced.is_some());
        for ((_, outcome), name) in kept.zip(backups) {
            outcome.backup = Some(name);
        }
        for outcome in &mut outcomes {
            outcome.operation = operation.map(|operation| operation.to_string());
            self.rebase_restored(&outcome.path);
            self.tell_content_changed(&outcome.path);
        }
        Ok(outcomes)
    }

    /// Checks that a path may be rolled back. Returns what is there and what is to be there.
    fn check_rollback<'a>(
        &self,
        backup: &'a Backup,
        how: &'a RollbackHow,
        landed: &HashMap<RelPath, Kept>,
    ) -> Reviewed<Rolling<'a>> {
        let path = how.path_of(backup);
        check_not_ours(path)?;
        self.check_may_land(path, &how.review.by)?;
        self.check_not_open(path, coming(backup))?;
        self.check_would_show(path, &HashSet::new())?;
        self.check_way(path)?;
        let mut present = self.present_side(path).map_err(|err| failed(path, &err))?;
        check_is_file(path, &present)?;
        self.check_may_rewrite(path, present.meta.as_ref(), &how.review.by)?;
        let keeps_looks = present.meta.is_some_and(|meta| meta.mode == backup.mode & 0o7777);
        self.check_may_replace(path, &present, (!backup.symlink, keeps_looks), &how.permits)?;
        if !how.review.dry_run {
            self.tell_external(path);
        }
        let edited = if how.force { None } else { self.edited_since(path, &mut present, landed)? };
        let merged = edited.map(|known| self.merge_edited(backup, path, known, &present)).transpose()?;
        Ok(Rolling { backup, path, present, merged, replaced: None })
    }

    /// The content that fettlefs last put at a path, if it was edited since.
    fn edited_since(
        &self,
        path: &RelPath,
        present: &mut Side,
        landed: &HashMap<RelPath, Kept>,
    ) -> Reviewed<Option<Kept>> {
        let known = self.seen_content(path).or_else(|| landed.get(path).copied());
        let now = present.kept().map_err(|err| failed(path, &err.into()))?;
        Ok(known.filter(|known| now.is_some_and(|now| now != *known)))
    }

    /// Merges the backup's content with the edits made to `known` since. Refused for a backup of another file, with which
    /// nothing can be merged, and where the backup is `known` itself: then a rollback would only drop those edits.
    fn merge_edited(&self, backup: &Backup, path: &RelPath, known: Kept, present: &Side) -> Reviewed<Side> {
        let refuse = |clashes| edited_since(path, clashes);
        if backup.symlink || backup.path != *path || backup.kept() == known {
            return Err(refuse(None));
        }
        let old = self.store.content_file(backup.digest).map_err(|err| failed(path, &err.into()))?;
        let Some(old) = old else { return Err(refuse(None)) };
        let old = Side::of_file(old).map_err(|err| failed(path, &err.into()))?;
        self.merge_texts(path, Some(known), present, &old, refuse)
    }

    fn land_rolled_back(&self, rolling: &mut [Rolling<'_>], how: &RollbackHow) -> Result<Landed> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut epilogue = Epilogue::default();
        let mut contents = Vec::new();
        for one in rolling.iter_mut() {
            let effect = self.stage_rollback(one, how, &mut landing)?;
            let mut effects = landing.newly_made()?;
            effects.push(PathEffect::new(one.path, effect));
            let restored = one.restored()?;
            contents.push(restored);
            if let Some(kept) = one.replaced {
                // What had been renamed to this path is not here any more.
                epilogue.anchors.extend(self.state.lock().past.moved_to(one.path, kept));
            }
            epilogue.anchors.push(Known::of(AnchorState::Content(restored)).as_anchor(one.path));
            epilogue.events.push(self.rolled_back_event(one, restored, how).doing(effects));
        }
        let anchors = epilogue.anchors.clone();
        let _ways = self.ways_back_to(rolling.iter().map(|one| one.path))?;
        let promised = landing.promise(epilogue)?;
        // The caller knows what is there then, and is no stale writer.
        let tree = self.tree_of(how.review.by.pid);
        let applied = {
            let mut state = self.state.lock();
            let mut opened =
                rolling.iter().filter_map(|one| Some((one.path, state.open_unheld(one.path, coming(one.backup))?)));
            if let Some((path, pid)) = opened.next() {
                return Err(Error::Busy { path: path.clone(), pid: Some(pid).filter(|pid| *pid != 0) });
            }
            let applied = promised.apply()?;
            state.know(anchors);
            for (one, restored) in rolling.iter().zip(contents) {
                let meta = applied.meta_of(one.path);
                state.restored(one.path, (one.present.meta.as_ref(), meta.as_ref()), Some(restored));
                state.saw(one.path, meta.map(|meta| meta.stamp()), tree);
                self.read_on(&mut state, one.path);
            }
            applied
        };
        Ok(applied.finish()?)
    }

    /// Stages what is to be there and the backup of what it replaces. Returns the effect.
    fn stage_rollback(&self, one: &mut Rolling<'_>, how: &RollbackHow, landing: &mut Landing<'_>) -> Result<Effect> {
        let mut new = self.side_of_backup(one)?;
        let Rolling { path, present, .. } = &*one;
        landing.make_parents(&self.lower, path)?;
        // All names of a file go back together.
        let base = Base::of(Below::of(present.meta.as_ref()));
        let (kind, by) = (BackupKind::RolledBack, &how.review.by);
        one.replaced = self.stage_replacement(
            &Replacement { path, base: &base, new: &new, raises: None, present, kind, by },
            landing,
        )?;
        if let Some(merged) = &one.merged {
            self.keep_to_compare(merged)?;
        }
        let after = new.kept().doing(|| format!("hash {}", one.path))?;
        Ok(content_effect(&base, (&one.present, one.replaced), new.version(after)))
    }

    fn side_of_backup(&self, one: &Rolling<'_>) -> Result<Side> {
        let Rolling { backup, present, merged, .. } = one;
        if let Some(merged) = merged {
            return Ok(merged.clone());
        }
        let kept = self.store.content_file(backup.digest)?.ok_or(Error::Errno(libc::ENOENT))?;
        // Not the directory's owner, who may not have been allowed to read this content.
        let owner = present.meta.map(|meta| (meta.uid, meta.gid)).or(backup.owner);
        let (uid, gid) = owner.unwrap_or_else(|| (geteuid().as_raw(), getegid().as_raw()));
        let Backup { size, mode, group, mtime, .. } = **backup;
        let looks = Version { content: None, size, mode: mode & 0o7777, uid, gid, mtime, group };
        match backup.symlink {
            true => self.symlink_side(&kept, &looks),
            false => self.dressed_side(&kept, present.file.as_deref(), &looks),
        }
    }

    /// Switches readers of the file to what lower has now, if the view shows that. A symlink cannot be read on.
    pub(in crate::overlay) fn read_on(&self, state: &mut State, path: &RelPath) {
        if !state.is_taken_from_lower(path) {
            return;
        }
        let below = |open: &&Arc<OpenFile>| matches!(*open.backing(), Backing::Lower(_));
        let open = state.returned_to(path).or_else(|| state.nodes.open_at(path).filter(below).cloned());
        let Some(open) = open else { return };
        match self.lower.open_to_read(path) {
            Ok(lower) => open.set_backing(&mut state.nodes, Backing::Lower(Arc::new(lower))),
            Err(err) if is_absent(&err) => {}
            // Its readers go on with what was there; the next open finds what is there now.
            Err(_) => state.nodes.part_from(path),
        }
    }

    fn rolled_back_event(&self, one: &Rolling<'_>, restored: Kept, how: &RollbackHow) -> EventDraft {
        self.event(EventName::RolledBack, one.path).asked_by(&how.review.by).with(|event| {
            event.sha256 = Some(restored.digest);
            event.bytes = Some(one.size());
            event.message = Some(one.backup.name.clone());
        })
    }

    /// What fettlefs last put at a path, as far as this session knows.
    fn seen_content(&self, path: &RelPath) -> Option<Kept> {
        self.state.lock().seen.get(path).and_then(|seen| seen.content)
    }

    /// The same from the log, for those paths of which this session does not know it.
    fn landed_unseen<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) -> Reviewed<HashMap<RelPath, Kept>> {
        let unseen = paths.filter(|path| self.seen_content(path).is_none()).cloned().collect();
        self.store.last_landed(&unseen).map_err(|err| self.not_landed(err.into(), "nothing was restored"))
    }

    /// Rebases what is held over a path that was just restored. A failure is only logged: the path is restored all the
    /// same, and the caller must still tell the others.
    pub(super) fn rebase_restored(&self, path: &RelPath) {
        if let Err(err) = self.rebase_held(path) {
            log::error!("{path} is restored, and what is held over it is not based on that: {err}");
        }
    }

    /// The same over a path at which fettlefs itself has written to lower.
    pub fn rebase_on_own(&self, path: &RelPath) {
        if let Err(err) = self.rebase_held(path) {
            log::error!("{path} was written, and what is held over it is not based on that: {err}");
        }
    }

    /// The change goes on under a new id. This is no write: however little it now changes, it stays held.
    fn rebase_held(&self, path: &RelPath) -> Result<()> {
        let Some(id) = self.state.lock().uppers.at(path) else { return Ok(()) };
        let Some((mut row, claimed)) = self.claim_if_there(id) else { return Ok(()) };
        let Some(held) = row.held.clone().filter(|_| *row.path() == *path) else { return Ok(()) };
        let mut present = self.present_side(path)?;
        let content = present.kept().doing(|| format!("hash {path}"))?;
        row.base.below = Below::of(present.meta.as_ref());
        // If nothing is there any more, it stays a change of what it was based on, like one of a deleted file (SPEC
        // §4.3).
        (row.base.content, row.base.found) = (content.or(row.base.content), None);
        self.keep_to_compare(&present)?;
        if row.what.is_structure() {
            return self.rebase_structure(row);
        }
        self.state.lock().uppers.set_row(row);
        drop(claimed);
        self.settle_because(id, &held.writer.unwrap_or_default(), held.reasons).map(|_| ())
    }
}

/// All names of a file go back together: it cannot have two contents.
fn check_each_once(rolling: &[Rolling<'_>]) -> Reviewed<()> {
    let files = rolling.iter().filter_map(|one| Some((one.present.meta?.key(), one.path)));
    check_no_file_twice(files, |other| {
        format!("nothing was restored: it is another name of {other}. Roll back one of them")
    })
}

/// What kind of file a rollback puts at its path.
fn coming(backup: &Backup) -> FileKind {
    if backup.symlink { FileKind::Symlink } else { FileKind::Regular }
}

impl Rolling<'_> {
    fn size(&self) -> u64 {
        self.merged.as_ref().map_or(self.backup.size, |merged| merged.size)
    }

    /// The content that the path has after the rollback.
    fn restored(&mut self) -> Result<Kept> {
        let merged = self.merged.as_mut().map(Side::kept).transpose();
        Ok(merged.doing(|| format!("hash {}", self.path))?.flatten().unwrap_or_else(|| self.backup.kept()))
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(Done::Restored, self.path.clone());
        outcome.from = Some(self.backup.name.clone());
        outcome.size = Some(self.size());
        outcome.note = self.merged.as_ref().map(|_| Note::Merged);
        outcome
    }
}
