//! Puts what the overlay and the store report into the words of the protocol.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Asker, Mounted, Project, rights};
use crate::diff::{FileContent, FileDiff, FileSide, Unreadable, unified};
use crate::model::{ChangeId, RelPath};
use crate::overlay::{self, LookedAt, Policy, RuleSource, ShownContent, SideContent, Sides};
use crate::protocol::{
    Also, Backup, Counters, Counts, Cut, ErrorBody, ErrorCode, EventName, External, Held, ProjectFile, ProjectPath,
    Run, Status, Writer,
};
use crate::store::{self, Depth, EventDraft, UpperRow, What};
use crate::sys::file::Standing;

/// The most held changes that an answer lists; `status` lists all of them.
pub const HELD_TOLD_MAX: usize = 200;

/// The row of a held change.
#[derive(Clone)]
pub struct HeldRow {
    /// Invariant: `row.held` is set.
    row: UpperRow,
}

impl HeldRow {
    fn of(row: UpperRow) -> Option<Self> {
        row.held.is_some().then_some(Self { row })
    }

    pub fn row(&self) -> &UpperRow {
        &self.row
    }

    pub fn held(&self) -> &store::Held {
        self.row.held.as_ref().expect("`of` makes one only of what is held")
    }

    pub fn id(&self) -> &ChangeId {
        &self.held().id
    }
}

/// Everything held, by path.
pub fn held_rows(project: &Project) -> Vec<HeldRow> {
    of_rows(project.overlay.held_rows())
}

/// The held changes that are wanted, by path.
pub fn held_rows_where(project: &Project, wanted: impl Fn(&UpperRow, &store::Held) -> bool) -> Vec<HeldRow> {
    of_rows(project.overlay.held_rows_where(wanted))
}

/// The changes held at a path or below it, by path.
pub fn held_within(project: &Project, path: &RelPath) -> Vec<HeldRow> {
    of_rows(project.overlay.held_within(path))
}

fn of_rows(rows: Vec<UpperRow>) -> Vec<HeldRow> {
    rows.into_iter().filter_map(HeldRow::of).collect()
}

/// The change held under this exact id.
pub fn held_row(project: &Project, id: &ChangeId) -> Option<HeldRow> {
    project.overlay.held_as(id).and_then(HeldRow::of)
}

pub fn held(project: &Project, row: &HeldRow) -> Result<Held, ErrorBody> {
    let in_head = !project.overlay.in_head([&row.row]).is_empty();
    let told = described(project, row.clone())?;
    let externally_modified = is_external(project, &told.path);
    Ok(Held { in_head, externally_modified, ..told })
}

/// Fills in everything but `in_head` and `externally_modified`, which callers find out once for many changes.
fn described(project: &Project, HeldRow { row }: HeldRow) -> Result<Held, ErrorBody> {
    let structure = structure(project, &row);
    let looks = project.overlay.looks_brought(&row).map_err(failed)?;
    let held = row.held.ok_or_else(|| internal("a held change that is not held"))?;
    let expired = project.overlay.expired(&held).is_some();
    let mut names = row.names.into_iter();
    let wrote = held.writer;
    let by = wrote.as_ref().map(writer);
    let store::Writer { session, opened_by, written_by, .. } = wrote.unwrap_or_default();
    Ok(Held {
        id: held.id,
        path: names.next().ok_or_else(|| internal("a held change without a name"))?,
        kind: held.kind,
        also: Also(names.collect()),
        reason: *held.reasons.first().ok_or_else(|| internal("a held change without a reason"))?,
        detail: structure.or(held.detail),
        looks,
        insertions: held.insertions,
        deletions: held.deletions,
        old_lines: held.old_lines,
        ratio: Counts::of(held.insertions, held.deletions, held.old_lines).ratio,
        hunks: held.hunks,
        base_sha256: row.base.digest(),
        new_sha256: held.new,
        externally_modified: false,
        expired,
        operation: held.operation.map(|operation| operation.to_string()),
        writer: by,
        session,
        since_session: held.since_session,
        opened_by,
        written_by,
        created: time(held.created),
        in_head: false,
    })
}

/// Describes a change of structure, which no line of a diff shows.
fn structure(project: &Project, row: &UpperRow) -> Option<String> {
    match row.what {
        What::Dir => Some("new directory".to_owned()),
        What::Node => {
            project.overlay.store().upper_meta(row.id).ok().map(|meta| format!("new {}", Standing::of(Some(&meta))))
        }
        What::Whiteout if row.removes_dir() => Some(Held::DIR_REMOVED.to_owned()),
        What::Whiteout | What::File | What::Symlink => None,
    }
}

fn writer(writer: &store::Writer) -> Writer {
    Writer { pid: writer.pid, exe: writer.exe().map(str::to_owned), uid: writer.uid }
}

