//! What becomes of the state when its database is gone, put back from an older copy, in another program's
//! hands, or somebody else's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::harness::{Output, Scratch, Stopped, eventually, lines, mounted_scratch, run, with_changed_lines, within};

const NOBODY: u32 = 65534;

fn rewritten() -> String {
    with_changed_lines(&lines(200), 200)
}

fn state(scratch: &Scratch) -> PathBuf {
    scratch.project().join(".fettle")
}

/// Something is held, and nothing is mounted.
fn held(scratch: &Scratch) {
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    view.unmount();
}

/// What is held is a deletion, and the backup is small: all that was done is in the log alone.
#[test]
fn a_database_that_is_gone_or_empty_beside_its_log_is_refused_and_left_as_it_is() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 2] = [
        ("removed", |file| fs::remove_file(file).expect("the database")),
        ("empty", |file| fs::write(file, "").expect("the database")),
    ];
    for (how, damage) in damages {
        let scratch = mounted_scratch!();
        scratch.write("held", lines(200));
        scratch.write("kept", lines(200));
        let view = scratch.mount_at("view");
        fs::remove_file(view.path("held")).expect("it goes from the view");
        view.write("kept", with_changed_lines(&lines(200), 3));
        assert_eq!(view.only_held().path, "held");
        view.kill_all();
        let (database, log) = (state(&scratch).join("fettle.db"), state(&scratch).join("fettle.db-wal"));
        let (saved, whole_log) = (scratch.root().join("saved"), fs::read(&log).expect("the log"));
        fs::copy(&database, &saved).expect("a copy");
        damage(&database);
        let left = fs::read(&database).ok();
        eventually("the killed daemon is gone", || !scratch.cli(&["status"]).stderr.contains("ask again"));
        for args in [&["status"][..], &["fsck"], &["backups"], &["confirm", "--all", "--yes"], &["mount"]] {
            let mut refused = scratch.fettlefs();
            refused.current_dir(scratch.project()).args(args);
            let refused: Output = refused.output().expect("the built program runs").into();
            assert_eq!(refused.status, 1, "{how}, {args:?}: {} {}", refused.stdout, refused.stderr);
            assert!(refused.stderr.contains("is damaged"), "{how}, {args:?}: {}", refused.stderr);
            assert!(fs::read(&log).ok().as_ref() == Some(&whole_log), "{how}, {args:?}: the log stays");
            assert_eq!(fs::read(&database).ok(), left, "{how}, {args:?}");
        }
        fs::copy(&saved, &database).expect("the database is put back");
        let view = scratch.mount_at("view");
        assert_eq!(view.only_held().path, "held");
        view.cli(&["rollback", "kept"]).ok();
        assert_eq!(scratch.read("kept"), lines(200));
        view.unmount();
    }
}

/// Opens the database as a person's `sqlite3` does, which keeps it until it ends.
fn look_into(scratch: &Scratch) -> Connection {
    let database = Connection::open(state(scratch).join("fettle.db")).expect("another program opens it");
    let held: i64 = database.query_row("SELECT count(*) FROM upper", [], |row| row.get(0)).expect("and reads it");
    assert_eq!(held, 1);
    database
}

#[test]
fn a_database_that_another_program_has_open_is_busy_and_not_damaged() {
    let scratch = mounted_scratch!();
    held(&scratch);
    let other = look_into(&scratch);
    for output in [scratch.cli(&["status"]), scratch.mounting().at("view").run()] {
        assert_eq!(output.status, 5, "{}", output.stderr);
        let said = "fettlefs: state directory [project]/.fettle: another program has fettle.db open\n";
        assert_eq!(scratch.normalise(&output.stderr), said);
    }
    drop(other);
    assert!(scratch.cli(&["status"]).ok().stdout.contains("1 held"));
}

#[test]
fn a_daemon_in_place_of_a_dead_one_waits_for_another_program_that_has_the_database_open() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    let daemon = view.daemon_pid();
    let stopped: Vec<Stopped> = scratch.daemons().into_iter().filter(|pid| *pid != daemon).map(Stopped::new).collect();
    assert!(!stopped.is_empty(), "there is a watchdog");
    view.kill_daemon();
    let other = look_into(&scratch);
    drop(stopped);
    assert!(!within(Duration::from_secs(4), || !view.is_mounted()), "the mount was taken away");
    drop(other);
    eventually("another daemon answers", || view.is_served_again(daemon));
    view.assert_held("a", &rewritten(), &lines(200));
}

