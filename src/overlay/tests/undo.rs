//! Undo: what an operation did is reversed whole, by an operation that can be undone itself, or refused whole.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::XattrFlags;

use super::*;
use crate::model::OperationId;
use crate::protocol::{ErrorBody, Outcome};
use crate::store::Operation;

impl Bench {
    /// What was done last.
    pub(super) fn latest(&self) -> Operation {
        let events = self.view().store().events_since(0).unwrap();
        let last = events.iter().rev().find_map(|event| OperationId::parse(event.operation.as_ref()?));
        self.view().store().operation(last.unwrap()).unwrap().unwrap()
    }

    pub(super) fn undo(&self, operation: &Operation) -> std::result::Result<Vec<Outcome>, ErrorBody> {
        Ok(self.view().undo(operation.id, &UndoHow::default())?.outcomes)
    }

    pub(super) fn insist_on_undo(&self, operation: &Operation) -> std::result::Result<Vec<Outcome>, ErrorBody> {
        Ok(self.view().undo(operation.id, &UndoHow { force: true, ..UndoHow::default() })?.outcomes)
    }

    fn undo_latest(&self) -> Vec<Outcome> {
        self.undo(&self.latest()).unwrap()
    }

    pub(super) fn confirm_all(&self) -> Operation {
        let ids: Vec<ChangeId> = self.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
        self.confirm(&ids).unwrap();
        self.latest()
    }

    fn refused(&self, operation: &Operation, code: ErrorCode, why: &str) {
        let refusal = self.undo(operation).unwrap_err();
        assert!(refusal.code == code && refusal.message.contains(why), "{refusal:?}");
    }

    fn make_dir(&self, path: &str, mode: u32) {
        let (parent, name) = self.parent(path);
        self.view().mkdir(parent, name, mode, &ME).unwrap();
    }

    fn remove_dir(&self, path: &str) {
        let (parent, name) = self.parent(path);
        self.view().rmdir(parent, name, &ME).unwrap();
    }

    pub(super) fn set(&self, path: &str, mode: Option<u32>, uid: Option<u32>) {
        let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
        let set = SetAttributes { mode, uid, gid: uid, atime, mtime, ..SetAttributes::NOTHING };
        self.view().set_attributes(self.node(path).unwrap(), None, &set, &ME).unwrap();
    }

    pub(super) fn mode(&self, path: &str) -> u32 {
        std::fs::symlink_metadata(self.lower_path(path)).unwrap().permissions().mode() & 0o7777
    }

    /// Nothing disagrees, now and after a restart, and the view shows the project.
    fn assert_sound(&mut self) {
        assert_eq!(self.view().check().unwrap().0, []);
        let recovered = self.remount();
        assert!(recovered.is_nothing(), "{recovered:?}");
        assert_eq!(self.view().check().unwrap().0, []);
    }
}

/// A change, a creation and a deletion, held.
fn three_held(bench: &Bench) {
    bench.put("a", &lines(100));
    bench.put("gone", &lines(90));
    bench.save("a", &changed(100, 60));
    bench.save("AGENTS.md", "made\n");
    bench.unlink("gone");
}

#[test]
fn a_confirm_is_undone_as_a_whole_and_done_again() {
    let mut bench = Bench::new();
    three_held(&bench);
    std::fs::set_permissions(bench.lower_path("gone"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let confirmed = bench.confirm_all();
    assert_eq!(confirmed.effects.len(), 3);
    let outcomes = bench.undo(&confirmed).unwrap();
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.iter().all(|outcome| outcome.operation.is_some()));
    assert_eq!((bench.lower("a"), bench.lower("gone")), (Some(lines(100)), Some(lines(90))));
    assert_eq!((bench.read("a"), bench.read("gone")), (Some(lines(100)), Some(lines(90))));
    assert_eq!(bench.mode("gone"), 0o640);
    assert_eq!(bench.names(""), ["a", "gone"]);
    assert!(bench.held().is_empty());
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.lower("gone")), (Some(changed(100, 60)), None));
    assert_eq!(bench.names(""), ["AGENTS.md", "a"]);
    bench.assert_sound();
    assert_eq!(bench.names(""), ["AGENTS.md", "a"]);
}

#[test]
fn what_is_undone_already_is_told_so_and_left_alone() {
    let bench = Bench::new();
    three_held(&bench);
    let confirmed = bench.confirm_all();
    bench.undo(&confirmed).unwrap();
    bench.refused(&confirmed, ErrorCode::AlreadyApplied, "undone already");
    bench.undo_latest();
    bench.undo(&confirmed).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(100)));
}

#[test]
fn one_landing_is_an_operation_too() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    bench.undo_latest();
    assert_eq!(bench.lower("a"), Some(lines(100)));
    bench.save("new", "new\n");
    let reader = bench.view().open(bench.node("new").unwrap(), OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap();
    bench.undo_latest();
    assert_eq!((bench.lower("new"), bench.names("")), (None, vec!["a".to_owned()]));
    assert_eq!(bench.view().read(reader.handle, 0, 10).unwrap(), b"new\n");
    bench.view().release(reader.handle).unwrap();
    bench.put("small", "one\n");
    bench.unlink("small");
    bench.undo_latest();
    assert_eq!(bench.read("small"), Some("one\n".to_owned()));
    bench.assert_sound();
}

#[test]
fn a_later_edit_elsewhere_in_the_file_is_merged() {
    let bench = Bench::new();
    bench.put("a", &lines(200));
    bench.save("a", &changed(200, 60));
    let confirmed = bench.confirm_all();
    bench.put("a", &changed(200, 60).replace("line 190\n", "a person's line\n"));
    let outcomes = bench.undo(&confirmed).unwrap();
    assert_eq!(outcomes[0].note, Some(crate::protocol::Note::Merged));
    assert_eq!(bench.lower("a"), Some(lines(200).replace("line 190\n", "a person's line\n")));
    bench.undo_latest();
    assert_eq!(bench.lower("a"), Some(changed(200, 60).replace("line 190\n", "a person's line\n")));
}

#[test]
fn a_later_edit_of_the_same_lines_is_refused_with_its_paths_unless_somebody_insists() {
    let bench = Bench::new();
    three_held(&bench);
    let confirmed = bench.confirm_all();
    bench.put("a", &changed(100, 60).replace("new 3\n", "a person's line\n"));
    bench.put("gone", "made anew\n");
    let refusal = bench.undo(&confirmed).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Conflict);
    assert!(refusal.message.contains("gone: it was edited since") && refusal.message.contains(": a"), "{refusal:?}");
    assert!(bench.lower("AGENTS.md").is_some(), "nothing was undone");
    bench.insist_on_undo(&confirmed).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("gone")), (Some(lines(100)), Some(lines(90))));
    let backups = bench.view().store().backups().unwrap();
    let kept = |backup: &crate::store::Backup| bench.view().store().content(backup.digest).unwrap().unwrap();
    assert!(backups.iter().any(|backup| kept(backup) == b"made anew\n"));
}

#[test]
fn a_discard_is_undone_and_each_change_is_held_again_under_its_id() {
    let mut bench = Bench::new();
    three_held(&bench);
    let before = bench.held();
    let ids: Vec<ChangeId> = before.iter().map(|row| row.held.as_ref().unwrap().id.clone()).collect();
    bench.view().discard(&ids, &Review::default()).unwrap();
    assert_eq!(bench.names(""), ["a", "gone"]);
    let discarded = bench.latest();
    let outcomes = bench.undo(&discarded).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.action == crate::protocol::Action::Held));
    let again: Vec<ChangeId> = bench.held().iter().map(|row| row.held.as_ref().unwrap().id.clone()).collect();
    assert_eq!(again, ids);
    assert_eq!((bench.read("a"), bench.lower("a")), (Some(changed(100, 60)), Some(lines(100))));
    assert_eq!(bench.names(""), ["AGENTS.md", "a"]);
    bench.refused(&discarded, ErrorCode::AlreadyApplied, "undone already");
    bench.assert_sound();
    // The undo of that is a discard again, and what was held again can be confirmed.
    bench.undo_latest();
    assert!(bench.held().is_empty());
    bench.undo_latest();
    bench.confirm(&ids).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("gone")), (Some(changed(100, 60)), None));
    bench.assert_sound();
}

