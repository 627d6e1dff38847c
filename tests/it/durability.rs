//! What survives: a daemon that is killed, an unmount, a remount; and what never moves, inode numbers and times.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::harness::script::python;
use crate::harness::{Output, Scratch, View, eventually, kill, lines, mounted_scratch, within};

fn rewritten() -> String {
    "all new\n".repeat(100)
}

/// What must be the same after a remount: held changes with their ids, backups, and the content of all paths.
#[derive(Debug, PartialEq)]
struct Shown {
    held: Vec<(String, String, String)>,
    backups: Vec<Value>,
    files: Vec<(String, Option<Vec<u8>>, Option<i64>)>,
}

const PATHS: [&str; 5] = ["held", "landed", "deleted", "new", "untouched"];

fn shown(view: &View<'_>) -> Shown {
    let status = view.status();
    let held = view.held().into_iter().map(|held| (held.id, held.path, held.reason)).collect();
    let backups = status["backups"].as_array().expect("backups").iter().map(|backup| backup["name"].clone()).collect();
    let time =
        |path: &str| view.path(path).metadata().ok().map(|meta| meta.mtime() * 1_000_000_000 + meta.mtime_nsec());
    let file = |path: &str| (path.to_owned(), view.try_read(path).ok(), time(path));
    Shown { held, backups, files: PATHS.map(file).into() }
}

fn project(scratch: &Scratch) {
    for name in ["held", "landed", "deleted", "untouched"] {
        scratch.write(name, lines(100));
    }
}

/// One of each: a change held, one landed, a deletion held, a new file.
fn work(view: &View<'_>) {
    view.write("held", rewritten());
    view.write("landed", lines(101));
    fs::remove_file(view.path("deleted")).expect("delete in the view");
    view.write("new", "new\n");
    assert_eq!(view.held().len(), 2, "{:?}", view.held());
}

fn log(scratch: &Scratch) -> String {
    scratch.cli(&["log", "--json"]).ok().stdout
}

#[test]
fn a_killed_daemon_ends_no_window() {
    let scratch = mounted_scratch!();
    let line = |number, changed| if number < changed { format!("new {number}\n") } else { format!("{number}\n") };
    let content = |changed: usize| (0..60).map(|number| line(number, changed)).collect::<String>();
    scratch.write("f", content(0));
    let view = scratch.mounting().flag("--window=600").start();
    for changed in [8, 16, 24] {
        view.write("f", content(changed));
        let killed = view.kill_daemon();
        assert!(within(STARTED_AGAIN, || view.is_served_again(killed)), "no other daemon answers");
    }
    assert_eq!(view.held().len(), 1, "more than is let through at once");
    assert_eq!(scratch.read("f"), content(8));
}

#[test]
fn a_killed_daemon_loses_nothing() {
    let scratch = mounted_scratch!();
    project(&scratch);
    for mountpoint in [None, Some("view")] {
        let mount = || mountpoint.map_or_else(|| scratch.mount(), |name| scratch.mount_at(name));
        let view = mount();
        if mountpoint.is_none() {
            work(&view);
        }
        let before = shown(&view);
        view.kill_all();
        assert_eq!(scratch.read("held"), lines(100));
        assert_eq!(scratch.read("landed"), lines(101));
        // The dead mount is replaced.
        let again = mount();
        assert_eq!(shown(&again), before);
        let history = log(&scratch);
        assert!(history.contains("write_held") && history.contains("write_landed"), "{history}");
        again.unmount();
    }
}

