//! A database that was put back from an older copy, which knows nothing of what came since.

use std::path::Path;

use super::*;
use crate::sys::file;

impl Bench {
    fn state(&self, name: &str) -> PathBuf {
        self.path(".fettle").join(name)
    }

    /// Something that nobody has judged, as a killed process leaves it.
    pub(super) fn save(&self, name: &str) -> UpperId {
        let UpperFile { new, file: mut content } = self.store().create_upper(0o600).unwrap();
        content.write_all(name.as_bytes()).unwrap();
        let row = UpperRow::new(new.keep(), path(name), What::File, Base::NOTHING);
        self.store().save_upper(&row).unwrap();
        row.id
    }

    pub(super) fn keep_large(&self) -> Digest {
        std::fs::write(self.path("large"), [7; 100_000]).unwrap();
        let content = self.store().stage_content(&self.file("large")).unwrap();
        self.store().keep_content(&content).unwrap();
        content.digest
    }

    /// An upper file without a row, whose process died first.
    fn leave_over(&self) -> UpperId {
        self.store().create_upper(0o600).unwrap().new.keep()
    }

    fn copy_database(&mut self) -> PathBuf {
        self.store = None;
        let copy = self.path("copy");
        std::fs::copy(self.state("fettle.db"), &copy).unwrap();
        copy
    }

    fn put_back(&mut self, copy: &Path) -> Recovered {
        self.store = None;
        std::fs::copy(copy, self.state("fettle.db")).unwrap();
        self.recover().unwrap()
    }

    fn faults(&self) -> Vec<String> {
        let (faults, _) = self.store().check(&self.lower, &Scope::default()).unwrap();
        faults.into_iter().map(|fault| fault.about).collect()
    }
}

#[test]
fn what_an_older_database_does_not_tell_of_is_set_aside_and_told() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let before = bench.save("before");
    let copy = bench.copy_database();
    bench.recover().unwrap();
    let (since, kept) = (bench.save("since"), bench.keep_large());
    let recovered = bench.put_back(&copy);
    let aside = [format!("lost+found/stage-{since}"), format!("lost+found/content-{kept}")];
    assert_eq!((&recovered.set_aside[..], recovered.swept), (&aside[..], 0));
    assert_eq!(std::fs::read(bench.state(&aside[0])).unwrap(), b"since");
    assert_eq!(std::fs::read(bench.state(&aside[1])).unwrap(), [7; 100_000]);
    assert_eq!(file::read_all(&bench.store().read_upper(before).unwrap(), 64).unwrap(), b"before");
    let events = bench.store().events_since(0).unwrap();
    let told = events.iter().filter_map(|event| event.message.as_deref()).collect::<String>();
    assert!(told.contains("2 files") && aside.iter().all(|name| told.contains(name)), "{told}");
    let notice = bench.store().lost_and_found_notice().unwrap();
    assert!(aside.iter().all(|name| notice.contains(name)), "{notice}");
    assert_eq!(bench.faults(), [&*aside[1], &*aside[0]]);

    assert!(bench.recover().unwrap().is_nothing(), "it is told once");
    assert!(aside.iter().all(|name| bench.state(name).exists()));
    std::fs::remove_dir_all(bench.state("lost+found")).unwrap();
    assert_eq!((bench.faults(), bench.store().lost_and_found_notice()), (vec![], None));
}

#[test]
fn an_older_row_never_gets_the_content_of_another_change() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let before = bench.save("before");
    let copy = bench.copy_database();
    bench.recover().unwrap();
    bench.store().database.lock().write(|tx| rows::upper::delete(tx, before)).unwrap();
    bench.store().drop_upper_file(before);
    bench.recover().unwrap();
    let since = bench.save("since");
    assert!(since > before);
    let recovered = bench.put_back(&copy);
    assert_eq!(recovered.set_aside, [format!("lost+found/stage-{since}")]);
    assert!(bench.store().read_upper(before).is_err(), "its content is gone, and no other is there");
    assert!(bench.save("new") > since, "the number of what was set aside is not given again");
}

/// A database may come back twice, and something of the same content as before may have been kept meanwhile.
#[test]
fn what_is_set_aside_takes_the_place_of_nothing() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let copy = bench.copy_database();
    for turn in ["", "-2", "-3"] {
        bench.recover().unwrap();
        let kept = bench.keep_large();
        assert_eq!(bench.put_back(&copy).set_aside, [format!("lost+found/content-{kept}{turn}")]);
    }
}

