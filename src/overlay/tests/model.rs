//! Random operation lists against a small model of (view, lower, held), after SPEC §4-§8.
//!
//! After each operation the view (walked as a kernel would), lower (walked as anybody would), what is held, its ids and
//! reasons, and every error number are the model's. `FETTLE_MODEL_CASES` and `FETTLE_MODEL_SEED` make it longer and
//! other (`scripts/soak` does). What it once found is a test of its own in [`pinned`].

mod judge;
mod pinned;
mod reference;
mod tree;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::reference::{Answer, Model, RenameKind, Rules, WindowLength};
use self::tree::{Node, Path, Thing};
use super::*;
use crate::model::{IdSide, Looks, Reason, RelPath, Timestamp};
use crate::policy::tier::Thresholds;
use crate::store::{Below, TEMP_PREFIX, What, Writer};
use crate::sys::file::FileKind;

const PATHS: [&str; 14] = ["a", "b", "c", "d", "e", "f", "a/a", "a/s/a", "d/a", "d/b", "d/s", "e/a", "e/s/a", "d/s/a"];
/// Of symlinks. The last leads out of the project, wherever it stands.
const TARGETS: [&str; 3] = ["a", "line 0", "/out"];
/// Never executable, which is a reason to hold of its own.
const MODES: [u32; 3] = [0o600, 0o640, 0o644];
const SLOTS: usize = 3;
/// For what is opened, written and closed at once.
const SAVE_SLOT: usize = 9;
const RULES: &str = ".fettle.toml";
/// Cases of one test in an ordinary run.
const CASES: u32 = 500;
const OPERATIONS_MAX: usize = 24;

type P = &'static str;

/// What is done, and to what. Printed as it is written, so that a failure can be pinned by pasting it.
#[derive(Clone, Copy, Debug)]
enum Op {
    Save(P, Edit),
    Open(usize, P),
    OpenEmptied(usize, P),
    Write(usize, Edit),
    Close(usize),
    Truncate(P, usize),
    Unlink(P),
    Mkdir(P),
    Rmdir(P),
    Symlink(P, P),
    Rename(P, P),
    RenameFree(P, P),
    Exchange(P, P),
    Chmod(P, u32),
    /// Other times, the same content.
    Touch(P),
    Confirm(usize),
    ConfirmAll,
    Discard(usize),
    DiscardAll,
    /// Over whatever is there; of the backups, the newest first.
    Rollback(usize),
    OutsideWrite(P, Edit),
    OutsideRemove(P),
    Remount,
}

/// What new content is made of the old.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// Ten lines, always the same.
    Base,
    Line(usize),
    /// More than may land.
    Many(usize),
    Append(usize),
    Empty,
    Binary,
}

use Edit::*;
use Op::*;

fn thresholds() -> Thresholds {
    Thresholds { floor: 2, ceil: 8, ratio: 0.40 }
}

impl Edit {
    fn of(self, old: &[u8]) -> Vec<u8> {
        let mut lines: Vec<Vec<u8>> = old.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let line = |text: &str, number: usize| format!("{text} {number}\n").into_bytes();
        match self {
            Base => lines = (0..10).map(|number| line("line", number)).collect(),
            Line(number) if lines.is_empty() => lines.push(line("first", number)),
            Line(number) => {
                let at = number % lines.len();
                lines[at] = line("edited", number);
            }
            Many(number) => {
                lines.truncate(10);
                lines.resize(10, Vec::new());
                (0..7).for_each(|at| lines[at] = line("rewritten", number * 10 + at));
            }
            Append(number) => lines.push(line("added", number)),
            Empty => lines.clear(),
            Binary => lines = vec![b"\0\xff\n".to_vec()],
        }
        lines.concat()
    }
}

