//! Threads that take requests by the rings.
//!
//! ```text
//!   is on offer ──► serves ──► answers ──► is on offer
//!                     │ leaves too few of its ring
//!                     └──► another is started
//! ```
//! A thread serves one request from its beginning to its end, however long that takes. So each ring must have other
//! threads on offer, otherwise every program on that processor would wait for the slowest. Threads that were started
//! stay: a place that is taken back might have a request in it.
//!
//! Consecutive requests arrive in different places, and the kernel decides which thread runs first. Most programs wait
//! for their answers, so nothing depends on it. But no program waits for a RELEASE: a request that comes after one is
//! served after it, unless it takes long ([`Crews::let_releases_go_first`]).
//!
//! A request that comes while all threads of a ring serve waits until one of them answers, although another thread is
//! started: the kernel looks for waiting requests when it gets an answer, not when it gets a place. For that, more
//! programs of one processor must ask in the same moment than threads are on offer, and each must wait for something
//! else. To send a request of our own to the new thread is no remedy: a thread of ours that waits for the view when the
//! daemon is killed keeps it, and the mount, from ending.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::requests::Server;
use crate::sys::processor;
use crate::sys::ring::{self, Message, News, Place};
use crate::sys::thread;

/// How many threads of each ring are to be on offer while one serves.
const SPARE: usize = 2;
/// Threads of all rings. Each stands for a program that waits for its answer, some of them until a person has answered.
const THREADS_MAX: usize = 2048;

/// How long a request waits for a release, at most: that may be judged by a program, or be given no processor.
const PATIENCE: Duration = Duration::from_millis(1);

/// The threads of all rings.
pub struct Crews {
    server: Server,
    payload_bytes: usize,
    threads: AtomicUsize,
    places: RwLock<Vec<News>>,
    releases: Mutex<Releases>,
}

/// Releases that are being served.
#[derive(Default)]
struct Releases {
    count: usize,
    /// When the last of them was taken.
    last: Option<Instant>,
}

/// The threads of one ring.
struct Crew {
    all: Arc<Crews>,
    ring: u16,
    on_offer: AtomicUsize,
}

/// A thread of a crew, counted until it ends, however it does.
struct Counted(Arc<Crew>);

impl Counted {
    fn of(crew: Arc<Crew>) -> Self {
        crew.all.threads.fetch_add(1, Ordering::Relaxed);
        Self(crew)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.all.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of putting a place on offer.
type Offered = io::Result<()>;

impl Crews {
    /// Begins to take requests of a session that has agreed on rings. From then on only FORGET and INTERRUPT come by the
    /// device, and before that nothing does: the kernel waits until each ring has a place.
    pub fn start(server: Server, payload_bytes: usize) -> io::Result<()> {
        let all = Arc::new(Self {
            server,
            payload_bytes,
            threads: AtomicUsize::new(0),
            places: RwLock::default(),
            releases: Mutex::default(),
        });
        let (offered, offers) = channel();
        for ring in 0..ring::count()? {
            let crew = Arc::new(Crew { all: all.clone(), ring, on_offer: AtomicUsize::new(0) });
            for _ in 0..=SPARE {
                let offered = offered.clone();
                crew.add(move |done| offered.send(done).unwrap_or(()))?;
            }
        }
        drop(offered);
        offers.iter().collect()
    }

    /// A program does not wait for the release of what it closes, and its next call may ask for the same file. Requests
    /// that came before the one that this thread has taken are in other threads' places, or those threads have taken
    /// them.
    fn let_releases_go_first(&self) {
        let begun = Instant::now();
        while (self.has_news() || self.is_releasing()) && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
    }

    fn has_news(&self) -> bool {
        self.places.read().iter().any(News::is_there)
    }

    /// True if a release is under way and the latest was taken less than [`PATIENCE`] ago.
    fn is_releasing(&self) -> bool {
        let releases = self.releases.lock();
        releases.count > 0 && releases.last.is_some_and(|last| last.elapsed() < PATIENCE)
    }

    /// Counts a release that is under way until the guard is dropped.
    fn release_begun(&self) -> impl Drop + '_ {
        struct UnderWay<'a>(&'a Crews);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.releases.lock().count -= 1;
            }
        }
        let mut releases = self.releases.lock();
        (releases.count, releases.last) = (releases.count + 1, Some(Instant::now()));
        UnderWay(self)
    }
}

