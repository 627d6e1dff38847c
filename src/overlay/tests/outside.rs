//! Somebody renames below what is held or being written: the new name shows lower, and what is in the view stays what it
//! was.

use std::sync::atomic::AtomicBool;

use super::*;

fn moved(bench: &Bench, from: &str, to: &str) {
    std::fs::rename(bench.lower_path(from), bench.lower_path(to)).unwrap();
}

/// `d/f`, which the view has rewritten.
fn held() -> Bench {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    assert_eq!(bench.read("d/f"), Some(lines(100)));
    bench.save("d/f", &changed(100, 60));
    assert_eq!(bench.held().len(), 1);
    bench
}

/// Writes to both names, and each write is where it was made.
fn assert_apart(bench: &Bench, held: &str, other: &str) {
    assert_eq!(bench.read(other), Some(lines(100)));
    assert_eq!(bench.read(held), Some(changed(100, 60)));
    let numbers = [held, other].map(|path| {
        let (parent, name) = bench.parent(path);
        bench.view().lookup(parent, name).unwrap().attributes
    });
    assert_ne!(numbers[0].inode, numbers[1].inode);
    assert_eq!(numbers.map(|shown| shown.meta.size), [changed(100, 60), lines(100)].map(|text| text.len() as u64));
    bench.save(other, &changed(100, 2));
    assert_eq!(bench.lower(other), Some(changed(100, 2)));
    assert_eq!(bench.read(held), Some(changed(100, 60)));
    bench.save(held, &changed(100, 70));
    assert_eq!([bench.read(held), bench.read(other)], [Some(changed(100, 70)), Some(changed(100, 2))]);
    assert_eq!(bench.held()[0].names, [RelPath::parse(held.as_bytes()).unwrap()]);
}

#[test]
fn a_held_file_that_is_renamed_below_is_another_than_what_lower_has_by_the_new_name() {
    for to in ["d/g", "e/g"] {
        let bench = held();
        std::fs::create_dir(bench.lower_path("e")).unwrap();
        moved(&bench, "d/f", to);
        assert_apart(&bench, "d/f", to);
    }
}

#[test]
fn a_held_file_that_gets_another_name_below_keeps_its_content_to_itself() {
    let bench = held();
    std::fs::hard_link(bench.lower_path("d/f"), bench.lower_path("d/g")).unwrap();
    assert_apart(&bench, "d/f", "d/g");
}

#[test]
fn a_file_that_is_renamed_below_while_it_is_written_stays_what_is_written() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    let handle = bench.open_for_save("d/f");
    bench.view().write(handle, 0, changed(100, 60).as_bytes()).unwrap();
    moved(&bench, "d/f", "d/g");
    assert_eq!(bench.read("d/g"), Some(lines(100)));
    bench.save("d/g", &changed(100, 2));
    bench.close(handle);
    assert_eq!([bench.read("d/f"), bench.read("d/g")], [Some(changed(100, 60)), Some(changed(100, 2))]);
    assert_eq!(bench.lower("d/g"), Some(changed(100, 2)));
}

#[test]
fn what_is_held_in_the_place_of_a_file_that_is_renamed_below_is_not_by_the_new_name() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    bench.put("d/new", &changed(100, 60));
    bench.rename("d/new", "d/f");
    assert_eq!(bench.names("d"), ["f"]);
    for (from, to, content) in [("d/f", "d/g", lines(100)), ("d/new", "d/h", changed(100, 60))] {
        moved(&bench, from, to);
        assert_eq!(bench.read(to), Some(content.clone()));
        bench.save(to, "small\n");
        assert_eq!(bench.read("d/f"), Some(changed(100, 60)));
    }
}

#[test]
fn the_last_name_below_of_a_held_hard_link_shows_lower_once_it_is_renamed() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 60));
    std::fs::remove_file(bench.lower_path("b")).unwrap();
    moved(&bench, "a", "c");
    for _ in 0..2 {
        assert_eq!([bench.read("c"), bench.read("a")], [Some(lines(100)), Some(changed(100, 60))]);
        bench.remount();
    }
}

