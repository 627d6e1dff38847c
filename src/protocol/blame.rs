//! Where the lines of a file come from: the answer of `blame`.

use super::{EventName, Program, words};
use crate::model::RelPath;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlameReply {
    #[serde(flatten)]
    pub path: RelPath,
    /// In the order of the lines, as the view shows them.
    pub spans: Vec<BlameSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// What is known of where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineOrigin {
    /// It was there before the first event that tells of the file, or no event does.
    BeforeLog,
    /// An event brought it into the project.
    Event,
    /// Somebody else did, below.
    Outside,
    /// It waits for review.
    Held,
    /// It was written and nobody has judged it.
    Unjudged,
}

/// Lines in a row that come from the same. Fields that do not apply are absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlameSpan {
    /// The number of the first, from 1.
    pub line: u64,
    pub text: String,
    pub origin: LineOrigin,
    /// False: a content in between is not kept any more. They are no younger than told; they may be as old as the event
    /// `since`, or where that is absent, older than the log.
    pub certain: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    #[serde(flatten)]
    pub by: BlamedOn,
}

/// The event or the held change that lines come from, and who wrote them.
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
    /// Of who wrote, or, where nobody is known to have, of who asked.
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
    /// The program to name, where there is only room for one.
    pub fn program(&self) -> Option<&Program> {
        self.written_by.as_ref().or(self.opened_by.as_ref())
    }
}
