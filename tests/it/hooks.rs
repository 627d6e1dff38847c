//! Permission programs (SPEC §7 "hook"): what they are asked, what their answers lead to, and that none of them, however
//! it behaves, keeps anybody waiting for longer than its limit or leaves anything behind.

mod behaviour;
mod closing;
mod examples;
mod questions;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::harness::script::python;
use crate::harness::{Mounting, Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

/// A program outside the project.
pub(crate) fn program(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    let path = scratch.root().join(name);
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    path
}

/// Decides by the path's first letters.
const BY_NAME: &str = r#"#!/bin/sh
question=$(cat)
case $question in
    *'"path":"deny'*) echo '{"decision":"deny","reason":"never"}' ;;
    *'"path":"hold'*) echo '{"decision":"hold","reason":"ask first"}' ;;
    *) echo '{"decision":"land"}' ;;
esac
"#;

pub(crate) fn mounting<'s>(scratch: &'s Scratch, programs: &[&PathBuf]) -> Mounting<'s> {
    let commands: Vec<String> = programs.iter().map(|program| format!("[{program:?}]")).collect();
    let mounting = scratch.mounting().env("FETTLE_HOOKS_PRE_WRITE", format!("[{}]", commands.join(",")));
    mounting.env("FETTLE_WRITE_WINDOW", "0")
}

fn by_name(scratch: &Scratch) -> View<'_> {
    let hook = program(scratch, "by-name", BY_NAME);
    mounting(scratch, &[&hook]).start()
}

fn events(view: &View<'_>, name: &str) -> Vec<serde_json::Value> {
    let log = view.cli(&["log", "--json"]).ok().json()["events"].clone();
    let events = log.as_array().expect("events").iter();
    events.filter(|event| event["event"] == name).cloned().collect()
}

fn script(scratch: &Scratch, view: &View<'_>, script: &str) -> Output {
    python(scratch, view.root(), script).ok()
}

#[test]
fn a_close_is_let_through_held_or_denied() {
    let scratch = mounted_scratch!();
    for path in ["land", "hold", "deny"] {
        scratch.write(path, "old\n");
    }
    let view = by_name(&scratch);
    script(
        &scratch,
        &view,
        r#"
def save(path, denied=False):
    f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(f, b"new\n")
    raises("EACCES", os.close, f) if denied else os.close(f)
for suffix in ["", "-made"]:
    save("land" + suffix)
    save("hold" + suffix)
    save("deny" + suffix, True)
"#,
    );
    for path in ["land", "land-made"] {
        view.assert_landed(path, "new\n");
    }
    for (path, below) in [("hold", Some("old\n")), ("hold-made", None)] {
        assert_eq!((view.read(path).as_str(), scratch.try_read(path).ok()), ("new\n", below.map(|text| text.into())));
    }
    let held = view.status()["held"].clone();
    for change in held.as_array().expect("a list") {
        assert_eq!((&change["reason"], &change["detail"]), (&"hook".into(), &"by-name: ask first".into()));
    }
    assert_eq!(held.as_array().map(Vec::len), Some(2));
    assert!(view.cli(&["status"]).ok().stdout.contains("by-name: ask first"));

    view.assert_landed("deny", "old\n");
    assert!(!view.has("deny-made") && !scratch.has("deny-made"));
    assert_eq!(view.status()["counters"]["denied"], 2);
    let denied = events(&view, "write_denied");
    assert_eq!(denied.len(), 2);
    for event in &denied {
        assert_eq!((&event["reason"], &event["message"]), (&"hook".into(), &"by-name: never".into()));
        let backup = event["backup"].as_str().expect("its content is kept");
        view.cli(&["rollback", backup, "--to", "kept"]).ok();
        assert_eq!(view.read("kept"), "new\n");
    }
    let kinds = view.cli(&["backups", "--json"]).ok().json()["backups"].clone();
    let discarded = kinds.as_array().expect("backups").iter().filter(|backup| backup["kind"] == "discarded").count();
    assert_eq!(discarded, 2);
    // By who may: a person is not asked what a program was.
    view.cli(&["confirm", "hold"]).ok();
    view.assert_landed("hold", "new\n");
}

