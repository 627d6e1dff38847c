//! Directories, FIFOs and sockets that lower cannot have yet: what real programs do with them, in the view as on a plain
//! directory, through remounts and kills, and in the project once they are confirmed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::script::python;
use crate::harness::{Held, Output, Scratch, Tree, View, lines, mounted_scratch};

/// What must come to the same on a plain directory and in the view.
struct Twins<'s> {
    scratch: &'s Scratch,
    plain: PathBuf,
}

impl<'s> Twins<'s> {
    /// Both with what `prepare`, run by `sh -e`, makes of an empty directory.
    fn new(scratch: &'s Scratch, prepare: &str) -> Self {
        let twins = Self { scratch, plain: scratch.root().join("plain") };
        fs::create_dir(&twins.plain).expect("a plain directory");
        fs::write(scratch.root().join("large"), lines(200)).expect("large content");
        twins.sh(&twins.plain, prepare);
        twins.sh(&twins.plain, "cp -a . ../project/");
        twins
    }

    #[track_caller]
    fn sh(&self, dir: &Path, script: &str) -> Output {
        let mut command = self.scratch.command("sh");
        let output = command.current_dir(dir).args(["-ec", script]).env("LARGE", self.scratch.root().join("large"));
        Output::from(output.output().expect("a shell")).ok()
    }

    /// Runs a script in both, which must say and make the same.
    #[track_caller]
    fn both(&self, view: &View<'_>, script: &str) {
        let (said, wanted) = (self.sh(view.root(), script), self.sh(&self.plain, script));
        assert_eq!((said.stdout, said.stderr), (wanted.stdout, wanted.stderr), "{script}");
        self.same(view.root(), script);
    }

    #[track_caller]
    fn same(&self, dir: &Path, what: &str) {
        let differences = Tree::of(dir).without_links().differences(&Tree::of(&self.plain).without_links());
        assert!(differences.is_empty(), "{what}: {}", differences.join("\n"));
    }

    /// The same view and ids after an unmount, the same after a kill, and the same project once all is confirmed.
    #[track_caller]
    fn survives_and_lands(&self, view: View<'_>) {
        let ids = |view: &View<'_>| view.held().into_iter().map(|held| (held.id, held.path)).collect::<Vec<_>>();
        let held = ids(&view);
        view.unmount();
        let view = self.scratch.mount();
        assert_eq!(ids(&view), held, "after a remount");
        self.same(view.root(), "after a remount");
        view.kill_all();
        let view = self.scratch.mount();
        assert_eq!(ids(&view), held, "after a kill");
        self.same(view.root(), "after a kill");
        view.cli(&["confirm", "--all", "--yes"]).ok();
        assert_eq!(ids(&view), []);
        self.same(view.root(), "confirmed, in the view");
        view.unmount();
        self.same(&self.scratch.project(), "confirmed, in the project");
    }
}

fn paths(held: &[Held]) -> Vec<&str> {
    held.iter().map(|held| held.path.as_str()).collect()
}

/// Branch `main` has a large file `F`, `other` a directory of that name.
const BRANCHES: &str = "git init -q -b main . && cp $LARGE F && echo k > keep && git add . && git commit -qm file \
    && git checkout -qb other && git rm -q F && mkdir -p F/deep && echo a > F/a && cp $LARGE F/large && echo b > F/deep/b \
    && git add . && git commit -qm directory && git checkout -q main";

#[test]
fn git_switches_between_a_file_and_a_directory_of_that_name() {
    let scratch = mounted_scratch!();
    let twins = Twins::new(&scratch, BRANCHES);
    twins.sh(&scratch.project(), "git update-index -q --refresh");
    let view = scratch.mount();
    let state = "git status --porcelain --branch; git fsck --no-progress; find F | sort; stat -c %h F";
    twins.both(&view, &format!("git switch -q other; {state}"));
    assert_eq!(paths(&view.held()), ["F", "F/a", "F/deep", "F/deep/b", "F/large"]);
    assert!(scratch.lower().join("F").is_file());
    twins.both(&view, &format!("git switch -q main; {state}"));
    assert_eq!(view.held(), []);
    twins.both(&view, &format!("git switch -q other; {state}"));
    twins.both(&view, &format!("rm -r F; git status --porcelain; git restore .; {state}"));
    twins.survives_and_lands(view);
}

