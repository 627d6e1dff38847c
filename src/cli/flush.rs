//! `fettlefs flush`: judge what has been written, now.

use super::desk::Length;
use super::text::Text;
use super::{Desk, Failure, at_least, outcome};
use crate::protocol::{ErrorBody, ErrorCode, Exit, FlushReply, Op, Reply, Request, WritingNow};

/// Wait for releases under way, so that everything closed is judged
#[derive(clap::Args)]
pub struct Arguments {
    /// Wait for open writers too
    #[arg(long)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, value_name = "SECONDS", value_parser = at_least(0))]
    timeout: Option<u64>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let request = Request { wait: arguments.wait, timeout_seconds: arguments.timeout, ..Request::new(Op::Flush) };
    let answer = desk.client()?.ask(&request)?;
    let Reply::Flush(reply) = &answer else { return Err(Failure::other_answer()) };
    let waits = arguments.wait || arguments.timeout.is_some();
    if waits && !reply.writers.is_empty() {
        // The wait was in vain, as that of `unmount` can be.
        let why = ErrorBody::new(ErrorCode::Busy, "not everything is judged");
        desk.answer_refused(&answer, &why, |text| render(reply, text))?;
        return Ok(why.code.exit());
    }
    desk.answer(&answer, Length::Short, |text| render(reply, text))?;
    Ok(Exit::Done)
}

fn render(reply: &FlushReply, text: &mut Text) {
    outcome::render_all(&reply.outcomes, outcome::Tense::Done, text);
    outcome::render_more(reply.more, text);
    if !reply.writers.is_empty() {
        text.put("Still being written:\n");
    }
    for writer in &reply.writers {
        render_writer(writer, text);
    }
}

pub fn render_writer(writer: &WritingNow, text: &mut Text) {
    text.put("  ").name(writer.path.as_bytes()).put(match writer.pid {
        0 => "  not judged yet; it is kept\n".to_owned(),
        pid => format!("  by pid {pid}\n"),
    });
}
