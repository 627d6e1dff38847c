//! `fettlefs log`: what happened, the latest last.

use super::desk::{Length, targets};
use super::terminal::Ink;
use super::text::Text;
use super::words::moment;
use super::{Desk, Failure, at_least, completions};
use crate::protocol::{DELETED, Event, EventName, Exit, Op, Reply, Request};
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// How many events are shown by default.
const EVENTS_SHOWN: u64 = 50;

/// The width of the longest event name.
const EVENT_COLUMNS: usize = 17;

/// Show what happened, the latest last
#[derive(clap::Args)]
pub struct Arguments {
    /// Only what happened to these
    #[arg(value_name = "ID|PATH|GLOB")]
    targets: Vec<OsString>,
    /// The latest N events; 0 means all
    #[arg(short = 'n', long, value_name = "N", default_value_t = EVENTS_SHOWN, value_parser = at_least(0))]
    limit: u64,
    /// Only of this operation
    #[arg(long, value_name = "OP", add = ArgValueCompleter::new(completions::operations))]
    operation: Option<String>,
    /// Only of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let request = Request {
        targets: targets(&client, &arguments.targets)?,
        limit: (arguments.limit > 0).then_some(arguments.limit),
        operation: arguments.operation,
        session: arguments.session,
        ..Request::new(Op::Log)
    };
    let answer = client.ask(&request)?;
    let Reply::Log(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Long, |text| {
        reply.events.iter().rev().for_each(|event| render(event, text));
    })?;
    Ok(Exit::Done)
}

pub fn render(event: &Event, text: &mut Text) {
    text.ink(Ink::Faint, moment(event.time)).put(format!("  {}", name(event.event)));
    if event.id.is_some() || event.path.is_some() || event.message.is_some() {
        text.put(" ".repeat(EVENT_COLUMNS.saturating_sub(name(event.event).len())));
    }
    if let Some(id) = &event.id {
        text.put("  ").name(id);
    }
    if let Some(path) = &event.path {
        text.put("  ").name(path.shown());
    }
    let is_deletion = event.message.as_deref() == Some(DELETED);
    match (event.insertions, event.deletions) {
        (Some(0), Some(0)) if is_deletion => {}
        (Some(insertions), Some(deletions)) => {
            text.put(format!("  +{insertions} -{deletions}"));
        }
        (_, _) => {}
    }
    if is_deletion {
        text.put("  deleted");
    }
    if let Some(reason) = event.reason {
        text.put(format!("  {reason}"));
    }
    if let Some(exe) = event.written_by.as_ref().or(event.opened_by.as_ref()).and_then(|program| program.exe.as_ref()) {
        // The programs of a review's event are those that wrote what was reviewed.
        let reviewed = matches!(event.event, EventName::Confirmed | EventName::Discarded);
        text.put(if reviewed { "  written by " } else { "  by " }).name(exe);
    }
    if let Some(message) = event.message.as_ref().filter(|_| !is_deletion) {
        text.put("  ").name(message);
    }
    if let Some(operation) = &event.operation {
        text.put("  ").ink(Ink::Faint, operation);
    }
    text.put("\n");
}

/// Returns the event's own name, with spaces.
fn name(event: EventName) -> &'static str {
    match event {
        EventName::SessionStarted => "session started",
        EventName::WriteLanded => "write landed",
        EventName::WriteHeld => "write held",
        EventName::WriteDenied => "write denied",
        EventName::RequestRefused => "request refused",
        EventName::ReviewRequested => "review requested",
        EventName::Confirmed => "confirmed",
        EventName::ConfirmFailed => "confirm failed",
        EventName::Discarded => "discarded",
        EventName::HoldEnded => "hold ended",
        EventName::RolledBack => "rolled back",
        EventName::Undone => "undone",
        EventName::Expired => "expired",
        EventName::ExternalModified => "external modified",
        EventName::CheckStarted => "check started",
        EventName::CheckPassed => "check passed",
        EventName::CheckFailed => "check failed",
        EventName::PromoteStarted => "promote started",
        EventName::PromoteSucceeded => "promote succeeded",
        EventName::PromoteFailed => "promote failed",
        EventName::Recovered => "recovered",
        EventName::SessionEnded => "session ended",
    }
}
