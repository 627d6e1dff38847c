//! What confirms have landed of an operation since, for the undo of that operation.
//!
//! A confirm is an operation of its own, and may have landed more than this operation had held. So an undo leaves it
//! alone, and names the confirm to undo instead, unless that was undone since.

use std::collections::{BTreeSet, HashSet};

use crate::model::{ChangeId, OperationId};
use crate::overlay::Overlay;
use crate::overlay::review::Reviewed;
use crate::protocol::{ErrorBody, ErrorCode, Event, EventName};
use crate::store::rows::operations;
use crate::store::{self, Effect, Fate, Operation};

/// How many confirms a message names: of ten thousand files, each may have been confirmed alone.
const CONFIRMS_NAMED: usize = 20;

/// The confirms that have landed something of an operation, oldest first.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    standing: Vec<OperationId>,
    undone: Vec<OperationId>,
}

impl Overlay {
    pub(super) fn confirmed_of(&self, operation: &Operation) -> Reviewed<Confirmed> {
        self.confirms_of(operation).map_err(|err| {
            let message = format!("look up what became of {}: {err}", operation.id);
            ErrorBody::new(ErrorCode::Io, message)
        })
    }

    fn confirms_of(&self, operation: &Operation) -> store::Result<Confirmed> {
        let ids = self.ids_since(operation)?;
        if ids.is_empty() {
            return Ok(Confirmed::default());
        }
        let events = self.store.events_since(operation.id.first_event())?;
        let is_of_it = |event: &&Event| {
            event.event == EventName::Confirmed && event.id.as_ref().is_some_and(|id| ids.contains(id))
        };
        let confirms: BTreeSet<OperationId> = events.iter().filter(is_of_it).filter_map(operations::of_event).collect();
        let undone = operations::undone_in(events.iter().rev());
        let (undone, standing) = confirms.into_iter().partition(|confirm| undone.contains(confirm));
        Ok(Confirmed { standing, undone })
    }

    /// The ids of what an operation had held, including those that superseded them.
    fn ids_since(&self, operation: &Operation) -> store::Result<HashSet<String>> {
        let written = operation.events.iter().filter(|event| event.event == EventName::WriteHeld);
        let written = written.filter_map(|event| ChangeId::parse(event.id.as_ref()?));
        let again = operation.effects.iter().filter_map(|done| match &done.effect {
            Effect::HeldAgain { id } => Some(id.clone()),
            _ => None,
        });
        let mut ids = HashSet::new();
        for first in written.chain(again) {
            let mut last = Some(first);
            while let Some(id) = last.filter(|id| ids.insert(id.to_string())) {
                last = match self.store.verdict(&id)?.map(|verdict| verdict.fate) {
                    Some(Fate::Superseded { by }) => Some(by),
                    Some(_) | None => None,
                };
            }
        }
        Ok(ids)
    }
}

impl Confirmed {
    /// The refusal to undo an operation that only had changes held, none of which waits any more.
    pub(super) fn waits_no_more(&self, id: OperationId) -> ErrorBody {
        let became = self.landed("it").unwrap_or_else(|| match self.undone.is_empty() {
            true => "nothing of it had landed: `fettlefs log` tells what became of it".to_owned(),
            false => "what was confirmed of it is undone".to_owned(),
        });
        let message = format!("nothing of {id} waits any more, and {became}");
        ErrorBody::new(ErrorCode::AlreadyApplied, message).about(id.to_string())
    }

    /// What the undo of an operation leaves as it is, as a notice.
    pub(super) fn stays(&self, id: OperationId) -> Option<String> {
        self.landed(&id.to_string())
    }

    /// Completes a refusal that would otherwise claim that nothing is left of an operation, or that would name what a
    /// confirm has landed as an edit from outside.
    pub(super) fn told_beside(&self, refusal: ErrorBody, id: OperationId) -> ErrorBody {
        let message = match refusal.code {
            ErrorCode::AlreadyApplied => {
                self.landed("it").map(|landed| format!("{id} is undone already, and {landed}"))
            }
            ErrorCode::Conflict => self.stays(id).map(|stays| format!("{}; {stays}", refusal.message)),
            _ => None,
        };
        match message {
            Some(message) => ErrorBody { message, ..refusal },
            None => refusal,
        }
    }

    fn landed(&self, of: &str) -> Option<String> {
        let named: Vec<String> = self.standing.iter().take(CONFIRMS_NAMED).map(ToString::to_string).collect();
        let more = self.standing.len() - named.len();
        let (all, undo) = match (named.as_slice(), more) {
            ([], _) => return None,
            ([only], _) => (only.clone(), format!("`fettlefs undo {only}`")),
            (_, 0) => (named.join(", "), "`fettlefs undo` of each".to_owned()),
            (_, more) => (format!("{} and {more} more", named.join(", ")), "`fettlefs undo` of each".to_owned()),
        };
        Some(format!("what was confirmed of {of} landed as {all}: {undo} takes that back"))
    }
}
