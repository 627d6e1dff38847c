//! What the view takes from upper: each entry once, found by its id and by each of its names.
//!
//! Invariant: `by_name` has exactly the names in the entries' rows. `by_inode` has the entries whose lower inode has
//! further names, under which the view must show the same content; `by_taken` those that stand for one name alone. Inode
//! numbers are used again: an entry found by one counts only if [`Births`] says that it is of the inode. `based_on` has
//! the number under which an entry is in either map. `by_change` has the entries whose row is held. `counted` has those
//! whose row says that they are a directory, or are or may be in the place of one.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};

use super::times::{Discarded, Latest};
use crate::model::{Births, ChangeId, ChangeKind, Reason, RelPath, Stamp, Timestamp};
use crate::store::{Base, Below, Held, Kept, UpperId, UpperRow, What};
use crate::sys::file::{self, FileKind, Meta};

#[derive(Debug)]
pub(in crate::overlay) struct Upper {
    pub row: UpperRow,
    /// Written since it was last judged.
    pub dirty: bool,
    pub recorded: Recorded,
    /// Being judged or reviewed: no other thread may touch it.
    pub busy: bool,
    /// How many threads wait to judge it themselves.
    pub awaited: usize,
    /// The content was fsynced: its landing must be durable, and so must a second one under another name.
    pub synced: bool,
    /// Lower had changed between the open and the copy-up: the writer had seen other content.
    pub moved_on: bool,
    /// Reasons to hold it because of the programs that wrote it since it was last judged.
    pub because: Vec<Reason>,
    /// Its file is about to be kept as a backup: it is not written to until that is done or given up.
    pub given_away: bool,
    /// It could not be judged when its writer was done, and no writer will have it judged.
    pub left: bool,
    /// It was renamed here from this path of lower, which goes when this lands.
    pub takes_along: Option<(RelPath, Stamp)>,
    /// The git object id of the content that is held under this change id. Each `status` needs it.
    pub blob: Option<(ChangeId, gix::ObjectId)>,
}

/// What the database has of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Recorded {
    /// Nothing yet.
    Nothing,
    Row,
    /// Nothing any more, until the next write through a handle that is still open: lower has its content.
    Landed,
}

impl Upper {
    /// An entry that is being written and that the database knows.
    pub fn written(row: UpperRow) -> Self {
        Self {
            row,
            dirty: true,
            recorded: Recorded::Row,
            busy: false,
            awaited: 0,
            synced: false,
            moved_on: false,
            because: Vec::new(),
            given_away: false,
            left: false,
            takes_along: None,
            blob: None,
        }
    }

    /// The same for one that waits for review.
    pub fn held(row: UpperRow) -> Self {
        Self { dirty: false, ..Self::written(row) }
    }

    /// True if lower has its content, and it stays only for those who have it open.
    pub fn is_landed(&self) -> bool {
        self.recorded == Recorded::Landed && !self.dirty
    }

    pub fn has_row(&self) -> bool {
        self.recorded == Recorded::Row
    }

    /// True for a directory that someone removed below, and that the view keeps for what is held in it. One that takes
    /// the place of a deletion has that one's reasons.
    pub fn is_stand_in(&self) -> bool {
        let is_external = |held: &Held| held.reasons.contains(&Reason::External);
        let is_alone = self.row.base.below == Below::Nothing;
        is_alone && self.row.what == What::Dir && self.row.held.as_ref().is_some_and(is_external)
    }

    /// Its row once lower has `after` in the place of `before`; `None` if it is based on something else.
    fn on_copy(&self, before: &Stamp, after: &Stamp) -> Option<UpperRow> {
        let mut row = self.row.clone();
        match &mut row.base.below {
            Below::Entry { stamp, .. } if stamp.has_same_content(before) => *stamp = *after,
            Below::Entry { .. } | Below::Nothing => return None,
        }
        Some(row)
    }

    fn takes_one_name_of(&self, inode: &Stamp, births: Births) -> bool {
        matches!(self.row.base.below, Below::Entry { stamp, links: 0 | 1, .. } if births.may_be_one(stamp.key(), inode.key()))
    }

    fn is_of(&self, inode: &Stamp, births: Births) -> bool {
        matches!(self.row.base.below, Below::Entry { stamp, .. } if births.are_one(&stamp, inode))
    }
}

