//! Many changes that wait in one directory: none makes what is done to another take longer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::model::{Digest, RelPath};
use crate::overlay::names::carry::Move;
use crate::overlay::state::uppers::Upper;
use crate::store::{UpperId, UpperRow};

/// Enough that a look at all of them for each would take minutes.
const MANY: usize = 30_000;
/// Many times what it takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn id(digits: &str) -> ChangeId {
    ChangeId::parse(digits).unwrap()
}

/// The hash that begins with these digits, and is none of what a file has.
fn full(digits: &str) -> Digest {
    Digest::parse(&format!("{digits:0<64}")).unwrap()
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
        let dir = RelPath::parse(b"d").unwrap();
        let row = another(&row, number, &format!("d/{number}"), &digits);
        state.uppers.insert(Upper::written(row));
        assert_eq!(state.unused_id(full(&digits), upper_id(number)).unwrap(), id(&digits));
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
    // What lives no more, and is told of.
    state.given_ids.note(id("cccccccc"), full("cccccccc1"));
    for (digits, own, want) in [
        ("aaaaaaaa", 1, "aaaaaaaa"),
        ("aaaaaaaa", 3, "aaaaaaaa0"),
        ("bbbbbbbbb", 3, "bbbbbbbbb0"),
        ("bbbbbbbbbb", 3, "bbbbbbbbbb0"),
        ("bbbbbbbbbb", 2, "bbbbbbbb"),
        ("cccccccc", 3, "cccccccc0"),
        ("cccccccc1", 3, "cccccccc"),
        ("dddddddd", 3, "dddddddd"),
    ] {
        assert_eq!(state.unused_id(full(digits), upper_id(own)).unwrap(), id(want), "{digits}");
    }
    state.uppers = kept;
}
