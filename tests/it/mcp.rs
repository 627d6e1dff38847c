//! `fettlefs mcp`: an agent with a real client of the Model Context Protocol, in both generations of the protocol, and with
//! none, by a raw pipe (SPEC §16).
//!
//! `mcp/agent.py` is the agent; the other scripts there are what it does.

mod pipe;

use std::path::Path;

use serde_json::json;

use crate::harness::{Output, Scratch, View, eventually, lines, mounted_scratch, venv, with_changed_lines};
use pipe::Pipe;

/// The latest client, which speaks the generation without a handshake and the one with.
const LATEST: &str = "mcp==2.3.0";
/// The last client that knows only the generation with a handshake.
const OLDER: &str = "mcp==1.30.0";

/// A client and how it begins.
#[derive(Clone, Copy)]
struct Generation {
    package: &'static str,
    mode: &'static str,
    version: &'static str,
}

const GENERATIONS: [Generation; 3] = [
    Generation { package: LATEST, mode: "auto", version: "2026-07-28" },
    Generation { package: LATEST, mode: "legacy", version: "2025-11-25" },
    Generation { package: OLDER, mode: "", version: "2025-11-25" },
];

/// Runs a script of `mcp/` in `dir`, after `before` on the command line.
fn agent(scratch: &Scratch, dir: &Path, before: &[&str], script: &str, by: Generation) -> Output {
    let python = venv::python_with(by.package);
    let program = scratch.fettlefs().get_program().to_owned();
    let mut words: Vec<&str> = before.to_vec();
    words.push(python.to_str().expect("a path of UTF-8"));
    let script = format!("{}{script}", include_str!("mcp/agent.py"));
    let mut command = scratch.command(words[0]);
    command.args(&words[1..]).args(["-c", &script]).current_dir(dir);
    command.envs([("MODE", by.mode), ("VERSION", by.version)]).env("PROGRAM", program);
    command.output().expect("python").into()
}

/// A view in which a large change of `a` waits.
fn with_a_held(scratch: &Scratch) -> View<'_> {
    scratch.write("a", lines(100));
    let view = scratch.mount();
    view.write("a", with_changed_lines(&lines(100), 90));
    view
}

#[test]
fn a_whole_conversation_goes_alike_in_each_generation_of_the_protocol() {
    for by in GENERATIONS {
        let scratch = mounted_scratch!();
        scratch.write("src/a", numbered(100, 0));
        scratch.write("b", numbered(100, 0));
        let view = scratch.mount();
        agent(&scratch, view.root(), &[], include_str!("mcp/conversation.py"), by).ok();
        view.assert_landed("src/a", &numbered(100, 0));
    }
}

/// As `lines` of the scripts.
fn numbered(count: usize, changed: usize) -> String {
    let line = |n: usize| format!("{}line {n}\n", if n < changed { "changed " } else { "" });
    (0..count).map(line).collect()
}

#[test]
fn what_a_run_has_started_may_not_decide_by_mcp_either() {
    let scratch = mounted_scratch!();
    scratch.write("a", numbered(100, 0));
    let program = scratch.fettlefs().get_program().to_str().expect("a path of UTF-8").to_owned();
    let run = [program.as_str(), "run", "--"];
    agent(&scratch, &scratch.project(), &run, include_str!("mcp/inside.py"), GENERATIONS[0]).ok();
    assert_eq!(scratch.read("a"), numbered(100, 0));
    let held = scratch.cli(&["status", "--json"]).ok().json();
    assert_eq!(held["held"].as_array().map(Vec::len), Some(1));
    let events = scratch.cli(&["events", "--json"]).ok().stdout;
    assert_eq!(events.matches("\"event\":\"request_refused\"").count(), 2, "{events}");
    assert_eq!(events.matches("\"event\":\"review_requested\"").count(), 1, "{events}");
}

#[test]
fn each_connection_is_a_reader_of_its_own_and_many_are_answered_at_once() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    agent(&scratch, view.root(), &[], include_str!("mcp/readers.py"), GENERATIONS[0]).ok();
}

