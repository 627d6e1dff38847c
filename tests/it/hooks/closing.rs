//! Closes of which a program is being asked: who ends the view, or asks what has become of it, does not pass them by.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use super::behaviour::writer;
use super::{mounting, program};
use crate::harness::script::python;
use crate::harness::{Output, Scratch, View, eventually, lines, mounted_scratch, with_changed_lines};

/// A view whose program, once it is asked of `file`, makes `asked` and waits for `go`.
struct Asking<'s> {
    view: View<'s>,
    asked: PathBuf,
    go: PathBuf,
}

impl<'s> Asking<'s> {
    fn start(scratch: &'s Scratch) -> Self {
        let (asked, go) = (scratch.root().join("asked"), scratch.root().join("go"));
        let hook = format!(
            "#!/bin/sh\ncase $(cat) in *'\"path\":\"file\"'*) : > {asked:?}; until [ -e {go:?} ]; do sleep 0.01; done ;; esac\n\
             echo '{{\"decision\":\"land\"}}'\n"
        );
        let hook = program(scratch, "hook", &hook);
        let view = mounting(scratch, &[&hook]).env("FETTLE_HOOKS_TIMEOUT", "1m").start();
        Self { view, asked, go }
    }

    /// Who writes `new` to `file`, once the program is asked of his close.
    fn closing(&self, scratch: &Scratch) -> Child {
        let writer = writer(scratch, &self.view);
        eventually("the program is asked", || self.asked.exists());
        writer
    }

    fn answer(&self) {
        fs::write(&self.go, "").expect("a file");
    }
}

#[test]
fn a_close_that_is_asked_about_is_somebody_still_writing() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let asking = Asking::start(&scratch);
    let mut writer = asking.closing(&scratch);
    let told = asking.view.status()["writers"].clone();
    assert_eq!(told, serde_json::json!([{"path": "file", "pid": writer.id()}]));
    let flushed = asking.view.cli(&["flush", "--wait", "--timeout", "0", "--json"]).exits(5).json();
    assert_eq!((&flushed["writers"], &flushed["ok"]), (&told, &false.into()));
    assert_eq!((&flushed["error"]["code"], &flushed["op"]), (&"busy".into(), &"flush".into()));
    let refused = asking.view.cli(&["unmount", "--timeout", "0"]).exits(5);
    let why = format!("fettlefs: sh (pid {}) is still writing file; --force does not wait\n", writer.id());
    assert_eq!(refused.stderr, why);
    asking.answer();
    assert!(writer.wait().expect("it ends").success());
    assert_eq!(asking.view.status()["writers"], serde_json::json!([]));
}

#[test]
fn an_unmount_waits_for_the_answer_about_a_close_and_acts_on_what_comes_of_it() {
    for flag in ["--confirm-all", "--discard-all", "--timeout=60"] {
        let scratch = mounted_scratch!();
        scratch.write("file", lines(200));
        let asking = Asking::start(&scratch);
        asking.answer();
        asking.view.write("file", with_changed_lines(&lines(200), 90));
        let before = asking.view.only_held().id;
        fs::remove_file(&asking.asked).and_then(|()| fs::remove_file(&asking.go)).expect("files");
        let mut writer = asking.closing(&scratch);
        let mut unmount = scratch.fettlefs();
        unmount
            .arg("-C")
            .arg(asking.view.root())
            .args(["unmount", "--json", flag])
            .stdout(std::process::Stdio::piped());
        let unmount = unmount.spawn().expect("the built program runs");
        asking.answer();
        let told = Output::from(unmount.wait_with_output().expect("it ends")).ok().json();
        assert!(writer.wait().expect("it ends").success(), "{flag}: nobody is cut off");
        let held = scratch.cli(&["status", "--json"]).ok().json()["held"].clone();
        let ids = |list: &serde_json::Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(|change| Some(change["id"].as_str()?.to_owned())).collect()
        };
        let below = scratch.read("file");
        match flag {
            "--confirm-all" => assert_eq!((below.as_str(), ids(&held)), ("new", vec![]), "{told}"),
            "--discard-all" => assert_eq!((below, ids(&held)), (lines(200), vec![]), "{told}"),
            _ => assert!(ids(&told["held"]) == ids(&held) && !ids(&held).contains(&before), "{told}, then {held}"),
        }
    }
}

/// As of what nobody has closed.
#[test]
fn by_force_nobody_waits_for_the_answer() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let asking = Asking::start(&scratch);
    let mut writer = asking.closing(&scratch);
    // The program is never answered for, and its limit is a minute.
    let unmount = scratch.fettlefs().arg("-C").arg(asking.view.root()).args(["unmount", "--force"]).output();
    Output::from(unmount.expect("the built program runs")).ok();
    writer.wait().expect("it ends");
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    let held = scratch.cli(&["status", "--json"]).ok().json()["held"].clone();
    assert_eq!((&held[0]["path"], &held[0]["reason"]), (&"file".into(), &"interrupted".into()));
    assert_eq!(scratch.read("file"), "old\n");
}

