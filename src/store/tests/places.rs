//! Content that stands elsewhere, and starts that are given another place for it.

use super::*;
use crate::sys::file;

/// Where a start is told that content is.
fn given(bench: &Bench, place: &str) -> Location {
    let place = (!place.is_empty()).then(|| bench.path(place));
    Location { stage: place.clone(), backups: place, ..Location::default() }
}

impl Bench {
    pub(super) fn recover_given(&mut self, place: &str) -> Result<Recovered> {
        self.store = None;
        self.store = Some(Store::open(&self.lower, &given(self, place)).unwrap());
        self.store().recover(&self.lower)
    }

    /// Something is held and something large kept, by a process that has died.
    fn work_given(&mut self, place: &str) -> (UpperRow, Digest) {
        self.recover_given(place).unwrap();
        let UpperFile { new, mut file } = self.store().create_upper(0o600).unwrap();
        file.write_all(b"held\n").unwrap();
        let (id, base) = (new.keep(), Base::NOTHING);
        let row = UpperRow { id, names: vec![path("a")], what: What::File, base, held: None, looks: None };
        self.store().save_upper(&row).unwrap();
        std::fs::write(self.path("large"), [7; 100_000]).unwrap();
        let content = self.store().stage_content(&self.file("large")).unwrap();
        self.store().keep_content(&content).unwrap();
        (row, content.digest)
    }

    fn assert_has(&self, (row, digest): &(UpperRow, Digest)) {
        assert_eq!(self.store().load_upper().unwrap(), std::slice::from_ref(row));
        assert_eq!(file::read_all(&self.store().read_upper(row.id).unwrap(), 64).unwrap(), b"held\n");
        assert_eq!(self.store().content(*digest).unwrap(), Some(vec![7; 100_000]));
    }
}

#[test]
fn a_start_that_is_given_another_place_for_content_loses_nothing() {
    for (before, then) in [("elsewhere", ""), ("", "elsewhere"), ("elsewhere", "another")] {
        let mut bench = Bench::new();
        let work = bench.work_given(before);
        for is_rebooted in [false, true] {
            if is_rebooted {
                bench.machine_starts_again();
            }
            let refused = bench.recover_given(then).expect_err("what is held is not there").to_string();
            assert!(refused.contains(STAGE_VARIABLE), "{refused}");
            assert!(before.is_empty() || refused.contains(&*bench.path(before).to_string_lossy()), "{refused}");
        }
        assert!(bench.recover_given(before).unwrap().is_nothing());
        bench.assert_has(&work);
    }
}

#[test]
fn a_start_that_is_given_another_place_for_backups_alone_loses_none() {
    let mut bench = Bench::new();
    let work = bench.work_given("elsewhere");
    bench.machine_starts_again();
    bench.store = None;
    let location = Location { backups: None, ..given(&bench, "elsewhere") };
    let store = Store::open(&bench.lower, &location).unwrap();
    let refused = store.recover(&bench.lower).expect_err("what is kept is not there").to_string();
    assert!(refused.contains(BACKUP_VARIABLE), "{refused}");
    drop(store);
    bench.recover_given("elsewhere").unwrap();
    bench.assert_has(&work);
}

#[test]
fn a_place_is_another_once_all_is_there_or_nothing_is_needed() {
    let mut bench = Bench::new();
    let work = bench.work_given("elsewhere");
    std::fs::rename(bench.path("elsewhere"), bench.path("moved")).unwrap();
    bench.recover_given("moved").unwrap();
    bench.assert_has(&work);
    bench.recover_given("elsewhere").expect_err("it is not there any more");
    bench.recover_given("moved").unwrap();
    bench.store().record_epilogue(&Epilogue { drop: vec![work.0.id], ..Epilogue::default() }).unwrap();
    bench.store().forget_uses();
    let limits = BackupLimits { age_max: None, per_path_max: 100, quota_bytes: u64::MAX };
    bench.store().purge(&limits, &HashSet::new()).unwrap();
    for place in ["", "elsewhere", ""] {
        bench.recover_given(place).unwrap();
    }
}

/// As an older program left it.
#[test]
fn what_is_missing_where_no_place_is_noted_is_not_lost() {
    let mut bench = Bench::new();
    let work = bench.work_given("elsewhere");
    bench.machine_starts_again();
    let forget = |tx: &sqlite::Transaction<'_>| Ok(tx.execute("DELETE FROM setting WHERE key = 'places'", [])?);
    bench.store().database.lock().write(forget).unwrap();
    assert!(bench.recover_given("").unwrap().is_nothing());
    bench.recover_given("elsewhere").unwrap();
    bench.assert_has(&work);
}

/// As after a reboot: the mountpoint is there, and the disk is not.
#[test]
fn a_start_that_finds_no_directory_of_its_own_where_content_is_makes_none() {
    for only_backups in [false, true] {
        let mut bench = Bench::new();
        let location = |bench: &Bench| {
            let given = given(bench, "disk");
            if only_backups { Location { stage: None, ..given } } else { Location { backups: None, ..given } }
        };
        let open = |bench: &Bench| Store::open(&bench.lower, &location(bench));
        bench.store = None;
        bench.store = Some(open(&bench).unwrap());
        bench.store().recover(&bench.lower).unwrap();
        let away = |bench: &Bench| std::fs::rename(bench.path("disk"), bench.path("away")).unwrap();
        let back = |bench: &Bench| {
            std::fs::remove_dir(bench.path("disk")).unwrap();
            std::fs::rename(bench.path("away"), bench.path("disk")).unwrap();
        };
        let row = bench.save("held");
        let digest = bench.keep_large();
        bench.store = None;
        let instance = std::fs::read_to_string(bench.path(".fettle/instance")).unwrap();

        away(&bench);
        std::fs::create_dir(bench.path("disk")).unwrap();
        for _ in 0..2 {
            let refused = open(&bench).err().unwrap().to_string();
            let variable = if only_backups { BACKUP_VARIABLE } else { STAGE_VARIABLE };
            assert!(refused.contains(variable) && refused.contains("is its disk mounted?"), "{refused}");
            assert_eq!(std::fs::read_dir(bench.path("disk")).unwrap().count(), 0);
        }
        back(&bench);
        bench.store = Some(open(&bench).unwrap());
        assert!(bench.store().recover(&bench.lower).unwrap().is_nothing());
        assert_eq!(file::read_all(&bench.store().read_upper(row).unwrap(), 64).unwrap(), b"held");
        assert_eq!(bench.store().content(digest).unwrap(), Some(vec![7; 100_000]));

        bench.store = None;
        away(&bench);
        std::fs::create_dir_all(bench.path("disk").join(instance)).unwrap();
        bench.store = Some(open(&bench).unwrap());
        bench.store().recover(&bench.lower).expect("a person has given it up");
    }
}

#[test]
fn a_place_from_which_nothing_is_needed_may_be_gone() {
    let mut bench = Bench::new();
    bench.recover_given("disk").unwrap();
    let whiteout = UpperRow::new(bench.store().reserve_upper(), path("gone"), What::Whiteout, Base::NOTHING);
    bench.store().save_upper(&whiteout).unwrap();
    bench.store = None;
    std::fs::remove_dir_all(bench.path("disk")).unwrap();
    bench.recover_given("disk").unwrap();
}
