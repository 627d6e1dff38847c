//! Every refusal of SPEC §8, with its text, its code and its status; and that nothing is lost by it.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use super::{NEW, OLD, id_of, named, small, told, transcript};
use crate::harness::{Output, PATIENCE, View, eventually, mounted_scratch, within};

/// Panics unless `output` is the JSON of an error with this code, status and message; gives the error.
#[track_caller]
fn refused(output: &Output, code: &str, status: i32, message: &str) -> serde_json::Value {
    let error = output.json()["error"].clone();
    assert_eq!((output.status, error["code"].as_str(), error["message"].as_str()), (status, Some(code), Some(message)));
    error
}

#[test]
fn what_was_written_again_is_superseded_and_names_what_lives_now() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let first = id_of(&view, "c.txt");
    view.write("c.txt", "ONE\nTWO\nTHREE\nFOUR\n");
    let second = id_of(&view, "c.txt");
    view.write("c.txt", "1\n2\n3\n4\n5\n");
    let third = id_of(&view, "c.txt");
    assert!(first != second && second != third);
    for old in [&first, &second] {
        for command in ["confirm", "discard", "diff", "show"] {
            let output = view.cli(&[command, old, "--json"]);
            let error = refused(&output, "superseded", 5, &format!("{old} (c.txt) became {third}"));
            assert_eq!((&error["new_id"], &error["id"]), (&third.clone().into(), &old.clone().into()), "{command}");
        }
        let words = view.cli(&["confirm", old]).exits(5).stderr;
        assert_eq!(
            words,
            format!("fettlefs: {old} (c.txt) became {third}\n  To see what it became: fettlefs diff {third}\n")
        );
    }
    view.cli(&["confirm", &third]).ok();
    let output = view.cli(&["confirm", &first, "--json"]);
    let message = format!("{first} (c.txt) became {third}, which is already applied");
    refused(&output, "superseded", 5, &message);
}

#[test]
fn what_a_program_removed_says_so_and_where_its_content_is() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let held = ["migrations/1.sql", "migrations/2.sql"];
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"migrations/**\"\naction = \"hold\"\n");
    view.cli(&["reload"]).ok();
    view.sh("mkdir migrations && echo one > migrations/1.sql && echo two > migrations/2.sql").ok();
    let ids = held.map(|path| id_of(&view, path));
    let rm = || view.sh("rm -r migrations").ok();
    rm();
    for (path, id) in held.iter().zip(&ids) {
        let message =
            format!("{id} ({path}) was removed in the view; content that it had is a backup: fettlefs rollback {path}");
        for command in ["confirm", "discard", "diff", "show"] {
            refused(&view.cli(&[command, id, "--json"]), "already_discarded", 5, &message);
        }
    }
    let log = view.cli(&["log", "migrations", "--json"]).ok().json();
    let ended = |id: &String| {
        let mut events = log["events"].as_array().expect("events").iter();
        let event = events.find(|event| event["event"] == "hold_ended" && event["id"] == **id);
        event.unwrap_or_else(|| panic!("nothing tells that {id} ended: {log}")).clone()
    };
    let events = ids.each_ref().map(ended);
    assert!(events.iter().all(|event| event["backup"].is_string() && event["operation"].is_string()), "{log}");
    // One `rm`, one operation: all of it waits again, under the same ids.
    view.cli(&["undo", events[1]["operation"].as_str().expect("an operation")]).ok();
    assert_eq!(held.map(|path| id_of(&view, path)), ids);
    assert_eq!((view.read(held[1]), scratch.has(held[1])), ("two\n".to_owned(), false));
    rm();
    view.cli(&["rollback", "migrations"]).ok();
    view.assert_landed(held[0], "one\n");
    view.unmount();
}

