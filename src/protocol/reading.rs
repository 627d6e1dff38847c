//! The answers of `read` and `meter`.

use super::ExternalKind;
use crate::model::{Digest, RelPath};
use serde::{Deserialize, Serialize};

/// The form in which a reader gets a file (SPEC §16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadForm {
    /// The whole file.
    Content,
    /// Some lines of it.
    Part,
    /// One line saying that nothing has changed.
    Unchanged,
    /// A unified diff since what the session last received.
    Diff,
    /// One line saying what the session's own patches have made of the file.
    Certificate,
    /// Nothing: what the session had received has been forgotten.
    Forgotten,
}

/// A file, or the part of it that its reader lacks. `offset`, `limit` and `next` count lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReply {
    #[serde(flatten)]
    pub path: RelPath,
    pub form: ReadForm,
    /// The text to show to the reader.
    pub text: String,
    /// The hash of the whole present file, whatever the form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    pub size: u64,
    pub lines: u64,
    /// The name of the session for which this reading is remembered; null if it is not remembered.
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
    /// The most bytes of text in one page, except for a single longer line. An eighth of a reply: JSON may spell one
    /// byte with six characters.
    pub const PAGE_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 8;

    /// Appends the page that follows this one.
    pub fn append(&mut self, page: Self) {
        self.text.push_str(&page.text);
        self.next = page.next;
    }
}

/// How many bytes one session asked for and received.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Meter {
    /// Null: reads without a session, and those of forgotten sessions.
    pub session: Option<String>,
    pub uid: u32,
    #[serde(flatten)]
    pub counts: MeterCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct MeterCounts {
    pub reads: u64,
    /// The bytes that plain reading would have returned.
    pub bytes_asked: u64,
    pub bytes_returned: u64,
    /// The share of the bytes asked for that need not be returned, 0 to 1; below 0 if more was returned.
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
    /// The most recent reader comes first.
    pub sessions: Vec<Meter>,
    pub total: MeterCounts,
    /// The counts reported here have been reset.
    #[serde(default)]
    pub reset: bool,
}
