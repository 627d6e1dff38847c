//! Every node, found by its number, by each of its names, and by the lower inode that it stands for.
//!
//! Nodes lie side by side, and the three tables have where: a name, a number and a key stand in their node alone.
//!
//! Invariants:
//! 1. `by_id` has the slot of every node, `free` all other slots.
//! 2. `by_name` has a node once for each of its names, and no two nodes have one name.
//! 3. A node's `children` is how many nodes have a name in it.
//! 4. Of the nodes with one `lower` at most one is `found_by_lower`: by its number, where that is the lower inode's as
//!    nearly all have it, else by `by_lower`, which has no others.

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::lower::Lower;
use super::names::Name;
use super::{Node, NodeId};
use crate::sys::file::InodeKey;

/// Where a node lies.
type Slot = u32;

/// Fewer slots than these are not worth giving back.
const COMPACT_SLOTS_MIN: usize = 4096;

/// A name of the node at `slot`. The hash is kept, for a node has several and does not tell which of them this is.
struct Named {
    hash: u32,
    slot: Slot,
}

#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Node>>,
    free: Vec<Slot>,
    by_id: HashTable<Slot>,
    by_name: HashTable<Named>,
    by_lower: HashTable<Slot>,
    hasher: RandomState,
}

impl Table {
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        at(&self.slots, self.slot(id)?)
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        let slot = self.slot(id)?;
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub fn contains(&self, id: NodeId) -> bool {
        self.slot(id).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The node that has a name.
    pub fn child(&self, parent: NodeId, name: &OsStr) -> Option<NodeId> {
        let hash = self.name_hash(parent, name);
        let named = self.by_name.find(spread(hash), |named| is_named(&self.slots, named, hash, parent, name))?;
        Some(at(&self.slots, named.slot)?.id)
    }

    /// The node that stands for a lower inode.
    pub fn of_lower(&self, key: InodeKey) -> Option<NodeId> {
        if self.get(NodeId(key.inode)).is_some_and(|node| node.is_found_by(key)) {
            return Some(NodeId(key.inode));
        }
        let slot = self.by_lower.find(self.hasher.hash_one(key), |slot| is_lower(&self.slots, *slot, key))?;
        Some(at(&self.slots, *slot)?.id)
    }

    /// The keys by which nodes are found.
    pub fn lower_keys(&self) -> impl Iterator<Item = InodeKey> {
        self.iter().filter(|node| node.found_by_lower).filter_map(Node::lower)
    }

    /// Adds a node that has no name yet, whose number is free. What stood for its lower inode does so no more.
    pub fn insert(&mut self, node: Node) {
        let id = node.id;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot::try_from(self.slots.len() - 1).expect("memory ends long before slots do")
        });
        self.slots[slot as usize] = Some(node);
        let Self { slots, by_id, hasher, .. } = self;
        by_id.insert_unique(hasher.hash_one(id), slot, |slot| id_hash(slots, hasher, *slot));
        self.find_by_lower(id);
    }

    /// Takes a node out, with its names. Gives the directories that these were in.
    pub fn remove(&mut self, id: NodeId) -> Vec<NodeId> {
        let names = self.get(id).map(|node| node.names.to_vec()).unwrap_or_default();
        for Name { parent, name } in &names {
            self.remove_name(*parent, name);
        }
        self.lose_by_lower(id);
        let Self { slots, by_id, hasher, .. } = self;
        if let Ok(found) = by_id.find_entry(hasher.hash_one(id), |slot| is_id(slots, *slot, id)) {
            let (slot, _) = found.remove();
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
        if self.slots.len() >= COMPACT_SLOTS_MIN && self.len() < self.slots.len() / 4 {
            self.compact();
        }
        names.into_iter().map(|name| name.parent).collect()
    }

    /// Gives a node a name that nobody has.
    pub fn add_name(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        let Some(slot) = self.slot(id) else { return };
        let hash = self.name_hash(parent, name);
        if let Some(node) = self.get_mut(id) {
            node.names.push(parent, name);
        }
        self.by_name.insert_unique(spread(hash), Named { hash, slot }, |named| spread(named.hash));
        if let Some(above) = self.get_mut(parent) {
            above.children += 1;
        }
    }

    /// Takes a name from whoever has it, and gives who that was.
    pub fn remove_name(&mut self, parent: NodeId, name: &OsStr) -> Option<NodeId> {
        let hash = self.name_hash(parent, name);
        let Self { slots, by_name, .. } = self;
        let found = by_name.find_entry(spread(hash), |named| is_named(slots, named, hash, parent, name));
        let (Named { slot, .. }, _) = found.ok()?.remove();
        let node = slots.get_mut(slot as usize)?.as_mut()?;
        node.names.remove(parent, name);
        let id = node.id;
        if let Some(above) = self.get_mut(parent) {
            above.children -= 1;
        }
        Some(id)
    }

    /// A node stands for another lower inode, and is found by it.
    pub fn set_lower(&mut self, id: NodeId, lower: Option<InodeKey>) {
        self.lose_by_lower(id);
        if let Some(node) = self.get_mut(id) {
            node.lower = lower.map(Lower::of);
        }
        self.find_by_lower(id);
    }

    /// From now on it is this node that its lower inode leads to.
    pub fn find_by_lower(&mut self, id: NodeId) {
        let Some(key) = self.get(id).and_then(Node::lower) else { return };
        match self.of_lower(key) {
            Some(other) if other == id => return,
            Some(other) => self.lose_by_lower(other),
            None => {}
        }
        let Some(slot) = self.slot(id) else { return };
        let Self { slots, by_lower, hasher, .. } = self;
        if let Some(node) = slots.get_mut(slot as usize).and_then(Option::as_mut) {
            node.found_by_lower = true;
        }
        if id != NodeId(key.inode) {
            by_lower.insert_unique(hasher.hash_one(key), slot, |slot| lower_hash(slots, hasher, *slot));
        }
    }

    /// Its lower inode leads to it no more. That of another node, which has the same, goes on.
    pub fn lose_by_lower(&mut self, id: NodeId) {
        let Some(node) = self.get_mut(id) else { return };
        let was_found = std::mem::take(&mut node.found_by_lower);
        let Some(key) = node.lower().filter(|key| was_found && id != NodeId(key.inode)) else { return };
        let Self { slots, by_lower, hasher, .. } = self;
        if let Ok(found) = by_lower.find_entry(hasher.hash_one(key), |slot| is_id(slots, *slot, id)) {
            found.remove();
        }
    }

    fn slot(&self, id: NodeId) -> Option<Slot> {
        self.by_id.find(self.hasher.hash_one(id), |slot| is_id(&self.slots, *slot, id)).copied()
    }

    fn name_hash(&self, parent: NodeId, name: &OsStr) -> u32 {
        (self.hasher.hash_one((parent, name)) >> 32) as u32
    }

    /// Gives back the room of nodes that are gone, once most are.
    fn compact(&mut self) {
        let Self { slots, free, by_id, by_name, by_lower, hasher } = self;
        let mut moved: Vec<Slot> = vec![0; slots.len()];
        (0..).zip(by_id.iter_mut()).for_each(|(new, slot)| moved[std::mem::replace(slot, new) as usize] = new);
        by_name.iter_mut().for_each(|named| named.slot = moved[named.slot as usize]);
        by_lower.iter_mut().for_each(|slot| *slot = moved[*slot as usize]);
        let mut kept: Vec<Option<Node>> = Vec::new();
        kept.resize_with(by_id.len(), || None);
        let nodes = std::mem::take(slots).into_iter().zip(moved).filter(|(node, _)| node.is_some());
        nodes.for_each(|(node, new)| kept[new as usize] = node);
        (*slots, *free) = (kept, Vec::new());
        by_id.shrink_to_fit(|slot| id_hash(slots, hasher, *slot));
        by_name.shrink_to_fit(|named| spread(named.hash));
        by_lower.shrink_to_fit(|slot| lower_hash(slots, hasher, *slot));
    }
}

