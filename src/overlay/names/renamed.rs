//! Which node stands for which name in the view after a rename.

use std::ffi::OsStr;

use super::rename::End;
use crate::overlay::state::nodes::Nodes;
use crate::overlay::{NodeId, Overlay, State};
use crate::policy::rules::Action;

/// What the kernel must be told of a rename, with no lock held.
#[must_use]
pub(super) enum Renamed {
    /// The node goes on under its new name.
    Moved,
    /// The same, and the node that it had been set apart from has a link less.
    MovedApart(NodeId),
    /// The new name stands for another node. The old node, if there is one, goes on without a name, or with a link less.
    Parted(Option<NodeId>),
}

impl Nodes {
    /// Makes one of a node's names the first, the one its path is made of.
    fn promote(&mut self, node: NodeId, parent: NodeId, name: &OsStr) {
        if let Ok(node) = self.get_mut(node)
            && let Some(index) = node.names.position(parent, name)
        {
            node.names.swap(0, index);
        }
    }
}

impl Overlay {
    pub(super) fn tell_renamed(&self, to: &End, renamed: Renamed) {
        match renamed {
            Renamed::Moved => {}
            Renamed::MovedApart(node) => self.forget_attributes(node),
            Renamed::Parted(node) => {
                self.tell(|observer| observer.entry_changed(to.parent, &to.name));
                node.into_iter().for_each(|node| self.forget_attributes(node));
            }
        }
    }
}

impl State {
    /// What arrives is a copy of the source, with a node of its own. Names that the source got meanwhile are not the
    /// copy's.
    pub(super) fn renamed_as_copy(&mut self, from: &End, to: &End) -> Renamed {
        let node = self.nodes.child(from.parent, &from.name);
        if node.is_none_or(|node| self.nodes.names(node).len() < 2) {
            return self.renamed(from, to);
        }
        self.epoch += 1;
        self.nodes.unname(to.parent, &to.name);
        self.nodes.unname(from.parent, &from.name);
        Renamed::Parted(node)
    }

    /// Gives the source's node the target's name.
    pub(super) fn renamed(&mut self, from: &End, to: &End) -> Renamed {
        self.epoch += 1;
        let node = self.nodes.child(from.parent, &from.name);
        self.nodes.unname(to.parent, &to.name);
        let Some(node) = node else { return Renamed::Moved };
        if from.action == Action::Pass && to.action != Action::Pass && self.part_if_passed(node) {
            return Renamed::Parted(Some(node));
        }
        let other = self.nodes.end_apart(node);
        // Named anew before the old name goes, so that it is never without one.
        self.nodes.name(node, to.parent, &to.name);
        self.nodes.unname(from.parent, &from.name);
        self.nodes.promote(node, to.parent, &to.name);
        other.map_or(Renamed::Moved, Renamed::MovedApart)
    }

    /// Lower's file has moved from the name that goes to another of its names. If the name that goes was set apart, its
    /// node is about to stand for what it is renamed over, and the other names have a node of their own.
    pub(super) fn moved_below(&mut self, from: &End, to: &End) -> Renamed {
        let [goes, stays] = [from, to].map(|end| self.nodes.child(end.parent, &end.name));
        if stays.is_none() || stays == goes {
            return self.renamed(from, to);
        }
        self.epoch += 1;
        Renamed::Moved
    }

    /// What arrives at each end is a copy. A node with other names keeps those, and its handles go on with them. Returns
    /// the ends that stand for other nodes than the kernel takes them for.
    pub(super) fn exchanged_as_copies<'a>(&mut self, from: &'a End, to: &'a End) -> Vec<(&'a End, Renamed)> {
        let mut parted = Vec::new();
        for (end, arrival) in [(from, to), (to, from)] {
            let Some(node) = self.nodes.child(end.parent, &end.name) else { continue };
            if self.nodes.names(node).len() > 1 {
                self.nodes.unname(end.parent, &end.name);
                parted.push((arrival, Renamed::Parted(Some(node))));
            } else if let Some(other) = self.nodes.end_apart(node) {
                parted.push((arrival, Renamed::MovedApart(other)));
            }
        }
        self.exchanged(from, to);
        parted
    }

    /// Each of the two nodes has the other's name, as far as there are two.
    pub(super) fn exchanged(&mut self, from: &End, to: &End) {
        let (a, b) = (self.nodes.child(from.parent, &from.name), self.nodes.child(to.parent, &to.name));
        for (node, end) in [(a, to), (b, from)] {
            if let Some(node) = node {
                self.nodes.name(node, end.parent, &end.name);
                self.nodes.promote(node, end.parent, &end.name);
            }
        }
        // If one was never looked up, the other has kept the name it had.
        for (node, end) in [(a, to), (b, from)] {
            if node.is_none() {
                self.nodes.unname(end.parent, &end.name);
            }
        }
    }
}
