//! Terminal, process group and signals: a command under `run` is in front as under a shell.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::{Going, command, nobody_is_left, run};
use crate::harness::{Screen, lines, mounted_scratch, script};

#[test]
fn signals_that_are_sent_to_the_run_reach_its_command() {
    let scratch = mounted_scratch!();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let wait = format!("trap 'echo got {name}; exit 9' {name}");
        let going = Going::start(&scratch, name, &wait);
        kill_process(Pid::from_raw(going.pid()).expect("a pid"), signal).expect("the run is there");
        let output = going.child_output();
        assert_eq!((output.status, output.stdout.as_str()), (9, format!("got {name}\n").as_str()), "{}", output.stderr);
    }
}

#[test]
fn a_command_has_the_streams_the_group_and_the_environment_of_whoever_runs_it() {
    let scratch = mounted_scratch!();
    // The C library has two signals for itself (32 and 33), and takes them with the first thread that it starts.
    let facts = "cat; ps -o pgid= -p $$ | tr -d ' '; echo $MINE; grep SigBlk /proc/self/status
        echo $((0x$(sed -n 's/^SigIgn:.//p' /proc/self/status) & ~0x180000000))";
    let mut command = command(&scratch, &[], facts);
    let mut child = command
        .env("MINE", "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the built program runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"given\n").expect("it reads");
    let output = crate::harness::Output::from(child.wait_with_output().expect("its output")).ok();
    let plain = scratch.command("bash").args(["-c", &facts.replace("cat;", "echo given;")]).env("MINE", "yes").output();
    assert_eq!(output.stdout, crate::harness::Output::from(plain.expect("bash")).ok().stdout, "as without it");
}

/// Ctrl-C and Ctrl-Z come from the terminal to the whole group; the shell gets its job back.
#[test]
fn a_terminal_interrupts_and_stops_the_command_and_not_the_run() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let text = r#"
import pty, select, signal
program, project = sys.argv[1:3]
def until(fd, word, seen=b""):
    while word not in seen:
        ready, _, _ = select.select([fd], [], [], 20)
        assert ready, (word, seen)
        try:
            seen += os.read(fd, 4096)
        except OSError:
            break
    assert word in seen, (word, seen)
    return seen
def start(script):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(program, [program, "-C", project, "run", "--", "bash", "-c", script])
    return pid, fd
pid, fd = start("trap 'echo interrupted; exit 5' INT; echo ready; while :; do read -t 0.1 x; done")
until(fd, b"ready")
os.write(fd, b"\x03")
until(fd, b"landed", until(fd, b"interrupted"))
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 5, status

pid, fd = start("echo ready; read line; echo got $line")
until(fd, b"ready")
# Nobody's job control: a group without a parent in the session is not stopped from the terminal, but each by itself.
child = int(open(f"/proc/{pid}/task/{pid}/children").read().split()[-1])
os.kill(child, signal.SIGSTOP)
_, status = os.waitpid(pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status
os.kill(pid, signal.SIGCONT)
os.write(fd, b"word\n")
until(fd, b"got word")
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
"#;
    let program = scratch.fettlefs().get_program().to_owned();
    let mut command = script::command(&scratch, scratch.root(), text);
    let output = command.arg(program).arg(scratch.project()).output().expect("python3");
    crate::harness::Output::from(output).ok();
}

#[test]
fn orphans_of_a_command_stay_inside_and_leave_no_zombies() {
    let scratch = mounted_scratch!();
    let script = "(setsid bash -c 'echo $PPID > $ROOT/parent; read -r _ < $ROOT/fifo' &); (sh -c 'exit 3' &); \
                  echo go > $ROOT/fifo; until [ -s $ROOT/parent ]; do :; done";
    std::process::Command::new("mkfifo").arg(scratch.root().join("fifo")).status().expect("mkfifo");
    run(&scratch, &[], script).ok();
    nobody_is_left(&scratch);
}

/// Where the command has ended there is nobody to pass signals on to: what asks the run to end ends its question.
#[test]
fn whoever_interrupts_the_question_of_a_run_leaves_everything_held() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let keys = [("\x03", 130), ("\x1c", 131)].map(|(key, status)| (Err(key), status));
    let signals =
        [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)].map(|(sent, status)| (Ok(sent), status));
    for (how, status) in keys.into_iter().chain(signals) {
        let mut command = scratch.fettlefs();
        command.args(["run", "--on-exit", "ask", "--", "sed", "-i", "s/^/changed /", "a"]);
        let mut screen = Screen::start(command.current_dir(scratch.project()), 24, 100);
        screen.shows("Apply 1 held change? [y/N]");
        match how {
            Ok(signal) => kill_process(Pid::from_raw(screen.pid()).expect("a pid"), signal).expect("the run is there"),
            Err(key) => screen.press(key),
        }
        assert_eq!(screen.ends(), status, "{how:?}: {}", screen.text());
        screen.shows("fettlefs: 0 paths landed, 1 held");
        nobody_is_left(&scratch);
        assert_eq!(scratch.read("a"), lines(100), "{how:?}");
        let mut discard = scratch.fettlefs();
        let discarded = discard.args(["discard", "a"]).current_dir(scratch.project()).output().expect("the program");
        crate::harness::Output::from(discarded).ok();
    }
}

