//! What a view does when the disk below it fails: full, read-only, gone, without descriptors; and when its daemon is
//! stopped for a while. `src/overlay/tests/faults.rs` has each single call fail; here whole disks do.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde_json::json;

use crate::harness::script::python;
use crate::harness::{Disk, Output, Scratch, Tree, View, eventually, lines, mounted_scratch, run, with_changed_lines};
use crate::patch;

/// Takes the last byte that there is, in smaller and smaller pieces.
fn fill(path: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file that takes all room");
    for piece in [1 << 20, 64 << 10, 4096, 512, 1] {
        let bytes = vec![b'x'; piece];
        loop {
            match file.write_all(&bytes) {
                Ok(()) => {}
                Err(err) if matches!(err.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => break,
                Err(err) => panic!("fill the disk: {err}"),
            }
        }
    }
}

/// What is freed counts against a quota until btrfs has written out that it is.
fn make_room(filler: &Path) {
    fs::remove_file(filler).expect("make room");
    run("sync", &["-f", &filler.parent().expect("a directory").display().to_string()]);
}

/// Saves in the view as `>` does, and tells which errno the first call gave that failed; `none` where none did.
fn save(scratch: &Scratch, view: &View<'_>, path: &str, content: &str) -> String {
    let script = format!(
        r#"
def save():
    fd = os.open({path:?}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(fd, {content:?}.encode())
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
try:
    save()
    print("none")
except OSError as err:
    print(errno.errorcode[err.errno])
"#
    );
    python(scratch, view.root(), &script).ok().stdout.trim().to_owned()
}

/// Without what [`View::unmount`] does besides: it takes away all mounts of the scratch directory, the disks among them.
#[track_caller]
fn end(scratch: &Scratch, view: &View<'_>) {
    let mut unmount = scratch.fettlefs();
    unmount.current_dir(scratch.root()).arg("-C").arg(view.root()).arg("unmount");
    let output = unmount.output().expect("the built program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eventually("the daemon is gone", || scratch.daemons().is_empty());
}

fn rewritten() -> String {
    "all new\n".repeat(200)
}

/// What a program is told, and a person.
const FULL: (&str, &str) = ("ENOSPC", "No space left");
const OVER_QUOTA: (&str, &str) = ("EDQUOT", "Disk quota exceeded");

/// Full to the last block from below, then from inside; killed, and started again; with room again.
fn on_a_full_disk(mount: impl FnOnce(&Path) -> Disk, (errno, words): (&str, &str)) {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(mount);
    for path in ["edited", "rewritten", "discarded", "deleted", "removed"] {
        scratch.write(path, lines(200));
    }
    let view = scratch.mount_at("view");
    view.write("rewritten", rewritten());
    // Too large for the database, and so for the room that is kept.
    view.write("discarded", rewritten().repeat(4000));
    view.write("removed", rewritten().repeat(3000));
    let held = view.held();
    assert_eq!(held.len(), 3, "{held:?}");
    let filler = scratch.project().join("filler");
    fill(&filler);

    assert_eq!(save(&scratch, &view, "edited", &with_changed_lines(&lines(200), 3)), errno);
    assert_eq!(scratch.read("edited"), lines(200));
    let inside = format!("raises('{errno}', lambda: [os.write(fd, bytes(65536)) for _ in range(1000)])");
    let inside = format!("fd = os.open('large', os.O_WRONLY | os.O_CREAT)\n{inside}\nos.close(fd)");
    // What could be opened could not be filled, and what could not be opened was refused for the same reason.
    let told = python(&scratch, view.root(), &inside);
    assert!(told.status == 0 || told.stderr.contains(words), "{}", told.stderr);
    assert_eq!(scratch.read("edited"), lines(200));
    assert!(!scratch.lower().join("large").exists(), "half a file has landed");

    // Looking and letting go need no room.
    assert_eq!(view.held().len(), 3);
    assert!(view.cli(&["diff", "rewritten"]).ok().stdout.contains("+all new"));
    view.cli(&["discard", "discarded"]).ok();
    assert_eq!(view.read("discarded"), lines(200));
    fs::remove_file(view.path("removed")).expect("what waits for review is removed");
    make_room(&filler);
    view.cli(&["rollback", "discarded"]).ok();
    assert_eq!(scratch.read("discarded"), rewritten().repeat(4000));
    view.cli(&["rollback", "removed"]).ok();
    assert_eq!(scratch.read("removed"), rewritten().repeat(3000));
    fill(&filler);
    view.fsck();

    view.kill_all();
    let view = scratch.mount_at("view");
    assert_eq!(view.read("rewritten"), rewritten());
    assert_eq!(scratch.read("edited"), lines(200));
    view.fsck();
    end(&scratch, &view);

    let view = scratch.mount_at("view");
    make_room(&filler);
    view.cli(&["confirm", "rewritten"]).ok();
    assert_eq!(scratch.read("rewritten"), rewritten());
    assert_eq!(save(&scratch, &view, "deleted", &with_changed_lines(&lines(200), 3)), "none");
    view.assert_landed("deleted", &with_changed_lines(&lines(200), 3));
    let left = |name: &str| name.starts_with(".fettle-tmp");
    let names = fs::read_dir(scratch.lower()).expect("the project").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(names.filter(|name| left(&name.to_string_lossy())).count(), 0);
    view.unmount();
}

#[test]
fn a_full_disk_in_memory_stops_writers_and_nothing_else() {
    on_a_full_disk(|point| Disk::memory(point, "48m"), FULL);
}

#[test]
fn a_full_ext4_stops_writers_and_nothing_else() {
    on_a_full_disk(|point| Disk::ext4(point, 64), FULL);
}

#[test]
fn a_quota_that_is_used_up_stops_writers_and_nothing_else() {
    on_a_full_disk(|point| Disk::btrfs_with_quota(point, 256, 48), OVER_QUOTA);
}

/// Takes the last room for a name, too, as far as there is a limit to them.
fn fill_with_names(dir: &Path) {
    for number in 0..10_000 {
        match File::create(dir.join(number.to_string())) {
            Ok(_) => {}
            Err(err) if err.raw_os_error() == Some(libc::ENOSPC) => return,
            Err(err) => panic!("fill the disk: {err}"),
        }
    }
}

/// Where not even a name can be made; killed, unmounted, mounted again, and looked at without a mount.
fn comes_back_on_a_full_disk(mount: impl FnOnce(&Path) -> Disk) {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(mount);
    ["a", "b"].iter().for_each(|path| scratch.write(path, lines(200)));
    let view = scratch.mount_at("view");
    ["a", "b"].iter().for_each(|path| view.write(path, rewritten()));
    let names = scratch.project().join("names");
    fs::create_dir(&names).expect("a directory for names");
    fill(&scratch.project().join("filler"));
    fill_with_names(&names);

    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    assert_eq!(view.read("a"), rewritten());
    end(&scratch, &view);
    let status = scratch.cli(&["status"]).ok().stdout;
    assert!(status.contains(" a ") && status.contains(" b "), "{status}");
    scratch.cli(&["discard", "a"]).ok();

    let view = scratch.mount_at("view");
    assert_eq!((view.read("a"), view.read("b")), (lines(200), rewritten()));
    view.kill_all();
    eventually("its state can be looked at", || scratch.cli(&["status"]).stdout.contains(" b "));
    let view = scratch.mount_at("view");
    view.cli(&["discard", "b"]).ok();
    view.unmount();
}

#[test]
fn a_daemon_comes_back_on_a_full_xfs() {
    comes_back_on_a_full_disk(Disk::xfs);
}

#[test]
fn a_daemon_comes_back_on_a_full_btrfs() {
    comes_back_on_a_full_disk(|point| Disk::btrfs(point, 128));
}

/// What the state directory keeps for a full disk, as `du` counts it.
fn kept_bytes(scratch: &Scratch) -> u64 {
    fs::metadata(scratch.project().join(".fettle/reserve")).map_or(0, |reserve| reserve.blocks() * 512)
}

/// Programs go on for longer than there is room for all that is recorded of it, log and rows.
fn programs_leave_a_full_disk_its_reserve(mount: impl FnOnce(&Path) -> Disk) {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(mount);
    let paths: Vec<String> = (0..60).map(|number| format!("f{number}")).collect();
    paths.iter().for_each(|path| scratch.write(path, lines(300)));
    let view = scratch.mounting().at("view").flag("--burst=100000").start();
    paths.iter().for_each(|path| view.write(path, rewritten()));
    assert_eq!(view.held().len(), paths.len());
    let filler = scratch.project().join("filler");
    fill(&filler);
    // Each is judged as often as it has been written to, or could not be.
    let rounds = "for k in 1 2 3 4 5 6; do for f in f[0-9]*; do echo $k >> $f; cp $f n$f; mkdir d; rmdir d; done; done";
    view.sh(&format!("exec 2> /dev/null; {rounds}"));
    assert!(kept_bytes(&scratch) >= 2 << 20, "{} bytes are kept", kept_bytes(&scratch));

    end(&scratch, &view);
    // One that is dropped takes the disk with it.
    let mut ended = vec![view];
    for _ in 0..3 {
        let view = scratch.mount_at("view");
        let held = view.held();
        assert!(paths.iter().all(|path| held.iter().any(|held| held.path == *path)), "{held:?}");
        view.fsck();
        end(&scratch, &view);
        let told = scratch.cli(&["status"]).ok().stdout;
        assert!(paths.iter().all(|path| told.contains(&format!(" {path} "))), "{told}");
        ended.push(view);
    }
    let view = scratch.mount_at("view");
    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    view.cli(&["discard", "f0"]).ok();
    end(&scratch, &view);
    scratch.cli(&["discard", "--all", "--yes"]).ok();
    ended.push(view);
    assert!(paths.iter().all(|path| scratch.read(path) == lines(300)));

    make_room(&filler);
    let view = scratch.mount_at("view");
    assert_eq!(view.held(), []);
    eventually("all is kept again", || kept_bytes(&scratch) >= 4 << 20);
    view.fsck();
    end(&scratch, &view);
}

#[test]
fn programs_on_a_full_tmpfs_leave_room_for_a_start_and_a_discard() {
    programs_leave_a_full_disk_its_reserve(|point| Disk::memory(point, "48m"));
}

#[test]
fn programs_on_a_full_ext4_leave_room_for_a_start_and_a_discard() {
    programs_leave_a_full_disk_its_reserve(|point| Disk::ext4(point, 64));
}

#[test]
fn programs_on_a_full_xfs_leave_room_for_a_start_and_a_discard() {
    programs_leave_a_full_disk_its_reserve(Disk::xfs);
}

#[test]
fn programs_on_a_full_btrfs_leave_room_for_a_start_and_a_discard() {
    programs_leave_a_full_disk_its_reserve(|point| Disk::btrfs(point, 128));
}

#[test]
fn programs_at_a_quota_leave_room_for_a_start_and_a_discard() {
    programs_leave_a_full_disk_its_reserve(|point| Disk::btrfs_with_quota(point, 256, 48));
}

#[test]
fn what_a_close_could_not_judge_lands_when_there_is_room_again() {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(|point| Disk::memory(point, "16m"));
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    let filler = scratch.project().join("filler");
    // Written while there is room, closed when there is none.
    let script = format!(
        r#"
fd = os.open("a", os.O_RDWR)
os.write(fd, b"LINE")
subprocess.run(["dd", "if=/dev/zero", "of={}", "bs=4096", "status=none"], stderr=subprocess.DEVNULL)
try:
    os.close(fd)
    print("none")
except OSError as err:
    print(errno.errorcode[err.errno])
"#,
        filler.display()
    );
    assert_eq!(python(&scratch, view.root(), &script).ok().stdout.trim(), "ENOSPC");
    let edited = lines(200).replacen("line", "LINE", 1);
    assert_eq!((view.read("a"), scratch.read("a")), (edited.clone(), lines(200)));
    let status = view.status();
    assert_eq!(status["writers"][0]["path"], "a", "{status}");
    assert!(view.cli(&["status"]).ok().stdout.contains("not judged yet"));
    fs::remove_file(&filler).expect("make room");
    view.status();
    view.assert_landed("a", &edited);
    view.unmount();
}

#[test]
fn a_project_that_becomes_read_only_is_read_on_and_keeps_what_is_held() {
    let mut scratch = mounted_scratch!();
    let disk = scratch.put_disk_below(|point| Disk::memory(point, "16m"));
    scratch.write("a", lines(200));
    scratch.write("b", lines(200));
    let state = scratch.root().join("state");
    let view = scratch.mounting().at("view").env("FETTLE_STATE_DIR", &state).start();
    view.write("b", rewritten());
    disk.remount("ro");
    let edited = with_changed_lines(&lines(200), 3);
    assert_eq!(save(&scratch, &view, "a", &edited), "EROFS");
    assert_eq!((view.read("a"), scratch.read("a")), (edited.clone(), lines(200)));
    let refused = view.sh("mkdir d");
    assert!(refused.status != 0 && refused.stderr.contains("Read-only file system"), "{}", refused.stderr);
    let refused = view.cli(&["confirm", "b"]);
    assert!(refused.status == 1 && refused.stderr.contains("Read-only file system"), "{}", refused.stderr);
    assert_eq!(view.only_held().path, "b");
    disk.remount("rw");
    view.cli(&["confirm", "b"]).ok();
    view.cli(&["status"]).ok();
    view.assert_landed("a", &edited);
    view.assert_landed("b", &rewritten());
    view.unmount();
}

#[test]
fn a_state_directory_that_becomes_read_only_stops_writing_and_not_reading() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let state = scratch.root().join("state");
    fs::create_dir(&state).expect("a place for the state");
    let disk = Disk::ext4(&state, 16);
    let mount = || scratch.mounting().at("view").env("FETTLE_STATE_DIR", &state).start();
    let view = mount();
    view.write("a", rewritten());
    disk.fail();
    assert_eq!(save(&scratch, &view, "new", "new\n"), "EROFS");
    assert!(!view.has("new") && !scratch.has("new"));
    assert_eq!((view.read("a"), scratch.read("a")), (rewritten(), lines(200)));
    assert_eq!(view.only_held().path, "a");
    let refused = view.cli(&["confirm", "a"]);
    assert!(refused.status == 1 && refused.stderr.contains("Read-only file system"), "{}", refused.stderr);
    assert_eq!(scratch.read("a"), lines(200));
    end(&scratch, &view);
    disk.repair();
    let view = mount();
    assert_eq!(view.read("a"), rewritten());
    view.cli(&["confirm", "a"]).ok();
    assert_eq!(scratch.read("a"), rewritten());
    view.unmount();
}

/// Who is to make room must know where: the state may stand on another disk than the project.
#[test]
fn a_full_disk_is_named_to_who_decides() {
    let scratch = mounted_scratch!();
    let large = |line: &str| format!("{line}\n").repeat(60_000);
    ["a", "b", "c"].iter().for_each(|path| scratch.write(path, large("old")));
    ["merged", "patched"].iter().for_each(|path| scratch.write(path, lines(200)));
    let state = scratch.root().join("state");
    fs::create_dir(&state).expect("a place for the state");
    let _disk = Disk::memory(&state, "16m");
    let view = scratch.mounting().at("view").env("FETTLE_STATE_DIR", &state).start();
    ["a", "b", "c"].iter().for_each(|path| view.write(path, large("new")));
    view.cli(&["discard", "b"]).ok();
    let confirmed = view.cli(&["confirm", "c", "--json"]).ok().json();
    let undo = ["undo", confirmed["outcomes"][0]["operation"].as_str().expect("an operation")];
    view.write("merged", with_changed_lines(&lines(200), 90));
    let outside = lines(200) + "outside\n";
    scratch.write("merged", &outside);
    let filler = state.join("filler");
    fill(&filler);
    let remedy = format!("; make room on the file system of {}", state.display());
    let names_room = |refused: Output, nothing: &str| {
        let refused = refused.exits(1).stderr;
        let says = |what: &str| refused.contains(what);
        assert!(says(nothing) && says("No space left") && says(&remedy), "{refused}");
    };
    for (act, nothing) in [
        (&["confirm", "a"][..], "nothing was applied: "),
        (&["rollback", "b"], "nothing was restored: "),
        (&undo, "nothing was undone: "),
        (&["confirm", "merged"], "merged: "),
    ] {
        names_room(view.cli(act), nothing);
    }
    let hunk = json!({"left": "\n", "old": "line 7", "right": "\n", "new": "seven"});
    let patch = patch::whole(&[patch::file("patched", &lines(200), json!([hunk]))]);
    names_room(patch::patch(&view, &[], &patch), "nothing was written: ");
    assert_eq!((scratch.read("a"), scratch.read("b")), (large("old"), large("old")));
    fs::remove_file(&filler).expect("make room");
    view.cli(&["confirm", "a"]).ok();
    view.cli(&["rollback", "b"]).ok();
    view.cli(&undo).ok();
    view.cli(&["confirm", "merged"]).ok();
    patch::patch(&view, &[], &patch).ok();
    assert_eq!(scratch.read("merged"), with_changed_lines(&lines(200), 90) + "outside\n");
    view.unmount();
}

/// What waits there has no second name here by which it could be kept.
#[test]
fn a_full_disk_is_told_where_what_is_held_stands_on_another() {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(|point| Disk::memory(point, "24m"));
    let large = |line: &str| format!("{line}\n").repeat(60_000);
    ["a", "b"].iter().for_each(|path| scratch.write(path, large("old")));
    let view = scratch.mounting().at("view").env("FETTLE_STAGE_DIR", scratch.root().join("stage")).start();
    ["a", "b"].iter().for_each(|path| view.write(path, large("new")));
    let filler = scratch.lower().join("filler");
    fill(&filler);
    let refused = view.cli(&["discard", "a"]).exits(1).stderr;
    assert!(refused.contains("No space left") && refused.contains("make room on"), "{refused}");
    let refused = fs::remove_file(view.path("b")).expect_err("there is no room for a backup");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(&filler).expect("make room");
    view.cli(&["discard", "a"]).ok();
    view.cli(&["rollback", "a"]).ok();
    view.unmount();
}

/// What a daemon that was killed leaves is in the log, all of it in a project's first session.
#[test]
fn a_state_that_has_lost_its_database_or_its_log_is_refused_and_left_as_it_is() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("fettle.db", |file| fs::remove_file(file).expect("the database")),
        ("fettle.db-wal", |file| fs::remove_file(file).expect("the log")),
        ("fettle.db-wal", |file| fs::write(file, "").expect("the log")),
        ("fettle.db-wal", |file| {
            let mut bytes = fs::read(file).expect("the log");
            bytes[100] ^= 1;
            fs::write(file, bytes).expect("the log");
        }),
    ];
    for (name, damage) in damages {
        let scratch = mounted_scratch!();
        scratch.write("held", lines(200));
        scratch.write("kept", lines(20_000));
        let view = scratch.mount_at("view");
        view.write("held", rewritten());
        view.write("kept", with_changed_lines(&lines(20_000), 3));
        view.kill_all();
        let (state, saved) = (scratch.project().join(".fettle"), scratch.root().join("saved"));
        run("cp", &["-a", &state.display().to_string(), &saved.display().to_string()]);
        damage(&state.join(name));
        let log = || fs::read(state.join("fettle.db-wal")).unwrap_or_default();
        let damaged_log = log();
        let contents = ["stage", "content"].map(|dir| Tree::of(&state.join(dir)));
        eventually("the killed daemon is gone", || !scratch.cli(&["status"]).stderr.contains("ask again"));
        for args in [&["status"][..], &["fsck"], &["confirm", "--all", "--yes"], &["mount"]] {
            let mut refused = scratch.fettlefs();
            refused.current_dir(scratch.project()).args(args);
            let refused: Output = refused.output().expect("the built program runs").into();
            assert_eq!(refused.status, 1, "{name}, {args:?}: {} {}", refused.stdout, refused.stderr);
            assert!(refused.stderr.contains("is damaged"), "{name}, {args:?}: {}", refused.stderr);
        }
        for (dir, before) in ["stage", "content"].iter().zip(&contents) {
            let after = Tree::of(&state.join(dir));
            assert!(!before.0.is_empty() && after.differences(before).is_empty(), "{name}: {dir}");
        }
        assert!(log() == damaged_log, "what there is of the log stays");
        // From a backup of the disk, say.
        ["fettle.db", "fettle.db-wal"].iter().for_each(|file| {
            fs::copy(saved.join(file), state.join(file)).expect("what was there before");
        });
        let view = scratch.mount_at("view");
        view.assert_held("held", &rewritten(), &lines(200));
        view.cli(&["rollback", "kept"]).ok();
        assert_eq!(scratch.read("kept"), lines(20_000));
        view.unmount();
    }
}

