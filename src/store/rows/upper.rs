//! What is in the view and not in lower: one row for each upper entry, held or still being written.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::model::{ChangeId, ChangeKind, Digest, IdSide, Looks, OperationId, Reason, RelPath, Stamp, Timestamp};
use crate::protocol::Program;
use crate::store::rows::{ids, to_row};
use crate::store::{Context, Result, Store};
use crate::sys::Mode;
use crate::sys::file::{self, FileKind, Meta, OwnLooks, Standing};
use crate::sys::sqlite::Transaction;

/// Names an upper entry and its file in `stage/`. A process gives each number once; the next process may give a number
/// again that neither a row nor a file has any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UpperId(i64);

impl UpperId {
    pub(in crate::store) fn new(number: i64) -> Self {
        Self(number)
    }

    pub(in crate::store) fn number(self) -> i64 {
        self.0
    }

    pub(in crate::store) fn parse(name: &OsStr) -> Option<Self> {
        name.to_str()?.parse().ok().filter(|number| *number > 0).map(Self)
    }
}

impl std::fmt::Display for UpperId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Upper content without a row yet. It is removed again unless it is kept.
#[must_use]
pub struct NewUpper<'a> {
    store: &'a Store,
    id: UpperId,
    is_kept: bool,
}

impl NewUpper<'_> {
    pub fn id(&self) -> UpperId {
        self.id
    }

    /// Called when a row tells of it, or an open descriptor is all that is needed.
    pub fn keep(mut self) -> UpperId {
        self.is_kept = true;
        self.store.in_passing.lock().remove(&self.id);
        self.store.note_room(self.id);
        self.id
    }
}

impl Drop for NewUpper<'_> {
    fn drop(&mut self) {
        // After a halt an intent may be left that tells of it: recovery decides, and sweeps what is not needed.
        if !self.is_kept && !self.store.is_halted() {
            self.store.drop_upper_file(self.id);
        }
    }
}

/// A fresh file of upper content.
#[must_use]
pub struct UpperFile<'a> {
    pub new: NewUpper<'a>,
    pub file: File,
}

/// What an upper entry is in the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Its content and metadata are those of its file in `stage/`.
    File,
    /// Its target, owner and times are those of the symlink in `stage/`.
    Symlink,
    /// Nothing is at the path, though lower has something.
    Whiteout,
    /// A directory that lower does not have. Its attributes are those of the empty directory in `stage/`; what is in it
    /// has entries of its own.
    Dir,
    /// A FIFO, socket or device that lower does not have: the one in `stage/`.
    Node,
}

impl What {
    /// True if it is held for where it stands, and not for content that could be judged.
    pub fn is_structure(&self) -> bool {
        match self {
            Self::Dir | Self::Node => true,
            Self::File | Self::Symlink | Self::Whiteout => false,
        }
    }
}

/// What lower has, or is expected to have, at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Below {
    Nothing,
    Entry { stamp: Stamp, mode: u32, links: u32 },
}

impl Below {
    /// Describes what was found at a path.
    pub fn of(found: Option<&Meta>) -> Self {
        let entry = |meta: &Meta| Self::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links };
        found.map_or(Self::Nothing, entry)
    }
}

/// Content that is kept, and what it stood there as: a file with the bytes of a symlink's target is a different thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub digest: Digest,
    pub symlink: bool,
}

impl Kept {
    pub fn standing(self) -> Standing {
        Standing::new(Some(if self.symlink { FileKind::Symlink } else { FileKind::Regular }), 0)
    }
}

/// What a change is judged against and what its landing replaces. The two differ where content that used to be at
/// the path is compared though lower has nothing there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub below: Below,
    /// The content compared with; `None` if there was none, or as long as it has not been asked for.
    pub content: Option<Kept>,
    /// What lower had when the change was held, if that was something else, which had come a moment before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Kept>,
}

impl Base {
    /// The base of a change where lower has nothing.
    pub const NOTHING: Self = Self { below: Below::Nothing, content: None, found: None };

