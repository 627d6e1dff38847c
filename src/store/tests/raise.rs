//! The file of an entry of upper that lands itself: stopped before and after, by a kill, a refusal, or who writes to it.

use std::os::unix::fs::FileExt;

use super::*;

/// An entry for `a` with a file that says `new`, and the number of that.
struct Entry {
    id: UpperId,
    file: File,
}

impl Entry {
    fn new(bench: &Bench) -> Self {
        let UpperFile { new, file } = bench.store().create_upper(0o644).unwrap();
        file.write_all_at(b"new\n", 0).unwrap();
        let (id, below) = (new.keep(), Below::of(bench.lower.stat(&path("a")).unwrap().as_ref()));
        let row =
            UpperRow { id, names: vec![path("a")], what: What::File, base: Base::of(below), held: None, looks: None };
        bench.store().save_upper(&row).unwrap();
        Self { id, file }
    }

    /// Its landing over what `a` is, which is kept.
    fn landing<'a>(&self, bench: &'a Bench) -> Landing<'a> {
        let mut landing = Landing::new(bench.store(), Durability::Cached);
        let there = bench.lower.stat(&path("a")).unwrap();
        if there.is_some() {
            let (content, backup) = bench.backup("a");
            landing.keep(content, backup);
        }
        landing.raise(&bench.lower, &path("a"), there.as_ref(), (self.id, &self.file)).unwrap();
        landing
    }

    fn epilogue(&self) -> Epilogue {
        Epilogue { drop: vec![self.id], ..Epilogue::default() }
    }

    fn in_upper(&self, bench: &Bench) -> Option<String> {
        std::fs::read_to_string(bench.path(&format!(".fettle/stage/{}", self.id))).ok()
    }
}

fn below(bench: &Bench) -> Option<String> {
    std::fs::read_to_string(bench.path("a")).ok()
}

/// With a file for `a` to take the place of, and with none.
fn benches() -> [(Bench, Option<String>); 2] {
    [Some("old\n".to_owned()), None].map(|old| {
        let mut bench = Bench::new();
        bench.recover().unwrap();
        old.iter().for_each(|old| std::fs::write(bench.path("a"), old).unwrap());
        (bench, old)
    })
}

#[test]
fn what_is_written_to_a_file_that_was_about_to_land_is_uppers() {
    for (bench, old) in benches() {
        let entry = Entry::new(&bench);
        let promised = entry.landing(&bench).promise(entry.epilogue()).unwrap();
        entry.file.write_all_at(b"more than before\n", 0).unwrap();
        drop(promised);
        assert_eq!((below(&bench), entry.in_upper(&bench).as_deref()), (old, Some("more than before\n")));
        assert_eq!(kept(&bench), [(); 0].map(|()| String::new()));
    }
}

#[test]
fn killed_before_or_after_it_lands_it_is_uppers_or_lowers() {
    for (mut bench, old) in benches() {
        let entry = Entry::new(&bench);
        std::mem::forget(entry.landing(&bench).promise(entry.epilogue()).unwrap());
        assert_eq!(bench.recover().unwrap().undone, [path("a")]);
        assert_eq!((below(&bench), entry.in_upper(&bench).as_deref()), (old.clone(), Some("new\n")));
        std::mem::forget(entry.landing(&bench).promise(entry.epilogue()).unwrap().apply().unwrap());
        assert_eq!(bench.recover().unwrap().finished, [path("a")]);
        assert_eq!((below(&bench).as_deref(), entry.in_upper(&bench)), (Some("new\n"), None));
        assert_eq!((kept(&bench), bench.store().load_upper().unwrap()), (old.into_iter().collect(), vec![]));
        assert!(bench.recover().unwrap().is_nothing());
    }
}

/// By then nothing but its absence from upper tells that it has landed, wherever upper content stands.
#[test]
fn what_has_landed_has_landed_though_somebody_put_another_in_its_place() {
    for place in ["", "elsewhere"] {
        let mut bench = Bench::new();
        bench.recover_given(place).unwrap();
        std::fs::write(bench.path("a"), "old\n").unwrap();
        let entry = Entry::new(&bench);
        std::mem::forget(entry.landing(&bench).promise(entry.epilogue()).unwrap().apply().unwrap());
        std::fs::write(bench.path("theirs"), "somebody's\n").unwrap();
        std::fs::rename(bench.path("theirs"), bench.path("a")).unwrap();
        let recovered = bench.recover_given(place).unwrap();
        assert_eq!((recovered.finished, recovered.foreign), (vec![path("a")], vec![]), "{place:?}");
        assert_eq!((below(&bench).as_deref(), kept(&bench)), (Some("somebody's\n"), vec!["old\n".to_owned()]));
        assert_eq!(bench.store().load_upper().unwrap(), vec![]);
        assert!(bench.recover_given(place).unwrap().is_nothing());
    }
}

#[test]
fn what_is_given_up_after_it_has_landed_is_uppers_again() {
    for (bench, old) in benches() {
        let entry = Entry::new(&bench);
        drop(entry.landing(&bench).promise(entry.epilogue()).unwrap().apply().unwrap());
        assert_eq!((below(&bench), entry.in_upper(&bench).as_deref()), (old, Some("new\n")));
    }
}

#[test]
fn where_somebody_has_made_something_meanwhile_it_stays_uppers() {
    for (bench, _) in benches() {
        let entry = Entry::new(&bench);
        let promised = entry.landing(&bench).promise(entry.epilogue()).unwrap();
        std::fs::write(bench.path("theirs"), "somebody's\n").unwrap();
        std::fs::rename(bench.path("theirs"), bench.path("a")).unwrap();
        assert!(matches!(promised.apply().map(|_| ()), Err(Error::Conflict { .. })));
        assert_eq!(
            (below(&bench).as_deref(), entry.in_upper(&bench).as_deref()),
            (Some("somebody's\n"), Some("new\n"))
        );
    }
}

/// After a power cut the name in upper may be gone, and nothing have come of it.
#[test]
fn what_a_power_cut_took_from_upper_has_not_landed_by_that() {
    for (mut bench, old) in benches() {
        let entry = Entry::new(&bench);
        std::mem::forget(entry.landing(&bench).promise(entry.epilogue()).unwrap());
        std::fs::remove_file(bench.path(&format!(".fettle/stage/{}", entry.id))).unwrap();
        bench.machine_starts_again();
        let recovered = bench.recover().unwrap();
        assert_eq!((recovered.finished, recovered.gone), (vec![], vec![path("a")]));
        assert_eq!((below(&bench), bench.store().load_upper().unwrap()), (old, vec![]));
    }
}
