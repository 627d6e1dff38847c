//! `fettlefs events`: what happened, in order, once; and what happens next.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use super::{small, work};
use crate::harness::{Scratch, View, mounted_scratch};

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

    fn end(mut self) {
        while self.next().is_some() {}
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
    assert_eq!(numbers(&view, &["--since", "1000000"]), [0; 0]);
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
