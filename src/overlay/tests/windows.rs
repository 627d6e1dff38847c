//! Windows that a killed daemon had open: the next one goes on with them (SPEC §4.6).

use super::*;
use crate::sys::process::uptime;

/// Of a file of a hundred lines twenty may change at once.
fn bench(window: &str) -> Bench {
    let bench = Bench::with(&[(Key::Window, window)]);
    bench.put("a", &lines(100));
    bench
}

/// Fifteen lines land before a kill; fifteen others after it are one change with them.
#[track_caller]
fn goes_on(bench: &mut Bench, between: impl FnOnce(&Bench), path: &str) {
    bench.save("a", &changed(100, 15));
    between(bench);
    bench.remount();
    bench.save(path, &changed(100, 30));
    assert_eq!(bench.held().len(), 1, "all of it waits");
    assert_eq!(bench.lower(path), Some(changed(100, 15)));
    let id = bench.only_id();
    bench.view().discard(&[id], &Review::default()).unwrap();
}

#[test]
fn slices_with_a_kill_after_each_are_one_change() {
    for window in ["60s", "session"] {
        let mut bench = bench(window);
        for count in (5..=100).step_by(5) {
            bench.save("a", &changed(100, count));
            bench.remount();
        }
        assert_eq!(bench.lower("a"), Some(changed(100, 20)), "{window}");
        assert_eq!(bench.held().len(), 1, "{window}");
    }
}

#[test]
fn a_window_is_over_after_its_time_also_across_a_kill() {
    let mut bench = bench("1s");
    bench.save("a", &changed(100, 15));
    let landed = uptime();
    bench.remount();
    while uptime() < landed + std::time::Duration::from_millis(1100) {
        std::thread::yield_now();
    }
    bench.save("a", &changed(100, 30));
    assert!(bench.held().is_empty());
}

#[test]
fn a_window_goes_on_under_the_name_that_a_file_has_by_then() {
    goes_on(&mut bench("60s"), |bench| bench.try_rename("a", "b").unwrap(), "b");
    goes_on(
        &mut bench("60s"),
        |bench| drop(bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME)),
        "b",
    );
}

#[test]
fn a_window_of_several_names_goes_on_when_the_name_that_landed_has_gone() {
    let mut bench = bench("60s");
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("c")).unwrap();
    goes_on(&mut bench, |bench| std::fs::remove_file(bench.lower_path("a")).unwrap(), "b");
}

/// Another name of the file landed before, and the log tells of that alone.
#[test]
fn what_was_held_in_a_window_and_lands_goes_on_with_it() {
    let mut bench = bench("60s");
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 15));
    bench.remount();
    bench.save("b", &changed(100, 30));
    assert_eq!(bench.held().len(), 1);
    bench.remount();
    bench.save("b", &changed(100, 16));
    assert_eq!((bench.lower("b"), bench.held().len()), (Some(changed(100, 16)), 0));
    bench.save("b", &changed(100, 30));
    assert_eq!((bench.lower("b"), bench.held().len()), (Some(changed(100, 16)), 1), "all of it is one change");
}

