use std::ffi::OsStr;

use super::*;
use crate::overlay::{Caller, OpenFlags, ROOT};
use crate::sys::steps::{Calls, Fate, Steps, Trap, assert_passes_apart, fail_each_call};

/// Set for the process in which nothing else runs.
const APART: &str = "FETTLE_OFFLINE";

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
    assert!(fail_each_call(confirm) > 10);
}

/// Confirms what is held, while the `at`-th change in the state directory fails. Gives whether an act that is done was
/// answered; `None` if nothing has failed.
fn confirm(root: &Path, at: u64) -> Option<bool> {
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
    (steps.failed() > 0).then_some(is_told)
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
