//! Directories that somebody removes below while something is held or being written in them.

use std::fs;

use super::*;
use crate::sys::file::FileKind;

impl Bench {
    /// A held rewrite of `path`, whose outermost directory somebody has removed.
    fn gone(path: &str) -> Self {
        let bench = Self::new();
        bench.put(path, &lines(100));
        bench.save(path, &changed(100, 60));
        bench.remove_below(path.split('/').next().unwrap());
        bench
    }

    pub(super) fn remove_below(&self, dir: &str) {
        fs::remove_dir_all(self.lower_path(dir)).unwrap();
    }

    fn force(&self, path: &str) -> std::result::Result<(), ErrorCode> {
        let how = ConfirmHow { force: true, ..HOW.clone() };
        self.view().confirm(&[self.id_of(path)], &how).map(|_| ()).map_err(|err| err.code)
    }
}

fn structure(path: &str) -> (String, ChangeKind, Vec<Reason>) {
    (path.to_owned(), ChangeKind::Structure, vec![Reason::External])
}

fn held(path: &str, kind: ChangeKind, reasons: &[Reason]) -> (String, ChangeKind, Vec<Reason>) {
    (path.to_owned(), kind, reasons.to_vec())
}

fn rewrite(path: &str) -> (String, ChangeKind, Vec<Reason>) {
    held(path, ChangeKind::Modify, &[Reason::Size])
}

#[test]
fn what_is_held_in_a_directory_that_is_removed_below_goes_on_being_seen() {
    let mut bench = Bench::new();
    bench.put("src/a.rs", &lines(100));
    bench.put("src/b.rs", "b\n");
    fs::set_permissions(&bench.dir, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    bench.save("src/a.rs", &changed(100, 60));
    bench.remove_below("src");
    assert_eq!((bench.names(""), bench.names("src")), (vec!["src".to_owned()], vec!["a.rs".to_owned()]));
    let told = [structure("src"), rewrite("src/a.rs")];
    let held = |bench: &Bench| bench.held().into_iter().map(|row| row.held.unwrap()).collect::<Vec<_>>();
    let ids = held(&bench);
    assert_eq!(ids[0].writer, ids[1].writer);
    for _ in 0..2 {
        assert_eq!(bench.waiting(), told);
        assert_eq!((bench.meta("src").kind, bench.meta("src").mode), (FileKind::Directory, 0o750));
        assert_eq!(bench.meta("src").links, 2);
        assert_eq!(bench.read("src/a.rs"), Some(changed(100, 60)));
        assert_eq!(bench.read("src/b.rs"), None);
        assert_eq!(bench.lower_names(), [""; 0]);
        assert_eq!(held(&bench), ids);
        bench.check();
        bench.remount();
    }
}

#[test]
fn a_look_at_any_of_several_directories_that_are_gone_finds_it() {
    let looks: [fn(&Bench); 4] = [
        |bench| assert_eq!(bench.read("a/b/c.rs"), Some(changed(100, 60))),
        |bench| assert_eq!(bench.names("a/b"), ["c.rs"]),
        |bench| assert_eq!(bench.names("a"), ["b"]),
        |bench| assert_eq!(bench.names(""), ["a"]),
    ];
    for look in looks {
        let mut bench = Bench::gone("a/b/c.rs");
        look(&bench);
        bench.remount();
        looks.iter().for_each(|look| look(&bench));
        assert_eq!(bench.waiting(), [structure("a"), structure("a/b"), rewrite("a/b/c.rs")]);
        bench.check();
    }
}

/// Such a look makes the directories, which the discard had not found.
#[test]
fn none_is_left_where_others_look_while_the_last_change_in_it_is_discarded() {
    let bench = Bench::new();
    for round in 0..40 {
        bench.put("a/b/c.rs", &lines(100));
        bench.save("a/b/c.rs", &changed(100, 60));
        let id = bench.id_of("a/b/c.rs");
        bench.remove_below("a");
        let view = bench.view();
        let (dir, is_done) = (RelPath::parse(b"a/b").unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    view.look_at_dir(&dir).unwrap();
                }
            });
            let discarded = view.discard(&[id], &Review::default());
            is_done.store(true, Ordering::SeqCst);
            discarded.unwrap();
        });
        assert_eq!(bench.waiting(), [], "round {round}");
        bench.check();
    }
}

