//! What people were shown of operations, kept for as long as something of an operation is held.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{parse_row, to_row};
use crate::model::{ChangeId, OperationId};
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

/// How closely a person has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// At what is held.
    Listed,
    /// At what confirming it would do.
    Compared,
}

/// What a person who may decide about an operation has seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    pub depth: Depth,
    pub ids: BTreeSet<ChangeId>,
}

impl Store {
    pub fn load_inspections(&self) -> Result<Vec<(OperationId, Inspection)>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare("SELECT operation, row FROM inspection")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
        rows.map(|row| {
            let (operation, row) = row?;
            Ok((OperationId::of_first_event(operation as u64), parse_row(&row, self.dirs.describe())?))
        })
        .collect()
    }

    /// Replaces the inspections of other operations, which are part of this one by now.
    pub fn save_inspection(&self, of: OperationId, inspection: &Inspection, replaced: &[OperationId]) -> Result<()> {
        let row = to_row(inspection)?;
        self.database.lock().write(|tx| {
            delete(tx, replaced)?;
            let mut replace =
                tx.prepare_cached("INSERT OR REPLACE INTO inspection (operation, row) VALUES (?1, ?2)")?;
            replace.execute((of.first_event() as i64, row))?;
            Ok(())
        })
    }

    pub fn drop_inspections(&self, operations: &[OperationId]) -> Result<()> {
        self.database.lock().write(|tx| delete(tx, operations))
    }
}

fn delete(tx: &Transaction<'_>, operations: &[OperationId]) -> Result<()> {
    let mut delete = tx.prepare_cached("DELETE FROM inspection WHERE operation = ?1")?;
    operations.iter().try_for_each(|one| delete.execute([one.first_event() as i64]).map(|_| ()))?;
    Ok(())
}
