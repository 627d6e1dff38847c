//! Mode, owner and attributes wait with a change, and where a rule has the path reviewed by themselves; an id tells of them
//! (SPEC §4.7).

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::scenarios::chmod;
use super::*;
use crate::sys::file::OwnLooks;

/// Sensitive, and built in as that.
const PATH: &str = ".envrc";

impl Bench {
    /// A sensitive file that somebody has made below.
    fn sensitive() -> Self {
        let bench = Self::new();
        bench.put(PATH, "one\n");
        bench
    }

    fn give_away(&self, path: &str, id: u32) {
        let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
        let set = SetAttributes { uid: Some(id), gid: Some(id), atime, mtime, ..SetAttributes::NOTHING };
        self.view().set_attributes(self.node(path).unwrap(), None, &set, &ME).unwrap();
    }

    fn uncolour(&self, path: &str) {
        self.view().remove_xattr(self.node(path).unwrap(), OsStr::new("user.colour"), &ME).unwrap();
    }

    fn told(&self) -> String {
        self.view().looks_brought(&self.held()[0]).unwrap().join(", ")
    }

    fn is_sound(&self) {
        assert_eq!(self.view().check().unwrap().0, []);
    }
}

fn set_mode_below(bench: &Bench, path: &str, mode: u32) {
    std::fs::set_permissions(bench.lower_path(path), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What a program does and takes back, how it shows in the view, and what a person is told.
struct Case {
    act: fn(&Bench),
    back: fn(&Bench),
    shown: (u32, u32, Option<&'static str>),
    told: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        act: |bench| chmod(bench, PATH, 0o755),
        back: |bench| chmod(bench, PATH, 0o644),
        shown: (0o755, 0, None),
        told: "mode 644 -> 755",
    },
    Case {
        act: |bench| bench.give_away(PATH, 7),
        back: |bench| bench.give_away(PATH, 0),
        shown: (0o644, 7, None),
        told: "owner 0:0 -> 7:7",
    },
    Case {
        act: |bench| bench.colour(PATH, "red"),
        back: |bench| bench.uncolour(PATH),
        shown: (0o644, 0, Some("red")),
        told: "attribute user.colour none -> \"red\"",
    },
];

#[test]
fn what_a_sensitive_file_looks_like_waits_and_ends_where_it_is_as_before() {
    for Case { act, back, shown: (mode, owner, colour), told } in CASES {
        let mut bench = Bench::sensitive();
        act(&bench);
        let shown = (mode, owner, colour.map(str::to_owned));
        assert_eq!((bench.looks_shown(PATH), bench.looks_below(PATH)), (shown.clone(), (0o644, 0, None)), "{told}");
        assert_eq!((bench.reasons(), bench.told()), (vec![Reason::Sensitive], told.to_owned()));
        let id = bench.only_id();
        bench.is_sound();
        bench.remount();
        assert_eq!((bench.only_id(), bench.reasons(), bench.looks_shown(PATH)), (id, vec![Reason::Sensitive], shown));
        back(&bench);
        assert_eq!((bench.held().len(), bench.stage_files()), (0, 0), "{told}");
        assert_eq!(bench.looks_below(PATH), (0o644, 0, None));
        bench.is_sound();
    }
}

#[test]
fn where_no_rule_reviews_it_and_of_times_it_lands_at_once() {
    let bench = Bench::sensitive();
    bench.put("a", "one\n");
    chmod(&bench, "a", 0o755);
    bench.colour("a", "red");
    let mtime = SetTime::At(Timestamp { seconds: 5, nanoseconds: 0 });
    let set = SetAttributes { mtime, ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node(PATH).unwrap(), None, &set, &ME).unwrap();
    chmod(&bench, PATH, 0o644);
    assert_eq!((bench.held().len(), bench.stage_files()), (0, 0));
    assert_eq!(bench.looks_below("a"), (0o755, 0, Some("red".to_owned())));
    assert_eq!(std::fs::metadata(bench.lower_path(PATH)).unwrap().mtime(), 5);
}

#[test]
fn it_lands_with_a_confirm_which_can_be_undone() {
    let bench = Bench::sensitive();
    chmod(&bench, PATH, 0o755);
    bench.give_away(PATH, 7);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!((bench.looks_below(PATH), bench.held().len()), ((0o755, 7, None), 0));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.looks_below(PATH), bench.looks_shown(PATH)), ((0o644, 0, None), (0o644, 0, None)));
    bench.is_sound();
}

