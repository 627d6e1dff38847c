//! `fettlefs run`, with real namespaces: a command in a view of its own (SPEC §2, §12).
//!
//! Here what one run does; `join` several at once and beside mounts, `rights` who may change state while one goes on,
//! `user` an ordinary user's, `death` what becomes of a run whose daemon or runner dies,
//! `effects` what shells tell, `front` terminal and signals.

mod death;
mod effects;
mod front;
mod join;
mod rights;
mod user;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{Held, Output, Scratch, eventually, lines, mounted_scratch};

/// `fettlefs run -- bash -c SCRIPT` in the project, where `$ROOT` is the scratch directory and `$FETTLEFS` the program.
fn command(scratch: &Scratch, flags: &[&str], script: &str) -> Command {
    let mut command = scratch.fettlefs();
    let program = command.get_program().to_owned();
    command.current_dir(scratch.root()).arg("-C").arg(scratch.project()).arg("run").args(flags);
    command.args(["--", "bash", "-c", script]).env("ROOT", scratch.root()).env("FETTLEFS", program);
    command
}

fn run(scratch: &Scratch, flags: &[&str], script: &str) -> Output {
    command(scratch, flags, script).output().expect("the built program runs").into()
}

/// A run that waits inside until [`Going::finish`].
struct Going<'s> {
    scratch: &'s Scratch,
    child: Option<Child>,
    /// A FIFO, open for both: neither end is waited for, and a word stays there until the run opens it to read.
    go: File,
}

impl<'s> Going<'s> {
    /// Returns when `script` is done; the run goes on. `name` is another for each run of a test.
    #[track_caller]
    fn start(scratch: &'s Scratch, name: &str, script: &str) -> Self {
        Self::start_with(scratch, name, script, |command| command)
    }

    #[track_caller]
    fn start_with(
        scratch: &'s Scratch,
        name: &str,
        script: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let (go, there) = (scratch.root().join(format!("{name}.go")), scratch.root().join(format!("{name}.there")));
        Command::new("mkfifo").args(["-m", "666"]).arg(&go).status().expect("mkfifo");
        let word = File::options().read(true).write(true).open(&go).expect("a FIFO");
        // A shell that is about to read when a signal comes runs its trap only once it has read: so it looks up each second,
        // for which `read` gives a status above 128.
        let waits = format!(
            "{script}\n: > '{}'; while read -r -t 1 _; [ $? -gt 128 ]; do :; done < '{}'; exit 7",
            there.display(),
            go.display()
        );
        let mut command = command(scratch, &[], &waits);
        let child = change(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut going = Self { scratch, child: Some(child), go: word };
        eventually("the run is where it waits", || there.exists() || going.has_ended());
        assert!(!going.has_ended(), "{:?}", going.finish());
        going
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().expect("a child").is_some())
    }

    fn pid(&self) -> i32 {
        self.child.as_ref().expect("it goes on").id().try_into().expect("a pid")
    }

    fn status(&self) -> Value {
        self.scratch.cli(&["status", "--json"]).ok().json()
    }

    /// Lets it end.
    fn finish(mut self) -> Output {
        self.go.write_all(b"go\n").expect("a word to the run");
        self.child.take().expect("once").wait_with_output().expect("its output").into()
    }

    /// When it ends by itself.
    fn child_output(mut self) -> Output {
        self.child.take().expect("once").wait_with_output().expect("its output").into()
    }
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take()
            && let Err(err) = child.kill().and_then(|()| child.wait())
        {
            eprintln!("a run could not be ended: {err}");
        }
    }
}

/// A daemon, its watchdog and its keeper end one after the other, the daemon before the run does.
#[track_caller]
fn nobody_is_left(scratch: &Scratch) {
    eventually("the daemon and what belongs to it are gone", || scratch.daemons().is_empty());
}

/// A hundred lines, and a rewrite of all of them that is held.
const REWRITE: &str = "seq 200 299 > a";

fn rewritten() -> String {
    (200..300).map(|number| format!("{number}\n")).collect()
}

#[track_caller]
fn held(scratch: &Scratch) -> Vec<Held> {
    Held::all_in(&scratch.cli(&["status", "--json"]).ok().json())
}

