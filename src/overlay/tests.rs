//! The engine on a temporary project, without a kernel: one test an operation and origin.

mod anothers;
mod beside;
mod bursts;
mod check;
mod comes_back;
mod crash;
mod done;
mod durable;
mod faults;
mod findings;
mod frozen_since;
mod goes;
mod haste;
mod hunks;
mod ids;
mod inodes;
mod inspected;
mod leaves;
mod links;
mod looks;
mod looks_held;
mod lost_names;
mod many;
mod meanwhile;
mod model;
mod moved_aside;
mod names_below;
mod opened;
mod outside;
mod passable;
mod passing;
mod patch;
mod paths;
mod permission;
mod programs;
mod purge;
mod put_back;
mod raised;
mod releases;
mod removal;
mod reviewed_names;
mod rotation;
mod same_times;
mod scenarios;
mod spent;
mod stale;
mod stand_in;
mod stress;
mod structure;
mod symlinks;
mod times;
mod together;
mod tracked;
mod undo;
mod unseen;
mod watched;
mod windows;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::model::{ChangeId, ChangeKind, Reason, Timestamp};
use crate::overlay::state::rules::RuleSource;
use crate::policy::settings::{Key, Layer};
use crate::protocol::{ErrorCode, EventName};
use crate::store::{Location, Recovered, UpperRow};
use crate::sys::RenameFlags;
use crate::sys::file::Meta;

/// Waits for as long, where only time does it.
fn outlast(time: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        std::thread::yield_now();
    }
}

const ME: Caller = Caller { pid: 1, uid: 0, gid: 0, umask: 0o022 };

/// What the kernel was told: when it was to forget attributes, and of which paths.
#[derive(Default)]
struct ToldKernel {
    attributes: Mutex<Vec<Instant>>,
    paths: Mutex<Vec<RelPath>>,
}

impl Observer for Arc<ToldKernel> {
    fn attributes_changed(&self, _node: NodeId) -> bool {
        self.attributes.lock().push(Instant::now());
        true
    }

    fn content_changed(&self, _node: NodeId) {}

    fn take_stores(&self, _nodes: &[NodeId], _max: Duration) {}

    fn names_changed(&self, _dir: NodeId) {}

    fn entry_changed(&self, _parent: NodeId, _name: &OsStr) {}

    fn entry_doubted(&self, _parent: NodeId, _name: &OsStr) {}

    fn shows_other(&self, path: &RelPath) {
        self.paths.lock().push(path.clone());
    }
}

struct Bench {
    dir: PathBuf,
    /// Removed with the bench; none where somebody else looks after the directory.
    _scratch: Option<tempfile::TempDir>,
    overlay: Option<Overlay>,
    flags: Vec<(Key, String)>,
    grants: Grants,
}

/// As the kernel has it done: told that what it knows is stale, it looks at both names and asks once more.
fn rename(view: &Overlay, from: (NodeId, &OsStr), to: (NodeId, &OsStr), flags: RenameFlags) -> Result<()> {
    let ask = || view.rename(from.0, from.1, to.0, to.1, flags, &ME);
    match ask() {
        Err(Error::LooksAgain) => {
            drop([from, to].map(|(parent, name)| view.lookup(parent, name)));
            ask()
        }
        done => done,
    }
}

/// The same of what it asks about `node`, which it has found by `path`.
fn ask<T>(bench: &Bench, node: NodeId, path: &str, act: impl Fn(NodeId) -> Result<T>) -> Result<T> {
    match act(node) {
        Err(Error::Errno(libc::ESTALE)) => act(bench.node(path)?),
        done => done,
    }
}

impl Overlay {
    fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<Entry> {
        match self.find(parent, name)? {
            Found::Entry(entry) => Ok(entry),
            Found::Nothing(_) => Err(Error::Errno(libc::ENOENT)),
        }
    }
}

/// Whatever a test does: nothing that later judging needs is in memory alone.
impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_past();
        }
    }
}

impl Bench {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(flags: &[(Key, &str)]) -> Self {
        Self::within(tempfile::tempdir().unwrap(), flags)
    }

    fn within(scratch: tempfile::TempDir, flags: &[(Key, &str)]) -> Self {
        let flags = flags.iter().map(|(key, value)| (*key, value.to_string())).collect();
        let dir = scratch.path().to_owned();
        let mut bench = Self { dir, _scratch: Some(scratch), overlay: None, flags, grants: Grants::default() };
        bench.remount();
        bench
    }

    /// On a directory that is there already, whatever state it is in.
    fn at(dir: &std::path::Path) -> (Self, Recovered) {
        let (flags, grants) = (Vec::new(), Grants::default());
        let mut bench = Self { dir: dir.to_owned(), _scratch: None, overlay: None, flags, grants };
        let recovered = bench.remount();
        (bench, recovered)
    }

    /// As after a kill: nothing is told to the old view.
    fn remount(&mut self) -> Recovered {
        self.check_past();
        let external = self.overlay.take().map(|overlay| overlay.external_paths().changed);
        let (overlay, recovered) = self.open_anew();
        // What nobody else has changed is not taken for that by who knows it from the log alone.
        overlay.begin_doubts().unwrap();
        for path in overlay.external_paths().changed {
            let known = || (overlay.state.lock().past.get(&path.0).cloned(), overlay.store.last_put());
            assert!(
                external.as_ref().is_none_or(|known| known.contains(&path)),
                "{path:?} of {external:?}: {:?}",
                known()
            );
        }
        self.overlay = Some(overlay);
        recovered
    }

    fn open_anew(&self) -> (Overlay, Recovered) {
        let lower = Tree::open(&self.dir).unwrap();
        let store = Store::open(&lower, &Location::default()).unwrap();
        let flags = Layer::flags(self.flags.clone()).unwrap();
        let source = RuleSource { flags, ..RuleSource::default() };
        let policy = Policy::load(&lower, &source).unwrap();
        let recovered = store.recover(&lower).unwrap();
        let policy = policy.after(&recovered, &lower, &source).unwrap();
        (Overlay::new(lower, store, policy, self.grants).unwrap(), recovered)
    }

