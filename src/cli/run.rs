//! `fettlefs run`: runs a command in the view, in the foreground, and tells what became of what it wrote.
//!
//! ```text
//!   [`join`] a daemon, or start one ─► fork ─► the command, [`inside`] the view
//!   wait, pass signals on, join again if the daemon died ─► [`end`]: flush, confirm or discard ─► [`summary`] ─► leave
//! ```
//! Its own output goes to standard error: standard output is the command's.

mod end;
mod inside;
mod join;
mod summary;

use std::ffi::OsString;
use std::io::{IsTerminal, stderr, stdin};
use std::time::Duration;

use clap::ValueEnum;

use super::desk::Format;
use super::mount::SettingFlags;
use super::{Desk, Failure, project};
use crate::protocol::{self, ErrorCode, Exit};
use crate::sys::foreground::{Foreground, Front, Happened};
use inside::Inside;
pub use inside::VARIABLES;
use join::Membership;

/// The status of a failure of our own, as of `env`, `timeout` and container programs.
const OWN_FAILURE: u8 = 125;

/// How often to try to rejoin after a daemon died: its watchdog has two seconds to bring back another (SPEC §10).
const JOIN_AGAIN_EVERY: Duration = Duration::from_millis(100);

/// Run a command in the project's view
#[derive(clap::Args)]
pub struct Arguments {
    /// What becomes of changes of this run that are held when it ends
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    on_exit: OnExit,
    /// End with status 1 when the command succeeds and something is held
    #[arg(long)]
    fail_on_held: bool,
    /// In a pid namespace of its own, with a /proc of its own and without capabilities that reach out
    #[arg(long)]
    isolate: bool,
    /// No remarks on what each shell command has changed
    #[arg(long)]
    no_effects: bool,
    #[command(flatten)]
    settings: SettingFlags,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// What becomes of what is held.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    Keep,
    Ask,
    Confirm,
    Discard,
}

/// Returns the status to end with: the command's, or 125.
pub fn run(arguments: Arguments, desk: &Desk) -> u8 {
    run_to_the_end(&arguments, desk).unwrap_or_else(|failure| {
        let printed = match (&failure, desk.format) {
            // Standard output belongs to the command, even if none is started.
            (Failure::Told(body), Format::Json) => summary::print_failed(body, OWN_FAILURE, desk),
            (Failure::Told(_), Format::Human) | (Failure::Print(_), _) => Err(failure),
        };
        if let Err(failure) = printed {
            desk.report(&failure);
        }
        OWN_FAILURE
    })
}

/// Returns the status for a bad command line: that of `run` is 125, because 2 could be the command's own.
pub fn usage_status(exit: Exit, argv: &[OsString]) -> u8 {
    match exit {
        Exit::Usage if is_meant(argv) => OWN_FAILURE,
        exit => exit as u8,
    }
}

/// True if a command line that could not be parsed was meant to begin a run.
pub fn is_meant(argv: &[OsString]) -> bool {
    let mut words = argv.iter().skip(1);
    let command = loop {
        match words.next() {
            Some(word) if word == "-C" => drop(words.next()),
            Some(word) if word.as_encoded_bytes().starts_with(b"-") => {}
            word => break word,
        }
    };
    command.is_some_and(|word| word == "run")
}

fn run_to_the_end(arguments: &Arguments, desk: &Desk) -> Result<u8, Failure> {
    if arguments.on_exit == OnExit::Ask && !(stdin().is_terminal() && stderr().is_terminal()) {
        return Err(Failure::usage("--on-exit ask needs a terminal to ask on"));
    }
    let (directory, project) = project::around(desk)?;
    let mut membership = Membership::join(project, &arguments.settings, &named(&arguments.command))?;
    let inside = Inside {
        way: membership.way().clone(),
        shut_out_of: arguments.isolate.then(|| membership.state_dirs().to_vec()),
        project: membership.project().to_owned(),
        directory,
        command: arguments.command.clone(),
        session: membership.session().to_owned(),
        shells: (!arguments.no_effects).then(|| membership.shell_directory()),
    };
    let foreground = Foreground::prepare().map_err(|err| told("prepare to wait for the command", &err))?;
    let front = foreground.start(|| inside.be_the_command(&foreground));
    let front = front.map_err(|err| told("start the command", &err))?;
    let status = wait(&foreground, front, &mut membership)?;
    let ending =
        end::Ending { on_exit: arguments.on_exit, fail_on_held: arguments.fail_on_held, foreground: &foreground };
    ending.end(status, membership, desk)
}

/// Waits until the command has ended. If the daemon dies meanwhile, the command sees by itself whether it comes back.
fn wait(foreground: &Foreground, front: Front, membership: &mut Membership) -> Result<u8, Failure> {
    loop {
        let (daemon, pause) = match membership.daemon() {
            Some(daemon) => (Some(daemon), None),
            None => (None, Some(JOIN_AGAIN_EVERY)),
        };
        match foreground.wait(front, daemon, pause).map_err(|err| told("wait for the command", &err))? {
            Happened::Ended(status) => return Ok(u8::try_from(status).unwrap_or(u8::MAX)),
            Happened::Told => membership.lose(),
            Happened::TimeIsUp => membership.join_again(),
        }
    }
}

/// The command as it is shown to people.
fn named(command: &[OsString]) -> String {
    let words = command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    protocol::name_of(&words)
}

fn told(what: &str, err: &std::io::Error) -> Failure {
    Failure::new(ErrorCode::Io, format!("{what}: {err}"))
}