#[test]
fn what_was_not_closed_when_the_daemon_died_is_held_as_interrupted() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    let mut writer = fs::OpenOptions::new().append(true).open(view.path("landed")).expect("open in the view");
    writer.write_all(b"one more line\n").expect("write in the view");
    let mut creator = fs::File::create(view.path("new")).expect("create in the view");
    creator.write_all(b"new\n").expect("write in the view");
    view.status();
    view.kill_all();
    drop((writer, creator));
    assert_eq!(scratch.read("landed"), lines(100));
    let again = scratch.mount();
    let mut held: Vec<_> = again.held().into_iter().map(|held| (held.path, held.reason, held.kind)).collect();
    held.sort();
    let interrupted = |path: &str, kind: &str| (path.to_owned(), "interrupted".to_owned(), kind.to_owned());
    assert_eq!(held, [interrupted("landed", "modify"), interrupted("new", "create")]);
    assert_eq!(again.read("landed"), lines(100) + "one more line\n");
    assert_eq!(again.read("new"), "new\n");
    assert!(!scratch.has("new"));
    let waits = &again.status()["held"][0];
    assert!(waits["reason"] == "interrupted" && waits["writer"].is_null(), "nobody is named for it: {waits}");
    assert!(again.cli(&["show", "new"]).ok().stdout.contains("Writer:  not known\n"));
    assert!(!log(&scratch).lines().any(|event| event.contains("write_held") && event.contains(r#""uid""#)));
}

#[test]
fn unmount_and_remount_keep_the_view_and_the_state_works_in_between() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    work(&view);
    let before = shown(&view);
    let said = view.unmount().stdout;
    assert!(before.held.iter().all(|(id, ..)| said.contains(id)), "unmount lists what is held: {said}");
    let (held, deleted) =
        (&before.held.iter().find(|it| it.1 == "held"), &before.held.iter().find(|it| it.1 == "deleted"));
    let (held, deleted) = (&held.expect("held").0, &deleted.expect("deleted").0);
    let offline = scratch.cli(&["status", "--json"]).ok().json();
    assert_eq!((offline["mounted"].as_bool(), offline["held"].as_array().map(Vec::len)), (Some(false), Some(2)));
    assert!(scratch.cli(&["diff", held]).ok().stdout.contains("+all new"));
    let again = scratch.mount();
    assert_eq!(shown(&again), before);
    again.unmount();
    scratch.cli(&["confirm", held]).ok();
    scratch.cli(&["discard", deleted]).ok();
    assert_eq!(scratch.read("held"), rewritten());
    assert_eq!(scratch.read("deleted"), lines(100));
    let name = before.backups[0].as_str().expect("a backup of the small change");
    scratch.cli(&["rollback", name]).ok();
    assert_eq!(scratch.read("landed"), lines(100));
    let history = log(&scratch);
    for event in ["confirmed", "discarded", "rolled_back", "session_started", "session_ended"] {
        assert!(history.contains(event), "no {event} in {history}");
    }
    let last = scratch.mount();
    assert_eq!(last.held(), []);
    assert_eq!(last.read("held"), rewritten());
}

/// The kernel of a new mount knows a file by the name that a program uses, which need not be the one that a change is told by.
#[test]
fn what_is_written_by_a_further_name_after_a_remount_is_there_whatever_is_decided() {
    let confirmed = rewritten() + "first\nsecond\n";
    for (decided, whole) in [("discard", lines(100) + "second\n"), ("confirm", confirmed)] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        fs::hard_link(scratch.lower().join("a"), scratch.lower().join("b")).expect("a further name");
        let view = scratch.mount();
        view.write("a", rewritten());
        view.unmount();
        let view = scratch.mount();
        let mut file = fs::File::options().read(true).append(true).open(view.path("b")).expect("open the further name");
        file.write_all(b"first\n").expect("write");
        // Closed, one of two descriptors has the write judged.
        drop(file.try_clone().expect("another descriptor"));
        view.cli(&[decided, &view.held()[0].id]).ok();
        file.write_all(b"second\n").expect("write");
        drop(file);
        assert_eq!(["b", "a"].map(|name| view.read(name)), [whole.clone(), whole.clone()], "{decided}");
        view.unmount();
        assert_eq!(["a", "b"].map(|name| scratch.mount().read(name)), [whole.clone(), whole], "{decided}");
    }
}

fn facts(path: &Path) -> (u64, u64, u32, u32, u32, i64, i64, i64, i64, u64) {
    let meta = path.symlink_metadata().unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    let owner = (meta.uid(), meta.gid());
    let (mtime, ctime) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
    (meta.ino(), meta.size(), meta.mode(), owner.0, owner.1, mtime.0, mtime.1, ctime.0, ctime.1, meta.nlink())
}

