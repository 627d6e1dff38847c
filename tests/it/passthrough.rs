//! Files that nobody judges: that the kernel reads and writes them past the daemon, that they behave like any others,
//! and that nothing written so ever stands under a judged name unreviewed.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::script::python;
use crate::harness::{Output, Scratch, Stopped, View, lines, mounted_scratch};
use crate::semantics::{in_view, scripts};

/// What a store into a passing file writes, and no judged file may have.
const SMUGGLED: &str = "smuggled";

/// Git ignores `target`, so it passes; `src` is judged.
fn fill(scratch: &Scratch) {
    scratch.write(".gitignore", "target/\n");
    scratch.write("src/a.txt", lines(20));
    scratch.write("target/x", lines(20));
    scratch.git_init();
}

/// Runs the assertions twice: where the kernel reads and writes what passes, and where the daemon does.
fn either_way(check: impl Fn(&Scratch, &View<'_>)) {
    for word in ["passthrough", "nopassthrough"] {
        let scratch = mounted_scratch!();
        fill(&scratch);
        // Each write is judged alone: what is new would land whatever comes after it.
        let view = scratch.mounting().flag("--window=0").flag("-o").flag(word).start();
        assert_eq!(view.status()["passthrough"], word == "passthrough");
        check(&scratch, &view);
    }
}

#[test]
fn the_kernel_reads_while_the_daemon_stands_still() {
    let scratch = mounted_scratch!();
    fill(&scratch);
    let view = scratch.mounting().flag("-o").flag("passthrough").start();
    let file = fs::File::open(view.path("target/x")).expect("a passing file");
    let mut bytes = [0; 6];
    let daemon = Stopped::new(view.daemon_pid());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("read past the daemon");
    drop(daemon);
    assert_eq!(&bytes, b"line 1");
}

#[test]
fn a_store_through_a_mapping_is_below_at_once_while_the_daemon_stands_still() {
    let scratch = mounted_scratch!();
    fill(&scratch);
    let view = scratch.mounting().flag("-o").flag("passthrough").start();
    let lower = scratch.lower().join("target/x");
    let script = format!(
        r#"
import signal
daemon = {}; signal.alarm(30); f = open("target/x", "r+b", buffering=0); m = mmap.mmap(f.fileno(), 0)
os.kill(daemon, signal.SIGSTOP)
try:
    m[:8] = b"{SMUGGLED}"; seen = get({lower:?})[:8]
finally:
    os.kill(daemon, signal.SIGCONT)
assert seen == b"{SMUGGLED}", seen
"#,
        view.daemon_pid()
    );
    let _continued = Continued(view.daemon_pid());
    in_view(&scratch, &view, &script);
}

/// For a script that stops the daemon and may end before it lets it go on.
struct Continued(i32);

impl Drop for Continued {
    fn drop(&mut self) {
        kill_process(Pid::from_raw(self.0).expect("a pid"), Signal::CONT).expect("the daemon lives");
    }
}

#[test]
fn what_is_written_is_not_handed_to_the_daemon() {
    const BYTES: usize = 8 << 20;
    /// `/proc/PID/io` counts what a process itself wrote by system calls.
    fn written_by(pid: i32) -> usize {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("the kernel counts");
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("what was written");
        line.parse().expect("a number")
    }
    either_way(|_, view| {
        let before = written_by(view.daemon_pid());
        view.write("target/large", vec![b'x'; BYTES]);
        let handed = written_by(view.daemon_pid()) - before;
        let passes = view.status()["passthrough"] == true;
        assert_eq!(handed < BYTES / 2, passes, "the daemon wrote {handed} of {BYTES} bytes");
        assert_eq!(fs::metadata(view.lower().join("target/large")).expect("written").len(), BYTES as u64);
    });
}

#[test]
fn status_says_who_reads_and_writes_what_passes() {
    either_way(|_, view| {
        let told = view.cli(&["status"]).ok().stdout.contains("no passthrough");
        assert_eq!(view.status()["passthrough"], !told);
    });
}

scripts! {
    a_write_shows_in_size_and_time_at_once: r#"
f = os.open("a.txt", os.O_RDWR); os.utime("a.txt", ns=(1, 1)); size = os.stat("a.txt").st_size
os.pwrite(f, b"end", size); s = os.stat("a.txt")
assert s.st_size == os.fstat(f).st_size == size + 3, s; assert s.st_mtime_ns > 1
os.ftruncate(f, 5); assert os.stat("a.txt").st_size == 5 == os.lseek(f, 0, os.SEEK_END)
os.posix_fallocate(f, 0, 9000); assert os.stat("a.txt").st_size == 9000 == os.fstat(f).st_size
libc.fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(4096)); assert os.pread(f, 5, 0) == b"\0" * 5
"#;
    readers_and_writers_of_one_file_agree: r#"
r = os.open("a.txt", os.O_RDONLY); w = os.open("a.txt", os.O_WRONLY); b = os.open("a.txt", os.O_RDWR)
os.pwrite(w, b"LINE", 0); assert os.pread(r, 6, 0) == os.pread(b, 6, 0) == b"LINE 1"
m = mmap.mmap(b, 0); m[:4] = b"four"; assert os.pread(r, 4, 0) == b"four"
os.pwrite(w, b"more", 0); assert m[:4] == b"more"
os.close(w); os.close(b); m[:4] = b"mmap"; assert os.pread(r, 4, 0) == b"mmap"; m.close(); assert get("a.txt")[:4] == b"mmap"
raises("EBADF", os.pwrite, r, b"x", 0)
"#;
    appenders_lose_nothing: r#"
for n in range(4):
    if os.fork() == 0:
        f = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for i in range(200): assert os.write(f, b"%d %03d\n" % (n, i)) == 6
        os._exit(0)
for n in range(4): assert os.wait()[1] == 0
lines = get("log").splitlines(); assert len(lines) == 800, len(lines)
assert sorted(lines) == sorted(b"%d %03d" % (n, i) for n in range(4) for i in range(200))
"#;
    flags_of_open_hold: r#"
for flags in (os.O_SYNC, os.O_DSYNC, os.O_NOATIME, os.O_APPEND):
    f = os.open("f", os.O_RDWR | os.O_CREAT | flags, 0o600); os.write(f, b"x"); os.fsync(f); os.fdatasync(f); os.close(f)
assert get("f") == b"xx", get("f")
os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)); assert os.stat("f").st_size == 0
r = os.open("a.txt", os.O_RDONLY); f = os.open("a.txt", os.O_RDWR | os.O_TRUNC); assert os.read(r, 9) == b"" and os.fstat(r).st_size == 0
os.write(f, b"new"); assert os.read(r, 9) == b"new"
raises("EEXIST", os.open, "f", os.O_CREAT | os.O_EXCL)
f = os.open("g", os.O_RDWR | os.O_CREAT, 0o444); os.write(f, b"x"); os.close(f); assert get("g") == b"x"
"#;
    direct_io_works_where_it_does: r#"
