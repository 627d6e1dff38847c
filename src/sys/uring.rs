//! An io_uring of one thread, with one entry under way at a time.
//!
//! Written by hand because the `io-uring` crate does not show whether something waits for that thread, which other
//! threads want to know ([`Uring::has_news`]).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags, IoringSetupFlags, IoringSqFlags,
    io_uring_enter, io_uring_params, io_uring_setup,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `struct io_uring_sqe`, twice as long as usual, for commands to a device.
pub type Entry = [u8; 128];
/// One is written, and the kernel may hold one.
const ENTRIES: u32 = 2;
/// `struct io_uring_cqe`: eight bytes of ours, the result, flags.
const COMPLETION_BYTES: usize = 16;
const RESULT: usize = 8;

/// How often one entry is tried, and how long is waited in between.
const TRIES_MAX: u32 = 10_000;
const PAUSE: Duration = Duration::from_millis(1);

pub struct Uring {
    fd: OwnedFd,
    /// Both rings: indices and flags, what is completed, and which entries are submitted.
    rings: Mapping,
    entries: Mapping,
    params: io_uring_params,
}

// SAFETY: others than the thread that made it only read words that the kernel and that thread write as atomics.
unsafe impl Send for Uring {}
// SAFETY: as above.
unsafe impl Sync for Uring {}

impl Uring {
    /// Makes one for this thread. The kernel does its work for the thread in the thread's own calls of [`Self::enter`],
    /// and interrupts none of its other calls.
    pub fn new() -> io::Result<Self> {
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::SQE128
            | IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::TASKRUN_FLAG;
        // SAFETY: the kernel fills in one `io_uring_params`, and is given no memory of ours.
        let fd = unsafe { io_uring_setup(ENTRIES, &mut params) }?;
        if !params.features.contains(IoringFeatureFlags::SINGLE_MMAP) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let submitted = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let completed = params.cq_off.cqes as usize + params.cq_entries as usize * COMPLETION_BYTES;
        let rings = Mapping::new(&fd, submitted.max(completed), IORING_OFF_SQ_RING)?;
        let entries = Mapping::new(&fd, params.sq_entries as usize * size_of::<Entry>(), IORING_OFF_SQES)?;
        Ok(Self { fd, rings, entries, params })
    }

    /// Submits `entry`, if there is one, and waits until one is done, if `awaited`.
    ///
    /// # Safety
    /// Call only from the thread that made this ring, and only with no entry still in flight. The memory that an entry points
    /// to belongs to the kernel until the entry completes.
    pub unsafe fn enter(&self, entry: Option<&Entry>, awaited: bool) -> io::Result<()> {
        if let Some(entry) = entry {
            self.write(entry);
        }
        let mut unsubmitted = u32::from(entry.is_some());
        let flags = if awaited { IoringEnterFlags::GETEVENTS } else { IoringEnterFlags::empty() };
        let mut tries = 0;
        loop {
            // SAFETY: what the entry leads to is as the caller says.
            match unsafe { io_uring_enter(&self.fd, unsubmitted, awaited.into(), flags) } {
                Ok(submitted) => unsubmitted -= submitted.min(unsubmitted),
                Err(Errno::INTR) => {}
                // The kernel is short of memory. The entry is written and waits here, so nothing is done twice.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) if tries < TRIES_MAX => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(err) => return Err(err.into()),
            }
            if unsubmitted == 0 && (!awaited || self.done().is_some()) {
                return Ok(());
            }
        }
    }

    fn write(&self, entry: &Entry) {
        let tail = self.rings.word(self.params.sq_off.tail);
        let next = tail.load(Ordering::Relaxed);
        let at = next & (self.params.sq_entries - 1);
        self.entries.write(at as usize * size_of::<Entry>(), entry);
        let listed = self.params.sq_off.array + at * size_of::<u32>() as u32;
        self.rings.word(listed).store(at, Ordering::Relaxed);
        tail.store(next.wrapping_add(1), Ordering::Release);
    }

    /// The result of the entry that is done, which stays here until [`Self::take`].
    pub fn done(&self) -> Option<i32> {
        let [head, tail] = [self.params.cq_off.head, self.params.cq_off.tail].map(|at| self.rings.word(at));
        let next = head.load(Ordering::Relaxed);
        if next == tail.load(Ordering::Acquire) {
            return None;
        }
        let at = (next & (self.params.cq_entries - 1)) as usize * COMPLETION_BYTES + RESULT;
        let result = self.rings.word(self.params.cq_off.cqes + at as u32).load(Ordering::Relaxed);
        Some(result.cast_signed())
    }

    /// To be called by the thread that made this, after [`Self::done`].
    pub fn take(&self) {
        self.rings.word(self.params.cq_off.head).fetch_add(1, Ordering::Release);
    }

    /// True if the kernel has something for the thread that made this, which it has not taken. For a moment it may miss
    /// what the kernel is about to say.
    pub fn has_news(&self) -> bool {
        let flags = self.rings.word(self.params.sq_off.flags).load(Ordering::Acquire);
        flags & IoringSqFlags::TASKRUN.bits() != 0 || self.done().is_some()
    }
}

/// Memory of an io_uring.
struct Mapping {
    begin: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, length: usize, offset: u64) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel chooses where, so that no memory of ours is replaced.
        let begin = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) }?;
        let begin = NonNull::new(begin.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { begin, length })
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        let at = at as usize;
        assert!(at.is_multiple_of(4) && at + 4 <= self.length, "a word of the mapping");
        // SAFETY: four aligned bytes of a mapping that lives as long as `self`, and that all sides access as atomics.
        unsafe { self.begin.add(at).cast::<AtomicU32>().as_ref() }
    }

    fn write(&self, at: usize, entry: &Entry) {
        assert!(at + entry.len() <= self.length, "an entry of the mapping");
        // SAFETY: inside the mapping, and the kernel reads it only once it is submitted.
        unsafe { self.begin.add(at).cast::<Entry>().write_unaligned(*entry) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped just this, and nothing borrows from `self` any more.
        if let Err(err) = unsafe { munmap(self.begin.as_ptr().cast(), self.length) } {
            log::debug!("unmap an io_uring: {err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const NOP: Entry = [0; 128];

    #[test]
    fn what_is_done_is_news_to_others_until_it_is_taken() {
        let Ok(uring) = Uring::new() else { return eprintln!("this machine lets nobody have an io_uring") };
        let uring = Arc::new(uring);
        for _ in 0..10 {
            assert!(!uring.has_news());
            // SAFETY: this thread has made it, and the entry leads to nothing.
            unsafe { uring.enter(Some(&NOP), true) }.unwrap();
            let others = uring.clone();
            assert!(std::thread::spawn(move || others.has_news()).join().unwrap());
            assert_eq!(uring.done(), Some(0));
            uring.take();
            assert_eq!(uring.done(), None);
        }
    }
}
