//! `fettlefs check`: a command in the view, and what becomes of what it tested (SPEC §16).

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Scratch, View, all_gone, eventually, lines, mounted_scratch, with_changed_lines};

/// Two files of a hundred lines, both rewritten in the view and held.
fn held_view(scratch: &Scratch) -> View<'_> {
    scratch.write("src/a", lines(100));
    scratch.write("b", lines(100));
    let view = scratch.mount();
    view.write("src/a", with_changed_lines(&lines(100), 90));
    view.write("b", with_changed_lines(&lines(100), 95));
    assert_eq!(view.held().len(), 2);
    view
}

/// Names of the events of checks, oldest first.
fn events(view: &View<'_>) -> Vec<String> {
    let log = view.cli(&["events", "--json"]).ok().stdout;
    let names = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone());
    let names = names.map(|name| name.as_str().expect("a name").to_owned());
    names.filter(|name| name.starts_with("check") || name.starts_with("promote")).collect()
}

#[test]
fn a_command_that_passes_has_what_it_tested_land_as_one() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let told = view.cli(&["check", "--confirm", "--", "grep", "-q", "changed line 1", "b"]).ok();
    let text = scratch.normalise(&told.stdout);
    assert!(text.starts_with("fettlefs: Passed grep -q 'changed line 1' b ("), "{text}");
    assert!(text.contains("fettlefs: Applied src/a (") && text.ends_with("fettlefs: Promoted 2 changes\n"), "{text}");
    view.assert_landed("src/a", &with_changed_lines(&lines(100), 90));
    view.assert_landed("b", &with_changed_lines(&lines(100), 95));
    assert_eq!(events(&view), ["check_started", "check_passed", "promote_started", "promote_succeeded"]);
    let log = view.cli(&["log", "--json"]).ok().json();
    let confirmed: Vec<&Value> =
        log["events"].as_array().expect("events").iter().filter(|event| event["event"] == "confirmed").collect();
    assert_eq!(confirmed.len(), 2);
    assert_eq!(confirmed[0]["operation"], confirmed[1]["operation"], "one transaction");
    // Nothing is held any more, and that is no fault.
    let told = view.cli(&["check", "--confirm", "--json", "--", "true"]).ok().json();
    assert_eq!((&told["passed"], &told["held_count"], &told["outcomes"]), (&json!(true), &json!(0), &json!(null)));
}

#[test]
fn without_a_flag_a_command_that_passes_lands_nothing_and_says_how() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let ids: Vec<String> = view.held().into_iter().map(|held| held.id).collect();
    let told = view.cli(&["check", "--", "true"]).ok();
    assert!(told.stdout.ends_with(&format!("To apply: fettlefs confirm {}\n", ids.join(" "))), "{}", told.stdout);
    assert_eq!(view.held().len(), 2);
    let told = view.cli(&["check", "--json", "--", "true"]).ok().json();
    assert_eq!((&told["passed"], &told["held_count"], &told["moved"]), (&json!(true), &json!(2), &json!([])));
    view.cli(&["confirm", &ids[0], &ids[1]]).ok();
}

#[test]
fn a_command_that_fails_gives_a_report_and_lands_nothing() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let script = "for n in $(seq 100); do echo line of output $n; done; echo the fault >&2; exit 3";
    let told = view.cli(&["check", "--confirm", "--", "sh", "-c", script]).exits(8);
    let text = &told.stdout;
    assert!(text.starts_with(&format!("fettlefs: Failed sh -c '{script}' (status 3, ")), "{text}");
    assert!(text.contains("  line of output 100\n  the fault\nHeld, and not in the project:\n"), "{text}");
    assert!(text.lines().count() < 50 && text.contains("src/a"), "{text}");
    assert_eq!(view.held().len(), 2);
    let told = view.cli(&["check", "--json", "--", "sh", "-c", "echo out; kill -TERM $$"]).exits(8).json();
    assert_eq!((&told["ok"], &told["passed"], &told["status"]), (&json!(true), &json!(false), &json!(143)));
    assert_eq!((&told["tail"], &told["held_count"]), (&json!("out\n"), &json!(2)));
    let told = view.cli(&["check", "--json", "--", "no-such-program"]).exits(8).json();
    assert_eq!(told["status"], 127);
    assert!(told["tail"].as_str().expect("text").starts_with("no-such-program: "), "{told}");
    assert_eq!(events(&view), ["check_started", "check_failed"].repeat(3));
    view.cli(&["check"]).exits(2);
    view.cli(&["check", "--"]).exits(2);
}

