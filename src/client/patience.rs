//! Waits for what only a daemon can answer, and gives up if that daemon has been stopped (SIGSTOP, Ctrl-Z).
//!
//! A working daemon is waited for however long it takes. Requests to the control file do not come through here: once
//! the daemon has taken one, the kernel does not let the caller go, and a stop (Ctrl-Z) must find the thread that waits.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::{ClientError, place::io_error};
use crate::sys::mount::{FS_TYPE, FUSE_DEVICE, mount_at};
use crate::sys::process;

/// How often to check for a stopped daemon. Only the second time counts: `fg` may be typed in between.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Returns the result of `work`, unless a daemon that answers for one of the paths in `ways` is stopped. `work` runs in a
/// thread of its own. It has ended when its result is returned; otherwise it lasts until the program ends.
pub fn patiently<T: Send + 'static>(
    ways: &[&Path],
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ClientError> {
    let (tell, answer) = channel();
    // The receiver may have given up.
    let work = move || drop(tell.send(work()));
    let worker = thread::Builder::new().name("asking".to_owned()).spawn(work).map_err(no_thread)?;
    let mut seen = None;
    let done = loop {
        match answer.recv_timeout(LOOK_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            done => break done,
        }
        let stopped = ways.iter().find_map(|way| stopped_daemon(way));
        if let (Some(pid), true) = (stopped, stopped == seen) {
            return Err(ClientError::Stopped(pid));
        }
        seen = stopped;
    };
    // Only a worker that has panicked sends nothing.
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(done.expect("who has ended well has told what came of it"))
}

fn no_thread(cause: io::Error) -> ClientError {
    io_error("start a thread of", Path::new("this process"), cause)
}

/// Returns the daemon that answers for a path, if it is stopped and ours to examine. Does not touch any mount.
fn stopped_daemon(way: &Path) -> Option<u32> {
    let way = std::path::absolute(way).ok()?;
    process::stopped().find(|pid| process::opens(*pid, Path::new(FUSE_DEVICE)) && serves(*pid, &way))
}

/// True if a process has the project open that is seen at a path, or one that contains the path.
fn serves(pid: u32, way: &Path) -> bool {
    match mounted_project(way) {
        Some(project) => process::opens(pid, &project),
        None => way.ancestors().any(|project| process::opens(pid, project)),
    }
}

/// Starts at the outermost directory, because nothing inside a mount can be looked at.
fn mounted_project(way: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = way.ancestors().collect();
    above.reverse();
    let mounts = above.into_iter().filter_map(|path| mount_at(path).ok().flatten());
    mounts.into_iter().find(|mount| mount.fs_type == FS_TYPE).map(|mount| mount.source.into())
}
