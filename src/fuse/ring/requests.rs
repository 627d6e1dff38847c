//! One method per request, as in `adapter`: read it, ask the view, write the answer.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, WriteFlags};

use super::super::answer::{OpenedFile, PASSED_FLAGS, Xattr};
use super::super::attr::{MISSING_TTL, Named, Shown, nothing};
use super::super::door::Door;
use super::super::listing::Entry;
use super::super::view::{Source, View, Whose, open_file};
use super::wire::{self, Bytes, Fields};
use crate::model::Timestamp;
use crate::overlay::{Caller, Result, SetAttributes, SetTime};
use crate::sys;
use crate::sys::backing::Backing;
use crate::sys::ring::Message;

/// The part of the kernel's `enum fuse_opcode` that is used here. A feature that was not asked for sends no requests, and
/// for every other opcode the answer is ENOSYS: never ask again.
mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const IOCTL: u32 = 39;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

/// `FATTR_*`: which fields of a SETATTR mean something.
mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// `FUSE_FSYNC_FDATASYNC`.
const DATA_ALONE: u32 = 1;

type Answer = std::result::Result<Bytes, Errno>;

/// Answers the requests that come by the rings.
pub struct Server {
    pub door: Arc<Door>,
    pub device: Arc<OwnedFd>,
}

/// A request with its header decoded.
struct Request<'a> {
    opcode: u32,
    node: INodeNo,
    caller: Caller,
    fields: Fields<'a>,
    payload: Fields<'a>,
}

impl<'a> Request<'a> {
    /// `struct fuse_in_header`.
    fn read(message: &Message<'a>) -> Option<Self> {
        let mut header = Fields(message.header);
        let (_length, opcode, _unique) = (header.u32()?, header.u32()?, header.u64()?);
        let node = INodeNo(header.u64()?);
        let (uid, gid, pid) = (header.u32()?, header.u32()?, header.u32()?);
        let caller = Caller { pid, uid, gid, umask: 0 };
        Some(Self { opcode, node, caller, fields: Fields(message.op), payload: Fields(message.payload) })
    }

    fn handle(&mut self) -> Option<FileHandle> {
        self.fields.u64().map(FileHandle)
    }
}

