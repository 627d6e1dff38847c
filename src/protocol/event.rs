//! What happened: one line of `events.jsonl`, one entry of `log` (SPEC §14).

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
    /// Somebody asked for what they may not.
    RequestRefused,
    /// Somebody asks for a decision about what is held.
    ReviewRequested,
    Confirmed,
    ConfirmFailed,
    Discarded,
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

/// A program as the kernel tells of it. Text only for people: what is not UTF-8 is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Of the process, and the user it acted for at that moment.
    pub pid: u32,
    pub uid: u32,
    pub exe: Option<String>,
    /// Arguments with blanks between them, cut after 512 bytes.
    pub cmdline: Option<String>,
}

/// One thing that happened. Fields that do not apply are absent, but for the two programs, which are then null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up by one through a project's whole life; a gap means that the file in between was rotated away.
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
    pub const ALL: [Self; 21] = [
        Self::SessionStarted,
        Self::WriteLanded,
        Self::WriteHeld,
        Self::WriteDenied,
        Self::RequestRefused,
        Self::ReviewRequested,
        Self::Confirmed,
        Self::ConfirmFailed,
        Self::Discarded,
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

/// Whether the note of a landing says that something is gone.
pub fn tells_of_removal(note: &str) -> bool {
    note == "[deleted]" || note.ends_with(" removed]")
}

impl Event {
    /// An event with nothing but its name; the caller fills in what is known.
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
            backup: None,
            message: None,
            pid: None,
            uid: None,
            opened_by: None,
            written_by: None,
        }
    }
}