#[test]
fn what_a_held_file_had_is_a_backup_when_it_is_removed_or_replaced() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for (path, script) in [("c.txt", "rm c.txt"), ("d.txt", "echo other > t; mv t d.txt")] {
        view.write(path, NEW);
        let id = id_of(&view, path);
        view.sh(script).ok();
        let now = id_of(&view, path);
        refused(&view.cli(&["confirm", &id, "--json"]), "superseded", 5, &format!("{id} ({path}) became {now}"));
        let backup = view.cli(&["backups", path, "--json"]).ok().json()["backups"][0].clone();
        assert_eq!(backup["kind"], "deleted", "{path}");
        let name = backup["name"].as_str().expect("a name");
        assert_eq!(view.read(format!(".fettle/backups/{name}")), NEW, "{path}");
    }
    view.unmount();
}

/// An id names a kind of thing, too: who has looked at a file has not looked at a symlink to what it says.
#[test]
fn what_was_looked_at_as_one_thing_never_lands_as_another() {
    let scratch = mounted_scratch!();
    scratch.write("src/a", "a\n");
    let view = small(&scratch).start();
    let changes = [
        ("CLAUDE.md", "printf /etc/passwd > CLAUDE.md", "rm CLAUDE.md; ln -s /etc/passwd CLAUDE.md"),
        (
            "AGENTS.md",
            "ln -s /etc/passwd AGENTS.md",
            "ln -s /etc/passwd t; mv t AGENTS.md; printf /etc/passwd > u; mv u AGENTS.md",
        ),
        ("src", "rm -r src; printf ../.. > src", "rm src; ln -s ../.. src"),
        (".claude/sub", "mkdir -p .claude/sub", "rmdir .claude/sub; mkfifo .claude/sub"),
    ];
    for (path, make, make_otherwise) in changes {
        view.sh(make).ok();
        let looked_at = id_of(&view, path);
        view.cli(&["diff", &looked_at]).ok();
        let below = || std::fs::symlink_metadata(scratch.lower().join(path)).ok().map(|meta| meta.file_type());
        let before = below();
        view.sh(make_otherwise).ok();
        assert_ne!(id_of(&view, path), looked_at, "{path}");
        view.cli(&["confirm", &looked_at]).exits(5);
        assert_eq!(below(), before, "{path}");
    }
    assert!(view.cli(&["show", ".claude/sub"]).ok().stdout.contains("new fifo"));
    view.unmount();
}

#[test]
fn what_is_done_is_done_once_and_told_from_what_never_was() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    let (applied, discarded) = (id_of(&view, "c.txt"), id_of(&view, "d.txt"));
    view.cli(&["confirm", &applied]).ok();
    view.cli(&["discard", &discarded]).ok();
    for command in ["confirm", "discard"] {
        let again = view.cli(&[command, &applied, "--json"]);
        refused(&again, "already_applied", 5, &format!("{applied} (c.txt) is already applied"));
        let again = view.cli(&[command, &discarded, "--json"]);
        refused(&again, "already_discarded", 5, &format!("{discarded} (d.txt) is already discarded"));
    }
    assert_eq!(
        view.cli(&["confirm", &applied[..4]]).exits(5).stderr,
        format!("fettlefs: {applied} (c.txt) is already applied\n")
    );
    // The same content held again is a live change under the same id.
    view.write("d.txt", NEW);
    assert_eq!(id_of(&view, "d.txt"), discarded);
    view.cli(&["confirm", &discarded]).ok();
    view.assert_landed("d.txt", NEW);
    let unknown = [
        ("confirm deadbeef", "unknown_id", "no change has the id deadbeef"),
        ("confirm nowhere.txt", "unknown_path", "nowhere.txt: no such path, and nothing is held there"),
        ("confirm notes.txt", "unknown_path", "nothing is held at notes.txt"),
        ("rollback nowhere.txt", "unknown_backup", "no backup is called nowhere.txt, or of such a path"),
    ];
    for (command, code, message) in unknown {
        let arguments: Vec<&str> = command.split(' ').chain(["--json"]).collect();
        refused(&view.cli(&arguments), code, 4, message);
    }
}

/// Waits until everything held has expired; the time to live is a second.
#[track_caller]
fn expire(view: &View<'_>) {
    eventually("what is held expires", || view.held().iter().all(|held| held.json["expired"] == true));
}

