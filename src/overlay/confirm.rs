//! Confirming: what was reviewed lands, durably, all of it or nothing.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::error::Context;
use super::land::{Replacement, content_effect, link_effects};
use super::review::{Review, Reviewed, Taken, WAIT_FOR_WRITERS, Writers, failed, not_landed, refused_at, reviewed};
use super::side::Side;
use super::{Error, Known, Overlay, Result, Seen, State, open_lower};
use crate::diff::{self, Merge};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, RelPath};
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, EventName, Outcome};
use crate::store::{
    self, Anchor, AnchorState, Applied, Base, Below, DirLooks, Durability, Effect, Epilogue, EventDraft, Fate,
    FileLooks, Kept, Landed, Landing, PathEffect, Promised, UpperRow, What, Writer,
};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::is_absent;

/// Whether changes held for too long without a look are refused (SPEC §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Guard,
    Ignore,
}

#[derive(Clone, Debug)]
pub struct ConfirmHow {
    pub review: Review,
    pub force: bool,
    pub wait: bool,
    pub renew: bool,
    pub expiry: Expiry,
}

/// One change on its way into lower. Its sides are open only while it is staged, but for what was merged, which has no
/// other place.
struct Landable {
    taken: Taken,
    new: Side,
    present: Side,
    done: Done,
    backup: Option<Kept>,
}

impl Landable {
    fn close(&mut self) {
        self.new = std::mem::take(&mut self.new).closed();
        self.present = std::mem::take(&mut self.present).closed();
    }
}

impl Overlay {
    /// Lands what was reviewed, all of it or nothing.
    pub fn confirm(&self, ids: &[ChangeId], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        self.person_decides(&how.review);
        let deadline = Instant::now() + if how.wait { WAIT_FOR_WRITERS } else { Duration::ZERO };
        let ids = self.with_landing_first(ids)?;
        let taken = self.take_all(&ids, Writers::WaitedFor { deadline })?;
        let result = self.confirm_taken(&taken.taken, how);
        let taken = taken.give_back();
        if let Ok(outcomes) = &result
            && !how.review.dry_run
        {
            self.after_landing(&taken, outcomes);
        }
        result
    }

    fn confirm_taken(&self, taken: &[Taken], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        if how.expiry == Expiry::Guard && !how.renew {
            // A directory that takes nothing's place has nothing that anybody could have overlooked.
            let shows = |change: &&Taken| change.row.what != What::Dir || change.row.base.content.is_some();
            taken.iter().filter(shows).try_for_each(|change| self.check_fresh(change))?;
        }
        let is_removal =
            |change: &&Taken| change.row.what == What::Whiteout && change.held.kind == ChangeKind::Structure;
        let (dirs, files): (Vec<&Taken>, Vec<&Taken>) = taken.iter().partition(is_removal);
        let check =
            |dir: &&Taken| self.check_emptied(dir, taken).inspect_err(|err| self.record_failure(dir, &err.message));
        dirs.iter().try_for_each(check)?;
        let mut landables = Vec::new();
        for change in files {
            let landable =
                self.landable(change, taken, how).inspect_err(|err| self.record_failure(change, &err.message))?;
            landables.push(landable);
        }
        // What takes the place of a directory comes before what that takes along goes, and a directory before what is in it.
        let replaces_dir = |landable: &Landable| landable.present.is_dir() && !landable.new.is_dir();
        let depth = |landable: &Landable| match landable.new.is_dir() {
            true => landable.taken.row.names[0].components().count(),
            false => usize::MAX,
        };
        // What takes one name of a file comes before the file is written in place by another: it is based on it as it is.
        let writes_in_place = |landable: &Landable| landable.taken.row.base.is_shared();
        landables.sort_by_key(|landable| (!replaces_dir(landable), depth(landable), writes_in_place(landable)));
        let outcomes: Vec<Outcome> = landables.iter().map(outcome).collect();
        if how.review.dry_run {
            return Ok(outcomes);
        }
        let landed = self.land_all(&mut landables, &dirs, &how.review.by);
        let Landed { backups, operation } = landed.map_err(|err| not_landed(err, "nothing was applied"))?;
        let mut names = backups.into_iter();
        let with_backup = outcomes.into_iter().zip(&landables).map(|(mut outcome, landable)| {
            outcome.backup = landable.backup.and_then(|_| names.next());
            outcome.operation = operation.map(|operation| operation.to_string());
            outcome
        });
        Ok(with_backup.collect())
    }