#[test]
fn it_goes_with_a_discard_and_is_held_again_as_it_was_when_that_is_undone() {
    let mut bench = Bench::sensitive();
    chmod(&bench, PATH, 0o755);
    bench.give_away(PATH, 7);
    bench.colour(PATH, "red");
    let (id, shown) = (bench.only_id(), bench.looks_shown(PATH));
    bench.view().discard(std::slice::from_ref(&id), &Review::default()).unwrap();
    assert_eq!((bench.looks_shown(PATH), bench.held().len()), ((0o644, 0, None), 0));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.only_id(), bench.looks_shown(PATH)), (id.clone(), shown.clone()));
    bench.is_sound();
    bench.remount();
    assert_eq!((bench.only_id(), bench.reasons()), (id.clone(), vec![Reason::Sensitive]));
    bench.confirm(&[id]).unwrap();
    assert_eq!(bench.looks_below(PATH), shown);
}

#[test]
fn an_id_names_a_mode_too_and_lands_no_other() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.save(PATH, "made\n");
    let id = |path: &str| {
        let held = bench.held().into_iter().find(|row| row.path().as_bytes() == path.as_bytes()).unwrap().held.unwrap();
        held.id
    };
    for path in ["a", PATH] {
        let plain = id(path);
        chmod(&bench, path, 0o755);
        let run = id(path);
        bench.colour(path, "red");
        let red = id(path);
        assert!(plain != run && run != red && red != plain, "{path}: {plain} {run} {red}");
        assert_eq!(bench.confirm(std::slice::from_ref(&plain)), Err(ErrorCode::UnknownId));
        bench.uncolour(path);
        assert_eq!(id(path), run);
        chmod(&bench, path, 0o644);
        assert_eq!(id(path), plain, "{path}");
        bench.is_sound();
    }
}

#[test]
fn a_file_that_is_made_ready_to_run_has_the_id_of_one_that_becomes_so() {
    let bench = Bench::new();
    bench.save(PATH, "made\n");
    let plain = bench.only_id();
    chmod(&bench, PATH, 0o755);
    let run = bench.only_id();
    bench.unlink(PATH);
    assert_eq!(bench.held().len(), 0);
    let flags = OpenFlags::from_raw(libc::O_WRONLY);
    let (_, opened) = bench.view().create(ROOT, OsStr::new(PATH), 0o755, flags, &ME).unwrap();
    bench.view().write(opened.handle, 0, b"made\n").unwrap();
    bench.close(opened.handle);
    assert_eq!(bench.only_id(), run);
    assert_ne!(run, plain);
}

#[test]
fn a_writer_who_has_it_open_has_content_and_mode_judged_as_one() {
    let bench = Bench::sensitive();
    let handle = bench.open_for_save(PATH);
    bench.view().write(handle, 0, b"two\n").unwrap();
    chmod(&bench, PATH, 0o600);
    assert_eq!(bench.held().len(), 0);
    bench.close(handle);
    assert_eq!((bench.looks_below(PATH).0, bench.lower(PATH).as_deref()), (0o644, Some("one\n")));
    assert_eq!(bench.told(), "mode 644 -> 600");
    let reader = bench.open_to_read(bench.node(PATH).unwrap());
    bench.save(PATH, "one\n");
    assert_eq!(
        (bench.view().read(reader, 0, 9).unwrap(), bench.reasons()),
        (b"one\n".to_vec(), vec![Reason::Sensitive])
    );
    bench.view().release(reader).unwrap();
}

