//! What `check` finds: each test breaks one thing in the state directory, as a bug or a damaged disk would.

use super::*;
use crate::model::RelPath;
use crate::store::{AnchorState, DirPlace, FaultKind, Known, MovedDir};

/// A held change, a backup and a landed file.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", "rewritten\n");
    bench.put("b", "one\ntwo\n");
    bench.save("b", "one\nthree\n");
    bench
}

fn kinds(bench: &Bench) -> Vec<FaultKind> {
    let (faults, checked) = bench.view().check().unwrap();
    assert!(checked > 10, "{checked}");
    faults.into_iter().map(|fault| fault.kind).collect()
}

/// Runs a statement on the database of a project that nobody has open, and opens it. Gives how many rows it changed.
pub(super) fn run_sql(bench: &mut Bench, statement: &str) -> usize {
    bench.overlay = None;
    let state = std::fs::File::open(bench.lower_path(".fettle")).unwrap();
    let database = crate::sys::sqlite::open_database(std::os::fd::AsFd::as_fd(&state), "fettle.db").unwrap();
    let changed = database.execute(statement, []).unwrap();
    drop(database);
    bench.remount();
    changed
}

fn tamper(bench: &mut Bench, statement: &str) {
    assert!(run_sql(bench, statement) > 0, "{statement}");
}

/// No landing can be recorded any more, though each can be begun.
fn refuse_records(bench: &mut Bench) {
    run_sql(bench, "CREATE TRIGGER refused BEFORE DELETE ON intent BEGIN SELECT RAISE(ABORT, 'refused'); END");
}

/// As a start after the fault has gone.
fn allow_records(bench: &mut Bench) {
    run_sql(bench, "DROP TRIGGER refused");
}

fn held_file(bench: &Bench) -> PathBuf {
    bench.lower_path(".fettle/stage").join(bench.held()[0].id.to_string())
}

#[test]
fn a_sound_state_has_no_fault() {
    let mut bench = bench();
    assert_eq!(kinds(&bench), []);
    bench.remount();
    assert_eq!(kinds(&bench), []);
}

#[test]
fn held_content_that_is_not_what_its_id_names_is_found() {
    let bench = bench();
    std::fs::write(held_file(&bench), "something else\n").unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Held]);
}

#[test]
fn a_mode_that_an_id_does_not_name_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let bench = bench();
    super::scenarios::chmod(&bench, "a", 0o755);
    assert_eq!(kinds(&bench), []);
    std::fs::set_permissions(held_file(&bench), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Held]);
}

#[test]
fn held_content_that_is_gone_is_found() {
    let bench = bench();
    std::fs::remove_file(held_file(&bench)).unwrap();
    let found = kinds(&bench);
    assert!(found.contains(&FaultKind::Upper), "{found:?}");
}

#[test]
fn content_that_is_gone_before_it_was_judged_is_found() {
    let bench = bench();
    let handle = bench.open_for_save("b");
    bench.view().write(handle, 0, b"new\n").unwrap();
    assert_eq!(kinds(&bench), []);
    let id = bench.view().state.lock().uppers.iter().find(|upper| upper.dirty).unwrap().row.id;
    std::fs::remove_file(bench.lower_path(".fettle/stage").join(id.to_string())).unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Upper]);
}

#[test]
fn what_a_restart_would_forget_is_found() {
    let bench = bench();
    let (one, other) = (RelPath::parse(b"c").unwrap(), RelPath::parse(b"d").unwrap());
    let past = bench.view().state.lock().past.clone();
    let moved = MovedDir { origin: one.clone(), place: DirPlace::At(other) };
    bench.view().state.lock().past.know_dirs(vec![moved]);
    assert_eq!(kinds(&bench), [FaultKind::Anchor]);
    bench.view().state.lock().past = past.clone();
    bench.view().state.lock().know(vec![Known::of(AnchorState::Nothing).as_anchor(&one)]);
    assert_eq!(kinds(&bench), [FaultKind::Anchor]);
    bench.view().state.lock().past = past;
    assert_eq!(kinds(&bench), []);
}

#[test]
fn upper_content_and_kept_content_without_a_row_are_found() {
    let bench = bench();
    std::fs::write(bench.lower_path(".fettle/stage/99"), "whose?\n").unwrap();
    std::fs::write(bench.lower_path(".fettle/content/new-1"), "whose?\n").unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Orphan, FaultKind::Orphan]);
}

#[test]
fn a_temporary_name_left_in_the_project_is_found() {
    let bench = bench();
    bench.put("d/.fettle-tmp-0123", "left\n");
    assert_eq!(kinds(&bench), [FaultKind::Temporary]);
}

#[test]
fn what_others_may_read_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let bench = bench();
    std::fs::set_permissions(bench.lower_path(".fettle/stage"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Permissions]);
}

#[test]
fn content_that_changed_under_its_hash_is_found() {
    let mut bench = bench();
    tamper(&mut bench, "UPDATE content SET bytes = X'00' WHERE rowid = 1");
    assert_eq!(kinds(&bench), [FaultKind::Content]);
}

#[test]
fn a_backup_and_a_base_without_content_are_found() {
    let mut bench = bench();
    tamper(&mut bench, "DELETE FROM content");
    let found = kinds(&bench);
    // The backup of `b`, what `b` had when the session began, and what the held change of `a` is based on.
    assert_eq!(found, [FaultKind::Content; 3]);
}

