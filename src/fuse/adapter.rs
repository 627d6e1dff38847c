//! One method per request: decode it, ask the view, reply.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::answer::{Answer, GENERATION};
use super::attr;
use super::door::Door;
use super::listing::Entry;
use super::readers::{Asker, Readers, Turn};
use super::ring;
use super::view::{Source, View, Whose, is_synchronous, may_write, node, open_file};
use super::workers::Workers;
use crate::overlay::{Caller, Result, SetAttributes};
use crate::sys;

/// Threads that read requests. Fewer would keep the processors busy; the others are there so that one may wait for a slow
/// disk while the rest answer. Requests that may last longer than that leave them, see [`Workers`].
pub const EVENT_THREADS: usize = 8;
/// How many of them long requests may take: half, so that the other half always answers.
const LASTING_HERE_MAX: usize = EVENT_THREADS / 2;
/// Threads for requests that last. Each stands for a process that waits in `close`, `rename` or `fsync`. A permission
/// program may itself be waiting for one of these, so the bound lies above what a machine runs at once.
const LASTING_THREADS_MAX: usize = 512;
/// Threads for clients that wait at the desk. Each stands for a process or thread of a client, which may wait for
/// minutes.
const DESK_THREADS_MAX: usize = 1024;
/// Requests of the kernel's own (readahead, writeback) under way at once. Its default of 12 leaves a disk idle.
const BACKGROUND_MAX: u16 = 512;
/// The most that the kernel puts into one request: 256 pages.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The largest payload of a request or an answer, without its headers.
pub const PAYLOAD_BYTES: usize = WRITE_BYTES_MAX as usize;

/// What is asked of the kernel beyond asynchronous reads and writes of more than a page.
///
/// Not asked for: locks (with one mount the kernel's own suffice), writeback caching (every write is to be seen), cached
/// symlink targets (a landing or a discard changes the target of a node that lives on, and no notice drops a cached
/// target).
const WANTED: InitFlags = InitFlags::FUSE_ATOMIC_O_TRUNC
    // The umask does not apply where the directory has a default ACL, which only lower knows.
    .union(InitFlags::FUSE_DONT_MASK)
    // The kernel checks permissions, without this by mode bits alone. It asks for an ACL only where the mode does not
    // decide, and never for the owner.
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_AUTO_INVAL_DATA)
    // A file open for writing is read and written past the page cache, and can be mapped all the same.
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    // `ls` costs no lookups that way, and `ls -l` none one by one.
    .union(InitFlags::FUSE_READDIRPLUS_AUTO);

pub struct Adapter {
    door: Arc<Door>,
    /// How many file systems lie below this one; `None` if the kernel is not to read and write any files by itself.
    stack_depth: Option<u32>,
    /// Whether rings are wanted; once the kernel was greeted, whether it has agreed.
    by_rings: Arc<AtomicBool>,
    lasting: Workers,
    at_desk: Workers,
    readers: Arc<Readers>,
}

impl Adapter {
    pub fn new(door: Arc<Door>, stack_depth: Option<u32>, by_rings: Arc<AtomicBool>, readers: Arc<Readers>) -> Self {
        Self {
            door,
            readers,
            stack_depth,
            by_rings,
            lasting: Workers::new("lasting", LASTING_HERE_MAX, LASTING_THREADS_MAX),
            at_desk: Workers::new("desk", 0, DESK_THREADS_MAX),
        }
    }

    /// For requests that are answered from memory or by one call below.
    fn now<T>(&self, req: &Request, reply: impl Answer<T>, op: &'static str, ask: impl FnOnce(&View) -> Result<T>) {
        let (_turn, done) = self.asked(req, op, ask);
        reply.answer(done);
    }

    /// For lookups and attributes: answered at once, as by [`Self::now`], except while a file that has yet to be judged
    /// is being released. Then the request may have to wait for that judgement.
    fn looking<T>(
        &self,
        req: &Request,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T> + Send + 'static,
    ) {
        match self.door.view.may_wait_for_release() {
            true => self.lasting(req, reply, op, ask),
            false => self.now(req, reply, op, ask),
        }
    }

    /// Returns the result of a request, and the turn, which is to be kept until the request is answered.
    fn asked<T>(
        &self,
        req: &Request,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T>,
    ) -> (Turn<'_>, std::result::Result<T, Errno>) {
        let asker = asker(req);
        let turn = self.readers.serve(asker);
        let done = self.door.attempt(op, ask);
        self.readers.will_answer(asker);
        (turn, done)
    }

