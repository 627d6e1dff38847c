//! Landing: the only way in which judged content reaches lower. For one path or for many, all or nothing.
//!
//! ```text
//!   Landing ──── promise ────► Promised ──── apply ────► Applied ──── finish ────► names of the backups
//!   new entries stand under    the intent is            every path is new;       the database says so,
//!   temporary names, old       committed: a crash       what was there waits     what waited is removed
//!   content is safe            from here on finishes    under the temporary
//!                              or undoes the whole      names
//! ```
//! If dropped before `finish`, each state undoes itself and leaves lower as it was. `apply` consists of renames, so a
//! caller may hold a lock around it; copying, hashing and syncing come before and after it. The exception is an inode
//! with several names, whose content `apply` writes in place.

mod foreign;
mod in_place;
mod made;
mod staged;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;

use super::intent::{self, Act, Epilogue, Intent, Landed, Looks, Step, Temp};
use crate::model::{OperationId, RelPath, Stamp};
use crate::store::content::StagedContent;
use crate::store::rows::backups::Backup;
use crate::store::rows::operations::{DirLooks, Effect, PathEffect};
use crate::store::{Context, Error, Result, Store, TEMP_PREFIX, UpperId};
use crate::sys::Mode;
use crate::sys::cache;
use crate::sys::file::{self, Meta};
use crate::sys::sqlite::Transaction;
use crate::sys::tree::{Dirs, Place, Tree, is_absent};

use foreign::foreign_in;
pub(super) use foreign::{keep_foreign, remove_if_empty};
pub use made::NewContent;
use made::{MadeEntry, make_entry, meta_when_named};
pub(super) use staged::{Progress, Staged, sweep_early, sweep_notes};
use staged::{discard_temp, own_dir, place_among, place_below};

/// Whether a landing, once it has returned, survives a power cut or only a killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Cached,
    Synced,
}

impl Durability {
    /// Writes new content out as far as its landing promises. If it replaces other content, writeback starts at once even
    /// if nothing is promised: file systems do not recognize an exchange of names as a replacement, so a power cut could
    /// leave zeros where content had long been safe.
    fn secure(self, temp: &File, replaces: bool) -> std::io::Result<()> {
        match self {
            Self::Synced => temp.sync_all(),
            Self::Cached if replaces => cache::start_writeback(temp.as_fd()),
            Self::Cached => Ok(()),
        }
    }
}

/// For a larger file the record is awaited, so that its upper file is gone before its writer goes on: on a full disk the
/// next write needs that room.
const RECORDED_LATER_BYTES_MAX: u64 = 64 << 10;

/// A path after its step: what lower has there now.
#[derive(Clone, Debug)]
pub struct StepOutcome {
    pub path: RelPath,
    pub meta: Option<Meta>,
}

/// Steps being prepared. Lower has not changed but for temporary names. A new file that replaces nothing and is not
/// synced does not even have one: it cannot be left behind, and naming it costs half of a rename.
pub struct Landing<'a> {
    work: Work<'a>,
    is_vital: bool,
    backups: Vec<Backup>,
    contents: Vec<StagedContent>,
    /// How many of the directories made have been returned by `newly_made`.
    made_told: usize,
}

/// A directory made for a landing, and noted in the database so that recovery finds it.
struct Made {
    path: RelPath,
    place: Place,
}

/// A landing whose intent is committed.
#[must_use]
pub struct Promised<'a> {
    work: Work<'a>,
    intent: Intent,
    id: i64,
}

/// A landing that is applied: lower is new.
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
    /// True if any of `staged` may have been applied.
    is_begun: bool,
    /// How many of `staged`, from the first, have been applied. After an error the next one may have been, too.
    applied: usize,
    intent: Option<i64>,
    /// Directories made for this landing, parents first. They go again if it does not come about.
    made: Vec<Made>,
    /// Directories that go once the landing is done, as its intent says.
    emptied: Vec<(RelPath, Place)>,
    /// What must be synced once it is applied: directories and rewritten inodes. Opened before the promise, so that
    /// afterwards only a failing disk can prevent the sync.
    to_sync: Vec<(File, String)>,
}