#[test]
fn a_state_directory_that_is_removed_is_told_by_status_and_unmount() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    view.write("a", rewritten());
    fs::remove_dir_all(scratch.project().join(".fettle")).expect("remove the state");
    let told = "note: the state directory was removed, and with it what was held";
    let status = view.cli(&["status"]).ok().stdout;
    assert!(status.contains(told), "{status}");
    // Nothing is left that `fsck` could find right.
    let unmounted = Output::from(scratch.fettlefs().arg("unmount").arg(view.root()).output().expect("it runs")).ok();
    assert!(unmounted.stdout.contains(told) && !unmounted.stdout.contains("Held"), "{}", unmounted.stdout);
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    assert_eq!(scratch.read("a"), lines(200));
}

#[test]
fn a_directory_that_is_removed_below_takes_what_was_held_in_it_nowhere() {
    let scratch = mounted_scratch!();
    scratch.write("d/sub/a", lines(200));
    scratch.write("d/sub/b", lines(200));
    let view = scratch.mount_at("view");
    view.write("d/sub/a", rewritten());
    // Written and not closed while its directory goes.
    let script = format!(
        r#"
fd = os.open("d/sub/b", os.O_RDWR)
os.write(fd, b"LINE")
subprocess.run(["rm", "-r", "{}"], check=True)
os.close(fd)
"#,
        scratch.lower().join("d").display()
    );
    python(&scratch, view.root(), &script).ok();
    assert!(!scratch.has("d"));
    let status = view.status();
    let held: Vec<&str> =
        status["held"].as_array().into_iter().flatten().filter_map(|held| held["path"].as_str()).collect();
    assert!(held.contains(&"d/sub/a") && held.contains(&"d/sub/b"), "{status}");
    assert_eq!(view.read("d/sub/a"), rewritten());
    assert!(view.read("d/sub/b").starts_with("LINE"));
    view.fsck();
    view.write("other", "other\n");
    assert_eq!(scratch.read("other"), "other\n");
    view.cli(&["confirm", "--force", "d/sub/a"]).ok();
    assert_eq!(scratch.read("d/sub/a"), rewritten());
    view.cli(&["discard", "d/sub/b"]).ok();
    view.unmount();
}

