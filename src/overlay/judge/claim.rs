//! The claim on an upper entry: until it is dropped, no other thread judges, renames or removes the entry.
//!
//! No lock is held while contents are read and compared. The judging thread works on a copy, the [`Job`], and acts only
//! if the entry has not been written to, renamed or removed since the copy was made.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ask::Said;
use super::deny::Denial;
use super::settle::Occasion;
use crate::model::{Reason, RelPath, Stamp};
use crate::overlay::files::handles::{Handle, OpenFile};
use crate::overlay::{Error, Overlay, Result, State};
use crate::store::{UpperId, UpperRow};

/// An entry taken for judging. No other thread touches it until the job is given back.
pub(in crate::overlay) struct Job {
    pub row: UpperRow,
    pub open: Option<Arc<OpenFile>>,
    pub version: u64,
    /// Whether the content was rewritten, not only appended to, since it was judged before.
    pub rewritten: bool,
    pub synced: bool,
    pub moved_on: bool,
    pub takes_along: Option<(RelPath, Stamp)>,
    /// What lands is itself the file that it takes along: no upper entry has its content.
    pub takes_place: bool,
    /// Reasons to hold it that its content does not show: the occasion's, and those the entry already had.
    pub because: Vec<Reason>,
    /// It was judged a moment ago and did not land, because of a change below at that very moment.
    pub is_crossed: bool,
    pub denial: Denial,
    /// The handle it was written through, if it is judged at a close or at the last release.
    pub through: Option<Arc<Handle>>,
    /// What permission programs have said of it already.
    pub said: Option<Said>,
}

impl Job {
    /// The job for a row that does not exist yet, to ask what its verdict would be.
    pub fn to_come(row: UpperRow, takes_along: Option<(RelPath, Stamp)>) -> Self {
        let Occasion { because, denial, through, said } = Occasion::told();
        Self {
            row,
            open: None,
            version: 0,
            rewritten: false,
            synced: false,
            moved_on: false,
            takes_along,
            takes_place: false,
            because,
            is_crossed: false,
            denial,
            through,
            said,
        }
    }
}

/// An entry that is being judged. It is given back however the judging ends, because other threads wait for it.
pub(in crate::overlay) struct Claim<'a> {
    pub overlay: &'a Overlay,
    pub id: UpperId,
    pub judged: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.overlay.state.lock();
        if let Some(upper) = state.uppers.get_mut(self.id) {
            upper.busy = false;
            // After an error it is as unjudged as before.
            upper.dirty |= !self.judged;
        }
        self.overlay.changed.notify_all();
    }
}

impl Overlay {
    /// Waits until no other thread judges the entry, and takes it. `None` if there is nothing left to judge.
    pub(super) fn take_job(&self, id: UpperId, occasion: &Occasion, is_crossed: bool) -> Option<Job> {
        let mut state = self.state.lock();
        while state.uppers.get(id)?.busy {
            state.uppers.get_mut(id)?.awaited += 1;
            self.changed.wait(&mut state);
            let upper = state.uppers.get_mut(id)?;
            // The entry may have gone and come back meanwhile, with a count of zero.
            upper.awaited = upper.awaited.saturating_sub(1);
        }
        if state.uppers.get(id)?.row.what.is_structure() {
            return None;
        }
        let open = state.nodes.open_of(id).cloned();
        let upper = state.uppers.get_mut(id)?;
        upper.busy = true;
        upper.dirty = false;
        upper.left = false;
        Some(Job {
            row: upper.row.clone(),
            rewritten: open.as_ref().is_some_and(|open| open.begin_judging()),
            version: open.as_ref().map_or(0, |open| open.version()),
            open,
            synced: upper.synced,
            moved_on: upper.moved_on,
            takes_along: upper.takes_along.clone(),
            takes_place: false,
            because: upper.because.iter().chain(&occasion.because).copied().collect(),
            is_crossed,
            denial: occasion.denial,
            through: occasion.through.clone(),
            said: occasion.said.clone(),
        })
    }

    /// Waits until the entry is not being judged and keeps it so until the claim is dropped; `ESTALE` if it is gone.
    pub(in crate::overlay) fn claim(&self, id: UpperId) -> Result<(UpperRow, Claim<'_>)> {
        self.claim_if_there(id).ok_or(Error::Errno(libc::ESTALE))
    }

    /// The same; `None` if it is gone: it landed meanwhile, or was decided about, dropped or renamed.
    pub(in crate::overlay) fn claim_if_there(&self, id: UpperId) -> Option<(UpperRow, Claim<'_>)> {
        let mut state = self.state.lock();
        while state.uppers.get(id)?.busy {
            self.changed.wait(&mut state);
        }
        let upper = state.uppers.get_mut(id)?;
        upper.busy = true;
        Some((upper.row.clone(), Claim { overlay: self, id, judged: true }))
    }

    /// Claims those that are there in one order and each once, so that two requests for the same entries never wait for
    /// each other, nor one for itself.
    pub(in crate::overlay) fn claim_all(&self, ids: &[UpperId]) -> Vec<Claim<'_>> {
        let ids: BTreeSet<UpperId> = ids.iter().copied().collect();
        ids.into_iter().filter_map(|id| self.claim_if_there(id)).map(|(_, claim)| claim).collect()
    }

    pub(super) fn is_disturbed(&self, job: &Job) -> bool {
        !self.is_untouched(&self.state.lock(), job)
    }

    pub(super) fn is_renamed(&self, job: &Job) -> bool {
        self.state.lock().uppers.get(job.row.id).is_some_and(|upper| upper.row.names != job.row.names)
    }

    /// True if the entry has not been written to, renamed or removed since the job was taken.
    pub(super) fn is_untouched(&self, state: &State, job: &Job) -> bool {
        if job.takes_place {
            return state.are_below(job);
        }
        let same_names = state.uppers.get(job.row.id).is_some_and(|upper| upper.row.names == job.row.names);
        same_names && state.is_still(job.row.id, job.open.as_ref(), job.version)
    }
}

impl State {
    /// True if the entry has not been written to since it was taken, neither through the file that was open then nor
    /// through one that was opened since.
    pub(in crate::overlay) fn is_still(&self, id: UpperId, open: Option<&Arc<OpenFile>>, version: u64) -> bool {
        let now = self.nodes.open_of(id).filter(|now| open.is_none_or(|then| !Arc::ptr_eq(then, now)));
        open.is_none_or(|open| open.is_still(version)) && now.is_none_or(|now| now.is_still(0))
    }
}
