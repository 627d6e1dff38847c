//! Stale: who saves over what it has never seen is held, however small the change.

use super::*;
use crate::model::OperationId;
use crate::overlay::who::sights::Sight;

impl Bench {
    fn look(&self, path: &str, who: &Caller) {
        let flags = OpenFlags::from_raw(libc::O_RDONLY);
        let handle = self.view().open(self.node(path).unwrap(), flags, who).unwrap().handle;
        self.close(handle);
    }

    /// As editors do that write a temporary file and rename it.
    pub(super) fn save_by_rename(&self, path: &str, content: &str) {
        self.save("temp", content);
        self.rename("temp", path);
    }

    pub(super) fn save_as(&self, path: &str, content: &str, who: &Caller) {
        let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
        let handle = self.view().open(self.node(path).unwrap(), flags, who).unwrap().handle;
        self.view().write(handle, 0, content.as_bytes()).unwrap();
        self.view().flush(handle, who).unwrap();
        self.view().release(handle).unwrap();
    }
}

/// A process in a session of its own, which ends with this.
pub(super) struct OtherTree(std::process::Child);

impl OtherTree {
    pub(super) fn begin() -> OtherTree {
        let other = std::process::Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
        // In its own session once it sleeps.
        while crate::sys::process::session(other.id()) != Some(other.id()) {
            std::thread::yield_now();
        }
        OtherTree(other)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for OtherTree {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

fn bench() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench
}

fn outside() -> String {
    lines(100).replace("line 50\n", "by a person\n")
}

#[test]
fn a_save_over_what_a_person_has_changed_since_it_was_read_is_held() {
    let bench = bench();
    bench.look("a", &ME);
    bench.put("a", &outside());
    bench.save_by_rename("a", &changed(100, 1));
    assert_eq!(bench.reasons(), [Reason::Stale]);
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(outside()), Some(changed(100, 1))));
}