/// A text in which something expired less than a minute ago.
#[track_caller]
fn without_age(text: &serde_json::Value) -> String {
    let text = text.as_str().expect("a text");
    let (before, rest) = text.split_once(" expired ").expect("that it expired");
    let (age, rest) = rest.split_once(" ago").expect("when it did");
    let (count, unit) = age.split_once(' ').expect("so much of it");
    let plural = if count == "1" { "second" } else { "seconds" };
    assert!(count.parse().is_ok_and(|count: u32| (1..60).contains(&count)) && unit == plural, "{age}");
    format!("{before} expired … ago{rest}")
}

#[test]
fn what_expired_needs_a_look_or_renew_and_all_is_refused_whole() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).env("FETTLE_WRITE_STAGE_TTL", "1").start();
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    let (c, d) = (id_of(&view, "c.txt"), id_of(&view, "d.txt"));
    expire(&view);
    let error = view.cli(&["confirm", &c, "--json"]).exits(5).json()["error"].clone();
    assert_eq!(
        (error["code"].as_str(), without_age(&error["message"])),
        (Some("expired"), format!("{c} expired … ago"))
    );
    assert_eq!((error["id"].as_str(), error["path"].as_str()), (Some(&*c), Some("c.txt")));
    let want = format!("fettlefs: {c} expired … ago\n  To look again: fettlefs diff {c}\n");
    assert_eq!(without_age(&view.cli(&["confirm", "c.txt"]).exits(5).stderr.into()), want);
    let want = "! fettlefs: 2 of 2 held changes expired; nothing was applied\n\
                !   To look again: fettlefs diff; to go on without: --renew\n=> 5\n";
    assert_eq!(told(&scratch, &view.cli(&["confirm", "--all", "--yes"])), want);
    // The log tells each once, however often somebody tries.
    let log = |view: &View<'_>| view.cli(&["log", "--json"]).ok().json()["events"].as_array().expect("events").clone();
    let expired = |view: &View<'_>, id: &str| {
        log(view).iter().filter(|event| event["event"] == "expired" && event["id"] == id).count()
    };
    assert_eq!((expired(&view, &c), expired(&view, &d)), (1, 1));
    // One of several spoils all of them.
    view.write("src/a.rs", NEW);
    view.cli(&["confirm", "src/a.rs", "d.txt"]).exits(5);
    assert_eq!(view.held().len(), 3);
    // A look renews: the command's, and the file's.
    view.cli(&["diff", &c]).ok();
    view.cli(&["confirm", &c]).ok();
    expire(&view);
    view.read(format!(".fettle/held/{d}/diff"));
    expire(&view);
    view.cli(&["confirm", &d]).exits(5);
    assert_eq!(expired(&view, &d), 2, "it was looked at in between");
    view.read(format!(".fettle/held/{d}/diff"));
    view.cli(&["confirm", &d]).ok();
    expire(&view);
    view.cli(&["show", "src/a.rs"]).ok();
    view.cli(&["confirm", "src/a.rs", "--dry-run"]).ok();
    view.write("src/b.rs", NEW);
    expire(&view);
    assert_eq!(view.cli(&["confirm", "--all", "--yes", "--renew"]).ok().stdout.matches("fettlefs: Applied").count(), 2);
    // Nothing is dropped by time, and discarding needs no look.
    view.write("notes.txt", NEW);
    expire(&view);
    view.cli(&["discard", "notes.txt"]).ok();
    assert!(view.held().is_empty());
}

