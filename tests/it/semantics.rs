//! What only a kernel shows: descriptors, mappings, locks, listings, names, attributes. Each script of assertions runs
//! on a plain directory, so that it asks for nothing the kernel does not give, and in the view: where files are judged,
//! and where nobody judges.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::script::python;
use crate::harness::{Scratch, View, lines, mounted_scratch, with_changed_lines};

/// Runs `script` where `a.txt` has 200 lines: on a plain directory, in the view, and in a directory of the view that
/// passes.
pub fn holds_here_and_in_the_view(script: &str) {
    let scratch = mounted_scratch!();
    let native = scratch.root().join("native");
    fs::create_dir(&native).expect("a plain directory");
    fs::write(native.join("a.txt"), lines(200)).expect("a.txt");
    scratch.write("a.txt", lines(200));
    let output = python(&scratch, &native, script);
    assert_eq!(output.status, 0, "on a plain directory: {}", output.stderr);
    let view = scratch.mounting().flag("--burst=100000").start();
    let output = python(&scratch, view.root(), script);
    assert_eq!(output.status, 0, "in the view: {}", output.stderr);
    // Only now: the script above lists its directory.
    scratch.write(Path::new(PASSING).join("a.txt"), lines(200));
    let output = python(&scratch, &view.path(PASSING), script);
    assert_eq!(output.status, 0, "where nobody judges: {}", output.stderr);
}

/// A directory in which nobody judges.
const PASSING: &str = ".git/work";

pub fn in_view(scratch: &Scratch, view: &View<'_>, script: &str) {
    let output = python(scratch, view.root(), script);
    assert_eq!(output.status, 0, "{}", output.stderr);
}