/// The other way round: the directory is what lower has.
#[test]
fn git_switches_between_a_directory_and_a_file_of_that_name() {
    let scratch = mounted_scratch!();
    let twins = Twins::new(&scratch, &format!("{BRANCHES} && git checkout -q other"));
    twins.sh(&scratch.project(), "git update-index -q --refresh");
    let view = scratch.mount();
    let state = "git status --porcelain --branch; git fsck --no-progress; find F | sort";
    for branch in ["main", "other", "main"] {
        twins.both(&view, &format!("git switch -q {branch}; {state}"));
    }
    twins.survives_and_lands(view);
}

#[test]
fn archives_and_copies_make_directories_where_files_were() {
    let scratch = mounted_scratch!();
    let twins = Twins::new(&scratch, "for f in a b c d; do cp $LARGE $f; done");
    let view = scratch.mounting().flag("--burst=100000").start();
    let tree = "rm -rf ../made; mkdir -p ../made/a/x/y; echo 1 > ../made/a/1; cp $LARGE ../made/a/x/large; ln -s ../1 ../made/a/x/l; \
        mkfifo -m 640 ../made/a/x/pipe; chmod 750 ../made/a/x; touch -d 2020-01-02 ../made/a/x/y ../made/a/1";
    twins.sh(view.root(), tree);
    twins.both(&view, "tar c -C ../made a | tar x --recursive-unlink 2>&1; ls -R a");
    twins.both(&view, "rm b; cp -a ../made/a b; rm c; mkdir c; cp -r ../made/a/x c/; rsync -a --delete ../made/a/ c/");
    twins.both(&view, "rm d; mkdir -m 2755 d; mkdir d/e; mv b/x d/e/; mv d/e b/moved; mv b b2; mv b2/1 1; mv 1 d/; ls -lR d b2 | grep -v '^total' | cut -c1-10");
    twins.both(
        &view,
        "rm -r a c/x; mkdir a; touch a/x; mv -T b2/moved a/y; find . -path ./.fettle -prune -o -print | sort",
    );
    twins.survives_and_lands(view);
}

/// `d/old` waits to be removed, and lower has it as long as that takes.
#[test]
fn what_takes_the_place_of_a_removed_directory_has_nothing_of_it() {
    let scratch = mounted_scratch!();
    let old =
        "mkdir -p d/old; cp $LARGE d/old/large; setfattr -n user.x -v secret d/old; setfacl -d -m u:1234:rwx d/old";
    let twins = Twins::new(&scratch, old);
    let view = scratch.mount();
    let dir =
        "getfattr d/old; getfacl -cnp d/old; echo x > d/old/new; mkdir d/old/sub; getfacl -cnp d/old/new d/old/sub";
    let links = "stat -c %h d";
    let others = format!("{links}; echo x > d/old; {links}; rm d/old; ln -s x d/old; {links}; rm d/old; {links}");
    twins.both(&view, &format!("getfacl -cnp d/old; {links}; rm -r d/old; {others}"));
    twins.both(&view, &format!("umask 022; mkdir d/old; {links}; {dir}"));
    twins.survives_and_lands(view);
}

#[test]
fn what_is_held_in_a_directory_has_the_list_that_the_directory_hands_down() {
    let scratch = mounted_scratch!();
    let twins = Twins::new(&scratch, "mkdir -p .claude; setfacl -d -m u:1234:rwx .claude; cp $LARGE F");
    let view = scratch.mount();
    let made = "mkfifo p; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; mkdir e; mkfifo e/q; getfacl -cnp p s e e/q";
    twins.both(&view, &format!("umask 022; cd .claude; {made}"));
    twins.both(&view, &format!("umask 022; rm F; mkdir F; setfacl -d -m u:1235:rx F; cd F; {made}"));
    view.cli(&["confirm", "--all", "--yes"]).ok();
    twins.both(&view, "getfacl -cnp .claude/p .claude/s .claude/e F F/p F/s F/e F/e/q");
    twins.survives_and_lands(view);
}

