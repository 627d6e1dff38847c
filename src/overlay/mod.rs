//! The view: lower plus everything held, as plain file operations. No FUSE word, no kernel needed.
//!
//! Begin with [`Overlay`]. What a program does comes in by [`files`] and [`names`], what it wrote is decided in [`judge`],
//! and what a person does about it begins in [`review`] and [`undo`]. The head of each room names its files.
//!
//! - [`who`]: which program asks, and what it does in one go
//! - [`state`]: what there is at each path, and what is known of it
//! - [`outside`]: what others do below
//! - [`git`]: what git has of the project
//! - [`files`]: what a program does to a file, up to the moment at which it is judged
//! - [`names`]: what a program does to names
//! - [`judge`]: what becomes of it
//! - [`review`]: what waits, as a person looks at it, and his answer
//! - [`undo`]: what was done is taken back
//! - [`layered`]: a file as the view and each layer have it; [`traffic`]: how often the kernel asks; [`error`]: why not;
//!   [`check`]: whether it all agrees
//!
//! `docs/ARCHITECTURE.md` has the route of one write through them.
//!
//! Lock order: directories that are acted in or renamed ([`acting`](who::acting)), then `OpenFile::copying`, then claims on upper
//! entries in the order of their ids, then `Overlay::state`, then what the store guards by itself. Under `state` run single
//! calls on names and commits that reach the page cache; no diff, no hash, no copy, and nothing that waits for another
//! process. The exceptions stand in `docs/ARCHITECTURE.md`, "Lock order".

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
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::hooks::Runner;
use crate::model::{Births, Digest, RelPath, Stamp};
use crate::policy::settings::Settings;
use crate::protocol::{EventName, Program};
use crate::store::{EventDraft, LOG_BYTES_MAX, Recovered, Store, UpperId, UpperRow, Writer};
use crate::sys::tree::Tree;
use crate::sys::{file, process};

pub use error::{Error, Result};
pub use files::attributes::Attributes;
pub use files::handles::{HandleId, OpenFlags};
pub use files::open::Opened;
pub use files::passed::{Passed, Registration};
pub use files::patch::{Rewrite, RewriteHow, changed_since};
pub use files::reading::Shown;
pub use files::set_attributes::{SetAttributes, SetTime};
pub use judge::settle::Settled;
pub use layered::{Layered, Waiting};
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

/// Who asks, as far as the kernel tells: 0 stands for the kernel itself and for callers outside our pid namespace.
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
    /// Attributes of a node changed other than through the mount. Gives whether the kernel knows the node: if not, an
    /// answer may be on its way to it.
    fn attributes_changed(&self, node: NodeId) -> bool;
    /// Content of a node changed other than through the mount.
    fn content_changed(&self, node: NodeId);
    /// Names of a directory may have come or gone below, whether anybody has asked for them or not.
    fn names_changed(&self, dir: NodeId);
    /// A name appeared, went, or stands for another node.
    fn entry_changed(&self, parent: NodeId, name: &std::ffi::OsStr);
    /// What was told of a name, or that there is nothing, need not be true any more: the kernel asks again before it
    /// uses the name, and goes on using the node if it is the same.
    fn entry_doubted(&self, parent: NodeId, name: &std::ffi::OsStr);
    /// Programs that watch the view should learn that something else is at a path, or nothing any more.
    fn shows_other(&self, path: &RelPath);
}

/// What the view may let through beyond the usual (SPEC §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    pub suid: bool,
    pub dev: bool,
    /// Under an ordinary user's mount everything is done with that user's rights, so others only read (SPEC §2).
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
    /// None: nothing is watched.
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
    /// Who reads git's HEAD.
    head_turns: Turns,
    /// How many this process may have, once somebody has asked.
    descriptors: std::sync::OnceLock<u64>,
    /// Requests that release handles and are under way; `status` and the like wait for them (SPEC §4.1).
    releasing: AtomicU64,
    /// After an internal fault: why nothing is written any more (invariant 10).
    fault: Mutex<Option<String>>,
    faulted: AtomicBool,
    /// The kernel reads and writes what nobody judges by itself.
    passes_through: AtomicBool,
    /// What was written in upper may itself become lower's file: until that has been refused once.
    raises: AtomicBool,
}

