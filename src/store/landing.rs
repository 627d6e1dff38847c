//! Landing: the one way in which lower changes. For one path or for many, all or nothing.
//!
//! ```text
//!   Landing ──── promise ────► Promised ──── apply ────► Applied ──── finish ────► names of the backups
//!   new entries stand under    the intent is            every path is new;       the database says so,
//!   temporary names, old       committed: a crash       what was there waits     what waited is removed
//!   content is safe            from here on finishes    under the temporary
//!                              or undoes the whole      names
//! ```
//! Dropped before `finish`, each state undoes itself: lower is as it was. `apply` is renames, so that a caller may hold a
//! lock around it; the states before and after it copy, hash and sync. The exception is an inode with several names,
//! whose content `apply` writes in place.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::backups::{self, Backup};
use super::content::StagedContent;
use super::events::{self, EventDraft};
use super::journal::{self, Act, Epilogue, Intent, Landed, Looks, Step, Temp};
use super::operations::{DirLooks, NodeLooks};
use super::recovery::SweepNote;
use super::{Context, Error, Result, Store, TEMP_PREFIX};
use crate::model::{BackupKind, Digest, OperationId, RelPath, Stamp, Timestamp};
use crate::protocol::EventName;
use crate::sys::cache;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::{self, Dirs, Place, Tree, is_absent};
use crate::sys::{Mode, OFlags, RenameFlags};

/// Whether what was done survives a power cut when the landing returns, or only a killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Cached,
    Synced,
}

impl Durability {
    /// Has new content written out as far as its landing promises. Where it replaces other content, the writing begins
    /// at once even if nothing is promised: an exchange of names is not what file systems take for a replacement, so
    /// that they would let a power cut leave zeros where content was that had been safe for long.
    fn secure(self, temp: &File, replaces: bool) -> std::io::Result<()> {
        match self {
            Self::Synced => temp.sync_all(),
            Self::Cached if replaces => cache::start_writeback(temp.as_fd()),
            Self::Cached => Ok(()),
        }
    }
}

/// Of a larger file the record is waited for, so that its upper file goes before its writer goes on: on a full disk that
/// room is what the next write needs.
const RECORDED_LATER_BYTES_MAX: u64 = 64 << 10;

/// What comes to stand at a path.
pub enum NewContent<'a> {
    /// A copy of this file's bytes, with the owner, mode, attributes and times of `like`.
    File { file: &'a File, like: &'a File, meta: Meta },
    /// The same of these bytes.
    Bytes { bytes: &'a [u8], like: &'a File, meta: Meta },
    /// `times`: of last access and modification; none: now.
    Symlink { target: &'a OsStr, uid: u32, gid: u32, times: Option<(Timestamp, Timestamp)> },
    /// An empty directory with the owner, mode, attributes and times of `like`. Later steps may place what is in it.
    Dir { like: &'a File, meta: Meta },
    /// A FIFO, socket or device.
    Node { looks: NodeLooks },
}

/// A path after its step: what lower has there now.
#[derive(Clone, Debug)]
pub struct StepOutcome {
    pub path: RelPath,
    pub meta: Option<Meta>,
}

/// Steps being prepared. Nothing of lower has changed but for temporary names. A new file that nobody syncs has none: it
/// cannot be left over, and to name it costs half of a rename.
pub struct Landing<'a> {
    work: Work<'a>,
    is_vital: bool,
    backups: Vec<Backup>,
    contents: Vec<StagedContent>,
    /// How many of the directories made were asked for.
    made_told: usize,
}

/// A directory made for a landing, and noted, so that recovery finds it.
struct Made {
    path: RelPath,
    place: Place,
}

/// The intent is written.
#[must_use]
pub struct Promised<'a> {
    work: Work<'a>,
    intent: Intent,
    id: i64,
}

/// Lower is new.
#[must_use]
pub struct Applied<'a> {
    work: Work<'a>,
    intent: Intent,
    id: i64,
    pub outcomes: Vec<StepOutcome>,
}

/// The steps with the directories they act in. Undone on drop.
struct Work<'a> {
    store: &'a Store,
    durability: Durability,
    staged: Vec<Staged>,
    dirs: Dirs,
    /// How many of `staged`, from the first, have been applied; of the next one nobody knows after an error.
    applied: usize,
    intent: Option<i64>,
    /// Directories made for this landing, parents first. They go again if it does not come to pass.
    made: Vec<Made>,
    /// Directories that go when it has, as its intent says.
    emptied: Vec<(RelPath, Place)>,
    /// What must be durable once it is applied: directories, and inodes that are rewritten. Opened before the promise, so
    /// that after it only a failing disk is in the way.
    to_sync: Vec<(File, String)>,
}

/// One step, with its directory held open: renames of ancestors do not matter to it.
pub(super) struct Staged {
    pub step: Step,
    place: Place,
    /// Where a [`Act::Place`], [`Act::Remove`] or [`Act::Supplant`] has its temporary name, and [`Act::Take`] the name that
    /// its file comes from.
    waiting: Option<Place>,
    /// What a [`Act::Place`] has made without a name, which it gets when it is applied; none at recovery.
    nameless: Option<File>,
    /// The second path of a step that names two.
    other: Option<Place>,
    /// What a [`Act::Rewrite`] copies its content and attributes from; none at recovery, which has the intent alone.
    new: Option<File>,
    /// What a [`Act::Place`] or [`Act::Supplant`] has made, as nobody has touched it; none at recovery. Of a [`Act::Take`] the
    /// journal tells it.
    placed: Option<Stamp>,
}

