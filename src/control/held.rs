//! Held changes: finding those that are named, showing what they would do, and deciding about them.

use std::collections::{BTreeSet, HashSet};

use super::answers::{self, HeldRow, failed};
use super::find::{Identified, Known, Live, find};
use super::{Asker, Project, rights};
use crate::diff::Unreadable;
use crate::model::{ChangeId, OperationId, RelPath, plural};
use crate::overlay::{ConfirmHow, Expiry, Members, Merging, Review};
use crate::protocol::{
    Acted, Action, ChangeDiff, DiffCut, DiffReply, DiffText, ErrorBody, ErrorCode, EventName, Outcome, Reply, Request,
    ReviewReply, Target,
};
use crate::store::{Depth, Verdict};

type Result<T> = std::result::Result<T, ErrorBody>;

/// The most characters of a review request that an event repeats.
const REVIEW_CHARS_MAX: usize = 1000;

/// Showing a diff to an asker who may confirm counts as a fresh look at the change (SPEC §8).
pub fn diff(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
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

/// Returns the members of every operation that has a change named in the request.
fn members_beside(request: &Request, project: &Project) -> Result<Members> {
    let chosen = chosen(request, project, Unnamed::All)?;
    let operations: HashSet<OperationId> = chosen.iter().filter_map(|row| row.held().operation).collect();
    match operations.is_empty() {
        true => Ok(Members::new()),
        false => Ok(project.overlay.members(|operation| operations.contains(&operation))),
    }
}

/// A diff, and whether its new side is the content that the change's id stands for.
struct Looked {
    change: ChangeDiff,
    is_as_held: bool,
}

/// Returns a page, and which of its diffs show what their ids stand for.
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
    if request.told.is_some_and(|told| told != page.before()) {
        let message = "what is held has changed since the page before was told: ask again from the first";
        return Err(ErrorBody::new(ErrorCode::Busy, message));
    }
    Ok((page.into_page(), as_held))
}

fn looked_at(row: &HeldRow, unreadable: Unreadable, asker: &Asker, project: &Project) -> Result<Looked> {
    let looked = answers::diff(project, row, unreadable).and_then(|diff| Ok((answers::held(project, row)?, diff)));
    let is_as_held = matches!(&looked, Ok((_, diff)) if diff.is_as_held);
    // The same change may have been written once more, and be another entry's by now.
    let stands = || answers::held_row(project, row.id()).is_some_and(|now| now.row().id == row.row().id);
    if !is_as_held && !stands() {
        return Err(no_longer_held(row));
    }
    let (mut held, diff) = looked?;
    if is_as_held && rights::may_change(asker, project) {
        project.overlay.renew(row.id())?;
        held.expired = false;
    }
    Ok(Looked { change: ChangeDiff { held, text: DiffText(diff.text) }, is_as_held })
}

pub fn confirm(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    let how = ConfirmHow {
        force: request.force,
        wait: request.wait,
        review: review(request, asker, project),
        expiry: if request.renew { Expiry::Ignore } else { Expiry::Guard },
        merging: Merging::Allowed,
    };
    act_on_chosen(request, project, |chosen| {
        let (chosen, waiting) = landing_together(request, chosen, project);
        if !request.renew {
            check_fresh(request, &chosen, project)?;
        }
        let outcomes = match parted(request, &chosen)? {
            Some(id) => project.overlay.confirm_hunks(id, &request.hunks, &how)?,
            None => act(&chosen, |ids| project.overlay.confirm(ids, &how))?,
        };
        let spent = outcomes.iter().filter(|outcome| outcome.action == Action::Discarded).map(nothing_left);
        let notices = waiting.iter().map(waits_on).chain(spent).collect();
        Ok(Acted { outcomes, notices, ..Acted::default() })
    })
}

/// Says of a change that a confirm did not land why it did not.
fn nothing_left(outcome: &Outcome) -> String {
    let id = outcome.id.as_ref().map_or("it", ChangeId::as_str);
    format!(
        "{}: nothing of {id} is left to apply: merged with what others have made below, it is what is there already. \
         What was held becomes a backup, as by a discard",
        outcome.path
    )
}

/// Splits the chosen changes into those that can land and those that must wait. Naming an operation does not name the
/// directories it removed: if another deletion is still held in one of them, the rest of the operation lands without it.
fn landing_together(request: &Request, chosen: &[HeldRow], project: &Project) -> (Vec<HeldRow>, Vec<HeldRow>) {
    let is_operation = |target: &Target| target.id.as_deref().and_then(OperationId::parse).is_some();
    let all = || chosen.iter().cloned();
    if !request.targets.iter().all(is_operation) {
        return (all().collect(), Vec::new());
    }
    let ids: HashSet<&ChangeId> = chosen.iter().map(HeldRow::id).collect();
    let (waiting, landing): (Vec<_>, Vec<_>) = all().partition(|row| project.overlay.waits_for_more(row.row(), &ids));
    // If nothing can land, all of it goes on, to be refused with what it waits for.
    if landing.is_empty() { (waiting, landing) } else { (landing, waiting) }
}

fn waits_on(row: &HeldRow) -> String {
    format!("{} waits on: what is not of this is held as deleted in it", row.row().path())
}

