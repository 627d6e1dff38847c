//! What one command does to many files: what exceeds `--burst` is held, and all of it has one name.

use super::{OLD, transcript};
use crate::harness::{Scratch, View, mounted_scratch};

/// `a.txt` to `e.txt`, of which three may be changed at once, and a command that has changed them all.
fn changed_at_once(scratch: &Scratch) -> View<'_> {
    for name in ["a", "b", "c", "d", "e"] {
        scratch.write(format!("{name}.txt"), OLD);
    }
    let view = scratch.mounting().flag("--burst").flag("3").start();
    view.sh("for file in *.txt; do printf 'one\\n2\\nthree\\n' > $file; done").ok();
    view
}

/// Which of them the project has changed.
fn below(view: &View<'_>) -> String {
    let is_changed =
        |name: &str| std::fs::read_to_string(view.lower().join(name)).expect("a file of the project") != OLD;
    ["a", "b", "c", "d", "e"].into_iter().filter(|name| is_changed(&format!("{name}.txt"))).collect()
}

/// The burst's name, and what became of commands about it, in which it is called `OP`.
fn with_operation(scratch: &Scratch, view: &View<'_>, commands: &[&str]) -> String {
    let operation = view.status()["held"][0]["operation"].as_str().expect("held in a burst").to_owned();
    with_shown(scratch, view, &operation, commands)
}

/// The same without a look at it.
fn with_shown(scratch: &Scratch, view: &View<'_>, operation: &str, commands: &[&str]) -> String {
    transcript(scratch, commands, |arguments| {
        let arguments: Vec<&str> = arguments.iter().map(|word| if *word == "OP" { operation } else { *word }).collect();
        view.cli(&arguments)
    })
}

const TOLD: &str = "\
$ status
fettlefs: [project] mounted (pid [pid]); 3 landed, 2 held

Held for review:
  [id1]  d.txt  +1 -1  67%  burst [op]  [age]
  [id2]  e.txt  +1 -1  67%  burst [op]  [age]

  fettlefs diff [op]           see what would change
  fettlefs confirm [op]        land it in the project
  fettlefs discard [op]        drop it from the view
=> 0
$ log
[time]  session started
[time]  write landed       a.txt  +1 -1  by [exe]  [op]
[time]  write landed       b.txt  +1 -1  by [exe]  [op]
[time]  write landed       c.txt  +1 -1  by [exe]  [op]
[time]  write held         [id1]  d.txt  +1 -1  burst  by [exe]  [op]
[time]  write held         [id2]  e.txt  +1 -1  burst  by [exe]  [op]
=> 0
";

const CONFIRMED: &str = "\
$ confirm OP --dry-run
fettlefs: Would apply d.txt (12B, 3 lines, +1 -1 ~1)
fettlefs: Would apply e.txt (12B, 3 lines, +1 -1 ~1)
=> 0
$ confirm OP
fettlefs: Applied d.txt (12B, 3 lines, +1 -1 ~1)
  backup: d.txt.[time]
fettlefs: Applied e.txt (12B, 3 lines, +1 -1 ~1)
  backup: e.txt.[time]
=> 0
$ confirm OP
! fettlefs: nothing of [op] is held
=> 4
";

#[test]
fn status_and_log_tell_a_burst_and_it_is_confirmed_by_its_name() {
    let scratch = mounted_scratch!();
    let view = changed_at_once(&scratch);
    assert_eq!(below(&view), "abc");
    assert_eq!(transcript(&scratch, &["status", "log"], |arguments| view.cli(arguments)), TOLD);
    assert_eq!(with_operation(&scratch, &view, &["confirm OP --dry-run", "confirm OP", "confirm OP"]), CONFIRMED);
    assert_eq!(below(&view), "abcde");
}

const DISCARDED: &str = "\
$ discard OP
fettlefs: Discarded d.txt (id [id1])
  backup: d.txt.[time]
fettlefs: Discarded e.txt (id [id2])
  backup: e.txt.[time]
=> 0
";

const UNDONE: &str = "\
$ undo OP
fettlefs: Discarded d.txt (id [id1])
  backup: d.txt.[time]
fettlefs: Discarded e.txt (id [id2])
  backup: e.txt.[time]
fettlefs: Undone c.txt (14B, 3 lines)
  backup: c.txt.[time]
fettlefs: Undone b.txt (14B, 3 lines)
  backup: b.txt.[time]
fettlefs: Undone a.txt (14B, 3 lines)
  backup: a.txt.[time]
=> 0
$ undo OP
! fettlefs: [op] is undone already: everything is as it was before it
=> 5
";

