//! The control file and the socket by hand: conversations, bad requests, clients that misbehave, and the files beside.
//!
//! After whatever a client does, the daemon is asked something plain and must answer: [`Desk::is_well`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::{EDITED, NEW, OLD, id_of, small, work};
use crate::harness::{View, eventually, mounted_scratch, within};

const VERSION: &str = "{\"v\":1,\"op\":\"version\"}\n";
const STATUS: &str = "{\"v\":1,\"op\":\"status\"}\n";

/// The control file of a view, opened anew each time.
fn open(view: &View<'_>) -> File {
    File::options().read(true).write(true).open(view.path(".fettle/control")).expect("anybody may open it")
}

/// The next answer on a descriptor.
#[track_caller]
fn answer(mut control: &File) -> Value {
    let mut line = String::new();
    control.read_to_string(&mut line).expect("the answer is read");
    assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "not one line: {line:?}");
    serde_json::from_str(&line).unwrap_or_else(|err| panic!("{err}: {line}"))
}

/// One request in one write, and its answer.
#[track_caller]
fn ask(mut control: &File, request: impl AsRef<[u8]>) -> Value {
    let request = request.as_ref();
    assert_eq!(control.write(request).expect("the request is taken"), request.len());
    answer(control)
}

#[track_caller]
fn assert_well(view: &View<'_>) {
    assert_eq!(ask(&open(view), VERSION)["pid"].as_i64(), Some(view.daemon_pid().into()));
    view.write("well.txt", "well\n");
    assert_eq!(view.read("well.txt"), "well\n");
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[test]
fn what_a_session_has_begun_to_hold_is_named_by_it() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let session = view.status()["held"][0]["since_session"].clone();
    view.unmount();
    let view = small(&scratch).start();
    view.write("d.txt", NEW);
    let asked = |mut request: Value| {
        request["v"] = 1.into();
        request["session"] = session.clone();
        ask(&open(&view), request.to_string())
    };
    for request in [json!({"op": "discard", "all": true}), json!({"op": "confirm", "ids": [session]})] {
        assert_eq!(code(&asked(request)), "bad_request");
    }
    let answered = asked(json!({"op": "confirm", "renew": true}));
    let outcomes: Vec<_> = answered["outcomes"].as_array().expect("outcomes").iter().map(|one| &one["path"]).collect();
    assert_eq!(outcomes, ["c.txt"], "{answered}");
    assert_eq!((scratch.read("c.txt"), view.held().len()), (NEW.to_owned(), 1));
    assert_eq!(asked(json!({"op": "discard"}))["outcomes"], json!([]));
}

#[test]
fn a_page_of_diffs_goes_on_with_what_was_told_or_not_at_all() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    let first = ask(&open(&view), r#"{"v":1,"op":"diff","limit":20}"#);
    let rest = json!({"v": 1, "op": "diff", "offset": first["next"], "told": first["told"]}).to_string();
    assert_eq!(ask(&open(&view), &rest)["changes"].as_array().map(Vec::len), Some(2), "{first}");
    let dropped = first["changes"][0]["id"].as_str().expect("an id");
    ask(&open(&view), json!({"v": 1, "op": "discard", "ids": [dropped]}).to_string());
    let refused = ask(&open(&view), &rest);
    assert_eq!(code(&refused), "busy", "{refused}");
}

#[test]
fn a_descriptor_is_a_conversation_of_its_own_and_can_be_used_again() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let (mut first, mut second) = (open(&view), open(&view));
    let mut nothing = Vec::new();
    assert_eq!(first.read_to_end(&mut nothing).expect("nothing was asked"), 0);
    // Two at once, answered crosswise.
    first.write_all(VERSION.as_bytes()).expect("asked");
    second.write_all(STATUS.as_bytes()).expect("asked");
    assert_eq!(answer(&second)["op"], "status");
    assert_eq!(answer(&first)["op"], "version");
    assert_eq!(first.read_to_end(&mut nothing).expect("it has been read"), 0);
    for _ in 0..3 {
        assert_eq!(ask(&first, STATUS)["op"], "status");
        assert_eq!(ask(&second, VERSION)["op"], "version");
    }
    // An answer that nobody read makes way for the next.
    first.write_all(STATUS.as_bytes()).expect("asked");
    eventually("the answer is there", || first.write(VERSION.as_bytes()).is_ok());
    assert_eq!(answer(&first)["op"], "version");
    assert_well(&view);
}

