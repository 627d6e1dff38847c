//! What a directory takes along when it is renamed, and what of it must be judged where it arrives (SPEC §4.8).
//!
//! Nearly all of it simply moves with the directory, in lower, in one rename. A file that came in this session and
//! arrives where a rule gates it, or where something else used to be, is *lifted*: it is copied, and the landing that
//! renames the directory takes it out of lower and into upper, as if it had been written at its new path and not been
//! judged yet. Then it is settled there. What can neither move nor be lifted makes the rename fail with `EXDEV`; programs
//! then copy and delete, and each file is judged.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::files::handles::Backing;
use crate::overlay::judge::compare::{is_risky, leaves_project};
use crate::overlay::judge::side::Side;
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::{Action, sensitive};
use crate::store::{AnchorState, Backup, Base, Durability, NewUpper, StagedContent, UpperId, UpperRow, What, Writer};
use crate::sys::OFlags;
use crate::sys::file::{FileKind, Meta, SET_ID};
use crate::sys::xattr::{self, CAPABILITY};

/// A directory's rename. Two of them, there and back, are an exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::overlay) struct Move<'a> {
    pub from: &'a RelPath,
    pub to: &'a RelPath,
}

impl Move<'_> {
    /// Where `moves`, which happen at once, take what is at a path; `None` if it stays.
    pub fn all(moves: &[Self], path: &RelPath) -> Option<RelPath> {
        moves.iter().find_map(|one| path.rebase(one.from, one.to))
    }

    /// The reverse.
    pub fn all_back(moves: &[Self], path: &RelPath) -> Option<RelPath> {
        moves.iter().find_map(|one| path.rebase(one.to, one.from))
    }
}

/// One entry of a directory that is renamed.
struct Passenger<'a> {
    path: &'a RelPath,
    moved: RelPath,
    kind: FileKind,
    before: Action,
    after: Action,
}

/// What must be done before the directory is renamed.
#[derive(Default)]
pub(super) struct Survey {
    lifted: Vec<RelPath>,
    /// Directories that arrive where nothing is judged, by their new paths.
    unjudged: Vec<RelPath>,
    /// Inodes that cross between judged and passing paths: how many names each has, and how many come along.
    crossing: HashMap<(u64, u64), (u32, u32)>,
}

impl Survey {
    /// True if everything simply moves along.
    pub fn is_empty(&self) -> bool {
        self.lifted.is_empty()
    }

    fn note_dir(&mut self, moved: RelPath, after: Action) {
        if after == Action::Pass && !self.unjudged.iter().any(|dir| moved.is_within(dir)) {
            self.unjudged.push(moved);
        }
    }
}

const EXDEV: Error = Error::Errno(libc::EXDEV);

