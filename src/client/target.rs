//! What a person typed, as the ways in which a daemon may read it (SPEC §8).
//!
//! Only the client knows the working directory, and only the daemon knows which paths and ids there are. So the
//! client sends every reading that is possible, relative to the project, and the daemon takes the one that exists.

use super::Place;
use crate::model::RelPath;
use crate::protocol::Target;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// An argument that can only name something outside the project.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(argument, root))]
pub struct OutsideProject {
    argument: PathBuf,
    root: PathBuf,
}

fn told(argument: &Path, root: &Path) -> String {
    match argument.as_os_str().is_empty() {
        true => format!("an empty argument names nothing in the project {}", root.display()),
        false => format!("{} is outside the project {}", argument.display(), root.display()),
    }
}

/// Every reading of one argument.
pub fn target(place: &Place, argument: &OsStr) -> Result<Target, OutsideProject> {
    let text = argument.to_str();
    let path = project_path(place, argument);
    let id = text.filter(|text| !matches!(*text, "" | "..") && !text.contains('/')).map(str::to_owned);
    let glob = text.filter(|text| Target::is_glob(text)).and_then(|text| project_glob(place, text));
    match (path, &id) {
        (None, None) => Err(OutsideProject { argument: PathBuf::from(argument), root: place.root.clone() }),
        (path, _) => Ok(Target { id, path, glob }),
    }
}

/// The one path an argument names, for what takes no ids.
pub fn path_of(place: &Place, argument: &OsStr) -> Result<RelPath, OutsideProject> {
    let outside = || OutsideProject { argument: PathBuf::from(argument), root: place.root.clone() };
    project_path(place, argument).ok_or_else(outside)
}

/// The argument as a path below the project; none when it leads out of it, or is no path at all. Nothing is not the working
/// directory: a variable that is not set must not name everything.
fn project_path(place: &Place, argument: &OsStr) -> Option<RelPath> {
    if argument.is_empty() {
        return None;
    }
    let lexical = normalize(&place.start.join(argument));
    let relative = match lexical.strip_prefix(&place.root) {
        Ok(relative) => relative.to_owned(),
        // An absolute argument may come through a symbolic link that the root does not come through.
        Err(_) => resolved(&lexical)?.strip_prefix(&place.root).ok()?.to_owned(),
    };
    RelPath::parse(relative.as_os_str().as_bytes()).ok()
}

/// The path with its directory's symbolic links followed, but not its own: a link is a change of its own.
fn resolved(path: &Path) -> Option<PathBuf> {
    let parent = std::fs::canonicalize(path.parent()?).ok()?;
    Some(parent.join(path.file_name()?))
}

/// Removes `.` and `..` without asking the disk: a deleted path has no other form.
fn normalize(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::Prefix(_) | Component::Normal(_) => clean.push(component),
        }
    }
    clean
}

/// The glob relative to the project. The working directory is a name, not a pattern, so its own signs are escaped.
fn project_glob(place: &Place, pattern: &str) -> Option<String> {
    let joined = normalize(&place.start.join(pattern));
    let relative = joined.strip_prefix(&place.root).ok()?.to_str()?;
    let below = place.start.strip_prefix(&place.root).ok()?.to_str()?;
    match relative.strip_prefix(below) {
        Some(rest) => Some(format!("{}{rest}", globset::escape(below))),
        None => Some(relative.to_owned()),
    }
}
