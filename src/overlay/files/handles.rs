//! Open files: handles, and what all handles on one node share.
//!
//! ```text
//!            first write: copy_up                      landed: evict
//!   Lower ──────────────────────► Upper{id} ──────────────────────────────► Lower
//!     │  unlinked and changed                          (still open)
//!     └───────────────────────► Orphan
//! ```
//! Reads and writes go to what the node has now, not to what it had when the handle was opened: a reader sees what a
//! writer of the same file wrote, as on any file system. Files that a `pass` rule lets pass are in [`super::passed`].

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::comes_back::TakenFrom;
use super::passed::PassedHandle;
use super::witness::Seen;
use crate::model::{Digest, InodeKey, Reason, RelPath, Stamp};
use crate::overlay::state::nodes::{NodeId, Nodes};
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::store::{Kept, Nameless, UpperId, Writer};
use crate::sys::OFlags;
use crate::sys::file::{self, Meta};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// `__FMODE_EXEC` in the kernel's include/linux/fs.h: among the flags of an `execve`, and of no `open(2)`.
const FMODE_EXEC: u32 = 0x20;

/// The flags of `open(2)` that matter to the view.
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

    pub(super) fn truncates(self) -> bool {
        self.raw.contains(OFlags::TRUNC)
    }

    pub(super) fn is_exclusive(self) -> bool {
        self.raw.contains(OFlags::EXCL)
    }

    /// True if the open itself empties the file, or its handle can change it.
    pub(super) fn may_change(self) -> bool {
        self.access == Access::Write || self.truncates()
    }

    /// True if the kernel opens the file to run it.
    pub(super) fn executes(self) -> bool {
        self.raw.bits() & FMODE_EXEC != 0
    }

    pub(super) fn only_writes(self) -> bool {
        self.raw & OFlags::ACCMODE == OFlags::WRONLY
    }

    /// True if the open empties the file without write access. Of a running program's file the kernel denies that only
    /// afterwards.
    pub(super) fn truncates_unasked(self) -> bool {
        self.access == Access::Read && self.truncates()
    }

    pub(super) fn without_truncation(self) -> Self {
        Self { raw: self.raw - OFlags::TRUNC, ..self }
    }

    pub(super) fn is_direct(self) -> bool {
        self.raw.contains(OFlags::DIRECT)
    }

    /// The flags for a descriptor of lower. Left out are appending and synchronous writing: each write says where it goes
    /// and whether it is to last.
    pub(super) fn below(self) -> OFlags {
        self.raw & (OFlags::ACCMODE | OFlags::TRUNC) | OFlags::NONBLOCK
    }
}

pub(in crate::overlay) struct Handle {
    pub target: Target,
    pub access: Access,
    pub node: NodeId,
    pub opener: Writer,
    /// The process tree of its opener, which may have ended by the release. Known if it may change what is judged.
    pub tree: Option<u32>,
    /// The program that wrote through it since it was last judged.
    pub seen: Arc<Seen>,
    /// A permission program opened it. Found out at the open: by the close, that program may have ended.
    pub is_hooks: bool,
    /// The kernel opened it to run a program from it.
    executes: bool,
    /// Written since it was last judged.
    written: AtomicBool,
    /// Made or emptied the file, which has not been judged since: its own close does not judge for that, the release does.
    began: AtomicBool,
    /// Lower's stamp when the handle was opened, and as our own changes have moved it since.
    opened: Mutex<Option<Stamp>>,
    /// The handle may write, and the file that it has open has landed and is lower's.
    has_landed: AtomicBool,
    /// Lower has content that was never in the view while this was open, and nothing written through it since has been
    /// judged.
    has_missed: AtomicBool,
    /// What was at a path before the first landing of this handle's content there, if nothing else has landed there
    /// since. A leaf.
    first: Mutex<Option<(RelPath, Option<Kept>)>>,
}

pub(in crate::overlay) enum Target {
    Passed(PassedHandle),
    Judged(Arc<OpenFile>),
}