    fn check_past(&self) {
        let faults = self.overlay.as_ref().map(|overlay| overlay.check_past().unwrap());
        assert_eq!(faults.unwrap_or_default(), []);
    }

    fn view(&self) -> &Overlay {
        self.overlay.as_ref().unwrap()
    }

    fn lower_path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    fn put(&self, path: &str, content: &str) {
        std::fs::create_dir_all(self.lower_path(path).parent().unwrap()).unwrap();
        std::fs::write(self.lower_path(path), content).unwrap();
    }

    fn lower(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.lower_path(path)).ok()
    }

    /// The node of a directory or file, and of its parent with its name.
    fn parent<'a>(&self, path: &'a str) -> (NodeId, &'a OsStr) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut node = ROOT;
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            node = self.view().lookup(node, OsStr::new(part)).unwrap().node;
        }
        (node, OsStr::new(name))
    }

    fn node(&self, path: &str) -> Result<NodeId> {
        let (parent, name) = self.parent(path);
        Ok(self.view().lookup(parent, name)?.node)
    }

    fn read(&self, path: &str) -> Option<String> {
        self.node(path).ok()?;
        let handle = self.open(path, libc::O_RDONLY).unwrap();
        let bytes = self.view().read(handle, 0, 1 << 20).unwrap();
        self.view().release(handle).unwrap();
        Some(String::from_utf8(bytes).unwrap())
    }

    /// As the kernel has it done: told that what it knows is stale, it looks at the name and asks once more.
    fn open(&self, path: &str, flags: i32) -> Result<HandleId> {
        let open = |node| Ok(self.view().open(node, OpenFlags::from_raw(flags), &ME)?.handle);
        ask(self, self.node(path)?, path, open)
    }

    fn open_to_read(&self, node: NodeId) -> HandleId {
        self.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle
    }

    /// Truncate in place, as an editor or `>` does; creates the file where there is none.
    fn save(&self, path: &str, content: &str) {
        let handle = self.open_for_save(path);
        self.view().write(handle, 0, content.as_bytes()).unwrap();
        self.close(handle);
    }

    fn open_for_save(&self, path: &str) -> HandleId {
        let ((parent, name), flags) = (self.parent(path), libc::O_WRONLY | libc::O_TRUNC);
        match self.node(path) {
            Ok(_) => self.open(path, flags).unwrap(),
            Err(_) => self.view().create(parent, name, 0o644, OpenFlags::from_raw(flags), &ME).unwrap().1.handle,
        }
    }

    fn close(&self, handle: HandleId) {
        self.view().flush(handle, &ME).unwrap();
        self.view().release(handle).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        self.try_rename(from, to).unwrap();
    }

    fn try_rename(&self, from: &str, to: &str) -> Result<()> {
        rename(self.view(), self.parent(from), self.parent(to), RenameFlags::empty())
    }

    fn unlink(&self, path: &str) {
        let (parent, name) = self.parent(path);
        self.view().unlink(parent, name, &ME).unwrap();
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let node = if dir.is_empty() { ROOT } else { self.node(dir).unwrap() };
        let entries = self.view().list(node).unwrap();
        let mut names: Vec<String> = entries.iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// What lower has, but for our own directory: nothing may be left behind there.
    fn lower_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != ".fettle").collect();
        names.sort();
        names
    }

    fn held(&self) -> Vec<UpperRow> {
        self.view().held_rows()
    }

    fn only_id(&self) -> ChangeId {
        let held = self.held();
        assert_eq!(held.len(), 1, "{held:?}");
        held[0].held.as_ref().unwrap().id.clone()
    }

    fn reasons(&self) -> Vec<Reason> {
        self.held()[0].held.as_ref().unwrap().reasons.clone()
    }

    fn reasons_if_held(&self) -> Vec<Reason> {
        self.held().into_iter().flat_map(|row| row.held).flat_map(|held| held.reasons).collect()
    }

    fn confirm(&self, ids: &[ChangeId]) -> std::result::Result<Vec<crate::protocol::Outcome>, ErrorCode> {
        self.view().confirm(ids, &HOW).map_err(|err| err.code)
    }

    /// Whether what lands an entry's content is to be durable.
    fn is_synced(&self, path: &str) -> bool {
        let state = self.view().state.lock();
        let id = state.uppers.at(&RelPath::parse(path.as_bytes()).unwrap()).unwrap();
        state.uppers.get(id).unwrap().synced
    }

    /// Of what is recorded.
    fn stage_files(&self) -> usize {
        self.view().store().record_waiting().unwrap();
        std::fs::read_dir(self.lower_path(".fettle/stage")).unwrap().count()
    }

    fn backups(&self) -> Vec<String> {
        self.view().store().backups().unwrap().into_iter().map(|backup| backup.path.to_string()).collect()
    }
}

const HOW: ConfirmHow = ConfirmHow {
    force: false,
    wait: false,
    review: Review { by: Writer { pid: 1, uid: 0, opened_by: None, written_by: None, session: None }, dry_run: false },
    expiry: Expiry::Guard,
    merging: Merging::Allowed,
};

/// What a diff shows of a side that is small enough to be read.
fn bytes(side: SideContent) -> Vec<u8> {
    match side.content {
        ShownContent::Bytes(bytes) => bytes,
        ShownContent::Large(digest) => panic!("only the hash {digest}"),
    }
}

fn lines(count: usize) -> String {
    (0..count).map(|number| format!("line {number}\n")).collect()
}

/// `lines` with the first `count` of them changed: twice as many changed lines.
fn changed(total: usize, count: usize) -> String {
    (0..total)
        .map(|number| if number < count { format!("new {number}\n") } else { format!("line {number}\n") })
        .collect()
}

#[test]
fn a_small_edit_lands_with_a_backup() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
    assert_eq!(bench.read("a"), Some(changed(100, 2)));
    assert_eq!(bench.backups(), ["a"]);
    assert!(bench.held().is_empty());
    assert_eq!(bench.lower_names(), ["a"]);
}

