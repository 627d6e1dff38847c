//! What is remembered, each kind of row in its file.
//!
//! - [`upper`]: what the view has and lower has not, held or still being written; [`windows`] that go on after a restart
//! - [`ids`] of held changes, which never come to mean anything else, and the [`verdicts`] on those that are gone
//! - [`anchors`]: what a path had at first; [`backups`]: what was replaced
//! - [`events`], and the [`followers`] of their log; [`operations`]: what can be undone, and the [`inspections`] of it
//! - [`readings`]: what readers have received; [`runs`]: where they were started from;
//!   [`settings`]: single values by name

pub(super) mod anchors;
pub(super) mod backups;
pub(super) mod events;
pub(super) mod followers;
mod ids;
pub(super) mod inspections;
pub mod operations;
pub(super) mod readings;
pub(super) mod runs;
pub(super) mod settings;
pub(super) mod upper;
pub(super) mod verdicts;
pub(super) mod windows;

use parking_lot::MutexGuard;
use rusqlite::Params;
use rusqlite::types::{FromSql, ToSql};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Error, Result, Store};

/// Rows read at once. A save that comes meanwhile waits for that many.
const PIECE_ROWS: i64 = 64;

impl Store {
    /// Runs a query whose only column is a row.
    fn each_row<T: DeserializeOwned>(
        &self,
        query: &str,
        parameters: impl Params,
    ) -> Result<impl Iterator<Item = Result<T>>> {
        let rows: Vec<String> = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare_cached(query)?;
            statement.query_map(parameters, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
        };
        Ok(rows.into_iter().map(|row| parse_row(&row, self.dirs.describe())))
    }

    /// Runs a query piece by piece, and returns what `read` makes of its rows. Each piece begins after the key of the
    /// last row before it, the first one after `after`. Other threads get the database between two pieces, so what
    /// comes or goes meanwhile may be included or not.
    pub(super) fn in_pieces<K: FromSql + ToSql, V: FromSql, T>(
        &self,
        query: &str,
        after: K,
        read: impl Fn(&K, &V) -> Result<T>,
    ) -> Result<Vec<T>> {
        let (mut all, mut last) = (Vec::new(), after);
        loop {
            let piece: Vec<(K, V)> = {
                let database = self.reading()?;
                let mut statement = database.reader().prepare_cached(query)?;
                let piece = statement.query_map((&last, PIECE_ROWS), |row| Ok((row.get(0)?, row.get(1)?)))?;
                let piece = piece.collect::<rusqlite::Result<_>>()?;
                drop(statement);
                MutexGuard::unlock_fair(database);
                piece
            };
            for (key, row) in &piece {
                all.push(read(key, row)?);
            }
            match piece.into_iter().next_back() {
                Some((key, _)) => last = key,
                None => return Ok(all),
            }
        }
    }
}

pub(super) fn parse_row<'a, T: Deserialize<'a>>(json: &'a str, state: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|err| Error::Damaged { path: state.to_owned(), what: err.to_string() })
}

pub(super) fn to_row<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|err| Error::Io { doing: "spell a row".to_owned(), cause: std::io::Error::other(err) })
}
