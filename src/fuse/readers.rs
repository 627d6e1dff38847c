//! Decides which thread reads the next request.
//!
//! All of fuser's event threads read from one device. Left to themselves they sleep there, and each request wakes the one
//! that has slept longest: a wake-up across processors costs more than most requests do, and that thread's cache is cold.
//!
//! ```text
//!   reads ──► serves ──┬── several programs ask at once ──────────────► reads
//!                      ├── one asks, no thread reads ───► lingers ────► reads
//!                      └── one asks, another reads ─────► rests, until it is called
//! ```
//! A program that waits for its answer mostly asks again at once: the thread that answered it is still awake then, and no
//! other need be woken. While several programs ask at the same time, all threads read, as they would by themselves.
//!
//! A thread that serves may wait for what another request brings. So a thread of its own looks every [`TICK`] whether a
//! request waits that no thread takes, and calls one that rests ([`Readers::watch_until_the_end`]): however the threads
//! are counted here, no request waits for ever.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::company::{self, Pace};

/// How long a thread that has answered looks for the next request before it sleeps. A program that goes from one call to
/// the next takes some 5 µs, and nearly always less than 20; one that takes longer does not feel a wake-up. A program
/// that was given this very processor waits for all of this time.
const LINGER: Duration = Duration::from_micros(20);

/// Two looks are less than a microsecond apart, unless the processor was given to another thread; past this, it was.
const ELSEWHERE: Duration = Duration::from_micros(30);

/// For this long no thread lingers then: the processors have other work, and a thread that sleeps is scheduled sooner
/// than one that has used up its time slice.
const BUSY: Duration = Duration::from_millis(5);

/// How long several programs are assumed to be asking after they last did so at the same time.
const CROWD: Duration = Duration::from_millis(10);

/// A request that waits for one tick to two, while none is taken, needs another thread to read it.
const TICK: Duration = Duration::from_millis(1);

/// After this many ticks without a request, looking stops until the next one.
const QUIET_TICKS: u32 = 20;

/// What waits for the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// `thread` is the id of its thread; 0 if that is not visible from here.
    Program { thread: u32 },
    /// The kernel lets go of something, and no program waits for that.
    Nobody,
}

pub struct Readers {
    device: OwnedFd,
    /// Whether there is another processor, so that a program can run while a thread lingers, or may run elsewhere.
    has_others: bool,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads that read, linger, or have been called to.
    reading: usize,
    /// Requests being served for which programs wait.
    serving: usize,
    /// A request was already waiting when this thread of a program was about to be answered.
    overtaken: Option<u32>,
    resting: usize,
    /// Threads that were called and have not noticed yet.
    calls: usize,
    crowd_until: Option<Instant>,
    busy_until: Option<Instant>,
    /// Requests so far.
    served: u64,
    /// When to look next where the program runs.
    pace: Pace,
    has_ended: bool,
}

/// A thread that has read a request. When this is dropped it waits for its turn to read again.
pub struct Turn<'a> {
    readers: &'a Readers,
    asker: Asker,
}

