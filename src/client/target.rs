//! An argument as a person typed it, in all the ways that a daemon may read it (SPEC §8).
//!
//! Only the client knows the working directory, and only the daemon knows which paths and ids there are. So the
//! client sends every reading that is possible, relative to the project, and the daemon takes the one that exists.

use super::{Place, project_of};
use crate::model::{PathError, RelPath};
use crate::protocol::{ErrorCode, Target};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// An argument that cannot name anything in the project.
#[derive(Debug, thiserror::Error)]
pub enum NotInProject {
    #[error("an empty argument names nothing in the project {}", .root.display())]
    Empty { root: PathBuf },
    #[error("{} is outside the project {}", .argument.display(), .root.display())]
    Outside { argument: PathBuf, root: PathBuf },
    #[error("{argument:?}: {why}")]
    NoPath { argument: PathBuf, why: PathError },
}

impl NotInProject {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Empty { .. } | Self::Outside { .. } => ErrorCode::UnknownPath,
            Self::NoPath { .. } => ErrorCode::BadRequest,
        }
    }
}

/// Returns every reading of one argument.
pub fn target(place: &Place, argument: &OsStr) -> Result<Target, NotInProject> {
    let text = argument.to_str();
    let path = path_of(place, argument);
    let id = text.filter(|text| !matches!(*text, "" | "..") && !text.contains('/')).map(str::to_owned);
    let glob = text.filter(|text| Target::is_glob(text)).and_then(|text| project_glob(place, text));
    match (path, &id) {
        (Err(err), None) => Err(err),
        (path, _) => Ok(Target { id, path: path.ok(), glob }),
    }
}

/// Returns the one path below the project that an argument names, for commands that take no ids. In a view elsewhere, the
/// project's own path works as well. An empty argument is refused: an unset variable must not name the whole directory.
pub fn path_of(place: &Place, argument: &OsStr) -> Result<RelPath, NotInProject> {
    let root = || place.root.clone();
    if argument.is_empty() {
        return Err(NotInProject::Empty { root: root() });
    }
    let lexical = normalize(&place.start.join(argument));
    let relative = below(&place.root, &lexical).or_else(|| below(&project_of(&place.root).ok()??, &lexical));
    let relative = relative.ok_or_else(|| NotInProject::Outside { argument: argument.into(), root: root() })?;
    let parsed = RelPath::parse(relative.as_os_str().as_bytes());
    parsed.map_err(|why| NotInProject::NoPath { argument: argument.into(), why })
}

/// Returns an absolute path relative to the project, or `None` if it leads out of it.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    match path.strip_prefix(root) {
        Ok(relative) => Some(relative.to_owned()),
        // It may go through a symbolic link that is not in the path of the root.
        Err(_) => resolved(path)?.strip_prefix(root).ok().map(Path::to_owned),
    }
}

/// Follows symbolic links in the path's directory but not the last name: a link can be a change itself.
fn resolved(path: &Path) -> Option<PathBuf> {
    let parent = std::fs::canonicalize(path.parent()?).ok()?;
    Some(parent.join(path.file_name()?))
}

/// Removes `.` and `..` without asking the disk, which knows nothing of a deleted path.
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

/// Returns the glob relative to the project. The working directory is a name, no pattern, so its own signs are escaped.
fn project_glob(place: &Place, pattern: &str) -> Option<String> {
    let below = place.start.strip_prefix(&place.root).ok()?.to_str()?;
    let start = place.root.join(globset::escape(below));
    // An absolute pattern repeats the working directory, which is a name there too.
    let pattern = Path::new(pattern).strip_prefix(&place.start).unwrap_or(Path::new(pattern));
    let joined = normalize(&start.join(pattern));
    Some(joined.strip_prefix(&place.root).ok()?.to_str()?.to_owned())
}