#[test]
fn a_database_that_somebody_may_not_open_is_not_called_damaged() {
    let scratch = mounted_scratch!();
    held(&scratch);
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a way there");
    run("chown", &["-R", &format!("{NOBODY}:{NOBODY}"), &scratch.root().display().to_string()]);
    let program = scratch.root().join("fettlefs");
    fs::copy(scratch.fettlefs().get_program(), &program).expect("a program that anybody may run");
    let status = || -> Output {
        let mut command = scratch.command("setpriv");
        let nobody = NOBODY.to_string();
        command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]).arg(&program).arg("status");
        command.current_dir(scratch.project()).output().expect("setpriv").into()
    };
    assert!(status().ok().stdout.contains("1 held"));
    for (file, mode) in [("fettle.db", 0o600), ("fettle.db", 0o644), ("fettle.db-wal", 0o600)] {
        let place = state(&scratch).join(file);
        fs::OpenOptions::new().create(true).append(true).open(&place).expect("it is there");
        let was = fs::metadata(&place).expect("it is there").permissions();
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).expect("a mode");
        chown(&place, Some(0), Some(0)).expect("root's");
        let output = status();
        let said = "fettlefs: open the state database in [project]/.fettle: Permission denied (os error 13)\n";
        assert_eq!((output.status, &*scratch.normalise(&output.stderr)), (6, said), "{file} {mode:o}");
        fs::set_permissions(&place, was).expect("a mode");
        chown(&place, Some(NOBODY), Some(NOBODY)).expect("given back");
    }
    assert!(status().ok().stdout.contains("1 held"));
}

/// What was held and kept since is in files that the older database does not tell of.
#[test]
fn a_database_that_is_put_back_from_an_older_copy_has_nothing_removed_that_came_since() {
    for (first, is_elsewhere) in [("status", false), ("mount", false), ("mount", true)] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(200));
        scratch.write("b", lines(200));
        scratch.write("large", lines(20_000));
        let place = scratch.root().join("place");
        let mounting = || {
            let mounting = scratch.mounting().at("view");
            let variables = if is_elsewhere { &["FETTLE_STAGE_DIR", "FETTLE_BACKUP_DIR"][..] } else { &[] };
            variables.iter().fold(mounting, |mounting, variable| mounting.env(*variable, &place))
        };
        let view = mounting().start();
        view.write("a", rewritten());
        view.unmount();
        let (database, copy) = (state(&scratch).join("fettle.db"), scratch.root().join("copy"));
        fs::copy(&database, &copy).expect("a copy");
        let view = mounting().start();
        view.write("b", rewritten());
        view.write("large", with_changed_lines(&lines(20_000), 3));
        view.unmount();
        fs::copy(&copy, &database).expect("it is put back");

        let told = "fettle.db was put back from an older copy, and 2 files that it does not tell of are set aside: ";
        if first == "status" {
            let status = scratch.cli(&["status"]).ok().stdout;
            assert!(status.contains("1 held") && status.contains(told), "{status}");
        }
        let view = mounting().start();
        let said = &view.mount_output.stderr;
        assert_eq!(said.contains(&format!("recovery: {told}")), first == "mount", "{said}");
        view.assert_held("a", &rewritten(), &lines(200));
        let status = view.cli(&["status"]).ok().stdout;
        let (_, names) = status.split_once(told).expect("as long as they are there");
        let names: Vec<&str> = names.lines().next().expect("names").split(", ").collect();
        let is_there =
            |name: &&str, bytes: &str| fs::read(state(&scratch).join(name)).is_ok_and(|it| it == bytes.as_bytes());
        assert!(names.iter().any(|name| is_there(name, &rewritten())), "{names:?}");
        assert!(names.iter().any(|name| is_there(name, &lines(20_000))), "{names:?}");
        assert!(view.cli(&["log"]).ok().stdout.contains(told));
        let found = view.cli(&["fsck"]).exits(1).stdout;
        assert!(names.iter().all(|name| found.contains(*name)), "{found}");
        for name in names {
            fs::remove_file(state(&scratch).join(name)).expect("a person has seen to it");
        }
        view.unmount();
    }
}
