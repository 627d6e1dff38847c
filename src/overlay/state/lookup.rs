//! Names and listings: lower's, less what is hidden, plus what is in upper.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use parking_lot::MutexGuard;

use super::nodes::{Asked, NodeId};
use super::uppers::DirsIn;
use crate::model::{InodeKey, RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::outside::watch::{Holds, Watched};
use crate::overlay::{Attributes, Error, Overlay, ROOT, Result, State};
use crate::store::{Below, UpperId, What, is_reserved_name};
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::DirEntry;

/// Attempts to list a directory without the lock, hoping that nothing lands meanwhile; after these it is listed under it.
const UNLOCKED_LISTINGS_MAX: usize = 3;

/// The result of looking a name up.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    Entry(Entry),
    /// Nothing is there, and for how long that holds.
    Nothing(Holds),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub node: NodeId,
    pub attributes: Attributes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    pub name: OsString,
    pub inode: u64,
    pub kind: FileKind,
}

/// Where a directory is, and the stamp of lower's. While a directory is watched, two listings of it are the same if this
/// has stayed the same and no name was reported in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingStamp {
    /// Upper's entries in it go by the path.
    path: RelPath,
    below: Option<Stamp>,
}

/// Where the view takes a path from.
#[derive(Clone, Copy, Debug)]
pub(in crate::overlay) enum Origin {
    Nothing,
    Lower(Meta),
    Upper(UpperId, Meta),
    /// Lower has something that the view does not show.
    Hidden(UpperId),
}

impl Origin {
    /// The entry that shows or hides something there.
    pub fn upper(&self) -> Option<UpperId> {
        match self {
            Self::Upper(id, _) | Self::Hidden(id) => Some(*id),
            Self::Nothing | Self::Lower(_) => None,
        }
    }

    /// The stamp of what lower has, if that is what the view shows.
    pub fn stamp_below(&self) -> Option<Stamp> {
        match self {
            Self::Lower(meta) => Some(meta.stamp()),
            Self::Nothing | Self::Upper(..) | Self::Hidden(_) => None,
        }
    }

    /// The kind of what the view has.
    pub fn kind(&self) -> Option<FileKind> {
        match self {
            Self::Lower(meta) | Self::Upper(_, meta) => Some(meta.kind),
            Self::Nothing | Self::Hidden(_) => None,
        }
    }
}

/// The nodes from the root to a path, looked up as if by the kernel and forgotten when this is dropped.
pub(in crate::overlay) struct Walked<'a> {
    overlay: &'a Overlay,
    /// Never empty: begins with the root.
    nodes: Vec<NodeId>,
}

impl Walked<'_> {
    pub fn node(&self) -> NodeId {
        *self.nodes.last().expect("begins with the root")
    }
}

impl Drop for Walked<'_> {
    fn drop(&mut self) {
        // The nodes that the kernel does not know live on as parents of those it does.
        self.nodes.iter().skip(1).rev().for_each(|node| self.overlay.forget(*node, 1));
    }
}

