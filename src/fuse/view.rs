//! Sends each question to the overlay, or to the desk behind `.fettle`; ids tell which. At the desk nothing can be
//! changed, except by what its control file is asked.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use fuser::{FileHandle, FopenFlags, INodeNo, WriteFlags};
use rustix::fs::{StatVfs, XattrFlags};

use super::answer::{OpenedFile, Xattr};
use super::attr::{BRIEF_TTL, Named, Shown, file_type};
use super::listing::{Changes, Listed};
use super::observer::Teller;
use super::watchers::Herald;
use crate::control::{DESK_ROOT, Desk};
use crate::overlay::{
    Caller, Error, Found, HandleId, Holds, ListingStamp, NodeId, OpenFlags, Opened, Overlay, Position, ROOT, Result,
    SetAttributes,
};
use crate::store::STATE_DIR_NAME;
use crate::sys::RenameFlags;

pub struct View {
    overlay: Arc<Overlay>,
    desk: Arc<Desk>,
    teller: Teller,
    herald: Herald,
    changes: Changes,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    PageCache,
    Program(&'a Caller),
    /// A program whose writes clear set-id bits.
    Unprivileged(&'a Caller),
}

impl<'a> Source<'a> {
    /// A write that the kernel makes by itself, from its page cache, carries no pid, or that of a process that caused it.
    pub fn of(flags: WriteFlags, caller: &'a Caller) -> Self {
        match (flags.contains(WriteFlags::FUSE_WRITE_CACHE), flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)) {
            (true, _) => Self::PageCache,
            (false, true) => Self::Unprivileged(caller),
            (false, false) => Self::Program(caller),
        }
    }
}

/// Whose id this is, of a node or of an open file: the desk's begin at [`DESK_ROOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<T> {
    Overlay(T),
    Desk(u64),
}

pub fn node(ino: INodeNo) -> Whose<NodeId> {
    if ino.0 >= DESK_ROOT { Whose::Desk(ino.0) } else { Whose::Overlay(NodeId(ino.0)) }
}

pub fn open_file(handle: FileHandle) -> Whose<HandleId> {
    if handle.0 >= DESK_ROOT { Whose::Desk(handle.0) } else { Whose::Overlay(HandleId(handle.0)) }
}

impl View {
    pub fn new(overlay: Arc<Overlay>, desk: Arc<Desk>, teller: Teller, herald: Herald, changes: Changes) -> Self {
        Self { overlay, desk, teller, herald, changes }
    }

    /// Counts a request of the kernel's.
    pub fn note_request(&self, request: &'static str) {
        self.overlay.traffic().note(request);
    }

    /// To be called once an answer is out, while its program goes on on another processor.
    pub fn after_answer(&self) {
        self.overlay.after_answer();
    }

    pub fn stop_writing(&self, why: &str) {
        self.overlay.stop_writing(why);
    }

    pub fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<Named> {
        match node(parent) {
            Whose::Overlay(ROOT) if name == STATE_DIR_NAME => Ok(Named::Entry(self.attributes(INodeNo(DESK_ROOT))?)),
            Whose::Overlay(parent) => match self.overlay.find(parent, name)? {
                Found::Entry(entry) => Ok(Named::Entry(entry.attributes.into())),
                Found::Nothing(Holds::UntilTold) => Ok(Named::Missing),
                // Without a lifetime: the name may appear below unseen, and the next open must find it (SPEC §2).
                Found::Nothing(Holds::Briefly) => Err(Error::Errno(libc::ENOENT)),
            },
            Whose::Desk(parent) => {
                let (node, meta) = at_desk(self.desk.lookup(parent, name))?;
                Ok(Named::Entry(Shown::of_desk(node, &meta)))
            }
        }
    }

    pub fn forget(&self, ino: INodeNo, lookups: u64) {
        match node(ino) {
            Whose::Overlay(node) => self.overlay.forget(node, lookups),
            Whose::Desk(node) => self.desk.forget(node, lookups),
        }
    }

    pub fn clears_set_id(&self) -> bool {
        self.overlay.clears_set_id()
    }

    pub fn may_wait_for_release(&self) -> bool {
        self.overlay.is_releasing()
    }

    pub fn attributes(&self, ino: INodeNo) -> Result<Shown> {
        match node(ino) {
            Whose::Overlay(node) => Ok(self.overlay.attributes(node)?.into()),
            Whose::Desk(node) => Ok(Shown::of_desk(node, &at_desk(self.desk.attributes(node))?)),
        }
    }

    /// For the thread `watchers`, which sets times only to make others learn of a change that was made already.
    fn attributes_unchanged(&self, ino: INodeNo) -> Result<Shown> {
        // As after a real change, the kernel takes this answer whatever it was told in the meantime, so it may not hold
        // for long.
        Ok(Shown { ttl: BRIEF_TTL, ..self.attributes(ino)? })
    }

