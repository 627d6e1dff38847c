//! What a hostile reading found: each test is one way in which work was lost or got past the review.

use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::XattrFlags;

use super::*;

fn write(bench: &Bench, path: &str, content: &str) {
    bench.save(path, content);
}

fn touched(seconds: i64) -> SetAttributes {
    let mtime = SetTime::At(crate::model::Timestamp { seconds, nanoseconds: 0 });
    SetAttributes { mtime, ..SetAttributes::NOTHING }
}

fn touch(bench: &Bench, path: &str, seconds: i64) {
    bench.view().set_attributes(bench.node(path).unwrap(), None, &touched(seconds), &ME).unwrap();
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
fn one_name_of_a_held_hard_link_is_renamed_though_the_kernel_forgets_the_others_before_it_asks_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".fettle.toml"), "[[rule]]\nmatch = \"a\"\naction = \"hold\"\n").unwrap();
    let bench = Bench::within(dir, &[]);
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    write(&bench, "a", &changed(100, 60));
    let (view, file) = (bench.view(), bench.node("a").unwrap());
    let ask = || view.rename(ROOT, "a".as_ref(), ROOT, "c".as_ref(), RenameFlags::empty(), &ME);
    assert!(matches!(ask(), Err(Error::LooksAgain)));
    assert_ne!(bench.node("a").unwrap(), file);
    view.forget(file, u64::MAX);
    ask().unwrap();
    assert_eq!(bench.read("a"), None);
    assert_eq!(bench.read("c"), Some(changed(100, 60)));
}

#[test]
fn all_names_show_what_is_held_when_the_file_system_has_another_device_number() {
    let mut bench = hard_linked();
    let lower = Tree::open(&bench.dir).unwrap();
    let inode = Meta::of(lower.root()).unwrap().inode;
    bench.view().store().was_on_device(&lower, 4242, inode);
    bench.remount();
    assert_eq!(bench.read("b"), Some(changed(100, 60)));
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
fn a_name_that_is_exchanged_while_its_file_is_written_leaves_all_of_it_to_the_other_names() {
    for written_by in ["a", "b"] {
        let bench = hard_linked();
        bench.put("c", &lines(50));
        let open = bench.view().open(bench.node(written_by).unwrap(), OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap();
        bench.view().write(open.handle, 0, b"SYNCED").unwrap();
        bench.view().fsync(open.handle, false).unwrap();
        exchange(&bench, "c", "b").unwrap();
        assert_eq!(bench.view().read(open.handle, 0, 6).unwrap(), b"SYNCED");
        bench.view().write(open.handle, 6, b"LATER").unwrap();
        bench.close(open.handle);
        let starts = |path: &str| bench.read(path).unwrap()[..11].to_owned();
        assert_eq!((starts("a").as_str(), &starts("c")[..6]), ("SYNCEDLATER", "SYNCED"), "written by {written_by}");
        assert_eq!(bench.read("b"), Some(lines(50)));
        let mut held: Vec<String> = bench.held().iter().map(|row| row.path().to_string()).collect();
        held.sort();
        assert_eq!(held, ["a", "b", "c"]);
    }
}

#[test]
fn what_is_written_to_a_file_that_lost_a_name_by_an_exchange_lands_at_its_other_name() {
    let bench = Bench::new();
    bench.put("a", "1\n");
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.put("c", "2\n");
    // The kernel goes on with the nodes that it knows.
    let [a, b, _] = ["a", "b", "c"].map(|path| bench.node(path).unwrap());
    assert_eq!(a, b);
    exchange(&bench, "b", "c").unwrap();
    let open = bench.view().open(a, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap();
    bench.view().write(open.handle, 0, b"MINE").unwrap();
    bench.close(open.handle);
    let lower = ["a", "b", "c"].map(|path| bench.lower(path).unwrap());
    assert_eq!(lower, ["MINE", "2\n", "1\n"]);
    assert_eq!(["a", "b", "c"].map(|path| bench.read(path).unwrap()), lower);
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
    touch(&bench, "b", 5);
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
fn small_edits_between_touches_are_one_change() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("a", &lines(100));
    for count in 1..30 {
        write(&bench, "a", &changed(100, count));
        touch(&bench, "a", i64::from(count as u32));
    }
    assert_eq!(bench.held().len(), 1);
}

#[test]
fn small_edits_between_renames_of_the_directory_are_one_change() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    bench.put("0/a", &lines(100));
    for count in 1..30 {
        write(&bench, &format!("{}/a", count - 1), &changed(100, count));
        bench.rename(&(count - 1).to_string(), &count.to_string());
    }
    assert_eq!(bench.held().len(), 1);
}

#[test]
fn an_edited_file_is_no_new_one_under_another_name() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    write(&bench, "a", &changed(100, 1));
    bench.rename("a", "b");
    bench.unlink("b");
    assert_eq!((bench.held().len(), bench.lower("b")), (1, Some(changed(100, 1))));
}

#[test]
fn a_link_to_an_older_file_is_no_new_file() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
    // With the other name gone, the content is all that is left of it.
    bench.unlink("a");
    bench.unlink("b");
    assert_eq!((bench.held().len(), bench.lower("a"), bench.lower("b")), (2, Some(lines(100)), Some(lines(100))));
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
    let set = SetAttributes { size: Some(0), ..SetAttributes::NOTHING };
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
    let new = bench.view().store().create_upper_symlink(OsStr::new("/etc")).unwrap();
    bench.view().add_upper(new, &RelPath::parse(b"link").unwrap(), crate::store::What::Symlink).unwrap();
    bench.remount();
    assert!(bench.reasons().contains(&Reason::Symlink));
}