#[test]
fn a_death_while_the_generation_is_raised_makes_nothing_lost() {
    for (what, is_swept) in [("the file is older", true), ("the file is gone", true), ("the file is newer", false)] {
        let mut bench = Bench::new();
        bench.recover().unwrap();
        let left = bench.leave_over();
        let generation: i64 = std::fs::read_to_string(bench.state("generation")).unwrap().parse().unwrap();
        match what {
            "the file is older" => std::fs::write(bench.state("generation"), (generation - 1).to_string()).unwrap(),
            "the file is gone" => std::fs::remove_file(bench.state("generation")).unwrap(),
            _ => std::fs::write(bench.state("generation"), (generation + 1).to_string()).unwrap(),
        }
        let recovered = bench.recover().unwrap();
        assert_eq!((recovered.swept, recovered.set_aside.len()), if is_swept { (1, 0) } else { (0, 1) }, "{what}");
        assert_eq!(bench.state(&format!("lost+found/stage-{left}")).exists(), !is_swept, "{what}");
        assert!(bench.recover().unwrap().is_nothing(), "{what}");
    }
}

#[test]
fn a_state_of_before_there_were_generations_is_swept_as_before() {
    let mut bench = Bench::new();
    let left = bench.leave_over();
    assert_eq!((left.to_string(), bench.state("generation").exists()), ("1".to_owned(), false));
    assert_eq!((bench.recover().unwrap().swept, bench.state("generation").exists()), (1, false));
    assert_eq!(
        (bench.leave_over().to_string(), bench.state("generation").exists()),
        (((1_i64 << 32) + 1).to_string(), true)
    );
}

#[test]
fn a_session_that_makes_no_file_is_of_no_generation_of_its_own() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    bench.save("before");
    let generation = |bench: &Bench| std::fs::read_to_string(bench.state("generation")).unwrap();
    assert_eq!(generation(&bench), "1");
    bench.recover().unwrap();
    assert_eq!(generation(&bench), "1");
    bench.keep_large();
    assert_eq!(generation(&bench), "2");
}

/// Where the file went back with the database, as with a copy of the whole directory over it, the numbers tell.
#[test]
fn upper_files_of_a_newer_generation_are_known_by_their_numbers() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    bench.save("before");
    let copy = bench.copy_database();
    std::fs::copy(bench.state("generation"), bench.path("older")).unwrap();
    bench.recover().unwrap();
    let since = bench.save("since");
    std::fs::copy(bench.path("older"), bench.state("generation")).unwrap();
    assert_eq!(bench.put_back(&copy).set_aside, [format!("lost+found/stage-{since}")]);
}

/// A copy that was made in the same session has the session's generation.
#[test]
fn a_database_that_takes_the_place_of_a_damaged_one_is_taken_for_older() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let copy = bench.copy_database();
    bench.store = Some(Store::open(&bench.lower, &Location::default()).unwrap());
    let since = bench.save("since");
    bench.store = None;
    std::fs::write(bench.state("fettle.db"), "no database".repeat(1000)).unwrap();
    let refused = Store::open(&bench.lower, &Location::default()).err().unwrap().to_string();
    assert!(refused.contains("is damaged"), "{refused}");
    assert_eq!(bench.put_back(&copy).set_aside, [format!("lost+found/stage-{since}")]);
}

#[test]
fn what_cannot_be_set_aside_is_not_left_over_at_the_next_start_either() {
    let mut bench = Bench::new();
    bench.recover().unwrap();
    let copy = bench.copy_database();
    bench.recover().unwrap();
    let since = bench.save("since");
    std::fs::write(bench.state("lost+found"), "in its place").unwrap();
    for recovered in [bench.put_back(&copy), bench.recover().unwrap()] {
        assert!(recovered.is_nothing(), "{recovered:?}");
        assert!(bench.state(&format!("stage/{since}")).exists());
    }
    std::fs::remove_file(bench.state("lost+found")).unwrap();
    assert_eq!(bench.recover().unwrap().set_aside, [format!("lost+found/stage-{since}")]);
}
