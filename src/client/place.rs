//! Which project a directory belongs to, and where its state is.

use super::{ClientError, DeadMount, fettle_mounts, is_root_of, patiently};
use crate::protocol::{INSTANCE_FILE, PROJECT_LINK, STATE_DIRECTORY, STATE_VARIABLE};
use crate::sys::mount::{Device, MountEntry, is_death};
use rustix::process::geteuid;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A project as seen from here: its own directory, or the root of a view of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Absolute. Relative arguments are relative to directories below it.
    pub root: PathBuf,
    /// The state directory; in a view, the virtual one unless a variable names the real one.
    pub state: PathBuf,
    /// Absolute. Relative arguments start from here.
    pub start: PathBuf,
}

/// Returns the nearest directory from `start` upwards that has state, or a view's virtual state directory.
pub fn find(start: &Path) -> Result<Place, ClientError> {
    let start = std::path::absolute(start).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => ClientError::Gone,
        _ if is_death(&cause) => ClientError::Gone,
        _ => io_error("find", start, cause),
    })?;
    let named = std::env::var_os(STATE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let asked = start.clone();
    patiently(&[&start], move || find_with(canonical(&asked)?, named))?
}

/// [`find`], with the variable's value as an argument.
pub(super) fn find_with(start: PathBuf, named_state: Option<PathBuf>) -> Result<Place, ClientError> {
    let is_there = named_state.as_deref().map(is_state_directory).transpose()?;
    if let Some(root) = nearest_root(&start)? {
        let state = named_state.unwrap_or_else(|| root.join(STATE_DIRECTORY));
        return Ok(Place { root, state, start });
    }
    match named_state.filter(|_| is_there == Some(true)) {
        Some(state) => match project_of_state(&state)? {
            Some(project) if !start.starts_with(&project) => Err(ClientError::other_project(&state, project, &start)),
            named => Ok(Place { root: named.unwrap_or_else(|| start.clone()), state, start }),
        },
        None => Err(ClientError::NoProject(start)),
    }
}

/// True if the directory exists. Anything there that is not a directory is an error.
fn is_state_directory(path: &Path) -> Result<bool, ClientError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(_) => Err(io_error("look into state directory", path, io::Error::from_raw_os_error(libc::ENOTDIR))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(err) => Err(io_error("look into state directory", path, err)),
    }
}

fn nearest_root(start: &Path) -> Result<Option<PathBuf>, ClientError> {
    for directory in start.ancestors() {
        let state = directory.join(STATE_DIRECTORY);
        match std::fs::symlink_metadata(&state) {
            Ok(found) if found.is_dir() && is_project(directory, &found)? => return Ok(Some(directory.to_owned())),
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => check_not_shut(directory)?,
            Err(err) if is_missing(&err) => {}
            Err(err) => return Err(unreachable(directory, &state, err)),
        }
    }
    Ok(None)
}

/// True if a directory with a state directory in it is a view's root, or has real state. Inside a view only the root
/// counts: any other state directory was made by a program in the view, perhaps to answer in place of the daemon.
fn is_project(directory: &Path, found: &Metadata) -> Result<bool, ClientError> {
    let device = Device::of(found.dev());
    let mut views = fettle_mounts()?.into_iter().filter(|mount| mount.device == device).peekable();
    if views.peek().is_some() {
        return Ok(views.any(|view| is_root_of(&view, directory)));
    }
    let state = directory.join(STATE_DIRECTORY);
    check_private(&state, directory)?;
    Ok(has_state(&state))
}

/// True if a directory contains state. One that was made by hand, or left empty, does not make its parent a project. One
/// that may not be looked into is taken to have state.
fn has_state(directory: &Path) -> bool {
    match std::fs::symlink_metadata(directory.join(INSTANCE_FILE)) {
        Ok(instance) => instance.is_file(),
        Err(err) => !is_missing(&err),
    }
}