macro_rules! scripts {
    ($($name:ident: $script:literal;)+) => {
        $(#[test] fn $name() { $crate::semantics::holds_here_and_in_the_view($script); })+
    };
}

pub(crate) use scripts;

scripts! {
    an_unlinked_file_that_is_open_goes_on: r#"
f = open("a.txt", "r+b", buffering=0); size = os.fstat(f.fileno()).st_size
os.unlink("a.txt")
assert os.fstat(f.fileno()).st_nlink == 0, os.fstat(f.fileno())
assert f.read(6) == b"line 1"
f.seek(0); f.write(b"LINE"); f.seek(0); assert f.read(6) == b"LINE 1"
os.ftruncate(f.fileno(), 3); assert os.fstat(f.fileno()).st_size == 3
os.posix_fallocate(f.fileno(), 0, 8192); assert os.fstat(f.fileno()).st_size == 8192
m = mmap.mmap(f.fileno(), 8192); m[:3] = b"abc"; m.flush(); assert os.pread(f.fileno(), 3, 0) == b"abc"; m.close()
os.fchmod(f.fileno(), 0o600); assert stat.S_IMODE(os.fstat(f.fileno()).st_mode) == 0o600
assert not os.path.exists("a.txt"); f.close()
"#;
    a_new_file_unlinked_before_its_close_goes_on: r#"
f = open("n", "w+b", buffering=0); f.write(b"abc"); os.unlink("n")
assert os.fstat(f.fileno()).st_nlink == 0
f.write(b"def"); f.seek(0); assert f.read() == b"abcdef"; f.close()
assert os.listdir(".") == ["a.txt"], os.listdir(".")
"#;
    an_open_file_keeps_its_bytes_when_another_is_renamed_over_it: r#"
old = open("a.txt", "rb", buffering=0); put("t", b"new\n"); os.rename("t", "a.txt")
assert get("a.txt") == b"new\n"
assert old.read(7) == b"line 1\n"; assert os.fstat(old.fileno()).st_nlink == 0
assert os.fstat(old.fileno()).st_ino != os.stat("a.txt").st_ino
"#;
    what_is_done_to_a_file_without_a_name_stays_with_it: r#"
for go in (lambda: os.rename("t", "a.txt"), lambda: os.unlink("a.txt")):
    put("t", b"new\n" * 200); f = os.open("a.txt", os.O_RDWR); go()
    os.fchmod(f, 0o777); os.fchown(f, 12, 34); os.setxattr(f, "user.k", b"v"); os.utime(f, ns=(1, 2)); s = os.fstat(f)
    assert (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_nlink) == (0o777, 12, 34, 2, 0), s
    assert os.getxattr(f, "user.k") == b"v"; os.removexattr(f, "user.k"); raises("ENODATA", os.getxattr, f, "user.k")
    with open("a.txt", "a") as g: g.write("more\n")
    s = os.stat("a.txt"); assert (stat.S_IMODE(s.st_mode), s.st_uid) == (0o644, 0), s
    assert os.listxattr("a.txt") == []; os.close(f)
"#;
    truncation_by_path_and_by_descriptor: r#"
os.truncate("a.txt", 7); assert get("a.txt") == b"line 1\n"
os.truncate("a.txt", 9); assert get("a.txt") == b"line 1\n\0\0"
f = os.open("a.txt", os.O_RDWR); os.ftruncate(f, 2); assert os.fstat(f).st_size == 2; os.close(f)
os.close(os.open("a.txt", os.O_WRONLY | os.O_TRUNC)); assert os.stat("a.txt").st_size == 0
raises("EISDIR", os.truncate, ".", 0); raises("ENOENT", os.truncate, "none", 0)
"#;
    holes_and_data_are_found: r#"
f = os.open("h", os.O_RDWR | os.O_CREAT); os.pwrite(f, b"x" * 4096, 1 << 20); os.fsync(f)
assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20
assert os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
raises("ENXIO", os.lseek, f, (1 << 20) + 4096, os.SEEK_DATA)
os.close(f); assert os.stat("h").st_blocks < 100
"#;
    space_is_allocated_and_punched: r#"
f = os.open("a.txt", os.O_RDWR); size = os.fstat(f).st_size
fallocate = lambda mode, at, length: libc.fallocate(f, mode, ctypes.c_long(at), ctypes.c_long(length))
assert fallocate(1, 0, 1 << 20) == 0; assert os.fstat(f).st_size == size
assert fallocate(0, 0, 1 << 20) == 0; assert os.fstat(f).st_size == 1 << 20
assert fallocate(3, 0, 4096) == 0; assert os.pread(f, 4, 0) == b"\0" * 4
os.close(f)
"#;
    ranges_are_copied_in_the_kernel: r#"
a = os.open("a.txt", os.O_RDONLY); b = os.open("b", os.O_RDWR | os.O_CREAT); size = os.fstat(a).st_size
done = 0
while done < size:
    n = os.copy_file_range(a, b, size - done); assert n > 0; done += n
os.close(b); assert get("b") == get("a.txt")
c = os.open("c", os.O_WRONLY | os.O_CREAT); os.sendfile(c, a, 0, size); os.close(c); assert get("c") == get("a.txt")
"#;
    locks_exclude_between_processes: r#"
for take in (lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)):
    f = open("a.txt", "r+"); take(f)
    pid = os.fork()
    if pid == 0:
        try:
            take(open("a.txt", "r+")); os._exit(1)
        except BlockingIOError: os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0; f.close()
    pid = os.fork()
    if pid == 0: take(open("a.txt", "r+")); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"#;
    a_lock_survives_a_save_by_the_one_who_holds_it: r#"
f = open("a.txt", "r+"); fcntl.flock(f, fcntl.LOCK_EX)
open("a.txt", "a").write("more\n")
pid = os.fork()
if pid == 0:
    try: fcntl.flock(open("a.txt"), fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(1)
    except BlockingIOError: os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"#;
    names_of_one_inode_agree: r#"
os.link("a.txt", "b.txt"); a, b = os.stat("a.txt"), os.stat("b.txt")
assert (a.st_ino, a.st_nlink, b.st_nlink) == (b.st_ino, 2, 2), (a, b)
with open("a.txt", "a") as f: f.write("through a\n")
assert get("b.txt").endswith(b"through a\n")
with open("b.txt", "a") as f:
    f.write("through b\n"); f.flush(); assert get("a.txt").endswith(b"through b\n")
put("b.txt", b"all new\n" * 100); assert get("a.txt") == get("b.txt")
a, b = os.stat("a.txt"), os.stat("b.txt"); assert (a.st_ino, a.st_nlink, b.st_nlink) == (b.st_ino, 2, 2), (a, b)
os.unlink("b.txt"); assert os.stat("a.txt").st_nlink == 1; assert get("a.txt") == b"all new\n" * 100
raises("EEXIST", os.link, "a.txt", "a.txt"); raises("EPERM", os.link, ".", "dir")
"#;
    a_name_after_one_that_went_is_of_the_same_file: r#"
put("new", b"new\n"); os.symlink("a.txt", "l")
for name in "a.txt", "new", "l":
    os.link(name, "b", follow_symlinks=False); os.lstat("b"); os.unlink("b"); os.link(name, "c", follow_symlinks=False)
    a, c = os.lstat(name), os.lstat("c"); assert (a.st_ino, a.st_nlink, c.st_nlink) == (c.st_ino, 2, 2), (name, a, c)
    os.unlink("c")
os.link("new", "c"); os.chmod("new", 0o600); assert os.stat("c").st_mode & 0o777 == 0o600
"#;
    a_name_of_an_inode_goes_while_the_file_is_written: r#"
os.link("a.txt", "b.txt"); f = open("a.txt", "a"); f.write("more\n"); f.flush(); os.unlink("b.txt")
f.write("and more\n"); f.close(); assert get("a.txt").endswith(b"more\nand more\n"); assert os.stat("a.txt").st_nlink == 1
os.link("a.txt", "b.txt"); f = open("a.txt", "a"); f.write("3\n"); f.flush(); os.unlink("a.txt")
f.write("4\n"); f.close(); assert get("b.txt").endswith(b"3\n4\n")
"#;
    names_are_bytes: r#"
names = [b"n" * 255, b"new\nline", b"\x1b[31mred", b"caf\xe9", b"\xff\xfe", b" ", b"-rf", b"a\\b", "größe".encode(), b"\r"]
for n in names: put(n, n); assert get(n) == n
assert sorted(os.listdir(b".")) == sorted(names + [b"a.txt"])
raises("ENAMETOOLONG", os.stat, b"n" * 256); raises("ENAMETOOLONG", open, b"n" * 256, "w")
raises("ENAMETOOLONG", os.mkdir, b"n" * 256); raises("ENAMETOOLONG", os.rename, "a.txt", b"n" * 256)
for n in names: os.rename(n, n[:200] + b"~"); os.unlink(n[:200] + b"~")
assert os.listdir(b".") == [b"a.txt"]
"#;
    paths_deeper_than_path_max_work_step_by_step: r#"
top = os.open(".", os.O_RDONLY)
for i in range(30): os.mkdir("d" * 200); os.chdir("d" * 200)
put("f", b"deep\n"); assert get("f") == b"deep\n"; put("f", b"deeper\n"); assert get("f") == b"deeper\n"
os.rename("f", "g"); assert os.listdir(".") == ["g"]; os.unlink("g")
for i in range(30): os.chdir(".."); os.rmdir("d" * 200)
os.fchdir(top); assert os.listdir(".") == ["a.txt"]
"#;
    symlinks_are_made_read_and_followed: r#"
os.symlink("a.txt", "l"); assert os.readlink("l") == "a.txt" and get("l") == get("a.txt")
assert os.lstat("l").st_size == 5 and stat.S_ISLNK(os.lstat("l").st_mode)
os.symlink("nowhere", "dangling"); assert not os.path.exists("dangling") and os.path.lexists("dangling")
raises("EEXIST", os.symlink, "x", "l"); raises("ELOOP", os.open, "l", os.O_NOFOLLOW)
os.utime("l", ns=(1_000_000_001, 2_000_000_002), follow_symlinks=False); assert os.lstat("l").st_mtime_ns == 2_000_000_002
with open("l", "a") as f: f.write("through\n")
assert get("a.txt").endswith(b"through\n"); os.rename("l", "m"); os.unlink("m"); os.unlink("dangling")
"#;
    attributes_are_set_listed_and_removed: r#"
os.setxattr("a.txt", "user.x", b"1"); os.setxattr("a.txt", "user.y", b"v" * 1000)
assert os.getxattr("a.txt", "user.x") == b"1" and sorted(os.listxattr("a.txt")) == ["user.x", "user.y"]
raises("EEXIST", os.setxattr, "a.txt", "user.x", b"2", os.XATTR_CREATE)
raises("ENODATA", os.setxattr, "a.txt", "user.z", b"2", os.XATTR_REPLACE)
os.setxattr("a.txt", "user.x", b"2", os.XATTR_REPLACE); assert os.getxattr("a.txt", "user.x") == b"2"
with open("a.txt", "a") as f: f.write("more\n")
assert os.getxattr("a.txt", "user.x") == b"2"
os.removexattr("a.txt", "user.x"); raises("ENODATA", os.getxattr, "a.txt", "user.x"); assert os.listxattr("a.txt") == ["user.y"]
os.mkdir("d"); os.setxattr("d", "user.d", b"d"); assert os.listxattr("d") == ["user.d"]
"#;
    modes_owners_and_times_are_kept: r#"
os.chmod("a.txt", 0o604); os.chown("a.txt", 1234, 4321); os.utime("a.txt", ns=(1_111_111_111, 2_222_222_222))
s = os.stat("a.txt"); assert (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_atime_ns, s.st_mtime_ns) == (0o604, 1234, 4321, 1_111_111_111, 2_222_222_222), s
with open("a.txt", "a") as f: f.write("more\n")
s = os.stat("a.txt"); assert (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid) == (0o604, 1234, 4321) and s.st_mtime_ns > 2_222_222_222
os.umask(0o027); put("n", b""); os.mkdir("d"); assert stat.S_IMODE(os.stat("n").st_mode) == 0o640 and stat.S_IMODE(os.stat("d").st_mode) == 0o750
os.chmod("d", 0o2775); os.chown("d", -1, 99); os.mkdir("d/e"); put("d/f", b""); s = os.stat("d/e")
assert s.st_gid == 99 and s.st_mode & 0o2000 and os.stat("d/f").st_gid == 99
"#;
    the_file_system_tells_its_size: r#"
s = os.statvfs("."); assert s.f_blocks > 0 and s.f_bsize > 0 and s.f_namemax == 255
"#;
    direct_reads_and_writes: r#"
f = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT); m = mmap.mmap(-1, 8192); m[:] = b"d" * 8192
assert os.writev(f, [m]) == 8192; os.lseek(f, 0, 0); n = mmap.mmap(-1, 8192); assert os.readv(f, [n]) == 8192 and n[:] == m[:]; os.close(f)
assert get("direct") == b"d" * 8192
"#;
    pipes_and_sockets_have_names: r#"
import socket
os.mkfifo("p", 0o640); assert stat.S_ISFIFO(os.stat("p").st_mode)
pid = os.fork()
if pid == 0: put("p", b"through"); os._exit(0)
assert get("p") == b"through"; os.waitpid(pid, 0)
s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen(); assert stat.S_ISSOCK(os.stat("s").st_mode)
c = socket.socket(socket.AF_UNIX); c.connect("s"); c.close(); os.rename("s", "t"); os.unlink("t"); os.unlink("p")
"#;
    directories_are_made_moved_and_removed: r#"
os.mkdir("d"); raises("EEXIST", os.mkdir, "d"); put("d/f", b"f\n"); raises("ENOTEMPTY", os.rmdir, "d")
os.rename("d", "e"); assert os.listdir("e") == ["f"] and get("e/f") == b"f\n"; raises("EINVAL", os.rename, "e", "e/g")
os.mkdir("x"); os.rename("e", "x"); assert get("x/f") == b"f\n"; os.mkdir("y"); raises("ENOTEMPTY", os.rename, "y", "x")
raises("ENOTDIR", os.rename, "y", "a.txt"); raises("EISDIR", os.rename, "a.txt", "y"); raises("ENOTDIR", os.rmdir, "a.txt"); raises("EISDIR", os.unlink, "y")
n = os.stat(".").st_nlink; os.mkdir("z"); assert os.stat(".").st_nlink == n + 1; os.rmdir("z"); assert os.stat(".").st_nlink == n
os.unlink("x/f"); os.rmdir("x"); os.rmdir("y"); assert os.listdir(".") == ["a.txt"]
"#;
    renames_take_their_flags: r#"
put("b", b"b\n"); raises("EEXIST", renameat2, "a.txt", "b", 1); renameat2("b", "c", 1); assert get("c") == b"b\n"
a = get("a.txt"); renameat2("a.txt", "c", 2); assert get("c") == a and get("a.txt") == b"b\n"
renameat2("a.txt", "c", 2); assert get("a.txt") == a and get("c") == b"b\n"
raises("ENOENT", renameat2, "a.txt", "none", 2); raises("EINVAL", renameat2, "a.txt", "c", 3)
os.mkdir("d"); os.mkdir("e"); put("d/f", b""); renameat2("d", "e", 2); assert os.listdir("e") == ["f"] and os.listdir("d") == []
"#;
    a_mapping_moves_the_times: r#"
os.utime("a.txt", ns=(1, 1)); f = os.open("a.txt", os.O_RDWR); m = mmap.mmap(f, 0); m[:1] = b"L"; m.flush(); assert os.fstat(f).st_mtime_ns > 1; m.close(); os.close(f)
assert get("a.txt").startswith(b"Line 1")
"#;
    writers_that_append_lose_nothing: r#"
for i in range(4):
    if os.fork() == 0:
        f = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for j in range(100): os.write(f, b"%d %d\n" % (i, j))
        os._exit(0)
for i in range(4): assert os.wait()[1] == 0
assert len(set(get("log").splitlines())) == 400
"#;
    a_running_program_cannot_be_written: r#"
import shutil
shutil.copy("/bin/sleep", "s"); os.chmod("s", 0o755); pid = os.fork()
if pid == 0: os.execv("./s", ["s", "30"])
while os.readlink("/proc/%d/exe" % pid).rsplit("/", 1)[-1] != "s": pass
raises("ETXTBSY", os.open, "s", os.O_WRONLY); os.kill(pid, 9); os.waitpid(pid, 0)
"#;
    what_is_read_only_to_a_mode_is_refused_to_others: r#"
os.chmod(".", 0o755); os.chmod("a.txt", 0o600); pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    raises("EACCES", open, "a.txt"); raises("EACCES", open, "new", "w"); raises("EPERM", os.chmod, "a.txt", 0o666); raises("EACCES", os.unlink, "a.txt"); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"#;
}

