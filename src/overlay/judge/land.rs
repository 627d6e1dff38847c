//! Landing what settled: a journalled landing of the store, and the update of all that memory says of the path.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use super::claim::Job;
use super::compare::Comparison;
use super::settle::Settled;
use super::side::Side;
use crate::diff::{self};
use crate::model::{BackupKind, Digest, Reason, RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::files::handles::Backing;
use crate::overlay::state::nodes::{NodeId, Told};
use crate::overlay::who::goes::{Doing, Part, Stands};
use crate::overlay::{Error, Overlay, Result, State};
use crate::policy::tier::LandNote;
use crate::protocol::{DELETED, EventName, NEW_FILE};
use crate::store::{
    self, Anchor, AnchorState, Applied, Backup, Base, Durability, Effect, Epilogue, EventDraft, Fate, Kept, Landing,
    NewContent, NodeLooks, PathEffect, Promised, StagedContent, UpperId, UpperRow, Version, What, Writer,
};
use crate::sys::file::{FileKind, Meta};

/// The execute bits of a mode.
const ANY_MAY_RUN: u32 = 0o111;

/// One path of lower about to become what it is in the view.
pub(in crate::overlay) struct Replacement<'a> {
    pub path: &'a RelPath,
    pub base: &'a Base,
    pub new: &'a Side,
    /// The entry whose own file may take the place; `None` if its content is copied.
    pub raises: Option<UpperId>,
    /// What lower has at this moment and must still have when it is replaced.
    pub present: &'a Side,
    /// The kind of the backup that is made of `present`.
    pub kind: BackupKind,
    pub by: &'a Writer,
}

