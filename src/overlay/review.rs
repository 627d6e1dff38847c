//! Held changes as a reviewer sees them: the list, both sides of each change, and the claim on changes that are about to
//! be confirmed or discarded.
//!
//! Several changes are one transaction: either all of them land, durably, or lower and the view stay as they were. Rights
//! are checked by `control`. Results are the protocol's own types, so that nothing has to translate them.
//!
//! - [`ids`]: what each id stands for; [`together`]: which changes land or go along with those named
//! - [`confirm`], with [`expiry`] (held too long without a look), [`merge`] (where both sides moved on), [`confirm_land`]
//!   (one landing)
//! - [`discard`]; [`hunks`]: a part of a change
//! - [`inspected`]: what was shown of operations
//! - [`permits`]: whether the caller could make the changes of an undo or a rollback directly, asked of what was found

pub(super) mod confirm;
mod confirm_land;
pub(super) mod discard;
pub(super) mod expiry;
mod hunks;
pub(super) mod ids;
pub(super) mod inspected;
pub(super) mod merge;
pub(super) mod permits;
mod together;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::error::Context;
use super::files::handles::OpenFile;
use super::judge::side::Side;
use super::{Error, Overlay, Result, State};
use crate::model::{self, ChangeId, Digest, RelPath};
use crate::policy::settings::Ttl;
use crate::protocol::{Action as Done, Also, ErrorBody, ErrorCode, Outcome, refused_at};
use crate::store::{self, Below, EventDraft, Held, UpperRow, Writer, is_within_reserved};
use crate::sys::file::{self, FileKind};
use crate::sys::process;

pub(super) type Reviewed<T> = std::result::Result<T, ErrorBody>;

/// Who acts on held changes or backups, and whether the action is a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Review {
    pub by: Writer,
    pub dry_run: bool,
}

/// Both sides of a held change, as a diff shows them.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    pub old: Option<SideContent>,
    pub new: Option<SideContent>,
    /// What the new side brings besides content, in words for people.
    pub looks: Vec<String>,
    /// True if the new side still is what the change's id stands for; false while a program is writing to it, for
    /// example.
    pub is_as_held: bool,
}

#[derive(Clone, Debug)]
pub struct SideContent {
    pub content: ShownContent,
    /// `st_mode`, with the kind.
    pub mode: u32,
}

#[derive(Clone, Debug)]
pub enum ShownContent {
    Bytes(Vec<u8>),
    /// Too large to be read for a diff.
    Large(Digest),
}

/// Content in memory or, if it is large, a file to read piece by piece.
#[derive(Debug)]
pub enum WholeContent {
    Bytes(Vec<u8>),
    File(Arc<File>),
}

impl WholeContent {
    pub fn bytes_in_memory(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File(_) => 0,
        }
    }

    pub fn read(&self, offset: u64, size: usize) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
                let end = start.saturating_add(size).min(bytes.len());
                Ok(bytes[start..end].to_vec())
            }
            Self::File(file) => file::read_at(file, offset, size),
        }
    }
}

/// How long a request that asked to wait for writers waits, and how long any request waits for a judgement.
pub(super) const WAIT_FOR_WRITERS: Duration = Duration::from_secs(60);

/// How taking a change for review treats the change's writers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writers {
    WaitedFor { deadline: Instant },
    LeftAlone,
}

/// A held change claimed for review: nothing judges it meanwhile.
pub(super) struct Taken {
    pub row: UpperRow,
    pub held: Held,
    pub open: Option<Arc<OpenFile>>,
    pub version: u64,
}

impl Taken {
    fn outcome(&self, done: Done) -> Outcome {
        let also = Also(self.row.further_names().to_vec());
        let (id, kind) = (Some(self.held.id.clone()), Some(self.held.kind));
        Outcome { also, id, kind, ..Outcome::new(done, self.row.path().clone()) }
    }
}

/// Changes claimed for review. Given back on drop, however the review ends: their writers wait for that.
pub(super) struct Reviewing<'a> {
    pub overlay: &'a Overlay,
    pub taken: Vec<Taken>,
}

impl Reviewing<'_> {
    pub(super) fn give_back(mut self) -> Vec<Taken> {
        let taken = std::mem::take(&mut self.taken);
        self.overlay.give_back(&taken);
        taken
    }
}

impl Drop for Reviewing<'_> {
    fn drop(&mut self) {
        self.overlay.give_back(&self.taken);
    }
}

impl Overlay {
    /// Every held change, sorted by path.
    pub fn held_rows(&self) -> Vec<UpperRow> {
        self.held_rows_where(|_, _| true)
    }

