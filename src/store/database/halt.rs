//! The state in which nothing may be written any more, and the reason for it.
//!
//! After some failures it is unknown what the disk has: a change of lower could neither be recorded nor undone, or a sync
//! failed. To go on would be to guess. Reading still works, and the next start puts things right from the journal.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::store::{Context, Error, Result};
use crate::sys::sqlite;

#[derive(Debug, Default)]
pub(in crate::store) struct Halt {
    is_halted: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Halt {
    /// Stops all writing. The first reason is the one that is told.
    pub fn halt(&self, why: &str) {
        log::error!("nothing is written any more: {why}");
        self.why.lock().get_or_insert_with(|| why.to_owned());
        self.is_halted.store(true, Ordering::SeqCst);
    }

    /// Passes on the outcome of work on the database, and halts if a sync failed. A failed sync is not repeated: the
    /// kernel would report success.
    pub fn watch_syncs<T>(&self, doing: &str, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|err| {
            if let Error::Database(err) = err
                && sqlite::is_failed_sync(err)
            {
                self.halt(&format!("{doing}: {err}"));
            }
        })
    }

    /// Halts because lower and the database disagree: the next start puts it right.
    pub fn unrecorded(&self, cause: Error) -> Error {
        let err = Error::Unrecorded(Box::new(cause));
        self.halt(&err.to_string());
        err
    }

    pub fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Relaxed)
    }

    /// Fails if nothing may be written any more.
    pub fn check(&self) -> Result<()> {
        self.why().map_or(Ok(()), |why| Err(Error::Halted(why)))
    }

    pub fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }
}

/// Makes what was committed durable. The kernel reports a failure once, and the next sync would hide it (SPEC §10).
pub(in crate::store) fn sync_log(log: &File, halt: &Halt) -> Result<()> {
    let synced = log.sync_data().doing(|| "sync the database's log".to_owned());
    synced.inspect_err(|err| halt.halt(&err.to_string()))
}
