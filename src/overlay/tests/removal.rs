//! What waits for review and is removed by a program: it is a backup, an event tells that it waits no more, and what came
//! alone waits again by an undo.

use super::*;
use crate::model::BackupKind;
use crate::overlay::Position;
use crate::protocol::{Event, WritingNow};
use crate::store::{Backup, Fate};
use crate::sys::steps::{self, Area, Calls, Steps, Trap, assert_passes_apart};

impl Bench {
    /// Path and content of what was removed and kept, the newest first.
    fn removed(&self) -> Vec<(String, String)> {
        let kept = self.view().store().backups().unwrap().into_iter();
        let kept = kept.filter(|backup| backup.kind == BackupKind::Deleted);
        kept.map(|backup| (backup.path.to_string(), self.content_of(&backup))).collect()
    }

    fn content_of(&self, backup: &Backup) -> String {
        let content = self.view().store().content(backup.digest).unwrap().unwrap();
        String::from_utf8(content).unwrap()
    }

    fn ended(&self) -> Vec<Event> {
        let events = self.view().store().events_since(0).unwrap().into_iter();
        events.filter(|event| event.event == EventName::HoldEnded).collect()
    }

    pub(super) fn fate(&self, id: &ChangeId) -> Fate {
        self.view().store().verdict(id).unwrap().unwrap().fate
    }
}

fn kept(path: &str, content: &str) -> (String, String) {
    (path.to_owned(), content.to_owned())
}

#[test]
fn a_held_new_file_that_is_removed_is_a_backup_and_waits_again_by_an_undo() {
    let mut bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    scenarios::chmod(&bench, "AGENTS.md", 0o640);
    let id = bench.only_id();
    bench.unlink("AGENTS.md");
    assert_eq!((bench.read("AGENTS.md"), bench.held().len(), bench.stage_files()), (None, 0, 0));
    assert_eq!(bench.removed(), [kept("AGENTS.md", "made\n")]);
    assert_eq!(bench.fate(&id), Fate::Removed);
    let [ended] = bench.ended().try_into().unwrap();
    assert_eq!((ended.id, ended.message.as_deref()), (Some(id.to_string()), Some("[deleted]")));
    let backup = &bench.view().store().backups().unwrap()[0];
    assert_eq!((ended.backup.as_ref(), backup.mode & 0o7777), (Some(&backup.name), 0o640));
    let removal = bench.latest();
    bench.undo(&removal).unwrap();
    assert_eq!((bench.only_id(), bench.read("AGENTS.md")), (id.clone(), Some("made\n".to_owned())));
    assert_eq!(bench.meta("AGENTS.md").mode, 0o640);
    assert_eq!(bench.lower("AGENTS.md"), None);
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.read("AGENTS.md"), bench.held().len()), (None, 0));
    bench.remount();
    assert_eq!(bench.read("AGENTS.md"), None);
    bench.check();
}

#[test]
fn the_content_of_a_held_change_whose_file_is_removed_is_a_backup() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let id = bench.only_id();
    bench.unlink("a");
    assert_eq!(bench.removed(), [kept("a", &changed(100, 60))]);
    assert_eq!(bench.fate(&id), Fate::Superseded { by: bench.only_id() });
    assert_eq!((bench.lower("a"), bench.ended()), (Some(lines(100)), vec![]), "its deletion waits");
    bench.put("b", &lines(5));
    bench.save("b", &lines(300));
    let id = bench.id_of("b");
    bench.unlink("b");
    assert_eq!(bench.lower("b"), None, "its deletion is small");
    assert_eq!(bench.removed()[..2], [kept("b", &lines(5)), kept("b", &lines(300))]);
    assert_eq!(bench.fate(&id), Fate::Removed);
    bench.remount();
    bench.check();
}

