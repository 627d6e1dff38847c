//! Copy-up: before the first write, a file's content is copied to upper, and what lay below is remembered as its base.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::handles::{Backing, Handle, OpenFile};
use crate::diff::TEXT_BYTES_MAX;
use crate::model::{RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::judge::claim::Claim;
use crate::overlay::state::nodes::{NodeId, Nodes};
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::{Error, Overlay, Result, State};
use crate::policy::rules::{Action, HoldSource};
use crate::store::{self, Base, Below, NewUpper, UpperFile, UpperId, UpperRow, What};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::haste;
use crate::sys::tree::is_absent;

/// What a copy-up needs of the old content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Content,
    /// The set-id bits as well: nothing is written, and only a write clears them.
    ContentAndSetId,
    /// Only the metadata: the content is about to be emptied.
    Nothing,
    /// The same for a truncation that is complete by itself: the view shows the file empty only once that is recorded.
    NothingAtOnce,
}

impl Overlay {
    /// Returns the file that a write through `handle` to `open` goes to, noted as dirty. Copies up where needed.
    pub(super) fn writable(&self, open: &Arc<OpenFile>, keep: Keep, handle: &Handle) -> Result<Arc<File>> {
        if open.dirty.load(Ordering::SeqCst) {
            return Ok(open.file());
        }
        let _one_at_a_time = open.copying.lock();
        loop {
            self.find_any_name_below(open);
            // Not earlier: while this thread waited, another's copy may have landed, and the handle's stamp moved with it.
            let (backing, way, opened) = {
                let state = self.state.lock();
                (open.backing().clone(), state.way_back_of(open), handle.opened())
            };
            match backing {
                Backing::Orphan(file) | Backing::Lower(file)
                    if self.comes_back(open, way.as_ref(), (&file, keep))? => {}
                Backing::Orphan(file) if open.is_orphan(&file) => return Ok(file),
                // Another operation has put something in its place meanwhile, and the file goes on with that.
                Backing::Orphan(_) => {}
                Backing::Upper(id, file) if self.mark_written(open, id)? => return Ok(file),
                // It was switched to lower, or to an entry of its own, between the two looks.
                Backing::Upper(id, _) if open.upper() != Some(id) => {}
                Backing::Upper(..) => return Err(Error::Errno(libc::ESTALE)),
                Backing::Lower(lower) => self.copy_up(open, &lower, keep, opened)?,
            }
        }
    }

    /// If the name of a file that is about to be written was taken below, finds another that it still has. Without a name,
    /// what is written would be in no file.
    fn find_any_name_below(&self, open: &OpenFile) {
        let Backing::Lower(lower) = open.backing().clone() else { return };
        let is_nameless = || self.state.lock().nodes.path(open.node).is_err();
        if !is_nameless() {
            return;
        }
        self.find_new_name(&lower);
        if is_nameless()
            && let Err(err) = self.learn_any_name(&lower)
        {
            log::warn!("look for a name of a file that is written to: {err}");
        }
        if !is_nameless() {
            // If the name that it has now goes, it was not taken by a person.
            *open.taken_from.lock() = None;
        }
    }

    /// A file without a name may have been renamed below: the kernel tells its new name.
    fn find_new_name(&self, lower: &File) {
        let Some(path) = self.lower.path_of(lower.as_fd()) else { return };
        match self.learn_name(&path) {
            // The deletion of that name may be held: then the view does not have it.
            Err(err) if err.code() != libc::ENOENT => log::warn!("look for {path}, which is written to: {err}"),
            Ok(()) | Err(_) => {}
        }
    }

