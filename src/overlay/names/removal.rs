//! Held content that goes by a program's own act: it is removed, renamed over, written over in place, or patched. There
//! is no other copy of it, so it becomes a backup: in the transaction in which its entry goes, or before the first byte
//! changes.
//!
//! So does content that could not be judged, as on a full disk. Content that no program has closed yet leaves nothing,
//! and what goes on under another name is not gone.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::model::{BackupKind, ChangeId, Digest, OperationId, RelPath};
use crate::overlay::error::Context;
use crate::overlay::files::handles::OpenFile;
use crate::overlay::judge::land::backup_of;
use crate::overlay::judge::side::Side;
use crate::overlay::review::discard::discarded;
use crate::overlay::state::limits::Extent;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Overlay, Result, State};
use crate::protocol::EventName;
use crate::store::{self, Backup, Effect, Epilogue, EventDraft, Held, StagedContent, UpperId, UpperRow, Writer};

/// An entry that is about to go, and what is kept of it.
pub(super) struct Removal<'a> {
    row: &'a UpperRow,
    by: &'a Writer,
    side: Side,
    for_all: bool,
    /// `None` if there is nothing to keep; an error if the disk has no room for a copy.
    copy: store::Result<Option<StagedContent>>,
    /// The content of its own file, as it was judged or, if it could not be judged, as it was found.
    own: Option<Digest>,
}

impl Removal<'_> {
    fn kept(&self, content: StagedContent) -> (StagedContent, Backup) {
        let Self { row, by, side, for_all, .. } = self;
        let backup = backup_of(row.path(), side, &content, BackupKind::Deleted, by);
        (content, Backup { for_all: *for_all, ..backup })
    }

    /// The effect by which an undo holds it again.
    pub fn effect(&self) -> Result<Effect> {
        let copied = self.copy.as_ref().ok().and_then(Option::as_ref).map(|content| content.digest);
        discarded(self.row, &self.side, copied.or(self.own))
    }
}

impl Overlay {
    /// Copies what is to be kept of an entry; nothing of one that is neither held nor left unjudged.
    pub(super) fn removal<'a>(&self, row: &'a UpperRow, by: &'a Writer) -> Result<Removal<'a>> {
        let is_left = self.state.lock().uppers.get(row.id).is_some_and(|upper| upper.left);
        let mut side = if row.held.is_some() || is_left { self.row_side(row)? } else { Side::default() };
        // As it is found: a writer that only appends at this moment does not stop the copy.
        let copy = match side.stage_found(&self.store) {
            Err(err) if !err.is_full() => return Err(err.into()),
            copied => copied,
        };
        let own = match is_left && copy.is_err() {
            true => side.digest().doing(|| format!("hash {}", row.path()))?,
            false => row.held.as_ref().and_then(|held| held.new),
        };
        let for_all = !matches!(copy, Ok(None)) && self.is_for_all(row.path(), &side);
        Ok(Removal { row, by, side, for_all, copy, own })
    }

    /// The same for an entry that is about to be replaced. On a full disk its own file would not do as the backup: a
    /// program that has looked it up a moment ago may still open it, and write to it.
    pub(in crate::overlay) fn keep_replaced_content(
        &self,
        replaced: Option<UpperId>,
        by: &Writer,
    ) -> Result<Option<(StagedContent, Backup)>> {
        let row = replaced.and_then(|id| self.state.lock().uppers.row(id).cloned());
        let Some(row) = row else { return Ok(None) };
        let mut removal = self.removal(&row, by)?;
        let copy = std::mem::replace(&mut removal.copy, Ok(None))?;
        Ok(copy.map(|content| removal.kept(content)))
    }

