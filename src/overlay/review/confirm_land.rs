//! The landing of confirmed changes: one for all of them, including the directories that go.

use std::sync::Arc;

use super::confirm::Landable;
use super::discard::Dropping;
use super::{Review, Reviewed, Taken, reviewed};
use crate::model::{BackupKind, RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::judge::land::{Replacement, content_effect, link_effects};
use crate::overlay::judge::side::Side;
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, DELETED, EventName};
use crate::store::{
    Anchor, AnchorState, Applied, Base, Below, DirLooks, Durability, Effect, Epilogue, EventDraft, Fate, FileLooks,
    Kept, Known, Landed, Landing, PathEffect, Promised, UpperRow, Writer,
};
use crate::sys::file::{FileKind, Meta};

impl Overlay {
    /// One landing for all of `landables`, by which the directories of `dirs` go too, and what is being dropped from
    /// the view is kept.
    pub(super) fn land_all(
        &self,
        landables: &mut [Landable],
        dirs: &[&Taken],
        dropping: &mut Dropping<'_>,
        review: &Review,
    ) -> Reviewed<Landed> {
        let nothing = |err| self.not_landed(err, "nothing was applied");
        let (mut landing, mut epilogue) = self.stage_all(landables, dirs, &review.by).map_err(nothing)?;
        self.stage_dropped(dropping, review, &mut landing, &mut epilogue)?;
        self.look_below(dropping)?;
        self.land_staged((landing, epilogue), landables, dirs).map_err(nothing)
    }

    fn land_staged(
        &self,
        (landing, mut epilogue): (Landing<'_>, Epilogue),
        landables: &mut [Landable],
        dirs: &[&Taken],
    ) -> Result<Landed> {
        let elsewhere = self.anchors_elsewhere(landables, &epilogue);
        epilogue.anchors.extend(elsewhere.iter().cloned());
        let applied = self.apply_all(landing.promise(epilogue)?, landables, dirs, elsewhere)?;
        let landed = applied.finish()?;
        for id in landables.iter().map(|landable| landable.taken.row.id) {
            self.row_dropped(&mut self.state.lock(), id);
            if self.is_let_go(id) {
                self.store.drop_upper_file(id);
            }
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
            landing.remove_dir(&self.lower, dir.row.path())?;
            epilogue.events.push(self.confirmed_dir(dir, by)?);
            epilogue.drop.push(dir.row.id);
            epilogue.verdicts.push((dir.held.id.clone(), dir.row.path().clone(), Fate::Applied));
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
        self.confirmed_epilogue(landable, landing.newly_made()?, epilogue, by)
    }

    /// Names the program that wrote to a change while it was being copied, as for a write that is found afterwards.
    pub(super) fn written_meanwhile(&self, err: Error, taken: &Taken) -> Error {
        match err.is_written_meanwhile() {
            true => self.state.lock().crossed(taken),
            false => err,
        }
    }

    /// Anchors of other paths whose older content had been renamed to a path that is replaced now: it is kept content
    /// from now on. A path that is reviewed itself gets its anchor by that.
    fn anchors_elsewhere(&self, landables: &[Landable], epilogue: &Epilogue) -> Vec<Anchor> {
        let state = self.state.lock();
        let replaced = landables.iter().filter_map(|landable| Some((landable.taken.row.path(), landable.backup?)));
        let moved = replaced.flat_map(|(path, kept)| state.past.moved_to(path, kept));
        let is_reviewed = |anchor: &Anchor| epilogue.anchors.iter().any(|reviewed| reviewed.path == anchor.path);
        moved.filter(|anchor| !is_reviewed(anchor)).collect()
    }

    fn apply_all<'a>(
        &self,
        promised: Promised<'a>,
        landables: &mut [Landable],
        dirs: &[&Taken],
        elsewhere: Vec<Anchor>,
    ) -> Result<Applied<'a>> {
        let contents: Vec<_> = landables.iter_mut().map(|landable| landable.new.kept().ok().flatten()).collect();
        let taken = landables.iter().map(|landable| &landable.taken);
        self.apply_as_taken(promised, taken, |state, applied| {
            state.know(elsewhere);
            for (Landable { taken, new, present, done, .. }, content) in landables.iter().zip(contents) {
                let meta = state.confirmed(applied, &taken.row, present.meta.as_ref(), content);
                match present.meta.filter(|_| has_others_edits(taken, new)) {
                    Some(before) => self.show_merged(state, &taken.row, before.stamp()),
                    None => self.nothing_missed(state, &taken.row, meta.as_ref()),
                }
                if let (Done::Applied, Some(shown), Some(below)) = (done, &new.meta, &meta) {
                    state.nodes.keep_ctime(taken.row.path(), shown, below);
                }
            }
            for dir in dirs {
                state.uppers.remove(dir.row.id);
            }
        })
    }

