//! One request, one response.

use std::collections::HashSet;
use std::time::Duration;

use super::answers::{self, HeldRow, failed};
use super::find::{Identified, Known, Live, find, glob_of, path_glob};
use super::read::Receipt;
use super::{Asker, Project};
use super::{blame, check, patch, read, rights, runs};
use crate::diff::Unreadable;
use crate::model::{ChangeId, OperationId, RelPath};
use crate::overlay::{ConfirmHow, Expiry, Members, Policy, Review, RollbackHow, UndoHow, no_such_operation};
use crate::protocol::{
    Acted, BackupsReply, ChangeDiff, CheckPhase, Cut, DiffCut, DiffReply, DiffText, ErrorBody, ErrorCode, Event,
    EventName, EventsReply, ExternalReply, FlushReply, FsckReply, HeldAtUnmount, LogReply, Op, Outcome, Problem,
    ReloadReply, Reply, Request, Response, ReviewReply, Target, UnmountReply, VERSION, VersionReply, page,
};
use crate::store::{Backup, Depth, EventDraft, Fault, Verdict};

/// How long `flush` and `unmount` wait for writers unless told otherwise. Long enough for a build to finish a file,
/// short enough that a person does not take it for a hang.
const WRITERS_WAIT: Duration = Duration::from_secs(10);
/// How long they wait at most, whatever is asked for: no writer is waited for longer than a day, and no clock ends before.
const WRITERS_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How long `events` waits at most for one to happen. Then the asker asks again, and who has gone holds no thread of ours.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Events that one answer tells at most, where they fit: some 2 MiB of the 8, unless paths are long.
const EVENTS_MAX: u64 = 2000;

/// Held changes that the answer to a request for review tells of; all are `status`'s to tell.
const HELD_TOLD_MAX: usize = 200;
/// Changes that joined an operation since it was shown, of which a refusal tells.
const LATE_TOLD_MAX: usize = 20;
/// Characters of such a request that an event repeats.
const REVIEW_CHARS_MAX: usize = 1000;

type Result<T> = std::result::Result<T, ErrorBody>;

/// An answer, and what it means that it has been delivered.
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

/// What is read-only, by its mount or after a fault, has nothing landed or dropped; it can still be unmounted.
fn check_writable(request: &Request, project: &Project) -> Result<()> {
    let acts = match request.op {
        Op::Confirm | Op::Discard | Op::Rollback | Op::Undo | Op::Patch => true,
        Op::Unmount => request.held != HeldAtUnmount::Keep,
        Op::Status | Op::Diff | Op::Backups | Op::Log | Op::Blame | Op::Events | Op::External | Op::Fsck => false,
        Op::Reload | Op::Read | Op::Meter | Op::RequestReview | Op::Flush | Op::Run | Op::Leave | Op::Version => false,
        Op::Check => request.phase == Some(CheckPhase::Promote),
    };
    match project.overlay.fault().filter(|_| acts) {
        Some(why) => {
            Err(ErrorBody::new(ErrorCode::NotPermitted, format!("{}: nothing can be changed: {why}", request.op)))
        }
        None => Ok(()),
    }
}