pub(super) fn random_suffix() -> String {
    let mut bytes = [0u8; 8];
    // Cannot fail for so few bytes once the pool is up, and a name that is taken is refused by O_EXCL anyway.
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    debug_assert_eq!(filled, bytes.len());
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

pub(super) fn new_temp() -> Temp {
    Temp(OsString::from(format!("{TEMP_PREFIX}{}", random_suffix())))
}

impl<'a> Landing<'a> {
    pub fn new(store: &'a Store, durability: Durability) -> Self {
        let staged = Vec::new();
        let (made, emptied, to_sync) = (Vec::new(), Vec::new(), Vec::new());
        let dirs = Dirs::default();
        let work = Work { store, durability, staged, dirs, applied: 0, intent: None, made, emptied, to_sync };
        Self { work, is_vital: false, backups: Vec::new(), contents: Vec::new(), made_told: 0 }
    }

    /// A full disk must not stop it: it may use the room that is kept for that.
    pub fn vital(self) -> Self {
        Self { is_vital: true, ..self }
    }

    /// Prepares a new entry for `path`, where `expect` must still stand when it is applied.
    pub fn place(&mut self, tree: &Tree, path: &RelPath, expect: Option<Stamp>, new: &NewContent<'_>) -> Result<Meta> {
        let looks = match new {
            NewContent::Dir { meta, .. } => Some(Looks::of_meta(meta)),
            NewContent::File { .. } | NewContent::Bytes { .. } => None,
            NewContent::Symlink { .. } | NewContent::Node { .. } => None,
        };
        self.stage_new((tree, path), expect, new, |temp, made| {
            let nameless = made.nameless.as_ref().map(|_| made.meta.stamp());
            Act::Place { temp, inode: made.meta.inode, looks, nameless }
        })
    }

    /// The same where a directory is, which goes. What is in it must go by steps after this one, or by [`Self::remove_dir`]:
    /// whatever else is there makes it a conflict. All in one, so that a path that was a directory is never free.
    pub fn supplant(&mut self, tree: &Tree, path: &RelPath, expect: Stamp, new: &NewContent<'_>) -> Result<Meta> {
        self.stage_new((tree, path), Some(expect), new, |temp, made| Act::Supplant { temp, inode: made.meta.inode })
    }

    fn stage_new(
        &mut self,
        (tree, path): (&Tree, &RelPath),
        expect: Option<Stamp>,
        new: &NewContent<'_>,
        act: impl FnOnce(Temp, &MadeEntry) -> Act,
    ) -> Result<Meta> {
        let place = place_among(&self.work.staged, &mut self.work.dirs, tree, path)?;
        self.work.store.note_boot()?;
        self.work.store.announce(&path.parent().unwrap_or_default())?;
        let temp = new_temp();
        let waiting = place.sibling(&temp.0);
        let secure = |temp: &File| self.work.durability.secure(temp, expect.is_some());
        // Of what is synced there may be ten thousand at once: each would be an open descriptor.
        let needs_name = expect.is_some() || self.work.durability == Durability::Synced;
        let made = match make_entry(&waiting, new, needs_name, secure) {
            Ok(made) => made,
            Err(cause) => {
                discard_temp(&waiting)?;
                return Err(cause).doing(|| format!("write {path}"));
            }
        };
        self.work.push(Step { path: path.clone(), expect, act: act(temp, &made) }, place);
        let MadeEntry { meta, nameless } = made;
        let staged = self.work.last();
        (staged.waiting, staged.placed, staged.nameless) = (Some(waiting), Some(meta.stamp()), nameless);
        Ok(meta)
    }

    /// A file of lower takes the place of another, which goes. Its `content` is not copied: it is there.
    pub fn take(
        &mut self,
        tree: &Tree,
        (path, expect): (&RelPath, Stamp),
        (from, new): (&RelPath, Stamp),
        content: &File,
    ) -> Result<()> {
        self.work.durability.secure(content, true).doing(|| format!("write {path}"))?;
        self.two_paths(tree, path, Some(expect), Act::Take { from: from.clone(), new })
    }

    /// The entry goes. A directory must be empty by then, but for what goes by steps after this one.
    pub fn remove(&mut self, tree: &Tree, path: &RelPath, expect: Stamp) -> Result<()> {
        let place = place_below(&mut self.work.dirs, tree, path)?;
        self.work.store.note_boot()?;
        let temp = new_temp();
        let waiting = place.sibling(&temp.0);
        self.work.push(Step { path: path.clone(), expect: Some(expect), act: Act::Remove { temp } }, place);
        self.work.last().waiting = Some(waiting);
        Ok(())
    }

    /// Renames within lower, to where nothing is.
    pub fn rename(&mut self, tree: &Tree, from: &RelPath, to: &RelPath, expect: Stamp) -> Result<()> {
        self.two_paths(tree, from, Some(expect), Act::Move { to: to.clone() })
    }

    /// Renames within lower what somebody may be writing to, to where nothing is, or something without content: for a
    /// directory an empty one of mode `onto`. What goes from a directory is removed before that is renamed.
    pub fn relocate(
        &mut self,
        tree: &Tree,
        from: &RelPath,
        to: &RelPath,
        expect: Stamp,
        onto: Option<u32>,
    ) -> Result<()> {
        self.two_paths(tree, from, Some(expect), Act::Relocate { to: to.clone(), onto })
    }

    /// Two entries of lower change places.
    pub fn exchange(&mut self, tree: &Tree, one: (&RelPath, Stamp), other: (&RelPath, Stamp)) -> Result<()> {
        let act = Act::Exchange { to: other.0.clone(), with: other.1 };
        self.two_paths(tree, one.0, Some(one.1), act)
    }

    /// Gives what an earlier step puts at `of` one more name, which is free.
    pub fn link(&mut self, tree: &Tree, path: &RelPath, of: &RelPath) -> Result<()> {
        self.two_paths(tree, path, None, Act::Link { of: of.clone() })
    }

    fn two_paths(&mut self, tree: &Tree, path: &RelPath, expect: Option<Stamp>, act: Act) -> Result<()> {
        let step = Step { path: path.clone(), expect, act };
        let staged = Staged::reopen(tree, step, &self.work.staged, &mut self.work.dirs)?;
        self.work.staged.push(staged);
        Ok(())
    }

    /// Makes the directories above `path` that are gone. They are noted first, so that none stays for nothing.
    pub fn make_parents(&mut self, tree: &Tree, path: &RelPath) -> Result<()> {
        let mut missing = Vec::new();
        let mut dir = path.parent().unwrap_or_default();
        while !self.places(&dir)? && !tree.exists(&dir).doing(|| format!("stat {dir}"))? {
            let above = dir.parent().unwrap_or_default();
            missing.push(std::mem::replace(&mut dir, above));
        }
        missing.iter().rev().try_for_each(|dir| self.make_noted(tree, dir).map(|_| ()))
    }

    /// Makes a directory that is gone, in one that is there.
    pub fn make_dir(&mut self, tree: &Tree, path: &RelPath, looks: DirLooks) -> Result<()> {
        let place = self.make_noted(tree, path)?;
        let DirLooks { mode, uid, gid } = looks;
        let dressed = place.set_owner(Some(uid), Some(gid)).and_then(|()| place.set_mode(mode));
        dressed.doing(|| format!("give {path} its owner"))
    }

    fn make_noted(&mut self, tree: &Tree, dir: &RelPath) -> Result<&Place> {
        let doing = || format!("make {dir}");
        let place = place_below(&mut self.work.dirs, tree, dir)?;
        self.work.store.database.lock().write(|tx| super::recovery::doom_dir(tx, dir))?;
        // Noted and not made is harmless: what is not there cannot be removed.
        let made = place.make_dir(Mode::from_raw_mode(0o755)).doing(doing);
        self.work.made.push(Made { path: dir.clone(), place });
        made?;
        Ok(&self.work.made.last().expect("just pushed").place)
    }

    /// Directories that were made since this was asked last, parents first.
    pub fn newly_made(&mut self) -> Vec<RelPath> {
        let told = std::mem::replace(&mut self.made_told, self.work.made.len());
        self.work.made[told..].iter().map(|made| made.path.clone()).collect()
    }

    /// Whether a step puts a directory at `path`.
    fn places(&self, path: &RelPath) -> Result<bool> {
        Ok(own_dir(&self.work.staged, path)?.is_some())
    }

    /// The directory goes when the landing is done, unless somebody else has put something into it.
    pub fn remove_dir(&mut self, tree: &Tree, path: &RelPath) -> Result<()> {
        match place_below(&mut self.work.dirs, tree, path) {
            Err(Error::Io { cause, .. }) if is_absent(&cause) => Ok(()),
            place => {
                self.work.emptied.push((path.clone(), place?));
                Ok(())
            }
        }
    }

    /// Gives an inode with several names new content, so that all of them show it. Both contents are kept first.
    pub fn rewrite(&mut self, tree: &Tree, path: &RelPath, expect: Stamp, new: &File, old: &File) -> Result<()> {
        let place = place_below(&mut self.work.dirs, tree, path)?;
        let doing = || format!("stat {path}");
        let looks = Some((Looks::of(old).doing(doing)?, Looks::of(new).doing(doing)?));
        let (old, kept) = (self.work.store.stage_content(old)?, self.work.store.stage_content(new)?);
        let act = Act::Rewrite { old: old.digest, new: kept.digest, looks };
        self.contents.extend([old, kept]);
        self.work.push(Step { path: path.clone(), expect: Some(expect), act }, place);
        self.work.last().new = Some(new.try_clone().doing(|| "duplicate a descriptor".to_owned())?);
        Ok(())
    }

    /// What is going to stand at a path, as far as it stands somewhere already.
    pub fn meta_of(&self, path: &RelPath) -> Result<Option<Meta>> {
        let Some(staged) = self.work.staged.iter().rfind(|staged| staged.step.path == *path) else { return Ok(None) };
        let meta = match (&staged.nameless, &staged.waiting) {
            (Some(file), _) => meta_when_named(file).map(Some),
            (None, waiting) => waiting.as_ref().unwrap_or(&staged.place).stat(),
        };
        meta.doing(|| staged.doing("examine"))
    }

    /// What is going to stand at a path, for reading, where this landing made it.
    pub fn open_new(&self, path: &RelPath) -> Result<Option<File>> {
        let Some(staged) = self.work.staged.iter().rfind(|staged| staged.step.path == *path) else { return Ok(None) };
        let opened = match (&staged.nameless, &staged.waiting) {
            (Some(file), _) => file::reopen(file.as_fd(), OFlags::RDONLY),
            (None, Some(waiting)) => waiting.open(OFlags::RDONLY).map(File::from),
            (None, None) => return Ok(None),
        };
        opened.map(Some).doing(|| staged.doing("open"))
    }

    /// Keeps content that this landing replaces, under a name of its own.
    pub fn keep(&mut self, content: StagedContent, backup: Backup) {
        self.work.store.note_use(content.digest);
        self.contents.push(content);
        self.backups.push(backup);
    }

    /// The commit point. After it a crash leaves all old or all new.
    pub fn promise(self, epilogue: Epilogue) -> Result<Promised<'a>> {
        let Self { mut work, is_vital, backups, contents, .. } = self;
        if let Some(why) = work.store.halted() {
            return Err(Error::Halted(why));
        }
        // Deepest first.
        work.emptied.sort_by(|(a, _), (b, _)| b.cmp(a));
        let emptied = work.emptied.iter().map(|(path, _)| path.clone()).collect();
        let steps = work.staged.iter().map(|staged| staged.step.clone()).collect();
        let made = work.made.iter().map(|made| made.path.clone()).collect();
        let intent = Intent { steps, backups, epilogue, emptied, made };
        work.sync_before_promise(&contents)?;
        let store = work.store;
        let (backups, bytes) = (intent.backups.len(), contents.iter().map(|content| content.size).sum());
        store.purging.note_kept(backups as u64, bytes);
        store.purging.note_recorded(intent.epilogue.events.len() as u64);
        let write = |tx: &rusqlite::Transaction<'_>| {
            contents.iter().try_for_each(|content| content.commit(tx))?;
            journal::promise(tx, &intent)
        };
        let commit = || store.database.lock().write(write);
        let id = if is_vital { store.vitally(commit) } else { commit() }?;
        work.intent = Some(id);
        if work.durability == Durability::Synced {
            // Not by the commit itself: others would wait for the disk with it.
            store.sync()?;
        }
        Ok(Promised { work, intent, id })
    }
}

