//! `confirm` and `discard` of hunks, as a person works with them.

use super::{SMALL, transcript};
use crate::harness::{Scratch, View, mounted_scratch};

/// Twenty lines, of which those in `new` are.
fn text(new: &[usize]) -> String {
    (1..=20).map(|number| format!("{} {number}\n", if new.contains(&number) { "new" } else { "line" })).collect()
}

/// Three hunks are held.
fn three_hunks(scratch: &Scratch) -> View<'_> {
    scratch.write("a.txt", text(&[]));
    let view = SMALL.iter().fold(scratch.mounting(), |mounting, flag| mounting.flag(flag)).start();
    view.write("a.txt", text(&[1, 10, 20]));
    view
}

const CHOSEN: &str = "\
$ diff
diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1,4 +1,4 @@ hunk 1
-line 1
+new 1
 line 2
 line 3
 line 4
@@ -7,7 +7,7 @@ hunk 2
 line 7
 line 8
 line 9
-line 10
+new 10
 line 11
 line 12
 line 13
@@ -17,4 +17,4 @@ hunk 3
 line 17
 line 18
 line 19
-line 20
+new 20
=> 0
$ confirm a.txt --hunk 3 --dry-run
fettlefs: Would apply a.txt (150B, 20 lines, +1 -1 ~1)
=> 0
$ confirm a.txt --hunk 3
fettlefs: Applied a.txt (150B, 20 lines, +1 -1 ~1)
  backup: a.txt.[time]
  the rest stays held: [id1]
=> 0
$ discard a.txt --hunk 1
fettlefs: Discarded a.txt (id [id1], +1 -1, 10% of file)
  backup: a.txt.[time]
  the rest stays held: [id2]
=> 0
$ diff
diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -7,7 +7,7 @@
 line 7
 line 8
 line 9
-line 10
+new 10
 line 11
 line 12
 line 13
=> 0
$ log
[time]  session started
[time]  write held         [id3]  a.txt  +3 -3  size  by [exe]
[time]  confirmed          [id3]  a.txt  written by [exe]  hunk 3 of 3  [op]
[time]  discarded          [id1]  a.txt  written by [exe]  hunk 1 of 2  [op]
=> 0
";

#[test]
fn hunks_are_chosen_by_the_numbers_that_the_diff_shows() {
    let scratch = mounted_scratch!();
    let view = three_hunks(&scratch);
    let commands =
        ["diff", "confirm a.txt --hunk 3 --dry-run", "confirm a.txt --hunk 3", "discard a.txt --hunk 1", "diff", "log"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), CHOSEN);
    view.assert_held("a.txt", &text(&[10, 20]), &text(&[20]));
    view.cli(&["confirm", "a.txt"]).ok();
    view.assert_landed("a.txt", &text(&[10, 20]));
}

#[test]
fn a_diff_with_numbered_hunks_is_one_that_git_applies() {
    let scratch = mounted_scratch!();
    let view = three_hunks(&scratch);
    std::fs::write(scratch.root().join("held.patch"), view.cli(&["diff"]).ok().stdout).expect("write the patch");
    view.cli(&["discard", "a.txt"]).ok();
    let patch = scratch.root().join("held.patch");
    scratch.git(&["apply", patch.to_str().expect("scratch paths are UTF-8")]).ok();
    assert_eq!(view.read("a.txt"), text(&[1, 10, 20]));
}

const REFUSED: &str = "\
$ confirm a.txt --hunk 4
! fettlefs: [id1] of a.txt has no hunk 4, but 3
=> 2
$ confirm a.txt b.txt --hunk 1
! fettlefs: hunks are numbered within one change, and 2 are named
=> 2
$ discard b.txt --hunk 1
! fettlefs: [id2] of b.txt has no hunks to choose from: only the change of a text with one name has
=> 2
";

#[test]
fn what_is_no_hunk_is_refused_with_its_name() {
    let scratch = mounted_scratch!();
    scratch.write("b.txt", text(&[]));
    let view = three_hunks(&scratch);
    std::fs::remove_file(view.path("b.txt")).expect("a file may be deleted in the view");
    let before = view.held();
    let commands = ["confirm a.txt --hunk 4", "confirm a.txt b.txt --hunk 1", "discard b.txt --hunk 1"];
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), REFUSED);
    assert_eq!(format!("{:?}", view.held()), format!("{before:?}"));
}