/// Else it would be tried again, or taken for refused.
#[test]
fn what_is_done_and_cannot_be_printed_is_told_as_done() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let into_full = |arguments: &[&str]| {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = scratch.fettlefs();
        command.current_dir(view.root()).args(arguments).stdout(full);
        Output::from(command.output().expect("the built program runs")).exits(1).stderr
    };
    let lost = "fettlefs: print the answer: No space left on device (os error 28)";
    let done_told = |by: &str| format!("{lost}; what was asked for is done: fettlefs {by} tells it\n");
    let done = done_told("log");
    let nothing = format!("{lost}\n");
    ["c.txt", "d.txt", "src/a.rs"].iter().for_each(|path| view.write(path, NEW));
    assert_eq!(into_full(&["confirm", "c.txt", "--dry-run"]), nothing);
    assert_eq!(into_full(&["confirm", "c.txt"]), done);
    view.assert_landed("c.txt", NEW);
    assert_eq!(into_full(&["rollback", "c.txt", "--json"]), done);
    view.assert_landed("c.txt", OLD);
    assert_eq!(into_full(&["discard", "d.txt"]), done);
    view.assert_landed("d.txt", OLD);
    let confirmed = view.cli(&["confirm", "src/a.rs", "--json"]).ok().json();
    assert_eq!(into_full(&["undo", confirmed["outcomes"][0]["operation"].as_str().expect("an operation")]), done);
    view.assert_landed("src/a.rs", OLD);
    assert_eq!(into_full(&["confirm", "--all", "--yes"]), nothing, "nothing is held");

    assert_eq!(into_full(&["init", "--dry-run"]), nothing);
    assert_eq!(into_full(&["init"]), done_told("init --dry-run"));
    assert!(view.has(".fettle.toml") && view.has("AGENTS.md"));
    assert_eq!(into_full(&["init"]), nothing, "all is there");
    view.cli(&["confirm", "--all", "--yes"]).ok();
    assert_eq!(into_full(&["reload", "--dry-run"]), nothing);
    assert_eq!(into_full(&["reload"]), done_told("status"));
    assert_eq!(into_full(&["reload", "--json"]), done_told("status"));
    assert_eq!(into_full(&["trust", "--show"]), nothing);
    assert_eq!(into_full(&["trust", "--yes"]), done_told("trust --show"));
    assert_eq!(into_full(&["trust", "--yes"]), nothing, "it is trusted");
    assert!(view.cli(&["trust", "--show"]).ok().stdout.ends_with("It is trusted\n"));
    assert_eq!(into_full(&["trust", "--revoke"]), done_told("trust --show"));
}

#[test]
fn zero_as_time_to_live_means_never() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).flag("--ttl").flag("0").start();
    view.write("c.txt", NEW);
    assert_eq!(view.only_held().json["expired"], false);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.assert_landed("c.txt", NEW);
}

#[test]
fn a_clash_with_an_edit_outside_is_refused_with_its_hunks_and_force_keeps_the_other() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    scratch.write("c.txt", "one\nzwei\nthree\n");
    let hunks = "@@ line 1 @@\n<<<<<<< project\none\nzwei\nthree\n||||||| base\none\ntwo\nthree\n=======\nONE\nTWO\nTHREE\n>>>>>>> held\n";
    let message = format!("c.txt was changed below since {id} was based on it");
    let error = refused(&view.cli(&["confirm", &id, "--json"]), "conflict", 5, &message);
    assert_eq!(
        (error["detail"].as_str(), error["path"].as_str(), error["id"].as_str()),
        (Some(hunks), Some("c.txt"), Some(&*id))
    );
    let words = view.cli(&["confirm", "c.txt"]).exits(5).stderr;
    assert_eq!(
        words,
        format!(
            "fettlefs: {message}\n{hunks}  To land it anyway, keeping what it replaces as a backup: confirm it with --force\n"
        )
    );
    assert_eq!((scratch.read("c.txt").as_str(), view.read("c.txt").as_str()), ("one\nzwei\nthree\n", NEW));
    std::fs::remove_file(scratch.project().join("c.txt")).expect("removed below");
    let deleted = view.cli(&["confirm", "c.txt"]).exits(5).stderr;
    assert!(deleted.contains(&message.replace("changed", "deleted")), "{deleted}");
    scratch.write("c.txt", "one\nzwei\nthree\n");
    let done = view.cli(&["confirm", &id, "--force", "--json"]).ok().json();
    let backup = done["outcomes"][0]["backup"].as_str().expect("the other content is kept").to_owned();
    assert_eq!(view.read(format!(".fettle/backups/{backup}")), "one\nzwei\nthree\n");
    view.assert_landed("c.txt", NEW);
}