    /// For requests that seldom last: answered at once, as by [`Self::now`], unless `ask` would have to wait for others or
    /// for much content. Then what `again` returns asks the same, as by [`Self::lasting`].
    fn in_haste<T, Again: FnOnce(&View) -> Result<T> + Send + 'static>(
        &self,
        req: &Request,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T>,
        again: impl FnOnce() -> Again,
    ) {
        let asker = asker(req);
        let _turn = self.readers.serve(asker);
        match self.door.attempt_in_haste(op, ask) {
            Some(done) => {
                self.readers.will_answer(asker);
                reply.answer(done);
            }
            None => self.hand_over(asker, &self.lasting, reply, op, again()),
        }
    }

    /// For requests that may wait for a copy, a diff, an fsync or a permission program.
    fn lasting<T>(
        &self,
        req: &Request,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T> + Send + 'static,
    ) {
        self.on(req, &self.lasting, reply, op, ask);
    }

    /// For requests that may wait for a person.
    fn at_desk<T>(
        &self,
        req: &Request,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T> + Send + 'static,
    ) {
        self.on(req, &self.at_desk, reply, op, ask);
    }

    fn on<T>(
        &self,
        req: &Request,
        workers: &Workers,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T> + Send + 'static,
    ) {
        let asker = asker(req);
        let _turn = self.readers.serve(asker);
        self.hand_over(asker, workers, reply, op, ask);
    }

    fn hand_over<T>(
        &self,
        asker: Asker,
        workers: &Workers,
        reply: impl Answer<T>,
        op: &'static str,
        ask: impl FnOnce(&View) -> Result<T> + Send + 'static,
    ) {
        let (door, readers) = (self.door.clone(), self.readers.clone());
        workers.off_path(move || {
            let done = door.attempt(op, ask);
            readers.will_answer(asker);
            reply.answer(done);
            door.view.after_answer();
        });
    }
}

fn asker(req: &Request) -> Asker {
    Asker::Program { thread: req.pid() }
}

fn caller(req: &Request) -> Caller {
    Caller { pid: req.pid(), uid: req.uid(), gid: req.gid(), umask: 0 }
}