    /// The held changes that `wanted` selects, sorted by path.
    pub fn held_rows_where(&self, wanted: impl Fn(&UpperRow, &Held) -> bool) -> Vec<UpperRow> {
        let state = self.state.lock();
        let rows = state.uppers.iter().map(|upper| &upper.row);
        by_path(rows.filter(|row| row.held.as_ref().is_some_and(|held| wanted(row, held))))
    }

    /// The held changes at a path or below it, sorted by path. A file that is held under another of its names is held at
    /// this one, too.
    pub fn held_within(&self, path: &RelPath) -> Vec<UpperRow> {
        // Looked at without the lock, which the look takes itself.
        let by_other_name = self.origin(path).ok().and_then(|origin| origin.upper());
        let state = self.state.lock();
        let ids = state.uppers.within(path).into_iter().chain(by_other_name).collect::<BTreeSet<_>>();
        let rows = ids.into_iter().filter_map(|id| Some(&state.uppers.get(id)?.row));
        by_path(rows.filter(|row| row.held.is_some()))
    }

    /// The change held under exactly this id.
    pub fn held_as(&self, id: &ChangeId) -> Option<UpperRow> {
        let state = self.state.lock();
        state.uppers.of_change(id).map(|upper| upper.row.clone())
    }

    /// The ids beginning with `digits`, of changes that are held or once were.
    pub fn ids_beginning_with(&self, digits: &ChangeId) -> BTreeSet<ChangeId> {
        self.state.lock().given_ids.beginning_with(digits).cloned().collect()
    }

    pub fn sides(&self, row: &UpperRow) -> Reviewed<Sides> {
        let old = self.shown_old(row).map_err(|err| failed(row.path(), &err))?;
        let mut new = self.row_side(row).map_err(|err| failed(row.path(), &err))?;
        let (looks, is_as_held) = self.compare_with_id(row, &mut new).map_err(|err| failed(row.path(), &err))?;
        Ok(Sides { old: content(old)?, new: content(new)?, looks, is_as_held })
    }

    /// Returns what a held change brings besides content, and whether that and its content still are what its id was made
    /// of.
    fn compare_with_id(&self, row: &UpperRow, new: &mut Side) -> Result<(Vec<String>, bool)> {
        let Some(held) = &row.held else { return Ok((Vec::new(), false)) };
        let digest = new.digest().doing(|| format!("hash {}", row.path()))?;
        let same_content = held.is_of(new.standing(), digest);
        if held.looks.is_none() {
            return Ok((Vec::new(), same_content));
        }
        let looks = new.looks(row).doing(|| format!("look at {}", row.path()))?;
        Ok((self.tell_looks(row, &looks, new.kind)?, same_content && looks.digest() == held.looks))
    }

    /// The old side's content at any size; `None` if it has none, as a directory.
    pub fn old_content(&self, row: &UpperRow) -> Reviewed<Option<WholeContent>> {
        self.shown_old(row).map(whole_content).map_err(|err| failed(row.path(), &err))
    }

    /// The same for the new side. Refused while that is not what the change's id stands for.
    pub fn new_content(&self, row: &UpperRow) -> Reviewed<Option<WholeContent>> {
        let mut new = self.row_side(row).map_err(|err| failed(row.path(), &err))?;
        match self.compare_with_id(row, &mut new).map_err(|err| failed(row.path(), &err))? {
            (_, true) => Ok(whole_content(new)),
            (_, false) => Err(failed(row.path(), &self.state.lock().being_written(row.path()))),
        }
    }

    /// What a diff compares with: lower as it is or, if lower has moved on, as it was when the change was held. A
    /// change back to what that was is compared with lower in either case.
    pub(super) fn shown_old(&self, row: &UpperRow) -> Result<Side> {
        let mut present = self.present_side(row.path())?;
        let stamp = present.meta.map(|meta| meta.stamp());
        if let (Below::Entry { stamp: base, .. }, Some(now)) = (row.base.below, stamp)
            && base.has_same_content(&now)
            && self.is_as_based(row, &mut present)?
        {
            return Ok(present);
        }
        if goes_back(row) {
            // Against its base nothing would show of what it takes from lower.
            return Ok(present);
        }
        let Some(kept) = row.base.content_below() else { return Ok(Side::default()) };
        let Some(file) = self.store.content_file(kept.digest)? else { return Ok(Side::default()) };
        let side = Side::of_file(file).doing(|| "read a base".to_owned())?;
        // Kept content has no mode of its own.
        let mode = match row.base.below {
            _ if kept.symlink => 0o777,
            Below::Entry { mode, .. } => mode,
            Below::Nothing => self.store.upper_meta(row.id)?.mode,
        };
        let kind = if kept.symlink { FileKind::Symlink } else { FileKind::Regular };
        Ok(Side { kind: Some(kind), mode, ..side })
    }

