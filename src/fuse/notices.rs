//! What the daemon tells the kernel without being asked, written as the kernel's `include/uapi/linux/fuse.h` has it.
//!
//! By hand, since fuser 0.18 can neither let a name expire nor say whether the kernel knew what it was told to forget.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::overlay::NodeId;

const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// The kernel asks for the name again before it uses it, and keeps it until then (`FUSE_EXPIRE_ONLY`, Linux 6.2).
const EXPIRE_ONLY: u32 = 1;
/// Length, code and the number of a request, which is 0 in a notice.
const HEADER_BYTES: usize = 16;

/// A way to the kernel beside the session's own.
#[derive(Clone)]
pub struct Notices(Arc<OwnedFd>);

impl Notices {
    /// `device` is the session's device, by a further descriptor.
    pub fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    /// Drops the attributes of a node. `ENOENT` when the kernel does not know the node.
    pub fn attributes(&self, node: NodeId) -> io::Result<()> {
        // A negative offset means the attributes alone, for which no page is locked.
        self.inode(node, -1)
    }

    /// Drops the attributes of a node, and its content from the first byte to the last.
    pub fn content(&self, node: NodeId) -> io::Result<()> {
        self.inode(node, 0)
    }

    /// Drops what a name stands for, with all that is known below it.
    pub fn entry(&self, parent: NodeId, name: &OsStr) -> io::Result<()> {
        self.name(parent, name, 0)
    }

    /// Ends the time for which a name holds, and drops nothing.
    pub fn entry_expires(&self, parent: NodeId, name: &OsStr) -> io::Result<()> {
        match self.name(parent, name, EXPIRE_ONLY) {
            // Older kernels do not know the flag.
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => self.entry(parent, name),
            other => other,
        }
    }

    fn inode(&self, node: NodeId, offset: i64) -> io::Result<()> {
        let to_the_end = 0_i64;
        let fields = [node.0.to_ne_bytes(), offset.to_ne_bytes(), to_the_end.to_ne_bytes()];
        self.send(INVALIDATE_INODE, &fields.concat())
    }

    fn name(&self, parent: NodeId, name: &OsStr, flags: u32) -> io::Result<()> {
        let length = u32::try_from(name.len()).map_err(io::Error::other)?;
        let mut body = parent.0.to_ne_bytes().to_vec();
        body.extend(length.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend(name.as_bytes());
        body.push(0);
        self.send(INVALIDATE_ENTRY, &body)
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(HEADER_BYTES + body.len()).map_err(io::Error::other)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(code.to_ne_bytes());
        message.extend(0_u64.to_ne_bytes());
        message.extend(body);
        rustix::io::write(&self.0, &message)?;
        Ok(())
    }
}