impl Overlay {
    pub(super) fn land(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<Settled> {
        self.land_as(job, comparison, actor, |_| ())
    }

    /// The same, and at the moment at which lower changes `enter` changes the view.
    pub(in crate::overlay) fn land_as(
        &self,
        job: &Job,
        comparison: &mut Comparison,
        actor: &Writer,
        enter: impl FnOnce(&mut State),
    ) -> Result<Settled> {
        let durability = if job.synced { Durability::Synced } else { Durability::Cached };
        let mut landing = Landing::new(&self.store, durability);
        // If a name comes or goes, programs must see the directory's times change.
        let is_edit = comparison.present.exists() && comparison.new.exists() && job.takes_along.is_none();
        let dir = is_edit.then(|| self.dir_as_told(&comparison.path)).flatten();
        let kept = self.stage_landing(job, comparison, &mut landing, actor).and_then(|replaced| {
            let judged_against = self.keep_judged_against(job, comparison, replaced)?;
            Ok((replaced, judged_against))
        });
        let (replaced, judged_against) = match kept {
            Ok(kept) => kept,
            Err(err) if self.may_wait_unkept(job, comparison, &err) => {
                log::warn!("keep what {} has below, whose change is held instead: {err}", comparison.path);
                comparison.add(Reason::Backup);
                return self.hold(job, comparison, actor);
            }
            Err(err) => return Err(err),
        };
        let (mut epilogue, part) = self.landed_epilogue(job, comparison, (replaced, judged_against), actor)?;
        let anchors = epilogue.anchors.clone();
        if let Some((source, _)) = &job.takes_along
            && let Some(meta) = landing.meta_of(&comparison.path)?
        {
            // Needed only if recovery has to finish this landing; otherwise what is known by then is recorded.
            epilogue.anchors.extend(self.state.lock().past.carried(source, &comparison.path, &meta));
        }
        if landing.rewrites() && !job.is_crossed {
            // A rewrite in place needs lower's file to itself.
            comparison.close_below();
        }
        let promised = landing.promise(epilogue)?;
        let before = (anchors, judged_against);
        let Some((applied, attributes_hold)) = self.apply_landing(job, comparison, promised, before, actor, enter)?
        else {
            return Ok(Settled::Postponed);
        };
        self.finish_landing(job.row.id, applied, &part)?;
        if let Some((dir, before)) = dir {
            self.dir_holds(dir, &before, &comparison.path);
        }
        self.counters.landed.fetch_add(1, Ordering::Relaxed);
        if !attributes_hold {
            self.tell_landed(&comparison.path);
        }
        Ok(Settled::Landed)
    }

    /// True if a change waits for review because what lower has could not be kept or read. Not if the new content was
    /// written to during the copy: that writer will have it judged.
    fn may_wait_unkept(&self, job: &Job, comparison: &Comparison, err: &Error) -> bool {
        let is_about_lower = is_unkept(err) || comparison.present.exists() && is_unreadable(err);
        is_about_lower && !job.takes_place && !self.store.is_halted() && !self.is_disturbed(job)
    }

    /// Records the landing; the entry needs no row any more.
    fn finish_landing(&self, entry: UpperId, mut applied: Applied<'_>, part: &Part) -> Result<()> {
        let anchors = applied.epilogue().anchors.clone();
        let operation = applied.finish_soon()?;
        self.recorded(part, operation);
        let mut state = self.state.lock();
        // Not earlier: a write in between would have saved a new row, and finishing would drop that one.
        self.row_dropped(&mut state, entry);
        self.record_what_is_known(&state, &anchors);
        Ok(())
    }

    /// Applies the landing to lower and updates everything in memory that describes the path. Returns whether the
    /// attributes that the kernel has cached are still valid, or `None` if the entry was written to in the meantime.
    fn apply_landing<'a>(
        &self,
        job: &Job,
        comparison: &mut Comparison,
        promised: Promised<'a>,
        (mut anchors, judged_against): (Vec<Anchor>, Option<Kept>),
        actor: &Writer,
        enter: impl FnOnce(&mut State),
    ) -> Result<Option<(Applied<'a>, bool)>> {
        let content = match job.row.base.is_shared() {
            // Other entries may stand for names of the same file.
            true => comparison.new.kept().doing(|| format!("hash {}", comparison.path))?,
            false => None,
        };
        let mut state = self.state.lock();
        if !self.is_untouched(&state, job) {
            drop(state);
            drop(promised);
            return Ok(None);
        }
        let mut applied = promised.apply()?;
        enter(&mut state);
        state.know(anchors.clone());
        let tree = self.tree_of_job(job, actor);
        let seen_of_source = state.seen_of_source(job, tree);
        if let Some((source, _)) = &job.takes_along
            && let Some(meta) = applied.meta_of(&comparison.path)
        {
            anchors.extend(state.carried(source, &comparison.path, &meta));
        }
        applied.epilogue().anchors = anchors;
        if let (Some(before), Some(after)) = (comparison.present.meta, applied.meta_of(&comparison.path)) {
            let taken = state.uppers.taken_as_written(&before.stamp(), &after.stamp(), content);
            applied.epilogue().update_others(taken);
        }
        self.note_landed(&mut state, job, comparison, judged_against, &applied);
        applied.epilogue().note_window(state.windows.note_of_landed(&comparison.path));
        if let (true, Some(landed)) = (applied.has_raised(), applied.meta_of(&comparison.path)) {
            state.raised(job, &landed);
        }
        if let (Some(shown), Some(landed)) = (comparison.new.meta, applied.meta_of(&comparison.path)) {
            state.nothing_missed(&comparison.path, &shown, &landed);
        }
        let seen = seen_of_source.or(applied.meta_of(&comparison.path).map(|meta| meta.stamp()));
        state.saw(&comparison.path, seen, tree);
        let attributes_hold = state.attributes_hold(job, comparison, applied.meta_of(&comparison.path).as_ref());
        Ok(Some((applied, attributes_hold)))
    }

