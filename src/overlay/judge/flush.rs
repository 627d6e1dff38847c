//! Who is still writing, and settling what nobody writes any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::settle::Settled;
use crate::model::{Reason, RelPath};
use crate::overlay::files::handles::Handle;
use crate::overlay::review::Reviewed;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{NodeId, Overlay, State};
use crate::protocol::{Action as Done, Outcome, WritingNow};
use crate::store::{UpperId, UpperRow, Writer};
use crate::sys::file::FileKind;
use crate::sys::process;

/// How long a release that the kernel is about to send is waited for.
pub(in crate::overlay) const WAIT_FOR_RELEASES: Duration = Duration::from_secs(1);
/// The same where only most signs say that it will: a child may have inherited the descriptor.
pub(in crate::overlay) const WAIT_FOR_CLOSE: Duration = Duration::from_millis(100);
/// How long a judging that is under way is waited for where no program is to be asked: as long as a disk may take.
pub(super) const WAIT_FOR_JUDGING: Duration = Duration::from_secs(10);

impl Overlay {
    /// Settles what nobody writes any more, waiting for writers and what is being judged up to `wait`; without it, for what is
    /// being judged alone.
    pub fn flush_all(&self, wait: Option<Duration>) -> Reviewed<Vec<Outcome>> {
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
            // What cannot land (a full disk, a path that something is mounted on) is held: it blocks nobody else.
            let settled = self.settle(id, &Writer::default());
            let settled = settled.or_else(|err| {
                log::warn!("{path} cannot land and is held: {err}");
                self.settle_because(id, &Writer::default(), vec![Reason::Backup])
            });
            let (action, id) = match settled {
                Ok(Settled::Landed) => (Done::Landed, None),
                Ok(Settled::Held(id)) => (Done::Held, Some(id)),
                Ok(Settled::Unchanged | Settled::Postponed) => continue,
                // It is kept as it is, and the next start holds it: no reason to keep a view from ending.
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

    /// Who has a file open that was written and not judged, or has closed one that is being judged.
    pub fn writers(&self) -> Vec<WritingNow> {
        let unjudged = self.state.lock().unjudged();
        unjudged.into_iter().map(|(path, pid)| WritingNow { path, pid }).collect()
    }

    /// The same, and what could not be judged when its writer was done, with 0 for the process.
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

    /// Waits for releases that are under way, and for those that the kernel is about to send: of files whose writer
    /// has gone.
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

    /// Waits until releases of the node, or of files in it, that are under way or about to be sent have judged what was
    /// made or emptied and not written to. `close(2)` does not wait for them, and a landing moves the file's ctime and
    /// its directory's times: whoever asks for attributes after the close gets those that stay.
    ///
    /// Of a directory nobody waits where permission programs are asked: the kernel wants its attributes from everybody who
    /// walks through it.
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
            // Where nobody can tell, nobody waits.
            if !still_open.unwrap_or(true) {
                self.wait_for_close(&mut state, closing);
            }
            // Asked once a close: another process may have it open for as long as it likes.
            state.closing.remove(&closing);
        }
        let max = if self.policy().hooks.is_empty() { WAIT_FOR_JUDGING } else { WAIT_FOR_RELEASES };
        self.wait_while(&mut state, max, |state| state.is_judged_at(node));
    }

    /// Whether who asks for attributes may have to wait for a release.
    pub fn is_releasing(&self) -> bool {
        let state = self.state.lock();
        !state.closing.is_empty() || !state.judged_at_release.is_empty()
    }

    /// Waits for the release of a node that its opener has closed. One that has not come in time may have been sent all the
    /// same: on a busy machine whoever has read it may be given no processor, or wait for a state that the disk keeps locked.
    fn wait_for_close(&self, state: &mut MutexGuard<'_, State>, closing: NodeId) {
        let comes = |state: &State| state.closing.contains_key(&closing);
        self.wait_while(state, WAIT_FOR_CLOSE, comes);
        if !comes(state) {
            return;
        }
        // This process has its content open, perhaps under that number, and nothing of the view.
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
    /// A node in `closing` that is `node` or lies in it, and who opened it.
    fn closing_at(&self, node: NodeId) -> Option<(NodeId, u32)> {
        let concerned = self.closing.iter().find(|(closing, _)| self.concerns(**closing, node));
        concerned.map(|(closing, opener)| (*closing, *opener))
    }

    fn is_judged_at(&self, node: NodeId) -> bool {
        self.judged_at_release.iter().any(|judged| self.concerns(*judged, node))
    }

    /// A change of `changed` shows in the attributes of `node`.
    fn concerns(&self, changed: NodeId, node: NodeId) -> bool {
        let names =
            || self.nodes.get(changed).is_ok_and(|changed| changed.names.iter().any(|name| name.parent == node));
        changed == node || names()
    }

    /// Paths written and not judged, and the process that opened each.
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

    /// Entries that were written and not judged, and through what. What was deleted or discarded since nobody is going to judge.
    fn unjudged_writes(&self) -> impl Iterator<Item = (UpperId, &Handle)> {
        let unjudged = self.handles.values().filter(|handle| handle.is_unjudged());
        unjudged.filter_map(|handle| Some((self.written_entry(handle)?, &**handle)))
    }

    /// Entries that are being written, by whichever name of a file that has several, with the process that opened each.
    pub(in crate::overlay) fn writers_of_entries(&self) -> HashMap<UpperId, u32> {
        self.unjudged_writes().map(|(id, handle)| (id, handle.opener.pid)).collect()
    }

    /// Before its first write is done a handle may still have lower's file open.
    fn written_entry(&self, handle: &Handle) -> Option<UpperId> {
        let by_name = || self.uppers.at(&self.nodes.path(handle.node).ok()?);
        handle.judged()?.upper().or_else(by_name)
    }

    /// Who is writing to what the view has at a path, if anybody is.
    pub(in crate::overlay) fn writer_of(&self, path: &RelPath) -> Option<u32> {
        let at = (self.nodes.at(path), self.uppers.at(path));
        let is_there = |handle: &&Arc<Handle>| {
            Some(handle.node) == at.0 || at.1.is_some_and(|id| self.written_entry(handle) == Some(id))
        };
        self.handles.values().filter(is_there).find(|handle| handle.is_unjudged()).map(|handle| handle.opener.pid)
    }
}