fn answer(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    match request.op {
        Op::Status => status(request, asker, project),
        Op::Diff => diff(request, asker, project),
        Op::Confirm => confirm(request, asker, project).map(Reply::Confirm),
        Op::Discard => discard(request, asker, project).map(Reply::Discard),
        Op::Rollback => rollback(request, asker, project).map(Reply::Rollback),
        Op::Undo => undo(request, asker, project).map(Reply::Undo),
        Op::Backups => backups(request, project),
        Op::Log => log(request, project),
        Op::Blame => blame::blame(request, asker, project),
        Op::Events => events(request, asker, project),
        Op::External => external(request, project),
        Op::Fsck => fsck(request, project),
        Op::Reload => reload(request, project),
        Op::Flush => flush(request, project),
        Op::Unmount => unmount(request, asker, project),
        Op::Run => runs::begin(request, asker, project),
        Op::Leave => runs::leave(asker, project),
        Op::Version => Ok(Reply::Version(version(project))),
        Op::Meter => read::meter(request, asker, project),
        Op::Patch => patch::patch(request, asker, project),
        Op::Check => check::check(request, asker, project),
        Op::RequestReview => request_review(request, asker, project),
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

/// Who may confirm what is shown has had his fresh look with it (SPEC §8).
fn diff(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    project.overlay.settle_pending();
    let (members, reply, as_held) = looking_again(|| {
        let members = members_beside(request, project)?;
        let (reply, as_held) = diffs(request, asker, project)?;
        Ok((members, reply, as_held))
    })?;
    if rights::may_change(asker, project) {
        let shown = reply.changes.iter().map(|change| &change.held.id).filter(|id| as_held.contains(id));
        project.overlay.note_shown(&members, shown, Depth::Compared);
    }
    Ok(Reply::Diff(reply))
}

/// All of the operations of which a request names something.
fn members_beside(request: &Request, project: &Project) -> Result<Members> {
    let chosen = chosen(request, project, Unnamed::All)?;
    let operations: HashSet<OperationId> = chosen.iter().filter_map(|row| row.held().operation).collect();
    match operations.is_empty() {
        true => Ok(Members::new()),
        false => Ok(project.overlay.members(|operation| operations.contains(&operation))),
    }
}

/// A diff, and whether it is of what the change's id stands for.
struct Looked {
    change: ChangeDiff,
    is_as_held: bool,
}

/// A page, and which of its diffs are of what their ids stand for.
fn diffs(request: &Request, asker: &Asker, project: &Project) -> Result<(DiffReply, HashSet<ChangeId>)> {
    let (readable, closed): (Vec<HeldRow>, Vec<HeldRow>) = chosen(request, project, Unnamed::All)?
        .into_iter()
        .partition(|row| rights::may_read(asker, project, row.row()));
    if let Some(row) = closed.first().filter(|_| !request.targets.is_empty()) {
        let message = format!("{}: you may not read this file", row.id());
        return Err(ErrorBody::new(ErrorCode::NotPermitted, message).about(row.id().as_str()));
    }
    let unreadable = if request.binary { Unreadable::Whole } else { Unreadable::Named };
    let (mut page, mut as_held) = (DiffCut::new(request.offset, request.limit), HashSet::new());
    for row in readable {
        if page.is_full() {
            break;
        }
        let looked = looked_at(&row, unreadable, asker, project)?;
        if looked.is_as_held {
            as_held.insert(row.id().clone());
        }
        page.take(looked.change);
    }
    Ok((page.into_page(), as_held))
}

fn looked_at(row: &HeldRow, unreadable: Unreadable, asker: &Asker, project: &Project) -> Result<Looked> {
    let looked = answers::diff(project, row, unreadable).and_then(|diff| Ok((answers::held(project, row)?, diff)));
    let is_as_held = matches!(&looked, Ok((_, diff)) if diff.is_as_held);
    if !is_as_held && answers::held_row(project, row.id()).is_none() {
        return Err(no_longer_held(row));
    }
    let (mut held, diff) = looked?;
    if is_as_held && rights::may_change(asker, project) {
        project.overlay.renew(row.id())?;
        held.expired = false;
    }
    Ok(Looked { change: ChangeDiff { held, text: DiffText(diff.text) }, is_as_held })
}

fn confirm(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    let how = ConfirmHow {
        force: request.force,
        wait: request.wait,
        renew: request.renew,
        review: review(request, asker, project),
        expiry: Expiry::Guard,
    };
    act_on_chosen(request, project, |chosen| {
        if !request.renew {
            check_fresh(request, chosen, project)?;
        }
        match parted(request, chosen)? {
            Some(id) => project.overlay.confirm_hunks(id, &request.hunks, &how),
            None => act(chosen, |ids| project.overlay.confirm(ids, &how)),
        }
    })
}

/// Tells who follows the events that somebody waits for a decision. Nothing changes by it, so it is anybody's who could
/// make an event by writing a file.
fn request_review(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    if !rights::may_record(asker, project) {
        let message = "request_review: only who may write in the project asks for a review of it";
        return Err(ErrorBody::new(ErrorCode::NotPermitted, message));
    }
    project.overlay.settle_pending();
    let chosen = chosen(request, project, Unnamed::All)?;
    if !chosen.is_empty() {
        note_review_requested(request, &chosen, asker, project)?;
    }
    let held_count = chosen.len() as u64;
    let held = chosen.iter().take(HELD_TOLD_MAX).map(|row| answers::held(project, row)).collect::<Result<_>>()?;
    Ok(Reply::RequestReview(ReviewReply { held, held_count, may_confirm: rights::may_change(asker, project) }))
}

fn note_review_requested(request: &Request, chosen: &[HeldRow], asker: &Asker, project: &Project) -> Result<()> {
    let what = match chosen.len() {
        1 => "1 held change".to_owned(),
        count => format!("{count} held changes"),
    };
    let why = request.name.iter().flat_map(|why| [": ", why.as_str()]).flat_map(str::chars);
    let message: String = what.chars().chain(why).take(REVIEW_CHARS_MAX).collect();
    let event = EventDraft::new(EventName::ReviewRequested).with(|event| {
        event.session = Some(project.overlay.session().to_owned());
        if let [row] = chosen {
            (event.id, event.path) = (Some(row.id().to_string()), row.row().names.first().cloned());
        }
        event.message = Some(message);
        (event.pid, event.uid) = (Some(asker.pid), Some(asker.uid));
    });
    project.overlay.store().record(&event).map_err(failed)
}

fn review(request: &Request, asker: &Asker, project: &Project) -> Review {
    Review { by: project.overlay.asker(asker.pid, asker.uid), dry_run: request.dry_run }
}

fn discard(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    let review = review(request, asker, project);
    act_on_chosen(request, project, |chosen| match parted(request, chosen)? {
        Some(id) => project.overlay.discard_hunks(id, &request.hunks, &review),
        None => act(chosen, |ids| project.overlay.discard(ids, &review)),
    })
}

fn act_on_chosen(
    request: &Request,
    project: &Project,
    work: impl Fn(&[HeldRow]) -> Result<Vec<Outcome>>,
) -> Result<Acted> {
    project.overlay.settle_pending();
    let outcomes = looking_again(|| {
        let members = if request.dry_run { members_beside(request, project)? } else { Members::new() };
        let chosen = chosen(request, project, Unnamed::Refused)?;
        check_as_shown(request, &chosen, project)?;
        let outcomes = work(&chosen)?;
        // Who tries it is told what it would do.
        project.overlay.note_shown(&members, outcomes.iter().filter_map(|outcome| outcome.id.as_ref()), Depth::Listed);
        Ok(outcomes)
    })?;
    Ok(Acted { outcomes, more: 0, dry_run: request.dry_run })
}

/// How often names are looked up because what they meant became something else meanwhile.
const LOOKUPS_MAX: usize = 8;

/// A change that was chosen and is gone when its turn comes (its writer made another of it) is looked up again: its path
/// means what it became, its id answers `superseded`.
fn looking_again<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    let mut lookups = 1;
    loop {
        match work() {
            Err(err) if err.code == ErrorCode::UnknownId && lookups < LOOKUPS_MAX => lookups += 1,
            done => return done,
        }
    }
}

fn no_longer_held(row: &HeldRow) -> ErrorBody {
    let message = format!("{}: it became another change meanwhile; ask again", row.id());
    ErrorBody::new(ErrorCode::UnknownId, message).about(row.id().as_str())
}

fn act(rows: &[HeldRow], work: impl FnOnce(&[ChangeId]) -> Result<Vec<Outcome>>) -> Result<Vec<Outcome>> {
    let ids: Vec<_> = rows.iter().map(|row| row.id().clone()).collect();
    if ids.is_empty() { Ok(Vec::new()) } else { work(&ids) }
}

/// The one change of which hunks are meant; none where changes are meant as a whole.
fn parted<'a>(request: &Request, chosen: &'a [HeldRow]) -> Result<Option<&'a ChangeId>> {
    match (request.hunks.as_slice(), chosen) {
        ([], _) => Ok(None),
        (_, [row]) => Ok(Some(row.id())),
        (_, rows) => {
            let message = format!("hunks are numbered within one change, and {} are named", rows.len());
            Err(ErrorBody::new(ErrorCode::BadRequest, message))
        }
    }
}

