//! Threads.

use std::io;
use std::thread::{Builder, JoinHandle};

use super::processor;

/// Starts a thread that may run wherever this process may, whatever processor its starter is bound to.
pub fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(err) = processor::unbind(None) {
            log::debug!("let a thread run on all processors: {err}");
        }
        work()
    })
}

/// Does `work` where there is room for some hundred calls.
#[cfg(test)]
pub fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let started = Builder::new().stack_size(256 << 10).spawn_scoped(scope, work);
        started.expect("a thread").join().expect("it has room")
    })
}
