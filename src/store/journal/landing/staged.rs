//! One step of a landing, with its directories held open: how it is applied, undone, and found by recovery.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::StepOutcome;
use super::foreign::keep_foreign;
use super::in_place::InPlace;
use crate::model::{Births, RelPath, Stamp};
use crate::store::disk::copied::{looks_like, name_inode};
use crate::store::journal::intent::{Act, Step};
use crate::store::journal::sweep::SweepNote;
use crate::store::rows::operations::DirLooks;
use crate::store::{Context, Error, Result, Store, is_temp_name};
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::{Dirs, Place, Tree};
use crate::sys::{Mode, OFlags, RenameFlags};

/// One step, with its directory held open, so that renames of ancestors do not affect it.
pub(in crate::store) struct Staged {
    pub step: Step,
    pub(super) place: Place,
    /// The temporary name of a [`Act::Place`], [`Act::Remove`] or [`Act::Supplant`], and the name that the file of a
    /// [`Act::Take`] or [`Act::Raise`] comes from.
    pub(super) waiting: Option<Place>,
    /// The file that a [`Act::Place`] has made without a name, which it gets when applied; `None` at recovery.
    pub(super) nameless: Option<File>,
    /// The second path of a step that names two.
    pub(super) other: Option<Place>,
    /// State of a [`Act::Rewrite`].
    pub(super) in_place: InPlace,
    /// What the path gets, as it was made, before anyone could touch it. `None` if the step makes nothing, or if an older
    /// program's journal has only its inode number.
    pub(super) placed: Option<Stamp>,
    /// The entry whose mode and owner the new content of a [`Act::Place`] or [`Act::Raise`] was given; they may change
    /// below meanwhile. `None` at recovery.
    pub(super) expect_looks: Option<Meta>,
    /// True if what is there goes, and was kept: it must still be what was kept.
    pub(super) is_kept: bool,
    /// True if programs go on writing to what a [`Act::Place`] replaces: only its inode must be the same, and it is left to
    /// them. Recovery does not know this: then nobody writes to it any more.
    pub(super) is_written: bool,
    /// True if a [`Act::Rewrite`] may have written to its inode, or a [`Act::Link`] has made its name. Recovery does not
    /// know this and goes by what is there.
    pub(super) begun: Cell<bool>,
    /// The kind of what a [`Act::Remove`] has taken from its path, once this process has applied it.
    taken: Cell<Option<FileKind>>,
    /// At recovery: true if the file of an upper entry is no longer in upper, which only its landing can cause.
    has_left_upper: bool,
}

impl Staged {
    pub(super) fn new(step: Step, place: Place) -> Self {
        let (begun, taken) = (Cell::new(false), Cell::new(None));
        let (waiting, nameless, other, placed, expect_looks) = (None, None, None, None, None);
        let in_place = InPlace::default();
        let (is_kept, is_written, has_left_upper) = (false, false, false);
        Self {
            step,
            place,
            waiting,
            nameless,
            other,
            in_place,
            placed,
            expect_looks,
            is_kept,
            is_written,
            begun,
            taken,
            has_left_upper,
        }
    }

