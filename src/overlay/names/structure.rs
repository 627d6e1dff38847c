//! Held structure: a directory, FIFO, socket or device that lower cannot have yet, because something held has taken its
//! place or its parent, or because a rule reviews it (SPEC §4.8, §6).
//!
//! Each is an upper entry like a file, with the attributes of an empty directory or of a node in `stage/`. It is never
//! judged: it is held from the moment it is made, and lands by `confirm` alone. The contents of such a directory are
//! entries of their own, held for their parent. One that takes the place of a held deletion is one change with it: when
//! it goes, the deletion is held as before; when it lands, so does the deletion.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT};

use super::carry::Move;
use super::rename::End;
use crate::model::{ChangeKind, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::judge::hold::held_id;
use crate::overlay::judge::side::Side;
use crate::overlay::review::Reviewed;
use crate::overlay::review::discard::discarded;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::uppers::Upper;
use crate::overlay::who::goes::{Doing, Part};
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::protocol::{ErrorCode, EventName, refused_at};
use crate::store::{
    self, Base, Below, Epilogue, EventDraft, Fate, Held, NewUpper, PathEffect, UpperId, UpperRow, What, Writer,
};
use crate::sys::OFlags;
use crate::sys::file::{FileKind, Standing};
use crate::sys::tree::is_absent;

/// What becomes of something that a program makes at a free name.
pub(super) enum Creation {
    /// Lower gets it.
    AtOnce,
    /// Lower still has this directory, whose removal is held.
    Anew(UpperId),
    Held(Waiting),
}

/// Why structure waits, and the deletion whose place it takes.
pub(super) struct Waiting {
    because: Vec<Reason>,
    pub over: Option<UpperId>,
}

/// What is to be made.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub kind: FileKind,
    pub mode: u32,
    pub device: u64,
}

impl Made {
    fn standing(self) -> Standing {
        Standing::new(Some(self.kind), self.device)
    }
}

/// A rename of structure: all rows and records as they will be.
struct Moved {
    rows: Vec<UpperRow>,
    /// The deletion whose place is given up.
    left: Option<UpperRow>,
    /// What stood at the target.
    replaced: Option<UpperRow>,
    epilogue: Epilogue,
}

impl Overlay {
    /// What becomes of an entry of `kind` that is made at a path; `EEXIST` if something is there, `EPERM` if a rule says
    /// so.
    pub(super) fn creation(&self, path: &RelPath, kind: FileKind, caller: &Caller) -> Result<Creation> {
        let action = self.action_by(path, kind, &self.writer(caller));
        let mut because = match action {
            Action::Deny | Action::Freeze => return Err(self.denied(path, &self.doer(caller))),
            Action::Hold(source) => vec![source.reason()],
            Action::Auto | Action::Pass | Action::GitConfig => Vec::new(),
        };
        let over = match self.origin(path)? {
            Origin::Lower(_) | Origin::Upper(..) => return Err(Error::Errno(libc::EEXIST)),
            Origin::Hidden(id) if self.has_dir_below(path)? => return self.creation_over_dir(id, kind),
            Origin::Hidden(id) => Some(id),
            Origin::Nothing => None,
        };
        self.saw_free(path, caller);
        if over.is_some() || self.is_in_held_dir(path) {
            because.push(Reason::Parent);
        }
        match because.is_empty() {
            true => Ok(Creation::AtOnce),
            false => Ok(Creation::Held(Waiting { because, over })),
        }
    }

