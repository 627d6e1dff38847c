//! Damage that people and agents do by accident, through programs that mean no harm: each is done for real, in a work tree
//! with committed, uncommitted and untracked work, and then undone by one command.

use std::path::Path;

use crate::harness::{Disk, Scratch, Tree, View, lines, mounted_scratch};

/// The one command that brings everything back.
enum Remedy {
    /// Of the operation that the held changes belong to.
    Undo,
    /// Of the one operation that all is, with nothing held or something.
    UndoLast,
    Discard,
    Rollback(&'static str),
}

impl Remedy {
    fn words(&self, view: &View<'_>) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Undo => &["undo", &operation(view)],
            Self::UndoLast => &["undo", &only_operation(view)],
            Self::Discard => &["discard", "--all", "--yes"],
            Self::Rollback(path) => &["rollback", path],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// The one operation of all that is held.
#[track_caller]
fn operation(view: &View<'_>) -> String {
    let held = view.status()["held"].clone();
    let mut named: Vec<_> = held.as_array().expect("a list").iter().map(|held| held["operation"].clone()).collect();
    named.dedup();
    assert_eq!(named.len(), 1, "held by one operation: {held:#}");
    named[0].as_str().expect("an operation").to_owned()
}

/// The one operation of all that was landed and held.
#[track_caller]
fn only_operation(view: &View<'_>) -> String {
    let log = view.cli(&["log", "-n", "0", "--json"]).ok().json();
    let events = log["events"].as_array().expect("a list");
    let written = events.iter().filter(|event| matches!(event["event"].as_str(), Some("write_landed" | "write_held")));
    // A temporary file has become another's content.
    let is_temporary = |event: &serde_json::Value| {
        let path = event["path"].as_str().expect("a path");
        event["message"] == "[new file]" && !view.path(path).exists()
    };
    let mut named: Vec<_> =
        written.filter(|event| !is_temporary(event)).map(|event| event["operation"].clone()).collect();
    assert!(named.len() > 1, "of several paths: {log:#}");
    named.dedup();
    assert_eq!(named.len(), 1, "one operation: {log:#}");
    named[0].as_str().expect("an operation").to_owned()
}

/// Thirty sources from 6 to 64 lines, committed and half of them edited since; drafts that git does not know; a table; an
/// image; secrets.
fn work_tree(scratch: &Scratch) {
    for number in 0..30 {
        scratch.write(format!("src/part_{number:02}.rs"), lines(6 + 2 * number));
    }
    scratch.write("data/table.csv", lines(300).replace(' ', ","));
    scratch.write("assets/logo.bin", (0..40_000_u32).map(|byte| (byte * 7 % 251) as u8).collect::<Vec<_>>());
    scratch.git_init();
    for number in (0..30).step_by(2) {
        scratch.write(format!("src/part_{number:02}.rs"), format!("{}work of today\n", lines(6 + 2 * number)));
    }
    for number in 0..25 {
        scratch.write(format!("drafts/idea_{number}.md"), lines(9));
    }
    scratch.write(".env", "TOKEN=one\nHOST=here\nUSER=me\n");
}

/// Runs `damage` in the view, sees that it did some, and that after the remedy view and project are as they were.
#[track_caller]
fn repair(scratch: &Scratch, damage: &str, remedy: &Remedy) {
    let before = Tree::of(&scratch.lower());
    let view = scratch.mount();
    view.sh(damage);
    let damaged = lost(&before, view.root());
    assert!(!damaged.is_empty(), "no damage was done by: {damage}");
    let words = remedy.words(&view);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let told = view.cli(&words).ok();
    for root in [view.root(), &view.lower()] {
        let lost = lost(&before, root);
        assert_eq!(lost, Vec::<String>::new(), "{} after {words:?}: {}", root.display(), told.stdout);
    }
}

/// What of `before` is not there as it was. What a program left besides is no loss.
fn lost(before: &Tree, root: &Path) -> Vec<String> {
    let mut now = Tree::of(root);
    now.0.retain(|path, _| before.0.contains_key(path));
    now.differences(before)
}

/// One test each, so that each has its name.
macro_rules! damage {
    ($($name:ident: $script:expr => $remedy:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let scratch = mounted_scratch!();
                work_tree(&scratch);
                repair(&scratch, $script, &$remedy);
            }
        )*
    };
}

damage! {
    a_recursive_removal_with_an_empty_variable: "rm -rf \"$BUILD\"src \"$BUILD\"drafts" => Remedy::Undo;
    a_build_step_that_rewrites_its_sources:
        "for file in src/*.rs; do sed -i 's/^line/\\/\\/ generated/' $file; done" => Remedy::Undo;
    a_formatter_that_reads_what_its_redirect_has_emptied: "sort < data/table.csv > data/table.csv" => Remedy::Discard;
    a_hard_reset_over_uncommitted_work: "git reset -q --hard" => Remedy::UndoLast;
    a_checkout_of_everything: "git checkout -q -- ." => Remedy::UndoLast;
    a_clean_of_what_git_does_not_know: "git clean -qfd" => Remedy::Undo;
    a_codemod_with_a_greedy_pattern: "perl -pi -e 's/.*/x/' src/*.rs drafts/*" => Remedy::Undo;
    a_find_that_deletes_too_much: "find src drafts -type f -name '*' -delete" => Remedy::Undo;
    a_move_over_the_wrong_file: "mv src/part_00.rs data/table.csv" => Remedy::Discard;
    a_redirect_that_should_have_appended: "echo '301,new' > data/table.csv" => Remedy::Discard;
    a_redirect_over_a_small_file: "echo TOKEN=two > .env" => Remedy::Rollback(".env");
    a_write_in_another_encoding:
        "python3 -c \"t = open('data/table.csv').read(); open('data/table.csv', 'w', encoding='utf-16').write(t)\""
        => Remedy::Discard;
    a_copy_over_an_image: "head -c 9 /dev/zero > assets/logo.bin" => Remedy::Rollback("assets/logo.bin");
    a_script_that_dies_half_way:
        "python3 -c \"import os; f = open('data/table.csv', 'w'); f.write('half'); f.flush(); os.kill(os.getpid(), 9)\""
        => Remedy::Discard;
    a_truncation_of_everything: "truncate -s 0 src/*.rs data/* drafts/*" => Remedy::Undo;
    an_archive_unpacked_over_newer_work: "git archive HEAD src | tar x --no-same-permissions" => Remedy::Undo;
}

#[test]
fn a_write_that_a_full_disk_cut_short() {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(|point| Disk::memory(point, "24m"));
    work_tree(&scratch);
    repair(&scratch, "yes more | head -c 40000000 > data/table.csv", &Remedy::Discard);
}

/// Fewer files than a burst: five sources, committed and edited since; a directory of drafts that git does not know.
fn small_work_tree(scratch: &Scratch) {
    for number in 0..5 {
        scratch.write(format!("src/part_{number}.py"), "x = { 'a':1 }\n");
    }
    scratch.git_init();
    for number in 0..5 {
        scratch.write(format!("src/part_{number}.py"), format!("x = {{ 'a':1 }}\ny = {{ 'b':{number} }}\n"));
        scratch.write(format!("drafts/deep/idea_{number}.md"), lines(3));
    }
}

/// Undoes `damage`, which is below the limit of a burst, and that, and that again: each by one operation.
#[track_caller]
fn repair_one_go(damage: &str) {
    let scratch = mounted_scratch!();
    small_work_tree(&scratch);
    let before = Tree::of(&scratch.lower());
    let view = scratch.mount();
    view.sh(damage).ok();
    let damaged = Tree::of(&view.lower());
    let mut operation = only_operation(&view);
    assert!(!lost(&before, view.root()).is_empty(), "no damage was done by: {damage}");
    for is_undone in [true, false, true] {
        let done = view.cli(&["undo", &operation, "--json"]).ok().json();
        let outcomes = done["outcomes"].as_array().expect("a list");
        operation = outcomes[0]["operation"].as_str().expect("an operation").to_owned();
        assert!(outcomes.iter().all(|outcome| outcome["operation"] == operation.as_str()), "one operation: {done:#}");
        match is_undone {
            true => assert_eq!(lost(&before, &view.lower()), Vec::<String>::new(), "{done:#}"),
            false => assert_eq!(Tree::of(&view.lower()).differences(&damaged), Vec::<String>::new(), "{done:#}"),
        }
    }
    assert_eq!(lost(&before, view.root()), Vec::<String>::new());
}

/// One test each, so that each has its name.
macro_rules! one_go {
    ($($name:ident: $script:expr;)*) => {
        $(
            #[test]
            fn $name() {
                repair_one_go($script);
            }
        )*
    };
}

one_go! {
    a_checkout_of_a_few_files_is_one_operation: "git checkout -q .";
    a_hard_reset_of_a_few_files_is_one_operation: "git reset -q --hard";
    a_clean_of_a_few_files_is_one_operation: "git clean -qfd";
    a_sed_over_a_few_files_is_one_operation: "sed -i s/x/z/ src/*.py drafts/deep/idea_0.md";
    a_removal_of_a_small_directory_is_one_operation: "rm -rf drafts";
}

/// Each is a process of its own: what is typed as two commands does not melt into one.
#[test]
fn a_loop_of_commands_is_as_many_operations() {
    let scratch = mounted_scratch!();
    small_work_tree(&scratch);
    let view = scratch.mount();
    view.sh("for file in src/*.py; do sed -i s/x/z/ $file; done").ok();
    let log = view.cli(&["log", "-n", "0", "--json"]).ok().json();
    let events = log["events"].as_array().expect("a list").iter();
    let of = |event: &serde_json::Value| event["operation"].as_str().map(str::to_owned);
    let sources =
        events.filter(|event| event["path"].as_str().is_some_and(|path| path.ends_with(".py"))).filter_map(of);
    assert_eq!(sources.collect::<std::collections::HashSet<_>>().len(), 5, "{log:#}");
}
