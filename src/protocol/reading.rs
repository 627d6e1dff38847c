//! What `read` and `meter` answer.

use super::ExternalKind;
use crate::model::{Digest, RelPath};
use serde::{Deserialize, Serialize};

/// In what form a reader is given a file (SPEC §16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadForm {
    /// All of it.
    Content,
    /// Some of its lines.
    Part,
    /// One line that says so.
    Unchanged,
    /// A unified diff since what the session last received.
    Diff,
    /// One line that says what the session's own patches have made of it.
    Certificate,
    /// Nothing: what the session had received is forgotten.
    Forgotten,
}

/// A file, or what its reader does not have of it yet. `offset`, `limit` and `next` count lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReply {
    #[serde(flatten)]
    pub path: RelPath,
    pub form: ReadForm,
    /// What the reader is to be shown.
    pub text: String,
    /// Of the file as it is now, whatever the form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    pub size: u64,
    pub lines: u64,
    /// Under which name it is remembered that this was received; null: under none.
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertions: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<u64>,
    pub externally_modified: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl ReadReply {
    /// Text bytes in one page, but for a single line that is longer. An eighth of a reply: JSON may spell one byte with six
    /// characters.
    pub const PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 8;

    /// Puts the page that follows this one behind it.
    pub fn append(&mut self, page: Self) {
        self.text.push_str(&page.text);
        self.next = page.next;
    }
}

/// What one session asked for and was given, in bytes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Meter {
    /// Null: reads without a session, and of sessions that are forgotten.
    pub session: Option<String>,
    pub uid: u32,
    #[serde(flatten)]
    pub counts: MeterCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct MeterCounts {
    pub reads: u64,
    /// What plain reading would have brought.
    pub bytes_asked: u64,
    pub bytes_returned: u64,
    /// The part of the bytes asked for that did not have to be returned, 0 to 1; below 0 where more was returned.
    pub saved: f64,
}

impl MeterCounts {
    pub fn of(reads: u64, bytes_asked: u64, bytes_returned: u64) -> Self {
        let saved = match bytes_asked {
            0 => 0.0,
            asked => 1.0 - bytes_returned as f64 / asked as f64,
        };
        Self { reads, bytes_asked, bytes_returned, saved }
    }
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct MeterReply {
    /// The latest reader first.
    pub sessions: Vec<Meter>,
    pub total: MeterCounts,
    /// What is told here has been forgotten.
    #[serde(default)]
    pub reset: bool,
}