/// How the view and lower differ in the directories that one directory has.
#[derive(Default)]
pub(in crate::overlay) struct DirsIn {
    /// How many the view has and lower has not.
    pub made: u32,
    /// How many of lower's the view does not show.
    pub hidden: u32,
    /// Where the view has a file or symlink based on something in lower without kept content: that may be a directory.
    pub perhaps_hidden: Vec<RelPath>,
}

/// How an entry counts in [`DirsIn`].
#[derive(Clone, Copy)]
enum Counts {
    Made,
    Hidden,
    /// Unless it has landed.
    PerhapsHidden,
}

impl Counts {
    fn of(row: &UpperRow) -> Option<Self> {
        let is_structure = row.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure);
        let has_bare_base = row.base.below != Below::Nothing && row.base.content.is_none();
        match row.what {
            What::Dir if is_structure => Some(Self::Made),
            What::Whiteout if is_structure => Some(Self::Hidden),
            What::File | What::Symlink if has_bare_base => Some(Self::PerhapsHidden),
            What::Dir | What::Whiteout | What::File | What::Symlink | What::Node => None,
        }
    }
}

/// The entries in one directory that count in [`DirsIn`].
#[derive(Default)]
struct Counted {
    made: HashSet<UpperId>,
    hidden: HashSet<UpperId>,
    perhaps_hidden: HashSet<UpperId>,
}

impl Counted {
    fn of(&mut self, counts: Counts) -> &mut HashSet<UpperId> {
        match counts {
            Counts::Made => &mut self.made,
            Counts::Hidden => &mut self.hidden,
            Counts::PerhapsHidden => &mut self.perhaps_hidden,
        }
    }

    fn is_empty(&self) -> bool {
        self.made.is_empty() && self.hidden.is_empty() && self.perhaps_hidden.is_empty()
    }
}

/// The same by directory: the kernel asks for a directory's links after each change in it, however many entries it has.
#[derive(Default)]
struct CountedIn(HashMap<RelPath, Counted>);

impl CountedIn {
    fn note(&mut self, row: &UpperRow) {
        let Some(counts) = Counts::of(row) else { return };
        for dir in row.names.iter().filter_map(RelPath::parent) {
            self.0.entry(dir).or_default().of(counts).insert(row.id);
        }
    }

    fn forget(&mut self, row: &UpperRow) {
        let Some(counts) = Counts::of(row) else { return };
        for dir in row.names.iter().filter_map(RelPath::parent) {
            let Some(counted) = self.0.get_mut(&dir) else { continue };
            counted.of(counts).remove(&row.id);
            if counted.is_empty() {
                self.0.remove(&dir);
            }
        }
    }
}

/// The entries of one directory.
#[derive(Default)]
struct Children {
    names: BTreeMap<OsString, UpperId>,
    times: DirTimes,
}

/// The times that a directory has by its names in the view, unless lower's are later.
#[derive(Clone, Default)]
struct DirTimes {
    /// When a name last came or went that lower does not have, or has. `None` if somebody has set the time since.
    modified: Option<Timestamp>,
    /// The same, whatever was set; or what was shown last, if that is later.
    changed: Cell<Option<Timestamp>>,
    /// A name has gone that was not lower's, or came back from there. With one that lands, lower's times move as well.
    is_back: bool,
}

impl DirTimes {
    fn note_change(&mut self) {
        let now = file::now();
        self.modified = Some(now);
        self.changed.set(self.changed.get().max(Some(now)));
    }
}

/// True if the view has other names by an entry than lower: one that lower lacks, or none where lower has one.
fn changes_names(row: &UpperRow) -> bool {
    row.what == What::Whiteout || row.base.below == Below::Nothing
}

#[derive(Default)]
pub(in crate::overlay) struct Uppers {
    entries: HashMap<UpperId, Upper>,
    /// Directory, then name: a directory's entries are read and moved together.
    by_name: BTreeMap<RelPath, Children>,
    /// Directories that had entries and have none any more.
    dirs_before: Latest<DirTimes>,
    /// Files of which a change was discarded.
    discarded: Latest<Discarded>,
    by_inode: HashMap<(u64, u64), Vec<UpperId>>,
    by_taken: HashMap<(u64, u64), Vec<UpperId>>,
    based_on: HashMap<UpperId, (u64, u64)>,
    /// Sorted, so that ids with the same beginning follow each other.
    by_change: BTreeMap<ChangeId, UpperId>,
    counted: CountedIn,
    /// How many of the entries are directories: mostly none, which saves looking for one.
    dirs: usize,
    births: Births,
}

