//! Recovery of landings that a killed process left in the middle: forgotten here, so that nothing undoes them.

mod in_place;
mod places;
mod put_back;
mod raise;
mod several;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use super::disk::copied::Project;
use super::*;
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, Reason, RelPath, Stamp, Timestamp};
use crate::policy::settings::BackupLimits;
use crate::protocol::EventName;
use crate::sys::file::FileKind;
use crate::sys::sqlite;
use crate::sys::steps::{
    Area, Calls, Ended, Fate, Steps, Trap, apart, assert_passes_apart, assert_passes_as_nobody, become_nobody,
    test_apart,
};

struct Bench {
    dir: tempfile::TempDir,
    lower: Tree,
    /// None only while it is opened anew.
    store: Option<Store>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lower = Tree::open(dir.path()).unwrap();
        let store = Store::open(&lower, &Location::default()).unwrap();
        Self { dir, lower, store: Some(store) }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// As the next look at what was noted of the machine's run has it.
    fn machine_starts_again(&self) {
        let another = "UPDATE setting SET value = 'another' WHERE key IN ('boot', 'boot_of_rows', 'boot_of_runs')";
        self.store().database.lock().write(|tx| Ok(tx.execute(another, [])?)).unwrap();
    }

    fn meta(&self, name: &str) -> Meta {
        self.lower.stat(&path(name)).unwrap().unwrap()
    }

    fn stamp(&self, name: &str) -> Stamp {
        self.meta(name).stamp()
    }

    fn file(&self, name: &str) -> File {
        File::open(self.path(name)).unwrap()
    }

    fn backup(&self, name: &str) -> (StagedContent, Backup) {
        let content = self.store().stage_content(&self.file(name)).unwrap();
        let backup = Backup {
            name: String::new(),
            path: path(name),
            kind: BackupKind::Landed,
            digest: content.digest,
            size: content.size,
            mode: 0o644,
            group: None,
            symlink: false,
            mtime: Timestamp::default(),
            created: now_millis(),
            by: None,
            for_all: false,
            owner: None,
        };
        (content, backup)
    }

    /// A file that nobody has judged.
    fn save_new_row(&self, id: UpperId) {
        let (names, base) = (vec![path("a")], Base::NOTHING);
        self.store().save_upper(&UpperRow { id, names, what: What::File, base, held: None, looks: None }).unwrap();
    }

    /// As if killed right after what decides: the notes are all that is left.
    fn decide_only(&self) {
        let recovered = &mut Recovered::default();
        for (id, intent) in self.store().load_intents().unwrap() {
            drop(self.store().decide_intent((&self.lower, Project::Itself), id, intent, recovered).unwrap());
        }
    }

    /// As after a kill.
    fn recover(&mut self) -> Result<Recovered> {
        self.store = None;
        self.store = Some(Store::open(&self.lower, &Location::default()).unwrap());
        self.store().recover(&self.lower)
    }
}

fn path(name: &str) -> RelPath {
    RelPath::parse(name.as_bytes()).unwrap()
}

/// In a directory, staged with its backup.
fn deletion_of_the_only_file(bench: &Bench) -> Landing<'_> {
    std::fs::create_dir(bench.path("d")).unwrap();
    std::fs::write(bench.path("d/a"), "old\n").unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (content, backup) = bench.backup("d/a");
    landing.keep(content, backup);
    landing.remove(&bench.lower, &path("d/a"), bench.stamp("d/a")).unwrap();
    landing
}

#[test]
fn a_landing_whose_directory_is_gone_does_not_keep_the_project_from_mounting() {
    let mut bench = Bench::new();
    let landing = deletion_of_the_only_file(&bench);
    std::mem::forget(landing.promise(Epilogue::default()).unwrap().apply().unwrap());
    std::fs::remove_dir_all(bench.path("d")).unwrap();
    let recovered = bench.recover().unwrap();
    assert_eq!((recovered.finished, recovered.foreign), (vec![path("d/a")], vec![]), "it was to go");
    assert_eq!(bench.store().backups().unwrap().len(), 1);
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_removes_just_before_its_deletion_lands_is_a_conflict_and_stops_nothing() {
    let removals: [fn(&Bench); 2] = [
        |bench| std::fs::remove_file(bench.path("d/a")).unwrap(),
        |bench| std::fs::remove_dir_all(bench.path("d")).unwrap(),
    ];
    for remove in removals {
        let mut bench = Bench::new();
        let landing = deletion_of_the_only_file(&bench);
        let promised = landing.promise(Epilogue::default()).unwrap();
        remove(&bench);
        assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
        assert_eq!(bench.store().halted(), None);
        assert!(bench.recover().unwrap().is_nothing());
    }
}

/// As `touch -r` does it.
#[test]
fn what_somebody_writes_just_before_it_is_replaced_or_goes_is_a_conflict_though_he_puts_the_times_back() {
    let write = |bench: &Bench, name: &str| {
        let file = std::fs::OpenOptions::new().write(true).open(bench.path(name)).unwrap();
        let times = std::fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
        (&file).write_all(b"OLD").unwrap();
        file.set_times(times).unwrap();
    };
    let bench = Bench::new();
    let promised = deletion_of_the_only_file(&bench).promise(Epilogue::default()).unwrap();
    write(&bench, "d/a");
    assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
    assert_eq!(std::fs::read_to_string(bench.path("d/a")).unwrap(), "OLD\n");

    let promised = replacement(&bench).promise(Epilogue::default()).unwrap();
    write(&bench, "a");
    assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "OLD\n");
}

#[test]
fn what_landed_in_a_directory_that_somebody_took_away_since_is_told_as_foreign() {
    let mut bench = Bench::new();
    std::fs::create_dir(bench.path("d")).unwrap();
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (file, meta) = (bench.file("new"), bench.lower.stat(&path("new")).unwrap().unwrap());
    let new = NewContent::File { file: &file, like: &file, meta };
    landing.place(&bench.lower, &path("d/a"), None, &new).unwrap();
    std::mem::forget(landing.promise(Epilogue::default()).unwrap().apply().unwrap());
    std::fs::remove_dir_all(bench.path("d")).unwrap();
    let recovered = bench.recover().unwrap();
    assert_eq!((recovered.finished, recovered.foreign), (vec![], vec![path("d/a")]));
    assert!(bench.recover().unwrap().is_nothing());
}

/// Neither the steps nor the notes lead to where the directory is now.
#[test]
fn a_temporary_name_goes_though_somebody_renamed_its_directory() {
    let stop: [fn(Landing<'_>); 2] = [
        |landing| std::mem::forget(landing.promise(Epilogue::default()).unwrap()),
        |landing| std::mem::forget(landing.promise(Epilogue::default()).unwrap().apply().unwrap()),
    ];
    for is_removal in [false, true] {
        for stop in stop {
            let mut bench = Bench::new();
            let mut landing = deletion_of_the_only_file(&bench);
            if !is_removal {
                let (file, meta) = (bench.file("d/a"), bench.meta("d/a"));
                let new = NewContent::File { file: &file, like: &file, meta };
                landing = Landing::new(bench.store(), Durability::Cached);
                landing.place(&bench.lower, &path("d/a"), Some(&meta), &new).unwrap();
            }
            stop(landing);
            std::fs::rename(bench.path("d"), bench.path("e")).unwrap();
            bench.recover().unwrap();
            let left = std::fs::read_dir(bench.path("e")).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(!left.into_iter().any(|name| super::is_temp_name(&name)), "{is_removal}");
            assert!(bench.recover().unwrap().is_nothing());
        }
    }
}

#[test]
fn old_content_is_kept_when_an_outsider_takes_its_place_before_recovery() {
    let mut bench = Bench::new();
    std::fs::write(bench.path("a"), "old\n").unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (content, backup) = bench.backup("a");
    landing.keep(content, backup);
    landing.remove(&bench.lower, &path("a"), bench.stamp("a")).unwrap();
    std::mem::forget(landing.promise(Epilogue::default()).unwrap().apply().unwrap());
    std::fs::write(bench.path("a"), "somebody's\n").unwrap();
    assert_eq!(bench.recover().unwrap().foreign, [path("a")]);
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "somebody's\n");
    let backups = bench.store().backups().unwrap();
    assert_eq!(bench.store().content(backups[0].digest).unwrap().unwrap(), b"old\n");
}

