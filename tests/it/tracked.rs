//! What git ignores and tracks is reviewed, whatever a program in the view makes of git's index (SPEC §6).

use std::sync::mpsc::channel;

use crate::harness::{Output, PATIENCE, Scratch, View, lines, mounted_scratch, within};

/// `gen` is ignored and tracked, `target` only ignored.
fn project(scratch: &Scratch) {
    scratch.write(".gitignore", "/gen/\n/target/\n/made/\n");
    scratch.write("gen/deep/f", lines(100));
    scratch.git_init();
    scratch.git(&["add", "-f", "gen"]).ok();
    scratch.git(&["commit", "-qm", "gen"]).ok();
    scratch.write("target/f", lines(100));
}

/// Fails where the script waits for ever, also in a call that no signal ends.
fn in_time(view: &View<'_>, script: &str) -> Output {
    let mut command = view.scratch().command("sh");
    command.current_dir(view.root()).args(["-ec", script]);
    let (done, ended) = channel();
    std::thread::spawn(move || done.send(command.output()));
    ended.recv_timeout(PATIENCE).expect("the script ends").expect("a shell").into()
}

#[track_caller]
fn assert_reviewed(view: &View<'_>) {
    in_time(view, "echo other > gen/deep/f; echo other > target/f").ok();
    view.assert_held("gen/deep/f", "other\n", &lines(100));
    view.assert_landed("target/f", "other\n");
    view.cli(&["discard", "--all", "--yes"]).ok();
    view.scratch().write("target/f", lines(100));
}

#[test]
fn what_a_program_takes_out_of_gits_index_is_reviewed_at_the_next_mount() {
    for pack in ["true", "git gc -q"] {
        let scratch = mounted_scratch!();
        project(&scratch);
        scratch.command("sh").current_dir(scratch.project()).args(["-ec", pack]).status().expect("git");
        let view = scratch.mount();
        in_time(&view, "git rm -rq --cached gen").ok();
        assert_reviewed(&view);
        view.cli(&["reload"]).ok();
        assert_reviewed(&view);
        view.unmount();
        let view = scratch.mount();
        assert_reviewed(&view);
        // A daemon that is started again reads it under the mount of the dead one.
        let killed = view.kill_daemon();
        assert!(within(PATIENCE, || view.is_served_again(killed)), "no other daemon answers");
        assert_reviewed(&view);
        // Once a commit has it out of HEAD, too, it passes: from the mount after.
        in_time(&view, "git commit -qm gone").ok();
        view.cli(&["reload"]).ok();
        assert_reviewed(&view);
        view.unmount();
        let view = scratch.mount();
        in_time(&view, "echo other > gen/deep/f").ok();
        view.assert_landed("gen/deep/f", "other\n");
        view.unmount();
    }
}

/// HEAD is read while nobody waits for what the kernel has locked: by paths that lead into the view once that is there, and
/// to which a repository may point in many ways.
#[test]
fn reading_head_waits_for_no_request_of_the_view() {
    let scratch = mounted_scratch!();
    project(&scratch);
    scratch.write("src.txt", lines(100));
    scratch.git(&["add", "src.txt"]).ok();
    scratch.git(&["commit", "-qm", "src"]).ok();
    scratch.git(&["rm", "-rq", "--cached", "gen"]).ok();
    let own = scratch.project().join("objects");
    scratch.write("objects/info/packs", "");
    scratch.write(".git/objects/info/alternates", format!("{}\n../../objects\n", own.display()));
    let view = scratch.mount();
    // Before the kernel knows anything of `.git`, and with the project's directory locked.
    in_time(&view, "mkdir made").ok();
    let make = "for i in $(seq 20); do mkdir gen/$i target/$i sub-$i; echo x > target/$i/f; echo x > gen/$i/f; done";
    let commit = "seq 200 > src.txt; git add src.txt; git commit -qm more";
    in_time(&view, &format!("{make} & {commit}; wait")).ok();
    let program = scratch.fettlefs().get_program().to_owned();
    let look = format!("{} status --json; {0} reload; {0} status --json", program.display());
    let told = in_time(&view, &format!("for i in $(seq 5); do mkdir gen/a-$i target/a-$i; done & {look}; wait"));
    assert!(told.ok().stdout.contains(r#""in_head":true"#));
    assert_reviewed(&view);
    view.unmount();
}

#[test]
fn a_head_that_cannot_be_read_lets_nothing_pass_and_says_so() {
    let scratch = mounted_scratch!();
    project(&scratch);
    scratch.command("sh").current_dir(scratch.project()).args(["-c", "rm -r .git/objects/??"]).status().expect("rm");
    let view = scratch.mount();
    let told = "directories that git ignores are judged, for what it tracks is not known: git's HEAD: ";
    assert!(view.mount_output.stderr.contains(told), "{}", view.mount_output.stderr);
    in_time(&view, "echo other > target/f").ok();
    view.assert_held("target/f", "other\n", &lines(100));
    for command in [&["status"][..], &["reload"], &["doctor"]] {
        let output = view.cli(command);
        assert!(format!("{}{}", output.stdout, output.stderr).contains(told), "{command:?}: {}", output.stdout);
    }
    view.unmount();
}

#[test]
fn a_head_that_takes_for_ever_to_read_keeps_no_mount_waiting() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let change = "git gc -q; git multi-pack-index write; p=$(echo .git/objects/pack/*.pack); rm -f $p; mkfifo $p";
    scratch.command("sh").current_dir(scratch.project()).args(["-ec", change]).status().expect("mkfifo");
    let view = scratch.mount();
    let told = "for what it tracks is not known: git's HEAD: it takes more than 2 s to read";
    assert!(view.mount_output.stderr.contains(told), "{}", view.mount_output.stderr);
    view.cli(&["reload"]).ok();
    view.unmount();
}

/// What a program makes of `.git` keeps neither the daemon nor a command without one.
#[test]
fn nobody_waits_for_what_a_program_puts_into_the_repository() {
    for made in ["mkfifo .git/packed-refs", "ln -s /dev/zero .git/packed-refs", "rm .git/HEAD; mkfifo .git/HEAD"] {
        let scratch = mounted_scratch!();
        project(&scratch);
        let view = scratch.mount();
        in_time(&view, &format!("seq 200 > gen/deep/f; {made}")).ok();
        let program = scratch.fettlefs().get_program().to_owned();
        let told = in_time(&view, &format!("{0} status --json; {0} diff", program.display()));
        assert!(told.ok().stdout.contains(r#""in_head":false"#), "{made}");
        view.unmount();
        scratch.cli(&["confirm", "--all", "--yes"]).ok();
    }
}
