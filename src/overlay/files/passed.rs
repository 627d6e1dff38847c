//! Files that pass, while they are open: the kernel reads and writes lower itself where it can.
//!
//! ```text
//!   open, create: claim_passed                        released by the last: let go of
//!   nothing ─────────────────────► Passed (on the node) ──────────────────────────► nothing
//!                                    │ its path is judged now: part
//!                                    └──────────────────────► nameless: its handles keep it, the path is another node's
//! ```
//! What the kernel writes by itself is never seen here, and its mappings outlive their descriptors. So an inode that is
//! open this way never comes to stand at a judged path: a file renamed there is copied ([`Overlay::rename`]), a directory
//! with files that are still being written stays where it is, and a `reload` gives inodes of their own to the files that
//! are judged from then on. A file with a judged name is judged under all of its names. If the view hides that name, or
//! shows something else there, it is lower that gets another inode at the name, before the first write.
//!
//! Invariant: a node is open for judging or passed, never both: the kernel keeps one way for each inode while any
//! descriptor is open, and answers another with EIO. One that is open for judging stays so until its last release,
//! wherever it is renamed to, and lands even at a path that passes; one that passes and must be judged is parted from its
//! names.

use std::any::Any;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::handles::{Access, Backing, OpenFile, OpenFlags};
use crate::model::{InodeKey, RelPath};
use crate::overlay::error::Context;
use crate::overlay::state::lookup::{Origin, is_reserved};
use crate::overlay::state::nodes::{Left, NodeId};
use crate::overlay::{Error, Overlay, Policy, Result, State};
use crate::policy::rules::{Action, Entry as RuleEntry};
use crate::store::{self, Durability, Epilogue, Landing, NewContent};
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::lease;

/// How often a file that is written meanwhile is copied in the hope that it stands still for as long as that takes.
const EXACT_COPIES: usize = 2;

/// Files that programs may go on writing although they are judged by now, each with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(Error::to_string).collect::<Vec<_>>().join("; "))]
pub struct StillPassed(Vec<Error>);

/// What all handles on one passing node share.
pub struct Passed {
    key: InodeKey,
    /// For whatever needs no write access: a descriptor that can write would keep others from executing the file.
    file: Arc<File>,
    /// What the kernel knows the file by, made and understood by the layer that serves the view. `None` if the kernel
    /// refused it.
    registration: OnceLock<Option<Registration>>,
    handles: AtomicUsize,
    /// Its names belong to another node. What the kernel still opens by this one has to be looked up anew.
    parted: AtomicBool,
}

/// An object of the layer that serves the view, dropped when the last handle is released.
pub type Registration = Box<dyn Any + Send + Sync>;

/// What an open finds on a node.
pub(super) enum Claimed {
    Passed(Arc<Passed>),
    /// The node is open for judging, and stays so until its last release.
    Judged(Arc<OpenFile>),
    /// Replaced or renamed meanwhile: look again.
    MovedOn,
}

impl Passed {
    fn new(file: Arc<File>, key: InodeKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            file,
            registration: OnceLock::new(),
            handles: AtomicUsize::new(1),
            parted: AtomicBool::new(false),
        })
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(super) fn is_parted(&self) -> bool {
        self.parted.load(Ordering::SeqCst)
    }

    /// Returns the descriptor that an open with these flags gets. Readers share one, so that opening for reading costs no
    /// more than a look.
    pub(super) fn descriptor(&self, flags: OpenFlags) -> Result<Arc<File>> {
        let doing = || "open a file that nobody judges".to_owned();
        if flags.is_direct() {
            // The kernel opens lower with it, too, and would answer EIO if that file system does not support it.
            file::reopen(self.file.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::DIRECT).doing(doing)?;
        }
        match flags.may_change() {
            true => Ok(Arc::new(file::reopen(self.file.as_fd(), flags.below()).doing(doing)?)),
            false => Ok(self.file.clone()),
        }
    }
}

/// A file that was opened, and that the kernel may take over.
#[derive(Clone, Debug)]
pub struct Handover {
    passed: Arc<Passed>,
    /// What shows others below, until the kernel has opened the file, that it may be written.
    opened: Arc<File>,
    own: Own,
    /// Lower is to clear set-id bits where the kernel writes: see [`Overlay::clears_set_id`].
    pub clears_set_id: bool,
}

