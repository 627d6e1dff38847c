use super::*;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

fn id(text: &str) -> ChangeId {
    ChangeId::parse(text).expect(text)
}

/// A held change and its place among all.
#[derive(Debug)]
struct Change {
    id: ChangeId,
    names: Vec<RelPath>,
    operation: Option<OperationId>,
    place: usize,
}

impl Identified for Change {
    fn id(&self) -> &ChangeId {
        &self.id
    }
}

fn held() -> Vec<Change> {
    let one = |digits: &str, names: &[&str]| (id(digits), names.iter().map(|name| path(name)).collect(), None);
    let of = |operation: &str, (id, names, _)| (id, names, OperationId::parse(operation));
    let all = [
        one("a1b2c3d4", &["src/a.rs"]),
        one("a1b2ffff", &["src/deep/b.rs", "src/other-name"]),
        one("00112233", &["README.md"]),
        // A file whose name is the beginning of another change's id.
        one("99990000", &["0011"]),
        // A file whose name is the beginning of its own id.
        one("77777777", &["7777"]),
        one("00aa00aa", &["00aa00bb"]),
        one("00aa00aaf", &["long"]),
        of("op7", one("70000001", &["first"])),
        of("op7", one("70000002", &["second"])),
        // In a directory that is called like the operation of others, and in one that is called like its own.
        one("70000003", &["op7/tasks.json"]),
        of("op8", one("80000001", &["op8/only"])),
        // One that begins with the id of another, which lives no more.
        one("dead0001f", &["forged"]),
    ];
    let numbered = all.into_iter().enumerate();
    numbered.map(|(place, (id, names, operation))| Change { id, names, operation, place }).collect()
}

struct Past;

impl Known for Past {
    type Change = Change;

    fn within(&self, path: &RelPath) -> Vec<Change> {
        self.held(&|live| live.names.iter().any(|name| name.is_within(path)))
    }

    fn held_as(&self, id: &ChangeId) -> Option<Change> {
        held().into_iter().find(|change| change.id == *id)
    }

    fn ids_beginning_with(&self, digits: &ChangeId) -> BTreeSet<ChangeId> {
        let all = held().into_iter().map(|change| change.id).chain([id("dead0001")]);
        all.filter(|id| id.as_str().starts_with(digits.as_str())).collect()
    }

