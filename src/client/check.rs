//! A check from beginning to end: a command run in the view, between questions to what answers for it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::command::{self, Group, Ran};
use super::{Client, Offline, Reach, find, other_answer, reach};
use crate::model::shell_word;
use crate::protocol::{CheckPhase, CheckReply, ErrorBody, ErrorCode, Op, Outcome, Reply, Request, name_of};

/// Why nothing lands although the command has passed.
pub const HAS_MOVED: &str = "What is held was not what it tested any more, so nothing lands";

/// A check whose command is about to run.
pub struct Check {
    /// Where the caller started, absolute. No connection is kept while the command runs: when it ends, another view may
    /// answer, or none.
    way: (PathBuf, Offline),
    command: Vec<OsString>,
    directory: PathBuf,
    /// What was held when the check began.
    pub begun: CheckReply,
    /// The command as a person would type it.
    pub words: String,
}

/// A check whose command has ended.
pub struct Checked<'a> {
    pub words: &'a str,
    pub ran: &'a Ran,
    pub reply: &'a CheckReply,
}

impl Check {
    /// Finds where the command is to run, and has the start recorded. With `promotes`, fails if the caller may not
    /// confirm what the command tests.
    pub fn begin(mut client: Client, command: Vec<OsString>, promotes: bool) -> Result<Self, ErrorBody> {
        let directory = directory_in_view(&mut client)?;
        if !directory.is_dir() {
            let message = format!("{} is no directory of the view", directory.display());
            return Err(ErrorBody::new(ErrorCode::UnknownPath, message));
        }
        let words = words_of(&command);
        let begun = ask(&mut client, &Request { name: Some(name_of(&words)), ..asking(CheckPhase::Started) })?;
        if promotes && !begun.may_promote {
            // A follower of events waits for the end of every check that has started.
            let ended = Request { tested: Some(begun.tested), ..asking(CheckPhase::Failed) };
            let name = name_of(&format!("not run, for lack of rights: {words}"));
            ask(&mut client, &Request { name: Some(name), ..ended })?;
            let message = "--confirm: you may not confirm changes of this project";
            return Err(ErrorBody::new(ErrorCode::NotPermitted, message));
        }
        Ok(Self { way: client.way(), command, directory, begun, words })
    }

    /// Runs the command to its end; see [`command::run`].
    pub fn run(
        &self,
        group: Group<'_>,
        every: Duration,
        progress: impl FnMut(Duration, &[u8]) -> io::Result<()>,
    ) -> io::Result<Ran> {
        command::run(&self.command, &self.directory, group, every, progress)
    }

    /// Has the command's end recorded, and returns what is held and what has changed since it began.
    pub fn end(&self, status: i32) -> Result<CheckReply, ErrorBody> {
        let phase = if status == 0 { CheckPhase::Passed } else { CheckPhase::Failed };
        self.ask(&Request {
            name: Some(name_of(&self.words)),
            tested: Some(self.begun.tested.clone()),
            status: Some(status),
            ..asking(phase)
        })
    }

    /// True if something is to land, or was to when the command started: a change that is no longer held counts as moved.
    pub fn lands(&self, ended: &CheckReply) -> bool {
        self.begun.held_count > 0 || ended.held_count > 0
    }

    /// True if something would land, and is not what the command has tested.
    pub fn has_moved(&self, ended: &CheckReply) -> bool {
        self.lands(ended) && !ended.moved.is_empty()
    }

    /// Lands what was tested, if exactly that is still held.
    pub fn promote(&self) -> Result<CheckReply, ErrorBody> {
        let request = Request { tested: Some(self.begun.tested.clone()), ..asking(CheckPhase::Promote) };
        self.ask(&request)
    }

    /// Asks whatever answers now.
    fn ask(&self, request: &Request) -> Result<CheckReply, ErrorBody> {
        let (start, offline) = &self.way;
        ask(&mut Client::open(start, *offline)?, request)
    }
}

impl Checked<'_> {
    /// The stable JSON of a check whose command has passed. `outcomes` is what landed, if anything was to. Where
    /// something has moved it is a refusal, because what is held now was not tested.
    pub fn passed_json(&self, has_moved: bool, outcomes: Option<&[Outcome]>) -> Value {
        let mut told = json!({"passed": true, "moved": self.reply.moved, "outcomes": outcomes});
        if has_moved {
            (told["ok"], told["error"]) = (false.into(), json!(ErrorBody::new(ErrorCode::Conflict, HAS_MOVED)));
        }
        self.to_json(told)
    }

    /// The same of a check whose command has failed.
    pub fn failed_json(&self) -> Value {
        self.to_json(json!({"passed": false}))
    }

    /// Adds `rest` to the fields that are always there.
    fn to_json(&self, rest: Value) -> Value {
        let mut value = json!({
            "v": 1, "ok": true, "op": "check", "command": self.words, "status": self.ran.status,
            "seconds": self.ran.took.as_secs_f64(), "tail": String::from_utf8_lossy(&self.ran.tail),
            "held": self.reply.held, "held_count": self.reply.held_count,
        });
        if let (Some(value), Value::Object(rest)) = (value.as_object_mut(), rest) {
            value.extend(rest);
        }
        value
    }
}

/// Returns the directory of the view that corresponds to the one where the program was started.
fn directory_in_view(client: &mut Client) -> Result<PathBuf, ErrorBody> {
    let place = client.place().clone();
    let refused = |why: &str| {
        let message = format!("{}: {why}", place.root.display());
        ErrorBody::new(ErrorCode::NotMounted, message)
    };
    match client.reach() {
        Reach::View(_) => return Ok(place.start),
        Reach::Offline => {
            return Err(refused("nothing is mounted, so there is no view to run it in; `fettlefs mount` makes one"));
        }
        Reach::Socket(_) | Reach::Stale(_) => {}
    }
    let Reply::Status(status) = client.ask(&Request::new(Op::Status))? else { return Err(other_answer()) };
    let below = place.start.strip_prefix(&place.root).unwrap_or(Path::new("")).to_owned();
    let view = status.mountpoint.map(PathBuf::from).filter(|mountpoint| is_view(mountpoint));
    let view = view.ok_or_else(|| refused("its view cannot be reached from here; run check where it is mounted"))?;
    Ok(view.join(below))
}

/// True if a mountpoint is a view from here. One in another mount namespace is a plain directory here.
fn is_view(mountpoint: &Path) -> bool {
    let reached = find(mountpoint).and_then(|place| reach(&place));
    matches!(reached, Ok(Reach::View(_)))
}

fn asking(phase: CheckPhase) -> Request {
    Request { phase: Some(phase), ..Request::new(Op::Check) }
}

fn ask(client: &mut Client, request: &Request) -> Result<CheckReply, ErrorBody> {
    match client.ask(request)? {
        Reply::Check(reply) => Ok(*reply),
        _ => Err(other_answer()),
    }
}

fn words_of(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| shell_word(&word.to_string_lossy())).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_as_a_shell_takes_it() {
        let command = ["make", "-j2", "a b", "", "it's", "$HOME"].map(OsString::from);
        assert_eq!(words_of(&command), r"make -j2 'a b' '' 'it'\''s' '$HOME'");
    }
}
