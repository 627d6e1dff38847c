//! `fettlefs undo`: reverse an operation.

use super::{Desk, Failure, act, completions};
use crate::protocol::{Exit, Op, Request};
use clap_complete::ArgValueCompleter;

/// Reverse all that an operation did, or nothing of it; `log` tells operations, and an undo is one itself
#[derive(clap::Args)]
pub struct Arguments {
    /// The operation, such as op12
    #[arg(value_name = "OP", add = ArgValueCompleter::new(completions::operations))]
    operation: String,
    /// Replace what was edited since, keeping it as a backup
    #[arg(long)]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let Arguments { operation, force, dry_run } = arguments;
    let request = Request { operation: Some(operation), force, dry_run, ..Request::new(Op::Undo) };
    act::print(desk.client()?.ask(&request)?, desk)
}
