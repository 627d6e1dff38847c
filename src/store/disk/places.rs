//! The places of content, as the database knows them: the state directory, or directories that variables name.
//!
//! A start that is given other places than the last one finds nothing of what is held or kept. If that were taken for
//! lost, its rows would go, and with the next start its files. So such a start is refused before it changes anything. If
//! the content is found all the same, because a person has moved it, or there is none, the new places are noted.
//!
//! The place may be the same and its disk not mounted: then the directory of this state is not in it, and none is made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::layout::{BACKUP_VARIABLE, Location, STAGE_VARIABLE};
use crate::protocol::DirPath;
use crate::store::database::look_into;
use crate::store::rows::settings;
use crate::store::rows::upper::{UpperRow, What};
use crate::store::rows::{parse_row, to_row};
use crate::store::{Context, Error, Result, Store};
use crate::sys::tree::is_absent;

const PLACES: &str = "places";

/// The directories given for content; `None` if it stands in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Places {
    pub stage: Option<DirPath>,
    pub content: Option<DirPath>,
}

impl Places {
    pub fn of(location: &Location) -> Self {
        let given = |path: &Option<PathBuf>| path.clone().map(DirPath);
        Self { stage: given(&location.stage), content: given(&location.backups) }
    }
}

/// What a database tells of that stands in places for content.
#[derive(Default)]
struct Needs {
    upper: bool,
    content: bool,
}

impl Needs {
    /// True of upper files also if there is an intent: see [`Store::misses_upper_files`].
    fn of(connection: &Connection, description: &str) -> Result<Self> {
        let mut statement = connection.prepare("SELECT row FROM upper")?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        let mut upper = exists(connection, "SELECT 1 FROM intent")?;
        for row in rows {
            upper |= parse_row::<UpperRow>(&row?, description)?.what != What::Whiteout;
        }
        Ok(Self { upper, content: exists(connection, "SELECT 1 FROM content WHERE bytes IS NULL")? })
    }
}

fn exists(connection: &Connection, query: &str) -> Result<bool> {
    Ok(connection.prepare(query)?.exists([])?)
}

/// Fails if what this state has noted to be in a place is needed, and that place has no directory of the state: its disk
/// is not mounted, or a person has removed it. Called before one is made there. A daemon in place of a dead one makes none.
pub(super) fn check_there(state: &OwnedFd, description: &str, instance: &str, location: &Location) -> Result<()> {
    let is_gone = |place: &Option<PathBuf>| place.as_ref().is_some_and(|place| !has_directory(place, instance));
    let gone = [is_gone(&location.stage), is_gone(&location.backups)];
    if location.known.is_some() || gone == [false, false] {
        return Ok(());
    }
    let look = |connection: &Connection| Ok((places_in(connection, description)?, Needs::of(connection, description)?));
    let Some((Some(noted), needs)) = look_into(state.as_fd(), description, look)? else { return Ok(()) };
    let now = Places::of(location);
    let is_needed = |index: usize, needs: bool, noted: &Option<DirPath>, now: &Option<DirPath>| {
        gone[index] && needs && noted == now
    };
    if is_needed(0, needs.upper, &noted.stage, &now.stage) {
        return Err(not_there("held", STAGE_VARIABLE, instance, now.stage.as_ref()));
    }
    if is_needed(1, needs.content, &noted.content, &now.content) {
        return Err(not_there("kept", BACKUP_VARIABLE, instance, now.content.as_ref()));
    }
    Ok(())
}

/// True also where that cannot be told: opening it says why.
fn has_directory(place: &Path, instance: &str) -> bool {
    place.join(instance).symlink_metadata().map_or_else(|err| !is_absent(&err), |_| true)
}

fn places_in(connection: &Connection, description: &str) -> Result<Option<Places>> {
    let json = settings::find(connection, PLACES)?;
    json.map(|json| parse_row(&json, description)).transpose()
}

impl Store {
    /// Called before anything that takes what is missing for lost, or for landed.
    pub(in crate::store) fn check_places(&self) -> Result<()> {
        let (now, noted) = (self.dirs.places(), self.noted_places()?);
        if noted.as_ref() == Some(now) {
            return Ok(());
        }
        let before = noted.as_ref();
        // A state from before places were noted may have been given any.
        let is_missing_in_stage = before.is_none_or(|before| before.stage != now.stage) && self.misses_upper_files()?;
        let is_missing_in_content =
            before.is_none_or(|before| before.content != now.content) && self.misses_content()?;
        match before {
            Some(before) if is_missing_in_stage => Err(elsewhere("held", STAGE_VARIABLE, before.stage.as_ref())),
            Some(before) if is_missing_in_content => Err(elsewhere("kept", BACKUP_VARIABLE, before.content.as_ref())),
            None if is_missing_in_stage || is_missing_in_content => Ok(()),
            Some(_) | None => self.note_places(now),
        }
    }

    /// True if what is missing in the places of this start is lost, because it was put there.
    pub(in crate::store) fn knows_places(&self) -> Result<bool> {
        Ok(self.noted_places()?.as_ref() == Some(self.dirs.places()))
    }

    fn noted_places(&self) -> Result<Option<Places>> {
        places_in(self.reading()?.reader(), self.dirs.describe())
    }

    fn note_places(&self, places: &Places) -> Result<()> {
        let row = to_row(places)?;
        self.database.lock().write(|tx| settings::set(tx, PLACES, &row))
    }

    /// True also if there is an intent: a landing that was broken off may be of an upper file without a row, and how far
    /// it came can only be told in the place where that file was.
    fn misses_upper_files(&self) -> Result<bool> {
        if !self.load_intents()?.is_empty() {
            return Ok(true);
        }
        for row in self.load_upper()?.into_iter().filter(|row| row.what != What::Whiteout) {
            let doing = || format!("stat upper file {}", row.id);
            if self.dirs.stage_place(row.id).stat().doing(doing)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn misses_content(&self) -> Result<bool> {
        let names = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT sha256 FROM content WHERE bytes IS NULL")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        for name in names {
            if self.dirs.content_place(&name).stat().doing(|| format!("stat content {name}"))?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The error for content that is `what`, held or kept, in the place that `variable` named before.
fn elsewhere(what: &str, variable: &str, before: Option<&DirPath>) -> Error {
    let why = match before {
        Some(DirPath(path)) => format!(
            "it is in {}: set {variable} to that, or move all that is there to where {variable} says now",
            path.display()
        ),
        None => format!("it is in the state directory itself: unset {variable}, or move all that is there"),
    };
    Error::Io { doing: format!("look for what is {what}"), cause: io::Error::other(why) }
}

/// The error for content that is `what` and whose place has no directory of this state any more.
fn not_there(what: &str, variable: &str, instance: &str, place: Option<&DirPath>) -> Error {
    let place = place.map(|DirPath(path)| path.display().to_string()).unwrap_or_default();
    let why = format!(
        "{place} ({variable}) has no directory {instance} any more: is its disk mounted? If what was there is gone for \
         ever, make an empty directory of that name"
    );
    Error::Io { doing: format!("look for what is {what}"), cause: io::Error::other(why) }
}
