//! `fettlefs fsck`: what is sound, and what is not, with a mount and without one.

use super::{small, work};
use crate::harness::mounted_scratch;

#[test]
fn fsck_tells_what_is_wrong_mounted_or_not() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let sound = view.cli(&["fsck"]).ok().stdout;
    assert!(sound.starts_with("fettlefs: no problem in "), "{sound}");

    let orphan = view.lower().join(".fettle/stage/4711");
    std::fs::write(&orphan, "whose?\n").expect("a file in the state directory");
    let wrong = view.cli(&["fsck"]);
    assert_eq!(wrong.status, 1, "{}", wrong.stdout);
    let mut lines = wrong.stdout.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("fettlefs: 1 problem in ")), "{}", wrong.stdout);
    assert_eq!(lines.next(), Some("  orphan  stage/4711: is upper content that no row tells of"));
    let json = view.cli(&["fsck", "--json"]).json();
    assert_eq!((json["ok"].as_bool(), json["op"].as_str()), (Some(true), Some("fsck")));
    assert_eq!(
        (json["problems"][0]["kind"].as_str(), json["problems"].as_array().map(Vec::len)),
        (Some("orphan"), Some(1))
    );
    std::fs::remove_file(orphan).expect("the orphan goes");
    view.unmount();

    std::fs::create_dir(scratch.lower().join("elsewhere")).expect("a directory");
    std::fs::write(scratch.lower().join("elsewhere/.fettle-tmp-0123"), "left\n").expect("a temporary name");
    let wrong = scratch.cli(&["fsck"]);
    assert_eq!(wrong.status, 1, "{}", wrong.stdout);
    assert!(wrong.stdout.contains("  temporary  elsewhere/.fettle-tmp-0123: "), "{}", wrong.stdout);
}
