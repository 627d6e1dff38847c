//! `fettlefs diff`: what held changes would do.

use super::desk::{Length, targets};
use super::text::Text;
use super::{Desk, Failure, completions};
use crate::diff::Unreadable;
use crate::protocol::{DiffReply, Exit, Op, Reply, Request};
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// Show what held changes would do, as a patch that `git apply` takes
///
/// Of a file that is no text a terminal shows that it differs; into a pipe or a file it is written whole. Over 5 MiB it is named
/// only, and `git apply` refuses the patch.
#[derive(clap::Args)]
pub struct Arguments {
    /// Ids, paths, directories or globs; everything held if none
    #[arg(value_name = "ID|PATH|GLOB", add = ArgValueCompleter::new(completions::held))]
    targets: Vec<OsString>,
    /// End with status 1 when there is something to show
    #[arg(long)]
    exit_code: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let answer = ask(&arguments.targets, desk.unreadable(), desk)?;
    let Reply::Diff(diff) = &answer else { return Err(Failure::other_answer()) };
    let exit = match arguments.exit_code && !diff.changes.is_empty() {
        true => Exit::Failed,
        false => Exit::Done,
    };
    desk.answer(&answer, Length::Long, |text| render(diff, text))?;
    Ok(exit)
}

/// Returns the diffs of `arguments`, or of everything held if there are none.
pub fn ask(arguments: &[OsString], unreadable: Unreadable, desk: &Desk) -> Result<Reply, Failure> {
    let mut client = desk.client()?;
    let targets = targets(&client, arguments)?;
    let binary = unreadable == Unreadable::Whole;
    Ok(client.ask(&Request { all: targets.is_empty(), targets, binary, ..Request::new(Op::Diff) })?)
}

fn render(diff: &DiffReply, text: &mut Text) {
    for change in &diff.changes {
        text.diff(&change.text.0);
    }
}
