//! What POSIX programs count on and other overlays get wrong, a test a line of the list. Each script runs on a plain
//! directory, so that it asks for nothing that the kernel does not give, and in the view where files are judged, where
//! they pass, and through a mountpoint of its own. What `it/semantics.rs` has already is not here.
//!
//! `scripts/conformance` runs the large suites.

use std::fs;
use std::path::Path;

use crate::harness::{Output, Scratch, mounted_scratch, script};

/// What every script begins with, besides what all scripts do. It stands in an empty directory.
const PRELUDE: &str = r#"
def mode(path): return stat.S_IMODE(os.lstat(path).st_mode)
def as_user(uid, call, groups=()):
    "What `call` raises is ours; it runs as somebody else."
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups); os.setgid(uid); os.setuid(uid); call(); os._exit(0)
        except BaseException as err:
            print(type(err), err, file=sys.stderr); os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def sh(command):
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
os.umask(0o022)
"#;

fn python(scratch: &Scratch, dir: &Path, script: &str) -> Output {
    fs::create_dir(dir).expect("a directory to work in");
    script::python(scratch, dir, &format!("{PRELUDE}{script}"))
}

/// Runs `script` in four empty directories: a plain one, a judged one, one that passes, and a judged one that is seen
/// through a mountpoint of its own.
fn holds_everywhere(script: &str) {
    let scratch = mounted_scratch!();
    scratch.write(".gitignore", "/pass/\n");
    scratch.write("pass/keep", "");
    scratch.git_init();
    let holds = |place: &str, dir: &Path| {
        let output = python(&scratch, dir, script);
        assert_eq!(output.status, 0, "{place}: {}", output.stderr);
    };
    holds("on a plain directory", &scratch.root().join("plain"));
    let mounting = || scratch.mounting().flag("--burst=100000").flag("-osuid,dev");
    let view = mounting().start();
    holds("where files are judged", &view.path("judged"));
    holds("where files pass", &view.path("pass/here"));
    view.unmount();
    let view = mounting().at("view").start();
    holds("through a mountpoint of its own", &view.path("beside"));
}