#[test]
fn a_row_whose_file_is_gone_does_not_keep_the_daemon_from_mounting() {
    let mut bench = Bench::new();
    let handle = bench.open_for_save("n");
    bench.view().write(handle, 0, b"x").unwrap();
    let id = bench.view().state.lock().uppers.iter().next().unwrap().row.id;
    bench.view().store().drop_upper_file(id);
    bench.remount();
    assert_eq!(bench.read("n"), None);
}

#[test]
fn a_killed_daemon_remembers_what_lay_in_a_renamed_directory() {
    let mut bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.rename("d", "e");
    bench.remount();
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    bench.save("d/a", "rewritten\n");
    assert_eq!(bench.held()[0].held.as_ref().unwrap().kind, ChangeKind::Modify);
    assert_eq!(std::fs::read_to_string(bench.lower_path("d/a")).unwrap(), lines(100));
}

#[test]
fn what_was_made_in_a_renamed_directory_never_was_where_that_was() {
    let bench = Bench::new();
    for (path, count) in [("d/large", 100), ("d/over", 100), ("d/small", 5)] {
        bench.put(path, &lines(count));
    }
    bench.rename("d", "e");
    bench.save("e/new", &lines(100));
    bench.unlink("e/small");
    bench.save("e/small", &lines(8));
    bench.save("e/over.tmp", &changed(100, 5));
    bench.rename("e/over.tmp", "e/over");
    let landed = [bench.lower("e/small"), bench.lower("e/over")];
    assert_eq!((bench.held().len(), landed), (0, [Some(lines(8)), Some(changed(100, 5))]));
    bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME).unwrap();
    bench.save("d/new", &changed(100, 100));
    assert_eq!((bench.held().len(), bench.lower("d/new")), (0, Some(changed(100, 100))), "it is new");
    // These were there, whatever has happened to them since.
    let there = ["d/large", "d/over", "d/small"];
    there.iter().for_each(|path| bench.save(path, &changed(100, 100)));
    let held: Vec<_> = bench.held().into_iter().map(|row| (row.path().to_string(), row.held.unwrap().kind)).collect();
    assert_eq!(held, there.map(|path| (path.to_owned(), ChangeKind::Modify)));
}

fn exchange(bench: &Bench, one: &str, other: &str) -> Result<()> {
    rename(bench.view(), bench.parent(one), bench.parent(other), RenameFlags::EXCHANGE)
}

/// They go on for as long as the copy takes, so that it never has what was there at one moment.
#[test]
fn what_others_go_on_writing_over_is_copied_as_it_is_found() {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 256;
    let bench = Bench::new();
    bench.put("large", &"x".repeat(PIECE * PIECES));
    let ends = AtomicBool::new(false);
    let linked: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let large = std::fs::OpenOptions::new().write(true).open(bench.lower_path("large")).unwrap();
            let contents = (b'a'..=b'z').cycle().take_while(|_| !ends.load(Ordering::SeqCst));
            contents.for_each(|byte| {
                let piece = |number| large.write_all_at(&[byte; PIECE], (number * PIECE) as u64);
                (0..PIECES).try_for_each(piece).unwrap();
            });
        });
        // What is linked to a name that waits for review is a copy.
        let link = |name: &str| bench.view().link(bench.node("large")?, ROOT, name.as_ref(), &ME).map(drop);
        let linked = ["AGENTS.md", "CLAUDE.md"].map(link).into();
        ends.store(true, Ordering::SeqCst);
        linked
    });
    let failed: Vec<_> = linked.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(bench.held().len(), 2);
}

fn links(bench: &Bench, path: &str) -> u32 {
    bench.view().attributes(bench.node(path).unwrap()).unwrap().meta.links
}

#[test]
fn exchanged_directories_do_not_bring_content_past_the_review() {
    let bench = Bench::new();
    bench.put("d/a", &lines(100));
    bench.put("e/other", "");
    write(&bench, "e/a", &changed(100, 90));
    exchange(&bench, "d", "e").unwrap();
    assert_eq!((bench.read("e/a"), bench.read("d/a")), (Some(lines(100)), Some(changed(100, 90))));
    assert_eq!((bench.lower("d/a"), bench.held().len()), (Some(lines(100)), 1), "judged where it arrived");
    // What lay in a directory is what is judged when it is made anew, though the directory is elsewhere.
    write(&bench, "d/a", &changed(100, 100));
    assert_eq!((bench.read("d/a"), bench.lower("d/a")), (Some(changed(100, 100)), Some(lines(100))));
    assert_eq!((bench.read("e/a"), bench.held().len()), (Some(lines(100)), 1));
}

#[test]
fn what_was_edited_in_a_renamed_directory_is_judged_against_what_it_was() {
    type Leaves = fn(&Bench);
    let leaves: [Leaves; 2] = [|bench| bench.rename("dd/a", "dd/a~"), |bench| bench.unlink("dd/a")];
    for leave in leaves {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.put("d/a", &lines(9));
        bench.rename("d", "dd");
        bench.save("dd/a", &changed(9, 1));
        assert_eq!(bench.held().len(), 0);
        leave(&bench);
        write(&bench, "dd/a", &changed(200, 200));
        assert_eq!(bench.held().len(), 1, "it is no new file");
        assert_eq!(bench.held()[0].held.as_ref().unwrap().kind, ChangeKind::Modify);
    }
}

#[test]
fn nothing_is_rolled_back_to_where_our_own_files_are() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 2));
    let backups = bench.view().store().backups().unwrap();
    for ours in [".fettle/fettle.db", ".fettle/x/y", ".fettle-tmp-0", "src/.fettle-tmp-0", ".fettle-tmp-0/a"] {
        let how = RollbackHow { to: Some(RelPath::parse(ours.as_bytes()).unwrap()), ..RollbackHow::default() };
        let refusal = bench.view().rollback(&backups, &how).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::NotPermitted, "{ours}: {refusal:?}");
        assert!(refusal.message.contains(ours), "{refusal:?}");
    }
}