impl Uppers {
    pub fn new(births: Births) -> Self {
        Self { births, ..Self::default() }
    }

    pub fn get(&self, id: UpperId) -> Option<&Upper> {
        self.entries.get(&id)
    }

    pub fn row(&self, id: UpperId) -> Option<&UpperRow> {
        self.get(id).map(|upper| &upper.row)
    }

    /// Names, base and hold in its row may only be changed by [`Self::set_row`], [`Self::set_base`], [`Self::set_landed`]
    /// and [`Self::held_no_more`].
    pub fn get_mut(&mut self, id: UpperId) -> Option<&mut Upper> {
        self.entries.get_mut(&id)
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Upper> {
        self.entries.values()
    }

    pub fn at(&self, path: &RelPath) -> Option<UpperId> {
        self.by_name.get(&path.parent()?)?.names.get(path.name()?).copied()
    }

    /// The change that waits at a path.
    pub fn held_at(&self, path: &RelPath) -> Option<&Held> {
        self.get(self.at(path)?)?.row.held.as_ref()
    }

    /// The change that removes a directory, if it waits only for the held deletions in that.
    pub fn hidden_for_contents(&self, path: &RelPath) -> Option<&ChangeId> {
        let row = &self.get(self.at(path)?)?.row;
        let held = row.held.as_ref().filter(|_| row.removes_dir())?;
        (held.reasons == [Reason::Parent]).then_some(&held.id)
    }

    /// The entry that stands for a lower inode with several names.
    pub fn of_inode(&self, inode: &Stamp) -> Option<UpperId> {
        let mut ids = self.by_inode.get(&inode.number())?.iter().rev();
        ids.find(|id| self.get(**id).is_some_and(|upper| upper.is_of(inode, self.births))).copied()
    }

    /// How many names of a lower inode stand for something else in the view, or for nothing.
    pub fn names_taken(&self, inode: &Stamp) -> u32 {
        let ids = self.by_taken.get(&inode.number()).into_iter().flatten();
        // What has landed since is based on another inode.
        let taken = ids.filter(|id| self.get(**id).is_some_and(|upper| upper.takes_one_name_of(inode, self.births)));
        u32::try_from(taken.count()).unwrap_or(u32::MAX)
    }

    /// Updates the entries that stand for one name alone of a file that was written in place by another, and that is
    /// `after` now, with `content`. Such an entry takes its name as it is, whatever the file has become by our own doing.
    /// Returns the rows that the database must have.
    pub fn taken_as_written(&mut self, before: &Stamp, after: &Stamp, content: Option<Kept>) -> Vec<UpperRow> {
        let takers = self.by_taken.get(&before.number()).filter(|_| self.births.may_be_one(before.key(), after.key()));
        let mut rows = Vec::new();
        for id in takers.into_iter().flatten() {
            if let Some(upper) = self.entries.get_mut(id)
                && let Below::Entry { stamp, .. } = &mut upper.row.base.below
                && stamp.has_same_content(before)
            {
                *stamp = *after;
                upper.row.base.found = content;
                rows.extend(upper.has_row().then(|| upper.row.clone()));
            }
        }
        rows
    }

    /// What lower has at a path was `before` and is `after` by our own doing, with the same content.
    pub fn touched(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        if let Some(row) = self.upper_at(path).and_then(|upper| upper.on_copy(before, after)) {
            self.set_row(row);
        }
    }

    /// The row that the database must then have of the entry there.
    pub fn saved_on_copy(&self, path: &RelPath, before: &Stamp, after: &Stamp) -> Vec<UpperRow> {
        let saved = self.upper_at(path).filter(|upper| upper.has_row());
        saved.and_then(|upper| upper.on_copy(before, after)).into_iter().collect()
    }

    pub fn upper_at(&self, path: &RelPath) -> Option<&Upper> {
        self.get(self.at(path)?)
    }

    pub fn in_dir(&self, dir: &RelPath) -> impl Iterator<Item = (&OsStr, UpperId)> {
        let children = self.by_name.get(dir).into_iter();
        children.flat_map(|children| &children.names).map(|(name, id)| (name.as_os_str(), *id))
    }

    /// The entry of a directory that lower does not have.
    pub fn held_dir(&self, path: &RelPath) -> Option<UpperId> {
        if self.dirs == 0 {
            return None;
        }
        self.at(path).filter(|id| self.get(*id).is_some_and(|upper| upper.row.what == What::Dir))
    }

    /// True if such a directory is above `path`.
    pub fn is_in_held_dir(&self, path: &RelPath) -> bool {
        self.dirs > 0 && self.held_dirs_above(path).next().is_some()
    }

    pub fn held_dirs_above(&self, path: &RelPath) -> impl Iterator<Item = UpperId> {
        std::iter::successors(path.parent(), RelPath::parent).filter_map(|dir| self.held_dir(&dir))
    }

    /// The same for a directory that stands in for one that someone removed.
    pub fn stand_in_at(&self, path: &RelPath) -> Option<&Upper> {
        self.get(self.held_dir(path)?).filter(|upper| upper.is_stand_in())
    }

    /// Those at and above `path`, the outermost first. What is in any other held directory is not lower's at all.
    pub fn stand_ins_to(&self, path: &RelPath) -> Vec<RelPath> {
        if self.dirs == 0 {
            return Vec::new();
        }
        let mut dirs: Vec<RelPath> = std::iter::successors(Some(path.clone()), RelPath::parent).collect();
        dirs.retain(|dir| self.held_dir(dir).is_some());
        dirs.reverse();
        dirs.into_iter().take_while(|dir| self.stand_in_at(dir).is_some()).collect()
    }

    /// True if there is any entry below `dir`.
    pub fn has_within(&self, dir: &RelPath) -> bool {
        self.by_name.range(dir.clone()..).next().is_some_and(|(above, _)| above.is_within(dir))
    }

    /// What of upper shows below `dir`, except for directories that are there only for its sake.
    pub fn shown_within(&self, dir: &RelPath) -> impl Iterator<Item = &Upper> {
        let below = self.by_name.range(dir.clone()..).take_while(|(above, _)| above.is_within(dir));
        let uppers = below.flat_map(|(_, children)| children.names.values()).filter_map(|id| self.get(*id));
        uppers.filter(|upper| upper.row.what != What::Whiteout && !upper.is_landed() && !upper.is_stand_in())
    }

    pub fn shows_within(&self, dir: &RelPath) -> bool {
        self.shown_within(dir).next().is_some()
    }

    /// Directories in `dir` that have no upper entry, but something of upper within that shows.
    pub fn dirs_shown_in(&self, dir: &RelPath) -> Vec<RelPath> {
        let depth = dir.components().count();
        let mut dirs: Vec<RelPath> = Vec::new();
        let below = self.by_name.range(dir.clone()..).take_while(|(above, _)| above.is_within(dir));
        for (above, _) in below {
            // The entries below one directory follow each other.
            if dirs.last().is_none_or(|last| !above.is_within(last)) {
                dirs.extend(above.components().nth(depth).and_then(|name| dir.join(name).ok()));
            }
        }
        dirs.retain(|dir| self.at(dir).is_none() && self.shows_within(dir));
        dirs
    }

    pub fn dirs_in(&self, dir: &RelPath) -> DirsIn {
        let Some(Counted { made, hidden, perhaps_hidden }) = self.counted.0.get(dir) else { return DirsIn::default() };
        let uppers = perhaps_hidden.iter().filter_map(|id| self.get(*id)).filter(|upper| !upper.is_landed());
        let names = uppers.flat_map(|upper| &upper.row.names).filter(|name| name.parent().as_ref() == Some(dir));
        let count = |ids: &HashSet<UpperId>| u32::try_from(ids.len()).unwrap_or(u32::MAX);
        DirsIn { made: count(made), hidden: count(hidden), perhaps_hidden: names.cloned().collect() }
    }

    /// True if an entry that is not `going` needs the directory that lower has at `path`: it is a change of that
    /// directory, or shows in it. A held deletion in a directory does not need it.
    pub fn need_dir(&self, path: &RelPath, going: &HashSet<UpperId>) -> bool {
        let is_changed = self.at(path).is_some_and(|id| !going.contains(&id));
        is_changed || self.shown_within(path).any(|upper| !going.contains(&upper.row.id))
    }

    /// Entries at or below `path`.
    pub fn within(&self, path: &RelPath) -> Vec<UpperId> {
        let below = self.by_name.range(path.clone()..).take_while(|(dir, _)| dir.is_within(path));
        let mut ids: Vec<UpperId> =
            below.flat_map(|(_, children)| children.names.values().copied()).chain(self.at(path)).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Adds an entry that the database already has.
    pub fn restore(&mut self, row: UpperRow) {
        self.insert(Upper { dirty: row.held.is_none(), ..Upper::written(row) });
    }

    pub fn insert(&mut self, upper: Upper) {
        let id = upper.row.id;
        self.put_names(&upper.row);
        self.note_base(id, upper.row.base.below);
        self.note_held(&upper.row);
        self.counted.note(&upper.row);
        self.dirs += usize::from(upper.row.what == What::Dir);
        self.entries.insert(id, upper);
    }

    fn note_base(&mut self, id: UpperId, below: Below) {
        let Below::Entry { stamp, links, .. } = below else { return };
        let inode = stamp.number();
        self.based_on.insert(id, inode);
        let found_by = match links {
            0 | 1 => &mut self.by_taken,
            _ => &mut self.by_inode,
        };
        found_by.entry(inode).or_default().push(id);
    }

    pub fn remove(&mut self, id: UpperId) -> Option<Upper> {
        let upper = self.entries.remove(&id)?;
        self.forget_held(upper.row.held.as_ref(), id);
        self.counted.forget(&upper.row);
        self.dirs -= usize::from(upper.row.what == What::Dir);
        self.take_names(&upper.row);
        if let Some(inode) = self.based_on.remove(&id) {
            self.forget_inode(inode, id);
        }
        Some(upper)
    }

    fn note_held(&mut self, row: &UpperRow) {
        if let Some(held) = &row.held {
            self.by_change.insert(held.id.clone(), row.id);
        }
    }

    /// The entry no longer waits for review.
    pub fn held_no_more(&mut self, id: UpperId) {
        let Some(upper) = self.entries.get_mut(&id) else { return };
        self.counted.forget(&upper.row);
        let held = upper.row.held.take();
        self.counted.note(&upper.row);
        self.forget_held(held.as_ref(), id);
    }

    /// Sets what the entry is judged against. It goes on being found under the inode number it had.
    pub fn set_base(&mut self, id: UpperId, base: Base) {
        let Some(upper) = self.entries.get_mut(&id) else { return };
        self.counted.forget(&upper.row);
        upper.row.base = base;
        self.counted.note(&upper.row);
    }

    /// The same for an entry whose content lower has: names that were to be made are lower's by now, and the next write
    /// shows under all names of the inode.
    pub fn set_landed(&mut self, id: UpperId, base: Base) {
        self.set_base(id, base);
        let row = self.get(id).map(|upper| &upper.row).filter(|row| !row.further_names().is_empty());
        let Some(mut row) = row.cloned() else { return };
        row.names.truncate(1);
        if let Below::Entry { links, .. } = &mut row.base.below {
            *links = (*links).max(2);
        }
        self.set_row(row);
    }

    fn forget_held(&mut self, held: Option<&Held>, id: UpperId) {
        // An entry that takes this one's place may have taken over its change already.
        if let Some(held) = held.filter(|held| self.by_change.get(&held.id) == Some(&id)) {
            self.by_change.remove(&held.id);
        }
    }

    fn forget_inode(&mut self, inode: (u64, u64), id: UpperId) {
        for found_by in [&mut self.by_inode, &mut self.by_taken] {
            let Some(ids) = found_by.get_mut(&inode) else { continue };
            ids.retain(|found| *found != id);
            if ids.is_empty() {
                found_by.remove(&inode);
            }
        }
    }

    /// Changes the entry's names, base and hold to those of `row`.
    pub fn set_row(&mut self, row: UpperRow) {
        let Some(upper) = self.entries.get_mut(&row.id) else { return };
        let old = std::mem::replace(&mut upper.row, row.clone());
        self.forget_held(old.held.as_ref(), row.id);
        self.note_held(&row);
        self.counted.forget(&old);
        self.counted.note(&row);
        if (&old.names, changes_names(&old)) != (&row.names, changes_names(&row)) {
            self.take_names(&old);
            self.put_names(&row);
        }
        if old.base.below != row.base.below {
            if let Some(inode) = self.based_on.remove(&row.id) {
                self.forget_inode(inode, row.id);
            }
            self.note_base(row.id, row.base.below);
        }
    }

    pub fn by_id(&self, id: &ChangeId) -> Option<UpperId> {
        self.by_change.get(id).copied()
    }

    pub fn of_change(&self, id: &ChangeId) -> Option<&Upper> {
        self.get(self.by_id(id)?)
    }

    /// True if the id of a change other than that of `own` begins with these digits.
    pub fn has_change(&self, digits: &ChangeId, own: UpperId) -> bool {
        let mut alike =
            self.by_change.range(digits.clone()..).take_while(|(id, _)| id.as_str().starts_with(digits.as_str()));
        alike.any(|(_, upper)| *upper != own)
    }

    fn put_names(&mut self, row: &UpperRow) {
        for path in &row.names {
            let (Some(dir), Some(name)) = (path.parent(), path.name()) else { continue };
            let before = &mut self.dirs_before;
            let children = self.by_name.entry(dir).or_insert_with_key(|dir| Children {
                names: BTreeMap::new(),
                times: before.take(dir).unwrap_or_default(),
            });
            children.names.insert(name.to_owned(), row.id);
            if changes_names(row) {
                children.times.note_change();
            }
        }
    }

    fn take_names(&mut self, row: &UpperRow) {
        for path in &row.names {
            let (Some(dir), Some(name)) = (path.parent(), path.name()) else { continue };
            let Some(children) = self.by_name.get_mut(&dir) else { continue };
            if children.names.get(name) == Some(&row.id) {
                children.names.remove(name);
                if changes_names(row) {
                    children.times.note_change();
                    children.times.is_back = true;
                }
            }
            if children.names.is_empty()
                && let Some(Children { times, .. }) = self.by_name.remove(&dir)
                && times.is_back
            {
                // With lower's names come lower's times, but none that are older.
                self.dirs_before.note(dir, times);
            }
        }
    }

    /// True if anything of that kind may have other times in the view than lower gives it.
    pub fn have_times(&self, kind: FileKind) -> bool {
        match kind {
            FileKind::Directory => self.count() > 0 || !self.dirs_before.is_empty(),
            _ => !self.discarded.is_empty(),
        }
    }

    /// Attributes with the times that a directory has by its names in the view, and a file by what was discarded of it.
    pub fn with_times(&self, path: &RelPath, meta: Meta) -> Meta {
        if !meta.is_dir() {
            return self.discarded.get(path).map_or(meta, |discarded| discarded.shown(meta));
        }
        let children = self.by_name.get(path);
        let times = children.map(|children| &children.times).or_else(|| self.dirs_before.get(path));
        let Some((times, changed)) = times.and_then(|times| Some((times, times.changed.get()?))) else { return meta };
        let mtime = meta.mtime.max(times.modified.unwrap_or(meta.mtime));
        let mut ctime = meta.ctime.max(changed);
        if ctime.seconds == meta.ctime.seconds && children.is_some_and(|children| self.has_other_names(children)) {
            // Git compares whole seconds, and shares what it knows of the directory between the view and the project.
            ctime = Timestamp { seconds: meta.ctime.seconds + 1, nanoseconds: 0 };
            times.changed.set(Some(ctime));
        }
        Meta { mtime, ctime, ..meta }
    }

    /// True if a directory has other names in the view than below.
    fn has_other_names(&self, children: &Children) -> bool {
        let mut uppers = children.names.values().filter_map(|id| self.get(*id));
        uppers.any(|upper| changes_names(&upper.row) && !upper.is_landed())
    }

    /// A change of what lower has at `path` has gone, so that the view shows other content without any new time below.
    pub fn note_discarded(&mut self, path: &RelPath, below: &Meta) {
        self.discarded.note(path.clone(), Discarded { below: below.mtime, at: file::now() });
    }

    /// Somebody has set the times of something: from then on they are what it says.
    pub fn times_were_set(&mut self, path: &RelPath) {
        self.discarded.take(path);
        if let Some(times) = self.dirs_before.get_mut(path) {
            times.modified = None;
        }
        if let Some(children) = self.by_name.get_mut(path) {
            children.times.modified = None;
        }
    }
}
