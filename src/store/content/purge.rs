//! Lets backups go by age, number and quota, oldest first, but never the only copy of something still needed.
//!
//! A purge runs beside landings. It must not take what the caller says is needed, what an intent names, and what was
//! staged or opened a moment ago, because that may be about to be named. [`Store::note_use`] comes before the content
//! gets its place, and a purge looks and takes under the same lock, so that one of the two sees the other.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Deserialize;

use crate::model::{Digest, RelPath};
use crate::policy::settings::BackupLimits;
use crate::store::database::Database;
use crate::store::journal::intent::Intent;
use crate::store::rows::events::{EventDraft, Measured};
use crate::store::rows::operations::{Effect, PathEffect};
use crate::store::rows::parse_row;
use crate::store::{Context, Result, Store, content};
use crate::sys::RenameFlags;

/// Content that was staged or opened so long ago has been named by now, or never will be. The longest that can come in
/// between is a judging, which is bounded, and a confirm, which syncs to disk.
const USE_MAX: Duration = Duration::from_secs(600);

/// How often backups are checked for age when hardly anything is kept.
const PURGE_INTERVAL: Duration = Duration::from_secs(600);

/// The shortest time between two purges: each looks at all backups.
const PURGE_PAUSE: Duration = Duration::from_secs(30);

/// If this much was kept, a limit may be passed: more backups than one path may have, or a sixteenth of the quota.
const KEPT_MAX: u64 = 128;
const KEPT_OF_QUOTA: u64 = 16;

/// This many events are a tenth of what the log may have.
const RECORDED_MAX: u64 = 4096;

/// Rows deleted in one transaction. A thread that waits to commit comes before the next one: the lock is handed over.
const BATCH: usize = 64;

/// What is known between purges.
#[derive(Default)]
pub(in crate::store) struct Purging {
    /// When each content was last staged or opened.
    used: Mutex<HashMap<Digest, Instant>>,
    kept: Mutex<KeptSince>,
    due: Condvar,
    /// One purge at a time, and none while uses are forgotten, since a purge goes by what was used before it began.
    one: Mutex<()>,
    pub(in crate::store) measured: Mutex<Measured>,
}

/// What has been kept since the last purge.
#[derive(Default)]
struct KeptSince {
    backups: u64,
    bytes: u64,
    events: u64,
    /// This many bytes are much.
    bytes_max: u64,
    /// The next purge does not begin before this.
    earliest: Option<Instant>,
    is_ending: bool,
}

impl KeptSince {
    fn is_much(&self) -> bool {
        self.backups >= KEPT_MAX || self.bytes >= self.bytes_max || self.events >= RECORDED_MAX
    }
}

impl Purging {
    pub fn note_kept(&self, backups: u64, bytes: u64) {
        let mut kept = self.kept.lock();
        let was_much = kept.is_much();
        (kept.backups, kept.bytes) = (kept.backups + backups, kept.bytes.saturating_add(bytes));
        // Only once: a thread that waits for the next purge need not be woken by each landing.
        if !was_much && kept.is_much() {
            self.due.notify_all();
        }
    }

    pub fn note_recorded(&self, events: u64) {
        let mut kept = self.kept.lock();
        let was_much = kept.is_much();
        kept.events += events;
        if !was_much && kept.is_much() {
            self.due.notify_all();
        }
    }
}

impl Store {
    /// Notes that this content is about to be named, or to be read.
    pub(in crate::store) fn note_use(&self, digest: Digest) {
        self.purging.used.lock().insert(digest, Instant::now());
    }

    /// Called when nothing is under way any more, so that no content is in use.
    pub fn forget_uses(&self) {
        let _none_purges = self.purging.one.lock();
        self.purging.used.lock().clear();
    }

    /// Sleeps until a purge is worth its while. Returns false if there will be none any more.
    pub fn wait_for_purge(&self, limits: &BackupLimits) -> bool {
        let mut kept = self.purging.kept.lock();
        kept.bytes_max = (limits.quota_bytes / KEPT_OF_QUOTA).max(1);
        let until = Instant::now() + PURGE_INTERVAL;
        let earliest = kept.earliest.unwrap_or_else(Instant::now);
        while !kept.is_ending && !self.purging.due.wait_until(&mut kept, earliest).timed_out() {}
        while !kept.is_ending && !kept.is_much() && !self.purging.due.wait_until(&mut kept, until).timed_out() {}
        let is_ending = kept.is_ending;
        *kept = KeptSince { earliest: Some(Instant::now() + PURGE_PAUSE), is_ending, ..KeptSince::default() };
        !is_ending
    }

