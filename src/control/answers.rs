//! What the overlay and the store tell, in the words of the protocol.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Asker, Project};
use crate::diff::{FileDiff, FileSide, unified};
use crate::model::{ChangeId, ChangeKind, RelPath};
use crate::overlay::{self, Policy, RuleSource, SideContent};
use crate::protocol::{
    Also, Backup, ChangeDiff, Counters, Counts, DiffText, ErrorBody, ErrorCode, External, Held, ProjectFile,
    ProjectPath, Run, Status, Writer,
};
use crate::store::{self, UpperRow, What};

/// A row of which it is known that it is held.
pub struct HeldRow {
    pub row: UpperRow,
    pub held: store::Held,
}

impl HeldRow {
    fn of(row: UpperRow) -> Option<Self> {
        let held = row.held.clone()?;
        Some(Self { row, held })
    }

    pub fn id(&self) -> &ChangeId {
        &self.held.id
    }
}

/// Everything held, by path.
pub fn held_rows(project: &Project) -> Vec<HeldRow> {
    of_rows(project.overlay.held_rows())
}

/// What of it is wanted, by path.
pub fn held_rows_where(project: &Project, wanted: impl Fn(&UpperRow, &store::Held) -> bool) -> Vec<HeldRow> {
    of_rows(project.overlay.held_rows_where(wanted))
}

/// What of it is at a path or below, by path.
pub fn held_within(project: &Project, path: &RelPath) -> Vec<HeldRow> {
    of_rows(project.overlay.held_within(path))
}

fn of_rows(rows: Vec<UpperRow>) -> Vec<HeldRow> {
    rows.into_iter().filter_map(HeldRow::of).collect()
}

/// The one held under this very id.
pub fn held_row(project: &Project, id: &ChangeId) -> Option<HeldRow> {
    project.overlay.held_as(id).and_then(HeldRow::of)
}

pub fn held(project: &Project, row: &HeldRow) -> Result<Held, ErrorBody> {
    let in_head = !project.overlay.in_head([&row.row]).is_empty();
    let told = described(project, row)?;
    let externally_modified = is_external(project, &told.path)?;
    Ok(Held { in_head, externally_modified, ..told })
}

/// All but whether git has it and whether somebody else has changed it below: that is asked once for many, or known already.
fn described(project: &Project, HeldRow { row, held }: &HeldRow) -> Result<Held, ErrorBody> {
    let (path, also) = row.names.split_first().ok_or_else(|| internal("a held change without a name"))?;
    Ok(Held {
        id: held.id.clone(),
        path: path.clone(),
        kind: held.kind,
        also: Also(also.to_vec()),
        reason: *held.reasons.first().ok_or_else(|| internal("a held change without a reason"))?,
        detail: structure(project, row).or_else(|| held.detail.clone()),
        insertions: held.insertions,
        deletions: held.deletions,
        old_lines: held.old_lines,
        ratio: Counts::of(held.insertions, held.deletions, held.old_lines).ratio,
        hunks: held.hunks,
        base_sha256: row.base.digest(),
        new_sha256: held.new,
        externally_modified: false,
        expired: project.overlay.is_expired(held).is_some(),
        operation: held.operation.map(|operation| operation.to_string()),
        writer: held.writer.as_ref().map(writer),
        session: held.writer.as_ref().and_then(|writer| writer.session.clone()),
        since_session: held.since_session.clone(),
        opened_by: held.writer.as_ref().and_then(|writer| writer.opened_by.clone()),
        written_by: held.writer.as_ref().and_then(|writer| writer.written_by.clone()),
        created: time(held.created),
        in_head: false,
    })
}

/// What structure is, which no line of a diff tells.
fn structure(project: &Project, row: &UpperRow) -> Option<String> {
    let is_structure = row.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure);
    match row.what {
        What::Dir => Some("new directory".to_owned()),
        What::Node => project.overlay.store().upper_meta(row.id).ok().map(|meta| format!("new {}", meta.kind.name())),
        What::Whiteout if is_structure => Some("directory removed".to_owned()),
        What::Whiteout | What::File | What::Symlink => None,
    }
}

fn writer(writer: &store::Writer) -> Writer {
    Writer { pid: writer.pid, exe: writer.exe().map(str::to_owned), uid: writer.uid }
}

/// Milliseconds since the epoch as a time; a number beyond every calendar is the epoch.
fn time(millis: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

pub fn all_held(project: &Project) -> Result<Vec<Held>, ErrorBody> {
    all_described(project, &held_rows(project), |path| is_external(project, path))
}

fn is_external(project: &Project, path: &RelPath) -> Result<bool, ErrorBody> {
    Ok(project.overlay.externally(path).map_err(failed)?.is_some())
}

fn all_described(
    project: &Project,
    rows: &[HeldRow],
    is_external: impl Fn(&RelPath) -> Result<bool, ErrorBody>,
) -> Result<Vec<Held>, ErrorBody> {
    let in_head = project.overlay.in_head(rows.iter().map(|row| &row.row));
    let told = |row: &HeldRow| {
        let told = described(project, row)?;
        let externally_modified = is_external(&told.path)?;
        Ok(Held { in_head: in_head.contains(&row.row.id), externally_modified, ..told })
    };
    rows.iter().map(told).collect()
}

/// A held change with its diff against what lower has.
pub fn change_diff(project: &Project, row: &HeldRow) -> Result<ChangeDiff, ErrorBody> {
    Ok(ChangeDiff { held: held(project, row)?, text: DiffText(diff_text(project, row)?) })
}

pub fn diff_text(project: &Project, row: &HeldRow) -> Result<Vec<u8>, ErrorBody> {
    let path = row.row.names.first().ok_or_else(|| internal("a held change without a name"))?;
    let sides = project.overlay.sides(&row.row)?;
    let (old, new) = (sides.old.as_ref().map(file_side), sides.new.as_ref().map(file_side));
    Ok(unified(&FileDiff { path, old, new }))
}

fn file_side(side: &SideContent) -> FileSide<'_> {
    FileSide { content: &side.content, mode: side.mode }
}

