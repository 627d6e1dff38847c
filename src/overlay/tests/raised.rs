//! What was written in upper becomes lower's file itself where it lands, and is not copied.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::overlay::files::handles::Target;
use crate::sys::file::Meta;
use crate::sys::lease;

impl Bench {
    /// Emptied or made, written and not closed; with the number of its file in upper.
    fn written(&self, path: &str, content: &str) -> (HandleId, u64) {
        let handle = self.open_for_save(path);
        self.view().write(handle, 0, content.as_bytes()).unwrap();
        let stage: Vec<_> = std::fs::read_dir(self.lower_path(".fettle/stage")).unwrap().collect();
        assert_eq!(stage.len(), 1);
        (handle, stage[0].as_ref().unwrap().metadata().unwrap().ino())
    }

    fn inode(&self, path: &str) -> (u64, u64) {
        let meta = self.lower_path(path).metadata().unwrap();
        (meta.ino(), meta.nlink())
    }
}

#[test]
fn what_lands_is_the_file_that_was_written() {
    let bench = Bench::new();
    bench.put("old", &lines(100));
    for (path, content) in [("new", lines(5)), ("old", changed(100, 2)), ("large", lines(60_000))] {
        let (handle, inode) = bench.written(path, &content);
        bench.close(handle);
        assert_eq!(bench.inode(path), (inode, 1), "{path}");
        assert_eq!((bench.lower(path) == Some(content.clone()), bench.read(path) == Some(content)), (true, true));
        assert_eq!(bench.stage_files(), 0);
        bench.check();
    }
    assert_eq!(bench.backups(), ["old"]);
}

/// As by a descriptor that was doubled, or a mapping.
#[test]
fn who_goes_on_writing_after_it_has_landed_writes_nothing_below_that_nobody_judges() {
    for path in ["new", "old"] {
        let bench = Bench::new();
        bench.put("old", &lines(100));
        let (handle, inode) = bench.written(path, &changed(100, 2));
        bench.view().flush(handle, &ME).unwrap();
        assert_eq!(bench.inode(path), (inode, 1));
        bench.view().write(handle, 0, lines(300).as_bytes()).unwrap();
        assert_eq!(bench.read(path), Some(lines(300)));
        assert_eq!(bench.lower(path), Some(changed(100, 2)));
        bench.close(handle);
        let is_held = bench.held().len() == 1;
        assert_eq!(
            (is_held, bench.lower(path)),
            match path {
                // In one window: it goes on being new.
                "new" => (false, Some(lines(300))),
                _ => (true, Some(changed(100, 2))),
            }
        );
        assert!(bench.reasons_if_held().iter().all(|reason| *reason == Reason::Size), "{path}");
        bench.check();
    }
}

/// Killed before it is recorded.
#[test]
fn what_somebody_does_below_to_what_has_landed_stays_though_nobody_had_recorded_that() {
    type Deed = fn(&std::path::Path);
    let deeds: [Deed; 3] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| {
            let made = path.with_extension("made");
            std::fs::write(&made, "theirs\n").and_then(|()| std::fs::rename(&made, path)).unwrap();
        },
        |path| std::fs::write(path, "theirs\n").unwrap(),
    ];
    for (deed, path) in deeds.into_iter().flat_map(|deed| [(deed, "new"), (deed, "old")]) {
        let mut bench = Bench::new();
        bench.put("old", &lines(100));
        bench.save(path, &changed(100, 2));
        deed(&bench.lower_path(path));
        let theirs = bench.lower(path);
        bench.overlay = None;
        bench.remount();
        assert_eq!((bench.held(), bench.lower(path)), (vec![], theirs.clone()), "{path}");
        assert_eq!(bench.read(path), theirs);
        bench.check();
    }
}

#[test]
fn a_program_that_has_landed_can_be_run_before_its_writer_is_gone() {
    let bench = Bench::new();
    let (handle, _) = bench.written("run", "#!/bin/sh\n");
    let set = SetAttributes { mode: Some(0o755), ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node("run").unwrap(), None, &set, &ME).unwrap();
    bench.view().flush(handle, &ME).unwrap();
    bench.view().drop_spent();
    let below = std::fs::File::open(bench.lower_path("run")).unwrap();
    assert_eq!(below.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(!lease::is_open_for_writing(&below));
    bench.view().release(handle).unwrap();
}

/// It may be made executable later, below as well.
#[test]
fn a_file_that_has_landed_can_be_run_while_others_go_on_reading_it() {
    let bench = Bench::new();
    let (handle, _) = bench.written("run", "#!/bin/sh\n");
    let flags = OpenFlags::from_raw(libc::O_RDONLY);
    let reader = bench.view().open(bench.node("run").unwrap(), flags, &ME).unwrap().handle;
    bench.close(handle);
    bench.view().drop_spent();
    let below = std::fs::File::open(bench.lower_path("run")).unwrap();
    assert!(!lease::is_open_for_writing(&below));
    assert_eq!(bench.view().read(reader, 0, 100).unwrap(), b"#!/bin/sh\n");
    bench.view().release(reader).unwrap();
}

#[test]
fn who_opened_a_file_while_it_landed_has_seen_what_landed() {
    let bench = Bench::new();
    bench.put("old", &lines(100));
    let flags = OpenFlags::from_raw(libc::O_WRONLY);
    let node = bench.node("old").unwrap();
    let before = Meta::of(std::fs::File::open(bench.lower_path("old")).unwrap().as_fd()).unwrap().stamp();
    let (first, _) = bench.written("old", &changed(100, 1));
    bench.view().flush(first, &ME).unwrap();
    // The look of an open came before that, and all else of it after.
    let open = bench.view().state.lock().nodes.open_on(node).unwrap().clone();
    open.claim(flags.access);
    let second = bench.view().add_handle(node, Target::Judged(open), flags, &ME, Some(before));
    bench.view().release(first).unwrap();
    bench.view().write(second, 0, b"LINE 0").unwrap();
    bench.close(second);
    assert_eq!(bench.reasons_if_held(), []);
    assert!(bench.lower("old").unwrap().starts_with("LINE 0"));
    bench.check();
}
