//! Rename: to a free name it is structure and lands at once; over something it is a change of the target (SPEC §4.2).

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::carry::Move;
use super::error::Context;
use super::handles::Backing;
use super::lookup::Origin;
use super::nodes::{Left, NodeId};
use super::settle::{Claim, Settled};
use super::uppers::Upper;
use super::{Caller, Error, Overlay, Result, State};
use crate::model::{Reason, RelPath};
use crate::policy::rules::Action;
use crate::store::{self, Base, Below, Durability, Epilogue, Fate, Landing, UpperId, UpperRow, What, Writer};
use crate::sys::RenameFlags;
use crate::sys::cache;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::is_absent;

/// A file that grows while it is copied is copied again this often: a log gains a line, and not at every moment.
const COPY_TRIES: usize = 8;

/// Looks at both names before a rename gives up on what others do to them. Names themselves are the kernel's to guard:
/// only writing, judging and reviewing run beside a rename.
const TRIES: usize = 16;

/// One end of a rename.
pub(super) struct End {
    pub parent: NodeId,
    pub name: std::ffi::OsString,
    pub path: RelPath,
    origin: Origin,
    pub action: Action,
}

/// What is to stand at a target.
struct Taken {
    row: UpperRow,
    /// What stands there now, and goes.
    replaced: Option<UpperId>,
}

