//! Who appends writes at the end that a file has at that moment, not at the one that the kernel has last heard of.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;

use crate::harness::{View, lines, mounted_scratch, with_changed_lines};

const JUDGED: &str = "src/AGENTS.md";
const PASSING: &str = "target/log";

pub fn appending(view: &View<'_>, path: &str) -> File {
    let mut file = OpenOptions::new().read(true).append(true).open(view.path(path)).expect("it opens");
    // Now the kernel knows where it ends.
    file.seek(std::io::SeekFrom::End(0)).expect("an end");
    file
}

/// Two appends: who looks in between or afterwards sees all of it, and nothing else.
pub fn assert_appended(view: &View<'_>, mut file: File, path: &str, before: &str, how: &str) {
    let mut want = before.to_owned();
    for more in ["more\n", "and more\n"] {
        file.write_all(more.as_bytes()).expect("it is written");
        want += more;
        assert_eq!(view.path(path).metadata().expect("attributes").size(), want.len() as u64, "{how}");
        assert_eq!(file.metadata().expect("attributes").size(), want.len() as u64, "{how}");
        assert_eq!(view.read(path), want, "{how}");
    }
    let mut whole = String::new();
    file.rewind().expect("its begin");
    file.read_to_string(&mut whole).expect("it is read");
    assert_eq!(whole, want, "{how}");
    drop(file);
    view.cli(&["flush"]).ok();
    assert_eq!(view.read(path), want, "{how}");
}

type Act = fn(&View<'_>);

#[test]
fn who_appends_after_review_has_changed_the_file_writes_at_its_end() {
    let old = lines(60);
    let larger = format!("first\n{old}last\n");
    let acts: [(&str, Act, &str); 3] = [
        ("discard", |view| _ = view.cli(&["discard", &view.only_held().id]).ok(), &old),
        (
            "discard some",
            |view| _ = view.cli(&["discard", "--hunk", "1", &view.only_held().id]).ok(),
            &format!("{old}last\n"),
        ),
        ("save by another", |view| view.write(JUDGED, lines(90)), &lines(90)),
    ];
    for (how, act, left) in acts {
        let scratch = mounted_scratch!();
        scratch.write(JUDGED, &old);
        let view = scratch.mount();
        view.write(JUDGED, &larger);
        let file = appending(&view, JUDGED);
        act(&view);
        assert_appended(&view, file, JUDGED, left, how);
        view.fsck();
    }
}

#[test]
fn who_appends_after_a_rollback_writes_at_the_end_that_it_has_left() {
    let scratch = mounted_scratch!();
    scratch.write("src/a.txt", lines(60));
    let view = scratch.mount();
    view.write("src/a.txt", lines(62));
    let file = appending(&view, "src/a.txt");
    view.cli(&["rollback", "src/a.txt"]).ok();
    assert_appended(&view, file, "src/a.txt", &lines(60), "rollback");
}

#[test]
fn who_appends_to_what_others_change_below_writes_at_its_end() {
    for passthrough in ["passthrough", "nopassthrough"] {
        for path in ["src/a.txt", PASSING] {
            for below in [lines(2), lines(90), with_changed_lines(&lines(60), 1)] {
                let scratch = mounted_scratch!();
                scratch.write(".gitignore", "target/\n");
                scratch.write("src/a.txt", lines(60));
                scratch.write(PASSING, lines(60));
                scratch.git_init();
                let view = scratch.mounting().flag("-o").flag(passthrough).start();
                let file = appending(&view, path);
                scratch.write(path, &below);
                assert_appended(&view, file, path, &below, &format!("{passthrough} {path} {}", below.len()));
                assert!(scratch.read(path).starts_with(&below), "{path}");
            }
        }
    }
}

#[test]
fn who_appends_more_than_one_request_holds_writes_it_in_one_piece() {
    let scratch = mounted_scratch!();
    scratch.write(JUDGED, lines(60));
    let view = scratch.mount();
    view.write(JUDGED, lines(600));
    let mut file = appending(&view, JUDGED);
    view.cli(&["discard", &view.only_held().id]).ok();
    let large = lines(1_000_000);
    file.write_all(large.as_bytes()).expect("it is written");
    assert!(view.read(JUDGED) == lines(60) + &large);
}

/// Told that nothing was, he would write it again. A limit of the daemon's stands for the end of a disk.
#[test]
fn who_appends_more_than_there_is_room_for_is_told_how_much_was_written() {
    let scratch = mounted_scratch!();
    scratch.write("log", vec![b'\n'; 900_000]);
    let view = scratch.mounting().at("view").started_by(&["prlimit", "--fsize=1000000:1000000"]).start();
    let mut log = appending(&view, "log");
    assert_eq!(log.write(&vec![b'x'; 200_000]).expect("some of it is written"), 100_000);
    assert_eq!(log.metadata().expect("attributes").size(), 1_000_000);
    let refused = log.write(b"x").expect_err("there is no room");
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
}

#[test]
fn who_appends_no_more_writes_where_it_says() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", lines(60));
    let view = scratch.mount();
    let file = appending(&view, "a.txt");
    let set = |flags| rustix::fs::fcntl_setfl(&file, flags).expect("flags are set");
    set(rustix::fs::OFlags::empty());
    std::os::unix::fs::FileExt::write_all_at(&file, b"LINE", 0).expect("it is written");
    set(rustix::fs::OFlags::APPEND);
    scratch.write("a.txt", lines(60));
    std::os::unix::fs::FileExt::write_all_at(&file, b"more\n", 0).expect("it is written");
    assert_eq!(view.read("a.txt"), lines(60).replacen("line", "LINE", 1) + "more\n");
}