impl<'a> Promised<'a> {
    /// Makes every path new. When one is not as expected, all are old again.
    /// [`Error::Unrecorded`] when that could not be done either: then nothing is written any more.
    pub fn apply(self) -> Result<Applied<'a>> {
        let Self { mut work, intent, id } = self;
        match work.apply() {
            Ok(outcomes) => Ok(Applied { work, intent, id, outcomes }),
            Err(err) => match work.undo() {
                Err(_) if work.store.is_halted() => Err(Error::Unrecorded(Box::new(err))),
                Err(undo) => {
                    log::error!("undo a landing: {undo}");
                    Err(err)
                }
                Ok(()) => Err(err),
            },
        }
    }
}

impl Applied<'_> {
    /// What lower has at a path of the landing now.
    pub fn meta_of(&self, path: &RelPath) -> Option<Meta> {
        self.outcomes.iter().rfind(|outcome| outcome.path == *path)?.meta
    }

    /// Changes what will be recorded, by what only the applying could tell.
    pub fn epilogue(&mut self) -> &mut Epilogue {
        &mut self.intent.epilogue
    }

    /// The same as [`Self::finish`] for a file of everyday size, of which nothing waits: the record need not be waited for.
    /// Gives the operation that it is or will be, and not the names that backups get.
    pub fn finish_soon(mut self) -> Result<Option<OperationId>> {
        let store = self.work.store;
        let is_swept = self.is_swept_early();
        if !is_swept || !self.is_light() {
            return Ok(self.finish_swept(is_swept)?.operation);
        }
        self.work.stands();
        Ok(store.record_soon(self.id, std::mem::take(&mut self.intent)))
    }

    /// Whether what waits to be recorded takes hardly any room meanwhile.
    fn is_light(&self) -> bool {
        let is_small = |one: &StepOutcome| one.meta.is_none_or(|meta| meta.size <= RECORDED_LATER_BYTES_MAX);
        self.work.made.is_empty() && self.work.emptied.is_empty() && self.outcomes.iter().all(is_small)
    }

    fn is_swept_early(&self) -> bool {
        self.work.durability == Durability::Cached && is_swept_early(&self.work.staged, self.work.store)
    }

    /// Records what was done and removes what waited.
    /// [`Error::Unrecorded`] when lower stays new and the database does not know: then nothing is written any more.
    pub fn finish(self) -> Result<Landed> {
        let is_swept = self.is_swept_early();
        self.finish_swept(is_swept)
    }

    fn finish_swept(mut self, is_swept: bool) -> Result<Landed> {
        // Before the intent goes: a crash after that no longer repeats what was done.
        let free_names = || if is_swept { Ok(()) } else { self.work.free_names() };
        let synced = self.work.dress_dirs().and_then(|()| self.work.sync()).and_then(|()| free_names());
        let (id, intent) = (self.id, &self.intent);
        let (staged, emptied) = self.work.stands();
        let store = self.work.store;
        let waiting = if is_swept { Vec::new() } else { sweep_notes(&staged) };
        let record = |tx: &rusqlite::Transaction<'_>| {
            let landed = journal::fulfil(tx, id, intent)?;
            Ok((landed, super::recovery::note_sweep(tx, &waiting)?))
        };
        let recorded = synced.and_then(|()| store.vitally(|| store.database.lock().write_notes(record)));
        let (landed, sweep) = recorded.map_err(|err| store.halt.unrecorded(err))?;
        // A crash from here on leaves only temporary names and emptied directories, which the notes tell. What waits in a
        // directory goes before that directory.
        let waiting = staged.iter().rev().filter(|_| !is_swept);
        let removed = first_error(waiting.map(|staged| staged.remove_waiting(store)));
        let gone = emptied.iter().map(|(path, place)| remove_if_empty(place).doing(|| format!("remove {path}")));
        let gone = first_error(gone).and_then(|()| match removed.is_ok() {
            true => store.dirs_gone(&intent.emptied),
            // One in which something of ours still waits has not gone: its note stays, too.
            false => Ok(()),
        });
        match removed.and(gone) {
            Ok(()) => store.swept(sweep),
            // It is done all the same, and the notes stay: the next start removes what is left.
            Err(err) => log::error!("clear up after a landing: {err}"),
        }
        Ok(landed)
    }
}

