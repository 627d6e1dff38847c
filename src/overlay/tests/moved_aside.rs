//! What a path had was moved aside before something else came there: until that is reviewed the project has it at its path,
//! by whatever call the new content comes.

use std::collections::BTreeMap;

use super::*;

type Act = (&'static str, fn(&Bench));

/// Where something comes.
const NEW: &str = "d/t";

/// Another name of the project's `d/t`, where it has one.
const OTHER: &str = "new other";

fn link(bench: &Bench, source: &str, path: &str) {
    let (parent, name) = bench.parent(path);
    bench.view().link(bench.node(source).unwrap(), parent, name, &ME).unwrap();
}

fn symlink(bench: &Bench, path: &str, target: &str) {
    let (parent, name) = bench.parent(path);
    bench.view().symlink(parent, name, OsStr::new(target), &ME).unwrap();
}

fn link_below(bench: &Bench) {
    std::fs::hard_link(bench.lower_path("d/t"), bench.lower_path(OTHER)).unwrap();
}

/// A project in which `d/t` is to be replaced.
fn project() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("d/t", &lines(80));
    bench.put("x", &lines(75).replace("line", "other"));
    bench.put("linked", &lines(75).replace("line", "linked"));
    std::fs::hard_link(bench.lower_path("linked"), bench.lower_path("linked2")).unwrap();
    std::os::unix::fs::symlink("x", bench.lower_path("link")).unwrap();
    bench
}

/// But for what a program makes beside, and for what it has moved aside: that is new where it is, and lands or waits.
fn below(bench: &Bench) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    scenarios::collect_lower(&bench.dir, "", &mut files);
    files.retain(|path, _| {
        !path.contains("new") && path != "e" && !["e/", "d/t."].iter().any(|beside| path.starts_with(beside))
    });
    files
}

fn waiting(bench: &Bench) -> BTreeMap<String, ChangeKind> {
    bench.held().into_iter().map(|row| (row.path().to_string(), row.held.unwrap().kind)).collect()
}

fn discard_all(bench: &Bench) {
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.view().discard(&ids, &Review::default()).unwrap();
}

/// Ways by which the project's `d/t` goes to where the view shows something else, or nothing.
const ASIDE: [Act; 11] = [
    ("a held file", |bench| {
        bench.save("d/t", &changed(80, 60));
        bench.rename("d/t", "d/t.bak");
    }),
    ("a held file, twice", |bench| {
        bench.save("d/t", &changed(80, 60));
        bench.rename("d/t", "d/t.1");
        bench.rename("d/t.1", "d/t.bak");
    }),
    ("a held file, renamed over", |bench| {
        bench.save("d/t", &changed(80, 60));
        bench.rename("d/t", "d/t.bak");
        bench.save("new over", &changed(80, 70));
        bench.rename("new over", "d/t.bak");
    }),
    ("a held file with another name", |bench| {
        bench.save("d/t", &changed(80, 60));
        link(bench, "d/t", "d/t.also");
        bench.rename("d/t", "d/t.bak");
    }),
    ("what is held there", |bench| {
        bench.rename("d/t", "d/t.bak");
        bench.save("d/t.bak", &changed(80, 60));
    }),
    ("what is deleted there", |bench| {
        bench.rename("d/t", "d/t.bak");
        bench.unlink("d/t.bak");
    }),
    ("a held file with its directory", |bench| {
        bench.save("d/t", &changed(80, 60));
        bench.rename("d", "e");
        bench.mkdir("d");
    }),
    ("one name of a held file", |bench| {
        link_below(bench);
        bench.save("d/t", &changed(80, 60));
        bench.rename("d/t", "d/t.bak");
    }),
    ("one name of a file that is held by the other", |bench| {
        link_below(bench);
        bench.save(OTHER, &changed(80, 60));
        bench.rename("d/t", "d/t.1");
        bench.rename("d/t.1", "d/t.bak");
    }),
    ("one name of a held file that has one more", |bench| {
        link_below(bench);
        bench.save("d/t", &changed(80, 60));
        link(bench, "d/t", "d/t.also");
        bench.rename("d/t", "d/t.bak");
    }),
    ("one name of a held file with its directory", |bench| {
        link_below(bench);
        bench.save("d/t", &changed(80, 60));
        bench.rename("d", "e");
        bench.mkdir("d");
    }),
];

