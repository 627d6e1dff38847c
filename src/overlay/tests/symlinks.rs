//! Symlinks in the place of directories: what shows below them would be in the project unreviewed. And files there.

use super::*;

/// How a directory goes.
type Way = &'static dyn Fn(&Bench);

/// How a symlink or file comes to a path.
type Call = &'static dyn Fn(&Bench, &str) -> Result<()>;

fn tree() -> Bench {
    let bench = Bench::new();
    bench.put("src/a", &lines(60));
    bench.put("top/src/a", &lines(60));
    bench.put("small/a", "a\n");
    bench.mkdir("n");
    bench.save("n/a", &lines(60));
    bench
}

fn symlink(bench: &Bench, path: &str) -> Result<()> {
    let (parent, name) = bench.parent(path);
    bench.view().symlink(parent, name, OsStr::new("n"), &ME).map(|_| ())
}

fn link(bench: &Bench, source: &str, path: &str) -> Result<()> {
    let (parent, name) = bench.parent(path);
    bench.view().link(bench.node(source)?, parent, name, &ME).map(|_| ())
}

fn exchange(bench: &Bench, one: &str, other: &str) -> Result<()> {
    rename(bench.view(), bench.parent(one), bench.parent(other), RenameFlags::EXCHANGE)
}

/// That the one thing that waits is a symlink at `path`, for that reason; also after a remount.
#[track_caller]
fn assert_waits(mut bench: Bench, path: &str, reason: Reason) {
    assert_held(&mut bench, path, reason);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(std::fs::read_link(bench.lower_path(path)).unwrap(), std::path::Path::new("n"));
    bench.check();
}

/// The same of whatever it is.
#[track_caller]
fn assert_held(bench: &mut Bench, path: &str, reason: Reason) {
    for _ in 0..2 {
        let held = bench.held();
        let names: Vec<String> = held.iter().map(|row| row.path().to_string()).collect();
        assert_eq!((names, bench.reasons()), (vec![path.to_owned()], vec![reason]));
        assert!(std::fs::symlink_metadata(bench.lower_path(path)).is_err(), "{path} is in the project");
        bench.check();
        bench.remount();
    }
}

