//! The state of a project, as `status` and `.fettle/status.json` tell it (SPEC §17).

use std::collections::BTreeMap;

use super::{Program, words};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, Reason, RelPath};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Always [`Status::SCHEMA`].
    pub schema: String,
    /// Absolute, for people: bytes that are not UTF-8 are escaped.
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
    /// Those that go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    pub counters: Counters,
    /// What the kernel has asked of this mount, and how often; told where `all` is asked for, since asking is counted, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, u64>,
    /// The kernel reads and writes files under `pass` rules by itself.
    #[serde(default)]
    pub passthrough: bool,
    /// Requests come by the kernel's rings, and not by the device.
    #[serde(default)]
    pub rings: bool,
    /// Why nothing can be written, when nothing can.
    pub readonly: Option<String>,
    /// Remarks for people: settings that are ignored for want of trust, a caller who stands below the mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Where the next page begins. One count through `held`, `external`, `backups` and `writers`, in this order.
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
    /// What a hook or a rule said about it; of structure, what it is: `new directory`, `directory removed`, `new fifo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What it brings beside content, for people: `mode 644 -> 755`, `owner 0:0 -> 1000:1000`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub looks: Vec<String>,
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
    /// Changed lines to old lines; 0 where there are none.
    pub ratio: f64,
    pub hunks: u64,
    pub base_sha256: Option<Digest>,
    pub new_sha256: Option<Digest>,
    pub externally_modified: bool,
    pub expired: bool,
    pub operation: Option<String>,
    pub writer: Option<Writer>,
    /// In which it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// In which it began to wait: writing more to it, and renaming it, do not change that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_session: Option<String>,
    /// As in events.
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

/// Further names of the same inode: `also`, and `also_b64` with all of them when one is not UTF-8.
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
    /// `{basename}.{time}`; bytes that are not UTF-8 are escaped, and accepted back so.
    pub name: String,
    #[serde(flatten)]
    pub path: RelPath,
    pub kind: BackupKind,
    pub size: u64,
    pub sha256: Digest,
    #[serde(serialize_with = "words::time")]
    pub created: jiff::Timestamp,
    /// Who replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Writer>,
}

/// A file that somebody has open and has written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritingNow {
    #[serde(flatten)]
    pub path: RelPath,
    /// 0 where nobody is known to write it: it is being judged, or was left to be.
    pub pid: u32,
}

/// A command that `fettlefs run` has started and waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// As in the events of what it does.
    pub session: String,
    /// Of the process that started it.
    pub pid: u32,
    pub uid: u32,
    /// For people.
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
    /// As JSON spells it.
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
