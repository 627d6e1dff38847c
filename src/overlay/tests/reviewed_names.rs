//! A name that a rule has reviewed, of a file with a change that has further names: whichever way it goes, its going waits
//! by itself, and the change goes on under the others.

use super::*;
use crate::store::Fate;

const RULE: &str = "[[rule]]\nmatch = \"gated\"\naction = \"hold\"\n";

/// `gated`, with a change that has the further name `z`, and `other` beside it.
fn linked(change: impl Fn(&Bench)) -> Bench {
    let bench = gated(RULE);
    change(&bench);
    link(&bench, "gated", "z");
    assert_eq!(bench.held()[0].names.len(), 2);
    bench
}

fn gated(rules: &str) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".fettle.toml"), rules).unwrap();
    let bench = Bench::within(dir, &[]);
    bench.put("gated", &lines(100));
    bench.put("other", "other\n");
    bench
}

fn link(bench: &Bench, from: &str, to: &str) {
    let (parent, name) = bench.parent(to);
    bench.view().link(bench.node(from).unwrap(), parent, name, &ME).unwrap();
}

fn edit(bench: &Bench) {
    bench.save("gated", &changed(100, 1));
}

fn chmod(bench: &Bench) {
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node("gated").unwrap(), None, &set, &ME).unwrap();
}

fn exchange(bench: &Bench) {
    drop((bench.node("gated"), bench.node("other")));
    super::rename(bench.view(), bench.parent("gated"), bench.parent("other"), RenameFlags::EXCHANGE).unwrap();
}

fn id_at(bench: &Bench, path: &str) -> Option<ChangeId> {
    let held = bench.held().into_iter().find(|row| row.path().to_string() == path);
    held.map(|row| row.held.unwrap().id)
}

fn discard(bench: &Bench, path: &str) {
    bench.view().discard(&[id_at(bench, path).unwrap()], &Review::default()).unwrap();
}

type Step = (&'static str, fn(&Bench));

const GOES: [Step; 4] = [
    ("unlink", |bench| bench.unlink("gated")),
    ("rename", |bench| bench.rename("gated", "y")),
    ("rename over", |bench| bench.rename("other", "gated")),
    ("exchange", exchange),
];

#[test]
fn whichever_way_a_reviewed_name_goes_it_waits_by_itself() {
    let changes: [Step; 3] = [
        ("edit", edit),
        ("chmod", chmod),
        ("edit, chmod", |bench| {
            edit(bench);
            chmod(bench);
        }),
    ];
    for ((change, first), (goes, then), killed) in changes
        .iter()
        .flat_map(|one| GOES.iter().map(move |two| (one, two)))
        .flat_map(|(one, two)| [false, true].map(|killed| (*one, *two, killed)))
    {
        let mut bench = linked(first);
        let content = bench.read("z");
        then(&bench);
        if killed {
            bench.remount();
        }
        let told = format!("{change}, {goes}, killed: {killed}");
        assert_eq!(bench.lower("gated"), Some(lines(100)), "{told}");
        assert_eq!((bench.read("z"), bench.lower("z")), (content.clone(), None), "{told}");
        let (gone, on) = (id_at(&bench, "gated"), id_at(&bench, "z"));
        assert!(gone.is_some() && on.is_some(), "{told}: {:?}", bench.held());
        let node = |path| bench.node(path).ok();
        assert!(node("gated").is_none() || node("gated") != node("z"), "{told}");
        discard(&bench, "z");
        assert_eq!((bench.read("z"), bench.lower("gated")), (None, Some(lines(100))), "{told}");
        discard(&bench, "gated");
        assert_eq!(bench.read("gated"), Some(lines(100)), "{told}");
    }
}

#[test]
fn both_halves_are_confirmed_or_discarded_in_either_order() {
    for [one, other] in [["gated", "z"], ["z", "gated"]] {
        let bench = linked(edit);
        bench.unlink("gated");
        bench.confirm(&[id_at(&bench, one).unwrap()]).unwrap();
        bench.confirm(&[id_at(&bench, other).unwrap()]).unwrap();
        assert_eq!((bench.lower("gated"), bench.lower("z")), (None, Some(changed(100, 1))));
        assert_eq!(bench.held(), []);
        let bench = linked(edit);
        bench.unlink("gated");
        discard(&bench, one);
        discard(&bench, other);
        assert_eq!((bench.read("gated"), bench.read("z")), (Some(lines(100)), None));
        assert_eq!((bench.lower("gated"), bench.lower("z")), (Some(lines(100)), None));
        let bench = linked(edit);
        bench.unlink("gated");
        discard(&bench, "gated");
        bench.save("gated", &changed(100, 2));
        bench.confirm(&[id_at(&bench, "z").unwrap()]).unwrap();
        assert_eq!((bench.lower("gated"), bench.lower("z")), (Some(lines(100)), Some(changed(100, 1))));
        assert_eq!(bench.read("gated"), Some(changed(100, 2)), "a file of its own");
    }
}

#[test]
fn the_going_is_told_and_the_change_answers_under_its_new_id() {
    let bench = linked(edit);
    let before = id_at(&bench, "gated").unwrap();
    bench.unlink("gated");
    let on = Fate::Superseded { by: id_at(&bench, "z").unwrap() };
    assert_eq!(bench.view().store().verdict(&before).unwrap().unwrap().fate, on);
    let events = bench.view().store().events_since(0).unwrap();
    let told = events.iter().find(|event| event.id.as_deref() == Some(id_at(&bench, "gated").unwrap().as_str()));
    assert_eq!(told.map(|event| event.event), Some(EventName::WriteHeld));
}

#[test]
fn what_is_written_while_a_reviewed_name_goes_is_written_on_under_the_other() {
    for (goes, then) in GOES {
        let bench = gated(RULE);
        let open = || bench.view().open(bench.node("gated").unwrap(), OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap();
        let (one, other) = (open().handle, open().handle);
        for handle in [one, other] {
            bench.view().write(handle, 0, b"LINE").unwrap();
        }
        link(&bench, "gated", "z");
        then(&bench);
        bench.view().write(other, 5, b"LATER").unwrap();
        bench.close(one);
        bench.close(other);
        assert_eq!(&bench.read("z").unwrap()[..10], "LINE LATER", "{goes}");
        assert_eq!(bench.lower("gated"), Some(lines(100)), "{goes}");
        assert!(id_at(&bench, "gated").is_some(), "{goes}");
    }
}

#[test]
fn a_name_that_is_reviewed_from_now_on_goes_and_comes_by_review_alone() {
    for pattern in ["f", "z"] {
        let mut bench = gated("");
        bench.put("f", &lines(100));
        bench.save("f", &changed(100, 60));
        link(&bench, "f", "z");
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"{pattern}\"\naction = \"hold\"\n"));
        bench.remount();
        bench.unlink("f");
        assert_eq!((bench.lower("f"), bench.read("f")), (Some(lines(100)), None), "{pattern}");
        // A new file lands where no rule has it reviewed.
        let comes = (pattern == "f").then(|| changed(100, 60));
        assert_eq!((bench.lower("z"), bench.read("z")), (comes, Some(changed(100, 60))), "{pattern}");
    }
    // A file of this session may leave to where nobody judges, but not from where it is reviewed.
    let mut bench = gated("");
    std::fs::create_dir(bench.lower_path(".git")).unwrap();
    bench.save("f", "new\n");
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/f\"\naction = \"hold\"\n");
    bench.remount();
    assert_eq!(bench.try_rename("f", ".git/f").unwrap_err().code(), libc::EXDEV);
}

