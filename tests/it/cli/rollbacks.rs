//! Backups and the ways to name the one that is to come back.

use std::fs;

use super::{EDITED, NEW, OLD, id_of, small, transcript, work};
use crate::harness::{View, lines, mounted_scratch, with_changed_lines};

/// The name of the newest backup of `path`.
#[track_caller]
fn newest(view: &View<'_>, path: &str) -> String {
    let json = view.cli(&["backups", path, "--json"]).ok().json();
    json["backups"][0]["name"].as_str().unwrap_or_else(|| panic!("no backup of {path}: {json}")).to_owned()
}

#[test]
fn a_backup_comes_back_by_its_name_by_a_glob_and_by_its_path() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let absolute = view.path("notes.txt");
    let absolute = absolute.to_str().expect("scratch paths are UTF-8");
    for how in [None, Some("notes.txt.*"), Some("notes.*"), Some("notes.txt"), Some("./notes.txt"), Some(absolute)] {
        view.write("notes.txt", EDITED);
        view.assert_landed("notes.txt", EDITED);
        let name = newest(&view, "notes.txt");
        let told = view.cli(&["rollback", how.unwrap_or(&name)]).ok().stdout;
        assert!(
            told.starts_with(&format!("fettlefs: Restored notes.txt from backup {name} (14B)\n  backup: ")),
            "{how:?}: {told}"
        );
        view.assert_landed("notes.txt", OLD);
        // What was replaced is a backup itself.
        let replaced = newest(&view, "notes.txt");
        assert_eq!(view.read(format!(".fettle/backups/{replaced}")), EDITED, "{how:?}");
    }
}

/// A bit of it changed, or its end gone.
#[test]
fn damaged_content_takes_nothings_place() {
    let damages: [fn(Vec<u8>) -> Vec<u8>; 2] =
        [|mut bytes| (bytes[70_000] ^= 1, bytes).1, |bytes| bytes[..70_000].to_vec()];
    let (old, new) = (lines(20_000), with_changed_lines(&lines(20_000), 3));
    for damage in damages {
        let scratch = mounted_scratch!();
        scratch.write("large", &old);
        let view = scratch.mount_at("view");
        view.write("large", &new);
        view.assert_landed("large", &new);
        let log = view.cli(&["log", "-n", "0", "--json"]).ok().json();
        let operation = log["events"].as_array().expect("a list").iter().find_map(|event| event["operation"].as_str());
        let operation = operation.unwrap_or_else(|| panic!("no operation: {log}"));
        let kept = fs::read_dir(scratch.project().join(".fettle/content")).expect("kept content").next();
        let kept = kept.expect("large content").expect("its name").path();
        fs::write(&kept, damage(old.clone().into_bytes())).expect("damage it");
        for args in [["rollback", "large"], ["undo", operation]] {
            let refused = view.cli(&args).exits(1);
            assert!(refused.stderr.contains("it is damaged"), "{}", refused.stderr);
            view.assert_landed("large", &new);
        }
        let name = newest(&view, "large");
        view.try_read(format!(".fettle/backups/{name}")).expect_err("the damaged bytes are no backup");
        fs::write(&kept, &old).expect("mend it");
        view.cli(&["rollback", "large"]).ok();
        view.assert_landed("large", &old);
    }
}

/// What it is to be judged against is lost then.
#[test]
fn damaged_content_stops_no_writer_of_what_is_held() {
    let scratch = mounted_scratch!();
    let (old, new) = (lines(20_000), with_changed_lines(&lines(20_000), 15_000));
    scratch.write("large", &old);
    let view = scratch.mount_at("view");
    view.write("large", &new);
    view.only_held();
    let kept = fs::read_dir(scratch.project().join(".fettle/content")).expect("kept content").next();
    let kept = kept.expect("its base").expect("its name").path();
    fs::write(&kept, "damaged").expect("damage it");
    let newer = new.replacen("line", "LINE", 1);
    view.write("large", &newer);
    view.only_held();
    view.cli(&["confirm", "large"]).ok();
    view.assert_landed("large", &newer);
}

#[test]
fn a_glob_of_names_takes_the_newest_of_each_path() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for path in ["c.txt", "d.txt"] {
        view.write(path, EDITED);
        view.assert_landed(path, EDITED);
    }
    let want = "\
$ rollback *.txt.* --to both.txt
! fettlefs: 2 backups cannot all be put to both.txt
=> 5
$ rollback [cd].txt.* --dry-run
fettlefs: Would restore d.txt from backup d.txt.[time] (14B)
fettlefs: Would restore c.txt from backup c.txt.[time] (14B)
=> 0
$ rollback *.txt.*
fettlefs: Restored d.txt from backup d.txt.[time] (14B)
  backup: d.txt.[time]