#[test]
fn a_discarded_change_whose_base_is_gone_is_not_held_over_what_came_since() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    let discarded = bench.latest();
    bench.save("a", &changed(100, 3));
    bench.refused(&discarded, ErrorCode::Conflict, "something else there since");
    assert_eq!(bench.stage_files(), 0);
    bench.insist_on_undo(&discarded).unwrap();
    assert_eq!((bench.read("a"), bench.lower("a")), (Some(changed(100, 60)), Some(changed(100, 3))));
}

#[test]
fn a_discarded_change_does_not_come_over_another_that_is_held() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    let discarded = bench.latest();
    bench.save("a", &changed(100, 70));
    bench.refused(&discarded, ErrorCode::Conflict, "something else is held");
    assert_eq!(bench.read("a"), Some(changed(100, 70)));
}

#[test]
fn a_discarded_change_does_not_come_over_what_has_come_to_a_further_name_since() {
    for is_ours in [true, false] {
        let mut bench = Bench::new();
        bench.save("AGENTS.md", "made\n");
        bench.link("AGENTS.md", "further");
        bench.discard_all().unwrap();
        let discarded = bench.latest();
        match is_ours {
            true => bench.save("further", "small\n"),
            false => bench.put("further", "small\n"),
        }
        let handle = bench.open_to_write("further");
        bench.refused(&discarded, ErrorCode::Conflict, "further: the project has something there");
        assert_eq!(bench.insist_on_undo(&discarded).unwrap_err().code, ErrorCode::Conflict);
        bench.write_and_close(handle, 6, "more\n");
        assert_eq!(["further", "AGENTS.md"].map(|name| bench.lower(name)), [Some("small\nmore\n".to_owned()), None]);
        bench.unlink("further");
        bench.undo(&discarded).unwrap();
        assert_eq!(
            ["further", "AGENTS.md"].map(|name| bench.read(name)),
            ["made\n"; 2].map(|made| Some(made.to_owned()))
        );
        bench.assert_sound();
    }
}

/// Each of its names needs a directory.
#[test]
fn a_discarded_change_does_not_come_back_with_a_name_in_what_is_no_directory_any_more() {
    let bench = Bench::new();
    bench.put("dir/other", "o\n");
    bench.save("AGENTS.md", "made\n");
    bench.link("AGENTS.md", "dir/further");
    bench.discard_all().unwrap();
    std::fs::remove_dir_all(bench.lower_path("dir")).unwrap();
    bench.put("dir", "a file\n");
    bench.refused(&bench.latest(), ErrorCode::Conflict, "dir/further: dir is not a directory any more");
}

/// Who has it open to read sees what he has open.
#[test]
fn no_symlink_comes_back_over_a_file_that_somebody_may_still_write() {
    const LINK: &str = "AGENTS.md";
    let roll_back: fn(&Bench) -> std::result::Result<(), ErrorCode> = |bench| {
        let backups = bench.view().store().backups().unwrap();
        bench.view().rollback(&backups[..1], &RollbackHow::default()).map(drop).map_err(|refusal| refusal.code)
    };
    let undo: fn(&Bench) -> std::result::Result<(), ErrorCode> =
        |bench| bench.undo(&bench.latest()).map(drop).map_err(|refusal| refusal.code);
    for comes_back in [roll_back, undo] {
        let bench = Bench::new();
        symlink("nowhere", bench.lower_path(LINK)).unwrap();
        bench.unlink(LINK);
        bench.save(LINK, "a file\n");
        bench.confirm(&[bench.only_id()]).unwrap();
        assert_eq!(bench.lower(LINK).as_deref(), Some("a file\n"));
        let (reading, writing) = (bench.open_to_read(bench.node(LINK).unwrap()), bench.open_to_write(LINK));
        assert_eq!(comes_back(&bench), Err(ErrorCode::Busy));
        bench.write_and_close(writing, 0, "A");
        assert_eq!(bench.read(LINK).as_deref(), Some("A file\n"));
        bench.close(reading);
        bench.check();
    }
}

/// Nobody can go on writing to a symlink or directory.
#[test]
fn what_is_no_file_does_not_come_back_over_what_somebody_has_open_for_writing() {
    let link: fn(&Bench) = |bench| {
        bench.view().symlink(ROOT, "f".as_ref(), "/etc/passwd".as_ref(), &ME).unwrap();
    };
    let dir: fn(&Bench) = |bench| bench.make_dir("f", 0o755);
    for (is_based, make) in [(false, link), (true, link), (true, dir)] {
        let mut bench = Bench::new();
        if is_based {
            bench.put("f", &lines(100));
            bench.unlink("f");
        }
        make(&bench);
        bench.discard_all().unwrap();
        let discarded = bench.latest();
        if !is_based {
            bench.put("f", &lines(100));
        }
        let handle = bench.open_to_write("f");
        let refusal = bench.insist_on_undo(&discarded).unwrap_err();
        assert!(refusal.code == ErrorCode::Busy && refusal.message.contains("open for writing"), "{refusal:?}");
        bench.write_and_close(handle, 0, "LINE");
        assert_eq!(bench.lower("f"), Some(lines(100).replacen("line", "LINE", 1)));
        bench.insist_on_undo(&discarded).unwrap();
        bench.assert_sound();
    }
}

#[test]
fn what_is_being_judged_is_said_to_be_in_an_undos_way() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let landed = bench.latest();
    let (view, path) = (bench.view(), RelPath::parse(b"a").unwrap());
    let hidden = view.hide(&path, &view.lower().stat(&path).unwrap().unwrap()).unwrap();
    let (_, claim) = view.claim(hidden).unwrap();
    bench.refused(&landed, ErrorCode::Busy, "a is being judged");
    drop(claim);
    view.state.lock().uppers.remove(hidden);
    bench.undo(&landed).unwrap();
}

#[test]
fn directories_that_were_made_and_removed_go_and_come_back() {
    let mut bench = Bench::new();
    bench.make_dir("d", 0o750);
    let made = bench.latest();
    bench.undo(&made).unwrap();
    assert_eq!((bench.lower_names().len(), bench.names("").len()), (0, 0));
    bench.refused(&made, ErrorCode::AlreadyApplied, "undone already");
    bench.undo_latest();
    assert_eq!(bench.mode("d"), 0o750);
    bench.save("d/x", "x\n");
    bench.refused(&made, ErrorCode::Conflict, "not empty");
    bench.unlink("d/x");
    bench.save("d/AGENTS.md", "held\n");
    bench.refused(&made, ErrorCode::Conflict, "not empty");
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    bench.remove_dir("d");
    let removed = bench.latest();
    bench.undo(&removed).unwrap();
    assert_eq!((bench.mode("d"), bench.names("")), (0o750, vec!["d".to_owned()]));
    bench.assert_sound();
}

#[test]
fn renames_go_back_with_what_is_held() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.rename("a", "b");
    bench.undo_latest();
    assert_eq!((bench.lower_names(), bench.names("")), (vec!["a".to_owned()], vec!["a".to_owned()]));
    bench.put("d/x", &lines(100));
    bench.save("d/x", &changed(100, 60));
    let id = bench.only_id();
    bench.rename("d", "e");
    let renamed = bench.latest();
    assert_ne!(bench.only_id(), id);
    bench.make_dir("d", 0o755);
    bench.refused(&renamed, ErrorCode::Conflict, "d: something else is there now");
    bench.remove_dir("d");
    bench.undo(&renamed).unwrap();
    assert_eq!(bench.only_id(), id);
    assert_eq!((bench.read("d/x"), bench.names("")), (Some(changed(100, 60)), vec!["a".to_owned(), "d".to_owned()]));
    bench.refused(&renamed, ErrorCode::AlreadyApplied, "undone already");
    bench.undo_latest();
    assert_eq!(bench.names(""), ["a", "e"]);
    bench.assert_sound();
}

#[test]
fn an_exchange_of_directories_is_undone_by_another() {
    let mut bench = Bench::new();
    bench.put("d/x", "x\n");
    bench.put("e/y", "y\n");
    let ((one_dir, one), (other_dir, other)) = (bench.parent("d"), bench.parent("e"));
    bench.view().rename(one_dir, one, other_dir, other, RenameFlags::EXCHANGE, &ME).unwrap();
    assert_eq!(bench.names("d"), ["y"]);
    bench.undo_latest();
    assert_eq!((bench.names("d"), bench.names("e")), (vec!["x".to_owned()], vec!["y".to_owned()]));
    bench.assert_sound();
}