#[test]
fn an_edit_outside_that_does_not_clash_is_merged_and_said_so() {
    let scratch = mounted_scratch!();
    let long: String = crate::harness::lines(30);
    scratch.write("long.txt", &long);
    let view = small(&scratch).at("view").start();
    let held = crate::harness::with_changed_lines(&long, 10);
    view.write("long.txt", &held);
    scratch.write("long.txt", long.replace("line 30\n", "line thirty\n"));
    let words = view.cli(&["confirm", "long.txt"]).ok();
    assert!(words.stdout.starts_with("fettlefs: Applied long.txt (merged with external changes, "), "{}", words.stdout);
    view.assert_landed("long.txt", &held.replace("line 30\n", "line thirty\n"));
}

/// A process that has written to a file and holds it open until its standard input ends.
struct WriterProcess(Child);

impl WriterProcess {
    #[track_caller]
    fn start(view: &View<'_>, path: &str, text: &str) -> Self {
        let program = "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n\
                       os.write(fd, sys.argv[2].encode())\nprint('written', flush=True)\nsys.stdin.read()\n";
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(view.path(path)).arg(text).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output is a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("it says when it has written");
        assert_eq!(line, "written\n");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Lets it close the file and end.
    fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("a child can be waited for");
    }
}

impl Drop for WriterProcess {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn what_somebody_still_writes_is_busy_and_names_the_writer() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    let mut writer = WriterProcess::start(&view, "c.txt", "FOUR\n");
    let message = format!("c.txt is being written by python3 (pid {})", writer.pid());
    let error = refused(&view.cli(&["confirm", &id, "--json"]), "busy", 5, &message);
    assert_eq!((error["id"].as_str(), error["path"].as_str()), (Some(&*id), Some("c.txt")));
    let want = "$ confirm c.txt\n! fettlefs: c.txt is being written by python3 (pid [pid])\n!   To wait for the writer: fettlefs flush --wait\n=> 5\n\
                $ flush\nStill being written:\n  c.txt  by pid [pid]\n=> 0\n\
                $ flush --wait --timeout 0\nStill being written:\n  c.txt  by pid [pid]\n=> 5\n\
                $ unmount --timeout 0\n! fettlefs: python3 (pid [pid]) is still writing c.txt; --force does not wait\n=> 5\n";
    let commands = ["confirm c.txt", "flush", "flush --wait --timeout 0", "unmount --timeout 0"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    assert_eq!(view.status()["writers"], serde_json::json!([{"path": "c.txt", "pid": writer.pid()}]));
    writer.end();
    let error = view.cli(&["confirm", &id, "--json"]).json()["error"].clone();
    assert_eq!((error["code"].as_str(), error["new_id"].as_str()), (Some("superseded"), Some(&*id_of(&view, "c.txt"))));
}

#[test]
fn what_is_not_waited_for_is_told_by_an_unmount_by_force() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut writer = WriterProcess::start(&view, "c.txt", "FOUR\n");
    let told = view.cli(&["unmount", "--force"]).ok().stdout;
    let note = format!("note: python3 (pid {}) is still writing c.txt: it will be held as interrupted\n", writer.pid());
    assert!(told.contains(&note), "{told}");
    writer.end();
    let held = scratch.cli(&["status", "--json"]).ok().json()["held"].clone();
    assert_eq!((&held[0]["path"], &held[0]["reason"]), (&"c.txt".into(), &"interrupted".into()), "{held}");
}

