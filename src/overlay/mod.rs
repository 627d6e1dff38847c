//! The view: lower plus everything held, as plain file operations. It names no FUSE type and needs no kernel.
//!
//! Begin with [`Overlay`]. A program's operations enter through [`files`] and [`names`], [`judge`] decides what becomes
//! of its writes, and a person's actions begin in [`review`] and [`undo`]. The head of each room names its files.
//!
//! - [`who`]: which program asks, and which of its operations belong together
//! - [`state`]: what exists at each path, and what is known about it
//! - [`outside`]: changes that others make below the view
//! - [`git`]: what git has of the project
//! - [`files`]: what a program does to a file, up to the moment at which it is judged
//! - [`names`]: what a program does to names
//! - [`judge`]: the verdict on a change, and carrying it out
//! - [`review`]: held changes as a person sees them, and the person's decision
//! - [`undo`]: taking back what was done
//! - [`layered`]: a file as the view and each layer have it; [`traffic`]: request counts; [`error`]: why something
//!   failed; [`check`]: whether all of it is consistent
//!
//! `docs/ARCHITECTURE.md` follows one write through them.
//!
//! Lock order: directories that are acted in or renamed ([`acting`](who::acting)), then `OpenFile::copying`, then claims
//! on upper entries in the order of their ids, then `Overlay::state`, then the store's own locks. Under `state` run only
//! single calls on names and commits that reach the page cache: no diff, no hash, no copy, and nothing that waits for
//! another process. The exceptions are in `docs/ARCHITECTURE.md`, "Lock order".

mod check;
mod error;
mod files;
mod git;
mod judge;
mod layered;
mod names;
mod outside;
mod review;
mod state;
#[cfg(test)]
mod tests;
mod traffic;
mod undo;
mod who;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::hooks::Runner;
use crate::model::{Births, Digest, RelPath, Stamp};
use crate::policy::settings::Settings;
use crate::protocol::{EventName, Program};
use crate::store::{EventDraft, Kept, LOG_BYTES_MAX, Store, UpperId, UpperRow, Writer};
use crate::sys::tree::Tree;
use crate::sys::{file, process};

pub use error::{Error, Result};
pub use files::attributes::Attributes;
pub use files::handles::{HandleId, OpenFlags};
pub use files::open::Opened;
pub use files::passed::{Handover, Registration, StillPassed};
pub use files::patch::{Rewrite, RewriteHow, changed_since};
pub use files::reading::Shown;
pub use files::set_attributes::{SetAttributes, SetTime};
pub use judge::settle::Settled;
pub use layered::{Layered, Waiting};
pub use outside::external::LookedAt;
pub use outside::watch::Holds;
pub use review::confirm::{ConfirmHow, Merging};
pub use review::expiry::Expiry;
pub use review::inspected::{Members, members_of};
pub use review::permits::{Permits, Touch};
pub use review::{Review, ShownContent, SideContent, Sides, WholeContent};
pub use state::limits::Position;
pub use state::lookup::{Entry, Found, ListEntry, ListingStamp};
pub use state::nodes::{NodeId, ROOT};
pub use state::rules::{PROJECT_FILE, Policy, PolicyError, PolicyLoading, RuleSource};
pub use traffic::Traffic;
pub use undo::rollback::RollbackHow;
pub use undo::{UndoHow, Undone, no_such_operation};
pub use who::runs::{Run, Runs};

use files::handles::Handle;
use files::passable::Passable;
use files::spent::Spent;
use files::witness::Witness;
use git::repository::Turns;
use judge::judging::Judgings;
use outside::external::{Doubts, Heralded};
use outside::watch::Watching;
use review::ids::GivenIds;
use review::inspected::Inspected;
use state::nodes::Nodes;
use state::past::Past;
use state::uppers::Uppers;
use state::windows::Windows;
use who::acting::Shape;
use who::bursts::Bursts;
use who::goes::Goes;
use who::shells::Shells;
use who::sights::Sights;

/// The process behind a request, as far as the kernel tells. Pid 0 is the kernel itself or a caller outside our pid
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    /// Permission bits that new entries do not get.
    pub umask: u32,
}

