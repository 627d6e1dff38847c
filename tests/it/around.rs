//! Every way around the review that SAVE-PATTERNS names, and worse ones made of them: each ends held or refused, with
//! the project as it was, byte for byte, and no new file in it.
//!
//! A way is a script that runs in the view of [`project`]. It runs twice: what it held is discarded, and the view is the
//! project again; then it is confirmed, and the project is what the view showed. What a script calls in `raises` is
//! refused with that error; a way with nothing held leaves the view as it was, too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Output, PATIENCE, Scratch, View, lines, mounted_scratch, script};

/// What a way is after: `T`, a reviewed file of 200 lines; `NEW`, 200 other lines for it.
const WAYS: &str = r#"
import shutil
T = "src/a.txt"
NEW = b"".join(b"other %d\n" % i for i in range(200))
def write_fd(fd, data=NEW):
    while data: data = data[os.write(fd, data):]
def fallocate(fd, mode, at, length):
    if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(length)) != 0:
        err = ctypes.get_errno(); raise OSError(err, os.strerror(err))
def in_child(work):
    pid = os.fork()
    if pid == 0:
        try: work(); os._exit(0)
        except BaseException: import traceback; traceback.print_exc(); os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def sh(script): subprocess.run(["sh", "-ec", script], check=True)
"#;

fn python(scratch: &Scratch, dir: &Path, script: &str) -> Command {
    script::command(scratch, dir, &format!("{WAYS}{script}"))
}

fn run(scratch: &Scratch, view: &View<'_>, script: &str) {
    let output: Output = python(scratch, view.root(), script).output().expect("python3").into();
    assert_eq!(output.status, 0, "{}", output.stderr);
}

/// Two files that are reviewed, one in a directory of its own, and `target/`, which git ignores and nobody judges.
fn project(scratch: &Scratch) {
    scratch.write("src/a.txt", lines(200));
    scratch.write("src/b.txt", lines(150).to_uppercase());
    scratch.write("lib/deep/c.txt", lines(120));
    scratch.write("small.txt", lines(8));
    scratch.write(".gitignore", "target/\n");
    scratch.git_init();
    scratch.write("target/out.txt", lines(90));
}

/// Everything in a tree that somebody reviews: kind, mode and content by path.
fn looks(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root.join(&dir)).expect("a directory") {
            let path = dir.join(entry.expect("an entry").file_name());
            if NOT_REVIEWED.iter().any(|passes| path == Path::new(passes)) {
                continue;
            }
            let look = look(&root.join(&path));
            if look == "directory" {
                dirs.push(path.clone());
            }
            found.insert(path, look);
        }
    }
    found
}

/// Git's own business, what it ignores, and ours.
const NOT_REVIEWED: &[&str] = &[".fettle", "target", ".git/objects", ".git/index", ".git/logs", ".git/refs"];

fn look(path: &Path) -> String {
    let meta = path.symlink_metadata().expect("attributes");
    let kind = meta.file_type();
    let mode = meta.permissions().mode() & 0o7777;
    if kind.is_dir() {
        return "directory".to_owned();
    }
    if kind.is_symlink() {
        return format!("symlink to {}", fs::read_link(path).expect("its target").display());
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return format!("special {mode:o}");
    }
    let content = fs::read(path).expect("its content");
    format!("file {mode:o} {}", String::from_utf8_lossy(&content))
}

#[track_caller]
fn assert_same(what: &str, is: &BTreeMap<PathBuf, String>, want: &BTreeMap<PathBuf, String>) {
    let short = |look: Option<&String>| look.map(|look| look.chars().take(60).collect::<String>());
    let paths: std::collections::BTreeSet<_> = is.keys().chain(want.keys()).collect();
    let differs = |path: &&&PathBuf| is.get(**path) != want.get(**path);
    let differing: Vec<String> = paths
        .iter()
        .filter(differs)
        .map(|path| {
            format!("{}:\n   is {:?}\n want {:?}", path.display(), short(is.get(*path)), short(want.get(*path)))
        })
        .collect();
    assert!(differing.is_empty(), "{what}:\n{}", differing.join("\n"));
}

#[track_caller]
fn held_paths(view: &View<'_>) -> Vec<String> {
    let mut paths: Vec<String> = view.held().into_iter().map(|held| held.path).collect();
    paths.sort();
    paths
}

