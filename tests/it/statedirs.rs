//! What becomes of the state when its directories are shared, copied, moved, unplugged, or emptied under a view.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Output, Scratch, Tree, View, eventually, lines, mounted_scratch, run, with_changed_lines};

const PLACES: [&str; 2] = ["FETTLE_STAGE_DIR", "FETTLE_BACKUP_DIR"];

fn rewritten() -> String {
    with_changed_lines(&lines(200), 200)
}

/// A scratch whose content stands elsewhere: upper content and backups in one directory, or in one each.
struct Elsewhere {
    scratch: Scratch,
    dirs: [PathBuf; 2],
}

impl Elsewhere {
    fn new(scratch: Scratch, [stage, kept]: [&str; 2]) -> Self {
        let dirs = [scratch.root().join(stage), scratch.root().join(kept)];
        for path in ["a", "b"] {
            scratch.write(path, lines(200));
        }
        scratch.write("large", lines(20_000));
        Self { scratch, dirs }
    }

    fn env(&self, command: &mut Command) {
        command.envs(PLACES.iter().zip(&self.dirs));
    }

    fn mount(&self) -> View<'_> {
        let mounting = self.scratch.mounting().at("view");
        PLACES.iter().zip(&self.dirs).fold(mounting, |mounting, (name, dir)| mounting.env(name, dir)).start()
    }

    fn cli(&self, project: &Path, args: &[&str]) -> Output {
        let mut command = self.scratch.fettlefs();
        self.env(&mut command);
        command.current_dir(project).args(args).output().expect("the built program runs").into()
    }

    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.scratch.root().join(name);
        run("cp", &["-a", &self.scratch.project().display().to_string(), &copy.display().to_string()]);
        copy
    }

    fn held(&self, project: &Path) -> usize {
        let status = self.cli(project, &["status", "--json"]).ok().json();
        status["held"].as_array().expect("what is held").len()
    }

    /// The directories of states in those given.
    fn of_states(&self) -> Vec<PathBuf> {
        let entries = self.dirs.iter().flat_map(|dir| fs::read_dir(dir).expect("it was made"));
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        found.sort();
        found.dedup();
        found
    }
}

/// Two are held, and a large one has landed.
fn work(view: &View<'_>) {
    view.write("a", rewritten());
    view.write("b", rewritten());
    view.write("large", with_changed_lines(&lines(20_000), 3));
}

#[test]
fn a_copy_of_a_project_takes_nothing_of_what_the_original_keeps_elsewhere() {
    for dirs in [["stage", "kept"], ["both", "both"]] {
        let elsewhere = Elsewhere::new(mounted_scratch!(), dirs);
        let project = elsewhere.scratch.project();
        elsewhere.mount().unmount();
        let early = elsewhere.copy("early");
        let view = elsewhere.mount();
        work(&view);
        // Beside the mounted original.
        assert_eq!(elsewhere.held(&early), 0);
        assert_eq!(view.read("a"), rewritten());
        view.fsck();
        let during = elsewhere.copy("during");
        assert_eq!(elsewhere.held(&during), 2);
        view.unmount();
        let copy = elsewhere.copy("copy");
        assert_eq!(elsewhere.held(&copy), 2);
        for args in [&["confirm", "a"][..], &["discard", "b"], &["rollback", "large"], &["fsck"]] {
            elsewhere.cli(&copy, args).ok();
        }
        assert_eq!(fs::read_to_string(copy.join("a")).expect("it landed"), rewritten());
        assert_eq!(fs::read_to_string(copy.join("large")).expect("it is there"), lines(20_000));
        elsewhere.cli(&project, &["fsck"]).ok();
        assert_eq!(elsewhere.held(&project), 2);
        for args in [&["confirm", "a", "b"][..], &["rollback", "large"], &["fsck"]] {
            elsewhere.cli(&project, args).ok();
        }
        assert_eq!((elsewhere.scratch.read("a"), elsewhere.scratch.read("large")), (rewritten(), lines(20_000)));
        elsewhere.cli(&during, &["confirm", "--all", "--yes"]).ok();
        elsewhere.cli(&during, &["fsck"]).ok();
    }
}

