//! Random operations on files with several names: what must hold whichever name each is done by.
//!
//! No model of every outcome, but five things that are true of all: names of one inode show the same and are counted;
//! what the project had is in it, held or kept; nothing of that leaves it unreviewed; no path has come by more than may land
//! unreviewed; and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::policy::tier::{self, Facts, Thresholds, Verdict};
use crate::store::Operation;
use crate::sys::file::FileKind;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const CASES: u32 = 100;
const OPERATIONS_MAX: usize = 24;
const THRESHOLDS: Thresholds = Thresholds { floor: 2, ceil: 8, ratio: 0.40 };

type Name = &'static str;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// One line more is another than it was.
    Line(Name, usize),
    Rewrite(Name, usize),
    Link(Name, Name),
    Rename(Name, Name),
    Exchange(Name, Name),
    Unlink(Name),
    /// What has no content may come to stand where content was.
    MakeDir(Name),
    MakeFifo(Name),
    RemoveDir(Name),
    ConfirmAll,
    DiscardAll,
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || prop::sample::select(&NAMES[..]);
    let number = || 0..10usize;
    prop_oneof![
        8 => (name(), number()).prop_map(|(name, number)| Op::Line(name, number)),
        3 => (name(), number()).prop_map(|(name, number)| Op::Rewrite(name, number)),
        5 => (name(), name()).prop_map(|(from, to)| Op::Link(from, to)),
        6 => (name(), name()).prop_map(|(from, to)| Op::Rename(from, to)),
        3 => (name(), name()).prop_map(|(one, other)| Op::Exchange(one, other)),
        4 => name().prop_map(Op::Unlink),
        1 => name().prop_map(Op::MakeDir),
        1 => name().prop_map(Op::MakeFifo),
        1 => name().prop_map(Op::RemoveDir),
        1 => Just(Op::ConfirmAll),
        1 => Just(Op::DiscardAll),
        1 => Just(Op::Remount),
    ]
}

struct Project {
    bench: Bench,
    /// What each path may be judged against: the content it had first, or when it was last reviewed, and what it was given
    /// back of what had been renamed away from it.
    first: BTreeMap<Name, Vec<String>>,
    /// Where what a path had went to: it may come back as it was reviewed there.
    went: BTreeMap<Name, Name>,
    /// Further names that came where nothing had been, and still are where they came.
    further: BTreeSet<Name>,
    /// What the project had when the session began.
    had: Vec<String>,
    /// The same as small edits have left it, without what a person has let go.
    stays: Vec<String>,
    edits: usize,
}

fn ten_lines(of: &str) -> String {
    (0..10).map(|number| format!("{of} {number}\n")).collect()
}

