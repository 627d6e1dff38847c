//! What others do in lower while the mount stands, and how long the kernel may rely on what it was told.
//!
//! A directory that the kernel has looked into is watched, and then what the kernel was told of names in it holds until
//! it is told otherwise. The watch is made before the look whose answer relies on it, so that a change after the look
//! makes an event after it. [`Overlay::follow_lower`], on a thread of its own, looks once more at what each event names,
//! brings the nodes up to date and tells the kernel if that makes a difference. Our own landings and what programs do
//! through the mount make events, too: by then the nodes stand for what is there, and nothing is told.
//!
//! What no event reports holds briefly: a file with several names (another one may be written to elsewhere), one that the
//! kernel writes by itself, whatever lies where inotify does not see everything, and where watches have run out. Besides,
//! attributes are compared at every open: a store through a mapping made below makes no event at all.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::{Again, ContentPrint, NameLeft, NodeId, Told, WatchSeen};
use crate::overlay::{Overlay, Result, State};
use crate::store::is_temp_name;
use crate::sys::file::Meta;
use crate::sys::watch::{Seen, Watches, are_told_of};

/// How long no watch is asked for after one was refused for want of room: lookups go on without.
const REFUSED: Duration = Duration::from_secs(5);
/// How long an open of a node that has lost its name below is taken for one by that name: the kernel is still being told
/// that the name is gone.
pub(in crate::overlay) const TELLING: Duration = Duration::from_secs(1);
/// A name in a directory that a program is changing at this moment is looked at again after this time, and what may have
/// been told to the kernel meanwhile is forgotten again.
const LATER: Duration = Duration::from_millis(2);

/// For how long the kernel may answer from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It will be told of any change.
    UntilTold,
    /// A change may go unnoticed.
    Briefly,
}

/// Which watches there were before a look, and what they had told. If a watch has told of a change by the time the look
/// is noted, what the look saw must not hold: it may be older than the change.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::overlay) struct Watched {
    pub parent: Option<WatchSeen>,
    pub itself: Option<WatchSeen>,
}

pub(in crate::overlay) struct Watching {
    watches: Arc<Watches>,
    /// Whether inotify tells of everything that happens on a device.
    devices: Mutex<HashMap<u64, bool>>,
    refused: Mutex<Option<Instant>>,
    under_way: Mutex<UnderWay>,
    /// No more events are read. Set under the view's state.
    has_ended: AtomicBool,
}

/// Nodes to be forgotten once more, since a reply about them may have been under way: each when it is due, and after which
/// pause.
#[derive(Default)]
struct UnderWay(HashMap<NodeId, (Instant, Duration)>);

/// Names, each in a directory.
type NamesIn = HashSet<(NodeId, OsString)>;

/// What others did, as far as it concerns the nodes.
#[derive(Default)]
pub(in crate::overlay) struct Round {
    /// Directories whose own attributes changed, by a change of names in them or otherwise.
    dirs: HashSet<NodeId>,
    /// Looked at before `changed`: what was renamed keeps its node if its new name is known before the old one goes.
    appeared: NamesIn,
    changed: NamesIn,
    /// Some events were lost: everything must be looked at.
    lost: bool,
}

/// Whether a name was there before.
enum Comes {
    New,
    Known,
}

/// Whether the kernel may have cached some of the former content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cached {
    Nothing,
    Some,
}

/// What the kernel must be told of a name that was looked at again.
enum Differs {
    Nowhere,
    /// Nothing is there, and the kernel knows of nothing there: whatever it was came or went without the kernel.
    Absent,
    /// The name no longer stands for this node.
    Entry(NodeId),
    /// Something else is there than the kernel may believe, or nothing, or something after all.
    Unknown,
    /// The kernel must forget the attributes of this node and, for `Content`, what it has cached of the content.
    Attributes(NodeId),
    Content(NodeId, Cached),
    /// A program is changing names in the directory: the result cannot be known yet.
    Later,
}

impl Overlay {
    /// From here on directories of lower are watched, and [`Self::follow_lower`] must be running.
    pub fn watch_lower(&self, watches: Arc<Watches>) {
        let watching = Watching {
            watches,
            devices: Mutex::default(),
            refused: Mutex::default(),
            under_way: Mutex::default(),
            has_ended: AtomicBool::new(false),
        };
        assert!(self.watching.set(watching).is_ok(), "lower is watched once");
    }