/// No look comes between the removal and the request: the kernel has the directory in memory.
#[test]
fn who_is_in_the_directory_goes_on_as_if_it_were_there() {
    type Act = fn(&Bench, NodeId, &OsStr) -> Result<()>;
    let acts: [Act; 4] = [
        |bench, dir, name| {
            let made = bench.view().create(dir, name, 0o644, OpenFlags::from_raw(libc::O_WRONLY), &ME);
            made.map(|(_, opened)| bench.close(opened.handle))
        },
        |bench, dir, name| bench.view().mkdir(dir, name, 0o755, &ME).map(|_| ()),
        |bench, dir, name| bench.view().symlink(dir, name, OsStr::new("a.rs"), &ME).map(|_| ()),
        |bench, dir, name| bench.view().rename(ROOT, OsStr::new("file"), dir, name, RenameFlags::empty(), &ME),
    ];
    for act in acts {
        let bench = Bench::new();
        bench.put("src/a.rs", &lines(100));
        bench.put("other/keep", "k\n");
        bench.put("file", "f\n");
        bench.save("src/a.rs", &changed(100, 60));
        let [src, other] = ["src", "other"].map(|dir| bench.node(dir).unwrap());
        ["src", "other"].into_iter().for_each(|dir| bench.remove_below(dir));
        // In one that nothing is held in there is no place any more.
        assert_eq!(act(&bench, other, OsStr::new("new")).unwrap_err().code(), libc::ENOENT);
        act(&bench, src, OsStr::new("new")).unwrap();
        assert_eq!(bench.names("src"), ["a.rs", "new"]);
        assert!(!bench.lower_path("src").exists());
        bench.check();
    }
}

#[test]
fn what_is_being_written_while_its_directory_is_removed_is_held_at_the_close() {
    let mut bench = Bench::new();
    bench.put("src/large", &lines(100));
    bench.put("src/small", &lines(100));
    let save = |path: &str, content: &str| {
        let handle = bench.open_for_save(path);
        bench.view().write(handle, 0, content.as_bytes()).unwrap();
        handle
    };
    let handles = [save("src/large", &changed(100, 60)), save("src/small", &changed(100, 1)), save("src/new", "new\n")];
    bench.remove_below("src");
    handles.into_iter().for_each(|handle| bench.close(handle));
    for _ in 0..2 {
        assert_eq!(bench.names("src"), ["large", "new", "small"]);
        assert_eq!(bench.read("src/large"), Some(changed(100, 60)));
        assert_eq!(bench.read("src/small"), Some(changed(100, 1)));
        assert_eq!(bench.read("src/new"), Some("new\n".to_owned()));
        assert_eq!(bench.lower_names(), [""; 0]);
        bench.check();
        bench.remount();
    }
    let reasons = |path: &str| bench.waiting().into_iter().find(|(held, ..)| held == path).unwrap().2;
    assert_eq!(reasons("src/new"), [Reason::Parent]);
    assert_eq!(reasons("src/small"), [Reason::Stale, Reason::Parent]);
}

#[test]
fn what_is_being_written_is_seen_in_the_directory_that_is_removed() {
    let mut bench = Bench::new();
    bench.put("src/keep", "k\n");
    let handle = bench.open_for_save("src/new");
    bench.view().write(handle, 0, b"half\n").unwrap();
    bench.remove_below("src");
    assert_eq!((bench.names(""), bench.names("src")), (vec!["src".to_owned()], vec!["new".to_owned()]));
    bench.remount();
    assert_eq!(bench.read("src/new"), Some("half\n".to_owned()));
    let interrupted = held("src/new", ChangeKind::Create, &[Reason::Parent, Reason::Interrupted]);
    assert_eq!(bench.waiting(), [structure("src"), interrupted]);
}

#[test]
fn all_that_is_done_in_a_held_directory_is_done_in_it() {
    let mut bench = Bench::gone("src/a.rs");
    bench.save("src/new", "new\n");
    bench.mkdir("src/sub");
    bench.rename("src/a.rs", "src/sub/b.rs");
    bench.rename("src", "lib");
    assert_eq!(
        (bench.names(""), bench.names("lib")),
        (vec!["lib".to_owned()], ["new", "sub"].map(str::to_owned).into())
    );
    bench.remount();
    assert_eq!(bench.read("lib/sub/b.rs"), Some(changed(100, 60)));
    assert_eq!(bench.read("lib/new"), Some("new\n".to_owned()));
    bench.unlink("lib/sub/b.rs");
    bench.rmdir("lib/sub").unwrap();
    bench.unlink("lib/new");
    // As any other it stays until somebody removes it.
    assert_eq!(bench.names("lib"), [""; 0]);
    bench.rmdir("lib").unwrap();
    assert_eq!((bench.names(""), bench.waiting()), (vec![], vec![]));
    assert_eq!(bench.stage_files(), 0);
    bench.check();
}