impl Project {
    /// Two names of one file, a third that nobody looks up by itself, and a file of its own. Judged against the session: then
    /// nothing comes in small slices.
    fn new() -> Self {
        let flags = [
            (Key::Floor, "2"),
            (Key::Ceil, "8"),
            (Key::Ratio, "0.4"),
            (Key::Window, "session"),
            (Key::Burst, "1000000"),
        ];
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let bench = Bench::within(dir.unwrap(), &flags);
        bench.put("a", &ten_lines("shared"));
        bench.put("c", &ten_lines("own"));
        for name in ["b", "f"] {
            std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap();
        }
        let had = vec![ten_lines("shared"), ten_lines("own")];
        let first = ["a", "b", "c", "f"].map(|name| (name, vec![bench.lower(name).unwrap()])).into();
        Self { bench, first, went: BTreeMap::new(), further: BTreeSet::new(), stays: had.clone(), had, edits: 0 }
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Line(name, number) => self.edit(name, |lines, text| {
                let at = number % lines.len().max(1);
                lines.resize(lines.len().max(1), String::new());
                lines[at] = text;
            }),
            Op::Rewrite(name, number) => self.edit(name, |lines, text| {
                *lines = (0..10).map(|line| format!("{text} {number} {line}")).collect();
            }),
            // The kernel refuses it.
            Op::Link(from, _) if self.kind(from) == Some(FileKind::Directory) => {}
            Op::Link(from, to) => {
                let node = self.bench.node(from);
                let linked = node.and_then(|node| self.bench.view().link(node, ROOT, OsStr::new(to), &ME)).map(|_| ());
                if linked.is_ok() {
                    self.further.insert(to);
                }
                self.told(linked);
            }
            Op::Rename(from, to) => {
                // The kernel looks both up.
                drop((self.bench.node(from), self.bench.node(to)));
                let renamed = self.bench.try_rename(from, to);
                self.further.retain(|name| ![from, to].contains(name));
                if renamed.is_ok() && from != to {
                    self.went.insert(from, to);
                }
                self.told(renamed);
            }
            Op::Exchange(one, other) => {
                let known = [one, other].iter().all(|name| self.kind(name).is_some_and(has_content));
                self.further.retain(|name| ![one, other].contains(name));
                let (one, other) = (OsStr::new(one), OsStr::new(other));
                let exchanged = rename(self.bench.view(), (ROOT, one), (ROOT, other), RenameFlags::EXCHANGE);
                assert!(exchanged.is_ok() || !known, "{exchanged:?}");
                self.told(exchanged);
            }
            Op::Unlink(name) => {
                drop(self.bench.node(name));
                self.told(self.bench.view().unlink(ROOT, OsStr::new(name), &ME));
            }
            Op::MakeDir(name) => self.told(self.bench.view().mkdir(ROOT, OsStr::new(name), 0o755, &ME).map(drop)),
            Op::MakeFifo(name) => {
                let made = self.bench.view().mknod(ROOT, OsStr::new(name), libc::S_IFIFO | 0o600, 0, &ME);
                self.told(made.map(drop));
            }
            Op::RemoveDir(name) => {
                drop(self.bench.node(name));
                self.told(self.bench.view().rmdir(ROOT, OsStr::new(name), &ME));
            }
            Op::ConfirmAll => self.confirm_all(),
            Op::DiscardAll => {
                let ids = self.ids();
                self.bench.view().discard(&ids, &Review::default()).unwrap();
            }
            Op::Remount => drop(self.bench.remount()),
        }
    }

    fn kind(&self, name: &str) -> Option<FileKind> {
        let node = self.bench.node(name).ok()?;
        Some(self.bench.view().attributes(node).unwrap().meta.kind)
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Vec<String>, String)) {
        if !self.kind(name).is_none_or(has_content) {
            return;
        }
        self.edits += 1;
        let content = self.bench.read(name).unwrap_or_default();
        let mut lines: Vec<String> = content.lines().map(str::to_owned).collect();
        edit(&mut lines, format!("edit {}", self.edits));
        self.bench.save(name, &lines.into_iter().map(|line| line + "\n").collect::<String>());
    }

    /// What is refused for what names there are, and to be copied, is; anything else is a fault.
    fn told(&self, result: Result<()>) {
        if let Err(err) = result {
            let refused =
                [libc::ENOENT, libc::EEXIST, libc::EXDEV, libc::EISDIR, libc::ENOTDIR, libc::EPERM, libc::EBUSY];
            assert!(refused.contains(&err.code()), "{err}");
        }
    }

    fn ids(&self) -> Vec<ChangeId> {
        self.bench.held().into_iter().map(|row| row.held.unwrap().id).collect()
    }

    fn confirm_all(&mut self) {
        let (before, inodes, told) = (self.lower(), self.inodes(), self.names_told());
        self.bench.confirm(&self.ids()).unwrap();
        let after = self.lower();
        // What was deleted with a person's consent is free.
        self.first.retain(|name, _| after.contains_key(name) || !before.contains_key(name));
        for (name, content) in &after {
            if before.get(name) != Some(content) {
                let came_from = self.went.iter().filter(|(_, to)| *to == name).map(|(from, _)| *from);
                for from in came_from {
                    self.first.entry(from).and_modify(|first| first.push(content.clone()));
                }
                // Who reviews a change is told no other names that its file has below: one that came since stays as free.
                if told.contains(name) || self.first.contains_key(name) {
                    self.first.insert(name, vec![content.clone()]);
                }
            }
        }
        // So is a copy of it, where a new file was, and a further name that came since; not what else a path had, nor another
        // name of the file.
        let goes = |content: &String| {
            let taken = before.iter().filter(|(name, had)| *had == content && after.get(*name) != Some(content));
            let taken: Vec<u64> = taken.map(|(name, _)| inodes[name]).collect();
            let mut left = after.iter().filter(|(_, below)| *below == content).map(|(name, _)| name);
            let is_another = |name| inodes.get(name).is_none_or(|at| !taken.contains(at));
            let is_free = |name| !self.first.contains_key(name) && (is_another(name) || self.further.contains(name));
            left.all(|name| !taken.is_empty() && is_free(name))
        };
        self.stays.retain(|content| !goes(content));
    }

    fn names_told(&self) -> BTreeSet<Name> {
        let told: BTreeSet<String> =
            self.bench.held().iter().flat_map(|row| &row.names).map(RelPath::to_string).collect();
        NAMES.into_iter().filter(|name| told.contains(*name)).collect()
    }

    fn inodes(&self) -> BTreeMap<Name, u64> {
        let inode = |name: Name| std::fs::metadata(self.bench.lower_path(name)).ok().map(|meta| (name, meta.ino()));
        NAMES.into_iter().filter_map(inode).collect()
    }

    /// What a held change of a path gave back below, as it was under the other name.
    fn note_put_back(&mut self, before: &BTreeMap<Name, String>) {
        let held: Vec<String> = self.bench.held().iter().map(|row| row.path().to_string()).collect();
        for (name, content) in self.lower() {
            let is_back = !before.contains_key(name) && before.values().any(|other| *other == content);
            if is_back && held.iter().any(|path| path == name) {
                self.first.entry(name).and_modify(|first| first.push(content));
            }
        }
    }

    fn lower(&self) -> BTreeMap<Name, String> {
        let is_file = |name: &&str| self.bench.lower_path(name).is_file();
        NAMES.into_iter().filter(is_file).filter_map(|name| Some((name, self.bench.lower(name)?))).collect()
    }

    /// What leaves the project leaves a small edit of it behind, or is no more than may be deleted.
    fn check_stays(&mut self) {
        let lower = self.lower();
        for content in &mut self.stays {
            let is_there = lower.values().any(|below| below == content);
            let edited = lower.values().find(|below| may_land(content, below));
            match (is_there, edited) {
                (true, _) => {}
                (false, Some(edited)) => *content = edited.clone(),
                (false, None) => assert!(may_go(content), "{content:?} left the project unreviewed"),
            }
        }
    }

    /// What an operation has put to its own names has something in common with older content of which nothing else had even a
    /// small edit.
    fn check_replaced(&self, op: Op, before: &BTreeMap<Name, String>) {
        let names = match op {
            Op::Line(name, _) | Op::Rewrite(name, _) | Op::Rename(_, name) => vec![name],
            Op::Exchange(one, other) => vec![one, other],
            _ => Vec::new(),
        };
        let now = self.lower();
        for name in names {
            let is_alone = |content: &&String| before.values().filter(|other| may_land(content, other)).count() == 1;
            let older = before.get(name).filter(|before| self.stays.contains(before)).filter(is_alone);
            if let (Some(older), Some(now)) = (older, now.get(name)) {
                let is_edit = older.lines().any(|line| now.lines().any(|other| other == line));
                assert!(is_edit || self.first.contains_key(name), "{name} became {now:?} unreviewed");
            }
        }
    }

    fn check(&self) {
        let mut nodes: BTreeMap<NodeId, Vec<(Name, String, u32)>> = BTreeMap::new();
        for name in NAMES {
            let Ok(node) = self.bench.node(name) else { continue };
            if !self.kind(name).is_some_and(has_content) {
                continue;
            }
            let links = self.bench.view().attributes(node).unwrap().meta.links;
            nodes.entry(node).or_default().push((name, self.bench.read(name).unwrap(), links));
        }
        for names in nodes.values() {
            assert!(names.iter().all(|(_, content, _)| *content == names[0].1), "names of one file: {names:?}");
            assert!(names.iter().all(|(.., links)| *links as usize == names.len()), "links: {names:?}");
        }
        let lower = self.lower();
        let backups = self.bench.view().store().backups().unwrap();
        for content in &self.had {
            let digest = Digest::of(content.as_bytes());
            let kept = backups.iter().any(|backup| backup.digest == digest);
            let held = self.bench.held().iter().any(|row| row.held.as_ref().unwrap().new == Some(digest));
            assert!(kept || held || lower.values().any(|below| below == content), "{content:?} is lost");
        }
        for (name, first) in &self.first {
            let Some(now) = lower.get(name) else { continue };
            assert!(first.iter().any(|first| may_land(first, now)), "{name} became {now:?} unreviewed");
        }
        let state = self.bench.view().state.lock();
        assert!(state.uppers.iter().all(|upper| !upper.busy), "an entry stays claimed");
        let mut rows: Vec<UpperRow> =
            state.uppers.iter().filter(|upper| upper.has_row()).map(|upper| upper.row.clone()).collect();
        drop(state);
        rows.sort_by_key(|row| row.id);
        assert_eq!(rows, self.bench.view().store().load_upper().unwrap(), "the database");
    }
}

