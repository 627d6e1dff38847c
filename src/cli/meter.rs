//! `fettlefs meter`: how many bytes `read` has saved.

use super::Failure;
use super::desk::{Desk, Length};
use super::text::Text;
use super::words::{percent, size};
use crate::model::plural;
use crate::protocol::{Exit, MeterCounts, MeterReply, Op, Reply, Request};

/// Show how many bytes `read` returned of those it was asked for, by session and in total
#[derive(clap::Args)]
pub struct Arguments {
    /// Only of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Begin to count anew; what was received stays known
    #[arg(long)]
    reset: bool,
}

/// The name under which reads without a session are counted.
const NOBODY: &str = "(no session)";

/// How wide a session's name may be before it pushes the following columns to the right.
const NAME_COLUMNS: usize = 32;

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let request = Request { session: arguments.session, reset: arguments.reset, ..Request::new(Op::Meter) };
    let answer = desk.client()?.ask(&request)?;
    let Reply::Meter(reply) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Short, |text| render(reply, text))?;
    Ok(Exit::Done)
}

pub fn render(reply: &MeterReply, text: &mut Text) {
    if reply.sessions.is_empty() {
        text.put("fettlefs: Nothing was read\n");
        return;
    }
    for meter in &reply.sessions {
        let name = meter.session.as_deref().unwrap_or(NOBODY);
        text.put("  ").name(name).put(" ".repeat(NAME_COLUMNS.saturating_sub(name.chars().count())));
        render_counts(&meter.counts, text);
    }
    text.put(format!("  {:<NAME_COLUMNS$}", "total"));
    render_counts(&reply.total, text);
    if reply.reset {
        text.put("fettlefs: Counting anew from here\n");
    }
}

fn render_counts(counts: &MeterCounts, text: &mut Text) {
    let MeterCounts { reads, bytes_asked, bytes_returned, saved } = *counts;
    let (reads, share) = (plural(reads, "read"), percent(saved.abs()));
    // Of short answers the frame is longer than what it spares.
    let share = if saved < 0.0 { format!("{share} more") } else { format!("{share} saved") };
    text.put(format!("  {reads:<10}  {} of {}, {share}\n", size(bytes_returned), size(bytes_asked)));
}