#[test]
fn a_command_works_in_the_view_and_everybody_else_sees_the_project() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let going = Going::start(&scratch, "one", &format!("{REWRITE}; echo small > new; cp a $ROOT/seen; pwd"));
    assert_eq!(fs::read_to_string(scratch.root().join("seen")).expect("what it saw"), rewritten());
    // Outside, by the project's own path: nothing is mounted there.
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("the project"), lines(100));
    assert_eq!(fs::read_to_string(scratch.project().join("new")).expect("the project"), "small\n");
    let status = scratch.fettlefs().current_dir(scratch.project()).args(["status", "--json"]).output();
    let status = Output::from(status.expect("the built program runs")).json();
    assert_eq!(status["notices"], Value::Null, "nobody stands below it");
    let output = going.finish().exits(7);
    assert_eq!(output.stdout, format!("{}\n", scratch.project().display()), "nothing but the command's own");
    for said in ["fettlefs: 1 path landed, 1 held\n", "  landed new (+1 -0) [new file]\n", "  a  +100 -100"] {
        assert!(output.stderr.contains(said), "{said:?} in {}", output.stderr);
    }
    nobody_is_left(&scratch);
    assert_eq!(held(&scratch)[0].path, "a");
    // Held work is there for the next.
    assert_eq!(run(&scratch, &[], "cat a").ok().stdout, rewritten());
    scratch.cli(&["fsck"]).ok();
}

#[test]
fn the_summary_counts_ages_to_the_end_of_the_run() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let said = run(&scratch, &[], &format!("{REWRITE}; sleep 1.1")).ok().stderr;
    assert!(said.contains("s ago") && !said.contains(" 0s ago"), "{said}");
}

#[test]
fn what_landed_in_several_windows_is_added_up() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let script = "for n in 1 2 3; do echo $n >> a; echo $n >> new; done; touch .";
    for (window, flags) in [("each alone", ["--window", "0"]), ("all in one", ["--window", "1000"])] {
        let said = run(&scratch, &flags, script).ok().stderr;
        for line in ["  landed . [times]\n", "  landed a (+3 -0)\n", "  landed new (+3 -0) [new file]\n"] {
            assert!(said.contains(line), "{window}: {line:?} in {said}");
        }
        std::fs::remove_file(scratch.project().join("new")).expect("remove");
    }
}

#[test]
fn what_was_confirmed_or_promoted_in_a_run_has_landed_in_its_summary() {
    let scratch = mounted_scratch!();
    for name in ["a", "b", "c"] {
        scratch.write(name, lines(100));
    }
    let script = format!("{REWRITE}; rm b; $FETTLEFS confirm a b && seq 300 > c && $FETTLEFS check --confirm -- true");
    let output = run(&scratch, &["--approve", "anyone"], &script).ok();
    for said in ["fettlefs: 3 paths landed, 0 held\n", "  landed a (+100 -100)\n", "  landed b (+0 -100) [deleted]\n"] {
        assert!(output.stderr.contains(said), "{said:?} in {}", output.stderr);
    }
    // What others confirm is none of its.
    run(&scratch, &[], REWRITE.replace('a', "c").as_str()).ok();
    let going = Going::start(&scratch, "one", "true");
    scratch.cli(&["confirm", "c"]).ok();
    let output = going.finish().exits(7);
    assert!(output.stderr.contains("fettlefs: 0 paths landed, 0 held\n"), "{}", output.stderr);
}

#[test]
fn a_caller_outside_sees_and_decides_while_a_run_goes_on() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let going = Going::start(&scratch, "one", REWRITE);
    let status = going.status();
    assert_eq!((&status["mounted"], status["runs"].as_array().map(Vec::len)), (&Value::from(true), Some(1)));
    assert_eq!(status["runs"][0]["pid"], going.pid());
    assert!(scratch.cli(&["status"]).ok().stdout.contains("\nRunning:\n  pid "));
    // Its view is not taken from under it by mistake.
    let refused = scratch.cli(&["unmount"]).exits(5);
    assert!(refused.stderr.contains("a run goes on"), "{}", refused.stderr);
    scratch.cli(&["confirm", "a"]).ok();
    assert_eq!(scratch.read("a"), rewritten());
    let output = going.finish().exits(7);
    assert!(output.stderr.contains("0 held"), "{}", output.stderr);
}

