//! Tells a database that was put back from an older copy.
//!
//! Such a database knows nothing of what was held and kept since, and recovery would take the files of that for left
//! over. So there is a counter, the generation, in the database and in a file beside it, and each session raises both
//! before it makes its first file. If that of the file is newer, or that of an upper file is, nothing is removed for
//! having no row: it is set aside in [`LOST_AND_FOUND`], where it is until a person removes it.
//!
//! A session that makes no file, as most commands without a mount, need not wait for the disk.
//!
//! The numbers of upper files begin with the generation in which they were given. So none is given twice, whatever a
//! database has forgotten, and an old row never gets the content of another change.
//!
//! The database is the first to be raised, durably. A death in between leaves it newer than the file, which says
//! nothing. A state of before there were generations has neither, and is at 0.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;

use super::layout::{DIR_FLAGS, open_inside, path_of, replace_whole};
use crate::model::Digest;
use crate::store::rows::settings;
use crate::store::rows::upper::UpperId;
use crate::store::{Context, Result, Store};
use crate::sys::tree::{self, Place};
use crate::sys::{Mode, OFlags, RenameFlags};

const GENERATION: &str = "generation";
/// No session gives so many numbers.
const NUMBER_BITS: u32 = 32;
/// The numbers of the last generation are positive, too.
const GENERATION_MAX: i64 = i32::MAX as i64;

/// As e2fsck names its own, and in the same place as that where the state directory is a file system's root. The names
/// of files in it tell whose they are.
pub(super) const LOST_AND_FOUND: &str = "lost+found";
const STAGE_PREFIX: &str = "stage-";
const CONTENT_PREFIX: &str = "content-";

/// More names than that are only counted.
const NAMES_TOLD_MAX: usize = 10;

/// Returns the number before the first that the present generation gives.
pub(in crate::store) fn number_before(connection: &Connection) -> Result<i64> {
    Ok(generation_in(connection)?.min(GENERATION_MAX) << NUMBER_BITS)
}

fn generation_of(upper: UpperId) -> i64 {
    upper.number() >> NUMBER_BITS
}

