//! `fettlefs trust`: lets a project's own settings decide what a cloned project may not decide by itself (SPEC §15).
//!
//! A person is shown, and trust is recorded for, the file as lower has it, since a view may show one that is held for
//! review. So it comes from the daemon, if there is one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::desk::{Answer, Done};
use super::mount::SettingFlags;
use super::mount_start::directory;
use super::terminal::Ink;
use super::text::Text;
use super::{Desk, Failure, offline, sources};
use crate::client::{Client, ClientError};
use crate::control::project_file;
use crate::model::Digest;
use crate::overlay::{PROJECT_FILE, Policy};
use crate::policy::settings::{with_trust, without_trust};
use crate::protocol::{ErrorCode, Exit, Op, ProjectFile, Reply, Request};
use crate::sys::tree::Tree;

/// Let a project's .fettle.toml decide what it may not decide by itself: hooks, `pass` rules, laxer limits
///
/// Shows the file and asks. Another content of the file must be trusted anew. Takes effect at the next mount, or by
/// `fettlefs reload`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Trust no .fettle.toml of this project any more
    #[arg(long, conflicts_with_all = ["yes", "show"])]
    revoke: bool,
    /// Show the file, and what of it is ignored, and change nothing
    #[arg(long, conflicts_with = "yes")]
    show: bool,
}

/// A change of trust, with the command that shows it.
const TOLD: Done = Done::ToldBy("fettlefs trust --show");

/// What happened to the trust in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Trusted,
    /// It was trusted before.
    Kept,
    Shown,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    if arguments.revoke {
        return revoke(desk);
    }
    let file = asked(desk)?;
    let did = match (arguments.show, file.trusted) {
        (true, _) => Did::Shown,
        (false, true) => Did::Kept,
        (false, false) => trust(&file, &arguments, desk)?,
    };
    print(&file, did, desk)?;
    Ok(Exit::Done)
}

fn trust(file: &ProjectFile, arguments: &Arguments, desk: &Desk) -> Result<Did, Failure> {
    let list = list_of(file)?;
    if !arguments.yes {
        desk.remark(|text| render_file(file, text))?;
        match desk.agreed("trust", "Trust this file, as it is now?")? {
            Answer::Yes => {}
            Answer::No => return Err(Failure::new(ErrorCode::Io, "nothing was done")),
        }
    }
    rewrite(&list, |text| with_trust(text, &file.project.0, file.sha256))
        .map_err(|err| offline::unwritten(&list, &err))?;
    Ok(Did::Trusted)
}

/// Returns the list of trusted files, which must be the one that the project's daemon reads.
fn list_of(file: &ProjectFile) -> Result<PathBuf, Failure> {
    let own = sources::trusted_file();
    let own = own.ok_or_else(|| Failure::usage("neither XDG_CONFIG_HOME nor HOME says where trust is recorded"))?;
    match &file.trusted_in {
        Some(theirs) if *theirs != own.display().to_string() => {
            let message = format!("it was mounted by somebody who keeps trust in {theirs}: only they can give it");
            Err(Failure::new(ErrorCode::NotPermitted, message))
        }
        Some(_) | None => Ok(own),
    }
}

/// Asks the daemon, or the state directory, for the project's settings file. A project that has neither, as after a
/// clone, is read here.
fn asked(desk: &Desk) -> Result<ProjectFile, Failure> {
    let file = match Client::open(&desk.directory, offline::answer) {
        Ok(mut client) => {
            let request = Request { dry_run: true, ..Request::new(Op::Reload) };
            let Reply::Reload(reply) = client.ask(&request)? else { return Err(Failure::other_answer()) };
            reply.project_file
        }
        Err(ClientError::NoProject(_)) => read(&nearest(&directory(&desk.directory, "project")?))?,
        Err(err) => return Err(err.into()),
    };
    let missing = || format!("there is no {PROJECT_FILE} in the project");
    let file = file.ok_or_else(|| Failure::new(ErrorCode::UnknownPath, missing()))?;
    // What is trusted is the text that is shown, whatever hash the answer has beside it.
    Ok(ProjectFile { sha256: Digest::of(file.text.as_bytes()), ..file })
}

