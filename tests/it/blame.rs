//! `fettlefs blame`: with which event each line of a file came, and who wrote it (SPEC §12, issue 6).

use serde_json::Value;

use crate::harness::{Output, View, lines, mounted_scratch, with_changed_lines};

/// What each line comes from, as one word a line: the operation, `held`, `before_log`, `outside` or `unjudged`.
fn origins(reply: &Value) -> Vec<String> {
    let spans = reply["spans"].as_array().unwrap_or_else(|| panic!("no spans in {reply:#}"));
    let word = |span: &Value| match span["origin"].as_str().expect("an origin") {
        "event" => span["operation"].as_str().expect("an operation").to_owned(),
        origin => origin.to_owned(),
    };
    let count = |span: &Value| span["text"].as_str().expect("text").lines().count();
    spans.iter().flat_map(|span| std::iter::repeat_n(word(span), count(span))).collect()
}

#[track_caller]
fn blame(view: &View<'_>, path: &str) -> Value {
    view.cli(&["blame", path, "--json"]).ok().json()
}

#[track_caller]
fn last_operation(view: &View<'_>, path: &str) -> String {
    let log = view.cli(&["log", path, "--json"]).ok().json();
    let events = log["events"].as_array().expect("events");
    let operation = events.iter().find_map(|event| event["operation"].as_str());
    operation.unwrap_or_else(|| panic!("no operation in {log:#}")).to_owned()
}

fn before(count: usize) -> Vec<String> {
    vec!["before_log".to_owned(); count]
}

#[test]
fn each_line_tells_its_event_and_its_writer() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let view = scratch.mount_at("view");
    assert_eq!(origins(&blame(&view, "a")), before(20));
    view.sh("exec sed -i s/^line.3$/three/ a").ok();
    let first = last_operation(&view, "a");
    view.sh("printf 'last\\n' >> a").ok();
    let second = last_operation(&view, "a");
    let reply = blame(&view, "a");
    let mut want = before(20);
    want[2] = first.clone();
    want.push(second);
    assert_eq!(origins(&reply), want);
    let span = &reply["spans"][1];
    assert_eq!((&span["line"], &span["text"]), (&3.into(), &"three\n".into()));
    assert!(span["written_by"]["exe"].as_str().is_some_and(|exe| exe.ends_with("/sed")), "{span}");
    assert_eq!((&span["event"], &span["certain"]), (&"write_landed".into(), &true.into()));
    assert_eq!(span["session"], view.status()["session"]);
    let whole: String =
        reply["spans"].as_array().expect("spans").iter().filter_map(|span| span["text"].as_str()).collect();
    assert_eq!(whole, view.read("a"));
    let shown = view.cli(&["blame", "a"]).ok().stdout;
    let third = shown.lines().nth(2).expect("a third line");
    assert!(third.starts_with(&first) && third.contains("sed (pid ") && third.ends_with("   3) three"), "{shown}");
    assert!(shown.starts_with("before the log"), "{shown}");
    assert_eq!(shown.lines().count(), 21);
}

#[test]
fn a_file_made_in_the_session_has_no_line_from_before() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    view.write("new", "one\ntwo\n");
    let made = last_operation(&view, "new");
    view.write("new", "one\nTWO\n");
    let changed = last_operation(&view, "new");
    assert_eq!(origins(&blame(&view, "new")), [made, changed]);
}

#[test]
fn held_lines_bear_their_id_and_confirmed_ones_who_wrote_them() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("text", with_changed_lines(&lines(100), 60));
    let view = scratch.mount_at("view");
    view.sh("exec cp text a").ok();
    let id = view.only_held().id;
    let reply = blame(&view, "a");
    assert_eq!(origins(&reply), [vec!["held".to_owned(); 60], before(40)].concat());
    assert_eq!(reply["spans"][0]["id"], *id);
    assert!(reply["spans"][0]["written_by"]["exe"].as_str().is_some_and(|exe| exe.ends_with("/cp")), "{reply:#}");
    assert!(view.cli(&["blame", "a"]).ok().stdout.starts_with(&format!("held {id}")));
    view.cli(&["confirm", &id]).ok();
    let reply = blame(&view, "a");
    assert_eq!(origins(&reply), [vec![last_operation(&view, "a"); 60], before(40)].concat());
    let span = &reply["spans"][0];
    assert_eq!((&span["event"], &span["id"]), (&"confirmed".into(), &Value::from(id)));
    assert!(span["written_by"]["exe"].as_str().is_some_and(|exe| exe.ends_with("/cp")), "who wrote, not who confirmed");
    assert_eq!(span["pid"], span["written_by"]["pid"]);
}

