//! `fettlefs read` and `meter`: what a session has received is not sent again (SPEC §16).

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

/// Reads as a session; gives what was printed, which must have worked.
#[track_caller]
fn read(view: &View<'_>, session: &str, path: &str) -> String {
    let output = view.cli(&["read", "--session", session, path]).ok();
    assert_eq!(output.stderr, "");
    output.stdout
}

#[track_caller]
fn read_json(view: &View<'_>, session: &str, path: &str) -> Value {
    view.cli(&["read", "--json", "--session", session, path]).ok().json()
}

#[test]
fn each_session_is_sent_what_it_has_not_received() {
    let scratch = mounted_scratch!();
    let content = lines(200);
    scratch.write("src/a.txt", &content);
    let view = scratch.mount();
    assert_eq!(read(&view, "one", "src/a.txt"), content);
    let unchanged = read(&view, "one", "src/a.txt");
    assert_eq!(unchanged, "[unchanged] src/a.txt: 200 lines, 1692 bytes; --reset if you do not have it\n");
    assert_eq!(read(&view, "two", "src/a.txt"), content, "another session has not received it");

    let edited = with_changed_lines(&content, 1);
    view.write("src/a.txt", &edited);
    let diff = read(&view, "one", "src/a.txt");
    assert!(diff.starts_with("diff --git a/src/a.txt b/src/a.txt\n"), "{diff}");
    assert!(diff.contains("\n-line 1\n+changed line 1\n line 2\n"), "{diff}");
    assert!(read(&view, "one", "src/a.txt").starts_with("[unchanged] "), "the diff was received");

    // Not in two fifths of what there is: all of it, held or not.
    let rewritten = with_changed_lines(&content, 150);
    view.write("src/a.txt", &rewritten);
    view.only_held();
    assert_eq!(read(&view, "one", "src/a.txt"), rewritten, "the view's content, which the project does not have");
    let reset = view.cli(&["read", "--session", "one", "--reset", "src/a.txt"]).ok();
    assert_eq!(reset.stdout, rewritten);
    view.cli(&["read", "--session", "one", "--reset"]).ok();
    assert_eq!(read(&view, "one", "src/a.txt"), rewritten, "all is forgotten");
}

#[test]
fn a_part_is_no_reading_of_the_whole() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(50));
    let view = scratch.mount();
    let part = view.cli(&["read", "--session", "s", "--offset", "10", "--limit", "2", "a"]).ok();
    assert_eq!(part.stdout, "line 11\nline 12\n");
    assert_eq!(part.stderr, "fettlefs: 38 more lines: --offset 12\n");
    assert_eq!(read(&view, "s", "a"), lines(50));
    view.write("a", with_changed_lines(&lines(50), 1));
    view.cli(&["read", "--session", "s", "--limit", "5", "a"]).ok();
    assert!(read(&view, "s", "a").starts_with("diff --git "), "the part moved nothing");
    let beyond = view.cli(&["read", "--session", "s", "--offset", "99", "a"]).ok();
    assert_eq!((beyond.stdout.as_str(), beyond.stderr.as_str()), ("", ""));
    assert!(read(&view, "s", "a").starts_with("[unchanged] "));
}