    /// Makes a step, as the journal has it, with its directory opened anew: one of lower, or one that a step of `among`
    /// puts there, takes from there or renames.
    pub fn reopen((store, tree): (&Store, &Tree), step: Step, among: &[Staged], dirs: &mut Dirs) -> Result<Self> {
        let place = place_among(among, dirs, tree, &step.path)?;
        let other = step.other().map(|other| place_among(among, dirs, tree, other)).transpose()?;
        let waiting = match &step.act {
            Act::Place { temp, .. } | Act::Supplant { temp, .. } | Act::Remove { temp } => Some(place.sibling(&temp.0)),
            Act::Take { .. } => other.clone(),
            Act::Raise { upper, .. } => Some(store.dirs.stage_place(*upper)),
            Act::Rewrite { .. } | Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } | Act::Link { .. } => {
                None
            }
        };
        let placed = match &step.act {
            Act::Take { new, .. } | Act::Raise { new, .. } => Some(*new),
            Act::Place { made, .. } | Act::Supplant { made, .. } => *made,
            _ => None,
        };
        Ok(Self { waiting, other, placed, ..Self::new(step, place) })
    }

    /// Adapts the step to a copy of the project, which has other inodes. Looks tell which of the step's two places has
    /// what was expected; for an entry that programs may write to meanwhile, only presence does.
    pub fn adopted(mut self) -> Result<Self> {
        let doing = || self.doing("examine");
        let here = self.place.stat().doing(doing)?;
        let beside = self.waiting.as_ref().or(self.other.as_ref());
        let beside = beside.map(Place::stat).transpose().doing(doing)?.flatten();
        let (old, new) = match self.has_moved(&here, &beside) {
            true => (beside, here),
            false => (here, beside),
        };
        if let (Some(expect), Some(old)) = (&mut self.step.expect, old) {
            name_inode(expect, &old);
        }
        if let Some(new) = new {
            self.name_new(&new);
        }
        Ok(self)
    }

    /// True if what was expected at the path is at the step's other place, or if the new entry has come to a free path.
    fn has_moved(&self, here: &Option<Meta>, beside: &Option<Meta>) -> bool {
        let Some(expect) = self.step.expect else { return here.is_some() && beside.is_none() };
        let is = |meta: &Option<Meta>, stamp: &Stamp| meta.is_some_and(|meta| looks_like(&meta, stamp));
        match &self.step.act {
            Act::Rewrite { .. } => false,
            Act::Supplant { .. } => here.is_none_or(|meta| !meta.is_dir()),
            Act::Relocate { .. } if here.is_none() => beside.is_some(),
            // One of the two may have been written to since.
            Act::Take { new, .. } | Act::Raise { new, .. } | Act::Exchange { with: new, .. } => {
                (is(beside, &expect) || is(here, new)) && !is(here, &expect) && !is(beside, new)
            }
            Act::Place { .. } | Act::Remove { .. } | Act::Move { .. } | Act::Relocate { .. } | Act::Link { .. } => {
                is(beside, &expect) && !is(here, &expect)
            }
        }
    }

    fn name_new(&mut self, meta: &Meta) {
        match &mut self.step.act {
            Act::Place { inode, made, .. } | Act::Supplant { inode, made, .. } => {
                *inode = meta.inode;
                made.iter_mut().chain(&mut self.placed).for_each(|made| name_inode(made, meta));
            }
            Act::Take { new, .. } | Act::Raise { new, .. } => {
                name_inode(new, meta);
                self.placed = Some(*new);
            }
            Act::Exchange { with, .. } => name_inode(with, meta),
            Act::Remove { .. } | Act::Rewrite { .. } | Act::Move { .. } => {}
            Act::Relocate { .. } | Act::Link { .. } => {}
        }
    }

    pub fn apply(&self, store: &Store) -> Result<()> {
        match &self.step.act {
            Act::Place { .. } | Act::Supplant { .. } => self.swap_in(store),
            Act::Raise { upper, .. } => {
                self.swap_in(store)?;
                store.room.note_gone(*upper);
                Ok(())
            }
            Act::Take { new, .. } => {
                // There is no other copy of the file, so it changes places only if that is going to last.
                if !is_same_entry(self.waiting(), new).doing(|| self.doing("check"))? {
                    return Err(self.conflict());
                }
                self.check_expected()?;
                self.swap_in(store)
            }
            Act::Remove { .. } => self.move_out(self.waiting()),
            Act::Rewrite { old, new, looks } => self.rewrite(store, (*old, *new), *looks),
            Act::Move { .. } => {
                self.check_expected()?;
                self.place.rename(self.other(), RenameFlags::NOREPLACE).doing(|| self.doing("rename"))
            }
            Act::Relocate { onto, .. } => {
                self.check_inodes()?;
                // If it replaces a directory, the kernel makes sure that this one is empty.
                let flags = if onto.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
                self.place.rename(self.other(), flags).doing(|| self.doing("rename"))
            }
            Act::Exchange { .. } => {
                self.check_inodes()?;
                self.place.rename(self.other(), RenameFlags::EXCHANGE).doing(|| self.doing("exchange"))
            }
            Act::Link { .. } => match self.other().link(&self.place) {
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Err(self.conflict()),
                other => {
                    other.doing(|| self.doing("link"))?;
                    self.begun.set(true);
                    Ok(())
                }
            },
        }
    }

    pub fn undo(&self, store: &Store) -> Result<()> {
        let doing = || self.doing("undo");
        match &self.step.act {
            Act::Place { .. } | Act::Raise { .. } | Act::Supplant { .. } | Act::Take { .. }
                if self.step.expect.is_some() =>
            {
                match self.swap_back(self.waiting())? {
                    Back::AsItWas => Ok(()),
                    // The old content is nowhere else, and the intent that tells of it is about to go.
                    Back::Foreign => self.keep_waiting(store, self.waiting()),
                }
            }
            Act::Place { .. } | Act::Raise { .. } | Act::Supplant { .. } | Act::Take { .. } => {
                self.take_back(self.waiting())
            }
            Act::Remove { .. } => match self.waiting().rename(&self.place, RenameFlags::NOREPLACE) {
                // Another program has created something in its place.
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => self.keep_waiting(store, self.waiting()),
                // Another program has removed it first, or its whole directory.
                Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other.doing(doing),
            },
            Act::Rewrite { old, new, looks } => self.undo_rewrite(store, (*old, *new), *looks),
            Act::Move { .. } => self.other().rename(&self.place, RenameFlags::NOREPLACE).doing(doing),
            Act::Relocate { onto, .. } => {
                self.other().rename(&self.place, RenameFlags::NOREPLACE).doing(doing)?;
                let is_dir = self.place.stat().doing(doing)?.is_some_and(|meta| meta.is_dir());
                let onto = onto.filter(|_| is_dir);
                let make = |looks: DirLooks| {
                    self.other().make_dir(Mode::RWXU)?;
                    looks.give(self.other())
                };
                onto.map_or(Ok(()), make).doing(doing)
            }
            Act::Exchange { .. } => self.place.rename(self.other(), RenameFlags::EXCHANGE).doing(doing),
            Act::Link { .. } => self.place.unlink().doing(doing),
        }
    }

    /// Puts the waiting entry in place, and checks that what came out is what was expected to be there.
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
            // Its content is checked once all that is to go has gone (`Work::check_emptied`).
            Act::Supplant { .. } => self.is_expected_inode(&waiting.stat().doing(doing)?),
            _ if self.is_written => self.is_expected_inode(&waiting.stat().doing(doing)?),
            _ => waiting
                .stat()
                .doing(doing)?
                .is_some_and(|out| out.stamp().has_same_content(&expect) && self.looks_as_expected(&out)),
        };
        if is_expected {
            return Ok(());
        }
        // Another program put something else there between the check and the rename: it goes back, untouched.
        let back = self.swap_back(waiting)?;
        if matches!((back, &self.step.act), (Back::Foreign, Act::Take { .. } | Act::Raise { .. })) {
            // The waiting name is the program's own or upper's, not a temporary name, which would be swept later.
            self.keep_waiting(store, waiting)?;
            discard_temp(waiting)?;
            if let Act::Raise { .. } = self.step.act {
                // The raised file has landed, and another program has changed it since.
                return Ok(());
            }
        }
        Err(self.conflict())
    }

    fn looks_as_expected(&self, out: &Meta) -> bool {
        let looks = |meta: &Meta| (meta.mode, meta.uid, meta.gid);
        self.expect_looks.is_none_or(|expected| looks(&expected) == looks(out))
    }

    /// Undoes an exchange. If something other than our own entry comes out, another program put it there a moment ago: as
    /// the newest it stays in its place, and what it replaced goes on waiting.
    fn swap_back(&self, waiting: &Place) -> Result<Back> {
        let doing = || self.doing("put back");
        match waiting.rename(&self.place, RenameFlags::EXCHANGE) {
            // Another program removed ours, and meant what was there before.
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

    /// Undoes a placing at a free path. What another program has put there since stays.
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
            // Something newer has come again: it keeps the place, and what waits becomes a backup when its name goes.
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other.doing(doing),
        }
    }

    /// True if what waits is what this step made, and unchanged.
    fn is_ours(&self, waiting: &Place) -> std::io::Result<bool> {
        Ok(waiting.stat()?.is_some_and(|meta| self.is_made_here(&meta)))
    }

    fn is_made_here(&self, meta: &Meta) -> bool {
        match (&self.placed, &self.step.act) {
            (Some(placed), _) if !meta.is_dir() => meta.stamp().has_same_content(placed),
            // A directory is changed by what later steps put into it.
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
        let moved = waiting.stat().doing(doing)?;
        match self.step.expect {
            Some(expect) if !moved.is_some_and(|moved| moved.stamp().has_same_content(&expect)) => {
                match waiting.rename(&self.place, RenameFlags::NOREPLACE) {
                    // Something newer still has come: it stays, and what waits becomes a backup when its name goes.
                    Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
                    other => other.doing(doing)?,
                }
                Err(self.conflict())
            }
            _ => {
                self.taken.set(moved.map(|moved| moved.kind));
                Ok(())
            }
        }
    }

    /// True if this step takes away a directory, which may contain entries that the landing does not know of.
    pub(super) fn takes_dir(&self) -> Result<bool> {
        match (&self.step.act, self.taken.get()) {
            (Act::Supplant { .. }, _) => Ok(true),
            (Act::Remove { .. }, Some(taken)) => Ok(taken == FileKind::Directory),
            (Act::Remove { .. }, None) => {
                let waiting = self.waiting().stat().doing(|| self.doing("examine"))?;
                Ok(waiting.is_some_and(|waiting| waiting.is_dir()))
            }
            (Act::Place { .. } | Act::Raise { .. } | Act::Take { .. } | Act::Rewrite { .. }, _) => Ok(false),
            (Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } | Act::Link { .. }, _) => Ok(false),
        }
    }

    /// True if what was expected at the path goes.
    pub(super) fn replaces(&self) -> bool {
        match self.step.act {
            Act::Place { .. } | Act::Raise { .. } | Act::Take { .. } | Act::Remove { .. } => self.step.expect.is_some(),
            // The content of a directory is checked once all that is to go has gone.
            Act::Supplant { .. } | Act::Rewrite { .. } => false,
            Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } | Act::Link { .. } => false,
        }
    }

    pub(super) fn check_expected(&self) -> Result<()> {
        let same = match self.step.expect {
            Some(expect) => is_same_entry(&self.place, &expect).doing(|| self.doing("check"))?,
            None => self.place.stat().doing(|| self.doing("check"))?.is_none(),
        };
        if same { Ok(()) } else { Err(self.conflict()) }
    }

    /// A program may write to what is renamed, so only the inode must be the same.
    fn check_inodes(&self) -> Result<()> {
        let here = self.place.stat().doing(|| self.doing("check"))?;
        let other_is_it = match &self.step.act {
            Act::Exchange { with, .. } => is_inode(&self.stat_other()?, with),
            _ => true,
        };
        if other_is_it && self.is_expected_inode(&here) { Ok(()) } else { Err(self.conflict()) }
    }

    /// False only for an inode that has certainly not been written to, and for a name that was there before.
    pub(super) fn may_have_begun(&self) -> bool {
        self.begun.get() || !matches!(self.step.act, Act::Rewrite { .. } | Act::Link { .. })
    }

    /// Gives the entry its final attributes: after its content, and after all that is in it if it is a directory.
    pub fn dress(&self) -> Result<()> {
        let (looks, is_dir) = match &self.step.act {
            Act::Rewrite { looks: Some((_, new)), .. } => (new, false),
            Act::Place { looks: Some(new), .. } => (new, true),
            Act::Rewrite { looks: None, .. } | Act::Place { looks: None, .. } => return Ok(()),
            Act::Remove { .. } | Act::Supplant { .. } | Act::Take { .. } | Act::Raise { .. } => return Ok(()),
            Act::Move { .. } | Act::Relocate { .. } | Act::Exchange { .. } | Act::Link { .. } => return Ok(()),
        };
        let doing = || self.doing("change attributes of");
        let inode = File::from(self.place.open(OFlags::RDONLY | OFlags::NONBLOCK).doing(doing)?);
        looks.give(&inode).doing(doing)?;
        // Only a confirm lands directories, and it must be durable.
        if is_dir { inode.sync_all().doing(doing) } else { Ok(()) }
    }

    /// Opens the directory that this step puts at `path` or takes from there, wherever it stands by now.
    pub(super) fn own_dir(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
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
        if matches!(self.step.act, Act::Remove { .. }) {
            // Whatever has come there since belongs to another program.
            return Ok(StepOutcome { path: self.step.path.clone(), meta: None });
        }
        let (path, place) = match (&self.step.act, &self.other) {
            (Act::Move { to } | Act::Relocate { to, .. }, Some(target)) => (to, target),
            _ => (&self.step.path, &self.place),
        };
        let there = place.stat().doing(|| self.doing("stat"))?;
        Ok(StepOutcome { path: path.clone(), meta: there.map(|there| self.as_made(there)) })
    }

    /// What another program has written to the entry, or put in its place, is not of our making. The entry is reported as
    /// it was made, so that the next look finds it changed.
    fn as_made(&self, there: Meta) -> Meta {
        match self.placed {
            Some(made) if !there.is_dir() && !there.stamp().has_same_content(&made) => {
                let Stamp { device, inode, size, mtime, ctime, btime } = made;
                Meta { device, inode, size, mtime, ctime, btime, ..there }
            }
            _ => there,
        }
    }

    /// The places at which names of the project come and go by this step.
    pub fn places(&self) -> impl Iterator<Item = (&RelPath, &Place)> {
        std::iter::once(&self.place).chain(&self.other).map(|place| (&self.step.path, place))
    }

    fn waiting(&self) -> &Place {
        self.waiting.as_ref().expect("a placing or a removal is made with its temporary name")
    }

    /// The path of its temporary name, as long as no directory is renamed.
    fn waiting_path(&self) -> Option<RelPath> {
        let waiting = self.waiting.as_ref().filter(|waiting| is_temp_name(&waiting.name))?;
        self.step.path.parent()?.join(&waiting.name).ok()
    }

    /// Where an entry at `path` is while its directory waits under its temporary name.
    fn waiting_path_of(&self, path: &RelPath) -> Option<RelPath> {
        let is_below = path.is_within(&self.step.path);
        is_below.then(|| path.rebase(&self.step.path, &self.waiting_path()?)).flatten()
    }

    /// True if what waits may contain what another program wrote while it stood at the path: it is, or was, a directory,
    /// into which something may have been put, or it is neither ours nor what was kept.
    fn may_have_theirs(&self) -> bool {
        let may_be_dir = matches!(self.step.act, Act::Supplant { .. } | Act::Place { looks: Some(_), .. });
        let waits = || self.waiting.as_ref().map_or(Ok(None), Place::stat);
        may_be_dir || waits().map_or(true, |there| there.is_some_and(|there| !self.is_known(&there)))
    }

    fn is_known(&self, there: &Meta) -> bool {
        let is_expected = |expect: Stamp| there.stamp().has_same_content(&expect);
        self.is_made_here(there)
            || self.step.expect.is_some_and(is_expected)
            || (self.is_written && self.is_expected_inode(&Some(*there)))
    }

    /// Returns where this step takes an entry at `path`, if the entry goes along.
    fn carried_path(&self, path: &RelPath) -> Option<RelPath> {
        match &self.step.act {
            Act::Relocate { to, .. } => path.rebase(&self.step.path, to),
            Act::Exchange { to, .. } => path.rebase(&self.step.path, to).or_else(|| path.rebase(to, &self.step.path)),
            Act::Place { .. } | Act::Raise { .. } | Act::Supplant { .. } | Act::Take { .. } => None,
            Act::Remove { .. } => None,
            Act::Rewrite { .. } | Act::Move { .. } | Act::Link { .. } => None,
        }
    }

    /// Removes what waits: after undoing, the new entry; after finishing, the old one, whose content is kept. Anything
    /// else was written by another program at the very moment of a rename, and becomes a backup first.
    pub fn remove_waiting(&self, store: &Store) -> Result<()> {
        let Some(waiting) = &self.waiting else { return Ok(()) };
        // Placing an entry at a free path leaves nothing behind.
        let Some(there) = waiting.stat().doing(|| self.doing("examine"))? else { return Ok(()) };
        if matches!(self.step.act, Act::Take { .. }) && !self.is_expected_inode(&Some(there)) {
            // It is the file that was not taken after all, or one that was created under its name since.
            return Ok(());
        }
        if let Act::Raise { new, .. } = &self.step.act
            && is_inode(&Some(there), new)
        {
            // A file that has not landed after all is upper's as before, and may have been written to since.
            return Ok(());
        }
        // A directory may contain other entries that wait, and what another program has put there.
        if there.is_dir() || !self.is_known(&there) {
            self.keep_waiting(store, waiting)?;
        }
        discard_temp(waiting)
    }

    /// Makes a backup of what waits, named after the path it was written to.
    fn keep_waiting(&self, store: &Store, waiting: &Place) -> Result<()> {
        keep_foreign(store, &self.step.path, waiting)
    }

    /// Checks at recovery whether the file of an upper entry is still in upper. If not, it has landed, whatever was done
    /// to it since. After a power cut that proves nothing: the file may be lost. Nor does it where the file was on another
    /// file system, which is not mounted now.
    pub fn look_for_upper(&mut self, store: &Store) -> Result<()> {
        let Act::Raise { new, .. } = &self.step.act else { return Ok(()) };
        let doing = || self.doing("look in upper for");
        let is_there = is_inode(&self.waiting().stat().doing(doing)?, new);
        let dir = Meta::of(self.waiting().dir.as_fd()).doing(doing)?;
        let is_known = store.dirs.has_own_stage() || dir.device == new.device && store.knows_places()?;
        self.has_left_upper = !is_there && is_known && !store.lost_power()?;
        Ok(())
    }

    /// Returns how far the step got, for recovery.
    pub fn progress(&self) -> Result<Progress> {
        let doing = || self.doing("examine");
        let here = self.place.stat().doing(doing)?;
        let as_expected = match (self.step.expect, &here) {
            (Some(_), Some(_)) if self.is_by_inode() => self.is_expected_inode(&here),
            (Some(expect), Some(meta)) => meta.stamp().has_same_content(&expect),
            (None, None) => true,
            _ => false,
        };
        let done = match &self.step.act {
            Act::Place { inode, made, .. } | Act::Supplant { inode, made, .. } => {
                here.is_some_and(|meta| is_inode_made(&meta, *inode, made))
            }
            Act::Take { new, .. } => is_inode(&here, new),
            Act::Raise { new, .. } => is_inode(&here, new) || self.has_left_upper,
            Act::Remove { .. } => here.is_none(),
            Act::Rewrite { old, new, .. } => return self.progress_in_place((*old, *new), &here, as_expected),
            Act::Move { .. } | Act::Relocate { .. } => {
                !self.is_expected_inode(&here) && self.is_expected_inode(&self.stat_other()?)
            }
            Act::Exchange { .. } => self.is_expected_inode(&self.stat_other()?),
            Act::Link { .. } => self.stat_other()?.zip(here).is_some_and(|(of, here)| of.key() == here.key()),
        };
        Ok(match (done, as_expected) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Todo,
            (false, false) => Progress::Foreign,
        })
    }

    /// True if what is expected may be written to, or have names come and go in it, and still be what is expected.
    fn is_by_inode(&self) -> bool {
        matches!(self.step.act, Act::Relocate { .. } | Act::Exchange { .. } | Act::Supplant { .. })
    }

    pub(super) fn is_expected_inode(&self, here: &Option<Meta>) -> bool {
        self.step.expect.is_some_and(|expect| is_inode(here, &expect))
    }

    /// Opens what stands at the path for reading.
    pub(super) fn open(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        self.place.open(flags).map(File::from).doing(|| self.doing("read"))
    }

    fn other(&self) -> &Place {
        self.other.as_ref().expect("a step that names two paths is made with both")
    }

    fn stat_other(&self) -> Result<Option<Meta>> {
        self.other().stat().doing(|| self.doing("examine"))
    }

    pub(super) fn doing(&self, verb: &str) -> String {
        format!("{verb} {}", self.step.path)
    }

    pub(super) fn conflict(&self) -> Error {
        Error::Conflict { path: self.step.path.to_string() }
    }
}

