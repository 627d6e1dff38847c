//! Threads for requests that may take long: a diff, an fsync, a permission program, a client that waits for a person.
//!
//! fuser's event threads are few, and each that waits is one that reads no requests. So a request that may last runs
//! where it was read only while enough of them stay free, and else on a thread made for it. In quiet times nothing is
//! handed over, which would cost two switches a request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::sys::thread;

/// An idle thread waits this long for more before it ends: longer than the pauses within one burst of work.
const IDLE: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    /// How many pieces of work may run on the threads that bring them.
    here_max: usize,
    threads_max: usize,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    here: usize,
    threads: usize,
    /// Threads that wait for work; each piece in the queue has one that is on its way, unless all threads are taken.
    idle: usize,
    queue: VecDeque<Work>,
}

impl Workers {
    pub fn new(name: &'static str, here_max: usize, threads_max: usize) -> Self {
        let shared = Shared { name, here_max, threads_max, state: Mutex::default(), more: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Does the work: before returning if there is room for that, otherwise soon, on another thread. It must not panic.
    pub fn off_path(&self, work: impl FnOnce() + Send + 'static) {
        match self.enter() {
            Some(_here) => work(),
            None => self.hand_over(Box::new(work)),
        }
    }

    fn enter(&self) -> Option<Here<'_>> {
        let mut state = self.shared.state.lock();
        let room = state.here < self.shared.here_max;
        room.then(|| {
            state.here += 1;
            Here(&self.shared)
        })
    }

    fn hand_over(&self, work: Work) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(work);
        if state.idle >= state.queue.len() {
            self.shared.more.notify_one();
        } else if state.threads < self.shared.threads_max {
            state.threads += 1;
            drop(state);
            self.start();
        }
    }

    fn start(&self) {
        let shared = self.shared.clone();
        if let Err(err) = thread::start(shared.name, move || shared.serve()) {
            // Out of threads: slow is better than stuck.
            log::warn!("start a thread {}: {err}", self.shared.name);
            self.shared.serve_queued();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            while let Some(work) = state.queue.pop_front() {
                drop(state);
                work();
                state = self.state.lock();
            }
            state.idle += 1;
            let timed_out = self.more.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Does the work of a thread that could not be started.
    fn serve_queued(&self) {
        let mut state = self.state.lock();
        while let Some(work) = state.queue.pop_front() {
            drop(state);
            work();
            state = self.state.lock();
        }
        state.threads -= 1;
    }
}

/// A piece of work that runs on the thread that brought it.
struct Here<'a>(&'a Shared);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.state.lock().here -= 1;
    }
}