#[test]
fn an_id_that_is_not_made_of_its_change_is_found() {
    let mut bench = bench();
    let id = bench.only_id();
    tamper(&mut bench, &format!("UPDATE upper SET row = replace(row, '{id}', '0000ffff')"));
    assert_eq!(kinds(&bench), [FaultKind::Held]);
}

#[test]
fn a_gap_in_the_events_is_found() {
    let mut bench = bench();
    bench.save("b", "one\nfour\n");
    tamper(&mut bench, "DELETE FROM event WHERE seq = 2");
    assert_eq!(kinds(&bench), [FaultKind::Events]);
}

#[test]
fn an_id_superseded_by_one_that_nobody_knows_is_found() {
    let mut bench = bench();
    tamper(
        &mut bench,
        "INSERT INTO verdict (id, path, fate, successor, at) VALUES ('0123abcd', X'61', 'superseded', '4567abcd', 0)",
    );
    assert_eq!(kinds(&bench), [FaultKind::Verdict]);
}

#[test]
fn a_journal_that_names_our_own_directory_is_not_followed() {
    let mut bench = bench();
    let steps = r#"{"path":{"path":".fettle/stage/x"},"expect":null,"act":{"Link":{"of":{"path":"b"}}}}"#;
    let epilogue = r#"{"drop":[],"save":[],"verdicts":[],"anchors":[],"events":[]}"#;
    let intent = format!(r#"{{"steps":[{steps}],"backups":[],"epilogue":{epilogue}}}"#);
    tamper(&mut bench, &format!("INSERT INTO intent (row) VALUES ('{intent}')"));
    assert_eq!(kinds(&bench), []);
    assert_eq!(bench.held().len(), 1);
}

#[test]
fn a_landing_that_cannot_be_recorded_stops_writing_and_is_finished_by_the_next_start() {
    let mut bench = Bench::new();
    bench.put("b", "one\ntwo\n");
    refuse_records(&mut bench);
    let handle = bench.open_for_save("b");
    bench.view().write(handle, 0, b"one\nthree\n").unwrap();
    bench.view().flush(handle, &ME).unwrap();
    assert!(bench.view().store().record_waiting().is_err());
    let fault = bench.view().fault().unwrap();
    assert!(fault.contains("could not be recorded"), "{fault}");
    let (parent, name) = bench.parent("c");
    let create = bench.view().create(parent, name, 0o644, OpenFlags::from_raw(libc::O_WRONLY), &ME);
    assert_eq!(create.map(|_| ()).unwrap_err().code(), libc::EROFS);
    allow_records(&mut bench);
    assert_eq!((bench.lower("b").as_deref(), bench.read("b").as_deref()), (Some("one\nthree\n"), Some("one\nthree\n")));
    assert_eq!(bench.view().store().backups().unwrap().len(), 1);
    assert_eq!(kinds(&bench), []);
}

#[test]
fn a_held_rename_that_cannot_be_recorded_keeps_the_content() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    refuse_records(&mut bench);
    // A save of it would be refused itself: it is put there below, and made fresh by hand.
    bench.put("a.tmp", "rewritten\n");
    let made = Known { fresh: true, ..Known::of(AnchorState::Nothing) }.as_anchor(&RelPath::parse(b"a.tmp").unwrap());
    bench.view().state.lock().know(vec![made]);
    assert!(bench.try_rename("a.tmp", "a").is_err());
    assert!(bench.view().fault().is_some());
    allow_records(&mut bench);
    assert_eq!((bench.read("a").as_deref(), bench.lower("a")), (Some("rewritten\n"), Some(lines(100))));
    assert_eq!(bench.lower("a.tmp"), None);
    assert_eq!(kinds(&bench), []);
}

#[test]
fn a_held_change_whose_file_has_gone_can_be_discarded_with_all_others() {
    for is_remounted in [false, true] {
        let mut bench = bench();
        bench.put("c", &lines(100));
        bench.save("c", "rewritten\n");
        std::fs::remove_file(held_file(&bench)).unwrap();
        if is_remounted {
            bench.remount();
        }
        assert!(!kinds(&bench).is_empty());
        let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
        let outcomes = bench.view().discard(&ids, &Review::default()).unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.backup.is_some()).collect::<Vec<_>>(), [false, true]);
        assert_eq!((kinds(&bench), bench.held()), (vec![], vec![]));
        assert_eq!([bench.read("a"), bench.read("c")], [Some(lines(100)), Some(lines(100))]);
        bench.save("a", &changed(100, 2));
        assert_eq!(bench.lower("a"), Some(changed(100, 2)));
    }
}

#[test]
fn what_a_landing_has_recorded_after_a_rename_of_its_directory_is_recorded_as_it_is_known() {
    let bench = Bench::new();
    bench.mkdir("one");
    bench.save("one/f", "new\n");
    let path = RelPath::parse(b"one/f").unwrap();
    let landed = bench.view().state.lock().past.get(&path).unwrap().as_anchor(&path);
    bench.rename("one", "other");
    // As by who landed it and was given no processor until now.
    bench.view().store().save_anchors(std::slice::from_ref(&landed)).unwrap();
    assert_eq!(kinds(&bench), [FaultKind::Anchor]);
    bench.view().record_what_is_known(&bench.view().state.lock(), &[landed]);
    assert_eq!(kinds(&bench), []);
}
