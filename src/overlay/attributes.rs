//! Attributes and extended attributes: told as the view has them, changed where the content is.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT, XattrFlags};

use super::error::Context;
use super::handles::{Backing, HandleId, OpenFlags};
use super::looks::looks_of_effects;
use super::lookup::Origin;
use super::nodes::{Left, Node, NodeId};
use super::uppers::Upper;
use super::watch::Holds;
use super::{Caller, Error, Overlay, ROOT, Result};
use crate::model::{RelPath, Timestamp};
use crate::policy::rules::Action;
use crate::store::{Effect, UpperId};
use crate::sys::file::{self, FileKind, Meta, OwnLooks, SET_GID, SET_ID};
use crate::sys::xattr::{self, ACCESS_ACL, DEFAULT_ACL};
use crate::sys::{OFlags, process};

#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub inode: u64,
    pub meta: Meta,
    pub holds: Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Keep,
    Now,
    At(Timestamp),
}

/// Attributes to change; none means as they are.
#[derive(Clone, Copy, Debug)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

/// Names that the view answers itself, and that no file below has.
const OWN_XATTRS: &[u8] = b"user.fettle.";

impl Overlay {
    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.wait_for_release(|_| Some(node));
        let watched = self.watch_for(node);
        let meta = self.meta_of(node)?;
        let mut state = self.state.lock();
        state.nodes.note_told(node, &meta.stamp());
        let holds = state.holds(node, &meta, watched);
        Ok(state.nodes.attributes(node, meta, holds))
    }

    fn meta_of(&self, node: NodeId) -> Result<Meta> {
        let (path, kind, passed) = {
            let state = self.state.lock();
            let known = state.nodes.get(node)?;
            (state.nodes.path(node), known.kind, known.passed().cloned())
        };
        if let Some(passed) = passed {
            // The kernel writes past us: only the inode itself knows its size and times.
            let meta = Meta::of(passed.file().as_fd()).doing(|| "stat a file that nobody judges".to_owned())?;
            return Ok(self.as_linked(meta));
        }
        let Ok(path) = path else { return self.meta_of_unlinked(node) };
        let origin = self.origin(&path);
        if self.state.lock().nodes.path(node).ok().as_ref() != Some(&path) {
            // Renamed, or renamed over, between the two looks: the path told of another file.
            return self.meta_of(node);
        }
        if let Some(meta) = self.meta_of_replaced(node)? {
            return Ok(meta);
        }
        match origin? {
            // The kernel takes a node that becomes something else for broken.
            Origin::Lower(meta) | Origin::Upper(_, meta) if meta.kind == kind => Ok(meta),
            Origin::Nothing | Origin::Hidden(_) if self.state.lock().nodes.has_several_paths(node) => {
                match self.drop_lost_name(node, &path)? {
                    next if next == path => Err(Error::Errno(libc::ENOENT)),
                    _ => self.meta_of(node),
                }
            }
            // Who stands in it asks by no name that could be looked up anew.
            _ if kind == FileKind::Directory => Err(Error::Errno(libc::ENOENT)),
            // Removed or replaced below, or by a program that has not come to take the name from it.
            _ => self.meta_of_unlinked(node),
        }
    }

    /// Of a file that is renamed over at this moment, and has its name still: the path may tell of what comes, or of what
    /// lower has. Whoever reads on would see it end where that ends.
    fn meta_of_replaced(&self, node: NodeId) -> Result<Option<Meta>> {
        let (removed, open) = {
            let state = self.state.lock();
            (state.nodes.get(node)?.removed().copied(), state.open_file(node))
        };
        match (removed, open) {
            (Some(removed), Some(open)) => {
                let meta = Meta::of(open.as_fd()).doing(|| "stat a file that is renamed over".to_owned())?;
                Ok(Some(Meta { links: removed.links, ..meta }))
            }
            (removed, _) => Ok(removed),
        }
    }

    /// All that is left of a file is what is open on it, and of another entry what it was. `ESTALE` when nothing is: who asks
    /// by a name looks it up anew, and makes it if that was the wish.
    fn meta_of_unlinked(&self, node: NodeId) -> Result<Meta> {
        let (open, removed) = {
            let state = self.state.lock();
            (state.open_file(node), state.nodes.get(node)?.removed().copied())
        };
        let Some(open) = open else {
            let meta = removed.ok_or(Error::Errno(libc::ESTALE))?;
            let links = if meta.is_dir() { 0 } else { meta.links.saturating_sub(1) };
            return Ok(Meta { links, ..meta });
        };
        let meta = Meta::of(open.as_fd()).doing(|| "stat an unlinked file".to_owned())?;
        match self.is_written_in_upper(node)? {
            true => Ok(Meta { links: 0, ..meta }),
            // It may have names that nobody has looked up.
            false => Ok(self.as_linked(meta)),
        }
    }

    /// What the view shows of an upper entry. A landed one that a writer still has open shows what lower has.
    pub(super) fn upper_meta(&self, path: &RelPath, id: UpperId) -> Result<Meta> {
        let (landed, first, names, links) = {
            let state = self.state.lock();
            let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ENOENT))?;
            (upper.is_landed(), upper.row.names[0].clone(), upper.row.names.len(), upper.links_below())
        };
        if landed && let Some(meta) = self.lower.stat(path).doing(|| format!("stat {path}"))? {
            return Ok(meta);
        }
        let dirs_made = {
            let state = self.state.lock();
            (state.uppers.held_dir(path) == Some(id)).then(|| state.uppers.dirs_in(path).made)
        };
        if let Some(made) = dirs_made {
            return Ok(Meta { links: made.saturating_add(2), ..self.store.upper_meta(id)? });
        }
        // Names of the inode below may have come and gone since it was first written.
        let links = match links {
            0 | 1 => links,
            _ => {
                let below = self.lower.stat(&first).doing(|| format!("stat {first}"))?;
                below.map_or(1, |meta| self.as_linked(meta).links)
            }
        };
        let meta = self.store.upper_meta(id)?;
        // The first is the one below, or takes its place; the others will be made when it lands.
        let further = u32::try_from(names.saturating_sub(1)).unwrap_or(u32::MAX);
        Ok(Meta { links: links.max(1).saturating_add(further), ..meta })
    }

    pub fn set_attributes(
        &self,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
        caller: &Caller,
    ) -> Result<Attributes> {
        self.check_may_write(caller)?;
        self.change_left(node, caller, || {
            if let Some(size) = set.size {
                self.truncate(node, handle, size, caller)?;
            }
            if set.changes_inode() {
                self.change_looks(node, &set.looks(), caller, || self.set_inode_attributes(node, set, caller))?;
            }
            // The kernel takes this answer whatever it was told to forget while it was on its way.
            Ok(Attributes { holds: Holds::Briefly, ..self.attributes(node)? })
        })
    }

    fn set_inode_attributes(&self, node: NodeId, set: &SetAttributes, caller: &Caller) -> Result<()> {
        if self.set_on_removed(node, set)? {
            return Ok(());
        }
        let target = self.inode_to_change(node)?;
        if let (Some(path), Some(mode)) = (&target.path, set.mode) {
            self.check_set_id(path, &target, mode)?;
        }
        if !set.sets_access_time_alone() {
            self.check_not_frozen(&target, caller)?;
        }
        if target.path.is_some() && target.entry.is_none() {
            // Recovery knows what has landed by its times.
            self.store.record_waiting()?;
        }
        target.each(|inode| inode.set(set)).doing(|| target.doing("change attributes of"))?;
        self.attributes_settled(&target, set, caller)
    }

    /// Whether a node is a directory, FIFO or the like that was removed: of that nothing is left but what is known of it.
    fn set_on_removed(&self, node: NodeId, set: &SetAttributes) -> Result<bool> {
        let mut state = self.state.lock();
        if state.nodes.path(node).is_ok() {
            return Ok(false);
        }
        let found = state.nodes.get_mut(node)?;
        // By the name of a file the kernel looks again: another has it now.
        let removed = if found.kind == FileKind::Regular { None } else { found.removed_mut() };
        Ok(removed.map(|meta| set.give(meta)).is_some())
    }

    /// A mode that comes to a held change belongs to it; times do not (SPEC §4.7).
    fn attributes_settled(&self, target: &Inode, set: &SetAttributes, caller: &Caller) -> Result<()> {
        let Some(path) = &target.path else { return Ok(()) };
        let what = match (set.mode, set.uid.or(set.gid)) {
            (Some(mode), _) => format!("[mode {:03o}]", mode & 0o7777),
            (None, Some(_)) => "[owner]".to_owned(),
            (None, None) => "[times]".to_owned(),
        };
        let times_only = set.mode.is_none() && set.uid.or(set.gid).is_none();
        match target.entry {
            Some(_) if times_only => {}
            Some(id) => {
                self.note_own_looks(id, &looks_of_effects(&target.effects()?))?;
                self.mark_dirty(id)?;
            }
            // Nobody wants the times back that something made in this session had.
            None if times_only && self.is_fresh(path) => {}
            None if self.action(path, target.kind) == Action::Pass => {}
            None => self.record_structure(path, what, target.effects()?, Vec::new(), &self.doer(caller))?,
        }
        self.remember_below(target)
    }

    /// Lower has other times or attributes by our own doing: only others' acts count as external, end a window or make
    /// what is being written stale.
    fn remember_below(&self, inode: &Inode) -> Result<()> {
        let (Some(path), Some(before)) = (&inode.path, inode.below) else { return Ok(()) };
        let meta = Meta::of(inode.fd.as_fd()).doing(|| inode.doing("stat"))?;
        self.state.lock().touched(path, &before.stamp(), &meta);
        Ok(())
    }

    /// What is frozen is not modified in any way (SPEC §6); when it was read last is none.
    fn check_not_frozen(&self, inode: &Inode, caller: &Caller) -> Result<()> {
        let Some(path) = &inode.path else { return Ok(()) };
        let by = self.writer(caller);
        if let Some(meta) = inode.below.filter(Meta::is_file)
            && let Some(other) = self.refused_other_name(&meta, &by, |action| action == Action::Freeze)?
        {
            return Err(self.denied(&other, &self.doer(caller)));
        }
        match self.action_by(path, inode.kind, &by) {
            Action::Freeze => Err(self.denied(path, &self.doer(caller))),
            Action::Auto | Action::Pass | Action::GitConfig | Action::Hold(_) | Action::Deny => Ok(()),
        }
    }

    /// set-user-id and set-group-id on judged files are refused unless the mount allows them (SPEC §6).
    fn check_set_id(&self, path: &RelPath, inode: &Inode, mode: u32) -> Result<()> {
        let gated = mode & SET_ID != 0 && inode.kind != FileKind::Directory && !self.grants.suid;
        match gated && self.is_judged_by_any_name(path, inode)? {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(()),
        }
    }

    fn inode_to_change(&self, node: NodeId) -> Result<Inode> {
        self.part_if_nameless(node)?;
        if self.state.lock().is_left(node) {
            // Others may have it as well: see [`Self::change_left`].
            return Err(Error::Errno(libc::ESTALE));
        }
        self.inode_of(node)
    }

    /// Another file may be renamed over this one while it is asked for, and each time that the kernel looks again: then what
    /// is left of this one is changed, opened for as long as that takes, and gone after that.
    fn change_left<T>(&self, node: NodeId, caller: &Caller, change: impl Fn() -> Result<T>) -> Result<T> {
        let changed = change();
        if !matches!(&changed, Err(err) if err.code() == libc::ESTALE) || !self.state.lock().is_left(node) {
            return changed;
        }
        let opened = self.open(node, OpenFlags::from_raw(libc::O_RDONLY), caller)?;
        let changed = change();
        self.release(opened.handle).and(changed)
    }

    fn is_judged_by_any_name(&self, path: &RelPath, inode: &Inode) -> Result<bool> {
        if self.action(path, inode.kind) != Action::Pass {
            return Ok(true);
        }
        inode.below.filter(Meta::is_file).map_or(Ok(false), |meta| self.has_judged_name(&meta))
    }

    /// The inode whose attributes are those of a node.
    fn inode_of(&self, node: NodeId) -> Result<Inode> {
        let (path, kind, open) = {
            let state = self.state.lock();
            let found: &Node = state.nodes.get(node)?;
            let path = state.nodes.path(node).ok();
            let open =
                if path.is_none() { state.open_file(node).or_else(|| found.left().map(Left::file)) } else { None };
            (path, found.kind, open)
        };
        let Some(path) = path else {
            let open = open.ok_or(Error::Errno(libc::ESTALE))?;
            let fd = open.as_fd().try_clone_to_owned().doing(|| "duplicate a descriptor".to_owned())?;
            return Ok(Inode { path: None, kind, fd, place: None, below: None, entry: None, twin: None });
        };
        if path.is_root() {
            let fd = self.lower.open_at(&path, OFlags::PATH | OFlags::DIRECTORY)?;
            return Ok(Inode { path: Some(path), kind, fd, place: None, below: None, entry: None, twin: None });
        }
        let (place, entry, landed) = match self.origin(&path)? {
            Origin::Upper(id, _) if !self.is_landed(id) => (self.store.upper_place(id)?, Some(id), None),
            Origin::Upper(id, _) => (self.lower.place(&path)?, None, Some(id)),
            Origin::Lower(_) => (self.lower.place(&path)?, None, None),
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
        };
        let fd = place.open(OFlags::PATH).doing(|| format!("open {path}"))?;
        let twin = landed.map(|id| self.twin(id, kind)).transpose()?.flatten();
        let below = Some(Meta::of(fd.as_fd()).doing(|| format!("stat {path}"))?);
        Ok(Inode { path: Some(path), kind, fd, place: Some(place), below, entry, twin: twin.map(Box::new) })
    }

    /// The upper file of an entry that has landed and that a writer still has open; none once it is let go of.
    fn twin(&self, id: UpperId, kind: FileKind) -> Result<Option<Inode>> {
        let place = self.store.upper_place(id)?;
        match place.open(OFlags::PATH) {
            Ok(fd) => {
                Ok(Some(Inode { path: None, kind, fd, place: Some(place), below: None, entry: None, twin: None }))
            }
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err).doing(|| "open an upper file".to_owned()),
        }
    }

    pub(super) fn is_landed(&self, id: UpperId) -> bool {
        self.state.lock().uppers.get(id).is_none_or(Upper::is_landed)
    }

    pub fn statfs(&self) -> Result<rustix::fs::StatVfs> {
        Ok(rustix::fs::fstatvfs(self.lower.root()).map_err(std::io::Error::from)?)
    }

    pub fn get_xattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        if let Some(own) = name.as_bytes().strip_prefix(OWN_XATTRS) {
            return self.own_xattr(node, own);
        }
        if name == "security.capability" && !self.grants.all() && self.is_written_in_upper(node)? {
            // The kernel asks at each write; copy-up and creation leave none, and nobody may set one.
            return Err(Error::Errno(libc::ENODATA));
        }
        let passed = self.state.lock().nodes.get(node)?.passed().cloned();
        if let Some(passed) = passed {
            // Asked for `security.capability` before each write, also before those that the kernel does by itself.
            return Ok(xattr::get(passed.file().as_fd(), name)?);
        }
        let inode = self.inode_of(node)?;
        match xattr::get(inode.fd.as_fd(), name) {
            // Where lower knows no lists. The kernel would take this answer for a failed check of permissions.
            Err(err) if is_acl(name) && err.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Err(Error::Errno(libc::ENODATA))
            }
            other => Ok(other?),
        }
    }

    fn is_written_in_upper(&self, node: NodeId) -> Result<bool> {
        let state = self.state.lock();
        let open = state.nodes.get(node)?.open();
        Ok(open.is_some_and(|open| matches!(*open.backing(), Backing::Upper(..) | Backing::Orphan(_))))
    }

    pub fn list_xattrs(&self, node: NodeId) -> Result<Vec<OsString>> {
        let inode = self.inode_of(node)?;
        Ok(xattr::list(inode.fd.as_fd())?)
    }

    pub fn set_xattr(
        &self,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        caller: &Caller,
    ) -> Result<()> {
        self.change_xattr(node, (name, Some(value)), caller, |inode| {
            inode.each(|inode| xattr::set(inode.fd.as_fd(), name, value, flags))?;
            if name == ACCESS_ACL {
                inode.each(|inode| drop_foreign_set_gid(inode, caller)).doing(|| inode.doing("change the mode of"))?;
            }
            Ok(())
        })
    }

    pub fn remove_xattr(&self, node: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        let remove = |inode: &Inode| xattr::remove(inode.fd.as_fd(), name);
        self.change_xattr(node, (name, None), caller, |inode| Ok(inode.each(remove)?))
    }

    fn change_xattr(
        &self,
        node: NodeId,
        (name, after): (&OsStr, Option<&[u8]>),
        caller: &Caller,
        change: impl Fn(&Inode) -> Result<()>,
    ) -> Result<()> {
        let change = || {
            let inode = self.inode_for_xattr(node, name, caller)?;
            let before = xattr::find(inode.fd.as_fd(), name)?;
            change(&inode)?;
            self.xattrs_settled(&inode, (name, before, after.map(<[u8]>::to_vec)), caller)
        };
        self.change_left(node, caller, || self.change_looks(node, &looks_of_attribute(name), caller, change))
    }

    fn inode_for_xattr(&self, node: NodeId, name: &OsStr, caller: &Caller) -> Result<Inode> {
        self.check_may_write(caller)?;
        let inode = self.inode_to_change(node)?;
        self.check_not_frozen(&inode, caller)?;
        let bytes = name.as_bytes();
        let gated = bytes.starts_with(b"security.") || bytes.starts_with(b"trusted.");
        let judged = match &inode.path {
            Some(path) if gated && !self.grants.all() => self.is_judged_by_any_name(path, &inode)?,
            Some(_) | None => false,
        };
        match bytes.starts_with(OWN_XATTRS) || judged {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(inode),
        }
    }

    fn xattrs_settled(
        &self,
        inode: &Inode,
        (name, before, after): (&OsStr, Option<Vec<u8>>, Option<Vec<u8>>),
        caller: &Caller,
    ) -> Result<()> {
        let Some(path) = &inode.path else { return Ok(()) };
        let is_told = || !self.is_fresh(path) && self.action(path, inode.kind) != Action::Pass;
        if before != after && (inode.entry.is_some() || is_told()) {
            let effect = Effect::Xattr { name: name.as_bytes().to_vec(), before, after };
            let effects: Vec<Effect> = std::iter::once(effect).chain(inode.effects()?).collect();
            match inode.entry {
                Some(id) => self.note_own_looks(id, &looks_of_effects(&effects))?,
                None => {
                    let what = format!("[attribute {}]", name.to_string_lossy());
                    self.record_structure(path, what, effects, Vec::new(), &self.doer(caller))?;
                }
            }
        }
        inode.entry.map_or(Ok(()), |id| self.mark_dirty(id))?;
        self.remember_below(inode)
    }

    /// `user.fettle.state`, `.id`, `.reason` and `.externally_modified` of every file of the view (SPEC §14).
    fn own_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let path = self.path_of(node)?;
        let held = {
            let state = self.state.lock();
            let upper = state.uppers.at(&path).and_then(|id| state.uppers.get(id));
            upper.map(|upper| (upper.row.held.clone(), upper.dirty))
        };
        let held_change = held.as_ref().and_then(|(held, _)| held.as_ref());
        let absent = Error::Errno(libc::ENODATA);
        let text = match name {
            b"state" => match &held {
                Some((Some(_), _)) => "held".to_owned(),
                Some((None, true)) => "dirty".to_owned(),
                Some((None, false)) | None => "clean".to_owned(),
            },
            b"id" => held_change.ok_or(absent)?.id.to_string(),
            b"reason" => held_change.and_then(|held| held.reasons.first()).ok_or(absent)?.to_string(),
            b"externally_modified" => match self.externally(&path)?.is_some() {
                true => "1".to_owned(),
                false => "0".to_owned(),
            },
            _ => return Err(absent),
        };
        Ok(text.into_bytes())
    }
}