    pub fn set_attributes(
        &self,
        ino: INodeNo,
        handle: Option<FileHandle>,
        set: &SetAttributes,
        caller: &Caller,
    ) -> Result<Shown> {
        if self.herald.is_own(caller.pid) {
            return self.attributes_unchanged(ino);
        }
        match node(ino) {
            Whose::Overlay(node) => {
                let handle = handle.map(|handle| HandleId(handle.0));
                Ok(self.overlay.set_attributes(node, handle, set, caller)?.into())
            }
            Whose::Desk(_) => Err(not_at_the_desk()),
        }
    }

    pub fn read_symlink(&self, ino: INodeNo) -> Result<OsString> {
        match node(ino) {
            Whose::Overlay(node) => self.overlay.read_symlink(node),
            Whose::Desk(_) => Err(Error::Errno(libc::EINVAL)),
        }
    }

    pub fn mknod(&self, parent: INodeNo, name: &OsStr, mode: u32, device: u64, caller: &Caller) -> Result<Shown> {
        let dir = place(parent, name)?;
        let made = self.naming([parent], || self.overlay.mknod(dir, name, mode, device, caller))?;
        Ok(made.attributes.into())
    }

    pub fn mkdir(&self, parent: INodeNo, name: &OsStr, mode: u32, caller: &Caller) -> Result<Shown> {
        let dir = place(parent, name)?;
        let made = self.naming([parent], || self.overlay.mkdir(dir, name, mode, caller))?;
        Ok(made.attributes.into())
    }

    pub fn unlink(&self, parent: INodeNo, name: &OsStr, caller: &Caller) -> Result<()> {
        let dir = place(parent, name)?;
        self.naming([parent], || self.overlay.unlink(dir, name, caller))
    }

    pub fn rmdir(&self, parent: INodeNo, name: &OsStr, caller: &Caller) -> Result<()> {
        let dir = place(parent, name)?;
        self.naming([parent], || self.overlay.rmdir(dir, name, caller))
    }

    pub fn symlink(&self, parent: INodeNo, name: &OsStr, target: &OsStr, caller: &Caller) -> Result<Shown> {
        let dir = place(parent, name)?;
        let made = self.naming([parent], || self.overlay.symlink(dir, name, target, caller))?;
        Ok(made.attributes.into())
    }