#[test]
fn untouched_paths_look_in_the_view_as_below() {
    let scratch = mounted_scratch!();
    scratch.write("dir/deep/a.txt", lines(10));
    scratch.write("b", "b\n");
    fs::set_permissions(scratch.lower().join("b"), fs::Permissions::from_mode(0o751)).expect("a mode");
    std::os::unix::fs::chown(scratch.lower().join("b"), Some(123), Some(456)).expect("an owner");
    std::os::unix::fs::symlink("b", scratch.lower().join("link")).expect("a link");
    fs::hard_link(scratch.lower().join("b"), scratch.lower().join("c")).expect("a hard link");
    scratch.command("mkfifo").arg(scratch.lower().join("fifo")).status().expect("mkfifo");
    for mountpoint in [None, Some("view")] {
        let view = mountpoint.map_or_else(|| scratch.mount(), |name| scratch.mount_at(name));
        for path in ["dir", "dir/deep", "dir/deep/a.txt", "b", "c", "link", "fifo"] {
            assert_eq!(facts(&view.path(path)), facts(&scratch.lower().join(path)), "{path} at {mountpoint:?}");
        }
    }
}

/// The mtime to the nanosecond.
fn mtime(path: &Path) -> (i64, i64) {
    let meta = path.metadata().unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    (meta.mtime(), meta.mtime_nsec())
}

#[test]
fn the_time_a_program_saw_after_its_close_stays_to_the_nanosecond() {
    let scratch = mounted_scratch!();
    for name in ["landed", "confirmed", "renamed", "discarded"] {
        scratch.write(name, lines(100));
    }
    let view = scratch.mount();
    view.write("landed", lines(101));
    view.write("confirmed", rewritten());
    view.write_by_rename("renamed", lines(99));
    let names = ["landed", "confirmed", "renamed"];
    let seen = names.map(|name| mtime(&view.path(name)));
    let same = |view: &View<'_>, when: &str| {
        assert_eq!(names.map(|name| mtime(&view.path(name))), seen, "in the view, {when}");
    };
    view.cli(&["flush"]).ok();
    same(&view, "flushed");
    view.cli(&["confirm", "confirmed"]).ok();
    same(&view, "confirmed");
    let below = || names.map(|name| mtime(&scratch.lower().join(name)));
    assert_eq!(below(), seen, "below");
    // The same bytes as the project's, by way of something else that was held.
    view.write("discarded", rewritten());
    view.write("discarded", lines(100));
    let time = mtime(&view.path("discarded"));
    view.cli(&["flush"]).ok();
    assert_eq!(mtime(&view.path("discarded")), time, "back to equal bytes");
    view.unmount();
    assert_eq!(below(), seen, "unmounted");
    let again = scratch.mount();
    same(&again, "mounted again");
    assert_eq!(mtime(&again.path("discarded")), time, "mounted again");
}

/// How many files git looked into because their stat data had moved.
#[track_caller]
fn refreshed(scratch: &Scratch) -> Vec<String> {
    let entries = scratch.git(&["ls-files", "--debug"]).ok().stdout;
    let before = entries.clone();
    scratch.git(&["status", "--porcelain"]).ok();
    let after = scratch.git(&["ls-files", "--debug"]).ok().stdout;
    let changed = before.lines().zip(after.lines()).filter(|(before, after)| before != after);
    changed.map(|(before, after)| format!("{before} -> {after}")).collect()
}

