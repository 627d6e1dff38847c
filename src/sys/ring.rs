//! The kernel's rings of FUSE (FUSE over io_uring, Linux 6.14), as its `include/uapi/linux/fuse.h` has them.
//!
//! There is a ring for each processor, in which the threads that serve offer places. The kernel puts a request into a
//! place of the ring of the processor on which the program runs, and runs that place's thread to take it; one call
//! answers and offers the place again. Requests that no program waits for (FORGET, INTERRUPT) still come by the device.
//!
//! A place belongs to the thread that offers it, and requests are put into it in that thread's own calls only. So a
//! thread has one [`Place`]: while it serves it offers none, and other requests go to other threads.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io_uring::IoringOp;

use super::uring::{Entry, Uring};

/// With more rings than this none are used: each has threads, even that of a processor which the machine does not have
/// yet.
const RINGS_MAX: u16 = 128;

/// Holds `Y` or `N`: whether the kernel permits rings. Only an administrator can write it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// `FUSE_IO_URING_CMD_REGISTER`: offers a place.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: answers what was in it, and offers it again.
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: the header of a request or an answer, the fields of one kind of request, and then the
/// number by which the kernel knows the request and the length of its payload.
const HEADERS_BYTES: usize = OWN_BYTES + 32;
const OP: usize = 128;
const OWN_BYTES: usize = 256;
const COMMIT_ID: usize = OWN_BYTES + 8;
const PAYLOAD_BYTES: usize = OWN_BYTES + 16;
/// `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;
/// `struct fuse_out_header`.
const OUT_HEADER_BYTES: usize = 16;

/// Whether the administrator has switched rings on, and this process may have them (a container's seccomp may refuse).
pub fn try_ring() -> io::Result<()> {
    match std::fs::read_to_string(SWITCH) {
        Ok(switch) if switch.trim() == "Y" => match count()? {
            ..=RINGS_MAX => Uring::new().map(drop),
            many => Err(io::Error::other(format!("{many} processors may be there, more than {RINGS_MAX}"))),
        },
        Ok(_) => Err(io::Error::other(format!("the administrator has not switched them on ({SWITCH})"))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Err(io::Error::other("this kernel has none")),
        Err(err) => Err(err),
    }
}

/// How many rings there are: one for each processor that this machine may ever have.
pub fn count() -> io::Result<u16> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_of(&possible)
        .map(|last| last + 1)
        .ok_or_else(|| io::Error::other(format!("possible processors: {possible:?}")))
}

/// The last number of a list of ranges, such as `0-3,8`.
fn last_of(ranges: &str) -> Option<u16> {
    ranges.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// A request as it arrived.
pub struct Message<'a> {
    /// What all requests begin with.
    pub header: &'a [u8; IN_HEADER_BYTES],
    /// The fields of this kind of request, followed by zeros.
    pub op: &'a [u8],
    /// Names, values and data, one after the other.
    pub payload: &'a [u8],
}

/// Holds one request at a time.
pub struct Place {
    uring: Arc<Uring>,
    device: Arc<OwnedFd>,
    ring: u16,
    /// The answer to the request, which has not gone out yet.
    answer: Option<Entry>,
    headers: Room,
    payload: Room,
    /// Only the thread that has made it may use it: requests are put into it in that thread's calls.
    _of_one_thread: PhantomData<*const ()>,
}

/// Memory that the kernel reads and writes during our calls, and we between them.
struct Room {
    begin: NonNull<u8>,
    length: usize,
}

impl Room {
    fn new(length: usize) -> Self {
        // Zeros that were never touched take no memory yet.
        let room: &mut [u8] = Box::leak(vec![0; length].into_boxed_slice());
        Self { begin: NonNull::from(room).cast(), length }
    }

    fn get(&self) -> &[u8] {
        // SAFETY: `begin` and `length` are those of an allocation that only goes with `self`, and was initialised. The kernel
        // writes to it in `Place::wait` alone, which takes that as mutable.
        unsafe { std::slice::from_raw_parts(self.begin.as_ptr(), self.length) }
    }

    fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is mutable.
        unsafe { std::slice::from_raw_parts_mut(self.begin.as_ptr(), self.length) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: `new` has leaked a boxed slice of this place and length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.begin.as_ptr(), self.length)) });
    }
}