#[test]
fn a_server_outlives_mounts_and_works_without_one() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let mut pipe = Pipe::open(&scratch, &scratch.project(), &[]);
    pipe.initialize("2025-11-25");
    assert_eq!(pipe.refused("status", json!({})), "not_mounted");
    {
        let view = scratch.mount();
        assert_eq!(pipe.call("status", json!({}))["mounted"], true);
        view.write("a", with_changed_lines(&lines(100), 90));
        assert_eq!(pipe.call("check", json!({"command": ["grep", "-q", "changed", "a"]}))["passed"], true);
        assert_eq!(pipe.call("read", json!({"path": "a"}))["form"], "content");
    }
    let status = pipe.call("status", json!({}));
    assert_eq!((&status["mounted"], &status["held"][0]["path"]), (&json!(false), &json!("a")));
    assert_eq!(pipe.call("read", json!({"path": "a"}))["form"], "unchanged");
    assert_eq!(pipe.refused("check", json!({"command": ["true"]})), "not_mounted");
    assert_eq!(pipe.call("diff", json!({}))["changes"].as_array().map(Vec::len), Some(1));
    let outcomes = pipe.call("confirm", json!({"targets": ["a"]}))["outcomes"].clone();
    assert_eq!(outcomes[0]["action"], "applied");
    assert_eq!(scratch.read("a"), with_changed_lines(&lines(100), 90));
    assert_eq!(pipe.close(), 0);
}

#[test]
fn a_server_that_was_started_in_the_view_outlives_it() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let over_the_project = || scratch.mount_at("project");
    let view = over_the_project();
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.initialize("2025-11-25");
    assert_eq!(pipe.call("status", json!({}))["mounted"], true);
    view.unmount();
    assert_eq!(pipe.call("status", json!({}))["mounted"], false);
    let _again = over_the_project();
    assert_eq!(pipe.call("status", json!({}))["mounted"], true);
    assert_eq!(pipe.call("read", json!({"path": "a"}))["form"], "content");
    assert_eq!(pipe.close(), 0);
}

#[test]
fn a_check_where_something_has_moved_is_refused_as_on_the_command_line() {
    let scratch = mounted_scratch!();
    let view = with_a_held(&scratch);
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.initialize("2025-11-25");
    let answer = pipe.answer("check", json!({"command": ["sh", "-c", "echo x > new"]}));
    let told = &answer["structuredContent"];
    assert_eq!((&answer["isError"], &told["ok"], &told["passed"]), (&json!(true), &json!(false), &json!(true)));
    assert_eq!((&told["error"]["code"], &told["moved"][0]), (&json!("conflict"), &json!("written: new")), "{told}");
    assert_eq!(pipe.close(), 0);
}

#[test]
fn a_diff_without_text_does_not_say_that_nothing_is_held_where_something_is() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"made/**\"\naction = \"hold\"\n");
    let view = scratch.mount();
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.initialize("2025-11-25");
    assert_eq!(pipe.text("diff", json!({})), "Nothing is held.");
    view.sh("mkdir made made/dir").ok();
    view.write("made/a", lines(3));
    for targets in [json!([]), json!(["made/a"])] {
        let past = pipe.text("diff", json!({"targets": targets, "offset": 1_000_000}));
        assert_eq!(past, "The diff ends before offset 1000000.");
    }
    let held = pipe.call("status", json!({}))["held"].clone();
    let dir = held.as_array().expect("a list").iter().find(|held| held["path"] == "made/dir").expect("it waits");
    let want = format!("{} made/dir: held, and has no lines\n", dir["id"].as_str().expect("an id"));
    assert_eq!(pipe.text("diff", json!({"targets": ["made/dir"]})), want);
    assert_eq!(pipe.close(), 0);
}

#[test]
fn a_diff_goes_on_with_what_was_told_or_not_at_all() {
    let scratch = mounted_scratch!();
    let view = with_a_held(&scratch);
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.initialize("2025-11-25");
    let page = pipe.call("diff", json!({"limit": 100}));
    let rest = json!({"offset": page["next"], "told": page["told"]});
    assert_eq!(pipe.call("diff", rest.clone())["changes"][0]["path"], "a");
    view.write("a", with_changed_lines(&lines(100), 80));
    assert_eq!(pipe.refused("diff", rest), "busy");
    assert_eq!(pipe.close(), 0);
}

