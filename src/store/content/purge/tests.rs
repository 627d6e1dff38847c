use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use super::*;
use crate::store::{Base, Location, UpperRow, What};
use crate::sys::steps::{Area, Calls, Fate, Steps, Trap, assert_passes_apart};
use crate::sys::tree::Tree;

/// By which a process knows that it is to be run.
const PURGES_WHERE_FULL: &str = "FETTLE_PURGES_WHERE_FULL";

/// Nothing but a hang takes so long.
const HANG: Duration = Duration::from_secs(60);

#[test]
fn a_purge_and_who_keeps_content_on_a_full_disk_do_not_wait_for_each_other() {
    let test = "store::content::purge::tests::somebody_notes_a_use_in_the_room_that_a_purge_waits_for";
    assert_passes_apart(test, (PURGES_WHERE_FULL, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn somebody_notes_a_use_in_the_room_that_a_purge_waits_for() {
    if std::env::var_os(PURGES_WHERE_FULL).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lower = Tree::open(dir.path()).unwrap();
    let store = Arc::new(Store::open(&lower, &Location::default()).unwrap());
    let digest = Digest::of(b"unneeded");
    // Something waits to be recorded, which needs room.
    let (id, names, base) = (store.reserve_upper(), vec![RelPath::parse(b"a").unwrap()], Base::NOTHING);
    let row = UpperRow { id, names, what: What::File, base, held: None, looks: None };
    store.database.lock().waiting.push_row(row);
    let steps = Arc::new(fill(dir.path()));
    let (ended, ends) = mpsc::channel();
    let in_room = {
        let (store, steps, ended) = (Arc::clone(&store), Arc::clone(&steps), ended.clone());
        std::thread::spawn(move || {
            let mut tries = 0;
            let noted = store.vitally(|| {
                tries += 1;
                if tries == 1 {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOSPC)).doing(|| "write".to_owned());
                }
                let (purging, before) = (Arc::clone(&store), steps.failed());
                let ended = ended.clone();
                std::thread::spawn(move || {
                    purging.drop_content(&[digest], Instant::now()).expect_err("it is full");
                    ended.send(()).unwrap();
                });
                // Then it waits for the room.
                while steps.failed() == before {
                    std::thread::yield_now();
                }
                store.note_use(digest);
                Ok(())
            });
            noted.unwrap();
            ended.send(()).unwrap();
        })
    };
    for _ in 0..2 {
        ends.recv_timeout(HANG).expect("one waits for the other");
    }
    in_room.join().unwrap();
}

fn fill(dir: &Path) -> Steps {
    let area = Area::Below { dir: dir.to_owned(), but: None };
    Steps::watch(Trap { calls: Calls::Growing, area, at: 1, fate: Fate::AllFail(libc::ENOSPC), reserve: None }).unwrap()
}

#[test]
fn a_purge_is_due_when_a_sixteenth_of_the_quota_has_been_kept() {
    let dir = tempfile::tempdir().unwrap();
    let lower = Tree::open(dir.path()).unwrap();
    let store = Store::open(&lower, &Location::default()).unwrap();
    let limits = BackupLimits { age_max: None, per_path_max: 100, quota_bytes: 16 << 20 };
    let (due, is_due) = mpsc::channel();
    std::thread::scope(|threads| {
        let store = &store;
        threads.spawn(move || due.send(store.wait_for_purge(&limits)).unwrap());
        store.purging.note_kept(1, (1 << 20) - 1);
        is_due.recv_timeout(Duration::from_millis(200)).expect_err("it is not much yet");
        store.purging.note_kept(1, 1);
        let waited = is_due.recv_timeout(HANG);
        store.end_purges();
        assert!(waited.expect("it is much"));
    });
}
