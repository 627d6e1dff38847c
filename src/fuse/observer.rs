//! Tells the kernel what to forget. What needs no lock of the kernel's is told at once; what waits for pages or for a
//! directory is told by a thread of its own, since the request that holds them may be the one being answered.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use crate::overlay::{NodeId, Observer};

/// How long a reply waits for the kernel to forget. Only a directory kept locked by a request that lasts makes it wait at
/// all, and after a second what is cached has lapsed by itself.
const CATCH_UP_MAX: Duration = super::attr::TTL;

enum Forget {
    Content(NodeId),
    Entry(NodeId, OsString),
    /// Not for the kernel: says that all before it was told.
    CaughtUp(Sender<()>),
}

/// Puts into the queue what the kernel is to forget.
#[derive(Clone)]
pub struct Teller(Sender<Forget>);

/// The other end of the queue.
pub struct Queue(Receiver<Forget>);

pub struct KernelCache {
    notifier: Notifier,
    teller: Teller,
}

pub fn queue() -> (Teller, Queue) {
    let (sender, receiver) = channel();
    (Teller(sender), Queue(receiver))
}

impl Teller {
    /// Waits until the kernel has forgotten what was asked before now.
    pub fn catch_up(&self) {
        let (done, wait) = channel();
        self.put(Forget::CaughtUp(done));
        if let Err(err) = wait.recv_timeout(CATCH_UP_MAX) {
            log::debug!("wait for the kernel to forget: {err}");
        }
    }

    fn put(&self, forget: Forget) {
        if self.0.send(forget).is_err() {
            log::debug!("nobody is left to tell the kernel: the session has ended");
        }
    }
}

impl Queue {
    /// Until no teller is left.
    pub fn run(self, notifier: &Notifier) {
        for forget in self.0 {
            match forget {
                // From the first byte to the last.
                Forget::Content(node) => told("content", notifier.inval_inode(INodeNo(node.0), 0, 0)),
                Forget::Entry(parent, name) => told("an entry", notifier.inval_entry(INodeNo(parent.0), &name)),
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
    pub fn new(notifier: Notifier, teller: Teller) -> Self {
        Self { notifier, teller }
    }
}

impl Observer for KernelCache {
    fn attributes_changed(&self, node: NodeId) {
        // A negative offset means the attributes alone, for which no page is locked.
        told("attributes", self.notifier.inval_inode(INodeNo(node.0), -1, 0));
    }

    fn content_changed(&self, node: NodeId) {
        self.teller.put(Forget::Content(node));
    }

    fn entry_changed(&self, parent: NodeId, name: &OsStr) {
        self.teller.put(Forget::Entry(parent, name.to_owned()));
    }
}

fn told(what: &str, result: io::Result<()>) {
    match result {
        Ok(()) => {}
        // The kernel had it no more, or is itself gone.
        Err(err)
            if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENOTCONN)) => {}
        Err(err) => log::warn!("make the kernel forget {what}: {err}"),
    }
}
