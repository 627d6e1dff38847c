//! `fettlefs check`: run a command in the view; when it passes, what it tested may land.

mod command;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::desk::{Answer, Desk};
use super::outcome::{self, Tense};
use super::terminal::Ink;
use super::text::Text;
use super::words::plural;
use super::{Failure, held, offline};
use crate::client::{self, Client, Reach};
use crate::protocol::{CheckPhase, CheckReply, ErrorBody, ErrorCode, Exit, Held, Op, Outcome, Reply, Request};
use command::Ran;

/// Ids that are named one by one in what a person may type next.
const IDS_TYPED_MAX: usize = 10;
/// Held changes that the report of a failure shows.
const HELD_SHOWN_MAX: usize = 20;

/// Run a command in the view, and let everything held land if it passes
///
/// What is held lands as one transaction, if the command ends with status 0 and nothing in the view has changed since it
/// started. A command that fails gives a short report and status 8.
#[derive(clap::Args)]
pub struct Arguments {
    /// Have it land without asking
    #[arg(long, short = 'y', visible_alias = "yes")]
    confirm: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

/// A check whose command is about to run.
struct Begun {
    /// Where the caller stands: absolute, for the view may be another one when the command ends, or gone.
    start: PathBuf,
    directory: PathBuf,
    reply: CheckReply,
}

/// A check whose command has ended.
struct Checked<'a> {
    words: &'a str,
    ran: &'a Ran,
    began: &'a Begun,
    reply: &'a CheckReply,
}

impl Begun {
    /// Asks whoever answers by now.
    fn ask(&self, request: &Request) -> Result<CheckReply, Failure> {
        ask(&mut Client::open(&self.start, offline::answer)?, request)
    }
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let words = words_of(&arguments.command);
    let began = begin(&arguments, &words, desk)?;
    let tell = |took: Duration, line: &[u8]| tell_progress(&words, took, line, desk);
    let ran = command::run(&arguments.command, &began.directory, command::PROGRESS_EVERY, tell);
    let ran = ran.map_err(|err| Failure::new(ErrorCode::Io, format!("run {words}: {err}")))?;
    let phase = if ran.status == 0 { CheckPhase::Passed } else { CheckPhase::Failed };
    let request = Request {
        name: Some(words.clone()),
        tested: Some(began.reply.tested.clone()),
        status: Some(ran.status),
        ..asking(phase)
    };
    let reply = began.ask(&request);
    let checked = |reply| Checked { words: &words, ran: &ran, began: &began, reply };
    match (phase, &reply) {
        (CheckPhase::Passed, Ok(reply)) => passed(&checked(reply), arguments.confirm, desk),
        (CheckPhase::Passed, Err(failure)) => Err(nothing_promoted(failure, &words)),
        (_, Ok(reply)) => report(&checked(reply), desk),
        (_, Err(failure)) => {
            // What the command said is worth more than that nobody could record it.
            let exit = report(&checked(&began.reply), desk)?;
            desk.remark(|text| {
                text.put("fettlefs: the failure was not recorded: ").name(failure.message()).put("\n");
            })?;
            Ok(exit)
        }
    }
}

/// Where the command runs, and what there was when it started.
fn begin(arguments: &Arguments, words: &str, desk: &Desk) -> Result<Begun, Failure> {
    let mut client = desk.client()?;
    let directory = directory_in_view(&mut client)?;
    if !directory.is_dir() {
        let message = format!("{} is no directory of the view", directory.display());
        return Err(Failure::new(ErrorCode::UnknownPath, message));
    }
    let start = client.place().start.clone();
    let reply = ask(&mut client, &Request { name: Some(words.to_owned()), ..asking(CheckPhase::Started) })?;
    match arguments.confirm && !reply.may_promote {
        true => Err(Failure::new(ErrorCode::NotPermitted, "--confirm: you may not confirm changes of this project")),
        false => Ok(Begun { start, directory, reply }),
    }
}

/// The directory of the view that corresponds to where the program was started.
fn directory_in_view(client: &mut Client) -> Result<PathBuf, Failure> {
    let place = client.place().clone();
    let refused = |why: &str| {
        let message = format!("{}: {why}", place.root.display());
        Failure::new(ErrorCode::NotMounted, message)
    };
    match client.reach() {
        Reach::View(_) => return Ok(place.start),
        Reach::Offline => {
            return Err(refused("nothing is mounted, so there is no view to run it in; `fettlefs mount` makes one"));
        }
        Reach::Socket(_) | Reach::Stale(_) => {}
    }
    let Reply::Status(status) = client.ask(&Request::new(Op::Status))? else { return Err(Failure::other_answer()) };
    let below = place.start.strip_prefix(&place.root).unwrap_or(Path::new("")).to_owned();
    let view = status.mountpoint.map(PathBuf::from).filter(|mountpoint| is_view(mountpoint));
    let view = view.ok_or_else(|| refused("its view cannot be reached from here; run check where it is mounted"))?;
    Ok(view.join(below))
}

/// A mountpoint in another namespace is a plain directory here.
fn is_view(mountpoint: &Path) -> bool {
    let reached = client::find(mountpoint).and_then(|place| client::reach(&place));
    matches!(reached, Ok(Reach::View(_)))
}

fn asking(phase: CheckPhase) -> Request {
    Request { phase: Some(phase), ..Request::new(Op::Check) }
}