/// Ways by which something comes to `d/t`.
const COMES: [Act; 11] = [
    ("written", |bench| bench.save(NEW, &lines(90).replace("line", "new"))),
    ("a file of the project", |bench| bench.rename("x", NEW)),
    ("a file of the project with a held change", |bench| {
        bench.save("x", &lines(75).replace("line", "rewritten"));
        bench.rename("x", NEW);
    }),
    ("a new file", |bench| {
        bench.save("new", &lines(90).replace("line", "new"));
        bench.rename("new", NEW);
    }),
    ("a new file that is still open", |bench| {
        let handle = bench.open_for_save("new");
        bench.view().write(handle, 0, lines(90).replace("line", "new").as_bytes()).unwrap();
        bench.view().flush(handle, &ME).unwrap();
        bench.rename("new", NEW);
        bench.close(handle);
    }),
    ("a new file that is written to", |bench| {
        let handle = bench.open_for_save("new");
        bench.view().write(handle, 0, lines(90).replace("line", "new").as_bytes()).unwrap();
        bench.rename("new", NEW);
        bench.close(handle);
    }),
    ("one name of a file", |bench| bench.rename("linked2", NEW)),
    ("one name of a file with a held change", |bench| {
        bench.save("linked", &lines(75).replace("line", "rewritten"));
        bench.rename("linked2", NEW);
    }),
    ("a link", |bench| link(bench, "x", NEW)),
    ("a symlink", |bench| bench.rename("link", NEW)),
    ("a new symlink", |bench| {
        symlink(bench, "new link", "../x");
        bench.rename("new link", NEW);
    }),
];

#[test]
fn what_was_moved_aside_with_something_held_is_below_until_what_comes_is_reviewed() {
    for (how, aside) in ASIDE {
        for (comes_how, comes) in COMES {
            let mut bench = project();
            let before = below(&bench);
            aside(&bench);
            comes(&bench);
            let waits = waiting(&bench);
            assert!(
                matches!(waits.get(NEW), Some(ChangeKind::Modify | ChangeKind::Type)),
                "{how}, {comes_how}: {waits:?}"
            );
            // What was moved aside is new where it is, or nowhere.
            let others = waits.iter().filter(|(path, _)| path.contains("/t") && *path != NEW);
            others.for_each(|(path, kind)| assert_eq!(*kind, ChangeKind::Create, "{how}, {comes_how}: {path}"));
            assert_eq!(bench.lower(NEW), Some(lines(80)), "{how}, {comes_how}");
            bench.check_past();
            bench.remount();
            assert_eq!(waiting(&bench), waits, "{how}, {comes_how}");
            discard_all(&bench);
            assert_eq!((below(&bench), waiting(&bench)), (before, BTreeMap::new()), "{how}, {comes_how}");
            assert_eq!(bench.read(NEW), Some(lines(80)), "{how}, {comes_how}");
        }
    }
}

/// The path goes on being the one change: small by now, it lands.
#[test]
fn a_small_change_lands_where_a_held_file_was_moved_aside() {
    for (how, aside) in ASIDE {
        for comes in [NEW, "new"] {
            let bench = project();
            aside(&bench);
            bench.save(comes, &changed(80, 2));
            if comes != NEW {
                bench.rename(comes, NEW);
            }
            assert_eq!((bench.lower(NEW), bench.read(NEW)), (Some(changed(80, 2)), Some(changed(80, 2))), "{how}");
            let mut waits = waiting(&bench);
            waits.remove(OTHER);
            assert!(waits.values().all(|kind| *kind == ChangeKind::Create), "{how}: {waits:?}");
            let backups = bench.backups();
            assert!(backups.iter().any(|path| path == NEW), "{how}: {backups:?}");
            discard_all(&bench);
            assert_eq!(bench.lower(NEW), Some(changed(80, 2)), "{how}");
        }
    }
}

fn held_at(bench: &Bench, path: &str) -> ChangeId {
    let row = bench.held().into_iter().find(|row| row.path().to_string() == path);
    row.unwrap().held.unwrap().id
}