#[test]
fn git_hashes_nothing_untouched_again() {
    let scratch = mounted_scratch!();
    for number in 0..20 {
        scratch.write(format!("dir{}/file{number}", number % 3), lines(number + 10));
    }
    scratch.git_init();
    // An index younger than the files: git trusts its stat data.
    scratch.git(&["status"]).ok();
    assert_eq!(refreshed(&scratch), Vec::<String>::new(), "without a mount");
    let view = scratch.mount();
    assert_eq!(refreshed(&scratch), Vec::<String>::new(), "mounted");
    assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, "");
    // diff-files compares stat data alone: it names what git would have to look into.
    assert_eq!(scratch.git(&["diff-files", "--name-only"]).ok().stdout, "");
    view.write("dir0/file0", lines(11));
    assert_eq!(scratch.git(&["diff-files", "--name-only"]).ok().stdout, "dir0/file0\n");
    scratch.git(&["commit", "-qam", "small"]).ok();
    assert_eq!(scratch.git(&["diff-files", "--name-only"]).ok().stdout, "");
    view.unmount();
    // What landed is another inode below, and is looked into once.
    assert_eq!(scratch.git(&["diff-files", "--name-only"]).ok().stdout, "dir0/file0\n", "unmounted");
    assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, "", "unmounted");
    let _again = scratch.mount();
    assert_eq!(scratch.git(&["diff-files", "--name-only"]).ok().stdout, "", "mounted again");
}

#[test]
fn git_finds_what_it_wrote_itself_as_it_wrote_it() {
    let scratch = mounted_scratch!();
    for number in 0..40 {
        scratch.write(format!("file{number}"), lines(20));
    }
    scratch.git_init();
    let view = scratch.mount();
    // git notes a file's inode number before it closes it, and takes another number for somebody's change.
    let script = "git checkout -qb topic && for n in 1 2 3; do sed -i \"3s/.*/topic $n/\" file$n file1$n && \
                  git commit -qam topic$n; done && git checkout -q main && sed -i '15s/.*/main/' file2 file3 && \
                  git commit -qam main && git checkout -q topic && git diff-files --name-only && git rebase -q main";
    assert_eq!(view.sh(script).ok().stdout, "");
    assert_eq!(view.sh("git status --porcelain && git diff-files --name-only").ok().stdout, "");
}

#[test]
fn a_file_keeps_its_number_while_it_is_saved() {
    let scratch = mounted_scratch!();
    scratch.write("log", lines(100));
    let view = scratch.mount();
    let reader = fs::File::open(view.path("log")).expect("open");
    let number = reader.metadata().expect("fstat").ino();
    view.sh("echo more >> log").ok();
    let now = || fs::metadata(view.path("log")).expect("stat").ino();
    let below = || fs::metadata(scratch.lower().join("log")).expect("stat below").ino();
    assert_ne!(below(), number, "a landing gives lower another inode");
    assert_eq!((now(), reader.metadata().expect("fstat").ino()), (number, number), "while it is open");
    drop(reader);
    view.cli(&["flush"]).ok();
    assert_eq!(now(), number, "closed");
    let listed = fs::read_dir(view.root()).expect("list").map(|entry| entry.expect("an entry").ino());
    assert_eq!(listed.collect::<Vec<_>>(), [number], "the listing says the same");
}

/// How long a project is without a daemon when one dies (SPEC §10); some 50 ms where nothing else runs.
const STARTED_AGAIN: Duration = Duration::from_secs(2);

#[test]
fn a_daemon_that_dies_is_started_again_with_everything_it_held() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    view.write("a", rewritten());
    let held = view.only_held().id;
    // Again and again, as one that crashes now and then would.
    for _ in 0..2 {
        let killed = view.kill_daemon();
        assert!(within(STARTED_AGAIN, || view.is_served_again(killed)), "no other daemon answers");
        assert_eq!(view.only_held().id, held);
        view.assert_held("a", &rewritten(), &lines(100));
    }
    view.cli(&["confirm", "a"]).ok();
    let log = fs::read_to_string(scratch.lower().join(".fettle/daemon.log")).expect("the log");
    assert!(log.contains("the daemon was killed by signal 9"), "{log}");
    view.unmount();
    assert_eq!(scratch.read("a"), rewritten());
}

