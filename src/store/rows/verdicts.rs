//! What became of ids that no longer live, so that each answers with its own message.

use std::collections::{HashMap, HashSet};

use rusqlite::OptionalExtension;

use crate::model::{ChangeId, RelPath};
use crate::store::journal::intent::Fate;
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

/// Rows deleted in one transaction: a commit waits for one batch at most.
const BATCH: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub id: ChangeId,
    pub path: RelPath,
    pub fate: Fate,
    /// Milliseconds since the epoch.
    pub at: i64,
}

impl Store {
    /// Returns the latest fate of an id, whatever the clock did meanwhile. `prefix` may be a shortened id; if it is an id
    /// in full, that one counts. `None` if no id ever began with it.
    pub fn verdict(&self, prefix: &ChangeId) -> Result<Option<Verdict>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare_cached(
            "SELECT id, path, fate, successor, at FROM verdict WHERE id >= ?1 AND id < ?1 || 'g'
             ORDER BY id = ?1 DESC, rowid DESC LIMIT 1",
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

    /// Forgets what became of ids whose events are gone, except for what leads to a change that still waits.
    pub(super) fn forget_verdicts(&self) -> Result<()> {
        let Some(since) = self.earliest_event()? else { return Ok(()) };
        let leads_on = self.ids_that_lead_on()?;
        let old = {
            let database = self.reading()?;
            // The row of a successor comes after the one that names it, whatever the clock did.
            let mut statement = database.reader().prepare(
                "SELECT rowid, id FROM verdict
                 WHERE rowid < COALESCE((SELECT MIN(rowid) FROM verdict WHERE at >= ?1), 9223372036854775807)",
            )?;
            let rows = statement.query_map([since], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        let old: Vec<i64> = old.into_iter().filter(|(_, id)| !leads_on.contains(id)).map(|(row, _)| row).collect();
        old.chunks(BATCH).try_for_each(|batch| {
            self.database.lock().write(|tx| {
                let mut delete = tx.prepare_cached("DELETE FROM verdict WHERE rowid = ?1")?;
                batch.iter().try_for_each(|row| Ok(delete.execute([row]).map(|_| ())?))
            })
        })
    }

    /// Returns the ids of what waits, and those that were superseded by these.
    fn ids_that_lead_on(&self) -> Result<HashSet<String>> {
        let mut before: HashMap<String, Vec<String>> = HashMap::new();
        {
            let database = self.reading()?;
            let query = "SELECT successor, id FROM verdict WHERE successor IS NOT NULL";
            let mut statement = database.reader().prepare(query)?;
            for row in statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
                let (successor, id) = row?;
                before.entry(successor).or_default().push(id);
            }
        }
        let held = self.load_upper()?.into_iter().filter_map(|row| row.held);
        let (mut found, mut next) = (HashSet::new(), held.map(|held| held.id.to_string()).collect::<Vec<_>>());
        while let Some(id) = next.pop() {
            next.extend(before.remove(&id).into_iter().flatten());
            found.insert(id);
        }
        Ok(found)
    }
}

pub(in crate::store) fn put(tx: &Transaction<'_>, id: &ChangeId, path: &RelPath, fate: &Fate) -> Result<()> {
    let (fate, successor) = fate.to_columns();
    tx.prepare_cached("INSERT INTO verdict (id, path, fate, successor, at) VALUES (?1, ?2, ?3, ?4, ?5)")?.execute((
        id.as_str(),
        path.as_bytes(),
        fate,
        successor.map(ChangeId::as_str),
        crate::store::now_millis(),
    ))?;
    Ok(())
}
