use super::place::find_with;
use super::*;
use crate::model::{Digest, RelPath};
use crate::protocol::{
    Acted, DiffReply, ErrorCode, INSTANCE_FILE, LogReply, Op, PROJECT_LINK, Reply, Request, Response, STATE_DIRECTORY,
    Target, VersionReply,
};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

fn place(start: &str) -> Place {
    Place { root: "/p".into(), state: "/p/.fettle".into(), start: start.into() }
}

fn readings(id: Option<&str>, path: Option<&str>, glob: Option<&str>) -> Target {
    let path = path.map(|path| RelPath::parse(path.as_bytes()).expect(path));
    Target { id: id.map(str::to_owned), path, glob: glob.map(str::to_owned) }
}

#[test]
fn an_argument_is_sent_in_every_way_it_can_be_read() {
    for (start, argument, want) in [
        ("/p", "a1b2", readings(Some("a1b2"), Some("a1b2"), None)),
        ("/p/src", "a.rs", readings(Some("a.rs"), Some("src/a.rs"), None)),
        ("/p/src", "../Cargo.toml", readings(None, Some("Cargo.toml"), None)),
        ("/p/src", "./x/./y/", readings(None, Some("src/x/y"), None)),
        ("/p/src", "/p/lib/b.rs", readings(None, Some("lib/b.rs"), None)),
        ("/p", ".", readings(Some("."), Some(""), None)),
        ("/p/src", "*.rs", readings(Some("*.rs"), Some("src/*.rs"), Some("src/*.rs"))),
        ("/p/[a]", "*.rs", readings(Some("*.rs"), Some("[a]/*.rs"), Some("[[]a[]]/*.rs"))),
        ("/p/[a]", "../*.rs", readings(None, Some("*.rs"), Some("*.rs"))),
        ("/p/app/[id]/edit", "../*.rs", readings(None, Some("app/[id]/*.rs"), Some("app/[[]id[]]/*.rs"))),
        ("/p/[a]", "../[a]/*.rs", readings(None, Some("[a]/*.rs"), Some("[a]/*.rs"))),
        ("/p/[a]", "x/../*.rs", readings(None, Some("[a]/*.rs"), Some("[[]a[]]/*.rs"))),
        ("/p/[a]", "/p/[a]/*.rs", readings(None, Some("[a]/*.rs"), Some("[[]a[]]/*.rs"))),
        ("/p/[a]", "/p/[a]b/*.rs", readings(None, Some("[a]b/*.rs"), Some("[a]b/*.rs"))),
    ] {
        assert_eq!(target(&place(start), OsStr::new(argument)).expect(argument), want, "{argument} in {start}");
    }
}

#[test]
fn an_argument_that_leads_out_of_the_project_is_refused() {
    for argument in ["../../etc/passwd", "/nowhere/x", "/p2/x"] {
        let err = target(&place("/p/src"), OsStr::new(argument)).expect_err(argument);
        assert_eq!(err.to_string(), format!("{argument} is outside the project /p"));
    }
}

#[test]
fn an_argument_that_is_no_path_is_told_why() {
    let (long, in_sub) = (format!("sub/{}", "x".repeat(256)), place("/p/src"));
    for (argument, why) in [("sub/a\0b", "path has a NUL byte"), (&long, "name is longer than 255 bytes")] {
        for err in
            [target(&in_sub, OsStr::new(argument)).unwrap_err(), path_of(&in_sub, OsStr::new(argument)).unwrap_err()]
        {
            assert_eq!((err.code(), err.to_string()), (ErrorCode::BadRequest, format!("{argument:?}: {why}")));
        }
    }
    // As an id it may be one that there is not.
    assert_eq!(target(&in_sub, OsStr::new("a\0b")).unwrap(), readings(Some("a\0b"), None, None));
    let empty = path_of(&in_sub, OsStr::new("")).unwrap_err();
    assert_eq!(empty.to_string(), "an empty argument names nothing in the project /p");
}

