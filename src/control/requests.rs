//! Requests that act and are under way. The end of a mount waits for them: a confirm is not cut off in its middle, and
//! nobody works on the project any more once another process may have its lock.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub struct Requests {
    counted: Mutex<Counted>,
    one_less: Condvar,
}

#[derive(Default)]
struct Counted {
    under_way: usize,
    is_over: bool,
}

/// One of them, until its answer has been delivered.
pub struct ActingRequest(Arc<Requests>);

impl Requests {
    /// Counts one more; `None` once no more are accepted.
    pub fn begin(self: &Arc<Self>) -> Option<ActingRequest> {
        let mut counted = self.counted.lock();
        if counted.is_over {
            return None;
        }
        counted.under_way += 1;
        Some(ActingRequest(Arc::clone(self)))
    }

    /// Waits at most `max` until none is under way. Returns how many still are.
    pub fn wait(&self, max: Duration) -> usize {
        let mut counted = self.counted.lock();
        self.one_less.wait_while_for(&mut counted, |counted| counted.under_way > 0, max);
        counted.under_way
    }

    /// Accepts no more.
    pub fn end(&self) {
        self.counted.lock().is_over = true;
    }
}

impl Drop for ActingRequest {
    fn drop(&mut self) {
        self.0.counted.lock().under_way -= 1;
        self.0.one_less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_what_is_under_way_and_accepts_no_more() {
        let requests = Arc::new(Requests::default());
        assert_eq!(requests.wait(Duration::ZERO), 0);
        let under_way = requests.begin().unwrap();
        requests.end();
        assert!(requests.begin().is_none());
        assert_eq!(requests.wait(Duration::from_millis(1)), 1);
        let done = std::thread::spawn(move || drop(under_way));
        assert_eq!(requests.wait(Duration::from_secs(60)), 0);
        done.join().unwrap();
    }
}
