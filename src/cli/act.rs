//! What `confirm` and `discard` have in common: the selection of changes, and asking a person.

use super::desk::{Answer, Desk, Format, Length, targets};
use super::outcome::render_acted;
use super::{Failure, completions};
use crate::client::Client;
use crate::model::plural;
use crate::protocol::{Acted, ErrorCode, Exit, Op, Reply, Request, Target};
use clap::Args;
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// How many changes one request can name: each takes 8 digits, two quotes and a comma, and a request is at most 64 KiB.
pub const COUNTED_MAX: usize = 5_000;

#[derive(Args)]
pub struct Chosen {
    /// Ids (4 digits are enough where unique), paths, directories or globs
    #[arg(value_name = "ID|PATH|GLOB", add = ArgValueCompleter::new(completions::held),
        required_unless_present = "all", conflicts_with = "all")]
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

/// What to do with the selected changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Confirm,
    Discard,
}

impl Act {
    /// How the question to a person begins.
    fn verb(self) -> &'static str {
        match self {
            Self::Confirm => "Apply",
            Self::Discard => "Discard",
        }
    }

    /// The answer when there is nothing to act on.
    fn nothing(self, chosen: &Chosen) -> Reply {
        let acted = Acted { dry_run: chosen.dry_run, ..Acted::default() };
        match self {
            Self::Confirm => Reply::Confirm(acted),
            Self::Discard => Reply::Discard(acted),
        }
    }
}

/// What `--all` turns out to mean.
enum All {
    /// Nothing is held; this is tested before anything else (SPEC §12).
    Nothing,
    /// Whatever is held when the request arrives, without asking.
    Whatever,
    /// The changes that a person was asked about. More may have come in while they were thinking.
    Counted(Vec<Target>),
}

/// Sends `request` for the selected changes, and prints what became of them.
pub fn act(chosen: &Chosen, request: Request, act: Act, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let (targets, all) = match chosen.all {
        false => (targets(&client, &chosen.targets)?, false),
        true => match agreed(chosen, act, &mut client, desk)? {
            All::Nothing => return print(act.nothing(chosen), desk),
            All::Whatever => (Vec::new(), true),
            All::Counted(targets) => (targets, false),
        },
    };
    let request = Request { targets, all, dry_run: chosen.dry_run, hunks: chosen.hunks.clone(), ..request };
    print(client.ask(&request)?, desk)
}

fn agreed(chosen: &Chosen, act: Act, client: &mut Client, desk: &Desk) -> Result<All, Failure> {
    let Reply::Status(status) = client.ask(&Request::new(Op::Status))? else {
        return Err(Failure::other_answer());
    };
    let count = status.held.len();
    if count == 0 {
        return Ok(All::Nothing);
    }
    if chosen.yes || chosen.dry_run {
        return Ok(All::Whatever);
    }
    if count > COUNTED_MAX {
        let message = format!("{count} held changes are too many to be asked about: name some of them, or use --yes");
        return Err(Failure::usage(message));
    }
    let question = format!("{} {}?", act.verb(), plural(count as u64, "held change"));
    match desk.agreed("--all", &question)? {
        Answer::Yes => Ok(All::Counted(status.held.iter().map(|held| Target::id(held.id.to_string())).collect())),
        Answer::No => Err(Failure::new(ErrorCode::Io, "nothing was done")),
    }
}

/// Prints the reply to an act.
pub fn print(reply: Reply, desk: &Desk) -> Result<Exit, Failure> {
    let acted = match &reply {
        Reply::Confirm(acted) | Reply::Discard(acted) | Reply::Rollback(acted) | Reply::Undo(acted) => acted,
        _ => return Err(Failure::other_answer()),
    };
    desk.answer(&reply, Length::Short, |text| render_acted(acted, text))?;
    if desk.format == Format::Human {
        for notice in &acted.notices {
            desk.remark(|text| {
                text.put("fettlefs: ").name(notice).put("\n");
            })?;
        }
    }
    Ok(Exit::Done)
}
