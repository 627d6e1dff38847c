//! The inodes that the kernel knows, and their names.
//!
//! A node id is the inode number that programs see. It is lower's, unless that number is taken by a node that still
//! lives: then a synthetic one. A node lives while the kernel knows it, a file is open on it, or a child of it lives.
//!
//! There may be a million nodes, so each has only what every node needs: stamps that are only compared are kept as
//! [`print`]s, and what few nodes have is behind one pointer ([`Rare`]). What is known of one node is in [`node`], what
//! the kernel knows of it in [`told`].
//!
//! Invariant: a node is found by its lower inode only while it has a name, is open, or something in it is known;
//! `watched` has the directories with a watch, all of which are found that way; `by_upper` has each node on which an upper
//! entry is open. The invariants of the tables are at the head of [`table`].

mod lower;
mod names;
mod node;
mod print;
mod table;
mod told;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{Births, InodeKey, RelPath, Stamp};
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::Tree;
use crate::sys::watch::{Watch, WatchId};

use crate::overlay::files::handles::OpenFile;
use crate::overlay::files::passed::Passed;
use crate::overlay::outside::watch::TELLING;
use crate::overlay::{Error, Result};
use crate::store::UpperId;
pub(super) use names::Name;
use node::{Apart, FileInUse, InUse, Rare, WatchedDir};
pub(in crate::overlay) use node::{Left, Node, PartedOpen};
pub(in crate::overlay) use print::ContentPrint;
use table::Table;
use told::Answered;
pub(in crate::overlay) use told::{Again, Asked, Told};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// The kernel's name for the root, whatever its inode number.
pub const ROOT: NodeId = NodeId(1);

/// Synthetic numbers lie where no file system's own do, and below 2^53, so that programs that keep inode numbers in
/// floating point still tell them apart.
const SYNTHETIC_FIRST: u64 = 1 << 51;

/// The kernel requests a rename again as soon as it has looked, unless the program is killed in between.
const ASKED_AGAIN_WITHIN: Duration = Duration::from_secs(10);

/// How many paths `told_replaced` may have: far more than threads can be in an open.
const TOLD_REPLACED_MAX: usize = 4096;

/// A name that a directory has lost because it was found under another one.
pub(in crate::overlay) struct NameLeft {
    pub dir: NodeId,
    pub parent: NodeId,
    pub name: OsString,
}

/// The watch of a directory, and how much it had reported. If both are the same again, nothing was reported in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchSeen {
    id: WatchId,
    events: u32,
}

pub(in crate::overlay) struct Nodes {
    nodes: Table,
    watched: HashMap<WatchId, NodeId>,
    /// How often events were lost, of any watch.
    events_lost: u32,
    answered: Answered,
    names_left: Vec<NameLeft>,
    /// Paths at which an open was told that another file is there now. The kernel looks and opens once more, but not a
    /// third time.
    told_replaced: HashSet<RelPath>,
    /// The numbers of landed files: lower has another inode now, and the view keeps the number that it showed.
    kept: HashMap<InodeKey, NodeId>,
    by_upper: BTreeSet<(UpperId, NodeId)>,
    synthetic_next: u64,
    device: u64,
    pub root_inode: u64,
}

impl Nodes {
    pub fn new(lower: &Tree) -> Result<Self> {
        let meta = Meta::of(lower.root())?;
        // The kernel never forgets the root.
        let root = Node { lookups: 1, ..Node::new(ROOT, FileKind::Directory, Some(meta.key())) };
        let mut nodes = Table::default();
        nodes.insert(root);
        Ok(Self {
            nodes,
            watched: HashMap::new(),
            events_lost: 0,
            answered: Answered::default(),
            names_left: Vec::new(),
            told_replaced: HashSet::new(),
            kept: HashMap::new(),
            by_upper: BTreeSet::new(),
            synthetic_next: SYNTHETIC_FIRST,
            device: meta.device,
            root_inode: meta.inode,
        })
    }

    /// The node of an id that the kernel uses; `ESTALE` if there is none.
    pub fn get(&self, id: NodeId) -> Result<&Node> {
        self.nodes.get(id).ok_or(Error::Errno(libc::ESTALE))
    }