#[test]
fn discard_drops_what_is_held_of_it() {
    let scratch = mounted_scratch!();
    let view = changed_at_once(&scratch);
    assert_eq!(with_operation(&scratch, &view, &["discard OP"]), DISCARDED);
    assert_eq!((below(&view).as_str(), view.held().len(), view.read("e.txt").as_str()), ("abc", 0, OLD));
}

#[test]
fn undo_rolls_back_what_landed_of_it_and_drops_the_rest() {
    let scratch = mounted_scratch!();
    let view = changed_at_once(&scratch);
    assert_eq!(with_operation(&scratch, &view, &["undo OP", "undo OP"]), UNDONE);
    assert_eq!((below(&view).as_str(), view.held().len(), view.read("e.txt").as_str()), ("", 0, OLD));
}

#[test]
fn what_cannot_be_undone_leaves_what_is_held_alone() {
    let scratch = mounted_scratch!();
    let view = changed_at_once(&scratch);
    std::fs::write(view.lower().join("b.txt"), "by a person\n").expect("write below");
    let want = "$ undo OP\n! fettlefs: b.txt: it was edited since; --force keeps that as a backup\n=> 5\n";
    assert_eq!(with_operation(&scratch, &view, &["undo OP"]), want);
    assert_eq!((below(&view).as_str(), view.held().len()), ("abc", 2));
}

const GROWN: &str = "\
$ confirm OP
! fettlefs: [op] is not what was shown of it: 1 change came or became another since
! [id1]  e.txt
!   To look again: fettlefs diff [op]
=> 5
$ discard OP
! fettlefs: [op] is not what was shown of it: 1 change came or became another since
! [id1]  e.txt
!   To look again: fettlefs diff [op]
=> 5
$ confirm OP --dry-run
! fettlefs: [op] is not what was shown of it: 1 change came or became another since
! [id1]  e.txt
!   To look again: fettlefs diff [op]
=> 5
";

/// An operation's name stays while programs write on, with a mount and without; what is confirmed by it is what was shown.
#[test]
fn what_became_another_since_an_operation_was_shown_is_not_confirmed_by_its_name() {
    let scratch = mounted_scratch!();
    let view = changed_at_once(&scratch);
    let operation = view.status()["held"][0]["operation"].as_str().expect("held in a burst").to_owned();
    let rewrite = |word: &str| view.write("e.txt", format!("{word}\n").repeat(5));
    let refused = ["confirm OP", "discard OP", "confirm OP --dry-run"];
    // Listed, as `status` has done.
    rewrite("one");
    assert_eq!(with_shown(&scratch, &view, &operation, &refused), GROWN);
    view.status();
    view.cli(&["confirm", &operation, "--dry-run"]).ok();
    // Seen, for which a list is no substitute any more.
    view.cli(&["diff", &operation]).ok();
    rewrite("two");
    view.status();
    assert_eq!(with_shown(&scratch, &view, &operation, &refused), GROWN);
    let told: serde_json::Value = view.cli(&["confirm", &operation, "--json"]).exits(5).json();
    assert_eq!(told["error"]["code"], "superseded", "{told}");
    let seen_by_another_face = format!(".fettle/held/{}/diff", view.held()[1].id);
    view.read(seen_by_another_face);
    view.cli(&["confirm", &operation, "--dry-run"]).ok();
    rewrite("three");
    let lower = view.lower();
    view.unmount().ok();
    let outside = |arguments: &[&str]| -> crate::harness::Output {
        let output = scratch.fettlefs().args(arguments).current_dir(scratch.project()).output();
        output.expect("the built program runs").into()
    };
    outside(&["confirm", &operation]).exits(5);
    outside(&["diff", &operation]).ok();
    outside(&["confirm", &operation]).ok();
    assert_eq!(std::fs::read_to_string(lower.join("e.txt")).expect("a file"), "three\n".repeat(5));
}

/// Each file is emptied by a process of its own, which has ended when that is judged.
#[test]
fn what_processes_that_have_ended_have_emptied_counts_for_the_tree_that_started_them() {
    let scratch = mounted_scratch!();
    let files: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    files.iter().for_each(|file| scratch.write(file, OLD));
    let view = scratch.mounting().flag("--burst").flag("3").start();
    view.sh("for file in f*; do dd status=none if=/dev/null of=$file & done; wait").ok();
    view.cli(&["flush"]).ok();
    let emptied = files.iter().filter(|file| scratch.read(file).is_empty());
    assert_eq!((emptied.count(), view.held().len()), (3, 37));
}