    /// How long ago a change expired, if it did: `expired 5 minutes ago`. A second that has begun counts in full, so that
    /// the age is never 0.
    pub fn expired(&self, held: &Held) -> Option<String> {
        let Ttl::After(ttl) = self.policy().settings.ttl else { return None };
        let age = u64::try_from(store::now_millis() - held.renewed).unwrap_or(0);
        let over = age.checked_sub(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))?;
        let (count, unit) = model::age(over.div_ceil(1000));
        (over > 0).then(|| format!("expired {} ago", model::plural(count, unit)))
    }

    /// Records a fresh look at a change, which may have ended since. A change that is being decided or judged at this
    /// moment is left alone: its row may be gone from the store already, and must not come back.
    pub fn renew(&self, id: &ChangeId) -> Reviewed<()> {
        let mut state = self.state.lock();
        let upper = state.uppers.by_id(id).and_then(|upper| state.uppers.get_mut(upper));
        let Some(upper) = upper.filter(|upper| !upper.busy) else { return Ok(()) };
        let mut row = upper.row.clone();
        if let Some(held) = &mut row.held {
            held.renewed = store::now_millis();
        }
        match self.store.save_upper(&row) {
            Ok(()) => upper.row = row,
            // Looking must work on a full disk: the diff is shown, and the change expires as if it had not been.
            Err(err) if err.is_full() => log::warn!("note that {} was looked at: {err}", row.path()),
            Err(err) => return Err(failed(row.path(), &err.into())),
        }
        Ok(())
    }

    /// Remarks about the settings, for people.
    pub fn policy_notices(&self) -> Vec<String> {
        self.policy().notices.clone()
    }

    /// Why no directory passes by being ignored, if there is a repository and none does.
    pub fn git_notice(&self) -> Option<String> {
        self.policy().git_notice()
    }

    /// Why only the built-in rules are in force, if that is so.
    pub fn unread_rules(&self) -> Option<String> {
        self.policy().unread.clone()
    }

    pub(super) fn take_all(&self, ids: &[ChangeId], writers: Writers) -> Reviewed<Reviewing<'_>> {
        // Claimed in one order, whatever the request's, so that two requests never wait for each other.
        let mut in_order: Vec<&ChangeId> = ids.iter().collect();
        {
            let state = self.state.lock();
            in_order.sort_by_cached_key(|id| state.uppers.by_id(id));
        }
        let mut taken = loop {
            if let Writers::WaitedFor { deadline } = writers {
                self.wait_for_writers(&in_order, deadline)?;
            }
            if let Some(taken) = self.take_unwritten(&in_order, writers)? {
                break taken;
            }
        };
        let places: HashMap<&ChangeId, usize> = ids.iter().enumerate().map(|(place, id)| (id, place)).collect();
        taken.taken.sort_by_cached_key(|change| places.get(&change.held.id).copied());
        Ok(taken)
    }

    /// Waits until nobody writes to any of these.
    fn wait_for_writers(&self, ids: &[&ChangeId], deadline: Instant) -> Reviewed<()> {
        let mut state = self.state.lock();
        while let Some((id, path, pid)) = state.written_among(ids)? {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(busy_writing(id, &path, pid));
            }
        }
        Ok(())
    }

    /// Claims all of these. Returns `None`, with nothing claimed, if a writer that is not to be left alone has begun on
    /// one of them: it may have another of them open, and its close of that one would wait for our claim.
    fn take_unwritten(&self, ids: &[&ChangeId], writers: Writers) -> Reviewed<Option<Reviewing<'_>>> {
        let mut taken = Reviewing { overlay: self, taken: Vec::new() };
        for id in ids {
            match self.take(id, writers)? {
                Some(change) => taken.taken.push(change),
                None => return Ok(None),
            }
        }
        Ok(Some(taken))
    }

    /// Returns `None` if the change has a writer that is not to be left alone.
    fn take(&self, id: &ChangeId, writers: Writers) -> Reviewed<Option<Taken>> {
        let mut state = self.state.lock();
        let judged_by = Instant::now() + WAIT_FOR_WRITERS;
        loop {
            let upper_id = state.uppers.by_id(id).ok_or_else(|| unknown(id))?;
            let path = state.uppers.get(upper_id).map(|upper| upper.row.path().clone()).unwrap_or_default();
            if matches!(writers, Writers::WaitedFor { .. }) && state.writers_of_entries().contains_key(&upper_id) {
                return Ok(None);
            }
            let open = state.nodes.open_of(upper_id).cloned();
            let upper = state.uppers.get_mut(upper_id).ok_or_else(|| unknown(id))?;
            if !upper.busy {
                let held = upper.row.held.clone().ok_or_else(|| unknown(id))?;
                upper.busy = true;
                if let Some(open) = &open {
                    // The next write must note itself again.
                    open.dirty.store(false, Ordering::SeqCst);
                }
                let version = open.as_ref().map_or(0, |open| open.version());
                return Ok(Some(Taken { row: upper.row.clone(), held, open, version }));
            }
            // A judgement is short.
            if self.changed.wait_until(&mut state, judged_by).timed_out() {
                return Err(busy_judging(&path).about(id.as_str()));
            }
        }
    }

    /// Why a landing did nothing; `nothing` says so in the action's own words, such as "nothing was discarded".
    pub(super) fn not_landed(&self, err: Error, nothing: &str) -> ErrorBody {
        let room = self.room_wanted(&err);
        let refusal = why_not_landed(err, nothing);
        ErrorBody { message: refusal.message + &room, ..refusal }
    }

    /// The end of an error message about lack of room: where to make some. Empty for any other failure.
    pub(super) fn room_wanted(&self, err: &Error) -> String {
        let errno = match err {
            // Trying again would not help: nothing more is written until the next start has put it right.
            Error::Store(store::Error::Unrecorded(_)) => return String::new(),
            other => other.code(),
        };
        match (errno, self.store.dirs().fullest(&self.lower)) {
            (libc::ENOSPC, Ok(place)) => {
                format!("; make room on the file system of {}, and try again", place.display())
            }
            (libc::EDQUOT, _) => "; make room within the quota, and try again".to_owned(),
            (_, _) => String::new(),
        }
    }

    /// The error for something at a path that needs room.
    pub(super) fn failed_in_room(&self, path: &RelPath, err: &Error) -> ErrorBody {
        let failed = failed(path, err);
        ErrorBody { message: failed.message + &self.room_wanted(err), ..failed }
    }

    pub(super) fn give_back(&self, taken: &[Taken]) {
        let mut state = self.state.lock();
        for change in taken {
            if let Some(upper) = state.uppers.get_mut(change.row.id) {
                upper.busy = false;
            }
            state.verdicts_due.retain(|id| *id != change.row.id);
        }
        self.changed.notify_all();
    }
}

