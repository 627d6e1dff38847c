//! `fettlefs events`: what happened, in order, once; and what happens next.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{small, work};
use crate::harness::{Scratch, Stopped, View, eventually, mounted_scratch, script, venv};

/// `fettlefs events --follow --json`, asked from within the view or from outside.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn start(scratch: &Scratch, directory: &std::path::Path, args: &[&str]) -> Self {
        let mut command = scratch.fettlefs();
        command.current_dir(directory).args(["events", "--follow", "--json"]).args(args);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the built program runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, lines }
    }

    /// The next event; None at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line of text");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("one JSON object a line"))
    }

    /// The next event about `path`.
    fn next_about(&mut self, path: &str) -> Value {
        loop {
            let event = self.next().expect("an event before the end");
            if event["path"] == path {
                return event;
            }
        }
    }

    /// The end of the mount is the last that it is told.
    fn end(mut self) {
        let last = std::iter::from_fn(|| self.next()).last().expect("an event before the end");
        assert_eq!(last["event"], "session_ended");
        let status = self.child.wait().expect("it can be waited for");
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn numbers(view: &View, args: &[&str]) -> Vec<u64> {
    let out = view.cli(&[&["events", "--json"], args].concat()).ok().stdout;
    let seq = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["seq"].as_u64().expect("a number");
    out.lines().map(seq).collect()
}

#[test]
fn events_come_in_order_and_go_on_after_any_of_them() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let all = numbers(&view, &[]);
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(numbers(&view, &["--since", "2"]), all[2..]);
    for beyond in [1_000_000, 1 << 63, u64::MAX] {
        assert_eq!(numbers(&view, &["--since", &beyond.to_string()]), [0; 0]);
    }
    assert_eq!(numbers(&view, &["--session", "another"]), [0; 0]);
    let words = view.cli(&["events"]).ok().stdout;
    assert_eq!(words.lines().count(), all.len());
}

#[test]
fn a_follower_is_told_what_happens_and_ends_with_the_mount() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut inside = Follower::start(&scratch, view.root(), &[]);
    let mut outside = Follower::start(&scratch, &scratch.project(), &["--since", "0"]);
    assert_eq!(outside.next().expect("the first")["event"], "session_started");
    for number in 0..3 {
        let name = format!("told{number}");
        view.write(&name, "new\n");
        for follower in [&mut inside, &mut outside] {
            assert_eq!(follower.next_about(&name)["event"], "write_landed");
        }
    }
    view.unmount();
    inside.end();
    outside.end();
    let refused = scratch.cli(&["events", "--follow", "--json"]).exits(3);
    assert_eq!(refused.error_code(), "not_mounted");
    assert!(scratch.cli(&["events"]).ok().stdout.lines().last().is_some_and(|last| last.contains("session ended")));
}

#[test]
fn a_follower_outlives_a_daemon_that_died() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut inside = Follower::start(&scratch, view.root(), &["--since", "0"]);
    let mut outside = Follower::start(&scratch, &scratch.project(), &["--since", "0"]);
    for follower in [&mut inside, &mut outside] {
        assert_eq!(follower.next().expect("the first")["event"], "session_started");
    }
    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    view.write("told", "new\n");
    for follower in [&mut inside, &mut outside] {
        assert_eq!(follower.next_about("told")["event"], "write_landed");
    }
    view.unmount();
    inside.end();
    outside.end();
}

/// How long after the end it goes on: less than a dead mount is waited for.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn a_follower_in_a_view_that_has_gone_meanwhile_is_told_the_rest() {
    // Few are told once it goes on, and many are more than fit into a pipe that nobody reads.
    for count in [3, 200] {
        let scratch = mounted_scratch!();
        let view = small(&scratch).at("view").start();
        let mut inside = Follower::start(&scratch, view.root(), &["--since", "0"]);
        assert_eq!(inside.next().expect("the first")["event"], "session_started");
        let stopped = Stopped::new(inside.child.id() as i32);
        (0..count).for_each(|number| view.write(format!("told{number}"), "new\n"));
        view.unmount();
        let gone = Instant::now();
        drop(stopped);
        (0..count).for_each(|number| drop(inside.next_about(&format!("told{number}"))));
        inside.end();
        assert!(gone.elapsed() < SOON, "{:?}", gone.elapsed());
    }
}

#[test]
fn a_follower_that_cannot_see_how_it_went_on_does_not_say_that_the_daemon_died() {
    let scratch = mounted_scratch!();
    let state = scratch.root().join("state");
    let view = small(&scratch).at("view").env("FETTLE_STATE_DIR", &state).start();
    // Without the variable it knows of no state but the view's.
    let mut inside = Follower::start(&scratch, view.root(), &["--since", "0"]);
    assert_eq!(inside.next().expect("the first")["event"], "session_started");
    let stopped = Stopped::new(inside.child.id() as i32);
    view.unmount();
    drop(stopped);
    let said = std::iter::from_fn(|| inside.next()).last().expect("an answer");
    let message = said["error"]["message"].as_str().expect("a message");
    assert!(said["error"]["code"] == "not_mounted" && message.starts_with("no mount"), "{said}");
    assert_eq!(inside.child.wait().expect("it can be waited for").code(), Some(3));
}

