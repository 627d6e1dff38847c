//! Anchors: what a path had when the session began or when it was last reviewed (SPEC §1, §4.3).
//!
//! Kept for paths that something happened to, and only to the session's end; outside purge and quota.

use serde::{Deserialize, Serialize};

use super::events::{self, EventDraft};
use super::to_row;
use super::upper::Kept;
use crate::model::{RelPath, Stamp};
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnchorState {
    /// The path was free: whatever is there now came in this session.
    Nothing,
    /// Its content is kept.
    Content(Kept),
    /// Its inode was renamed, and has this name now; `stamp` says whether it is still the same content.
    Moved { to: RelPath, stamp: Stamp },
}

/// Where a rename took what was last at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Went {
    pub to: RelPath,
    pub stamp: Stamp,
}

/// What is known of a path itself. All else follows from the directories that were renamed; below none of them,
/// everything is as it was when the session began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The anchor. `None` if the content is where a renamed directory took it, or still here.
    #[serde(default, rename = "state")]
    pub had: Option<AnchorState>,
    /// What is at the path now came in this session, so that deleting it loses nothing.
    pub fresh: bool,
    /// Set if it is older all the same: it was renamed or linked here from this path, and only its name is new.
    #[serde(default)]
    pub from: Option<RelPath>,
    /// Where a rename took what was last at the path, while lower has nothing in its place. That need not be the anchor's
    /// content, which may have changed before.
    #[serde(default)]
    pub went: Option<Went>,
    /// What was here was put back to where it came from, or took another name of its file, and nothing has landed here
    /// since. So it is our own doing that lower has nothing here, and no event tells of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub put_back: bool,
    /// A directory older than the session was here, and was renamed away or removed: a symlink in its place would stand
    /// for everything that was in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_dir: bool,
}

impl Known {
    /// Returns the content that the path had, if it is kept.
    pub fn kept(&self) -> Option<Kept> {
        match self.had {
            Some(AnchorState::Content(kept)) => Some(kept),
            Some(AnchorState::Nothing | AnchorState::Moved { .. }) | None => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    pub path: RelPath,
    #[serde(flatten)]
    pub known: Known,
}

/// Where a directory is now that was renamed in this session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirPlace {
    At(RelPath),
    /// Where nothing is judged: a write there must not make an anchor of what lies in it.
    Unjudged(RelPath),
    /// It is gone, or another directory stands there.
    Nowhere,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDir {
    /// Where it was when the session began.
    pub origin: RelPath,
    pub place: DirPlace,
}

impl Store {
    pub fn load_anchors(&self) -> Result<Vec<Anchor>> {
        self.each_row("SELECT row FROM anchor", [])?.collect()
    }

    pub fn save_anchors(&self, anchors: &[Anchor]) -> Result<()> {
        self.database.lock().write(|tx| anchors.iter().try_for_each(|anchor| put(tx, anchor)))
    }

    pub fn load_moved_dirs(&self) -> Result<Vec<MovedDir>> {
        self.each_row("SELECT row FROM moved_dir", [])?.collect()
    }

    /// Ends the session: what paths had when it began no longer matters.
    pub fn end_session(&self, event: &EventDraft) -> Result<()> {
        self.database.lock().write(|tx| {
            events::put_all(tx, std::slice::from_ref(event), &[])?;
            Ok(tx.execute_batch("DELETE FROM anchor; DELETE FROM moved_dir;")?)
        })
    }
}

pub(in crate::store) fn put_moved_dir(tx: &Transaction<'_>, moved: &MovedDir) -> Result<()> {
    let mut statement = tx.prepare_cached("INSERT OR REPLACE INTO moved_dir (origin, row) VALUES (?1, ?2)")?;
    statement.execute((moved.origin.as_bytes(), to_row(moved)?))?;
    Ok(())
}

pub(in crate::store) fn put(tx: &Transaction<'_>, anchor: &Anchor) -> Result<()> {
    if anchor.known == Known::default() {
        tx.prepare_cached("DELETE FROM anchor WHERE path = ?1")?.execute([anchor.path.as_bytes()])?;
        return Ok(());
    }
    tx.prepare_cached("INSERT OR REPLACE INTO anchor (path, row) VALUES (?1, ?2)")?
        .execute((anchor.path.as_bytes(), to_row(anchor)?))?;
    Ok(())
}
