//! Opening files, and making them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::handles::{Access, Backing, HandleId, OpenFile, OpenFlags, Target};
use super::heritage::Heritage;
use super::passed::{Claimed, Handover, Passed, PassedHandle};
use super::set_id::drop_set_id;
use crate::model::{RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::judge::flush::WAIT_FOR_CLOSE;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{NodeId, PartedOpen};
use crate::overlay::who::sights::Sight;
use crate::overlay::{Attributes, Caller, Entry, Error, Holds, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::sys::OFlags;
use crate::sys::file::{FileKind, Meta};

/// A file opened for a program.
#[derive(Clone, Debug)]
pub struct Opened {
    pub handle: HandleId,
    /// True if the content that the kernel has cached is still valid.
    pub keep_cache: bool,
    /// Set if the file passes: the kernel may read and write this file of lower itself.
    pub handover: Option<Handover>,
}

/// What the view has at a path that is to be opened, as of an epoch.
pub(super) struct Look {
    epoch: u64,
    origin: Origin,
    /// Lower's file, if the look opened it.
    pub file: Option<File>,
    sight: Sight,
}

/// A regular file about to be made.
struct NewFile<'a> {
    parent: NodeId,
    name: &'a std::ffi::OsStr,
    path: &'a RelPath,
    heritage: &'a Heritage,
    flags: OpenFlags,
    caller: &'a Caller,
}

impl Overlay {
    pub fn open(&self, node: NodeId, flags: OpenFlags, caller: &Caller) -> Result<Opened> {
        self.open_if(node, flags, caller, |path, look| self.check_permission(path, look, flags, caller))
    }

    /// The same for a caller whose rights are checked elsewhere, on what was opened.
    pub(super) fn open_to_ask(&self, node: NodeId, flags: OpenFlags, caller: &Caller) -> Result<Opened> {
        self.open_if(node, flags, caller, |_, _| Ok(()))
    }

    fn open_if(
        &self,
        node: NodeId,
        flags: OpenFlags,
        caller: &Caller,
        check: impl Fn(&RelPath, (&Meta, &Look)) -> Result<()>,
    ) -> Result<Opened> {
        self.check_may_open()?;
        if flags.may_change() {
            self.check_may_write(caller)?;
        }
        if flags.truncates_unasked() {
            self.check_text_busy(node)?;
        }
        let (path, open, below, seen) = loop {
            let (path, action) = match self.path_for_open(node) {
                Err(err) if err.code() == libc::ENOENT => return self.open_unlinked(node, flags, caller),
                found => found?,
            };
            // What the rules refuse to some program they may permit to this one.
            if flags.may_change() && action.refuses() {
                let action = self.action_by(&path, FileKind::Regular, &self.writer(caller));
                self.check_not_refused(&path, action, caller)?;
            }
            let Some(look) = self.look_to_open(node, &path)? else {
                // The node was renamed, or another file renamed over it, since its path was asked for.
                continue;
            };
            if let Origin::Lower(meta) = &look.origin {
                check(&path, (meta, &look))?;
            }
            let (below, seen) = (look.origin.stamp_below(), (look.sight, look.epoch));
            if let (Action::Pass, Origin::Lower(meta)) = (action, look.origin) {
                if flags.may_change() && self.finds_judged_name(node, &meta)? {
                    continue;
                }
                match self.claim_passed(node, &path, (&meta, look.file), look.epoch, flags.access)? {
                    Claimed::Passed(passed) => return self.open_passed(node, passed, flags, caller, below),
                    Claimed::Judged(open) => break (path, open, below, seen),
                    Claimed::MovedOn => continue,
                }
            }
            if let (Origin::Lower(meta), true) = (&look.origin, flags.may_change())
                && let Some(other) = self.refused_other_name(meta, &self.writer(caller), Action::refuses)?
            {
                return Err(self.denied(&other, &self.doer(caller)));
            }
            if let Some(open) = self.claim_file(node, &path, look, flags.access)? {
                break (path, open, below, seen);
            }
        };
        let keep_cache = self.keep_cache(node, below);
        let id = self.add_handle(node, Target::Judged(open.clone()), flags, caller, seen.0.below());
        let tree = self.tree_of(caller.pid);
        self.state.lock().saw_opened(&path, &open, seen, tree);
        self.empty_at_open(id, &open, flags, caller)?;
        Ok(Opened { handle: id, keep_cache, handover: None })
    }

    /// With write access the kernel itself refuses before it asks us. For `O_TRUNC` alone it refuses only after the open,
    /// which has emptied the file by then.
    fn check_text_busy(&self, node: NodeId) -> Result<()> {
        let mut state = self.state.lock();
        // The program may have ended, and its release be under way.
        self.wait_while(&mut state, WAIT_FOR_CLOSE, |state| state.is_run(node));
        if state.is_run(node) { Err(Error::Errno(libc::ETXTBSY)) } else { Ok(()) }
    }

    fn open_passed(
        &self,
        node: NodeId,
        passed: Arc<Passed>,
        flags: OpenFlags,
        caller: &Caller,
        below: Option<Stamp>,
    ) -> Result<Opened> {
        let opened = passed.descriptor(flags).and_then(|file| {
            if flags.truncates() {
                drop_set_id(&file, caller).doing(|| "change the mode of an emptied file".to_owned())?;
            }
            Ok(file)
        });
        let file = match opened {
            Ok(file) => file,
            Err(err) => {
                self.let_go(node, &passed);
                return Err(err);
            }
        };
        let by_kernel = self.passes_through();
        let (handle, handover) = self.add_passed_handle(node, passed, file, flags, caller);
        if by_kernel && flags.may_change() {
            self.forget_attributes(node);
        } else if let Some(below) = below.filter(|_| by_kernel) {
            self.forget_older_attributes(node, &below);
        }
        let keep_cache = !by_kernel && self.keep_cache(node, below);
        Ok(Opened { handle, keep_cache, handover })
    }

    /// `file` has shown that the open is possible. It is kept if we are to read and write it, not the kernel.
    fn add_passed_handle(
        &self,
        node: NodeId,
        passed: Arc<Passed>,
        file: Arc<File>,
        flags: OpenFlags,
        caller: &Caller,
    ) -> (HandleId, Option<Handover>) {
        let target = PassedHandle::new(passed, flags);
        let handover = match self.passes_through() {
            true => Some(target.hand_over(file, self.clears_set_id())),
            false => {
                target.keep(file);
                None
            }
        };
        if handover.is_some() && flags.may_change() {
            self.state.lock().nodes.note_written_past(node);
        }
        (self.add_handle(node, Target::Passed(target), flags, caller, None), handover)
    }

    /// Returns what is at the path, if that is the file of this node. Otherwise `ESTALE`, which makes the kernel look the
    /// name up anew. Returns `None` if the node is no longer at the path.
    fn look_to_open(&self, node: NodeId, path: &RelPath) -> Result<Option<Look>> {
        loop {
            let epoch = {
                let mut state = self.state.lock();
                // If the caller was told already that another file is there, the kernel has looked since and comes by
                // this name.
                if !state.nodes.was_told_replaced(path) && state.nodes.take_lost_name(node) {
                    return Err(Error::Errno(libc::ESTALE));
                }
                state.epoch
            };
            let file = self.open_if_lowers(node, path);
            let origin = match &file {
                Some(file) => self.origin_of_lower(path, Meta::of(file.as_fd()).doing(|| format!("stat {path}"))?)?,
                None => match self.origin_in(path, epoch)? {
                    Some(origin) => origin,
                    None => continue,
                },
            };
            let mut state = self.state.lock();
            if state.epoch != epoch {
                continue;
            }
            if !state.nodes.is_at(node, path) {
                return Ok(None);
            }
            let has_others = state.nodes.has_several_paths(node);
            let is_there = state.is_to_be_opened(node, path, &origin);
            let sight = state.shown(&origin);
            drop(state);
            // If another name of the node leads elsewhere by now, the kernel may have found it by that one.
            if let Some(sight) = sight
                && is_there
                && !(has_others && self.drop_lost_names(node, Some(path))?)
            {
                return Ok(Some(Look { epoch, origin, file, sight }));
            }
            if has_others && !is_there {
                self.leave_name(node, path)?;
            }
            return Err(Error::Errno(libc::ESTALE));
        }
    }

    /// Takes a lost name from a node. By which of its names the kernel has found it is unknown, so the next is looked at,
    /// too: when the kernel looks again, the node must be where its name says.
    fn leave_name(&self, node: NodeId, path: &RelPath) -> Result<()> {
        match self.drop_lost_name(node, path) {
            Ok(next) => self.look_to_open(node, &next).map(drop),
            // No name leads to this node any more: the next lookup finds another one.
            Err(_) => Ok(()),
        }
    }

    /// Returns `None` if the view has something else there, the node is open, or lower has nothing that can be opened.
    fn open_if_lowers(&self, node: NodeId, path: &RelPath) -> Option<File> {
        let is_wanted = {
            let state = self.state.lock();
            state.is_taken_from_lower(path) && !state.nodes.is_open(node)
        };
        is_wanted.then(|| self.lower.open_to_read(path).ok()).flatten()
    }

    /// Returns whether the kernel's cache, filled since the last open, still has the content. If the attributes it knows
    /// are stale, it forgets them: with an old size, a read right after the open would be cut short.
    fn keep_cache(&self, node: NodeId, below: Option<Stamp>) -> bool {
        let Some(stamp) = below else {
            // Should the node stand for lower again, the kernel's cache has other content than that; as it has now, if
            // the node stood for lower by another name of its directory.
            let did_before = self.state.lock().nodes.caches_upper(node);
            if !did_before {
                self.forget_attributes(node);
            }
            return did_before;
        };
        self.forget_older_attributes(node, &stamp);
        let known = self.state.lock().nodes.set_cached(node, &stamp);
        if known == Some(false) {
            // The path may not be watched, so nothing else would report this change.
            self.doubt_node(node);
        }
        known == Some(true)
    }

    fn doubt_node(&self, node: NodeId) {
        let path = self.state.lock().nodes.path(node);
        if let Ok(path) = path {
            self.doubt(&path);
        }
    }

    /// Makes the kernel forget attributes that are out of date, if no watch has told it yet, or none can.
    fn forget_older_attributes(&self, node: NodeId, now: &Stamp) {
        let told = self.state.lock().nodes.told(node);
        if !told.is_at_most(now) {
            self.forget_attributes(node);
        }
    }

    /// The node is reached through `/proc/self/fd`, or its name was given to another file between the kernel's lookup and
    /// this open: only what is or was open on it is left. `ESTALE` if nothing is: the kernel looks again.
    fn open_unlinked(&self, node: NodeId, flags: OpenFlags, caller: &Caller) -> Result<Opened> {
        let parted = self.state.lock().nodes.parted_at_open(node);
        match parted {
            Some(PartedOpen::LooksAgain) => return Err(Error::Errno(libc::ESTALE)),
            Some(PartedOpen::HasNameAgain) => return self.open(node, flags, caller),
            None => {}
        }
        if flags.may_change() && self.left_has_judged_name(node)? {
            return self.open(node, flags, caller);
        }
        let open = match self.claim_left(node, flags.access)? {
            Claimed::Passed(passed) => return self.open_passed(node, passed, flags, caller, None),
            Claimed::Judged(open) => open,
            Claimed::MovedOn => return Err(Error::Errno(libc::ESTALE)),
        };
        let id = self.add_handle(node, Target::Judged(open.clone()), flags, caller, None);
        self.empty_at_open(id, &open, flags, caller)?;
        Ok(Opened { handle: id, keep_cache: true, handover: None })
    }

    pub(super) fn backing_of(&self, path: &RelPath, origin: &Origin) -> Result<Backing> {
        match origin {
            Origin::Upper(id, _) => match self.store.open_upper(*id) {
                Err(_) if self.is_let_go(*id) => Ok(Backing::Lower(Arc::new(self.lower.open_to_read(path)?))),
                file => Ok(Backing::Upper(*id, Arc::new(file?))),
            },
            Origin::Lower(_) => Ok(Backing::Lower(Arc::new(self.lower.open_to_read(path)?))),
            Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }

    /// Returns the node's shared open file, made if there is none, with one more handle counted on it: under the lock
    /// under which the last release lets go of it. Returns `None` if the view has moved on since `epoch`.
    fn claim_file(
        &self,
        node: NodeId,
        path: &RelPath,
        Look { epoch, origin, file, .. }: Look,
        access: Access,
    ) -> Result<Option<Arc<OpenFile>>> {
        if let Some(open) = self.state.lock().nodes.get(node)?.open() {
            open.claim(access);
            return Ok(Some(open.clone()));
        }
        if self.part_passed(node) {
            // The kernel looks the name up anew, and gets another node.
            return Err(Error::Errno(libc::ESTALE));
        }
        let backing = match (file, origin) {
            (Some(file), Origin::Lower(_)) => Backing::Lower(Arc::new(file)),
            (_, origin) => match self.backing_of(path, &origin) {
                // The entry was let go, or has landed, between the look and the open.
                Err(err) if err.code() == libc::ENOENT && self.state.lock().epoch != epoch => return Ok(None),
                other => other?,
            },
        };
        let mut state = self.state.lock();
        let moved_on = state.epoch != epoch;
        let found = state.nodes.get(node)?;
        let open = match found.open().cloned() {
            Some(open) => open,
            None if moved_on || found.passed().is_some() => return Ok(None),
            None => {
                let open = OpenFile::new(node, backing, state.epoch);
                state.nodes.open(node, open.clone());
                open
            }
        };
        open.claim(access);
        Ok(Some(open))
    }

    /// Makes a regular file and opens it.
    pub fn create(
        &self,
        parent: NodeId,
        name: &std::ffi::OsStr,
        mode: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        let _acting = self.acting([parent]);
        self.create_here(parent, name, mode, flags, caller)
    }

    /// For a caller that has already said that it acts in the directory.
    pub(in crate::overlay) fn create_here(
        &self,
        parent: NodeId,
        name: &std::ffi::OsStr,
        mode: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        self.check_may_open()?;
        self.check_may_write(caller)?;
        let path = self.new_path(parent, name)?;
        let origin = self.origin(&path)?;
        if matches!(origin, Origin::Lower(_) | Origin::Upper(..)) {
            return self.create_existing(parent, name, flags, caller);
        }
        let action = self.action_by(&path, FileKind::Regular, &self.writer(caller));
        self.check_not_refused(&path, action, caller)?;
        let heritage = self.heritage(&path, FileKind::Regular, mode, caller)?;
        let new = NewFile { parent, name, path: &path, heritage: &heritage, flags, caller };
        // If the name is hidden by a held deletion, lower still has it.
        let passes = action == Action::Pass && !matches!(origin, Origin::Hidden(_));
        if passes { self.create_passed(&new) } else { self.create_judged(&new) }
    }

    /// The file was made below since the kernel looked.
    fn create_existing(
        &self,
        parent: NodeId,
        name: &std::ffi::OsStr,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        if flags.is_exclusive() {
            return Err(Error::Errno(libc::EEXIST));
        }
        let entry = self.look_up(parent, name)?;
        let opened = match entry.attributes.meta.kind {
            FileKind::Regular => self.open(entry.node, flags, caller),
            // The kernel accepts only a regular file as the answer to a creation, and would leave open what was opened
            // for it. After `ESTALE` it looks again, and treats a directory, link or pipe as what it is.
            _ => Err(Error::Errno(libc::ESTALE)),
        };
        match opened {
            Ok(opened) => Ok((entry, opened)),
            Err(err) => {
                // The kernel never learns of this entry, and so will never forget it.
                self.forget(entry.node, 1);
                Err(err)
            }
        }
    }

    fn create_passed(&self, new: &NewFile<'_>) -> Result<(Entry, Opened)> {
        let NewFile { parent, name, path, heritage, flags, caller } = *new;
        let place = self.lower.place(path)?;
        // Opened for both, so that a file whose mode forbids it can still be written through this handle.
        let mode = crate::sys::Mode::from_raw_mode(heritage.mode | 0o600);
        let fd = place.create(OFlags::RDWR | OFlags::NONBLOCK, mode)?;
        heritage.give_opened(fd.as_fd()).doing(|| format!("give {path} an owner"))?;
        let entry = self.look_up(parent, name)?;
        let file = File::from(fd);
        let passed = match self.claim_made(entry.node, &file, flags.access)? {
            Claimed::Passed(passed) => passed,
            // Someone else is replacing it at this moment.
            Claimed::Judged(_) | Claimed::MovedOn => return Err(Error::Errno(libc::ESTALE)),
        };
        let (handle, handover) = self.add_passed_handle(entry.node, passed, Arc::new(file), flags, caller);
        let entry = match &handover {
            Some(_) => Entry { attributes: Attributes { holds: Holds::Briefly, ..entry.attributes }, ..entry },
            None => entry,
        };
        Ok((entry, Opened { handle, keep_cache: false, handover }))
    }

    fn create_judged(&self, new: &NewFile<'_>) -> Result<(Entry, Opened)> {
        let NewFile { parent, name, path, heritage, flags, caller } = *new;
        self.check_may_change(0)?;
        let upper = self.store.create_upper(heritage.mode)?;
        heritage.give_upper(upper.file.as_fd()).doing(|| format!("give {path} an owner"))?;
        let upper_id = self.add_opened_upper(upper.new, path)?;
        let entry = self.look_up(parent, name).inspect_err(|_| self.take_back(path, upper_id))?;
        let open = {
            let mut state = self.state.lock();
            let open = OpenFile::new(entry.node, Backing::Upper(upper_id, Arc::new(upper.file)), state.epoch);
            open.dirty.store(true, Ordering::SeqCst);
            open.claim(flags.access);
            state.nodes.open(entry.node, open.clone());
            open
        };
        let id = self.add_handle(entry.node, Target::Judged(open), flags, caller, None);
        self.saw_free(path, caller);
        self.handle(id)?.note_began();
        Ok((entry, Opened { handle: id, keep_cache: true, handover: None }))
    }
}

impl State {
    /// True if what is at a path of a node is what an open of that node is to get.
    fn is_to_be_opened(&mut self, node: NodeId, path: &RelPath, origin: &Origin) -> bool {
        match origin {
            Origin::Lower(meta)
                if !self.nodes.has_several_paths(node) && self.upper_elsewhere(node, path).is_none() =>
            {
                self.nodes.is_to_be_opened(node, path, meta)
            }
            Origin::Nothing | Origin::Hidden(_) | Origin::Lower(_) | Origin::Upper(..) => {
                self.leads_to(node, path, origin)
            }
        }
    }
}
