//! Shells that will ask what their command has done (SPEC §14): since when, and which processes belong to them.
//!
//! A process that has ended cannot be asked for its parents. So the shell that it belongs to is noted when something it
//! did is recorded, while it waits for the answer.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::overlay::{Overlay, Result};
use crate::protocol::Event;
use crate::sys::process;

/// If there are more than this, those that ended without asking, by `exec` or a signal, are removed.
const SHELLS_MAX: usize = 256;

/// Guarded by itself; a leaf of the lock order.
#[derive(Default)]
pub(in crate::overlay) struct Shells(Mutex<HashMap<u32, Begun>>);

struct Begun {
    /// The number of the last event before it began.
    seq: u64,
    /// Processes of which something has been recorded since.
    own: HashSet<u32>,
}

impl Shells {
    fn begin(&self, shell: u32, seq: u64) {
        let mut shells = self.0.lock();
        if shells.len() >= SHELLS_MAX {
            shells.retain(|shell, _| process::tgid(*shell).is_some());
        }
        shells.insert(shell, Begun { seq, own: HashSet::new() });
    }

    /// To be called while the process waits. It belongs to the nearest of these shells above it, if there is one.
    pub fn note(&self, pid: u32) {
        let mut shells = self.0.lock();
        if shells.is_empty() || shells.values().any(|begun| begun.own.contains(&pid)) {
            return;
        }
        let nearest = process::tgid(pid).and_then(|pid| process::ancestors(pid).find(|pid| shells.contains_key(pid)));
        if let Some(begun) = nearest.and_then(|shell| shells.get_mut(&shell)) {
            begun.own.insert(pid);
        }
    }
}

impl Overlay {
    /// A shell begins: what it and its descendants do from here on is its own.
    pub fn shell_begins(&self, shell: u32) -> Result<()> {
        self.shells.begin(shell, self.store.last_seq()?);
        Ok(())
    }

    /// A shell ends: returns what it has done, oldest first; nothing for a shell that has not begun.
    pub fn shell_ends(&self, shell: u32) -> Result<Vec<Event>> {
        self.settle_pending();
        let Some(begun) = self.shells.0.lock().remove(&shell) else { return Ok(Vec::new()) };
        if begun.own.is_empty() {
            return Ok(Vec::new());
        }
        let mut events = self.store.events_since(begun.seq)?;
        events.retain(|event| event.pid.is_some_and(|pid| begun.own.contains(&pid)));
        Ok(events)
    }
}
