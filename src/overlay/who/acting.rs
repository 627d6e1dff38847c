//! Who acts in a directory, and who renames one: a path that somebody works on stays what it is until he is done.
//!
//! The kernel locks the directories whose names a request changes, and none above them. So whoever changes a name or the
//! attributes of something says in which directory; a rename of that directory, or of one above it, waits until he is
//! done, and whoever comes then waits for the rename. Nobody else waits, and nobody for himself: a request says it once,
//! and a directory is never renamed into itself. What is seen below of such a directory meanwhile is half of something.

use std::collections::BTreeSet;

use crate::model::RelPath;
use crate::overlay::names::rename::End;
use crate::overlay::{NodeId, Overlay, ROOT, State};
use crate::sys::file::FileKind;

#[derive(Default)]
pub(in crate::overlay) struct Shape {
    /// Directories in which somebody works, each as often.
    acting: Vec<NodeId>,
    /// Directories that are being renamed, or are to be once nobody works in them.
    renaming: Vec<NodeId>,
}

/// Until it is dropped the directories stay where they are.
pub(in crate::overlay) struct Acting<'a, D: AsRef<[NodeId]>> {
    overlay: &'a Overlay,
    dirs: D,
}

/// Until it is dropped nobody begins to work in the directories.
pub(in crate::overlay) struct Renaming<'a> {
    overlay: &'a Overlay,
    dirs: Vec<NodeId>,
}

impl Overlay {
    /// Not to be asked twice by one request, which might wait for itself.
    pub(in crate::overlay) fn acting<D: AsRef<[NodeId]>>(&self, dirs: D) -> Acting<'_, D> {
        let mut state = self.state.lock();
        while dirs.as_ref().iter().any(|dir| state.is_being_renamed(*dir)) {
            self.changed.wait(&mut state);
        }
        state.shape.acting.extend(dirs.as_ref());
        Acting { overlay: self, dirs }
    }

    /// The same for what is done to a node, whose path has the names of the directories above it.
    pub(in crate::overlay) fn acting_on(&self, node: NodeId) -> impl Drop + '_ {
        // A directory that is itself renamed has another path then.
        let is_dir = self.state.lock().nodes.get(node).is_ok_and(|node| node.kind == FileKind::Directory);
        self.acting([if is_dir { node } else { self.parent_of(node) }])
    }

    /// The same for what is done at paths, in the lowest directories above them that the kernel knows.
    pub(in crate::overlay) fn acting_at<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) -> impl Drop + '_ {
        let dirs: BTreeSet<NodeId> = {
            let state = self.state.lock();
            paths.map(|path| state.nodes.lowest_above(path)).collect()
        };
        self.acting(Vec::from_iter(dirs))
    }

    /// For a rename of these, of which those that are directories take along all that is in them.
    pub(in crate::overlay) fn renaming(&self, ends: &[&End]) -> Renaming<'_> {
        let mut state = self.state.lock();
        let dirs = ends.iter().filter(|end| end.is_dir());
        let dirs: Vec<NodeId> = dirs.filter_map(|end| state.nodes.child(end.parent, &end.name)).collect();
        // Before the wait, so that it ends.
        state.shape.renaming.extend(&dirs);
        while state.acts_within(&dirs) {
            self.changed.wait(&mut state);
        }
        Renaming { overlay: self, dirs }
    }
}

impl State {
    /// Whether somebody is changing something in a directory at this moment.
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

/// Each of `those` once out of `all`.
fn take_each(all: &mut Vec<NodeId>, those: &[NodeId]) {
    for one in those {
        if let Some(at) = all.iter().position(|other| other == one) {
            all.swap_remove(at);
        }
    }
}