/// Everything that must agree. One lock.
struct State {
    nodes: Nodes,
    uppers: Uppers,
    given_ids: GivenIds,
    handles: HashMap<HandleId, Arc<Handle>>,
    handle_last: u64,
    /// What landed a moment ago.
    windows: Windows,
    past: Past,
    /// What fettlefs itself last knew of paths it touched.
    seen: HashMap<RelPath, Seen>,
    /// What process trees last saw of paths.
    sights: Sights,
    /// Which changes by others have been told as events.
    heralded: Heralded,
    /// Counts our own renames and landings below, and entries that come and go: whoever looked without the lock looks
    /// again if it moved.
    epoch: u64,
    /// Nodes that were made or emptied and not written to, of which a descriptor has been closed, and who opened it: the
    /// release that judges it follows if that was the last.
    closing: HashMap<NodeId, u32>,
    /// The same once that release is under way. Each as often as there are such.
    judged_at_release: Vec<NodeId>,
    judgings: Judgings,
    /// Entries that have left the view with a confirm whose verdict is not recorded yet.
    verdicts_due: Vec<UpperId>,
    /// Directories in which something is being changed at this moment, or which are being renamed.
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    digest: Option<Digest>,
}

#[derive(Default)]
struct Counters {
    landed: AtomicU64,
    held: AtomicU64,
    denied: AtomicU64,
}

