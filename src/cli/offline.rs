//! Answers from the state directory, with no mount present (SPEC §3).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mount::SettingFlags;
use super::{repository, sources};
use crate::client::{Client, DeadMount, Place};
use crate::control::{self, Asker, Project, Served, serve};
use crate::overlay::{self, Grants, Overlay, Policy, PolicyError, Runs};
use crate::protocol::{ErrorBody, ErrorCode, Op, Request, Response, STATE_DIRECTORY};
use crate::store::{self, HolderNote, Location, Lock, StateDirs, Store};
use crate::sys::file::Meta;
use crate::sys::mount;
use crate::sys::process;
use crate::sys::tree::Tree;
use rustix::fs::{Mode, OFlags};

const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Answers one request under the project's lock.
pub fn answer(place: &Place, request: &Request) -> Response {
    match request.op {
        Op::Unmount | Op::Check | Op::Run | Op::Leave => Response::failed(not_mounted(place, request)),
        _ => answer_locked(place, request).unwrap_or_else(Response::failed),
    }
}

fn answer_locked(place: &Place, request: &Request) -> Result<Response, ErrorBody> {
    let location = sources::location()?;
    let lower = Tree::open(&place.root).map_err(|err| failure(&format!("open {}", place.root.display()), &err))?;
    if !StateDirs::exist(&lower, &location).map_err(store_failure)? {
        return Err(not_mounted(place, request));
    }
    let _lock = Lock::take(&lower, &location).map_err(store_failure)?;
    let project = open(place, lower, &location, request.op)?;
    let Served { response, receipt } = serve(request, &Asker::myself(project.overlay.runs()), &project);
    if let Some(receipt) = receipt {
        receipt.note(&project);
    }
    repository::tell(&place.root, &project.overlay, false);
    // The note only words messages, while what was asked for is done.
    if let Err(err) = project.overlay.store().dirs().clear_holder() {
        log::warn!("{err}");
    }
    Ok(response)
}

/// Checks that the caller may take a dead view away or mount over it: a process that a run has started may not. Where the
/// state directory cannot be reached below the view, the kernel denies both to the processes of runs.
pub fn check_outside(doing: &str, dead: &DeadMount) -> Result<(), ErrorBody> {
    let Some(lower) = below(dead) else { return Ok(()) };
    let location = sources::location()?;
    if !StateDirs::exist(&lower, &location).map_err(store_failure)? {
        return Ok(());
    }
    let _lock = match Lock::take(&lower, &location).map_err(store_failure) {
        Err(busy) if busy.code == ErrorCode::Busy => {
            return check_with_holder(dead, &lower, &location).unwrap_or(Err(busy));
        }
        taken => taken?,
    };
    let store = Store::open(&lower, &location).map_err(unopened)?;
    let runs = Runs::after_others(&store).map_err(|err| ErrorBody::new(ErrorCode::Io, err.to_string()))?;
    control::check_outside(doing, std::process::id(), &runs)
}

/// Asks a daemon that has the project, for a view elsewhere, if the caller is outside. `None`: it does not answer yet.
fn check_with_holder(dead: &DeadMount, lower: &Tree, location: &Location) -> Option<Result<(), ErrorBody>> {
    let covered = || PathBuf::from(format!("/proc/self/fd/{}/{STATE_DIRECTORY}", lower.root().as_raw_fd()));
    let (root, state) = (dead.project.clone(), location.state.clone().unwrap_or_else(covered));
    let mut holder = Client::of_holder(Place { start: root.clone(), root, state }, answer).ok()?;
    // Forced, because runs in its own view are no reason to keep this one.
    let unmount = Request { dry_run: true, force: true, ..Request::new(Op::Unmount) };
    Some(match holder.ask(&unmount) {
        Ok(_) => Ok(()),
        Err(refused) if refused.code == ErrorCode::NotPermitted => Err(refused),
        // It gave no verdict: the caller is to try again.
        Err(unsaid) => Err(ErrorBody { code: ErrorCode::Busy, ..unsaid }),
    })
}

/// Opens the project of a dead mount, which may cover it.
fn below(DeadMount { project, .. }: &DeadMount) -> Option<Tree> {
    let covered = || rustix::fs::openat(mount::open_covered(project).ok()?, ".", TO_READ, Mode::empty()).ok();
    match mount::is_dead(project) {
        true => Tree::from_root(covered()?).ok(),
        false => Tree::open(project).ok(),
    }
}

/// Ends the session of a daemon that has died, whose mount a person has taken away. An error if another process has the
/// project.
pub fn end_session(place: &Place) -> Result<(), ErrorBody> {
    let location = sources::location()?;
    let lower = Tree::open(&place.root).map_err(|err| failure(&format!("open {}", place.root.display()), &err))?;
    if !StateDirs::exist(&lower, &location).map_err(store_failure)? {
        return Ok(());
    }
    let _lock = Lock::take(&lower, &location).map_err(store_failure)?;
    let project = open(place, lower, &location, Op::Unmount)?;
    let overlay = &project.overlay;
    repository::tell(&project.path, overlay, false);
    overlay.session_ended().map_err(|err| ErrorBody::new(ErrorCode::Io, err.to_string()))?;
    overlay.store().dirs().clear_holder().map_err(store_failure)
}

