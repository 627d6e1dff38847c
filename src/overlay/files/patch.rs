//! Writing several files at once, all of them or none: what a patch has made of them (SPEC §16).
//!
//! ```text
//!   open, look ──► stage new files ──► one transaction: the view shows all ──► judge each
//!         └── refused, failed, killed: as before ──┘          └── killed: held, as interrupted
//! ```
//! New content is complete in `stage/` before anything shows it. One database transaction makes the entries, and under
//! the same lock the view shows them all; no failure and no crash leaves only some. From then on each file is on its own:
//! it is judged as if a program had just closed it, and lands or is held; one that cannot land is held as well.
//! Permission programs are asked about every file before the first is shown, and not again: what was let through is shown
//! whatever they would say later.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::copy_up::{Keep, copy_file};
use super::handles::{Backing, Handle, HandleId, OpenFile, OpenFlags};
use super::set_id::drop_set_id;
use crate::diff::{TEXT_BYTES_MAX, measure};
use crate::model::{ChangeId, ChangeKind, Digest, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::judge::ask::Said;
use crate::overlay::judge::settle::Settled;
use crate::overlay::review::{Reviewed, busy_open, check_no_file_twice};
use crate::overlay::state::limits::{Extent, Position};
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Caller, Error, Overlay, Result, Shown, State};
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, Event, EventName, Outcome, refused_at};
use crate::store::{Backup, Epilogue, NewUpper, StagedContent, UpperId, UpperRow, What};
use crate::sys::file::{self, Meta};

/// A file and its new content.
#[derive(Clone, Debug)]
pub struct Rewrite {
    pub path: RelPath,
    /// The digest of the content that the new one was made from.
    pub base: Digest,
    pub content: Vec<u8>,
}

#[derive(Clone)]
pub struct RewriteHow<'a> {
    pub caller: Caller,
    /// True if the caller may write a file; asked of each one that is opened.
    pub may_write: &'a dyn Fn(&Shown) -> bool,
    pub dry_run: bool,
}

/// How often an open is tried again because the path became another node.
const OPENS_MAX: usize = 4;
/// How many events are searched for those of the files that were just judged.
const EVENTS_LOOKED_AT: u64 = 2000;

/// One file of the patch, open until this is dropped.
struct OpenRewrite<'a> {
    overlay: &'a Overlay,
    path: &'a RelPath,
    id: HandleId,
}

/// The same, looked at.
struct Writing<'a> {
    overlay: &'a Overlay,
    rewrite: &'a Rewrite,
    handle: Arc<Handle>,
    /// How many writes were done before `old` was read.
    version: u64,
    /// What the view showed then.
    old: Vec<u8>,
    was: Meta,
    /// Closes the file when dropped.
    _open: OpenRewrite<'a>,
}

/// New content of a file, complete, which nothing shows yet. Dropping it removes it.
struct Staged<'a> {
    writing: &'a Writing<'a>,
    open: &'a Arc<OpenFile>,
    new: NewUpper<'a>,
    file: Arc<File>,
}

impl Drop for OpenRewrite<'_> {
    fn drop(&mut self) {
        if let Err(err) = self.overlay.release(self.id) {
            log::error!("close {} after a patch: {err}", self.path);
        }
    }
}

impl Overlay {
    /// Writes all of `rewrites`, or none.
    pub fn rewrite_all(&self, rewrites: &[Rewrite], how: &RewriteHow<'_>) -> Reviewed<Vec<Outcome>> {
        let opened = rewrites.iter().map(|rewrite| self.open_rewrite(rewrite, how));
        let writing = opened.collect::<Reviewed<Vec<Writing<'_>>>>()?;
        check_each_once(&writing)?;
        if let [_, _, ..] = writing.as_slice() {
            writing.iter().try_for_each(Writing::check_judged)?;
        }
        if how.dry_run {
            return writing.iter().map(|one| one.planned(&how.caller)).collect();
        }
        let said = writing.iter().map(|one| one.ask_ahead(&how.caller)).collect::<Reviewed<Vec<_>>>()?;
        if let [one] = writing.as_slice()
            && one.handle.judged().is_none()
        {
            return one.write_past(&how.caller).map(|outcome| vec![outcome]);
        }
        let staged = writing.iter().map(|one| one.stage(&how.caller)).collect::<Reviewed<Vec<_>>>()?;
        let seq = self.store.last_seq().map_err(|err| self.nothing_written(&err.into()))?;
        let shown = self.show_all(staged)?;
        // One request is one operation, whatever the caller has written a moment ago or asks for next.
        self.go_ends(how.caller.pid);
        let to_judge = writing.iter().zip(shown.into_iter().zip(said));
        let settled: Vec<_> = to_judge.map(|(one, (id, said))| one.judge(id, said)).collect();
        self.go_ends(how.caller.pid);
        let events = self.events_of(seq);
        let outcomes = writing.iter().zip(settled).map(|(one, settled)| one.outcome(settled, &events)).collect();
        drop(writing);
        rewrites.iter().for_each(|rewrite| self.tell_content_changed(&rewrite.path));
        Ok(outcomes)
    }

