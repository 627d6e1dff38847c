//! Answers `check`: records what a command found in the view, and lands what it tested if nothing has changed since.
//!
//! The client runs the command. What it tested is named by a token: the number of the last event before the command
//! started, and a hash of the exact contents and the names of everything held. Ids would not do, because an id is only
//! the beginning of a hash and does not change with a further name. Every other change in the project through the view,
//! or to a file that fettlefs knows, leaves an event. So nothing is remembered between two requests, and a daemon that
//! was restarted meanwhile is noticed by its own events.

use super::answers::{self, HeldRow, failed};
use super::{Asker, Project, rights};
use crate::model::{ChangeId, Digest, Reason, RelPath, plural};
use crate::overlay::{ConfirmHow, Merging, Review};
use crate::protocol::{
    self, CheckPhase, CheckReply, ErrorBody, ErrorCode, Event, EventName, Held, Outcome, Reply, Request,
};

type Result<T> = std::result::Result<T, ErrorBody>;

/// The most lines that report what has moved.
const MOVED_TOLD_MAX: usize = 20;
/// Told where too much was recorded meanwhile for the log to have it all.
const LOG_FALLS_SHORT: &str = "not to be told: so much was recorded since that the log has let go of the beginning";
/// The most events in memory at once; all events since the start of a check are looked at.
const EVENTS_PAGE: u64 = 2000;

/// What the view held when a command started.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tested {
    seq: u64,
    held: Digest,
}

impl Tested {
    /// Takes the number first, so that a change between the two looks counts as moved.
    fn now(project: &Project) -> Result<Self> {
        let seq = project.overlay.store().last_seq().map_err(failed)?;
        Ok(Self { seq, held: digest_of(&held_names(&answers::held_rows(project))) })
    }

    fn parse(text: &str) -> Option<Self> {
        let (seq, held) = text.split_once('-')?;
        Some(Self { seq: seq.parse().ok()?, held: Digest::parse(held)? })
    }
}

impl std::fmt::Display for Tested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.seq, self.held)
    }
}

/// The full hash of which a held change's id is the beginning, and the names under which it lands.
type Named = (Digest, Vec<RelPath>);

fn held_names(rows: &[HeldRow]) -> Vec<Named> {
    rows.iter().filter_map(|row| Some((row.row().full_id()?, row.row().names.clone()))).collect()
}

fn digest_of(held: &[Named]) -> Digest {
    let mut held: Vec<Vec<u8>> = held
        .iter()
        .map(|(full, names)| {
            let mut names: Vec<&[u8]> = names.iter().map(RelPath::as_bytes).collect();
            names.sort_unstable();
            // No name has a zero byte in it, and none is empty.
            [full.to_string().as_bytes(), &names.join(&0)].join(&0)
        })
        .collect();
    held.sort_unstable();
    Digest::of(&held.join(&[0, 0][..]))
}

pub fn check(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let Some(phase) = request.phase else {
        return Err(ErrorBody::new(
            ErrorCode::BadRequest,
            "check of which `phase`: started, passed, failed or promote?",
        ));
    };
    if project.mounted.is_none() {
        let message = format!("{} is not mounted: there is no view to run anything in", project.path.display());
        return Err(ErrorBody::new(ErrorCode::NotMounted, message));
    }
    if !rights::may_record(asker, project) {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "check: only who may write in the project has it recorded",
        ));
    }
    // A command sees them at once, and they would land later, untested.
    project.overlay.take_stores();
    project.overlay.settle_pending();
    if !project.overlay.is_asked(asker.pid) {
        // A write being judged is visible but may yet be denied, so the command's start and its result wait for that.
        project.overlay.wait_for_judgings();
    }
    // Outside changes get their events now: those before the command are not counted against it, those during it are.
    project.overlay.tell_all_external()?;
    let reply = match phase {
        CheckPhase::Started => started(request, asker, project),
        CheckPhase::Passed => passed(request, asker, project),
        CheckPhase::Failed => not_passed(request, asker, project),
        CheckPhase::Promote => promote(request, asker, project),
    };
    reply.map(|reply| Reply::Check(Box::new(reply)))
}

fn started(request: &Request, asker: &Asker, project: &Project) -> Result<CheckReply> {
    let tested = Tested::now(project)?;
    record(EventName::CheckStarted, command(request), asker, project)?;
    Ok(reply(CheckPhase::Started, &tested, answers::all_held(project)?, asker, project))
}

fn passed(request: &Request, asker: &Asker, project: &Project) -> Result<CheckReply> {
    let tested = tested(request)?;
    record(EventName::CheckPassed, command(request), asker, project)?;
    let reply = reply(CheckPhase::Passed, &tested, answers::all_held(project)?, asker, project);
    Ok(CheckReply { moved: moved(&tested, &held_names(&answers::held_rows(project)), project)?, ..reply })
}

fn not_passed(request: &Request, asker: &Asker, project: &Project) -> Result<CheckReply> {
    let tested = tested(request)?;
    let message = match request.status {
        Some(status) => format!("status {status}: {}", command(request)),
        None => command(request),
    };
    record(EventName::CheckFailed, message, asker, project)?;
    Ok(reply(CheckPhase::Failed, &tested, answers::all_held(project)?, asker, project))
}

