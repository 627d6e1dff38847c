//! The inode that a change of attributes goes to: lower's, or upper's.

use std::sync::Arc;

use super::handles::OpenFlags;
use super::set_attributes::SetTime;
use crate::model::{Digest, RelPath};
use crate::overlay::error::Context;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{Left, NodeId};
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::store::{Effect, UpperId};
use crate::sys::OFlags;
use crate::sys::file::{FileKind, Meta};
use crate::sys::reached::Reached;

pub(super) struct Inode {
    /// None once it is unlinked.
    pub path: Option<RelPath>,
    pub kind: FileKind,
    pub reached: Reached,
    /// Its attributes when it was looked up.
    pub before: Option<Meta>,
    /// The upper entry, if it has something that lower does not have.
    pub entry: Option<UpperId>,
    /// The file that a writer still has open and goes on writing to: when it lands, it must not bring old attributes
    /// back.
    twin: Option<Reached>,
}

impl Inode {
    /// An inode whose changes are not recorded: the root, and what has no name.
    fn untold(path: Option<RelPath>, kind: FileKind, reached: Reached) -> Self {
        Self { path, kind, reached, before: None, entry: None, twin: None }
    }

    pub fn each(&self, change: impl Fn(&Reached) -> std::io::Result<()>) -> std::io::Result<()> {
        change(&self.reached)?;
        self.twin.as_ref().map_or(Ok(()), change)
    }

    pub fn meta(&self) -> Result<Meta> {
        self.reached.meta().doing(|| self.doing("stat"))
    }

    /// Returns how mode, owner and times have changed since it was looked up. A new owner may clear set-id bits as well.
    pub fn effects(&self, after: &Meta) -> Vec<Effect> {
        let Some(before) = self.before else { return Vec::new() };
        let times = Effect::Times { before: (before.atime, before.mtime), after: (after.atime, after.mtime) };
        let times = ((before.atime, before.mtime) != (after.atime, after.mtime)).then_some(times);
        rights_effects(&before, after).chain(times).collect()
    }

    pub fn doing(&self, verb: &str) -> String {
        match &self.path {
            Some(path) => format!("{verb} {path}"),
            None => format!("{verb} an unlinked file"),
        }
    }
}

/// Returns how mode and owner have changed.
pub(in crate::overlay) fn rights_effects(before: &Meta, after: &Meta) -> impl Iterator<Item = Effect> {
    let mode = Effect::Mode { before: before.mode, after: after.mode };
    let owner = Effect::Owner { before: (before.uid, before.gid), after: (after.uid, after.gid) };
    let mode = (before.mode != after.mode).then_some(mode);
    let owner = ((before.uid, before.gid) != (after.uid, after.gid)).then_some(owner);
    mode.into_iter().chain(owner)
}

/// Says what was set on a file, for an event.
pub(in crate::overlay) fn attributes_set(mode: Option<u32>, owner: bool) -> String {
    match (mode, owner) {
        (Some(mode), _) => format!("[mode {:03o}]", mode & 0o7777),
        (None, true) => "[owner]".to_owned(),
        (None, false) => "[times]".to_owned(),
    }
}

impl Overlay {
    pub(super) fn inode_to_change(&self, node: NodeId) -> Result<Inode> {
        self.part_if_nameless(node)?;
        if self.state.lock().is_left(node) {
            // Other names may still lead to this inode, so it is not changed here: see `Self::change_left`.
            return Err(Error::Errno(libc::ESTALE));
        }
        self.inode_of(node)
    }

    /// Returns the inode that has the attributes of a node.
    pub(super) fn inode_of(&self, node: NodeId) -> Result<Inode> {
        let path = match self.path_there(node) {
            Err(err) if err.code() == libc::ENOENT => None,
            path => Some(path?),
        };
        let (kind, left) = {
            let state = self.state.lock();
            let found = state.nodes.get(node)?;
            let left = || state.open_file(node).or_else(|| found.left().map(Left::file));
            let left = if path.is_none() { left() } else { None };
            (found.kind, left)
        };
        let Some(path) = path else {
            let left = left.ok_or(Error::Errno(libc::ESTALE))?;
            return Ok(Inode::untold(None, kind, Reached::opened(left)));
        };
        if path.is_root() {
            let root = self.lower.open_at(&path, OFlags::PATH | OFlags::DIRECTORY)?;
            return Ok(Inode::untold(Some(path), kind, Reached::opened(Arc::new(root.into()))));
        }
        let (reached, entry, twin) = match self.origin(&path)? {
            Origin::Upper(id, _) if !self.is_landed(id) => match self.reach_upper(id, &path) {
                // It has landed since.
                Err(err) if err.code() == libc::ENOENT && self.is_let_go(id) => return self.inode_of(node),
                reached => (reached?, Some(id), None),
            },
            Origin::Upper(id, _) => (self.reach_lower(&path)?, None, self.twin(id)?),
            Origin::Lower(_) => (self.reach_lower(&path)?, None, None),
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
        };
        let before = Some(reached.meta().doing(|| format!("stat {path}"))?);
        Ok(Inode { path: Some(path), kind, reached, before, entry, twin })
    }

