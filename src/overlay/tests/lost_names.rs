//! A node that somebody has renamed below, or one of whose names he has made lead elsewhere: what a program does by a name
//! that leads to it is done to it, and to nothing that has come where it was.

use rustix::fs::XattrFlags;

use super::*;
use crate::overlay::outside::watch::Round;
use crate::sys::watch::Watches;

/// What becomes of `path`, found as `node`.
type Act = fn(&Bench, NodeId, &str) -> Result<()>;

fn chmod(bench: &Bench, node: NodeId, path: &str) -> Result<()> {
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::NOTHING };
    ask(bench, node, path, |node| bench.view().set_attributes(node, None, &set, &ME).map(drop))
}

fn set_time(bench: &Bench, node: NodeId, path: &str) -> Result<()> {
    let mtime = SetTime::At(Timestamp { seconds: 1, nanoseconds: 0 });
    let set = SetAttributes { mtime, ..SetAttributes::NOTHING };
    ask(bench, node, path, |node| bench.view().set_attributes(node, None, &set, &ME).map(drop))
}

fn set_xattr(bench: &Bench, node: NodeId, path: &str) -> Result<()> {
    let set = |node| bench.view().set_xattr(node, OsStr::new("user.x"), b"1", XattrFlags::empty(), &ME);
    ask(bench, node, path, set)
}

fn link(bench: &Bench, node: NodeId, path: &str) -> Result<()> {
    ask(bench, node, path, |node| bench.view().link(node, ROOT, OsStr::new("link"), &ME).map(drop))
}

const ACTS: [Act; 4] = [chmod, set_time, set_xattr, link];

/// What an act may have changed.
fn looks(bench: &Bench, path: &str) -> (u32, u32, Timestamp, bool) {
    let meta = bench.view().lower().stat(&RelPath::parse(path.as_bytes()).unwrap()).unwrap().unwrap();
    let file = std::fs::File::open(bench.lower_path(path)).unwrap();
    let attribute = crate::sys::xattr::find(file.as_fd(), OsStr::new("user.x")).unwrap();
    (meta.mode, meta.links, meta.mtime, attribute.is_some())
}

/// Of two paths, which ones look other after an act.
fn changes(bench: &Bench, paths: [&str; 2], act: impl FnOnce() -> Result<()>) -> [bool; 2] {
    let before = paths.map(|path| looks(bench, path));
    act().unwrap();
    let now = paths.map(|path| looks(bench, path));
    [before[0] != now[0], before[1] != now[1]]
}

/// `a`, which programs know, is `a.1` now, and another file is `a`.
fn rotated() -> (Bench, NodeId) {
    let bench = Bench::new();
    bench.put("a", "old\n");
    let node = bench.node("a").unwrap();
    std::fs::rename(bench.lower_path("a"), bench.lower_path("a.1")).unwrap();
    bench.put("a", "another, longer\n");
    (bench, node)
}

#[test]
fn what_is_done_to_a_file_by_its_new_name_does_not_reach_what_has_its_old_one() {
    for act in ACTS {
        let (bench, old) = rotated();
        let found = bench.node("a.1").unwrap();
        assert_eq!(found, old);
        assert_eq!(changes(&bench, ["a", "a.1"], || act(&bench, found, "a.1")), [false, true]);
        bench.check();
    }
}

#[test]
fn what_is_done_by_the_old_name_that_the_kernel_still_knows_reaches_what_has_that_now() {
    for act in ACTS {
        let (bench, old) = rotated();
        bench.node("a.1").unwrap();
        assert_eq!(changes(&bench, ["a", "a.1"], || act(&bench, old, "a")), [true, false]);
    }
}

/// `a` and `b` are one file that programs know by both, until somebody makes `a` another.
fn parted() -> (Bench, NodeId) {
    let bench = Bench::new();
    bench.put("a", "shared\n");
    ["b", "c"].iter().for_each(|name| std::fs::hard_link(bench.lower_path("a"), bench.lower_path(name)).unwrap());
    let node = ["a", "b"].map(|path| bench.node(path).unwrap())[1];
    std::fs::remove_file(bench.lower_path("a")).unwrap();
    bench.put("a", "a secret, which is longer\n");
    (bench, node)
}

#[test]
fn what_is_done_to_one_of_several_names_does_not_reach_what_has_another_one_now() {
    for act in ACTS {
        let (bench, node) = parted();
        assert_eq!(changes(&bench, ["a", "b"], || act(&bench, node, "b")), [false, true]);
    }
}

