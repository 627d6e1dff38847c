//! What a person takes from the view while a program has it open to write: what that writes and closes is in the view, and is
//! judged.

use super::*;
use crate::overlay::undo::rollback::RollbackHow;
use crate::protocol::{ErrorBody, Outcome};
use crate::store::Fate;
use crate::sys::file;

const HELD: &str = "AGENTS.md";

impl Bench {
    pub(super) fn open_to_write(&self, path: &str) -> HandleId {
        self.open(path, libc::O_WRONLY).unwrap()
    }

    pub(super) fn discard_all(&self) -> std::result::Result<(), ErrorCode> {
        let ids: Vec<ChangeId> = self.held().into_iter().map(|row| row.held.unwrap().id).collect();
        self.view().discard(&ids, &Review::default()).map(drop).map_err(|refusal| refusal.code)
    }

    pub(super) fn write_and_close(&self, handle: HandleId, offset: u64, text: &str) {
        self.view().write(handle, offset, text.as_bytes()).unwrap();
        self.close(handle);
    }

    fn append(&self, handle: HandleId, text: &str) {
        self.view().write_by(handle, Position::End, text.as_bytes(), &ME).unwrap();
    }

    pub(super) fn link(&self, from: &str, to: &str) {
        let ((dir, name), node) = (self.parent(to), self.node(from).unwrap());
        self.view().link(node, dir, name, &ME).unwrap();
    }

    fn held_paths(&self) -> Vec<String> {
        self.held().iter().map(|row| row.path().to_string()).collect()
    }
}

/// How something comes again.
type ComeAgain = fn(&Bench);

fn undo_latest(bench: &Bench) {
    bench.undo(&bench.latest()).unwrap();
}

fn roll_back_latest(bench: &Bench) {
    let backups = bench.view().store().backups().unwrap();
    bench.view().rollback(&backups[..1], &RollbackHow::default()).unwrap();
}

/// A new file that was held, and was discarded while a program has it open to write.
fn discarded_while_open() -> (Bench, HandleId) {
    let bench = Bench::new();
    bench.save(HELD, "made\n");
    let handle = bench.open_to_write(HELD);
    bench.discard_all().unwrap();
    (bench, handle)
}

/// Where lower has nothing. What a writer adds to a file that it has comes to that.
#[test]
fn what_was_discarded_is_there_again_once_its_writer_goes_on() {
    let mut bench = Bench::new();
    bench.save(HELD, "made\n");
    let handle = bench.open_to_write(HELD);
    bench.discard_all().unwrap();
    assert_eq!(bench.read(HELD), None);
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!((bench.read(HELD).as_deref(), bench.lower(HELD)), (Some("made\nmore\n"), None));
    let id = bench.only_id();
    bench.check();
    bench.remount();
    assert_eq!((bench.read(HELD).as_deref(), bench.only_id()), (Some("made\nmore\n"), id));
}

#[test]
fn what_was_discarded_stays_away_where_nobody_goes_on_with_it_or_something_else_has_come() {
    let (bench, handle) = discarded_while_open();
    bench.close(handle);
    assert_eq!((bench.read(HELD), bench.held().len(), bench.stage_files()), (None, 0, 0));

    bench.save(HELD, "made\n");
    let handle = bench.open_to_write(HELD);
    bench.discard_all().unwrap();
    bench.save(HELD, "another\n");
    bench.view().write(handle, 5, b"more\n").unwrap();
    assert_eq!((bench.read(HELD).as_deref(), bench.held().len()), (Some("another\n"), 1));
    // As far as that stays.
    bench.unlink(HELD);
    bench.write_and_close(handle, 10, "end\n");
    assert_eq!((bench.read(HELD).as_deref(), bench.held().len()), (Some("made\nmore\nend\n"), 1));
    bench.check();
}

#[test]
fn what_has_come_back_and_is_removed_by_a_program_stays_away() {
    let (bench, handle) = discarded_while_open();
    bench.view().write(handle, 5, b"more\n").unwrap();
    bench.unlink(HELD);
    bench.write_and_close(handle, 10, "end\n");
    assert_eq!((bench.read(HELD), bench.held().len(), bench.stage_files()), (None, 0, 0));
    bench.check();
}

/// It would be the project's begin and the program's end, or the other way round.
#[test]
fn what_is_in_the_midst_of_being_written_when_it_is_discarded_is_a_change_of_its_own() {
    for flags in [libc::O_WRONLY | libc::O_TRUNC, libc::O_WRONLY] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.save("a", &changed(100, 60));
        let handle = bench.open("a", flags).unwrap();
        let mut whole = "NEW 0\n".to_owned();
        if flags & libc::O_TRUNC == 0 {
            whole = changed(100, 60).replace("new 0\n", &whole).replace("new 1\n", "NEW 1\n");
            bench.view().write(handle, 6, b"NEW 1\n").unwrap();
        }
        bench.discard_all().unwrap();
        assert!(bench.held().is_empty());
        bench.write_and_close(handle, 0, "NEW 0\n");
        assert_eq!(
            (bench.read("a"), bench.lower("a"), bench.held_paths()),
            (Some(whole), Some(lines(100)), vec!["a".to_owned()])
        );
        bench.check();
    }
}