/// `script` ends with exactly `held` waiting for review, in the project that `prepare` makes.
#[track_caller]
fn way_in(scratch: &Scratch, flags: &[&str], held: &[&str], script: &str) {
    let mounting = flags.iter().fold(scratch.mounting().flag("--burst=100000"), |it, flag| it.flag(*flag));
    let view = mounting.start();
    let before = looks(&scratch.lower());
    for verdict in ["discard", "confirm"] {
        run(scratch, &view, &format!("ROUND = '{verdict}'\n{script}"));
        view.cli(&["flush"]).ok();
        assert_same("the project", &looks(&scratch.lower()), &before);
        let told = view.held();
        let told: Vec<_> = told.iter().map(|held| (&held.path, &held.kind, &held.reason)).collect();
        assert_eq!(held_paths(&view), held, "held before {verdict}: {told:?}");
        let shown = looks(view.root());
        if held.is_empty() {
            return assert_same("the view", &shown, &before);
        }
        view.cli(&[verdict, "--all", "--yes"]).ok();
        assert_eq!(held_paths(&view), [""; 0], "held after {verdict}");
        let want = if verdict == "discard" { &before } else { &shown };
        assert_same(&format!("the view after {verdict}"), &looks(view.root()), want);
        assert_same(&format!("the project after {verdict}"), &looks(&scratch.lower()), want);
    }
}

#[track_caller]
fn way(held: &[&str], script: &str) {
    let scratch = mounted_scratch!();
    project(&scratch);
    way_in(&scratch, &[], held, script);
}

