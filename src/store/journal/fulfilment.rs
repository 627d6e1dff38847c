//! Records of landings that are done, each written a moment after its landing has returned.
//!
//! ```text
//!   promise: one transaction ──► lower is new ──► waits here ──► one transaction for all that wait
//! ```
//! Nothing shows that a record waits: the database writes what waits before it writes or reads anything else
//! ([`Database::write`], [`Store::reading`]), except for the next promise. A promise says of the landings that wait that
//! they are done ([`Intent::done`]): recorded together they cost the log a page or two each, and one by one five. A
//! landing that no promise has called done looks after a crash like one whose last rename was just made, an intent of
//! which all is done; recovery records either. So the upper file that a record lets go stays until then: if the path
//! below is changed in that moment, recovery finds neither old nor new there, and holds what was written. What we do at
//! such a path ourselves is a landing, which a transaction promises, or comes after [`Store::record_waiting`].
//!
//! A thread of its own writes what waits ([`Store::record_until_the_end`]). Without that thread, as in a command without
//! a mount, it waits for the next use of the database, or for the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

use super::intent::{self, Intent};
use crate::model::OperationId;
use crate::store::content::StagedContent;
use crate::store::database::Database;
use crate::store::rows::events;
use crate::store::rows::upper::{self, UpperId, UpperRow};
use crate::store::{Result, Store};
use crate::sys::sqlite::Transaction;

/// How long a record waits for more to come. A save may have to wait for all of them, which should be a dozen at most.
const GATHERING: Duration = Duration::from_millis(5);

/// If so many wait, a promise records them first: the thread that should may have been given no processor.
const WAITING_MAX: usize = 128;

/// Which of the things that wait a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Going {
    All,
    /// Only rows; landings that are done go on waiting.
    Rows,
}

/// The promise of an intent that has come true.
struct Fulfilment {
    intent_id: i64,
    intent: Intent,
    /// Files that are not needed any more once it is recorded.
    unneeded: Vec<UpperId>,
    /// True if a committed intent says that it is done.
    is_told: bool,
}

/// Landings that are done and not recorded yet, and rows of entries to which nothing is written yet. Guarded by the
/// database's lock.
#[derive(Default)]
pub(in crate::store) struct Waiting {
    /// Rows of entries that came after all that is recorded.
    rows: Vec<UpperRow>,
    /// True if a row came since the thread that records has last tried.
    rows_came: bool,
    /// In the order in which they were done.
    fulfilments: Vec<Fulfilment>,
    /// Files that could go once something was recorded, which it has been since.
    unneeded: Vec<UpperId>,
    /// Notified of the first, and when there will be no more.
    came: Arc<Condvar>,
    /// True while the thread that records waits for the first.
    recorder_rests: bool,
    is_ending: bool,
}

impl Waiting {
    /// Writes what waits, as part of a transaction.
    pub fn record(&self, tx: &Transaction<'_>, going: Going) -> Result<()> {
        if going == Going::All {
            let fulfil = |done: &Fulfilment| intent::fulfil(tx, done.intent_id, &done.intent).map(|_| ());
            self.fulfilments.iter().try_for_each(fulfil)?;
        }
        self.rows.iter().try_for_each(|row| upper::put(tx, row))
    }

    /// Notes that the transaction is committed.
    pub fn note_recorded(&mut self, gone: Going) {
        self.rows.clear();
        if gone == Going::All {
            self.unneeded.extend(self.fulfilments.drain(..).flat_map(|done| done.unneeded));
        }
    }

    /// Returns the files that are to be removed now.
    pub fn take_unneeded(&mut self) -> Vec<UpperId> {
        std::mem::take(&mut self.unneeded)
    }

    fn push(&mut self, fulfilment: Fulfilment) {
        self.fulfilments.push(fulfilment);
        self.wake_recorder();
    }

    pub(in crate::store) fn push_row(&mut self, row: UpperRow) {
        self.rows.push(row);
        self.rows_came = true;
        self.wake_recorder();
    }

    fn wake_recorder(&mut self) {
        // A thread that is waiting for more need not be woken by each.
        if std::mem::take(&mut self.recorder_rests) {
            self.came.notify_one();
        }
    }

    /// True if a landing is done and not recorded, or a file is to be removed.
    fn has_done(&self) -> bool {
        !self.fulfilments.is_empty() || !self.unneeded.is_empty()
    }

    /// Returns the intents that are done, and that no other intent calls done.
    fn untold(&self) -> Vec<i64> {
        self.fulfilments.iter().filter(|done| !done.is_told).map(|done| done.intent_id).collect()
    }

    /// Returns how many events come before the next.
    fn events(&self) -> usize {
        self.fulfilments.iter().map(|done| done.intent.epilogue.events.len()).sum()
    }

    /// Returns the landing that lets an upper entry go.
    fn dropping(&mut self, upper: UpperId) -> Option<&mut Fulfilment> {
        self.fulfilments.iter_mut().find(|done| done.intent.epilogue.drop.contains(&upper))
    }
}

impl Database {
    /// Returns the operation as which the landing is going to be recorded: no event can come in between. `None` if that
    /// cannot be told now; it is recorded all the same.
    fn record_soon(&mut self, fulfilment: Fulfilment) -> Option<OperationId> {
        let first = self.event_next().map(|next| next + self.waiting.events() as i64);
        let first = first.inspect_err(|err| log::warn!("look up the number of the next event: {err}")).ok();
        let operation = first.and_then(|first| events::operation_of(first, &fulfilment.intent.epilogue.events));
        self.waiting.push(fulfilment);
        operation
    }

