//! Directories that git ignores and in which it tracks files: judged, whatever somebody has made of git's index.

use super::*;

const BEGIN: &str = "git init -q -b main $INIT . && git add -f .gitignore a gen was && git commit -qm made";
const UNTRACK: &str = "git rm -rq --cached gen a/out";

fn shell(bench: &Bench, init: &str, script: &str) {
    let mut command = std::process::Command::new("sh");
    command.args(["-ec", script]).current_dir(bench.lower_path("")).env("INIT", init).env("HOME", "/nowhere");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env_remove("GIT_DIR");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "x").env(format!("GIT_{who}_EMAIL"), "x@x");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A project in which all is tracked but `target`, and three directories are ignored.
fn project(init: &str, scripts: &[&str]) -> Bench {
    let mut bench = Bench::new();
    bench.put(".gitignore", "/target/\n/gen/\nout/\n/was/\n");
    ["gen/deep/f", "a/out/f", "a/f"].iter().for_each(|path| bench.put(path, &lines(100)));
    bench.put("was", "a file\n");
    scripts.iter().for_each(|script| shell(&bench, init, script));
    bench.put("target/f", &lines(100));
    bench.remount();
    bench
}

/// Whether a rewrite of a file lands with nobody looking.
fn passes(bench: &Bench, path: &str) -> bool {
    bench.save(path, "other\n");
    let has_landed = bench.lower(path).as_deref() == Some("other\n");
    assert!(has_landed || bench.lower(path) == Some(lines(100)), "{path}");
    has_landed
}

#[test]
fn what_head_tracks_is_judged_whatever_is_in_the_index() {
    let delete = |what: &str| format!("{UNTRACK}; rm -r {what}");
    for (init, change, is_readable) in [
        ("", UNTRACK, true),
        ("--object-format=sha256", UNTRACK, true),
        ("", "git read-tree --empty", true),
        ("", "rm -r .git/index .git/logs", false),
        ("", &format!("git gc -q; {UNTRACK}"), true),
        ("", &format!("git checkout -q --detach; {UNTRACK}"), true),
        ("", "git symbolic-ref HEAD refs/heads/none; git read-tree --empty", false),
        ("", &delete(".git/objects/??"), false),
        ("", &delete(".git/HEAD"), false),
        ("", &delete(".git/refs/heads/main .git/packed-refs 2> /dev/null || true"), false),
        ("--ref-format=reftable", UNTRACK, false),
    ] {
        let bench = project(init, &[BEGIN, change]);
        assert!(!passes(&bench, "gen/deep/f") && !passes(&bench, "a/out/f"), "{init} {change}");
        assert_eq!(passes(&bench, "target/f"), is_readable, "{init} {change}");
    }
}

#[test]
fn what_neither_head_nor_index_tracks_passes() {
    // A directory in the place of a file that HEAD has, one that was committed as gone, and nothing committed at all.
    let bench = project("", &[BEGIN, "git rm -q --cached was; rm was; mkdir was; cp a/f was/f"]);
    assert!(passes(&bench, "was/f") && passes(&bench, "target/f") && !passes(&bench, "gen/deep/f"));
    let bench = project("", &[BEGIN, UNTRACK, "git commit -qm gone"]);
    assert!(passes(&bench, "gen/deep/f") && passes(&bench, "a/out/f"));
    let bench = project("", &["git init -q .; git add -f gen"]);
    assert!(passes(&bench, "a/out/f") && passes(&bench, "target/f") && !passes(&bench, "gen/deep/f"));
}

#[test]
fn a_submodule_that_head_has_is_judged_whatever_is_in_the_index() {
    let submodule = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),target; git commit -qm sub";
    let bench = project("", &[BEGIN, submodule]);
    assert!(!passes(&bench, "target/f"));
    let bench = project("", &[BEGIN, submodule, "git rm -q --cached target"]);
    assert!(!passes(&bench, "target/f"));
}

/// What somebody commits, or makes of the index, in a session counts from the next one on.
#[test]
fn head_is_as_it_was_when_the_rules_were_read() {
    let mut bench = project("", &[BEGIN]);
    shell(&bench, "", &format!("{UNTRACK}; git commit -qm gone"));
    assert!(!passes(&bench, "gen/deep/f"));
    bench.remount();
    assert!(passes(&bench, "a/out/f"));
}