    pub fn get_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(id).ok_or(Error::Errno(libc::ESTALE))
    }

    pub fn child(&self, parent: NodeId, name: &OsStr) -> Option<NodeId> {
        self.nodes.child(parent, name)
    }

    /// The path of a node by its first name; `ENOENT` for a node without a name.
    pub fn path(&self, id: NodeId) -> Result<RelPath> {
        self.get(id)?;
        let mut names: Vec<&OsStr> = Vec::new();
        if !self.climb(id, &mut names) {
            return Err(Error::Errno(libc::ENOENT));
        }
        let mut bytes = Vec::new();
        for name in names.iter().rev() {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(*name));
        }
        RelPath::parse(&bytes).map_err(|_| Error::Errno(libc::ENOENT))
    }

    /// Adds the names from a node up to the root. Returns whether they lead there: not if a directory above has gone.
    fn climb<'a>(&'a self, id: NodeId, names: &mut Vec<&'a OsStr>) -> bool {
        let mut at = id;
        // A loop over the directories, each of which has one name: they may be deeper than the stack has room for calls.
        while at != ROOT {
            let Some(node) = self.nodes.get(at) else { return false };
            let [Name { parent, name }] = &node.names[..] else {
                return node.names.iter().any(|Name { parent, name }| {
                    let below = names.len();
                    names.push(name);
                    let leads_up = self.climb(*parent, names);
                    if !leads_up {
                        names.truncate(below);
                    }
                    leads_up
                });
            };
            names.push(name);
            at = *parent;
        }
        true
    }

    /// All paths of a node, that of its first name first. A name in a directory that has gone leads nowhere.
    pub fn paths(&self, id: NodeId) -> Result<Vec<RelPath>> {
        let names = self.get(id)?.names.iter();
        Ok(names.filter_map(|name| self.child_path(name.parent, &name.name).ok()).collect())
    }

    /// The other paths of what is at a path, as far as the kernel knows them.
    pub fn other_paths(&self, path: &RelPath) -> Vec<RelPath> {
        let several = self.at(path).filter(|node| self.has_several_paths(*node));
        let paths = several.and_then(|node| self.paths(node).ok()).unwrap_or_default();
        paths.into_iter().filter(|other| other != path).collect()
    }

    pub fn has_several_paths(&self, id: NodeId) -> bool {
        let several = self.nodes.get(id).is_some_and(|node| node.names.len() > 1);
        several && self.paths(id).is_ok_and(|paths| paths.len() > 1)
    }

    pub fn names(&self, id: NodeId) -> Vec<(NodeId, OsString)> {
        let names = self.nodes.get(id).map(|node| node.names.iter()).into_iter().flatten();
        names.map(|Name { parent, name }| (*parent, name.to_os_string())).collect()
    }

    /// Makes `path` the first name of a node.
    pub fn lead_with(&mut self, id: NodeId, path: &RelPath) {
        let is_path = |name: &Name| self.child_path(name.parent, &name.name).is_ok_and(|name| name == *path);
        let Some(at) = self.nodes.get(id).and_then(|node| node.names.iter().position(is_path)) else { return };
        if let Some(node) = self.nodes.get_mut(id) {
            node.names.swap(0, at);
        }
    }

    /// Every regular file that the kernel knows.
    pub fn files(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| node.kind == FileKind::Regular).map(|file| file.id).collect()
    }

    /// True if a path is one of a node's.
    pub fn is_at(&self, id: NodeId, path: &RelPath) -> bool {
        self.paths(id).is_ok_and(|paths| paths.contains(path))
    }

    pub fn child_path(&self, parent: NodeId, name: &OsStr) -> Result<RelPath> {
        use crate::model::PathError;
        self.path(parent)?.join(name).map_err(|err| match err {
            PathError::NameTooLong => Error::Errno(libc::ENAMETOOLONG),
            PathError::Absolute | PathError::Component | PathError::Nul => Error::Errno(libc::EINVAL),
        })
    }

    /// The node at `path`, if the kernel knows it.
    pub fn at(&self, path: &RelPath) -> Option<NodeId> {
        path.components().try_fold(ROOT, |node, name| self.child(node, name))
    }

    /// The directory and name that `path` stands for, if the kernel knows that directory.
    pub fn entry_at<'a>(&self, path: &'a RelPath) -> Option<(NodeId, &'a OsStr)> {
        Some((self.at(&path.parent()?)?, path.name()?))
    }

    /// The judged open file on a node.
    pub fn open_on(&self, id: NodeId) -> Option<&Arc<OpenFile>> {
        self.nodes.get(id)?.open()
    }

    /// Returns what is open of an upper entry, by whichever name of its file it was opened.
    pub fn open_of(&self, id: UpperId) -> Option<&Arc<OpenFile>> {
        let (_, node) = self.by_upper.range((id, NodeId(0))..=(id, NodeId(u64::MAX))).next()?;
        self.open_on(*node)
    }

    /// True if a node is open, judged or not.
    pub fn is_open(&self, id: NodeId) -> bool {
        self.nodes.get(id).is_some_and(Node::is_open)
    }

    /// The judged open file at a path.
    pub fn open_at(&self, path: &RelPath) -> Option<&Arc<OpenFile>> {
        let node = self.at(path)?;
        self.open_on(node).or_else(|| self.open_on(self.apart(node)?.of))
    }

    /// The node of the file at `path`. If that name is apart, this is the node of the file's other names, unless the
    /// kernel has forgotten that one since.
    pub fn file_at(&self, path: &RelPath) -> Option<NodeId> {
        let node = self.at(path)?;
        let file = self.apart(node).map(|apart| apart.of);
        Some(file.filter(|file| self.nodes.contains(*file)).unwrap_or(node))
    }

    fn apart(&self, id: NodeId) -> Option<Apart> {
        self.nodes.get(id)?.rare.as_ref()?.apart
    }

    /// Gives one of several names a node of its own, until a rename takes the name away or is not requested again in
    /// time. Returns whether the kernel has to look the name up once more; false if it has done so since, or if there is
    /// no other name.
    pub fn set_apart(&mut self, parent: NodeId, name: &OsStr) -> bool {
        let Some(of) = self.child(parent, name).and_then(|id| self.nodes.get(id)) else { return false };
        if of.rare.as_ref().is_some_and(|rare| rare.apart.is_some()) {
            // One reference is ours.
            return of.lookups < 2;
        }
        if of.names.len() < 2 {
            return false;
        }
        let (of, kind, lower) = (of.id, of.kind, of.lower());
        let rare = Rare { apart: Some(Apart { of, since: Instant::now() }), ..Rare::default() };
        let id = self.synthetic();
        // Otherwise the kernel could make it go by forgetting it between two lookups.
        self.nodes.insert(Node { lookups: 1, rare: Some(Box::new(rare)), ..Node::new(id, kind, lower) });
        self.name(id, parent, name);
        self.nodes.find_by_lower(of);
        true
    }

    /// Lets a node that was apart go on by itself, not as one of the file's. Returns the node that it was set apart from.
    pub fn end_apart(&mut self, id: NodeId) -> Option<NodeId> {
        let apart = self.nodes.get_mut(id)?.rare.as_mut()?.apart.take()?;
        self.set_lower(id, None);
        self.forget(id, 1);
        Some(apart.of)
    }

    /// Makes a name that was set apart one of the file's again. Returns false if it was not.
    pub fn rejoin(&mut self, parent: NodeId, name: &OsStr) -> bool {
        let is_apart = self.child(parent, name).is_some_and(|id| self.is_apart(id));
        if is_apart {
            self.unname(parent, name);
        }
        is_apart
    }

    /// True if a node is that of a name set apart from its file's others.
    pub fn is_apart(&self, id: NodeId) -> bool {
        self.apart(id).is_some()
    }

    /// The node for what `parent`/`name` is now, made if there is none. `lower` is `None` for an upper entry.
    pub fn resolve(&mut self, parent: NodeId, name: &OsStr, meta: &Meta, lower: Option<InodeKey>) -> NodeId {
        if let Some(id) = self.child(parent, name) {
            let is_others = lower.is_some_and(|key| self.is_of_another(id, key));
            if self.stands_for(id, meta.kind, lower) && !is_others {
                if lower.is_some() {
                    self.set_lower(id, lower);
                }
                return id;
            }
            // It was replaced below, or is one of several names again: old descriptors keep the old node.
            self.lose_name(parent, name);
        }
        let known = lower.and_then(|key| self.nodes.of_lower(key));
        let id = match known {
            Some(id) if self.nodes.get(id).is_some_and(|node| node.kind == meta.kind) => id,
            _ => self.insert(meta, lower),
        };
        self.name(id, parent, name);
        id
    }

    /// True if a known node is still what stands at its name.
    pub fn stands_for(&self, id: NodeId, kind: FileKind, lower: Option<InodeKey>) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        node.kind == kind && (lower.is_none() || node.lower.is_none() || node.lower() == lower)
    }

    fn insert(&mut self, meta: &Meta, lower: Option<InodeKey>) -> NodeId {
        let id = self.free_number(meta, lower);
        self.nodes.insert(Node::new(id, meta.kind, lower));
        id
    }

    fn free_number(&mut self, meta: &Meta, lower: Option<InodeKey>) -> NodeId {
        let kept = lower.and_then(|key| self.kept.get(&key).copied());
        let own = (meta.device == self.device && meta.inode != ROOT.0 && meta.inode < SYNTHETIC_FIRST)
            .then_some(NodeId(meta.inode));
        match kept.or(own) {
            Some(id) if !self.nodes.contains(id) => id,
            _ => self.synthetic(),
        }
    }

    fn synthetic(&mut self) -> NodeId {
        self.synthetic_next += 1;
        NodeId(self.synthetic_next)
    }

    /// Gives a node a name, and takes the name from whatever had it.
    pub fn name(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        if self.child(parent, name) == Some(id) {
            return;
        }
        self.unname(parent, name);
        let is_dir = self.nodes.get(id).is_some_and(|node| node.kind == FileKind::Directory);
        let former = if is_dir { self.names(id) } else { Vec::new() };
        self.nodes.add_name(id, parent, name);
        // It may have been without a name for a moment, during an exchange.
        self.nodes.find_by_lower(id);
        // A directory has one name: someone has renamed this one below, and what is in it is found by the new name.
        for (parent, name) in former {
            self.unname(parent, &name);
            if self.watch_of(parent).is_some() {
                self.names_left.push(NameLeft { dir: id, parent, name });
            }
        }
    }

    /// Returns each of them once: the kernel may still find the directories there.
    pub fn take_names_left(&mut self) -> Vec<NameLeft> {
        std::mem::take(&mut self.names_left)
    }

    /// Takes a name away. A node left without one is not found by its lower inode either: only those who have it open go
    /// on.
    pub fn unname(&mut self, parent: NodeId, name: &OsStr) {
        if let Some(id) = self.child(parent, name)
            && self.nodes.get(id).is_some_and(|node| node.names.len() == 1)
        {
            self.lose_by_lower(id);
        }
        self.lose_name(parent, name);
    }

    /// The same for a name that someone has renamed below, or that stands for something else there. Programs that have
    /// the node open, or stand in it, go on under the name by which its lower inode is found next.
    pub fn lose_name(&mut self, parent: NodeId, name: &OsStr) {
        let Some(id) = self.nodes.remove_name(parent, name) else { return };
        match self.nodes.get_mut(id) {
            // The node is still seen by another name, and is what that name has.
            Some(node) if !node.names.is_empty() => node.forget_removed(),
            Some(_) | None => drop(self.end_apart(id)),
        }
        self.drop_if_unneeded(id);
        self.drop_if_unneeded(parent);
    }

    fn lose_by_lower(&mut self, id: NodeId) {
        self.nodes.lose_by_lower(id);
        self.unwatch(id);
    }

    /// The same as [`Self::unname`] by path; the next look at it finds what is there then.
    pub fn unname_path(&mut self, path: &RelPath) {
        if let Some((parent, name)) = self.entry_at(path) {
            self.unname(parent, name);
        }
    }

    /// The node goes on without this name and without what lower has there: the next look at the name finds another node.
    pub fn part_from(&mut self, path: &RelPath) {
        if let Some(node) = self.at(path) {
            self.set_lower(node, None);
        }
        self.unname_path(path);
    }

    /// Makes the node stand for another lower inode, or for none. Not for an inode that has a node already, unless this
    /// one is open: the next look at its name finds the node of the inode's other names.
    pub fn set_lower(&mut self, id: NodeId, lower: Option<InodeKey>) {
        let lower = lower.filter(|key| !self.is_of_another(id, *key));
        let Some(former) = self.nodes.get(id).map(Node::lower).filter(|former| *former != lower) else { return };
        self.unwatch(id);
        self.nodes.set_lower(id, lower);
        let Some(key) = lower else { return };
        // Otherwise `kept` would grow with every landing, not with the number of files.
        if let Some(former) = former.filter(|former| self.kept.get(former) == Some(&id)) {
            self.kept.remove(&former);
        }
        if key.inode != id.0 {
            self.kept.insert(key, id);
        }
    }

    /// What lower had is gone with a name of it. The number of a file that has none left is not kept.
    pub fn gone(&mut self, was: &Meta) {
        if was.links <= 1 {
            self.kept.remove(&was.key());
        }
    }

    /// The key by which some node stands for the lower inode with this stamp. Scans all nodes: for hard links only.
    pub fn known_inode(&self, stamp: &Stamp, births: Births) -> Option<InodeKey> {
        self.nodes.lower_keys().find(|key| births.may_be_one(stamp.key(), *key))
    }

    /// True if a node stands for this lower inode. A node that stood for an upper entry, which has landed or been given
    /// up, does so from now on.
    pub fn is_lower(&mut self, id: NodeId, key: InodeKey) -> bool {
        if self.nodes.get(id).is_some_and(|node| node.lower.is_none()) {
            self.set_lower(id, Some(key));
        }
        self.nodes.get(id).is_some_and(|node| node.lower() == Some(key))
    }

    /// True if a node that is about to be opened at a path stands for what lower has there. If someone has put another
    /// file there since the kernel looked, the kernel looks again. If that happens twice in a row, the node stands for
    /// the latest file, as if it had been written in place: the program is not to notice.
    pub fn is_to_be_opened(&mut self, id: NodeId, path: &RelPath, meta: &Meta) -> bool {
        let was_told = !self.told_replaced.is_empty() && self.told_replaced.remove(path);
        let is_like = |node: &Node| node.kind == meta.kind && !node.is_open();
        if was_told && self.nodes.get(id).is_some_and(is_like) {
            self.set_lower(id, Some(meta.key()));
        }
        let is_it = self.is_lower(id, meta.key());
        if !is_it {
            self.tell_replaced(path.clone());
        }
        is_it
    }

    /// True if an open of what is at a path comes for the second time.
    pub fn was_told_replaced(&self, path: &RelPath) -> bool {
        self.told_replaced.contains(path)
    }

    /// Returns whether that is news. Opens that never come again must not leave their paths here for good.
    fn tell_replaced(&mut self, path: RelPath) -> bool {
        if self.told_replaced.len() >= TOLD_REPLACED_MAX {
            self.told_replaced.clear();
        }
        self.told_replaced.insert(path)
    }

    /// True if a node stands for the lower inode that has this stamp.
    pub fn has_lower(&self, id: NodeId, stamp: &Stamp) -> bool {
        let lower = self.nodes.get(id).and_then(Node::lower);
        lower.is_some_and(|lower| lower.number() == stamp.number())
    }

    /// True if another node stands for a lower inode, and this one is neither open nor apart for the moment.
    pub fn is_of_another(&self, id: NodeId, key: InodeKey) -> bool {
        let other = self.nodes.of_lower(key).is_some_and(|other| other != id);
        let is_apart = || self.apart(id).is_some_and(|apart| apart.since.elapsed() < ASKED_AGAIN_WITHIN);
        other && self.nodes.get(id).is_some_and(|node| !node.is_open()) && !is_apart()
    }

    /// A name of the node stands for something else below.
    pub fn part_below(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.rare().parted_below = Some(Box::new((Instant::now(), parent, name.to_owned())));
        }
        self.lose_name(parent, name);
    }

    /// Returns, once, whether a node has lost a name below by which the kernel may be about to open it. If told so, the
    /// kernel looks again and comes back by a name that is the node's.
    pub fn take_lost_name(&mut self, id: NodeId) -> bool {
        let rare = self.nodes.get_mut(id).and_then(|node| node.rare.as_mut());
        rare.and_then(|rare| rare.parted_below.take()).is_some_and(|parted| parted.0.elapsed() < TELLING)
    }

    /// For a node without a name that is about to be opened. `None` unless the kernel may still take the name that it
    /// lost below for one of its own. In that case the kernel is to look once more; if it was told so before, the node
    /// gets the name back.
    pub fn parted_at_open(&mut self, id: NodeId) -> Option<PartedOpen> {
        let parted = self.nodes.get(id)?.rare.as_ref()?.parted_below.clone();
        let (_, parent, name) = *parted.filter(|parted| parted.0.elapsed() < TELLING)?;
        let Ok(path) = self.child_path(parent, &name) else { return Some(PartedOpen::LooksAgain) };
        // What is written to a node without a name is lost, so an open one keeps the name that it has.
        let is_open = |id: NodeId| self.nodes.get(id).is_some_and(|node| node.is_open());
        let is_taken = is_open(id) || self.child(parent, &name).is_some_and(is_open);
        if self.tell_replaced(path) || is_taken {
            return Some(PartedOpen::LooksAgain);
        }
        self.take_lost_name(id);
        self.name(id, parent, &name);
        Some(PartedOpen::HasNameAgain)
    }

    /// Watches a directory, if it stands for `key` in lower and has no watch; `watch` makes one.
    pub fn watch(
        &mut self,
        id: NodeId,
        key: InodeKey,
        watch: impl FnOnce() -> std::io::Result<Watch>,
    ) -> std::io::Result<()> {
        if self.watch_of(id).is_some() || self.nodes.of_lower(key) != Some(id) {
            return Ok(());
        }
        let watch = watch()?;
        self.watched.insert(watch.id, id);
        if let Some(node) = self.nodes.get_mut(id) {
            node.rare().watch = Some(WatchedDir { watch, events: 0 });
        }
        Ok(())
    }

    pub fn watch_of(&self, id: NodeId) -> Option<WatchSeen> {
        let WatchedDir { watch, events } = self.nodes.get(id)?.rare.as_ref()?.watch.as_ref()?;
        Some(WatchSeen { id: watch.id, events: events.wrapping_add(self.events_lost) })
    }

    /// A watch has reported something. Returns its directory.
    pub fn note_event(&mut self, watch: WatchId) -> Option<NodeId> {
        let dir = self.of_watch(watch)?;
        if let Some(watched) = self.nodes.get_mut(dir).and_then(|node| node.rare.as_mut()?.watch.as_mut()) {
            watched.events = watched.events.wrapping_add(1);
        }
        Some(dir)
    }

    /// Any watch may have had something to report.
    pub fn note_events_lost(&mut self) {
        self.events_lost = self.events_lost.wrapping_add(1);
    }

    pub fn of_watch(&self, id: WatchId) -> Option<NodeId> {
        self.watched.get(&id).copied()
    }

    /// No more events come from a directory.
    pub fn unwatch(&mut self, id: NodeId) {
        if let Some(dir) = self.nodes.get_mut(id).and_then(|node| node.rare.as_mut()?.watch.take()) {
            self.watched.remove(&dir.watch.id);
        }
    }

    pub fn unwatch_all(&mut self) {
        let watched: Vec<NodeId> = self.watched.values().copied().collect();
        watched.into_iter().for_each(|dir| self.unwatch(dir));
    }

    /// The node that stands for a lower inode under whatever name.
    pub fn of_lower(&self, key: InodeKey) -> Option<NodeId> {
        self.nodes.of_lower(key)
    }

    /// Every name that the kernel may know.
    pub fn all_names(&self) -> Vec<(NodeId, OsString)> {
        let names = self.nodes.iter().flat_map(|node| node.names.iter());
        names.map(|Name { parent, name }| (*parent, name.to_os_string())).collect()
    }

    /// Every node that the kernel may know.
    pub fn all(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    pub fn looked_up(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.lookups += 1;
        }
    }

    pub fn forget(&mut self, id: NodeId, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.drop_if_unneeded(id);
    }

    /// The node is open from here on, and judged.
    pub fn open(&mut self, id: NodeId, open: Arc<OpenFile>) {
        self.note_entry(id, None, open.upper());
        if let Some(node) = self.nodes.get_mut(id) {
            node.in_use = Some(InUse::of(FileInUse::Judged(open)));
        }
    }

    /// The node is open from here on, and not judged. What the kernel has cached of the content is of no use once it
    /// reads lower itself.
    pub fn pass(&mut self, id: NodeId, passed: Arc<Passed>) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.in_use = Some(InUse::of(FileInUse::Passed(passed)));
            node.cached = None;
        }
    }

    /// Notes that what is open on a node now belongs to another entry, or to none.
    pub fn note_entry(&mut self, id: NodeId, before: Option<UpperId>, now: Option<UpperId>) {
        if let Some(before) = before {
            self.by_upper.remove(&(before, id));
        }
        self.by_upper.extend(now.map(|now| (now, id)));
    }

    /// The last handle on a node has gone.
    pub fn close(&mut self, id: NodeId) {
        self.note_entry(id, self.open_on(id).and_then(|open| open.upper()), None);
        if let Some(node) = self.nodes.get_mut(id) {
            if node.passed().is_some() {
                node.cached = None;
            }
            node.in_use = None;
        }
        self.drop_if_unneeded(id);
    }

    /// The last handle on this open file has gone. The node may have been opened anew meanwhile.
    pub fn let_go(&mut self, open: &Arc<OpenFile>) {
        if self.open_on(open.node).is_some_and(|now| Arc::ptr_eq(now, open)) {
            self.close(open.node);
        }
    }

    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// A directory that the kernel has forgotten goes with its last child, and so on upwards.
    fn drop_if_unneeded(&mut self, id: NodeId) {
        let mut looked_at = vec![id];
        while let Some(id) = looked_at.pop() {
            if self.is_unneeded(id) {
                self.unwatch(id);
                looked_at.extend(self.nodes.remove(id));
            } else if self.is_lost(id) {
                self.lose_by_lower(id);
            }
        }
    }

    /// True if only the kernel still knows the node, and may forget it at any moment.
    fn is_lost(&self, id: NodeId) -> bool {
        let lost = |node: &Node| node.names.is_empty() && node.children == 0 && !node.is_open();
        id != ROOT && self.nodes.get(id).is_some_and(lost)
    }

    fn is_unneeded(&self, id: NodeId) -> bool {
        let unneeded = |node: &Node| node.lookups == 0 && node.children == 0 && !node.is_open();
        id != ROOT && self.nodes.get(id).is_some_and(unneeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_set_apart_is_a_node_of_its_own_until_it_is_the_files_again() {
        let dir = tempfile::tempdir().unwrap();
        let lower = Tree::open(dir.path()).unwrap();
        let mut nodes = Nodes::new(&lower).unwrap();
        let [one, two] = ["one", "two"].map(OsStr::new);
        std::fs::write(dir.path().join(one), "").unwrap();
        let meta = lower.stat(&RelPath::parse(b"one").unwrap()).unwrap().unwrap();
        let look = |nodes: &mut Nodes, name: &OsStr| {
            let id = nodes.resolve(ROOT, name, &meta, Some(meta.key()));
            nodes.looked_up(id);
            id
        };
        let file = look(&mut nodes, one);
        assert!(!nodes.set_apart(ROOT, one), "it has no other name");
        assert_eq!(look(&mut nodes, two), file);
        assert!([(); 2].iter().all(|()| nodes.set_apart(ROOT, two)), "the kernel has not looked yet");
        let apart = look(&mut nodes, two);
        assert!(!nodes.set_apart(ROOT, two));
        assert_eq!((look(&mut nodes, two), look(&mut nodes, one), apart == file), (apart, file, false));
        assert_eq!(nodes.file_at(&RelPath::parse(b"two").unwrap()), Some(file));
        assert_eq!((nodes.rejoin(ROOT, two), nodes.rejoin(ROOT, one)), (true, false));
        assert_eq!(look(&mut nodes, two), file);
        nodes.forget(apart, 2);
        assert!(nodes.get(apart).is_err());
    }

    #[test]
    fn the_last_of_a_deep_path_takes_all_directories_above_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let lower = Tree::open(dir.path()).unwrap();
        let meta = Meta::of(lower.root()).unwrap();
        let mut nodes = Nodes::new(&lower).unwrap();
        let last = (0..100_000).fold(ROOT, |above, _| nodes.resolve(above, "below".as_ref(), &meta, None));
        assert_eq!(nodes.path(last).unwrap().components().count(), 100_000);
        nodes.forget(last, 0);
        assert_eq!(nodes.count(), 1);
    }
}
