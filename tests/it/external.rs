//! What somebody else did to a path that fettlefs knows is told once, as an event `external_modified`; what it did itself,
//! what it never touched and what nobody judges are not (SPEC §9, §14).

use std::fs;
use std::io::Write;

use serde_json::Value;

use crate::harness::script::python;
use crate::harness::{Scratch, View, detach, eventually, lines, mounted_scratch};

/// Paths and what became of them, in the order of the events.
fn told(view: &View<'_>) -> Vec<(String, String)> {
    let events = view.cli(&["events", "--json"]).ok().stdout;
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("one JSON object a line"));
    let external = events.filter(|event| event["event"] == "external_modified");
    let word = |value: &Value| value.as_str().expect("text").to_owned();
    external.map(|event| (word(&event["path"]), word(&event["message"]))).collect()
}

/// What is told of everything up to now: it is looked at together with, or before, a change that comes after it.
fn told_by_now(scratch: &Scratch, view: &View<'_>) -> Vec<(String, String)> {
    let marks = || told(view).iter().filter(|(path, _)| path == "mark").count();
    let before = marks();
    scratch.write("mark", lines(before + 50));
    eventually("the mark is told", || marks() > before);
    told(view).into_iter().filter(|(path, _)| path != "mark").collect()
}

/// A project in which the paths `landed`, `other`, `mark` have been written to through the view, and `held` waits.
fn known(scratch: &Scratch) -> View<'_> {
    scratch.write(".gitignore", "target/\n");
    for path in ["landed", "other", "held", "untouched", "mark", "target/built"] {
        scratch.write(path, lines(20));
    }
    scratch.git_init();
    let view = scratch.mount_at("view");
    for path in ["landed", "other", "mark", "target/built"] {
        view.write(path, lines(21));
        view.assert_landed(path, &lines(21));
    }
    view.write("held", lines(300));
    view
}

fn is(path: &str, kind: &str) -> (String, String) {
    (path.to_owned(), kind.to_owned())
}

#[test]
fn what_others_do_to_known_paths_is_told_once() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    assert_eq!(told_by_now(&scratch, &view), [], "what was landed is fettlefs' own");
    for path in ["landed", "held", "untouched", "target/built"] {
        scratch.write(path, "edited outside\n");
    }
    let expected = [is("held", "modified"), is("landed", "modified")];
    assert_eq!(told_by_now(&scratch, &view), expected);
    // The same again, and however often somebody looks.
    for path in ["landed", "held"] {
        scratch.write(path, "edited outside\n");
    }
    view.cli(&["external"]).ok();
    view.status();
    assert_eq!(told_by_now(&scratch, &view), expected);
    fs::write(scratch.lower().join("new~"), "replaced outside\n").expect("written below");
    fs::rename(scratch.lower().join("new~"), scratch.lower().join("landed")).expect("renamed over below");
    fs::remove_file(scratch.lower().join("held")).expect("removed below");
    let told = told_by_now(&scratch, &view);
    assert_eq!(told[2..], [is("held", "deleted"), is("landed", "replaced")]);
}

#[test]
fn the_same_edit_is_told_again_where_it_was_undone_meanwhile() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    for count in 1..=2 {
        scratch.write("landed", "edited outside\n");
        assert_eq!(told_by_now(&scratch, &view), vec![is("landed", "modified"); count]);
        // As by `git stash`.
        scratch.write("landed", lines(21));
        assert_eq!(told_by_now(&scratch, &view), vec![is("landed", "modified"); count]);
    }
}

#[test]
fn the_event_names_the_content_and_the_held_change() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    let id = view.only_held().id;
    scratch.write("held", "edited outside\n");
    told_by_now(&scratch, &view);
    let events = view.cli(&["events", "--json"]).ok().stdout;
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("one JSON object a line"));
    let event = events.into_iter().find(|event| event["path"] == "held" && event["event"] == "external_modified");
    let event = event.expect("it is told");
    let hash =
        python(&scratch, scratch.root(), "import hashlib; print(hashlib.sha256(b'edited outside\\n').hexdigest())");
    assert_eq!(event["sha256"].as_str(), Some(hash.ok().stdout.trim()));
    assert_eq!((event["bytes"].as_u64(), event["id"].as_str()), (Some(15), Some(id.as_str())));
}

#[test]
fn a_touch_is_no_change_and_what_was_done_by_review_is_not_told() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    let touched = scratch.command("touch").current_dir(scratch.lower()).args(["landed", "held"]).status();
    assert!(touched.expect("touch").success());
    view.cli(&["confirm", "held"]).ok();
    view.sh("mv landed moved; rm other; mkdir d; echo x >d/f; mv d e; chmod 600 moved").ok();
    let backups = view.cli(&["backups", "held", "--json"]).ok().json();
    view.cli(&["rollback", backups["backups"][0]["name"].as_str().expect("a backup")]).ok();
    assert_eq!(told_by_now(&scratch, &view), []);
}

#[test]
fn what_is_overwritten_merged_or_passed_over_is_told_first() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    // By one call, for an empty file in between might be told, too: what is longer than before needs no truncation.
    let rewrite = |path: &str, content: String| {
        let file = std::fs::OpenOptions::new().write(true).open(scratch.lower().join(path));
        file.and_then(|mut file| file.write_all(content.as_bytes())).expect("a file of the project");
    };
    // No time for anybody to look: each is told by what happens to it.
    rewrite("landed", lines(22));
    view.write("landed", lines(23));
    rewrite("held", lines(20).replace("line 20\n", "edited outside\n"));
    view.cli(&["confirm", "--force", "held"]).ok();
    let script = "f = open('other', 'a'); f.write('more\\n'); f.flush()
