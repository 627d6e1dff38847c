//! Letting backups go by age, number and quota, oldest first; never the only copy of something still needed.

use std::collections::{HashMap, HashSet};

use super::backups::Backup;
use super::content;
use super::{Result, Store};
use crate::model::{Digest, RelPath};
use crate::policy::settings::BackupLimits;

impl Store {
    /// Removes what is beyond the limits, and content that nothing names. `needed` is never removed.
    pub fn purge(&self, limits: &BackupLimits, needed: &HashSet<Digest>) -> Result<usize> {
        let age_max = limits.age_max.map_or(i64::MAX, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let oldest = super::now_millis().saturating_sub(age_max);
        let doomed = beyond(&self.backups()?, limits, oldest);
        let mut database = self.database.lock();
        database.write(|tx| {
            let mut statement = tx.prepare_cached("DELETE FROM backup WHERE name = ?1")?;
            doomed.iter().try_for_each(|name| Ok(statement.execute([name]).map(|_| ())?))
        })?;
        let orphans = orphans(&database, needed)?;
        database.write(|tx| {
            let mut statement = tx.prepare_cached("DELETE FROM content WHERE sha256 = ?1")?;
            orphans.iter().try_for_each(|digest| Ok(statement.execute([digest.to_string()]).map(|_| ())?))
        })?;
        // Rows first: a crash in between leaves a file without a row, which costs space and loses nothing.
        orphans.iter().try_for_each(|digest| content::remove_file(&self.dirs, &digest.to_string()))?;
        Ok(doomed.len())
    }
}

/// Names of backups past a limit; `backups` come newest first.
fn beyond(backups: &[Backup], limits: &BackupLimits, oldest: i64) -> Vec<String> {
    let mut per_path: HashMap<&RelPath, usize> = HashMap::new();
    let mut counted = HashSet::new();
    let mut bytes = 0;
    let mut doomed = Vec::new();
    for backup in backups {
        let number = per_path.entry(&backup.path).or_default();
        *number += 1;
        if counted.insert(backup.digest) {
            bytes += backup.size;
        }
        if backup.created < oldest || *number > limits.per_path_max as usize || bytes > limits.quota_bytes {
            doomed.push(backup.name.clone());
        }
    }
    doomed
}

fn orphans(database: &super::database::Database, needed: &HashSet<Digest>) -> Result<Vec<Digest>> {
    let mut statement = database.reader().prepare(
        "SELECT sha256 FROM content WHERE sha256 NOT IN (SELECT sha256 FROM backup)
         AND NOT EXISTS (SELECT 1 FROM intent)",
    )?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    let digests = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(digests.iter().filter_map(|hex| Digest::parse(hex)).filter(|digest| !needed.contains(digest)).collect())
}