/// By somebody who has it open, to whom nothing happens.
#[test]
fn a_held_file_whose_directory_is_renamed_below_and_back_is_not_written_by_the_new_name() {
    let bench = held();
    let reader = bench.open_to_read(bench.node("d/f").unwrap());
    let read = || String::from_utf8(bench.view().read(reader, 0, 1 << 20).unwrap()).unwrap();
    moved(&bench, "d", "e");
    assert_eq!(bench.read("e/f"), Some(lines(100)));
    bench.save("e/f", &changed(100, 2));
    assert_eq!((bench.lower("e/f"), read()), (Some(changed(100, 2)), changed(100, 60)));
    moved(&bench, "e", "d");
    assert_eq!(bench.read("d/f"), Some(changed(100, 60)));
    bench.save("d/f", &changed(100, 70));
    assert_eq!((bench.read("d/f"), read()), (Some(changed(100, 70)), changed(100, 70)));
    bench.view().release(reader).unwrap();
}

/// Whatever comes in its place, which is looked at first.
#[test]
fn a_file_opens_after_its_directory_was_renamed_below_and_back() {
    for turn in 0..2 {
        let bench = Bench::new();
        bench.put("d/f", &lines(100));
        assert_eq!(bench.read("d/f"), Some(lines(100)));
        moved(&bench, "d", "e");
        let place = bench.lower_path("d");
        match turn {
            0 => bench.put("d", "a file"),
            _ => std::os::unix::fs::symlink("e", &place).unwrap(),
        }
        bench.node("d").unwrap();
        assert_eq!(bench.read("e/f"), Some(lines(100)));
        std::fs::remove_file(&place).unwrap();
        moved(&bench, "e", "d");
        assert_eq!(bench.read("d/f"), Some(lines(100)));
    }
}

#[test]
fn a_file_that_was_written_while_its_directory_was_renamed_below_and_back_opens_and_has_landed() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    let node = bench.node("d/f").unwrap();
    let writer = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    bench.view().write(writer, 0, b"LINE 0\n").unwrap();
    moved(&bench, "d", "e");
    std::os::unix::fs::symlink("e", bench.lower_path("d")).unwrap();
    bench.node("d").unwrap();
    assert_eq!(bench.read("e/f"), Some(lines(100)));
    std::fs::remove_file(bench.lower_path("d")).unwrap();
    moved(&bench, "e", "d");
    let written = lines(100).replace("line 0\n", "LINE 0\n");
    assert_eq!(bench.read("d/f"), Some(written.clone()));
    bench.close(writer);
    assert_eq!([bench.lower("d/f"), bench.read("d/f")], [Some(written.clone()), Some(written)]);
}

/// As the kernel does: it looks up the name that it opens, once more where it is told that something else is there.
#[test]
fn a_file_that_is_renamed_below_opens_by_its_new_name_though_nobody_has_looked_at_the_old() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    bench.node("f").unwrap();
    moved(&bench, "f", "g");
    let open = || bench.view().open(bench.node("g").unwrap(), OpenFlags::from_raw(libc::O_RDONLY), &ME);
    let opened = open().or_else(|_| open()).unwrap();
    assert_eq!(bench.view().read(opened.handle, 0, 1 << 20).unwrap(), lines(100).as_bytes());
    bench.view().release(opened.handle).unwrap();
}

/// The first to close must know of the second, or his content would go with the first.
#[test]
fn two_who_write_a_file_whose_directory_is_renamed_below_lose_nothing() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    let open = || {
        let node = bench.node("d/f").unwrap();
        bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle
    };
    let (first, second) = (open(), open());
    bench.view().write(first, 0, b"LINE 0\n").unwrap();
    moved(&bench, "d", "e");
    assert_eq!(bench.read("e/f"), Some(lines(100)));
    bench.close(first);
    bench.view().write(second, 7, b"LINE 1\n").unwrap();
    bench.close(second);
    let written = lines(100).replace("line 0\nline 1\n", "LINE 0\nLINE 1\n");
    moved(&bench, "e", "d");
    assert_eq!(bench.read("d/f"), Some(written));
}

/// What the one has not closed is not to land with what the other has.
#[test]
fn two_who_write_a_new_file_have_one_file_open_though_its_directory_was_replaced_below() {
    let replaced = |bench: &Bench| std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    let renamed = |bench: &Bench| moved(bench, "d", "e");
    for (go, is_looked_for) in [(&replaced as &dyn Fn(&Bench), false), (&renamed, false), (&renamed, true)] {
        let bench = Bench::new();
        bench.put("d/other", "other\n");
        let first = bench.open_for_save("d/n");
        bench.view().write(first, 0, b"made\n").unwrap();
        let node = bench.node("d/n").unwrap();
        go(&bench);
        std::fs::create_dir(bench.lower_path("d")).unwrap();
        if is_looked_for {
            assert!(bench.node("e/other").is_ok() && bench.node("e/n").is_err());
        }
        assert_eq!(bench.node("d/n").unwrap(), node);
        let second = bench.open_to_write("d/n");
        bench.view().write(second, 5, b"half\n").unwrap();
        bench.close(first);
        assert_eq!(bench.lower("d/n"), None);
        bench.write_and_close(second, 10, "whole\n");
        assert_eq!(bench.lower("d/n").as_deref(), Some("made\nhalf\nwhole\n"));
        bench.check();
    }
}