#[test]
fn a_project_is_found_from_any_directory_below_it() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().canonicalize().unwrap();
    let deep = root.join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    assert!(matches!(find_with(deep.clone(), None), Err(ClientError::NoProject(_))));

    let state = project(&root);
    let want = Place { root, state, start: deep.clone() };
    assert_eq!(find_with(deep.clone(), None).unwrap(), want);
    // A file of that name is passed over, and so is a directory without state.
    std::fs::write(deep.join(STATE_DIRECTORY), "").unwrap();
    std::fs::create_dir(deep.parent().unwrap().join(STATE_DIRECTORY)).unwrap();
    assert_eq!(find_with(deep, None).unwrap(), want);
}

#[test]
fn a_state_directory_elsewhere_names_its_project() {
    let scratch = tempfile::tempdir().unwrap();
    let state = scratch.path().join("state");
    std::fs::create_dir(&state).unwrap();
    assert_eq!(find_with("/p/src".into(), Some(state.clone())).unwrap().root, Path::new("/p/src"));
    std::os::unix::fs::symlink("/p", state.join(PROJECT_LINK)).unwrap();
    assert_eq!(find_with("/p/src".into(), Some(state.clone())).unwrap().root, Path::new("/p"));
    let refused = find_with("/q".into(), Some(state.clone())).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::BadRequest);
    let link = state.join(PROJECT_LINK);
    let want = format!(
        "the state directory {} belongs to /p, not to /q; /p is gone: if it was moved, `ln -sfn ITS_NEW_PATH {}`",
        state.display(),
        link.display()
    );
    assert_eq!(refused.to_string(), want);
}

fn nobody(_: &Place, request: &Request) -> Response {
    match request.op {
        Op::Confirm => Response::done(Reply::Confirm(Acted::default())),
        op => panic!("{op} asked offline"),
    }
}

/// A daemon that answers each request in turn with the next of `answers`.
fn daemon(state: &Path, answers: Vec<Vec<u8>>) -> std::thread::JoinHandle<Vec<Request>> {
    let directory = std::fs::File::open(state).unwrap();
    let name = format!("/proc/self/fd/{}/control.sock", std::os::fd::AsRawFd::as_raw_fd(&directory));
    let listener = UnixListener::bind(name).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut asked = Vec::new();
        for answer in answers {
            let mut line = Vec::new();
            lines.read_until(b'\n', &mut line).unwrap();
            asked.push(Request::parse(&line).unwrap());
            stream.write_all(&answer).unwrap();
        }
        asked
    })
}

fn project(scratch: &Path) -> PathBuf {
    let state = scratch.join(STATE_DIRECTORY);
    std::fs::create_dir_all(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(state.join(INSTANCE_FILE), "a1b2").unwrap();
    state
}

#[test]
fn without_a_daemon_the_state_directory_answers() {
    let scratch = tempfile::tempdir().unwrap();
    let state = project(scratch.path());
    drop(UnixListener::bind(state.join("control.sock")).unwrap());
    let mut client = Client::open(scratch.path(), nobody).unwrap();
    assert!(matches!(client.reach(), Reach::Offline));
    assert_eq!(client.ask(&Request::new(Op::Confirm)), Ok(Reply::Confirm(Acted::default())));
}

#[test]
fn pages_are_asked_for_until_the_last_through_a_socket_of_any_depth() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("deep/".repeat(30));
    let page = |next| Response::done(Reply::Log(LogReply { events: vec![], next })).to_line();
    let asked = daemon(&project(&root), vec![page(Some(2)), page(Some(5)), page(None)]);
    let mut client = Client::open(&root, nobody).unwrap();
    assert_eq!(client.ask(&Request::new(Op::Log)), Ok(Reply::Log(LogReply::default())));
    let offsets: Vec<u64> = asked.join().unwrap().iter().map(|request| request.offset).collect();
    assert_eq!(offsets, [0, 2, 5]);
}

