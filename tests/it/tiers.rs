//! Every row of SPEC §5 at its boundaries, through a mount: what the project has, what the view shows, whether the
//! change is held and why, and whether there is a backup.

use crate::harness::{Held, View, eventually, lines, mounted_scratch, with_changed_lines};

const TEXT_BYTES_MAX: usize = 5 << 20;
const UNREAD_DELETION_BYTES_MAX: usize = 16 << 10;
const HUNK_BYTES_MAX: usize = 16 << 10;

/// The content of a path; None: there is nothing.
type Content = Option<Vec<u8>>;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Became {
    Nothing,
    Landed(Backup),
    Held(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Backup {
    Yes,
    No,
}

const LANDED: Became = Became::Landed(Backup::Yes);
const LANDED_NEW: Became = Became::Landed(Backup::No);

/// A name that says the case, what was there, what is written (None: deleted), and what is to become of it.
type Case = (&'static str, Content, Content, Became);

fn text(text: impl AsRef<str>) -> Content {
    Some(text.as_ref().as_bytes().to_vec())
}

/// `modified` lines of `total` changed and `added` more at the end.
fn edit(total: usize, modified: usize, added: usize) -> (Content, Content) {
    let old = lines(total);
    (text(&old), text(with_changed_lines(&old, modified) + &"added\n".repeat(added)))
}

fn bytes(count: usize) -> Content {
    Some((0..count).map(|at| (at * 31 % 256) as u8).collect())
}

/// Text of exactly so many bytes, in lines of 64.
fn text_of(count: usize) -> Content {
    let line = [b"a".repeat(63), b"\n".to_vec()].concat();
    Some(line.into_iter().cycle().take(count).collect())
}

fn apply(view: &View<'_>, name: &str, new: &Content) {
    match new {
        Some(content) => view.write(name, content),
        None => std::fs::remove_file(view.path(name)).expect("delete in the view"),
    }
}

/// One mount for all cases, each on a path of its own.
#[track_caller]
fn check(cases: Vec<Case>) {
    let scratch = mounted_scratch!();
    for (name, old, ..) in &cases {
        if let Some(old) = old {
            scratch.write(name, old);
        }
    }
    // Many files in a moment are no burst here.
    let view = scratch.mounting().flag("--burst=1000").start();
    for (name, old, new, want) in &cases {
        apply(&view, name, new);
        assert_eq!(view.try_read(name).ok(), *new, "{name}: the view");
        let below = if matches!(want, Became::Held(_)) { old } else { new };
        if new.as_ref().is_some_and(|new| new.is_empty()) {
            // Nothing was written, so no close judges it: the release does, which the kernel sends after the close.
            eventually(&format!("{name}: the project"), || scratch.try_read(name).ok() == *below);
        }
        assert_eq!(scratch.try_read(name).ok(), *below, "{name}: the project");
    }
    let status = view.status();
    let held = Held::all_in(&status);
    let backed_up: Vec<_> =
        status["backups"].as_array().expect("backups").iter().map(|it| it["path"].clone()).collect();
    for (name, _, _, want) in &cases {
        let reason = held.iter().find(|held| held.path == *name).map(|held| held.reason.as_str());
        let backups = backed_up.iter().filter(|path| *path == name).count();
        let (want_reason, want_backups) = match want {
            Became::Nothing | Became::Landed(Backup::No) => (None, 0),
            Became::Landed(Backup::Yes) => (None, 1),
            Became::Held(reason) => (Some(*reason), 0),
        };
        assert_eq!((reason, backups), (want_reason, want_backups), "{name}: held and backups, in {status}");
    }
    let count = cases.iter().filter(|(.., want)| matches!(want, Became::Held(_))).count();
    assert_eq!(held.len(), count, "nothing else is held");
}

fn case(name: &'static str, (old, new): (Content, Content), want: Became) -> Case {
    (name, old, new, want)
}

#[test]
fn ten_changed_lines_land_whatever_the_share_and_eleven_do_not() {
    check(vec![
        case("ten-of-five", edit(5, 5, 0), LANDED),
        case("eleven-of-five", edit(5, 5, 1), Became::Held("size")),
        case("ten-of-one", edit(1, 1, 8), LANDED),
        case("eleven-of-28", edit(28, 5, 1), LANDED),
        case("eleven-of-27", edit(27, 5, 1), Became::Held("size")),
    ]);
}

#[test]
fn seventy_nine_changed_lines_land_in_a_long_file_and_eighty_do_not() {
    check(vec![
        case("79", edit(1000, 39, 1), LANDED),
        case("80", edit(1000, 40, 0), Became::Held("size")),
        case("79-added", edit(1000, 0, 79), LANDED),
        case("80-added", edit(1000, 0, 80), Became::Held("size")),
        case("79-removed", (text(lines(1000)), text(lines(921))), LANDED),
        case("80-removed", (text(lines(1000)), text(lines(920))), Became::Held("size")),
    ]);
}

#[test]
fn two_fifths_of_a_file_land_and_a_line_more_does_not() {
    check(vec![
        case("40-of-100", edit(100, 20, 0), LANDED),
        case("41-of-100", edit(100, 20, 1), Became::Held("size")),
        case("12-of-30", edit(30, 6, 0), LANDED),
        case("13-of-30", edit(30, 6, 1), Became::Held("size")),
        case("78-of-195", edit(195, 39, 0), LANDED),
        case("78-of-194", edit(194, 39, 0), Became::Held("size")),
    ]);
}

#[test]
fn an_empty_old_file_has_no_share_that_could_change() {
    check(vec![
        case("79-into-empty", (text(""), text(lines(79))), LANDED),
        case("80-into-empty", (text(""), text(lines(80))), Became::Held("size")),
    ]);
}

#[test]
fn a_new_file_lands_without_a_backup_however_large() {
    check(vec![
        case("empty", (None, text("")), LANDED_NEW),
        case("one-line", (None, text("x\n")), LANDED_NEW),
        case("many-lines", (None, text(lines(5000))), LANDED_NEW),
        case("binary", (None, bytes(50_000)), LANDED_NEW),
        case("large", (None, bytes(TEXT_BYTES_MAX + 1)), LANDED_NEW),
    ]);
}

#[test]
fn the_same_bytes_again_are_nothing() {
    check(vec![
        case("text", (text(lines(200)), text(lines(200))), Became::Nothing),
        case("empty", (text(""), text("")), Became::Nothing),
        case("binary", (bytes(9000), bytes(9000)), Became::Nothing),
        case("large", (bytes(TEXT_BYTES_MAX + 1), bytes(TEXT_BYTES_MAX + 1)), Became::Nothing),
    ]);
}

#[test]
fn the_same_bytes_again_leave_the_project_file_alone() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let inode = || std::os::unix::fs::MetadataExt::ino(&scratch.lower().join("a").metadata().expect("below"));
    let before = inode();
    let view = scratch.mount();
    view.write("a", lines(200));
    view.write_by_rename("a", lines(200));
    assert_eq!(inode(), before);
    assert_eq!(view.status()["counters"]["landed"], 1, "the temp file alone landed: {}", view.status());
    assert_eq!(view.status()["backups"], serde_json::json!([]));
}

fn is_overlay(dir: &std::path::Path) -> bool {
    /// `OVERLAYFS_SUPER_MAGIC` in the kernel's include/uapi/linux/magic.h.
    const OVERLAY: i64 = 0x794c_7630;
    rustix::fs::statfs(dir).expect("ask for the file system").f_type as i64 == OVERLAY
}

/// SPEC §4.2. No copy is made of it, so what is written to it later must not reach the project unseen.
#[test]
fn a_temporary_file_takes_the_place_of_what_it_is_a_small_edit_of() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(200));
    let (view, rewritten) = (scratch.mount(), lines(200).to_uppercase());
    let inode =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&scratch.lower().join(name).metadata().expect("below"));
    view.write("a.tmp~", lines(201));
    let temporary = inode("a.tmp~");
    let rename = || std::fs::rename(view.path("a.tmp~"), view.path("a")).expect("rename in the view");
    let still_open = std::fs::OpenOptions::new().write(true).open(view.path("a.tmp~"));
    rename();
    // Of a file of an overlay the kernel does not tell whether it is on disk: it is taken to be, and a copy lands.
    assert_eq!(inode("a") == temporary, !is_overlay(&scratch.lower()));
    assert!(!scratch.has("a.tmp~"));
    view.assert_landed("a", &lines(201));
    std::io::Write::write_all(&mut still_open.expect("open in the view"), rewritten.as_bytes()).expect("write");
    let held = view.held();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(scratch.read("a"), lines(201));
    view.cli(&["discard", "--all", "--yes"]).ok();
    view.assert_landed("a", &lines(201));
    view.write("a.tmp~", &rewritten);
    rename();
    view.assert_held("a", &rewritten, &lines(201));
    assert!(!scratch.has("a.tmp~"));
}

