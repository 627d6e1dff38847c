//! What a hostile reading found: each test is one way in which work was lost or got past the review.

use super::*;

fn write(bench: &Bench, path: &str, content: &str) {
    bench.save(path, content);
}

fn hard_linked() -> Bench {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    write(&bench, "a", &changed(100, 60));
    assert_eq!(bench.held().len(), 1);
    bench
}

#[test]
fn deleting_one_name_of_a_hard_link_leaves_the_held_change_of_the_other() {
    let bench = hard_linked();
    bench.unlink("b");
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert_eq!(bench.read("b"), None);
}

#[test]
fn renaming_over_one_name_of_a_hard_link_leaves_the_held_change_of_the_other() {
    let bench = hard_linked();
    write(&bench, "tmp", "small\n");
    bench.rename("tmp", "b");
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert_eq!(bench.read("b"), Some("small\n".to_owned()));
}

#[test]
fn renaming_one_name_of_a_hard_link_leaves_the_held_change_of_the_other() {
    let bench = hard_linked();
    bench.rename("b", "c");
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    assert_eq!(bench.read("c"), Some(changed(100, 60)));
    bench.unlink("c");
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
}

#[test]
fn a_write_through_the_other_name_of_a_hard_link_is_not_lost_when_the_first_is_closed() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    let open = |path: &str| {
        let node = bench.node(path).unwrap();
        bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle
    };
    let first = open("a");
    bench.view().write(first, 0, b"FIRST").unwrap();
    let second = open("b");
    bench.close(first);
    bench.view().write(second, 5, b"OTHER").unwrap();
    bench.close(second);
    assert_eq!(&bench.read("a").unwrap()[..10], "FIRSTOTHER");
    assert_eq!(&bench.lower("b").unwrap()[..10], "FIRSTOTHER");
}

#[test]
fn the_second_name_of_a_held_file_stays_when_it_lands_by_itself() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    write(&bench, "a", &changed(100, 60));
    let node = bench.node("a").unwrap();
    bench.view().link(node, ROOT, OsStr::new("b"), &ME).unwrap();
    write(&bench, "a", &changed(100, 1));
    assert!(bench.held().is_empty());
    assert_eq!(bench.read("b"), Some(changed(100, 1)));
    assert_eq!(bench.lower("b"), Some(changed(100, 1)));
}
