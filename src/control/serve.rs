//! Turns one request into one response.

use std::time::Duration;

use super::answers::{self, failed};
use super::filter::Filter;
use super::held::{act, looking_again, review};
use super::read::Receipt;
use super::{Asker, Project, check_nothing_over};
use super::{backups, blame, check, held, patch, read, rights, runs};
use crate::model::{ChangeId, OperationId};
use crate::overlay::{ConfirmHow, Merging, UndoHow, Undone, no_such_operation};
use crate::protocol::{
    Acted, CheckPhase, Cut, ErrorBody, ErrorCode, Event, EventsReply, ExternalReply, FlushReply, FsckReply,
    HeldAtUnmount, LogReply, Op, Outcome, Problem, ReloadReply, Reply, Request, Response, UnmountReply, VERSION,
    VersionReply, WritingNow, page,
};
use crate::store::Fault;
use crate::sys::process;

/// How long `flush` and `unmount` wait for writers unless told otherwise. Long enough for a build to finish a file,
/// short enough that a person does not take it for a hang.
const WRITERS_WAIT: Duration = Duration::from_secs(10);
/// The longest they wait, whatever is asked for: far longer than any writer takes, and far from where a clock overflows.
const WRITERS_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest that `events` waits. The asker then asks again, so one that has gone does not keep a thread.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(30);
/// The most events in one answer, if they fit: some 2 MiB of the 8, unless paths are long.
const EVENTS_MAX: u64 = 2000;
/// How many writers that have not closed a file are named.
const UNJUDGED_TOLD_MAX: usize = 20;

type Result<T> = std::result::Result<T, ErrorBody>;

/// An answer, and the receipt to be noted once it has been delivered.
#[must_use]
pub struct Served {
    pub response: Response,
    pub receipt: Option<Receipt>,
}

/// Answers one request of `asker`. May take as long as writers, hooks and disks take.
pub fn serve(request: &Request, asker: &Asker, project: &Project) -> Served {
    let allowed = rights::check(request.op, asker, project).and_then(|()| check_writable(request, project));
    match (allowed, request.op) {
        (Err(refused), _) => Served { response: Response::failed(refused), receipt: None },
        (Ok(()), Op::Read) => read::read(request, asker, project),
        (Ok(()), _) => Served { response: answer(request, asker, project).into(), receipt: None },
    }
}

/// Whether it may land, drop or restore something.
pub fn acts(request: &Request) -> bool {
    match request.op {
        Op::Confirm | Op::Discard | Op::Rollback | Op::Undo | Op::Patch => true,
        Op::Unmount => request.held != HeldAtUnmount::Keep,
        Op::Status | Op::Diff | Op::Backups | Op::Log | Op::Blame | Op::Events | Op::External | Op::Fsck => false,
        Op::Reload | Op::Read | Op::Meter | Op::RequestReview | Op::Flush | Op::Run | Op::Leave | Op::Version => false,
        Op::Check => request.phase == Some(CheckPhase::Promote),
    }
}

/// On a read-only project, by mount option or after a fault, nothing can be landed or dropped; it can still be unmounted.
fn check_writable(request: &Request, project: &Project) -> Result<()> {
    match project.overlay.fault().filter(|_| acts(request)) {
        Some(why) => {
            Err(ErrorBody::new(ErrorCode::NotPermitted, format!("{}: nothing can be changed: {why}", request.op)))
        }
        None => Ok(()),
    }
}