    /// A file that has no name in the view may still have one below, whose deletion waits for review. It gets an inode of
    /// its own before its looks change, so that what is confirmed or discarded there stays as it was.
    pub(super) fn part_if_nameless(&self, node: NodeId) -> Result<()> {
        let open = {
            let state = self.state.lock();
            if state.nodes.path(node).is_ok() { None } else { state.nodes.open_on(node).cloned() }
        };
        let Some(open) = open else { return Ok(()) };
        let Backing::Lower(lower) = open.backing().clone() else { return Ok(()) };
        if Meta::of(lower.as_fd()).doing(|| "stat an unlinked file".to_owned())?.links == 0 {
            return Ok(());
        }
        let _one_at_a_time = open.copying.lock();
        self.find_new_name(&lower);
        self.copy_up(&open, &lower, Keep::ContentAndSetId, None)?;
        self.note_room(&open, &open.file())
    }

    /// The same for every open file that was deleted or replaced and still has this inode, which is about to become
    /// another file.
    pub(in crate::overlay) fn part_nameless_from(&self, below: &Meta) -> Result<()> {
        let nodes: Vec<NodeId> = {
            let state = self.state.lock();
            let nodes = state.handles.values().map(|handle| handle.node);
            nodes.filter(|node| state.nodes.has_lower(*node, &below.stamp())).collect()
        };
        nodes.into_iter().try_for_each(|node| self.part_if_nameless(node))
    }

    /// Switches what is open from lower to a copy of it, unless something else is open by now. Under `copying`.
    fn copy_up(&self, open: &Arc<OpenFile>, lower: &Arc<File>, keep: Keep, opened: Option<Stamp>) -> Result<()> {
        let (upper, meta) = self.copy_to_enter(lower, keep)?;
        // Of what is written to during the copy the entry may have something that the writer has not seen.
        let now = Meta::of(lower.as_fd()).doing(|| "stat a file that was copied up".to_owned())?;
        let moved_on = self.has_moved_on(open.node, &opened.unwrap_or(meta.stamp()), &now, lower);
        self.enter_copied(open, upper, (lower, &meta), keep, moved_on)
    }

    /// Returns whether lower has other content by now than when the writer opened it. If only the ctime has moved, and
    /// not because of another name, someone may have written and put the mtime back; that is assumed unless the digest
    /// known of the content says otherwise.
    fn has_moved_on(&self, node: NodeId, opened: &Stamp, now: &Meta, lower: &File) -> bool {
        if !opened.has_same_content(&now.stamp()) {
            return true;
        }
        if opened.ctime == now.ctime || now.links > 1 {
            return false;
        }
        let Ok(path) = self.state.lock().nodes.path(node) else { return true };
        if self.action(&path, FileKind::Regular) == Action::Pass {
            // No digest is known of a path that passes, so nothing could say otherwise.
            return false;
        }
        let known = self.state.lock().digest_known(&path, opened).filter(|_| now.size <= TEXT_BYTES_MAX);
        known.is_none() || file::digest(lower).ok() != known
    }

    /// Returns a copy of what is open, on its way into the view, and the metadata of the original.
    pub(super) fn copy_to_enter(&self, opened: &File, keep: Keep) -> Result<(UpperFile<'_>, Meta)> {
        let meta = Meta::of(opened.as_fd()).doing(|| "stat a file to copy up".to_owned())?;
        let bytes = match keep {
            Keep::Content | Keep::ContentAndSetId => meta.blocks.saturating_mul(512),
            Keep::Nothing | Keep::NothingAtOnce => 0,
        };
        haste::may_take(bytes)?;
        self.check_may_change(bytes)?;
        let upper = self.store.create_upper(meta.mode)?;
        let copied = copy_file(opened, &meta, &upper.file, keep, self.grants.suid);
        copied.doing(|| "copy up".to_owned())?;
        Ok((upper, meta))
    }

    /// Copies the content of an upper entry to a new one.
    pub(in crate::overlay) fn copy_of_upper(&self, id: UpperId) -> Result<(NewUpper<'_>, What)> {
        let meta = self.store.upper_meta(id)?;
        self.check_may_change(meta.blocks.saturating_mul(512))?;
        if meta.kind == FileKind::Symlink {
            let target = self.store.upper_place(id).read_symlink()?;
            return Ok((self.store.copy_upper_symlink(&target, &meta)?, What::Symlink));
        }
        let (file, upper) = (self.store.read_upper(id)?, self.store.create_upper(meta.mode)?);
        copy_file(&file, &meta, &upper.file, Keep::ContentAndSetId, self.grants.suid)?;
        Ok((upper.new, What::File))
    }