f = os.open("d", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600); page = mmap.mmap(-1, 4096); page[:] = b"d" * 4096
assert os.pwrite(f, page, 0) == 4096; os.close(f); assert get("d") == b"d" * 4096
f = os.open("d", os.O_RDONLY | os.O_DIRECT); back = mmap.mmap(-1, 4096); assert os.preadv(f, [back], 0) == 4096 and back[:] == page[:]
"#;
    a_program_that_is_being_written_does_not_run: r#"
import shutil, subprocess
shutil.copy("/bin/true", "prog"); f = os.open("prog", os.O_RDWR); raises("ETXTBSY", subprocess.run, ["./prog"])
os.close(f); assert subprocess.run(["./prog"]).returncode == 0
shutil.copy("/bin/sleep", "runs"); p = subprocess.Popen(["./runs", "60"])
raises("ETXTBSY", os.open, "runs", os.O_WRONLY); assert get("runs") == get("/bin/sleep"); p.kill(); p.wait()
"#;
    a_file_that_is_written_and_run_again_and_again_runs: r#"
import shutil, subprocess
for n in range(20):
    shutil.copy("/bin/true", "t"); os.rename("t", "prog"); assert subprocess.run(["./prog"]).returncode == 0
"#;
    renames_and_links_keep_what_is_open: r#"