fn op() -> impl Strategy<Value = Op> {
    let path = || prop::sample::select(&PATHS[..]);
    let slot = || 0..SLOTS;
    let edit = || {
        let number = || 0..10usize;
        prop_oneof![
            2 => Just(Base),
            4 => number().prop_map(Line),
            4 => number().prop_map(Many),
            2 => number().prop_map(Append),
            1 => Just(Empty),
            1 => Just(Binary),
        ]
    };
    let which = || 0..8usize;
    prop_oneof![
        12 => (path(), edit()).prop_map(|(path, edit)| Save(path, edit)),
        2 => (slot(), path()).prop_map(|(slot, path)| Open(slot, path)),
        2 => (slot(), path()).prop_map(|(slot, path)| OpenEmptied(slot, path)),
        4 => (slot(), edit()).prop_map(|(slot, edit)| Write(slot, edit)),
        4 => slot().prop_map(Close),
        1 => (path(), 0..200usize).prop_map(|(path, size)| Truncate(path, size)),
        5 => path().prop_map(Unlink),
        3 => path().prop_map(Mkdir),
        3 => path().prop_map(Rmdir),
        2 => (path(), prop::sample::select(&TARGETS[..])).prop_map(|(path, target)| Symlink(path, target)),
        9 => (path(), path()).prop_map(|(from, to)| Rename(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| RenameFree(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Exchange(from, to)),
        1 => (path(), prop::sample::select(&MODES[..])).prop_map(|(path, mode)| Chmod(path, mode)),
        1 => path().prop_map(Touch),
        3 => which().prop_map(Confirm),
        1 => Just(ConfirmAll),
        2 => which().prop_map(Discard),
        1 => Just(DiscardAll),
        2 => which().prop_map(Rollback),
        4 => (path(), edit()).prop_map(|(path, edit)| OutsideWrite(path, edit)),
        2 => path().prop_map(OutsideRemove),
        1 => Just(Remount),
    ]
}

/// The engine and the model side by side.
struct Pair {
    bench: Bench,
    model: Model,
    open: BTreeMap<usize, (NodeId, HandleId)>,
    /// Nodes that were looked up for the operation under way.
    looked_up: Vec<NodeId>,
    /// Counts outside edits and touches: no two may look the same to who looks at times.
    edits: u64,
}

/// What both sides show of one path: kind, content and mode.
type Shown = BTreeMap<Path, (Option<Thing>, u32)>;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

impl Pair {
    fn new(window: WindowLength, rules: Rules) -> Self {
        let length = match window {
            WindowLength::Each => "0",
            WindowLength::Session => "session",
            WindowLength::Long => "365d",
        };
        let flags =
            [(Key::Floor, "2"), (Key::Ceil, "8"), (Key::Ratio, "0.4"), (Key::Window, length), (Key::Burst, "1000000")];
        // In memory where that can be had: each confirm syncs.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.unwrap();
        let text = rules.text();
        if let Some(text) = &text {
            std::fs::write(dir.path().join(RULES), text).unwrap();
        }
        let bench = Bench::within(dir, &flags);
        let mut model = Model::new(window, rules);
        model.lower_rules(text);
        let mut pair = Self { bench, model, open: BTreeMap::new(), looked_up: Vec::new(), edits: 0 };
        pair.start();
        pair
    }

    /// The project as the session finds it.
    fn start(&mut self) {
        for dir in ["d", "d/s", "e"] {
            std::fs::create_dir(self.bench.lower_path(dir)).unwrap();
            self.model.lower.put(dir, Node::Dir);
        }
        for file in ["a", "b", "d/a", "d/s/a"] {
            self.outside_write(file, Base);
        }
        self.check();
    }

    fn act(&mut self, op: Op) {
        match op {
            Save(path, edit) => self.save(path, edit),
            Open(slot, path) => self.open(slot, path, false),
            OpenEmptied(slot, path) => self.open(slot, path, true),
            Write(slot, edit) => self.write(slot, edit),
            Close(slot) => self.close(slot),
            Truncate(path, size) => {
                let answer = self.file(path).and_then(|node| self.resize(node, None, size));
                self.same(answer, |model| model.truncate(path, size));
            }
            Unlink(path) => {
                let answer = self.in_dir(path, |view, dir, name| view.unlink(dir, name, &ME));
                self.same(answer, |model| model.unlink(path));
            }
            Mkdir(path) => {
                let answer = self.enter(path, |view, dir, name| view.mkdir(dir, name, 0o755, &ME));
                self.same(answer, |model| model.mkdir(path));
            }
            Rmdir(path) => {
                let answer = self.in_dir(path, |view, dir, name| view.rmdir(dir, name, &ME));
                self.same(answer, |model| model.rmdir(path));
            }
            Symlink(path, _) if self.model.rules.speaks_of_below(path) => {}
            Symlink(path, target) => {
                let answer = self.enter(path, |view, dir, name| view.symlink(dir, name, OsStr::new(target), &ME));
                self.same(answer, |model| model.symlink(path, target));
            }
            Rename(from, to) => self.rename(from, to, RenameKind::Over),
            RenameFree(from, to) => self.rename(from, to, RenameKind::NoReplace),
            Exchange(from, to) => self.rename(from, to, RenameKind::Exchange),
            Chmod(path, mode) => self.chmod(path, mode),
            Touch(path) => self.touch(path),
            Confirm(which) => self.confirm(|paths| nth(paths, which)),
            ConfirmAll => self.confirm(|paths| paths),
            Discard(which) => self.discard(|paths| nth(paths, which)),
            DiscardAll => self.discard(|paths| paths),
            Rollback(which) => self.rollback(which),
            OutsideWrite(path, edit) => self.outside_write(path, edit),
            OutsideRemove(path) => self.outside_remove(path),
            Remount => {
                self.open.clear();
                self.bench.remount();
                self.model.remount();
            }
        }
    }
}

/// As the kernel would.
impl Pair {
    fn view(&self) -> &Overlay {
        self.bench.view()
    }

    fn look_up(&mut self, dir: NodeId, name: &OsStr) -> Result<Entry> {
        let entry = self.view().lookup(dir, name)?;
        self.looked_up.push(entry.node);
        Ok(entry)
    }

    fn forget(&mut self) {
        for node in std::mem::take(&mut self.looked_up) {
            self.view().forget(node, 1);
        }
    }

    /// The node of a directory: nothing but directories is walked through.
    fn dir(&mut self, path: &str) -> Result<NodeId> {
        let mut node = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entry = self.look_up(node, OsStr::new(name))?;
            if entry.attributes.meta.kind != FileKind::Directory {
                return Err(Error::Errno(libc::ENOTDIR));
            }
            node = entry.node;
        }
        Ok(node)
    }

    /// The directory of a name, which is looked up in it before anything is done to it.
    fn end(&mut self, path: &str) -> Result<NodeId> {
        let dir = self.dir(tree::parent(path))?;
        match self.look_up(dir, name_of(path)) {
            Err(err) if err.code() != libc::ENOENT => Err(err),
            Ok(_) | Err(_) => Ok(dir),
        }
    }

    fn in_dir<T>(&mut self, path: &str, act: impl FnOnce(&Overlay, NodeId, &OsStr) -> Result<T>) -> Result<T> {
        let dir = self.end(path)?;
        act(self.view(), dir, name_of(path))
    }

    /// The same, for what answers with a node.
    fn enter(&mut self, path: &str, act: impl FnOnce(&Overlay, NodeId, &OsStr) -> Result<Entry>) -> Result<()> {
        let entry = self.in_dir(path, act)?;
        self.looked_up.push(entry.node);
        Ok(())
    }

    /// The node of a regular file.
    fn file(&mut self, path: &str) -> Result<NodeId> {
        let dir = self.dir(tree::parent(path))?;
        let entry = self.look_up(dir, name_of(path))?;
        match entry.attributes.meta.kind {
            FileKind::Directory => Err(Error::Errno(libc::EISDIR)),
            FileKind::Regular => Ok(entry.node),
            _ => Err(Error::Errno(libc::ELOOP)),
        }
    }

    fn resize(&self, node: NodeId, handle: Option<HandleId>, size: usize) -> Result<()> {
        let set = SetAttributes { size: Some(size as u64), ..SetAttributes::NOTHING };
        self.view().set_attributes(node, handle, &set, &ME).map(|_| ())
    }

    fn open_file(&mut self, path: &str, truncates: bool) -> Result<(NodeId, HandleId)> {
        let flags = OpenFlags::from_raw(libc::O_RDWR | if truncates { libc::O_TRUNC } else { 0 });
        match self.file(path) {
            Ok(node) => Ok((node, self.view().open(node, flags, &ME)?.handle)),
            Err(err) if err.code() == libc::ENOENT => {
                let made = self.in_dir(path, |view, dir, name| view.create(dir, name, 0o644, flags, &ME))?;
                self.looked_up.push(made.0.node);
                Ok((made.0.node, made.1.handle))
            }
            Err(err) => Err(err),
        }
    }

    fn read_through(&self, handle: HandleId) -> Vec<u8> {
        self.view().read(handle, 0, 1 << 16).unwrap()
    }
}

/// The same operation on both sides.
impl Pair {
    #[track_caller]
    fn same(&mut self, engine: Result<()>, act: impl FnOnce(&mut Model) -> Answer) {
        let answer = engine.as_ref().map_err(Error::code).copied();
        assert_eq!(answer, act(&mut self.model), "{engine:?}");
    }

    fn save(&mut self, path: P, edit: Edit) {
        self.open(SAVE_SLOT, path, matches!(edit, Many(_)));
        self.write(SAVE_SLOT, edit);
        self.close(SAVE_SLOT);
    }

    fn open(&mut self, slot: usize, path: P, truncates: bool) {
        if self.open.contains_key(&slot) {
            return;
        }
        let answer = self.open_file(path, truncates);
        if let Ok((node, handle)) = answer {
            // The kernel knows a node at least as long as it is open.
            let at = self.looked_up.iter().position(|known| *known == node);
            self.looked_up.remove(at.unwrap());
            self.open.insert(slot, (node, handle));
        }
        self.same(answer.map(|_| ()), |model| model.open(slot, path, truncates));
    }

    fn write(&mut self, slot: usize, edit: Edit) {
        let Some(&(node, handle)) = self.open.get(&slot) else { return };
        let old = self.model.content(slot).unwrap();
        let new = edit.of(&old);
        self.view().write(handle, 0, &new).unwrap();
        self.resize(node, Some(handle), new.len()).unwrap();
        self.model.write(slot, new).unwrap();
    }

    fn close(&mut self, slot: usize) {
        let Some((node, handle)) = self.open.remove(&slot) else { return };
        let flushed = self.view().flush(handle, &ME);
        let released = self.view().release(handle);
        self.looked_up.push(node);
        self.same(flushed.and(released), |model| model.close(slot));
    }

    fn rename(&mut self, from: P, to: P, kind: RenameKind) {
        let flags = match kind {
            RenameKind::Over => RenameFlags::empty(),
            RenameKind::NoReplace => RenameFlags::NOREPLACE,
            RenameKind::Exchange => RenameFlags::EXCHANGE,
        };
        let is_dir = self.model.at(from) == Some(Node::Dir);
        if kind == RenameKind::Exchange && self.model.at(to).is_some_and(|node| (node == Node::Dir) != is_dir) {
            // As two renames to free names; the model does not know of it.
            return;
        }
        if self.model.puts_link_above_rule(from, to) {
            return;
        }
        let answer = self.end(from).and_then(|dir| {
            let new_dir = self.end(to)?;
            if let Some(answer) = self.model.kernel_says(from, to, kind) {
                return answer.map_err(Error::Errno);
            }
            rename(self.view(), (dir, name_of(from)), (new_dir, name_of(to)), flags)
        });
        let is_crossing = matches!(&answer, Err(err) if err.code() == libc::EXDEV);
        let is_taken = self.model.takes_used_paths(from, to)
            || (kind == RenameKind::Exchange && self.model.takes_used_paths(to, from));
        // Of a file in it that a rule holds where it goes or where it is.
        let may_be_gated = is_dir && self.model.rules == Rules::Some;
        let is_in_a_dirs_place =
            self.model.is_hidden_dir(from) || (kind == RenameKind::Exchange && self.model.is_hidden_dir(to));
        if is_crossing && ((is_dir && is_taken) || is_in_a_dirs_place || may_be_gated) {
            // Programs copy then, and each file is judged.
            return;
        }
        self.same(answer, |model| model.rename(from, to, kind));
    }

    fn chmod(&mut self, path: P, mode: u32) {
        let Ok(node) = self.file(path) else { return };
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::NOTHING };
        let answer = self.view().set_attributes(node, None, &set, &ME).map(|_| ());
        self.same(answer, |model| model.chmod(path, mode));
    }

    fn touch(&mut self, path: P) {
        let Ok(node) = self.file(path) else { return };
        self.edits += 1;
        let mtime = SetTime::At(Timestamp { seconds: self.edits as i64, nanoseconds: 0 });
        let set = SetAttributes { mtime, ..SetAttributes::NOTHING };
        let answer = self.view().set_attributes(node, None, &set, &ME).map(|_| ());
        self.same(answer, |model| model.touch(path));
    }

    fn held_paths(&self) -> Vec<Path> {
        self.model.held().map(|(path, _)| path.clone()).collect()
    }

    fn ids(&self, paths: &[Path]) -> Vec<ChangeId> {
        let held = self.bench.held();
        let id = |path: &Path| held.iter().find(|row| row.path().to_string() == *path)?.held.clone();
        paths.iter().map(|path| id(path).unwrap().id).collect()
    }

    fn confirm(&mut self, choose: impl Fn(Vec<Path>) -> Vec<Path>) {
        let paths = choose(self.held_paths());
        let confirmed = self.bench.view().confirm(&self.ids(&paths), &HOW);
        let code = confirmed.as_ref().map(|_| ()).map_err(|err| err.code);
        assert_eq!(code, self.model.confirm(&paths), "{confirmed:?}");
    }

    fn discard(&mut self, choose: impl Fn(Vec<Path>) -> Vec<Path>) {
        let paths = choose(self.held_paths());
        let discarded = self.bench.view().discard(&self.ids(&paths), &Review::default());
        let code = discarded.as_ref().map(|_| ()).map_err(|err| err.code);
        assert_eq!(code, self.model.discard(&paths), "{discarded:?}");
    }

    fn rollback(&mut self, which: usize) {
        let mut backups = self.bench.view().store().backups().unwrap();
        if backups.is_empty() {
            return;
        }
        let backup = backups.swap_remove(which % backups.len());
        let path = backup.path.to_string();
        let (dir, upper) = (tree::parent(&path), self.model.upper.get(&path));
        let is_there = self.model.at(dir) == Some(Node::Dir) && self.model.lower.is_dir(dir);
        let is_open = self.model.has_landed_open(&path) && upper.is_none();
        if !is_there || is_open || upper.is_some_and(|upper| upper.held.is_none()) || self.model.is_being_written(&path)
        {
            // Lower's only: what programs are about to make of the path is judged when they close.
            return;
        }
        let content = self.bench.view().store().content(backup.digest).unwrap().unwrap();
        let thing = if backup.symlink { Thing::Symlink(content) } else { Thing::File(content) };
        let review = Review { by: Writer { pid: ME.pid, ..Writer::default() }, dry_run: false };
        let how = RollbackHow { force: true, review, ..RollbackHow::default() };
        let answer = self.bench.view().rollback(std::slice::from_ref(&backup), &how);
        let code = answer.as_ref().map(|_| ()).map_err(|err| err.code);
        assert_eq!(code, self.model.rollback(&path, thing, backup.mode & 0o7777), "{answer:?}");
    }

    /// In place; a file that is not there is made where its directory is.
    fn outside_write(&mut self, path: P, edit: Edit) {
        let dir = self.model.lower.get(tree::parent(path));
        if dir != Some(&Node::Dir) || self.model.at(tree::parent(path)).is_none() {
            return;
        }
        if self.model.lower.get(path).is_none() && self.model.left_with_dirs(path).is_some() {
            // A gap: the engine takes a file that somebody else makes in a renamed directory for one that came with it.
            return;
        }
        if self.model.lower.get(path).is_some() && self.model.has_orphans() {
            // Who has an unlinked file open reads what is written into its inode, if lower has that still; the model
            // keeps what it was.
            return;
        }
        let old = match self.model.lower.get(path) {
            Some(Node::Leaf(leaf)) if leaf.thing.is_file() => leaf.thing.bytes().to_vec(),
            Some(_) => return,
            None => Vec::new(),
        };
        let new = edit.of(&old);
        let below = self.bench.lower_path(path);
        std::fs::write(&below, &new).unwrap();
        std::fs::set_permissions(
            &below,
            std::fs::Permissions::from_mode(self.model.lower.leaf(path).map_or(0o644, |leaf| leaf.mode)),
        )
        .unwrap();
        self.edits += 1;
        let time = UNIX_EPOCH + Duration::from_secs(self.edits);
        std::fs::File::options().write(true).open(&below).unwrap().set_modified(time).unwrap();
        self.model.outside_write(path, new);
        let it = self::path(path);
        self.view().tell_external(&it);
        if !self.view().state.lock().past.is_fresh(&it) {
            // After a kill the log may not tell what landed there.
            self.model.begin_anew_with_anothers(path);
        }
    }

    fn outside_remove(&mut self, path: P) {
        if self.model.lower.leaf(path).is_none() {
            return;
        }
        std::fs::remove_file(self.bench.lower_path(path)).unwrap();
        self.model.outside_remove(path);
        // The kernel asks for the name again within a second.
        assert_eq!(self.end(path).is_ok(), self.model.at(tree::parent(path)) == Some(Node::Dir));
    }
}