#[test]
fn a_removal_is_let_through_held_or_denied() {
    let scratch = mounted_scratch!();
    for path in ["land", "hold", "deny"] {
        scratch.write(path, "old\n");
    }
    let view = by_name(&scratch);
    script(&scratch, &view, r#"os.unlink("land"); os.unlink("hold"); raises("EACCES", os.unlink, "deny")"#);
    assert!(!view.has("land") && !scratch.has("land"));
    assert!(!view.has("hold") && scratch.has("hold"));
    assert_eq!((view.only_held().path.as_str(), view.only_held().reason.as_str()), ("hold", "hook"));
    view.assert_landed("deny", "old\n");
    // It is there to be used, and its name to be listed.
    assert_eq!(view.sh("ls; cat deny").ok().stdout, "deny\nold\n");
    assert_eq!(events(&view, "write_denied").len(), 1);
}

/// The usual way to save: a temporary file takes the place of the old one.
#[test]
fn a_rename_over_is_let_through_held_or_denied() {
    let scratch = mounted_scratch!();
    for path in ["land", "hold", "deny"] {
        scratch.write(path, "old\n");
    }
    let view = by_name(&scratch);
    script(
        &scratch,
        &view,
        r#"
for target in ["land", "hold", "deny"]:
    put("tmp-" + target, b"new\n")
    if target == "deny":
        raises("EACCES", os.rename, "tmp-deny", "deny")
        assert get("tmp-deny") == b"new\n" and get("deny") == b"old\n", os.listdir(".")
        os.unlink("tmp-deny")
    else:
        os.rename("tmp-" + target, target)
assert sorted(os.listdir(".")) == ["deny", "hold", "land"], os.listdir(".")
"#,
    );
    view.assert_landed("land", "new\n");
    view.assert_held("hold", "new\n", "old\n");
    view.assert_landed("deny", "old\n");
    for left in ["tmp-land", "tmp-hold", "tmp-deny"] {
        assert!(!view.has(left) && !scratch.has(left), "{left}");
    }
}

/// Refuses while a file is there, once it has said that it was asked and was told that it may answer.
fn denies_while(flag: &Path) -> String {
    let flag = flag.display();
    format!(
        "#!/bin/sh\ncat >/dev/null\nif [ ! -e {flag} ]; then echo '{{\"decision\":\"land\"}}'; exit; fi\n\
         : >{flag}.asked\nuntil [ -e {flag}.answer ]; do sleep 0.02; done\n\
         echo '{{\"decision\":\"deny\",\"reason\":\"not now\"}}'\n"
    )
}

/// Both go on as they were.
#[test]
fn who_has_open_what_a_denied_rename_was_of_or_over_goes_on_with_that() {
    let scratch = mounted_scratch!();
    for path in ["source", "target"] {
        scratch.write(path, path);
    }
    let flag = scratch.root().join("flag");
    let hook = program(&scratch, "denies", &denies_while(&flag));
    let view = mounting(&scratch, &[&hook]).start();
    fs::write(flag.with_extension("answer"), "").expect("an answer");
    let save = r#"
flag = FLAG
opened = [os.open(path, os.O_RDWR) for path in ("source", "target")]
open(flag, "w").close()
raises("EACCES", os.rename, "source", "target")
os.unlink(flag)
assert [os.pread(fd, 9, 0) for fd in opened] == [b"source", b"target"]
numbers, until = [os.fstat(fd).st_ino for fd in opened], time.monotonic() + 0.3
# The kernel looks the names up anew as soon as it is told to.
while time.monotonic() < until: assert [os.stat(path).st_ino for path in ("source", "target")] == numbers
for fd in opened:
    os.pwrite(fd, b" more", 6)
    os.close(fd)
assert [get(path) for path in ("source", "target")] == [b"source more", b"target more"]
"#;
    script(&scratch, &view, &save.replace("FLAG", &format!("{:?}", flag.display().to_string())));
    view.assert_landed("source", "source more");
    view.assert_landed("target", "target more");
}

/// Neither who emptied it for that save nor who reads it is writing what is held there later.
#[test]
fn what_was_denied_brings_nothing_back_that_is_held_and_discarded_afterwards() {
    let scratch = mounted_scratch!();
    let (old, new) = (lines(200), with_changed_lines(&lines(200), 150));
    scratch.write("file", &old);
    let flag = scratch.root().join("flag");
    let hook = program(&scratch, "denies", &denies_while(&flag));
    let view = mounting(&scratch, &[&hook]).start();
    fs::write(flag.with_extension("answer"), "").expect("an answer");
    view.write("file", &new);
    view.assert_held("file", &new, &old);
    let save = r#"
flag = FLAG
reading = os.open("file", os.O_RDONLY)
discarded = ask(op="discard", all=True)["outcomes"][0]["operation"]
old = get("file")
open(flag, "w").close()
emptying = os.open("file", os.O_WRONLY | os.O_TRUNC)
saving = os.open("file", os.O_WRONLY)
os.write(saving, b"denied")
raises("EACCES", os.close, saving)
os.unlink(flag)
assert ask(op="undo", operation=discarded)["ok"]
assert get("file") != old
assert ask(op="discard", all=True)["ok"]
assert get("file") == old
os.close(emptying)
os.close(reading)
assert get("file") == old
"#;
    script(&scratch, &view, &save.replace("FLAG", &format!("{:?}", flag.display().to_string())));
    view.assert_landed("file", &old);
}

/// The kernel writes back what was stored to a mapping whenever it likes.
#[test]
fn what_is_written_to_a_file_while_its_deletion_is_denied_is_in_that_file() {
    is_written_while_denied(r#"os.unlink, "file""#);
}

#[test]
fn what_is_written_to_a_file_while_its_replacement_is_denied_is_in_that_file() {
    is_written_while_denied(r#"os.rename, "other", "file""#);
}

#[test]
fn what_is_written_to_a_file_while_its_rename_is_denied_is_in_that_file() {
    is_written_while_denied(r#"os.rename, "file", "other""#);
}

/// Writes to `file` while `call` is asked about and denied.
fn is_written_while_denied(call: &str) {
    let scratch = mounted_scratch!();
    scratch.write("file", "first line\n");
    scratch.write("other", "other\n");
    let flag = scratch.root().join("flag");
    let hook = program(&scratch, "denies", &denies_while(&flag));
    let view = mounting(&scratch, &[&hook]).start();
    let store = r#"
flag = FLAG
fd = os.open("file", os.O_RDWR)
mapping = mmap.mmap(fd, 0)
mapping[0:5] = b"STORE"
open(flag, "w").close()
child = os.fork()
if child == 0:
    raises("EACCES", CALL)
    os._exit(0)
while not os.path.exists(flag + ".asked"): pass
assert libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7) == 0
open(flag + ".answer", "w").close()
assert os.waitpid(child, 0)[1] == 0
os.unlink(flag)
os.pwrite(fd, b"LINE", 6)
mapping.close()
os.close(fd)
assert get("file") == b"STORE LINE\n", get("file")
"#;
    let flag = format!("{:?}", flag.display().to_string());
    script(&scratch, &view, &store.replace("FLAG", &flag).replace("CALL", call));
    view.assert_landed("file", "STORE LINE\n");
    view.assert_landed("other", "other\n");
}

/// Who has it open may ask for its attributes anew while the program thinks.
#[test]
fn what_is_asked_about_has_the_size_that_it_was_written_with() {
    let scratch = mounted_scratch!();
    scratch.write("target", "old\n");
    let flags = scratch.root().display().to_string();
    let waits = format!("touch '{flags}/asked'; until [ -e '{flags}/go' ]; do sleep 0.01; done");
    let hook = BY_NAME.replace(
        "case $question in",
        &format!("case $question in\n    *'\"path\":\"target'*) {waits} ;;\nesac\ncase $question in"),
    );
    let hook = program(&scratch, "waits", &hook);
    let view = mounting(&scratch, &[&hook]).start();
    let size = r#"
import ctypes, struct, threading, time
put("temporary", b"longer\n")
file = os.open("temporary", os.O_RDONLY)
renaming = threading.Thread(target=os.rename, args=("temporary", "target"))
renaming.start()
while not os.path.exists("FLAGS/asked"):
    time.sleep(0.01)
told, by_descriptor, asks_anew = ctypes.create_string_buffer(256), 0x1000, 0x2000
assert ctypes.CDLL(None).statx(file, b"", by_descriptor | asks_anew, 0x7ff, told) == 0
open("FLAGS/go", "w").close()
renaming.join()
assert struct.unpack_from("<Q", told, 40)[0] == 7, told.raw[40:48]
"#;
    script(&scratch, &view, &size.replace("FLAGS", &flags));
    view.assert_landed("target", "longer\n");
}

/// The kernel asks for such a rename twice, and permission programs are asked once.
#[test]
fn one_of_several_names_whose_rename_is_denied_is_the_files_still() {
    let scratch = mounted_scratch!();
    scratch.write("deny", "old\n");
    let view = by_name(&scratch);
    script(
        &scratch,
        &view,
        r#"
import time
for name in ["land", "hold"]:
    put(name, b"file\n"); os.link(name, "also-" + name)
    raises("EACCES", os.rename, "also-" + name, "deny")
    with open("also-" + name, "a") as f: f.write("more\n")
    assert get(name) == b"file\nmore\n" and get("deny") == b"old\n", (name, get(name))
    until = time.time() + 5
    while os.stat(name).st_ino != os.stat("also-" + name).st_ino: assert time.time() < until
    assert os.stat(name).st_nlink == 2
"#,
    );
    assert_eq!(events(&view, "write_denied").len(), 2);
}

/// Editors rename the old file away before they write the new one: refused, they and the project still have it.
#[test]
fn a_save_that_is_denied_leaves_the_old_file_in_its_place() {
    let scratch = mounted_scratch!();
    scratch.write("deny", "old\n");
    scratch.write("deny-linked", "old\n");
    let view = by_name(&scratch);
    script(
        &scratch,
        &view,
        r#"
os.rename("deny", "backup~")
f = os.open("deny", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(f, b"new\n")
raises("EACCES", os.close, f)
# Through a descriptor that was open before, and one of the same inode by another name.
os.link("deny-linked", "other-name")
f = os.open("deny-linked", os.O_RDWR)
g = os.open("deny-linked", os.O_RDONLY)
os.pwrite(f, b"new", 0)
raises("EACCES", os.close, f)
assert os.pread(g, 9, 0) == get("other-name") == b"old\n"
"#,
    );
    for path in ["deny", "backup~", "deny-linked", "other-name"] {
        view.assert_landed(path, "old\n");
    }
    assert_eq!(view.held().len(), 0);
    assert_eq!(events(&view, "write_denied").len(), 2);
}

/// The going of one is judged by itself where a rule has it reviewed.
#[test]
fn one_of_several_names_of_a_change_stays_one_when_its_going_is_denied() {
    let scratch = mounted_scratch!();
    let (old, new) = (lines(200), with_changed_lines(&lines(200), 1));
    scratch.write("gated", &old);
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"gated\"\naction = \"hold\"\n");
    let no = scratch.root().join("no");
    let decide = format!("if [ -e {no:?} ]; then d=deny; else d=land; fi; echo \"{{\\\"decision\\\":\\\"$d\\\"}}\"");
    let hook = program(&scratch, "hook", &format!("#!/bin/sh\ncat > /dev/null\n{decide}\n"));
    let view = mounting(&scratch, &[&hook]).start();
    view.write("gated", &new);
    script(&scratch, &view, "os.link('gated', 'z')");
    let held = view.assert_held("gated", &new, &old);
    fs::write(&no, "").expect("a file");
    let denied = "raises('EACCES', os.unlink, 'gated')\nassert os.stat('gated').st_ino == os.stat('z').st_ino";
    script(&scratch, &view, denied);
    assert_eq!(view.assert_held("gated", &new, &old).id, held.id);
    fs::remove_file(&no).expect("removed");
    script(&scratch, &view, "os.unlink('gated')\nassert not os.path.exists('gated') and os.path.exists('z')");
    assert_eq!((scratch.read("gated"), scratch.has("z")), (old, false));
    let mut waiting: Vec<String> = view.held().into_iter().map(|held| held.path).collect();
    waiting.sort();
    assert_eq!(waiting, ["gated", "z"]);
}

/// What waits for review, or is being written, is asked about before it goes: denied, it is as it was.
#[test]
fn what_is_held_or_being_written_stays_when_its_end_is_denied() {
    let scratch = mounted_scratch!();
    let (old, new) = (lines(200), with_changed_lines(&lines(200), 150));
    for path in ["held", "target"] {
        scratch.write(path, &old);
    }
    scratch.write("other", "other\n");
    let (no, asked) = (scratch.root().join("no"), scratch.root().join("asked"));
    let decide = format!("if [ -e {no:?} ]; then d=deny; else d=land; fi; echo \"{{\\\"decision\\\":\\\"$d\\\"}}\"");
    let hook = program(&scratch, "hook", &format!("#!/bin/sh\ncat > /dev/null\necho >> {asked:?}\n{decide}\n"));
    let count = || fs::read_to_string(&asked).expect("somebody was asked").lines().count();
    let view = mounting(&scratch, &[&hook]).start();
    view.write("held", &new);
    let held = view.assert_held("held", &new, &old);
    assert_eq!((held.reason.as_str(), count()), ("size", 1));

    fs::write(&no, "").expect("a file");
    script(
        &scratch,
        &view,
        r#"
raises("EACCES", os.unlink, "held")
raises("EACCES", os.rename, "other", "held")
raises("EACCES", os.rename, "held", "target")
f = os.open("tmp", os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"being written")
raises("EACCES", os.rename, "tmp", "target")
assert get("tmp") == b"being written"
raises("EACCES", os.close, f)
assert not os.path.exists("tmp")
"#,
    );
    assert_eq!((view.assert_held("held", &new, &old).id, count()), (held.id, 6));
    view.assert_landed("target", &old);
    view.assert_landed("other", "other\n");
    assert_eq!(events(&view, "write_denied").len(), 5);

    fs::remove_file(&no).expect("removed");
    script(
        &scratch,
        &view,
        r#"
os.rename("held", "target")
f = os.open("tmp", os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"x\n")
os.rename("tmp", "other")
os.close(f)
os.unlink("target")
"#,
    );
    // The going of the old file, too; each once. What was judged when it was renamed is at its close.
    assert_eq!((view.has("target"), view.has("held"), scratch.read("target")), (false, false, old));
    view.assert_landed("other", "x\n");
    assert!((6 + 4..=6 + 6).contains(&count()), "asked {} times", count());
}

/// Large enough to be held by itself: the denial comes first.
#[test]
fn what_would_be_held_may_be_denied() {
    let scratch = mounted_scratch!();
    scratch.write("deny", lines(200));
    let view = by_name(&scratch);
    let new = with_changed_lines(&lines(200), 150);
    script(&scratch, &view, &format!("f = open('deny', 'w'); f.write({new:?}); raises('EACCES', f.close)"));
    view.assert_landed("deny", &lines(200));
}

/// A program's silence lands nothing, whoever else has said land; the first to object is heard.
#[test]
fn of_several_all_must_say_land() {
    let scratch = mounted_scratch!();
    let say = |name: &str, answer: &str| {
        let script =
            format!("#!/bin/sh\ncat > /dev/null\necho {name} >> {:?}\n{answer}\n", scratch.root().join("asked"));
        program(&scratch, name, &script)
    };
    let land = say("land", "echo '{\"decision\":\"land\"}'");
    let hold = say("hold", "echo '{\"decision\":\"hold\"}'");
    let deny = say("deny", "echo '{\"decision\":\"deny\"}'");
    let silent = say("silent", ":");
    for (programs, want, asked) in [
        (vec![&land, &land], "landed", "land land"),
        (vec![&land, &hold, &deny], "held", "land hold"),
        (vec![&land, &deny, &hold], "denied", "land deny"),
        (vec![&silent, &land], "held", "silent"),
        (vec![&land, &silent], "held", "land silent"),
    ] {
        let view = mounting(&scratch, &programs).start();
        view.sh("echo new > file");
        let became = match (view.has("file"), scratch.has("file")) {
            (true, true) => "landed",
            (true, false) => "held",
            (false, false) => "denied",
            (false, true) => "hidden",
        };
        assert_eq!(became, want, "{programs:?}");
        let order = fs::read_to_string(scratch.root().join("asked")).expect("somebody was asked");
        assert_eq!(order.split_whitespace().collect::<Vec<_>>().join(" "), asked);
        view.unmount_with(&["--discard-all"]);
        for file in [scratch.root().join("asked"), scratch.project().join("file")] {
            if file.exists() {
                fs::remove_file(&file).expect("removed");
            }
        }
    }
}

#[test]
fn a_projects_own_hooks_run_only_when_it_is_trusted() {
    let scratch = mounted_scratch!();
    let hook = program(&scratch, "by-name", BY_NAME);
    scratch.write(".fettle.toml", format!("[hooks]\npre_write = [{hook:?}]\n"));
    let view = scratch.mount();
    assert!(view.mount_output.stderr.contains("hooks.pre_write"), "{}", view.mount_output.stderr);
    view.sh("echo new > deny").ok();
    view.assert_landed("deny", "new\n");
    view.cli(&["trust", "--yes"]).ok();
    view.cli(&["reload"]).ok();
    view.sh("echo new > deny-more");
    assert!(!view.has("deny-more"));
    // One that a reload cannot find changes nothing.
    scratch.write(".fettle.toml", "[hooks]\npre_write = ['/no/such/program']\n");
    view.cli(&["trust", "--yes"]).ok();
    let refused = view.cli(&["reload"]).exits(2);
    assert!(refused.stderr.contains("/no/such/program: there is no such program"), "{}", refused.stderr);
    view.sh("echo new > deny-more");
    assert!(!view.has("deny-more"));
}

/// Nothing that can be written through the view is ever run.
#[test]
fn a_program_within_the_project_is_refused() {
    let scratch = mounted_scratch!();
    let outside = program(&scratch, "outside", BY_NAME);
    scratch.write("tools/hook", BY_NAME);
    let inside = scratch.project().join("tools/hook");
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::symlink(&inside, scratch.root().join("link")).expect("a link");
    let link = scratch.root().join("link");
    for (command, want) in [
        (format!("[{inside:?}]"), "is in the project"),
        (format!("[{link:?}]"), "is in the project"),
        (format!("['sh', {inside:?}]"), "is in the project"),
        ("['tools/hook']".to_owned(), "tools/hook: a program is named by its absolute path"),
        ("['./hook']".to_owned(), "./hook: a program is named by its absolute path"),
        ("['no-such-program-anywhere']".to_owned(), "no-such-program-anywhere: there is no such program"),
        (format!("[[{outside:?}], [{inside:?}]]"), "is in the project"),
    ] {
        for at in [None, Some("view")] {
            let mounting = scratch.mounting().env("FETTLE_HOOKS_PRE_WRITE", &command);
            let refused = at.into_iter().fold(mounting, Mounting::at).run();
            assert_eq!(refused.status, 2, "{command}: {}", refused.stderr);
            assert!(refused.stderr.contains("FETTLE_HOOKS_PRE_WRITE: hooks.pre_write: "), "{}", refused.stderr);
            assert!(refused.stderr.contains(want), "{command}: {}", refused.stderr);
        }
    }
    assert!(!scratch.has(".fettle"), "state was made for a mount that was refused");
}

/// Between the look at it and the landing, which nothing else comes to for sure.
#[test]
fn what_is_to_land_while_its_directory_is_removed_below_is_held() {
    let scratch = mounted_scratch!();
    scratch.write("made/keep", "k\n");
    scratch.write("edited/file", lines(20));
    let [made, edited] = ["made", "edited"].map(|dir| scratch.project().join(dir).display().to_string());
    let removes = format!("#!/bin/sh\ncat >/dev/null\nrm -rf {made:?} {edited:?}\necho '{{\"decision\":\"land\"}}'\n");
    let hook = program(&scratch, "removes", &removes);
    let view = mounting(&scratch, &[&hook]).at("view").start();
    let edit = with_changed_lines(&lines(20), 1);
    let script = "a, b = open('made/new', 'w'), open('edited/file', 'w')\na.write('new')\na.close()\n";
    python(&scratch, view.root(), &format!("{script}b.write({edit:?})\nb.close()\n")).ok();
    assert_eq!((view.read("made/new"), view.read("edited/file")), ("new".to_owned(), edit));
    assert!(!scratch.has("made") && !scratch.has("edited"));
    let held: Vec<String> = view.held().into_iter().map(|held| format!("{} {}", held.path, held.reason)).collect();
    assert_eq!(held, ["edited external", "edited/file stale", "made external", "made/new parent"]);
}
