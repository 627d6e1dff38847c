//! `fettlefs backups`: lists what can be restored.

use super::desk::{Length, targets};
use super::text::Text;
use super::words::{age, size};
use super::{Desk, Failure, at_least, completions};
use crate::protocol::{Backup, Exit, Op, Reply, Request};
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// List backups, newest first
#[derive(clap::Args)]
pub struct Arguments {
    /// Of these paths, or with these names; all if none
    #[arg(value_name = "NAME|PATH|GLOB", add = ArgValueCompleter::new(completions::backups))]
    which: Vec<OsString>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", value_parser = at_least(1))]
    limit: Option<u64>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let targets = targets(&client, &arguments.which)?;
    let request = Request { targets, limit: arguments.limit, ..Request::new(Op::Backups) };
    let answer = client.ask(&request)?;
    let Reply::Backups(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Long, |text| render(&reply.backups, text))?;
    Ok(Exit::Done)
}

pub fn render(backups: &[Backup], text: &mut Text) {
    if backups.is_empty() {
        text.put("fettlefs: No backups\n");
    }
    for backup in backups {
        text.name(&backup.name).put("  ").name(backup.path.as_bytes());
        let when = age(backup.created, text.now());
        text.put(format!("  {}  {}  {when}\n", size(backup.size), backup.kind));
    }
}