fn name_of(path: &str) -> &OsStr {
    OsStr::new(path.rsplit_once('/').map_or(path, |(_, name)| name))
}

fn nth(mut paths: Vec<Path>, which: usize) -> Vec<Path> {
    if paths.is_empty() { paths } else { vec![paths.swap_remove(which % paths.len())] }
}

/// What must agree after each operation.
impl Pair {
    fn check(&mut self) {
        let view = self.walked_view();
        self.model.look();
        assert_eq!(view, shown(self.model.view()), "the view");
        let lower = self.walked_lower();
        assert_eq!(
            lower,
            shown(self.model.lower.iter().map(|(path, node)| (path.clone(), node.clone())).collect()),
            "lower"
        );
        for (slot, (_, handle)) in &self.open {
            let content = self.read_through(*handle);
            assert_eq!(Some(content), self.model.content(*slot), "through handle {slot}");
        }
        self.check_held();
        self.check_rows();
        self.check_counted();
    }

    fn walked_view(&mut self) -> Shown {
        let mut found = Shown::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            let node = self.dir(&dir).unwrap();
            for entry in self.view().list(node).unwrap() {
                let name = entry.name.to_str().unwrap();
                let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
                let child = self.look_up(node, &entry.name).unwrap();
                let meta = child.attributes.meta;
                assert_eq!(meta.kind, entry.kind, "{path}");
                let thing = match meta.kind {
                    FileKind::Directory => None,
                    FileKind::Symlink => {
                        Some(Thing::Symlink(self.view().read_symlink(child.node).unwrap().into_encoded_bytes()))
                    }
                    _ => Some(Thing::File(self.read_node(child.node))),
                };
                if let Some(Thing::File(content)) = &thing {
                    assert_eq!((meta.size, meta.links), (content.len() as u64, 1), "{path}");
                }
                let mode = if meta.kind == FileKind::Regular { meta.mode & 0o7777 } else { 0 };
                if thing.is_none() {
                    dirs.push(path.clone());
                }
                assert!(found.insert(path, (thing, mode)).is_none(), "listed twice");
            }
        }
        self.forget();
        found
    }

    fn read_node(&self, node: NodeId) -> Vec<u8> {
        let handle = self.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle;
        let content = self.read_through(handle);
        self.view().release(handle).unwrap();
        content
    }

    fn walked_lower(&self) -> Shown {
        let mut found = Shown::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(self.bench.lower_path(&dir)).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if dir.is_empty() && name == ".fettle" {
                    continue;
                }
                assert!(!name.starts_with(TEMP_PREFIX), "{name} was left behind");
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                let meta = entry.metadata().unwrap();
                let shown = if meta.is_dir() {
                    dirs.push(path.clone());
                    (None, 0)
                } else if meta.is_symlink() {
                    let target = std::fs::read_link(entry.path()).unwrap();
                    (Some(Thing::Symlink(target.into_os_string().into_encoded_bytes())), 0)
                } else {
                    (Some(Thing::File(std::fs::read(entry.path()).unwrap())), meta.mode() & 0o7777)
                };
                found.insert(path, shown);
            }
        }
        found
    }

    fn check_held(&self) {
        type Row = (Path, String, Vec<Reason>);
        let row = |row: UpperRow| -> Row {
            assert_eq!(row.names.len(), 1);
            let (path, held) = (row.path().to_string(), row.held.unwrap());
            (path, held.id.to_string(), held.reasons)
        };
        let held: Vec<Row> = self.bench.held().into_iter().map(row).collect();
        let named = |thing: &Option<Thing>| match thing {
            Some(Thing::Symlink(target)) => IdSide { content: Some(Digest::of(target)), thing: Some("symlink") },
            Some(Thing::File(bytes)) => IdSide { content: Some(Digest::of(bytes)), thing: None },
            Some(Thing::Dir) => IdSide { content: None, thing: Some("directory") },
            None => IdSide::default(),
        };
        let wanted = self.model.held().map(|(at, held)| {
            let looks = Looks { mode: held.mode, ..Looks::default() };
            let base = held.base.clone().or_else(|| held.found.as_ref().map(|leaf| leaf.thing.clone()));
            // What takes the place of a directory is based on no content.
            let base = base.filter(|thing| *thing != Thing::Dir);
            let full = ChangeId::full(&path(at), held.kind, named(&base), named(&held.new), looks.digest());
            (at.clone(), full.to_string()[..8].to_owned(), held.reasons.clone())
        });
        let mut wanted: Vec<Row> = wanted.collect();
        wanted.sort_by_key(|(at, ..)| path(at));
        assert_eq!(held, wanted, "what is held");
    }

    /// The database and the memory agree, and no upper file is without its entry.
    fn check_rows(&self) {
        let state = self.view().state.lock();
        let saved = state.uppers.iter().filter(|upper| upper.has_row()).map(|upper| upper.row.clone());
        let mut rows: Vec<UpperRow> = saved.collect();
        rows.sort_by_key(|row| row.id);
        let files = state.uppers.iter().filter(|upper| upper.row.what != What::Whiteout).count();
        assert!(state.uppers.iter().all(|upper| !upper.busy), "an entry stays claimed");
        drop(state);
        assert_eq!(rows, self.view().store().load_upper().unwrap(), "the database");
        assert_eq!(self.bench.stage_files(), files, "upper files");
    }

    /// What is counted of directories is what a look at all entries finds.
    fn check_counted(&self) {
        let state = self.view().state.lock();
        let mut wanted: BTreeMap<RelPath, (u32, u32, Vec<RelPath>)> = BTreeMap::new();
        for upper in state.uppers.iter() {
            let row = &upper.row;
            let is_structure = row.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure);
            let is_bare = !upper.is_landed() && row.base.below != Below::Nothing && row.base.content.is_none();
            for name in &row.names {
                let (made, hidden, perhaps_hidden) = wanted.entry(name.parent().unwrap()).or_default();
                *made += u32::from(is_structure && row.what == What::Dir);
                *hidden += u32::from(is_structure && row.what == What::Whiteout);
                perhaps_hidden
                    .extend((is_bare && matches!(row.what, What::File | What::Symlink)).then(|| name.clone()));
            }
        }
        for (dir, (made, hidden, mut perhaps_hidden)) in wanted {
            let mut counted = state.uppers.dirs_in(&dir);
            perhaps_hidden.sort();
            counted.perhaps_hidden.sort();
            let counted = (counted.made, counted.hidden, counted.perhaps_hidden);
            assert_eq!(counted, (made, hidden, perhaps_hidden), "directories in {dir}");
        }
    }

    /// Everything is let go of, and what lower lost by our doing is kept.
    fn finish(mut self) {
        let slots: Vec<usize> = self.open.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.close(slot));
        self.forget();
        self.check();
        let state = self.view().state.lock();
        assert_eq!((state.nodes.count(), state.handles.len()), (1, 0), "nodes and handles that stay");
        drop(state);
        let kept: Vec<Digest> =
            self.view().store().backups().unwrap().into_iter().map(|backup| backup.digest).collect();
        for content in &self.model.replaced {
            assert!(kept.contains(&Digest::of(content)), "no backup of {:?}", String::from_utf8_lossy(content));
        }
    }
}

