//! `fettlefs blame`: where each line of a file comes from.

use super::desk::Length;
use super::terminal::Ink;
use super::text::Text;
use super::words::moment;
use super::{Desk, Failure};
use crate::client::path_of;
use crate::protocol::{BlameSpan, Exit, LineOrigin, Op, Reply, Request};
use std::ffi::OsString;

/// Show with which event each line of a file came, and who wrote it
///
/// As far as the log and the contents kept for it go back. `<` before an operation: the line may be older, since a content
/// in between is not kept any more.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file, held or not
    #[arg(value_name = "FILE")]
    file: OsString,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let path = path_of(client.place(), &arguments.file)?;
    let answer = client.ask(&Request { path: Some(path), ..Request::new(Op::Blame) })?;
    let Reply::Blame(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Long, |text| render(&reply.spans, text))?;
    Ok(Exit::Done)
}

pub fn render(spans: &[BlameSpan], text: &mut Text) {
    let columns = |column: fn(&BlameSpan) -> String| spans.iter().map(|span| column(span).chars().count()).max();
    let (origin_columns, who_columns) = (columns(origin).unwrap_or(0), columns(who).unwrap_or(0));
    let last = spans.last().map_or(0, |span| span.line + span.text.lines().count() as u64);
    let number_columns = last.to_string().len();
    for span in spans {
        for (line, number) in span.text.split_inclusive('\n').zip(span.line..) {
            let time = span.by.time.map(moment).unwrap_or_default();
            text.ink(ink(span.origin), format!("{:origin_columns$}", origin(span)));
            text.put("  ").ink(Ink::Faint, format!("{time:20}")).put("  ").name(who(span));
            text.put(" ".repeat(who_columns - who(span).chars().count()));
            text.put(format!("  {number:number_columns$}) ")).content(line.trim_end_matches('\n').as_bytes()).put("\n");
        }
    }
}

fn ink(origin: LineOrigin) -> Ink {
    match origin {
        LineOrigin::Held | LineOrigin::Unjudged | LineOrigin::Outside => Ink::Warning,
        LineOrigin::Event => Ink::Strong,
        LineOrigin::BeforeLog => Ink::Faint,
    }
}

/// Returns the operation or id to ask `log` or `show` for, if there is one.
fn origin(span: &BlameSpan) -> String {
    let older = if span.certain { "" } else { "<" };
    let named = |name: &Option<String>| name.clone().unwrap_or_default();
    match span.origin {
        LineOrigin::BeforeLog => "before the log".to_owned(),
        LineOrigin::Event => format!("{older}{}", named(&span.by.operation)),
        LineOrigin::Outside => format!("{older}outside"),
        LineOrigin::Held => format!("{older}held {}", named(&span.by.id)),
        LineOrigin::Unjudged => format!("{older}not judged"),
    }
}

/// Returns the name, pid and uid of the writing program; empty if unknown.
fn who(span: &BlameSpan) -> String {
    let (Some(pid), Some(uid)) = (span.by.pid, span.by.uid) else { return String::new() };
    let exe = span.by.program().and_then(|program| program.exe.as_deref());
    match exe.map(|exe| exe.rsplit('/').next().unwrap_or(exe)) {
        Some(name) => format!("{name} (pid {pid}, uid {uid})"),
        None => format!("pid {pid}, uid {uid}"),
    }
}