impl Work<'_> {
    /// Nothing is undone from here on: lower is new, and so is what the caller knows of it. Should the disk fail, the intent
    /// makes recovery finish. Gives the steps, and the directories that are to go.
    fn stands(&mut self) -> (Vec<Staged>, Vec<(RelPath, Place)>) {
        self.made.clear();
        self.applied = 0;
        self.intent = None;
        (std::mem::take(&mut self.staged), std::mem::take(&mut self.emptied))
    }

    fn push(&mut self, step: Step, place: Place) {
        self.staged.push(Staged { step, place, waiting: None, nameless: None, other: None, new: None, placed: None });
    }

    fn last(&mut self) -> &mut Staged {
        self.staged.last_mut().expect("called right after push")
    }

    fn sync_before_promise(&mut self, contents: &[StagedContent]) -> Result<()> {
        if self.durability == Durability::Cached {
            return Ok(());
        }
        contents.iter().try_for_each(|content| self.store.sync_content(content))?;
        self.open_dirs()?;
        self.sync()?;
        self.open_rewritten()
    }

    /// Directories look as they shall once all is in them, and those in them before them.
    fn dress_dirs(&self) -> Result<()> {
        let placed = self.staged.iter().rev().filter(|staged| matches!(staged.step.act, Act::Place { .. }));
        placed.into_iter().try_for_each(Staged::dress)
    }

    /// What waits under the name of a program's file goes before the intent does: no note tells of it.
    fn free_names(&self) -> Result<()> {
        let taken = self.staged.iter().filter(|staged| matches!(staged.step.act, Act::Take { .. }));
        first_error(taken.map(|staged| staged.remove_waiting(self.store)))
    }

    fn sync(&self) -> Result<()> {
        self.to_sync.iter().try_for_each(|(file, what)| file.sync_all().doing(|| format!("sync {what}")))
    }

    fn open_rewritten(&mut self) -> Result<()> {
        for staged in self.staged.iter().filter(|staged| matches!(staged.step.act, Act::Rewrite { .. })) {
            let what = staged.step.path.to_string();
            let file = staged.place.open(OFlags::RDONLY).doing(|| format!("open {what}"))?;
            self.to_sync.push((File::from(file), what));
        }
        Ok(())
    }

    fn open_dirs(&mut self) -> Result<()> {
        let mut opened = std::collections::HashSet::new();
        let staged = self.staged.iter().map(|staged| (&staged.step.path, &staged.place));
        let other = self.staged.iter().filter_map(|staged| Some((&staged.step.path, staged.other.as_ref()?)));
        let made = self.made.iter().map(|made| (&made.path, &made.place));
        for (path, place) in staged.chain(other).chain(made) {
            let what = format!("the directory of {path}");
            let meta = Meta::of(place.dir.as_fd()).doing(|| format!("stat {what}"))?;
            if opened.insert((meta.device, meta.inode)) {
                let dir = place.open_dir().doing(|| format!("open {what}"))?;
                self.to_sync.push((File::from(dir), what));
            }
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<Vec<StepOutcome>> {
        let mut outcomes = Vec::with_capacity(self.staged.len());
        for (index, staged) in self.staged.iter().enumerate() {
            staged.apply(self.store)?;
            outcomes.push(staged.outcome()?);
            self.applied = index + 1;
        }
        self.check_emptied()?;
        Ok(outcomes)
    }

    /// What was not there when it was planned is somebody's, who does not want the directory to go.
    fn check_emptied(&self) -> Result<()> {
        let goes = |staged: &&Staged| matches!(staged.step.act, Act::Supplant { .. } | Act::Remove { .. });
        for staged in self.staged.iter().filter(goes) {
            let Some(dir) = staged.own_dir(&staged.step.path)? else { continue };
            let at = |path: &RelPath| path.rebase(&RelPath::root(), &staged.step.path);
            let goes = |path: &RelPath| self.emptied.iter().any(|(emptied, _)| at(path).as_ref() == Some(emptied));
            let found = Tree::from_root(dir).and_then(|dir| foreign_in(&dir, &RelPath::root(), &goes));
            if let Some(path) = found.doing(|| staged.doing("look into"))? {
                let path = at(&path).unwrap_or_default();
                return Err(Error::Conflict { path: path.to_string() });
            }
        }
        Ok(())
    }

    /// Everything that can be undone is, whatever else cannot.
    fn undo(&mut self) -> Result<()> {
        let store = self.store;
        if let Err(err) = store.vitally(|| self.undo_steps()) {
            // Half new, and the intent stays: the next start finishes or undoes it.
            self.store.halt.halt(&format!("the project is half changed and that could not be undone: {err}"));
            (self.intent, self.applied) = (None, 0);
            self.staged.clear();
            self.made.clear();
            return Err(err);
        }
        let retracted = self.retract();
        let staged = std::mem::take(&mut self.staged);
        // What waits in a directory goes before that directory.
        let removed = first_error(staged.iter().rev().map(|staged| staged.remove_waiting(self.store)));
        let made = std::mem::take(&mut self.made);
        let remove = |made: &Made| remove_if_empty(&made.place).doing(|| format!("remove {}", made.path));
        let gone = first_error(made.iter().rev().map(remove))
            .and_then(|()| self.store.dirs_gone(&made.into_iter().map(|made| made.path).collect::<Vec<_>>()));
        retracted.and(removed).and(gone)
    }

    fn undo_steps(&mut self) -> Result<()> {
        if self.intent.is_none() {
            // Nothing was promised, so nothing was applied.
            return Ok(());
        }
        if let Some(next) = self.staged.get(self.applied)
            && matches!(next.progress()?, Progress::Done | Progress::Torn)
        {
            next.undo(self.store)?;
        }
        while self.applied > 0 {
            self.staged[self.applied - 1].undo(self.store)?;
            self.applied -= 1;
        }
        Ok(())
    }

    fn retract(&mut self) -> Result<()> {
        let Some(id) = self.intent.take() else { return Ok(()) };
        let retracted = self.store.vitally(|| self.store.database.lock().write(|tx| journal::retract(tx, id)));
        if retracted.is_err() {
            self.store.database.lock().undone.push(id);
        }
        retracted
    }
}

/// Half done is undone; what cannot be undone now is told, and the intent stays for recovery.
impl Drop for Work<'_> {
    fn drop(&mut self) {
        if let Err(err) = self.undo() {
            log::error!("undo a landing: {err}");
        }
    }
}

/// All of them are tried.
fn first_error(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    let mut first = Ok(());
    for result in results {
        first = first.and(result);
    }
    first
}

