//! Undoing: what an operation did is reversed as a whole, and never judged (SPEC §4.8, §9, §13).
//!
//! An undo is an operation itself, so it can be undone. The state of the project, not a mark, decides whether there is
//! anything to undo: a path that is as it was before is left alone. Contents and held changes go back by one landing
//! ([`contents`]); each of the other acts is one call below, or one landing of its own.
//!
//! - [`contents`], with [`restore`] (contents and their directories) and [`hold_again`] (what was discarded)
//! - [`attributes`]; [`confirmed`]: what stays, because a confirm has landed it
//! - [`rollback`]: one path goes back to what it was

mod attributes;
mod confirmed;
mod contents;
mod hold_again;
mod restore;
pub(super) mod rollback;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;

use self::attributes::is_on_attributes;
use self::contents::is_on_held;
use super::judge::side::Side;
use super::names::carry::Move;
use super::names::rename::End;
use super::review::permits::Permits;
use super::review::{Review, Reviewed, busy_within, changed_meanwhile, failed};
use super::{Error, NodeId, Overlay, Result, State};
use crate::model::{ChangeId, ChangeKind, OperationId, RelPath};
use crate::policy::rules::Action;
use crate::protocol::{Action as Done, ErrorBody, ErrorCode, EventName, Outcome, Program, refused_at};
use crate::store::rows::operations;
use crate::store::{
    self, Anchor, DirLooks, Durability, Effect, Epilogue, EventDraft, Inode, Landed, Landing, NewContent, NodeLooks,
    Operation, PathEffect, Writer,
};
use crate::sys::file::{FileKind, Meta};

/// What an undo may go over.
#[derive(Clone, Debug, Default)]
pub struct UndoHow {
    pub review: Review,
    /// Undo also over what was edited since; that is kept.
    pub force: bool,
    pub permits: Permits,
}

/// What an undo has done.
#[derive(Clone, Debug, PartialEq)]
pub struct Undone {
    pub outcomes: Vec<Outcome>,
    /// What is left of the operation all the same, as messages for people.
    pub notices: Vec<String>,
}

/// How an entry without content is reversed.
enum Reversed {
    /// What is there now, and goes.
    Goes(Meta),
    DirComesBack(DirLooks),
    NodeComesBack(NodeLooks),
}

impl Overlay {
    /// Reverses all of an operation, durably, or none of it. Its changes that are still held go from the view; those that
    /// were confirmed stay, and a notice says so.
    pub fn undo(&self, id: OperationId, how: &UndoHow) -> Reviewed<Undone> {
        self.person_decides(&how.review);
        let held = self.held_of(id);
        let operation = self.operation(id, &held)?;
        let confirmed = self.confirmed_of(&operation)?;
        if held.is_empty() && operation.effects.is_empty() {
            return Err(confirmed.waits_no_more(id));
        }
        Self::check_may_return(&operation, &how.permits)?;
        match self.reverse_operation(&operation, held, how) {
            Ok(outcomes) => Ok(Undone { outcomes, notices: confirmed.stays(id).into_iter().collect() }),
            Err(refusal) => Err(confirmed.told_beside(refusal, id)),
        }
    }

    fn reverse_operation(&self, operation: &Operation, held: Vec<ChangeId>, how: &UndoHow) -> Reviewed<Vec<Outcome>> {
        match operation.effects.as_slice() {
            effects if !held.is_empty() || effects.iter().any(|done| is_on_held(&done.effect)) => {
                self.undo_contents(operation, held, how)
            }
            [done @ PathEffect { path, effect, .. }] if !is_on_attributes(effect) => match effect {
                Effect::DirMade => self.undo_mkdir(done, operation, how),
                Effect::DirRemoved(looks) => self.undo_rmdir(path, *looks, operation, how),
                Effect::SpecialMade => self.undo_mknod(done, operation, how),
                Effect::SpecialRemoved(looks) => self.undo_unlink(path, looks, operation, how),
                Effect::Renamed { from, onto } => self.undo_rename(done, from, *onto, operation, how),
                Effect::Exchanged { with, other } => self.undo_exchange(done, (with, *other), operation, how),
                _ => self.undo_contents(operation, held, how),
            },
            all if all.iter().all(|done| is_on_attributes(&done.effect)) => self.undo_attributes(operation, how),
            _ => self.undo_contents(operation, held, how),
        }
    }