/// The result of undoing an exchange.
enum Back {
    AsItWas,
    /// Another program's entry stands there, and what stood there before waits.
    Foreign,
}

/// How far a journalled step got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Progress {
    Todo,
    Done,
    /// In the middle of a rewrite: the same inode, with neither all of the old content nor of the new. It can be redone.
    Torn,
    /// Something stands there that is neither the old entry nor the new one.
    Foreign,
}

/// Returns notes of the temporary names that may still stand: where they were made, where they are once directories are
/// renamed, and where they are while their directory waits, too. What waits in a directory comes before the directory.
pub(in crate::store) fn sweep_notes(staged: &[Staged]) -> Vec<SweepNote> {
    let mut notes = Vec::new();
    for (index, one) in staged.iter().enumerate().rev() {
        let Some(made) = one.waiting_path() else { continue };
        let of = one.may_have_theirs().then(|| one.step.path.clone());
        let carried = |at: RelPath, later: &Staged| later.carried_path(&at).unwrap_or(at);
        let carried = staged[index + 1..].iter().fold(made.clone(), carried);
        let waits = |at: RelPath, earlier: &Staged| earlier.waiting_path_of(&at).unwrap_or(at);
        let waits = staged[..index].iter().rev().fold(made.clone(), waits);
        let elsewhere = [carried, waits].into_iter().filter(|at| *at != made);
        notes.extend(elsewhere.map(|at| SweepNote { at, of: of.clone() }));
        notes.push(SweepNote { at: made, of });
    }
    notes
}

