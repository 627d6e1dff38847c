//! A run stays shut when its daemon dies, until another answers (SPEC §10); a runner that dies ends its run.

use std::fs;

use rustix::fs::{FlockOperation, flock};

use super::{Going, REWRITE, command, held, nobody_is_left, rewritten, run};
use crate::harness::{eventually, kill, lines, mounted_scratch};

/// The command of a run.
#[track_caller]
fn child_of(runner: i32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).expect("its children");
    children.split_whitespace().last().and_then(|pid| pid.parse().ok()).expect("the command")
}

/// A process that is ended with the test, however that goes.
struct Ended(i32);

impl Drop for Ended {
    fn drop(&mut self) {
        kill(self.0);
    }
}

#[test]
fn a_daemon_that_died_comes_back_inside_and_keeps_what_it_kept() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = format!(
        "{REWRITE}; kill -9 $($FETTLEFS status --json | grep -o '\"pid\":[0-9]*' | head -1 | grep -o '[0-9]*'); \
         until cat $PWD/a > $ROOT/seen 2>/dev/null; do :; done; cd $PWD; echo after > new; \
         $FETTLEFS confirm --all --yes; echo $?"
    );
    let output = run(&scratch, &[], &script).ok();
    assert_eq!(output.stdout, "6\n", "{}", output.stderr);
    assert_eq!(fs::read_to_string(scratch.root().join("seen")).expect("what it saw"), rewritten());
    assert!(output.stderr.contains("landed new"), "{}", output.stderr);
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
    nobody_is_left(&scratch);
    scratch.cli(&["fsck"]).ok();
}

#[test]
fn without_a_daemon_a_run_is_shut_and_writes_nothing_past_the_review() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let going = Going::start(&scratch, "one", REWRITE);
    let runner = going.pid();
    let after = "cat $PWD/a || echo shut; echo x > $PWD/new || echo shut; cd /; ls $OLDPWD || echo shut";
    // The command itself goes on: only what serves it is killed, watchdog first.
    let serving: Vec<i32> = scratch.daemons().into_iter().filter(|pid| *pid != runner).collect();
    assert!(serving.len() >= 3, "watchdog, daemon and keeper: {serving:?}");
    serving.iter().for_each(|pid| kill(*pid));
    eventually("nobody serves", || scratch.daemons().iter().all(|pid| *pid == runner));
    let mut tried = scratch.command("nsenter");
    tried
        .args(["-t", &child_of(runner).to_string(), "-m", "bash", "-c", after])
        .env("PWD", scratch.project())
        .current_dir("/");
    let tried = tried.output().expect("nsenter");
    let tried = crate::harness::Output::from(tried);
    assert!(!scratch.has("new") && scratch.read("a") == lines(100), "{tried:?}");
    let output = going.finish();
    assert_eq!(output.status, 7, "the command's own, where it failed: {}", output.stderr);
    assert!(output.stderr.contains("the daemon died"), "{}", output.stderr);
    assert_eq!(held(&scratch)[0].path, "a");
}

#[test]
fn as_json_a_run_says_that_nobody_can_tell_what_it_has_done() {
    let scratch = mounted_scratch!();
    // The watchdog first: it would start another.
    let script = "daemon=$($FETTLEFS status --json | grep -o '\"pid\":[0-9]*' | head -1 | grep -o '[0-9]*'); \
                  kill -9 $(cut -d ' ' -f 4 /proc/$daemon/stat) $daemon";
    let output = run(&scratch, &["--json", "--no-effects"], script).exits(125);
    let told: serde_json::Value = serde_json::from_str(&output.stderr).expect("one line of JSON");
    assert_eq!((&told["ok"], &told["op"], &told["status"]), (&false.into(), &"run".into(), &125.into()));
    assert_eq!(told["error"]["code"], "not_mounted");
    assert!(told["error"]["message"].as_str().is_some_and(|message| message.starts_with("the daemon died")), "{told}");
    nobody_is_left(&scratch);
}

#[test]
fn a_run_that_is_killed_ends_and_what_it_leaves_meets_a_closed_door() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = format!(
        "{REWRITE}; (setsid bash -c 'read -r _ < $ROOT/one.left; echo x > new; echo $? > $ROOT/wrote; cat a >> $ROOT/wrote' 2> /dev/null &)"
    );
    std::process::Command::new("mkfifo").arg(scratch.root().join("one.left")).status().expect("mkfifo");
    let going = Going::start(&scratch, "one", &script);
    // Its command waits for a word that nobody says any more.
    let _command = Ended(child_of(going.pid()));
    kill(going.pid());
    eventually("the daemon ends with its last run", || scratch.daemons().is_empty());
    fs::write(scratch.root().join("one.left"), "go\n").expect("a word to what is left");
    let wrote = scratch.root().join("wrote");
    eventually("it has tried", || fs::read_to_string(&wrote).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(fs::read_to_string(&wrote).expect("what it found"), "1\n");
    assert!(!scratch.has("new"));
    assert_eq!((scratch.read("a"), held(&scratch)[0].path.as_str()), (lines(100), "a"));
    scratch.cli(&["fsck"]).ok();
}

/// Nobody outside could find it any more.
#[test]
fn what_is_isolated_ends_with_a_run_that_is_killed() {
    let scratch = mounted_scratch!();
    let (lock, there) = (scratch.root().join("lock"), scratch.root().join("there"));
    let locked = fs::File::create(&lock).expect("a lock");
    let script = "exec 9> $ROOT/lock; flock 9; : > $ROOT/there; sleep 1000; :";
    let mut runner = command(&scratch, &["--isolate"], script).spawn().expect("it starts");
    eventually("the command runs", || there.exists());
    runner.kill().and_then(|()| runner.wait()).expect("it is killed");
    eventually("the command is gone", || flock(&locked, FlockOperation::NonBlockingLockExclusive).is_ok());
    nobody_is_left(&scratch);
}

/// It is what keeps everybody else from writing past the review.
#[test]
fn a_run_takes_no_dead_mount_away() {
    let scratch = mounted_scratch!();
    scratch.write("a", "a\n");
    let view = scratch.mount();
    view.kill_all();
    let refused = run(&scratch, &[], "true").exits(125);
    assert!(refused.stderr.contains("is dead (its daemon is gone); `fettlefs mount "), "{}", refused.stderr);
    assert!(std::fs::read_dir(scratch.project()).is_err(), "it is as shut as before");
    let view = scratch.mount();
    assert_eq!(view.read("a"), "a\n");
}
