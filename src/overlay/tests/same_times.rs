//! Edits that leave size and modification time as they were: what a file is like is a hint, its content decides (SPEC §9).

use std::os::unix::fs::FileExt;

use super::*;
use crate::protocol::{Action, ExternalKind};

impl Bench {
    /// As `dd conv=notrunc` with `touch -r` does it.
    fn edit_unseen(&self, path: &str, content: &str) {
        let file = std::fs::OpenOptions::new().write(true).open(self.lower_path(path)).unwrap();
        let before = file.metadata().unwrap();
        file.write_all_at(content.as_bytes(), 0).unwrap();
        let times = std::fs::FileTimes::new().set_modified(before.modified().unwrap());
        file.set_times(times.set_accessed(before.accessed().unwrap())).unwrap();
        assert_eq!(file.metadata().unwrap().len(), before.len());
    }

    fn chmod_and_link_below(&self, path: &str) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(self.lower_path(path), mode).unwrap();
        std::fs::hard_link(self.lower_path(path), self.lower_path("link")).unwrap();
    }
}

#[test]
fn a_confirm_merges_with_it() {
    let bench = Bench::new();
    bench.put("a", &changed(100, 0));
    bench.save("a", &changed(100, 60));
    bench.edit_unseen("a", &lines(100).replace("line 98", "LINE 98"));
    assert_eq!(bench.view().external_paths().changed, [(RelPath::parse(b"a").unwrap(), ExternalKind::Modified)]);
    let outcomes = bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(outcomes[0].action, Action::Merged);
    assert_eq!(bench.lower("a"), Some(changed(100, 60).replace("line 98", "LINE 98")));
}

#[test]
fn or_refuses_to_go_over_it() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.edit_unseen("a", "LINE");
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap_err(), ErrorCode::Conflict);
    assert_eq!(bench.lower("a"), Some(lines(100).replacen("line", "LINE", 1)));
}

#[test]
fn what_landed_is_told_to_be_changed_and_a_new_mode_or_name_is_not() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    bench.chmod_and_link_below("a");
    assert_eq!(bench.view().external_paths().changed, []);
    bench.edit_unseen("a", "NEW");
    assert_eq!(bench.view().external_paths().changed, [(RelPath::parse(b"a").unwrap(), ExternalKind::Modified)]);
}

#[test]
fn what_is_held_after_others_in_one_window_is_based_on_what_they_left() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 5));
    bench.save("a", &changed(100, 60));
    bench.chmod_and_link_below("a");
    assert_eq!(bench.view().external_paths().changed, []);
    let sides = bench.view().sides(&bench.held()[0]).unwrap();
    assert_eq!(String::from_utf8(bytes(sides.old.unwrap())).unwrap(), changed(100, 5));
    let outcomes = bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(outcomes[0].action, Action::Applied);
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
}

/// One that nobody has landed, and one that has landed.
#[test]
fn who_has_opened_a_file_before_it_lands_over_nothing_that_he_has_not_seen() {
    for has_landed in [false, true] {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.put("a", &lines(100));
        if has_landed {
            bench.save("a", &changed(100, 1));
        }
        let handle = bench.open("a", libc::O_RDWR).unwrap();
        bench.edit_unseen("a", "NEW");
        bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
        bench.close(handle);
        assert_eq!(bench.reasons(), [Reason::Stale], "{has_landed}");
        assert!(bench.lower("a").unwrap().starts_with("NEW"));
    }
}

#[test]
fn a_new_mode_or_name_below_makes_nobody_stale_where_it_is_known_what_was_there() {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    let handle = bench.open("a", libc::O_RDWR).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(bench.lower_path("a"), mode).unwrap();
    bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
    bench.close(handle);
    assert_eq!((bench.reasons_if_held(), &bench.lower("a").unwrap()[..6]), (vec![], "new 0\n"));
}

#[test]
fn a_file_that_its_writer_renames_before_he_writes_is_what_he_has_opened() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open("a", libc::O_RDWR).unwrap();
    bench.rename("a", "b");
    bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
    bench.close(handle);
    assert_eq!((bench.reasons_if_held(), &bench.lower("b").unwrap()[..6]), (vec![], "new 0\n"));
}

/// By whom it was read, and is saved by a rename.
#[test]
fn a_save_over_it_is_stale_where_it_is_known_what_was_there() {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    bench.edit_unseen("a", "OLD");
    bench.save_by_rename("a", &changed(100, 2));
    assert_eq!(bench.reasons(), [Reason::Stale]);
    assert!(bench.lower("a").unwrap().starts_with("OLD"));
}