/// Removes what waits before the landing is recorded, if that needs no note: once its only step is done the landing is
/// never undone, because recovery finds it done, and what it replaced is kept with the intent. Returns false if something
/// may be left, so that notes are needed.
pub(in crate::store) fn sweep_early(staged: &[Staged], store: &Store) -> bool {
    match staged {
        // An entry that never had a temporary name has left none.
        [one] if one.nameless.is_some() => true,
        [one] if matches!(one.step.act, Act::Raise { .. }) && one.step.expect.is_none() => true,
        [one] if matches!(one.step.act, Act::Place { looks: None, .. } | Act::Take { .. } | Act::Raise { .. }) => {
            one.remove_waiting(store).is_ok()
        }
        [one] if matches!(one.step.act, Act::Remove { .. }) => {
            // Another program may have put something into a directory.
            matches!(one.takes_dir(), Ok(false)) && one.remove_waiting(store).is_ok()
        }
        // A rename to a free name leaves nothing that waits.
        [one] => matches!(one.step.act, Act::Relocate { onto: None, .. }),
        [] | [_, _, ..] => false,
    }
}

/// Opens the directory that the last of `staged` to do so puts at `path`, or takes from there.
pub(super) fn own_dir(staged: &[Staged], path: &RelPath) -> Result<Option<OwnedFd>> {
    let found = staged.iter().rev().map(|staged| staged.own_dir(path));
    found.filter_map(Result::transpose).next().transpose()
}

