//! A planted or damaged journal: recovery refuses or follows it, and whatever it follows, nothing outside the project
//! changes and no content of the project is lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fettlefs::store::{Location, STATE_DIR_NAME, Store};
use fettlefs::sys::tree::Tree;

const FILES: [(&str, &str); 4] =
    [("project/a", "a\n"), ("project/b", "b\n"), ("project/d/c", "c\n"), ("outside/x", "not the project's\n")];

pub fn check(bytes: &[u8]) {
    let Ok(row) = std::str::from_utf8(bytes) else { return };
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a scratch directory");
    for (path, content) in FILES {
        let path = scratch.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
        fs::write(path, content).expect("a file");
    }
    std::os::unix::fs::symlink("../outside", scratch.path().join("project/out")).expect("a way out");
    let project = scratch.path().join("project");
    let lower = Tree::open(&project).expect("the project");
    drop(Store::open(&lower, &Location::default()).expect("an empty store"));
    plant(&project, row);

    let Ok(store) = Store::open(&lower, &Location::default()) else { return };
    // Refused is well: the next start sees the same journal.
    let recovered = store.recover(&lower);
    let outside = fs::read_dir(scratch.path().join("outside")).expect("it is there").count();
    assert_eq!(outside, 1, "something was put outside the project");
    assert_eq!(fs::read_to_string(scratch.path().join("outside/x")).ok().as_deref(), Some(FILES[3].1));
    let mut kept = contents(&project);
    for backup in store.backups().expect("backups") {
        kept.extend(store.content(backup.digest).ok().flatten());
    }
    for (path, content) in &FILES[..3] {
        assert!(kept.contains(content.as_bytes()), "{path} is lost, {recovered:?}");
    }
}

fn plant(project: &Path, row: &str) {
    let database = project.join(STATE_DIR_NAME).join("fettle.db");
    let database = rusqlite::Connection::open(database).expect("the database");
    database.execute("INSERT INTO intent (row) VALUES (?1)", [row]).expect("an intent");
}

fn contents(dir: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() && entry.file_name() != STATE_DIR_NAME {
            found.extend(contents(&entry.path()));
        } else if kind.is_file() {
            found.extend(fs::read(entry.path()));
        }
    }
    found
}