/// What the handles on one node share.
#[derive(Debug)]
pub(in crate::overlay) struct OpenFile {
    pub node: NodeId,
    /// The [`State`](crate::overlay::State)'s epoch in which we last changed the file below, if only its times, or in
    /// which it was opened.
    changed_in: AtomicU64,
    /// Held while the file is copied up, or while held content that a write is about to replace is kept, so that each
    /// happens once.
    pub copying: Mutex<()>,
    backing: RwLock<Backing>,
    /// Writes begun and writes done: a judge looks whether either moved. A write counts as begun before it learns which
    /// file it goes to, so that one under way is never overlooked.
    begun: AtomicU64,
    done: AtomicU64,
    /// The upper entry is marked as written: one more write has nothing to note.
    pub dirty: AtomicBool,
    /// The content that was held when the entry was last judged, if any, is kept: one more write over it has nothing to
    /// keep. Set under `copying` and the view's state.
    pub overwritten: AtomicBool,
    /// The content was changed elsewhere than at its end, through whichever handle, and that is not judged yet.
    rewritten: AtomicBool,
    handles: AtomicUsize,
    /// How many handles are being released: nothing is read or written through these any more.
    parting: AtomicUsize,
    writers: AtomicUsize,
    /// What the content takes on disk, as it was last counted.
    pub blocks: AtomicU64,
    /// Some content changed without the kernel marking the times it has cached as out of date, as every other write makes
    /// it do: stores through a mapping, space allocated or freed.
    pub changed_quietly: AtomicBool,
    /// The room that the content takes once the file has no name. A leaf.
    pub nameless: Mutex<Option<Nameless>>,
    /// Where its last name was, if a person took that from the view. A leaf.
    pub taken_from: Mutex<Option<TakenFrom>>,
}

#[derive(Clone, Debug)]
pub(in crate::overlay) enum Backing {
    Lower(Arc<File>),
    Upper(UpperId, Arc<File>),
    /// The file has no name any more: nothing of it is judged, unless it [comes back](super::comes_back).
    Orphan(Arc<File>),
}

impl OpenFile {
    pub fn new(node: NodeId, backing: Backing, epoch: u64) -> Arc<Self> {
        Arc::new(Self {
            node,
            changed_in: AtomicU64::new(epoch),
            copying: Mutex::new(()),
            backing: RwLock::new(backing),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            overwritten: AtomicBool::new(false),
            rewritten: AtomicBool::new(false),
            handles: AtomicUsize::new(0),
            parting: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            blocks: AtomicU64::new(0),
            changed_quietly: AtomicBool::new(false),
            nameless: Mutex::default(),
            taken_from: Mutex::default(),
        })
    }

    pub fn changed_below(&self, epoch: u64) {
        self.changed_in.store(epoch, Ordering::SeqCst);
    }

    /// True if we have changed the file below since an epoch. What lower had then may have been replaced more than once.
    pub fn has_changed_since(&self, epoch: u64) -> bool {
        self.changed_in.load(Ordering::SeqCst) > epoch
    }