/// Returns where `path` is, or is going to be once `staged` have been applied. Below a directory that is renamed, or that
/// gives its place to something else, that is wherever the directory is.
pub(super) fn place_among(staged: &[Staged], dirs: &mut Dirs, tree: &Tree, path: &RelPath) -> Result<Place> {
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

/// Returns the place of `path` in lower.
pub(super) fn place_below(dirs: &mut Dirs, tree: &Tree, path: &RelPath) -> Result<Place> {
    dirs.place(path, || tree.place(path).doing(|| format!("open the directory of {path}")))
}

/// True if this is the inode that a step has made, even if it was written to since. It was made where it stands, so no
/// overlay file system has given it a new birth time by copying it up.
fn is_inode_made(meta: &Meta, inode: u64, made: &Option<Stamp>) -> bool {
    match made {
        Some(made) if meta.is_dir() => Births::Stay.may_be_one(made.key(), meta.key()),
        Some(made) => Births::Stay.are_one(made, &meta.stamp()),
        None => meta.inode == inode,
    }
}

fn is_inode(meta: &Option<Meta>, expect: &Stamp) -> bool {
    meta.is_some_and(|meta| meta.number() == expect.number())
}

fn is_same_entry(place: &Place, expect: &Stamp) -> std::io::Result<bool> {
    Ok(place.stat()?.is_some_and(|meta| meta.stamp().has_same_content(expect)))
}

pub(super) fn discard_temp(waiting: &Place) -> Result<()> {
    waiting.remove().doing(|| "remove a temporary name".to_owned())
}
