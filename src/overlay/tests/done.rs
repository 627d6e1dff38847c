//! What is done is done, and told so, whatever fails after it. Each try in a process of its own, in which calls fail.

use super::*;
use crate::store::{Backup, Below};
use crate::sys::steps::{Area, Calls, Ended, Fate, PANICKED, Steps, Trap, apart, test_apart};

/// By which a process knows whether there is room left.
const LANDED_UNDER: &str = "FETTLE_DONE_LANDED_UNDER";

/// A write that came while a file landed, on a full disk: where even the room that is kept for that has gone, the next write
/// tells, and none is in memory alone.
#[test]
fn what_is_written_while_a_file_lands_is_known_by_the_next_write() {
    for room in ["kept", "none"] {
        let (passed, told) = test_apart("overlay::tests::done::a_full_disk_takes_no_row", (LANDED_UNDER, room));
        assert!(passed, "{room}: {told}");
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_full_disk_takes_no_row() {
    let Ok(room) = std::env::var(LANDED_UNDER) else { return };
    let mut bench = Bench::new();
    bench.put("a", &lines(50));
    let handle = bench.open("a", libc::O_WRONLY).unwrap();
    bench.view().write(handle, 0, b"first").unwrap();
    bench.view().store().record_rows().unwrap();
    let id = bench.view().state.lock().uppers.at(&RelPath::parse(b"a").unwrap()).unwrap();
    bench.view().store().remove_upper(id).unwrap();

    let state = bench.lower_path(".fettle");
    let reserve = (room == "kept").then(|| state.join("reserve"));
    // Not what is written to the file itself: that has its room already.
    let area = Area::Below { but: Some(state.join("stage")), dir: state };
    let steps =
        Steps::watch(Trap { calls: Calls::Growing, area, at: 1, fate: Fate::AllFail(libc::ENOSPC), reserve }).unwrap();
    bench.view().row_dropped(&mut bench.view().state.lock(), id);
    assert!(steps.failed() > 0);
    let written = bench.view().write(handle, 0, b"again");
    match room.as_str() {
        "kept" => assert_eq!(written.unwrap(), 5),
        _ => assert_eq!(written.unwrap_err().code(), libc::ENOSPC),
    }
    steps.relent();
    bench.view().write(handle, 0, b"again").unwrap();

    bench.remount();
    assert_eq!(bench.reasons(), [Reason::Interrupted]);
    assert!(bench.read("a").unwrap().starts_with("again"));
}

/// By which a process knows which of the calls of a rollback fails.
const RESTORED_UNDER: &str = "FETTLE_DONE_RESTORED_UNDER";
/// How a process ends whose rollback was refused, went through, or met no fault any more.
const REFUSED: u8 = 0;
const DONE: u8 = 1;
const PASSED: u8 = 2;

/// Whatever keeps what is held over one path from going on against what that has again.
#[test]
fn a_rollback_that_is_done_says_so() {
    for calls in ["reading", "growing"] {
        let (passed, told) = test_apart("overlay::tests::done::a_call_of_a_rollback_fails", (RESTORED_UNDER, calls));
        assert!(passed, "{calls}: {told}");
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_call_of_a_rollback_fails() {
    let calls = match std::env::var(RESTORED_UNDER).as_deref() {
        Ok("reading") => Calls::Reading,
        Ok(_) => Calls::Growing,
        Err(_) => return,
    };
    let met = (1..).map(|at| apart(|| roll_back_with_fault(calls, at)).unwrap());
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

    let area = Area::Below { dir: bench.dir.clone(), but: None };
    let steps = Steps::watch(Trap { calls, area, at, fate: Fate::Fails(libc::EIO), reserve: None }).unwrap();
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