fn has_content(kind: FileKind) -> bool {
    kind == FileKind::Regular
}

/// Whether something may be deleted with nobody looking.
fn may_go(content: &str) -> bool {
    let facts = Facts {
        identical: false,
        old: crate::diff::Side::Text,
        old_bytes: content.len() as u64,
        new: crate::diff::Side::Absent,
        measure: Some(crate::diff::measure(content.as_bytes(), b"")),
    };
    !matches!(tier::judge(&facts, &THRESHOLDS), Verdict::Hold(_))
}

/// Whether one may become the other with nobody looking.
pub(super) fn may_land(first: &str, now: &str) -> bool {
    let facts = Facts {
        identical: first == now,
        old: crate::diff::Side::Text,
        old_bytes: first.len() as u64,
        new: crate::diff::Side::Text,
        measure: Some(crate::diff::measure(first.as_bytes(), now.as_bytes())),
    };
    !matches!(tier::judge(&facts, &THRESHOLDS), Verdict::Hold(_))
}

fn check(operations: &[Op]) {
    let mut project = Project::new();
    for op in operations {
        let before = project.lower();
        project.act(*op);
        project.note_put_back(&before);
        project.check_replaced(*op, &before);
        project.check_stays();
        project.check();
    }
}

#[test]
fn whichever_name_a_file_is_changed_by_nothing_is_lost_or_lands_unreviewed() {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let cases = setting("FETTLE_MODEL_CASES").map_or(CASES, |cases| cases as u32);
    let number = setting("FETTLE_MODEL_SEED").unwrap_or(1);
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_time: 5_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let lists = prop::collection::vec(op(), 1..OPERATIONS_MAX);
    let result = runner.run(&lists, |operations| {
        check(&operations);
        Ok(())
    });
    if let Err(err) = result {
        panic!("seed {number}: {err}");
    }
}

