//! `fettlefs fsck`: checks that everything that is kept is consistent.

use super::desk::Length;
use super::text::Text;
use super::{Desk, Failure};
use crate::model::plural;
use crate::protocol::{Exit, FsckReply, Op, Reply, Request};

/// Check everything kept for this project: held changes, backups, their contents, what must not be left behind
///
/// Changes nothing. With nothing mounted, what a daemon that died left behind is recovered first, as by every command.
/// Exits with 1 where something is wrong.
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(Arguments {}: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let answer = desk.client()?.ask(&Request::new(Op::Fsck))?;
    let Reply::Fsck(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Short, |text| render(reply, text))?;
    Ok(if reply.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn render(reply: &FsckReply, text: &mut Text) {
    let found = match reply.problems.len() {
        0 => "no problem".to_owned(),
        count => plural(count as u64, "problem"),
    };
    text.put(format!("fettlefs: {found} in {} checks\n", reply.checked));
    for problem in &reply.problems {
        text.put("  ").name(&problem.kind).put("  ").name(&problem.about).put(": ").name(&problem.message).put("\n");
    }
}
