//! Without a mount: the state directory is read and acted on under the lock.

use super::{EDITED, NEW, OLD, named, small, transcript, work};
use crate::harness::{Output, Scratch, mounted_scratch};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn what_was_held_is_looked_at_and_acted_on_without_a_mount() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.write("c.txt", NEW);
    let in_view = named(&scratch, &view.cli(&["diff"]).ok().stdout);
    view.unmount();
    assert_eq!(named(&scratch, &scratch.cli(&["diff"]).ok().stdout), in_view);
    let commands = [
        "status",
        "show src/b.rs",
        "backups",
        "log -n 2",
        "external",
        "flush",
        "reload",
        "unmount",
        "unmount --json",
        "confirm src/a.rs --dry-run",
        "confirm src/a.rs",
        "confirm src/b.rs --json",
        "discard c.txt",
        "rollback notes.txt",
        "confirm c.txt",
        "rollback nothing",
        "status",
    ];
    let want = "\
$ status
fettlefs: [project] is not mounted; 3 held

Held for review:
  [id1]  c.txt     +3 -3  200%  size  [age]
  [id2]  src/a.rs  +3 -3  200%  size  [age]
  [id3]  src/b.rs  +0 -3  100%  size  [age]  [delete]

  fettlefs diff ID            see what would change
  fettlefs confirm ID         land it in the project
  fettlefs discard ID         drop it from the view
=> 0
$ show src/b.rs
change [id3]
Path:    src/b.rs
Kind:    delete, +0 -3 (100% of 3 lines)
Reason:  size
Writer:  pid [pid], uid [uid], [exe]
Written: [cmdline]
Held:    [time] ([age])

diff --git a/src/b.rs b/src/b.rs
deleted file mode 100644
--- a/src/b.rs
+++ /dev/null
@@ -1,3 +0,0 @@
-one
-two
-three

=> 0
$ backups
notes.txt.[time]  notes.txt  14B  landed  [age]
=> 0
$ log -n 2
[time]  write held         [id1]  c.txt  +3 -3  size  by [exe]
[time]  session ended
=> 0
$ external
=> 0
$ flush
=> 0
$ reload
fettlefs: Reloaded the settings
=> 0
$ unmount
! fettlefs: unmount: [project] is not mounted
=> 3
$ unmount --json
{\"v\":1,\"ok\":false,\"error\":{\"code\":\"not_mounted\",\"message\":\"unmount: [project] is not mounted\"}}
=> 3
$ confirm src/a.rs --dry-run
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm src/a.rs
fettlefs: Applied src/a.rs (14B, 3 lines, +3 -3 ~3)
  backup: a.rs.[time]
=> 0
$ confirm src/b.rs --json
{\"v\":1,\"ok\":true,\"op\":\"confirm\",\"outcomes\":[{\"action\":\"applied\",\"path\":\"src/b.rs\",\"id\":\"[id3]\",\"kind\":\"delete\",\"insertions\":0,\"deletions\":3,\"ratio\":1.0,\"backup\":\"b.rs.[time]\",\"operation\":\"[op]\"}],\"dry_run\":false}
=> 0
$ discard c.txt
fettlefs: Discarded c.txt (id [id1])
  backup: c.txt.[time]
=> 0
$ rollback notes.txt
fettlefs: Restored notes.txt from backup notes.txt.[time] (14B)
  backup: notes.txt.[time]
=> 0
$ confirm c.txt
! fettlefs: nothing is held at c.txt
=> 4
$ rollback nothing
! fettlefs: no backup is called nothing, or of such a path
=> 4
$ status
fettlefs: [project] is not mounted; 0 held

Nothing is held.
=> 0
";
    assert_eq!(transcript(&scratch, &commands, |arguments| scratch.cli(arguments)), want);
    assert_eq!((scratch.read("src/a.rs"), scratch.has("src/b.rs")), (NEW.to_owned(), false));
    assert_eq!((scratch.read("c.txt"), scratch.read("notes.txt")), (OLD.to_owned(), OLD.to_owned()));
    // The next mount finds what was done meanwhile.
    let view = scratch.mount();
    assert!(view.held().is_empty() && view.read("c.txt") == OLD && !view.has("src/b.rs"));
}

#[test]
fn broken_settings_keep_nobody_from_what_is_held_and_nothing_lands_by_them() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.unmount();
    scratch.write(".fettle.toml", "ceil = \"many\"\n");
    let commands = ["status", "confirm src/a.rs", "rollback notes.txt", "reload", "discard src/b.rs"];
    let want = "\
$ status
fettlefs: [project] is not mounted; 2 held
note: only what is built in is in force: .fettle.toml:1: ceil = \"many\": must be a whole number from 0 to 1000000

Held for review:
  [id1]  src/a.rs  +3 -3  200%  size  [age]
  [id2]  src/b.rs  +0 -3  100%  size  [age]  [delete]

  fettlefs diff ID            see what would change
  fettlefs confirm ID         land it in the project
  fettlefs discard ID         drop it from the view
=> 0
$ confirm src/a.rs
! fettlefs: confirm needs the rules, and they cannot be read: .fettle.toml:1: ceil = \"many\": must be a whole number from 0 to 1000000
=> 2
$ rollback notes.txt
! fettlefs: rollback needs the rules, and they cannot be read: .fettle.toml:1: ceil = \"many\": must be a whole number from 0 to 1000000
=> 2
$ reload
! fettlefs: reload needs the rules, and they cannot be read: .fettle.toml:1: ceil = \"many\": must be a whole number from 0 to 1000000
=> 2
$ discard src/b.rs
fettlefs: Discarded src/b.rs (id [id2])
=> 0
";
    assert_eq!(transcript(&scratch, &commands, |arguments| scratch.cli(arguments)), want);
    scratch.cli(&["fsck"]).ok();
    assert_eq!((scratch.read("src/a.rs"), scratch.read("notes.txt")), (OLD.to_owned(), EDITED.to_owned()));
    scratch.write(".fettle.toml", "");
    scratch.cli(&["confirm", "src/a.rs"]).ok();
    assert_eq!(scratch.read("src/a.rs"), NEW);
}

