//! What the ids of held changes stand for, even those of changes that are gone: no id ever comes to mean anything else.

use super::upper::UpperRow;
use crate::model::{ChangeId, Digest};
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

impl Store {
    /// Returns each id with the hash that it is the beginning of.
    pub fn load_given_ids(&self) -> Result<Vec<(ChangeId, Digest)>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare("SELECT id, sha256 FROM given_id")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(rows.iter().filter_map(|(id, full)| Some((ChangeId::parse(id)?, Digest::parse(full)?))).collect())
    }

    /// Forgets ids that no request is answered for any more.
    pub(super) fn forget_given_ids(&self) -> Result<()> {
        self.database.lock().write(|tx| {
            tx.execute(
                "DELETE FROM given_id WHERE id NOT IN (SELECT id FROM verdict) AND id NOT IN
                 (SELECT row ->> '$.held.id' FROM upper WHERE row ->> '$.held.id' IS NOT NULL)",
                [],
            )?;
            Ok(())
        })
    }
}

/// Notes the id of a row that waits for review. An id that was given before keeps its meaning.
pub(super) fn put(tx: &Transaction<'_>, row: &UpperRow) -> Result<()> {
    let (Some(held), Some(full)) = (&row.held, row.full_id()) else { return Ok(()) };
    let mut statement = tx.prepare_cached("INSERT OR IGNORE INTO given_id (id, sha256) VALUES (?1, ?2)")?;
    statement.execute((held.id.as_str(), full.to_string()))?;
    Ok(())
}