/// Returns the nearest directory upwards that has a settings file, or `start` if none has.
fn nearest(start: &Path) -> PathBuf {
    let has_one = |dir: &&Path| dir.join(PROJECT_FILE).symlink_metadata().is_ok();
    start.ancestors().find(has_one).unwrap_or(start).to_owned()
}

fn read(project: &Path) -> Result<Option<ProjectFile>, Failure> {
    let source = sources::rule_source(project, None, &SettingFlags::default())?;
    let lower = Tree::open(project).map_err(|err| offline::failure(&project.display().to_string(), &err))?;
    let policy = Policy::load(&lower, &source).map_err(|err| Failure::usage(err.to_string()))?;
    Ok(project_file(&policy, &source))
}

fn revoke(desk: &Desk) -> Result<Exit, Failure> {
    let project = match asked(desk) {
        Ok(file) => file.project.0,
        // The file is gone or unreadable: trust can be revoked all the same.
        Err(_) => match desk.client() {
            Ok(client) => client.place().root.clone(),
            Err(_) => nearest(&directory(&desk.directory, "project")?),
        },
    };
    let list = sources::trusted_file().filter(|list| list.exists());
    if let Some(list) = list {
        rewrite(&list, |text| without_trust(text, &project)).map_err(|err| offline::unwritten(&list, &err))?;
    }
    let value = serde_json::json!({"v": 1, "ok": true, "trusted": false, "project": project.display().to_string()});
    desk.answer_value(value, TOLD, |text| {
        text.put("fettlefs: Trusts no settings of ").name(project.display().to_string()).put(" any more\n");
        render_when(text);
    })?;
    Ok(Exit::Done)
}

/// Replaces the list atomically, under a lock. It is private, because it tells where its user works.
fn rewrite(list: &Path, change: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let list = fs::canonicalize(list).unwrap_or_else(|_| list.to_owned());
    let parent = list.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    let directory = File::open(parent)?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    let old = match fs::read(&list) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mut new = tempfile::NamedTempFile::new_in(parent)?;
    new.write_all(&change(&old))?;
    // A power cut right after the rename leaves the old list or the new one, never an empty file.
    new.as_file().sync_all()?;
    new.persist(&list)?;
    Ok(())
}

fn print(file: &ProjectFile, did: Did, desk: &Desk) -> Result<(), Failure> {
    let trusted = did == Did::Trusted || file.trusted;
    let project = file.project.0.display().to_string();
    let mut value = serde_json::json!({
        "v": 1, "ok": true, "trusted": trusted, "project": project, "path": PROJECT_FILE, "sha256": file.sha256,
        "ignored": file.ignored,
    });
    if did == Did::Shown {
        value["text"] = file.text.clone().into();
    }
    let done = if did == Did::Trusted { TOLD } else { Done::Nothing };
    desk.answer_value(value, done, |text| match did {
        Did::Shown => {
            render_file(file, text);
            text.put(format!("fettlefs: It is {}\n", if file.trusted { "trusted" } else { "not trusted" }));
        }
        Did::Kept => {
            text.put("fettlefs: Already trusted ").name(path_of(file)).put("\n");
        }
        Did::Trusted => {
            text.put("fettlefs: Trusted ").name(path_of(file)).put("\n");
            render_when(text);
        }
    })
}

fn path_of(file: &ProjectFile) -> String {
    file.project.0.join(PROJECT_FILE).display().to_string()
}

fn render_file(file: &ProjectFile, text: &mut Text) {
    text.name(path_of(file)).put(format!(" (sha256 {})\n\n", file.sha256));
    for line in file.text.lines() {
        text.put("    ").content(line.as_bytes()).put("\n");
    }
    text.put("\n");
    for ignored in &file.ignored {
        text.ink(Ink::Warning, "ignored until it is trusted: ").name(ignored).put("\n");
    }
}

fn render_when(text: &mut Text) {
    text.put("  takes effect at the next mount, or by: fettlefs reload\n");
}