/// A landing of `new` over `a`, staged with its backup.
fn replacement(bench: &Bench) -> Landing<'_> {
    std::fs::write(bench.path("a"), "old\n").unwrap();
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let (file, meta) = (bench.file("new"), bench.lower.stat(&path("new")).unwrap().unwrap());
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (content, backup) = bench.backup("a");
    landing.keep(content, backup);
    let new = NewContent::File { file: &file, like: &file, meta };
    landing.place(&bench.lower, &path("a"), Some(&bench.meta("a")), &new).unwrap();
    landing
}

/// The same, promised and applied.
fn applied(bench: &Bench) -> super::journal::landing::Applied<'_> {
    let applied = replacement(bench).promise(Epilogue::default()).unwrap().apply().unwrap();
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "new\n");
    applied
}

fn kept(bench: &Bench) -> Vec<String> {
    let backups = bench.store().backups().unwrap();
    let contents = backups.iter().map(|kept| bench.store().content(kept.digest).unwrap().unwrap());
    let mut contents: Vec<String> = contents.map(|content| String::from_utf8(content).unwrap()).collect();
    contents.sort();
    contents
}

fn temporary_names(bench: &Bench) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap());
    entries.filter(|entry| super::is_temp_name(&entry.file_name())).map(|entry| entry.path()).collect()
}

#[test]
fn what_somebody_puts_in_place_of_what_landed_outlives_its_undoing() {
    let bench = Bench::new();
    let applied = applied(&bench);
    std::fs::write(bench.path("theirs"), "somebody's\n").unwrap();
    std::fs::rename(bench.path("theirs"), bench.path("a")).unwrap();
    drop(applied);
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "somebody's\n");
    assert_eq!(kept(&bench), ["old\n"]);
    assert!(temporary_names(&bench).is_empty());
}

#[test]
fn what_somebody_writes_into_what_landed_outlives_its_undoing() {
    let bench = Bench::new();
    let applied = applied(&bench);
    std::fs::write(bench.path("a"), "somebody's, after it\n").unwrap();
    drop(applied);
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "somebody's, after it\n");
    assert_eq!(kept(&bench), ["old\n"]);
}

#[test]
fn what_somebody_still_writes_into_what_is_replaced_is_a_backup() {
    let bench = Bench::new();
    let applied = applied(&bench);
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    std::fs::OpenOptions::new().append(true).open(waiting).unwrap().write_all(b"and more\n").unwrap();
    applied.finish().unwrap();
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "new\n");
    assert_eq!(kept(&bench), ["old\n", "old\nand more\n"]);
    let last = bench.store().events_since(0).unwrap().pop().unwrap();
    assert_eq!((last.event, last.path), (EventName::ExternalModified, Some(path("a"))));
    assert!(temporary_names(&bench).is_empty());
}

#[test]
fn what_is_made_where_a_removal_is_undone_stays_and_the_removed_is_a_backup() {
    let bench = Bench::new();
    std::fs::write(bench.path("a"), "old\n").unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    landing.remove(&bench.lower, &path("a"), bench.stamp("a")).unwrap();
    let applied = landing.promise(Epilogue::default()).unwrap().apply().unwrap();
    std::fs::write(bench.path("a"), "somebody's\n").unwrap();
    drop(applied);
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "somebody's\n");
    assert_eq!(kept(&bench), ["old\n"]);
}

/// The file `new` about to take the place of `a`.
fn promised(bench: &Bench) -> super::journal::landing::Promised<'_> {
    std::fs::write(bench.path("a"), "old\n").unwrap();
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let (content, backup) = bench.backup("a");
    landing.keep(content, backup);
    let (a, new) = (path("a"), path("new"));
    let source = (&new, bench.stamp("new"));
    landing.take(&bench.lower, (&a, bench.stamp("a")), source, &bench.file("new")).unwrap();
    landing.promise(Epilogue::default()).unwrap()
}

/// What the project has at `a` and at `new`.
fn both(bench: &Bench) -> [Option<String>; 2] {
    ["a", "new"].map(|name| std::fs::read_to_string(bench.path(name)).ok())
}

fn two(a: &str, new: &str) -> [Option<String>; 2] {
    [a, new].map(|content| Some(content).filter(|content| !content.is_empty()).map(str::to_owned))
}

#[test]
fn a_file_that_takes_the_place_of_another_leaves_its_own_name_free() {
    let bench = Bench::new();
    promised(&bench).apply().unwrap().finish().unwrap();
    assert_eq!(both(&bench), two("new\n", ""));
    assert_eq!(kept(&bench), ["old\n"]);
}

#[test]
fn a_file_that_takes_the_place_of_another_goes_back_when_that_is_undone() {
    let bench = Bench::new();
    let applied = promised(&bench).apply().unwrap();
    drop(applied);
    assert_eq!(both(&bench), two("old\n", "new\n"));
    // Never begun, it was never away.
    drop(promised(&bench));
    assert_eq!(both(&bench), two("old\n", "new\n"));
    assert_eq!(kept(&bench), [""; 0]);
    // Who wrote to it meanwhile wrote to the path where it stood: it stays there.
    let applied = promised(&bench).apply().unwrap();
    std::fs::write(bench.path("a"), "new, and somebody's\n").unwrap();
    drop(applied);
    assert_eq!(both(&bench), two("new, and somebody's\n", ""));
    assert_eq!(kept(&bench), ["old\n"]);
}

#[test]
fn a_file_written_to_since_it_was_looked_at_does_not_take_the_place_of_another() {
    let bench = Bench::new();
    for changed in ["a", "new"] {
        let promised = promised(&bench);
        std::fs::write(bench.path(changed), "somebody's\n").unwrap();
        assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
        let expected = if changed == "a" { two("somebody's\n", "new\n") } else { two("old\n", "somebody's\n") };
        assert_eq!(both(&bench), expected);
    }
}

#[test]
fn what_somebody_puts_at_either_name_while_a_file_takes_the_place_of_another_stays() {
    let bench = Bench::new();
    let put = |name: &str| {
        std::fs::write(bench.path("theirs"), "somebody's\n").unwrap();
        std::fs::rename(bench.path("theirs"), bench.path(name)).unwrap();
    };
    let applied = promised(&bench).apply().unwrap();
    put("new");
    applied.finish().unwrap();
    assert_eq!(both(&bench), two("new\n", "somebody's\n"));
    assert_eq!(kept(&bench), ["old\n"]);
    let applied = promised(&bench).apply().unwrap();
    put("a");
    drop(applied);
    assert_eq!(both(&bench), two("somebody's\n", ""));
    assert_eq!(kept(&bench), ["old\n", "old\n"]);
}

#[test]
fn recovery_finishes_where_a_file_has_taken_the_place_of_another_and_else_leaves_both() {
    let mut bench = Bench::new();
    std::mem::forget(promised(&bench));
    assert_eq!(bench.recover().unwrap().undone, [path("a")]);
    assert_eq!(both(&bench), two("old\n", "new\n"));
    assert_eq!(kept(&bench), [""; 0]);
    std::mem::forget(promised(&bench).apply().unwrap());
    assert_eq!(both(&bench), two("new\n", "old\n"));
    assert_eq!(bench.recover().unwrap().finished, [path("a")]);
    assert_eq!(both(&bench), two("new\n", ""));
    assert_eq!(kept(&bench), ["old\n"]);
}

/// A landing of the file `new` in the place of the directory `d`, with `d/a` and `d/sub`, promised and applied.
fn supplanted(bench: &Bench) -> super::journal::landing::Applied<'_> {
    std::fs::create_dir_all(bench.path("d/sub")).unwrap();
    std::fs::write(bench.path("d/a"), "old\n").unwrap();
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let (file, meta) = (bench.file("new"), bench.lower.stat(&path("new")).unwrap().unwrap());
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let new = NewContent::File { file: &file, like: &file, meta };
    landing.supplant(&bench.lower, &path("d"), bench.stamp("d"), &new).unwrap();
    let (content, backup) = bench.backup("d/a");
    landing.keep(content, backup);
    landing.remove(&bench.lower, &path("d/a"), bench.stamp("d/a")).unwrap();
    landing.remove_dir(&bench.lower, &path("d/sub")).unwrap();
    let applied = landing.promise(Epilogue::default()).unwrap().apply().unwrap();
    assert_eq!(std::fs::read_to_string(bench.path("d")).unwrap(), "new\n");
    applied
}

