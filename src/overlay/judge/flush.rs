//! Finding who is still writing, and settling what no program writes any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::settle::Settled;
use crate::model::{Reason, RelPath};
use crate::overlay::files::handles::{Access, Handle};
use crate::overlay::review::Reviewed;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{NodeId, Overlay, State};
use crate::protocol::{Action as Done, Outcome, WritingNow};
use crate::store::{UpperId, UpperRow, Writer};
use crate::sys::file::FileKind;
use crate::sys::process;

/// How long to wait for a release that the kernel is about to send.
pub(in crate::overlay) const WAIT_FOR_RELEASES: Duration = Duration::from_secs(1);
/// The same where only most signs say that it will come: a child may have inherited the descriptor.
pub(in crate::overlay) const WAIT_FOR_CLOSE: Duration = Duration::from_millis(100);
/// How long to wait at least for what was stored through mappings: as long as the kernel may take for 100 MiB, if it hands
/// them over page by page.
const WAIT_FOR_STORES: Duration = Duration::from_secs(2);
/// How long to wait for a judging under way if no permission program is asked: as long as a disk may take.
pub(super) const WAIT_FOR_JUDGING: Duration = Duration::from_secs(10);

impl Overlay {
    /// Settles what no program writes any more. Waits up to `wait` for writers and for what is being judged; without it,
    /// only for the latter.
    pub fn flush_all(&self, wait: Option<Duration>) -> Reviewed<Vec<Outcome>> {
        self.take_stores_within(wait.unwrap_or_default().max(WAIT_FOR_STORES));
        self.settle_pending();
        match wait {
            Some(max) => self.wait_while(&mut self.state.lock(), max, State::is_being_written),
            None => self.wait_for_judgings(),
        }
        let state = self.state.lock();
        let writers = state.writers_of_entries();
        let judged: HashSet<&RelPath> = state.judgings.iter().map(|(path, _)| path).collect();
        let is_in_use = |row: &UpperRow| writers.contains_key(&row.id) || judged.contains(row.path());
        let idle: Vec<(UpperId, RelPath)> = state
            .uppers
            .iter()
            .filter(|upper| upper.dirty && !upper.busy && !is_in_use(&upper.row))
            .map(|upper| (upper.row.id, upper.row.path().clone()))
            .collect();
        drop(state);
        let mut outcomes = Vec::new();
        for (id, path) in idle {
            // What cannot land (a full disk, a path that something is mounted on) is held: it must not block the rest.
            let settled = self.settle(id, &Writer::default());
            let settled = settled.or_else(|err| {
                log::warn!("{path} cannot land and is held: {err}");
                self.settle_because(id, &Writer::default(), vec![Reason::Backup])
            });
            let (action, id) = match settled {
                Ok(Settled::Landed) => (Done::Landed, None),
                Ok(Settled::Held(id)) => (Done::Held, Some(id)),
                Ok(Settled::Unchanged | Settled::Postponed) => continue,
                // It stays as it is and the next start holds it. It must not keep a view from ending.
                Err(err) => {
                    log::error!("{path} can neither land nor be held now: {err}");
                    continue;
                }
            };
            outcomes.push(Outcome { id, ..Outcome::new(action, path) });
        }
        self.drop_spent();
        Ok(outcomes)
    }

    /// Notes as written what programs have stored through mappings. Each file that is open for writing may have one, also
    /// one that outlives its descriptor (SPEC §4.1).
    pub fn take_stores(&self) {
        self.take_stores_within(WAIT_FOR_STORES);
    }

    fn take_stores_within(&self, max: Duration) {
        let nodes: Vec<NodeId> = {
            let state = self.state.lock();
            let may_write = state.handles.values().filter(|handle| handle.access == Access::Write);
            may_write.map(|handle| handle.node).collect()
        };
        if !nodes.is_empty() {
            self.tell(|observer| observer.take_stores(&nodes, max));
        }
    }