    /// The base of a change to what lower has, or has not.
    pub fn of(below: Below) -> Self {
        Self { below, ..Self::NOTHING }
    }

    /// The base of what takes the place of one name of lower's file: its other names keep their content.
    pub fn of_name(meta: &Meta) -> Self {
        Self::of(Below::of(Some(meta))).of_one_name()
    }

    /// Returns what the id tells of: what it is judged against, or what landed where nothing was when its window began.
    pub fn told(&self) -> Option<Kept> {
        self.content.or(self.found)
    }

    pub fn digest(&self) -> Option<Digest> {
        self.told().map(|content| content.digest)
    }

    /// Returns what lower had when the change was held.
    pub fn content_below(&self) -> Option<Kept> {
        self.found.or(self.content)
    }

    /// Returns the content to keep for it: later writes are compared with it, and merges start from it if lower moves on.
    pub fn contents(&self) -> impl Iterator<Item = Digest> + use<> {
        [self.content, self.found].into_iter().flatten().map(|kept| kept.digest)
    }

    /// True if it was written through one name of an inode that has several, which all show the same content.
    pub fn is_shared(&self) -> bool {
        self.shared_inode().is_some()
    }

    /// Returns that inode.
    pub fn shared_inode(&self) -> Option<&Stamp> {
        match &self.below {
            Below::Entry { stamp, links: 2.., .. } => Some(stamp),
            Below::Entry { .. } | Below::Nothing => None,
        }
    }

    /// Returns the base of an entry that takes the place of one name: the inode's other names keep what they have.
    pub fn of_one_name(mut self) -> Self {
        if let Below::Entry { links, .. } = &mut self.below {
            *links = 1;
        }
        self
    }
}

/// Which looks of a file are the change's own, for a file that began as a copy of lower's. All others are lower's, as
/// they are when it lands: what is done to them there meanwhile is not taken back.
///
/// As long as it is held, its own are those that differ from what it is based on: with their values they are part of its
/// id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLooks {
    pub own: OwnLooks,
    /// The ctime of lower's inode when the other looks were taken over: as long as that stays, they are the same.
    pub as_of: Timestamp,
    /// All looks are its own, whatever lower has: it is new, or took one name of a file that has others, and what is done
    /// to that file belongs to those.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

impl FileLooks {
    /// For a file that looks like what lower has.
    pub fn of(lower: &Meta) -> Self {
        Self { as_of: lower.ctime, ..Self::default() }
    }

    /// For a file that looks like nothing else.
    pub fn alone() -> Self {
        Self { alone: true, ..Self::default() }
    }

    /// True if it has an owner of its own, whatever lower's file has.
    pub fn has_own_owner(&self) -> bool {
        self.alone || self.own.owner
    }

    /// True if it has, or lacks, attributes whatever lower's file has.
    pub fn has_own_xattrs(&self) -> bool {
        self.alone || !self.own.xattrs.is_empty()
    }
}

/// The process that wrote, renamed or removed something, as far as the kernel told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    pub pid: u32,
    pub uid: u32,
    /// The program that opened the file; `None` if nothing was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<Program>,
    /// The program that wrote to it first, or did what was done. A shell opens what the program it then becomes writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<Program>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

impl Writer {
    /// Returns itself, or `None` if the kernel told nothing of it.
    pub fn known(&self) -> Option<&Self> {
        Some(self).filter(|writer| **writer != Self::default())
    }

    /// Returns the process, if it was looked up: `pid` may be a thread of it.
    pub fn process(&self) -> Option<u32> {
        self.program().map(|program| program.pid)
    }

    /// Returns the executable that rules for programs refer to.
    pub fn exe(&self) -> Option<&str> {
        self.program()?.exe.as_deref()
    }

    fn program(&self) -> Option<&Program> {
        self.opened_by.as_ref().or(self.written_by.as_ref())
    }
}