fn creator(req: &Request, umask: u32) -> Caller {
    Caller { umask, ..caller(req) }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("the kernel's side of FUSE refuses {what}"));
        let mut wanted = WANTED & config.capabilities();
        if let Some(depth) = self.stack_depth.filter(|_| config.capabilities().contains(InitFlags::FUSE_PASSTHROUGH)) {
            config.set_max_stack_depth(depth).map_err(|_| refused("max_stack_depth"))?;
            wanted |= InitFlags::FUSE_PASSTHROUGH;
        }
        if self.door.view.clears_set_id() {
            // Otherwise the kernel asks for a file's `security.capability` before each write that it makes by itself.
            wanted |= InitFlags::FUSE_HANDLE_KILLPRIV_V2 & config.capabilities();
        }
        let rings = InitFlags::from_bits_retain(ring::AGREEMENT);
        if self.by_rings.fetch_and(config.capabilities().contains(rings), Ordering::SeqCst) {
            wanted |= rings;
        }
        config.add_capabilities(wanted).map_err(|_| refused("capabilities it has offered"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused("max_background"))?;
        config.set_max_write(WRITE_BYTES_MAX).map_err(|_| refused("max_write"))?;
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.looking(req, reply, "lookup", move |view| view.lookup(parent, &name));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.readers.forget();
        let forget = |view: &View| {
            view.forget(ino, lookups);
            self.door.listings.forget(ino);
            Ok(())
        };
        // FORGET has no answer, and any error was logged.
        self.door.attempt("forget", forget).unwrap_or(());
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.looking(req, reply, "getattr", move |view| view.attributes(ino));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (attr::set_time(atime), attr::set_time(mtime));
        let (set, caller) = (SetAttributes { mode, uid, gid, size, atime, mtime }, caller(req));
        self.lasting(req, reply, "setattr", move |view| view.set_attributes(ino, handle, &set, &caller));
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.now(req, reply, "readlink", |view| Ok(view.read_symlink(ino)?.into_vec()));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name.to_owned(), creator(req, umask));
        self.lasting(req, reply, "mknod", move |view| view.mknod(parent, &name, mode, device.into(), &caller));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (name, caller) = (name.to_owned(), creator(req, umask));
        self.lasting(req, reply, "mkdir", move |view| view.mkdir(parent, &name, mode, &caller));
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(req));
        self.lasting(req, reply, "unlink", move |view| view.unlink(parent, &name, &caller));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(req));
        self.lasting(req, reply, "rmdir", move |view| view.rmdir(parent, &name, &caller));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target, caller) = (name.to_owned(), target.as_os_str().to_owned(), caller(req));
        self.lasting(req, reply, "symlink", move |view| view.symlink(parent, &name, &target, &caller));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name, caller) = (name.to_owned(), new_name.to_owned(), caller(req));
        let flags = sys::RenameFlags::from_bits_retain(flags.bits());
        self.lasting(req, reply, "rename", move |view| {
            view.rename((parent, &name), (new_parent, &new_name), flags, &caller)
        });
    }

    fn link(&self, req: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let (new_name, caller) = (new_name.to_owned(), caller(req));
        self.lasting(req, reply, "link", move |view| view.link(ino, new_parent, &new_name, &caller));
    }

    fn open(&self, req: &Request, ino: INodeNo, OpenFlags(flags): OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        let ask = move |view: &View| view.open(ino, flags, &caller);
        match node(ino) {
            Whose::Overlay(_) if may_write(flags) => self.lasting(req, reply, "open", ask),
            Whose::Overlay(_) => self.in_haste(req, reply, "open", ask, || ask),
            Whose::Desk(_) => self.at_desk(req, reply, "open", ask),
        }
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = usize::try_from(size).expect("32 bits fit in a usize");
        let caller = caller(req);
        let ask = move |view: &View| view.read(handle, offset, size, &caller);
        match open_file(handle) {
            Whose::Overlay(_) => self.now(req, reply, "read", ask),
            Whose::Desk(_) => self.at_desk(req, reply, "read", ask),
        }
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        OpenFlags(flags): OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let caller = caller(req);
        match open_file(handle) {
            Whose::Overlay(handle) if is_synchronous(flags) => {
                let data = data.to_owned();
                self.lasting(req, reply, "write", move |view| {
                    view.write(handle, offset, &data, flags, Source::of(write_flags, &caller))
                });
            }
            Whose::Overlay(handle) => {
                let write = move |view: &View, data: &[u8]| {
                    view.write(handle, offset, data, flags, Source::of(write_flags, &caller))
                };
                self.in_haste(
                    req,
                    reply,
                    "write",
                    |view| write(view, data),
                    || {
                        let data = data.to_owned();
                        move |view: &View| write(view, &data)
                    },
                );
            }
            Whose::Desk(handle) => {
                let data = data.to_owned();
                self.at_desk(req, reply, "write", move |view| view.write_at_desk(handle, &data, &caller));
            }
        }
    }

    fn flush(&self, req: &Request, _ino: INodeNo, handle: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let caller = caller(req);
        self.lasting(req, reply, "flush", move |view| view.flush(handle, &caller));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.readers.serve(Asker::Nobody);
        // The release counts as under way from here on, although another thread may carry it out later.
        let begun = self.door.view.release_begun(handle);
        let door = self.door.clone();
        self.lasting.off_path(move || {
            let _begun = begun;
            reply.answer(door.attempt("release", |view| view.release(handle)));
            door.view.after_answer();
        });
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.lasting(req, reply, "fsync", move |view| view.fsync(handle, datasync));
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let (_turn, done) = self.asked(req, "opendir", |view| self.door.listings.open(view, ino));
        match done {
            Ok((handle, flags)) => reply.opened(handle, flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, req: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let (_turn, done) = self.asked(req, "readdir", |view| {
            let full = |next, entry: &Entry| {
                let Entry { name, inode, kind } = entry;
                reply.add(INodeNo(*inode), next, *kind, name)
            };
            self.door.listings.read(view, (ino, handle, offset), full)
        });
        reply.answer(done);
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (_turn, done) = self.asked(req, "readdirplus", |view| {
            self.door.listings.read_plus(view, (ino, handle, offset), |next, name, shown| {
                reply.add(shown.attr.ino, next, name, &shown.ttl, &shown.attr, GENERATION)
            })
        });
        reply.answer(done);
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.readers.serve(Asker::Nobody);
        self.door.view.note_request("releasedir");
        self.door.listings.release(handle);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.lasting(req, reply, "fsyncdir", move |view| view.sync_dir(ino));
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.now(req, reply, "statfs", View::statfs);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value, caller) = (name.to_owned(), value.to_owned(), caller(req));
        self.lasting(req, reply, "setxattr", move |view| view.set_xattr(ino, &name, &value, flags, &caller));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.in_haste(
            req,
            reply,
            "getxattr",
            |view| view.get_xattr(ino, name, size),
            || {
                let name = name.to_owned();
                move |view: &View| view.get_xattr(ino, &name, size)
            },
        );
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.now(req, reply, "listxattr", |view| view.list_xattrs(ino, size));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(req));
        self.lasting(req, reply, "removexattr", move |view| view.remove_xattr(ino, &name, &caller));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, caller) = (name.to_owned(), creator(req, umask));
        self.lasting(req, reply, "create", move |view| view.create(parent, &name, mode, flags, &caller));
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(req);
        self.lasting(req, reply, "fallocate", move |view| view.fallocate(handle, mode, offset, length, &caller));
    }

    fn lseek(&self, req: &Request, _ino: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.now(req, reply, "lseek", |view| view.lseek(handle, offset, whence));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let caller = caller(req);
        self.lasting(req, reply, "copy_file_range", move |view| {
            view.copy_file_range((handle_in, offset_in), (handle_out, offset_out), length, &caller)
        });
    }

    // The kernel takes ENOSYS for "never ask again" and does what suits an ordinary file by itself.

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _block_size: u32, _index: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
