//! What happened, in order, in the same transaction as the happening itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rusqlite::{OptionalExtension, Params, Transaction};

use super::database::Database;
use super::operations::PathEffect;
use super::upper::{parse_row, to_row};
use super::{Result, Store};
use crate::model::{Digest, OperationId, RelPath};
pub use crate::protocol::Event;
use crate::protocol::EventName;

/// An event that has no number and no time yet; it gets both when it is committed. Its row is spelled the same.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EventDraft {
    #[serde(flatten)]
    event: Event,
    /// What it did, as far as it can be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    effects: Vec<PathEffect>,
}

impl EventDraft {
    pub fn new(name: EventName) -> Self {
        Self { event: Event::new(0, jiff::Timestamp::UNIX_EPOCH, name), effects: Vec::new() }
    }

    pub fn with(mut self, fill: impl FnOnce(&mut Event)) -> Self {
        fill(&mut self.event);
        self
    }

    /// With this it is an operation, or part of the one that is recorded with it.
    pub fn doing(mut self, effects: impl IntoIterator<Item = PathEffect>) -> Self {
        self.effects.extend(effects);
        self
    }

    pub(super) fn into_parts(self) -> (Event, Vec<PathEffect>) {
        (self.event, self.effects)
    }
}

impl Store {
    pub fn record(&self, draft: &EventDraft) -> Result<()> {
        self.database.lock().write(|tx| put_all(tx, std::slice::from_ref(draft), &[]).map(|_| ()))
    }

    /// Events with a number above `after`, oldest first.
    pub fn events_since(&self, after: u64) -> Result<Vec<Event>> {
        self.read_events(&self.database.lock(), "seq > ?1 ORDER BY seq", [after as i64])
    }

    /// At most `limit` of them. Where there is none yet, waits for one: None when none will come, for the mount goes.
    pub fn events_after(&self, after: u64, limit: u64, wait: Duration) -> Result<Option<Vec<Event>>> {
        let until = Instant::now() + wait;
        let mut database = self.database.lock();
        let committed = database.committed();
        loop {
            let events = self.read_events(&database, "seq > ?1 ORDER BY seq LIMIT ?2", [after as i64, limit as i64])?;
            if events.is_empty() && database.is_ending() {
                return Ok(None);
            }
            if !events.is_empty() || committed.wait_until(&mut database, until).timed_out() {
                return Ok(Some(events));
            }
        }
    }

    /// Answers all who wait for an event.
    pub fn end_waits(&self) {
        self.database.lock().end_waits();
    }

    fn read_events(&self, database: &Database, which: &str, parameters: impl Params) -> Result<Vec<Event>> {
        let mut statement = database.reader().prepare_cached(&format!("SELECT row FROM event WHERE {which}"))?;
        let rows = statement.query_map(parameters, |row| row.get::<_, String>(0))?;
        rows.map(|row| parse_row(&row?, self.dirs.describe())).collect()
    }

    /// The hash of what was last put at a path, as far as events tell.
    pub fn last_landed(&self, path: &RelPath) -> Result<Option<Digest>> {
        let database = self.database.lock();
        let mut statement = database
            .reader()
            .prepare_cached("SELECT row FROM event WHERE path = ?1 AND sha256 IS NOT NULL ORDER BY seq DESC LIMIT 1")?;
        let row: Option<String> = statement.query_row([path.as_bytes()], |row| row.get(0)).optional()?;
        let event: Option<Event> = row.map(|row| parse_row(&row, self.dirs.describe())).transpose()?;
        Ok(event.and_then(|event| event.sha256))
    }

    /// The number of the latest event.
    pub fn last_seq(&self) -> Result<u64> {
        let database = self.database.lock();
        let seq: i64 = database.reader().query_row("SELECT COALESCE(MAX(seq), 0) FROM event", [], |row| row.get(0))?;
        Ok(seq as u64)
    }
}