fn shown(nodes: BTreeMap<Path, Node>) -> Shown {
    let show = |node: Node| match node {
        Node::Dir => (None, 0),
        Node::Leaf(leaf) => {
            let mode = if leaf.thing.is_file() { leaf.mode } else { 0 };
            (Some(leaf.thing), mode)
        }
    };
    nodes.into_iter().map(|(path, node)| (path, show(node))).collect()
}

/// Does the operations on both sides and compares after each.
fn check(window: WindowLength, operations: &[Op]) {
    check_under(window, Rules::None, operations);
}

fn check_under(window: WindowLength, rules: Rules, operations: &[Op]) {
    let mut pair = Pair::new(window, rules);
    for op in operations {
        pair.act(*op);
        pair.forget();
        pair.check();
    }
    pair.finish();
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

fn check_many(window: WindowLength, rules: Rules) {
    let cases = setting("FETTLE_MODEL_CASES").map_or(CASES, |cases| cases as u32);
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&setting("FETTLE_MODEL_SEED").unwrap_or(1).to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_time: 30_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let lists = prop::collection::vec(op(), 1..OPERATIONS_MAX);
    let result = runner.run(&lists, |operations| {
        check_under(window, rules, &operations);
        Ok(())
    });
    if let Err(err) = result {
        panic!("{window:?}, {rules:?}: {err}");
    }
}

#[test]
fn random_operations_come_to_what_the_model_says_where_each_write_is_judged_alone() {
    check_many(WindowLength::Each, Rules::None);
}

#[test]
fn random_operations_come_to_what_the_model_says_within_one_window() {
    check_many(WindowLength::Long, Rules::None);
}

#[test]
fn random_operations_come_to_what_the_model_says_against_the_session() {
    check_many(WindowLength::Session, Rules::None);
}

#[test]
fn random_operations_come_to_what_the_model_says_under_rules() {
    check_many(WindowLength::Long, Rules::Some);
}