/// A person confirms what was looked at a moment ago, or looks again.
fn check_fresh(request: &Request, chosen: &[HeldRow], project: &Project) -> Result<()> {
    let expired: Vec<_> = chosen.iter().filter_map(|row| Some((row, project.overlay.expired(row.held())?))).collect();
    if !request.dry_run {
        project.overlay.tell_expired(expired.iter().map(|(row, _)| row.row()));
    }
    match expired.first() {
        None => Ok(()),
        Some(_) if request.all => {
            let message = format!("{} of {} held changes expired; nothing was applied", expired.len(), chosen.len());
            Err(ErrorBody::new(ErrorCode::Expired, message))
        }
        Some((row, expired)) => {
            let body = ErrorBody::new(ErrorCode::Expired, format!("{} {expired}", row.id())).about(row.id().as_str());
            Err(ErrorBody { path: row.row().names.first().cloned(), ..body })
        }
    }
}

/// An operation that is named is what was shown of it, for its name stays while more joins it (SPEC §8).
fn check_as_shown(request: &Request, chosen: &[HeldRow], project: &Project) -> Result<()> {
    let named = request.targets.iter().filter_map(|target| target.id.as_deref()).chain(request.operation.as_deref());
    named.filter_map(OperationId::parse).try_for_each(|operation| {
        let is_late =
            |row: &&HeldRow| row.held().operation == Some(operation) && project.overlay.is_late(operation, row.id());
        let late: Vec<&HeldRow> = chosen.iter().filter(is_late).collect();
        if late.is_empty() { Ok(()) } else { Err(not_as_shown(operation, &late)) }
    })
}