#[test]
fn lines_follow_their_file_through_renames() {
    let scratch = mounted_scratch!();
    scratch.write("dir/a", lines(20));
    scratch.write("other", lines(3));
    let view = scratch.mount_at("view");
    view.write("dir/a", lines(20).replace("line 7\n", "seven\n"));
    let edited = last_operation(&view, "dir/a");
    let mut want = before(20);
    want[6] = edited;
    view.sh("mv dir/a dir/b && mv dir moved && mv moved/b top").ok();
    assert_eq!(origins(&blame(&view, "top")), want);
    view.write("top", view.read("top").replace("line 9\n", "nine\n"));
    want[8] = last_operation(&view, "top");
    assert_eq!(origins(&blame(&view, "top")), want);
    // Over something that was there, which waits for review: it is a change of that.
    view.sh("mv top other").ok();
    assert_eq!(origins(&blame(&view, "other")), [before(3), vec!["held".to_owned(); 17]].concat());
    view.cli(&["confirm", "--all", "--yes"]).ok();
    let confirmed = vec![last_operation(&view, "other"); 17];
    assert_eq!(origins(&blame(&view, "other")), [before(3), confirmed].concat());
}

#[test]
fn lines_that_a_landed_rename_brought_are_followed_to_where_they_came_from() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    scratch.write("b", lines(20).replace("line 1\n", "one\n"));
    let view = scratch.mount_at("view");
    view.write("a", lines(20).replace("line 7\n", "seven\n"));
    let mut want = before(20);
    want[6] = last_operation(&view, "a");
    view.sh("mv a b").ok();
    assert!(view.held().iter().all(|held| held.path != "b"), "a small change");
    assert_eq!(origins(&blame(&view, "b")), want);
}

#[test]
fn what_others_did_below_is_nobodys_event() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let view = scratch.mount_at("view");
    view.write("a", lines(20).replace("line 2\n", "two\n"));
    let ours = last_operation(&view, "a");
    scratch.write("a", lines(20).replace("line 2\n", "two\n").replace("line 5\n", "five\n"));
    view.write("b", "");
    // What we had put there is nowhere any more: either of the two may have brought it.
    let outside = blame(&view, "a")["spans"][1].clone();
    assert_eq!((&outside["origin"], &outside["text"]), (&"outside".into(), &"two\n".into()));
    assert_eq!(
        (&outside["certain"], outside["since"].as_u64().map(|seq| format!("op{seq}"))),
        (&false.into(), Some(ours))
    );
    let mut want = before(20);
    (want[1], want[4]) = ("outside".to_owned(), "outside".to_owned());
    assert_eq!(origins(&blame(&view, "a")), want);
    view.write("a", view.read("a").replace("line 6\n", "six\n"));
    want[5] = last_operation(&view, "a");
    assert_eq!(origins(&blame(&view, "a")), want);
}

#[test]
fn what_is_not_kept_any_more_is_told_as_a_range() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let view = scratch.mounting().at("view").env("FETTLE_BACKUP_MAX_PER_PATH", "1").start();
    for number in [2, 4, 6] {
        view.write("a", view.read("a").replace(&format!("line {number}\n"), &format!("{number}!\n")));
    }
    let all = blame(&view, "a");
    assert!(all["spans"].as_array().expect("spans").iter().all(|span| span["certain"] == true), "{all:#}");
    view.unmount();
    // The end of a session purges: of what was replaced only the last is left, and how the session found the file.
    let view = scratch.mount_at("view");
    let reply = blame(&view, "a");
    let of_line = |reply: &Value, line: u64| -> Value {
        let spans = reply["spans"].as_array().expect("spans");
        spans.iter().rfind(|span| span["line"].as_u64() <= Some(line)).expect("a span").clone()
    };
    let first = of_line(&all, 2)["seq"].clone();
    for line in [2, 4] {
        let span = of_line(&reply, line);
        assert_eq!((&span["certain"], &span["since"]), (&false.into(), &first), "{span:#}");
        assert_eq!(span["operation"], of_line(&all, 4)["operation"], "no younger than that");
    }
    for line in [1, 6, 20] {
        assert_eq!(of_line(&reply, line), of_line(&all, line));
    }
    // At the end of the next nobody needs that any more.
    view.unmount();
    let view = scratch.mount_at("view");
    let reply = blame(&view, "a");
    for line in [1, 2, 4, 20] {
        let span = of_line(&reply, line);
        assert_eq!((&span["certain"], &span["origin"]), (&false.into(), &"event".into()), "{span:#}");
        assert!(span.get("since").is_none(), "it may be older than the log: {span:#}");
    }
    assert_eq!(of_line(&reply, 6), of_line(&all, 6));
    assert!(view.cli(&["blame", "a"]).ok().stdout.starts_with("<op"));
}

