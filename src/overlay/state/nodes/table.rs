//! Every node, found by its number, by each of its names, and by the lower inode that it stands for.
//!
//! Nodes are stored side by side and the tables refer to them: a name, a number and a key are stored in their node alone.
//!
//! Invariants:
//! 1. `by_id` has the slot of every node, `free` all other slots.
//! 2. `by_name` has each node with exactly one name, `by_names` every other node, once for each of its names. No two
//!    nodes have the same name.
//! 3. A node's `children` is how many nodes have a name in it.
//! 4. Of the nodes with the same `lower` at most one is `found_by_lower`: by its number if that is the lower inode's, as
//!    with nearly all, and otherwise by `by_lower`, which has no others.

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::lower::Lower;
use super::names::{Name, Names};
use super::{Node, NodeId};
use crate::model::InodeKey;

/// The place of a node in `slots`.
type Slot = u32;

/// With fewer slots than this, compacting is not worth it.
const COMPACT_SLOTS_MIN: usize = 4096;

/// A name of the node at `slot`. The hash is stored because the node has several names and cannot tell which this is.
struct Named {
    hash: u64,
    slot: Slot,
}

#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Node>>,
    free: Vec<Slot>,
    by_id: HashTable<Slot>,
    by_name: HashTable<Slot>,
    by_names: HashTable<Named>,
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
        Some(at(&self.slots, self.named(parent, name)?)?.id)
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

    /// Adds a node that has no name yet and whose number is free. Its lower inode leads to it from now on.
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

    /// Removes a node with its names. Returns the directories that these were in.
    pub fn remove(&mut self, id: NodeId) -> Vec<NodeId> {
        let Some(slot) = self.slot(id) else { return Vec::new() };
        self.lose_by_names(slot);
        self.lose_by_lower(id);
        let Self { slots, free, by_id, hasher, .. } = self;
        if let Ok(found) = by_id.find_entry(hasher.hash_one(id), |found| *found == slot) {
            found.remove();
        }
        let gone = slots[slot as usize].take();
        free.push(slot);
        let dirs: Vec<NodeId> = gone.iter().flat_map(|node| node.names.iter()).map(|name| name.parent).collect();
        for dir in &dirs {
            self.children_of(*dir, |children| children - 1);
        }
        if self.slots.len() >= COMPACT_SLOTS_MIN && self.len() < self.slots.len() / 4 {
            self.compact();
        }
        dirs
    }

    /// Gives a node a name that no other node has.
    pub fn add_name(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        let Some(slot) = self.slot(id) else { return };
        match self.names(slot).len() {
            0 | 1 => {
                self.lose_by_names(slot);
                self.change_names(slot, |names| names.push(parent, name));
                self.find_by_names(slot);
            }
            // A file may have thousands of names.
            _ => {
                self.change_names(slot, |names| names.push(parent, name));
                find_by_one(&mut self.by_names, name_hash(&self.hasher, parent, name), slot);
            }
        }
        self.children_of(parent, |children| children + 1);
    }

    /// Takes a name away. Returns the node that had it.
    pub fn remove_name(&mut self, parent: NodeId, name: &OsStr) -> Option<NodeId> {
        let slot = self.named(parent, name)?;
        match self.names(slot).len() {
            0..=2 => {
                self.lose_by_names(slot);
                self.change_names(slot, |names| names.remove(parent, name));
                self.find_by_names(slot);
            }
            _ => {
                lose_by_one(&mut self.by_names, name_hash(&self.hasher, parent, name), slot);
                self.change_names(slot, |names| names.remove(parent, name));
            }
        }
        self.children_of(parent, |children| children - 1);
        Some(at(&self.slots, slot)?.id)
    }

    fn names(&self, slot: Slot) -> &[Name] {
        at(&self.slots, slot).map_or(&[], |node| &node.names)
    }

    fn change_names(&mut self, slot: Slot, change: impl FnOnce(&mut Names)) {
        if let Some(node) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            change(&mut node.names);
        }
    }

    fn children_of(&mut self, dir: NodeId, now: impl FnOnce(u32) -> u32) {
        if let Some(dir) = self.get_mut(dir) {
            dir.children = now(dir.children);
        }
    }

    /// Makes its names lead to the node.
    fn find_by_names(&mut self, slot: Slot) {
        let Self { slots, by_name, by_names, hasher, .. } = self;
        let hash = |name: &Name| name_hash(hasher, name.parent, &name.name);
        match at(slots, slot).map_or(&[][..], |node| &node.names) {
            [only] => drop(by_name.insert_unique(hash(only), slot, |slot| only_name_hash(slots, hasher, *slot))),
            several => several.iter().for_each(|name| find_by_one(by_names, hash(name), slot)),
        }
    }

    /// Makes its names lead to the node no more.
    fn lose_by_names(&mut self, slot: Slot) {
        let Self { slots, by_name, by_names, hasher, .. } = self;
        let hash = |name: &Name| name_hash(hasher, name.parent, &name.name);
        match at(slots, slot).map_or(&[][..], |node| &node.names) {
            [only] => drop(by_name.find_entry(hash(only), |found| *found == slot).map(|found| found.remove())),
            several => several.iter().for_each(|name| lose_by_one(by_names, hash(name), slot)),
        }
    }

    /// Makes a node stand for another lower inode, and be found by it.
    pub fn set_lower(&mut self, id: NodeId, lower: Option<InodeKey>) {
        self.lose_by_lower(id);
        if let Some(node) = self.get_mut(id) {
            node.lower = lower.map(Lower::of);
        }
        self.find_by_lower(id);
    }

    /// Makes this the node that its lower inode leads to.
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

    /// Makes its lower inode lead to the node no more. Another node with the same one goes on being found.
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

    /// The slot of the node that has a name.
    fn named(&self, parent: NodeId, name: &OsStr) -> Option<Slot> {
        let hash = name_hash(&self.hasher, parent, name);
        let has_name =
            |slot: Slot| at(&self.slots, slot).is_some_and(|node| node.names.position(parent, name).is_some());
        let only = self.by_name.find(hash, |slot| has_name(*slot)).copied();
        only.or_else(|| Some(self.by_names.find(hash, |named| named.hash == hash && has_name(named.slot))?.slot))
    }

    /// Gives back the room of removed nodes, once most are.
    fn compact(&mut self) {
        let Self { slots, free, by_id, by_name, by_names, by_lower, hasher } = self;
        let mut moved: Vec<Slot> = vec![0; slots.len()];
        (0..).zip(by_id.iter_mut()).for_each(|(new, slot)| moved[std::mem::replace(slot, new) as usize] = new);
        by_name.iter_mut().for_each(|slot| *slot = moved[*slot as usize]);
        by_names.iter_mut().for_each(|named| named.slot = moved[named.slot as usize]);
        by_lower.iter_mut().for_each(|slot| *slot = moved[*slot as usize]);
        let mut kept: Vec<Option<Node>> = Vec::new();
        kept.resize_with(by_id.len(), || None);
        let nodes = std::mem::take(slots).into_iter().zip(moved).filter(|(node, _)| node.is_some());
        nodes.for_each(|(node, new)| kept[new as usize] = node);
        (*slots, *free) = (kept, Vec::new());
        by_id.shrink_to_fit(|slot| id_hash(slots, hasher, *slot));
        by_name.shrink_to_fit(|slot| only_name_hash(slots, hasher, *slot));
        by_names.shrink_to_fit(|named| named.hash);
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

fn id_hash(slots: &[Option<Node>], hasher: &RandomState, slot: Slot) -> u64 {
    at(slots, slot).map_or(0, |node| hasher.hash_one(node.id))
}

fn lower_hash(slots: &[Option<Node>], hasher: &RandomState, slot: Slot) -> u64 {
    at(slots, slot).and_then(Node::lower).map_or(0, |key| hasher.hash_one(key))
}

/// Makes one of several names of the node at `slot` lead to it.
fn find_by_one(by_names: &mut HashTable<Named>, hash: u64, slot: Slot) {
    by_names.insert_unique(hash, Named { hash, slot }, |named| named.hash);
}

/// Makes that name lead to it no more.
fn lose_by_one(by_names: &mut HashTable<Named>, hash: u64, slot: Slot) {
    if let Ok(found) = by_names.find_entry(hash, |found| found.slot == slot && found.hash == hash) {
        found.remove();
    }
}

fn name_hash(hasher: &RandomState, parent: NodeId, name: &OsStr) -> u64 {
    hasher.hash_one((parent, name))
}

/// The hash of the name of a node that has only one.
fn only_name_hash(slots: &[Option<Node>], hasher: &RandomState, slot: Slot) -> u64 {
    let name = at(slots, slot).and_then(|node| node.names.first());
    name.map_or(0, |name| name_hash(hasher, name.parent, &name.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::overlay::state::nodes::ROOT;
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
        let linked = |inode: u64| inode.is_multiple_of(3);
        for inode in (first..all).filter(|inode| linked(*inode)) {
            table.add_name(NodeId(inode), ROOT, format!("g{inode}").as_ref());
        }
        let (other_number, below) = (NodeId(1 << 51), key(1));
        table.insert(Node::new(other_number, FileKind::Regular, Some(below)));
        for inode in (first..all).filter(|inode| !stays(*inode)) {
            let names = if linked(inode) { 2 } else { 1 };
            assert_eq!(table.remove(NodeId(inode)), vec![ROOT; names]);
        }
        assert!(table.slots.len() < 3 * table.len() && table.by_name.capacity() < 4 * table.len());
        (all..all + 1000).for_each(|inode| add(&mut table, inode));
        for inode in first..all + 1000 {
            let found = (stays(inode) || inode >= all).then_some(NodeId(inode));
            let by_name = table.child(ROOT, format!("f{inode}").as_ref());
            let by_id = table.get(NodeId(inode)).map(|node| node.id);
            assert_eq!([by_name, by_id, table.of_lower(key(inode))], [found; 3]);
            let other_name = table.child(ROOT, format!("g{inode}").as_ref());
            assert_eq!(other_name, found.filter(|_| inode < all && linked(inode)));
        }
        assert_eq!(table.of_lower(below), Some(other_number));
        let names: usize = table.iter().map(|node| node.names.len()).sum();
        assert_eq!(table.get(ROOT).map(|root| root.children as usize), Some(names));
    }

    /// There may be a million: another field for each of them is worth a thought.
    #[test]
    fn a_node_takes_120_bytes() {
        assert_eq!(size_of::<Option<Node>>(), 120);
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

    /// Whatever number of them it has, and whichever comes or goes.
    #[test]
    fn of_several_names_each_is_found_until_it_goes() {
        let mut table = table(10..11);
        let name = |number: usize| format!("link{number}");
        let mut there: Vec<usize> = Vec::new();
        for number in [0, 1, 2, 3, 1, 0, 4, 3, 2, 4, 5] {
            match there.iter().position(|known| *known == number) {
                Some(at) => {
                    there.remove(at);
                    assert_eq!(table.remove_name(ROOT, name(number).as_ref()), Some(NodeId(10)));
                }
                None => {
                    there.push(number);
                    table.add_name(NodeId(10), ROOT, name(number).as_ref());
                }
            }
            let found = (0..6).filter(|number| table.child(ROOT, name(*number).as_ref()).is_some());
            let mut sorted = there.clone();
            sorted.sort_unstable();
            assert_eq!(found.collect::<Vec<_>>(), sorted);
        }
        assert_eq!(table.remove(NodeId(10)), [ROOT; 2]);
        assert_eq!((table.by_name.len(), table.by_names.len()), (0, 0));
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