#[test]
fn a_large_rewrite_is_held_and_the_view_shows_it() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    assert_eq!(bench.lower("a"), Some(lines(100)));
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert_eq!(bench.reasons(), [Reason::Size]);
    assert_eq!(bench.lower_names(), ["a"]);
}

#[test]
fn a_held_change_survives_a_killed_daemon_under_its_id() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let id = bench.only_id();
    bench.remount();
    assert_eq!(bench.only_id(), id);
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert_eq!(bench.confirm(&[id]).unwrap().len(), 1);
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert!(bench.held().is_empty());
}

#[test]
fn what_was_being_written_when_the_daemon_died_is_held() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, b"half\n").unwrap();
    bench.remount();
    assert_eq!(bench.reasons(), [Reason::Interrupted, Reason::Size]);
    assert_eq!(bench.lower("a"), Some(lines(100)));
    assert_eq!(bench.read("a"), Some("half\n".to_owned()));
}

/// What a death in a rename leaves of the source: hidden, as the database knows, and not judged.
fn hide_and_die(bench: &mut Bench, path: &str, meanwhile: impl FnOnce(&Bench)) {
    let hidden = RelPath::parse(path.as_bytes()).unwrap();
    let meta = bench.view().lower().stat(&hidden).unwrap().unwrap();
    let whiteout = bench.view().hide(&hidden, &meta).unwrap();
    bench.view().mark_dirty(whiteout).unwrap();
    meanwhile(bench);
    bench.remount();
    assert_eq!(bench.read(path), None);
}

#[test]
fn what_came_in_this_session_and_was_going_when_the_daemon_died_goes() {
    let mut bench = Bench::new();
    bench.save("n", &lines(100));
    hide_and_die(&mut bench, "n", |_| ());
    assert!(bench.held().is_empty());
    assert_eq!(bench.lower("n"), None);
}

#[test]
fn what_is_older_or_somebodys_is_held_as_going_when_the_daemon_died() {
    let mut bench = Bench::new();
    bench.put("a", &lines(5));
    hide_and_die(&mut bench, "a", |_| ());
    assert_eq!(bench.reasons(), [Reason::Interrupted]);
    assert_eq!(bench.lower("a"), Some(lines(5)));

    let mut bench = Bench::new();
    bench.save("n", &lines(100));
    hide_and_die(&mut bench, "n", |bench| bench.put("n", "somebody's\n"));
    assert!(bench.reasons().contains(&Reason::Interrupted), "{:?}", bench.reasons());
    assert_eq!(bench.lower("n"), Some("somebody's\n".to_owned()));
}

#[test]
fn a_discard_returns_the_view_to_lower_and_keeps_the_content() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    assert_eq!(bench.read("a"), Some(lines(100)));
    let backups = bench.view().store().backups().unwrap();
    assert_eq!(backups[0].kind, crate::model::BackupKind::Discarded);
    let content = bench.view().store().content(backups[0].digest).unwrap().unwrap();
    assert_eq!(String::from_utf8(content).unwrap(), changed(100, 60));
}

#[test]
fn a_new_file_lands_and_is_invisible_below_until_it_is_closed() {
    let bench = Bench::new();
    let handle = bench.open_for_save("n");
    bench.view().write(handle, 0, lines(500).as_bytes()).unwrap();
    assert_eq!(bench.lower("n"), None);
    bench.close(handle);
    assert_eq!(bench.lower("n"), Some(lines(500)));
    assert!(bench.held().is_empty());
}

/// Programs sync a temporary file, close it, and rename it: often before the kernel has let go of the handle.
#[test]
fn what_was_synced_stays_so_through_a_rename_before_the_release() {
    let bench = Bench::new();
    bench.put("f", &lines(50));
    let handle = bench.open_for_save("f.tmp");
    bench.view().write(handle, 0, changed(50, 2).as_bytes()).unwrap();
    bench.view().fsync(handle, false).unwrap();
    bench.view().flush(handle, &ME).unwrap();
    bench.rename("f.tmp", "f");
    assert_eq!(bench.lower("f"), Some(changed(50, 2)));
    let below = std::fs::File::open(bench.lower_path("f")).unwrap();
    assert!(crate::overlay::names::rename_over::is_on_disk(below.as_fd()));
    bench.view().write(handle, 0, b"L").unwrap();
    assert!(!bench.is_synced("f"));
    bench.close(handle);
}

#[test]
fn an_empty_new_file_lands_at_its_release() {
    let bench = Bench::new();
    let handle = bench.open_for_save("n");
    bench.close(handle);
    assert_eq!(bench.lower("n"), Some(String::new()));
}

#[test]
fn a_large_deletion_is_held_and_a_small_one_lands() {
    let bench = Bench::new();
    bench.put("big", &lines(100));
    bench.put("small", &lines(5));
    bench.unlink("big");
    bench.unlink("small");
    assert!(bench.names("").is_empty());
    assert_eq!(bench.lower_names(), ["big"]);
    assert_eq!(bench.backups(), ["small"]);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert!(bench.lower_names().is_empty());
}

#[test]
fn temp_and_rename_over_is_one_change_of_the_target() {
    for (edits, held) in [(2, 0), (60, 1)] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.save("a.tmp", &changed(100, edits));
        bench.rename("a.tmp", "a");
        assert_eq!(bench.read("a"), Some(changed(100, edits)));
        assert_eq!(bench.held().len(), held);
        assert_eq!(bench.lower_names(), ["a"]);
        assert_eq!(bench.names(""), ["a"]);
        let below = if held == 0 { changed(100, edits) } else { lines(100) };
        assert_eq!(bench.lower("a"), Some(below));
    }
}

