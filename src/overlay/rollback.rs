//! Rolling back: kept content comes back, never judged, and what it replaces is kept in its turn.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::error::Context;
use super::handles::Backing;
use super::land::backup_of;
use super::review::{Review, Reviewed, conflict, failed};
use super::side::Side;
use super::{Error, Known, Overlay, Result, State, open_lower};
use crate::model::{BackupKind, RelPath};
use crate::protocol::{Action as Done, ErrorBody, ErrorCode, EventName, Outcome};
use crate::store::{
    self, AnchorState, Backup, Below, Durability, Effect, Epilogue, EventDraft, Kept, Landed, Landing, NewContent,
    PathEffect, Version, Writer,
};
use crate::sys::file::{FileKind, Meta};

/// Where backups go, and what they may go over.
#[derive(Clone, Debug, Default)]
pub struct RollbackHow {
    pub review: Review,
    /// Instead of the path each was made of.
    pub to: Option<RelPath>,
    /// Also over what somebody else wrote since; that is kept.
    pub force: bool,
}

impl Overlay {
    /// Puts kept content back where it was, or to `to`. Never judged; what it replaces is kept in its turn.
    pub fn rollback(&self, backups: &[Backup], how: &RollbackHow) -> Reviewed<Vec<Outcome>> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut epilogue = Epilogue::default();
        let mut outcomes = Vec::new();
        let mut replaced = Vec::new();
        for backup in backups {
            let path = how.to.as_ref().unwrap_or(&backup.path);
            let present = self.check_rollback(path, how)?;
            let mut outcome = Outcome::new(Done::Restored, path.clone());
            outcome.from = Some(backup.name.clone());
            outcome.size = Some(backup.size);
            let mut effects = Vec::new();
            if !how.review.dry_run {
                let (kept, effect) = self.stage_rollback(backup, path, &present, how, &mut landing)?;
                effects.extend(landing.newly_made().iter().map(|dir| PathEffect::new(dir, Effect::DirMade)));
                effects.push(PathEffect::new(path, effect));
                if let Some(kept) = kept {
                    replaced.push(outcomes.len());
                    // What had been renamed to here is not here any more.
                    epilogue.anchors.extend(self.state.lock().anchors_moved_to(path, kept));
                }
            }
            let restored = Kept { digest: backup.digest, symlink: backup.symlink };
            epilogue.anchors.push(Known::of(AnchorState::Content(restored)).as_anchor(path));
            epilogue.events.push(self.rolled_back_event(backup, path, how).doing(effects));
            outcomes.push(outcome);
        }
        if how.review.dry_run {
            return Ok(outcomes);
        }
        let whole = |err: store::Error| match err {
            store::Error::Conflict { path } => conflict(&path, "it changed below at this very moment"),
            other => ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was restored: {other}")),
        };
        let anchors = epilogue.anchors.clone();
        let promised = landing.promise(epilogue).map_err(whole)?;
        let applied = {
            let mut state = self.state.lock();
            let applied = promised.apply().map_err(whole)?;
            state.know(anchors);
            for outcome in &applied.outcomes {
                state.restored(&outcome.path, outcome.meta.as_ref());
                self.read_on(&state, &outcome.path);
            }
            applied
        };
        let Landed { backups, operation } = applied.finish().map_err(whole)?;
        for (index, name) in replaced.into_iter().zip(backups) {
            outcomes[index].backup = Some(name);
        }
        for outcome in &mut outcomes {
            outcome.operation = operation.map(|operation| operation.to_string());
        }
        for outcome in &outcomes {
            self.rebase_held(&outcome.path).map_err(|err| failed(&outcome.path, &err))?;
            self.tell_changed(&outcome.path, true);
        }
        Ok(outcomes)
    }

    /// What is at a path that may be rolled back.
    fn check_rollback(&self, path: &RelPath, how: &RollbackHow) -> Reviewed<Side> {
        self.check_may_land(path, &how.review.by)?;
        if self.is_in_held_dir(path) {
            let refusal = conflict(&path.to_string(), "its directory waits for review: confirm or discard that first");
            return Err(ErrorBody { path: Some(path.clone()), ..refusal });
        }
        self.check_way(path)?;
        let mut present = self.present_side(path).map_err(|err| failed(path, &err))?;
        if !how.force {
            self.check_untouched(path, &mut present)?;
        }
        match present.kind {
            None | Some(FileKind::Regular | FileKind::Symlink) => Ok(present),
            Some(_) => {
                let refusal = ErrorBody::new(ErrorCode::Conflict, format!("{path} is not a file any more"));
                Err(ErrorBody { path: Some(path.clone()), ..refusal })
            }
        }
    }

    /// What is replaced, which is kept in its turn; and what that does.
    fn stage_rollback(
        &self,
        backup: &Backup,
        path: &RelPath,
        present: &Side,
        how: &RollbackHow,
        landing: &mut Landing<'_>,
    ) -> Reviewed<(Option<Kept>, Effect)> {
        let fault = |err: Error| failed(path, &err);
        landing.make_parents(&self.lower, path).map_err(|err| fault(err.into()))?;
        let kept = present.stage(&self.store).map_err(|err| fault(err.into()))?;
        let mut replaced = None;
        if let Some(content) = kept {
            replaced = Some(Kept { digest: content.digest, symlink: present.is_symlink() });
            let made = backup_of(path, present, &content, BackupKind::RolledBack, &how.review.by);
            landing.keep(content, made);
        }
        let expect = present.meta.map(|meta| meta.stamp());
        let meta = self.place_backup(backup, path, expect, present, landing).map_err(fault)?;
        let restored = Kept { digest: backup.digest, symlink: backup.symlink };
        let after = Some(Version::of(&meta, Some(restored)));
        Ok((replaced, Effect::Content { before: present.version(replaced), after, shared: false }))
    }

    /// Who has the file open goes on with what lower has now. A symlink is nothing that could be read on.
    pub(super) fn read_on(&self, state: &State, path: &RelPath) {
        let open = state.nodes.at(path).and_then(|node| state.nodes.get(node).ok()?.open.clone());
        let Some(open) = open.filter(|open| matches!(*open.backing(), Backing::Lower(_))) else { return };
        if let Ok(lower) = open_lower(&self.lower, path) {
            open.set_backing(Backing::Lower(Arc::new(lower)));
        }
    }

    fn rolled_back_event(&self, backup: &Backup, path: &RelPath, how: &RollbackHow) -> EventDraft {
        self.event(EventName::RolledBack, path).with(|event| {
            (event.pid, event.uid) = (Some(how.review.by.pid), Some(how.review.by.uid));
            event.sha256 = Some(backup.digest);
            event.bytes = Some(backup.size);
            event.message = Some(backup.name.clone());
        })
    }

    fn place_backup(
        &self,
        backup: &Backup,
        path: &RelPath,
        expect: Option<crate::model::Stamp>,
        present: &Side,
        landing: &mut Landing<'_>,
    ) -> Result<Meta> {
        use std::os::unix::ffi::OsStrExt;
        let kept = self.store.content_file(backup.digest)?;
        let kept = kept.ok_or(Error::Errno(libc::ENOENT))?;
        if backup.symlink {
            let target = crate::sys::file::read_all(&kept)?;
            let (uid, gid) = present.meta.map_or((0, 0), |meta| (meta.uid, meta.gid));
            let link = NewContent::Symlink { target: std::ffi::OsStr::from_bytes(&target), uid, gid, times: None };
            return Ok(landing.place(&self.lower, path, expect, &link)?);
        }
        let kept_meta = Meta::of(kept.as_fd())?;
        let (uid, gid) = match present.meta {
            Some(meta) => (meta.uid, meta.gid),
            None => self.lower.stat(&path.parent().unwrap_or_default())?.map_or((0, 0), |meta| (meta.uid, meta.gid)),
        };
        let now = now();
        let meta = Meta { mode: backup.mode & 0o7777, uid, gid, atime: now, mtime: now, ..kept_meta };
        let like: &File = present.file.as_deref().unwrap_or(&kept);
        Ok(landing.place(&self.lower, path, expect, &NewContent::File { file: &kept, like, meta })?)
    }

    /// A file that somebody else edited after fettlefs last wrote it is not rolled back over his work.
    fn check_untouched(&self, path: &RelPath, present: &mut Side) -> Reviewed<()> {
        let known = self.known_digest(path).map_err(|err| failed(path, &err))?;
        let digest = present.digest().map_err(|err| failed(path, &err.into()))?;
        match (known, digest) {
            (Some(known), Some(digest)) if known != digest => {
                let error = conflict(&path.to_string(), "it was edited since; --force keeps that as a backup");
                Err(ErrorBody { path: Some(path.clone()), ..error })
            }
            _ => Ok(()),
        }
    }

    /// The hash of what fettlefs last put at a path.
    fn known_digest(&self, path: &RelPath) -> Result<Option<crate::model::Digest>> {
        let seen = self.state.lock().seen.get(path).and_then(|seen| seen.digest);
        match seen {
            Some(digest) => Ok(Some(digest)),
            None => Ok(self.store.last_landed(path)?),
        }
    }

    /// A held change over what was just restored goes on against that, under a new id.
    pub(super) fn rebase_held(&self, path: &RelPath) -> Result<()> {
        let row = {
            let state = self.state.lock();
            state.uppers.at(path).and_then(|id| state.uppers.get(id)).map(|upper| upper.row.clone())
        };
        let Some(mut row) = row.filter(|row| row.held.is_some()) else { return Ok(()) };
        let mut present = self.present_side(path)?;
        let content = present.kept().doing(|| format!("hash {path}"))?;
        row.base.below = match present.meta {
            Some(meta) => Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links },
            None => Below::Nothing,
        };
        row.base.content = content;
        if let Some(content) = present.stage(&self.store)? {
            self.store.keep_content(&content)?;
        }
        if row.what.is_structure() {
            return self.rebase_structure(row);
        }
        let id = row.id;
        self.state.lock().uppers.set_row(row);
        self.settle(id, &Writer::default()).map(|_| ())
    }
}

pub(super) fn now() -> crate::model::Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    crate::model::Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}