    pub fn backing(&self) -> RwLockReadGuard<'_, Backing> {
        self.backing.read()
    }

    pub fn set_backing(&self, nodes: &mut Nodes, backing: Backing) {
        nodes.note_entry(self.node, self.upper(), backing.upper());
        self.switch_to(backing);
    }

    fn switch_to(&self, backing: Backing) {
        *self.backing.write() = backing;
        // The new file may hold other content that waits for review, and its blocks are counted anew.
        self.overwritten.store(false, Ordering::SeqCst);
        self.blocks.store(0, Ordering::Relaxed);
    }

    /// The entry has landed and goes: switches back to lower's file, and counts as a write, so that a judge that has
    /// looked at the content looks again. To be called under the lock of the view's state.
    pub fn goes_on_with(&self, nodes: &mut Nodes, lower: Arc<File>) {
        drop(self.begin_write());
        self.set_backing(nodes, Backing::Lower(lower));
        self.dirty.store(false, Ordering::SeqCst);
    }

    /// Its entry is about to be judged: the next write must note itself again. Returns whether the content was
    /// [rewritten](Self::note_rewritten) since it was judged before.
    pub fn begin_judging(&self) -> bool {
        self.dirty.store(false, Ordering::SeqCst);
        self.overwritten.store(false, Ordering::SeqCst);
        self.rewritten.swap(false, Ordering::SeqCst)
    }

    pub fn note_rewritten(&self) {
        self.rewritten.store(true, Ordering::SeqCst);
    }

    /// It goes on with content that was judged before.
    pub fn forget_rewritten(&self) {
        self.rewritten.store(false, Ordering::SeqCst);
    }

    pub fn is_rewritten(&self) -> bool {
        self.rewritten.load(Ordering::SeqCst)
    }

    /// Returns the file that is read and written, for callers that need no more than its descriptor.
    pub fn file(&self) -> Arc<File> {
        match &*self.backing() {
            Backing::Lower(file) | Backing::Upper(_, file) | Backing::Orphan(file) => file.clone(),
        }
    }

    /// Reopens lower's file for reading alone; the next writer writes to a copy anyway. A file that is open for writing
    /// below cannot be run there. To be called under the lock of the view's state.
    pub fn only_read(&self) {
        let below = match &*self.backing() {
            Backing::Lower(file) => file.clone(),
            Backing::Upper(..) | Backing::Orphan(_) => return,
        };
        // A file that nobody may read stays open as it is.
        if let Ok(reading) = file::reopen(below.as_fd(), OFlags::RDONLY) {
            self.switch_to(Backing::Lower(Arc::new(reading)));
        }
    }

    pub fn upper(&self) -> Option<UpperId> {
        self.backing().upper()
    }

    /// The key of lower's file, if that is what is open.
    pub fn key_below(&self) -> Option<InodeKey> {
        match &*self.backing() {
            Backing::Lower(file) => Meta::of(file.as_fd()).ok().map(|meta| meta.key()),
            Backing::Upper(..) | Backing::Orphan(_) => None,
        }
    }

    /// True if it is an orphan, with this file.
    pub fn is_orphan(&self, file: &Arc<File>) -> bool {
        matches!(&*self.backing(), Backing::Orphan(now) if Arc::ptr_eq(now, file))
    }

    /// Returns the file that is read and written, if it belongs to this entry.
    pub fn upper_file(&self, id: UpperId) -> Option<Arc<File>> {
        match &*self.backing() {
            Backing::Upper(of, file) if *of == id => Some(file.clone()),
            Backing::Upper(..) | Backing::Lower(_) | Backing::Orphan(_) => None,
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
    pub fn claim(&self, access: Access) {
        self.handles.fetch_add(1, Ordering::SeqCst);
        self.writers.fetch_add(usize::from(access == Access::Write), Ordering::SeqCst);
    }

    /// A handle is about to go, as soon as what was written through it is judged.
    pub fn begin_parting(&self, access: Access) {
        self.parting.fetch_add(1, Ordering::SeqCst);
        self.writers.fetch_sub(usize::from(access == Access::Write), Ordering::SeqCst);
    }

    /// The handle has gone. Returns true if it was the last.
    pub fn part(&self) -> bool {
        self.parting.fetch_sub(1, Ordering::SeqCst);
        self.handles.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// True if no handle is left but those about to go; to be asked under the lock of the view's state.
    pub fn is_unused(&self) -> bool {
        self.handles.load(Ordering::SeqCst) == self.parting.load(Ordering::SeqCst)
    }

    pub fn begin_write(&self) -> impl Drop + '_ {
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
    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    /// True if it has the file of this entry open.
    pub fn writes_to(&self, id: UpperId) -> bool {
        self.judged().is_some_and(|open| open.upper() == Some(id))
    }

    pub fn is_unjudged(&self) -> bool {
        self.is_written() || self.has_begun()
    }

    /// Notes a write. Returns whether one had been noted before.
    pub fn note_written(&self) -> bool {
        self.written.swap(true, Ordering::SeqCst)
    }

    /// True if it made or emptied the file, and nobody has judged that.
    pub fn has_begun(&self) -> bool {
        self.began.load(Ordering::SeqCst)
    }

    pub fn note_began(&self) {
        self.began.store(true, Ordering::SeqCst);
    }

    /// What it made or emptied was judged, with what another handle has written.
    pub fn note_judged(&self) {
        self.began.store(false, Ordering::SeqCst);
    }

    /// The entry that it writes to could not be recorded. The next write has to try again, and what is there all the same
    /// is judged at the release.
    pub fn note_unrecorded(&self) {
        self.note_began();
        self.written.store(false, Ordering::SeqCst);
    }

    /// True if it made or emptied the file and wrote nothing, so that only the release judges it.
    pub fn waits_for_release(&self) -> bool {
        self.has_begun() && !self.is_written()
    }

    /// Returns lower's stamp as the writer knows it, copied out: someone who holds the state's lock may be about to
    /// change it.
    pub fn opened(&self) -> Option<Stamp> {
        *self.opened.lock()
    }

    /// Our own doing has changed lower from `before` to `after`, with the same content.
    pub fn touched(&self, before: &Stamp, after: &Stamp) {
        let mut opened = self.opened.lock();
        if opened.is_some_and(|opened| opened.has_same_content(before)) {
            *opened = Some(*after);
        }
    }

    /// A landing of ours may have come between the look before the open and the open itself: the stamp becomes that of
    /// the file that is really open.
    fn opened_as(&self, open: &OpenFile) {
        if let Backing::Lower(file) = &*open.backing()
            && let Ok(meta) = Meta::of(file.as_fd())
        {
            self.opened.lock().iter_mut().for_each(|opened| *opened = meta.stamp());
        }
    }

    /// The file that it has open is lower's now.
    pub fn landed(&self, landed: Stamp) {
        if !self.has_missed.load(Ordering::SeqCst) {
            *self.opened.lock() = Some(landed);
        }
        self.has_landed.store(self.access == Access::Write, Ordering::SeqCst);
    }

    /// The same for a landing merged with edits that others made to what was there `before`: the program behind the
    /// handle has not seen those.
    pub fn landed_merged(&self, before: Stamp) {
        *self.opened.lock() = Some(before);
        self.has_missed.store(true, Ordering::SeqCst);
        self.has_landed.store(self.access == Access::Write, Ordering::SeqCst);
    }

    /// Its content lands at `path` and was judged against `old`, and so is what it writes from now on (SPEC §4.1).
    pub fn lands(&self, path: &RelPath, old: Option<Kept>) {
        let mut first = self.first.lock();
        if first.as_ref().is_none_or(|(of, _)| of != path) {
            *first = Some((path.clone(), old));
        }
    }

    /// Something else has landed where its content did, or a person has reviewed that content.
    pub fn begins_anew(&self) {
        *self.first.lock() = None;
    }

    /// Returns what was at `path` before this handle's content first landed there.
    pub fn first_at(&self, path: &RelPath) -> Option<Option<Kept>> {
        self.first.lock().as_ref().and_then(|(of, first)| (of == path).then_some(*first))
    }

    /// The content that [`Self::first_at`] needs.
    pub fn needed_content(&self) -> Option<Digest> {
        self.first.lock().as_ref().and_then(|(_, first)| Some(first.as_ref()?.digest))
    }

    /// True if what was written through it has become lower's file, and it may write more.
    pub fn has_landed(&self) -> bool {
        self.has_landed.load(Ordering::SeqCst)
    }

    pub fn judged(&self) -> Option<&Arc<OpenFile>> {
        match &self.target {
            Target::Judged(open) => Some(open),
            Target::Passed(_) => None,
        }
    }

    /// To whom what was done through it is attributed: its opener, with the program that wrote.
    pub fn actor(&self) -> Writer {
        Writer { written_by: self.seen.writer(self.opener.opened_by.as_ref()), ..self.opener.clone() }
    }

    /// Reasons to hold that come with the program that has it open.
    pub fn because(&self) -> Vec<Reason> {
        if self.is_hooks { vec![Reason::Hook] } else { Vec::new() }
    }

    pub fn readable(&self) -> Arc<File> {
        match &self.target {
            Target::Judged(open) => open.file(),
            Target::Passed(passed) => passed.readable().clone(),
        }
    }

    /// Returns the file that is read, and which layer it belongs to.
    pub fn backing(&self) -> Backing {
        match &self.target {
            Target::Judged(open) => open.backing().clone(),
            Target::Passed(passed) => Backing::Lower(passed.readable().clone()),
        }
    }

    pub fn take_written(&self) -> bool {
        let written = self.written.swap(false, Ordering::SeqCst);
        if written {
            self.began.store(false, Ordering::SeqCst);
            self.has_missed.store(false, Ordering::SeqCst);
        }
        written
    }
}

impl Backing {
    pub fn upper(&self) -> Option<UpperId> {
        match self {
            Self::Upper(id, _) => Some(*id),
            Self::Lower(_) | Self::Orphan(_) => None,
        }
    }

    pub fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_))
    }
}