#[test]
fn what_a_held_file_had_is_a_backup_once_another_is_renamed_over_it() {
    let bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.put(name, &lines(100));
        bench.save(name, &changed(100, 60));
    }
    bench.save("landed", "landed\n");
    bench.rename("landed", "a");
    assert_eq!(bench.removed(), [kept("a", &changed(100, 60))]);
    // The source waits under its new name, and is not gone.
    bench.save("b", &changed(100, 70));
    let (b, c) = (bench.id_of("b"), bench.id_of("c"));
    bench.rename("b", "c");
    let became = Fate::Superseded { by: bench.id_of("c") };
    assert_eq!((bench.fate(&b), bench.fate(&c)), (became.clone(), became));
    let [moved] = bench.ended().try_into().unwrap();
    assert_eq!((moved.id, moved.message.as_deref()), (Some(b.to_string()), Some("[renamed to c]")));
    assert_eq!(bench.read("c"), Some(changed(100, 70)));
    assert_eq!(bench.removed()[..1], [kept("c", &changed(100, 60))]);
    assert!(!bench.removed().contains(&kept("b", &changed(100, 70))));
    bench.save("AGENTS.md", "made\n");
    bench.put("two", "of two names\n");
    std::fs::hard_link(bench.lower_path("two"), bench.lower_path("names")).unwrap();
    bench.save("two", &lines(90));
    bench.rename("two", "AGENTS.md");
    assert!(bench.removed().contains(&kept("AGENTS.md", "made\n")));
    bench.check();
}

#[test]
fn held_files_that_go_with_their_directory_wait_again_in_it() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"migrations/**\"\naction = \"hold\"\n");
    bench.remount();
    bench.mkdir("migrations");
    bench.mkdir("migrations/deep");
    ["migrations/1", "migrations/2", "migrations/deep/3"].iter().for_each(|path| bench.save(path, path));
    let waited = bench.waiting();
    assert_eq!(waited.len(), 4, "{waited:?}");
    bench.remount();
    ["migrations/1", "migrations/2", "migrations/deep/3"].iter().for_each(|path| bench.unlink(path));
    ["migrations/deep", "migrations"].iter().for_each(|path| bench.rmdir(path).unwrap());
    assert!(bench.held().is_empty() && bench.lower_names() == [".fettle.toml"]);
    assert_eq!((bench.removed().len(), bench.ended().len()), (3, 4));
    let removal = bench.latest();
    assert_eq!(removal.effects.len(), 5, "{removal:?}");
    bench.undo(&removal).unwrap();
    assert_eq!(bench.waiting(), waited);
    assert_eq!(bench.read("migrations/deep/3"), Some("migrations/deep/3".to_owned()));
    bench.remount();
    assert_eq!(bench.waiting(), waited);
    bench.check();
}

#[test]
fn what_is_made_anew_after_its_removal_is_no_part_of_that() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    bench.unlink("AGENTS.md");
    let removal = bench.latest();
    bench.save("AGENTS.md", "made anew\n");
    let anew = bench.only_id();
    let refusal = bench.undo(&removal).unwrap_err();
    assert!(refusal.message.contains("something else is held"), "{refusal:?}");
    bench.discard("AGENTS.md");
    bench.undo(&removal).unwrap();
    assert_eq!(bench.read("AGENTS.md"), Some("made\n".to_owned()));
    assert_ne!(bench.only_id(), anew);
}

#[test]
fn what_nobody_judged_and_what_goes_on_under_another_name_is_no_backup() {
    let bench = Bench::new();
    let handle = bench.open_for_save("AGENTS.md");
    bench.view().write(handle, 0, b"half").unwrap();
    bench.unlink("AGENTS.md");
    bench.close(handle);
    bench.save("AGENTS.md", "made\n");
    bench.rename("AGENTS.md", "agents.txt");
    let node = bench.node("agents.txt").unwrap();
    bench.view().link(node, ROOT, OsStr::new("other"), &ME).unwrap();
    bench.unlink("other");
    assert_eq!((bench.removed(), bench.ended()), (vec![], vec![]));
    assert_eq!(bench.read("agents.txt"), Some("made\n".to_owned()));
    bench.unlink("agents.txt");
    assert_eq!(bench.removed(), [kept("agents.txt", "made\n")]);
}

#[test]
fn a_symlink_and_what_took_the_place_of_a_directory_are_kept_as_what_they_were() {
    let bench = Bench::new();
    bench.view().symlink(ROOT, OsStr::new("out"), OsStr::new("/etc"), &ME).unwrap();
    bench.unlink("out");
    assert_eq!(bench.removed(), [kept("out", "/etc")]);
    assert!(bench.view().store().backups().unwrap()[0].symlink);
    bench.put("d/e/a", &lines(100));
    bench.put("d/b", &lines(100));
    remove_tree(&bench);
    bench.save("d", "once a directory\n");
    let id = bench.id_of("d");
    bench.unlink("d");
    assert_eq!(bench.removed()[..1], [kept("d", "once a directory\n")]);
    assert_eq!(bench.fate(&id), Fate::Removed);
    bench.check();
}