#[test]
fn what_is_no_text_or_too_large_for_one_lands_with_a_backup() {
    check(vec![
        case("binary-to-binary", (bytes(50_000), bytes(49_000)), LANDED),
        case("binary-to-text", (bytes(50_000), text(lines(500))), LANDED),
        case("not-utf-8", (Some(b"caf\xe9\n".repeat(100)), text(lines(500))), LANDED),
        case("large-to-text", (text_of(TEXT_BYTES_MAX + 1), text("x\n")), LANDED),
        case("largest-text-to-text", (text_of(TEXT_BYTES_MAX), text("x\n")), Became::Held("size")),
    ]);
}

#[test]
fn the_deletion_of_what_is_no_text_is_held_above_16_kib() {
    check(vec![
        case("16-kib", (bytes(UNREAD_DELETION_BYTES_MAX), None), LANDED),
        case("16-kib-and-one", (bytes(UNREAD_DELETION_BYTES_MAX + 1), None), Became::Held("size")),
        case("large", (text_of(TEXT_BYTES_MAX + 1), None), Became::Held("size")),
    ]);
}

#[test]
fn text_that_becomes_something_else_is_held() {
    let one_stray_byte = [lines(100).into_bytes(), vec![0xff]].concat();
    check(vec![
        case("stray-byte", (text(lines(100)), Some(one_stray_byte)), Became::Held("risk")),
        case("one-line-to-binary", (text("x\n"), bytes(300)), Became::Held("risk")),
        case("to-large", (text(lines(5)), text_of(TEXT_BYTES_MAX + 1)), Became::Held("risk")),
        case("to-largest-text", (text(lines(5)), text_of(TEXT_BYTES_MAX)), Became::Held("size")),
    ]);
}