/// A clone can bring a `.fettle` with it, and a program can make one.
#[test]
fn what_only_looks_like_a_view_is_none_and_is_not_written_to() {
    let scratch = tempfile::tempdir().unwrap();
    let (state, victim) = (scratch.path().join(STATE_DIRECTORY), scratch.path().join("victim"));
    std::fs::create_dir(&state).unwrap();
    std::fs::write(&victim, "as it was\n").unwrap();
    let refused = |what: &str| {
        let refused = Client::open(scratch.path(), nobody).map(drop).expect_err(what);
        assert!(matches!(refused, ClientError::NoProject(_)), "{what}: {refused}");
    };
    std::os::unix::fs::symlink(&victim, state.join("control")).unwrap();
    refused("a link");
    std::fs::remove_file(state.join("control")).unwrap();
    std::fs::write(state.join("control"), "an answer\n").unwrap();
    refused("a file");
    std::fs::remove_file(state.join("control")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, state.join("control"), rustix::fs::Mode::RUSR).unwrap();
    refused("a pipe");
    // Beside what makes a project of it.
    project(scratch.path());
    assert!(matches!(Client::open(scratch.path(), nobody).unwrap().reach(), Reach::Offline));
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "as it was\n");
}

#[test]
fn state_that_is_not_private_or_somebody_elses_is_not_believed() {
    let scratch = tempfile::tempdir().unwrap();
    let state = project(scratch.path());
    let open = |mode: u32| {
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode)).unwrap();
        Client::open(scratch.path(), nobody).map(drop)
    };
    assert!(matches!(open(0o755), Err(ClientError::OpenState(_))));
    assert!(matches!(open(0o770), Err(ClientError::OpenState(_))));
    open(0o700).unwrap();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(&state, Some(4321), None).unwrap();
    assert!(matches!(open(0o700), Err(ClientError::OthersState { uid: 4321, .. })));
    let named = find_with(scratch.path().to_owned(), Some(state.clone()));
    assert!(matches!(named, Err(ClientError::OthersState { .. })));
    // A project of somebody else's, as a whole.
    std::os::unix::fs::chown(scratch.path(), Some(4321), None).unwrap();
    open(0o700).unwrap();
}

#[test]
fn a_link_in_the_place_of_the_socket_leads_to_no_daemon() {
    let (scratch, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _listening = UnixListener::bind(elsewhere.path().join("control.sock")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("control.sock"), project(scratch.path()).join("control.sock"))
        .unwrap();
    assert!(matches!(Client::open(scratch.path(), nobody).unwrap().reach(), Reach::Offline));
}

#[test]
fn a_daemon_that_ends_with_a_request_in_its_hand_is_none() {
    let scratch = tempfile::tempdir().unwrap();
    let asked = daemon(&project(scratch.path()), vec![Vec::new()]);
    let mut client = Client::open(scratch.path(), nobody).unwrap();
    let refused = client.ask(&Request::new(Op::Run)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotMounted, "{}", refused.message);
    assert!(refused.message.contains("ended before it answered"), "{}", refused.message);
    asked.join().unwrap();
}

#[test]
fn one_that_says_why_and_hangs_up_without_taking_a_request_is_heard() {
    let scratch = tempfile::tempdir().unwrap();
    let state = project(scratch.path());
    let listener = UnixListener::bind(state.join("control.sock")).unwrap();
    let mut client = Client::open(scratch.path(), nobody).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"{\"v\":1,\"ok\":false,\"error\":{\"code\":\"busy\",\"message\":\"32\"}}\n").unwrap();
    drop(stream);
    assert_eq!(client.ask(&Request::new(Op::Status)).unwrap_err().code, ErrorCode::Busy);
}

#[test]
fn an_answer_of_one_page_is_passed_on_as_it_was_said() {
    let said = |more: &str| format!("{{\"v\":1,\"ok\":true,\"op\":\"log\",\"events\":[]{more}}}\n").into_bytes();
    // Nothing that this program would say: what it reads and says anew does not have it.
    let one = said(",\"later\":\"\u{e9}\"");
    for (answers, want) in [
        (vec![one.clone()], Ok(one)),
        (vec![said(",\"next\":2"), said("")], Ok(said(""))),
        (vec![said("").repeat(2)], Err(ErrorCode::Io)),
        (vec![[&said("")[..said("").len() - 2], b",\"later\":\"\xff\"}\n"].concat()], Ok(said(""))),
        (
            vec![b"{\"v\":1,\"ok\":false,\"error\":{\"code\":\"busy\",\"message\":\"\"}}\n".to_vec()],
            Err(ErrorCode::Busy),
        ),
        (vec![b"{\"v\":2,\"ok\":true,\"op\":\"log\"}\n".to_vec()], Err(ErrorCode::UnsupportedVersion)),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let asked = daemon(&project(scratch.path()), answers);
        let mut client = Client::open(scratch.path(), nobody).unwrap();
        assert_eq!(client.ask_line(&Request::new(Op::Log)).map_err(|err| err.code), want);
        asked.join().unwrap();
    }
}