fn not_as_shown(operation: OperationId, late: &[&HeldRow]) -> ErrorBody {
    let what = match late.len() {
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    let message = format!("{operation} is not what was shown of it: {what} came or became another since");
    let told = late.iter().take(LATE_TOLD_MAX).map(|row| format!("{}  {}\n", row.id(), row.row().names[0]));
    let more = late.len().saturating_sub(LATE_TOLD_MAX);
    let detail: String = told.chain((more > 0).then(|| format!("and {more} more\n"))).collect();
    let error = ErrorBody::new(ErrorCode::Superseded, message).about(operation.to_string());
    ErrorBody { detail: Some(detail.into_boxed_str()), ..error }
}

/// What a request means that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unnamed {
    All,
    Refused,
}

fn chosen(request: &Request, project: &Project, unnamed: Unnamed) -> Result<Vec<HeldRow>> {
    let operation = request.operation.as_ref();
    let operation = operation.map(|id| Target { id: Some(id.clone()), path: None, glob: None });
    let targets: Vec<Target> = request.targets.iter().cloned().chain(operation).collect();
    match (request.all, targets.is_empty(), unnamed) {
        (true, true, _) | (false, true, Unnamed::All) => Ok(answers::held_rows(project)),
        (true, false, _) => Err(ErrorBody::new(ErrorCode::BadRequest, "`all` and names at once")),
        (false, true, Unnamed::Refused) => {
            Err(ErrorBody::new(ErrorCode::BadRequest, format!("{} of what? Name ids or paths, or all", request.op)))
        }
        (false, false, _) => find(&targets, project),
    }
}

impl Identified for HeldRow {
    fn id(&self) -> &ChangeId {
        HeldRow::id(self)
    }
}

impl Known for Project {
    type Change = HeldRow;

    fn within(&self, path: &RelPath) -> Vec<HeldRow> {
        answers::held_within(self, path)
    }

    fn held_as(&self, id: &ChangeId) -> Option<HeldRow> {
        answers::held_row(self, id)
    }