#[test]
fn symlinks_links_and_special_files_go_again() {
    let mut bench = Bench::new();
    bench.put("a", "one\n");
    bench.view().symlink(ROOT, OsStr::new("l"), OsStr::new("a"), &ME).unwrap();
    let linked = bench.latest();
    bench.undo(&linked).unwrap();
    assert_eq!(bench.names(""), ["a"]);
    bench.undo_latest();
    assert_eq!(std::fs::read_link(bench.lower_path("l")).unwrap().to_str(), Some("a"));
    std::fs::remove_file(bench.lower_path("l")).unwrap();
    symlink("elsewhere", bench.lower_path("l")).unwrap();
    bench.refused(&linked, ErrorCode::Conflict, "edited since");
    std::fs::remove_file(bench.lower_path("l")).unwrap();
    bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
    let linked = bench.latest();
    bench.undo(&linked).unwrap();
    assert_eq!((bench.names(""), bench.lower("a")), (vec!["a".to_owned()], Some("one\n".to_owned())));
    bench.view().mknod(ROOT, OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    bench.undo_latest();
    assert_eq!(bench.names(""), ["a"]);
    bench.undo_latest();
    assert!(bench.lower_path("pipe").metadata().unwrap().file_type().is_fifo(), "made again");
    bench.assert_sound();
}

#[test]
fn a_deleted_special_file_comes_back_as_it_was() {
    let mut bench = Bench::new();
    bench.put("d/a", "one\n");
    bench.view().mknod(bench.node("d").unwrap(), OsStr::new("pipe"), libc::S_IFIFO | 0o640, 0, &ME).unwrap();
    let was = bench.lower_path("d/pipe").metadata().unwrap();
    bench.unlink("d/pipe");
    let deleted = bench.latest();
    assert_eq!(bench.names("d"), ["a"]);
    bench.put("d/pipe", "something else\n");
    bench.refused(&deleted, ErrorCode::Conflict, "something else has taken its place");
    std::fs::remove_file(bench.lower_path("d/pipe")).unwrap();
    bench.undo(&deleted).unwrap();
    let now = bench.lower_path("d/pipe").metadata().unwrap();
    let looks = |meta: &std::fs::Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.modified().unwrap());
    assert_eq!((looks(&now), bench.names("d")), (looks(&was), vec!["a".to_owned(), "pipe".to_owned()]));
    bench.refused(&deleted, ErrorCode::AlreadyApplied, "everything is as it was");
    bench.undo_latest();
    assert_eq!(bench.names("d"), ["a"]);
    bench.assert_sound();
}

#[test]
fn the_only_name_of_some_content_is_not_taken_for_a_link() {
    let bench = Bench::new();
    bench.put("a", "one\n");
    bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
    let linked = bench.latest();
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    bench.refused(&linked, ErrorCode::Conflict, "edited since");
    assert_eq!(bench.lower("b"), Some("one\n".to_owned()));
}

#[test]
fn modes_and_owners_go_back_as_far_as_nobody_has_changed_them_since() {
    let mut bench = Bench::new();
    bench.put("a", "one\n");
    std::fs::set_permissions(bench.lower_path("a"), std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.set("a", Some(0o755), None);
    let changed = bench.latest();
    bench.undo(&changed).unwrap();
    assert_eq!(bench.mode("a"), 0o600);
    bench.undo_latest();
    assert_eq!(bench.mode("a"), 0o755);
    std::fs::set_permissions(bench.lower_path("a"), std::fs::Permissions::from_mode(0o640)).unwrap();
    bench.refused(&changed, ErrorCode::Conflict, "changed since");
    bench.insist_on_undo(&changed).unwrap();
    assert_eq!(bench.mode("a"), 0o600);
    bench.set("a", None, Some(7));
    assert_eq!(std::fs::metadata(bench.lower_path("a")).unwrap().uid(), 7);
    bench.undo_latest();
    let meta = std::fs::metadata(bench.lower_path("a")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (0, 0));
    bench.assert_sound();
}

/// Opened, a FIFO lets go of who waits for its other end, a socket cannot be, and neither can be synced.
#[test]
fn the_modes_of_special_files_and_symlinks_owners_go_back_and_nothing_is_opened() {
    let mut bench = Bench::new();
    for (name, kind) in [("pipe", libc::S_IFIFO), ("socket", libc::S_IFSOCK)] {
        bench.view().mknod(ROOT, OsStr::new(name), kind | 0o600, 0, &ME).unwrap();
        bench.set(name, Some(0o666), None);
        bench.undo_latest();
        assert_eq!(bench.mode(name), 0o600, "{name}");
    }
    symlink("a", bench.lower_path("l")).unwrap();
    bench.set("l", None, Some(7));
    bench.undo_latest();
    assert_eq!(std::fs::symlink_metadata(bench.lower_path("l")).unwrap().uid(), 0);
    assert_eq!(bench.view().fault(), None);
    bench.assert_sound();
}

#[test]
fn a_rename_over_an_older_file_brings_both_back() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.put("b", &changed(100, 2));
    bench.rename("b", "a");
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 2)), None));
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(changed(100, 2))));
    bench.assert_sound();
}

#[test]
fn a_rename_over_an_older_file_of_the_same_bytes_brings_its_attributes_and_is_undone() {
    let mut bench = Bench::new();
    let name = OsStr::new("user.colour");
    let looks = |bench: &Bench, path: &str| {
        let file = std::fs::File::open(bench.lower_path(path)).unwrap();
        let mode = file.metadata().unwrap().mode() & 0o777;
        (mode, crate::sys::xattr::find(file.as_fd(), name).unwrap())
    };
    for (path, colour, mode) in [("a", "blue", 0o644), ("b", "red", 0o755)] {
        bench.put(path, &lines(100));
        let file = std::fs::File::open(bench.lower_path(path)).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        crate::sys::xattr::set(file.as_fd(), name, colour.as_bytes(), XattrFlags::empty()).unwrap();
    }
    bench.rename("b", "a");
    assert_eq!((looks(&bench, "a"), bench.lower("b")), ((0o755, Some(b"red".to_vec())), None));
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(lines(100))));
    assert_eq!((looks(&bench, "a").0, looks(&bench, "b").0), (0o644, 0o755));
    bench.assert_sound();
}

#[test]
fn a_temporary_file_that_was_renamed_over_another_does_not_come_back() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a.tmp", &changed(100, 2));
    bench.rename("a.tmp", "a");
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.lower_names()), (Some(lines(100)), vec!["a".to_owned()]));
}

#[test]
fn a_rollback_is_undone() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let backup = bench.view().store().backups().unwrap();
    bench.view().rollback(&backup, &RollbackHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(100)));
    bench.undo_latest();
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
}

#[test]
fn all_names_of_a_file_go_back_together() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 2));
    assert_eq!(bench.lower("b"), Some(changed(100, 2)));
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(lines(100))));
    assert_eq!(std::fs::metadata(bench.lower_path("a")).unwrap().nlink(), 2);
}