impl Readers {
    /// For `threads` threads, each of which begins by reading.
    pub fn new(device: OwnedFd, threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |processors| processors.get());
        let state = State { reading: threads, ..State::default() };
        Self { device, has_others: processors > 1, state: Mutex::new(state), called: Condvar::new() }
    }

    /// This thread has read a request.
    pub fn serve(&self, asker: Asker) -> Turn<'_> {
        let mut state = self.state.lock();
        state.served += 1;
        state.reading = state.reading.saturating_sub(1);
        match asker {
            Asker::Program { thread } => {
                if state.serving > 0 || state.is_another(thread) {
                    state.note_crowd();
                }
                state.serving += 1;
            }
            // This may have been the request that waited.
            Asker::Nobody => state.overtaken = None,
        }
        if state.reading == 0 && state.is_crowded() {
            self.call(&mut state);
        }
        Turn { readers: self, asker }
    }

    /// This thread forgets a node. It has no turn for that, which could have it rest: the kernel may have named thousands
    /// in one request, and fuser brings them one by one.
    pub fn forget(&self) {
        // As for a request of [`Asker::Nobody`].
        self.state.lock().overtaken = None;
    }

    /// The answer to `asker` is about to be sent. A request that waits already comes from another program, or is one for
    /// which no program waits.
    pub fn will_answer(&self, asker: Asker) {
        let mut state = self.state.lock();
        state.serving -= 1;
        if state.reading > 0 || state.is_crowded() {
            return;
        }
        drop(state);
        if let (Asker::Program { thread }, Look::Request) = (asker, self.look()) {
            self.state.lock().overtaken = Some(thread);
        }
    }

    /// Returns when it is this thread's turn to read.
    fn take_turn(&self, answered: Asker) {
        let mut state = self.state.lock();
        self.join_now_and_then(&mut state, answered);
        if state.is_crowded() || state.has_ended {
            state.reading += 1;
            return;
        }
        if state.reading > 0 {
            return self.rest(state);
        }
        state.reading = 1;
        if self.has_others && state.busy_until.is_none_or(|until| until <= Instant::now()) {
            drop(state);
            self.linger();
        }
    }

    /// The thread that is to read next moves to the processor of the program that it has answered. That may last as long
    /// as an `execve` there, so this thread is not yet counted among those that read: another is called if a request
    /// comes.
    fn join_now_and_then(&self, state: &mut MutexGuard<'_, State>, answered: Asker) {
        let Asker::Program { thread } = answered else { return };
        if self.has_others && state.reading == 0 && !state.is_crowded() && state.pace.is_time() {
            let found = MutexGuard::unlocked(state, || company::join(thread));
            state.pace.looked(found);
        }
    }

    /// Waits for [`Self::call`], which counts this thread among those that read.
    fn rest(&self, mut state: MutexGuard<'_, State>) {
        state.resting += 1;
        while state.calls == 0 && !state.has_ended {
            self.called.wait(&mut state);
        }
        state.resting -= 1;
        state.calls = state.calls.saturating_sub(1);
    }

    /// Makes a resting thread read, if there is one.
    fn call(&self, state: &mut State) {
        if state.resting > state.calls {
            state.calls += 1;
            state.reading += 1;
            self.called.notify_one();
        }
    }

    /// Returns when there is a request, or after too long.
    fn linger(&self) {
        let begun = Instant::now();
        let mut last = begun;
        while self.look() == Look::Nothing {
            let now = Instant::now();
            if now - last > ELSEWHERE {
                self.state.lock().busy_until = Some(now + BUSY);
                return;
            }
            if now - begun > LINGER {
                return;
            }
            last = now;
        }
    }

    fn look(&self) -> Look {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.look_for(Some(&at_once))
    }

    fn look_for(&self, time: Option<&Timespec>) -> Look {
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        match poll(&mut device, time) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Look::Nothing,
            Ok(_) if device[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => Look::End,
            Ok(_) => Look::Request,
            Err(err) => {
                // Without `poll` no thread can look, so all of them read.
                log::error!("look for requests of the kernel: {err}");
                Look::End
            }
        }
    }

    /// Until the session ends, sees to it that some thread reads when a request waits. After that no thread rests any
    /// more.
    pub fn watch_until_the_end(&self) {
        while self.look_for(None) != Look::End && self.watch_a_burst() {}
        self.state.lock().has_ended = true;
        self.called.notify_all();
    }

    /// Looks every [`TICK`] while requests come. Returns false at the end of the session.
    fn watch_a_burst(&self) -> bool {
        let (mut quiet, mut served) = (0, 0);
        while quiet < QUIET_TICKS {
            std::thread::sleep(TICK);
            let look = self.look();
            if look == Look::End {
                return false;
            }
            let mut state = self.state.lock();
            let is_still = state.served == served;
            quiet = if is_still { quiet + 1 } else { 0 };
            served = state.served;
            if look == Look::Request && is_still {
                self.call(&mut state);
            }
        }
        true
    }
}

/// What a look at the device finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    Request,
    End,
}

impl State {
    /// Returns whether the request that waited while another was answered is this thread's, and the other one was not. A
    /// thread that closes or removes a file may ask again while the kernel still lets go of that file: both requests wait
    /// then, and only one program asks.
    fn is_another(&mut self, thread: u32) -> bool {
        self.overtaken.take().is_some_and(|answered| answered != thread || thread == 0)
    }