/// Converts milliseconds since the epoch to a time; a number beyond every calendar becomes the epoch.
fn time(millis: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

pub fn all_held(project: &Project) -> Result<Vec<Held>, ErrorBody> {
    told_of(project, held_rows(project), &mut Cut::none(), |path| is_external(project, path))
}

/// What cannot be looked at counts as changed: nothing vouches for it.
fn is_external(project: &Project, path: &RelPath) -> bool {
    !matches!(project.overlay.externally(path), Ok(None))
}

/// Describes those of `rows` that are on the page.
fn told_of(
    project: &Project,
    rows: Vec<HeldRow>,
    page: &mut Cut,
    is_external: impl Fn(&RelPath) -> bool,
) -> Result<Vec<Held>, ErrorBody> {
    let in_head = project.overlay.in_head(rows.iter().skip(page.skipped()).map(HeldRow::row));
    page.part_made(rows, |row| {
        let in_head = in_head.contains(&row.row.id);
        let told = described(project, row)?;
        let externally_modified = is_external(&told.path);
        Ok(Held { in_head, externally_modified, ..told })
    })
}

/// A diff, and whether its new side is the content that the change's id stands for.
pub struct Diffed {
    pub text: Vec<u8>,
    pub is_as_held: bool,
}

/// Returns the diff of a held change against lower.
pub fn diff(project: &Project, row: &HeldRow, unreadable: Unreadable) -> Result<Diffed, ErrorBody> {
    let path = row.row.names.first().ok_or_else(|| internal("a held change without a name"))?;
    let Sides { old, new, looks, is_as_held } = project.overlay.sides(&row.row)?;
    let (old, new) = (old.as_ref().map(file_side), new.as_ref().map(file_side));
    let written = format!("a program is writing to it: this is not what {} stands for", row.id());
    // git's header shows of a mode only whether the file is executable. `git apply` skips lines before a header.
    let remarks = looks.into_iter().chain((!is_as_held).then_some(written));
    let remarks = remarks.map(|told| format!("# {path}: {told}\n")).collect::<String>();
    let text = [remarks.into_bytes(), unified(&FileDiff { path, old, new }, unreadable)].concat();
    Ok(Diffed { text, is_as_held })
}

fn file_side(side: &SideContent) -> FileSide<'_> {
    let content = match &side.content {
        ShownContent::Bytes(bytes) => FileContent::Bytes(bytes),
        ShownContent::Large(digest) => FileContent::Large(*digest),
    };
    FileSide { content, mode: side.mode }
}

pub fn backup(backup: store::Backup) -> Backup {
    Backup {
        name: backup.name,
        path: backup.path,
        kind: backup.kind,
        size: backup.size,
        sha256: backup.digest,
        created: time(backup.created),
        by: backup.by.as_ref().map(writer),
    }
}

pub fn external(looked: LookedAt, rows: &[HeldRow]) -> Vec<External> {
    let held_at: HashMap<&RelPath, &ChangeId> =
        rows.iter().flat_map(|row| row.row.names.iter().map(move |name| (name, row.id()))).collect();
    let told = looked.changed.into_iter().map(|(path, kind)| {
        let held = held_at.get(&path).map(|id| (*id).clone());
        External { path, kind, hint: External::HINT.to_owned(), held }
    });
    told.collect()
}

/// Says what could not be looked at.
pub fn unseen(looked: &LookedAt) -> Option<String> {
    let (path, err) = looked.unseen.first()?;
    let more = match looked.unseen.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("not known whether others have changed {path}{more}: {err}"))
}

/// Returns the status; its lists contain only what is on the page.
pub fn status(project: &Project, asker: &Asker, mut page: Cut) -> Result<Status, ErrorBody> {
    let overlay = &project.overlay;
    let rows = held_rows(project);
    let members = rights::may_change(asker, project).then(|| overlay::members_of(rows.iter().map(HeldRow::held)));
    let looked = overlay.external_paths();
    let unseen = unseen(&looked);
    let seen_changed = looked.changed.iter().map(|(path, _)| path);
    let changed: HashSet<RelPath> = seen_changed.chain(looked.unseen.iter().map(|(path, _)| path)).cloned().collect();
    let external = external(looked, &rows);
    let held_count = rows.len() as u64;
    let held = told_of(project, rows, &mut page, |path| changed.contains(path))?;
    if let Some(members) = members {
        overlay.note_shown(&members, held.iter().map(|held| &held.id), Depth::Listed);
    }
    let external = page.part(external);
    let backups = if page.is_full() { Vec::new() } else { overlay.store().backups().map_err(failed)? };
    let backups = page.part_made(backups, |kept| Ok::<_, ErrorBody>(backup(kept)))?;
    let writers = page.part(overlay.unjudged());
    let mounted = project.mounted.as_ref();
    // Computed before `readonly`: this may discover that writing has stopped.
    let notices = notices(project).chain(unseen).chain(standing_below(project, asker)).collect();
    Ok(Status {
        schema: Status::SCHEMA.to_owned(),
        project: project.path.display().to_string(),
        mountpoint: mounted.map(|mounted| mounted.mountpoint.display().to_string()),
        mounted: mounted.is_some(),
        pid: mounted.map(|_| std::process::id()),
        session: mounted.map(|_| overlay.session().to_owned()),
        seq: overlay.store().last_seq().map_err(failed)?,
        counters: Counters { landed: overlay.landed(), held: held_count, denied: overlay.refused() },
        requests: Default::default(),
        held,
        external,
        backups,
        writers,
        runs: overlay.runs().live().into_iter().map(run).collect(),
        passthrough: mounted.is_some() && overlay.passes_through(),
        rings: overlay.traffic().rings().is_some_and(Result::is_ok),
        readonly: overlay.fault(),
        notices,
        next: page.next(),
    })
}