#[test]
fn a_run_ends_with_the_status_of_its_command_or_a_shells_or_its_own() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    for (script, want) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137), ("exit 255", 255)]
    {
        assert_eq!(run(&scratch, &[], script).status, want, "{script}");
    }
    for (arguments, want, said) in [
        (&["run", "--", "no-such-command"][..], 127, "no-such-command: No such file"),
        (&["run", "--", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (&["run", "--", ""], 127, "the command's name is empty"),
        (&["run"], 125, "<CMD>"),
        (&["run", "--no-such-flag", "--", "true"], 125, "--no-such-flag"),
        (&["run", "--on-exit", "ask", "--", "touch", "b"], 125, "needs a terminal"),
        (&["run", "--floor", "90", "--ceil", "80", "--", "touch", "b"], 125, "floor"),
    ] {
        let output = scratch.cli(arguments).exits(want);
        assert!(output.stderr.contains(said), "{arguments:?}: {}", output.stderr);
    }
    let missing = scratch.fettlefs().args(["-C", "/no/such/project", "run", "--", "true"]).output().expect("it runs");
    assert_eq!(Output::from(missing).exits(125).stdout, "");
    assert!(!scratch.has("b"));
    nobody_is_left(&scratch);
}

#[test]
fn a_run_whose_summary_cannot_be_printed_ends_with_the_status_of_its_command() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    for flags in ["", "--json", "--on-exit confirm"] {
        for status in [0, 3] {
            let script =
                format!("$FETTLEFS run {flags} -- sh -c 'seq 500 900 > a; exit {status}' 2> /dev/full; echo $?");
            let mut shell = scratch.command("sh");
            shell.args(["-c", &script]).current_dir(scratch.project());
            shell.env("FETTLEFS", scratch.fettlefs().get_program());
            let output = Output::from(shell.output().expect("sh"));
            assert_eq!(output.stdout, format!("{status}\n"), "{script}");
        }
    }
    nobody_is_left(&scratch);
}

#[test]
fn what_a_run_has_held_is_kept_confirmed_or_discarded_when_it_ends() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("earlier", lines(100));
    run(&scratch, &[], "seq 300 399 > earlier").ok();
    assert_eq!(run(&scratch, &["--fail-on-held"], "true").status, 1);
    assert_eq!(run(&scratch, &["--fail-on-held"], "exit 3").status, 3);

    run(&scratch, &["--on-exit", "discard"], REWRITE).ok();
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
    let output = run(&scratch, &["--on-exit", "confirm"], REWRITE).ok();
    assert!(output.stderr.contains("fettlefs: Applied a"), "{}", output.stderr);
    // What an earlier run waits with is not this one's to decide.
    assert_eq!((scratch.read("a"), scratch.read("earlier")), (rewritten(), lines(100)));
    assert_eq!(held(&scratch)[0].path, "earlier");
}

/// Nothing tells why otherwise, and nothing what the run has done.
#[test]
fn what_cannot_be_confirmed_when_a_run_ends_is_told_behind_the_summary() {
    for json in [false, true] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let flags: &[&str] = if json { &["--on-exit", "confirm", "--json"] } else { &["--on-exit", "confirm"] };
        let script =
            format!("{REWRITE}; echo x > new; touch $ROOT/written; until [ -e $ROOT/edited ]; do sleep 0.02; done");
        let mut command = command(&scratch, flags, &script);
        let going = command.stderr(Stdio::piped()).spawn().expect("the built program runs");
        eventually("it has written", || scratch.root().join("written").exists());
        scratch.write("a", "somebody else's\n");
        fs::write(scratch.root().join("edited"), "").expect("a word");
        let output = Output::from(going.wait_with_output().expect("it ends")).exits(125);
        match json {
            true => {
                let line: Value = serde_json::from_str(&output.stderr).expect("one line of JSON");
                assert_eq!((&line["ok"], &line["status"]), (&false.into(), &125.into()));
                assert_eq!((&line["landed"][0]["path"], &line["held"][0]["path"]), (&"new".into(), &"a".into()));
                assert_eq!(line["error"]["code"], "conflict");
            }
            false => {
                let summary =
                    output.stderr.find("fettlefs: 1 path landed, 1 held\n  landed new").expect(&output.stderr);
                let refused = output.stderr.find("--force").expect(&output.stderr);
                assert!(summary < refused, "{}", output.stderr);
            }
        }
        assert_eq!((scratch.read("a"), scratch.read("new")), ("somebody else's\n".to_owned(), "x\n".to_owned()));
    }
}

