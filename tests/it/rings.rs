//! Requests that come by the kernel's rings (`-o rings`): that they mean the same, that who waits for long holds up nobody, and
//! that the view stands where there are none.
//!
//! Rings are the administrator's to switch on, for the whole machine; the tests do so while they mount, and where they may not
//! they ask that the view says why it is by the device. `scripts/variants --only rings` runs all other tests this way.

use std::fs;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::appends::{appending, assert_appended};
use crate::harness::script::python;
use crate::harness::{Mounting, View, eventually, mounted_scratch};
use crate::hooks;
use crate::semantics::in_view;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

static SWITCHING: Mutex<()> = Mutex::new(());

/// The switch as a test wants it, as long as this lives; then as it was.
struct Switched {
    before: Option<String>,
    _alone: MutexGuard<'static, ()>,
}

impl Switched {
    fn to(word: &str) -> Self {
        let alone = SWITCHING.lock();
        let before = fs::read_to_string(SWITCH).ok().filter(|_| fs::write(SWITCH, word).is_ok());
        Self { before, _alone: alone }
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            fs::write(SWITCH, before).expect("the switch as it was");
        }
    }
}

/// By rings where this machine lets anybody have them.
fn by_rings(mounting: Mounting<'_>) -> View<'_> {
    let switched = Switched::to("Y");
    let view = mounting.flag("-o").flag("rings").start();
    let status = view.status();
    let says_why = status["notices"].to_string().contains("requests come by the device, not by rings");
    assert_eq!((status["rings"].as_bool(), says_why), (Some(switched.before.is_some()), switched.before.is_none()));
    view
}

#[test]
fn where_rings_are_switched_off_the_view_stands_and_says_so() {
    let scratch = mounted_scratch!();
    scratch.write("a", "old\n");
    let view = {
        let _switched = Switched::to("N");
        scratch.mounting().flag("-o").flag("rings").start()
    };
    assert_eq!(view.status()["rings"], false);
    let told = view.cli(&["status"]).ok();
    assert!(told.stdout.contains("requests come by the device, not by rings: "), "{}", told.stdout);
    view.write("a", "new\n");
    view.assert_landed("a", "new\n");
}

/// Each kind of request, and what came of it, told the same way in a plain directory.
const ALL: &str = r#"
import hashlib, stat, time
big = bytes(range(256)) * 20000
def told(path):
    s = os.lstat(path)
    return (path, oct(s.st_mode), s.st_nlink, s.st_size, s.st_mtime_ns if s.st_mtime_ns < 10**18 else 'now')
out = []
with open('big', 'wb', buffering=0) as f: out.append(f.write(big))
out.append(hashlib.sha256(open('big', 'rb').read()).hexdigest())
fd = os.open('big', os.O_RDWR); out.append(os.pread(fd, 10, 5_000_000)); os.ftruncate(fd, 4_000_000)
os.posix_fallocate(fd, 0, 5_000_000); out.append(os.lseek(fd, 0, os.SEEK_HOLE) > 3_999_999); out.append(os.fstat(fd).st_size)
os.lseek(fd, 0, os.SEEK_SET)
to = os.open('copy', os.O_RDWR | os.O_CREAT, 0o640); out.append(os.copy_file_range(fd, to, 3_000_000)); os.fsync(to)
os.close(to); os.close(fd)
os.mkdir('dir', 0o750); os.mkfifo('dir/fifo', 0o600); os.symlink('../big', 'dir/link'); out.append(os.readlink('dir/link'))
os.link('copy', 'dir/hard'); os.rename('dir/hard', 'dir/harder'); os.utime('copy', ns=(5, -1_500_000_000)); os.chmod('copy', 0o604)
os.setxattr('copy', 'user.a', b'value'); out.append((os.getxattr('copy', 'user.a'), 'user.a' in os.listxattr('copy')))
os.removexattr('copy', 'user.a'); out.append('user.a' in os.listxattr('copy'))
for i in range(3000): os.close(os.open(f'dir/{"n" * (i % 200)}{i}', os.O_WRONLY | os.O_CREAT))
out.append(hashlib.sha256('\0'.join(sorted(os.listdir('dir'))).encode()).hexdigest())
out.append(sorted(told('dir/' + name) for name in ['fifo', 'link', 'harder'])); out.append(told('copy'))
out.append(sorted(e.name for e in os.scandir('dir') if not e.is_file(follow_symlinks=False)))
d = os.open('dir', os.O_RDONLY); os.fsync(d); os.close(d)
for path, call in [('gone', os.stat), ('gone', os.unlink), ('dir', os.rmdir), ('copy', os.readlink), ('a' * 256, os.stat)]:
    try: call(path)
    except OSError as err: out.append((path[:9], err.errno))
for name in os.listdir('dir'): os.unlink('dir/' + name)
os.rmdir('dir'); out.append(os.statvfs('.').f_namemax); out.append(sorted(os.listdir('.')))
print(out)
"#;

#[test]
fn each_kind_of_request_means_the_same_by_rings() {
    let (scratch, plain) = (mounted_scratch!(), mounted_scratch!());
    let view = by_rings(scratch.mounting());
    let told = python(&scratch, view.root(), ALL).ok().stdout;
    // The desk's own directory is in the view alone.
    assert_eq!(told, python(&plain, &plain.project(), ALL).ok().stdout);
    view.fsck();
}

#[test]
fn who_appends_by_rings_writes_at_the_end_that_the_file_has() {
    let scratch = mounted_scratch!();
    scratch.write("AGENTS.md", "one\n");
    let view = by_rings(scratch.mounting());
    view.write("AGENTS.md", "one\ntwo\n");
    let file = appending(&view, "AGENTS.md");
    view.cli(&["discard", &view.only_held().id]).ok();
    assert_appended(&view, file, "AGENTS.md", "one\n", "by rings");
}

/// Six saves on one processor wait for a program, which itself asks the view on that processor.
#[test]
fn who_waits_for_long_by_rings_holds_up_nobody() {
    let scratch = mounted_scratch!();
    let asked = scratch.project().join("other");
    let (processors, answer) = (scratch.root().join("processors"), r#"{"decision":"land"}"#);
    let script = format!(
        "#!/bin/sh\ngrep Cpus_allowed_list /proc/self/status >>{processors:?}\n\
         sleep 2; cat {asked:?} >/dev/null && echo '{answer}'\n"
    );
    let hook = hooks::program(&scratch, "slow", &script);
    scratch.write("other", "other\n");
    let view = by_rings(hooks::mounting(&scratch, &[&hook]));
    let script = r#"
import threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def save(name):
    with open(name, 'w') as f: f.write('new\n')
saves = [threading.Thread(target=save, args=(f's{i}',)) for i in range(6)]
for t in saves: t.start()
time.sleep(0.5); longest = 0
for i in range(200):
    begun = time.monotonic(); assert open('other').read() == 'other\n'; os.listdir('.')
    longest = max(longest, time.monotonic() - begun)
for t in saves: t.join()
assert longest < 1, longest
"#;
    let begun = Instant::now();
    in_view(&scratch, &view, script);
    assert!(begun.elapsed() < Duration::from_secs(20));
    for name in (0..6).map(|number| format!("s{number}")) {
        view.assert_landed(&name, "new\n");
    }
    // Whoever the daemon starts is not bound to the processor of a ring.
    let daemon = fs::read_to_string(format!("/proc/{}/status", view.daemon_pid())).expect("the daemon's status");
    let may = daemon.lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("a list of processors");
    let found = fs::read_to_string(processors).expect("what the programs say");
    assert_eq!(found, format!("{may}\n").repeat(6));
}

#[test]
fn a_killed_daemon_of_rings_is_followed_by_another() {
    // Each time the kernel takes the rings down at another moment of what comes after it.
    for round in 0..8 {
        let scratch = mounted_scratch!();
        scratch.write("a", crate::harness::lines(100));
        let view = by_rings(scratch.mounting().flag("-o").flag("nowatch"));
        view.write("a", "rewritten\n");
        let killed = view.kill_daemon();
        eventually(&format!("another daemon answers, {round}"), || view.is_served_again(killed));
        view.assert_held("a", "rewritten\n", &crate::harness::lines(100));
        view.write("b", "new\n");
        view.assert_landed("b", "new\n");
        assert_eq!(view.unmount().status, 0);
    }
}
