//! Writing several files at once, all of them or none: what a patch has made of them (SPEC §16).
//!
//! Each is opened, written and closed as a program would do it, so what becomes of it is judged as any write is: small
//! changes land, others are held, and the view shows all of them. Before the first is written, all are open, are what the
//! patch was made for, and permission programs have been asked of each. What fails after that is undone: every file gets
//! back the bytes and times it had.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::content::drop_set_id;
use super::copy_up::Keep;
use super::error::Context;
use super::handles::{Handle, HandleId, OpenFlags};
use super::review::{Reviewed, busy_open, refused_at};
use super::settle::Settled;
use super::{Caller, Error, NodeId, Overlay, Result};
use crate::diff::{Measure, measure};
use crate::model::{ChangeId, ChangeKind, Digest, Reason, RelPath};
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, Event, EventName, Outcome};
use crate::sys::file::{self, Meta};

/// A file and its new content.
#[derive(Clone, Debug)]
pub struct Rewrite {
    pub path: RelPath,
    /// Of the content that the new one was made of.
    pub base: Digest,
    pub content: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct RewriteHow {
    pub caller: Caller,
    pub dry_run: bool,
}

/// How often an open is tried again because the path became another node.
const OPENS_MAX: usize = 4;
/// How often a file is judged again because somebody wrote to it meanwhile.
const JUDGINGS_MAX: usize = 3;
/// Events that are looked through for those of the files that were just judged.
const EVENTS_LOOKED_AT: u64 = 2000;

/// One file of the patch, open until this is dropped: its last close finds nothing left to judge.
struct Writing<'a> {
    overlay: &'a Overlay,
    rewrite: &'a Rewrite,
    id: HandleId,
    handle: Arc<Handle>,
    /// What the view showed when it was opened.
    old: Vec<u8>,
    was: Meta,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Err(err) = self.overlay.release(self.id) {
            log::error!("close {} after a patch: {err}", self.rewrite.path);
        }
    }
}

impl Overlay {
    /// Writes all of `rewrites`, or none. Rights on the files are asked elsewhere.
    pub fn rewrite_all(&self, rewrites: &[Rewrite], how: &RewriteHow) -> Reviewed<Vec<Outcome>> {
        let opened = rewrites.iter().map(|rewrite| self.open_rewrite(rewrite, &how.caller));
        let writing = opened.collect::<Reviewed<Vec<Writing<'_>>>>()?;
        if how.dry_run {
            return writing.iter().map(|one| one.planned(&how.caller)).collect();
        }
        for one in &writing {
            let Rewrite { path, content, .. } = one.rewrite;
            self.ask_ahead_of_rewrite(path, content, &how.caller).map_err(|err| not_written(path, &err))?;
        }
        let seq = self.store.last_seq().map_err(|err| not_written(&writing[0].rewrite.path, &err.into()))?;
        if let Err((failed, err)) = write_all(&writing, &how.caller) {
            return Err(self.put_all_back(&writing[..=failed], &not_written(&writing[failed].rewrite.path, &err)));
        }
        let mut settled = Vec::new();
        for one in &writing {
            match one.judge() {
                Ok(judged) => settled.push(judged),
                Err(err) => return Err(self.put_all_back(&writing, &not_written(&one.rewrite.path, &err))),
            }
        }
        let events = self.events_of(seq);
        let outcomes = writing.iter().zip(settled).map(|(one, settled)| one.outcome(settled, &events));
        let outcomes = outcomes.collect::<Reviewed<Vec<_>>>();
        drop(writing);
        rewrites.iter().for_each(|rewrite| self.tell_changed(&rewrite.path, true));
        outcomes
    }

    fn open_rewrite<'a>(&'a self, rewrite: &'a Rewrite, caller: &Caller) -> Reviewed<Writing<'a>> {
        let path = &rewrite.path;
        self.check_nobody_writes(path)?;
        let id = self.open_to_write(path, caller).map_err(|err| not_written(path, &err))?;
        let released = |err: Error| match self.release(id) {
            Ok(()) => not_written(path, &err),
            Err(worse) => not_written(path, &worse),
        };
        let handle = self.handle(id).map_err(released)?;
        let file = handle.readable();
        let read = || -> io::Result<(Vec<u8>, Meta)> { Ok((file::read_all(&file)?, Meta::of(file.as_fd())?)) };
        let (old, was) = read().doing(|| format!("read {path}")).map_err(released)?;
        let writing = Writing { overlay: self, rewrite, id, handle, old, was };
        match Digest::of(&writing.old) == rewrite.base {
            true => Ok(writing),
            false => Err(changed_since(path, Digest::of(&writing.old))),
        }
    }

