//! `fettlefs patch`: exact replacements in several files, all of them or none (SPEC §16).

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

/// Runs `fettlefs patch` in the view with `input` to read.
pub fn patch(view: &View<'_>, args: &[&str], input: &str) -> Output {
    patch_by(view.scratch().fettlefs().current_dir(view.root()).arg("patch").args(args), input)
}

fn patch_by(command: &mut std::process::Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the built program runs");
    let written = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    // It may have refused before it read everything.
    written
        .or_else(|err| if err.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(err) })
        .expect("written");
    child.wait_with_output().expect("it ends").into()
}

fn sha256(content: &str) -> String {
    Sha256::digest(content.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn file(path: &str, base: &str, hunks: Value) -> Value {
    json!({"path": path, "base_sha256": sha256(base), "hunks": hunks})
}

pub fn whole(files: &[Value]) -> String {
    json!({ "files": files }).to_string()
}

/// A file of a hundred lines, and one of three; both with the line they have in common.
fn project(scratch: &Scratch) -> (String, String) {
    let (long, short) = (lines(100), "fn one() {\n    call(1);\n}\n".to_owned());
    scratch.write("src/long", &long);
    scratch.write("short", &short);
    (long, short)
}

#[test]
fn small_results_land_and_large_ones_are_held() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    let view = scratch.mount();
    let hunks: Vec<Value> = (1..=90)
        .map(|n| json!({"left": "\n", "old": format!("line {n}"), "right": "\n", "new": "new"}))
        .skip(1)
        .collect();
    let both = whole(&[
        file("src/long", &long, json!(hunks)),
        file("short", &short, json!([{"old": "call(1)", "new": "call(2)"}])),
    ]);
    let planned = patch(&view, &["--dry-run", "--json"], &both).ok().json();
    let actions = |reply: &Value| {
        let outcomes = reply["outcomes"].as_array().expect("outcomes").iter();
        outcomes.map(|outcome| outcome["action"].as_str().expect("an action").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((actions(&planned), &planned["dry_run"]), (vec!["held".into(), "landed".into()], &json!(true)));
    assert_eq!((scratch.read("short"), view.held()), (short.clone(), vec![]), "a dry run does nothing");

    let done = patch(&view, &["--json"], &both).ok().json();
    assert_eq!(actions(&done), ["held", "landed"]);
    view.assert_landed("short", "fn one() {\n    call(2);\n}\n");
    let held = view.assert_held("src/long", &view.read("src/long"), &long);
    let [first, second] = done["outcomes"].as_array().expect("outcomes").as_slice() else { panic!("{done}") };
    assert_eq!(first["id"], json!(held.id));
    assert_eq!(second["sha256"], json!(sha256("fn one() {\n    call(2);\n}\n")), "what the next patch is based on");
    assert!(second["backup"].as_str().is_some_and(|name| name.starts_with("short.")), "{second}");
    let operation = second["operation"].as_str().expect("an operation").to_owned();
    view.cli(&["undo", &operation]).ok();
    view.assert_landed("short", &short);
}

#[test]
fn a_patch_may_be_blocks_of_text_and_the_view_shows_it_at_once() {
    let scratch = mounted_scratch!();
    let (_, short) = project(&scratch);
    let view = scratch.mount();
    // In the kernel's cache before, and open while it changes.
    assert_eq!(view.read("short"), short);
    let open = std::fs::File::open(view.path("short")).expect("it opens");
    let blocks = format!(
        "FILE short\nBASE_SHA256 {}\nHUNK\n<<<<<<< LEFT\nfn one() {{\n<<<<<<< OLD\n    call(1);\n======= NEW\n    call(2);\n    call(3);\n>>>>>>> RIGHT\n}}\n>>>>>>> END\n",
        sha256(&short)
    );
    let output = patch(&view, &[], &blocks).ok();
    assert!(
        output.stdout.starts_with("fettlefs: Wrote short (39B, 4 lines, +2 -1 ~1)\n  backup: short."),
        "{}",
        output.stdout
    );
    let want = "fn one() {\n    call(2);\n    call(3);\n}\n";
    view.assert_landed("short", want);
    assert_eq!(std::io::read_to_string(open).expect("it reads"), want, "who had it open sees it");
}

/// Nothing but what is refused, and everything is as it was, times included.
#[track_caller]
fn refused(view: &View<'_>, input: &str, status: i32, code: &str, message: &str) -> Value {
    let before = crate::harness::Tree::of(&view.lower());
    let times = |path: &str| view.path(path).metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).ok();
    let stamps = (times("src/long"), times("short"));
    let told = patch(view, &["--json"], input).exits(status);
    assert_eq!(told.error_code(), code, "{}", told.stdout);
    let error = told.json()["error"].clone();
    assert!(error["message"].as_str().expect("a message").contains(message), "{message}: {error}");
    assert_eq!(crate::harness::Tree::of(&view.lower()), before, "{message}");
    assert_eq!(view.held(), [], "{message}");
    assert_eq!((times("src/long"), times("short")), stamps, "{message}");
    error
}

#[test]
fn anything_but_an_exact_match_changes_nothing_in_any_file() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    let view = scratch.mount();
    let good = || file("src/long", &long, json!([{"old": "line 7\n", "new": "seven\n"}]));
    let bad = |hunks: Value| whole(&[good(), file("short", &short, hunks)]);

    let error =
        refused(&view, &bad(json!([{"old": "call( 1 );", "new": "x"}])), 5, "conflict", "hunk 1 matches nowhere");
    let detail = error["detail"].as_str().expect("what may have been meant");
    assert!(
        detail.starts_with("here it is but for white space, line 2:\n     1 | fn one() {\n     2 |     call(1);\n"),
        "{detail}"
    );
    assert_eq!(error["path"], "short");
    let told = patch(&view, &[], &bad(json!([{"old": "call(9);", "new": "x"}]))).exits(5);
    assert_eq!(told.stderr.lines().next(), Some("fettlefs: short: nothing was written: hunk 1 matches nowhere"));
    assert!(told.stderr.contains("did you mean this, line 2:\n"), "{}", told.stderr);

    let twice = json!([{"old": "l", "new": "x"}]);
    refused(&view, &bad(twice), 5, "ambiguous", "hunk 1 matches in 2 places, not in 1");
    refused(&view, &bad(json!([{"old": "l", "new": "x", "matches": 3}])), 5, "ambiguous", "in 2 places, not in 3");
    let overlapping = json!([{"old": "call(1)", "new": "x"}, {"old": "(1);", "new": "y"}]);
    refused(&view, &bad(overlapping), 2, "bad_request", "hunks 1 and 2 replace the same text");
    refused(&view, &bad(json!([{"new": "x"}])), 2, "bad_request", "nothing to find it by");

    let stale = whole(&[good(), file("short", "another\n", json!([{"old": "call", "new": "x"}]))]);
    let error = refused(&view, &stale, 5, "conflict", "it is not what the patch was made for");
    assert!(error["message"].as_str().expect("a message").contains(&sha256(&short)), "{error}");
}

#[test]
fn what_a_patch_may_not_touch_is_refused_by_what_it_is() {
    let scratch = mounted_scratch!();
    let (long, _) = project(&scratch);
    scratch.write("binary", b"call\xff");
    scratch.write("frozen", "call\n");
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"frozen\"\naction = \"freeze\"\n");
    scratch.write("big", "0123456789abcdef\n".repeat(400_000));
    let below = scratch.lower();
    std::os::unix::fs::symlink("short", below.join("link")).expect("a link");
    rustix::fs::mknodat(rustix::fs::CWD, below.join("fifo"), rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .expect("a FIFO");
    let view = scratch.mount();
    let with = |path: &str, base: &str| {
        let hunk = json!([{"old": "call", "new": "x"}]);
        whole(&[file("src/long", &long, json!([{"old": "line 7\n", "new": "seven\n"}])), file(path, base, hunk)])
    };
    refused(&view, &with("none", ""), 4, "unknown_path", "there is no such file");
    refused(&view, &with("src", ""), 2, "bad_request", "it is a directory");
    refused(&view, &with("link", ""), 2, "bad_request", "symbolic link to short");
    refused(&view, &with("fifo", ""), 2, "bad_request", "not a file");
    refused(&view, &with("binary", ""), 2, "bad_request", "not UTF-8");
    refused(&view, &with("big", ""), 1, "too_large", "write the file itself");
    refused(&view, &with("../outside", ""), 2, "bad_request", "path has an empty, '.' or '..' component");
    refused(&view, &with("/etc/passwd", ""), 2, "bad_request", "path is absolute");
    refused(&view, &with(".fettle/control", ""), 6, "not_permitted", "fettlefs's own");
    refused(&view, &with("frozen", "call\n"), 6, "not_permitted", "a rule keeps it from being written");
    refused(&view, "", 2, "bad_request", "not a patch: it is empty");
    refused(&view, "{\"files\":[]}", 2, "bad_request", "patch of what?");
    let many: Vec<Value> = (0..10_000).map(|n| json!({"old": format!("{n}"), "new": "x"})).collect();
    refused(&view, &whole(&[file("short", "", json!(many))]), 1, "too_large", "a patch of 10000 hunks is too large");
    let long_text = json!([{"old": "call", "new": "x".repeat(100_000)}]);
    refused(&view, &whole(&[file("short", "", long_text)]), 1, "too_large", "write the files themselves");
    refused(&view, &" ".repeat(17 << 20), 1, "too_large", "write the files themselves");
}

/// Names of one inode are one change: there is no telling which of two new contents it would have.
#[test]
fn two_names_of_one_file_are_refused_by_both_names() {
    let scratch = mounted_scratch!();
    let (long, _) = project(&scratch);
    std::fs::hard_link(scratch.lower().join("src/long"), scratch.lower().join("name")).expect("a hard link");
    let view = scratch.mount();
    let both = |base: &str, one: &str, other: &str| {
        let hunk = |old: &str| json!([{"old": old, "new": "x\n"}]);
        whole(&[file(one, base, hunk("line 96\n")), file(other, base, hunk("line 97\n"))])
    };
    let why = "name: nothing was written: it is another name of src/long, and both are one change";
    refused(&view, &both(&long, "src/long", "name"), 2, "bad_request", why);
    patch(&view, &["--dry-run"], &both(&long, "src/long", "name")).exits(2);

    let rewritten = with_changed_lines(&long, 90);
    view.write("src/long", &rewritten);
    view.sh("ln src/long further").ok();
    let before = view.only_held();
    for other in ["name", "further"] {
        let told = patch(&view, &["--json"], &both(&rewritten, "src/long", other)).exits(2);
        assert_eq!(told.error_code(), "bad_request", "{other}: {}", told.stdout);
        assert_eq!((view.only_held().id, view.read(other)), (before.id.clone(), rewritten.clone()));
    }
    let hunks = json!([{"old": "line 96\n", "new": "x\n"}, {"old": "line 97\n", "new": "x\n"}]);
    patch(&view, &[], &whole(&[file("name", &rewritten, hunks)])).ok();
    let want = rewritten.replace("line 96\nline 97\n", "x\nx\n");
    assert_eq!(["src/long", "name", "further"].map(|name| view.read(name)), [want.clone(), want.clone(), want]);
}

#[test]
fn a_file_that_somebody_is_writing_is_left_to_him() {
    let scratch = mounted_scratch!();
    let (_, short) = project(&scratch);
    let view = scratch.mount();
    let mut writer = std::fs::File::options().append(true).open(view.path("short")).expect("it opens");
    writer.write_all(b"// more\n").expect("it is written");
    let now = format!("{short}// more\n");
    let hunk = whole(&[file("short", &now, json!([{"old": "call(1)", "new": "call(2)"}]))]);
    let told = patch(&view, &["--json"], &hunk).exits(5);
    assert_eq!(told.error_code(), "busy");
    assert_eq!(view.read("short"), now);
    drop(writer);
    patch(&view, &[], &hunk).ok();
    view.assert_landed("short", &now.replace("call(1)", "call(2)"));
}

#[test]
fn a_permission_program_that_refuses_one_file_refuses_all() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    let hook = scratch.root().join("hook");
    std::fs::write(&hook, "#!/bin/sh\nif grep -q '\"path\":\"short\"'; then echo '{\"decision\":\"deny\",\"reason\":\"no\"}'; else echo '{\"decision\":\"land\"}'; fi\n").expect("a hook");
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    let config = scratch.root().join("home/.config/fettlefs");
    std::fs::create_dir_all(&config).expect("a directory");
    std::fs::write(config.join("config.toml"), format!("[hooks]\npre_write = [{:?}]\n", hook.display().to_string()))
        .expect("settings");
    let view = scratch.mount();
    let both = whole(&[
        file("src/long", &long, json!([{"old": "line 7\n", "new": "seven\n"}])),
        file("short", &short, json!([{"old": "call(1)", "new": "call(2)"}])),
    ]);
    refused(&view, &both, 6, "hook_denied", "a permission program refused it");
    patch(&view, &[], &whole(&[file("src/long", &long, json!([{"old": "line 7\n", "new": "seven\n"}]))])).ok();
    view.assert_landed("src/long", &long.replace("line 7\n", "seven\n"));
}

