//! Open files: handles, and what all handles on one node share.
//!
//! ```text
//!            first write: copy_up                 released, landed: evict
//!   Lower ──────────────────────► Upper{id} ──────────────────────────────► Lower
//!     │  unlinked and written                        (readers still open)
//!     └───────────────────────► Orphan
//! ```
//! Reading and writing take what the node has now, not what it had when the handle was opened: a reader sees what a
//! writer of the same file wrote, as on any file system. What a `pass` rule lets pass is in [`super::passed`].

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::copy_up::{Keep, same_content_stamp};
use super::error::Context;
use super::heritage::Heritage;
use super::lookup::Origin;
use super::nodes::NodeId;
use super::passed::{Claimed, Passed, PassedHandle};
use super::settle::Settled;
use super::{Caller, Entry, Error, Overlay, Result, open_lower};
use crate::model::{RelPath, Stamp};
use crate::policy::rules::Action;
use crate::policy::settings::OnHold;
use crate::store::{UpperId, What, Writer};
use crate::sys::file::{self, FileKind, SET_GID, SET_UID};
use crate::sys::{OFlags, process, tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// What of `open(2)`'s flags matters to the view.
#[derive(Clone, Copy, Debug)]
pub struct OpenFlags {
    raw: OFlags,
    pub access: Access,
}

impl OpenFlags {
    pub fn from_raw(raw: i32) -> Self {
        let raw = OFlags::from_bits_retain(raw as u32);
        let access = if raw.intersects(OFlags::WRONLY | OFlags::RDWR) { Access::Write } else { Access::Read };
        Self { raw, access }
    }

    fn truncates(self) -> bool {
        self.raw.contains(OFlags::TRUNC)
    }

    fn is_exclusive(self) -> bool {
        self.raw.contains(OFlags::EXCL)
    }

    /// The open itself empties the file, or what it gives can change it.
    pub(super) fn may_change(self) -> bool {
        self.access == Access::Write || self.truncates()
    }

    pub(super) fn without_truncation(self) -> Self {
        Self { raw: self.raw - OFlags::TRUNC, ..self }
    }

    pub(super) fn is_direct(self) -> bool {
        self.raw.contains(OFlags::DIRECT)
    }

    /// For a descriptor of lower. Appending is left out: the kernel says where each write goes.
    pub(super) fn below(self) -> OFlags {
        self.raw & (OFlags::ACCMODE | OFlags::TRUNC | OFlags::DSYNC | OFlags::SYNC) | OFlags::NONBLOCK
    }
}

/// A file opened for a program.
#[derive(Clone, Debug)]
pub struct Opened {
    pub handle: HandleId,
    /// What the kernel has cached of the content is still true.
    pub keep_cache: bool,
    /// Nobody judges it: the kernel may read and write this file of lower itself.
    pub passed: Option<Arc<Passed>>,
}

/// A regular file about to be made.
struct NewFile<'a> {
    parent: NodeId,
    name: &'a std::ffi::OsStr,
    path: &'a RelPath,
    heritage: &'a Heritage,
    flags: OpenFlags,
    caller: &'a Caller,
}

pub(super) struct Handle {
    target: Target,
    access: Access,
    node: NodeId,
    pub opener: Writer,
    /// Written since it was last judged.
    written: AtomicBool,
    /// Made or emptied the file, which has not been judged: no reason to judge at a close, but at the release.
    began: AtomicBool,
    /// Lower when the handle was opened, and as our own doing has changed it since.
    opened: Mutex<Option<Stamp>>,
}

enum Target {
    Passed(PassedHandle),
    Judged(Arc<OpenFile>),
}

/// What the handles on one node share.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub node: NodeId,
    /// Held while the file is copied up, so that it is once.
    pub copying: Mutex<()>,
    backing: RwLock<Backing>,
    /// Writes begun, and writes done: who judges content looks whether either moved. A write counts as begun before it
    /// learns which file it goes to, so that one under way is never taken for none.
    begun: AtomicU64,
    done: AtomicU64,
    /// The upper entry is marked as written; nothing needs to be noted for one more write.
    pub dirty: AtomicBool,
    handles: AtomicUsize,
    writers: AtomicUsize,
}