fn ask(client: &mut Client, request: &Request) -> Result<CheckReply, Failure> {
    match client.ask(request)? {
        Reply::Check(reply) => Ok(*reply),
        _ => Err(Failure::other_answer()),
    }
}

fn tell_progress(words: &str, took: Duration, line: &[u8], desk: &Desk) -> std::io::Result<()> {
    let told = desk.remark(|text| {
        text.put("fettlefs: ").name(words).put(format!(" has run for {}s", took.as_secs()));
        if !line.is_empty() {
            text.put(": ").name(line);
        }
        text.put("\n");
    });
    told.map_err(|failure| std::io::Error::other(failure.message()))
}

fn nothing_promoted(failure: &Failure, words: &str) -> Failure {
    let message = format!("{words} passed, and nothing was promoted: {}", failure.message());
    match failure {
        Failure::Told(body) => Failure::Told(Box::new(ErrorBody { message, ..(**body).clone() })),
        Failure::Print(_) => Failure::new(ErrorCode::Io, message),
    }
}

fn passed(checked: &Checked<'_>, confirm: bool, desk: &Desk) -> Result<Exit, Failure> {
    let reply = checked.reply;
    let may_land = reply.held_count > 0 && reply.may_promote && reply.moved.is_empty();
    let wanted = confirm || (may_land && is_wanted(reply, desk)?);
    // Asked for, it is tried though something has moved, so that the refusal is recorded.
    let outcomes = match wanted && reply.held_count > 0 {
        true => Some(promote(checked)?),
        false => None,
    };
    let value = checked.value(json!({"passed": true, "moved": reply.moved, "outcomes": outcomes}));
    desk.answer_value(value, |text| {
        checked.render_passed(text);
        match &outcomes {
            Some(outcomes) => render_promoted(outcomes, text),
            None => checked.render_offer(text),
        }
    })?;
    Ok(Exit::Done)
}

/// Whether a person who can be asked wants it; where there is none the answer says how.
fn is_wanted(reply: &CheckReply, desk: &Desk) -> Result<bool, Failure> {
    if !desk.can_ask() {
        return Ok(false);
    }
    let question = format!("It passed. Apply {}?", plural(reply.held_count, "held change"));
    Ok(desk.agreed("check", &question)? == Answer::Yes)
}

fn promote(checked: &Checked<'_>) -> Result<Vec<Outcome>, Failure> {
    let request = Request { tested: Some(checked.reply.tested.clone()), ..asking(CheckPhase::Promote) };
    Ok(checked.began.ask(&request)?.outcomes)
}

fn report(checked: &Checked<'_>, desk: &Desk) -> Result<Exit, Failure> {
    let value = checked.value(json!({"passed": false}));
    desk.answer_value(value, |text| checked.render_failed(text))?;
    Ok(Exit::CheckFailed)
}

impl Checked<'_> {
    fn value(&self, rest: Value) -> Value {
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

    fn render_passed(&self, text: &mut Text) {
        text.put("fettlefs: ").ink(Ink::Added, "Passed").put(" ").name(self.words);
        text.put(format!(" ({})\n", seconds(self.ran.took)));
    }

    fn render_offer(&self, text: &mut Text) {
        let CheckReply { held, held_count, may_promote, moved, .. } = self.reply;
        if *held_count == 0 {
            text.put("  Nothing is held.\n");
        } else if !moved.is_empty() {
            text.put("  What is held was not what it tested any more, so nothing lands:\n");
            for line in moved {
                text.put("    ").name(line).put("\n");
            }
        } else if !may_promote {
            text.put(format!("  {} may land; somebody else must confirm.\n", plural(*held_count, "held change")));
        } else if held.len() <= IDS_TYPED_MAX {
            let ids: Vec<&str> = held.iter().map(|held| held.id.as_str()).collect();
            text.put(format!("To apply: fettlefs confirm {}\n", ids.join(" ")));
        } else {
            text.put("To apply: fettlefs check --confirm -- ").name(self.words).put("\n");
        }
    }

    /// Compact, to be pasted to whoever wrote what failed.
    fn render_failed(&self, text: &mut Text) {
        text.put("fettlefs: ").ink(Ink::Warning, "Failed").put(" ").name(self.words);
        text.put(format!(" (status {}, {})\n", self.ran.status, seconds(self.ran.took)));
        if !self.ran.tail.is_empty() {
            text.put("Last lines:\n");
            for line in self.ran.tail.split_inclusive(|byte| *byte == b'\n') {
                text.put("  ").content(line);
            }
            if !self.ran.tail.ends_with(b"\n") {
                text.put("\n");
            }
        }
        self.render_held(text);
    }

    fn render_held(&self, text: &mut Text) {
        let CheckReply { held, held_count, .. } = self.reply;
        if held.is_empty() {
            text.put("Nothing is held.\n");
            return;
        }
        let shown: &[Held] = &held[..held.len().min(HELD_SHOWN_MAX)];
        text.put("Held, and not in the project:\n");
        held::render_table(shown, text);
        let more = held_count.saturating_sub(shown.len() as u64);
        if more > 0 {
            text.put(format!("  and {more} more\n"));
        }
    }
}

fn render_promoted(outcomes: &[Outcome], text: &mut Text) {
    outcome::render_all(outcomes, Tense::Done, text);
    text.put(format!("fettlefs: Promoted {}\n", plural(outcomes.len() as u64, "change")));
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

/// The command as one would type it, near enough for people.
fn words_of(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