    fn open_rewrite<'a>(&'a self, rewrite: &'a Rewrite, how: &RewriteHow<'_>) -> Reviewed<Writing<'a>> {
        let path = &rewrite.path;
        self.check_nobody_writes(path)?;
        let not_written = |err: Error| self.not_written(path, &err);
        let open = self.open_to_write(path, how).map_err(not_written)?;
        let handle = self.handle(open.id).map_err(not_written)?;
        let version = handle.judged().map_or(0, |open| open.version());
        let file = handle.readable();
        let read =
            || -> io::Result<(Vec<u8>, Meta)> { Ok((file::read_all(&file, TEXT_BYTES_MAX)?, Meta::of(file.as_fd())?)) };
        let (old, was) = read().doing(|| format!("read {path}")).map_err(not_written)?;
        match Digest::of(&old) == rewrite.base {
            true => Ok(Writing { overlay: self, rewrite, handle, version, old, was, _open: open }),
            false => Err(changed_since(path, Digest::of(&old))),
        }
    }

    fn check_nobody_writes(&self, path: &RelPath) -> Reviewed<()> {
        match self.state.lock().writer_of(path) {
            Some(pid) => Err(busy_open(path, pid)),
            None => Ok(()),
        }
    }

    fn open_to_write<'a>(&'a self, path: &'a RelPath, how: &RewriteHow<'_>) -> Result<OpenRewrite<'a>> {
        let mut opens = 0;
        loop {
            opens += 1;
            match self.open_what_may_be_written(path, how) {
                Err(err) if err.code() == libc::ESTALE && opens < OPENS_MAX => {}
                opened => return opened,
            }
        }
    }

    /// Returns ESTALE if something else is at the path by now.
    fn open_what_may_be_written<'a>(&'a self, path: &'a RelPath, how: &RewriteHow<'_>) -> Result<OpenRewrite<'a>> {
        let epoch = self.state.lock().epoch;
        let walked = self.walk(path)?;
        let opened = self.open_to_ask(walked.node(), OpenFlags::from_raw(libc::O_RDWR), &how.caller)?;
        let open = OpenRewrite { overlay: self, path, id: opened.handle };
        let backing = self.handle(open.id)?.backing();
        let shown = self.come_to(path, &backing, epoch)?.ok_or(Error::Errno(libc::ESTALE))?;
        if (how.may_write)(&shown) { Ok(open) } else { Err(Error::Errno(libc::EACCES)) }
    }

    /// The commit point: the view shows all of them, or none.
    fn show_all(&self, staged: Vec<Staged<'_>>) -> Reviewed<Vec<UpperId>> {
        // Each once, and in an order that does not depend on the patch: no patch waits for itself, nor two for each
        // other.
        let mut by_node: Vec<&Arc<OpenFile>> = staged.iter().map(|one| one.open).collect();
        by_node.sort_by_key(|open| open.node);
        let copying: Vec<MutexGuard<'_, ()>> = by_node.iter().map(|open| open.copying.lock()).collect();
        let mut old: Vec<UpperId> = staged.iter().filter_map(|one| one.open.upper()).collect();
        old.sort();
        old.dedup();
        let claims = self.claim_all(&old);
        let kept = self.keep_what_waits(&staged).map_err(|err| self.nothing_written(&err))?;
        let mut state = self.state.lock();
        let rows = staged.iter().map(|one| state.row_for(one, &old)).collect::<Reviewed<Vec<_>>>()?;
        let epilogue = Epilogue { drop: old, save: rows, ..Epilogue::default() };
        self.store.record_keeping(&epilogue, &kept).map_err(|err| self.nothing_written(&err.into()))?;
        let Epilogue { drop: old, save: rows, .. } = epilogue;
        let ids: Vec<UpperId> = rows.iter().map(|row| row.id).collect();
        for (one, row) in staged.into_iter().zip(rows) {
            state.show(one, row);
        }
        drop(state);
        drop(claims);
        drop(copying);
        old.into_iter().for_each(|id| self.store.drop_upper_file(id));
        ids.iter().for_each(|id| self.store.note_room(*id));
        self.changed.notify_all();
        Ok(ids)
    }

    /// Keeps what waits for review in these files: the patch replaces it, and there is no other copy.
    fn keep_what_waits(&self, staged: &[Staged<'_>]) -> Result<Vec<(StagedContent, Backup)>> {
        let kept = staged.iter().map(|one| self.keep_replaced_content(one.open.upper(), &one.writing.handle.opener));
        kept.filter_map(Result::transpose).collect()
    }

    /// Returns the events recorded since; if one cannot be read, the answer lacks a name.
    fn events_of(&self, seq: u64) -> Vec<Event> {
        let events = self.store.events_after(seq, EVENTS_LOOKED_AT, std::time::Duration::ZERO);
        events.ok().flatten().unwrap_or_default()
    }

    fn nothing_written(&self, err: &Error) -> ErrorBody {
        let code = if err.code() == libc::ESTALE { ErrorCode::Busy } else { ErrorCode::WriteFailed };
        ErrorBody::new(code, format!("nothing was written: {err}{}", self.room_wanted(err)))
    }

    fn not_written(&self, path: &RelPath, err: &Error) -> ErrorBody {
        let refused = |code, why: &str| refused_at(path, code, &format!("nothing was written: {why}"));
        match (err, err.code()) {
            (Error::Denied, _) => refused(ErrorCode::HookDenied, "a permission program refused it"),
            (Error::Errno(libc::EPERM), _) => refused(ErrorCode::NotPermitted, "a rule keeps it from being written"),
            (Error::Errno(libc::EACCES), _) => refused(ErrorCode::NotPermitted, "you may not write it"),
            (Error::Errno(libc::EROFS), _) => refused(ErrorCode::NotPermitted, "nothing can be written"),
            (_, libc::ESTALE | libc::ETXTBSY) => refused(ErrorCode::Busy, &err.to_string()),
            (_, libc::ENOENT) => refused(ErrorCode::UnknownPath, "there is no such file"),
            _ => refused(ErrorCode::WriteFailed, &format!("{err}{}", self.room_wanted(err))),
        }
    }
}

