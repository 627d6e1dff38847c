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

#[test]
fn touching_what_was_renamed_away_does_not_make_the_old_name_new() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.rename("a", "b");
    let set = SetAttributes {
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: SetTime::Keep,
        mtime: SetTime::At(crate::model::Timestamp { seconds: 5, nanoseconds: 0 }),
    };
    bench.view().set_attributes(bench.node("b").unwrap(), None, &set, &ME).unwrap();
    write(&bench, "a", &changed(100, 60));
    assert_eq!(bench.held().len(), 1, "lower: {:?}", bench.lower("a"));
}

#[test]
fn swapping_whole_directories_is_a_modification_of_the_files_in_them() {
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.rename("d", "e");
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    write(&bench, "d/a", &changed(100, 60));
    assert_eq!(bench.held().len(), 1, "lower: {:?}", bench.lower("d/a"));
}

#[test]
fn small_edits_between_renames_are_one_change() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("0", &lines(100));
    for count in 1..30 {
        let (name, next) = ((count - 1).to_string(), count.to_string());
        write(&bench, &name, &changed(100, count));
        bench.rename(&name, &next);
    }
    assert_eq!(bench.held().len(), 1);
}