#[test]
fn who_touches_what_landed_or_puts_the_same_back_makes_nobody_stale() {
    let touch = |bench: &Bench| {
        let file = std::fs::File::options().write(true).open(bench.lower_path("a")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    };
    let put_back = |bench: &Bench| {
        bench.put("copy", &bench.lower("a").unwrap());
        std::fs::rename(bench.lower_path("copy"), bench.lower_path("a")).unwrap();
    };
    let changes = [("touched", &touch as &dyn Fn(&Bench)), ("put back", &put_back)];
    for ((how, change), looks) in changes.iter().flat_map(|change| [false, true].map(|looks| (change, looks))) {
        let bench = bench();
        bench.save("a", &changed(100, 1));
        bench.look("a", &ME);
        change(&bench);
        if looks {
            assert_eq!(bench.view().external_paths().changed, [], "{how}");
        }
        bench.save_by_rename("a", &changed(100, 2));
        assert!(bench.held().is_empty(), "{how}, looked at: {looks}");
        assert_eq!(bench.lower("a"), Some(changed(100, 2)), "{how}, looked at: {looks}");
    }
}

#[test]
fn who_renames_a_file_away_to_make_it_anew_has_seen_no_more_of_it() {
    type Save = fn(&Bench, &str);
    let saves: [Save; 4] = [
        |bench, content| {
            bench.rename("a", "a~");
            bench.save("a", content);
        },
        |bench, content| {
            // Over the one before.
            bench.save("a~", &lines(99));
            bench.rename("a", "a~");
            bench.save("a", content);
        },
        |bench, content| {
            bench.save("temp", content);
            bench.rename("a", "a.bak");
            bench.rename("temp", "a");
        },
        |bench, content| {
            bench.rename("a", "a.bak");
            bench.rename("a.bak", "a.old");
            bench.save("a", content);
        },
    ];
    for (number, save) in saves.into_iter().enumerate() {
        let bench = bench();
        bench.look("a", &ME);
        save(&bench, &changed(100, 1));
        assert!(bench.held().is_empty(), "{number}: nobody else has changed it: {:?}", bench.held());
        bench.look("a", &ME);
        bench.put("a", &outside());
        save(&bench, &changed(100, 2));
        assert_eq!(bench.held().len(), 1, "{number}");
        assert_eq!(bench.reasons(), [Reason::Stale], "{number}");
        assert_eq!((bench.lower("a"), bench.read("a")), (Some(outside()), Some(changed(100, 2))), "{number}");
    }
}

#[test]
fn what_was_seen_of_a_file_is_known_under_its_new_name_too() {
    for (from, to) in [("d/a", "d/b"), ("d", "e")] {
        let bench = bench();
        bench.put("d/a", &lines(100));
        bench.look("d/a", &ME);
        bench.put("d/a", &outside());
        bench.rename(from, to);
        let path = if from == "d" { "e/a" } else { "d/b" };
        bench.save_by_rename(path, &changed(100, 1));
        assert_eq!((bench.reasons(), bench.lower(path)), (vec![Reason::Stale], Some(outside())), "{from}");
    }
}

#[test]
fn a_save_over_what_another_tree_has_landed_since_is_held() {
    let bench = bench();
    bench.look("a", &ME);
    let other = OtherTree::begin();
    bench.save_as("a", &changed(100, 2), &Caller { pid: other.pid(), ..ME });
    drop(other);
    assert!(bench.held().is_empty());
    bench.save_by_rename("a", &changed(100, 1));
    assert_eq!(bench.reasons(), [Reason::Stale]);
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
}

#[test]
fn who_looked_again_or_never_or_wrote_it_itself_is_not_stale() {
    let bench = bench();
    bench.look("a", &ME);
    bench.put("a", &outside());
    bench.look("a", &ME);
    bench.save_by_rename("a", &outside().replace("line 1\n", "one\n"));
    assert!(bench.held().is_empty(), "looked again");
    bench.save_by_rename("a", &outside().replace("line 1\n", "once more\n"));
    assert!(bench.held().is_empty(), "wrote it itself");
    bench.put("b", &lines(100));
    bench.save_by_rename("b", &changed(100, 1));
    assert!(bench.held().is_empty(), "never looked");
}

#[test]
fn new_times_are_no_new_content() {
    let bench = bench();
    bench.look("a", &ME);
    let set = SetAttributes { mode: Some(0o600), atime: SetTime::Now, mtime: SetTime::Now, ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node("a").unwrap(), None, &set, &ME).unwrap();
    bench.save_by_rename("a", &changed(100, 1));
    assert!(bench.held().is_empty());
}

#[test]
fn what_was_confirmed_has_been_seen_by_who_wrote_it() {
    let bench = bench();
    bench.look("a", &ME);
    bench.save_by_rename("a", &changed(100, 60));
    bench.confirm(&[bench.only_id()]).unwrap();
    bench.save_by_rename("a", &changed(100, 61));
    assert!(bench.held().is_empty());
    assert_eq!(bench.lower("a"), Some(changed(100, 61)));
}

#[test]
fn what_was_stale_and_is_confirmed_has_been_seen_by_who_wrote_it() {
    type Edit = fn(&Bench);
    let edits: [Edit; 2] =
        [|bench| bench.put("a", &outside()), |bench| std::fs::remove_file(bench.lower_path("a")).unwrap()];
    for edit in edits {
        let bench = bench();
        bench.save("a", &changed(100, 1));
        bench.look("a", &ME);
        edit(&bench);
        bench.save_by_rename("a", &changed(100, 2));
        assert_eq!(bench.reasons(), [Reason::Stale]);
        bench.confirm(&[bench.only_id()]).unwrap();
        bench.save_by_rename("a", &changed(100, 3));
        assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(changed(100, 3))));
    }
}

