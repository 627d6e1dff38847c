//! Events: one line of `events.jsonl`, one entry of `log` (SPEC §14).

use std::collections::BTreeMap;

use super::words;
use crate::model::{Digest, Reason, RelPath};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventName {
    SessionStarted,
    WriteLanded,
    WriteHeld,
    WriteDenied,
    /// An asker was refused for lack of rights.
    RequestRefused,
    /// Someone asks for a decision about what is held.
    ReviewRequested,
    Confirmed,
    ConfirmFailed,
    Discarded,
    /// A program's action ended a hold: the change was removed, or became equal to the project.
    HoldEnded,
    RolledBack,
    Undone,
    Expired,
    ExternalModified,
    CheckStarted,
    CheckPassed,
    CheckFailed,
    PromoteStarted,
    PromoteSucceeded,
    PromoteFailed,
    Recovered,
    SessionEnded,
}

/// A program as the kernel reports it. The text is only for people: bytes that are not UTF-8 are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The process, and the user for whom it acted at that moment.
    pub pid: u32,
    pub uid: u32,
    pub exe: Option<String>,
    /// The arguments separated by blanks, cut after 512 bytes.
    pub cmdline: Option<String>,
}

/// One event. Fields that do not apply are absent, except the two programs, which are then null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up by one through a project's whole life; a gap means that the events in between were rotated away.
    pub seq: u64,
    #[serde(serialize_with = "words::time")]
    pub time: jiff::Timestamp,
    pub event: EventName,
    #[serde(flatten)]
    pub path: Option<RelPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertions: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<u64>,
    /// Judged together with the previous landing at this path (SPEC §4.6), so its counts include that one's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    pub opened_by: Option<Program>,
    pub written_by: Option<Program>,
}

impl EventName {
    /// Every name, in the order of the contract.
    pub const ALL: [Self; 22] = [
        Self::SessionStarted,
        Self::WriteLanded,
        Self::WriteHeld,
        Self::WriteDenied,
        Self::RequestRefused,
        Self::ReviewRequested,
        Self::Confirmed,
        Self::ConfirmFailed,
        Self::Discarded,
        Self::HoldEnded,
        Self::RolledBack,
        Self::Undone,
        Self::Expired,
        Self::ExternalModified,
        Self::CheckStarted,
        Self::CheckPassed,
        Self::CheckFailed,
        Self::PromoteStarted,
        Self::PromoteSucceeded,
        Self::PromoteFailed,
        Self::Recovered,
        Self::SessionEnded,
    ];
}

/// The note on a landing that created the file.
pub const NEW_FILE: &str = "[new file]";
/// The note on a landing that deleted it.
pub const DELETED: &str = "[deleted]";

/// Whether a landing's note says that something was removed.
pub fn tells_of_removal(note: &str) -> bool {
    note == DELETED || note.ends_with(" removed]")
}

/// Returns the last event of each path, its line counts added to those of the same kind of events just before it there.
pub fn last_of_each_path(events: impl IntoIterator<Item = Event>) -> BTreeMap<RelPath, Event> {
    let mut paths: BTreeMap<RelPath, Edits> = BTreeMap::new();
    for event in events {
        let Some(path) = event.path.clone() else { continue };
        let edits = Edits::after(paths.remove(&path), event);
        paths.insert(path, edits);
    }
    paths.into_iter().map(|(path, edits)| (path, edits.summed())).collect()
}

/// The events at one path, summed up.
struct Edits {
    last: Event,
    /// Lines of earlier events that the last one does not include.
    insertions: u64,
    deletions: u64,
}

impl Edits {
    fn after(earlier: Option<Self>, mut event: Event) -> Self {
        let is_removal = event.message.as_deref().is_some_and(tells_of_removal);
        let Some(earlier) = earlier.filter(|earlier| earlier.last.event == event.event && !is_removal) else {
            return Self { last: event, insertions: 0, deletions: 0 };
        };
        let (mut insertions, mut deletions) = (earlier.insertions, earlier.deletions);
        // A held change is always reported with its total counts.
        let tells_again = event.continues || event.event == EventName::WriteHeld;
        if !tells_again {
            insertions += earlier.last.insertions.unwrap_or_default();
            deletions += earlier.last.deletions.unwrap_or_default();
        }
        let is_new = earlier.last.message.as_deref() == Some(NEW_FILE);
        event.message = event.message.or(is_new.then(|| NEW_FILE.to_owned()));
        Self { last: event, insertions, deletions }
    }

    fn summed(mut self) -> Event {
        let sum = |last: &mut Option<u64>, before: u64| {
            *last = last.map(|lines| lines + before).or((before > 0).then_some(before));
        };
        sum(&mut self.last.insertions, self.insertions);
        sum(&mut self.last.deletions, self.deletions);
        self.last
    }
}

impl Event {
    /// An event with only its name; the caller fills in the rest.
    pub fn new(seq: u64, time: jiff::Timestamp, event: EventName) -> Self {
        Self {
            seq,
            time,
            event,
            path: None,
            id: None,
            operation: None,
            session: None,
            reason: None,
            sha256: None,
            bytes: None,
            insertions: None,
            deletions: None,
            continues: false,
            backup: None,
            message: None,
            pid: None,
            uid: None,
            opened_by: None,
            written_by: None,
        }
    }
}