#[test]
fn an_answer_that_is_none_is_an_error_and_not_a_result() {
    for (answer, code) in [
        (&b"{\"v\":1,\"ok\":tr"[..], ErrorCode::Io),
        (b"hello\n", ErrorCode::Io),
        (b"{\"v\":2,\"ok\":true}\n", ErrorCode::UnsupportedVersion),
        (b"{\"v\":1,\"ok\":false}\n", ErrorCode::Io),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let asked = daemon(&project(scratch.path()), vec![answer.to_vec()]);
        let mut client = Client::open(scratch.path(), nobody).unwrap();
        assert_eq!(client.ask(&Request::new(Op::Status)).unwrap_err().code, code, "{answer:?}");
        asked.join().unwrap();
    }
}

#[test]
fn a_daemon_that_ends_before_it_takes_a_request_serves_no_mount() {
    let scratch = tempfile::tempdir().unwrap();
    let ended = daemon(&project(scratch.path()), Vec::new());
    let refused = Client::open(scratch.path(), nobody).unwrap().ask(&Request::new(Op::Status)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotMounted, "{}", refused.message);
    ended.join().unwrap();
}

#[test]
fn a_page_that_does_not_get_on_ends_the_asking() {
    let scratch = tempfile::tempdir().unwrap();
    let page = || Response::done(Reply::Log(LogReply { events: vec![], next: Some(2) })).to_line();
    let asked = daemon(&project(scratch.path()), vec![page(), page()]);
    let mut client = Client::open(scratch.path(), nobody).unwrap();
    assert_eq!(client.ask(&Request::new(Op::Log)).unwrap_err().message, "the daemon repeats a page");
    asked.join().unwrap();
}

#[test]
fn the_next_page_of_diffs_is_asked_for_with_what_was_told() {
    let scratch = tempfile::tempdir().unwrap();
    let told = Some(Digest::of(b"what was told"));
    let pages = [DiffReply { next: Some(2), told, ..DiffReply::default() }, DiffReply::default()];
    let pages = pages.map(|page| Response::done(Reply::Diff(page)).to_line());
    let asked = daemon(&project(scratch.path()), pages.to_vec());
    let mut client = Client::open(scratch.path(), nobody).unwrap();
    assert_eq!(client.ask(&Request::new(Op::Diff)), Ok(Reply::Diff(DiffReply::default())));
    assert_eq!(asked.join().unwrap().iter().map(|request| request.told).collect::<Vec<_>>(), [None, told]);
}

#[test]
fn a_version_reply_needs_no_paging() {
    let scratch = tempfile::tempdir().unwrap();
    let version = Reply::Version(VersionReply { version: "9".into(), protocol: 1, daemon: None, pid: None });
    let asked = daemon(&project(scratch.path()), vec![Response::done(version.clone()).to_line()]);
    assert_eq!(Client::open(scratch.path(), nobody).unwrap().ask(&Request::new(Op::Version)), Ok(version));
    asked.join().unwrap();
}

#[test]
fn nothing_is_no_argument_and_does_not_mean_all_that_is_here() {
    let place = place("/p");
    let told = target(&place, OsStr::new("")).unwrap_err().to_string();
    assert!(told.starts_with("an empty argument names nothing"), "{told}");
    assert!(path_of(&place, OsStr::new("")).is_err());
    assert!(target(&place, OsStr::new(".")).unwrap().path.unwrap().is_root());
}