impl Staged {
    /// A step as a journal tells it, with its directory opened anew: one of lower, or one that a step of `among` puts
    /// there, takes from there or renames.
    pub fn reopen(tree: &Tree, step: Step, among: &[Staged], dirs: &mut Dirs) -> Result<Self> {
        let place = place_among(among, dirs, tree, &step.path)?;
        let other = step.other().map(|other| place_among(among, dirs, tree, other)).transpose()?;
        let waiting = match &step.act {
            Act::Place { temp, .. } | Act::Supplant { temp, .. } | Act::Remove { temp } => Some(place.sibling(&temp.0)),
            Act::Take { .. } => other.clone(),
            Act::Rewrite { .. } | Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } | Act::Link { .. } => {
                None
            }
        };
        let placed = match &step.act {
            Act::Take { new, .. } => Some(*new),
            Act::Place { nameless, .. } => *nameless,
            _ => None,
        };
        Ok(Self { step, place, waiting, nameless: None, other, new: None, placed })
    }

    pub fn apply(&self, store: &Store) -> Result<()> {
        match &self.step.act {
            Act::Place { .. } | Act::Supplant { .. } => self.swap_in(store),
            Act::Take { new, .. } => {
                // Nobody else has another copy of it, so it changes places only where that is going to last.
                if !is_same_entry(self.waiting(), new).doing(|| self.doing("check"))? {
                    return Err(self.conflict());
                }
                self.check_expected()?;
                self.swap_in(store)
            }
            Act::Remove { .. } => self.move_out(self.waiting()),
            Act::Rewrite { new, looks, .. } => {
                self.check_expected()?;
                self.write_in_place(store, *new, looks.map(|(_, new)| new))
            }
            Act::Move { .. } => {
                self.check_expected()?;
                self.place.rename(self.other(), RenameFlags::NOREPLACE).doing(|| self.doing("rename"))
            }
            Act::Relocate { onto, .. } => {
                self.check_inodes()?;
                // Over a directory the kernel makes sure that it is empty.
                let flags = if onto.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
                self.place.rename(self.other(), flags).doing(|| self.doing("rename"))
            }
            Act::Exchange { .. } => {
                self.check_inodes()?;
                self.place.rename(self.other(), RenameFlags::EXCHANGE).doing(|| self.doing("exchange"))
            }
            Act::Link { .. } => match self.other().link(&self.place) {
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Err(self.conflict()),
                other => other.doing(|| self.doing("link")),
            },
        }
    }

    pub fn undo(&self, store: &Store) -> Result<()> {
        let doing = || self.doing("undo");
        match &self.step.act {
            Act::Place { .. } | Act::Supplant { .. } | Act::Take { .. } if self.step.expect.is_some() => {
                match self.swap_back(self.waiting())? {
                    Back::AsItWas => Ok(()),
                    // The old content is nowhere else, and no intent tells of it any more.
                    Back::Foreign => self.keep_waiting(store, self.waiting()),
                }
            }
            Act::Place { .. } | Act::Supplant { .. } | Act::Take { .. } => self.take_back(self.waiting()),
            Act::Remove { .. } => match self.waiting().rename(&self.place, RenameFlags::NOREPLACE) {
                // Somebody has made something in its place.
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => self.keep_waiting(store, self.waiting()),
                other => other.doing(doing),
            },
            Act::Rewrite { old, looks, .. } => self.write_in_place(store, *old, looks.map(|(old, _)| old)),
            Act::Move { .. } => self.other().rename(&self.place, RenameFlags::NOREPLACE).doing(doing),
            Act::Relocate { onto, .. } => {
                self.other().rename(&self.place, RenameFlags::NOREPLACE).doing(doing)?;
                let is_dir = self.place.stat().doing(doing)?.is_some_and(|meta| meta.is_dir());
                let onto = onto.filter(|_| is_dir);
                onto.map_or(Ok(()), |mode| self.other().make_dir(Mode::from_raw_mode(mode))).doing(doing)
            }
            Act::Exchange { .. } => self.place.rename(self.other(), RenameFlags::EXCHANGE).doing(doing),
            Act::Link { .. } => self.place.unlink().doing(doing),
        }
    }

    /// Puts the waiting entry in place, and makes sure that what came out is what was expected to be there.
    fn swap_in(&self, store: &Store) -> Result<()> {
        let waiting = self.waiting();
        let doing = || self.doing("replace");
        let Some(expect) = self.step.expect else {
            let named = match &self.nameless {
                Some(file) => self.place.name_file(file),
                None => waiting.rename(&self.place, RenameFlags::NOREPLACE),
            };
            return match named {
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Err(self.conflict()),
                other => other.doing(doing),
            };
        };
        match waiting.rename(&self.place, RenameFlags::EXCHANGE) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Err(self.conflict()),
            other => other.doing(doing)?,
        }
        let is_expected = match self.step.act {
            // What is in it is looked at once all that is to go has gone.
            Act::Supplant { .. } => self.is_expected_inode(&waiting.stat().doing(doing)?),
            _ => is_same_entry(waiting, &expect).doing(doing)?,
        };
        if is_expected {
            return Ok(());
        }
        // Somebody put something else there between the check and the rename: it goes back, untouched.
        let back = self.swap_back(waiting)?;
        if matches!((back, &self.step.act), (Back::Foreign, Act::Take { .. })) {
            // Where the program has its file is no temporary name of ours, which would be looked after.
            self.keep_waiting(store, waiting)?;
            discard_temp(waiting)?;
        }
        Err(self.conflict())
    }

    /// Undoes an exchange. Where something other than our own entry comes out by that, it came there a moment ago: it
    /// stays in its place, as the newest, and what it came instead of goes on waiting.
    fn swap_back(&self, waiting: &Place) -> Result<Back> {
        let doing = || self.doing("put back");
        match waiting.rename(&self.place, RenameFlags::EXCHANGE) {
            // Somebody removed ours, and meant what was there.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Back::Foreign),
            other => other.doing(doing)?,
        }
        if self.is_ours(waiting).doing(doing)? {
            return Ok(Back::AsItWas);
        }
        match waiting.rename(&self.place, RenameFlags::EXCHANGE) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            other => other.doing(doing)?,
        }
        Ok(Back::Foreign)
    }

    /// Undoes a placing where nothing was. What somebody has put there since stays.
    fn take_back(&self, waiting: &Place) -> Result<()> {
        let doing = || self.doing("take back");
        match self.place.rename(waiting, RenameFlags::NOREPLACE) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.doing(doing)?,
        }
        if self.is_ours(waiting).doing(doing)? {
            return Ok(());
        }
        match waiting.rename(&self.place, RenameFlags::NOREPLACE) {
            // Once more: the newest has the place, and what waits is kept when its name goes.
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other.doing(doing),
        }
    }

    /// Whether what waits is what this step made, as it made it.
    fn is_ours(&self, waiting: &Place) -> std::io::Result<bool> {
        Ok(waiting.stat()?.is_some_and(|meta| self.is_made_here(&meta)))
    }

    fn is_made_here(&self, meta: &Meta) -> bool {
        match (&self.placed, &self.step.act) {
            (Some(placed), _) if !meta.is_dir() => same_entry(meta, placed),
            // A directory changes by what later steps put into it, and of the rest the journal tells the number alone.
            (_, Act::Place { inode, .. } | Act::Supplant { inode, .. }) => meta.inode == *inode,
            (_, _) => false,
        }
    }

    fn move_out(&self, waiting: &Place) -> Result<()> {
        let doing = || self.doing("remove");
        match self.place.rename(waiting, RenameFlags::NOREPLACE) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Err(self.conflict()),
            other => other.doing(doing)?,
        }
        match self.step.expect {
            Some(expect) if !is_same_entry(waiting, &expect).doing(doing)? => {
                match waiting.rename(&self.place, RenameFlags::NOREPLACE) {
                    // Something newer still has come: it stays, and what waits is kept when its name goes.
                    Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
                    other => other.doing(doing)?,
                }
                Err(self.conflict())
            }
            _ => Ok(()),
        }
    }

    fn check_expected(&self) -> Result<()> {
        let same = match self.step.expect {
            Some(expect) => is_same_entry(&self.place, &expect).doing(|| self.doing("check"))?,
            None => self.place.stat().doing(|| self.doing("check"))?.is_none(),
        };
        if same { Ok(()) } else { Err(self.conflict()) }
    }

    /// What is renamed may be written to meanwhile; it only must be the same thing.
    fn check_inodes(&self) -> Result<()> {
        let here = self.place.stat().doing(|| self.doing("check"))?;
        let other_is_it = match &self.step.act {
            Act::Exchange { with, .. } => is_inode(&self.stat_other()?, with),
            _ => true,
        };
        if other_is_it && self.is_expected_inode(&here) { Ok(()) } else { Err(self.conflict()) }
    }

    fn write_in_place(&self, store: &Store, digest: Digest, looks: Option<Looks>) -> Result<()> {
        let doing = || self.doing("write");
        let kept = store.content_file(digest)?.ok_or(std::io::ErrorKind::NotFound).map_err(Into::into).doing(doing)?;
        let inode = File::from(self.place.open(OFlags::RDWR).doing(doing)?);
        file::overwrite(&kept, &inode).doing(doing)?;
        match &self.new {
            Some(new) if file::digest(new).doing(doing)? == digest => {
                let meta = Meta::of(new.as_fd()).doing(doing)?;
                file::copy_metadata(new.as_fd(), &meta, inode.as_fd()).doing(doing)
            }
            // What the content was written from is gone by now.
            _ => looks.map_or(Ok(()), |looks| looks.give(&inode)).doing(doing),
        }
    }

    /// What is there may not look as it should yet: that comes after content, and after all that is in a directory.
    pub fn dress(&self) -> Result<()> {
        let (looks, is_dir) = match &self.step.act {
            Act::Rewrite { looks: Some((_, new)), .. } => (new, false),
            Act::Place { looks: Some(new), .. } => (new, true),
            Act::Rewrite { looks: None, .. } | Act::Place { looks: None, .. } => return Ok(()),
            Act::Remove { .. } | Act::Supplant { .. } | Act::Take { .. } | Act::Link { .. } => return Ok(()),
            Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } => return Ok(()),
        };
        let doing = || self.doing("change attributes of");
        let inode = File::from(self.place.open(OFlags::RDONLY | OFlags::NONBLOCK).doing(doing)?);
        looks.give(&inode).doing(doing)?;
        // Only what is confirmed has directories of its own: it is to be durable.
        if is_dir { inode.sync_all().doing(doing) } else { Ok(()) }
    }

    /// The directory that this step puts at `path`, or takes from there, wherever it stands by now.
    fn own_dir(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        let is_from = self.step.path == *path;
        let inode = match (&self.step.act, self.step.expect) {
            (Act::Place { inode, .. }, _) if is_from => *inode,
            (Act::Exchange { to, with }, _) if to == path => with.inode,
            (Act::Supplant { .. } | Act::Remove { .. }, Some(expect)) if is_from => expect.inode,
            (Act::Relocate { .. } | Act::Exchange { .. }, Some(expect)) if is_from => expect.inode,
            (_, _) => return Ok(None),
        };
        let doing = || self.doing("open");
        for place in std::iter::once(&self.place).chain(&self.waiting).chain(&self.other) {
            let is_it = |meta: &Meta| meta.is_dir() && meta.inode == inode;
            if place.stat().doing(doing)?.as_ref().is_some_and(is_it) {
                return place.open(OFlags::PATH | OFlags::DIRECTORY).doing(doing).map(Some);
            }
        }
        Ok(None)
    }

    pub fn outcome(&self) -> Result<StepOutcome> {
        let (path, place) = match (&self.step.act, &self.other) {
            (Act::Move { to } | Act::Relocate { to, .. }, Some(target)) => (to, target),
            _ => (&self.step.path, &self.place),
        };
        let there = place.stat().doing(|| self.doing("stat"))?;
        Ok(StepOutcome { path: path.clone(), meta: there.map(|there| self.as_made(there)) })
    }

    /// What somebody has written to it, or put in its place, since it stands there is not of our making. It is told as it
    /// was made, so that the next look finds it changed.
    fn as_made(&self, there: Meta) -> Meta {
        match self.placed {
            Some(made) if !there.is_dir() && !same_entry(&there, &made) => {
                let Stamp { device, inode, size, mtime, ctime } = made;
                Meta { device, inode, size, mtime, ctime, ..there }
            }
            _ => there,
        }
    }

    fn waiting(&self) -> &Place {
        self.waiting.as_ref().expect("a placing or a removal is made with its temporary name")
    }

    /// Where it has its temporary name as long as no directory is renamed.
    fn waiting_path(&self) -> Option<RelPath> {
        let waiting = self.waiting.as_ref().filter(|waiting| super::is_temp_name(&waiting.name))?;
        self.step.path.parent()?.join(&waiting.name).ok()
    }

    /// Whether a directory stands under its temporary name, before or after, into which somebody may have put something
    /// while it stood at the path.
    fn may_be_dir(&self) -> bool {
        matches!(self.step.act, Act::Supplant { .. } | Act::Place { looks: Some(_), .. })
    }

    /// Where what is at a path before this step is after it, if it goes along.
    fn carried_path(&self, path: &RelPath) -> Option<RelPath> {
        match &self.step.act {
            Act::Relocate { to, .. } => path.rebase(&self.step.path, to),
            Act::Exchange { to, .. } => path.rebase(&self.step.path, to).or_else(|| path.rebase(to, &self.step.path)),
            Act::Place { .. } | Act::Supplant { .. } | Act::Take { .. } | Act::Remove { .. } => None,
            Act::Rewrite { .. } | Act::Move { .. } | Act::Link { .. } => None,
        }
    }

    /// After undoing, the new entry; after finishing, the old one, whose content is kept. Whatever else it is came from
    /// somebody who wrote at the very moment of a rename, and becomes a backup before it goes.
    pub fn remove_waiting(&self, store: &Store) -> Result<()> {
        let Some(waiting) = &self.waiting else { return Ok(()) };
        // What was placed where nothing was has left nothing.
        let Some(there) = waiting.stat().doing(|| self.doing("examine"))? else { return Ok(()) };
        if matches!(self.step.act, Act::Take { .. }) && !self.is_expected_inode(&Some(there)) {
            // The file that was not taken after all, or one that somebody has made under its name since.
            return Ok(());
        }
        let is_known = self.is_made_here(&there) || self.step.expect.is_some_and(|expect| same_entry(&there, &expect));
        if !is_known {
            self.keep_waiting(store, waiting)?;
        }
        discard_temp(waiting)
    }

    /// Makes a backup of what waits, by the name of the path it was written to.
    fn keep_waiting(&self, store: &Store, waiting: &Place) -> Result<()> {
        let doing = || self.doing("keep what somebody wrote at");
        let Some(meta) = waiting.stat().doing(doing)? else { return Ok(()) };
        match meta.kind {
            FileKind::Directory => keep_within(store, &self.step.path, waiting),
            _ => keep_foreign(store, &self.step.path, waiting, &meta),
        }
    }

    /// Where the step stands, for recovery.
    pub fn progress(&self) -> Result<Progress> {
        let doing = || self.doing("examine");
        let here = self.place.stat().doing(doing)?;
        let as_expected = match (self.step.expect, &here) {
            (Some(_), Some(_)) if self.is_by_inode() => self.is_expected_inode(&here),
            (Some(expect), Some(meta)) => same_entry(meta, &expect),
            (None, None) => true,
            _ => false,
        };
        let done = match &self.step.act {
            Act::Place { nameless: Some(made), .. } => here.is_some_and(|meta| same_entry(&meta, made)),
            Act::Place { inode, .. } | Act::Supplant { inode, .. } => here.is_some_and(|meta| meta.inode == *inode),
            Act::Take { new, .. } => is_inode(&here, new),
            Act::Remove { .. } => here.is_none(),
            Act::Rewrite { new, .. } => self.is_expected_inode(&here) && self.holds(*new)?,
            Act::Move { .. } | Act::Relocate { .. } => {
                !self.is_expected_inode(&here) && self.is_expected_inode(&self.stat_other()?)
            }
            Act::Exchange { .. } => self.is_expected_inode(&self.stat_other()?),
            Act::Link { .. } => self.stat_other()?.zip(here).is_some_and(|(of, here)| of.key() == here.key()),
        };
        Ok(match (done, as_expected) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Todo,
            (false, false) if matches!(self.step.act, Act::Rewrite { .. }) && self.is_expected_inode(&here) => {
                Progress::Torn
            }
            (false, false) => Progress::Foreign,
        })
    }

    /// Whether what is expected may be written to, or have names come and go in it, and still be what is expected.
    fn is_by_inode(&self) -> bool {
        matches!(self.step.act, Act::Relocate { .. } | Act::Exchange { .. } | Act::Supplant { .. })
    }

    fn is_expected_inode(&self, here: &Option<Meta>) -> bool {
        self.step.expect.is_some_and(|expect| is_inode(here, &expect))
    }

    fn holds(&self, digest: Digest) -> Result<bool> {
        Ok(file::digest(&self.open()?).doing(|| self.doing("read"))? == digest)
    }

    /// What stands at the path, for reading.
    pub fn open(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        self.place.open(flags).map(File::from).doing(|| self.doing("read"))
    }

    /// Does a torn rewrite once more. What it finds is not what it expected before the first time.
    pub fn write_again(&self, store: &Store) -> Result<()> {
        match &self.step.act {
            Act::Rewrite { new, looks, .. } => self.write_in_place(store, *new, looks.map(|(_, new)| new)),
            Act::Place { .. }
            | Act::Supplant { .. }
            | Act::Take { .. }
            | Act::Remove { .. }
            | Act::Move { .. }
            | Act::Relocate { .. }
            | Act::Exchange { .. }
            | Act::Link { .. } => Ok(()),
        }
    }

    fn other(&self) -> &Place {
        self.other.as_ref().expect("a step that names two paths is made with both")
    }

    fn stat_other(&self) -> Result<Option<Meta>> {
        self.other().stat().doing(|| self.doing("examine"))
    }

    fn doing(&self, verb: &str) -> String {
        format!("{verb} {}", self.step.path)
    }

    fn conflict(&self) -> Error {
        Error::Conflict { path: self.step.path.to_string() }
    }
}