macro_rules! ways {
    ($($name:ident: $held:expr, $script:literal;)+) => {
        $(#[test] fn $name() { way(&$held, $script); })+
    };
}

const T: &str = "src/a.txt";
const NONE: [&str; 0] = [];

ways! {
    // Writing elsewhere.
    write_elsewhere_and_rename_over: [T], r#"put("src/t", NEW); os.rename("src/t", T)"#;
    write_elsewhere_and_rename_over_while_it_is_open: [T], r#"
f = open("src/t", "wb", buffering=0); os.rename("src/t", T); f.write(NEW); f.close()
"#;
    write_where_nobody_judges_and_rename_over: [T], r#"put("target/t", NEW); os.rename("target/t", T)"#;
    rename_over_what_was_written_through_a_passing_descriptor: [T], r#"
f = open("target/t", "wb", buffering=0); f.write(NEW[:50]); os.rename("target/t", T); f.write(NEW); f.close()
"#;
    rename_away_and_create: [T], r#"
os.rename(T, "src/x"); put(T, NEW); os.unlink("src/x")
"#;
    rename_away_twice_and_create: [T], r#"
os.rename(T, "src/x"); os.rename("src/x", "lib/y"); put(T, NEW); os.unlink("lib/y")
"#;
    rename_away_and_rename_another_over_the_free_name: [T], r#"
put("src/t", NEW); os.rename(T, "src/x"); os.rename("src/t", T); os.unlink("src/x")
"#;
    delete_and_create: [T], r#"os.unlink(T); put(T, NEW)"#;
    delete_and_link_another_there: [T], r#"put("src/t", NEW); os.unlink(T); os.link("src/t", T); os.unlink("src/t")"#;
    delete_and_rename_another_there: [T], r#"put("src/t", NEW); os.unlink(T); os.rename("src/t", T)"#;
    exchange_with_a_file_that_is_then_deleted: [T], r#"
put("src/t", NEW); renameat2("src/t", T, 2); os.unlink("src/t")
"#;
    exchange_two_reviewed_files: [T, "src/b.txt"], r#"renameat2(T, "src/b.txt", 2)"#;
    exchange_with_a_file_that_nobody_judges: [T], r#"
put("target/t", NEW)
raises("EXDEV", renameat2, "target/t", T, 2); raises("EXDEV", renameat2, T, "target/t", 2)
os.rename("target/t", T)
"#;

    // Other names of the same inode.
    write_through_another_name: [T], r#"
os.link(T, "src/l"); put("src/l", NEW); os.unlink("src/l")
"#;
    link_it_to_where_nobody_judges: NONE, r#"raises("EXDEV", os.link, T, "target/l")"#;
    link_from_where_nobody_judges: NONE, r#"
put("target/l", NEW); raises("EXDEV", os.link, "target/l", "src/l"); os.unlink("target/l")
"#;

    // Other ways to the same inode.
    reopen_through_proc: [T], r#"
f = os.open(T, os.O_RDONLY); g = os.open("/proc/self/fd/%d" % f, os.O_WRONLY | os.O_TRUNC); os.close(f)
write_fd(g); os.close(g)
"#;
    reopen_a_path_descriptor: [T], r#"
f = os.open(T, os.O_PATH); g = os.open("/proc/self/fd/%d" % f, os.O_WRONLY | os.O_TRUNC); write_fd(g); os.close(g); os.close(f)
"#;
    truncate_by_path: [T], r#"os.truncate(T, 5)"#;
    truncate_by_a_path_descriptor: [T], r#"f = os.open(T, os.O_PATH); os.truncate("/proc/self/fd/%d" % f, 5); os.close(f)"#;
    truncate_by_another_descriptor_after_the_write_was_judged: [T], r#"
f = os.open(T, os.O_RDWR); g = os.open(T, os.O_RDWR); write_fd(f); os.close(f); os.ftruncate(g, 5); os.close(g)
"#;
    tmpfile_and_linkat: [T], r#"
raises("ENOTSUP", os.open, "src", os.O_TMPFILE | os.O_WRONLY)
os.unlink(T); put("src/t", NEW); os.rename("src/t", T)
"#;
    link_an_open_file_whose_name_is_gone: [T], r#"
f = os.open(T, os.O_RDWR); os.unlink(T)
assert libc.linkat(-100, b"/proc/self/fd/%d" % f, -100, os.fsencode(T), 0x400) != 0; write_fd(f); os.close(f)
"#;
    write_to_what_was_deleted_and_put_back: [T], r#"
f = os.open(T, os.O_RDWR); os.rename(T, "src/x"); os.rename("src/x", T); os.ftruncate(f, 0); write_fd(f); os.close(f)
"#;
    write_by_a_descriptor_of_the_first_name_after_a_rename: [T], r#"
f = os.open(T, os.O_RDWR); os.rename(T, "src/x"); os.ftruncate(f, 0); write_fd(f); os.close(f); os.rename("src/x", T)
"#;
    store_through_a_mapping_after_the_close: [T], r#"
f = os.open(T, os.O_RDWR); m = mmap.mmap(f, 0); os.close(f); m[:] = m[:].upper().replace(b"LINE", b"word"); m.close()
"#;
    a_forked_child_writes_after_its_parent_closed: [T], r#"
f = os.open(T, os.O_WRONLY | os.O_TRUNC); r, w = os.pipe(); pid = os.fork()
if pid == 0: os.close(w); os.read(r, 1); write_fd(f); os._exit(0)
os.close(f); os.close(w); os.waitpid(pid, 0)
"#;
    a_writer_that_crashes_after_emptying_it: [T], r#"
pid = os.fork()
if pid == 0: f = os.open(T, os.O_WRONLY | os.O_TRUNC); os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
"#;
    write_directly: [T], r#"
f = os.open(T, os.O_RDWR | os.O_DIRECT); m = mmap.mmap(-1, 4096); m[:] = (NEW * 4)[:4096]; os.writev(f, [m]); os.ftruncate(f, 4096); os.close(f)
"#;
    splice_into_it: [T], r#"
r, w = os.pipe(); os.write(w, NEW); os.close(w); f = os.open(T, os.O_WRONLY | os.O_TRUNC)
while os.splice(r, f, 1 << 16): pass
os.close(f)
"#;
    copy_a_range_into_it: [T], r#"
put("src/t", NEW); s = os.open("src/t", os.O_RDONLY); f = os.open(T, os.O_WRONLY); os.ftruncate(f, 0)
assert os.copy_file_range(s, f, len(NEW)) == len(NEW); os.close(f); os.unlink("src/t")
"#;
    clone_a_range_into_it: [T], r#"
put("target/t", NEW); s = os.open("target/t", os.O_RDONLY); f = os.open(T, os.O_RDWR)
try: fcntl.ioctl(f, 0x40049409, s)
except OSError as err: os.ftruncate(f, 0); write_fd(f)
os.close(f)
"#;
    send_a_file_into_it: [T], r#"
put("src/t", NEW); s = os.open("src/t", os.O_RDONLY); f = os.open(T, os.O_WRONLY | os.O_TRUNC)
assert os.sendfile(f, s, 0, len(NEW)) == len(NEW); os.close(f); os.unlink("src/t")
"#;
    punch_a_hole_into_it: [T], r#"f = os.open(T, os.O_RDWR); fallocate(f, 3, 0, 1024); os.close(f)"#;
    zero_a_range_of_it: [T], r#"
f = os.open(T, os.O_RDWR)
try: fallocate(f, 16, 0, 1500)
except OSError as err: assert err.errno == errno.EOPNOTSUPP, err; fallocate(f, 3, 0, 1500)
os.close(f)
"#;
    collapse_a_range_of_it: [T], r#"
f = os.open(T, os.O_RDWR); os.pwrite(f, b"x" * 8192, os.fstat(f).st_size)
try: fallocate(f, 8, 0, 4096)
except OSError as err: assert err.errno == errno.EOPNOTSUPP, err; os.ftruncate(f, 100)
os.close(f)
"#;

    // Symlinks.
    a_symlink_in_its_place: [T], r#"os.unlink(T); os.symlink("b.txt", T)"#;
    a_symlink_renamed_over_it: [T], r#"os.symlink("b.txt", "src/t"); os.rename("src/t", T)"#;
    a_symlink_that_leads_out: ["src/l"], r#"os.symlink("/etc/hostname", "src/l")"#;
    a_symlink_that_climbs_out: ["src/l"], r#"os.symlink("../../x", "src/l")"#;
    a_symlink_that_climbs_out_by_way_of_another: ["l"], r#"
os.symlink(".", "s"); os.symlink("s/src/../../x", "l"); os.unlink("s")
"#;
    a_symlink_that_climbs_out_once_it_is_renamed: ["l"], r#"os.symlink("../../x", "lib/deep/l"); os.rename("lib/deep/l", "l")"#;
    a_symlink_to_it_in_a_passing_directory: [T], r#"os.symlink("../src/a.txt", "target/l"); put("target/l", NEW); os.unlink("target/l")"#;
    a_symlinked_directory_in_a_passing_directory: [T], r#"os.symlink("../src", "target/d"); put("target/d/a.txt", NEW); os.unlink("target/d")"#;
    a_symlink_in_place_of_its_directory: NONE, r#"
raises("ENOTEMPTY", os.rmdir, "src"); raises("EEXIST", os.symlink, "target", "src")
os.symlink("target", "t"); raises("EISDIR", os.rename, "t", "src"); os.unlink("t")
"#;

    // Privilege.
    set_user_id: NONE, r#"
for mode in (0o4755, 0o2755, 0o6755): raises("EPERM", os.chmod, T, mode); raises("EPERM", os.open, "src/n", os.O_CREAT | os.O_WRONLY, mode)
f = os.open(T, os.O_RDONLY); raises("EPERM", os.fchmod, f, 0o4755)
"#;
    file_capabilities: NONE, r#"
raises("EPERM", os.setxattr, T, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
raises("EPERM", os.setxattr, T, "trusted.x", b"1"); raises("EPERM", os.removexattr, T, "trusted.x")
assert subprocess.run(["setcap", "cap_net_raw+ep", T], stderr=subprocess.DEVNULL).returncode != 0
"#;
    device_nodes: NONE, r#"
raises("EPERM", os.mknod, "src/n", 0o600 | stat.S_IFCHR, os.makedev(1, 3)); raises("EPERM", os.mknod, "src/n", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
"#;
    set_user_id_where_nobody_judges_and_renamed: NONE, r#"
shutil.copy("/bin/true", "target/t"); os.chmod("target/t", 0o4755)
try: os.rename("target/t", "src/t")
except OSError as err: assert err.errno in (errno.EPERM, errno.EXDEV), err
else: assert os.stat("src/t").st_mode & 0o6000 == 0; os.unlink("src/t")
"#;
    a_device_made_where_nobody_judges_and_renamed: NONE, r#"
os.mknod("target/n", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
try: os.rename("target/n", "src/n")
except OSError as err: assert err.errno in (errno.EPERM, errno.EXDEV), err
else: raise AssertionError("a device")
os.unlink("target/n")
"#;
    privilege_in_a_directory_renamed_from_where_nobody_judges: NONE, r#"
os.makedirs("target/d"); shutil.copy("/bin/true", "target/d/t"); os.chmod("target/d/t", 0o4755)
try: os.rename("target/d", "src/d")
except OSError as err: assert err.errno in (errno.EPERM, errno.EXDEV), err
else: raise AssertionError("set-user-id in a judged path")
shutil.rmtree("target/d")
"#;

    // Directories.
    swap_directories_by_renames: [T], r#"
shutil.copytree("src", ROUND); put(ROUND + "/a.txt", NEW)
os.rename("src", "old"); os.rename(ROUND, "src"); shutil.rmtree("old")
"#;
    exchange_directories: [T], r#"
shutil.copytree("src", ROUND); put(ROUND + "/a.txt", NEW)
renameat2("src", ROUND, 2); shutil.rmtree(ROUND)
"#;
    exchange_its_directory_with_an_empty_one_and_create: [T], r#"
os.mkdir("new"); renameat2("src", "new", 2); put(T, NEW); os.rename("new/b.txt", "src/b.txt"); os.unlink("new/a.txt"); os.rmdir("new")
"#;
    rename_its_directory_away_and_create: [T], r#"
os.rename("src", "old"); os.mkdir("src"); put(T, NEW); os.rename("old/b.txt", "src/b.txt"); os.unlink("old/a.txt"); os.rmdir("old")
"#;
    rename_its_directory_into_a_passing_one: NONE, r#"raises("EXDEV", os.rename, "src", "target/src")"#;
    rename_it_into_a_passing_directory: NONE, r#"raises("EXDEV", os.rename, T, "target/a.txt")"#;
}

/// Paths at which new content is always reviewed (SPEC §6), however small; directories above them land.
const SENSITIVE: &[&str] = &[
    ".claude/settings.json",
    "sub/.Claude/Settings.json",
    ".git/hooks/x",
    ".Git/hooks/y",
    ".git/modules/sub/hooks/post-checkout",
    ".git/modules/lib/logs/hooks/x",
    ".git/modules/lib/refs/hooks/pre-commit",
    ".git/worktrees/w/hooks/x",
    "vendor/.git",
    ".github/workflows/x.yml",
    ".cursor/rules",
    ".vscode/tasks.json",
    ".husky/pre-commit",
    "sub/.fettle/x",
    ".cargo/config.toml",
    ".mcp.json",
    "AGENTS.md",
    "sub/CLAUDE.md",
    ".envrc",
    ".gitlab-ci.yml",
    "sub/.gitignore",
    ".fettle.toml",
    ".FETTLE.toml",
];

#[test]
fn a_sensitive_file_is_held_however_it_comes() {
    for save in [
        "put(path, b'x\\n')",
        "put('t', b'x\\n'); os.rename('t', path)",
        "put('t', b'x\\n'); os.link('t', path); os.unlink('t')",
        "put('target/t', b'x\\n'); os.rename('target/t', path)",
        "os.symlink('x', path)",
    ] {
        let scratch = mounted_scratch!();
        project(&scratch);
        let view = scratch.mounting().flag("--burst=100000").start();
        let files = |root: &Path| {
            let mut found = looks(root);
            found.retain(|_, look| look != "directory");
            found
        };
        let before = files(&scratch.lower());
        let script: Vec<String> = SENSITIVE
            .iter()
            .map(|path| format!("path = {path:?}; os.makedirs(os.path.dirname(path) or '.', exist_ok=True); {save}"))
            .collect();
        run(&scratch, &view, &script.join("\n"));
        assert_same(save, &files(&scratch.lower()), &before);
        let mut want = SENSITIVE.to_vec();
        want.sort_unstable();
        assert_eq!(held_paths(&view), want, "{save}");
        assert!(view.held().iter().all(|held| held.reason == "sensitive"), "{save}: {:?}", view.held());
    }
}

#[test]
fn a_git_config_that_runs_a_program_is_held_wherever_git_reads_it() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    let before = looks(&scratch.lower());
    run(
        &scratch,
        &view,
        r#"
sh("git config core.hooksPath /tmp/evil")
for path in (".git/modules/m/config", ".git/worktrees/w/config.worktree", ".git/config.worktree"):
    os.makedirs(os.path.dirname(path), exist_ok=True); put(path, b"[core]\n\tfsmonitor = /tmp/evil\n")
put(".git/modules/m/HEAD", b"ref: refs/heads/main\n")
"#,
    );
    let mut below = looks(&scratch.lower());
    below.retain(|path, look| look != "directory" && !path.starts_with(".git/modules/m/HEAD"));
    let mut want = before.clone();
    want.retain(|_, look| look != "directory");
    assert_same("the project", &below, &want);
    let want = [".git/config", ".git/config.worktree", ".git/modules/m/config", ".git/worktrees/w/config.worktree"];
    assert_eq!(held_paths(&view), want);
    // Git's own keys land at any time.
    run(
        &scratch,
        &view,
        r#"os.makedirs(".git/modules/n"); sh("git config --file .git/modules/n/config remote.origin.url x")"#,
    );
    assert!(scratch.read(".git/modules/n/config").contains("url = x"));
}

#[test]
fn git_is_led_nowhere_that_nobody_reviews() {
    const EVIL: &str = r#"
EVIL = b"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = /tmp/evil\n"
os.makedirs(".git/foo"); put(".git/foo/config", EVIL)
"#;
    for (script, held) in [
        ("os.unlink('.git/config'); os.symlink('foo/config', '.git/config')", ".git/config"),
        ("os.symlink('foo/config', '.git/c'); os.rename('.git/c', '.git/config')", ".git/config"),
        ("put('.git/config', EVIL + b'#' * (6 << 20))", ".git/config"),
        ("put('.git/c', EVIL + b'#' * (6 << 20)); os.rename('.git/c', '.git/config')", ".git/config"),
        ("os.makedirs('.git/modules'); os.symlink('../foo', '.git/modules/lib')", ".git/modules/lib"),
        ("os.makedirs('.git/worktrees'); os.symlink('../foo', '.git/worktrees/w')", ".git/worktrees/w"),
        ("os.mkdir('x'); put('x/.git', b'gitdir: ../.git/foo\\n')", "x/.git"),
        ("os.mkdir('x'); put('x/.g', b'gitdir: ../.git/foo\\n'); os.rename('x/.g', 'x/.git')", "x/.git"),
        ("os.mkdir('x'); put('x/g', b'gitdir: ../.git/foo\\n'); os.link('x/g', 'x/.git'); os.unlink('x/g')", "x/.git"),
    ] {
        let scratch = mounted_scratch!();
        project(&scratch);
        let view = scratch.mount();
        run(&scratch, &view, &format!("{EVIL}{script}"));
        assert_eq!(held_paths(&view), [held], "{script}");
        assert!(!scratch.try_read(held).is_ok_and(|now| now.windows(4).any(|word| word == b"evil")), "{script}");
        assert!(held == ".git/config" || !scratch.has(held), "{script}");
    }
}

/// Names that stood before the mount, of which the kernel has not asked: who may link may have made them in another one.
#[test]
fn a_link_to_what_git_runs_is_reviewed_by_whichever_name_it_is_written() {
    for (gated, content) in [(".git/hooks/pre-commit", "x\n"), (".git/config", "[core]\n\tpager = x\n")] {
        for link in ["link", "target/link"] {
            let scratch = mounted_scratch!();
            project(&scratch);
            scratch.write(".git/hooks/pre-commit", "#!/bin/sh\n");
            let before = scratch.read(gated);
            fs::hard_link(scratch.lower().join(gated), scratch.lower().join(link)).expect("link");
            let view = scratch.mount();
            run(&scratch, &view, &format!("open({link:?}, 'a').write({content:?})"));
            assert_eq!(view.only_held().reason, "sensitive", "{gated} as {link}");
            assert_eq!(scratch.read(gated), before, "{gated} as {link}");
            assert!(view.read(link).ends_with(content), "{gated} as {link}");
        }
    }
}

#[test]
fn git_makes_submodules_and_work_trees_in_the_view() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let other = scratch.root().join("other");
    let other = other.to_str().expect("UTF-8");
    scratch.git(&["init", "-q", other]).ok();
    scratch.git(&["-C", other, "commit", "-q", "--allow-empty", "-m", "one"]).ok();
    let view = scratch.mount();
    view.sh(&format!("git -c protocol.file.allow=always submodule --quiet add {other} libs/a")).ok();
    view.sh("git commit -qm submodule && git -C libs/a status && git worktree add -q w && git -C w status").ok();
    let waiting =
        [".git/modules/libs/a/info/exclude", ".git/worktrees/w/commondir", "libs/a/.git", "w/.git", "w/.gitignore"];
    assert_eq!(held_paths(&view), waiting);
    assert!(view.held().iter().all(|held| held.reason == "sensitive"));
    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.unmount();
    scratch.git(&["-C", "libs/a", "status"]).ok();
    scratch.git(&["-C", "w", "status"]).ok();
}

#[test]
fn a_directory_renamed_between_passing_ones_brings_nothing_past_the_review_and_takes_nothing_away() {
    let hook = "put('.git/m/x', b'x\\n'); ";
    let config = "put('.git/m/sub/config', b'[core]\\n\\tpager = evil\\n'); ";
    for (script, held) in [
        ("os.rename('.git/hooks', '.git/old'); os.rename('.git/m', '.git/hooks')", ".git/hooks/x"),
        ("renameat2('.git/m', '.git/hooks', 2)", ".git/hooks/x"),
        (
            "os.rename('.git/hooks', '.git/old'); os.rename('.git/m', 'target/m'); os.rename('target/m', '.git/hooks')",
            ".git/hooks/x",
        ),
        ("os.rename('.git/m', '.git/modules')", ".git/modules/sub/config"),
        ("os.mkdir('.git/modules'); renameat2('.git/m', '.git/modules', 2)", ".git/modules/sub/config"),
    ] {
        let scratch = mounted_scratch!();
        project(&scratch);
        scratch.write(".git/hooks/x.sample", "a sample\n");
        let view = scratch.mount();
        let make = format!("os.makedirs('.git/m/sub'); {}", if held.ends_with("config") { config } else { hook });
        run(&scratch, &view, &format!("{make}{script}"));
        assert_eq!(held_paths(&view), [held], "{script}");
        assert!(!scratch.has(held), "{script}");
    }
    for script in [
        r#"raises("EXDEV", os.rename, ".git/hooks", ".git/gone")"#,
        r#"os.mkdir(".git/m"); raises("EXDEV", renameat2, ".git/m", ".git/hooks", 2)"#,
        r#"put(".git/m", b"x"); raises("EXDEV", renameat2, ".git/m", ".git/hooks", 2)"#,
        r#"os.symlink("m", ".git/l"); os.mkdir(".git/n"); os.rename(".git/n", ".git/worktrees"); raises("EXDEV", renameat2, ".git/l", ".git/hooks", 2)"#,
    ] {
        let scratch = mounted_scratch!();
        project(&scratch);
        scratch.write(".git/hooks/x", "a hook\n");
        let view = scratch.mount();
        run(&scratch, &view, script);
        assert_eq!(scratch.read(".git/hooks/x"), "a hook\n", "{script}");
        assert!(view.held().is_empty(), "{script}: {:?}", view.held());
    }
}

#[test]
fn git_moves_the_directory_of_a_submodule_with_its_config() {
    let scratch = mounted_scratch!();
    project(&scratch);
    scratch.write("sub/.git/HEAD", "ref: refs/heads/main\n");
    scratch.write("sub/.git/config", "[core]\n\tbare = false\n");
    scratch.write("sub/.git/info/exclude", "*.o\n");
    scratch.write("sub/.git/hooks/x", "a hook\n");
    let view = scratch.mount();
    run(&scratch, &view, "os.makedirs('.git/modules'); os.rename('sub/.git', '.git/modules/sub')");
    assert_eq!(scratch.read(".git/modules/sub/config"), "[core]\n\tbare = false\n");
    assert_eq!((view.held().len(), scratch.has("sub/.git")), (0, false));
    // Its hooks do not become those of another.
    let moved = r#"os.mkdir(".git/modules/other"); raises("EXDEV", os.rename, ".git/modules/sub/hooks", ".git/modules/other/hooks")"#;
    run(&scratch, &view, moved);
}

#[test]
fn what_passes_since_a_reload_was_changed_by_nobody_else() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount_at("view");
    run(&scratch, &view, "os.mkdir('dist'); put('dist/out.js', b'1\\n')");
    assert_eq!(scratch.read("dist/out.js"), "1\n");
    scratch.write(".gitignore", "target/\ndist/\n");
    view.cli(&["reload"]).ok();
    run(&scratch, &view, "put('dist/out.js', b'2\\n')");
    assert_eq!(scratch.read("dist/out.js"), "2\n");
    assert_eq!(view.status()["external"], serde_json::json!([]));
}

#[test]
fn rules_change_at_reload_and_what_loosens_them_is_held() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    run(
        &scratch,
        &view,
        r#"
put(".fettle.toml", b'[[rule]]\nmatch = "src/**"\naction = "pass"\n'); put(".gitignore", b"*\n"); put("src/.gitignore", b"*\n")
shutil.move(".git", "git-away"); sh("git init -q .")
"#,
    );
    view.cli(&["reload"]).ok();
    view.write(T, "all new\n".repeat(200));
    view.assert_held(T, &"all new\n".repeat(200), &lines(200));
    assert_eq!(scratch.read(".gitignore"), "target/\n");
}