impl Crew {
    /// Starts a thread, which says when it is on offer.
    fn add(self: &Arc<Self>, offered: impl FnOnce(Offered) + Send + 'static) -> io::Result<()> {
        let counted = Counted::of(self.clone());
        let serve = move || {
            let served = counted.0.serve(offered);
            let crew = counted.0.clone();
            drop(counted);
            if let Err(err) = served {
                // The program that asked may wait until the session ends.
                log::error!("take a request by a ring: {err}");
                crew.add_in_need();
            }
        };
        thread::start(&format!("ring-{}", self.ring), serve).map(drop)
    }

    /// Serves until the session ends. An error if it has to stop before; none if it could not begin, which `offered` is
    /// told.
    fn serve(self: &Arc<Self>, offered: impl FnOnce(Offered)) -> io::Result<()> {
        if let Err(err) = processor::stay_on(usize::from(self.ring)) {
            log::debug!("stay on processor {}: {err}", self.ring);
        }
        let server = &self.all.server;
        let mut place = match Place::offer(server.device.clone(), self.ring, self.all.payload_bytes) {
            Ok(place) => place,
            Err(err) => {
                offered(Err(err));
                return Ok(());
            }
        };
        self.all.places.write().push(place.news());
        self.on_offer.fetch_add(1, Ordering::SeqCst);
        offered(Ok(()));
        let served = self.serve_at(&mut place);
        // It has stopped while it waited for a request.
        self.on_offer.fetch_sub(1, Ordering::SeqCst);
        self.all.places.write().retain(|news| !news.is_of(&place));
        served
    }

    /// Serves requests until the session ends.
    fn serve_at(self: &Arc<Self>, place: &mut Place) -> io::Result<()> {
        while place.wait()? {
            let message = place.message();
            let begun = self.all.server.begin(&message).map(|begun| (begun, self.all.release_begun()));
            place.take();
            if self.on_offer.fetch_sub(1, Ordering::SeqCst) <= SPARE {
                self.add_in_need();
            }
            if begun.is_none() {
                self.all.let_releases_go_first();
            }
            let answer = self.answer(&message);
            drop(begun);
            self.on_offer.fetch_add(1, Ordering::SeqCst);
            match answer {
                Ok(bytes) => place.answer(0, &bytes),
                Err(errno) => place.answer(errno, &[]),
            }
        }
        Ok(())
    }

    fn answer(&self, message: &Message<'_>) -> Result<Vec<u8>, i32> {
        // No other thread would answer in place of this one.
        catch_unwind(AssertUnwindSafe(|| self.all.server.answer(message))).unwrap_or(Err(libc::EIO))
    }

    /// Starts another thread where too few are on offer.
    fn add_in_need(self: &Arc<Self>) {
        if self.all.threads.load(Ordering::Relaxed) >= THREADS_MAX {
            return log::warn!("{THREADS_MAX} requests under way; further ones wait");
        }
        let ring = self.ring;
        let added = self.add(move |done| {
            if let Err(err) = done {
                log::debug!("a further place in ring {ring}: {err}");
            }
        });
        if let Err(err) = added {
            log::warn!("start a thread for ring {}: {err}", self.ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::tests::door_to;

    /// What ends is not counted any more: otherwise one that fails for want of something would be missed for ever.
    #[test]
    fn a_thread_that_gets_no_place_is_not_counted() {
        let scratch = tempfile::tempdir().unwrap();
        let (_overlay, door) = door_to(scratch.path());
        let no_device = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let server = Server { door: Arc::new(door), device: no_device };
        let (threads, places, releases) = Default::default();
        let all = Arc::new(Crews { server, payload_bytes: 4096, threads, places, releases });
        let crew = Arc::new(Crew { all: all.clone(), ring: 0, on_offer: AtomicUsize::new(0) });
        let (told, offers) = channel();
        crew.add(move |offered| told.send(offered).unwrap()).unwrap();
        assert!(offers.recv().unwrap().is_err());
        let begun = Instant::now();
        while all.threads.load(Ordering::Relaxed) > 0 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let left = (all.threads.load(Ordering::Relaxed), crew.on_offer.load(Ordering::SeqCst), all.places.read().len());
        assert_eq!(left, (0, 0, 0));
    }
}