/// What came of undoing an exchange.
enum Back {
    AsItWas,
    /// Somebody else's stands there, and what stood there before waits.
    Foreign,
}

/// Where a journalled step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Todo,
    Done,
    /// In the middle of a rewrite: neither content, but the same inode. It can be written again.
    Torn,
    /// Something is there that neither was nor was to be.
    Foreign,
}

/// The temporary names that may stand: where they were made, and where they are once directories are renamed.
pub(super) fn sweep_notes(staged: &[Staged]) -> Vec<SweepNote> {
    let mut notes = Vec::new();
    for (index, one) in staged.iter().enumerate() {
        let Some(made) = one.waiting_path() else { continue };
        let carried = |at: RelPath, later: &Staged| later.carried_path(&at).unwrap_or(at);
        let carried = staged[index + 1..].iter().fold(made.clone(), carried);
        let of = one.may_be_dir().then(|| one.step.path.clone());
        notes.extend(Some(carried).filter(|carried| *carried != made).map(|at| SweepNote { at, of: of.clone() }));
        notes.push(SweepNote { at: made, of });
    }
    notes
}

/// Removes what waits before the landing is recorded, where that needs no note: once its only step is done it is never
/// undone, for recovery finds it done, and what it replaced is kept with the intent. False where nothing was removed, or
/// not all, so that notes must tell.
pub(super) fn is_swept_early(staged: &[Staged], store: &Store) -> bool {
    match staged {
        // What never had a temporary name has left none.
        [one] if one.nameless.is_some() => true,
        [one] if matches!(one.step.act, Act::Place { looks: None, .. } | Act::Take { .. }) => {
            one.remove_waiting(store).is_ok()
        }
        [one] if matches!(one.step.act, Act::Remove { .. }) => {
            let is_dir = |waiting: &Place| waiting.stat().map(|meta| meta.is_some_and(|meta| meta.is_dir()));
            // Somebody may have put something into a directory.
            let is_plain = one.waiting.as_ref().is_some_and(|waiting| matches!(is_dir(waiting), Ok(false)));
            is_plain && one.remove_waiting(store).is_ok()
        }
        // Nothing waits.
        [one] => matches!(one.step.act, Act::Relocate { onto: None, .. }),
        [] | [_, _, ..] => false,
    }
}

