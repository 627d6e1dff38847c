//! What came in this session and is somebody else's by now, for he has changed or replaced it below: it is no less his than
//! what is older than the session.

use super::*;

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
    type Act = fn(&mut Bench);
    let acts: [(&str, Act); 4] = [
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
