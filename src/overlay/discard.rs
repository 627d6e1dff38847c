//! Discarding: a change goes from the view, which shows lower again; its content is kept as a backup.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::Context;
use super::handles::Backing;
use super::land::backup_of;
use super::review::{Review, Reviewed, Taken, Writers, failed};
use super::side::Side;
use super::{Error, Overlay, Result, open_lower};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest};
use crate::protocol::{Action as Done, ErrorBody, ErrorCode, EventName, Outcome};
use crate::store::{
    Below, Durability, Effect, Epilogue, Fate, Kept, Landed, Landing, PathEffect, UpperId, Version, What,
};
use crate::sys::file::Meta;

impl Overlay {
    /// Drops changes from the view; their content is kept as backups.
    pub fn discard(&self, ids: &[ChangeId], review: &Review) -> Reviewed<Vec<Outcome>> {
        let ids = self.with_hidden_parents(self.with_contents(ids)?);
        // Open descriptors go on working, and their next close is judged anew (SPEC §8).
        let taken = self.take_all(&ids, Writers::LeftAlone)?;
        let result = self.discard_taken(&taken.taken, review);
        let taken = taken.give_back();
        if result.is_ok() && !review.dry_run {
            let names = taken.iter().flat_map(|change| &change.row.names);
            names.for_each(|name| self.tell_changed(name, true));
        }
        result
    }

    /// What is there again is in directories that are there again: their removal is not waited for any more.
    fn with_hidden_parents(&self, mut ids: Vec<ChangeId>) -> Vec<ChangeId> {
        let state = self.state.lock();
        let mut parents = Vec::new();
        for id in &ids {
            let upper = state.uppers.by_id(id).and_then(|id| state.uppers.get(id));
            let mut dir = upper.and_then(|upper| upper.row.names[0].parent());
            while let Some(path) = dir {
                let upper = state.uppers.at(&path).and_then(|id| state.uppers.get(id));
                let hidden = upper.map(|upper| &upper.row).filter(|row| row.what == What::Whiteout);
                let held = hidden.and_then(|row| row.held.as_ref());
                parents.extend(held.filter(|held| held.kind == ChangeKind::Structure).map(|held| held.id.clone()));
                dir = path.parent();
            }
        }
        parents.sort();
        parents.dedup();
        parents.retain(|id| !ids.contains(id));
        ids.extend(parents);
        ids
    }

