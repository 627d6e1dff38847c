//! The event log: what happened, in order, recorded in the transaction that made it happen.
//!
//! The log is bounded: past [`LOG_BYTES_MAX`] the oldest events go, a quarter of the log at a time, and numbers go on. If
//! an event says what was last put at a path with backups, its hash stays in a row that is otherwise empty, so that a
//! rollback can tell whether that was edited since. What a follower has not read stays, too (`followers.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Params};

use super::backups::Backup;
use super::followers::FOLLOWED_TIMES_MAX;
use super::operations::{Effect, PathEffect};
use super::upper::{Kept, Writer};
use super::windows::WindowNote;
use super::{parse_row, to_row};
use crate::model::{BackupKind, Digest, OperationId, RelPath};
pub use crate::protocol::Event;
use crate::protocol::{EventName, REPLY_BYTES_MAX};
use crate::store::database::Database;
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

/// The log holds no more than this, except for what comes before the next purge.
pub const LOG_BYTES_MAX: u64 = 16 << 20;

/// How much of the log is read at once, unless one event is larger: half of what an answer has room for. A path may have
/// four thousand bytes, and an event two paths.
const PAGE_BYTES_MAX: usize = REPLY_BYTES_MAX / 2;

/// Events deleted in one transaction: a commit waits for one batch at most.
const BATCH: usize = 1024;

/// How long the log was when it was last looked at, so that only what came since must be added.
#[derive(Default)]
pub(in crate::store) struct Measured {
    seq: u64,
    bytes: u64,
}

/// An event that has no number and no time yet; it gets both when it is committed. Rows have the same form.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EventDraft {
    #[serde(flatten)]
    event: Event,
    /// What the event did, as far as it can be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    effects: Vec<PathEffect>,
    /// For a landing: what a daemon needs to go on with its window after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) window: Option<WindowNote>,
}

impl EventDraft {
    pub fn new(name: EventName) -> Self {
        Self { event: Event::new(0, jiff::Timestamp::UNIX_EPOCH, name), effects: Vec::new(), window: None }
    }

    pub fn with(mut self, fill: impl FnOnce(&mut Event)) -> Self {
        fill(&mut self.event);
        self
    }

    pub fn operation(&self) -> Option<OperationId> {
        OperationId::parse(self.event.operation.as_ref()?)
    }

    /// True if it has effects that are part of no operation yet.
    fn is_of_its_own(&self) -> bool {
        !self.effects.is_empty() && self.event.operation.is_none()
    }

    /// Records all that is known of who did it.
    pub fn by(self, who: &Writer) -> Self {
        self.asked_by(who).written_by(who)
    }

    pub fn asked_by(self, who: &Writer) -> Self {
        self.with(|event| {
            (event.pid, event.uid) = who.known().map(|who| (who.pid, who.uid)).unzip();
            event.session = who.session.clone().or(event.session.take());
        })
    }

    /// Records which programs wrote the content, if someone else acts on it.
    pub fn written_by(self, who: &Writer) -> Self {
        self.with(|event| {
            (event.opened_by, event.written_by) = (who.opened_by.clone(), who.written_by.clone());
        })
    }

    /// Adds effects, which make the event an operation, or part of the one that is recorded with it.
    pub fn doing(mut self, effects: impl IntoIterator<Item = PathEffect>) -> Self {
        self.effects.extend(effects);
        self
    }

    /// Notes that the landing opens a window, or goes on with one.
    pub fn within_window(mut self, note: Option<WindowNote>) -> Self {
        self.window = note;
        self
    }

    pub(in crate::store) fn into_parts(self) -> (Event, Vec<PathEffect>) {
        (self.event, self.effects)
    }
}

impl Store {
    pub fn record(&self, draft: &EventDraft) -> Result<()> {
        self.purging.note_recorded(1);
        self.database.lock().write(|tx| put_all(tx, std::slice::from_ref(draft), &[]).map(|_| ()))
    }

    /// Returns the events with a number above `after`, oldest first.
    pub fn events_since(&self, after: u64) -> Result<Vec<Event>> {
        self.read_events("seq > ?1 ORDER BY seq", [number_of(after)])
    }

