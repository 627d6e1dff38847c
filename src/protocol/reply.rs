//! What the operations answer, other than `status`.

use super::words;
use super::{Also, Backup, Event, External, Held, WritingNow};
use crate::model::{ChangeId, ChangeKind, Digest, RelPath};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What became of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A held change landed.
    Applied,
    /// A held change landed together with what had changed below.
    Merged,
    Discarded,
    /// A backup is back in its place.
    Restored,
    /// What an operation did to it is reversed.
    Undone,
    Unchanged,
    /// A write landed by itself.
    Landed,
    Held,
}

/// What a summary says in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    NewFile,
    Binary,
    Large,
    /// What was written since is still there.
    Merged,
}

/// Lines of one change. Absent in an [`Outcome`] where no lines were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub insertions: u64,
    pub deletions: u64,
    /// Changed lines to old lines; 0 where there are none.
    pub ratio: f64,
}

impl Counts {
    pub fn of(insertions: u64, deletions: u64, old_lines: u64) -> Self {
        let ratio = if old_lines == 0 { 0.0 } else { (insertions + deletions) as f64 / old_lines as f64 };
        Self { insertions, deletions, ratio }
    }
}

/// What was done to one path; with `dry_run`, what would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub action: Action,
    #[serde(flatten)]
    pub path: RelPath,
    /// Of a held change: what it is done under as well.
    #[serde(flatten, skip_serializing_if = "Also::is_empty")]
    pub also: Also,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ChangeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ChangeKind>,
    /// Bytes and lines of the content that is now there; absent where nothing is (a deletion).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// Of a patch: what the next one of this file is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    #[serde(flatten)]
    pub counts: Option<Counts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    /// Where the replaced or discarded content is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Restored: from this backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The rest of a change of which some hunks were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_id: Option<ChangeId>,
    /// What `undo` takes to reverse this and all that was done with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Held: the diff.
    #[serde(flatten)]
    pub diff: Option<DiffText>,
}

impl Outcome {
    /// An outcome with nothing but action and path; the caller fills in what is known.
    pub fn new(action: Action, path: RelPath) -> Self {
        Self {
            action,
            path,
            also: Also::default(),
            id: None,
            kind: None,
            size: None,
            lines: None,
            sha256: None,
            counts: None,
            note: None,
            backup: None,
            from: None,
            new_id: None,
            operation: None,
            diff: None,
        }
    }
}

/// Answer of `confirm`, `discard`, `rollback` and `undo`.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Acted {
    pub outcomes: Vec<Outcome>,
    /// How many outcomes of what was done the answer has no room for.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// Of an undo, and of the confirm of an operation: what it leaves as it is, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Nothing was done; this is what would be.
    #[serde(default)]
    pub dry_run: bool,
}

impl Acted {
    /// Nothing has where nothing was held, or it was only to be told what would be done.
    pub fn has_acted(&self) -> bool {
        !self.dry_run && !self.outcomes.is_empty()
    }
}

/// Unified diffs of held changes. `offset` and `next` count bytes of diff text over all changes in their order, and one for
/// each change; a change that a page cuts goes on under the same id in the next.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct DiffReply {
    pub changes: Vec<ChangeDiff>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Beside `next`: stands for all that was told up to there, on this page and those before. Whoever asks for the next page
    /// with it gets none of another list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeDiff {
    #[serde(flatten)]
    pub held: Held,
    #[serde(flatten)]
    pub text: DiffText,
}

/// Diff text, as bytes: `diff`, and `diff_b64` beside it when it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiffText(pub Vec<u8>);

impl DiffReply {
    /// Puts the page that follows this one behind it.
    pub fn append(&mut self, page: Self) {
        for change in page.changes {
            match self.changes.last_mut() {
                Some(last) if last.held.id == change.held.id => last.text.0.extend(change.text.0),
                _ => self.changes.push(change),
            }
        }
        (self.next, self.told) = (page.next, page.told);
    }
}

#[derive(Serialize, Deserialize)]
struct DiffFields {
    diff: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diff_b64: Option<String>,
}

