//! Many changes that wait in one directory: none makes what is done to another take longer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::model::RelPath;
use crate::overlay::carry::Move;
use crate::overlay::uppers::Upper;
use crate::store::{UpperId, UpperRow};

/// Enough that a look at all of them for each would take minutes.
const MANY: usize = 30_000;
/// Many times what it takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn id(digits: &str) -> ChangeId {
    ChangeId::parse(digits).unwrap()
}

fn upper_id(number: usize) -> UpperId {
    serde_json::from_value(number.into()).unwrap()
}

/// A change as one that was held, called and numbered otherwise.
fn another(row: &UpperRow, number: usize, name: &str, digits: &str) -> UpperRow {
    let held = row.held.clone().map(|held| crate::store::Held { id: id(digits), ..held });
    UpperRow { id: upper_id(number), names: vec![RelPath::parse(name.as_bytes()).unwrap()], held, ..row.clone() }
}

fn held_row(bench: &Bench) -> UpperRow {
    bench.save(".gitignore", "target\n");
    bench.view().held_rows().pop().unwrap()
}

#[test]
fn what_is_done_to_one_change_looks_at_no_other() {
    let bench = Bench::new();
    let row = held_row(&bench);
    let mut state = bench.view().state.lock();
    let kept = std::mem::take(&mut state.uppers);
    let begun = std::time::Instant::now();
    for number in 1..=MANY {
        let digits = format!("{:08x}", number * 97);
        let (dir, full) = (RelPath::parse(b"d").unwrap(), format!("{digits}{}", "0".repeat(56)));
        let row = another(&row, number, &format!("d/{number}"), &digits);
        state.uppers.insert(Upper::written(row));
        assert_eq!(state.unused_id(&full, upper_id(number), &BTreeSet::new()).unwrap(), id(&digits));
        assert_eq!(state.uppers.dirs_in(&dir).made, 0);
    }
    let ids: Vec<UpperId> = (1..=MANY).map(upper_id).collect();
    let (from, to) = (RelPath::parse(b"d").unwrap(), RelPath::parse(b"e").unwrap());
    let (rows, _) = state.renamed_rows(&ids, &[Move { from: &from, to: &to }]).unwrap();
    let ids: BTreeSet<_> = rows.iter().map(|row| row.held.as_ref().unwrap().id.clone()).collect();
    assert_eq!(ids.len(), MANY, "each has an id of its own");
    state.uppers = kept;
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

#[test]
fn an_id_is_as_long_as_tells_it_from_all_others() {
    let bench = Bench::new();
    let row = held_row(&bench);
    let mut state = bench.view().state.lock();
    let kept = std::mem::take(&mut state.uppers);
    state.uppers.insert(Upper::written(another(&row, 1, "a", "aaaaaaaa")));
    state.uppers.insert(Upper::written(another(&row, 2, "b", "bbbbbbbbbb")));
    let also = BTreeSet::from([id("cccccccc0")]);
    for (full, own, want) in [
        ("aaaaaaaa", 1, "aaaaaaaa"),
        ("aaaaaaaa", 3, "aaaaaaaa0"),
        ("bbbbbbbbb", 3, "bbbbbbbbb0"),
        ("bbbbbbbbbb", 3, "bbbbbbbbbb0"),
        ("bbbbbbbbbb", 2, "bbbbbbbb"),
        ("cccccccc", 3, "cccccccc00"),
        ("dddddddd", 3, "dddddddd"),
    ] {
        let full = format!("{full:0<64}");
        assert_eq!(state.unused_id(&full, upper_id(own), &also).unwrap(), id(want), "{full}");
    }
    state.uppers = kept;
}