    /// Follows what others do below until no more can be seen; from then on nothing holds for long.
    pub fn follow_lower(&self) -> std::io::Result<()> {
        let Some(watching) = self.watching.get() else { return Ok(()) };
        let followed = self.follow_watches(watching);
        self.end_watching(watching);
        followed
    }

    fn follow_watches(&self, watching: &Watching) -> std::io::Result<()> {
        let mut later = Round::default();
        loop {
            later = self.follow_next(watching, later)?;
        }
    }

    /// Waits for what is told next, and follows it with what was put off. Returns what must be looked at again later.
    pub(in crate::overlay) fn follow_next(&self, watching: &Watching, mut round: Round) -> std::io::Result<Round> {
        let max = (!round.is_empty()).then_some(LATER);
        let due_in = watching.under_way.lock().due_in(Instant::now());
        let seen = watching.watches.wait(max.into_iter().chain(due_in).min())?;
        round.take(&mut self.state.lock(), seen);
        let later = self.follow(round);
        let due = watching.under_way.lock().take_due(Instant::now());
        due.into_iter().for_each(|(node, pause)| self.forget_and_again_after(node, pause * 4));
        Ok(later)
    }

    pub(in crate::overlay) fn end_watching(&self, watching: &Watching) {
        {
            let mut state = self.state.lock();
            watching.has_ended.store(true, Ordering::SeqCst);
            state.nodes.unwatch_all();
        }
        self.follow(Round { lost: true, ..Round::default() });
    }

    /// Looks at all that a round names. Returns what must be looked at again later.
    pub(in crate::overlay) fn follow(&self, round: Round) -> Round {
        let Round { dirs, appeared, changed, lost } = if round.lost { self.everything() } else { round };
        let mut later = Round::default();
        if lost {
            // At once, before names are looked at one by one.
            let all = self.state.lock().nodes.all();
            all.into_iter().for_each(|node| {
                self.tell(|observer| observer.names_changed(node));
                self.forget_meanwhile(node);
            });
        }
        // A program that lists one of them from here on is shown what there is.
        dirs.iter().for_each(|dir| self.tell(|observer| observer.names_changed(*dir)));
        let mut changed_in = HashSet::new();
        // Where something was known before, another file may have come. What stood there may have gone to one of the new
        // names, so those are looked at first.
        let (replaced, appeared): (NamesIn, NamesIn) = {
            let state = self.state.lock();
            appeared.into_iter().partition(|(dir, name)| state.nodes.child(*dir, name).is_some())
        };
        self.look_again_at(appeared, &mut later.appeared, &mut changed_in);
        self.look_again_at(replaced, &mut later.appeared, &mut changed_in);
        self.look_again_at(changed, &mut later.changed, &mut changed_in);
        let (left, concerned) = {
            let mut state = self.state.lock();
            let left = state.nodes.take_names_left();
            let concerned = left.iter().flat_map(|left| state.concerned_by_move(left)).collect();
            (left, concerned)
        };
        // A lookup by its new name makes the kernel move such a directory; by its old name the kernel would go on using
        // it.
        for left in left {
            self.tell_difference(left.parent, &left.name, &Differs::Unknown);
        }
        self.look_again_at(concerned, &mut later.changed, &mut changed_in);
        let moved = dirs.into_iter().filter(|dir| !changed_in.contains(dir) && !self.is_as_told(*dir));
        let changed = changed_in.iter().copied().chain(moved);
        changed.for_each(|dir| self.forget_meanwhile(dir));
        later
    }

    /// Tells the kernel what is different at these names.
    fn look_again_at(&self, names: NamesIn, later: &mut NamesIn, changed_in: &mut HashSet<NodeId>) {
        for (parent, name) in names {
            self.doubt_name(parent, &name);
            match self.look_again(parent, &name) {
                Ok(Differs::Later) => {
                    later.insert((parent, name));
                }
                Ok(Differs::Nowhere) => {}
                Ok(Differs::Absent) => {
                    changed_in.insert(parent);
                }
                Ok(differs) => {
                    changed_in.insert(parent);
                    self.tell_difference(parent, &name, &differs);
                }
                // The directory is gone, or we cannot look into it. The next lookup is told so or, once the directory is
                // back, what is there then.
                Err(err) => {
                    log::debug!("look again at a name below: {err}");
                    self.forget_unreached(parent, &name);
                }
            }
        }
    }