    /// Returns up to `limit` events after `after`, but no more than an answer has room for: only an empty result means
    /// that there are no more. If there is none yet, waits for one: `None` if none will come, as the mount is ending.
    pub fn events_after(&self, after: u64, limit: u64, wait: Duration) -> Result<Option<Vec<Event>>> {
        let until = Instant::now() + wait;
        let committed = self.database.lock().committed();
        loop {
            let mut database = self.reading()?;
            let events = self.read_page(&database, after, limit)?;
            if events.is_empty() && database.is_ending() {
                return Ok(None);
            }
            if !events.is_empty() || committed.wait_until(&mut database, until).timed_out() {
                return Ok(Some(events));
            }
        }
    }

    /// Notes that a process of a user follows the log, has read up to event `read`, and is told up to event `told`.
    pub fn note_follower(&self, (pid, uid): (u32, u32), read: u64, told: u64) {
        self.followers.note((pid, uid), read, told);
    }

    /// Ends all waits for an event.
    pub fn end_waits(&self) {
        self.database.lock().end_waits();
    }

    fn read_page(&self, database: &Database, after: u64, limit: u64) -> Result<Vec<Event>> {
        let mut statement = database
            .reader()
            .prepare_cached("SELECT row FROM event WHERE row != '' AND seq > ?1 ORDER BY seq LIMIT ?2")?;
        let mut rows = statement.query([number_of(after), limit as i64])?;
        let (mut bytes, mut page) = (0, Vec::new());
        while let Some(row) = rows.next()? {
            let row: String = row.get(0)?;
            bytes += row.len();
            if bytes > PAGE_BYTES_MAX && !page.is_empty() {
                break;
            }
            page.push(parse_row(&row, self.dirs.describe())?);
        }
        Ok(page)
    }

    fn read_events(&self, which: &str, parameters: impl Params) -> Result<Vec<Event>> {
        self.each_row(&format!("SELECT row FROM event WHERE row != '' AND {which}"), parameters)?.collect()
    }

    /// Returns every event with its effects, the latest first. Reads the whole log.
    pub fn history(&self) -> Result<Vec<(Event, Vec<PathEffect>)>> {
        let drafts = self.each_row::<EventDraft>("SELECT row FROM event WHERE row != '' ORDER BY seq DESC", [])?;
        drafts.map(|draft| Ok(draft?.into_parts())).collect()
    }

    /// Returns what was last put at each of the paths, as far as events tell. Reads the whole log.
    pub fn last_landed(&self, paths: &HashSet<RelPath>) -> Result<HashMap<RelPath, Kept>> {
        let last = self.last_landings(paths)?;
        let database = self.reading()?;
        let mut statement = database.reader().prepare_cached("SELECT sha256, row FROM event WHERE seq = ?1")?;
        let mut landed = HashMap::new();
        for (path, seq) in last {
            let told = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
            let Some((hex, row)) = statement.query_row([seq], told).optional()? else { continue };
            let Some(digest) = Digest::parse(&hex) else { continue };
            // All that is left of the oldest events is the path and the hash.
            let effects = match row.as_str() {
                "" => Vec::new(),
                row => parse_row::<EventDraft>(row, self.dirs.describe())?.into_parts().1,
            };
            let put = put_by(&path, digest, &effects);
            landed.insert(path, put);
        }
        Ok(landed)
    }

    /// Returns the numbers of the events that say what was last put at each of the paths. Reads the whole log: an index
    /// by path would cost each save a page, and only rare commands ask.
    fn last_landings(&self, paths: &HashSet<RelPath>) -> Result<HashMap<RelPath, i64>> {
        if paths.is_empty() {
            return Ok(HashMap::new());
        }
        let query = "SELECT seq, path FROM event
                     WHERE seq > ?1 AND path IS NOT NULL AND sha256 IS NOT NULL ORDER BY seq LIMIT ?2";
        let told = self.in_pieces(query, 0, |seq, path: &Vec<u8>| {
            let path = RelPath::parse(path).ok().filter(|path| paths.contains(path));
            Ok(path.map(|path| (path, *seq)))
        })?;
        Ok(told.into_iter().flatten().collect())
    }