    pub(super) fn check_fresh(&self, change: &Taken) -> Reviewed<()> {
        let Some(expired) = self.expired(&change.held) else { return Ok(()) };
        self.tell_expired([&change.row]);
        let message = format!("{} of {} {expired}", change.held.id, change.row.names[0]);
        Err(ErrorBody::new(ErrorCode::Expired, message).about(change.held.id.as_str()))
    }

    /// Records which of these are not confirmed for want of a fresh look: each once, however often somebody tries, until he
    /// has looked and it expires again.
    pub fn tell_expired<'a>(&self, rows: impl IntoIterator<Item = &'a UpperRow>) {
        let expired = |row: &'a UpperRow| {
            let held = row.held.as_ref()?;
            Some((row, held, self.expired(held)?))
        };
        let expired: Vec<_> = rows.into_iter().filter_map(expired).collect();
        if expired.is_empty() {
            // Mostly: and the whole log would be read for nothing.
            return;
        }
        let told = match self.store.latest_of_changes(EventName::Expired) {
            Ok(told) => told,
            Err(err) => return log::error!("look into the log: {err}"),
        };
        for (row, held, message) in expired {
            if told.get(held.id.as_str()).is_none_or(|at| *at < held.renewed) {
                self.record_refusal(EventName::Expired, (&row.names[0], &held.id), &message);
            }
        }
    }

    pub(super) fn record_failure(&self, change: &Taken, message: &str) {
        self.record_refusal(EventName::ConfirmFailed, (&change.row.names[0], &change.held.id), message);
    }

    /// A refusal is told to who asked; that it cannot be recorded too is for the log.
    fn record_refusal(&self, name: EventName, (path, id): (&RelPath, &ChangeId), message: &str) {
        let event = self.event(name, path).with(|event| {
            event.id = Some(id.to_string());
            event.message = Some(message.to_owned());
        });
        if let Err(err) = self.store.record(&event) {
            log::error!("record that a confirm was refused: {err}");
        }
    }

    /// Checks one of `all` changes against its id and against lower as it is now; merges where lower has moved on.
    fn landable(&self, change: &Taken, all: &[Taken], how: &ConfirmHow) -> Reviewed<Landable> {
        let path = &change.row.names[0];
        let fault = |err: Error| failed(path, &err);
        let mut new = self.row_side(&change.row).map_err(fault)?;
        self.check_as_reviewed(change, &mut new)?;
        let mut present = self.present_side(path).map_err(fault)?;
        let taken = |change: &Taken| Taken {
            row: change.row.clone(),
            held: change.held.clone(),
            open: change.open.clone(),
            version: change.version,
        };
        if new.exists() {
            self.check_way(path)?;
        }
        if present.is_dir() && !new.is_dir() {
            // By force neither: it is not one content that could be kept.
            self.check_emptied(change, all)?;
        }
        if !how.force {
            check_mode_below(change, &new, &present)?;
        }
        self.check_further_names(change)?;
        let as_based = self.is_as_based(&change.row, &mut present).map_err(fault)?;
        if !as_based && !how.review.dry_run {
            // Once the two are one nobody finds it any more.
            self.tell_external(path);
        }
        let (new, done) = match as_based || how.force {
            true => (new.closed(), Done::Applied),
            false => (self.merged(change, &mut new, &mut present)?, Done::Merged),
        };
        Ok(Landable { taken: taken(change), new, present: present.closed(), done, backup: None })
    }

    /// An id names exact content: what lands is what was reviewed, or nothing (SPEC §8).
    pub(super) fn check_as_reviewed(&self, change: &Taken, new: &mut Side) -> Reviewed<()> {
        let path = &change.row.names[0];
        let fault = |err: std::io::Error| failed(path, &err.into());
        let looks = new.looks(&change.row).map_err(fault)?.digest();
        if (new.digest().map_err(fault)?, looks) == (change.held.new, change.held.looks) {
            return Ok(());
        }
        let message = format!("{} of {path} was written to since it was reviewed", change.held.id);
        Err(ErrorBody::new(ErrorCode::Superseded, message).about(change.held.id.as_str()))
    }

    /// Opens what was closed since it was checked, if it still is what it was.
    fn reopen(&self, landable: &mut Landable) -> Result<()> {
        let Landable { taken, new, present, done, .. } = landable;
        if *done == Done::Applied && new.has_descriptors() {
            let reopened = new.reopened(self.row_side(&taken.row)?);
            *new = reopened.ok_or_else(|| self.state.lock().crossed(taken))?;
        }
        if present.is_file() {
            let path = &taken.row.names[0];
            let conflict = || store::Error::Conflict { path: path.to_string() };
            *present = present.reopened(self.present_side(path)?).ok_or_else(conflict)?;
        }
        Ok(())
    }

    /// Directories that are gone are made anew; where a file has taken the place of one, nothing can land.
    pub(super) fn check_way(&self, path: &RelPath) -> Reviewed<()> {
        let mut above = path.parent();
        while let Some(dir) = above {
            if self.state.lock().uppers.held_dir(&dir).is_some() {
                // It lands before what is in it.
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

    /// Further names are made, never put in the place of something, by force neither: they show nothing that would be lost.
    fn check_further_names(&self, change: &Taken) -> Reviewed<()> {
        for name in change.row.further_names() {
            if self.lower.exists(name).map_err(|err| failed(name, &err.into()))? {
                let (first, id) = (&change.row.names[0], &change.held.id);
                // Without the id as such, by which programs and people would be told that it can be forced.
                let why = format!(
                    "something else is there below by now, where {first} is to be linked: move it away, or discard {id}"
                );
                return Err(refused_at(name, ErrorCode::Conflict, &why));
            }
        }
        Ok(())
    }

    /// A directory goes with what was deleted in it. With anything else in it, which the view does not show, it stays.
    fn check_emptied(&self, dir: &Taken, taken: &[Taken]) -> Reviewed<()> {
        let path = &dir.row.names[0];
        let entries = match self.lower.list(path) {
            Err(err) if is_absent(&err) => return Ok(()),
            listed => listed.map_err(|err| failed(path, &err.into()))?,
        };
        let goes =
            |entry: &RelPath| taken.iter().any(|one| one.row.what == What::Whiteout && one.row.names[0] == *entry);
        match entries.iter().filter_map(|entry| path.join(&entry.name).ok()).find(|entry| !goes(entry)) {
            Some(other) => {
                let why =
                    format!("{other} has come to be in it below; move it away, or discard {} to see it", dir.held.id);
                Err(refused_at(path, ErrorCode::Conflict, &why))
            }
            None => Ok(()),
        }
    }

    /// Whether lower has what a change was based on when it began to wait.
    pub(super) fn is_as_based(&self, row: &UpperRow, present: &mut Side) -> Result<bool> {
        let stamp = present.meta.map(|meta| meta.stamp());
        Ok(match (row.base.below, stamp) {
            (Below::Nothing, None) => true,
            (Below::Entry { stamp: base, .. }, Some(now)) if base == now => true,
            // Times are a hint, which anybody sets but for one, and that one moves with every name; the content decides.
            (Below::Entry { .. }, Some(_)) => {
                let content = present.kept().doing(|| format!("hash {}", row.names[0]))?;
                content == row.base.content_below()
            }
            (Below::Entry { .. }, None) | (Below::Nothing, Some(_)) => false,
        })
    }

    /// What comes out when the held change and the change below are put together; a refusal where they clash.
    pub(super) fn merged(&self, change: &Taken, new: &mut Side, present: &mut Side) -> Reviewed<Side> {
        let path = &change.row.names[0];
        let refuse = |detail: Option<String>| {
            let message = format!("{path} was changed below since {} was based on it", change.held.id);
            let error = ErrorBody::new(ErrorCode::Conflict, message).about(change.held.id.as_str());
            ErrorBody { path: Some(path.clone()), detail: detail.map(String::into_boxed_str), ..error }
        };
        let contents = (new.kept().ok().flatten(), present.kept().ok().flatten());
        if contents.0 == contents.1 {
            // What has no content is the same only where it is the same kind of thing.
            return match contents.0.is_some() || present.kind.is_none() || present.kind == new.kind {
                true => Ok(std::mem::take(new)),
                false => Err(refuse(None)),
            };
        }
        let mut merged = self.merge_texts(path, change.row.base.content, present, new, refuse)?;
        if change.row.looks.is_some() {
            wear_looks(&mut merged, new).map_err(|err| failed(path, &err.into()))?;
        }
        Ok(merged)
    }

    /// What two have made of the same text, each in his own lines (SPEC §9). `refuse` is told the hunks that clash, where
    /// it is for hunks that they cannot be merged.
    pub(super) fn merge_texts(
        &self,
        path: &RelPath,
        base: Option<Kept>,
        present: &Side,
        new: &Side,
        refuse: impl Fn(Option<String>) -> ErrorBody,
    ) -> Reviewed<Side> {
        let base = base.filter(|kept| !kept.symlink).map(|kept| self.store.content_file(kept.digest)).transpose();
        let base = base.map_err(|err| failed(path, &err.into()))?.flatten();
        let base = base.map(|file| file::read_all(&file)).transpose().map_err(|err| failed(path, &err.into()))?;
        let (Some(base), Some(ours), Some(theirs)) = (base, &present.bytes, &new.bytes) else {
            return Err(refuse(None));
        };
        let text = |bytes: &[u8]| diff::classify(Some(bytes)) == diff::Side::Text;
        if !(text(&base) && text(ours) && text(theirs) && present.is_file() && new.is_file()) {
            return Err(refuse(None));
        }
        match diff::merge(&base, ours, theirs) {
            Merge::Clean(merged) => self.merged_side(path, &merged),
            Merge::Conflict { hunks } => Err(refuse(Some(hunks))),
        }
    }

    /// Merged content as a file that can be landed, with the metadata of what lower has.
    pub(super) fn merged_side(&self, path: &RelPath, merged: &[u8]) -> Reviewed<Side> {
        use std::io::Write;
        let fault = |err: Error| failed(path, &err);
        let upper = self.store.create_upper(0o600).map_err(|err| fault(err.into()))?;
        let write = || -> Result<Side> {
            let lower = open_lower(&self.lower, path)?;
            let meta = Meta::of(lower.as_fd())?;
            (&upper.file).write_all(merged)?;
            file::copy_looks(lower.as_fd(), &meta, upper.file.as_fd())?;
            Ok(Side::of_file(upper.file.try_clone()?)?)
        };
        // The descriptor is all that is needed: the name goes with `upper`.
        write().map_err(fault)
    }

    /// One landing for all of them, with which the directories of `dirs` go too.
    fn land_all(&self, landables: &mut [Landable], dirs: &[&Taken], by: &Writer) -> Result<Landed> {
        let (landing, mut epilogue) = self.stage_all(landables, dirs, by)?;
        let elsewhere = self.anchors_elsewhere(landables, &epilogue);
        epilogue.anchors.extend(elsewhere.iter().cloned());
        let applied = self.apply_all(landing.promise(epilogue)?, landables, dirs, elsewhere)?;
        let landed = applied.finish()?;
        for landable in landables.iter() {
            self.row_dropped(&mut self.state.lock(), landable.taken.row.id)?;
        }
        Ok(landed)
    }

    fn stage_all(&self, landables: &mut [Landable], dirs: &[&Taken], by: &Writer) -> Result<(Landing<'_>, Epilogue)> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut epilogue = Epilogue::default();
        for landable in landables.iter_mut() {
            let staged = self.stage_landable(landable, &mut landing, &mut epilogue, by);
            staged.map_err(|err| self.written_meanwhile(err, &landable.taken))?;
            landable.close();
        }
        for dir in dirs {
            landing.remove_dir(&self.lower, &dir.row.names[0])?;
            epilogue.events.push(self.confirmed_dir(dir, by)?);
            epilogue.drop.push(dir.row.id);
            epilogue.verdicts.push((dir.held.id.clone(), dir.row.names[0].clone(), Fate::Applied));
        }
        Ok((landing, epilogue))
    }

    fn stage_landable(
        &self,
        landable: &mut Landable,
        landing: &mut Landing<'_>,
        epilogue: &mut Epilogue,
        by: &Writer,
    ) -> Result<()> {
        self.reopen(landable)?;
        self.take_looks_below(&landable.taken.row, &mut landable.new, &landable.present)?;
        if landable.new.exists() {
            let mut names = landable.taken.row.names.iter();
            names.try_for_each(|name| landing.make_parents(&self.lower, name))?;
        }
        self.stage_confirmed(landable, landing, by)?;
        let made = landing.newly_made().iter().map(|dir| PathEffect::new(dir, Effect::DirMade)).collect();
        self.confirmed_epilogue(landable, made, epilogue, by)
    }

    /// Who writes to a change while it is copied is named, as who is found to have written to it afterwards.
    pub(super) fn written_meanwhile(&self, err: Error, taken: &Taken) -> Error {
        match err.is_written_meanwhile() {
            true => self.state.lock().crossed(taken),
            false => err,
        }
    }

    /// Of what is replaced, older content may be known to have been renamed there: it is kept now. What is reviewed itself
    /// is known by that.
    fn anchors_elsewhere(&self, landables: &[Landable], epilogue: &Epilogue) -> Vec<Anchor> {
        let state = self.state.lock();
        let replaced = landables.iter().filter_map(|landable| Some((&landable.taken.row.names[0], landable.backup?)));
        let moved = replaced.flat_map(|(path, kept)| state.anchors_moved_to(path, kept));
        let is_reviewed = |anchor: &Anchor| epilogue.anchors.iter().any(|reviewed| reviewed.path == anchor.path);
        moved.filter(|anchor| !is_reviewed(anchor)).collect()
    }

    /// Lower and what is known of it change together; [`Error::Busy`] where one of them was written to meanwhile.
    fn apply_all<'a>(
        &self,
        promised: Promised<'a>,
        landables: &mut [Landable],
        dirs: &[&Taken],
        elsewhere: Vec<Anchor>,
    ) -> Result<Applied<'a>> {
        let mut state = self.state.lock();
        if let Some(crossed) = landables.iter().find(|landable| !state.is_as_taken(&landable.taken)) {
            let crossed = state.crossed(&crossed.taken);
            drop(state);
            return Err(crossed);
        }
        let mut applied = promised.apply()?;
        state.know(elsewhere);
        for landable in landables.iter_mut() {
            let meta = applied.meta_of(&landable.taken.row.names[0]);
            let content = landable.new.kept().ok().flatten();
            if let (Some(before), Some(after)) = (landable.present.meta, &meta) {
                let taken = state.uppers.taken_as_written(&before.stamp(), &after.stamp(), content);
                applied.epilogue().save_others(taken);
            }
            state.confirmed(&landable.taken.row, meta.as_ref(), content);
            if let (Done::Applied, Some(shown), Some(below)) = (landable.done, &landable.new.meta, &meta) {
                state.nodes.keep_ctime(&landable.taken.row.names[0], shown, below);
            }
        }
        for dir in dirs {
            state.uppers.remove(dir.row.id);
        }
        Ok(applied)
    }

    fn stage_confirmed(&self, landable: &mut Landable, landing: &mut Landing<'_>, by: &Writer) -> Result<()> {
        let row = &landable.taken.row;
        let change = Replacement {
            path: &row.names[0],
            base: &row.base,
            new: &landable.new,
            present: &landable.present,
            kind: BackupKind::Confirmed,
            by,
        };
        landable.backup = self.stage_replacement(&change, landing)?;
        self.stage_aliases(row, landing)
    }

    /// A directory whose removal was held goes with what was held in it.
    fn confirmed_dir(&self, dir: &Taken, by: &Writer) -> Result<EventDraft> {
        let path = &dir.row.names[0];
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?.filter(Meta::is_dir);
        let removed = meta.map(|meta| self.dir_removed(path, &meta)).transpose()?;
        let event = self.event(EventName::Confirmed, path).with(|event| {
            event.id = Some(dir.held.id.to_string());
            event.message = Some("[directory removed]".to_owned());
        });
        Ok(reviewed(event, &dir.held, by).doing(removed))
    }

    /// What it does to a directory that is there now to go.
    fn dir_removed(&self, path: &RelPath, meta: &Meta) -> Result<PathEffect> {
        let looks = self.lower.place(path).and_then(|place| DirLooks::of_going(&place, meta));
        Ok(PathEffect::new(path, Effect::DirRemoved(looks.doing(|| format!("open {path}"))?)))
    }

    /// `effects` is what had to be done before.
    fn confirmed_epilogue(
        &self,
        landable: &mut Landable,
        mut effects: Vec<PathEffect>,
        epilogue: &mut Epilogue,
        by: &Writer,
    ) -> Result<()> {
        let Landable { taken, new, present, done, backup } = landable;
        let path = &taken.row.names[0];
        let content = new.kept().doing(|| format!("hash {path}"))?;
        let after = new.version(content);
        if let Some(meta) = present.meta.filter(|meta| meta.is_dir() && !new.is_dir()) {
            // Without it an undo would leave nothing at all there.
            effects.push(self.dir_removed(path, &meta)?);
        }
        if present.version(*backup).is_some() || after.is_some() {
            let effect = content_effect(&taken.row.base, (&*present, *backup), after);
            effects.push(PathEffect::new(path, effect));
        }
        effects.extend(structure_made(present, new).map(|effect| PathEffect::new(path, effect)));
        effects.extend(link_effects(&taken.row));
        epilogue.drop.push(taken.row.id);
        epilogue.verdicts.push((taken.held.id.clone(), path.clone(), Fate::Applied));
        let state = content.map_or(AnchorState::Nothing, AnchorState::Content);
        // Reviewed: from here on the path is judged against what was reviewed.
        epilogue.anchors.push(Known::of(state).as_anchor(path));
        let event = self.event(EventName::Confirmed, path).with(|event| {
            event.id = Some(taken.held.id.to_string());
            event.sha256 = content.map(|kept| kept.digest);
            event.bytes = new.kind.map(|_| new.size);
            event.insertions = Some(taken.held.insertions);
            event.deletions = Some(taken.held.deletions);
            event.message = match done {
                Done::Merged => Some("merged with a change below".to_owned()),
                _ => new.kind.is_none().then(|| "[deleted]".to_owned()),
            };
        });
        epilogue.events.push(reviewed(event, &taken.held, by).doing(effects));
        // What is compared with later must be there even when the file is replaced from outside.
        if let Some(content) = new.stage(&self.store)? {
            self.store.keep_content(&content)?;
        }
        Ok(())
    }

    fn after_landing(&self, taken: &[Taken], outcomes: &[Outcome]) {
        for change in taken {
            if let Err(err) = self.evict(change.row.id).and_then(|()| self.empty_hidden_dirs(&change.row.names[0])) {
                log::error!("let go of {}: {err}", change.row.names[0]);
            }
        }
        let merged = |path: &RelPath| outcomes.iter().any(|done| done.path == *path && done.action == Done::Merged);
        for change in taken {
            self.tell_changed(&change.row.names[0], merged(&change.row.names[0]));
        }
    }

    /// A hidden directory goes below when the last held deletion in it has landed.
    fn empty_hidden_dirs(&self, path: &RelPath) -> Result<()> {
        let Some(dir) = path.parent() else { return Ok(()) };
        let hidden = {
            let state = self.state.lock();
            let id = state.uppers.at(&dir);
            id.and_then(|id| state.uppers.get(id)).map(|upper| upper.row.clone())
        };
        let Some(row) = hidden.filter(|row| row.what == What::Whiteout && row.held.is_some()) else { return Ok(()) };
        if !self.lower.list(&dir)?.is_empty() {
            return Ok(());
        }
        let mut epilogue = Epilogue { drop: vec![row.id], ..Epilogue::default() };
        if let Some(held) = row.held {
            epilogue.verdicts.push((held.id, dir.clone(), Fate::Applied));
        }
        let mut landing = Landing::new(&self.store, Durability::Synced);
        landing.remove_dir(&self.lower, &dir)?;
        landing.promise(epilogue)?.apply()?.finish()?;
        self.state.lock().uppers.remove(row.id);
        self.empty_hidden_dirs(&dir)
    }
}