    /// True if what the kernel was told of a directory still holds: a request has told it since, or the directory differs
    /// only by what a landing of ours has moved.
    fn is_as_told(&self, dir: NodeId) -> bool {
        let (path, told) = {
            let state = self.state.lock();
            (state.nodes.path(dir), state.nodes.told(dir))
        };
        let now = path.ok().and_then(|path| self.lower.stat(&path).ok().flatten());
        now.is_some_and(|now| told.is_at_most(&now.stamp()))
    }

    /// Returns a round over everything, since events were lost.
    fn everything(&self) -> Round {
        let names = self.state.lock().nodes.all_names();
        Round { changed: names.into_iter().collect(), lost: true, ..Round::default() }
    }

    /// Brings a name up to date.
    fn look_again(&self, parent: NodeId, name: &OsStr) -> Result<Differs> {
        loop {
            let (path, epoch) = {
                let state = self.state.lock();
                if state.acts_in(parent) {
                    return Ok(Differs::Later);
                }
                (state.nodes.child_path(parent, name)?, state.epoch)
            };
            let Some(origin) = self.origin_in(&path, epoch)? else { continue };
            let mut state = self.state.lock();
            if state.acts_in(parent) {
                return Ok(Differs::Later);
            }
            if state.epoch != epoch {
                continue;
            }
            let there = self.inode_at(&state, &path, &origin)?;
            let known = state.nodes.child(parent, name);
            let is_anothers = match &origin {
                Origin::Lower(meta) => state.part_from_upper(parent, name, meta.key())?,
                Origin::Upper(id, _) => state.open_elsewhere(*id, known).is_some(),
                Origin::Nothing | Origin::Hidden(_) => false,
            };
            return Ok(match (known, there) {
                (None, None) => Differs::Absent,
                (None, Some((meta, lower))) => {
                    if let Some(lower) = lower.filter(|lower| state.nodes.of_lower(*lower).is_some()) {
                        // It was renamed, or has one more name: what is open goes on under it.
                        state.nodes.resolve(parent, name, &meta, Some(lower));
                    }
                    Differs::Unknown
                }
                (Some(node), Some((meta, lower))) if !is_anothers && state.nodes.stands_for(node, meta.kind, lower) => {
                    state.differs(node, &meta, matches!(origin, Origin::Lower(_)))
                }
                (Some(node), _) => {
                    state.nodes.part_below(node, parent, name);
                    Differs::Entry(node)
                }
            });
        }
    }

    fn tell_difference(&self, parent: NodeId, name: &OsStr, differs: &Differs) {
        match differs {
            Differs::Nowhere | Differs::Absent | Differs::Later => {}
            Differs::Entry(node) => {
                self.tell(|observer| observer.entry_changed(parent, name));
                self.forget_meanwhile(*node);
                self.tell_watchers(parent, name);
            }
            Differs::Unknown => {
                self.tell(|observer| observer.entry_doubted(parent, name));
                self.tell_watchers(parent, name);
            }
            Differs::Attributes(node) => self.forget_meanwhile(*node),
            Differs::Content(node, cached) => {
                self.forget_meanwhile(*node);
                if *cached == Cached::Some {
                    self.tell(|observer| observer.content_changed(*node));
                }
                self.tell_watchers(parent, name);
            }
        }
    }

    /// Makes the kernel forget all that it knows of what it has at a name.
    fn forget_unreached(&self, parent: NodeId, name: &OsStr) {
        self.tell(|observer| observer.entry_doubted(parent, name));
        let Some(node) = self.state.lock().nodes.child(parent, name) else { return };
        self.tell(|observer| observer.content_changed(node));
        self.forget_meanwhile(node);
    }

    fn doubt_name(&self, parent: NodeId, name: &OsStr) {
        let path = self.state.lock().nodes.child_path(parent, name);
        if let Ok(path) = path {
            self.doubt(&path);
        }
    }

    pub(in crate::overlay) fn tell_watchers(&self, parent: NodeId, name: &OsStr) {
        let path = self.state.lock().nodes.child_path(parent, name);
        if let Ok(path) = path {
            self.tell(|observer| observer.shows_other(&path));
        }
    }

    /// Makes the kernel forget what it was told of a node, if anything, because of what a program does: no earlier answer
    /// can still be on its way to that program.
    pub(in crate::overlay) fn forget_attributes(&self, node: NodeId) {
        let told = self.state.lock().nodes.untold(node);
        self.have_forgotten(node, told);
    }

