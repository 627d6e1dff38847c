//! What the kernel was told of nodes, and what it has cached of them.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

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
    /// Several replies were under way at once, and which of them came last is unknown.
    Several,
}

impl Told {
    /// True if the kernel has no attributes other than these.
    pub fn is_at_most(self, stamp: &Stamp) -> bool {
        match self {
            Self::Nothing => true,
            Self::These(_) => self.is(stamp),
            Self::Several => false,
        }
    }

    /// True if the kernel has these attributes.
    pub fn is(self, stamp: &Stamp) -> bool {
        self == Self::These(Print::of(stamp))
    }
}

/// What kind of request attributes are the reply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Asked {
    /// The kernel drops them if it was made to forget the node's attributes before they came.
    ToLook,
    /// The kernel takes them for the newest, whenever they come.
    ToChange,
}

/// Whether the kernel is to be made to forget something once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Again {
    Never,
    Soon,
}

/// Nodes whose attributes were the reply to a change: the last of these replies may not have arrived yet.
#[derive(Default)]
pub(super) struct Answered {
    latest: HashMap<NodeId, Instant>,
    in_order: VecDeque<(Instant, NodeId)>,
}

/// So long after it was made, a reply has arrived. The program it wakes has to get hold of a processor first, and one that
/// may use only a share of them waits some tenths of a second for the next.
const UNDER_WAY: Duration = Duration::from_millis(500);

impl Answered {
    fn note(&mut self, id: NodeId, now: Instant) {
        while let Some((at, id)) = self.in_order.pop_front_if(|(at, _)| now - *at > UNDER_WAY) {
            if self.latest.get(&id) == Some(&at) {
                self.latest.remove(&id);
            }
        }
        self.latest.insert(id, now);
        self.in_order.push_back((now, id));
    }

    fn is_under_way(&self, id: NodeId, now: Instant) -> bool {
        self.latest.get(&id).is_some_and(|at| now - *at <= UNDER_WAY)
    }
}

impl Nodes {
    /// Notes attributes that are on their way to the kernel.
    pub fn note_told(&mut self, id: NodeId, stamp: &Stamp, asked: Asked) {
        if let Some(node) = self.nodes.get_mut(id) {
            let now = Told::These(Print::of(stamp));
            node.told = if node.told == Told::Nothing || node.told == now { now } else { Told::Several };
        }
        if asked == Asked::ToChange {
            self.answered.note(id, Instant::now());
        }
    }

    /// What the kernel was told of a node, `before` as far as that is known, holds for `now` as well. Returns false if it
    /// may have been told something else.
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

    /// Called when the kernel is made to forget a node's attributes and no reply can be under way. Returns what it was
    /// told of them.
    pub fn untold(&mut self, id: NodeId) -> Told {
        self.nodes.get_mut(id).map(|node| std::mem::take(&mut node.told)).unwrap_or_default()
    }

    /// The same if a reply may be under way: then the kernel must be made to forget them once more.
    pub fn untold_meanwhile(&mut self, id: NodeId, now: Instant) -> (Told, Again) {
        let is_under_way = self.answered.is_under_way(id, now);
        match self.nodes.get_mut(id).filter(|node| is_under_way && node.told != Told::Nothing) {
            Some(node) => (std::mem::replace(&mut node.told, Told::Several), Again::Soon),
            None => (self.untold(id), Again::Never),
        }
    }

