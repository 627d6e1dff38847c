//! Operations and their undo: by the ids that `log` and the JSON of what was done tell.

use super::{EDITED, NEW, OLD, small, transcript, work};
use crate::harness::{View, eventually, lines, mounted_scratch};

/// The operation of the latest event of `path`.
#[track_caller]
fn operation(view: &View<'_>, path: &str) -> String {
    let json = view.cli(&["log", path, "--json"]).ok().json();
    let events = json["events"].as_array().expect("events").iter();
    let operation = events.filter(|event| event["path"] == path).find_map(|event| event["operation"].as_str());
    operation.unwrap_or_else(|| panic!("no operation of {path}: {json}")).to_owned()
}

#[test]
fn a_confirm_is_undone_whole_and_that_is_undone_in_its_turn() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let told = view.cli(&["confirm", "--all", "--yes", "--json"]).ok().json();
    let confirmed = told["outcomes"][0]["operation"].as_str().expect("an operation").to_owned();
    assert_eq!(told["outcomes"][1]["operation"].as_str(), Some(confirmed.as_str()), "one operation for all");
    assert_eq!(operation(&view, "src/b.rs"), confirmed);
    let want = "\
$ undo [op] --dry-run
fettlefs: Would undo src/b.rs (14B, 3 lines)
fettlefs: Would undo src/a.rs (14B, 3 lines)
=> 0
$ undo [op]
fettlefs: Undone src/b.rs (14B, 3 lines)
fettlefs: Undone src/a.rs (14B, 3 lines)
  backup: a.rs.[time]
=> 0
$ undo [op]
! fettlefs: [op] is undone already: everything is as it was before it
=> 5
$ log -n 2
[time]  undone             src/b.rs  undoes [op]  [op]
[time]  undone             src/a.rs  undoes [op]  [op]
=> 0
";
    let undo = format!("undo {confirmed}");
    let commands = [&format!("{undo} --dry-run"), &undo, &undo, "log -n 2"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    view.assert_landed("src/a.rs", OLD);
    view.assert_landed("src/b.rs", OLD);
    let undone = operation(&view, "src/a.rs");
    view.cli(&["undo", &undone]).ok();
    view.assert_landed("src/a.rs", NEW);
    assert!(!view.has("src/b.rs"));
}

#[test]
fn the_undo_of_a_write_that_was_confirmed_since_names_the_confirm() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    // Of one process, so that they are one operation.
    view.sh(&format!("printf '{NEW}' > c.txt; printf '{NEW}' > d.txt")).ok();
    let written = view.held()[0].json["operation"].as_str().expect("an operation").to_owned();
    let confirmed = view.cli(&["confirm", "--all", "--yes", "--json"]).ok().json();
    let confirmed = confirmed["outcomes"][0]["operation"].as_str().expect("an operation").to_owned();
    let want = format!(
        "fettlefs: nothing of {written} waits any more, and what was confirmed of it landed as {confirmed}: `fettlefs \
         undo {confirmed}` takes that back\n"
    );
    assert_eq!(view.cli(&["undo", &written]).exits(5).stderr, want);
    view.cli(&["undo", &confirmed]).ok();
    view.assert_landed("c.txt", OLD);
}

/// What is said of it is no data, and goes to stderr; as JSON it is with the answer.
#[test]
fn the_undo_of_what_landed_in_part_says_what_a_confirm_has_landed_of_it() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.sh(&format!("printf '{EDITED}' > c.txt; printf '{NEW}' > d.txt")).ok();
    let written = operation(&view, "d.txt");
    assert_eq!(operation(&view, "c.txt"), written);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    let confirmed = operation(&view, "d.txt");
    let landed = |of: &str| {
        format!("what was confirmed of {of} landed as {confirmed}: `fettlefs undo {confirmed}` takes that back")
    };
    let planned = view.cli(&["undo", &written, "--dry-run", "--json"]).ok();
    assert_eq!(planned.json()["notices"], serde_json::json!([landed(&written)]));
    assert_eq!(planned.stderr, "");
    assert_eq!(view.cli(&["undo", &written]).ok().stderr, format!("fettlefs: {}\n", landed(&written)));
    view.assert_landed("c.txt", OLD);
    view.assert_landed("d.txt", NEW);
    let already = |rest: &str| format!("fettlefs: {written} is undone already{rest}\n");
    assert_eq!(view.cli(&["undo", &written]).exits(5).stderr, already(&format!(", and {}", landed("it"))));
    view.cli(&["undo", &confirmed]).ok();
    view.assert_landed("d.txt", OLD);
    assert_eq!(view.cli(&["undo", &written]).exits(5).stderr, already(": everything is as it was before it"));
}

