//! On a terminal: nothing obeys, colours and pagers as asked for, and a question before everything is done.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{NEW, OLD, id_of, small};
use crate::harness::{Output, Scratch, Screen, View, lines, mounted_scratch, with_changed_lines};

/// Runs the command on a pseudo terminal of 24 rows, types `typed` when it asks and gives what the terminal was sent.
const ON_TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 200, 0, 0))
typed, seen = sys.argv[1].encode(), b''
while True:
    try:
        piece = os.read(terminal, 65536)
    except OSError:
        break
    if not piece:
        break
    os.write(1, piece)
    seen += piece
    if b'[y/N] ' in seen:
        os.write(terminal, typed)
        typed = b''
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// fettlefs on a terminal in the view. The terminal's own `\r` before each line end is taken away.
pub fn on_terminal(
    scratch: &Scratch,
    view: &View<'_>,
    env: &[(&str, &str)],
    typed: &str,
    arguments: &[&str],
) -> Output {
    let mut command = scratch.command("python3");
    command.args(["-c", ON_TERMINAL, typed]).arg(scratch.fettlefs().get_program()).args(arguments);
    command.env("TERM", "xterm").env("NO_COLOR", "1").envs(env.iter().copied()).current_dir(view.root());
    let mut output: Output = command.output().expect("python3 runs").into();
    output.stdout = output.stdout.replace("\r\n", "\n");
    output
}

const NASTY: &str = "a\x1b]0;title\x07\nb\rc\u{202e}d";
const NASTY_ESCAPED: &str = r"a\u{1b}]0;title\u{7}\nb\rc\u{202e}d";

#[test]
fn names_and_contents_are_spelled_out_on_a_terminal_and_raw_through_a_pipe() {
    let scratch = mounted_scratch!();
    scratch.write(NASTY, OLD);
    let view = small(&scratch).start();
    let content = "ONE\x1b[2J\nTWO\rtwo\nTHREE\tand\u{feff}\n";
    view.write(NASTY, content);
    let commands: [&[&str]; 6] =
        [&["status"], &["diff"], &["show", "."], &["log"], &["confirm", ".", "--dry-run"], &["discard", NASTY]];
    for arguments in commands {
        let shown = on_terminal(&scratch, &view, &[], "", arguments).ok().stdout;
        let obeyed = shown.chars().find(|character| character.is_control() && !matches!(character, '\n' | '\t'));
        assert_eq!(obeyed, None, "{arguments:?}: {shown:?}");
        assert!(!shown.contains(['\u{202e}', '\u{feff}']), "{arguments:?}: {shown:?}");
        if arguments[0] != "diff" {
            assert!(shown.contains(NASTY_ESCAPED), "{arguments:?}: {shown}");
        }
        if matches!(arguments[0], "diff" | "show") {
            assert!(shown.contains("+ONE\\u{1b}[2J\n+TWO\\rtwo\n+THREE\tand\\u{feff}\n"), "{arguments:?}: {shown}");
        }
    }
    view.write(NASTY, content);
    let piped = view.cli(&["diff"]).ok();
    assert!(piped.stdout.contains("+ONE\x1b[2J\n+TWO\rtwo\n+THREE\tand\u{feff}\n"), "{}", piped.stdout);
    let piped = view.cli(&["confirm", "."]).ok();
    assert!(piped.stdout.starts_with(&format!("fettlefs: Applied {NASTY} (")), "{}", piped.stdout);
}

#[test]
fn json_and_remarks_are_spelled_out_on_a_terminal_too() {
    let scratch = mounted_scratch!();
    let (name, inner) = ("c\u{9b}2J\u{7f}\u{202e}d", "sub\x1b[31m\u{202e}X");
    scratch.write(name, OLD);
    scratch.write(format!("{inner}/file"), OLD);
    let view = small(&scratch).start();
    view.write(name, NEW);
    for arguments in
        [&["status", "--json"][..], &["diff", "--json"], &["log", "--json"], &["confirm", "none\u{202e}", "--json"]]
    {
        let shown = on_terminal(&scratch, &view, &[], "", arguments).stdout;
        assert!(
            !shown.contains(['\u{9b}', '\u{7f}', '\u{202e}']) && shown.contains("\\u202e"),
            "{arguments:?}: {shown:?}"
        );
        let value: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert!(arguments[0] != "status" || value["held"][0]["path"] == name, "{value}");
    }
    assert!(view.cli(&["status", "--json"]).ok().stdout.contains(name));
    let run = ["-C", inner, "run", "--", "true"];
    let shown = on_terminal(&scratch, &view, &[], "", &run).stdout;
    assert!(shown.contains("in which ") && shown.contains("sub\\u{1b}[31m\\u{202e}X lies"), "{shown:?}");
    assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown:?}");
}