pub(in crate::store) fn random_suffix() -> String {
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
        let (is_begun, applied, intent) = (false, 0, None);
        let work = Work { store, durability, staged, dirs, is_begun, applied, intent, made, emptied, to_sync };
        Self { work, is_vital: false, backups: Vec::new(), contents: Vec::new(), made_told: 0 }
    }

    /// Lets the landing use the reserved disk space: a full disk must not stop it.
    pub fn vital(self) -> Self {
        Self { is_vital: true, ..self }
    }

    /// Prepares a new entry for `path`, where `expect` must still stand when it is applied, with the same mode and owner.
    pub fn place(&mut self, tree: &Tree, path: &RelPath, expect: Option<&Meta>, new: &NewContent<'_>) -> Result<Meta> {
        let looks = match new {
            NewContent::Dir { meta, .. } => Some(Looks::of_meta(meta)),
            NewContent::File { .. } | NewContent::Found { .. } | NewContent::Bytes { .. } => None,
            NewContent::Symlink { .. } | NewContent::Node { .. } => None,
        };
        let act = |temp, made: Stamp| Act::Place { temp, inode: made.inode, looks, made: Some(made) };
        let placed = self.stage_new((tree, path), expect.map(Meta::stamp), new, act)?;
        self.work.last().expect_looks = expect.copied();
        Ok(placed)
    }

    /// Like [`Self::place`], with a copy of `file`, which stands at `path` and which programs go on writing: only the inode
    /// must still be the same. They keep it, with whatever they write between the copy and the rename.
    pub fn part(&mut self, tree: &Tree, path: &RelPath, file: &File, meta: Meta) -> Result<Meta> {
        let placed = self.place(tree, path, Some(&meta), &NewContent::Found { file, meta })?;
        self.work.last().is_written = true;
        Ok(placed)
    }

    /// Like [`Self::place`], but moves `file`, the file of an upper entry, to `path`: afterwards it has no name in upper.
    /// No open handle may write to it any more.
    pub fn raise(
        &mut self,
        tree: &Tree,
        path: &RelPath,
        expect: Option<&Meta>,
        (upper, file): (UpperId, &File),
    ) -> Result<()> {
        let doing = || format!("write {path}");
        let place = place_below(&mut self.work.dirs, tree, path)?;
        self.work.durability.secure(file, expect.is_some()).doing(doing)?;
        let new = Meta::of(file.as_fd()).doing(doing)?.stamp();
        let step = Step { path: path.clone(), expect: expect.map(Meta::stamp), act: Act::Raise { upper, new } };
        self.work.push(step, place);
        let waiting = self.work.store.dirs.stage_place(upper);
        let staged = self.work.last();
        (staged.waiting, staged.placed, staged.expect_looks) = (Some(waiting), Some(new), expect.copied());
        Ok(())
    }

    /// Like [`Self::place`], in the place of a directory, which goes. Its contents must go by later steps, or by
    /// [`Self::remove_dir`]; anything else in it is a conflict. As it is one step, the path is never free.
    pub fn supplant(&mut self, tree: &Tree, path: &RelPath, expect: Stamp, new: &NewContent<'_>) -> Result<Meta> {
        let act = |temp, made: Stamp| Act::Supplant { temp, inode: made.inode, made: Some(made) };
        self.stage_new((tree, path), Some(expect), new, act)
    }

    fn stage_new(
        &mut self,
        (tree, path): (&Tree, &RelPath),
        expect: Option<Stamp>,
        new: &NewContent<'_>,
        act: impl FnOnce(Temp, Stamp) -> Act,
    ) -> Result<Meta> {
        let place = place_among(&self.work.staged, &mut self.work.dirs, tree, path)?;
        self.work.store.note_boot()?;
        self.work.store.announce(&path.parent().unwrap_or_default())?;
        let temp = new_temp();
        let waiting = place.sibling(&temp.0);
        let secure = |temp: &File| self.work.durability.secure(temp, expect.is_some());
        // A synced landing may have ten thousand files, and each one without a name would be an open descriptor.
        let needs_name = expect.is_some() || self.work.durability == Durability::Synced;
        let made = match make_entry(&waiting, new, needs_name, secure) {
            Ok(made) => made,
            Err(cause) => {
                discard_temp(&waiting)?;
                return Err(cause).doing(|| format!("write {path}"));
            }
        };
        let MadeEntry { meta, nameless } = made;
        self.work.push(Step { path: path.clone(), expect, act: act(temp, meta.stamp()) }, place);
        let staged = self.work.last();
        (staged.waiting, staged.placed, staged.nameless) = (Some(waiting), Some(meta.stamp()), nameless);
        Ok(meta)
    }

    /// Puts a file of lower in the place of another, which goes. Its `content` is in lower already and is not copied.
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

    /// Removes the entry. A directory must be empty by then, but for what goes by steps after this one.
    pub fn remove(&mut self, tree: &Tree, path: &RelPath, expect: Stamp) -> Result<()> {
        let place = place_below(&mut self.work.dirs, tree, path)?;
        self.work.store.note_boot()?;
        let temp = new_temp();
        let waiting = place.sibling(&temp.0);
        self.work.push(Step { path: path.clone(), expect: Some(expect), act: Act::Remove { temp } }, place);
        self.work.last().waiting = Some(waiting);
        Ok(())
    }

    /// Renames an entry within lower to a free path.
    pub fn rename(&mut self, tree: &Tree, from: &RelPath, to: &RelPath, expect: Stamp) -> Result<()> {
        self.two_paths(tree, from, Some(expect), Act::Move { to: to.clone() })
    }

    /// Renames within lower an entry that a program may be writing to. The target is free or has no content: a directory
    /// may replace an empty one that looks like `onto`. Entries that go from a directory are removed before its rename.
    pub fn relocate(
        &mut self,
        tree: &Tree,
        from: &RelPath,
        to: &RelPath,
        expect: Stamp,
        onto: Option<DirLooks>,
    ) -> Result<()> {
        self.two_paths(tree, from, Some(expect), Act::Relocate { to: to.clone(), onto })
    }

    /// Makes two entries of lower change places.
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
        let store = self.work.store;
        let staged = Staged::reopen((store, tree), step, &self.work.staged, &mut self.work.dirs)?;
        self.work.staged.push(staged);
        Ok(())
    }

    /// Makes the missing directories above `path`. They are noted first, so that none is left behind for nothing.
    pub fn make_parents(&mut self, tree: &Tree, path: &RelPath) -> Result<()> {
        let mut missing = Vec::new();
        let mut dir = path.parent().unwrap_or_default();
        while !self.places(&dir)? && !tree.exists(&dir).doing(|| format!("stat {dir}"))? {
            let above = dir.parent().unwrap_or_default();
            missing.push(std::mem::replace(&mut dir, above));
        }
        missing.iter().rev().try_for_each(|dir| {
            let place = self.make_noted(tree, dir)?;
            // Like the directory above, whoever makes it and whatever his umask is.
            let looks = Meta::of(place.dir.as_fd()).and_then(|above| DirLooks::of_new_in(&above).give(place));
            looks.doing(|| format!("give {dir} its mode and owner"))
        })
    }

    /// Makes a missing directory whose parent exists.
    pub fn make_dir(&mut self, tree: &Tree, path: &RelPath, looks: DirLooks) -> Result<()> {
        let place = self.make_noted(tree, path)?;
        looks.give(place).doing(|| format!("give {path} its owner"))
    }

    fn make_noted(&mut self, tree: &Tree, dir: &RelPath) -> Result<&Place> {
        let doing = || format!("make {dir}");
        let place = place_below(&mut self.work.dirs, tree, dir)?;
        self.work.store.database.lock().write(|tx| super::recovery::doom_dir(tx, dir))?;
        if let Err(err) = place.make_dir(Mode::from_raw_mode(0o755)) {
            // Whatever stands there is not ours, so the note must not have it removed.
            self.work.store.dirs_gone(std::slice::from_ref(dir))?;
            return Err(err).doing(doing);
        }
        self.work.made.push(Made { path: dir.clone(), place });
        Ok(&self.work.made.last().expect("just pushed").place)
    }

    /// Returns what directories were made since the last call, parents first.
    pub fn newly_made(&mut self) -> Result<Vec<PathEffect>> {
        let told = std::mem::replace(&mut self.made_told, self.work.made.len());
        let effect = |Made { path, place }: &Made| {
            let meta = place.stat().doing(|| format!("stat {path}"))?;
            Ok(PathEffect::on(path, Effect::DirMade, meta.as_ref()))
        };
        self.work.made[told..].iter().map(effect).collect()
    }

    /// True if a step puts a directory at `path`.
    fn places(&self, path: &RelPath) -> Result<bool> {
        Ok(own_dir(&self.work.staged, path)?.is_some())
    }

    /// Removes the directory once the landing is done, unless another program has put something into it.
    pub fn remove_dir(&mut self, tree: &Tree, path: &RelPath) -> Result<()> {
        match place_below(&mut self.work.dirs, tree, path) {
            Err(Error::Io { cause, .. }) if is_absent(&cause) => Ok(()),
            place => {
                self.work.emptied.push((path.clone(), place?));
                Ok(())
            }
        }
    }

    /// Gives an inode with several names new content, which all of them then show. Both contents are kept first. From
    /// here on the landing is synced, whatever was asked for: no rename makes the content new at once, and a half-written
    /// file can be mended only from an intent and contents that survive a power cut.
    pub fn rewrite(&mut self, tree: &Tree, path: &RelPath, expect: Stamp, new: &File, old: &File) -> Result<()> {
        self.work.durability = Durability::Synced;
        let place = place_below(&mut self.work.dirs, tree, path)?;
        let doing = || format!("stat {path}");
        let looks = Some((Looks::of(old).doing(doing)?, Looks::of(new).doing(doing)?));
        let (old, kept) = (self.work.store.stage_content(old)?, self.work.store.stage_content(new)?);
        let act = Act::Rewrite { old: old.digest, new: kept.digest, looks };
        self.contents.extend([old, kept]);
        self.work.push(Step { path: path.clone(), expect: Some(expect), act }, place);
        self.work.last().open_to_rewrite(new)
    }

    /// True if a step writes in place.
    pub fn rewrites(&self) -> bool {
        self.work.staged.iter().any(|staged| matches!(staged.step.act, Act::Rewrite { .. }))
    }

    /// Returns the metadata of what is going to stand at a path, if it exists already.
    pub fn meta_of(&self, path: &RelPath) -> Result<Option<Meta>> {
        let Some(staged) = self.work.staged.iter().rfind(|staged| staged.step.path == *path) else { return Ok(None) };
        let meta = match (&staged.nameless, &staged.waiting) {
            (Some(file), _) => meta_when_named(file).map(Some),
            (None, waiting) => waiting.as_ref().unwrap_or(&staged.place).stat(),
        };
        meta.doing(|| staged.doing("examine"))
    }

    /// Opens what is going to stand at a path for reading, if this landing made it.
    pub fn open_new(&self, path: &RelPath) -> Result<Option<File>> {
        let Some(staged) = self.work.staged.iter().rfind(|staged| staged.step.path == *path) else { return Ok(None) };
        let opened = match (&staged.nameless, &staged.waiting) {
            (Some(file), _) => file::reopen_quietly(file.as_fd()),
            (None, Some(waiting)) => waiting.open_to_read(),
            (None, None) => return Ok(None),
        };
        opened.map(Some).doing(|| staged.doing("open"))
    }

    /// Keeps content that this landing replaces, as a backup with a name of its own.
    pub fn keep(&mut self, content: StagedContent, backup: Backup) {
        self.work.store.note_use(content.digest);
        self.contents.push(content);
        self.backups.push(backup);
    }

    /// The commit point. After it a crash leaves all old or all new.
    pub fn promise(self, epilogue: Epilogue) -> Result<Promised<'a>> {
        let Self { mut work, is_vital, backups, contents, .. } = self;
        work.store.halt.check()?;
        // Deepest first.
        work.emptied.sort_by(|(a, _), (b, _)| b.cmp(a));
        let emptied = work.emptied.iter().map(|(path, _)| path.clone()).collect();
        work.note_kept(&backups);
        let steps = work.staged.iter().map(|staged| staged.step.clone()).collect();
        let made = work.made.iter().map(|made| made.path.clone()).collect();
        let mut intent = Intent { steps, backups, epilogue, emptied, made, done: Vec::new() };
        work.sync_before_promise()?;
        let store = work.store;
        store.check_kept(&contents)?;
        let (backups, bytes) = (intent.backups.len(), contents.iter().map(|content| content.size).sum());
        store.purging.note_kept(backups as u64, bytes);
        store.purging.note_recorded(intent.epilogue.events.len() as u64);
        let mut commit = || store.database.lock().promise(&mut intent, &contents);
        let id = if is_vital { store.vitally(commit) } else { commit() }?;
        work.intent = Some(id);
        if work.durability == Durability::Synced {
            // Not as part of the commit, which would make other threads wait for the disk as well.
            store.sync()?;
        }
        Ok(Promised { work, intent, id })
    }
}