/// Tells the kernel to forget what it cached. Called with no lock held.
pub trait Observer: Send + Sync {
    /// A node's attributes changed other than through the mount. Returns whether the kernel knows the node; if it does
    /// not, a reply that introduces it may be on its way.
    fn attributes_changed(&self, node: NodeId) -> bool;
    /// Content of a node changed other than through the mount.
    fn content_changed(&self, node: NodeId);
    /// What programs have stored through mappings of these nodes is to arrive as writes. Returns when it has, or when the
    /// time is up.
    fn take_stores(&self, nodes: &[NodeId], max: Duration);
    /// Names in a directory may have come or gone below, including names that no program has looked up.
    fn names_changed(&self, dir: NodeId);
    /// A name appeared, disappeared, or now stands for another node.
    fn entry_changed(&self, parent: NodeId, name: &std::ffi::OsStr);
    /// What the kernel was told about a name, or that it is missing, may no longer be true. The kernel asks again before
    /// it uses the name, and keeps the node if it is still the same.
    fn entry_doubted(&self, parent: NodeId, name: &std::ffi::OsStr);
    /// Programs that watch the view should learn that a path now shows something else, or nothing.
    fn shows_other(&self, path: &RelPath);
}

/// What the view allows beyond the default (SPEC §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    pub suid: bool,
    pub dev: bool,
    /// The only uid that may write. Under an ordinary user's mount the daemon acts with that user's rights, so other
    /// users only read (SPEC §2).
    pub only: Option<u32>,
}

impl Grants {
    /// POSIX in full, privileged attributes included.
    fn all(self) -> bool {
        self.suid && self.dev
    }
}

pub struct Overlay {
    lower: Tree,
    births: Births,
    store: Store,
    grants: Grants,
    session: String,
    policy: RwLock<Arc<Policy>>,
    hooks: Runner,
    state: Mutex<State>,
    /// Signalled when an upper entry is no longer busy and when a handle has been released.
    changed: Condvar,
    observer: std::sync::OnceLock<Box<dyn Observer>>,
    /// Unset while lower is not watched.
    watching: std::sync::OnceLock<Watching>,
    doubts: Doubts,
    counters: Counters,
    traffic: Traffic,
    bursts: Bursts,
    goes: Goes,
    inspected: Inspected,
    passable: Passable,
    runs: Runs,
    shells: Shells,
    witness: Witness,
    spent: Spent,
    /// Lets one thread at a time read git's HEAD.
    head_turns: Turns,
    /// This process's limit on open descriptors, read when it is first needed.
    descriptors: std::sync::OnceLock<u64>,
    /// Requests under way that release handles; `status` and similar requests wait for them (SPEC §4.1).
    releasing: AtomicU64,
    /// After an internal fault: why all writing has stopped (invariant 10).
    fault: Mutex<Option<String>>,
    faulted: AtomicBool,
    /// True for a view that stands although its rules cannot be read, until they can.
    lacks_rules: AtomicBool,
    /// Whether the kernel reads and writes unjudged files by itself.
    passes_through: AtomicBool,
    /// Files that passed, that are judged by now, and that a program may still write without asking us: the next change
    /// of rules tries again to part them from who has them open.
    still_passed: Mutex<HashSet<NodeId>>,
    /// Whether an upper file may itself become lower's file; false once a rename between the two has been refused.
    raises: AtomicBool,
}

/// All state that must agree, under one lock.
struct State {
    nodes: Nodes,
    uppers: Uppers,
    given_ids: GivenIds,
    handles: HashMap<HandleId, Arc<Handle>>,
    handle_last: u64,
    /// What landed within the window (SPEC §4.6).
    windows: Windows,
    past: Past,
    /// What fettlefs last knew of each path it has touched.
    seen: HashMap<RelPath, Seen>,
    /// What each process tree last saw of a path.
    sights: Sights,
    /// Which changes by others have already been recorded as events.
    heralded: Heralded,
    /// Counts our own renames and landings below, and entries that come and go. A lookup made without the lock is
    /// repeated if this has moved.
    epoch: u64,
    /// Nodes that were created or emptied but not written to, and of which a descriptor has been closed, with the pid of
    /// the opener. If that was the last descriptor, the release that judges the node follows.
    closing: HashMap<NodeId, u32>,
    /// The same nodes once that release is under way, one element per release.
    judged_at_release: Vec<NodeId>,
    judgings: Judgings,
    /// Entries that a confirm has taken out of the view and whose verdicts are not recorded yet.
    verdicts_due: Vec<UpperId>,
    /// Directories in which a change is being made at this moment, or which are being renamed.
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    content: Option<Kept>,
    /// Of a directory only that it is one counts.
    is_dir: bool,
}