#[test]
fn a_file_exchanged_with_a_directory_is_remembered_at_its_path() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.put("d/x", "x\n");
    exchange(&bench, "a", "d").unwrap();
    assert_eq!((bench.lower("d"), bench.lower("a/x")), (Some(lines(100)), Some("x\n".to_owned())));
    bench.rename("a", "moved");
    write(&bench, "a", &changed(100, 100));
    assert_eq!((bench.read("a"), bench.held().len()), (Some(changed(100, 100)), 1));
    assert_eq!((bench.lower("a"), bench.read("d")), (Some(lines(100)), Some(lines(100))), "put back, and copied");
}

#[test]
fn a_held_file_is_exchanged_with_a_directory_and_stays_held() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.put("d/x", "x\n");
    write(&bench, "a", &changed(100, 60));
    exchange(&bench, "d", "a").unwrap();
    assert_eq!((bench.read("d"), bench.read("a/x")), (Some(changed(100, 60)), Some("x\n".to_owned())));
    assert_eq!((bench.lower("d"), bench.held().len()), (Some(lines(100)), 1));
}

#[test]
fn a_name_that_is_held_as_deleted_or_replaced_is_no_link() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    for name in ["b", "c"] {
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap();
    }
    assert_eq!(links(&bench, "a"), 3);
    bench.unlink("b");
    assert_eq!((links(&bench, "a"), links(&bench, "c"), bench.held().len()), (2, 2, 1));
    write(&bench, "new", &changed(100, 100));
    bench.rename("new", "c");
    assert_eq!((links(&bench, "a"), links(&bench, "c"), bench.held().len()), (1, 1, 2));
}

#[test]
fn the_same_bytes_in_the_place_of_one_name_leave_the_other_names() {
    let bench = Bench::new();
    bench.put("a", "same\n");
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    write(&bench, "new", "same\n");
    bench.rename("new", "a");
    assert_eq!((links(&bench, "a"), links(&bench, "b")), (1, 1));
    write(&bench, "a", "other\n");
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some("other\n".to_owned()), Some("same\n".to_owned())));
}

#[test]
fn the_same_bytes_in_the_place_of_a_name_whose_deletion_waits_are_a_file_of_their_own() {
    let bench = Bench::with(&[(Key::Burst, "0"), (Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
    bench.unlink("b");
    assert_eq!(bench.reasons(), [Reason::Burst]);
    write(&bench, "b", &lines(100));
    assert_eq!((links(&bench, "a"), links(&bench, "b"), bench.held().len()), (1, 1, 0));
    write(&bench, "b", &changed(100, 1));
    assert_eq!((bench.read("b"), bench.read("a")), (Some(changed(100, 1)), Some(lines(100))));
    assert_eq!(bench.lower("a"), Some(lines(100)));
}

#[test]
fn attributes_set_between_two_writes_of_one_handle_stay() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    bench.view().write(handle, 0, b"L").unwrap();
    // As a descriptor that was duplicated and closed: it lands, and the handle goes on.
    bench.view().flush(handle, &ME).unwrap();
    let mode = SetAttributes { mode: Some(0o604), ..SetAttributes::NOTHING };
    bench.view().set_attributes(node, None, &mode, &ME).unwrap();
    bench.view().set_xattr(node, OsStr::new("user.x"), b"1", rustix::fs::XattrFlags::empty(), &ME).unwrap();
    bench.view().write(handle, 1, b"I").unwrap();
    bench.close(handle);
    assert_eq!(&bench.lower("a").unwrap()[..6], "LIne 0");
    assert_eq!(bench.view().attributes(node).unwrap().meta.mode, 0o604);
    assert_eq!(bench.view().get_xattr(node, OsStr::new("user.x")).unwrap(), b"1");
}

#[test]
fn a_held_file_saved_twice_by_renaming_it_away_stays_as_it_was_below() {
    let bench = Bench::new();
    bench.put("a", &lines(200));
    for count in [100, 120] {
        bench.rename("a", "a~");
        bench.save("a", &changed(200, count));
        bench.unlink("a~");
        assert_eq!(bench.lower("a"), Some(lines(200)));
    }
    assert_eq!((bench.held().len(), bench.lower_names()), (1, vec!["a".to_owned()]));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(200, 120)));
}

#[test]
fn a_link_to_where_something_used_to_be_is_judged() {
    for gone in ["unlinked", "renamed"] {
        let bench = Bench::new();
        bench.put("a", &lines(200));
        bench.save("new", &changed(200, 100));
        match gone {
            "unlinked" => bench.unlink("a"),
            _ => bench.rename("a", "b"),
        }
        bench.view().link(bench.node("new").unwrap(), ROOT, OsStr::new("a"), &ME).unwrap();
        assert_eq!(bench.held().len(), 1, "{gone}");
        assert_eq!(bench.lower("a"), Some(lines(200)), "{gone}");
        assert_eq!(bench.read("a"), Some(changed(200, 100)), "{gone}");
    }
}

#[test]
fn attributes_set_while_a_new_file_lands_at_its_release_stay() {
    let bench = Bench::new();
    let at = crate::model::Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };
    let set = SetAttributes { mode: Some(0o604), mtime: SetTime::At(at), ..SetAttributes::NOTHING };
    for number in 0..100 {
        let name = format!("f{number}");
        let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_EXCL);
        let (entry, opened) = bench.view().create(ROOT, OsStr::new(&name), 0o644, flags, &ME).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| bench.view().release(opened.handle).unwrap());
            bench.view().set_attributes(entry.node, None, &set, &ME).unwrap();
        });
        bench.view().flush_all(None).unwrap();
        let shown = bench.view().attributes(entry.node).unwrap().meta;
        let below = bench.view().lower().stat(&RelPath::parse(name.as_bytes()).unwrap()).unwrap().unwrap();
        assert_eq!([(shown.mode, shown.mtime), (below.mode, below.mtime)], [(0o604, at); 2], "{name}");
    }
}

