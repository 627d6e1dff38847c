//! What an fsync asks of the disk. Each try in a process of its own, in which one sync of the project fails.

use super::*;
use crate::sys::steps::{Area, Calls, Fate, Steps, Trap, test_apart};

/// By which a process knows what the third sync of the project answers.
const THIRD: &str = "FETTLE_DURABLE_THIRD";
const THE_THIRD_FAILS: &str = "overlay::tests::durable::the_third_sync_fails";

#[test]
fn an_fsync_of_what_has_landed_syncs_its_directory_whoever_asks() {
    let (passed, told) = test_apart(THE_THIRD_FAILS, (THIRD, &libc::EIO.to_string()));
    assert!(passed, "{told}");
}

#[test]
fn a_directory_that_may_not_be_read_is_synced_with_all_else() {
    let (passed, told) = test_apart(THE_THIRD_FAILS, (THIRD, &libc::EACCES.to_string()));
    assert!(passed, "{told}");
}

/// Not a test by itself: what those above start.
#[test]
fn the_third_sync_fails() {
    let Some(errno) = std::env::var(THIRD).ok().map(|errno| errno.parse().unwrap()) else { return };
    let bench = Bench::new();
    bench.put("d/untouched", "old\n");
    bench.put("d/landed", &lines(50));
    bench.save("d/landed", &changed(50, 2));
    assert_eq!(bench.lower("d/landed"), Some(changed(50, 2)));
    let [untouched, landed] = ["d/untouched", "d/landed"].map(|path| bench.open_to_read(bench.node(path).unwrap()));

    let area = Area::Below { dir: bench.lower_path("d"), but: None };
    let steps =
        Steps::watch(Trap { calls: Calls::Syncing, area, at: 3, fate: Fate::Fails(errno), reserve: None }).unwrap();
    bench.view().fsync(untouched, false).unwrap();
    let synced = bench.view().fsync(landed, false);
    assert_eq!(steps.failed(), 1, "the file that is untouched, the one that has landed, its directory");
    match errno {
        libc::EACCES => synced.unwrap(),
        _ => assert_eq!(
            synced.unwrap_err().to_string(),
            "sync the directory of d/landed: Input/output error (os error 5)"
        ),
    }
}

#[test]
fn what_has_no_directory_any_more_is_synced_without_it() {
    let bench = Bench::new();
    bench.put("d/a", &lines(50));
    bench.save("d/a", &changed(50, 2));
    let handle = bench.open_to_read(bench.node("d/a").unwrap());
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    bench.view().fsync(handle, false).unwrap();
    bench.view().release(handle).unwrap();
}

const NAMES: &str = "FETTLE_DURABLE_NAMES";

/// Nobody may have synced the file itself.
#[test]
fn an_fsync_of_a_directory_syncs_the_names_of_what_is_held_in_it() {
    let (passed, told) = test_apart("overlay::tests::durable::names_of_upper_content_fail", (NAMES, "1"));
    assert!(passed, "{told}");
}

/// Not a test by itself: what the one above starts.
#[test]
fn names_of_upper_content_fail() {
    if std::env::var_os(NAMES).is_none() {
        return;
    }
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.save("d/a", &changed(100, 60));
    let area = Area::Below { dir: bench.lower_path(".fettle/stage"), but: None };
    let trap = Trap { calls: Calls::Syncing, area, at: 1, fate: Fate::Fails(libc::EIO), reserve: None };
    let steps = Steps::watch(trap).unwrap();
    let dir = bench.node("d").unwrap();
    let synced = bench.view().sync_dir(dir).unwrap_err().to_string();
    assert_eq!(synced, "sync the names of upper content: Input/output error (os error 5)");
    bench.view().sync_dir(dir).unwrap();
    assert_eq!(steps.failed(), 1);
}