impl Overlay {
    /// Looks through what lies in lower below a directory. `EPERM` for what a rule freezes or denies, `EXDEV` for what
    /// cannot come along.
    pub(super) fn survey(&self, moves: &[Move<'_>], caller: &Caller) -> Result<Survey> {
        let by = self.doer(caller);
        let mut survey = Survey::default();
        for one in moves {
            let after = self.action_by(one.to, FileKind::Directory, &by);
            let before = self.action_by(one.from, FileKind::Directory, &by);
            let itself = Passenger { path: one.from, moved: one.to.clone(), kind: FileKind::Directory, before, after };
            check_may_leave(&itself, *one)?;
            survey.note_dir(one.to.clone(), after);
            self.each_below(one.from, |path, kind| self.look_at(*one, path, kind, &by, &mut survey))?;
        }
        self.check_uppers(moves, &by)?;
        // Otherwise a write through a name that stays at a passing path would change the judged name unseen, or the
        // reverse.
        match survey.crossing.values().all(|(links, along)| links == along) {
            true => Ok(survey),
            false => Err(EXDEV),
        }
    }

    /// Returns what a rule freezes or denies in a directory that is renamed without a survey, because its rename is not
    /// judged.
    pub(in crate::overlay) fn refused_within(&self, one: &Move<'_>, by: &Writer) -> Result<Option<RelPath>> {
        let refused_of = |path: &RelPath, kind| {
            let moved = path.rebase(one.from, one.to)?;
            let actions = (self.action_by(path, kind, by), self.action_by(&moved, kind, by));
            refused_end((path, &moved), actions).cloned()
        };
        let names = self.state.lock().names_in_upper(one.from);
        let mut refused = names.iter().find_map(|(path, kind)| refused_of(path, *kind));
        self.each_below(one.from, |path, kind| {
            refused = refused.take().or_else(|| refused_of(path, kind));
            Ok(())
        })?;
        Ok(refused)
    }

    /// Calls `look` with all that lower has below a directory.
    fn each_below(&self, dir: &RelPath, mut look: impl FnMut(&RelPath, FileKind) -> Result<()>) -> Result<()> {
        let mut dirs = vec![dir.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in self.lower.list(&dir).doing(|| format!("list {dir}"))? {
                let Ok(path) = dir.join(&entry.name) else { continue };
                look(&path, entry.kind)?;
                if entry.kind == FileKind::Directory {
                    dirs.push(path);
                }
            }
        }
        Ok(())
    }

    /// Checks what is in upper alone. It comes along as it is, to be judged or reviewed at its new path, unless a rule
    /// forbids it there.
    pub(super) fn check_uppers(&self, moves: &[Move<'_>], by: &Writer) -> Result<()> {
        for one in moves {
            let names = self.state.lock().names_in_upper(one.from);
            for (path, kind) in names {
                let Some(moved) = path.rebase(one.from, one.to) else { continue };
                self.check_allowed(&path, &moved, kind, by)?;
            }
        }
        Ok(())
    }

    /// Returns what the rules say of an entry at both ends, if they let it go from the one to the other.
    fn check_allowed(&self, path: &RelPath, moved: &RelPath, kind: FileKind, by: &Writer) -> Result<(Action, Action)> {
        let (before, after) = (self.action_by(path, kind, by), self.action_by(moved, kind, by));
        match refused_end((path, moved), (before, after)) {
            Some(end) => Err(self.denied(end, by)),
            None => Ok((before, after)),
        }
    }

    fn look_at(&self, one: Move<'_>, path: &RelPath, kind: FileKind, by: &Writer, survey: &mut Survey) -> Result<()> {
        let Some(moved) = path.rebase(one.from, one.to) else { return Ok(()) };
        let (before, after) = self.check_allowed(path, &moved, kind, by)?;
        let passenger = Passenger { path, moved, kind, before, after };
        check_may_leave(&passenger, one)?;
        if kind == FileKind::Directory && before != Action::Pass {
            survey.note_dir(passenger.moved, after);
            return Ok(());
        }
        if kind == FileKind::Directory || (before == Action::Pass && after == Action::Pass) {
            return Ok(());
        }
        if before == Action::Pass || after == Action::Pass {
            self.check_crossing(&passenger, survey)?;
        }
        let gated_within = before == after && is_gated_within(&passenger, one);
        let gated = matches!(after, Action::Hold(_) | Action::GitConfig) && !gated_within;
        if !gated && !self.is_changed_there(&passenger)? {
            return Ok(());
        }
        match self.is_liftable(&passenger)? {
            true => survey.lifted.push(path.clone()),
            false => return Err(EXDEV),
        }
        Ok(())
    }

    /// A file may cross to a passing path only if it came in this session, and to a judged path only if it has no
    /// privileges and no program can write to it unjudged.
    fn check_crossing(&self, passenger: &Passenger<'_>, survey: &mut Survey) -> Result<()> {
        let Passenger { path, after, before, .. } = passenger;
        let meta = self.meta_below(path)?.ok_or(Error::Errno(libc::ESTALE))?;
        let may = match *after {
            Action::Pass => self.is_fresh(path),
            Action::Auto | Action::GitConfig | Action::Hold(_) | Action::Deny | Action::Freeze => {
                debug_assert_eq!(*before, Action::Pass);
                let is_written = meta.is_file() && self.is_written_below(path);
                !self.is_privileged(&meta) && !self.is_capable(path, &meta)? && !is_written
            }
        };
        let (_, along) = survey.crossing.entry(meta.number()).or_insert((meta.links, 0));
        *along += 1;
        if may { Ok(()) } else { Err(EXDEV) }
    }

    /// True for what judged paths may not have, unless the mount allows it (SPEC §6).
    pub(super) fn is_privileged(&self, meta: &Meta) -> bool {
        let is_device = matches!(meta.kind, FileKind::CharDevice | FileKind::BlockDevice);
        (is_device && !self.grants.dev) || (meta.is_file() && meta.mode & SET_ID != 0 && !self.grants.suid)
    }

    fn is_capable(&self, path: &RelPath, meta: &Meta) -> Result<bool> {
        if self.grants.all() || !meta.is_file() {
            return Ok(false);
        }
        let file = self.lower.open_at(path, OFlags::PATH)?;
        Ok(xattr::find(file.as_fd(), CAPABILITY.as_ref())?.is_some())
    }

    /// True if it changes something that was at its new path, is a symlink that leads out of the project from there, or
    /// comes from where nobody judges and is to be reviewed wherever it stands.
    fn is_changed_there(&self, passenger: &Passenger<'_>) -> Result<bool> {
        let Passenger { path, moved, kind, before, .. } = passenger;
        Ok(self.is_used_by_another(path, moved, *kind)?
            || (*kind == FileKind::Symlink && self.leads_out_there(path, moved)?)
            || (*before == Action::Pass && self.waits_anywhere(path, *kind)?)
            || self.takes_the_place_of_older(moved, *kind)?)
    }

    /// True if what lower has at a path is held as new at whatever judged path: for its content, or as a symlink that
    /// leads out of the project from everywhere.
    fn waits_anywhere(&self, path: &RelPath, kind: FileKind) -> Result<bool> {
        match kind {
            FileKind::Symlink => Ok(is_absolute(&self.symlink_below(path)?)),
            FileKind::Regular => {
                let (nothing, new) = (Side::default(), self.present_side(path)?);
                Ok(is_risky(&nothing, &new, &self.policy().settings.risk))
            }
            FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Ok(false)
            }
        }
    }

    /// True if, in an exchange, something older stands where a file goes, or an older directory where a symlink goes.
    fn takes_the_place_of_older(&self, moved: &RelPath, kind: FileKind) -> Result<bool> {
        let there = self.meta_below(moved)?;
        let counts = there.is_some_and(|there| !there.is_dir() || kind == FileKind::Symlink);
        Ok(counts && !self.is_fresh(moved))
    }

    /// True if a symlink of lower would lead out of the project once renamed; an absolute one leads where it led.
    fn leads_out_there(&self, path: &RelPath, moved: &RelPath) -> Result<bool> {
        let target = self.symlink_below(path)?;
        Ok(!is_absolute(&target) && leaves_project(moved, target.as_bytes()))
    }

    /// The same for what lower has at a path, whatever the view has in its place.
    pub(super) fn base_leads_out_there(&self, path: &RelPath, moved: &RelPath) -> Result<bool> {
        match self.meta_below(path)? {
            Some(meta) if meta.kind == FileKind::Symlink => self.leads_out_there(path, moved),
            Some(_) | None => Ok(false),
        }
    }

    fn symlink_below(&self, path: &RelPath) -> Result<OsString> {
        self.lower.place(path)?.read_symlink().doing(|| format!("read symlink {path}"))
    }

    /// True if something other than what comes from `path` used to be at `moved` in this session. A directory that was
    /// there counts if `kind` has content. What went from `moved` to `path` may come back.
    pub(super) fn is_used_by_another(&self, path: &RelPath, moved: &RelPath, kind: FileKind) -> Result<bool> {
        if kind.has_content() && self.had_dir(moved)? {
            return Ok(true);
        }
        let comes_back = self.state.lock().past.came_along(moved).as_ref() == Some(path);
        Ok(!comes_back
            && match self.anchor_of(moved)? {
                Some(AnchorState::Moved { to, .. }) => to != *path,
                Some(AnchorState::Content(_)) => true,
                Some(AnchorState::Nothing) | None => false,
            })
    }

    /// True if taking a file back from lower loses nothing: it came in this session or was never judged, has no other
    /// name, and no change of it is held.
    fn is_liftable(&self, passenger: &Passenger<'_>) -> Result<bool> {
        let Passenger { path, kind, before, .. } = passenger;
        let is_ours = *before == Action::Pass || self.is_fresh(path);
        let meta = self.meta_below(path)?;
        let state = self.state.lock();
        let upper = state.uppers.upper_at(path);
        let unreviewed = upper.is_none_or(|upper| upper.row.held.is_none() && upper.row.names.len() == 1);
        Ok(kind.has_content() && is_ours && unreviewed && meta.is_some_and(|meta| meta.links == 1))
    }
}

impl State {
    /// What is at or below a path in upper, by all its names.
    fn names_in_upper(&self, path: &RelPath) -> Vec<(RelPath, FileKind)> {
        let rows = self.uppers.within(path).into_iter().filter_map(|id| Some(&self.uppers.get(id)?.row));
        let named = rows.filter_map(|row| {
            let kind = match row.what {
                What::Whiteout => return None,
                What::Dir => FileKind::Directory,
                What::Symlink => FileKind::Symlink,
                // To rules a node is like a regular file.
                What::File | What::Node => FileKind::Regular,
            };
            Some(row.names.iter().filter(|name| name.is_within(path)).map(move |name| (name.clone(), kind)))
        });
        named.flatten().collect()
    }
}

/// What a survey has found, ready to be renamed.
#[derive(Default)]
pub(super) struct Cargo<'a> {
    pub lifted: Vec<Lifted<'a>>,
    pub unjudged: Vec<RelPath>,
}

