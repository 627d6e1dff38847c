//! Files that are mostly holes. They take no room, so anybody makes one of any size; all that is done with it must take
//! what its data takes. Each step here takes a moment, and would take hours if somebody read the zeros.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Scratch, View, kill, mounted_scratch, within};

/// Nothing but a hang takes so long.
const HANG: Duration = Duration::from_secs(60);

const TIB: u64 = 1 << 40;
/// What ext4 has room for.
const SIZE: u64 = 10 * TIB;

/// Runs a command that must succeed. A hang ends the daemon, without which nothing that waits for it can be ended.
#[track_caller]
fn ends(scratch: &Scratch, mut command: Command) {
    let mut child = command.stdout(Stdio::null()).spawn().expect("the program starts");
    let mut ended = None;
    within(HANG, || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    let ended = ended.unwrap_or_else(|| {
        scratch.daemons().into_iter().for_each(kill);
        child.kill().expect("a child");
        panic!("hangs: {command:?}");
    });
    assert!(ended.success(), "{command:?}: {ended}");
}

#[track_caller]
fn in_view(view: &View<'_>, script: &str) {
    let mut command = view.scratch().command("sh");
    command.current_dir(view.root()).args(["-ec", script]);
    ends(view.scratch(), command);
}

/// By the daemon where there is one.
#[track_caller]
fn cli(scratch: &Scratch, words: &[&str]) {
    let mut command = scratch.fettlefs();
    command.current_dir(scratch.root()).arg("-C").arg(scratch.project()).args(words);
    ends(scratch, command);
}

#[track_caller]
fn look_around(scratch: &Scratch) {
    for words in [&["status"][..], &["diff"], &["backups"], &["external"], &["log"], &["fsck"]] {
        cli(scratch, words);
    }
}

fn size(path: impl AsRef<std::path::Path>) -> u64 {
    fs::metadata(path).expect("it is there").len()
}

/// A file of somebody else's, with a few bytes in the middle.
fn put_sparse(scratch: &Scratch, name: &str) {
    let file = File::create(scratch.lower().join(name)).expect("a file");
    file.set_len(SIZE).expect("a hole");
    file.write_all_at(b"middle", SIZE / 2).expect("room for a block");
}

#[test]
fn a_small_file_made_huge_is_held_at_once_and_keeps_nobody_out() {
    let scratch = mounted_scratch!();
    scratch.write("a", "hi\n");
    let view = scratch.mount_at("view");
    for bytes in ["10T", "20G", "10T"] {
        in_view(&view, &format!("truncate -s {bytes} a"));
        look_around(&scratch);
    }
    assert_eq!((view.only_held().path.as_str(), scratch.read("a").as_str()), ("a", "hi\n"));
    assert_eq!(size(view.path("a")), SIZE);
    view.unmount();
    look_around(&scratch);
    let view = scratch.mount_at("view");
    cli(&scratch, &["confirm", "a"]);
    assert_eq!((size(view.path("a")), size(scratch.project().join("a"))), (SIZE, SIZE));
    in_view(&view, "truncate -s 3 a");
    assert_eq!(scratch.read("a"), "hi\n");
}

#[test]
fn what_was_not_closed_when_the_daemon_died_is_held_at_once() {
    let scratch = mounted_scratch!();
    scratch.write("a", "hi\n");
    let view = scratch.mount_at("view");
    let file = OpenOptions::new().write(true).open(view.path("a")).expect("open in the view");
    file.set_len(SIZE).expect("a hole");
    view.status();
    view.kill_all();
    drop(file);
    look_around(&scratch);
    let view = scratch.mount_at("view");
    assert_eq!((view.only_held().reason.as_str(), size(view.path("a"))), ("interrupted", SIZE));
    cli(&scratch, &["discard", "a"]);
    view.assert_landed("a", "hi\n");
}

#[test]
fn what_somebody_else_made_huge_is_written_truncated_and_replaced() {
    let scratch = mounted_scratch!();
    for name in ["written", "truncated", "replaced", "removed", "linked"] {
        put_sparse(&scratch, name);
    }
    fs::hard_link(scratch.lower().join("linked"), scratch.lower().join("other")).expect("a second name");
    let view = scratch.mount_at("view");
    in_view(&view, "printf x | dd of=written bs=1 seek=1T conv=notrunc status=none; truncate -s 3 truncated");
    in_view(&view, "echo new > temp && mv temp replaced; rm removed");
    in_view(&view, "printf x | dd of=linked bs=1 seek=1T conv=notrunc status=none");
    look_around(&scratch);
    let below = |name: &str| File::open(scratch.lower().join(name)).expect("it is there");
    let byte = |name: &str| {
        let mut byte = [0];
        below(name).read_exact_at(&mut byte, TIB).expect("it is long enough");
        byte[0]
    };
    assert_eq!((byte("written"), byte("linked"), byte("other")), (b'x', b'x', b'x'));
    assert_eq!((scratch.read("replaced").as_str(), size(scratch.lower().join("truncated"))), ("new\n", 3));
    for name in ["written", "linked"] {
        let meta = below(name).metadata().expect("its attributes");
        assert!(meta.len() == SIZE && meta.blocks() < 1024, "{name} has {} blocks", meta.blocks());
    }
    // And all the way back, from one of the backups; nor does a large one drive the others out.
    view.unmount();
    let view = scratch.mount_at("view");
    cli(&scratch, &["rollback", "truncated"]);
    let mut middle = [0; 6];
    below("truncated").read_exact_at(&mut middle, SIZE / 2).expect("it is as it was");
    assert_eq!(&middle, b"middle");
    // The second within the window of the first, so against what that had replaced.
    in_view(&view, "truncate -s 5T truncated; truncate -s 6T truncated");
    assert_eq!(size(scratch.lower().join("truncated")), 6 * TIB);
    cli(&scratch, &["confirm", "removed"]);
    assert!(!scratch.has("removed"));
}

#[test]
fn the_parts_of_a_huge_change_are_read_piece_by_piece() {
    let scratch = mounted_scratch!();
    put_sparse(&scratch, "a");
    let view = scratch.mount_at("view");
    in_view(&view, "rm a");
    let id = view.only_held().id;
    let middle = SIZE / 2;
    let read = format!("tail -c +{} .fettle/held/{id}/old | head -c 6 | grep -qx middle", middle + 1);
    in_view(&view, &read);
    in_view(&view, &format!("grep -q '^Binary files' .fettle/held/{id}/diff"));
}

#[test]
fn a_change_of_what_is_huge_and_was_edited_below_is_no_merge() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"*.img\"\naction = \"hold\"\n");
    put_sparse(&scratch, "a.img");
    let view = scratch.mount_at("view");
    in_view(&view, "printf HELLO | dd of=a.img conv=notrunc status=none");
    let below = OpenOptions::new().write(true).open(scratch.lower().join("a.img")).expect("open it below");
    below.write_all_at(b"outside", TIB).expect("room for a block");
    let daemon = view.daemon_pid();
    let refused = view.cli(&["confirm", "a.img"]).exits(5);
    assert!(refused.stderr.contains("was changed below"), "{}", refused.stderr);
    assert_eq!(view.daemon_pid(), daemon);
    look_around(&scratch);
}