/// Its writer has closed it: no id ever named it, and only the other one's close has it judged.
#[test]
fn what_was_rewritten_and_left_to_who_only_appends_is_a_change_of_its_own_when_it_is_discarded() {
    let overwrites: fn(&Bench) = |bench| bench.write_and_close(bench.open_to_write(HELD), 0, "MADE\n");
    let empties: fn(&Bench) = |bench| bench.close(bench.open(HELD, libc::O_WRONLY | libc::O_TRUNC).unwrap());
    for (rewrite, left) in [(overwrites, "MADE\nadded\n"), (empties, "")] {
        let bench = Bench::new();
        bench.save(HELD, "made\n");
        let appending = bench.open_to_write(HELD);
        bench.append(appending, "added\n");
        rewrite(&bench);
        bench.discard_all().unwrap();
        assert_eq!((bench.held().len(), bench.read(HELD).as_deref()), (0, Some(left)));
        bench.append(appending, "more\n");
        bench.close(appending);
        assert_eq!((bench.read(HELD), bench.held_paths()), (Some(format!("{left}more\n")), vec![HELD.to_owned()]));
        bench.check();
    }
}

/// What he had done was judged with what another wrote, and is discarded with that.
#[test]
fn who_only_emptied_what_another_has_written_since_does_not_bring_it_back_when_it_is_discarded() {
    let bench = Bench::with(&[(Key::Burst, "1")]);
    ["a", "b"].iter().for_each(|path| bench.put(path, &lines(100)));
    let emptying = bench.open_for_save("b");
    ["a", "b"].iter().for_each(|path| bench.save(path, &changed(100, 1)));
    assert_eq!((bench.held_paths(), bench.reasons()), (vec!["b".to_owned()], vec![Reason::Burst]));
    bench.discard_all().unwrap();
    assert_eq!(bench.read("b"), Some(lines(100)));
    bench.close(emptying);
    assert_eq!((bench.held().len(), bench.read("b"), bench.lower("b")), (0, Some(lines(100)), Some(lines(100))));
    bench.check();
}

/// Nobody has written to what is held again.
#[test]
fn what_was_written_while_the_name_was_anothers_is_not_in_the_midst_of_what_is_held_again_and_discarded() {
    let (bench, handle) = discarded_while_open();
    let discarded = bench.latest();
    bench.save(HELD, "another\n");
    bench.view().write(handle, 0, b"lost\n").unwrap();
    bench.unlink(HELD);
    bench.undo(&discarded).unwrap();
    assert_eq!(bench.read(HELD).as_deref(), Some("made\n"));
    bench.discard_all().unwrap();
    assert_eq!((bench.read(HELD), bench.held().len()), (None, 0));
    bench.close(handle);
    assert_eq!((bench.read(HELD), bench.held().len()), (None, 0));
    bench.check();
}

/// By the name that its directory has now, or by none.
#[test]
fn what_was_discarded_is_there_again_in_its_directory_as_far_as_that_is_there() {
    let bench = Bench::new();
    for dir in ["d", "e"] {
        bench.put(&format!("{dir}/other"), "o\n");
        bench.save(&format!("{dir}/{HELD}"), "made\n");
    }
    let opened = ["d/AGENTS.md", "e/AGENTS.md"].map(|path| bench.open_to_write(path));
    bench.discard_all().unwrap();
    bench.rename("d", "f");
    bench.unlink("e/other");
    let (root, name) = bench.parent("e");
    bench.view().rmdir(root, name, &ME).unwrap();
    opened.into_iter().for_each(|handle| bench.write_and_close(handle, 0, "Mine\n"));
    assert_eq!(
        (bench.held_paths(), bench.read("f/AGENTS.md").as_deref()),
        (vec!["f/AGENTS.md".to_owned()], Some("Mine\n"))
    );
    bench.check();
}

/// What it was taken from has been closed to him meanwhile.
#[test]
fn nothing_comes_back_into_a_directory_in_which_its_writer_may_make_nothing() {
    for (mode, is_back) in [(0o777, true), (0o755, false)] {
        let bench = Bench::new();
        bench.put("d/other", "o\n");
        file::set_mode(std::fs::File::open(bench.lower_path("d")).unwrap().as_fd(), 0o777).unwrap();
        bench.save("d/AGENTS.md", "made\n");
        scenarios::chmod(&bench, "d/AGENTS.md", 0o666);
        let other = Caller { uid: 65534, gid: 65534, ..ME };
        let node = bench.node("d/AGENTS.md").unwrap();
        let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY), &other).unwrap().handle;
        bench.discard_all().unwrap();
        file::set_mode(std::fs::File::open(bench.lower_path("d")).unwrap().as_fd(), mode).unwrap();
        bench.view().write(handle, 5, b"more\n").unwrap();
        bench.close(handle);
        assert_eq!(bench.read("d/AGENTS.md").is_some(), is_back, "{mode:o}");
    }
}

