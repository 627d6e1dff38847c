//! What came in this session and is somebody else's by now, for he has changed or replaced it below: it is no less his than
//! what is older than the session.

use super::*;

type Act = fn(&Bench);

/// `n`, which a person has filled with lines of his own since it landed.
fn bench(flags: &[(Key, &str)]) -> Bench {
    let mut bench = Bench::with(flags);
    bench.put(".gitignore", "/target\n");
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    std::fs::create_dir(bench.lower_path("target")).unwrap();
    bench.remount();
    bench.save("n", "ours\n");
    bench.put("n", &lines(500));
    bench
}

/// By who has read what is there, so that nothing is stale to him.
fn unlink(bench: &Bench, path: &str) {
    bench.read(path);
    bench.unlink(path);
}

fn assert_waits(bench: &Bench, path: &str) {
    assert_eq!(bench.reasons(), [Reason::Size]);
    assert_eq!(bench.lower(path), Some(lines(500)));
}

#[test]
fn it_does_not_go_unreviewed() {
    for window in ["0", "60s", "session"] {
        let bench = bench(&[(Key::Window, window)]);
        unlink(&bench, "n");
        assert_waits(&bench, "n");
    }
}

#[test]
fn nor_under_another_name_after_a_small_edit_or_a_kill() {
    type ActAnew = fn(&mut Bench);
    let acts: [(&str, ActAnew); 4] = [
        ("m", |bench| bench.rename("n", "m")),
        ("d/m", |bench| {
            bench.view().mkdir(ROOT, OsStr::new("e"), 0o755, &ME).unwrap();
            bench.rename("n", "e/m");
            bench.rename("e", "d");
        }),
        ("n", |bench| {
            for content in [format!("{}more\n", lines(500)), lines(500)] {
                bench.read("n");
                bench.save("n", &content);
            }
            assert!(bench.held().is_empty());
        }),
        ("n", |bench| drop(bench.remount())),
    ];
    for (path, act) in acts {
        let mut bench = bench(&[(Key::Window, "0")]);
        act(&mut bench);
        unlink(&bench, path);
        assert_waits(&bench, path);
    }
}

/// Where nobody judges, its deletion would leave nothing.
#[test]
fn nor_does_it_go_to_where_nobody_judges() {
    let bench = bench(&[]);
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    bench.save("d/m", "ours\n");
    bench.put("d/m", "a person's\n");
    for from in ["n", "d"] {
        let refused = bench.try_rename(from, &format!("target/{from}")).unwrap_err();
        assert_eq!(refused.code(), libc::EXDEV, "{from}");
    }
    bench.save("o", "ours\n");
    bench.rename("o", "target/o");
    assert_eq!(bench.lower("target/o").as_deref(), Some("ours\n"));
}

#[test]
fn it_counts_for_a_burst() {
    let bench = Bench::with(&[(Key::Burst, "3"), (Key::Window, "0")]);
    for number in 0..5 {
        bench.save(&format!("n{number}"), "ours\n");
        bench.put(&format!("n{number}"), "a person's\n");
    }
    (0..5).for_each(|number| unlink(&bench, &format!("n{number}")));
    assert_eq!(bench.held().len(), 2);
}

#[test]
fn what_somebody_else_has_only_touched_goes_as_it_came() {
    let bench = bench(&[]);
    bench.save("o", &lines(500));
    bench.put("o", &lines(500));
    unlink(&bench, "o");
    assert!(bench.held().is_empty());
    assert_eq!(bench.lower("o"), None);
}

/// Nobody looks at what is written where nobody judges.
#[test]
fn what_programs_write_where_nobody_judges_is_not_told_as_somebody_elses() {
    let bench = bench(&[]);
    std::fs::remove_dir(bench.lower_path("target")).unwrap();
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    bench.save("d/app", "built\n");
    bench.save("kept", "ours\n");
    bench.rename("d", "target");
    bench.save("target/app", "built anew\n");
    bench.put("kept", "a person's\n");
    let told: Vec<String> = bench.view().external_paths().changed.iter().map(|(path, _)| path.to_string()).collect();
    assert_eq!(told, ["kept", "n"]);
}

/// A link, a symlink, a FIFO and a directory land without any content by which they would be known.
#[test]
fn what_takes_the_place_of_what_has_no_content_of_its_own_does_not_go_unreviewed() {
    let makes: [(&str, Act); 4] = [
        ("a link", |bench| bench.link("o", "n")),
        ("a symlink", |bench| _ = bench.view().symlink(ROOT, OsStr::new("n"), OsStr::new("o"), &ME).unwrap()),
        ("a FIFO", |bench| _ = bench.view().mknod(ROOT, OsStr::new("n"), libc::S_IFIFO | 0o600, 0, &ME).unwrap()),
        ("a directory", |bench| _ = bench.view().mkdir(ROOT, OsStr::new("n"), 0o755, &ME).unwrap()),
    ];
    for (what, make) in makes {
        let bench = Bench::new();
        bench.put("o", "old\n");
        make(&bench);
        let there = bench.lower_path("n");
        if there.is_dir() { std::fs::remove_dir(&there) } else { std::fs::remove_file(&there) }.unwrap();
        bench.put("n", &lines(500));
        bench.view().external_paths();
        unlink(&bench, "n");
        assert_eq!(bench.reasons(), [Reason::Size], "{what}");
        assert_eq!(bench.lower("n"), Some(lines(500)), "{what}");
    }
}