#[test]
fn who_reads_or_may_write_goes_on_with_what_waits() {
    let bench = Bench::sensitive();
    let node = bench.node(PATH).unwrap();
    let reader = bench.open_to_read(node);
    let writer = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    chmod(&bench, PATH, 0o755);
    assert_eq!(bench.looks_below(PATH).0, 0o644);
    let id = bench.only_id();
    bench.view().write(writer, 0, b"two\n").unwrap();
    assert_eq!(bench.view().read(reader, 0, 9).unwrap(), b"two\n");
    bench.close(writer);
    assert_ne!(bench.only_id(), id);
    assert_eq!((bench.lower(PATH).as_deref(), bench.looks_shown(PATH).0), (Some("one\n"), 0o755));
    bench.view().release(reader).unwrap();
    bench.is_sound();
}

#[test]
fn what_lands_while_somebody_has_it_open_waits_again_with_its_next_mode() {
    let bench = Bench::sensitive();
    let writer = bench.open_for_save(PATH);
    bench.view().write(writer, 0, b"two\n").unwrap();
    bench.view().flush(writer, &ME).unwrap();
    bench.confirm(&[bench.only_id()]).unwrap();
    chmod(&bench, PATH, 0o755);
    assert_eq!((bench.reasons(), bench.looks_below(PATH).0), (vec![Reason::Sensitive], 0o644));
    bench.close(writer);
    assert_eq!((bench.looks_shown(PATH).0, bench.looks_below(PATH).0), (0o755, 0o644));
}

#[test]
fn the_same_bytes_renamed_over_it_wait_only_where_they_look_otherwise() {
    for (mode, held) in [(0o755, 1), (0o644, 0)] {
        let bench = Bench::sensitive();
        bench.save("new", "one\n");
        chmod(&bench, "new", mode);
        bench.rename("new", PATH);
        assert_eq!(bench.held().len(), held, "{mode:o}");
        assert_eq!((bench.looks_below(PATH).0, bench.looks_shown(PATH).0), (0o644, mode));
        assert_eq!(bench.lower_names(), [PATH]);
        bench.is_sound();
    }
}

#[test]
fn a_chmod_by_one_name_of_a_file_waits_by_the_rule_for_another() {
    let bench = Bench::sensitive();
    std::fs::hard_link(bench.lower_path(PATH), bench.lower_path("b")).unwrap();
    chmod(&bench, "b", 0o755);
    assert_eq!((bench.reasons(), bench.looks_below("b").0), (vec![Reason::Sensitive], 0o644));
    assert_eq!((bench.looks_shown("b").0, bench.looks_shown(PATH).0), (0o755, 0o755));
    let id = bench.only_id();
    chmod(&bench, PATH, 0o700);
    assert_ne!(bench.only_id(), id);
    assert_eq!((bench.looks_below("b").0, bench.looks_shown("b").0), (0o644, 0o700));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!((bench.looks_below("b").0, bench.looks_below(PATH).0), (0o700, 0o700));
    bench.is_sound();
}

#[test]
fn a_symlink_that_is_given_away_waits() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("t", bench.lower_path(PATH)).unwrap();
    bench.give_away(PATH, 7);
    let below = || std::fs::symlink_metadata(bench.lower_path(PATH)).unwrap().uid();
    assert_eq!((bench.reasons(), bench.told()), (vec![Reason::Sensitive], "owner 0:0 -> 7:7".to_owned()));
    assert_eq!(below(), 0);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!((below(), bench.held().len()), (7, 0));
}

