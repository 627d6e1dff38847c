//! Who wrote: pid, uid, session, and the programs behind each event and each held change (SPEC §14).

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;

use crate::cli::terminal::on_terminal;
use crate::harness::{View, lines, mounted_scratch, with_changed_lines};

/// The latest event of a path that says `name`.
#[track_caller]
fn event(view: &View<'_>, name: &str, path: &str) -> Value {
    let log = view.cli(&["log", "-n", "0", "--json"]).ok().json();
    let events = log["events"].as_array().expect("events");
    let found = events.iter().find(|event| event["event"] == name && event["path"] == path);
    found.unwrap_or_else(|| panic!("no {name} of {path} in {log:#}")).clone()
}

fn exe(program: &Value) -> &str {
    let exe = program["exe"].as_str().unwrap_or_default();
    exe.rsplit('/').next().unwrap_or(exe)
}

/// What runs when a command is asked for by `name`, as the kernel calls it: `sh` is `dash` on Debian, and `python3` may
/// be a script that finds one.
fn real_name(name: &str) -> String {
    let script = match name {
        "python3" => "python3 -c 'import os; print(os.readlink(\"/proc/self/exe\"))'".to_owned(),
        name => format!("readlink -f \"$(command -v {name})\""),
    };
    let found = Command::new("sh").args(["-c", &script]).output().expect("sh");
    String::from_utf8_lossy(&found.stdout).trim().rsplit('/').next().expect("a name").to_owned()
}

#[test]
fn a_shell_opens_what_the_program_it_becomes_writes() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    view.sh("printf 'one\\n' > a; exec seq 3 > b").ok();
    let (opened, written) = (event(&view, "write_landed", "b"), event(&view, "write_landed", "a"));
    assert_eq!(exe(&opened["opened_by"]), real_name("sh"), "{opened}");
    assert_eq!(exe(&opened["written_by"]), real_name("seq"), "{opened}");
    assert_eq!(opened["written_by"]["cmdline"], "seq 3");
    assert_eq!(opened["written_by"]["pid"], opened["opened_by"]["pid"], "one process, two programs");
    // A builtin: the shell itself.
    assert_eq!((exe(&written["opened_by"]), &written["opened_by"]), (&*real_name("sh"), &written["written_by"]));
    for event in [&opened, &written] {
        assert_eq!((&event["pid"], &event["uid"]), (&event["opened_by"]["pid"], &event["opened_by"]["uid"]));
        assert_eq!(event["session"], view.status()["session"]);
    }
}

#[test]
fn each_way_to_write_tells_its_program() {
    let scratch = mounted_scratch!();
    for name in ["inplace", "renamed", "truncated", "emptied", "removed", "linked", "moved", "mapped", "allocated"] {
        scratch.write(name, lines(20));
    }
    let view = scratch.mount_at("view");
    let script = "
import mmap, os
with open('inplace', 'r+') as f: f.write('LINE')
with open('renamed.tmp', 'w') as f: f.write(open('renamed').read().replace('line 3', 'LINE 3'))
os.rename('renamed.tmp', 'renamed')
os.truncate('truncated', 140)
open('emptied.new', 'w').close()
os.symlink('nowhere', 'symlink')
os.symlink('/etc/hostname', 'outside')
os.link('linked', 'link')
os.rename('moved', 'moved.new')
os.mkdir('dir')
os.mkfifo('fifo')
with open('mapped', 'r+') as f:
    f.write('LINE'); f.flush()
    with mmap.mmap(f.fileno(), 0) as m: m[5:6] = b'9'
with open('allocated', 'r+') as f: os.posix_fallocate(f.fileno(), 0, 65536)
fd = os.open('removed', os.O_WRONLY); os.pwrite(fd, b'LINE', 0); os.close(fd)
os.chmod('inplace', 0o600)
";
    fs::write(scratch.root().join("writes.py"), script).expect("the script");
    view.sh(&format!("exec python3 {}/writes.py", scratch.root().display())).ok();
    let python = real_name("python3");
    for path in ["renamed", "truncated", "symlink", "link", "moved.new", "dir", "fifo", "mapped", "inplace", "removed"]
    {
        let event = event(&view, "write_landed", path);
        assert_eq!(exe(&event["written_by"]), python, "{path}: {event}");
        let cmdline = event["written_by"]["cmdline"].as_str().expect("a command line");
        assert!(cmdline.ends_with("/writes.py"), "{cmdline}");
        assert!(event["pid"].as_u64().is_some_and(|pid| pid != 0), "{event}");
    }
    // Nothing is opened where a name is made, moved or removed.
    assert!(event(&view, "write_landed", "dir")["opened_by"].is_null());
    assert_eq!(exe(&event(&view, "write_landed", "emptied.new")["written_by"]), python, "made and never written to");
    // What leads out of the project waits.
    assert_eq!(exe(&event(&view, "write_held", "outside")["written_by"]), python);
    let holes = event(&view, "write_held", "allocated");
    assert_eq!((exe(&holes["opened_by"]), exe(&holes["written_by"])), (&*python, &*python));
    view.sh("exec rm dir/../removed symlink").ok();
    for (name, path) in [("write_held", "removed"), ("write_landed", "symlink")] {
        assert_eq!(exe(&event(&view, name, path)["written_by"]), real_name("rm"), "{path}");
    }
}