#[test]
fn directories_come_and_go_with_the_files_of_a_confirm() {
    let mut bench = Bench::new();
    for number in 0..3 {
        bench.put(&format!("old/f{number}"), &lines(100));
    }
    std::fs::set_permissions(bench.lower_path("old"), std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::create_dir_all(bench.lower_path("d/deep")).unwrap();
    bench.save("d/deep/AGENTS.md", "made\n");
    for number in 0..3 {
        bench.unlink(&format!("old/f{number}"));
    }
    bench.remove_dir("old");
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    let confirmed = bench.confirm_all();
    assert_eq!((bench.lower_names(), bench.lower("d/deep/AGENTS.md")), (vec!["d".to_owned()], Some("made\n".into())));
    bench.undo(&confirmed).unwrap();
    assert_eq!((bench.lower_names(), bench.names("")), (vec!["old".to_owned()], vec!["old".to_owned()]));
    assert_eq!((bench.mode("old"), bench.lower("old/f2")), (0o711, Some(lines(100))));
    bench.undo_latest();
    assert_eq!((bench.lower_names(), bench.lower("d/deep/AGENTS.md")), (vec!["d".to_owned()], Some("made\n".into())));
    bench.assert_sound();
}

#[test]
fn a_directory_that_somebody_uses_since_stays() {
    let bench = Bench::new();
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    bench.save("d/AGENTS.md", "made\n");
    std::fs::remove_dir(bench.lower_path("d")).unwrap();
    let confirmed = bench.confirm_all();
    bench.save("d/CLAUDE.md", "held\n");
    bench.undo(&confirmed).unwrap();
    assert_eq!(bench.names("d"), ["CLAUDE.md"]);
    assert_eq!(bench.read("d/CLAUDE.md"), Some("held\n".to_owned()));
}

#[test]
fn a_directory_goes_with_what_came_in_it_though_a_deletion_is_held_there() {
    let mut bench = Bench::new();
    for path in ["d/c", "d/gone"] {
        bench.put(path, &lines(100));
        bench.unlink(path);
    }
    bench.rmdir("d").unwrap();
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    bench.mkdir("d");
    bench.save("d/c", &changed(100, 90));
    let deletion = bench.id_of("d/gone");
    bench.view().confirm(&[bench.id_of("d/c")], &ConfirmHow { force: true, ..HOW }).unwrap();
    let confirmed = bench.latest();
    for _ in 0..2 {
        assert_eq!((bench.lower("d/c"), bench.only_id()), (Some(changed(100, 90)), deletion.clone()));
        bench.undo(&confirmed).unwrap();
        assert_eq!((bench.lower_names(), bench.names("")), (vec![], vec![]));
        assert_eq!(bench.only_id(), deletion);
        bench.undo_latest();
    }
    bench.assert_sound();
}

#[test]
fn a_directory_that_was_made_goes_though_a_deletion_is_held_in_it_and_stays_for_what_shows() {
    let bench = Bench::new();
    bench.make_dir("d", 0o755);
    let made = bench.latest();
    bench.decided();
    bench.put("d/gone", &lines(100));
    bench.unlink("d/gone");
    bench.refused(&made, ErrorCode::Conflict, "the directory is not empty");
    std::fs::remove_file(bench.lower_path("d/gone")).unwrap();
    bench.save("d/AGENTS.md", "held\n");
    bench.refused(&made, ErrorCode::Conflict, "the directory is not empty");
    bench.discard("d/AGENTS.md");
    bench.undo(&made).unwrap();
    assert_eq!((bench.lower_names(), bench.names("")), (vec![], vec![]));
    assert_eq!(bench.waiting().len(), 1, "the deletion waits on");
}

#[test]
fn what_took_the_place_of_a_directory_does_not_go_without_that() {
    type Made = fn(&Bench);
    let file: Made = |bench| bench.save("k", "file\n");
    let link: Made = |bench| bench.view().symlink(ROOT, OsStr::new("k"), OsStr::new("to"), &ME).map(drop).unwrap();
    for made in [file, link] {
        for is_emptied_before in [true, false] {
            let mut bench = Bench::new();
            bench.put("k/z", &lines(100));
            std::fs::set_permissions(bench.lower_path("k"), std::fs::Permissions::from_mode(0o711)).unwrap();
            bench.unlink("k/z");
            bench.rmdir("k").unwrap();
            made(&bench);
            if is_emptied_before {
                bench.confirm(&[bench.id_of("k/z")]).unwrap();
            }
            let confirmed = bench.confirm_all();
            let kind = |bench: &Bench| std::fs::symlink_metadata(bench.lower_path("k")).unwrap().file_type();
            let was = kind(&bench);
            assert!(!was.is_dir());
            bench.refused(&confirmed, ErrorCode::Conflict, "k: something else has taken the directory's place");
            assert_eq!(bench.insist_on_undo(&confirmed).unwrap_err().code, ErrorCode::Conflict);
            assert_eq!((kind(&bench), bench.lower("k/z")), (was, None));
            // Once it is out of the way the directory is back, as it was.
            bench.unlink("k");
            bench.undo(&confirmed).unwrap();
            assert_eq!((bench.mode("k"), bench.lower("k/z").is_none()), (0o711, is_emptied_before));
            assert_eq!(bench.names("k").is_empty(), is_emptied_before);
            bench.assert_sound();
        }
    }
}

#[test]
fn what_somebody_has_open_for_writing_is_not_undone_under_him() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let landed = bench.latest();
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, b"half").unwrap();
    bench.refused(&landed, ErrorCode::Busy, "has it open for writing");
    bench.close(handle);
}

/// `close` returns before the release comes, on a busy machine long before.
#[test]
fn who_has_just_closed_it_is_in_no_undos_way() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    // Above any pid that the kernel gives, so that nobody has it open.
    let who = Caller { pid: 1 << 23, ..ME };
    let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
    let handle = bench.view().open(bench.node("a").unwrap(), flags, &who).unwrap().handle;
    bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
    bench.view().flush(handle, &who).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| answer.send(bench.view().undo(bench.latest().id, &UndoHow::default())).unwrap());
        assert_eq!(answered.recv_timeout(Duration::from_millis(200)).map_err(|_| "waits"), Err("waits"));
        bench.view().release(handle).unwrap();
        answered.recv().unwrap().unwrap();
    });
    assert_eq!(bench.lower("a"), Some(lines(100)));
}

#[test]
fn what_was_done_in_a_directory_that_is_not_there_any_more_is_refused() {
    let bench = Bench::new();
    bench.put("d/s/f", &lines(100));
    bench.rename("d/s", "d/t");
    let renamed = bench.latest();
    bench.unlink("d/t/f");
    // Held, with what is deleted in them.
    bench.remove_dir("d/t");
    bench.remove_dir("d");
    bench.refused(&renamed, ErrorCode::Conflict, "d/s: the removal of d waits for review");
    assert_eq!(bench.insist_on_undo(&renamed).unwrap_err().code, ErrorCode::Conflict);
    let bench = Bench::new();
    std::fs::create_dir_all(bench.lower_path("d/s/t")).unwrap();
    bench.remove_dir("d/s/t");
    bench.remove_dir("d/s");
    let removed = bench.latest();
    assert_eq!(removed.effects.len(), 2);
    std::fs::remove_dir(bench.lower_path("d")).unwrap();
    bench.put("d", "a file\n");
    bench.refused(&removed, ErrorCode::Conflict, "d is not a directory any more");
    assert_eq!(bench.insist_on_undo(&removed).unwrap_err().code, ErrorCode::Conflict);
}

#[test]
fn rules_hold_for_an_undo_and_a_dry_run_does_nothing() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let landed = bench.latest();
    let dry = UndoHow { review: Review { dry_run: true, ..Review::default() }, ..UndoHow::default() };
    let outcomes = bench.view().undo(landed.id, &dry).unwrap().outcomes;
    assert_eq!((outcomes.len(), bench.lower("a")), (1, Some(changed(100, 2))));
    assert_eq!(bench.latest(), landed);
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"a\"\naction = \"freeze\"\n");
    bench.remount();
    bench.refused(&landed, ErrorCode::NotPermitted, "a rule keeps a from being written");
}

#[test]
fn what_refuses_one_name_keeps_an_undo_and_a_rollback_from_writing_through_another() {
    for action in ["freeze", "deny"] {
        let mut bench = Bench::new();
        bench.put("a", &lines(100));
        std::fs::create_dir(bench.lower_path("ice")).unwrap();
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("ice/b")).unwrap();
        bench.save("a", &changed(100, 2));
        let landed = bench.latest();
        bench.set("a", Some(0o600), None);
        let chmod = bench.latest();
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"ice/**\"\naction = \"{action}\"\n"));
        bench.remount();
        bench.refused(&landed, ErrorCode::NotPermitted, "a rule keeps ice/b from being written");
        bench.refused(&chmod, ErrorCode::NotPermitted, "a rule keeps ice/b from being written");
        let backup = bench.view().store().backups().unwrap().remove(0);
        let to = |path: &[u8]| RollbackHow { to: Some(RelPath::parse(path).unwrap()), ..RollbackHow::default() };
        for how in [RollbackHow::default(), to(b"a"), RollbackHow { force: true, ..to(b"a") }] {
            let refusal = bench.view().rollback(std::slice::from_ref(&backup), &how).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::NotPermitted, "{how:?}");
            assert_eq!(refusal.message, "a rule keeps ice/b from being written");
        }
        assert_eq!((bench.lower("ice/b"), bench.mode("ice/b")), (Some(changed(100, 2)), 0o600));
        bench.view().rollback(&[backup], &to(b"free")).unwrap();
        assert_eq!(bench.lower("free"), Some(lines(100)));
    }
}

