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

/// Takes a name of a file below: somebody removes it, or has another file take its place.
fn take_below(bench: &Bench, name: &str, is_replaced: bool) {
    match is_replaced {
        true => link_below(bench, "a", name),
        false => std::fs::remove_file(bench.lower_path(name)).unwrap(),
    }
}

/// What begins with that byte, and goes on as the pair `c` and `d` began.
fn begins_with(first: &str) -> String {
    format!("{first}{}", &lines(100)[1..])
}

/// A change has landed by that name, and who wrote it has closed.
#[test]
fn who_reads_a_file_goes_on_with_it_and_what_is_written_by_its_other_name_is_in_it() {
    for is_replaced in [false, true] {
        let bench = two_pairs();
        bench.node("c").unwrap();
        let (reader, writer) = (bench.open("d", libc::O_RDONLY).unwrap(), bench.open("c", libc::O_RDWR).unwrap());
        bench.view().write(writer, 0, b"X").unwrap();
        bench.view().flush(writer, &ME).unwrap();
        assert_eq!(bench.lower("d"), Some(begins_with("X")));
        take_below(&bench, "c", is_replaced);
        bench.view().release(writer).unwrap();
        assert_eq!(bench.view().read(reader, 0, 1).unwrap(), b"X", "{is_replaced}");
        let writer = bench.open("d", libc::O_RDWR).unwrap();
        bench.view().write(writer, 0, b"Y").unwrap();
        bench.close(writer);
        bench.view().release(reader).unwrap();
        assert_eq!(bench.read("d"), Some(begins_with("Y")), "{is_replaced}");
        assert_eq!(bench.read("c"), is_replaced.then(|| "somebody's\n".to_owned()));
        assert_eq!(bench.lower("a").unwrap(), "somebody's\n");
    }
}

/// Its writer still has it open, so that the view has both names from upper.
#[test]
fn the_looks_of_a_file_that_has_landed_are_not_those_of_another_that_took_its_name() {
    let bench = two_pairs();
    let nodes = ["c", "d"].map(|name| bench.node(name).unwrap());
    let writer = bench.open("c", libc::O_RDWR).unwrap();
    bench.view().write(writer, 0, b"X").unwrap();
    bench.view().flush(writer, &ME).unwrap();
    take_below(&bench, "c", true);
    let theirs = bench.view().lower().stat(&RelPath::parse(b"c").unwrap()).unwrap().unwrap();
    for node in nodes {
        let shown = bench.view().attributes(node).unwrap().meta;
        assert_eq!((shown.size, shown.links == theirs.links), (begins_with("X").len() as u64, false));
    }
    bench.close(writer);
}

/// Who has it open by the other name wrote nothing yet.
#[test]
fn what_is_written_after_a_discard_is_in_the_file_that_was_opened() {
    for is_replaced in [false, true] {
        let bench = two_pairs();
        bench.save("c", &changed(100, 60));
        let writer = bench.open("d", libc::O_RDWR).unwrap();
        take_below(&bench, "c", is_replaced);
        bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
        assert_eq!(bench.view().read(writer, 0, 1 << 20).unwrap(), lines(100).as_bytes(), "{is_replaced}");
        bench.view().write(writer, 0, b"Y").unwrap();
        bench.close(writer);
        assert_eq!(bench.read("d"), Some(begins_with("Y")), "{is_replaced}");
        assert_eq!(bench.read("c"), is_replaced.then(|| "somebody's\n".to_owned()));
        assert_eq!(bench.lower("a").unwrap(), "somebody's\n");
    }
}

#[test]
fn what_is_written_to_a_file_whose_only_known_name_is_taken_is_in_it_by_another() {
    for is_replaced in [false, true] {
        let bench = two_pairs();
        let writer = bench.open("c", libc::O_RDWR).unwrap();
        take_below(&bench, "c", is_replaced);
        let there = bench.read("c");
        assert_eq!(there, is_replaced.then(|| "somebody's\n".to_owned()));
        bench.view().write(writer, 0, b"Y").unwrap();
        bench.close(writer);
        assert_eq!((bench.read("d"), bench.read("c")), (Some(begins_with("Y")), there), "{is_replaced}");
        assert_eq!(bench.lower("a").unwrap(), "somebody's\n");
    }
}

/// After a remount the kernel may look at any of them first.
#[test]
fn a_held_change_is_told_by_whichever_name_of_its_file_is_looked_at() {
    let mut bench = two_pairs();
    bench.save("c", &changed(100, 60));
    bench.remount();
    let told = |name: &str| {
        let told = bench.view().get_xattr(bench.node("d").unwrap(), OsStr::new(&format!("user.fettle.{name}")));
        told.map(|told| String::from_utf8(told).unwrap()).unwrap_or_default()
    };
    assert_eq!((told("state"), told("id")), ("held".to_owned(), bench.only_id().to_string()));
    assert_ne!(told("reason"), "");
}