/// A file of lower that a rename takes back into upper.
pub(super) struct Lifted<'a> {
    pub path: RelPath,
    /// What lower has there, and loses.
    pub meta: Meta,
    /// Its content; `None` if that landed a moment ago and is still in upper, because its writer has it open.
    copy: Option<(NewUpper<'a>, What)>,
    /// True if lower's file would survive a power cut: then the copy must, too.
    synced: bool,
    /// The backup of what had landed there. What was never judged is not kept.
    pub kept: Option<(StagedContent, Backup)>,
}

impl Overlay {
    /// Copies what the survey found. This changes nothing yet.
    pub(super) fn lift(&self, survey: Survey, by: &Writer) -> Result<Cargo<'_>> {
        let lifted = survey.lifted.iter().map(|path| self.lift_one(path, by)).collect::<Result<_>>()?;
        Ok(Cargo { lifted, unjudged: survey.unjudged })
    }

    fn lift_one(&self, path: &RelPath, by: &Writer) -> Result<Lifted<'_>> {
        let meta = self.meta_below(path)?.ok_or(Error::Errno(libc::ESTALE))?;
        let is_in_upper = self.state.lock().uppers.at(path).is_some();
        let copy = if is_in_upper { None } else { Some(self.copy_to_upper(path)?) };
        let synced = self.is_on_disk(path, &meta)?;
        if let (true, Some((new, _))) = (synced && meta.is_file(), &copy) {
            self.sync_copy(new.id(), path)?;
        }
        let kept = if self.is_fresh(path) { self.stage_source(path, by)? } else { None };
        Ok(Lifted { path: path.clone(), meta, copy, synced, kept })
    }

    /// Judges what was lifted, at its new path.
    pub(super) fn settle_lifted(&self, lifted: &[UpperId], caller: &Caller) -> Result<()> {
        lifted.iter().try_for_each(|id| self.settle_moved(*id, &self.doer(caller)).map(|_| ()))
    }

    /// Opens what handles on lifted files go on with. Call this before lower changes, under the same lock: afterwards the
    /// rename could not be refused any more.
    pub(super) fn open_lifted(
        &self,
        state: &State,
        lifted: &[Lifted<'_>],
        rows: &[UpperRow],
    ) -> Result<Vec<Option<Backing>>> {
        let goes_on = |path: &RelPath, id: UpperId| {
            let open = state.nodes.at(path).and_then(|node| state.nodes.open_on(node));
            open.is_some_and(|open| open.upper() != Some(id) && !open.backing().is_orphan())
        };
        let opened = lifted.iter().zip(rows).map(|(one, row)| match goes_on(&one.path, row.id) {
            true => Ok(Some(Backing::Upper(row.id, Arc::new(self.store.open_upper(row.id)?)))),
            false => Ok(None),
        });
        opened.collect()
    }
}

