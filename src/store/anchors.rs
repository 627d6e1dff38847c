//! Anchors: what a path had when the session began or when it was last reviewed (SPEC §1, §4.3).
//!
//! Kept for paths that something happened to, and only to the session's end; outside purge and quota.

use serde::{Deserialize, Serialize};

use super::events::{self, EventDraft};
use super::upper::{Kept, parse_row, to_row};
use super::{Error, Result, Store};
use crate::model::{RelPath, Stamp};
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

/// Where what was last at a path went by a rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Went {
    pub to: RelPath,
    pub stamp: Stamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    pub path: RelPath,
    pub state: AnchorState,
    /// What is at the path now came in this session.
    pub fresh: bool,
    /// And is older all the same: it was renamed or linked here from this path, and only its name is new.
    #[serde(default)]
    pub from: Option<RelPath>,
    /// The path is free, because what was there was renamed.
    #[serde(default)]
    pub went: Option<Went>,
    /// The path is free, because what was there was put back to where it came from, or took another name of its file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub put_back: bool,
    /// A directory that is older than the session was here, and was renamed away or removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_dir: bool,
}

impl Store {
    pub fn load_anchors(&self) -> Result<Vec<Anchor>> {
        let mut database = self.database.lock();
        let mut statement = database.reader().prepare("SELECT row FROM anchor")?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.map(|row| parse_row(&row?, self.dirs.describe())).collect()
    }

    pub fn save_anchors(&self, anchors: &[Anchor]) -> Result<()> {
        self.database.lock().write(|tx| anchors.iter().try_for_each(|anchor| put(tx, anchor)))
    }

    /// Directories renamed in this session, oldest first: what lay in the first lies in the second.
    pub fn load_moved_dirs(&self) -> Result<Vec<(RelPath, RelPath)>> {
        let rows = {
            let mut database = self.database.lock();
            let mut statement = database.reader().prepare("SELECT old, new FROM moved_dir ORDER BY id")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        let damaged = |what: String| Error::Damaged { path: self.dirs.describe().to_owned(), what };
        let parse = |bytes: &[u8]| RelPath::parse(bytes).map_err(|err| damaged(err.to_string()));
        rows.iter().map(|(old, new)| Ok((parse(old)?, parse(new)?))).collect()
    }

    /// The session is over: what paths had when it began does not matter any more.
    pub fn end_session(&self, event: &EventDraft) -> Result<()> {
        self.database.lock().write(|tx| {
            events::put_all(tx, std::slice::from_ref(event), &[])?;
            Ok(tx.execute_batch("DELETE FROM anchor; DELETE FROM moved_dir;")?)
        })
    }
}

pub(super) fn put_moved_dir(tx: &Transaction<'_>, from: &RelPath, to: &RelPath) -> Result<()> {
    let mut statement = tx.prepare_cached("INSERT INTO moved_dir (old, new) VALUES (?1, ?2)")?;
    statement.execute((from.as_bytes(), to.as_bytes()))?;
    Ok(())
}

pub(super) fn put(tx: &Transaction<'_>, anchor: &Anchor) -> Result<()> {
    tx.prepare_cached("INSERT OR REPLACE INTO anchor (path, row) VALUES (?1, ?2)")?
        .execute((anchor.path.as_bytes(), to_row(anchor)?))?;
    Ok(())
}