#[test]
fn who_makes_something_where_a_person_has_removed_a_file_is_told_that_nothing_is_there() {
    type Make = fn(&Bench, NodeId, &OsStr) -> Result<Entry>;
    let makes: [(Make, &[Reason]); 3] = [
        (|bench, dir, name| bench.view().symlink(dir, name, OsStr::new("/out"), &ME), &[Reason::Symlink]),
        (|bench, dir, name| bench.view().symlink(dir, name, OsStr::new("b"), &ME), &[]),
        (|bench, dir, name| bench.view().link(bench.node("b")?, dir, name, &ME), &[]),
    ];
    for (make, because) in makes {
        let bench = bench();
        bench.put("b", &lines(100));
        bench.look("a", &ME);
        std::fs::remove_file(bench.lower_path("a")).unwrap();
        let (dir, name) = bench.parent("a");
        make(&bench, dir, name).unwrap();
        let reasons = || bench.held().into_iter().flat_map(|row| row.held.unwrap().reasons).collect::<Vec<_>>();
        assert_eq!(reasons(), because);
        bench.save_by_rename("a", &changed(100, 1));
        assert!(!reasons().contains(&Reason::Stale), "what it has made itself: {:?}", reasons());
    }
}

#[test]
fn a_save_by_rename_where_a_person_has_removed_what_was_written_is_held() {
    let bench = bench();
    bench.save("a", &changed(100, 1));
    bench.look("a", &ME);
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    bench.save_by_rename("a", &changed(100, 2));
    assert_eq!((bench.reasons(), bench.lower("a")), (vec![Reason::Stale], None));
}

#[test]
fn who_has_a_file_open_that_is_renamed_over_an_older_one_of_the_same_content_is_not_stale() {
    let bench = bench();
    bench.put("b", &lines(100));
    let flags = OpenFlags::from_raw(libc::O_RDWR);
    let handle = bench.view().open(bench.node("b").unwrap(), flags, &ME).unwrap().handle;
    bench.rename("b", "a");
    bench.view().write(handle, 0, b"LINE").unwrap();
    bench.close(handle);
    assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(lines(100).replacen("line", "LINE", 1))));
}

/// The project's file has its first name again by that.
#[test]
fn who_exchanges_what_a_path_had_with_what_was_made_there_has_missed_nothing_and_others_have() {
    let other = OtherTree::begin();
    let someone = Caller { pid: other.pid(), ..ME };
    let bench = bench();
    bench.rename("a", "b");
    [&ME, &someone].into_iter().for_each(|who| bench.look("b", who));
    let handle = bench.open_for_save("a");
    rename(bench.view(), bench.parent("a"), bench.parent("b"), RenameFlags::EXCHANGE).unwrap();
    bench.close(handle);
    assert!(bench.held().is_empty(), "{:?}", bench.held());
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(100)), Some(String::new())));
    bench.save("temp", "new\n");
    let [(from, temp), (to, b)] = ["temp", "b"].map(|path| bench.parent(path));
    bench.view().rename(from, temp, to, b, RenameFlags::empty(), &someone).unwrap();
    assert_eq!(bench.reasons(), [Reason::Stale]);
}

/// What was written goes back, and who asked for that saves anew.
#[track_caller]
fn assert_seen_by_who_asked(back: impl Fn(&Bench, Review)) {
    // Not this process: where it is the first one's child, as in a container, both are of one session.
    let other = OtherTree::begin();
    for (by, held) in [(ME.pid, 0), (other.pid(), 1)] {
        let bench = bench();
        bench.save("a", &changed(100, 2));
        back(&bench, Review { by: Writer { pid: by, ..Writer::default() }, dry_run: false });
        assert_eq!(bench.lower("a"), Some(lines(100)));
        bench.save_by_rename("a", &changed(100, 1));
        assert_eq!(bench.held().len(), held, "asked for by {by}");
    }
}

#[test]
fn what_was_rolled_back_has_been_seen_by_who_asked_for_it_and_by_nobody_else() {
    assert_seen_by_who_asked(|bench, review| {
        let backups = bench.view().store().backups().unwrap();
        bench.view().rollback(&backups, &RollbackHow { review, ..RollbackHow::default() }).unwrap();
    });
}

#[test]
fn what_was_undone_has_been_seen_by_who_asked_for_it_and_by_nobody_else() {
    assert_seen_by_who_asked(|bench, review| {
        let events = bench.view().store().events_since(0).unwrap();
        let landed = events.iter().find_map(|event| OperationId::parse(event.operation.as_ref()?)).unwrap();
        bench.view().undo(landed, &UndoHow { review, ..UndoHow::default() }).unwrap();
    });
}