/// Saves in slices of one changed line each, until one is held. Gives how many landed.
fn slices(bench: &Bench, mut save: impl FnMut(&Bench, &str)) -> usize {
    bench.put("a", &lines(100));
    for count in 1..=40 {
        save(bench, &changed(100, count));
        if bench.held().iter().any(|row| row.path().to_string() == "a") {
            return count - 1;
        }
    }
    panic!("forty slices landed");
}

#[test]
fn what_a_path_had_last_is_put_back_after_many_small_saves_by_renaming_it_away() {
    let bench = Bench::with(&[(Key::Window, "60s")]);
    let landed = slices(&bench, |bench, content| {
        bench.rename("a", "a~");
        bench.save("a", content);
    });
    assert_eq!(bench.read("a"), Some(changed(100, landed + 1)));
    assert_eq!(bench.lower("a"), Some(changed(100, landed)));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    assert_eq!(bench.read("a"), Some(changed(100, landed)));
    let bench = Bench::with(&[(Key::Window, "60s")]);
    let landed = slices(&bench, |bench, content| {
        bench.rename("a", "a~");
        bench.save("a", content);
        bench.unlink("a~");
    });
    assert_eq!((bench.lower("a"), bench.read("a~")), (Some(changed(100, landed)), None));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, landed + 1)));
    assert_eq!(bench.lower_names(), ["a"]);
}

#[test]
fn small_saves_each_by_another_name_of_the_file_are_one_change() {
    for window in ["60s", "session"] {
        let bench = Bench::with(&[(Key::Window, window)]);
        bench.put("a", &lines(100));
        let mut count = 0;
        while bench.held().is_empty() {
            count += 1;
            assert!(count <= 40, "forty slices landed: {window}");
            bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("b"), &ME).unwrap();
            let name = format!("c{count}");
            bench.rename("b", &name);
            bench.save(&name, &changed(100, count));
        }
        assert_eq!(bench.lower("a"), Some(changed(100, 20)), "{window}");
    }
}

#[test]
fn an_outside_edit_is_what_the_session_is_judged_against_from_then_on() {
    let bench = Bench::with(&[(Key::Window, "session")]);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    bench.put("a", &lines(300));
    bench.save("a", &changed(300, 1));
    assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(changed(300, 1))));
    for count in 2..=41 {
        bench.save("a", &changed(300, count));
    }
    assert_eq!((bench.held().len(), bench.lower("a")), (1, Some(changed(300, 39))));
}

#[test]
fn a_held_change_goes_on_under_a_name_that_nobody_has_looked_up() {
    for gone in ["deleted", "replaced"] {
        let bench = hard_linked();
        let handle = bench.view().open(bench.node("a").unwrap(), OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap();
        match gone {
            "deleted" => bench.unlink("a"),
            _ => {
                write(&bench, "tmp", &changed(100, 1));
                bench.rename("tmp", "a");
            }
        }
        assert_eq!(bench.read("b"), Some(changed(100, 60)), "{gone}");
        assert_eq!(bench.lower("b"), Some(lines(100)), "{gone}");
        bench.view().write(handle.handle, 0, b"new!").unwrap();
        bench.close(handle.handle);
        let held = bench.held();
        let change = held.iter().find(|row| row.names == [RelPath::parse(b"b").unwrap()]).unwrap();
        bench.confirm(&[change.held.as_ref().unwrap().id.clone()]).unwrap();
        assert_eq!(&bench.lower("b").unwrap()[..6], "new!0\n", "{gone}");
    }
}

fn symlink(bench: &Bench, path: &str, target: &str) {
    bench.view().symlink(ROOT, OsStr::new(path), OsStr::new(target), &ME).unwrap();
}

#[test]
fn a_file_with_a_symlinks_target_for_content_is_another_thing() {
    for window in ["0", "60s", "session"] {
        let bench = Bench::with(&[(Key::Window, window)]);
        bench.put("t", "t\n");
        std::os::unix::fs::symlink("t", bench.lower_path("a")).unwrap();
        bench.unlink("a");
        assert_eq!((bench.held().len(), bench.lower("a")), (0, None), "{window}");
        write(&bench, "a", "t");
        assert_eq!(bench.reasons(), [Reason::Type], "{window}");
        write(&bench, "a", "t2");
        assert_eq!(
            (bench.reasons(), bench.held()[0].held.as_ref().unwrap().kind),
            (vec![Reason::Type], ChangeKind::Type)
        );
        bench.confirm(&[bench.only_id()]).unwrap();
        bench.unlink("a");
        symlink(&bench, "a", "t2");
        assert_eq!(bench.reasons(), [Reason::Type], "{window}");
    }
}

#[test]
fn the_names_of_a_held_file_are_one_inode_after_a_kill_and_all_counted() {
    let mut bench = hard_linked();
    bench.view().link(bench.node("a").unwrap(), ROOT, OsStr::new("c"), &ME).unwrap();
    bench.remount();
    let nodes = ["a", "b", "c"].map(|name| bench.node(name).unwrap());
    assert_eq!(nodes, [nodes[0]; 3]);
    assert_eq!(links(&bench, "b"), 3);
}

#[test]
fn a_copy_that_takes_another_files_place_is_no_name_of_the_old_one() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.put("c", "other\n");
    assert_eq!(bench.node("a").unwrap(), bench.node("b").unwrap());
    bench.rename("a", "c");
    assert_ne!(bench.node("b").unwrap(), bench.node("c").unwrap());
    write(&bench, "b", &changed(100, 1));
    assert_eq!((bench.read("b"), bench.read("c")), (Some(changed(100, 1)), Some(lines(100))));
}