#[derive(Default)]
struct Counters {
    landed: AtomicU64,
    held: AtomicU64,
    denied: AtomicU64,
}

impl Overlay {
    /// Opens the view. The caller holds the project's lock, has recovered what an earlier process left, and read the rules
    /// after that.
    pub fn new(lower: Tree, store: Store, policy: Policy, grants: Grants) -> Result<Self> {
        let session = format!("{:x}-{}", crate::store::now_millis(), std::process::id());
        let runs = Runs::after_others(&store)?;
        let births = file::births(lower.root())?;
        let overlay = Self {
            state: Mutex::new(State::new(&lower, births)?),
            lower,
            births,
            store,
            grants,
            session,
            policy: RwLock::new(Arc::new(policy)),
            hooks: Runner::default(),
            changed: Condvar::new(),
            observer: std::sync::OnceLock::new(),
            watching: std::sync::OnceLock::new(),
            doubts: Doubts::default(),
            counters: Counters::default(),
            traffic: Traffic::default(),
            bursts: Bursts::default(),
            spent: Spent::default(),
            head_turns: Turns::default(),
            goes: Goes::default(),
            inspected: Inspected::default(),
            passable: Passable::default(),
            runs,
            shells: Shells::default(),
            witness: Witness::default(),
            descriptors: std::sync::OnceLock::new(),
            releasing: AtomicU64::new(0),
            fault: Mutex::new(None),
            faulted: AtomicBool::new(false),
            lacks_rules: AtomicBool::new(false),
            passes_through: AtomicBool::new(false),
            still_passed: Mutex::default(),
            raises: AtomicBool::new(true),
        };
        overlay.load()?;
        Ok(overlay)
    }

    /// Brings back what is held, and holds what was being written when the last daemon died.
    fn load(&self) -> Result<()> {
        let rows = self.store.load_upper()?;
        let (anchors, moved_dirs) = (self.store.load_anchors()?, self.store.load_moved_dirs()?);
        let given_ids = self.store.load_given_ids()?;
        let mut interrupted = Vec::new();
        {
            let mut state = self.state.lock();
            state.know(anchors);
            state.past.know_dirs(moved_dirs);
            given_ids.into_iter().for_each(|(id, full)| state.given_ids.note(id, full));
            for row in rows {
                interrupted.extend(self.is_interrupted(&row).then_some(row.id));
                self.store.note_room(row.id);
                state.uppers.restore(row);
            }
        }
        self.load_inspections()?;
        self.restore_windows()?;
        for id in interrupted {
            if let Err(err) = self.settle_interrupted(id) {
                // It stays as it is, in the view and in the store. One entry must not keep everything else out of reach.
                log::error!("hold what was being written: {err}");
            }
        }
        Ok(())
    }

    /// True if an entry has content or looks that were never judged. A held one's hashes tell: they differ from what its
    /// id names.
    fn is_interrupted(&self, row: &UpperRow) -> bool {
        let Some(held) = &row.held else { return true };
        let is_as_held = || -> Result<_> {
            let mut side = self.row_side(row)?;
            let digest = side.digest()?;
            Ok(held.is_of(side.standing(), digest) && side.looks(row)?.digest() == held.looks)
        };
        // Unreadable content is left as it is; the error surfaces when the content is looked at.
        is_as_held().is_ok_and(|is_as_held| !is_as_held)
    }