    /// Upper content that is a copy of a file or symlink of lower.
    pub(in crate::overlay) fn copy_to_upper(&self, source: &RelPath) -> Result<(NewUpper<'_>, What)> {
        let doing = || format!("copy {source}");
        let meta = self.lower.stat(source).doing(doing)?.ok_or(Error::Errno(libc::ENOENT))?;
        self.check_may_change(meta.blocks.saturating_mul(512))?;
        if meta.kind == FileKind::Symlink {
            let target = self.lower.place(source)?.read_symlink().doing(doing)?;
            return Ok((self.store.copy_upper_symlink(&target, &meta)?, What::Symlink));
        }
        let file = self.lower.open_to_read(source).doing(doing)?;
        let upper = self.store.create_upper(meta.mode)?;
        // As with a copy-up: privileges do not travel with content.
        copy_file(&file, &meta, &upper.file, Keep::Content, self.grants.suid).doing(doing)?;
        Ok((upper.new, What::File))
    }

    /// Gives a file or symlink of lower a claimed entry of its own: what is about to be done to it waits for review by
    /// that rule, although its content is not written. Returns `None` if it is gone, is of another kind by now, or has an
    /// entry.
    pub(super) fn take_up(&self, path: &RelPath, kind: FileKind, rule: HoldSource) -> Result<Option<Claim<'_>>> {
        let (new, what, meta, file) = if kind == FileKind::Symlink {
            let Some(meta) = self.meta_below(path)? else { return Ok(None) };
            let (new, what) = self.copy_to_upper(path)?;
            (new, what, meta, None)
        } else {
            let lower = match self.lower.open_to_read(path) {
                Err(err) if is_absent(&err) => return Ok(None),
                opened => opened.doing(|| format!("open {path}"))?,
            };
            let (upper, meta) = self.copy_to_enter(&lower, Keep::ContentAndSetId)?;
            (upper.new, What::File, meta, Some(upper.file))
        };
        let row = UpperRow::of_copy(new.id(), path.clone(), what, &meta);
        let mut state = self.state.lock();
        let has_entry = || meta.links > 1 && state.uppers.of_inode(&meta.stamp()).is_some();
        if meta.kind != kind || state.uppers.at(path).is_some() || has_entry() {
            return Ok(None);
        }
        self.store.save_upper(&row)?;
        state.epoch += 1;
        state.uppers.insert(Upper { busy: true, because: vec![rule.reason()], ..Upper::written(row) });
        let id = new.keep();
        if let (Some(file), Some(open)) = (file, state.nodes.open_at(path).cloned())
            && matches!(*open.backing(), Backing::Lower(_))
        {
            open.set_backing(&mut state.nodes, Backing::Upper(id, Arc::new(file)));
        }
        Ok(Some(Claim { overlay: self, id, judged: false }))
    }

    /// Puts the copy of what was open into the view, unless something else is open by now. If the file has no name, only
    /// its open handles see the copy.
    pub(super) fn enter_copied(
        &self,
        open: &Arc<OpenFile>,
        UpperFile { new, file }: UpperFile<'_>,
        (copied, meta): (&Arc<File>, &Meta),
        keep: Keep,
        moved_on: bool,
    ) -> Result<()> {
        let mut state = self.state.lock();
        if !Arc::ptr_eq(&open.file(), copied) {
            return Ok(());
        }
        let path = state.nodes.path(open.node).ok();
        if path.is_none() {
            // Lower's file may get a name in the view later, but that file is not what is written here.
            state.nodes.set_lower(open.node, None);
        }
        // If its path has an entry, the file may be in the midst of its deletion.
        let Some(path) = path.filter(|path| state.uppers.at(path).is_none()) else {
            let is_lowers = matches!(*open.backing(), Backing::Lower(_));
            if is_lowers {
                open.set_backing(&mut state.nodes, Backing::Orphan(Arc::new(file)));
            }
            return Ok(());
        };
        let row = UpperRow::of_copy(new.id(), path, What::File, meta);
        match keep {
            Keep::NothingAtOnce => self.store.save_upper(&row)?,
            Keep::Content | Keep::ContentAndSetId | Keep::Nothing => self.store.save_upper_soon(&row)?,
        }
        state.uppers.insert(Upper { moved_on, ..Upper::written(row) });
        state.epoch += 1;
        open.set_backing(&mut state.nodes, Backing::Upper(new.keep(), Arc::new(file)));
        open.dirty.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Enters new upper content at a free name of the view, or at one whose deletion is held.
    pub(in crate::overlay) fn add_upper(&self, new: NewUpper<'_>, path: &RelPath, what: What) -> Result<UpperId> {
        self.enter_new(new, path, what, |row| self.store.save_upper(row))
    }

    /// The same for a file made by an open; its row is saved no later than its first write.
    pub(super) fn add_opened_upper(&self, new: NewUpper<'_>, path: &RelPath) -> Result<UpperId> {
        self.enter_new(new, path, What::File, |row| self.store.save_upper_soon(row))
    }

    fn enter_new(
        &self,
        new: NewUpper<'_>,
        path: &RelPath,
        what: What,
        save: impl FnOnce(&UpperRow) -> store::Result<()>,
    ) -> Result<UpperId> {
        let mut state = self.state.lock();
        let id = self.enter_at(&mut state, new, path, what, save)?;
        drop(state);
        self.name_changed(path)?;
        Ok(id)
    }

    /// The same under the caller's lock, which is released while whatever hides the name is judged.
    pub(super) fn enter_at(
        &self,
        state: &mut MutexGuard<'_, State>,
        new: NewUpper<'_>,
        path: &RelPath,
        what: What,
        save: impl FnOnce(&UpperRow) -> store::Result<()>,
    ) -> Result<UpperId> {
        self.wait_while_busy(state, path);
        let mut row = UpperRow::new(new.id(), path.clone(), what, Base::NOTHING);
        let hidden = state.uppers.upper_at(path).map(|upper| upper.row.clone());
        if let Some(hidden) = hidden {
            if hidden.what != What::Whiteout {
                // Something is back at this name since the caller looked.
                return Err(Error::Errno(libc::ESTALE));
            }
            // Deleted and made again is a modification of what was there (SPEC §4.3).
            row.base = hidden.base;
            row.held = hidden.held;
            self.store.replace_upper(hidden.id, &row)?;
            state.uppers.remove(hidden.id);
        } else {
            save(&row)?;
        }
        state.uppers.insert(Upper::written(row));
        Ok(new.keep())
    }

    /// Waits until what is at a path is judged, or has landed.
    pub(super) fn wait_while_busy(&self, state: &mut MutexGuard<'_, State>, path: &RelPath) {
        while state.uppers.upper_at(path).is_some_and(|upper| upper.busy) {
            self.changed.wait(state);
        }
    }

    /// Notes that an upper entry was written since it was last judged.
    pub(in crate::overlay) fn mark_dirty(&self, id: UpperId) -> Result<()> {
        self.note_dirty(&mut self.state.lock(), id).map(|_| ())
    }

    /// The same for a write through `open`. Returns false if the entry is gone.
    fn mark_written(&self, open: &OpenFile, id: UpperId) -> Result<bool> {
        let mut state = self.state.lock();
        while state.uppers.get(id).is_some_and(|upper| upper.given_away) {
            self.changed.wait(&mut state);
        }
        let noted = self.note_dirty(&mut state, id)?;
        // Under the lock, because taking the entry for judging clears this flag.
        open.dirty.store(noted, Ordering::SeqCst);
        Ok(noted)
    }

    fn note_dirty(&self, state: &mut State, id: UpperId) -> Result<bool> {
        let Some(upper) = state.uppers.get_mut(id) else { return Ok(false) };
        if upper.row.what.is_structure() {
            // Structure has attributes, but no content to judge.
            return Ok(true);
        }
        // An fsync holds until the content has landed; what is written after that was not synced.
        upper.synced &= !upper.is_landed();
        upper.dirty = true;
        if !upper.has_row() {
            self.store.save_upper(&upper.row)?;
            upper.recorded = Recorded::Row;
        }
        Ok(true)
    }

    /// Notes that whatever lands the entry's content must be durable. If it has landed already and is only still open,
    /// lower's content must be synced: returns its path.
    pub(super) fn note_synced(&self, id: UpperId) -> Option<RelPath> {
        let mut state = self.state.lock();
        while state.uppers.get(id)?.busy {
            // It may be landing right now, as content for which no fsync was asked.
            self.changed.wait(&mut state);
        }
        let upper = state.uppers.get_mut(id)?;
        upper.synced = true;
        upper.is_landed().then(|| upper.row.path().clone())
    }

    /// Drops an upper entry that has landed and is not being written. What is open goes on with lower, for writing as
    /// well: changes made below are to show, and not to be overwritten by what the entry had.
    pub(in crate::overlay) fn evict(&self, id: UpperId) {
        let mut state = self.state.lock();
        let Some(upper) = state.uppers.get(id).filter(|upper| upper.is_landed() && !upper.busy) else { return };
        let (path, base) = (upper.row.path().clone(), upper.row.base);
        if let Some(open) = state.nodes.open_of(id).cloned() {
            if open.is_unused() {
                state.nodes.let_go(&open);
            } else if base.is_shared() && open.writers() > 0 {
                // The file has several names, and one may be moved aside or replaced meanwhile: the writer goes on with
                // the others.
                return;
            } else if !self.goes_on_with_lower(&mut state.nodes, &open, (&path, &base)) {
                return;
            }
            if let Below::Entry { stamp, .. } = base.below {
                state.handles_on(open.node).for_each(|handle| handle.landed(stamp));
            }
        }
        state.uppers.remove(id);
        state.epoch += 1;
        drop(state);
        self.store.drop_upper_file(id);
    }

    /// Returns false if lower's file cannot be opened now, or was removed below while a writer has it open: as an orphan,
    /// what is written next would never be judged. What is open then stays as it is until the entry is let go again.
    fn goes_on_with_lower(&self, nodes: &mut Nodes, open: &OpenFile, (path, base): (&RelPath, &Base)) -> bool {
        let of_several_names = || {
            let names = nodes.paths(open.node).unwrap_or_default();
            self.open_of_file(base, std::iter::once(path).chain(&names)).map(|(_, file)| file)
        };
        let its_own = if base.is_shared() { of_several_names() } else { None };
        match its_own.map_or_else(|| self.lower.open_to_read(path), Ok) {
            Ok(lower) => open.goes_on_with(nodes, Arc::new(lower)),
            // Readers keep the content that they have open.
            Err(err) if is_absent(&err) && open.writers() == 0 => {
                open.set_backing(nodes, Backing::Orphan(open.file()));
            }
            Err(_) => return false,
        }
        true
    }
}

pub(super) fn copy_file(from: &File, meta: &Meta, to: &File, keep: Keep, keep_set_id: bool) -> std::io::Result<()> {
    // A write takes set-id bits and capabilities away, as the kernel does.
    let keep_set_id = keep_set_id || keep == Keep::ContentAndSetId;
    let mode = if keep_set_id { meta.mode } else { meta.mode & 0o1777 };
    let meta = Meta { mode, ..*meta };
    match keep {
        Keep::Content | Keep::ContentAndSetId => {
            // Who asked has metadata from before, and so sees where this is not what the original has.
            file::copy_as_found(from, to)?;
            file::copy_metadata(from.as_fd(), &meta, to.as_fd())
        }
        Keep::Nothing | Keep::NothingAtOnce => file::copy_looks(from.as_fd(), &meta, to.as_fd()),
    }
}
