//! The database under a real covering mount. These tests need root and fail without it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};

use super::{Database, open_database};

const NAME: &str = "fettle.db";

/// A directory, a descriptor of it, and a tmpfs mounted over its path.
struct Covered {
    dir: File,
    cover: PathBuf,
    _temp: tempfile::TempDir,
}

impl Covered {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let cover = temp.path().join("state");
        fs::create_dir(&cover).unwrap();
        let dir = File::open(&cover).unwrap();
        rustix::mount::mount("cover", &cover, "tmpfs", MountFlags::empty(), None).expect("these tests need root");
        Self { dir, cover, _temp: temp }
    }

    fn open(&self) -> Database {
        open_database(self.dir.as_fd(), NAME).unwrap()
    }

    fn names_below(&self) -> Vec<String> {
        names(&descriptor_path(&self.dir))
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        assert_eq!(names(&self.cover), Vec::<String>::new(), "something was created in the cover");
        rustix::mount::unmount(&self.cover, UnmountFlags::DETACH).unwrap();
    }
}

fn descriptor_path(dir: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}/.", dir.as_raw_fd()))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn fill(database: &Database, rows: usize) {
    database.execute_batch("CREATE TABLE IF NOT EXISTS t (text TEXT); BEGIN").unwrap();
    for _ in 0..rows {
        database.execute("INSERT INTO t VALUES (hex(randomblob(500)))", ()).unwrap();
    }
    database.execute_batch("COMMIT").unwrap();
}

fn rows(database: &Database) -> i64 {
    database.query_row("SELECT count(*) FROM t", (), |row| row.get(0)).unwrap()
}

#[test]
fn a_database_below_a_mount_is_created_written_and_opened_again() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 1000);
    assert_eq!(covered.names_below(), [NAME, "fettle.db-wal"]);
    drop(database);
    assert_eq!(covered.names_below(), [NAME]);
    assert_eq!(rows(&covered.open()), 1000);
}

#[test]
fn a_checkpoint_reaches_the_file_below() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 1000);
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(())).unwrap();
    let below = descriptor_path(&covered.dir);
    assert_eq!(fs::metadata(below.join("fettle.db-wal")).unwrap().len(), 0);
    assert!(fs::metadata(below.join(NAME)).unwrap().len() > 1_000_000);
}

#[test]
fn what_a_killed_process_committed_is_there_and_the_rest_is_not() {
    let (killed, next) = (Covered::new(), Covered::new());
    let database = killed.open();
    fill(&database, 1000);
    database.execute_batch("BEGIN; DELETE FROM t").unwrap();
    // A kill leaves the files as they are: that is what a copy of them shows.
    for name in killed.names_below() {
        fs::copy(descriptor_path(&killed.dir).join(&name), descriptor_path(&next.dir).join(&name)).unwrap();
    }
    let recovered = next.open();
    assert_eq!(rows(&recovered), 1000);
    fill(&recovered, 1);
    assert_eq!(rows(&recovered), 1001);
}

#[test]
fn rolled_back_and_vacuumed_without_a_file_elsewhere() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 1000);
    database.execute_batch("BEGIN; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT; VACUUM").unwrap();
    assert_eq!(rows(&database), 1000);
    assert_eq!(covered.names_below(), [NAME, "fettle.db-wal"]);
}

#[test]
fn the_file_and_its_log_are_private() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 1);
    for name in covered.names_below() {
        let mode = fs::metadata(descriptor_path(&covered.dir).join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// Uncovered, for whoever knows no other path.
#[test]
fn another_process_is_told_that_the_database_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let ask = || {
        let mut asking = Command::new("sqlite3");
        let asked = asking.arg(dir.path().join(NAME)).arg("SELECT count(*) FROM t").output().expect("sqlite3 is there");
        String::from_utf8([asked.stdout, asked.stderr].concat()).unwrap()
    };
    let database = open_database(File::open(dir.path()).unwrap().as_fd(), NAME).unwrap();
    fill(&database, 1);
    assert!(ask().contains("database is locked"), "{}", ask());
    let mover = database.log_mover().unwrap();
    mover.copy().unwrap();
    assert!(ask().contains("database is locked"), "the log is moved: {}", ask());
    drop(mover);
    assert!(ask().contains("database is locked"), "who moved it is gone: {}", ask());
    fill(&database, 1);
    drop(database);
    assert_eq!(ask(), "2\n");
}

#[test]
fn a_link_in_place_of_the_database_is_not_followed() {
    let covered = Covered::new();
    std::os::unix::fs::symlink("/etc/passwd", descriptor_path(&covered.dir).join(NAME)).unwrap();
    open_database(covered.dir.as_fd(), NAME).unwrap_err();
}

#[test]
fn a_name_is_one_component() {
    let covered = Covered::new();
    for name in ["", "a/b", "/etc/passwd", "a\0b"] {
        open_database(covered.dir.as_fd(), name).unwrap_err();
    }
}

#[test]
fn the_log_is_counted_and_not_moved_before_somebody_asks() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 6000);
    assert!(database.log_bytes() > 6_000_000, "{}", database.log_bytes());
    let below = descriptor_path(&covered.dir);
    assert!(fs::metadata(below.join(NAME)).unwrap().len() < 100_000);
    database.log_mover().unwrap().copy().unwrap();
    database.note_log_moved();
    assert!(fs::metadata(below.join(NAME)).unwrap().len() > 6_000_000);
    fill(&database, 1);
    assert!(database.log_bytes() < 100_000, "{}", database.log_bytes());
}