/// Says each line of its input that the schema in its first argument does not describe. Nothing may be there that the
/// schema does not name, which it lets readers expect.
const VALIDATES: &str = r#"
import json, sys, jsonschema
schema = json.loads(sys.argv[1])
jsonschema.Draft202012Validator.check_schema(schema)
schema["additionalProperties"] = schema["$defs"]["program"]["oneOf"][1]["additionalProperties"] = False
validator = jsonschema.Draft202012Validator(schema)
told = 0
for line in sys.stdin:
    for fault in validator.iter_errors(json.loads(line)):
        print(fault.message, "in", line.strip())
    told += 1
print(told, "events")
"#;

/// What [`VALIDATES`] says of `events`, one a line.
fn validated(events: &str) -> String {
    let mut command = std::process::Command::new(venv::python_with(venv::WITH_JSON_SCHEMA));
    command.args(["-c", VALIDATES, include_str!("../../../docs/events.schema.json")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
    child.stdin.take().expect("its input").write_all(events.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("a child");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_events_of_a_session_are_as_their_schema_says() {
    let scratch = mounted_scratch!();
    let deny = "[[rule]]\nmatch = \"denied\"\naction = \"deny\"\n";
    scratch.write(".fettle.toml", deny);
    scratch.write("denied", "old\n");
    scratch.write("known", "old\n");
    let view = small(&scratch).start();
    work(&view);
    let not_utf8 = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"not \xff UTF-8");
    view.write(not_utf8, "new\n");
    view.sh("echo new > denied");
    view.sh("mkdir dir && mv c.txt dir/c.txt && chmod +x dir/c.txt && ln -s c.txt dir/link && rm d.txt");
    view.sh("echo new > known");
    scratch.write("known", "of somebody else\n");
    view.read("known");
    view.cli(&["check", "--", "false"]).exits(8);
    view.cli(&["check", "--", "true"]).ok();
    script::python(&scratch, view.root(), "assert ask(op='request_review', name='why')['held_count']").ok();
    let log = view.cli(&["log", "--json", "notes.txt"]).ok().json();
    view.cli(&["undo", log["events"][0]["operation"].as_str().expect("an operation")]).ok();
    view.cli(&["confirm", "src/a.rs"]).ok();
    view.cli(&["rollback", "src/a.rs"]).ok();
    view.cli(&["discard", "src/b.rs"]).ok();
    view.unmount();
    let events = scratch.cli(&["events", "--json"]).ok().stdout;
    for name in [
        "session_started write_landed write_held write_denied review_requested external_modified check_started",
        "check_failed check_passed undone confirmed rolled_back discarded session_ended",
    ] {
        for name in name.split(' ') {
            assert!(events.contains(&format!("\"event\":\"{name}\"")), "no {name} in\n{events}");
        }
    }
    assert_eq!(validated(&events), format!("{} events\n", events.lines().count()));
    // A schema that let everything pass would prove nothing.
    let first = events.lines().next().expect("an event");
    for wrong in [first.replace("session_started", "began"), first.replace("\"seq\":1", "\"seq\":\"1\"")] {
        assert_eq!(validated(&wrong).lines().count(), 2, "{wrong}");
    }
}

/// Fills the log of a project that is not mounted with 1 800 events of 10 000 bytes: past 16 MiB, which no test has the time to
/// do by writing files.
const FILLS_THE_LOG: &str = r#"
import sqlite3
state = sqlite3.connect(".fettle/fettle.db")
last, row = state.execute("SELECT seq, row FROM event ORDER BY seq DESC LIMIT 1").fetchone()
row = json.loads(row)
for seq in range(last + 1, last + 1801):
    text = json.dumps(dict(row, seq=seq, event="check_passed", message="x" * 10000))
    state.execute("INSERT INTO event (seq, row) VALUES (?, ?)", (seq, text))
state.commit()
"#;

#[test]
fn what_a_follower_has_not_read_stays_when_the_oldest_go() {
    let scratch = mounted_scratch!();
    let after = |since: u64| {
        let told = scratch.cli(&["events", "--json", "--since", &since.to_string()]).ok();
        let seq = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["seq"].as_u64().expect("a number");
        (told.stdout.lines().map(seq).collect::<Vec<_>>(), told.stderr)
    };
    small(&scratch).at("view").start().unmount();
    script::python(&scratch, &scratch.project(), FILLS_THE_LOG).ok();
    let view = small(&scratch).at("view").start();
    // Each is told more than it reads: nobody takes what it prints, and it does not ask on.
    let mut stopped = Follower::start(&scratch, &scratch.project(), &["--since", "5"]);
    assert_eq!(stopped.next().expect("an event")["seq"], 6);
    let mut gone = Follower::start(&scratch, &scratch.project(), &["--since", "3"]);
    assert_eq!(gone.next().expect("an event")["seq"], 4);
    drop(gone);
    view.unmount();
    let (left, gap) = after(5);
    assert_eq!(left, (6..=*left.last().expect("events")).collect::<Vec<_>>(), "all that the one has yet to read");
    assert_eq!(gap, "");
    let (left, gap) = after(3);
    assert_eq!((left[0], gap.as_str()), (6, "fettlefs: the events 4 to 5 are not kept any more\n"));
    // With nobody who follows, the log is as long as it may be.
    drop(stopped);
    small(&scratch).at("view").start().unmount();
    let (left, gap) = after(5);
    assert!(left[0] > 500 && gap.starts_with("fettlefs: the events 6 to "), "{}: {gap}", left[0]);
}
