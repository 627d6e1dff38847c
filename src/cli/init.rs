//! `fettlefs init`: writes a project's settings file and a section for agents, once each.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use serde::Serialize;

use super::desk::Done;
use super::mount_start::directory;
use super::offline::unwritten;
use super::text::Text;
use super::{Desk, Failure};
use crate::client::{ClientError, DeadMount};
use crate::model::{ChangeId, plural};
use crate::protocol::{ErrorCode, Exit};
use crate::sys::file::{Meta, copy_owner, read_named, set_mode};
use crate::sys::xattr;

const SETTINGS: (&str, &str) = (".fettle.toml", include_str!("init/settings.toml"));
const SECTION: &str = include_str!("init/section.md");
const BEGIN: &str = "<!-- fettlefs: begin (`fettlefs init` keeps this section up to date) -->\n";
const END: &str = "<!-- fettlefs: end -->\n";

/// A longer file was not written for agents to read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The attribute that a held file has in a view.
const HELD_AS: &str = "user.fettle.id";

/// The files that agents read. If none exists, the first is created.
const FOR_AGENTS: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];

/// Give a project a settings file with comments, and its agents a section in AGENTS.md or CLAUDE.md
///
/// What is there stays as it is; a second time changes nothing, but for a section of an earlier version.
#[derive(clap::Args)]
pub struct Arguments {
    /// The project's directory
    #[arg(default_value = ".")]
    project: PathBuf,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Did {
    Made,
    /// The section, at the end of a file.
    Added,
    /// The section was of an earlier version and has been brought up to date.
    Renewed,
    Kept,
}

/// A section without an end cannot be replaced: what follows may be a person's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} begins a section of fettlefs that does not end: put `{end}` behind it, or take that line away", end = END.trim_end())]
struct OpenSection {
    line: usize,
}

/// A file as it will be written.
struct Planned {
    name: &'static str,
    path: PathBuf,
    did: Did,
    content: Vec<u8>,
    /// Set after writing in a view: the held change that keeps the file out of the project.
    held: Option<ChangeId>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let project = directory(&desk.directory.join(arguments.project), "project")?;
    if let Some(dead) = DeadMount::found_at(&project) {
        return Err(ClientError::Stale(dead).into());
    }
    // All files are examined before any is written.
    let mut planned = plan(&project)?;
    if !arguments.dry_run {
        for file in &mut planned {
            file.write().map_err(|err| unwritten(&file.path, &err))?;
        }
    }
    let file = |file: &Planned| serde_json::json!({"path": file.name, "did": file.did, "held": file.held});
    let files: Vec<_> = planned.iter().map(file).collect();
    let value = serde_json::json!({"v": 1, "ok": true, "dry_run": arguments.dry_run, "files": files});
    let has_written = !arguments.dry_run && planned.iter().any(|file| file.did != Did::Kept);
    let done = if has_written { Done::ToldBy("fettlefs init --dry-run") } else { Done::Nothing };
    desk.answer_value(value, done, |text| render(&planned, arguments.dry_run, text))?;
    Ok(Exit::Done)
}

fn render(planned: &[Planned], dry_run: bool, text: &mut Text) {
    let held: Vec<&str> = planned.iter().filter_map(|file| file.held.as_ref()).map(ChangeId::as_str).collect();
    let changed = planned.iter().filter(|file| file.did != Did::Kept).count();
    let wrote = if dry_run { "Would have written" } else { "Wrote" };
    let counts = [(wrote, changed - held.len()), ("Held", held.len())];
    for (did, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        text.put(format!("fettlefs: {did} {}\n", plural(count as u64, "file")));
    }
    if changed == 0 {
        text.put("fettlefs: Nothing to do\n");
    }
    for file in planned {
        let did = match file.did {
            Did::Made => "made   ",
            Did::Added => "added to",
            Did::Renewed => "renewed",
            Did::Kept => "kept   ",
        };
        text.put(format!("  {did:8}  {}", file.name));
        if let Some(id) = &file.held {
            text.put(format!(" (id {id})"));
        }
        text.put("\n");
    }
    if !held.is_empty() {
        text.put(format!("To apply: fettlefs confirm {}\n", held.join(" ")));
    }
}

fn plan(project: &Path) -> Result<Vec<Planned>, Failure> {
    let settings = |old: Option<Vec<u8>>| match old {
        None => Ok((Did::Made, SETTINGS.1.into())),
        Some(old) => Ok((Did::Kept, old)),
    };
    let settings_path = project.join(SETTINGS.0);
    if is_link(&settings_path) {
        let why = format!("{}: a link, from which no mount takes settings", settings_path.display());
        return Err(Failure::new(ErrorCode::Io, why));
    }
    let mut planned = vec![plan_file(project, SETTINGS.0, settings)?];
    let there: Vec<_> = FOR_AGENTS.into_iter().filter(|name| project.join(name).exists()).collect();
    let names = if there.is_empty() { &FOR_AGENTS[..1] } else { &there };
    for name in names {
        let mut file = plan_file(project, name, with_section)?;
        // One may be a link to the other.
        if planned.iter().any(|other| is_same(&other.path, &file.path)) {
            file.did = Did::Kept;
        }
        planned.push(file);
    }
    Ok(planned)
}

fn plan_file(
    project: &Path,
    name: &'static str,
    change: impl FnOnce(Option<Vec<u8>>) -> Result<(Did, Vec<u8>), OpenSection>,
) -> Result<Planned, Failure> {
    let path = project.join(name);
    let old = match read_named(&path, FILE_BYTES_MAX) {
        Ok(old) => Some(old),
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        Err(err) => return Err(told(&path, &err)),
    };
    if old.is_none() && is_link(&path) {
        return Err(Failure::new(ErrorCode::Io, format!("{}: a link that leads nowhere", path.display())));
    }
    let changed = change(old).map_err(|open| Failure::new(ErrorCode::Io, format!("{}: {open}", path.display())));
    let (did, content) = changed?;
    if matches!(did, Did::Added | Did::Renewed) {
        check_inside(project, &path)?;
    }
    Ok(Planned { name, path, did, content, held: None })
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_symlink())
}

