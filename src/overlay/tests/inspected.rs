//! What was shown of an operation, and what of it came or became another since.

use super::*;
use crate::model::OperationId;
use crate::store::Depth;

/// With so many changes held in one go.
fn held(count: usize) -> Bench {
    let bench = Bench::with(&[(Key::Burst, "1000")]);
    (0..6).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    (0..count).for_each(|number| bench.rewrite(number, "new"));
    bench
}

impl Bench {
    fn rewrite(&self, number: usize, word: &str) {
        self.save(&format!("f{number}"), &format!("{word}\n").repeat(40));
    }

    /// That of all changes.
    fn only_operation(&self) -> OperationId {
        let members = self.view().members(|_| true);
        assert_eq!(members.len(), 1, "{members:?}");
        *members.keys().next().unwrap()
    }

    /// Somebody looks at what is held at these.
    fn is_shown(&self, numbers: &[usize], depth: Depth) {
        let paths: Vec<String> = numbers.iter().map(|number| format!("f{number}")).collect();
        let rows = self.held().into_iter().filter(|row| paths.contains(&row.path().to_string()));
        let ids: Vec<ChangeId> = rows.filter_map(|row| Some(row.held?.id)).collect();
        assert_eq!(ids.len(), numbers.len());
        self.view().note_shown(&self.view().members(|_| true), &ids, depth);
    }

    /// The paths of what came or became another since.
    fn late(&self) -> Vec<String> {
        let late = self.held().into_iter().filter(|row| {
            let held = row.held.as_ref().unwrap();
            held.operation.is_some_and(|operation| self.view().is_late(operation, &held.id))
        });
        late.map(|row| row.path().to_string()).collect()
    }
}

#[test]
fn what_joins_an_operation_or_becomes_another_after_a_look_is_late_over_a_death_too() {
    let mut bench = held(3);
    assert!(bench.late().is_empty(), "nobody has looked");
    bench.is_shown(&[0, 1, 2], Depth::Compared);
    assert!(bench.late().is_empty(), "nothing has come since");
    bench.rewrite(3, "new");
    bench.rewrite(1, "other");
    bench.only_operation();
    assert_eq!(bench.late(), ["f1", "f3"]);
    bench.remount();
    assert_eq!(bench.late(), ["f1", "f3"]);
    bench.is_shown(&[3], Depth::Compared);
    assert_eq!(bench.late(), ["f1"]);
    // What was seen is seen.
    bench.rewrite(1, "new");
    assert!(bench.late().is_empty());
}

#[test]
fn a_look_at_one_change_takes_the_others_that_are_there_for_shown() {
    let bench = held(3);
    bench.is_shown(&[1], Depth::Compared);
    assert!(bench.late().is_empty());
    bench.rewrite(3, "new");
    assert_eq!(bench.late(), ["f3"]);
}

#[test]
fn a_list_counts_until_somebody_has_seen_what_the_changes_would_do() {
    let bench = held(2);
    bench.is_shown(&[0, 1], Depth::Listed);
    bench.rewrite(2, "new");
    assert_eq!(bench.late(), ["f2"]);
    bench.is_shown(&[0, 1, 2], Depth::Listed);
    assert!(bench.late().is_empty());
    bench.is_shown(&[0, 1, 2], Depth::Compared);
    bench.rewrite(3, "new");
    bench.is_shown(&[0, 1, 2, 3], Depth::Listed);
    assert_eq!(bench.late(), ["f3"]);
}

#[test]
fn what_an_operation_nobody_has_looked_at_brings_into_another_is_late() {
    let mut bench = held(2);
    let shown = bench.only_operation();
    bench.is_shown(&[0, 1], Depth::Compared);
    bench.view().goes.end_operation(shown);
    (2..4).for_each(|number| bench.rewrite(number, "new"));
    let other = bench.view().members(|_| true).into_keys().find(|one| *one != shown).unwrap();
    assert!(bench.late().is_empty());
    bench.view().unite(&[shown, other]).unwrap();
    bench.only_operation();
    assert_eq!(bench.late(), ["f2", "f3"]);
    bench.remount();
    assert_eq!(bench.late(), ["f2", "f3"]);
}

#[test]
fn who_has_seen_a_change_has_seen_what_stays_of_it() {
    let bench = Bench::new();
    let text =
        |words: [&str; 2]| words.map(|word| format!("{word}\n").repeat(20)).join("between\n".repeat(10).as_str());
    for name in ["f0", "f1"] {
        bench.put(name, &text(["old", "old"]));
    }
    for name in ["f0", "f1"] {
        bench.save(name, &text(["new", "new"]));
    }
    bench.only_operation();
    bench.is_shown(&[0, 1], Depth::Compared);
    for number in 0..2 {
        let id = bench.held()[number].held.as_ref().unwrap().id.clone();
        match number {
            0 => bench.view().confirm_hunks(&id, &[1], &HOW).unwrap(),
            _ => bench.view().discard_hunks(&id, &[1], &HOW.review).unwrap(),
        };
    }
    assert_eq!(bench.held().len(), 2);
    assert!(bench.late().is_empty());
}

#[test]
fn an_operation_of_which_nothing_is_held_is_forgotten_once_nothing_joins_it() {
    let bench = held(3);
    bench.is_shown(&[0], Depth::Compared);
    let noted = |bench: &Bench| bench.view().store().load_inspections().unwrap().len();
    assert_eq!(noted(&bench), 1);
    let held = bench.view().held_of(bench.only_operation());
    bench.confirm(&held[..1]).unwrap();
    bench.confirm(&held[1..]).unwrap();
    assert_eq!(noted(&bench), 1, "it had something until then");
    bench.rewrite(4, "new");
    bench.view().discard(&[bench.only_id()], &HOW.review).unwrap();
    assert_eq!(noted(&bench), 0);
}