#[test]
fn a_subdirectory_of_an_unmounted_project_finds_it() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    drop(view);
    let in_src = |arguments: &[&str]| -> Output {
        let mut command = scratch.fettlefs();
        command
            .current_dir(scratch.project().join("src"))
            .args(arguments)
            .output()
            .expect("the built program runs")
            .into()
    };
    let status = |output: Output| output.ok().json()["held"].as_array().map(Vec::len);
    assert_eq!(status(in_src(&["status", "--json"])), Some(2));
    assert_eq!(
        in_src(&["confirm", "a.rs"]).ok().stdout.lines().next(),
        Some("fettlefs: Applied src/a.rs (14B, 3 lines, +3 -3 ~3)")
    );
    assert_eq!(
        in_src(&["discard", "."]).ok().stdout.split_once(" (").map(|(first, _)| first),
        Some("fettlefs: Discarded src/b.rs")
    );
    assert_eq!(
        (scratch.read("src/a.rs"), scratch.read("src/b.rs"), scratch.read("notes.txt")),
        (NEW.into(), OLD.into(), EDITED.into())
    );
}

#[test]
fn state_directories_may_stand_elsewhere_and_leave_the_project_alone() {
    let scratch = mounted_scratch!();
    let place = |name: &str| scratch.root().join("away").join(name);
    let named = [("FETTLE_STATE_DIR", "state"), ("FETTLE_BACKUP_DIR", "kept"), ("FETTLE_STAGE_DIR", "stage")];
    let mounting = named.iter().fold(small(&scratch), |mounting, (name, dir)| mounting.env(*name, place(dir)));
    let view = mounting.start();
    let cli = |arguments: &[&str], directory: std::path::PathBuf| -> Output {
        let mut command = scratch.fettlefs();
        command.envs(named.iter().map(|(name, dir)| (name, place(dir)))).current_dir(directory).args(arguments);
        command.output().expect("the built program runs").into()
    };
    work(&view);
    assert_eq!(cli(&["status", "--json"], scratch.project()).ok().json()["held"].as_array().map(Vec::len), Some(2));
    view.unmount();
    assert!(!scratch.has(".fettle"), "the project has a .fettle all the same");
    // What may be shared with other projects has a private directory for this one.
    let own = |name: &str| match name {
        "state" => place(name),
        _ => std::fs::read_dir(place(name)).expect("it was made").next().expect("an entry").expect("an entry").path(),
    };
    for (_, dir) in named {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(own(dir)).unwrap_or_else(|err| panic!("{dir}: {err}")).permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{dir}");
    }
    // From a subdirectory, too: the state directory names its project.
    let src = scratch.project().join("src");
    assert_eq!(
        cli(&["confirm", "a.rs"], src.clone()).ok().stdout.lines().next(),
        Some("fettlefs: Applied src/a.rs (14B, 3 lines, +3 -3 ~3)")
    );
    cli(&["discard", "b.rs"], src.clone()).ok();
    cli(&["rollback", "a.rs"], src).ok();
    assert_eq!((scratch.read("src/a.rs"), scratch.read("src/b.rs")), (OLD.to_owned(), OLD.to_owned()));
    scratch.cli(&["status"]).exits(3);
}

