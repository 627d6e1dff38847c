use std::ffi::OsStr;

use super::*;
use crate::overlay::{Caller, OpenFlags, ROOT};
use crate::sys::steps::{Calls, Ended, Fate, Steps, Trap, apart, assert_passes_apart};

/// Set for the process in which nothing else runs.
const APART: &str = "FETTLE_OFFLINE";

/// How an attempt ended: an act that is done was answered, or told as failed, or no call failed any more.
const TOLD: u8 = 0;
const NOT_TOLD: u8 = 1;
const PASSED: u8 = 2;

const ME: Caller = Caller { pid: 1, uid: 0, gid: 0, umask: 0o022 };

/// Sensitive, and so held.
const PATH: &str = ".envrc";

#[test]
fn what_is_done_without_a_mount_is_told_as_done_whatever_fails_afterwards() {
    assert_passes_apart("cli::offline::tests::confirms", (APART, "1"));
}

/// Not a test by itself: what the test above starts.
#[test]
fn confirms() {
    if std::env::var_os(APART).is_none() {
        return;
    }
    for at in 1.. {
        let project = tempfile::tempdir().unwrap();
        match apart(|| confirm(project.path(), at)).unwrap() {
            Ended::Exited(TOLD) => {}
            Ended::Exited(PASSED) => return assert!(at > 10),
            ended => panic!("where call {at} fails: {ended:?}"),
        }
    }
}

/// Confirms what is held, while the `at`-th change in the state directory fails.
fn confirm(root: &Path, at: u64) -> u8 {
    let place = Place { root: root.to_owned(), state: root.join(STATE_DIRECTORY), start: root.to_owned() };
    hold(&place);
    let steps = Steps::watch(Trap::below(place.state.clone(), Calls::Changing, at, Fate::Fails(libc::EIO))).unwrap();
    let answer = answer(&place, &Request { all: true, ..Request::new(Op::Confirm) });
    steps.relent();
    let has_landed = root.join(PATH).exists();
    let is_told = match answer {
        Response::Done(_) => has_landed,
        Response::Failed(err) => !has_landed || err.message.starts_with("the project has changed"),
    };
    match (steps.failed(), is_told) {
        (0, _) => PASSED,
        (_, true) => TOLD,
        (_, false) => NOT_TOLD,
    }
}

fn hold(place: &Place) {
    let lower = Tree::open(&place.root).unwrap();
    let view = open(place, lower, &Location::default(), Op::Status).unwrap().overlay;
    let flags = OpenFlags::from_raw(libc::O_WRONLY);
    let (_, opened) = view.create(ROOT, OsStr::new(PATH), 0o644, flags, &ME).unwrap();
    view.write(opened.handle, 0, b"one\n").unwrap();
    view.flush(opened.handle, &ME).unwrap();
    view.release(opened.handle).unwrap();
}
