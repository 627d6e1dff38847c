//! What `check` says and is answered: a command was run in the view, and what it tested may land (SPEC §16).

use super::{Held, Outcome};
use serde::{Deserialize, Serialize};

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckPhase {
    /// The command is about to run.
    Started,
    /// It ended with status 0.
    Passed,
    Failed,
    /// What was tested is to land, if it is still all there is.
    Promote,
}

/// What a review was asked for.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ReviewReply {
    /// The first few; `held_count` is of all.
    pub held: Vec<Held>,
    pub held_count: u64,
    /// Whether who asked may decide without anybody.
    pub may_confirm: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReply {
    pub phase: CheckPhase,
    /// Names what the view held when the command started; `promote` takes it.
    pub tested: String,
    /// What is held now, the first few; `held_count` is of all.
    pub held: Vec<Held>,
    pub held_count: u64,
    /// Whether who asks may have it land.
    pub may_promote: bool,
    /// What has moved since the command started, one line each, the first few; empty: nothing.
    pub moved: Vec<String>,
    /// Of `promote`.
    pub outcomes: Vec<Outcome>,
    /// How many outcomes of what was done the answer has no room for.
    #[serde(default, skip_serializing_if = "super::words::is_zero")]
    pub more: u64,
}
