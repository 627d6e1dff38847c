//! What a person typed, as the ways in which a daemon may read it (SPEC §8).
//!
//! Only the client knows the working directory, and only the daemon knows which paths and ids there are. So the
//! client sends every reading that is possible, relative to the project, and the daemon takes the one that exists.

use super::{Place, project_of};
use crate::model::{PathError, RelPath};
use crate::protocol::{ErrorCode, Target};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// An argument that can name nothing in the project.
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

/// Every reading of one argument.
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

/// The one path below the project that an argument names, for what takes no ids. In a view elsewhere the project's own path
/// leads there as well. Nothing is not the working directory: a
/// variable that is not set must not name everything.
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

/// An absolute path relative to the project; none when it leads out of it.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    match path.strip_prefix(root) {
        Ok(relative) => Some(relative.to_owned()),
        // It may come through a symbolic link that the root does not come through.
        Err(_) => resolved(path)?.strip_prefix(root).ok().map(Path::to_owned),
    }
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
    let below = place.start.strip_prefix(&place.root).ok()?.to_str()?;
    let start = place.root.join(globset::escape(below));
    // Spelled out, it is still a name.
    let pattern = Path::new(pattern).strip_prefix(&place.start).unwrap_or(Path::new(pattern));
    let joined = normalize(&start.join(pattern));
    Some(joined.strip_prefix(&place.root).ok()?.to_str()?.to_owned())
}
