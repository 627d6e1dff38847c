//! The process between `mount` and the daemon: it starts the daemon, sleeps, and starts another if it died (SPEC §10).
//!
//! ```text
//!   mount ──fork──► watchdog ──fork──► daemon
//!     ▲── its word ────┘ ▲── its word ────┤
//!                        └── its end ─────┘ asked, signalled, unmounted: the watchdog ends too
//!                                           died: recovery, mount over the dead one; in vain: all mounts away, the
//!                                           project is bare
//! ```
//! A dead mount keeps everyone out of the project until another covers it; the new daemon reaches the project by a
//! descriptor from before both ([`Plan::open_lower`]). The dead mount is taken away together with the one above it. (An
//! ordinary user's goes first, since `fusermount3` does not mount over a dead one: then there is a moment without a
//! mount.) For runs the keeper mounts, and what lies over their project stays.
//!
//! The next daemon works with the state that the dead one had, or not at all: if that state is gone, with its disk for
//! instance, none is created in its place.
//!
//! It has one thread, and holds neither the lock nor the device nor an open descriptor of the project.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::daemon::{mount_for_runs, open_log};
use super::plan::Plan;
use super::{be_the_daemon, say, text_of, told};
use crate::cli::Failure;
use crate::cli::mount::Audience;
use crate::protocol::ErrorCode;
use crate::sys::daemon::{Child, Ending, Forked, Output, ReadySignal, fork, redirect_standard_descriptors};
use crate::sys::keeper::Keeper;

/// If the daemon dies more often than this within [`DEATHS_WITHIN`], restarting does not cure the cause.
const DEATHS_MAX: usize = 3;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// The watchdog's whole life. The caller of `mount` hears about the first daemon's start; later ones report to the log.
pub fn watch(mut plan: Plan, caller: ReadySignal) -> Result<(), Failure> {
    let started = keeper(&plan).and_then(|keeper| Ok((start(&plan, keeper.as_ref())?, keeper)));
    let (mut daemon, keeper) = match started {
        Ok(started) => started,
        Err(reason) => {
            if let Err(failure) = plan.leave_as_found() {
                say(failure.message());
            }
            return caller.failed(&reason).map_err(|err| told("tell the waiting process", &err));
        }
    };
    if let Err(failure) = plan.know_state() {
        say(format_args!("no other daemon comes should this one die: {}", failure.message()));
    }
    know_mount(&mut plan);
    if let Err(_gone) = caller.ready(Output::Null) {
        // The caller was interrupted; the mount it asked for stands all the same.
    }
    let mut deaths = Vec::new();
    loop {
        match daemon.wait().map_err(|err| told("wait for the daemon", &err))? {
            Ending::Exited(0) => return Ok(()),
            // It may not have got as far as taking its mount away.
            Ending::Exited(_) => return plan.take_dead_mounts_away(),
            death @ Ending::Killed(_) => {
                deaths.retain(|then: &Instant| then.elapsed() < DEATHS_WITHIN);
                deaths.push(Instant::now());
                daemon = replace((&mut plan, keeper.as_ref()), death, deaths.len())?;
                know_mount(&mut plan);
            }
        }
    }
}

/// Starts the keeper for runs, which mounts in their namespace, and does so again if a daemon died.
fn keeper(plan: &Plan) -> Result<Option<Keeper>, String> {
    match plan.audience {
        Audience::Everyone => Ok(None),
        Audience::Runs => match Keeper::start(|leave| mount_for_runs(plan, leave)) {
            Ok(keeper) => Ok(Some(keeper)),
            Err(err) => Err(text_of(&no_namespace(&err))),
        },
    }
}

/// The error for a user who may not have mounts of their own, with the remedies.
fn no_namespace(err: &io::Error) -> Failure {
    let message = format!(
        "no mount namespace of one's own: {err}. Either as root, or with user namespaces allowed (sysctl \
         user.max_user_namespaces above 0; where they are: kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0; not in a container without --cap-add SYS_ADMIN)"
    );
    Failure::new(ErrorCode::NotPermitted, message)
}

/// Returns a daemon that answers, or why there is none, as the JSON of the daemon's error.
fn start(plan: &Plan, keeper: Option<&Keeper>) -> Result<Child, String> {
    match fork() {
        Ok(Forked::Parent(readiness)) => readiness.wait().map_err(|err| format!("start the daemon: {err}"))?,
        Ok(Forked::Child(signal)) => be_the_daemon(plan, keeper, signal),
        Err(err) => Err(format!("fork: {err}")),
    }
}

/// If the mount is not found, the next one goes where it was to be.
fn know_mount(plan: &mut Plan) {
    if let Err(failure) = plan.know_mount() {
        say(format_args!("look for the view in the mount table: {}", failure.message()));
    }
}

/// Starts another daemon in place of the dead one. If that fails, the dead mounts are taken away as well.
fn replace((plan, keeper): (&mut Plan, Option<&Keeper>), death: Ending, deaths: usize) -> Result<Child, Failure> {
    if let Err(failure) = write_to_log(plan) {
        say(format_args!("open the log: {}", failure.message()));
    }
    say(format_args!("the daemon {death}"));
    let another = if deaths > DEATHS_MAX { Err(given_up(plan, deaths)) } else { start_again(plan, keeper) };
    if another.is_err() {
        plan.take_dead_mounts_away()?;
    }
    another
}

fn start_again(plan: &mut Plan, keeper: Option<&Keeper>) -> Result<Child, Failure> {
    drop(plan.open_known_state()?);
    plan.follow_mount()?;
    plan.check_again()?;
    start(plan, keeper).map_err(|reason| super::refusal(&reason).into())
}

fn given_up(plan: &Plan, deaths: usize) -> Failure {
    let left = match plan.audience {
        Audience::Everyone => "the project is not covered",
        Audience::Runs => "the view of what runs stays shut",
    };
    let within = DEATHS_WITHIN.as_secs();
    Failure::new(ErrorCode::Io, format!("that was the {deaths}th time in {within} s: no further start; {left}"))
}

fn write_to_log(plan: &Plan) -> Result<(), Failure> {
    let state = plan.open_known_state()?;
    let log = open_log(state.as_fd()).and_then(|log| redirect_standard_descriptors(Output::Log(log.as_fd())));
    log.map_err(|err| told("open the daemon's log", &err))
}