#[derive(Clone, Debug)]
pub(super) enum Backing {
    Lower(Arc<File>),
    Upper(UpperId, Arc<File>),
    /// Has no name any more: nothing of it will ever be judged.
    Orphan(Arc<File>),
}

impl OpenFile {
    pub fn new(node: NodeId, backing: Backing) -> Arc<Self> {
        Arc::new(Self {
            node,
            copying: Mutex::new(()),
            backing: RwLock::new(backing),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            handles: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
        })
    }

    pub fn backing(&self) -> RwLockReadGuard<'_, Backing> {
        self.backing.read()
    }

    pub fn set_backing(&self, backing: Backing) {
        *self.backing.write() = backing;
    }

    pub fn upper(&self) -> Option<UpperId> {
        match &*self.backing() {
            Backing::Upper(id, _) => Some(*id),
            Backing::Lower(_) | Backing::Orphan(_) => None,
        }
    }

    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::SeqCst)
    }

    /// How many writes are done, for [`Self::is_still`].
    pub fn version(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// No write was under way when `version` was read, and none has begun since.
    pub fn is_still(&self, version: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == version
    }

    /// One more handle; to be counted under the lock of the view's state.
    pub(super) fn claim(&self, access: Access) {
        self.handles.fetch_add(1, Ordering::SeqCst);
        self.writers.fetch_add(usize::from(access == Access::Write), Ordering::SeqCst);
    }

    fn begin_write(&self) -> impl Drop + '_ {
        struct UnderWay<'a>(&'a OpenFile);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.done.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        UnderWay(self)
    }
}

impl Handle {
    pub fn is_unjudged(&self) -> bool {
        self.written.load(Ordering::SeqCst) || self.began.load(Ordering::SeqCst)
    }

    /// Made or emptied the file and wrote nothing, so that only the release judges it.
    fn waits_for_release(&self) -> bool {
        self.began.load(Ordering::SeqCst) && !self.written.load(Ordering::SeqCst)
    }

    /// Lower as the writer knows it. A copy: under the state's lock somebody else may be about to change it.
    fn opened(&self) -> Option<Stamp> {
        *self.opened.lock()
    }

    /// Lower was `before` and is `after` by our own doing, with the same content.
    pub fn touched(&self, before: &Stamp, after: &Stamp) {
        let mut opened = self.opened.lock();
        if opened.is_some_and(|opened| same_content_stamp(&opened, before)) {
            *opened = Some(*after);
        }
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    fn judged(&self) -> Option<&Arc<OpenFile>> {
        match &self.target {
            Target::Judged(open) => Some(open),
            Target::Passed(_) => None,
        }
    }

    fn take_written(&self) -> bool {
        let written = self.written.swap(false, Ordering::SeqCst);
        if written {
            self.began.store(false, Ordering::SeqCst);
        }
        written
    }
}

impl Backing {
    pub fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_))
    }
}

impl Overlay {
    pub fn open(&self, node: NodeId, flags: OpenFlags, caller: &Caller) -> Result<Opened> {
        if flags.may_change() {
            self.check_may_write(caller)?;
        }
        let (open, below) = loop {
            let (path, action) = match self.path_for_open(node) {
                Err(err) if err.code() == libc::ENOENT => return self.open_unlinked(node, flags, caller),
                found => found?,
            };
            if flags.may_change() && self.is_refused(&path, action, caller) {
                return Err(self.denied(&path));
            }
            let Some((epoch, origin, below)) = self.origin_for_open(node, &path)? else {
                // Renamed, or another file renamed over it, since its path was asked for.
                continue;
            };
            if let (Action::Pass, Origin::Lower(meta)) = (action, &origin) {
                if meta.links > 1 && flags.may_change() && self.finds_judged_name(node, meta)? {
                    continue;
                }
                match self.claim_passed(node, &path, meta, epoch, flags.access)? {
                    Claimed::Passed(passed) => return self.open_passed(node, passed, flags, caller, below),
                    Claimed::Judged(open) => break (open, below),
                    Claimed::MovedOn => continue,
                }
            }
            if let Some(open) = self.claim_file(node, &path, &origin, epoch, flags.access)? {
                break (open, below);
            }
        };
        let keep_cache = self.keep_cache(node, below);
        let id = self.add_handle(node, Target::Judged(open.clone()), flags, caller, below);
        self.empty_at_open(id, &open, flags, caller)?;
        Ok(Opened { handle: id, keep_cache, passed: None })
    }

