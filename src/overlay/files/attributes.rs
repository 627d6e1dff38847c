//! Attributes, told as the view has them.

use std::os::fd::AsFd;

use super::handles::Backing;
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::outside::watch::Holds;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{Asked, NodeId, Nodes};
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Error, Overlay, ROOT, Result};
use crate::store::{Below, UpperId};
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
        let origin = origin?;
        if self.state.lock().has_lost(node, &path, &origin) {
            return match self.drop_lost_name(node, &path)? {
                next if next == path => Err(Error::Errno(libc::ENOENT)),
                _ => self.meta_of(node),
            };
        }
        match origin {
            // Who has a file open that somebody has replaced below reads on in that: with the size of what has come he would
            // see it end elsewhere.
            Origin::Lower(meta) if self.is_open_on_another(node, &meta) => self.meta_of_unlinked(node),
            // The kernel takes a node that becomes something else for broken.
            Origin::Lower(meta) | Origin::Upper(_, meta) if meta.kind == kind => Ok(meta),
            // Who stands in it asks by no name that could be looked up anew.
            _ if kind == FileKind::Directory => Err(Error::Errno(libc::ENOENT)),
            // Removed or replaced below, or by a program that has not come to take the name from it.
            _ => self.meta_of_unlinked(node),
        }
    }

    /// Whether somebody has a node open that does not stand for what lower has at its path.
    fn is_open_on_another(&self, node: NodeId, there: &Meta) -> bool {
        let state = self.state.lock();
        state.open_file(node).is_some() && !state.nodes.stands_for(node, there.kind, Some(there.key()))
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
    pub(in crate::overlay) fn upper_meta(&self, path: &RelPath, id: UpperId) -> Result<Meta> {
        let (landed, first, names, links) = {
            let state = self.state.lock();
            let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ENOENT))?;
            (upper.is_landed(), upper.row.path().clone(), upper.row.names.len(), upper.links_below())
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

impl Nodes {
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
            Below::Nothing => 1,
            Below::Entry { links, .. } => links,
        }
    }
}
