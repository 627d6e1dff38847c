//! The process between `mount` and the daemon: it starts the daemon, sleeps, and starts another when it died (SPEC §10).
//!
//! ```text
//!   mount ──fork──► watchdog ──fork──► daemon
//!     ▲── its word ────┘ ▲── its word ────┤
//!                        └── its end ─────┘ asked, signalled, unmounted: the watchdog ends too
//!                                           died: dead mount away, recovery, mount; in vain: the project is bare
//! ```
//! It has one thread and holds nothing: neither the lock nor the device nor a descriptor of the project.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::daemon::open_log;
use super::plan::Plan;
use super::{be_the_daemon, say, told};
use crate::cli::Failure;
use crate::sys::daemon::{Child, Ending, Forked, Output, ReadySignal, fork, redirect_standard_descriptors};

/// A daemon that dies more often than this within [`DEATHS_WITHIN`] dies of something that another start does not cure.
const DEATHS_MAX: usize = 3;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// The watchdog's whole life. Whoever called `mount` hears of the first daemon's start; of later ones the log tells.
pub fn watch(plan: &Plan, caller: ReadySignal) -> Result<(), Failure> {
    let mut daemon = match start(plan) {
        Ok(daemon) => daemon,
        Err(reason) => return caller.failed(&reason).map_err(|err| told("tell the waiting process", &err)),
    };
    if let Err(_gone) = caller.ready(Output::Null) {
        // Interrupted; the mount it asked for stands all the same.
    }
    let mut deaths = Vec::new();
    loop {
        match daemon.wait().map_err(|err| told("wait for the daemon", &err))? {
            Ending::Exited(_) => return Ok(()),
            death @ Ending::Killed(_) => {
                deaths.retain(|then: &Instant| then.elapsed() < DEATHS_WITHIN);
                deaths.push(Instant::now());
                daemon = replace(plan, death, deaths.len())?;
            }
        }
    }
}

/// A daemon that answers, or why there is none: the JSON of an error, as the daemon says it.
fn start(plan: &Plan) -> Result<Child, String> {
    match fork() {
        Ok(Forked::Parent(readiness)) => readiness.wait().map_err(|err| format!("start the daemon: {err}"))?,
        Ok(Forked::Child(signal)) => be_the_daemon(plan, signal),
        Err(err) => Err(format!("fork: {err}")),
    }
}

/// The dead mount is gone when this returns, with another in its place or none.
fn replace(plan: &Plan, death: Ending, deaths: usize) -> Result<Child, Failure> {
    let free = plan.check();
    if let Err(err) = write_to_log(plan) {
        say(format_args!("open the log: {err}"));
    }
    say(format_args!("the daemon {death}"));
    free?;
    if deaths > DEATHS_MAX {
        let within = DEATHS_WITHIN.as_secs();
        say(format_args!("that was the {deaths}th time in {within} s: no further start; the project is not covered"));
        std::process::exit(1);
    }
    start(plan).map_err(|reason| super::refusal(&reason).into())
}

fn write_to_log(plan: &Plan) -> io::Result<()> {
    let log = open_log(std::fs::File::open(plan.state_directory())?.as_fd())?;
    redirect_standard_descriptors(Output::Log(log.as_fd()))
}