#[test]
fn a_listing_of_thousands_stands_deletions_and_rewinding() {
    let scratch = mounted_scratch!();
    (0..5000).for_each(|number| scratch.write(format!("d/{number}"), ""));
    let view = scratch.mounting().flag("--burst=100000").start();
    in_view(
        &scratch,
        &view,
        r#"
assert sorted(os.listdir("d"), key=int) == [str(i) for i in range(5000)]
with os.scandir("d") as it:
    for e in it: assert e.inode() == os.stat(e.path).st_ino, e
libc.opendir.restype = ctypes.c_void_p; libc.readdir64.restype = ctypes.c_void_p
libc.readdir64.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
d = libc.opendir(b"d"); seen = set()
def read():
    while e := libc.readdir64(d):
        name = ctypes.string_at(e + 19).decode()
        if name not in (".", ".."): yield name
for name in read():
    assert name not in seen; seen.add(name)
    if name.endswith("7"): os.unlink("d/" + name)
assert len(seen) == 5000, len(seen)
put("d/fresh", b""); libc.rewinddir(d); left = list(read())
want = [str(i) for i in range(5000) if i % 10 != 7] + ["fresh"]
assert sorted(left) == sorted(want), (len(left), set(left) ^ set(want))
libc.closedir(d)
"#,
    );
}

