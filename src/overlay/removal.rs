//! What waits for review and goes by a program's own act: it is removed, something is renamed over it, or it is written over
//! in place. Nobody else has that content, so it becomes a backup: in the transaction in which its entry goes, or before the
//! first byte changes.
//!
//! What nobody has judged yet leaves nothing, and what goes on under another name is not gone.

use super::discard::discarded;
use super::handles::OpenFile;
use super::land::backup_of;
use super::side::Side;
use super::{Overlay, Result, State};
use crate::model::{BackupKind, OperationId, RelPath};
use crate::protocol::EventName;
use crate::store::{self, Backup, Effect, Epilogue, EventDraft, Held, StagedContent, UpperId, UpperRow, Writer};

/// An entry that is about to go, and what is kept of it.
pub(super) struct Removal<'a> {
    row: &'a UpperRow,
    by: &'a Writer,
    side: Side,
    /// None where there is nothing to keep; an error where the disk has no room for a copy.
    copy: store::Result<Option<StagedContent>>,
}

impl Removal<'_> {
    fn backup(&self, content: &StagedContent) -> Backup {
        backup_of(&self.row.names[0], &self.side, content, BackupKind::Deleted, self.by)
    }

    /// By which an undo has it wait again.
    pub fn effect(&self) -> Result<Effect> {
        let copied = self.copy.as_ref().ok().and_then(Option::as_ref).map(|content| content.digest);
        let judged = self.row.held.as_ref().and_then(|held| held.new);
        discarded(self.row, &self.side, copied.or(judged))
    }
}

impl Overlay {
    /// Copies what is to be kept of an entry; nothing of one that does not wait for review.
    pub(super) fn removal<'a>(&self, row: &'a UpperRow, by: &'a Writer) -> Result<Removal<'a>> {
        let side = if row.held.is_some() { self.row_side(row)? } else { Side::default() };
        let copy = match side.stage(&self.store) {
            Err(err) if !err.is_full() => return Err(err.into()),
            copied => copied,
        };
        Ok(Removal { row, by, side, copy })
    }

    /// The same of what is about to be replaced. Its own file would not do on a full disk: who has found it a moment ago may
    /// open it yet, and write to it.
    pub(super) fn keep_replaced_content(
        &self,
        replaced: Option<UpperId>,
        by: &Writer,
    ) -> Result<Option<(StagedContent, Backup)>> {
        let row = replaced.and_then(|id| self.state.lock().uppers.get(id).map(|upper| upper.row.clone()));
        row.map_or(Ok(None), |row| self.copy_of_held(&row, by))
    }

    /// The same of what a program is about to write over, unless somebody is doing so already.
    pub(super) fn keep_overwritten_content(&self, open: &OpenFile, by: &Writer) -> Result<()> {
        let row = {
            let state = self.state.lock();
            let upper = open.upper().and_then(|id| state.uppers.get(id)).filter(|upper| !upper.dirty);
            upper.filter(|upper| upper.row.held.is_some()).map(|upper| upper.row.clone())
        };
        let Some(row) = row else { return Ok(()) };
        let judged = row.held.as_ref().and_then(|held| held.new);
        let kept = self.copy_of_held(&row, by)?.filter(|(content, _)| judged == Some(content.digest));
        if kept.is_some() {
            self.store.record_keeping(&Epilogue::default(), kept.as_slice())?;
        }
        Ok(())
    }

    fn copy_of_held(&self, row: &UpperRow, by: &Writer) -> Result<Option<(StagedContent, Backup)>> {
        let mut removal = self.removal(row, by)?;
        let copy = std::mem::replace(&mut removal.copy, Ok(None))?;
        Ok(copy.map(|content| {
            let backup = removal.backup(&content);
            (content, backup)
        }))
    }

    /// Records that an entry goes, and what is kept of it; a full disk stops neither. Under the lock: nobody opens a file
    /// that is kept by its name.
    pub(super) fn record_removal(
        &self,
        state: &State,
        mut removal: Removal<'_>,
        epilogue: &Epilogue,
    ) -> Result<Option<OperationId>> {
        let copy = std::mem::replace(&mut removal.copy, Ok(None));
        let is_copy = copy.is_ok();
        let content = copy.or_else(|full| self.keep_own_file(state, &removal, full).map(Some))?;
        let kept = content.map(|content| {
            let backup = removal.backup(&content);
            (content, backup)
        });
        let recorded = self.store.vitally_for_programs(|| self.store.record_keeping(epilogue, kept.as_slice()));
        if let (Err(_), false, Some((content, _))) = (&recorded, is_copy, &kept) {
            // It is written to again.
            self.store.unstage(removal.row.id, content.digest)?;
        }
        Ok(recorded?)
    }

    /// The content of an entry that nobody has written to since it was judged, and nobody has open. `full`: why it could not
    /// be copied.
    fn keep_own_file(&self, state: &State, removal: &Removal<'_>, full: store::Error) -> store::Result<StagedContent> {
        let Removal { row, side, .. } = removal;
        let is_judged = state.uppers.get(row.id).is_some_and(|upper| !upper.dirty);
        let is_closed = state.open_of(row.id, &row.names[0]).is_none();
        match row.held.as_ref().and_then(|held| held.new) {
            Some(digest) if is_judged && is_closed && side.is_file() => {
                self.store.vitally_for_programs(|| self.store.stage_by_name(row.id, digest, side.size))
            }
            Some(_) | None => Err(full),
        }
    }

    /// What waited at a path waits no more, and nothing waits or lands in its place.
    pub(super) fn hold_ended(&self, path: &RelPath, held: &Held, why: &str, by: &Writer) -> EventDraft {
        let event = self.event(EventName::HoldEnded, path).with(|event| {
            event.id = Some(held.id.to_string());
            event.message = Some(why.to_owned());
        });
        event.by(by)
    }
}