open('../project/other', 'w').write('edited outside\\n'); f.close()";
    python(&scratch, view.root(), script).ok();
    let mut told = told_by_now(&scratch, &view);
    told.sort();
    assert_eq!(told, [is("held", "modified"), is("landed", "modified"), is("other", "modified")]);
}

#[test]
fn a_new_daemon_tells_what_happened_meanwhile_and_nothing_again() {
    let scratch = mounted_scratch!();
    fs::create_dir(scratch.lower().join("d")).expect("a directory");
    let view = known(&scratch);
    let id = Value::from(view.only_held().id);
    scratch.write("held", "edited outside\n");
    assert_eq!(told_by_now(&scratch, &view), [is("held", "modified")]);
    view.kill_all();
    let view = scratch.mount_at("view");
    view.write("mark", lines(20));
    assert_eq!(told_by_now(&scratch, &view), [is("held", "modified")]);
    view.sh("mv other d/moved; mv untouched other").ok();
    view.kill_all();
    scratch.write("held", "edited again\n");
    scratch.write("landed", "edited outside\n");
    let view = scratch.mount_at("view");
    view.write("mark", lines(20));
    let told = told_by_now(&scratch, &view);
    assert_eq!(told, [is("held", "modified"), is("held", "modified"), is("landed", "modified")]);
    let external = view.cli(&["external", "--json"]).ok().json();
    let external = external["external"].as_array().expect("a list");
    let external = external.iter().filter(|external| external["path"] != "mark");
    let paths: Vec<_> = external.map(|external| (&external["path"], &external["held"])).collect();
    assert_eq!(paths, [(&Value::from("held"), &id), (&Value::from("landed"), &Value::Null)], "by what the log tells");
}

#[test]
fn a_new_daemon_tells_what_was_removed_meanwhile_and_not_what_went_through_the_view() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    view.write("new", lines(5));
    view.sh("echo one >went; rm went; echo two >moved; mv moved here; echo three >temp~; mv temp~ other").ok();
    view.sh("mkdir d; echo four >d/f; mv d e; echo five >d-new; mv -T d-new e/g").ok();
    assert_eq!(told_by_now(&scratch, &view), []);
    view.kill_all();
    for path in ["landed", "new", "here", "e/f"] {
        fs::remove_file(scratch.lower().join(path)).expect("removed below");
    }
    let view = scratch.mount_at("view");
    view.write("mark", lines(20));
    let mut told = told_by_now(&scratch, &view);
    told.sort();
    assert_eq!(told, ["e/f", "here", "landed", "new"].map(|path| is(path, "deleted")));
}

/// Nothing of what is done outside concerns the content, and all that does is the program's own, by whichever name.
#[test]
fn what_a_program_does_to_its_own_file_by_another_name_is_nobody_elses() {
    let scratch = mounted_scratch!();
    let view = known(&scratch);
    for change in
        ["touch -d 2020-01-01 c", "touch -d 2020-01-01 q", "echo more >> q", "chmod 600 q; cat q; echo more >> q"]
    {
        view.sh("seq 20 > c && ln c t").ok();
        fs::hard_link(scratch.lower().join("c"), scratch.lower().join("x")).expect("a name outside");
        view.sh("mv t q").ok();
        fs::remove_file(scratch.lower().join("x")).expect("gone again");
        view.sh(change).ok();
        let content = scratch.read("c");
        view.sh("rm c").ok();
        assert_eq!(view.only_held().path, "held", "{change}");
        assert!(!scratch.has("c") && scratch.read("q") == content, "{change}");
        let backups = view.cli(&["backups", "c", "--json"]).ok().json();
        assert_eq!(backups["backups"][0]["kind"], "deleted", "{change}");
        view.sh("rm q").ok();
    }
    assert_eq!(told_by_now(&scratch, &view), []);
}

/// A network's directory that is away, or one that docker has made root's.
#[test]
fn a_directory_that_cannot_be_looked_at_keeps_nobody_from_the_rest() {
    let (scratch, network) = (mounted_scratch!(), mounted_scratch!());
    for path in ["file", "data/file"] {
        scratch.write(path, lines(200));
    }
    let away = network.mount_at("view");
    let view = scratch.mount_at("view");
    for path in ["file", "data/file"] {
        view.write(path, lines(90));
    }
    let data = scratch.lower().join("data");
    let bound = scratch.command("mount").arg("--bind").arg(away.root()).arg(&data).status().expect("mount");
    assert!(bound.success());
    away.kill_all();
    let why = "not known whether others have changed data/file: stat data/file";
    let status = view.cli(&["status"]).ok().stdout;
    assert!(status.contains(why) && status.contains("file  "), "{status}");
    let external = view.cli(&["external"]).ok().stdout;
    assert!(external.contains(why), "{external}");
    let json: Value = view.cli(&["status", "--json"]).ok().json();
    assert_eq!(json["counters"]["held"], 2);
    view.cli(&["diff", "file"]).ok();
    view.cli(&["confirm", "data/file"]).exits(1);
    view.cli(&["confirm", "file"]).ok();
    let ended = view.unmount();
    assert!(ended.stdout.contains("data/file"), "{}", ended.stdout);
    detach(&data);
    assert_eq!(scratch.read("data/file"), lines(200));
    assert_eq!(scratch.mount_at("view").held().len(), 1);
}