    /// Sets the observer that learns of changes to what the kernel may have cached. Called once, when the mount stands.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        assert!(self.observer.set(observer).is_ok(), "a view has one observer");
    }

    pub fn lower(&self) -> &Tree {
        &self.lower
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    pub fn settings(&self) -> Settings {
        self.policy().settings.clone()
    }

    fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    /// Reads the present settings and rules, for [`Self::set_policy`].
    pub fn read_rules(&self, source: &RuleSource) -> std::result::Result<Policy, PolicyError> {
        self.policy().read_again(&self.lower, source)
    }

    /// Replaces rules and settings (SPEC §6, `reload`). They hold from here on, even if the returned error says that a
    /// program goes on writing past them to files it had open.
    pub fn set_policy(&self, policy: Policy) -> std::result::Result<(), StillPassed> {
        let before = std::mem::replace(&mut *self.policy.write(), Arc::new(policy));
        self.lacks_rules.store(false, Ordering::SeqCst);
        self.forget_what_passes();
        self.part_from_passed(&before)
    }

    pub fn landed(&self) -> u64 {
        self.counters.landed.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.counters.denied.load(Ordering::Relaxed)
    }

    /// The requests that the kernel has sent to this view.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The reason why writing has stopped, if it has.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().clone().or_else(|| self.store.halted()).or_else(|| self.why_rules_lack())
    }

    /// Stops all writing after an internal fault; reading goes on.
    pub fn stop_writing(&self, why: &str) {
        self.fault.lock().get_or_insert_with(|| why.to_owned());
        self.faulted.store(true, Ordering::SeqCst);
    }

    /// Lets nothing be written until a reload finds settings and rules that can be used, if there are none now.
    pub fn wait_for_rules(&self) {
        self.lacks_rules.store(self.unread_rules().is_some(), Ordering::SeqCst);
    }

    fn why_rules_lack(&self) -> Option<String> {
        let why = self.unread_rules().filter(|_| self.lacks_rules.load(Ordering::SeqCst));
        why.map(|why| format!("{why}; mend that, and `fettlefs reload`"))
    }

    /// Whether set-id bits are cleared here and by lower as content changes, rather than by requests of the kernel. Where
    /// a program gets rights by them the kernel does it, for it goes by the modes that it knows.
    pub fn clears_set_id(&self) -> bool {
        !self.grants.suid
    }

    fn check_writable(&self) -> Result<()> {
        let lacks_rules = self.lacks_rules.load(Ordering::Relaxed);
        match self.faulted.load(Ordering::Relaxed) || lacks_rules || self.store.is_halted() {
            true => Err(Error::Errno(libc::EROFS)),
            false => Ok(()),
        }
    }

    fn check_may_write(&self, caller: &Caller) -> Result<()> {
        match self.grants.only {
            Some(uid) if uid != caller.uid => Err(Error::Errno(libc::EACCES)),
            Some(_) | None => self.check_writable(),
        }
    }

    fn tell(&self, tell: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.observer.get() {
            tell(observer.as_ref());
        }
    }

    /// Tells the kernel that a path shows other content, perhaps by the same node as before.
    fn tell_content_changed(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.tell(|observer| observer.content_changed(node));
        }
        self.tell_changed(path);
    }

    /// Tells the kernel that something else stands for a path, or that it has other looks.
    fn tell_changed(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.forget_attributes(node);
        }
        self.tell(|observer| observer.shows_other(path));
        let parent = path.parent().and_then(|dir| self.state.lock().nodes.at(&dir));
        if let (Some(parent), Some(name)) = (parent, path.name()) {
            // The link count: held directories count in the view, and lower's events do not mention them.
            self.forget_attributes(parent);
            self.tell(|observer| match node {
                // A dropped entry would take the working directory from processes inside it.
                Some(_) => observer.entry_doubted(parent, name),
                None => observer.entry_changed(parent, name),
            });
        }
    }

    /// An event of this session about `path`.
    fn event(&self, name: EventName, path: &RelPath) -> EventDraft {
        EventDraft::new(name).with(|event| {
            event.path = Some(path.clone());
            event.session = Some(self.session.clone());
        })
    }

    pub fn session_started(&self) -> Result<()> {
        let draft = EventDraft::new(EventName::SessionStarted);
        let draft = draft.with(|event| event.session = Some(self.session.clone()));
        Ok(self.store.vitally(|| self.store.record(&draft))?)
    }

    /// Ends the session at a person's request: anchors go, held changes stay.
    pub fn session_ended(&self) -> Result<()> {
        let draft = EventDraft::new(EventName::SessionEnded);
        let draft = draft.with(|event| event.session = Some(self.session.clone()));
        if self.fault().is_none() {
            // After a fault an intent may still need what waits under a temporary name.
            self.store.clear_up(&self.lower)?;
        }
        self.store.vitally(|| self.store.end_session(&draft))?;
        self.store.forget_uses();
        self.purge()?;
        self.store.vitally(|| self.store.forget_boot(&self.lower))?;
        Ok(self.store.vitally(|| self.store.checkpoint())?)
    }

    /// Removes backups that are past a limit, then events that are. Other requests go on meanwhile.
    pub fn purge(&self) -> Result<usize> {
        // Computed before the purge, which may use the reserved room: taking `state` then could mean waiting for a thread
        // that waits for that room.
        let (limits, needed) = (self.policy().settings.backups, self.needed_content());
        let gone = self.store.vitally(|| self.store.purge(&limits, &needed))?;
        self.store.vitally(|| self.store.rotate_events(LOG_BYTES_MAX))?;
        Ok(gone)
    }

    /// Purges from time to time, until the session ends.
    pub fn purge_until_the_end(&self) {
        while self.store.wait_for_purge(&self.policy().settings.backups) {
            if let Err(err) = self.purge() {
                log::error!("let old backups go: {err}");
            }
        }
    }

    /// Content that a held change, an anchor or a window still needs.
    fn needed_content(&self) -> HashSet<Digest> {
        let setting = self.policy().settings.window;
        let mut state = self.state.lock();
        state.windows.forget_old(setting, Instant::now());
        let held = state.uppers.iter().flat_map(|upper| upper.row.base.contents());
        let anchors = state.past.iter().filter_map(|(_, known)| Some(known.kept()?.digest));
        let windows = state.windows.needed_content();
        let handles = state.handles.values().filter_map(|handle| handle.needed_content());
        held.chain(anchors).chain(windows).chain(handles).collect()
    }
}