/// Each is asked about once, before the first is shown: what was let through then is not refused after some have landed.
#[test]
fn what_a_permission_program_lets_through_is_all_or_nothing_however_much_it_is() {
    const FILES: usize = 70;
    let scratch = mounted_scratch!();
    let asked = scratch.root().join("asked");
    let hook = format!(
        "#!/bin/sh\necho >> {}\nif grep -q '\"tier\":\"hold\"'; then d=deny; else d=land; fi\n\
         echo '{{\"decision\":\"'$d'\",\"reason\":\"no\"}}'\n",
        asked.display()
    );
    let hook = crate::hooks::program(&scratch, "hook", &hook);
    let paths: Vec<String> = (0..FILES).map(|number| format!("f{number:02}")).collect();
    paths.iter().for_each(|path| scratch.write(path, lines(100)));
    let view = crate::hooks::mounting(&scratch, &[&hook]).start();
    let hunk = json!([{"old": "line 7\n", "new": "seven\n"}]);
    let files: Vec<Value> = paths.iter().map(|path| file(path, &lines(100), hunk.clone())).collect();
    let done = patch(&view, &["--json"], &whole(&files)).ok().json();
    let actions = done["outcomes"].as_array().expect("outcomes").iter().map(|outcome| outcome["action"].clone());
    let (landed, held): (Vec<Value>, Vec<Value>) = actions.partition(|action| action == "landed");
    // What exceeds a burst waits, as it does without such a program.
    assert_eq!((landed.len(), held), (20, vec![json!("held"); FILES - 20]));
    for path in &paths {
        assert_eq!(view.read(path), lines(100).replace("line 7\n", "seven\n"), "{path}");
    }
    assert_eq!(std::fs::read_to_string(asked).expect("it was asked").len(), FILES);
}

