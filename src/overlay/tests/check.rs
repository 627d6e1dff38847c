//! What `check` finds: each test breaks one thing in the state directory, as a bug or a damaged disk would.

use super::*;
use crate::store::FaultKind;

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

/// Runs a statement on the database of a project that nobody has open, and opens it.
fn tamper(bench: &mut Bench, statement: &str) {
    bench.overlay = None;
    let state = std::fs::File::open(bench.lower_path(".fettle")).unwrap();
    let database = crate::sys::sqlite::open_database(std::os::fd::AsFd::as_fd(&state), "fettle.db").unwrap();
    assert!(database.execute(statement, []).unwrap() > 0, "{statement}");
    drop(database);
    bench.remount();
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
fn held_content_that_is_gone_is_found() {
    let bench = bench();
    std::fs::remove_file(held_file(&bench)).unwrap();
    let found = kinds(&bench);
    assert!(found.contains(&FaultKind::Upper), "{found:?}");
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
