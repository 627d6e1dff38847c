//! Scratch projects, real mounts over them, and the built program run against them.
//!
//! Begin with [`Scratch`]: a project in a directory of its own, with a home of its own, so that no setting of the
//! person who runs the tests is read. [`Scratch::mount`] covers it, [`Scratch::mount_at`] shows it elsewhere. Whatever
//! happens in the test, dropping both leaves no mount, no daemon and no file behind.

#![allow(dead_code, reason = "offers what a mounted test may need, whether or not one needs it today")]

mod disk;
mod normalise;
mod output;
mod processes;
mod scratch;
mod screen;
pub mod script;
mod tests;
mod tree;
pub mod venv;
mod view;

use std::thread;
use std::time::{Duration, Instant};

pub use disk::{Disk, run};
pub use normalise::normalise;
pub use output::{Held, Output};
pub use processes::{Stopped, all_gone, detach, kill, mounts_below};
pub use scratch::Scratch;
pub use screen::Screen;
pub use tree::Tree;
pub use view::{Mounting, View};

/// Long enough for a loaded machine with two cores; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A [`Scratch`] for a test that mounts; leaves the test where `FETTLE_TEST_SKIP_FUSE=1` and there is no /dev/fuse.
macro_rules! mounted_scratch {
    () => {
        match $crate::harness::Scratch::for_mounting() {
            Some(scratch) => scratch,
            None => return,
        }
    };
}

pub(crate) use mounted_scratch;

/// Waits until `condition` holds and panics with `what` when it does not. The one place where tests wait by asking
/// again: for what the kernel or another process tells nobody (a process gone, a mount table changed).
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(PATIENCE, condition), "not within {PATIENCE:?}: {what}");
}

/// Whether `condition` came to hold in `time`.
pub fn within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        // Bounded by the deadline above: polls the condition.
        thread::sleep(Duration::from_millis(5));
    }
}

/// `count` numbered lines, each ending in a newline.
pub fn lines(count: usize) -> String {
    (1..=count).map(|number| format!("line {number}\n")).collect()
}

/// `text` with its first `count` lines made different: `count` insertions and as many deletions.
pub fn with_changed_lines(text: &str, count: usize) -> String {
    let change = |(at, line): (usize, &str)| if at < count { format!("changed {line}") } else { line.to_owned() };
    text.split_inclusive('\n').enumerate().map(change).collect()
}