#[test]
fn what_came_to_a_name_by_a_rename_nobody_has_seen() {
    let bench = bench();
    bench.look("a", &ME);
    bench.rename("a", "gone");
    bench.put("new", &lines(90));
    bench.rename("new", "a");
    bench.save_by_rename("a", &lines(90).replace("line 1\n", "one\n"));
    assert!(bench.held().is_empty(), "{:?}", bench.held());
}

#[test]
fn what_is_held_does_not_land_by_itself_over_what_a_person_has_made_of_its_base() {
    type Write = fn(&Bench);
    let small = || changed(100, 1);
    let writes: [(Write, Option<String>); 4] = [
        (|bench| bench.save("a", &changed(100, 1)), Some(small())),
        (|bench| bench.save_by_rename("a", &changed(100, 1)), Some(small())),
        // Back to what it was.
        (|bench| bench.save("a", &lines(100)), Some(lines(100))),
        (|bench| bench.unlink("a"), None),
    ];
    for window in ["0", "2s", "session"] {
        for (number, (write, shown)) in writes.iter().enumerate() {
            let bench = Bench::with(&[(Key::Window, window)]);
            bench.put("a", &lines(100));
            bench.save("a", &changed(100, 90));
            bench.put("a", &outside());
            write(&bench);
            assert!(bench.reasons().contains(&Reason::External), "{window} {number}: {:?}", bench.reasons());
            assert_eq!((bench.lower("a"), bench.read("a")), (Some(outside()), shown.clone()), "{window} {number}");
        }
    }
}

/// Nor does what becomes of it: its writer has seen no more of the file when a person discards what was held.
#[test]
fn what_is_discarded_while_it_is_written_does_not_land_over_what_a_person_has_made_of_its_base() {
    let in_place: fn(&Bench) = |bench| bench.put("a", &outside());
    let by_rename: fn(&Bench) = |bench| {
        bench.put("theirs", &outside());
        std::fs::rename(bench.lower_path("theirs"), bench.lower_path("a")).unwrap();
    };
    let discard: fn(&Bench) = |bench| bench.discard_all().unwrap();
    for acts in [[in_place, discard], [by_rename, discard], [discard, by_rename]] {
        let mut bench = bench();
        bench.save("a", &changed(100, 60));
        let handle = bench.open_for_save("a");
        bench.view().write(handle, 0, b"half\n").unwrap();
        acts.into_iter().for_each(|act| act(&bench));
        bench.write_and_close(handle, 0, &changed(100, 1));
        assert_eq!((bench.reasons(), bench.lower("a")), (vec![Reason::Stale], Some(outside())));
        bench.check();
        bench.remount();
        assert_eq!(bench.read("a"), Some(changed(100, 1)));
    }
}

#[test]
fn what_is_held_goes_on_waiting_where_a_person_has_removed_or_made_the_file() {
    let bench = bench();
    bench.save("a", &changed(100, 90));
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    bench.save("a", &changed(100, 1));
    assert_eq!((bench.reasons(), bench.lower("a")), (vec![Reason::External], None));
    // Its small deletion had landed, and what was made there then was a change of what it had been.
    bench.put("b", &lines(5));
    bench.unlink("b");
    bench.save("b", &changed(90, 90));
    bench.put("b", "by a person\n");
    bench.save("b", &changed(5, 1));
    assert_eq!(bench.lower("b").unwrap(), "by a person\n");
    assert_eq!(bench.held()[1].held.as_ref().unwrap().reasons, [Reason::External]);
}

#[test]
fn what_a_person_has_made_of_the_base_is_merged_with_the_small_change_that_is_left() {
    let bench = bench();
    bench.save("a", &changed(100, 90));
    bench.put("a", &outside());
    bench.save("a", &changed(100, 1));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a").unwrap(), outside().replace("line 0\n", "new 0\n"));
    assert!(bench.held().is_empty());
}

#[test]
fn what_has_become_small_lands_where_a_person_has_only_touched_the_file() {
    let bench = bench();
    bench.save("a", &changed(100, 90));
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 1));
    assert_eq!((bench.held().len(), bench.lower("a")), (0, Some(changed(100, 1))));
}

