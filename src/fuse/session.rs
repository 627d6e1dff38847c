//! From a mounted device to a running session. Unmounting is the caller's: another mount namespace may keep the session
//! alive long after, so nobody should wait for its end in order to leave.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use fuser::{Config, Notifier, Session, SessionACL};

use super::adapter::{Adapter, EVENT_THREADS};
use super::observer::{self, KernelCache};
use super::view::View;
use crate::control::Desk;
use crate::overlay::Overlay;

/// A session that answers. Dropping it ends nothing.
pub struct Running {
    pub notifier: Notifier,
    /// Gives one message, when the kernel has closed the session: the last mount of it is gone.
    pub ended: Receiver<io::Result<()>>,
}

/// Answers the kernel on a device that is mounted, in threads of its own, and becomes the view's observer.
/// Returns when the kernel has been greeted: from then on the mount point answers.
pub fn serve(device: OwnedFd, overlay: Arc<Overlay>, desk: Arc<Desk>) -> io::Result<Running> {
    let (teller, queue) = observer::queue();
    let adapter = Adapter::new(View::new(overlay.clone(), desk, teller.clone()));
    // Who may come in is for the mount's own options, which the kernel keeps.
    let session = Session::from_fd(adapter, device, SessionACL::All, config())?;
    let notifier = session.notifier();
    overlay.observe(Box::new(KernelCache::new(notifier.clone(), teller)));
    let told_by = notifier.clone();
    thread::Builder::new().name("kernel-cache".to_owned()).spawn(move || queue.run(&told_by))?;
    let (sender, ended) = channel();
    thread::Builder::new().name("session".to_owned()).spawn(move || {
        if sender.send(session.run()).is_err() {
            log::debug!("nobody waits for the session's end");
        }
    })?;
    Ok(Running { notifier, ended })
}

/// All threads read from one descriptor: a descriptor each would need /dev/fuse opened again, which a sandbox may not
/// allow, and fuser then ends the session.
fn config() -> Config {
    let mut config = Config::default();
    config.n_threads = Some(EVENT_THREADS);
    config
}
