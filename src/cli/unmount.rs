//! `fettlefs unmount`: end a mount; what is held waits for the next one.

use super::desk::Length;
use super::mount_start::{take_away, take_dead_away};
use super::outcome::Tense;
use super::text::Text;
use super::{Desk, Failure, at_least, held, outcome};
use crate::client::{Client, ClientError, DeadMount, Reach, find, reach};
use crate::model::shell_word;
use crate::protocol::{ErrorCode, Exit, Held, HeldAtUnmount, Op, Reply, Request, UnmountReply, VersionReply};
use crate::sys::mount::is_dead;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// End a mount; what is held is kept for the next one
#[derive(clap::Args)]
pub struct Arguments {
    /// The project or the mountpoint
    path: Option<PathBuf>,
    /// Land everything held first
    #[arg(long, conflicts_with = "discard_all")]
    confirm_all: bool,
    /// Drop everything held first; its content is kept as backups
    #[arg(long)]
    discard_all: bool,
    /// For scripts that always say so: unmount never asks
    #[arg(long, short)]
    yes: bool,
    /// Seconds to wait for writers
    #[arg(long, value_name = "SECONDS", value_parser = at_least(0))]
    timeout: Option<u64>,
    /// Do not wait for writers; what they have not closed is held as interrupted
    #[arg(long)]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// How long the daemon may take to end after its answer. It holds the project until then, so that a new mount fails.
const DAEMON_END_WAIT: Timespec = Timespec { tv_sec: 15, tv_nsec: 0 };

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let start = arguments.path.as_deref().map_or_else(|| desk.directory.clone(), |path| desk.directory.join(path));
    let mut client = match Client::open(&start, super::offline::answer) {
        Ok(client) => client,
        Err(ClientError::Stale(dead)) => return detach(&dead, &arguments, desk),
        Err(err) => return Err(err.into()),
    };
    if let Reach::Stale(dead) = client.reach() {
        return detach(dead, &arguments, desk);
    }
    let daemon = if arguments.dry_run { None } else { daemon(&mut client) };
    let answer = client.ask(&request(&arguments))?;
    let Reply::Unmount(reply) = &answer else { return Err(Failure::other_answer()) };
    // The daemon unmounts once nobody reads its answer any more.
    drop(client);
    if let Some(daemon) = daemon {
        wait_for_end(&daemon)?;
    }
    desk.answer(&answer, Length::Short, |text| render(reply, text))?;
    say_who_is_left_inside()?;
    Ok(Exit::Done)
}

/// Tells a caller that stands in the view to leave: its shell keeps a directory in which nothing answers any more.
fn say_who_is_left_inside() -> Result<(), Failure> {
    if is_dead(Path::new(".")) {
        writeln!(io::stderr(), "fettlefs: you stand in the view that is gone: cd .")?;
    }
    Ok(())
}

/// The daemon as a process to wait for. If it is not known, the command just does not wait.
fn daemon(client: &mut Client) -> Option<OwnedFd> {
    match client.ask(&Request::new(Op::Version)) {
        Ok(Reply::Version(VersionReply { pid: Some(pid), .. })) => {
            rustix::process::pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
        }
        Ok(_) | Err(_) => None,
    }
}

pub(super) fn wait_for_end(daemon: &OwnedFd) -> Result<(), Failure> {
    let mut ended = [PollFd::new(daemon, PollFlags::IN)];
    match rustix::event::poll(&mut ended, Some(&DAEMON_END_WAIT)) {
        Ok(0) => Err(Failure::new(ErrorCode::Busy, "the daemon is still ending; what is held is safe")),
        Ok(_) => Ok(()),
        Err(err) => Err(Failure::new(ErrorCode::Io, format!("wait for the daemon: {err}"))),
    }
}

fn request(arguments: &Arguments) -> Request {
    let held = match (arguments.confirm_all, arguments.discard_all) {
        (true, _) => HeldAtUnmount::Confirm,
        (false, true) => HeldAtUnmount::Discard,
        (false, false) => HeldAtUnmount::Keep,
    };
    Request {
        held,
        timeout_seconds: arguments.timeout,
        force: arguments.force,
        dry_run: arguments.dry_run,
        ..Request::new(Op::Unmount)
    }
}