impl Server {
    /// Called before a request is served, for what later requests must know of it. What it returns is to be kept until
    /// the request is answered.
    pub fn begin(&self, message: &Message<'_>) -> Option<impl Drop + '_> {
        let mut request = Request::read(message)?;
        match request.opcode {
            opcode::RELEASE => Some(self.door.view.release_begun(request.handle()?)),
            opcode::RELEASEDIR => {
                self.door.listings.release(request.handle()?);
                None
            }
            _ => None,
        }
    }

    /// The bytes of an answer, or its errno.
    pub fn answer(&self, message: &Message<'_>) -> std::result::Result<Vec<u8>, i32> {
        let answer = Request::read(message).and_then(|request| self.ask(request));
        match answer {
            Some(Ok(bytes)) => Ok(bytes.0),
            Some(Err(errno)) => Err(errno.code()),
            None => {
                log::error!("a request that is too short: {:?}", message.header);
                Err(libc::EIO)
            }
        }
    }

    /// Returns `None` if a field is missing.
    fn ask(&self, request: Request<'_>) -> Option<Answer> {
        let Request { opcode, node, .. } = request;
        match opcode {
            opcode::LOOKUP => self.lookup(request),
            opcode::GETATTR => Some(self.attempt("getattr", |view| view.attributes(node), |shown| attributes(&shown))),
            opcode::SETATTR => self.setattr(request),
            opcode::READLINK => {
                Some(self.attempt("readlink", |view| view.read_symlink(node), |target| Bytes(target.into_vec())))
            }
            opcode::SYMLINK => self.symlink(request),
            opcode::MKNOD => self.mknod(request),
            opcode::MKDIR => self.mkdir(request),
            opcode::UNLINK => self.unlink(request),
            opcode::RMDIR => self.rmdir(request),
            opcode::RENAME | opcode::RENAME2 => self.rename(request),
            opcode::LINK => self.link(request),
            opcode::OPEN => self.open(request),
            opcode::CREATE => self.create(request),
            opcode::READ => self.read(request),
            opcode::WRITE => self.write(request),
            opcode::STATFS => Some(self.attempt("statfs", View::statfs, |stat| Bytes::default().statfs(&stat))),
            opcode::RELEASE => self.release(request),
            opcode::FSYNC => self.fsync(request),
            opcode::SETXATTR => self.setxattr(request),
            opcode::GETXATTR => self.getxattr(request),
            opcode::LISTXATTR => self.listxattr(request),
            opcode::REMOVEXATTR => self.removexattr(request),
            opcode::FLUSH => self.flush(request),
            opcode::OPENDIR => Some(self.attempt(
                "opendir",
                |view| self.door.listings.open(view, node),
                |(handle, flags)| opened_at(Bytes::default(), handle, flags, 0),
            )),
            opcode::READDIR => self.readdir(request),
            opcode::READDIRPLUS => self.readdirplus(request),
            opcode::RELEASEDIR => {
                // [`Self::begin`] has released it.
                self.door.view.note_request("releasedir");
                Some(Ok(Bytes::default()))
            }
            opcode::FSYNCDIR => Some(self.attempt("fsyncdir", |view| view.sync_dir(node), nothing_more)),
            opcode::FALLOCATE => self.fallocate(request),
            opcode::LSEEK => self.lseek(request),
            opcode::COPY_FILE_RANGE => self.copy_file_range(request),
            opcode::IOCTL => Some(Err(Errno::ENOTTY)),
            _ => Some(Err(Errno::ENOSYS)),
        }
    }

    fn lookup(&self, Request { node, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let name = payload.name()?;
        Some(self.attempt("lookup", |view| view.lookup(node, name), named))
    }

    fn setattr(&self, Request { node, caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (set, handle) = set_attributes(&mut fields)?;
        let ask = |view: &View| view.set_attributes(node, handle, &set, &caller);
        Some(self.attempt("setattr", ask, |shown| attributes(&shown)))
    }

    fn symlink(&self, Request { node, caller, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (name, target) = (payload.name()?, payload.name()?);
        Some(self.attempt("symlink", |view| view.symlink(node, name, target, &caller), |shown| entry(&shown)))
    }

    fn mknod(&self, Request { node, mut caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (mode, device) = (fields.u32()?, fields.u32()?.into());
        let name = payload.name()?;
        caller.umask = fields.u32()?;
        Some(self.attempt("mknod", |view| view.mknod(node, name, mode, device, &caller), |shown| entry(&shown)))
    }

    fn mkdir(&self, Request { node, mut caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (mode, name) = (fields.u32()?, payload.name()?);
        caller.umask = fields.u32()?;
        Some(self.attempt("mkdir", |view| view.mkdir(node, name, mode, &caller), |shown| entry(&shown)))
    }

    fn unlink(&self, Request { node, caller, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let name = payload.name()?;
        Some(self.attempt("unlink", |view| view.unlink(node, name, &caller), nothing_more))
    }

    fn rmdir(&self, Request { node, caller, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let name = payload.name()?;
        Some(self.attempt("rmdir", |view| view.rmdir(node, name, &caller), nothing_more))
    }

    fn rename(&self, Request { opcode, node, caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let new_parent = INodeNo(fields.u64()?);
        let flags = if opcode == opcode::RENAME2 { fields.u32()? } else { 0 };
        let flags = sys::RenameFlags::from_bits_retain(flags);
        let (from, to) = ((node, payload.name()?), (new_parent, payload.name()?));
        Some(self.attempt("rename", |view| view.rename(from, to, flags, &caller), nothing_more))
    }

    fn link(&self, Request { node, caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (of, name) = (INodeNo(fields.u64()?), payload.name()?);
        Some(self.attempt("link", |view| view.link(of, node, name, &caller), |shown| entry(&shown)))
    }

    fn open(&self, Request { node, caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let flags = fields.u32()?.cast_signed();
        Some(self.attempt(
            "open",
            |view| view.open(node, flags, &caller),
            |opened| self.opened(Bytes::default(), &opened),
        ))
    }

    fn create(&self, Request { node, mut caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (flags, mode, name) = (fields.u32()?.cast_signed(), fields.u32()?, payload.name()?);
        caller.umask = fields.u32()?;
        let tell = |(shown, opened): (Shown, OpenedFile)| self.opened(entry(&shown), &opened);
        Some(self.attempt("create", |view| view.create(node, name, mode, flags, &caller), tell))
    }

    fn read(&self, Request { caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset, size) = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()?);
        Some(self.attempt("read", |view| view.read(handle, offset, size as usize, &caller), Bytes))
    }

    fn write(&self, Request { caller, mut fields, payload, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset, size) = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()?);
        let (write_flags, _lock_owner, flags) = (fields.u32()?, fields.u64()?, fields.u32()?.cast_signed());
        let data = payload.0.get(..size as usize)?;
        let write = |view: &View| match open_file(handle) {
            Whose::Overlay(handle) => {
                let from = Source::of(WriteFlags::from_bits_retain(write_flags), &caller);
                view.write(handle, offset, data, flags, from)
            }
            Whose::Desk(handle) => view.write_at_desk(handle, data, &caller),
        };
        Some(self.attempt("write", write, written))
    }

    fn release(&self, Request { mut fields, .. }: Request<'_>) -> Option<Answer> {
        let handle = FileHandle(fields.u64()?);
        Some(self.attempt("release", |view| view.release(handle), nothing_more))
    }

    fn fsync(&self, Request { mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, flags) = (FileHandle(fields.u64()?), fields.u32()?);
        Some(self.attempt("fsync", |view| view.fsync(handle, flags & DATA_ALONE != 0), nothing_more))
    }

    fn setxattr(&self, Request { node, caller, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (size, flags) = (fields.u32()? as usize, fields.u32()?.cast_signed());
        let (name, value) = (payload.name()?, payload.0.get(..size)?);
        Some(self.attempt("setxattr", |view| view.set_xattr(node, name, value, flags, &caller), nothing_more))
    }

    fn getxattr(&self, Request { node, mut fields, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let (size, name) = (fields.u32()?, payload.name()?);
        Some(self.attempt("getxattr", |view| view.get_xattr(node, name, size), xattr))
    }

    fn listxattr(&self, Request { node, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let size = fields.u32()?;
        Some(self.attempt("listxattr", |view| view.list_xattrs(node, size), xattr))
    }

    fn removexattr(&self, Request { node, caller, mut payload, .. }: Request<'_>) -> Option<Answer> {
        let name = payload.name()?;
        Some(self.attempt("removexattr", |view| view.remove_xattr(node, name, &caller), nothing_more))
    }

    fn flush(&self, Request { caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let handle = FileHandle(fields.u64()?);
        Some(self.attempt("flush", |view| view.flush(handle, &caller), nothing_more))
    }

    fn readdir(&self, Request { node, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset, size) = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()? as usize);
        Some(self.attempt("readdir", |view| self.list(view, (node, handle, offset), size), Bytes))
    }

    fn readdirplus(&self, Request { node, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset, size) = (FileHandle(fields.u64()?), fields.u64()?, fields.u32()? as usize);
        Some(self.attempt("readdirplus", |view| self.list_plus(view, (node, handle, offset), size), Bytes))
    }

    fn fallocate(&self, Request { caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset, length) = (FileHandle(fields.u64()?), fields.u64()?, fields.u64()?);
        let mode = fields.u32()?.cast_signed();
        let ask = |view: &View| view.fallocate(handle, mode, offset, length, &caller);
        Some(self.attempt("fallocate", ask, nothing_more))
    }

    fn lseek(&self, Request { mut fields, .. }: Request<'_>) -> Option<Answer> {
        let (handle, offset) = (FileHandle(fields.u64()?), fields.u64()?.cast_signed());
        let whence = fields.u32()?.cast_signed();
        let tell = |offset: i64| Bytes::default().u64(offset.cast_unsigned());
        Some(self.attempt("lseek", |view| view.lseek(handle, offset, whence), tell))
    }

    fn copy_file_range(&self, Request { caller, mut fields, .. }: Request<'_>) -> Option<Answer> {
        let from = (FileHandle(fields.u64()?), fields.u64()?);
        let _node_to = fields.u64()?;
        let (to, length) = ((FileHandle(fields.u64()?), fields.u64()?), fields.u64()?);
        let ask = |view: &View| view.copy_file_range(from, to, length, &caller);
        Some(self.attempt("copy_file_range", ask, written))
    }

    fn attempt<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T>,
        tell: impl FnOnce(T) -> Bytes,
    ) -> Answer {
        self.door.attempt(op, |view| ask(view).map(tell))
    }

    /// `struct fuse_open_out`.
    fn opened(&self, bytes: Bytes, opened: &OpenedFile) -> Bytes {
        match opened.backing(|file| Backing::open(self.device.clone(), file)) {
            Some(backing) => {
                opened_at(bytes, opened.handle, PASSED_FLAGS | FopenFlags::FOPEN_PASSTHROUGH, backing.id())
            }
            None => opened_at(bytes, opened.handle, opened.flags, 0),
        }
    }

    fn list(&self, view: &View, at: (INodeNo, FileHandle, u64), size: usize) -> Result<Vec<u8>> {
        let mut listing = Bytes::default();
        self.door.listings.read(view, at, |next, Entry { name, inode, kind }| {
            let is_full = listing.0.len() + wire::dirent_bytes(name) > size;
            if !is_full {
                listing = std::mem::take(&mut listing).dirent(*inode, next, *kind, name);
            }
            is_full
        })?;
        Ok(listing.0)
    }

    fn list_plus(&self, view: &View, at: (INodeNo, FileHandle, u64), size: usize) -> Result<Vec<u8>> {
        let mut listing = Bytes::default();
        self.door.listings.read_plus(view, at, |next, name, Shown { attr, ttl }| {
            let is_full = listing.0.len() + wire::ENTRY_BYTES + wire::dirent_bytes(name) > size;
            if !is_full {
                let told = std::mem::take(&mut listing).entry(attr, *ttl);
                listing = told.dirent(attr.ino.0, next, attr.kind, name);
            }
            is_full
        })?;
        Ok(listing.0)
    }
}

fn set_attributes(fields: &mut Fields<'_>) -> Option<(SetAttributes, Option<FileHandle>)> {
    let (valid, _padding) = (fields.u32()?, fields.u32()?);
    let has = |flag: u32| valid & flag != 0;
    let (handle, size, _lock_owner) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let seconds = [fields.u64()?, fields.u64()?, fields.u64()?].map(u64::cast_signed);
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let (mode, _unused, uid, gid) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let time = |which: usize, is_set: u32, is_now: u32| match (has(is_set), has(is_now)) {
        (false, _) => SetTime::Keep,
        (true, true) => SetTime::Now,
        (true, false) => SetTime::At(Timestamp { seconds: seconds[which], nanoseconds: nanoseconds[which] }),
    };
    let set = SetAttributes {
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        atime: time(0, set::ATIME, set::ATIME_NOW),
        mtime: time(1, set::MTIME, set::MTIME_NOW),
    };
    Some((set, has(set::HANDLE).then_some(FileHandle(handle))))
}

fn named(named: Named) -> Bytes {
    match named {
        Named::Entry(shown) => entry(&shown),
        Named::Missing => Bytes::default().entry(&nothing(), MISSING_TTL),
    }
}

fn entry(Shown { attr, ttl }: &Shown) -> Bytes {
    Bytes::default().entry(attr, *ttl)
}

fn attributes(shown: &Shown) -> Bytes {
    Bytes::default().attributes(shown)
}

fn opened_at(bytes: Bytes, handle: FileHandle, flags: FopenFlags, backing: u32) -> Bytes {
    bytes.u64(handle.0).u32(flags.bits()).u32(backing)
}

fn written(count: usize) -> Bytes {
    Bytes::default().u32(u32::try_from(count).expect("a request writes at most its u32 of bytes")).u32(0)
}

fn xattr(value: Xattr) -> Bytes {
    match value {
        Xattr::Size(size) => Bytes::default().u32(size).u32(0),
        Xattr::Value(value) => Bytes(value),
    }
}

fn nothing_more((): ()) -> Bytes {
    Bytes::default()
}
