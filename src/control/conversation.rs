//! Requests as bytes, and the conversation held over one descriptor of the control file (SPEC §11).
//!
//! ```text
//!   Idle ── write ──► Working ── done ──► Answered ── read to its end, end of file ──► Idle
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::memory::{Kept, Memory, Share};
use super::read::Receipt;
use super::requests::ActingRequest;
use super::serve::{Served, acts, serve};
use super::{Asker, Project, rights};
use crate::protocol::{ErrorBody, ErrorCode, REQUEST_BYTES_MAX, Reply, Request, Response};
use crate::sys::{memory, thread};

/// The action to take once an answer has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    Nothing,
    End,
}

/// One line of answer, and what follows from it.
pub struct Answered {
    pub line: Vec<u8>,
    /// To do once nobody waits for the answer any more, delivered or not.
    pub afterwards: Afterwards,
    /// To be noted once the answer has been delivered.
    pub receipt: Option<Receipt>,
    /// To be dropped once the answer has been delivered.
    _under_way: Option<ActingRequest>,
}

impl Answered {
    fn refused(err: impl Into<ErrorBody>) -> Self {
        let line = Response::failed(err).to_line();
        Self { line, afterwards: Afterwards::Nothing, receipt: None, _under_way: None }
    }
}

/// Answers the bytes of one request, whatever they are.
pub fn answer_bytes(bytes: &[u8], asker: &Asker, project: &Project) -> Answered {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(err) => return Answered::refused(err),
    };
    let under_way = project.mounted.as_ref().filter(|_| acts(&request)).map(|mounted| mounted.requests.begin());
    if let Some(None) = under_way {
        return busy("the mount is ending");
    }
    // A panic in one request must not end the daemon that others wait for. After it nothing more is written, to be safe.
    let serve = || memory::returned_after(|| serve(&request, asker, project));
    let Served { response, receipt } = catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|_| {
        let why = format!("{}: internal fault, see the daemon's log", request.op);
        log::error!("{why}; nothing is written any more");
        project.overlay.stop_writing(&why);
        Served { response: Response::failed(ErrorBody::new(ErrorCode::Io, why)), receipt: None }
    });
    let ends = match &response {
        Response::Done(reply) => match reply.as_ref() {
            Reply::Unmount(unmounted) => !unmounted.dry_run,
            Reply::Leave(left) => left.last,
            _ => false,
        },
        Response::Failed(_) => false,
    };
    let afterwards = if ends { Afterwards::End } else { Afterwards::Nothing };
    Answered { line: response.to_line(), afterwards, receipt, _under_way: under_way.flatten() }
}

pub fn afterwards(what: Afterwards, project: &Project) {
    if let (Afterwards::End, Some(mounted)) = (what, &project.mounted) {
        (mounted.ask_end)();
    }
}

/// Requests worked on at once, each on a thread: thousands of open descriptors must not become as many threads.
const WORKING_MAX: usize = 64;
/// Places among them reserved for askers who may decide as the owner or root: requests of others, which may wait half a
/// minute each, must not keep a person from confirming or discarding.
const WORKING_KEPT: usize = 16;

/// How often a waiting read checks whether its reader has given up: soon enough for a person who pressed Ctrl-C. fuser
/// does not pass on the kernel's interrupts, and without this a killed reader would hang until its answer came.
const GIVEN_UP_EVERY: Duration = Duration::from_millis(100);

/// The requests and answers of one descriptor.
pub struct Conversation {
    opener: Asker,
    project: Arc<Project>,
    state: Mutex<State>,
    answered: Condvar,
}

enum State {
    Idle,
    Working,
    Answered(Answer),
    /// The descriptor is closed: an answer still under way is dropped.
    Released,
}

struct Answer {
    line: Vec<u8>,
    read: usize,
    afterwards: Afterwards,
    receipt: Option<Receipt>,
    _kept: Kept,
    /// The request was too long; further pieces of the same write belong to it.
    overlong: bool,
}

/// Counts a request at work for as long as it lives.
struct WorkingPlace(Arc<AtomicUsize>);

impl WorkingPlace {
    /// Counts only if there is a free place, so that a refused request never takes one from another.
    fn take(working: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let one_more = |count: usize| (count < max).then_some(count + 1);
        let taken = working.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        taken.is_ok().then(|| Self(Arc::clone(working)))
    }
}

impl Drop for WorkingPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Conversation {
    pub fn new(opener: Asker, project: Arc<Project>) -> Self {
        Self { opener, project, state: Mutex::new(State::Idle), answered: Condvar::new() }
    }