macro_rules! scripts {
    ($($name:ident: $script:literal;)+) => {
        $(#[test] fn $name() { holds_everywhere($script); })+
    };
}

scripts! {
    names_and_paths_are_as_long_as_the_kernel_allows: r#"
long = "n" * 255; put(long, b"x"); assert get(long) == b"x" and os.listdir(".") == [long]
for call in (os.stat, os.mkdir, os.mkfifo, os.rmdir, os.unlink, os.readlink, lambda n: open(n, "w"), lambda n: os.link(long, n), lambda n: os.symlink("x", n), lambda n: os.rename(long, n), lambda n: os.rename(n, long)):
    raises("ENAMETOOLONG", call, "n" * 256)
os.unlink(long)
deep = "/".join(["d" * 254] * 15 + ["d" * 20]); os.makedirs(deep); path = deep + "/" + "f" * (4095 - len(deep) - 1)
assert len(path) == 4095; put(path, b"deep\n"); assert get(path) == b"deep\n" and os.stat(path).st_size == 5
with open(path, "ab") as f: f.write(b"er\n")
assert get(path) == b"deep\ner\n"; other = path[:-1] + "g"; os.rename(path, other); os.setxattr(other, "user.x", b"1"); os.chmod(other, 0o600)
os.link(other, path); os.unlink(path); raises("ENAMETOOLONG", os.stat, path + "x"); sh("rm -r ddd*"); assert os.listdir(".") == []
"#;
    an_unlinked_file_goes_on_for_who_has_it_open: r#"
f = os.open("f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644); os.unlink("f")
s = os.fstat(f); assert (s.st_nlink, s.st_size) == (0, 0), s
assert os.write(f, b"Hello, World!") == 13 and os.pread(f, 13, 0) == b"Hello, World!" and os.fstat(f).st_size == 13
os.ftruncate(f, 5); assert os.pread(f, 99, 0) == b"Hello"; os.posix_fallocate(f, 0, 8192); assert os.fstat(f).st_size == 8192
m = mmap.mmap(f, 8192); m[:3] = b"abc"; m.flush(); assert os.pread(f, 3, 0) == b"abc"; m.close()
os.fchmod(f, 0o600); os.fchown(f, 12, 34); os.utime(f, ns=(1, 2)); s = os.fstat(f); assert (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_nlink) == (0o600, 12, 34, 2, 0), s
os.setxattr(f, "user.x", b"1"); assert os.getxattr(f, "user.x") == b"1"
g = os.open("/proc/self/fd/%d" % f, os.O_RDWR); assert os.pread(g, 3, 0) == b"abc"; os.pwrite(g, b"ABC", 0); assert os.pread(f, 3, 0) == b"ABC"
os.close(f); assert os.fstat(g).st_nlink == 0 and os.pread(g, 3, 0) == b"ABC"; os.close(g); assert os.listdir(".") == []
"#;
    a_removed_directory_is_empty_and_takes_nothing: r#"
os.mkdir("d"); d = os.open("d", os.O_RDONLY); os.rmdir("d"); assert os.fstat(d).st_nlink == 0
raises("ENOENT", os.open, "f", os.O_CREAT | os.O_WRONLY, dir_fd=d); raises("ENOENT", os.mkdir, "e", dir_fd=d); os.close(d); os.mkdir("d"); os.rmdir("d")
"#;
    removed_directories_and_fifos_that_are_open_have_mode_owner_and_times: r#"
os.mkdir("d"); d = os.open("d", os.O_RDONLY); os.rmdir("d"); os.mkfifo("p"); p = os.open("p", os.O_RDWR | os.O_NONBLOCK); os.unlink("p")
for f in (d, p):
    os.fchmod(f, 0o700); os.fchown(f, 12, 34); os.utime(f, ns=(1, 2)); s = os.fstat(f)
    assert (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_atime_ns, s.st_mtime_ns, s.st_nlink) == (0o700, 12, 34, 1, 2, 0), s
    os.utime(f); assert os.fstat(f).st_mtime > 1e9; os.close(f)
"#;
    directories_hand_down_their_group: r#"
os.mkdir("d"); os.chown("d", 0, 4321); os.chmod("d", 0o2777)
def make():
    put("d/f"); os.mkdir("d/s"); os.mkfifo("d/p"); os.symlink("f", "d/l"); os.close(os.open("d/g", os.O_CREAT | os.O_WRONLY, 0o2775))
as_user(1234, make)
for n in ("f", "s", "p", "l", "g"): s = os.lstat("d/" + n); assert (s.st_uid, s.st_gid) == (1234, 4321), (n, s)
assert mode("d/s") == 0o2755 and mode("d/f") == 0o644 and mode("d/g") == 0o755, [oct(mode("d/" + n)) for n in ("s", "f", "g")]
os.mkdir("e"); os.chmod("e", 0o777); as_user(1234, lambda: put("e/f")); s = os.stat("e/f"); assert (s.st_uid, s.st_gid) == (1234, 1234), s
os.umask(0o077); put("m"); os.mkdir("n"); os.mkfifo("o"); assert (mode("m"), mode("n"), mode("o")) == (0o600, 0o700, 0o600)
"#;
    directories_hand_down_their_default_acl: r##"
def acl(path): return sh("getfacl -cn " + path).split()
os.mkdir("d"); sh("setfacl -d -m u::rwx,g::rx,o::---,u:1234:rwx,m::rwx d")
put("d/f", b"x\n"); os.mkdir("d/s"); os.mkfifo("d/p"); os.close(os.open("d/g", os.O_CREAT | os.O_WRONLY, 0o600)); os.symlink("f", "d/l")
assert [oct(mode("d/" + n)) for n in ("f", "s", "p", "g")] == ["0o660", "0o770", "0o660", "0o600"], "the umask has no say"
assert acl("d/f") == ["user::rw-", "user:1234:rwx", "#effective:rw-", "group::r-x", "#effective:r--", "mask::rw-", "other::---"], acl("d/f")
assert "default:user:1234:rwx" in acl("d/s") and "user:1234:rwx" in acl("d/s")
with open("d/f", "ab") as f: f.write(b"more\n")
assert "user:1234:rwx" in acl("d/f")
sh("cp d/f d/t; mv d/t d/f"); assert "user:1234:rwx" in acl("d/f")
os.mkdir("plain"); sh("setfacl -d -m u::rwx,g::r,o::- plain"); put("plain/f"); assert mode("plain/f") == 0o640 and len(acl("plain/f")) == 3
"##;
    access_is_decided_by_acls: r#"
os.mkdir("d", 0o700); put("d/f", b"x"); os.chmod("d/f", 0o600); sh("setfacl -m u:1234:rx d; setfacl -m u:1234:r,g:4321:rw d/f")
def reads():
    assert os.listdir("d") == ["f"] and get("d/f") == b"x"; raises("EACCES", open, "d/n", "w"); raises("EACCES", open, "d/f", "a")
as_user(1234, reads); as_user(77, lambda: raises("EACCES", os.listdir, "d"))
os.chmod("d", 0o755); as_user(77, lambda: open("d/f", "a").close(), groups=[4321]); as_user(77, lambda: raises("EACCES", get, "d/f"))
sh("setfacl -b d/f"); as_user(1234, lambda: raises("EACCES", get, "d/f")); as_user(1234, lambda: raises("EPERM", os.setxattr, "d/f", "system.posix_acl_access", os.getxattr("d", "system.posix_acl_access")))
os.symlink("f", "d/l"); raises("EOPNOTSUPP", os.setxattr, "d/l", "system.posix_acl_access", b"\2\0\0\0", 0, follow_symlinks=False)
put("g"); os.chown("g", 1234, 99); os.chmod("g", 0o2755); as_user(1234, lambda: sh("setfacl -m u:5:r g")); assert mode("g") == 0o755, "no group to lend"
os.chmod("g", 0o2755); as_user(1234, lambda: sh("setfacl -m u:6:r g"), groups=[99]); assert mode("g") == 0o2755
"#;
    set_id_bits_fall_when_content_or_owner_change: r#"
def fresh():
    put("f", b"0123456789" * 1000); os.chown("f", 0, 0); os.chmod("f", 0o6777)
    assert mode("f") == 0o6777
def change(call):
    def run():
        f = os.open("f", os.O_RDWR); call(f); os.close(f)
    return run
def copied(f):
    g = os.open("f", os.O_RDONLY); os.copy_file_range(g, f, 10, 0, 100); os.close(g)
for call in (lambda f: os.write(f, b"x"), lambda f: os.ftruncate(f, 3), lambda f: os.truncate("f", 4), lambda f: os.posix_fallocate(f, 0, 1 << 20), copied,
             lambda f: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))):
    fresh(); as_user(1234, change(call)); assert mode("f") == 0o777, (oct(mode("f")), call.__code__.co_names)
fresh(); os.chown("f", 1234, 1234); assert mode("f") == 0o777, oct(mode("f"))
os.chmod("f", 0o2707); os.chown("f", 1234, 1234); assert mode("f") == 0o2707, "a mandatory lock's mark, not a lent group"
os.mkdir("d"); os.chmod("d", 0o6777); os.chown("d", 1234, 1234); assert mode("d") == 0o6777, oct(mode("d"))
fresh(); os.chown("f", 1234, 1234); os.chmod("f", 0o6755); os.chown("f", -1, -1)
put("n"); os.chown("n", 1234, 99); as_user(1234, lambda: os.chmod("n", 0o2755)); assert mode("n") == 0o755, "not in the group"
"#;
    a_new_entry_is_never_an_old_one: r#"
for i in range(200):
    put("f%d" % i, b"x"); assert stat.S_ISREG(os.stat("f%d" % i).st_mode); os.unlink("f%d" % i)
    os.mkdir("f%d" % i); assert stat.S_ISDIR(os.stat("f%d" % i).st_mode) and os.listdir("f%d" % i) == []; os.rmdir("f%d" % i)
    os.mkfifo("f%d" % i); assert stat.S_ISFIFO(os.stat("f%d" % i).st_mode); os.unlink("f%d" % i)
    os.symlink("x", "f%d" % i); assert os.readlink("f%d" % i) == "x"; os.unlink("f%d" % i)
"#;
    attributes_are_seen_at_once: r#"
put("a", b"x"); s = os.stat("a"); os.link("a", "b")
t = os.stat("a"); assert t.st_nlink == 2 and t.st_ctime_ns >= s.st_ctime_ns and os.stat("b").st_ino == s.st_ino
c = os.stat("a").st_ctime_ns; os.chmod("b", 0o640); t = os.stat("a"); assert stat.S_IMODE(t.st_mode) == 0o640 and t.st_ctime_ns >= c
os.rename("a", "c"); assert os.stat("c").st_ino == s.st_ino; raises("ENOENT", os.stat, "a"); os.unlink("b"); assert os.stat("c").st_nlink == 1
f = os.open("c", os.O_RDWR); os.rename("c", "d"); os.fchmod(f, 0o600); os.write(f, b"yy"); s = os.stat("d"); assert (s.st_size, stat.S_IMODE(s.st_mode)) == (2, 0o600); os.close(f)
os.mkdir("e"); n = os.stat(".").st_nlink; m = os.stat(".").st_mtime_ns; os.rmdir("e"); assert os.stat(".").st_nlink == n - 1 and os.stat(".").st_mtime_ns >= m
"#;
    times_after_a_close_stay: r#"
put("emptied", b"x" * 100)
def made(name): os.close(os.open(name, os.O_CREAT | os.O_RDONLY, 0o644))
def emptied(name): os.close(os.open(name, os.O_WRONLY | os.O_TRUNC))
def times(name):
    now = os.lstat(name)
    return name, now.st_atime_ns, now.st_mtime_ns, now.st_ctime_ns
def several(who):
    first = []
    for turn in range(100):
        dir, name = f"{who}.{turn}", f"{who}.{turn}/name"
        os.mkdir(dir); made(name)
        # A read would move this access time to now.
        if turn % 2: os.utime(name, (2147483648, 4294967296))
        first += [times(name), times(dir)]
        assert not turn % 2 or first[-2][1:3] == (2147483648 * 10**9, 4294967296 * 10**9), first[-2]
    for told in first: assert times(told[0]) == told, (told, times(told[0]))
emptied("emptied")
first = times("emptied")
children = []
for who in range(4):
    children.append(os.fork())
    if children[-1] == 0:
        try: several(who); os._exit(0)
        except BaseException as err:
            print(err, file=sys.stderr); os._exit(1)
for child in children: assert os.waitpid(child, 0)[1] == 0
assert times("emptied") == first
"#;
    names_of_one_file_share_all_but_the_name: r#"
put("a", b"1\n" * 300); os.link("a", "b"); os.link("a", "c"); ino = os.stat("a").st_ino
def agree(count):
    names = [n for n in ("a", "b", "c", "d") if os.path.lexists(n)]
    for n in names: s = os.stat(n); assert (s.st_ino, s.st_nlink) == (ino, count), (n, s); assert get(n) == get(names[0]), n
agree(3)
with open("b", "ab") as f: f.write(b"2\n"); f.flush(); agree(3)
agree(3); put("c", b"all new\n" * 300); agree(3); os.chmod("a", 0o600); assert mode("c") == 0o600
os.rename("b", "d"); agree(3); os.unlink("a"); agree(2); f = os.open("c", os.O_RDONLY); os.unlink("c"); assert os.fstat(f).st_nlink == 1; agree(1); os.close(f)
"#;
    a_name_that_is_replaced_leaves_the_others: r#"
for old, new in ((b"", b""), (b"same\n", b"same\n"), (b"old\n", b"new\n"), (b"o\n" * 500, b"n\n" * 500)):
    put("src", new); put("dst", old); os.link("dst", "other"); os.rename("src", "dst")
    assert (os.stat("other").st_nlink, os.stat("dst").st_nlink) == (1, 1), (os.stat("other"), os.stat("dst"))
    assert os.stat("other").st_ino != os.stat("dst").st_ino
    with open("dst", "ab") as f: f.write(b"more\n")
    assert get("other") == old and get("dst") == new + b"more\n"; os.unlink("dst"); assert os.stat("other").st_nlink == 1; os.unlink("other")
"#;
    stores_through_a_mapping_move_the_times: r#"
put("f", b"x" * 8192); os.utime("f", ns=(1, 1)); c = os.stat("f").st_ctime_ns
f = os.open("f", os.O_RDWR); m = mmap.mmap(f, 0); m[:1] = b"y"; m.flush(); s = os.fstat(f); assert s.st_mtime_ns > 1 and s.st_ctime_ns >= c, s
m.close(); os.close(f); assert os.stat("f").st_mtime_ns > 1 and get("f")[:2] == b"yx"
"#;
    listings_can_be_read_again_and_from_anywhere: r#"
for i in range(300): put("f%d" % i)
libc.opendir.restype = libc.readdir64.restype = ctypes.c_void_p; libc.telldir.restype = ctypes.c_long
libc.readdir64.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]; libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
d = libc.opendir(b".")
def read():
    while e := libc.readdir64(d):
        yield ctypes.string_at(e + 19).decode(), ctypes.c_uint64.from_address(e).value