#[test]
fn older_content_that_landed_over_a_new_file_is_not_taken_for_new() {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("c", &lines(120));
    bench.put("f", &changed(300, 300));
    bench.save("d", &changed(120, 1));
    bench.rename("c", "d");
    bench.rename("d", "f");
    assert_eq!(bench.held().len(), 2, "{:?}", bench.held());
    assert_eq!(bench.lower("d"), Some(lines(120)), "all that is left of c");
}

#[test]
fn what_takes_one_name_of_a_file_is_confirmed_although_the_file_landed_by_another() {
    let bench = hard_linked();
    write(&bench, "new", &changed(100, 100));
    bench.rename("new", "b");
    write(&bench, "a", &changed(100, 2));
    let ids: Vec<ChangeId> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
    bench.confirm(&ids).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 2)), Some(changed(100, 100))));
}

#[test]
fn both_a_file_and_what_takes_one_of_its_names_are_confirmed_at_once() {
    let bench = hard_linked();
    write(&bench, "a", &changed(100, 60));
    write(&bench, "new", &changed(100, 100));
    bench.rename("new", "b");
    let ids: Vec<ChangeId> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
    assert_eq!(ids.len(), 2);
    bench.confirm(&ids).unwrap();
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 60)), Some(changed(100, 100))));
}

#[test]
fn one_name_of_a_held_file_is_renamed_over_another_file() {
    let bench = hard_linked();
    bench.put("c", &lines(3));
    write(&bench, "a", &changed(100, 60));
    for name in ["a", "b", "c"] {
        bench.node(name).unwrap();
    }
    bench.rename("a", "c");
    assert_eq!((bench.read("a"), bench.read("b")), (None, Some(changed(100, 60))));
    assert_eq!((bench.read("c"), links(&bench, "b"), links(&bench, "c")), (Some(changed(100, 60)), 1, 1));
}

#[test]
fn slices_by_two_names_are_one_change_also_when_one_of_them_goes() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    for name in ["b", "c"] {
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap();
    }
    write(&bench, "b", &changed(100, 15));
    bench.unlink("b");
    write(&bench, "a", &changed(100, 30));
    assert_eq!((bench.lower("a"), bench.lower("c")), (Some(changed(100, 15)), Some(changed(100, 15))));
}

#[test]
fn a_file_that_is_replaced_below_again_and_again_can_still_be_opened() {
    let bench = Bench::new();
    let replace = |content: &str| {
        bench.put("new", content);
        std::fs::rename(bench.lower_path("new"), bench.lower_path("f")).unwrap();
    };
    let open = |node| bench.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME);
    bench.put("f", "zero");
    let first = bench.node("f").unwrap();
    replace("one");
    assert_eq!(open(first).unwrap_err().code(), libc::ESTALE, "the kernel looks once more");
    let second = bench.node("f").unwrap();
    assert_ne!(first, second);
    replace("two");
    // The kernel gives up at the second: this one stands for what is there now.
    let opened = open(second).unwrap();
    assert!(!opened.keep_cache);
    assert_eq!(bench.view().read(opened.handle, 0, 100).unwrap(), b"two");
    // Who has it open keeps what he has; another look finds another file again.
    replace("three");
    assert_eq!(open(second).unwrap_err().code(), libc::ESTALE);
    assert_ne!(bench.node("f").unwrap(), second);
    assert_eq!(bench.view().read(opened.handle, 0, 100).unwrap(), b"two");
    bench.view().release(opened.handle).unwrap();
    assert_eq!(bench.read("f").unwrap(), "three");
}

#[test]
fn what_was_put_back_where_it_came_from_was_removed_by_nobody_else() {
    let mut bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.put("b", &lines(99));
    bench.save("a", &changed(100, 2));
    bench.rename("b", "c");
    bench.rename("a", "b");
    assert_eq!(bench.lower("b"), Some(changed(100, 2)));
    bench.unlink("b");
    bench.save("a", &changed(100, 60));
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 2)), None), "it is put back");
    // This compares what a new daemon takes for changed by others with what the old one did.
    bench.remount();
    assert_eq!(bench.view().external_paths().changed, []);
}

#[test]
fn a_directory_confirmed_in_the_place_of_a_file_was_changed_by_nobody_else() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.unlink("a");
    bench.mkdir("a");
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.confirm(&ids).unwrap();
    assert!(bench.lower_path("a").is_dir());
    bench.save("a/new", "new\n");
    assert_eq!(bench.view().external_paths().changed, []);
}

#[test]
fn a_base_that_somebody_has_changed_since_shows_no_other_mode() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.put("a", &lines(90));
    let sides = bench.view().sides(&bench.held()[0]).unwrap();
    let modes = [sides.old, sides.new].map(|side| format!("{:o}", side.unwrap().mode));
    assert_eq!(modes, ["100644", "100644"]);
}

