//! Changes of which nothing is left: they give back what they were based on, or others have made the same below.

use super::*;
use crate::model::BackupKind;
use crate::protocol::Action;

/// The change gives back what it was based on, and by then another has cut the file short below.
fn given_back() -> Bench {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(3));
    bench.save("a", &lines(100));
    assert_eq!(bench.reasons(), [Reason::External]);
    bench
}

impl Bench {
    /// What is kept as dropped from the view.
    fn kept_as_discarded(&self) -> Vec<String> {
        let store = self.view().store();
        let backups = store.backups().unwrap().into_iter().filter(|backup| backup.kind == BackupKind::Discarded);
        backups.map(|backup| String::from_utf8(store.content(backup.digest).unwrap().unwrap()).unwrap()).collect()
    }
}

#[test]
fn the_diff_of_a_change_back_to_its_base_is_against_lower() {
    let bench = given_back();
    let row = bench.held().remove(0);
    let sides = bench.view().sides(&row).unwrap();
    assert_eq!(bytes(sides.old.unwrap()), lines(3).into_bytes());
    assert_eq!(bytes(sides.new.unwrap()), lines(100).into_bytes());
    let held = row.held.unwrap();
    assert_eq!((held.insertions, held.deletions, held.hunks), (97, 0, 1));
    let part = bench.view().discard_hunks(&held.id, &[1], &HOW.review);
    assert_eq!(part.unwrap_err().code, ErrorCode::BadRequest);
}

#[test]
fn a_confirm_that_has_nothing_to_land_drops_the_change_and_keeps_it() {
    let bench = given_back();
    bench.save("b", "new");
    bench.put("c", &lines(100));
    bench.save("c", &changed(100, 60));
    let ids: Vec<ChangeId> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
    let planned = ConfirmHow { review: Review { dry_run: true, ..HOW.review.clone() }, ..HOW };
    let actions = |outcomes: Vec<crate::protocol::Outcome>| -> Vec<(String, Action)> {
        outcomes.into_iter().map(|outcome| (outcome.path.to_string(), outcome.action)).collect()
    };
    let expected = [("c".to_owned(), Action::Applied), ("a".to_owned(), Action::Discarded)];
    assert_eq!(actions(bench.view().confirm(&ids, &planned).unwrap()), expected);
    assert_eq!(bench.held().len(), 2);
    let outcomes = bench.confirm(&ids).unwrap();
    assert!(outcomes[1].backup.as_ref().is_some_and(|name| name.starts_with("a.")), "{outcomes:?}");
    assert_eq!(outcomes[0].operation, outcomes[1].operation);
    assert_eq!(actions(outcomes), expected);
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(lines(3)), Some(lines(3))));
    assert_eq!((bench.lower("c"), bench.held().len()), (Some(changed(100, 60)), 0));
    assert_eq!(bench.kept_as_discarded(), [lines(100)]);
    bench.check();
}

#[test]
fn so_does_one_of_a_change_that_others_have_made_as_a_part_of_theirs() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &changed(100, 60).replace("line 99\n", "outside\n"));
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap()[0].action, Action::Discarded);
    assert_eq!(bench.lower("a"), Some(changed(100, 60).replace("line 99\n", "outside\n")));
    assert_eq!(bench.kept_as_discarded(), [changed(100, 60)]);
}

#[test]
fn a_forced_confirm_lands_it() {
    let bench = given_back();
    bench.view().confirm(&[bench.only_id()], &ConfirmHow { force: true, ..HOW }).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(100)));
}
