//! Ids name exact content, though their eight digits are few enough to be forged.

use super::*;
use crate::store::Fate;

/// What was found by trying some hundred thousand: of a file of a hundred lines at `a` a change whose id begins as that of
/// another does, at `a` or at `b`.
fn reviewed(number: u32) -> String {
    changed(100, 60) + &format!("{number}\n")
}

fn forged(number: u32) -> String {
    changed(100, 61) + &format!("{number}\n")
}

fn bench() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.put("b", &lines(100));
    bench
}

fn id(digits: &str) -> ChangeId {
    ChangeId::parse(digits).unwrap()
}

#[test]
fn an_id_that_was_given_never_stands_for_anything_else() {
    for is_killed in [false, true] {
        let mut bench = bench();
        bench.save("a", &reviewed(115_632));
        let short = bench.only_id();
        assert_eq!(short, id("05e878d6"), "the contents are those for which this was found");
        if is_killed {
            bench.remount();
        }
        bench.save("a", &forged(24_156));
        assert_eq!(bench.only_id(), id("05e878d6a"));
        let verdict = bench.view().store().verdict(&short).unwrap().unwrap();
        assert_eq!((verdict.id, verdict.fate), (short.clone(), Fate::Superseded { by: id("05e878d6a") }));
        assert_eq!(bench.confirm(std::slice::from_ref(&short)).unwrap_err(), ErrorCode::UnknownId);
        // The same content is the same change, and both are known from now on.
        bench.save("a", &reviewed(115_632));
        assert_eq!(bench.only_id(), short);
        let known: Vec<ChangeId> = bench.view().ids_beginning_with(&id("05e8")).into_iter().collect();
        assert_eq!(known, [short, id("05e878d6a")]);
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

#[test]
fn what_an_undo_holds_again_has_its_id_for_itself() {
    let bench = bench();
    bench.save("a", &reviewed(103_009));
    bench.discard("a");
    let discarded = bench.latest();
    bench.save("b", &forged(5_913));
    assert_eq!(bench.only_id(), id("6cca9634a"));
    bench.undo(&discarded).unwrap();
    assert_eq!([bench.id_of("a"), bench.id_of("b")], [id("6cca9634"), id("6cca9634a")]);
    assert_eq!(bench.view().check().unwrap().0, []);
    bench.confirm(&[id("6cca9634")]).unwrap();
    assert_eq!(bench.lower("a"), Some(reviewed(103_009)));
    assert_eq!(bench.held().len(), 1);
}
