//! Tells the kernel what to forget. A notice that needs no lock of the kernel's is sent at once. One that waits for pages
//! or for a directory is sent by a thread of its own, since the request that holds them may be the one being answered.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::listing::Changes;
use super::notices::Notices;
use super::watchers::Herald;
use crate::model::RelPath;
use crate::overlay::{NodeId, Observer};
use crate::sys::thread;

/// How long a reply waits for the kernel to forget. It waits at all only where a long request keeps a directory locked,
/// and changes may take a second to show (SPEC §2).
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

enum Forget {
    Content(NodeId),
    Entry(NodeId, OsString),
    /// The time for which a name holds, and nothing else about it.
    Expiry(NodeId, OsString),
    /// Not for the kernel: reports that everything before it has been told.
    CaughtUp(Sender<()>),
}

/// Puts into the queue what the kernel is to forget.
#[derive(Clone)]
pub struct Teller(Sender<Forget>);

/// The other end of the queue.
pub struct Queue(Receiver<Forget>);

pub struct KernelCache {
    notices: Notices,
    teller: Teller,
    herald: Herald,
    changes: Changes,
}

pub fn queue() -> (Teller, Queue) {
    let (sender, receiver) = channel();
    (Teller(sender), Queue(receiver))
}

impl Teller {
    /// Waits until the kernel has forgotten what was asked before now.
    pub fn catch_up(&self) {
        if let Err(err) = self.wait(CATCH_UP_MAX) {
            log::debug!("wait for the kernel to forget: {err}");
        }
    }

    fn wait(&self, max: Duration) -> Result<(), RecvTimeoutError> {
        let (done, wait) = channel();
        self.put(Forget::CaughtUp(done));
        wait.recv_timeout(max)
    }

    fn put(&self, forget: Forget) {
        if self.0.send(forget).is_err() {
            log::debug!("nobody is left to tell the kernel: the session has ended");
        }
    }
}

impl Queue {
    /// Tells the kernel everything that is queued, until no teller is left.
    pub fn run(self, notices: &Notices) {
        for forget in self.0 {
            match forget {
                Forget::Content(node) => {
                    told("content", notices.content(node));
                }
                Forget::Entry(parent, name) => tell_name(notices, parent, notices.entry(parent, &name)),
                Forget::Expiry(parent, name) => tell_name(notices, parent, notices.entry_expires(parent, &name)),
                Forget::CaughtUp(done) => {
                    if done.send(()).is_err() {
                        log::debug!("who waited for the kernel to forget has given up");
                    }
                }
            }
        }
    }
}

impl KernelCache {
    pub fn new(notices: Notices, teller: Teller, herald: Herald, changes: Changes) -> Self {
        Self { notices, teller, herald, changes }
    }
}

impl Observer for KernelCache {
    fn attributes_changed(&self, node: NodeId) -> bool {
        told("attributes", self.notices.attributes(node))
    }

    fn content_changed(&self, node: NodeId) {
        self.teller.put(Forget::Content(node));
    }

    /// Before the kernel forgets a page that was stored to, it writes it and waits for our answer. (syncfs(2) does not wait
    /// for that.) The thread is one of its own, since another notice may be waiting for a program.
    fn take_stores(&self, nodes: &[NodeId], max: Duration) {
        let (teller, queue) = queue();
        nodes.iter().for_each(|node| teller.put(Forget::Content(*node)));
        let notices = self.notices.clone();
        let started = thread::start("write-back", move || queue.run(&notices));
        let taken = started.and_then(|_detached| teller.wait(max).map_err(io::Error::other));
        if let Err(err) = taken {
            log::warn!("have the kernel write what was stored through mappings: {err}");
        }
    }

    fn names_changed(&self, dir: NodeId) {
        self.changes.note(dir.0);
    }

    fn entry_changed(&self, parent: NodeId, name: &OsStr) {
        self.changes.note(parent.0);
        self.teller.put(Forget::Entry(parent, name.to_owned()));
    }

    fn entry_doubted(&self, parent: NodeId, name: &OsStr) {
        self.changes.note(parent.0);
        self.teller.put(Forget::Expiry(parent, name.to_owned()));
    }

    fn shows_other(&self, path: &RelPath) {
        self.herald.tell(path);
    }
}

/// With a name that it knows, the kernel forgets the listing that it keeps of the directory. It keeps one without knowing
/// the names in it, and where only upper changes, the directory's times do not tell.
fn tell_name(notices: &Notices, parent: NodeId, result: io::Result<()>) {
    if !told("an entry", result) {
        told("a listing", notices.content(parent));
    }
}

/// Logs a failure. Returns whether the kernel knew what it was told to forget.
fn told(what: &str, result: io::Result<()>) -> bool {
    match result {
        Ok(()) => return true,
        // The kernel no longer had it, or is itself gone.
        Err(err)
            if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENOTCONN)) => {}
        Err(err) => log::warn!("make the kernel forget {what}: {err}"),
    }
    false
}