/// The directory that the last of `staged` that puts one at `path`, or takes one from there, does so with.
fn own_dir(staged: &[Staged], path: &RelPath) -> Result<Option<OwnedFd>> {
    let found = staged.iter().rev().map(|staged| staged.own_dir(path));
    found.filter_map(Result::transpose).next().transpose()
}

/// Where `path` is, or is going to be when `staged` have been applied. Below a directory that gives its place to something
/// else, or is renamed, it is where that directory is.
fn place_among(staged: &[Staged], dirs: &mut Dirs, tree: &Tree, path: &RelPath) -> Result<Place> {
    let doing = || format!("open the directory of {path}");
    let place = || {
        let mut above = path.parent();
        while let Some(dir) = above {
            if let (Some(found), Some(below)) = (own_dir(staged, &dir)?, path.rebase(&dir, &RelPath::root())) {
                return Tree::from_root(found).and_then(|found| found.place(&below)).doing(doing);
            }
            above = dir.parent();
        }
        tree.place(path).doing(doing)
    };
    dirs.place(path, place)
}

/// Where `path` is.
fn place_below(dirs: &mut Dirs, tree: &Tree, path: &RelPath) -> Result<Place> {
    dirs.place(path, || tree.place(path).doing(|| format!("open the directory of {path}")))
}