impl State {
    /// A reviewed change is lower's now.
    pub(super) fn confirmed(&mut self, row: &UpperRow, meta: Option<&Meta>, content: Option<Kept>) {
        let path = &row.names[0];
        self.restored(path, meta, content.map(|kept| kept.digest));
        if let (Below::Entry { stamp, .. }, Some(meta)) = (row.base.below, meta) {
            self.sights.unchanged(path, &stamp, &meta.stamp());
        }
        let state = content.map_or(AnchorState::Nothing, AnchorState::Content);
        self.anchors.insert(path.clone(), Known::of(state));
        self.windows.forget(path);
        self.uppers.held_no_more(row.id);
        if let Some(upper) = self.uppers.get_mut(row.id) {
            upper.dirty = false;
            if let Some(meta) = meta {
                // With others' edits merged in it looks like what has landed, and not like its own file.
                upper.row.looks = Some(FileLooks::default());
                let base = Base { below: Below::of(Some(meta)), ..upper.row.base };
                self.uppers.set_base(row.id, base);
            }
        }
    }

    /// Lower has something new at a path by our own doing, with that content.
    pub(super) fn restored(&mut self, path: &RelPath, meta: Option<&Meta>, digest: Option<Digest>) {
        self.epoch += 1;
        self.windows.forget(path);
        match meta.filter(|meta| !meta.is_dir()) {
            Some(meta) => {
                self.seen.insert(path.clone(), Seen { stamp: meta.stamp(), digest });
            }
            // A directory changes with each name in it.
            None => {
                self.seen.remove(path);
            }
        }
        if let Some(node) = self.nodes.at(path) {
            self.nodes.set_lower(node, meta.map(Meta::key));
            if let Some(meta) = meta {
                self.nodes.note_shown(node, &meta.stamp());
            }
        }
    }
}

