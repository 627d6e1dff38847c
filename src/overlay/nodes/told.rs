//! What the kernel was told of nodes, and what it has cached of them.

use super::node::{FileInUse, LandedCtime};
use super::print::{ContentPrint, Print};
use super::{NodeId, Nodes};
use crate::model::{RelPath, Stamp};
use crate::sys::file::Meta;

/// Which attributes of a node the kernel was told since it was last made to forget them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::overlay) enum Told {
    #[default]
    Nothing,
    These(Print),
    /// Of answers that were under way at once, nobody knows which came last.
    Several,
}

impl Told {
    /// Whether the kernel has no other attributes than these.
    pub fn is_at_most(self, stamp: &Stamp) -> bool {
        match self {
            Self::Nothing => true,
            Self::These(_) => self.is(stamp),
            Self::Several => false,
        }
    }

    /// Whether the kernel has these attributes.
    pub fn is(self, stamp: &Stamp) -> bool {
        self == Self::These(Print::of(stamp))
    }
}

impl Nodes {
    /// Attributes that are on their way to the kernel.
    pub fn note_told(&mut self, id: NodeId, stamp: &Stamp) {
        if let Some(node) = self.nodes.get_mut(id) {
            let now = Told::These(Print::of(stamp));
            node.told = if node.told == Told::Nothing || node.told == now { now } else { Told::Several };
        }
    }

    /// What the kernel was told of a node was `before`, as far as anybody knows, and holds for `now` as well. False where
    /// it may have something else.
    pub fn tell_holds(&mut self, id: NodeId, before: Option<&Stamp>, now: &Stamp) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let holds = match (node.told, before) {
            (told @ Told::These(_), Some(before)) => told.is(before),
            (Told::These(_), None) => true,
            (Told::Nothing | Told::Several, _) => false,
        };
        if holds {
            node.told = Told::These(Print::of(now));
        }
        holds
    }

    pub fn told(&self, id: NodeId) -> Told {
        self.nodes.get(id).map(|node| node.told).unwrap_or_default()
    }

    /// The kernel is about to be made to forget a node's attributes.
    pub fn untold(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.told = Told::Nothing;
        }
    }

    /// The same where nobody has looked before.
    pub fn note_first_shown(&mut self, id: NodeId, stamp: &Stamp) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.shown.get_or_insert_with(|| ContentPrint::of(stamp));
        }
    }

    /// Programs know of this content from now on. Gives what they knew.
    pub fn note_shown(&mut self, id: NodeId, stamp: &Stamp) -> Option<ContentPrint> {
        self.nodes.get_mut(id)?.shown.replace(ContentPrint::of(stamp))
    }

    /// What programs saw as `shown` has landed, as `below`.
    pub fn keep_ctime(&mut self, path: &RelPath, shown: &Meta, below: &Meta) {
        if let Some(node) = self.at(path).and_then(|id| self.nodes.get_mut(id)) {
            node.rare().landed = Some(LandedCtime { below: below.ctime, shown: shown.ctime });
        }
    }

    /// The same attributes with the ctime that programs see, and the links: what is apart is about to be a copy, which has
    /// no other name.
    pub fn as_seen(&self, id: NodeId, meta: Meta) -> Meta {
        let Some(rare) = self.nodes.get(id).and_then(|node| node.rare.as_ref()) else { return meta };
        let landed = rare.landed.filter(|landed| landed.below == meta.ctime);
        let links = if rare.apart.is_some() { 1 } else { meta.links };
        Meta { ctime: landed.map_or(meta.ctime, |landed| landed.shown), links, ..meta }
    }

    /// Notes of which content the kernel's cache is from now on; gives whether it was of this, if it was of any.
    pub fn set_cached(&mut self, id: NodeId, stamp: &Stamp) -> Option<bool> {
        let node = self.nodes.get_mut(id)?;
        if let Some(in_use) = &mut node.in_use {
            in_use.cached = Some(ContentPrint::of(stamp));
        }
        let now = Print::of(stamp);
        Some(node.cached.replace(now)? == now)
    }

    /// From now on the kernel's cache is of content that lower does not have.
    pub fn caches_upper(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.cached = None;
        }
    }

    /// Whether the kernel's cache may have other content than this of a file that somebody has open.
    pub fn caches_other(&self, id: NodeId, content: ContentPrint) -> bool {
        let Some(in_use) = self.nodes.get(id).and_then(|node| node.in_use.as_ref()) else { return false };
        match (in_use.cached, &in_use.file) {
            (Some(cached), _) => cached != content,
            // Of what was held until a moment ago, nobody has noted it.
            (None, FileInUse::Judged(_)) => true,
            (None, FileInUse::Passed(_)) => false,
        }
    }

    /// From here on the kernel may write to it by itself.
    pub fn note_written_past(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.written_past = true;
        }
    }
}