pub fn backup(backup: &store::Backup) -> Backup {
    Backup {
        name: backup.name.clone(),
        path: backup.path.clone(),
        kind: backup.kind,
        size: backup.size,
        sha256: backup.digest,
        created: time(backup.created),
        by: backup.by.as_ref().map(writer),
    }
}

pub fn external(project: &Project) -> Result<Vec<External>, ErrorBody> {
    external_beside(project, &held_rows(project))
}

/// The same, where it is known what is held.
fn external_beside(project: &Project, rows: &[HeldRow]) -> Result<Vec<External>, ErrorBody> {
    let held_at = |path: &_| rows.iter().find(|row| row.row.names.contains(path)).map(|row| row.id().clone());
    let paths = project.overlay.external_paths()?;
    let told = paths.into_iter().map(|(path, kind)| {
        let held = held_at(&path);
        External { path, kind, hint: External::HINT.to_owned(), held }
    });
    Ok(told.collect())
}

pub fn status(project: &Project, asker: &Asker) -> Result<Status, ErrorBody> {
    let overlay = &project.overlay;
    let rows = held_rows(project);
    let external = external_beside(project, &rows)?;
    let changed: HashSet<&RelPath> = external.iter().map(|external| &external.path).collect();
    let held = all_described(project, &rows, |path| Ok(changed.contains(path)))?;
    let backups = overlay.store().backups().map_err(failed)?;
    let mounted = project.mounted.as_ref();
    Ok(Status {
        schema: Status::SCHEMA.to_owned(),
        project: project.path.display().to_string(),
        mountpoint: mounted.map(|mounted| mounted.mountpoint.display().to_string()),
        mounted: mounted.is_some(),
        pid: mounted.map(|_| std::process::id()),
        session: mounted.map(|_| overlay.session().to_owned()),
        seq: overlay.store().last_seq().map_err(failed)?,
        counters: Counters { landed: overlay.landed(), held: held.len() as u64, denied: overlay.refused() },
        requests: Default::default(),
        held,
        external,
        backups: backups.iter().map(backup).collect(),
        writers: overlay.unjudged(),
        runs: overlay.runs().live().into_iter().map(run).collect(),
        passthrough: mounted.is_some() && overlay.passes_through(),
        readonly: overlay.fault(),
        notices: notices(project).chain(standing_below(project, asker)).collect(),
        next: None,
    })
}

fn run(run: overlay::Run) -> Run {
    let started = jiff::Timestamp::from_millisecond(run.started).unwrap_or_default();
    Run { session: run.session, pid: run.runner, uid: run.uid, command: run.command, started }
}

fn notices(project: &Project) -> impl Iterator<Item = String> {
    let unread = project.overlay.unread_rules().map(|why| format!("only what is built in is in force: {why}"));
    let ignored = project.overlay.policy_notices().into_iter().map(|notice| untrusted(&notice));
    unread.into_iter().chain(ignored).chain(project.overlay.limit_notices())
}

/// A setting without effect, said as `mount` says it.
pub fn untrusted(notice: &str) -> String {
    format!("ignored until `fettlefs trust`: {notice}")
}

/// The project's own settings file as `policy` was made of it.
pub fn project_file(policy: &Policy, source: &RuleSource) -> Option<ProjectFile> {
    let file = policy.project_file.as_ref()?;
    Some(ProjectFile {
        project: ProjectPath(source.project.clone()),
        // Settings that can be read are UTF-8.
        text: String::from_utf8_lossy(&file.text).into_owned(),
        sha256: file.digest,
        trusted: file.is_trusted,
        ignored: policy.notices.clone(),
        trusted_in: source.trusted_file.as_ref().map(|path| path.display().to_string()),
    })
}

/// A caller whose working directory was the project before the mount covered it works on lower, unreviewed.
fn standing_below(project: &Project, asker: &Asker) -> Option<String> {
    let covers = project.mounted.as_ref().is_some_and(|mounted| mounted.mountpoint == project.path);
    let cwd = PathBuf::from(format!("/proc/{}/cwd", asker.pid));
    let below = covers
        && std::fs::read_link(&cwd).is_ok_and(|target| target.starts_with(&project.path))
        && device_of(&cwd) == Some(project.overlay.lower().device());
    below.then(|| "you stand below the mount, where nothing is reviewed: `cd .` takes you into the view".to_owned())
}

fn device_of(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// A failure below as an answer.
pub fn failed(err: impl Into<overlay::Error>) -> ErrorBody {
    let err = err.into();
    ErrorBody::new(err.kind(), err.to_string())
}

fn internal(what: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Io, format!("internal fault: {what}"))
}