#[test]
fn a_giant_line_is_held_when_it_is_much_of_the_file() {
    let giant = |letter: &str, count: usize| text(letter.repeat(count) + "\n");
    let among = |letter: &str, count: usize, rest: usize| text(letter.repeat(count) + "\n" + &"rest\n".repeat(rest));
    check(vec![
        case("one-byte-of-a-giant", (giant("a", 40_000), text("a".repeat(39_999) + "b\n")), LANDED),
        case("a-giant", (giant("a", 40_000), giant("b", 40_000)), Became::Held("bytes")),
        case("half-a-limit", (giant("a", HUNK_BYTES_MAX / 4), giant("b", HUNK_BYTES_MAX / 4)), LANDED),
        case("little-of-the-file", (among("a", 20_000, 40_000), among("b", 20_000, 40_000)), LANDED),
        case(
            "added",
            (text(lines(10)), text(lines(10) + &"b".repeat(HUNK_BYTES_MAX + 1) + "\n")),
            Became::Held("bytes"),
        ),
    ]);
}

#[test]
fn the_deletion_of_text_counts_all_its_lines() {
    check(vec![
        case("ten-lines", (text(lines(10)), None), LANDED),
        case("eleven-lines", (text(lines(11)), None), Became::Held("size")),
        case("empty", (text(""), None), LANDED),
    ]);
}

#[test]
fn what_did_not_exist_before_the_session_may_be_deleted() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    for (name, content) in [("text", text(lines(1000))), ("binary", bytes(UNREAD_DELETION_BYTES_MAX + 1))] {
        apply(&view, name, &content);
        assert_eq!(scratch.try_read(name).ok(), content, "{name} below");
        apply(&view, name, &None);
        assert!(!view.has(name) && !scratch.has(name), "{name} is still there");
    }
    assert_eq!(view.held(), []);
}

#[test]
fn a_carriage_return_ends_no_line() {
    let old = text("a\r".repeat(500) + "\n");
    check(vec![case("cr-only", (old, text("b\r".repeat(500) + "\n")), LANDED)]);
}

/// The file's first `changed` lines modified under a mount made as `mounting` says; the id's reason, if it is held.
fn reason_for(view: &View<'_>, path: &str, total: usize, modified: usize, added: usize) -> Option<String> {
    let (_, Some(new)) = edit(total, modified, added) else { unreachable!("both sides are text") };
    view.write(path, new);
    view.held().into_iter().find(|held| held.path == path).map(|held| held.reason)
}