/// Refuses a link that leads out of the project. A cloned project may bring one that points to a file of its user.
fn check_inside(project: &Path, path: &Path) -> Result<(), Failure> {
    let resolve = |path: &Path| fs::canonicalize(path).map_err(|err| told(path, &err));
    let target = resolve(path)?;
    match target.starts_with(resolve(project)?) {
        true => Ok(()),
        false => {
            let why = format!("{}: a link out of the project, to {}", path.display(), target.display());
            Err(Failure::new(ErrorCode::Io, why))
        }
    }
}

/// Adds or renews the section, with the line ends of the file's first line. Everything before the last begin marker is a
/// person's, even if it contains earlier begin markers.
fn with_section(old: Option<Vec<u8>>) -> Result<(Did, Vec<u8>), OpenSection> {
    let section = [BEGIN, SECTION, END].concat();
    let Some(old) = old else { return Ok((Did::Made, section.into_bytes())) };
    let first = old.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let line_end = if first.ends_with(b"\r\n") { "\r\n" } else { "\n" };
    let section = section.replace('\n', line_end).into_bytes();
    let Some((begin, after)) = section_in(&old)? else {
        let ends = |count: usize| old.ends_with(line_end.repeat(count).as_bytes());
        let gap = if old.is_empty() { 0 } else { 2 - usize::from(ends(1)) - usize::from(ends(2)) };
        return Ok((Did::Added, [&old, line_end.repeat(gap).as_bytes(), &section].concat()));
    };
    let after = old[after..].strip_prefix(b"\r").unwrap_or(&old[after..]);
    let new = [&old[..begin], &section, after.strip_prefix(b"\n").unwrap_or(after)].concat();
    Ok((if new == old { Did::Kept } else { Did::Renewed }, new))
}

/// Returns where the section begins and ends, without its last line's end.
fn section_in(text: &[u8]) -> Result<Option<(usize, usize)>, OpenSection> {
    let (begin, end) = (BEGIN.trim_end().as_bytes(), END.trim_end().as_bytes());
    let Some(first) = text.windows(begin.len()).position(|window| window == begin) else { return Ok(None) };
    let line = 1 + text[..first].iter().filter(|byte| **byte == b'\n').count();
    let ends = text[first..].windows(end.len()).position(|window| window == end);
    let ends = first + ends.ok_or(OpenSection { line })?;
    let last = text[..ends].windows(begin.len()).rposition(|window| window == begin);
    Ok(Some((last.unwrap_or(first), ends + end.len())))
}

fn is_same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

impl Planned {
    fn write(&mut self) -> io::Result<()> {
        match self.did {
            Did::Kept => return Ok(()),
            // A file that someone created in the meantime is not overwritten.
            Did::Made => OpenOptions::new().write(true).create_new(true).open(&self.path)?.write_all(&self.content)?,
            Did::Added | Did::Renewed => replace(&self.path, &self.content)?,
        }
        self.held = held_as(&self.path)?;
        Ok(())
    }
}

fn held_as(path: &Path) -> io::Result<Option<ChangeId>> {
    let id = match xattr::find(File::open(path)?.as_fd(), OsStr::new(HELD_AS)) {
        // The file is not in a view.
        Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
        found => found?,
    };
    Ok(id.and_then(|id| ChangeId::parse(str::from_utf8(&id).ok()?)))
}