#[test]
fn other_times_end_no_window() {
    let touch = |bench: &Bench| {
        let file = std::fs::File::options().write(true).open(bench.lower_path("a")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    goes_on(&mut bench("60s"), touch, "a");
}

#[test]
fn a_purge_ends_no_window_that_a_killed_daemon_had_open() {
    let mut bench = bench("60s");
    bench.flags.push((Key::BackupsPerPath, "1".to_owned()));
    bench.remount();
    bench.save("a", &changed(100, 10));
    bench.save("a", &changed(100, 20));
    bench.remount();
    bench.view().purge().unwrap();
    goes_on(&mut bench, |bench| assert_eq!(bench.view().purge().unwrap(), 1), "a");
}

#[test]
fn an_outside_edit_while_no_daemon_runs_ends_the_window() {
    let mut bench = bench("60s");
    bench.save("a", &changed(100, 15));
    let outside = changed(100, 15).replace("line 99\n", "LINE 99\n");
    bench.put("a", &outside);
    bench.remount();
    bench.save("a", &outside.replace("line 2", "l1ne 2"));
    assert!(bench.held().is_empty());
}

#[test]
fn a_confirmed_change_and_the_end_of_a_session_end_the_window() {
    let mut bench = bench("60s");
    bench.save("a", &changed(100, 15));
    bench.overlay.take().unwrap().session_ended().unwrap();
    bench.remount();
    bench.save("a", &changed(100, 30));
    assert!(bench.held().is_empty(), "a new session");
    bench.save("a", &changed(100, 100));
    bench.confirm(&[bench.only_id()]).unwrap();
    bench.remount();
    bench.save("a", &changed(100, 85));
    assert!(bench.held().is_empty(), "of what was confirmed");
}

/// A slice that landed, and what crossed the limit after it, which waits: of 120 lines the tenth, and 51 more.
fn held_after_a_slice() -> Bench {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("a", &lines(120));
    let slice = lines(120).replace("line 10\n", "ten\n");
    bench.save("a", &slice);
    bench.save("a", &(40..=90).fold(slice.clone(), |text, n| text.replace(&format!("line {n}\n"), "held\n")));
    assert_eq!((bench.held().len(), bench.lower("a")), (1, Some(slice)));
    bench.purge_all();
    bench
}

/// What somebody takes out of the project again, or writes over, in what landed in the window is his (SPEC §9).
#[test]
fn what_somebody_does_below_to_a_slice_that_landed_stays_when_the_rest_is_confirmed() {
    for (theirs, is_new_daemon) in [("line 10\n", false), ("line 10\n", true), ("TEN\n", false), ("", false)] {
        let mut bench = held_after_a_slice();
        let below = bench.lower("a").unwrap().replace("ten\n", theirs);
        bench.put("a", &below);
        if is_new_daemon {
            bench.remount();
        }
        bench.purge_all();
        let outcome = bench.confirm(&[bench.only_id()]).unwrap().remove(0);
        assert_eq!(outcome.action, crate::protocol::Action::Merged);
        let want = (40..=90).fold(below, |text, n| text.replace(&format!("line {n}\n"), "held\n"));
        assert_eq!(bench.lower("a"), Some(want), "{theirs:?}");
    }
}

/// A diff is against lower as it is, and against what that was where it has moved on: a slice that landed is in both.
#[test]
fn a_diff_of_what_waits_after_a_slice_is_the_same_when_lower_moves_on() {
    let bench = held_after_a_slice();
    let old = |bench: &Bench| match bench.view().sides(&bench.held()[0]).unwrap().old.unwrap().content {
        ShownContent::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
        ShownContent::Large(_) => unreachable!("it is short"),
    };
    let landed = bench.lower("a").unwrap();
    assert_eq!(old(&bench), landed);
    bench.put("a", &lines(120));
    bench.purge_all();
    assert_eq!(old(&bench), landed);
}

/// Where a window began with nothing lower has what landed in it: a change of that is no creation, and its removal none.
#[test]
fn what_becomes_of_a_new_file_within_its_window_is_told_against_what_landed() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.save("n", &lines(50));
    assert_eq!(bench.lower("n"), Some(lines(50)));
    bench.save("n", &format!("<<<<<<< HEAD\n{}=======\n>>>>>>> theirs\n", lines(50)));
    let held = bench.held().remove(0);
    let told = held.held.as_ref().unwrap();
    assert_eq!(
        (told.kind, told.hunks, held.base.digest()),
        (ChangeKind::Modify, 2, Some(Digest::of(lines(50).as_bytes())))
    );

    bench.unlink("n");
    let held = bench.held().remove(0);
    let told = held.held.as_ref().unwrap();
    assert_eq!((told.kind, told.insertions, told.deletions), (ChangeKind::Delete, 0, 50));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("n"), None);
}
