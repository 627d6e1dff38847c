//! What each tool takes. An unknown field is refused: no tool that acts may ignore a `dry_run`.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use crate::model::Digest;
use crate::protocol::FilePatch;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArguments {
    /// Skip so many entries: `next` of the answer before.
    #[serde(default)]
    pub offset: u64,
    /// At most so many entries, counted through `held`, `external`, `backups` and `writers`.
    #[serde(default = "StatusArguments::limit")]
    #[schemars(range(min = 1))]
    pub limit: u64,
}

impl StatusArguments {
    /// As much of a project's state as a model reads at once.
    fn limit() -> u64 {
        100
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffArguments {
    /// Ids (4 digits are enough where unique), paths, directories or globs; everything held if none.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Skip so many bytes of diff text: `next` of the answer before.
    #[serde(default)]
    pub offset: u64,
    /// `told` of the answer before: the next page is refused once something else is held, and would not go on where that ended.
    #[schemars(with = "Option<String>")]
    pub told: Option<Digest>,
    /// At most so many bytes of diff text.
    #[serde(default = "DiffArguments::limit")]
    #[schemars(range(min = 1))]
    pub limit: u64,
}

impl DiffArguments {
    /// Clients cut longer texts themselves, without saying where.
    fn limit() -> u64 {
        100_000
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadArguments {
    /// A text file of the project. May be absent with `reset`.
    pub path: Option<String>,
    /// Skip so many lines; what is read in part is not remembered.
    #[serde(default)]
    pub offset: u64,
    /// At most so many lines.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
    /// Forget first what you were sent before, of this file or, without `path`, of all: you do not have it any more.
    #[serde(default)]
    pub reset: bool,
}

/// Its schema is that of `fettlefs patch`: see `tools.rs`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchArguments {
    pub files: Vec<FilePatch>,
    #[serde(default)]
    pub dry_run: bool,
}

/// Of `confirm` and `discard`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideArguments {
    /// Ids (4 digits are enough where unique), paths, directories or globs of held changes.
    #[schemars(length(min = 1))]
    pub targets: Vec<String>,
    /// Only these hunks of one change, counted from 1 as its diff shows them; the rest stays held under a new id.
    #[schemars(length(min = 1), inner(range(min = 1)))]
    pub hunks: Option<Vec<u32>>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckArguments {
    /// The program and its arguments, not a shell's line: `["cargo", "test"]`, or `["sh", "-c", "make && make test"]`.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Have everything held land if the command passes and nothing moved meanwhile. Only for who may confirm.
    #[serde(default)]
    pub confirm: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewArguments {
    /// Ids, paths, directories or globs of held changes; everything held if none.
    #[serde(default)]
    pub targets: Vec<String>,
    /// What the changes are for, in a sentence or two, for the person who decides.
    pub message: Option<String>,
}