    fn reach_lower(&self, path: &RelPath) -> Result<Reached> {
        self.lower.place(path).and_then(Reached::at).doing(|| format!("open {path}"))
    }

    /// Returns the file of an upper entry at `path`: the one that a program has open, if any, which saves walking to it.
    pub(super) fn reach_upper(&self, id: UpperId, path: &RelPath) -> Result<Reached> {
        let open = self.state.lock().nodes.open_of(id).and_then(|open| open.upper_file(id));
        match open {
            Some(open) => Ok(Reached::opened(open)),
            None => Reached::at(self.store.upper_place(id)).doing(|| format!("open {path}")),
        }
    }

    /// Returns the upper file of an entry that has landed and that a writer still has open; `None` once it is let go of.
    fn twin(&self, id: UpperId) -> Result<Option<Reached>> {
        match Reached::at(self.store.upper_place(id)) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
            reached => reached.map(Some).doing(|| "open an upper file".to_owned()),
        }
    }

    /// Another file may be renamed over this one while it is asked for, and again each time the kernel looks it up. Then
    /// what is left of this one is changed: it is opened for as long as that takes, and gone afterwards.
    pub(super) fn change_left<T>(&self, node: NodeId, caller: &Caller, change: impl Fn() -> Result<T>) -> Result<T> {
        let changed = change();
        if !matches!(&changed, Err(err) if err.code() == libc::ESTALE) || !self.state.lock().is_left(node) {
            return changed;
        }
        let opened = self.open(node, OpenFlags::from_raw(libc::O_RDONLY), caller)?;
        let changed = change();
        self.release(opened.handle).and(changed)
    }

    /// A frozen file is not modified in any way (SPEC §6); setting its access time modifies nothing.
    pub(super) fn check_not_frozen(&self, inode: &Inode, caller: &Caller) -> Result<()> {
        let Some(path) = &inode.path else { return Ok(()) };
        let by = self.writer(caller);
        if let Some(meta) = inode.before.filter(Meta::is_file)
            && let Some(other) = self.refused_other_name(&meta, &by, |action| action == Action::Freeze)?
        {
            return Err(self.denied(&other, &self.doer(caller)));
        }
        match self.action_by(path, inode.kind, &by) {
            Action::Freeze => Err(self.denied(path, &self.doer(caller))),
            Action::Auto | Action::Pass | Action::GitConfig | Action::Hold(_) | Action::Deny => Ok(()),
        }
    }

    pub(super) fn is_judged_by_any_name(&self, path: &RelPath, inode: &Inode) -> Result<bool> {
        if inode.entry.is_some() || self.action(path, inode.kind) != Action::Pass {
            return Ok(true);
        }
        inode.before.filter(Meta::is_file).map_or(Ok(false), |meta| self.has_judged_name(&meta))
    }

    /// Notes that lower's times or attributes changed by our own doing: only what others do counts as external, ends a
    /// window or makes what is being written stale. If someone saved the file at that very moment, the change is theirs.
    /// `mtime` is how it was set.
    pub(super) fn remember_changed(&self, inode: &Inode, after: &Meta, mtime: SetTime) {
        let (Some(path), Some(before)) = (&inode.path, inode.before) else { return };
        let has_same_content = || match mtime {
            SetTime::Keep => (before.size, before.mtime) == (after.size, after.mtime),
            SetTime::Now | SetTime::At(_) => before.size == after.size && self.has_known_content(path, &before),
        };
        if inode.entry.is_some() || !after.is_file() || has_same_content() {
            self.state.lock().touched(path, &before.stamp(), after);
        }
    }

    /// True if lower has the content that it was known to have when it was like `before`; also true if that content is
    /// unknown, or too large to be read for this.
    fn has_known_content(&self, path: &RelPath, before: &Meta) -> bool {
        let known = self.state.lock().digest_known(path, &before.stamp());
        let Some(known) = known else { return true };
        let present = self.present_side(path);
        present.is_ok_and(|side| side.bytes.is_none_or(|bytes| Digest::of(&bytes) == known))
    }
}