#[test]
fn an_open_file_that_was_removed_writes_on_without_its_backup() {
    let bench = Bench::new();
    let large = lines(20_000);
    bench.save("AGENTS.md", &large);
    let handle = bench.view().open(bench.node("AGENTS.md").unwrap(), OpenFlags::from_raw(libc::O_RDWR), &ME);
    let handle = handle.unwrap().handle;
    bench.unlink("AGENTS.md");
    bench.view().write(handle, 0, b"written on").unwrap();
    bench.close(handle);
    assert_eq!(bench.removed(), [kept("AGENTS.md", &large)]);
    bench.check();
}

#[test]
fn an_event_tells_of_what_is_equal_to_the_project_again() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let id = bench.only_id();
    bench.save("a", &lines(100));
    assert_eq!((bench.fate(&id), bench.removed()), (Fate::Ended, vec![kept("a", &changed(100, 60))]));
    let [ended] = bench.ended().try_into().unwrap();
    assert_eq!((ended.id, ended.message.as_deref()), (Some(id.to_string()), Some("[equal to the project]")));
    assert_eq!(ended.operation, None);
}

#[test]
fn what_waits_is_a_backup_before_a_program_writes_over_it_also_when_that_is_killed_with_the_daemon() {
    type Begins = fn(&Bench);
    let begins: [(Begins, &str); 3] = [
        (|bench| _ = bench.open_for_save("AGENTS.md"), ""),
        (|bench| _ = write_at(bench, libc::O_WRONLY, b"M"), "Made\n"),
        (|bench| scenarios::truncate(bench, "AGENTS.md", 3).unwrap(), "mad"),
    ];
    for (begin, left) in begins {
        let mut bench = Bench::new();
        bench.save("AGENTS.md", "made\n");
        begin(&bench);
        assert_eq!(bench.removed(), [kept("AGENTS.md", "made\n")], "{left}");
        bench.remount();
        assert_eq!((bench.read("AGENTS.md").as_deref(), bench.held().len()), (Some(left), 1));
        assert_eq!(bench.removed(), [kept("AGENTS.md", "made\n")], "{left}");
        bench.check();
    }
}

#[test]
fn what_waits_and_is_only_added_to_is_no_backup() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    write_at(&bench, libc::O_WRONLY | libc::O_APPEND, b"more\n");
    assert_eq!((bench.read("AGENTS.md").as_deref(), bench.removed()), (Some("made\nmore\n"), vec![]));
}

#[test]
fn what_is_appended_is_added_wherever_the_file_ends() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    let handle = bench.open("AGENTS.md", libc::O_WRONLY | libc::O_APPEND).unwrap();
    for bytes in ["more\n", "and more\n"] {
        bench.view().write_by(handle, Position::End, bytes.as_bytes(), &ME).unwrap();
    }
    bench.close(handle);
    assert_eq!((bench.read("AGENTS.md").as_deref(), bench.removed()), (Some("made\nmore\nand more\n"), vec![]));
    bench.check();
}

#[test]
fn what_waits_and_was_added_to_is_a_backup_with_that_before_anything_is_written_over_it() {
    type Overwrites = fn(&Bench, HandleId);
    let overwrites: [(&str, Overwrites); 5] = [
        ("cut by who added to it", |bench, handle| bench.view().truncate(agents(bench), Some(handle), 0, &ME).unwrap()),
        ("emptied by another", |bench, _| _ = bench.open_for_save("AGENTS.md")),
        // As after `fcntl(F_SETFL)`, or through a mapping.
        ("written where it begins", |bench, handle| _ = bench.view().write(handle, 0, b"M").unwrap()),
        ("written with the end in it", |bench, handle| _ = bench.view().write(handle, 9, b"\n\n").unwrap()),
        ("zeroed", |bench, handle| {
            bench.view().fallocate(handle, libc::FALLOC_FL_ZERO_RANGE, 0, 3, &ME).unwrap();
        }),
    ];
    for (how, overwrite) in overwrites {
        let bench = Bench::new();
        bench.save("AGENTS.md", "made\n");
        let handle = write_at(&bench, libc::O_RDWR | libc::O_APPEND, b"more\n");
        assert_eq!(bench.removed(), [], "{how}");
        overwrite(&bench, handle);
        assert_eq!(bench.removed(), [kept("AGENTS.md", "made\nmore\n")], "{how}");
        bench.view().write(handle, 0, b"once more").unwrap();
        assert_eq!(bench.removed().len(), 1, "{how}");
        bench.close(handle);
        bench.check();
    }
}