#[test]
fn a_change_that_is_held_over_what_is_undone_goes_on_against_that() {
    let mut bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let landed = bench.latest();
    bench.pauses();
    bench.save("a", &changed(100, 60));
    let id = bench.only_id();
    bench.undo(&landed).unwrap();
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(lines(100)), Some(changed(100, 60))));
    assert_ne!(bench.only_id(), id);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
    bench.assert_sound();
}

#[test]
fn content_that_was_purged_is_missed_and_nothing_is_undone() {
    let bench = Bench::new();
    three_held(&bench);
    let confirmed = bench.confirm_all();
    let limits = crate::policy::settings::BackupLimits { age_max: None, per_path_max: 0, quota_bytes: 0 };
    bench.view().store().forget_uses();
    bench.view().store().purge(&limits, &bench.view().needed_content()).unwrap();
    bench.refused(&confirmed, ErrorCode::UnknownBackup, "not kept any more");
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
}

/// A change of `a` that was discarded in a session that has ended, and what somebody else has made of `a` since.
fn discarded_before(change: impl Fn(&Bench)) -> (Bench, Operation) {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    change(&bench);
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    let discarded = bench.latest();
    bench.view().session_ended().unwrap();
    bench.remount();
    bench.put("a", &lines(100).replace("line 90\n", "by a person\n"));
    (bench, discarded)
}

#[test]
fn what_is_held_again_is_based_on_what_it_was_also_after_the_session() {
    let (mut bench, discarded) = discarded_before(|bench| bench.save("a", &changed(100, 60)));
    bench.insist_on_undo(&discarded).unwrap();
    bench.assert_sound();
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a").unwrap(), changed(100, 60).replace("line 90\n", "by a person\n"));
    let (mut bench, discarded) = discarded_before(|bench| bench.unlink("a"));
    bench.insist_on_undo(&discarded).unwrap();
    assert_eq!((bench.names(""), bench.held().len()), (vec![], 1));
    bench.assert_sound();
}

#[test]
fn what_has_no_base_any_more_is_not_held_again() {
    let (bench, discarded) = discarded_before(|bench| bench.unlink("a"));
    let limits = crate::policy::settings::BackupLimits {
        age_max: Some(Duration::ZERO),
        per_path_max: 100,
        quota_bytes: 1 << 30,
    };
    bench.view().store().purge(&limits, &bench.view().needed_content()).unwrap();
    let refused = bench.insist_on_undo(&discarded).unwrap_err();
    assert_eq!((refused.code, bench.held().len()), (ErrorCode::Conflict, 0), "{}", refused.message);
    assert!(refused.message.contains("is not kept any more"), "{}", refused.message);
}

#[test]
fn directories_that_were_held_come_and_go_with_what_is_in_them() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    bench.unlink("f");
    bench.make_dir("f", 0o750);
    bench.make_dir("f/deep", 0o755);
    bench.save("f/deep/x", "x\n");
    bench.view().mknod(bench.node("f").unwrap(), OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    // What is in a directory goes and comes back with it, but for the pipe.
    bench.view().discard(&ids, &Review::default()).unwrap();
    bench.refused(&bench.latest(), ErrorCode::Conflict, "does not come back");
    let mut bench = Bench::new();
    bench.put("f", &lines(100));
    bench.unlink("f");
    bench.make_dir("f", 0o750);
    bench.make_dir("f/deep", 0o755);
    bench.save("f/deep/x", "x\n");
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.view().discard(&ids, &Review::default()).unwrap();
    bench.undo_latest();
    let again: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    assert_eq!((again, bench.read("f/deep/x")), (ids.clone(), Some("x\n".to_owned())));
    bench.assert_sound();
    bench.confirm(&ids).unwrap();
    assert_eq!((bench.lower("f/deep/x"), bench.mode("f")), (Some("x\n".to_owned()), 0o750));
}

#[test]
fn a_directory_that_was_confirmed_goes_again_with_what_came_in_it() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"held\"\naction = \"hold\"\n");
    bench.remount();
    bench.make_dir("held", 0o750);
    bench.make_dir("held/deep", 0o711);
    bench.save("held/deep/x", "x\n");
    bench.view().mknod(bench.node("held").unwrap(), OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    let confirmed = bench.confirm_all();
    assert_eq!(bench.lower("held/deep/x"), Some("x\n".to_owned()));
    bench.undo(&confirmed).unwrap();
    assert_eq!(
        (bench.lower_names(), bench.names("")),
        (vec![".fettle.toml".to_owned()], vec![".fettle.toml".to_owned()])
    );
    bench.undo_latest();
    assert_eq!((bench.lower("held/deep/x"), bench.mode("held/deep")), (Some("x\n".to_owned()), 0o711));
    assert!(bench.lower_path("held/pipe").metadata().unwrap().file_type().is_fifo(), "made again");
    assert_eq!(bench.names("held"), ["deep", "pipe"]);
    bench.undo_latest();
    assert_eq!(bench.lower_names(), [".fettle.toml"]);
    bench.assert_sound();
}

/// A confirmed rewrite of most of `a`, and the backup of what it replaced.
fn rewritten(bench: &Bench) -> crate::store::Backup {
    bench.put("a", &lines(200));
    bench.save("a", &changed(200, 60));
    bench.confirm_all();
    bench.view().store().backups().unwrap().remove(0)
}

fn rolled_back(bench: &Bench, backup: &crate::store::Backup) -> std::result::Result<Vec<Outcome>, ErrorBody> {
    bench.view().rollback(std::slice::from_ref(backup), &RollbackHow::default())
}

#[test]
fn a_rollback_merges_a_later_edit_elsewhere_in_the_file() {
    let mut bench = Bench::new();
    let backup = rewritten(&bench);
    let edited = changed(200, 60).replace("line 190\n", "a person's line\n");
    bench.put("a", &edited);
    let outcomes = rolled_back(&bench, &backup).unwrap();
    let merged = lines(200).replace("line 190\n", "a person's line\n");
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(merged.clone()), Some(merged.clone())));
    assert_eq!((outcomes[0].note, outcomes[0].size), (Some(crate::protocol::Note::Merged), Some(merged.len() as u64)));
    let kept = bench.view().store().backups().unwrap().remove(0);
    assert_eq!(Some(&kept.name), outcomes[0].backup.as_ref());
    assert_eq!(bench.view().store().content(kept.digest).unwrap(), Some(edited.clone().into_bytes()));
    bench.undo_latest();
    assert_eq!(bench.lower("a"), Some(edited));
    bench.assert_sound();
}

#[test]
fn a_rollback_over_a_later_edit_of_the_same_lines_is_refused_with_them() {
    let bench = Bench::new();
    let backup = rewritten(&bench);
    let edited = changed(200, 60).replace("new 3\n", "a person's line\n");
    bench.put("a", &edited);
    let refusal = rolled_back(&bench, &backup).unwrap_err();
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("edited since"), "{refusal:?}");
    assert!(refusal.detail.is_some_and(|hunks| hunks.contains("a person's line")));
    let to = RollbackHow { to: Some(RelPath::parse(b"b").unwrap()), ..RollbackHow::default() };
    bench.view().rollback(std::slice::from_ref(&backup), &to).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(edited), Some(lines(200))));
    let insists = RollbackHow { force: true, ..RollbackHow::default() };
    bench.view().rollback(std::slice::from_ref(&backup), &insists).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(200)));
}

#[test]
fn a_rollback_does_not_go_under_who_has_the_file_open_for_writing() {
    let bench = Bench::new();
    let backup = rewritten(&bench);
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, b"begun\n").unwrap();
    let refusal = rolled_back(&bench, &backup).unwrap_err();
    assert!(refusal.code == ErrorCode::Busy && refusal.message.contains("open for writing"), "{refusal:?}");
    assert_eq!(bench.lower("a"), Some(changed(200, 60)));
    bench.close(handle);
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    rolled_back(&bench, &backup).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(200)));
}

