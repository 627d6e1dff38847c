//! `fettlefs rollback`: restores a backup.

use super::{Desk, Failure, act, completions};
use crate::client::{path_of, target};
use crate::protocol::{Exit, Op, Request};
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// Put a backup back in its place; what it replaces becomes a backup itself
#[derive(clap::Args)]
pub struct Arguments {
    /// A backup's name, or the path whose newest backup to take; of a directory or a glob, the newest of each path
    #[arg(value_name = "NAME|GLOB|PATH", required = true, add = ArgValueCompleter::new(completions::backups))]
    backups: Vec<OsString>,
    /// Put it there instead
    #[arg(long, value_name = "PATH")]
    to: Option<OsString>,
    /// Replace what was edited outside since, keeping it as a backup
    #[arg(long)]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let to = arguments.to.map(|to| path_of(client.place(), &to)).transpose()?;
    // A target is parsed as for a held change; a backup's name takes the place of the id.
    let targets = arguments.backups.iter().map(|backup| target(client.place(), backup)).collect::<Result<_, _>>()?;
    let request =
        Request { targets, to, force: arguments.force, dry_run: arguments.dry_run, ..Request::new(Op::Rollback) };
    act::print(client.ask(&request)?, desk)
}
