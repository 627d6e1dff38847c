//! `fettlefs status`: what is held, what changed outside, and what to do next.

use super::desk::{Format, Length};
use super::terminal::Ink;
use super::text::Text;
use super::words::age;
use super::{Desk, Failure, held};
use crate::protocol::{Counters, Exit, Op, Reply, Request, Status};

/// Show what is held and why, and what changed outside
#[derive(clap::Args)]
pub struct Arguments {
    /// End with status 1 when something is held
    #[arg(long)]
    exit_code: bool,

    /// Also show what the kernel has asked of the mount, and how often
    #[arg(long)]
    trace_ops: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let request = Request { all: arguments.trace_ops, ..Request::new(Op::Status) };
    if desk.format == Format::Json && !arguments.exit_code {
        desk.print_json(desk.client()?.ask_line(&request)?)?;
        return Ok(Exit::Done);
    }
    let answer = desk.client()?.ask(&request)?;
    let Reply::Status(status) = &answer else { return Err(Failure::other_answer()) };
    let exit = match arguments.exit_code && !status.held.is_empty() {
        true => Exit::Failed,
        false => Exit::Done,
    };
    desk.answer(&answer, Length::Short, |text| {
        render(status, text);
        if arguments.trace_ops {
            render_requests(status, text);
        }
    })?;
    Ok(exit)
}

pub fn render(status: &Status, text: &mut Text) {
    render_mount(status, text);
    render_warnings(status, text);
    render_held(status, text);
    render_external(status, text);
    render_writers(status, text);
    render_runs(status, text);
    render_hints(status, text);
}

fn render_mount(status: &Status, text: &mut Text) {
    text.put("fettlefs: ").name(&status.project);
    match &status.mountpoint {
        _ if !status.mounted => text.put(" is not mounted"),
        Some(mountpoint) if *mountpoint != status.project => text.put(" mounted on ").name(mountpoint),
        Some(_) | None => text.put(" mounted"),
    };
    if let Some(pid) = status.pid {
        text.put(format!(" (pid {pid})"));
    }
    text.put(format!("; {}\n", counts(status)));
}

/// Counts what landed, is held and was denied. The first and last are counted per session, so only with a mount.
fn counts(status: &Status) -> String {
    let held = format!("{} held", status.held.len());
    match status.counters {
        _ if !status.mounted => held,
        Counters { landed, denied: 0, .. } => format!("{landed} landed, {held}"),
        Counters { landed, denied, .. } => format!("{landed} landed, {held}, {denied} denied"),
    }
}

/// Lists requests, the most frequent first. Each wakes up the daemon, and then the program that waits for it.
pub fn render_requests(status: &Status, text: &mut Text) {
    let mut requests: Vec<_> = status.requests.iter().collect();
    requests.sort_by_key(|(request, count)| (std::cmp::Reverse(**count), *request));
    text.put("\nRequests of the kernel:\n");
    for (request, count) in requests {
        text.put(format!("  {count:>9}  {request}\n"));
    }
}

fn render_warnings(status: &Status, text: &mut Text) {
    if let Some(reason) = &status.readonly {
        text.ink(Ink::Warning, "READ-ONLY: ").name(reason).put("\n");
    }
    if status.mounted && !status.passthrough {
        text.ink(Ink::Warning, "note: ").put("files that nobody judges go through the daemon (no passthrough)\n");
    }
    status.notices.iter().for_each(|notice| text.note(notice));
}

fn render_held(status: &Status, text: &mut Text) {
    if status.held.is_empty() {
        text.put("\nNothing is held.\n");
        return;
    }
    text.put("\nHeld for review:\n");
    held::render_table(&status.held, text);
}

fn render_external(status: &Status, text: &mut Text) {
    if status.external.is_empty() {
        return;
    }
    text.put("\nChanged outside:\n");
    for external in &status.external {
        super::external::render_row(external, text);
    }
}

fn render_writers(status: &Status, text: &mut Text) {
    if status.writers.is_empty() {
        return;
    }
    text.put("\nStill being written:\n");
    for writer in &status.writers {
        super::flush::render_writer(writer, text);
    }
}

fn render_runs(status: &Status, text: &mut Text) {
    if status.runs.is_empty() {
        return;
    }
    text.put("\nRunning:\n");
    for run in &status.runs {
        text.put(format!("  pid {}  ", run.pid)).name(&run.command);
        text.put(format!("  {}\n", age(run.started, text.now())));
    }
}

fn render_hints(status: &Status, text: &mut Text) {
    let Some(which) = hinted(status) else { return };
    text.put("\n");
    for (command, what) in
        [("diff", "see what would change"), ("confirm", "land it in the project"), ("discard", "drop it from the view")]
    {
        let command = format!("fettlefs {command} {which}");
        text.put(format!("  {command:<26}  {what}\n"));
    }
}

/// Returns what a hint names: the only held change, or the operation that all belong to; otherwise the word ID.
fn hinted(status: &Status) -> Option<String> {
    let (first, others) = status.held.split_first()?;
    match &first.operation {
        _ if others.is_empty() => Some(first.id.to_string()),
        Some(operation) if others.iter().all(|held| held.operation.as_ref() == Some(operation)) => {
            Some(operation.clone())
        }
        Some(_) | None => Some("ID".to_owned()),
    }
}