fn answer(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    match request.op {
        Op::Status => status(request, asker, project),
        Op::Diff => held::diff(request, asker, project),
        Op::Confirm => held::confirm(request, asker, project).map(Reply::Confirm),
        Op::Discard => held::discard(request, asker, project).map(Reply::Discard),
        Op::Rollback => backups::rollback(request, asker, project).map(Reply::Rollback),
        Op::Undo => undo(request, asker, project).map(Reply::Undo),
        Op::Backups => backups::backups(request, project),
        Op::Log => log(request, project),
        Op::Blame => blame::blame(request, asker, project),
        Op::Events => events(request, asker, project),
        Op::External => external(request, project),
        Op::Fsck => fsck(request, project),
        Op::Reload => reload(request, project),
        Op::Flush => flush(request, asker, project),
        Op::Unmount => unmount(request, asker, project),
        Op::Run => runs::begin(request, asker, project),
        Op::Leave => runs::leave(asker, project),
        Op::Version => Ok(Reply::Version(version(project))),
        Op::Meter => read::meter(request, asker, project),
        Op::Patch => patch::patch(request, asker, project),
        Op::Check => check::check(request, asker, project),
        Op::RequestReview => held::request_review(request, asker, project),
        Op::Read => unreachable!("`serve` answers it, for it has a receipt"),
    }
}

fn status(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    project.overlay.settle_pending();
    let mut status = answers::status(project, asker, Cut::new(request.offset, request.limit))?;
    if request.all {
        status.requests = project.overlay.traffic().counts();
    }
    Ok(Reply::Status(Box::new(status)))
}

fn undo(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    let Some(text) = &request.operation else {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "undo of what? Give an operation, as `log` tells them"));
    };
    let id = OperationId::parse(text).ok_or_else(|| {
        let message = format!("{text}: not an operation: those are called op and a number");
        ErrorBody::new(ErrorCode::UnknownId, message).about(text)
    })?;
    project.overlay.settle_pending();
    let permits = rights::permits(asker, project).map_err(failed)?;
    let how = UndoHow { review: review(request, asker, project), force: request.force, permits };
    let Undone { outcomes, notices } = looking_again(|| project.overlay.undo(id, &how))?;
    Ok(Acted { outcomes, notices, dry_run: request.dry_run, ..Acted::default() })
}

fn log(request: &Request, project: &Project) -> Result<Reply> {
    let filter = Filter::of(&request.targets)?;
    let mut events = project.overlay.store().events_since(0).map_err(failed)?;
    if let Some(wanted) = &request.operation
        && !events.iter().any(|event| event.operation.as_ref() == Some(wanted))
    {
        return Err(no_such_operation(wanted));
    }
    let is = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
    let begins = |event: &Event, prefix: &str| {
        let is_change = ChangeId::parse(prefix).is_some() && event.id.as_ref().is_some_and(|id| id.starts_with(prefix));
        is_change || event.operation.as_deref() == Some(prefix)
    };
    events.retain(|event| {
        filter.wants(event.path.as_ref(), |prefix| begins(event, prefix))
            && is(&request.operation, &event.operation)
            && is(&request.session, &event.session)
    });
    events.reverse();
    let page = page(events, request.offset, request.limit);
    Ok(Reply::Log(LogReply { events: page.entries, next: page.next }))
}

fn events(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    if request.wait && project.mounted.is_none() {
        return Err(ErrorBody::new(
            ErrorCode::NotMounted,
            "nothing is mounted here, so nothing will happen to wait for",
        ));
    }
    let wait = match request.wait {
        true => request.timeout_seconds.map_or(EVENT_WAIT_MAX, Duration::from_secs).min(EVENT_WAIT_MAX),
        false => Duration::ZERO,
    };
    let since = request.since.unwrap_or_default();
    let limit = request.limit.unwrap_or(EVENTS_MAX).min(EVENTS_MAX);
    let store = project.overlay.store();
    // Noted before and after reading, so that events that come in between are not purged either.
    let note = |told| {
        if request.wait {
            store.note_follower((asker.pid, asker.uid), since, told)
        }
    };
    note(since);
    let found = store.events_after(since, limit, wait).map_err(failed)?;
    let over = found.is_none();
    let mut events = found.unwrap_or_default();
    let seq = events.last().map_or(since, |event| event.seq);
    note(seq);
    events.retain(|event| request.session.is_none() || request.session == event.session);
    Ok(Reply::Events(EventsReply { events, seq, over }))
}