    /// The processes that have a file open with unjudged writes, or have closed one that is being judged.
    pub fn writers(&self) -> Vec<WritingNow> {
        let unjudged = self.state.lock().unjudged();
        unjudged.into_iter().map(|(path, pid)| WritingNow { path, pid }).collect()
    }

    /// The same, and what could not be judged when its writer was done, with 0 as the process.
    pub fn unjudged(&self) -> Vec<WritingNow> {
        let mut unjudged = self.writers();
        let state = self.state.lock();
        let left = state.uppers.iter().filter(|upper| upper.left).map(|upper| upper.row.path().clone());
        unjudged.extend(left.map(|path| WritingNow { path, pid: 0 }));
        unjudged
    }

    /// Tries once more to judge what could not be judged when its writer was done, as on a full disk.
    fn settle_left(&self) {
        let left: Vec<UpperId> = {
            let state = self.state.lock();
            let left = state.uppers.iter().filter(|upper| upper.left && !upper.busy);
            left.map(|upper| upper.row.id).collect()
        };
        for id in left {
            if let Err(err) = self.settle(id, &Writer::default()) {
                log::warn!("it still cannot be judged: {err}");
            }
        }
    }

    /// Waits for releases under way, and for those that the kernel is about to send because the file's writer has gone.
    pub fn settle_pending(&self) {
        self.settle_left();
        let deadline = Instant::now() + WAIT_FOR_RELEASES;
        let mut state = self.state.lock();
        loop {
            let coming = state.writing().iter().any(|(_, pid)| *pid != 0 && process::name(*pid).is_none());
            if !coming && self.releasing.load(Ordering::SeqCst) == 0 {
                return;
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Waits until releases of the node, or of files in it, have judged what was created or emptied but not written to.
    /// This covers releases under way and those about to be sent. `close(2)` does not wait for them, and their landing
    /// moves the file's ctime and its directory's times: attributes requested after the close are then the final ones.
    ///
    /// If permission programs are asked, nothing waits on a directory: the kernel requests its attributes for every
    /// process that walks through it.
    pub(in crate::overlay) fn wait_for_release(&self, node: impl FnOnce(&State) -> Option<NodeId>) {
        let mut state = self.state.lock();
        if state.closing.is_empty() && state.judged_at_release.is_empty() {
            return;
        }
        let Some(node) = node(&state) else { return };
        let is_dir = || state.nodes.get(node).is_ok_and(|node| node.kind == FileKind::Directory);
        if !self.policy().hooks.is_empty() && is_dir() {
            return;
        }
        while let Some((closing, opener)) = state.closing_at(node) {
            let still_open = MutexGuard::unlocked(&mut state, || process::has_open(opener, closing.0));
            // If that cannot be told, there is no wait.
            if !still_open.unwrap_or(true) {
                self.wait_for_close(&mut state, closing);
            }
            // Asked once for each close: another process may keep it open for as long as it likes.
            state.closing.remove(&closing);
        }
        let max = if self.policy().hooks.is_empty() { WAIT_FOR_JUDGING } else { WAIT_FOR_RELEASES };
        self.wait_while(&mut state, max, |state| state.is_judged_at(node));
    }

    /// True if a request for attributes may have to wait for a release.
    pub fn is_releasing(&self) -> bool {
        let state = self.state.lock();
        !state.closing.is_empty() || !state.judged_at_release.is_empty()
    }

    /// Waits for the release of a node that its opener has closed. One that has not come in time may have been sent all
    /// the same: on a busy machine its reader may get no processor, or wait for `state` while the disk is busy.
    fn wait_for_close(&self, state: &mut MutexGuard<'_, State>, closing: NodeId) {
        let comes = |state: &State| state.closing.contains_key(&closing);
        self.wait_while(state, WAIT_FOR_CLOSE, comes);
        if !comes(state) {
            return;
        }
        // Other processes only: this one has the content open, perhaps under that number, but nothing of the view.
        if !MutexGuard::unlocked(state, || process::others_have_open(closing.0)) {
            self.wait_while(state, WAIT_FOR_RELEASES, comes);
        }
    }

    pub(in crate::overlay) fn wait_while(
        &self,
        state: &mut MutexGuard<'_, State>,
        max: Duration,
        condition: impl Fn(&State) -> bool,
    ) {
        let deadline = Instant::now() + max;
        while condition(state) {
            if self.changed.wait_until(state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Waits for confirms under way: between its landing and its verdict a change is neither held nor decided.
    pub fn wait_for_verdicts(&self) {
        let mut state = self.state.lock();
        let is_due = |state: &State| {
            let is_undecided = |upper: &Upper| upper.busy && upper.row.held.is_none();
            !state.verdicts_due.is_empty() || state.uppers.iter().any(is_undecided)
        };
        self.wait_while(&mut state, WAIT_FOR_RELEASES, is_due);
    }
}

impl State {
    /// A node in `closing` that is `node` or lies in it, and the pid of its opener.
    fn closing_at(&self, node: NodeId) -> Option<(NodeId, u32)> {
        let concerned = self.closing.iter().find(|(closing, _)| self.concerns(**closing, node));
        concerned.map(|(closing, opener)| (*closing, *opener))
    }

    fn is_judged_at(&self, node: NodeId) -> bool {
        self.judged_at_release.iter().any(|judged| self.concerns(*judged, node))
    }

    /// True if a change of `changed` shows in the attributes of `node`.
    fn concerns(&self, changed: NodeId, node: NodeId) -> bool {
        let names =
            || self.nodes.get(changed).is_ok_and(|changed| changed.names.iter().any(|name| name.parent == node));
        changed == node || names()
    }

    /// Paths with unjudged writes, and the process that opened each.
    pub(super) fn writing(&self) -> Vec<(RelPath, u32)> {
        let path = |handle: &Handle| Some((self.nodes.path(handle.node).ok()?, handle.opener.pid));
        let mut writing: Vec<(RelPath, u32)> = self.unjudged_writes().filter_map(|(_, handle)| path(handle)).collect();
        writing.sort();
        writing.dedup();
        writing
    }

    /// The same, and what is being judged.
    fn unjudged(&self) -> Vec<(RelPath, u32)> {
        let mut unjudged = self.writing();
        unjudged.extend(self.judgings.iter().cloned());
        unjudged.sort();
        unjudged.dedup();
        unjudged
    }

    fn is_being_written(&self) -> bool {
        !self.judgings.is_empty() || self.unjudged_writes().next().is_some()
    }

    /// Entries with unjudged writes, and the handle of each. What was deleted or discarded since is never judged.
    fn unjudged_writes(&self) -> impl Iterator<Item = (UpperId, &Handle)> {
        let unjudged = self.handles.values().filter(|handle| handle.is_unjudged());
        unjudged.filter_map(|handle| Some((self.written_entry(handle)?, &**handle)))
    }

    /// Entries with unjudged writes, through whichever name of a file with several, and the process that opened each.
    pub(in crate::overlay) fn writers_of_entries(&self) -> HashMap<UpperId, u32> {
        self.unjudged_writes().map(|(id, handle)| (id, handle.opener.pid)).collect()
    }

    /// The entry that a handle writes to. Until its first write is done the handle may still have lower's file open.
    fn written_entry(&self, handle: &Handle) -> Option<UpperId> {
        let by_name = || self.uppers.at(&self.nodes.path(handle.node).ok()?);
        handle.judged()?.upper().or_else(by_name)
    }

    /// The process that is writing to what the view has at a path, if there is one.
    pub(in crate::overlay) fn writer_of(&self, path: &RelPath) -> Option<u32> {
        let at = (self.nodes.at(path), self.uppers.at(path));
        let is_there = |handle: &&Arc<Handle>| {
            Some(handle.node) == at.0 || at.1.is_some_and(|id| self.written_entry(handle) == Some(id))
        };
        self.handles.values().filter(is_there).find(|handle| handle.is_unjudged()).map(|handle| handle.opener.pid)
    }
}