/// What a person has let go of where it was is free where a new file had become a copy of it. So is a copy of what a small
/// edit of goes on.
#[test]
fn what_a_new_file_became_by_an_exchange_is_free_where_its_original_was_reviewed() {
    let made = || [Op::Line("d", 0), Op::Exchange("c", "d")].into_iter();
    let goes = [Op::Unlink("d"), Op::Rewrite("d", 0), Op::Exchange("a", "d")];
    for last in goes {
        check(&made().chain([Op::ConfirmAll, last]).collect::<Vec<_>>());
    }
    check(&made().chain([Op::Line("c", 1), Op::Rename("a", "d")]).collect::<Vec<_>>());
    check(&[Op::Line("e", 0), Op::Exchange("e", "a"), Op::Line("b", 0), Op::Exchange("c", "e")]);
    let parted = [Op::Exchange("f", "c"), Op::Link("f", "d"), Op::Rename("c", "f")];
    check(&parted.into_iter().chain([Op::ConfirmAll, Op::Line("a", 0), Op::Exchange("a", "d")]).collect::<Vec<_>>());
}

/// It was reviewed by another name, which still has the content.
#[test]
fn a_name_that_came_since_is_free_though_its_file_was_reviewed_by_another() {
    let reviewed = [Op::Rewrite("a", 6), Op::Rename("f", "e"), Op::ConfirmAll];
    check(&reviewed.into_iter().chain([Op::Rename("e", "d"), Op::Rewrite("e", 8)]).collect::<Vec<_>>());
    let reviewed = [Op::Remount, Op::Rewrite("b", 4), Op::Rename("b", "d"), Op::ConfirmAll];
    check(&reviewed.into_iter().chain([Op::Rename("d", "e"), Op::Link("c", "d")]).collect::<Vec<_>>());
    let reviewed = [Op::Rename("a", "e"), Op::Remount, Op::Rewrite("b", 7), Op::ConfirmAll];
    check(&reviewed.into_iter().chain([Op::Unlink("e"), Op::Line("e", 1), Op::Line("a", 0)]).collect::<Vec<_>>());
    check(&[Op::Link("c", "d"), Op::Rename("f", "c"), Op::ConfirmAll, Op::Unlink("d")]);
}