    /// The directory of a path and its attributes, if the kernel was told exactly these.
    fn dir_as_told(&self, path: &RelPath) -> Option<(NodeId, Meta)> {
        let above = path.parent().unwrap_or_default();
        let (dir, told) = {
            let state = self.state.lock();
            let dir = state.nodes.at(&above)?;
            (dir, state.nodes.told(dir))
        };
        if !matches!(told, Told::These(_)) {
            return None;
        }
        let now = self.lower.stat(&above).ok()??;
        told.is(&now.stamp()).then_some((dir, now))
    }

    /// Our own temporary names have moved a directory's times. No program changed its names and none needs a notice:
    /// after each one the kernel asks once more before it walks through. If the look fails, or the directory has another
    /// mode, owner or number of subdirectories by now, the events from below lead to a notice.
    fn dir_holds(&self, dir: NodeId, before: &Meta, path: &RelPath) {
        if let Ok(Some(now)) = self.lower.stat(&path.parent().unwrap_or_default())
            && looks_and_links(&now) == looks_and_links(before)
        {
            self.state.lock().nodes.tell_holds(dir, Some(&before.stamp()), &now.stamp());
        }
    }

    /// Keeps what further changes in the window are judged against, and returns it. That is not always what lower had:
    /// lower may have had nothing, if the old content was renamed away or deleted before, or what parts of a held change
    /// had left there (SPEC §4.3, §4.6).
    fn keep_judged_against(&self, job: &Job, comparison: &Comparison, replaced: Option<Kept>) -> Result<Option<Kept>> {
        let Comparison { path, old, present, .. } = comparison;
        if let Some(meta) = present.meta.filter(|meta| meta.links > 1) {
            self.note_first_by_any_name(path, &meta)?;
        }
        let is_what_lower_had = present.exists() && job.row.held.is_none();
        if is_what_lower_had || !old.exists() {
            return Ok(replaced);
        }
        let Some(content) = old.stage(&self.store)? else { return Ok(None) };
        self.store.keep_content(&content)?;
        let kept = old.kept_as(content.digest);
        if !present.exists() {
            let mut state = self.state.lock();
            let pinned = state.past.pinned(path, kept);
            state.know(pinned.into_iter().collect());
        }
        Ok(Some(kept))
    }

    /// Stages all of a landing: the path itself, and the source of a rename that brought it here.
    fn stage_landing(
        &self,
        job: &Job,
        comparison: &Comparison,
        landing: &mut Landing<'_>,
        actor: &Writer,
    ) -> Result<Option<Kept>> {
        let Comparison { path, new, present, .. } = comparison;
        let (base, raises, kind) = (&job.row.base, self.may_raise(job, new), BackupKind::Landed);
        let change = Replacement { path, base, new, raises, present, kind, by: actor };
        if let (Some((source, stamp)), true) = (&job.takes_along, job.takes_place) {
            return self.stage_taken(&change, (source, *stamp), landing);
        }
        let replaced = self.stage_replacement(&change, landing)?;
        self.keep_moved_away(comparison, landing, actor)?;
        if let Some((source, stamp)) = &job.takes_along {
            landing.remove(&self.lower, source, *stamp)?;
        }
        self.stage_aliases(&job.row, landing)?;
        Ok(replaced)
    }

    /// What the path had was renamed away, not replaced, but a person who wants it back asks for it by this path's name.
    fn keep_moved_away(&self, comparison: &Comparison, landing: &mut Landing<'_>, actor: &Writer) -> Result<()> {
        let Comparison { path, old, new, present, .. } = comparison;
        let moved_away = matches!(self.anchor_of(path)?, Some(AnchorState::Moved { .. }));
        if !moved_away || present.exists() || !new.exists() {
            return Ok(());
        }
        if let Some(content) = old.stage(&self.store)? {
            let backup = backup_of(path, old, &content, BackupKind::Landed, actor);
            landing.keep(content, backup);
        }
        Ok(())
    }

    /// Further names become links to the first.
    pub(in crate::overlay) fn stage_aliases(&self, row: &UpperRow, landing: &mut Landing<'_>) -> Result<()> {
        let mut aliases = row.further_names().iter();
        Ok(aliases.try_for_each(|alias| landing.link(&self.lower, alias, row.path()))?)
    }

