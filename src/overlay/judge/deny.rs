//! Denying: what a permission program refused leaves the view, which shows lower again. Its content is kept as a backup,
//! and a caller that waits gets EACCES (SPEC §7 "deny by a hook").

use std::sync::atomic::Ordering;

use super::claim::Job;
use super::compare::Comparison;
use super::settle::Settled;
use crate::model::{BackupKind, Reason};
use crate::overlay::review::discard::Writing;
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::EventName;
use crate::store::{Durability, Epilogue, Fate, Landing, Writer};

/// What a denial leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Denial {
    /// The entry goes, and the close fails.
    Drops,
    /// The operation fails, and takes back itself what it has done.
    Fails,
    /// The operation cannot be undone any more, or no caller waits for it: the change waits for review.
    Holds,
}

impl Overlay {
    /// Returns `Error::Denied` once the view shows lower again, which an operation that fails sees to itself, or
    /// `Postponed`, with nothing done, if a writer that is denied went on writing meanwhile.
    pub(super) fn deny(&self, job: &Job, comparison: &mut Comparison, actor: &Writer, why: &str) -> Result<Settled> {
        let row = &job.row;
        if comparison.new.exists() {
            // The old content was renamed away for a save that is refused: the project must not be left without it.
            self.put_back(job, comparison)?;
        }
        let mut landing = Landing::new(&self.store, Durability::Cached);
        if let Some(content) = comparison.new.stage_found(&self.store)? {
            let backup = self.backup_there(&comparison.path, &comparison.new, &content, BackupKind::Discarded, actor);
            landing.keep(content, backup);
        }
        let mut epilogue = Epilogue { drop: vec![row.id], ..Epilogue::default() };
        let ended = row.held.iter().map(|held| (held.id.clone(), comparison.path.clone(), Fate::Discarded));
        epilogue.verdicts.extend(ended);
        epilogue.events.push(self.denied_event(comparison, actor, why));
        if job.denial == Denial::Fails {
            landing.promise(epilogue)?.apply()?.finish()?;
            self.counters.denied.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Denied);
        }
        // Looked up before the denial, so that afterwards nothing is in the way of showing it.
        let shown = self.what_lower_shows(&comparison.path, job.open.as_ref())?;
        let promised = landing.promise(epilogue)?;
        let applied = {
            let state = self.state.lock();
            if !self.is_untouched(&state, job) {
                return Ok(Settled::Postponed);
            }
            promised.apply()?
        };
        applied.finish()?;
        self.counters.denied.fetch_add(1, Ordering::Relaxed);
        self.back_to_lower(row, |state| self.is_untouched(state, job), shown, Writing::IsInVain);
        row.names.iter().for_each(|name| self.tell_content_changed(name));
        Err(Error::Denied)
    }

    pub(super) fn denied_event(&self, comparison: &Comparison, actor: &Writer, why: &str) -> crate::store::EventDraft {
        let measure = comparison.measure;
        let event = self.event(EventName::WriteDenied, &comparison.path).with(|event| {
            event.reason = Some(Reason::Hook);
            event.message = Some(why.to_owned());
            event.bytes = comparison.new.exists().then_some(comparison.new.size);
            event.insertions = measure.map(|measure| measure.insertions);
            event.deletions = measure.map(|measure| measure.deletions);
        });
        event.by(actor)
    }
}