/// A person is about to mend them, and nobody is to write past the review meanwhile.
#[test]
fn a_daemon_that_dies_while_its_settings_cannot_be_used_is_started_again_and_lets_nothing_be_written() {
    let scratch = mounted_scratch!();
    scratch.write("a", "old\n");
    let view = scratch.mount_at("view");
    scratch.write(".fettle.toml", "florr = 3\n");
    let killed = view.kill_daemon();
    assert!(within(STARTED_AGAIN, || view.is_served_again(killed)), "no other daemon answers");
    assert_eq!(
        view.sh("LC_ALL=C bash -c 'echo new > a' 2>&1 | grep -o 'Read-only file system'").stdout,
        "Read-only file system\n"
    );
    let why = view.status()["readonly"].as_str().expect("why").to_owned();
    assert!(why.contains("florr") && why.ends_with("; mend that, and `fettlefs reload`"), "{why}");
    assert!(view.cli(&["reload"]).exits(2).stderr.contains("florr"));
    scratch.write(".fettle.toml", "");
    view.cli(&["reload"]).ok();
    view.write("a", "new\n");
    view.assert_landed("a", "new\n");
}

#[test]
fn a_new_file_whose_times_are_set_has_landed_though_the_daemon_dies_at_once() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let daemon = view.status()["pid"].as_i64().expect("a pid") as i32;
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    view.write("a", "made\n");
    let times = fs::FileTimes::new().set_modified(long_ago);
    // By its path, as `touch` does: a descriptor of it would have it judged once more.
    fs::File::open(view.path("a")).and_then(|file| file.set_times(times)).expect("times are set");
    kill(daemon);
    assert!(within(STARTED_AGAIN, || view.is_served_again(daemon)), "no other daemon answers");
    let meta = fs::metadata(scratch.lower().join("a")).expect("it is below");
    assert_eq!((meta.mtime(), view.read("a")), (1_000_000_000, "made\n".to_owned()));
    let log = view.cli(&["log", "--json", "a"]).ok().json();
    let names = log["events"].as_array().expect("events").iter().map(|event| event["event"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), [Some("write_landed")], "{log}");
    view.unmount();
}

/// Sparse: quick to make. That takes longer to copy and to hash than a discard takes.
const LARGE_BYTES: u64 = 512 << 20;

/// Kills the daemon while the thread that tells the kernel to forget a name waits for the lock of a directory, which a
/// rename keeps until the daemon answers: no signal ends that wait.
fn die_in_the_kernel(scratch: &Scratch, view: &View<'_>) -> i32 {
    view.write("d/held", rewritten());
    // Not a hole: the rename lasts as long as it takes to read this.
    let mut large = fs::File::create(view.path("d/large")).expect("create");
    io::copy(&mut io::repeat(b'x').take(LARGE_BYTES), &mut large).expect("a large file");
    drop(large);
    let pid = view.daemon_pid();
    let (from, to) = (view.path("d/large"), view.path("d/a"));
    let mut rename = scratch.command("mv").arg(from).arg(to).stderr(Stdio::null()).spawn().expect("mv");
    eventually("the rename is under way", || {
        within_kernel(rename.id(), "mv", 'S') || within_kernel(rename.id(), "mv", 'D')
    });
    let discard = ["-C", view.root().to_str().expect("UTF-8"), "discard", "d/held"];
    let mut discard = scratch.fettlefs().args(discard).stderr(Stdio::null()).spawn().expect("fettlefs");
    eventually("the daemon waits in the kernel", || within_kernel(pid.unsigned_abs(), "kernel-cache", 'D'));
    assert!(rename.try_wait().expect("mv").is_none(), "the directory is locked still");
    kill(pid);
    eventually("nobody waits for a dead daemon", || {
        rename.try_wait().expect("mv").is_some() && discard.try_wait().expect("fettlefs").is_some()
    });
    pid
}

/// Whether a thread of this name is in this state.
fn within_kernel(pid: u32, name: &str, state: char) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    stats.into_iter().any(|stat| stat.contains(&format!("({name}) {state} ")))
}

#[test]
fn a_daemon_that_dies_in_the_kernel_is_started_again() {
    let scratch = mounted_scratch!();
    scratch.write("d/a", lines(100));
    scratch.write("d/held", lines(100));
    let view = scratch.mount();
    let killed = die_in_the_kernel(&scratch, &view);
    eventually("another daemon answers", || view.is_served_again(killed));
    view.fsck();
}