#[test]
fn a_check_that_is_refused_to_who_may_not_confirm_has_its_end_recorded() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let check = [env!("CARGO_BIN_EXE_fettlefs"), "check", "--confirm", "--", "touch", "made"];
    view.cli(&[&["run", "--"], &check[..]].concat()).exits(6);
    assert_eq!(events(&view), ["check_started", "check_failed"]);
    assert!(!view.path("made").exists());
}

#[test]
fn who_ends_a_check_ends_its_command_and_its_end_is_recorded() {
    let exits_well = "trap 'kill $!; exit 0' TERM; sleep 60 & echo $$ > ../pid; wait";
    let sleeps = "echo $$ > ../pid; exec sleep 60";
    for (signal, script, status) in [
        (Signal::INT, sleeps, 130),
        (Signal::TERM, sleeps, 143),
        (Signal::HUP, sleeps, 129),
        // It passed only because it was asked to end.
        (Signal::TERM, exits_well, 143),
    ] {
        let scratch = mounted_scratch!();
        let view = held_view(&scratch);
        let pid = scratch.root().join("pid");
        let script = script.replace("../pid", pid.to_str().expect("UTF-8"));
        let program = scratch.fettlefs();
        let mut check = scratch.command("env");
        check.arg("--default-signal=INT,TERM,HUP").arg(program.get_program());
        check.args(["check", "--confirm", "--json", "--", "sh", "-c", &script]).current_dir(view.root());
        let check = check.stdout(Stdio::piped()).spawn().expect("the built program runs");
        eventually("the command runs", || std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')));
        let command: i32 = std::fs::read_to_string(&pid).expect("a pid").trim().parse().expect("a number");
        kill_process(Pid::from_child(&check), signal).expect("it runs");
        let ended = check.wait_with_output().expect("it can be waited for");
        let told: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!((ended.status.code(), &told["status"]), (Some(8), &json!(status)), "{signal:?}: {told}");
        assert_eq!(events(&view), ["check_started", "check_failed"], "{signal:?}");
        assert_eq!(view.held().len(), 2);
        assert!(all_gone(&[command]), "{signal:?}");
    }
}

#[test]
fn a_check_goes_on_under_a_signal_that_it_was_started_to_ignore() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let (pid, go) = (scratch.root().join("pid"), scratch.root().join("go"));
    let script = format!("echo > {}; until [ -e {} ]; do sleep 0.05; done", pid.display(), go.display());
    let mut check = scratch.command("env");
    check.arg("--ignore-signal=HUP").arg(scratch.fettlefs().get_program());
    check.args(["check", "--json", "--", "sh", "-c", &script]).current_dir(view.root());
    let check = check.stdout(Stdio::piped()).spawn().expect("the built program runs");
    eventually("the command runs", || pid.exists());
    kill_process(Pid::from_child(&check), Signal::HUP).expect("it runs");
    std::fs::write(&go, "").expect("a file");
    let ended = check.wait_with_output().expect("it can be waited for");
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(events(&view), ["check_started", "check_passed"]);
}

#[test]
fn what_would_land_merged_is_not_what_the_command_has_seen() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let outside = lines(100).replace("line 100\n", "outside\n");
    scratch.write("b", &outside);
    let told = view.cli(&["check", "--confirm", "--json", "--", "true"]).exits(5).json();
    assert_eq!(told["error"]["code"], "conflict", "{told}");
    assert_eq!((scratch.read("b"), scratch.read("src/a")), (outside, lines(100)));
    assert_eq!(view.held().len(), 2);
    // By whom it is looked at it is merged, as ever.
    view.cli(&["confirm", "b"]).ok();
    view.cli(&["check", "--confirm", "--", "true"]).ok();
    view.assert_landed("src/a", &with_changed_lines(&lines(100), 90));
}

