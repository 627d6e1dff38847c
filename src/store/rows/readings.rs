//! What readers have received: for each session of a user the texts it was last given, and how many bytes that saved.
//!
//! Kept over unmounts, within bounds: the latest [`SESSIONS_MAX`] sessions, and the latest [`TEXTS_MAX`] texts up to
//! [`TEXT_BYTES_MAX`]. A reader that is forgotten reads as if for the first time, which costs bytes and nothing else.
//! Texts are rows of their own and not in `content`, so no purge counts them, and a reset removes them.

use rusqlite::{OptionalExtension, Row};

use crate::model::{Digest, RelPath};
use crate::store::{Error, Result, Store};
use crate::sys::sqlite::Transaction;

/// Sessions that are remembered: more than a team of agents has at work on one project.
const SESSIONS_MAX: usize = 64;

/// Texts of all sessions together, and their bytes.
const TEXTS_MAX: u64 = 4096;
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The session name for counts of reads without a session, and of sessions that are forgotten. No session has this name.
const NOBODY: &str = "";

/// A session of one user. Another user's session of the same name is a different one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    pub uid: u32,
    pub session: String,
}

/// What a session last received of a path: [`Store::received_text`] has the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    pub digest: Digest,
    /// What the session's own patches have made of it since: content that it knows without having received it.
    pub own: Option<Digest>,
}

/// One read, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub asked: u64,
    pub returned: u64,
}

/// What has been counted for one session; `None` for reads without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterRow {
    pub uid: u32,
    pub session: Option<String>,
    pub reads: u64,
    pub counted: Counted,
}

impl Store {
    pub fn baseline(&self, reader: &Reader, path: &RelPath) -> Result<Option<Baseline>> {
        let database = self.reading()?;
        let mut statement = database
            .reader()
            .prepare_cached("SELECT sha256, own FROM reading WHERE uid = ?1 AND session = ?2 AND path = ?3")?;
        let row = statement.query_row((reader.uid, &reader.session, path.as_bytes()), |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
        });
        let damaged = || Error::Damaged { path: self.dirs.describe().to_owned(), what: "a reading's hash".to_owned() };
        let digest = |hex: &String| Digest::parse(hex).ok_or_else(damaged);
        let baseline = row
            .optional()?
            .map(|(sha256, own)| Ok(Baseline { digest: digest(&sha256)?, own: own.as_ref().map(digest).transpose()? }));
        baseline.transpose()
    }

    /// Returns the text of a baseline, or `None` if the session has received another since, or was forgotten.
    pub fn received_text(&self, reader: &Reader, path: &RelPath, baseline: &Baseline) -> Result<Option<Vec<u8>>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare_cached(
            "SELECT bytes FROM reading WHERE uid = ?1 AND session = ?2 AND path = ?3 AND sha256 = ?4",
        )?;
        let row = (reader.uid, &reader.session, path.as_bytes(), baseline.digest.to_string());
        Ok(statement.query_row(row, |row| row.get(0)).optional()?)
    }

    /// Notes that a session has received a text.
    pub fn note_received(&self, reader: &Reader, path: &RelPath, digest: Digest, text: &[u8]) -> Result<()> {
        self.database.lock().write(|tx| {
            forget(tx, reader, Some(path))?;
            let mut insert = tx.prepare_cached(
                "INSERT INTO reading (uid, session, path, sha256, size, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?;
            let (path, size) = (path.as_bytes(), text.len() as i64);
            insert.execute((reader.uid, &reader.session, path, digest.to_string(), size, text))?;
            drop_old_texts(tx)
        })
    }

    /// Notes that a session has made `made` of `base`. If it has received or made `base`, it knows `made` as well.
    pub fn note_own_edit(&self, reader: &Reader, path: &RelPath, base: Digest, made: Digest) -> Result<()> {
        self.database.lock().write(|tx| {
            let mut update = tx.prepare_cached(
                "UPDATE reading SET own = ?5
                 WHERE uid = ?1 AND session = ?2 AND path = ?3 AND (sha256 = ?4 OR own = ?4)",
            )?;
            let (base, made) = (base.to_string(), made.to_string());
            update.execute((reader.uid, &reader.session, path.as_bytes(), base, made))?;
            Ok(())
        })
    }

    /// Forgets what a session has received, of one path or of all.
    pub fn forget_received(&self, reader: &Reader, path: Option<&RelPath>) -> Result<()> {
        self.database.lock().write(|tx| forget(tx, reader, path))
    }

    /// Counts one read of a user, in a session or without one.
    pub fn count_read(&self, uid: u32, session: Option<&str>, counted: Counted) -> Result<()> {
        self.database.lock().write(|tx| {
            count(tx, uid, session.unwrap_or(NOBODY), 1, counted)?;
            drop_old_sessions(tx)
        })
    }

    /// Returns the counts of one user or of all, the latest reader first.
    pub fn meters(&self, uid: Option<u32>, session: Option<&str>) -> Result<Vec<MeterRow>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare_cached(
            "SELECT uid, session, reads, asked, returned FROM reader
             WHERE (?1 IS NULL OR uid = ?1) AND (?2 IS NULL OR session = ?2) AND reads > 0 ORDER BY used DESC",
        )?;
        let rows = statement.query_map((uid, session), meter)?;
        Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
    }

    /// Begins to count from zero. What was received stays known.
    pub fn reset_meters(&self, uid: Option<u32>, session: Option<&str>) -> Result<()> {
        self.database.lock().write(|tx| {
            let mut reset = tx.prepare_cached(
                "UPDATE reader SET reads = 0, asked = 0, returned = 0
                 WHERE (?1 IS NULL OR uid = ?1) AND (?2 IS NULL OR session = ?2)",
            )?;
            reset.execute((uid, session))?;
            Ok(())
        })
    }
}

