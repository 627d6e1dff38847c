//! Keeps rows in line with the device number that lower has now.
//!
//! A file system may have another number when the machine starts again, and on btrfs nearly always has. Rows name inodes
//! by device and number, so their device numbers for lower are updated before anything is recovered. The project's own
//! inode tells that it is the same file system, and no copy of the project.

use serde::{Deserialize, Serialize};

use super::copied::Project;
use crate::model::{Births, Timestamp};
use crate::store::rows::settings;
use crate::store::rows::{parse_row, to_row};
use crate::store::{Context, Result, Store};
use crate::sys::file::{self, Meta};
use crate::sys::sqlite::Transaction;
use crate::sys::tree::Tree;

const LOWER: &str = "lower";

/// The tables with stamps in their rows.
const TABLES: [&str; 3] = ["upper", "anchor", "intent"];

/// The project's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Root {
    device: u64,
    inode: u64,
    btime: Timestamp,
}

impl Root {
    fn of(lower: &Tree) -> Result<Self> {
        let doing = || "stat the project".to_owned();
        let meta = Meta::of(lower.root()).doing(doing)?;
        let btime = match file::births(lower.root()).doing(doing)? {
            Births::Stay => meta.btime,
            Births::Move => Timestamp::default(),
        };
        Ok(Self { device: meta.device, inode: meta.inode, btime })
    }
}

impl Store {
    /// Follows a new device number of the project. For a copy the note stays that of the original until all rows name the
    /// copy's inodes.
    pub(in crate::store) fn follow_device(&self, lower: &Tree) -> Result<Project> {
        let now = Root::of(lower)?;
        let noted = self.setting(LOWER)?;
        let before: Option<Root> = noted.map(|json| parse_row(&json, self.dirs.describe())).transpose()?;
        if before == Some(now) {
            return Ok(Project::Itself);
        }
        let renumbered = before.filter(|before| Root { device: now.device, ..*before } == now);
        if before.is_some() && renumbered.is_none() {
            return Ok(Project::Copy);
        }
        self.database.lock().write(|tx| {
            if let Some(before) = renumbered {
                renumber(tx, before.device, now.device)?;
            }
            note(tx, lower)
        })?;
        Ok(Project::Itself)
    }
}

/// Notes that the rows name the inodes of this project from now on.
pub(super) fn note(tx: &Transaction<'_>, lower: &Tree) -> Result<()> {
    let root = to_row(&Root::of(lower)?)?;
    settings::set(tx, LOWER, &root)
}

/// Strings in a row have their quotes escaped, so this text is always part of a stamp.
fn renumber(tx: &Transaction<'_>, before: u64, now: u64) -> Result<()> {
    let stamp = |device: u64| format!(r#"{{"device":{device},"inode":"#);
    for table in TABLES {
        let replace = format!("UPDATE {table} SET row = replace(row, ?1, ?2)");
        tx.execute(&replace, (stamp(before), stamp(now)))?;
    }
    Ok(())
}

#[cfg(test)]
impl Store {
    /// As if the last session had seen the project's file system, or one that looks like it, under another number.
    pub fn was_on_device(&self, lower: &Tree, device: u64, inode: u64) {
        let root = Root::of(lower).unwrap();
        let noted = to_row(&Root { device, inode, ..root }).unwrap();
        let write = |tx: &Transaction<'_>| {
            renumber(tx, root.device, device)?;
            Ok(tx.execute("UPDATE setting SET value = ?1 WHERE key = ?2", (noted, LOWER))?)
        };
        assert_eq!(self.database.lock().write(write).unwrap(), 1);
    }
}