    fn discard_taken(&self, taken: &[Taken], review: &Review) -> Reviewed<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        let mut epilogue = Epilogue::default();
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut kept = Vec::new();
        for change in taken {
            let path = &change.row.names[0];
            let fault = |err: Error| failed(path, &err);
            let side = self.row_side(&change.row).map_err(fault)?;
            let mut outcome = Outcome::new(Done::Discarded, path.clone());
            outcome.id = Some(change.held.id.clone());
            outcome.kind = Some(change.held.kind);
            let content = side.stage(&self.store).map_err(|err| fault(err.into()))?;
            let effect = discarded(change, &side, content.as_ref().map(|content| content.digest));
            if let Some(content) = content {
                let backup = backup_of(path, &side, &content, BackupKind::Discarded, &review.by);
                landing.keep(content, backup);
                kept.push(outcomes.len());
            }
            outcomes.push(outcome);
            epilogue.drop.push(change.row.id);
            epilogue.verdicts.push((change.held.id.clone(), path.clone(), Fate::Discarded));
            let event = self.event(EventName::Discarded, path).with(|event| {
                event.id = Some(change.held.id.to_string());
                (event.pid, event.uid) = (Some(review.by.pid), Some(review.by.uid));
            });
            epilogue.events.push(event.doing([PathEffect::new(path, effect)]));
        }
        if review.dry_run {
            return Ok(outcomes);
        }
        self.check_nothing_left_inside(taken)?;
        let whole = |err: Error| ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was discarded: {err}"));
        let done =
            landing.promise(epilogue).and_then(|promised| promised.apply()).and_then(|applied| self.finish(applied));
        let Landed { backups, operation } = done.map_err(|err| whole(err.into()))?;
        for (index, name) in kept.into_iter().zip(backups) {
            outcomes[index].backup = Some(name);
        }
        for outcome in &mut outcomes {
            outcome.operation = operation.map(|operation| operation.to_string());
        }
        // All of them are discarded by now: one that cannot be shown so must not keep the others from it.
        let back = |change: &Taken| self.back_to_lower(change).err().map(|err| failed(&change.row.names[0], &err));
        let failures: Vec<ErrorBody> = taken.iter().filter_map(back).collect();
        failures.into_iter().next().map_or(Ok(outcomes), Err)
    }

    /// What is being written in a directory that goes would have nowhere to be.
    fn check_nothing_left_inside(&self, taken: &[Taken]) -> Reviewed<()> {
        let state = self.state.lock();
        let dirs = taken.iter().filter(|change| change.row.what == What::Dir);
        let mut inside = dirs.flat_map(|dir| state.uppers.within(&dir.row.names[0]));
        let left = inside.find(|id| !taken.iter().any(|change| change.row.id == *id));
        match left.and_then(|id| state.uppers.get(id)) {
            Some(left) => {
                let path = &left.row.names[0];
                let body = ErrorBody::new(ErrorCode::Busy, format!("{path} is being written"));
                Err(ErrorBody { path: Some(path.clone()), ..body })
            }
            None => Ok(()),
        }
    }

    /// The view shows lower at the entry's names again. Open descriptors go on with what lower has.
    fn back_to_lower(&self, change: &Taken) -> Result<()> {
        let row = &change.row;
        let path = &row.names[0];
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let mut state = self.state.lock();
        state.epoch += 1;
        if !state.is_as_taken(change) {
            return self.begin_anew(&mut state, row.id, meta);
        }
        let node = state.nodes.at(path);
        if let Some(node) = node {
            let open = state.nodes.get(node).ok().and_then(|node| node.open.clone());
            if let Some(open) = open.filter(|open| open.upper() == Some(row.id)) {
                let lower = meta.filter(Meta::is_file).map(|_| open_lower(&self.lower, path)).transpose()?;
                open.set_backing(match lower {
                    Some(file) => Backing::Lower(Arc::new(file)),
                    None => Backing::Orphan(open.file()),
                });
                open.dirty.store(false, Ordering::SeqCst);
            }
            let key = meta.filter(Meta::is_file).map(|meta| meta.key());
            state.nodes.set_lower(node, key);
        }
        // One of several names again: the next look finds the node that the others have.
        let is_others = node.is_some_and(|node| meta.is_some_and(|meta| state.nodes.is_of_another(node, meta.key())));
        if let Some(node) = node.filter(|_| row.what.is_structure()) {
            // Who stands in it goes on standing there.
            state.nodes.get_mut(node)?.removed = Some(self.store.upper_meta(row.id)?);
        }
        for name in &row.names {
            let gone = meta.is_none() || name != path || is_others || row.what.is_structure();
            if gone {
                state.nodes.unname_path(name);
            }
        }
        state.uppers.remove(row.id);
        drop(state);
        match row.what {
            What::File | What::Symlink | What::Dir | What::Node => Ok(self.store.drop_upper_file(row.id)?),
            What::Whiteout => Ok(()),
        }
    }

    /// What was written while the change was being discarded is a change of its own, judged when its writer closes.
    fn begin_anew(&self, state: &mut super::State, id: UpperId, below: Option<Meta>) -> Result<()> {
        let Some(upper) = state.uppers.get_mut(id) else { return Ok(()) };
        upper.row.held = None;
        upper.row.base.content = None;
        upper.row.base.below = match below {
            Some(meta) => Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links },
            None => Below::Nothing,
        };
        (upper.dirty, upper.saved) = (true, true);
        Ok(self.store.save_upper(&upper.row)?)
    }
}

/// What a discard does, for who undoes it.
fn discarded(change: &Taken, side: &Side, kept: Option<Digest>) -> Effect {
    let content = kept.map(|digest| Kept { digest, symlink: side.is_symlink() });
    let version = side.meta.map(|meta| Version::of(&meta, content));
    Effect::Discarded { row: Box::new(change.row.clone()), content: version }
}