/// Its writer goes on with what it has written, by whichever of the file's names it was opened.
#[test]
fn a_rollback_to_one_name_does_not_go_under_who_writes_by_another() {
    for known in [&["a", "b"][..], &["b", "a"], &["b"]] {
        let bench = Bench::new();
        bench.put("a", &lines(200));
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
        for name in known {
            bench.node(name).unwrap();
        }
        let handle = bench.open_to_write("b");
        bench.view().write(handle, 0, b"LINE").unwrap();
        bench.view().flush(handle, &ME).unwrap();
        let written = lines(200).replacen("line", "LINE", 1);
        assert_eq!(bench.lower("a"), Some(written.clone()));
        let backup = bench.view().store().backups().unwrap().remove(0);
        let roll_back_to = |name: &str| {
            let to = Some(RelPath::parse(name.as_bytes()).unwrap());
            bench.view().rollback(std::slice::from_ref(&backup), &RollbackHow { to, ..RollbackHow::default() })
        };
        for to in ["a", "b"] {
            let refusal = roll_back_to(to).map_err(|refusal| refusal.code);
            assert_eq!(refusal.unwrap_err(), ErrorCode::Busy, "{known:?}, to {to}");
        }
        assert_eq!(["a", "b"].map(|name| bench.lower(name).unwrap()), [&written[..]; 2]);
        bench.close(handle);
        roll_back_to("b").unwrap();
        assert_eq!(["a", "b"].map(|name| bench.read(name).unwrap()), [lines(200), lines(200)]);
        bench.check();
    }
}

/// `touch -d @SECONDS`.
fn touch(bench: &Bench, path: &str, seconds: i64) {
    let at = SetTime::At(Timestamp { seconds, nanoseconds: 0 });
    let set = SetAttributes { atime: at, mtime: at, ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node(path).unwrap(), None, &set, &ME).unwrap();
}

#[test]
fn times_go_back_unless_something_has_been_written_since() {
    let mut bench = Bench::new();
    bench.put("a", "one\n");
    let mtime = |bench: &Bench| std::fs::metadata(bench.lower_path("a")).unwrap().mtime();
    let first = mtime(&bench);
    touch(&bench, "a", 1_000);
    let touched = bench.latest();
    assert_eq!(mtime(&bench), 1_000);
    bench.undo(&touched).unwrap();
    assert_eq!(mtime(&bench), first);
    bench.undo_latest();
    assert_eq!(mtime(&bench), 1_000);
    bench.put("a", "two\n");
    bench.refused(&touched, ErrorCode::Conflict, "changed since");
    bench.insist_on_undo(&touched).unwrap();
    assert_eq!((mtime(&bench), bench.lower("a")), (first, Some("two\n".to_owned())));
    bench.assert_sound();
}

#[test]
fn extended_attributes_come_and_go_back() {
    let mut bench = Bench::new();
    bench.put("a", "one\n");
    let name = OsStr::new("user.origin");
    let value = |bench: &Bench| bench.view().get_xattr(bench.node("a").unwrap(), name).ok();
    let set = |bench: &Bench, value: &[u8]| {
        bench.view().set_xattr(bench.node("a").unwrap(), name, value, XattrFlags::empty(), &ME).unwrap();
    };
    set(&bench, b"here");
    let made = bench.latest();
    set(&bench, b"there");
    bench.refused(&made, ErrorCode::Conflict, "changed since");
    bench.undo_latest();
    assert_eq!(value(&bench), Some(b"here".to_vec()));
    bench.undo(&made).unwrap();
    assert_eq!(value(&bench), None);
    bench.undo_latest();
    assert_eq!(value(&bench), Some(b"here".to_vec()));
    bench.view().remove_xattr(bench.node("a").unwrap(), name, &ME).unwrap();
    bench.undo_latest();
    assert_eq!(value(&bench), Some(b"here".to_vec()));
    bench.assert_sound();
}

#[test]
fn what_is_held_since_goes_on_with_the_attributes_that_an_undo_gives_back() {
    type Act = fn(&Bench);
    let changes: [Act; 4] = [
        |bench| bench.set("a", Some(0o755), None),
        |bench| bench.set("a", None, Some(7)),
        |bench| bench.colour("a", "red"),
        |bench| touch(bench, "a", 1_000),
    ];
    for change in changes {
        let mut bench = Bench::new();
        bench.put("a", &lines(100));
        let before = bench.looks_below("a");
        change(&bench);
        let changed_looks = bench.latest();
        bench.save("a", &changed(100, 60));
        bench.undo(&changed_looks).unwrap();
        assert_eq!(bench.looks_below("a"), before);
        assert_eq!(bench.looks_shown("a"), before, "the view shows it at once");
        assert_eq!(bench.view().check().unwrap().0, []);
        bench.remount();
        assert_eq!(bench.view().check().unwrap().0, []);
        bench.confirm_all();
        assert_eq!((bench.lower("a"), bench.looks_below("a")), (Some(changed(100, 60)), before));
    }
}

#[test]
fn what_is_held_keeps_the_attributes_of_its_own_when_others_are_given_back() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.set("a", Some(0o755), None);
    let (made_executable, before) = (bench.latest(), bench.looks_below("a"));
    bench.save("a", &changed(100, 60));
    bench.set("a", Some(0o700), None);
    bench.undo(&made_executable).unwrap();
    assert_eq!((bench.mode("a"), bench.looks_shown("a")), (0o644, (0o700, before.1, None)));
}

#[test]
fn what_was_made_in_this_session_has_no_times_or_attributes_to_go_back_to() {
    let bench = Bench::new();
    bench.save("a", "made\n");
    let before = bench.view().store().events_since(0).unwrap().len();
    touch(&bench, "a", 1_000);
    let node = bench.node("a").unwrap();
    bench.view().set_xattr(node, OsStr::new("user.origin"), b"here", XattrFlags::empty(), &ME).unwrap();
    assert_eq!(bench.view().store().events_since(0).unwrap().len(), before);
}

/// Every save is judged alone.
fn each_alone() -> Bench {
    Bench::with(&[(Key::Window, "0")])
}

#[test]
fn what_is_held_over_what_an_undo_removes_goes_on_waiting() {
    let mut bench = each_alone();
    bench.save("a", &lines(50));
    let created = bench.latest();
    bench.view().go_ends(ME.pid);
    bench.save("a", &lines(500));
    bench.undo(&created).unwrap();
    assert_eq!((bench.lower("a"), bench.read("a")), (None, Some(lines(500))));
    assert_eq!((bench.held().len(), bench.reasons()), (1, vec![Reason::Size]));
    bench.assert_sound();
}

#[test]
fn what_is_held_over_what_a_rollback_restores_goes_on_waiting_however_little_it_changes() {
    let mut bench = each_alone();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 90));
    bench.confirm_all();
    let backup = bench.view().store().backups().unwrap();
    bench.save("a", &changed(100, 1));
    assert_eq!(bench.held().len(), 1);
    bench.view().rollback(&backup, &RollbackHow::default()).unwrap();
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(lines(100)), Some(changed(100, 1))));
    assert_eq!((bench.held().len(), bench.reasons()), (1, vec![Reason::Size]));
    bench.assert_sound();
}

#[test]
fn the_undo_of_a_rollback_leaves_what_is_held_as_it_was() {
    let mut bench = each_alone();
    bench.put("a", &lines(5));
    bench.unlink("a");
    let backup = bench.view().store().backups().unwrap();
    bench.save("a", &lines(200));
    let before = bench.only_id();
    bench.view().rollback(&backup, &RollbackHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(5)));
    bench.undo_latest();
    assert_eq!((bench.lower("a"), bench.read("a"), bench.only_id()), (None, Some(lines(200)), before));
    bench.assert_sound();
}