#[test]
fn what_somebody_writes_in_a_directory_whose_place_is_taken_is_a_backup() {
    let bench = Bench::new();
    let applied = supplanted(&bench);
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    std::fs::write(waiting.join("sub/theirs"), "somebody's\n").unwrap();
    applied.finish().unwrap();
    assert_eq!(kept(&bench), ["old\n", "somebody's\n"]);
    let last = bench.store().events_since(0).unwrap().pop().unwrap();
    assert_eq!((last.event, last.path), (EventName::ExternalModified, Some(path("d/sub/theirs"))));
    assert!(temporary_names(&bench).is_empty());
}

#[test]
fn a_directory_whose_place_was_taken_comes_back_with_all_that_is_in_it() {
    let bench = Bench::new();
    let applied = supplanted(&bench);
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    std::fs::write(waiting.join("sub/theirs"), "somebody's\n").unwrap();
    drop(applied);
    assert_eq!(std::fs::read_to_string(bench.path("d/a")).unwrap(), "old\n");
    assert_eq!(std::fs::read_to_string(bench.path("d/sub/theirs")).unwrap(), "somebody's\n");
    assert!(temporary_names(&bench).is_empty());
}

#[test]
fn recovery_finishes_in_the_place_of_a_directory_and_keeps_what_somebody_wrote_in_it() {
    let mut bench = Bench::new();
    std::mem::forget(supplanted(&bench));
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    std::fs::write(waiting.join("sub/theirs"), "somebody's\n").unwrap();
    let recovered = bench.recover().unwrap();
    assert_eq!(recovered.finished, [path("d"), path("d/a")]);
    assert_eq!(std::fs::read_to_string(bench.path("d")).unwrap(), "new\n");
    assert_eq!(kept(&bench), ["old\n", "somebody's\n"]);
    assert!(temporary_names(&bench).is_empty());
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_wrote_in_a_directory_is_kept_by_its_path_though_nobody_came_to_look_into_it() {
    let mut bench = Bench::new();
    std::mem::forget(supplanted(&bench));
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    std::fs::write(waiting.join("sub/theirs"), "somebody's\n").unwrap();
    bench.decide_only();
    assert_eq!(kept(&bench), ["old\n"]);
    bench.recover().unwrap();
    assert_eq!(kept(&bench), ["old\n", "somebody's\n"]);
    let theirs = bench.store().backups().unwrap().into_iter().find(|backup| backup.path == path("d/sub/theirs"));
    assert!(theirs.is_some_and(|backup| backup.name.starts_with("theirs.")));
    assert!(temporary_names(&bench).is_empty());
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_wrote_to_a_file_that_goes_with_its_directory_is_kept_though_nobody_came_to_look_at_it() {
    let mut bench = Bench::new();
    std::mem::forget(supplanted(&bench));
    let [waiting] = temporary_names(&bench).try_into().unwrap();
    let files = std::fs::read_dir(&waiting).unwrap().map(|entry| entry.unwrap().path());
    let removed = files.filter(|file| file.is_file()).collect::<Vec<_>>();
    std::fs::write(&removed[0], "somebody's\n").unwrap();
    bench.decide_only();
    bench.recover().unwrap();
    assert_eq!(kept(&bench), ["old\n", "somebody's\n"]);
    assert!(temporary_names(&bench).is_empty());
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_is_kept_after_the_clock_has_jumped_back_is_the_newest() {
    let bench = Bench::new();
    let keep = |text: &str, created: i64| {
        std::fs::write(bench.path("a"), text).unwrap();
        let (content, backup) = bench.backup("a");
        let backup = Backup { created, ..backup };
        let kept =
            |tx: &sqlite::Transaction<'_>| content.commit(tx).and_then(|()| super::rows::backups::put(tx, &backup));
        bench.store().database.lock().write(kept).unwrap();
    };
    let (now, year) = (now_millis(), 365 * 86_400_000);
    keep("before the jump\n", now + year);
    keep("after it\n", now - 2);
    keep("latest\n", now - 1);
    let contents = |bench: &Bench| {
        let backups = bench.store().backups().unwrap().into_iter();
        let text = |backup: Backup| bench.store().content(backup.digest).unwrap().unwrap();
        backups.map(|backup| String::from_utf8(text(backup)).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(contents(&bench), ["latest\n", "after it\n", "before the jump\n"]);
    let limits = BackupLimits { age_max: None, per_path_max: 2, quota_bytes: u64::MAX };
    bench.store().purge(&limits, &Default::default()).unwrap();
    assert_eq!(contents(&bench), ["latest\n", "after it\n"]);
}

/// What is synced has a temporary name; what is not has none that could be left over.
#[test]
fn a_temporary_name_that_no_intent_tells_of_is_swept() {
    for (durability, names) in [(Durability::Synced, 1), (Durability::Cached, 0)] {
        let mut bench = Bench::new();
        std::fs::create_dir(bench.path("d")).unwrap();
        std::fs::write(bench.path("new"), "new\n").unwrap();
        let (file, meta) = (bench.file("new"), bench.lower.stat(&path("new")).unwrap().unwrap());
        let mut landing = Landing::new(bench.store(), durability);
        let new = NewContent::File { file: &file, like: &file, meta };
        landing.place(&bench.lower, &path("d/a"), None, &new).unwrap();
        std::mem::forget(landing);
        assert_eq!(std::fs::read_dir(bench.path("d")).unwrap().count(), names, "{durability:?}");
        assert_eq!(bench.recover().unwrap().swept, names, "{durability:?}");
        assert_eq!(std::fs::read_dir(bench.path("d")).unwrap().count(), 0, "{durability:?}");
    }
}

#[test]
fn a_long_log_is_moved_into_the_database_when_nobody_commits() {
    let bench = Bench::new();
    let contents: Vec<_> = (0..100u8).map(|number| StagedContent::of(vec![number; 60_000])).collect();
    contents.iter().for_each(|content| bench.store().keep_content(content).unwrap());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while bench.store().database.lock().log_bytes() > 0 {
        assert!(std::time::Instant::now() < until, "the log was never moved");
        std::thread::yield_now();
    }
    assert!(std::fs::metadata(bench.path(".fettle/fettle.db")).unwrap().len() > 6_000_000);
    assert_eq!(bench.store().content(contents[7].digest).unwrap().unwrap(), [7; 60_000]);
}

/// So much that the log is moved at once, while others commit.
#[test]
fn the_log_is_moved_while_somebody_commits_without_a_pause() {
    let mut bench = Bench::new();
    let contents = |round: u64| (0..20).map(move |number| format!("{round} {number}\n").repeat(3_000).into_bytes());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let (mut rounds, mut moved, mut before) = (0, 0, 0);
    while moved < 2 {
        assert!(std::time::Instant::now() < until, "the log was moved {moved} times in {rounds} rounds");
        contents(rounds).for_each(|bytes| bench.store().keep_content(&StagedContent::of(bytes)).unwrap());
        rounds += 1;
        let now = bench.store().database.lock().log_bytes();
        moved += u32::from(now < before);
        before = now;
    }
    bench.recover().unwrap();
    for bytes in (0..rounds).flat_map(contents) {
        let kept = bench.store().content(StagedContent::of(bytes.clone()).digest).unwrap();
        assert!(kept.is_some_and(|kept| kept == bytes), "{}", String::from_utf8_lossy(&bytes[..10]));
    }
}

/// What is moved and not on disk is on disk in the log alone: it must not begin anew, whatever is committed afterwards.
#[test]
fn a_database_that_cannot_be_synced_keeps_its_log() {
    let (passed, told) = test_apart("store::tests::one_that_cannot_be_synced", (APART, "1"));
    assert!(passed && told.contains(WAS_THERE), "{told}");
}

/// Else a row that is durable could name content that a power cut has taken.
#[test]
fn what_is_synced_has_its_large_content_on_disk_before() {
    assert_passes_apart("store::tests::one_whose_content_cannot_be_synced", (CONTENT_APART, "1"));
}

#[test]
fn after_a_sync_of_the_log_that_failed_none_says_that_all_is_well() {
    assert_passes_apart("store::tests::one_whose_log_cannot_be_synced", (CONTENT_APART, "1"));
}

/// Not a test by itself, as that below.
#[test]
fn one_whose_log_cannot_be_synced() {
    if std::env::var_os(CONTENT_APART).is_none() {
        return;
    }
    let bench = Bench::new();
    bench.store().keep_content(&StagedContent::of(b"small\n".to_vec())).unwrap();
    let steps =
        Steps::watch(Trap::below(bench.path(".fettle/fettle.db-wal"), Calls::Syncing, 1, Fate::Fails(libc::EIO)))
            .unwrap();
    assert_eq!(bench.store().sync().unwrap_err().errno(), libc::EIO);
    assert!(matches!(bench.store().sync(), Err(Error::Halted(_))));
    assert_eq!(steps.failed(), 1);
}

const CONTENT_APART: &str = "FETTLE_CONTENT_NOT_SYNCED";

/// Not a test by itself, as that below.
#[test]
fn one_whose_content_cannot_be_synced() {
    if std::env::var_os(CONTENT_APART).is_none() {
        return;
    }
    let bench = Bench::new();
    std::fs::write(bench.path("large"), [7; 100_000]).unwrap();
    let trap = |at| Trap::below(bench.path(".fettle/content"), Calls::Syncing, at, Fate::Fails(libc::EIO));
    let steps = Steps::watch(trap(1)).unwrap();
    let kept = bench.store().stage_content(&bench.file("large")).unwrap();
    bench.store().keep_content(&kept).unwrap();
    assert_eq!(steps.failed(), 0, "keeping it syncs nothing");
    let inode = || bench.meta(&format!(".fettle/content/{}", kept.digest)).inode;
    let first = inode();
    bench.store().sync().unwrap();
    assert_eq!(steps.failed(), 1, "it is synced, and it could not be");
    assert_ne!(inode(), first, "what the kernel says of it from here on is not believed");
    assert_eq!(bench.store().content(kept.digest).unwrap().unwrap(), [7; 100_000]);
    assert_eq!(std::fs::read_dir(bench.path(".fettle/content")).unwrap().count(), 1, "the other copy alone");
}

#[test]
fn content_of_which_no_copy_can_be_synced_keeps_every_sync_from_its_promise() {
    assert_passes_apart("store::tests::one_whose_content_is_never_synced", (CONTENT_APART, "1"));
}

/// Not a test by itself, as that above.
#[test]
fn one_whose_content_is_never_synced() {
    if std::env::var_os(CONTENT_APART).is_none() {
        return;
    }
    let bench = Bench::new();
    std::fs::write(bench.path("large"), [7; 100_000]).unwrap();
    let steps =
        Steps::watch(Trap::below(bench.path(".fettle/content"), Calls::Syncing, 1, Fate::AllFail(libc::EIO))).unwrap();
    let stage = || bench.store().stage_content(&bench.file("large")).unwrap();
    bench.store().keep_content(&stage()).unwrap();
    for _ in 0..2 {
        let failed = bench.store().sync().unwrap_err().to_string();
        assert_eq!(failed, "sync kept content: Input/output error (os error 5)");
        stage();
    }
    assert_eq!(steps.failed(), 3, "the file is not asked for again, but each copy is");
    assert_eq!(std::fs::read_dir(bench.path(".fettle/content")).unwrap().count(), 1, "no copy is left");
    assert!(!bench.store().is_halted());
    steps.relent();
    bench.store().sync().unwrap();
    assert_eq!(bench.store().content(stage().digest).unwrap().unwrap(), [7; 100_000]);
}

/// The same of what is not synced by a descriptor of its own; of a file where its name is asked for.
#[test]
fn what_is_synced_has_the_upper_entries_it_tells_of_on_disk_before() {
    for kind in ["directory", "fifo", "symlink", "file"] {
        assert_passes_apart("store::tests::one_whose_upper_entries_cannot_be_synced", (STAGE_APART, kind));
    }
}

const STAGE_APART: &str = "FETTLE_STAGE_NOT_SYNCED";

/// Not a test by itself, as that above.
#[test]
fn one_whose_upper_entries_cannot_be_synced() {
    let Some(kind) = std::env::var_os(STAGE_APART) else { return };
    let bench = Bench::new();
    let store = bench.store();
    let steps =
        Steps::watch(Trap::below(bench.path(".fettle/stage"), Calls::Syncing, 1, Fate::Fails(libc::EIO))).unwrap();
    match kind.to_str() {
        Some("directory") => store.create_upper_node(FileKind::Directory, 0).unwrap().keep(),
        Some("fifo") => store.create_upper_node(FileKind::Fifo, 0).unwrap().keep(),
        Some("symlink") => store.create_upper_symlink("target".as_ref()).unwrap().keep(),
        _ => store.create_upper(0o644).unwrap().new.keep(),
    };
    assert_eq!(steps.failed(), 0, "making it syncs nothing");
    let synced = if kind == "file" { store.sync_names() } else { store.sync() };
    assert_eq!(synced.unwrap_err().to_string(), "sync the names of upper content: Input/output error (os error 5)");
    assert_eq!(steps.failed(), 1);
    assert!(matches!(store.sync(), Err(Error::Halted(_))), "the kernel would say that all is well");
}

const APART: &str = "FETTLE_DATABASE_NOT_SYNCED";
const WAS_THERE: &str = "the log was kept";

/// Not a test by itself: what the test above starts in a process of its own, all of whose threads have the fault.
#[test]
fn one_that_cannot_be_synced() {
    if std::env::var_os(APART).is_none() {
        return;
    }
    let mut bench = Bench::new();
    let steps =
        Steps::watch(Trap::below(bench.path(".fettle/fettle.db"), Calls::Syncing, 1, Fate::Fails(libc::EIO))).unwrap();
    let mut kept = Vec::new();
    let mut keep = |bench: &Bench| {
        let content = StagedContent::of(format!("{}\n", kept.len()).repeat(10_000).into_bytes());
        bench.store().keep_content(&content).unwrap();
        kept.push(content.digest);
    };
    // Without a pause, so that there is always something that the first round has not copied: the sync after it fails.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !bench.store().is_halted() {
        assert!(std::time::Instant::now() < until, "nothing was synced");
        keep(&bench);
    }
    assert_eq!(steps.failed(), 1);
    // What may still be written is, and nothing is moved any more, though the log is looked at.
    for _ in 0..3 {
        keep(&bench);
        // Nobody polls for it: that nothing comes is all there is to see.
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let log = bench.path(".fettle/fettle.db-wal");
    let length = || std::fs::metadata(&log).unwrap().len();
    let length_before = length();
    assert!(length_before > 32 << 20, "{length_before}");
    bench.store().checkpoint().unwrap();
    bench.store = None;
    assert_eq!(length(), length_before);
    bench.recover().unwrap();
    kept.iter().for_each(|digest| assert!(bench.store().content(*digest).unwrap().is_some()));
    eprintln!("{WAS_THERE}");
}

#[test]
fn after_a_power_cut_temporary_names_are_looked_for_everywhere_once() {
    let mut bench = Bench::new();
    std::fs::create_dir_all(bench.path("deep/down")).unwrap();
    let temp = bench.path("deep/down/.fettle-tmp-0123456789abcdef");
    std::fs::write(&temp, "half of something\n").unwrap();
    bench.store().note_boot().unwrap();
    assert_eq!(bench.recover().unwrap().swept, 0, "after a kill the database knows of all names");
    bench.machine_starts_again();
    assert_eq!(bench.recover().unwrap().swept, 1);
    assert!(!temp.exists());
    std::fs::write(&temp, "somebody's\n").unwrap();
    assert!(bench.recover().unwrap().is_nothing());
}

/// The copy is not on disk, and the place in which it would stand is.
#[test]
fn large_content_that_is_kept_already_stays_the_file_it_is_unless_it_is_damaged() {
    let bench = Bench::new();
    std::fs::write(bench.path("large"), [7; 100_000]).unwrap();
    let keep = || bench.store().stage_content(&bench.file("large")).unwrap().digest;
    let digest = keep();
    let kept = bench.path(&format!(".fettle/content/{digest}"));
    let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&kept).unwrap());
    let first = inode();
    assert_eq!((keep(), inode()), (digest, first));
    for damage in [vec![], vec![8; 100_000]] {
        std::fs::write(&kept, damage).unwrap();
        assert_eq!(keep(), digest);
        assert_eq!(std::fs::read(&kept).unwrap(), [7; 100_000]);
    }
    assert_eq!(std::fs::read_dir(bench.path(".fettle/content")).unwrap().count(), 1, "no copy is left");
}

#[test]
fn content_that_a_power_cut_has_emptied_goes_when_nothing_needs_it() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let content = |name: &str, byte| {
        std::fs::write(bench.path(name), [byte; 100_000]).unwrap();
        let (content, backup) = bench.backup(name);
        bench.store().keep_content(&content).unwrap();
        (content.digest, backup)
    };
    let ((whole, _), (unneeded, _), (backup, named)) = (content("a", 1), content("b", 2), content("c", 3));
    bench.store().database.lock().write(|tx| super::rows::backups::put(tx, &named).map(|_| ())).unwrap();
    let file = |digest: Digest| bench.path(&format!(".fettle/content/{digest}"));
    let files = [whole, unneeded, backup].map(file);
    files[1..].iter().for_each(|file| drop(File::create(file).unwrap()));
    let kept = |bench: &Bench| [whole, unneeded, backup].map(|digest| bench.store().has_content(digest).unwrap());
    bench.recover().unwrap();
    assert_eq!(kept(&bench), [true; 3], "the power was not cut");
    bench.machine_starts_again();
    bench.recover().unwrap();
    assert_eq!(kept(&bench), [true, false, true]);
    assert_eq!(files.map(|file| file.exists()), [true, false, true]);
}

/// By which a process knows that it is to be run.
const SYNC_FAILS: &str = "FETTLE_SYNC_FAILS";
const THE_FIRST_SYNC_FAILS: &str = "store::tests::the_boot_stays_noted_where_the_project_cannot_be_synced";

#[test]
fn what_was_removed_is_on_disk_before_the_boot_is_forgotten() {
    assert_passes_apart(THE_FIRST_SYNC_FAILS, (SYNC_FAILS, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn the_boot_stays_noted_where_the_project_cannot_be_synced() {
    if std::env::var_os(SYNC_FAILS).is_none() {
        return;
    }
    let bench = Bench::new();
    bench.store().note_boot().unwrap();
    let (calls, area, fate) = (Calls::Syncing, Area::Anywhere, Fate::Fails(libc::EIO));
    let steps = Steps::watch(Trap { calls, area, at: 1, fate, reserve: None }).unwrap();
    bench.store().forget_boot(&bench.lower).unwrap();
    assert_eq!(steps.failed(), 1, "the project's file system is synced");
    assert_eq!(bench.store().setting("boot").unwrap(), crate::sys::process::boot_id());
    bench.store().forget_boot(&bench.lower).unwrap();
    assert_eq!(bench.store().setting("boot").unwrap(), None);
}

/// By which a process knows which calls below fail.
const SWEEPS_UNDER: &str = "FETTLE_SWEEPS_UNDER";

#[test]
fn a_name_that_recovery_cannot_remove_goes_when_it_can() {
    for calls in ["reading", "changing"] {
        assert_passes_apart("store::tests::a_sweep_cannot_look_or_remove", (SWEEPS_UNDER, calls));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_sweep_cannot_look_or_remove() {
    let (calls, errno) = match std::env::var(SWEEPS_UNDER).as_deref() {
        Ok("reading") => (Calls::Reading, libc::EIO),
        Ok(_) => (Calls::Changing, libc::EACCES),
        Err(_) => return,
    };
    let mut bench = Bench::new();
    let temp = bench.path(&format!("d/{TEMP_PREFIX}left"));
    std::fs::create_dir(bench.path("d")).unwrap();
    std::fs::write(&temp, "new\n").unwrap();
    bench.store().announce(&path("d")).unwrap();
    let steps = Steps::watch(Trap::below(bench.path("d"), calls, 1, Fate::AllFail(errno))).unwrap();
    assert!(bench.recover().unwrap().is_nothing(), "the start does not fail by it");
    assert!(steps.failed() > 0 && temp.exists());
    steps.relent();
    assert_eq!(bench.recover().unwrap().swept, 1);
    assert!(!temp.exists());
    assert!(bench.recover().unwrap().is_nothing());
}

/// By which a process knows in which directory of `d` one name stays, if not in `d`.
const SWEEPS_PAST: &str = "FETTLE_SWEEPS_PAST";

#[test]
fn one_name_that_cannot_be_removed_keeps_no_other() {
    for within in ["", &format!("{TEMP_PREFIX}dir")] {
        assert_passes_apart("store::tests::a_sweep_cannot_remove_the_first_name", (SWEEPS_PAST, within));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_sweep_cannot_remove_the_first_name() {
    let Ok(within) = std::env::var(SWEEPS_PAST) else { return };
    let mut bench = Bench::new();
    let dir = bench.path("d").join(within);
    std::fs::create_dir_all(&dir).unwrap();
    (0..6).for_each(|name| std::fs::write(dir.join(format!("{TEMP_PREFIX}{name}")), "new\n").unwrap());
    bench.store().announce(&path("d")).unwrap();
    let steps = Steps::watch(Trap::below(dir.clone(), Calls::Changing, 1, Fate::Fails(libc::EPERM))).unwrap();
    bench.recover().unwrap();
    assert_eq!((steps.failed(), std::fs::read_dir(&dir).unwrap().count()), (1, 1));
    bench.recover().unwrap();
    assert_eq!(std::fs::read_dir(bench.path("d")).unwrap().count(), 0);
}

#[test]
fn a_run_is_remembered_until_the_machine_is_started_again() {
    let mut bench = Bench::new();
    let (own, began) = (std::process::id(), crate::sys::process::began(std::process::id()).unwrap());
    let known = |bench: &Bench| (bench.store().has_had_runs().unwrap(), bench.store().noted_runners().unwrap());
    assert_eq!(known(&bench), (false, Vec::new()));
    bench.store().note_run(own).unwrap();
    bench.store().note_run(1).unwrap();
    bench.store().forget_run(1).unwrap();
    bench.recover().unwrap();
    assert_eq!(known(&bench), (true, vec![(own, began)]));
    let outside = crate::sys::namespace::own(crate::sys::namespace::Kind::Mount).unwrap();
    assert!(bench.store().noted_outside().unwrap().contains(&outside));
    // A number is another namespace's, perhaps, once nobody is left who was there.
    let another_began = "UPDATE setting SET value = '1 0' WHERE key GLOB 'outside *'";
    bench.store().database.lock().write(|tx| Ok(tx.execute(another_began, [])?)).unwrap();
    assert_eq!(bench.store().noted_outside().unwrap(), Vec::<u64>::new());
    bench.machine_starts_again();
    assert_eq!(known(&bench), (false, Vec::new()));
    assert_eq!(bench.store().noted_outside().unwrap(), Vec::<u64>::new());
    bench.store().note_run(own).unwrap();
    assert_eq!(known(&bench), (true, vec![(own, began)]));
    bench.store().forget_run(own).unwrap();
    assert_eq!(known(&bench), (true, Vec::new()));
}

#[test]
fn a_row_whose_content_a_power_cut_took_hides_nothing() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let upper = bench.store().create_upper(0o600).unwrap().new.keep();
    let base = Base::NOTHING;
    let row = UpperRow { id: upper, names: vec![path("a")], what: What::File, base, held: None, looks: None };
    bench.store().save_upper(&row).unwrap();
    bench.store().drop_upper_file(upper);
    // As a clean end does, after which the disk still has of rows and files what it has.
    bench.store().forget_boot(&bench.lower).unwrap();
    assert!(bench.recover().unwrap().is_nothing(), "nothing has landed, and the power was not cut");
    assert_eq!(bench.store().load_upper().unwrap(), [row]);
    bench.machine_starts_again();
    assert_eq!(bench.recover().unwrap().gone, [path("a")]);
    assert!(bench.store().load_upper().unwrap().is_empty());
}

#[test]
fn an_id_that_a_power_cut_took_is_known_and_leads_on_from_those_before_it() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let [before, lost] = ["be000000", "10500000"].map(|id| ChangeId::parse(id).unwrap());
    let row = UpperRow {
        id: bench.store().reserve_upper(),
        names: vec![path("a")],
        what: What::File,
        base: Base::NOTHING,
        held: Some(held(&lost)),
        looks: None,
    };
    let superseded = (before, path("a"), super::Fate::Superseded { by: lost.clone() });
    let epilogue = Epilogue { save: vec![row], verdicts: vec![superseded], ..Epilogue::default() };
    bench.store().record_epilogue(&epilogue).unwrap();
    bench.machine_starts_again();
    assert_eq!(bench.recover().unwrap().gone, [path("a")]);
    assert_eq!(bench.store().verdict(&lost).unwrap().unwrap().fate, super::Fate::Lost);
    let (faults, _) = bench.store().check(&bench.lower, &Scope::default()).unwrap();
    assert_eq!(faults, []);
}

#[test]
fn what_is_written_to_a_change_while_it_is_decided_on_outlives_a_kill() {
    use super::Fate;

    let decided = [(Fate::Discarded, true), (Fate::Discarded, false), (Fate::Applied, true), (Fate::Removed, true)];
    for (fate, writes) in decided {
        let mut bench = Bench::new();
        bench.recover().unwrap();
        let UpperFile { new, mut file } = bench.store().create_upper(0o644).unwrap();
        file.write_all(b"held\n").unwrap();
        let change = ChangeId::parse("be000000").unwrap();
        let held = Held { new: Some(Digest::of(b"held\n")), ..held(&change) };
        let (id, names, base) = (new.keep(), vec![path("a")], Base::NOTHING);
        let row = UpperRow { id, names, what: What::File, base, held: Some(held), looks: None };
        bench.store().save_upper(&row).unwrap();
        let landing = Landing::new(bench.store(), Durability::Cached);
        let verdicts = vec![(change.clone(), path("a"), fate.clone())];
        let epilogue = Epilogue { drop: vec![id], verdicts, ..Epilogue::default() };
        std::mem::forget(landing.promise(epilogue).unwrap());
        if writes {
            file.write_all(b"more\n").unwrap();
        }
        bench.recover().unwrap();
        let stays = writes && fate != Fate::Removed;
        let left = UpperRow { held: None, ..row };
        assert_eq!(bench.store().load_upper().unwrap(), Vec::from_iter(stays.then_some(left)), "{fate:?} {writes}");
        let found = std::fs::read_to_string(bench.path(&format!(".fettle/stage/{id}"))).ok();
        assert_eq!(found.as_deref(), stays.then_some("held\nmore\n"));
        assert_eq!(bench.store().verdict(&change).unwrap().unwrap().fate, fate);
        assert!(bench.recover().unwrap().is_nothing());
    }
}

/// As when a change is discarded while another name of its file lands.
#[test]
fn a_row_that_was_dropped_before_another_landing_is_recorded_stays_dropped() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let [gone, stays] = [(); 2].map(|()| bench.store().reserve_upper());
    [gone, stays].iter().for_each(|id| bench.save_new_row(*id));
    let as_landed = |row: UpperRow| UpperRow { base: Base::of(super::Below::of(Some(&bench.meta("a")))), ..row };
    std::fs::write(bench.path("a"), "landed\n").unwrap();
    let rows: Vec<_> = bench.store().load_upper().unwrap().into_iter().map(as_landed).collect();
    let mut epilogue = Epilogue::default();
    epilogue.update_others(rows.clone());
    bench.store().remove_upper(gone).unwrap();
    bench.store().record_epilogue(&epilogue).unwrap();
    assert_eq!(bench.store().load_upper().unwrap(), rows[1..]);
}

/// A new file of which nothing is told beside its id.
fn held(id: &ChangeId) -> Held {
    Held {
        id: id.clone(),
        kind: ChangeKind::Create,
        reasons: vec![Reason::Size],
        insertions: 0,
        deletions: 0,
        old_lines: 0,
        hunks: 0,
        new: None,
        makes: None,
        looks: None,
        created: 0,
        renewed: 0,
        writer: None,
        since_session: None,
        detail: None,
        operation: None,
    }
}

#[test]
fn upper_files_that_come_or_go_are_no_orphans_and_those_that_stay_for_nothing_are() {
    let bench = Bench::new();
    let orphans = || {
        let (faults, _) = bench.store().check(&bench.lower, &Scope::default()).unwrap();
        faults.into_iter().map(|fault| fault.about).collect::<Vec<_>>()
    };
    let new = bench.store().create_upper(0o600).unwrap().new;
    assert_eq!(orphans(), [""; 0], "no row tells of it yet");
    let id = new.keep();
    assert_eq!(orphans(), [format!("stage/{id}")]);
    let intent =
        journal::intent::Intent { epilogue: Epilogue { drop: vec![id], ..Epilogue::default() }, ..Default::default() };
    bench.store().record_soon(0, intent);
    bench.store().drop_upper_file(id);
    assert!(bench.path(&format!(".fettle/stage/{id}")).exists(), "it goes when that is recorded");
    let mut database = bench.store().database.lock();
    database.record_waiting().unwrap();
    let unneeded = database.waiting.take_unneeded();
    drop(database);
    assert_eq!(orphans(), [""; 0], "another thread is about to remove it");
    unneeded.into_iter().for_each(|id| bench.store().remove_upper_file(id));
    assert!(!bench.path(&format!(".fettle/stage/{id}")).exists());
    drop(bench.store().create_upper(0o600).unwrap());
    assert!(bench.store().in_passing.lock().is_empty());
}

#[test]
fn a_state_of_another_version_is_refused_and_left_as_it_is() {
    for version in [5, 8] {
        let mut bench = Bench::new();
        bench.store = None;
        let state = bench.file(".fettle");
        let open = || crate::sys::sqlite::open_database(std::os::fd::AsFd::as_fd(&state), "fettle.db").unwrap();
        open().execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
        let refused = Store::open(&bench.lower, &Location::default()).err().unwrap().to_string();
        assert!(refused.contains(&format!("is of version {version}, this program knows 7")), "{refused}");
        assert_eq!(open().query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap(), version);
    }
}

/// As a daemon of version 6 leaves it that died in the middle of a session.
#[test]
fn a_state_of_the_version_before_is_taken_over() {
    let mut bench = Bench::new();
    bench.store = None;
    let state = bench.file(".fettle");
    let database = crate::sys::sqlite::open_database(std::os::fd::AsFd::as_fd(&state), "fettle.db").unwrap();
    let was = r#"{"path":{"path":"a"},"state":"Nothing","fresh":true,"from":null,"went":null}"#;
    database
        .execute_batch(&format!(
            "DROP TABLE moved_dir;
             CREATE TABLE moved_dir (id INTEGER PRIMARY KEY, old BLOB NOT NULL, new BLOB NOT NULL) STRICT;
             INSERT INTO moved_dir (old, new) VALUES (CAST('b' AS BLOB), CAST('c' AS BLOB));
             INSERT INTO anchor (path, row) VALUES (CAST('a' AS BLOB), '{was}');
             PRAGMA user_version = 6;"
        ))
        .unwrap();
    drop(database);
    let path = RelPath::parse(b"a").unwrap();
    let known = Known { had: Some(AnchorState::Nothing), fresh: true, ..Known::default() };
    let moved = MovedDir { origin: path.clone(), place: DirPlace::Nowhere };
    bench.recover().unwrap();
    assert_eq!(bench.store().load_moved_dirs().unwrap(), []);
    bench.store().record_epilogue(&Epilogue { moved_dirs: vec![moved.clone()], ..Epilogue::default() }).unwrap();
    bench.recover().unwrap();
    assert_eq!(bench.store().load_moved_dirs().unwrap(), [moved]);
    assert_eq!(bench.store().load_anchors().unwrap(), [Anchor { path, known }]);
}

#[test]
fn more_backups_than_are_read_at_once_are_told_newest_first_and_purged() {
    let bench = Bench::new();
    std::fs::write(bench.path("f"), "once\n").unwrap();
    let (content, backup) = bench.backup("f");
    bench.store().keep_content(&content).unwrap();
    let made: Vec<i64> = (0..300).map(|number| backup.created - 1000 * (number * 7 % 300)).collect();
    for created in &made {
        let backup = Backup { created: *created, ..backup.clone() };
        bench.store().database.lock().write(|tx| super::rows::backups::put(tx, &backup).map(|_| ())).unwrap();
    }
    let told = |bench: &Bench| -> Vec<i64> {
        bench.store().backups().unwrap().into_iter().map(|backup| backup.created).collect()
    };
    let mut newest_first = made;
    newest_first.sort_by(|a, b| b.cmp(a));
    assert_eq!(told(&bench), newest_first);
    let limits = BackupLimits { age_max: None, per_path_max: 100, quota_bytes: u64::MAX };
    assert_eq!(bench.store().purge(&limits, &Default::default()).unwrap(), 200);
    assert_eq!(told(&bench), newest_first[..100]);
    assert!(bench.store().has_content(content.digest).unwrap(), "those that are left need it");
}

#[test]
fn backups_of_one_moment_have_names_of_their_own_dated_on() {
    let bench = Bench::new();
    std::fs::write(bench.path("a"), "content\n").unwrap();
    // Called like a backup of it from another day: it sorts among them.
    std::fs::write(bench.path("a.20010909_014640_000"), "a namesake\n").unwrap();
    let moment = 1_000_000_000_000;
    let put = |name: &str, created: i64| {
        let (content, backup) = bench.backup(name);
        let backup = Backup { created, ..backup };
        bench
            .store()
            .database
            .lock()
            .write(|tx| content.commit(tx).and_then(|()| super::rows::backups::put(tx, &backup)))
            .unwrap()
    };
    assert_eq!(put("a.20010909_014640_000", moment + 20_000), "a.20010909_014640_000.20010909_014700_000");
    let names: Vec<String> = (0..300).map(|_| put("a", moment)).collect();
    let expected = (0..300).map(|later| Backup::name_for(&path("a"), moment + later));
    assert_eq!(names, expected.collect::<Vec<_>>());
    // A gap is filled only where it is asked for.
    assert_eq!(put("a", moment + 500), Backup::name_for(&path("a"), moment + 500));
    assert_eq!(put("a", moment + 400), Backup::name_for(&path("a"), moment + 400));
    assert_eq!(put("a", moment), Backup::name_for(&path("a"), moment + 501));
}

#[test]
fn a_directory_of_which_the_permissions_alone_were_recorded_is_read() {
    let onto = Some(DirLooks { mode: 0o755, uid: 7, gid: 7 });
    let renamed = |onto| Effect::Renamed { from: path("a"), onto };
    let told = serde_json::to_string(&renamed(onto)).unwrap();
    assert_eq!(serde_json::from_str::<Effect>(&told).unwrap(), renamed(onto));
    let older = told.replace(r#"{"mode":493,"uid":7,"gid":7}"#, "493");
    assert_ne!(older, told);
    let rest = DirLooks { mode: 0o755, uid: 0, gid: 0 };
    assert_eq!(serde_json::from_str::<Effect>(&older).unwrap(), renamed(Some(rest)));
    let nothing = serde_json::to_string(&renamed(None)).unwrap();
    assert_eq!(serde_json::from_str::<Effect>(&nothing).unwrap(), renamed(None));
}

#[test]
fn a_directory_that_somebody_makes_first_is_his() {
    let mut bench = Bench::new();
    let looks = DirLooks { mode: 0o755, uid: 0, gid: 0 };
    std::fs::create_dir(bench.path("d")).unwrap();
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    let made = landing.make_dir(&bench.lower, &path("d"), looks);
    assert_eq!(made.unwrap_err().errno(), libc::EEXIST);
    drop(landing);
    assert!(bench.path("d").is_dir());
    bench.recover().unwrap();
    assert!(bench.path("d").is_dir(), "no note is left");
}

#[test]
fn content_that_a_purge_has_taken_before_its_landing_is_named_is_not_promised() {
    let bench = Bench::new();
    std::fs::write(bench.path("large"), [7; 100_000]).unwrap();
    let (content, backup) = bench.backup("large");
    let kept = bench.path(&format!(".fettle/content/{}", content.digest));
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    landing.keep(content, backup);
    std::fs::remove_file(kept).unwrap();
    let promised = landing.promise(Epilogue::default()).map(drop);
    assert_eq!(promised.unwrap_err().to_string(), "keep 100000 bytes of content: entity not found");
    assert!(bench.store().load_intents().unwrap().is_empty());
}

#[test]
fn content_kept_by_name_stays_where_something_is_based_on_it() {
    for is_base in [true, false] {
        let bench = Bench::new();
        let UpperFile { new, mut file } = bench.store().create_upper(0o644).unwrap();
        let content = [7; 100_000];
        file.write_all(&content).unwrap();
        let (id, digest) = (new.keep(), Digest::of(&content));
        let kept = bench.store().stage_by_name(id, digest, content.len() as u64).unwrap().unwrap();
        bench.store().keep_content(&kept).unwrap();
        if is_base {
            let base = Base { content: Some(Kept { digest, symlink: false }), ..Base::NOTHING };
            let (id, names) = (bench.store().reserve_upper(), vec![path("a")]);
            let row = UpperRow { id, names, what: What::Whiteout, base, held: None, looks: None };
            bench.store().save_upper(&row).unwrap();
        }
        bench.store().unstage(id, digest).unwrap();
        assert_eq!(bench.store().has_content(digest).unwrap(), is_base);
        assert_eq!(bench.path(&format!(".fettle/content/{digest}")).exists(), is_base);
    }
}

#[test]
fn content_kept_by_name_takes_the_place_of_what_is_damaged_alone() {
    let bench = Bench::new();
    let UpperFile { new, mut file } = bench.store().create_upper(0o644).unwrap();
    let content = [7; 100_000];
    file.write_all(&content).unwrap();
    let (id, digest) = (new.keep(), Digest::of(&content));
    let kept = bench.path(&format!(".fettle/content/{digest}"));
    let keep_by_name = || bench.store().stage_by_name(id, digest, content.len() as u64).unwrap().unwrap();
    let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    std::fs::write(&kept, content).unwrap();
    let sound = inode(&kept);
    keep_by_name();
    assert_eq!(inode(&kept), sound);
    for damage in [vec![], vec![8; 100_000]] {
        std::fs::remove_file(&kept).unwrap();
        std::fs::write(&kept, damage).unwrap();
        keep_by_name();
        assert_eq!(inode(&kept), inode(&bench.path(&format!(".fettle/stage/{id}"))));
        assert_eq!(std::fs::read(&kept).unwrap(), content);
    }
    assert_eq!(std::fs::read_dir(bench.path(".fettle/content")).unwrap().count(), 1, "no name is left");
}

/// A place in memory is on another.
#[test]
fn content_is_not_kept_by_name_across_file_systems() {
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else { return };
    let mut bench = Bench::new();
    let location = Location { stage: Some(elsewhere.path().to_owned()), ..Location::default() };
    bench.store = Some(Store::open(&bench.lower, &location).unwrap());
    let UpperFile { new, mut file } = bench.store().create_upper(0o644).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    let kept = bench.store().stage_by_name(new.keep(), Digest::of(&[7; 100_000]), 100_000).unwrap();
    assert!(kept.is_none());
}

#[test]
fn a_holder_is_noted_wherever_it_is_mounted() {
    let bench = Bench::new();
    for mountpoint in ["/view", "/\u{fffd}"] {
        let note = HolderNote { pid: 7, mountpoint: Some(mountpoint.to_owned()) };
        bench.store().write_holder(&note).unwrap();
        assert_eq!(holder_note(&bench.lower, &Location::default()), Some(note));
    }
}

/// Whoever gave up would end the review, or refuse a person for no reason.
#[test]
fn a_command_without_a_mount_is_waited_for_and_a_daemon_is_not() {
    for (mountpoint, is_waited_for) in [(None, true), (Some("/view".to_owned()), false)] {
        let bench = Bench::new();
        bench.store().write_holder(&HolderNote { pid: 7, mountpoint }).unwrap();
        let take = || Lock::take(&bench.lower, &Location::default());
        let held = take().unwrap();
        let taken = std::thread::scope(|threads| {
            let taking = threads.spawn(take);
            // This polls: the one that waits has long given up, or will not.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            drop(held);
            taking.join().unwrap()
        });
        assert_eq!(taken.is_ok(), is_waited_for, "{taken:?}");
    }
}

const AS_NOBODY: &str = "FETTLE_STORE_AS_NOBODY";

#[test]
fn who_is_refused_by_modes_finds_them_as_they_were() {
    for test in ["a_landing_is_let_go_that_may_not_look", "modes_outlive_a_kill", "modes_outlive_two_who_open"] {
        assert_passes_as_nobody(&format!("store::tests::{test}"), (AS_NOBODY, "1"));
    }
}

/// In a process that the test above has started. What works there are no tests by themselves.
fn becomes_nobody() -> bool {
    std::env::var_os(AS_NOBODY).is_some_and(|_| become_nobody().map(|()| true).unwrap())
}

#[test]
fn a_landing_is_let_go_that_may_not_look() {
    if !becomes_nobody() {
        return;
    }
    let bench = Bench::new();
    let promised = deletion_of_the_only_file(&bench).promise(Epilogue::default()).unwrap();
    let give_mode = |mode| std::fs::set_permissions(bench.path("d"), Permissions::from_mode(mode)).unwrap();
    give_mode(0);
    drop(promised);
    give_mode(0o755);
    assert_eq!(bench.store().halted(), None, "nothing has changed");
    assert!(bench.store().load_intents().unwrap().is_empty());
}

#[test]
fn modes_outlive_a_kill() {
    if !becomes_nobody() {
        return;
    }
    for mode in [0o444, 0] {
        for at in 1.. {
            let mut bench = Bench::new();
            let id = bench.store().create_upper(0o600).unwrap().new.keep();
            let name = bench.path(&format!(".fettle/stage/{id}"));
            std::fs::set_permissions(&name, Permissions::from_mode(mode)).unwrap();
            bench.save_new_row(id);
            let trap = Trap::below(bench.path(".fettle/stage"), Calls::Changing, at, Fate::Killed);
            let ended = apart(|| {
                let _steps = Steps::watch(trap).unwrap();
                bench.store().open_upper(id).map_or(1, |_| 0)
            });
            bench.recover().unwrap();
            assert_eq!(std::fs::metadata(&name).unwrap().permissions().mode() & 0o777, mode, "killed at {at}");
            assert_eq!(std::fs::read_dir(bench.path(".fettle/stage")).unwrap().count(), 1);
            match ended.unwrap() {
                Ended::Killed => {}
                Ended::Exited(status) => {
                    assert!(status == 0 && at > 4, "a note, two modes, and the note goes");
                    break;
                }
            }
        }
    }
}

#[test]
fn modes_outlive_two_who_open() {
    if !becomes_nobody() {
        return;
    }
    let bench = Bench::new();
    let id = bench.store().create_upper(0o600).unwrap().new.keep();
    let name = bench.path(&format!(".fettle/stage/{id}"));
    std::fs::set_permissions(&name, Permissions::from_mode(0o444)).unwrap();
    let open_often = || (0..500).for_each(|_| drop(bench.store().open_upper(id).unwrap()));
    std::thread::scope(|threads| {
        threads.spawn(open_often);
        open_often();
    });
    assert_eq!(std::fs::metadata(&name).unwrap().permissions().mode() & 0o777, 0o444);
}

#[test]
fn what_recovery_decides_is_told_by_what_decides_it() {
    for applies in [true, false] {
        let mut bench = Bench::new();
        let promised = deletion_of_the_only_file(&bench).promise(Epilogue::default()).unwrap();
        match applies {
            true => std::mem::forget(promised.apply().unwrap()),
            false => std::mem::forget(promised),
        }
        bench.decide_only();
        bench.recover().unwrap();
        let told = bench.store().events_since(0).unwrap();
        let told: Vec<_> = told.iter().map(|event| (event.event, event.message.as_deref())).collect();
        let became =
            if applies { "its interrupted landing was finished" } else { "its interrupted landing was undone" };
        assert_eq!(told, [(EventName::Recovered, Some(became))]);
    }
}

/// Else the next entry would come in its place.
#[test]
fn an_entry_that_an_intent_alone_tells_of_keeps_its_number() {
    let mut bench = Bench::new();
    let (id, names, base) = (bench.store().reserve_upper(), vec![path("a")], Base::NOTHING);
    let row = UpperRow { id, names, what: What::Whiteout, base, held: None, looks: None };
    let epilogue = Epilogue { save: vec![row], ..Epilogue::default() };
    std::mem::forget(Landing::new(bench.store(), Durability::Cached).promise(epilogue).unwrap());
    bench.recover().unwrap();
    assert_eq!(bench.store().load_upper().unwrap().len(), 1);
    assert_ne!(bench.store().reserve_upper(), id);
}

/// Gives what root has made to an ordinary user; what another user has made stays his. Returns whose it is.
fn give_away(path: PathBuf) -> (u32, u32) {
    const SOMEBODY: u32 = 65534;
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    let given = std::fs::metadata(&path).unwrap();
    (given.uid(), given.gid())
}

/// Else its owner could not read what root's session has kept.
#[test]
fn what_is_kept_belongs_to_whom_the_state_belongs_to() {
    let bench = Bench::new();
    let owner = give_away(bench.path(".fettle"));
    std::fs::write(bench.path("a"), [7; 100_000]).unwrap();
    let kept = bench.store().stage_content(&bench.file("a")).unwrap();
    let kept = bench.meta(&format!(".fettle/content/{}", kept.digest));
    assert_eq!(((kept.uid, kept.gid), kept.mode), (owner, 0o600));
}

/// By which a process knows that it is to be run.
const UNREADABLE: &str = "FETTLE_STORE_UNREADABLE";

#[test]
fn an_upper_file_that_cannot_be_read_is_a_fault_beside_others() {
    assert_passes_apart("store::tests::a_check_cannot_read_an_upper_file", (UNREADABLE, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_check_cannot_read_an_upper_file() {
    if std::env::var_os(UNREADABLE).is_none() {
        return;
    }
    let bench = Bench::new();
    let id = bench.store().create_upper(0o600).unwrap().new.keep();
    bench.save_new_row(id);
    std::fs::write(bench.path(".fettle/content/left"), "left\n").unwrap();
    let file = bench.path(&format!(".fettle/stage/{id}"));
    std::fs::write(&file, "new\n").unwrap();
    let _steps = Steps::watch(Trap::below(file, Calls::Reading, 1, Fate::AllFail(libc::EIO))).unwrap();
    let (faults, _) = bench.store().check(&bench.lower, &Scope::default()).unwrap();
    let found: Vec<_> = faults.iter().map(|fault| (fault.kind, fault.about.as_str())).collect();
    assert_eq!(found, [(FaultKind::Upper, "a"), (FaultKind::Orphan, "content/left")]);
    assert!(faults[0].message.contains("Input/output error"), "{}", faults[0].message);
}

/// By which a process knows that it is to be run.
const UMASK: &str = "FETTLE_STORE_UMASK";

#[test]
fn directories_made_anew_are_like_the_one_above_whoever_makes_them() {
    assert_passes_apart("store::tests::a_landing_makes_directories_under_an_umask", (UMASK, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_landing_makes_directories_under_an_umask() {
    if std::env::var_os(UMASK).is_none() {
        return;
    }
    rustix::process::umask(crate::sys::Mode::from_raw_mode(0o077));
    let bench = Bench::new();
    for (dir, above, made) in [("d", 0o700, 0o755), ("shared", 0o2775, 0o2755)] {
        std::fs::create_dir(bench.path(dir)).unwrap();
        let (uid, gid) = give_away(bench.path(dir));
        std::fs::set_permissions(bench.path(dir), Permissions::from_mode(above)).unwrap();
        let mut landing = Landing::new(bench.store(), Durability::Cached);
        landing.make_parents(&bench.lower, &path(&format!("{dir}/e/f/g"))).unwrap();
        for name in ["e", "e/f"] {
            let found = DirLooks::of(&bench.meta(&format!("{dir}/{name}")));
            assert_eq!(found, DirLooks { mode: made, uid, gid }, "{dir}/{name}");
        }
    }
}

#[test]
fn what_cannot_be_swept_keeps_nobody_from_starting() {
    let mut bench = Bench::new();
    let theirs = ["content/old", "stage/7/old"].map(|name| bench.path(&format!(".fettle/{name}")));
    theirs.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    assert!(bench.recover().unwrap().is_nothing());
    assert!(theirs.iter().all(|dir| dir.is_dir()));
    let (faults, _) = bench.store().check(&bench.lower, &Scope::default()).unwrap();
    let found: Vec<_> = faults.iter().map(|fault| (fault.kind, fault.about.as_str())).collect();
    assert_eq!(found, [(FaultKind::Orphan, "content/old"), (FaultKind::Orphan, "stage/7")]);
}

#[test]
fn room_that_was_kept_for_a_long_log_is_given_back_once_the_log_is_short() {
    let bench = Bench::new();
    let room = || bench.meta(".fettle/reserve").size;
    let least = room();
    bench.store().reserve.cover(1 << 20);
    assert_eq!(room(), least + (1 << 20));
    // As a call that comes while the log is being moved.
    bench.store().checkpointer.look();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while room() > least {
        assert!(std::time::Instant::now() < until, "it was never given back");
        std::thread::yield_now();
    }
}