#[test]
fn a_writer_that_never_closes_is_named_and_lands_nothing() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    let before = looks(&scratch.lower());
    let script =
        "f = os.open(T, os.O_WRONLY | os.O_TRUNC); write_fd(f); os.fsync(f); print(flush=True); sys.stdin.read()";
    let mut writer = python(&scratch, view.root(), script);
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    let written = writer.stdout.take().map(BufReader::new).map(|mut out| out.read_line(&mut line));
    assert!(matches!(written, Some(Ok(1))), "{written:?}");
    let status = view.status();
    assert_eq!(status["writers"][0]["path"], T, "{status}");
    assert_eq!(status["writers"][0]["pid"], writer.id(), "{status}");
    assert_same("the project", &looks(&scratch.lower()), &before);
    drop(writer.stdin.take());
    assert!(writer.wait().expect("python3 ends").success());
    view.cli(&["flush"]).ok();
    assert_eq!(held_paths(&view), [T]);
    assert_same("the project", &looks(&scratch.lower()), &before);
}

#[test]
fn what_changed_between_diff_and_confirm_is_not_what_was_reviewed() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    view.write(T, "reviewed\n".repeat(200));
    let id = view.only_held().id;
    view.cli(&["diff", &id]).ok();
    view.write(T, "worse\n".repeat(200));
    let refused = view.cli(&["confirm", &id, "--json"]).exits(5);
    assert_eq!(refused.error_code(), "superseded");
    view.assert_held(T, &"worse\n".repeat(200), &lines(200));
}