    /// Lower now has, as `meta`, what the view already showed. A process that has seen that has missed nothing.
    pub(super) fn nothing_missed(&self, state: &mut State, row: &UpperRow, meta: Option<&Meta>) {
        let Some(meta) = meta else { return };
        // Its own file may be lower's by now.
        let showed = self.store.upper_meta(row.id).unwrap_or(*meta);
        state.nothing_missed(row.path(), &showed, meta);
    }

    /// Makes the view show a merged landing: lower has the change with others' edits of what was there `before`, and
    /// those were never in the view. A handle that has it open writes to a copy of that, and has not seen it.
    fn show_merged(&self, state: &mut State, row: &UpperRow, before: Stamp) {
        // Looked up now, to include what was opened since the change was taken.
        let open = state.nodes.open_of(row.id).cloned();
        state.uppers.remove(row.id);
        state.verdicts_due.push(row.id);
        state.epoch += 1;
        let Some(open) = open else { return };
        open.changed_below(state.epoch);
        // If lower cannot be opened, handles go on with what they had: no write of theirs is based on what lower has.
        let now = self.lower.open_to_read(row.path()).map_or_else(|_| open.file(), Arc::new);
        open.goes_on_with(&mut state.nodes, now);
        state.handles_on(open.node).for_each(|handle| handle.landed_merged(before));
    }

    /// Applies a landing and, under the same lock, has `know` update what is known of lower. [`Error::Busy`] if one of
    /// the changes was written to or renamed since it was taken.
    pub(super) fn apply_as_taken<'a, 't>(
        &self,
        promised: Promised<'a>,
        taken: impl IntoIterator<Item = &'t Taken>,
        know: impl FnOnce(&mut State, &mut Applied<'a>),
    ) -> Result<Applied<'a>> {
        let mut state = self.state.lock();
        if let Some(crossed) = taken.into_iter().find(|taken| !state.is_as_taken(taken)) {
            let crossed = state.crossed(crossed);
            drop((state, promised));
            return Err(crossed);
        }
        let mut applied = promised.apply()?;
        know(&mut state, &mut applied);
        Ok(applied)
    }

    fn stage_confirmed(&self, landable: &mut Landable, landing: &mut Landing<'_>, by: &Writer) -> Result<()> {
        let row = &landable.taken.row;
        let change = Replacement {
            path: row.path(),
            base: &row.base,
            new: &landable.new,
            raises: None,
            present: &landable.present,
            kind: BackupKind::Confirmed,
            by,
        };
        landable.backup = self.stage_replacement(&change, landing)?;
        self.stage_aliases(row, landing)
    }

    /// The event of a directory that goes because its held removal is confirmed.
    fn confirmed_dir(&self, dir: &Taken, by: &Writer) -> Result<EventDraft> {
        let path = dir.row.path();
        let meta = self.meta_below(path)?.filter(Meta::is_dir);
        let removed = meta.map(|meta| self.dir_removed(path, &meta)).transpose()?;
        let event = self.event(EventName::Confirmed, path).with(|event| {
            event.id = Some(dir.held.id.to_string());
            event.message = Some("[directory removed]".to_owned());
        });
        Ok(reviewed(event, &dir.held, by).doing(removed))
    }

    /// The effect of removing the directory that is there now.
    fn dir_removed(&self, path: &RelPath, meta: &Meta) -> Result<PathEffect> {
        let looks = self.lower.place(path).and_then(|place| DirLooks::of_going(&place, meta));
        Ok(PathEffect::new(path, Effect::DirRemoved(looks.doing(|| format!("open {path}"))?)))
    }