/// The rename claimed such a change by each of its names, and waited for itself.
#[test]
fn directories_change_places_in_each_of_which_a_held_file_has_a_name() {
    let bench = Bench::new();
    bench.put("a/x", &lines(100));
    bench.put("b/other", "other\n");
    std::fs::hard_link(bench.lower_path("a/x"), bench.lower_path("b/y")).unwrap();
    bench.save("a/x", &changed(100, 60));
    let (dir, name) = bench.parent("b/further");
    bench.view().link(bench.node("a/x").unwrap(), dir, name, &ME).unwrap();
    rename(bench.view(), (ROOT, OsStr::new("a")), (ROOT, OsStr::new("b")), RenameFlags::EXCHANGE).unwrap();
    let shown = ["b/x", "a/y", "a/further"].map(|path| bench.read(path));
    assert_eq!(shown, [(); 3].map(|()| Some(changed(100, 60))));
    assert_eq!((bench.read("a/other").as_deref(), bench.view().check().unwrap().0), (Some("other\n"), vec![]));
}

/// Lower has them by then, and the next landing makes none.
#[test]
fn what_landed_by_further_names_and_is_written_again_lands_by_all() {
    for has_other in [true, false] {
        for is_confirmed in [true, false] {
            let bench = Bench::with(&[(Key::Window, "0")]);
            bench.put("a", &lines(80));
            let mut names = vec!["a", "b"];
            if has_other {
                std::fs::hard_link(bench.lower_path("a"), bench.lower_path("c")).unwrap();
                names.push("c");
            }
            let handle = bench.open_for_save("a");
            let save = |content: &str| {
                bench.view().write(handle, 0, content.as_bytes()).unwrap();
                bench.view().flush(handle, &ME).unwrap();
            };
            save(&lines(80).replace("line", "held"));
            bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
            match is_confirmed {
                true => drop(bench.confirm(&[bench.only_id()]).unwrap()),
                false => save(&lines(80)),
            }
            let held = bench.lower("a").unwrap();
            for first in ["LINE", "Line"] {
                save(first);
                let want = held.replacen(&held[..4], first, 1);
                for name in &names {
                    let told = (bench.lower(name), bench.read(name), bench.held().len());
                    assert_eq!(
                        told,
                        (Some(want.clone()), Some(want.clone()), 0),
                        "{name} of {names:?}, {is_confirmed}"
                    );
                }
            }
            bench.close(handle);
            bench.unlink("a");
            assert_eq!(bench.read("b"), bench.lower("b"));
        }
    }
}

fn link(bench: &Bench, source: &str, path: &str) {
    let (parent, name) = bench.parent(path);
    bench.view().link(bench.node(source).unwrap(), parent, name, &ME).unwrap();
}