/// The daemon can have so many more files open than it has. Gives its limit of before.
fn limit_descriptors(view: &View<'_>, more: u64) -> Rlimit {
    let pid = view.daemon_pid();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count() as u64;
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    let limits = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let maximum = limits.split_whitespace().nth(4).and_then(|word| word.parse().ok());
    let few = Rlimit { current: Some(open + more), maximum };
    rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, few).expect("limit the daemon")
}

#[test]
fn more_can_be_reviewed_at_once_than_the_daemon_may_have_open() {
    let scratch = mounted_scratch!();
    let paths: Vec<String> = (0..120).map(|number| format!("d{}/f{number}", number % 3)).collect();
    paths.iter().for_each(|path| scratch.write(path, lines(100)));
    let view = scratch.mount_at("view");
    let rewrite = || {
        paths.iter().for_each(|path| view.write(path, rewritten()));
        assert_eq!(view.held().len(), paths.len());
    };
    limit_descriptors(&view, 40);
    rewrite();
    view.cli(&["discard", "--all", "--yes"]).ok();
    assert!(paths.iter().all(|path| view.read(path) == lines(100)));
    rewrite();
    view.cli(&["confirm", "--all", "--yes"]).ok();
    assert!(paths.iter().all(|path| scratch.read(path) == rewritten()));
    view.fsck();
    view.unmount();
}