/// Who opens by a name looks that up anew, and who stands in a directory has no name to look up. The kernel takes a node
/// that becomes something else for broken (EIO).
#[test]
fn what_is_removed_or_becomes_something_else_below_says_in_which_way() {
    for becomes_another in [false, true] {
        let bench = Bench::new();
        bench.put("d/f", &lines(100));
        bench.put("g", "g");
        std::os::unix::fs::symlink("g", bench.lower_path("l")).unwrap();
        let [file, dir, link] = ["d/f", "d", "l"].map(|path| bench.node(path).unwrap());
        std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
        std::fs::remove_file(bench.lower_path("l")).unwrap();
        if becomes_another {
            bench.put("d", "a file");
            bench.put("l", "a file");
        }
        let code = |node| bench.view().attributes(node).unwrap_err().code();
        assert_eq!([code(file), code(dir), code(link)], [libc::ESTALE, libc::ENOENT, libc::ESTALE]);
        assert_eq!(bench.view().read_symlink(link).unwrap_err().code(), libc::ESTALE);
    }
}

/// Who goes on writing below all the time is in the way of a landing, and of nobody who saves.
#[test]
fn what_is_saved_while_somebody_writes_below_without_a_pause_is_held() {
    let project = scenarios::scratch_on_disk();
    let (bench, _) = Bench::at(project.path());
    let text = lines(60_000);
    for round in 0..10 {
        let path = format!("{round}");
        bench.put(&path, &text);
        let below = std::fs::OpenOptions::new().append(true).open(bench.lower_path(&path)).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let saved = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    std::io::Write::write_all(&mut &below, b"theirs\n").unwrap();
                }
            });
            while below.metadata().unwrap().len() == text.len() as u64 {
                std::hint::spin_loop();
            }
            let handle = bench.open_for_save(&path);
            bench.view().write(handle, 0, changed(60_000, 1).as_bytes()).unwrap();
            let saved = bench.view().flush(handle, &ME).and(bench.view().release(handle));
            is_over.store(true, Ordering::SeqCst);
            saved
        });
        saved.unwrap();
        assert_eq!(bench.held().len(), round + 1);
        assert!(bench.lower(&path).unwrap().starts_with(&text));
    }
}

/// With a descriptor that writes nothing, as of a shell's `exec 3<>f`.
fn held_and_open() -> (Bench, HandleId) {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    let idle = bench.open("f", libc::O_RDWR).unwrap();
    bench.save("f", &changed(100, 60));
    (bench, idle)
}

fn theirs(content: &str) -> String {
    content.replace("line 90\n", "theirs\n").replace("line 95\n", "")
}

#[test]
fn who_opens_a_file_that_is_merged_while_another_has_it_open_for_writing_sees_and_keeps_all_of_it() {
    let (bench, idle) = held_and_open();
    bench.put("f", &theirs(&lines(100)));
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap()[0].action, crate::protocol::Action::Merged);
    let merged = theirs(&changed(100, 60));
    assert_eq!([bench.lower("f"), bench.read("f")], [Some(merged.clone()), Some(merged.clone())]);
    let writer = bench.open("f", libc::O_RDWR).unwrap();
    bench.view().write(writer, 0, b"NEW 0").unwrap();
    bench.close(writer);
    let written = merged.replacen("new 0", "NEW 0", 1);
    assert_eq!((bench.reasons_if_held(), bench.lower("f")), (vec![], Some(written)));
    bench.view().release(idle).unwrap();
    assert_eq!(bench.stage_files(), 0);
    bench.check();
}

#[test]
fn who_had_a_file_open_when_it_was_merged_writes_over_nothing_that_he_has_not_seen() {
    let (bench, idle) = held_and_open();
    let opened_while_held = bench.open("f", libc::O_RDWR).unwrap();
    bench.put("f", &theirs(&lines(100)));
    bench.confirm(&[bench.only_id()]).unwrap();
    let merged = theirs(&changed(100, 60));
    for (turn, writer) in [idle, opened_while_held].into_iter().enumerate() {
        bench.view().write(writer, 0, b"NEW 0").unwrap();
        bench.close(writer);
        assert_eq!((bench.reasons_if_held(), bench.lower("f")), (vec![Reason::Stale], Some(merged.clone())), "{turn}");
        assert_eq!(bench.read("f"), Some(merged.replacen("new 0", "NEW 0", 1)), "{turn}");
        bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    }
    bench.check();
}