/// The new content at its first name was judged against what it was, and not against what it is.
#[test]
fn nor_does_what_was_moved_and_is_somebody_elses_by_now() {
    let moves: [(&str, Act); 3] = [
        ("n", |bench| bench.rename("a", "n")),
        ("n", |bench| bench.link("a", "n")),
        ("e/a", |bench| bench.rename("d", "e")),
    ];
    for (path, moves) in moves {
        let bench = Bench::new();
        bench.put("a", &lines(40));
        bench.put("d/a", &lines(40));
        moves(&bench);
        if path == "e/a" {
            bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
        }
        for first in ["a", "d/a"] {
            if bench.read(first).is_none() {
                bench.save(first, &lines(40));
            }
        }
        let theirs = bench.lower_path("theirs");
        std::fs::write(&theirs, lines(500)).unwrap();
        std::fs::rename(theirs, bench.lower_path(path)).unwrap();
        unlink(&bench, path);
        assert_eq!((bench.reasons(), bench.lower(path)), (vec![Reason::Size], Some(lines(500))), "{path}");
    }
}

/// As vim saves, after an edit of its own and a person's: what comes is judged against the person's.
#[test]
fn what_takes_the_place_of_somebody_elses_by_renaming_it_away_is_judged_against_it() {
    for window in ["0", "60s", "session"] {
        let bench = Bench::with(&[(Key::Window, window)]);
        bench.put("a", "one\ntwo\nthree\n");
        bench.put("d/a", "one\ntwo\nthree\n");
        for path in ["a", "d/a"] {
            bench.save(path, "one\ntwo\n3\n");
            bench.put(path, &lines(500));
            bench.read(path);
        }
        bench.rename("a", "a~");
        bench.save("a", "one\ntwo\n");
        bench.unlink("a~");
        bench.rename("d", "d~");
        bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
        bench.save("d/a", "one\ntwo\n");
        assert_eq!(bench.lower("a"), Some(lines(500)), "{window}");
        let held: Vec<_> = bench.held().iter().map(|row| row.path().to_string()).collect();
        assert_eq!(held, ["a", "d/a"], "{window}");
    }
}

/// A review leaves no window.
#[test]
fn what_was_reviewed_and_is_somebody_elses_by_now_is_judged_as_theirs() {
    let bench = Bench::with(&[(Key::Window, "session")]);
    bench.put("a", &lines(40));
    bench.save("a", "one\n");
    bench.confirm(&[bench.only_id()]).unwrap();
    bench.put("a", &lines(500));
    bench.read("a");
    bench.save("a", "two\n");
    assert_eq!((bench.reasons(), bench.lower("a")), (vec![Reason::Size], Some(lines(500))));
}

/// A held new file `n`, in whose place somebody has put a file of their own.
fn with_anothers() -> Bench {
    let bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"n\"\naction = \"hold\"\n");
    let bench = reloaded(bench);
    bench.save("n", "new\n");
    bench.put("n", "theirs\n");
    bench
}

fn reloaded(mut bench: Bench) -> Bench {
    bench.remount();
    bench
}

#[test]
fn a_held_new_file_is_exchanged_with_no_directory_while_somebody_has_put_a_file_in_its_place() {
    for is_taken in [false, true] {
        let bench = Bench::new();
        bench.mkdir("d");
        bench.save("n", "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n");
        assert_eq!(bench.reasons(), [Reason::Risk]);
        if is_taken {
            bench.put("n", "theirs\n");
        }
        let exchanged = rename(bench.view(), bench.parent("n"), bench.parent("d"), RenameFlags::EXCHANGE);
        assert_eq!(exchanged.err().map(|err| err.code()), is_taken.then_some(libc::EXDEV));
        assert_eq!(bench.lower("n"), is_taken.then(|| "theirs\n".to_owned()));
        bench.check();
    }
}

#[test]
fn a_rename_of_a_held_new_file_leaves_what_somebody_has_put_in_its_place() {
    for over in [None, Some("old\n")] {
        let bench = with_anothers();
        over.into_iter().for_each(|old| bench.put("m", old));
        bench.rename("n", "m");
        assert_eq!((bench.read("m").as_deref(), bench.lower("n").as_deref()), (Some("new\n"), Some("theirs\n")));
        assert_eq!(bench.read("n").as_deref(), Some("theirs\n"));
        bench.check();
    }
}

#[test]
fn a_rename_of_a_further_name_leaves_what_somebody_has_put_in_its_place() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.link("a", "c");
    bench.put("c", "theirs\n");
    bench.rename("c", "y");
    assert_eq!((bench.lower("c").as_deref(), bench.lower("y")), (Some("theirs\n"), None));
    assert_eq!((bench.read("c"), bench.read("y")), (Some("theirs\n".to_owned()), Some(changed(100, 60))));
    bench.check();
}