#[test]
fn what_was_held_over_one_name_of_a_file_is_so_again_and_the_others_are_not() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("h")).unwrap();
    assert_eq!((bench.read("a"), bench.read("h")), (Some(lines(100)), Some(lines(100))));
    bench.save("temp", &lines(300));
    bench.rename("temp", "h");
    let ids = [bench.only_id()];
    bench.view().discard(&ids, &HOW.review).unwrap();
    assert_eq!(bench.read("h"), Some(lines(100)));
    bench.undo_latest();
    assert_eq!((bench.read("a"), bench.read("h")), (Some(lines(100)), Some(lines(300))));
    bench.save("a", &changed(100, 1));
    assert_eq!((bench.read("a"), bench.read("h")), (Some(changed(100, 1)), Some(lines(300))));
    assert_eq!((bench.lower("a"), bench.lower("h")), (Some(changed(100, 1)), Some(changed(100, 1))));
    bench.assert_sound();
    assert_eq!((bench.read("a"), bench.read("h")), (Some(changed(100, 1)), Some(lines(300))));
}

#[test]
fn all_names_of_a_file_are_rolled_back_and_stay_names_of_it() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("h")).unwrap();
    let both = |bench: &Bench| {
        let inode = |path: &str| std::fs::metadata(bench.lower_path(path)).unwrap().ino();
        assert_eq!(inode("a"), inode("h"));
        assert_eq!(bench.read("a"), bench.read("h"));
        (bench.lower("a").unwrap(), bench.lower("h").unwrap())
    };
    bench.save("a", &changed(100, 1));
    assert_eq!(both(&bench), (changed(100, 1), changed(100, 1)));
    let backup = bench.view().store().backups().unwrap();
    rolled_back(&bench, &backup[0]).unwrap();
    assert_eq!(both(&bench), (lines(100), lines(100)));
    bench.undo_latest();
    assert_eq!(both(&bench), (changed(100, 1), changed(100, 1)));
    bench.assert_sound();
}

#[test]
fn the_undo_of_a_rename_into_a_directory_that_is_gone_is_refused() {
    let bench = Bench::new();
    bench.put("a", "one\n");
    bench.make_dir("d", 0o755);
    bench.rename("a", "d/a");
    let moved = bench.latest();
    bench.rename("d", "e");
    bench.refused(&moved, ErrorCode::Conflict, "its directory is not there any more");
    assert_eq!(bench.lower("e/a"), Some("one\n".to_owned()));
}

impl Bench {
    /// What programs do from now on is another operation.
    fn decided(&self) {
        self.view().discard(&[], &HOW.review).unwrap();
    }
}

/// Each way in which `d`, with `q/s` landed as deleted, is none in the view and still one below.
fn hidden_directories() -> [(&'static str, &'static str); 3] {
    [("", "the removal of d"), ("a file", "what is in the place of d"), ("a link", "what is in the place of d")]
}

#[test]
fn nothing_is_restored_where_the_view_has_no_directory_for_it_any_more() {
    for (instead, why) in hidden_directories() {
        let mut bench = each_alone();
        bench.put("d/f", &lines(200));
        bench.put("d/q/s", "small\n");
        bench.unlink("d/q/s");
        let unlinked = bench.latest();
        bench.decided();
        bench.rmdir("d/q").unwrap();
        let removed = bench.latest();
        bench.decided();
        bench.unlink("d/f");
        bench.rmdir("d").unwrap();
        match instead {
            "a file" => bench.save("d", "hi\n"),
            "a link" => bench.view().symlink(ROOT, OsStr::new("d"), OsStr::new("nowhere"), &ME).map(drop).unwrap(),
            _ => {}
        }
        let id = bench.id_of("d");
        let want = format!("{why} waits for review: confirm or discard {id} first");
        let backup = bench.view().store().backups().unwrap().remove(0);
        for force in [false, true] {
            for dry_run in [false, true] {
                let review = Review { dry_run, ..HOW.review.clone() };
                let how = RollbackHow { force, review, ..RollbackHow::default() };
                let refusal = bench.view().rollback(std::slice::from_ref(&backup), &how).unwrap_err();
                assert_eq!((refusal.code, refusal.message), (ErrorCode::Conflict, format!("d/q/s: {want}")));
            }
        }
        bench.refused(&unlinked, ErrorCode::Conflict, &want);
        bench.refused(&removed, ErrorCode::Conflict, &want);
        assert_eq!((bench.lower("d/q/s"), bench.lower("d/f")), (None, Some(lines(200))), "{instead}");
        // Elsewhere it comes back, and what waits can still be confirmed; then there, too, where no file is.
        let to = RollbackHow { to: Some(RelPath::parse(b"free").unwrap()), ..RollbackHow::default() };
        bench.view().rollback(std::slice::from_ref(&backup), &to).unwrap();
        bench.confirm_all();
        let again = rolled_back(&bench, &backup);
        assert_eq!(again.is_ok(), instead.is_empty(), "{again:?}");
        if again.is_ok() {
            assert_eq!(bench.read("d/q/s"), Some("small\n".to_owned()));
        }
        bench.assert_sound();
    }
}

#[test]
fn what_is_discarded_first_is_in_no_restored_files_way() {
    let mut bench = each_alone();
    bench.put("d/f", &lines(200));
    bench.put("d/q/s", "small\n");
    bench.unlink("d/q/s");
    bench.rmdir("d/q").unwrap();
    bench.unlink("d/f");
    bench.rmdir("d").unwrap();
    let ids: Vec<_> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
    bench.view().discard(&ids, &HOW.review).unwrap();
    let backup = bench.view().store().backups().unwrap().remove(0);
    rolled_back(&bench, &backup).unwrap();
    assert_eq!((bench.read("d/q/s"), bench.read("d/f")), (Some("small\n".to_owned()), Some(lines(200))));
    bench.assert_sound();
}

/// A mount that judges by what is in the project's file from now on.
fn freezing(bench: &mut Bench, path: &str) {
    bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"{path}\"\naction = \"freeze\"\n"));
    bench.remount();
}

#[test]
fn rules_hold_for_directories_and_special_files_that_come_or_go_beside_files() {
    type Act = fn(&Bench);
    let acts: [(&str, Act); 3] = [
        ("made", |bench| bench.make_dir("made", 0o755)),
        ("removed", |bench| bench.remove_dir("removed")),
        ("removed", |bench| {
            bench.remove_dir("removed");
            bench.make_dir("other", 0o755);
        }),
    ];
    for (at, (path, act)) in acts.into_iter().enumerate() {
        let mut bench = Bench::new();
        bench.put("a", &lines(100));
        std::fs::create_dir(bench.lower_path("removed")).unwrap();
        act(&bench);
        bench.save("a", &changed(100, 1));
        let operation = bench.latest();
        assert!(operation.effects.len() > 1, "{operation:?}");
        freezing(&mut bench, path);
        bench.refused(&operation, ErrorCode::NotPermitted, &format!("a rule keeps {path} from being written"));
        assert_eq!(bench.lower("a"), Some(changed(100, 1)), "{at}");
    }
}

#[test]
fn what_is_frozen_in_a_directory_goes_back_with_none() {
    for action in ["freeze", "deny"] {
        let mut bench = Bench::new();
        bench.put("d/ice", "one\n");
        bench.put("e/a", "two\n");
        bench.rename("d", "f");
        let renamed = bench.latest();
        let ((one_dir, one), (other_dir, other)) = (bench.parent("f"), bench.parent("e"));
        bench.view().rename(one_dir, one, other_dir, other, RenameFlags::EXCHANGE, &ME).unwrap();
        let exchanged = bench.latest();
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"e/ice\"\naction = \"{action}\"\n"));
        bench.remount();
        bench.refused(&exchanged, ErrorCode::NotPermitted, "a rule keeps");
        assert_eq!(bench.lower("e/ice").as_deref(), Some("one\n"));
        bench.put(".fettle.toml", "");
        bench.remount();
        bench.undo(&exchanged).unwrap();
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"d/ice\"\naction = \"{action}\"\n"));
        bench.remount();
        bench.refused(&renamed, ErrorCode::NotPermitted, "a rule keeps");
        assert_eq!(bench.lower("f/ice").as_deref(), Some("one\n"));
    }
}

