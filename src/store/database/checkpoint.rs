//! Moving the write-ahead log into the database file, off the path of requests.
//!
//! The log is synced, copied and synced again while others commit, through a connection of its own, until little is left;
//! for that little they wait. It still takes a processor from them, so it is done when nothing is committed, and in the
//! middle of work only when the log would grow without bound.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::halt::{Halt, sync_log};
use super::unsynced::Unsynced;
use crate::store::database::Database;
use crate::store::disk::reserve::Reserve;
use crate::store::{Context, Result};
use crate::sys::sqlite::LogMover;
use crate::sys::thread;

/// How often the log is looked at once it is long enough. If nothing has been committed for so long, a person or a model
/// is likely thinking, and takes no notice.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How soon the reserve for a full disk takes space that others free, if part of it is missing.
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

/// A shorter log is left alone: reading through it costs nothing that can be measured, but syncing costs the disk.
const LOG_BYTES_MIN: u64 = 4 << 20;

/// Past this the log is moved even while others commit: it takes space, and the next start has to read all of it. At some
/// 30 KiB a save it happens once in a thousand saves.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// At most this much is moved while others wait: what a dozen saves commit.
const REST_BYTES_MAX: u64 = 512 << 10;

/// Each round moves what was committed during the one before. If that does not become less, others have to wait.
const ROUNDS_MAX: usize = 4;

/// The thread that makes checkpoints; ends when dropped.
pub(in crate::store) struct Checkpointer {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// What wakes the thread, and what it works with.
struct Bell {
    /// What the log refers to is synced before the log.
    unsynced: Arc<Unsynced>,
    reserve: Arc<Reserve>,
    call: Mutex<Call>,
    rung: Condvar,
    /// Locked while the log is moved; filled when there is a long log for the first time. Taken before the database.
    mover: Mutex<Option<LogMover>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Call {
    #[default]
    None,
    Look,
    End,
}

impl Checkpointer {
    pub fn start(
        database: &Arc<Mutex<Database>>,
        halt: &Arc<Halt>,
        unsynced: &Arc<Unsynced>,
        reserve: &Arc<Reserve>,
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new(Arc::clone(unsynced), Arc::clone(reserve)));
        let ring = Arc::clone(&bell);
        database.lock().when_log_passes(LOG_BYTES_MIN, Box::new(move || ring.look()));
        let (database, halt, heard) = (Arc::clone(database), Arc::clone(halt), Arc::clone(&bell));
        let thread = thread::start("checkpoint", move || heard.serve(&database, &halt));
        let thread = thread.doing(|| "start the checkpoint thread".to_owned())?;
        Ok(Self { bell, thread: Some(thread) })
    }

    /// Has the thread check whether the log is long, or part of the reserve is missing.
    pub fn look(&self) {
        self.bell.look();
    }

    /// Moves the whole log, durably, and leaves its file empty.
    pub fn empty_log(&self, database: &Mutex<Database>) -> Result<()> {
        let _moving = self.bell.mover.lock();
        database.lock().empty_log()
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.bell.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the checkpoint thread panicked");
        }
        self.bell.mover.lock().take();
    }
}

impl Bell {
    fn new(unsynced: Arc<Unsynced>, reserve: Arc<Reserve>) -> Self {
        Self { unsynced, reserve, call: Mutex::default(), rung: Condvar::default(), mover: Mutex::default() }
    }

    fn look(&self) {
        let mut call = self.call.lock();
        if *call == Call::None {
            *call = Call::Look;
            self.rung.notify_one();
        }
    }

    fn end(&self) {
        *self.call.lock() = Call::End;
        self.rung.notify_one();
    }

    fn serve(&self, database: &Mutex<Database>, halt: &Halt) {
        loop {
            match self.wait_for_call() {
                Call::End => return,
                Call::None => self.reserve.refill(),
                Call::Look => {
                    if let Err(err) = self.watch(database, halt) {
                        // Everything committed is still in the log; the next commit calls again.
                        log::error!("move the log into the database: {err}");
                    }
                }
            }
        }
    }

    /// Returns [`Call::None`] when it is time to fill up the reserve.
    fn wait_for_call(&self) -> Call {
        let mut call = self.call.lock();
        let until = Instant::now() + REFILL_INTERVAL;
        while *call == Call::None {
            if self.reserve.is_whole() {
                self.rung.wait(&mut call);
            } else if self.rung.wait_until(&mut call, until).timed_out() {
                break;
            }
        }
        match *call {
            Call::End => Call::End,
            Call::Look | Call::None => std::mem::take(&mut *call),
        }
    }

    /// Looks until nothing has been committed between two looks, or until the log is too long; then moves it.
    fn watch(&self, database: &Mutex<Database>, halt: &Halt) -> Result<()> {
        let mut seen = database.lock().commits();
        while !self.ends_within(LOOK_INTERVAL) {
            let (commits, log_bytes) = {
                let database = database.lock();
                (database.commits(), database.log_bytes())
            };
            if log_bytes < LOG_BYTES_MIN || halt.is_halted() {
                // The call came while the log was being moved, or the log stays for the next start.
                self.reserve.cover(0);
                return Ok(());
            }
            self.reserve.cover(log_bytes);
            if commits == seen || log_bytes > LOG_BYTES_MAX {
                self.reserve.vitally(|| self.move_log(database, halt))?;
                self.reserve.cover(0);
                return Ok(());
            }
            seen = commits;
        }
        Ok(())
    }

    fn move_log(&self, database: &Mutex<Database>, halt: &Halt) -> Result<()> {
        self.unsynced.sync()?;
        let mut place = self.mover.lock();
        let mover = match place.take() {
            Some(mover) => mover,
            None => database.lock().log_mover()?,
        };
        let moved = halt.watch_syncs("move the log into the database", move_by(&mover, database, halt));
        *place = Some(mover);
        moved
    }

    fn ends_within(&self, time: Duration) -> bool {
        let mut call = self.call.lock();
        let until = Instant::now() + time;
        while *call != Call::End && !self.rung.wait_until(&mut call, until).timed_out() {}
        *call == Call::End
    }
}

/// Moves most of the log while others commit, and the rest while they wait. Stops once a sync has failed: what was copied
/// by then may not be on disk, though the next sync would report success, and the log must not begin anew.
fn move_by(mover: &LogMover, database: &Mutex<Database>, halt: &Halt) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        let log = database.lock().log_file()?;
        sync_log(&log, halt)?;
        halt.check()?;
        let moved = mover.copy()?;
        mover.sync()?;
        let length = database.lock().log_bytes();
        // If all of the log was moved, it may have begun anew since.
        if length.checked_sub(moved).unwrap_or(length) <= REST_BYTES_MAX {
            break;
        }
    }
    let mut database = database.lock();
    halt.check()?;
    database.note_log_moved(mover.copy()?);
    Ok(())
}
