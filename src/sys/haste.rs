//! Work on a thread that must not be kept long: while a thread that reads requests waits, it reads none.
//!
//! Where work may last it says so before it changes anything. In haste that is refused, and the work is done once more,
//! from its beginning, on a thread that may wait. So what does not last, which is nearly everything, changes no threads.

use std::cell::Cell;
use std::io;

use rustix::io::Errno;

/// More content than this is not read or copied in haste: as much as the kernel has written by one request anyway.
const BYTES_MAX: u64 = 1 << 20;

thread_local! {
    static HASTE: Cell<Haste> = const { Cell::new(Haste::None) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Haste {
    None,
    Some,
    /// Something would have lasted.
    Refused,
}

/// Does `work`. Returns `None` if it failed because it would have lasted: nothing is done then.
pub fn in_haste<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<Option<T>, E> {
    HASTE.set(Haste::Some);
    let _ended = Ended;
    match work() {
        Err(_) if is_refused() => Ok(None),
        done => done.map(Some),
    }
}

/// To be called before anything that may last: in haste it is refused.
pub fn may_last() -> io::Result<()> {
    if HASTE.get() == Haste::None {
        return Ok(());
    }
    HASTE.set(Haste::Refused);
    Err(Errno::AGAIN.into())
}

/// The same before so much content is read or copied.
pub fn may_take(bytes: u64) -> io::Result<()> {
    if bytes > BYTES_MAX { may_last() } else { Ok(()) }
}

/// Whether something was refused to this thread, so that all will be done once more.
pub fn is_refused() -> bool {
    HASTE.get() == Haste::Refused
}

struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        HASTE.set(Haste::None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn only_what_failed_because_it_would_have_lasted_is_to_be_done_again() {
        let may_last = || may_last().map_err(|err| err.kind());
        assert_eq!(in_haste(may_last), Ok(None));
        assert_eq!(in_haste(|| may_last().or(Err("wrapped"))), Ok(None));
        assert_eq!(in_haste(|| may_last().or(Ok::<_, ()>(()))), Ok(Some(())), "it went another way");
        assert_eq!(in_haste(|| Err::<(), _>(ErrorKind::WouldBlock)), Err(ErrorKind::WouldBlock), "of the system's own");
        assert_eq!(may_last(), Ok(()));
    }

    #[test]
    fn haste_ends_with_a_panic() {
        assert!(catch_unwind(|| in_haste(|| -> Result<(), ()> { panic!("as it may") })).is_err());
        assert!(may_last().is_ok());
    }
}
