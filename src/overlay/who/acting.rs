//! Requests that act in a directory, and requests that rename one: a path stays what it is while a request works on it.
//!
//! The kernel locks the directories whose names a request changes, and none above them. So a request that changes a name
//! or attributes says in which directory. A rename of that directory, or of one above it, waits until the request is
//! done, and requests that come later wait for the rename. Other requests do not wait, and none waits for itself: a
//! request says it once, and a directory is never renamed into itself. What is found below in such a directory meanwhile
//! may be half of an operation.

use std::collections::BTreeSet;

use crate::model::RelPath;
use crate::overlay::names::rename::End;
use crate::overlay::{NodeId, Overlay, ROOT, State};
use crate::sys::file::FileKind;

#[derive(Default)]
pub(in crate::overlay) struct Shape {
    /// Directories in which requests work, one entry for each request.
    acting: Vec<NodeId>,
    /// Directories that are being renamed, or will be once no request works in them.
    renaming: Vec<NodeId>,
}

/// Until this is dropped, the directories stay where they are.
pub(in crate::overlay) struct Acting<'a, D: AsRef<[NodeId]>> {
    overlay: &'a Overlay,
    dirs: D,
}

/// Until this is dropped, no request begins to work in the directories.
pub(in crate::overlay) struct Renaming<'a> {
    overlay: &'a Overlay,
    dirs: Vec<NodeId>,
}

impl Overlay {
    /// Waits while one of the directories is being renamed. A request must not ask twice: it might wait for itself.
    pub(in crate::overlay) fn acting<D: AsRef<[NodeId]>>(&self, dirs: D) -> Acting<'_, D> {
        let mut state = self.state.lock();
        while dirs.as_ref().iter().any(|dir| state.is_being_renamed(*dir)) {
            self.changed.wait(&mut state);
        }
        state.shape.acting.extend(dirs.as_ref());
        Acting { overlay: self, dirs }
    }

    /// The same for an operation on a node, whose path has the names of the directories above it.
    pub(in crate::overlay) fn acting_on(&self, node: NodeId) -> impl Drop + '_ {
        // The rename of a directory itself changes its path as well.
        let is_dir = self.state.lock().nodes.get(node).is_ok_and(|node| node.kind == FileKind::Directory);
        self.acting([if is_dir { node } else { self.parent_of(node) }])
    }

    /// The same for operations at paths, in the lowest directories above them that the kernel knows.
    pub(in crate::overlay) fn acting_at<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) -> impl Drop + '_ {
        let dirs: BTreeSet<NodeId> = {
            let state = self.state.lock();
            paths.map(|path| state.nodes.lowest_above(path)).collect()
        };
        self.acting(Vec::from_iter(dirs))
    }

    /// For a rename of these. Those that are directories take along all that is in them, so requests that act there go
    /// first.
    pub(in crate::overlay) fn renaming(&self, ends: &[&End]) -> Renaming<'_> {
        let mut state = self.state.lock();
        let dirs = ends.iter().filter(|end| end.is_dir());
        let dirs: Vec<NodeId> = dirs.filter_map(|end| state.nodes.child(end.parent, &end.name)).collect();
        // Before the wait, so that new requests do not prolong it.
        state.shape.renaming.extend(&dirs);
        while state.acts_within(&dirs) {
            self.changed.wait(&mut state);
        }
        Renaming { overlay: self, dirs }
    }
}

impl State {
    /// True if a request is changing something in a directory at this moment.
    pub(in crate::overlay) fn acts_in(&self, dir: NodeId) -> bool {
        self.shape.acting.contains(&dir)
    }

    fn is_being_renamed(&self, dir: NodeId) -> bool {
        let renaming = &self.shape.renaming;
        !renaming.is_empty() && self.nodes.self_and_above(dir).any(|above| renaming.contains(&above))
    }

    fn acts_within(&self, dirs: &[NodeId]) -> bool {
        let acting = self.shape.acting.iter();
        acting.flat_map(|dir| self.nodes.self_and_above(*dir)).any(|above| dirs.contains(&above))
    }
}

impl crate::overlay::Nodes {
    fn lowest_above(&self, path: &RelPath) -> NodeId {
        let mut dir = ROOT;
        for name in path.parent().unwrap_or_default().components() {
            let Some(below) = self.child(dir, name) else { break };
            dir = below;
        }
        dir
    }

    fn self_and_above(&self, dir: NodeId) -> impl Iterator<Item = NodeId> {
        let above = |dir: &NodeId| self.get(*dir).ok()?.names.first().map(|name| name.parent);
        std::iter::successors(Some(dir), move |dir| above(dir).filter(|_| *dir != ROOT))
    }
}

impl<D: AsRef<[NodeId]>> Drop for Acting<'_, D> {
    fn drop(&mut self) {
        let mut state = self.overlay.state.lock();
        take_each(&mut state.shape.acting, self.dirs.as_ref());
        if !state.shape.renaming.is_empty() {
            self.overlay.changed.notify_all();
        }
    }
}

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        if !self.dirs.is_empty() {
            take_each(&mut self.overlay.state.lock().shape.renaming, &self.dirs);
            self.overlay.changed.notify_all();
        }
    }
}

/// Takes each of `those` once out of `all`.
fn take_each(all: &mut Vec<NodeId>, those: &[NodeId]) {
    for one in those {
        if let Some(at) = all.iter().position(|other| other == one) {
            all.swap_remove(at);
        }
    }
}
