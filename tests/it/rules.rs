//! Rules `deny` and `freeze` hold against every way to create, change, remove, link and rename (SPEC §6, issue 6).

use std::collections::BTreeMap;
use std::path::Path;

use crate::harness::script::python;
use crate::harness::{Disk, Scratch, mounted_scratch};

/// What every way works on: `ICE` stands for the directory that a rule is for, beside it lies what nobody keeps.
const PROJECT: [(&str, &str); 7] = [
    ("up/ice/file", "frozen\n"),
    ("up/ice/sub/deep", "frozen\n"),
    ("up/ice/two", "frozen\n"),
    ("up/beside", "free\n"),
    ("free", "free\n"),
    ("dir/other", "free\n"),
    ("victim", "free\n"),
];

/// Ways that both rules refuse, each a call that must fail with EPERM.
const DENIED: [&str; 24] = [
    "open, 'up/ice/file', 'w'",
    "open, 'up/ice/file', 'r+'",
    "open, 'up/ice/file', 'a'",
    "open, 'up/ice/new', 'x'",
    "os.open, 'up/ice/file', os.O_RDONLY | os.O_TRUNC",
    "os.truncate, 'up/ice/file', 0",
    "os.unlink, 'up/ice/file'",
    "os.unlink, 'up/ice/sub/deep'",
    "os.rename, 'up/ice/file', 'elsewhere'",
    "os.rename, 'up/ice/file', 'up/ice/renamed'",
    "os.rename, 'free', 'up/ice/file'",
    "os.rename, 'free', 'up/ice/new'",
    "renameat2, 'free', 'up/ice/file', 2",
    "renameat2, 'up/ice/file', 'free', 2",
    "os.rename, 'dir', 'up/ice/dir'",
    "os.rename, 'up/ice/sub', 'sub'",
    "os.link, 'free', 'up/ice/new'",
    "os.symlink, '/etc/hostname', 'up/ice/new'",
    "os.symlink, 'file', 'up/ice/new'",
    "os.mkdir, 'up/ice/new'",
    "os.rmdir, 'up/ice/empty'",
    "os.mkfifo, 'up/ice/new'",
    "os.mknod, 'up/ice/new', 0o600 | stat.S_IFREG",
    "temporary",
];

/// And those that only `freeze` does: attributes, a second name elsewhere, and what is above.
const FROZEN: [&str; 12] = [
    "os.chmod, 'up/ice/file', 0o600",
    "os.chown, 'up/ice/file', 1, 1",
    "os.setxattr, 'up/ice/file', 'user.x', b'x'",
    "os.utime, 'up/ice/file'",
    "os.utime, 'up/ice/file', (1, 1)",
    "os.utime, 'up/ice/sub', (1, 1)",
    "os.link, 'up/ice/file', 'hard'",
    "os.rename, 'up', 'elsewhere'",
    "os.rename, 'up/ice', 'up/elsewhere'",
    "os.rename, 'dir', 'up'",
    "renameat2, 'dir', 'up', 2",
    "renameat2, 'dir', 'up/ice', 2",
];

/// A file without a name that is given one: what makes it says what may be.
const PRELUDE: &str = r"
def temporary():
    fd = os.open('up/ice', os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b'x')
    os.link('/proc/self/fd/%d' % fd, 'up/ice/new', follow_symlinks=True)
def refused(call, *args):
    try:
        call(*args)
    except OSError as err:
        # O_TMPFILE need not be there at all (SPEC §4.5); what has something in it is not removed or replaced anyway.
        allowed = {errno.EPERM, errno.EOPNOTSUPP} if call is temporary else {errno.EPERM}
        if call is os.rename and args[1:] == ('up',): allowed |= {errno.ENOTEMPTY, errno.EEXIST}
        return None if err.errno in allowed else '%s: %s' % (args, err)
    return '%s %s went through' % (getattr(call, '__name__', call), args)
";