#[test]
fn a_whiteout_is_refused_and_not_ignored() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", "a\n");
    let view = scratch.mount();
    in_view(&scratch, &view, "raises('EINVAL', renameat2, 'a.txt', 'b', 4); assert os.listdir('.') == ['a.txt']");
    view.assert_landed("a.txt", "a\n");
}

#[test]
fn attributes_of_ours_are_answered_and_not_listed() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", lines(200));
    scratch.write("b.txt", lines(200));
    let view = scratch.mount();
    view.write("a.txt", "all new\n".repeat(100));
    let id = view.only_held().id;
    in_view(
        &scratch,
        &view,
        &format!(
            r#"
assert os.listxattr("a.txt") == [] and os.listxattr("b.txt") == []
ask = lambda path, name: os.getxattr(path, "user.fettle." + name)
assert ask("a.txt", "state") == b"held" and ask("a.txt", "id") == b"{id}" and ask("a.txt", "reason") == b"size"
assert ask("b.txt", "state") == b"clean" and ask("b.txt", "externally_modified") == b"0"
f = open("b.txt", "a"); f.write("x\n"); f.flush(); assert ask("b.txt", "state") == b"dirty"; f.close(); assert ask("b.txt", "state") == b"clean"
raises("ENODATA", ask, "b.txt", "id")
for path in ("a.txt", "b.txt"): raises("EPERM", os.setxattr, path, "user.fettle.state", b"clean")
"#
        ),
    );
}