#[test]
fn what_is_held_or_restored_again_is_what_its_writer_goes_on_with() {
    let returns: [ComeAgain; 2] = [undo_latest, roll_back_latest];
    for (number, come_again) in returns.into_iter().enumerate() {
        let bench = Bench::new();
        bench.save(HELD, "made\n");
        let handle = bench.open_to_write(HELD);
        bench.discard_all().unwrap();
        come_again(&bench);
        assert_eq!(bench.read(HELD).as_deref(), Some("made\n"), "{number}");
        bench.write_and_close(handle, 5, "more\n");
        assert_eq!((bench.read(HELD).as_deref(), bench.held().len()), (Some("made\nmore\n"), 1), "{number}");
        bench.check();
    }
}

/// Of several that had that name the last one.
#[test]
fn what_is_held_again_is_what_its_own_writer_goes_on_with() {
    for _ in 0..8 {
        let bench = Bench::new();
        let [earlier, handle] = ["earlier\n", "made\n"].map(|text| {
            bench.save(HELD, text);
            let handle = bench.open_to_write(HELD);
            bench.discard_all().unwrap();
            handle
        });
        bench.undo(&bench.latest()).unwrap();
        bench.write_and_close(earlier, 0, "nobody's\n");
        bench.write_and_close(handle, 5, "more\n");
        assert_eq!((bench.read(HELD).as_deref(), bench.held().len()), (Some("made\nmore\n"), 1));
        bench.check();
    }
}

#[test]
fn what_an_undo_takes_away_is_there_again_once_its_writer_goes_on() {
    let bench = Bench::new();
    bench.save("new", "made\n");
    assert_eq!(bench.lower("new").as_deref(), Some("made\n"));
    let handle = bench.open_to_write("new");
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.read("new"), bench.lower("new")), (None, None));
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!(bench.read("new").as_deref(), Some("made\nmore\n"));
    bench.check();
}

#[test]
fn a_directory_in_which_a_file_is_open_to_write_is_not_discarded_with_it() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "made\n");
    let handle = bench.open_to_write("big/x");
    assert_eq!(bench.discard_all(), Err(ErrorCode::Busy));
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!((bench.read("big/x").as_deref(), bench.held_paths().len()), (Some("made\nmore\n"), 2));
    bench.discard_all().unwrap();
    assert_eq!(bench.read("big"), Some(lines(100)));
    bench.check();
}

/// A held deletion that came by an undo, while `path` was open to write.
fn deleted_again(bench: &Bench, path: &str) -> HandleId {
    bench.unlink(path);
    bench.discard_all().unwrap();
    let operation = bench.latest();
    let handle = bench.open_to_write(path);
    bench.undo(&operation).unwrap();
    assert_eq!((bench.read(path), bench.held_paths()), (None, vec![path.to_owned()]));
    handle
}

#[test]
fn what_is_written_by_one_name_is_there_whatever_a_person_does_to_another() {
    let bench = Bench::new();
    bench.put("f", "one\n");
    let handle = bench.open_to_write("f");
    bench.link("f", "g");
    bench.undo(&bench.latest()).unwrap();
    bench.write_and_close(handle, 0, "ONE\n");
    assert_eq!((bench.names(""), bench.read("f").as_deref()), (vec!["f".to_owned()], Some("ONE\n")));
    bench.check();

    let bench = Bench::new();
    bench.put("f", &lines(100));
    std::fs::hard_link(bench.lower_path("f"), bench.lower_path("g")).unwrap();
    assert_eq!(bench.node("f").unwrap(), bench.node("g").unwrap());
    let handle = deleted_again(&bench, "f");
    bench.write_and_close(handle, 0, "LINE");
    let whole = lines(100).replacen("line", "LINE", 1);
    assert_eq!((bench.read("f"), bench.read("g")), (None, Some(whole)));
    bench.check();

    let bench = Bench::new();
    bench.put("f", &lines(100));
    std::fs::hard_link(bench.lower_path("f"), bench.lower_path("g")).unwrap();
    assert_eq!(bench.node("f").unwrap(), bench.node("g").unwrap());
    bench.save("f", &changed(100, 60));
    let handle = bench.open_to_write("g");
    std::fs::remove_file(bench.lower_path("f")).unwrap();
    bench.discard_all().unwrap();
    bench.write_and_close(handle, 0, "LINE");
    let whole = lines(100).replacen("line", "LINE", 1);
    assert_eq!((bench.read("f"), bench.read("g")), (None, Some(whole)));
    bench.check();
}

#[test]
fn what_is_undone_below_what_is_held_leaves_who_has_that_open_alone() {
    let landed_and_held = || {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.save("new", "made\n");
        let operation = bench.latest();
        bench.save("new", &lines(100));
        let handle = bench.open_to_write("new");
        bench.undo(&operation).unwrap();
        (bench, handle)
    };
    let whole = lines(100).replacen("line", "LINE", 1);

    let (bench, handle) = landed_and_held();
    bench.undo(&bench.latest()).unwrap();
    bench.write_and_close(handle, 0, "LINE");
    assert_eq!((bench.read("new"), bench.lower("new").as_deref()), (Some(whole.clone()), Some("made\n")));
    assert_eq!(bench.held_paths(), ["new"]);
    bench.check();

    let (bench, handle) = landed_and_held();
    bench.discard_all().unwrap();
    bench.write_and_close(handle, 0, "LINE");
    assert_eq!(bench.read("new"), Some(whole));
    bench.check();
}

