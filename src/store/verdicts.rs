//! What became of ids that no longer live, so that each answers with its own message.

use rusqlite::OptionalExtension;

use super::journal::Fate;
use super::{Result, Store};
use crate::model::{ChangeId, RelPath};
use crate::sys::sqlite::Transaction;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub id: ChangeId,
    pub path: RelPath,
    pub fate: Fate,
    /// Milliseconds since the epoch.
    pub at: i64,
}

impl Store {
    /// The latest fate of an id, whatever the clock did meanwhile; `prefix` may be shortened. None where no id ever began so.
    pub fn verdict(&self, prefix: &ChangeId) -> Result<Option<Verdict>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare_cached(
            "SELECT id, path, fate, successor, at FROM verdict WHERE id >= ?1 AND id < ?1 || 'g'
             ORDER BY rowid DESC LIMIT 1",
        )?;
        let row = statement.query_row([prefix.as_str()], |row| {
            let columns: (String, Vec<u8>, String, Option<String>, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(columns)
        });
        Ok(row.optional()?.and_then(|(id, path, fate, successor, at)| {
            let successor = successor.as_deref().and_then(ChangeId::parse);
            Some(Verdict {
                id: ChangeId::parse(&id)?,
                path: RelPath::parse(&path).ok()?,
                fate: Fate::from_columns(&fate, successor)?,
                at,
            })
        }))
    }
}

pub(super) fn put(tx: &Transaction<'_>, id: &ChangeId, path: &RelPath, fate: &Fate) -> Result<()> {
    let (fate, successor) = fate.to_columns();
    tx.prepare_cached("INSERT INTO verdict (id, path, fate, successor, at) VALUES (?1, ?2, ?3, ?4, ?5)")?.execute((
        id.as_str(),
        path.as_bytes(),
        fate,
        successor.map(ChangeId::as_str),
        super::now_millis(),
    ))?;
    Ok(())
}