/// A page is made of what it tells and not of the whole, and what is decided meanwhile is not in the next.
#[test]
fn pages_of_status_are_the_whole_piece_by_piece() {
    const LISTS: [&str; 4] = ["held", "external", "backups", "writers"];
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.sh(&format!("printf '{EDITED}' > c.txt; printf '{EDITED}' > d.txt")).ok();
    view.assert_landed("d.txt", EDITED);
    scratch.write("c.txt", "theirs\n");
    let control = open(&view);
    let page = |offset: u64, limit: u64| {
        ask(&control, format!("{{\"v\":1,\"op\":\"status\",\"offset\":{offset},\"limit\":{limit}}}\n"))
    };
    let lists = |answer: &Value| LISTS.map(|list| answer[list].as_array().expect("a list").clone());
    let whole = ask(&control, STATUS);
    let counts = lists(&whole).map(|list| list.len());
    assert!(counts[0] >= 2 && counts[1] == 1 && counts[2] >= 2, "{whole}");
    for limit in 1..=counts.iter().sum::<usize>() as u64 {
        let mut joined = LISTS.map(|_| Vec::new());
        let mut next = Some(0);
        while let Some(offset) = next {
            let page = page(offset, limit);
            assert_eq!(page["counters"], whole["counters"], "of all, whatever the page has");
            lists(&page).into_iter().zip(&mut joined).for_each(|(list, joined)| joined.extend(list));
            next = page["next"].as_u64();
        }
        assert_eq!(joined, lists(&whole), "limit {limit}");
    }
    let first = page(0, 1);
    view.cli(&["discard", first["held"][0]["id"].as_str().expect("an id")]).ok();
    let second = page(first["next"].as_u64().expect("there is more"), 1);
    assert_eq!(second["held"].as_array().map(Vec::len), Some(counts[0].saturating_sub(2).min(1)), "{second}");
    assert_eq!(second["counters"]["held"], counts[0] as u64 - 1);
    let printed = view.cli(&["status", "--json"]).ok().json();
    assert_eq!(lists(&printed), lists(&ask(&control, STATUS)));
}

#[test]
fn offsets_mean_nothing_and_pieces_follow_each_other() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut control = open(&view);
    let whole = ask(&control, VERSION);
    assert_eq!(control.write_at(VERSION.as_bytes(), 12345).expect("asked"), VERSION.len());
    control.seek(SeekFrom::Start(999)).expect("a file can be sought in");
    let mut line = Vec::new();
    let mut piece = [0; 7];
    loop {
        let count = control.read_at(&mut piece, 4711).expect("read");
        if count == 0 {
            break;
        }
        line.extend_from_slice(&piece[..count]);
    }
    assert_eq!(serde_json::from_slice::<Value>(&line).expect("the pieces make one line"), whole);
}

#[test]
fn what_is_no_request_gets_an_error_that_says_so() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let control = open(&view);
    let cases: [(&[u8], &str, &str); 17] = [
        (b"\n", "bad_request", "the request is not a JSON object"),
        (b"hello\n", "bad_request", "the request is not a JSON object"),
        (b"[1]\n", "bad_request", "the request is not a JSON object"),
        (b"{\"v\":1,\"op\":\"sta", "bad_request", "the request is not a JSON object"),
        (b"{\"v\":1,\"op\":\"status\"} {}\n", "bad_request", "the request is not a JSON object"),
        (b"{\"v\":1,\"op\":\"\xff\"}\n", "bad_request", "the request is not a JSON object"),
        (b"{\"v\":1,\"op\":\"status\0\"}\n", "bad_request", "the request is not a JSON object"),
        (b"{\"op\":\"status\"}\n", "bad_request", "the request has no `v`"),
        (b"{\"v\":1}\n", "bad_request", "the request has no `op`"),
        (
            b"{\"v\":2,\"op\":\"status\"}\n",
            "unsupported_version",
            "protocol version 2 is not spoken here; this is version 1",
        ),
        (
            b"{\"v\":\"1\",\"op\":\"new\"}\n",
            "unsupported_version",
            "protocol version \"1\" is not spoken here; this is version 1",
        ),
        (b"{\"v\":1,\"op\":\"frobnicate\"}\n", "bad_request", "unknown operation \"frobnicate\""),
        (b"{\"v\":1,\"op\":7}\n", "bad_request", "unknown operation 7"),
        (b"{\"v\":1,\"op\":\"status\",\"dry_run\":true}\n", "bad_request", "`status` takes no field \"dry_run\""),
        (b"{\"v\":1,\"op\":\"confirm\",\"ids\":\"a1b2\"}\n", "bad_request", "a field has a wrong value"),
        (b"{\"v\":1,\"op\":\"confirm\",\"paths\":[\"../x\"]}\n", "bad_request", "paths \"../x\""),
        (b"{\"v\":1,\"op\":\"confirm\"}\n", "bad_request", "confirm of what? Name ids or paths, or all"),
    ];
    for (request, want, begins) in cases {
        let told = ask(&control, request);
        let message = told["error"]["message"].as_str().unwrap_or_default();
        let shown = String::from_utf8_lossy(request);
        assert_eq!((&told["v"], &told["ok"], code(&told)), (&json!(1), &json!(false), want), "{shown}: {told}");
        assert!(message.starts_with(begins), "{shown}: {told}");
    }
    assert_well(&view);
}