impl Handover {
    /// Returns the registration, made by `register` for the first caller: all handles must be answered with the same one,
    /// or all without one. Without one the handle has the file, from now on.
    pub fn registration(&self, register: impl FnOnce(BorrowedFd<'_>) -> Option<Registration>) -> Option<&Registration> {
        let registration = self.passed.registration.get_or_init(|| register(self.passed.file.as_fd())).as_ref();
        if registration.is_none() {
            self.own.get_or_init(|| self.opened.clone());
        }
        registration
    }
}

type Own = Arc<OnceLock<Arc<File>>>;

/// What a handle on a passing file reads and writes, as far as that is left to us.
pub(in crate::overlay) struct PassedHandle {
    passed: Arc<Passed>,
    flags: OpenFlags,
    /// For writing. Opened when it is needed: the kernel has one of its own where it writes by itself, and thousands of
    /// open files must not cost us twice as many descriptors.
    own: Own,
}

impl PassedHandle {
    pub fn new(passed: Arc<Passed>, flags: OpenFlags) -> Self {
        Self { passed, flags, own: Own::default() }
    }

    /// `opened` has shown that the open is possible.
    pub fn hand_over(&self, opened: Arc<File>, clears_set_id: bool) -> Handover {
        Handover { passed: self.passed.clone(), opened, own: self.own.clone(), clears_set_id }
    }

    /// The same where the kernel takes nothing over.
    pub fn keep(&self, opened: Arc<File>) {
        self.own.get_or_init(|| opened);
    }

    pub fn passed(&self) -> &Passed {
        &self.passed
    }

    pub fn readable(&self) -> &Arc<File> {
        self.own.get().unwrap_or(&self.passed.file)
    }

    pub fn writable(&self) -> Result<&Arc<File>> {
        if let Some(file) = self.own.get() {
            return Ok(file);
        }
        let file = self.passed.descriptor(self.flags.without_truncation())?;
        Ok(self.own.get_or_init(|| file))
    }
}

impl std::fmt::Debug for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passed").field("key", &self.key).field("handles", &self.handles).finish_non_exhaustive()
    }
}

impl Overlay {
    /// True if the kernel reads and writes such files itself; otherwise it asks us.
    pub fn passes_through(&self) -> bool {
        self.passes_through.load(Ordering::Relaxed)
    }

    /// Notes what the kernel has agreed to; called once, when the mount stands.
    pub fn set_passes_through(&self, passes: bool) {
        self.passes_through.store(passes, Ordering::Relaxed);
    }

    /// Returns how many file systems lie below a mount that hands files of lower to the kernel.
    pub fn stack_depth(&self) -> Result<u32> {
        let stacked = file::is_stacked(self.lower.root()).doing(|| "ask for lower's file system".to_owned())?;
        Ok(if stacked { 2 } else { 1 })
    }

    /// Returns the path that a node is opened by: a judged name if it has one, which then becomes its first.
    pub(super) fn path_for_open(&self, node: NodeId) -> Result<(RelPath, Action)> {
        let paths = self.state.lock().nodes.paths(node)?;
        let first = paths.first().ok_or(Error::Errno(libc::ENOENT))?.clone();
        let action = self.action(&first, FileKind::Regular);
        if action != Action::Pass {
            return Ok((first, action));
        }
        for path in paths.into_iter().skip(1) {
            let action = self.action(&path, FileKind::Regular);
            if action != Action::Pass {
                self.state.lock().nodes.lead_with(node, &path);
                return Ok((path, action));
            }
        }
        Ok((first, action))
    }

    /// Before a file with names that the kernel has not asked for is written: returns whether one of them is judged. One
    /// that the view shows becomes a name of the node. One that the view hides, or shows as something else, waits for
    /// review, and lower keeps what it has there: that gets an inode of its own. Either way the caller must look at the
    /// file anew.
    pub(super) fn finds_judged_name(&self, node: NodeId, meta: &Meta) -> Result<bool> {
        let links = self.links_below(meta);
        let known = self.state.lock().nodes.get(node)?.names.len();
        if usize::try_from(links).is_ok_and(|links| links <= known) {
            return Ok(false);
        }
        let judged = self.judged_names_below(meta)?;
        for path in &judged {
            if self.takes_name(node, path)? {
                return Ok(true);
            }
        }
        judged.iter().try_for_each(|path| self.give_own_inode(path))?;
        Ok(!judged.is_empty())
    }