/// After two landings a file may have the number that its inode had when it was looked at.
#[test]
fn who_opens_a_file_as_it_lands_is_not_taken_to_have_seen_what_was_before() {
    let (bench, path) = (bench(), RelPath::parse(b"a").unwrap());
    let node = bench.node("a").unwrap();
    let kept_open = bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap().handle;
    let epoch = bench.view().state.lock().epoch;
    bench.save_as("a", &changed(100, 1), &ME);
    let now = bench.view().lower.stat(&path).unwrap().unwrap().stamp();
    let looked_at = crate::model::Stamp { size: now.size + 1, ..now };
    let tree = bench.view().tree_of(ME.pid);
    {
        let mut state = bench.view().state.lock();
        let open = state.nodes.get(node).unwrap().open().unwrap().clone();
        state.saw_opened(&path, &open, (Sight::of_lower(looked_at), epoch), tree);
    }
    bench.view().write(kept_open, 0, b"LINE").unwrap();
    bench.close(kept_open);
    assert!(bench.held().is_empty(), "{:?}", bench.reasons());
}

/// The look of another open came before that, and what is noted of it after.
#[test]
fn what_is_opened_while_its_times_are_set_is_not_stale() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let (node, path) = (bench.node("a").unwrap(), RelPath::parse(b"a").unwrap());
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap().handle;
    let before = bench.view().lower().stat(&path).unwrap().unwrap().stamp();
    let epoch = bench.view().state.lock().epoch;
    let (atime, mtime) = (SetTime::Keep, SetTime::At(Timestamp { seconds: 1_000_000, nanoseconds: 0 }));
    let set = SetAttributes { atime, mtime, ..SetAttributes::NOTHING };
    bench.view().set_attributes(node, None, &set, &ME).unwrap();
    let tree = bench.view().tree_of(ME.pid);
    assert!(tree.is_some());
    {
        let mut state = bench.view().state.lock();
        let open = state.nodes.open_on(node).unwrap().clone();
        state.saw_opened(&path, &open, (Sight::of_lower(before), epoch), tree);
    }
    bench.view().write(handle, 0, b"LINE 0").unwrap();
    bench.close(handle);
    assert_eq!(bench.reasons_if_held(), []);
    assert!(bench.lower("a").unwrap().starts_with("LINE 0"));
    bench.check();
}

/// `a` and `b` are names of one file, of which this tree has seen `a`; by `b`, which came there by a rename, the kernel
/// speaks of it.
fn two_names() -> Bench {
    let bench = bench();
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("first")).unwrap();
    bench.look("a", &ME);
    bench.node("first").unwrap();
    bench.rename("first", "b");
    let node = bench.node("a").unwrap();
    let names = bench.view().state.lock().nodes.paths(node).unwrap();
    assert_eq!(names.first().map(ToString::to_string).as_deref(), Some("b"), "{names:?}");
    bench
}

impl Bench {
    fn set_times(&self, path: &str, seconds: i64) {
        let time = SetTime::At(crate::model::Timestamp { seconds, nanoseconds: 0 });
        let set = SetAttributes { mtime: time, ..SetAttributes::NOTHING };
        let node = self.node(path).unwrap();
        ask(self, node, path, |node| self.view().set_attributes(node, None, &set, &ME)).unwrap();
    }

    fn is_external(&self, path: &str) -> bool {
        self.view().externally(&RelPath::parse(path.as_bytes()).unwrap()).unwrap().is_some()
    }
}