#[test]
fn stores_after_the_close_are_judged() {
    let scratch = mounted_scratch!();
    let (old, new) = (lines(200), with_changed_lines(&lines(200), 0).to_uppercase());
    scratch.write("a.txt", &old);
    fs::write(scratch.root().join("new"), &new).expect("the new content");
    let view = scratch.mounting().env("LC_ALL", "C").start();
    in_view(
        &scratch,
        &view,
        "f = os.open('a.txt', os.O_RDWR); m = mmap.mmap(f, 0); os.close(f); m[:] = m[:].upper(); m.close()",
    );
    view.cli(&["flush"]).ok();
    let held = view.assert_held("a.txt", &new, &old);
    assert_eq!((held.reason.as_str(), held.kind.as_str()), ("size", "modify"));
}

#[test]
fn a_loop_that_appends_is_one_change() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", lines(100));
    let view = scratch.mount();
    view.sh("i=0; while [ $i -lt 40 ]; do echo more $i >> a.txt; i=$((i+1)); done").ok();
    assert_eq!(view.held(), [], "two fifths land");
    view.sh("i=40; while [ $i -lt 60 ]; do echo more $i >> a.txt; i=$((i+1)); done").ok();
    let more: String = (0..60).map(|number| format!("more {number}\n")).collect();
    let below: String = (0..40).map(|number| format!("more {number}\n")).collect();
    view.assert_held("a.txt", &(lines(100) + &more), &(lines(100) + &below));
    view.only_held();
}