/// The one inode that a change of attributes goes to.
struct Inode {
    /// None once it is unlinked.
    path: Option<RelPath>,
    kind: FileKind,
    fd: OwnedFd,
    place: Option<crate::sys::tree::Place>,
    /// What it was when it was looked up.
    below: Option<Meta>,
    /// Of upper: the entry that has something lower has not.
    entry: Option<UpperId>,
    /// What a writer who still has it open goes on writing to: landing that must not bring old attributes back.
    twin: Option<Box<Inode>>,
}

impl Inode {
    fn each(&self, change: impl Fn(&Self) -> std::io::Result<()>) -> std::io::Result<()> {
        change(self)?;
        self.twin.as_deref().map_or(Ok(()), change)
    }

    fn set(&self, set: &SetAttributes) -> std::io::Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            set_owner(self, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            file::set_mode(self.fd.as_fd(), mode & 0o7777)?;
        }
        match (set.atime, set.mtime) {
            (SetTime::Keep, SetTime::Keep) => Ok(()),
            (access, modification) => set_times(self, access.timespec(), modification.timespec()),
        }
    }

    /// What has become of its mode, owner and times since it was looked up. A new owner may take set-id bits with him.
    fn effects(&self) -> Result<Vec<Effect>> {
        let Some(before) = self.below else { return Ok(Vec::new()) };
        let after = Meta::of(self.fd.as_fd()).doing(|| self.doing("stat"))?;
        let mode = Effect::Mode { before: before.mode, after: after.mode };
        let owner = Effect::Owner { before: (before.uid, before.gid), after: (after.uid, after.gid) };
        let times = Effect::Times { before: (before.atime, before.mtime), after: (after.atime, after.mtime) };
        let times = ((before.atime, before.mtime) != (after.atime, after.mtime)).then_some(times);
        let mode = (before.mode != after.mode).then_some(mode);
        let owner = ((before.uid, before.gid) != (after.uid, after.gid)).then_some(owner);
        Ok(mode.into_iter().chain(owner).chain(times).collect())
    }

    fn doing(&self, verb: &str) -> String {
        match &self.path {
            Some(path) => format!("{verb} {path}"),
            None => format!("{verb} an unlinked file"),
        }
    }
}

