//! What `confirm` and `discard` have in common: which changes, and whether a person agrees.

use super::Failure;
use super::desk::{Answer, Desk, Length, targets};
use super::outcome::render_acted;
use super::words::plural;
use crate::client::Client;
use crate::protocol::{Acted, ErrorCode, Exit, Op, Reply, Request};
use clap::Args;
use std::ffi::OsString;

#[derive(Args)]
pub struct Chosen {
    /// Ids (4 digits are enough where unique), paths, directories or globs
    #[arg(value_name = "ID|PATH|GLOB", required_unless_present = "all", conflicts_with = "all")]
    pub targets: Vec<OsString>,
    /// Everything held; asks first
    #[arg(long)]
    pub all: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Only these hunks, counted from 1
    #[arg(long = "hunk", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "all")]
    pub hunks: Vec<u32>,
}

/// Asks for `request` on what was chosen, and prints what became of it. `verb` begins the question to a person.
pub fn act(chosen: &Chosen, request: Request, verb: &str, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let op = request.op;
    if chosen.all && !agreed(chosen, verb, &mut client, desk)? {
        return print(nothing(op, chosen), desk);
    }
    let request = Request {
        targets: targets(&client, &chosen.targets)?,
        all: chosen.all,
        dry_run: chosen.dry_run,
        hunks: chosen.hunks.clone(),
        ..request
    };
    print(client.ask(&request)?, desk)
}

/// Whether to go on: false when nothing is held, which is tested first (SPEC §12).
fn agreed(chosen: &Chosen, verb: &str, client: &mut Client, desk: &Desk) -> Result<bool, Failure> {
    let Reply::Status(status) = client.ask(&Request::new(Op::Status))? else {
        return Err(Failure::other_answer());
    };
    if status.held.is_empty() || chosen.yes || chosen.dry_run {
        return Ok(!status.held.is_empty());
    }
    match desk.agreed(&format!("{verb} {}?", plural(status.held.len() as u64, "held change")))? {
        Answer::Yes => Ok(true),
        Answer::No => Err(Failure::new(ErrorCode::Io, "nothing was done")),
    }
}

fn nothing(op: Op, chosen: &Chosen) -> Reply {
    let acted = Acted { outcomes: Vec::new(), dry_run: chosen.dry_run };
    match op {
        Op::Discard => Reply::Discard(acted),
        _ => Reply::Confirm(acted),
    }
}

/// Prints what was acted on.
pub fn print(reply: Reply, desk: &Desk) -> Result<Exit, Failure> {
    let acted = match &reply {
        Reply::Confirm(acted) | Reply::Discard(acted) | Reply::Rollback(acted) | Reply::Undo(acted) => acted.clone(),
        _ => return Err(Failure::other_answer()),
    };
    desk.answer(reply, Length::Short, |_, text| render_acted(&acted, text))?;
    Ok(Exit::Done)
}