    pub fn rename(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()> {
        let (from, to) = (place(parent, name)?, place(new_parent, new_name)?);
        self.naming([parent, new_parent], || self.overlay.rename(from, name, to, new_name, flags, caller))
    }

    pub fn link(&self, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, caller: &Caller) -> Result<Shown> {
        let (node, dir) = (file(ino)?, place(new_parent, new_name)?);
        let made = self.naming([new_parent], || self.overlay.link(node, dir, new_name, caller))?;
        Ok(made.attributes.into())
    }

    /// Runs `act`, by which names of `dirs` may come or go, and notes that: once it shows, and before the caller is
    /// answered.
    fn naming<T, const N: usize>(&self, dirs: [INodeNo; N], act: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = act();
        dirs.iter().for_each(|dir| self.changes.note(dir.0));
        done
    }

    pub fn open(&self, ino: INodeNo, flags: i32, caller: &Caller) -> Result<OpenedFile> {
        match node(ino) {
            Whose::Overlay(node) => {
                let opened = self.overlay.open(node, OpenFlags::from_raw(flags), caller)?;
                // Opened without write access, a file has nothing to settle at its close. That saves a third of the cost
                // of opening and closing (measured).
                let unflushed = if may_write(flags) { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
                Ok(opened_file(opened, flags, unflushed))
            }
            Whose::Desk(node) => {
                let handle = at_desk(self.desk.open(node, may_write(flags), caller))?;
                // The content of a virtual file changes by itself, and its offsets may mean nothing.
                Ok(OpenedFile { handle: FileHandle(handle), flags: FopenFlags::FOPEN_DIRECT_IO, handover: None })
            }
        }
    }

    pub fn create(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
        caller: &Caller,
    ) -> Result<(Shown, OpenedFile)> {
        let dir = place(parent, name)?;
        let flags_in = OpenFlags::from_raw(flags);
        let (entry, opened) = self.naming([parent], || self.overlay.create(dir, name, mode, flags_in, caller))?;
        // The close of a created file is judged however it was opened, so every flush is wanted.
        let opened = opened_file(opened, flags, FopenFlags::empty());
        Ok((entry.attributes.into(), opened))
    }

    pub fn read(&self, handle: FileHandle, offset: u64, size: usize, caller: &Caller) -> Result<Vec<u8>> {
        match open_file(handle) {
            Whose::Overlay(handle) => self.overlay.read(handle, offset, size),
            Whose::Desk(handle) => {
                let answer = at_desk(self.desk.read(handle, offset, size, caller));
                // A client that is told that something landed or went must also see it in the view.
                self.teller.catch_up();
                answer
            }
        }
    }

    /// `flags` are those that the descriptor has now. For one that appends, the kernel's offset is the last end it has
    /// heard of: a discard, a rollback or an edit below may have moved it since. The kernel sends appending writes one at
    /// a time.
    pub fn write(&self, handle: HandleId, offset: u64, data: &[u8], flags: i32, from: Source<'_>) -> Result<usize> {
        let to = if flags & libc::O_APPEND != 0 { Position::End } else { Position::At(offset) };
        let written = match from {
            Source::PageCache => self.overlay.write(handle, offset, data),
            Source::Program(caller) => self.overlay.write_by(handle, to, data, caller),
            Source::Unprivileged(caller) => self.overlay.write_unprivileged(handle, to, data, caller),
        }?;
        if is_synchronous(flags) {
            let datasync = flags & libc::O_SYNC != libc::O_SYNC;
            self.overlay.fsync(handle, datasync)?;
        }
        Ok(written)
    }

    pub fn write_at_desk(&self, handle: u64, data: &[u8], caller: &Caller) -> Result<usize> {
        at_desk(self.desk.write(handle, data, caller))
    }

    pub fn flush(&self, handle: FileHandle, caller: &Caller) -> Result<()> {
        match open_file(handle) {
            Whose::Overlay(handle) => self.overlay.flush(handle, caller),
            Whose::Desk(_) => Ok(()),
        }
    }

    /// To be called as soon as a release is read; the guard is to be kept until the release is done.
    pub fn release_begun(&self, handle: FileHandle) -> impl Drop + use<> {
        let handle = match open_file(handle) {
            Whose::Overlay(handle) => Some(handle),
            Whose::Desk(_) => None,
        };
        Overlay::release_begun(self.overlay.clone(), handle)
    }

    pub fn release(&self, handle: FileHandle) -> Result<()> {
        match open_file(handle) {
            Whose::Overlay(handle) => self.overlay.release(handle),
            Whose::Desk(handle) => {
                self.desk.release(handle);
                Ok(())
            }
        }
    }

    pub fn fsync(&self, handle: FileHandle, datasync: bool) -> Result<()> {
        match open_file(handle) {
            Whose::Overlay(handle) => self.overlay.fsync(handle, datasync),
            Whose::Desk(_) => Ok(()),
        }
    }

    pub fn fallocate(&self, handle: FileHandle, mode: i32, offset: u64, length: u64, caller: &Caller) -> Result<()> {
        self.overlay.fallocate(content(handle)?, mode, offset, length, caller)
    }

    pub fn lseek(&self, handle: FileHandle, offset: i64, whence: i32) -> Result<i64> {
        match open_file(handle) {
            Whose::Overlay(handle) => self.overlay.lseek(handle, offset, whence),
            Whose::Desk(_) => Err(Error::Errno(libc::EINVAL)),
        }
    }

    pub fn copy_file_range(
        &self,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        length: u64,
        caller: &Caller,
    ) -> Result<usize> {
        // The reply counts in 32 bits; the kernel asks again for what is left.
        let length = usize::try_from(length.min(u64::from(u32::MAX >> 1))).unwrap_or(usize::MAX);
        match (open_file(from.0), open_file(to.0)) {
            (Whose::Overlay(source), Whose::Overlay(target)) => {
                self.overlay.copy_file_range(source, from.1, target, to.1, length, caller)
            }
            // `cp` then falls back to reading and writing.
            (Whose::Desk(_), _) | (_, Whose::Desk(_)) => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// Entries of a directory, without `.` and `..`.
    pub fn list(&self, dir: INodeNo) -> Result<Vec<Listed>> {
        match node(dir) {
            Whose::Overlay(dir) => {
                let entries = self.overlay.list(dir)?.into_iter();
                Ok(entries
                    .map(|entry| Listed { inode: entry.inode, kind: file_type(entry.kind), name: entry.name })
                    .collect())
            }
            Whose::Desk(dir) => {
                let entries = at_desk(self.desk.list(dir))?.into_iter();
                Ok(entries.map(|(name, inode, is_dir)| Listed::of_desk(name, inode, is_dir)).collect())
            }
        }
    }

    /// How many files may be open at once; as many directories may be, too.
    pub fn open_max(&self) -> u64 {
        self.overlay.open_max()
    }

    /// Returns a stamp by which listings of a directory can be told apart; `None` if a change may go unseen.
    pub fn listing_stamp(&self, dir: INodeNo) -> Option<ListingStamp> {
        match node(dir) {
            Whose::Overlay(dir) => self.overlay.listing_stamp(dir),
            Whose::Desk(_) => None,
        }
    }

    /// The directory above, as far as `..` of a listing needs it: the root and what is at the desk are their own parents.
    pub fn parent(&self, dir: INodeNo) -> INodeNo {
        match node(dir) {
            Whose::Overlay(ROOT) | Whose::Desk(_) => dir,
            Whose::Overlay(dir) => INodeNo(self.overlay.parent_of(dir).0),
        }
    }

    pub fn sync_dir(&self, dir: INodeNo) -> Result<()> {
        match node(dir) {
            Whose::Overlay(dir) => self.overlay.sync_dir(dir),
            Whose::Desk(_) => Ok(()),
        }
    }

    pub fn statfs(&self) -> Result<StatVfs> {
        self.overlay.statfs()
    }

    pub fn get_xattr(&self, ino: INodeNo, name: &OsStr, size: u32) -> Result<Xattr> {
        match node(ino) {
            Whose::Overlay(node) => fitting(self.overlay.get_xattr(node, name)?, size),
            Whose::Desk(_) => Err(Error::Errno(libc::ENODATA)),
        }
    }

    pub fn set_xattr(&self, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, caller: &Caller) -> Result<()> {
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        self.overlay.set_xattr(file(ino)?, name, value, flags, caller)
    }

    pub fn list_xattrs(&self, ino: INodeNo, size: u32) -> Result<Xattr> {
        match node(ino) {
            Whose::Overlay(node) => fitting(zero_terminated(&self.overlay.list_xattrs(node)?), size),
            Whose::Desk(_) => fitting(Vec::new(), size),
        }
    }

    pub fn remove_xattr(&self, ino: INodeNo, name: &OsStr, caller: &Caller) -> Result<()> {
        self.overlay.remove_xattr(file(ino)?, name, caller)
    }
}

/// Returns the directory in which a name may be made, taken or replaced; `EPERM` at the desk and for its own name.
fn place(parent: INodeNo, name: &OsStr) -> Result<NodeId> {
    match node(parent) {
        Whose::Overlay(ROOT) if name == STATE_DIR_NAME => Err(not_at_the_desk()),
        Whose::Overlay(parent) => Ok(parent),
        Whose::Desk(_) => Err(not_at_the_desk()),
    }
}

/// A node that may be changed.
fn file(ino: INodeNo) -> Result<NodeId> {
    match node(ino) {
        Whose::Overlay(node) => Ok(node),
        Whose::Desk(_) => Err(not_at_the_desk()),
    }
}

/// An open file whose content may be changed other than by writing.
fn content(handle: FileHandle) -> Result<HandleId> {
    match open_file(handle) {
        Whose::Overlay(handle) => Ok(handle),
        Whose::Desk(_) => Err(not_at_the_desk()),
    }
}

fn not_at_the_desk() -> Error {
    Error::Errno(libc::EPERM)
}

fn at_desk<T>(answer: std::result::Result<T, i32>) -> Result<T> {
    answer.map_err(Error::Errno)
}

fn opened_file(opened: Opened, flags: i32, further: FopenFlags) -> OpenedFile {
    let mut flags_out = further;
    if opened.keep_cache {
        flags_out |= FopenFlags::FOPEN_KEEP_CACHE;
    }
    if may_write(flags) && opened.handover.is_none() {
        // Through the page cache, a program that reads what it has just written might see what was there before: when the
        // kernel learns of another write's time it drops a page that is still on its way to us, and reads it from us too
        // early. And before the first write it would ask for the file's capabilities, in order to drop them.
        flags_out |= FopenFlags::FOPEN_DIRECT_IO;
    }
    OpenedFile { handle: FileHandle(opened.handle.0), flags: flags_out, handover: opened.handover }
}

/// Whether an open of these flags may change content; `O_TRUNC` does so without write access.
pub fn may_write(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// Whether a write is to be durable when it returns. The kernel leaves that to us, and sets these flags for `RWF_DSYNC`,
/// `RWF_SYNC` and a view mounted with `-o sync` as well. `O_SYNC` contains `O_DSYNC`.
pub fn is_synchronous(flags: i32) -> bool {
    flags & libc::O_DSYNC != 0
}

/// A value in the form that `getxattr` and `listxattr` want: its length if `size` is 0, `ERANGE` if it does not fit.
pub fn fitting(value: Vec<u8>, size: u32) -> Result<Xattr> {
    let length = u32::try_from(value.len()).map_err(|_| Error::Errno(libc::E2BIG))?;
    match size {
        0 => Ok(Xattr::Size(length)),
        size if length > size => Err(Error::Errno(libc::ERANGE)),
        _ => Ok(Xattr::Value(value)),
    }
}

fn zero_terminated(names: &[OsString]) -> Vec<u8> {
    names.iter().flat_map(|name| name.as_encoded_bytes().iter().copied().chain([0])).collect()
}