fn external(request: &Request, project: &Project) -> Result<Reply> {
    let filter = Filter::of(&request.targets)?;
    let looked = project.overlay.external_paths();
    let notices = answers::unseen(&looked).into_iter().collect();
    let mut external = answers::external(looked, &answers::held_rows(project));
    external.retain(|external| filter.wants(Some(&external.path), |_| false));
    let page = page(external, request.offset, request.limit);
    Ok(Reply::External(ExternalReply { external: page.entries, next: page.next, notices }))
}

/// Works on a mounted project while programs go on, and on a state directory that recovery has just repaired.
fn fsck(request: &Request, project: &Project) -> Result<Reply> {
    let (faults, checked) = project
        .overlay
        .check()
        .map_err(|err| ErrorBody::new(ErrorCode::Io, format!("the state could not be checked: {err}")))?;
    let problem =
        |fault: Fault| Problem { kind: fault.kind.name().to_owned(), about: fault.about, message: fault.message };
    let page = page(faults.into_iter().map(problem).collect(), request.offset, request.limit);
    Ok(Reply::Fsck(FsckReply { problems: page.entries, checked, next: page.next }))
}

/// Settings and rules that cannot be used leave the old ones in force.
fn reload(request: &Request, project: &Project) -> Result<Reply> {
    let policy = project
        .overlay
        .read_rules(&project.source)
        .map_err(|err| ErrorBody::new(ErrorCode::BadRequest, format!("nothing was reloaded: {err}")))?;
    let ignored = policy.notices.iter().map(|notice| answers::untrusted(notice));
    let notices = ignored.chain(policy.git_notice()).collect();
    let project_file = request.dry_run.then(|| answers::project_file(&policy, &project.source)).flatten();
    if !request.dry_run {
        project.overlay.set_policy(policy).map_err(|err| {
            let open = "reloaded, but what was open may be written past the new rules";
            ErrorBody::new(ErrorCode::Io, format!("{open}: {err}"))
        })?;
    }
    Ok(Reply::Reload(ReloadReply { notices, project_file, dry_run: request.dry_run }))
}

fn flush(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let wait = match writers_wait(request).or(request.wait.then_some(WRITERS_WAIT)) {
        // A permission program would wait for its own answer.
        None if project.overlay.is_asked(asker.pid) => Some(Duration::ZERO),
        wait => wait,
    };
    let outcomes = project.overlay.flush_all(wait)?;
    Ok(Reply::Flush(FlushReply { outcomes, more: 0, writers: project.overlay.unjudged() }))
}

/// The time that the request sets, if any.
fn writers_wait(request: &Request) -> Option<Duration> {
    request.timeout_seconds.map(|seconds| Duration::from_secs(seconds).min(WRITERS_WAIT_MAX))
}

/// Does everything but the unmounting itself: the deliverer of this answer asks for that afterwards.
fn unmount(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let Some(mounted) = &project.mounted else {
        let message = format!("{} is not mounted", project.path.display());
        return Err(ErrorBody::new(ErrorCode::NotMounted, message));
    };
    // Not by `force` either. A view of runs is not taken away by its path.
    if let Some(&number) = mounted.number.get().filter(|_| mounted.keeper.is_none()) {
        check_nothing_over(&mounted.mountpoint, number)?;
    }
    check_nobody_runs(request, project)?;
    if !request.dry_run {
        wait_for_writers(request, project)?;
    }
    let outcomes = held_at_unmount(request, asker, project)?;
    let removed = answers::removed(project);
    let mut held = if removed.is_lost { Vec::new() } else { answers::all_held(project)? };
    if request.dry_run {
        // Changes that would be confirmed or discarded would no longer wait.
        held.retain(|held| outcomes.iter().all(|outcome| outcome.id.as_ref() != Some(&held.id)));
    }
    let held_count = held.len() as u64;
    // After the unmount nobody is left to ask for the next page.
    let held = page(held, 0, None).entries;
    let notices = removed.told.into_iter().chain(unjudged_told(request, project)).collect();
    if request.force && !request.dry_run {
        project.overlay.leave_judgings();
    }
    Ok(Reply::Unmount(UnmountReply { outcomes, more: 0, held, held_count, notices, dry_run: request.dry_run }))
}

