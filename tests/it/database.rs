//! What becomes of the state when its database is gone or empty.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Output, Scratch, lines, mounted_scratch, with_changed_lines};

fn state(scratch: &Scratch) -> PathBuf {
    scratch.project().join(".fettle")
}

/// What is held is a deletion, and the backup is small: all that was done is in the log alone.
#[test]
fn a_database_that_is_gone_or_empty_beside_its_log_is_refused_and_left_as_it_is() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 2] = [
        ("removed", |file| fs::remove_file(file).expect("the database")),
        ("empty", |file| fs::write(file, "").expect("the database")),
    ];
    for (how, damage) in damages {
        let scratch = mounted_scratch!();
        scratch.write("held", lines(200));
        scratch.write("kept", lines(200));
        let view = scratch.mount_at("view");
        fs::remove_file(view.path("held")).expect("it goes from the view");
        view.write("kept", with_changed_lines(&lines(200), 3));
        assert_eq!(view.only_held().path, "held");
        view.kill_all();
        let (database, log) = (state(&scratch).join("fettle.db"), state(&scratch).join("fettle.db-wal"));
        let (saved, whole_log) = (scratch.root().join("saved"), fs::read(&log).expect("the log"));
        fs::copy(&database, &saved).expect("a copy");
        damage(&database);
        let left = fs::read(&database).ok();
        for args in [&["status"][..], &["fsck"], &["backups"], &["confirm", "--all", "--yes"], &["mount"]] {
            let mut refused = scratch.fettlefs();
            refused.current_dir(scratch.project()).args(args);
            let refused: Output = refused.output().expect("the built program runs").into();
            assert_eq!(refused.status, 1, "{how}, {args:?}: {} {}", refused.stdout, refused.stderr);
            assert!(refused.stderr.contains("is damaged"), "{how}, {args:?}: {}", refused.stderr);
            assert!(fs::read(&log).ok().as_ref() == Some(&whole_log), "{how}, {args:?}: the log stays");
            assert_eq!(fs::read(&database).ok(), left, "{how}, {args:?}");
        }
        fs::copy(&saved, &database).expect("the database is put back");
        let view = scratch.mount_at("view");
        assert_eq!(view.only_held().path, "held");
        view.cli(&["rollback", "kept"]).ok();
        assert_eq!(scratch.read("kept"), lines(200));
        view.unmount();
    }
}