    fn is_crowded(&self) -> bool {
        self.crowd_until.is_some_and(|until| Instant::now() < until)
    }

    fn note_crowd(&mut self) {
        self.crowd_until = Some(Instant::now() + CROWD);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.readers.take_turn(self.asker);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Barrier};
    use std::thread::{self, JoinHandle, ThreadId};

    use super::*;

    /// A device of which each byte is a request, and threads that read it as fuser's do. The program that asked gets the
    /// thread that answers.
    struct Session {
        readers: Arc<Readers>,
        program: UnixStream,
        answers: Receiver<ThreadId>,
        threads: Vec<JoinHandle<()>>,
    }

    const QUICK: u8 = 0;
    /// Is answered when as many of these as there are threads are being served.
    const WAITS: u8 = 1;

    impl Session {
        fn new(threads: usize) -> Self {
            let (device, program) = UnixStream::pair().unwrap();
            let readers = Arc::new(Readers::new(device.try_clone().unwrap().into(), threads));
            let (answer, answers) = channel();
            let all = Arc::new(Barrier::new(threads));
            let serve = |_| {
                let (readers, answer, all) = (readers.clone(), answer.clone(), all.clone());
                let device = device.try_clone().unwrap();
                thread::spawn(move || serve(&readers, device, &answer, &all))
            };
            let threads = (0..threads).map(serve).collect();
            Self { readers, program, answers, threads }
        }

        fn watch(&mut self) {
            let watched = self.readers.clone();
            self.threads.push(thread::spawn(move || watched.watch_until_the_end()));
        }

        /// Until one thread reads and the others rest: each takes a request before.
        fn settle(&mut self) {
            let all_others = self.threads.len() - 1;
            while self.readers.state.lock().resting < all_others {
                self.ask(QUICK);
                self.answer();
            }
        }

        fn ask(&mut self, what: u8) {
            self.program.write_all(&[what]).unwrap();
        }

        fn answer(&self) -> ThreadId {
            self.answers.recv_timeout(Duration::from_secs(10)).expect("every request is answered")
        }

        fn end(self) {
            drop(self.program);
            self.readers.watch_until_the_end();
            self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    fn serve(readers: &Readers, mut device: UnixStream, answer: &Sender<ThreadId>, all: &Barrier) {
        let mut request = [0];
        while device.read(&mut request).unwrap() == 1 {
            let asker = Asker::Program { thread: 1 };
            let _turn = readers.serve(asker);
            if request[0] == WAITS {
                all.wait();
            }
            readers.will_answer(asker);
            answer.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn of_one_program_that_asks_again_and_again_one_thread_reads() {
        let mut session = Session::new(4);
        session.settle();
        let mut ask = || {
            session.ask(QUICK);
            session.answer()
        };
        let who = ask();
        for _ in 0..100 {
            assert_eq!(ask(), who);
        }
        session.end();
    }

    #[test]
    fn requests_that_wait_for_each_other_are_all_read_though_one_thread_reads() {
        let mut session = Session::new(4);
        session.settle();
        session.watch();
        for _ in 0..4 {
            session.ask(WAITS);
        }
        let who: HashSet<ThreadId> = (0..4).map(|_| session.answer()).collect();
        assert_eq!(who.len(), 4);
        session.end();
    }

    #[test]
    fn what_waits_while_a_program_is_answered_is_another_program_only_if_another_asked() {
        let is_crowd = |next: Asker| {
            let (device, mut program) = UnixStream::pair().unwrap();
            let readers = Readers::new(device.into(), 1);
            let first = Asker::Program { thread: 1 };
            let turn = readers.serve(first);
            program.write_all(&[QUICK]).unwrap();
            readers.will_answer(first);
            drop(turn);
            let _turn = readers.serve(next);
            readers.state.lock().is_crowded()
        };
        assert!(!is_crowd(Asker::Nobody));
        let crowds = [1, 2, 0].map(|thread| is_crowd(Asker::Program { thread }));
        assert_eq!(crowds, [false, true, true]);
    }
}
