//! Files with two names, which a landing writes in place: stopped in the middle by a kill, a power cut or somebody else.

use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt, chown};
use std::process::Command;

use super::*;

/// Longer than a few sectors, and of another length than the other.
fn text(word: &str, lines: usize) -> String {
    (0..lines).map(|line| format!("{word} {line:>60}\n")).collect()
}

fn old() -> String {
    text("old", 40)
}

fn new() -> String {
    text("the new", 60)
}

/// `new` over `a`, which has `b` for its other name, with what is replaced for a backup.
fn rewriting(bench: &Bench) -> Landing<'_> {
    std::fs::write(bench.path("a"), old()).unwrap();
    std::fs::hard_link(bench.path("a"), bench.path("b")).unwrap();
    std::fs::write(bench.path("new"), new()).unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (content, backup) = bench.backup("a");
    landing.keep(content, backup);
    landing.rewrite(&bench.lower, &path("a"), bench.stamp("a"), &bench.file("new"), &bench.file("a")).unwrap();
    landing
}

fn promise(landing: Landing<'_>) {
    std::mem::forget(landing.promise(Epilogue::default()).unwrap());
}

/// What the disk got of a write in place before the power went: bytes, and neither size nor times.
fn reaches_the_disk(bench: &Bench, bytes: &str, offset: u64) {
    let file = File::options().write(true).open(bench.path("b")).unwrap();
    let before = file.metadata().unwrap();
    file.write_all_at(bytes.as_bytes(), offset).unwrap();
    file.set_len(before.len()).unwrap();
    let times = FileTimes::new().set_accessed(before.accessed().unwrap()).set_modified(before.modified().unwrap());
    file.set_times(times).unwrap();
    bench.machine_starts_again();
}

fn content(bench: &Bench, name: &str) -> String {
    std::fs::read_to_string(bench.path(name)).unwrap()
}

/// `c` is to be made anew with the same landing, and somebody has made it first: the whole is undone.
fn with_a_file_of_somebodys(bench: &Bench) {
    let mut landing = rewriting(bench);
    std::fs::write(bench.path("c"), "before\n").unwrap();
    let (file, meta) = (bench.file("new"), bench.lower.stat(&path("new")).unwrap().unwrap());
    let new = NewContent::File { file: &file, like: &file, meta };
    landing.place(&bench.lower, &path("c"), Some(&bench.meta("c")), &new).unwrap();
    promise(landing);
    std::fs::write(bench.path("theirs"), "somebody's\n").unwrap();
    std::fs::rename(bench.path("theirs"), bench.path("c")).unwrap();
}

#[test]
fn a_rewrite_torn_in_the_middle_is_written_again() {
    let mut bench = Bench::new();
    promise(rewriting(&bench));
    std::fs::write(bench.path("b"), &new()[..20]).unwrap();
    assert_eq!(bench.recover().unwrap().finished, [path("a")]);
    assert!(bench.recover().unwrap().is_nothing());
    let told = bench.store().events_since(0).unwrap();
    let told: Vec<_> = told.iter().map(|event| (event.event, event.path.clone(), event.message.as_deref())).collect();
    assert_eq!(told, [(EventName::Recovered, Some(path("a")), Some("its interrupted landing was finished"))]);
    assert_eq!(content(&bench, "b"), new());
    assert_eq!(kept(&bench), [old()], "half of the new is no version of it");
}