    /// If the log does not have the operation, what is `held` of it is all that there is to undo.
    fn operation(&self, id: OperationId, held: &[ChangeId]) -> Reviewed<Operation> {
        let found = self.store.operation(id);
        match found.map_err(|err| ErrorBody::new(ErrorCode::Io, format!("look up {id}: {err}")))? {
            Some(operation) => Ok(operation),
            None if held.is_empty() => Err(no_such_operation(&id.to_string())),
            None => Ok(Operation { id, events: Vec::new(), effects: Vec::new() }),
        }
    }

    /// Refuses paths that a rule freezes or denies: rules hold for an undo as for a rollback and a confirm. A rule for a
    /// certain program of the view does not apply to a caller of fettlefs.
    pub(in crate::overlay) fn check_may_land(&self, path: &RelPath, by: &Writer) -> Reviewed<()> {
        match self.action_by(path, FileKind::Regular, &ours(by)).refuses() {
            true => Err(refused_by_rule(path, path)),
            false => Ok(()),
        }
    }

    /// The same for all other names of a file that is changed in place: what is done by one name shows under each.
    pub(in crate::overlay) fn check_may_rewrite(
        &self,
        path: &RelPath,
        present: Option<&Meta>,
        by: &Writer,
    ) -> Reviewed<()> {
        let Some(meta) = present.filter(|meta| meta.is_file()) else { return Ok(()) };
        let other = self.refused_other_name(meta, &ours(by), Action::refuses);
        match other.map_err(|err| failed(path, &err))? {
            Some(other) => Err(refused_by_rule(path, &other)),
            None => Ok(()),
        }
    }

    /// Refuses if something else stands at a path than what the operation was done to. Of another inode only the log can
    /// tell.
    pub(super) fn check_is_same(&self, done: &PathEffect, there: &Meta, operation: &Operation) -> Reviewed<()> {
        let path = &done.path;
        if done.inode.is_none_or(|inode| inode.may_be(there, self.births)) {
            return Ok(());
        }
        match self.store.stands_for(operation, path, there, self.births).map_err(|err| failed(path, &err.into()))? {
            true => Ok(()),
            false => Err(something_else(path)),
        }
    }

    fn undo_mkdir(&self, done: &PathEffect, operation: &Operation, how: &UndoHow) -> Reviewed<Vec<Outcome>> {
        let path = &done.path;
        self.check_may_land(path, &how.review.by)?;
        let Some(was) = self.stat_below(path)? else { return Err(already(operation)) };
        if !was.is_dir() {
            return Err(refused_at(path, ErrorCode::Conflict, "it is not a directory any more"));
        }
        let is_empty = self.lower.list(path).map_err(|err| failed(path, &err.into()))?.is_empty();
        if !is_empty || self.state.lock().uppers.need_dir(path, &HashSet::new()) {
            return Err(refused_at(path, ErrorCode::Conflict, "the directory is not empty"));
        }
        if let Some(written) = self.state.lock().written_within(path) {
            return Err(busy_within(&written));
        }
        self.check_is_same(done, &was, operation)?;
        self.check_may_change_entry(path, Some(&was), &how.permits)?;
        self.reverse_structure(path, &Reversed::Goes(was), operation, how)
    }

    fn undo_rmdir(
        &self,
        path: &RelPath,
        looks: DirLooks,
        operation: &Operation,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        self.check_comes_back(path, FileKind::Directory, operation, how)?;
        self.reverse_structure(path, &Reversed::DirComesBack(looks), operation, how)
    }

    fn undo_unlink(
        &self,
        path: &RelPath,
        looks: &NodeLooks,
        operation: &Operation,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        self.check_comes_back(path, looks.kind, operation, how)?;
        self.reverse_structure(path, &Reversed::NodeComesBack(*looks), operation, how)
    }

    /// Refuses unless there is a free place for what was removed.
    fn check_comes_back(&self, path: &RelPath, kind: FileKind, operation: &Operation, how: &UndoHow) -> Reviewed<()> {
        self.check_may_land(path, &how.review.by)?;
        self.check_parent(path)?;
        match self.stat_below(path)? {
            Some(meta) if meta.kind == kind => Err(already(operation)),
            Some(_) => Err(refused_at(path, ErrorCode::Conflict, "something else has taken its place")),
            None if self.state.lock().uppers.at(path).is_some() => {
                Err(refused_at(path, ErrorCode::Conflict, "something is held in its place"))
            }
            None => self.check_may_change_entry(path, None, &how.permits),
        }
    }