impl State {
    /// Puts what was lifted into the view as upper has it. Call this under the lock that saw lower change.
    pub(super) fn enter_lifted(
        &mut self,
        lifted: Vec<Lifted<'_>>,
        rows: Vec<UpperRow>,
        opened: Vec<Option<Backing>>,
    ) -> Vec<UpperId> {
        let mut ids = Vec::new();
        for ((one, row), opened) in lifted.into_iter().zip(rows).zip(opened) {
            if let Some((new, _)) = one.copy.filter(|(new, _)| new.id() == row.id) {
                new.keep();
            }
            match self.uppers.get_mut(row.id) {
                Some(upper) => (upper.dirty, upper.recorded) = (true, Recorded::Row),
                None => self.uppers.insert(Upper { synced: one.synced, ..Upper::written(row.clone()) }),
            }
            self.uppers.set_row(row.clone());
            self.bind(row.path(), opened);
            ids.push(row.id);
        }
        ids
    }
}

impl Lifted<'_> {
    /// Its entry, as it is at its new path; `ESTALE` if the file has been held or its entry evicted since.
    pub(super) fn row(&self, state: &State, moved: RelPath) -> Result<UpperRow> {
        let there = state.uppers.upper_at(&self.path).map(|upper| &upper.row);
        match (there, &self.copy) {
            (Some(row), _) if row.held.is_none() && row.names.len() == 1 && row.what != What::Whiteout => {
                Ok(UpperRow::new(row.id, moved, row.what.clone(), Base::NOTHING))
            }
            (None, Some((new, what))) => Ok(UpperRow::new(new.id(), moved, what.clone(), Base::NOTHING)),
            (_, _) => Err(Error::Errno(libc::ESTALE)),
        }
    }

    pub(super) fn durability(lifted: &[Self]) -> Durability {
        match lifted.iter().any(|one| one.synced) {
            true => Durability::Synced,
            false => Durability::Cached,
        }
    }
}