/// What is based on the project's symlink would take it along.
#[test]
fn a_symlink_of_the_project_does_not_come_to_lead_out_by_the_change_of_it() {
    use std::os::unix::fs::symlink;
    let held = || {
        let bench = Bench::new();
        bench.put("d/beside", "");
        symlink("../a", bench.lower_path("d/s")).unwrap();
        bench
    };
    let replace = |bench: &Bench| {
        let (parent, name) = bench.parent("tmp");
        bench.view().symlink(parent, name, OsStr::new("/etc/passwd"), &ME).unwrap();
        bench.rename("tmp", "d/s");
    };
    let is_below = |bench: &Bench, path: &str| bench.lower_path(path).symlink_metadata().is_ok();
    let linked = held();
    link(&linked, "d/s", "z");
    assert_eq!((is_below(&linked, "z"), linked.reasons()), (false, vec![Reason::Symlink]));
    let renamed = held();
    replace(&renamed);
    renamed.rename("d/s", "z");
    assert!(!is_below(&renamed, "z"));
    let parted = held();
    replace(&parted);
    link(&parted, "d/s", "z");
    parted.unlink("d/s");
    assert!(!is_below(&parted, "z"));
    assert!(parted.held().iter().any(|row| row.path().to_string() == "z"));
}

#[test]
fn a_further_name_that_somebody_has_taken_below_goes_by_review() {
    let goes: [Step; 2] = [("unlink", |bench| bench.unlink("z")), ("rename over", |bench| bench.rename("other", "z"))];
    for (goes, then) in goes {
        let bench = linked(edit);
        bench.put("z", "by a person\n");
        then(&bench);
        assert_eq!(bench.lower("z").as_deref(), Some("by a person\n"), "{goes}");
        let at_z = bench.held().into_iter().find(|row| row.path().to_string() == "z").unwrap();
        assert_eq!(at_z.held.unwrap().reasons, [Reason::Stale], "{goes}");
        assert_eq!(bench.read("gated"), Some(changed(100, 1)), "{goes}");
    }
}

/// By which of its names a file was written to need not be known: the kernel opens it by any of them.
#[test]
fn what_is_held_under_one_name_is_found_by_every_other() {
    let mut bench = Bench::new();
    bench.put("d/a", &lines(100));
    std::fs::hard_link(bench.lower_path("d/a"), bench.lower_path("b")).unwrap();
    bench.save("d/a", &changed(100, 90));
    for _ in 0..2 {
        let id = bench.id_of("d/a");
        let found = |path: &str| bench.view().held_within(&RelPath::parse(path.as_bytes()).unwrap());
        for path in ["d/a", "b", "d"] {
            let ids: Vec<ChangeId> = found(path).into_iter().map(|row| row.held.unwrap().id).collect();
            assert_eq!(ids, std::slice::from_ref(&id), "{path}");
        }
        assert_eq!(found("c"), []);
        bench.remount();
    }
}
