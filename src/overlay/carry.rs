//! What a directory takes along when it is renamed, and what of it must be judged where it arrives (SPEC §4.8).
//!
//! Nearly all of it simply moves with the directory, in lower, in one rename. A file that came in this session and comes
//! to where a rule waits, or where something else was, is *lifted* before: taken back into upper, as if it had been
//! written and nobody had judged it yet. So it moves along as every change does, and is settled at its new path. What can
//! neither move nor be lifted makes the rename `EXDEV`, upon which programs copy and delete, and each file is judged.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::compare::leaves_project;
use super::error::Context;
use super::{Caller, Error, Overlay, Result};
use crate::model::RelPath;
use crate::policy::rules::{Action, sensitive};
use crate::store::{AnchorState, Base, Below, Durability, Epilogue, Landing, UpperId, Writer};
use crate::sys::file::{FileKind, Meta, SET_ID};

/// A directory's rename. Two of them, there and back, are an exchange.
#[derive(Clone, Copy)]
pub(super) struct Move<'a> {
    pub from: &'a RelPath,
    pub to: &'a RelPath,
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
    /// Inodes that cross between judged and passing paths: how many names each has, and how many come along.
    crossing: HashMap<(u64, u64), (u32, u32)>,
}

impl Survey {
    /// Whether everything simply moves along.
    pub fn is_empty(&self) -> bool {
        self.lifted.is_empty()
    }
}

const EXDEV: Error = Error::Errno(libc::EXDEV);