/// Identifying the program behind an action by looking at its process: not for FLUSH and RELEASE, and never under a lock.
impl Overlay {
    /// The program that opens a file. [`witness`](files::witness) finds out which one then writes to it.
    fn opener(&self, caller: &Caller) -> Writer {
        Writer { opened_by: caller.program(), session: Some(self.session_of(caller.pid)), ..caller.writer() }
    }

    /// The process that sends a request and waits for the answer: part of a run, or a person outside.
    pub fn asker(&self, pid: u32, uid: u32) -> Writer {
        let session = self.runs.of(pid).map_or_else(|| self.session.clone(), |run| run.session);
        Writer { pid, uid, session: Some(session), ..Writer::default() }
    }

    /// The program that makes, renames or removes a name.
    fn doer(&self, caller: &Caller) -> Writer {
        Writer { written_by: caller.program(), session: Some(self.session_of(caller.pid)), ..caller.writer() }
    }
}

impl State {
    fn new(lower: &Tree, births: Births) -> Result<Self> {
        Ok(Self {
            nodes: Nodes::new(lower)?,
            uppers: Uppers::new(births),
            given_ids: GivenIds::default(),
            handles: HashMap::new(),
            handle_last: 0,
            windows: Windows::default(),
            past: Past::default(),
            sights: Sights::default(),
            seen: HashMap::new(),
            heralded: Heralded::default(),
            epoch: 0,
            closing: HashMap::new(),
            judged_at_release: Vec::new(),
            judgings: Judgings::default(),
            verdicts_due: Vec::new(),
            shape: Shape::default(),
        })
    }
}

impl Caller {
    /// The kernel itself, not on behalf of any process.
    const KERNEL: Self = Self { pid: 0, uid: 0, gid: 0, umask: 0 };

    /// Identifies the caller without looking at its process. In the middle of an `execve` that look would wait for the
    /// process while the process waits for us.
    fn writer(&self) -> Writer {
        Writer { pid: self.pid, uid: self.uid, ..Writer::default() }
    }

    /// Looks at the process. Allowed only while it waits for an operation on a name, or off the request path, and never
    /// under a lock: see [`crate::sys::process`].
    fn program(&self) -> Option<Program> {
        let program = process::Program::of(self.pid)?;
        Some(Program {
            pid: program.pid,
            uid: self.uid,
            exe: program.exe.map(|exe| exe.to_string_lossy().into_owned()),
            cmdline: program.cmdline.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        })
    }
}
