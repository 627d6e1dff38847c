//! What an fsync asks of the disk. Each try in a process of its own, in which one sync of the project fails.

use super::*;
use crate::sys::steps::{Calls, Fate, Steps, Trap, assert_passes_apart};

/// By which a process knows what the third sync of the project answers.
const THIRD: &str = "FETTLE_DURABLE_THIRD";
const THE_THIRD_FAILS: &str = "overlay::tests::durable::the_third_sync_fails";

#[test]
fn an_fsync_of_what_has_landed_syncs_its_directory_whoever_asks() {
    assert_passes_apart(THE_THIRD_FAILS, (THIRD, &libc::EIO.to_string()));
}

#[test]
fn a_directory_that_may_not_be_read_is_synced_with_all_else() {
    assert_passes_apart(THE_THIRD_FAILS, (THIRD, &libc::EACCES.to_string()));
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

    let steps = Steps::watch(Trap::below(bench.lower_path("d"), Calls::Syncing, 3, Fate::Fails(errno))).unwrap();
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
    assert_passes_apart("overlay::tests::durable::names_of_upper_content_fail", (NAMES, "1"));
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
    let steps = Steps::watch(Trap::below(bench.lower_path(".fettle/stage"), Calls::Syncing, 1, Fate::Fails(libc::EIO)))
        .unwrap();
    let dir = bench.node("d").unwrap();
    let synced = bench.view().sync_dir(dir).unwrap_err().to_string();
    assert_eq!(synced, "sync the names of upper content: Input/output error (os error 5)");
    let again = bench.view().sync_dir(dir).unwrap_err().to_string();
    assert!(again.contains("nothing is written any more"), "{again}");
    assert_eq!(steps.failed(), 1);
}

const COPY: &str = "FETTLE_DURABLE_COPY";

/// Says to a test that it is that process.
const SAME_BELOW: &str = "FETTLE_SAME_BELOW";

/// The next sync of what is below would be told that all is well, and what was synced would go.
#[test]
fn what_was_synced_lands_anew_where_the_same_bytes_below_cannot_be() {
    assert_passes_apart("overlay::tests::durable::the_same_bytes_below_cannot_be_synced", (SAME_BELOW, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn the_same_bytes_below_cannot_be_synced() {
    if std::env::var_os(SAME_BELOW).is_none() {
        return;
    }
    let bench = Bench::new();
    bench.save("a", &lines(3));
    let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(bench.lower_path("a")).unwrap());
    let before = inode();
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, lines(3).as_bytes()).unwrap();
    bench.view().fsync(handle, false).unwrap();
    let steps = Steps::watch(Trap::below(bench.lower_path("a"), Calls::Syncing, 1, Fate::Fails(libc::EIO))).unwrap();
    bench.close(handle);
    assert_eq!(steps.failed(), 1);
    assert!(inode() != before, "what was synced is what is below now");
    assert_eq!((bench.lower("a").unwrap(), bench.held().len()), (lines(3), 0));
}

/// The kernel would say of the next sync of the copy that all is well, and what was synced under its old name would go.
#[test]
fn what_was_synced_stays_where_its_copy_cannot_be() {
    for how in ["rename", "exchange", "name"] {
        assert_passes_apart("overlay::tests::durable::a_copy_cannot_be_synced", (COPY, how));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_copy_cannot_be_synced() {
    let Ok(how) = std::env::var(COPY) else { return };
    let bench = Bench::new();
    bench.put("held", &lines(100));
    bench.save("held", &changed(100, 60));
    let source = if how == "name" { "further" } else { "other" };
    match source {
        "further" => {
            let (parent, name) = bench.parent(source);
            bench.view().link(bench.node("held").unwrap(), parent, name, &ME).unwrap();
            let handle = bench.open_for_save("held");
            bench.view().write(handle, 0, changed(100, 70).as_bytes()).unwrap();
            bench.view().fsync(handle, false).unwrap();
            bench.close(handle);
            bench.put("target", "old\n");
        }
        _ => {
            bench.save(source, "synced\n");
            std::fs::File::open(bench.lower_path(source)).unwrap().sync_all().unwrap();
        }
    }
    let target = if how == "name" { "target" } else { "held" };
    let content = bench.read(source);
    let before = [bench.lower(source), bench.read(target), content.clone()];

    let steps = Steps::watch(Trap::below(bench.lower_path(".fettle/stage"), Calls::Syncing, 1, Fate::Fails(libc::EIO)))
        .unwrap();
    let flags = if how == "exchange" { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
    let renamed = || rename(bench.view(), bench.parent(source), bench.parent(target), flags);
    assert_eq!(renamed().unwrap_err().code(), libc::EIO);
    assert_eq!(steps.failed(), 1);
    assert_eq!([bench.lower(source), bench.read(target), bench.read(source)], before, "nothing has changed");
    renamed().unwrap();
    assert_eq!(bench.read(target), content);
}