    fn creation_over_dir(&self, id: UpperId, kind: FileKind) -> Result<Creation> {
        match kind {
            FileKind::Directory if self.removes_dir(id) => Ok(Creation::Anew(id)),
            // Somebody has made the one below since, in the place of a file whose deletion is held.
            FileKind::Directory => Ok(Creation::Held(Waiting { because: vec![Reason::Parent], over: Some(id) })),
            FileKind::Regular | FileKind::Symlink => {
                Ok(Creation::Held(Waiting { because: Vec::new(), over: Some(id) }))
            }
            // What takes the place of a directory is judged by its content, which a node does not have.
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Err(Error::Errno(libc::EBUSY))
            }
        }
    }

    /// True if what the entry holds is the removal of a directory.
    fn removes_dir(&self, id: UpperId) -> bool {
        self.state.lock().uppers.row(id).is_some_and(UpperRow::removes_dir)
    }

    /// True if a directory above `path` is upper's own: lower has no place for what is made there.
    pub(in crate::overlay) fn is_in_held_dir(&self, path: &RelPath) -> bool {
        self.state.lock().uppers.is_in_held_dir(path)
    }

    /// Refuses to bring something back below if, with `dropping` gone, a held change above it would hide it. A directory
    /// that was removed below is no obstacle: it is made anew.
    pub(in crate::overlay) fn check_would_show(&self, path: &RelPath, dropping: &HashSet<UpperId>) -> Reviewed<()> {
        let state = self.state.lock();
        for dir in std::iter::successors(path.parent(), RelPath::parent) {
            let upper = state.uppers.at(&dir).filter(|id| !dropping.contains(id)).and_then(|id| state.uppers.get(id));
            if let Some(why) = upper.and_then(|upper| why_hidden(&dir, upper)) {
                return Err(refused_at(path, ErrorCode::Conflict, &why));
            }
        }
        Ok(())
    }

    /// Opens a directory of the view to ask about itself: for reading, if that is allowed.
    pub(in crate::overlay) fn dir_in_view(&self, path: &RelPath) -> Result<OwnedFd> {
        match self.open_dir_in_view(path, OFlags::RDONLY) {
            // A descriptor that can only be used to reach it tells as much, but takes longer.
            Err(err) if err.code() == libc::EACCES => self.open_dir_in_view(path, OFlags::PATH),
            opened => opened,
        }
    }

    fn open_dir_in_view(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY;
        let below = || self.lower.open_at(path, flags);
        let upper = self.state.lock().uppers.held_dir(path);
        let opened = match upper.map(|id| self.store.upper_place(id).open(flags)) {
            // It has landed between the two looks.
            Some(Err(err)) if is_absent(&err) => below(),
            Some(opened) => opened,
            None => below(),
        };
        opened.doing(|| format!("open the directory {path}"))
    }

    /// Sets the time of the directory in which a name came or went, if that is upper's: its entries are elsewhere. A
    /// directory of lower gets the time from the kernel.
    pub(in crate::overlay) fn name_changed(&self, path: &RelPath) -> Result<()> {
        let dir = path.parent().and_then(|dir| self.state.lock().uppers.held_dir(&dir));
        let Some(dir) = dir else { return Ok(()) };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        match self.store.upper_place(dir).set_times(omit, now) {
            // It has landed between the two looks, and its entries with it.
            Err(err) if is_absent(&err) => Ok(()),
            set => set.doing(|| format!("set the times of the directory of {path}")),
        }
    }

    /// Makes structure that is held, and in the view, at once.
    pub(super) fn make_held(&self, path: &RelPath, made: Made, why: Waiting, caller: &Caller) -> Result<()> {
        self.check_may_change(0)?;
        let new = self.upper_structure(path, made, caller)?;
        let over = why.over.map(|id| self.claim(id)).transpose()?;
        let over = over.as_ref().map(|(row, _)| row);
        let by = self.doer(caller);
        self.hold_made(&mut self.state.lock(), path, (new.id(), made), over, why.because, by)?;
        new.keep();
        self.name_changed(path)
    }

    /// Makes in upper what is to be held at a path, with all that `caller` gives it there.
    pub(super) fn upper_structure(&self, path: &RelPath, made: Made, caller: &Caller) -> Result<NewUpper<'_>> {
        let heritage = self.heritage(path, made.kind, made.mode, caller)?;
        let new = self.store.create_upper_node(made.kind, made.device)?;
        let place = self.store.upper_place(new.id());
        heritage.give_upper_node(&place, made.kind).doing(|| format!("give {path} an owner"))?;
        Ok(new)
    }

    pub(super) fn hold_made(
        &self,
        state: &mut State,
        path: &RelPath,
        (id, made): (UpperId, Made),
        over: Option<&UpperRow>,
        mut because: Vec<Reason>,
        by: Writer,
    ) -> Result<()> {
        if state.uppers.at(path) != over.map(|row| row.id) {
            return Err(Error::Errno(libc::ESTALE));
        }
        let base = over.map_or(Base::NOTHING, |row| row.base);
        let deletion = match over {
            // The deletion is being judged, and may or may not end up held.
            Some(row) => Some(row.held.clone().ok_or(Error::Errno(libc::EBUSY))?),
            None => None,
        };
        because.extend(deletion.iter().flat_map(|held| held.reasons.iter().copied()));
        let what = if made.kind == FileKind::Directory { What::Dir } else { What::Node };
        let row = UpperRow { held: deletion.clone(), ..UpperRow::new(id, path.clone(), what, base) };
        let writer = by.known().cloned();
        let row = state.waiting(row, (ChangeKind::Structure, made.standing()), because, writer)?;
        let mut epilogue = Epilogue { save: vec![row.clone()], ..Epilogue::default() };
        epilogue.events.push(self.made_event(&row, made.standing(), &by));
        if let (Some(over), Some(deletion), Some(held)) = (over, deletion, &row.held) {
            epilogue.drop.push(over.id);
            epilogue.verdicts.push((deletion.id, path.clone(), Fate::Superseded { by: held.id.clone() }));
        }
        self.store.record_epilogue(&epilogue)?;
        if let Some(over) = over {
            state.uppers.remove(over.id);
        }
        state.uppers.insert(Upper::held(row));
        state.epoch += 1;
        self.counters.held.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn made_event(&self, row: &UpperRow, made: Standing, by: &Writer) -> store::EventDraft {
        let event = self.event(EventName::WriteHeld, row.path()).with(|event| {
            event.id = row.held.as_ref().map(|held| held.id.to_string());
            event.reason = row.held.as_ref().and_then(|held| held.reasons.first().copied());
            event.message = Some(format!("[{made}]"));
        });
        event.by(by)
    }

    /// Removes structure that has not landed. The deletion whose place it took is held as before.
    pub(super) fn end_structure(&self, path: &RelPath, id: UpperId, caller: &Caller) -> Result<()> {
        let (row, _claimed) = self.claim(id)?;
        let stands_alone = row.base.below == Below::Nothing;
        let told = stands_alone.then(|| self.structure_ended(path, &row, caller)).transpose()?;
        let became = {
            let mut state = self.state.lock();
            let held = row.held.as_ref().filter(|_| state.uppers.at(path) == Some(id));
            let held = held.ok_or(Error::Errno(libc::ESTALE))?;
            // Held deletions in a directory that was removed below show nothing.
            let shows = |id| state.uppers.get(id).is_some_and(|inside| inside.row.what != What::Whiteout);
            if state.uppers.in_dir(path).any(|(_, id)| shows(id)) {
                return Err(Error::Errno(libc::ENOTEMPTY));
            }
            let left = self.deletion_left(&mut state, &row)?;
            let fate = match left.as_ref().and_then(|left| left.held.as_ref()) {
                Some(deletion) => Fate::Superseded { by: deletion.id.clone() },
                None => Fate::Removed,
            };
            let verdicts = vec![(held.id.clone(), path.clone(), fate)];
            let events = told.iter().map(|(event, _)| event.clone()).collect();
            let save = left.iter().cloned().collect();
            let epilogue = Epilogue { drop: vec![id], save, verdicts, events, ..Epilogue::default() };
            let became = self.store.record_operation(&epilogue)?;
            state.uppers.remove(id);
            state.put_left(left);
            state.epoch += 1;
            became
        };
        if let Some((_, part)) = told {
            self.recorded(&part, became);
        }
        self.store.drop_upper_file(id);
        self.name_changed(path)
    }

    /// The event of its removal. An undo holds a directory again; a FIFO that came back would be another one.
    fn structure_ended(&self, path: &RelPath, row: &UpperRow, caller: &Caller) -> Result<(EventDraft, Part)> {
        let by = self.doer(caller);
        let held = row.held.as_ref().ok_or(Error::Errno(libc::ESTALE))?;
        let meta = self.store.upper_meta(row.id)?;
        let waits_again = || discarded(row, &Side::of_structure(meta), None);
        let effect = meta.is_dir().then(waits_again).transpose()?.map(|effect| PathEffect::new(path, effect));
        let part = self.part_of(path, &by, Doing::Unhold);
        let event = self.hold_ended(path, held, &format!("[{} removed]", meta.kind.name()), &by).doing(effect);
        Ok((event.with(|event| event.operation = part.operation_told()), part))
    }

    /// The deletion whose place `row` took, as it is held once `row` gives that up.
    fn deletion_left(&self, state: &mut State, row: &UpperRow) -> Result<Option<UpperRow>> {
        if row.base.below == Below::Nothing {
            return Ok(None);
        }
        let mut reasons = row.held.as_ref().map(|held| held.reasons.clone()).unwrap_or_default();
        // The structure's own. It is the deletion's, too, if no other is left: whatever is held has a reason.
        reasons.retain(|reason| *reason != Reason::Parent);
        if reasons.is_empty() {
            reasons.push(Reason::Parent);
        }
        let whiteout = UpperRow { id: self.store.reserve_upper(), what: What::Whiteout, ..row.clone() };
        state.waiting(whiteout, (ChangeKind::Delete, Standing::of(None)), reasons, None).map(Some)
    }

    /// Renames structure with all that is in it, to a free name or into the place of a held deletion. Lower has nothing
    /// of it.
    pub(super) fn move_structure(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        if from.path == to.path {
            return Ok(());
        }
        self.check_target(from, to)?;
        self.check_uppers(&[Move { from: &from.path, to: &to.path }], &self.doer(caller))?;
        loop {
            let with_target = |state: &State| {
                let mut ids = state.uppers.within(&from.path);
                ids.extend(state.uppers.at(&to.path));
                ids
            };
            let ids = with_target(&self.state.lock());
            let claimed = self.claim_all(&ids);
            let mut state = self.state.lock();
            if with_target(&state).iter().any(|id| !ids.contains(id)) {
                // Something was made in it meanwhile.
                continue;
            }
            if state.uppers.at(&from.path) != Some(id) || state.uppers.at(&to.path) != to.upper() {
                return Err(Error::Errno(libc::ESTALE));
            }
            let moved = self.moved(&mut state, (from, to), id, caller)?;
            self.store.record_epilogue(&moved.epilogue)?;
            if let Some(replaced) = &moved.replaced {
                state.uppers.remove(replaced.id);
            }
            state.rows_changed(moved.rows);
            state.put_left(moved.left);
            let renamed = state.renamed(from, to);
            drop(state);
            drop(claimed);
            self.tell_renamed(to, renamed);
            if let Some(replaced) = moved.replaced.filter(|row| row.what == What::Dir) {
                self.store.drop_upper_file(replaced.id);
            }
            // One may have landed just before, when our claim kept it from being evicted.
            ids.iter().for_each(|id| self.evict(*id));
            return Ok(());
        }
    }

    /// What cannot be done in one step is `EXDEV`, upon which programs copy and delete.
    fn check_target(&self, from: &End, to: &End) -> Result<()> {
        let is_dir = from.kind() == Some(FileKind::Directory);
        let refusal = match (&to.origin, to.kind() == Some(FileKind::Directory)) {
            _ if to.action == Action::Pass => Some(libc::EXDEV),
            (Origin::Lower(_) | Origin::Upper(..), true) if !is_dir => Some(libc::EISDIR),
            (Origin::Lower(_) | Origin::Upper(..), false) if is_dir => Some(libc::ENOTDIR),
            (Origin::Lower(_), true) => self.hidden_below(&to.path).map(|_| Some(libc::EXDEV))?,
            (Origin::Upper(..), true) if self.state.lock().uppers.in_dir(&to.path).next().is_some() => {
                Some(libc::ENOTEMPTY)
            }
            (Origin::Lower(_) | Origin::Upper(..), false) => Some(libc::EXDEV),
            (Origin::Hidden(_), _) if self.has_dir_below(&to.path)? => Some(libc::EXDEV),
            (Origin::Hidden(_) | Origin::Nothing, _) | (Origin::Upper(..), true) => None,
        };
        refusal.map_or(Ok(()), |errno| Err(Error::Errno(errno)))
    }

    fn moved(&self, state: &mut State, (from, to): (&End, &End), id: UpperId, caller: &Caller) -> Result<Moved> {
        let inside: Vec<UpperId> = state.uppers.within(&from.path).into_iter().filter(|inside| *inside != id).collect();
        let (mut rows, mut epilogue) = state.renamed_rows(&inside, &[Move { from: &from.path, to: &to.path }])?;
        let row = state.uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        let replaced = to.upper().and_then(|id| state.uppers.get(id)).map(|upper| upper.row.clone());
        let left = self.deletion_left(state, &row)?;
        let mut reasons = match (&left, &row.held) {
            // The other reasons are those of the deletion, which stays behind.
            (None, Some(held)) => held.reasons.clone(),
            (Some(_), _) | (None, None) => vec![Reason::Parent],
        };
        if let Action::Hold(source) = to.action {
            reasons.push(source.reason());
        }
        if replaced.is_some() || state.uppers.is_in_held_dir(&to.path) {
            reasons.push(Reason::Parent);
        }
        let mut there = UpperRow { names: vec![to.path.clone()], base: Base::NOTHING, held: None, ..row.clone() };
        if let Some(replaced) = &replaced {
            reasons.extend(replaced.held.iter().flat_map(|held| held.reasons.iter().copied()));
            (there.base, there.held) = (replaced.base, replaced.held.clone());
        }
        let writer = row.held.as_ref().and_then(|held| held.writer.clone()).or(Some(caller.writer()));
        let makes = self.upper_standing(id)?;
        let there = state.waiting(there, (ChangeKind::Structure, makes), reasons, writer)?;
        let by = held_id(&there)?;
        let superseded = |row: &UpperRow| {
            let old = row.held.as_ref().filter(|held| held.id != by)?;
            Some((old.id.clone(), row.path().clone(), Fate::Superseded { by: by.clone() }))
        };
        epilogue.verdicts.extend(std::iter::once(&row).chain(&replaced).filter_map(superseded));
        epilogue.drop.extend(replaced.iter().map(|row| row.id));
        epilogue.save.extend(left.iter().chain([&there]).cloned());
        rows.push(there);
        Ok(Moved { rows, left, replaced, epilogue })
    }

    /// Makes structure a change of what has been put back below in its place.
    pub(in crate::overlay) fn rebase_structure(&self, row: UpperRow) -> Result<()> {
        let mut state = self.state.lock();
        let Some(held) = row.held.clone().filter(|_| state.uppers.get(row.id).is_some()) else { return Ok(()) };
        let path = row.path().clone();
        let makes = self.upper_standing(row.id)?;
        let row = state.waiting(row, (ChangeKind::Structure, makes), held.reasons, held.writer)?;
        let mut epilogue = Epilogue { save: vec![row.clone()], ..Epilogue::default() };
        let by = row.held.as_ref().map(|held| held.id.clone()).filter(|by| *by != held.id);
        epilogue.verdicts.extend(by.map(|by| (held.id, path, Fate::Superseded { by })));
        self.store.record_epilogue(&epilogue)?;
        state.uppers.set_row(row);
        Ok(())
    }

    /// Holds structure that earlier versions left in upper without a hold: what is in it could not land.
    pub(in crate::overlay) fn hold_left_structure(&self, id: UpperId) -> Result<()> {
        let mut state = self.state.lock();
        let Some(row) = state.uppers.row(id).cloned() else { return Ok(()) };
        let makes = self.upper_standing(id)?;
        let row = state.waiting(row, (ChangeKind::Structure, makes), vec![Reason::Parent], None)?;
        self.store.save_upper(&row)?;
        state.uppers.set_row(row);
        Ok(())
    }

    fn upper_standing(&self, id: UpperId) -> Result<Standing> {
        Ok(Standing::of(Some(&self.store.upper_meta(id)?)))
    }

    /// What stands for structure in upper, as a descriptor that only serves to look at it: it lands with its attributes.
    pub(in crate::overlay) fn upper_node(&self, id: UpperId) -> Result<File> {
        let opened = self.store.upper_place(id).open(OFlags::PATH);
        opened.map(File::from).doing(|| format!("open upper entry {id}"))
    }
}

