//! Rename: to a free name it is structure and lands at once; over something it is a change of the target (SPEC §4.2).

use std::ffi::OsStr;
use std::sync::Arc;

use super::carry::{Cargo, Move};
use super::relocate::{How, Moving};
use crate::model::RelPath;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{Left, NodeId};
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::store::{DirLooks, UpperId, Writer};
use crate::sys::RenameFlags;
use crate::sys::file::{FileKind, Meta};

/// How often a rename looks at both names before it gives up because they keep changing. The kernel guards the names
/// themselves: only writing, judging and reviewing run beside a rename.
const TRIES: usize = 16;

/// One end of a rename.
pub(in crate::overlay) struct End {
    pub parent: NodeId,
    pub name: std::ffi::OsString,
    pub path: RelPath,
    pub origin: Origin,
    pub action: Action,
}

impl End {
    pub fn kind(&self) -> Option<FileKind> {
        self.origin.kind()
    }

    /// The upper entry of a held directory or node.
    pub fn structure(&self) -> Option<UpperId> {
        match &self.origin {
            Origin::Upper(id, meta) if meta.is_dir() || meta.kind.is_special() => Some(*id),
            Origin::Upper(..) | Origin::Lower(_) | Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    /// What lower has there, if the view shows it.
    pub fn below(&self) -> Option<&Meta> {
        match &self.origin {
            Origin::Lower(meta) => Some(meta),
            Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    /// The looks of that, as they are kept of an entry without content.
    pub fn looks_below(&self) -> Option<DirLooks> {
        self.below().map(DirLooks::of)
    }

    /// The same only for a directory, FIFO, socket or device: landings give files other inodes.
    pub fn lasting_below(&self) -> Option<&Meta> {
        self.below().filter(|meta| meta.is_dir() || meta.kind.is_special())
    }

    pub fn exists(&self) -> bool {
        self.kind().is_some()
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    pub fn upper(&self) -> Option<UpperId> {
        self.origin.upper()
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
        let _acting = self.acting([parent, new_parent]);
        let (from, to) = ((parent, name), (new_parent, new_name));
        let mut tries = 1;
        loop {
            let epoch = self.state.lock().epoch;
            match self.rename_found(from, to, flags, caller) {
                Err(Error::LooksAgain) => return Err(Error::LooksAgain),
                // Written to, landed or held since it was looked at.
                Err(err) if err.code() == libc::ESTALE && tries < TRIES && self.state.lock().epoch != epoch => {
                    tries += 1;
                }
                Err(err) => {
                    self.not_renamed([from, to], &err);
                    return Err(err);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// After a rename that failed, names that were set apart are the file's again. For those, and for both names after a
    /// fault, the kernel must look up again what they stand for.
    fn not_renamed(&self, names: [(NodeId, &OsStr); 2], err: &Error) {
        for (parent, name) in names {
            let was_apart = self.state.lock().nodes.rejoin(parent, name);
            if was_apart || err.is_fault() {
                self.tell(|observer| observer.entry_changed(parent, name));
            }
        }
    }

    /// Renames what the two names stand for now. `ESTALE`, with nothing done, if they came to stand for something else.
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
        self.check_rename(&from, &to, caller)?;
        let is_judged = from.action != Action::Pass || to.action != Action::Pass;
        let is_relocated = !to.exists() || from.is_dir() || to.is_dir() || flags.contains(RenameFlags::EXCHANGE);
        if is_judged && is_relocated {
            // A rename is an operation of its own: an undo reverses it apart from what came before and what comes next.
            self.go_ends(caller.pid);
        }
        self.rename_ends(&from, &to, kind, flags, caller)?;
        if is_judged && is_relocated {
            self.go_ends(caller.pid);
        }
        self.name_changed(&from.path).and_then(|()| self.name_changed(&to.path))
    }

    fn rename_ends(&self, from: &End, to: &End, kind: FileKind, flags: RenameFlags, caller: &Caller) -> Result<()> {
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        let is_nested = to.path.is_within(&from.path) || (is_exchange && from.path.is_within(&to.path));
        if is_nested && from.path != to.path {
            return Err(Error::Errno(libc::EINVAL));
        }
        self.note_anothers_within(&from.path, kind);
        let renaming = if is_exchange { self.renaming(&[from, to]) } else { self.renaming(&[from]) };
        let lifted = self.rename_standing(from, to, kind, flags, caller)?;
        // A permission program may want to look into the directory.
        drop(renaming);
        self.settle_lifted(&lifted, caller)
    }

    /// Renames while no program is at work in what is renamed. Returns what has come along and still has to be judged.
    fn rename_standing(
        &self,
        from: &End,
        to: &End,
        kind: FileKind,
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<Vec<UpperId>> {
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(from, to, caller);
        }
        if flags.contains(RenameFlags::NOREPLACE) && to.kind().is_some() {
            return Err(Error::Errno(libc::EEXIST));
        }
        if let Some(id) = from.structure() {
            return self.move_structure(from, to, id, caller).map(|()| Vec::new());
        }
        match (kind, to.kind()) {
            (FileKind::Directory, Some(target)) if target != FileKind::Directory => Err(Error::Errno(libc::ENOTDIR)),
            // Something is held there: the program makes a directory instead, which is held too, and copies into it.
            (FileKind::Directory, _) if self.waits_there(to) => Err(Error::Errno(libc::EXDEV)),
            (FileKind::Directory, _) => self.rename_dir(from, to, caller),
            (_, Some(FileKind::Directory)) => Err(Error::Errno(libc::EISDIR)),
            _ => self.rename_file(from, to, caller).map(|()| Vec::new()),
        }
    }

    /// True if a directory of lower cannot come to stand there without a review.
    fn waits_there(&self, to: &End) -> bool {
        match to.origin {
            Origin::Hidden(_) | Origin::Upper(..) => true,
            Origin::Lower(_) | Origin::Nothing => is_gated(to.action) || self.is_in_held_dir(&to.path),
        }
    }

    pub(in crate::overlay) fn end(
        &self,
        parent: NodeId,
        name: &OsStr,
        made_as: Option<FileKind>,
        by: &Writer,
    ) -> Result<End> {
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

    fn check_rename(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        for end in [from, to] {
            self.check_not_refused(&end.path, end.action, caller)?;
        }
        Ok(())
    }

    fn rename_file(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if from.path == to.path || self.same_file(from, to) {
            return Ok(());
        }
        self.check_in_its_own_place(&from.path, &from.origin)?;
        let both_pass = from.action == Action::Pass && to.action == Action::Pass;
        if let (Origin::Lower(meta), true, false) = (&from.origin, is_special(&from.origin), both_pass) {
            return self.rename_special(from, to, meta, caller);
        }
        if let Origin::Lower(meta) = &from.origin {
            self.note_first_by_any_name(&from.path, meta)?;
        }
        let replaces = !matches!(to.origin, Origin::Nothing);
        if let Origin::Lower(meta) = &to.origin {
            self.learn_other_name(&to.path, meta)?;
        }
        if replaces {
            self.keep_replaced(to);
        }
        let renamed = self.move_file(from, to, caller);
        match &renamed {
            Ok(()) => self.saw_free(&from.path, caller),
            Err(_) if replaces => self.forget_replaced(to),
            Err(_) => {}
        }
        renamed
    }

    fn move_file(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        if to.action == Action::Pass {
            return self.move_to_passing(from, to);
        }
        let judged = self.is_judged_there(from, to)?;
        if judged && (from.upper().is_some() || to.upper().is_some()) {
            self.set_apart(&[from])?;
            self.ask_ahead_of_rename(from, to, caller)?;
        }
        match &from.origin {
            Origin::Lower(_) if !judged => self.move_below(from, to, caller),
            Origin::Upper(id, _) if !judged => self.move_upper(from, to, *id, caller),
            Origin::Lower(meta) => match self.changed_by_other_name(meta) {
                Some(id) => self.move_name_over(from, to, id, caller),
                None => self.move_over(from, to, meta, caller),
            },
            Origin::Upper(id, meta) if meta.links > 1 => self.move_name_over(from, to, *id, caller),
            Origin::Upper(id, _) => self.move_upper_over(from, to, *id, caller),
            Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }

    /// True if a file is judged by being renamed: it changes something at its new path, or its going is reviewed. A file
    /// from a passing path arrives as a copy: a program may have it open there, or by another name, and go on writing.
    pub(super) fn is_judged_there(&self, from: &End, to: &End) -> Result<bool> {
        if !matches!(to.origin, Origin::Nothing) || is_gated(to.action) || from.action == Action::Pass {
            return Ok(true);
        }
        let waits = matches!(from.action, Action::Hold(_)) || self.is_in_held_dir(&to.path);
        let kind = from.kind().unwrap_or(FileKind::Regular);
        let is_below = || self.is_below(&from.path);
        let is_used = || self.is_used_by_another(&from.path, &to.path, kind);
        Ok((waits && is_below()?) || is_used()? || self.base_leads_out_there(&from.path, &to.path)?)
    }

    /// Renames to a passing path: from another one, or a file that came in this session and has no other name. Anything
    /// else the program copies (`EXDEV`), and its deletion here is judged.
    fn move_to_passing(&self, from: &End, to: &End) -> Result<()> {
        let may = match &from.origin {
            Origin::Lower(_) if from.action == Action::Pass => true,
            // Its removal from here is reviewed.
            Origin::Lower(_) if is_gated(from.action) => false,
            Origin::Lower(_) => self.is_fresh(&from.path) && !self.has_other_names(&from.path)?,
            Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => false,
        };
        match may && to.upper().is_none() {
            true => self.rename_below(from, to),
            false => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// True if the file has other names in lower; those that the view does not show any more count, too.
    fn has_other_names(&self, path: &RelPath) -> Result<bool> {
        Ok(self.meta_below(path)?.is_some_and(|meta| meta.links > 1))
    }

    /// FIFOs, sockets and devices have no content to judge. A target with content must go by a deletion of its own:
    /// `EXDEV` makes programs remove it first.
    fn rename_special(&self, from: &End, to: &End, meta: &Meta, caller: &Caller) -> Result<()> {
        if from.action == Action::Pass && self.is_privileged(meta) {
            return Err(Error::Errno(libc::EPERM));
        }
        match &to.origin {
            Origin::Nothing if self.is_in_held_dir(&to.path) || is_gated(to.action) => Err(Error::Errno(libc::EXDEV)),
            Origin::Nothing => self.move_below(from, to, caller),
            Origin::Lower(_) if is_special(&to.origin) => self.move_below(from, to, caller),
            Origin::Lower(_) | Origin::Upper(..) | Origin::Hidden(_) => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// Keeps what stands at the target on its node, until the kernel forgets that node: an open that found it a moment
    /// before the rename gets what it found, not an error.
    fn keep_replaced(&self, to: &End) {
        let (Origin::Lower(meta) | Origin::Upper(_, meta)) = &to.origin else { return };
        // What cannot be opened could not have been opened a moment before either.
        let left = match &to.origin {
            _ if !meta.is_file() => None,
            Origin::Upper(id, _) => self.store.open_upper(*id).ok().map(|file| Left::Judged(Arc::new(file))),
            _ => self.lower.open_to_read(&to.path).ok().map(|file| match to.action {
                Action::Pass => Left::Passed(Arc::new(file), meta.key()),
                _ => Left::Judged(Arc::new(file)),
            }),
        };
        let mut state = self.state.lock();
        let node = state.nodes.child(to.parent, &to.name);
        if let Some(node) = node.and_then(|node| state.nodes.get_mut(node).ok()) {
            node.note_replaced(meta, left);
        }
    }

    fn forget_replaced(&self, to: &End) {
        let mut state = self.state.lock();
        let node = state.nodes.child(to.parent, &to.name);
        if let Some(node) = node.and_then(|node| state.nodes.get_mut(node).ok()) {
            node.forget_removed();
        }
    }

    /// What took the place of a directory whose removal is held is judged with that: the program copies.
    pub(super) fn check_in_its_own_place(&self, path: &RelPath, origin: &Origin) -> Result<()> {
        let Origin::Upper(..) = origin else { return Ok(()) };
        match self.has_dir_below(path)? {
            true => Err(Error::Errno(libc::EXDEV)),
            false => Ok(()),
        }
    }

    /// Two names of one file: POSIX has rename do nothing.
    pub(super) fn same_file(&self, from: &End, to: &End) -> bool {
        match (&from.origin, &to.origin) {
            (Origin::Lower(a), Origin::Lower(b)) => a.key() == b.key(),
            (Origin::Upper(a, _), Origin::Upper(b, _)) => a == b,
            (Origin::Upper(id, _), Origin::Lower(meta)) | (Origin::Lower(meta), Origin::Upper(id, _)) => {
                self.state.lock().uppers.of_inode(&meta.stamp()) == Some(*id)
            }
            _ => false,
        }
    }

    /// The change of this inode that is held or being written under another of its names.
    pub(super) fn changed_by_other_name(&self, meta: &Meta) -> Option<UpperId> {
        if meta.links > 1 { self.state.lock().uppers.of_inode(&meta.stamp()) } else { None }
    }

    /// Renames between or into passing paths, by one rename in lower. Lower and the nodes change under one lock, so that
    /// a lookup sees both names as before or both as after.
    fn rename_below(&self, from: &End, to: &End) -> Result<()> {
        let (source, target) = (self.lower.place(&from.path)?, self.lower.place(&to.path)?);
        self.store.record_waiting()?;
        let renamed = {
            let mut state = self.state.lock();
            source.rename(&target, RenameFlags::empty())?;
            state.seen.remove(&from.path);
            state.renamed(from, to)
        };
        self.tell_renamed(to, renamed);
        Ok(())
    }

    /// True if nothing is judged there, nor anywhere below it.
    pub(super) fn passes_throughout(&self, end: &End) -> bool {
        end.action == Action::Pass && !self.policy().may_judge_below(&end.path)
    }

    /// Renames a directory with all that is in it. Held changes below it come along under new ids.
    fn rename_dir(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        if to.kind().is_some() && !self.hidden_below(&to.path)?.is_empty() {
            // The view shows it empty, and lower keeps it for the deletions held in it.
            return Err(Error::Errno(libc::EXDEV));
        }
        let moves = [Move { from: &from.path, to: &to.path }];
        let cargo = match self.passes_throughout(from) && self.passes_throughout(to) {
            true => Cargo::default(),
            false => self.lift(self.survey(&moves, caller)?, &self.doer(caller))?,
        };
        self.relocate_told(&Moving { from, to, how: How::RenameDir { leaves: None } }, cargo, caller)
    }
}

/// FIFOs, sockets and devices.
pub(super) fn is_special(origin: &Origin) -> bool {
    matches!(origin, Origin::Lower(meta) if meta.kind.is_special())
}

/// True if a rule reviews what comes to stand there.
pub(super) fn is_gated(action: Action) -> bool {
    matches!(action, Action::Hold(_) | Action::GitConfig)
}
