//! Brings the thread that reads requests to the processor of the program that makes them.
//!
//! Each answer wakes a program. On the same processor that is a switch from one to the other; on another one it is an
//! interrupt there, which on a virtual machine takes longer than most answers do. The kernel leaves two threads that wake
//! each other where they are, together or apart. So a thread looks where the program runs that it has answered, and moves
//! there.
//!
//! If another processor is idle, the kernel may move the program there with the next answer. Then we try less and less
//! often.

use crate::sys::{process, processor};

/// Requests between two looks. A look costs some 15 µs, and a move as much again or twice that.
const GAP_MIN: u32 = 32;
const GAP_MAX: u32 = 1024;

/// When to look next.
#[derive(Debug)]
pub struct Pace {
    gap: u32,
    /// Requests since the last look.
    since: u32,
    /// A look may block, so only one thread at a time may be kept by one.
    is_looking: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { gap: GAP_MIN, since: 0, is_looking: false }
    }
}

impl Pace {
    /// Counts an answered request. Returns whether it is time to look; if so, the caller must look and call
    /// [`Self::looked`].
    pub fn is_time(&mut self) -> bool {
        self.since = self.since.saturating_add(1);
        let is_time = self.since >= self.gap && !self.is_looking;
        self.is_looking |= is_time;
        is_time
    }

    pub fn looked(&mut self, found: Found) {
        (self.is_looking, self.since) = (false, 0);
        self.gap = match found {
            Found::Together => GAP_MIN,
            Found::Apart => (self.gap * 2).min(GAP_MAX),
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Together,
    Apart,
}

/// Moves this thread to the processor on which another thread runs. May take as long as that thread is in an `execve`:
/// see [`process`].
pub fn join(thread: u32) -> Found {
    match process::processor(thread) {
        Some(there) if there == processor::here() => return Found::Together,
        Some(there) => {
            if let Err(err) = processor::move_to(there) {
                log::debug!("move to processor {there}: {err}");
            }
        }
        // It has ended, or is not ours to see.
        None => {}
    }
    Found::Apart
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, gettid, sched_setaffinity};

    use super::*;

    /// How many requests are answered until the next look.
    fn until_next(pace: &mut Pace) -> u32 {
        (1..).find(|_| pace.is_time()).unwrap()
    }

    #[test]
    fn it_is_looked_less_and_less_where_moving_does_not_last_and_often_where_it_does() {
        let mut pace = Pace::default();
        let gaps = [Found::Apart; 7].map(|found| {
            let gap = until_next(&mut pace);
            pace.looked(found);
            gap
        });
        assert_eq!(gaps, [32, 64, 128, 256, 512, 1024, 1024]);
        pace.looked(Found::Together);
        assert_eq!(until_next(&mut pace), 32);
    }

    #[test]
    fn nobody_looks_while_another_does() {
        let mut pace = Pace::default();
        until_next(&mut pace);
        assert!((0..10 * GAP_MAX).all(|_| !pace.is_time()));
        pace.looked(Found::Together);
        assert_eq!(until_next(&mut pace), GAP_MIN);
    }

    #[test]
    fn a_thread_is_together_with_itself_and_apart_from_nobody() {
        let mut here = CpuSet::new();
        here.set(processor::here());
        // Nobody moves it between the two looks.
        sched_setaffinity(None, &here).unwrap();
        assert_eq!(join(gettid().as_raw_nonzero().get().unsigned_abs()), Found::Together);
        assert_eq!(join(0), Found::Apart);
    }
}