#[test]
fn half_of_a_rewrite_is_finished_though_its_size_and_times_are_the_old() {
    let mut bench = Bench::new();
    promise(rewriting(&bench));
    let expected = bench.stamp("a");
    reaches_the_disk(&bench, &new()[1024..3072], 1024);
    assert_eq!((bench.stamp("a").size, bench.stamp("a").mtime), (expected.size, expected.mtime));
    assert_eq!(bench.recover().unwrap().finished, [path("a")]);
    assert_eq!((content(&bench, "a"), content(&bench, "b")), (new(), new()));
    assert_eq!(kept(&bench), [old()]);
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn half_of_a_rewrite_is_undone_with_the_rest_though_its_size_and_times_are_the_old() {
    let mut bench = Bench::new();
    with_a_file_of_somebodys(&bench);
    let expected = bench.stamp("a");
    reaches_the_disk(&bench, &new()[..1024], 0);
    let recovered = bench.recover().unwrap();
    assert_eq!((recovered.finished, recovered.foreign), (vec![], vec![path("c")]));
    assert_eq!((content(&bench, "a"), content(&bench, "c").as_str()), (old(), "somebody's\n"));
    assert_eq!(bench.stamp("a").mtime, expected.mtime);
    assert_eq!(kept(&bench), [old()]);
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn a_rewrite_of_which_nothing_reached_the_disk_is_undone() {
    let mut bench = Bench::new();
    promise(rewriting(&bench));
    bench.machine_starts_again();
    assert_eq!(bench.recover().unwrap().undone, [path("a")]);
    assert_eq!(content(&bench, "a"), old());
    assert!(bench.recover().unwrap().is_nothing());
}

/// The name by which it was written is somebody's by now, or nobody's.
#[test]
fn half_of_a_rewrite_is_finished_under_the_other_names() {
    for (other, is_replaced) in [("b", true), ("b", false), ("below/b", true), ("below/.fettle/b", true)] {
        let mut bench = Bench::new();
        promise(rewriting(&bench));
        std::fs::create_dir_all(bench.path("below/.fettle")).unwrap();
        std::fs::rename(bench.path("b"), bench.path(other)).unwrap();
        let half = File::options().write(true).open(bench.path("a")).unwrap();
        half.write_all_at(&new().as_bytes()[..1024], 0).unwrap();
        std::fs::remove_file(bench.path("a")).unwrap();
        if is_replaced {
            std::fs::write(bench.path("a"), "somebody's\n").unwrap();
        }
        assert_eq!(bench.recover().unwrap().finished, [path(other)]);
        assert_eq!(content(&bench, other), new());
        let there = std::fs::read_to_string(bench.path("a")).ok();
        assert_eq!(there.as_deref(), is_replaced.then_some("somebody's\n"));
        assert_eq!(kept(&bench), [old()]);
        assert!(bench.recover().unwrap().is_nothing());
    }
}

/// By its size and times it is what was there before.
#[test]
fn what_somebody_wrote_where_a_rewrite_is_finished_or_undone_is_a_backup() {
    let begun: [fn(&Bench); 2] = [|bench| promise(rewriting(bench)), with_a_file_of_somebodys];
    for (begin, left) in begun.into_iter().zip([new(), old()]) {
        let mut bench = Bench::new();
        begin(&bench);
        reaches_the_disk(&bench, "somebody's", 700);
        let theirs = content(&bench, "b");
        assert_ne!(theirs, old());
        bench.recover().unwrap();
        assert_eq!(content(&bench, "a"), left);
        assert_eq!(kept(&bench), [old(), theirs]);
        assert!(bench.recover().unwrap().is_nothing());
    }
}

#[test]
fn what_somebody_writes_just_before_a_rewrite_stays() {
    let mut bench = Bench::new();
    let promised = rewriting(&bench).promise(Epilogue::default()).unwrap();
    std::fs::write(bench.path("b"), "somebody's\n").unwrap();
    assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
    assert_eq!(content(&bench, "a"), "somebody's\n");
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_writes_after_a_rewrite_is_a_backup_when_that_is_undone() {
    let bench = Bench::new();
    let applied = rewriting(&bench).promise(Epilogue::default()).unwrap().apply().unwrap();
    assert_eq!(content(&bench, "b"), new());
    std::fs::write(bench.path("b"), "somebody's\n").unwrap();
    drop(applied);
    assert_eq!((content(&bench, "a"), kept(&bench)), (old(), vec!["somebody's\n".to_owned()]));
}

const APART: &str = "FETTLE_REWRITE_NOT_SYNCED";

/// The contents that half of it is mended from, the intent that tells of it, and what was written: each is on disk before the
/// next is begun, also where the landing itself is not to be durable.
#[test]
fn a_rewrite_is_on_disk_step_by_step() {
    for not_synced in [".fettle/content", ".fettle/fettle.db-wal", "a"] {
        assert_passes_apart("store::tests::in_place::one_that_is_not_synced", (APART, not_synced));
    }
}

/// Not a test by itself: what the test above starts in a process of its own, all of whose threads have the fault.
#[test]
fn one_that_is_not_synced() {
    let Some(not_synced) = std::env::var_os(APART) else { return };
    let mut bench = Bench::new();
    let large = |word: &str| text(word, 1_600);
    std::fs::write(bench.path("a"), large("old")).unwrap();
    std::fs::hard_link(bench.path("a"), bench.path("b")).unwrap();
    std::fs::write(bench.path("new"), large("new")).unwrap();
    // Of content another copy is made.
    let is_copied = not_synced == ".fettle/content";
    let fate = if is_copied { Fate::AllFail(libc::EIO) } else { Fate::Fails(libc::EIO) };
    let trap = Trap::below(bench.dir.path().join(&not_synced), Calls::Syncing, 1, fate);
    let steps = Steps::watch(trap).unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    landing.rewrite(&bench.lower, &path("a"), bench.stamp("a"), &bench.file("new"), &bench.file("a")).unwrap();
    assert_eq!(steps.failed(), 0);
    if not_synced != "a" {
        assert!(landing.promise(Epilogue::default()).is_err());
        assert_eq!(content(&bench, "b"), large("old"));
        assert!(steps.failed() >= 1);
        return;
    }
    let applied = landing.promise(Epilogue::default()).unwrap().apply().unwrap();
    assert_eq!(steps.failed(), 0);
    assert!(matches!(applied.finish(), Err(Error::Unrecorded(_))));
    assert_eq!(steps.failed(), 1);
    assert_eq!(bench.recover().unwrap().finished, [path("a")], "its intent is still there");
    assert_eq!(content(&bench, "b"), large("new"));
}

const BY_GROUP: &str = "FETTLE_REWRITE_BY_GROUP";

#[test]
fn a_file_of_another_owner_is_written_in_place_by_whom_its_group_lets() {
    assert_passes_as_nobody("store::tests::in_place::one_of_another_owner", (BY_GROUP, "1"));
}

/// Not a test by itself: the test above starts it as root, and most of it is done by an ordinary user. Mode and times are for
/// the file's owner to give; its content is not.
#[test]
fn one_of_another_owner() {
    let Some(_) = std::env::var_os(BY_GROUP) else { return };
    let mut landed = Bench::new();
    let mut torn = Bench::new();
    let mut undone = Bench::new();
    for bench in [&landed, &torn, &undone] {
        std::fs::write(bench.path("a"), "").unwrap();
        let given = Command::new("chown").args(["-R", "65534:65534"]).arg(bench.dir.path()).status().unwrap();
        assert!(given.success());
        chown(bench.path("a"), Some(0), None).unwrap();
        std::fs::set_permissions(bench.path("a"), Permissions::from_mode(0o664)).unwrap();
    }
    become_nobody().unwrap();

    let applied = rewriting(&landed).promise(Epilogue::default()).unwrap().apply().unwrap();
    assert_eq!(content(&landed, "b"), new());
    drop(applied);
    assert_eq!((content(&landed, "b"), landed.store().halted()), (old(), None));
    assert!(landed.recover().unwrap().is_nothing());

    promise(rewriting(&torn));
    std::fs::write(torn.path("b"), &new()[..20]).unwrap();
    assert_eq!(torn.recover().unwrap().finished, [path("a")]);
    assert_eq!(content(&torn, "b"), new());

    with_a_file_of_somebodys(&undone);
    std::fs::write(undone.path("b"), &new()[..20]).unwrap();
    assert_eq!(undone.recover().unwrap().foreign, [path("c")]);
    assert_eq!(content(&undone, "b"), old());
}

/// It came before the landing, and does not go with it.
#[test]
fn a_name_that_somebody_made_first_stays_when_a_rewrite_is_undone() {
    let mut bench = Bench::new();
    std::fs::write(bench.path("a"), "").unwrap();
    std::fs::hard_link(bench.path("a"), bench.path("c")).unwrap();
    let mut landing = rewriting(&bench);
    landing.link(&bench.lower, &path("c"), &path("a")).unwrap();
    let promised = landing.promise(Epilogue::default()).unwrap();
    assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { path }) if path == "c"));
    assert_eq!((content(&bench, "a"), content(&bench, "c")), (old(), old()));
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_writes_before_it_is_written_in_place_stays_though_size_and_times_are_as_they_were() {
    let bench = Bench::new();
    let promised = rewriting(&bench).promise(Epilogue::default()).unwrap();
    let file = File::options().write(true).open(bench.path("b")).unwrap();
    let before = file.metadata().unwrap();
    file.write_all_at(b"our", 0).unwrap();
    let times = FileTimes::new().set_accessed(before.accessed().unwrap()).set_modified(before.modified().unwrap());
    file.set_times(times).unwrap();
    assert!(matches!(promised.apply(), Err(Error::Conflict { .. })));
    let theirs = old().replacen("old", "our", 1);
    assert_eq!((content(&bench, "a"), content(&bench, "b")), (theirs.clone(), theirs));
}