#[test]
fn without_a_mount_it_tells_the_same() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    scratch.write("b", lines(100));
    let view = scratch.mount();
    view.write("a", lines(20).replace("line 2\n", "two\n"));
    view.write("b", with_changed_lines(&lines(100), 60));
    let mounted = [blame(&view, "a"), blame(&view, "b")];
    view.unmount();
    for (path, mounted) in ["a", "b"].iter().zip(mounted) {
        let output = scratch.fettlefs().current_dir(scratch.project()).args(["blame", path, "--json"]).output();
        assert_eq!(Output::from(output.expect("it runs")).ok().json(), mounted);
    }
}

#[test]
fn what_has_no_lines_is_refused_by_name() {
    let scratch = mounted_scratch!();
    scratch.write("dir/a", "a\n");
    std::fs::write(scratch.project().join("binary"), [0xff, 0xfe, b'\n']).expect("a file");
    std::fs::write(scratch.project().join("large"), vec![b'x'; (5 << 20) + 1]).expect("a file");
    scratch.write("gone", "a\n");
    scratch.write("empty", "");
    let view = scratch.mount_at("view");
    view.sh("rm gone; mkfifo fifo").ok();
    for (arguments, status, code, words) in [
        (&["missing"][..], 4, "unknown_path", "missing: no such file"),
        (&["gone"], 4, "unknown_path", "gone: no such file"),
        (&["dir"], 2, "bad_request", "dir: a directory has no lines"),
        (&["."], 2, "bad_request", ".: a directory has no lines"),
        (&["binary"], 2, "bad_request", "binary: binary"),
        (&["large"], 2, "bad_request", "large: larger than 5 MiB"),
        (&["fifo"], 2, "bad_request", "fifo: a fifo has no lines"),
        (&["../outside"], 4, "unknown_path", "outside the project"),
        (&["/etc/passwd"], 4, "unknown_path", "outside the project"),
        (&[".fettle/control"], 4, "unknown_path", "no such file"),
    ] {
        let output = view.cli(&[&["blame", "--json"], arguments].concat());
        assert_eq!(output.status, status, "{arguments:?}: {}{}", output.stdout, output.stderr);
        let error = &output.json()["error"];
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{arguments:?}: {error}");
    }
    assert_eq!(view.cli(&["blame"]).status, 2);
    assert_eq!(view.cli(&["blame", "dir/a", "empty"]).status, 2);
    assert_eq!(view.cli(&["blame", "empty"]).ok().stdout, "");
    let control = view.cli(&["blame", "a", "--bogus"]);
    assert_eq!(control.status, 2);
}

#[test]
fn only_who_may_read_a_file_may_ask_for_its_lines() {
    let scratch = mounted_scratch!();
    scratch.write("secret", "a\n");
    scratch.write("open", "a\n");
    let view = scratch.mount_at("view");
    view.sh("chmod 600 secret; chmod 644 open").ok();
    let as_nobody = |path: &str| -> Output {
        let mut command = scratch.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(scratch.fettlefs().get_program()).args(["blame", path]).current_dir(view.root());
        command.output().expect("setpriv").into()
    };
    let refused = as_nobody("secret");
    assert_eq!(refused.status, 6, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("you may not read this file"), "{}", refused.stderr);
    assert!(as_nobody("open").ok().stdout.ends_with("1) a\n"));
}

#[test]
fn an_access_list_decides_who_sees_lines_and_what_is_held() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode(scratch.root(), 0o755);
    let files = [("granted", 0o600, "u:65534:r"), ("denied", 0o644, "u:65534:-")];
    for (name, bits, entry) in files {
        for path in [format!("{name}-landed"), format!("{name}-held")] {
            scratch.write(&path, lines(100));
            mode(&scratch.lower().join(&path), bits);
            let listed = scratch.command("setfacl").args(["-m", entry]).arg(scratch.lower().join(&path)).status();
            assert!(listed.expect("setfacl").success());
        }
    }
    let view = scratch.mount();
    for (name, ..) in files {
        view.write(format!("{name}-held"), with_changed_lines(&lines(100), 90));
    }
    assert_eq!(view.held().len(), 2);
    let script = r#"
import json
os.setgid(65534); os.setgroups([]); os.setuid(65534)
ids = {held["path"]: held["id"] for held in ask(op="status")["held"]}
for kind in ["landed", "held"]:
    assert ask(op="blame", path="granted-" + kind)["ok"], kind
    assert ask(op="blame", path="denied-" + kind)["error"]["code"] == "not_permitted", kind
assert [change["path"] for change in ask(op="diff")["changes"]] == ["granted-held"]
assert ask(op="diff", ids=[ids["denied-held"]])["error"]["code"] == "not_permitted"
for part in ["old", "new", "diff"]:
    assert get(".fettle/held/" + ids["granted-held"] + "/" + part)
    raises("EACCES", get, ".fettle/held/" + ids["denied-held"] + "/" + part)
"#;
    crate::harness::script::python(&scratch, view.root(), script).ok();
}