    /// The source itself takes the place of what is there, of which a backup is kept.
    fn stage_taken(
        &self,
        change: &Replacement<'_>,
        source: (&RelPath, Stamp),
        landing: &mut Landing<'_>,
    ) -> Result<Option<Kept>> {
        let Replacement { path, new, present, .. } = change;
        let replaced = self.keep_present(change, landing)?;
        let (Some(content), Some(meta)) = (&new.file, present.meta) else {
            return Err(Error::Internal("what takes a place, or that place, is no file"));
        };
        landing.take(&self.lower, (path, meta.stamp()), source, content)?;
        Ok(replaced)
    }

    /// Makes a backup of what is replaced.
    fn keep_present(&self, change: &Replacement<'_>, landing: &mut Landing<'_>) -> Result<Option<Kept>> {
        let Replacement { path, new, present, kind, by, .. } = change;
        let Some(content) = present.stage(&self.store)? else { return Ok(None) };
        let kept = present.kept_as(content.digest);
        let kind = if new.exists() { *kind } else { BackupKind::Deleted };
        let backup = self.backup_there(path, present, &content, kind, by);
        landing.keep(content, backup);
        Ok(Some(kept))
    }

    /// The backup of what is at `path` now.
    pub(in crate::overlay) fn backup_there(
        &self,
        path: &RelPath,
        side: &Side,
        content: &StagedContent,
        kind: BackupKind,
        actor: &Writer,
    ) -> Backup {
        Backup { for_all: self.is_for_all(path, side), ..backup_of(path, side, content, kind, actor) }
    }

    /// Prepares lower's new state for one path and keeps its old content. Returns the hash of what is replaced.
    pub(in crate::overlay) fn stage_replacement(
        &self,
        change: &Replacement<'_>,
        landing: &mut Landing<'_>,
    ) -> Result<Option<Kept>> {
        let Replacement { path, base, new, present, .. } = change;
        let expect = present.meta.map(|meta| meta.stamp());
        let replaced = self.keep_present(change, landing)?;
        let stays = present.meta.is_some_and(|meta| must_stay(base, &meta));
        match (new.kind, &new.file, expect) {
            (Some(FileKind::Regular), Some(file), Some(expect)) if stays => {
                let old = present.file.as_ref().ok_or(Error::Internal("what is written in place is not open"))?;
                landing.rewrite(&self.lower, path, expect, file, old)?;
            }
            (Some(FileKind::Regular), Some(file), _) => self.stage_file(change, file, landing)?,
            (Some(FileKind::Directory), ..) if present.kind == Some(FileKind::Directory) => {
                // Someone else has made it below meanwhile.
            }
            (Some(FileKind::Directory), ..) => {
                let (like, meta) = new
                    .node
                    .as_deref()
                    .zip(new.meta)
                    .ok_or(Error::Internal("a directory that waits has no entry in stage"))?;
                // The times that a program saw stay (SPEC §4.10).
                let meta = self.state.lock().uppers.with_times(path, meta);
                self.stage_new(change, &NewContent::Dir { like, meta }, landing)?;
            }
            (Some(kind), ..) if kind.is_special() => {
                let meta = new.meta.ok_or(Error::Internal("a node that waits has no attributes"))?;
                let node = NewContent::Node { looks: NodeLooks::of(&meta), like: new.node.as_deref() };
                self.stage_new(change, &node, landing)?;
            }
            (Some(_), ..) => {
                let (uid, gid) = new.meta.map_or((0, 0), |meta| (meta.uid, meta.gid));
                let times = new.meta.map(|meta| (meta.atime, meta.mtime));
                let target = std::ffi::OsStr::from_bytes(new.text());
                self.stage_new(change, &NewContent::Symlink { target, uid, gid, times }, landing)?;
            }
            (None, _, Some(expect)) => landing.remove(&self.lower, path, expect)?,
            (None, _, None) => {}
        }
        Ok(replaced)
    }