#[test]
fn other_names_of_a_held_file_come_and_go_without_the_change() {
    for (way, names) in [
        ("rm b", ["a.txt", ""]),
        ("echo t > t; mv t b", ["a.txt", "b"]),
        ("mv b c", ["a.txt", "c"]),
        ("rm a.txt", ["", "b"]),
        ("mv a.txt c", ["c", "b"]),
    ] {
        let scratch = mounted_scratch!();
        scratch.write("a.txt", lines(200));
        fs::hard_link(scratch.lower().join("a.txt"), scratch.lower().join("b")).expect("a hard link");
        let view = scratch.mount();
        assert_eq!(view.read("b"), lines(200));
        let new = "all new\n".repeat(200);
        view.write("a.txt", &new);
        assert_eq!(view.read("b"), new, "{way}: before");
        view.sh(way).ok();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            let want = if way.contains("mv t") && name == "b" { "t\n" } else { &new };
            assert!(view.has(name), "{way}: {name} is gone");
            assert!(view.read(name) == want, "{way}: {name} has lost the change");
        }
        assert!(view.held().iter().any(|held| names.contains(&held.path.as_str())), "{way}: {:?}", view.held());
    }
}

/// Whether or not somebody still has it open by that name.
#[test]
fn what_is_held_again_shows_by_a_further_name_that_alone_was_read() {
    for is_open in [true, false] {
        let scratch = mounted_scratch!();
        scratch.write("a.txt", lines(200));
        fs::hard_link(scratch.lower().join("a.txt"), scratch.lower().join("b")).expect("a hard link");
        let view = scratch.mount();
        let new = "all new\n".repeat(200);
        view.write("a.txt", &new);
        let discarded = view.cli(&["discard", "a.txt", "--json"]).ok().json();
        view.unmount();
        let view = scratch.mount();
        let reader = File::open(view.path("b")).expect("open");
        assert_eq!(io::read_to_string(&reader).expect("read"), lines(200));
        let reader = Some(reader).filter(|_| is_open);
        view.cli(&["undo", discarded["outcomes"][0]["operation"].as_str().expect("an operation")]).ok();
        let shown = reader.map(|mut reader| reader.rewind().and_then(|()| io::read_to_string(reader)));
        assert!(shown.is_none_or(|shown| shown.expect("read") == new), "it is read on with what it was before");
        assert_eq!(["b", "a.txt", "b"].map(|name| view.read(name)), [&new[..]; 3], "{is_open}");
    }
}

/// Until what takes its place is reviewed the project has it at its path.
#[test]
fn one_name_of_a_held_file_that_is_moved_aside_stays_in_the_project() {
    for rewrite in ["cat new > a.txt", "cat new > t && mv t a.txt"] {
        let scratch = mounted_scratch!();
        scratch.write("a.txt", lines(200));
        scratch.write("x", "other\n".repeat(200));
        fs::hard_link(scratch.lower().join("a.txt"), scratch.lower().join("b")).expect("a hard link");
        let view = scratch.mount();
        view.sh(&format!("yes all new | head -n 200 > new; {rewrite}; mv a.txt a.txt.bak; mv x a.txt")).ok();
        assert_eq!(scratch.read("a.txt"), lines(200), "{rewrite}");
        assert_eq!(view.sh("sed 1q a.txt.bak a.txt").ok().stdout, "all new\n", "{rewrite}");
        assert!(view.held().iter().any(|held| held.path == "a.txt"), "{rewrite}: {:?}", view.held());
        view.cli(&["confirm", "--all", "--yes"]).ok();
        let below = ["a.txt", "a.txt.bak", "b"].map(|name| scratch.read(name));
        let b = if rewrite.contains("mv") { lines(200) } else { "all new\n".repeat(200) };
        assert_eq!(below, ["other\n".repeat(200), "all new\n".repeat(200), b], "{rewrite}");
    }
}

