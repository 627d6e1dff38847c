use super::outcome::{render, render_acted};
use super::terminal::{Bytes, Paint, Style, escape_content, escape_name};
use super::text::Text;
use super::*;
use crate::model::{ChangeId, ChangeKind, Digest, Reason, RelPath};
use crate::protocol::tests::held;
use crate::protocol::*;

fn style(paint: Paint, bytes: Bytes) -> Style {
    Style { paint, bytes }
}

fn drawn(draw: impl FnOnce(&mut Text)) -> String {
    let style = style(Paint::Plain, Bytes::Escaped);
    let mut text = Text::at(&style, "2026-03-12T14:35:22Z".parse().unwrap());
    draw(&mut text);
    String::from_utf8(text.into_bytes()).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

fn counts(insertions: u64, deletions: u64, ratio: f64) -> Option<Counts> {
    Some(Counts { insertions, deletions, ratio })
}

fn status(held: Vec<Held>) -> Status {
    Status {
        schema: Status::SCHEMA.into(),
        project: "/home/u/p".into(),
        mountpoint: Some("/home/u/p".into()),
        mounted: true,
        pid: Some(41),
        session: None,
        seq: 1,
        held,
        external: vec![],
        backups: vec![],
        writers: vec![],
        runs: vec![],
        counters: Counters { landed: 12, held: 1, denied: 0 },
        requests: Default::default(),
        passthrough: true,
        rings: false,
        readonly: None,
        notices: vec![],
        next: None,
    }
}

#[test]
fn each_outcome_has_the_wording_of_the_contract() {
    let main = || path("src/main.rs");
    let backup = || Some("main.rs.20260312_143022_471".to_owned());
    let id = || ChangeId::parse("a1b2c3d4");
    let landed = |action| Outcome {
        size: Some(2104),
        lines: Some(45),
        counts: counts(3, 2, 0.1),
        backup: backup(),
        ..Outcome::new(action, main())
    };
    let backup_line = "  backup: main.rs.20260312_143022_471\n";
    for (outcome, want) in [
        (landed(Action::Landed), format!("fettlefs: Wrote src/main.rs (2.1KB, 45 lines, +3 -2 ~2)\n{backup_line}")),
        (landed(Action::Applied), format!("fettlefs: Applied src/main.rs (2.1KB, 45 lines, +3 -2 ~2)\n{backup_line}")),
        (
            landed(Action::Merged),
            format!(
                "fettlefs: Applied src/main.rs (merged with external changes, 2.1KB, 45 lines, +3 -2 ~2)\n{backup_line}"
            ),
        ),
        (
            Outcome {
                size: Some(5),
                lines: Some(1),
                note: Some(Note::NewFile),
                ..Outcome::new(Action::Landed, main())
            },
            "fettlefs: Wrote src/main.rs (5B, 1 line) [new file]\n".to_owned(),
        ),
        (
            Outcome { size: Some(1024), note: Some(Note::Binary), ..Outcome::new(Action::Landed, main()) },
            "fettlefs: Wrote src/main.rs (1.0KB) [diff skipped: binary]\n".to_owned(),
        ),
        (
            Outcome {
                id: id(),
                counts: counts(47, 32, 0.62),
                diff: Some(DiffText(b"+a\n".to_vec())),
                ..Outcome::new(Action::Held, main())
            },
            "fettlefs: Held src/main.rs (id a1b2c3d4, +47 -32, 62% of file)\n+a\n\
             To apply: fettlefs confirm a1b2c3d4\nTo discard: fettlefs discard a1b2c3d4\n"
                .to_owned(),
        ),
        (
            Outcome::new(Action::Unchanged, main()),
            "fettlefs: No changes to src/main.rs (content identical)\n".to_owned(),
        ),
        (
            Outcome {
                id: id(),
                backup: backup(),
                new_id: ChangeId::parse("beef"),
                ..Outcome::new(Action::Discarded, main())
            },
            format!("fettlefs: Discarded src/main.rs (id a1b2c3d4)\n{backup_line}  the rest stays held: beef\n"),
        ),
        (
            Outcome { backup: backup(), ..Outcome::new(Action::Restored, main()) },
            format!("fettlefs: Restored src/main.rs from backup\n{backup_line}"),
        ),
        (
            Outcome {
                kind: Some(ChangeKind::Delete),
                counts: counts(0, 90, 1.0),
                ..Outcome::new(Action::Applied, main())
            },
            "fettlefs: Applied src/main.rs (deleted, +0 -90 ~0)\n".to_owned(),
        ),
    ] {
        assert_eq!(drawn(|text| render(&outcome, text)), want);
    }
}

#[test]
fn a_dry_run_says_what_would_be() {
    let outcomes = vec![Outcome { backup: Some("b".into()), ..Outcome::new(Action::Applied, path("a")) }];
    let acted = Acted { outcomes, dry_run: true, ..Acted::default() };
    assert_eq!(drawn(|text| render_acted(&acted, text)), "fettlefs: Would apply a\n");
    assert_eq!(drawn(|text| render_acted(&Acted::default(), text)), "fettlefs: Nothing is held\n");
}

#[test]
fn a_held_diff_is_cut_after_two_hundred_lines_and_the_rest_counted() {
    let diff = "+x\n".repeat(203);
    let outcome = Outcome { diff: Some(DiffText(diff.into_bytes())), ..Outcome::new(Action::Held, path("a")) };
    let shown = drawn(|text| render(&outcome, text));
    assert_eq!(shown.matches("+x\n").count(), 200);
    assert!(shown.ends_with("... 3 more lines of diff\n"), "{shown}");
}

#[test]
fn status_shows_what_is_held_and_what_to_do() {
    let expired = Held { expired: true, reason: Reason::Stale, kind: ChangeKind::Delete, ..held("beef0000", "b") };
    let mut two = status(vec![held("a1b2c3d4", "src/a.rs"), expired]);
    two.external.push(External {
        path: path("Cargo.toml"),
        kind: ExternalKind::Modified,
        hint: External::HINT.into(),
        held: None,
    });
    two.writers.extend([99, 0].map(|pid| WritingNow { path: path("src/b.rs"), pid }));
    assert_eq!(
        drawn(|text| super::status::render(&two, text)),
        "fettlefs: /home/u/p mounted (pid 41); 12 landed, 2 held\n\
         \n\
         Held for review:\n\
         \x20 a1b2c3d4  src/a.rs  +47 -32  62%  size  5m ago\n\
         \x20 beef0000  b         +47 -32  62%  stale  5m ago  [delete]  [expired]\n\
         \n\
         Changed outside:\n\
         \x20 modified  Cargo.toml  modified externally since the last operation\n\
         \n\
         Still being written:\n\
         \x20 src/b.rs  by pid 99\n\
         \x20 src/b.rs  not judged yet; it is kept\n\
         \n\
         \x20 fettlefs diff ID            see what would change\n\
         \x20 fettlefs confirm ID         land it in the project\n\
         \x20 fettlefs discard ID         drop it from the view\n"
    );
    let unmounted = Status { mounted: false, mountpoint: None, pid: None, ..status(vec![]) };
    assert_eq!(
        drawn(|text| super::status::render(&unmounted, text)),
        "fettlefs: /home/u/p is not mounted; 0 held\n\nNothing is held.\n"
    );
}

#[test]
fn show_tells_why_and_who_before_the_diff() {
    let change = ChangeDiff { held: held("a1b2c3d4", "src/a.rs"), text: DiffText(b"diff\n".to_vec()) };
    assert_eq!(
        drawn(|text| super::show::render(&change, text)),
        "change a1b2c3d4\nPath:    src/a.rs\nKind:    modify, +47 -32 (62% of 127 lines)\nReason:  size\n\
         Writer:  pid 4711, uid 1000, /usr/bin/python3\nOpened:  sh -c x > a\n\
         Held:    2026-03-12T14:30:22.471Z (5m ago)\n\ndiff\n\n"
    );
}

#[test]
fn a_change_under_several_names_tells_all_of_them() {
    let also = || Also(vec![path("u"), path("d/v")]);
    let row = Held { also: also(), ..held("a1b2c3d4", "a") };
    assert_eq!(
        drawn(|text| super::held::render_table(&[row], text)),
        "  a1b2c3d4  a  +47 -32  62%  size  5m ago\n            also: u, d/v\n"
    );
    let outcome = Outcome { also: also(), backup: Some("b".into()), ..Outcome::new(Action::Applied, path("a")) };
    assert_eq!(
        drawn(|text| super::outcome::render(&outcome, text)),
        "fettlefs: Applied a\n  also: u, d/v\n  backup: b\n"
    );
}

#[test]
fn unmount_lists_what_stays_held() {
    let reply = UnmountReply { held: vec![held("a1b2c3d4", "a")], ..Default::default() };
    assert_eq!(
        drawn(|text| super::unmount::render(&reply, text)),
        "fettlefs: Unmounted\n\nHeld for review, also without a mount:\n  a1b2c3d4  a  +47 -32  62%  size  5m ago\n"
    );
    let told = drawn(|text| super::unmount::render(&UnmountReply { held_count: 4, ..reply }, text));
    assert!(told.ends_with("  size  5m ago\n  and 3 more: fettlefs status\n"), "{told}");
}

#[test]
fn a_log_line_and_a_backup_line_fit_on_a_line() {
    let event = Event {
        path: Some(path("a")),
        id: Some("a1b2c3d4".into()),
        insertions: Some(1),
        deletions: Some(2),
        reason: Some(Reason::Rule),
        written_by: Some(Program { pid: 7, uid: 0, exe: Some("/bin/sh".into()), cmdline: Some("sh".into()) }),
        ..Event::new(1, "2026-03-12T14:30:22.5Z".parse().unwrap(), EventName::WriteHeld)
    };
    assert_eq!(
        drawn(|text| super::log::render(&event, text)),
        "2026-03-12 14:30:22Z  write held         a1b2c3d4  a  +1 -2  rule  by /bin/sh\n"
    );
    for (deletions, want) in [(Some(0), "a  deleted\n"), (Some(3), "a  +0 -3  deleted\n"), (None, "a  deleted\n")] {
        let event = Event {
            path: Some(path("a")),
            insertions: deletions.map(|_| 0),
            deletions,
            message: Some("[deleted]".into()),
            ..Event::new(1, "2026-03-12T14:30:22.5Z".parse().unwrap(), EventName::WriteLanded)
        };
        let line = drawn(|text| super::log::render(&event, text));
        assert_eq!(line, format!("2026-03-12 14:30:22Z  write landed       {want}"));
    }
    let backup = Backup {
        name: "a.1".into(),
        path: path("a"),
        kind: crate::model::BackupKind::Landed,
        size: 2104,
        sha256: Digest::of(b""),
        created: "2026-03-12T11:30:22Z".parse().unwrap(),
        by: None,
    };
    assert_eq!(drawn(|text| super::backups::render(&[backup], text)), "a.1  a  2.1KB  landed  3h ago\n");
}

fn rendered(body: &ErrorBody, style: &Style) -> String {
    let mut text = Text::new(style);
    failure::render(body, &mut text);
    String::from_utf8(text.into_bytes()).unwrap()
}

#[test]
fn an_error_comes_with_its_hunks_and_with_what_to_do() {
    let conflict = ErrorBody {
        detail: Some("@@ -1 +1 @@\n-a\n+b".into()),
        ..ErrorBody::new(ErrorCode::Conflict, "src/a.rs\n was edited").about("a1b2c3d4")
    };
    let style = style(Paint::Plain, Bytes::Escaped);
    assert_eq!(
        rendered(&conflict, &style),
        "fettlefs: src/a.rs\\n was edited\n@@ -1 +1 @@\n-a\n+b\n  To land it anyway, keeping what it replaces as a backup: confirm it with --force\n"
    );
}

#[test]
fn the_hunks_of_an_error_are_cut_as_a_held_diff_is() {
    let detail = Some("+x\n".repeat(203).into());
    let conflict = ErrorBody { detail, ..ErrorBody::new(ErrorCode::Conflict, "a was edited") };
    let style = style(Paint::Plain, Bytes::Escaped);
    let shown = rendered(&conflict, &style);
    assert_eq!(shown.matches("+x\n").count(), 200);
    assert!(shown.ends_with("... 3 more lines of diff\n"), "{shown}");
}

#[test]
fn nothing_a_terminal_would_obey_gets_through() {
    for (bytes, name, content) in [
        (&b"a\tb\nc"[..], "a\\tb\\nc", "a\tb\nc"),
        (b"\x1b[31m\r", "\\u{1b}[31m\\r", "\\u{1b}[31m\\r"),
        (b"\xff\x80", "\\xff\\x80", "\\xff\\x80"),
        ("\u{9b}2J".as_bytes(), "\\u{9b}2J", "\\u{9b}2J"),
        ("\u{202e}gnp".as_bytes(), "\\u{202e}gnp", "\\u{202e}gnp"),
        ("\u{200b}é漢".as_bytes(), "\\u{200b}é漢", "\\u{200b}é漢"),
        ("a\u{2028}b".as_bytes(), "a\\u{2028}b", "a\\u{2028}b"),
    ] {
        assert_eq!(escape_name(bytes), name);
        assert_eq!(escape_content(bytes), content);
    }
}

#[test]
fn nothing_that_is_shown_as_nothing_gets_through() {
    let hidden = "\u{ad}\u{34f}\u{115f}\u{180b}\u{180e}\u{2062}\u{206a}\u{3164}\u{fe0f}\u{ffa0}\u{fff9}\u{1bca0}\u{1d173}\
                  \u{e0101}\u{e01ef}";
    for character in hidden.chars() {
        let (text, spelled) = (format!("a{character}b"), format!("a{}b", character.escape_default()));
        assert_eq!((escape_name(text.as_bytes()), escape_content(text.as_bytes())), (spelled.clone(), spelled));
    }
}

#[test]
fn json_on_a_terminal_says_the_same_without_anything_to_obey() {
    let value = serde_json::json!({"path": "a\u{9b}2J\u{7f}\u{202e}\u{e0101}é\t\n\"\\"});
    let line = format!("{value}\n").into_bytes();
    assert_eq!(style(Paint::Plain, Bytes::Raw).json(line.clone()), line);
    let shown = String::from_utf8(style(Paint::Plain, Bytes::Escaped).json(line)).unwrap();
    assert_eq!(shown, "{\"path\":\"a\\u009b2J\\u007f\\u202e\\udb40\\udd01é\\t\\n\\\"\\\\\"}\n");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
}

#[test]
fn a_pipe_gets_the_bytes_as_they_are() {
    let style = style(Paint::Plain, Bytes::Raw);
    let mut text = Text::new(&style);
    text.name(b"a\x1b\xff\n").diff(b"diff --git a/x b/x\n@@ -1 +1 @@\n-\r\n+\xff");
    assert_eq!(text.into_bytes(), b"a\x1b\xff\ndiff --git a/x b/x\n@@ -1 +1 @@\n-\r\n+\xff");
}

#[test]
fn colours_end_before_the_line_does_and_content_keeps_none_of_its_own() {
    let style = style(Paint::Colored, Bytes::Escaped);
    let mut text = Text::new(&style);
    text.diff(b"diff --git a/x b/x\n--- a/x\n@@ -1 +1 @@\n--- x\n+\x1b[0m\n same\n");
    assert_eq!(
        String::from_utf8(text.into_bytes()).unwrap(),
        "\x1b[1mdiff --git a/x b/x\x1b[0m\n\x1b[1m--- a/x\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m--- x\x1b[0m\n\
         \x1b[32m+\\u{1b}[0m\x1b[0m\n same\n"
    );
}

#[test]
fn numbers_read_as_a_person_writes_them() {
    for (bytes, want) in [(0, "0B"), (1023, "1023B"), (2104, "2.1KB"), (1_048_575, "1.0MB"), (5 << 30, "5.0GB")] {
        assert_eq!(super::words::size(bytes), want);
    }
    for (ratio, want) in [(0.0, "0%"), (0.001, "<1%"), (0.62, "62%"), (3.5, "350%")] {
        assert_eq!(super::words::percent(ratio), want);
    }
}

fn parsed(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(line.split(' '))
}

#[test]
fn the_grammar_of_arguments_is_sound() {
    <Arguments as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn global_flags_stand_before_or_after_the_subcommand() {
    for line in ["fettlefs -C /p --json status", "fettlefs status -C /p --json", "fettlefs -C /p diff a --json"] {
        let global = parsed(line).expect(line).global;
        assert_eq!((global.directory, global.json), (Some("/p".into()), true), "{line}");
    }
}

#[test]
fn mount_flags_become_typed_settings() {
    let line = "fettlefs mount p view -f -o ro,suid -o x-a=\"b,c\",dev --floor 3 --ceil 9 --ratio 0.5 --ttl 10m --window session \
                --burst 7 --approve owner --on-hold fail";
    let Command::Mount(arguments) = parsed(line).unwrap().command else { panic!("not mount") };
    let desk = Desk::new(Some("/d".into()), desk::Format::Json);
    let want = mount::MountArgs {
        project: "/d/p".into(),
        mountpoint: Some("/d/view".into()),
        audience: mount::Audience::Everyone,
        ground: mount::Ground::Foreground,
        options: ["ro", "suid", "x-a=\"b,c\"", "dev"].map(str::to_owned).to_vec(),
        settings: mount::SettingFlags {
            floor: Some(3),
            ceil: Some(9),
            ratio: Some(0.5),
            ttl: Some("10m".to_owned()),
            window: Some("session".to_owned()),
            burst: Some(7),
            approve: Some(mount::Approve::Owner),
            on_hold: Some(mount::OnHold::Fail),
        },
    };
    assert_eq!(mount::typed(arguments, &desk).unwrap(), want);
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for line in [
        "fettlefs",
        "fettlefs explode",
        "fettlefs confirm",
        "fettlefs confirm a1b2 --all",
        "fettlefs confirm a1b2 --hunk 0",
        "fettlefs unmount --confirm-all --discard-all",
        "fettlefs mount --ratio 1.5",
        "fettlefs mount --ratio nan",
        "fettlefs mount --ceil 1000001",
        "fettlefs mount --ttl 5y",
        "fettlefs mount --approve me",
        "fettlefs show",
    ] {
        assert!(parsed(line).is_err(), "{line}");
    }
}

#[test]
fn requests_of_the_kernel_are_shown_the_most_frequent_first() {
    let requests = [("getattr", 7), ("lookup", 12), ("flush", 7)].map(|(name, count)| (name.to_owned(), count));
    let status = Status { requests: requests.into(), ..status(vec![]) };
    assert_eq!(
        drawn(|text| super::status::render_requests(&status, text)),
        "\nRequests of the kernel:\n         12  lookup\n          7  flush\n          7  getattr\n"
    );
}
