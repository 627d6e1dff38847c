//! Several files written at one moment: what a patch finds, and what it leaves to others.

use super::*;
use crate::protocol::{Action as Done, Outcome};

fn rewrite(path: &str, old: &str, new: &str) -> Rewrite {
    Rewrite {
        path: RelPath::parse(path.as_bytes()).unwrap(),
        base: Digest::of(old.as_bytes()),
        content: new.as_bytes().to_vec(),
    }
}

fn patch(bench: &Bench, rewrites: &[Rewrite]) -> std::result::Result<Vec<Outcome>, ErrorCode> {
    let how = RewriteHow { caller: ME, may_write: &|_| true, dry_run: false };
    bench.view().rewrite_all(rewrites, &how).map_err(|err| err.code)
}

/// Who reads, adds one and patches has either added it to what was there, or is refused: nothing is ever lost.
#[test]
fn of_many_who_patch_the_same_file_each_is_counted_or_refused() {
    const THREADS: usize = 6;
    const EACH: usize = 15;
    let bench = Bench::new();
    bench.put("a", "0\n");
    bench.put("b", "0\n");
    std::thread::scope(|threads| {
        for number in 0..THREADS {
            let bench = &bench;
            threads.spawn(move || {
                let mut done = 0;
                while done < EACH {
                    let [a, b] = ["a", "b"].map(|path| bench.read(path).unwrap());
                    let more = |text: &str| format!("{}\n", text.trim().parse::<u64>().unwrap() + 1);
                    let mut both = [rewrite("a", &a, &more(&a)), rewrite("b", &b, &more(&b))];
                    // In either order: two patches never wait for each other.
                    if number % 2 == 0 {
                        both.reverse();
                    }
                    match patch(bench, &both) {
                        Ok(_) => done += 1,
                        Err(code) => assert!(matches!(code, ErrorCode::Conflict | ErrorCode::Busy), "{code:?}"),
                    }
                }
            });
        }
    });
    let want = Some(format!("{}\n", THREADS * EACH));
    assert_eq!((bench.read("a"), bench.read("b")), (want.clone(), want.clone()));
    assert_eq!((bench.lower("a"), bench.lower("b")), (want.clone(), want));
    assert_eq!((bench.held().len(), bench.stage_files()), (0, 0));
}

#[test]
fn who_has_the_file_open_reads_what_was_patched_and_writes_on_it() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    assert_eq!(bench.view().read(handle, 0, 6).unwrap(), b"line 0");
    let patched = changed(100, 1);
    patch(&bench, &[rewrite("a", &lines(100), &patched)]).unwrap();
    assert_eq!(bench.view().read(handle, 0, 5).unwrap(), b"new 0");
    bench.view().write(handle, 0, b"NEW 0").unwrap();
    bench.close(handle);
    let want = patched.replacen("new 0", "NEW 0", 1);
    assert_eq!((bench.read("a"), bench.lower("a")), (Some(want.clone()), Some(want)));
    assert_eq!(bench.stage_files(), 0);
}

#[test]
fn what_is_written_and_not_judged_is_nobodys_to_patch() {
    let bench = Bench::new();
    bench.put("a", "one\n");
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, b"two\n").unwrap();
    assert_eq!(patch(&bench, &[rewrite("a", "two\n", "three\n")]), Err(ErrorCode::Busy));
    bench.close(handle);
    assert_eq!(bench.lower("a").as_deref(), Some("two\n"));
    patch(&bench, &[rewrite("a", "two\n", "three\n")]).unwrap();
    assert_eq!(bench.lower("a").as_deref(), Some("three\n"));
}

#[test]
fn all_names_of_a_hard_link_show_what_was_patched() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    let small = changed(100, 1);
    patch(&bench, &[rewrite("b", &lines(100), &small)]).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(small.clone()), Some(small.clone())));
    let large = changed(100, 90);
    let outcomes = patch(&bench, &[rewrite("b", &small, &large)]).unwrap();
    assert_eq!(outcomes[0].action, Done::Held);
    assert_eq!((bench.read("a"), bench.read("b")), (Some(large.clone()), Some(large)));
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(small.clone()), Some(small)));
}

#[test]
fn back_to_what_the_project_has_a_held_file_is_held_no_more() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let large = changed(100, 90);
    bench.save("a", &large);
    let id = bench.only_id();
    let outcomes = patch(&bench, &[rewrite("a", &large, &lines(100))]).unwrap();
    assert_eq!(outcomes[0].action, Done::Unchanged);
    assert_eq!((bench.held().len(), bench.read("a"), bench.stage_files()), (0, Some(lines(100)), 0));
    assert_eq!(bench.confirm(&[id]), Err(ErrorCode::UnknownId));
}

#[test]
fn one_that_cannot_be_written_leaves_all_as_they_are() {
    let bench = Bench::with(&[]);
    bench.put("a", "one\n");
    bench.put("b", "one\n");
    bench.put(".git/x", "one\n");
    let a = || rewrite("a", "one\n", "two\n");
    for (other, code) in [
        (rewrite("b", "other\n", "two\n"), ErrorCode::Conflict),
        (rewrite("none", "", "two\n"), ErrorCode::UnknownPath),
        (rewrite(".git/x", "one\n", "two\n"), ErrorCode::BadRequest),
    ] {
        assert_eq!(patch(&bench, &[a(), other.clone()]), Err(code), "{}", other.path);
        assert_eq!(patch(&bench, &[other, a()]), Err(code));
        assert_eq!((bench.lower("a").as_deref(), bench.read("a").as_deref()), (Some("one\n"), Some("one\n")));
    }
    patch(&bench, &[rewrite(".git/x", "one\n", "two\n")]).unwrap();
    assert_eq!(bench.lower(".git/x").as_deref(), Some("two\n"));
    assert_eq!(bench.stage_files(), 0);
}

/// Nobody need look for a disk that is full.
#[test]
fn who_meets_a_limit_of_ours_is_told_what_to_decide_about() {
    let bench = Bench::with(&[(Key::LimitHeld, "1")]);
    ["a", "b"].iter().for_each(|path| bench.put(path, &lines(100)));
    bench.save("a", &changed(100, 60));
    let how = RewriteHow { caller: ME, may_write: &|_| true, dry_run: false };
    let refused = bench.view().rewrite_all(&[rewrite("b", &lines(100), "two\n")], &how).unwrap_err();
    let why = "b: nothing was written: as much waits for review as may (limits.held, limits.upper); confirm or discard \
               some of it, and try again";
    assert_eq!((refused.code, refused.message.as_str()), (ErrorCode::WriteFailed, why));
    // What waits already can be patched.
    patch(&bench, &[rewrite("a", &changed(100, 60), &changed(100, 61))]).unwrap();
}
