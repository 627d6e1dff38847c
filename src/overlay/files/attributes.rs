//! Attributes, as the view shows them.

use std::os::fd::AsFd;

use super::handles::Backing;
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::outside::watch::Holds;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{Asked, NodeId, Nodes};
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Error, Overlay, ROOT, Result, State};
use crate::store::UpperId;
use crate::sys::file::{FileKind, Meta};

#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub inode: u64,
    pub meta: Meta,
    pub holds: Holds,
}

impl Overlay {
    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.attributes_asked(node, Asked::ToLook)
    }

    pub(super) fn attributes_asked(&self, node: NodeId, asked: Asked) -> Result<Attributes> {
        self.wait_for_release(|_| Some(node));
        let watched = self.watch_for(node);
        let meta = self.meta_of(node)?;
        let mut state = self.state.lock();
        state.nodes.note_told(node, &meta.stamp(), asked);
        let holds = state.holds(node, &meta, watched);
        Ok(state.attributes(node, meta, holds))
    }

    fn meta_of(&self, node: NodeId) -> Result<Meta> {
        let (path, kind, passed) = {
            let state = self.state.lock();
            let known = state.nodes.get(node)?;
            (state.nodes.path(node), known.kind, known.passed().cloned())
        };
        if let Some(passed) = passed {
            // The kernel writes to it without asking us, so only the inode itself knows its size and times.
            let meta = Meta::of(passed.file().as_fd()).doing(|| "stat a file that nobody judges".to_owned())?;
            return Ok(self.as_linked(meta));
        }
        let Ok(path) = path else { return self.meta_of_unlinked(node) };
        let origin = self.origin(&path);
        if self.state.lock().nodes.path(node).ok().as_ref() != Some(&path) {
            // The node was renamed, or renamed over, in between, so `origin` describes another file.
            return self.meta_of(node);
        }
        if let Some(meta) = self.meta_of_replaced(node)? {
            return Ok(meta);
        }
        let origin = origin?;
        if self.state.lock().has_lost(node, &path, &origin) {
            return match self.drop_lost_name(node, &path)? {
                next if next == path => Err(Error::Errno(libc::ENOENT)),
                _ => self.meta_of(node),
            };
        }
        match origin {
            // Lower's file was replaced, but programs with this node open go on reading the old one. With the size of the
            // new one they would see it end in the wrong place.
            Origin::Lower(meta) if self.is_open_on_another(node, &meta) => self.meta_of_unlinked(node),
            // Of the same kind only: to the kernel, an inode that changes its type is broken.
            Origin::Lower(meta) | Origin::Upper(_, meta) if meta.kind == kind => Ok(meta),
            // Not `ESTALE`: a process that stands in the directory asks by no name that the kernel could look up again.
            _ if kind == FileKind::Directory => Err(Error::Errno(libc::ENOENT)),
            // Removed or replaced below, or by a program whose operation has not yet taken the name from the node.
            _ => self.meta_of_unlinked(node),
        }
    }

    /// True if a node is open and no longer stands for what lower has at its path.
    fn is_open_on_another(&self, node: NodeId, there: &Meta) -> bool {
        let state = self.state.lock();
        state.open_file(node).is_some() && !state.nodes.stands_for(node, there.kind, Some(there.key()))
    }

    /// Returns the attributes of a file that is being renamed over and still has its name. Its path may already lead to
    /// the new file, or to lower's, and a reader of the old one would see it end where that one ends.
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

    /// All that is left of an unlinked node is what is open on it, or else the attributes it had when it was removed.
    /// Returns `ESTALE` if there is neither: the kernel then looks the name up again, and creates the file if the call
    /// asked for that.
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
            // The inode may have other names that no lookup has found yet.
            false => Ok(self.as_linked(meta)),
        }
    }

    /// Returns what the view shows of an upper entry. One that has landed and is still open for writing shows what lower
    /// has.
    pub(in crate::overlay) fn upper_meta(&self, path: &RelPath, id: UpperId) -> Result<Meta> {
        let (landed, first, names, base) = {
            let state = self.state.lock();
            let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ENOENT))?;
            (upper.is_landed(), upper.row.path().clone(), upper.row.names.len(), upper.row.base)
        };
        let below = |path: &RelPath| -> Result<Option<Meta>> {
            Ok(self.meta_below(path)?.filter(|meta| self.may_be_its_file(&base, meta)))
        };
        if landed && let Some(meta) = below(path)? {
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
        let links = match base.is_shared() {
            true => below(&first)?.map_or(1, |meta| self.as_linked(meta).links),
            false => 1,
        };
        let meta = self.store.upper_meta(id)?;
        // The first name is the one below, or takes its place; the others are made when the entry lands.
        let further = u32::try_from(names.saturating_sub(1)).unwrap_or(u32::MAX);
        Ok(Meta { links: links.max(1).saturating_add(further), ..meta })
    }

    pub(super) fn is_landed(&self, id: UpperId) -> bool {
        self.state.lock().uppers.get(id).is_none_or(Upper::is_landed)
    }

    pub fn statfs(&self) -> Result<rustix::fs::StatVfs> {
        Ok(rustix::fs::fstatvfs(self.lower.root()).map_err(std::io::Error::from)?)
    }

    pub(super) fn is_written_in_upper(&self, node: NodeId) -> Result<bool> {
        let state = self.state.lock();
        let open = state.nodes.get(node)?.open();
        Ok(open.is_some_and(|open| matches!(*open.backing(), Backing::Upper(..) | Backing::Orphan(_))))
    }
}

impl State {
    /// Returns what programs see of a node whose attributes are `meta`.
    pub fn attributes(&self, node: NodeId, meta: Meta, holds: Holds) -> Attributes {
        // Mostly there are none, and no path needs to be put together.
        let path = self.uppers.have_times(meta.kind).then(|| self.nodes.path(node).ok()).flatten();
        let meta = path.map_or(meta, |path| self.uppers.with_times(&path, meta));
        Attributes { inode: self.nodes.shown_inode(node), meta: self.nodes.as_seen(node, meta), holds }
    }
}

impl Nodes {
    /// The inode number that programs see.
    pub fn shown_inode(&self, node: NodeId) -> u64 {
        if node == ROOT { self.root_inode } else { node.0 }
    }
}