first, places = [], []
while True:
    at = libc.telldir(d); got = next(read(), None)
    if got is None: break
    first.append(got); places.append(at)
assert sorted(n for n, _ in first) == sorted(os.listdir(".") + [".", ".."])
for n, ino in first:
    if n != "..": assert os.lstat(n).st_ino == ino, n
for i in (250, 7, 100, 0): libc.seekdir(d, places[i]); assert next(read()) == first[i], i
put("fresh"); os.unlink("f0"); libc.rewinddir(d); now = [n for n, _ in read()]
assert len(now) == len(set(now)) and "fresh" in now and "f0" not in now and len(now) == 302, len(now); libc.closedir(d)
"#;
    nothing_is_missing_while_others_create_and_delete: r#"
for i in range(400): put("keep%d" % i)
stop = threading.Event()
def churn():
    i = 0
    while not stop.is_set(): i += 1; put("t%d" % (i % 50)); os.unlink("t%d" % (i % 50))
t = threading.Thread(target=churn); t.start()
try:
    for _ in range(20):
        names = os.listdir("."); kept = [n for n in names if n.startswith("keep")]
        assert len(kept) == len(set(kept)) == 400, len(kept); assert len(names) == len(set(names))
finally: stop.set(); t.join()
sh("rm -r *"); assert os.listdir(".") == []
"#;
    attributes_hold_what_lower_can: r#"