#[test]
fn a_request_has_at_most_64_kib() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let control = open(&view);
    let of_size = |bytes: usize| {
        let frame = "{\"v\":1,\"op\":\"confirm\",\"ids\":[\"\"]}\n";
        frame.replace("[\"\"]", &format!("[\"{}\"]", "x".repeat(bytes - frame.len())))
    };
    assert_eq!(code(&ask(&control, of_size(64 << 10))), "unknown_id");
    assert_eq!(code(&ask(&control, of_size((64 << 10) + 1))), "too_large");
    // However large, it is one request with one answer.
    for bytes in [128 << 10, 1 << 20, 5 << 20] {
        let big = of_size(bytes);
        (&control).write_all(big.as_bytes()).expect("it is taken, to be refused");
        assert_eq!(code(&answer(&control)), "too_large", "{bytes} bytes");
        assert_eq!(ask(&control, VERSION)["ok"], true, "after {bytes} bytes");
    }
    assert_well(&view);
}

#[test]
fn a_thousand_requests_from_sixteen_threads_are_all_answered() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    let requests = [
        (VERSION.to_owned(), "version"),
        (STATUS.to_owned(), "status"),
        (format!("{{\"v\":1,\"op\":\"diff\",\"ids\":[\"{id}\"]}}\n"), "diff"),
        (format!("{{\"v\":1,\"op\":\"confirm\",\"ids\":[\"{id}\"],\"dry_run\":true}}\n"), "confirm"),
    ];
    thread::scope(|scope| {
        for worker in 0..16 {
            let (view, requests) = (&view, &requests);
            scope.spawn(move || {
                let kept = open(view);
                for round in 0..64 {
                    let (request, op) = &requests[(worker + round) % requests.len()];
                    let told = if round % 2 == 0 { ask(&kept, request) } else { ask(&open(view), request) };
                    assert_eq!((&told["ok"], &told["op"]), (&json!(true), &json!(op)), "{told}");
                }
            });
        }
    });
    assert_eq!(id_of(&view, "c.txt"), id);
    assert_well(&view);
}

#[test]
fn of_many_who_confirm_the_same_one_does_and_the_others_are_told() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let request = format!("{{\"v\":1,\"op\":\"confirm\",\"ids\":[\"{}\"]}}\n", id_of(&view, "c.txt"));
    let told: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> = (0..16).map(|_| scope.spawn(|| ask(&open(&view), &request))).collect();
        asked.into_iter().map(|asked| asked.join().expect("no thread fails")).collect()
    });
    let done = told.iter().filter(|told| told["ok"] == true).count();
    let late = told.iter().filter(|told| code(told) == "already_applied").count();
    assert_eq!((done, late), (1, 15), "{told:?}");
    view.assert_landed("c.txt", NEW);
}

#[test]
fn a_client_that_goes_without_its_answer_was_heard_all_the_same() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let request = format!("{{\"v\":1,\"op\":\"confirm\",\"ids\":[\"{}\"]}}\n", id_of(&view, "c.txt"));
    let mut control = open(&view);
    control.write_all(request.as_bytes()).expect("asked");
    drop(control);
    eventually("it is confirmed", || scratch.read("c.txt") == NEW);
    assert_well(&view);
}

