//! The reference: what SPEC §4-§8 say of a project, a view and a person, in memory and in one thread.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Leaf, Node, Path, Thing, Tree, is_within, parent, rebase};
use crate::diff::{self, Merge};
use crate::model::{ChangeKind, Reason};
use crate::protocol::ErrorCode;

/// Where one of two exchanged directories is for a moment.
const ASIDE: &str = "aside";

/// An errno, or nothing.
pub type Answer = Result<(), i32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowLength {
    Each,
    Session,
    /// Longer than any test.
    Long,
}

/// What `.fettle.toml` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    None,
    Some,
}

/// What is done with writes to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Auto,
    Hold,
    Deny,
    Freeze,
}

const RULES: [(&str, &str, Action); 3] =
    [("e/a", "hold", Action::Hold), ("b", "deny", Action::Deny), ("d/s/a", "freeze", Action::Freeze)];

impl Rules {
    pub fn text(self) -> Option<String> {
        let rule =
            |(path, name, _): &(&str, &str, Action)| format!("[[rule]]\nmatch = \"/{path}\"\naction = \"{name}\"\n");
        match self {
            Self::None => None,
            Self::Some => Some(RULES.iter().map(rule).collect()),
        }
    }

    pub fn action(self, path: &str) -> Action {
        let rule = RULES.iter().find(|(at, ..)| self == Self::Some && is_within(path, at));
        rule.map_or(Action::Auto, |(.., action)| *action)
    }

    /// Whether a rule speaks of what would show below a symlink there, which has tests of its own.
    pub fn speaks_of_below(self, path: &str) -> bool {
        self == Self::Some && RULES.iter().any(|(at, ..)| *at != path && is_within(at, path))
    }

    fn refuses(self, path: &str) -> bool {
        matches!(self.action(path), Action::Deny | Action::Freeze)
    }

    /// Whether a file may not come along with a directory.
    fn refuses_passenger(self, path: &str, moved: &str) -> bool {
        let (before, after) = (self.action(path), self.action(moved));
        before == Action::Freeze || (before != after && (before == Action::Deny || self.refuses(moved)))
    }
}

#[derive(Clone, Debug)]
pub struct Held {
    pub kind: ChangeKind,
    pub base: Option<Thing>,
    /// What lower had when it began to wait.
    pub found: Option<Leaf>,
    pub new: Option<Thing>,
    /// Where it is another than that of the file it is a change of, or of a new file.
    pub mode: Option<u32>,
    pub reasons: Vec<Reason>,
}

/// What the view has at a path instead of lower.
#[derive(Clone, Debug)]
pub struct Upper {
    /// None: nothing, though lower may have something. A directory that waits for review is a leaf without content.
    pub leaf: Option<Leaf>,
    /// Which content of lower it is based on.
    pub below: Option<u64>,
    pub held: Option<Held>,
    /// Lower was changed by somebody else between the open and the first write.
    pub moved_on: bool,
    /// When it was made, to tell in which order recovery looks at them.
    pub made: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchor {
    Nothing,
    Content(Thing),
    Moved { to: Path, inode: u64 },
}

#[derive(Clone, Debug)]
pub struct Known {
    pub anchor: Anchor,
    /// What is there now came in this session.
    pub fresh: bool,
    /// Known by the rename of a directory alone.
    pub by_dir: bool,
    /// Where older content that is there now came from. While something is there, no deletion here loses anything.
    pub from: Option<Path>,
    /// Where what was last there went by a rename, and its inode. Lower has nothing in its place.
    pub went: Option<(Path, u64)>,
}

#[derive(Clone, Debug)]
pub struct Window {
    /// As the path was called when it was opened.
    pub opened_at: Path,
    pub first: Option<Thing>,
    pub landed: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Handle {
    place: At,
    written: bool,
    began: bool,
    /// Which content lower had when it was opened, or as it has landed since.
    opened: Option<u64>,
    /// What it had open has landed since.
    has_landed: bool,
    /// Others' edits were merged in since, and nothing was judged that was written through this.
    has_missed: bool,
}

#[derive(Clone, Debug)]
enum At {
    Path(Path),
    /// Without a name: nothing of it is judged. Which of [`Model::orphans`] it is.
    Orphan(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    Over,
    NoReplace,
    Exchange,
}

#[derive(Debug)]
pub struct Model {
    pub lower: Tree,
    pub upper: BTreeMap<Path, Upper>,
    pub handles: BTreeMap<usize, Handle>,
    pub anchors: BTreeMap<Path, Known>,
    pub windows: BTreeMap<Path, Window>,
    pub window: WindowLength,
    pub rules: Rules,
    /// Where somebody else has removed a file since programs last saw it, and they have seen nothing there since.
    pub(super) missed: BTreeSet<Path>,
    /// Directories that were renamed, oldest first.
    pub moved_dirs: Vec<(Path, Path)>,
    /// Where older directories were that were renamed away or removed.
    pub had_dirs: BTreeSet<Path>,
    /// Content that lower lost by our doing: there must be a backup of each.
    pub replaced: Vec<Vec<u8>>,
    /// Content of files without a name, for who has them open.
    orphans: BTreeMap<u64, Vec<u8>>,
    /// Where a person took some of them from: by the next write they are there again.
    taken_from: BTreeMap<u64, TakenFrom>,
    last: u64,
}

#[derive(Clone, Debug)]
struct TakenFrom {
    /// It moves with its directory.
    at: Path,
    /// Where it comes back to if that directory has gone and another is made. None once it has gone.
    was_at: Option<Path>,
    mode: u32,
}

impl Handle {
    pub fn is_at(&self, path: &str) -> bool {
        matches!(&self.place, At::Path(at) if at == path)
    }

    pub fn is_unjudged(&self) -> bool {
        self.written || self.began
    }
}

/// Looking.
impl Model {
    pub fn new(window: WindowLength, rules: Rules) -> Self {
        Self {
            lower: Tree::default(),
            upper: BTreeMap::new(),
            handles: BTreeMap::new(),
            anchors: BTreeMap::new(),
            windows: BTreeMap::new(),
            window,
            rules,
            missed: BTreeSet::new(),
            moved_dirs: Vec::new(),
            had_dirs: BTreeSet::new(),
            replaced: Vec::new(),
            orphans: BTreeMap::new(),
            taken_from: BTreeMap::new(),
            last: 0,
        }
    }