fn not_mounted(place: &Place, request: &Request) -> ErrorBody {
    let message = format!("{}: {} is not mounted", request.op, place.root.display());
    ErrorBody::new(ErrorCode::NotMounted, message)
}

/// True if a daemon died here and no other has replaced it: one that ends properly removes its note.
pub fn is_left_by_dead(place: &Place) -> Result<bool, ErrorBody> {
    let location = sources::location()?;
    let lower = Tree::open(&place.root).map_err(|err| failure(&format!("open {}", place.root.display()), &err))?;
    Ok(store::is_daemons(&lower, &location))
}

fn open(place: &Place, lower: Tree, location: &Location, op: Op) -> Result<Project, ErrorBody> {
    // A landing keeps the directory of each of its files open, and so does its recovery.
    if let Err(err) = process::raise_descriptor_limit() {
        log::warn!("raise the limit of open files: {err}");
    }
    let store = Store::open(&lower, location).map_err(unopened)?;
    let note = HolderNote { pid: std::process::id(), mountpoint: None };
    store.write_holder(&note).map_err(store_failure)?;
    let owner = Meta::of(store.dirs().state().as_fd()).map_err(|err| failure("look at the state directory", &err))?.uid;
    let source = sources::rule_source(&place.root, None, &SettingFlags::default())?;
    let failed = |err: overlay::Error| ErrorBody::new(ErrorCode::Io, err.to_string());
    // Before the rules are read: recovery may land the file that they are read from.
    store.recover(&lower).map_err(|err| failed(err.into()))?;
    let policy = match Policy::load(&lower, &source) {
        Err(err) if !asks_rules(op) => Policy::built_in(&err),
        loaded => loaded.map_err(|err| rules_needed(op, &err))?,
    };
    let overlay = Overlay::new(lower, store, policy, Grants::default()).map_err(failed)?;
    Ok(Project { overlay: Arc::new(overlay), path: place.root.clone(), source, owner, mounted: None })
}

/// True if an operation depends on settings or rules. Held changes can be shown and dropped without them, but what lands
/// in the project must not be guessed.
fn asks_rules(op: Op) -> bool {
    match op {
        // The end of a session purges.
        Op::Confirm | Op::Rollback | Op::Undo | Op::Patch | Op::Reload | Op::Unmount => true,
        Op::Status
        | Op::Diff
        | Op::Discard
        | Op::Backups
        | Op::Log
        | Op::Blame
        | Op::Events
        | Op::External
        | Op::RequestReview
        | Op::Fsck => false,
        Op::Read | Op::Meter | Op::Check | Op::Flush | Op::Run | Op::Leave | Op::Version => false,
    }
}

fn rules_needed(op: Op, unread: &PolicyError) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadRequest, format!("{op} needs the rules, and they cannot be read: {unread}"))
}

/// Held changes need a writable state directory, even to be looked at.
fn unopened(err: store::Error) -> ErrorBody {
    let is_read_only =
        matches!(&err, store::Error::Io { cause, .. } if cause.kind() == io::ErrorKind::ReadOnlyFilesystem);
    let mut failure = store_failure(err);
    if is_read_only {
        failure.message.push_str("; what is held there can be reviewed once it is read-write");
    }
    failure
}

pub(super) fn store_failure(err: store::Error) -> ErrorBody {
    let code = match &err {
        store::Error::Locked { .. } | store::Error::InUse { .. } => ErrorCode::Busy,
        store::Error::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
        store::Error::Conflict { .. } => ErrorCode::Conflict,
        store::Error::Io { .. }
        | store::Error::Unkept { .. }
        | store::Error::Halted(_)
        | store::Error::Database(_)
        | store::Error::Damaged { .. }
        | store::Error::Unrecorded(_) => ErrorCode::Io,
    };
    ErrorBody::new(code, err.to_string())
}

pub(super) fn failure(what: &str, err: &io::Error) -> ErrorBody {
    let code = match err.kind() {
        io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorCode::UnknownPath,
        _ => ErrorCode::Io,
    };
    ErrorBody::new(code, format!("{what}: {err}"))
}

/// The failure to write a file. Unlike [`failure`] it does not call a missing directory an unknown path.
pub(super) fn unwritten(path: &Path, err: &io::Error) -> ErrorBody {
    let code = match err.kind() {
        io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
        _ => ErrorCode::Io,
    };
    ErrorBody::new(code, format!("write {}: {err}", path.display()))
}

#[cfg(test)]
mod tests;