#[test]
fn it_ends_when_lower_has_the_directory_again() {
    let mut bench = Bench::gone("src/a.rs");
    bench.save("src/new", "new\n");
    bench.put("src/a.rs", &lines(100));
    bench.put("src/b.rs", "b\n");
    for _ in 0..2 {
        assert_eq!(bench.names("src"), ["a.rs", "b.rs", "new"]);
        assert_eq!(bench.read("src/b.rs"), Some("b\n".to_owned()));
        assert_eq!(bench.read("src/a.rs"), Some(changed(100, 60)));
        assert_eq!(bench.waiting(), [rewrite("src/a.rs"), held("src/new", ChangeKind::Create, &[Reason::Parent])]);
        bench.check();
        bench.remount();
    }
    bench.confirm(&[bench.id_of("src/new")]).unwrap();
    assert_eq!(bench.lower("src/new"), Some("new\n".to_owned()));
}

#[test]
fn of_several_the_outer_ones_end_with_those_that_are_back() {
    let bench = Bench::gone("a/b/c.rs");
    assert_eq!(bench.names("a/b"), ["c.rs"]);
    bench.put("a/other", "o\n");
    assert_eq!(bench.names("a"), ["b", "other"]);
    assert_eq!(bench.waiting(), [structure("a/b"), rewrite("a/b/c.rs")]);
    bench.put("a/b/d", "d\n");
    assert_eq!(bench.names("a/b"), ["c.rs", "d"]);
    assert_eq!(bench.waiting(), [rewrite("a/b/c.rs")]);
    bench.check();
}

#[test]
fn who_stands_in_it_goes_on_standing_there() {
    let bench = Bench::new();
    bench.put("src/a.rs", &lines(100));
    bench.save("src/a.rs", &changed(100, 60));
    let node = bench.node("src").unwrap();
    bench.remove_below("src");
    assert_eq!(bench.node("src").unwrap(), node);
    bench.put("src/b.rs", "b\n");
    assert_eq!(bench.node("src").unwrap(), node);
    assert_eq!(bench.view().list(node).unwrap().len(), 2);
}

#[test]
fn it_goes_with_the_last_change_in_it_that_is_discarded() {
    let mut bench = Bench::gone("a/b/c.rs");
    bench.save("a/new", "new\n");
    bench.discard("a/b/c.rs");
    assert_eq!((bench.names(""), bench.names("a")), (vec!["a".to_owned()], vec!["new".to_owned()]));
    bench.discard("a/new");
    assert_eq!((bench.names(""), bench.waiting()), (vec![], vec![]));
    bench.check();
    bench.remount();
    assert_eq!((bench.names(""), bench.stage_files()), (vec![], 0));
}

#[test]
fn a_discard_in_it_is_undone() {
    let bench = Bench::gone("src/a.rs");
    bench.save("src/new", "new\n");
    let outcomes =
        bench.view().discard(&[bench.id_of("src/new"), bench.id_of("src/a.rs")], &Review::default()).unwrap();
    assert_eq!(bench.names(""), [""; 0]);
    assert_eq!(outcomes.len(), 3);
    bench.insist_on_undo(&bench.latest()).unwrap();
    assert_eq!(bench.names("src"), ["a.rs", "new"]);
    bench.check();
}

#[test]
fn a_confirm_in_it_takes_it_along_and_is_refused_as_long_as_there_is_a_conflict() {
    let bench = Bench::gone("a/b/c.rs");
    bench.save("a/b/new", "new\n");
    assert_eq!(bench.confirm(&[bench.id_of("a/b/c.rs")]).unwrap_err(), ErrorCode::Conflict);
    assert_eq!((bench.lower_names(), bench.names("a/b")), (vec![], ["c.rs", "new"].map(str::to_owned).into()));
    assert_eq!(bench.applied("a/b/new"), ["a", "a/b", "a/b/new"]);
    assert_eq!(bench.waiting(), [rewrite("a/b/c.rs")]);
    assert_eq!(bench.lower("a/b/new"), Some("new\n".to_owned()));
    bench.remove_below("a");
    assert_eq!(bench.names("a/b"), ["c.rs"]);
    bench.force("a/b/c.rs").unwrap();
    assert_eq!(bench.lower("a/b/c.rs"), Some(changed(100, 60)));
    assert_eq!((bench.names("a/b"), bench.waiting()), (vec!["c.rs".to_owned()], vec![]));
    bench.check();
}

