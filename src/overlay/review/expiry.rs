//! Refusals of a confirm, told and recorded: changes held for too long without a look, and everything else.

use super::{Review, Reviewed, Taken};
use crate::model::{ChangeId, RelPath};
use crate::overlay::Overlay;
use crate::protocol::{ErrorBody, ErrorCode, EventName};
use crate::store::UpperRow;

/// Whether changes held for too long without a look are refused (SPEC §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Guard,
    Ignore,
}

impl Overlay {
    pub(super) fn check_fresh(&self, change: &Taken, review: &Review) -> Reviewed<()> {
        let Some(expired) = self.expired(&change.held) else { return Ok(()) };
        if !review.dry_run {
            self.tell_expired([&change.row]);
        }
        let message = format!("{} of {} {expired}", change.held.id, change.row.path());
        Err(ErrorBody::new(ErrorCode::Expired, message).about(change.held.id.as_str()))
    }

    /// Records which of these cannot be confirmed for want of a fresh look. Each is recorded once, however often a
    /// confirm is tried, until it has been looked at and expires again.
    pub fn tell_expired<'a>(&self, rows: impl IntoIterator<Item = &'a UpperRow>) {
        let expired = |row: &'a UpperRow| {
            let held = row.held.as_ref()?;
            Some((row, held, self.expired(held)?))
        };
        let expired: Vec<_> = rows.into_iter().filter_map(expired).collect();
        if expired.is_empty() {
            // The usual case; the whole log would be read for nothing.
            return;
        }
        let told = match self.store.latest_of_changes(EventName::Expired) {
            Ok(told) => told,
            Err(err) => return log::error!("look into the log: {err}"),
        };
        for (row, held, message) in expired {
            if told.get(held.id.as_str()).is_none_or(|at| *at < held.renewed) {
                self.record_refusal(EventName::Expired, (row.path(), &held.id), &message);
            }
        }
    }

    /// Records nothing for a dry run, which decides nothing.
    pub(super) fn record_failure(&self, change: &Taken, err: &ErrorBody, review: &Review) {
        if !review.dry_run {
            self.record_refusal(EventName::ConfirmFailed, (change.row.path(), &change.held.id), &err.message);
        }
    }

    /// The caller is told of the refusal in any case; a failure to record it only goes to the daemon's log.
    fn record_refusal(&self, name: EventName, (path, id): (&RelPath, &ChangeId), message: &str) {
        let event = self.event(name, path).with(|event| {
            event.id = Some(id.to_string());
            event.message = Some(message.to_owned());
        });
        if let Err(err) = self.store.record(&event) {
            log::error!("record that a confirm was refused: {err}");
        }
    }
}