#[test]
fn what_waits_is_kept_anew_once_it_was_judged_by_who_has_it_open() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    let handle = write_at(&bench, libc::O_RDWR, b"M");
    bench.view().flush(handle, &ME).unwrap();
    bench.view().write(handle, 0, b"m").unwrap();
    assert_eq!(bench.removed(), [kept("AGENTS.md", "Made\n"), kept("AGENTS.md", "made\n")]);
}

#[test]
fn of_many_who_empty_at_once_what_waits_one_keeps_it_and_none_fails() {
    let bench = Bench::new();
    let (large, adding) = large_in_use(&bench);
    let opened = while_added_to(&bench, adding, large.len(), || {
        let empty = || bench.open("AGENTS.md", libc::O_WRONLY | libc::O_TRUNC);
        std::thread::scope(|threads| [(); 6].map(|()| threads.spawn(empty)).map(|thread| thread.join().unwrap()))
    });
    opened.into_iter().for_each(|opened| bench.close(opened.unwrap()));
    bench.close(adding);
    check_kept_with_more(&bench, &large);
}

#[test]
fn what_waits_is_removed_and_kept_while_somebody_adds_to_it() {
    let bench = Bench::new();
    let (large, adding) = large_in_use(&bench);
    let (dir, name) = bench.parent("AGENTS.md");
    while_added_to(&bench, adding, large.len(), || bench.view().unlink(dir, name, &ME)).unwrap();
    bench.close(adding);
    check_kept_with_more(&bench, &large);
}

/// What waits, and is copied for a while, and a handle that adds to it.
fn large_in_use(bench: &Bench) -> (String, HandleId) {
    let large = lines(300_000);
    bench.save("AGENTS.md", &large);
    (large, bench.open("AGENTS.md", libc::O_WRONLY | libc::O_APPEND).unwrap())
}

fn while_added_to<T>(bench: &Bench, adding: HandleId, mut end: usize, act: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    let has_begun = std::sync::Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            has_begun.wait();
            while !is_done.load(Ordering::SeqCst) {
                end += bench.view().write(adding, end as u64, b"more\n").unwrap();
            }
        });
        has_begun.wait();
        let done = act();
        is_done.store(true, Ordering::SeqCst);
        done
    })
}

fn check_kept_with_more(bench: &Bench, large: &str) {
    let [(_, content)] = bench.removed().try_into().unwrap();
    assert!(content.starts_with(large) && content[large.len()..].lines().all(|line| line == "more"));
    bench.check();
}

#[test]
fn what_a_patch_writes_over_is_a_backup() {
    let bench = Bench::new();
    bench.save("AGENTS.md", "made\n");
    bench.put("a", "small\n");
    let rewrite = |path: &str, old: &str, new: &str| Rewrite {
        path: RelPath::parse(path.as_bytes()).unwrap(),
        base: Digest::of(old.as_bytes()),
        content: new.as_bytes().to_vec(),
    };
    let how = RewriteHow { caller: ME, may_write: &|_| true, dry_run: false };
    bench
        .view()
        .rewrite_all(&[rewrite("a", "small\n", "other\n"), rewrite("AGENTS.md", "made\n", "anew\n")], &how)
        .unwrap();
    assert_eq!(bench.removed(), [kept("AGENTS.md", "made\n")]);
    bench.check();
}

fn agents(bench: &Bench) -> NodeId {
    bench.node("AGENTS.md").unwrap()
}

/// Where it begins, or at the end; it stays open.
fn write_at(bench: &Bench, flags: i32, bytes: &[u8]) -> HandleId {
    let handle = bench.open("AGENTS.md", flags).unwrap();
    let offset = if flags & libc::O_APPEND == 0 { 0 } else { bench.meta("AGENTS.md").size };
    bench.view().write(handle, offset, bytes).unwrap();
    handle
}