#[test]
fn a_change_that_loses_its_base_is_judged_by_what_was_under_its_further_names() {
    for is_small in [true, false] {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.put("f", &lines(100));
        bench.put("other", &lines(90));
        bench.save("tmp", &changed(100, 60));
        bench.rename("tmp", "f");
        link(&bench, "f", "further");
        // What the project had at `f` goes to `tmp`, and the change with it.
        bench.rename("f", "tmp");
        link(&bench, "tmp", "f");
        if is_small {
            bench.save("f", &changed(100, 1));
        }
        bench.rename("other", "tmp");
        let below = bench.lower("f");
        assert_eq!(below, is_small.then(|| changed(100, 1)), "{:?}", bench.held());
        assert_eq!(bench.lower("further"), below);
    }
}

/// It had come in this session, and was known as free.
#[test]
fn a_confirm_is_a_review_of_each_name_that_it_tells() {
    for is_killed in [false, true] {
        let mut bench = Bench::new();
        bench.put("f", &lines(100));
        std::fs::hard_link(bench.lower_path("f"), bench.lower_path("other")).unwrap();
        bench.save("f", &changed(100, 60));
        bench.rename("other", "further");
        // It goes back below, and the name that it had is made again when the change lands.
        bench.save("other", &lines(5));
        let ids: Vec<ChangeId> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
        bench.confirm(&ids).unwrap();
        if is_killed {
            bench.remount();
        }
        bench.rename("further", "elsewhere");
        bench.save("further", &lines(90));
        let waits: Vec<String> = bench.held().iter().map(|row| row.path().to_string()).collect();
        assert_eq!((waits, bench.lower("further")), (vec!["further".to_owned()], Some(changed(100, 60))));
    }
}

#[test]
fn a_further_name_that_a_younger_rule_has_reviewed_waits_with_the_bytes_that_were_there() {
    let mut bench = Bench::new();
    bench.put("f", &lines(100));
    bench.save("f", &changed(100, 60));
    link(&bench, "f", "further");
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"further\"\naction = \"hold\"\n");
    bench.remount();
    bench.save("f", &lines(100));
    assert_eq!((bench.held().len(), bench.lower("further")), (1, None));
    let id = bench.held()[0].held.as_ref().unwrap().id.clone();
    bench.confirm(&[id]).unwrap();
    assert_eq!((bench.held(), bench.lower("further")), (vec![], Some(lines(100))));
}

/// By however many small edits, and whichever name each is made by: what is judged against is what the name had at first.
#[test]
fn small_edits_by_one_name_after_the_other_are_one_change_of_each_in_a_session() {
    check(&[Op::Unlink("f"), Op::Line("a", 0), Op::Line("a", 1), Op::Link("a", "f"), Op::Line("f", 2)]);
    check(&[Op::Exchange("f", "c"), Op::Line("a", 2), Op::Line("a", 3), Op::Rename("a", "f"), Op::Line("f", 0)]);
    let edited = [Op::Rename("a", "e"), Op::Rewrite("c", 0), Op::Remount, Op::Line("e", 4), Op::Rename("e", "a")];
    check(&edited.into_iter().chain([Op::Line("f", 0), Op::Line("a", 1)]).collect::<Vec<_>>());
}

/// The kernel looks at the name once more by this, and by ENOENT it would not: another file may have it by now.
#[test]
fn who_links_a_file_that_has_lost_its_name_is_to_look_again() {
    let bench = Project::new().bench;
    let node = bench.node("c").unwrap();
    bench.view().unlink(ROOT, OsStr::new("c"), &ME).unwrap();
    let refused = bench.view().link(node, ROOT, OsStr::new("d"), &ME).unwrap_err();
    assert_eq!(refused.code(), libc::ESTALE);
}

/// By an answer of success the kernel gives the new name the node that it has looked up by the old one.
#[test]
fn what_is_renamed_over_a_file_goes_on_as_the_node_that_it_was_set_apart_as() {
    let bench = Bench::new();
    bench.put("b", &lines(5));
    bench.put("c", &lines(5));
    bench.save("c", &changed(100, 60));
    link(&bench, "c", "a");
    let (view, file) = (bench.view(), bench.node("a").unwrap());
    let ask = || view.rename(ROOT, "c".as_ref(), ROOT, "b".as_ref(), RenameFlags::empty(), &ME);
    assert!(matches!(ask(), Err(Error::LooksAgain)));
    let (apart, _target) = (bench.node("c").unwrap(), bench.node("b"));
    ask().unwrap();
    assert_eq!((bench.node("b").unwrap(), bench.node("a").unwrap()), (apart, file));
}