/// The kernel sends a release some time after the close: until then the temporary file has landed, and is open.
#[test]
fn a_temporary_file_that_is_still_open_leaves_no_trace() {
    for (edits, events) in [(0, vec![]), (2, vec![EventName::WriteLanded]), (60, vec![EventName::WriteHeld])] {
        for is_written_again in [false, true] {
            let mut bench = Bench::new();
            bench.put("a", &lines(100));
            let handle = bench.open_for_save("a.tmp");
            bench.view().write(handle, 0, changed(100, edits).as_bytes()).unwrap();
            bench.view().flush(handle, &ME).unwrap();
            if is_written_again {
                bench.view().write(handle, 0, changed(100, edits).as_bytes()).unwrap();
            }
            bench.rename("a.tmp", "a");
            let told = bench.view().store().events_since(0).unwrap();
            let told = |path: &str| {
                let of_path = told.iter().filter(|event| event.path == RelPath::parse(path.as_bytes()).ok());
                of_path.map(|event| event.event).collect::<Vec<_>>()
            };
            assert_eq!((told("a.tmp"), told("a")), (vec![EventName::WriteLanded], events.clone()), "{edits}");
            assert_eq!(bench.lower_names(), ["a"], "{edits}");
            assert_eq!(bench.backups(), if edits == 2 { vec!["a"] } else { vec![] }, "{edits}");
            bench.close(handle);
            assert_eq!((bench.read("a"), bench.names("")), (Some(changed(100, edits)), vec!["a".to_owned()]));
            assert_eq!(bench.lower("a"), Some(changed(100, if edits == 60 { 0 } else { edits })));
            // The database has forgotten it, too.
            bench.remount();
            assert_eq!((bench.names(""), bench.held().len()), (vec!["a".to_owned()], usize::from(edits == 60)));
        }
    }
}

#[test]
fn rename_away_and_create_is_one_change_of_the_target() {
    for (edits, held) in [(2, 0), (60, 1)] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.rename("a", "a~");
        bench.save("a", &changed(100, edits));
        bench.unlink("a~");
        assert_eq!(bench.read("a"), Some(changed(100, edits)));
        assert_eq!(bench.held().len(), held, "{edits} {:?}", bench.held());
        let below = if held == 0 { changed(100, edits) } else { lines(100) };
        assert_eq!(bench.lower("a"), Some(below), "{edits}");
        assert_eq!(bench.lower_names(), ["a"], "{edits}");
    }
}

#[test]
fn unlink_and_create_is_one_change_of_the_target() {
    for (edits, held) in [(2, 0), (60, 1)] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.unlink("a");
        bench.save("a", &changed(100, edits));
        assert_eq!(bench.read("a"), Some(changed(100, edits)));
        assert_eq!(bench.held().len(), held);
        let below = if held == 0 { changed(100, edits) } else { lines(100) };
        assert_eq!(bench.lower("a"), Some(below));
    }
}

#[test]
fn a_directory_rename_takes_held_changes_along_under_new_ids() {
    let mut bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.save("d/a", &changed(100, 60));
    let old = bench.only_id();
    bench.rename("d", "e");
    let new = bench.only_id();
    assert_ne!(old, new);
    assert_eq!(bench.read("e/a"), Some(changed(100, 60)));
    assert_eq!(bench.lower("e/a"), Some(lines(100)));
    let verdict = bench.view().store().verdict(&old).unwrap().unwrap();
    assert_eq!(verdict.fate, crate::store::Fate::Superseded { by: new.clone() });
    bench.remount();
    assert_eq!(bench.only_id(), new);
    assert_eq!(bench.read("e/a"), Some(changed(100, 60)));
}

#[test]
fn slices_in_one_window_are_one_change() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("a", &lines(100));
    for count in 1..30 {
        bench.save("a", &changed(100, count));
    }
    assert_eq!(bench.held().len(), 1);
    assert_eq!(bench.lower("a"), Some(changed(100, 20)), "what lay within two fifths of the file landed");
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    for count in 1..30 {
        bench.save("a", &changed(100, count));
    }
    assert!(bench.held().is_empty());
}

#[test]
fn a_held_change_that_becomes_small_lands_by_itself() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let first = bench.only_id();
    bench.save("a", &changed(100, 61));
    let second = bench.only_id();
    assert_ne!(first, second);
    bench.save("a", &changed(100, 1));
    assert!(bench.held().is_empty());
    assert_eq!(bench.lower("a"), Some(changed(100, 1)));
}

#[test]
fn a_held_change_written_back_to_lowers_content_ends() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.save("a", &lines(100));
    assert!(bench.held().is_empty());
    // Of what had waited, not of what lower has.
    assert_eq!(bench.backups(), ["a"]);
}

#[test]
fn a_confirm_merges_with_a_clean_change_below_and_refuses_a_clash() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(100).replace("line 99\n", "outside\n"));
    let merged = bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(merged[0].action, crate::protocol::Action::Merged);
    assert_eq!(bench.lower("a"), Some(changed(100, 60).replace("line 99\n", "outside\n")));

    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(100).replace("line 3\n", "outside\n"));
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap_err(), ErrorCode::Conflict);
    assert_eq!(bench.lower("a"), Some(lines(100).replace("line 3\n", "outside\n")));
    bench.view().confirm(&[bench.only_id()], &ConfirmHow { force: true, ..HOW }).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
}

#[test]
fn what_is_to_land_as_it_was_tested_is_not_merged() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let outside = lines(100).replace("line 99\n", "outside\n");
    bench.put("a", &outside);
    let tested = ConfirmHow { merging: Merging::Refused, ..HOW };
    let refusal = bench.view().confirm(&[bench.only_id()], &tested).unwrap_err();
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("not tested"), "{refusal:?}");
    assert_eq!(bench.lower("a"), Some(outside));
    // What somebody has made of it below as well is what was tested.
    bench.put("a", &changed(100, 60));
    bench.view().confirm(&[bench.only_id()], &tested).unwrap();
}