#[test]
fn set_id_bits_do_not_come_back_onto_what_was_written_since() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::set_permissions(bench.lower_path("a"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    bench.set("a", Some(0o700), None);
    let chmod = bench.latest();
    bench.save("a", &changed(100, 1));
    bench.undo(&chmod).unwrap();
    assert_eq!(bench.mode("a"), 0o755);
    bench.refused(&chmod, ErrorCode::AlreadyApplied, "undone already");
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    std::fs::set_permissions(bench.lower_path("d"), std::fs::Permissions::from_mode(0o2755)).unwrap();
    bench.set("d", Some(0o755), None);
    bench.undo_latest();
    assert_eq!(bench.mode("d"), 0o2755, "a directory's is no right");
}

#[test]
fn what_has_taken_the_place_of_something_is_not_undone_in_its_stead() {
    let mut bench = Bench::new();
    bench.put("x", "old\n");
    bench.rename("x", "y");
    let renamed = bench.latest();
    bench.rename("y", "z");
    bench.save("y", "new\n");
    bench.refused(&renamed, ErrorCode::Conflict, "something else is there now");
    assert_eq!((bench.lower("y").as_deref(), bench.lower("x")), (Some("new\n"), None));

    bench.put("f", "public\n");
    bench.put("key", "secret\n");
    bench.set("f", Some(0o600), None);
    let chmod = bench.latest();
    std::fs::set_permissions(bench.lower_path("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.rename("f", "g");
    bench.rename("key", "f");
    bench.refused(&chmod, ErrorCode::Conflict, "something else is there now");
    assert_eq!(bench.mode("f"), 0o600);

    bench.make_dir("q", 0o755);
    let made = bench.latest();
    std::fs::rename(bench.lower_path("q"), bench.lower_path("r")).unwrap();
    std::fs::create_dir(bench.lower_path("q")).unwrap();
    bench.refused(&made, ErrorCode::Conflict, "something else is there now");
    assert!(bench.lower_path("q").is_dir());
    bench.assert_sound();
}

#[test]
fn what_an_undo_has_made_again_is_what_was_there_before() {
    let mut bench = Bench::new();
    bench.make_dir("q", 0o755);
    let made = bench.latest();
    bench.remove_dir("q");
    bench.undo_latest();
    bench.undo(&made).unwrap();
    assert!(!bench.lower_path("q").exists());

    bench.put("src/deep/x", "x\n");
    bench.rename("src", "lib");
    let renamed = bench.latest();
    bench.unlink("lib/deep/x");
    bench.remove_dir("lib/deep");
    bench.remove_dir("lib");
    let removed = bench.latest();
    std::fs::create_dir(bench.lower_path("lib")).unwrap();
    bench.refused(&renamed, ErrorCode::Conflict, "something else is there now");
    std::fs::remove_dir(bench.lower_path("lib")).unwrap();
    bench.undo(&removed).unwrap();
    bench.undo(&renamed).unwrap();
    assert_eq!((bench.lower("src/deep/x").as_deref(), bench.lower_path("lib").exists()), (Some("x\n"), false));

    bench.view().mknod(ROOT, OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    let made = bench.latest();
    bench.unlink("pipe");
    bench.undo_latest();
    bench.undo(&made).unwrap();
    assert!(!bench.lower_path("pipe").exists());

    bench.link("src/deep/x", "further");
    let linked = bench.latest();
    bench.save("temp", "y\n");
    bench.rename("temp", "further");
    bench.undo_latest();
    bench.undo(&linked).unwrap();
    assert_eq!((bench.lower("src/deep/x").as_deref(), bench.lower("further")), (Some("x\n"), None));
    bench.assert_sound();
}

#[test]
fn an_exchange_that_stands_reversed_is_undone_already() {
    let mut bench = Bench::new();
    bench.put("d/x", "x\n");
    bench.put("e/y", "y\n");
    let ((one_dir, one), (other_dir, other)) = (bench.parent("d"), bench.parent("e"));
    bench.view().rename(one_dir, one, other_dir, other, RenameFlags::EXCHANGE, &ME).unwrap();
    let exchanged = bench.latest();
    bench.undo(&exchanged).unwrap();
    let undone = bench.latest();
    bench.refused(&exchanged, ErrorCode::AlreadyApplied, "undone already");
    bench.undo(&undone).unwrap();
    assert_eq!((bench.names("d"), bench.names("e")), (vec!["y".to_owned()], vec!["x".to_owned()]));
    std::fs::rename(bench.lower_path("d"), bench.lower_path("other")).unwrap();
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    bench.refused(&exchanged, ErrorCode::Conflict, "something else is there now");
    bench.assert_sound();
}

#[test]
fn a_deleted_file_is_rolled_back_to_whom_it_was() {
    let bench = Bench::new();
    bench.put("d/key", "secret\n");
    std::os::unix::fs::chown(bench.lower_path("d"), Some(7), Some(8)).unwrap();
    std::os::unix::fs::chown(bench.lower_path("d/key"), Some(0), Some(9)).unwrap();
    std::fs::set_permissions(bench.lower_path("d/key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.unlink("d/key");
    let backup = bench.view().store().backups().unwrap().remove(0);
    rolled_back(&bench, &backup).unwrap();
    let meta = std::fs::metadata(bench.lower_path("d/key")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (0, 9, 0o600));
}

/// What took it away was undone, and stands no more.
#[test]
fn operations_before_a_removal_are_undone_once_that_is() {
    for by_name in [true, false] {
        let bench = Bench::new();
        bench.put("a", &lines(5));
        match by_name {
            true => bench.rename("a", "b"),
            false => bench.set("a", Some(0o600), None),
        }
        let before = bench.latest();
        bench.unlink(if by_name { "b" } else { "a" });
        let removal = bench.latest();
        assert!(bench.undo(&before).is_err());
        bench.undo(&removal).unwrap();
        bench.undo(&before).unwrap();
        assert_eq!((bench.lower("a"), bench.lower("b"), bench.mode("a")), (Some(lines(5)), None, 0o644));
    }
}

#[test]
fn what_was_held_in_the_place_of_a_directory_comes_and_goes_as_often_as_somebody_wants() {
    let mut bench = Bench::new();
    std::fs::create_dir(bench.lower_path("e")).unwrap();
    bench.remove_dir("e");
    bench.save("e", "one\n");
    let (id, is_dir) = (bench.only_id(), |bench: &Bench| bench.lower_path("e").is_dir());
    let mut operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    for round in 0..2 {
        bench.view().undo(operation, &UndoHow::default()).unwrap();
        assert_eq!((bench.held().len(), is_dir(&bench)), (0, true), "{round}");
        bench.undo_latest();
        assert_eq!((bench.only_id(), is_dir(&bench)), (id.clone(), false), "{round}");
        operation = bench.latest().id;
    }
    bench.remount();
    bench.confirm_all();
    assert_eq!(bench.lower("e").as_deref(), Some("one\n"));
}

#[test]
fn what_would_be_refused_for_a_writer_in_a_held_directory_is_refused_when_it_is_only_planned() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    bench.unlink("f");
    bench.make_dir("f", 0o750);
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.view().discard(&ids, &Review::default()).unwrap();
    bench.undo_latest();
    let undo = bench.latest();
    let handle = bench.open_for_save("f/new");
    bench.view().write(handle, 0, b"new\n").unwrap();
    for dry_run in [true, false] {
        let review = Review { dry_run, ..Review::default() };
        let discarded = bench.view().discard(&ids, &review).unwrap_err();
        let undone = bench.view().undo(undo.id, &UndoHow { review, ..UndoHow::default() }).unwrap_err();
        assert_eq!((discarded.code, undone.code), (ErrorCode::Busy, ErrorCode::Busy), "{dry_run}");
    }
    bench.close(handle);
}

#[test]
fn one_file_by_two_names_is_not_rolled_back_to_two_contents() {
    let bench = Bench::new();
    for path in ["a", "b"] {
        bench.put(path, &lines(100));
        bench.save(path, &changed(100, 2));
    }
    std::fs::remove_file(bench.lower_path("b")).unwrap();
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    let backups = bench.view().store().backups().unwrap();
    assert_eq!(backups.len(), 2);
    let how = RollbackHow { force: true, ..RollbackHow::default() };
    let refusal = bench.view().rollback(&backups, &how).unwrap_err();
    assert!(refusal.code == ErrorCode::BadRequest && refusal.message.contains("is another name of"), "{refusal:?}");
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
    bench.view().rollback(&backups[..1], &how).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(lines(100))));
}