impl Serialize for DiffText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (diff, diff_b64) = words::text_and_base64(&self.0);
        DiffFields { diff, diff_b64 }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DiffText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = DiffFields::deserialize(deserializer)?;
        words::bytes_of(fields.diff, fields.diff_b64.as_deref()).map(Self).map_err(D::Error::custom)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackupsReply {
    /// Newest first.
    pub backups: Vec<Backup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogReply {
    /// Newest first, so that `offset` 0 and a `limit` give the latest.
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventsReply {
    /// Oldest first. Empty: nothing happened while the request waited.
    pub events: Vec<Event>,
    /// The number of the last event that was looked at, to ask on from.
    pub seq: u64,
    /// The mount is being taken away: nothing more will be told here.
    #[serde(default)]
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExternalReply {
    pub external: Vec<External>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FsckReply {
    pub problems: Vec<Problem>,
    /// How many things were looked at.
    pub checked: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One thing in the state directory, or of ours in the project, that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `database upper held anchor content orphan temporary intent permissions events verdict`.
    pub kind: String,
    /// A path, a backup, an id, or a file of the state directory.
    pub about: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReloadReply {
    /// What of the settings is ignored and why; what else a person should know.
    pub notices: Vec<String>,
    /// The project's own settings file, where nothing was reloaded (`dry_run`) and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_file: Option<ProjectFile>,
    /// Nothing was reloaded; this is what would be told.
    #[serde(default)]
    pub dry_run: bool,
}

/// A project's settings file, as the project has it and not the view, for who is to trust it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectFile {
    #[serde(flatten)]
    pub project: ProjectPath,
    pub text: String,
    pub sha256: Digest,
    pub trusted: bool,
    /// What it would decide and may not, for want of trust.
    pub ignored: Vec<String>,
    /// Where whoever answers looks for trust. Absent: nowhere.
    pub trusted_in: Option<String>,
}

/// Where a project is: `project`, and `project_b64` beside it when the path is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectPath(pub PathBuf);

#[derive(Serialize, Deserialize)]
struct ProjectFields {
    project: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project_b64: Option<String>,
}

impl Serialize for ProjectPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (project, project_b64) = words::text_and_base64(self.0.as_os_str().as_bytes());
        ProjectFields { project, project_b64 }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ProjectPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = ProjectFields::deserialize(deserializer)?;
        let bytes = words::bytes_of(fields.project, fields.project_b64.as_deref()).map_err(D::Error::custom)?;
        Ok(Self(PathBuf::from(OsString::from_vec(bytes))))
    }
}

/// A directory somewhere: `path`, and `path_b64` beside it when that is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "DirFields", try_from = "DirFields")]
pub struct DirPath(pub PathBuf);

#[derive(Serialize, Deserialize)]
struct DirFields {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
}

impl From<DirPath> for DirFields {
    fn from(dir: DirPath) -> Self {
        let (path, path_b64) = words::text_and_base64(dir.0.as_os_str().as_bytes());
        Self { path, path_b64 }
    }
}

impl TryFrom<DirFields> for DirPath {
    type Error = base64::DecodeError;

    fn try_from(fields: DirFields) -> Result<Self, base64::DecodeError> {
        let bytes = words::bytes_of(fields.path, fields.path_b64.as_deref())?;
        Ok(Self(PathBuf::from(OsString::from_vec(bytes))))
    }
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct FlushReply {
    /// What became of the writes that the flush settled.
    pub outcomes: Vec<Outcome>,
    /// How many outcomes of what was done the answer has no room for.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// Who was still writing when it returned.
    pub writers: Vec<WritingNow>,
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct UnmountReply {
    /// What `held: confirm` or `held: discard` did.
    pub outcomes: Vec<Outcome>,
    /// How many outcomes of what was done the answer has no room for.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// What waits for the next mount, as many as fit; `held_count` is of all.
    pub held: Vec<Held>,
    #[serde(default)]
    pub held_count: u64,
    /// For people.
    #[serde(default)]
    pub notices: Vec<String>,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReply {
    /// By which events tell it from others.
    pub session: String,
    /// Of what nobody's run has done.
    pub of_nobody: String,
    /// The daemon.
    pub pid: u32,
    pub uid: u32,
    /// Where the view is mounted. It covers the project itself in the keeper's namespaces.
    #[serde(flatten)]
    pub view: ProjectPath,
    /// The process in whose namespaces the view covers the project. Absent: it is mounted for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<u32>,
    /// Directories of the daemon's state that the view does not cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_dirs: Vec<DirPath>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// Nobody is left, and the daemon ends.
    pub last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionReply {
    pub version: String,
    /// The version of this protocol.
    pub protocol: u64,
    /// The program that answers for the mount, where another one asked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonVersion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonVersion {
    pub version: String,
    pub protocol: u64,
    pub pid: Option<u32>,
}
