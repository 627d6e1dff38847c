//! Whether a backup is for all the world: what is on the way to a file, and what becomes of it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::XattrFlags;

use super::*;
use crate::sys::xattr::{self, ACCESS_ACL};

/// `a/b/c/f`, whose directories are older than a moment: they may be remembered.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.put("a/b/c/f", &lines(3));
    ["", "a", "a/b", "a/b/c"].iter().for_each(|dir| let_through(&bench, dir));
    outlast(Duration::from_millis(150));
    bench
}

fn let_through(bench: &Bench, dir: &str) {
    give(bench, dir, 0o755);
}

fn give(bench: &Bench, path: &str, mode: u32) {
    std::fs::set_permissions(bench.lower_path(path), Permissions::from_mode(mode)).unwrap();
}

fn is_for_all(bench: &Bench) -> bool {
    let path = RelPath::parse(b"a/b/c/f").unwrap();
    bench.view().is_for_all(&path, &bench.view().present_side(&path).unwrap())
}

#[test]
fn each_directory_on_the_way_keeps_others_out_as_soon_as_it_does() {
    let bench = bench();
    assert!(is_for_all(&bench) && is_for_all(&bench));
    for dir in ["", "a", "a/b", "a/b/c"] {
        for mode in [0o750, 0o705, 0o700] {
            give(&bench, dir, mode);
            assert!(!is_for_all(&bench), "{dir} {mode:o}");
            let_through(&bench, dir);
            assert!(is_for_all(&bench), "{dir}");
        }
    }
}

#[test]
fn a_directory_that_takes_the_place_of_one_on_the_way_is_asked_itself() {
    let bench = bench();
    assert!(is_for_all(&bench));
    bench.put("x/b/c/f", &lines(3));
    give(&bench, "x", 0o700);
    std::fs::rename(bench.lower_path("a"), bench.lower_path("y")).unwrap();
    std::fs::rename(bench.lower_path("x"), bench.lower_path("a")).unwrap();
    assert!(!is_for_all(&bench));
}

/// A list by which everybody may go through, but for one.
fn list() -> Vec<u8> {
    let entry =
        |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    let all = u32::MAX;
    let entries = [entry(1, 7, all), entry(2, 0, 12_345), entry(4, 5, all), entry(16, 5, all), entry(32, 5, all)];
    [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

#[test]
fn a_list_that_names_somebody_may_keep_him_out() {
    let bench = bench();
    assert!(is_for_all(&bench));
    for path in ["a/b/c/f", "a/b/c", "a"] {
        let file = std::fs::File::open(bench.lower_path(path)).unwrap();
        xattr::set(file.as_fd(), OsStr::new(ACCESS_ACL), &list(), XattrFlags::empty()).unwrap();
        assert!(!is_for_all(&bench), "{path}");
        xattr::remove(file.as_fd(), OsStr::new(ACCESS_ACL)).unwrap();
        assert!(is_for_all(&bench), "{path}");
    }
}

#[test]
fn a_list_that_the_view_gives_counts_at_once_though_names_change() {
    let bench = bench();
    assert!(is_for_all(&bench));
    let node = bench.node("a/b").unwrap();
    bench.view().set_xattr(node, ACCESS_ACL.as_ref(), &list(), XattrFlags::empty(), &ME).unwrap();
    bench.put("a/b/g", &lines(1));
    assert!(!is_for_all(&bench));
}

#[test]
fn a_file_that_is_not_for_all_is_not_wherever_it_lies() {
    let bench = bench();
    give(&bench, "a/b/c/f", 0o640);
    assert!(!is_for_all(&bench));
}