impl<'a> Promised<'a> {
    /// Makes every path new. If one is not as expected, all are made old again. Returns [`Error::Unrecorded`] if that
    /// fails as well: then nothing is written any more.
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
    /// Returns what lower has at a path of the landing now.
    pub fn meta_of(&self, path: &RelPath) -> Option<Meta> {
        self.outcomes.iter().rfind(|outcome| outcome.path == *path)?.meta
    }

    /// True if an upper entry's own file has landed.
    pub fn has_raised(&self) -> bool {
        self.intent.steps.iter().any(|step| matches!(step.act, Act::Raise { .. }))
    }

    /// Returns the epilogue, to be completed with what only applying could tell.
    pub fn epilogue(&mut self) -> &mut Epilogue {
        &mut self.intent.epilogue
    }

    /// Like [`Self::finish`], but if nothing waits and the files are of everyday size, the record is left for later.
    /// Returns the operation that it is or will be, and not the names of the backups.
    pub fn finish_soon(mut self) -> Result<Option<OperationId>> {
        let store = self.work.store;
        let is_swept = self.sweep_early();
        if !is_swept || !self.is_light() {
            return Ok(self.finish_swept(is_swept)?.operation);
        }
        self.work.stands();
        Ok(store.record_soon(self.id, std::mem::take(&mut self.intent)))
    }