    /// Returns what the latest event about an external change told of each path: its content, or `None` if it was gone.
    /// Leaves out paths at which something of ours has landed since. Reads the whole log.
    pub fn told_external(&self) -> Result<HashMap<RelPath, Option<Digest>>> {
        let which = "instr(row, '\"external_modified\"') > 0 ORDER BY seq";
        let told = self.read_events(which, [])?;
        let told = told.into_iter().filter(|event| event.event == EventName::ExternalModified);
        let told: Vec<_> = told.filter_map(|event| Some((event.path?, event.seq, event.sha256))).collect();
        let landed = self.last_landings(&told.iter().map(|(path, ..)| path.clone()).collect())?;
        let latest = told.into_iter().filter(|(path, seq, _)| landed.get(path).is_none_or(|last| *seq > *last as u64));
        Ok(latest.map(|(path, _, digest)| (path, digest)).collect())
    }

    /// Returns what was last put at each path, under the name that it has now, if nothing else of ours has happened to it
    /// since. A temporary file that was renamed over another is still listed: no event tells that it went. Reads the whole
    /// log.
    pub fn last_put(&self) -> Result<HashMap<RelPath, Kept>> {
        let mut last = HashMap::new();
        for draft in self.each_row::<EventDraft>("SELECT row FROM event WHERE row != '' ORDER BY seq", [])? {
            let (event, effects) = draft?.into_parts();
            if is_put(event.event) {
                effects.iter().for_each(|done| follow(&mut last, done));
                let content = event.path.zip(event.sha256);
                last.extend(content.map(|(path, digest)| (path.clone(), put_by(&path, digest, &effects))));
            }
        }
        Ok(last)
    }

    /// Returns the time in milliseconds of the latest such event of each change, by the change's id. Reads the whole log.
    pub fn latest_of_changes(&self, name: EventName) -> Result<HashMap<String, i64>> {
        let named = format!("\"event\":{}", to_row(&name)?);
        let told = self.read_events("instr(row, ?1) > 0 ORDER BY seq", [named])?;
        let told = told.into_iter().filter(|event| event.event == name);
        Ok(told.filter_map(|event| Some((event.id?, event.time.as_millisecond()))).collect())
    }

    /// Returns the number of the latest event.
    pub fn last_seq(&self) -> Result<u64> {
        let database = self.reading()?;
        let seq: i64 = database.reader().query_row("SELECT COALESCE(MAX(seq), 0) FROM event", [], |row| row.get(0))?;
        Ok(seq as u64)
    }
}

/// Letting the oldest events go.
impl Store {
    /// Lets the oldest events go if all are longer than `bytes_max`. What stays is three quarters of that, and of what a
    /// follower has not read yet up to four times `bytes_max`. Returns how many went. A crash in the middle leaves some
    /// of them, all newer than those that are gone.
    pub fn rotate_events(&self, bytes_max: u64) -> Result<u64> {
        if self.measure_events()? <= bytes_max {
            return Ok(0);
        }
        let beyond = self.events_beyond(bytes_max / 4 * 3, bytes_max.saturating_mul(FOLLOWED_TIMES_MAX))?;
        // A rollback needs to know what was last put at its path.
        let needed = self.last_landings(&self.paths_with_backups()?)?.into_values().collect();
        let mut gone = 0;
        for batch in beyond.chunks(BATCH) {
            gone += self.database.lock().write(|tx| let_go(tx, batch, &needed))?;
        }
        self.forget_verdicts()?;
        self.forget_given_ids()?;
        // What is left is measured anew.
        *self.purging.measured.lock() = Measured::default();
        Ok(gone)
    }

    /// Returns the earliest time of an event that is left, in milliseconds. It need not be that of the oldest event: the
    /// clock may have been ahead when that was recorded.
    pub(super) fn earliest_event(&self) -> Result<Option<i64>> {
        let query = "SELECT seq, row FROM event WHERE row != '' AND seq > ?1 ORDER BY seq LIMIT ?2";
        let times = self.in_pieces(query, 0, |_: &i64, row: &String| {
            Ok(parse_row::<Event>(row, self.dirs.describe())?.time.as_millisecond())
        })?;
        Ok(times.into_iter().min())
    }