/// As with a person, who is asked about one file after another.
#[test]
fn a_permission_program_that_takes_its_time_is_asked_once_about_each_file() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    let asked = scratch.root().join("asked");
    let hook = format!(
        "#!/bin/sh\ncat > /dev/null\necho >> {}\nsleep 1.5\n\
         if test $(wc -l < {0}) -gt 2; then d=deny; else d=land; fi\necho '{{\"decision\":\"'$d'\"}}'\n",
        asked.display()
    );
    let hook = crate::hooks::program(&scratch, "hook", &hook);
    let view = crate::hooks::mounting(&scratch, &[&hook]).start();
    let both = whole(&[
        file("src/long", &long, json!([{"old": "line 7\n", "new": "seven\n"}])),
        file("short", &short, json!([{"old": "call(1)", "new": "call(2)"}])),
    ]);
    patch(&view, &[], &both).ok();
    view.assert_landed("src/long", &long.replace("line 7\n", "seven\n"));
    view.assert_landed("short", &short.replace("call(1)", "call(2)"));
    assert_eq!(std::fs::read_to_string(asked).expect("it was asked"), "\n\n");
}

#[test]
fn a_held_file_is_patched_as_the_view_shows_it_and_stays_held() {
    let scratch = mounted_scratch!();
    let (long, _) = project(&scratch);
    let view = scratch.mount();
    let rewritten = with_changed_lines(&long, 90);
    view.write("src/long", &rewritten);
    let before = view.only_held();
    let hunk = whole(&[file("src/long", &rewritten, json!([{"old": "line 95\n", "new": "ninety-five\n"}]))]);
    let done = patch(&view, &["--json"], &hunk).ok().json();
    let after = view.assert_held("src/long", &rewritten.replace("line 95\n", "ninety-five\n"), &long);
    assert_ne!(after.id, before.id);
    assert_eq!(done["outcomes"][0]["id"], json!(after.id));
    let old = view.cli(&["confirm", "--json", &before.id]).exits(5);
    assert_eq!(old.error_code(), "superseded");
}