/// Has programs rewrite a file of the view, or of whatever is in its place, as long as `meanwhile` takes.
fn while_rewriting<T>(path: &Path, meanwhile: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Shut while no daemon answers.
                drop(fs::write(path, rewritten()));
            }
        });
        let done = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn between_two_daemons_nothing_is_written_past_the_review() {
    for mountpoint in [None, Some("view")] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let mount = || mountpoint.map_or_else(|| scratch.mount(), |name| scratch.mount_at(name));
        let view = mount();
        let path = view.path("a");
        let killed = view.kill_daemon();
        while_rewriting(&path, || eventually("another daemon answers", || view.is_served_again(killed)));
        assert_eq!(scratch.read("a"), lines(100), "by a watchdog, {mountpoint:?}");
        view.kill_all();
        let again = while_rewriting(&path, mount);
        assert_eq!(scratch.read("a"), lines(100), "by hand, {mountpoint:?}");
        again.assert_held("a", &rewritten(), &lines(100));
        let listed = scratch.cli(&["ps", "--json"]).ok().json();
        let project = scratch.project();
        let listed = listed["mounts"].as_array().expect("mounts").iter();
        assert_eq!(listed.filter(|mount| mount["project"] == project.to_str().expect("UTF-8")).count(), 1);
        // With it go the dead ones below.
        again.unmount();
        assert!(!view.is_mounted());
    }
}

#[test]
fn plain_umount_takes_dead_mounts_below_along() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    Output::from(scratch.command("umount").arg(view.root()).output().expect("umount")).ok();
    eventually("no process is left", || scratch.daemons().is_empty());
    assert!(!view.is_mounted());
}

/// As when somebody puts the old clone aside and clones anew.
#[test]
fn another_daemon_covers_the_project_where_it_is_by_now_and_nothing_else() {
    let scratch = mounted_scratch!();
    let [around, renamed] = ["around", "renamed"].map(|name| scratch.root().join(name));
    let [project, moved] = [&around, &renamed].map(|around| around.join("p"));
    let ask = |dir: &Path, args: &[&str]| {
        let output = scratch.fettlefs().current_dir(scratch.root()).arg("-C").arg(dir).args(args).output();
        Output::from(output.expect("the built program runs"))
    };
    let daemon = || {
        let status = ask(&moved, &["status", "--json"]);
        if status.status == 0 { status.json()["pid"].as_i64() } else { None }
    };
    let write = |dir: &Path, content: &str| {
        fs::create_dir_all(dir).and_then(|()| fs::write(dir.join("a"), content)).expect("write");
    };
    let reads = |dir: &Path| fs::read_to_string(dir.join("a")).unwrap_or_default();
    write(&project, &lines(100));
    ask(&around, &["mount", "p"]).ok();
    write(&project, &rewritten());
    fs::rename(&around, &renamed).expect("rename");
    write(&project, "new");
    let killed = daemon().expect("a daemon");
    kill(i32::try_from(killed).expect("a pid"));
    let is_served_again = || daemon().is_some_and(|pid| pid != killed);
    assert!(within(STARTED_AGAIN, is_served_again), "no other daemon answers");
    assert_eq!((reads(&moved), reads(&project)), (rewritten(), "new".to_owned()));
    ask(&moved, &["unmount"]).ok();
    assert_eq!((reads(&moved), reads(&project)), (lines(100), "new".to_owned()));
    eventually("no process is left", || scratch.daemons().is_empty());
}

#[test]
fn the_log_stays_short_while_a_mount_lasts() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let log = scratch.lower().join(".fettle/daemon.log");
    // As programs that complain at each save would have it.
    let mut written = fs::OpenOptions::new().append(true).open(&log).expect("the log");
    written.write_all(&vec![b'x'; 2 << 20]).expect("complaints");
    rustix::process::kill_process(Pid::from_raw(view.daemon_pid()).expect("a pid"), Signal::TERM).expect("a signal");
    eventually("no process is left", || scratch.daemons().is_empty());
    let left = fs::read_to_string(&log).expect("the log");
    assert!(left.len() < 1000 && left.contains("emptied") && left.contains("ending, for"), "{} bytes", left.len());
}

