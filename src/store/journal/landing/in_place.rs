//! Writing in place: [`Act::Rewrite`], for an inode with several names, all of which are to show the new content.
//!
//! No rename makes the content new at once. Both contents are kept before the first byte is written, so that a
//! half-written file can be finished or undone. Others are kept from opening the file meanwhile. If another program has
//! it open already, each piece is checked before it is overwritten: what the program has written by then stays.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::os::fd::AsFd;

use super::foreign::keep_foreign_file;
use super::staged::{Progress, Staged};
use crate::model::Digest;
use crate::store::journal::intent::{Act, Looks};
use crate::store::{Context, Result, Store};
use crate::sys::file::{self, Meta, Overwritten};
use crate::sys::{OFlags, lease};

/// The files that a step has open to write in place.
#[derive(Default)]
pub(super) struct InPlace {
    /// The file whose attributes are copied; `None` at recovery, which has only the intent.
    new: Option<File>,
    file: OnceCell<File>,
    /// True if nothing else can open the file.
    is_alone: Cell<bool>,
    /// How far the file was written when it turned out that another program has written to it, too.
    crossed_at: Cell<Option<u64>>,
}

impl Staged {
    /// Opens the target and duplicates `new`, so that after the promise only a failing disk is in the way.
    pub fn open_to_rewrite(&mut self, new: &File) -> Result<()> {
        self.in_place.new = Some(new.try_clone().doing(|| "duplicate a descriptor".to_owned())?);
        self.written().map(drop)
    }

    /// The file that is written to.
    fn written(&self) -> Result<&File> {
        if self.in_place.file.get().is_none() {
            let opened = self.place.open(OFlags::RDWR | OFlags::NONBLOCK).doing(|| self.doing("write"))?;
            // Still unset: the cell is not shared between threads.
            return Ok(self.in_place.file.get_or_init(|| File::from(opened)));
        }
        Ok(self.in_place.file.get().expect("just looked at"))
    }

    /// Returns the file that is written in place, to be synced.
    pub fn rewritten(&self) -> Result<Option<File>> {
        let Act::Rewrite { .. } = self.step.act else { return Ok(None) };
        self.written()?.try_clone().map(Some).doing(|| "duplicate a descriptor".to_owned())
    }

    /// From here on no one else can open the target, if it is open here and a lease can be had.
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

    /// Checks that what is to be rewritten, or is replaced and was kept, is unchanged. It has not been renamed by us yet,
    /// so its ctime also reveals a new mode and a writer that has put the times back. A file whose ctime moves when we
    /// read it is the exception.
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

    /// Repeats a torn rewrite, which does not find what was expected before the first attempt.
    pub fn write_again(&self, store: &Store) -> Result<()> {
        let Act::Rewrite { new, looks, .. } = &self.step.act else { return Ok(()) };
        self.write_over(store, *new, looks.map(|(old, new)| (new, old)))
    }

    /// Overwrites whatever is in the inode, which need not be what was expected before the first write. `looks` are the
    /// looks that the inode gets, and those that they replace.
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

    /// Nothing is lost of the old content or the new, however much of each is in the file. If another program has written
    /// something else to it, the file becomes a backup.
    fn keep_unless_ours(&self, store: &Store, file: &File) -> Result<()> {
        let Act::Rewrite { old, new, .. } = &self.step.act else { return Ok(()) };
        let doing = || self.doing("look for what somebody wrote at");
        // Damage to the content that is not written is no reason not to write the other.
        let [old, new] = [old, new].map(|digest| store.unchecked_content_file(*digest));
        let (Some(old), Some(new)) = (old?, new?) else { return Err(self.conflict()) };
        match file::is_mixture(file, &old, &new).doing(doing)? {
            true => Ok(()),
            false => keep_foreign_file(store, &self.step.path, file, &Meta::of(file.as_fd()).doing(doing)?),
        }
    }

    /// Syncs what is written in place. The intent goes only after that, because it alone can tell a half-written file
    /// from another program's edit.
    pub fn sync_rewritten(&self) -> Result<()> {
        let doing = || self.doing("sync");
        let is_rewrite = matches!(self.step.act, Act::Rewrite { .. });
        if !is_rewrite || !self.is_expected_inode(&self.place.stat().doing(doing)?) {
            return Ok(());
        }
        self.written()?.sync_all().doing(doing)
    }

    /// The bytes decide: a disk that lost power may have them without their size and times, or the reverse.
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