impl State {
    /// The first of these that is being written, with its path and the writer's pid.
    fn written_among<'a>(&self, ids: &[&'a ChangeId]) -> Reviewed<Option<(&'a ChangeId, RelPath, u32)>> {
        let writers = self.writers_of_entries();
        for id in ids {
            let upper = self.uppers.of_change(id).ok_or_else(|| unknown(id))?;
            if let Some(pid) = writers.get(&upper.row.id) {
                return Ok(Some((id, upper.row.path().clone(), *pid)));
            }
        }
        Ok(None)
    }

    /// True if the change was neither written to nor renamed since it was taken for review.
    pub(super) fn is_as_taken(&self, taken: &Taken) -> bool {
        let Taken { row, open, version, .. } = taken;
        let same_names = self.uppers.get(row.id).is_some_and(|upper| upper.row.names == row.names);
        same_names && self.is_still(row.id, open.as_ref(), *version)
    }

    /// Why a change that is not [as it was taken](Self::is_as_taken) does not land.
    pub(super) fn crossed(&self, taken: &Taken) -> Error {
        self.being_written(taken.row.path())
    }

    pub(super) fn being_written(&self, path: &RelPath) -> Error {
        Error::Busy { path: path.clone(), pid: self.writer_of(path) }
    }
}

/// True if a change gives back the content that it was based on: something else has been made of that below.
fn goes_back(row: &UpperRow) -> bool {
    let (base, held) = (row.base.content_below(), row.held.as_ref());
    base.zip(held).is_some_and(|(base, held)| held.is_of(base.standing(), Some(base.digest)))
}

fn whole_content(side: Side) -> Option<WholeContent> {
    match (side.bytes, side.file) {
        (Some(bytes), _) => Some(WholeContent::Bytes(bytes)),
        (None, Some(file)) => Some(WholeContent::File(file)),
        (None, None) => None,
    }
}