    fn undo_mknod(&self, done: &PathEffect, operation: &Operation, how: &UndoHow) -> Reviewed<Vec<Outcome>> {
        let path = &done.path;
        self.check_may_land(path, &how.review.by)?;
        let Some(was) = self.stat_below(path)? else { return Err(already(operation)) };
        if !was.kind.is_special() {
            return Err(refused_at(path, ErrorCode::Conflict, "something else has taken its place"));
        }
        self.check_is_same(done, &was, operation)?;
        self.check_may_change_entry(path, Some(&was), &how.permits)?;
        self.reverse_structure(path, &Reversed::Goes(was), operation, how)
    }

    /// Makes or removes an entry without content, by one landing.
    fn reverse_structure(
        &self,
        path: &RelPath,
        reversed: &Reversed,
        operation: &Operation,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        let mut outcome = structure_outcome(path);
        if how.review.dry_run {
            return Ok(vec![outcome]);
        }
        let event = undone_event(self, path, operation, how);
        let landed = self.land_reversed(path, reversed, event).map_err(|err| match err {
            Error::Store(store::Error::Conflict { path }) => changed_meanwhile(&path),
            other => not_undone(path, &other),
        })?;
        outcome.operation = landed.operation.map(|undone| undone.to_string());
        self.tell_content_changed(path);
        Ok(vec![outcome])
    }