    /// The same at any other moment: what was on its way is forgotten again, by the thread that follows lower.
    fn forget_meanwhile(&self, node: NodeId) {
        self.forget_and_again_after(node, LATER);
    }

    fn forget_and_again_after(&self, node: NodeId, pause: Duration) {
        let now = Instant::now();
        let (told, again) = self.state.lock().nodes.untold_meanwhile(node, now);
        self.have_forgotten(node, told);
        if let (Again::Soon, Some(watching)) = (again, self.watching.get()) {
            watching.under_way.lock().0.insert(node, (now + pause, pause));
        }
    }

    fn have_forgotten(&self, node: NodeId, told: Told) {
        if told == Told::Nothing {
            return;
        }
        let names = self.state.lock().nodes.names(node);
        self.tell(|observer| {
            if !observer.attributes_changed(node) {
                // An answer with the old ones may be on its way, for a node that the kernel has yet to make.
                names.iter().for_each(|(parent, name)| observer.entry_doubted(*parent, name));
            }
        });
    }

    /// Returns the watch of a directory, made if there is none. To be called before the look that relies on it.
    pub(in crate::overlay) fn watch(&self, dir: NodeId) -> Option<WatchSeen> {
        let watching = self.watching.get()?;
        let path = {
            let state = self.state.lock();
            if let Some(watch) = state.nodes.watch_of(dir) {
                return Some(watch);
            }
            state.nodes.path(dir).ok()?
        };
        if watching.is_refused() {
            return None;
        }
        let fd = self.lower.dir(&path).ok()?;
        let meta = Meta::of(fd.as_fd()).ok()?;
        if !watching.sees(meta.device, || are_told_of(fd.as_fd())) {
            return None;
        }
        let mut state = self.state.lock();
        if watching.has_ended.load(Ordering::SeqCst) {
            return None;
        }
        if let Err(err) = state.nodes.watch(dir, meta.key(), || watching.watches.watch(fd.as_fd())) {
            watching.note_refusal(&err);
        }
        state.nodes.watch_of(dir)
    }

    /// Returns the watches by which a change of a node's attributes is seen.
    pub(in crate::overlay) fn watch_for(&self, node: NodeId) -> Watched {
        if self.watching.get().is_none() {
            return Watched::default();
        }
        let (parent, is_dir) = {
            let state = self.state.lock();
            let Ok(found) = state.nodes.get(node) else { return Watched::default() };
            (found.names.first().map(|name| name.parent), found.kind == crate::sys::file::FileKind::Directory)
        };
        // If a directory itself is asked for, the kernel is walking through it.
        let itself = if is_dir { self.watch(node) } else { None };
        Watched { parent: parent.and_then(|parent| self.watch(parent)), itself }
    }
}

impl Watching {
    fn is_refused(&self) -> bool {
        self.refused.lock().is_some_and(|at| at.elapsed() < REFUSED)
    }

    fn note_refusal(&self, err: &std::io::Error) {
        if err.raw_os_error() == Some(libc::ENOSPC) {
            let before = self.refused.lock().replace(Instant::now());
            if before.is_none() {
                log::warn!("no more directories can be watched: what changes in others shows within a second");
            }
        } else {
            log::debug!("watch a directory: {err}");
        }
    }

    fn sees(&self, device: u64, ask: impl FnOnce() -> std::io::Result<bool>) -> bool {
        *self.devices.lock().entry(device).or_insert_with(|| ask().unwrap_or(false))
    }
}

impl UnderWay {
    fn due_in(&self, now: Instant) -> Option<Duration> {
        self.0.values().map(|(due, _)| due.saturating_duration_since(now)).min()
    }

    fn take_due(&mut self, now: Instant) -> Vec<(NodeId, Duration)> {
        let due = self.0.extract_if(|_, (due, _)| *due <= now);
        due.map(|(node, (_, pause))| (node, pause)).collect()
    }
}

