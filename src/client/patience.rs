//! Waiting for what only a daemon can answer, given up when that daemon has been stopped (SIGSTOP, Ctrl-Z).
//!
//! One that works is waited for however long it takes. A request to the control file is not waited for here: once the
//! daemon has taken it the kernel lets nobody go, and a stop (Ctrl-Z) of who asks must find the thread that waits.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::{ClientError, place::io_error};
use crate::sys::mount::{FS_TYPE, FUSE_DEVICE, mount_at};
use crate::sys::process;

/// How often it is looked whether the daemon is stopped. At the second time it is given up: `fg` may be typed meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What `work` gives, unless a daemon is stopped that answers for one of the paths in `ways`. It runs on a thread of its own,
/// which has ended when this returns with what it gave; the end of the program ends it else.
pub fn patiently<T: Send + 'static>(
    ways: &[&Path],
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ClientError> {
    let (tell, answer) = channel();
    // Who listened may have given up.
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
    // Nothing is told only by one that has panicked.
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(done.expect("who has ended well has told what came of it"))
}

fn no_thread(cause: io::Error) -> ClientError {
    io_error("start a thread of", Path::new("this process"), cause)
}

/// The daemon that answers for a path, if it is stopped and ours to look at. Asks no mount.
fn stopped_daemon(way: &Path) -> Option<u32> {
    let way = std::path::absolute(way).ok()?;
    process::stopped().find(|pid| process::opens(*pid, Path::new(FUSE_DEVICE)) && serves(*pid, &way))
}

/// Whether a process has the project open that is seen at a path, or one that the path lies in.
fn serves(pid: u32, way: &Path) -> bool {
    match mounted_project(way) {
        Some(project) => process::opens(pid, &project),
        None => way.ancestors().any(|project| process::opens(pid, project)),
    }
}

/// From the outermost directory on, for what lies in a mount cannot be looked at.
fn mounted_project(way: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = way.ancestors().collect();
    above.reverse();
    let mounts = above.into_iter().filter_map(|path| mount_at(path).ok().flatten());
    mounts.into_iter().find(|mount| mount.fs_type == FS_TYPE).map(|mount| mount.source.into())
}