#[test]
fn what_is_restored_below_a_deletion_is_not_what_its_writer_goes_on_with() {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("f", &lines(100));
    bench.save("f", &changed(100, 1));
    let handle = deleted_again(&bench, "f");
    let backups = bench.view().store().backups().unwrap();
    bench.view().rollback(&backups[..1], &RollbackHow::default()).unwrap();
    assert_eq!((bench.read("f"), bench.lower("f")), (None, Some(lines(100))));
    bench.write_and_close(handle, 0, "NEW");
    assert_eq!(bench.read("f"), Some(changed(100, 1).replacen("new", "NEW", 1)));
    bench.check();
}

#[test]
fn what_is_not_to_be_deleted_any_more_is_what_its_writer_goes_on_with() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    let handle = deleted_again(&bench, "f");
    bench.discard_all().unwrap();
    bench.write_and_close(handle, 0, "LINE");
    assert_eq!(bench.read("f"), Some(lines(100).replacen("line", "LINE", 1)));
    assert_eq!(bench.lower("f"), bench.read("f"));
    bench.check();
}

#[test]
fn what_had_several_names_comes_back_by_the_first() {
    let bench = Bench::new();
    bench.save(HELD, "made\n");
    bench.link(HELD, "other");
    assert_eq!(bench.held().len(), 1);
    let handle = bench.open_to_write("other");
    bench.discard_all().unwrap();
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!((bench.read(HELD).as_deref(), bench.read("other")), (Some("made\nmore\n"), None));
    bench.check();
}

/// Nothing was written: the deletion goes on waiting.
#[test]
fn what_is_made_to_look_otherwise_does_not_come_back_by_that() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    let handle = deleted_again(&bench, "f");
    let node = bench.view().handle(handle).unwrap().node;
    let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
    let private = SetAttributes { mode: Some(0o600), atime, mtime, ..SetAttributes::NOTHING };
    bench.view().set_attributes(node, Some(handle), &private, &ME).unwrap();
    assert_eq!((bench.read("f"), bench.held_paths()), (None, vec!["f".to_owned()]));
    bench.confirm(&[bench.only_id()]).unwrap();
    bench.write_and_close(handle, 0, "LINE");
    assert_eq!(bench.read("f"), Some(lines(100).replacen("line", "LINE", 1)));
    bench.check();
}

#[test]
fn nothing_comes_back_to_where_a_rule_lets_nobody_make_it() {
    for action in ["freeze", "deny", "hold"] {
        let mut bench = Bench::new();
        let rule = |path, action| format!("[[rule]]\nmatch = \"{path}\"\naction = \"{action}\"\n");
        bench.put(".fettle.toml", &(rule("d/log", "hold") + &rule("e/log", action)));
        bench.put("d/other", "o\n");
        bench.remount();
        bench.save("d/log", "made\n");
        let handle = bench.open_to_write("d/log");
        bench.discard_all().unwrap();
        bench.rename("d", "e");
        bench.write_and_close(handle, 5, "more\n");
        assert_eq!(bench.read("e/log").is_some(), action == "hold", "{action}");
        bench.check();
    }
}

/// Both wait until the deletion is judged, and either may be the first.
#[test]
fn what_comes_back_and_what_is_made_at_its_name_do_not_replace_each_other() {
    for _ in 0..10 {
        let bench = Bench::new();
        bench.put("f", &lines(100));
        let handle = deleted_again(&bench, "f");
        let hidden = bench.held()[0].id;
        let (_, claimed) = bench.view().claim(hidden).unwrap();
        let made = std::thread::scope(|scope| {
            let writing = scope.spawn(|| bench.view().write(handle, 0, b"LINE").unwrap());
            let making = scope.spawn(|| {
                let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
                bench.view().create(ROOT, OsStr::new("f"), 0o644, flags, &ME)
            });
            outlast(Duration::from_millis(20));
            drop(claimed);
            writing.join().unwrap();
            making.join().unwrap()
        });
        let there = match made {
            Ok((_, made)) => {
                bench.view().write(made.handle, 0, b"another\n").unwrap();
                bench.close(made.handle);
                "another\n".to_owned()
            }
            Err(err) => {
                assert_eq!(err.code(), libc::ESTALE);
                lines(100).replacen("line", "LINE", 1)
            }
        };
        bench.close(handle);
        assert_eq!(bench.read("f"), Some(there));
        bench.check();
    }
}

/// What takes a while to be copied.
fn large() -> String {
    "y".repeat(8 << 20)
}

/// At so many moments of what a person or another program does.
const MOMENTS: u32 = 30;

impl Bench {
    /// Somebody writes to what he has open and closes it, while something is done that takes as long. Gives how long it has
    /// taken.
    fn write_during(&self, handle: HandleId, moment: (u32, Duration), act: impl FnOnce()) -> Duration {
        let write = || assert_eq!(self.view().write(handle, 0, b"MORE").unwrap(), 4);
        let took = during(moment, write, act);
        self.close(handle);
        took
    }