    fn stage_file(&self, change: &Replacement<'_>, file: &File, landing: &mut Landing<'_>) -> Result<()> {
        let Replacement { path, new, present, .. } = change;
        if let Some(upper) = change.raises.filter(|_| !present.is_dir()) {
            return Ok(landing.raise(&self.lower, path, present.meta.as_ref(), (upper, file))?);
        }
        let meta = Meta::of(file.as_fd()).doing(|| format!("stat {path}"))?;
        let content = match new.small_whole() {
            Some(bytes) => NewContent::Bytes { bytes, like: file, meta },
            None => NewContent::File { file, like: file, meta },
        };
        self.stage_new(change, &content, landing)
    }

    /// Returns the entry if its own file may become lower's, which saves a copy: it has no other name and at most one
    /// writer, who goes on with a copy of what has landed.
    fn may_raise(&self, job: &Job, new: &Side) -> Option<UpperId> {
        let row = &job.row;
        let is_plain = row.what == What::File && row.names.len() == 1 && !row.base.is_shared();
        let is_alone = new.meta.is_some_and(|meta| meta.links == 1) && job.takes_along.is_none() && !job.takes_place;
        let writers = job.open.as_ref().map_or(0, |open| open.writers());
        let may = is_plain && is_alone && writers <= 1 && !job.is_crossed && self.raises.load(Ordering::Relaxed);
        may.then_some(row.id)
    }

    fn stage_new(&self, change: &Replacement<'_>, new: &NewContent<'_>, landing: &mut Landing<'_>) -> Result<()> {
        let Replacement { path, present, .. } = change;
        match present.meta.filter(Meta::is_dir) {
            // Its contents are removed by steps of their own.
            Some(dir) => landing.supplant(&self.lower, path, dir.stamp(), new)?,
            None => landing.place(&self.lower, path, present.meta.as_ref(), new)?,
        };
        Ok(())
    }

    fn landed_epilogue(
        &self,
        job: &Job,
        comparison: &mut Comparison,
        before: (Option<Kept>, Option<Kept>),
        actor: &Writer,
    ) -> Result<(Epilogue, Part)> {
        let path = comparison.path.clone();
        // First: what is `doing` has it, too.
        let digest = comparison.new_digest_if_small()?;
        let part = self.part_of_job(job, &path, actor, doing(comparison, before.0));
        let event = self.landed_event(comparison, digest, &part);
        let setting = self.policy().settings.window;
        let drop = if job.takes_place { Vec::new() } else { vec![job.row.id] };
        let mut epilogue = Epilogue { drop, ..Epilogue::default() };
        if let Some(held) = &job.row.held {
            let fate = if comparison.new.exists() { Fate::Ended } else { Fate::Removed };
            epilogue.verdicts.push((held.id.clone(), path.clone(), fate));
        }
        let state = self.state.lock();
        let continues = job.row.held.is_none() && state.windows.is_open(&path, setting);
        let event = event.by(actor).with(|event| event.continues = continues);
        let event = event.within_window(state.windows.note_of_landing(&path, before.1, setting));
        let replaced = (&comparison.present, before.0);
        epilogue.events.extend(self.unheralded(&state, &path, &job.row.base, replaced));
        epilogue.events.push(event.doing(effects_of(job, comparison, before.0, &state)));
        epilogue.anchors = state.past.landed(&path, comparison.present.exists(), before, comparison.new.exists());
        if let (true, Some(kept), Some(meta)) = (job.row.base.is_shared(), before.0, comparison.present.meta) {
            state.past.replaced_by_all_names(meta.stamp().key(), kept, &mut epilogue.anchors);
        }
        if let Some((source, _)) = &job.takes_along {
            // What came by a rename may be all that is left of something older, and must then not go unreviewed.
            let came_from = state.past.came_from(source).filter(|came_from| *came_from != path);
            let target = epilogue.anchors.iter_mut().find(|anchor| anchor.path == path && anchor.known.fresh);
            if let (Some(target), Some(_)) = (target, &came_from) {
                target.known.from = came_from;
            }
            epilogue.anchors.extend(state.past.left(source));
            epilogue.drop.extend(state.uppers.at(source));
        }
        Ok((epilogue, part))
    }