/// In which the directory at a path may go.
fn ways() -> [(&'static str, Way); 8] {
    [
        ("src", &|bench| bench.rename("src", "old")),
        ("src", &|bench| {
            bench.rename("src", "old");
            bench.save("src", "x\n");
            bench.unlink("src");
        }),
        ("src", &|bench| {
            bench.rename("src", "old");
            bench.mkdir("src");
            bench.rmdir("src").unwrap();
        }),
        ("small", &|bench| {
            bench.unlink("small/a");
            bench.rmdir("small").unwrap();
        }),
        ("top/src", &|bench| {
            bench.rename("top", "old");
            bench.mkdir("top");
        }),
        ("top/src", &|bench| {
            bench.rename("top", "old");
            bench.rename("old/src", "elsewhere");
            bench.mkdir("top");
        }),
        ("src", &|bench| {
            bench.mkdir("other");
            exchange(bench, "other", "src").unwrap();
            bench.rmdir("src").unwrap();
        }),
        ("src", &|bench| {
            bench.unlink("src/a");
            bench.rmdir("src").unwrap();
            // The one that was hidden.
            bench.mkdir("src");
            bench.rename("src", "old");
            bench.discard("old/a");
        }),
    ]
}

#[test]
fn a_symlink_where_a_directory_was_is_held_however_the_directory_went() {
    for (path, goes) in ways() {
        let bench = tree();
        goes(&bench);
        symlink(&bench, path).unwrap();
        assert_waits(bench, path, Reason::Type);
        // By a rename, and by a further name, of one that has landed.
        let bench = tree();
        symlink(&bench, "l").unwrap();
        goes(&bench);
        bench.rename("l", path);
        assert_waits(bench, path, Reason::Type);
        let bench = tree();
        symlink(&bench, "l").unwrap();
        goes(&bench);
        link(&bench, "l", path).unwrap();
        assert_waits(bench, path, Reason::Type);
    }
}

#[test]
fn a_file_where_a_directory_was_is_held_however_small_it_is() {
    let calls: [Call; 3] = [
        &|bench, path| {
            bench.save(path, "x\n");
            Ok(())
        },
        &|bench, path| bench.try_rename("f", path),
        &|bench, path| link(bench, "f", path),
    ];
    for (path, goes) in ways() {
        for comes in calls {
            let mut bench = tree();
            bench.save("f", "x\n");
            goes(&bench);
            comes(&bench, path).unwrap();
            assert_held(&mut bench, path, Reason::Type);
            bench.confirm(&[bench.only_id()]).unwrap();
            assert_eq!(bench.lower(path).as_deref(), Some("x\n"));
            bench.check();
        }
    }
}

#[test]
fn a_symlink_that_comes_with_a_directory_to_where_one_was_is_held() {
    let bench = tree();
    bench.rename("top", "old");
    bench.mkdir("new");
    symlink(&bench, "new/src").unwrap();
    bench.rename("new", "top");
    assert_waits(bench, "top/src", Reason::Type);
    let bench = tree();
    bench.mkdir("new");
    symlink(&bench, "new/src").unwrap();
    exchange(&bench, "new", "top").unwrap();
    assert_waits(bench, "top/src", Reason::Type);
}

#[test]
fn a_symlink_takes_the_place_of_an_older_directory_in_no_exchange() {
    let bench = tree();
    symlink(&bench, "l").unwrap();
    for (one, other) in [("l", "src"), ("src", "l")] {
        assert_eq!(exchange(&bench, one, other).unwrap_err().code(), libc::EXDEV);
    }
    exchange(&bench, "l", "n").unwrap();
    bench.rename("src", "old");
    bench.mkdir("src");
    assert_eq!(exchange(&bench, "n", "src").unwrap_err().code(), libc::EXDEV);
    assert_eq!(bench.held().len(), 0);
    bench.check();
}

#[test]
fn a_symlink_goes_to_where_it_leads_out_by_no_exchange_with_a_directory() {
    let bench = tree();
    let (parent, name) = bench.parent("top/l");
    bench.view().symlink(parent, name, OsStr::new("../n"), &ME).unwrap();
    bench.mkdir("d");
    bench.mkdir("top/d");
    for (one, other) in [("top/l", "d"), ("d", "top/l")] {
        assert_eq!(exchange(&bench, one, other).unwrap_err().code(), libc::EXDEV);
    }
    exchange(&bench, "top/l", "top/d").unwrap();
    assert_eq!(bench.held().len(), 0);
    bench.check();
}

#[test]
fn a_symlink_or_file_where_a_directory_of_this_session_was_lands() {
    let bench = tree();
    bench.mkdir("build");
    bench.save("build/a", "a\n");
    bench.rename("build", "build-1");
    symlink(&bench, "build").unwrap();
    bench.mkdir("tmp");
    bench.rmdir("tmp").unwrap();
    symlink(&bench, "tmp").unwrap();
    bench.mkdir("made");
    bench.rmdir("made").unwrap();
    bench.save("made", &lines(500));
    assert_eq!(bench.held().len(), 0);
    bench.check();
}

#[test]
fn a_symlink_above_what_rules_speak_of_is_held_or_refused_by_whatever_call_it_comes() {
    let calls: [(&str, Call); 3] = [
        ("symlink", &symlink),
        ("rename", &|bench, path| bench.try_rename("l", path)),
        ("link", &|bench, path| link(bench, "l", path)),
    ];
    for (name, call) in calls {
        for (path, reason) in [("mig", Reason::Rule), (".claude", Reason::Sensitive), (".github", Reason::Sensitive)] {
            let bench = ruled();
            call(&bench, path).unwrap();
            assert_waits(bench, path, reason);
        }
        let bench = ruled();
        for path in ["den", "froz", "sub/keys"] {
            assert_eq!(call(&bench, path).unwrap_err().code(), libc::EPERM, "{name} {path}");
        }
        assert_eq!(bench.held().len(), 0);
    }
    let bench = ruled();
    for path in ["den", "mig"] {
        bench.mkdir(path);
        let refused = exchange(&bench, "l", path).unwrap_err().code();
        assert_eq!(refused, libc::EXDEV, "{path}");
    }
}

/// A symlink `l`, and rules for what lies in directories that are not there.
fn ruled() -> Bench {
    let mut bench = tree();
    symlink(&bench, "l").unwrap();
    bench.mkdir("sub");
    let rules = [("mig/", "hold"), ("/den/x", "deny"), ("froz/**", "freeze"), ("**/keys/prod", "deny")];
    let rules = rules.map(|(path, action)| format!("[[rule]]\nmatch = \"{path}\"\naction = \"{action}\"\n"));
    bench.put(".fettle.toml", &rules.concat());
    bench.remount();
    bench
}