#[test]
fn deletions_alone_do_not_bring_a_directory_back() {
    let mut bench = Bench::new();
    bench.put("src/gone", &lines(100));
    bench.put("src/a.rs", &lines(100));
    bench.unlink("src/gone");
    bench.save("src/a.rs", &changed(100, 60));
    bench.remove_below("src");
    assert_eq!(bench.names("src"), ["a.rs"]);
    // What nobody sees needs no directory below, and is in nobody's way.
    assert_eq!(bench.applied("src/gone"), ["src/gone"]);
    assert_eq!(bench.lower_names(), [""; 0]);
    bench.put("src/gone", &lines(100));
    bench.unlink("src/gone");
    bench.remove_below("src");
    assert_eq!(bench.names("src"), ["a.rs"]);
    bench.discard("src/a.rs");
    let deletion = [held("src/gone", ChangeKind::Delete, &[Reason::Size])];
    assert_eq!((bench.names(""), bench.waiting()), (vec![], deletion.to_vec()));
    bench.remount();
    assert_eq!((bench.names(""), bench.waiting()), (vec![], deletion.to_vec()));
    bench.check();
}

#[test]
fn a_program_removes_it_with_deletions_that_wait_in_it() {
    let bench = Bench::new();
    bench.put("src/gone", &lines(100));
    bench.put("src/a.rs", &lines(100));
    bench.unlink("src/gone");
    bench.save("src/a.rs", &changed(100, 60));
    bench.remove_below("src");
    bench.unlink("src/a.rs");
    bench.rmdir("src").unwrap();
    assert_eq!(bench.names(""), [""; 0]);
    assert_eq!(bench.waiting(), [held("src/gone", ChangeKind::Delete, &[Reason::Size])]);
    bench.check();
}

#[test]
fn a_file_in_the_place_of_the_directory_is_shown_and_what_is_held_comes_back_once_it_is_gone() {
    for is_looked_at in [false, true] {
        let bench = Bench::gone("a/b/c.rs");
        if is_looked_at {
            assert_eq!(bench.names("a/b"), ["c.rs"]);
        }
        bench.put("a", "a file\n");
        assert_eq!((bench.names(""), bench.read("a")), (vec!["a".to_owned()], Some("a file\n".to_owned())));
        assert!(bench.waiting().contains(&rewrite("a/b/c.rs")));
        assert_eq!(bench.force("a/b/c.rs").unwrap_err(), ErrorCode::Conflict);
        fs::remove_file(bench.lower_path("a")).unwrap();
        assert_eq!(bench.read("a/b/c.rs"), Some(changed(100, 60)));
        bench.check();
    }
}

#[test]
fn a_backup_is_restored_into_a_directory_that_was_removed() {
    let bench = Bench::new();
    bench.put("src/a.rs", &lines(100));
    bench.put("src/b.rs", &lines(100));
    bench.save("src/a.rs", &changed(100, 60));
    bench.save("src/b.rs", &changed(100, 1));
    bench.remove_below("src");
    assert_eq!(bench.names("src"), ["a.rs"]);
    let backup =
        bench.view().store().backups().unwrap().into_iter().find(|backup| backup.path.to_string() == "src/b.rs");
    bench.view().rollback(&[backup.unwrap()], &RollbackHow { force: true, ..RollbackHow::default() }).unwrap();
    assert_eq!(bench.lower("src/b.rs"), Some(lines(100)));
    assert_eq!(
        (bench.names("src"), bench.waiting()),
        (["a.rs", "b.rs"].map(str::to_owned).into(), vec![rewrite("src/a.rs")])
    );
    bench.check();
}

#[test]
fn where_nothing_can_be_recorded_looks_go_on_and_tell_what_lower_has() {
    let bench = Bench::gone("src/a.rs");
    bench.view().stop_writing("a test");
    assert_eq!(bench.names(""), [""; 0]);
    let looked = bench.view().lookup(ROOT, OsStr::new("src")).map(|_| ()).unwrap_err();
    assert_eq!(looked.code(), libc::ENOENT);
    assert_eq!(bench.waiting(), [rewrite("src/a.rs")]);
}