f = os.open("a.txt", os.O_RDWR); os.rename("a.txt", "b.txt"); os.pwrite(f, b"LINE", 0); assert get("b.txt")[:4] == b"LINE"
os.link("b.txt", "c.txt"); os.unlink("b.txt"); os.pwrite(f, b"more", 0); assert get("c.txt")[:4] == b"more"
assert os.fstat(f).st_nlink == 1 and os.fstat(f).st_ino == os.stat("c.txt").st_ino
put("d.txt", b"other"); renameat2("c.txt", "d.txt", 2); os.pwrite(f, b"last", 0); assert get("d.txt")[:4] == b"last" and get("c.txt") == b"other"
"#;
    an_unlinked_file_can_be_opened_by_its_descriptor: r#"
f = os.open("a.txt", os.O_RDWR); os.unlink("a.txt"); os.pwrite(f, b"LINE", 0)
g = os.open("/proc/self/fd/%d" % f, os.O_RDWR); assert os.pread(g, 4, 0) == b"LINE"; os.pwrite(g, b"more", 0); os.close(g)
assert os.pread(f, 4, 0) == b"more"; size = os.fstat(f).st_size; os.pwrite(f, b"x", size); assert os.fstat(f).st_size == size + 1
os.fchmod(f, 0o600); os.fchown(f, os.getuid(), os.getgid()); os.utime(f, ns=(5, 5)); assert os.fstat(f).st_mtime_ns == 5
"#;
}

/// A file that lends its owner's and group's rights, and what ends that. Each act is done by somebody else who may write to
/// it, and then by root.
const LENT: &str = r#"
import errno
def lend(): put("t", b"x" * 9000); os.chmod("t", 0o6777); assert mode() == 0o6777
def mode(): return os.stat("t").st_mode & 0o7777
def by_another(act):
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setegid(65534); os.seteuid(65534)
        try: act(); os._exit(0)
        finally: os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
def opened(act, flags=os.O_RDWR):
    def open_and_act(): f = os.open("t", flags); act(f); os.close(f)
    return open_and_act
acts = {
    "write": opened(lambda f: os.write(f, b"y")), "write more": opened(lambda f: [os.pwrite(f, b"y" * 4096, n) for n in range(3)]),
    "append": opened(lambda f: os.write(f, b"y"), os.O_WRONLY | os.O_APPEND), "empty": opened(lambda f: None, os.O_WRONLY | os.O_TRUNC),
    "cut": lambda: os.truncate("t", 5), "cut what is open": opened(lambda f: os.ftruncate(f, 5)), "grow": opened(lambda f: os.ftruncate(f, 10000)),
    "fallocate": opened(lambda f: os.posix_fallocate(f, 0, 20000)), "punch": opened(lambda f: libc.fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(4096))),
    "copy": opened(lambda f: os.copy_file_range(os.open("from", os.O_RDONLY), f, 100)),
    "splice": opened(lambda f: os.sendfile(f, os.open("from", os.O_RDONLY), 0, 100)),
}
put("from", b"f" * 9000)
by_lower = ("write", "write more", "append", "splice") if kernel_writes else ()
for name, act in acts.items():
    lend(); by_another(act); assert mode() == 0o777, (name, oct(mode()))
    lend(); act(); assert mode() == (0o777 if name in by_lower else 0o6777), ("root", name, oct(mode()))
    if name in by_lower: continue
    if not kernel_clears: put("t", b"x"); os.chmod("t", 0o2767); by_another(act); assert mode() == 0o767, ("of another group", name, oct(mode()))
    os.chown("t", 0, 65534); os.chmod("t", 0o2767); by_another(act); assert mode() == 0o2767, ("a mark", name, oct(mode())); os.chown("t", 0, 0)
lend(); f = os.open("t", os.O_RDWR); by_another(lambda: os.write(f, b"y")); assert mode() == 0o777; os.close(f)
put("t", b"x" * 9000); f = os.open("t", os.O_RDWR); os.write(f, b"y"); os.chmod("t", 0o6777); by_another(lambda: os.write(f, b"y"))
assert mode() == 0o777, oct(mode()); assert os.fstat(f).st_mode & 0o7777 == 0o777; os.close(f)
for owner in ((1, -1), (-1, 1), (1, 1), (os.getuid(), os.getgid()), (-1, -1)):
    lend(); os.chown("t", *owner); assert mode() == 0o777, (owner, oct(mode())); os.chown("t", 0, 0)