put("f"); os.mkdir("d"); os.symlink("f", "l")
for size in (0, 1, 255, 256, 257, 2000): os.setxattr("f", "user.s", b"v" * size); assert os.getxattr("f", "user.s") == b"v" * size, size
raises("E2BIG", os.setxattr, "f", "user.big", b"v" * 65537); raises("ENOSPC", os.setxattr, "f", "user.big", b"v" * 65536)
raises("ERANGE", os.setxattr, "f", "user." + "n" * 251, b""); os.setxattr("f", "user." + "n" * 250, b"")
raises("EOPNOTSUPP", os.setxattr, "f", "nonsense.x", b""); raises("ENODATA", os.removexattr, "f", "user.none"); raises("ENODATA", os.getxattr, "f", "user.none")
for i in range(20): os.setxattr("d", "user.%d" % i, b"%d" % i)
assert sorted(os.listxattr("d")) == sorted("user.%d" % i for i in range(20))
raises("EPERM", os.setxattr, "l", "user.x", b"", 0, follow_symlinks=False); os.setxattr("l", "trusted.x", b"1", 0, follow_symlinks=False)
assert os.getxattr("l", "trusted.x", follow_symlinks=False) == b"1" and os.listxattr("l", follow_symlinks=False) == ["trusted.x"] and "trusted.x" not in os.listxattr("f")
raises("ERANGE", lambda: (_ for _ in ()).throw(OSError(errno.ERANGE, "")) if libc.getxattr(b"f", b"user.s", ctypes.create_string_buffer(9), 9) < 0 and ctypes.get_errno() == errno.ERANGE else None)
"#;
    renames_of_all_kinds_take_their_flags: r#"
