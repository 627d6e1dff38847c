//! The control protocol on a socket in the state directory, for callers outside the mount (SPEC §11).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode};

use super::conversation::{Afterwards, afterwards, answer_bytes};
use super::{Asker, Project, rights};
use crate::protocol::{CONTROL_SOCKET, ErrorBody, ErrorCode, REQUEST_BYTES_MAX, Response};
use crate::store::{self, Context, Store};
use crate::sys::thread;

/// The most connections at once, each with a thread.
const CONNECTIONS_MAX: usize = 32;
/// The same with the places reserved for who may decide as the owner or root.
const PLACES: usize = CONNECTIONS_MAX + 8;

/// How long a connection may stay silent or leave its answer unread, if nobody needs its place. Longer than a person
/// thinks about `[y/N]`.
const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// A listener, and its name in the file system, which goes when this is dropped. Connections end with the process.
pub struct Socket {
    directory: OwnedFd,
    listener: UnixListener,
}

impl Socket {
    /// Connections that come in wait until [`Self::answer`].
    pub fn open(store: &Store) -> store::Result<Self> {
        let doing = || "open the control socket".to_owned();
        let directory = store.dirs().state().try_clone_to_owned().doing(doing)?;
        let listener = store.vitally(|| listen(&directory).doing(doing))?;
        Ok(Self { directory, listener })
    }

    /// Starts answering, on threads of its own.
    pub fn answer(&self, project: Arc<Project>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        thread::start("control-socket", move || accept_all(&listener, &project)).map(|_detached| ())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(err) = remove(&self.directory) {
            log::warn!("remove {CONTROL_SOCKET}: {err}");
        }
    }
}

fn listen(directory: &OwnedFd) -> io::Result<UnixListener> {
    remove(directory)?;
    // By the descriptor: that keeps the path within a socket's limit of 107 bytes, and no mount can cover it.
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{CONTROL_SOCKET}", directory.as_raw_fd()))?;
    // An asker who may not enter the directory could not change anything either; nobody else needs to connect.
    rustix::fs::chmodat(directory, CONTROL_SOCKET, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    Ok(listener)
}

fn remove(directory: &OwnedFd) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, CONTROL_SOCKET, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn accept_all(listener: &UnixListener, project: &Arc<Project>) {
    let connections = Arc::new(Connections::default());
    for stream in listener.incoming() {
        let accepted = stream.and_then(|stream| accept(stream, project, &connections));
        if let Err(err) = accepted {
            log::warn!("a connection to {CONTROL_SOCKET}: {err}");
            // Out of descriptors or threads: others have to end first, and retrying at once would only burn time.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn accept(stream: UnixStream, project: &Arc<Project>, connections: &Arc<Connections>) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let connection = Arc::new(Connection::new(stream));
    let is_kept = || peer(&connection.stream, project).is_ok_and(|asker| rights::has_kept_places(&asker, project));
    if !connections.enter(&connection, is_kept) {
        let message = format!("{CONNECTIONS_MAX} connections are being answered; try again");
        return (&connection.stream).write_all(&Response::failed(ErrorBody::new(ErrorCode::Busy, message)).to_line());
    }
    let entered = Entered { connections: Arc::clone(connections), connection };
    let project = Arc::clone(project);
    let serve = move || {
        if let Err(err) = converse(&entered.connection, &project) {
            log::debug!("a connection to {CONTROL_SOCKET} ended: {err}");
        }
    };
    thread::start("control-peer", serve).map(|_detached| ())
}

/// The connections that are open, each with a thread.
#[derive(Default)]
struct Connections(Mutex<Vec<Arc<Connection>>>);

struct Connection {
    stream: UnixStream,
    state: Mutex<State>,
    /// True if the peer may use reserved places, and until that is known.
    is_kept: AtomicBool,
}

#[derive(Clone, Copy)]
enum State {
    /// Waits for the peer since then: for its next request, or until it has read an answer.
    Waiting(Instant),
    Working,
    /// Another has its place.
    GivenUp,
}

impl Connections {
    /// Takes a place: a free one, that of the connection which has waited longest for its peer, or a reserved one if the
    /// newcomer may have that. A peer with reserved places gives way last.
    fn enter(&self, newcomer: &Arc<Connection>, is_kept: impl FnOnce() -> bool) -> bool {
        let mut open = self.0.lock();
        if open.len() >= CONNECTIONS_MAX && !give_up_one(&mut open) && !(open.len() < PLACES && is_kept()) {
            return false;
        }
        open.push(Arc::clone(newcomer));
        true
    }
}

/// Closes one connection that waits for its peer, if there is any.
fn give_up_one(open: &mut Vec<Arc<Connection>>) -> bool {
    let waits_since = |connection: &Connection| match *connection.state.lock() {
        State::Waiting(since) => Some((connection.is_kept.load(Ordering::SeqCst), since)),
        State::Working | State::GivenUp => None,
    };
    let mut waiting: Vec<_> = open.iter().filter_map(|one| Some((waits_since(one)?, Arc::clone(one)))).collect();
    waiting.sort_by_key(|(since, _)| *since);
    let given_up = waiting.into_iter().map(|(_, connection)| connection).find(|connection| connection.give_up());
    let Some(given_up) = given_up else { return false };
    open.retain(|one| !Arc::ptr_eq(one, &given_up));
    true
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        Self { stream, state: Mutex::new(State::Waiting(Instant::now())), is_kept: AtomicBool::new(true) }
    }

    /// Returns false if it works on a request by now.
    fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        if !matches!(*state, State::Waiting(_)) {
            return false;
        }
        *state = State::GivenUp;
        // Its thread finds that out at once.
        if let Err(err) = self.stream.shutdown(Shutdown::Both) {
            log::debug!("close a connection to {CONTROL_SOCKET}: {err}");
        }
        true
    }

    /// Returns false if the connection has been given up.
    fn becomes(&self, next: State) -> bool {
        let mut state = self.state.lock();
        let is_open = !matches!(*state, State::GivenUp);
        if is_open {
            *state = next;
        }
        is_open
    }
}

/// A place that is free again when this is dropped.
struct Entered {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.0.lock().retain(|one| !Arc::ptr_eq(one, &self.connection));
    }
}

/// Reads a line of request and writes a line of answer, until the peer has enough.
fn converse(connection: &Connection, project: &Project) -> io::Result<()> {
    let stream = &connection.stream;
    let asker = peer(stream, project)?;
    connection.is_kept.store(rights::has_kept_places(&asker, project), Ordering::SeqCst);
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        requests.by_ref().take(REQUEST_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() || !connection.becomes(State::Working) {
            return Ok(());
        }
        let answered = answer_bytes(&line, &asker.again(project), project);
        connection.becomes(State::Waiting(Instant::now()));
        let mut writer = stream;
        let delivered = writer.write_all(&answered.line);
        let what = answered.afterwards;
        afterwards(what, project);
        delivered?;
        if let Some(receipt) = answered.receipt {
            receipt.note(project);
        }
        // The rest of an overlong line would be taken for requests.
        if line.len() > REQUEST_BYTES_MAX || what == Afterwards::End {
            return Ok(());
        }
        connection.becomes(State::Waiting(Instant::now()));
    }
}

fn peer(stream: &UnixStream, project: &Project) -> io::Result<Asker> {
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or_default();
    Ok(Asker::by_ids(pid, (credentials.uid.as_raw(), credentials.gid.as_raw()), project))
}