#[test]
fn a_discard_is_undone_by_holding_it_again() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let before = view.held();
    view.cli(&["discard", "--all", "--yes"]).ok();
    view.assert_landed("src/a.rs", OLD);
    let undo = format!("undo {} --json", operation(&view, "src/a.rs"));
    let want = r#"$ undo [op] --json
{"v":1,"ok":true,"op":"undo","outcomes":[{"action":"held","path":"src/a.rs","id":"[id1]","kind":"modify","insertions":3,"deletions":3,"ratio":2.0,"operation":"[op]"},{"action":"held","path":"src/b.rs","id":"[id2]","kind":"delete","insertions":0,"deletions":3,"ratio":1.0,"operation":"[op]"}],"dry_run":false}
=> 0
"#;
    assert_eq!(transcript(&scratch, &[&undo], |arguments| view.cli(arguments)), want);
    let ids = |held: &[crate::harness::Held]| held.iter().map(|held| held.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&view.held()), ids(&before));
    assert_eq!(view.read("src/a.rs"), NEW);
    assert!(!view.has("src/b.rs"));
}

/// A discard brings back the directories of what it drops, and what else is to be deleted in them goes on waiting.
#[test]
fn the_undo_of_an_undo_drops_only_what_that_has_held_again() {
    let scratch = mounted_scratch!();
    for path in ["d/x", "d/y", "d/e/g"] {
        scratch.write(path, lines(100));
    }
    let view = scratch.mount();
    view.sh("rm -rf d").ok();
    let held = || view.held().into_iter().map(|held| held.path).collect::<Vec<_>>();
    assert_eq!(held(), ["d", "d/e", "d/e/g", "d/x", "d/y"]);
    view.cli(&["discard", "d/e"]).ok();
    assert_eq!(held(), ["d/x", "d/y"]);
    view.cli(&["undo", &operation(&view, "d/e/g")]).ok();
    assert_eq!(held(), ["d", "d/e", "d/e/g", "d/x", "d/y"]);
    let undone = operation(&view, "d/e/g");
    let planned = view.cli(&["undo", "--dry-run", "--json", &undone]).ok().json();
    let mut paths: Vec<_> = planned["outcomes"].as_array().expect("outcomes").iter().map(|one| &one["path"]).collect();
    paths.sort_by_key(|path| path.to_string());
    assert_eq!(paths, ["d", "d/e", "d/e/g"]);
    view.cli(&["undo", &undone]).ok();
    assert_eq!(held(), ["d/x", "d/y"]);
    assert_eq!(view.sh("find d | sort").ok().stdout, "d\nd/e\nd/e/g\n");
}

#[test]
fn all_names_of_what_is_held_again_are_listed() {
    let scratch = mounted_scratch!();
    scratch.write("h", lines(200));
    scratch.write("d/a", "a\n");
    let view = scratch.mount();
    let listed = || view.sh("ls d; ls d").ok().stdout;
    view.write("h", "new\n".repeat(200));
    view.sh("ln h d/h2").ok();
    assert_eq!(listed(), "a\nh2\na\nh2\n");
    for args in [&["status"][..], &["confirm", "h", "--dry-run"], &["discard", "h"]] {
        let told = view.cli(args).ok().stdout;
        assert!(told.contains("  also: d/h2\n"), "{args:?}: {told}");
    }
    assert_eq!(listed(), "a\na\n");
    view.cli(&["undo", &operation(&view, "h")]).ok();
    assert_eq!(listed(), "a\nh2\na\nh2\n");
}