#[test]
fn a_daemon_that_cannot_start_again_leaves_the_project_bare() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    view.write("a", rewritten());
    let database = scratch.lower().join(".fettle/fettle.db");
    fs::write(&database, "no database".repeat(1000)).expect("as a failing disk would");
    view.kill_daemon();
    eventually("no process is left", || scratch.daemons().is_empty());
    assert!(!view.is_mounted());
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("bare"), lines(100));
    let log = fs::read_to_string(scratch.lower().join(".fettle/daemon.log")).expect("the log");
    assert!(log.contains("is damaged"), "why: {log}");
    let stage = fs::read_dir(scratch.lower().join(".fettle/stage")).expect("stage");
    let held = stage.map(|file| fs::read_to_string(file.expect("a file").path()).expect("its content"));
    assert_eq!(held.collect::<Vec<_>>(), [rewritten()], "what is held is in the state directory");
}

#[test]
fn a_daemon_that_dies_at_every_start_is_left_alone() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let mut killed = 0;
    for _ in 0..4 {
        eventually("another daemon answers", || view.is_served_again(killed));
        killed = view.kill_daemon();
    }
    eventually("no process is left", || scratch.daemons().is_empty());
    assert!(!view.is_mounted());
    let log = fs::read_to_string(scratch.lower().join(".fettle/daemon.log")).expect("the log");
    assert!(log.contains("no further start"), "{log}");
}

/// Writes to judged and passing files, there and new, and asks the kernel how many of their pages have yet to reach the
/// disk (cachestat(2), Linux 6.5).
const SYNCHRONOUS_WRITES: &str = r#"
import glob
def unwritten(path):
    fd, all, counts = os.open(path, os.O_RDONLY), (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    if libc.syscall(451, fd, all, counts, 0) != 0: sys.exit("cachestat: " + os.strerror(ctypes.get_errno()))
    os.close(fd)
    return counts[1] + counts[2]
def check(way, path, stored, flags=0, write_flags=0):
    f = os.open(path, os.O_RDWR | os.O_CREAT | flags)
    assert os.pwritev(f, [b"word"], 0, write_flags) == 4
    left = {there: unwritten(there) for there in glob.glob(stored)}
    assert left and not any(left.values()), (way, path, left)
    os.close(f)
def check_all(path, stored):
    for way, flags, write_flags in WAYS: check(way, path + way, stored.replace("PATH", path + way), flags, write_flags)
check("below", BELOW + "/plain", BELOW + "/plain", os.O_DSYNC)
for there in ["a", "new"]:
    check_all(there, BELOW + "/.fettle/stage/*")
    check_all(".git/" + there, BELOW + "/PATH")
"#;

#[test]
fn a_synchronous_write_has_reached_the_disk_when_it_returns() {
    let scratch = mounted_scratch!();
    let by_flags = "[('o_dsync', os.O_DSYNC, 0), ('o_sync', os.O_SYNC, 0), ('rwf_dsync', 0, os.RWF_DSYNC)]";
    for (options, ways) in [("passthrough", by_flags), ("nopassthrough", by_flags), ("sync", "[('mount', 0, 0)]")] {
        for way in ["o_dsync", "o_sync", "rwf_dsync", "mount"] {
            scratch.write(format!("a{way}"), lines(100));
            scratch.write(format!(".git/a{way}"), lines(100));
        }
        let view = scratch.mounting().flag("-o").flag(options).start();
        let below = scratch.lower();
        let script = format!("BELOW = {:?}; WAYS = {ways}\n{SYNCHRONOUS_WRITES}", below.display().to_string());
        let ran = python(&scratch, view.root(), &script);
        assert_eq!(ran.status, 0, "-o {options}: {}", ran.stderr);
        view.sh("rm -f new* .git/new*").ok();
    }
}