impl Overlay {
    /// Looks through what lies in lower below a directory. `EPERM` for what a rule freezes or denies, `EXDEV` for what
    /// cannot come along.
    pub(super) fn survey(&self, moves: &[Move<'_>], caller: &Caller) -> Result<Survey> {
        let by = self.writer(caller);
        let mut survey = Survey::default();
        for one in moves {
            let mut dirs = vec![one.from.clone()];
            while let Some(dir) = dirs.pop() {
                for entry in self.lower.list(&dir).doing(|| format!("list {dir}"))? {
                    let Ok(path) = dir.join(&entry.name) else { continue };
                    self.look_at(*one, &path, entry.kind, &by, &mut survey)?;
                    if entry.kind == FileKind::Directory {
                        dirs.push(path);
                    }
                }
            }
        }
        // What is written through a name that stays where nobody judges would change the other unseen, or the reverse.
        match survey.crossing.values().all(|(links, along)| links == along) {
            true => Ok(survey),
            false => Err(EXDEV),
        }
    }

    fn look_at(&self, one: Move<'_>, path: &RelPath, kind: FileKind, by: &Writer, survey: &mut Survey) -> Result<()> {
        let Some(moved) = path.rebase(one.from, one.to) else { return Ok(()) };
        let (before, after) = (self.action_by(path, kind, by), self.action_by(&moved, kind, by));
        if before == Action::Freeze || (before == Action::Deny && after != Action::Deny) {
            return Err(self.denied(path));
        }
        if matches!(after, Action::Deny | Action::Freeze) && before != after {
            return Err(self.denied(&moved));
        }
        let passenger = Passenger { path, moved, kind, before, after };
        if kind == FileKind::Directory || (before == Action::Pass && after == Action::Pass) {
            return Ok(());
        }
        if before == Action::Pass || after == Action::Pass {
            self.check_crossing(&passenger, survey)?;
        }
        let gated_within = before == after && is_gated_within(&passenger, one);
        if matches!(before, Action::Hold(_)) && !gated_within {
            // Its going is reviewed, too.
            return Err(EXDEV);
        }
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

    /// Between judged and passing paths goes only what nobody would miss, and what nobody can write to unjudged.
    fn check_crossing(&self, passenger: &Passenger<'_>, survey: &mut Survey) -> Result<()> {
        let Passenger { path, after, before, .. } = passenger;
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?.ok_or(Error::Errno(libc::ESTALE))?;
        let may = match *after {
            Action::Pass => self.is_fresh(path),
            Action::Auto | Action::GitConfig | Action::Hold(_) | Action::Deny | Action::Freeze => {
                debug_assert_eq!(*before, Action::Pass);
                let is_written = meta.is_file() && self.is_written_below(path)?;
                !self.is_privileged(&meta) && !is_written
            }
        };
        let (_, along) = survey.crossing.entry((meta.device, meta.inode)).or_insert((meta.links, 0));
        *along += 1;
        if may { Ok(()) } else { Err(EXDEV) }
    }

    /// What judged paths may not have, unless the mount allows it (SPEC §6).
    pub(super) fn is_privileged(&self, meta: &Meta) -> bool {
        let is_device = matches!(meta.kind, FileKind::CharDevice | FileKind::BlockDevice);
        (is_device && !self.grants.dev) || (meta.is_file() && meta.mode & SET_ID != 0 && !self.grants.suid)
    }

    /// Whether its content there is a change of something, or a symlink leads out from there.
    fn is_changed_there(&self, passenger: &Passenger<'_>) -> Result<bool> {
        let Passenger { path, moved, kind, .. } = passenger;
        Ok(self.is_used_by_another(path, moved)?
            || (*kind == FileKind::Symlink && self.leads_out_there(path, moved)?)
            || self.takes_the_place_of_older(moved)?)
    }

    /// In an exchange, something older may stand where a file goes.
    fn takes_the_place_of_older(&self, moved: &RelPath) -> Result<bool> {
        let there = self.lower.stat(moved).doing(|| format!("stat {moved}"))?;
        Ok(there.is_some_and(|there| !there.is_dir()) && !self.is_fresh(moved))
    }

    /// Whether a symlink of lower would lead out of the project by being renamed: an absolute one leads where it led.
    pub(super) fn leads_out_there(&self, path: &RelPath, moved: &RelPath) -> Result<bool> {
        let target = self.lower.place(path)?.read_symlink().doing(|| format!("read symlink {path}"))?;
        let is_absolute = OsStr::as_bytes(&target).first() == Some(&b'/');
        Ok(!is_absolute && leaves_project(moved, target.as_bytes()))
    }

    /// Whether something else than what comes from `path` used to be at `moved` in this session. What went there may
    /// come back.
    pub(super) fn is_used_by_another(&self, path: &RelPath, moved: &RelPath) -> Result<bool> {
        let comes_back = self.state.lock().moved_with_dir(moved).as_ref() == Some(path);
        Ok(!comes_back
            && match self.anchor_of(moved)? {
                Some(AnchorState::Moved { to, .. }) => to != *path,
                Some(AnchorState::Content(_)) => true,
                Some(AnchorState::Nothing) | None => false,
            })
    }

    /// Whether taking a file back from lower loses nothing: it came in this session or was never judged, has no other
    /// name, and no change of it waits for review.
    fn is_liftable(&self, passenger: &Passenger<'_>) -> Result<bool> {
        let Passenger { path, kind, before, .. } = passenger;
        let has_content = matches!(kind, FileKind::Regular | FileKind::Symlink);
        let is_ours = *before == Action::Pass || self.is_fresh(path);
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let state = self.state.lock();
        let upper = state.uppers.at(path).and_then(|id| state.uppers.get(id));
        let unreviewed = upper.is_none_or(|upper| upper.row.held.is_none() && upper.row.names.len() == 1);
        Ok(has_content && is_ours && unreviewed && meta.is_some_and(|meta| meta.links == 1))
    }
}

impl Overlay {
    /// Takes what the survey found back into upper. All of it or nothing.
    pub(super) fn lift(&self, survey: &Survey, caller: &Caller) -> Result<Vec<UpperId>> {
        let mut lifted = Vec::new();
        for path in &survey.lifted {
            match self.lift_one(path, caller) {
                Ok(id) => lifted.push(id),
                Err(err) => return self.settle_lifted(&lifted, caller, Err(err)),
            }
        }
        Ok(lifted)
    }

    fn lift_one(&self, path: &RelPath, caller: &Caller) -> Result<UpperId> {
        let open = {
            let state = self.state.lock();
            state.nodes.at(path).and_then(|node| state.nodes.get(node).ok()?.open.clone())
        };
        // Nobody copies it up meanwhile.
        let _still = open.as_ref().map(|open| open.copying.lock());
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?.ok_or(Error::Errno(libc::ESTALE))?;
        // A crash from here on finds an entry that equals lower, which ends by itself, or one that nobody has judged.
        let id = match self.take_as_new(path)? {
            Some(id) => id,
            None => {
                let (new, what) = self.copy_to_upper(path)?;
                let id = self.add_upper(new, path, what)?;
                self.rebind(path, id);
                id
            }
        };
        match self.remove_lifted(path, &meta) {
            Ok(()) => Ok(id),
            Err(err) => self.settle_lifted(&[id], caller, Err(err)),
        }
    }

    fn remove_lifted(&self, path: &RelPath, was: &Meta) -> Result<()> {
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.remove(&self.lower, path, was.stamp())?;
        let anchors = self.state.lock().anchor_left(path).into_iter().collect();
        let applied = landing.promise(Epilogue { anchors, ..Epilogue::default() })?.apply()?;
        self.state.lock().left(path);
        applied.finish()?;
        Ok(())
    }

    /// What landed a moment ago is in upper still, while its writer has it open: as if it had not landed.
    fn take_as_new(&self, path: &RelPath) -> Result<Option<UpperId>> {
        let Some(id) = self.state.lock().uppers.at(path) else { return Ok(None) };
        let (_, _claimed) = match self.claim(id) {
            // Let go of meanwhile.
            Err(err) if err.code() == libc::ESTALE => return Ok(None),
            claimed => claimed?,
        };
        let mut state = self.state.lock();
        let Some(upper) = state.uppers.get_mut(id) else { return Ok(None) };
        upper.row.base = Base::of(Below::Nothing);
        (upper.dirty, upper.saved) = (true, true);
        self.store.save_upper(&upper.row)?;
        Ok(Some(id))
    }

    /// Judges what was lifted, where it is now. Gives what became of the rename: that is what the caller is told.
    pub(super) fn settle_lifted<T>(&self, lifted: &[UpperId], caller: &Caller, renamed: Result<T>) -> Result<T> {
        let settled = lifted.iter().try_for_each(|id| self.settle_moved(*id, &self.writer(caller)));
        renamed.and_then(|renamed| settled.map(|()| renamed))
    }
}

/// Whether what makes a path sensitive lies inside the directory that is renamed: `a/.vscode/x` stays as sensitive as it
/// was when `a` becomes `b`, and nobody reads it from another place than before.
fn is_gated_within(passenger: &Passenger<'_>, one: Move<'_>) -> bool {
    use crate::policy::rules::Entry;
    let entry = if passenger.kind == FileKind::Symlink { Entry::Symlink } else { Entry::File };
    let within = |path: &RelPath, dir: &RelPath| {
        sensitive(path, entry).is_some_and(|found| found.depth >= dir.components().count())
    };
    within(passenger.path, one.from) && within(&passenger.moved, one.to)
}