#[test]
fn what_a_session_patched_itself_is_certified_and_nothing_else_is() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    read(&view, "mine", "a");
    read(&view, "other", "a");
    let patch = |session: &str, old: &str, new: &str| {
        let base = read_json(&view, "looker", "a")["sha256"].clone();
        let patch = json!({"files":[{"path":"a","base_sha256":base,"hunks":[{"old":old,"new":new}]}]});
        crate::patch::patch(&view, &["--session", session], &patch.to_string()).ok();
    };
    patch("mine", "line 50\n", "line fifty\nand more\n");
    let sha256 = read_json(&view, "looker", "a")["sha256"].as_str().expect("a hash").to_owned();
    let certificate = read(&view, "mine", "a");
    let want = format!(
        "[your edit] a: +2 -1 since you read it, sha256 {sha256}, 101 lines, 804 bytes; --reset if you do not have it\n"
    );
    assert_eq!(certificate, want);
    assert_eq!(read_json(&view, "mine", "a")["form"], "certificate", "as often as it is asked for");
    assert_eq!(read_json(&view, "other", "a")["form"], "diff", "another session has not seen it");

    // Edits of its own follow each other; one by somebody else between them is told.
    patch("mine", "and more\n", "");
    assert_eq!(read_json(&view, "mine", "a")["form"], "certificate");
    view.write("a", view.read("a").replace("line 7\n", "line seven\n"));
    let told = read_json(&view, "mine", "a");
    assert_eq!((&told["form"], told["text"].as_str()), (&json!("content"), Some(&*view.read("a"))), "{told}");
    // Who has never received the file knows nothing of what the patch left as it was.
    patch("blind", "line 90\n", "line ninety\n");
    assert_eq!(read_json(&view, "blind", "a")["form"], "content");
}

/// Who made something of what he read knows both: that somebody has taken it away again is told him.
#[test]
fn that_a_patch_of_the_session_is_gone_is_no_news_that_nothing_changed() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    let base = read_json(&view, "mine", "a")["sha256"].clone();
    let hunk = json!({"old":"line 50\n", "new":"line fifty\n"});
    let patch = json!({"files":[{"path":"a","base_sha256":base,"hunks":[hunk]}]});
    crate::patch::patch(&view, &["--session", "mine"], &patch.to_string()).ok();
    view.write("a", lines(100));
    let told = read_json(&view, "mine", "a");
    assert_eq!((&told["form"], told["text"].as_str()), (&json!("content"), Some(&*lines(100))), "{told}");
    assert_eq!(read_json(&view, "mine", "a")["form"], "unchanged");
}

#[test]
fn an_external_change_is_told_with_the_answer() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount_at("view");
    view.write("a", with_changed_lines(&lines(100), 1));
    assert_eq!(read_json(&view, "s", "a")["externally_modified"], false);
    scratch.write("a", with_changed_lines(&lines(100), 2));
    let output = view.cli(&["read", "--session", "s", "a"]).ok();
    assert!(output.stdout.contains("\n+changed line 2\n"), "{}", output.stdout);
    assert_eq!(output.stderr, "fettlefs: a: modified externally since the last operation\n");
    let told = read_json(&view, "s", "a");
    assert_eq!((&told["externally_modified"], &told["external"]), (&json!(true), &json!("modified")), "{told}");
    // From below, by the socket: the same memory.
    let below = scratch.cli(&["read", "--session", "s", "a"]).ok();
    assert!(below.stdout.starts_with("[unchanged] a: "), "{}", below.stdout);
}

#[test]
fn without_a_name_the_process_tree_is_the_session_and_a_variable_names_it() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(30));
    let view = scratch.mount();
    let fettlefs = env!("CARGO_BIN_EXE_fettlefs");
    let twice = format!("{fettlefs} read a | wc -l; {fettlefs} read a");
    let tree = |script: &str| {
        let output = scratch.command("setsid").args(["-w", "sh", "-c", script]).current_dir(view.root()).output();
        Output::from(output.expect("setsid")).ok().stdout
    };
    let first = tree(&twice);
    assert!(first.starts_with("30\n[unchanged] a: "), "{first}");
    assert_eq!(tree(&twice), first, "another tree reads for the first time");
    let named = |name: &str| {
        let output =
            scratch.fettlefs().env("FETTLE_SESSION", name).current_dir(view.root()).args(["read", "a"]).output();
        Output::from(output.expect("it runs")).ok().stdout
    };
    assert_eq!(named("s"), lines(30));
    assert!(named("s").starts_with("[unchanged] "));
    assert!(read(&view, "s", "a").starts_with("[unchanged] "), "the flag names the same");
}

