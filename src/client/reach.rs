//! How to reach what answers for a place.

use super::{ClientError, DeadMount, Place, patiently, place, place::io_error, view_at};
use crate::protocol::{CONTROL_FILE, CONTROL_SOCKET, STATE_DIRECTORY};
use crate::sys::mount::{Device, MountEntry, is_death};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest socket path that fits into `sockaddr_un` with its NUL (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What answers, and the way to it.
#[derive(Debug)]
pub enum Reach {
    /// The control file of a view.
    View(File),
    /// The socket of a daemon whose view is elsewhere: at another mountpoint, or in the namespace of a `run`.
    Socket(Arc<UnixStream>),
    /// No daemon: the state directory is all there is.
    Offline,
    /// There is a mount without a daemon.
    Stale(DeadMount),
}

pub fn reach(place: &Place) -> Result<Reach, ClientError> {
    let asked = place.clone();
    patiently(&[&place.root], move || way_to(&asked))?
}

fn way_to(place: &Place) -> Result<Reach, ClientError> {
    if let Some(view) = view_at(&place.root)? {
        match open_control(&view) {
            Ok(Some(file)) => return Ok(Reach::View(file)),
            Err(err) if is_death(&err) => {
                return Ok(Reach::Stale(DeadMount::around(&place.root)));
            }
            Ok(None) => {}
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(io_error("open", &control_of(&view), err)),
        }
    }
    place::check_state_is_of(place)?;
    place::check_private(&place.state, &place.root)?;
    let socket = place.state.join(CONTROL_SOCKET);
    match connect(&place.state, &socket) {
        Ok(stream) => Ok(Reach::Socket(stream.into())),
        Err(err) if is_nobody(&err) => Ok(Reach::Offline),
        // The socket is another user's, whose daemon may be dead.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied && is_unlocked(&place.root) => Ok(Reach::Offline),
        Err(err) => Err(io_error("connect to", &socket, err)),
    }
}

fn control_of(view: &MountEntry) -> PathBuf {
    view.mountpoint.join(STATE_DIRECTORY).join(CONTROL_FILE)
}

/// Returns `None` if something else covers the view by now.
fn open_control(view: &MountEntry) -> io::Result<Option<File>> {
    let mut options = File::options();
    let control = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(control_of(view))?;
    let is_of_view = Device::of(control.metadata()?.dev()) == view.device;
    Ok(is_of_view.then_some(control))
}

/// Reaches the daemon that has this state directory, whatever is mounted over the project.
pub(super) fn reach_by_socket(state: &Path) -> Result<Reach, ClientError> {
    let socket = state.join(CONTROL_SOCKET);
    let stream = connect(state, &socket).map_err(|err| io_error("connect to", &socket, err))?;
    Ok(Reach::Socket(stream.into()))
}

/// No daemon listens; a socket file that a killed daemon left behind refuses connections.
fn is_nobody(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// How long to wait for the lock, which a dying daemon or a command without a daemon holds only for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// True if no daemon has the project: each holds its lock.
fn is_unlocked(project: &Path) -> bool {
    let Ok(project) = File::open(project) else { return false };
    let begun = Instant::now();
    loop {
        match flock(&project, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_WAIT => std::thread::sleep(LOCK_POLL),
            locked => return locked.is_ok(),
        }
    }
}

fn connect(state: &Path, socket: &Path) -> io::Result<UnixStream> {
    // A link would lead to another listener, which would be taken for the daemon.
    if !socket.symlink_metadata()?.file_type().is_socket() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    if socket.as_os_str().as_bytes().len() <= SOCKET_PATH_BYTES_MAX {
        return UnixStream::connect(socket);
    }
    // Through a descriptor of its directory the socket has a short name, however deep it lies.
    let directory = File::open(state)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{CONTROL_SOCKET}", directory.as_raw_fd()))
}