#[test]
fn what_a_kernel_knows_of_a_held_directory_is_as_of_any_other() {
    let scratch = mounted_scratch!();
    let script = r#"
os.unlink("F"); raises("ENOENT", os.stat, "F"); os.mkdir("F", 0o750); s = os.stat("F")
assert (stat.S_ISDIR(s.st_mode), stat.S_IMODE(s.st_mode), s.st_nlink) == (True, 0o750, 2), s
raises("EEXIST", os.mkdir, "F"); raises("EISDIR", os.unlink, "F"); raises("EISDIR", open, "F", "w"); raises("ENOTDIR", os.rmdir, "plain")
os.mkdir("F/d"); assert os.stat("F").st_nlink == 3; put("F/d/x", b"x"); raises("ENOTEMPTY", os.rmdir, "F"); raises("ENOTEMPTY", os.rmdir, "F/d")
here = os.open("F/d", os.O_RDONLY); assert os.listdir(here) == ["x"]; os.fsync(here)
f = os.open("y", os.O_RDWR | os.O_CREAT, dir_fd=here); os.write(f, b"yy"); os.fsync(f); os.close(f)
os.rename("F/d", "F/e"); assert sorted(os.listdir(here)) == ["x", "y"] and get("F/e/y") == b"yy"; assert os.fstat(here).st_ino == os.stat("F/e").st_ino
os.chmod("F", 0o2700); os.utime("F", (5, 6)); s = os.stat("F"); assert (stat.S_IMODE(s.st_mode), s.st_atime, s.st_mtime) == (0o2700, 5, 6), s
os.setxattr("F", "user.k", b"v"); assert os.getxattr("F", "user.k") == b"v"; os.chown("F", 0, 12); os.chmod("F", 0o2700)
put("F/new"); assert os.stat("F/new").st_gid == 12; os.mkdir("F/new2"); assert os.stat("F/new2").st_mode & 0o2000; assert os.stat("F").st_mtime != 6
with open("F/e/x", "r+b") as g:
    m = mmap.mmap(g.fileno(), 1); m[:1] = b"z"; m.flush(); m.close()
assert get("F/e/x") == b"z"
os.symlink("e/x", "F/l"); assert get("F/l") == b"z"; os.link("F/e/x", "F/e/x2"); assert os.stat("F/e/x2").st_nlink == 2
import socket; s = socket.socket(socket.AF_UNIX); s.bind("F/s"); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("F/s"); s.accept()[0].send(b"hi"); assert c.recv(2) == b"hi"
os.mkfifo("F/p"); r = os.open("F/p", os.O_RDONLY | os.O_NONBLOCK); w = os.open("F/p", os.O_WRONLY); os.write(w, b"through"); assert os.read(r, 7) == b"through"
os.rename("plain", "F/plain"); os.rename("F/plain", "plain"); os.rename("plain", "F/e/plain")
os.chdir("F/e"); assert os.path.basename(os.getcwd()) == "e"; put("rel"); os.unlink("rel"); os.chdir("../..")
import shutil; shutil.rmtree("F"); raises("ENOENT", os.stat, "F"); assert os.fstat(here).st_nlink == 0; assert os.listdir(here) == []
put("F", b"a file again\n"); assert get("F") == b"a file again\n"
"#;
    let native = scratch.root().join("native");
    fs::create_dir(&native).expect("a plain directory");
    for dir in [&native, &scratch.project()] {
        fs::write(dir.join("F"), lines(200)).expect("F");
        fs::write(dir.join("plain"), lines(3)).expect("plain");
    }
    assert_eq!(python(&scratch, &native, script).ok().stdout, "");
    let view = scratch.mount();
    assert_eq!(python(&scratch, view.root(), script).ok().stdout, "");
    view.unmount();
}

#[test]
fn a_held_directory_is_told_confirmed_and_discarded_by_name() {
    let scratch = mounted_scratch!();
    scratch.write("F", lines(200));
    scratch.write("G", lines(200));
    let view = scratch.mount();
    view.sh("rm F G; mkdir F G; echo x > F/x; echo y > F/y; echo z > G/z").ok();
    let held = view.held();
    assert_eq!(paths(&held), ["F", "F/x", "F/y", "G", "G/z"]);
    assert_eq!((held[0].kind.as_str(), held[0].reason.as_str(), held[0].deletions), ("structure", "parent", 200));
    assert_eq!((held[1].kind.as_str(), held[1].reason.as_str()), ("create", "parent"));
    let told = view.cli(&["status"]).ok().stdout;
    assert!(told.contains("  F    +0 -200  100%  parent") && told.contains("[new directory]\n"), "{told}");
    let diff = view.cli(&["diff", &held[0].id]).ok().stdout;
    assert!(diff.starts_with("diff --git a/F b/F\ndeleted file mode 100644\n"), "{diff}");
    let attribute = view.sh("getfattr --only-values -n user.fettle.id F").ok().stdout;
    assert_eq!(attribute, held[0].id);
    // One of what is in it takes the directory along, and the file that had its place.
    let said = view.cli(&["confirm", "F/x"]).ok().stdout;
    assert!(said.contains("Applied F\n") || said.contains("Applied F ("), "{said}");
    assert_eq!(scratch.read("F/x"), "x\n");
    assert!(!scratch.has("F/y"));
    view.cli(&["discard", "G"]).ok();
    assert_eq!(view.read("G"), lines(200));
    assert_eq!(paths(&view.held()), ["F/y"]);
    view.unmount();
    // The same without a mount.
    let said = scratch.cli(&["confirm", "--all", "--yes"]).ok().stdout;
    assert!(said.contains("Applied F/y"), "{said}");
    assert_eq!(scratch.read("F/y"), "y\n");
}