#[test]
fn thresholds_are_set_by_variables_flags_and_the_project_in_this_order() {
    // Variables, flags, .fettle.toml; then total, modified and added lines of an edit, and whether it is held.
    type Row =
        (&'static [(&'static str, &'static str)], &'static [&'static str], &'static str, (usize, usize, usize), bool);
    let rows: &[Row] = &[
        (&[("FETTLE_WRITE_FLOOR", "2")], &[], "", (5, 1, 0), false),
        (&[("FETTLE_WRITE_FLOOR", "2")], &[], "", (5, 1, 1), true),
        (&[("FETTLE_WRITE_CEIL", "20")], &[], "", (1000, 9, 1), false),
        (&[("FETTLE_WRITE_CEIL", "20")], &[], "", (1000, 10, 0), true),
        (&[("FETTLE_WRITE_RATIO", "0.2")], &[], "", (100, 10, 0), false),
        (&[("FETTLE_WRITE_RATIO", "0.2")], &[], "", (100, 10, 1), true),
        (&[], &["--floor=30"], "", (5, 5, 20), false),
        (&[], &["--ceil=200", "--ratio=1"], "", (100, 40, 0), false),
        (&[], &["--ceil=12"], "", (1000, 6, 0), true),
        (&[("FETTLE_WRITE_CEIL", "12")], &["--ceil=100"], "", (1000, 6, 0), false),
        (&[("FETTLE_WRITE_CEIL", "200")], &["--ceil=12"], "", (1000, 6, 0), true),
        (&[], &[], "floor = 2\n", (5, 1, 1), true),
        (&[], &[], "ceil = 12\n", (1000, 6, 0), true),
        (&[("FETTLE_WRITE_CEIL", "100")], &[], "ceil = 12\n", (1000, 6, 0), false),
        (&[], &[], "floor = 70\n", (5, 5, 1), true),
        (&[], &[], "ceil = 1000\nratio = 1.0\n", (100, 45, 0), true),
    ];
    for (variables, flags, toml, (total, modified, added), is_held) in rows {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(*total));
        if !toml.is_empty() {
            scratch.write(".fettle.toml", toml);
        }
        let mounting = variables.iter().fold(scratch.mounting(), |mounting, (name, value)| mounting.env(name, value));
        let view = flags.iter().fold(mounting, |mounting, flag| mounting.flag(*flag)).start();
        let reason = reason_for(&view, "a", *total, *modified, *added);
        let want = is_held.then(|| "size".to_owned());
        assert_eq!(reason, want, "{variables:?} {flags:?} {toml:?}: {modified} modified, {added} added of {total}");
    }
}

#[test]
fn mount_and_status_say_which_settings_of_the_project_wait_for_trust() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "floor = 70\nceil = 20000\nratio = 0.3\n");
    let view = scratch.mount();
    let said = &view.mount_output.stderr;
    for (name, is_named) in [("floor = 70", true), ("ceil = 20000", true), ("ratio", false)] {
        assert_eq!(said.contains(name), is_named, "mount about {name}: {said}");
        let status = view.cli(&["status"]).ok();
        assert_eq!((status.stdout + &status.stderr).contains(name), is_named, "status about {name}");
    }
}

#[test]
fn a_threshold_out_of_range_is_an_error_that_names_it() {
    let scratch = mounted_scratch!();
    for (name, value) in [
        ("FETTLE_WRITE_FLOOR", "-1"),
        ("FETTLE_WRITE_FLOOR", "80"),
        ("FETTLE_WRITE_CEIL", "1000001"),
        ("FETTLE_WRITE_CEIL", "many"),
        ("FETTLE_WRITE_RATIO", "1.01"),
        ("FETTLE_WRITE_RATIO", "nan"),
        ("FETTLE_WRITE_STAGE_TTL", "soon"),
        ("FETTLE_WRITE_WINDOW", "2 weeks ago"),
    ] {
        let refused = scratch.mounting().env(name, value).run();
        let said = refused.stdout.clone() + &refused.stderr;
        assert_ne!(refused.status, 0, "{name}={value} was taken");
        let names_it = [name, "floor"].iter().any(|word| said.contains(word));
        assert!(names_it, "{name}={value}: {said}");
    }
    for toml in ["floor = -1\n", "ratio = 2\n", "florr = 3\n", "ceil = \"x\"\n"] {
        scratch.write(".fettle.toml", toml);
        let refused = scratch.mounting().run();
        let said = refused.stdout.clone() + &refused.stderr;
        let key = toml.split(' ').next().expect("a key");
        assert!(refused.status != 0 && said.contains(key) && said.contains(".fettle.toml"), "{toml:?}: {said}");
    }
}