/// What somebody else finds who looks at the files at this moment, as recovery does after a kill.
fn rows_found_after_a_kill_at_this_moment(covered: &Covered) -> i64 {
    let copy = Covered::new();
    for name in covered.names_below() {
        fs::copy(descriptor_path(&covered.dir).join(&name), descriptor_path(&copy.dir).join(&name)).unwrap();
    }
    rows(&copy.open())
}

#[test]
fn a_commit_is_in_the_log_when_it_returns() {
    let covered = Covered::new();
    let database = covered.open();
    for (commit, size) in [1, 1, 7, 1, 4000, 1].into_iter().enumerate() {
        fill(&database, size);
        assert_eq!(rows_found_after_a_kill_at_this_moment(&covered), rows(&database), "commit {commit}");
        if commit == 2 {
            // From here on the log is written from its beginning again.
            database.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())).unwrap();
        }
    }
}

#[test]
fn who_commits_while_the_log_is_moved_loses_nothing() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 2000);
    let mover = database.log_mover().unwrap();
    let database = std::thread::scope(|threads| {
        let committing = threads.spawn(|| {
            (0..500).for_each(|_| fill(&database, 1));
            database
        });
        let mut has_moved = false;
        while !committing.is_finished() {
            // A round finds nothing to move where all was moved and the next commit is about to begin the log anew.
            has_moved |= mover.copy().unwrap() > 0;
            mover.sync().unwrap();
        }
        assert!(has_moved);
        committing.join().unwrap()
    });
    let committed = database.log_bytes();
    assert_eq!(mover.copy().unwrap(), committed, "nobody commits any more");
    fill(&database, 1);
    assert!(database.log_bytes() < committed, "the log begins anew");
    assert_eq!(rows_found_after_a_kill_at_this_moment(&covered), 2501);
    assert_eq!(rows(&database), 2501);
    let sound: String = database.query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[test]
fn a_log_that_is_to_be_kept_outlasts_who_moved_a_part_of_it() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 100);
    let mover = database.log_mover().unwrap();
    mover.copy().unwrap();
    fill(&database, 1);
    let length = || fs::metadata(descriptor_path(&covered.dir).join("fettle.db-wal")).map_or(0, |log| log.len());
    let before = length();
    database.keep_log().unwrap();
    drop((mover, database));
    assert_eq!(length(), before);
    assert_eq!(rows(&covered.open()), 101);
    assert_eq!(length(), 0, "moved when it was closed");
}

#[test]
fn what_was_rolled_back_is_not_in_the_log_and_what_comes_after_it_is() {
    let covered = Covered::new();
    let database = covered.open();
    fill(&database, 3);
    // Less memory than it writes: some of it is in the log before it ends.
    database.execute_batch("PRAGMA cache_size = 10; BEGIN").unwrap();
    for _ in 0..500 {
        database.execute("INSERT INTO t VALUES (hex(randomblob(4000)))", ()).unwrap();
    }
    assert_eq!(rows(&database), 503);
    database.execute_batch("ROLLBACK").unwrap();
    assert_eq!(rows_found_after_a_kill_at_this_moment(&covered), 3);
    fill(&database, 2);
    assert_eq!(rows_found_after_a_kill_at_this_moment(&covered), 5);
    drop(database);
    assert_eq!(rows(&covered.open()), 5);
}
