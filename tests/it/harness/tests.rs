use std::panic;
use std::path::{Path, PathBuf};

use super::processes::mount_point;
use super::*;

#[test]
fn ids_paths_and_times_are_named() {
    let check = |input: &str, want: &str| {
        assert_eq!(
            normalise(input, &[("[scratch]", Path::new("/t/x")), ("[project]", Path::new("/t/x/project"))]),
            want
        );
    };
    check("/t/x/project/a in /t/x", "[project]/a in [scratch]");
    check("Held a.rs (id a1b2c3d4), was 00000000, now a1b2c3d4", "Held a.rs (id [id1]), was [id2], now [id1]");
    check("backup: main.rs.20260312_143022_471", "backup: main.rs.[time]");
    check(r#"{"pid":4711,"created":"2026-03-12T14:30:22.471Z"}"#, r#"{"pid":[pid],"created":"[time]"}"#);
    check("at 2026-03-12T14:30:22+01:00 by pid 99", "at [time] by pid [pid]");
    check(&format!("sha {}", "ab".repeat(32)), "sha [sha256]");
    check("größe a1b2c3d4e5, 12 lines", "größe a1b2c3d4e5, 12 lines");
}

#[test]
fn a_mount_point_is_read_with_its_escapes() {
    let line = br"36 35 0:41 / /a\040b/c\134d rw,nosuid - fuse.fettlefs /x rw";
    assert_eq!(mount_point(line), Some(PathBuf::from(r"/a b/c\d")));
    assert_eq!(mount_point(b""), None);
}

#[test]
fn changed_lines_are_counted() {
    assert_eq!(lines(2), "line 1\nline 2\n");
    assert_eq!(with_changed_lines(&lines(3), 2), "changed line 1\nchanged line 2\nline 3\n");
}

#[test]
fn a_scratch_project_goes_away_also_when_its_test_panics() {
    let mut root = PathBuf::new();
    let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let scratch = Scratch::new();
        root = scratch.root().to_owned();
        scratch.write("deep/a.txt", "text\n");
        assert_eq!(scratch.read("deep/a.txt"), "text\n");
        scratch.git_init();
        panic::resume_unwind(Box::new("the test fails"));
    }));
    assert!(ended.is_err());
    assert!(root.is_absolute() && !root.exists(), "{} is still there", root.display());
}

#[test]
fn a_mount_goes_away_also_when_its_test_panics() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", "text\n");
    let mut pid = 0;
    let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let view = scratch.mount();
        assert_eq!(view.read("a.txt"), "text\n");
        assert_eq!(scratch.read("a.txt"), "text\n");
        pid = view.daemon_pid();
        panic::resume_unwind(Box::new("the test fails"));
    }));
    assert!(ended.is_err() && pid > 0, "the mount did not get that far");
    assert_eq!(processes::mounts_below(scratch.root()), Vec::<PathBuf>::new());
    assert!(!processes::is_alive(pid), "the daemon lives on");
}

#[test]
fn a_mount_whose_daemon_was_killed_goes_away() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    view.kill_daemon();
    drop(view);
    assert_eq!(processes::mounts_below(scratch.root()), Vec::<PathBuf>::new());
    assert_eq!(scratch.daemons(), Vec::<i32>::new());
}
