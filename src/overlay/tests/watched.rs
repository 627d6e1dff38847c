//! What the kernel is told holds until it is told otherwise only where nothing was told of meanwhile.

use super::super::watch::{Holds, Round};
use super::*;
use crate::sys::watch::{Seen, Watches};

/// For how long the attributes of a file hold that were looked at before `meanwhile`, and then those looked at again.
fn holds(view: &Overlay, node: NodeId, meanwhile: impl FnOnce() -> Vec<Seen>) -> [Holds; 2] {
    let watched = view.watch_for(node);
    let meta = view.attributes(node).unwrap().meta;
    let seen = meanwhile();
    Round::default().take(&mut view.state.lock(), seen);
    let before = view.state.lock().holds(node, &meta, watched);
    [before, view.attributes(node).unwrap().holds]
}

#[test]
fn what_was_seen_before_a_change_that_was_told_of_since_holds_briefly() {
    let bench = Bench::new();
    bench.put("d/f", "one\n");
    bench.put("e/f", "one\n");
    let (view, watches) = (bench.view(), Watches::new(None).unwrap());
    view.watch_lower(watches.clone());
    let (node, other) = (bench.node("d/f").unwrap(), bench.node("e/f").unwrap());
    let told = || watches.wait(Some(Duration::from_secs(10))).unwrap();

    assert_eq!(holds(view, node, Vec::new), [Holds::UntilTold, Holds::UntilTold]);
    let write = || std::fs::write(bench.lower_path("d/f"), "two\n").unwrap();
    assert_eq!(holds(view, node, || (write(), told()).1), [Holds::Briefly, Holds::UntilTold]);
    bench.chmod_below("d/f", 0o600);
    assert_eq!(holds(view, other, told), [Holds::UntilTold, Holds::UntilTold], "of another directory");
    assert_eq!(holds(view, other, || vec![Seen::Overflow]), [Holds::Briefly, Holds::UntilTold]);
}

#[test]
fn a_name_that_was_missing_before_it_was_told_of_is_missing_briefly() {
    let bench = Bench::new();
    bench.put("d/f", "one\n");
    let (view, watches) = (bench.view(), Watches::new(None).unwrap());
    view.watch_lower(watches.clone());
    let dir = bench.node("d").unwrap();

    let watched = view.watch(dir);
    assert_eq!(view.state.lock().name_holds(dir, watched), Holds::UntilTold);
    std::fs::write(bench.lower_path("d/g"), "one\n").unwrap();
    let seen = watches.wait(Some(Duration::from_secs(10))).unwrap();
    Round::default().take(&mut view.state.lock(), seen);
    assert_eq!(view.state.lock().name_holds(dir, watched), Holds::Briefly);
}