os.mkdir("d"); os.chmod("d", 0o6777); os.chown("d", 1, 1); assert os.stat("d").st_mode & 0o7777 == 0o6777; os.rmdir("d")
caps = bytes.fromhex("0100000200040000000000000000000000000000")
def able(): put("t", b"x" * 9000); os.chmod("t", 0o777); os.setxattr("t", "security.capability", caps)
for name, act in acts.items():
    able(); act(); raises("ENODATA", os.getxattr, "t", "security.capability")
able(); os.chown("t", 1, 1); raises("ENODATA", os.getxattr, "t", "security.capability"); os.chown("t", 0, 0)
os.unlink("t"); os.unlink("from")
"#;

#[test]
fn who_writes_to_a_file_is_lent_nothing_by_it() {
    for words in ["passthrough", "nopassthrough", "passthrough,suid,dev", "nopassthrough,suid,dev"] {
        let scratch = mounted_scratch!();
        if !rustix::process::geteuid().is_root() {
            // Who may write to all files and cannot become another user shows nothing here.
            return;
        }
        fill(&scratch);
        let native = scratch.root().join("native");
        fs::create_dir(&native).expect("a plain directory");
        let script = |kernel_writes: bool, kernel_clears: bool| {
            format!("kernel_writes = {}; kernel_clears = {}\n{LENT}", kernel_writes as u8, kernel_clears as u8)
        };
        let output = python(&scratch, &native, &script(false, false));
        assert_eq!(output.status, 0, "on a plain directory: {}", output.stderr);
        let view = scratch.mounting().flag("-o").flag(words).start();
        // What the kernel writes by itself is cleared by lower, whoever asks. Where set-id bits count, the kernel clears
        // them; it knows nothing of marks.
        let script = script(words == "passthrough", words.contains("suid"));
        let output = python(&scratch, &view.path("target"), &script);
        assert_eq!(output.status, 0, "{words}: {}", output.stderr);
    }
}

#[test]
fn a_directory_stays_where_nobody_judges_also_while_what_is_written_in_it_has_set_id_bits() {
    either_way(|scratch, view| {
        let script = r#"
os.mkdir("target/d"); put("target/d/f", b"x"); os.chmod("target/d/f", 0o4755); f = os.open("target/d/f", os.O_RDWR)
raises("ETXTBSY", subprocess.run, ["target/d/f"])
os.chmod("target/d/f", 0o755); raises("EXDEV", os.rename, "target/d", "d"); os.close(f)
"#;
        in_view(scratch, view, script);
    });
}

/// Neither the view nor the project shows at `path` what was smuggled.
#[track_caller]
fn assert_clean(scratch: &Scratch, view: &View<'_>, path: &str) {
    for (place, text) in [("in the view", view.read(path)), ("below", scratch.read(path))] {
        assert!(!text.contains(SMUGGLED), "{path} {place} has what nobody judged: {text}");
    }
}

/// A judged file still is: a small edit lands, and a large one is held.
#[track_caller]
fn assert_judged(scratch: &Scratch, view: &View<'_>, path: &str) {
    let text = view.read(path);
    let edited = text.replace("line 20\n", "line twenty\n");
    view.write(path, &edited);
    assert_eq!(scratch.read(path), edited, "a small edit of {path}");
    view.write(path, lines(300));
    assert_eq!(scratch.read(path), edited, "a large edit of {path}");
    assert_eq!(view.read(path), lines(300));
}

#[test]
fn a_writer_does_not_follow_its_file_to_a_judged_name() {
    either_way(|scratch, view| {
        let script = format!(
            r#"
f = open("target/x", "r+b", buffering=0); f.write(b"LINE")
os.rename("target/x", "src/new"); f.seek(0); f.write(b"{SMUGGLED}")
assert get("src/new")[:6] == b"LINE 1", get("src/new"); assert not os.path.exists("target/x")
f.seek(0); assert f.read(8) == b"{SMUGGLED}"; assert os.fstat(f.fileno()).st_nlink == 0
with open("src/new", "r+b") as g: assert g.read(6) == b"LINE 1"
assert os.fstat(f.fileno()).st_ino != os.stat("src/new").st_ino
"#
        );
        in_view(scratch, view, &script);
        assert_clean(scratch, view, "src/new");
        assert_judged(scratch, view, "src/new");
    });
}

