//! Directories that git ignores and in which it tracks files: judged, whatever somebody has made of git's index.

use super::*;

const BEGIN: &str = "git init -q -b main $INIT . && git add -f .gitignore a gen was && git commit -qm made";
const UNTRACK: &str = "git rm -rq --cached gen a/out";

/// A FIFO in the place of a pack.
const OBJECTS_THAT_KEEP_WAITING: &str =
    "git gc -q; git multi-pack-index write; p=$(echo .git/objects/pack/*.pack); rm -f $p; mkfifo $p";

fn shell(bench: &Bench, init: &str, script: &str) -> String {
    let mut command = std::process::Command::new("sh");
    command.args(["-ec", script]).current_dir(bench.lower_path("")).env("INIT", init).env("HOME", "/nowhere");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env_remove("GIT_DIR");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "x").env(format!("GIT_{who}_EMAIL"), "x@x");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A project in which all is tracked but `target`, and three directories are ignored.
fn project(init: &str, scripts: &[&str]) -> Bench {
    let mut bench = Bench::new();
    bench.put(".gitignore", "/target/\n/gen/\nout/\n/was/\n");
    ["gen/deep/f", "a/out/f", "a/f"].iter().for_each(|path| bench.put(path, &lines(100)));
    bench.put("was", "a file\n");
    for script in scripts {
        shell(&bench, init, script);
    }
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

/// A project in which git ignores `gen`, `out` and `vendor`, and in which scripts make further repositories.
fn nested(scripts: &[&str]) -> Bench {
    let ignored = "printf 'gen/\\nout/\\nvendor/\\n' > .gitignore";
    project("", &[&[ignored, BEGIN], scripts].concat())
}

/// Makes a directory a repository that tracks all its files: those that the project's patterns ignore and its own.
fn nest(dir: &str) -> String {
    let files = "mkdir -p a/gen kept; cp $f a/gen; cp $f kept; echo kept/ > .gitignore";
    format!("f=$PWD/a/f; git init -q -b main {dir}; cd {dir}; {files}; git add -f .; git commit -qm {dir}")
}

#[test]
fn what_another_repository_has_in_the_project_is_judged() {
    for change in [
        "true",
        "mv .git ../.git/own; echo gitdir: ../.git/own > .git; cd ..; git add own; git commit -qm submodule",
        "git worktree add -q --detach ../work; cd ..; mv own other; mv work own",
    ] {
        let bench = nested(&[&format!("{}; {change}", nest("own"))]);
        assert!(!passes(&bench, "own/a/gen/f") && !passes(&bench, "own/kept/f"), "{change}");
        bench.unlink("own/a/gen/f");
        assert_eq!(bench.lower("own/a/gen/f"), Some(lines(100)), "{change}");
    }
}

#[test]
fn a_repository_in_a_directory_that_git_ignores_passes_with_it() {
    let bench = nested(&[&nest("vendor/own")]);
    assert!(passes(&bench, "vendor/own/a/gen/f") && passes(&bench, "vendor/own/kept/f"));
}

/// A clone has its `.git` after its directory, and may be moved to its place.
#[test]
fn a_repository_that_is_made_in_a_session_is_judged() {
    let bench = nested(&[]);
    bench.put("own/f", &lines(100));
    assert!(!passes(&bench, "own/f"));
    shell(&bench, "", &nest("own"));
    assert!(!passes(&bench, "own/a/gen/f"));
}

/// Moving `.git` aside for a while takes nothing out of review.
#[test]
fn what_was_a_repository_at_the_first_look_is_judged_until_a_reload() {
    let bench = nested(&[&nest("own")]);
    assert!(!passes(&bench, "own/kept/f"));
    shell(&bench, "", "mv own/.git elsewhere");
    assert!(!passes(&bench, "own/a/gen/f"));
    bench.put("own/b/gen/f", &lines(100));
    reload(&bench);
    assert!(passes(&bench, "own/b/gen/f"));
}

fn reload(bench: &Bench) {
    let policy = bench.view().read_rules(&RuleSource::default()).unwrap();
    bench.view().set_policy(policy).unwrap();
}

/// What somebody commits, or makes of the index, in a session counts from the next one on.
#[test]
fn what_was_tracked_at_the_mount_is_judged_until_the_next() {
    let mut bench = project("", &[BEGIN]);
    shell(&bench, "", &format!("{UNTRACK}; git commit -qm gone"));
    reload(&bench);
    assert!(!passes(&bench, "gen/deep/f") && passes(&bench, "target/f"));
    bench.remount();
    assert!(passes(&bench, "a/out/f"));
}

#[test]
fn what_is_tracked_at_a_reload_is_judged_from_there_on() {
    let mut bench = project("", &[BEGIN]);
    shell(&bench, "", "git add -f target");
    reload(&bench);
    shell(&bench, "", "git rm -rq --cached target");
    reload(&bench);
    assert!(!passes(&bench, "target/f"));
    bench.remount();
    bench.put("target/g", &lines(100));
    assert!(passes(&bench, "target/g"));
}

/// What a damaged index does not tell is not forgotten, nor read from a HEAD that is another one by now.
#[test]
fn a_reload_adds_what_the_index_has_to_what_was_tracked_at_the_mount() {
    let bench = project("", &[BEGIN, UNTRACK]);
    shell(&bench, "", "git add -f target; git commit -qm target; git rm -rq --cached target");
    for (index, is_known) in [(":", true), ("cp .git/index kept; : > .git/index", false), ("mv kept .git/index", true)]
    {
        shell(&bench, "", index);
        reload(&bench);
        bench.put("target/f", &lines(100));
        assert_eq!(passes(&bench, "target/f"), is_known, "{index}");
        assert!(!passes(&bench, "gen/deep/f") && !passes(&bench, "a/out/f"), "{index}");
    }
}

#[test]
fn what_is_made_a_repository_under_a_view_passes_from_a_reload_on() {
    let bench = project("", &[]);
    assert!(!passes(&bench, "target/f"));
    shell(&bench, "", "git init -q .");
    reload(&bench);
    assert!(passes(&bench, "a/out/f"));
    shell(&bench, "", "git add -f gen");
    reload(&bench);
    assert!(!passes(&bench, "gen/deep/f"));
}

/// Any program may make it so, and nobody would serve the view any more.
#[test]
fn an_index_that_cannot_be_read_ends_nothing() {
    let bench = project("", &[BEGIN, "truncate -s 1100M .git/index"]);
    assert!(!passes(&bench, "target/f"));
    let bench = project("", &[BEGIN]);
    shell(&bench, "", "truncate -s 1100M .git/index");
    reload(&bench);
    assert!(!passes(&bench, "target/f") && bench.view().git_notice().is_some());
}

#[test]
fn an_ignore_file_that_cannot_be_read_ignores_nothing() {
    // What git asks last decides only where nothing else does.
    for (file, is_asked_last) in [(".gitignore", false), ("a/.gitignore", false), (".git/info/exclude", true)] {
        let mut bench = project("", &[BEGIN, &format!("printf '#%5000000s' '' >> {file}")]);
        bench.put("a/b/out/f", &lines(100));
        bench.remount();
        assert_eq!(passes(&bench, "a/b/out/f"), is_asked_last, "{file}");
    }
}

/// Whatever is damaged, rules are read, and soon.
#[test]
fn a_damaged_repository_ends_nothing() {
    let bench = project("", &[BEGIN, "git gc -q; echo more > a/more; git add a/more; git commit -qm more", UNTRACK]);
    let lower = Tree::open(&bench.lower_path("")).unwrap();
    let files = shell(&bench, "", "find .git/HEAD .git/config .git/packed-refs .git/refs .git/objects -type f");
    for file in files.lines().map(|file| bench.lower_path(file)) {
        let whole = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for at in (0..whole.len()).step_by(whole.len().div_ceil(40)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xa5;
            for damaged in [&damaged[..], &whole[..at]] {
                std::fs::write(&file, damaged).unwrap();
                Policy::load(&lower, &RuleSource::default()).unwrap();
            }
        }
        std::fs::write(&file, whole).unwrap();
    }
}

#[test]
fn why_nothing_passes_is_told() {
    for (change, want) in [
        ("true", None),
        ("rm -r .git", None),
        ("rm -r .git/objects/??", Some("git's HEAD: Could not peel reference to an object: object could not be found")),
        (
            "git gc -q; chmod -R u+w .git; truncate -s 20 .git/objects/pack/*.pack",
            Some("git's HEAD: Could not peel reference to an object"),
        ),
        ("rm .git/HEAD", Some("does not appear to be a git repository")),
        (
            "git symbolic-ref HEAD refs/heads/none",
            Some("git's HEAD: Branch 'refs/heads/none' does not have any commits"),
        ),
        (
            "rm .git/refs/heads/main; mkfifo .git/refs/heads/main",
            Some("git's HEAD: `.git/refs/heads/main` is no regular file"),
        ),
        (OBJECTS_THAT_KEEP_WAITING, Some("git's HEAD: it takes more than 2 s to read")),
        ("rm .git/index", Some("git's index is not there")),
        ("git update-index --split-index", Some("git index: ")),
        ("truncate -s 1100M .git/index", Some("read .git/index: larger than 268435456 bytes")),
        ("rm -r .git; echo gitdir: /nowhere > .git", Some("the repository is outside")),
    ] {
        let told = project("", &[BEGIN, change]).view().git_notice();
        assert_eq!(told.is_some(), want.is_some(), "{change}: {told:?}");
        assert!(want.is_none_or(|want| told.as_ref().is_some_and(|told| told.contains(want))), "{change}: {told:?}");
    }
}

/// Whether a held change is told to be in HEAD, which nobody waits for.
fn is_told_in_head(bench: &Bench) -> bool {
    let (begun, rows) = (std::time::Instant::now(), bench.held());
    let told = bench.view().in_head(&rows);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(rows.len(), 1);
    !told.is_empty()
}

/// A change that is held and that HEAD has.
fn committed_and_held(script: &str) -> Bench {
    let bench = project("", &[BEGIN]);
    bench.save("a/f", "other\n");
    shell(&bench, "", "cp a/f kept; echo other > a/f; git add a/f; git commit -qm other; mv kept a/f");
    shell(&bench, "", script);
    bench
}

#[test]
fn what_gix_finds_wherever_it_is_marks_what_is_held() {
    for layout in [
        ":",
        "git pack-refs --all; mkdir -p .git/refs/heads/main",
        "git symbolic-ref refs/heads/other refs/heads/main; git symbolic-ref HEAD refs/heads/other",
        "git checkout -q --detach",
        "mv .git/objects .git/others; mkdir -p .git/objects/info; echo ../others > .git/objects/info/alternates",
        "mv .git elsewhere; ln -s elsewhere .git",
        "mv .git elsewhere; echo gitdir: elsewhere > .git",
        "git worktree add -q --detach work; mv .git elsewhere; sed s,/.git/,/elsewhere/, work/.git > .git",
    ] {
        assert!(is_told_in_head(&committed_and_held(layout)), "{layout}");
    }
}

#[test]
fn nobody_waits_for_what_is_no_file_in_a_repository() {
    let put =
        |what: &str, file: &str| format!("rm -rf .git/{file}; mkdir -p $(dirname .git/{file}); {what} .git/{file}");
    for file in ["HEAD", "config", "packed-refs", "refs/heads/main", "commondir", "objects/info/alternates"] {
        for what in ["mkfifo", "ln -s /dev/zero", "truncate -s 1T"] {
            assert!(!is_told_in_head(&committed_and_held(&put(what, file))), "{what} {file}");
        }
    }
    let other = format!("{}; echo ../others > .git/objects/info/alternates", put("mkfifo", "others/info/alternates"));
    assert!(!is_told_in_head(&committed_and_held(&other)));
}

/// One reader waits for good; who asks after that does not begin to.
#[test]
fn an_object_that_keeps_its_reader_waiting_keeps_one() {
    let bench = committed_and_held(OBJECTS_THAT_KEEP_WAITING);
    assert!(bench.view().in_head(&bench.held()).is_empty());
    assert!(!is_told_in_head(&bench) && !is_told_in_head(&bench));
}

/// Who asks at the same moment is answered one after the other.
#[test]
fn everybody_who_asks_at_once_is_told_what_head_has() {
    let bench = committed_and_held(":");
    std::thread::scope(|scope| {
        let asked = [(); 8].map(|()| scope.spawn(|| is_told_in_head(&bench)));
        assert!(asked.into_iter().all(|asked| asked.join().unwrap()));
    });
}
