//! What a person may type to mean a change: ids and their beginnings, paths, and several at once.

use super::{NEW, OLD, id_of, small, transcript, work};
use crate::harness::mounted_scratch;

#[test]
fn four_digits_are_an_id_and_three_are_not() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let id = id_of(&view, "src/a.rs");
    for digits in 4..=8 {
        let told = view.cli(&["confirm", &id[..digits], "--dry-run"]).ok().stdout;
        assert_eq!(told, "fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)\n", "{digits} digits");
    }
    let short = view.cli(&["confirm", &id[..3]]).exits(4);
    let want = format!("fettlefs: {} is no id: ids have at least 4 digits, 0-9 and a-f\n", &id[..3]);
    assert_eq!((short.stdout.as_str(), short.stderr), ("", want));
    assert_eq!(view.cli(&["confirm", &id[..3], "--json"]).exits(4).error_code(), "unknown_id");
    assert_eq!(view.cli(&["confirm", &id.to_uppercase()]).status, if id.to_uppercase() == id { 0 } else { 4 });
}

#[test]
fn a_held_file_named_like_an_id_is_ambiguous_until_it_is_written_as_a_path() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    view.write("c.txt", NEW);
    let prefix = &id_of(&view, "c.txt")[..4];
    scratch.write(prefix, OLD);
    view.write(prefix, NEW);
    for command in ["confirm", "discard", "diff"] {
        let output = view.cli(&[command, prefix]).exits(5);
        let want = format!("fettlefs: {prefix} is a path and an id at once; write the path as ./PATH\n");
        assert_eq!((output.stdout.as_str(), output.stderr), ("", want), "{command}");
        assert_eq!(view.cli(&[command, prefix, "--json"]).exits(5).error_code(), "ambiguous", "{command}");
    }
    assert_eq!(view.held().len(), 2);
    view.cli(&["confirm", &format!("./{prefix}")]).ok();
    view.assert_landed(prefix, NEW);
    // The file is there still, and no longer held: the digits mean the change.
    view.cli(&["confirm", prefix]).ok();
    view.assert_landed("c.txt", NEW);
}

#[test]
fn several_names_are_one_transaction_and_the_first_error_is_told() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let commands = [
        "confirm src/a.rs nowhere deadbeef",
        "confirm src/a.rs deadbeef nowhere",
        "discard src/b.rs notes.txt",
        "confirm *.nothing",
        "confirm /",
        "confirm ..",
        "confirm src/a.rs src src/a.rs *.rs src/*.rs --dry-run",
    ];
    let want = "\
$ confirm src/a.rs nowhere [id1]
! fettlefs: nowhere: no such path, and nothing is held there
=> 4
$ confirm src/a.rs [id1] nowhere
! fettlefs: no change has the id [id1]
=> 4
$ discard src/b.rs notes.txt
! fettlefs: nothing is held at notes.txt
=> 4
$ confirm *.nothing
! fettlefs: nothing held matches *.nothing
=> 4
$ confirm /
! fettlefs: / is outside the project [project]
=> 4
$ confirm ..
! fettlefs: .. is outside the project [project]
=> 4
$ confirm src/a.rs src src/a.rs *.rs src/*.rs --dry-run
! fettlefs: nothing held matches *.rs
=> 4
";
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    assert_eq!(view.held().len(), 2);
    let both = view.cli(&["confirm", "src/a.rs", "src", "src/*.rs"]).ok().stdout;
    assert_eq!(both.matches("fettlefs: Applied").count(), 2, "{both}");
    view.assert_landed("src/a.rs", NEW);
    assert!(!scratch.has("src/b.rs"));
}

#[test]
fn a_name_with_signs_of_a_pattern_or_a_dash_is_a_name_first() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for name in ["[ab].txt", "a.txt", "-n"] {
        scratch.write(name, OLD);
        view.write(name, NEW);
    }
    assert_eq!(
        transcript(
            &scratch,
            &["confirm [ab].txt --dry-run", "confirm [a].txt --dry-run", "confirm --dry-run -- -n"],
            |arguments| view.cli(arguments)
        ),
        "\
$ confirm [ab].txt --dry-run
fettlefs: Would apply [ab].txt (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm [a].txt --dry-run
fettlefs: Would apply a.txt (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm --dry-run -- -n
fettlefs: Would apply -n (14B, 3 lines, +3 -3 ~3)
=> 0
"
    );
}

#[test]
fn the_diff_is_one_that_git_applies_below() {
    let scratch = mounted_scratch!();
    scratch.git_init();
    let view = small(&scratch).at("view").start();
    work(&view);
    for (name, old) in [("no newline.txt", "one\ntwo\nthree"), ("größe.txt", OLD), ("tab\tname", OLD), ("run.sh", OLD)]
    {
        scratch.write(name, old);
        view.write(name, NEW.trim_end());
    }
    let diff = view.cli(&["diff"]).ok();
    let patch = scratch.root().join("patch");
    std::fs::write(&patch, &diff.stdout_bytes).expect("the patch is written");
    scratch.git(&["apply", patch.to_str().expect("scratch paths are UTF-8")]).ok();
    assert_eq!((scratch.read("src/a.rs"), scratch.has("src/b.rs")), (NEW.to_owned(), false));
    for name in ["no newline.txt", "größe.txt", "tab\tname", "run.sh"] {
        assert_eq!(scratch.read(name), NEW.trim_end(), "{name}");
    }
    // The same was done outside: confirming lands it as it is.
    let done = view.cli(&["confirm", "--all", "--yes"]).ok();
    assert!(view.held().is_empty(), "{}", done.stdout);
}