#[test]
fn a_mapping_does_not_follow_its_file_to_a_judged_name() {
    either_way(|scratch, view| {
        let script = format!(
            r#"
f = open("target/x", "r+b"); m = mmap.mmap(f.fileno(), 0); f.close()
os.rename("target/x", "src/new"); m[:8] = b"{SMUGGLED}"; m.flush()
assert get("src/new")[:6] == b"line 1"; assert m[:8] == b"{SMUGGLED}"; m.close()
"#
        );
        in_view(scratch, view, &script);
        assert_clean(scratch, view, "src/new");
        assert_judged(scratch, view, "src/new");
    });
}

#[test]
fn a_reader_keeps_its_bytes_when_its_file_comes_to_a_judged_name() {
    either_way(|scratch, view| {
        let script = r#"
f = open("target/x", "rb", buffering=0); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
os.rename("target/x", "src/new"); put("src/new", get("src/new").replace(b"line 1\n", b"new\n"))
assert f.read(6) == m[:6] == b"line 1"; assert get("src/new")[:4] == b"new\n"
"#;
        in_view(scratch, view, script);
        view.assert_landed("src/new", &lines(20).replacen("line 1\n", "new\n", 1));
    });
}

#[test]
fn a_file_that_comes_over_a_judged_one_is_judged_and_leaves_its_name() {
    either_way(|scratch, view| {
        let old = scratch.read("src/a.txt");
        let script = format!(
            r#"
f = open("target/x", "r+b", buffering=0); f.write(b"changed\n" * 200)
os.rename("target/x", "src/a.txt"); f.seek(0); f.write(b"{SMUGGLED}")
assert not os.path.exists("target/x")
"#
        );
        in_view(scratch, view, &script);
        let large = "changed\n".repeat(200);
        view.assert_held("src/a.txt", &large, &old);
        assert!(!scratch.has("target/x"));
        let held = view.held();
        assert_eq!(held.len(), 1, "the source's deletion is nobody's to judge: {held:#?}");
    });
}

#[test]
fn an_exchange_with_a_judged_file_takes_no_writer_along() {
    either_way(|scratch, view| {
        let script = format!(
            r#"
f = open("target/x", "r+b", buffering=0); f.write(b"LINE")
raises("EXDEV", renameat2, "target/x", "src/a.txt", 2); f.seek(0); f.write(b"{SMUGGLED}")
assert get("src/a.txt")[:6] == b"line 1"
"#
        );
        in_view(scratch, view, &script);
        assert_clean(scratch, view, "src/a.txt");
        assert_judged(scratch, view, "src/a.txt");
    });
}

#[test]
fn a_directory_stays_where_nobody_judges_while_somebody_writes_in_it() {
    either_way(|scratch, view| {
        scratch.write("target/d/e/f", lines(20));
        let script = r#"
f = open("target/d/e/f", "r+b"); raises("EXDEV", os.rename, "target/d", "src/d")
m = mmap.mmap(f.fileno(), 0); f.close(); raises("EXDEV", os.rename, "target/d", "src/d"); m.close()
"#;
        in_view(scratch, view, script);
        // A reader keeps its bytes; the name is judged.
        let script = r#"
f = open("target/d/e/f", "rb", buffering=0); os.rename("target/d", "src/d")
put("src/d/e/f", b"new\n"); assert f.read(6) == b"line 1", f.read(6)
"#;
        in_view(scratch, view, script);
        assert_eq!((view.read("src/d/e/f").as_str(), scratch.read("src/d/e/f")), ("new\n", lines(20)));
    });
}

#[test]
fn what_was_judged_stays_so_for_who_has_it_open_where_nobody_judges() {
    either_way(|scratch, view| {
        let script = r#"
put("src/new", b"new\n"); r = open("src/new", "rb", buffering=0); w = open("src/new", "r+b", buffering=0)
os.rename("src/new", "target/new"); w.write(b"old\n"); assert r.read() == b"old\n" == get("target/new")
with open("target/new", "ab") as f: f.write(b"more\n" * 200)
r.seek(0); assert r.read() == b"old\n" + b"more\n" * 200
"#;
        in_view(scratch, view, script);
        view.assert_landed("target/new", &format!("old\n{}", "more\n".repeat(200)));
    });
}

