//! Times in the view that lower does not give: programs go by them to see that something has changed.

use super::*;
use crate::model::Timestamp;
use crate::sys::file::Meta;

const LONG_AGO: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };

impl Bench {
    fn stat_shown(&self, path: &str) -> Meta {
        let node = self.node(path).unwrap();
        self.view().attributes(node).unwrap().meta
    }

    fn stat_below(&self, path: &str) -> Meta {
        self.view().lower().stat(&RelPath::parse(path.as_bytes()).unwrap()).unwrap().unwrap()
    }

    fn set_mtime(&self, path: &str, mtime: Timestamp) {
        let set = SetAttributes { mtime: SetTime::At(mtime), ..SetAttributes::NOTHING };
        self.view().set_attributes(self.node(path).unwrap(), None, &set, &ME).unwrap();
    }
}

/// The second as which git and others that leave out the rest see the directory; `mtime` first.
fn seconds(meta: &Meta) -> (i64, i64) {
    (meta.mtime.seconds, meta.ctime.seconds)
}

#[test]
fn a_file_of_which_a_change_was_discarded_is_newer_than_that() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.set_mtime("a", LONG_AGO);
    bench.save("a", &changed(100, 60));
    let held = bench.stat_shown("a");
    bench.discard_all().unwrap();
    let back = bench.stat_shown("a");
    assert!(back.mtime > held.mtime && back.ctime > held.ctime, "{held:?} {back:?}");
    assert_eq!((bench.stat_below("a").mtime, bench.read("a")), (LONG_AGO, Some(lines(100))));
    let is_later = || {
        bench.put("clock", "");
        bench.stat_below("clock").mtime > back.mtime
    };
    // By the kernel's clock for files, which lags behind.
    while !is_later() {}
    bench.undo(&bench.latest()).unwrap();
    let again = bench.stat_shown("a");
    assert!(again.mtime > back.mtime && again.ctime > back.ctime, "{back:?} {again:?}");
    assert_eq!(bench.read("a"), Some(changed(100, 60)));
    bench.discard_all().unwrap();
    assert!(bench.stat_shown("a").mtime > again.mtime);
    // The view's file is lower's, and what is set there counts, even the time that it has.
    bench.set_mtime("a", LONG_AGO);
    assert_eq!(bench.stat_shown("a").mtime, LONG_AGO);
}

#[test]
fn it_has_lowers_times_again_once_lower_changes() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.discard_all().unwrap();
    bench.put("a", &lines(99));
    assert_eq!(bench.stat_shown("a").mtime, bench.stat_below("a").mtime);
}

#[test]
fn a_directory_with_other_names_than_below_has_another_ctime_in_whole_seconds() {
    let bench = Bench::new();
    bench.put("d/a", "");
    bench.save("d/AGENTS.md", "held: sensitive");
    assert_eq!(bench.held().len(), 1);
    // Later than the held name came.
    bench.put("d/human", "");
    let (shown, below) = (bench.stat_shown("d"), bench.stat_below("d"));
    assert_eq!(shown.mtime, below.mtime.max(shown.mtime));
    assert_ne!(shown.ctime.seconds, below.ctime.seconds);
    bench.set_mtime("d", LONG_AGO);
    let (set, below) = (bench.stat_shown("d"), bench.stat_below("d"));
    assert_eq!((set.mtime, below.mtime), (LONG_AGO, LONG_AGO));
    assert_ne!(set.ctime.seconds, below.ctime.seconds);
    assert!(set.ctime >= shown.ctime);
}

#[test]
fn and_its_times_do_not_go_back_with_the_last_of_those_names() {
    let bench = Bench::new();
    bench.put("d/a", "");
    bench.save("d/AGENTS.md", "held: sensitive");
    bench.set_mtime("d", LONG_AGO);
    let before = bench.stat_shown("d");
    bench.discard_all().unwrap();
    let after = bench.stat_shown("d");
    assert!(after.mtime > LONG_AGO && after.ctime >= before.ctime, "{before:?} {after:?}");
    assert_ne!(seconds(&after), seconds(&before));
    assert_eq!(bench.stat_below("d").mtime, LONG_AGO);
    bench.save("d/AGENTS.md", "held again");
    assert!(bench.stat_shown("d").ctime >= after.ctime);
}