impl State {
    /// Returns the entry that a file is to have, or a refusal if it is not what it was when it was looked at. `claimed`
    /// are the entries that cannot be judged, renamed or reviewed meanwhile.
    fn row_for(&self, one: &Staged<'_>, claimed: &[UpperId]) -> Reviewed<UpperRow> {
        let Staged { writing, open, new, .. } = one;
        let path = &writing.rewrite.path;
        let is_there = self.nodes.is_at(open.node, path) && open.is_still(writing.version);
        if !is_there || open.dirty.load(Ordering::SeqCst) {
            return Err(refused_at(
                path,
                ErrorCode::Busy,
                "nothing was written: somebody else has written it meanwhile",
            ));
        }
        let before = open.upper().filter(|id| claimed.contains(id)).and_then(|id| self.uppers.get(id));
        match (&*open.backing(), before) {
            (Backing::Upper(..), Some(upper)) => Ok(UpperRow { id: new.id(), ..upper.row.clone() }),
            (Backing::Lower(_), None) if self.uppers.at(path).is_none() => {
                Ok(UpperRow::of_copy(new.id(), path.clone(), What::File, &writing.was))
            }
            (Backing::Lower(_) | Backing::Upper(..) | Backing::Orphan(_), _) => {
                Err(refused_at(path, ErrorCode::Busy, "nothing was written: it is being replaced"))
            }
        }
    }