/// What a rule covers is reviewed when it is made; what programs make above it every day is not.
#[test]
fn directories_and_nodes_that_a_rule_covers_are_held() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"/vendor/**\"\naction = \"hold\"\n");
    let view = scratch.mount();
    view.sh("git init -q . && mkdir -p .claude .github/workflows .vscode vendor && mkdir -p vendor/a/b .claude/commands && mkfifo .vscode/p").ok();
    assert_eq!(paths(&view.held()), [".claude/commands", ".git/info/exclude", ".vscode/p", "vendor/a", "vendor/a/b"]);
    assert_eq!(
        view.held().iter().map(|held| held.reason.as_str()).collect::<Vec<_>>(),
        ["sensitive", "sensitive", "sensitive", "rule", "rule"]
    );
    view.sh("mkdir made && mv made vendor/a/b/ && echo x > vendor/a/b/made/x").ok();
    let outcomes = view.cli(&["confirm", "vendor/a/b/made/x"]).ok().stdout;
    assert_eq!(outcomes.matches("Applied").count(), 4, "{outcomes}");
    assert_eq!(scratch.read("vendor/a/b/made/x"), "x\n");
    view.unmount();
}

/// Held, for they lead out of the project, and one of two names of it each.
#[test]
fn a_held_symlink_with_a_further_name_is_renamed_over_anything() {
    let scratch = mounted_scratch!();
    let twins = Twins::new(&scratch, "seq 5 > file; ln -s file link; ln -s /etc/hosts out");
    let view = scratch.mount();
    for target in ["file", "link", "out", "free"] {
        let rename =
            format!("ln -s /etc/passwd s; ln -P s {target}2; mv -T s {target}; readlink {target} {target}2; ls");
        twins.both(&view, &rename);
    }
    twins.survives_and_lands(view);
}

/// An operation stands for what it did, and for no deletion of another in a directory that it removed.
#[test]
fn a_directory_of_an_operation_waits_for_what_another_has_deleted_in_it_and_keeps_nothing_of_it_from_landing() {
    let scratch = mounted_scratch!();
    ["d/theirs", "d/own", "e/theirs"].iter().for_each(|path| scratch.write(path, lines(100)));
    let view = scratch.mount();
    view.sh("rm d/theirs e/theirs").ok();
    view.sh("exec rm -r d").ok();
    view.sh("exec rmdir e").ok();
    let held = view.held();
    let of = |path: &str| held.iter().find(|held| held.path == path).map(|held| held.json["operation"].clone());
    let operation = of("d").as_ref().and_then(|told| told.as_str().map(str::to_owned)).expect("an operation");
    let told = view.cli(&["confirm", &operation]).ok();
    assert!(told.stdout.starts_with("fettlefs: Applied d/own"), "{}", told.stdout);
    assert_eq!(told.stderr, "fettlefs: d waits on: what is not of this is held as deleted in it\n");
    assert_eq!(paths(&view.held()), ["d", "d/theirs", "e", "e/theirs"]);
    // Alone it is refused, and tells what it waits for.
    let refused = view.cli(&["confirm", &operation, "--json"]).exits(5).json();
    assert!(refused["error"]["detail"].as_str().is_some_and(|told| told.ends_with("  d/theirs\n")), "{refused}");
    view.cli(&["confirm", "d/theirs", "e"]).ok();
    assert_eq!((view.held().len(), scratch.has("d"), scratch.has("e")), (0, false, false));
    view.unmount();
}
