//! `check` for somebody who may stop waiting: then its command ends, and nothing lands.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Desk;
use super::arguments::CheckArguments;
use crate::client::{Check, Checked, Group};
use crate::protocol::{ErrorBody, ErrorCode};

/// How often it is asked whether somebody still waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often who waits is told that the command still runs: clients give up after some tens of seconds of silence.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// As a shell has it for a command that was asked to end.
const ENDED_BY_US: i32 = 128 + libc::SIGTERM;
/// Why a command was ended, or not begun.
const NOBODY_WAITS: &str = "ended, for nobody waits for it";
/// Characters of the command's last line that a message of progress repeats.
const LINE_CHARS_MAX: usize = 200;

/// Takes the seconds that a command has run, and what to say of them.
pub type Tell = Box<dyn Fn(f64, String) -> io::Result<()> + Send>;

/// Who waits for the answer to one call.
pub struct Waiting {
    pub cancelled: CancellationToken,
    pub gone: CancellationToken,
    /// None: nobody wants to know.
    pub tell: Option<Tell>,
}

impl Waiting {
    pub fn is_over(&self) -> bool {
        self.cancelled.is_cancelled() || self.gone.is_cancelled()
    }
}

/// Passed or failed: the JSON of `fettlefs check --json`.
pub fn check(arguments: CheckArguments, desk: &Desk, waiting: &Waiting) -> Result<Value, ErrorBody> {
    let command: Vec<OsString> = arguments.command.into_iter().map(OsString::from).collect();
    if command.is_empty() {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "check of what? `command` is empty"));
    }
    let check = Check::begin(desk.client()?, command, arguments.confirm)?;
    let words = check.words.as_str();
    if waiting.is_over() {
        return Err(given_up(&check, NOBODY_WAITS));
    }
    let ran = match check.run(Group::Own, LOOK_EVERY, progress(waiting)) {
        Ok(ran) if !waiting.is_over() => ran,
        Err(err) if !waiting.is_over() => return Err(given_up(&check, &err.to_string())),
        Ok(_) | Err(_) => return Err(given_up(&check, NOBODY_WAITS)),
    };
    match (ran.status, check.end(ran.status)) {
        (0, reply) => {
            let reply = reply.map_err(|err| nothing_promoted(err, words))?;
            let outcomes = match arguments.confirm && check.lands(&reply) {
                // Looking at what it tested may have taken long.
                true if waiting.is_over() => {
                    let message = format!("{words} passed, and nothing was promoted: {NOBODY_WAITS}");
                    return Err(ErrorBody::new(ErrorCode::Io, message));
                }
                true => Some(check.promote()?.outcomes),
                false => None,
            };
            let told = json!({"passed": true, "moved": reply.moved, "outcomes": outcomes});
            Ok(Checked { words, ran: &ran, reply: &reply }.to_json(told))
        }
        // What the command said is worth more than that nobody could record it.
        (_, reply) => {
            let reply = reply.as_ref().unwrap_or(&check.begun);
            Ok(Checked { words, ran: &ran, reply }.to_json(json!({"passed": false})))
        }
    }
}

/// An error once nobody waits any more; else tells now and then.
pub(super) fn progress(waiting: &Waiting) -> impl FnMut(Duration, &[u8]) -> io::Result<()> {
    let mut told = Duration::ZERO;
    move |took, line| match &waiting.tell {
        _ if waiting.is_over() => Err(io::ErrorKind::Interrupted.into()),
        Some(tell) if took >= told + TELL_EVERY => {
            told = took;
            let line: String = String::from_utf8_lossy(line).chars().take(LINE_CHARS_MAX).collect();
            tell(took.as_secs_f64(), line)
        }
        Some(_) | None => Ok(()),
    }
}

/// What has begun has an end in the log, whoever waits for it.
fn given_up(check: &Check, why: &str) -> ErrorBody {
    let message = format!("{}: {why}; nothing was promoted", check.words);
    let message = match check.end(ENDED_BY_US) {
        Ok(_) => message,
        Err(err) => format!("{message}; its end was not recorded: {}", err.message),
    };
    ErrorBody::new(ErrorCode::Io, message)
}

fn nothing_promoted(error: ErrorBody, words: &str) -> ErrorBody {
    ErrorBody { message: format!("{words} passed, and nothing was promoted: {}", error.message), ..error }
}
