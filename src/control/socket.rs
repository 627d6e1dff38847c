//! The control protocol on a socket in the state directory, for callers outside the mount (SPEC §11).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode};

use super::conversation::{Afterwards, afterwards, answer_bytes};
use super::{Asker, Project};
use crate::protocol::{CONTROL_SOCKET, ErrorBody, ErrorCode, REQUEST_BYTES_MAX, Response};
use crate::store::{self, Context, Store};
use crate::sys::thread;

/// The most connections at once, each with a thread.
const CONNECTIONS_MAX: usize = 32;

/// How long a connection may stay silent or leave its answer unread. Longer than a person thinks about `[y/N]`.
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
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let accepted = stream.and_then(|stream| accept(stream, project, &connections));
        if let Err(err) = accepted {
            log::warn!("a connection to {CONTROL_SOCKET}: {err}");
            // Out of descriptors or threads: others have to end first, and retrying at once would only burn time.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn accept(stream: UnixStream, project: &Arc<Project>, connections: &Arc<AtomicUsize>) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    if connections.load(Ordering::SeqCst) >= CONNECTIONS_MAX {
        let message = format!("{CONNECTIONS_MAX} connections are open; try again");
        return (&stream).write_all(&Response::failed(ErrorBody::new(ErrorCode::Busy, message)).to_line());
    }
    connections.fetch_add(1, Ordering::SeqCst);
    let (project, counted) = (Arc::clone(project), Arc::clone(connections));
    let serve = move || {
        if let Err(err) = converse(&stream, &project) {
            log::debug!("a connection to {CONTROL_SOCKET} ended: {err}");
        }
        counted.fetch_sub(1, Ordering::SeqCst);
    };
    if let Err(err) = thread::start("control-peer", serve) {
        connections.fetch_sub(1, Ordering::SeqCst);
        return Err(err);
    }
    Ok(())
}

/// Reads a line of request and writes a line of answer, until the peer has enough.
fn converse(stream: &UnixStream, project: &Project) -> io::Result<()> {
    let asker = peer(stream, project)?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        requests.by_ref().take(REQUEST_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let answered = answer_bytes(&line, &asker.again(project), project);
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
    }
}

fn peer(stream: &UnixStream, project: &Project) -> io::Result<Asker> {
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or_default();
    Ok(Asker::by_ids(pid, (credentials.uid.as_raw(), credentials.gid.as_raw()), project))
}