#[test]
fn a_confirm_that_is_only_tried_is_not_told_as_refused() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(100).replace("line 3\n", "outside\n"));
    let refused = |dry_run| {
        let how = ConfirmHow { review: Review { dry_run, ..HOW.review }, ..HOW };
        assert_eq!(bench.view().confirm(&[bench.only_id()], &how).unwrap_err().code, ErrorCode::Conflict);
        let events = bench.view().store().events_since(0).unwrap();
        events.iter().filter(|event| event.event == EventName::ConfirmFailed).count()
    };
    assert_eq!((refused(true), refused(false)), (0, 1));
}

#[test]
fn an_outside_edit_during_a_write_is_never_overwritten() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 1).as_bytes()).unwrap();
    bench.put("a", "outside\n");
    bench.close(handle);
    assert_eq!(bench.lower("a"), Some("outside\n".to_owned()));
    assert!(bench.reasons().contains(&Reason::Stale));
}

#[test]
fn an_outside_edit_within_the_window_of_a_landing_is_never_overwritten() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
    bench.put("a", "outside\n");
    bench.close(handle);
    assert_eq!(bench.lower("a"), Some("outside\n".to_owned()));
    assert!(bench.reasons().contains(&Reason::Stale));
}

#[test]
fn an_outside_edit_ends_the_window() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    let outside = changed(100, 1).replace("line 99\n", "outside\n");
    bench.put("a", &outside);
    bench.save("a", &lines(100));
    let backup = bench.view().store().backups().unwrap().remove(0);
    let kept = bench.view().store().content(backup.digest).unwrap().unwrap();
    assert_eq!(String::from_utf8(kept).unwrap(), outside);
    bench.put("a", &outside);
    bench.save("a", &changed(100, 60));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(outside));
}

#[test]
fn half_a_write_of_one_does_not_land_with_the_close_of_another() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let open = || bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap().handle;
    let (one, other) = (open(), open());
    bench.view().write(other, 0, b"HALF").unwrap();
    bench.view().write(one, 5, b"0").unwrap();
    bench.close(one);
    assert_eq!(bench.lower("a"), Some(lines(100)));
    bench.close(other);
    assert_eq!(bench.lower("a"), Some(lines(100).replacen("line 0", "HALF 0", 1)));
}

#[test]
fn confirms_are_all_or_nothing() {
    let bench = Bench::new();
    for name in ["a", "b"] {
        bench.put(name, &lines(100));
        bench.save(name, &changed(100, 60));
    }
    bench.put("b", &lines(100).replace("line 3\n", "outside\n"));
    let ids: Vec<ChangeId> = bench.held().iter().map(|row| row.held.as_ref().unwrap().id.clone()).collect();
    assert_eq!(bench.confirm(&ids).unwrap_err(), ErrorCode::Conflict);
    assert_eq!(bench.lower("a"), Some(lines(100)));
    assert_eq!(bench.held().len(), 2);
}

#[test]
fn what_expired_tells_how_long_ago_in_the_unit_that_this_fills() {
    let bench = Bench::with(&[(Key::Ttl, "600")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let held = bench.held()[0].held.clone().unwrap();
    for (seconds, want) in [
        (0, None),
        (1, Some("expired 1 second ago")),
        (59, Some("expired 59 seconds ago")),
        (60, Some("expired 1 minute ago")),
        (300, Some("expired 5 minutes ago")),
        (7200, Some("expired 2 hours ago")),
        (86_400, Some("expired 1 day ago")),
    ] {
        // Less than a whole second more: a test may take some of it.
        let renewed = crate::store::now_millis() - (600 + seconds) * 1000 + 900;
        let held = crate::store::Held { renewed, ..held.clone() };
        assert_eq!(bench.view().expired(&held).as_deref(), want, "{seconds}");
    }
}

#[test]
fn confirming_a_file_that_is_being_written_is_refused() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let handle = bench.open_for_save("a");
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap_err(), ErrorCode::Busy);
    bench.close(handle);
}

#[test]
fn what_is_being_written_by_another_name_is_neither_judged_nor_confirmed() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("b", &changed(100, 60));
    bench.remount();
    let first = bench.node("a").unwrap();
    assert_eq!(first, bench.node("b").unwrap());
    let id = bench.only_id();
    let handle = bench.open("b", libc::O_WRONLY).unwrap();
    bench.view().write(handle, 0, b"half").unwrap();

    assert_eq!(bench.view().flush_all(None).unwrap(), []);
    assert_eq!((bench.only_id(), bench.lower("a")), (id.clone(), Some(lines(100))));
    assert_eq!(bench.confirm(&[id]).unwrap_err(), ErrorCode::Busy);
    assert!(
        bench
            .view()
            .state
            .lock()
            .open_unheld(&RelPath::parse(b"b").unwrap(), crate::sys::file::FileKind::Regular)
            .is_some()
    );
    bench.close(handle);
}

#[test]
fn who_waits_for_a_writer_keeps_no_other_of_his_files_from_being_closed() {
    let bench = Bench::new();
    for name in ["a", "b"] {
        bench.put(name, &lines(100));
        bench.save(name, &changed(100, 60));
    }
    let ids = [bench.id_of("a"), bench.id_of("b")];
    let [a, b] = ["a", "b"].map(|name| bench.open(name, libc::O_WRONLY).unwrap());
    bench.view().write(b, 0, b"b").unwrap();
    let how = ConfirmHow { wait: true, ..HOW };
    std::thread::scope(|threads| {
        let confirms = threads.spawn(|| bench.view().confirm(&ids, &how).map_err(|err| err.code));
        while bench.view().changed.notify_all() == 0 {
            // It does not wait yet.
            std::thread::yield_now();
        }
        let begun = std::time::Instant::now();
        bench.view().write(a, 0, b"a").unwrap();
        bench.close(a);
        assert!(begun.elapsed() < review::WAIT_FOR_WRITERS / 2, "{:?}", begun.elapsed());
        bench.close(b);
        // What was named is no more what is there.
        assert_eq!(confirms.join().unwrap().unwrap_err(), ErrorCode::UnknownId);
    });
    assert_eq!(bench.held().len(), 2);
}