impl State {
    /// Holds a change without new content, under the id made of its path, its kind, its base and what it makes of that. Its
    /// counts of the old content come from what was held before.
    pub(in crate::overlay) fn waiting(
        &mut self,
        mut row: UpperRow,
        (kind, makes): (ChangeKind, Standing),
        mut reasons: Vec<Reason>,
        writer: Option<Writer>,
    ) -> Result<UpperRow> {
        reasons.sort();
        reasons.dedup();
        let full = row.full_id_of(kind, (Some(makes), None), None);
        let id = self.unused_id(full, row.id)?;
        let now = store::now_millis();
        let before = row.held.take();
        let count = |count: fn(&Held) -> u64| before.as_ref().map_or(0, count);
        row.held = Some(Held {
            id,
            kind,
            reasons,
            insertions: 0,
            deletions: count(|held| held.deletions),
            old_lines: count(|held| held.old_lines),
            hunks: count(|held| held.hunks),
            new: None,
            makes: Some(makes),
            looks: None,
            created: now,
            renewed: now,
            operation: before.as_ref().and_then(|held| held.operation),
            since_session: match &before {
                Some(held) => held.since_session.clone(),
                None => writer.as_ref().and_then(|writer| writer.session.clone()),
            },
            writer: writer.or(before.and_then(|held| held.writer)),
            detail: None,
        });
        Ok(row)
    }

    fn put_left(&mut self, left: Option<UpperRow>) {
        if let Some(row) = left {
            self.uppers.insert(Upper::held(row));
        }
    }
}

/// Why upper's entry at `dir` hides what lower has in it; `None` if it does not.
fn why_hidden(dir: &RelPath, upper: &Upper) -> Option<String> {
    let Some(held) = &upper.row.held else {
        return (!upper.is_landed()).then(|| format!("something is being written in the place of {dir}"));
    };
    let what = match upper.row.what {
        What::Dir if upper.is_stand_in() => return None,
        What::Dir => return Some("its directory waits for review: confirm or discard that first".to_owned()),
        What::Whiteout => format!("the removal of {dir}"),
        What::File | What::Symlink | What::Node => format!("what is in the place of {dir}"),
    };
    Some(format!("{what} waits for review: confirm or discard {} first", held.id))
}