#[test]
fn a_descriptor_stays_with_a_file_that_goes_on_by_a_name_that_nobody_has_looked_up() {
    let ways: [fn(&Bench); 3] = [
        |bench| bench.rename("a", "c"),
        |bench| rename(bench.view(), bench.parent("a"), bench.parent("c"), RenameFlags::EXCHANGE).unwrap(),
        |bench| rename(bench.view(), bench.parent("c"), bench.parent("a"), RenameFlags::EXCHANGE).unwrap(),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
        bench.put("c", &changed(100, 60));
        let handle = bench.open_to_write("a");
        way(&bench);
        bench.write_and_close(handle, 0, "LINE 0\n");
        let written = lines(100).replace("line 0\n", "LINE 0\n");
        assert_eq!((bench.read("b"), bench.read("c")), (Some(written), Some(lines(100))), "way {number}");
        bench.check();
    }
}

/// What somebody has put there since is his, and no reason to refuse what a program does by the other name.
#[test]
fn a_name_goes_whose_further_one_somebody_has_taken_below() {
    for is_removed in [true, false] {
        let bench = Bench::new();
        bench.put("f", &lines(100));
        bench.put("other", &lines(90));
        bench.save("f", &changed(100, 60));
        link(&bench, "f", "g");
        bench.put("g", "somebody's\n");
        match is_removed {
            true => bench.unlink("f"),
            false => bench.rename("f", "other"),
        }
        assert_eq!(bench.node("f").unwrap_err().code(), libc::ENOENT);
        assert_eq!((bench.read("g"), bench.lower("g")), (Some(changed(100, 60)), Some("somebody's\n".to_owned())));
        assert_eq!(bench.lower("f"), Some(lines(100)), "its going waits");
        let waits: BTreeSet<String> = bench.held().iter().map(|row| row.path().to_string()).collect();
        assert!(["f", "g"].iter().all(|name| waits.contains(*name)), "{waits:?}");
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

/// What he writes next is no change of theirs.
#[test]
fn who_writes_by_a_further_name_when_the_change_is_discarded_goes_on_with_his_own_file() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    for further in ["b", "c"] {
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path(further)).unwrap();
    }
    for name in ["a", "b", "c"] {
        bench.node(name).unwrap();
    }
    bench.save("a", &changed(100, 60));
    let handle = bench.open_to_write("b");
    for taken in ["a", "b"] {
        bench.put("theirs", "theirs\n");
        std::fs::rename(bench.lower_path("theirs"), bench.lower_path(taken)).unwrap();
    }
    bench.discard_all().unwrap();
    assert_eq!(bench.read("a").as_deref(), Some("theirs\n"));
    bench.write_and_close(handle, 0, "LINE 0\n");
    let written = lines(100).replace("line 0\n", "LINE 0\n");
    let views = ["a", "b", "c"].map(|name| bench.read(name).unwrap());
    assert_eq!(views, ["theirs\n".to_owned(), "theirs\n".to_owned(), written]);
    assert_eq!(["a", "b"].map(|name| bench.lower(name).unwrap()), ["theirs\n"; 2]);
    bench.check();
}

/// Nor does what he had begun to write become a change of theirs.
#[test]
fn who_is_writing_a_change_by_a_further_name_when_it_is_discarded_goes_on_with_his_own_file() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 60));
    let handle = bench.open_for_save("b");
    bench.view().write(handle, 0, b"half\n").unwrap();
    let theirs = "theirs\n".repeat(100);
    bench.put("theirs", &theirs);
    std::fs::rename(bench.lower_path("theirs"), bench.lower_path("a")).unwrap();
    bench.discard_all().unwrap();
    bench.write_and_close(handle, 0, &format!("{theirs}one more\n"));
    let row = bench.held().remove(0);
    assert_eq!((row.path().to_string(), bench.lower("b")), ("b".to_owned(), Some(lines(100))));
    let views = ["a", "b"].map(|name| bench.read(name).unwrap());
    assert_eq!(views, [theirs.clone(), format!("{theirs}one more\n")]);
    assert_eq!(bench.lower("a"), Some(theirs));
    bench.check();
}