/// Refuses state that is not private to its owner (SPEC §3). A state directory that came with a clone, or lies where
/// others can write, such as `/tmp`, could answer anything. One that cannot be examined fails when it is asked.
pub(super) fn check_private(state: &Path, project: &Path) -> Result<(), ClientError> {
    let owner_of = |path: &Path| std::fs::metadata(path).map(|found| found.uid());
    let Ok(found) = std::fs::metadata(state) else { return Ok(()) };
    let is_ours = found.uid() == geteuid().as_raw() || found.uid() == 0;
    if !has_state(state) {
        Ok(())
    } else if !is_ours && !owner_of(project).is_ok_and(|owner| owner == found.uid()) {
        Err(ClientError::OthersState { state: state.to_owned(), uid: found.uid() })
    } else if found.mode() & 0o077 != 0 {
        Err(ClientError::OpenState(state.to_owned()))
    } else {
        Ok(())
    }
}

/// True if a name is missing. A loop of links is not: that is told.
fn is_missing(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reports a view that another user has mounted for themselves: the kernel lets nobody else into it, not even root. Any
/// other directory that may not be searched cannot be the caller's project.
fn check_not_shut(directory: &Path) -> Result<(), ClientError> {
    let is_shut = |mount: &MountEntry| mount.mountpoint == directory && !mount.is_for_all();
    match fettle_mounts()?.into_iter().find(is_shut) {
        Some(mount) => Err(ClientError::Shut(mount.mountpoint)),
        None => Ok(()),
    }
}

/// Returns the project that a state directory serves. One outside the project has a link to it from its first mount on;
/// any other lies in the project. `None` if it has served none yet.
pub fn project_of_state(state: &Path) -> Result<Option<PathBuf>, ClientError> {
    let link = state.join(PROJECT_LINK);
    match std::fs::read_link(&link) {
        Ok(project) => Ok(Some(project)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(project_around(state)),
        Err(err) => Err(io_error("read", &link, err)),
    }
}

fn project_around(state: &Path) -> Option<PathBuf> {
    let state = std::fs::canonicalize(state).ok().filter(|state| has_state(state))?;
    let is_in_place = state.file_name().is_some_and(|name| name == STATE_DIRECTORY);
    state.parent().filter(|_| is_in_place).map(Path::to_owned)
}

/// Refuses another project's state, which says nothing about this one. Not called in a view, which belongs to its project
/// wherever it is mounted.
pub(super) fn check_state_is_of(place: &Place) -> Result<(), ClientError> {
    match project_of_state(&place.state)? {
        Some(project) if project != place.root => Err(ClientError::other_project(&place.state, project, &place.root)),
        Some(_) | None => Ok(()),
    }
}

/// Resolves symbolic links, so that `..` and prefixes mean what they say. A path through a dead mount cannot be resolved;
/// it stays as it is, and the search then finds the dead mount.
fn canonical(start: &Path) -> Result<PathBuf, ClientError> {
    let no_directory = |cause| Err(ClientError::NoDirectory { path: start.to_owned(), cause });
    match std::fs::canonicalize(start) {
        Ok(path) if std::fs::metadata(&path).is_ok_and(|found| !found.is_dir()) => {
            no_directory(io::ErrorKind::NotADirectory.into())
        }
        Ok(path) => Ok(path),
        Err(err) if is_death(&err) => Ok(start.to_owned()),
        Err(cause) if is_missing(&cause) => no_directory(cause),
        Err(err) => Err(io_error("open", start, err)),
    }
}

fn unreachable(directory: &Path, state: &Path, err: io::Error) -> ClientError {
    match is_death(&err) {
        true => ClientError::Stale(DeadMount::around(directory)),
        false => io_error("look at", state, err),
    }
}

pub(super) fn io_error(what: &'static str, path: &Path, cause: io::Error) -> ClientError {
    ClientError::Io { what, path: path.to_owned(), cause }
}