impl Store {
    /// Makes one operation of the events of paths, each since a time in milliseconds. Gives its id; none where none of them
    /// has been told.
    pub fn gather(&self, paths: &[(RelPath, i64)]) -> Result<Option<OperationId>> {
        // Others have their events between these.
        let looked_at = (paths.len() * EVENTS_BETWEEN) as i64;
        let recent = self.read_events(&self.database.lock(), "TRUE ORDER BY seq DESC LIMIT ?1", [looked_at])?;
        let since: HashMap<&RelPath, i64> = paths.iter().map(|(path, since)| (path, *since)).collect();
        let is_of = |event: &&Event| {
            let since = event.path.as_ref().and_then(|path| since.get(path));
            since.is_some_and(|since| event.time.as_millisecond() >= *since)
        };
        let seqs: Vec<u64> = recent.iter().filter(is_of).map(|event| event.seq).collect();
        let Some(operation) = seqs.iter().min().map(|first| OperationId::of_first_event(*first)) else {
            return Ok(None);
        };
        self.database.lock().write(|tx| seqs.iter().try_for_each(|seq| self.join(tx, *seq, operation)))?;
        Ok(Some(operation))
    }

    fn join(&self, tx: &Transaction<'_>, seq: u64, operation: OperationId) -> Result<()> {
        let seq = seq as i64;
        let row: String =
            tx.prepare_cached("SELECT row FROM event WHERE seq = ?1")?.query_row([seq], |row| row.get(0))?;
        let mut draft: EventDraft = parse_row(&row, self.dirs.describe())?;
        draft.event.operation = Some(operation.to_string());
        tx.prepare_cached("UPDATE event SET row = ?2 WHERE seq = ?1")?.execute((seq, to_row(&draft)?))?;
        Ok(())
    }
}

/// How many events of others may come with each of those that are gathered.
const EVENTS_BETWEEN: usize = 8;

/// Events that happened at once. Those that did something are one operation, whose id this gives. An event of a path
/// that has one of `backups` tells its name.
pub(super) fn put_all(
    tx: &Transaction<'_>,
    drafts: &[EventDraft],
    backups: &[(&RelPath, &String)],
) -> Result<Option<OperationId>> {
    if drafts.is_empty() {
        return Ok(None);
    }
    let mut latest = tx.prepare_cached("SELECT COALESCE(MAX(seq), 0) + 1 FROM event")?;
    let first: i64 = latest.query_row([], |row| row.get(0))?;
    let mut operation = None;
    for (seq, draft) in (first..).zip(drafts) {
        let mut draft = draft.clone();
        if !draft.effects.is_empty() && draft.event.operation.is_none() {
            let id = *operation.get_or_insert(OperationId::of_first_event(seq as u64));
            draft.event.operation = Some(id.to_string());
        }
        put(tx, seq, draft, backups)?;
    }
    Ok(operation)
}

fn put(tx: &Transaction<'_>, seq: i64, mut draft: EventDraft, backups: &[(&RelPath, &String)]) -> Result<()> {
    let event = &mut draft.event;
    event.seq = seq as u64;
    event.time = super::now();
    let backup = backups.iter().find(|(path, _)| Some(*path) == event.path.as_ref());
    event.backup = event.backup.take().or_else(|| backup.map(|(_, name)| (*name).clone()));
    let changed = !matches!(
        event.event,
        EventName::WriteHeld | EventName::WriteDenied | EventName::Discarded | EventName::ExternalModified
    );
    let sha256 = event.sha256.filter(|_| changed).map(|digest| digest.to_string());
    tx.prepare_cached("INSERT INTO event (seq, path, sha256, row) VALUES (?1, ?2, ?3, ?4)")?.execute((
        seq,
        draft.event.path.as_ref().map(RelPath::as_bytes),
        sha256,
        to_row(&draft)?,
    ))?;
    Ok(())
}
