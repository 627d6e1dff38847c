//! `fettlefs doctor`: what keeps a view from working here, or weakens it, with one remedy each.
//!
//! [`checks`] only look. If they find no fault, [`trial`] really mounts: the project, beside itself, read-only and with
//! its state elsewhere; and a scratch project, in which one change lands and another is held. If only mounting is
//! impossible, a run is tried, which needs less. All of it is removed again.

mod checks;
mod trial;

use std::path::PathBuf;

use serde::Serialize;

use super::desk::Done;
use super::mount_start::directory;
use super::terminal::Ink;
use super::text::Text;
use super::{Desk, Failure};
use crate::client::DeadMount;
use crate::model::plural;
use crate::protocol::{ErrorCode, Exit};
use crate::sys::signals::Termination;

/// Find out what keeps a view from working here, down to real trial mounts
///
/// Changes nothing in the project, and leaves nothing behind. Exits with 1 where something does not work.
#[derive(clap::Args)]
pub struct Arguments {
    /// The project's directory
    #[arg(default_value = ".")]
    project: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// It works, but less well than it could.
    Note,
    /// It does not work.
    Fault,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    message: String,
    /// What to do; `None` if nothing is wrong.
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, state: State::Ok, message: message.into(), remedy: None }
    }

    fn note(check: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Note, message: message.into(), remedy: Some(remedy.into()) }
    }

    fn fault(check: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Fault, message: message.into(), remedy: Some(remedy.into()) }
    }
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let project = directory(&desk.directory.join(arguments.project), "project")?;
    let mut findings = checks::of_machine();
    match DeadMount::found_at(&project) {
        Some(dead) => findings.push(checks::dead(&dead)),
        None => findings.extend(checks::of_project(&project)),
    }
    let failed = |err| Failure::new(ErrorCode::Io, format!("keep signals back during the trials: {err}"));
    // What is mounted for a trial would outlive a program that a signal ends.
    let signals = Termination::block_heeded().map_err(failed)?;
    match faults(&findings)[..] {
        [] => findings.extend(trial::all(&project, &signals)),
        [checks::MOUNTING] => try_a_run(&mut findings, &signals),
        _ => {}
    }
    signals.unblock().map_err(failed)?;
    desk.answer_value(serde_json::json!({"v": 1, "ok": true, "findings": findings}), Done::Nothing, |text| {
        render(&findings, text)
    })?;
    Ok(if count(&findings, State::Fault) == 0 { Exit::Done } else { Exit::Failed })
}

/// Tries a run: a user who may not mount for everyone can still have a view in a private namespace.
fn try_a_run(findings: &mut Vec<Finding>, signals: &Termination) {
    let tried = trial::run(signals);
    if tried.state == State::Ok {
        let mounting = findings.iter_mut().filter(|finding| finding.check == checks::MOUNTING);
        mounting.for_each(|finding| {
            finding.state = State::Note;
            finding.message.push_str("; `run` works, `mount` does not");
        });
    }
    findings.push(tried);
}

fn faults(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.state == State::Fault).map(|finding| finding.check).collect()
}

fn count(findings: &[Finding], state: State) -> u64 {
    findings.iter().filter(|finding| finding.state == state).count() as u64
}

fn render(findings: &[Finding], text: &mut Text) {
    let told = match (count(findings, State::Fault), count(findings, State::Note)) {
        (0, 0) => "all is well".to_owned(),
        (0, notes) => format!("it works, with {}", plural(notes, "note")),
        (faults, _) => format!("it does not work: {}", plural(faults, "fault")),
    };
    text.put(format!("fettlefs: {told}\n"));
    for Finding { check, state, message, remedy } in findings {
        let (ink, word) = match state {
            State::Ok => (Ink::Added, "ok   "),
            State::Note => (Ink::Warning, "note "),
            State::Fault => (Ink::Removed, "fault"),
        };
        text.put("  ").ink(ink, word).put(format!("  {check}: ")).name(message).put("\n");
        if let Some(remedy) = remedy {
            text.put("         ").name(remedy).put("\n");
        }
    }
}