    /// Returns whether the view has this node at a path, which then is one of its names.
    fn takes_name(&self, node: NodeId, path: &RelPath) -> Result<bool> {
        Ok(self.learn_name_if_any(path)? && self.state.lock().nodes.is_at(node, path))
    }

    /// Returns whether a file of lower with several names has a judged one, whatever the view shows there.
    pub(in crate::overlay) fn has_judged_name(&self, meta: &Meta) -> Result<bool> {
        Ok(meta.links > 1 && self.judged_name_below(meta.key(), |_| true)?.is_some())
    }

    /// [`Self::finds_judged_name`] for a passing file that has no name in the view any more.
    pub(super) fn left_has_judged_name(&self, node: NodeId) -> Result<bool> {
        let file = {
            let state = self.state.lock();
            let found = state.nodes.get(node)?;
            match (found.open(), found.passed(), found.left()) {
                (None, Some(passed), _) if !passed.is_parted() => passed.file.clone(),
                (None, None, Some(Left::Passed(file, _))) => file.clone(),
                _ => return Ok(false),
            }
        };
        let meta = Meta::of(file.as_fd()).doing(|| "stat a file that nobody judges".to_owned())?;
        self.finds_judged_name(node, &meta)
    }

    fn judged_names_below(&self, meta: &Meta) -> Result<Vec<RelPath>> {
        let mut names = Vec::new();
        self.judged_name_below(meta.key(), |path| {
            names.push(path.clone());
            false
        })?;
        Ok(names)
    }

