//! From a mounted device to a running session. Unmounting is up to the caller, which should not wait for the session to
//! end: another mount namespace may keep it alive long after.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use fuser::{Config, Session, SessionACL};

use super::adapter::{Adapter, EVENT_THREADS, PAYLOAD_BYTES};
use super::door::Door;
use super::listing::Listings;
use super::notices::Notices;
use super::observer::{self, KernelCache};
use super::readers::Readers;
use super::ring::{Crews, Server};
use super::view::View;
use super::watchers;
use crate::control::Desk;
use crate::overlay::Overlay;
use crate::sys::backing::try_passthrough;
use crate::sys::mount;
use crate::sys::ring;
use crate::sys::thread;
use crate::sys::watch::Watches;

/// Whether the kernel or the daemon reads and writes files that are not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// The kernel by itself, where it can: at lower's own speed.
    ByKernel,
    /// The daemon, like everything else.
    ByDaemon,
}

/// How many directories below may be watched. What the kernel is told of a watched one holds for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watching {
    /// Half of what this user may have.
    #[default]
    AsManyAsMay,
    AtMost(usize),
}

/// The way by which requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// The device that is mounted, as with any FUSE file system.
    #[default]
    Device,
    /// The kernel's rings, where the administrator has switched them on.
    Rings,
}

/// Which of the kernel's abilities are used, where it has them.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    pub passing: Passing,
    pub watching: Watching,
    pub channel: Channel,
}

/// A session that answers. Dropping it ends nothing.
pub struct Running {
    /// Receives one message, once the kernel has closed the session: its last mount is gone.
    pub ended: Receiver<io::Result<()>>,
}

/// Answers the requests that the kernel sends on `device`, in threads of its own, and becomes the overlay's observer.
/// `view` is a path that leads to the mounted view. Returns once the kernel has been greeted: from then on the mount
/// point answers.
pub fn serve(
    (mount::Door { device, number }, view): (mount::Door, &Path),
    overlay: Arc<Overlay>,
    desk: Arc<Desk>,
    means: Means,
) -> io::Result<Running> {
    let (teller, queue) = observer::queue();
    let stack_depth = match means.passing {
        Passing::ByKernel => Some(overlay.stack_depth().map_err(io::Error::other)?),
        Passing::ByDaemon => None,
    };
    let (herald, heralded) = watchers::herald((view, number), teller.clone());
    let listings = Listings::default();
    let changes = listings.changes();
    let view = View::new(overlay.clone(), desk, teller.clone(), herald.clone(), changes.clone());
    let asked = Arc::new(device.try_clone()?);
    let readers = Arc::new(Readers::new(device.try_clone()?, EVENT_THREADS));
    let door = Arc::new(Door { view, listings });
    let tried = (means.channel == Channel::Rings).then(ring::try_ring);
    let by_rings = Arc::new(AtomicBool::new(tried.as_ref().is_some_and(Result::is_ok)));
    let adapter = Adapter::new(door.clone(), stack_depth, by_rings.clone(), readers.clone());
    // Access is decided by the mount's own options, which the kernel enforces.
    let session = Session::from_fd(adapter, device, SessionACL::All, config())?;
    // Tried once, here: the answer would be the same for every file.
    overlay.set_passes_through(match stack_depth.map(|_| try_passthrough(asked.clone())) {
        Some(Ok(())) => true,
        Some(Err(err)) => {
            log::debug!("the kernel does not read and write files by itself: {err}");
            false
        }
        None => false,
    });
    let notices = Notices::new(asked.clone());
    overlay.observe(Box::new(KernelCache::new(notices.clone(), teller, herald, changes)));
    thread::start("kernel-cache", move || queue.run(&notices))?;
    follow_lower(&overlay, means.watching)?;
    thread::start("readers", move || readers.watch_until_the_end())?;
    let has_agreed = by_rings.load(Ordering::SeqCst);
    if has_agreed {
        Crews::start(Server { door, device: asked }, PAYLOAD_BYTES)?;
    }
    if let Some(tried) = tried {
        overlay.traffic().tried_rings(agreed(tried, has_agreed));
    }
    let (sender, ended) = channel();
    thread::start("session", move || {
        if sender.send(session.run()).is_err() {
            log::debug!("nobody waits for the session's end");
        }
    })?;
    thread::start("watchers", move || heralded.run())?;
    Ok(Running { ended })
}

/// Returns `Ok` if requests come by rings, or else the reason why they do not.
fn agreed(tried: io::Result<()>, has_agreed: bool) -> Result<(), String> {
    tried.map_err(|err| err.to_string())?;
    has_agreed.then_some(()).ok_or_else(|| "this kernel has none".to_owned())
}

/// Watches lower, beginning before the first request. Without watches the kernel is told that nothing holds for long.
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
    thread::start("lower", move || {
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
