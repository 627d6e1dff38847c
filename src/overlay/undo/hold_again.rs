//! Holding again: discarded changes come back to the view as they were, under their ids. What was written to one but not
//! yet judged comes back with it; that makes it another change, with an id of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::XattrFlags;

use super::restore::{Coming, Plan};
use super::{UndoHow, undone_event};
use crate::model::{BackupKind, ChangeId, RelPath, Stamp, Timestamp, Xattr};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Access, Backing};
use crate::overlay::judge::compare;
use crate::overlay::judge::hold::held_id;
use crate::overlay::judge::side::Side;
use crate::overlay::review::discard::discarded_for;
use crate::overlay::review::{Reviewed, failed};
use crate::overlay::state::nodes::NodeId;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, Also, Counts, ErrorCode, Outcome, refused_at};
use crate::store::{
    self, Below, Effect, Epilogue, Fate, Landing, NewUpper, Operation, PathEffect, UpperId, UpperRow, Version, What,
};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::xattr;

/// One change on its way back into the view.
pub(super) struct Returning<'a> {
    pub row: &'a UpperRow,
    content: Option<&'a Version>,
    /// The extended attributes of its own.
    xattrs: &'a [Xattr],
    /// What lower has at its path.
    below: Option<Meta>,
    instead: Option<Instead>,
}

/// What is held in the place of a change: the rest of it after some hunks were discarded, or the whole that it is the
/// rest of. The two change places.
#[derive(Clone)]
struct Instead {
    upper: UpperId,
    id: ChangeId,
}

/// A returning change with its content in upper again. The content goes unless the change is held.
pub(super) struct Returned<'a> {
    row: UpperRow,
    below: Option<Meta>,
    content: Option<Content<'a>>,
    instead: Option<Instead>,
    /// The id under which it was discarded: it may come back under another.
    went_as: Option<&'a ChangeId>,
}

/// The upper file of a returned change.
struct Content<'a> {
    new: NewUpper<'a>,
    /// Of a regular file: what its readers go on with.
    file: Option<File>,
}

/// The changes held again, and the entries whose place they took.
pub(super) struct HeldAgain {
    pub rows: Vec<UpperRow>,
    pub gone: Vec<UpperId>,
}

impl Returned<'_> {
    pub fn path(&self) -> &RelPath {
        self.row.path()
    }

    /// The entry whose place it takes.
    pub fn instead(&self) -> Option<UpperId> {
        Some(self.instead.as_ref()?.upper)
    }
}