    fn begins_with(&self, path: &str, text: &str) -> bool {
        let Ok(node) = self.node(path) else { return false };
        let handle = self.open_to_read(node);
        let begin = self.view().read(handle, 0, text.len()).unwrap();
        self.view().release(handle).unwrap();
        begin == text.as_bytes()
    }
}

/// Has somebody write at one of the moments of an act that takes so long. Gives how long it took.
fn during((number, takes): (u32, Duration), write: impl FnOnce() + Send, act: impl FnOnce()) -> Duration {
    let begun = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            outlast(takes * number / MOMENTS);
            write();
        });
        begun.wait();
        let since = std::time::Instant::now();
        act();
        since.elapsed()
    })
}

/// It may have come back before.
fn undone_if_free(undone: std::result::Result<Vec<Outcome>, ErrorBody>) {
    if let Err(refusal) = undone {
        assert!(matches!(refusal.code, ErrorCode::Busy | ErrorCode::Conflict), "{refusal:?}");
    }
}

#[test]
fn what_is_written_at_the_moment_of_an_undo_is_in_what_that_holds_again() {
    let mut takes = Duration::ZERO;
    for number in 0..MOMENTS {
        let bench = Bench::new();
        bench.save(HELD, "made\n");
        let handle = bench.open_to_write(HELD);
        bench.discard_all().unwrap();
        let discarded = bench.latest();
        // Nobody's as long as something else is there.
        bench.save(HELD, "another\n");
        bench.view().write(handle, 5, large().as_bytes()).unwrap();
        bench.unlink(HELD);
        takes = bench.write_during(handle, (number, takes), || undone_if_free(bench.undo(&discarded)));
        assert!(bench.begins_with(HELD, "MORE"), "{number}");
    }
}

#[test]
fn what_is_written_at_the_moment_at_which_an_undo_takes_it_away_is_there_again() {
    let mut takes = Duration::ZERO;
    for number in 0..MOMENTS {
        let bench = Bench::new();
        bench.save("new", &large());
        let handle = bench.open_to_write("new");
        let made = bench.latest();
        takes = bench.write_during(handle, (number, takes), || undone_if_free(bench.undo(&made)));
        assert!(bench.begins_with("new", "MORE"), "{number}");
    }
}

/// Who appends while it is being judged has it judged with his own.
#[test]
fn what_was_rewritten_and_not_judged_for_somebody_else_is_a_change_of_its_own_when_it_is_discarded() {
    let (small, mut takes) = (changed(2000, 2), Duration::ZERO);
    for number in 0..MOMENTS {
        let bench = Bench::new();
        bench.put("a", &lines(2000));
        bench.save("a", &changed(2000, 1500));
        let (appending, rewriting) = (bench.open_to_write("a"), bench.open_for_save("a"));
        bench.view().write(rewriting, 0, small.as_bytes()).unwrap();
        takes = during((number, takes), || bench.append(appending, "end\n"), || bench.close(rewriting));
        bench.discard_all().unwrap();
        assert!(bench.begins_with("a", &small), "{number}");
    }
}

/// By the name that its directory has then.
#[test]
fn what_comes_back_while_its_directory_is_renamed_is_in_that() {
    for number in 0..10 {
        let bench = Bench::new();
        bench.put("d/other", "o\n");
        bench.save("d/AGENTS.md", &large());
        let handle = bench.open_to_write("d/AGENTS.md");
        bench.discard_all().unwrap();
        bench.write_during(handle, (0, Duration::ZERO), || {
            outlast(Duration::from_micros(500));
            bench.rename("d", "e");
        });
        assert!(bench.begins_with("e/AGENTS.md", "MORE"), "{number}");
        assert_eq!((bench.names(""), bench.held().len()), (vec!["e".to_owned()], 1), "{number}");
    }
}

/// Nobody has judged that, and an id names exact content.
#[test]
fn what_was_added_to_a_change_before_it_went_is_another_change_when_that_is_undone() {
    let discard = |bench: &Bench| bench.discard_all().unwrap();
    let unlink = |bench: &Bench| bench.unlink(HELD);
    for (number, to, go) in
        [(0, Position::End, &discard as &dyn Fn(&Bench)), (1, Position::End, &unlink), (2, Position::At(5), &unlink)]
    {
        let bench = Bench::new();
        bench.save(HELD, "made\n");
        let id = bench.only_id();
        let handle = bench.open(HELD, libc::O_WRONLY | libc::O_APPEND).unwrap();
        bench.view().write_by(handle, to, b"unclosed\n", &ME).unwrap();
        go(&bench);
        bench.close(handle);
        let outcomes = bench.undo(&bench.latest()).unwrap();
        let again = bench.only_id();
        assert_ne!(again, id, "{number}");
        assert_eq!((outcomes[0].id.as_ref(), bench.read(HELD).as_deref()), (Some(&again), Some("made\nunclosed\n")));
        let held = bench.held()[0].held.clone().unwrap();
        assert_eq!((held.insertions, held.deletions, held.hunks), (2, 0, 1), "{number}");
        assert_eq!(bench.fate(&id), Fate::Superseded { by: again.clone() }, "{number}");
        bench.check();
        bench.undo(&bench.latest()).unwrap();
        assert_eq!((bench.read(HELD), bench.held().len()), (None, 0), "{number}");
        bench.undo(&bench.latest()).unwrap();
        assert_eq!(bench.only_id(), again, "{number}");
        bench.confirm(&[again]).unwrap();
        assert_eq!(bench.lower(HELD).as_deref(), Some("made\nunclosed\n"), "{number}");
        bench.check();
    }
}