    /// Ends the wait for a purge.
    pub fn end_purges(&self) {
        self.purging.kept.lock().is_ending = true;
        self.purging.due.notify_all();
    }

    /// Removes what is beyond the limits, and content that nothing names. `needed` is never removed.
    pub fn purge(&self, limits: &BackupLimits, needed: &HashSet<Digest>) -> Result<usize> {
        let _one_at_a_time = self.purging.one.lock();
        let begun = Instant::now();
        // Before the backups are read: what an intent names now may have become a backup by then.
        let promised = self.promised()?;
        let age_max = limits.age_max.map_or(i64::MAX, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let oldest = crate::store::now_millis().saturating_sub(age_max);
        let backups = self.backups_as(|backup: &Dated| (backup.created, &backup.name))?;
        let (doomed, mut named) = beyond(&backups, limits, oldest, |backup| self.room_taken(backup))?;
        named.extend(self.bases_of_discarded(&named, oldest)?);
        for batch in doomed.chunks(BATCH) {
            let mut database = self.database.lock();
            database.write(|tx| {
                let mut statement = tx.prepare_cached("DELETE FROM backup WHERE name = ?1")?;
                batch.iter().try_for_each(|name| Ok(statement.execute([name]).map(|_| ())?))
            })?;
            MutexGuard::unlock_fair(database);
        }
        let is_orphan = |digest: &Digest| [&named, &promised, needed].iter().all(|some| !some.contains(digest));
        let orphans: Vec<Digest> = self.contents()?.into_iter().filter(is_orphan).collect();
        orphans.chunks(BATCH).try_for_each(|batch| self.drop_content(batch, begun))?;
        self.purging.used.lock().retain(|_, at| at.elapsed() < USE_MAX);
        Ok(doomed.len())
    }

    /// Returns what the content of a backup takes on disk. Its holes must not drive other backups out.
    fn room_taken(&self, backup: &Dated) -> Result<u64> {
        if backup.size <= content::INLINE_BYTES_MAX {
            return Ok(backup.size);
        }
        let place = self.dirs.content_place(&backup.digest.to_string());
        let kept = place.stat().doing(|| format!("stat kept content {}", backup.digest))?;
        Ok(kept.map_or(backup.size, |meta| backup.size.min(meta.blocks.saturating_mul(512))))
    }

    /// Returns the bases of changes that have been discarded since the time `oldest` and can be held again, because what
    /// they came to is `named`, or they came to nothing.
    fn bases_of_discarded(&self, named: &HashSet<Digest>, oldest: i64) -> Result<Vec<Digest>> {
        // Selects all rows, so that no thread has to wait until those that count have been found.
        let query = "SELECT seq, CASE WHEN instr(row, '\"Discarded\"') > 0 THEN row ELSE '' END FROM event
                     WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        let effects = self.in_pieces(query, 0, |_: &i64, row: &String| {
            if row.is_empty() {
                return Ok(Vec::new());
            }
            let (event, effects) = parse_row::<EventDraft>(row, self.dirs.describe())?.into_parts();
            Ok(if event.time.as_millisecond() < oldest { Vec::new() } else { effects })
        })?;
        let base = |done: &PathEffect| match &done.effect {
            Effect::Discarded { row, content, .. } => {
                let content = content.and_then(|version| version.content);
                let is_kept = content.is_none_or(|kept| named.contains(&kept.digest));
                is_kept.then(|| row.base.contents())
            }
            _ => None,
        };
        Ok(effects.iter().flatten().filter_map(base).flatten().collect())
    }

    /// Returns the hashes of all content that has a row or a file: on a full disk one may have come without the other.
    fn contents(&self) -> Result<HashSet<Digest>> {
        let query = "SELECT sha256, '' FROM content WHERE sha256 > ?1 ORDER BY sha256 LIMIT ?2";
        let rows = self.in_pieces(query, String::new(), |hex, _: &String| Ok(Digest::parse(hex)))?;
        let files = self.dirs.content_files()?;
        Ok(rows.into_iter().flatten().chain(files.iter().filter_map(|name| Digest::parse(name))).collect())
    }

    /// Returns the content that landings under way need.
    pub(super) fn promised(&self) -> Result<HashSet<Digest>> {
        let database = self.reading()?;
        promised_in(&database, self.dirs.describe())
    }

    /// Deletes content that no backup named when a purge had `begun`, unless a use of it was noted since, which comes
    /// before it is named. Rows go first: a crash in between leaves files without a row, which cost space until the next
    /// start and lose nothing.
    fn drop_content(&self, orphans: &[Digest], begun: Instant) -> Result<()> {
        let trash = self.take_away(orphans, begun)?;
        // This takes long, and no thread waits for it any more.
        trash.iter().try_for_each(|name| content::remove_file(&self.dirs, name))
    }

    /// Returns the names under which files wait for their removal.
    fn take_away(&self, orphans: &[Digest], begun: Instant) -> Result<Vec<String>> {
        // Before the locks: on a full disk this waits for the thread that writes in the reserve, which may be about to
        // note a use. A record that comes to wait after this still has its intent.
        self.record_waiting()?;
        let used = self.purging.used.lock();
        let mut database = self.database.lock();
        let promised = promised_in(&database, self.dirs.describe())?;
        let is_used =
            |digest: &Digest| used.get(digest).is_some_and(|at| begun.saturating_duration_since(*at) < USE_MAX);
        let is_free = |digest: &&Digest| !promised.contains(digest) && !is_used(digest);
        let free: Vec<Digest> = orphans.iter().filter(is_free).copied().collect();
        database.write(|tx| {
            let mut statement = tx.prepare_cached("DELETE FROM content WHERE sha256 = ?1")?;
            free.iter().try_for_each(|digest| Ok(statement.execute([digest.to_string()]).map(|_| ())?))
        })?;
        MutexGuard::unlock_fair(database);
        let aside = free.into_iter().map(|digest| self.set_aside(digest));
        Ok(aside.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns `None` if the content had no file.
    fn set_aside(&self, digest: Digest) -> Result<Option<String>> {
        let name = content::passing_name();
        let (place, aside) = (self.dirs.content_place(&digest.to_string()), self.dirs.content_place(&name));
        match place.rename(&aside, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(Some(name)),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err).doing(|| format!("set content {digest} aside")),
        }
    }
}

/// Returns the content that intents in the database need.
fn promised_in(database: &Database, state: &str) -> Result<HashSet<Digest>> {
    let mut statement = database.reader().prepare_cached("SELECT row FROM intent")?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut promised = HashSet::new();
    for row in &rows {
        promised.extend(parse_row::<Intent>(row, state)?.contents());
    }
    Ok(promised)
}

/// The part of a backup that decides whether it stays.
#[derive(Deserialize)]
struct Dated {
    name: String,
    path: RelPath,
    digest: Digest,
    size: u64,
    created: i64,
}

/// Returns the names of backups past a limit, and the content that the others name. `backups` come newest first, and take
/// the space that `room` returns. One without space beside the newer ones that stay goes, and drives no other out.
fn beyond<'a>(
    backups: &'a [Dated],
    limits: &BackupLimits,
    oldest: i64,
    room: impl Fn(&Dated) -> Result<u64>,
) -> Result<(Vec<&'a str>, HashSet<Digest>)> {
    let mut per_path: HashMap<&RelPath, usize> = HashMap::new();
    let (mut doomed, mut named) = (Vec::new(), HashSet::new());
    let mut left = limits.quota_bytes;
    for backup in backups {
        let number = per_path.entry(&backup.path).or_default();
        let is_wanted = backup.created >= oldest && *number < limits.per_path_max as usize;
        // Content is kept once, however many backups have it.
        let needed = if named.contains(&backup.digest) { 0 } else { room(backup)? };
        if is_wanted && needed <= left {
            *number += 1;
            left -= needed;
            named.insert(backup.digest);
        } else {
            doomed.push(&*backup.name);
        }
    }
    Ok((doomed, named))
}