impl End {
    fn kind(&self) -> Option<FileKind> {
        match &self.origin {
            Origin::Lower(meta) | Origin::Upper(_, meta) => Some(meta.kind),
            Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    /// The mode of what stands there in lower, where the view shows that.
    pub fn mode_below(&self) -> Option<u32> {
        match &self.origin {
            Origin::Lower(meta) => Some(meta.mode),
            Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    fn upper(&self) -> Option<UpperId> {
        match &self.origin {
            Origin::Upper(id, _) | Origin::Hidden(id) => Some(*id),
            Origin::Nothing | Origin::Lower(_) => None,
        }
    }
}

impl Overlay {
    pub fn rename(
        &self,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()> {
        self.check_may_write(caller)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Error::Errno(libc::EINVAL));
        }
        let _changing = self.changing([parent, new_parent]);
        let mut tries = 1;
        loop {
            let epoch = self.state.lock().epoch;
            match self.rename_found((parent, name), (new_parent, new_name), flags, caller) {
                // Written to, landed or held since it was looked at.
                Err(err) if err.code() == libc::ESTALE && tries < TRIES && self.state.lock().epoch != epoch => {
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    /// Of what the two names stand for now; `ESTALE`, and nothing done, when they came to stand for something else.
    fn rename_found(
        &self,
        (parent, name): (NodeId, &OsStr),
        (new_parent, new_name): (NodeId, &OsStr),
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()> {
        let by = self.writer(caller);
        let from = self.end(parent, name, None, &by)?;
        let kind = from.kind().ok_or(Error::Errno(libc::ENOENT))?;
        let to = self.end(new_parent, new_name, Some(kind), &by)?;
        self.check_rename(&from, &to)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(&from, &to, caller);
        }
        if flags.contains(RenameFlags::NOREPLACE) && to.kind().is_some() {
            return Err(Error::Errno(libc::EEXIST));
        }
        match (kind, to.kind()) {
            (FileKind::Directory, Some(target)) if target != FileKind::Directory => Err(Error::Errno(libc::ENOTDIR)),
            // A deletion waits for review there: not even an empty directory may take its place, as in `mkdir`.
            (FileKind::Directory, _) if matches!(to.origin, Origin::Hidden(_)) => Err(Error::Errno(libc::EBUSY)),
            (FileKind::Directory, _) => self.rename_dir(&from, &to, caller),
            (_, Some(FileKind::Directory)) => Err(Error::Errno(libc::EISDIR)),
            _ => self.rename_file(&from, &to, caller),
        }
    }

    fn end(&self, parent: NodeId, name: &OsStr, made_as: Option<FileKind>, by: &Writer) -> Result<End> {
        let path = match made_as {
            Some(_) => self.new_path(parent, name)?,
            None => self.state.lock().nodes.child_path(parent, name)?,
        };
        let origin = self.origin_by_name(&path)?;
        let mut end = End { parent, name: name.to_owned(), path, origin, action: Action::Auto };
        let kind = end.kind().or(made_as).unwrap_or(FileKind::Regular);
        end.action = self.action_by(&end.path, kind, by);
        Ok(end)
    }

    fn check_rename(&self, from: &End, to: &End) -> Result<()> {
        for end in [from, to] {
            if matches!(end.action, Action::Deny | Action::Freeze) {
                return Err(self.denied(&end.path));
            }
        }
        Ok(())
    }

    fn rename_file(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if from.path == to.path || self.same_file(from, to) {
            return Ok(());
        }
        self.check_in_its_own_place(from)?;
        let both_pass = from.action == Action::Pass && to.action == Action::Pass;
        if let (Origin::Lower(meta), true, false) = (&from.origin, is_special(&from.origin), both_pass) {
            return self.rename_special(from, to, meta, caller);
        }
        let replaces = !matches!(to.origin, Origin::Nothing);
        if replaces {
            self.keep_replaced(to);
        }
        let renamed = self.move_file(from, to, caller);
        if replaces && renamed.is_err() {
            self.forget_replaced(to);
        }
        renamed
    }

    fn move_file(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if to.action == Action::Pass {
            return self.move_to_passing(from, to);
        }
        let judged = self.is_judged_there(from, to)?;
        match &from.origin {
            Origin::Lower(_) if !judged => self.move_below(from, to, caller),
            // Its content is another name's, which keeps it: the caller copies what the view shows.
            Origin::Lower(meta) if self.is_changed_elsewhere(meta) => Err(Error::Errno(libc::EXDEV)),
            Origin::Lower(meta) => self.move_over(from, to, meta, caller),
            Origin::Upper(id, _) if !judged => self.move_upper(from, to, *id),
            // The same, the other way round: its content is that of other names, too.
            Origin::Upper(id, meta) if meta.links > 1 && self.is_shared(*id) => Err(Error::Errno(libc::EXDEV)),
            Origin::Upper(id, _) => self.move_upper_over(from, to, *id, caller),
            Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }

    /// Whether a file is judged by being renamed: what comes is a change of something, or what goes is reviewed. What
    /// comes from where nobody judges comes as a copy: somebody may have it open there, or by another name, and go on
    /// writing.
    fn is_judged_there(&self, from: &End, to: &End) -> Result<bool> {
        if !matches!(to.origin, Origin::Nothing) || is_gated(to.action) || from.action == Action::Pass {
            return Ok(true);
        }
        let below = self.lower.stat(&from.path).doing(|| format!("stat {}", from.path))?;
        let leads_out = || match &from.origin {
            Origin::Lower(meta) if meta.kind == FileKind::Symlink => self.leads_out_there(&from.path, &to.path),
            Origin::Lower(_) | Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => Ok(false),
        };
        Ok((matches!(from.action, Action::Hold(_)) && below.is_some())
            || self.is_used_by_another(&from.path, &to.path)?
            || leads_out()?)
    }

    /// To where nobody judges goes only what nobody would miss here, and what has no other name here: else the caller
    /// copies, and its deletion here is judged.
    fn move_to_passing(&self, from: &End, to: &End) -> Result<()> {
        let may = match &from.origin {
            Origin::Lower(_) if from.action == Action::Pass => true,
            Origin::Lower(_) => self.is_fresh(&from.path) && !self.has_other_names(&from.path)?,
            Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => false,
        };
        match may && to.upper().is_none() {
            true => self.rename_below(from, to),
            false => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// In lower, where names that the view does not show any more count, too.
    fn has_other_names(&self, path: &RelPath) -> Result<bool> {
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        Ok(meta.is_some_and(|meta| meta.links > 1))
    }

    /// FIFOs, sockets and devices have no content to judge. What has some goes by a deletion of its own: `EXDEV` makes
    /// programs remove it first.
    fn rename_special(&self, from: &End, to: &End, meta: &Meta, caller: &Caller) -> Result<()> {
        if from.action == Action::Pass && self.is_privileged(meta) {
            return Err(Error::Errno(libc::EPERM));
        }
        match &to.origin {
            Origin::Nothing => self.move_below(from, to, caller),
            Origin::Lower(_) if is_special(&to.origin) => self.move_below(from, to, caller),
            Origin::Lower(_) | Origin::Upper(..) | Origin::Hidden(_) => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// What stands at the target is kept on its node, until the kernel forgets it: an open that found it a moment before
    /// the rename gets what it found, and not an error.
    fn keep_replaced(&self, to: &End) {
        let (Origin::Lower(meta) | Origin::Upper(_, meta)) = &to.origin else { return };
        // What cannot be opened could not have been opened a moment before either.
        let left = match &to.origin {
            _ if !meta.is_file() => None,
            Origin::Upper(id, _) => self.store.open_upper(*id).ok().map(|file| Left::Judged(Arc::new(file))),
            _ => super::open_lower(&self.lower, &to.path).ok().map(|file| match to.action {
                Action::Pass => Left::Passed(Arc::new(file), meta.key()),
                _ => Left::Judged(Arc::new(file)),
            }),
        };
        let mut state = self.state.lock();
        let node = state.nodes.child(to.parent, &to.name);
        if let Some(node) = node.and_then(|node| state.nodes.get_mut(node).ok()) {
            (node.removed, node.left) = (Some(*meta), left);
        }
    }

    fn forget_replaced(&self, to: &End) {
        let mut state = self.state.lock();
        let node = state.nodes.child(to.parent, &to.name);
        if let Some(node) = node.and_then(|node| state.nodes.get_mut(node).ok()) {
            (node.removed, node.left) = (None, None);
        }
    }

    /// What took the place of a directory that waits to be removed is judged with it: the caller copies.
    fn check_in_its_own_place(&self, end: &End) -> Result<()> {
        let Origin::Upper(..) = end.origin else { return Ok(()) };
        let below = self.lower.stat(&end.path).doing(|| format!("stat {}", end.path))?;
        match below.is_some_and(|meta| meta.is_dir()) {
            true => Err(Error::Errno(libc::EXDEV)),
            false => Ok(()),
        }
    }

    /// Two names of one file: POSIX has rename do nothing.
    fn same_file(&self, from: &End, to: &End) -> bool {
        match (&from.origin, &to.origin) {
            (Origin::Lower(a), Origin::Lower(b)) => a.key() == b.key(),
            (Origin::Upper(a, _), Origin::Upper(b, _)) => a == b,
            (Origin::Upper(id, _), Origin::Lower(meta)) | (Origin::Lower(meta), Origin::Upper(id, _)) => {
                self.state.lock().uppers.of_inode(meta.device, meta.inode) == Some(*id)
            }
            _ => false,
        }
    }

    /// Whether a change of this inode is held or being written under another of its names.
    fn is_changed_elsewhere(&self, meta: &Meta) -> bool {
        meta.links > 1 && self.state.lock().uppers.of_inode(meta.device, meta.inode).is_some()
    }

    /// Between or into paths that nobody judges: the kernel's own rename. In lower and in the nodes at once: who looks sees
    /// both names before it or both after it.
    fn rename_below(&self, from: &End, to: &End) -> Result<()> {
        let (source, target) = (self.lower.place(&from.path)?, self.lower.place(&to.path)?);
        let renamed = {
            let mut state = self.state.lock();
            source.rename(&target, RenameFlags::empty())?;
            state.seen.remove(&from.path);
            state.renamed(from, to)
        };
        self.tell_renamed(to, renamed);
        Ok(())
    }

    fn is_shared(&self, id: UpperId) -> bool {
        self.state.lock().uppers.get(id).is_some_and(|upper| upper.row.base.is_shared())
    }

    /// A file of lower over something: the target is judged by the source's content, and the source goes.
    fn move_over(&self, from: &End, to: &End, meta: &Meta, caller: &Caller) -> Result<()> {
        let claimed = self.claim_target(to)?;
        let upper = self.copy_source(from)?;
        let synced = self.is_on_disk(&from.path, meta)?;
        let taken = self.take_target(to, upper, meta.kind)?;
        let hiding = self.whiteout(&from.path, meta);
        let whiteout = hiding.row.id;
        // The going of what a rule holds is reviewed by itself.
        let gated = matches!(from.action, Action::Hold(_));
        let renamed = {
            let mut state = self.state.lock();
            // What nobody judges goes by itself, whoever writes to it meanwhile.
            let goes_along = !gated && from.action != Action::Pass;
            let takes_along = goes_along.then(|| (from.path.clone(), meta.stamp()));
            let saved = taken.replaced.is_some();
            let entry = Upper { saved, synced, takes_along, ..Upper::written(taken.row.clone()) };
            let hidden_already = state.uppers.at(&from.path).is_some();
            if hidden_already || !self.put_over(&mut state, to, entry, taken.replaced)? {
                drop(state);
                self.store.drop_upper_file(upper)?;
                return Err(Error::Errno(libc::ESTALE));
            }
            state.uppers.insert(hiding);
            state.renamed_as_copy(from, to)
        };
        drop(claimed);
        self.drop_replaced(taken.replaced)?;
        self.tell_renamed(to, renamed);
        self.rebind(&to.path, upper);
        let settled = match self.settle(upper, &self.writer(caller)) {
            Ok(settled) => settled,
            // The source went already, and the journal tells: the next start finishes it.
            Err(err @ Error::Store(store::Error::Unrecorded(_))) => return Err(err),
            // Nothing was there but lower's own, which still is: as if nobody had renamed.
            Err(err) if to.upper().is_none() => return Err(self.undo_move_over(from, to, upper, whiteout, err)),
            // What was there is this entry's already: it waits for review, and the source with it.
            Err(_) => self.settle_because(upper, &self.writer(caller), vec![Reason::Backup])?,
        };
        match settled {
            Settled::Landed | Settled::Unchanged | Settled::Held(_) if gated => {
                self.settle(whiteout, &self.writer(caller)).map(|_| ())
            }
            Settled::Landed | Settled::Unchanged if from.action != Action::Pass => {
                self.state.lock().uppers.remove(whiteout);
                Ok(())
            }
            Settled::Landed | Settled::Unchanged => self.remove_passed_source(from, whiteout),
            Settled::Held(_) => self.remove_source(from, whiteout, meta, upper),
            Settled::Postponed => {
                // Somebody goes on writing: the database must know of the content before its source goes.
                self.mark_dirty(upper)?;
                self.remove_source(from, whiteout, meta, upper)
            }
        }
    }

    /// What the source has, as new upper content. One that passes may be growing meanwhile.
    fn copy_source(&self, from: &End) -> Result<UpperId> {
        let mut tries = 1;
        loop {
            match self.copy_to_upper(&from.path) {
                Err(err) if err.code() == libc::EIO && from.action == Action::Pass && tries < COPY_TRIES => tries += 1,
                copied => return Ok(copied?.0),
            }
        }
    }

    /// Whether a file's content would survive a power cut. A copy of it must survive one too: programs save by writing
    /// a temporary file, syncing it, and renaming it.
    fn is_on_disk(&self, path: &RelPath, meta: &Meta) -> Result<bool> {
        if meta.kind != FileKind::Regular {
            return Ok(false);
        }
        let file = super::open_lower(&self.lower, path).doing(|| format!("open {path}"))?;
        // Where the kernel does not tell, it is taken to be: that costs a sync, the other mistake costs the content.
        Ok(cache::is_written_out(file.as_fd()).unwrap_or(true))
    }

    /// Keeps whatever stands at the target from being judged, reviewed or let go of.
    fn claim_target(&self, to: &End) -> Result<Option<Claim<'_>>> {
        match to.upper() {
            Some(id) => self.claim(id).map(|(_, claimed)| Some(claimed)),
            None => Ok(None),
        }
    }

    /// The entry that is to stand at the target, which the caller has claimed, with the base of whatever stands there.
    fn take_target(&self, to: &End, id: UpperId, kind: FileKind) -> Result<Taken> {
        let what = if kind == FileKind::Symlink { What::Symlink } else { What::File };
        let names = vec![to.path.clone()];
        let free = Base::of(Below::Nothing);
        let mut replaced = None;
        let (base, held) = match &to.origin {
            Origin::Nothing => (free, None),
            // Takes the place of this one name; the file's other names keep their content.
            Origin::Lower(meta) => {
                let below = Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: 1 };
                (Base::of(below), None)
            }
            Origin::Hidden(old) | Origin::Upper(old, _) => {
                let row = self.state.lock().uppers.get(*old).map(|upper| upper.row.clone());
                let row = row.ok_or(Error::Errno(libc::ESTALE))?;
                if !row.names.contains(&to.path) || self.leave_to_other_name(&to.path, *old, &row)? {
                    // One name of an inode that has others below: the change stays with them.
                    let meta = self.lower.stat(&to.path).doing(|| format!("stat {}", to.path))?;
                    let below = meta.map_or(Below::Nothing, |meta| Below::Entry {
                        stamp: meta.stamp(),
                        mode: meta.mode,
                        links: 1,
                    });
                    (Base::of(below), None)
                } else {
                    replaced = Some(*old);
                    (row.base.of_one_name(), row.held)
                }
            }
        };
        Ok(Taken { row: UpperRow { id, names, what, base, held }, replaced })
    }

    /// Puts an entry at the target, in the place of the one that it replaces. False, and nothing done, when something
    /// else stands there: it was opened and written to since.
    fn put_over(&self, state: &mut State, to: &End, entry: Upper, replaced: Option<UpperId>) -> Result<bool> {
        if state.uppers.at(&to.path) != replaced {
            return Ok(false);
        }
        match replaced {
            Some(old) => {
                self.store.replace_upper(old, &entry.row)?;
                state.take_out(&to.path, old);
            }
            None if entry.saved => self.store.save_upper(&entry.row)?,
            None => {}
        }
        state.epoch += 1;
        state.uppers.insert(entry);
        Ok(true)
    }

    fn drop_replaced(&self, replaced: Option<UpperId>) -> Result<()> {
        replaced.map_or(Ok(()), |old| Ok(self.store.drop_upper_file(old)?))
    }

    /// Who has the source open reads and writes what is at the target now.
    pub(super) fn rebind(&self, path: &RelPath, id: UpperId) {
        let state = self.state.lock();
        let is_orphan = |node| state.nodes.get(node).ok()?.open.as_ref().map(|open| open.backing().is_orphan());
        if state.nodes.at(path).and_then(is_orphan) != Some(true) {
            drop(state);
            self.bind(path, id);
        }
    }

    /// Who has a file open whose entry another one has replaced goes on with that.
    fn bind(&self, path: &RelPath, id: UpperId) {
        let Ok(file) = self.store.open_upper(id) else { return };
        let mut state = self.state.lock();
        let Some(node) = state.nodes.at(path) else { return };
        state.nodes.set_lower(node, None);
        if let Ok(found) = state.nodes.get(node)
            && let Some(open) = &found.open
        {
            open.set_backing(Backing::Upper(id, Arc::new(file)));
        }
    }

    fn undo_move_over(&self, from: &End, to: &End, upper: UpperId, whiteout: UpperId, err: Error) -> Error {
        let mut state = self.state.lock();
        state.uppers.remove(whiteout);
        state.uppers.remove(upper);
        state.epoch += 1;
        state.nodes.unname(to.parent, &to.name);
        state.nodes.unname(from.parent, &from.name);
        drop(state);
        // The kernel will take the rename for one that was not made, and both names for what they were.
        for end in [from, to] {
            self.tell(|observer| observer.entry_changed(end.parent, &end.name));
        }
        if let Err(second) = self.store.remove_upper(upper).and_then(|()| self.store.drop_upper_file(upper)) {
            log::error!("undo the rename of {}: {second}", from.path);
        }
        err
    }

    /// The target is held: a fresh source leaves no trace, nor does one that nobody judges; an older one waits for review
    /// like the target.
    fn remove_source(&self, from: &End, whiteout: UpperId, meta: &Meta, upper: UpperId) -> Result<()> {
        // Whoever judges it at this moment, for a close, may be taking the source along.
        let claimed = match self.claim(upper) {
            Ok((_, claimed)) => Some(claimed),
            Err(err) if err.code() == libc::ESTALE => None,
            Err(err) => return Err(err),
        };
        let synced = self.state.lock().uppers.get_mut(upper).is_some_and(|upper| {
            upper.takes_along = None;
            upper.synced
        });
        drop(claimed);
        if synced {
            // The source is the only copy on disk, and it goes.
            self.store.open_upper(upper)?.sync_all().doing(|| format!("sync the copy of {}", from.path))?;
            self.store.sync()?;
        }
        if from.action == Action::Pass {
            return self.remove_passed_source(from, whiteout);
        }
        if !self.lower.exists(&from.path).doing(|| format!("stat {}", from.path))? {
            // It went with the holding.
            self.state.lock().uppers.remove(whiteout);
            return Ok(());
        }
        if !self.loses_nothing(&from.path) {
            return self.hold_structure(whiteout, Reason::Parent);
        }
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.remove(&self.lower, &from.path, meta.stamp())?;
        let anchors = self.state.lock().anchor_left(&from.path).into_iter().collect();
        let applied = landing.promise(Epilogue { anchors, ..Epilogue::default() })?.apply()?;
        {
            let mut state = self.state.lock();
            state.left(&from.path);
            state.uppers.remove(whiteout);
        }
        self.finish(applied)?;
        Ok(())
    }

    /// Where nobody judges, a name goes at once: its content is the target's, landed or held.
    fn remove_passed_source(&self, from: &End, whiteout: UpperId) -> Result<()> {
        match self.lower.place(&from.path)?.unlink() {
            // Removed below meanwhile.
            Err(err) if is_absent(&err) => {}
            other => other.doing(|| format!("remove {}", from.path))?,
        }
        let mut state = self.state.lock();
        state.uppers.remove(whiteout);
        state.epoch += 1;
        Ok(())
    }

    /// An upper entry over something: it is judged against what the target was, and what it was based on is deleted.
    fn move_upper_over(&self, from: &End, to: &End, id: UpperId, caller: &Caller) -> Result<()> {
        // In one order, so that two who need the same entries never wait for each other.
        let first = if to.upper() < Some(id) { self.claim_target(to)? } else { None };
        let (row, claimed) = self.claim(id)?;
        let second = if to.upper() > Some(id) { self.claim_target(to)? } else { None };
        let kind = from.kind().unwrap_or(FileKind::Regular);
        let taken = self.take_target(to, id, kind)?;
        let below = self.lower.stat(&from.path).doing(|| format!("stat {}", from.path))?;
        let hiding = below.map(|meta| self.whiteout(&from.path, &meta));
        let whiteout = hiding.as_ref().map(|hiding| hiding.row.id);
        let renamed = {
            let mut state = self.state.lock();
            let source = state.uppers.get(id);
            let (synced, because) = source.map(|source| (source.synced, source.because.clone())).unwrap_or_default();
            let target = UpperRow { what: row.what.clone(), ..taken.row };
            // Still claimed, until the claim is dropped.
            let entry = Upper { busy: true, synced, because, ..Upper::written(target) };
            if state.uppers.at(&to.path) != taken.replaced {
                return Err(Error::Errno(libc::ESTALE));
            }
            state.uppers.remove(id);
            self.put_over(&mut state, to, entry, taken.replaced)?;
            if let Some(hiding) = hiding {
                state.uppers.insert(hiding);
            }
            let renamed = state.renamed(from, to);
            // What it was copied up from stays behind, and is another file from now on.
            if let Some(node) = state.nodes.at(&to.path) {
                state.nodes.set_lower(node, None);
            }
            renamed
        };
        drop((first, claimed, second));
        self.drop_replaced(taken.replaced)?;
        self.tell_renamed(to, renamed);
        if let (Some(held), true) = (&row.held, row.names[0] == from.path) {
            let ended = (held.id.clone(), from.path.clone(), Fate::Ended);
            self.store.record_epilogue(&Epilogue { verdicts: vec![ended], ..Epilogue::default() })?;
        }
        if let Some(whiteout) = whiteout {
            self.settle(whiteout, &self.writer(caller))?;
        }
        self.settle(id, &self.writer(caller)).map(|_| ())
    }

    /// A directory with all that is in it. Held changes below it come along under new ids.
    fn rename_dir(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if to.path.is_within(&from.path) {
            return Err(Error::Errno(libc::EINVAL));
        }
        if to.kind().is_some() && !self.hidden_below(&to.path)?.is_empty() {
            // Empty in the view, and below it waits for deletions in it.
            return Err(Error::Errno(libc::EBUSY));
        }
        let moves = [Move { from: &from.path, to: &to.path }];
        if from.action == Action::Pass && to.action == Action::Pass {
            return self.relocate_dir(from, to, caller);
        }
        let lifted = self.lift(&self.survey(&moves, caller)?, caller)?;
        // Judged where it is, also when nothing was renamed.
        let renamed = self.relocate_dir(from, to, caller);
        self.settle_lifted(&lifted, caller).and(renamed)
    }

    /// Both paths change at once; each is judged by what it becomes.
    fn exchange(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if to.kind().is_none() {
            return Err(Error::Errno(libc::ENOENT));
        }
        if self.same_file(from, to) || from.path == to.path {
            return Ok(());
        }
        let is_dir = |end: &End| end.kind() == Some(FileKind::Directory);
        match (&from.origin, &to.origin, from.action == Action::Pass, to.action == Action::Pass) {
            (Origin::Lower(_), Origin::Lower(_), true, true) => self.exchange_below(from, to, caller),
            // In and out to where nobody judges: the caller copies.
            (_, _, true, false) | (_, _, false, true) => Err(Error::Errno(libc::EXDEV)),
            _ if is_dir(from) && is_dir(to) => self.exchange_dirs(from, to, caller),
            _ if is_dir(from) => self.exchange_with_dir(to, from, caller),
            _ if is_dir(to) => self.exchange_with_dir(from, to, caller),
            _ if is_special(&from.origin) && is_special(&to.origin) => self.exchange_below(from, to, caller),
            // One kind of thing in the place of another, of which only one has content that upper could hold.
            _ if is_special(&from.origin) || is_special(&to.origin) => Err(Error::Errno(libc::EXDEV)),
            _ => self.exchange_judged(from, to, caller),
        }
    }

    /// Directories with all that is in them.
    fn exchange_dirs(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if to.path.is_within(&from.path) || from.path.is_within(&to.path) {
            return Err(Error::Errno(libc::EINVAL));
        }
        let moves = [Move { from: &from.path, to: &to.path }, Move { from: &to.path, to: &from.path }];
        let lifted = self.lift(&self.survey(&moves, caller)?, caller)?;
        let exchanged = self.relocate_dirs(from, to, caller);
        self.settle_lifted(&lifted, caller).and(exchanged)
    }

    /// Two renames in one: each to a name that the other leaves. No content is lost by it, and both paths remember what
    /// they had. What would have to be judged at its new path the caller copies.
    fn exchange_with_dir(&self, file: &End, dir: &End, caller: &Caller) -> Result<()> {
        let action = self.action_by(&dir.path, file.kind().unwrap_or(FileKind::Regular), &self.writer(caller));
        let carried = self.survey(&[Move { from: &dir.path, to: &file.path }], caller)?;
        let plain = carried.is_empty() && action == Action::Auto && !is_gated(file.action);
        if !plain || self.is_used_by_another(&file.path, &dir.path)? {
            return Err(Error::Errno(libc::EXDEV));
        }
        self.relocate_file_and_dir(file, dir, caller)
    }

    fn exchange_judged(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        self.check_in_its_own_place(from)?;
        self.check_in_its_own_place(to)?;
        let (for_from, for_to) = (self.copy_of(to)?, self.copy_of(from)?);
        let from_kind = from.kind().unwrap_or(FileKind::Regular);
        let to_kind = to.kind().unwrap_or(FileKind::Regular);
        let at_from = self.take_target(from, for_from, to_kind)?;
        let at_to = self.take_target(to, for_to, from_kind)?;
        {
            let mut state = self.state.lock();
            let as_found = |end: &End, taken: &Taken| state.uppers.at(&end.path) == taken.replaced;
            if !as_found(from, &at_from) || !as_found(to, &at_to) {
                drop(state);
                self.store.drop_upper_file(for_from)?;
                self.store.drop_upper_file(for_to)?;
                return Err(Error::Errno(libc::ESTALE));
            }
            self.put_over(&mut state, from, Upper::written(at_from.row), at_from.replaced)?;
            self.put_over(&mut state, to, Upper::written(at_to.row), at_to.replaced)?;
            state.exchanged(from, to);
        }
        self.drop_replaced(at_from.replaced)?;
        self.drop_replaced(at_to.replaced)?;
        // Taking the targets has made orphans of both, and neither is one.
        self.bind(&from.path, for_from);
        self.bind(&to.path, for_to);
        self.settle(for_from, &self.writer(caller))?;
        self.settle(for_to, &self.writer(caller)).map(|_| ())
    }

    /// What the view has at one end, as new upper content.
    fn copy_of(&self, end: &End) -> Result<UpperId> {
        let Origin::Upper(id, meta) = &end.origin else { return Ok(self.copy_to_upper(&end.path)?.0) };
        let doing = || format!("copy {}", end.path);
        let (_row, _claimed) = self.claim(*id)?;
        if meta.kind == FileKind::Symlink {
            let target = self.store.upper_place(*id)?.read_symlink().doing(doing)?;
            return Ok(self.store.create_upper_symlink(&target)?);
        }
        let (file, copy) = (self.store.open_upper(*id)?, self.store.create_upper()?);
        file::copy_content(&file, &copy.file).doing(doing)?;
        file::copy_metadata(file.as_fd(), meta, copy.file.as_fd()).doing(doing)?;
        Ok(copy.id)
    }
}

/// FIFOs, sockets and devices.
fn is_special(origin: &Origin) -> bool {
    let has_content = |kind| matches!(kind, FileKind::Regular | FileKind::Symlink | FileKind::Directory);
    matches!(origin, Origin::Lower(meta) if !has_content(meta.kind))
}

/// Whether a rule reviews what comes to stand there.
fn is_gated(action: Action) -> bool {
    matches!(action, Action::Hold(_) | Action::GitConfig)
}