const EXCHANGE: &str =
    "python3 -c 'import ctypes; assert ctypes.CDLL(None).renameat2(-100, b\"t\", -100, b\"q\", 2) == 0'";

#[test]
fn a_copy_in_the_place_of_a_renamed_or_exchanged_name_is_no_link_at_once() {
    for (way, links) in [("mv t q", "1\n1\n"), (EXCHANGE, "1\n1\n1\n")] {
        let scratch = mounted_scratch!();
        let view = scratch.mount();
        view.sh("echo old > q; echo file > o; ln o t; stat -c %h o t q").ok();
        assert_eq!(view.sh(&format!("{way} && stat -c %h o q $(ls t 2> /dev/null)")).ok().stdout, links, "{way}");
        // By the node that the kernel has known for that name.
        view.sh("echo mine > o").ok();
        assert_eq!(view.sh("cat o q").ok().stdout, "mine\nfile\n", "{way}");
        assert_eq!((scratch.read("o"), scratch.read("q")), ("mine\n".into(), "file\n".into()), "{way}");
    }
}

/// What the project has goes back to its first name, and the name that it was renamed to is a copy.
#[test]
fn a_further_name_of_what_is_put_back_is_not_the_copys_at_once() {
    let scratch = mounted_scratch!();
    (0..ROUNDS).for_each(|round| scratch.write(format!("{round}/a"), lines(20)));
    let view = scratch.mounting().flag("--burst=1000000").start();
    for round in 0..ROUNDS {
        let [a, b, c] = ["a", "b", "c"].map(|name| view.path(format!("{round}/{name}")));
        let links = || [&b, &c].map(|path| fs::metadata(path).expect("it is there").nlink());
        fs::rename(&a, &b).and_then(|()| fs::hard_link(&b, &c)).expect("a file with two names");
        assert_eq!(links(), [2, 2], "round {round}");
        fs::write(&a, "new\n".repeat(90)).expect("held");
        // Before the kernel can have been told anything.
        let opened = OpenOptions::new().append(true).open(&b);
        opened.and_then(|mut file| file.write_all(b"more\n")).expect("written");
        assert_eq!(links(), [1, 1], "round {round}");
        let shown = [&b, &c].map(|path| fs::read_to_string(path).expect("read"));
        assert_eq!(shown, [lines(20) + "more\n", lines(20)], "round {round}");
        assert_eq!(scratch.read(format!("{round}/a")), lines(20), "round {round}");
    }
}

/// Before the kernel can have been told anything.
#[test]
fn a_write_right_after_a_rename_or_exchange_goes_to_the_file_of_that_name() {
    let hold = "[[rule]]\nmatch = \"**\"\naction = \"hold\"\n";
    let exchange = RenameFlags::EXCHANGE;
    for (rules, flags) in [("", RenameFlags::empty()), ("", exchange), (hold, RenameFlags::empty()), (hold, exchange)] {
        // The change is based on what the project has under the first name.
        for (stays, goes) in [("o", "t"), ("t", "o")] {
            let scratch = mounted_scratch!();
            scratch.write(".fettle.toml", rules);
            for round in 0..ROUNDS {
                scratch.write(format!("{round}/o"), "older\n".repeat(5));
                scratch.write(format!("{round}/q"), "old\n");
            }
            let view = scratch.mounting().flag("--burst=1000000").start();
            for round in 0..ROUNDS {
                let what = format!("{rules}{flags:?} of {goes} in round {round}");
                let path = |name: &str| view.path(format!("{round}/{name}"));
                let file = "file\n".repeat(90);
                fs::write(path("o"), &file).and_then(|()| fs::hard_link(path("o"), path("t"))).expect("two names");
                let [stays, goes, q] = [stays, goes, "q"].map(path);
                renameat_with(CWD, &goes, CWD, &q, flags).expect("renamed");
                let links = fs::metadata(&stays).map(|meta| meta.nlink()).expect("it is there");
                assert_eq!(links, 1, "{what}");
                let opened = OpenOptions::new().append(true).open(&q);
                opened.and_then(|mut file| file.write_all(b"more\n")).expect("written");
                let shown = [&q, &stays].map(|path| fs::read_to_string(path).expect("read"));
                assert_eq!(shown, [format!("{file}more\n"), file], "{what}");
            }
        }
    }
}