#[test]
fn contents_that_hide_their_lines_are_held() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let giant = |letter: &str| letter.repeat(100 << 10) + "\n";
    let returns = |word: &str| format!("{word} of some length\r").repeat(4000);
    scratch.write("giant", giant("a"));
    scratch.write("returns", returns("old"));
    let view = scratch.mounting().flag("--burst=100000").start();
    let before = looks(&scratch.lower());
    for (path, new, reason) in [
        ("giant", giant("b"), "bytes"),
        ("returns", returns("new"), "bytes"),
        (T, lines(200).replace('\n', "\r"), "size"),
        ("src/b.txt", lines(150).to_uppercase().replace("LINE", "\0INE"), "size"),
    ] {
        view.write(path, &new);
        let held = view.held().into_iter().find(|held| held.path == path);
        assert_eq!(held.map(|held| held.reason).as_deref(), Some(reason), "{path}");
        assert_eq!(view.read(path), new, "{path}");
    }
    assert_same("the project", &looks(&scratch.lower()), &before);
}

/// Texts made so that a line diff has no short way: bounded by counting, so that the close returns.
#[test]
fn a_diff_bomb_is_held_in_bounded_time() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let text = |step: usize| (0..200_000).map(|at| format!("{}\n", at * step % 7919)).collect::<String>();
    scratch.write("bomb", text(7));
    let view = scratch.mount();
    let begun = std::time::Instant::now();
    view.write("bomb", text(13));
    assert!(begun.elapsed() < PATIENCE * 3, "the close took {:?}", begun.elapsed());
    view.assert_held("bomb", &text(13), &text(7));
}

