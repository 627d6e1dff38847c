//! The programs in docs/hooks, as they stand there.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{mounting, program};
use crate::harness::{Scratch, lines, mounted_scratch};

fn example(scratch: &Scratch, name: &str) -> PathBuf {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/hooks").join(name));
    program(scratch, name, &text.expect("the example"))
}

#[test]
fn the_policy_decides() {
    let scratch = mounted_scratch!();
    scratch.write("migrations/1.sql", "create\n");
    scratch.write("tests/a", "test\n");
    scratch.write("Cargo.lock", "a\n");
    scratch.write("long", lines(60));
    let view = mounting(&scratch, &[&example(&scratch, "by-policy")]).start();
    // Denied, the shell says nothing of its close; the file does.
    view.sh("echo drop > migrations/1.sql; echo more > migrations/2.sql; rm tests/a; echo b > Cargo.lock");
    view.sh("sed -i 1,35d long; echo 'x = eval(y)' > code.py; echo fine > fine; printf '\\377' > data");
    view.sh("printf '\\014eval(1)\\n' > feed.py; (seq 250; echo 'eval(1)') > far.py");
    assert_eq!(view.read("migrations/1.sql"), "create\n");
    for path in ["migrations/2.sql", "fine"] {
        assert!(scratch.has(path), "{path} was let through");
    }
    let held = view.held();
    for (path, why) in [
        ("tests/a", "a test goes"),
        ("Cargo.lock", "a lock file that no package manager wrote"),
        ("long", "mostly deletions"),
        ("code.py", "adds eval"),
        ("feed.py", "adds eval"),
        ("far.py", "longer than a question tells"),
        ("data", "binary or large"),
    ] {
        let change = held.iter().find(|held| held.path == path).unwrap_or_else(|| panic!("{path} is not held"));
        assert_eq!((change.reason.as_str(), &change.json["detail"]), ("hook", &format!("by-policy: {why}").into()));
    }
}

/// A terminal that types each of its arguments once it is asked; what it was sent comes out at the end.
const TERMINAL: &str = r#"
import os, pty, sys
master, slave = pty.openpty()
print(os.ttyname(slave), flush=True)
seen = b""
for reply in sys.argv[1:]:
    asked = b""
    while b"[N]o: " not in asked:
        asked += os.read(master, 65536)
    seen += asked
    os.write(master, reply.encode() + b"\n")
sys.stdout.buffer.write(seen)
"#;

#[test]
fn a_person_is_asked_on_a_terminal() {
    let scratch = mounted_scratch!();
    let mut command = scratch.command("python3");
    command.args(["-c", TERMINAL, "y", "d", "", "what?"]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut terminal = command.spawn().expect("python3");
    let mut told = BufReader::new(terminal.stdout.take().expect("its output"));
    let mut name = String::new();
    told.read_line(&mut name).expect("the terminal's name");
    let hook = example(&scratch, "ask-on-terminal");
    let mounting = scratch.mounting().env("FETTLE_HOOKS_PRE_WRITE", format!("[{hook:?}, {:?}]", name.trim()));
    let view = mounting.env("FETTLE_HOOKS_TIMEOUT", "20s").start();
    for path in ["yes", "deny", "enter", "unclear"] {
        view.sh(&format!("printf 'new \\033[2J\\343\\205\\244\\n' > {path}"));
    }
    terminal.stdin.take().expect("its input").flush().expect("nothing to write");
    let mut seen = Vec::new();
    told.read_to_end(&mut seen).expect("what it was sent");
    assert!(terminal.wait().expect("it ends").success());
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("+new \\x1b[2J\\u3164") && !seen.contains(['\x1b', '\u{3164}']), "{seen:?}");
    assert!(seen.contains("create 'yes' by /"), "{seen}");
    view.assert_landed("yes", "new \x1b[2J\u{3164}\n");
    assert!(!view.has("deny") && !scratch.has("deny"));
    for path in ["enter", "unclear"] {
        assert!(view.has(path) && !scratch.has(path), "{path}");
    }
    // Nobody there any more: it waits for review.
    view.sh("echo late > late");
    assert!(view.has("late") && !scratch.has("late"));
}
