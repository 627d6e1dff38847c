//! Where the lines of a file come from: the answer of `blame`.

use super::{EventName, Program, words};
use crate::model::RelPath;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlameReply {
    #[serde(flatten)]
    pub path: RelPath,
    /// In line order, as the view shows them.
    pub spans: Vec<BlameSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The kind of place a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineOrigin {
    /// The line was there before the first event about the file, or there is no such event.
    BeforeLog,
    /// An event brought it into the project.
    Event,
    /// It was brought from outside, below the mount.
    Outside,
    /// It waits for review.
    Held,
    /// It was written but not yet judged.
    Unjudged,
}

/// Consecutive lines with the same origin. Fields that do not apply are absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlameSpan {
    /// The number of the first line, from 1.
    pub line: u64,
    pub text: String,
    pub origin: LineOrigin,
    /// False if a content in between is no longer kept. The lines are then no younger than stated; they may be as old as
    /// the event `since`, or if that is absent, older than the log.
    pub certain: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    #[serde(flatten)]
    pub by: BlamedOn,
}

/// The event or held change that lines come from, and who wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlamedOn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventName>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "words::time_if_any")]
    pub time: Option<jiff::Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The writer's; if no writer is known, the asker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<Program>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<Program>,
}

impl BlamedOn {
    /// The program to name if there is only room for one.
    pub fn program(&self) -> Option<&Program> {
        self.written_by.as_ref().or(self.opened_by.as_ref())
    }
}