impl Overlay {
    /// What an operation discarded and is not held again yet. A change whose base has gone since would hide what came
    /// after it, so it is refused, unless the caller insists or the same `plan` brings the base back.
    pub(super) fn returning<'a>(
        &self,
        operation: &'a Operation,
        plan: &Plan<'_>,
        how: &UndoHow,
    ) -> Reviewed<Vec<Returning<'a>>> {
        let mut returning = Vec::new();
        for PathEffect { effect, .. } in &operation.effects {
            let Effect::Discarded { row, content, xattrs, instead } = effect else { continue };
            for name in row.names.iter().filter(|name| !comes_with_its_dir(name, operation)) {
                self.check_way(name)?;
            }
            let returned = self.returning_one(row, (content.as_ref(), instead.as_ref()), plan, how)?;
            returning.extend(returned.map(|one| Returning { xattrs, ..one }));
        }
        Ok(returning)
    }

    pub(super) fn tell_returned(&self, again: HeldAgain) {
        for row in &again.rows {
            let node = self.state.lock().node_of(row);
            if let Some(node) = node {
                self.tell(|observer| observer.content_changed(node));
            }
            row.names.iter().for_each(|name| self.tell_changed(name));
        }
        again.gone.into_iter().for_each(|gone| self.store.drop_upper_file(gone));
    }

    /// What is held again in a directory that lower does not have has one in the view only now. A failure leaves who has
    /// the file open without it; what is held stays.
    pub(super) fn read_on_in_stand_in(&self, row: &UpperRow) {
        let read_on = || -> Result<()> {
            let ways = self.ways_back_to(std::iter::once(row.path()))?;
            if !ways.is_empty() && row.what == What::File {
                let file = self.store.open_upper(row.id)?;
                self.state.lock().read_on_in(row, row.id, Some(file));
            }
            Ok(())
        };
        if let Err(err) = read_on() {
            log::error!("go on with {}, which is held again: {err}", row.path());
        }
    }

    /// Returns `None` if the change is held again already.
    fn returning_one<'a>(
        &self,
        row: &'a UpperRow,
        (content, instead): (Option<&'a Version>, Option<&ChangeId>),
        plan: &Plan<'_>,
        how: &UndoHow,
    ) -> Reviewed<Option<Returning<'a>>> {
        let path = row.path();
        let (there, is_anothers) = {
            let state = self.state.lock();
            let there = state.entries_of(row).flatten().next();
            let held = |id| state.uppers.get(id).and_then(|upper| upper.row.held.as_ref()).map(|held| held.id.clone());
            let is_live = row.held.as_ref().is_some_and(|held| state.uppers.by_id(&held.id).is_some());
            (there.map(|upper| (upper, held(upper))), is_live)
        };
        let instead = match (there, &row.held) {
            (None, _) => None,
            (Some((_, Some(now))), Some(then)) if now == then.id => return Ok(None),
            (Some((upper, Some(id))), _) if instead == Some(&id) => Some(Instead { upper, id }),
            (Some(_), _) => {
                return Err(refused_at(path, ErrorCode::Conflict, "something else is held or being written there"));
            }
        };
        if is_anothers {
            // What a reviewer has looked at under an id is all that it may mean.
            return Err(refused_at(
                path,
                ErrorCode::Conflict,
                "its id stands for another change by now: decide about that",
            ));
        }
        if instead.is_none()
            && let Some(name) = self.hidden_by(row).map_err(|err| failed(path, &err))?
        {
            let why = "the project has something there since the change was discarded, which would hide it";
            return Err(refused_at(name, ErrorCode::Conflict, why));
        }
        let below = self.stat_below(path)?;
        let coming = plan.coming(path);
        let stands = match &coming {
            Some(coming) => stands_on(row, coming),
            None => self.stands(row, below.as_ref()).map_err(|err| failed(path, &err))?,
        };
        if !stands && !how.force {
            let why = "the project has something else there since it was discarded; --force holds it all the same";
            return Err(refused_at(path, ErrorCode::Conflict, why));
        }
        if !self.has_base(row, stands).map_err(|err| failed(path, &err))? {
            let why = "what it was based on is not kept any more";
            return Err(refused_at(path, ErrorCode::Conflict, why));
        }
        if row.what == What::Node {
            return Err(refused_at(path, ErrorCode::Conflict, "a FIFO, socket or device does not come back"));
        }
        if row.what == What::Whiteout && !coming.map_or(below.is_some(), |coming| coming.exists) {
            return Err(refused_at(path, ErrorCode::Conflict, "there is nothing there any more to be deleted"));
        }
        row.names.iter().try_for_each(|name| self.check_no_writer(name, |state| state.writer_ousted(row, name)))?;
        Ok(Some(Returning { row, content, xattrs: &[], below, instead }))
    }

    /// Returns a further name of a change at which lower has something by now, which the change would hide without having
    /// it as a base.
    fn hidden_by<'a>(&self, row: &'a UpperRow) -> Result<Option<&'a RelPath>> {
        for name in row.further_names() {
            if self.is_below(name)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// True if lower has what the change was based on. A directory must be that one: what is in another is not to be
    /// hidden.
    fn stands(&self, row: &UpperRow, below: Option<&Meta>) -> Result<bool> {
        match (&row.base.below, below) {
            (Below::Entry { stamp, .. }, Some(meta)) if meta.is_dir() => Ok(stamp.number() == meta.number()),
            _ => self.is_as_based(row, &mut self.present_side(row.path())?),
        }
    }

    /// True if the content it is compared with is kept, or will be: lower's is, if the change `stands` on that.
    fn has_base(&self, row: &UpperRow, stands: bool) -> Result<bool> {
        let Some(base) = row.base.content else { return Ok(true) };
        let is_below = stands && row.base.below != Below::Nothing && row.base.content_below() == Some(base);
        Ok(is_below || self.store.content_file(base.digest)?.is_some())
    }

    /// Writes its content back as an upper entry, synced.
    pub(super) fn bring_back<'a>(&'a self, returning: &Returning<'a>) -> Result<Returned<'a>> {
        let Returning { row, content, xattrs, below, instead } = returning;
        let path = row.path();
        let went_as = row.held.as_ref().map(|held| &held.id);
        let doing = || format!("bring back {path}");
        if let (Some(below), None) = (below, instead) {
            self.learn_other_name(path, below)?;
        }
        let now = store::now_millis();
        let held = row.held.clone().map(|held| store::Held { renewed: now, ..held });
        let mut row = UpperRow { held, ..(*row).clone() };
        if let Some(looks) = &mut row.looks {
            // Looks that are not its own it takes from lower.
            looks.as_of = Timestamp::default();
        }
        let new = match (&row.what, *content) {
            (What::Whiteout, _) => None,
            (What::Dir, Some(version)) => Some(Content { new: self.make_upper_dir(version).doing(doing)?, file: None }),
            (What::File | What::Symlink, Some(version)) => {
                let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
                let kept = version.content.map(|kept| self.store.content_file(kept.digest)).transpose()?.flatten();
                let kept = kept.ok_or_else(gone).doing(doing)?;
                Some(self.write_upper(&kept, (version, xattrs), &row.what).doing(doing)?)
            }
            (What::Dir | What::Node | What::File | What::Symlink, _) => return Err(Error::Errno(libc::ENOENT)),
        };
        row.id = new.as_ref().map_or_else(|| self.store.reserve_upper(), |content| content.new.id());
        if let (Some(version), Some(file)) = (content, new.as_ref().and_then(|content| content.file.as_ref())) {
            row = self.held_as_kept(row, version, file)?;
        }
        // The base may have been dropped with the change.
        self.keep_to_compare(&self.present_side(path)?)?;
        Ok(Returned { row, below: *below, content: new, instead: instead.clone(), went_as })
    }

    /// If it comes back with what was written and not judged when it went, it is held under the id of what it now is.
    fn held_as_kept(&self, row: UpperRow, version: &Version, file: &File) -> Result<UpperRow> {
        let (Some(held), Some(kept)) = (&row.held, version.content) else { return Ok(row) };
        if held.is_of(kept.standing(), Some(kept.digest)) {
            return Ok(row);
        }
        let held = held.clone();
        let (old, new) = (self.shown_old(&row)?, Side::of_file(file.try_clone()?)?);
        let has_lines = compare::facts(&old, &new).measure.is_some();
        self.held_with(row, held, kept.digest, has_lines.then(|| (old.text(), new.text())))
    }

    fn make_upper_dir(&self, version: &Version) -> Result<NewUpper<'_>> {
        let new = self.store.create_upper_node(FileKind::Directory, 0)?;
        let place = self.store.upper_place(new.id());
        place.set_owner(Some(version.uid), Some(version.gid))?;
        place.set_mode(version.mode)?;
        place.set_times(file::to_timespec(version.mtime), file::to_timespec(version.mtime))?;
        place.sync_dir()?;
        Ok(new)
    }

    fn write_upper(&self, content: &File, (version, xattrs): (&Version, &[Xattr]), what: &What) -> Result<Content<'_>> {
        use std::os::unix::ffi::OsStrExt;
        let owner = (Some(version.uid), Some(version.gid));
        if *what == What::Symlink {
            let target = file::read_all(content, file::TARGET_BYTES_MAX)?;
            let new = self.store.create_upper_symlink(std::ffi::OsStr::from_bytes(&target))?;
            let place = self.store.upper_place(new.id());
            place.set_owner(owner.0, owner.1)?;
            place.sync_dir()?;
            return Ok(Content { new, file: None });
        }
        let upper = self.store.create_upper(version.mode)?;
        let fd = upper.file.as_fd();
        file::copy_content(content, &upper.file)?;
        file::set_owner(fd, owner.0, owner.1)?;
        for (name, value) in xattrs {
            xattr::set(fd, std::ffi::OsStr::from_bytes(name), value, XattrFlags::empty())?;
        }
        // Last: an access list changes the group bits.
        file::set_mode(fd, file::mode_beside_list(version.mode, version.group, Some(&upper.file))?)?;
        // It has the time at which it comes: what was built since it went is of other content. Not by the kernel's
        // clock, which lags by some milliseconds behind what the view may have shown.
        let now = file::to_timespec(file::now());
        file::set_times(fd, now, now)?;
        upper.file.sync_all()?;
        self.store.upper_place(upper.new.id()).sync_dir()?;
        Ok(Content { new: upper.new, file: Some(upper.file) })
    }

    /// Has a landing hold them when it is done, and keep the changes whose place they take as backups.
    pub(super) fn stage_returned(
        &self,
        returned: &[Returned<'_>],
        (operation, how): (&Operation, &UndoHow),
        landing: &mut Landing<'_>,
        epilogue: &mut Epilogue,
    ) -> Result<()> {
        for Returned { row, instead, went_as, .. } in returned {
            let path = row.path();
            let id = held_id(row)?;
            let superseded = |went: &ChangeId| (went.clone(), path.clone(), Fate::Superseded { by: id.clone() });
            epilogue.verdicts.extend(went_as.filter(|went| **went != id).map(superseded));
            let event = undone_event(self, path, operation, how).with(|event| event.id = Some(id.to_string()));
            let effect = match instead {
                None => Effect::HeldAgain { id },
                Some(instead) => {
                    epilogue.drop.push(instead.upper);
                    epilogue.verdicts.push(superseded(&instead.id));
                    self.stage_replaced(instead.upper, id, how, landing)?
                }
            };
            epilogue.events.push(event.doing([PathEffect::new(path, effect)]));
            epilogue.save.push(row.clone());
        }
        Ok(())
    }

    /// Keeps, as a backup, the change that is held here in the place of `by`, which supersedes it. Returns the effect by
    /// which an undo brings it back.
    fn stage_replaced(&self, id: UpperId, by: ChangeId, how: &UndoHow, landing: &mut Landing<'_>) -> Result<Effect> {
        let row = self.state.lock().uppers.row(id).cloned().ok_or(Error::Errno(libc::EBUSY))?;
        let side = self.row_side(&row)?;
        let content =
            side.stage(&self.store)?.ok_or(Error::Internal("what is to be held again instead has no content"))?;
        let backup = self.backup_there(row.path(), &side, &content, BackupKind::Discarded, &how.review.by);
        let effect = discarded_for(Some(by), &row, &side, Some(content.digest))?;
        landing.keep(content, backup);
        Ok(effect)
    }

    /// True if something else has come to a path where one is to be held, or has changed what it is to be held over.
    pub(super) fn is_crossed(&self, state: &State, returned: &[Returned<'_>]) -> Result<bool> {
        for one in returned {
            let now = self.meta_below(one.row.path())?;
            let hides = || Ok::<_, Error>(one.instead.is_none() && self.hidden_by(&one.row)?.is_some());
            if !is_same(one.below.as_ref(), now.as_ref()) || state.is_taken(one) || hides()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl State {
    /// True if something else is where the change is to be held.
    fn is_taken(&self, one: &Returned<'_>) -> bool {
        let stands = |instead: &Instead| {
            let upper = self.uppers.get(instead.upper).filter(|upper| !upper.dirty && !upper.busy);
            upper.is_some_and(|upper| upper.row.held.as_ref().is_some_and(|held| held.id == instead.id))
        };
        let is_gone = one.instead.as_ref().is_some_and(|instead| !stands(instead));
        let ousts = |name: &RelPath| self.writer_ousted(&one.row, name).is_some();
        let is_others = |there| there != one.instead();
        is_gone || self.entries_of(&one.row).any(is_others) || one.row.names.iter().any(ousts)
    }

    /// What upper has at each name of a change that is not there, and of the file of lower that it was written to.
    fn entries_of<'a>(&'a self, row: &'a UpperRow) -> impl Iterator<Item = Option<UpperId>> + 'a {
        let of_file = row.base.shared_inode().map(|inode| self.uppers.of_inode(inode));
        row.names.iter().map(|name| self.uppers.at(name)).chain(of_file)
    }

    /// Returns the node of the file that a change was written to, which the kernel may know by another name alone.
    fn node_of(&self, row: &UpperRow) -> Option<NodeId> {
        let of_file = || self.nodes.of_lower(row.base.shared_inode()?.key());
        self.nodes.at(row.path()).or_else(of_file)
    }

    /// Returns the pid of a program that has a file at a name of the change open for writing and could not go on with the
    /// change: that is a symlink or a directory, or comes to another node.
    fn writer_ousted(&self, row: &UpperRow, name: &RelPath) -> Option<u32> {
        let node = self.nodes.at(name)?;
        let goes_on = matches!(row.what, What::File | What::Whiteout) && self.nodes.at(row.path()) == Some(node);
        let mut writers = self.handles_on(node).filter(|handle| !goes_on && handle.access == Access::Write);
        writers.next().map(|handle| handle.opener.pid)
    }

    /// Holds a change again, over what the same landing has `put` there, if anything. Its entry is claimed: until the
    /// hold is recorded, nothing else may end it.
    pub(super) fn returned(&mut self, one: Returned<'_>, put: Option<Meta>) -> UpperRow {
        let Returned { mut row, below, content, instead, .. } = one;
        self.epoch += 1;
        if let Some(instead) = instead {
            self.uppers.remove(instead.upper);
        }
        if let Some(meta) = put {
            row.base.below = Below::of(Some(&meta));
        }
        let node = self.node_of(&row);
        let has_others = node.is_some_and(|node| self.nodes.has_several_paths(node));
        match (&row.what, below) {
            (What::Whiteout, Some(was)) => {
                self.note_taken(row.path());
                self.unnamed_at(row.path(), &was);
            }
            // Held over one name of a file: the others go on as they are, and this is none of them any more.
            (What::File, Some(was)) if was.links > 1 && !row.base.is_shared() && has_others => {
                self.nodes.unname_path(row.path());
            }
            (What::File | What::Symlink | What::Whiteout | What::Dir | What::Node, _) => {}
        }
        // Lower has nothing there, whatever it had when the kernel looked.
        for name in row.further_names() {
            if self.nodes.at(name) != node {
                self.nodes.unname_path(name);
            }
        }
        self.uppers.insert(Upper { busy: true, ..Upper::held(row.clone()) });
        if let Some(Content { new, file }) = content {
            self.read_on_in(&row, new.keep(), file);
        }
        row
    }

    /// Handles on the file go on with what is held of it now, and write there.
    fn read_on_in(&mut self, row: &UpperRow, id: UpperId, file: Option<File>) {
        let returned = self.returned_to(row.path());
        let (Some(file), Some(node)) = (file, self.node_of(row)) else { return };
        self.nodes.set_lower(node, row.base.shared_inode().map(Stamp::key));
        let open = self.nodes.open_on(node).filter(|open| !open.backing().is_orphan());
        if let Some(open) = returned.as_ref().or(open).cloned() {
            open.set_backing(&mut self.nodes, Backing::Upper(id, Arc::new(file)));
            // What was written to it while it had no name is gone.
            open.forget_rewritten();
        }
    }
}

/// The outcome for a change that is held again.
pub(super) fn outcome(row: &UpperRow) -> Outcome {
    let mut outcome = Outcome::new(Done::Held, row.path().clone());
    outcome.also = Also(row.further_names().to_vec());
    if let Some(held) = &row.held {
        outcome.id = Some(held.id.clone());
        outcome.kind = Some(held.kind);
        outcome.counts = Some(Counts::of(held.insertions, held.deletions, held.old_lines));
    }
    outcome
}

/// Completes the outcomes with the backups of the changes whose place was taken.
pub(super) fn note_backups(returning: &[Returning<'_>], outcomes: &mut [Outcome], names: &[String]) {
    let replacing = returning.iter().zip(outcomes).filter(|(one, _)| one.instead.is_some());
    for ((_, outcome), name) in replacing.zip(names) {
        outcome.backup = Some(name.clone());
    }
}

/// True if a change is based on what is about to come to its path.
fn stands_on(row: &UpperRow, coming: &Coming) -> bool {
    match (&row.base.below, coming.exists) {
        (Below::Nothing, exists) => !exists,
        (Below::Entry { .. }, false) => false,
        (Below::Entry { stamp, .. }, true) => {
            let as_judged = coming.content.is_some() && coming.content == row.base.content;
            // A change may have been judged against something older than what it was held over.
            as_judged || coming.looks == Some((stamp.size, stamp.mtime))
        }
    }
}

/// True if the directory of a path is held again with it: lower need not have it.
fn comes_with_its_dir(path: &RelPath, operation: &Operation) -> bool {
    operation.effects.iter().any(|done| match &done.effect {
        Effect::Discarded { row, .. } => row.what == What::Dir && done.path != *path && path.is_within(&done.path),
        _ => false,
    })
}

fn is_same(then: Option<&Meta>, now: Option<&Meta>) -> bool {
    match (then, now) {
        (None, None) => true,
        (Some(then), Some(now)) if now.is_dir() => then.number() == now.number(),
        (Some(then), Some(now)) => then.stamp().has_same_content(&now.stamp()),
        (None, Some(_)) | (Some(_), None) => false,
    }
}
