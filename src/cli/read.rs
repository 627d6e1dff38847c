//! `fettlefs read`: prints a file for a reader that may have read it before.

use super::desk::{Desk, Length, Readers};
use super::terminal::Ink;
use super::{Failure, at_least};
use crate::client::{Client, path_of};
use crate::model::plural;
use crate::protocol::{Exit, Op, ReadForm, ReadReply, Reply, Request};
use std::ffi::OsString;

/// Names the reader's session for `read` and `patch` if no flag does.
pub(super) const SESSION_VARIABLE: &str = "FETTLE_SESSION";

/// Print a file, or only what this session has not received of it yet
///
/// The first time its content; then one line that says it is unchanged, or a diff since it was last received where that is
/// short, or the content again. After a patch by the same session one line with its hash.
#[derive(clap::Args)]
pub struct Arguments {
    /// A text file
    #[arg(required_unless_present = "reset")]
    file: Option<OsString>,
    #[command(flatten)]
    session: Session,
    /// Skip so many lines; what is read in part is not remembered
    #[arg(long, value_name = "LINES", value_parser = at_least(0))]
    offset: Option<u64>,
    /// At most so many lines
    #[arg(long, value_name = "LINES", value_parser = at_least(1))]
    limit: Option<u64>,
    /// Forget first what was received: of FILE, or without FILE of all
    #[arg(long)]
    reset: bool,
}

#[derive(clap::Args)]
pub struct Session {
    /// Whose reading it is; FETTLE_SESSION if not given, else that of the process tree
    #[arg(long = "session", value_name = "SESSION")]
    named: Option<String>,
}

impl Session {
    pub fn name(self) -> Option<String> {
        let variable = || std::env::var(SESSION_VARIABLE).ok().filter(|name| !name.is_empty());
        self.named.or_else(variable)
    }
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let path = arguments.file.map(|file| path_of(client.place(), &file)).transpose()?;
    let session = arguments.session.name();
    let request = Request {
        path,
        session: session.clone(),
        reset: arguments.reset,
        offset: arguments.offset.unwrap_or_default(),
        limit: arguments.limit,
        ..Request::new(Op::Read)
    };
    let answer = client.ask(&request)?;
    let Reply::Read(reply) = &answer else { return Err(Failure::other_answer()) };
    let shown = show(&answer, reply, desk);
    let was_news = matches!(reply.form, ReadForm::Content | ReadForm::Diff);
    if was_news && !matches!(shown, Ok(Readers::Listening)) {
        forget(reply, session, &mut client)?;
    }
    shown?;
    say_what_is_left(reply, desk)?;
    Ok(Exit::Done)
}

fn show(answer: &Reply, reply: &ReadReply, desk: &Desk) -> Result<Readers, Failure> {
    if let Some(hint) = &reply.hint {
        desk.remark(|text| {
            text.put("fettlefs: ").name(reply.path.as_bytes()).put(": ").name(hint).put("\n");
        })?;
    }
    desk.answer_to_readers(answer, Length::Short, |text| match reply.form {
        ReadForm::Diff => {
            text.diff(reply.text.as_bytes());
        }
        ReadForm::Forgotten => {
            text.put("fettlefs: Forgotten what was received\n");
        }
        ReadForm::Content | ReadForm::Part | ReadForm::Unchanged | ReadForm::Certificate => {
            text.content(reply.text.as_bytes());
        }
    })
}

/// Has an answer that nobody has seen whole not count as received: the next read sends it again. Forgetting is a part of
/// reading; this one asks for no line, since the whole would count as received.
fn forget(reply: &ReadReply, session: Option<String>, client: &mut Client) -> Result<(), Failure> {
    let path = Some(reply.path.clone());
    let request = Request { path, session, reset: true, offset: u64::MAX, limit: Some(1), ..Request::new(Op::Read) };
    client.ask(&request)?;
    Ok(())
}

/// Tells how many lines are left: a caller that read a part may want the next.
fn say_what_is_left(reply: &ReadReply, desk: &Desk) -> Result<(), Failure> {
    let Some(next) = reply.next else { return Ok(()) };
    let left = plural(reply.lines.saturating_sub(next), "more line");
    desk.remark(|text| {
        text.ink(Ink::Faint, format!("fettlefs: {left}: --offset {next}")).put("\n");
    })
}