/// A mode that somebody has given the file below since is not taken back by one that nobody has seen beside it.
fn check_mode_below(change: &Taken, new: &Side, present: &Side) -> Reviewed<()> {
    let Below::Entry { mode: base, .. } = change.row.base.below else { return Ok(()) };
    let brings_mode = change.row.looks.as_ref().is_some_and(|looks| looks.own.mode && !looks.alone);
    match present.meta.filter(Meta::is_file).map(|meta| meta.mode) {
        Some(now) if brings_mode && now != base && now != new.mode => {
            let (path, id) = (&change.row.names[0], &change.held.id);
            let why = format!("it was given mode {now:03o} below, since {id} was based on it with {base:03o}");
            Err(refused_at(path, ErrorCode::Conflict, &why).about(id.as_str()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Merged content looks like the change itself, until it takes over what is lower's.
fn wear_looks(merged: &mut Side, new: &Side) -> std::io::Result<()> {
    let (Some(to), Some(from), Some(meta)) = (&merged.file, &new.file, &new.meta) else { return Ok(()) };
    file::copy_looks(from.as_fd(), meta, to.as_fd())?;
    let meta = Meta::of(to.as_fd())?;
    (merged.mode, merged.meta) = (meta.mode, Some(meta));
    Ok(())
}

/// What has no content and lands all the same.
fn structure_made(present: &Side, new: &Side) -> Option<Effect> {
    let kind = new.kind.filter(|kind| present.kind != Some(*kind))?;
    match kind {
        FileKind::Directory => Some(Effect::DirMade),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Some(Effect::SpecialMade),
        FileKind::Regular | FileKind::Symlink => None,
    }
}

fn has_content(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Symlink)
}

fn outcome(landable: &Landable) -> Outcome {
    let held = &landable.taken.held;
    let mut outcome = Outcome::new(landable.done, landable.taken.row.names[0].clone());
    outcome.id = Some(held.id.clone());
    outcome.kind = Some(held.kind);
    outcome.size = landable.new.kind.filter(|kind| has_content(*kind)).map(|_| landable.new.size);
    outcome.lines = landable.new.lines();
    outcome.counts = Some(Counts::of(held.insertions, held.deletions, held.old_lines));
    outcome
}