/// By name where there is one: `fchown` and `futimens` refuse the `O_PATH` descriptors that symlinks need.
fn set_owner(inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> std::io::Result<()> {
    match &inode.place {
        Some(place) => place.set_owner(uid, gid),
        None => file::set_owner(reopened(inode)?.as_fd(), uid, gid),
    }
}

fn set_times(inode: &Inode, access: Timespec, modification: Timespec) -> std::io::Result<()> {
    match &inode.place {
        Some(place) => place.set_times(access, modification),
        None => file::set_times(reopened(inode)?.as_fd(), access, modification),
    }
}

/// A list sets the group's permissions, and whoever is not in that group may not lend its id with them. Lower would take
/// the bit away as `chmod` does, but it sees us set the list.
fn drop_foreign_set_gid(inode: &Inode, caller: &Caller) -> std::io::Result<()> {
    let meta = Meta::of(inode.fd.as_fd())?;
    let may_lend = || caller.gid == meta.gid || process::may_set_gid_bit(caller.pid, meta.gid);
    match meta.mode & SET_GID != 0 && !may_lend() {
        true => file::set_mode(inode.fd.as_fd(), meta.mode & !SET_GID),
        false => Ok(()),
    }
}

fn looks_of_attribute(name: &OsStr) -> OwnLooks {
    OwnLooks { xattrs: vec![name.as_bytes().to_vec()], ..OwnLooks::default() }
}

fn is_acl(name: &OsStr) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

fn reopened(inode: &Inode) -> std::io::Result<std::fs::File> {
    file::reopen(inode.fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)
}

impl SetAttributes {
    fn changes_inode(&self) -> bool {
        let times = (self.atime, self.mtime) != (SetTime::Keep, SetTime::Keep);
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || times
    }

    /// What it sets beside times.
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

impl super::nodes::Nodes {
    /// What programs see of a node that the view has as `meta`.
    pub fn attributes(&self, node: NodeId, meta: Meta, holds: Holds) -> Attributes {
        Attributes { inode: self.shown_inode(node), meta: self.as_seen(node, meta), holds }
    }

    /// The inode number that programs see.
    pub fn shown_inode(&self, node: NodeId) -> u64 {
        if node == ROOT { self.root_inode } else { node.0 }
    }
}

impl Upper {
    /// How many names the lower inode has that this entry stands for.
    fn links_below(&self) -> u32 {
        match self.row.base.below {
            crate::store::Below::Nothing => 1,
            crate::store::Below::Entry { links, .. } => links,
        }
    }
}
