//! Stores through a mapping that is still there when the view ends: nobody has told the daemon of them, and the kernel
//! has yet to write them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::harness::{View, lines, mounted_scratch, script, with_changed_lines};

/// How a program keeps `a`, which it has mapped as `m` and opened as `f`.
const WAYS: [&str; 2] = ["open", "mapped"];

/// Starts a program that has stored through a mapping, whose descriptor it has closed before unless it keeps that.
fn store(view: &View<'_>, way: &str) -> Child {
    let close = if way == "mapped" { "os.close(f); " } else { "" };
    let store = "m[:6] = b'STORED'; print('stored', flush=True); sys.stdin.read()";
    let script = format!("f = os.open('a', os.O_RDWR); m = mmap.mmap(f, 0); {close}{store}");
    let mut command = script::command(view.scratch(), view.root(), &script);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut told = String::new();
    BufReader::new(program.stdout.as_mut().expect("its output")).read_line(&mut told).expect("what it prints");
    assert_eq!(told, "stored\n");
    program
}

fn end(mut program: Child) {
    program.kill().and_then(|()| program.wait()).expect("it ends");
}

fn stored() -> String {
    lines(50).replacen("line 1", "STORED", 1)
}

#[test]
fn an_unmount_waits_for_who_has_stored_through_a_mapping() {
    for way in WAYS {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(50));
        let view = scratch.mount();
        let program = store(&view, way);
        let refused = scratch.cli(&["unmount", "--timeout", "0"]);
        assert_eq!(refused.status, 5, "{way}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("is still writing a; --force does not wait"), "{way}: {}", refused.stderr);
        end(program);
        view.unmount();
        assert_eq!(scratch.read("a"), stored(), "{way}");
    }
}

#[test]
fn what_was_stored_through_a_mapping_is_held_after_an_unmount_that_does_not_wait() {
    for way in WAYS {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(50));
        let view = scratch.mount();
        let program = store(&view, way);
        let told = view.unmount_with(&["--force"]).stdout;
        assert!(told.contains("is still writing a: it will be held as interrupted"), "{way}: {told}");
        let again = scratch.mount();
        assert_eq!(again.assert_held("a", &stored(), &lines(50)).reason, "interrupted", "{way}");
        end(program);
    }
}

#[test]
fn what_was_stored_in_a_passing_file_that_the_daemon_writes_is_below_after_an_unmount() {
    let scratch = mounted_scratch!();
    scratch.write(".git/a", lines(50));
    let view = scratch.mounting().flag("-o").flag("nopassthrough").start();
    std::os::unix::fs::symlink(".git/a", view.path("a")).expect("a link");
    let program = store(&view, "open");
    view.unmount();
    assert_eq!(scratch.read(".git/a"), stored());
    end(program);
}

#[test]
fn what_a_program_that_outlives_its_run_has_stored_through_a_mapping_is_held() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(50));
    scratch.write(
        "store",
        "import mmap, os\nf = os.open('a', os.O_RDWR); m = mmap.mmap(f, 0)\nm[:6] = b'STORED'\n\
        os.mkdir('stored')\nwhile True: os.listdir('.')\n",
    );
    let outlives = "setsid python3 store > /dev/null 2>&1 & until [ -d stored ]; do sleep 0.01; done";
    scratch.cli(&["run", "--", "sh", "-c", outlives]).ok();
    assert_eq!(scratch.read("a"), lines(50));
    let view = scratch.mount();
    assert_eq!(view.assert_held("a", &stored(), &lines(50)).reason, "interrupted");
}

/// The command sees them at once. What it has tested with them does not land without them, nor they without a test.
#[test]
fn a_check_lands_nothing_while_a_mapping_has_stores_that_it_saw() {
    for way in WAYS {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(50));
        let view = scratch.mount();
        view.write("a", with_changed_lines(&lines(50), 48));
        let program = store(&view, way);
        let told = view.cli(&["check", "--confirm", "--", "grep", "-q", "STORED", "a"]);
        assert_eq!(told.status, 5, "{way}: {}{}", told.stdout, told.stderr);
        assert!(told.stderr.contains("still being written: a"), "{way}: {}", told.stderr);
        assert_eq!(scratch.read("a"), lines(50), "{way}");
        end(program);
    }
}
