//! The record of a landing that is done, written a moment after whoever landed it has gone on.
//!
//! ```text
//!   promise: one transaction ──► lower is new ──► waits here ──► one transaction for all that wait
//! ```
//! Nobody can tell that it waits: the database writes what waits before it writes or reads anything else
//! ([`Database::write`], [`Store::reading`]), but for the next promise. That says of what waits that it is done
//! ([`Intent::done`]): recorded together they cost the log a page or two each, and one by one five. What is done and not said
//! to be looks after a death like a death right after the last rename, an intent of which all is done, and recovery records
//! both. So the upper file that the record lets go stays until then: should somebody change the path below in that moment,
//! recovery finds neither old nor new there, and holds what was written. What we do at such a path ourselves is a landing,
//! which a transaction promises, or comes after [`Store::record_waiting`].
//!
//! A thread that has nothing else to do writes what waits ([`Store::record_until_the_end`]). Where there is none, as for a
//! command without a mount, it waits for whoever is next, or for the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

use super::content::StagedContent;
use super::database::Database;
use super::journal::{self, Intent};
use super::upper::{self, UpperId, UpperRow};
use super::{Result, Store, events};
use crate::model::OperationId;
use crate::sys::sqlite::Transaction;

/// How long it waits for more before it is recorded. Who saves meanwhile may wait for that, so for no more than a dozen.
const GATHERING: Duration = Duration::from_millis(5);

/// Whoever promises when so many wait records them first, where the thread that does has been given no processor.
const WAITING_MAX: usize = 128;

/// What goes with a transaction, of what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    All,
    /// What is done goes on waiting.
    Rows,
}

/// What an intent promises, once it has come true.
struct Fulfilment {
    intent_id: i64,
    intent: Intent,
    /// Files that nobody needs once it is recorded.
    unneeded: Vec<UpperId>,
    /// An intent that is committed says that it is done.
    is_told: bool,
}

/// Landings that are done and not recorded yet, and entries of which nothing is written yet. Guarded by the database's
/// lock.
#[derive(Default)]
pub(super) struct Waiting {
    /// Of entries that came after all that is recorded.
    rows: Vec<UpperRow>,
    /// One came since the thread that records has last tried.
    rows_came: bool,
    /// In the order in which they were done.
    fulfilments: Vec<Fulfilment>,
    /// Files that were to go with what has been recorded since.
    unneeded: Vec<UpperId>,
    /// Told of the first, and when there will be none any more.
    came: Arc<Condvar>,
    /// The thread that records them waits for the first.
    recorder_rests: bool,
    is_ending: bool,
}

impl Waiting {
    /// As part of a transaction.
    pub fn record(&self, tx: &Transaction<'_>, going: Going) -> Result<()> {
        if going == Going::All {
            let fulfil = |done: &Fulfilment| journal::fulfil(tx, done.intent_id, &done.intent).map(|_| ());
            self.fulfilments.iter().try_for_each(fulfil)?;
        }
        self.rows.iter().try_for_each(|row| upper::put(tx, row))
    }

    /// That transaction is committed.
    pub fn note_recorded(&mut self, gone: Going) {
        self.rows.clear();
        if gone == Going::All {
            self.unneeded.extend(self.fulfilments.drain(..).flat_map(|done| done.unneeded));
        }
    }

    /// Files that are to be removed now.
    pub fn take_unneeded(&mut self) -> Vec<UpperId> {
        std::mem::take(&mut self.unneeded)
    }

    fn push(&mut self, fulfilment: Fulfilment) {
        self.fulfilments.push(fulfilment);
        self.wake_recorder();
    }

    pub(super) fn push_row(&mut self, row: UpperRow) {
        self.rows.push(row);
        self.rows_came = true;
        self.wake_recorder();
    }

    fn wake_recorder(&mut self) {
        // While it waits for more it need not be woken by each.
        if std::mem::take(&mut self.recorder_rests) {
            self.came.notify_one();
        }
    }

    /// Whether a landing is done and not recorded, or a file to be removed.
    fn has_done(&self) -> bool {
        !self.fulfilments.is_empty() || !self.unneeded.is_empty()
    }

    /// What is done, and no intent says so.
    fn untold(&self) -> Vec<i64> {
        self.fulfilments.iter().filter(|done| !done.is_told).map(|done| done.intent_id).collect()
    }