    fn held(&self, wanted: &dyn Fn(Live<'_>) -> bool) -> Vec<HeldRow> {
        answers::held_rows_where(self, |row, held| {
            wanted(Live { id: &held.id, names: &row.names, operation: held.operation })
        })
    }

    fn verdict(&self, prefix: &ChangeId) -> Result<Option<Verdict>> {
        let store = self.overlay.store();
        match store.verdict(prefix).map_err(failed)? {
            Some(verdict) => Ok(Some(verdict)),
            None => {
                self.overlay.wait_for_verdicts();
                store.verdict(prefix).map_err(failed)
            }
        }
    }

    fn exists(&self, path: &RelPath) -> bool {
        self.overlay.lower().exists(path).unwrap_or(false)
    }
}

fn rollback(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    project.overlay.settle_pending();
    let chosen = chosen_backups(request, project)?;
    if let (Some(to), [_, _, ..]) = (&request.to, chosen.as_slice()) {
        let message = format!("{} backups cannot all be put to {to}", chosen.len());
        return Err(ErrorBody::new(ErrorCode::Ambiguous, message));
    }
    let how = RollbackHow { review: review(request, asker, project), to: request.to.clone(), force: request.force };
    let outcomes = project.overlay.rollback(&chosen, &how)?;
    Ok(Acted { outcomes, more: 0, dry_run: request.dry_run })
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
    let how = UndoHow { review: review(request, asker, project), force: request.force };
    let outcomes = looking_again(|| project.overlay.undo(id, &how))?;
    Ok(Acted { outcomes, more: 0, dry_run: request.dry_run })
}

/// All that the readings mean together, each path once.
fn chosen_backups(request: &Request, project: &Project) -> Result<Vec<Backup>> {
    let by_fields = Target { id: request.name.clone(), path: request.path.clone(), glob: None };
    let readings = request.targets.iter().chain([&by_fields]).filter(|reading| **reading != Target::default());
    let all = project.overlay.store().backups().map_err(failed)?;
    let mut chosen: Vec<Backup> = Vec::new();
    let mut paths = HashSet::new();
    for reading in readings {
        let meant = backups_of(reading, &all)?;
        chosen.extend(meant.into_iter().filter(|backup| paths.insert(&backup.path)).cloned());
    }
    match chosen.is_empty() {
        true => Err(ErrorBody::new(ErrorCode::BadRequest, "rollback of what? Give a backup's name or a path")),
        false => Ok(chosen),
    }
}

/// An exact name first, then the newest backup of a path; else, of all that is in a directory or that a glob of names or
/// paths matches, the newest of each path. `all` are the newest first.
fn backups_of<'a>(reading: &Target, all: &'a [Backup]) -> Result<Vec<&'a Backup>> {
    let named = all.iter().find(|backup| Some(&backup.name) == reading.id.as_ref());
    if let Some(exact) = named.or_else(|| all.iter().find(|backup| Some(&backup.path) == reading.path.as_ref())) {
        return Ok(vec![exact]);
    }
    let filter = Filter::of(std::slice::from_ref(reading))?;
    let names = reading.id.as_deref().filter(|name| Target::is_glob(name)).map(path_glob).transpose()?;
    let is_called = |backup: &Backup| names.as_ref().is_some_and(|names| names.is_match(&backup.name));
    let mut seen = HashSet::new();
    let wanted = all.iter().filter(|backup| filter.wants(Some(&backup.path), |_| is_called(backup)));
    match wanted.filter(|backup| seen.insert(&backup.path)).collect::<Vec<_>>() {
        none if none.is_empty() => Err(no_backup(reading)),
        newest => Ok(newest),
    }
}

fn no_backup(reading: &Target) -> ErrorBody {
    let message = match reading {
        Target { id: Some(name), .. } => format!("no backup is called {name}, or of such a path"),
        Target { glob: Some(glob), .. } => format!("no backup is called {glob}, or of such a path"),
        Target { path, .. } => format!("there is no backup of {}", path.clone().unwrap_or_else(RelPath::root)),
    };
    ErrorBody {
        path: reading.path.clone().filter(|_| reading.id.is_none()),
        ..ErrorBody::new(ErrorCode::UnknownBackup, message)
    }
}

/// Lists are filtered by what is named; what matches nothing leaves them empty.
struct Filter {
    targets: Vec<(Target, Option<globset::GlobMatcher>)>,
}

impl Filter {
    fn of(targets: &[Target]) -> Result<Self> {
        let compiled = |target: &Target| Ok((target.clone(), glob_of(target)?));
        Ok(Self { targets: targets.iter().map(compiled).collect::<Result<_>>()? })
    }

    /// Whether something of this path, or of a name or id that `is_called` knows, is wanted.
    fn wants(&self, path: Option<&RelPath>, is_called: impl Fn(&str) -> bool) -> bool {
        let by_path = |target: &Target, glob: &Option<globset::GlobMatcher>| {
            path.is_some_and(|path| {
                target.path.as_ref().is_some_and(|dir| path.is_within(dir))
                    || glob.as_ref().is_some_and(|glob| glob.is_match(path.as_os_str()))
            })
        };
        self.targets.is_empty()
            || self
                .targets
                .iter()
                .any(|(target, glob)| by_path(target, glob) || target.id.as_deref().is_some_and(&is_called))
    }
}

fn backups(request: &Request, project: &Project) -> Result<Reply> {
    let filter = Filter::of(&request.targets)?;
    let names = request.name.as_deref().map(path_glob).transpose()?;
    let is_named = |backup: &Backup| {
        names.as_ref().is_none_or(|glob| request.name.as_ref() == Some(&backup.name) || glob.is_match(&backup.name))
    };
    let all = project.overlay.store().backups().map_err(failed)?;
    let wanted = all
        .into_iter()
        .filter(|backup| is_named(backup) && filter.wants(Some(&backup.path), |name| name == backup.name));
    let page = page(wanted.map(answers::backup).collect(), request.offset, request.limit);
    Ok(Reply::Backups(BackupsReply { backups: page.entries, next: page.next }))
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
    // Before and after: what comes between is not let go either.
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
    let mut external = answers::external(project)?;
    external.retain(|external| filter.wants(Some(&external.path), |_| false));
    let page = page(external, request.offset, request.limit);
    Ok(Reply::External(ExternalReply { external: page.entries, next: page.next }))
}