#[test]
fn a_mode_that_somebody_sets_below_is_not_taken_back_unasked() {
    let bench = Bench::sensitive();
    chmod(&bench, PATH, 0o755);
    set_mode_below(&bench, PATH, 0o600);
    let id = bench.only_id();
    assert_eq!(bench.confirm(std::slice::from_ref(&id)), Err(ErrorCode::Conflict));
    assert_eq!(bench.looks_below(PATH).0, 0o600);
    bench.view().confirm(&[id], &ConfirmHow { force: true, ..HOW.clone() }).unwrap();
    assert_eq!(bench.looks_below(PATH).0, 0o755);
}

#[test]
fn what_was_set_and_not_judged_when_the_daemon_died_is_held_under_another_id() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let (id, entry) = (bench.only_id(), bench.held()[0].id);
    let mode = OwnLooks { mode: true, ..OwnLooks::default() };
    bench.view().note_own_looks(entry, &mode).unwrap();
    set_mode_below(&bench, &format!(".fettle/stage/{entry}"), 0o755);
    assert_eq!(bench.confirm(std::slice::from_ref(&id)), Err(ErrorCode::Superseded), "nobody has seen that mode");
    assert_eq!(bench.view().check().unwrap().0.len(), 1);
    bench.remount();
    assert_ne!(bench.only_id(), id);
    assert!(bench.reasons().contains(&Reason::Interrupted));
    assert_eq!((bench.looks_shown("a").0, bench.looks_below("a").0), (0o755, 0o644));
    bench.is_sound();
}

#[test]
fn what_is_written_to_a_file_that_is_gone_by_then_looks_like_a_new_one() {
    // Of what was copied, and given a mode; no mode is told that any new file has.
    for (below, given, told) in [(0o644, Some(0o644), ""), (0o600, None, "mode 600"), (0o600, Some(0o644), "")] {
        let bench = Bench::new();
        bench.put("a", &lines(10));
        set_mode_below(&bench, "a", below);
        let handle = bench.open_for_save("a");
        bench.view().write(handle, 0, b"two\n").unwrap();
        given.into_iter().for_each(|mode| chmod(&bench, "a", mode));
        std::fs::remove_file(bench.lower_path("a")).unwrap();
        bench.close(handle);
        assert_eq!((bench.reasons(), bench.told()), (vec![Reason::Stale], told.to_owned()), "{below:o} {given:?}");
        bench.is_sound();
    }
}

#[test]
fn a_mode_is_told_beside_that_of_the_base_though_somebody_has_removed_the_file() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    set_mode_below(&bench, "a", 0o600);
    bench.save("a", &lines(1));
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    chmod(&bench, "a", 0o644);
    assert_eq!((bench.reasons(), bench.told().as_str()), (vec![Reason::External, Reason::Size], "mode 644"));
    chmod(&bench, "a", 0o600);
    assert_eq!(bench.told(), "");
    bench.is_sound();
}

#[test]
fn what_stays_of_some_hunks_keeps_the_mode() {
    let bench = Bench::new();
    let content = changed(200, 60).replace("line 150\n", "other\n");
    bench.put("a", &lines(200));
    bench.save("a", &content);
    chmod(&bench, "a", 0o755);
    bench.view().confirm_hunks(&bench.only_id(), &[1], &HOW).unwrap();
    assert_eq!((bench.looks_below("a").0, bench.looks_shown("a").0), (0o644, 0o755));
    bench.is_sound();
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!((bench.looks_below("a").0, bench.lower("a")), (0o755, Some(content)));
}

#[test]
fn what_has_no_file_brings_nothing_and_keeps_nobody_from_the_list() {
    let mut bench = Bench::sensitive();
    chmod(&bench, PATH, 0o755);
    // As that of its deletion has none, until that is judged.
    let file = bench.held()[0].id.to_string();
    std::fs::remove_file(bench.lower_path(".fettle/stage").join(file)).unwrap();
    assert_eq!((bench.held().len(), bench.told().as_str()), (1, ""));
    bench.remount();
    assert_eq!((bench.held().len(), bench.told().as_str()), (1, ""));
}