/// The program has changed its own file, by whichever name.
#[test]
fn what_a_tree_does_to_a_file_by_one_name_does_not_make_it_stale_by_another() {
    type Act = fn(&Bench);
    let acts: [(&str, Act); 6] = [
        ("times", |bench| bench.set_times("b", 1_000_000)),
        ("times by the other", |bench| bench.set_times("a", 1_000_000)),
        ("undone times", |bench| {
            bench.set_times("b", 1_000_000);
            bench.undo(&bench.latest()).unwrap();
        }),
        ("landed", |bench| bench.save("b", &changed(100, 1))),
        ("confirmed", |bench| {
            bench.save("b", &changed(100, 90));
            bench.confirm(&[bench.held()[0].held.clone().unwrap().id]).unwrap();
        }),
        ("rolled back", |bench| {
            bench.save("b", &changed(100, 1));
            bench.undo(&bench.latest()).unwrap();
        }),
    ];
    for (act, do_it) in acts {
        let bench = two_names();
        do_it(&bench);
        assert!(!bench.is_external("a") && !bench.is_external("b"), "{act}: nobody else has changed it");
        let content = bench.lower("a").unwrap();
        bench.save_by_rename("a", &(content + "more\n"));
        assert_eq!(bench.reasons_if_held(), [], "{act}");
        let bench = two_names();
        do_it(&bench);
        let content = bench.lower("a").unwrap();
        bench.unlink("a");
        // Of a hundred lines it waits, for its size.
        assert_eq!(bench.reasons_if_held(), [Reason::Size], "{act}");
        assert_eq!(bench.lower("a"), Some(content), "{act}");
    }
}

#[test]
fn what_a_person_did_to_a_file_before_its_times_were_set_by_another_name_is_found() {
    type Act = fn(&Bench);
    let acts: [(&str, Act); 3] = [
        ("content", |bench| bench.put("a", &outside())),
        ("another file", |bench| {
            bench.put("new", &outside());
            std::fs::rename(bench.lower_path("new"), bench.lower_path("a")).unwrap();
        }),
        ("times", |bench| {
            let file = std::fs::File::options().write(true).open(bench.lower_path("a")).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }),
    ];
    for (act, do_it) in acts {
        let bench = two_names();
        do_it(&bench);
        bench.set_times("b", 1_000_000);
        bench.save_by_rename("a", &changed(100, 1));
        assert_eq!(bench.reasons_if_held(), [Reason::Stale], "{act}");
    }
}

/// By which of its names a file is opened the kernel does not tell.
#[test]
fn who_opens_a_file_has_seen_it_under_each_of_its_names() {
    let bench = two_names();
    bench.put("a", &outside());
    bench.look("a", &ME);
    bench.save_by_rename("a", &changed(100, 1));
    assert_eq!(bench.reasons_if_held(), []);
}

/// It was never seen by this one.
#[test]
fn what_another_tree_writes_by_one_name_makes_who_has_seen_the_file_by_another_stale() {
    let bench = two_names();
    let other = OtherTree::begin();
    bench.save_as("b", &changed(100, 2), &Caller { pid: other.pid(), ..ME });
    drop(other);
    bench.save_by_rename("a", &changed(100, 1));
    assert_eq!(bench.reasons_if_held(), [Reason::Stale]);
}

/// Many who append to one file: while one waits for another's copy-up, what that wrote lands.
#[test]
fn who_waited_for_anothers_copy_up_writes_over_what_has_landed_by_then() {
    let (bench, path) = (Bench::new(), RelPath::parse(b"a").unwrap());
    bench.put("a", &lines(100));
    let node = bench.node("a").unwrap();
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap().handle;
    let open = bench.view().state.lock().nodes.open_on(node).unwrap().clone();
    let (copying, version) = (open.copying.lock(), open.version());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            tell.send(rustix::thread::gettid()).unwrap();
            bench.view().write_by(handle, Position::End, b"more\n", &ME).unwrap()
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        // By then it has taken its look, if it takes one before it waits.
        while open.is_still(version) || !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        // In the file itself and as a landing tells of it: the other's upper file has become lower's.
        bench.put("a", &changed(100, 1));
        let landed = bench.view().lower().stat(&path).unwrap().unwrap().stamp();
        let tree = bench.view().tree_of(ME.pid);
        let mut state = bench.view().state.lock();
        state.handles_on(node).for_each(|handle| handle.landed(landed));
        state.saw(&path, Some(landed), tree);
        drop((state, copying));
        writes.join().unwrap();
    });
    bench.close(handle);
    assert!(bench.held().is_empty(), "{:?}", bench.reasons());
}