/// Something in a directory that is no temporary name of ours, nor a directory that `goes`. `within` is the path in `tree`.
fn foreign_in(tree: &Tree, within: &RelPath, goes: &impl Fn(&RelPath) -> bool) -> std::io::Result<Option<RelPath>> {
    for entry in tree.list(within)?.into_iter().filter(|entry| !super::is_temp_name(&entry.name)) {
        let Ok(path) = within.join(&entry.name) else { continue };
        if entry.kind != FileKind::Directory || !goes(&path) {
            return Ok(Some(path));
        }
        if let Some(found) = foreign_in(tree, &path, goes)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Makes backups of what somebody put into a directory, which stood at `path`, so that it can go: it is empty afterwards,
/// but for temporary names.
pub(super) fn keep_within(store: &Store, path: &RelPath, dir: &Place) -> Result<()> {
    let doing = || format!("keep what somebody wrote in {path}");
    let dir = Arc::new(dir.open(OFlags::RDONLY | OFlags::DIRECTORY).doing(doing)?);
    for entry in tree::list(dir.as_fd()).doing(doing)? {
        let place = Place { dir: Arc::clone(&dir), name: entry.name };
        let (Ok(path), Some(meta)) = (path.join(&place.name), place.stat().doing(doing)?) else { continue };
        match meta.kind {
            _ if super::is_temp_name(&place.name) => {}
            FileKind::Directory => {
                keep_within(store, &path, &place)?;
                remove_if_empty(&place).doing(doing)?;
            }
            _ => {
                keep_foreign(store, &path, &place, &meta)?;
                place.unlink().doing(doing)?;
            }
        }
    }
    Ok(())
}

/// Makes a backup of what somebody wrote at `path` at the very moment of a landing, and which is at `place` now.
fn keep_foreign(store: &Store, path: &RelPath, place: &Place, meta: &Meta) -> Result<()> {
    let doing = || format!("keep what somebody wrote at {path}");
    let content = match meta.kind {
        FileKind::Regular => {
            let file = place.open(OFlags::RDONLY | OFlags::NONBLOCK).map(File::from).doing(doing)?;
            store.stage_content(&file)?
        }
        FileKind::Symlink => StagedContent::of(place.read_symlink().doing(doing)?.into_vec()),
        // Nothing whose content could be lost.
        _ => return Ok(()),
    };
    store.note_use(content.digest);
    let created = super::now_millis();
    let backup = Backup {
        name: Backup::name_for(path, created),
        path: path.clone(),
        kind: BackupKind::Landed,
        digest: content.digest,
        size: content.size,
        mode: meta.mode,
        symlink: meta.kind == FileKind::Symlink,
        mtime: meta.mtime,
        created,
        by: None,
    };
    let event = EventDraft::new(EventName::ExternalModified).with(|event| {
        event.path = Some(path.clone());
        event.sha256 = Some(content.digest);
        event.bytes = Some(content.size);
        event.message = Some("written below while something landed there: kept as a backup".to_owned());
    });
    store.database.lock().write(|tx| {
        content.commit(tx)?;
        let name = backups::put(tx, &backup)?;
        events::put_all(tx, &[event], &[(&backup, &name)]).map(|_| ())
    })
}

/// A rename changes ctime, so it does not count here.
fn same_entry(meta: &Meta, expect: &Stamp) -> bool {
    let stamp = meta.stamp();
    (stamp.device, stamp.inode, stamp.size, stamp.mtime) == (expect.device, expect.inode, expect.size, expect.mtime)
}

fn is_inode(meta: &Option<Meta>, expect: &Stamp) -> bool {
    meta.is_some_and(|meta| (meta.device, meta.inode) == (expect.device, expect.inode))
}

fn is_same_entry(place: &Place, expect: &Stamp) -> std::io::Result<bool> {
    Ok(place.stat()?.is_some_and(|meta| same_entry(&meta, expect)))
}

/// What is made to be placed: under its temporary name, or without one.
struct MadeEntry {
    meta: Meta,
    nameless: Option<File>,
}

fn make_entry(
    waiting: &Place,
    new: &NewContent<'_>,
    needs_name: bool,
    secure: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<MadeEntry> {
    match new {
        NewContent::File { file, like, meta } => {
            write_file(waiting, needs_name, (like, meta), |temp| file::copy_content(file, temp), secure)
        }
        NewContent::Bytes { bytes, like, meta } => {
            write_file(waiting, needs_name, (like, meta), |temp| temp.write_all_at(bytes, 0), secure)
        }
        NewContent::Symlink { target, uid, gid, times } => {
            waiting.make_symlink(target)?;
            give_owner(waiting, *uid, *gid)?;
            if let Some((access, modification)) = times {
                waiting.set_times(file::to_timespec(*access), file::to_timespec(*modification))?;
            }
            MadeEntry::at(waiting)
        }
        NewContent::Dir { like, meta } => {
            waiting.make_dir(Mode::RWXU)?;
            let temp = File::from(waiting.open(OFlags::RDONLY | OFlags::DIRECTORY)?);
            // It looks as it shall once all is in it.
            file::copy_looks(like.as_fd(), &Meta { mode: meta.mode | 0o700, ..*meta }, temp.as_fd())?;
            MadeEntry::at(waiting)
        }
        NewContent::Node { looks } => {
            waiting.make_node(looks.kind, Mode::RUSR | Mode::WUSR, looks.device)?;
            give_owner(waiting, looks.uid, looks.gid)?;
            waiting.set_mode(looks.mode)?;
            waiting.set_times(file::to_timespec(looks.atime), file::to_timespec(looks.mtime))?;
            MadeEntry::at(waiting)
        }
    }
}

impl MadeEntry {
    fn at(waiting: &Place) -> std::io::Result<Self> {
        let meta = waiting.stat()?.ok_or(std::io::ErrorKind::NotFound)?;
        Ok(Self { meta, nameless: None })
    }
}

fn write_file(
    waiting: &Place,
    needs_name: bool,
    (like, meta): (&File, &Meta),
    fill: impl FnOnce(&File) -> std::io::Result<()>,
    secure: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<MadeEntry> {
    let mode = file::mode_at_first(meta.mode);
    let nameless = if needs_name { None } else { waiting.create_nameless(mode)? };
    let is_nameless = nameless.is_some();
    let made = nameless.map_or_else(|| waiting.create(OFlags::RDWR, mode).map(File::from), Ok)?;
    fill(&made)?;
    file::copy_metadata(like.as_fd(), meta, made.as_fd())?;
    secure(&made)?;
    Ok(MadeEntry { meta: meta_when_named(&made)?, nameless: is_nameless.then_some(made) })
}

/// Of a file that may have no name yet, as it is going to be with one.
fn meta_when_named(file: &File) -> std::io::Result<Meta> {
    let meta = Meta::of(file.as_fd())?;
    Ok(Meta { links: meta.links.max(1), ..meta })
}

/// An unprivileged daemon cannot give files away.
fn give_owner(place: &Place, uid: u32, gid: u32) -> std::io::Result<()> {
    match place.set_owner(Some(uid), Some(gid)) {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

fn discard_temp(waiting: &Place) -> Result<()> {
    let removed = match waiting.unlink() {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(err) if err.raw_os_error() == Some(libc::EISDIR) => waiting.remove_dir(),
        other => other,
    };
    removed.doing(|| "remove a temporary name".to_owned())
}

/// A directory that is gone, or in which somebody else has put something, is left alone.
pub(super) fn remove_if_empty(place: &Place) -> std::io::Result<()> {
    match place.remove_dir() {
        Err(err) if is_absent(&err) || err.raw_os_error() == Some(libc::ENOTEMPTY) => Ok(()),
        other => other,
    }
}
