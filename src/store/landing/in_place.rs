//! Writing in place: [`Act::Rewrite`], for an inode with several names, all of which are to show the new content.
//!
//! No rename makes it new at once. Both contents are kept before the first byte is written, so that half of it can be
//! finished or undone. Others are kept from opening the file meanwhile. Where somebody has it open already, each piece is
//! looked at before it is written over: what he has written by then is found, and stays.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::os::fd::AsFd;

use super::foreign::keep_foreign_file;
use super::staged::{Progress, Staged};
use crate::model::Digest;
use crate::store::journal::{Act, Looks};
use crate::store::{Context, Result, Store};
use crate::sys::file::{self, Meta, Overwritten};
use crate::sys::{OFlags, lease};

/// What a step has open to write in place.
#[derive(Default)]
pub(super) struct InPlace {
    /// Attributes are copied from here; none at recovery, which has the intent alone.
    new: Option<File>,
    file: OnceCell<File>,
    /// Whether nobody else can open the file.
    is_alone: Cell<bool>,
    /// How far it was written when it turned out that somebody else has written to it.
    crossed_at: Cell<Option<u64>>,
}

impl Staged {
    /// Opens what is written and what is written to: after the promise only the disk is to be in the way.
    pub fn open_to_rewrite(&mut self, new: &File) -> Result<()> {
        self.in_place.new = Some(new.try_clone().doing(|| "duplicate a descriptor".to_owned())?);
        self.written().map(drop)
    }

    /// What is written to.
    fn written(&self) -> Result<&File> {
        if self.in_place.file.get().is_none() {
            let opened = self.place.open(OFlags::RDWR | OFlags::NONBLOCK).doing(|| self.doing("write"))?;
            // Nobody else has set it meanwhile.
            return Ok(self.in_place.file.get_or_init(|| File::from(opened)));
        }
        Ok(self.in_place.file.get().expect("just looked at"))
    }

    /// What is written, to be synced.
    pub fn rewritten(&self) -> Result<Option<File>> {
        let Act::Rewrite { .. } = self.step.act else { return Ok(None) };
        self.written()?.try_clone().map(Some).doing(|| "duplicate a descriptor".to_owned())
    }

    /// From here on, if it can be had, nobody else opens what is written in place and was opened for that.
    pub fn keep_others_out(&self) {
        if let Some(file) = self.in_place.file.get() {
            self.in_place.is_alone.set(lease::keep_others_out(file));
        }
    }

    pub fn let_others_in(&self) {
        if let (true, Some(file)) = (self.in_place.is_alone.take(), self.in_place.file.get()) {
            lease::give_back(file);
        }
    }

    /// What is to be written in place, or was kept for what replaces it, has not been renamed by us yet, so that its ctime
    /// tells also of who has written and put times back, and of a new mode. But where reading it has moved that.
    pub fn check_unwritten(&self) -> Result<()> {
        let doing = || self.doing("check");
        let is_expected = |meta: Option<Meta>| meta.map(|meta| meta.stamp()) == self.step.expect;
        let is_rewrite = matches!(self.step.act, Act::Rewrite { .. });
        let is_kept_as_expected = || -> Result<bool> {
            let there = self.place.stat().doing(doing)?;
            Ok(is_expected(there) || (!is_rewrite && there.as_ref().is_some_and(file::is_kept_from_owner)))
        };
        let is_unwritten = (!is_rewrite && !self.is_kept || is_kept_as_expected()?)
            && (!is_rewrite || is_expected(Some(Meta::of(self.written()?.as_fd()).doing(doing)?)));
        if is_unwritten { Ok(()) } else { Err(self.conflict()) }
    }

    pub(super) fn rewrite(
        &self,
        store: &Store,
        (old, new): (Digest, Digest),
        looks: Option<(Looks, Looks)>,
    ) -> Result<()> {
        let doing = || self.doing("write");
        let kept = self.kept(store, new)?;
        let was = if self.in_place.is_alone.get() { None } else { Some(self.kept(store, old)?) };
        self.check_expected()?;
        self.begun.set(true);
        let written = Cell::default();
        let file = self.written()?;
        match file::overwrite(&kept, &Overwritten { file, was: was.as_ref(), written: &written }) {
            Err(cause) if file::has_changed_meanwhile(&cause) => {
                self.in_place.crossed_at.set(Some(written.get()));
                return Err(self.conflict());
            }
            other => other.doing(doing)?,
        }
        let Some(like) = &self.in_place.new else { return self.give_looks(looks.map(|(old, new)| (new, old))) };
        let own = looks.map(|(old, new)| new.unchanged_since(&old)).unwrap_or_default();
        let meta = Meta::of(like.as_fd()).doing(doing)?;
        file::copy_looks_but(&own, like.as_fd(), &meta, file.as_fd()).doing(doing)?;
        file::give_times(file.as_fd(), meta.atime, meta.mtime).doing(doing)
    }