/// What npm, cargo and git do with directories every day: no EXDEV, nothing held.
#[test]
fn directories_move_as_everyday_tools_move_them() {
    let scratch = mounted_scratch!();
    project(&scratch);
    scratch.write("lib/.gitignore", "*.o\n");
    let view = scratch.mounting().flag("--burst=100000").start();
    run(
        &scratch,
        &view,
        r#"
os.mkdir("targetX1"); put("targetX1/CACHEDIR.TAG", b"x\n"); shutil.rmtree("target"); os.rename("targetX1", "target")
os.makedirs("node_modules/.pkg-1/lib"); put("node_modules/.pkg-1/lib/i.js", b"1\n" * 200); os.rename("node_modules/.pkg-1", "node_modules/pkg")
os.makedirs("node_modules/.pkg-2/lib"); put("node_modules/.pkg-2/lib/i.js", b"2\n" * 200)
os.rename("node_modules/pkg", "node_modules/.pkg-old"); os.rename("node_modules/.pkg-2", "node_modules/pkg"); shutil.rmtree("node_modules/.pkg-old")
sh("git mv lib packages"); sh("git mv packages lib"); sh("git mv src core")
os.rename("target", "target.old"); os.rename("target.old", "target")
"#,
    );
    view.cli(&["flush"]).ok();
    assert_eq!(held_paths(&view), NONE);
    assert_same("the project", &looks(&scratch.lower()), &looks(view.root()));
    assert_eq!(scratch.read("core/a.txt"), lines(200));
    assert_eq!(scratch.read("node_modules/pkg/lib/i.js"), "2\n".repeat(200));
}