#[test]
fn what_moves_while_the_command_runs_keeps_everything_from_landing() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let fettlefs = env!("CARGO_BIN_EXE_fettlefs");
    for (script, moved) in [
        // A further name of what is held, which keeps its id, and that name gone again.
        ("ln b b2", "what is held is not what was held"),
        ("rm b2", "what is held is not what was held"),
        // A held file, a file that lands, a new file, a change of what is held by somebody's hand.
        ("echo more >> b", "written and held: b"),
        ("echo x > new", "written: new"),
        (&*format!("{fettlefs} discard b"), "discarded: "),
        ("mv src/a src/c", "what is held is not what was held"),
    ] {
        let told = view.cli(&["check", "--confirm", "--json", "--", "sh", "-c", script]).exits(5);
        assert_eq!(told.error_code(), "conflict", "{script}");
        let detail = told.json()["error"]["detail"].as_str().expect("what moved").to_owned();
        assert!(detail.contains(moved) || detail.contains("src/c"), "{script}: {detail}");
        assert!(!view.held().is_empty(), "{script}");
        assert_eq!(events(&view).last().map(String::as_str), Some("promote_failed"));
        if view.held().len() < 2 {
            view.write("src/a", with_changed_lines(&lines(100), 90));
            view.write("b", with_changed_lines(&lines(100), 96));
        }
    }
    assert_eq!(scratch.read("b"), lines(100), "nothing landed");
    // Seen without the flag too, so that nobody is told to confirm what was not tested.
    let told = view.cli(&["check", "--", "sh", "-c", "echo y > new"]).exits(5);
    assert!(told.stdout.contains("so nothing lands:\n    written: new\n"), "{}", told.stdout);
    let told = view.cli(&["check", "--json", "--", "sh", "-c", "echo z > newer"]).exits(5).json();
    assert_eq!((&told["ok"], &told["passed"]), (&json!(false), &json!(true)), "{told}");
    assert_eq!((&told["error"]["code"], &told["moved"][0]), (&json!("conflict"), &json!("written: newer")), "{told}");
    // What is held no more has moved, too.
    let told = view.cli(&["check", "--", fettlefs, "discard", "--all", "--yes"]).exits(5);
    assert!(told.stdout.contains("so nothing lands:\n    discarded: "), "{}", told.stdout);
    view.write("b", with_changed_lines(&lines(100), 96));
    let told = view.cli(&["check", "--confirm", "--json", "--", fettlefs, "discard", "--all", "--yes"]).exits(5);
    assert_eq!(told.error_code(), "conflict");
    view.write("b", with_changed_lines(&lines(100), 96));
    // Bytes that are there already are no change, and a second run finds things as they were.
    view.cli(&["check", "--confirm", "--", "sh", "-c", "echo y > new"]).ok();
    assert_eq!(view.held(), []);
}

#[test]
fn a_writer_that_is_not_done_keeps_everything_from_landing() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    scratch.write("open", "x\n");
    let mut writer = std::fs::File::options().append(true).open(view.path("open")).expect("it opens");
    std::io::Write::write_all(&mut writer, b"y\n").expect("it is written");
    let told = view.cli(&["check", "--confirm", "--json", "--", "true"]).exits(5);
    assert!(told.stdout.contains("still being written: open"), "{}", told.stdout);
    drop(writer);
    eventually("the writer is judged", || scratch.read("open") == "x\ny\n");
    view.cli(&["check", "--confirm", "--", "true"]).ok();
}

#[test]
fn the_command_stands_in_the_view_where_the_caller_stands_in_the_project() {
    let scratch = mounted_scratch!();
    scratch.write("src/a", lines(100));
    let view = scratch.mount_at("view");
    view.write("src/a", with_changed_lines(&lines(100), 90));
    let run = |directory: &std::path::Path| {
        let mut command = scratch.fettlefs();
        command.current_dir(directory).args(["check", "--json", "--", "sh", "-c", "pwd; head -n 1 a"]);
        let output = crate::harness::Output::from(command.output().expect("it runs")).ok().json();
        scratch.normalise(output["tail"].as_str().expect("text"))
    };
    let want = "[scratch]/view/src\nchanged line 1\n";
    assert_eq!(run(&scratch.project().join("src")), want, "from below");
    assert_eq!(run(&view.path("src")), want, "from the view itself");
    std::fs::create_dir(scratch.project().join("gone")).expect("a directory");
    eventually("the view shows it", || view.has("gone"));
    view.unmount();
    let told = scratch.cli(&["check", "--json", "--", "true"]).exits(3);
    assert_eq!(told.error_code(), "not_mounted");
    assert!(told.stdout.contains("`fettlefs mount` makes one"), "{}", told.stdout);
}

