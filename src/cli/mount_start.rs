//! Puts the layers together and starts a mount.
//!
//! Everything that can be refused is refused up front, by [`plan`]. Then the process forks while it has one thread: the
//! child is the [`watchdog`], its child the daemon ([`daemon`]), whose child is its [`Guard`], and the parent waits for
//! them to report. A refusal travels as the JSON of its error, so that it keeps its code.

mod bystanders;
mod daemon;
mod logger;
mod options;
mod plan;
mod watchdog;

use std::io::{self, Write};
use std::os::fd::AsFd;

use super::mount::{Ground, MountArgs};
use super::terminal::Style;
use super::text::Text;
use super::{Failure, sources};
use crate::client::patiently;
use crate::protocol::{ErrorBody, ErrorCode};
use crate::sys::daemon::{Forked, Output, ReadySignal, fork};
use crate::sys::guard::Guard;
use crate::sys::inherited;
use crate::sys::keeper::Keeper;
use crate::sys::signals::Termination;
use daemon::{Daemon, Found};
use options::Options;
pub use options::{is_known as is_known_option, words_of};
use plan::Plan;
pub use plan::{directory, take_away, take_dead_away};

/// Mounts. In the background it returns once the view answers, in the foreground once the view is gone.
pub fn start(arguments: MountArgs) -> Result<(), Failure> {
    let ground = arguments.ground;
    let plan = look_at(arguments, Plan::make)?;
    sources::unknown_variables().for_each(say);
    match ground {
        Ground::Foreground => {
            inherited::survive().map_err(|err| told("lift the limits of the shell", &err))?;
            let guard = guard();
            let termination = Termination::block().map_err(|err| told("block signals", &err))?;
            let daemon = begin(&plan, termination, guard, None)?;
            tell_systemd();
            daemon.serve_until_the_end().map_err(Failure::from)
        }
        Ground::Background => match fork().map_err(|err| told("fork", &err))? {
            Forked::Parent(readiness) => match readiness.wait() {
                Ok(Ok(_watched)) => Ok(()),
                Ok(Err(reason)) => Err(refusal(&reason).into()),
                Err(err) => {
                    plan.take_unwatched_away()?;
                    Err(told("start the daemon", &err))
                }
            },
            Forked::Child(signal) => be_the_watchdog(plan, signal),
        },
    }
}

/// Runs `look` patiently, since a mount that is there already may have a stopped daemon behind it.
fn look_at<T: Send + 'static>(arguments: MountArgs, look: fn(&MountArgs) -> Result<T, Failure>) -> Result<T, Failure> {
    let project = arguments.project.clone();
    let mountpoint = arguments.mountpoint.clone().unwrap_or_else(|| project.clone());
    patiently(&[&project, &mountpoint], move || look(&arguments))?
}

/// Tells the service manager that the view answers, if this process was started as a service; otherwise does nothing.
fn tell_systemd() {
    if let Err(err) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        say(format_args!("tell the service manager: {err}"));
    }
}

/// Finds what is wrong with a mount from its arguments alone, without side effects.
pub fn rehearse(arguments: MountArgs) -> Result<(), Failure> {
    Options::parse(&arguments.options)?;
    look_at(arguments, plan::places).map(|_places| ())
}

/// The watchdog's whole life; never returns into the caller's code, which belongs to the parent.
fn be_the_watchdog(plan: Plan, signal: ReadySignal) -> ! {
    if let Err(err) = inherited::leave_behind() {
        said(signal.failed(&format!("leave behind what the shell has given: {err}")));
        std::process::exit(1)
    }
    match watchdog::watch(plan, signal) {
        Ok(()) => std::process::exit(0),
        Err(failure) => {
            say(failure.message());
            std::process::exit(1)
        }
    }
}

/// The daemon's whole life. The parent prints a failure to start; a failure at the end goes to the log.
fn be_the_daemon(plan: &Plan, keeper: Option<&Keeper>, signal: ReadySignal) -> ! {
    let guard = guard();
    let begun = Termination::block().map_err(|err| told("block signals", &err));
    let begun = begun.and_then(|termination| {
        let daemon = begin(plan, termination, guard, keeper)?;
        match daemon.log_file() {
            Ok(log) => Ok((daemon, log)),
            Err(failure) => daemon.give_up().and(Err(failure)),
        }
    });
    let (daemon, log) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            said(signal.failed(&text_of(&failure)));
            std::process::exit(1)
        }
    };
    let ended = match signal.ready(Output::Log(log.as_fd())) {
        // The watchdog is gone, and the waiting caller reports a failed mount.
        Err(err) if plan.is_first_start() => daemon.give_up().and(Err(told("tell the watchdog", &err))),
        word => {
            said(word);
            logger::keep_short(log);
            daemon.serve_until_the_end().map_err(Failure::from)
        }
    };
    if let Err(err) = plan.let_go() {
        log::warn!("let go of the project: {err}");
    }
    match ended {
        Ok(()) => std::process::exit(0),
        Err(failure) => {
            log::error!("{}", failure.message());
            std::process::exit(1)
        }
    }
}

/// Logs that the parent is gone and was not told. If it was the watchdog, restarting a daemon, this one runs unwatched.
fn said(word: io::Result<()>) {
    if let Err(err) = word {
        log::warn!("tell the waiting process: {err}");
    }
}

fn text_of(failure: &Failure) -> String {
    match failure {
        Failure::Told(body) => serde_json::to_string(body).unwrap_or_else(|_| body.message.clone()),
        Failure::Print(err) => err.to_string(),
    }
}

fn refusal(reason: &str) -> ErrorBody {
    serde_json::from_str(reason).unwrap_or_else(|_| ErrorBody::new(ErrorCode::Io, reason))
}

/// Starts the daemon's guard. A mount without a guard is better than none.
fn guard() -> Option<Guard> {
    match Guard::start() {
        Ok(guard) => Some(guard),
        Err(err) => {
            say(format_args!("start the daemon's guard: {err}"));
            None
        }
    }
}

fn begin(
    plan: &Plan,
    termination: Termination,
    guard: Option<Guard>,
    keeper: Option<&Keeper>,
) -> Result<Daemon, Failure> {
    logger::install();
    let (daemon, found) = Daemon::begin(plan, termination, guard, keeper)?;
    say_what_was_found(&found);
    Ok(daemon)
}

/// Prints a remark for people. A failure to print it is no reason not to mount.
pub(super) fn say(remark: impl std::fmt::Display) {
    let style = Style::of(&io::stderr());
    let mut text = Text::new(&style);
    text.put("fettlefs: ").name(remark.to_string()).put("\n");
    if let Err(_nobody) = io::stderr().write_all(&text.into_bytes()) {}
}

fn say_what_was_found(Found { recovered, below }: &Found) {
    recovered.told().for_each(|(path, words)| say(format_args!("recovery: {path}: {words}")));
    if recovered.swept > 0 {
        say(format_args!("leftover files of its own that recovery removed: {}", recovered.swept));
    }
    recovered.told_of_files().iter().for_each(|words| say(format_args!("recovery: {words}")));
    below.iter().for_each(say);
}

fn told(what: &str, err: &io::Error) -> Failure {
    super::offline::failure(what, err).into()
}