#[test]
fn a_moved_project_finds_what_it_keeps_elsewhere() {
    let elsewhere = Elsewhere::new(mounted_scratch!(), ["stage", "kept"]);
    let view = elsewhere.mount();
    work(&view);
    view.unmount();
    let before = elsewhere.of_states();
    let moved = elsewhere.scratch.root().join("moved");
    fs::rename(elsewhere.scratch.project(), &moved).expect("move it");
    assert_eq!((elsewhere.held(&moved), elsewhere.of_states()), (2, before.clone()));
    // As to another file system: a copy, and the original is no more.
    fs::rename(&moved, elsewhere.scratch.project()).expect("move it back");
    let copy = elsewhere.copy("copy");
    fs::remove_dir_all(elsewhere.scratch.project()).expect("remove it");
    for args in [&["confirm", "a", "b"][..], &["rollback", "large"], &["fsck"]] {
        elsewhere.cli(&copy, args).ok();
    }
    assert_eq!(fs::read_to_string(copy.join("a")).expect("it landed"), rewritten());
    assert!(before.iter().all(|dir| dir.is_dir()), "what may be another's is gone");
}

/// By what was there before directories said whose they are.
#[test]
fn content_elsewhere_that_does_not_say_whose_it_is_is_copied() {
    let elsewhere = Elsewhere::new(mounted_scratch!(), ["stage", "kept"]);
    let view = elsewhere.mount();
    work(&view);
    view.unmount();
    let before = elsewhere.of_states();
    before.iter().for_each(|dir| fs::remove_file(dir.join("owner")).expect("it says whose it is"));
    let held = Tree::of(&before[1]);
    assert_eq!(elsewhere.held(&elsewhere.scratch.project()), 2);
    elsewhere.cli(&elsewhere.scratch.project(), &["discard", "a", "b"]).ok();
    assert!(held.0.len() == 2 && Tree::of(&before[1]).differences(&held).is_empty(), "{before:?}");
    elsewhere.cli(&elsewhere.scratch.project(), &["fsck"]).ok();
}

/// As after a reboot: the mountpoint is there, and the disk is not.
#[test]
fn content_on_a_disk_that_is_not_mounted_is_missed_by_every_start() {
    for (gone, variable) in [(0, "FETTLE_STAGE_DIR"), (1, "FETTLE_BACKUP_DIR")] {
        let elsewhere = Elsewhere::new(mounted_scratch!(), ["stage", "kept"]);
        let (project, place) = (elsewhere.scratch.project(), elsewhere.dirs[gone].clone());
        let view = elsewhere.mount();
        work(&view);
        view.unmount();
        let away = elsewhere.scratch.root().join("away");
        fs::rename(&place, &away).expect("the disk goes");
        fs::create_dir(&place).expect("the mountpoint stays");
        for args in [&["status"][..], &["discard", "a"], &["rollback", "large"], &["mount"]] {
            let refused = elsewhere.cli(&project, args).exits(1).stderr;
            assert!(refused.contains(variable) && refused.contains("is its disk mounted?"), "{args:?}: {refused}");
        }
        fs::remove_dir(&place).expect("it is empty");
        fs::rename(&away, &place).expect("the disk is mounted");
        assert_eq!(elsewhere.held(&project), 2);
        for args in [&["confirm", "a", "b"][..], &["rollback", "large"], &["fsck"]] {
            elsewhere.cli(&project, args).ok();
        }
    }
}

#[test]
fn a_discard_of_what_is_gone_says_that_there_is_no_backup() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    view.unmount();
    let stage = scratch.project().join(".fettle/stage");
    fs::read_dir(&stage)
        .expect("stage")
        .for_each(|entry| fs::remove_file(entry.expect("one").path()).expect("it goes"));
    let told = scratch.cli(&["discard", "a"]).ok().stdout;
    assert!(
        told.starts_with("fettlefs: Discarded a (id ") && told.contains("its content is gone: no backup"),
        "{told}"
    );
    let log = scratch.cli(&["log"]).ok().stdout;
    assert!(log.lines().any(|line| line.contains("discarded") && line.contains("gone: no backup")), "{log}");
    assert!(scratch.cli(&["backups"]).ok().stdout.contains("No backups"));
}