    fn show(&mut self, one: Staged<'_>, row: UpperRow) {
        let Staged { writing, open, new, file } = one;
        let before = open.upper().and_then(|id| self.uppers.remove(id));
        let moved_on = match &before {
            Some(upper) => upper.moved_on,
            None => writing.handle.opened().is_some_and(|opened| !opened.has_same_content(&writing.was.stamp())),
        };
        let synced = before.is_some_and(|upper| upper.synced && upper.has_row());
        self.uppers.insert(Upper { moved_on, synced, ..Upper::written(row) });
        self.epoch += 1;
        // Counts as a write: a judge that has looked at the content must look again.
        drop(open.begin_write());
        open.set_backing(&mut self.nodes, Backing::Upper(new.keep(), file));
        open.dirty.store(true, Ordering::SeqCst);
        open.note_rewritten();
    }
}

impl<'a> Writing<'a> {
    fn ask_ahead(&self, caller: &Caller) -> Reviewed<Option<Said>> {
        let Rewrite { path, content, .. } = self.rewrite;
        let said = self.overlay.ask_ahead_of_rewrite(path, content, caller);
        said.map_err(|err| self.overlay.not_written(path, &err))
    }

    /// Refuses a file that passes: it is written where it stands, and cannot be shown together with others.
    fn check_judged(&self) -> Reviewed<()> {
        match self.handle.judged() {
            Some(_) => Ok(()),
            None => {
                let why = "nothing was written: nobody judges this file, so it cannot be all or nothing with others. \
                           Patch it by itself";
                Err(refused_at(&self.rewrite.path, ErrorCode::BadRequest, why))
            }
        }
    }