#[test]
fn a_line_that_comes_in_pieces_answers_the_question_of_a_run() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let mut command = scratch.fettlefs();
    command.args(["run", "--on-exit", "ask", "--", "sed", "-i", "s/^/changed /", "a"]);
    let mut screen = Screen::start(command.current_dir(scratch.project()), 24, 100);
    screen.shows("Apply 1 held change? [y/N]");
    // Given out without an end of the line, which the terminal then has yet to give.
    screen.press("ye\x04");
    screen.press("s\n");
    assert_eq!(screen.ends(), 0, "{}", screen.text());
    assert!(scratch.read("a").starts_with("changed "), "{}", screen.text());
    nobody_is_left(&scratch);
}

/// Whoever typed ahead did not know the question, and a program can push a line into its terminal (TIOCSTI).
#[test]
fn what_was_typed_before_a_question_is_no_answer_to_it() {
    let scratch = mounted_scratch!();
    let program = scratch.fettlefs().get_program().to_str().expect("a plain path").to_owned();
    let (until_go, go) = ("echo begun; until [ -e \"$ROOT/go\" ]; do :; done", scratch.root().join("go"));
    let rewrite = format!("sed -i 's/^/changed /' a; {until_go}");
    let confirm = format!("{until_go}; exec {program} confirm --all");
    let asking: [(&[&str], i32); 2] =
        [(&[&program, "run", "--on-exit", "ask", "--", "bash", "-c", &rewrite], 0), (&["bash", "-c", &confirm], 1)];
    scratch.write("a", lines(100));
    for (words, status) in asking {
        let mut command = scratch.command(words[0]);
        command.args(&words[1..]).env("ROOT", scratch.root()).current_dir(scratch.project());
        let mut screen = Screen::start(&command, 24, 100);
        screen.shows("begun");
        screen.press("yes\n");
        screen.shows("yes");
        std::fs::write(&go, "").expect("a file");
        screen.shows("Apply 1 held change? [y/N]");
        screen.press("n\n");
        assert_eq!(screen.ends(), status, "{}", screen.text());
        assert_eq!(scratch.read("a"), lines(100), "{}", screen.text());
        std::fs::remove_file(&go).expect("a file");
    }
}

/// What it typed would be the next command of the shell that the run was started from, which is outside.
#[test]
fn an_isolated_command_types_nothing_on_its_terminal() {
    let scratch = mounted_scratch!();
    let text = r#"
import ctypes, errno, os, termios
libc = ctypes.CDLL(None, use_errno=True)
for request in termios.TIOCSTI, termios.TIOCSTI | 1 << 32, 0x541c:
    done = libc.ioctl(0, ctypes.c_ulong(request), b"x")
    print("request", hex(request), done, errno.errorcode.get(ctypes.get_errno()), flush=True)
print("lines", os.get_terminal_size(0).lines)
"#;
    let mut command = scratch.fettlefs();
    command.args(["run", "--isolate", "--", "python3", "-c", text]).current_dir(scratch.project());
    let mut screen = Screen::start(&command, 24, 100);
    assert_eq!(screen.ends(), 0, "{}", screen.text());
    for told in ["0x5412 -1 EPERM", "0x100005412 -1 EPERM", "0x541c -1 EPERM"] {
        assert!(screen.text().contains(&format!("request {told}")), "{told}: {}", screen.text());
    }
    assert!(screen.text().contains("lines 24"), "{}", screen.text());
}
