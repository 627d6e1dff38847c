//! An inode number that another file has later: what waits for review, or is judged, is of the inode and not of its number.
//!
//! Few file systems give a number to the next file at once. Here what is remembered is made to be of the number that the
//! next file has.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::model::{Stamp, Timestamp};
use crate::store::{AnchorState, Below};

/// `d` and `e` are two names of a file that was made after `a`.
fn make_younger(bench: &Bench, than: &str, content: &str) {
    let birth = |path: &str| std::fs::metadata(bench.lower_path(path)).unwrap().created().unwrap();
    let first = birth(than);
    bench.put("d", content);
    while birth("d") == first {
        // As coarse as the clock of the file system is.
        std::fs::remove_file(bench.lower_path("d")).unwrap();
        bench.put("d", content);
    }
    std::fs::hard_link(bench.lower_path("d"), bench.lower_path("e")).unwrap();
}

/// What waits at `a` is based on an inode that had the number of `d`, and of which the row says what is `told` of it.
fn base_on_number_of_d(bench: &Bench, told: impl Fn(Stamp) -> Stamp) {
    let inode = std::fs::metadata(bench.lower_path("d")).unwrap().ino();
    let mut state = bench.view().state.lock();
    let id = state.uppers.at(&RelPath::parse(b"a").unwrap()).unwrap();
    let mut row = state.uppers.get(id).unwrap().row.clone();
    let Below::Entry { stamp, .. } = &mut row.base.below else { panic!("{row:?}") };
    *stamp = told(Stamp { inode, ..*stamp });
    bench.view().store().save_upper(&row).unwrap();
    state.uppers.set_row(row);
}

/// `a`, of which a change waits that was written through one of `names` names, has gone with all of them, and its number
/// is that of `d` and `e`.
fn reused(names: usize, told: impl Fn(Stamp) -> Stamp) -> Bench {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let further = &["b", "c"][..names - 1];
    further.iter().for_each(|name| std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap());
    bench.save("a", &changed(100, 60));
    make_younger(&bench, "a", &lines(40));
    base_on_number_of_d(&bench, told);
    ["a"].iter().chain(further).for_each(|name| std::fs::remove_file(bench.lower_path(name)).unwrap());
    bench
}

fn without_birth(stamp: Stamp) -> Stamp {
    Stamp { btime: Timestamp::default(), ..stamp }
}

/// The view follows lower at `d` and `e`, and nothing of what waits at `a` gets there.
fn check_apart(bench: &Bench) {
    for name in ["d", "e"] {
        assert_eq!(bench.read(name), Some(lines(40)), "{name}");
        let (parent, name) = bench.parent(name);
        assert_eq!(bench.view().lookup(parent, name).unwrap().attributes.meta.links, 2);
    }
    let id = bench.only_id();
    bench.save("d", &changed(40, 2));
    assert_eq!((bench.lower("d"), bench.read("e")), (Some(changed(40, 2)), Some(changed(40, 2))));
    assert_eq!((bench.only_id(), bench.read("a")), (id, Some(changed(100, 60))));
    std::fs::write(bench.lower_path("d"), lines(40)).unwrap();
}

#[test]
fn what_waits_is_not_shown_under_a_file_that_has_the_number_later() {
    for (names, told) in [(1, None), (2, None), (3, None), (2, Some(without_birth as fn(Stamp) -> Stamp))] {
        let mut bench = reused(names, told.unwrap_or(|stamp| stamp));
        check_apart(&bench);
        bench.remount();
        check_apart(&bench);
    }
}

#[test]
fn what_waits_is_shown_under_all_names_where_nobody_says_when_the_inode_was_made() {
    let mut bench = Bench::new();
    make_younger(&bench, ".", &lines(100));
    std::fs::hard_link(bench.lower_path("d"), bench.lower_path("a")).unwrap();
    bench.save("a", &changed(100, 60));
    base_on_number_of_d(&bench, without_birth);
    let show = |bench: &Bench| ["a", "d", "e"].iter().all(|name| bench.read(name) == Some(changed(100, 60)));
    assert!(show(&bench));
    bench.remount();
    assert!(show(&bench));
}

#[test]
fn what_is_made_where_a_file_was_is_no_change_of_one_that_has_its_number_later() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.rename("a", "b");
    std::fs::remove_file(bench.lower_path("b")).unwrap();
    let mut of_a = bench.view().store().load_anchors().unwrap();
    of_a.retain(|anchor| anchor.path.as_bytes() == b"a");
    make_younger(&bench, ".", &lines(40));
    let inode = std::fs::metadata(bench.lower_path("d")).unwrap().ino();
    std::fs::rename(bench.lower_path("d"), bench.lower_path("b")).unwrap();
    for anchor in &mut of_a {
        let Some(AnchorState::Moved { stamp, .. }) = &mut anchor.known.had else { panic!("{anchor:?}") };
        stamp.inode = inode;
        anchor.known.went.iter_mut().for_each(|went| went.stamp.inode = inode);
    }
    assert_eq!(of_a.len(), 1);
    bench.view().store().save_anchors(&of_a).unwrap();
    bench.view().state.lock().know(of_a);
    bench.save("a", &changed(40, 2));
    assert_eq!(bench.lower("a"), None, "what it was is not known any more: it waits");
    assert_eq!((bench.lower("b"), bench.read("a")), (Some(lines(40)), Some(changed(40, 2))));
}

/// A copy of a project in which a change of a file with the names `a` and `b` waits.
fn copied(change: impl FnOnce(&std::path::Path)) -> Bench {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &changed(100, 60));
    let copy = tempfile::tempdir().unwrap();
    crash::copy_project(&bench.dir, copy.path());
    change(copy.path());
    Bench::within(copy, &[])
}

#[test]
fn what_waits_is_shown_under_all_names_in_a_copy_of_the_project_too() {
    let mut bench = copied(|_| ());
    for _ in 0..2 {
        assert_eq!((bench.read("a"), bench.read("b")), (Some(changed(100, 60)), Some(changed(100, 60))));
        bench.remount();
    }
    assert_eq!(bench.confirm(&[bench.only_id()]).unwrap().len(), 1);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(100, 60)), Some(changed(100, 60))));
}

#[test]
fn what_somebody_has_written_in_a_copy_shows_under_the_names_that_nobody_has_changed() {
    let bench = copied(|copy| std::fs::write(copy.join("b"), lines(40)).unwrap());
    assert_eq!((bench.read("a"), bench.read("b")), (Some(changed(100, 60)), Some(lines(40))));
}

#[test]
fn a_held_file_is_one_under_all_its_names_after_a_restart_also_where_its_own_leads_elsewhere_below() {
    for (order, is_replaced) in [("abc", true), ("bca", true), ("cab", true), ("abc", false), ("bac", false)] {
        let mut bench = Bench::new();
        bench.put("a", &lines(100));
        for name in ["b", "c"] {
            std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap();
        }
        bench.save("a", &changed(100, 60));
        std::fs::remove_file(bench.lower_path("a")).unwrap();
        if is_replaced {
            bench.put("a", "somebody's\n");
        }
        bench.remount();
        let nodes: Vec<_> = order.split_terminator("").skip(1).map(|name| bench.node(name).unwrap()).collect();
        assert!(nodes.iter().all(|node| *node == nodes[0]), "{order}, {is_replaced}: {nodes:?}");
        assert_eq!(["a", "b", "c"].map(|name| bench.read(name)), [(); 3].map(|()| Some(changed(100, 60))));
    }
}