    fn measure_events(&self) -> Result<u64> {
        let mut measured = self.purging.measured.lock();
        let came = self.event_lengths(measured.seq as i64)?;
        measured.bytes += came.iter().map(|(_, length)| length).sum::<u64>();
        measured.seq = came.last().map_or(measured.seq, |(seq, _)| *seq as u64);
        Ok(measured.bytes)
    }

    /// Returns the numbers, oldest first, of events that go so that `bytes_kept` stay, or `unread_kept` of those that a
    /// follower has yet to read. The latest event always stays: the next one gets its number from it.
    fn events_beyond(&self, bytes_kept: u64, unread_kept: u64) -> Result<Vec<i64>> {
        let read = self.followers.have_read().map_or(i64::MAX, |read| read as i64);
        let (mut bytes, mut beyond) = (0, Vec::new());
        for (seq, length) in self.event_lengths(0)?.into_iter().rev().skip(1) {
            bytes += length;
            if bytes > if seq > read { unread_kept } else { bytes_kept } {
                beyond.push(seq);
            }
        }
        beyond.reverse();
        Ok(beyond)
    }

    /// Returns the numbers and lengths of the events after one, oldest first.
    fn event_lengths(&self, after: i64) -> Result<Vec<(i64, u64)>> {
        let query = "SELECT seq, OCTET_LENGTH(row) FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        self.in_pieces(query, after, |seq, length: &i64| Ok((*seq, *length as u64)))
    }
}

/// Returns the number as the database counts; no event has one beyond its range.
fn number_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// True if lower has the content whose hash such an event tells.
fn is_put(name: EventName) -> bool {
    use EventName::{Confirmed, RolledBack, Undone, WriteLanded};
    matches!(name, WriteLanded | Confirmed | RolledBack | Undone)
}

/// Returns what an event that tells a hash put at its path: what it did there tells whether that was a symlink.
fn put_by(path: &RelPath, digest: Digest, effects: &[PathEffect]) -> Kept {
    let symlink = Kept { digest, symlink: true };
    let is_symlink = |done: &PathEffect| match &done.effect {
        Effect::Content { after: Some(after), .. } => done.path == *path && after.content == Some(symlink),
        _ => false,
    };
    Kept { symlink: effects.iter().any(is_symlink), ..symlink }
}

/// Applies an effect to what is known: what was renamed gets its new name, and what it replaced, or what went, has none.
fn follow(put: &mut HashMap<RelPath, Kept>, done: &PathEffect) {
    let path = &done.path;
    match &done.effect {
        Effect::Renamed { from, .. } => {
            let moved = take_moved(put, from, path);
            put.retain(|at, _| !at.is_within(path));
            put.extend(moved);
        }
        Effect::Exchanged { with, .. } => {
            let (one, other) = (take_moved(put, path, with), take_moved(put, with, path));
            put.extend(one.into_iter().chain(other));
        }
        Effect::Mode { .. } | Effect::Owner { .. } | Effect::Times { .. } | Effect::Xattr { .. } => {}
        // What is there now, if anything, is told by the event.
        _ => drop(put.remove(path)),
    }
}

/// Takes out what is at or below `from`, under the names that it has once `from` is `to`.
fn take_moved(put: &mut HashMap<RelPath, Kept>, from: &RelPath, to: &RelPath) -> Vec<(RelPath, Kept)> {
    let taken = put.extract_if(|at, _| at.is_within(from));
    taken.filter_map(|(at, kept)| Some((at.rebase(from, to)?, kept))).collect()
}

/// Deletes the events of these numbers, except the path and hash of those that are `needed`. Returns how many went.
fn let_go(tx: &Transaction<'_>, numbers: &[i64], needed: &HashSet<i64>) -> Result<u64> {
    let mut empty = tx.prepare_cached("UPDATE event SET row = '' WHERE seq = ?1 AND row != ''")?;
    let mut delete = tx.prepare_cached("DELETE FROM event WHERE seq = ?1")?;
    let mut gone = 0;
    for seq in numbers {
        let statement = if needed.contains(seq) { &mut empty } else { &mut delete };
        gone += statement.execute([seq])? as u64;
    }
    Ok(gone)
}

/// Events that belong together from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    pub operation: OperationId,
    /// The operations that they were until now.
    pub were: Vec<OperationId>,
}