#[test]
fn errors_and_usage_are_spelled_out_too() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for arguments in [["confirm", NASTY], ["rollback", NASTY], ["status", NASTY]] {
        let shown = on_terminal(&scratch, &view, &[], "", &arguments).stdout;
        assert!(!shown.contains(['\x1b', '\x07', '\r', '\u{202e}']), "{arguments:?}: {shown:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let ask = |env: &[(&str, &str)]| on_terminal(&scratch, &view, env, "", &["diff"]).ok().stdout;
    let plain = view.cli(&["diff"]).ok().stdout;
    let colored = ask(&[("NO_COLOR", "")]);
    assert!(colored.contains("\x1b[32m+ONE\x1b[0m\n") && colored.contains("\x1b[31m-one\x1b[0m\n"), "{colored:?}");
    assert_eq!(ask(&[]), plain);
    assert_eq!(ask(&[("NO_COLOR", ""), ("TERM", "dumb")]), plain);
}

#[test]
fn what_is_longer_than_the_screen_goes_to_the_pager() {
    let scratch = mounted_scratch!();
    scratch.write("long.txt", lines(100));
    let view = small(&scratch).start();
    view.write("long.txt", with_changed_lines(&lines(100), 50));
    view.write("c.txt", NEW);
    let ask =
        |pager: &str, what: &str| on_terminal(&scratch, &view, &[("PAGER", pager)], "", &["diff", what]).ok().stdout;
    let whole = view.cli(&["diff", "long.txt"]).ok().stdout;
    assert_eq!(ask("sed 's/^/paged: /'", "long.txt").lines().next(), Some("paged: diff --git a/long.txt b/long.txt"));
    assert_eq!(ask("head -n 1", "long.txt"), "diff --git a/long.txt b/long.txt\n");
    assert_eq!(ask("sed 's/^/paged: /'", "c.txt").lines().next(), Some("diff --git a/c.txt b/c.txt"));
    assert_eq!(ask("cat", "long.txt"), whole);
    // As Ctrl-C, which ends a search in `less`: it ends the pager alone.
    assert_eq!(ask("kill -INT $PPID; kill -QUIT $PPID; head -n 1", "long.txt").lines().count(), 1);
    assert_eq!(ask("kill -INT $$; echo not ended", "long.txt"), "");
    let without = ask("no-such-pager-at-all", "long.txt");
    assert!(without.ends_with(&whole), "{without}");
}

#[test]
fn a_pipe_that_nobody_reads_from_any_more_changes_no_status() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    for (command, status) in [
        ("status --json", 0),
        ("status", 0),
        ("status --exit-code", 1),
        ("log", 0),
        ("events --json", 0),
        ("events --follow --since 0", 0),
        ("confirm deadbeef --json", 4),
        ("check -- false", 8),
        ("--help", 0),
        ("confirm c.txt", 0),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut program = scratch.fettlefs();
        program.args(command.split(' ')).current_dir(view.root()).stdout(writer);
        let output: Output = program.output().expect("the built program runs").into();
        assert_eq!(
            (output.status, output.stderr.contains("Broken pipe")),
            (status, false),
            "{command}: {}",
            output.stderr
        );
    }
    view.assert_landed("c.txt", NEW);
}

#[test]
fn all_asks_on_a_terminal_and_does_nothing_unless_told_yes() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    for answer in ["n\n", "\n", "maybe\n"] {
        let output = on_terminal(&scratch, &view, &[], answer, &["confirm", "--all"]).exits(1);
        assert!(output.stdout.contains("fettlefs: Apply 2 held changes? [y/N] "), "{}", output.stdout);
        assert!(output.stdout.contains("fettlefs: nothing was done\n"), "{}", output.stdout);
    }
    assert_eq!(view.held().len(), 2);
    let done = on_terminal(&scratch, &view, &[], "y\n", &["confirm", "--all"]).ok().stdout;
    assert_eq!(done.matches("fettlefs: Applied ").count(), 2, "{done}");
    view.write("c.txt", OLD);
    let asked = on_terminal(&scratch, &view, &[], "y\n", &["discard", "--all"]).ok().stdout;
    assert!(asked.contains("fettlefs: Discard 1 held change? [y/N] "), "{asked}");
    view.assert_landed("c.txt", NEW);
    assert_eq!(on_terminal(&scratch, &view, &[], "", &["confirm", "--all"]).ok().stdout, "fettlefs: Nothing is held\n");
}

/// What comes while a person thinks is in no count that he has seen.
#[test]
fn all_is_what_a_person_was_asked_about_and_not_what_came_while_he_thought() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let answered = |verb: &str, meanwhile: &dyn Fn()| {
        let mut command = scratch.fettlefs();
        command.args([verb, "--all"]).current_dir(view.root());
        let mut screen = Screen::start(&command, 24, 120);
        screen.shows("1 held change? [y/N]");
        meanwhile();
        screen.press("y\n");
        (screen.ends(), screen.text())
    };
    for (verb, landed) in [("confirm", NEW), ("discard", OLD)] {
        view.write("c.txt", NEW);
        let (status, told) = answered(verb, &|| view.write("d.txt", NEW));
        assert_eq!(status, 0, "{told}");
        assert_eq!(std::fs::read_to_string(view.lower().join("c.txt")).expect("a file"), landed, "{verb}: {told}");
        view.assert_held("d.txt", NEW, OLD);
        let (status, told) = answered(verb, &|| view.write("d.txt", "another\nthing\naltogether\n"));
        assert_eq!(status, 5, "{told}");
        assert!(told.contains("(d.txt) became "), "{told}");
        view.assert_held("d.txt", "another\nthing\naltogether\n", OLD);
        view.cli(&["discard", "d.txt"]).ok();
        scratch.write("c.txt", OLD);
    }
}

#[test]
fn bytes_that_are_no_text_are_spelled_out_in_names() {
    let scratch = mounted_scratch!();
    let name = OsStr::from_bytes(b"caf\xe9");
    scratch.write(name, OLD);
    let view = small(&scratch).start();
    view.write(name, NEW);
    let id = view.only_held().id;
    let shown = on_terminal(&scratch, &view, &[], "", &["confirm", &id, "--dry-run"]).ok().stdout;
    assert_eq!(shown, "fettlefs: Would apply caf\\xe9 (14B, 3 lines, +3 -3 ~3)\n");
    view.write("c.txt", NEW);
    assert_ne!(id_of(&view, "c.txt"), id);
}
