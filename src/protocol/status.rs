//! The state of a project, as reported by `status` and `.fettle/status.json` (SPEC §17).

use std::collections::BTreeMap;

use super::{Program, words};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, Reason, RelPath};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Always [`Status::SCHEMA`].
    pub schema: String,
    /// An absolute path, for people: bytes that are not UTF-8 are escaped.
    pub project: String,
    pub mountpoint: Option<String>,
    pub mounted: bool,
    pub pid: Option<u32>,
    pub session: Option<String>,
    pub seq: u64,
    pub held: Vec<Held>,
    pub external: Vec<External>,
    /// Newest first.
    pub backups: Vec<Backup>,
    pub writers: Vec<WritingNow>,
    /// The runs that have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    pub counters: Counters,
    /// What the kernel has asked of this mount, and how often. Only with `all`, because the question itself is counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, u64>,
    /// Whether the kernel reads and writes files under `pass` rules by itself.
    #[serde(default)]
    pub passthrough: bool,
    /// Whether requests come through the kernel's rings instead of the device.
    #[serde(default)]
    pub rings: bool,
    /// The reason why nothing can be written, if that is so.
    pub readonly: Option<String>,
    /// Remarks for people, such as settings ignored for lack of trust or a caller that stands below the mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Where the next page begins: a single count through `held`, `external`, `backups` and `writers`, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One held change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub id: ChangeId,
    #[serde(flatten)]
    pub path: RelPath,
    pub kind: ChangeKind,
    #[serde(flatten)]
    pub also: Also,
    pub reason: Reason,
    /// The remark of a hook or rule; for structure, its nature: `new directory`, `directory removed`, `new fifo`,
    /// `new character device 1:3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What the change brings besides content, for people: `mode 644 -> 755`, `owner 0:0 -> 1000:1000`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub looks: Vec<String>,
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
    /// The ratio of changed lines to old lines; 0 if there are no old lines.
    pub ratio: f64,
    pub hunks: u64,
    pub base_sha256: Option<Digest>,
    pub new_sha256: Option<Digest>,
    pub externally_modified: bool,
    pub expired: bool,
    pub operation: Option<String>,
    pub writer: Option<Writer>,
    /// The session in which it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The session in which its hold began. Further writes and renames do not change this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_session: Option<String>,
    /// The same as in events.
    #[serde(default)]
    pub opened_by: Option<Program>,
    #[serde(default)]
    pub written_by: Option<Program>,
    #[serde(serialize_with = "words::time")]
    pub created: jiff::Timestamp,
    /// Whether the held content is already in git's HEAD (SPEC §8).
    #[serde(default)]
    pub in_head: bool,
}

impl Held {
    /// The `detail` of the removal of a directory.
    pub const DIR_REMOVED: &str = "directory removed";

    pub fn removes_dir(&self) -> bool {
        self.kind == ChangeKind::Structure && self.detail.as_deref() == Some(Self::DIR_REMOVED)
    }
}

/// Further names of the same inode: `also`, and also `also_b64` with all of them if one is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Also(pub Vec<RelPath>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    pub pid: u32,
    pub exe: Option<String>,
    pub uid: u32,
}

/// A path that someone other than fettlefs changed below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    #[serde(flatten)]
    pub path: RelPath,
    pub kind: ExternalKind,
    pub hint: String,
    /// The held change of the same path, if there is one.
    pub held: Option<ChangeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExternalKind {
    Modified,
    Deleted,
    Replaced,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// `{basename}.{time}`; bytes that are not UTF-8 are escaped, and the escaped form is accepted as input.
    pub name: String,
    #[serde(flatten)]
    pub path: RelPath,
    pub kind: BackupKind,
    pub size: u64,
    pub sha256: Digest,
    #[serde(serialize_with = "words::time")]
    pub created: jiff::Timestamp,
    /// The program that replaced this content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Writer>,
}

/// A file that a program has open and has written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritingNow {
    #[serde(flatten)]
    pub path: RelPath,
    /// 0 if no writer is known: the file is being judged, or waits to be.
    pub pid: u32,
}

/// A command that `fettlefs run` has started and waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The session that its events carry.
    pub session: String,
    /// The process that started it.
    pub pid: u32,
    pub uid: u32,
    /// The command, for people.
    pub command: String,
    #[serde(serialize_with = "words::time")]
    pub started: jiff::Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    pub landed: u64,
    pub held: u64,
    pub denied: u64,
}

impl External {
    /// The one wording of the hint (SPEC §9).
    pub const HINT: &str = "modified externally since the last operation";
}

impl ExternalKind {
    /// The word that JSON uses.
    pub fn word(self) -> &'static str {
        match self {
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::Replaced => "replaced",
        }
    }
}

impl Status {
    pub const SCHEMA: &str = "fettlefs.status/1";
}

#[derive(Serialize, Deserialize)]
struct AlsoFields {
    #[serde(default)]
    also: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    also_b64: Option<Vec<String>>,
}

impl Also {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Also {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spelled: Vec<_> = self.0.iter().map(|path| words::text_and_base64(path.as_bytes())).collect();
        let exact = spelled.iter().all(|(_, base64)| base64.is_none());
        let all_in_base64 = || self.0.iter().map(|path| words::encode(path.as_bytes())).collect();
        AlsoFields { also: spelled.into_iter().map(|(text, _)| text).collect(), also_b64: (!exact).then(all_in_base64) }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Also {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = AlsoFields::deserialize(deserializer)?;
        let bytes: Result<Vec<Vec<u8>>, _> = match fields.also_b64 {
            Some(names) => names.iter().map(|name| words::decode(name)).collect(),
            None => Ok(fields.also.into_iter().map(String::into_bytes).collect()),
        };
        let bytes = bytes.map_err(D::Error::custom)?;
        let paths: Result<Vec<_>, _> = bytes.iter().map(|bytes| RelPath::parse(bytes)).collect();
        Ok(Self(paths.map_err(D::Error::custom)?))
    }
}
