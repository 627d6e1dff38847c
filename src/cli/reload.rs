//! `fettlefs reload`: read the settings and ignore files again.

use super::desk::Length;
use super::{Desk, Failure};
use crate::protocol::{Exit, Op, Reply, Request};

/// Read .fettle.toml and the ignore files again
#[derive(clap::Args)]
pub struct Arguments {
    /// Say what would be read and ignored, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let request = Request { dry_run: arguments.dry_run, ..Request::new(Op::Reload) };
    let answer = desk.client()?.ask(&request)?;
    let Reply::Reload(reply) = &answer else { return Err(Failure::other_answer()) };
    let done = if arguments.dry_run { "Would reload the settings" } else { "Reloaded the settings" };
    desk.answer(&answer, Length::Short, |text| {
        text.put(format!("fettlefs: {done}\n"));
        for notice in &reply.notices {
            text.put("  ").name(notice).put("\n");
        }
    })?;
    Ok(Exit::Done)
}