fn meter(row: &Row<'_>) -> rusqlite::Result<MeterRow> {
    let number = |column: usize| row.get::<_, i64>(column).map(|number| number as u64);
    let session: String = row.get(1)?;
    Ok(MeterRow {
        uid: row.get(0)?,
        session: Some(session).filter(|session| session != NOBODY),
        reads: number(2)?,
        counted: Counted { asked: number(3)?, returned: number(4)? },
    })
}

fn forget(tx: &Transaction<'_>, reader: &Reader, path: Option<&RelPath>) -> Result<()> {
    let mut delete =
        tx.prepare_cached("DELETE FROM reading WHERE uid = ?1 AND session = ?2 AND (?3 IS NULL OR path = ?3)")?;
    delete.execute((reader.uid, &reader.session, path.map(RelPath::as_bytes)))?;
    Ok(())
}

/// `used` counts and is no clock, which may be set back.
fn count(tx: &Transaction<'_>, uid: u32, session: &str, reads: i64, counted: Counted) -> Result<()> {
    let mut upsert = tx.prepare_cached(
        "INSERT INTO reader (uid, session, used, reads, asked, returned)
         VALUES (?1, ?2, (SELECT COALESCE(MAX(used), 0) + 1 FROM reader), ?3, ?4, ?5)
         ON CONFLICT (uid, session) DO UPDATE SET used = excluded.used, reads = reads + excluded.reads,
             asked = asked + excluded.asked, returned = returned + excluded.returned",
    )?;
    upsert.execute((uid, session, reads, counted.asked as i64, counted.returned as i64))?;
    Ok(())
}

/// The counts of the sessions that go are added to those of [`NOBODY`].
fn drop_old_sessions(tx: &Transaction<'_>) -> Result<()> {
    let old = {
        let mut statement = tx.prepare_cached(
            "SELECT uid, session, reads, asked, returned FROM reader WHERE session != ''
             ORDER BY used DESC LIMIT -1 OFFSET ?1",
        )?;
        let rows = statement.query_map([SESSIONS_MAX as i64], meter)?;
        rows.collect::<rusqlite::Result<Vec<MeterRow>>>()?
    };
    for MeterRow { uid, session, reads, counted } in old {
        let reader = Reader { uid, session: session.unwrap_or_default() };
        forget(tx, &reader, None)?;
        tx.prepare_cached("DELETE FROM reader WHERE uid = ?1 AND session = ?2")?.execute((uid, &reader.session))?;
        count(tx, uid, NOBODY, reads as i64, counted)?;
    }
    Ok(())
}

/// The oldest go first: a text that is received again is a new row.
fn drop_old_texts(tx: &Transaction<'_>) -> Result<()> {
    let sums = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    loop {
        let (texts, bytes) = tx
            .prepare_cached("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM reading")?
            .query_row([], sums)
            .map_err(Error::from)?;
        if texts as u64 <= TEXTS_MAX && bytes as u64 <= TEXT_BYTES_MAX {
            return Ok(());
        }
        tx.prepare_cached("DELETE FROM reading WHERE id = (SELECT MIN(id) FROM reading)")?.execute([])?;
    }
}

#[cfg(test)]
mod tests;
