use super::*;
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, Reason, RelPath};
use serde_json::json;
use std::convert::Infallible;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

fn time() -> jiff::Timestamp {
    "2026-03-12T14:30:22.471Z".parse().unwrap()
}

/// A change as `status` tells it; the command line's tests draw it.
pub(crate) fn held(id: &str, name: &str) -> Held {
    Held {
        id: ChangeId::parse(id).unwrap(),
        path: path(name),
        kind: ChangeKind::Modify,
        also: Also::default(),
        reason: Reason::Size,
        detail: None,
        looks: Vec::new(),
        insertions: 47,
        deletions: 32,
        old_lines: 127,
        ratio: 0.62,
        hunks: 3,
        base_sha256: Some(Digest::of(b"old")),
        new_sha256: None,
        externally_modified: false,
        expired: false,
        operation: None,
        writer: Some(Writer { pid: 4711, exe: Some("/usr/bin/python3".into()), uid: 1000 }),
        session: Some("18f-29".into()),
        since_session: Some("18f-29".into()),
        opened_by: Some(Program {
            pid: 4711,
            uid: 1000,
            exe: Some("/bin/sh".into()),
            cmdline: Some("sh -c x > a".into()),
        }),
        written_by: None,
        created: time(),
        in_head: false,
    }
}