/// By which a process knows what is done, on a full disk, to what could not be judged.
const LEFT: &str = "FETTLE_REMOVAL_LEFT";

impl Bench {
    pub(super) fn fill_disk(&self) -> Steps {
        self.fill(Some(self.lower_path(".fettle/reserve")))
    }

    /// The same, and what is reserved is of no use.
    fn fill_disk_to_the_last(&self) -> Steps {
        self.fill(None)
    }

    fn fill(&self, reserve: Option<PathBuf>) -> Steps {
        let area = Area::Below { dir: self.lower_path(".fettle"), but: None };
        let full = Trap { calls: Calls::Growing, area, at: 1, fate: steps::Fate::AllFail(libc::ENOSPC), reserve };
        Steps::watch(full).unwrap()
    }
}

/// Neither the close nor the release has room to judge it.
fn close_in_vain(bench: &Bench, handle: HandleId) {
    assert_eq!(bench.view().flush(handle, &ME).unwrap_err().code(), libc::ENOSPC);
    assert_eq!(bench.view().release(handle).unwrap_err().code(), libc::ENOSPC);
}

#[test]
fn what_was_closed_and_could_not_be_judged_is_a_backup_once_it_is_removed_or_written_over() {
    let name = "overlay::tests::removal::what_could_not_be_judged_is_kept";
    for how in ["removed", "written over", "replaced"] {
        assert_passes_apart(name, (LEFT, how));
    }
}

#[test]
fn what_could_not_be_judged_is_kept() {
    let Ok(how) = std::env::var(LEFT) else { return };
    let bench = Bench::new();
    bench.put("a", &lines(20_000));
    let new = lines(20_000).replace("line 7", "other 7");
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, new.as_bytes()).unwrap();

    let steps = bench.fill_disk_to_the_last();
    close_in_vain(&bench, handle);
    steps.relent();
    assert!(steps.failed() > 0);
    match how.as_str() {
        "removed" => bench.unlink("a"),
        "replaced" => {
            bench.save("b", "other\n");
            bench.rename("b", "a");
        }
        _ => bench.close(bench.open_for_save("a")),
    }
    // Not shown: it is long.
    assert!(bench.removed() == [kept("a", &new)], "{how}");
    bench.check();
}

#[test]
fn what_was_emptied_and_could_not_be_written_is_judged_at_its_release() {
    assert_passes_apart("overlay::tests::removal::what_was_emptied_is_written_in_vain", (LEFT, "emptied"));
}

#[test]
fn what_was_emptied_is_written_in_vain() {
    if std::env::var(LEFT).is_err() {
        return;
    }
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    let steps = bench.fill_disk();
    assert_eq!(bench.view().write(handle, 0, b"new\n").unwrap_err().code(), libc::ENOSPC);
    steps.relent();
    bench.close(handle);
    assert_eq!((bench.read("a").as_deref(), bench.held().len()), (Some(""), 1));
    bench.check();
}

#[test]
fn what_was_made_where_a_held_file_was_and_could_not_be_judged_is_a_backup_once_it_is_removed() {
    let name = "overlay::tests::removal::what_could_not_be_judged_where_another_file_was_is_kept";
    assert_passes_apart(name, (LEFT, "removed"));
}

/// The other's file in the project is to be renamed back first, which wants room.
#[test]
fn what_could_not_be_judged_where_another_file_was_is_kept() {
    if std::env::var(LEFT).is_err() {
        return;
    }
    let bench = Bench::new();
    bench.put("a", &lines(20_000));
    bench.save("a", &lines(20_000).replace("line 7", "other 7"));
    bench.rename("a", "b");
    let new = lines(20_000).replace("line 7", "made 7");
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, new.as_bytes()).unwrap();

    let steps = bench.fill_disk();
    close_in_vain(&bench, handle);
    assert_eq!(bench.view().unjudged(), [WritingNow { path: RelPath::parse("a".as_bytes()).unwrap(), pid: 0 }]);
    bench.unlink("a");
    steps.relent();
    assert!(steps.failed() > 0);
    // Not shown: it is long.
    assert!(bench.removed() == [kept("a", &new)]);
    bench.check();
}
