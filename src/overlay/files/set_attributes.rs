//! Changes of attributes, made where the content is.

use std::sync::Arc;

use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT};

use super::handles::{HandleId, OpenFile};
use super::inode::{Inode, attributes_set};
use super::set_id::without_set_id;
use crate::model::{RelPath, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::judge::looks::looks_of_effects;
use crate::overlay::outside::watch::Holds;
use crate::overlay::state::nodes::{Asked, NodeId};
use crate::overlay::{Attributes, Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::store::PathEffect;
use crate::sys::file::{self, FileKind, Meta, OwnLooks, SET_ID};
use crate::sys::reached::Reached;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Keep,
    Now,
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

impl Overlay {
    pub fn set_attributes(
        &self,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
        caller: &Caller,
    ) -> Result<Attributes> {
        self.check_may_write(caller)?;
        let set = &if set.is_nothing() { self.without_set_id(node, caller)? } else { *set };
        self.change_left(node, caller, || {
            if let Some(size) = set.size {
                self.truncate(node, handle, size, caller)?;
            }
            if set.changes_inode() {
                self.change_looks(node, &set.looks(), caller, || self.set_inode_attributes(node, set, caller))?;
            }
            // The kernel accepts this answer even if it was told to forget the attributes while the answer was on its
            // way.
            Ok(Attributes { holds: Holds::Briefly, ..self.attributes_asked(node, Asked::ToChange)? })
        })
    }

    /// What the kernel means that asks to set nothing: `chown` to nobody in particular, for example.
    fn without_set_id(&self, node: NodeId, caller: &Caller) -> Result<SetAttributes> {
        let now = self.attributes_asked(node, Asked::ToChange)?.meta;
        let mode = (now.kind != FileKind::Directory).then(|| without_set_id(&now, caller));
        Ok(SetAttributes { mode: mode.filter(|mode| *mode != now.mode), ..SetAttributes::NOTHING })
    }

    fn set_inode_attributes(&self, node: NodeId, set: &SetAttributes, caller: &Caller) -> Result<()> {
        if self.set_on_removed(node, set)? {
            return Ok(());
        }
        let mut target = self.inode_to_change(node)?;
        // Otherwise a copy made for a writer meanwhile would be of a file with other attributes, and would be taken for
        // stale.
        let open = self.open_below(node);
        let nobody_copies = open.as_ref().map(|open| open.copying.lock());
        if nobody_copies.is_some() {
            target = self.inode_of(node)?;
        }
        if set.is_owners(&target.meta()?) {
            self.check_is_owners(&target, caller)?;
        }
        if let (Some(path), Some(mode)) = (&target.path, set.mode) {
            self.check_set_id(path, &target, mode)?;
        }
        if !set.sets_access_time_alone() {
            self.check_not_frozen(&target, caller)?;
        }
        if target.path.is_some() && target.entry.is_none() {
            // Recovery recognizes by its times what has landed.
            self.store.record_waiting()?;
        }
        target.each(|inode| set.apply(inode)).doing(|| target.doing("change attributes of"))?;
        self.attributes_settled(&target, set, caller)
    }

    /// Returns what is open of a file of lower that has no entry. The holder of a claim on an entry must not wait for
    /// `copying`.
    fn open_below(&self, node: NodeId) -> Option<Arc<OpenFile>> {
        let state = self.state.lock();
        let path = state.nodes.path(node).ok()?;
        state.nodes.open_on(node).filter(|open| open.upper().is_none() && state.uppers.at(&path).is_none()).cloned()
    }

    /// Sets the attributes of a removed directory, FIFO or the like, of which nothing else is left. Returns false for any
    /// other node.
    fn set_on_removed(&self, node: NodeId, set: &SetAttributes) -> Result<bool> {
        let mut state = self.state.lock();
        if state.nodes.path(node).is_ok() {
            return Ok(false);
        }
        let found = state.nodes.get_mut(node)?;
        // For a file, the kernel looks its name up again: another file has that now.
        let removed = if found.kind == FileKind::Regular { None } else { found.removed_mut() };
        Ok(removed.map(|meta| set.give(meta)).is_some())
    }

    /// A mode set on a held change belongs to it; times do not (SPEC §4.7).
    fn attributes_settled(&self, target: &Inode, set: &SetAttributes, caller: &Caller) -> Result<()> {
        let Some(path) = &target.path else { return Ok(()) };
        let owner = set.uid.or(set.gid).is_some();
        let what = attributes_set(set.mode, owner);
        let times_only = set.mode.is_none() && !owner;
        let after = target.meta()?;
        match target.entry {
            Some(_) if times_only => {}
            Some(id) => {
                self.note_own_looks(id, &looks_of_effects(&target.effects(&after)))?;
                self.mark_dirty(id)?;
            }
            // The former times of something made in this session are not worth undoing.
            None if times_only && self.state.lock().past.is_fresh(path) => {}
            None if self.action(path, target.kind) == Action::Pass => {}
            None => {
                let effects = target.effects(&after).into_iter();
                let effects = effects.map(|effect| PathEffect::on(path, effect, Some(&after)));
                self.record_structure(path, what, effects, Vec::new(), &self.doer(caller))?;
            }
        }
        self.remember_changed(target, &after, set.mtime);
        if set.mtime != SetTime::Keep {
            self.state.lock().uppers.times_were_set(path);
        }
        Ok(())
    }

    /// set-user-id and set-group-id on judged files are refused unless the mount allows them (SPEC §6).
    fn check_set_id(&self, path: &RelPath, inode: &Inode, mode: u32) -> Result<()> {
        let gated = mode & SET_ID != 0 && inode.kind != FileKind::Directory && !self.grants.suid;
        match gated && self.is_judged_by_any_name(path, inode)? {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(()),
        }
    }
}

impl SetAttributes {
    pub(in crate::overlay) const NOTHING: Self =
        Self { mode: None, uid: None, gid: None, size: None, atime: SetTime::Keep, mtime: SetTime::Keep };

    fn apply(&self, inode: &Reached) -> std::io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            inode.set_owner(self.uid, self.gid)?;
        }
        if let Some(mode) = self.mode {
            inode.set_mode(mode & 0o7777)?;
        }
        match (self.atime, self.mtime) {
            (SetTime::Keep, SetTime::Keep) => Ok(()),
            (access, modification) => inode.set_times(access.timespec(), modification.timespec()),
        }
    }

    fn is_nothing(&self) -> bool {
        self.size.is_none() && !self.changes_inode()
    }

    fn changes_inode(&self) -> bool {
        let times = (self.atime, self.mtime) != (SetTime::Keep, SetTime::Keep);
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || times
    }

    /// True if only the owner may do this. Clearing set-id bits does not count: the kernel does that when others write.
    fn is_owners(&self, before: &Meta) -> bool {
        let added = |mode: u32| mode & !before.mode & 0o7777;
        let taken = |mode: u32| before.mode & !mode & !SET_ID;
        self.mode.is_some_and(|mode| added(mode) | taken(mode) != 0) || self.uid.or(self.gid).is_some()
    }

    /// What it sets besides times.
    fn looks(&self) -> OwnLooks {
        OwnLooks { mode: self.mode.is_some(), owner: self.uid.or(self.gid).is_some(), ..OwnLooks::default() }
    }

    fn give(&self, meta: &mut Meta) {
        let now = file::now();
        meta.mode = self.mode.map_or(meta.mode, |mode| mode & 0o7777);
        (meta.uid, meta.gid) = (self.uid.unwrap_or(meta.uid), self.gid.unwrap_or(meta.gid));
        (meta.atime, meta.mtime) = (self.atime.or(meta.atime, now), self.mtime.or(meta.mtime, now));
        meta.ctime = now;
    }

    fn sets_access_time_alone(&self) -> bool {
        self.mode.is_none() && self.uid.or(self.gid).is_none() && self.mtime == SetTime::Keep
    }
}

impl SetTime {
    fn or(self, before: Timestamp, now: Timestamp) -> Timestamp {
        match self {
            Self::Keep => before,
            Self::Now => now,
            Self::At(time) => time,
        }
    }

    fn timespec(self) -> Timespec {
        match self {
            Self::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Self::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Self::At(time) => file::to_timespec(time),
        }
    }
}