#[test]
fn rules_for_what_is_held_or_passes_there_hold_on() {
    let mut bench = Bench::new();
    let rule = |(path, action)| format!("[[rule]]\nmatch = \"/src/{path}/**\"\naction = \"{action}\"\n");
    bench.put(".fettle.toml", &[("gated", "hold"), ("free", "pass")].map(rule).concat());
    bench.remount();
    bench.put("src/gated/g", "g\n");
    bench.put("src/free/f", "f\n");
    bench.save("src/gated/g", "other\n");
    bench.remove_below("src");
    assert_eq!((bench.names("src"), bench.names("src/gated")), (vec!["gated".to_owned()], vec!["g".to_owned()]));
    bench.save("src/gated/new", "new\n");
    bench.mkdir("src/free");
    bench.save("src/free/f", "f\n");
    // Lower has no place for what would pass.
    assert_eq!(bench.lower_names(), [".fettle.toml"]);
    let told = [
        structure("src"),
        held("src/free", ChangeKind::Structure, &[Reason::Parent]),
        held("src/free/f", ChangeKind::Create, &[Reason::Parent]),
        structure("src/gated"),
        held("src/gated/g", ChangeKind::Modify, &[Reason::Rule]),
        held("src/gated/new", ChangeKind::Create, &[Reason::Rule, Reason::Parent]),
    ];
    assert_eq!(bench.waiting(), told);
    bench.check();
}

/// The directory that stands in has the node of the one that went, and by that the names of what was in it.
#[test]
fn what_was_in_a_directory_that_is_renamed_below_is_in_reach_by_its_new_path() {
    let bench = Bench::new();
    bench.put("d/held", &lines(100));
    bench.save("d/held", &"other\n".repeat(100));
    bench.save("d/fresh", "fresh\n");
    std::fs::rename(bench.lower_path("d"), bench.lower_path("away")).unwrap();
    for path in ["d", "away"] {
        bench.node(path).unwrap();
    }
    assert_eq!(bench.meta("away/fresh").size, 6);
    assert_eq!(bench.read("away/fresh").as_deref(), Some("fresh\n"));
    assert_eq!(bench.names("d"), ["held"]);
}

/// It is one change with the deletion, which nothing of lower's ends.
/// Since the directory has its old name again, the kernel has not looked at what is in it.
#[test]
fn by_its_path_what_is_held_is_read_whatever_was_cached_while_the_directory_had_another_name() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    bench.save("d/f", &changed(100, 90));
    let rename_below = |from, to| std::fs::rename(bench.lower_path(from), bench.lower_path(to)).unwrap();
    let read = |node| {
        let opened = bench.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap();
        let content = bench.view().read(opened.handle, 0, 10_000).unwrap();
        bench.close(opened.handle);
        (String::from_utf8(content).unwrap(), opened.keep_cache)
    };
    rename_below("d", "e");
    let node = bench.node("e/f").unwrap();
    assert_eq!(read(node).0, lines(100));
    rename_below("e", "d");
    bench.node("d").unwrap();
    assert_eq!(read(node), (changed(100, 90), false));
    assert_eq!(read(node), (changed(100, 90), true));
}

#[test]
fn a_directory_in_the_place_of_a_held_deletion_is_no_stand_in() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(101));
    bench.unlink("a");
    assert_eq!(bench.waiting(), [held("a", ChangeKind::Delete, &[Reason::External, Reason::Size])]);
    bench.mkdir("a");
    bench.save("a/x", "x\n");
    assert_shows(&mut bench, "a", &[Reason::External, Reason::Parent, Reason::Size], &[Reason::Parent]);
}

#[test]
fn a_stand_in_that_takes_the_place_of_a_held_deletion_is_none_any_more() {
    let mut bench = Bench::gone("src/x");
    bench.put("b", &lines(100));
    bench.unlink("b");
    assert_eq!(bench.names(""), ["src"]);
    bench.rename("src", "b");
    assert_shows(&mut bench, "b", &[Reason::External, Reason::Parent, Reason::Size], &[Reason::Size]);
}

/// A held directory at `path`, with `x` in it and lower's file in its place, is shown for good.
fn assert_shows(bench: &mut Bench, path: &str, dir: &[Reason], x: &[Reason]) {
    for _ in 0..2 {
        assert_eq!((bench.names(""), bench.names(path)), (vec![path.to_owned()], vec!["x".to_owned()]));
        let told = |(path, _, reasons): (String, ChangeKind, Vec<Reason>)| (path, reasons);
        let waiting: Vec<_> = bench.waiting().into_iter().map(told).collect();
        assert_eq!(waiting, [(path.to_owned(), dir.to_vec()), (format!("{path}/x"), x.to_vec())]);
        bench.check();
        bench.remount();
    }
}