pub fn render(reply: &UnmountReply, text: &mut Text) {
    let tense = if reply.dry_run { Tense::Planned } else { Tense::Done };
    outcome::render_all(&reply.outcomes, tense, text);
    outcome::render_more(reply.more, text);
    text.put(if reply.dry_run { "fettlefs: Would unmount\n" } else { "fettlefs: Unmounted\n" });
    reply.notices.iter().for_each(|notice| text.note(notice));
    if !reply.held.is_empty() {
        text.put("\nHeld for review, also without a mount:\n");
        held::render_table(&reply.held, text);
        let more = reply.held_count.saturating_sub(reply.held.len() as u64);
        if more > 0 {
            text.put(format!("  and {more} more: fettlefs status\n"));
        }
    }
}

/// Takes away a mount whose daemon is gone, and ends the session. Nothing can be lost: what it held is in the state
/// directory.
fn detach(dead: &DeadMount, arguments: &Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mountpoint = &dead.mountpoint;
    if arguments.confirm_all || arguments.discard_all {
        let message = format!(
            "{dead}, and nobody decides for it: `fettlefs unmount {}` detaches it, and `fettlefs confirm` and `fettlefs \
             discard` do without a mount",
            shell_word(&mountpoint.to_string_lossy())
        );
        return Err(Failure::new(ErrorCode::NotMounted, message));
    }
    check_outside(dead)?;
    let mut reply = UnmountReply { dry_run: arguments.dry_run, ..UnmountReply::default() };
    if !arguments.dry_run {
        take_away(mountpoint)?;
        // Those left by daemons that died earlier.
        take_dead_away(mountpoint)?;
        let project = present(dead);
        if let Err(failure) = end_session(project) {
            reply.notices.push(format!("the session goes on at the next mount: {}", failure.message()));
        }
        match waiting(project) {
            Ok(held) => (reply.held_count, reply.held) = (held.len() as u64, held),
            Err(failure) => reply.notices.push(format!("what it held is not known: {}", failure.message())),
        }
    }
    desk.answer(&Reply::Unmount(reply.clone()), Length::Short, |text| render(&reply, text))?;
    Ok(Exit::Done)
}

/// Where the project of a mount that is gone is by now. The mount table names it as it was named at the mount, while a
/// directory above it may have been renamed; a view over the project itself was renamed with it.
fn present(DeadMount { mountpoint, project }: &DeadMount) -> &Path {
    match std::fs::symlink_metadata(project) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => mountpoint,
        Ok(_) | Err(_) => project,
    }
}

/// Ends the session as the daemon would have done, unless there is another daemon by now, or another dead mount.
fn end_session(project: &Path) -> Result<(), Failure> {
    let place = find(project)?;
    match reach(&place)? {
        Reach::Offline => Ok(super::offline::end_session(&place)?),
        Reach::View(_) | Reach::Socket(_) | Reach::Stale(_) => Ok(()),
    }
}

/// Checks that the caller is outside of runs. Damaged state is no reason to refuse: a process that can damage it below a
/// dead view needs no permission to detach that.
fn check_outside(dead: &DeadMount) -> Result<(), Failure> {
    match super::offline::check_outside("unmount", dead) {
        Err(body) if !matches!(body.code, ErrorCode::NotPermitted | ErrorCode::Busy) => {
            super::mount_start::say(format_args!("who is in a run is not known: {}", body.message));
            Ok(())
        }
        checked => Ok(checked?),
    }
}

/// Returns the held changes of a project that is not mounted.
fn waiting(project: &Path) -> Result<Vec<Held>, Failure> {
    let mut client = Client::open(project, super::offline::answer)?;
    match client.ask(&Request::new(Op::Status))? {
        Reply::Status(status) => Ok(status.held),
        _ => Err(Failure::other_answer()),
    }
}