fn at(slots: &[Option<Node>], slot: Slot) -> Option<&Node> {
    slots.get(slot as usize)?.as_ref()
}

fn is_id(slots: &[Option<Node>], slot: Slot, id: NodeId) -> bool {
    at(slots, slot).is_some_and(|node| node.id == id)
}

fn is_lower(slots: &[Option<Node>], slot: Slot, key: InodeKey) -> bool {
    at(slots, slot).is_some_and(|node| node.lower() == Some(key))
}

fn is_named(slots: &[Option<Node>], named: &Named, hash: u32, parent: NodeId, name: &OsStr) -> bool {
    named.hash == hash && at(slots, named.slot).is_some_and(|node| node.names.position(parent, name).is_some())
}

fn id_hash(slots: &[Option<Node>], hasher: &RandomState, slot: Slot) -> u64 {
    at(slots, slot).map_or(0, |node| hasher.hash_one(node.id))
}

fn lower_hash(slots: &[Option<Node>], hasher: &RandomState, slot: Slot) -> u64 {
    at(slots, slot).and_then(Node::lower).map_or(0, |key| hasher.hash_one(key))
}

/// A table looks at the highest bits and at the lowest.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::overlay::nodes::ROOT;
    use crate::sys::file::FileKind;

    fn key(inode: u64) -> InodeKey {
        InodeKey { device: 1, inode, btime: Timestamp::default() }
    }

    fn add(table: &mut Table, inode: u64) {
        let id = NodeId(inode);
        table.insert(Node::new(id, FileKind::Regular, Some(key(inode))));
        table.add_name(id, ROOT, format!("f{inode}").as_ref());
    }

    fn table(files: std::ops::Range<u64>) -> Table {
        let mut table = Table::default();
        table.insert(Node::new(ROOT, FileKind::Directory, None));
        files.for_each(|inode| add(&mut table, inode));
        table
    }

    #[test]
    fn what_stays_is_found_when_the_room_of_what_went_is_given_back() {
        let (first, all) = (10_u64, 20_000_u64);
        let mut table = table(first..all);
        let stays = |inode: u64| inode.is_multiple_of(7);
        for inode in (first..all).filter(|inode| !stays(*inode)) {
            assert_eq!(table.remove(NodeId(inode)), [ROOT]);
        }
        assert!(table.slots.len() < 3 * table.len() && table.by_name.capacity() < 4 * table.len());
        (all..all + 1000).for_each(|inode| add(&mut table, inode));
        for inode in first..all + 1000 {
            let found = (stays(inode) || inode >= all).then_some(NodeId(inode));
            let by_name = table.child(ROOT, format!("f{inode}").as_ref());
            let by_id = table.get(NodeId(inode)).map(|node| node.id);
            assert_eq!([by_name, by_id, table.of_lower(key(inode))], [found; 3]);
        }
        assert_eq!(table.get(ROOT).map(|root| root.children as usize), Some(table.len() - 1));
    }

    /// There may be a million: another field for each of them is worth a thought.
    #[test]
    fn a_node_takes_128_bytes() {
        assert_eq!(size_of::<Option<Node>>(), 128);
    }

    #[test]
    fn a_lower_inode_leads_to_the_last_node_that_stood_for_it() {
        let mut table = table(10..12);
        table.set_lower(NodeId(11), Some(key(10)));
        assert_eq!([table.of_lower(key(10)), table.of_lower(key(11))], [Some(NodeId(11)), None]);
        table.lose_by_lower(NodeId(10));
        assert_eq!(table.of_lower(key(10)), Some(NodeId(11)));
        table.remove(NodeId(11));
        assert_eq!(table.of_lower(key(10)), None);
    }

    #[test]
    fn each_name_of_a_node_is_found_and_taken_alone() {
        let mut table = table(10..11);
        table.add_name(NodeId(10), ROOT, "other".as_ref());
        assert_eq!(table.remove_name(ROOT, "f10".as_ref()), Some(NodeId(10)));
        assert_eq!(table.remove_name(ROOT, "f10".as_ref()), None);
        assert_eq!(table.child(ROOT, "other".as_ref()), Some(NodeId(10)));
        assert_eq!(table.remove(NodeId(10)), [ROOT]);
        assert_eq!(table.child(ROOT, "other".as_ref()), None);
    }
}