#[test]
fn a_path_with_a_nul_byte_is_no_path() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.initialize("2025-11-25");
    assert_eq!(pipe.refused("read", json!({"path": "a\u{0}b"})), "bad_request");
    assert_eq!(pipe.refused("read", json!({"path": "../a"})), "unknown_path");
    assert_eq!(pipe.close(), 0);
}

#[test]
fn what_is_no_call_gets_an_error_and_changes_nothing() {
    let scratch = mounted_scratch!();
    let view = with_a_held(&scratch);
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    // Before a handshake there is nothing to call.
    pipe.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status"}}));
    assert_eq!(pipe.receive()["error"]["code"], -32602);
    // The oldest version that the library speaks, and one that nobody does.
    pipe.initialize("2024-11-05");
    for (message, code) in [
        (json!({"jsonrpc": "2.0", "id": 7, "method": "no/such"}), -32601),
        (json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "no_such"}}), -32602),
        (json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 5}}), -32602),
        (
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "discard", "arguments": []}}),
            -32602,
        ),
        (json!({"jsonrpc": "2.0", "id": 7}), -32600),
        (json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": []}), -32600),
        (json!([1, 2, 3]), -32600),
        (json!("status"), -32600),
    ] {
        pipe.send(&message);
        let told = pipe.receive();
        assert_eq!(told["error"]["code"], code, "{message}: {told}");
    }
    // What is not JSON has no id to be answered by; what comes after it is answered.
    pipe.write(b"no json\n\n{\"jsonrpc\": \n\xff\xfe\n");
    pipe.write(&[b'x'; 100_000]);
    pipe.write(b"\n");
    for arguments in [
        json!({"targets": [""]}),
        json!({"targets": [5]}),
        json!({"ids": ["a"]}),
        json!({"targets": ["a"], "force": true}),
    ] {
        let code = pipe.refused("confirm", arguments.clone());
        assert!(["bad_request", "unknown_path"].contains(&code.as_str()), "{arguments}: {code}");
    }
    assert_eq!(pipe.call("status", json!({}))["held"].as_array().map(Vec::len), Some(1));
    // A line that ends with the input is none.
    pipe.write(
        br#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"discard","arguments":{"targets":["a"]}}}"#,
    );
    assert_eq!(pipe.close(), 0);
    assert_eq!(view.held().len(), 1);
    let mut pipe = Pipe::open(&scratch, view.root(), &[]);
    pipe.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}\n");
    assert_eq!(pipe.close(), 1, "who does not begin with a request speaks another protocol");
}

/// How somebody stops to wait for a check.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    Cancels,
    Closes,
    Terminates,
}

#[test]
fn a_check_that_nobody_waits_for_ends_with_its_command_and_lands_nothing() {
    let scratch = mounted_scratch!();
    let view = with_a_held(&scratch);
    for leaving in [Leaving::Cancels, Leaving::Closes, Leaving::Terminates] {
        let there = scratch.root().join(format!("{leaving:?}"));
        // Ends well when it is asked to end, which must not be taken for having passed.
        let script = format!(
            "trap 'exit 0' TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.1; done",
            there.display()
        );
        let mut pipe = Pipe::open(&scratch, view.root(), &[]);
        pipe.initialize("2025-11-25");
        let id = pipe.begin("check", json!({"command": ["sh", "-c", script], "confirm": true}));
        eventually("the command runs", || there.exists());
        let pid = std::fs::read_to_string(&there).expect("its pid").trim().to_owned();
        match leaving {
            Leaving::Cancels => {
                pipe.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
                eventually("its command has ended", || !Path::new("/proc").join(&pid).exists());
                assert_eq!(pipe.call("status", json!({}))["held"].as_array().map(Vec::len), Some(1));
                assert_eq!(pipe.close(), 0);
            }
            Leaving::Closes => assert_eq!(pipe.close(), 0),
            Leaving::Terminates => {
                pipe.terminate();
                assert_eq!(pipe.close(), 0);
            }
        }
        eventually("its command has ended", || !Path::new("/proc").join(&pid).exists());
        let events = view.cli(&["events", "--json"]).ok().stdout;
        let last = events.lines().last().expect("an event");
        assert!(last.contains("\"check_failed\"") && last.contains("status 143"), "{leaving:?}: {last}");
        assert!(!events.contains("promote_started"), "{events}");
    }
    assert_eq!((view.held().len(), scratch.read("a")), (1, lines(100)));
}