/// A change that waits for review.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub id: ChangeId,
    pub kind: ChangeKind,
    /// In the order in which they are told; never empty.
    pub reasons: Vec<Reason>,
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
    pub hunks: u64,
    pub new: Option<Digest>,
    /// What it makes of its path. `None` if an earlier version held it, whose ids did not depend on that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub makes: Option<Standing>,
    /// The digest of the looks that it brings beside content; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<Digest>,
    /// Milliseconds since the epoch: when it was first held in this form, and when a person last looked.
    pub created: i64,
    pub renewed: i64,
    pub writer: Option<Writer>,
    /// The session in which the path began to wait, whatever was written to it, renamed or taken out of it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_session: Option<String>,
    /// What a permission program said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The operation that it came with, if many changes came at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
}

impl Held {
    /// True if its id stands for this content in an entry of this kind.
    pub fn is_of(&self, standing: Standing, content: Option<Digest>) -> bool {
        self.new == content && self.makes.is_none_or(|makes| makes == standing)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpperRow {
    pub id: UpperId,
    /// The names it has in the view, the first of which is the change's [path](Self::path). Never empty.
    pub names: Vec<RelPath>,
    pub what: What,
    pub base: Base,
    pub held: Option<Held>,
    /// `None` if all looks are its own, as those of a file that was made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<FileLooks>,
}

impl UpperRow {
    /// The row of an entry with one name, not held yet.
    pub fn new(id: UpperId, path: RelPath, what: What, base: Base) -> Self {
        Self { id, names: vec![path], what, base, held: None, looks: None }
    }

    /// The same for a copy of what lower has.
    pub fn of_copy(id: UpperId, path: RelPath, what: What, lower: &Meta) -> Self {
        Self { looks: Some(FileLooks::of(lower)), ..Self::new(id, path, what, Base::of(Below::of(Some(lower)))) }
    }

    pub fn path(&self) -> &RelPath {
        &self.names[0]
    }

    /// True if it changes nothing that lower has, and has not been judged.
    pub fn is_new(&self) -> bool {
        self.base.below == Below::Nothing && self.held.is_none()
    }

    /// True if it is the removal of a directory, and held.
    pub fn removes_dir(&self) -> bool {
        let is_structure = self.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure);
        is_structure && self.what == What::Whiteout
    }

    /// Returns the hash that its id is the beginning of, or `None` if it is not held.
    pub fn full_id(&self) -> Option<Digest> {
        let held = self.held.as_ref()?;
        Some(self.full_id_of(held.kind, (held.makes, held.new), held.looks))
    }

    /// Returns the full hash of which the id of a change is the beginning: `makes` is what stands at the path afterwards, and
    /// `new` its content.
    pub fn full_id_of(
        &self,
        kind: ChangeKind,
        (makes, new): (Option<Standing>, Option<Digest>),
        looks: Option<Digest>,
    ) -> Digest {
        let told = |standing: Standing| (!standing.is_file_or_nothing()).then(|| standing.to_string());
        let made = makes.and_then(told);
        let based_on = makes.and(self.base.told()).map(Kept::standing).and_then(told);
        let base = IdSide { content: self.base.digest(), thing: based_on.as_deref() };
        ChangeId::full(self.path(), kind, base, IdSide { content: new, thing: made.as_deref() }, looks)
    }

    pub fn further_names(&self) -> &[RelPath] {
        &self.names[1..]
    }

    /// Returns the row without one of its names.
    pub fn without_name(&self, gone: &RelPath) -> Self {
        let names = self.names.iter().filter(|name| *name != gone).cloned().collect();
        Self { names, ..self.clone() }
    }

    /// Returns the looks that it brings beside content, if its file looks like `meta`. Without a descriptor, as for a
    /// symlink, attributes are left out.
    pub fn own_looks(&self, file: Option<BorrowedFd<'_>>, meta: &Meta) -> std::io::Result<Looks> {
        self.looks.as_ref().map_or(Ok(Looks::default()), |looks| looks.own.values(file, meta))
    }
}

impl Store {
    /// Makes an empty file of upper content that is going to have `mode`.
    pub fn create_upper(&self, mode: u32) -> Result<UpperFile<'_>> {
        let new = self.new_upper()?;
        let file = self.dirs.create_stage_file(new.id, mode)?;
        Ok(UpperFile { new, file })
    }