#[test]
fn a_held_change_tells_who_wrote_it_and_its_review_who_asked() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("b", lines(100));
    let view = scratch.mount_at("view");
    for name in ["a", "b"] {
        fs::write(scratch.root().join(name), with_changed_lines(&lines(100), 60)).expect("new content");
        view.sh(&format!("exec cat {}/{name} > {name}", scratch.root().display())).ok();
    }
    let session = view.status()["session"].clone();
    for held in view.status()["held"].as_array().expect("held") {
        assert_eq!(
            (exe(&held["opened_by"]), exe(&held["written_by"])),
            (&*real_name("sh"), &*real_name("cat")),
            "{held}"
        );
        assert_eq!((&held["session"], &held["writer"]["exe"]), (&session, &held["opened_by"]["exe"]));
    }
    let shown = view.cli(&["show", "a"]).ok().stdout;
    assert!(shown.contains("Written: cat ") && shown.contains("Opened:  sh -c exec cat "), "{shown}");
    view.cli(&["confirm", "a"]).ok();
    view.cli(&["discard", "b"]).ok();
    for (name, path) in [("confirmed", "a"), ("discarded", "b")] {
        let event = event(&view, name, path);
        assert_eq!(exe(&event["written_by"]), real_name("cat"), "{event}");
        assert_ne!(event["pid"], event["written_by"]["pid"], "who asks is somebody else");
    }
}

#[test]
fn they_are_known_still_after_a_remount() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount_at("view");
    view.sh("exec seq 500 > a").ok();
    let before = view.status()["held"][0].clone();
    view.unmount();
    let view = scratch.mount_at("view");
    for field in ["writer", "opened_by", "written_by", "session"] {
        assert_eq!(view.status()["held"][0][field], before[field]);
        assert!(!before[field].is_null(), "{field}");
    }
    assert_ne!(view.status()["session"], before["session"], "it was written in an earlier one");
}

#[test]
fn where_the_kernel_does_not_tell_nobody_is_named() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let view = scratch.mount_at("view");
    // Stores through a mapping alone come from the kernel.
    let map = "
import mmap, os
f = open('a', 'r+')
m = mmap.mmap(f.fileno(), 0); m[0:1] = b'L'; m.flush()
f.close(); m.close()
";
    fs::write(scratch.root().join("map.py"), map).expect("the script");
    view.sh(&format!("python3 {}/map.py", scratch.root().display())).ok();
    view.cli(&["flush", "--wait"]).ok();
    let event = event(&view, "write_landed", "a");
    assert_eq!(exe(&event["opened_by"]), real_name("python3"), "{event}");
    assert!(event["written_by"].is_null(), "{event}");
}

#[test]
fn a_command_line_is_cut_and_escaped_on_a_terminal() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount_at("view");
    let long = format!("\u{1b}]0;owned\u{7}{}", "x".repeat(100_000));
    let script = "import sys; open('a', 'w').write('all new\\n')";
    let done = scratch.command("python3").args(["-c", script, &long]).current_dir(view.root()).status();
    assert!(done.expect("python3").success());
    let held = view.status()["held"][0].clone();
    let cmdline = held["written_by"]["cmdline"].as_str().expect("a command line");
    assert!(cmdline.len() <= 512 + '…'.len_utf8() && cmdline.ends_with('…'), "{} bytes", cmdline.len());
    assert!(cmdline.contains("python3 -c import sys"), "{cmdline}");
    let shown = on_terminal(&scratch, &view, &[("PAGER", "cat")], "", &["show", "a"]).ok().stdout;
    assert!(shown.contains("Written: ") && shown.contains("python3 -c"), "{shown:?}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert!(shown.contains("\\u{1b}]0;owned\\u{7}xxx"), "{shown:?}");
}

#[test]
fn a_program_that_becomes_another_with_the_file_open_does_not_hang() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(20));
    let view = scratch.mount_at("view");
    // Written, and closed only by the execve itself: while it closes, nobody may look at the process.
    let script = "
import os
for turn in range(20):
    pid = os.fork()
    if pid == 0:
        fd = os.open('a', os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(fd, b'turn %02d' % turn, 0)
        os.execvp('true', ['true'])
    assert os.waitpid(pid, 0)[1] == 0
";
    fs::write(scratch.root().join("exec.py"), script).expect("the script");
    view.sh(&format!("exec timeout 60 python3 {}/exec.py", scratch.root().display())).ok();
    let event = event(&view, "write_landed", "a");
    assert_eq!(exe(&event["written_by"]), real_name("python3"), "{event}");
    assert!(view.read("a").starts_with("turn 19"));
}

#[test]
fn what_a_rule_denies_tells_who_tried() {
    let scratch = mounted_scratch!();
    scratch.write("deny/a", lines(3));
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"deny/**\"\naction = \"deny\"\n");
    let view = scratch.mount_at("view");
    assert_ne!(view.sh("exec rm deny/a").status, 0);
    let event = event(&view, "write_denied", "deny/a");
    assert_eq!((exe(&event["written_by"]), event["uid"].as_u64()), (&*real_name("rm"), Some(0)), "{event}");
    let file = fs::File::open(view.path("deny/a")).expect("it can be read");
    assert_eq!(file.read_at(&mut [0; 4], 0).expect("and is there"), 4);
}