#[test]
fn a_daemon_that_is_signalled_again_waits_for_no_answer() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let asking = Asking::start(&scratch);
    let mut writer = asking.closing(&scratch);
    let daemon = Pid::from_raw(asking.view.daemon_pid()).expect("a pid");
    // Two of one kind, the first not yet heard, would be one.
    [Signal::TERM, Signal::INT].iter().for_each(|signal| kill_process(daemon, *signal).expect("a signal"));
    // The program is never answered for, and its limit is a minute.
    writer.wait().expect("it ends");
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    let held = scratch.cli(&["status", "--json"]).ok().json()["held"].clone();
    assert_eq!((&held[0]["path"], &held[0]["reason"]), (&"file".into(), &"interrupted".into()));
}

/// The kernel takes a mount away while a release is judged, which no descriptor waits for.
#[test]
fn a_plain_umount_loses_no_answer() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    // Longer than anybody waits for a release.
    let hook = program(&scratch, "hook", "#!/bin/sh\ncat > /dev/null\nsleep 2\necho '{\"decision\":\"land\"}'\n");
    let view = mounting(&scratch, &[&hook]).start();
    python(
        &scratch,
        view.root(),
        r#"
import mmap
with open("file", "r+b") as f: mapping = mmap.mmap(f.fileno(), 0)
mapping[:3] = b"new"
mapping.close()
"#,
    )
    .ok();
    Output::from(scratch.command("umount").arg(view.root()).output().expect("umount")).ok();
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    drop(view);
    assert_eq!(scratch.read("file"), "new\n");
    assert_eq!(scratch.cli(&["status", "--json"]).ok().json()["held"], serde_json::json!([]));
}

/// Of a process that its command has left behind.
#[test]
fn a_run_ends_with_what_becomes_of_a_close() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let asked = scratch.root().join("asked");
    let script = format!("#!/bin/sh\ncat > /dev/null\n: > {asked:?}\nsleep 1\necho '{{\"decision\":\"land\"}}'\n");
    let hook = program(&scratch, "hook", &script);
    let mut run = scratch.fettlefs();
    run.arg("-C").arg(scratch.project()).args(["run", "--", "bash", "-c"]);
    run.arg(format!("printf new > file & until [ -e {asked:?} ]; do :; done"));
    run.env("FETTLE_HOOKS_PRE_WRITE", format!("[[{hook:?}]]"));
    let told = Output::from(run.output().expect("the built program runs")).ok();
    assert!(told.stderr.contains("1 path landed, 0 held"), "{}", told.stderr);
    assert_eq!(scratch.read("file"), "new");
}

/// A view in which `big` is held, and whose program denies `lib`, of which it makes `asked`, after a second.
fn denying_lib(scratch: &Scratch) -> View<'_> {
    scratch.write("lib", "old\n");
    scratch.write("big", lines(200));
    let asked = scratch.root().join("asked");
    let script = format!(
        "#!/bin/sh\ncase $(cat) in *'\"path\":\"lib\"'*) : > {asked:?}; sleep 1; echo '{{\"decision\":\"deny\"}}' ;;\n\
         *) echo '{{\"decision\":\"land\"}}' ;; esac\n"
    );
    let hook = program(scratch, "hook", &script);
    let view = mounting(scratch, &[&hook]).start();
    view.write("big", with_changed_lines(&lines(200), 90));
    view
}

#[test]
fn a_check_starts_once_what_is_asked_about_is_decided() {
    let scratch = mounted_scratch!();
    let view = denying_lib(&scratch);
    let mut command = scratch.command("sh");
    let mut writer = command.args(["-c", "echo new > lib"]).current_dir(view.root()).spawn().expect("sh");
    eventually("the program is asked", || scratch.root().join("asked").exists());
    view.cli(&["check", "--confirm", "--", "grep", "-q", "old", "lib"]).ok();
    writer.wait().expect("it ends");
    view.assert_landed("big", &with_changed_lines(&lines(200), 90));
}

#[test]
fn a_check_counts_for_nothing_where_what_it_saw_was_denied() {
    let scratch = mounted_scratch!();
    let view = denying_lib(&scratch);
    let asked = scratch.root().join("asked");
    let tested = format!("echo new > lib & until [ -e {asked:?} ]; do :; done; grep -q new lib");
    let refused = view.cli(&["check", "--confirm", "--", "sh", "-c", &tested]).exits(5);
    assert!(refused.stderr.contains("denied: lib"), "{}", refused.stderr);
    assert_eq!((scratch.read("lib"), scratch.read("big")), ("old\n".to_owned(), lines(200)));
    assert_eq!(view.only_held().path, "big");
}

/// It would wait for its own answer, until its limit.
#[test]
fn a_program_that_is_asked_may_flush() {
    let scratch = mounted_scratch!();
    let fettlefs = scratch.fettlefs().get_program().to_owned();
    let script = format!("#!/bin/sh\n{fettlefs:?} -C {:?} flush > /dev/null && ", scratch.project());
    let hook = program(&scratch, "hook", &format!("{script}echo '{{\"decision\":\"land\"}}'\n"));
    let view = mounting(&scratch, &[&hook]).start();
    view.write("file", "new\n");
    view.assert_landed("file", "new\n");
}
