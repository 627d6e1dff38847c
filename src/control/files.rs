//! The entries of the virtual directory and their contents.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::answers::{self, HeldRow};
use super::desk::VirtualMeta;
use super::effects;
use super::{Asker, Project, rights};
use crate::diff::Unreadable;
use crate::model::{ChangeId, ChangeKind, Timestamp};
use crate::overlay::WholeContent;
use crate::protocol::{BASH_SCRIPT, CONTROL_FILE, Cut, ErrorBody, ErrorCode, SHELL_DIRECTORY, ZSH_SCRIPT};
use crate::store::{self, Depth, UpperRow, now_millis};

/// One entry, identified by what it is and not by its node number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    Root,
    Control,
    Status,
    Events,
    Notice,
    Held,
    Change(ChangeId),
    Part(ChangeId, Part),
    Backups,
    Backup(String),
    Shell,
    ShellFile(ShellFile),
}

/// Files that a shell reads by itself, so that it need not start a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShellFile {
    Bash,
    Zsh,
    /// Opened by a shell when it begins.
    Begin,
    /// Opened by a shell when it ends: contains the effects of its command.
    End,
}

impl ShellFile {
    const ALL: [(Self, &str); 4] =
        [(Self::Bash, BASH_SCRIPT), (Self::Zsh, ZSH_SCRIPT), (Self::Begin, "begin"), (Self::End, "end")];
}

/// A file of one held change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Old,
    New,
    Diff,
    Meta,
}

impl Part {
    const ALL: [(Self, &str); 4] =
        [(Self::Old, "old"), (Self::New, "new"), (Self::Diff, "diff"), (Self::Meta, "meta.json")];

    /// Whether a change of this kind has the file: a created file has no old content, a deleted one no new.
    fn is_of(self, kind: ChangeKind) -> bool {
        match (self, kind) {
            (Self::Old, ChangeKind::Create | ChangeKind::Structure) => false,
            (Self::New, ChangeKind::Delete | ChangeKind::Structure) => false,
            (Self::Old | Self::New, ChangeKind::Modify | ChangeKind::Type) => true,
            (Self::Old, ChangeKind::Delete) | (Self::New, ChangeKind::Create) => true,
            (Self::Diff | Self::Meta, _) => true,
        }
    }
}

const ROOT_ENTRIES: [(Item, &str); 7] = [
    (Item::Control, CONTROL_FILE),
    (Item::Status, "status.json"),
    (Item::Events, "events.jsonl"),
    (Item::Notice, "NOTICE.md"),
    (Item::Held, "held"),
    (Item::Backups, "backups"),
    (Item::Shell, SHELL_DIRECTORY),
];

impl Item {
    pub fn is_dir(&self) -> bool {
        match self {
            Self::Root | Self::Held | Self::Change(_) | Self::Backups | Self::Shell => true,
            Self::ShellFile(_) => false,
            Self::Control | Self::Status | Self::Events | Self::Notice | Self::Part(..) | Self::Backup(_) => false,
        }
    }

    /// Whether it may be as long as a project file or the log. Such content is made without waiting for anybody.
    pub fn may_be_long(&self) -> bool {
        match self {
            Self::Events | Self::Part(_, Part::Old | Part::New | Part::Diff) | Self::Backup(_) => true,
            Self::Root | Self::Control | Self::Status | Self::Notice | Self::Held | Self::Change(_) => false,
            Self::Part(_, Part::Meta) | Self::Backups | Self::Shell | Self::ShellFile(_) => false,
        }
    }

    /// Returns the entry that a name in this directory would be. [`meta`] tells whether it exists.
    pub fn child(&self, name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        match self {
            Self::Root => ROOT_ENTRIES.iter().find(|(_, known)| *known == name).map(|(item, _)| item.clone()),
            Self::Held => ChangeId::parse(name).map(Self::Change),
            Self::Change(id) => {
                Part::ALL.iter().find(|(_, known)| *known == name).map(|(part, _)| Self::Part(id.clone(), *part))
            }
            Self::Backups => Some(Self::Backup(name.to_owned())),
            Self::Shell => {
                ShellFile::ALL.iter().find(|(_, known)| *known == name).map(|(file, _)| Self::ShellFile(*file))
            }
            Self::ShellFile(_) => None,
            Self::Control | Self::Status | Self::Events | Self::Notice | Self::Part(..) | Self::Backup(_) => None,
        }
    }
}

const DIRECTORY_MODE: u32 = 0o555;
const FILE_MODE: u32 = 0o444;
/// Rights are checked at each request.
const CONTROL_MODE: u32 = 0o666;

pub fn meta(item: &Item, project: &Project) -> Result<VirtualMeta, i32> {
    let (size, changed) = size_and_time(item, project)?;
    let mode = match item {
        Item::Control => CONTROL_MODE,
        _ if item.is_dir() => DIRECTORY_MODE,
        _ => FILE_MODE,
    };
    let root = project.overlay.lower().stat(&Default::default()).ok().flatten();
    let (uid, gid) = root.map_or((project.owner, project.owner), |meta| (meta.uid, meta.gid));
    Ok(VirtualMeta { is_dir: item.is_dir(), mode, size, mtime: timestamp(changed), uid, gid })
}