    fn check_nobody_writes(&self, path: &RelPath) -> Reviewed<()> {
        match self.state.lock().writer_of(path) {
            Some(pid) => Err(busy_open(path, pid)),
            None => Ok(()),
        }
    }

    fn open_to_write(&self, path: &RelPath, caller: &Caller) -> Result<HandleId> {
        let open = |node: NodeId| self.open(node, OpenFlags::from_raw(libc::O_WRONLY), caller);
        let mut opens = 0;
        loop {
            opens += 1;
            match self.walk(path).and_then(|walked| open(walked.node())) {
                Err(err) if err.code() == libc::ESTALE && opens < OPENS_MAX => {}
                opened => return Ok(opened?.handle),
            }
        }
    }

    /// Undoes what has been written, and gives the error with what could not be undone.
    fn put_all_back(&self, writing: &[Writing<'_>], err: &ErrorBody) -> ErrorBody {
        let mut left = Vec::new();
        for one in writing {
            if let Err(worse) = one.put_back() {
                log::error!("put {} back after a patch that failed: {worse}", one.rewrite.path);
                left.push(one.rewrite.path.to_string());
            }
            self.tell_changed(&one.rewrite.path, true);
        }
        match left.as_slice() {
            [] => err.clone(),
            left => {
                let message =
                    format!("{}; could not be put back and waits for review: {}", err.message, left.join(", "));
                ErrorBody { code: ErrorCode::WriteFailed, message, ..err.clone() }
            }
        }
    }

    /// What has been recorded since; an event that cannot be read costs a name in the answer.
    fn events_of(&self, seq: u64) -> Vec<Event> {
        let events = self.store.events_after(seq, EVENTS_LOOKED_AT, std::time::Duration::ZERO);
        events.ok().flatten().unwrap_or_default()
    }
}

/// The first that fails, with its place.
fn write_all(writing: &[Writing<'_>], caller: &Caller) -> std::result::Result<(), (usize, Error)> {
    for (at, one) in writing.iter().enumerate() {
        one.put(&one.rewrite.content, |file| drop_set_id(file, caller)).map_err(|err| (at, err))?;
    }
    Ok(())
}

impl Writing<'_> {
    /// Written first and cut afterwards: whatever fails, the room that the old bytes had is still there for them.
    fn put(&self, bytes: &[u8], then: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
        let Rewrite { path, .. } = self.rewrite;
        self.overlay
            .change_content(&self.handle, Keep::Content, |file| {
                file.write_all_at(bytes, 0)?;
                file.set_len(bytes.len() as u64)?;
                then(file)
            })
            .map_err(|err| match err {
                Error::Errno(errno) => {
                    Error::Io { doing: format!("write {path}"), cause: io::Error::from_raw_os_error(errno) }
                }
                other => other,
            })
    }

    /// As at the close of a program's descriptor.
    fn judge(&self) -> Result<Settled> {
        let mut judgings = 0;
        loop {
            judgings += 1;
            let Some(open) = self.handle.judged() else { return Ok(Settled::Landed) };
            let Some(id) = open.upper().filter(|_| self.handle.take_written()) else { return Ok(Settled::Unchanged) };
            match self.overlay.settle_or_deny(id, &self.handle.opener, self.handle.because()) {
                Ok(Settled::Postponed) if judgings < JUDGINGS_MAX => {
                    self.handle.note_written();
                }
                Ok(Settled::Postponed) => {
                    self.handle.note_written();
                    return Ok(Settled::Postponed);
                }
                settled => return settled,
            }
        }
    }

    fn put_back(&self) -> Result<()> {
        let is_back = || -> io::Result<bool> { Ok(file::read_all(&self.handle.readable())? == self.old) };
        let (access, modification) = (file::to_timespec(self.was.atime), file::to_timespec(self.was.mtime));
        let set_times = |file: &File| file::set_times(file.as_fd(), access, modification);
        let put = match is_back() {
            Ok(true) if !self.handle.is_written() => return Ok(()),
            _ => self.put(&self.old, set_times),
        };
        match put.and_then(|()| self.judge()) {
            Ok(_) => Ok(()),
            Err(err) => {
                self.hold_as_it_is();
                Err(err)
            }
        }
    }

    /// Half written: nobody shall have it land.
    fn hold_as_it_is(&self) {
        let Some(id) = self.handle.judged().and_then(|open| open.upper()) else { return };
        self.handle.take_written();
        if let Err(err) = self.overlay.settle_because(id, &self.handle.opener, vec![Reason::Interrupted]) {
            log::error!("hold {} after a patch that failed: {err}", self.rewrite.path);
        }
    }

    fn measured(&self) -> Measure {
        measure(&self.old, &self.rewrite.content)
    }

    /// What is known of it whatever becomes of it.
    fn facts(&self, done: Done) -> Outcome {
        let Rewrite { path, content, .. } = self.rewrite;
        let counts = self.measured();
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
        let comparison = comparison.map_err(|err| not_written(path, &err))?;
        let lands = comparison.is_some_and(|comparison| comparison.reasons.is_empty());
        Ok(match (*content == self.old, lands) {
            (true, _) => self.facts(Done::Unchanged),
            (false, true) => self.facts(Done::Landed),
            (false, false) => self.facts(Done::Held),
        })
    }

    fn outcome(&self, settled: Settled, events: &[Event]) -> Reviewed<Outcome> {
        let path = &self.rewrite.path;
        let event = |name| events.iter().rev().find(|event| event.event == name && event.path.as_ref() == Some(path));
        match settled {
            Settled::Unchanged => Ok(self.facts(Done::Unchanged)),
            Settled::Landed => {
                let event = event(EventName::WriteLanded);
                let backup = event.and_then(|event| event.backup.clone());
                let operation = event.and_then(|event| event.operation.clone());
                Ok(Outcome { backup, operation, ..self.facts(Done::Landed) })
            }
            Settled::Held(id) => Ok(self.held(id)),
            Settled::Postponed => {
                let why = "somebody else writes it at this moment: what the patch made of it is in the view, and is \
                           judged when that writer is done";
                Err(refused_at(path, ErrorCode::Busy, why))
            }
        }
    }

    /// Counted against what the project has, as a review tells it.
    fn held(&self, id: ChangeId) -> Outcome {
        let rows = self.overlay.held_rows().into_iter();
        let held = rows.filter_map(|row| row.held).find(|held| held.id == id);
        let counts = held.map(|held| Counts::of(held.insertions, held.deletions, held.old_lines));
        let facts = self.facts(Done::Held);
        Outcome { id: Some(id), counts: counts.or(facts.counts), ..facts }
    }
}

/// Another content than the patch was made for.
pub fn changed_since(path: &RelPath, now: Digest) -> ErrorBody {
    let why = format!("it is not what the patch was made for: its sha256 is {now} now. Read it again");
    refused_at(path, ErrorCode::Conflict, &why)
}

fn not_written(path: &RelPath, err: &Error) -> ErrorBody {
    let refused = |code, why: &str| refused_at(path, code, &format!("nothing was written: {why}"));
    match (err, err.code()) {
        (Error::Denied, _) => refused(ErrorCode::HookDenied, "a permission program refused it"),
        (_, libc::EPERM) => refused(ErrorCode::NotPermitted, "a rule keeps it from being written"),
        (_, libc::EACCES) => refused(ErrorCode::NotPermitted, "you may not write it"),
        (_, libc::EROFS) => refused(ErrorCode::NotPermitted, "nothing can be written"),
        (_, libc::ESTALE | libc::ETXTBSY | libc::EBUSY) => refused(ErrorCode::Busy, &err.to_string()),
        (_, libc::ENOENT) => refused(ErrorCode::UnknownPath, "there is no such file"),
        _ => refused(ErrorCode::WriteFailed, &err.to_string()),
    }
}