fn frozen(scratch: &Scratch, action: &str) {
    for (path, content) in PROJECT {
        scratch.write(path, content);
    }
    std::fs::create_dir(scratch.project().join("up/ice/empty")).expect("a directory");
    scratch.write(".fettle.toml", format!("[[rule]]\nmatch = \"up/ice/**\"\naction = \"{action}\"\n"));
}

/// Names, contents and modes of all that is in a directory.
fn seen(dir: &Path) -> BTreeMap<String, String> {
    let list =
        "find up free dir victim -printf '%p %y %m %n %l ' -type f -exec sha256sum {} \\; -o -printf '%p %y %m\\n'";
    let output = std::process::Command::new("sh").current_dir(dir).args(["-c", list]).output().expect("find");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| (line.to_owned(), String::new())).collect()
}

fn holds_against(action: &str, ways: &[&str]) {
    for (mounted, judged_first) in [("view", false), ("view", true)] {
        let scratch = mounted_scratch!();
        frozen(&scratch, action);
        let view = scratch.mount_at(mounted);
        if judged_first {
            // What waits for review beside it makes other ways through the code.
            view.write("free", "all new\n".repeat(100));
            view.write("dir/other", "all new\n".repeat(100));
        }
        let (before, below) = (seen(view.root()), seen(&scratch.lower()));
        for way in ways {
            let script = format!("{PRELUDE}\nproblem = refused({way})\nassert problem is None, problem\n");
            python(&scratch, view.root(), &script).ok();
            assert_eq!(seen(view.root()), before, "{action}: {way} left a trace in the view");
            assert_eq!(seen(&scratch.lower()), below, "{action}: {way} left a trace below");
        }
        view.fsck();
    }
}

#[test]
fn deny_holds_against_every_way_to_write() {
    holds_against("deny", &DENIED);
}

#[test]
fn freeze_holds_against_every_way_to_write() {
    holds_against("freeze", &DENIED);
}

#[test]
fn freeze_holds_against_attributes_links_and_what_is_done_to_directories_above() {
    holds_against("freeze", &FROZEN);
}

#[test]
fn neither_is_written_through_another_name_of_the_file() {
    for action in ["deny", "freeze"] {
        let scratch = mounted_scratch!();
        frozen(&scratch, action);
        std::fs::hard_link(scratch.project().join("up/ice/file"), scratch.project().join("hard"))
            .expect("another name");
        let view = scratch.mount_at("view");
        let script = "
raises('EPERM', open, 'hard', 'r+')
raises('EPERM', open, 'hard', 'w')
raises('EPERM', os.truncate, 'hard', 0)
assert get('up/ice/file') == b'frozen\\n'
";
        python(&scratch, view.root(), script).ok();
        assert_eq!(scratch.read("up/ice/file"), "frozen\n", "{action}");
        // A symlink in place of a directory on the way leads to the same path.
        let through = "
os.symlink('up', 'way')
raises('EPERM', open, 'way/ice/file', 'r+')
raises('EPERM', os.unlink, 'way/ice/file')
raises('EPERM', os.rename, 'victim', 'way/ice/new')
";
        python(&scratch, view.root(), through).ok();
        assert_eq!(scratch.read("up/ice/file"), "frozen\n", "{action}");
    }
}

#[test]
fn what_a_rule_names_itself_is_not_replaced_by_something_else() {
    let scratch = mounted_scratch!();
    frozen(&scratch, "freeze");
    scratch.write(
        ".fettle.toml",
        "[[rule]]\nmatch = \"/link\"\naction = \"freeze\"\n[[rule]]\nmatch = \"victim\"\naction = \"freeze\"\n",
    );
    std::os::unix::fs::symlink("free", scratch.project().join("link")).expect("a symlink");
    let view = scratch.mount_at("view");
    let script = "
raises('EPERM', os.unlink, 'link')
put('new.link'); os.unlink('new.link'); os.symlink('elsewhere', 'new.link')
raises('EPERM', os.rename, 'new.link', 'link')
raises('EPERM', os.rename, 'link', 'other')
raises('EPERM', os.rename, 'free', 'victim')
raises('EPERM', renameat2, 'victim', 'free', 2)
raises('EPERM', renameat2, 'link', 'new.link', 2)
# What it points to is another path.
put('link', b'changed\\n')
assert os.readlink('link') == 'free' and get('free') == b'changed\\n'
";
    python(&scratch, view.root(), script).ok();
    assert_eq!(scratch.read("victim"), "free\n");
    assert_eq!(std::fs::read_link(scratch.lower().join("link")).expect("still a link"), Path::new("free"));
}