    fn landed_event(&self, comparison: &Comparison, digest: Option<Digest>, part: &Part) -> EventDraft {
        let measure = comparison.measure;
        let size = comparison.new.exists().then_some(comparison.new.size);
        let note = match comparison.note {
            LandNote::NewFile => Some(NEW_FILE),
            LandNote::DiffSkipped(diff::Side::Binary) => Some("[diff skipped: binary]"),
            LandNote::DiffSkipped(_) => Some("[diff skipped: large]"),
            LandNote::Small if size.is_none() => Some(DELETED),
            LandNote::Small => None,
        };
        self.event(EventName::WriteLanded, &comparison.path).with(|event| {
            event.sha256 = digest;
            event.bytes = size;
            event.insertions = measure.map(|measure| measure.insertions);
            event.deletions = measure.map(|measure| measure.deletions);
            event.message = note.map(str::to_owned);
            event.operation = part.operation_told();
        })
    }

    /// Makes everything that describes the path agree again, under the lock that saw lower change.
    fn note_landed(
        &self,
        state: &mut State,
        job: &Job,
        comparison: &mut Comparison,
        judged_against: Option<Kept>,
        applied: &Applied<'_>,
    ) {
        let meta = applied.meta_of(&comparison.path);
        state.windows.note(&comparison.path, judged_against, meta.as_ref(), self.policy().settings.window);
        state.goes_on(job, judged_against);
        let is_older = state.past.get(&comparison.path).is_some_and(|known| known.from.is_some());
        if job.takes_along.is_some() && is_older {
            state.windows.older_came(&comparison.path);
        }
        let change = (comparison.present.meta.as_ref(), meta.as_ref());
        state.put_there(&comparison.path, change, comparison.new.known());
        state.landed(job, comparison.new.meta.as_ref(), meta.as_ref());
    }

    pub(super) fn tell_landed(&self, path: &RelPath) {
        let node = self.state.lock().node_at(path);
        if let Some(node) = node {
            self.forget_attributes(node);
        }
    }
}

impl State {
    /// The entry's own file is lower's now: handles that are open must not write to it any more.
    fn raised(&mut self, job: &Job, landed: &Meta) {
        // This includes what was opened after the job was taken.
        let open = self.nodes.open_of(job.row.id).cloned();
        self.uppers.remove(job.row.id);
        let Some(open) = open else { return };
        self.epoch += 1;
        open.changed_below(self.epoch);
        open.set_backing(&mut self.nodes, Backing::Lower(open.file()));
        if landed.mode & ANY_MAY_RUN != 0 {
            open.only_read();
        }
        open.dirty.store(false, Ordering::SeqCst);
        self.handles_on(open.node).for_each(|handle| handle.landed(landed.stamp()));
    }

    /// True if the kernel's cached attributes of the file still hold, apart from those that a write changes and that the
    /// kernel therefore asks for again by itself.
    fn attributes_hold(&mut self, job: &Job, comparison: &Comparison, landed: Option<&Meta>) -> bool {
        let (Some(open), Some(written), Some(landed)) = (&job.open, &comparison.new.meta, landed) else { return false };
        let replaced = comparison.present.meta.as_ref();
        let is_same = |other: &Meta| looks_and_links(other) == looks_and_links(landed);
        let one_name = job.row.names.len() == 1 && job.takes_along.is_none();
        landed.is_file()
            && one_name
            && is_same(written)
            && replaced.is_none_or(is_same)
            && !open.changed_quietly.load(Ordering::SeqCst)
            && self.nodes.tell_holds(open.node, None, &landed.stamp())
    }
}