    fn held(&self, wanted: &dyn Fn(Live<'_>) -> bool) -> Vec<Change> {
        let wanted =
            |change: &Change| wanted(Live { id: &change.id, names: &change.names, operation: change.operation });
        held().into_iter().filter(wanted).collect()
    }

    fn verdict(&self, prefix: &ChangeId) -> Result<Option<Verdict>, ErrorBody> {
        let fate = match prefix.as_str() {
            "dead0001" => Fate::Superseded { by: id("dead0002") },
            "dead0002" => Fate::Superseded { by: id("a1b2c3d4") },
            "dead0003" => Fate::Superseded { by: id("dead0004") },
            "dead0004" => Fate::Applied,
            "dead0005" => Fate::Discarded,
            "dead0006" => Fate::Ended,
            "dead0007" => Fate::Superseded { by: id("dead0008") },
            "dead0008" => Fate::Removed,
            "dead0009" => Fate::Superseded { by: id("dead000a") },
            "dead000a" => Fate::Lost,
            _ => return Ok(None),
        };
        Ok(Some(Verdict { id: prefix.clone(), path: path("src/a.rs"), fate, at: 0 }))
    }

    fn exists(&self, wanted: &RelPath) -> bool {
        ["", "src", "src/c.rs", "beef"].contains(&String::from_utf8_lossy(wanted.as_bytes()).as_ref())
    }
}

/// An argument as a client in the project's root sends it.
fn argument(text: &str) -> Target {
    Target {
        id: (!text.contains('/')).then(|| text.to_owned()),
        path: RelPath::parse(text.as_bytes()).ok(),
        glob: Target::is_glob(text).then(|| text.to_owned()),
    }
}

fn check(arguments: &[&str], want: Result<&[usize], (ErrorCode, &str)>) {
    let targets: Vec<_> = arguments.iter().map(|text| argument(text)).collect();
    let found = find(&targets, &Past).map(|found| found.iter().map(|change| change.place).collect::<Vec<_>>());
    let found = found.as_deref().map_err(|err| (err.code, err.message.as_str()));
    assert_eq!(found, want, "{arguments:?}");
}

#[test]
fn an_argument_is_a_path_then_an_id_then_a_glob() {
    check(&["src/a.rs"], Ok(&[0]));
    check(&["src/other-name"], Ok(&[1]));
    check(&["src"], Ok(&[0, 1]));
    check(&[""], Ok(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
    check(&["a1b2c"], Ok(&[0]));
    check(&["a1b2ffff"], Ok(&[1]));
    check(&["00aa00aa"], Ok(&[5]));
    check(&["src/*.rs"], Ok(&[0]));
    check(&["src/**/*.rs"], Ok(&[0, 1]));
    check(&["*"], Ok(&[2, 3, 4, 5, 6, 7, 8, 11]));
    check(&["dead0001f"], Ok(&[11]));
    check(&["7777"], Ok(&[4]));
    check(&["op7/tasks.json"], Ok(&[9]));
    check(&["op8"], Ok(&[10]));
}

#[test]
fn several_arguments_name_each_change_once() {
    check(&["README.md", "src", "a1b2c3d4"], Ok(&[2, 0, 1]));
}

#[test]
fn what_could_be_two_things_is_refused() {
    check(&["a1b2"], Err((ErrorCode::Ambiguous, "a1b2 is the beginning of 2 ids")));
    let message = "0011 is a path and an id at once; write the path as ./PATH";
    check(&["0011"], Err((ErrorCode::Ambiguous, message)));
    let message = "op7 is a path and an operation at once; write the path as ./PATH";
    check(&["op7"], Err((ErrorCode::Ambiguous, message)));
    check(&["dead0"], Err((ErrorCode::Ambiguous, "dead0 is the beginning of 2 ids")));
}

#[test]
fn an_id_that_lives_no_more_says_what_became_of_it() {
    for (argument, code, message) in [
        ("dead0001", ErrorCode::Superseded, "dead0001 (src/a.rs) became a1b2c3d4"),
        ("dead0003", ErrorCode::Superseded, "dead0003 (src/a.rs) became dead0004, which is already applied"),
        ("dead0004", ErrorCode::AlreadyApplied, "dead0004 (src/a.rs) is already applied"),
        ("dead0005", ErrorCode::AlreadyDiscarded, "dead0005 (src/a.rs) is already discarded"),
        (
            "dead0006",
            ErrorCode::AlreadyApplied,
            "dead0006 (src/a.rs) needs no review any more: it became small, or equal to what is there",
        ),
        ("dead0007", ErrorCode::Superseded, "dead0007 (src/a.rs) became dead0008, which was removed in the view"),
        (
            "dead0008",
            ErrorCode::AlreadyDiscarded,
            "dead0008 (src/a.rs) was removed in the view; content that it had is a backup: fettlefs rollback src/a.rs",
        ),
        ("dead0009", ErrorCode::Superseded, "dead0009 (src/a.rs) became dead000a, which went with the power"),
        (
            "dead000a",
            ErrorCode::AlreadyDiscarded,
            "dead000a (src/a.rs) went with the power: it was never synced, and nothing is left of it",
        ),
    ] {
        check(&[argument], Err((code, message)));
    }
    let err = find(&[argument("dead0001")], &Past).expect_err("superseded");
    assert_eq!((err.id.as_deref(), err.new_id.as_deref()), (Some("dead0001"), Some("a1b2c3d4")));
}

#[test]
fn what_is_unknown_is_said_as_what_it_looks_like() {
    for (argument, code, message) in [
        ("abcd1234", ErrorCode::UnknownId, "no change has the id abcd1234"),
        ("beef", ErrorCode::UnknownPath, "nothing is held at beef"),
        ("src/c.rs", ErrorCode::UnknownPath, "nothing is held at src/c.rs"),
        ("src/nope", ErrorCode::UnknownPath, "src/nope: no such path, and nothing is held there"),
        ("lib/*.c", ErrorCode::UnknownPath, "nothing held matches lib/*.c"),
    ] {
        check(&[argument], Err((code, message)));
    }
    let short = find(&[Target::id("abc".to_owned())], &Past).expect_err("too short");
    assert_eq!(short.code, ErrorCode::UnknownId);
}

#[test]
fn one_bad_argument_spoils_all_and_the_first_is_told() {
    check(&["src/a.rs", "abcd1234", "dead0005"], Err((ErrorCode::UnknownId, "no change has the id abcd1234")));
}

/// Their reader would panic at the shorter and overflow its stack at the longer ones.
#[test]
fn a_glob_that_nothing_could_compile_is_refused_by_its_name() {
    let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
    for (glob, why) in [
        (nested(33).as_str(), "a glob or pattern may have 32 of `{` at most"),
        (&nested(300), "a glob or pattern may have 32 of `{` at most"),
        (&nested(2000), "a glob or pattern may have 32 of `{` at most"),
        (&"[{]".repeat(33), "a glob or pattern may have 32 of `{` at most"),
        (&nested(31_000), "a glob or pattern may have 4096 bytes at most"),
        (&"x".repeat(4097), "a glob or pattern may have 4096 bytes at most"),
        ("a[b", "error parsing glob 'a[b': unclosed character class; missing ']'"),
    ] {
        let refused = path_glob(glob).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (ErrorCode::BadRequest, why));
    }
    assert!(path_glob(&nested(32)).unwrap().is_match("a"));
    assert!(path_glob(&"?".repeat(4096)).unwrap().is_match("x".repeat(4096)));
}

#[test]
fn a_path_in_a_command_line_to_copy_is_one_word_of_it() {
    let verdict = Verdict { id: id("dead0008"), path: path("a;touch b"), fate: Fate::Removed, at: 0 };
    let told = became(&verdict, &Past).expect("what became of it").message;
    assert!(told.ends_with("fettlefs rollback 'a;touch b'"), "{told}");
}