put("f", b"f\n"); os.mkdir("d"); put("d/x", b"x\n"); os.symlink("f", "l"); os.mkfifo("p"); os.mkfifo("q")
for a in ("f", "d", "l", "p"):
    raises("EEXIST", renameat2, a, "q", 1); raises("EINVAL", renameat2, a, "q", 3); raises("ENOENT", renameat2, a, "none", 2)
    renameat2(a, "free", 1); renameat2("free", a, 1)
renameat2("f", "d", 2); assert get("d") == b"f\n" and os.listdir("f") == ["x"] and get("f/x") == b"x\n"
put("d", b"changed\n"); put("f/x", b"changed too\n"); renameat2("f", "d", 2); assert get("f") == b"changed\n" and get("d/x") == b"changed too\n"
renameat2("l", "d", 2); assert os.readlink("d") == "f" and os.listdir("l") == ["x"]; renameat2("l", "d", 2)
renameat2("f", "l", 2); assert get("l") == b"changed\n" and os.readlink("f") == "f"; renameat2("f", "l", 2)
renameat2("p", "q", 2); os.rename("p", "q"); assert sorted(os.listdir(".")) == ["d", "f", "l", "q"]; raises("EINVAL", renameat2, "d", "d/x", 2)
os.link("f", "g"); i = os.stat("f").st_ino; renameat2("f", "g", 2); os.rename("f", "g"); s, t = os.stat("f"), os.stat("g"); assert (s.st_ino, t.st_ino, s.st_nlink) == (i, i, 2), (i, s, t)
"#;
    trees_are_moved_and_removed_whole: r#"