impl Store {
    /// Makes one operation of the writes to some paths, each since a time in milliseconds, and of all operations that
    /// these belong to. If an event only tells more of a change that was held before, the operation of that change is
    /// left out, unless it is one of `going_on`. Returns `None` if no event tells of these paths.
    pub fn gather(&self, paths: &[(RelPath, i64)], going_on: &[OperationId]) -> Result<Option<Gathered>> {
        // Events of others come in between.
        let looked_at = (paths.len() * EVENTS_BETWEEN).max(EVENTS_LOOKED_AT) as i64;
        let recent = self.read_events("TRUE ORDER BY seq DESC LIMIT ?1", [looked_at])?;
        let since: HashMap<&RelPath, i64> = paths.iter().map(|(path, since)| (path, *since)).collect();
        let is_of = |event: &&Event| {
            let since = event.path.as_ref().and_then(|path| since.get(path));
            // What a person did to the paths in between is not the writer's doing.
            let is_written = matches!(event.event, EventName::WriteLanded | EventName::WriteHeld);
            is_written && since.is_some_and(|since| event.time.as_millisecond() >= *since)
        };
        let told: Vec<u64> = recent.iter().filter(is_of).map(|event| event.seq).collect();
        self.database.lock().write(|tx| {
            let mut events: BTreeMap<u64, EventDraft> = BTreeMap::new();
            for seq in told {
                let row: String = tx
                    .prepare_cached("SELECT row FROM event WHERE seq = ?1")?
                    .query_row([seq as i64], |row| row.get(0))?;
                events.insert(seq, parse_row(&row, self.dirs.describe())?);
            }
            events.retain(|_, draft| draft.effects.iter().all(|done| done.effect.is_on_entry()));
            let were = events.iter().filter_map(|(seq, draft)| {
                let operation = draft.operation()?;
                let is_its_own = !draft.effects.is_empty() || operation.first_event() == *seq;
                Some(operation).filter(|operation| is_its_own || going_on.contains(operation))
            });
            let were = were.collect();
            self.join_events(tx, events, were)
        })
    }

    /// Makes one operation of several. Returns `None` if no event is left of any.
    pub fn unite(&self, operations: &[OperationId]) -> Result<Option<Gathered>> {
        let were = operations.iter().copied().collect();
        self.database.lock().write(|tx| self.join_events(tx, BTreeMap::new(), were))
    }

    /// Joins `events` and everything that belonged to the operations `were`. Operations are joined whole: one that lost
    /// part of its effects could not be undone as a whole. If two did different kinds of things at one path, their union
    /// could not be undone either; then the later one stays separate.
    fn join_events(
        &self,
        tx: &Transaction<'_>,
        mut events: BTreeMap<u64, EventDraft>,
        were: BTreeSet<OperationId>,
    ) -> Result<Option<Gathered>> {
        if let Some(first) = were.first() {
            let mut statement = tx.prepare_cached("SELECT seq, row FROM event WHERE row != '' AND seq >= ?1")?;
            let mut rows = statement.query([first.first_event() as i64])?;
            while let Some(row) = rows.next()? {
                let draft: EventDraft = parse_row(&row.get::<_, String>(1)?, self.dirs.describe())?;
                if draft.operation().is_some_and(|operation| were.contains(&operation)) {
                    events.insert(row.get::<_, i64>(0)? as u64, draft);
                }
            }
        }
        let apart = incompatible(&events);
        events.retain(|_, draft| draft.operation().is_none_or(|operation| !apart.contains(&operation)));
        let Some(first) = events.keys().next() else { return Ok(None) };
        let operation = OperationId::of_first_event(*first);
        for (seq, draft) in events {
            join(tx, seq, draft, operation)?;
        }
        let were = were.difference(&apart).copied().filter(|was| *was != operation).collect();
        Ok(Some(Gathered { operation, were }))
    }
}

