//! Ids name exact content, though their eight digits are few enough to be forged.

use super::*;
use crate::model::IdSide;
use crate::store::{Fate, What};

/// What was found by trying some hundred thousand: of a file of a hundred lines at `a` a change whose id begins as that of
/// another does, at `a` or at `b`.
fn reviewed(number: u32) -> String {
    changed(100, 60) + &format!("{number}\n")
}

fn forged(number: u32) -> String {
    changed(100, 61) + &format!("{number}\n")
}

fn bench() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("a", &lines(100));
    bench.put("b", &lines(100));
    bench
}

fn id(digits: &str) -> ChangeId {
    ChangeId::parse(digits).unwrap()
}

#[test]
fn an_id_that_was_given_never_stands_for_anything_else() {
    for is_killed in [false, true] {
        let mut bench = bench();
        bench.save("a", &reviewed(115_632));
        let short = bench.only_id();
        assert_eq!(short, id("05e878d6"), "the contents are those for which this was found");
        if is_killed {
            bench.remount();
        }
        bench.save("a", &forged(24_156));
        assert_eq!(bench.only_id(), id("05e878d6a"));
        let verdict = bench.view().store().verdict(&short).unwrap().unwrap();
        assert_eq!((verdict.id, verdict.fate), (short.clone(), Fate::Superseded { by: id("05e878d6a") }));
        assert_eq!(bench.confirm(std::slice::from_ref(&short)).unwrap_err(), ErrorCode::UnknownId);
        // The same content is the same change, and both are known from now on.
        bench.save("a", &reviewed(115_632));
        assert_eq!(bench.only_id(), short);
        let known: Vec<ChangeId> = bench.view().ids_beginning_with(&id("05e8")).into_iter().collect();
        assert_eq!(known, [short, id("05e878d6a")]);
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

#[test]
fn what_an_undo_holds_again_has_its_id_for_itself() {
    let bench = bench();
    bench.save("a", &reviewed(103_009));
    bench.discard("a");
    let discarded = bench.latest();
    bench.save("b", &forged(5_913));
    assert_eq!(bench.only_id(), id("6cca9634a"));
    bench.undo(&discarded).unwrap();
    assert_eq!([bench.id_of("a"), bench.id_of("b")], [id("6cca9634"), id("6cca9634a")]);
    assert_eq!(bench.view().check().unwrap().0, []);
    bench.confirm(&[id("6cca9634")]).unwrap();
    assert_eq!(bench.lower("a"), Some(reviewed(103_009)));
    assert_eq!(bench.held().len(), 1);
}

fn symlink(bench: &Bench, target: &str, path: &str) {
    let (parent, name) = bench.parent(path);
    bench.view().symlink(parent, name, OsStr::new(target), &ME).unwrap();
}

/// `CLAUDE.md` held with the text `/etc/passwd`.
fn held_text() -> Bench {
    let bench = Bench::new();
    bench.save("CLAUDE.md", "/etc/passwd");
    bench
}

#[test]
fn a_symlink_never_has_the_id_of_a_file_that_says_where_it_leads() {
    for dir in [false, true] {
        let bench = Bench::new();
        let (path, text) = if dir { ("src", "../..") } else { ("CLAUDE.md", "/etc/passwd") };
        if dir {
            bench.put("src/a", "a\n");
            bench.unlink("src/a");
            bench.rmdir("src").unwrap();
        }
        bench.save(path, text);
        let looked_at = bench.id_of(path);
        bench.unlink(path);
        symlink(&bench, text, path);
        assert_ne!(bench.id_of(path), looked_at, "{path}");
        assert_eq!(bench.confirm(std::slice::from_ref(&looked_at)).unwrap_err(), ErrorCode::UnknownId);
        assert!(std::fs::symlink_metadata(bench.lower_path(path)).is_err(), "{path} is in the project");
        // And the other way round.
        let symlink = bench.id_of(path);
        bench.unlink(path);
        bench.save(path, text);
        assert_eq!(bench.id_of(path), looked_at, "{path}");
        assert_eq!(bench.confirm(&[symlink]).unwrap_err(), ErrorCode::UnknownId);
        assert_eq!(bench.view().check().unwrap().0, []);
    }
}

#[test]
fn a_look_at_a_file_is_none_at_a_symlink_that_was_renamed_over_it_as_the_daemon_died() {
    let mut bench = held_text();
    let looked_at = bench.only_id();
    let row = bench.held().remove(0);
    let upper = bench.view().store().create_upper_symlink(OsStr::new("/etc/passwd")).unwrap().keep();
    let unjudged = UpperRow { id: upper, what: What::Symlink, ..row.clone() };
    bench.view().store().replace_upper(row.id, &unjudged).unwrap();
    bench.view().store().drop_upper_file(row.id);
    bench.remount();
    assert_ne!(bench.only_id(), looked_at);
    assert_eq!(bench.confirm(&[looked_at]).unwrap_err(), ErrorCode::UnknownId);
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn what_an_earlier_version_held_goes_on_under_its_id() {
    let mut bench = Bench::new();
    symlink(&bench, "/etc/passwd", "CLAUDE.md");
    bench.mkdir(".claude");
    bench.mkdir(".claude/sub");
    let mut ids = Vec::new();
    for row in bench.held() {
        // Its ids told of no kinds.
        let held = crate::store::Held { makes: None, ..row.held.clone().unwrap() };
        let full = ChangeId::full(
            row.path(),
            held.kind,
            IdSide { content: row.base.digest(), thing: None },
            IdSide { content: held.new, thing: None },
            held.looks,
        );
        let id = id(&full.to_string()[..8]);
        assert_ne!(id, held.id, "{}", row.path());
        ids.push(id.clone());
        let held = Some(crate::store::Held { id, ..held });
        bench.view().store().save_upper(&UpperRow { held, ..row }).unwrap();
    }
    bench.remount();
    assert_eq!(["CLAUDE.md", ".claude/sub"].map(|path| bench.id_of(path)).len(), ids.len());
    assert!(bench.held().iter().all(|row| ids.contains(&row.held.as_ref().unwrap().id)));
    assert_eq!(bench.view().check().unwrap().0, []);
    bench.view().confirm(&ids, &HOW).unwrap();
    assert!(bench.lower_path("CLAUDE.md").is_symlink() && bench.lower_path(".claude/sub").is_dir());
}