impl Overlay {
    pub(in crate::overlay) fn add_handle(
        &self,
        node: NodeId,
        target: Target,
        flags: OpenFlags,
        caller: &Caller,
        opened: Option<Stamp>,
    ) -> HandleId {
        // The opener is looked up only for changes that are judged.
        let is_judged = flags.may_change() && matches!(target, Target::Judged(_));
        let (opener, seen) = match is_judged {
            false => (caller.writer(), Seen::default()),
            true => (self.opener(caller), Seen::opened_by(caller.pid)),
        };
        let handle = Handle {
            target,
            access: flags.access,
            node,
            is_hooks: is_judged && self.is_hooks_own(&opener),
            opener,
            tree: if is_judged { self.tree_of(caller.pid) } else { None },
            seen: Arc::new(seen),
            executes: flags.executes(),
            written: AtomicBool::new(false),
            began: AtomicBool::new(false),
            opened: Mutex::new(opened),
            has_landed: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
            first: Mutex::default(),
        };
        let mut state = self.state.lock();
        if let (true, Target::Judged(open)) = (is_judged, &handle.target) {
            handle.opened_as(open);
        }
        state.handle_last += 1;
        let id = HandleId(state.handle_last);
        state.handles.insert(id, Arc::new(handle));
        id
    }