#[test]
fn a_reload_leaves_writers_and_mappings_behind() {
    either_way(|scratch, view| {
        scratch.write("target/y", lines(20));
        let lower = scratch.lower();
        let script = format!(
            r#"
import subprocess
f = open("target/x", "r+b", buffering=0); g = open("target/y", "r+b"); m = mmap.mmap(g.fileno(), 0); g.close()
put({:?}, b"")
subprocess.run([{:?}, "reload"], check=True, stdout=subprocess.DEVNULL)
f.write(b"{SMUGGLED}"); m[:8] = b"{SMUGGLED}"; m.flush()
for path in ("target/x", "target/y"): assert get(path)[:6] == b"line 1", get(path)
f.seek(0); assert f.read(8) == m[:8] == b"{SMUGGLED}"
"#,
            lower.join(".gitignore"),
            scratch.fettlefs().get_program(),
        );
        in_view(scratch, view, &script);
        for path in ["target/x", "target/y"] {
            assert_clean(scratch, view, path);
            assert_judged(scratch, view, path);
        }
    });
}

#[test]
fn a_reload_leaves_behind_who_writes_by_a_name_that_goes_on_passing() {
    either_way(|scratch, view| {
        fs::create_dir(scratch.lower().join("target/kept")).expect("a directory");
        fs::hard_link(scratch.lower().join("target/x"), scratch.lower().join("target/kept/x")).expect("a link");
        let script = format!(
            r#"
import subprocess
f = open("target/kept/x", "r+b", buffering=0)
put({:?}, b"target/kept/\n")
subprocess.run([{:?}, "reload"], check=True, stdout=subprocess.DEVNULL)
f.write(b"{SMUGGLED}"); assert get("target/kept/x")[:8] == b"{SMUGGLED}"
"#,
            scratch.lower().join(".gitignore"),
            scratch.fettlefs().get_program(),
        );
        in_view(scratch, view, &script);
        assert_eq!(scratch.read("target/x"), lines(20));
        assert!(scratch.read("target/kept/x").starts_with(SMUGGLED));
    });
}

#[test]
fn a_file_with_a_judged_name_is_judged_under_the_other_too() {
    either_way(|scratch, view| {
        let old = scratch.read("src/a.txt");
        fs::hard_link(scratch.lower().join("src/a.txt"), scratch.lower().join("target/link")).expect("a link below");
        view.write("target/link", SMUGGLED.repeat(100));
        assert_eq!(scratch.read("src/a.txt"), old);
        assert_eq!(view.read("src/a.txt"), SMUGGLED.repeat(100));
        assert_eq!(view.only_held().path, "src/a.txt");
    });
}

#[test]
fn a_judged_name_that_waits_as_deleted_or_replaced_keeps_what_it_has_when_the_other_is_written() {
    either_way(|scratch, view| {
        let old = scratch.read("src/a.txt");
        for name in ["kept", "mapped"] {
            fs::hard_link(scratch.lower().join("src/a.txt"), scratch.lower().join("target").join(name))
                .expect("a link");
        }
        let script = format!(
            r#"
r = open("target/kept", "rb", buffering=0); os.unlink("src/a.txt")
f = open("target/mapped", "r+b"); m = mmap.mmap(f.fileno(), 0); f.close(); m[:8] = b"{SMUGGLED}"; m.flush(); m.close()
assert r.read(8) == get("target/mapped")[:8] == b"{SMUGGLED}"
put("src/a.txt", b"new\n" * 100); os.truncate("target/kept", 3); assert get("target/mapped") == b"smu"
"#
        );
        in_view(scratch, view, &script);
        assert_eq!((scratch.read("src/a.txt"), scratch.read("target/kept").as_str()), (old, "smu"));
        assert_eq!(view.only_held().path, "src/a.txt");
    });
}

#[test]
fn one_reads_by_a_passing_name_while_another_writes_by_a_judged_one() {
    either_way(|scratch, view| {
        fs::hard_link(scratch.lower().join("src/a.txt"), scratch.lower().join("target/link")).expect("a link below");
        let script = r#"
r = open("target/link", "rb", buffering=0); assert r.read(6) == b"line 1"
w = open("src/a.txt", "r+b", buffering=0); w.write(b"LINE"); w.close()
assert get("src/a.txt")[:6] == get("target/link")[:6] == b"LINE 1"
"#;
        in_view(scratch, view, script);
        view.assert_landed("src/a.txt", &lines(20).replacen("line", "LINE", 1));
    });
}

