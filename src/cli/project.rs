//! Finds the project for commands that mount it if it is not mounted yet.

use std::path::{Path, PathBuf};

use super::Failure;
use super::desk::{Desk, Format};
use super::mount_start::{directory, say};
use crate::client::{ClientError, find};

/// Returns the directory that the command starts in and the project around it: the nearest directory upwards that has
/// state, as for all commands (SPEC §12), or the start itself. If they differ the user is told, because more will be
/// judged than the directory they stand in.
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
        // The start of a daemon takes this mount away first.
        Err(ClientError::Stale(dead)) => Ok(dead.project),
        Err(err) => Err(err.into()),
    }
}