#[test]
fn a_rollback_brings_content_back_and_keeps_what_it_replaces() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let backup = bench.view().store().backups().unwrap().remove(0);
    bench.view().rollback(std::slice::from_ref(&backup), &RollbackHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(100)));
    assert_eq!(bench.read("a"), Some(lines(100)));
    let kinds: Vec<_> = bench.view().store().backups().unwrap().iter().map(|backup| backup.kind).collect();
    assert!(kinds.contains(&crate::model::BackupKind::RolledBack));
    bench.put("a", "human\n");
    let err = bench.view().rollback(&[backup], &RollbackHow::default()).unwrap_err();
    assert_eq!(err.code, ErrorCode::Conflict);
    assert_eq!(bench.lower("a"), Some("human\n".to_owned()));
}

#[test]
fn all_names_of_a_hard_link_show_what_was_written() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 1).as_bytes()).unwrap();
    assert_eq!(bench.read("b"), Some(changed(100, 1)));
    bench.close(handle);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 1)), Some(changed(100, 1))));
}

#[test]
fn an_unlinked_file_that_is_open_reads_and_writes_on() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    bench.unlink("a");
    bench.view().write(handle, 0, b"LINE").unwrap();
    assert_eq!(bench.view().read(handle, 0, 6).unwrap(), b"LINE 0");
    assert_eq!(bench.view().attributes(node).unwrap().meta.links, 0);
    bench.close(handle);
    assert_eq!(bench.lower("a"), Some(lines(100)), "its deletion is held, and nothing was written to it");
}

#[test]
fn git_ignored_directories_and_the_git_directory_pass() {
    let mut bench = Bench::new();
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "/target\n");
    bench.put("target/x", &lines(100));
    bench.put(".git/index2", &lines(100));
    bench.remount();
    for path in ["target/x", ".git/index2"] {
        bench.save(path, "other\n");
        assert_eq!(bench.lower(path).as_deref(), Some("other\n"), "{path}");
    }
    bench.unlink("target/x");
    assert!(bench.held().is_empty());
    assert!(bench.backups().is_empty());
}

#[test]
fn sensitive_files_are_held_however_small() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "hello\n");
    assert_eq!(bench.reasons(), [Reason::Sensitive]);
    assert_eq!(bench.lower("AGENTS.md"), None);
    assert_eq!(bench.read("AGENTS.md"), Some("hello\n".to_owned()));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("AGENTS.md"), Some("hello\n".to_owned()));
}

#[test]
fn a_rename_cannot_carry_content_past_the_rules() {
    let mut bench = Bench::new();
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "/target\n");
    bench.put("target/keep", "x\n");
    bench.put("src/a", &lines(100));
    bench.remount();
    // Out to where nobody judges, which would be a deletion for free.
    assert_eq!(bench.try_rename("src/a", "target/a").unwrap_err().code(), libc::EXDEV);
    assert_eq!(bench.try_rename("src", "target/src").unwrap_err().code(), libc::EXDEV);
    // A name there for a file here, through which it could be written.
    let (parent, name) = bench.parent("target/a");
    let linked = bench.view().link(bench.node("src/a").unwrap(), parent, name, &ME);
    assert_eq!(linked.unwrap_err().code(), libc::EXDEV);
    // In to where a rule waits.
    bench.view().mkdir(ROOT, OsStr::new("innocent"), 0o755, &ME).unwrap();
    bench.save("innocent/settings.json", "{}\n");
    bench.rename("innocent", ".claude");
    assert_eq!(bench.reasons(), [Reason::Sensitive]);
    assert_eq!(
        (bench.read(".claude/settings.json").as_deref(), bench.lower(".claude/settings.json")),
        (Some("{}\n"), None)
    );
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    bench.save("innocent.md", "hello\n");
    bench.rename("innocent.md", "AGENTS.md");
    assert_eq!(bench.reasons(), [Reason::Sensitive]);
    assert_eq!(bench.lower("AGENTS.md"), None);
    // What a build made a moment ago may move to where builds go.
    bench.view().mkdir(ROOT, OsStr::new("targetX"), 0o755, &ME).unwrap();
    bench.save("targetX/tag", "t\n");
    bench.rename("targetX", "target/x");
    assert_eq!(bench.lower("target/x/tag").as_deref(), Some("t\n"));
}

#[test]
fn a_directory_cannot_carry_content_to_where_other_content_was() {
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.rename("d", "old");
    bench.view().mkdir(ROOT, OsStr::new("new"), 0o755, &ME).unwrap();
    bench.save("new/a", &changed(100, 60));
    bench.rename("new", "d");
    assert_eq!((bench.read("d/a"), bench.lower("d/a")), (Some(changed(100, 60)), Some(lines(100))));
    assert_eq!(bench.held()[0].path().to_string(), "d/a");
    // What went is a copy by now, whose deletion loses nothing.
    bench.unlink("old/a");
    assert_eq!((bench.held().len(), bench.lower("old/a")), (1, None));
}

#[test]
fn a_directory_that_was_renamed_may_come_back() {
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.rename("d", "old");
    bench.rename("old", "d");
    assert_eq!(bench.lower("d/a"), Some(lines(100)));
    // Nothing was there when it came: what is made there is new.
    bench.view().mkdir(ROOT, OsStr::new("old"), 0o755, &ME).unwrap();
    bench.save("old/a", &changed(100, 60));
    assert_eq!((bench.held().len(), bench.lower("old/a")), (0, Some(changed(100, 60))));
}

#[test]
fn an_exchange_cannot_carry_content_past_the_rules() {
    let bench = Bench::new();
    bench.put(".github/workflows/ci.yml", &lines(5));
    bench.view().mkdir(ROOT, OsStr::new("tmp"), 0o755, &ME).unwrap();
    bench.save("tmp/ci.yml", "evil\n");
    for (from, to) in [("tmp", ".github/workflows"), (".github/workflows", "tmp")] {
        let exchanged = rename(bench.view(), bench.parent(from), bench.parent(to), RenameFlags::EXCHANGE);
        assert_eq!(exchanged.unwrap_err().code(), libc::EXDEV);
    }
    assert_eq!(bench.lower(".github/workflows/ci.yml"), Some(lines(5)));
}