fn status() -> Status {
    Status {
        schema: Status::SCHEMA.into(),
        project: "/home/u/p".into(),
        mountpoint: Some("/home/u/p".into()),
        mounted: true,
        pid: Some(41),
        session: Some("s1".into()),
        seq: 412,
        held: vec![held("a1b2c3d4", "src/a.rs"), held("b1b2c3d4", "src/b.rs")],
        external: vec![External {
            path: path("Cargo.toml"),
            kind: ExternalKind::Modified,
            hint: External::HINT.into(),
            held: None,
        }],
        backups: vec![Backup {
            name: "main.rs.20260312_143022_471".into(),
            path: path("src/main.rs"),
            kind: BackupKind::RolledBack,
            size: 2104,
            sha256: Digest::of(b"x"),
            created: time(),
            by: None,
        }],
        runs: vec![],
        writers: vec![WritingNow { path: path("src/b.rs"), pid: 99 }],
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
fn a_request_survives_its_own_line() {
    let odd = RelPath::parse(b"src/\xff.rs").unwrap();
    for request in [
        Request::new(Op::Status),
        Request {
            targets: vec![
                Target::id("a1b2".into()),
                Target { id: Some("x".into()), path: Some(odd.clone()), glob: Some("src/*.rs".into()) },
                Target { path: Some(RelPath::root()), ..Target::default() },
            ],
            hunks: vec![1, 3],
            force: true,
            wait: true,
            renew: true,
            dry_run: true,
            ..Request::new(Op::Confirm)
        },
        Request { name: Some("a".into()), path: Some(path("a")), to: Some(odd), ..Request::new(Op::Rollback) },
        Request { held: HeldAtUnmount::Confirm, timeout_seconds: Some(3), force: true, ..Request::new(Op::Unmount) },
        Request { offset: 7, limit: Some(9), session: Some("s".into()), ..Request::new(Op::Log) },
        Request { all: true, binary: true, ..Request::new(Op::Diff) },
        Request { path: Some(path("a")), reset: true, session: Some("s".into()), ..Request::new(Op::Read) },
        Request { files: parse_patch(PATCH.as_bytes()).unwrap(), dry_run: true, ..Request::new(Op::Patch) },
        Request {
            phase: Some(CheckPhase::Failed),
            name: Some("cargo test".into()),
            tested: Some("412-00".into()),
            status: Some(101),
            ..Request::new(Op::Check)
        },
    ] {
        assert_eq!(Request::parse(&request.to_line().unwrap()), Ok(request));
    }
}

#[test]
fn ids_and_paths_are_read_as_targets() {
    let request = Request::parse(br#"{"v":1,"op":"discard","ids":["a1b2c3d4"],"paths":["src/a.rs","*.rs"]}"#).unwrap();
    assert_eq!(
        request.targets,
        [
            Target::id("a1b2c3d4".into()),
            Target { path: Some(path("src/a.rs")), ..Target::default() },
            Target { path: Some(path("*.rs")), glob: Some("*.rs".into()), id: None },
        ]
    );
}

#[test]
fn what_is_no_request_is_refused_with_its_reason() {
    for (line, code, message) in [
        ("", ErrorCode::BadRequest, "the request is not a JSON object: EOF"),
        ("[1]", ErrorCode::BadRequest, "not a JSON object"),
        (r#"{"v":1,"op":"status"} {"#, ErrorCode::BadRequest, "trailing characters"),
        (r#"{"op":"status"}"#, ErrorCode::BadRequest, "the request has no `v`"),
        (r#"{"v":2,"op":"status","new":1}"#, ErrorCode::UnsupportedVersion, "protocol version 2 is not spoken"),
        (r#"{"v":"1","op":"status"}"#, ErrorCode::UnsupportedVersion, "version \"1\" is not"),
        (r#"{"v":1}"#, ErrorCode::BadRequest, "no `op`"),
        (r#"{"v":1,"op":"explode"}"#, ErrorCode::BadRequest, "unknown operation \"explode\""),
        (r#"{"v":1,"op":7}"#, ErrorCode::BadRequest, "unknown operation 7"),
        (r#"{"v":1,"op":"status","idz":[]}"#, ErrorCode::BadRequest, "`status` takes no field \"idz\""),
        (r#"{"v":1,"op":"flush","dry_run":true}"#, ErrorCode::BadRequest, "`flush` takes no field \"dry_run\""),
        (r#"{"v":1,"op":"confirm","all":"yes"}"#, ErrorCode::BadRequest, "invalid type: string \"yes\""),
        (r#"{"v":1,"op":"confirm","hunks":[0]}"#, ErrorCode::BadRequest, "hunks are counted from 1"),
        (r#"{"v":1,"op":"confirm","paths":["a"],"hunks":[]}"#, ErrorCode::BadRequest, "`hunks` is empty"),
        (r#"{"v":1,"op":"discard","paths":["a"],"hunks":[]}"#, ErrorCode::BadRequest, "`hunks` is empty"),
        (r#"{"v":1,"op":"confirm","args":[{}]}"#, ErrorCode::BadRequest, "an element of `args` is empty"),
        (r#"{"v":1,"op":"confirm","args":[{"raw":1}]}"#, ErrorCode::BadRequest, "unknown field `raw`"),
        (r#"{"v":1,"op":"confirm","args":[["a","b"]]}"#, ErrorCode::BadRequest, "sequence, expected an object"),
        (r#"{"v":1,"op":"unmount","held":{"confirm":null}}"#, ErrorCode::BadRequest, "map, expected a string"),
        (r#"{"v":1,"op":"check","phase":{"passed":null}}"#, ErrorCode::BadRequest, "map, expected a string"),
        (r#"{"v":1,"op":"confirm","paths":["a",""]}"#, ErrorCode::BadRequest, "an element of `paths` is empty"),
        (r#"{"v":1,"op":"confirm","paths":["../x"]}"#, ErrorCode::BadRequest, "paths \"../x\": path has"),
        (r#"{"v":1,"op":"confirm","paths":["/x"]}"#, ErrorCode::BadRequest, "path is absolute"),
        (r#"{"v":1,"op":"rollback","path_b64":"!"}"#, ErrorCode::BadRequest, "a field has a wrong value"),
    ] {
        let err = Request::parse(line.as_bytes()).expect_err(line);
        assert_eq!(err.code(), code, "{line}");
        assert!(err.to_string().contains(message), "{line}: {err}");
    }
}

#[test]
fn what_was_done_is_told_as_far_as_it_fits_and_the_rest_counted() {
    let all: Vec<Outcome> =
        (0..100_000).map(|number| Outcome::new(Action::Applied, path(&format!("d/{number:0>90}")))).collect();
    let count = all.len() as u64;
    let held = vec![held("a1b2c3d4", "a"); 6_000];
    let acted = || Acted { outcomes: all.clone(), ..Acted::default() };
    for reply in [
        Reply::Confirm(acted()),
        Reply::Discard(acted()),
        Reply::Rollback(acted()),
        Reply::Undo(acted()),
        Reply::Flush(FlushReply { outcomes: all.clone(), ..Default::default() }),
        Reply::Unmount(UnmountReply { outcomes: all.clone(), held, ..Default::default() }),
    ] {
        let line = Response::done(reply).to_line();
        assert!(line.len() <= REPLY_BYTES_MAX);
        let Response::Done(reply) = Response::parse(&line).unwrap() else { panic!("refused") };
        let (told, more) = match *reply {
            Reply::Confirm(acted) | Reply::Discard(acted) => (acted.outcomes, acted.more),
            Reply::Rollback(acted) | Reply::Undo(acted) => (acted.outcomes, acted.more),
            Reply::Flush(reply) => (reply.outcomes, reply.more),
            Reply::Unmount(reply) => (reply.outcomes, reply.more),
            other => panic!("{other:?}"),
        };
        assert_eq!(told.len() as u64 + more, count);
        assert_eq!(told, all[..told.len()], "the first of them");
    }
}

#[test]
fn a_request_of_more_than_64_kib_is_neither_read_nor_sent() {
    let err = Request::parse(&vec![b' '; REQUEST_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(err.code(), ErrorCode::TooLarge);
    let request = Request { name: Some("n".repeat(REQUEST_BYTES_MAX)), ..Request::new(Op::Rollback) };
    assert!(matches!(request.to_line(), Err(ProtocolError::TooLarge(_))));
}

#[test]
fn deep_nesting_is_refused_rather_than_followed() {
    let line = format!(r#"{{"v":1,"op":"confirm","ids":{}"#, "[".repeat(60_000));
    assert_eq!(Request::parse(line.as_bytes()).unwrap_err().code(), ErrorCode::BadRequest);
}

#[test]
fn every_error_code_has_its_spelling_and_exit_status() {
    for (code, name, exit) in [
        (ErrorCode::UnknownId, "unknown_id", 4),
        (ErrorCode::UnknownPath, "unknown_path", 4),
        (ErrorCode::UnknownBackup, "unknown_backup", 4),
        (ErrorCode::Ambiguous, "ambiguous", 5),
        (ErrorCode::Superseded, "superseded", 5),
        (ErrorCode::Expired, "expired", 5),
        (ErrorCode::AlreadyApplied, "already_applied", 5),
        (ErrorCode::AlreadyDiscarded, "already_discarded", 5),
        (ErrorCode::Conflict, "conflict", 5),
        (ErrorCode::Busy, "busy", 5),
        (ErrorCode::NotPermitted, "not_permitted", 6),
        (ErrorCode::NotMounted, "not_mounted", 3),
        (ErrorCode::BadRequest, "bad_request", 2),
        (ErrorCode::TooLarge, "too_large", 1),
        (ErrorCode::UnsupportedVersion, "unsupported_version", 1),
        (ErrorCode::WriteFailed, "write_failed", 1),
        (ErrorCode::Io, "io", 1),
        (ErrorCode::HookDenied, "hook_denied", 6),
    ] {
        assert_eq!(serde_json::to_value(code).unwrap(), name);
        assert_eq!(code.exit() as u8, exit, "{name}");
    }
}

#[test]
fn status_has_the_field_names_of_the_contract() {
    let value = serde_json::to_value(status()).unwrap();
    assert_eq!(
        value["held"][0],
        json!({"id":"a1b2c3d4","path":"src/a.rs","kind":"modify","also":[],"reason":"size","insertions":47,
            "deletions":32,"old_lines":127,"ratio":0.62,"hunks":3,"base_sha256":Digest::of(b"old").to_string(),
            "new_sha256":null,"externally_modified":false,"expired":false,"operation":null,
            "writer":{"pid":4711,"exe":"/usr/bin/python3","uid":1000},"session": "18f-29", "since_session": "18f-29",
            "opened_by":{"pid":4711,"uid":1000,"exe":"/bin/sh","cmdline":"sh -c x > a"},"written_by":null,"created":"2026-03-12T14:30:22.471Z",
            "in_head":false})
    );
    assert_eq!(
        value["external"][0],
        json!({"path":"Cargo.toml","kind":"modified","hint":"modified externally since the last operation","held":null})
    );
    assert_eq!(value["backups"][0]["kind"], "rolled_back");
    assert_eq!(value["writers"], json!([{"path":"src/b.rs","pid":99}]));
    assert_eq!(value["counters"], json!({"landed":12,"held":1,"denied":0}));
    assert_eq!((&value["schema"], &value["readonly"]), (&json!("fettlefs.status/1"), &json!(null)));
    assert!(value.get("next").is_none());
}

#[test]
fn a_path_that_is_not_utf8_travels_as_base64_beside_its_text() {
    let odd = RelPath::parse(b"a\xff").unwrap();
    let change = Held { path: odd.clone(), also: Also(vec![path("b"), odd]), ..held("a1b2c3d4", "x") };
    let value = serde_json::to_value(&change).unwrap();
    assert_eq!((&value["path"], &value["path_b64"]), (&json!("a\\xff"), &json!("Yf8=")));
    assert_eq!((&value["also"], &value["also_b64"]), (&json!(["b", "a\\xff"]), &json!(["Yg==", "Yf8="])));
    assert_eq!(serde_json::from_value::<Held>(value).unwrap(), change);
}

#[test]
fn responses_survive_their_own_line() {
    let outcome = Outcome {
        id: ChangeId::parse("a1b2c3d4"),
        counts: Some(Counts { insertions: 3, deletions: 2, ratio: 0.1 }),
        diff: Some(DiffText(b"+\xff\n".to_vec())),
        note: Some(Note::NewFile),
        also: Also(vec![path("u")]),
        ..Outcome::new(Action::Held, path("src/a.rs"))
    };
    let event = Event { path: Some(path("a")), pid: Some(7), ..Event::new(1, time(), EventName::WriteHeld) };
    let change = ChangeDiff { held: held("a1b2c3d4", "a"), text: DiffText(b"diff".to_vec()) };
    for response in [
        Response::done(Reply::Status(Box::new(status()))),
        Response::done(Reply::Confirm(Acted {
            outcomes: vec![outcome, Outcome::new(Action::Merged, path("b"))],
            more: 7,
            notices: vec!["x".into()],
            dry_run: true,
        })),
        Response::done(Reply::Diff(DiffReply { changes: vec![change], next: Some(3), told: Some(Digest::of(b"")) })),
        Response::done(Reply::Log(LogReply { events: vec![event], next: None })),
        Response::done(Reply::Unmount(UnmountReply { held: vec![held("a1b2c3d4", "a")], ..Default::default() })),
        Response::done(Reply::Version(VersionReply { version: "1".into(), protocol: 1, daemon: None, pid: Some(3) })),
        Response::failed(ErrorBody::new(ErrorCode::Expired, "expired 5 minutes ago").about("a1b2c3d4")),
        Response::failed(ErrorBody { path: Some(path("a")), ..ErrorBody::new(ErrorCode::Busy, "busy") }),
    ] {
        assert_eq!(Response::parse(&response.to_line()).unwrap(), response);
    }
}

#[test]
fn errors_look_as_the_contract_shows_them() {
    let response = Response::failed(ErrorBody::new(ErrorCode::Expired, "…").about("a1b2c3d4"));
    assert_eq!(
        String::from_utf8(response.to_line()).unwrap(),
        "{\"v\":1,\"ok\":false,\"error\":{\"code\":\"expired\",\"message\":\"…\",\"id\":\"a1b2c3d4\",\
         \"remedy\":\"To look again: fettlefs diff a1b2c3d4\"}}\n"
    );
}

#[test]
fn an_error_says_what_can_be_done_where_something_can() {
    let of = |code| ErrorBody::new(code, "…");
    let at_path = ErrorBody { path: Some(path("a")), ..of(ErrorCode::Busy) };
    let superseded = ErrorBody { new_id: Some("99aa00bb".into()), ..of(ErrorCode::Superseded) };
    for (error, want) in [
        (of(ErrorCode::Expired), Some("To look again: fettlefs diff; to go on without: --renew")),
        (superseded, Some("To see what it became: fettlefs diff 99aa00bb")),
        (
            of(ErrorCode::Conflict).about("a1b2"),
            Some("To land it anyway, keeping what it replaces as a backup: confirm it with --force"),
        ),
        (at_path, Some("To wait for the writer: fettlefs flush --wait")),
        (of(ErrorCode::Busy).about("a1b2"), Some("To wait for the writer: fettlefs flush --wait")),
        (of(ErrorCode::Busy), None),
        (of(ErrorCode::Io).about("a1b2"), None),
    ] {
        let json: serde_json::Value = serde_json::from_slice(&Response::failed(error).to_line()).unwrap();
        assert_eq!(json["error"]["remedy"].as_str(), want, "{json}");
    }
}

#[test]
fn a_reply_longer_than_8_mib_becomes_an_error_that_says_so() {
    let reply = ReloadReply { notices: vec!["n".repeat(REPLY_BYTES_MAX)], ..ReloadReply::default() };
    match Response::parse(&Response::done(Reply::Reload(reply)).to_line()).unwrap() {
        Response::Failed(error) => assert_eq!(error.code, ErrorCode::TooLarge),
        Response::Done(reply) => panic!("{reply:?}"),
    }
}

#[test]
fn pages_of_status_join_to_the_whole() {
    let page = |offset, limit| {
        let (mut cut, whole) = (Cut::new(offset, Some(limit)), status());
        let held = cut.part(whole.held);
        let external = cut.part(whole.external);
        let backups = cut.part(whole.backups);
        let writers = cut.part(whole.writers);
        Reply::Status(Box::new(Status { held, external, backups, writers, next: cut.next(), ..status() }))
    };
    for limit in 1..10 {
        let mut joined = page(0, limit);
        while let Some(next) = joined.next_page() {
            joined.append(page(next, limit));
        }
        assert_eq!(joined, Reply::Status(Box::new(status())), "limit {limit}");
    }
}

fn page_of_diffs(changes: Vec<ChangeDiff>, offset: u64, limit: Option<u64>) -> DiffReply {
    let mut cut = DiffCut::new(offset, limit);
    changes.into_iter().for_each(|change| cut.take(change));
    cut.into_page()
}

/// All pages joined, each of which a reply can carry, and how many there were.
fn joined_diffs(changes: &[ChangeDiff], limit: Option<u64>) -> (DiffReply, usize) {
    let (mut joined, mut pages) = (DiffReply::default(), 0);
    let mut offset = Some(0);
    while let Some(from) = offset {
        let page = page_of_diffs(changes.to_vec(), from, limit);
        assert!(page.next.is_none_or(|next| next > from), "it gets on");
        let line = Response::done(Reply::Diff(page.clone())).to_whole_line();
        assert!(line.len() <= REPLY_BYTES_MAX, "{} bytes at {from}", line.len());
        offset = page.next;
        joined.append(page);
        pages += 1;
    }
    (joined, pages)
}

#[test]
fn a_page_of_diffs_is_known_by_all_that_comes_before_it() {
    let changes =
        [("aaaa", "one\n"), ("bbbb", "two\n"), ("cccc", "three\n")].map(|(id, text)| diff_of(id, text.as_bytes()));
    let before = |changes: &[ChangeDiff], offset| {
        let mut cut = DiffCut::new(offset, None);
        changes.iter().for_each(|change| cut.take(change.clone()));
        cut.before()
    };
    for limit in 1..17 {
        let page = page_of_diffs(changes.to_vec(), 0, Some(limit));
        let (next, told) = (page.next.unwrap(), page.told.unwrap());
        assert_eq!(before(&changes, next), told, "limit {limit}");
        assert_ne!(before(&changes[1..], next), told, "limit {limit}");
        if next > 5 {
            assert_ne!(before(&[changes[0].clone(), changes[2].clone()], next), told, "limit {limit}");
        }
    }
    assert_eq!(page_of_diffs(changes.to_vec(), 0, Some(17)).told, None);
}

fn diff_of(id: &str, text: &[u8]) -> ChangeDiff {
    ChangeDiff { held: held(id, id), text: DiffText(text.to_vec()) }
}

#[test]
fn pages_of_diffs_join_to_the_whole_wherever_they_are_cut() {
    let texts: [(&str, &[u8]); 6] = [
        ("aaaa", b"one\n"),
        ("bbbb", b""),
        ("cccc", b"three\xff\n"),
        ("dddd", b"four\n"),
        ("eeee", b""),
        ("ffff", b""),
    ];
    let changes = texts.map(|(id, text)| diff_of(id, text));
    for limit in 1..30 {
        let (joined, _) = joined_diffs(&changes, Some(limit));
        assert_eq!(joined, DiffReply { changes: changes.to_vec(), ..DiffReply::default() }, "limit {limit}");
    }
    assert_eq!(page_of_diffs(changes.to_vec(), u64::MAX, None), DiffReply::default());
}

#[test]
fn a_page_of_diffs_fits_in_a_reply_however_many_and_however_long_they_are() {
    let many = |text: &[u8]| (0..20_000).map(|number| diff_of(&format!("{number:08x}"), text)).collect::<Vec<_>>();
    let names = |count: usize| Also((0..count).map(|number| path(&format!("{number:0>200}"))).collect());
    let linked = |text: &[u8]| {
        let change = diff_of("aaaa", text);
        ChangeDiff { held: Held { also: names(20_000), ..change.held }, ..change }
    };
    let control = [vec![1; 3 << 20], b"\xff".to_vec()].concat();
    for changes in [
        many(b""),
        many(b"@@ -1 +1 @@\n-a\n+b\n"),
        vec![diff_of("aaaa", &control), diff_of("bbbb", b"a\n")],
        vec![linked(&control), diff_of("bbbb", b"a\n"), linked(b"")],
    ] {
        let (joined, pages) = joined_diffs(&changes, None);
        assert!(joined == DiffReply { changes, ..DiffReply::default() }, "all of it on {pages} pages");
        assert!((2..20).contains(&pages), "{pages}");
    }
}

#[test]
fn a_page_is_bounded_in_bytes_and_always_gets_on() {
    let entries = vec!["n".repeat(REPLY_BYTES_MAX), "small".into(), "n".repeat(REPLY_BYTES_MAX)];
    let mut sizes = Vec::new();
    let mut offset = Some(0);
    while let Some(start) = offset {
        let cut = page(entries.clone(), start, None);
        sizes.push(cut.entries.len());
        offset = cut.next;
    }
    assert_eq!(sizes, [1, 1, 1]);
    assert_eq!(page(vec![1], u64::MAX, None), Page { entries: vec![], next: None });
}

#[test]
fn nothing_is_made_that_comes_before_the_page_or_long_after_it() {
    let mut made = Vec::new();
    let mut make = |number: u32| {
        made.push(number);
        Ok::<_, Infallible>(number)
    };
    let mut cut = Cut::new(3, Some(2));
    assert_eq!(cut.skipped(), 3);
    assert_eq!(cut.part_made(vec![0, 1], &mut make), Ok(vec![]));
    assert_eq!(cut.skipped(), 1);
    assert_eq!(cut.part_made(vec![2, 3, 4], &mut make), Ok(vec![3, 4]));
    assert_eq!((cut.is_full(), cut.next()), (false, None), "nothing may follow");
    assert_eq!(cut.part_made(vec![5, 6, 7], &mut make), Ok(vec![]));
    assert_eq!((cut.is_full(), cut.next()), (true, Some(5)));
    assert_eq!(cut.part_made(vec![8], &mut make), Ok(vec![]));
    assert_eq!(made, [3, 4, 5], "5 tells that it did not fit");
}

#[test]
fn event_names_are_those_of_the_contract() {
    let names: Vec<String> =
        EventName::ALL.iter().map(|name| serde_json::to_value(name).unwrap().as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names.join(" "),
        "session_started write_landed write_held write_denied request_refused review_requested confirmed confirm_failed discarded hold_ended rolled_back undone \
         expired external_modified check_started check_passed check_failed promote_started promote_succeeded \
         promote_failed recovered session_ended"
    );
}

#[test]
fn times_have_three_digits_of_a_second_and_sort_as_text() {
    for (millis, want) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_773_325_822_000, "2026-03-12T14:30:22.000Z"),
        (1_773_325_822_400, "2026-03-12T14:30:22.400Z"),
        (1_773_325_822_471, "2026-03-12T14:30:22.471Z"),
    ] {
        let time = jiff::Timestamp::from_millisecond(millis).unwrap();
        let event = Event::new(1, time, EventName::SessionStarted);
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["time"], want);
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    }
}

/// Both forms of one patch.
const PATCH: &str = r#"{"files":[
    {"path":"src/a.rs","base_sha256":"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
     "hunks":[{"left":"fn one() {\n","old":"    call(1);\n","new":"    call(2);\n","right":"}\n","whole_lines":true},
              {"old":"x\n","new":"","matches":3,"whole_lines":true}]},
    {"path":"b","base_sha256":"fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9",
     "hunks":[{"left":"l\n","new":"n\n","whole_lines":true}]}]}"#;
const BLOCKS: &str = "
FILE src/a.rs
BASE_SHA256 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
HUNK
<<<<<<< LEFT
fn one() {
<<<<<<< OLD
    call(1);
======= NEW
    call(2);
>>>>>>> RIGHT
}
>>>>>>> END
HUNK 3
<<<<<<< OLD
x
======= NEW
>>>>>>> END

FILE b
BASE_SHA256 fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9
HUNK
<<<<<<< LEFT
l
<<<<<<< OLD
======= NEW
n
>>>>>>> END
";

#[test]
fn a_patch_is_the_same_as_json_and_as_blocks() {
    let files = parse_patch(PATCH.as_bytes()).unwrap();
    assert_eq!(parse_patch(BLOCKS.as_bytes()).unwrap(), files);
    assert_eq!(files.len(), 2);
    assert_eq!((files[0].hunks[0].matches, files[0].hunks[1].matches), (1, 3));
    let written = serde_json::json!({ "files": files });
    assert_eq!(parse_patch(written.to_string().as_bytes()).unwrap(), files);
}

#[test]
fn what_is_no_patch_is_refused_with_its_reason() {
    let sha = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    let file = |path: &str, hunks: &str| {
        format!(r#"{{"files":[{{"path":"{path}","base_sha256":"{sha}","hunks":[{hunks}]}}]}}"#)
    };
    let hunk = r#"{"old":"a","new":"b"}"#;
    for (text, code, message) in [
        (String::new(), ErrorCode::BadRequest, "not a patch: it is empty"),
        ("hello\n".to_owned(), ErrorCode::BadRequest, "line 1: \"hello\", where `FILE path` was expected"),
        ("FILE a\nBASE_SHA256 12\n".to_owned(), ErrorCode::BadRequest, "line 2: 12 is not a SHA-256"),
        (BLOCKS.replace("HUNK 3", "HUNK 0"), ErrorCode::BadRequest, "line 14: 0 is not a number of places, 1 to 1000"),
        (BLOCKS.replace("======= NEW", "======="), ErrorCode::BadRequest, "`======= NEW` was expected"),
        (BLOCKS.replace(">>>>>>> END", ""), ErrorCode::BadRequest, "expected"),
        (BLOCKS.replace("FILE b", "FILE src/a.rs"), ErrorCode::BadRequest, "src/a.rs is in it twice"),
        (BLOCKS.replace("FILE b", "FILE ../b"), ErrorCode::BadRequest, "line 20: ../b: path has"),
        ("{".to_owned(), ErrorCode::BadRequest, "not a patch: EOF"),
        ("{}".to_owned(), ErrorCode::BadRequest, "missing field `files`"),
        (file("a", ""), ErrorCode::BadRequest, "a: there are no hunks"),
        (file("/etc/passwd", hunk), ErrorCode::BadRequest, "path is absolute"),
        (file("a/../../b", hunk), ErrorCode::BadRequest, "path has an empty"),
        (file("a", r#"{"old":"a","new":"b","fuzz":2}"#), ErrorCode::BadRequest, "unknown field `fuzz`"),
        (
            file("a", r#"{"old":"a","new":"b","matches":0}"#),
            ErrorCode::BadRequest,
            "`matches` is 0; it may be 1 to 1000",
        ),
        (file("a", r#"["","a","","b"]"#), ErrorCode::BadRequest, "invalid type: sequence, expected an object"),
        (
            format!(r#"{{"files":[["a",null,"{sha}",[{hunk}]]]}}"#),
            ErrorCode::BadRequest,
            "invalid type: sequence, expected an object",
        ),
        (file("a", hunk).replace(sha, "00"), ErrorCode::BadRequest, "\"00\" is not a SHA-256"),
        (file("a", hunk).replace("hunks", "hunk"), ErrorCode::BadRequest, "unknown field `hunk`"),
        (
            file("a", &vec![hunk; 10_000].join(",")),
            ErrorCode::TooLarge,
            "a patch of 10000 hunks is too large (the limit is 500)",
        ),
    ] {
        let err = parse_patch(text.as_bytes()).expect_err(message);
        assert_eq!(err.code(), code, "{message}");
        assert!(err.to_string().contains(message), "{message}: {err}");
    }
    let many: Vec<String> =
        (0..101).map(|n| format!(r#"{{"path":"{n}","base_sha256":"{sha}","hunks":[{hunk}]}}"#)).collect();
    let err = parse_patch(format!(r#"{{"files":[{}]}}"#, many.join(",")).as_bytes()).unwrap_err();
    assert!(err.to_string().contains("a patch of 101 files is too large"), "{err}");
    assert!(matches!(parse_patch(b"FILE a\xff\n"), Err(ProtocolError::Patch(_))));
}

#[test]
fn the_schema_of_a_patch_is_what_is_accepted() {
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../docs/patch.schema.json")).unwrap();
    let file = &schema["properties"]["files"]["items"];
    let hunk = &file["properties"]["hunks"]["items"];
    let names = |object: &serde_json::Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&file["properties"]), ["base_sha256", "hunks", "path", "path_b64"]);
    assert_eq!(names(&hunk["properties"]), ["left", "matches", "new", "old", "right", "whole_lines"]);
    assert_eq!(file["required"], json!(["path", "base_sha256", "hunks"]));
    assert_eq!(schema["properties"]["files"]["maxItems"], PATCH_FILES_MAX);
    assert_eq!(file["properties"]["hunks"]["maxItems"], PATCH_HUNKS_MAX);
    assert_eq!(hunk["properties"]["matches"]["maximum"], PATCH_MATCHES_MAX);
    for closed in [&schema, file, hunk] {
        assert_eq!(closed["additionalProperties"], false);
    }
}

#[test]
fn the_schema_of_an_event_names_all_that_there_is() {
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../docs/events.schema.json")).unwrap();
    assert_eq!(schema["properties"]["event"]["enum"], json!(EventName::ALL));
    assert_eq!(schema["properties"]["reason"]["enum"], json!(Reason::ALL));
    let program = Program { pid: 1, uid: 0, exe: None, cmdline: None };
    let event = Event {
        path: Some(RelPath::parse(b"\xff").unwrap()),
        id: Some("a1b2c3d4".into()),
        operation: Some("op1".into()),
        session: Some("s".into()),
        reason: Some(Reason::Size),
        sha256: Some(Digest::of(b"")),
        bytes: Some(0),
        insertions: Some(0),
        deletions: Some(0),
        continues: true,
        backup: Some("b".into()),
        message: Some("m".into()),
        pid: Some(1),
        uid: Some(0),
        opened_by: Some(program.clone()),
        written_by: Some(program),
        ..Event::new(1, time(), EventName::Confirmed)
    };
    let names = |object: &serde_json::Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let told = serde_json::to_value(&event).unwrap();
    assert_eq!(names(&told), names(&schema["properties"]));
    let program = &schema["$defs"]["program"]["oneOf"][1]["properties"];
    assert_eq!(names(&told["opened_by"]), names(program));
    let least = serde_json::to_value(Event::new(1, time(), EventName::Confirmed)).unwrap();
    let mut required: Vec<String> = serde_json::from_value(schema["required"].clone()).unwrap();
    required.sort_unstable();
    assert_eq!(names(&least), required, "what is always there");
}

#[test]
fn lines_of_a_path_add_up_but_for_those_that_are_told_again() {
    use EventName::{WriteHeld, WriteLanded};
    let event = |event, counts: (u64, u64), continues, message: &str| Event {
        path: Some(path("a")),
        insertions: Some(counts.0),
        deletions: Some(counts.1),
        continues,
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        ..Event::new(1, time(), event)
    };
    let new = event(WriteLanded, (8, 0), false, NEW_FILE);
    let of = |events: &[Event]| {
        let last = last_of_each_path(events.to_vec()).remove(&path("a")).unwrap();
        (last.insertions.unwrap(), last.deletions.unwrap(), last.message)
    };
    let is_new = Some(NEW_FILE.to_owned());
    assert_eq!(of(std::slice::from_ref(&new)), (8, 0, is_new.clone()));
    let more = event(WriteLanded, (9, 0), true, NEW_FILE);
    assert_eq!(of(&[new.clone(), more.clone()]), (9, 0, is_new.clone()), "within the window");
    let later = event(WriteLanded, (1, 2), false, "");
    let latest = event(WriteLanded, (2, 3), true, "");
    let all = [new.clone(), more, later, latest];
    assert_eq!(of(&all[..3]), (10, 2, is_new.clone()), "in a window of its own");
    assert_eq!(of(&all), (11, 3, is_new), "that goes on");
    let gone = event(WriteLanded, (0, 9), false, "[deleted]");
    assert_eq!(of(&[new.clone(), gone]), (0, 9, Some("[deleted]".into())));
    let held = event(WriteHeld, (70, 7), false, "");
    assert_eq!(of(&[new, held.clone()]), (70, 7, None), "another thing");
    let held_anew = event(WriteHeld, (90, 7), false, "");
    assert_eq!(of(&[held, held_anew]), (90, 7, None), "what waits is told as a whole");
}

#[test]
fn pages_of_a_file_join_to_the_whole() {
    let page = |form, text: &str, next| {
        let reply = ReadReply {
            form,
            text: text.into(),
            next,
            ..serde_json::from_value(json!({
                "path":"a","form":"content","text":"","size":9,"lines":3,"session":null,"externally_modified":false
            }))
            .unwrap()
        };
        Reply::Read(Box::new(reply))
    };
    let mut joined = page(ReadForm::Content, "one\n", Some(1));
    joined.append(page(ReadForm::Part, "two\n", Some(2)));
    joined.append(page(ReadForm::Part, "3", None));
    assert_eq!(joined, page(ReadForm::Content, "one\ntwo\n3", None));
}
