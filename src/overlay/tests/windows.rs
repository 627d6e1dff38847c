//! Windows that a killed daemon had open: the next one goes on with them (SPEC §4.6).

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::sys::steps;

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
    bench.remount();
    outlast_the_window();
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

/// A hundred lines, so many of them changed, and as long as before: what is written over it from its beginning is all of it.
fn marked(count: usize) -> String {
    let upper = |(at, line): (usize, &str)| if at < count { line.to_uppercase() } else { line.to_owned() };
    lines(100).lines().enumerate().map(upper).map(|line| line + "\n").collect()
}

/// What is written through one handle, all of it, and a descriptor of it closed that is not the last.
fn write_through(bench: &Bench, handle: HandleId, content: &str) {
    bench.view().write(handle, 0, content.as_bytes()).unwrap();
    bench.view().flush(handle, &ME).unwrap();
}

fn opened(bench: &Bench, path: &str) -> HandleId {
    bench.view().open(bench.node(path).unwrap(), OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle
}

fn outlast_the_window() {
    outlast(Duration::from_millis(1100));
}

/// A handle that has changed fifteen lines, and whose window is over.
fn lasting(bench: &Bench) -> HandleId {
    let handle = opened(bench, "a");
    write_through(bench, handle, &marked(15));
    assert_eq!(bench.lower("a"), Some(marked(15)));
    outlast_the_window();
    handle
}

#[test]
fn what_is_written_through_one_handle_is_judged_against_what_it_opened() {
    let bench = bench("1s");
    let handle = lasting(&bench);
    write_through(&bench, handle, &marked(30));
    assert_eq!((bench.held().len(), bench.lower("a")), (1, Some(marked(15))));
    bench.view().release(handle).unwrap();
    assert_eq!(bench.held().len(), 1);
}

#[test]
fn a_new_file_is_new_as_long_as_the_handle_is_open_that_made_it() {
    let bench = Bench::with(&[(Key::Window, "1s")]);
    let (_, made) =
        bench.view().create(ROOT, OsStr::new("new"), 0o644, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap();
    write_through(&bench, made.handle, &lines(100));
    outlast_the_window();
    // As stores through a mapping that outlive the descriptor.
    bench.view().write(made.handle, 0, marked(100).as_bytes()).unwrap();
    bench.view().release(made.handle).unwrap();
    assert_eq!((bench.held().len(), bench.lower("new")), (0, Some(marked(100))));
}

#[test]
fn what_another_handle_has_landed_is_what_the_next_write_is_judged_against() {
    let bench = bench("1s");
    let handle = lasting(&bench);
    let other = opened(&bench, "a");
    write_through(&bench, other, &marked(30));
    outlast_the_window();
    write_through(&bench, handle, &marked(45));
    assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(marked(45))));
}

#[test]
fn what_was_reviewed_is_what_an_open_handle_is_judged_against() {
    let bench = bench("1s");
    let handle = lasting(&bench);
    write_through(&bench, handle, &marked(30));
    bench.confirm(&[bench.only_id()]).unwrap();
    write_through(&bench, handle, &marked(45));
    assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(marked(45))));
}

#[test]
fn a_new_file_that_replaces_another_while_it_is_open_is_new_no_more() {
    let bench = bench("1s");
    let (_, made) =
        bench.view().create(ROOT, OsStr::new("new"), 0o644, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap();
    write_through(&bench, made.handle, &marked(5));
    bench.rename("new", "a");
    outlast_the_window();
    write_through(&bench, made.handle, &marked(60));
    assert_eq!((bench.held().len(), bench.lower("a")), (1, Some(marked(5))));
}

/// By which a process knows that it is to be run.
const AS_NOBODY: &str = "FETTLE_WINDOWS_AS_NOBODY";

#[test]
fn what_landed_and_cannot_be_looked_at_keeps_nobody_from_starting() {
    steps::assert_passes_as_nobody("overlay::tests::windows::a_start_may_not_look", (AS_NOBODY, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_start_may_not_look() {
    if std::env::var_os(AS_NOBODY).is_none() {
        return;
    }
    steps::become_nobody().unwrap();
    let mut bench = Bench::with(&[(Key::Window, "session")]);
    bench.put("d/a", &lines(100));
    bench.save("d/a", &changed(100, 15));
    let give_mode = |bench: &Bench, mode| {
        std::fs::set_permissions(bench.lower_path("d"), PermissionsExt::from_mode(mode)).unwrap();
    };
    bench.overlay = None;
    give_mode(&bench, 0);
    bench.overlay = Some(bench.open_anew().0);
    give_mode(&bench, 0o755);
    bench.save("d/a", &changed(100, 30));
    assert_eq!(bench.held().len(), 1, "it goes on with its window");
}