#[test]
fn structure_is_undone_and_programs_see_it() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.sh("mkdir made && ln -s notes.txt link && mv notes.txt moved.txt && chmod 600 src/a.rs").ok();
    for path in ["src/a.rs", "moved.txt", "link", "made"] {
        view.cli(&["undo", &operation(&view, path)]).ok();
    }
    view.assert_landed("notes.txt", OLD);
    eventually("the view shows it", || !view.has("made") && !view.has("moved.txt") && view.read("notes.txt") == OLD);
    assert_eq!(view.sh("ls; stat -c %a src/a.rs").ok().stdout, "c.txt\nd.txt\nnotes.txt\nsrc\n644\n");
    view.sh("mkdir d && touch d/x").ok();
    let told = view.cli(&["undo", &operation(&view, "d")]).exits(5);
    assert!(told.stderr.contains("d: the directory is not empty"), "{}", told.stderr);
}

#[test]
fn what_cannot_be_undone_says_why() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("notes.txt", EDITED);
    view.assert_landed("notes.txt", EDITED);
    scratch.write("notes.txt", "a person's own work\n");
    let undo = format!("undo {}", operation(&view, "notes.txt"));
    let want = "\
$ undo op999
! fettlefs: [op]: there is no such operation
=> 4
$ log --operation op999
! fettlefs: [op]: there is no such operation
=> 4
$ undo a1b2c3d4
! fettlefs: [id1]: not an operation: those are called op and a number
=> 4
$ undo [op]
! fettlefs: notes.txt: it was edited since; --force keeps that as a backup
=> 5
$ undo [op] --json
{\"v\":1,\"ok\":false,\"error\":{\"code\":\"conflict\",\"message\":\"notes.txt: it was edited since; --force keeps that as a backup\",\"path\":\"notes.txt\"}}
=> 5
$ undo [op] --force
fettlefs: Undone notes.txt (14B, 3 lines)
  backup: notes.txt.[time]
=> 0
"
    .replace("op999", "[op]")
    .replace("$ undo a1b2c3d4", "$ undo [id1]");
    let (json, force) = (format!("{undo} --json"), format!("{undo} --force"));
    let commands = ["undo op999", "log --operation op999", "undo a1b2c3d4", &undo, &json, &force];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    assert_eq!(scratch.read("notes.txt"), OLD);
    view.cli(&["undo"]).exits(2);
}

#[test]
fn an_operation_is_undone_without_a_mount_and_survives_one() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    let confirmed = operation(&view, "src/a.rs");
    view.unmount();
    let told = scratch.cli(&["undo", &confirmed, "--json"]).ok().json();
    assert_eq!(told["outcomes"][0]["action"].as_str(), Some("undone"));
    assert_eq!((scratch.read("src/a.rs"), scratch.read("src/b.rs")), (OLD.to_owned(), OLD.to_owned()));
    scratch.cli(&["fsck"]).ok();
    let view = scratch.mount();
    view.cli(&["undo", &operation(&view, "src/a.rs")]).ok();
    view.assert_landed("src/a.rs", NEW);
    assert!(!view.has("src/b.rs"));
}

#[test]
fn backups_past_a_limit_go_while_the_view_is_mounted() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).env("FETTLE_BACKUP_MAX_PER_PATH", "5").start();
    for edit in 0..140 {
        view.write("notes.txt", format!("one {edit}\ntwo\nthree\n"));
    }
    let count = || view.cli(&["backups", "notes.txt", "--json"]).ok().json()["backups"].as_array().map(Vec::len);
    eventually("old backups go", || count().is_some_and(|count| count < 100));
    view.cli(&["fsck"]).ok();
    view.cli(&["rollback", "notes.txt"]).ok();
}