    pub(in crate::overlay) fn handle(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.state.lock().handles.get(&id).cloned().ok_or(Error::Errno(libc::EBADF))
    }
}

impl State {
    pub(super) fn is_run(&self, node: NodeId) -> bool {
        self.handles.values().any(|handle| handle.node == node && handle.executes)
    }

    pub(in crate::overlay) fn handles_on(&self, node: NodeId) -> impl Iterator<Item = &Arc<Handle>> {
        self.handles.values().filter(move |handle| handle.node == node)
    }

    /// Returns the node of what the view has at a path: of an upper entry that is open, by whichever of its names, the node
    /// it is open on.
    pub(in crate::overlay) fn node_at(&self, path: &RelPath) -> Option<NodeId> {
        let open = self.uppers.at(path).and_then(|id| self.nodes.open_of(id));
        open.map(|open| open.node).or_else(|| self.nodes.at(path))
    }

    /// Returns the file that is open on a node, judged or passed.
    pub(super) fn open_file(&self, node: NodeId) -> Option<Arc<File>> {
        let node = self.nodes.get(node).ok()?;
        let judged = node.open().map(|open| open.file());
        judged.or_else(|| node.passed().map(|passed| passed.file().clone()))
    }
    /// True if another file was renamed over a node that nobody has open.
    pub(super) fn is_left(&self, node: NodeId) -> bool {
        let is_nameless = self.nodes.path(node).is_err() && self.open_file(node).is_none();
        is_nameless && self.nodes.get(node).is_ok_and(|node| node.left().is_some())
    }
}