    /// Notes the content that programs know of from now on, unless they knew some before.
    pub fn note_first_shown(&mut self, id: NodeId, stamp: &Stamp) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.shown.get_or_insert_with(|| ContentPrint::of(stamp));
        }
    }

    /// Programs know of this content from now on. Returns what they knew before.
    pub fn note_shown(&mut self, id: NodeId, stamp: &Stamp) -> Option<ContentPrint> {
        self.nodes.get_mut(id)?.shown.replace(ContentPrint::of(stamp))
    }

    /// What programs saw as `shown` has landed as `below`: they go on seeing its ctime.
    pub fn keep_ctime(&mut self, path: &RelPath, shown: &Meta, below: &Meta) {
        if let Some(node) = self.at(path).and_then(|id| self.nodes.get_mut(id)) {
            node.rare().landed = Some(LandedCtime { below: below.ctime, shown: shown.ctime });
        }
    }

    /// `meta` with the ctime and the link count that programs see: a node that is apart is about to be a copy, which has
    /// no other name.
    pub fn as_seen(&self, id: NodeId, meta: Meta) -> Meta {
        let Some(rare) = self.nodes.get(id).and_then(|node| node.rare.as_ref()) else { return meta };
        let landed = rare.landed.filter(|landed| landed.below == meta.ctime);
        let links = if rare.apart.is_some() { 1 } else { meta.links };
        Meta { ctime: landed.map_or(meta.ctime, |landed| landed.shown), links, ..meta }
    }

    /// Notes which content the kernel caches from now on. Returns whether it cached that before; `None` if it cached
    /// none.
    pub fn set_cached(&mut self, id: NodeId, stamp: &Stamp) -> Option<bool> {
        let node = self.nodes.get_mut(id)?;
        if let Some(in_use) = &mut node.in_use {
            in_use.cached = Some(ContentPrint::of(stamp));
        }
        let now = Print::of(stamp);
        Some(node.cached.replace(now)? == now)
    }

    /// From now on the kernel caches content that lower does not have. Returns whether it did before, as far as it cached
    /// any.
    pub fn caches_upper(&mut self, id: NodeId) -> bool {
        self.nodes.get_mut(id).is_none_or(|node| node.cached.take().is_none())
    }

    /// What lower has at a name was written to.
    pub fn note_written_below(&mut self, dir: NodeId, name: &OsStr) {
        let node = self.child(dir, name).and_then(|id| self.nodes.get_mut(id));
        if let Some(in_use) = node.and_then(|node| node.in_use.as_mut()) {
            in_use.written_below = true;
        }
    }

    /// True if the kernel may cache other content of an open file than lower has now. After a write, the ctime tells as
    /// well: whoever wrote may have put the mtime back.
    pub fn caches_other(&mut self, id: NodeId, now: &Stamp) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let Some(in_use) = &mut node.in_use else { return false };
        let was_written = std::mem::take(&mut in_use.written_below);
        let is_hidden_edit = || was_written && node.cached.is_some_and(|cached| cached != Print::of(now));
        match (in_use.cached, &in_use.file) {
            (Some(cached), _) => cached != ContentPrint::of(now) || is_hidden_edit(),
            // The content of a file that was held until a moment ago has not been noted.
            (None, FileInUse::Judged(_)) => true,
            (None, FileInUse::Passed(_)) => false,
        }
    }

    /// From here on the kernel may write to the file by itself.
    pub fn note_written_past(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.written_past = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::ROOT;
    use crate::sys::tree::Tree;

    fn nodes() -> Nodes {
        let dir = tempfile::tempdir().unwrap();
        Nodes::new(&Tree::open(dir.path()).unwrap()).unwrap()
    }

    #[test]
    fn what_may_be_told_after_the_kernel_was_made_to_forget_is_to_be_forgotten_again_until_it_has_come() {
        let (mut nodes, stamp, before) = (nodes(), Stamp::default(), Instant::now());
        nodes.note_told(ROOT, &stamp, Asked::ToChange);
        // Two names of it were looked at.
        for told in [Told::These(Print::of(&stamp)), Told::Several] {
            assert_eq!(nodes.untold_meanwhile(ROOT, before), (told, Again::Soon));
        }
        let after = Instant::now() + UNDER_WAY * 2;
        assert_eq!(nodes.untold_meanwhile(ROOT, after), (Told::Several, Again::Never));
        assert_eq!(nodes.told(ROOT), Told::Nothing);
    }

    #[test]
    fn what_the_kernel_would_not_take_and_what_a_program_has_gone_on_from_is_forgotten_once() {
        let (mut nodes, stamp, before) = (nodes(), Stamp::default(), Instant::now());
        nodes.note_told(ROOT, &stamp, Asked::ToLook);
        assert_eq!(nodes.untold_meanwhile(ROOT, before), (Told::These(Print::of(&stamp)), Again::Never));
        nodes.note_told(ROOT, &stamp, Asked::ToChange);
        nodes.untold(ROOT);
        assert_eq!(nodes.untold_meanwhile(ROOT, before), (Told::Nothing, Again::Never));
    }

    #[test]
    fn answers_that_have_come_are_not_kept() {
        let (mut answered, begin) = (Answered::default(), Instant::now());
        answered.note(ROOT, begin);
        answered.note(NodeId(7), begin + UNDER_WAY * 2);
        assert_eq!((answered.latest.len(), answered.in_order.len()), (1, 1));
        assert!(answered.is_under_way(NodeId(7), begin + UNDER_WAY * 3));
        assert!(!answered.is_under_way(NodeId(7), begin + UNDER_WAY * 4));
    }
}
