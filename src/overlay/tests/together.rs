//! Fifty changes are one transaction: all of them land or are dropped, or nothing happens and the error says which one.

use std::collections::BTreeMap;
use std::process::Command;

use super::*;
use crate::protocol::ErrorBody;

/// Files changed, made and deleted in directories, one of which is to go: fifty changes.
fn fifty_held(bench: &Bench) -> Vec<ChangeId> {
    for number in 0..20 {
        bench.put(&format!("changed{}/f{number}", number % 3), &lines(100));
        bench.put(&format!("gone/f{number}"), &lines(100));
    }
    for number in 0..20 {
        bench.save(&format!("changed{}/f{number}", number % 3), &changed(100, 60));
    }
    for number in 0..9 {
        std::fs::create_dir_all(bench.lower_path(&format!("made/deep{number}"))).unwrap();
        bench.save(&format!("made/deep{number}/AGENTS.md"), "made\n");
    }
    for number in 0..20 {
        bench.unlink(&format!("gone/f{number}"));
    }
    let (parent, name) = bench.parent("gone");
    bench.view().rmdir(parent, name, &ME).unwrap();
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    assert_eq!(ids.len(), 50);
    ids
}

fn project(bench: &Bench) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    scenarios::collect_lower(&bench.dir, "", &mut found);
    found
}

/// `act` is refused, and all is as it was.
fn nothing_happens(bench: &Bench, act: impl FnOnce() -> std::result::Result<(), ErrorBody>) -> ErrorBody {
    let (before, held) = (project(bench), bench.held());
    let backups = bench.view().store().backups().unwrap();
    let refusal = act().unwrap_err();
    assert_eq!((project(bench), bench.held()), (before, held));
    assert_eq!(bench.view().store().backups().unwrap(), backups);
    assert_eq!(bench.view().check().unwrap().0, []);
    refusal
}

fn confirm_refused(bench: &Bench, ids: &[ChangeId]) -> ErrorBody {
    nothing_happens(bench, || bench.view().confirm(ids, &HOW).map(|_| ()))
}

#[test]
fn one_that_conflicts_keeps_all_from_landing() {
    let mut bench = Bench::new();
    let ids = fifty_held(&bench);
    let edited = changed(100, 60).replace("new 30\n", "a person's line\n");
    bench.put("changed1/f7", &edited);
    let refusal = confirm_refused(&bench, &ids);
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("changed1/f7"), "{refusal:?}");
    bench.remount();
    confirm_refused(&bench, &ids);
    bench.view().confirm(&ids, &ConfirmHow { force: true, ..HOW }).unwrap();
    assert_eq!(bench.lower("changed1/f7"), Some(changed(100, 60)));
    assert!(!bench.lower_path("gone").exists());
}

#[test]
fn a_bad_id_keeps_all_from_landing_and_from_being_discarded() {
    let bench = Bench::new();
    let mut ids = fifty_held(&bench);
    ids.insert(25, ChangeId::parse("0badc0de").unwrap());
    let refusal = confirm_refused(&bench, &ids);
    assert_eq!((refusal.code, refusal.id.as_deref()), (ErrorCode::UnknownId, Some("0badc0de")));
    let refusal = nothing_happens(&bench, || bench.view().discard(&ids, &Review::default()).map(|_| ()));
    assert_eq!((refusal.code, refusal.id.as_deref()), (ErrorCode::UnknownId, Some("0badc0de")));
}

#[test]
fn a_file_in_the_place_of_a_directory_keeps_all_from_landing() {
    let bench = Bench::new();
    let ids = fifty_held(&bench);
    std::fs::remove_dir_all(bench.lower_path("made")).unwrap();
    bench.put("made", "a file now\n");
    let refusal = confirm_refused(&bench, &ids);
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("made is not a directory"), "{refusal:?}");
}

/// A directory with a large file and another directory in it is removed, and a file made in its place.
fn file_for_dir(bench: &Bench) -> Vec<ChangeId> {
    bench.put("d/a", &lines(100));
    bench.put("d/sub/b", &lines(100));
    bench.unlink("d/a");
    bench.unlink("d/sub/b");
    bench.rmdir("d/sub").unwrap();
    bench.rmdir("d").unwrap();
    bench.save("d", "instead\n");
    bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect()
}

#[test]
fn a_file_takes_the_place_of_a_directory_in_one_operation() {
    let bench = Bench::new();
    let outcomes = bench.confirm(&file_for_dir(&bench)).unwrap();
    let operations: std::collections::HashSet<_> = outcomes.iter().map(|outcome| &outcome.operation).collect();
    assert_eq!((operations.len(), outcomes.len()), (1, 4), "{outcomes:?}");
    assert_eq!(bench.lower("d"), Some("instead\n".to_owned()));
    let mut backups = bench.backups();
    backups.sort();
    assert_eq!(backups, ["d/a", "d/sub/b"]);
    assert_eq!((bench.held(), bench.view().check().unwrap().0), (vec![], vec![]));
}

#[test]
fn what_somebody_put_into_a_directory_keeps_a_file_from_taking_its_place() {
    for theirs in ["d/theirs", "d/sub/theirs", "d/other/theirs"] {
        let bench = Bench::new();
        let ids = file_for_dir(&bench);
        bench.put(theirs, "somebody's\n");
        let refusal = confirm_refused(&bench, &ids);
        assert_eq!(refusal.code, ErrorCode::Conflict, "{refusal:?}");
        assert_eq!(bench.lower(theirs), Some("somebody's\n".to_owned()));
        std::fs::remove_file(bench.lower_path(theirs)).unwrap();
        if theirs == "d/other/theirs" {
            confirm_refused(&bench, &ids);
            std::fs::remove_dir(bench.lower_path("d/other")).unwrap();
        }
        bench.confirm(&ids).unwrap();
        assert_eq!(bench.lower_names(), ["d"]);
    }
}