#[test]
fn a_daemon_that_comes_in_the_place_of_a_dead_one_makes_no_state() {
    for (gone, is_made_anew) in [("state", false), ("state", true), ("stage", false), ("stage", true)] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(200));
        let places = [("FETTLE_STATE_DIR", "state"), ("FETTLE_STAGE_DIR", "stage")];
        let place = |name: &str| scratch.root().join(name);
        let mounting = scratch.mounting().at("view");
        let view = places.iter().fold(mounting, |mounting, (name, dir)| mounting.env(*name, place(dir))).start();
        view.write("a", rewritten());
        let daemon = view.daemon_pid();
        // As when its disk is unplugged: the mountpoint is left.
        fs::rename(place(gone), place("away")).expect("take it away");
        if is_made_anew {
            fs::create_dir(place(gone)).expect("the mountpoint");
        }
        crate::harness::kill(daemon);
        eventually("the mount is taken away", || !view.is_mounted() && scratch.daemons().is_empty());
        let left = fs::read_dir(place(gone)).map(Iterator::count).unwrap_or_default();
        assert_eq!((place(gone).exists(), left), (is_made_anew, 0), "{gone}");
        if is_made_anew {
            fs::remove_dir(place(gone)).expect("it is empty");
        }
        fs::rename(place("away"), place(gone)).expect("put it back");
        let mut status = scratch.fettlefs();
        status.envs(places.map(|(name, dir)| (name, place(dir)))).current_dir(scratch.project()).arg("status");
        let status = Output::from(status.output().expect("the built program runs")).ok();
        assert!(status.stdout.contains("1 held"), "{}", status.stdout);
        scratch.clear();
    }
}

#[test]
fn a_state_directory_that_goes_with_its_daemon_is_not_made_anew() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    let state = scratch.project().join(".fettle");
    let daemon = view.daemon_pid();
    fs::rename(&state, scratch.root().join("away")).expect("take it away");
    crate::harness::kill(daemon);
    eventually("the mount is taken away", || !view.is_mounted() && scratch.daemons().is_empty());
    assert!(!state.exists());
    fs::rename(scratch.root().join("away"), &state).expect("put it back");
    assert!(scratch.cli(&["status"]).ok().stdout.contains("1 held"));
}

/// What removes files of the state, and whether what is held can be kept all the same.
const REMOVALS: [(&str, bool); 4] = [
    ("rm fettle.db", true),
    ("rm fettle.db-wal", true),
    ("rm fettle.db fettle.db-wal", true),
    ("rm fettle.db fettle.db-wal; echo else > fettle.db", false),
];

#[test]
fn a_database_that_is_removed_under_a_view_is_told_and_what_was_held_is_kept_where_it_can_be() {
    for (removal, is_kept) in REMOVALS {
        for how in ["status", "fsck", "unmount"] {
            let scratch = mounted_scratch!();
            scratch.write("a", lines(200));
            scratch.write("b", lines(200));
            let view = scratch.mount_at("view");
            view.write("a", rewritten());
            let state = scratch.project().join(".fettle");
            let removed = scratch.command("sh").current_dir(&state).args(["-c", removal]).status();
            assert!(removed.expect("a shell").success());
            let told = "the state database was removed or replaced";
            let said = |output: &Output| assert!(output.stdout.contains(told), "{removal}: {how}: {}", output.stdout);
            match how {
                "status" => said(&view.cli(&["status"]).ok()),
                "fsck" => said(&view.cli(&["fsck"]).exits(1)),
                _ => {}
            }
            if how == "status" {
                // Nothing is accepted that could not be kept.
                let refused = fs::write(view.path("b"), rewritten()).expect_err("nothing is written any more");
                assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "{removal}");
                view.kill_all();
                scratch.fettlefs().arg("unmount").arg(view.root()).status().expect("it runs");
            } else {
                let unmounted = scratch.fettlefs().arg("unmount").arg(view.root()).output().expect("it runs");
                let unmounted = Output::from(unmounted).ok();
                said(&unmounted);
                assert_eq!(unmounted.stdout.contains("Held for review"), is_kept, "{}", unmounted.stdout);
                eventually("the daemon is gone", || scratch.daemons().is_empty());
            }
            let status = scratch.cli(&["status"]);
            match is_kept {
                true => {
                    assert!(status.ok().stdout.contains("1 held"), "{removal}: {how}");
                    scratch.cli(&["fsck"]).ok();
                    scratch.cli(&["confirm", "a"]).ok();
                    assert_eq!(scratch.read("a"), rewritten());
                }
                false => assert!(status.exits(1).stderr.contains("is damaged"), "{removal}: {how}"),
            }
        }
    }
}