impl Round {
    fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.appeared.is_empty() && self.changed.is_empty() && !self.lost
    }

    pub(in crate::overlay) fn take(&mut self, state: &mut State, seen: Vec<Seen>) {
        for one in seen {
            match one {
                // The temporary name of a landing, whose other name comes as well.
                Seen::Appeared(_, name) | Seen::Written(_, name) | Seen::Changed(_, name) if is_temp_name(&name) => {}
                Seen::Appeared(watch, name) => self.take_name(state.nodes.note_event(watch), name, Comes::New),
                Seen::Written(watch, name) => {
                    let dir = state.nodes.note_event(watch);
                    dir.into_iter().for_each(|dir| state.nodes.note_written_below(dir, &name));
                    self.take_name(dir, name, Comes::Known);
                }
                Seen::Changed(watch, name) => self.take_name(state.nodes.note_event(watch), name, Comes::Known),
                Seen::Itself(watch) => self.dirs.extend(state.nodes.note_event(watch)),
                // The event on its name in the directory above tells the same.
                Seen::Ended(watch) => {
                    if let Some(dir) = state.nodes.of_watch(watch) {
                        state.nodes.unwatch(dir);
                    }
                }
                Seen::Unmounted | Seen::Overflow => {
                    state.nodes.note_events_lost();
                    self.lost = true;
                }
            }
        }
    }

    fn take_name(&mut self, dir: Option<NodeId>, name: OsString, comes: Comes) {
        let Some(dir) = dir else { return };
        self.dirs.insert(dir);
        match comes {
            Comes::New => self.appeared.insert((dir, name)),
            Comes::Known => self.changed.insert((dir, name)),
        };
    }
}

impl State {
    /// Returns the names in a directory renamed below for which upper has something by the old path or by the new one:
    /// there the view does not have what it had.
    fn concerned_by_move(&self, left: &NameLeft) -> NamesIn {
        let old = self.nodes.child_path(left.parent, &left.name);
        let (Ok(old), Ok(new)) = (old, self.nodes.path(left.dir)) else { return NamesIn::new() };
        let within = self.uppers.within(&old).into_iter().chain(self.uppers.within(&new));
        let paths = within.filter_map(|id| self.uppers.get(id)).flat_map(|upper| &upper.row.names);
        let now = paths.filter(|path| path.is_within(&old) || path.is_within(&new));
        let now = now.map(|path| path.rebase(&old, &new).unwrap_or_else(|| path.clone()));
        now.filter_map(|path| self.nodes.entry_at(&path).map(|(dir, name)| (dir, name.to_owned()))).collect()
    }

    /// Returns how long what was told of a node holds, after a look at it with these watches.
    pub(in crate::overlay) fn holds(&self, node: NodeId, meta: &Meta, watched: Watched) -> Holds {
        let is_seen = |dir, watch: Option<WatchSeen>| watch.is_some() && self.nodes.watch_of(dir) == watch;
        let Ok(found) = self.nodes.get(node) else { return Holds::Briefly };
        let by_name = match &found.names[..] {
            [name] => is_seen(name.parent, watched.parent),
            [] => node == crate::overlay::ROOT,
            _ => false,
        };
        let by_itself = !meta.is_dir() || is_seen(node, watched.itself);
        let elsewhere = !meta.is_dir() && (meta.links > 1 || self.uppers.names_taken(&meta.stamp()) > 0);
        match by_name && by_itself && !elsewhere && !found.written_past {
            true => Holds::UntilTold,
            false => Holds::Briefly,
        }
    }

    /// The same for a name that stands for nothing.
    pub(in crate::overlay) fn name_holds(&self, parent: NodeId, watched: Option<WatchSeen>) -> Holds {
        match watched.is_some() && self.nodes.watch_of(parent) == watched {
            true => Holds::UntilTold,
            false => Holds::Briefly,
        }
    }

    fn differs(&mut self, node: NodeId, now: &Meta, is_lower: bool) -> Differs {
        let content = ContentPrint::of(&now.stamp());
        if is_lower {
            let cached = self.nodes.caches_other(node, &now.stamp());
            if cached {
                self.nodes.set_cached(node, &now.stamp());
            }
            let known = self.nodes.note_shown(node, &now.stamp());
            // What the kernel writes by itself comes from programs in the view, which are told of it.
            let own = self.nodes.get(node).is_ok_and(|node| node.written_past || node.passed().is_some());
            if cached || (!own && !now.is_dir() && known.is_some_and(|known| known != content)) {
                return Differs::Content(node, if cached { Cached::Some } else { Cached::Nothing });
            }
        }
        match self.nodes.told(node).is_at_most(&now.stamp()) {
            true => Differs::Nowhere,
            false => Differs::Attributes(node),
        }
    }
}