#[test]
fn a_client_killed_while_it_waits_leaves_the_daemon_well() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let mut writing = File::options().append(true).open(view.path("c.txt")).expect("it opens");
    writing.write_all(b"FOUR\n").expect("it is written");
    for signal in ["KILL", "TERM", "INT"] {
        // Python takes an interrupt between two of its steps, and may have begun to read by then.
        let program = "import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                       f = open(sys.argv[1], 'r+b', buffering=0)\nf.write(sys.argv[2].encode())\n\
                       print('asked', flush=True)\nf.read()\n";
        let request = "{\"v\":1,\"op\":\"confirm\",\"paths\":[\"c.txt\"],\"wait\":true}\n";
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(view.path(".fettle/control")).arg(request);
        let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("python3 runs");
        let mut line = String::new();
        let out = client.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("it says when it has asked");
        let killed = Command::new("kill").arg(format!("-{signal}")).arg(client.id().to_string()).status();
        assert!(killed.expect("kill runs").success());
        eventually("the client is gone", || client.try_wait().expect("a child can be asked for").is_some());
        assert_eq!(ask(&open(&view), VERSION)["ok"], true, "after {signal}");
    }
    drop(writing);
    // Those who asked are gone, and what they asked for is done or not; the view is right in either case.
    assert_eq!(view.read("c.txt"), format!("{NEW}FOUR\n"));
    assert_well(&view);
}

#[test]
fn who_connects_to_the_socket_and_asks_nothing_shuts_nobody_out() {
    let scratch = mounted_scratch!();
    let view = scratch.mounting().at("view").start();
    let socket = scratch.project().join(".fettle/control.sock");
    let connect = || UnixStream::connect(&socket).expect("the daemon listens");
    let asks = |mut stream: &UnixStream| {
        stream.write_all(b"{\"v\":1,\"op\":\"version\"}\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map(|_| line)
    };
    let first = connect();
    let answered = |told: std::io::Result<String>| told.is_ok_and(|line| line.contains("\"ok\":true"));
    assert!(answered(asks(&first)));
    let idle: Vec<UnixStream> = (0..100).map(|_| connect()).collect();
    for _ in 0..3 {
        assert!(answered(asks(&connect())));
    }
    assert!(answered(asks(&idle[99])), "the last to come have their places");
    assert!(!answered(asks(&first)), "who has been silent for longest has lost it");
    drop(view);
}

#[test]
fn the_socket_speaks_the_same_a_line_at_a_time() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("c.txt", NEW);
    let connect = || UnixStream::connect(scratch.project().join(".fettle/control.sock")).expect("the daemon listens");
    let say = |stream: &UnixStream, request: &[u8]| {
        let mut writer = stream;
        writer.write_all(request).expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("answered");
        serde_json::from_str::<Value>(&line).unwrap_or_else(|err| panic!("{err}: {line:?}"))
    };
    let (first, second) = (connect(), connect());
    for _ in 0..3 {
        assert_eq!(say(&first, VERSION.as_bytes())["op"], "version");
        assert_eq!(say(&second, STATUS.as_bytes())["held"][0]["path"], "c.txt");
    }
    for (request, want) in [
        ("hello\n", "bad_request"),
        ("{\"v\":3,\"op\":\"x\"}\n", "unsupported_version"),
        ("{\"v\":1,\"op\":\"x\"}\n", "bad_request"),
    ] {
        assert_eq!(code(&say(&first, request.as_bytes())), want);
    }
    // An overlong line is refused and ends this connection alone.
    let long = [vec![b'x'; (64 << 10) + 1], b"\n".to_vec()].concat();
    assert_eq!(code(&say(&second, &long)), "too_large");
    assert!(matches!((&second).read(&mut [0; 1]), Ok(0) | Err(_)));
    // Half a line and gone; a question and gone.
    connect().write_all(b"{\"v\":1,").expect("sent");
    connect().write_all(STATUS.as_bytes()).expect("sent");
    // Not read, however much is asked.
    let deaf = connect();
    (&deaf).write_all(STATUS.repeat(50).as_bytes()).expect("sent");
    assert_eq!(
        say(&first, b"{\"v\":1,\"op\":\"confirm\",\"paths\":[\"c.txt\"]}\n")["outcomes"][0]["action"],
        "applied"
    );
    view.assert_landed("c.txt", NEW);
    let mode = scratch.project().join(".fettle/control.sock").metadata().expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_well(&view);
}