/// A change of `a`, whose further name `b` is the only one that the kernel knows. Discarded.
fn discarded_of_other_name(content: &str) -> (Bench, Operation) {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", content);
    bench.discard_all().unwrap();
    let discarded = bench.latest();
    bench.remount();
    bench.node("b").unwrap();
    (bench, discarded)
}

#[test]
fn what_is_held_again_is_shown_and_written_by_a_further_name_that_is_open() {
    let (bench, discarded) = discarded_of_other_name(&changed(100, 60));
    let handle = bench.open("b", libc::O_RDWR).unwrap();
    bench.undo(&discarded).unwrap();
    let shown = bench.view().read(handle, 0, 1 << 20).unwrap();
    assert_eq!(String::from_utf8(shown).unwrap(), changed(100, 60));
    bench.write_and_close(handle, 0, "NEW");
    let written = changed(100, 60).replacen("new", "NEW", 1);
    assert_eq!(["a", "b"].map(|name| bench.read(name).unwrap()), [written.clone(), written]);
    assert_eq!((bench.lower("a"), bench.held().len()), (Some(lines(100)), 1));
    bench.check();
}

/// Two changes of one file would hide each other.
#[test]
fn what_is_being_written_by_a_further_name_is_in_the_way_of_what_is_to_be_held_again() {
    let (bench, discarded) = discarded_of_other_name(&changed(100, 60));
    let handle = bench.open_to_write("b");
    bench.view().write(handle, 0, b"LINE").unwrap();
    let refusal = bench.undo(&discarded).unwrap_err();
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("being written there"), "{refusal:?}");
    bench.close(handle);
    let written = lines(100).replacen("line", "LINE", 1);
    assert_eq!(["a", "b"].map(|name| bench.lower(name).unwrap()), [&written[..]; 2]);
    assert_eq!(["a", "b"].map(|name| bench.read(name).unwrap()), [&written[..]; 2]);
    bench.check();
    bench.check();
}

/// The kernel has looked the other name up, or not, or knows it as another file's since the first name went.
#[test]
fn who_writes_when_the_change_is_discarded_goes_on_with_his_own_file_by_a_name_that_nobody_has_looked_up() {
    let remove = |bench: &Bench| std::fs::remove_file(bench.lower_path("a")).unwrap();
    let replace = |bench: &Bench| {
        bench.put("theirs", "theirs\n");
        std::fs::rename(bench.lower_path("theirs"), bench.lower_path("a")).unwrap();
    };
    let looks: [&[&str]; 3] = [&[], &["d"], &["d", "d/b"]];
    for (is_free, looks) in [true, false].into_iter().flat_map(|is_free| looks.map(|looks| (is_free, looks))) {
        let bench = Bench::new();
        bench.put("d/keep", "k\n");
        bench.put("a", &lines(100));
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("d/b")).unwrap();
        bench.save("a", &changed(100, 60));
        let [handle, later] = [(); 2].map(|()| bench.open_to_write("a"));
        if is_free {
            remove(&bench)
        } else {
            replace(&bench)
        };
        for path in looks {
            bench.node(path).unwrap();
        }
        bench.discard_all().unwrap();
        bench.write_and_close(handle, 0, "LINE 0\n");
        let written = lines(100).replace("line 0\n", "LINE 0\n");
        let theirs = (!is_free).then(|| "theirs\n".to_owned());
        assert_eq!(
            (bench.read("a"), bench.read("d/b")),
            (theirs.clone(), Some(written)),
            "{is_free}, looked at {looks:?}"
        );
        bench.unlink("d/b");
        bench.write_and_close(later, 0, "LINE 0\n");
        assert_eq!((bench.read("a"), bench.read("d/b")), (theirs, None), "{is_free}, looked at {looks:?}");
        bench.check();
    }
}
