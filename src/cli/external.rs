//! `fettlefs external`: what others have changed below.

use super::desk::{Length, targets};
use super::text::Text;
use super::{Desk, Failure};
use crate::protocol::{Exit, External, Op, Reply, Request};
use std::ffi::OsString;

/// List what was changed outside since fettlefs last touched it
#[derive(clap::Args)]
pub struct Arguments {
    /// Paths, directories or globs; everything if none
    #[arg(value_name = "PATH|GLOB")]
    paths: Vec<OsString>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let targets = targets(&client, &arguments.paths)?;
    let answer = client.ask(&Request { targets, ..Request::new(Op::External) })?;
    let Reply::External(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Short, |text| {
        reply.external.iter().for_each(|external| render_row(external, text));
        reply.notices.iter().for_each(|notice| text.note(notice));
    })?;
    Ok(Exit::Done)
}

pub fn render_row(external: &External, text: &mut Text) {
    let kind = external.kind.word();
    text.put(format!("  {kind:<8}  ")).name(external.path.as_bytes()).put("  ").name(&external.hint);
    if let Some(id) = &external.held {
        text.put(format!(" (held: {id})"));
    }
    text.put("\n");
}
