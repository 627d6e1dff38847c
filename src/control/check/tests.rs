use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::*;
use crate::control::project::Mounted;
use crate::overlay::{Caller, Grants, OpenFlags, Overlay, Policy, ROOT, RuleSource};
use crate::store::{Location, Store};
use crate::sys::steps::{Calls, Fate, Steps, Trap, assert_passes_apart, fail_each_call};
use crate::sys::tree::Tree;

#[test]
fn a_token_is_read_as_it_was_written_and_nothing_else_is_one() {
    let path = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
    let named =
        |content: &str, names: &[&str]| (Digest::of(content.as_bytes()), names.iter().map(|name| path(name)).collect());
    let held: [Named; 2] = [named("b", &["f", "g"]), named("a", &["h"])];
    let tested = Tested { seq: 412, held: digest_of(&held) };
    assert_eq!(Tested::parse(&tested.to_string()), Some(tested.clone()));
    let [b, a] = held.clone();
    assert_eq!(digest_of(&[a, b]), tested.held, "in whatever order they are listed");
    assert_ne!(digest_of(&held[..1]), tested.held);
    let others = [named("b", &["f"]), named("a", &["h", "g"])];
    assert_ne!(digest_of(&others), tested.held, "the same contents by other names");
    for text in ["", "412", "412-", "-", "x-00", &format!("412{}", tested.held)] {
        assert_eq!(Tested::parse(text), None, "{text}");
    }
}

#[test]
fn a_log_that_does_not_reach_back_to_the_start_tells_so_and_nothing_lands() {
    let dir = tempfile::tempdir().unwrap();
    let project = mounted(dir.path());
    let asker = Asker::of(&ME, &project);
    let begun = check_of(CheckPhase::Started, None, &asker, &project).unwrap();
    let store = project.overlay.store();
    for _ in 0..200 {
        store.record(&crate::store::EventDraft::new(EventName::RequestRefused)).unwrap();
    }
    let passes = || check_of(CheckPhase::Passed, Some(begun.tested.clone()), &asker, &project).unwrap().moved;
    assert_eq!(passes(), [""; 0], "all of it is there");
    assert!(store.rotate_events(8 << 10).unwrap() > 0);
    assert_eq!(passes(), [LOG_FALLS_SHORT]);
    let promoted = check_of(CheckPhase::Promote, Some(begun.tested.clone()), &asker, &project);
    assert_eq!(promoted.unwrap_err().code, ErrorCode::Conflict);
}

/// Set for the process in which nothing else runs.
const APART: &str = "FETTLE_PROMOTIONS";

const ME: Caller = Caller { pid: 1, uid: 0, gid: 0, umask: 0o022 };

#[test]
fn a_promotion_is_answered_by_whether_it_has_landed_whatever_cannot_be_recorded() {
    assert_passes_apart("control::check::tests::promotions", (APART, "1"));
}

/// Not a test by itself: what the test above starts.
#[test]
fn promotions() {
    if std::env::var_os(APART).is_none() {
        return;
    }
    assert!(fail_each_call(promotion) > 10);
}

/// A check whose promotion can write nothing more from its `at`-th such call on. Gives whether the answer told what had
/// happened; `None` if nothing has failed.
fn promotion(dir: &Path, at: u64) -> Option<bool> {
    let project = mounted(dir);
    // Sensitive, and so held.
    let (_, opened) =
        project.overlay.create(ROOT, OsStr::new(".envrc"), 0o644, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap();
    project.overlay.write(opened.handle, 0, b"one\n").unwrap();
    project.overlay.flush(opened.handle, &ME).unwrap();
    project.overlay.release(opened.handle).unwrap();
    let asker = Asker::of(&ME, &project);
    let begun = check_of(CheckPhase::Started, None, &asker, &project).unwrap();
    let steps = Steps::watch(Trap::below(dir.to_owned(), Calls::Growing, at, Fate::AllFail(libc::EIO))).unwrap();
    let promoted = check_of(CheckPhase::Promote, Some(begun.tested), &asker, &project);
    steps.relent();
    let has_landed = dir.join(".envrc").exists();
    let is_told = match promoted {
        Ok(reply) => has_landed && reply.outcomes.len() == 1,
        Err(err) => !has_landed || err.message.starts_with("the project has changed and that could not be recorded"),
    };
    (steps.failed() > 0).then_some(is_told)
}

fn check_of(phase: CheckPhase, tested: Option<String>, asker: &Asker, project: &Project) -> Result<CheckReply> {
    let request = Request { phase: Some(phase), tested, ..Request::new(crate::protocol::Op::Check) };
    match check(&request, asker, project)? {
        Reply::Check(reply) => Ok(*reply),
        other => panic!("{other:?}"),
    }
}

fn mounted(dir: &Path) -> Project {
    let lower = Tree::open(dir).unwrap();
    let store = Store::open(&lower, &Location::default()).unwrap();
    let source = RuleSource::default();
    let policy = Policy::load(&lower, &source).unwrap();
    let overlay = Arc::new(Overlay::new(lower, store, policy, Grants::default()).unwrap());
    let mounted = Mounted {
        mountpoint: dir.to_owned(),
        number: OnceLock::new(),
        keeper: None,
        ask_end: Arc::new(|| {}),
        requests: Arc::default(),
    };
    Project { overlay, path: dir.to_owned(), source, owner: 0, mounted: Some(mounted) }
}