/// What goes back below is one name of the file; the one that it was moved to is made again with the change.
#[test]
fn a_change_goes_on_under_its_other_names_when_one_was_moved_aside() {
    const BAK: &str = "d/t.bak";
    for order in [[NEW, OTHER], [OTHER, NEW]] {
        let mut bench = project();
        link_below(&bench);
        let [new, shared] = [lines(75).replace("line", "other"), changed(80, 60)];
        bench.save(NEW, &shared);
        bench.rename(NEW, BAK);
        bench.rename("x", NEW);
        bench.remount();
        let view = |bench: &Bench| [NEW, OTHER, BAK].map(|path| bench.read(path).unwrap());
        let want = [&new, &shared, &shared].map(String::clone);
        assert_eq!((view(&bench), bench.lower(BAK)), (want.clone(), None));
        let node = bench.node(OTHER).unwrap();
        let links = bench.view().attributes(node).unwrap().meta.links;
        assert_eq!((links, bench.node(BAK).unwrap()), (2, node), "names of one file");
        for path in order {
            bench.confirm(&[held_at(&bench, path)]).unwrap();
            assert_eq!(view(&bench), want, "{path} of {order:?}");
        }
        let below = [NEW, OTHER, BAK].map(|path| bench.lower(path).unwrap());
        assert_eq!((below, waiting(&bench).into_keys().collect()), (want, vec!["x".to_owned()]), "{order:?}");
    }
}

/// Somebody has the file open for writing, whose content has landed, or is not judged yet.
#[test]
fn one_name_of_a_file_that_is_open_for_writing_is_below_when_it_was_moved_aside() {
    for is_judged in [true, false] {
        let bench = project();
        link_below(&bench);
        let handle = bench.open_for_save(OTHER);
        bench.view().write(handle, 0, changed(80, 2).as_bytes()).unwrap();
        if is_judged {
            bench.view().flush(handle, &ME).unwrap();
        }
        let below = if is_judged { changed(80, 2) } else { lines(80) };
        bench.rename(NEW, "d/t.bak");
        bench.save(NEW, &changed(80, 60));
        assert_eq!((bench.lower(NEW), waiting(&bench).len()), (Some(below), 1), "judged: {is_judged}");
        let told = |path: &str| (bench.lower(path), bench.read(path));
        for first in ["new", "NEW", "OLD"] {
            bench.view().write(handle, 0, first.as_bytes()).unwrap();
            bench.view().flush(handle, &ME).unwrap();
            let want = Some(changed(80, 2).replacen("new", first, 1));
            let want = (want.clone(), want);
            assert_eq!([told(OTHER), told("d/t.bak")], [want.clone(), want], "judged: {is_judged}");
        }
        bench.close(handle);
        assert_eq!((bench.read(NEW), waiting(&bench).len()), (Some(changed(80, 60)), 1), "judged: {is_judged}");
    }
}

/// Ways by which `d/t`, which has landed once, is held under another name and comes back.
const BACK: [Act; 8] = [
    ("held and renamed", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d/t", "d/t.bak");
        bench.rename("d/t.bak", "d/t");
    }),
    ("held where it went", |bench| {
        bench.rename("d/t", "d/t.bak");
        bench.save("d/t.bak", &changed(80, 70));
        bench.rename("d/t.bak", "d/t");
    }),
    ("by another way", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d/t", "new");
        bench.rename("new", "d/t.bak");
        bench.rename("d/t.bak", "d/t");
    }),
    ("out of its directory", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d", "e");
        bench.mkdir("d");
        bench.rename("e/t", "d/t");
    }),
    ("with another name", |bench| {
        bench.save("d/t", &changed(80, 70));
        link(bench, "d/t", "new");
        bench.rename("d/t", "d/t.bak");
        bench.rename("d/t.bak", "d/t");
    }),
    ("by its other name", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d/t", "d/t.bak");
        link(bench, "d/t.bak", "new");
        bench.rename("new", "d/t");
        bench.unlink("d/t.bak");
    }),
    ("by a link", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d/t", "d/t.bak");
        link(bench, "d/t.bak", "d/t");
        bench.unlink("d/t.bak");
    }),
    ("by a copy", |bench| {
        bench.save("d/t", &changed(80, 70));
        bench.rename("d/t", "d/t.bak");
        bench.save("d/t", &changed(80, 70));
        bench.unlink("d/t.bak");
    }),
];

#[test]
fn what_comes_back_to_where_it_landed_is_below_all_the_time() {
    for window in ["0", "60s", "session"] {
        for (how, back) in BACK {
            let mut bench = Bench::with(&[(Key::Window, window)]);
            bench.put("d/t", &lines(80));
            bench.save("d/t", &changed(80, 2));
            let before = below(&bench);
            back(&bench);
            let told = format!("{how}, window {window}");
            assert_eq!((below(&bench), bench.read(NEW)), (before.clone(), Some(changed(80, 70))), "{told}");
            assert_eq!(waiting(&bench).get(NEW), Some(&ChangeKind::Modify), "{told}");
            bench.remount();
            discard_all(&bench);
            assert_eq!((below(&bench), bench.read(NEW)), (before, Some(changed(80, 2))), "{told}");
        }
    }
}

