//! A transaction whose `BEGIN` and `COMMIT` are prepared once. `rusqlite`'s own has SQLite parse both each time, which
//! takes as long as a row.

use std::ops::Deref;

use rusqlite::Connection;

/// Rolled back when it is dropped before [`Self::commit`].
pub struct Transaction<'a> {
    connection: &'a Connection,
}

impl<'a> Transaction<'a> {
    /// Begins it: no other connection can write from here on.
    pub fn begin(connection: &'a mut Connection) -> rusqlite::Result<Self> {
        run(connection, "BEGIN IMMEDIATE")?;
        Ok(Self { connection })
    }

    pub fn commit(self) -> rusqlite::Result<()> {
        run(self.connection, "COMMIT")
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // It was committed, or SQLite rolled it back when something failed.
        if self.connection.is_autocommit() {
            return;
        }
        if let Err(err) = run(self.connection, "ROLLBACK") {
            log::error!("roll back: {err}");
        }
    }
}

fn run(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute(()).map(|_| ())
}
