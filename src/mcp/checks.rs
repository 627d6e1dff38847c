//! `check` for a caller that may stop waiting: then the command is ended, and nothing lands.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Desk;
use super::arguments::CheckArguments;
use crate::client::{Check, Checked, Group};
use crate::protocol::{ErrorBody, ErrorCode};

/// How often to ask whether the caller still waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often to report that the command still runs: clients give up after some tens of seconds of silence.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// The status that a shell reports for a command that SIGTERM ended.
const ENDED_BY_US: i32 = 128 + libc::SIGTERM;
/// Why a command was ended, or not started.
const NOBODY_WAITS: &str = "ended, for nobody waits for it";
/// How many characters of the command's last line a progress message repeats.
const LINE_CHARS_MAX: usize = 200;

/// Takes the seconds that a command has run, and the message about it.
pub type Tell = Box<dyn Fn(f64, String) -> io::Result<()> + Send>;

/// The caller that waits for the answer to one call.
pub struct Waiting {
    pub cancelled: CancellationToken,
    pub gone: CancellationToken,
    /// `None` if the caller wants no progress.
    pub tell: Option<Tell>,
}

impl Waiting {
    pub fn is_over(&self) -> bool {
        self.cancelled.is_cancelled() || self.gone.is_cancelled()
    }
}

/// Runs a check, and returns the JSON of `fettlefs check --json`, whether it passed or failed.
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
                // Looking for what has changed since the start may have taken long.
                true if waiting.is_over() => {
                    let message = format!("{words} passed, and nothing was promoted: {NOBODY_WAITS}");
                    return Err(ErrorBody::new(ErrorCode::Io, message));
                }
                true => Some(check.promote()?.outcomes),
                false => None,
            };
            let checked = Checked { words, ran: &ran, reply: &reply };
            Ok(checked.passed_json(check.has_moved(&reply), outcomes.as_deref()))
        }
        // What the command printed is worth more than the failure to record it.
        (_, reply) => {
            let reply = reply.as_ref().unwrap_or(&check.begun);
            Ok(Checked { words, ran: &ran, reply }.failed_json())
        }
    }
}

/// Returns a function that fails once the caller waits no more, and until then reports progress now and then.
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

/// Records the end of a check that has begun, which is due in the log even if the caller is gone.
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