    /// Makes a symlink of upper content.
    pub fn create_upper_symlink(&self, target: &OsStr) -> Result<NewUpper<'_>> {
        let new = self.new_upper()?;
        let place = self.dirs.stage_place(new.id);
        place.make_symlink(target).doing(|| format!("make upper symlink {}", new.id))?;
        self.unsynced.note_names();
        Ok(new)
    }

    /// Like [`Self::create_upper_symlink`], with the owner and times of `like`.
    pub fn copy_upper_symlink(&self, target: &OsStr, like: &Meta) -> Result<NewUpper<'_>> {
        let new = self.create_upper_symlink(target)?;
        let place = self.upper_place(new.id);
        let times = || place.set_times(file::to_timespec(like.atime), file::to_timespec(like.mtime));
        let dressed = place.give_owner(like.uid, like.gid).and_then(|()| times());
        dressed.doing(|| format!("dress upper symlink {}", new.id))?;
        Ok(new)
    }

    /// Makes a directory, FIFO, socket or device of upper content, private until it is given its mode.
    pub fn create_upper_node(&self, kind: FileKind, device: u64) -> Result<NewUpper<'_>> {
        let new = self.new_upper()?;
        let place = self.dirs.stage_place(new.id);
        let made = match kind == FileKind::Directory {
            true => place.make_dir(Mode::RWXU),
            false => place.make_node(kind, Mode::RUSR | Mode::WUSR, device),
        };
        made.doing(|| format!("make upper entry {}", new.id))?;
        self.unsynced.note_names();
        Ok(new)
    }

    fn new_upper(&self) -> Result<NewUpper<'_>> {
        self.begin_generation()?;
        let id = self.reserve_upper();
        self.in_passing.lock().insert(id);
        Ok(NewUpper { store: self, id, is_kept: false })
    }

    pub fn load_upper(&self) -> Result<Vec<UpperRow>> {
        self.each_row("SELECT row FROM upper ORDER BY id", [])?.collect()
    }

    pub fn save_upper(&self, row: &UpperRow) -> Result<()> {
        self.database.lock().write(|tx| put(tx, row))
    }

    /// Saves a changed row, but does nothing if the entry is gone.
    pub fn update_upper(&self, row: &UpperRow) -> Result<()> {
        self.database.lock().write(|tx| update(tx, row))
    }

    /// Puts one entry in the place of another.
    pub fn replace_upper(&self, old: UpperId, row: &UpperRow) -> Result<()> {
        self.database.lock().write(|tx| {
            delete(tx, old)?;
            put(tx, row)
        })
    }

    pub fn remove_upper(&self, id: UpperId) -> Result<()> {
        self.database.lock().write(|tx| delete(tx, id))
    }
}

pub(in crate::store) fn put(tx: &Transaction<'_>, row: &UpperRow) -> Result<()> {
    let mut statement = tx.prepare_cached("INSERT OR REPLACE INTO upper (id, row) VALUES (?1, ?2)")?;
    statement.execute((row.id.number(), to_row(row)?))?;
    ids::put(tx, row)
}

/// Like [`put`], but does nothing if the entry is gone.
pub(in crate::store) fn update(tx: &Transaction<'_>, row: &UpperRow) -> Result<()> {
    let mut statement = tx.prepare_cached("UPDATE upper SET row = ?2 WHERE id = ?1")?;
    match statement.execute((row.id.number(), to_row(row)?))? {
        0 => Ok(()),
        _ => ids::put(tx, row),
    }
}

pub(in crate::store) fn delete(tx: &Transaction<'_>, id: UpperId) -> Result<()> {
    tx.prepare_cached("DELETE FROM upper WHERE id = ?1")?.execute([id.number()])?;
    Ok(())
}
