//! Landings of several steps that a kill has stopped, or a disk that fails: what recovery makes of them.

use std::io::Write;

use super::*;

/// Files `a` and `b`, and what is promised to land there.
fn promised_pair(bench: &Bench) -> crate::store::journal::landing::Promised<'_> {
    let mut landing = Landing::new(bench.store(), Durability::Synced);
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let (file, meta) = (bench.file("new"), bench.meta("new"));
    for name in ["a", "b"] {
        std::fs::write(bench.path(name), format!("old {name}\n")).unwrap();
        let (content, backup) = bench.backup(name);
        landing.keep(content, backup);
        let new = NewContent::File { file: &file, like: &file, meta };
        landing.place(&bench.lower, &path(name), Some(&bench.meta(name)), &new).unwrap();
    }
    landing.promise(Epilogue::default()).unwrap()
}

fn pair(bench: &Bench) -> [String; 2] {
    ["a", "b"].map(|name| std::fs::read_to_string(bench.path(name)).unwrap())
}

/// The second is written to below at the moment of the landing, by a descriptor from before it; as if killed then.
fn landed_pair_of_which_one_is_theirs(bench: &Bench) {
    let promised = promised_pair(bench);
    let mut theirs = std::fs::OpenOptions::new().append(true).open(bench.path("b")).unwrap();
    std::mem::forget(promised.apply().unwrap());
    theirs.write_all(b"somebody's\n").unwrap();
}

#[test]
fn what_somebody_wrote_while_two_files_landed_is_kept_though_nobody_came_to_look_at_it() {
    let mut bench = Bench::new();
    landed_pair_of_which_one_is_theirs(&bench);
    bench.decide_only();
    assert_eq!(kept(&bench), ["old a\n", "old b\n"]);
    bench.recover().unwrap();
    assert_eq!(kept(&bench), ["old a\n", "old b\n", "old b\nsomebody's\n"]);
    assert_eq!((pair(&bench), temporary_names(&bench)), (["new\n", "new\n"].map(str::to_owned), vec![]));
    assert!(bench.recover().unwrap().is_nothing());
}

/// By which a process knows when it was killed.
const KEEPS_NOTHING: &str = "FETTLE_KEEPS_NOTHING";