/// Returns the size in bytes, if it is cheap to find out, and the time of the last change in milliseconds.
fn size_and_time(item: &Item, project: &Project) -> Result<(u64, i64), i32> {
    match item {
        Item::Root | Item::Control | Item::Status | Item::Events | Item::Held | Item::Backups => Ok((0, now_millis())),
        Item::Shell | Item::ShellFile(ShellFile::Begin | ShellFile::End) => Ok((0, now_millis())),
        Item::ShellFile(ShellFile::Bash) => Ok((effects::BASH.len() as u64, now_millis())),
        Item::ShellFile(ShellFile::Zsh) => Ok((effects::ZSH.len() as u64, now_millis())),
        Item::Notice => Ok((NOTICE.len() as u64, now_millis())),
        Item::Change(id) => Ok((0, held(project, id)?.held().created)),
        Item::Part(id, part) => {
            let row = part_of(project, id, *part)?;
            Ok((part_size(project, &row, *part), row.held().created))
        }
        Item::Backup(name) => backup(project, name).map(|backup| (backup.size, backup.created)),
    }
}

fn part_size(project: &Project, row: &HeldRow, part: Part) -> u64 {
    match part {
        Part::New => project.overlay.store().upper_meta(row.row().id).map_or(0, |meta| meta.size),
        Part::Old | Part::Diff | Part::Meta => 0,
    }
}

fn timestamp(millis: i64) -> Timestamp {
    let nanoseconds = u32::try_from(millis.rem_euclid(1000)).unwrap_or_default() * 1_000_000;
    Timestamp { seconds: millis.div_euclid(1000), nanoseconds }
}

/// Returns the entries of a directory.
pub fn children(item: &Item, project: &Project) -> Result<Vec<(OsString, Item)>, i32> {
    match item {
        Item::Root => Ok(ROOT_ENTRIES.iter().map(|(item, name)| (OsString::from(name), item.clone())).collect()),
        Item::Held => Ok(answers::held_rows(project)
            .into_iter()
            .map(|row| (OsString::from(row.id().as_str()), Item::Change(row.id().clone())))
            .collect()),
        Item::Change(id) => {
            let kind = held(project, id)?.held().kind;
            let parts = Part::ALL.iter().filter(|(part, _)| part.is_of(kind));
            Ok(parts.map(|(part, name)| (OsString::from(name), Item::Part(id.clone(), *part))).collect())
        }
        Item::Backups => {
            let backups = project.overlay.store().backups().map_err(|err| failed("list backups", &err.into()))?;
            Ok(backups.into_iter().map(|backup| (OsString::from(&backup.name), Item::Backup(backup.name))).collect())
        }
        Item::Shell => {
            Ok(ShellFile::ALL.iter().map(|(file, name)| (OsString::from(name), Item::ShellFile(*file))).collect())
        }
        Item::Control
        | Item::Status
        | Item::Events
        | Item::Notice
        | Item::Part(..)
        | Item::Backup(_)
        | Item::ShellFile(_) => Err(libc::ENOTDIR),
    }
}

/// Returns a file's present content, if the asker may have it.
pub fn content(item: &Item, project: &Project, asker: &Asker) -> Result<WholeContent, i32> {
    let text = match item {
        Item::Part(id, Part::Old) => {
            return side_content(&readable_part(project, asker, id, Part::Old)?, |row| {
                project.overlay.old_content(row)
            });
        }
        Item::Part(id, Part::New) => {
            return side_content(&readable_part(project, asker, id, Part::New)?, |row| {
                project.overlay.new_content(row)
            });
        }
        Item::Backup(name) => return backup_content(project, asker, name),
        Item::Status => status(project, asker),
        Item::Events => events(project),
        Item::Notice => Ok(NOTICE.as_bytes().to_vec()),
        Item::Part(id, Part::Diff) => diff(project, asker, id),
        Item::Part(id, Part::Meta) => part_of(project, id, Part::Meta).and_then(|row| meta_json(project, &row)),
        Item::Control => Ok(Vec::new()),
        Item::ShellFile(file) => shell_file(*file, project, asker),
        Item::Root | Item::Held | Item::Change(_) | Item::Backups | Item::Shell => Err(libc::EISDIR),
    };
    text.map(WholeContent::Bytes)
}

fn status(project: &Project, asker: &Asker) -> Result<Vec<u8>, i32> {
    project.overlay.settle_pending();
    let status = answers::status(project, asker, Cut::none()).map_err(|err| refused("read status.json", &err))?;
    json_line(&status)
}

fn events(project: &Project) -> Result<Vec<u8>, i32> {
    let events = project.overlay.store().events_since(0).map_err(|err| failed("read events", &err.into()))?;
    let lines = events.iter().map(json_line).collect::<Result<Vec<_>, _>>()?;
    Ok(lines.concat())
}