#[test]
fn a_file_takes_the_place_of_a_directory_that_somebody_has_removed() {
    let bench = Bench::new();
    let ids = file_for_dir(&bench);
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    bench.view().confirm(&ids, &ConfirmHow { force: true, ..HOW }).unwrap();
    assert_eq!(bench.lower("d"), Some("instead\n".to_owned()));
    assert!(bench.held().is_empty());
}

#[test]
fn a_directory_that_is_missing_is_made_and_stays_away_when_another_change_is_refused() {
    let bench = Bench::new();
    let ids = fifty_held(&bench);
    std::fs::remove_dir_all(bench.lower_path("made")).unwrap();
    bench.put("changed2/f17", "a person's own\n");
    confirm_refused(&bench, &ids);
    assert!(!bench.lower_path("made").exists());
    bench.put("changed2/f17", &lines(100));
    bench.view().confirm(&ids, &HOW).unwrap();
    assert_eq!(bench.lower("made/deep8/AGENTS.md"), Some("made\n".to_owned()));
}

#[test]
fn a_directory_that_may_not_be_written_keeps_all_from_landing() {
    let bench = Bench::new();
    let ids = fifty_held(&bench);
    let immutable = |flag| {
        let status = Command::new("chattr").args([flag, bench.lower_path("changed2").to_str().unwrap()]).status();
        assert!(status.unwrap().success(), "the test needs a file system that knows immutable directories");
    };
    immutable("+i");
    let refusal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| confirm_refused(&bench, &ids)));
    immutable("-i");
    let refusal = refusal.unwrap();
    assert!(refusal.code == ErrorCode::WriteFailed && refusal.message.contains("changed2/"), "{refusal:?}");
    bench.view().confirm(&ids, &HOW).unwrap();
    assert_eq!(bench.lower("changed2/f17"), Some(changed(100, 60)));
}

#[test]
fn all_are_discarded_and_held_again_together() {
    let mut bench = Bench::new();
    let ids = fifty_held(&bench);
    let before = project(&bench);
    let dry = Review { dry_run: true, ..Review::default() };
    assert_eq!(bench.view().discard(&ids, &dry).unwrap().len(), ids.len());
    assert_eq!(bench.held().len(), ids.len());
    let outcomes = bench.view().discard(&ids, &Review::default()).unwrap();
    let operation = outcomes[0].operation.as_deref().and_then(crate::model::OperationId::parse).unwrap();
    assert!(bench.held().is_empty());
    let operation = bench.view().store().operation(operation).unwrap().unwrap();
    bench.view().undo(operation.id, &UndoHow::default()).unwrap();
    let again: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    assert_eq!((again, project(&bench)), (ids.clone(), before));
    assert!(bench.node("gone").is_err());
    bench.remount();
    bench.view().confirm(&ids, &HOW).unwrap();
    assert!(!bench.lower_path("gone").exists());
    assert_eq!(bench.view().check().unwrap().0, []);
}

/// Discards what is held at `g/f` again and again while somebody else does that with its id, and finds nothing left over.
fn discards_beside(act: impl Fn(&Bench, &ChangeId) + Sync) {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("g/f", &lines(100));
    for round in 0..30 {
        bench.save("g/f", &changed(100, 60).replace("new", &format!("round {round}")));
        let id = bench.only_id();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    act(&bench, &id);
                }
            });
            bench.view().discard(std::slice::from_ref(&id), &Review::default()).unwrap();
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!((bench.held(), bench.view().check().unwrap().0), (Vec::new(), Vec::new()), "in round {round}");
    }
}

#[test]
fn a_change_that_somebody_looks_at_as_it_is_discarded_does_not_come_back() {
    discards_beside(|bench, id| bench.view().renew(id).unwrap());
}

#[test]
fn a_change_that_gets_another_name_as_it_is_discarded_does_not_come_back() {
    discards_beside(|bench, _| {
        let (dir, name) = bench.parent("g/f");
        let Ok(node) = bench.view().lookup(dir, name).map(|entry| entry.node) else { return };
        // Of what is held, or of what lower has; and with the one it goes when that is discarded.
        if bench.view().link(node, dir, OsStr::new("further"), &ME).is_ok() {
            bench.view().unlink(dir, OsStr::new("further"), &ME).ok();
        }
    });
}

/// It was said to have changed at that very moment, whenever one tried, and force was no way out.
#[test]
fn what_has_become_a_directory_with_something_in_it_is_refused_also_by_force_and_says_so() {
    let bench = Bench::new();
    for path in ["deleted", "changed"] {
        bench.put(path, &lines(100));
    }
    bench.unlink("deleted");
    bench.save("changed", &changed(100, 60));
    for path in ["deleted", "changed"] {
        std::fs::remove_file(bench.lower_path(path)).unwrap();
        bench.put(&format!("{path}/hers"), "hers\n");
    }
    for held in bench.held() {
        let (path, ids) = (held.path().clone(), [held.held.unwrap().id]);
        for force in [false, true] {
            let refusal =
                nothing_happens(&bench, || bench.view().confirm(&ids, &ConfirmHow { force, ..HOW }).map(|_| ()));
            let why = format!(
                "{path}: {path}/hers has come to be in it below; move it away, or discard {} to see it",
                ids[0]
            );
            assert_eq!((refusal.code, refusal.message), (ErrorCode::Conflict, why));
        }
    }
}