    /// True if the landing takes hardly any disk space while its record waits.
    fn is_light(&self) -> bool {
        let is_small = |one: &StepOutcome| one.meta.is_none_or(|meta| meta.size <= RECORDED_LATER_BYTES_MAX);
        self.work.made.is_empty() && self.work.emptied.is_empty() && self.outcomes.iter().all(is_small)
    }

    fn sweep_early(&self) -> bool {
        self.work.durability == Durability::Cached && sweep_early(&self.work.staged, self.work.store)
    }

    /// Records what was done and removes what waited. Returns [`Error::Unrecorded`] if lower stays new and the database
    /// could not be told: then nothing is written any more.
    pub fn finish(self) -> Result<Landed> {
        let is_swept = self.sweep_early();
        self.finish_swept(is_swept)
    }

    fn finish_swept(mut self, is_swept: bool) -> Result<Landed> {
        // All this comes before the intent goes: recovery would not repeat it afterwards.
        let free_names = || if is_swept { Ok(()) } else { self.work.free_names() };
        let synced = self.work.dress_dirs().and_then(|()| self.work.sync()).and_then(|()| free_names());
        let (id, intent) = (self.id, &self.intent);
        let (staged, emptied) = self.work.stands();
        let store = self.work.store;
        let waiting = if is_swept { Vec::new() } else { sweep_notes(&staged) };
        let record = |tx: &Transaction<'_>| {
            let landed = intent::fulfil(tx, id, intent)?;
            Ok((landed, super::sweep::note_sweep(tx, &waiting)?))
        };
        let recorded = synced
            .and_then(|()| store.vitally(|| store.database.lock().write_notes(record)))
            .and_then(|recorded| self.work.sync_record(staged.len()).map(|()| recorded));
        let (landed, sweep) = recorded.map_err(|err| store.halt.unrecorded(err))?;
        // A crash from here on leaves only temporary names and emptied directories, which the notes list. What waits in a
        // directory goes before that directory.
        let waiting = staged.iter().rev().filter(|_| !is_swept);
        let removed = first_error(waiting.map(|staged| staged.remove_waiting(store)));
        let gone = emptied.iter().map(|(path, place)| remove_if_empty(place).doing(|| format!("remove {path}")));
        let gone = first_error(gone).and_then(|()| match removed.is_ok() {
            true => store.dirs_gone(&intent.emptied),
            // A directory in which something of ours still waits is not gone, so its note stays, too.
            false => Ok(()),
        });
        match removed.and(gone) {
            Ok(()) => store.swept(sweep),
            // The landing is done all the same, and the notes stay: the next start removes what is left.
            Err(err) => log::error!("clear up after a landing: {err}"),
        }
        Ok(landed)
    }
}