/// Replaces a file atomically, also through a symlink. It keeps its owner and mode, even if root does this.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let parent = path.parent().ok_or(io::ErrorKind::NotFound)?;
    let mut new = tempfile::NamedTempFile::new_in(parent)?;
    new.write_all(content)?;
    let old = Meta::at(CWD, path.as_os_str())?;
    copy_owner(&old, new.as_file().as_fd())?;
    // Last, because a change of owner clears the set-id bits.
    set_mode(new.as_file().as_fd(), old.mode)?;
    new.persist(&path)?;
    Ok(())
}

fn told(path: &Path, err: &io::Error) -> Failure {
    super::offline::failure(&path.display().to_string(), err).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::settings::{Key, Origin, Settings, SettingsFile};

    #[test]
    fn the_settings_that_are_written_are_the_defaults_and_all_of_them() {
        let defaults = || Settings::defaults();
        let read = |text: &str| {
            let file = SettingsFile::parse(".fettle.toml", text.as_bytes()).expect("it can be read");
            Settings::layered(defaults(), [&file.values]).expect("it is valid")
        };
        assert_eq!(read(SETTINGS.1), defaults());
        let without_mark =
            |line: &'static str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
        let all: Vec<_> = SETTINGS.1.lines().map(without_mark).collect();
        let all = read(&all.join("\n"));
        for key in Key::ALL {
            assert_ne!(all.origin(*key), Origin::Default, "{} is not among them", key.name());
        }
        let values = |s: Settings| {
            (
                s.thresholds,
                s.ttl,
                s.window,
                s.burst,
                s.approve,
                s.on_hold,
                s.risk,
                s.pre_write,
                s.hook_timeout,
                (s.backups, s.limits),
            )
        };
        assert_eq!(values(all), values(defaults()));
    }

    #[test]
    fn a_section_is_added_once_and_renewed_in_its_place() {
        let with_section = |old: Option<Vec<u8>>| with_section(old).expect("no open section");
        let (did, made) = with_section(None);
        assert_eq!(did, Did::Made);
        assert_eq!(with_section(Some(made.clone())), (Did::Kept, made.clone()));
        let (did, added) = with_section(Some(b"# Agents\nBe kind.".to_vec()));
        assert_eq!((did, &added), (Did::Added, &[b"# Agents\nBe kind.\n\n", made.as_slice()].concat()));
        let older = [b"# Agents\n", BEGIN.as_bytes(), b"Old words.\n", END.as_bytes(), b"After.\n"].concat();
        assert_eq!(with_section(Some(older)), (Did::Renewed, [b"# Agents\n", made.as_slice(), b"After.\n"].concat()));
        // With the file's line ends, also in the place of a section that has others.
        let ends = |text: &[u8]| String::from_utf8(text.to_vec()).expect("UTF-8").replace('\n', "\r\n").into_bytes();
        for before in ["# Agents\r\n", "# Agents\r\nBe kind.", "# Agents\r\n\r\n"] {
            let (did, added) = with_section(Some(before.into()));
            assert_eq!(
                (did, added.ends_with(&ends(&[b"\n\n", made.as_slice()].concat()))),
                (Did::Added, true),
                "{before:?}"
            );
            assert_eq!(with_section(Some(added.clone())), (Did::Kept, added), "{before:?}");
        }
        let mixed = [b"# Agents\r\n", made.as_slice(), b"After.\r\n"].concat();
        let want = [b"# Agents\r\n", ends(&made).as_slice(), b"After.\r\n"].concat();
        assert_eq!(with_section(Some(mixed)), (Did::Renewed, want));
    }
    #[test]
    fn what_stands_before_a_section_or_in_an_open_one_is_a_persons() {
        let made = [BEGIN, SECTION, END].concat();
        let with_section = |old: &str| with_section(Some(old.into())).map(|(did, new)| (did, String::from_utf8(new)));
        let open = format!("# Agents\n{BEGIN}My own rules.\n");
        assert_eq!(with_section(&open), Err(OpenSection { line: 2 }));
        let before = format!("{open}\nMore of them.\n");
        let renewed = with_section(&format!("{before}{BEGIN}Old words.\n{END}After.\n"));
        assert_eq!(renewed, Ok((Did::Renewed, Ok(format!("{before}{made}After.\n")))));
        // An end without a beginning is nobody's, and leaves what follows alone.
        let ended = format!("Words.\n{END}\n");
        let added = format!("{ended}{made}");
        assert_eq!(with_section(&ended), Ok((Did::Added, Ok(added.clone()))));
        assert_eq!(with_section(&added), Ok((Did::Kept, Ok(added))));
    }
}
