//! A transaction whose beginning and end are prepared once. `rusqlite`'s own has SQLite read both words each time, which
//! takes as long as a row.

use std::ops::Deref;

use rusqlite::Connection;

/// Rolled back when it is dropped before [`Self::commit`].
pub struct Transaction<'a> {
    connection: &'a Connection,
    is_committed: bool,
}

impl<'a> Transaction<'a> {
    /// Nobody else writes from here on.
    pub fn begin(connection: &'a mut Connection) -> rusqlite::Result<Self> {
        run(connection, "BEGIN IMMEDIATE")?;
        Ok(Self { connection, is_committed: false })
    }

    pub fn commit(mut self) -> rusqlite::Result<()> {
        run(self.connection, "COMMIT")?;
        self.is_committed = true;
        Ok(())
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
        // What failed may have rolled back by itself.
        if self.is_committed || self.connection.is_autocommit() {
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