#[test]
fn a_patch_works_without_a_mount_and_on_what_nobody_judges() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    scratch.git_init();
    scratch.write(".gitignore", "build/\n");
    scratch.write("build/out", "call\n");
    let view = scratch.mount();
    let hunk = json!([{"old": "call", "new": "CALL"}]);
    patch(&view, &[], &whole(&[file("build/out", "call\n", hunk)])).ok();
    view.assert_landed("build/out", "CALL\n");
    view.unmount();
    let all: Vec<Value> = vec![json!({"left": "line 1\n", "old": long.split_once('\n').expect("lines").1, "new": ""})];
    let both = whole(&[
        file("short", &short, json!([{"old": "call(1)", "new": "call(2)"}])),
        file("src/long", &long, json!(all)),
    ]);
    let mut command = scratch.fettlefs();
    let output = patch_by(command.arg("-C").arg(scratch.project()).args(["patch", "--json"]), &both).ok().json();
    assert_eq!(output["outcomes"][1]["action"], "held");
    assert_eq!((scratch.read("short"), scratch.read("src/long")), ("fn one() {\n    call(2);\n}\n".to_owned(), long));
    let view = scratch.mount();
    assert_eq!(view.read("src/long"), "line 1\n");
    view.only_held();
}

#[test]
fn what_is_held_already_is_patched_where_no_more_may_be_held() {
    let scratch = mounted_scratch!();
    let (long, short) = project(&scratch);
    let view = scratch.mounting().env("FETTLE_LIMIT_HELD", "1").start();
    let rewritten = with_changed_lines(&long, 90);
    view.write("src/long", &rewritten);
    view.only_held();
    let hunk = |old: &str| json!([{"old": old, "new": "patched"}]);
    let refused = patch(&view, &["--json"], &whole(&[file("short", &short, hunk("call(1)"))])).exits(1);
    assert_eq!(refused.error_code(), "write_failed", "{}", refused.stdout);
    let done = patch(&view, &["--json"], &whole(&[file("src/long", &rewritten, hunk("line 95\n"))])).ok().json();
    assert_eq!(done["outcomes"][0]["action"], "held", "{done}");
    view.assert_held("src/long", &rewritten.replace("line 95\n", "patched"), &long);
    assert_eq!(scratch.read("short"), short);
}