fn is_absolute(target: &OsStr) -> bool {
    target.as_bytes().first() == Some(&b'/')
}

/// The end of a rename that the rules refuse, if they do.
fn refused_end<'a>(
    (path, moved): (&'a RelPath, &'a RelPath),
    (before, after): (Action, Action),
) -> Option<&'a RelPath> {
    if before == Action::Freeze || (before == Action::Deny && after != Action::Deny) {
        return Some(path);
    }
    (after.refuses() && before != after).then_some(moved)
}

/// Fails with `EXDEV` if that it goes from here must be reviewed, as its removal would be.
fn check_may_leave(passenger: &Passenger<'_>, one: Move<'_>) -> Result<()> {
    let Passenger { before, after, .. } = passenger;
    let is_gated = matches!(before, Action::Hold(_)) && !(before == after && is_gated_within(passenger, one));
    if is_gated { Err(EXDEV) } else { Ok(()) }
}

/// True if what makes a path sensitive lies inside the directory that is renamed: `a/.vscode/x` stays as sensitive as it
/// was when `a` becomes `b`, and no program reads it from another place than before.
fn is_gated_within(passenger: &Passenger<'_>, one: Move<'_>) -> bool {
    use crate::policy::rules::Entry;
    let entry = match passenger.kind {
        FileKind::Directory => Entry::Dir,
        FileKind::Symlink => Entry::Symlink,
        _ => Entry::File,
    };
    let within = |path: &RelPath, dir: &RelPath| {
        sensitive(path, entry).is_some_and(|found| found.own_depth >= dir.components().count())
    };
    within(passenger.path, one.from) && within(&passenger.moved, one.to)
}