fn shell_file(file: ShellFile, project: &Project, asker: &Asker) -> Result<Vec<u8>, i32> {
    let told = match file {
        ShellFile::Bash => Ok(effects::BASH.to_owned()),
        ShellFile::Zsh => Ok(effects::ZSH.to_owned()),
        // One line, so that a shell that reads a line knows it was heard.
        ShellFile::Begin => effects::begin(project, asker).map(|()| "\n".to_owned()),
        ShellFile::End => effects::end(project, asker),
    };
    told.map(String::into_bytes).map_err(|err| refused("tell a shell what it has done", &err))
}

fn side_content(
    row: &HeldRow,
    content: impl FnOnce(&UpperRow) -> Result<Option<WholeContent>, ErrorBody>,
) -> Result<WholeContent, i32> {
    content(row.row()).map_err(|err| refused("read a held change", &err))?.ok_or(libc::ENOENT)
}

fn diff(project: &Project, asker: &Asker, id: &ChangeId) -> Result<Vec<u8>, i32> {
    let row = readable_part(project, asker, id, Part::Diff)?;
    let members = project.overlay.members(|operation| row.held().operation == Some(operation));
    let diff = answers::diff(project, &row, Unreadable::Named).map_err(|err| refused("read a held change", &err))?;
    // A look by an asker who may confirm renews the change (SPEC §8).
    if diff.is_as_held && rights::may_change(asker, project) {
        project.overlay.renew(id).map_err(|err| refused("renew a held change", &err))?;
        project.overlay.note_shown(&members, [id], Depth::Compared);
    }
    Ok(diff.text)
}

fn meta_json(project: &Project, row: &HeldRow) -> Result<Vec<u8>, i32> {
    json_line(&answers::held(project, row).map_err(|err| refused("read a held change", &err))?)
}

fn readable_part(project: &Project, asker: &Asker, id: &ChangeId, part: Part) -> Result<HeldRow, i32> {
    let row = part_of(project, id, part)?;
    if rights::may_read(asker, project, row.row()) { Ok(row) } else { Err(libc::EACCES) }
}

fn backup_content(project: &Project, asker: &Asker, name: &str) -> Result<WholeContent, i32> {
    let backup = backup(project, name)?;
    if !rights::may_read_backup(asker, project, &backup) {
        return Err(libc::EACCES);
    }
    let content = project.overlay.store().content_file(backup.digest);
    let content = content.map_err(|err| failed("read a backup", &err.into()))?.ok_or(libc::ENOENT)?;
    Ok(WholeContent::File(Arc::new(content)))
}

fn held(project: &Project, id: &ChangeId) -> Result<HeldRow, i32> {
    answers::held_row(project, id).ok_or(libc::ENOENT)
}

fn part_of(project: &Project, id: &ChangeId, part: Part) -> Result<HeldRow, i32> {
    held(project, id).and_then(|row| if part.is_of(row.held().kind) { Ok(row) } else { Err(libc::ENOENT) })
}

fn backup(project: &Project, name: &str) -> Result<store::Backup, i32> {
    let found = project.overlay.store().backup(name).map_err(|err| failed("find a backup", &err.into()))?;
    found.ok_or(libc::ENOENT)
}

fn json_line<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, i32> {
    let mut line = serde_json::to_vec(value).map_err(|err| {
        log::error!("spell JSON: {err}");
        libc::EIO
    })?;
    line.push(b'\n');
    Ok(line)
}

fn failed(what: &str, err: &crate::overlay::Error) -> i32 {
    log::error!("{what}: {err}");
    err.code()
}

fn refused(what: &str, err: &ErrorBody) -> i32 {
    match err.code {
        ErrorCode::UnknownId | ErrorCode::Superseded => libc::ENOENT,
        ErrorCode::NotPermitted => libc::EACCES,
        ErrorCode::Busy => libc::EBUSY,
        _ => {
            log::error!("{what}: {}", err.message);
            libc::EIO
        }
    }
}

/// For an agent that finds itself in a view and wonders.
const NOTICE: &str = "\
# This directory is a reviewed view (fettlefs)

You work on a view of the project. You see everything you write, at once. The project itself gets:

- small changes and new files: when you close the file;
- large rewrites, large deletions and sensitive files (`.gitignore`, CI, editor and agent settings): after review.

A change that waits for review is *held*. Nothing is lost and nothing failed: you go on with your version, the project
keeps its own until somebody confirms. Do not write the file again to force it, and do not look for a way around.

    fettlefs status             what is held, and why
    fettlefs diff ID            what it would change
    fettlefs confirm ID         let it land; ask the person you work for before you do
    fettlefs discard ID         drop it from the view; its content is kept as a backup
    fettlefs backups PATH       what was replaced
    fettlefs rollback NAME      bring it back

To ask for review, tell the person the ids from `fettlefs status` and what each change is for.

Without the program, in this directory: `status.json` (the same as JSON), `held/ID/diff`, `held/ID/old`, `held/ID/new`,
`backups/NAME`, `events.jsonl`; requests go to `control`, one JSON object each:

    exec 3<>.fettle/control; echo '{\"v\":1,\"op\":\"status\"}' >&3; cat <&3

Attributes of every file say the same: `getfattr -n user.fettle.state FILE`.
";
