//! What is done is done, and told so, whatever fails after it. Each try in a process of its own, in which calls fail.

use std::sync::Arc;

use super::*;
use crate::overlay::review::discard::Writing;
use crate::store::{Backup, Below, Durability, Epilogue, Landing};
use crate::sys::steps::{Area, Calls, Ended, Fate, PANICKED, Steps, Trap, apart, assert_passes_apart};

/// By which a process knows what becomes of the file, and whether there is room left.
const WRITTEN_UNDER: &str = "FETTLE_DONE_WRITTEN_UNDER";

/// A write that came while a file landed or a change was discarded, on a full disk: where even the room that is kept for that
/// has gone, the next write tells, and none is in memory alone.
#[test]
fn what_is_written_to_what_goes_from_upper_is_known_by_the_next_write() {
    for under in ["landed room", "landed", "discarded room", "discarded"] {
        assert_passes_apart("overlay::tests::done::a_full_disk_takes_no_row", (WRITTEN_UNDER, under));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_full_disk_takes_no_row() {
    let Ok(under) = std::env::var(WRITTEN_UNDER) else { return };
    let has_room = under.ends_with("room");
    let mut bench = Bench::new();
    bench.put("a", &lines(50));
    let handle = bench.open("a", libc::O_WRONLY).unwrap();
    bench.view().write(handle, 0, b"first").unwrap();
    bench.view().store().record_rows().unwrap();
    let path = RelPath::parse(b"a").unwrap();
    let row = {
        let state = bench.view().state.lock();
        state.uppers.get(state.uppers.at(&path).unwrap()).unwrap().row.clone()
    };
    bench.view().store().remove_upper(row.id).unwrap();
    let shown = bench.view().what_lower_shows(&path, None).unwrap();

    let state = bench.lower_path(".fettle");
    let reserve = has_room.then(|| state.join("reserve"));
    // Not what is written to the file itself: that has its room already.
    let area = Area::Below { but: Some(state.join("stage")), dir: state };
    let steps =
        Steps::watch(Trap { calls: Calls::Growing, area, at: 1, fate: Fate::AllFail(libc::ENOSPC), reserve }).unwrap();
    match under.starts_with("landed") {
        true => bench.view().row_dropped(&mut bench.view().state.lock(), row.id),
        false => bench.view().back_to_lower(&row, |_| false, shown, Writing::GoesOn),
    }
    assert!(steps.failed() > 0);
    let written = bench.view().write(handle, 0, b"again");
    match has_room {
        true => assert_eq!(written.unwrap(), 5),
        false => assert_eq!(written.unwrap_err().code(), libc::ENOSPC),
    }
    steps.relent();
    bench.view().write(handle, 0, b"again").unwrap();

    bench.remount();
    assert_eq!(bench.reasons(), [Reason::Interrupted]);
    assert!(bench.read("a").unwrap().starts_with("again"));
}

/// By which a process knows what is undone, and which of its calls fails.
const RESTORED_UNDER: &str = "FETTLE_DONE_RESTORED_UNDER";
/// How a process ends whose undoing was refused, went through, or met no fault any more.
const REFUSED: u8 = 0;
const DONE: u8 = 1;
const PASSED: u8 = 2;

/// Whatever keeps what is held over one path from going on against what that has again.
#[test]
fn what_is_restored_says_so() {
    for under in ["reading rollback", "growing rollback", "reading chmod", "growing chmod"] {
        assert_passes_apart("overlay::tests::done::a_call_of_a_restoring_fails", (RESTORED_UNDER, under));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_call_of_a_restoring_fails() {
    let Ok(under) = std::env::var(RESTORED_UNDER) else { return };
    let calls = if under.starts_with("reading") { Calls::Reading } else { Calls::Growing };
    let restore = if under.ends_with("chmod") { undo_chmod_with_fault } else { roll_back_with_fault };
    let met = (1..).map(|at| apart(|| restore(calls, at)).unwrap());
    let met: Vec<Ended> = met.take_while(|ended| *ended != Ended::Exited(PASSED)).collect();
    assert!(met.contains(&Ended::Exited(DONE)), "something is read and written after it: {met:?}");
    assert!(!met.contains(&Ended::Exited(PANICKED)), "{met:?}");
}

fn roll_back_with_fault(calls: Calls, at: u64) -> u8 {
    let bench = Bench::new();
    ["a", "b"].iter().for_each(|path| bench.put(path, &lines(100)));
    ["a", "b"].iter().for_each(|path| bench.save(path, &changed(100, 2)));
    ["a", "b"].iter().for_each(|path| bench.save(path, &changed(100, 60)));
    let backups: Vec<Backup> = bench.view().store().backups().unwrap();
    let based_on = || bench.held().into_iter().map(|row| row.base.below);
    let before: Vec<Below> = based_on().collect();

    let steps = Steps::watch(Trap::below(bench.dir.clone(), calls, at, Fate::Fails(libc::EIO))).unwrap();
    let rolled_back = bench.view().rollback(&backups, &RollbackHow::default());
    steps.relent();
    if steps.failed() == 0 {
        return PASSED;
    }
    let below = ["a", "b"].map(|path| bench.lower(path));
    let is_stopped = bench.view().fault().is_some();
    let goes_on = based_on().zip(&before).any(|(now, before)| now != *before);
    std::mem::forget(bench);
    let is_all = |content: String| below.iter().all(|below| below.as_ref() == Some(&content));
    match rolled_back {
        Ok(_) => {
            assert!(is_all(lines(100)), "call {at}");
            assert!(goes_on || is_stopped, "call {at}: one fault keeps one of them from that");
            DONE
        }
        Err(err) => {
            assert!(is_all(changed(100, 2)) || is_stopped, "call {at}: {}", err.message);
            REFUSED
        }
    }
}

fn undo_chmod_with_fault(calls: Calls, at: u64) -> u8 {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let before = bench.mode("a");
    bench.set("a", Some(0o600), None);
    let operation = bench.latest();
    bench.save("a", &changed(100, 60));
    assert_eq!(bench.held().len(), 1);

    let steps = Steps::watch(Trap::below(bench.dir.clone(), calls, at, Fate::Fails(libc::EIO))).unwrap();
    let undone = bench.undo(&operation);
    steps.relent();
    if steps.failed() == 0 {
        return PASSED;
    }
    let (is_undone, is_stopped) = (bench.mode("a") == before, bench.view().fault().is_some());
    std::mem::forget(bench);
    match undone {
        Ok(_) => {
            assert!(is_undone, "call {at}");
            DONE
        }
        Err(err) => {
            assert!(!is_undone || is_stopped, "call {at}: {}", err.message);
            REFUSED
        }
    }
}

#[test]
fn a_discard_that_is_done_says_so() {
    let bench = Bench::new();
    bench.put("d", &lines(100));
    bench.unlink("d");
    bench.mkdir("d");
    bench.node("d").unwrap();
    let mut landing = Landing::new(bench.view().store(), Durability::Synced);
    let mut epilogue = Epilogue::default();
    let mut dropping = bench.view().dropping(vec![bench.id_of("d")]).unwrap();
    bench.view().stage_dropped(&mut dropping, &Review::default(), &mut landing, &mut epilogue).unwrap();
    bench.view().look_below(&mut dropping).unwrap();
    let landed = landing.promise(epilogue).unwrap().apply().unwrap().finish().unwrap();
    // What it looked like nobody can tell any more.
    let stage = std::fs::read_dir(bench.lower_path(".fettle/stage")).unwrap().next().unwrap().unwrap();
    std::fs::remove_dir(stage.path()).unwrap();
    let outcomes = bench.view().dropped(dropping, &landed.backups, landed.operation);
    assert_eq!(outcomes.len(), 1);
    assert_eq!(bench.read("d"), Some(lines(100)));
}

/// By which a process knows what is undone.
const UNDONE_UNSYNCED: &str = "FETTLE_DONE_UNDONE_UNSYNCED";

#[test]
fn the_kernel_is_told_of_what_is_undone_and_cannot_be_synced() {
    for done in ["rename", "chmod"] {
        assert_passes_apart("overlay::tests::done::what_is_undone_is_not_synced", (UNDONE_UNSYNCED, done));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn what_is_undone_is_not_synced() {
    let Ok(done) = std::env::var(UNDONE_UNSYNCED) else { return };
    let bench = Bench::new();
    bench.put("a", &lines(10));
    let (before, paths) = (bench.mode("a"), if done == "rename" { &["a", "b"][..] } else { &["a"] });
    match done.as_str() {
        "rename" => bench.rename("a", "b"),
        _ => bench.set("a", Some(0o600), None),
    }
    let told = Arc::new(ToldKernel::default());
    bench.view().observe(Box::new(Arc::clone(&told)));
    let (calls, fate) = (Calls::Syncing, Fate::AllFail(libc::EIO));
    Steps::watch(Trap { calls, area: Area::Anywhere, at: 1, fate, reserve: None }).unwrap();
    bench.undo(&bench.latest()).unwrap_err();
    assert_eq!((bench.lower_names(), bench.mode("a")), (vec!["a".to_owned()], before));
    assert!(bench.view().fault().is_some());
    let told = told.paths.lock();
    assert!(paths.iter().all(|path| told.contains(&RelPath::parse(path.as_bytes()).unwrap())), "{told:?}");
    std::mem::forget(bench);
}