fn content(mut side: Side) -> Reviewed<Option<SideContent>> {
    let Some(kind) = side.kind.filter(|kind| kind.has_content()) else {
        // A directory has no content that a diff could show.
        return Ok(None);
    };
    let kind_bits = if kind == FileKind::Symlink { libc::S_IFLNK } else { libc::S_IFREG };
    let mode = side.mode | kind_bits;
    let content = match side.bytes.take() {
        Some(bytes) => ShownContent::Bytes(bytes),
        None => side
            .digest()
            .map_err(|err| ErrorBody::new(ErrorCode::Io, format!("hash content: {err}")))?
            .map_or(ShownContent::Bytes(Vec::new()), ShownContent::Large),
    };
    Ok(Some(SideContent { content, mode }))
}

/// Adds to an event of a review who asked for it and which programs wrote what was reviewed.
pub(super) fn reviewed(event: EventDraft, held: &Held, by: &Writer) -> EventDraft {
    let event = event.asked_by(by);
    match &held.writer {
        Some(writer) => event.written_by(writer),
        None => event,
    }
}

fn by_path<'a>(rows: impl Iterator<Item = &'a UpperRow>) -> Vec<UpperRow> {
    let mut rows: Vec<&UpperRow> = rows.collect();
    rows.sort_by(|a, b| a.path().cmp(b.path()));
    rows.into_iter().cloned().collect()
}

pub(super) fn unknown(id: &ChangeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::UnknownId, format!("no held change {id}")).about(id.as_str())
}

pub(super) fn failed(path: &RelPath, err: &Error) -> ErrorBody {
    refused_at(path, err.kind(), &err.to_string())
}

pub(super) fn conflict(path: &str, why: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Conflict, format!("{path}: {why}"))
}

/// Another program changed the path in lower between the last look and the landing.
pub(super) fn changed_meanwhile(path: &str) -> ErrorBody {
    conflict(path, "it changed below at this very moment")
}

/// Why a landing did nothing, without the advice about room.
pub(super) fn why_not_landed(err: Error, nothing: &str) -> ErrorBody {
    match err {
        Error::Store(store::Error::Conflict { path }) => changed_meanwhile(&path),
        // The landing was done; the next start finishes it.
        Error::Store(store::Error::Unrecorded(_)) => ErrorBody::new(ErrorCode::WriteFailed, err.to_string()),
        Error::Busy { path, pid: Some(pid) } => busy_open(&path, pid),
        Error::Busy { path, pid: None } => refused_at(&path, ErrorCode::Busy, "it was written to at this very moment"),
        other if other.is_written_meanwhile() => ErrorBody::new(ErrorCode::Busy, format!("{nothing}: {other}")),
        other => ErrorBody::new(ErrorCode::WriteFailed, format!("{nothing}: {other}")),
    }
}

/// Refuses paths that are fettlefs's own: they are neither shown to anyone nor written for anyone.
pub(super) fn check_not_ours(path: &RelPath) -> Reviewed<()> {
    match is_within_reserved(path) {
        true => Err(refused_at(path, ErrorCode::NotPermitted, "it is fettlefs's own")),
        false => Ok(()),
    }
}

/// Refuses two names of one file, which cannot have two contents: `why` tells of the first that it is another name of it.
pub(super) fn check_no_file_twice<'a, K: Eq + Hash>(
    files: impl Iterator<Item = (K, &'a RelPath)>,
    why: impl Fn(&RelPath) -> String,
) -> Reviewed<()> {
    let mut names = HashMap::new();
    for (file, path) in files {
        if let Some(other) = names.insert(file, path) {
            return Err(refused_at(path, ErrorCode::BadRequest, &why(other)));
        }
    }
    Ok(())
}

pub(super) fn busy_open(path: &RelPath, pid: u32) -> ErrorBody {
    refused_at(path, ErrorCode::Busy, &format!("{} has it open for writing", process::shown(pid)))
}

pub(super) fn busy_judging(path: &RelPath) -> ErrorBody {
    ErrorBody::new(ErrorCode::Busy, format!("{path} is being judged")).at(path)
}

/// A directory cannot go while `path`, inside it, is being written.
pub(super) fn busy_within(path: &RelPath) -> ErrorBody {
    ErrorBody::new(ErrorCode::Busy, format!("{path} is being written")).at(path)
}

fn busy_writing(id: &ChangeId, path: &RelPath, pid: u32) -> ErrorBody {
    let message = format!("{path} is being written by {}", process::shown(pid));
    ErrorBody::new(ErrorCode::Busy, message).at(path).about(id.as_str())
}