/// Else the next mount would hide what the rows tell of: the files that have it are gone.
#[test]
fn a_state_directory_that_is_emptied_under_a_view_is_told_as_lost_and_hides_nothing() {
    for removal in ["rm -rf ./*", "rm -r fettle.db* stage", "rm -r stage"] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(200));
        let view = scratch.mount_at("view");
        view.write("a", rewritten());
        let state = scratch.project().join(".fettle");
        let removed = scratch.command("sh").current_dir(&state).args(["-c", removal]).status();
        assert!(removed.expect("a shell").success());
        let status = view.cli(&["status"]).ok().stdout;
        assert!(status.contains("what was held"), "{removal}: {status}");
        let unmounted = scratch.fettlefs().arg("unmount").arg(view.root()).output().expect("it runs");
        let unmounted = Output::from(unmounted).ok().stdout;
        assert!(
            unmounted.contains("what was held") && !unmounted.contains("Held for review"),
            "{removal}: {unmounted}"
        );
        eventually("the daemon is gone", || scratch.daemons().is_empty());
        if removal != "rm -r stage" {
            let view = scratch.mount_at("view");
            assert_eq!(view.read("a"), lines(200), "{removal}");
            view.cli(&["fsck"]).ok();
            view.unmount();
        }
    }
}

#[test]
fn what_is_saved_after_the_database_was_removed_is_kept_or_refused() {
    for removal in ["rm fettle.db", "rm fettle.db-wal", "rm fettle.db fettle.db-wal"] {
        let scratch = mounted_scratch!();
        ["a", "b", "c"].iter().for_each(|path| scratch.write(path, lines(200)));
        let view = scratch.mount_at("view");
        view.write("a", rewritten());
        let state = scratch.project().join(".fettle");
        let removed = scratch.command("sh").current_dir(&state).args(["-c", removal]).status();
        assert!(removed.expect("a shell").success());
        let saved = ["b", "c"].map(|path| fs::write(view.path(path), rewritten()).is_ok());
        view.cli(&["status"]).ok();
        view.kill_all();
        scratch.fettlefs().arg("unmount").arg(view.root()).status().expect("it runs");
        let held = scratch.cli(&["status", "--json"]).ok().json()["held"].to_string();
        for (path, is_saved) in ["b", "c"].iter().zip(saved) {
            assert!(!is_saved || held.contains(&format!("\"{path}\"")), "{removal}: {path}: {held}");
        }
        assert!(held.contains("\"a\""), "{removal}: {held}");
    }
}

const AGENT: u32 = 65534;

#[test]
fn an_owner_works_on_where_roots_daemon_was_killed() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let give = |path: &Path| chown(path, Some(AGENT), Some(AGENT)).expect("root may");
    [scratch.project(), scratch.project().join("a")].iter().for_each(|path| give(path));
    fs::set_permissions(scratch.root(), PermissionsExt::from_mode(0o777)).expect("a mode");
    scratch.mount_at("view").unmount();
    // As if the owner had made it.
    run("chown", &["-R", &format!("{AGENT}:{AGENT}"), &scratch.project().display().to_string()]);
    let as_owner = |args: &[&str]| -> Output {
        let mut command = scratch.command("setpriv");
        command.args([&format!("--reuid={AGENT}"), &format!("--regid={AGENT}"), "--clear-groups", "--inh-caps=-all"]);
        command.arg(scratch.fettlefs().get_program()).arg("-C").arg(scratch.project()).args(args);
        command.current_dir(scratch.root()).output().expect("setpriv").into()
    };
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    // As long as it lives it is root's to answer.
    as_owner(&["status"]).exits(6);
    view.kill_all();
    assert!(as_owner(&["status"]).ok().stdout.contains("1 held"));
    as_owner(&["confirm", "a"]).ok();
    assert_eq!(scratch.read("a"), rewritten());
    scratch.fettlefs().arg("unmount").arg(view.root()).status().expect("it runs");
}

#[test]
fn a_place_for_backups_that_is_gone_stops_no_writer_and_has_what_it_would_have_kept_held() {
    let elsewhere = Elsewhere::new(mounted_scratch!(), ["stage", "kept"]);
    let large = lines(20_000);
    elsewhere.scratch.write("removed", &large);
    let view = elsewhere.mount();
    fs::remove_dir_all(&elsewhere.dirs[1]).expect("it was made");
    let edited = with_changed_lines(&large, 3);
    view.write("large", &edited);
    fs::remove_file(view.path("removed")).expect("its deletion is held");
    assert_eq!(view.assert_held("large", &edited, &large).reason, "backup");
    assert_eq!((view.held().len(), elsewhere.scratch.read("removed")), (2, large));
    let diff = elsewhere.cli(view.root(), &["diff", "large"]).ok().stdout;
    assert!(diff.contains("+changed line 1"), "{diff}");
}
