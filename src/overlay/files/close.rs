//! What happens when descriptors are closed: the moments at which content is judged (SPEC §4.1).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::handles::{Access, Handle, HandleId, OpenFile, Target};
use crate::model::Reason;
use crate::overlay::judge::settle::Settled;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::settings::OnHold;
use crate::store::UpperId;
use crate::sys::process;

impl Overlay {
    /// A descriptor is closed. Judges what was written, when the opener's own process closes it.
    pub fn flush(&self, handle: HandleId, caller: &Caller) -> Result<()> {
        let handle = self.handle(handle)?;
        let settled = self.settle_closed(&handle, caller)?;
        self.tell_held(settled)
    }

    /// The same for a caller that has no descriptor, and is told only whether its change was refused or made. The change
    /// counts as made once the view shows it, even if judging it fails: then it waits for the next request that settles
    /// what is left, as after a close that could not judge.
    pub(super) fn end_change(&self, id: HandleId, caller: &Caller) -> Result<()> {
        let handle = self.handle(id)?;
        let settled = self.settle_closed(&handle, caller);
        let released = self.release(id);
        match (settled, released) {
            (Err(Error::Denied), released) => released.and(Err(Error::Denied)),
            (Ok(settled), Ok(())) => self.tell_held(settled),
            (settled, released) => {
                for err in settled.err().into_iter().chain(released.err()) {
                    log::error!("judge what a program changed: {err}");
                }
                Ok(())
            }
        }
    }

    fn tell_held(&self, settled: Option<Settled>) -> Result<()> {
        match settled {
            Some(Settled::Held(_)) if self.policy().settings.on_hold == OnHold::Fail => Err(Error::Errno(libc::EACCES)),
            Some(Settled::Held(_) | Settled::Landed | Settled::Unchanged | Settled::Postponed) | None => Ok(()),
        }
    }

    /// Returns `None` if there is nothing to judge, or if that is left to others.
    fn settle_closed(&self, handle: &Arc<Handle>, caller: &Caller) -> Result<Option<Settled>> {
        let Some(open) = handle.judged() else { return Ok(None) };
        if handle.waits_for_release() {
            self.store.record_rows()?;
            // From here on the kernel must ask us for the attributes instead of using its cache.
            self.state.lock().closing.insert(handle.node, handle.opener.pid);
            self.forget_attributes(handle.node);
            return Ok(None);
        }
        let by_opener = || caller.pid == handle.opener.pid || process::same_thread_group(caller.pid, handle.opener.pid);
        if !handle.is_written() || !by_opener() {
            return Ok(None);
        }
        // Before the handle stops counting as written, so that a caller waiting for writers always finds one or the
        // other.
        let _judging = open.upper().and_then(|id| self.judging_upper(id, handle.opener.pid));
        if !handle.take_written() {
            return Ok(None);
        }
        let Some(id) = open.upper() else { return Ok(None) };
        if open.writers() > 1 && self.is_written_elsewhere(handle) {
            // Landing now would include what another writer has half done; the last one to close is judged for both.
            self.leave_to_others(id, handle);
            return Ok(None);
        }
        if handle.is_hooks && self.leave_to_who_judges(id) {
            return Ok(None);
        }
        let settled = self.settle_written(id, handle);
        if matches!(settled, Err(Error::Denied)) {
            return Err(Error::Denied);
        }
        if matches!(settled, Err(_) | Ok(Settled::Postponed)) {
            // Still unjudged: the release tries again, and nothing is lost meanwhile.
            handle.note_written();
        }
        settled.map(Some)
    }

    /// A permission program wrote to the very file it was asked about. The entry tells the judge that waits for its
    /// answer; waiting here for that judge would be a deadlock. Returns false if the entry is not being judged.
    fn leave_to_who_judges(&self, id: UpperId) -> bool {
        let mut state = self.state.lock();
        let judged = state.uppers.get_mut(id).filter(|upper| upper.busy);
        judged.map(|upper| upper.because.push(Reason::Hook)).is_some()
    }

    /// What speaks against content written through this handle counts at whichever close gets that content judged.
    fn leave_to_others(&self, id: UpperId, handle: &Handle) {
        if let Some(upper) = self.state.lock().uppers.get_mut(id) {
            upper.because.extend(handle.because());
        }
    }

    /// True if another handle on the same file has written content that is not judged yet.
    fn is_written_elsewhere(&self, handle: &Arc<Handle>) -> bool {
        let state = self.state.lock();
        let others = state.handles.values().filter(|other| other.node == handle.node && !Arc::ptr_eq(other, handle));
        others.into_iter().any(|other| other.is_written())
    }

    /// The last descriptor is gone. Judges what no close has judged.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        let removed = {
            let mut state = self.state.lock();
            let removed = state.handles.remove(&handle).ok_or(Error::Errno(libc::EBADF))?;
            if removed.access == Access::Write {
                state.closing.remove(&removed.node);
            }
            removed
        };
        let open = match &removed.target {
            Target::Passed(passed) => {
                self.let_go(removed.node, passed.passed());
                return Ok(());
            }
            Target::Judged(open) => open,
        };
        open.begin_parting(removed.access);
        let settled = match open.upper().filter(|_| removed.is_unjudged()) {
            // What this handle wrote is judged with what the other one wrote.
            Some(id) if self.is_written_elsewhere(&removed) => {
                self.leave_to_others(id, &removed);
                Ok(())
            }
            Some(id) => match self.settle_written(id, &removed) {
                // No caller waits for the verdict; an event reports it.
                Ok(_) | Err(Error::Denied) => Ok(()),
                Err(err) => Err(err),
            },
            None => Ok(()),
        };
        self.closed(open, removed.access);
        self.changed.notify_all();
        settled
    }

    /// Lets go of what is not open any more.
    fn closed(&self, open: &Arc<OpenFile>, access: Access) {
        let last = open.part();
        if open.writers() == 0
            && let Some(id) = open.upper()
        {
            self.evict(id);
        }
        if access == Access::Write && open.writers() == 0 {
            self.stays_away(open);
        }
        if last {
            let mut state = self.state.lock();
            if open.is_unused() {
                state.nodes.let_go(open);
            }
        } else if access == Access::Write && open.writers() == 0 {
            let _state = self.state.lock();
            open.only_read();
        }
    }

    /// Marks a release as under way until the guard is dropped; taken when the request is read.
    pub fn release_begun<O: Deref<Target = Self>>(overlay: O, handle: Option<HandleId>) -> impl Drop + use<O> {
        struct UnderWay<O: Deref<Target = Overlay>> {
            overlay: O,
            judges: Option<NodeId>,
        }
        impl<O: Deref<Target = Overlay>> Drop for UnderWay<O> {
            fn drop(&mut self) {
                self.overlay.releasing.fetch_sub(1, Ordering::SeqCst);
                let mut state = self.overlay.state.lock();
                if let Some(at) = state.judged_at_release.iter().position(|node| Some(*node) == self.judges) {
                    state.judged_at_release.swap_remove(at);
                }
                self.overlay.changed.notify_all();
            }
        }
        overlay.releasing.fetch_add(1, Ordering::SeqCst);
        let mut state = overlay.state.lock();
        let handle = handle.and_then(|handle| state.handles.get(&handle));
        let judges = handle.filter(|handle| handle.waits_for_release()).map(|handle| handle.node);
        if let Some(node) = judges {
            state.closing.remove(&node);
            state.judged_at_release.push(node);
        }
        drop(state);
        overlay.changed.notify_all();
        UnderWay { overlay, judges }
    }
}