#[test]
fn what_was_received_is_known_without_a_mount_and_by_the_next_one() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    read(&view, "s", "a");
    view.write("a", with_changed_lines(&lines(100), 90));
    let id = view.only_held().id;
    view.unmount();
    let offline = scratch.cli(&["read", "--session", "s", "a"]).ok();
    assert_eq!(offline.stdout, with_changed_lines(&lines(100), 90), "the held content, as a view would show it");
    scratch.cli(&["discard", &id]).ok();
    let view = scratch.mount();
    assert_eq!(read(&view, "s", "a"), lines(100));
    assert!(read(&view, "s", "a").starts_with("[unchanged] "));
}

/// Bytes, status and code of a refusal.
#[track_caller]
fn refused(view: &View<'_>, path: &str, status: i32, code: &str, message: &str) {
    let told = view.cli(&["read", "--json", "--session", "s", path]).exits(status);
    assert_eq!(told.error_code(), code, "{path}");
    assert!(told.json()["error"]["message"].as_str().expect("a message").contains(message), "{path}: {}", told.stdout);
}

#[test]
fn what_is_no_text_file_of_the_project_is_refused_with_what_it_is() {
    let scratch = mounted_scratch!();
    scratch.write("dir/a", "text\n");
    scratch.write("binary", b"\xff\xfe\0");
    scratch.write("secret", "key\n");
    let below = scratch.lower();
    std::os::unix::fs::symlink("dir/a", below.join("link")).expect("a link");
    std::os::unix::fs::symlink("dir", below.join("linked")).expect("a link");
    rustix::fs::mknodat(rustix::fs::CWD, below.join("fifo"), rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .expect("a FIFO");
    std::fs::write(scratch.root().join("outside"), "no\n").expect("a file outside");
    let giant = std::fs::File::create(below.join("giant")).expect("a file");
    giant.set_len(65 << 20).expect("room");
    let view = scratch.mount();
    refused(&view, "none", 4, "unknown_path", "there is no such file");
    refused(&view, "dir/a/b", 4, "unknown_path", "there is no such file");
    refused(&view, "dir", 2, "bad_request", "it is a directory, not a file");
    refused(&view, ".", 2, "bad_request", ".: it is a directory, not a file");
    refused(&view, "fifo", 2, "bad_request", "not a file");
    refused(&view, "link", 2, "bad_request", "it is a symbolic link to dir/a: name that");
    refused(&view, "linked/a", 2, "bad_request", "linked is a symbolic link: name the file itself");
    refused(&view, "binary", 2, "bad_request", "it is not UTF-8 text (3 bytes)");
    refused(&view, "giant", 1, "too_large", "open the file itself");
    refused(&view, "../outside", 4, "unknown_path", "is outside the project");
    refused(&view, "/etc/passwd", 4, "unknown_path", "is outside the project");
    refused(&view, ".fettle/status.json", 6, "not_permitted", "fettlefs's own");
    refused(&view, ".fettle", 6, "not_permitted", "fettlefs's own");
    view.cli(&["read"]).exits(2);
    for name in ["", "a\nb", &"x".repeat(200)] {
        let told = view.cli(&["read", "--json", "--session", name, "dir/a"]).exits(2);
        assert_eq!(told.error_code(), "bad_request");
    }
    let meter = view.cli(&["meter", "--json"]).ok().json();
    assert_eq!(meter["total"]["reads"], 0, "a refusal is no reading: {meter}");
}

#[test]
fn a_large_file_comes_in_pages_and_a_line_that_no_answer_holds_is_said_so() {
    let scratch = mounted_scratch!();
    let large = lines(400_000);
    scratch.write("large", &large);
    scratch.write("line", "x".repeat(9 << 20));
    let view = scratch.mount();
    assert!(large.len() > 3 << 20);
    assert!(read(&view, "s", "large") == large, "all pages together are the file");
    refused(&view, "line", 1, "too_large", "line 1 has 9437184 bytes");
}

#[test]
fn nobody_reads_through_the_daemon_what_he_could_not_open() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    scratch.write("open", "text\n");
    scratch.write("secret", "key\n");
    scratch.write("shut/a", "key\n");
    let mode = |path: &str, mode: u32| {
        let path = scratch.lower().join(path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode("secret", 0o600);
    mode("shut", 0o700);
    std::fs::set_permissions(scratch.root(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    scratch.write("granted", "text\n");
    scratch.write("denied", "key\n");
    mode("granted", 0o600);
    for (entry, path) in [("u:65534:rw", "granted"), ("u:65534:-", "denied")] {
        let listed = scratch.command("setfacl").args(["-m", entry]).arg(scratch.lower().join(path)).status();
        assert!(listed.expect("setfacl").success());
    }
    let view = scratch.mount();
    let script = r#"
import os, json, sys
os.setgid(65534); os.setgroups([]); os.setuid(65534)
assert ask(op="read", path="open", session="s")["text"] == "text\n"
granted = ask(op="read", path="granted", session="s")
assert granted["text"] == "text\n", granted
granted = ask(op="patch", files=[dict(path="granted", base_sha256=granted["sha256"], hunks=[dict(old="text", new="more")])])
assert granted["outcomes"][0]["action"] == "landed", granted
for path in ["secret", "shut/a", "denied"]:
    answer = ask(op="read", path=path, session="s")
    assert answer["error"]["code"] == "not_permitted", answer
    answer = ask(op="patch", files=[dict(path=path, base_sha256="0" * 64, hunks=[dict(old="key", new="x")])])
    assert answer["error"]["code"] == "not_permitted", answer
answer = ask(op="patch", files=[dict(path="open", base_sha256="0" * 64, hunks=[dict(old="text", new="x")])])
assert answer["error"]["code"] == "not_permitted" and "may not write" in answer["error"]["message"], answer
assert ask(op="check", phase="started", name="true")["error"]["code"] == "not_permitted"
"#;
    crate::harness::script::python(&scratch, view.root(), script).ok();
    assert_eq!(view.read("open"), "text\n");
    view.assert_landed("granted", "more\n");
}

/// Asks on one descriptor, and reads `bytes` of the answer.
const ASK: &str = r#"
import json
request = json.dumps(dict(v=1, op="read", path="a", session="s")).encode()
def ask(bytes):
    fd = os.open(".fettle/control", os.O_RDWR)
    os.write(fd, request)
    answer = os.read(fd, bytes)
    os.close(fd)
    return answer
"#;

#[test]
fn an_answer_that_nobody_took_was_not_received() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    let script = format!(
        "{ASK}
ask(10)
assert json.loads(ask(1 << 20))['form'] == 'content', 'ten bytes of it are not it'
assert json.loads(ask(1 << 20))['form'] == 'unchanged'
"
    );
    crate::harness::script::python(&scratch, view.root(), &script).ok();
}

#[test]
fn an_answer_that_could_not_be_printed_was_not_received() {
    let scratch = mounted_scratch!();
    for name in ["full", "closed", "remark", "json"] {
        scratch.write(name, lines(20_000));
    }
    let view = scratch.mount();
    view.write("remark", with_changed_lines(&lines(20_000), 1));
    read(&view, "s", "remark");
    scratch.write("remark", with_changed_lines(&lines(20_000), 2));
    for (name, script) in [
        ("full", "$FETTLEFS read --session s full > /dev/full"),
        ("closed", "$FETTLEFS read --session s closed | head -1"),
        ("json", "$FETTLEFS read --json --session s json > /dev/full"),
        ("remark", "$FETTLEFS read --session s remark 2> /dev/full"),
    ] {
        let mut shell = scratch.command("sh");
        shell.args(["-c", script]).current_dir(view.root()).env("FETTLEFS", scratch.fettlefs().get_program());
        let told = Output::from(shell.output().expect("sh"));
        assert!(name != "remark" || (told.status, told.stdout.as_str()) == (1, ""), "{told:?}");
        let told = read_json(&view, "s", name);
        assert_eq!(told["form"], "content", "{script}");
    }
    assert_eq!(read_json(&view, "s", "full")["form"], "unchanged");
}

#[test]
fn a_large_file_that_changes_while_it_is_read_is_one_content_or_none() {
    let scratch = mounted_scratch!();
    let [a, b] = ["a", "b"].map(|letter| format!("{}\n", letter.repeat(99)).repeat(30 << 10));
    scratch.write("large", &a);
    let view = scratch.mount();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for text in [&b, &a].into_iter().cycle().take_while(|_| !stop.load(Ordering::SeqCst)) {
                view.write("new", text);
                std::fs::rename(view.path("new"), view.path("large")).expect("a rename");
            }
        });
        let outputs: Vec<Output> = (0..20).map(|_| view.cli(&["read", "--json", "large"])).collect();
        // Before anything is asserted: a writer that goes on would be waited for.
        stop.store(true, Ordering::SeqCst);
        for output in outputs {
            let told = output.json();
            match told["ok"] == true {
                true => assert!([&a, &b].into_iter().any(|text| told["text"] == **text), "a mixture"),
                false => assert_eq!(output.error_code(), "busy"),
            }
        }
    });
}