/// Works on the mounted project while programs go on, and on a state directory that recovery has just put right.
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
    let policy = Policy::load(project.overlay.lower(), &project.source)
        .map_err(|err| ErrorBody::new(ErrorCode::BadRequest, format!("nothing was reloaded: {err}")))?;
    let notices = policy.notices.iter().map(|notice| answers::untrusted(notice)).collect();
    let project_file = request.dry_run.then(|| answers::project_file(&policy, &project.source)).flatten();
    if !request.dry_run {
        project.overlay.set_policy(policy).map_err(|err| {
            let open = "reloaded, but a file that was open may be written past the new rules";
            ErrorBody::new(ErrorCode::Io, format!("{open}: {err}"))
        })?;
    }
    Ok(Reply::Reload(ReloadReply { notices, project_file }))
}

fn flush(request: &Request, project: &Project) -> Result<Reply> {
    let wait = writers_wait(request).or(request.wait.then_some(WRITERS_WAIT));
    let outcomes = project.overlay.flush_all(wait)?;
    Ok(Reply::Flush(FlushReply { outcomes, more: 0, writers: project.overlay.unjudged() }))
}

/// As long as was asked for, if anything was.
fn writers_wait(request: &Request) -> Option<Duration> {
    request.timeout_seconds.map(|seconds| Duration::from_secs(seconds).min(WRITERS_WAIT_MAX))
}

/// Does everything but the unmounting itself, which whoever delivers this answer asks for afterwards.
fn unmount(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    if project.mounted.is_none() {
        let message = format!("{} is not mounted", project.path.display());
        return Err(ErrorBody::new(ErrorCode::NotMounted, message));
    }
    check_nobody_runs(request, project)?;
    if !request.dry_run {
        wait_for_writers(request, project)?;
    }
    let outcomes = held_at_unmount(request, asker, project)?;
    let removed = answers::removed(project);
    let held = if removed.is_lost { Vec::new() } else { answers::all_held(project)? };
    let held_count = held.len() as u64;
    // Nobody is there to be asked for the next page.
    let held = page(held, 0, None).entries;
    let notices = removed.told.into_iter().collect();
    Ok(Reply::Unmount(UnmountReply { outcomes, more: 0, held, held_count, notices, dry_run: request.dry_run }))
}

/// Their programs would lose the view under their feet. By force it is shut to them, for it lies over the project in
/// namespaces of their own; who is in ours (an ordinary user's run beside a mount) would find the project in its place.
fn check_nobody_runs(request: &Request, project: &Project) -> Result<()> {
    let runs = project.overlay.runs().live();
    let among_us = runs.iter().find(|run| runs::is_among_us(run));
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
    project.overlay.flush_all((!request.force).then_some(timeout))?;
    let writers = project.overlay.writers();
    match writers.first() {
        Some(writer) if !request.force => {
            let message = format!("pid {} is still writing {}; --force does not wait", writer.pid, writer.path);
            Err(ErrorBody::new(ErrorCode::Busy, message))
        }
        Some(_) | None => Ok(()),
    }
}

fn held_at_unmount(request: &Request, asker: &Asker, project: &Project) -> Result<Vec<Outcome>> {
    let all = answers::held_rows(project);
    let how = ConfirmHow {
        force: false,
        wait: !request.force,
        renew: false,
        review: review(request, asker, project),
        expiry: Expiry::Ignore,
    };
    match request.held {
        HeldAtUnmount::Keep => Ok(Vec::new()),
        HeldAtUnmount::Confirm => act(&all, |ids| project.overlay.confirm(ids, &how)),
        HeldAtUnmount::Discard => act(&all, |ids| project.overlay.discard(ids, &review(request, asker, project))),
    }
}

fn version(project: &Project) -> VersionReply {
    VersionReply {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: VERSION,
        daemon: None,
        pid: project.mounted.as_ref().map(|_| std::process::id()),
    }
}