/// It may come back, and needs its directory for that.
#[test]
fn a_directory_from_which_something_was_discarded_that_is_open_to_write_is_not_discarded() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "made\n");
    let handle = bench.open_to_write("big/x");
    let file = bench.held().into_iter().find(|row| row.path().to_string() == "big/x").unwrap().held.unwrap().id;
    bench.view().discard(&[file], &Review::default()).unwrap();
    assert_eq!(bench.discard_all(), Err(ErrorCode::Busy));
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!(bench.read("big/x").as_deref(), Some("made\nmore\n"));
    bench.discard_all().unwrap();
    assert_eq!(bench.read("big"), Some(lines(100)));
    bench.check();
}

#[test]
fn an_undo_leaves_a_directory_for_what_is_open_to_write_in_it() {
    let bench = Bench::new();
    let (parent, name) = bench.parent("d");
    bench.view().mkdir(parent, name, 0o755, &ME).unwrap();
    bench.save("d/f", "made\n");
    let made = bench.latest();
    let handle = bench.open_to_write("d/f");
    bench.undo(&made).unwrap();
    assert_eq!((bench.lower_names(), bench.lower("d/f")), (vec!["d".to_owned()], None));
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!(bench.read("d/f").as_deref(), Some("made\nmore\n"));
    bench.undo(&bench.latest()).unwrap();
    bench.undo(&made).unwrap();
    assert!(bench.lower_names().is_empty());
    bench.check();
}

#[test]
fn the_undo_of_a_mkdir_is_refused_while_something_may_come_back_into_it() {
    let bench = Bench::new();
    let (parent, name) = bench.parent("d");
    bench.view().mkdir(parent, name, 0o755, &ME).unwrap();
    let made = bench.latest();
    bench.pauses();
    bench.save("d/f", "made\n");
    let handle = bench.open_to_write("d/f");
    bench.undo(&bench.latest()).unwrap();
    assert_eq!(bench.undo(&made).unwrap_err().code, ErrorCode::Busy);
    bench.close(handle);
    bench.undo(&made).unwrap();
    assert!(bench.lower_names().is_empty());
    bench.check();
}

#[test]
fn what_is_discarded_in_a_directory_that_somebody_removed_below_comes_back_into_it() {
    let bench = Bench::new();
    bench.put("s/other", "o\n");
    bench.save("s/AGENTS.md", "made\n");
    let handle = bench.open_to_write("s/AGENTS.md");
    std::fs::remove_dir_all(bench.lower_path("s")).unwrap();
    assert_eq!(bench.read("s/AGENTS.md").as_deref(), Some("made\n"));
    let id = bench.held().into_iter().find(|row| row.path().to_string() == "s/AGENTS.md").unwrap().held.unwrap().id;
    bench.view().discard(&[id], &Review::default()).unwrap();
    bench.write_and_close(handle, 5, "more\n");
    assert_eq!(bench.read("s/AGENTS.md").as_deref(), Some("made\nmore\n"));
    bench.check();
}

impl Bench {
    fn rename_below(&self, from: &str, to: &str) {
        std::fs::rename(self.lower_path(from), self.lower_path(to)).unwrap();
    }
}

/// Somebody renames the directory below, or makes it again, and the kernel may not have looked since.
#[test]
fn what_is_discarded_in_a_directory_that_is_not_what_it_was_comes_back_at_its_path() {
    let rename = |bench: &Bench| bench.rename_below("d", "away");
    let rename_and_make = |bench: &Bench| {
        bench.rename_below("d", "away");
        bench.put("d/theirs", "t\n");
    };
    let remove_and_make = |bench: &Bench| {
        bench.remove_below("d");
        bench.put("d/theirs", "t\n");
    };
    let below = [&rename as &dyn Fn(&Bench), &rename_and_make, &remove_and_make];
    let looks: [&[&str]; 5] =
        [&[], &["away", "d"], &["d", "d/f"], &["away", "away/f"], &["d", "d/f", "away", "away/f"]];
    for ((number, below), looks) in below.iter().enumerate().flat_map(|below| looks.map(|looks| (below, looks))) {
        let bench = Bench::new();
        bench.put("d/f", &lines(100));
        bench.save("d/f", &changed(100, 60));
        let handle = bench.open_to_write("d/f");
        below(&bench);
        let is_there = |path: &&&str| path.starts_with('d') || bench.lower_path("away").exists();
        looks.iter().filter(is_there).for_each(|path| drop(bench.node(path)));
        bench.view().discard(&[bench.id_of("d/f")], &Review::default()).unwrap();
        bench.write_and_close(handle, 0, "NEW 0\n");
        let written = changed(100, 60).replace("new 0\n", "NEW 0\n");
        assert_eq!(bench.read("d/f"), Some(written), "{number}, looked at {looks:?}");
        if bench.lower_path("away").exists() {
            let away = [bench.read("away/f"), bench.lower("away/f")];
            assert_eq!(away, [Some(lines(100)), Some(lines(100))], "{number}, looked at {looks:?}");
        }
        bench.check();
    }
}