/// A run's programs would lose the view under their feet. `force` shuts it to them, as it lies over the
/// project in their own namespaces; a run in the daemon's namespace (an ordinary user's beside a mount) would
/// find the project there instead.
fn check_nobody_runs(request: &Request, project: &Project) -> Result<()> {
    let runs = project.overlay.runs().live();
    // With a runs-only view no run is among us, but this daemon may be a child of the first runner and look like one.
    let has_own_view = project.mounted.as_ref().is_some_and(|mounted| mounted.keeper.is_some());
    let among_us = runs.iter().find(|run| !has_own_view && runs::is_among_us(run));
    let (run, way_out) = match (among_us, runs.first()) {
        (Some(run), _) => (run, "it would find the project in the view's place; end it first"),
        (None, Some(run)) if !request.force => (run, "--force shuts its view"),
        (None, _) => return Ok(()),
    };
    let message = format!("a run goes on (pid {}): {}; {way_out}", run.runner, run.command);
    Err(ErrorBody::new(ErrorCode::Busy, message))
}

fn wait_for_writers(request: &Request, project: &Project) -> Result<()> {
    let timeout = writers_wait(request).unwrap_or(WRITERS_WAIT);
    project.overlay.flush_all(Some(if request.force { Duration::ZERO } else { timeout }))?;
    let writers = project.overlay.writers();
    match writers.first() {
        Some(writer) if !request.force => {
            let why = still_writing(writer);
            Err(ErrorBody::new(ErrorCode::Busy, format!("{why}; --force does not wait")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns a notice for each file whose writer is not waited for, and which is therefore not held yet; or, where nothing
/// is done, whose writer would be.
fn unjudged_told(request: &Request, project: &Project) -> Vec<String> {
    let (what, of_more) = match (request.force, request.dry_run) {
        (true, _) => ("it will be held as interrupted", "so will"),
        (false, true) => ("the unmount waits for it", "and for"),
        (false, false) => return Vec::new(),
    };
    let unjudged = project.overlay.unjudged();
    let told = unjudged.iter().take(UNJUDGED_TOLD_MAX);
    let more = unjudged.len().saturating_sub(UNJUDGED_TOLD_MAX);
    let mut notices: Vec<String> = told.map(|writer| format!("{}: {what}", still_writing(writer))).collect();
    notices.extend((more > 0).then(|| format!("{of_more} {more} more")));
    notices
}

fn still_writing(WritingNow { path, pid }: &WritingNow) -> String {
    match pid {
        0 => format!("{path} is not judged yet"),
        pid => format!("{} is still writing {path}", process::shown(*pid)),
    }
}

fn held_at_unmount(request: &Request, asker: &Asker, project: &Project) -> Result<Vec<Outcome>> {
    let unasked = ConfirmHow::unasked(review(request, asker, project), Merging::Allowed);
    let how = ConfirmHow { wait: !request.force, ..unasked };
    looking_again(|| {
        let all = answers::held_rows(project);
        match request.held {
            HeldAtUnmount::Keep => Ok(Vec::new()),
            HeldAtUnmount::Confirm => act(&all, |ids| project.overlay.confirm(ids, &how)),
            HeldAtUnmount::Discard => act(&all, |ids| project.overlay.discard(ids, &how.review)),
        }
    })
}

fn version(project: &Project) -> VersionReply {
    VersionReply {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: VERSION,
        daemon: None,
        pid: project.mounted.as_ref().map(|_| std::process::id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RelPath;

    #[test]
    fn what_nobody_is_known_to_write_is_not_said_to_be_written() {
        let told = |pid| still_writing(&WritingNow { path: RelPath::parse(b"a").unwrap(), pid });
        assert_eq!(told(0), "a is not judged yet");
        assert!(told(std::process::id()).ends_with(&format!(" (pid {}) is still writing a", std::process::id())));
    }
}