    fn stage(&'a self, caller: &Caller) -> Reviewed<Staged<'a>> {
        let path = &self.rewrite.path;
        let not_written = |err: Error| self.overlay.not_written(path, &err);
        let open = self.handle.judged().ok_or_else(|| not_written(Error::Errno(libc::ESTALE)))?;
        self.check_limits(open)?;
        let stage = || -> Result<(NewUpper<'a>, Arc<File>)> {
            let like = self.handle.readable();
            let upper = self.overlay.store.create_upper(self.was.mode)?;
            let doing = || format!("stage {path}");
            copy_file(&like, &self.was, &upper.file, Keep::Nothing, self.overlay.grants.suid).doing(doing)?;
            upper.file.write_all_at(&self.rewrite.content, 0).doing(doing)?;
            drop_set_id(&upper.file, caller).doing(doing)?;
            Ok((upper.new, Arc::new(upper.file)))
        };
        let (new, file) = stage().map_err(not_written)?;
        Ok(Staged { writing: self, open, new, file })
    }

    /// Checks that so much more may be held, or written to what is held (`limits`).
    fn check_limits(&self, open: &OpenFile) -> Reviewed<()> {
        let Rewrite { path, content, .. } = self.rewrite;
        let length = content.len() as u64;
        let checked = match open.upper() {
            // A file with an entry gets no second one, and replacing its content needs no further room.
            Some(_) => self.overlay.check_room_in(&self.handle.readable(), Extent { begins: Position::At(0), length }),
            None => self.overlay.check_may_change(length),
        };
        checked.map_err(|err| match err.code() {
            libc::EDQUOT => {
                let why = "nothing was written: as much waits for review as may (limits.held, limits.upper); confirm \
                           or discard some of it, and try again";
                refused_at(path, ErrorCode::WriteFailed, why)
            }
            _ => self.overlay.not_written(path, &err),
        })
    }

    /// Judges a file as at the close of a program's descriptor. What cannot land is held; what cannot be held either is
    /// in the view all the same, and is tried again. What permission programs have `said` counts.
    fn judge(&self, id: UpperId, said: Option<Said>) -> Result<Settled> {
        let settled = self.overlay.settle_let_through(id, &self.handle, said);
        match settled {
            Ok(Settled::Postponed) => {
                // The release tries again.
                self.handle.note_written();
                settled
            }
            Ok(_) => settled,
            Err(err) => {
                log::warn!("{} cannot land and is held: {err}", self.rewrite.path);
                self.overlay.settle_because(id, &self.handle.actor(), vec![Reason::Backup])
            }
        }
    }

    /// Writes in place, as a program would, and puts the old content back if that fails.
    fn write_past(&self, caller: &Caller) -> Reviewed<Outcome> {
        let Rewrite { path, content, .. } = self.rewrite;
        let put = |bytes: &[u8]| {
            let extent = Extent { begins: Position::At(0), length: bytes.len() as u64 };
            self.overlay.change_content(&self.handle, Keep::Content, (caller, extent), |file| {
                // Cut only afterwards: until then the old bytes keep their room, and can be put back.
                file.write_all_at(bytes, 0)?;
                file.set_len(bytes.len() as u64)?;
                drop_set_id(file, caller)
            })
        };
        if let Err(err) = put(content) {
            if let Err(worse) = put(&self.old) {
                log::error!("put {path} back after a patch that failed: {worse}");
            }
            return Err(self.overlay.not_written(path, &err));
        }
        self.overlay.tell_content_changed(path);
        Ok(self.facts(Done::Landed))
    }

    /// Returns what is known of a file, whatever becomes of it.
    fn facts(&self, done: Done) -> Outcome {
        let Rewrite { path, content, .. } = self.rewrite;
        let counts = measure(&self.old, content);
        let mut outcome = Outcome::new(done, path.clone());
        outcome.kind = Some(ChangeKind::Modify);
        outcome.size = Some(content.len() as u64);
        outcome.lines = Some(counts.new_lines);
        outcome.sha256 = Some(Digest::of(content));
        outcome.counts = Some(Counts::of(counts.insertions, counts.deletions, counts.old_lines));
        outcome
    }

    fn planned(&self, caller: &Caller) -> Reviewed<Outcome> {
        let Rewrite { path, content, .. } = self.rewrite;
        let comparison = self.overlay.compare_rewrite(path, content, caller);
        let comparison = comparison.map_err(|err| self.overlay.not_written(path, &err))?;
        let lands = comparison.is_some_and(|comparison| comparison.reasons.is_empty());
        Ok(match (*content == self.old, lands) {
            (true, _) => self.facts(Done::Unchanged),
            (false, true) => self.facts(Done::Landed),
            (false, false) => self.facts(Done::Held),
        })
    }

    fn outcome(&self, settled: Result<Settled>, events: &[Event]) -> Outcome {
        let path = &self.rewrite.path;
        let event = |name| events.iter().rev().find(|event| event.event == name && event.path.as_ref() == Some(path));
        match settled {
            Ok(Settled::Unchanged) => self.facts(Done::Unchanged),
            Ok(Settled::Landed) => {
                let event = event(EventName::WriteLanded);
                let backup = event.and_then(|event| event.backup.clone());
                let operation = event.and_then(|event| event.operation.clone());
                Outcome { backup, operation, ..self.facts(Done::Landed) }
            }
            Ok(Settled::Held(id)) => self.held(id),
            // Either another program writes it at this moment, and its close has it judged; or nothing can be recorded
            // now, and it is tried again.
            Ok(Settled::Postponed) | Err(_) => self.facts(Done::Held),
        }
    }

    /// Counted against what the project has, as a review shows it.
    fn held(&self, id: ChangeId) -> Outcome {
        let rows = self.overlay.held_rows().into_iter();
        let held = rows.filter_map(|row| row.held).find(|held| held.id == id);
        let counts = held.map(|held| Counts::of(held.insertions, held.deletions, held.old_lines));
        let facts = self.facts(Done::Held);
        Outcome { id: Some(id), counts: counts.or(facts.counts), ..facts }
    }
}

/// Names of one inode are one change (SPEC §4.7): it cannot have two new contents.
fn check_each_once(writing: &[Writing<'_>]) -> Reviewed<()> {
    let files = writing.iter().map(|one| (one.handle.node, &one.rewrite.path));
    check_no_file_twice(files, |other| {
        format!("nothing was written: it is another name of {other}, and both are one change. Patch it by one of them")
    })
}

/// The refusal of a file whose content is not what the patch was made for.
pub fn changed_since(path: &RelPath, now: Digest) -> ErrorBody {
    let why = format!("it is not what the patch was made for: its sha256 is {now} now. Read it again");
    refused_at(path, ErrorCode::Conflict, &why)
}