/// Returns the operations that made or removed a directory where an earlier one did something, or the other way round.
fn incompatible(events: &BTreeMap<u64, EventDraft>) -> BTreeSet<OperationId> {
    let is_on_dir = |effect: &Effect| matches!(effect, Effect::DirMade | Effect::DirRemoved(_));
    let mut by_operation: BTreeMap<OperationId, Vec<&PathEffect>> = BTreeMap::new();
    for draft in events.values() {
        if let Some(operation) = draft.operation() {
            by_operation.entry(operation).or_default().extend(&draft.effects);
        }
    }
    let (mut apart, mut taken) = (BTreeSet::new(), HashMap::new());
    for (operation, effects) in by_operation {
        let differs =
            |done: &&PathEffect| taken.get(&done.path).is_some_and(|was_on_dir| *was_on_dir || is_on_dir(&done.effect));
        if effects.iter().any(differs) {
            apart.insert(operation);
        } else {
            taken.extend(effects.into_iter().map(|done| (&done.path, is_on_dir(&done.effect))));
        }
    }
    apart
}

fn join(tx: &Transaction<'_>, seq: u64, mut draft: EventDraft, operation: OperationId) -> Result<()> {
    let operation = Some(operation.to_string());
    if draft.event.operation != operation {
        draft.event.operation = operation;
        tx.prepare_cached("UPDATE event SET row = ?2 WHERE seq = ?1")?.execute((seq as i64, to_row(&draft)?))?;
    }
    Ok(())
}

/// How many events of others may come in between, for each path that is gathered.
const EVENTS_BETWEEN: usize = 8;

/// At least this many events are looked at.
const EVENTS_LOOKED_AT: usize = 64;

/// Records events that happened together. Those with effects become one operation, whose id is returned. An event whose
/// path has one of `backups` gets the backup's name.
pub(in crate::store) fn put_all(
    tx: &Transaction<'_>,
    drafts: &[EventDraft],
    backups: &[(&Backup, &String)],
) -> Result<Option<OperationId>> {
    if drafts.is_empty() {
        return Ok(None);
    }
    let first = next_number(tx)?;
    let operation = operation_of(first, drafts);
    let names = Names::of(backups);
    for (seq, draft) in (first..).zip(drafts) {
        let mut draft = draft.clone();
        if draft.is_of_its_own() {
            draft.event.operation = operation.map(|operation| operation.to_string());
        }
        put(tx, seq, draft, &names)?;
    }
    Ok(operation)
}

/// Returns the number that the next event gets.
pub(in crate::store) fn next_number(connection: &Connection) -> Result<i64> {
    let mut latest = connection.prepare_cached("SELECT COALESCE(MAX(seq), 0) + 1 FROM event")?;
    Ok(latest.query_row([], |row| row.get(0))?)
}

/// Returns the operation that events become if they are numbered from `first` on, or `None` if they do nothing, or only
/// as part of another operation.
pub(in crate::store) fn operation_of(first: i64, drafts: &[EventDraft]) -> Option<OperationId> {
    let number = (first..).zip(drafts).find_map(|(seq, draft)| draft.is_of_its_own().then_some(seq));
    number.map(|seq| OperationId::of_first_event(seq as u64))
}

/// The names that backups got, by path; those of discarded content are kept apart.
struct Names<'a>(HashMap<(&'a RelPath, bool), &'a String>);

impl<'a> Names<'a> {
    fn of(backups: &[(&'a Backup, &'a String)]) -> Self {
        let key = |backup: &'a Backup| (&backup.path, backup.kind == BackupKind::Discarded);
        Self(backups.iter().map(|(backup, name)| (key(backup), *name)).collect())
    }

    /// Returns the name that an event tells: of what it replaced, or of what it discarded.
    fn told_by(&self, draft: &EventDraft) -> Option<String> {
        let is_held_again = draft.effects.iter().any(|done| matches!(done.effect, Effect::HeldAgain { .. }));
        let path = draft.event.path.as_ref().filter(|_| !is_held_again)?;
        let discards = matches!(draft.event.event, EventName::Discarded | EventName::WriteDenied);
        self.0.get(&(path, discards)).map(|name| (*name).clone())
    }
}

fn put(tx: &Transaction<'_>, seq: i64, mut draft: EventDraft, backups: &Names<'_>) -> Result<()> {
    draft.event.backup = draft.event.backup.take().or_else(|| backups.told_by(&draft));
    let event = &mut draft.event;
    event.seq = seq as u64;
    event.time = crate::store::now();
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