/// The first step makes a change of it, which goes on under the further name; its own name waits.
#[test]
fn what_waits_for_review_does_not_go_by_having_a_further_name() {
    let firsts = ["open(P, 'a').write('x\\n')", "os.chmod(P, 0o600)", "f = open(P, 'r+'); f.write('x'); f.flush()"];
    let goes = ["os.unlink(P)", "os.rename(P, 'y')", "os.rename('free', P)", "renameat2(P, 'free', 2)"];
    for path in [".fettle.toml", "CLAUDE.md", "gated/file", ".git/hooks/pre-commit"] {
        let scratch = mounted_scratch!();
        scratch.write(path, "# what it says\n");
        if path != ".fettle.toml" {
            scratch.write(".fettle.toml", "[[rule]]\nmatch = \"gated/**\"\naction = \"hold\"\n");
        }
        let before = scratch.read(path);
        for (first, going) in firsts.iter().flat_map(|first| goes.map(|going| (first, going))) {
            scratch.write("free", "free\n");
            let view = scratch.mount_at("view");
            let script = format!("P = '{path}'\n{first}\nos.link(P, 'z')\n{going}");
            python(&scratch, view.root(), &format!("{PRELUDE}\n{script}")).ok();
            assert_eq!(scratch.read(path), before, "{script}");
            assert!(view.held().iter().any(|held| held.path == path), "{script}: {:?}", view.held());
            view.cli(&["discard", "--all", "--yes"]).ok();
            assert_eq!(view.read(path), before, "{script}");
            view.fsck();
            drop(view);
            for left in ["y", "z"].into_iter().filter(|left| scratch.has(left)) {
                std::fs::remove_file(scratch.project().join(left)).expect("removed");
            }
        }
    }
}

/// What is written through one name shows under all: each of them has its say.
#[test]
fn what_waits_for_review_waits_under_every_name_of_the_file() {
    for (path, reason) in [("gated/file", "rule"), (".github/workflows/ci.yml", "sensitive")] {
        let scratch = mounted_scratch!();
        scratch.write(path, crate::harness::lines(100));
        scratch.write(".fettle.toml", "[[rule]]\nmatch = \"gated/**\"\naction = \"hold\"\n");
        std::fs::hard_link(scratch.project().join(path), scratch.project().join("hard")).expect("another name");
        let view = scratch.mount_at("view");
        view.sh("printf 'LINE' | dd of=hard conv=notrunc status=none").ok();
        assert_eq!(scratch.read(path), crate::harness::lines(100), "{path}");
        assert_eq!(view.only_held().reason, reason);
    }
}

#[test]
fn rules_hold_where_a_listing_does_not_tell_directories_from_files() {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(|point| Disk::ext4_without_types(point, 64));
    frozen(&scratch, "freeze");
    let view = scratch.mount_at("view");
    let script = "
raises('EPERM', os.rename, 'up', 'elsewhere')
kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir('up/ice')}
assert kinds == {'file': False, 'two': False, 'sub': True, 'empty': True}, kinds
os.makedirs('x/workflows')
put('x/workflows/ci.yml', b'run: anything\\n')
os.rename('x', '.github')
";
    python(&scratch, view.root(), script).ok();
    assert_eq!(view.only_held().path, ".github/workflows/ci.yml");
}