#[test]
fn waiting_for_a_writer_lands_what_it_left_by_path_and_refuses_what_was_reviewed() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for (by_path, file) in [(true, "c.txt"), (false, "d.txt")] {
        view.write(file, NEW);
        let id = id_of(&view, file);
        let mut writer = WriterProcess::start(&view, file, "FOUR\n");
        let mut command = scratch.fettlefs();
        let target = if by_path { file } else { &id };
        command.current_dir(view.root()).args(["confirm", target, "--wait", "--json"]);
        let waiting = command.stdout(Stdio::piped()).spawn().expect("the built program runs");
        // It has asked once its descriptor of the control file is open and it sleeps in the read.
        eventually("confirm waits", || sleeps_in_control(waiting.id()));
        writer.end();
        let output: Output = waiting.wait_with_output().expect("it ends").into();
        if by_path {
            assert_eq!(output.status, 0, "{}", output.stdout);
            view.assert_landed(file, &format!("{NEW}FOUR\n"));
        } else {
            assert_eq!((output.status, output.error_code().as_str()), (5, "superseded"));
            view.assert_held(file, &format!("{NEW}FOUR\n"), OLD);
        }
    }
}

/// What a daemon did before it died nobody knows, and the mount is not dead: its watchdog brings another.
#[test]
fn a_daemon_that_dies_over_a_request_is_not_told_as_a_dead_mount() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut writer = WriterProcess::start(&view, "c.txt", "FOUR\n");
    let mut command = scratch.fettlefs();
    command.current_dir(view.root()).args(["flush", "--wait", "--timeout", "60"]).stderr(Stdio::piped());
    let waiting = command.spawn().expect("the built program runs");
    eventually("flush waits", || sleeps_in_control(waiting.id()));
    let killed = view.kill_daemon();
    let output = Output::from(waiting.wait_with_output().expect("it ends")).exits(3);
    assert!(output.stderr.contains("ended before it answered: look whether it did"), "{}", output.stderr);
    // Asked at once, nobody is told that the mount is dead either.
    assert_ne!(i64::from(killed), view.cli(&["status", "--json"]).ok().json()["pid"].as_i64().expect("a pid"));
    writer.end();
}

/// Whether the process has the control file open and waits.
fn sleeps_in_control(pid: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let opened = entries
        .flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.ends_with(".fettle/control")));
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    opened && state.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
}

#[test]
fn discarding_does_not_wait_for_who_writes_and_his_descriptor_goes_on() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let mut writing = File::options().append(true).open(view.path("c.txt")).expect("it opens");
    writing.write_all(b"FOUR\n").expect("it is written");
    let mut told = None;
    assert!(within(PATIENCE, || {
        told = Some(view.cli(&["discard", "c.txt", "--json"]));
        true
    }));
    let json = told.expect("an answer").ok().json();
    let backup = json["outcomes"][0]["backup"].as_str().expect("its content is kept").to_owned();
    assert_eq!(view.read(format!(".fettle/backups/{backup}")), format!("{NEW}FOUR\n"));
    assert_eq!(view.read("c.txt"), OLD);
    writing.write_all(b"four\n").expect("the descriptor goes on");
    drop(writing);
    view.assert_landed("c.txt", &format!("{OLD}four\n"));
}