    /// Writes what waits, if anything does.
    pub fn record_waiting(&mut self) -> Result<()> {
        let is_nothing = self.waiting.fulfilments.is_empty() && self.waiting.rows.is_empty();
        match is_nothing || self.halt.is_halted() {
            true => Ok(()),
            false => self.write(|_| Ok(())),
        }
    }

    /// The commit point of a landing: returns the number of its intent. What waits to be recorded goes on waiting.
    pub(super) fn promise(&mut self, intent: &mut Intent, contents: &[StagedContent]) -> Result<i64> {
        if self.waiting.fulfilments.len() >= WAITING_MAX {
            self.record_waiting()?;
        }
        intent.done = self.waiting.untold();
        let id = self.write_beside_waiting(|tx| {
            contents.iter().try_for_each(|content| content.commit(tx))?;
            intent::promise(tx, intent)
        })?;
        self.waiting.fulfilments.iter_mut().for_each(|done| done.is_told = true);
        Ok(id)
    }
}

impl Store {
    pub(in crate::store) fn record_soon(&self, intent_id: i64, intent: Intent) -> Option<OperationId> {
        self.database.lock().record_soon(Fulfilment { intent_id, intent, unneeded: Vec::new(), is_told: false })
    }

    /// Records what has landed, and removes the files that are not needed any more then. Returns
    /// [`crate::store::Error::Unrecorded`] if that fails: then nothing is written any more.
    pub fn record_waiting(&self) -> Result<()> {
        let recorded = self.vitally(|| self.database.lock().record_waiting());
        recorded.map_err(|err| self.halt.unrecorded(err))?;
        let unneeded = self.database.lock().waiting.take_unneeded();
        unneeded.into_iter().for_each(|id| self.remove_upper_file(id));
        Ok(())
    }

    /// Locks the database for reading what there is now, after recording what waits. Returns [`crate::store::Error::Unrecorded`]
    /// if that fails: nothing is written any more then, and later readers get what there was before.
    pub(in crate::store) fn reading(&self) -> Result<MutexGuard<'_, Database>> {
        loop {
            let mut database = self.database.lock();
            match database.record_waiting() {
                Ok(()) => return Ok(database),
                // The reserve has space for it, which the call below may use.
                Err(err) if err.is_full() => {}
                Err(err) => return Err(self.halt.unrecorded(err)),
            }
            drop(database);
            self.record_waiting()?;
        }
    }

    /// Saves the row of an entry that is made or emptied and has nothing written to it, with the next transaction. On a
    /// disk that is nearly full it is saved at once, so that the open fails and not the write.
    pub fn save_upper_soon(&self, row: &UpperRow) -> Result<()> {
        if !self.reserve.has_ample() {
            return self.save_upper(row);
        }
        self.database.lock().waiting.push_row(row.clone());
        Ok(())
    }

    /// Called before the first bytes of such an entry, and before its close is answered: now a crash leaves its row.
    pub fn record_rows(&self) -> Result<()> {
        let mut database = self.database.lock();
        match database.waiting.rows.is_empty() {
            true => Ok(()),
            false => self.halt.check().and_then(|()| database.write_beside_waiting(|_| Ok(()))),
        }
    }

    /// True if the file of an upper entry must stay until a record is written, which then lets it go.
    pub(in crate::store) fn stays_until_recorded(&self, upper: UpperId) -> bool {
        let mut database = self.database.lock();
        let dropping = database.waiting.dropping(upper);
        dropping.map(|fulfilment| fulfilment.unneeded.push(upper)).is_some()
    }

    /// Records, a moment after it came, what no other thread has recorded, and runs `and_then` for what can wait as long.
    pub fn record_until_the_end(&self, and_then: impl Fn()) {
        while self.wait_to_record() {
            self.record_in_time();
            and_then();
        }
    }

    fn record_in_time(&self) {
        let has_done = {
            let mut database = self.database.lock();
            database.waiting.rows_came = false;
            database.waiting.has_done()
        };
        match has_done {
            true => self.record_waiting().unwrap_or_else(|err| log::error!("record a landing: {err}")),
            false => self.record_opened(),
        }
    }

    /// Records the rows that wait, at a time when no one waits for them.
    pub fn record_opened(&self) {
        if let Err(err) = self.record_rows() {
            // A write to such an entry, or its close, reports it.
            log::debug!("record what was opened: {err}");
        }
    }

    /// Returns false at the end, and when nothing is written any more.
    fn wait_to_record(&self) -> bool {
        let mut database = self.database.lock();
        let came = database.waiting.came.clone();
        while !database.waiting.has_done() && !database.waiting.rows_came && !database.waiting.is_ending {
            database.waiting.recorder_rests = true;
            came.wait(&mut database);
        }
        let until = Instant::now() + GATHERING;
        while !database.waiting.is_ending && !came.wait_until(&mut database, until).timed_out() {}
        !database.waiting.is_ending && !self.is_halted()
    }

    /// Ends the wait for something to record.
    pub fn end_recording(&self) {
        let mut database = self.database.lock();
        database.waiting.is_ending = true;
        database.waiting.came.notify_all();
    }
}

/// Records what waits, so that it is not left to recovery.
impl Drop for Store {
    fn drop(&mut self) {
        if let Err(err) = self.record_waiting() {
            log::error!("record a landing: {err}");
        }
    }
}