#[test]
fn a_project_that_is_mounted_is_not_worked_on_behind_the_daemons_back() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    work(&view);
    // Without its socket nobody reaches the daemon from below; the lock stays.
    std::fs::remove_file(scratch.lower().join(".fettle/control.sock")).expect("the socket is there");
    let refused = scratch.cli(&["confirm", "src/a.rs"]).exits(5);
    let want = "! fettlefs: the project is in use by pid [pid], mounted on [scratch]/view\n=> 5\n";
    assert_eq!(super::told(&scratch, &refused), want);
    assert_eq!(view.held().len(), 2);
}

/// `status` and `mount` of a project, with the state directory named by the variable.
fn asked_with_state(scratch: &Scratch, project: &Path, state: &Path) -> [Output; 2] {
    ["status", "mount"].map(|command| {
        let mut program = scratch.fettlefs();
        program.env("FETTLE_STATE_DIR", state).current_dir(project).arg(command);
        program.output().expect("the built program runs").into()
    })
}

#[test]
fn a_state_directory_that_cannot_be_used_is_named_with_what_is_wrong() {
    let scratch = mounted_scratch!();
    let file = scratch.root().join("file");
    std::fs::write(&file, "no directory").expect("a file");
    for (state, shown) in [(file.clone(), "[scratch]/file"), (file.join("in"), "[scratch]/file/in")] {
        for output in asked_with_state(&scratch, &scratch.project(), &state) {
            let want = format!("! fettlefs: look into state directory {shown}: Not a directory (os error 20)\n=> 1\n");
            assert_eq!(super::told(&scratch, &output), want);
        }
    }
    for variable in ["FETTLE_BACKUP_DIR", "FETTLE_STAGE_DIR"] {
        let said = super::told(&scratch, &scratch.mounting().env(variable, &file).run());
        assert!(said.contains("[scratch]/file/") && said.ends_with("Not a directory (os error 20)\n=> 1\n"), "{said}");
    }
}

#[test]
fn a_damaged_state_directory_is_named_by_its_whole_path() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle/fettle.db", "no database".repeat(100));
    for output in [scratch.mounting().run(), scratch.cli(&["status"])] {
        let want = "! fettlefs: state directory [project]/.fettle is damaged: its database fettle.db, or the log of that, \
                    fettle.db-wal: file is not a database; put both back from a copy, or move the directory elsewhere: the \
                    next mount begins anew, and what was held is in `stage` there\n=> 1\n";
        assert_eq!(super::told(&scratch, &output), want);
    }
    let mode = std::fs::metadata(scratch.project().join(".fettle")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "made by hand, it is private all the same");
    let found = scratch.cli(&["doctor"]).exits(1).stdout;
    assert!(found.contains("  fault  state: state directory ") && found.contains("file is not a database"), "{found}");
}