#[test]
fn under_a_users_mount_others_only_read() {
    let mut bench = Bench::new();
    bench.put("a", &lines(3));
    bench.grants.only = Some(ME.uid + 1);
    bench.remount();
    assert_eq!(bench.read("a"), Some(lines(3)));
    let node = bench.node("a").unwrap();
    let refused = [
        bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &ME).map(|_| ()),
        bench.view().unlink(ROOT, OsStr::new("a"), &ME),
        bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).map(|_| ()),
        bench.try_rename("a", "b"),
        bench.view().set_xattr(node, OsStr::new("user.x"), b"1", rustix::fs::XattrFlags::empty(), &ME),
        bench.view().remove_xattr(node, OsStr::new("user.x"), &ME),
    ];
    assert!(refused.into_iter().all(|result| result.unwrap_err().code() == libc::EACCES));
    assert_eq!(bench.lower_names(), ["a"]);
}

#[test]
fn structure_is_recorded() {
    let bench = Bench::new();
    bench.put("a", &lines(3));
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    bench.rename("a", "d/b");
    let events = bench.view().store().events_since(0).unwrap();
    let told: Vec<(String, String)> =
        events.iter().filter_map(|event| Some((event.path.as_ref()?.to_string(), event.message.clone()?))).collect();
    let want = [("d", "[directory]"), ("d/b", "[renamed from a]")];
    assert_eq!(told, want.map(|(path, what)| (path.to_owned(), what.to_owned())));
}

#[test]
fn the_time_a_program_saw_stays_through_landing() {
    let bench = Bench::new();
    bench.put("a", &lines(10));
    bench.save("a", &changed(10, 1));
    let node = bench.node("a").unwrap();
    let seen = bench.view().attributes(node).unwrap().meta.mtime;
    let below = std::fs::metadata(bench.lower_path("a")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((below.mtime(), below.mtime_nsec()), (seen.seconds, i64::from(seen.nanoseconds)));
}

#[test]
fn a_symlink_out_of_the_project_is_held() {
    let bench = Bench::new();
    bench.view().symlink(ROOT, OsStr::new("in"), OsStr::new("a"), &ME).unwrap();
    bench.view().symlink(ROOT, OsStr::new("out"), OsStr::new("../../etc/passwd"), &ME).unwrap();
    assert_eq!(bench.lower_names(), ["in"]);
    assert_eq!(bench.names(""), ["in", "out"]);
    assert_eq!(bench.reasons(), [Reason::Symlink]);
    let node = bench.node("out").unwrap();
    assert_eq!(bench.view().read_symlink(node).unwrap(), "../../etc/passwd");
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower_names(), ["in", "out"]);
}

#[test]
fn removing_a_directory_of_held_deletions_hides_it_until_they_land() {
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.unlink("d/a");
    let (parent, name) = bench.parent("d");
    bench.view().rmdir(parent, name, &ME).unwrap();
    assert!(bench.names("").is_empty());
    assert_eq!(bench.lower("d/a"), Some(lines(100)));
    bench.confirm(&[bench.id_of("d/a")]).unwrap();
    assert!(bench.lower_names().is_empty());
    assert!(bench.held().is_empty());
}

/// The kernel releases a handle some time after the close that landed the file; rsync sets times and mode in between.
#[test]
fn attributes_set_between_a_landing_and_its_release_stay() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let bench = Bench::new();
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, b"new\n").unwrap();
    bench.view().flush(handle, &ME).unwrap();
    let keep = SetAttributes::NOTHING;
    let time = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let (times, mode) =
        (SetAttributes { mtime: SetTime::At(time), ..keep }, SetAttributes { mode: Some(0o640), ..keep });
    for set in [times, mode] {
        bench.view().set_attributes(bench.node("a").unwrap(), None, &set, &ME).unwrap();
    }
    bench.view().release(handle).unwrap();
    let meta = std::fs::metadata(bench.lower_path("a")).unwrap();
    assert_eq!((meta.permissions().mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0o640, 1_000_000_000, 5));
}

/// Waits until what changes from now on has a later ctime than `time`.
fn wait_for_later_ctime(bench: &Bench, time: Timestamp) {
    let later = |file: std::fs::File| Meta::of(file.as_fd()).unwrap().ctime > time;
    while !later(std::fs::File::create(bench.dir.join("clock")).unwrap()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_ctime_does_not_show_that_a_file_landed() {
    let bench = Bench::new();
    bench.put("old", &lines(100));
    let seen = |path: &str| bench.view().attributes(bench.node(path).unwrap()).unwrap().meta.ctime;
    let below = |path: &str| Meta::of(std::fs::File::open(bench.lower_path(path)).unwrap().as_fd()).unwrap().ctime;
    let lands = |path: &str, content: &str| {
        let handle = bench.open_for_save(path);
        bench.view().write(handle, 0, content.as_bytes()).unwrap();
        let written = seen(path);
        wait_for_later_ctime(&bench, written);
        bench.close(handle);
        assert_eq!(bench.lower(path).as_deref(), Some(content));
        assert!(below(path) > written, "{path}: lower's moves");
        assert_eq!(seen(path), written, "{path}");
    };
    lands("new", "new\n");
    lands("old", &changed(100, 3));
    // The same bytes as below: lower only gets the times.
    lands("old", &changed(100, 3));

    let handle = bench.open_for_save("old");
    bench.view().write(handle, 0, changed(100, 80).as_bytes()).unwrap();
    bench.close(handle);
    let held = seen("old");
    wait_for_later_ctime(&bench, held);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!((seen("old"), bench.lower("old")), (held, Some(changed(100, 80))), "confirmed");

    wait_for_later_ctime(&bench, below("old"));
    for path in ["new", "old"] {
        std::fs::write(bench.lower_path(path), "of another\n").unwrap();
        assert_eq!(seen(path), below(path), "what others do shows");
    }
}

#[test]
fn a_rename_and_a_change_of_mode_move_the_ctime_of_what_landed() {
    let bench = Bench::new();
    bench.put("target", &lines(100));
    let seen = |path: &str| bench.view().attributes(bench.node(path).unwrap()).unwrap().meta.ctime;
    bench.save("a", &changed(100, 2));
    let mut before = seen("a");
    for (from, to) in [("a", "b"), ("b", "target")] {
        wait_for_later_ctime(&bench, before);
        bench.rename(from, to);
        let now = seen(to);
        assert!(now > before, "{from} to {to}");
        before = now;
    }
    wait_for_later_ctime(&bench, before);
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node("target").unwrap(), None, &set, &ME).unwrap();
    assert!(seen("target") > before);
}

/// As a reader may between its look and its open.
#[test]
fn an_open_that_found_a_file_before_another_was_renamed_over_it_gets_what_it_found() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    for changed in [changed(100, 2), changed(100, 60), changed(100, 61)] {
        let (node, before) = (bench.node("a").unwrap(), bench.read("a").unwrap());
        bench.save("temp", &changed);
        bench.rename("temp", "a");
        assert_eq!(bench.view().attributes(node).unwrap().meta.links, 0);
        let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle;
        assert_eq!(bench.view().read(handle, 0, 1 << 20).unwrap(), before.into_bytes());
        bench.view().release(handle).unwrap();
        assert_eq!(bench.read("a"), Some(changed));
    }
}