/// Records an event, so that followers learn that someone waits for a decision. This changes nothing, so every asker may
/// do it who could cause an event by writing a file.
pub fn request_review(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
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
    let held =
        chosen.iter().take(answers::HELD_TOLD_MAX).map(|row| answers::held(project, row)).collect::<Result<_>>()?;
    Ok(Reply::RequestReview(ReviewReply { held, held_count, may_confirm: rights::may_change(asker, project) }))
}

fn note_review_requested(request: &Request, chosen: &[HeldRow], asker: &Asker, project: &Project) -> Result<()> {
    let what = plural(chosen.len() as u64, "held change");
    let why = request.name.iter().flat_map(|why| [": ", why.as_str()]).flat_map(str::chars);
    let message: String = what.chars().chain(why).take(REVIEW_CHARS_MAX).collect();
    let event = answers::asked_event(EventName::ReviewRequested, message, asker, project).with(|event| {
        if let [row] = chosen {
            (event.id, event.path) = (Some(row.id().to_string()), row.row().names.first().cloned());
        }
    });
    project.overlay.store().record(&event).map_err(failed)
}

pub fn review(request: &Request, asker: &Asker, project: &Project) -> Review {
    Review { by: project.overlay.asker(asker.pid, asker.uid), dry_run: request.dry_run }
}

pub fn discard(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    let review = review(request, asker, project);
    act_on_chosen(request, project, |chosen| {
        let outcomes = match parted(request, chosen)? {
            Some(id) => project.overlay.discard_hunks(id, &request.hunks, &review)?,
            None => act(chosen, |ids| project.overlay.discard(ids, &review))?,
        };
        Ok(Acted { outcomes, ..Acted::default() })
    })
}

fn act_on_chosen(request: &Request, project: &Project, work: impl Fn(&[HeldRow]) -> Result<Acted>) -> Result<Acted> {
    project.overlay.settle_pending();
    let acted = looking_again(|| {
        let members = if request.dry_run { members_beside(request, project)? } else { Members::new() };
        let chosen = chosen(request, project, Unnamed::Refused)?;
        check_as_shown(request, &chosen, project)?;
        let acted = work(&chosen)?;
        // A dry run shows the asker what would be done.
        let told = acted.outcomes.iter().filter_map(|outcome| outcome.id.as_ref());
        project.overlay.note_shown(&members, told, Depth::Listed);
        Ok(acted)
    })?;
    Ok(Acted { dry_run: request.dry_run, ..acted })
}

/// How many times names are looked up again because what they meant has changed meanwhile.
const LOOKUPS_MAX: usize = 8;

/// A chosen change may be gone when its turn comes, because its writer made another of it. It is looked up again: its
/// path then means the new change, its id answers `superseded`.
pub fn looking_again<T>(work: impl Fn() -> Result<T>) -> Result<T> {
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

pub fn act(rows: &[HeldRow], work: impl FnOnce(&[ChangeId]) -> Result<Vec<Outcome>>) -> Result<Vec<Outcome>> {
    let ids: Vec<_> = rows.iter().map(|row| row.id().clone()).collect();
    if ids.is_empty() { Ok(Vec::new()) } else { work(&ids) }
}

/// The one change whose hunks are meant; `None` if the changes are meant as a whole.
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

/// A person confirms only what was shown recently; otherwise a fresh look is needed.
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

/// Naming an operation means what was shown of it, because its name stays the same while more changes join it (SPEC §8).
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
    let what = plural(late.len() as u64, "change");
    let message = format!("{operation} is not what was shown of it: {what} came or became another since");
    let error = ErrorBody::new(ErrorCode::Superseded, message).about(operation.to_string());
    error.telling(late.iter().map(|row| (row.id(), row.row().path())))
}

/// The meaning of a request that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unnamed {
    All,
    Refused,
}

fn chosen(request: &Request, project: &Project, unnamed: Unnamed) -> Result<Vec<HeldRow>> {
    let operation = request.operation.clone().map(Target::id);
    let targets: Vec<Target> = request.targets.iter().cloned().chain(operation).collect();
    if let Some(session) = &request.session {
        return match (request.all, targets.is_empty()) {
            (false, true) => Ok(begun_in(session, project)),
            _ => Err(ErrorBody::new(ErrorCode::BadRequest, "`session` and `all` or names at once")),
        };
    }
    match (request.all, targets.is_empty(), unnamed) {
        (true, true, _) | (false, true, Unnamed::All) => Ok(answers::held_rows(project)),
        (true, false, _) => Err(ErrorBody::new(ErrorCode::BadRequest, "`all` and names at once")),
        (false, true, Unnamed::Refused) => {
            Err(ErrorBody::new(ErrorCode::BadRequest, format!("{} of what? Name ids or paths, or all", request.op)))
        }
        (false, false, _) => find(&targets, project),
    }
}

/// The changes whose hold a session began, no matter who has written to them since.
fn begun_in(session: &str, project: &Project) -> Vec<HeldRow> {
    answers::held_rows_where(project, |_, held| held.since_session.as_deref() == Some(session))
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

    fn ids_beginning_with(&self, digits: &ChangeId) -> BTreeSet<ChangeId> {
        self.overlay.ids_beginning_with(digits)
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