#[test]
fn the_files_beside_tell_the_same_as_the_commands() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    std::fs::remove_file(view.path("d.txt")).expect("a deletion");
    view.write("notes.txt", "one\ntwo\n3\n");
    view.assert_landed("notes.txt", "one\ntwo\n3\n");
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|err| panic!("{err}: {text}"));
    let status = parse(&view.read(".fettle/status.json"));
    let mut by_command = view.status();
    let fields = by_command.as_object_mut().expect("an object");
    for field in ["v", "ok", "op"] {
        fields.remove(field);
    }
    assert_eq!(status, by_command);

    let (c, d) = (id_of(&view, "c.txt"), id_of(&view, "d.txt"));
    let held = |id: &str, name: &str| view.try_read(format!(".fettle/held/{id}/{name}"));
    let text = |bytes: io::Result<Vec<u8>>| String::from_utf8(bytes.expect("it is there")).expect("UTF-8");
    assert_eq!((text(held(&c, "old")), text(held(&c, "new"))), (OLD.to_owned(), NEW.to_owned()));
    assert_eq!(text(held(&c, "diff")), view.cli(&["diff", "c.txt"]).ok().stdout);
    assert_eq!(parse(&text(held(&c, "meta.json"))), status["held"][0]);
    assert_eq!(text(held(&d, "old")), OLD);
    let kind = |result: io::Result<Vec<u8>>| result.expect_err("it is not there").kind();
    assert_eq!(kind(held(&d, "new")), io::ErrorKind::NotFound);
    assert_eq!(kind(held("deadbeef", "diff")), io::ErrorKind::NotFound);
    let names = |dir: &str| {
        let entries = std::fs::read_dir(view.path(dir)).expect("a directory");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    let mut ids = vec![c.clone(), d.clone()];
    ids.sort();
    assert_eq!(names(".fettle/held"), ids);
    assert_eq!(names(&format!(".fettle/held/{c}")), ["diff", "meta.json", "new", "old"]);
    assert_eq!(names(&format!(".fettle/held/{d}")), ["diff", "meta.json", "old"]);
    assert_eq!(names(".fettle"), ["NOTICE.md", "backups", "control", "events.jsonl", "held", "shell", "status.json"]);
    let backup = status["backups"][0]["name"].as_str().expect("a backup").to_owned();
    assert_eq!(names(".fettle/backups"), std::slice::from_ref(&backup));
    assert_eq!(view.read(format!(".fettle/backups/{backup}")), OLD);
    assert!(view.read(".fettle/NOTICE.md").contains("fettlefs status"));

    // What is decided is gone from here.
    view.cli(&["confirm", &c]).ok();
    assert_eq!(names(".fettle/held"), [d]);
    assert_eq!(kind(view.try_read(format!(".fettle/held/{c}/diff"))), io::ErrorKind::NotFound);
}

/// Whoever looks is told when it is not what he would confirm.
#[test]
fn what_is_being_written_is_not_shown_as_what_its_id_stands_for() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    let shown = || view.cli(&["diff", "c.txt"]).ok().stdout;
    let reviewed = shown();
    assert!(reviewed.starts_with("diff --git "), "{reviewed}");
    let writer = File::options().write(true).open(view.path("c.txt")).expect("open for writing");
    writer.write_all_at(b"evil", 0).expect("write");
    let told = shown();
    let remark = format!("# c.txt: a program is writing to it: this is not what {id} stands for\n");
    assert!(told.starts_with(&remark) && told.contains("+evil"), "{told}");
    let new = |id: &str| view.try_read(format!(".fettle/held/{id}/new"));
    assert_eq!(new(&id).expect_err("it is another").raw_os_error(), Some(libc::EBUSY));
    writer.write_all_at(&NEW.as_bytes()[..4], 0).expect("write");
    assert_eq!((shown(), new(&id).expect("as before")), (reviewed, NEW.into()));
}