    /// The same for content that a program is about to write over: once after each judgement, with what was appended
    /// since.
    pub(in crate::overlay) fn keep_overwritten_content(
        &self,
        open: &OpenFile,
        extent: Extent,
        by: &Writer,
    ) -> Result<()> {
        let is_kept = || open.overwritten.load(Ordering::SeqCst);
        if is_kept() || extent.adds_to(&open.file())? {
            return Ok(());
        }
        // Other writers wait meanwhile, except those that only append: nothing else changes what is being copied.
        let _one_at_a_time = open.copying.lock();
        let mut kept = None;
        while !is_kept()
            && let Some((row, file)) = self.begin_overwriting(open, kept.as_ref())
        {
            let side = Side::of_file(file).doing(|| format!("read {}", row.path()))?;
            let content = side.stage_found(&self.store)?;
            let for_all = self.is_for_all(row.path(), &side);
            let removal = Removal { row: &row, by, side, for_all, copy: Ok(None), own: None };
            let copy = content.map(|content| removal.kept(content));
            self.store.record_keeping(&Epilogue::default(), copy.as_slice())?;
            kept = Some(row);
        }
        Ok(())
    }

    /// Returns the change in an open file that is held, or left unjudged, and is not the one that is `kept` already. If
    /// there is none, the file may be written over.
    fn begin_overwriting(&self, open: &OpenFile, kept: Option<&UpperRow>) -> Option<(UpperRow, Arc<File>)> {
        let state = self.state.lock();
        let waits = |upper: &&Upper| {
            let has_content = upper.left || upper.row.held.as_ref().is_some_and(|held| held.new.is_some());
            has_content && kept.is_none_or(|kept| waits_as(kept) != waits_as(&upper.row))
        };
        let waiting = open.upper().and_then(|id| state.uppers.get(id)).filter(waits);
        if waiting.is_none() {
            open.overwritten.store(true, Ordering::SeqCst);
        }
        waiting.map(|upper| (upper.row.clone(), open.file()))
    }

    /// Records that an entry goes, and what is kept of it; a full disk stops neither. Under the lock, so that no program
    /// opens a file that becomes a backup itself.
    pub(super) fn record_removal(
        &self,
        state: &State,
        mut removal: Removal<'_>,
        epilogue: &Epilogue,
    ) -> Result<Option<OperationId>> {
        let copy = std::mem::replace(&mut removal.copy, Ok(None));
        let is_copy = copy.is_ok();
        let content = copy.or_else(|full| self.keep_own_file(state, &removal, full).map(Some))?;
        let kept = content.map(|content| removal.kept(content));
        let recorded = self.store.vitally_for_programs(|| self.store.record_keeping(epilogue, kept.as_slice()));
        if let (Err(_), false, Some((content, _))) = (&recorded, is_copy, &kept) {
            // The entry stays, and may be written to again.
            self.store.unstage(removal.row.id, content.digest)?;
        }
        Ok(recorded?)
    }

    /// Makes an entry's own file the backup, if it was not written to since it was judged or found, and is not open.
    /// `full` says why it could not be copied.
    fn keep_own_file(&self, state: &State, removal: &Removal<'_>, full: store::Error) -> store::Result<StagedContent> {
        let Removal { row, side, own, .. } = removal;
        let stamp = || Ok::<_, store::Error>(self.store.upper_meta(row.id)?.stamp());
        let is_as_known = match state.uppers.get(row.id) {
            Some(upper) if upper.left => Some(stamp()?) == side.meta.map(|meta| meta.stamp()),
            Some(upper) => !upper.dirty,
            None => false,
        };
        let is_closed = state.nodes.open_of(row.id).is_none();
        match *own {
            Some(digest) if is_as_known && is_closed && side.is_file() => {
                let by_name =
                    self.store.vitally_for_programs(|| self.store.stage_by_name(row.id, digest, side.size))?;
                by_name.ok_or(full)
            }
            Some(_) | None => Err(full),
        }
    }

    /// The event for a held change that ends without anything held or landed in its place.
    pub(in crate::overlay) fn hold_ended(&self, path: &RelPath, held: &Held, why: &str, by: &Writer) -> EventDraft {
        let event = self.event(EventName::HoldEnded, path).with(|event| {
            event.id = Some(held.id.to_string());
            event.message = Some(why.to_owned());
        });
        event.by(by)
    }
}

fn waits_as(row: &UpperRow) -> Option<&ChangeId> {
    row.held.as_ref().map(|held| &held.id)
}
