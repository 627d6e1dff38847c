//! A descriptor that is left for the process that comes next. While it lies here, no process has it open.
//!
//! It lies in a socket of which a process and its children have both ends. A process that is killed leaves it there for
//! the next; one that ends well takes it out before, so that nothing stays open behind it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

#[derive(Debug)]
pub struct Parcel {
    front: UnixStream,
    back: UnixStream,
}

impl Parcel {
    /// Makes one with nothing in it.
    pub fn empty() -> io::Result<Self> {
        let (front, back) = UnixStream::pair()?;
        Ok(Self { front, back })
    }

    /// Puts a descriptor in; only one at a time may lie there.
    pub fn put(&self, content: BorrowedFd<'_>) -> io::Result<()> {
        send(&self.front, &[1], Some(content))
    }

    /// Returns a copy of what lies in it.
    pub fn look(&self) -> io::Result<Option<OwnedFd>> {
        self.receive(RecvFlags::PEEK)
    }

    pub fn take(&self) -> io::Result<Option<OwnedFd>> {
        self.receive(RecvFlags::empty())
    }

    fn receive(&self, flags: RecvFlags) -> io::Result<Option<OwnedFd>> {
        match receive(&self.back, &mut [0], flags | RecvFlags::DONTWAIT) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => Ok(received?.1),
        }
    }
}

/// Sends bytes, and with the first of them a descriptor.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::other("no room for a descriptor"));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Returns how many bytes have come, and the descriptor that came with them.
pub(super) fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(stream, &mut pieces, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    use crate::sys::file::Meta;
    use crate::sys::process::standing_in;

    #[test]
    fn what_lies_in_it_can_be_had_until_it_is_taken_out_and_is_open_nowhere() {
        let (scratch, parcel) = (tempfile::tempdir().expect("scratch"), Parcel::empty().expect("a parcel"));
        assert!(parcel.look().expect("a look").is_none());
        let directory = std::fs::File::open(scratch.path()).expect("a directory");
        let inode = Meta::of(directory.as_fd()).expect("its facts").inode;
        parcel.put(directory.as_fd()).expect("put");
        drop(directory);
        for _ in 0..2 {
            let seen = parcel.look().expect("a look").expect("what lies in it");
            assert_eq!(Meta::of(seen.as_fd()).expect("its facts").inode, inode);
        }
        assert!(standing_in(scratch.path()).is_empty());
        assert!(parcel.take().expect("take").is_some() && parcel.look().expect("a look").is_none());
    }
}