    /// `effects` is what had to be done first: the directories that were made.
    fn confirmed_epilogue(
        &self,
        landable: &mut Landable,
        mut effects: Vec<PathEffect>,
        epilogue: &mut Epilogue,
        by: &Writer,
    ) -> Result<()> {
        let Landable { taken, new, present, done, backup } = landable;
        let path = taken.row.path();
        let content = new.kept().doing(|| format!("hash {path}"))?;
        let after = new.version(content);
        if let Some(meta) = present.meta.filter(|meta| meta.is_dir() && !new.is_dir()) {
            // Without this effect an undo would leave nothing at all there.
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
        epilogue.anchors.extend(reviewed_as(&taken.row, content));
        let event = self.event(EventName::Confirmed, path).with(|event| {
            event.id = Some(taken.held.id.to_string());
            event.sha256 = content.map(|kept| kept.digest);
            event.bytes = new.kind.map(|_| new.size);
            event.insertions = Some(taken.held.insertions);
            event.deletions = Some(taken.held.deletions);
            event.message = match done {
                Done::Merged => Some("merged with a change below".to_owned()),
                _ => new.kind.is_none().then(|| DELETED.to_owned()),
            };
        });
        epilogue.events.push(reviewed(event, &taken.held, by).doing(effects));
        self.keep_to_compare(new)
    }
}

impl State {
    /// Notes that a landing has put a reviewed change into lower in the place of what was there `before`. Returns what is
    /// there now.
    pub(super) fn confirmed(
        &mut self,
        applied: &mut Applied<'_>,
        row: &UpperRow,
        before: Option<&Meta>,
        content: Option<Kept>,
    ) -> Option<Meta> {
        let path = row.path();
        let meta = applied.meta_of(path);
        if let (Some(before), Some(after)) = (before, &meta) {
            let taken = self.uppers.taken_as_written(&before.stamp(), &after.stamp(), content);
            applied.epilogue().update_others(taken);
        }
        self.restored(path, (before, meta.as_ref()), content);
        self.know(reviewed_as(row, content).collect());
        self.forget_window(path);
        self.uppers.held_no_more(row.id);
        if let Some(upper) = self.uppers.get_mut(row.id) {
            upper.dirty = false;
            if let Some(meta) = meta {
                // With others' edits merged in, it has the looks of what landed, not those of its own file.
                upper.row.looks = Some(FileLooks::default());
                let base = Base { below: Below::of(Some(&meta)), ..upper.row.base };
                self.uppers.set_landed(row.id, base);
            }
        }
        meta
    }

    /// Notes that we have put something new, with that content, at a path of lower in the place of what it had `before`.
    pub(in crate::overlay) fn restored(
        &mut self,
        path: &RelPath,
        (before, meta): (Option<&Meta>, Option<&Meta>),
        content: Option<Kept>,
    ) {
        self.epoch += 1;
        self.forget_window(path);
        self.put_there(path, (before, meta), content);
        if let Some(node) = self.node_at(path) {
            self.nodes.set_lower(node, meta.map(Meta::key));
            if let Some(meta) = meta {
                self.nodes.note_shown(node, &meta.stamp());
            }
        }
    }
}

/// True if what lands is more than what was reviewed, namely merged with others' edits.
fn has_others_edits(taken: &Taken, landed: &Side) -> bool {
    !taken.held.is_of(landed.standing(), landed.digest)
}

/// The anchors by which each name of a change is judged against what was reviewed from now on.
fn reviewed_as(row: &UpperRow, content: Option<Kept>) -> impl Iterator<Item = Anchor> {
    let state = move || content.map_or(AnchorState::Nothing, AnchorState::Content);
    row.names.iter().map(move |name| Known::of(state()).as_anchor(name))
}

/// The effect of landing something that has no content: a directory or a node.
fn structure_made(present: &Side, new: &Side) -> Option<Effect> {
    let kind = new.kind.filter(|kind| present.kind != Some(*kind))?;
    match kind {
        FileKind::Directory => Some(Effect::DirMade),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Some(Effect::SpecialMade),
        FileKind::Regular | FileKind::Symlink => None,
    }
}