#[test]
fn a_mount_that_vanishes_in_the_middle_lands_nothing() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let daemons: Vec<String> = scratch.daemons().iter().map(i32::to_string).collect();
    // The watchdog too, or there would be another daemon.
    let script = format!("echo before; kill -9 {} 2>/dev/null; true", daemons.join(" "));
    let told = view.cli(&["check", "--confirm", "--json", "--", "sh", "-c", &script]).exits(3);
    assert_eq!(told.error_code(), "not_mounted");
    let message = told.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("passed, and nothing was promoted"), "{message}");
    drop(view);
    assert_eq!((scratch.read("b"), scratch.read("src/a")), (lines(100), lines(100)));
    let held = scratch.cli(&["status", "--json"]).ok().json();
    assert_eq!(held["held"].as_array().map(Vec::len), Some(2), "{held}");
}

#[test]
fn a_mount_that_was_made_anew_meanwhile_is_not_what_was_tested() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let (root, fettlefs) = (scratch.root().display(), env!("CARGO_BIN_EXE_fettlefs"));
    let project = scratch.project();
    let project = project.display();
    let script = format!("cd {root} && {fettlefs} unmount {project} && {fettlefs} mount {project}");
    let told = view.cli(&["check", "--confirm", "--json", "--", "sh", "-c", &script]).exits(5);
    assert!(told.stdout.contains("the daemon was started anew"), "{}", told.stdout);
    assert_eq!(view.held().len(), 2);
}

#[test]
fn the_protocol_takes_no_token_but_its_own() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let script = r#"
import json
def check(**request):
    return ask(op="check", **request)
for request in [dict(), dict(phase="promote"), dict(phase="promote", tested="1"), dict(phase="passed", tested="1-zz")]:
    answer = check(**request)
    assert answer["error"]["code"] == "bad_request", answer
assert check(phase="later")["error"]["code"] == "bad_request"
began = check(phase="started", name="by hand")
assert began["held_count"] == 2 and began["may_promote"], began
other = began["tested"].split("-")[0] + "-" + "0" * 64
assert check(phase="promote", tested=other)["error"]["code"] == "conflict"
assert len(check(phase="promote", tested=began["tested"])["outcomes"]) == 2
"#;
    crate::harness::script::python(&scratch, view.root(), script).ok();
    assert_eq!(view.held(), []);
}

#[test]
fn what_moved_is_found_behind_thousands_of_events_that_say_nothing() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    let script = r#"
import json
control = os.open(".fettle/control", os.O_RDWR)
def ask(**request):
    os.write(control, json.dumps(dict(v=1, op="check", **request)).encode())
    answer = b""
    while True:
        piece = os.read(control, 1 << 20)
        if not piece: break
        answer += piece
    return json.loads(answer)
tested = ask(phase="started", name="by hand")["tested"]
for _ in range(2100):
    assert ask(phase="failed", tested=tested, status=1)["ok"]
assert ask(phase="passed", tested=tested).get("moved", []) == []
put("new", b"x\n")
assert ask(phase="passed", tested=tested)["moved"] == ["written: new"]
assert ask(phase="promote", tested=tested)["error"]["code"] == "conflict"
"#;
    crate::harness::script::python(&scratch, view.root(), script).ok();
    view.assert_landed("new", "x\n");
}

/// It takes as long as a command runs before the first word of it.
#[test]
fn a_command_is_waited_for_though_nobody_hears_how_long_it_runs() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let (heard, said) = std::io::pipe().expect("a pipe");
    drop(heard);
    let mut check = scratch.fettlefs();
    check.current_dir(view.root()).args(["check", "--", "sleep", "16"]).stderr(said);
    let told = crate::harness::Output::from(check.output().expect("it runs")).ok().stdout;
    assert!(told.starts_with("fettlefs: Passed sleep 16 ("), "{told}");
    assert_eq!(events(&view), ["check_started", "check_passed"]);
}

#[test]
fn a_command_longer_than_any_request_is_checked_and_run() {
    let scratch = mounted_scratch!();
    let view = held_view(&scratch);
    let numbers: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let long = |begins: &[&'static str]| -> Vec<String> {
        begins.iter().map(|word| (*word).to_owned()).chain(numbers.iter().cloned()).collect()
    };
    let words = long(&["check", "--confirm", "--", "true"]);
    let told = view.cli(&words.iter().map(String::as_str).collect::<Vec<_>>()).ok().stdout;
    assert!(told.ends_with("fettlefs: Promoted 2 changes\n"), "{told}");
    view.unmount();
    let words = long(&["run", "--", "true"]);
    scratch.cli(&words.iter().map(String::as_str).collect::<Vec<_>>()).ok();
}
