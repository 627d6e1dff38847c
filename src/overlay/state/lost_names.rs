//! Names that a node has lost below: since the last look someone has made one of them lead elsewhere, or nowhere.
//!
//! The kernel does not say by which name it found a node. So an operation on a node with several names uses one that
//! still leads to it. If the operation is a change that may have been meant for a lost name, the kernel is told to look
//! once more (`ESTALE`), which it does once in each call. A node with one name was found by that name and costs no look.

use std::ffi::{OsStr, OsString};

use super::lookup::Origin;
use super::nodes::NodeId;
use crate::model::RelPath;
use crate::overlay::{Error, Overlay, Result, State};
use crate::sys::file::FileKind;

impl Overlay {
    /// The first path of a node that still leads to it.
    pub(in crate::overlay) fn path_there(&self, node: NodeId) -> Result<RelPath> {
        loop {
            let path = {
                let state = self.state.lock();
                let path = state.nodes.path(node)?;
                if !state.nodes.has_several_paths(node) {
                    return Ok(path);
                }
                path
            };
            let origin = self.origin(&path)?;
            if !self.state.lock().has_lost(node, &path, &origin) {
                return Ok(path);
            }
            self.drop_lost_name(node, &path)?;
        }
    }

    /// Returns `ESTALE` for a node that is about to be changed or linked, and that the kernel may have found by a lost
    /// name. Not if the node is open: a request through a handle names no path, and the error would reach the program
    /// instead of the kernel.
    pub(in crate::overlay) fn check_asked_name(&self, node: NodeId) -> Result<()> {
        let has_several = self.state.lock().nodes.has_several_paths(node);
        let has_lost_now = has_several && self.drop_lost_names(node, None)?;
        let mut state = self.state.lock();
        let found = state.nodes.get(node)?;
        if found.kind == FileKind::Directory || state.nodes.is_open(node) {
            return Ok(());
        }
        match state.nodes.take_lost_name(node) || has_lost_now {
            true => Err(Error::Errno(libc::ESTALE)),
            false => Ok(()),
        }
    }

    /// Removes the names that a node with several has lost; `known` is not checked, since it is known to lead there.
    /// Returns whether there were any.
    pub(in crate::overlay) fn drop_lost_names(&self, node: NodeId, known: Option<&RelPath>) -> Result<bool> {
        let mut any = false;
        let paths = self.state.lock().nodes.paths(node)?;
        for path in paths.iter().filter(|path| Some(*path) != known) {
            let origin = self.origin(path)?;
            if self.state.lock().has_lost(node, path, &origin) {
                self.drop_lost_name(node, path)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Something else, or nothing, is at one of several paths of a node: it has lost that name below. Returns its first
    /// path after that.
    pub(in crate::overlay) fn drop_lost_name(&self, node: NodeId, path: &RelPath) -> Result<RelPath> {
        let (parent, next) = {
            let mut state = self.state.lock();
            if state.nodes.at(path) == Some(node) {
                state.nodes.unname_path(path);
            }
            (path.parent().and_then(|dir| state.nodes.at(&dir)), state.nodes.path(node))
        };
        if let (Some(parent), Some(name)) = (parent, path.name()) {
            self.tell(|observer| observer.entry_changed(parent, name));
        }
        next
    }

    /// A name no longer stands for a node, and the kernel may still find the node by it.
    pub(super) fn tell_left(&self, parent: NodeId, name: &OsStr) {
        self.tell(|observer| observer.entry_changed(parent, name));
        self.tell_watchers(parent, name);
    }
}

impl State {
    /// True if one of several names of a node leads elsewhere by now.
    pub(in crate::overlay) fn has_lost(&mut self, node: NodeId, path: &RelPath, origin: &Origin) -> bool {
        self.nodes.has_several_paths(node) && !self.leads_to(node, path, origin)
    }

    /// True if what is at one of several paths of a node is what the node stands for.
    pub(in crate::overlay) fn leads_to(&mut self, node: NodeId, path: &RelPath, origin: &Origin) -> bool {
        match origin {
            Origin::Nothing | Origin::Hidden(_) => false,
            Origin::Lower(_) if self.upper_elsewhere(node, path).is_some() => false,
            Origin::Lower(meta) => self.nodes.is_lower(node, meta.key()),
            Origin::Upper(id, _) => self.open_elsewhere(*id, Some(node)).is_none(),
        }
    }

    /// A file that has one name below has lost every other that was known: someone has renamed it. Returns the lost
    /// names, by which the kernel may still find it. A name is kept while a program changes names in its directory: that
    /// program may be the one, and not be done.
    pub(super) fn leave_former_names(
        &mut self,
        node: NodeId,
        (parent, name): (NodeId, &OsStr),
        origin: &Origin,
    ) -> Vec<(NodeId, OsString)> {
        let Origin::Lower(meta) = origin else { return Vec::new() };
        let has_former = meta.links == 1 && self.nodes.get(node).is_ok_and(|node| node.names.len() > 1);
        // If the view has taken names of it, lower has more links than `meta` says.
        if !has_former || self.uppers.names_taken(&meta.stamp()) > 0 {
            return Vec::new();
        }
        let mut former = self.nodes.names(node);
        former.retain(|(dir, former)| (*dir, &**former) != (parent, name) && !self.acts_in(*dir));
        former.iter().for_each(|(dir, former)| self.nodes.part_below(node, *dir, former));
        former
    }
}