    /// How many events come before the next.
    fn events(&self) -> usize {
        self.fulfilments.iter().map(|done| done.intent.epilogue.events.len()).sum()
    }

    /// The one that lets an upper entry go.
    fn dropping(&mut self, upper: UpperId) -> Option<&mut Fulfilment> {
        self.fulfilments.iter_mut().find(|done| done.intent.epilogue.drop.contains(&upper))
    }
}

impl Database {
    /// Gives the operation that it is going to be recorded as: no event can come between. None where that cannot be told
    /// now: then it is recorded all the same.
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

    /// The commit point of a landing: gives the number of its intent. What is done and waits to be recorded goes on waiting.
    pub(super) fn promise(&mut self, intent: &mut Intent, contents: &[StagedContent]) -> Result<i64> {
        if self.waiting.fulfilments.len() >= WAITING_MAX {
            self.record_waiting()?;
        }
        intent.done = self.waiting.untold();
        let id = self.write_beside_waiting(|tx| {
            contents.iter().try_for_each(|content| content.commit(tx))?;
            journal::promise(tx, intent)
        })?;
        self.waiting.fulfilments.iter_mut().for_each(|done| done.is_told = true);
        Ok(id)
    }
}

impl Store {
    pub(super) fn record_soon(&self, intent_id: i64, intent: Intent) -> Option<OperationId> {
        self.database.lock().record_soon(Fulfilment { intent_id, intent, unneeded: Vec::new(), is_told: false })
    }

    /// Records what was landed, and removes what nobody needs then.
    /// [`super::Error::Unrecorded`] when that fails: then nothing is written any more.
    pub fn record_waiting(&self) -> Result<()> {
        let recorded = self.vitally(|| self.database.lock().record_waiting());
        recorded.map_err(|err| self.halt.unrecorded(err))?;
        let unneeded = self.database.lock().waiting.take_unneeded();
        unneeded.into_iter().for_each(|id| self.remove_upper_file(id));
        Ok(())
    }

    /// For reading what there is now: what waits is recorded. [`super::Error::Unrecorded`] when that fails; nothing is written
    /// any more then, and whoever reads after that is told what there was before.
    pub(super) fn reading(&self) -> Result<MutexGuard<'_, Database>> {
        loop {
            let mut database = self.database.lock();
            match database.record_waiting() {
                Ok(()) => return Ok(database),
                // There is room that is kept for it.
                Err(err) if err.is_full() => {}
                Err(err) => return Err(self.halt.unrecorded(err)),
            }
            drop(database);
            self.record_waiting()?;
        }
    }

    /// The row of an entry that is made or emptied and has nothing written to it: it goes with what is written next. On a
    /// disk that is nearly full at once, so that who opens the file is refused, and not who writes to it.
    pub fn save_upper_soon(&self, row: &UpperRow) -> Result<()> {
        if !self.reserve.has_ample() {
            return self.save_upper(row);
        }
        self.database.lock().waiting.push_row(row.clone());
        Ok(())
    }

    /// Before the first bytes of such an entry, and before a close of it is answered: a death finds its row from here on.
    pub fn record_rows(&self) -> Result<()> {
        let mut database = self.database.lock();
        match database.waiting.rows.is_empty() {
            true => Ok(()),
            false => self.halt.check().and_then(|()| database.write_beside_waiting(|_| Ok(()))),
        }
    }

    /// Whether the file of an upper entry must stay until a record is written, which then lets it go.
    pub(super) fn stays_until_recorded(&self, upper: UpperId) -> bool {
        let mut database = self.database.lock();
        let dropping = database.waiting.dropping(upper);
        dropping.map(|fulfilment| fulfilment.unneeded.push(upper)).is_some()
    }

    /// Records what nobody else has, a moment after it came, and does what else can wait until then.
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

    /// The rows that wait, where nobody waits for them.
    pub fn record_opened(&self) {
        if let Err(err) = self.record_rows() {
            // Whoever writes to it, or closes it, is told.
            log::debug!("record what was opened: {err}");
        }
    }

    /// False at the end, and when nothing is written any more.
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

    /// Answers who waits for something to record.
    pub fn end_recording(&self) {
        let mut database = self.database.lock();
        database.waiting.is_ending = true;
        database.waiting.came.notify_all();
    }
}

/// What waits is not left to recovery.
impl Drop for Store {
    fn drop(&mut self) {
        if let Err(err) = self.record_waiting() {
            log::error!("record a landing: {err}");
        }
    }
}