    /// The rules' own file.
    pub fn lower_rules(&mut self, text: Option<String>) {
        if let Some(text) = text {
            self.outside_write(super::RULES, text.into_bytes());
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What the view shows at a path.
    pub fn at(&self, path: &str) -> Option<Node> {
        if !path.is_empty() && self.at(parent(path)) != Some(Node::Dir) {
            return None;
        }
        match self.upper.get(path) {
            Some(upper) if upper.is_dir() => Some(Node::Dir),
            Some(upper) => upper.leaf.clone().map(Node::Leaf),
            None => self.lower.get(path).cloned(),
        }
    }

    /// All paths that the view shows.
    pub fn view(&self) -> BTreeMap<Path, Node> {
        let paths = self.lower.iter().map(|(path, _)| path).chain(self.upper.keys());
        paths.filter_map(|path| Some((path.clone(), self.at(path)?))).collect()
    }

    pub fn held(&self) -> impl Iterator<Item = (&Path, &Held)> {
        self.upper.iter().filter_map(|(path, upper)| Some((path, upper.held.as_ref()?)))
    }

    /// What a change at a path has for its mode as it is held: beside that of the file that it is a change of, though
    /// somebody has removed that since.
    pub(super) fn own_mode(&self, path: &str) -> Option<u32> {
        let is_file = |leaf: &&Leaf| leaf.thing.is_file();
        let upper = self.upper.get(path)?;
        let mode = upper.leaf.as_ref().filter(is_file)?.mode;
        let found = || upper.held.as_ref()?.found.as_ref().filter(is_file);
        let theirs = self.lower.leaf(path).filter(is_file).or_else(found).map_or(0o644, |leaf| leaf.mode);
        (mode != theirs).then_some(mode)
    }

    /// A program opens all files that the view shows.
    pub fn look(&mut self) {
        let view = self.view();
        let is_file = |path: &Path| view.get(path).and_then(Node::leaf).is_some_and(|leaf| leaf.thing.is_file());
        self.missed.retain(|path| !is_file(path));
    }

    /// What is read through a handle.
    pub fn content(&self, slot: usize) -> Option<Vec<u8>> {
        match &self.handles.get(&slot)?.place {
            At::Orphan(orphan) => self.orphans.get(orphan).cloned(),
            At::Path(path) => Some(self.at(path)?.leaf()?.thing.bytes().to_vec()),
        }
    }

    fn walk(&self, path: &str) -> Answer {
        match self.at(parent(path)) {
            Some(Node::Dir) => Ok(()),
            Some(Node::Leaf(_)) => Err(libc::ENOTDIR),
            None => self.walk(parent(path)).and(Err(libc::ENOENT)),
        }
    }

    fn free(&self, path: &str) -> Answer {
        self.walk(path)?;
        match self.at(path) {
            _ if self.rules.refuses(path) => Err(libc::EPERM),
            Some(_) => Err(libc::EEXIST),
            None => Ok(()),
        }
    }

    /// The view has a directory here that waits for review.
    fn is_held_dir(&self, path: &str) -> bool {
        self.upper.get(path).is_some_and(Upper::is_dir)
    }

    /// Such a directory is above: lower has no place for what is made here.
    pub(super) fn is_in_held_dir(&self, path: &str) -> bool {
        !path.is_empty() && (self.is_held_dir(parent(path)) || self.is_in_held_dir(parent(path)))
    }

    /// Lower has a directory here that the view does not show, because it waits to be removed.
    pub fn is_hidden_dir(&self, path: &str) -> bool {
        self.upper.contains_key(path) && self.lower.is_dir(path)
    }

    /// The same, with nothing in its place.
    fn is_removed_dir(&self, path: &str) -> bool {
        self.is_hidden_dir(path) && self.upper[path].leaf.is_none()
    }

    /// Where what lay at a path is now, if a directory above it was renamed.
    pub(super) fn moved_with_dirs(&self, path: &str) -> Option<Path> {
        self.moved_until(path, self.moved_dirs.len()).filter(|to| to != path)
    }

    /// The same after the first of the renames.
    fn moved_until(&self, path: &str, renames: usize) -> Option<Path> {
        let step = |at: Path, (from, to): &(Path, Path)| match rebase(&at, from, to) {
            // The directory itself was there.
            Some(_) if at == *from => None,
            Some(moved) => Some(moved),
            // Nothing was there when a directory came to stand there.
            None if is_within(&at, to) => None,
            None => Some(at),
        };
        self.moved_dirs[..renames].iter().try_fold(path.to_owned(), step)
    }

    /// The same of a file, which nothing else has taken the place of since.
    fn came_along(&self, path: &str) -> Option<Path> {
        let passed_by =
            |from: &Path| (0..=self.moved_dirs.len()).any(|until| self.moved_until(path, until).as_ref() == Some(from));
        let is_it = |known: &Known| known.fresh && known.from.as_ref().is_some_and(passed_by);
        let came = |to: &Path| self.anchors.get(to).filter(|known| !known.by_dir).is_none_or(is_it);
        self.moved_with_dirs(path).filter(came)
    }

    /// Where what lies at a path was before a directory above it was renamed.
    pub fn left_with_dirs(&self, path: &str) -> Option<Path> {
        let back = |at: Path, (from, to): &(Path, Path)| rebase(&at, to, from).unwrap_or(at);
        let was = self.moved_dirs.iter().rev().fold(path.to_owned(), back);
        (self.moved_with_dirs(&was).as_deref() == Some(path)).then_some(was)
    }

    pub fn has_orphans(&self) -> bool {
        self.handles.values().any(|handle| matches!(handle.place, At::Orphan(_)))
    }

    fn is_used(&self, path: &str) -> bool {
        self.anchors.get(path).is_some_and(|known| known.anchor != Anchor::Nothing)
    }

    /// Whether a directory that is older than the session used to be here.
    pub(super) fn had_dir(&self, path: &str) -> bool {
        let is_older_dir = |to: Path| self.lower.is_dir(&to) && !self.is_fresh(&to);
        self.had_dirs.contains(path) || self.moved_with_dirs(path).is_some_and(is_older_dir)
    }

    fn dir_goes(&mut self, path: &str) {
        if !self.is_fresh(path) {
            self.had_dirs.extend(self.left_with_dirs(path).into_iter().chain([path.to_owned()]));
        }
    }

    fn is_link_below(&self, path: &str) -> bool {
        self.lower.leaf(path).is_some_and(|leaf| matches!(leaf.thing, Thing::Symlink(_)))
    }

    /// Whether a symlink would come to stand above what a rule speaks of.
    pub fn puts_link_above_rule(&self, from: &str, to: &str) -> bool {
        let is_link = |node: &Node| matches!(node, Node::Leaf(leaf) if matches!(leaf.thing, Thing::Symlink(_)));
        let moved = |path: &str| rebase(path, from, to).or_else(|| rebase(path, to, from));
        let mut links = self.view().into_iter().filter(|(_, node)| is_link(node));
        links.any(|(path, _)| moved(&path).is_some_and(|moved| self.rules.speaks_of_below(&moved)))
    }

    /// Whether what is there came in this session, content and all.
    fn is_fresh(&self, path: &str) -> bool {
        self.anchors.get(path).is_some_and(|known| known.fresh && known.from.is_none())
    }
}

/// What a program does with open files.
impl Model {
    pub fn open(&mut self, slot: usize, path: &str, truncates: bool) -> Answer {
        self.walk(path)?;
        let opened = self.lower.leaf(path).map(|leaf| leaf.stamp).filter(|_| !self.upper.contains_key(path));
        let found = self.at(path);
        match &found {
            Some(Node::Dir) => return Err(libc::EISDIR),
            Some(Node::Leaf(leaf)) if !leaf.thing.is_file() => return Err(libc::ELOOP),
            Some(Node::Leaf(_)) | None if self.rules.refuses(path) => return Err(libc::EPERM),
            Some(Node::Leaf(_)) => {}
            None => self.add(path, Thing::File(Vec::new()), 0o644),
        }
        if truncates {
            self.dirty(path, opened).thing = Thing::File(Vec::new());
        }
        let place = At::Path(path.to_owned());
        let began = truncates || found.is_none();
        self.handles
            .insert(slot, Handle { place, written: false, began, opened, has_landed: false, has_missed: false });
        Ok(())
    }

    pub fn write(&mut self, slot: usize, content: Vec<u8>) -> Answer {
        if let Some(At::Orphan(orphan)) = self.handles.get(&slot).map(|handle| handle.place.clone()) {
            self.show_again(orphan);
        }
        let handle = self.handles.get_mut(&slot).ok_or(libc::EBADF)?;
        handle.written = true;
        match (&mut handle.place, handle.opened) {
            (At::Orphan(orphan), _) => {
                let orphan = *orphan;
                self.orphans.insert(orphan, content);
            }
            (At::Path(path), opened) => {
                let path = path.clone();
                self.dirty(&path, opened).thing = Thing::File(content);
            }
        }
        Ok(())
    }

    pub fn close(&mut self, slot: usize) -> Answer {
        let mut handle = self.handles.get(&slot).cloned().ok_or(libc::EBADF)?;
        let At::Path(path) = handle.place.clone() else {
            self.handles.remove(&slot);
            return Ok(());
        };
        let others =
            |model: &Self| model.handles.iter().any(|(at, other)| *at != slot && other.is_at(&path) && other.written);
        if handle.written {
            (handle.written, handle.began, handle.has_missed) = (false, false, false);
            self.handles.insert(slot, handle.clone());
            if self.upper.contains_key(&path) && !others(self) {
                self.settle(&path, &[]);
            }
        }
        self.handles.remove(&slot);
        if handle.is_unjudged() && self.upper.contains_key(&path) && !others(self) {
            self.settle(&path, &[]);
        }
        Ok(())
    }

    /// What was made or emptied through a handle that has written nothing since is judged with what others wrote.
    pub(super) fn judged(&mut self, path: &str) {
        let silent = self.handles.values_mut().filter(|handle| handle.is_at(path) && !handle.written);
        silent.for_each(|handle| handle.began = false);
    }

    /// Lower has what the view shows, and the view is lower's again, also for who has it open.
    pub(super) fn landed(&mut self, path: &str) {
        self.upper.remove(path);
        let below = self.lower.leaf(path).map(|leaf| leaf.stamp);
        for handle in self.handles.values_mut().filter(|handle| handle.is_at(path)) {
            handle.has_landed = true;
            handle.opened = if handle.has_missed { handle.opened } else { below };
        }
    }

    /// Somebody may write more to what has landed.
    pub fn has_landed_open(&self, path: &str) -> bool {
        self.handles.values().any(|handle| handle.is_at(path) && handle.has_landed)
    }

    /// Who has it open has not seen what was merged in.
    fn merged(&mut self, path: &str, before: u64) {
        for handle in self.handles.values_mut().filter(|handle| handle.is_at(path)) {
            (handle.opened, handle.has_missed) = (Some(before), true);
        }
    }

    pub fn truncate(&mut self, path: &str, size: usize) -> Answer {
        const SLOT: usize = usize::MAX;
        self.walk(path)?;
        if self.at(path).is_none() {
            return Err(libc::ENOENT);
        }
        self.open(SLOT, path, false)?;
        let mut content = self.content(SLOT).unwrap_or_default();
        content.resize(size, 0);
        self.write(SLOT, content)?;
        self.close(SLOT)
    }

    /// The leaf that a write goes to: copied up from lower at the first one.
    fn dirty(&mut self, path: &str, opened: Option<u64>) -> &mut Leaf {
        let made = self.next();
        let lower = self.lower.leaf(path).cloned();
        let upper = self.upper.entry(path.to_owned()).or_insert_with(|| {
            let below = lower.as_ref().map(|leaf| leaf.stamp);
            Upper { moved_on: opened.is_some() && opened != below, ..Upper::of(lower, below, made) }
        });
        upper.leaf.as_mut().expect("only files are written")
    }

    /// A new file or symlink: over a deletion that waits for review it is a modification (SPEC §4.3).
    fn add(&mut self, path: &str, thing: Thing, mode: u32) {
        self.missed.remove(path);
        let hidden = self.upper.remove(path);
        let made = self.next();
        let leaf = Leaf { thing, mode, inode: made, stamp: made };
        let (below, held) = hidden.map_or((None, None), |hidden| (hidden.below, hidden.held));
        self.upper.insert(path.to_owned(), Upper { held, ..Upper::of(Some(leaf), below, made) });
    }
}

impl Upper {
    fn of(leaf: Option<Leaf>, below: Option<u64>, made: u64) -> Self {
        Self { leaf, below, held: None, moved_on: false, made }
    }

    fn is_dir(&self) -> bool {
        self.leaf.as_ref().is_some_and(|leaf| leaf.thing == Thing::Dir)
    }

    /// The deletion whose place a held directory took, as it waits once that gives it up.
    fn deletion_left(&self, made: u64) -> Option<Self> {
        self.below?;
        let held = self.held.as_ref()?;
        let mut reasons: Vec<Reason> =
            held.reasons.iter().copied().filter(|reason| *reason != Reason::Parent).collect();
        if reasons.is_empty() {
            reasons.push(Reason::Parent);
        }
        let held = Held { kind: ChangeKind::Delete, mode: None, reasons, ..held.clone() };
        Some(Self { leaf: None, held: Some(held), made, ..self.clone() })
    }

    /// Nothing was there before.
    fn is_new(&self) -> bool {
        self.below.is_none() && self.held.as_ref().is_none_or(|held| held.base.is_none())
    }
}

/// What a program does with names.
impl Model {
    pub fn unlink(&mut self, path: &str) -> Answer {
        self.walk(path)?;
        match self.at(path) {
            None => return Err(libc::ENOENT),
            Some(Node::Dir) => return Err(libc::EISDIR),
            Some(Node::Leaf(_)) if self.rules.refuses(path) => return Err(libc::EPERM),
            Some(Node::Leaf(_)) => {}
        }
        self.orphan(path);
        self.delete(path);
        Ok(())
    }

    fn delete(&mut self, path: &str) {
        if self.is_hidden_dir(path) {
            return self.hide_dir(path, Reason::Parent);
        }
        let made = self.next();
        let below = self.lower.leaf(path).map(|leaf| leaf.stamp);
        let whiteout = match self.upper.remove(path) {
            Some(upper) if upper.is_new() => return,
            Some(upper) => Upper { leaf: None, moved_on: false, made, ..upper },
            None => Upper::of(None, below, made),
        };
        self.upper.insert(path.to_owned(), whiteout);
        self.settle(path, &[]);
    }

    /// What a person took away is where it was, if that is free.
    fn show_again(&mut self, orphan: u64) {
        let is_free =
            |TakenFrom { at, .. }: &&TakenFrom| self.at(at).is_none() && self.at(parent(at)) == Some(Node::Dir);
        let Some(TakenFrom { at: path, mode, .. }) = self.taken_from.get(&orphan).filter(is_free).cloned() else {
            return;
        };
        let content = self.orphans.get(&orphan).cloned().unwrap_or_default();
        self.add(&path, Thing::File(content), mode);
        self.return_to(&path);
    }

    /// Whoever has open what was taken from a path has what is there now.
    fn return_to(&mut self, path: &str) {
        let was_there = |(_, taken): &(&u64, &TakenFrom)| taken.at == path;
        let Some(orphan) = self.taken_from.iter().find(was_there).map(|(orphan, _)| *orphan) else { return };
        self.taken_from.remove(&orphan);
        for handle in self.handles.values_mut() {
            if matches!(handle.place, At::Orphan(of) if of == orphan) {
                handle.place = At::Path(path.to_owned());
            }
        }
    }

    /// Who has the file open keeps it; it has no name any more.
    fn orphan(&mut self, path: &str) -> u64 {
        let content = self.at(path).and_then(|node| Some(node.leaf()?.thing.bytes().to_vec())).unwrap_or_default();
        let orphan = self.next();
        self.orphans.insert(orphan, content);
        for handle in self.handles.values_mut().filter(|handle| handle.is_at(path)) {
            handle.place = At::Orphan(orphan);
        }
        orphan
    }

    pub fn mkdir(&mut self, path: &str) -> Answer {
        self.free(path)?;
        self.missed.remove(path);
        if self.is_hidden_dir(path) {
            self.upper.remove(path);
        } else if self.upper.contains_key(path) || self.is_gated(path) || self.is_in_held_dir(path) {
            self.hold_dir(path, Vec::new());
            return Ok(());
        }
        self.lower.put(path, Node::Dir);
        self.created(path);
        Ok(())
    }

    /// A directory that lower has no place for, or that a rule reviews; in the place of the deletion that is held there.
    fn hold_dir(&mut self, path: &str, mut reasons: Vec<Reason>) {
        let made = self.next();
        let over = self.upper.remove(path);
        if over.is_some() || self.is_in_held_dir(path) {
            reasons.push(Reason::Parent);
        }
        if self.is_gated(path) {
            reasons.push(Reason::Rule);
        }
        let (below, before) = over.map_or((None, None), |over| (over.below, over.held));
        reasons.extend(before.iter().flat_map(|held| held.reasons.iter().copied()));
        reasons.sort();
        reasons.dedup();
        let (base, found) = before.map_or((None, None), |held| (held.base, held.found));
        let new = Some(Thing::Dir);
        let held = Held { kind: ChangeKind::Structure, base, found, new, mode: None, reasons };
        let leaf = Leaf { thing: Thing::Dir, mode: 0, inode: made, stamp: made };
        self.upper.insert(path.to_owned(), Upper { held: Some(held), ..Upper::of(Some(leaf), below, made) });
    }

    fn created(&mut self, path: &str) {
        let known = self.anchors.entry(path.to_owned());
        let known =
            known.or_insert(Known { anchor: Anchor::Nothing, fresh: false, by_dir: false, from: None, went: None });
        (known.fresh, known.went) = (known.anchor == Anchor::Nothing, None);
    }

    pub fn rmdir(&mut self, path: &str) -> Answer {
        self.walk(path)?;
        match self.at(path) {
            None => return Err(libc::ENOENT),
            Some(Node::Leaf(_)) => return Err(libc::ENOTDIR),
            Some(Node::Dir) if self.rules.refuses(path) => return Err(libc::EPERM),
            Some(Node::Dir) => {}
        }
        if self.view().keys().any(|child| parent(child) == path) {
            return Err(libc::ENOTEMPTY);
        }
        for taken in self.taken_from.values_mut().filter(|taken| parent(&taken.at) == path) {
            taken.at = taken.was_at.take().unwrap_or_else(|| taken.at.clone());
        }
        if self.is_held_dir(path) {
            let made = self.next();
            let left = self.upper.remove(path).and_then(|upper| upper.deletion_left(made));
            self.upper.extend(left.map(|left| (path.to_owned(), left)));
            return Ok(());
        }
        if self.is_gated(path) {
            self.hide_dir(path, Reason::Rule);
        } else if self.upper.keys().any(|child| parent(child) == path) {
            self.hide_dir(path, Reason::Parent);
        } else {
            self.dir_goes(path);
            self.lower.remove(path);
        }
        self.left(path);
        Ok(())
    }

    /// Deletions in it wait for review, and it with them.
    fn hide_dir(&mut self, path: &str, reason: Reason) {
        let held =
            Held { kind: ChangeKind::Structure, base: None, found: None, new: None, mode: None, reasons: vec![reason] };
        let made = self.next();
        self.upper.insert(path.to_owned(), Upper { held: Some(held), ..Upper::of(None, None, made) });
    }

    fn left(&mut self, path: &str) {
        self.windows.remove(path);
        self.missed.retain(|at| !is_within(at, path));
        if let Some(known) = self.anchors.get_mut(path) {
            (known.fresh, known.from) = (false, None);
        }
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Answer {
        self.free(path)?;
        let leaves = crate::overlay::judge::compare::leaves_project(&super::path(path), target.as_bytes());
        let waits = self.is_gated(path) || self.is_in_held_dir(path);
        let is_judged = self.upper.contains_key(path) || self.is_used(path) || self.had_dir(path) || leaves || waits;
        self.add(path, Thing::Symlink(target.as_bytes().to_vec()), 0o777);
        if is_judged {
            self.settle(path, &[]);
        } else if let Some(upper) = self.upper.remove(path) {
            self.lower.put(path, Node::Leaf(upper.leaf.expect("just made")));
            self.created(path);
        }
        Ok(())
    }

    /// The model has no times; but whether they may be set.
    pub fn touch(&mut self, path: &str) -> Answer {
        self.walk(path)?;
        match self.at(path) {
            None => Err(libc::ENOENT),
            Some(Node::Leaf(_)) if self.rules.action(path) == Action::Freeze => Err(libc::EPERM),
            Some(_) => Ok(()),
        }
    }

    pub fn chmod(&mut self, path: &str, mode: u32) -> Answer {
        self.touch(path)?;
        if self.at(path) == Some(Node::Dir) {
            return Ok(());
        }
        let is_below = !self.upper.contains_key(path);
        if is_below && !self.is_gated(path) {
            for leaf in [self.lower.leaf_mut(path), self.upper.get_mut(path).and_then(|upper| upper.leaf.as_mut())] {
                leaf.into_iter().for_each(|leaf| leaf.mode = mode);
            }
            return Ok(());
        }
        // What waits, or is to by a rule, is judged with its mode, unless its writer has it judged.
        self.dirty(path, None).mode = mode;
        if !self.handles.values().any(|handle| handle.is_at(path) && handle.is_unjudged()) {
            self.settle(path, &[]);
        }
        Ok(())
    }
}

/// Renames.
impl Model {
    pub fn rename(&mut self, from: &str, to: &str, kind: RenameKind) -> Answer {
        self.walk(from)?;
        self.walk(to)?;
        if let Some(answer) = self.kernel_says(from, to, kind) {
            return answer;
        }
        let source = self.at(from).ok_or(libc::ENOENT)?;
        if self.rules.refuses(from) || self.rules.refuses(to) {
            return Err(libc::EPERM);
        }
        let target = self.at(to);
        match (source, target) {
            (Node::Leaf(_), Some(Node::Leaf(_))) if kind == RenameKind::Exchange => self.exchange(from, to),
            (Node::Dir, Some(Node::Dir)) if kind == RenameKind::Exchange && self.dir_waits(&[from, to]) => {
                Err(libc::EXDEV)
            }
            (Node::Dir, Some(Node::Dir)) if kind == RenameKind::Exchange => {
                self.check_passengers(&[(from, to), (to, from)])?;
                let lifted = self.lift(&[(from, to), (to, from)]);
                self.move_tree(from, ASIDE);
                self.move_tree(to, from);
                self.move_tree(ASIDE, to);
                for known in self.anchors.values_mut() {
                    if let Some(was) = known.from.as_ref().and_then(|came| rebase(came, ASIDE, from)) {
                        known.from = Some(was);
                    }
                }
                self.anchors.retain(|path, _| !is_within(path, ASIDE));
                for path in lifted {
                    self.settle(&path, &[]);
                }
                Ok(())
            }
            _ if kind == RenameKind::Exchange => Err(libc::EINVAL),
            (Node::Dir, Some(Node::Leaf(_))) => Err(libc::ENOTDIR),
            (Node::Leaf(_), Some(Node::Dir)) => Err(libc::EISDIR),
            (Node::Dir, target) if self.is_held_dir(from) => self.rename_held_dir(from, to, target.is_some()),
            (Node::Dir, _) if self.is_gated(to) || self.dir_waits(&[to]) => Err(libc::EXDEV),
            (Node::Dir, target) => self.rename_dir(from, to, target.is_some()),
            (Node::Leaf(_), target) => self.rename_leaf(from, to, target.is_some()),
        }
    }

    /// What the kernel answers by itself, before it asks a file system.
    pub fn kernel_says(&self, from: &str, to: &str, kind: RenameKind) -> Option<Answer> {
        self.at(from)?;
        match (kind, self.at(to)) {
            (RenameKind::Exchange, None) => Some(Err(libc::ENOENT)),
            (RenameKind::NoReplace, Some(_)) => Some(Err(libc::EEXIST)),
            _ if from == to => Some(Ok(())),
            _ if is_within(to, from) => Some(Err(libc::EINVAL)),
            (RenameKind::Exchange, _) if is_within(from, to) => Some(Err(libc::EINVAL)),
            _ if is_within(from, to) => Some(Err(libc::ENOTEMPTY)),
            _ => None,
        }
    }

    fn rename_leaf(&mut self, from: &str, to: &str, is_over: bool) -> Answer {
        let goes_gated = self.is_gated(from) && self.lower.leaf(from).is_some();
        let is_judged = is_over
            || (self.is_in_held_dir(to) && self.lower.leaf(from).is_some())
            || goes_gated
            || self.is_gated(to)
            || self.upper.contains_key(to)
            || self.is_used_by_another(from, to)
            || (matches!(self.at(from), Some(Node::Leaf(_))) && self.had_dir(to));
        if is_over {
            self.orphan(to);
        }
        self.move_handles(from, to);
        match (self.upper.contains_key(from), is_judged) {
            (_, false) => self.move_free(from, to),
            (false, true) => self.move_over(from, to),
            (true, true) => self.move_upper_over(from, to),
        }
        Ok(())
    }

    fn is_gated(&self, path: &str) -> bool {
        self.rules.action(path) == Action::Hold
    }

    fn check_passengers(&self, moves: &[(&str, &str)]) -> Answer {
        let refuses = |(from, to): &(&str, &str)| {
            let mut within = self.lower.within(from).into_iter().filter(|path| path != from);
            within.any(|path| rebase(&path, from, to).is_some_and(|moved| self.rules.refuses_passenger(&path, &moved)))
        };
        if moves.iter().any(refuses) { Err(libc::EPERM) } else { Ok(()) }
    }

    fn move_handles(&mut self, from: &str, to: &str) {
        for handle in self.handles.values_mut() {
            if let At::Path(path) = &mut handle.place
                && let Some(moved) = rebase(path, from, to)
            {
                *path = moved;
            }
        }
        for TakenFrom { at, .. } in self.taken_from.values_mut().filter(|taken| taken.was_at.is_some()) {
            // By its directory: a file of its name that is renamed is another.
            if let Some(moved) = rebase(parent(at), from, to) {
                *at = at.replacen(parent(at), &moved, 1);
            }
        }
    }

    /// To a path that was always free: what lower has moves, and what is held or unfinished with it.
    fn move_free(&mut self, from: &str, to: &str) {
        if let Some(leaf) = self.lower.leaf(from).cloned() {
            self.lower.rename(from, to);
            if let Some(window) = self.windows.remove(from) {
                self.windows.insert(to.to_owned(), window);
            }
            self.anchors_moved(from, to, leaf.inode);
            self.missed_moved(from, to);
        }
        if let Some(upper) = self.upper.remove(from) {
            self.upper.insert(to.to_owned(), upper);
        }
    }

    fn anchors_moved(&mut self, from: &str, to: &str, inode: u64) {
        let is_fresh = self.is_fresh(from);
        let is_home = self.came_along(to).as_deref() == Some(from);
        let moved = Anchor::Moved { to: to.to_owned(), inode };
        let unknown = Known { anchor: moved.clone(), fresh: false, by_dir: false, from: None, went: None };
        let source = self.anchors.entry(from.to_owned()).or_insert(unknown);
        (source.fresh, source.by_dir, source.went) = (false, false, Some((to.to_owned(), inode)));
        let came_from = source.from.take().or(Some(from.to_owned())).filter(|came| !is_fresh && came != to);
        let anchor = if is_home { moved } else { Anchor::Nothing };
        let unknown = Known { anchor, fresh: false, by_dir: false, from: None, went: None };
        self.anchors.retain(|path, known| path != to || !known.by_dir);
        let target = self.anchors.entry(to.to_owned()).or_insert(unknown);
        let came_from = came_from.filter(|_| target.anchor == Anchor::Nothing);
        (target.fresh, target.from, target.went) = (is_fresh || came_from.is_some(), came_from, None);
        self.retarget(from, to);
    }

    fn missed_moved(&mut self, from: &str, to: &str) {
        self.missed.retain(|path| !is_within(path, to));
        let moved = |path: Path| rebase(&path, from, to).unwrap_or(path);
        self.missed = std::mem::take(&mut self.missed).into_iter().map(moved).collect();
    }

    fn retarget(&mut self, from: &str, to: &str) {
        for known in self.anchors.values_mut() {
            if let Anchor::Moved { to: at, .. } = &mut known.anchor
                && let Some(moved) = rebase(at, from, to)
            {
                *at = moved;
            }
            if let Some((at, _)) = &mut known.went
                && let Some(moved) = rebase(at, from, to)
            {
                *at = moved;
            }
        }
    }

    /// A file of lower over something: the target is judged by its content, and it goes when that lands.
    fn move_over(&mut self, from: &str, to: &str) {
        let Some(leaf) = self.lower.leaf(from).cloned() else { return };
        let made = self.next();
        let replaced = self.take_target(to, leaf.clone(), made);
        self.judge_with_source(from, to, leaf, replaced);
    }

    /// The target is judged, which showed what is `replaced`, and the source follows it.
    fn judge_with_source(&mut self, from: &str, to: &str, source: Leaf, replaced: Option<Node>) {
        let made = self.next();
        self.upper.insert(from.to_owned(), Upper::of(None, Some(source.stamp), made));
        let landed = self.settle(to, &[]);
        if self.is_gated(from) {
            // Its going is reviewed by itself.
            self.settle(from, &[]);
        } else if landed {
            self.upper.remove(from);
            self.lower.remove(from);
            self.carried(from, to);
        } else if self.loses_nothing(from) {
            // A temporary file leaves no trace. What did not replace anything was none.
            self.replaced.extend(replaced.is_none().then(|| source.thing.bytes().to_vec()));
            self.upper.remove(from);
            self.lower.remove(from);
            self.left(from);
        } else {
            self.settle(from, &[Reason::Parent]);
        }
    }

    /// What used to be at the source is at the target now, so that nothing else can be made there unreviewed.
    fn carried(&mut self, from: &str, to: &str) {
        let Some(inode) = self.lower.leaf(to).map(|leaf| leaf.inode) else { return };
        self.windows.remove(from);
        let came_from = match self.anchors.get(from) {
            Some(known) if known.fresh => known.from.clone(),
            Some(_) | None => Some(from.to_owned()),
        };
        if let (Some(came_from), Some(target)) = (came_from, self.anchors.get_mut(to).filter(|target| target.fresh)) {
            target.from = Some(came_from);
            // What is done to it next is judged by itself.
            if self.windows.get(to).is_some_and(|window| window.first.is_none()) {
                self.windows.remove(to);
            }
        }
        let moved = Anchor::Moved { to: to.to_owned(), inode };
        for known in self.anchors.values_mut() {
            if matches!(&known.anchor, Anchor::Moved { to: at, .. } if at == from) {
                known.anchor = moved.clone();
            }
            if known.went.as_ref().is_some_and(|(at, _)| at == from) {
                known.went = Some((to.to_owned(), inode));
            }
        }
        let known = Known { anchor: moved, fresh: false, by_dir: false, from: None, went: None };
        let known = self.anchors.entry(from.to_owned()).or_insert(known);
        (known.fresh, known.from, known.by_dir) = (false, None, false);
        known.went = Some((to.to_owned(), inode));
    }

    /// A changed file over something: the target is judged, and what the source was based on is deleted. What was new
    /// and has landed leaves no trace.
    fn move_upper_over(&mut self, from: &str, to: &str) {
        let Some(source) = self.upper.remove(from) else { return };
        let Some(leaf) = source.leaf else { return };
        let replaced = self.take_target(to, leaf, source.made);
        match self.lower.leaf(from).cloned() {
            Some(below) if source.below == Some(below.stamp) && self.is_fresh(from) && !self.is_gated(from) => {
                return self.judge_with_source(from, to, below, replaced);
            }
            Some(_) => self.delete(from),
            None => {}
        }
        self.settle(to, &[]);
    }

    /// What stands at the target from now on, with the base of what stood there. Gives what that showed.
    fn take_target(&mut self, to: &str, leaf: Leaf, made: u64) -> Option<Node> {
        let shown = self.at(to);
        let (below, held) = match self.upper.remove(to) {
            Some(upper) => (upper.below, upper.held),
            None => (self.lower.leaf(to).map(|leaf| leaf.stamp), None),
        };
        self.upper.insert(to.to_owned(), Upper { held, ..Upper::of(Some(leaf), below, made) });
        shown
    }

    fn exchange(&mut self, from: &str, to: &str) -> Answer {
        let (a, b) = (self.at(from), self.at(to));
        let (Some(Node::Leaf(a)), Some(Node::Leaf(b))) = (a, b) else { return Err(libc::EINVAL) };
        let (first, second) = (self.next(), self.next());
        self.take_target(from, b, first);
        self.take_target(to, a, second);
        for handle in self.handles.values_mut() {
            match &mut handle.place {
                At::Path(path) if path == from => *path = to.to_owned(),
                At::Path(path) if path == to => *path = from.to_owned(),
                At::Path(_) | At::Orphan(_) => {}
            }
        }
        self.settle(from, &[]);
        self.settle(to, &[]);
        Ok(())
    }

    fn rename_dir(&mut self, from: &str, to: &str, is_over: bool) -> Answer {
        if is_over && self.view().keys().any(|child| parent(child) == to) {
            return Err(libc::ENOTEMPTY);
        }
        if self.upper.keys().any(|path| path == to || parent(path) == to) {
            // Deletions wait for review there.
            return Err(libc::EXDEV);
        }
        self.check_passengers(&[(from, to)])?;
        let lifted = self.lift(&[(from, to)]);
        self.move_tree(from, to);
        for path in lifted {
            self.settle(&path, &[]);
        }
        Ok(())
    }

    /// Whether a directory that waits is at one of these paths, or above it.
    fn dir_waits(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.is_held_dir(path) || self.is_in_held_dir(path))
    }

    /// Lower has nothing of it: all of it goes by new names, and the deletion whose place it had stays.
    fn rename_held_dir(&mut self, from: &str, to: &str, is_over: bool) -> Answer {
        if is_over && self.view().keys().any(|child| parent(child) == to) {
            return Err(libc::ENOTEMPTY);
        }
        if self.lower.is_dir(to) && !self.is_held_dir(to) {
            return Err(libc::EXDEV);
        }
        self.move_handles(from, to);
        let made = self.next();
        let Some(dir) = self.upper.remove(from) else { return Err(libc::ENOENT) };
        let left = dir.deletion_left(made);
        let reasons = match (&left, dir.held) {
            (None, Some(held)) => held.reasons,
            (Some(_), _) | (None, None) => vec![Reason::Parent],
        };
        let inside: Vec<Path> = self.upper.keys().filter(|path| is_within(path, from)).cloned().collect();
        for path in inside {
            if let (Some(moved), Some(upper)) = (rebase(&path, from, to), self.upper.remove(&path)) {
                self.upper.insert(moved, upper);
            }
        }
        self.upper.extend(left.map(|left| (from.to_owned(), left)));
        self.hold_dir(to, reasons);
        Ok(())
    }

    /// What came in this session and comes with a directory to where something else is or was: as if nobody had judged
    /// it yet. Gives where it comes to.
    fn lift(&mut self, moves: &[(&str, &str)]) -> Vec<Path> {
        let along = |(from, to): &(&str, &str)| -> Vec<(Path, Path)> {
            let paths = self.leaves_below(from).into_iter();
            paths.filter_map(|(path, _)| Some((rebase(&path, from, to)?, path))).collect()
        };
        let mut along: Vec<(Path, Path)> = moves.iter().flat_map(along).collect();
        let is_judged = |moved: &str, path: &str| {
            let is_older_dir = self.lower.is_dir(moved) && !self.is_fresh(moved);
            self.is_gated(moved)
                || self.is_used_by_another(path, moved)
                || self.has_older(moved)
                || self.had_dir(moved)
                || (self.is_link_below(path) && is_older_dir)
        };
        along.retain(|(moved, path)| is_judged(moved, path));
        for (_, path) in &along {
            assert!(self.is_fresh(path), "{path} is older and would take the place of something");
            let made = self.next();
            let leaf = self.lower.remove(path).and_then(|node| node.leaf().cloned());
            self.replaced.extend(leaf.iter().map(|leaf| leaf.thing.bytes().to_vec()));
            self.left(path);
            self.windows.remove(path);
            let upper = self.upper.remove(path).unwrap_or_else(|| Upper::of(leaf, None, made));
            self.upper.insert(path.clone(), Upper { below: None, ..upper });
        }
        along.into_iter().map(|(moved, _)| moved).collect()
    }

    fn is_used_by_another(&self, path: &str, moved: &str) -> bool {
        let comes_back = self.came_along(moved).as_deref() == Some(path);
        !comes_back
            && self.anchors.get(moved).is_some_and(|known| match &known.anchor {
                Anchor::Nothing => false,
                Anchor::Content(_) => true,
                Anchor::Moved { to, .. } => to != path && (!known.by_dir || self.lower.leaf(to).is_some()),
            })
    }

    fn has_older(&self, path: &str) -> bool {
        self.lower.leaf(path).is_some() && !self.is_fresh(path)
    }

    /// A directory with all that is in it, held or not.
    fn move_tree(&mut self, from: &str, to: &str) {
        self.move_handles(from, to);
        // What came with a directory leaves a path that was free.
        let stays = |(path, _): &(Path, u64)| self.left_with_dirs(path).is_none();
        let leaves: Vec<((Path, u64), bool)> =
            self.leaves_below(from).into_iter().map(|leaf| (leaf.clone(), stays(&leaf))).collect();
        self.dir_goes(from);
        self.moved_dirs.push((from.to_owned(), to.to_owned()));
        self.lower.rename(from, to);
        self.missed_moved(from, to);
        for (path, known) in self.anchors.iter_mut().filter(|(path, known)| !known.by_dir && is_within(path, to)) {
            // Free until now: what comes with the directory is older than its name.
            if known.anchor == Anchor::Nothing {
                (known.fresh, known.from) = (true, rebase(path, to, from));
            }
        }
        self.retarget(from, to);
        let moved: Vec<Path> = self.upper.keys().filter(|path| is_within(path, from)).cloned().collect();
        for path in moved {
            if let (Some(new), Some(upper)) = (rebase(&path, from, to), self.upper.remove(&path)) {
                self.upper.insert(new, upper);
            }
        }
        for ((path, inode), was_here) in leaves {
            if let Some(new) = rebase(&path, from, to) {
                self.moved_with_dir(path, new, inode, was_here);
            }
        }
        self.move_fresh(from, to);
    }

    pub fn leaves_below(&self, dir: &str) -> Vec<(Path, u64)> {
        let leaf = |path: Path| Some((self.lower.leaf(&path)?.inode, path));
        self.lower.within(dir).into_iter().filter_map(leaf).map(|(inode, path)| (path, inode)).collect()
    }

    fn moved_with_dir(&mut self, from: Path, to: Path, inode: u64, was_here: bool) {
        if let Some(window) = self.windows.remove(&from) {
            self.windows.insert(to.clone(), window);
        }
        let comes_back =
            |known: &Known| known.by_dir && matches!(known.anchor, Anchor::Moved { inode: at, .. } if at == inode);
        if self.anchors.get(&to).is_some_and(comes_back) {
            self.anchors.remove(&to);
        }
        if was_here {
            self.anchors.entry(from).or_insert(Known {
                anchor: Anchor::Moved { to, inode },
                fresh: false,
                by_dir: true,
                from: None,
                went: None,
            });
        }
    }

    fn move_fresh(&mut self, from: &str, to: &str) {
        let fresh = self.anchors.iter_mut().filter(|(path, known)| known.fresh && is_within(path, from));
        let moved: Vec<(Path, Option<Path>)> = fresh
            .filter_map(|(path, known)| {
                known.fresh = false;
                Some((rebase(path, from, to)?, known.from.take()))
            })
            .collect();
        for (path, came_from) in moved {
            let known = self.anchors.entry(path);
            let known =
                known.or_insert(Known { anchor: Anchor::Nothing, fresh: true, by_dir: false, from: None, went: None });
            (known.fresh, known.from) = (true, came_from);
        }
    }

    /// Whether a directory would bring a file to where another is or used to be: it may be refused, and programs copy.
    pub fn takes_used_paths(&self, from: &str, to: &str) -> bool {
        let is_taken = |path: &Path, moved: &Path| {
            let both = [self.lower.get(path), self.lower.get(moved)];
            self.is_used(moved)
                || (self.lower.leaf(path).is_some() && self.had_dir(moved))
                || (path != from && both.iter().all(Option::is_some) && both != [Some(&Node::Dir); 2])
        };
        let moved = self.lower.within(from).into_iter().filter_map(|path| Some((rebase(&path, from, to)?, path)));
        moved.into_iter().any(|(moved, path)| is_taken(&path, &moved))
    }
}

/// What a person does.
impl Model {
    /// What is within them goes with them.
    fn with_children(&self, paths: &[Path]) -> Vec<Path> {
        let all = self.held().map(|(held, _)| held);
        all.filter(|held| paths.iter().any(|path| is_within(held, path))).cloned().collect()
    }

    /// What is in a directory that waits takes that along.
    fn with_landing_first(&self, paths: &[Path]) -> Vec<Path> {
        let is_above = |held: &Path| self.is_held_dir(held) && paths.iter().any(|path| is_within(path, held));
        let all = self.held().map(|(held, _)| held);
        all.filter(|held| paths.contains(held) || is_above(held)).cloned().collect()
    }

    /// A directory that is hidden only for the deletions in it goes with the last of them.
    fn with_emptied_dirs(&self, mut paths: Vec<Path>) -> Vec<Path> {
        let waits_for_them = |dir: &Path| {
            let held = self.upper[dir].held.as_ref();
            self.is_removed_dir(dir) && held.is_some_and(|held| held.reasons == [Reason::Parent])
        };
        // What is in a directory comes before it.
        for dir in self.upper.keys().rev().filter(|dir| waits_for_them(dir)) {
            let goes = |entry: &Path| entry == dir || paths.contains(entry);
            let mut waiting = self.upper.keys().filter(|path| is_within(path, dir));
            let is_emptied = self.lower.within(dir).iter().all(goes) && waiting.all(goes);
            if is_emptied && !paths.contains(dir) && paths.iter().any(|path| is_within(path, dir)) {
                paths.push(dir.clone());
            }
        }
        paths
    }

    /// Whether something would take along what is not named: the deletions in a directory that goes.
    fn leaves_contents_out(&self, paths: &[Path]) -> bool {
        let whole: Vec<Path> = paths.iter().filter(|path| !self.is_held_dir(path)).cloned().collect();
        self.with_children(&whole).iter().any(|path| !paths.contains(path))
    }

    pub fn confirm(&mut self, paths: &[Path]) -> Result<(), ErrorCode> {
        let all = self.with_emptied_dirs(self.with_landing_first(paths));
        if self.leaves_contents_out(&all) {
            return Err(ErrorCode::Conflict);
        }
        if all.iter().any(|path| self.handles.values().any(|handle| handle.is_at(path) && handle.is_unjudged())) {
            return Err(ErrorCode::Busy);
        }
        let files = all.iter().filter(|path| !self.is_removed_dir(path));
        let landing = files.map(|path| Ok((path.clone(), self.landable(path)?)));
        let landing: Vec<(Path, Option<Leaf>)> = landing.collect::<Result<_, ErrorCode>>()?;
        // What is in a directory lands before what takes its place, and after one that lands itself.
        let (dirs, others): (Vec<_>, Vec<_>) = landing.into_iter().partition(|(path, _)| self.is_held_dir(path));
        for (path, leaf) in dirs.into_iter().chain(others.into_iter().rev()) {
            self.make_parents(&path);
            let leaf = leaf.filter(|leaf| leaf.thing != Thing::Dir);
            let is_dir = self.is_held_dir(&path);
            let before = self.lower.leaf(&path).map(|leaf| leaf.stamp);
            let shown = self.upper[&path].leaf.as_ref().map(|leaf| &leaf.thing);
            let is_merged = leaf.as_ref().is_some_and(|leaf| Some(&leaf.thing) != shown);
            if self.lower.is_dir(&path) {
                self.lower.remove(&path);
            }
            self.replace(&path, leaf.clone());
            if is_dir {
                self.lower.put(&path, Node::Dir);
            }
            let anchor = leaf.map_or(Anchor::Nothing, |leaf| Anchor::Content(leaf.thing));
            self.had_dirs.remove(&path);
            self.anchors.insert(path.clone(), Known { anchor, fresh: false, by_dir: false, from: None, went: None });
            self.windows.remove(&path);
            self.missed.remove(&path);
            if let Some(before) = before.filter(|_| is_merged) {
                self.merged(&path, before);
            }
            self.landed(&path);
        }
        let mut dirs: Vec<&Path> = all.iter().filter(|path| self.is_removed_dir(path)).collect();
        dirs.sort();
        for dir in dirs.into_iter().rev() {
            self.upper.remove(dir);
            self.lower.remove(dir);
        }
        Ok(())
    }

    /// What lands: the held content, or what it comes to together with what somebody else did below (SPEC §9).
    fn landable(&self, path: &str) -> Result<Option<Leaf>, ErrorCode> {
        let upper = &self.upper[path];
        let present = self.lower.leaf(path);
        let base = upper.held.as_ref().and_then(|held| held.base.clone());
        let thing = present.map(|leaf| leaf.thing.clone());
        let new = upper.leaf.as_ref().map(|leaf| leaf.thing.clone());
        let is_dir_of_nothing = new == Some(Thing::Dir) && thing.is_none();
        if self.is_as_based(path, upper) || is_dir_of_nothing || new == thing {
            return Ok(upper.leaf.clone());
        }
        let (Some(base), Some(present), Some(new)) = (base, present, new) else { return Err(ErrorCode::Conflict) };
        let is_text = |thing: &Thing| diff::classify(Some(thing.bytes())) == diff::Side::Text;
        if ![&base, &present.thing, &new].into_iter().all(|thing| thing.is_file() && is_text(thing)) {
            return Err(ErrorCode::Conflict);
        }
        match diff::merge(base.bytes(), present.thing.bytes(), new.bytes()) {
            Merge::Clean(merged) => Ok(Some(Leaf { thing: Thing::File(merged), ..present.clone() })),
            Merge::Conflict { .. } => Err(ErrorCode::Conflict),
        }
    }

    /// Whether lower has what it had when a change began to wait.
    pub(super) fn is_as_based(&self, path: &str, upper: &Upper) -> bool {
        match (upper.below, self.lower.leaf(path)) {
            (None, None) => true,
            (Some(stamp), Some(present)) => {
                let found = upper.held.as_ref().and_then(|held| held.found.as_ref());
                stamp == present.stamp || found.is_some_and(|found| found.thing == present.thing)
            }
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn make_parents(&mut self, path: &str) {
        let dir = parent(path);
        if self.lower.get(dir).is_none() {
            self.make_parents(dir);
            self.lower.put(dir, Node::Dir);
        }
    }

    pub fn discard(&mut self, paths: &[Path]) -> Result<(), ErrorCode> {
        let is_left = |(path, upper): (&Path, &Upper)| {
            upper.held.is_none() && paths.iter().any(|dir| self.is_held_dir(dir) && is_within(path, dir))
        };
        let is_open = |path: &Path| self.handles.values().any(|handle| handle.is_at(path));
        let goes_open = |(path, _): (&Path, &Upper)| {
            is_open(path) && paths.iter().any(|dir| self.is_held_dir(dir) && is_within(path, dir))
        };
        if self.upper.iter().any(is_left) || self.upper.iter().any(goes_open) {
            return Err(ErrorCode::Busy);
        }
        let (dirs, others): (Vec<Path>, Vec<Path>) = paths.iter().cloned().partition(|path| self.is_held_dir(path));
        for path in self.with_children(&dirs).into_iter().chain(others) {
            let is_unjudged = self.is_being_written(&path);
            match self.upper.get_mut(&path) {
                Some(upper) if is_unjudged => upper.held = None,
                _ => self.take_away(&path),
            }
            // What is there again is in directories that are there again.
            let mut dir = parent(&path);
            while !dir.is_empty() {
                if self.is_removed_dir(dir) {
                    self.upper.remove(dir);
                }
                dir = parent(dir);
            }
        }
        Ok(())
    }

    /// The view shows lower, and who writes on to something new brings it back.
    fn take_away(&mut self, path: &str) {
        let shown = self.lower.leaf(path).is_some_and(|leaf| leaf.thing.is_file());
        let mode = self.at(path).and_then(|node| Some(node.leaf()?.mode));
        if !shown {
            let orphan = self.orphan(path);
            let taken = |mode| TakenFrom { at: path.to_owned(), was_at: Some(path.to_owned()), mode };
            self.taken_from.extend(mode.map(|mode| (orphan, taken(mode))));
        }
        self.upper.remove(path);
    }

    /// Somebody has written to a path what nobody has judged.
    pub fn is_being_written(&self, path: &str) -> bool {
        self.handles.values().any(|handle| handle.is_at(path) && handle.is_unjudged())
    }

    /// Kept content comes back, never judged; a held change of the path goes on against it.
    pub fn rollback(&mut self, path: &str, thing: Thing, mode: u32) -> Result<(), ErrorCode> {
        if self.rules.refuses(path) {
            return Err(ErrorCode::NotPermitted);
        }
        if self.lower.is_dir(path) {
            return Err(ErrorCode::Conflict);
        }
        self.replace(path, Some(Leaf { thing: thing.clone(), mode, inode: 0, stamp: 0 }));
        let anchor = Anchor::Content(thing.clone());
        self.had_dirs.remove(path);
        self.anchors.insert(path.to_owned(), Known { anchor, fresh: false, by_dir: false, from: None, went: None });
        self.windows.remove(path);
        self.return_to(path);
        let now = self.lower.leaf(path).cloned();
        if let Some(upper) = self.upper.get_mut(path) {
            upper.below = now.as_ref().map(|leaf| leaf.stamp);
            upper.held.iter_mut().for_each(|held| (held.base, held.found) = (Some(thing.clone()), now.clone()));
            if !upper.is_dir() {
                let reasons = upper.held.iter().flat_map(|held| held.reasons.clone()).collect::<Vec<_>>();
                self.settle(path, &reasons);
            }
        }
        Ok(())
    }

    /// The daemon is killed, and another recovers what it left.
    pub fn remount(&mut self) {
        self.handles.clear();
        let mut unfinished: Vec<(u64, Path)> = Vec::new();
        for (path, upper) in &self.upper {
            let now = upper.leaf.as_ref().map(|leaf| leaf.thing.clone());
            let judged = upper.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure || held.new == now);
            if !judged {
                unfinished.push((upper.made, path.clone()));
            }
        }
        unfinished.sort();
        for (_, path) in unfinished {
            self.settle(&path, &[Reason::Interrupted]);
        }
    }
}

/// What somebody else does below.
impl Model {
    pub fn outside_write(&mut self, path: &str, content: Vec<u8>) {
        let stamp = self.next();
        match self.lower.leaf_mut(path) {
            Some(leaf) => (leaf.thing, leaf.stamp) = (Thing::File(content), stamp),
            None => {
                let leaf = Leaf { thing: Thing::File(content), mode: 0o644, inode: stamp, stamp };
                self.lower.put(path, Node::Leaf(leaf));
            }
        }
    }

    /// What came in this session is as old as anything that somebody else left there.
    pub fn begin_anew_with_anothers(&mut self, path: &str) {
        if let (true, Some(thing)) = (self.is_fresh(path), self.lower.thing(path)) {
            self.begin_anew(path, Anchor::Content(thing));
        }
    }

    pub(super) fn begin_anew(&mut self, path: &str, anchor: Anchor) {
        self.had_dirs.remove(path);
        self.anchors.insert(path.to_owned(), Known { anchor, fresh: false, by_dir: false, from: None, went: None });
    }

    pub fn outside_remove(&mut self, path: &str) {
        if !self.upper.contains_key(path) {
            self.orphan(path);
        }
        let is_seen = self.upper.get(path).is_none_or(|upper| upper.leaf.is_none());
        let removed = self.lower.remove(path);
        // Of what lay in a renamed directory nothing else is known.
        let went_here = |known: &Known| matches!(&known.anchor, Anchor::Moved { to, .. } if to == path);
        self.anchors.retain(|_, known| !(known.by_dir && went_here(known)));
        let is_file = removed.as_ref().and_then(Node::leaf).is_some_and(|leaf| leaf.thing.is_file());
        self.missed.extend((is_seen && is_file).then(|| path.to_owned()));
    }
}