/// What it was discarded from is gone, and its path is free.
#[test]
fn what_was_discarded_comes_back_at_its_path_though_its_directory_is_made_again_meanwhile() {
    let below = |bench: &Bench| {
        bench.remove_below("d");
        bench.put("d/theirs", "t\n");
    };
    let below_seen = |bench: &Bench| {
        bench.remove_below("d");
        assert!(bench.node("d").is_err());
        bench.put("d/theirs", "t\n");
        bench.node("d").unwrap();
    };
    let here = |bench: &Bench| {
        bench.unlink("d/keep");
        bench.rmdir("d").unwrap();
        bench.mkdir("d");
    };
    for (number, make_again) in [&below as &dyn Fn(&Bench), &below_seen, &here].iter().enumerate() {
        let bench = Bench::new();
        bench.put("d/keep", "k\n");
        bench.save("d/AGENTS.md", "made\n");
        let handle = bench.open_to_write("d/AGENTS.md");
        bench.discard("d/AGENTS.md");
        make_again(&bench);
        bench.write_and_close(handle, 5, "more\n");
        assert_eq!(bench.read("d/AGENTS.md").as_deref(), Some("made\nmore\n"), "{number}");
        bench.check();
    }
}

/// The kernel has not looked at the directory since somebody removed it below, or made it again.
#[test]
fn what_is_held_or_restored_again_in_another_directory_of_that_name_is_what_its_writer_goes_on_with() {
    // What a person takes, and how it comes again.
    let returns: [(&str, &str, ComeAgain); 3] =
        [("AGENTS.md", "undo", undo_latest), ("AGENTS.md", "rollback", roll_back_latest), ("f", "redo", undo_latest)];
    // Whether somebody looks after it was removed, and after it was made again, if it was.
    let looks = [[false; 2], [true, false], [false, true], [true, true]];
    let cases = looks.into_iter().flat_map(|looks| [(looks, false), (looks, true)]);
    for ((file, how, come_again), (looks, is_made_again)) in cases.flat_map(|case| returns.map(|one| (one, case))) {
        let bench = Bench::new();
        bench.put("d/keep", "k\n");
        let path = &format!("d/{file}");
        bench.save(path, "made\n");
        let handle = bench.open_to_write(path);
        match how {
            "redo" => undo_latest(&bench),
            _ => bench.discard(path),
        }
        let look = |looks: bool| looks.then(|| bench.node("d").ok());
        bench.remove_below("d");
        look(looks[0]);
        if is_made_again {
            bench.put("d/theirs", "t\n");
        }
        look(looks[1]);
        come_again(&bench);
        bench.write_and_close(handle, 5, "more\n");
        let case = format!("{how}, made again: {is_made_again}, looks: {looks:?}");
        assert_eq!(bench.read(path).as_deref(), Some("made\nmore\n"), "{case}");
        bench.check();
    }
}

#[test]
fn a_directory_that_somebody_removed_below_goes_once_nothing_can_come_back_into_it() {
    let bench = Bench::new();
    bench.put("s/other", "o\n");
    bench.save("s/AGENTS.md", "made\n");
    let handles = [bench.open_to_write("s/AGENTS.md"), bench.open_to_write("s/AGENTS.md")];
    let reading = bench.open_to_read(bench.node("s/AGENTS.md").unwrap());
    std::fs::remove_dir_all(bench.lower_path("s")).unwrap();
    assert_eq!(bench.read("s/AGENTS.md").as_deref(), Some("made\n"));
    let id = bench.id_of("s/AGENTS.md");
    bench.view().discard(&[id], &Review::default()).unwrap();
    bench.close(handles[0]);
    assert_eq!((bench.held_paths(), bench.names("")), (vec!["s".to_owned()], vec!["s".to_owned()]));
    bench.close(handles[1]);
    assert!(bench.held().is_empty() && bench.names("").is_empty());
    bench.close(reading);
    bench.check();
}

/// Nobody is going to judge that.
#[test]
fn what_was_deleted_or_discarded_while_it_is_being_written_is_waited_for_by_nobody() {
    let discard = |bench: &Bench| bench.discard_all().unwrap();
    let unlink = |bench: &Bench| bench.unlink(HELD);
    for (number, go) in [(0, &discard as &dyn Fn(&Bench)), (1, &unlink)] {
        let bench = Bench::new();
        bench.save(HELD, "made\n");
        let handle = bench.open(HELD, libc::O_WRONLY | libc::O_APPEND).unwrap();
        bench.view().write_by(handle, Position::End, b"unclosed\n", &ME).unwrap();
        assert_eq!(bench.view().writers().len(), 1, "{number}");
        go(&bench);
        let begun = std::time::Instant::now();
        bench.view().flush_all(Some(Duration::from_secs(60))).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{number}");
        assert!(bench.view().writers().is_empty(), "{number}");
        bench.close(handle);
        assert_eq!(bench.read(HELD), None, "{number}");
        bench.check();
    }
}

