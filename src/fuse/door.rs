//! Where a panic stops and a fault is logged. Everything that a request asks of the view goes through [`Door::attempt`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fuser::Errno;

use super::listing::Listings;
use super::view::View;
use crate::overlay;
use crate::sys::haste::in_haste;

pub struct Door {
    pub view: View,
    pub listings: Listings,
}

impl Door {
    /// As [`Self::attempt`], on a thread that must not be kept: returns `None` if the answer would last.
    pub fn attempt_in_haste<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(&View) -> overlay::Result<T>,
    ) -> Option<Result<T, Errno>> {
        self.attempt(op, |view| in_haste(|| ask(view))).transpose()
    }

    /// Asks the view. A panic answers EIO and stops all writing: no invariant can be relied on after it.
    pub fn attempt<T>(&self, op: &'static str, ask: impl FnOnce(&View) -> overlay::Result<T>) -> Result<T, Errno> {
        self.view.note_request(op);
        match catch_unwind(AssertUnwindSafe(|| ask(&self.view))) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(err)) => Err(fault(op, &err)),
            Err(panic) => {
                let why = format!("{op} panicked: {}", message(panic.as_ref()));
                log::error!("{why}; nothing is written any more");
                self.view.stop_writing(&why);
                Err(Errno::EIO)
            }
        }
    }
}

/// The one place where an error of the view becomes an errno, and a line in the log when it is a fault.
fn fault(op: &'static str, err: &overlay::Error) -> Errno {
    if err.is_fault() {
        log::warn!("{op}: {err}");
    }
    Errno::from_i32(err.code())
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
