//! What a call does: its arguments, the request it sends, and the answer in the two forms that clients show.

use std::ffi::OsStr;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Desk;
use super::arguments::{
    DecideArguments, DiffArguments, PatchArguments, ReadArguments, ReviewArguments, StatusArguments,
};
use super::checks::{Waiting, check};
use super::tools::Tool;
use crate::client::{self, Client, NotInProject, other_answer};
use crate::protocol::{
    ChangeDiff, ErrorBody, ErrorCode, FilePatch, Held, Op, PATCH_FILES_MAX, PATCH_HUNKS_MAX, ProtocolError, ReadForm,
    Reply, Request, Response, Target,
};

type Result<T> = std::result::Result<T, ErrorBody>;

/// An answer: the stable JSON of `--json`, and a text in its place where JSON would escape the text.
struct Answer {
    json: Value,
    text: Option<String>,
}

/// Calls a tool. A refusal is a result with the codes of `--json`.
pub fn call(tool: Tool, arguments: JsonObject, desk: &Desk, waiting: &Waiting) -> CallToolResult {
    match answer(tool, arguments, desk, waiting) {
        // A refusal that tells more than its error, as of a check where something has moved.
        Ok(Answer { json, text: None }) if json["ok"] == false => CallToolResult::structured_error(json),
        Ok(Answer { json, text: None }) => CallToolResult::structured(json),
        Ok(Answer { json, text: Some(text) }) => {
            let mut result = CallToolResult::structured(json);
            result.content = vec![ContentBlock::text(text)];
            result
        }
        Err(error) => {
            let text = told(&error);
            let json = json_of(&Response::failed(error)).unwrap_or_else(|err| json!({"ok": false, "error": err}));
            let mut result = CallToolResult::structured_error(json);
            result.content = vec![ContentBlock::text(text)];
            result
        }
    }
}

fn answer(tool: Tool, arguments: JsonObject, desk: &Desk, waiting: &Waiting) -> Result<Answer> {
    match tool {
        Tool::Status => status(parse(tool, arguments)?, desk),
        Tool::Diff => diff(parse(tool, arguments)?, desk),
        Tool::Read => read(parse(tool, arguments)?, desk, waiting),
        Tool::Patch => patch(parse(tool, arguments)?, desk),
        Tool::Discard => decide(Op::Discard, parse(tool, arguments)?, desk),
        Tool::Confirm => decide(Op::Confirm, parse(tool, arguments)?, desk),
        Tool::Check => Ok(Answer { json: check(parse(tool, arguments)?, desk, waiting)?, text: None }),
        Tool::RequestReview => request_review(parse(tool, arguments)?, desk),
    }
}

fn parse<T: DeserializeOwned>(tool: Tool, arguments: JsonObject) -> Result<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|err| ErrorBody::new(ErrorCode::BadRequest, format!("{}: {err}", tool.name())))
}

fn status(arguments: StatusArguments, desk: &Desk) -> Result<Answer> {
    let StatusArguments { offset, limit } = arguments;
    let request = Request { offset, limit: Some(at_least_one(limit)?), ..Request::new(Op::Status) };
    plain(desk.client()?.ask(&request)?)
}

fn diff(arguments: DiffArguments, desk: &Desk) -> Result<Answer> {
    let mut client = desk.client()?;
    let targets = targets(&client, &arguments.targets)?;
    let limit = Some(at_least_one(arguments.limit)?);
    let DiffArguments { offset, told, .. } = arguments;
    let request = Request { all: targets.is_empty(), targets, offset, limit, told, ..Request::new(Op::Diff) };
    let Reply::Diff(reply) = client.ask(&request)? else { return Err(other_answer()) };
    let mut text: String = reply.changes.iter().map(|change| String::from_utf8_lossy(&change.text.0)).collect();
    if text.is_empty() {
        text = nothing_shown(&reply.changes, offset);
    }
    if let Some(next) = reply.next {
        let told = reply.told.map(|told| format!(", told {told}")).unwrap_or_default();
        text.push_str(&format!("\n... more: offset {next}{told}\n"));
    }
    Ok(Answer { json: json_of(&Response::done(Reply::Diff(reply)))?, text: Some(text) })
}

/// The text for a diff without lines: it may be a directory's, or lie past the end.
fn nothing_shown(changes: &[ChangeDiff], offset: u64) -> String {
    match (changes, offset) {
        ([], 0) => "Nothing is held.".to_owned(),
        ([], offset) => format!("The diff ends before offset {offset}."),
        (changes, _) => changes.iter().map(|ChangeDiff { held, .. }| no_lines(held)).collect(),
    }
}

fn no_lines(held: &Held) -> String {
    format!("{} {}: held, and has no lines\n", held.id, held.path)
}