#[test]
fn who_goes_on_writing_a_file_that_gets_another_name_writes_under_both() {
    for exists in [false, true] {
        let bench = Bench::new();
        if exists {
            bench.put("a", "one\n");
        }
        let handle = bench.open_for_save("a");
        bench.view().write(handle, 0, b"two\n").unwrap();
        let (node, (parent, name)) = (bench.node("a").unwrap(), bench.parent("b"));
        bench.view().link(node, parent, name, &ME).unwrap();
        bench.view().write(handle, 4, b"three\n").unwrap();
        bench.close(handle);
        let inode = |path: &str| std::fs::metadata(bench.lower_path(path)).unwrap().ino();
        for content in [bench.read("a"), bench.read("b"), bench.lower("a"), bench.lower("b")] {
            assert_eq!(content.as_deref(), Some("two\nthree\n"), "{exists}");
        }
        assert_eq!(inode("a"), inode("b"));
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

#[test]
fn a_further_name_of_a_change_that_is_taken_below_is_a_conflict_that_names_it() {
    let bench = Bench::new();
    bench.save(".envrc", "export A=1\n");
    let (node, (parent, name)) = (bench.node(".envrc").unwrap(), bench.parent("b"));
    bench.view().link(node, parent, name, &ME).unwrap();
    assert_eq!(bench.held()[0].names.len(), 2);
    bench.put("b", "by a person\n");
    let ids = [bench.only_id()];
    for force in [false, true] {
        let refusal = bench.view().confirm(&ids, &ConfirmHow { force, ..HOW }).unwrap_err();
        assert!(refusal.code == ErrorCode::Conflict && refusal.message.starts_with("b: "), "{refusal:?}");
        assert_eq!(refusal.id, None, "by which it would be said that it can be forced");
    }
    assert_eq!(bench.lower("b").as_deref(), Some("by a person\n"));
    std::fs::remove_file(bench.lower_path("b")).unwrap();
    bench.confirm(&ids).unwrap();
    assert_eq!(bench.lower("b").as_deref(), Some("export A=1\n"));
}

/// Its node then has a name in a directory that is no more, beside the one that it is opened by.
#[test]
fn what_lay_in_a_directory_that_somebody_renamed_opens_by_its_new_path_whichever_is_looked_at_first() {
    let bench = Bench::new();
    bench.put("old/file", "f\n");
    assert_eq!(bench.read("old/file"), Some("f\n".to_owned()));
    std::fs::rename(bench.lower_path("old"), bench.lower_path("new")).unwrap();
    assert!(bench.node("old").is_err());
    assert_eq!(bench.read("new/file"), Some("f\n".to_owned()));
}

impl Bench {
    fn is_kept(&self, content: &str) -> bool {
        let wanted = crate::model::Digest::of(content.as_bytes());
        self.view().store().backups().unwrap().into_iter().any(|backup| backup.digest == wanted)
    }
}

#[test]
fn what_was_in_the_project_is_kept_when_a_rename_leaves_it_in_what_is_held_alone() {
    type Step = fn(&Bench);
    let to_where: [(&str, Step); 4] = [
        // Where a deletion waits.
        ("old", |bench| bench.unlink("old")),
        // To a free name that a rule holds.
        (".envrc", |_| ()),
        // Into a directory that waits.
        ("old/n", |bench| {
            bench.unlink("old");
            bench.mkdir("old");
        }),
        // Over what waits, with a person's edit.
        ("old", |bench| {
            bench.save("old", &changed(100, 90));
            bench.put("n", "by a person\n");
        }),
    ];
    let goes: [fn(&Bench, &str); 3] = [
        |bench, to| bench.unlink(to),
        |bench, to| bench.save(to, "something else\n"),
        |bench, to| {
            bench.save("temp", "something else\n");
            bench.rename("temp", to);
        },
    ];
    for (number, (to, prepare)) in to_where.into_iter().enumerate() {
        for go in goes {
            let bench = Bench::new();
            bench.put("old", &lines(100));
            bench.save("n", "landed\n");
            prepare(&bench);
            let content = bench.lower("n").unwrap();
            bench.rename("n", to);
            // A person's waits below to go, like what is older than the session.
            let stays = (content != "landed\n").then(|| content.clone());
            assert_eq!((bench.lower("n"), bench.read(to)), (stays, Some(content.clone())), "{number}");
            go(&bench, to);
            assert!(bench.is_kept(&content), "{number}: {content} is in {:?} {:?}", bench.lower(to), bench.backups());
        }
    }
}

#[test]
fn what_was_in_the_project_is_kept_when_its_directory_comes_to_where_it_is_held() {
    let bench = Bench::new();
    bench.mkdir(".github");
    bench.mkdir("w");
    bench.save("w/x.yml", "landed\n");
    bench.rename("w", ".github/workflows");
    assert_eq!((bench.reasons(), bench.lower(".github/workflows/x.yml")), (vec![Reason::Sensitive], None));
    bench.unlink(".github/workflows/x.yml");
    assert!(bench.is_kept("landed\n"));
}

#[test]
fn what_had_landed_below_what_is_held_is_kept_when_that_is_renamed_over_something() {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.save("n", &lines(92));
    bench.save("n", "something else\n");
    assert_eq!((bench.held().len(), bench.lower("n")), (1, Some(lines(92))));
    bench.save("to", "one\n");
    bench.rename("n", "to");
    assert_eq!((bench.lower("n"), bench.lower("to").as_deref()), (None, Some("something else\n")));
    assert!(bench.is_kept(&lines(92)), "{:?}", bench.backups());
}

#[test]
fn a_temporary_file_that_is_renamed_over_what_is_held_leaves_no_trace() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 90));
    bench.save("temp", &changed(100, 80));
    bench.rename("temp", "a");
    let kept = vec!["a".to_owned()];
    assert_eq!((bench.held().len(), bench.lower("temp"), bench.backups()), (1, None, kept));
}

#[test]
fn a_directory_that_has_come_below_in_the_place_of_what_was_held_is_hidden_as_one() {
    let bench = Bench::new();
    bench.put("s", &lines(100));
    bench.save("s", &changed(100, 90));
    std::fs::remove_file(bench.lower_path("s")).unwrap();
    bench.put("s/f", "a\n");
    bench.unlink("s");
    assert_eq!((bench.names(""), bench.held().len()), (vec![], 1));
    assert_eq!(bench.view().check().unwrap().0, []);
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    assert_eq!(bench.read("s/f").unwrap(), "a\n");
}