/// The kernel looks up a name when a program uses it: since a restart that may have been another than the change is told by.
#[test]
fn what_is_written_by_a_further_name_since_a_restart_is_there_whatever_becomes_of_the_change() {
    let nothing: fn(&Bench) = |_| {};
    let acts = [|bench: &Bench| bench.discard_all().unwrap(), |bench: &Bench| drop(bench.confirm_all()), nothing];
    for (is_new, act) in [true, false].into_iter().flat_map(|is_new| acts.map(|act| (is_new, act))) {
        let mut bench = Bench::new();
        if is_new {
            bench.save(HELD, "made\n");
            bench.link(HELD, "further");
        } else {
            bench.put(HELD, &lines(100));
            std::fs::hard_link(bench.lower_path(HELD), bench.lower_path("further")).unwrap();
            bench.save(HELD, &changed(100, 60));
        }
        bench.remount();
        let handle = bench.open_to_write("further");
        let end = bench.view().attributes(bench.node("further").unwrap()).unwrap().meta.size;
        bench.view().write(handle, end, b"first\n").unwrap();
        bench.view().flush(handle, &ME).unwrap();
        act(&bench);
        bench.write_and_close(handle, end + 6, "second\n");
        for _ in ["now", "after a restart"] {
            let there = bench.read(HELD).unwrap();
            assert!(there.contains("second\n"), "{is_new} {there:?}");
            assert!(bench.read("further").is_none_or(|other| other == there), "{is_new} {there:?}");
            bench.check();
            bench.remount();
        }
    }
}

#[test]
fn what_is_written_by_a_further_name_since_a_restart_and_lands_by_itself_goes_on_with_what_landed() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 60));
    bench.remount();
    let handle = bench.open("b", libc::O_WRONLY | libc::O_TRUNC).unwrap();
    let small = lines(100) + "one\n";
    bench.view().write(handle, 0, small.as_bytes()).unwrap();
    bench.view().flush(handle, &ME).unwrap();
    assert_eq!((bench.lower("a"), bench.held()), (Some(small.clone()), vec![]));
    bench.write_and_close(handle, small.len() as u64, "two\n");
    let whole = Some(small + "two\n");
    assert_eq!(["a", "b"].map(|name| bench.lower(name)), [whole.clone(), whole.clone()]);
    assert_eq!(["a", "b"].map(|name| bench.read(name)), [whole.clone(), whole]);
    bench.check();
}

/// As it does after an `unlink` of that name or a rename over it, whichever names the kernel has looked up.
#[test]
fn what_is_written_by_a_name_that_an_undo_takes_is_there_by_the_others() {
    let whole = lines(100).replacen("line", "LINE", 1);
    let delete: fn(&Bench) = |bench| bench.unlink("f");
    let replace: fn(&Bench) = |bench| {
        bench.save("temp", &changed(100, 60));
        bench.rename("temp", "f");
    };
    for (act, is_known) in [(delete, false), (delete, true), (replace, false), (replace, true)] {
        let mut bench = Bench::new();
        bench.put("f", &lines(100));
        bench.put("dir/other", "o\n");
        std::fs::hard_link(bench.lower_path("f"), bench.lower_path("dir/g")).unwrap();
        act(&bench);
        bench.discard_all().unwrap();
        let discarded = bench.latest();
        bench.remount();
        let handle = bench.open_to_write("f");
        if is_known {
            bench.node("dir/g").unwrap();
        }
        bench.undo(&discarded).unwrap();
        let held = bench.read("f");
        bench.write_and_close(handle, 0, "LINE");
        assert_eq!((bench.read("f"), bench.read("dir/g")), (held, Some(whole.clone())));
        bench.check();
    }

    let mut bench = Bench::new();
    bench.put("f", "one\n");
    bench.link("f", "g");
    let linked = bench.latest();
    bench.remount();
    let handle = bench.open_to_write("g");
    bench.undo(&linked).unwrap();
    bench.write_and_close(handle, 0, "ONE\n");
    assert_eq!((bench.names(""), bench.read("f").as_deref()), (vec!["f".to_owned()], Some("ONE\n")));
    bench.check();
}

/// By a name out of the view: there is no other that its writer could go on with.
#[test]
fn what_is_held_again_is_what_the_writer_of_its_only_name_here_goes_on_with() {
    let mut bench = Bench::new();
    let elsewhere = tempfile::tempdir_in(bench.dir.parent().unwrap()).unwrap();
    bench.put("f", &lines(100));
    std::fs::hard_link(bench.lower_path("f"), elsewhere.path().join("g")).unwrap();
    bench.save("temp", &changed(100, 60));
    bench.rename("temp", "f");
    bench.discard_all().unwrap();
    let discarded = bench.latest();
    bench.remount();
    let handle = bench.open_to_write("f");
    bench.undo(&discarded).unwrap();
    bench.write_and_close(handle, 0, "NEW");
    assert_eq!(bench.read("f"), Some(changed(100, 60).replacen("new", "NEW", 1)));
    bench.check();
}