#[test]
fn the_meter_counts_what_was_asked_for_and_what_was_returned() {
    let scratch = mounted_scratch!();
    let content = lines(200);
    scratch.write("a", &content);
    let view = scratch.mount();
    let mut returned = 0;
    for _ in 0..3 {
        returned += read(&view, "s", "a").len();
    }
    read(&view, "t", "a");
    let meter = view.cli(&["meter", "--json"]).ok().json();
    let sessions = meter["sessions"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 2);
    let (latest, first) = (&sessions[0], &sessions[1]);
    assert_eq!((&latest["session"], &latest["reads"]), (&json!("t"), &json!(1)));
    assert_eq!((&first["bytes_asked"], &first["bytes_returned"]), (&json!(3 * content.len()), &json!(returned)));
    assert_eq!(meter["total"]["reads"], 4);
    let shown = view.cli(&["meter", "--session", "s"]).ok().stdout;
    assert!(shown.contains("3 reads") && shown.contains("% saved"), "{shown}");
    view.cli(&["meter", "--reset"]).ok();
    assert_eq!(view.cli(&["meter"]).ok().stdout, "fettlefs: Nothing was read\n");
    assert!(read(&view, "s", "a").starts_with("[unchanged] "), "what was received stays known");
}

#[test]
fn where_there_is_no_project_there_is_nothing_to_read() {
    let scratch = Scratch::new();
    scratch.write("a", "x\n");
    scratch.cli(&["read", "a"]).exits(3);
    scratch.cli(&["meter"]).exits(3);
}