impl Work<'_> {
    /// From here on nothing is undone: lower is new, and so is what the caller knows of it. Should the disk fail,
    /// recovery finishes from the intent. Returns the steps, and the directories that are to go.
    fn stands(&mut self) -> (Vec<Staged>, Vec<(RelPath, Place)>) {
        self.made.clear();
        self.applied = 0;
        self.intent = None;
        (std::mem::take(&mut self.staged), std::mem::take(&mut self.emptied))
    }

    fn push(&mut self, step: Step, place: Place) {
        self.staged.push(Staged::new(step, place));
    }

    fn last(&mut self) -> &mut Staged {
        self.staged.last_mut().expect("called right after push")
    }

    fn note_kept(&mut self, backups: &[Backup]) {
        for staged in self.staged.iter_mut().filter(|staged| staged.replaces()) {
            staged.is_kept = backups.iter().any(|backup| backup.path == staged.step.path);
        }
    }

    fn sync_before_promise(&mut self) -> Result<()> {
        if self.durability == Durability::Cached {
            return Ok(());
        }
        self.store.unsynced.sync()?;
        self.open_dirs()?;
        self.sync()?;
        self.open_rewritten()
    }

    /// Syncs the record before what waits is removed, the only other place of much that has landed. If a power cut took
    /// the record back after that, recovery might find one of several steps changed by others since, and undo the rest.
    fn sync_record(&self, steps: usize) -> Result<()> {
        if self.durability == Durability::Synced && steps > 1 { self.store.sync() } else { Ok(()) }
    }

    /// Gives directories their final attributes once all is in them, inner directories first.
    fn dress_dirs(&self) -> Result<()> {
        let placed = self.staged.iter().rev().filter(|staged| matches!(staged.step.act, Act::Place { .. }));
        placed.into_iter().try_for_each(Staged::dress)
    }

    /// What waits under the name of a program's file is removed before the intent: no note tells of it.
    fn free_names(&self) -> Result<()> {
        let taken = self.staged.iter().filter(|staged| matches!(staged.step.act, Act::Take { .. }));
        first_error(taken.map(|staged| staged.remove_waiting(self.store)))
    }

    fn sync(&self) -> Result<()> {
        sync_opened(&self.to_sync)
    }

    fn open_rewritten(&mut self) -> Result<()> {
        for staged in &self.staged {
            let rewritten = staged.rewritten()?.map(|file| (file, staged.step.path.to_string()));
            self.to_sync.extend(rewritten);
        }
        Ok(())
    }

    fn open_dirs(&mut self) -> Result<()> {
        let made = self.made.iter().map(|made| (&made.path, &made.place));
        let places = self.staged.iter().flat_map(Staged::places).chain(made);
        self.to_sync.extend(open_dirs_of(places)?);
        Ok(())
    }

    fn apply(&mut self) -> Result<Vec<StepOutcome>> {
        self.is_begun = true;
        self.staged.iter().for_each(Staged::keep_others_out);
        let applied = self.apply_steps();
        self.staged.iter().for_each(Staged::let_others_in);
        applied
    }

    fn apply_steps(&mut self) -> Result<Vec<StepOutcome>> {
        let mut outcomes = Vec::with_capacity(self.staged.len());
        // All checks come before the first step: a step may move the ctime of an inode that another one writes to.
        self.staged.iter().try_for_each(Staged::check_unwritten)?;
        for (index, staged) in self.staged.iter().enumerate() {
            staged.apply(self.store)?;
            outcomes.push(staged.outcome()?);
            self.applied = index + 1;
        }
        self.check_emptied()?;
        Ok(outcomes)
    }

    /// An entry that was not there at planning belongs to another program, which does not want the directory to go.
    fn check_emptied(&self) -> Result<()> {
        for staged in &self.staged {
            if !staged.takes_dir()? {
                continue;
            }
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

    /// Undoes whatever can be undone, even if something else cannot.
    fn undo(&mut self) -> Result<()> {
        let store = self.store;
        if let Err(err) = store.vitally(|| self.undo_steps()) {
            // Lower is half new, and the intent stays: the next start finishes or undoes it.
            self.store.halt.halt(&format!("the project is half changed and that could not be undone: {err}"));
            (self.intent, self.applied) = (None, 0);
            self.staged.clear();
            self.made.clear();
            return Err(err);
        }
        // If the landing was promised to last, so must its undoing.
        let synced = if self.is_begun { self.sync() } else { Ok(()) };
        let retracted = self.retract();
        let staged = std::mem::take(&mut self.staged);
        // What waits in a directory goes before that directory.
        let removed = first_error(staged.iter().rev().map(|staged| staged.remove_waiting(self.store)));
        let made = std::mem::take(&mut self.made);
        let remove = |made: &Made| remove_if_empty(&made.place).doing(|| format!("remove {}", made.path));
        let gone = first_error(made.iter().rev().map(remove))
            .and_then(|()| self.store.dirs_gone(&made.into_iter().map(|made| made.path).collect::<Vec<_>>()));
        synced.and(retracted).and(removed).and(gone)
    }

    fn undo_steps(&mut self) -> Result<()> {
        if !self.is_begun {
            return Ok(());
        }
        if let Some(next) = self.staged.get(self.applied)
            && next.may_have_begun()
            && matches!(next.progress()?, Progress::Done | Progress::Torn)
        {
            next.undo(self.store)?;
        }
        while self.applied > 0 {
            self.staged[self.applied - 1].undo(self.store)?;
            self.applied -= 1;
        }
        self.staged.iter().filter(|staged| staged.begun.get()).try_for_each(Staged::sync_rewritten)
    }

    fn retract(&mut self) -> Result<()> {
        let Some(id) = self.intent.take() else { return Ok(()) };
        let retracted = self.store.vitally(|| self.store.database.lock().write(|tx| intent::retract(tx, id)));
        if retracted.is_err() {
            self.store.database.lock().undone.push(id);
        }
        retracted
    }
}

/// Undoes a landing that is half done. If that fails, the error is logged and the intent stays for recovery.
impl Drop for Work<'_> {
    fn drop(&mut self) {
        if let Err(err) = self.undo() {
            log::error!("undo a landing: {err}");
        }
    }
}

/// Opens the directories of `places`, each once, along with a description for messages.
pub(super) fn open_dirs_of<'a>(places: impl Iterator<Item = (&'a RelPath, &'a Place)>) -> Result<Vec<(File, String)>> {
    let mut seen = std::collections::HashSet::new();
    let mut opened = Vec::new();
    for (path, place) in places {
        let what = format!("the directory of {path}");
        let meta = Meta::of(place.dir.as_fd()).doing(|| format!("stat {what}"))?;
        if !seen.insert(meta.number()) {
            continue;
        }
        match place.open_dir() {
            // A directory that is gone has no names to sync.
            Err(err) if is_absent(&err) => {}
            dir => opened.push((File::from(dir.doing(|| format!("open {what}"))?), what)),
        }
    }
    Ok(opened)
}

/// Syncs what was opened in advance.
pub(super) fn sync_opened(opened: &[(File, String)]) -> Result<()> {
    opened.iter().try_for_each(|(file, what)| file.sync_all().doing(|| format!("sync {what}")))
}

/// Evaluates all results, and returns the first error.
pub(super) fn first_error(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    let mut first = Ok(());
    for result in results {
        first = first.and(result);
    }
    first
}
