//! Backups go by age, number and quota, also while programs work; what is still needed stays.

use super::*;
use crate::model::BackupKind;
use crate::policy::settings::BackupLimits;
use crate::sys::steps;

/// Nothing is kept for its own sake.
const NOTHING: BackupLimits = BackupLimits { age_max: None, per_path_max: 0, quota_bytes: 0 };

impl Bench {
    fn purge(&self, limits: &BackupLimits) -> usize {
        // As if all that was staged had been staged long ago.
        self.view().store().forget_uses();
        self.view().store().purge(limits, &self.view().needed_content()).unwrap()
    }

    pub(super) fn purge_all(&self) {
        self.purge(&NOTHING);
    }

    fn contents(&self) -> Vec<String> {
        let backups = self.view().store().backups().unwrap();
        let content = |backup: &crate::store::Backup| self.view().store().content(backup.digest).unwrap().unwrap();
        backups.iter().map(|backup| String::from_utf8(content(backup)).unwrap()).collect()
    }
}

/// `number` saves of `a`, each small, and each with other content.
fn save_often(bench: &Bench, number: usize) {
    for edit in 0..number {
        bench.save("a", &format!("edit {edit}\n"));
    }
}

#[test]
fn of_each_path_the_newest_stay() {
    let bench = Bench::new();
    bench.put("a", "first\n");
    bench.put("b", "other\n");
    bench.save("b", "b\n");
    save_often(&bench, 6);
    assert_eq!(bench.purge(&BackupLimits { age_max: None, per_path_max: 2, quota_bytes: 1 << 20 }), 4);
    assert_eq!(bench.contents(), ["edit 4\n", "edit 3\n", "other\n"]);
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn past_the_quota_the_oldest_go_and_content_counts_once() {
    let bench = Bench::new();
    bench.put("a", "first\n");
    save_often(&bench, 6);
    // The same content again needs no more room: seven bytes each for edits 4, 3 and 2.
    bench.put("copy", "edit 4\n");
    bench.save("copy", "c\n");
    assert_eq!(bench.purge(&BackupLimits { age_max: None, per_path_max: 100, quota_bytes: 21 }), 3);
    assert_eq!(bench.contents(), ["edit 4\n", "edit 4\n", "edit 3\n", "edit 2\n"]);
}

#[test]
fn what_the_quota_has_no_room_for_goes_by_itself() {
    let bench = Bench::new();
    bench.put("a", "first\n");
    save_often(&bench, 3);
    bench.put("large", &lines(10_000));
    bench.save("large", &changed(10_000, 20));
    save_often(&bench, 1);
    assert_eq!(bench.backups().len(), 5);
    assert_eq!(bench.purge(&BackupLimits { age_max: None, per_path_max: 100, quota_bytes: 27 }), 1);
    assert_eq!(bench.contents(), ["edit 2\n", "edit 1\n", "edit 0\n", "first\n"]);
}

#[test]
fn what_goes_for_its_number_or_its_age_takes_no_room_from_others() {
    let bench = Bench::new();
    bench.put("other", "other\n");
    bench.save("other", "o\n");
    bench.put("a", "first\n");
    save_often(&bench, 6);
    let limits = BackupLimits { age_max: None, per_path_max: 1, quota_bytes: 13 };
    assert_eq!(bench.purge(&limits), 5);
    assert_eq!(bench.contents(), ["edit 4\n", "other\n"]);
}

#[test]
fn what_is_mostly_a_hole_drives_nothing_out() {
    let bench = Bench::new();
    bench.put("a", "first\n");
    save_often(&bench, 1);
    std::fs::File::create(bench.lower_path("hole")).and_then(|file| file.set_len(1 << 40)).unwrap();
    bench.save("hole", "filled\n");
    assert_eq!(bench.purge(&BackupLimits { age_max: None, per_path_max: 100, quota_bytes: 1 << 20 }), 0);
    assert_eq!(bench.backups().len(), 2);
}

#[test]
fn what_is_older_than_its_time_goes() {
    let bench = Bench::new();
    bench.put("a", "first\n");
    save_often(&bench, 3);
    let kept = BackupLimits { age_max: Some(Duration::from_secs(3600)), per_path_max: 100, quota_bytes: 1 << 20 };
    assert_eq!(bench.purge(&kept), 0);
    let made = bench.view().store().backups().unwrap()[0].created;
    while crate::store::now_millis() == made {
        std::hint::spin_loop();
    }
    assert_eq!(bench.purge(&BackupLimits { age_max: Some(Duration::ZERO), ..kept }), 3);
}

#[test]
fn what_is_held_confirmed_or_judged_against_needs_no_backup_to_stay() {
    let mut bench = Bench::new();
    for path in ["held", "gone", "windowed", "renamed"] {
        bench.put(path, &lines(100));
    }
    bench.save("held", &changed(100, 60));
    bench.unlink("gone");
    bench.save("windowed", &changed(100, 30));
    bench.rename("renamed", "elsewhere");
    bench.purge(&NOTHING);
    assert!(bench.backups().is_empty());
    assert_eq!(bench.view().check().unwrap().0, []);
    // Judged with what landed before, against what that replaced.
    bench.save("windowed", &changed(100, 60));
    bench.save("renamed", &changed(100, 70));
    let held: Vec<String> = bench.held().into_iter().map(|row| row.path().to_string()).collect();
    assert_eq!(held, ["gone", "held", "renamed", "windowed"]);
    bench.purge(&NOTHING);
    bench.put("held", &lines(100).replace("line 90\n", "a person's line\n"));
    bench.remount();
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.confirm(&ids).unwrap();
    // The base was there to merge with.
    assert_eq!(bench.lower("held"), Some(changed(100, 60).replace("line 90\n", "a person's line\n")));
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn what_somebody_is_about_to_name_is_left_alone() {
    let bench = Bench::new();
    bench.put("a", &lines(20_000));
    let content = bench.view().store().stage_content(&std::fs::File::open(bench.lower_path("a")).unwrap()).unwrap();
    bench.view().store().keep_content(&content).unwrap();
    bench.view().purge().unwrap();
    assert!(bench.view().store().content(content.digest).unwrap().is_some());
    bench.purge(&NOTHING);
    assert!(bench.view().store().content(content.digest).unwrap().is_none());
}

/// As what was to name it did not come to be, on a full disk.
#[test]
fn what_came_into_a_file_and_into_no_row_goes() {
    let bench = Bench::new();
    bench.put("a", &lines(20_000));
    bench.view().store().stage_content(&std::fs::File::open(bench.lower_path("a")).unwrap()).unwrap();
    bench.view().purge().unwrap();
    assert_eq!(bench.view().store().dirs().content_files().unwrap().len(), 1);
    bench.purge(&NOTHING);
    assert_eq!(bench.view().store().dirs().content_files().unwrap().len(), 0);
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn purges_beside_saves_and_reviews_take_nothing_that_is_needed() {
    let bench = Bench::new();
    for worker in 0..3 {
        bench.put(&format!("small{worker}"), "first\n");
        bench.put(&format!("large{worker}"), &lines(12_000));
    }
    std::thread::scope(|threads| {
        let bench = &bench;
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                threads.spawn(move || {
                    for round in 0..30 {
                        bench.save(&format!("small{worker}"), &format!("round {round}\n"));
                        bench.save(&format!("large{worker}"), &changed(12_000, 200 + round));
                        let path = RelPath::parse(format!("large{worker}").as_bytes()).unwrap();
                        let held = bench.held().into_iter().find(|row| *row.path() == path).unwrap();
                        bench.view().discard(&[held.held.unwrap().id], &Review::default()).unwrap();
                    }
                })
            })
            .collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            bench.view().store().purge(&NOTHING, &bench.view().needed_content()).unwrap();
        }
    });
    for worker in 0..3 {
        bench.save(&format!("large{worker}"), &changed(12_000, 300));
    }
    bench.purge(&NOTHING);
    assert_eq!((bench.held().len(), bench.view().check().unwrap().0), (3, vec![]));
}

#[test]
fn what_was_discarded_and_what_was_rolled_back_can_be_rolled_back_to() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    let newest = |kind| {
        let backups = bench.view().store().backups().unwrap();
        backups.into_iter().find(|backup| backup.kind == kind).unwrap()
    };
    bench.view().rollback(&[newest(BackupKind::Discarded)], &RollbackHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 60)));
    bench.view().rollback(&[newest(BackupKind::RolledBack)], &RollbackHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(100)));
}

/// By which a process knows that it is to be run.
const FULL: &str = "FETTLE_PURGE_FULL";

#[test]
fn backups_go_although_the_disk_is_full() {
    steps::assert_passes_apart("overlay::tests::purge::a_purge_has_no_room", (FULL, "1"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn a_purge_has_no_room() {
    if std::env::var_os(FULL).is_none() {
        return;
    }
    let bench = Bench::with(&[(Key::BackupsPerPath, "2")]);
    bench.put("a", "first\n");
    save_often(&bench, 6);
    let _full = bench.fill_disk();
    assert_eq!(bench.view().purge().unwrap(), 4);
    assert_eq!(bench.contents(), ["edit 4\n", "edit 3\n"]);
}
