//! What a thread that reads requests does not begin, since it would last, is not done in part either.

use super::*;
use crate::sys::haste::in_haste;

/// More than is read or copied in haste.
fn large() -> String {
    lines(200_000)
}

fn write_in_haste(bench: &Bench, handle: HandleId) -> Option<usize> {
    in_haste(|| bench.view().write_by(handle, Position::At(0), b"new!", &ME)).unwrap()
}

#[test]
fn large_content_is_not_copied_in_haste() {
    let bench = Bench::new();
    bench.put("large", &large());
    bench.put("small", &lines(200));
    let [large_one, small_one] = ["large", "small"].map(|path| bench.open(path, libc::O_RDWR).unwrap());
    assert_eq!([large_one, small_one].map(|handle| write_in_haste(&bench, handle)), [None, Some(4)]);
    assert_eq!(bench.stage_files(), 1, "of the small one");
    bench.view().write(large_one, 0, b"new!").unwrap();
    assert_eq!(write_in_haste(&bench, large_one), Some(4), "it is copied already");
    [large_one, small_one].into_iter().for_each(|handle| bench.close(handle));
    assert_eq!(bench.lower("large"), Some(large().replacen("line", "new!", 1)));
}

#[test]
fn large_content_that_is_held_is_not_kept_in_haste() {
    let bench = Bench::new();
    bench.put("f", &large());
    bench.save("f", &large().replace("line", "held"));
    assert_eq!(bench.held().len(), 1);
    let handle = bench.open("f", libc::O_RDWR).unwrap();
    assert_eq!(write_in_haste(&bench, handle), None);
    assert!(bench.backups().is_empty());
    let is_written = bench.view().handle(handle).unwrap().note_written();
    assert!(!is_written, "what comes with a first write is still to come");
    bench.view().write(handle, 0, b"new!").unwrap();
    bench.close(handle);
    assert_eq!(bench.backups(), ["f"]);
}

#[test]
fn large_content_is_not_hashed_in_haste() {
    let bench = Bench::new();
    bench.put("f", "old");
    bench.save("f", "landed");
    bench.put("f", &large());
    let name = OsStr::new("user.fettle.externally_modified");
    let node = bench.node("f").unwrap();
    let ask = || bench.view().get_xattr(node, name);
    assert_eq!(in_haste(ask).unwrap(), None);
    assert_eq!(ask().unwrap(), b"1");
}