fn read(arguments: ReadArguments, desk: &Desk, waiting: &Waiting) -> Result<Answer> {
    let mut client = desk.client()?;
    let request = Request {
        path: arguments.path.map(|path| client::path_of(client.place(), OsStr::new(&path))).transpose()?,
        session: Some(desk.session.clone()),
        reset: arguments.reset,
        offset: arguments.offset,
        limit: arguments.limit.map(at_least_one).transpose()?,
        ..Request::new(Op::Read)
    };
    let Reply::Read(reply) = client.ask(&request)? else { return Err(other_answer()) };
    if waiting.is_over() {
        // The answer will not be shown, so it must not count as received: forget it, and the next read sends it again.
        let forget = Request { session: Some(desk.session.clone()), reset: true, ..Request::new(Op::Read) };
        client.ask(&forget)?;
    }
    let mut text = match reply.form {
        ReadForm::Forgotten => "Forgotten what was received".to_owned(),
        ReadForm::Content | ReadForm::Part | ReadForm::Unchanged | ReadForm::Diff | ReadForm::Certificate => {
            reply.text.clone()
        }
    };
    if let Some(hint) = &reply.hint {
        text = format!("[{hint}]\n{text}");
    }
    if let Some(next) = reply.next {
        text.push_str(&format!("[{} more lines: offset {next}]\n", reply.lines.saturating_sub(next)));
    }
    Ok(Answer { json: json_of(&Response::done(Reply::Read(reply)))?, text: Some(text) })
}

fn patch(arguments: PatchArguments, desk: &Desk) -> Result<Answer> {
    let PatchArguments { files, dry_run } = arguments;
    check_bounds(&files)?;
    let request = Request { files, dry_run, session: Some(desk.session.clone()), ..Request::new(Op::Patch) };
    if let Err(ProtocolError::TooLarge(bytes)) = request.to_line() {
        let message = format!("a patch of {bytes} bytes is too large: write the files themselves");
        return Err(ErrorBody::new(ErrorCode::TooLarge, message));
    }
    plain(desk.client()?.ask(&request)?)
}

/// Checks the limits before anything is sent, for a better message; the daemon checks them again.
fn check_bounds(files: &[FilePatch]) -> Result<()> {
    let hunks: usize = files.iter().map(|file| file.hunks.len()).sum();
    match files.len() > PATCH_FILES_MAX || hunks > PATCH_HUNKS_MAX {
        true => {
            let message = format!("a patch of {} files and {hunks} hunks is too large: write the files", files.len());
            Err(ErrorBody::new(ErrorCode::TooLarge, message))
        }
        false => Ok(()),
    }
}

fn decide(op: Op, arguments: DecideArguments, desk: &Desk) -> Result<Answer> {
    let mut client = desk.client()?;
    if arguments.targets.is_empty() {
        return Err(ErrorBody::new(ErrorCode::BadRequest, format!("{op} of what? `targets` is empty")));
    }
    let DecideArguments { targets: named, hunks, dry_run } = arguments;
    let hunks = Request::checked_hunks(hunks)?;
    let targets = targets(&client, &named)?;
    plain(client.ask(&Request { targets, hunks, dry_run, ..Request::new(op) })?)
}

fn request_review(arguments: ReviewArguments, desk: &Desk) -> Result<Answer> {
    let mut client = desk.client()?;
    let targets = targets(&client, &arguments.targets)?;
    let request =
        Request { all: targets.is_empty(), targets, name: arguments.message, ..Request::new(Op::RequestReview) };
    plain(client.ask(&request)?)
}

fn targets(client: &Client, arguments: &[String]) -> Result<Vec<Target>> {
    arguments.iter().map(|argument| Ok(client::target(client.place(), OsStr::new(argument))?)).collect()
}

fn at_least_one(limit: u64) -> Result<u64> {
    match limit {
        0 => Err(ErrorBody::new(ErrorCode::BadRequest, "`limit` is at least 1")),
        limit => Ok(limit),
    }
}

fn plain(reply: Reply) -> Result<Answer> {
    Ok(Answer { json: json_of(&Response::done(reply))?, text: None })
}

/// The same JSON as `--json` prints.
fn json_of(response: &Response) -> Result<Value> {
    serde_json::from_slice(&response.to_whole_line())
        .map_err(|err| ErrorBody::new(ErrorCode::Io, format!("encode the answer: {err}")))
}

/// An error as a model reads it.
fn told(error: &ErrorBody) -> String {
    let code = serde_json::to_value(error.code).ok();
    let code = code.as_ref().and_then(Value::as_str).unwrap_or("error");
    let superseded = error.new_id.iter().map(|new| format!("\nIt became {new}."));
    let detail = error.detail.iter().map(|detail| format!("\n{detail}"));
    let remedy = error.remedy().into_iter().map(|remedy| format!("\n{remedy}"));
    format!("{code}: {}{}", error.message, superseded.chain(detail).chain(remedy).collect::<String>())
}

impl From<NotInProject> for ErrorBody {
    fn from(err: NotInProject) -> Self {
        Self::new(err.code(), err.to_string())
    }
}