    fn land_reversed(&self, path: &RelPath, reversed: &Reversed, event: EventDraft) -> Result<Landed> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let effects = match reversed {
            Reversed::Goes(was) => {
                landing.remove(&self.lower, path, was.stamp())?;
                vec![PathEffect::new(path, removed(was))]
            }
            Reversed::DirComesBack(looks) => {
                landing.make_dir(&self.lower, path, *looks)?;
                landing.newly_made()?
            }
            Reversed::NodeComesBack(looks) => {
                let made = landing.place(&self.lower, path, None, &NewContent::Node { looks: *looks, like: None })?;
                vec![PathEffect::on(path, Effect::SpecialMade, Some(&made))]
            }
        };
        let anchor = match reversed {
            Reversed::Goes(_) => self.state.lock().past.left(path),
            Reversed::DirComesBack(_) | Reversed::NodeComesBack(_) => Some(self.state.lock().past.made(path, None)),
        };
        let anchors: Vec<Anchor> = anchor.into_iter().collect();
        let events = vec![event.doing(effects)];
        let promised = landing.promise(Epilogue { anchors: anchors.clone(), events, ..Epilogue::default() })?;
        let applied = {
            let mut state = self.state.lock();
            let applied = promised.apply()?;
            state.epoch += 1;
            if let Reversed::Goes(was) = reversed {
                state.unnamed_at(path, was);
                state.left(path);
            }
            state.know(anchors);
            applied
        };
        Ok(applied.finish()?)
    }

    /// Returns once what was done is on disk, its record included. If that fails, how long it will last is unknown:
    /// nothing is written any more.
    pub(super) fn durable(&self, path: &RelPath, synced: Result<()>) -> Result<()> {
        let synced = synced.and_then(|()| Ok(self.store.sync()?));
        synced.inspect_err(|err| self.stop_writing(&format!("sync {path}, which was undone: {err}")))
    }

    fn undo_rename(
        &self,
        done: &PathEffect,
        from: &RelPath,
        onto: Option<DirLooks>,
        operation: &Operation,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        let path = &done.path;
        self.check_may_move(&[Move { from: path, to: from }], how)?;
        let there = self.stat_below(path)?;
        there.map_or(Ok(()), |there| self.check_is_same(done, &there, operation))?;
        let back = Effect::Renamed { from: path.clone(), onto: None };
        let event = undone_event(self, from, operation, how).doing([PathEffect::on(from, back, there.as_ref())]);
        let dirs = self.dirs_of([from, path])?;
        let renamed = self.at_both(path, from, &how.review.by, |there, home| {
            match (there.exists(), home.exists() || home.upper().is_some()) {
                (true, false) => {}
                (false, true) => return Ok(Err(already(operation))),
                (false, false) => return Ok(Err(refused_at(path, ErrorCode::Conflict, "it is not there any more"))),
                (true, true) => return Ok(Err(something_else(from))),
            }
            if how.review.dry_run {
                return Ok(Ok(None));
            }
            self.move_back(there, home, onto, event.clone()).map(Ok)
        });
        self.after_move(how, ([from, path], dirs), renamed)
    }

    fn undo_exchange(
        &self,
        done: &PathEffect,
        (with, other): (&RelPath, Option<Inode>),
        operation: &Operation,
        how: &UndoHow,
    ) -> Reviewed<Vec<Outcome>> {
        let path = &done.path;
        self.check_may_move(&[Move { from: path, to: with }, Move { from: with, to: path }], how)?;
        let (here, there) = (self.stat_below(path)?, self.stat_below(with)?);
        let is_at = |inode: Option<Inode>, meta: Option<Meta>| {
            inode.zip(meta).is_none_or(|(inode, meta)| inode.may_be(&meta, self.births))
        };
        if !(is_at(done.inode, here) && is_at(other, there)) {
            let is_back = is_at(done.inode, there) && is_at(other, here);
            return Err(if is_back { already(operation) } else { something_else(path) });
        }
        let back = PathEffect {
            path: path.clone(),
            effect: Effect::Exchanged { with: with.clone(), other: done.inode },
            inode: other,
        };
        let event = undone_event(self, path, operation, how).doing([back]);
        let dirs = self.dirs_of([path, with])?;
        let exchanged = self.at_both(path, with, &how.review.by, |one, other| {
            if !one.exists() || !other.exists() {
                return Ok(Err(refused_at(path, ErrorCode::Conflict, "one of the two is not there any more")));
            }
            match how.review.dry_run {
                true => Ok(Ok(None)),
                false => self.exchange_back(one, other, event.clone()).map(Ok),
            }
        });
        self.after_move(how, ([path, with], dirs), exchanged)
    }

    /// Checks a rename back, with all that is in what is renamed.
    fn check_may_move(&self, moves: &[Move<'_>], how: &UndoHow) -> Reviewed<()> {
        let by = &how.review.by;
        for one in moves {
            let Move { from, to } = *one;
            self.check_may_land(from, by).and_then(|()| self.check_may_land(to, by))?;
            self.check_parent(to).and_then(|()| self.check_parent(from))?;
            let [there, home] = [self.stat_below(from)?, self.stat_below(to)?];
            self.check_may_change_entry(from, there.as_ref(), &how.permits)?;
            self.check_may_change_entry(to, home.as_ref(), &how.permits)?;
            if there.is_some_and(|there| there.is_dir())
                && let Some(inside) = self.refused_within(one, &ours(by)).map_err(|err| failed(from, &err))?
            {
                return Err(refused_by_rule(from, &inside));
            }
        }
        Ok(())
    }

    /// The directories in which a name will change, opened beforehand: after the rename only the disk may fail.
    fn dirs_of(&self, paths: [&RelPath; 2]) -> Reviewed<[File; 2]> {
        let open = |path: &RelPath| {
            let dir = self.lower.place(path).and_then(|place| place.open_dir());
            dir.map(File::from).map_err(|err| failed(path, &err.into()))
        };
        self.store.open_log().map_err(|err| failed(paths[0], &err.into()))?;
        Ok([open(paths[0])?, open(paths[1])?])
    }

    /// The end of a rename that is undone: made durable, told to the kernel and answered.
    fn after_move(
        &self,
        how: &UndoHow,
        (paths, dirs): ([&RelPath; 2], [File; 2]),
        moved: Result<Reviewed<Option<OperationId>>>,
    ) -> Reviewed<Vec<Outcome>> {
        let undone = moved.map_err(|err| not_undone(paths[0], &err))??;
        let mut outcome = structure_outcome(paths[0]);
        if how.review.dry_run {
            return Ok(vec![outcome]);
        }
        // Lower has it so, whether or not it gets to the disk.
        paths.iter().for_each(|path| self.tell_content_changed(path));
        let synced = dirs.iter().try_for_each(File::sync_all).map_err(Error::from);
        self.durable(paths[0], synced).map_err(|err| failed(paths[0], &err))?;
        outcome.operation = undone.map(|undone| undone.to_string());
        Ok(vec![outcome])
    }

    fn stat_below(&self, path: &RelPath) -> Reviewed<Option<Meta>> {
        self.lower.stat(path).map_err(|err| failed(path, &err.into()))
    }

    fn check_parent(&self, path: &RelPath) -> Reviewed<()> {
        let parent = path.parent().unwrap_or_default();
        match self.stat_below(&parent)? {
            Some(meta) if meta.is_dir() => self.check_would_show(path, &HashSet::new()),
            Some(_) | None => Err(refused_at(path, ErrorCode::Conflict, "its directory is not there any more")),
        }
    }

    /// Runs `work` on both ends of a rename; the kernel need not know their directories.
    fn at_both<T>(
        &self,
        from: &RelPath,
        to: &RelPath,
        by: &Writer,
        work: impl FnOnce(&End, &End) -> Result<T>,
    ) -> Result<T> {
        self.in_dir_of(from, |from_dir, from_name| {
            self.in_dir_of(to, |to_dir, to_name| {
                let from = self.end(from_dir, from_name, None, by)?;
                let to = self.end(to_dir, to_name, Some(from.kind().unwrap_or(FileKind::Regular)), by)?;
                work(&from, &to)
            })
        })
    }

    fn in_dir_of<T>(&self, path: &RelPath, work: impl FnOnce(NodeId, &OsStr) -> Result<T>) -> Result<T> {
        let name = path.name().ok_or(Error::Errno(libc::EINVAL))?;
        let dir = self.walk(&path.parent().unwrap_or_default())?;
        work(dir.node(), name)
    }
}