#[test]
fn the_summary_is_json_on_standard_error_where_that_is_asked_for() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let output = run(&scratch, &["--json"], &format!("{REWRITE}; echo x > new; echo mine; exit 4")).exits(4);
    assert_eq!(output.stdout, "mine\n");
    let summary: Value = serde_json::from_str(&output.stderr).expect("one line of JSON");
    assert_eq!((&summary["ok"], &summary["op"], &summary["status"]), (&true.into(), &"run".into(), &4.into()));
    assert_eq!((&summary["landed"][0]["path"], &summary["held"][0]["path"]), (&"new".into(), &"a".into()));
    // Nor is standard output ours where it does not come to a command.
    for (arguments, code) in [
        (&["-C", "/no/such/project", "--json", "run", "--", "true"][..], "unknown_path"),
        (&["run", "--json", "--no-such-flag", "--", "true"], "bad_request"),
    ] {
        let refused = Output::from(scratch.fettlefs().args(arguments).output().expect("it runs")).exits(125);
        let told: Value = serde_json::from_str(&refused.stderr).expect("one line of JSON");
        assert_eq!((&told["ok"], &told["error"]["code"]), (&false.into(), &code.into()));
        assert_eq!(refused.stdout, "");
    }
}

#[test]
fn the_summary_as_json_tells_which_settings_are_ignored() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "ceil = 20000\n");
    let output = run(&scratch, &["--json"], "true").ok();
    let summary: Value = serde_json::from_str(output.stderr.lines().last().expect("a summary")).expect("JSON");
    let notices = summary["notices"].as_array().expect("notices");
    let told = notices
        .iter()
        .filter_map(Value::as_str)
        .any(|notice| notice.starts_with("ignored until `fettlefs trust`: .fettle.toml:1: ceil = 20000"));
    assert!(told, "{summary}");
}

/// In a chroot the mount namespace has another root, with a directory of the same path that no view covers.
#[test]
fn a_run_in_a_chroot_stays_in_it_and_in_the_view() {
    for flag in [None, Some("--isolate")] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let script = format!("{REWRITE}; ls /mnt");
        let prepare = "mkdir $ROOT/jail; mount --rbind / $ROOT/jail; mount -t tmpfs none $ROOT/jail/mnt; \
            mkdir $ROOT/jail/mnt/is-jail; exec chroot $ROOT/jail \"$@\"";
        let mut chroot = scratch.command("unshare");
        chroot.args(["-m", "sh", "-c", prepare, "sh"]).arg(scratch.fettlefs().get_program());
        chroot.arg("-C").arg(scratch.project()).arg("run").args(flag);
        chroot.args(["--", "sh", "-c", &script]).env("ROOT", scratch.root());
        let output = Output::from(chroot.output().expect("unshare")).ok();
        assert_eq!(output.stdout, "is-jail\n", "{}", output.stderr);
        assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
    }
}

#[test]
fn all_that_a_run_starts_is_one_process_tree() {
    let scratch = mounted_scratch!();
    (0..30).for_each(|number| scratch.write(format!("f{number}"), "old\n"));
    // Each in a session of its own, as agents start their tools.
    run(&scratch, &[], "for n in $(seq 0 29); do setsid -w rm f$n; done").ok();
    let (held, gone) = (held(&scratch), (0..30).filter(|number| !scratch.has(format!("f{number}"))).count());
    assert_eq!((held.len(), gone), (10, 20), "{held:#?}");
    assert!(held.iter().all(|held| held.reason == "burst" && held.json["operation"].is_string()));
}

