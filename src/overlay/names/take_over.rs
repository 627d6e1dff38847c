//! Saving by a temporary file: a file that came under another name in this session, and is renamed over a file of the
//! project as a small edit of that, lands by taking its place below. It is not copied once more, as
//! [`super::rename_over`] does with all else.

use std::os::fd::AsFd;

use super::rename::End;
use super::rename_over::is_on_disk;
use crate::model::RelPath;
use crate::overlay::judge::claim::Job;
use crate::overlay::judge::compare::{Comparison, Old};
use crate::overlay::judge::settle::Settled;
use crate::overlay::judge::side::Side;
use crate::overlay::state::lookup::Origin;
use crate::overlay::{Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{self, Base, Durability, Epilogue, Landing, NewContent, UpperRow, What, Writer};
use crate::sys::file::{FileKind, Meta};

/// Larger files are judged once, as in any other rename: finding out twice that one must be held would take too long.
const BYTES_MAX: u64 = 256 << 10;

impl Overlay {
    /// Returns true if it has landed. Otherwise all is as it was, and the caller judges it as any other rename, which
    /// finds whatever was in the way again; `ESTALE` if the rename must look again.
    pub(super) fn take_over(&self, from: &End, to: &End, meta: &Meta, by: &Writer) -> Result<bool> {
        let Some(target) = self.may_take_over(from, to, meta) else { return Ok(false) };
        self.check_may_change(0)?;
        let row = UpperRow::new(self.store.reserve_upper(), to.path.clone(), What::File, Base::of_name(target));
        let along = Some((from.path.clone(), meta.stamp()));
        let job = Job { takes_place: true, ..Job::to_come(row, along) };
        let Some(mut comparison) = self.compare_taken(&job, &from.path, by)? else { return Ok(false) };
        match self.land_as(&job, &mut comparison, by, |state| drop(state.renamed(from, to))) {
            Ok(settled) => {
                self.spend(comparison);
                Ok(matches!(settled, Settled::Landed))
            }
            // It is done, and the journal has it: the next start finishes it.
            Err(err @ Error::Store(store::Error::Unrecorded(_))) => Err(err),
            // Another program changes one of them below, or a mount is between the two, or the old content cannot be
            // kept.
            Err(err) => {
                if let Error::Internal(_) = err {
                    log::error!("let {} take the place of {}: {err}", from.path, to.path);
                }
                self.not_taken(&from.path, meta, &comparison.new).map(|()| false)
            }
        }
    }

    /// `ESTALE` if the two had changed places and changed back: what was looked at before holds no longer.
    ///
    /// A program that replaced or removed the target at that very moment may have hit the source, which stood there. It
    /// meant the old target, so what was to be saved is made anew under its own name.
    fn not_taken(&self, source: &RelPath, then: &Meta, new: &Side) -> Result<()> {
        let now = self.meta_below(source)?;
        if now.is_some_and(|now| now.stamp() == then.stamp()) {
            return Ok(());
        }
        if now.is_none() {
            self.make_anew(source, new)?;
        }
        self.state.lock().epoch += 1;
        Err(Error::Errno(libc::ESTALE))
    }

    fn make_anew(&self, source: &RelPath, new: &Side) -> Result<()> {
        let (Some(like), Some(meta)) = (&new.file, new.meta) else {
            return Err(Error::Internal("what was renamed is not open"));
        };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.place(&self.lower, source, None, &NewContent::Bytes { bytes: new.text(), like, meta })?;
        landing.promise(Epilogue::default())?.apply()?.finish()?;
        Ok(())
    }

    /// What the source would take the place of. `None` if more than the two files matters.
    fn may_take_over<'a>(&self, from: &End, to: &'a End, meta: &Meta) -> Option<&'a Meta> {
        let Origin::Lower(target) = &to.origin else { return None };
        let is_plain = |meta: &Meta| meta.kind == FileKind::Regular && meta.links == 1 && !meta.is_mount_root;
        let is_auto = from.action == Action::Auto && to.action == Action::Auto;
        let is_asked = !self.policy().hooks.is_empty();
        let is_small = meta.size.max(target.size) <= BYTES_MAX;
        let may = is_plain(meta) && is_plain(target) && is_small && is_auto && !is_asked && self.is_fresh(&from.path);
        may.then_some(target)
    }

    /// Compares the two as they are now. `None` if anything speaks against landing.
    fn compare_taken(&self, job: &Job, source: &RelPath, by: &Writer) -> Result<Option<Comparison>> {
        let (new, present) = (self.present_side(source)?, self.present_side(job.row.path())?);
        let is_judged = job.takes_along.as_ref().zip(new.meta).is_some_and(|((_, stamp), now)| *stamp == now.stamp());
        // The landing of a synced source would have to be durable; that is left to the landing of a copy.
        let is_synced = new.file.as_ref().is_none_or(|file| is_on_disk(file.as_fd()));
        if !is_judged || is_synced || new.same_as(&present)? {
            return Ok(None);
        }
        let Old::Known(old) = self.old_side(job, &present)? else { return Ok(None) };
        let comparison = self.compare(job, by, *old, new, present)?;
        let lands = comparison.reasons.is_empty()
            && !self.is_stale(job, &comparison, by)?
            && !self.count_in_burst(&comparison, self.tree_or_itself(by));
        Ok(lands.then_some(comparison))
    }
}

impl State {
    /// True if no change of either stands in the view: both names show what lower has.
    pub(in crate::overlay) fn are_below(&self, job: &Job) -> bool {
        let source = job.takes_along.iter().map(|(source, _)| source);
        job.row.names.iter().chain(source).all(|path| self.uppers.at(path).is_none())
    }
}