#[test]
fn who_may_not_search_a_directory_is_told_the_same_of_all_that_may_be_in_it() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    scratch.write("shut/a", "key\n");
    scratch.write("shut/dir/a", "key\n");
    scratch.write("free/a", "text\n");
    let below = scratch.lower();
    std::os::unix::fs::symlink("where/the/key/is", below.join("shut/link")).expect("a link");
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode(&below.join("shut"), 0o700);
    mode(scratch.root(), 0o755);
    let view = scratch.mount();
    let script = r#"
import json
os.setgid(65534); os.setgroups([]); os.setuid(65534)
def error_of(**request):
    return ask(**request)["error"]
def each(path):
    yield error_of(op="read", path=path, session="s")
    yield error_of(op="patch", files=[dict(path=path, base_sha256="0" * 64, hunks=[dict(old="key", new="x")])])
    yield error_of(op="blame", path=path)
for path in ["shut/a", "shut/none", "shut/link", "shut/link/a", "shut/dir", "shut/dir/a", "shut/dir/none", "shut/a/b"]:
    for error in each(path):
        assert error["code"] == "not_permitted", (path, error)
        assert error["message"] == path + ": you may not look there", (path, error)
# What he can see for himself he is told.
for path in ["none", "none/a", "free/none", "free/a/b", "free/none/a"]:
    for error in each(path):
        assert error["code"] == "unknown_path", (path, error)
for error in each("free"):
    assert error["code"] == "bad_request", error
"#;
    crate::harness::script::python(&scratch, view.root(), script).ok();
    let told = view.cli(&["read", "--json", "shut/link"]).exits(2);
    assert!(told.stdout.contains("where/the/key/is"), "its owner is told: {}", told.stdout);
}