impl Overlay {
    pub(in crate::overlay) fn walk(&self, path: &RelPath) -> Result<Walked<'_>> {
        let mut walked = Walked { overlay: self, nodes: vec![ROOT] };
        for name in path.components() {
            let entry = self.look_up(walked.node(), name)?;
            walked.nodes.push(entry.node);
        }
        Ok(walked)
    }

    /// The same where the view may have nothing by that name.
    pub(in crate::overlay) fn walk_if_any(&self, path: &RelPath) -> Result<Option<Walked<'_>>> {
        match self.walk(path) {
            Err(err) if matches!(err.code(), libc::ENOENT | libc::ENOTDIR | libc::ESTALE) => Ok(None),
            walked => walked.map(Some),
        }
    }

    /// Returns the node of `parent`/`name`, which the kernel knows until it forgets it, or how long the name is missing.
    pub fn find(&self, parent: NodeId, name: &OsStr) -> Result<Found> {
        self.wait_for_release(|state| state.nodes.child(parent, name));
        self.find_now(parent, name, Asked::ToLook)
    }

    /// The same for a caller that may have claimed an entry a release waits for, such as one that has just made the file.
    pub(in crate::overlay) fn look_up(&self, parent: NodeId, name: &OsStr) -> Result<Entry> {
        match self.find_now(parent, name, Asked::ToChange)? {
            Found::Entry(entry) => Ok(entry),
            Found::Nothing(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }

    fn find_now(&self, parent: NodeId, name: &OsStr, asked: Asked) -> Result<Found> {
        // Whether the file is judged here, where it passes elsewhere.
        let mut is_asked = false;
        loop {
            let watched = self.watch(parent);
            let (path, epoch, known, itself) = {
                let state = self.state.lock();
                let known = state.nodes.child(parent, name);
                let itself = known.and_then(|known| state.nodes.watch_of(known));
                (state.nodes.child_path(parent, name)?, state.epoch, known, itself)
            };
            let Some(origin) = self.origin_in(&path, epoch)? else { continue };
            let mut state = self.state.lock();
            if state.epoch != epoch {
                continue;
            }
            let passing = state.passes_elsewhere(parent, name, &origin);
            if let Some(passing) = passing.filter(|_| !std::mem::replace(&mut is_asked, true)) {
                drop(state);
                self.part_if_judged(passing, &path);
                continue;
            }
            let entered = self.enter(&mut state, (parent, name, &path), &origin)?;
            let mut left = Vec::new();
            let found = match entered {
                Some((node, meta)) => {
                    state.nodes.looked_up(node);
                    left = state.leave_former_names(node, (parent, name), &origin);
                    state.nodes.note_told(node, &meta.stamp(), asked);
                    let holds = state.holds(node, &meta, Watched { parent: watched, itself });
                    Found::Entry(Entry { node, attributes: state.attributes(node, meta, holds) })
                }
                None => Found::Nothing(state.name_holds(parent, watched)),
            };
            drop(state);
            if known.is_some() && known != entered.map(|(node, _)| node) {
                // The kernel would learn this from the answer, but not every lookup is the kernel's.
                self.tell(|observer| observer.entry_changed(parent, name));
            }
            left.iter().for_each(|(parent, name)| self.tell_left(*parent, name));
            return Ok(found);
        }
    }

    /// What lower has at a path, whatever the view has there.
    pub(in crate::overlay) fn meta_below(&self, path: &RelPath) -> Result<Option<Meta>> {
        self.lower.stat(path).doing(|| format!("stat {path}"))
    }

    pub(in crate::overlay) fn is_below(&self, path: &RelPath) -> Result<bool> {
        self.lower.exists(path).doing(|| format!("stat {path}"))
    }

    pub(in crate::overlay) fn has_dir_below(&self, path: &RelPath) -> Result<bool> {
        Ok(self.meta_below(path)?.is_some_and(|meta| meta.is_dir()))
    }

    /// What the view has at a path.
    pub(in crate::overlay) fn origin(&self, path: &RelPath) -> Result<Origin> {
        loop {
            let epoch = self.state.lock().epoch;
            if let Some(origin) = self.origin_in(path, epoch)? {
                return Ok(origin);
            }
        }
    }

    /// What the view has at `path`, which was right at `epoch`. `None` if it no longer is: between the look and the
    /// `stat` an upper file was let go of, or a directory above was renamed.
    pub(in crate::overlay) fn origin_in(&self, path: &RelPath, epoch: u64) -> Result<Option<Origin>> {
        match self.origin_now(path) {
            Err(err) if err.code() == libc::ENOENT && self.state.lock().epoch != epoch => Ok(None),
            origin => origin.map(Some),
        }
    }

    fn origin_now(&self, path: &RelPath) -> Result<Origin> {
        loop {
            self.end_stand_ins(path)?;
            match self.origin_there(path)? {
                Origin::Nothing if self.stand_in(path)? => {}
                origin => return Ok(origin),
            }
        }
    }

    fn origin_there(&self, path: &RelPath) -> Result<Origin> {
        loop {
            let (is_lowers, upper) = {
                let state = self.state.lock();
                match state.is_taken_from_lower(path) {
                    true => (true, None),
                    false => (false, state.uppers.at(path)),
                }
            };
            if is_lowers {
                return self.origin_below(path);
            }
            // In a held directory, whatever lower has at the path is not part of the view.
            let Some(id) = upper else { return Ok(Origin::Nothing) };
            match self.origin_of_upper(path, id) {
                // The entry landed and was let go between the two looks: lower has it now.
                Err(err) if err.code() == libc::ENOENT && self.state.lock().uppers.at(path) != Some(id) => {}
                other => return other,
            }
        }
    }

    /// What has this very name. Another name of an inode that is being changed is still lower's: an operation on the name
    /// acts on that, and the change stays with the name it was made under.
    pub(in crate::overlay) fn origin_by_name(&self, path: &RelPath) -> Result<Origin> {
        let origin = self.origin(path)?;
        let is_alias = match &origin {
            Origin::Upper(id, _) => self.state.lock().uppers.at(path) != Some(*id),
            Origin::Nothing | Origin::Lower(_) | Origin::Hidden(_) => false,
        };
        if !is_alias {
            return Ok(origin);
        }
        Ok(self.meta_below(path)?.map_or(Origin::Nothing, Origin::Lower))
    }

    fn origin_of_upper(&self, path: &RelPath, id: UpperId) -> Result<Origin> {
        let what = self.state.lock().uppers.get(id).map(|upper| upper.row.what.clone());
        match what {
            // It landed a moment ago, and lower has it.
            None => self.origin_below(path),
            Some(What::Whiteout) => Ok(Origin::Hidden(id)),
            Some(What::File | What::Symlink | What::Dir | What::Node) => match self.upper_meta(path, id) {
                Err(_) if self.is_let_go(id) => self.origin_below(path),
                meta => Ok(Origin::Upper(id, meta?)),
            },
        }
    }

    pub(in crate::overlay) fn origin_below(&self, path: &RelPath) -> Result<Origin> {
        match self.meta_below(path)? {
            Some(meta) => self.origin_of_lower(path, meta),
            None => Ok(Origin::Nothing),
        }
    }

    /// The same, where what lower has is known already.
    pub(in crate::overlay) fn origin_of_lower(&self, path: &RelPath, meta: Meta) -> Result<Origin> {
        if meta.is_dir() {
            return Ok(Origin::Lower(self.with_held_dirs(path, meta)?));
        }
        if meta.links == 1 {
            return Ok(Origin::Lower(meta));
        }
        let upper = self.state.lock().uppers.of_inode(&meta.stamp());
        if let Some(id) = upper {
            match self.upper_meta(path, id) {
                Err(_) if self.is_let_go(id) => {}
                meta => return Ok(Origin::Upper(id, meta?)),
            }
        }
        Ok(Origin::Lower(self.as_linked(meta)))
    }

    /// A directory's attributes in lower, but with a link for each directory that the view has in it. File systems that
    /// do not count directories report 1.
    fn with_held_dirs(&self, path: &RelPath, meta: Meta) -> Result<Meta> {
        if meta.links < 2 {
            return Ok(meta);
        }
        let DirsIn { made, mut hidden, perhaps_hidden } = self.state.lock().uppers.dirs_in(path);
        for path in perhaps_hidden {
            hidden += u32::from(self.has_dir_below(&path)?);
        }
        Ok(Meta { links: meta.links.saturating_add(made).saturating_sub(hidden).max(2), ..meta })
    }

    /// An inode's attributes in lower, but with its links as the view has them: without the names that are held as
    /// deleted or replaced.
    pub(in crate::overlay) fn as_linked(&self, meta: Meta) -> Meta {
        let taken = self.state.lock().uppers.names_taken(&meta.stamp());
        Meta { links: meta.links.saturating_sub(taken), ..meta }
    }

    /// The most names that lower can have for an inode whose links are counted that way: the names held as deleted or
    /// replaced come on top.
    pub(in crate::overlay) fn links_below(&self, meta: &Meta) -> u32 {
        meta.links.saturating_add(self.state.lock().uppers.names_taken(&meta.stamp()))
    }

    /// True if an entry landed and was evicted between two looks, as a release does at any moment: lower has it now.
    pub(in crate::overlay) fn is_let_go(&self, id: UpperId) -> bool {
        self.state.lock().uppers.get(id).is_none()
    }

    /// Binds a name to its node. Returns the node and its attributes, or `None` if nothing is there.
    fn enter(
        &self,
        state: &mut State,
        (parent, name, path): (NodeId, &OsStr, &RelPath),
        origin: &Origin,
    ) -> Result<Option<(NodeId, Meta)>> {
        let Some((meta, lower)) = self.inode_at(state, path, origin)? else {
            match origin {
                Origin::Nothing => state.nodes.lose_name(parent, name),
                Origin::Hidden(_) | Origin::Lower(_) | Origin::Upper(..) => state.nodes.unname(parent, name),
            }
            return Ok(None);
        };
        let is_unknown = lower.is_none_or(|lower| state.nodes.of_lower(lower).is_none());
        if let (Origin::Upper(id, _), true) = (origin, is_unknown) {
            state.join_names(*id, parent, name);
        }
        match origin {
            Origin::Lower(meta) => {
                state.part_from_upper(parent, name, meta.key())?;
            }
            Origin::Upper(id, _) => state.join_again(*id, parent, name),
            Origin::Nothing | Origin::Hidden(_) => {}
        }
        let node = state.nodes.resolve(parent, name, &meta, lower);
        if matches!(origin, Origin::Lower(_)) {
            state.nodes.note_first_shown(node, &meta.stamp());
        }
        Ok(Some((node, meta)))
    }

    /// What a path shows, and the lower inode that it stands for.
    pub(in crate::overlay) fn inode_at(
        &self,
        state: &State,
        path: &RelPath,
        origin: &Origin,
    ) -> Result<Option<(Meta, Option<InodeKey>)>> {
        Ok(match origin {
            Origin::Nothing | Origin::Hidden(_) => None,
            Origin::Lower(meta) => Some((*meta, Some(meta.key()))),
            Origin::Upper(id, meta) => Some((*meta, self.shared_inode(state, path, *id)?)),
        })
    }

    /// The lower inode of an entry with several names below: all of them are one node, even if the entry's own name leads
    /// elsewhere below by now.
    fn shared_inode(&self, state: &State, path: &RelPath, id: UpperId) -> Result<Option<InodeKey>> {
        let Some(row) = state.uppers.row(id) else { return Ok(None) };
        let Below::Entry { stamp, links: 2.., .. } = row.base.below else { return Ok(None) };
        if let Some(known) = state.nodes.known_inode(&stamp, self.births) {
            return Ok(self.is_shared_with(state, (id, &stamp), known)?.then_some(known));
        }
        for path in [row.path(), path] {
            let below = self.meta_below(path)?;
            if let Some(below) = below.filter(|below| self.births.are_one(&stamp, &below.stamp())) {
                return Ok(Some(below.key()));
            }
        }
        Ok(None)
    }

    /// True if the node of a lower inode is the entry's, too. Not if that is lower's last name, which shows lower.
    fn is_shared_with(&self, state: &State, (id, stamp): (UpperId, &Stamp), key: InodeKey) -> Result<bool> {
        let Some(node) = state.nodes.of_lower(key) else { return Ok(false) };
        let paths = state.nodes.paths(node)?;
        if paths.iter().any(|path| state.uppers.at(path) == Some(id)) {
            return Ok(true);
        }
        for path in paths {
            let below = self.meta_below(&path)?;
            if below.is_some_and(|below| below.links > 1 && self.births.are_one(stamp, &below.stamp())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn forget(&self, node: NodeId, lookups: u64) {
        self.state.lock().nodes.forget(node, lookups);
    }

    /// The entries of a directory in the view.
    pub fn list(&self, dir: NodeId) -> Result<Vec<ListEntry>> {
        let path = self.state.lock().nodes.path(dir)?;
        let (below, state) = self.list_with_stand_ins(&path)?;
        let mut entries: Vec<ListEntry> = below
            .into_iter()
            .filter(|entry| !is_reserved_name(&path, &entry.name))
            .map(|entry| ListEntry { name: entry.name, inode: entry.inode, kind: entry.kind })
            .collect();
        let shadowed: std::collections::HashMap<&OsStr, UpperId> = state.uppers.in_dir(&path).collect();
        entries.retain(|entry| !shadowed.contains_key(entry.name.as_os_str()));
        for (name, id) in shadowed {
            let what = state.uppers.get(id).map(|upper| upper.row.what.clone());
            let kind = match what {
                Some(What::File) => FileKind::Regular,
                Some(What::Symlink) => FileKind::Symlink,
                Some(What::Dir) => FileKind::Directory,
                Some(What::Node) => self.store.upper_meta(id)?.kind,
                Some(What::Whiteout) | None => continue,
            };
            entries.push(ListEntry { name: name.to_owned(), inode: 0, kind });
        }
        for entry in &mut entries {
            if let Some(node) = state.nodes.child(dir, &entry.name) {
                entry.inode = state.nodes.shown_inode(node);
            }
        }
        Ok(entries)
    }

    /// `None` if names may come or go below unseen.
    pub fn listing_stamp(&self, dir: NodeId) -> Option<ListingStamp> {
        self.watch(dir)?;
        let path = self.state.lock().nodes.path(dir).ok()?;
        let below = self.lower.stat(&path).ok()?.map(|meta| meta.stamp());
        Some(ListingStamp { path, below })
    }

    /// Lower's listing, once upper has an entry for each directory that was removed below and still has something held in
    /// it, as far as that can be made.
    fn list_with_stand_ins(&self, path: &RelPath) -> Result<(Vec<DirEntry>, MutexGuard<'_, State>)> {
        for _ in 0..UNLOCKED_LISTINGS_MAX {
            self.look_at_dir(path)?;
            let (below, state) = self.list_below(path)?;
            let mut removed = state.uppers.dirs_shown_in(path);
            if !removed.is_empty() {
                let names: HashSet<&OsStr> = below.iter().map(|entry| entry.name.as_os_str()).collect();
                removed.retain(|dir| dir.name().is_some_and(|name| !names.contains(name)));
            }
            if removed.is_empty() {
                return Ok((below, state));
            }
            drop(state);
            let shown = removed.iter().map(|dir| self.stand_in(dir)).collect::<Result<Vec<_>>>()?;
            if !shown.contains(&true) {
                break;
            }
        }
        self.list_below(path)
    }

    /// Lower's entries and the state that goes with them: what landed between the two looks would be in neither.
    fn list_below(&self, path: &RelPath) -> Result<(Vec<DirEntry>, MutexGuard<'_, State>)> {
        let list = |held: Option<UpperId>| match held.map_or_else(|| self.lower.list(path), |_| Ok(Vec::new())) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.doing(|| format!("list {path}")),
        };
        for _ in 0..UNLOCKED_LISTINGS_MAX {
            let (epoch, held) = {
                let state = self.state.lock();
                (state.epoch, state.uppers.held_dir(path))
            };
            let below = list(held)?;
            let state = self.state.lock();
            if state.epoch == epoch {
                return Ok((below, state));
            }
        }
        let state = self.state.lock();
        Ok((list(state.uppers.held_dir(path))?, state))
    }

    /// The target of a symlink.
    pub fn read_symlink(&self, node: NodeId) -> Result<OsString> {
        self.check_asked_name(node)?;
        let (path, upper) = {
            let state = self.state.lock();
            let path = state.nodes.path(node)?;
            (path.clone(), state.uppers.at(&path))
        };
        match upper {
            Some(id) => self.store.upper_place(id).read_symlink().doing(|| format!("read symlink {path}")),
            None => match self.lower.place(&path)?.read_symlink() {
                // Someone has put something else there, or nothing is there: the kernel looks the name up anew.
                Err(err) if matches!(err.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                    Err(Error::Errno(libc::ESTALE))
                }
                read => read.doing(|| format!("read symlink {path}")),
            },
        }
    }

    /// The path of a node, for messages and for the control side.
    pub fn path_of(&self, node: NodeId) -> Result<RelPath> {
        self.state.lock().nodes.path(node)
    }

    /// The directory that a node is in; the root for a node without a name.
    pub fn parent_of(&self, node: NodeId) -> NodeId {
        let state = self.state.lock();
        state.nodes.get(node).ok().and_then(|node| node.names.first().map(|name| name.parent)).unwrap_or(ROOT)
    }
}

impl State {
    /// True if the view shows at a path whatever lower has there.
    pub(in crate::overlay) fn is_taken_from_lower(&self, path: &RelPath) -> bool {
        !is_reserved(path) && self.uppers.at(path).is_none() && !self.uppers.is_in_held_dir(path)
    }

    /// Parts a name that shows lower from a node that stands for an upper entry elsewhere: someone has renamed the file
    /// or its directory below, and a write to the one must not reach the other. Returns whether the name was the node's
    /// until now.
    pub(in crate::overlay) fn part_from_upper(&mut self, parent: NodeId, name: &OsStr, key: InodeKey) -> Result<bool> {
        let path = self.nodes.child_path(parent, name)?;
        let child = self.nodes.child(parent, name);
        let by_inode = self.nodes.of_lower(key).filter(|node| Some(*node) != child);
        let mut parted = false;
        for node in child.into_iter().chain(by_inode) {
            if self.upper_elsewhere(node, &path).is_none() {
                continue;
            }
            if child == Some(node) {
                self.nodes.part_below(node, parent, name);
                parted = true;
            }
            self.nodes.set_lower(node, None);
        }
        Ok(parted)
    }

    /// The upper entry that a node stands for, if that is not at `path`.
    pub(in crate::overlay) fn upper_elsewhere(&self, node: NodeId, path: &RelPath) -> Option<UpperId> {
        if self.uppers.count() == 0 {
            // The usual case, and every lookup asks.
            return None;
        }
        let is_elsewhere = |id: &UpperId| {
            let row = self.uppers.get(*id).map(|upper| &upper.row);
            row.is_some_and(|row| row.what != What::Whiteout && !row.names.contains(path))
        };
        let open = self.nodes.open_on(node).and_then(|open| open.upper());
        open.filter(is_elsewhere).or_else(|| {
            let paths = self.nodes.paths(node).unwrap_or_default();
            paths.iter().filter_map(|path| self.uppers.at(path)).find(is_elsewhere)
        })
    }

    /// Gives a name that shows an entry to the node on which the entry is open, whatever has become of the names and
    /// directories below: an entry has one open file.
    fn join_again(&mut self, id: UpperId, parent: NodeId, name: &OsStr) {
        if let Some(node) = self.open_elsewhere(id, self.nodes.child(parent, name)) {
            self.nodes.name(node, parent, name);
        }
    }

    /// Returns the node on which an entry is open, unless that is `known`, the node of a name that shows the entry. A name
    /// set apart from its file's others keeps its node.
    pub(in crate::overlay) fn open_elsewhere(&self, id: UpperId, known: Option<NodeId>) -> Option<NodeId> {
        let node = self.nodes.open_of(id)?.node;
        let is_its = |known| known == node || self.nodes.is_apart(known);
        (!known.is_some_and(is_its)).then_some(node)
    }

    /// Makes all names of an entry one node, including those that lower does not have yet and further names of its inode.
    fn join_names(&mut self, id: UpperId, parent: NodeId, name: &OsStr) {
        let Some(names) = self.uppers.get(id).map(|upper| &upper.row.names) else { return };
        let known: Vec<NodeId> = names.iter().filter_map(|name| self.nodes.file_at(name)).collect();
        if let (None, Some(node)) = (self.nodes.child(parent, name), known.first()) {
            self.nodes.name(*node, parent, name);
        }
    }
}

/// True for what the view never shows of lower: our state, and temporary entries that are about to take a path.
pub(in crate::overlay) fn is_reserved(path: &RelPath) -> bool {
    path.parent().zip(path.name()).is_some_and(|(dir, name)| is_reserved_name(&dir, name))
}