fn generation_in(connection: &Connection) -> Result<i64> {
    Ok(settings::find(connection, GENERATION)?.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// A file that is not there, or cannot be read, says nothing.
fn generation_beside(state: BorrowedFd<'_>, description: &str) -> i64 {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let file = place(state)?.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        File::from(file).take(64).read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => text.parse().unwrap_or(0),
        Err(err) if err.kind() == io::ErrorKind::NotFound => 0,
        Err(err) => {
            log::warn!("read {description}/{GENERATION}: {err}");
            0
        }
    }
}

fn place(state: BorrowedFd<'_>) -> io::Result<Place> {
    Ok(Place { dir: state.try_clone_to_owned()?.into(), name: GENERATION.into() })
}

fn note_beside(state: BorrowedFd<'_>, description: &str, generation: i64) -> Result<()> {
    let noted = place(state).and_then(|place| replace_whole(&place, generation.to_string().as_bytes()));
    noted.doing(|| format!("write {description}/{GENERATION}"))
}

/// To be called where a database is refused as damaged: whatever is put in its place may be older.
pub(in crate::store) fn note_damage(state: BorrowedFd<'_>, description: &str) {
    let raised = generation_beside(state, description).saturating_add(1).min(GENERATION_MAX);
    if let Err(err) = note_beside(state, description, raised) {
        log::warn!("{err}");
    }
}

/// Tells what was set aside, by number and name. Empty if nothing was.
pub(in crate::store) fn words_for(set_aside: &[String]) -> Option<String> {
    let count = set_aside.len();
    let mut names = set_aside[..count.min(NAMES_TOLD_MAX)].join(", ");
    if count > NAMES_TOLD_MAX {
        names.push_str(&format!(" and {} more", count - NAMES_TOLD_MAX));
    }
    let files = if count == 1 { "a file".to_owned() } else { format!("{count} files") };
    let are = if count == 1 { "is" } else { "are" };
    let what = format!("{files} that it does not tell of {are} set aside: {names}");
    (count > 0).then(|| format!("fettle.db was put back from an older copy, and {what}"))
}

impl Store {
    /// The database's own. If that of the [newest file](Self::generation_of_files) is later, the database cannot know of
    /// all files.
    pub(in crate::store) fn generation(&self) -> Result<i64> {
        generation_in(self.database.lock().reader())
    }

    /// The last in which a file was made. Only recovery may ask, before it moves any.
    pub(in crate::store) fn generation_of_files(&self) -> Result<i64> {
        let uppers = self.dirs.stage_files()?.into_iter().map(generation_of).max();
        Ok(generation_beside(self.dirs.state(), self.dirs.describe()).max(uppers.unwrap_or(0)))
    }

    /// Called once nothing is left that a next recovery would take for left over: the first file that is made begins the
    /// generation after `last`.
    pub(in crate::store) fn expect_generation(&self, last: i64) {
        *self.coming_generation.lock() = Some(last.saturating_add(1).min(GENERATION_MAX));
    }

    /// Called before a file is made. From then on numbers are those of this session's generation.
    pub(in crate::store) fn begin_generation(&self) -> Result<()> {
        let mut coming = self.coming_generation.lock();
        if let Some(generation) = *coming {
            self.vitally(|| self.raise_generation(generation))?;
            *coming = None;
        }
        Ok(())
    }

    fn raise_generation(&self, raised: i64) -> Result<()> {
        self.unsynced.sync()?;
        {
            let mut database = self.database.lock();
            database.write_durably(|tx| settings::set(tx, GENERATION, &raised.to_string()))?;
            database.pass_generation()?;
        }
        // Without it a database that is put back may not be noticed, which is no reason to refuse what a program writes.
        if let Err(err) = note_beside(self.dirs.state(), self.dirs.describe(), raised) {
            log::warn!("{err}");
        }
        Ok(())
    }

    /// Moves an upper file without a row out of `stage`. Returns how it is called from then on.
    pub(in crate::store) fn set_upper_aside(&self, id: UpperId) -> Result<String> {
        self.move_aside(&self.dirs.stage_place(id), self.dirs.has_own_stage(), &format!("{STAGE_PREFIX}{id}"))
    }

    pub(in crate::store) fn set_content_aside(&self, digest: Digest) -> Result<String> {
        let place = self.dirs.content_place(&digest.to_string());
        self.move_aside(&place, self.dirs.has_own_content(), &format!("{CONTENT_PREFIX}{digest}"))
    }

    /// Durably, since the next start removes what has no row then.
    fn move_aside(&self, from: &Place, is_own: bool, name: &str) -> Result<String> {
        let doing = || format!("set {name} aside");
        let above = if is_own { self.dirs.state() } else { from.dir.as_fd() };
        let dir = Arc::new(open_inside(above, LOST_AND_FOUND.as_ref(), LOST_AND_FOUND)?);
        let to = free_name(&dir, name, |to| from.rename(to, RenameFlags::NOREPLACE)).doing(doing)?;
        to.sync_dir().and_then(|()| from.sync_dir()).doing(doing)?;
        shown(&to, is_own).doing(doing)
    }

    /// Returns the names of all that was set aside and is still there.
    pub fn lost_and_found(&self) -> Result<Vec<String>> {
        let places = [
            (self.dirs.stage_dir(), self.dirs.has_own_stage()),
            (self.dirs.content_dir(), self.dirs.has_own_content()),
        ];
        let mut names = BTreeSet::new();
        for (dir, is_own) in places {
            let above = if is_own { self.dirs.state() } else { dir.as_fd() };
            names.extend(listed(above, is_own).doing(|| format!("list {LOST_AND_FOUND}"))?);
        }
        Ok(names.into_iter().collect())
    }

    /// Tells a person of what was set aside, as long as it is there.
    pub fn lost_and_found_notice(&self) -> Option<String> {
        let names = self.lost_and_found().inspect_err(|err| log::warn!("{err}")).unwrap_or_default();
        words_for(&names)
    }
}

/// Returns the place that `take` took: the name, or the next that is free.
fn free_name(dir: &Arc<OwnedFd>, name: &str, take: impl Fn(&Place) -> io::Result<()>) -> io::Result<Place> {
    let mut place = Place { dir: Arc::clone(dir), name: name.into() };
    let mut tried = 1;
    loop {
        match take(&place) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                tried += 1;
                place.name = format!("{name}-{tried}").into();
            }
            taken => return taken.map(|()| place),
        }
    }
}

/// In a place that was given for content, the whole path tells where it is.
fn shown(place: &Place, is_own: bool) -> io::Result<String> {
    let within = if is_own { PathBuf::from(LOST_AND_FOUND) } else { path_of(place.dir.as_fd())? };
    Ok(within.join(&place.name).display().to_string())
}

fn listed(above: BorrowedFd<'_>, is_own: bool) -> io::Result<Vec<String>> {
    let dir = match rustix::fs::openat(above, LOST_AND_FOUND, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
        opened => Arc::new(opened?),
    };
    let is_ours = |name: &str| name.starts_with(STAGE_PREFIX) || name.starts_with(CONTENT_PREFIX);
    let entries = tree::list(dir.as_fd())?.into_iter().filter(|entry| entry.name.to_str().is_some_and(is_ours));
    entries.map(|entry| shown(&Place { dir: Arc::clone(&dir), name: entry.name }, is_own)).collect()
}
