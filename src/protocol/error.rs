//! Refusals and failures: their codes, their exit statuses, and their JSON.

use crate::model::{ChangeId, RelPath};
use serde::{Deserialize, Serialize};

/// Why a request was not carried out (SPEC §17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    UnknownId,
    UnknownPath,
    UnknownBackup,
    Ambiguous,
    Superseded,
    Expired,
    AlreadyApplied,
    AlreadyDiscarded,
    Conflict,
    Busy,
    NotPermitted,
    NotMounted,
    BadRequest,
    TooLarge,
    UnsupportedVersion,
    WriteFailed,
    Io,
    HookDenied,
}

/// The exit statuses of the command line (SPEC §12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    Done = 0,
    /// Also used if something is held and `--exit-code` was given.
    Failed = 1,
    Usage = 2,
    NotMounted = 3,
    Unknown = 4,
    Refused = 5,
    NotPermitted = 6,
    /// The command of `check` failed.
    CheckFailed = 8,
}

impl ErrorCode {
    pub fn exit(self) -> Exit {
        match self {
            Self::BadRequest => Exit::Usage,
            Self::NotMounted => Exit::NotMounted,
            Self::UnknownId | Self::UnknownPath | Self::UnknownBackup => Exit::Unknown,
            Self::Ambiguous | Self::Superseded | Self::Expired | Self::AlreadyApplied => Exit::Refused,
            Self::AlreadyDiscarded | Self::Conflict | Self::Busy => Exit::Refused,
            Self::NotPermitted | Self::HookDenied => Exit::NotPermitted,
            Self::TooLarge | Self::UnsupportedVersion | Self::WriteFailed | Self::Io => Exit::Failed,
        }
    }
}

/// The most changes that a refusal names.
const CHANGES_TOLD_MAX: usize = 20;

/// One refusal. `id` and `path` name its subject, if it is about a single one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(flatten)]
    pub path: Option<RelPath>,
    /// The last successor of a superseded id, usually one still held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_id: Option<String>,
    /// More than one line, such as the hunks of a conflict. Boxed to keep an error small enough to return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<str>>,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), id: None, path: None, new_id: None, detail: None }
    }

    pub fn about(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }

    pub fn at(self, path: &RelPath) -> Self {
        Self { path: Some(path.clone()), ..self }
    }

    /// Names the changes concerned in `detail`, one line each.
    pub fn telling<'a>(self, changes: impl ExactSizeIterator<Item = (&'a ChangeId, &'a RelPath)>) -> Self {
        let more = changes.len().saturating_sub(CHANGES_TOLD_MAX);
        let told = changes.take(CHANGES_TOLD_MAX).map(|(id, path)| format!("{id}  {path}\n"));
        let detail: String = told.chain((more > 0).then(|| format!("and {more} more\n"))).collect();
        Self { detail: Some(detail.into_boxed_str()), ..self }
    }

    /// Returns the command-line step that helps, if the message does not name it.
    pub fn remedy(&self) -> Option<String> {
        match (self.code, self.id.as_deref(), self.new_id.as_deref()) {
            (ErrorCode::Superseded, _, Some(new)) => Some(format!("To see what it became: fettlefs diff {new}")),
            (ErrorCode::Expired, Some(id), _) | (ErrorCode::Superseded, Some(id), None) => {
                Some(format!("To look again: fettlefs diff {id}"))
            }
            (ErrorCode::Expired, None, _) => Some("To look again: fettlefs diff; to go on without: --renew".to_owned()),
            (ErrorCode::Conflict, Some(_), _) => {
                Some("To land it anyway, keeping what it replaces as a backup: confirm it with --force".to_owned())
            }
            // A refusal that is about no single change is about the whole project.
            (ErrorCode::Busy, _, _) if self.id.is_some() || self.path.is_some() => {
                Some("To wait for the writer: fettlefs flush --wait".to_owned())
            }
            (_, _, _) => None,
        }
    }
}

/// A refusal for what is at one path.
pub fn refused_at(path: &RelPath, code: ErrorCode, why: &str) -> ErrorBody {
    ErrorBody::new(code, format!("{path}: {why}")).at(path)
}