fettlefs: Restored c.txt from backup c.txt.[time] (14B)
  backup: c.txt.[time]
=> 0
";
    let commands = ["rollback *.txt.* --to both.txt", "rollback [cd].txt.* --dry-run", "rollback *.txt.*"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    view.assert_landed("c.txt", OLD);
    view.assert_landed("d.txt", OLD);
}

#[test]
fn to_puts_it_elsewhere_directories_included_relative_to_where_one_stands() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("notes.txt", EDITED);
    let mut command = scratch.fettlefs();
    command.current_dir(view.path("src")).args(["rollback", "../notes.txt", "--to", "new/notes.old"]);
    let output: crate::harness::Output = command.output().expect("the built program runs").into();
    assert!(output.ok().stdout.starts_with("fettlefs: Restored src/new/notes.old from backup notes.txt."));
    view.assert_landed("src/new/notes.old", OLD);
    view.assert_landed("notes.txt", EDITED);
    let want = "\
$ rollback notes.txt --to ../elsewhere
! fettlefs: ../elsewhere is outside the project [project]
=> 4
$ rollback notes.txt --to src
! fettlefs: src: what is there now is no file
=> 5
$ rollback nothing
! fettlefs: no backup is called nothing, or of such a path
=> 4
$ rollback src/a.rs
! fettlefs: there is no backup of src/a.rs
=> 4
$ rollback nothing.*
! fettlefs: no backup is called nothing.*, or of such a path
=> 4
";
    let commands = [
        "rollback notes.txt --to ../elsewhere",
        "rollback notes.txt --to src",
        "rollback nothing",
        "rollback src/a.rs",
        "rollback nothing.*",
    ];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    assert_eq!(view.cli(&["rollback", "nothing", "--json"]).exits(4).error_code(), "unknown_backup");
}

#[test]
fn what_somebody_edited_since_is_not_rolled_back_over_without_force() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("notes.txt", EDITED);
    view.assert_landed("notes.txt", EDITED);
    scratch.write("notes.txt", "a person's own work\n");
    let want = "\
$ rollback notes.txt
! fettlefs: notes.txt: it was edited since; --force keeps that as a backup
=> 5
$ rollback notes.txt --json
{\"v\":1,\"ok\":false,\"error\":{\"code\":\"conflict\",\"message\":\"notes.txt: it was edited since; --force keeps that as a backup\",\"path\":\"notes.txt\"}}
=> 5
$ rollback notes.txt --force
fettlefs: Restored notes.txt from backup notes.txt.[time] (14B)
  backup: notes.txt.[time]
=> 0
";
    let commands = ["rollback notes.txt", "rollback notes.txt --json", "rollback notes.txt --force"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    assert_eq!(scratch.read("notes.txt"), OLD);
    assert_eq!(view.read(format!(".fettle/backups/{}", newest(&view, "notes.txt"))), "a person's own work\n");
}

#[test]
fn a_rollback_under_a_held_change_leaves_it_held_under_a_new_id() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).flag("--window").flag("0").start();
    view.write("notes.txt", EDITED);
    view.assert_landed("notes.txt", EDITED);
    view.write("notes.txt", NEW);
    let before = id_of(&view, "notes.txt");
    view.cli(&["rollback", "notes.txt"]).ok();
    let held = view.assert_held("notes.txt", NEW, OLD);
    assert_ne!(held.id, before);
    let told = view.cli(&["confirm", &before, "--json"]).exits(5);
    assert_eq!((told.error_code().as_str(), &told.json()["error"]["new_id"]), ("superseded", &held.json["id"]));
}

#[test]
fn backups_are_listed_by_path_directory_glob_and_name() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    let names = |arguments: &[&str]| {
        let json = view.cli(&[&["backups", "--json"], arguments].concat()).ok().json();
        let backups = json["backups"].as_array().expect("backups").iter();
        let mut paths: Vec<String> =
            backups.map(|backup| backup["path"].as_str().expect("a path").to_owned()).collect();
        paths.sort();
        paths
    };
    assert_eq!(names(&[]), ["notes.txt", "src/a.rs", "src/b.rs"]);
    assert_eq!(names(&["src"]), ["src/a.rs", "src/b.rs"]);
    assert_eq!(names(&["src/*.rs"]), ["src/a.rs", "src/b.rs"]);
    assert_eq!(names(&["src/a.rs", "notes.txt"]), ["notes.txt", "src/a.rs"]);
    assert_eq!(names(&[&newest(&view, "notes.txt")]), ["notes.txt"]);
    assert_eq!(names(&["nowhere"]), Vec::<String>::new());
    assert_eq!(names(&["-n", "1"]).len(), 1);
    assert_eq!(view.cli(&["backups", "nowhere"]).ok().stdout, "fettlefs: No backups\n");
}