#[test]
fn who_may_not_change_anything_is_told_so_and_may_look() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let view = small(&scratch).flag("--approve").flag("owner").start();
    view.write("c.txt", NEW);
    // The scratch directory is root's own; a stranger must be able to come by, as in a shared directory.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scratch.root(), open).expect("root may");
    let stranger = |arguments: &[&str]| -> Output {
        let mut command = scratch.command("setpriv");
        command.args(["--reuid=4321", "--regid=4321", "--clear-groups"]).arg(scratch.fettlefs().get_program());
        command.current_dir(view.root()).args(arguments).output().expect("setpriv runs").into()
    };
    if !within(std::time::Duration::ZERO, || stranger(&["status"]).status == 0) {
        eprintln!("skipped: another user cannot reach {}", scratch.root().display());
        return;
    }
    for command in [
        "confirm c.txt",
        "discard c.txt",
        "confirm --all --yes",
        "rollback x",
        "reload",
        "unmount",
        "fsck",
        "confirm c.txt --dry-run",
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let op = arguments[0];
        let message = format!("{op}: only the project's owner (uid 0) and root may do that");
        refused(&stranger(&[&arguments[..], &["--json"]].concat()), "not_permitted", 6, &message);
        assert_eq!(stranger(&arguments).exits(6).stderr, format!("fettlefs: {message}\n"));
    }
    view.assert_held("c.txt", NEW, OLD);
    for command in ["status", "diff", "show c.txt", "backups", "log", "external", "flush", "version"] {
        let arguments: Vec<&str> = command.split(' ').collect();
        stranger(&arguments).ok();
    }
    // What he cannot read as a plain file he is not shown.
    std::fs::set_permissions(view.path("c.txt"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("root may");
    let hidden = stranger(&["diff", "c.txt", "--json"]);
    assert_eq!((hidden.status, hidden.error_code().as_str()), (6, "not_permitted"));
    assert_eq!(stranger(&["diff"]).ok().stdout, "");
    // Where he stands is no matter: he might not do it from outside of a run either.
    view.cli(&["run", "--", "true"]).ok();
    let mut elsewhere = scratch.command("unshare");
    elsewhere.args(["--pid", "--fork", "setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]);
    elsewhere.arg(scratch.fettlefs().get_program()).args(["confirm", "c.txt"]).current_dir(view.root());
    let told = Output::from(elsewhere.output().expect("unshare runs")).exits(6).stderr;
    assert_eq!(told, "fettlefs: confirm: only the project's owner (uid 0) and root may do that\n");
    view.cli(&["confirm", "c.txt"]).ok();
}

#[test]
fn a_landing_that_fails_keeps_everything_and_can_be_tried_again() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    let id = id_of(&view, "c.txt");
    let immutable = Immutable::of(scratch.project().join("c.txt"));
    let Some(immutable) = immutable else { return };
    let error = refused(
        &view.cli(&["confirm", &id, "--json"]),
        "write_failed",
        1,
        "nothing was applied: replace c.txt: Operation not permitted (os error 1)",
    );
    assert_eq!(error["message"].as_str().map(|text| text.contains("c.txt")), Some(true));
    // All or nothing: the other one stays, too.
    assert_eq!(view.cli(&["confirm", "--all", "--yes"]).exits(1).stdout, "");
    view.assert_held("c.txt", NEW, OLD);
    view.assert_held("d.txt", NEW, OLD);
    assert_eq!(id_of(&view, "c.txt"), id);
    assert_eq!(leftovers(&scratch), Vec::<String>::new());
    drop(immutable);
    let immutable = Immutable::of(scratch.project()).expect("as before");
    assert_eq!(view.cli(&["confirm", &id, "--json"]).exits(1).error_code(), "write_failed");
    view.assert_held("c.txt", NEW, OLD);
    drop(immutable);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.assert_landed("c.txt", NEW);
    view.assert_landed("d.txt", NEW);
    assert_eq!(leftovers(&scratch), Vec::<String>::new());
}

/// Our own temporary names that are left in the project.
fn leftovers(scratch: &crate::harness::Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.lower()).expect("the project").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".fettle-tmp-")).collect()
}

/// A path that nobody may change while this lives.
struct Immutable(std::path::PathBuf);

impl Immutable {
    /// None where this user or this file system cannot.
    fn of(path: std::path::PathBuf) -> Option<Self> {
        let done = Command::new("chattr").arg("+i").arg(&path).output().is_ok_and(|output| output.status.success());
        if !done {
            eprintln!("skipped: chattr +i {} does not work here", path.display());
        }
        done.then_some(Self(path))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let done = Command::new("chattr").arg("-i").arg(&self.0).output();
        if !done.is_ok_and(|output| output.status.success()) {
            eprintln!("{} stays immutable", self.0.display());
        }
    }
}

#[test]
fn a_second_mount_of_the_same_project_says_who_holds_it() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    let second = scratch.mounting().run();
    assert_eq!(second.status, 5);
    let last = second.stderr.lines().last().unwrap_or_default();
    assert_eq!(named(&scratch, last), "fettlefs: the project is in use by pid [pid], mounted on [scratch]/view");
    let there = scratch.mounting().at("view").run();
    assert_eq!(
        named(&scratch, &there.stderr),
        "fettlefs: [scratch]/view is already covered by a mount of [project] (pid [pid])\n"
    );
    assert_eq!((there.status, view.held().len()), (5, 0));
}
