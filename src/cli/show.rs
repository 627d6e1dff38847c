//! `fettlefs show`: everything known about held changes, with their diffs.

use super::desk::Length;
use super::terminal::Ink;
use super::text::Text;
use super::words::{age, percent};
use super::{Desk, Failure, completions, diff};
use crate::diff::Unreadable;
use crate::protocol::{ChangeDiff, Exit, Held, Program, Reply, Writer};
use clap_complete::ArgValueCompleter;
use std::ffi::OsString;

/// Show held changes: why they are held, who wrote them, and what they would do
#[derive(clap::Args)]
pub struct Arguments {
    /// Ids, paths, directories or globs
    #[arg(value_name = "ID|PATH|GLOB", add = ArgValueCompleter::new(completions::held), required = true)]
    targets: Vec<OsString>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let answer = diff::ask(&arguments.targets, Unreadable::Named, desk)?;
    let Reply::Diff(diff) = &answer else { return Err(Failure::other_answer()) };
    desk.answer(&answer, Length::Long, |text| {
        diff.changes.iter().for_each(|change| render(change, text));
    })?;
    Ok(Exit::Done)
}

pub fn render(change: &ChangeDiff, text: &mut Text) {
    let held = &change.held;
    text.ink(Ink::Strong, format!("change {}", held.id)).put("\n");
    text.put("Path:    ").name(held.path.as_bytes()).put("\n");
    for also in &held.also.0 {
        text.put("Also:    ").name(also.as_bytes()).put("\n");
    }
    text.put(format!("Kind:    {}, {}\n", held.kind, lines(held)));
    text.put(format!("Reason:  {}", held.reason));
    if let Some(detail) = &held.detail {
        text.put(": ").name(detail);
    }
    text.put("\n");
    for looks in &held.looks {
        text.put("Brings:  ").name(looks).put("\n");
    }
    render_writer(held.writer.as_ref(), text);
    render_program(
        "Opened:  ",
        held.opened_by.as_ref().filter(|opener| held.written_by.as_ref() != Some(opener)),
        text,
    );
    render_program("Written: ", held.written_by.as_ref(), text);
    let expired = if held.expired { " (expired)" } else { "" };
    text.put(format!("Held:    {} ({}){expired}\n", held.created, age(held.created, text.now())));
    if held.externally_modified {
        text.ink(Ink::Warning, "The file was modified externally since the last operation.").put("\n");
    }
    if held.in_head {
        text.ink(Ink::Warning, "The held content is already in HEAD.").put("\n");
    }
    text.put("\n").diff(&change.text.0).put("\n");
}

fn lines(held: &Held) -> String {
    let share = if held.ratio > 0.0 {
        format!(" ({} of {} lines)", percent(held.ratio), held.old_lines)
    } else {
        String::new()
    };
    format!("+{} -{}{share}", held.insertions, held.deletions)
}

/// Adds the command line; the program itself is shown before.
fn render_program(title: &str, program: Option<&Program>, text: &mut Text) {
    if let Some(cmdline) = program.and_then(|program| program.cmdline.as_ref()) {
        text.put(title).name(cmdline).put("\n");
    }
}

fn render_writer(writer: Option<&Writer>, text: &mut Text) {
    let Some(writer) = writer else {
        text.put("Writer:  not known\n");
        return;
    };
    text.put(format!("Writer:  pid {}, uid {}", writer.pid, writer.uid));
    if let Some(exe) = &writer.exe {
        text.put(", ").name(exe);
    }
    text.put("\n");
}