/// Lower still has the directory at that name, and would have given the other its place with all that is in it.
#[test]
fn what_stands_for_a_removed_directory_does_not_change_places_with_another() {
    for (one, other) in [("d", "e"), ("e", "d")] {
        let bench = Bench::new();
        bench.put("d/f", &lines(100));
        bench.unlink("d/f");
        bench.rmdir("d").unwrap();
        bench.save("d", "a file\n");
        bench.mkdir("e");
        assert_eq!(exchange(&bench, one, other).unwrap_err().code(), libc::EXDEV);
        assert_eq!((bench.lower("d/f"), bench.lower_names()), (Some(lines(100)), vec!["d".to_owned(), "e".to_owned()]));
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

/// Lower still has the directory at that name, and would have given it the other, with all that is in it.
#[test]
fn what_stands_for_a_removed_directory_gets_no_further_name() {
    for rule in ["", "[[rule]]\nmatch = \"d/**\"\naction = \"hold\"\n"] {
        for is_symlink in [false, true] {
            let mut bench = Bench::new();
            bench.put("d/f", &lines(100));
            bench.put(".fettle.toml", rule);
            bench.remount();
            bench.unlink("d/f");
            bench.rmdir("d").unwrap();
            match is_symlink {
                true => drop(bench.view().symlink(ROOT, OsStr::new("d"), OsStr::new("e"), &ME).unwrap()),
                false => bench.save("d", "a file\n"),
            }
            let linked = bench.view().link(bench.node("d").unwrap(), ROOT, OsStr::new("e"), &ME);
            assert_eq!(linked.unwrap_err().code(), libc::EXDEV);
            bench.unlink("d");
            let below = vec![".fettle.toml".to_owned(), "d".to_owned()];
            assert_eq!((bench.lower("d/f"), bench.lower_names()), (Some(lines(100)), below));
            assert_eq!(bench.view().check().unwrap().0, []);
        }
    }
}

/// Somebody has put it there since: it is nothing that the change was made of.
#[test]
fn a_directory_below_does_not_go_to_a_further_name_of_what_was_held_in_its_place() {
    for is_removed in [true, false] {
        let bench = Bench::new();
        bench.put("s", &lines(100));
        bench.put("other", &lines(3));
        bench.save("s", &changed(100, 90));
        bench.view().link(bench.node("s").unwrap(), ROOT, OsStr::new("t"), &ME).unwrap();
        std::fs::remove_file(bench.lower_path("s")).unwrap();
        bench.put("s/f", &lines(50));
        match is_removed {
            true => bench.unlink("s"),
            false => bench.rename("other", "s"),
        }
        assert_eq!(
            (bench.lower("s/f"), bench.lower("t"), bench.read("t")),
            (Some(lines(50)), None, Some(changed(100, 90)))
        );
        assert_eq!(bench.read("s"), (!is_removed).then(|| lines(3)));
        assert_eq!(bench.view().check().unwrap().0, []);
        let ids: Vec<ChangeId> = bench.held().into_iter().map(|row| row.held.unwrap().id).collect();
        bench.view().discard(&ids, &Review::default()).unwrap();
        assert_eq!((bench.read("s/f"), bench.read("t")), (Some(lines(50)), None));
    }
}

/// The kernel looked at a name, and another file was renamed over it before it asked: whether that landed or waits, the request
/// is one of the old file, and so of nothing that anybody sees.
#[test]
fn what_is_asked_of_a_file_that_was_just_replaced_is_asked_of_nothing_else() {
    for replaced_by in ["small\n".to_owned(), changed(100, 60)] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.save("temp", &replaced_by);
        let (view, old) = (bench.view(), bench.node("a").unwrap());
        bench.rename("temp", "a");
        let before = (bench.lower("a"), bench.read("a"));
        let mode = |path: &str| view.attributes(bench.node(path).unwrap()).unwrap().meta.mode;
        let looked = (mode("a"), std::fs::metadata(bench.lower_path("a")).unwrap().mode());
        let set = SetAttributes { mode: Some(0o600), size: Some(3), ..touched(1_000_000) };
        assert_eq!(view.set_attributes(old, None, &set, &ME).unwrap().meta.size, 3);
        view.set_xattr(old, "user.k".as_ref(), b"v", XattrFlags::empty(), &ME).unwrap();
        view.list_xattrs(old).unwrap();
        assert_eq!(view.remove_xattr(old, "user.none".as_ref(), &ME).unwrap_err().code(), libc::ENODATA);
        assert_eq!((bench.lower("a"), bench.read("a")), before);
        assert_eq!((mode("a"), std::fs::metadata(bench.lower_path("a")).unwrap().mode()), looked);
    }
}

/// It was a further name of the change, and came to be shown with whatever became of that.
#[test]
fn a_name_that_a_rule_has_reviewed_is_a_change_of_its_own_when_it_is_linked_to_what_is_held() {
    for then in [Bench::make_small, |bench: &Bench| bench.unlink("a")] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.save("a", &changed(100, 60));
        let (parent, name) = bench.parent("AGENTS.md");
        bench.view().link(bench.node("a").unwrap(), parent, name, &ME).unwrap();
        then(&bench);
        assert_eq!(bench.lower("AGENTS.md"), None);
        assert_eq!(bench.read("AGENTS.md"), Some(changed(100, 60)));
        assert!(bench.held().iter().any(|row| row.names == [RelPath::parse(b"AGENTS.md").unwrap()]));
    }
}

impl Bench {
    fn make_small(&self) {
        self.save("a", &lines(101));
    }
}

#[test]
fn a_further_name_of_what_was_held_stays_when_the_content_is_what_it_was() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let (parent, name) = bench.parent("b");
    bench.view().link(bench.node("a").unwrap(), parent, name, &ME).unwrap();
    bench.save("a", &lines(100));
    assert_eq!(bench.held(), []);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(lines(100))));
    assert_eq!(bench.read("b"), Some(lines(100)));
    let links = |path: &str| std::fs::metadata(bench.lower_path(path)).unwrap().nlink();
    assert_eq!((links("a"), links("b")), (2, 2));
}

