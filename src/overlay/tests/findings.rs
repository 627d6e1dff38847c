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

#[test]
fn a_held_file_written_when_the_daemon_died_gets_the_id_of_what_it_holds() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    write(&bench, "a", &changed(100, 60));
    let reviewed = bench.only_id();
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 70).as_bytes()).unwrap();
    bench.remount();
    let id = bench.only_id();
    assert_ne!(id, reviewed);
    assert!(bench.reasons().contains(&Reason::Interrupted));
    bench.confirm(&[id]).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 70)));
}

#[test]
fn a_truncate_by_path_that_is_refused_leaves_no_handle_open() {
    let bench = Bench::with(&[(Key::OnHold, "fail")]);
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let set =
        SetAttributes { mode: None, uid: None, gid: None, size: Some(0), atime: SetTime::Keep, mtime: SetTime::Keep };
    assert!(bench.view().set_attributes(node, None, &set, &ME).is_err());
    assert!(bench.view().state.lock().handles.is_empty());
}

#[test]
fn a_landed_file_that_is_renamed_while_open_follows_lower_once_closed() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 1).as_bytes()).unwrap();
    bench.view().flush(handle, &ME).unwrap();
    bench.rename("a", "b");
    bench.view().release(handle).unwrap();
    bench.put("b", "outside\n");
    assert_eq!(bench.read("b"), Some("outside\n".to_owned()));
    assert!(bench.view().state.lock().uppers.iter().next().is_none());
}

#[test]
fn a_refused_creation_leaves_no_upper_file() {
    let bench = Bench::new();
    let flags = OpenFlags::from_raw(libc::O_WRONLY);
    assert!(bench.view().create(ROOT, OsStr::new("s"), 0o4755, flags, &ME).is_err());
    assert_eq!(bench.stage_files(), 0);
}

#[test]
fn a_symlink_that_was_being_made_when_the_daemon_died_does_not_keep_it_from_mounting() {
    let mut bench = Bench::new();
    let id = bench.view().store().create_upper_symlink(OsStr::new("/etc")).unwrap();
    bench.view().add_upper(id, &RelPath::parse(b"link").unwrap(), crate::store::What::Symlink).unwrap();
    bench.remount();
    assert!(bench.reasons().contains(&Reason::Symlink));
}

#[test]
fn a_row_whose_file_is_gone_does_not_keep_the_daemon_from_mounting() {
    let mut bench = Bench::new();
    let handle = bench.open_for_save("n");
    bench.view().write(handle, 0, b"x").unwrap();
    let id = bench.view().state.lock().uppers.iter().next().unwrap().row.id;
    bench.view().store().drop_upper_file(id).unwrap();
    bench.remount();
    assert_eq!(bench.read("n"), None);
}