/// Lands everything held, as one transaction, if that is what was tested and nothing else has moved.
fn promote(request: &Request, asker: &Asker, project: &Project) -> Result<CheckReply> {
    let tested = tested(request)?;
    if !rights::may_change(asker, project) {
        return Err(ErrorBody::new(ErrorCode::NotPermitted, "promote: you may not confirm changes of this project"));
    }
    let rows = answers::held_rows(project);
    let ids: Vec<ChangeId> = rows.iter().map(|row| row.id().clone()).collect();
    record(EventName::PromoteStarted, plural(ids.len() as u64, "change"), asker, project)?;
    let promoted = check_still(&tested, &held_names(&rows), project).and_then(|()| confirm(&ids, asker, project));
    let (event, message) = match &promoted {
        Ok(outcomes) => (EventName::PromoteSucceeded, plural(outcomes.len() as u64, "change")),
        Err(err) => (EventName::PromoteFailed, err.message.clone()),
    };
    // It has landed or not by now, and the answer says which, whatever fails from here on.
    or_logged(record(event, message, asker, project));
    let outcomes = promoted?;
    let held = or_logged(answers::all_held(project));
    Ok(CheckReply { outcomes, ..reply(CheckPhase::Promote, &tested, held, asker, project) })
}

fn or_logged<T: Default>(result: Result<T>) -> T {
    result.unwrap_or_else(|err| {
        log::error!("after a promotion: {}", err.message);
        T::default()
    })
}

fn check_still(tested: &Tested, held: &[Named], project: &Project) -> Result<()> {
    let moved = moved(tested, held, project)?;
    if moved.is_empty() {
        return Ok(());
    }
    let message = "nothing was promoted: the view is not what the command has tested any more";
    let detail = moved.iter().map(|line| format!("{line}\n")).collect::<String>().into_boxed_str();
    Err(ErrorBody { detail: Some(detail), ..ErrorBody::new(ErrorCode::Conflict, message) })
}

fn confirm(ids: &[ChangeId], asker: &Asker, project: &Project) -> Result<Vec<Outcome>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let review = Review { by: project.overlay.asker(asker.pid, asker.uid), dry_run: false };
    project.overlay.confirm(ids, &ConfirmHow::unasked(review, Merging::Refused))
}

/// Returns what is no longer as it was when the command started, one line each.
fn moved(tested: &Tested, held: &[Named], project: &Project) -> Result<Vec<String>> {
    let mut lines = told_since(tested.seq, project)?;
    let writing = project.overlay.unjudged().into_iter();
    lines.extend(writing.map(|writing| format!("still being written: {}", writing.path)));
    if lines.is_empty() && digest_of(held) != tested.held {
        lines.push("what is held is not what was held".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    let more = lines.len().saturating_sub(MOVED_TOLD_MAX);
    lines.truncate(MOVED_TOLD_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    Ok(lines)
}

/// Returns what the events after `seq` say has moved. They are numbered without gaps, so the oldest that is left shows
/// whether all are.
fn told_since(seq: u64, project: &Project) -> Result<Vec<String>> {
    let (mut lines, mut since) = (Vec::new(), seq);
    loop {
        let page = project.overlay.store().events_after(since, EVENTS_PAGE, std::time::Duration::ZERO);
        let page = page.map_err(failed)?.unwrap_or_default();
        if page.first().is_some_and(|first| first.seq != since + 1) {
            lines.push(LOG_FALLS_SHORT.to_owned());
        }
        lines.extend(page.iter().filter_map(told));
        match page.last() {
            Some(last) => since = last.seq,
            None => return Ok(lines),
        }
    }
}

/// Returns what an event says has moved; `None` for an event that moves nothing.
fn told(event: &Event) -> Option<String> {
    let what = match event.event {
        EventName::WriteLanded => "written",
        EventName::WriteHeld => "written and held",
        EventName::Confirmed => "confirmed",
        EventName::Discarded => "discarded",
        EventName::HoldEnded => "held no more",
        EventName::RolledBack => "rolled back",
        EventName::Undone => "undone",
        EventName::ExternalModified => "changed outside",
        // Denied by a permission program: content that the view had shown is gone. What a rule denies never shows.
        EventName::WriteDenied if event.reason == Some(Reason::Hook) => "denied",
        // With a pid, this is a run that comes or goes, not a daemon.
        EventName::SessionStarted | EventName::SessionEnded if event.pid.is_some() => return None,
        EventName::SessionStarted | EventName::SessionEnded | EventName::Recovered => {
            return Some("the daemon was started anew".to_owned());
        }
        EventName::WriteDenied | EventName::RequestRefused | EventName::ReviewRequested => return None,
        EventName::ConfirmFailed | EventName::Expired => {
            return None;
        }
        EventName::CheckStarted | EventName::CheckPassed | EventName::CheckFailed => return None,
        EventName::PromoteStarted | EventName::PromoteSucceeded | EventName::PromoteFailed => return None,
    };
    Some(format!("{what}: {}", event.path.as_ref()?))
}

fn tested(request: &Request) -> Result<Tested> {
    let tested = request.tested.as_deref().and_then(Tested::parse);
    tested.ok_or_else(|| ErrorBody::new(ErrorCode::BadRequest, "`tested` is not what the beginning of a check answers"))
}

fn reply(phase: CheckPhase, tested: &Tested, mut held: Vec<Held>, asker: &Asker, project: &Project) -> CheckReply {
    let held_count = held.len() as u64;
    held.truncate(answers::HELD_TOLD_MAX);
    let (tested, may_promote) = (tested.to_string(), rights::may_change(asker, project));
    CheckReply { phase, tested, held, held_count, may_promote, moved: Vec::new(), outcomes: Vec::new(), more: 0 }
}

fn command(request: &Request) -> String {
    request.name.clone().unwrap_or_default()
}

fn record(name: EventName, message: String, asker: &Asker, project: &Project) -> Result<()> {
    let event = answers::asked_event(name, protocol::name_of(&message), asker, project);
    project.overlay.store().record(&event).map_err(failed)
}

#[cfg(test)]
mod tests;