/// Under `deny` nothing is written, made, deleted or renamed; under `freeze` nothing moves with a directory either; what
/// `hold` gates waits for review, its going included.
#[test]
fn rules_refuse_and_hold_every_kind_of_change() {
    let scratch = mounted_scratch!();
    project(&scratch);
    for path in ["no/a", "ice/deep/a", "wait/a"] {
        scratch.write(path, "1\n2\n3\n");
    }
    let rule = |pattern: &str, action: &str| format!("[[rule]]\nmatch = \"{pattern}\"\naction = \"{action}\"\n");
    scratch.write(".fettle.toml", rule("no/**", "deny") + &rule("ice/deep/**", "freeze") + &rule("wait/**", "hold"));
    let view = scratch.mount();
    let before = looks(&scratch.lower());
    run(
        &scratch,
        &view,
        r#"
put("t", b"t\n")
for dir in ("no", "ice/deep"):
    a, b = dir + "/a", dir + "/b"
    raises("EPERM", open, a, "a"); raises("EPERM", open, a, "w"); raises("EPERM", os.truncate, a, 0); raises("EPERM", open, b, "w")
    raises("EPERM", os.unlink, a); raises("EPERM", os.rename, a, "x"); raises("EPERM", os.rename, "t", a); raises("EPERM", os.rename, "t", b)
    raises("EPERM", os.mkdir, b); raises("EPERM", os.symlink, "a", b); raises("EPERM", os.link, "t", b); raises("EPERM", os.mkfifo, b)
    raises("EPERM", renameat2, "t", a, 2); assert get(a) == b"1\n2\n3\n"
raises("EPERM", os.link, "ice/deep/a", "x"); raises("EPERM", os.rename, "ice", "x"); raises("EPERM", os.rename, "ice/deep", "x")
raises("EPERM", os.rename, "no", "x"); raises("EXDEV", os.rename, "wait", "x")
os.unlink("t"); os.rename("wait/a", "went"); os.unlink("went"); put("wait/b", b"new\n"); put("wait/a", b"1\n2\n4\n")
"#,
    );
    view.cli(&["flush"]).ok();
    assert_same("the project", &looks(&scratch.lower()), &before);
    assert_eq!(held_paths(&view), ["wait/a", "wait/b"]);
    assert!(view.held().iter().all(|held| held.reason == "rule"), "{:?}", view.held());
    assert!(view.status()["counters"]["denied"].as_u64() > Some(20));
}