#[test]
fn events_are_a_json_object_a_line_with_numbers_that_rise_by_one() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("notes.txt", "one\ntwo\n3\n");
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    let (c, d) = (id_of(&view, "c.txt"), id_of(&view, "d.txt"));
    view.cli(&["confirm", &c]).ok();
    view.cli(&["discard", &d]).ok();
    view.cli(&["rollback", "c.txt"]).ok();
    let events: Vec<Value> = view
        .read(".fettle/events.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}")))
        .collect();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event["seq"].as_u64(), event["event"].as_str(), event["path"].as_str(), event["id"].as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (Some(1), Some("session_started"), None, None),
            (Some(2), Some("write_landed"), Some("notes.txt"), None),
            (Some(3), Some("write_held"), Some("c.txt"), Some(&*c)),
            (Some(4), Some("write_held"), Some("d.txt"), Some(&*d)),
            (Some(5), Some("confirmed"), Some("c.txt"), Some(&*c)),
            (Some(6), Some("discarded"), Some("d.txt"), Some(&*d)),
            (Some(7), Some("rolled_back"), Some("c.txt"), None),
        ]
    );
    let fields = ["seq", "time", "event", "opened_by", "written_by"];
    for event in &events {
        assert!(fields.iter().all(|field| event.get(field).is_some()), "{event}");
        event["time"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok()).expect("an RFC 3339 time");
    }
    // `log` tells the same, the latest first.
    let log = view.cli(&["log", "-n", "0", "--json"]).ok().json();
    let newest_first: Vec<Value> = events.into_iter().rev().collect();
    assert_eq!(log["events"], Value::Array(newest_first));
    let latest = view.cli(&["log", "-n", "1", "--json"]).ok().json();
    assert_eq!((latest["events"].as_array().map(Vec::len), &latest["next"]), (Some(1), &json!(1)));
}

#[test]
fn everything_in_it_but_the_control_file_is_read_only_and_none_of_it_is_listed() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    let listed = |dir: &str| view.sh(&format!("ls -a {dir}")).ok().stdout;
    assert!(!listed(".").contains(".fettle"), "{}", listed("."));
    let mode = |path: &str| {
        view.path(path).metadata().unwrap_or_else(|err| panic!("{path}: {err}")).permissions().mode() & 0o7777
    };
    assert_eq!((mode(".fettle"), mode(".fettle/control"), mode(".fettle/status.json")), (0o555, 0o666, 0o444));
    let diff = format!(".fettle/held/{id}/diff");
    for path in
        [".fettle/status.json", ".fettle/events.jsonl", ".fettle/NOTICE.md", &diff, &format!(".fettle/held/{id}/new")]
    {
        let before = view.read(path);
        for script in [
            format!("echo x > {path}"),
            format!("echo x >> {path}"),
            format!("rm {path}"),
            format!("mv {path} elsewhere"),
            format!("mv c.txt {path}"),
            format!("ln {path} elsewhere"),
            format!("chmod 777 {path}"),
            format!("touch {path}"),
            format!("truncate -s 0 {path}"),
        ] {
            let output = view.sh(&script);
            assert_ne!(output.status, 0, "{script}: {}{}", output.stdout, output.stderr);
        }
        assert_eq!(view.read(path), before, "{path}");
    }
    for script in [
        "echo x > .fettle/new",
        "mkdir .fettle/new",
        "rm -r .fettle",
        "rmdir .fettle",
        "mv .fettle elsewhere",
        "mv .fettle/held elsewhere",
        "ln -s x .fettle/new",
        "rm .fettle/control",
        "mkdir .fettle",
        "cp c.txt .fettle/backups/x",
        "cp .fettle/held/x y",
    ] {
        let output = view.sh(script);
        assert_ne!(output.status, 0, "{script}: {}{}", output.stdout, output.stderr);
    }
    assert_eq!(id_of(&view, "c.txt"), id);
    assert!(!view.has("elsewhere") && !scratch.has("elsewhere"));
    assert_well(&view);
}

#[test]
fn attributes_of_files_say_what_status_says_and_are_not_listed() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    view.write("c.txt", NEW);
    let id = id_of(&view, "c.txt");
    let get = |path: &str, name: &str| {
        let mut value = [0; 64];
        let found = rustix::fs::lgetxattr(view.path(path), format!("user.fettle.{name}"), &mut value);
        found.ok().map(|count| String::from_utf8(value[..count].to_vec()).expect("UTF-8"))
    };
    assert_eq!(
        (get("c.txt", "state"), get("c.txt", "id"), get("c.txt", "reason")),
        (Some("held".into()), Some(id), Some("size".into()))
    );
    assert_eq!(
        (get("notes.txt", "state"), get("notes.txt", "id"), get("notes.txt", "reason")),
        (Some("clean".into()), None, None)
    );
    assert_eq!(get("c.txt", "externally_modified").as_deref(), Some("0"));
    assert_eq!(get("c.txt", "nonsense"), None);
    let mut open = File::options().append(true).open(view.path("notes.txt")).expect("it opens");
    open.write_all(b"x").expect("it is written");
    assert_eq!(get("notes.txt", "state").as_deref(), Some("dirty"));
    drop(open);
    scratch.write("c.txt", "somebody else's\n");
    eventually("the other edit shows", || get("c.txt", "externally_modified").as_deref() == Some("1"));
    let mut names = [0; 1024];
    let count = rustix::fs::llistxattr(view.path("c.txt"), &mut names).expect("names are listed");
    assert!(!String::from_utf8_lossy(&names[..count]).contains("fettle"));
    assert!(
        rustix::fs::lsetxattr(view.path("c.txt"), "user.fettle.state", b"clean", rustix::fs::XattrFlags::empty())
            .is_err()
    );
}