    /// Whether a rule keeps a program from changing a file; `strictest` is what the rules say of any program.
    fn is_refused(&self, path: &RelPath, strictest: Action, caller: &Caller) -> bool {
        let refuses = |action| matches!(action, Action::Deny | Action::Freeze);
        refuses(strictest) && refuses(self.action_by(path, FileKind::Regular, &self.writer(caller)))
    }

    fn open_passed(
        &self,
        node: NodeId,
        passed: Arc<Passed>,
        flags: OpenFlags,
        caller: &Caller,
        below: Option<Stamp>,
    ) -> Result<Opened> {
        let opened = passed.descriptor(flags).and_then(|file| {
            if flags.truncates() {
                drop_set_id(&file, caller).doing(|| "change the mode of an emptied file".to_owned())?;
            }
            Ok(file)
        });
        let file = match opened {
            Ok(file) => file,
            Err(err) => {
                self.let_go(node, &passed);
                return Err(err);
            }
        };
        let by_kernel = self.passes_through();
        let handle = self.add_passed_handle(node, &passed, file, flags, caller);
        match by_kernel {
            true => Ok(Opened { handle, keep_cache: false, passed: Some(passed) }),
            false => Ok(Opened { handle, keep_cache: self.keep_cache(node, below), passed: None }),
        }
    }

    /// `file` has shown that the open is possible. It is kept where we are the ones who write.
    fn add_passed_handle(
        &self,
        node: NodeId,
        passed: &Arc<Passed>,
        file: Arc<File>,
        flags: OpenFlags,
        caller: &Caller,
    ) -> HandleId {
        let own = (!self.passes_through()).then_some(file);
        self.add_handle(node, Target::Passed(PassedHandle::new(passed.clone(), flags, own)), flags, caller, None)
    }