#[test]
fn who_had_a_file_open_that_landed_as_it_was_has_seen_it() {
    let (bench, idle) = held_and_open();
    bench.confirm(&[bench.only_id()]).unwrap();
    bench.view().write(idle, 0, b"NEW 0").unwrap();
    bench.close(idle);
    let written = changed(100, 60).replacen("new 0", "NEW 0", 1);
    assert_eq!((bench.reasons_if_held(), bench.lower("f")), (vec![], Some(written)));
    bench.check();
}

#[test]
fn what_somebody_does_below_shows_while_a_file_that_has_landed_is_open_for_writing() {
    for saved in [changed(100, 2), lines(100), changed(100, 60)] {
        let bench = Bench::new();
        bench.put("f", &lines(100));
        let idle = bench.open("f", libc::O_RDWR).unwrap();
        bench.save("f", &saved);
        let opened_while_held = (!bench.held().is_empty()).then(|| bench.open("f", libc::O_RDWR).unwrap());
        if opened_while_held.is_some() {
            bench.confirm(&[bench.only_id()]).unwrap();
        }
        assert_eq!(bench.lower("f"), Some(saved.clone()));
        bench.put("f", &theirs(&saved));
        assert_eq!(bench.read("f"), Some(theirs(&saved)));
        assert_eq!(bench.view().read(idle, 0, 1 << 20).unwrap(), theirs(&saved).as_bytes());
        // Neither has looked since.
        let writer = opened_while_held.unwrap_or(idle);
        bench.view().write(writer, 0, b"NEW").unwrap();
        bench.close(writer);
        assert_eq!((bench.reasons_if_held(), bench.lower("f")), (vec![Reason::Stale], Some(theirs(&saved))));
        bench.check();
    }
}

#[test]
fn who_has_a_file_open_for_writing_that_has_landed_and_is_removed_below_loses_nothing() {
    let bench = Bench::new();
    bench.put("f", &lines(100));
    let idle = bench.open("f", libc::O_RDWR).unwrap();
    bench.save("f", &changed(100, 2));
    std::fs::remove_file(bench.lower_path("f")).unwrap();
    bench.view().write(idle, 0, b"NEW").unwrap();
    bench.close(idle);
    let written = changed(100, 2).replacen("new", "NEW", 1);
    assert_eq!((bench.lower("f"), bench.read("f")), (None, Some(written)));
    assert!(bench.reasons_if_held().contains(&Reason::Stale), "{:?}", bench.reasons_if_held());
    bench.check();
}

/// As it stays where nothing is watched.
#[test]
fn who_has_a_file_open_that_is_replaced_below_is_told_of_the_one_that_he_has_open() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let (node, handle) = (bench.node("a").unwrap(), bench.open("a", libc::O_RDONLY).unwrap());
    bench.put("temp", "short\n");
    std::fs::rename(bench.lower_path("temp"), bench.lower_path("a")).unwrap();
    let meta = bench.view().attributes(node).unwrap().meta;
    assert_eq!((meta.size, meta.links), (lines(100).len() as u64, 0));
    bench.view().release(handle).unwrap();
    assert_eq!(bench.read("a"), Some("short\n".to_owned()));
}

/// The kernel looks again, and does with it what is done with that. It takes no answer to a creation but a file's, so what was
/// opened for it would stay open for good.
#[test]
fn what_others_have_made_in_the_place_of_a_new_file_is_not_opened_as_one() {
    let bench = Bench::new();
    bench.put("dir/precious", "1");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.lower_path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("dir", bench.lower_path("link")).unwrap();
    let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
    for name in ["dir", "fifo", "link"] {
        let made = bench.view().create(ROOT, OsStr::new(name), 0o644, flags, &ME);
        assert_eq!(made.err().map(|err| err.code()), Some(libc::ESTALE), "{name}");
    }
    assert!(bench.view().state.lock().handles.is_empty());
    assert_eq!((bench.read("dir/precious").as_deref(), bench.held().len()), (Some("1"), 0));
}

