//! What git is told of the project (SPEC §3, §8): work that waits for review is protected as uncommitted work is.

use std::fs;

use crate::harness::{Output, Scratch, mounted_scratch};

const WORK: &str = "seq 300 | sed 's/^/new /' > file";

/// The project as a linked work tree of a repository beside it, as of one agent among several.
fn as_linked_work_tree(scratch: &Scratch) {
    let script = "git init -q -b main ../main && cd ../main && seq 100 > file && git add -A && git commit -qm one && \
        git worktree add -q -f -b agent \"$PROJECT\"";
    beside(scratch, script).ok();
}

fn beside(scratch: &Scratch, script: &str) -> Output {
    let mut shell = scratch.command("sh");
    shell.current_dir(scratch.project()).env("PROJECT", scratch.project()).args(["-c", script]);
    shell.output().expect("a shell").into()
}

fn remove_work_tree(scratch: &Scratch) -> Output {
    beside(scratch, "cd ../main && git worktree remove \"$PROJECT\"")
}

#[track_caller]
fn assert_is_kept(scratch: &Scratch) {
    let refusal = remove_work_tree(scratch).exits(128);
    assert!(refusal.stderr.contains("fettlefs is mounted on this work tree or holds changes"), "{}", refusal.stderr);
}

#[test]
fn git_keeps_a_work_tree_that_has_held_changes() {
    let scratch = mounted_scratch!();
    as_linked_work_tree(&scratch);
    let view = scratch.mount_at("view");
    view.sh(WORK).ok();
    assert_is_kept(&scratch);
    view.unmount();
    assert_is_kept(&scratch);
    scratch.cli(&["discard", "--all", "--yes"]).ok();
    remove_work_tree(&scratch).ok();
    assert!(!scratch.project().exists());
}

#[test]
fn a_work_tree_that_a_person_has_locked_stays_locked() {
    let scratch = mounted_scratch!();
    as_linked_work_tree(&scratch);
    beside(&scratch, "git worktree lock --reason mine .").ok();
    scratch.mount_at("view").unmount();
    let refusal = remove_work_tree(&scratch).exits(128);
    assert!(refusal.stderr.contains("mine"), "{}", refusal.stderr);
}

#[test]
fn a_repository_that_a_run_has_made_is_confirmed_as_it_was_reviewed() {
    let scratch = mounted_scratch!();
    let script = "git init -q -b main . && echo target/ > .gitignore && git add -A && git commit -qm one";
    scratch.cli(&["run", "--", "sh", "-c", script]).ok();
    let confirmed = scratch.cli(&["confirm", "--all", "--yes"]).ok();
    assert!(confirmed.stdout.contains(".git/info/exclude"), "{}", confirmed.stdout);
    let excluded = fs::read_to_string(scratch.project().join(".git/info/exclude")).expect("git's list");
    assert!(excluded.ends_with("\n.fettle/\n"), "{excluded}");
    assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, "");
}

#[test]
fn git_finds_a_repository_of_which_the_project_is_a_directory() {
    let scratch = mounted_scratch!();
    scratch.write("pkg/file", "one\n");
    scratch.git_init();
    let mut run = scratch.fettlefs();
    run.current_dir(scratch.project().join("pkg")).args(["run", "--", "sh", "-c"]);
    run.arg("echo two > file && git status --porcelain && git commit -qam two");
    assert_eq!(Output::from(run.output().expect("the built program runs")).ok().stdout, " M pkg/file\n");
    assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, "");
}