impl State {
    /// As after an `unlink` or `rmdir` of the path by a program.
    pub(super) fn unnamed_at(&mut self, path: &RelPath, was: &Meta) {
        self.epoch += 1;
        if let Some((parent, name)) = self.nodes.entry_at(path) {
            self.unnamed(parent, name, was);
        }
    }
}

pub fn no_such_operation(id: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::UnknownId, format!("{id}: there is no such operation")).about(id)
}

/// The caller, as a rule for programs sees it: the program is fettlefs.
fn ours(by: &Writer) -> Writer {
    let exe = Some(env!("CARGO_PKG_NAME").to_owned());
    let program = Program { pid: by.pid, uid: by.uid, exe, cmdline: None };
    Writer { written_by: Some(program), ..by.clone() }
}

/// The refusal to change `path` because of a rule for `name`, which is `path` or another name of the file.
fn refused_by_rule(path: &RelPath, name: &RelPath) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotPermitted, format!("a rule keeps {name} from being written")).at(path)
}

pub(super) fn check_is_file(path: &RelPath, present: &Side) -> Reviewed<()> {
    match present.kind.is_none_or(FileKind::has_content) {
        true => Ok(()),
        false => Err(refused_at(path, ErrorCode::Conflict, "what is there now is no file")),
    }
}

fn something_else(path: &RelPath) -> ErrorBody {
    refused_at(path, ErrorCode::Conflict, "something else is there now")
}

pub(super) fn undone_event(overlay: &Overlay, path: &RelPath, operation: &Operation, how: &UndoHow) -> EventDraft {
    overlay.event(EventName::Undone, path).asked_by(&how.review.by).with(|event| {
        event.message = Some(operations::undoes(operation.id));
    })
}

/// The effect of removing an entry without content.
pub(super) fn removed(was: &Meta) -> Effect {
    match was.is_dir() {
        true => Effect::DirRemoved(DirLooks::of(was)),
        false => Effect::SpecialRemoved(NodeLooks::of(was)),
    }
}

pub(super) fn structure_outcome(path: &RelPath) -> Outcome {
    let mut outcome = Outcome::new(Done::Undone, path.clone());
    outcome.kind = Some(ChangeKind::Structure);
    outcome
}

/// Nothing is left to undo: everything is as it was before.
pub(super) fn already(operation: &Operation) -> ErrorBody {
    let message = format!("{} is undone already: everything is as it was before it", operation.id);
    ErrorBody::new(ErrorCode::AlreadyApplied, message).about(operation.id.to_string())
}

pub(super) fn not_undone(path: &RelPath, err: &Error) -> ErrorBody {
    if matches!(err, Error::Errno(libc::ENOENT | libc::ENOTDIR)) {
        // Either in the view, where its removal may be held, or below, as of a moment ago.
        return refused_at(path, ErrorCode::Conflict, "nothing was undone: its directory is not there any more");
    }
    ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was undone: {path}: {err}")).at(path)
}