/// What is being made, and what is held under this name alone.
#[test]
fn nothing_comes_with_a_directory_to_where_a_rule_denies_or_freezes_it() {
    type Fills = fn(&Bench) -> Option<HandleId>;
    let fills: [(&str, Fills); 4] = [
        ("being made", |bench| Some(bench.open_for_save("new/f"))),
        ("held by a rule", |bench| {
            bench.save("new/mig", "held\n");
            None
        }),
        ("another name of what is held", |bench| {
            bench.save("a", &changed(100, 60));
            let (parent, name) = bench.parent("new/f");
            bench.view().link(bench.node("a").unwrap(), parent, name, &ME).unwrap();
            None
        }),
        ("in a directory that is held", |bench| {
            bench.mkdir("new/mig");
            bench.save("new/mig/f", "held\n");
            None
        }),
    ];
    type Moves = fn(&Bench, &str) -> Result<()>;
    let moves: [Moves; 3] = [
        |bench, to| bench.try_rename("new", to),
        |bench, to| {
            bench.mkdir(to);
            exchange(bench, "new", to)
        },
        |bench, to| {
            bench.mkdir(to);
            exchange(bench, to, "new")
        },
    ];
    for (what, fill) in fills {
        for (to, action) in [("den", "deny"), ("froz", "freeze")] {
            for moves in moves {
                let mut bench = Bench::new();
                bench.put("a", &lines(100));
                let rule = |path, action| format!("[[rule]]\nmatch = \"{path}\"\naction = \"{action}\"\n");
                let rules = [rule("mig", "hold"), rule("den/**", "deny"), rule("froz/**", "freeze")];
                bench.put(".fettle.toml", &rules.concat());
                bench.remount();
                bench.mkdir("new");
                let writer = fill(&bench);
                assert_eq!(moves(&bench, to).unwrap_err().code(), libc::EPERM, "{what}: {action}");
                writer.into_iter().for_each(|writer| bench.close(writer));
                assert_eq!(std::fs::read_dir(bench.lower_path(to)).map_or(0, |dir| dir.count()), 0, "{what}: {action}");
            }
        }
    }
}

/// A held directory goes by itself.
#[test]
fn nothing_comes_with_a_held_directory_to_where_a_rule_denies_it() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    let rule = |path, action| format!("[[rule]]\nmatch = \"{path}\"\naction = \"{action}\"\n");
    bench.put(".fettle.toml", &[rule("mig", "hold"), rule("den/**", "deny")].concat());
    bench.remount();
    bench.mkdir("mig");
    bench.save("mig/f", "held\n");
    assert_eq!(bench.try_rename("mig", "den").unwrap_err().code(), libc::EPERM);
}

/// The daemon has some thirty descriptors open besides, and a first write needs more for a moment.
#[test]
fn those_who_have_opened_as_many_files_as_may_be_leave_descriptors_to_write_to_them() {
    const DESCRIPTORS: u64 = 100;
    let bench = Bench::new();
    bench.put("a", "content\n");
    bench.view().descriptors.set(DESCRIPTORS).unwrap();
    let open = || bench.open("a", libc::O_RDWR);
    let opened: Vec<HandleId> = std::iter::from_fn(|| open().ok()).take(DESCRIPTORS as usize).collect();
    assert_eq!(open().unwrap_err().code(), libc::ENFILE);
    assert!((40..=50).contains(&opened.len()), "{} were opened", opened.len());
    opened.into_iter().for_each(|handle| bench.close(handle));
}

/// SPEC §5: the writer is not stopped, and nothing below is replaced without its backup.
#[test]
fn what_could_not_be_kept_is_held_and_lands_once_it_can() {
    let large = lines(20_000);
    let edited = large.replacen("line 7\n", "edited\n", 1);
    let again = format!("{edited}more\n");
    let bench = Bench::with(&[(Key::Window, "0")]);
    for path in ["edited", "removed"] {
        bench.put(path, &large);
    }
    let immutable = |flag| {
        let status = std::process::Command::new("chattr")
            .args([flag, bench.lower_path(".fettle/content").to_str().unwrap()])
            .status();
        assert!(status.unwrap().success(), "the test needs a file system that knows immutable directories");
    };
    immutable("+i");
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bench.save("edited", &edited);
        let first = bench.waiting();
        let handle = bench.open("edited", libc::O_WRONLY).unwrap();
        bench.view().write(handle, edited.len() as u64, b"more\n").unwrap();
        bench.close(handle);
        bench.unlink("removed");
        (first, bench.waiting(), bench.view().check().unwrap().0)
    }));
    immutable("-i");
    let (first, mut second, faults) = written.unwrap();
    let held = |path: &str, kind, reasons: &[Reason]| (path.to_owned(), kind, reasons.to_vec());
    let edit = held("edited", ChangeKind::Modify, &[Reason::Backup]);
    assert_eq!((first, faults), (vec![edit.clone()], vec![]));
    second.sort_by_key(|(path, ..)| path.clone());
    assert_eq!(second, [edit, held("removed", ChangeKind::Delete, &[Reason::Backup, Reason::Size])]);
    assert_eq!((bench.lower("edited"), bench.lower("removed")), (Some(large.clone()), Some(large)));
    let ids: Vec<ChangeId> = ["edited", "removed"].map(|path| bench.id_of(path)).into();
    bench.confirm(&ids).unwrap();
    assert_eq!((bench.lower("edited"), bench.lower("removed")), (Some(again), None));
    assert_eq!(bench.view().store().backups().unwrap().len(), 2);
}