for i in range(40): os.makedirs("t/%d/sub" % i); put("t/%d/f" % i, b"f\n"); os.symlink("f", "t/%d/l" % i); os.mkfifo("t/%d/sub/p" % i); os.link("t/%d/f" % i, "t/%d/h" % i)
os.rename("t", "u"); os.mkdir("v"); os.rename("u", "v/u"); assert get("v/u/7/h") == b"f\n"
sh("rm -rf v"); assert os.listdir(".") == []
"#;
    space_is_managed_as_lower_does: r#"
f = os.open("f", os.O_RDWR | os.O_CREAT); os.pwrite(f, b"x" * 65536, 0); os.fsync(f)
def fallocate(mode, at, length):
    if libc.fallocate(f, mode, ctypes.c_long(at), ctypes.c_long(length)) != 0: raise OSError(ctypes.get_errno(), "")
fallocate(0, 0, 131072); assert os.fstat(f).st_size == 131072; fallocate(1, 131072, 65536); assert os.fstat(f).st_size == 131072
fallocate(3, 0, 4096); assert os.pread(f, 1, 0) == b"\0" and os.pread(f, 1, 4096) == b"x"; fallocate(0x10, 4096, 4096); assert os.pread(f, 1, 4096) == b"\0"
raises("EINVAL", fallocate, 0, 0, 0); raises("EINVAL", fallocate, 0, -1, 1)
os.ftruncate(f, 0); os.pwrite(f, b"d" * 4096, 1 << 20); os.fsync(f); assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20 and os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
raises("ENXIO", os.lseek, f, 1 << 21, os.SEEK_DATA); os.close(f); assert os.stat("f").st_blocks < 64
raises("EFBIG", os.truncate, "f", (1 << 63) - 1)
"#;
    bytes_are_moved_in_every_way: r#"
