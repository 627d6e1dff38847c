//! What the kernel is told holds until it is told otherwise only where nothing was told of meanwhile.

use super::*;
use crate::overlay::outside::watch::{Holds, Round};
use crate::overlay::state::nodes::Told;
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

#[test]
fn what_is_changed_in_a_directory_while_that_is_elsewhere_is_told_of_when_it_comes_back() {
    let bench = Bench::new();
    bench.put("d/sub/f", "one\n");
    let elsewhere = tempfile::tempdir().unwrap();
    let (view, watches) = (bench.view(), Watches::new(None).unwrap());
    view.watch_lower(watches.clone());
    let node = bench.node("d/sub/f").unwrap();
    assert_eq!(view.attributes(node).unwrap().holds, Holds::UntilTold);
    let follow = || {
        let mut round = Round::default();
        round.take(&mut view.state.lock(), watches.wait(Some(Duration::from_secs(10))).unwrap());
        view.follow(round);
    };
    let away = elsewhere.path().join("d");
    std::fs::rename(bench.lower_path("d"), &away).unwrap();
    follow();
    std::fs::write(away.join("sub/f"), "longer\n").unwrap();
    follow();
    assert_eq!(view.state.lock().nodes.told(node), Told::Nothing);
}

/// The kernel takes the attributes in the answer to a change whenever it gets to them: in a process that may use only a
/// share of a processor some tenths of a second after it was answered.
#[test]
fn attributes_are_forgotten_once_more_when_the_answer_to_a_change_may_have_come_late() {
    let bench = Bench::new();
    bench.put("d/f", "one\n");
    let (view, watches) = (bench.view(), Watches::new(None).unwrap());
    view.watch_lower(watches.clone());
    let forgotten = Arc::new(ToldKernel::default());
    view.observe(Box::new(Arc::clone(&forgotten)));
    let node = bench.node("d/f").unwrap();
    bench.link("d/f", "d/g");
    let answered = Instant::now();
    bench.chmod_below("d/f", 0o600);
    let (mut later, watching) = (Round::default(), view.watching.get().unwrap());
    let forgotten_after = |pause| forgotten.attributes.lock().iter().filter(|at| **at - answered > pause).count();
    while view.state.lock().nodes.told(node) != Told::Nothing {
        later = view.follow_next(watching, later).unwrap();
    }
    assert!(forgotten_after(Duration::from_millis(200)) > 0);
    assert!(forgotten_after(Duration::ZERO) < 12, "{:?}", forgotten.attributes);
}

#[test]
fn nothing_holds_for_long_once_nobody_follows_what_is_told() {
    let bench = Bench::new();
    bench.put("d/f", "one\n");
    let view = bench.view();
    view.watch_lower(Watches::new(None).unwrap());
    let node = bench.node("d/f").unwrap();
    assert_eq!(view.attributes(node).unwrap().holds, Holds::UntilTold);
    view.end_watching(view.watching.get().unwrap());
    assert_eq!(view.state.lock().nodes.told(node), Told::Nothing);
    assert_eq!(view.attributes(node).unwrap().holds, Holds::Briefly);
}

#[test]
fn numbers_are_kept_of_files_and_not_of_landings() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let shown = bench.view().attributes(bench.node("a").unwrap()).unwrap().inode;
    (1..20).for_each(|edits| bench.save("a", &changed(100, edits % 2 + 1)));
    assert_eq!(bench.view().attributes(bench.node("a").unwrap()).unwrap().inode, shown);
    assert!(bench.view().state.lock().nodes.kept() <= 1);
    // By a temporary file, and of what comes and goes.
    for edits in 1..20 {
        bench.save("temp", &changed(100, edits % 2 + 1));
        bench.rename("temp", "a");
        bench.save("short", "for a moment\n");
        bench.unlink("short");
    }
    assert!(bench.view().state.lock().nodes.kept() <= 1);
}