    pub(super) fn undo_rewrite(
        &self,
        store: &Store,
        (old, new): (Digest, Digest),
        looks: Option<(Looks, Looks)>,
    ) -> Result<()> {
        match self.in_place.crossed_at.get() {
            Some(at) => {
                let (from, was) = (self.kept(store, new)?, self.kept(store, old)?);
                let to = Overwritten { file: self.written()?, was: None, written: &Cell::new(at) };
                file::take_back(&from, &to, &was).doing(|| self.doing("undo"))
            }
            None => self.write_over(store, old, looks),
        }
    }

    /// Does a torn rewrite once more. What it finds is not what it expected before the first time.
    pub fn write_again(&self, store: &Store) -> Result<()> {
        let Act::Rewrite { new, looks, .. } = &self.step.act else { return Ok(()) };
        self.write_over(store, *new, looks.map(|(old, new)| (new, old)))
    }

    /// What is in the inode need not be what was expected before it was first written to. `looks` are those that it gets, and
    /// those that come instead of them.
    fn write_over(&self, store: &Store, digest: Digest, looks: Option<(Looks, Looks)>) -> Result<()> {
        let file = self.written()?;
        self.keep_others_out();
        let written = self.keep_unless_ours(store, file).and_then(|()| {
            let to = Overwritten { file, was: None, written: &Cell::default() };
            file::overwrite(&self.kept(store, digest)?, &to).doing(|| self.doing("write"))
        });
        self.let_others_in();
        written?;
        self.give_looks(looks)
    }

    fn give_looks(&self, looks: Option<(Looks, Looks)>) -> Result<()> {
        let Some((looks, instead)) = looks else { return Ok(()) };
        looks.give_but(&looks.unchanged_since(&instead), self.written()?).doing(|| self.doing("write"))
    }

    fn kept(&self, store: &Store, digest: Digest) -> Result<File> {
        let kept = store.content_file(digest)?.ok_or(std::io::ErrorKind::NotFound);
        kept.map_err(Into::into).doing(|| self.doing("write"))
    }

    /// Of the old content and the new nothing is lost, however much of each is there. What somebody wrote beside them becomes
    /// a backup.
    fn keep_unless_ours(&self, store: &Store, file: &File) -> Result<()> {
        let Act::Rewrite { old, new, .. } = &self.step.act else { return Ok(()) };
        let doing = || self.doing("look for what somebody wrote at");
        // Damage of the one that is not written is no reason not to write the other.
        let [old, new] = [old, new].map(|digest| store.unchecked_content_file(*digest));
        let (Some(old), Some(new)) = (old?, new?) else { return Err(self.conflict()) };
        match file::is_mixture(file, &old, &new).doing(doing)? {
            true => Ok(()),
            false => keep_foreign_file(store, &self.step.path, file, &Meta::of(file.as_fd()).doing(doing)?),
        }
    }

    /// What is written in place is on disk before its intent goes, which alone can tell half of it from somebody's edit.
    pub fn sync_rewritten(&self) -> Result<()> {
        let doing = || self.doing("sync");
        let is_rewrite = matches!(self.step.act, Act::Rewrite { .. });
        if !is_rewrite || !self.is_expected_inode(&self.place.stat().doing(doing)?) {
            return Ok(());
        }
        self.written()?.sync_all().doing(doing)
    }

    /// The bytes decide: a disk that lost its power may have them without the size and times that they came with, or these
    /// without them.
    pub(super) fn progress_in_place(
        &self,
        (old, new): (Digest, Digest),
        here: &Option<Meta>,
        as_expected: bool,
    ) -> Result<Progress> {
        if !self.is_expected_inode(here) {
            return Ok(Progress::Foreign);
        }
        let found = file::digest(&self.open()?).doing(|| self.doing("read"))?;
        Ok(match (found == new, found == old && as_expected) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Todo,
            (false, false) => Progress::Torn,
        })
    }
}
