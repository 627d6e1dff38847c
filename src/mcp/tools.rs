//! The tools on offer: names, purposes, what they take and answer, and what they may do.
//!
//! `confirm` is offered to every client, and may be refused when it is called. Who may confirm depends on the current
//! settings and on where the caller stands, and a tool that came and went with them would not tell the reason.

use std::sync::Arc;

use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::{self, JsonObject, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde_json::{Value, json};

use super::arguments::{
    CheckArguments, DecideArguments, DiffArguments, ReadArguments, ReviewArguments, StatusArguments,
};
use super::outputs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Status,
    Diff,
    Read,
    Patch,
    Check,
    RequestReview,
    Discard,
    Confirm,
}

/// The same schema as for programs that pipe a patch into the command.
const PATCH_SCHEMA: &str = include_str!("../../docs/patch.schema.json");

pub fn all() -> Vec<model::Tool> {
    Tool::ALL.iter().map(|tool| tool.described()).collect()
}

impl Tool {
    pub const ALL: [Self; 8] = [
        Self::Status,
        Self::Diff,
        Self::Read,
        Self::Patch,
        Self::Check,
        Self::RequestReview,
        Self::Discard,
        Self::Confirm,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Diff => "diff",
            Self::Read => "read",
            Self::Patch => "patch",
            Self::Check => "check",
            Self::RequestReview => "request_review",
            Self::Discard => "discard",
            Self::Confirm => "confirm",
        }
    }

    fn described(self) -> model::Tool {
        let tool = model::Tool::new(self.name(), self.description(), self.input());
        tool.with_raw_output_schema(Arc::new(outputs::schema(self))).with_annotations(self.annotations())
    }

    fn description(self) -> &'static str {
        match self {
            Self::Status => {
                "What is held for review and why, what changed outside, who still writes. Look here when a file that you \
                 wrote is not in the project."
            }
            Self::Diff => "What held changes would do to the project, as a patch; hunks are numbered from 1.",
            Self::Read => {
                "A text file of the project as you left it. What you have received of it before is not sent again: \
                 you get one line that says it is unchanged, or a diff since then where that is short, or the content. \
                 `sha256` is what a patch is based on."
            }
            Self::Patch => {
                "Replaces exact text in files, all of them or none. Each file names the SHA-256 that `read` told, each \
                 hunk the text around what it replaces, which must be there exactly and once. What comes of it is judged \
                 like any write: small changes land, large ones are held."
            }
            Self::Check => {
                "Runs a command on your version of the project, held changes included. A command that fails gives the last \
                 lines of its output. With `confirm` everything held lands as one, if the command passes, nothing moved \
                 meanwhile, and you may confirm."
            }
            Self::RequestReview => {
                "Asks the person you work for to decide about held changes: leaves an event with your message, by which \
                 they see it. Changes nothing, and does not wait for the answer; `status` shows later what became of it."
            }
            Self::Discard => {
                "Drops held changes: you see the project's version again. Their content is kept as a backup for a day. \
                 Only for who may decide; else `not_permitted`."
            }
            Self::Confirm => {
                "Has held changes land in the project as one transaction. Only for who may decide, which in a run is the \
                 person outside; else `not_permitted`: then use `request_review`."
            }
        }
    }

    fn input(self) -> JsonObject {
        match self {
            Self::Status => input::<StatusArguments>(),
            Self::Diff => input::<DiffArguments>(),
            Self::Read => input::<ReadArguments>(),
            Self::Patch => patch_input(),
            Self::Check => input::<CheckArguments>(),
            Self::RequestReview => input::<ReviewArguments>(),
            Self::Discard | Self::Confirm => input::<DecideArguments>(),
        }
    }

    /// `read` records what was sent, and `request_review` leaves an event: neither changes the project.
    fn annotations(self) -> ToolAnnotations {
        let hints = ToolAnnotations::with_title(self.title()).open_world(false);
        match self {
            Self::Status | Self::Diff | Self::Read => hints.read_only(true),
            Self::RequestReview => hints.read_only(false).destructive(false),
            Self::Patch | Self::Discard | Self::Confirm => hints.read_only(false).destructive(true).idempotent(false),
            // The command may do whatever its caller may do.
            Self::Check => hints.read_only(false).destructive(true).idempotent(false).open_world(true),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Status => "What is held",
            Self::Diff => "Diff of held changes",
            Self::Read => "Read a file once",
            Self::Patch => "Replace exact text",
            Self::Check => "Run a command on what is held",
            Self::RequestReview => "Ask for a review",
            Self::Discard => "Discard held changes",
            Self::Confirm => "Confirm held changes",
        }
    }
}

fn input<T: JsonSchema + 'static>() -> JsonObject {
    let schema = schema_for_input::<T>().expect("arguments are structs, whose schema is an object's");
    Arc::unwrap_or_clone(schema)
}

/// Adapts the schema: drops what makes it a document of its own, and adds `dry_run`, which is a flag of the command.
fn patch_input() -> JsonObject {
    let mut schema: JsonObject = serde_json::from_str(PATCH_SCHEMA).expect("the schema in docs is a JSON object");
    schema.retain(|key, _| !["$id", "title", "description"].contains(&key.as_str()));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        let flag =
            json!({"type": "boolean", "default": false, "description": "Say what would be done, and do nothing."});
        properties.insert("dry_run".to_owned(), flag);
    }
    schema
}
