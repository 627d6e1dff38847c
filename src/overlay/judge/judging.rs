//! What is being judged at this moment, and waiting for it. A close that waits for a permission program's answer is no
//! open file any more and has not landed yet, but ending a view, or asking what became of a write, must not miss it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::flush::WAIT_FOR_JUDGING;
use crate::model::RelPath;
use crate::overlay::{Overlay, State};
use crate::store::UpperId;

/// Judgings under way, by number: a thread that waits for them waits only for those it found.
#[derive(Default)]
pub(in crate::overlay) struct Judgings {
    next: u64,
    /// The path that is judged, and the process that changed it.
    under_way: BTreeMap<u64, (RelPath, u32)>,
    /// The view is ended by force: waiting for judgings stops.
    left: bool,
}

impl Judgings {
    fn begin(&mut self, path: RelPath, pid: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, (path, pid));
        number
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(RelPath, u32)> {
        self.under_way.values()
    }
}

impl Overlay {
    /// Counts what a process did to a path as being judged until the guard is dropped.
    pub(super) fn judging(&self, path: RelPath, pid: u32) -> impl Drop + '_ {
        self.judging_in(&mut self.state.lock(), path, pid)
    }

    /// The same for an upper entry; `None` if it is gone, which leaves nothing to judge.
    pub(in crate::overlay) fn judging_upper(&self, id: UpperId, pid: u32) -> Option<impl Drop + '_> {
        let mut state = self.state.lock();
        let path = state.uppers.get(id)?.row.path().clone();
        Some(self.judging_in(&mut state, path, pid))
    }

    fn judging_in(&self, state: &mut State, path: RelPath, pid: u32) -> impl Drop + use<'_> {
        struct UnderWay<'a> {
            overlay: &'a Overlay,
            number: u64,
        }
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.overlay.state.lock().judgings.under_way.remove(&self.number);
                self.overlay.changed.notify_all();
            }
        }
        UnderWay { overlay: self, number: state.judgings.begin(path, pid) }
    }

    /// Waits for what is being judged by now and for nothing that begins later, up to the time that permission programs
    /// and a disk may take.
    pub fn wait_for_judgings(&self) {
        let mut state = self.state.lock();
        let found = state.judgings.next;
        let goes_on = |state: &State| state.judgings.under_way.range(..found).next().is_some();
        self.wait_while(&mut state, self.judging_max(), |state| !state.judgings.left && goes_on(state));
    }

    /// Ends these waits from here on: what is being judged when the view ends is held by the next start, as interrupted.
    pub fn leave_judgings(&self) {
        self.state.lock().judgings.left = true;
        self.changed.notify_all();
    }

    /// Programs are asked one after the other, each with its own time limit.
    fn judging_max(&self) -> Duration {
        let policy = self.policy();
        let programs = u32::try_from(policy.hooks.len()).unwrap_or(u32::MAX);
        policy.settings.hook_timeout.saturating_mul(programs).saturating_add(WAIT_FOR_JUDGING)
    }
}
