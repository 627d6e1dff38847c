//! From a mounted device to a running session. Unmounting is the caller's: another mount namespace may keep the session
//! alive long after, so nobody should wait for its end in order to leave.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use fuser::{Config, Session, SessionACL};

use super::adapter::{Adapter, EVENT_THREADS};
use super::listing::Listings;
use super::notices::Notices;
use super::observer::{self, KernelCache};
use super::readers::Readers;
use super::view::View;
use super::watchers;
use crate::control::Desk;
use crate::overlay::Overlay;
use crate::sys::backing::try_passthrough;
use crate::sys::mount::Door;
use crate::sys::watch::Watches;

/// Who reads and writes what nobody judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// The kernel by itself, where it can: at lower's own speed.
    ByKernel,
    /// The daemon, like everything else.
    ByDaemon,
}

/// How many directories below may be watched, so that the kernel may believe for long what it is told of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watching {
    /// Half of what this user may have.
    #[default]
    AsManyAsMay,
    AtMost(usize),
}

/// A session that answers. Dropping it ends nothing.
pub struct Running {
    /// Gives one message, when the kernel has closed the session: the last mount of it is gone.
    pub ended: Receiver<io::Result<()>>,
}

/// Answers the kernel on a device, to the view of which a path leads, in threads of its own, and becomes the view's observer.
/// Returns when the kernel has been greeted: from then on the mount point answers.
pub fn serve(
    (Door { device, number }, view): (Door, &Path),
    overlay: Arc<Overlay>,
    desk: Arc<Desk>,
    passing: Passing,
    watching: Watching,
) -> io::Result<Running> {
    let (teller, queue) = observer::queue();
    let stack_depth = match passing {
        Passing::ByKernel => Some(overlay.stack_depth().map_err(io::Error::other)?),
        Passing::ByDaemon => None,
    };
    let (herald, heralded) = watchers::herald((view, number), teller.clone());
    let listings = Listings::default();
    let changes = listings.changes();
    let view = View::new(overlay.clone(), desk, teller.clone(), herald.clone(), changes.clone());
    let asked = device.try_clone()?;
    let readers = Arc::new(Readers::new(device.try_clone()?, EVENT_THREADS));
    let adapter = Adapter::new(view, listings, stack_depth, readers.clone());
    // Who may come in is for the mount's own options, which the kernel keeps.
    let session = Session::from_fd(adapter, device, SessionACL::All, config())?;
    // Asked for here and once: every file would get the same answer.
    overlay.set_passes_through(match stack_depth.map(|_| try_passthrough(asked.as_fd())) {
        Some(Ok(())) => true,
        Some(Err(err)) => {
            log::debug!("the kernel does not read and write files by itself: {err}");
            false
        }
        None => false,
    });
    let notices = Notices::new(asked);
    overlay.observe(Box::new(KernelCache::new(notices.clone(), teller, herald, changes)));
    thread::Builder::new().name("kernel-cache".to_owned()).spawn(move || queue.run(&notices))?;
    follow_lower(&overlay, watching)?;
    thread::Builder::new().name("readers".to_owned()).spawn(move || readers.watch_until_the_end())?;
    let (sender, ended) = channel();
    thread::Builder::new().name("session".to_owned()).spawn(move || {
        if sender.send(session.run()).is_err() {
            log::debug!("nobody waits for the session's end");
        }
    })?;
    thread::Builder::new().name("watchers".to_owned()).spawn(move || heralded.run())?;
    Ok(Running { ended })
}

/// Watches lower from before the first request on. Without watches the kernel is told that nothing holds for long.
fn follow_lower(overlay: &Arc<Overlay>, watching: Watching) -> io::Result<()> {
    let max = match watching {
        Watching::AtMost(0) => return Ok(()),
        Watching::AtMost(max) => Some(max),
        Watching::AsManyAsMay => None,
    };
    match Watches::new(max) {
        Ok(watches) => overlay.watch_lower(watches),
        Err(err) => {
            log::warn!("watch the project, so that changes below show at once: {err}");
            return Ok(());
        }
    }
    let overlay = overlay.clone();
    thread::Builder::new().name("lower".to_owned()).spawn(move || {
        if let Err(err) = overlay.follow_lower() {
            log::error!("what changes below may show late: {err}");
        }
    })?;
    Ok(())
}

/// All threads read from one descriptor: a descriptor each would need /dev/fuse opened again, which a sandbox may not
/// allow, and fuser then ends the session.
fn config() -> Config {
    let mut config = Config::default();
    config.n_threads = Some(EVENT_THREADS);
    config
}
