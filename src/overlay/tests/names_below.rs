//! Files with several names, of which somebody makes one lead elsewhere below while they are written or wait in the view.

use super::*;

fn link_below(bench: &Bench, of: &str, name: &str) {
    let made = bench.lower_path("made");
    std::fs::hard_link(bench.lower_path(of), &made).unwrap();
    std::fs::rename(made, bench.lower_path(name)).unwrap();
}

/// `c` and `d` are one file, `a` and `b` another.
fn two_pairs() -> Bench {
    let bench = Bench::new();
    bench.put("a", "somebody's\n");
    link_below(&bench, "a", "b");
    bench.put("c", &lines(100));
    link_below(&bench, "c", "d");
    bench
}

#[test]
fn a_change_is_of_the_file_that_was_opened_and_not_of_what_has_one_of_its_names_since() {
    for (count, writes_first) in [(1, true), (1, false), (60, true), (60, false)] {
        let bench = two_pairs();
        bench.node("c").unwrap();
        let handle = bench.open_for_save("d");
        if writes_first {
            bench.view().write(handle, 0, changed(100, count).as_bytes()).unwrap();
        }
        link_below(&bench, "a", "c");
        if !writes_first {
            bench.view().write(handle, 0, changed(100, count).as_bytes()).unwrap();
        }
        bench.close(handle);
        for row in bench.held() {
            let id = row.held.unwrap().id;
            bench.confirm(&[id]).unwrap();
        }
        let is_theirs = ["a", "b", "c"].map(|name| bench.lower(name).unwrap() == "somebody's\n");
        let is_ours = bench.lower("d").unwrap() == changed(100, count);
        assert_eq!((is_theirs, is_ours), ([true; 3], true), "{count}, {writes_first}");
    }
}

#[test]
fn a_change_that_waits_is_written_to_no_other_file_than_the_one_it_takes_the_place_of() {
    for (theirs, force) in [("somebody's\n".to_owned(), true), (lines(100), false)] {
        let bench = two_pairs();
        bench.put("a", &theirs);
        bench.save("c", &changed(100, 60));
        link_below(&bench, "a", "c");
        std::fs::remove_file(bench.lower_path("d")).unwrap();
        let id = bench.only_id();
        bench.view().confirm(&[id], &ConfirmHow { force, ..HOW }).unwrap();
        let is_theirs = ["a", "b"].map(|name| bench.lower(name).as_ref() == Some(&theirs));
        assert_eq!((is_theirs, bench.lower("c") == Some(changed(100, 60))), ([true; 2], true), "{force}");
        assert_eq!(bench.lower("d"), None);
    }
}