/// As `cp -a` does with hard links: the name is removed and made anew.
#[test]
fn a_hard_link_can_take_the_place_of_a_held_deletion() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.unlink("b");
    let link = || bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).map(|_| ());
    link().unwrap();
    assert!(bench.held().is_empty(), "the same content as before: {:?}", bench.held());
    bench.unlink("b");
    bench.save("a", &changed(100, 60));
    link().unwrap();
    assert_eq!((bench.read("b"), bench.lower("b")), (Some(changed(100, 60)), Some(lines(100))));
}

/// As GNU tar does where a symlink is to come that leads out of its directory.
#[test]
fn an_empty_file_is_known_again_by_its_number() {
    let bench = Bench::new();
    let (entry, opened) = {
        let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_EXCL);
        bench.view().create(ROOT, OsStr::new("a"), 0, flags, &ME).unwrap()
    };
    bench.close(opened.handle);
    assert_eq!(bench.lower("a"), Some(String::new()));
    let again = bench.view().lookup(ROOT, OsStr::new("a")).unwrap();
    assert_eq!(again.attributes.inode, entry.attributes.inode);
}

/// As git does at every switch to a branch without the directory and back.
#[test]
fn a_directory_held_as_removed_can_be_made_anew() {
    let mut bench = Bench::new();
    bench.put("d/e/a", &lines(100));
    bench.put("d/b", &lines(100));
    remove_tree(&bench);
    assert!(bench.names("").is_empty());
    for dir in ["d", "d/e"] {
        let (parent, name) = bench.parent(dir);
        let made = bench.view().mkdir(parent, name, 0o700, &ME).unwrap();
        assert_eq!(made.attributes.meta.mode, 0o700, "the mode is that of the new directory");
    }
    assert_eq!(bench.names("d"), ["e"]);
    bench.remount();
    assert_eq!((bench.names("d"), bench.names("d/e")), (vec!["e".to_owned()], vec![]));
    bench.save("d/e/a", &lines(100));
    bench.save("d/b", &lines(101));
    assert_eq!((bench.lower("d/e/a"), bench.lower("d/b")), (Some(lines(100)), Some(lines(101))));
    assert!(bench.held().is_empty(), "{:?}", bench.held());
}

#[test]
fn what_takes_the_place_of_a_directory_lands_with_the_deletions_in_it() {
    let bench = Bench::new();
    bench.put("d/e/a", &lines(100));
    bench.put("d/b", &lines(100));
    remove_tree(&bench);
    bench.save("d", "once a directory\n");
    assert_eq!(bench.lower("d/b"), Some(lines(100)));
    let file = bench.held().into_iter().find(|row| row.path().as_bytes() == b"d").unwrap().held.unwrap();
    assert_eq!((file.kind, file.reasons.contains(&Reason::Type)), (ChangeKind::Type, true));
    bench.confirm_all();
    assert_eq!((bench.lower("d"), bench.lower_names()), (Some("once a directory\n".to_owned()), vec!["d".to_owned()]));
    assert!(bench.held().is_empty(), "{:?}", bench.held());
}

#[test]
fn what_took_the_place_of_a_directory_goes_and_the_directory_stays_hidden() {
    let bench = Bench::new();
    bench.put("d/e/a", &lines(100));
    bench.put("d/b", &lines(100));
    remove_tree(&bench);
    bench.save("d", "once a directory\n");
    bench.unlink("d");
    assert!(bench.names("").is_empty());
    let (parent, name) = bench.parent("d");
    bench.view().mkdir(parent, name, 0o755, &ME).unwrap();
    assert!(bench.names("d").is_empty());
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.view().discard(&ids, &HOW.review).unwrap();
    assert_eq!((bench.read("d/e/a"), bench.read("d/b")), (Some(lines(100)), Some(lines(100))));
}

/// Removes `d`, with `d/e/a` and `d/b`, as `rm -r` does.
fn remove_tree(bench: &Bench) {
    bench.unlink("d/e/a");
    bench.unlink("d/b");
    for dir in ["d/e", "d"] {
        let (parent, name) = bench.parent(dir);
        bench.view().rmdir(parent, name, &ME).unwrap();
    }
}

#[test]
fn recovery_of_a_clean_state_does_nothing() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    bench.save("a", &changed(100, 60));
    assert!(bench.remount().is_nothing());
    assert!(bench.remount().is_nothing());
    assert!(bench.view().flush_all(Some(Duration::ZERO)).is_ok());
}