    /// Returns a judged name of an inode of lower that `is_wanted`. Skips directories that pass with everything in them,
    /// where most files lie.
    pub(in crate::overlay) fn judged_name_below(
        &self,
        key: InodeKey,
        mut is_wanted: impl FnMut(&RelPath) -> bool,
    ) -> Result<Option<RelPath>> {
        let mut dirs = vec![RelPath::root()];
        while let Some(dir) = dirs.pop() {
            let entries = match self.lower.list(&dir) {
                // Removed during the walk, or not readable for us: nothing in it is reached by this view.
                Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => continue,
                listed => listed.doing(|| format!("list {dir}"))?,
            };
            for entry in entries {
                let Ok(path) = dir.join(&entry.name) else { continue };
                let is_dir = entry.kind == FileKind::Directory;
                if (!is_dir && entry.inode != key.inode) || is_reserved(&path) {
                    continue;
                }
                let passes = self.action(&path, entry.kind) == Action::Pass;
                if is_dir && (!passes || self.policy().may_judge_below(&path)) {
                    dirs.push(path);
                    continue;
                }
                if passes {
                    continue;
                }
                let at = self.meta_below(&path)?;
                if at.is_some_and(|at| self.births.may_be_one(key, at.key())) && is_wanted(&path) {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }

    /// Makes a name known to the nodes as if the kernel had asked for it.
    pub(in crate::overlay) fn learn_name(&self, path: &RelPath) -> Result<()> {
        self.walk(path).map(drop)
    }

    /// The same where the view may have nothing by that name: returns whether it has.
    pub(in crate::overlay) fn learn_name_if_any(&self, path: &RelPath) -> Result<bool> {
        Ok(self.walk_if_any(path)?.is_some())
    }

    /// Counts one more handle on what `node` passes, which is at `path` as `meta` says: under the lock under which the
    /// last release lets go of it.
    pub(super) fn claim_passed(
        &self,
        node: NodeId,
        path: &RelPath,
        (meta, file): (&Meta, Option<File>),
        epoch: u64,
        access: Access,
    ) -> Result<Claimed> {
        {
            let mut state = self.state.lock();
            if state.epoch != epoch {
                // The view may show a judged name by now that it did not have during the search.
                return Ok(Claimed::MovedOn);
            }
            if let Some(claimed) = state.claim_open(node, meta.key(), access)? {
                return Ok(claimed);
            }
        }
        let Some(file) = file.map_or_else(|| self.open_seen(path, meta), |file| Ok(Some(file)))? else {
            return Ok(Claimed::MovedOn);
        };
        let mut state = self.state.lock();
        if let Some(claimed) = state.claim_open(node, meta.key(), access)? {
            return Ok(claimed);
        }
        if state.epoch != epoch {
            return Ok(Claimed::MovedOn);
        }
        let passed = Passed::new(Arc::new(file), meta.key());
        state.nodes.pass(node, passed.clone());
        Ok(Claimed::Passed(passed))
    }

    /// Claims a file that was just made, for its first handle.
    pub(super) fn claim_made(&self, node: NodeId, made: &File, access: Access) -> Result<Claimed> {
        let doing = || "open a new file".to_owned();
        let key = Meta::of(made.as_fd()).doing(doing)?.key();
        let file = file::reopen(made.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK);
        let file = file.or_else(|_| file::reopen(made.as_fd(), OFlags::PATH)).doing(doing)?;
        let mut state = self.state.lock();
        if let Some(claimed) = state.claim_open(node, key, access)? {
            return Ok(claimed);
        }
        if !state.nodes.is_lower(node, key) {
            return Ok(Claimed::MovedOn);
        }
        let passed = Passed::new(Arc::new(file), key);
        state.nodes.pass(node, passed.clone());
        Ok(Claimed::Passed(passed))
    }

    /// Opens what was looked at before; returns `None` if something else is there by now.
    fn open_seen(&self, path: &RelPath, meta: &Meta) -> Result<Option<File>> {
        let file = match self.open_to_pass(path) {
            Err(err) if crate::sys::tree::is_absent(&err) => return Ok(None),
            other => other.doing(|| format!("open {path}"))?,
        };
        let is_it = Meta::of(file.as_fd()).doing(|| format!("stat {path}"))?.key() == meta.key();
        Ok(is_it.then_some(file))
    }

    /// Opens a file for reading or, if its mode forbids that to an ordinary user's daemon, as a mere reference to the
    /// inode.
    fn open_to_pass(&self, path: &RelPath) -> std::io::Result<File> {
        match self.lower.open_to_read(path) {
            Err(err) if err.raw_os_error() == Some(libc::EACCES) => {
                self.lower.open_at(path, OFlags::PATH).map(File::from)
            }
            other => other,
        }
    }

    /// Claims what is open on a node without a name, or what stood at its name before. `MovedOn` if nothing is left: what
    /// the kernel wants to open is another node by now.
    pub(super) fn claim_left(&self, node: NodeId, access: Access) -> Result<Claimed> {
        let mut state = self.state.lock();
        let found = state.nodes.get(node)?;
        Ok(match (found.open(), found.passed(), found.left()) {
            (Some(open), ..) => {
                open.claim(access);
                Claimed::Judged(open.clone())
            }
            (None, Some(passed), _) if passed.is_parted() => Claimed::MovedOn,
            (None, Some(passed), _) => {
                passed.handles.fetch_add(1, Ordering::SeqCst);
                Claimed::Passed(passed.clone())
            }
            (None, None, Some(Left::Passed(file, key))) => {
                let passed = Passed::new(file.clone(), *key);
                state.nodes.pass(node, passed.clone());
                Claimed::Passed(passed)
            }
            (None, None, Some(Left::Judged(file))) => {
                let open = OpenFile::new(node, Backing::Lower(file.clone()), state.epoch);
                open.claim(access);
                state.nodes.open(node, open.clone());
                Claimed::Judged(open)
            }
            (None, None, None) => Claimed::MovedOn,
        })
    }

    /// Counts one handle less.
    pub(super) fn let_go(&self, node: NodeId, passed: &Passed) {
        let mut state = self.state.lock();
        if passed.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            state.nodes.close(node);
        }
    }

    /// A file that passes while it is open was found at a path. If it is judged there, what is there is another node.
    ///
    /// Where only the open found out, the kernel would look once more. It does so once for each call, and perhaps has done
    /// so already because yet another file was at the path.
    pub(in crate::overlay) fn part_if_judged(&self, node: NodeId, path: &RelPath) {
        if self.action(path, FileKind::Regular) != Action::Pass {
            self.part_passed(node);
        }
    }

    /// Takes the names from a node that passes, and has the kernel look at them anew. Returns whether it was one.
    pub(super) fn part_passed(&self, node: NodeId) -> bool {
        let mut state = self.state.lock();
        let names = state.nodes.names(node);
        let is_parted = state.part_if_passed(node);
        drop(state);
        if is_parted {
            names.iter().for_each(|(parent, name)| self.tell(|observer| observer.entry_changed(*parent, name)));
        }
        is_parted
    }

    /// After a change of rules: files that are judged from now on, and that a program may still write without asking us,
    /// get inodes of their own, with the content of this moment. One that cannot have it keeps no other from it, and is
    /// tried again after the next change.
    pub(in crate::overlay) fn part_from_passed(&self, before: &Policy) -> std::result::Result<(), StillPassed> {
        // Held throughout: another change of rules waits.
        let mut still_passed = self.still_passed.lock();
        let due = std::mem::take(&mut *still_passed);
        let mut failed = Vec::new();
        let files = self.state.lock().nodes.files();
        for node in files {
            let failures = self.part_one(node, before, due.contains(&node));
            if !failures.is_empty() {
                still_passed.insert(node);
                failed.extend(failures);
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(StillPassed(failed)) }
    }

    /// Returns why it could not be done. `is_due` is true for a file that has passed too long already.
    fn part_one(&self, node: NodeId, before: &Policy, is_due: bool) -> Vec<Error> {
        let passed = |path: &RelPath| is_due || before.action(&self.lower, path, RuleEntry::File, None) == Action::Pass;
        let is_judged = |path: &RelPath| self.action(path, FileKind::Regular) != Action::Pass;
        let mut names = match self.all_names(node) {
            Ok(names) => names,
            Err(err) => return vec![err],
        };
        names.retain(|path| is_judged(path) && passed(path));
        if names.is_empty() {
            return Vec::new();
        }
        let written = names.iter().filter(|path| self.is_written_below(path));
        let failures: Vec<_> = written.filter_map(|path| self.part_written(path).err()).collect();
        if failures.is_empty() {
            self.part_passed(node);
        }
        failures
    }

    /// The path gets another inode even if programs do not stop writing to the one it has.
    fn part_written(&self, path: &RelPath) -> Result<()> {
        for _ in 0..EXACT_COPIES {
            match self.give_own_inode(path) {
                Err(Error::Store(store::Error::Conflict { .. })) => {}
                Err(err) if err.is_written_meanwhile() => {}
                parted => return parted,
            }
        }
        self.replace_by_copy(path, |landing, file, meta| landing.part(&self.lower, path, file, *meta))
    }

    /// Returns the names of a file; if the kernel may write it by itself, also the judged ones that the kernel has not
    /// asked for.
    fn all_names(&self, node: NodeId) -> Result<Vec<RelPath>> {
        let (mut names, is_written) = {
            let state = self.state.lock();
            // A node that the kernel has forgotten since is open nowhere.
            let Ok(found) = state.nodes.get(node) else { return Ok(Vec::new()) };
            let paths = found.names.iter().filter_map(|name| state.nodes.child_path(name.parent, &name.name).ok());
            (paths.collect::<Vec<_>>(), found.written_past || found.passed().is_some())
        };
        let Some(first) = names.first().filter(|_| is_written) else { return Ok(names) };
        if let Some(meta) = self.meta_below(first)? {
            let judged = if meta.links > 1 { self.judged_names_below(&meta)? } else { Vec::new() };
            names.extend(judged.into_iter().filter(|path| !names.contains(path)).collect::<Vec<_>>());
        }
        Ok(names)
    }

    /// After a change of rules: writes to what passes go unseen from now on, so other content there would not tell who
    /// changed it.
    pub(in crate::overlay) fn forget_what_passes(&self) {
        self.forget_what_passes_within(&[&RelPath::default()]);
    }

    /// The same for what lies in directories that have been moved to these paths.
    pub(in crate::overlay) fn forget_what_passes_within(&self, dirs: &[&RelPath]) {
        let is_there = |path: &&RelPath| dirs.iter().any(|dir| path.is_within(dir));
        let known: Vec<RelPath> = self.state.lock().seen.keys().filter(is_there).cloned().collect();
        let passes = |path: &&RelPath| self.action(path, FileKind::Regular) == Action::Pass;
        let passing: Vec<&RelPath> = known.iter().filter(passes).collect();
        let mut state = self.state.lock();
        for path in passing {
            state.seen.remove(path);
        }
    }

    /// The path gets another inode, with the content of this moment; open handles on lower's file, under this or another
    /// name, keep the old one. A held change at the path becomes a change of the new one.
    fn give_own_inode(&self, path: &RelPath) -> Result<()> {
        self.replace_by_copy(path, |landing, file, meta| {
            landing.place(&self.lower, path, Some(meta), &NewContent::File { file, like: file, meta: *meta })
        })
    }

    fn replace_by_copy(
        &self,
        path: &RelPath,
        place: impl FnOnce(&mut Landing<'_>, &File, &Meta) -> store::Result<Meta>,
    ) -> Result<()> {
        let upper = self.state.lock().uppers.at(path);
        let _claimed = upper.and_then(|id| self.claim_if_there(id));
        let doing = || format!("copy {path}");
        let file = match self.lower.open_to_read(path) {
            Err(err) if crate::sys::tree::is_absent(&err) => return Ok(()),
            opened => opened.doing(doing)?,
        };
        let meta = Meta::of(file.as_fd()).doing(doing)?;
        let mut landing = Landing::new(&self.store, Durability::Cached);
        let copy = place(&mut landing, &file, &meta)?;
        let save = self.state.lock().uppers.saved_on_copy(path, &meta.stamp(), &copy.stamp());
        let promised = landing.promise(Epilogue { save, ..Epilogue::default() })?;
        let applied = {
            let mut state = self.state.lock();
            let mut applied = promised.apply()?;
            state.epoch += 1;
            if let Some(copy) = applied.meta_of(path) {
                applied.epilogue().save = state.uppers.saved_on_copy(path, &meta.stamp(), &copy.stamp());
                state.touched(path, &meta.stamp(), &copy);
            }
            applied
        };
        applied.finish()?;
        Ok(())
    }

    /// True if lower's file at `path` is open or mapped for writing, or if that cannot be told.
    pub(in crate::overlay) fn is_written_below(&self, path: &RelPath) -> bool {
        match self.lower.open_to_read(path) {
            Err(err) => !crate::sys::tree::is_absent(&err),
            Ok(file) => lease::is_open_for_writing(&file),
        }
    }
}

impl State {
    /// Counts one more handle on what the node has open already.
    fn claim_open(&mut self, node: NodeId, key: InodeKey, access: Access) -> Result<Option<Claimed>> {
        let found = self.nodes.get(node)?;
        Ok(match (found.open(), found.passed()) {
            (Some(open), _) => {
                open.claim(access);
                Some(Claimed::Judged(open.clone()))
            }
            (None, Some(passed)) if passed.key == key => {
                passed.handles.fetch_add(1, Ordering::SeqCst);
                Some(Claimed::Passed(passed.clone()))
            }
            // The path has another file than the one that is open.
            (None, Some(_)) => Some(Claimed::MovedOn),
            (None, None) => None,
        })
    }

    /// Returns the node of the file that was found at a name, if it passes while it is open and has come there: it has no
    /// other name any more.
    pub(in crate::overlay) fn passes_elsewhere(&self, parent: NodeId, name: &OsStr, origin: &Origin) -> Option<NodeId> {
        let Origin::Lower(meta @ Meta { links: 1, .. }) = origin else { return None };
        let node = self.nodes.of_lower(meta.key())?;
        let passes = self.nodes.get(node).is_ok_and(|found| found.passed().is_some());
        (passes && self.nodes.child(parent, name) != Some(node)).then_some(node)
    }

    /// Takes the names from a node that passes: they stand for another one from now on, and open handles keep this one.
    pub(in crate::overlay) fn part_if_passed(&mut self, node: NodeId) -> bool {
        let Ok(found) = self.nodes.get(node) else { return false };
        let Some(passed) = found.passed() else { return false };
        passed.parted.store(true, Ordering::SeqCst);
        for (parent, name) in self.nodes.names(node) {
            self.nodes.unname(parent, &name);
        }
        self.epoch += 1;
        true
    }
}