fn run(run: overlay::Run) -> Run {
    let started = jiff::Timestamp::from_millisecond(run.started).unwrap_or_default();
    Run { session: run.session, pid: run.runner, uid: run.uid, command: run.command, started }
}

/// The state that someone has removed while the project was in use.
#[derive(Default)]
pub struct Removed {
    pub told: Option<String>,
    /// The next session will not find what is held.
    pub is_lost: bool,
}

pub fn removed(project: &Project) -> Removed {
    let store = project.overlay.store();
    if store.is_removed() {
        let told =
            "the state directory was removed, and with it what was held and all backups; unmount, and mount again";
        return Removed { told: Some(told.to_owned()), is_lost: true };
    }
    match store.database_removed() {
        Some(store::Removed::Lost) => Removed { told: store.halted(), is_lost: true },
        Some(store::Removed::WrittenAnew) | None if store.is_stage_removed() => {
            let told = "the directory of held content was removed, and what was held with it; unmount, and mount again";
            Removed { told: Some(told.to_owned()), is_lost: true }
        }
        Some(store::Removed::WrittenAnew) => Removed { told: store.halted(), is_lost: false },
        None => Removed::default(),
    }
}

fn notices(project: &Project) -> impl Iterator<Item = String> {
    let unread = project.overlay.unread_rules().map(|why| format!("only what is built in is in force: {why}"));
    let ignored = project.overlay.policy_notices().into_iter().map(|notice| untrusted(&notice));
    // A fault is reported by itself, as `readonly`.
    let removed = removed(project).told.filter(|told| project.overlay.fault().as_ref() != Some(told));
    let git = project.overlay.git_notice();
    let no_rings = project.overlay.traffic().rings().and_then(|tried| tried.as_ref().err());
    let by_device = no_rings.map(|why| format!("requests come by the device, not by rings: {why}"));
    let aside = project.overlay.store().lost_and_found_notice();
    let notices = removed.into_iter().chain(aside).chain(unread).chain(ignored).chain(git).chain(by_device);
    notices.chain(project.overlay.limit_notices())
}

/// Words a setting without effect as `mount` does.
pub fn untrusted(notice: &str) -> String {
    format!("ignored until `fettlefs trust`: {notice}")
}

/// The project's own settings file, as it was read for `policy`.
pub fn project_file(policy: &Policy, source: &RuleSource) -> Option<ProjectFile> {
    let file = policy.project_file.as_ref()?;
    Some(ProjectFile {
        project: ProjectPath(source.project.clone()),
        // A settings file that could be parsed is UTF-8.
        text: String::from_utf8_lossy(&file.text).into_owned(),
        sha256: file.digest,
        trusted: file.is_trusted,
        ignored: policy.notices.clone(),
        trusted_in: source.trusted_file.as_ref().map(|path| path.display().to_string()),
    })
}

/// Warns a caller whose working directory was the project before the mount covered it: it works on lower, unreviewed. A
/// view that only runs see covers nothing outside of them.
fn standing_below(project: &Project, asker: &Asker) -> Option<String> {
    let is_over_it = |mounted: &Mounted| mounted.keeper.is_none() && mounted.mountpoint == project.path;
    let covers = project.mounted.as_ref().is_some_and(is_over_it);
    let cwd = PathBuf::from(format!("/proc/{}/cwd", asker.pid));
    let below = covers
        && std::fs::read_link(&cwd).is_ok_and(|target| target.starts_with(&project.path))
        && device_of(&cwd) == Some(project.overlay.lower().device());
    below.then(|| "you stand below the mount, where nothing is reviewed: `cd .` takes you into the view".to_owned())
}

fn device_of(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Creates the event for something that was asked for.
pub fn asked_event(name: EventName, message: String, asker: &Asker, project: &Project) -> EventDraft {
    EventDraft::new(name).with(|event| {
        event.session = Some(project.overlay.session().to_owned());
        event.message = Some(message);
        (event.pid, event.uid) = (Some(asker.pid), Some(asker.uid));
    })
}

/// Turns a failure below into an answer.
pub fn failed(err: impl Into<overlay::Error>) -> ErrorBody {
    let err = err.into();
    ErrorBody::new(err.kind(), err.to_string())
}

fn internal(what: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Io, format!("internal fault: {what}"))
}
