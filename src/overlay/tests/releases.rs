//! Who asks after a close waits for what the release is going to change.

use std::sync::mpsc::channel;
use std::thread;

use super::*;
use crate::overlay::judge::flush::WAIT_FOR_CLOSE;

/// Above any that the kernel gives.
const NO_PROCESS: u32 = 1 << 23;
/// No file system has it, so nobody has a descriptor of it.
const NOBODYS: NodeId = NodeId(u64::MAX);

#[test]
fn a_release_that_comes_late_is_waited_for_where_nobody_has_the_file_open_any_more() {
    let bench = Bench::new();
    bench.view().state.lock().closing.insert(NOBODYS, NO_PROCESS);
    let (answer, answered) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            bench.view().wait_for_release(|_| Some(NOBODYS));
            answer.send(()).unwrap();
        });
        assert!(answered.recv_timeout(WAIT_FOR_CLOSE * 3).is_err(), "the release has yet to come");
        bench.view().state.lock().closing.remove(&NOBODYS);
        drop(Overlay::release_begun(bench.view(), None));
        answered.recv().unwrap();
    });
}

#[test]
fn the_release_of_a_reader_is_not_that_of_the_writer() {
    let bench = Bench::new();
    let (entry, opened) =
        bench.view().create(ROOT, OsStr::new("a"), 0o644, OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap();
    let reader = bench.open("a", libc::O_RDONLY).unwrap();
    bench.view().flush(opened.handle, &ME).unwrap();
    bench.view().release(reader).unwrap();
    assert!(bench.view().state.lock().closing.contains_key(&entry.node));
    bench.view().release(opened.handle).unwrap();
    assert!(bench.view().state.lock().closing.is_empty());
}