    /// Takes one request and begins to work on it. Fails with EBUSY while another is being worked on. The rights are
    /// the lesser of those of the opener and of the writer: passing a descriptor to a set-uid program, or getting
    /// one from it, gains nothing.
    pub fn write(
        self: &Arc<Self>,
        bytes: &[u8],
        writer: &Asker,
        (working, memory): (&Arc<AtomicUsize>, &Memory),
    ) -> Result<usize, i32> {
        let asker = self.opener.lesser(writer, &self.project);
        let before = {
            let mut state = self.state.lock();
            match &*state {
                State::Working => return Err(libc::EBUSY),
                State::Released => return Err(libc::EBADF),
                // The kernel splits a long write; the rest of a refused one is swallowed.
                State::Answered(Answer { overlong: true, read: 0, .. }) => return Ok(bytes.len()),
                State::Answered(_) | State::Idle => std::mem::replace(&mut *state, State::Working),
            }
        };
        // A writer who asks again no longer waits for the previous answer.
        if let State::Answered(answer) = before {
            afterwards(answer.afterwards, &self.project);
        }
        let kept = rights::has_kept_places(&asker, &self.project);
        let max = if kept { WORKING_MAX } else { WORKING_MAX - WORKING_KEPT };
        let share = memory.share(&asker, &self.project);
        match WorkingPlace::take(working, max) {
            None => self.answer(busy(&format!("{max} requests are being worked on")), share, false),
            Some(_) if bytes.len() > REQUEST_BYTES_MAX => {
                self.answer(answer_bytes(bytes, &asker, &self.project), share, true);
            }
            Some(_) if !share.has_room() => {
                self.answer(busy("too much is open in `.fettle`, or answered and not read"), share, false);
            }
            Some(place) => self.begin(bytes.to_vec(), asker, (place, Arc::clone(share)))?,
        }
        Ok(bytes.len())
    }

    fn begin(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        asker: Asker,
        (place, share): (WorkingPlace, Arc<Share>),
    ) -> Result<(), i32> {
        let itself = Arc::clone(self);
        let work = move || {
            let answered = answer_bytes(&bytes, &asker, &itself.project);
            drop(place);
            itself.answer(answered, &share, false);
        };
        match thread::start("control", work) {
            Ok(_detached) => Ok(()),
            Err(err) => {
                *self.state.lock() = State::Idle;
                Err(err.raw_os_error().unwrap_or(libc::EAGAIN))
            }
        }
    }

    fn answer(&self, answered: Answered, share: &Arc<Share>, overlong: bool) {
        let Answered { line, afterwards: what, receipt, _under_way } = answered;
        let mut state = self.state.lock();
        if matches!(*state, State::Released) {
            drop(state);
            // Nobody is left to read the answer, but the request was carried out.
            afterwards(what, &self.project);
            return;
        }
        let kept = share.keep(line.len());
        *state = State::Answered(Answer { line, read: 0, afterwards: what, receipt, _kept: kept, overlong });
        drop(state);
        self.answered.notify_all();
    }

    /// Returns the next piece of the answer, waiting for it if necessary; nothing at its end, or if nothing was asked.
    /// Fails with EINTR if the reader gives up first: the answer then waits for the next read.
    pub fn read(&self, size: usize, given_up: impl Fn() -> bool) -> Result<Vec<u8>, i32> {
        let mut state = self.state.lock();
        while matches!(*state, State::Working) {
            let timed_out = self.answered.wait_for(&mut state, GIVEN_UP_EVERY).timed_out();
            if timed_out && MutexGuard::unlocked(&mut state, &given_up) {
                return Err(libc::EINTR);
            }
        }
        let State::Answered(answer) = &mut *state else { return Ok(Vec::new()) };
        let rest = &answer.line[answer.read..];
        let piece = rest[..rest.len().min(size)].to_vec();
        answer.read += piece.len();
        if !piece.is_empty() || size == 0 {
            let receipt = if answer.read == answer.line.len() { answer.receipt.take() } else { None };
            drop(state);
            if let Some(receipt) = receipt {
                receipt.note(&self.project);
            }
            return Ok(piece);
        }
        let what = answer.afterwards;
        *state = State::Idle;
        drop(state);
        afterwards(what, &self.project);
        Ok(piece)
    }

    pub fn release(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Released);
        self.answered.notify_all();
        if let State::Answered(answer) = before {
            afterwards(answer.afterwards, &self.project);
        }
    }
}

fn busy(why: &str) -> Answered {
    Answered::refused(ErrorBody::new(ErrorCode::Busy, format!("{why}; ask again")))
}
