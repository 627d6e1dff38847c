//! Which project a command is about that mounts it where nobody has yet.

use std::path::{Path, PathBuf};

use super::Failure;
use super::desk::{Desk, Format};
use super::mount_start::{directory, say};
use crate::client::{ClientError, find};

/// The directory that a command starts in, and the project that it lies in: the nearest upwards that has state, as all
/// commands find it (SPEC §12), else the directory itself. Another is told of: more of it is judged than who stands here
/// may have thought of.
pub fn around(desk: &Desk) -> Result<(PathBuf, PathBuf), Failure> {
    let start = directory(&desk.directory, "project")?;
    let project = nearest(&start)?;
    if project != start && desk.format == Format::Human {
        say(format_args!("the project is {}, in which {} lies", project.display(), start.display()));
    }
    Ok((start, project))
}

fn nearest(start: &Path) -> Result<PathBuf, Failure> {
    match find(start) {
        Ok(place) => Ok(place.root),
        Err(ClientError::NoProject(start)) => Ok(start),
        // Whoever starts a daemon takes it away first.
        Err(ClientError::Stale(dead)) => Ok(dead.project),
        Err(err) => Err(err.into()),
    }
}