impl Overlay {
    /// Recovers what an earlier process left, and opens the view. The caller holds the project's lock.
    pub fn new(lower: Tree, store: Store, policy: Policy, grants: Grants) -> Result<(Self, Recovered)> {
        let recovered = store.recover(&lower)?;
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
            passes_through: AtomicBool::new(false),
            raises: AtomicBool::new(true),
        };
        overlay.load()?;
        Ok((overlay, recovered))
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
                // It stays as it is, in the view and in the store. The rest must not be out of reach for it.
                log::error!("hold what was being written: {err}");
            }
        }
        Ok(())
    }

    /// Whether an entry has content or looks that nobody has judged. A held one tells by its hashes: its id names others.
    fn is_interrupted(&self, row: &UpperRow) -> bool {
        let Some(held) = &row.held else { return true };
        let now = || -> Result<_> {
            let mut side = self.row_side(row)?;
            Ok((side.digest()?, side.looks(row)?.digest()))
        };
        // Content that cannot be read is left as it is: it is told when somebody looks at it.
        now().is_ok_and(|now| now != (held.new, held.looks))
    }

    /// Who is told when what the kernel may have cached changes. Once, when the mount stands.
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

    /// Settings and rules as they are now, for [`Self::set_policy`].
    pub fn read_rules(&self, source: &RuleSource) -> std::result::Result<Policy, PolicyError> {
        self.policy().read_again(&self.lower, source)
    }

    /// Rules and settings anew (SPEC §6, `reload`). They hold from here on, also when an error tells that somebody
    /// goes on writing past them to a file that was open.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        let before = std::mem::replace(&mut *self.policy.write(), Arc::new(policy));
        self.forget_what_passes();
        self.part_from_passed(&before)
    }

    pub fn landed(&self) -> u64 {
        self.counters.landed.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.counters.denied.load(Ordering::Relaxed)
    }

    /// What the kernel has asked of this view.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Why nothing can be written, when nothing can.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().clone().or_else(|| self.store.halted())
    }

    /// Stops all writing after an internal fault; reading goes on.
    pub fn stop_writing(&self, why: &str) {
        self.fault.lock().get_or_insert_with(|| why.to_owned());
        self.faulted.store(true, Ordering::SeqCst);
    }

    fn check_writable(&self) -> Result<()> {
        match self.faulted.load(Ordering::Relaxed) || self.store.is_halted() {
            true => Err(Error::errno(libc::EROFS)),
            false => Ok(()),
        }
    }

    fn check_may_write(&self, caller: &Caller) -> Result<()> {
        match self.grants.only {
            Some(uid) if uid != caller.uid => Err(Error::errno(libc::EACCES)),
            Some(_) | None => self.check_writable(),
        }
    }

    fn tell(&self, tell: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.observer.get() {
            tell(observer.as_ref());
        }
    }

    /// The content at a path is another, if nothing else stands for it.
    fn tell_content_changed(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.tell(|observer| observer.content_changed(node));
        }
        self.tell_changed(path);
    }

    /// Something else stands for a path, or looks otherwise.
    fn tell_changed(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.forget_attributes(node);
        }
        self.tell(|observer| observer.shows_other(path));
        let parent = path.parent().and_then(|dir| self.state.lock().nodes.at(&dir));
        if let (Some(parent), Some(name)) = (parent, path.name()) {
            // Its links: what is held counts in the view, and lower's events tell nothing of it.
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

    /// The end that a person asked for: anchors go, held changes stay.
    pub fn session_ended(&self) -> Result<()> {
        let draft = EventDraft::new(EventName::SessionEnded);
        let draft = draft.with(|event| event.session = Some(self.session.clone()));
        if self.fault().is_none() {
            // Else an intent may still need what waits under a temporary name.
            self.store.clear_up(&self.lower)?;
        }
        self.store.vitally(|| self.store.end_session(&draft))?;
        self.store.forget_uses();
        // Asked before there is need of the room that is kept: who has the state may be waiting for that.
        let (limits, needed) = (self.policy().settings.backups, self.needed_content());
        self.store.vitally(|| self.store.purge(&limits, &needed))?;
        self.store.vitally(|| self.store.rotate_events(LOG_BYTES_MAX))?;
        self.store.vitally(|| self.store.forget_boot(&self.lower))?;
        Ok(self.store.vitally(|| self.store.checkpoint())?)
    }

    /// Lets backups go that are past a limit, and then events that are. Others may work meanwhile.
    pub fn purge(&self) -> Result<usize> {
        let limits = self.policy().settings.backups;
        let gone = self.store.purge(&limits, &self.needed_content())?;
        self.store.rotate_events(LOG_BYTES_MAX)?;
        Ok(gone)
    }

    /// Purges now and then, for as long as the session lasts.
    pub fn purge_until_the_end(&self) {
        while self.store.wait_for_purge() {
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

/// Who does something, with a look at the program: not for FLUSH and RELEASE, and never under a lock.
impl Overlay {
    /// Who opens a file. Who then writes to it, [`witness`](files::witness) tells.
    fn opener(&self, caller: &Caller) -> Writer {
        Writer { opened_by: caller.program(), session: Some(self.session_of(caller.pid)), ..caller.writer() }
    }

    /// Who asks by a request, and waits for the answer: of a run, or a person outside.
    pub fn asker(&self, pid: u32, uid: u32) -> Writer {
        let session = self.runs.of(pid).map_or_else(|| self.session.clone(), |run| run.session);
        Writer { pid, uid, session: Some(session), ..Writer::default() }
    }

    /// Who makes, renames or removes something by name.
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
    /// The kernel itself, for nobody in particular.
    const KERNEL: Self = Self { pid: 0, uid: 0, gid: 0, umask: 0 };

    /// Who this is, without a look at the process: in the middle of an `execve` that would wait for us, and we for it.
    fn writer(&self) -> Writer {
        Writer { pid: self.pid, uid: self.uid, ..Writer::default() }
    }

    /// A look at the process. Only while it asks for something by name, or off the request path; and never under a lock:
    /// see [`crate::sys::process`].
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