#[test]
fn what_comes_back_as_it_went_is_the_same_file() {
    use std::os::unix::fs::MetadataExt;
    for window in ["0", "60s", "session"] {
        let bench = Bench::with(&[(Key::Window, window)]);
        bench.put("d/t", &lines(80));
        bench.save("d/t", &changed(80, 2));
        let inode = || std::fs::metadata(bench.lower_path(NEW)).unwrap().ino();
        let (before, was) = (below(&bench), inode());
        bench.rename("d/t", "d/t.bak");
        bench.rename("d/t.bak", NEW);
        assert_eq!((below(&bench), inode(), waiting(&bench)), (before, was, BTreeMap::new()), "{window}");
        assert_eq!((bench.read(NEW), bench.names("d")), (Some(changed(80, 2)), vec!["t".to_owned()]), "{window}");
    }
}

/// Ways by which the project's symlink goes from `d/t`, and where it is then.
const LINK_ASIDE: [(Act, &str); 4] = [
    (("renamed", |bench| bench.rename("d/t", "d/t.bak")), "d/t.bak"),
    (
        ("renamed twice", |bench| {
            bench.rename("d/t", "d/t.1");
            bench.mkdir("e");
            bench.rename("d/t.1", "e/t");
        }),
        "e/t",
    ),
    (
        ("with its directory", |bench| {
            bench.rename("d", "e");
            bench.mkdir("d");
        }),
        "e/t",
    ),
    (
        ("held, with its directory", |bench| {
            symlink(bench, "new link", "/outside");
            bench.rename("new link", "d/t");
            bench.rename("d", "e");
            bench.mkdir("d");
        }),
        "e/t",
    ),
];

fn target(bench: &Bench, path: &str) -> Option<PathBuf> {
    std::fs::read_link(bench.lower_path(path)).ok()
}

#[test]
fn a_symlink_that_was_moved_aside_is_below_until_what_comes_is_reviewed() {
    for ((how, aside), to) in LINK_ASIDE {
        for (comes_how, comes) in COMES {
            // Symlinks in its place are judged by their targets, as files are.
            if comes_how.contains("symlink") {
                continue;
            }
            let told = format!("{how}, {comes_how}");
            let mut bench = project();
            std::fs::remove_file(bench.lower_path("d/t")).unwrap();
            std::os::unix::fs::symlink("../x", bench.lower_path("d/t")).unwrap();
            let before = below(&bench);
            aside(&bench);
            comes(&bench);
            assert_eq!(waiting(&bench).get(NEW), Some(&ChangeKind::Type), "{told}");
            assert_eq!(target(&bench, NEW), Some(PathBuf::from("../x")), "{told}");
            let is_held = how.starts_with("held");
            let copy = (!is_held).then(|| PathBuf::from("../x"));
            assert_eq!(target(&bench, to), copy, "{told}");
            let shown = bench.view().read_symlink(bench.node(to).unwrap()).unwrap();
            assert_eq!(shown, if is_held { "/outside" } else { "../x" }, "{told}");
            bench.check_past();
            bench.remount();
            discard_all(&bench);
            let mut after = below(&bench);
            after.retain(|path, _| path != to);
            assert_eq!((after, waiting(&bench)), (before, BTreeMap::new()), "{told}");
            assert_eq!(bench.view().read_symlink(bench.node(NEW).unwrap()).unwrap(), "../x", "{told}");
        }
    }
}

/// A rule for what shows below a symlink has its going and coming reviewed, and says nothing of a file.
#[test]
fn a_symlink_is_not_put_back_once_a_rule_speaks_of_what_shows_below_it() {
    for gated in ["a", "b"] {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.mkdir("dir");
        std::os::unix::fs::symlink("dir", bench.lower_path("a")).unwrap();
        bench.rename("a", "b");
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"/{gated}/**\"\naction = \"hold\"\n"));
        let lower = Tree::open(&bench.dir).unwrap();
        bench.view().set_policy(Policy::load(&lower, &RuleSource::default()).unwrap()).unwrap();
        bench.save("a", "file\n");
        assert_eq!(waiting(&bench).get("a"), Some(&ChangeKind::Type), "a rule for {gated}");
        assert_eq!(
            (target(&bench, "a"), target(&bench, "b")),
            (None, Some(PathBuf::from("dir"))),
            "a rule for {gated}"
        );
    }
}