#[test]
fn a_name_tells_nothing_of_what_has_another_one_of_its_file_now() {
    let (bench, node) = parted();
    assert_eq!(bench.view().attributes(node).unwrap().meta.size, "shared\n".len() as u64);
    let (bench, node) = parted();
    let theirs = std::fs::File::open(bench.lower_path("a")).unwrap();
    crate::sys::xattr::set(theirs.as_fd(), OsStr::new("user.secret"), b"1", XattrFlags::empty()).unwrap();
    assert_eq!(bench.view().list_xattrs(node).unwrap(), Vec::<std::ffi::OsString>::new());
    // Who has it open, as a descriptor of a FIFO or one of O_PATH, asks by no name and cannot look again.
    let handle = bench.open("b", libc::O_RDONLY).unwrap();
    chmod(&bench, node, "none").unwrap();
    bench.close(handle);
}

#[test]
fn a_symlink_that_was_renamed_below_leads_where_it_led() {
    let bench = Bench::new();
    let make = |target: &str| std::os::unix::fs::symlink(target, bench.lower_path("now")).unwrap();
    make("first");
    let node = bench.node("now").unwrap();
    std::fs::rename(bench.lower_path("now"), bench.lower_path("old")).unwrap();
    make("second");
    assert_eq!(bench.node("old").unwrap(), node);
    let read = |node, path: &str| ask(&bench, node, path, |node| bench.view().read_symlink(node)).unwrap();
    assert_eq!(read(node, "now"), "second");
    assert_eq!(read(node, "old"), "first");
}

/// The kernel looks once more in each open, and not twice.
#[test]
fn what_was_renamed_over_another_below_opens_by_that_name_and_is_not_what_has_the_old_one() {
    let bench = Bench::new();
    bench.put("a", "was a\n");
    bench.put("b", "was b\n");
    let [a, b] = ["a", "b"].map(|path| bench.node(path).unwrap());
    std::fs::rename(bench.lower_path("b"), bench.lower_path("a")).unwrap();
    bench.put("b", "new\n");
    let read = |node, path: &str| {
        let opened = ask(&bench, node, path, |node| bench.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME));
        let handle = opened.unwrap().handle;
        let bytes = bench.view().read(handle, 0, 100).unwrap();
        bench.close(handle);
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(read(a, "a"), "was b\n");
    assert_eq!(read(b, "b"), "new\n");
}

/// Somebody renames what is open, and what is looked at next is what he has made in its place.
#[test]
fn what_is_written_to_a_file_that_was_renamed_below_is_in_it_whichever_name_is_looked_at_first() {
    for (watched, looked) in [(false, true), (true, true), (false, false)] {
        let bench = Bench::new();
        for name in ["a", "d/f"] {
            bench.put(name, "old\n");
        }
        let watches = Watches::new(None).unwrap();
        if watched {
            bench.view().watch_lower(watches.clone());
        }
        let handles = ["a", "d/f"].map(|path| bench.open(path, libc::O_RDWR).unwrap());
        for (from, to) in [("a", "a~"), ("d", "d.old")] {
            std::fs::rename(bench.lower_path(from), bench.lower_path(to)).unwrap();
        }
        bench.put("a", "new\n");
        bench.put("d/f", "new\n");
        if watched {
            let mut round = Round::default();
            round.take(&mut bench.view().state.lock(), watches.wait(Some(Duration::from_secs(10))).unwrap());
            bench.view().follow(round);
        }
        ["a", "d/f"].iter().for_each(|path| assert_eq!(bench.read(path).unwrap(), "new\n"));
        if looked {
            ["a~", "d.old/f"].iter().for_each(|path| assert!(bench.node(path).is_ok()));
        }
        for handle in handles {
            bench.view().write(handle, 4, b"more\n").unwrap();
            bench.close(handle);
        }
        for path in ["a", "d/f"] {
            assert_eq!(bench.lower(path).unwrap(), "new\n", "{path}, watched: {watched}, looked: {looked}");
        }
        for path in ["a~", "d.old/f"] {
            // With another ctime it may be somebody else's, and wait.
            assert_eq!(bench.read(path).unwrap(), "old\nmore\n", "{path}, watched: {watched}, looked: {looked}");
        }
        bench.check();
    }
}