const ROUNDS: usize = 80;

/// Scripts that try to get a whole new `a.txt` past the review, with the settings under which they must not.
#[test]
fn ways_around_the_review_end_held() {
    let ways = [
        ("2s", "mv a.txt b; mv b a.txt; cat $NEW > a.txt"),
        ("session", "mv a.txt b; cp b a.txt; sed -i 1s/line/LINE/ a.txt; cat $NEW > a.txt"),
        ("session", "mv a.txt b; cp b a.txt; echo x >> b; rm b; rm a.txt; cat $NEW > a.txt"),
        ("2s", "rm a.txt; cat $NEW > a.txt"),
        ("2s", "cat $NEW > b; mv b a.txt"),
        ("2s", "cat $NEW > b; ln -f b a.txt"),
        ("2s", "ln a.txt b; cat $NEW > b; rm b"),
        ("2s", "mkdir d; mv a.txt d/; cat $NEW > a.txt"),
        ("2s", "mkdir d; mv a.txt d/; mv d e; cat $NEW > e/a.txt; mv e/a.txt ."),
        ("2s", "exec 3<>a.txt; cat $NEW > /proc/self/fd/3; exec 3>&-"),
        ("2s", ": > a.txt; cat $NEW > a.txt"),
        ("2s", "cat $NEW > a.txt & wait"),
        (
            "session",
            "split -l 20 $NEW s.; head -n 200 a.txt > old; for s in s.*; do cat $s old > a.txt; done; cat s.* > a.txt; rm s.* old",
        ),
    ];
    for (window, way) in ways {
        let scratch = mounted_scratch!();
        scratch.write("a.txt", lines(200));
        let new = "all new\n".repeat(200);
        fs::write(scratch.root().join("new"), &new).expect("the new content");
        let view = scratch.mounting().flag(format!("--window={window}")).flag("--burst=1000").start();
        view.sh(&format!("export NEW={}; {way}", scratch.root().join("new").display())).ok();
        view.cli(&["flush"]).ok();
        let shown = view.try_read("a.txt").map(|bytes| bytes == new.as_bytes());
        assert!(matches!(shown, Ok(true)), "{way}: the view has {shown:?}");
        let below = scratch.try_read("a.txt").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(below.as_ref().map_or(true, |text| text.contains("line 150")), "{way}: the project has {below:?}");
        assert!(
            view.held().iter().any(|held| held.path == "a.txt" || held.json["also"][0] == "a.txt"),
            "{way}: {:?}",
            view.held()
        );
    }
}

/// Git's cache of untracked files and Python's of modules look at a directory again only when its times have changed.
#[test]
fn a_directorys_times_move_with_the_names_that_wait_in_it() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"pkg/**\"\naction = \"hold\"\n");
    scratch.write("pkg/__init__.py", "");
    scratch.write("pkg/old.py", "");
    let view = scratch.mount_at("view");
    let times = |path: PathBuf| {
        let meta = fs::metadata(path).expect("stat");
        [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())]
    };
    let (shown, below) = (|| times(view.path("pkg")), || times(view.lower().join("pkg")));
    let mut seen = shown();
    assert_eq!(seen, below());
    let mut moves = |doing: &str| {
        view.sh(doing).ok();
        assert!(shown() > seen, "{doing}: {seen:?}, then {:?}", shown());
        seen = shown();
    };
    moves("echo 1 > pkg/one.py");
    moves("echo 1 > pkg/two.py");
    moves("rm pkg/old.py");
    moves("mv pkg/one.py pkg/three.py");
    moves("mkdir pkg/sub");
    let moved = shown();
    view.cli(&["discard", "pkg/two.py"]).ok();
    assert!(shown() > moved);
    view.sh("touch -d 2001-01-01 pkg").ok();
    assert_eq!(fs::metadata(view.path("pkg")).expect("stat").mtime(), 978_307_200);
    let set = shown();
    view.cli(&["discard", "--all", "--yes"]).ok();
    assert!(shown() > moved && shown()[1] >= set[1], "{moved:?}, {set:?}, then {:?}", shown());
    let imports = "\
import sys; sys.path.insert(0, ''); sys.dont_write_bytecode = True; import pkg
raises = False
try: import pkg.late
except ImportError: raises = True
assert raises
put('pkg/late.py', b'x = 1')
import pkg.late
";
    in_view(&scratch, &view, imports);
    assert_eq!(view.only_held().path, "pkg/late.py");
}