    /// What is at the path, for sure: `ESTALE` when it is no longer this node, which makes the kernel look it up anew.
    /// None when the node is no longer at the path.
    fn origin_for_open(&self, node: NodeId, path: &RelPath) -> Result<Option<(u64, Origin, Option<Stamp>)>> {
        loop {
            let epoch = self.state.lock().epoch;
            let origin = self.origin(path)?;
            let mut state = self.state.lock();
            if state.epoch != epoch {
                continue;
            }
            if !state.nodes.is_at(node, path) {
                return Ok(None);
            }
            return match origin {
                Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ESTALE)),
                Origin::Lower(meta) if !state.nodes.is_lower(node, meta.key()) => Err(Error::Errno(libc::ESTALE)),
                Origin::Lower(meta) => Ok(Some((epoch, origin, Some(meta.stamp())))),
                Origin::Upper(..) => Ok(Some((epoch, origin, None))),
            };
        }
    }

    /// Whether what the kernel cached at the last open is still the content. When it is not, its idea of the size is
    /// stale too, and a read right after the open would be cut short.
    fn keep_cache(&self, node: NodeId, below: Option<Stamp>) -> bool {
        let Some(stamp) = below else { return true };
        let known = self.state.lock().nodes.set_cached(node, stamp);
        let keep = known == Some(stamp);
        if !keep && known.is_some() {
            self.tell(|observer| observer.attributes_changed(node));
        }
        keep
    }

    /// Reached through `/proc/self/fd`, or its name was given to another file between the kernel's look and this open:
    /// only what is or was open on it is left. `ESTALE` when nothing is: the kernel looks again.
    fn open_unlinked(&self, node: NodeId, flags: OpenFlags, caller: &Caller) -> Result<Opened> {
        let open = match self.claim_left(node, flags.access)? {
            Claimed::Passed(passed) => return self.open_passed(node, passed, flags, caller, None),
            Claimed::Judged(open) => open,
            Claimed::MovedOn => return Err(Error::Errno(libc::ESTALE)),
        };
        let id = self.add_handle(node, Target::Judged(open.clone()), flags, caller, None);
        self.empty_at_open(id, &open, flags, caller)?;
        Ok(Opened { handle: id, keep_cache: true, passed: None })
    }

    fn backing_of(&self, path: &RelPath, origin: &Origin) -> Result<Backing> {
        match origin {
            Origin::Upper(id, _) => match self.store.open_upper(*id) {
                Err(_) if self.is_let_go(*id) => Ok(Backing::Lower(Arc::new(open_lower(&self.lower, path)?))),
                file => Ok(Backing::Upper(*id, Arc::new(file?))),
            },
            Origin::Lower(_) => Ok(Backing::Lower(Arc::new(open_lower(&self.lower, path)?))),
            Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }

    /// The node's shared open file, made where there is none, with one more handle counted on it. Counted under the lock
    /// under which the last release lets go of it. None when the view has moved on since `epoch`.
    fn claim_file(
        &self,
        node: NodeId,
        path: &RelPath,
        origin: &Origin,
        epoch: u64,
        access: Access,
    ) -> Result<Option<Arc<OpenFile>>> {
        {
            let mut state = self.state.lock();
            if let Some(open) = &state.nodes.get(node)?.open {
                open.claim(access);
                return Ok(Some(open.clone()));
            }
            if state.part_if_passed(node) {
                // The kernel looks the name up anew, and gets another node.
                return Err(Error::Errno(libc::ESTALE));
            }
        }
        let backing = match self.backing_of(path, origin) {
            // Let go of, or landed, between the look and the open.
            Err(err) if err.code() == libc::ENOENT && self.state.lock().epoch != epoch => return Ok(None),
            other => other?,
        };
        let mut state = self.state.lock();
        let moved_on = state.epoch != epoch;
        let found = state.nodes.get_mut(node)?;
        let open = match &found.open {
            Some(open) => open.clone(),
            None if moved_on || found.passed.is_some() => return Ok(None),
            None => found.open.insert(OpenFile::new(node, backing)).clone(),
        };
        open.claim(access);
        Ok(Some(open))
    }

    fn add_handle(
        &self,
        node: NodeId,
        target: Target,
        flags: OpenFlags,
        caller: &Caller,
        opened: Option<Stamp>,
    ) -> HandleId {
        let handle = Handle {
            target,
            access: flags.access,
            node,
            // Reading needs nobody's name.
            opener: match flags.access {
                Access::Read if !flags.truncates() => caller.writer(),
                Access::Read | Access::Write => caller.opener(),
            },
            written: AtomicBool::new(false),
            began: AtomicBool::new(false),
            opened: Mutex::new(opened),
        };
        let mut state = self.state.lock();
        state.handle_last += 1;
        let id = HandleId(state.handle_last);
        state.handles.insert(id, Arc::new(handle));
        id
    }

    pub(super) fn handle(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.state.lock().handles.get(&id).cloned().ok_or(Error::Errno(libc::EBADF))
    }

    /// Makes a regular file and opens it.
    pub fn create(
        &self,
        parent: NodeId,
        name: &std::ffi::OsStr,
        mode: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        self.check_may_write(caller)?;
        let path = self.new_path(parent, name)?;
        let origin = self.origin(&path)?;
        if matches!(origin, Origin::Lower(_) | Origin::Upper(..)) {
            return self.create_existing(parent, name, flags, caller);
        }
        let action = self.action_by(&path, FileKind::Regular, &self.writer(caller));
        if matches!(action, Action::Deny | Action::Freeze) {
            return Err(self.denied(&path));
        }
        let heritage = self.heritage(&path, FileKind::Regular, mode, caller)?;
        let new = NewFile { parent, name, path: &path, heritage: &heritage, flags, caller };
        if action == Action::Pass { self.create_passed(&new) } else { self.create_judged(&new) }
    }

    /// Somebody made it below since the kernel looked.
    fn create_existing(
        &self,
        parent: NodeId,
        name: &std::ffi::OsStr,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        if flags.is_exclusive() {
            return Err(Error::Errno(libc::EEXIST));
        }
        let entry = self.look_up(parent, name)?;
        Ok((entry, self.open(entry.node, flags, caller)?))
    }

    fn create_passed(&self, new: &NewFile<'_>) -> Result<(Entry, Opened)> {
        let NewFile { parent, name, path, heritage, flags, caller } = *new;
        let place = self.lower.place(path)?;
        // Opened for both, so that a file whose mode forbids it can still be written through this handle.
        let mode = crate::sys::Mode::from_raw_mode(heritage.mode | 0o600);
        let fd = place.create(OFlags::RDWR | OFlags::NONBLOCK, mode)?;
        heritage.give_opened(fd.as_fd()).doing(|| format!("give {path} an owner"))?;
        let entry = self.look_up(parent, name)?;
        let file = File::from(fd);
        let passed = match self.claim_made(entry.node, &file, flags.access)? {
            Claimed::Passed(passed) => passed,
            // Replaced by somebody else at this moment.
            Claimed::Judged(_) | Claimed::MovedOn => return Err(Error::Errno(libc::ESTALE)),
        };
        let handle = self.add_passed_handle(entry.node, &passed, Arc::new(file), flags, caller);
        let passed = self.passes_through().then_some(passed);
        Ok((entry, Opened { handle, keep_cache: false, passed }))
    }

    fn create_judged(&self, new: &NewFile<'_>) -> Result<(Entry, Opened)> {
        let NewFile { parent, name, path, heritage, flags, caller } = *new;
        let upper = self.store.create_upper()?;
        heritage.give_upper(upper.file.as_fd()).doing(|| format!("give {path} an owner"))?;
        self.add_upper(upper.id, path, What::File)?;
        let entry = self.look_up(parent, name)?;
        let open = {
            let mut state = self.state.lock();
            let open = OpenFile::new(entry.node, Backing::Upper(upper.id, Arc::new(upper.file)));
            open.dirty.store(true, Ordering::SeqCst);
            open.claim(flags.access);
            state.nodes.set_open(entry.node, Some(open.clone()));
            open
        };
        let id = self.add_handle(entry.node, Target::Judged(open), flags, caller, None);
        self.handle(id)?.began.store(true, Ordering::SeqCst);
        Ok((entry, Opened { handle: id, keep_cache: true, passed: None }))
    }

    pub fn read(&self, handle: HandleId, offset: u64, size: usize) -> Result<Vec<u8>> {
        let handle = self.handle(handle)?;
        let mut data = vec![0; size];
        let read = |file: &File, data: &mut [u8]| -> io::Result<usize> {
            let mut done = 0;
            while done < data.len() {
                match file.read_at(&mut data[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                    Err(err) => return Err(err),
                }
            }
            Ok(done)
        };
        let count = match &handle.target {
            Target::Passed(passed) => read(passed.readable(), &mut data),
            Target::Judged(open) => read(&open.file(), &mut data),
        };
        data.truncate(count.doing(|| format!("read at {offset}"))?);
        Ok(data)
    }

    pub fn write(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<usize> {
        let handle = self.handle(handle)?;
        self.change_content(&handle, Keep::Content, |file| file.write_all_at(data, offset))?;
        Ok(data.len())
    }

    /// The same by who has no right to keep set-id bits. For what goes through its page cache the kernel asks for that.
    pub fn write_unprivileged(&self, handle: HandleId, offset: u64, data: &[u8], caller: &Caller) -> Result<usize> {
        let handle = self.handle(handle)?;
        self.change_content(&handle, Keep::Content, |file| {
            drop_set_id(file, caller)?;
            file.write_all_at(data, offset)
        })?;
        Ok(data.len())
    }

    /// Does `change` to the content of the handle's file, in upper unless it passes.
    fn change_content<T>(&self, handle: &Handle, keep: Keep, change: impl FnOnce(&File) -> io::Result<T>) -> Result<T> {
        self.check_writable()?;
        let Some(open) = handle.judged() else {
            let Target::Passed(passed) = &handle.target else { return Err(Error::Errno(libc::EBADF)) };
            return Ok(change(passed.writable()?)?);
        };
        let under_way = open.begin_write();
        let file = self.writable(open, keep, handle.opened())?;
        // Before the bytes: a judgement under way must not take this handle for done.
        if !handle.written.swap(true, Ordering::SeqCst) {
            self.note_program(handle, open);
        }
        let result = change(&file);
        // And after them: a close of another descriptor may have judged meanwhile, without them.
        handle.written.store(true, Ordering::SeqCst);
        drop(under_way);
        Ok(result?)
    }

    /// What a rule says of the program behind a handle counts, whoever closes last and has the content judged.
    fn note_program(&self, handle: &Handle, open: &OpenFile) {
        if !self.policy().names_programs() {
            return;
        }
        let (Some(id), Ok(path)) = (open.upper(), self.path_of(open.node)) else { return };
        if let Action::Hold(source) = self.action_on_content(&path, FileKind::Regular, &handle.opener)
            && let Some(upper) = self.state.lock().uppers.get_mut(id)
        {
            upper.because.push(source.reason());
        }
    }

    /// Where the open itself empties the file. Without that there is no handle.
    fn empty_at_open(&self, id: HandleId, open: &Arc<OpenFile>, flags: OpenFlags, caller: &Caller) -> Result<()> {
        if !flags.truncates() {
            return Ok(());
        }
        let handle = self.handle(id)?;
        self.empty(&handle, open, caller).or_else(|err| {
            self.release(id)?;
            Err(err)
        })
    }

    /// Judged with what is written next, or at the release.
    fn empty(&self, handle: &Handle, open: &Arc<OpenFile>, caller: &Caller) -> Result<()> {
        let _under_way = open.begin_write();
        let file = self.writable(open, Keep::Nothing, handle.opened())?;
        handle.began.store(true, Ordering::SeqCst);
        self.note_program(handle, open);
        file.set_len(0).and_then(|()| drop_set_id(&file, caller)).doing(|| "truncate".to_owned())
    }

    pub(super) fn truncate(&self, node: NodeId, handle: Option<HandleId>, size: u64, caller: &Caller) -> Result<()> {
        let keep = if size == 0 { Keep::Nothing } else { Keep::Content };
        if let Some(handle) = handle.and_then(|id| self.handle(id).ok()).filter(|handle| handle.access == Access::Write)
        {
            return self.change_content(&handle, keep, |file| file.set_len(size));
        }
        let flags = OpenFlags::from_raw(libc::O_WRONLY);
        let opened = self.open(node, flags, caller)?;
        let result =
            self.handle(opened.handle).and_then(|handle| self.change_content(&handle, keep, |file| file.set_len(size)));
        let flushed = self.flush(opened.handle, caller);
        self.release(opened.handle)?;
        result.and(flushed)
    }

    pub fn fallocate(&self, handle: HandleId, mode: i32, offset: u64, length: u64) -> Result<()> {
        let handle = self.handle(handle)?;
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
        self.change_content(&handle, Keep::Content, |file| Ok(rustix::fs::fallocate(file, flags, offset, length)?))
    }

    /// `SEEK_DATA` and `SEEK_HOLE`; the kernel does the other kinds by itself.
    pub fn lseek(&self, handle: HandleId, offset: i64, whence: i32) -> Result<i64> {
        let handle = self.handle(handle)?;
        let offset = u64::try_from(offset).map_err(|_| Error::Errno(libc::ENXIO))?;
        let from = match whence {
            libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
            libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset),
            _ => return Err(Error::Errno(libc::EINVAL)),
        };
        let seek = |file: &File| rustix::fs::seek(file, from).map_err(io::Error::from);
        let position = match &handle.target {
            Target::Passed(passed) => seek(passed.readable())?,
            Target::Judged(open) => seek(&open.file())?,
        };
        i64::try_from(position).map_err(|_| Error::Errno(libc::EOVERFLOW))
    }

    pub fn copy_file_range(
        &self,
        from: HandleId,
        from_offset: u64,
        to: HandleId,
        to_offset: u64,
        length: usize,
    ) -> Result<usize> {
        let (from, to) = (self.handle(from)?, self.handle(to)?);
        let source = match &from.target {
            Target::Passed(passed) => passed.readable().try_clone()?,
            Target::Judged(open) => open.file().try_clone()?,
        };
        self.change_content(&to, Keep::Content, |file| {
            let (mut read_at, mut write_at) = (from_offset, to_offset);
            Ok(rustix::fs::copy_file_range(&source, Some(&mut read_at), file, Some(&mut write_at), length)?)
        })
    }

    /// Durable when it returns; settles nothing (SPEC §4.1). For content in upper that takes its row as well: without it
    /// recovery would not know whose content it is. And rows that are older than what is on disk would bring back what
    /// the content replaced.
    pub fn fsync(&self, handle: HandleId, datasync: bool) -> Result<()> {
        let handle = self.handle(handle)?;
        let sync = |file: &File| if datasync { file.sync_data() } else { file.sync_all() };
        match &handle.target {
            Target::Passed(passed) => Ok(sync(passed.readable())?),
            Target::Judged(open) => {
                if let Some(landed) = open.upper().and_then(|id| self.note_synced(id)) {
                    match open_lower(&self.lower, &landed) {
                        Err(err) if tree::is_absent(&err) => {}
                        below => sync(&below?).doing(|| format!("fsync {landed}"))?,
                    }
                }
                sync(&open.file()).doing(|| "fsync".to_owned())?;
                Ok(self.store.sync()?)
            }
        }
    }

    /// The names in a directory, as the view shows them: those that lower has, and those that are held.
    pub fn sync_dir(&self, dir: NodeId) -> Result<()> {
        let path = self.path_of(dir)?;
        tree::sync_dir(self.lower.dir(&path)?.as_fd()).doing(|| format!("fsync {path}"))?;
        Ok(self.store.sync()?)
    }

    /// A descriptor is closed. Judges what was written, when the opener's own process closes it.
    pub fn flush(&self, handle: HandleId, caller: &Caller) -> Result<()> {
        let handle = self.handle(handle)?;
        let Some(open) = handle.judged() else { return Ok(()) };
        if handle.waits_for_release() {
            // What is asked from here on is asked of us.
            self.state.lock().closing.insert(handle.node, handle.opener.pid);
            self.tell(|observer| observer.attributes_changed(handle.node));
            return Ok(());
        }
        let by_opener = || caller.pid == handle.opener.pid || process::same_thread_group(caller.pid, handle.opener.pid);
        if !handle.written.load(Ordering::SeqCst) || !by_opener() || !handle.take_written() {
            return Ok(());
        }
        let Some(id) = open.upper() else { return Ok(()) };
        if open.writers() > 1 && self.is_written_elsewhere(&handle) {
            // What another writer has half done would land with it: the last to close is judged for both.
            return Ok(());
        }
        let settled = self.settle(id, &handle.opener);
        if matches!(settled, Err(_) | Ok(Settled::Postponed)) {
            // Still unjudged: the release tries again, and nothing is lost meanwhile.
            handle.written.store(true, Ordering::SeqCst);
        }
        match settled? {
            Settled::Held(_) if self.policy().settings.on_hold == OnHold::Fail => Err(Error::Errno(libc::EACCES)),
            Settled::Held(_) | Settled::Landed | Settled::Unchanged | Settled::Postponed => Ok(()),
        }
    }

    /// Whether another handle on the same file has written what nobody has judged.
    fn is_written_elsewhere(&self, handle: &Arc<Handle>) -> bool {
        let state = self.state.lock();
        let others = state.handles.values().filter(|other| other.node == handle.node && !Arc::ptr_eq(other, handle));
        others.into_iter().any(|other| other.written.load(Ordering::SeqCst))
    }

    /// The last descriptor is gone. Judges what no close has judged.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        let removed = {
            let mut state = self.state.lock();
            let removed = state.handles.remove(&handle).ok_or(Error::Errno(libc::EBADF))?;
            state.closing.remove(&removed.node);
            removed
        };
        let open = match &removed.target {
            Target::Passed(passed) => {
                self.let_go(removed.node, passed.passed());
                return Ok(());
            }
            Target::Judged(open) => open,
        };
        if removed.access == Access::Write {
            open.writers.fetch_sub(1, Ordering::SeqCst);
        }
        let settled = match open.upper() {
            // What the others do not judge, this judges; what one of them will, it leaves.
            Some(id) if removed.is_unjudged() && !self.is_written_elsewhere(&removed) => {
                self.settle(id, &removed.opener).map(|_| ())
            }
            _ => Ok(()),
        };
        self.closed(open)?;
        self.changed.notify_all();
        settled
    }

    /// Lets go of what nobody has open any more.
    fn closed(&self, open: &Arc<OpenFile>) -> Result<()> {
        let last = open.handles.fetch_sub(1, Ordering::SeqCst) == 1;
        if open.writers() == 0
            && let Some(id) = open.upper()
        {
            self.evict(id)?;
        }
        if last {
            let mut state = self.state.lock();
            if open.handles.load(Ordering::SeqCst) == 0 {
                state.nodes.set_open(open.node, None);
            }
        }
        Ok(())
    }

    /// Marks a release as under way until the guard is dropped; taken when the request is read.
    pub fn release_begun(&self, handle: Option<HandleId>) -> impl Drop + '_ {
        struct UnderWay<'a> {
            overlay: &'a Overlay,
            judges: Option<NodeId>,
        }
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.overlay.releasing.fetch_sub(1, Ordering::SeqCst);
                let mut state = self.overlay.state.lock();
                if let Some(at) = state.judged_at_release.iter().position(|node| Some(*node) == self.judges) {
                    state.judged_at_release.swap_remove(at);
                }
                self.overlay.changed.notify_all();
            }
        }
        self.releasing.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        let handle = handle.and_then(|handle| state.handles.get(&handle));
        let judges = handle.filter(|handle| handle.waits_for_release()).map(|handle| handle.node);
        if let Some(node) = judges {
            state.closing.remove(&node);
            state.judged_at_release.push(node);
        }
        drop(state);
        self.changed.notify_all();
        UnderWay { overlay: self, judges }
    }

    pub fn statfs(&self) -> Result<rustix::fs::StatVfs> {
        Ok(rustix::fs::fstatvfs(self.lower.root()).map_err(io::Error::from)?)
    }

    /// A refusal by rule, counted.
    pub(super) fn denied(&self, path: &RelPath) -> Error {
        self.counters.denied.fetch_add(1, Ordering::Relaxed);
        let event = self.event(crate::protocol::EventName::WriteDenied, path);
        if let Err(err) = self.store.record(&event) {
            log::error!("record a denied write to {path}: {err}");
        }
        Error::Errno(libc::EPERM)
    }
}

/// What `O_TRUNC` does to the mode. At every other change of content the kernel asks for it; here it leaves all to us.
fn drop_set_id(file: &File, caller: &Caller) -> io::Result<()> {
    let mode = file::Meta::of(file.as_fd())?.mode;
    // Without the group's execute bit it is no lent group but a mark for mandatory locks.
    let lends_group = mode & 0o2010 == 0o2010;
    let kept = mode & !SET_UID & if lends_group { !SET_GID } else { u32::MAX };
    match kept == mode || process::keeps_set_id(caller.pid) {
        true => Ok(()),
        false => file::set_mode(file.as_fd(), kept),
    }
}

impl super::State {
    /// What is open on a node, whoever opened it.
    pub(super) fn open_file(&self, node: NodeId) -> Option<Arc<File>> {
        let node = self.nodes.get(node).ok()?;
        let judged = node.open.as_ref().map(|open| open.file());
        judged.or_else(|| node.passed.as_ref().map(|passed| passed.file().clone()))
    }
}