data = os.urandom(200_000); put("a", data); a = os.open("a", os.O_RDONLY); b = os.open("b", os.O_RDWR | os.O_CREAT); done = 0
while done < len(data): n = os.copy_file_range(a, b, len(data) - done, done, done); assert n > 0; done += n
assert get("b") == data; os.copy_file_range(b, b, 1000, 0, 100_000); assert get("b")[100_000:101_000] == data[:1000]; os.close(b)
c = os.open("c", os.O_WRONLY | os.O_CREAT); done = 0
while done < len(data): done += os.sendfile(c, a, done, len(data) - done)
os.close(c); assert get("c") == data
m = mmap.mmap(-1, 8192); m[:] = data[:8192]; d = os.open("d", os.O_RDWR | os.O_CREAT | os.O_DIRECT); assert os.pwritev(d, [m], 4096) == 8192; n = mmap.mmap(-1, 4096)
assert os.preadv(d, [n], 8192) == 4096 and n[:] == data[4096:8192]; os.close(d); assert get("d")[4096:] == data[:8192]
r, w = os.pipe(); os.splice(a, w, 4096, 0); e = os.open("e", os.O_WRONLY | os.O_CREAT); os.splice(r, e, 4096); os.close(e); assert get("e") == data[:4096]
v = os.open("v", os.O_RDWR | os.O_CREAT | os.O_SYNC); os.writev(v, [b"one", b"two"]); assert os.pread(v, 9, 0) == b"onetwo"; os.close(v)
"#;
    locks_exclude: r#"
put("f", b"x" * 100)
def taken(take): as_user(0, lambda: raises("EAGAIN", take, open("f", "r+")))
def free(take): as_user(0, lambda: take(open("f", "r+")))
for take in (lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)):
    f = open("f", "r+"); take(f); taken(take); f.close(); free(take)
f = open("f", "r+"); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)
free(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 0)); taken(lambda g: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 45)); f.close()
"#;
    appenders_lose_nothing: r#"
put("log"); workers = []
for i in range(4):
    pid = os.fork()
    if pid == 0:
        f = os.open("log", os.O_WRONLY | os.O_APPEND)
        for j in range(100): os.write(f, b"%d %d\n" % (i, j))
        os._exit(0)
    workers.append(pid)
for pid in workers: assert os.waitpid(pid, 0)[1] == 0
lines = get("log").splitlines(); assert len(lines) == len(set(lines)) == 400, len(lines)
"#;
    a_program_that_runs_is_not_written: r#"
sh("cp /bin/sleep s; chmod 755 s"); p = subprocess.Popen(["./s", "60"])
while os.readlink("/proc/%d/exe" % p.pid).rsplit("/", 1)[-1] != "s": pass
for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC): raises("ETXTBSY", os.open, "s", flags)
raises("ETXTBSY", os.truncate, "s", 0); assert get("s") == get("/bin/sleep") and p.poll() is None; p.kill(); p.wait()
f = os.open("s", os.O_WRONLY); raises("ETXTBSY", os.execv, "./s", ["s", "0"]); os.close(f)
os.close(os.open("s", os.O_RDONLY | os.O_TRUNC)); assert get("s") == b""
"#;
    thousands_of_files_are_open_at_once: r#"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
files = [os.open("f%d" % i, os.O_RDWR | os.O_CREAT) for i in range(1500)]
for i, f in enumerate(files): os.write(f, b"%d" % i)
again = [os.open("f%d" % i, os.O_RDONLY) for i in range(1500)]
for i, f in enumerate(again): assert os.pread(f, 9, 0) == b"%d" % i
for f in files + again: os.close(f)
"#;
}

#[test]
fn what_cannot_be_had_is_refused_and_not_ignored() {
    let scratch = mounted_scratch!();
    scratch.write(".gitignore", "/pass/\n");
    scratch.write("pass/keep", "");
    scratch.git_init();
    let view = scratch.mount();
    for dir in ["judged", "pass/here"] {
        let output = python(
            &scratch,
            &view.path(dir),
            r#"
put("f", b"x" * 65536); os.mkdir("d"); os.mkfifo("p")
for a in ("f", "d", "p"): raises("EINVAL", renameat2, a, "w", 4)
assert sorted(os.listdir(".")) == ["d", "f", "p"]
f = os.open("f", os.O_RDWR)
for collapse_or_insert in (8, 32): assert libc.fallocate(f, collapse_or_insert, ctypes.c_long(0), ctypes.c_long(4096)) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
raises("EOPNOTSUPP", os.open, ".", os.O_TMPFILE | os.O_RDWR); raises("ENOTTY", fcntl.ioctl, f, 0x80086601, b"12345678")
assert os.fstat(f).st_size == 65536
"#,
        );
        assert_eq!(output.status, 0, "{dir}: {}", output.stderr);
    }
}
