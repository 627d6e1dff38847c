//! What a patch asks for: replacements in files, each found by the text around it (SPEC §16).
//!
//! `docs/patch.schema.json` is the same for programs, and [`parse_patch`] reads what people and programs hand to the
//! command: that JSON, or blocks of text (`patch_text.rs`).

use super::patch_text::parse_blocks;
use super::{Outcome, ProtocolError, words};
use crate::model::{Digest, Object, RelPath};
use serde::{Deserialize, Serialize};

/// Files of one patch. They are all open at once while it is written.
pub const PATCH_FILES_MAX: usize = 100;

/// Hunks of one patch, over all its files. More is a new version of the file, which is simply written.
pub const PATCH_HUNKS_MAX: usize = 500;

/// Places that one hunk may be meant for.
pub const PATCH_MATCHES_MAX: u32 = 1000;

/// What is done to one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Object<FileFields>", into = "FileFields")]
pub struct FilePatch {
    pub path: RelPath,
    /// Of the whole file that the patch was made for.
    pub base_sha256: Digest,
    /// At least one.
    pub hunks: Vec<PatchHunk>,
}

/// The JSON of it. Not flattened as other paths are: then an unknown field would pass.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    base_sha256: Digest,
    hunks: Vec<Object<PatchHunk>>,
}

/// `old` between `left` and `right` becomes `new`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchHunk {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left: String,
    #[serde(default)]
    pub old: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub right: String,
    #[serde(default)]
    pub new: String,
    /// In exactly so many places.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub matches: u32,
}

fn once() -> u32 {
    1
}

fn is_once(matches: &u32) -> bool {
    *matches == once()
}

impl TryFrom<Object<FileFields>> for FilePatch {
    type Error = String;

    fn try_from(Object(fields): Object<FileFields>) -> Result<Self, String> {
        let FileFields { path, path_b64, base_sha256, hunks } = fields;
        let hunks: Vec<PatchHunk> = hunks.into_iter().map(|Object(hunk)| hunk).collect();
        let bytes = words::bytes_of(path.clone(), path_b64.as_deref()).map_err(|err| err.to_string())?;
        let path = RelPath::parse(&bytes).map_err(|err| format!("{path:?}: {err}"))?;
        match hunks.iter().find(|hunk| !(1..=PATCH_MATCHES_MAX).contains(&hunk.matches)) {
            Some(hunk) => Err(format!("{path}: `matches` is {}; it may be 1 to {PATCH_MATCHES_MAX}", hunk.matches)),
            None if hunks.is_empty() => Err(format!("{path}: there are no hunks")),
            None => Ok(Self { path, base_sha256, hunks }),
        }
    }
}

impl From<FilePatch> for FileFields {
    fn from(file: FilePatch) -> Self {
        let (path, path_b64) = words::text_and_base64(file.path.as_bytes());
        Self { path, path_b64, base_sha256: file.base_sha256, hunks: file.hunks.into_iter().map(Object).collect() }
    }
}

/// The canonical form, as it stands on standard input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    files: Vec<FilePatch>,
}

/// A patch as JSON, or as blocks of text where it does not begin with a brace.
pub fn parse_patch(bytes: &[u8]) -> Result<Vec<FilePatch>, ProtocolError> {
    let wrong = |err: &dyn std::fmt::Display| ProtocolError::Patch(err.to_string());
    let files = match bytes.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice::<Document>(bytes).map_err(|err| wrong(&err))?.files,
        _ => parse_blocks(bytes).map_err(|err| wrong(&err))?,
    };
    check_patch(&files)?;
    Ok(files)
}

/// Bounds of a patch, whichever way it came.
pub(super) fn check_patch(files: &[FilePatch]) -> Result<(), ProtocolError> {
    let hunks: usize = files.iter().map(|file| file.hunks.len()).sum();
    let twice = files.iter().enumerate().find(|(at, file)| files[..*at].iter().any(|other| other.path == file.path));
    match twice {
        _ if files.len() > PATCH_FILES_MAX => {
            Err(ProtocolError::PatchTooLarge { what: "files", count: files.len(), max: PATCH_FILES_MAX })
        }
        _ if hunks > PATCH_HUNKS_MAX => {
            Err(ProtocolError::PatchTooLarge { what: "hunks", count: hunks, max: PATCH_HUNKS_MAX })
        }
        Some((_, file)) => Err(ProtocolError::Patch(format!("{} is in it twice", file.path))),
        None => Ok(()),
    }
}

/// What became of a patch: an outcome for each file, in the order of the patch, with the hash it has now.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct PatchReply {
    pub outcomes: Vec<Outcome>,
    /// Nothing was written; this is what would have been.
    #[serde(default)]
    pub dry_run: bool,
}
