//! The answers of all operations except `status`.

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
    /// A backup was put back in its place.
    Restored,
    /// What an operation did to the path was reversed.
    Undone,
    Unchanged,
    /// A write landed by itself.
    Landed,
    Held,
}

/// What a summary shows in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    NewFile,
    Binary,
    Large,
    /// Later edits to the file were kept.
    Merged,
    /// The content was removed from the state directory, so that there is no backup of it.
    Gone,
}

/// The line counts of one change. Absent in an [`Outcome`] if no lines were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub insertions: u64,
    pub deletions: u64,
    /// The ratio of changed lines to old lines; 0 if there are no old lines.
    pub ratio: f64,
}

impl Counts {
    pub fn of(insertions: u64, deletions: u64, old_lines: u64) -> Self {
        let ratio = if old_lines == 0 { 0.0 } else { (insertions + deletions) as f64 / old_lines as f64 };
        Self { insertions, deletions, ratio }
    }
}

/// What was done to one path, or with `dry_run`, what would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub action: Action,
    #[serde(flatten)]
    pub path: RelPath,
    /// For a held change: the further names under which the same was done.
    #[serde(flatten, skip_serializing_if = "Also::is_empty")]
    pub also: Also,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ChangeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ChangeKind>,
    /// Bytes and lines of the content that is there now; absent if nothing is (a deletion).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// For a patch: the base of the next patch to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    #[serde(flatten)]
    pub counts: Option<Counts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    /// The backup that keeps the replaced or discarded content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// For a restored path: the backup that was put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The id of what remains held after only some hunks were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_id: Option<ChangeId>,
    /// The name by which `undo` reverses this and everything done with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// For a held change: the diff.
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

/// The answer of `confirm`, `discard`, `rollback` and `undo`.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Acted {
    pub outcomes: Vec<Outcome>,
    /// How many further outcomes did not fit into the answer.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// For an undo, or the confirm of an operation: what it left as it was, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Nothing was done; this is what would be.
    #[serde(default)]
    pub dry_run: bool,
}

impl Acted {
    /// Nothing was done if nothing was held, or if this was a dry run.
    pub fn has_acted(&self) -> bool {
        !self.dry_run && !self.outcomes.is_empty()
    }
}

/// Unified diffs of held changes. `offset` and `next` count the bytes of diff text over all changes in their order, plus
/// one for each change; a change that a page cuts continues under the same id in the next.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct DiffReply {
    pub changes: Vec<ChangeDiff>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Comes with `next`: a digest of everything up to there, on this page and those before. A client that passes it when
    /// it asks for the next page never gets one from another list.
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

/// Diff text as bytes: `diff`, and also `diff_b64` if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiffText(pub Vec<u8>);

impl DiffReply {
    /// Appends the page that follows this one.
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
    /// Newest first, so that `offset` 0 with a `limit` returns the latest.
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventsReply {
    /// Oldest first. Empty if nothing happened while the request waited.
    pub events: Vec<Event>,
    /// The number of the last event that was looked at; pass it as `since` to continue.
    pub seq: u64,
    /// The mount is going away: there will be no more events here.
    #[serde(default)]
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExternalReply {
    pub external: Vec<External>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FsckReply {
    pub problems: Vec<Problem>,
    /// How many things were checked.
    pub checked: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A fault in the state directory, or in what fettlefs keeps in the project.
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
    /// Which settings are ignored and why, and other remarks for people.
    pub notices: Vec<String>,
    /// The project's own settings file, if there is one and nothing was reloaded (`dry_run`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_file: Option<ProjectFile>,
    /// Nothing was reloaded; these would be the remarks.
    #[serde(default)]
    pub dry_run: bool,
}

/// A project's settings file, as lower and not the view has it, for the person who is to trust it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectFile {
    #[serde(flatten)]
    pub project: ProjectPath,
    pub text: String,
    pub sha256: Digest,
    pub trusted: bool,
    /// The settings that have no effect until the file is trusted.
    pub ignored: Vec<String>,
    /// The file in which the answering process looks up trust; absent if it has none.
    pub trusted_in: Option<String>,
}

/// The location of a project: `project`, and also `project_b64` if the path is not UTF-8.
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

/// Any directory: `path`, and also `path_b64` if that is not UTF-8.
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
    /// The results of the writes that the flush settled.
    pub outcomes: Vec<Outcome>,
    /// How many further outcomes did not fit into the answer.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// The files still being written when the flush returned, and their writers.
    pub writers: Vec<WritingNow>,
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct UnmountReply {
    /// The results of `held: confirm` or `held: discard`.
    pub outcomes: Vec<Outcome>,
    /// How many further outcomes did not fit into the answer.
    #[serde(default, skip_serializing_if = "words::is_zero")]
    pub more: u64,
    /// The changes that wait for the next mount, as many as fit; `held_count` counts all.
    pub held: Vec<Held>,
    #[serde(default)]
    pub held_count: u64,
    /// Remarks for people.
    #[serde(default)]
    pub notices: Vec<String>,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReply {
    /// The session that the run's events carry.
    pub session: String,
    /// The session of events that belong to no run.
    pub of_nobody: String,
    /// The pid of the daemon.
    pub pid: u32,
    pub uid: u32,
    /// The mountpoint of the view. It covers the project itself in the keeper's namespaces.
    #[serde(flatten)]
    pub view: ProjectPath,
    /// The process in whose namespaces the view covers the project. Absent if it is mounted for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<u32>,
    /// Directories of the daemon's state that the view does not cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_dirs: Vec<DirPath>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// This was the last run, and the daemon ends.
    pub last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionReply {
    pub version: String,
    /// The version of this protocol.
    pub protocol: u64,
    /// The daemon that serves the mount, if another program asked it.
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