#[test]
fn what_somebody_wrote_and_recovery_cannot_keep_stays_until_it_can() {
    for killed in ["before the record", "after it", "by a power cut"] {
        assert_passes_apart("store::tests::several::what_is_theirs_cannot_be_read", (KEEPS_NOTHING, killed));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn what_is_theirs_cannot_be_read() {
    let Ok(killed) = std::env::var(KEEPS_NOTHING) else { return };
    let mut bench = Bench::new();
    landed_pair_of_which_one_is_theirs(&bench);
    match killed.as_str() {
        "after it" => bench.decide_only(),
        "by a power cut" => bench.machine_starts_again(),
        _ => {}
    }
    let waiting = temporary_names(&bench);
    let theirs = waiting.iter().find(|name| std::fs::read_to_string(name).unwrap().ends_with("somebody's\n")).unwrap();
    let steps = Steps::watch(Trap::below(theirs.clone(), Calls::Reading, 1, Fate::AllFail(libc::EIO))).unwrap();
    bench.recover().expect("the start does not fail by it");
    assert!(steps.failed() > 0);
    assert_eq!(temporary_names(&bench), std::slice::from_ref(theirs));
    bench.store().clear_up(&bench.lower).unwrap();
    assert_eq!(temporary_names(&bench), std::slice::from_ref(theirs));
    steps.relent();
    bench.recover().unwrap();
    assert_eq!(kept(&bench), ["old a\n", "old b\n", "old b\nsomebody's\n"]);
    assert_eq!(temporary_names(&bench), Vec::<PathBuf>::new());
    assert!(bench.recover().unwrap().is_nothing());
}

#[test]
fn what_somebody_writes_into_one_of_two_that_landed_stays_where_recovery_undoes_them() {
    let mut bench = Bench::new();
    std::mem::forget(promised_pair(&bench).apply().unwrap());
    let mut landed = std::fs::OpenOptions::new().append(true).open(bench.path("a")).unwrap();
    landed.write_all(b"somebody's\n").unwrap();
    std::fs::write(bench.path("c"), "another's\n").unwrap();
    std::fs::rename(bench.path("c"), bench.path("b")).unwrap();
    assert_eq!(bench.recover().unwrap().foreign, [path("b")]);
    assert_eq!(pair(&bench), ["new\nsomebody's\n", "another's\n"]);
    assert!(kept(&bench).contains(&"old a\n".to_owned()) && kept(&bench).contains(&"old b\n".to_owned()));
    assert!(temporary_names(&bench).is_empty() && bench.recover().unwrap().is_nothing());
}

#[test]
fn what_was_edited_in_place_after_it_landed_has_landed() {
    let mut bench = Bench::new();
    std::mem::forget(promised_pair(&bench).apply().unwrap());
    std::fs::write(bench.path("a"), "somebody's\n").unwrap();
    assert_eq!(bench.recover().unwrap().finished, [path("a"), path("b")]);
    assert_eq!(pair(&bench), ["somebody's\n", "new\n"]);
    assert_eq!(kept(&bench), ["old a\n", "old b\n"]);
}

/// `n`, a directory with `f`, goes to `g/n`, and `f` is made there anew.
fn renamed(bench: &Bench) -> crate::store::journal::landing::Applied<'_> {
    ["n", "g"].iter().for_each(|dir| std::fs::create_dir(bench.path(dir)).unwrap());
    std::fs::write(bench.path("n/here"), "here\n").unwrap();
    std::fs::write(bench.path("new"), "new\n").unwrap();
    let (file, meta) = (bench.file("new"), bench.meta("new"));
    let mut landing = Landing::new(bench.store(), Durability::Cached);
    landing.relocate(&bench.lower, &path("n"), &path("g/n"), bench.stamp("n"), None).unwrap();
    let new = NewContent::File { file: &file, like: &file, meta };
    landing.place(&bench.lower, &path("n/f"), None, &new).unwrap();
    landing.promise(Epilogue::default()).unwrap().apply().unwrap()
}

#[test]
fn a_rename_whose_old_name_somebody_has_taken_keeps_nobody_from_starting() {
    let mut bench = Bench::new();
    std::mem::forget(renamed(&bench));
    // What landed in it is somebody's now, so all is to be undone.
    std::fs::write(bench.path("theirs"), "theirs\n").unwrap();
    std::fs::rename(bench.path("theirs"), bench.path("g/n/f")).unwrap();
    std::fs::create_dir(bench.path("n")).unwrap();
    std::fs::write(bench.path("n/mine"), "mine\n").unwrap();
    assert_eq!(bench.recover().unwrap().foreign, [path("n/f"), path("n")]);
    for (name, content) in [("g/n/here", "here\n"), ("g/n/f", "theirs\n"), ("n/mine", "mine\n")] {
        assert_eq!(std::fs::read_to_string(bench.path(name)).unwrap(), content, "{name}");
    }
    assert!(bench.recover().unwrap().is_nothing());
}

/// What fails, to a scenario in a process of its own.
const DISK_FAILS: &str = "FETTLE_SEVERAL_FAIL";

fn fails_at(bench: &Bench, calls: Calls, below: &str, at: u64, errno: i32) -> Steps {
    Steps::watch(Trap::below(bench.path(below), calls, at, Fate::Fails(errno))).unwrap()
}

#[test]
fn a_disk_that_fails_is_noticed_before_anything_goes() {
    for what in ["record", "names", "directory"] {
        assert_passes_apart("store::tests::several::a_disk_fails", (DISK_FAILS, what));
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_disk_fails() {
    match std::env::var(DISK_FAILS).as_deref() {
        Ok("record") => the_record_cannot_be_synced(),
        Ok("names") => the_names_cannot_be_synced(),
        Ok("directory") => a_directory_cannot_be_removed(),
        _ => {}
    }
}

/// Else a power cut could take the record back when what waited has gone already.
fn the_record_cannot_be_synced() {
    let bench = Bench::new();
    let promised = promised_pair(&bench);
    let steps = fails_at(&bench, Calls::Syncing, ".fettle/fettle.db-wal", 1, libc::EIO);
    promised.apply().unwrap().finish().unwrap_err();
    assert_eq!((steps.failed(), temporary_names(&bench).len()), (1, 2));
    assert!(bench.store().is_halted());
}

/// What recovery finishes may have been promised to last: where it may not, upper goes on having it.
fn the_names_cannot_be_synced() {
    let mut bench = Bench::new();
    let promised = promised_pair(&bench);
    std::mem::forget(promised.apply().unwrap());
    let steps = Steps::watch(Trap {
        calls: Calls::Syncing,
        area: Area::Below { dir: bench.path(""), but: Some(bench.path(".fettle")) },
        at: 1,
        fate: Fate::Fails(libc::EIO),
        reserve: None,
    });
    assert_eq!(bench.recover().unwrap().undone.len(), 2);
    assert_eq!((steps.unwrap().failed(), pair(&bench)), (1, ["old a\n", "old b\n"].map(str::to_owned)));
}

fn a_directory_cannot_be_removed() {
    let mut bench = Bench::new();
    std::fs::create_dir_all(bench.path("d/e")).unwrap();
    let doom =
        |dir| bench.store().database.lock().write(|tx| crate::store::journal::recovery::doom_dir(tx, &path(dir)));
    ["d", "d/e"].into_iter().for_each(|dir| doom(dir).unwrap());
    let steps = fails_at(&bench, Calls::Changing, "d", 1, libc::EPERM);
    assert!(bench.recover().unwrap().is_nothing(), "the start does not fail by it");
    assert!(steps.failed() == 1 && bench.path("d/e").exists());
    bench.recover().unwrap();
    assert!(!bench.path("d").exists(), "the notes were still there");
}