/// By a lease on the second file the patch waits between what it asks of the first and what it opens to write.
#[test]
fn nobody_patches_what_is_at_the_path_by_the_time_that_it_is_written() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    let below = scratch.lower();
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(below.join(path), std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for path in ["file/a", "dir/a", "b"] {
        scratch.write(path, "old\n");
        mode(path, 0o666);
    }
    mode("file/a", 0o644);
    mode("dir", 0o700);
    std::fs::set_permissions(scratch.root(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let view = scratch.mount();
    let script = r#"
import hashlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
def patch_as_nobody(*paths):
    hunks, sha256 = [dict(old="old", new="new")], hashlib.sha256(b"old\n").hexdigest()
    if os.fork() == 0:
        os.setgid(65534); os.setgroups([]); os.setuid(65534)
        answer = ask(op="patch", files=[dict(path=path, base_sha256=sha256, hunks=hunks) for path in paths])
        assert answer["error"]["code"] == "not_permitted" and "may not write" in answer["error"]["message"], answer
        os._exit(0)
for kept in ["file", "dir"]:
    own, aside = kept + "-own", kept + "-aside"
    os.mkdir(own); put(own + "/a", b"old\n"); os.chmod(own + "/a", 0o666)
    os.rename(kept, aside); os.rename(own, kept)
    leased = os.open(sys.argv[1] + "/b", os.O_RDWR)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    patch_as_nobody(kept + "/a", "b")
    signal.sigwait([signal.SIGIO])
    os.rename(kept, own); os.rename(aside, kept)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    os.close(leased)
    assert os.wait()[1] == 0, kept
"#;
    let mut command = crate::harness::script::command(&scratch, view.root(), script);
    Output::from(command.arg(below).output().expect("python3")).ok();
    for path in ["file/a", "dir/a", "file-own/a", "dir-own/a", "b"] {
        assert_eq!(scratch.read(path), "old\n", "{path}");
    }
}