#[test]
fn a_project_that_was_moved_is_named_anew_to_its_state() {
    let scratch = mounted_scratch!();
    let (state, moved) = (scratch.root().join("state"), scratch.root().join("moved"));
    let view = small(&scratch).env("FETTLE_STATE_DIR", &state).start();
    work(&view);
    view.unmount();
    std::fs::rename(scratch.project(), &moved).expect("a move");
    let link = "! fettlefs: the state directory [scratch]/state belongs to [project], not to [scratch]/moved; \
        [project] is gone: if it was moved, `ln -sfn ITS_NEW_PATH [scratch]/state/project`\n=> 2\n";
    for output in asked_with_state(&scratch, &moved, &state) {
        assert_eq!(super::told(&scratch, &output), link);
    }
    std::fs::remove_file(state.join("project")).expect("the link");
    std::os::unix::fs::symlink(&moved, state.join("project")).expect("another");
    asked_with_state(&scratch, &moved, &state).into_iter().for_each(|output| drop(output.ok()));
    Output::from(scratch.fettlefs().arg("unmount").arg(&moved).output().expect("the built program runs")).ok();
    std::fs::rename(&moved, scratch.project()).expect("back");
}

/// The variable names another clone's own state.
#[test]
fn the_state_within_another_project_answers_nothing_about_this_one() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.unmount();
    let other = scratch.root().join("other");
    std::fs::create_dir_all(&other).expect("another project");
    let state = scratch.project().join(".fettle");
    let want = "! fettlefs: the state directory [project]/.fettle belongs to [project], not to [scratch]/other\n=> 2\n";
    for output in asked_with_state(&scratch, &other, &state) {
        assert_eq!(super::told(&scratch, &output), want);
    }
    let [own, _] = asked_with_state(&scratch, &scratch.project(), &state);
    assert!(own.ok().stdout.contains("Held for review"));
}

#[test]
fn the_state_of_another_project_answers_nothing_about_this_one() {
    let scratch = mounted_scratch!();
    let state = scratch.root().join("state");
    let view = small(&scratch).env("FETTLE_STATE_DIR", &state).start();
    work(&view);
    let in_view = scratch.fettlefs().env("FETTLE_STATE_DIR", &state).current_dir(view.root()).arg("status").output();
    Output::from(in_view.expect("the built program runs")).ok();
    view.unmount();
    let other = scratch.root().join("other");
    std::fs::create_dir_all(&other).expect("another project");
    let want = "! fettlefs: the state directory [scratch]/state belongs to [project], not to [scratch]/other\n=> 2\n";
    for own_state in [None, Some(other.join(".fettle"))] {
        own_state.iter().for_each(|own| std::fs::create_dir(own).expect("its own state"));
        for output in asked_with_state(&scratch, &other, &state) {
            assert_eq!(super::told(&scratch, &output), want);
        }
    }
    // A view of the named project is the project, wherever it is mounted.
    let view = small(&scratch).env("FETTLE_STATE_DIR", &state).at("view").start();
    let status = scratch.fettlefs().env("FETTLE_STATE_DIR", &state).current_dir(view.root()).arg("status").output();
    assert!(Output::from(status.expect("the built program runs")).ok().stdout.contains("2 held"));
}

/// A landing keeps the directory of each of its files open, and a shell permits 1024 at once.
#[test]
fn as_many_changes_are_confirmed_without_a_mount_as_with_one() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let paths: Vec<String> = (0..200).map(|number| format!("many{number}/f")).collect();
    paths.iter().for_each(|path| scratch.write(path, OLD));
    paths.iter().for_each(|path| view.write(path, NEW));
    view.unmount();
    let mut confirm = scratch.command("prlimit");
    confirm.arg("--nofile=128:").arg(scratch.fettlefs().get_program()).arg("-C").arg(scratch.project());
    Output::from(confirm.args(["confirm", "--all", "--yes"]).output().expect("prlimit")).ok();
    paths.iter().for_each(|path| assert_eq!(scratch.read(path), NEW, "{path}"));
}
