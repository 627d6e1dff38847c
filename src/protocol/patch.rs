//! The contents of a patch: replacements in files, each found by the text around it (SPEC §16).
//!
//! `docs/patch.schema.json` describes them for programs. [`parse_patch`] reads what people and programs pass to the
//! command: that JSON, or blocks of text (`patch_text.rs`).

use super::patch_text::parse_blocks;
use super::{Outcome, ProtocolError, words};
use crate::model::{Digest, Object, RelPath};
use serde::{Deserialize, Serialize};

/// The most files in one patch. All of them are open at once while it is written.
pub const PATCH_FILES_MAX: usize = 100;

/// The most hunks in one patch, over all its files. A larger change is better written as a new version of the file.
pub const PATCH_HUNKS_MAX: usize = 500;

/// The most places that one hunk may apply to.
pub const PATCH_MATCHES_MAX: u32 = 1000;

/// The changes to one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Object<FileFields>", into = "FileFields")]
pub struct FilePatch {
    pub path: RelPath,
    /// The hash of the whole file that the patch was made for.
    pub base_sha256: Digest,
    /// At least one.
    pub hunks: Vec<PatchHunk>,
}

/// The JSON of a [`FilePatch`]. The path is not flattened as elsewhere, because then unknown fields would pass.
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
    /// The exact number of places.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub matches: u32,
    /// It matches only where a line begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_lines: bool,
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

/// A patch in its canonical form, as passed on standard input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    files: Vec<FilePatch>,
}

/// Parses a patch: as JSON if it begins with a brace, otherwise as blocks of text.
pub fn parse_patch(bytes: &[u8]) -> Result<Vec<FilePatch>, ProtocolError> {
    let wrong = |err: &dyn std::fmt::Display| ProtocolError::Patch(err.to_string());
    let files = match bytes.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice::<Document>(bytes).map_err(|err| wrong(&err))?.files,
        _ => parse_blocks(bytes).map_err(|err| wrong(&err))?,
    };
    check_patch(&files)?;
    Ok(files)
}

/// Checks the bounds of a patch, whichever form it came in.
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

/// The result of a patch: an outcome for each file, in the order of the patch, with the file's new hash.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct PatchReply {
    pub outcomes: Vec<Outcome>,
    /// Nothing was written; this is what would have been.
    #[serde(default)]
    pub dry_run: bool,
}