#[test]
fn links_among_passing_names_pass() {
    either_way(|scratch, view| {
        let script = r#"
os.link("target/x", "target/z"); f = open("target/z", "r+b", buffering=0); f.write(b"LINE")
assert get("target/x")[:4] == b"LINE"
"#;
        in_view(scratch, view, script);
        assert!(scratch.read("target/x").starts_with("LINE 1"));
        assert!(view.held().is_empty());
    });
}

#[test]
fn a_file_replaced_below_is_another_at_the_next_open() {
    either_way(|scratch, view| {
        let replace = |text: &str| {
            let (new, old) = (scratch.lower().join("target/new"), scratch.lower().join("target/x"));
            fs::write(&new, text).and_then(|()| fs::rename(&new, &old)).expect("replaced below");
        };
        let read_at = |file: &fs::File| {
            let mut bytes = [0; 5];
            std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).map(|()| bytes).expect("it is open")
        };
        let open = |path: &Path| fs::OpenOptions::new().read(true).write(true).open(path).expect("a passing file");
        let first = open(&view.path("target/x"));
        replace("other");
        let second = open(&view.path("target/x"));
        assert_eq!((&read_at(&first), &read_at(&second)), (b"line ", b"other"));
        std::os::unix::fs::FileExt::write_all_at(&first, SMUGGLED.as_bytes(), 0).expect("written to what is gone");
        assert_eq!(scratch.read("target/x"), "other");
        replace("third");
        assert_eq!(view.read("target/x"), "third");
        assert_eq!(read_at(&second), *b"other");
    });
}

/// While somebody has it open by the name that it came from.
#[test]
fn a_passing_file_that_comes_to_a_judged_name_below_is_judged_at_the_next_open() {
    let script = r#"
below = sys.argv[1] + "/"
fd = os.open("target/x", os.O_RDONLY)
was = os.pread(fd, 4, 0)
put(below + "src/a.txt", b"judged")
assert get("src/a.txt") == b"judged"
for a, b in ("target/x", "aside"), ("src/a.txt", "target/x"), ("aside", "src/a.txt"):
    os.rename(below + a, below + b)
read = get("src/a.txt")
assert read[:4] == was, read
assert os.getxattr("src/a.txt", "user.fettle.state") == b"clean"
assert get("target/x") == b"judged"
with open("src/a.txt", "a") as file: file.write("more\n")
assert get(below + "src/a.txt") == read + b"more\n"
assert os.pread(fd, 4, 0) == was
"#;
    for word in ["passthrough", "nopassthrough"] {
        let scratch = mounted_scratch!();
        fill(&scratch);
        // Nobody tells the kernel: the open finds out.
        let view = scratch.mounting().flag("-o").flag(format!("nowatch,{word}")).start();
        let mut command = crate::harness::script::command(&scratch, view.root(), script);
        Output::from(command.arg(scratch.lower()).output().expect("python3")).ok();
    }
}

/// What takes its place is judged with the deletion, which may show under a judged name.
#[test]
fn where_the_deletion_of_a_passing_name_waits_something_else_is_made_there() {
    let scratch = mounted_scratch!();
    fill(&scratch);
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"src/**\"\naction = \"hold\"\n");
    fs::hard_link(scratch.project().join("src/a.txt"), scratch.project().join("target/l")).expect("a passing name");
    let view = scratch.mount_at("view");
    view.sh("seq 100 160 > target/l && rm src/a.txt target/l").ok();
    let held: Vec<(String, String)> = view.held().into_iter().map(|held| (held.path, held.kind)).collect();
    assert!(held.contains(&("target/l".to_owned(), "delete".to_owned())), "{held:?}");
    view.sh("echo new > target/l").ok();
    assert_eq!(view.read("target/l"), "new\n");
    view.sh("rm target/l && ln -s ../src target/l && test -L target/l && rm target/l").ok();
    view.sh("echo newer > target/t && mv target/t target/l").ok();
    assert_eq!(view.read("target/l"), "newer\n");
    assert_eq!(scratch.read("src/a.txt"), lines(20));
}