/// What the kernel is told of an inode, apart from its size and times.
fn looks_and_links(meta: &Meta) -> (u32, u32, u32, u32) {
    (meta.mode, meta.uid, meta.gid, meta.links)
}

/// What a landing does, for `undo`. A source that came in this session leaves no trace (SPEC §4.2).
fn effects_of(job: &Job, comparison: &Comparison, replaced: Option<Kept>, state: &State) -> Vec<PathEffect> {
    let Comparison { path, new, present, .. } = comparison;
    let after = new.version(new.known());
    let mut effects = vec![PathEffect::new(path, content_effect(&job.row.base, (present, replaced), after))];
    effects.extend(link_effects(&job.row));
    if let Some((source, _)) = job.takes_along.as_ref().filter(|(source, _)| !state.past.is_fresh(source)) {
        effects.push(PathEffect::new(source, Effect::Content { before: after, after: None, shared: false }));
    }
    effects
}

/// What a landing finds below and what it leaves there.
fn doing(comparison: &Comparison, replaced: Option<Kept>) -> Doing {
    let stands = |side: &Side, digest: Option<Digest>| match (side.exists(), digest) {
        (false, _) => Stands::Nothing,
        (true, Some(digest)) => Stands::Content(digest),
        (true, None) => Stands::Something,
    };
    let Comparison { present, new, .. } = comparison;
    let found = stands(present, replaced.map(|kept| kept.digest));
    Doing::Content { found, leaves: stands(new, new.digest) }
}

/// The effect of `after` replacing what was `present` and is kept as `replaced`.
pub(in crate::overlay) fn content_effect(
    base: &Base,
    (present, replaced): (&Side, Option<Kept>),
    after: Option<Version>,
) -> Effect {
    let shared = present.meta.is_some_and(|meta| after.is_some() && must_stay(base, &meta));
    Effect::Content { before: present.version(replaced), after, shared }
}

/// The effects of the links that a landing makes of the change's further names.
pub(in crate::overlay) fn link_effects(row: &UpperRow) -> impl Iterator<Item = PathEffect> {
    let linked = |name| PathEffect::new(name, Effect::Linked { of: row.path().clone() });
    row.further_names().iter().map(linked)
}

/// True if new content must go into the inode itself: something is mounted on it, or all its names must show the change.
pub(super) fn must_stay(base: &Base, present: &Meta) -> bool {
    present.is_mount_root || (present.links > 1 && base.is_shared())
}

/// True if the state directory is on another file system than the target, or reached by another mount of the same one.
pub(super) fn is_elsewhere(err: &Error) -> bool {
    err.code() == libc::EXDEV
}

/// True if the old content cannot be read or kept: the change is held instead and its writer not stopped (SPEC §5).
pub(in crate::overlay) fn is_unreadable(err: &Error) -> bool {
    matches!(err.code(), libc::EIO | libc::EACCES | libc::EPERM) && !matches!(err, Error::Internal(_))
}

/// True if there is no room for a backup, or no place: not where the new content goes, but where the old is kept.
pub(super) fn is_unkept(err: &Error) -> bool {
    matches!(err, Error::Store(store::Error::Unkept { .. }))
}

/// A backup of content that may have been at another path. [`Overlay::backup_there`] adds who could read it.
pub(in crate::overlay) fn backup_of(
    path: &RelPath,
    side: &Side,
    content: &StagedContent,
    kind: BackupKind,
    actor: &Writer,
) -> Backup {
    let created = store::now_millis();
    Backup {
        name: Backup::name_for(path, created),
        path: path.clone(),
        kind,
        digest: content.digest,
        size: content.size,
        mode: side.mode,
        group: side.masked_group(),
        symlink: side.kind == Some(FileKind::Symlink),
        mtime: side.meta.map(|meta| meta.mtime).unwrap_or_default(),
        created,
        by: Some(actor.clone()),
        for_all: false,
        owner: side.meta.map(|meta| (meta.uid, meta.gid)),
    }
}
