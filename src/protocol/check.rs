//! The messages of `check`: a command was run in the view, and what it tested may land (SPEC §16).

use super::{Held, Outcome};
use serde::{Deserialize, Serialize};

/// The phases of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckPhase {
    /// The command is about to run.
    Started,
    /// The command ended with status 0.
    Passed,
    Failed,
    /// Asks to land what was tested, if nothing else has changed.
    Promote,
}

/// The changes for which a review was requested.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ReviewReply {
    /// The first few; `held_count` counts all.
    pub held: Vec<Held>,
    pub held_count: u64,
    /// Whether the asker may decide by itself.
    pub may_confirm: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReply {
    pub phase: CheckPhase,
    /// Identifies what the view held when the command started; `promote` takes it.
    pub tested: String,
    /// The first few of those held now; `held_count` counts all.
    pub held: Vec<Held>,
    pub held_count: u64,
    /// Whether the asker may land it.
    pub may_promote: bool,
    /// What has moved since the command started, one line each, the first few; empty if nothing has.
    pub moved: Vec<String>,
    /// The outcomes of `promote`.
    pub outcomes: Vec<Outcome>,
    /// How many further outcomes did not fit into the answer.
    #[serde(default, skip_serializing_if = "super::words::is_zero")]
    pub more: u64,
}