/// Who judges leaves to a writer what he may have written meanwhile. That is judged at his close, though nothing came of it.
#[test]
fn what_a_refused_write_has_kept_from_being_judged_is_judged_at_its_close() {
    let bench = Bench::with(&[(Key::LimitUpper, "64KiB")]);
    bench.put("f", &lines(100));
    let opened = || bench.view().open(bench.node("f").unwrap(), OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    let closed = |handle| {
        bench.view().flush(handle, &ME).unwrap();
        bench.view().release(handle).unwrap();
    };
    let refused = opened();
    let (is_over, is_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let written = bench.view().write(refused, 5000, &[b'z'; 128 << 10]);
                assert_eq!(written.err().map(|err| err.code()), Some(libc::EDQUOT));
                is_begun.store(true, Ordering::Relaxed);
            }
        });
        while !is_begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for letter in b"ABCDEFGHIJ" {
            let handle = opened();
            bench.view().write(handle, 0, &[*letter]).unwrap();
            closed(handle);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    closed(refused);
    assert_eq!((bench.lower("f"), bench.held().len()), (bench.read("f"), 0));
    assert!(bench.lower("f").unwrap().starts_with('J'));
}

/// Lower has a symlink at `a`, whose target is what the file there says.
fn replaced_by_symlink(bench: &Bench, target: &str) {
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    std::os::unix::fs::symlink(target, bench.lower_path("a")).unwrap();
}

fn told_external(bench: &Bench) -> usize {
    bench.view().tell_all_external().unwrap();
    let told = bench.view().store().told_external().unwrap();
    told.len()
}

#[test]
fn a_rollback_goes_over_no_symlink_that_somebody_has_put_in_the_place_of_a_file() {
    for remounts in [false, true] {
        let mut bench = Bench::new();
        bench.put("a", "one");
        bench.save("a", "two");
        let backups = bench.view().store().backups().unwrap();
        replaced_by_symlink(&bench, "two");
        if remounts {
            bench.remount();
        }
        let refusal = bench.view().rollback(&backups[..1], &RollbackHow::default()).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Conflict, "{remounts}");
        assert!(bench.lower_path("a").is_symlink());
        assert_eq!(told_external(&bench), 1);
    }
}

/// What the log tells of a symlink that landed is known in the next life and in the next session.
#[test]
fn a_rollback_goes_over_a_symlink_of_the_view() {
    for ends in [false, true] {
        let mut bench = Bench::new();
        let at = bench.lower_path("a");
        std::os::unix::fs::symlink("one", &at).unwrap();
        bench.unlink("a");
        bench.view().symlink(ROOT, OsStr::new("a"), OsStr::new("two"), &ME).unwrap();
        assert_eq!(std::fs::read_link(&at).unwrap(), std::path::Path::new("two"));
        let backups = bench.view().store().backups().unwrap();
        if ends {
            bench.overlay.take().unwrap().session_ended().unwrap();
        }
        bench.remount();
        assert_eq!(told_external(&bench), 0);
        let of_one = backups.iter().find(|backup| backup.digest == Digest::of(b"one")).unwrap();
        bench.view().rollback(std::slice::from_ref(of_one), &RollbackHow::default()).unwrap();
        assert_eq!(std::fs::read_link(&at).unwrap(), std::path::Path::new("one"));
    }
}

#[test]
fn a_symlink_in_the_place_of_a_held_files_base_is_told() {
    let bench = Bench::new();
    bench.put("a", "one");
    bench.save("a", &lines(300));
    let id = bench.only_id();
    let path = RelPath::parse(b"a").unwrap();
    assert_eq!((bench.view().externally(&path).unwrap(), told_external(&bench)), (None, 0));
    replaced_by_symlink(&bench, "one");
    assert_eq!(bench.view().externally(&path).unwrap(), Some(crate::protocol::ExternalKind::Replaced));
    assert_eq!(told_external(&bench), 1);
    assert_eq!(bench.confirm(&[id]), Err(ErrorCode::Conflict));
}

/// Another content is another change, and so is another kind of thing.
#[test]
fn a_file_and_then_a_symlink_with_the_same_bytes_are_told_as_two() {
    let bench = Bench::new();
    bench.put("a", "one");
    bench.save("a", "two");
    let told = || {
        bench.view().tell_all_external().unwrap();
        let events = bench.view().store().history().unwrap();
        events.iter().filter(|(event, _)| event.event == crate::protocol::EventName::ExternalModified).count()
    };
    bench.put("a", "three");
    assert_eq!([told(), told()], [1, 1]);
    replaced_by_symlink(&bench, "three");
    assert_eq!([told(), told()], [2, 2]);
}
