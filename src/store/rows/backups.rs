//! Backups: content that something replaced, under a name that a person can type.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::upper::{Kept, Writer};
use super::{parse_row, to_row};
use crate::model::{BackupKind, Digest, NAME_BYTES_MAX, RelPath, Timestamp};
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// `{basename}.{YYYYMMDD_HHMMSS_mmm}`, unique. Bytes of the basename that are not UTF-8 are escaped.
    pub name: String,
    pub path: RelPath,
    pub kind: BackupKind,
    pub digest: Digest,
    pub size: u64,
    pub mode: u32,
    /// As [`Version::group`](crate::store::Version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The content is a symlink's target.
    pub symlink: bool,
    pub mtime: Timestamp,
    /// Milliseconds since the epoch.
    pub created: i64,
    pub by: Option<Writer>,
    /// Everyone could read the file where it was when this was made. False for older backups, which do not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_all: bool,
    /// User and group. Not recorded in older backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
}

impl Backup {
    pub fn kept(&self) -> Kept {
        Kept { digest: self.digest, symlink: self.symlink }
    }

    /// Returns the name of a backup made at `created`. If that is taken, `put` gives the backup a later time.
    pub fn name_for(path: &RelPath, created: i64) -> String {
        let time = jiff::Timestamp::from_millisecond(created).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let date = time.strftime("%Y%m%d_%H%M%S");
        let suffix = format!(".{date}_{:03}", created.rem_euclid(1000));
        let mut base = RelPath::root()
            .join(path.name().unwrap_or_default())
            .map_or_else(|_| String::from("root"), |name| name.to_string());
        while base.len() + suffix.len() > NAME_BYTES_MAX {
            base.pop();
        }
        base + &suffix
    }
}

/// A backup whose name is taken is given a later time, so up to this much is no sign of a clock that jumped.
const FUTURE_MILLIS: i64 = 60_000;

/// How much later one query can make it. Less than what tells a clock that jumped.
const STRETCH_MILLIS: i64 = 10_000;

impl Store {
    /// Returns all backups, newest first.
    pub fn backups(&self) -> Result<Vec<Backup>> {
        self.backups_as(|backup: &Backup| (backup.created, &backup.name))
    }

    /// Like [`Self::backups`], with only the fields of `T`: there may be a hundred thousand backups, and most say at
    /// length who replaced them. One dated in the future was made before the clock jumped back, and so before all that
    /// have been made since: otherwise a purge would take those for the oldest.
    pub(in crate::store) fn backups_as<T: DeserializeOwned>(
        &self,
        made: impl Fn(&T) -> (i64, &String),
    ) -> Result<Vec<T>> {
        let mut backups = self.backup_rows::<T>()?;
        let now = crate::store::now_millis() + FUTURE_MILLIS;
        backups.sort_by(|a, b| {
            let (a, b) = (made(a), made(b));
            (a.0 > now).cmp(&(b.0 > now)).then(b.cmp(&a))
        });
        Ok(backups)
    }

    /// Returns every path that has backups.
    pub(super) fn paths_with_backups(&self) -> Result<HashSet<RelPath>> {
        #[derive(Deserialize)]
        struct Of {
            path: RelPath,
        }
        Ok(self.backup_rows::<Of>()?.into_iter().map(|backup| backup.path).collect())
    }

    /// Returns the fields of `T` of all backups, in the order of their names.
    fn backup_rows<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let query = "SELECT name, row FROM backup WHERE name > ?1 ORDER BY name LIMIT ?2";
        self.in_pieces(query, String::new(), |_, row: &String| parse_row(row, self.dirs.describe()))
    }

    pub fn backup(&self, name: &str) -> Result<Option<Backup>> {
        self.each_row("SELECT row FROM backup WHERE name = ?1", [name])?.next().transpose()
    }
}

/// Adds a backup under a free name, at a later time if its own name is taken, and returns the name.
pub(in crate::store) fn put(tx: &Transaction<'_>, backup: &Backup) -> Result<String> {
    let created = free_moment(tx, backup)?;
    let backup = Backup { name: Backup::name_for(&backup.path, created), created, ..backup.clone() };
    tx.prepare_cached("INSERT INTO backup (name, sha256, created, row) VALUES (?1, ?2, ?3, ?4)")?.execute((
        &backup.name,
        backup.digest.to_string(),
        backup.created,
        to_row(&backup)?,
    ))?;
    Ok(backup.name)
}

/// Returns a time at which the name of the backup is free. Among thousands of saves of one file the first free name is
/// thousands of names away, so whole stretches are skipped at once.
fn free_moment(tx: &Transaction<'_>, backup: &Backup) -> Result<i64> {
    let name = |moment| Backup::name_for(&backup.path, moment);
    let mut taken = tx.prepare_cached("SELECT 1 FROM backup WHERE name = ?1")?;
    // If a file is itself called like a backup of this one, its backups sort among these, but have longer names.
    let newest = "SELECT created FROM backup WHERE name BETWEEN ?1 AND ?2 AND length(name) = length(?1)
                  ORDER BY name DESC LIMIT 1";
    let mut newest = tx.prepare_cached(newest)?;
    let mut moment = backup.created;
    while taken.exists([name(moment)])? {
        let last: i64 = newest.query_row([name(moment), name(moment + STRETCH_MILLIS)], |row| row.get(0))?;
        moment = last.max(moment) + 1;
    }
    Ok(moment)
}