/// Opens more files than there are descriptors; who is refused is told so, and what was open goes on.
#[test]
fn without_descriptors_left_who_opens_is_told_and_all_goes_on() {
    let scratch = mounted_scratch!();
    for number in 0..100 {
        scratch.write(format!("f{number}"), lines(20));
    }
    let view = scratch.mount_at("view");
    let before = limit_descriptors(&view, 30);
    let script = r#"
opened, refused = [], 0
for number in range(100):
    try:
        opened.append(os.open("f%d" % number, os.O_RDWR))
    except OSError as err:
        assert err.errno in (errno.EMFILE, errno.ENFILE), err
        refused += 1
assert opened and refused, (len(opened), refused)
assert os.read(opened[0], 6) == b"line 1"
for fd in opened:
    os.close(fd)
print(len(opened))
"#;
    python(&scratch, view.root(), script).ok();
    let daemon = Pid::from_raw(view.daemon_pid());
    rustix::process::prlimit(daemon, Resource::Nofile, before).expect("give its descriptors back");
    view.write("f99", lines(21));
    view.assert_landed("f99", &lines(21));
    view.unmount();
}

#[test]
fn a_confirm_and_its_undo_need_no_descriptors_for_each_file() {
    const FILES: usize = 700;
    let scratch = mounted_scratch!();
    for number in 0..FILES {
        scratch.write(format!("d{}/f{number}", number % 7), lines(20));
    }
    let view = scratch.mount_at("view");
    view.sh("for f in d*/f*; do seq 100 140 >$f; done").ok();
    assert_eq!(view.held().len(), FILES);
    limit_descriptors(&view, 60);
    let confirmed = view.cli(&["confirm", "--all", "--yes", "--json"]).ok().json();
    assert_eq!(scratch.read("d0/f0").lines().count(), 41);
    view.cli(&["undo", confirmed["outcomes"][0]["operation"].as_str().expect("an operation")]).ok();
    for number in 0..FILES {
        assert_eq!(scratch.read(format!("d{}/f{number}", number % 7)), lines(20));
    }
    view.unmount();
}

#[test]
fn a_daemon_that_is_stopped_for_a_while_goes_on_where_it_was() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let view = scratch.mount_at("view");
    let pid = view.daemon_pid();
    let daemon = Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(daemon, Signal::STOP).expect("stop the daemon");
    let mut writer = scratch.command("sh");
    writer.env("VIEW", view.root()).args(["-c", "cd \"$VIEW\" && echo new > new && echo more >> a"]);
    let mut writer = writer.spawn().expect("a writer");
    // Longer than the second for which attributes are valid, and than the watchdog takes to start another.
    let waited = crate::harness::within(std::time::Duration::from_secs(3), || {
        writer.try_wait().expect("ask for the writer").is_some()
    });
    assert!(!waited, "it was served by a stopped daemon");
    rustix::process::kill_process(daemon, Signal::CONT).expect("let the daemon go on");
    assert!(writer.wait().expect("the writer").success());
    view.assert_landed("new", "new\n");
    view.assert_landed("a", &format!("{}more\n", lines(200)));
    assert_eq!(view.daemon_pid(), pid, "the watchdog took it for dead");
    view.unmount();
}