#[test]
fn writers_are_waited_for_no_longer_than_a_clock_can_tell() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let forever = u64::MAX;
    assert_eq!(ask(&open(&view), format!("{{\"v\":1,\"op\":\"flush\",\"timeout\":{forever}}}\n"))["ok"], true);
    assert_well(&view);
    let told = ask(&open(&view), format!("{{\"v\":1,\"op\":\"unmount\",\"timeout\":{forever}}}\n"));
    assert_eq!((&told["ok"], &told["op"]), (&json!(true), &json!("unmount")), "{told}");
    eventually("it is unmounted", || !view.is_mounted());
}

#[test]
fn an_unmount_whose_answer_nobody_reads_ends_the_view_by_the_next_request() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut control = open(&view);
    control.write_all(b"{\"v\":1,\"op\":\"unmount\"}\n").expect("the request is taken");
    // Busy until the first is answered.
    eventually("the next request is taken", || control.write(VERSION.as_bytes()).is_ok());
    eventually("it is unmounted", || !view.is_mounted());
}

/// The confirm waits for a writer, for longer than a mount that is taken away waits for those who are still in it.
#[test]
fn an_unmount_waits_for_a_confirm_that_is_under_way() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let mut writer = File::options().append(true).open(view.path("c.txt")).expect("it opens");
    writer.write_all(b"more\n").expect("it is written");
    let (mut confirm, unmount) = (open(&view), open(&view));
    let request = "{\"v\":1,\"op\":\"confirm\",\"paths\":[\"c.txt\"],\"wait\":true}\n";
    confirm.write_all(request.as_bytes()).expect("the request is taken");
    assert_eq!(ask(&unmount, "{\"v\":1,\"op\":\"unmount\",\"force\":true}\n")["ok"], true);
    drop(unmount);
    assert!(!within(Duration::from_secs(4), || !view.is_mounted()), "it waits");
    drop(writer);
    let mut told = String::new();
    confirm.read_to_string(&mut told).expect("it is answered");
    assert!(told.contains("\"applied\""), "{told}");
    drop(confirm);
    eventually("it is unmounted", || !view.is_mounted());
    assert_eq!(scratch.read("c.txt"), format!("{NEW}more\n"));
}

#[test]
fn however_many_others_wait_the_owner_is_heard() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    std::fs::set_permissions(scratch.root(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let request = format!("{{\"v\":1,\"op\":\"confirm\",\"ids\":[\"{}\"]}}\n", id_of(&view, "c.txt"));
    // Waits for an event that never comes, on more descriptors than there are places.
    let script = r#"
os.setgid(65534); os.setgroups([]); os.setuid(65534)
def ask(request):
    fd = os.open(".fettle/control", os.O_RDWR)
    os.write(fd, request)
    return fd
waiting = [ask(b'{"v":1,"op":"events","since":1000000000000,"wait":true}') for _ in range(80)]
assert b'"busy"' in os.read(ask(b'{"v":1,"op":"version"}'), 1 << 16)
print("asked", flush=True)
sys.stdin.read()
"#;
    let mut command = crate::harness::script::command(&scratch, view.root(), script);
    let mut others = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 runs");
    let mut line = String::new();
    let out = others.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("it says when it has asked");
    assert_eq!(line, "asked\n");
    assert_eq!(ask(&open(&view), VERSION)["ok"], true);
    assert_eq!(ask(&open(&view), request)["outcomes"][0]["action"], "applied");
    view.assert_landed("c.txt", NEW);
    drop(others.stdin.take());
    assert!(others.wait().expect("it ends").success());
}
