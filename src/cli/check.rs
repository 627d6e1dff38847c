//! `fettlefs check`: runs a command in the view; if it passes, what it tested may land.

use std::ffi::OsString;
use std::time::Duration;

use super::desk::{Answer, Desk, Done};
use super::outcome::{self, Tense};
use super::terminal::Ink;
use super::text::Text;
use super::{Failure, held};
use crate::client::{Check, Checked, Group, HAS_MOVED, PROGRESS_EVERY};
use crate::model::plural;
use crate::protocol::{CheckReply, ErrorBody, ErrorCode, Exit, Held};
use crate::sys::signals::Termination;

/// How many ids are spelled out in a suggested command.
const IDS_TYPED_MAX: usize = 10;
/// How many held changes the report of a failure shows.
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

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let check = Check::begin(desk.client()?, arguments.command, arguments.confirm)?;
    let words = check.words.as_str();
    let tell = |took: Duration, line: &[u8]| {
        // The command goes on and its end is recorded, whether or not the progress can be printed.
        drop(tell_progress(words, took, line, desk));
        Ok(())
    };
    let failed = |err| Failure::new(ErrorCode::Io, format!("run {words}: {err}"));
    // A signal that ends this process ends the command, and its end is recorded.
    let signals = Termination::block_heeded().map_err(failed)?;
    // When the terminal stops one of them, it stops both.
    let ran = check.run(Group::Callers(&signals), PROGRESS_EVERY, tell).map_err(failed)?;
    let ended = check.end(ran.status);
    signals.unblock().map_err(failed)?;
    let checked = |reply| Checked { words, ran: &ran, reply };
    match (ran.status, ended) {
        (0, Ok(reply)) => passed(&check, &checked(&reply), arguments.confirm, desk),
        (0, Err(error)) => Err(nothing_promoted(error, words)),
        (_, Ok(reply)) => report(&checked(&reply), desk),
        (_, Err(error)) => {
            // What the command printed is worth more than the failure to record it.
            let exit = report(&checked(&check.begun), desk)?;
            desk.remark(|text| {
                text.put("fettlefs: the failure was not recorded: ").name(error.message).put("\n");
            })?;
            Ok(exit)
        }
    }
}

fn tell_progress(words: &str, took: Duration, line: &[u8], desk: &Desk) -> Result<(), Failure> {
    desk.remark(|text| {
        text.put("fettlefs: ").name(words).put(format!(" has run for {}s", took.as_secs()));
        if !line.is_empty() {
            text.put(": ").name(line);
        }
        text.put("\n");
    })
}

fn nothing_promoted(error: ErrorBody, words: &str) -> Failure {
    let message = format!("{words} passed, and nothing was promoted: {}", error.message);
    Failure::Told(Box::new(ErrorBody { message, ..error }))
}

fn passed(check: &Check, checked: &Checked<'_>, confirm: bool, desk: &Desk) -> Result<Exit, Failure> {
    let reply = checked.reply;
    let lands = check.lands(reply);
    let has_moved = check.has_moved(reply);
    let may_land = reply.held_count > 0 && reply.may_promote && reply.moved.is_empty();
    let wanted = confirm || (may_land && is_wanted(reply, desk)?);
    // If `--confirm` was given, it is tried even if something has changed, so that the refusal is recorded.
    let promoted = match wanted && lands {
        true => Some(check.promote()?),
        false => None,
    };
    let outcomes = promoted.as_ref().map(|promoted| promoted.outcomes.as_slice());
    let value = checked.passed_json(has_moved, outcomes);
    let done = if promoted.is_some() { Done::ToldBy("fettlefs log") } else { Done::Nothing };
    desk.answer_value(value, done, |text| {
        render_passed(checked, text);
        match &promoted {
            Some(promoted) => render_promoted(promoted, text),
            None if has_moved => render_moved(&reply.moved, text),
            None => render_offer(checked, text),
        }
    })?;
    // What is held now was not tested, so the status must not suggest confirming it.
    Ok(if has_moved { Exit::Refused } else { Exit::Done })
}

/// Asks a person, if there is one. Otherwise the printed answer tells how to confirm.
fn is_wanted(reply: &CheckReply, desk: &Desk) -> Result<bool, Failure> {
    if !desk.can_ask() {
        return Ok(false);
    }
    let question = format!("It passed. Apply {}?", plural(reply.held_count, "held change"));
    Ok(desk.agreed("check", &question)? == Answer::Yes)
}

fn report(checked: &Checked<'_>, desk: &Desk) -> Result<Exit, Failure> {
    desk.answer_value(checked.failed_json(), Done::Nothing, |text| render_failed(checked, text))?;
    Ok(Exit::CheckFailed)
}

fn render_passed(checked: &Checked<'_>, text: &mut Text) {
    text.put("fettlefs: ").ink(Ink::Added, "Passed").put(" ").name(checked.words);
    text.put(format!(" ({})\n", seconds(checked.ran.took)));
}

fn render_moved(moved: &[String], text: &mut Text) {
    text.put(format!("  {HAS_MOVED}:\n"));
    for line in moved {
        text.put("    ").name(line).put("\n");
    }
}

fn render_offer(checked: &Checked<'_>, text: &mut Text) {
    let CheckReply { held, held_count, may_promote, .. } = checked.reply;
    if *held_count == 0 {
        text.put("  Nothing is held.\n");
    } else if !may_promote {
        text.put(format!("  {} may land; somebody else must confirm.\n", plural(*held_count, "held change")));
    } else if held.len() <= IDS_TYPED_MAX {
        let ids: Vec<&str> = held.iter().map(|held| held.id.as_str()).collect();
        text.put(format!("To apply: fettlefs confirm {}\n", ids.join(" ")));
    } else {
        text.put("To apply: fettlefs check --confirm -- ").name(checked.words).put("\n");
    }
}

/// A compact report, to be pasted back to whoever wrote what failed.
fn render_failed(checked: &Checked<'_>, text: &mut Text) {
    text.put("fettlefs: ").ink(Ink::Warning, "Failed").put(" ").name(checked.words);
    text.put(format!(" (status {}, {})\n", checked.ran.status, seconds(checked.ran.took)));
    if !checked.ran.tail.is_empty() {
        text.put("Last lines:\n");
        for line in checked.ran.tail.split_inclusive(|byte| *byte == b'\n') {
            text.put("  ").content(line);
        }
        if !checked.ran.tail.ends_with(b"\n") {
            text.put("\n");
        }
    }
    render_held(checked, text);
}

fn render_held(checked: &Checked<'_>, text: &mut Text) {
    let CheckReply { held, held_count, .. } = checked.reply;
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

fn render_promoted(promoted: &CheckReply, text: &mut Text) {
    outcome::render_all(&promoted.outcomes, Tense::Done, text);
    outcome::render_more(promoted.more, text);
    let count = promoted.outcomes.len() as u64 + promoted.more;
    text.put(format!("fettlefs: Promoted {}\n", plural(count, "change")));
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}
