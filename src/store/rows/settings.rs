//! Values of the state by name, which nobody sets by hand: what it is of, where its content stands, which boot wrote it.

use rusqlite::{Connection, OptionalExtension};

use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

impl Store {
    pub(in crate::store) fn setting(&self, key: &str) -> Result<Option<String>> {
        find(self.reading()?.reader(), key)
    }
}

pub(in crate::store) fn find(connection: &Connection, key: &str) -> Result<Option<String>> {
    let value = connection.query_row("SELECT value FROM setting WHERE key = ?1", [key], |row| row.get(0));
    Ok(value.optional()?)
}

pub(in crate::store) fn set(tx: &Transaction<'_>, key: &str, value: &str) -> Result<()> {
    tx.execute("INSERT OR REPLACE INTO setting (key, value) VALUES (?1, ?2)", (key, value))?;
    Ok(())
}