#[test]
fn an_isolated_command_sees_its_own_processes_and_can_do_nothing_to_the_machine() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = format!(
        "{REWRITE}; echo x > new; ls /proc | grep -c '^[0-9]'; echo $$; mount -t tmpfs none /mnt; mknod node b 1 3; \
         echo 1 > /proc/sys/kernel/panic; $FETTLEFS confirm --all --yes; echo $?; (exit 0) & wait; exit 5"
    );
    let output = run(&scratch, &["--isolate"], &script).exits(5);
    let said: Vec<_> = output.stdout.lines().collect();
    // The first process, bash, and the two of the pipe.
    assert!(said[0].parse::<u32>().is_ok_and(|count| count <= 4), "{output:?}");
    assert_eq!((said[1], said[2]), ("2", "6"), "{output:?}");
    for refused in ["mount", "mknod", "/proc/sys/kernel/panic"] {
        assert!(output.stderr.contains(refused), "{refused}: {}", output.stderr);
    }
    assert_eq!((scratch.read("new"), held(&scratch).len()), ("x\n".to_owned(), 1));
    // What it leaves behind ends with it.
    let left = run(&scratch, &["--isolate"], "exec 3<>$ROOT/fifo 2>/dev/null; cat <&3 & sleep 1000 & exit 0");
    assert_eq!(left.status, 0);
    nobody_is_left(&scratch);
}

/// What is decided at the end is what this run began to hold: not what waited before it, also where it wrote more to that.
#[test]
fn what_waited_before_is_not_the_runs_to_decide() {
    for (decision, below) in [("discard", lines(100)), ("confirm", lines(100))] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        scratch.write("b", lines(100));
        run(&scratch, &[], REWRITE).ok();
        let told = run(&scratch, &["--on-exit", decision], "echo more >> a; seq 200 299 > b").ok().stderr;
        let left = "\n  --on-exit leaves a as it is: it began to wait in another run\n";
        assert!(told.contains(left) && told.matches("--on-exit").count() == 1, "{told}");
        let waits = held(&scratch);
        assert_eq!(waits.iter().map(|held| held.path.as_str()).collect::<Vec<_>>(), ["a"], "{decision}");
        assert_eq!(scratch.read("a"), below, "{decision}");
        assert_eq!(scratch.read("b") == rewritten(), decision == "confirm");
        scratch.cli(&["diff", "a"]).ok();
        let summary = run(&scratch, &["--json", "--on-exit", decision], "echo and more >> a").ok().stderr;
        let summary: Value = serde_json::from_str(&summary).expect("a line of JSON");
        assert_eq!(summary["left"], serde_json::json!([held(&scratch)[0].id]));
    }
}

/// A directory that a run removes may hide what another has deleted in it.
#[test]
fn what_others_have_deleted_in_a_directory_that_a_run_removes_is_not_the_runs_to_decide() {
    for (decision, waits) in [("discard", &["d/a"][..]), ("confirm", &["d", "d/a"])] {
        let scratch = mounted_scratch!();
        scratch.write("d/a", lines(100));
        scratch.write("b", lines(100));
        run(&scratch, &[], "rm d/a").ok();
        run(&scratch, &["--on-exit", decision], "rmdir d; seq 200 299 > b").ok();
        assert_eq!(held(&scratch).iter().map(|held| held.path.as_str()).collect::<Vec<_>>(), waits, "{decision}");
        assert_eq!((scratch.read("d/a"), scratch.read("b") == rewritten()), (lines(100), decision == "confirm"));
        // It goes with what it waits for.
        scratch.cli(&["confirm", "d/a"]).ok();
        assert_eq!((held(&scratch).len(), scratch.has("d")), (0, decision == "discard"));
    }
}

#[test]
fn what_a_run_has_held_and_renamed_is_still_its_own() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    run(&scratch, &["--on-exit", "confirm"], &format!("{REWRITE}; mkdir d; mv a d/b")).ok();
    assert_eq!(held(&scratch).len(), 0, "{:?}", held(&scratch));
    assert_eq!(scratch.read("d/b"), rewritten());
}

/// Shells put it right by themselves; other programs believe it.
#[test]
fn a_command_is_told_where_it_starts() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    let (inner, link) = (scratch.project().join("inner"), scratch.root().join("link"));
    std::os::unix::fs::symlink(&inner, &link).expect("a symlink");
    let told = |stands: &std::path::Path, flags: &[&std::ffi::OsStr]| {
        let mut command = scratch.fettlefs();
        command.args(flags).args(["run", "--", "printenv", "PWD"]).current_dir(stands).env("PWD", stands);
        Output::from(command.output().expect("the built program runs")).ok().stdout
    };
    assert_eq!(told(scratch.root(), &["-C".as_ref(), inner.as_os_str()]), format!("{}\n", inner.display()));
    assert_eq!(told(&link, &[]), format!("{}\n", link.display()), "by the way that one came");
}