impl Place {
    /// Offers a place in a ring of a session that has agreed on rings. `payload_bytes` bounds requests and answers,
    /// without headers.
    pub fn offer(device: Arc<OwnedFd>, ring: u16, payload_bytes: usize) -> io::Result<Self> {
        let uring = Arc::new(Uring::new()?);
        let (headers, payload) = (Room::new(HEADERS_BYTES), Room::new(payload_bytes));
        let rooms =
            [&headers, &payload].map(|room| libc::iovec { iov_base: room.begin.as_ptr().cast(), iov_len: room.length });
        let place = Self { uring, device, ring, answer: None, headers, payload, _of_one_thread: PhantomData };
        let entry = place.command(REGISTER, 0, &rooms);
        // SAFETY: this thread has just made the io_uring. The kernel reads `rooms` in this call, and what they lead to goes after
        // the io_uring does.
        unsafe { place.uring.enter(Some(&entry), false) }?;
        // The kernel says at once if it does not accept the place.
        match place.uring.done() {
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Ok(place),
        }
    }

    /// Lets other threads see whether a request is here that was not taken.
    pub fn news(&self) -> News {
        News(self.uring.clone())
    }

    /// `struct io_uring_sqe`, with a `struct fuse_uring_cmd_req` at its end.
    fn command(&self, command: u32, commit: u64, rooms: &[libc::iovec]) -> Entry {
        let mut entry = [0; 128];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[IoringOp::UringCmd as u8]);
        put(4, &self.device.as_raw_fd().to_ne_bytes());
        put(8, &command.to_ne_bytes());
        put(16, &(rooms.as_ptr() as u64).to_ne_bytes());
        put(24, &(rooms.len() as u32).to_ne_bytes());
        put(56, &commit.to_ne_bytes());
        put(64, &self.ring.to_ne_bytes());
        entry
    }

    /// Sends the answer to the last request and waits for the next. Returns false at the session's end.
    pub fn wait(&mut self) -> io::Result<bool> {
        let answer = self.answer.take();
        // SAFETY: this thread has made the io_uring, and what was submitted last has been taken back. The rooms are the kernel's
        // for as long as this call takes, in which `self` is ours alone.
        unsafe { self.uring.enter(answer.as_ref(), true) }?;
        let Some(error) = self.uring.done().filter(|done| *done != 0) else { return Ok(true) };
        self.take();
        match [libc::ENOTCONN, libc::ECANCELED].contains(&-error) {
            true => Ok(false),
            false => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// The request that came.
    pub fn message(&self) -> Message<'_> {
        let headers = self.headers.get();
        let length = u32::from_ne_bytes(bytes(headers, PAYLOAD_BYTES)) as usize;
        Message {
            header: headers.first_chunk().expect("headers begin with that of a request"),
            op: &headers[OP..OWN_BYTES],
            payload: &self.payload.get()[..length],
        }
    }

    /// Marks the request as taken: it is no news any more.
    pub fn take(&self) {
        self.uring.take();
    }

    /// Answers the request with an errno, or 0 and `payload`. The answer goes out with the next [`Self::wait`].
    pub fn answer(&mut self, errno: i32, payload: &[u8]) {
        let headers = self.headers.get_mut();
        let (unique, commit) = (bytes::<8>(headers, 8), u64::from_ne_bytes(bytes(headers, COMMIT_ID)));
        let lengths = [OUT_HEADER_BYTES + payload.len(), payload.len()].map(|length| length as u32);
        headers[..4].copy_from_slice(&lengths[0].to_ne_bytes());
        headers[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        headers[8..16].copy_from_slice(&unique);
        headers[PAYLOAD_BYTES..PAYLOAD_BYTES + 4].copy_from_slice(&lengths[1].to_ne_bytes());
        self.payload.get_mut()[..payload.len()].copy_from_slice(payload);
        self.answer = Some(self.command(COMMIT_AND_FETCH, commit, &[]));
    }
}

/// Tells whether a place has a request that its thread has not taken.
pub struct News(Arc<Uring>);

impl News {
    /// For a moment it may miss a request that the kernel is about to put there.
    pub fn is_there(&self) -> bool {
        self.0.has_news()
    }

    pub fn is_of(&self, place: &Place) -> bool {
        Arc::ptr_eq(&self.0, &place.uring)
    }
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from[at..at + N].try_into().expect("so many bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_possible_processor_is_found_in_lists_of_ranges() {
        for (ranges, last) in
            [("0\n", Some(0)), ("0-1\n", Some(1)), ("0-3,8\n", Some(8)), ("0,4-7", Some(7)), ("", None)]
        {
            assert_eq!(last_of(ranges), last, "{ranges:?}");
        }
    }
}
