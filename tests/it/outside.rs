//! What others do below while programs work in the view: it shows promptly, and an open never finds less than there is,
//! though the kernel believes for a minute what it was told where lower is watched.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::script;
use crate::harness::{Output, Scratch, Stopped, View, eventually, lines, mounted_scratch, with_changed_lines, within};

/// How late a change below may show where nobody opens anything (SPEC §2).
const PROMPTLY: Duration = Duration::from_secs(1);
/// The same where the machine has something to catch up with.
const AFTER_A_FLOOD: Duration = Duration::from_secs(8);

/// A project with files in two directories, one of them ignored by git, all of which the kernel has looked at.
fn warm(scratch: &Scratch) -> View<'_> {
    fill(scratch);
    let view = scratch.mount();
    look_at_all(&view);
    view
}

fn fill(scratch: &Scratch) {
    scratch.write(".gitignore", "target/\n");
    for dir in ["src", "src/deep", "target"] {
        for file in ["a.txt", "b.txt", "c.txt"] {
            scratch.write(format!("{dir}/{file}"), lines(20));
        }
    }
    scratch.git_init();
}

/// Names, attributes and, where there is nothing, that.
fn look_at_all(view: &View<'_>) {
    let seen = view.sh("ls -lRa . >/dev/null; cat src/*.txt src/deep/*.txt target/*.txt >/dev/null");
    seen.ok();
    for dir in ["src", "src/deep", "target"] {
        assert!(!view.has(format!("{dir}/new.txt")));
        assert!(!view.has(format!("{dir}/newdir")));
    }
}

#[track_caller]
fn shows(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(PROMPTLY, condition), "not within {PROMPTLY:?}: {what}");
}

fn size(view: &View<'_>, path: &str) -> Option<u64> {
    view.path(path).symlink_metadata().ok().map(|meta| meta.len())
}

#[test]
fn what_is_watched_the_kernel_answers_for_longer_than_a_second() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    // The directories are watched by now: what is told from here on holds.
    look_at_all(&view);
    view.sh("sleep 1.1; stat src src/deep src/deep/a.txt; stat src src/deep src/deep/a.txt").ok();
    let stopped = Stopped::new(view.daemon_pid());
    let script = "sleep 1.5; stat src/deep/a.txt";
    let mut stat = scratch.command("timeout");
    stat.args(["--signal=KILL", "5", "sh", "-c", script]).current_dir(view.root());
    let status = stat.stdout(Stdio::null()).status();
    drop(stopped);
    assert!(status.expect("timeout runs").success(), "the kernel asked the daemon");
}

#[test]
fn an_edit_in_place_shows_and_an_open_reads_all_of_it() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    for path in ["src/a.txt", "src/deep/a.txt", "target/a.txt"] {
        for count in [40, 3, 100, 20] {
            scratch.write(path, lines(count));
            assert_eq!(view.read(path), lines(count), "{path} at the next open");
            scratch.write(path, lines(count + 1));
            shows(path, || size(&view, path) == Some(lines(count + 1).len() as u64));
        }
    }
}

#[test]
fn who_has_a_file_open_reads_on_in_what_is_written_below() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    for path in ["src/a.txt", "target/a.txt"] {
        let open = File::open(view.path(path)).expect("open in the view");
        let read = || {
            let mut bytes = vec![0; 4096];
            let count = open.read_at(&mut bytes, 0).expect("read");
            bytes.truncate(count);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        assert_eq!(read(), lines(20));
        for count in [30, 10, 25] {
            scratch.write(path, lines(count));
            shows(path, || read() == lines(count));
        }
    }
}

#[test]
fn who_has_a_file_open_or_mapped_sees_an_edit_below_that_leaves_size_and_mtime() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let script = "
below = sys.argv[1] + '/src/a.txt'
fd = os.open('src/a.txt', os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
was = os.stat(below)
for word in [os.pread(fd, 4, 0).upper(), b'Line']:
    written = os.open(below, os.O_WRONLY)
    os.pwrite(written, word, 0)
    os.utime(written, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.close(written)
    until = time.monotonic() + 3
    while (os.pread(fd, 4, 0), mapped[:4]) != (word, word):
        assert time.monotonic() < until, (word, os.pread(fd, 4, 0), mapped[:4])
        time.sleep(0.01)
    assert os.fstat(fd).st_mtime_ns == was.st_mtime_ns
";
    let mut command = script::command(&scratch, view.root(), script);
    Output::from(command.arg(scratch.lower()).output().expect("python3")).ok();
}

/// A mapping asks nobody: unless the kernel is told, it goes on showing what it has.
#[test]
fn who_has_a_held_change_mapped_sees_what_comes_after_it_is_discarded() {
    let script = "
below = sys.argv[1]
mapped = mmap.mmap(os.open('a', os.O_RDONLY), 0, prot=mmap.PROT_READ)
def shows(word):
    until = time.monotonic() + 3
    while mapped[:3] != word:
        assert time.monotonic() < until, (word, mapped[:3], get('a')[:3])
        time.sleep(0.01)
shows(b'new')
assert ask(op='discard', all=True)['ok']
shows(b'old')
fd = os.open(below + '/a', os.O_WRONLY)
for word in [b'one', b'two']:
    os.pwrite(fd, word, 0)
    shows(word)
";
    for is_of_last_mount in [false, true] {
        let scratch = mounted_scratch!();
        scratch.write("a", "old\n".repeat(200));
        let mut view = scratch.mount();
        view.sh("yes new | head -n 200 > a").ok();
        if is_of_last_mount {
            view.unmount().ok();
            view = scratch.mount();
        }
        let mut command = crate::harness::script::command(&scratch, view.root(), script);
        Output::from(command.arg(scratch.lower()).output().expect("python3")).ok();
    }
}

#[test]
fn a_file_renamed_over_below_is_the_new_one_and_the_open_one_stays_what_it_was() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    for path in ["src/a.txt", "target/a.txt"] {
        let open = File::open(view.path(path)).expect("open in the view");
        let (new, old) = (scratch.lower().join("new~"), scratch.lower().join(path));
        fs::write(&new, "another").and_then(|()| fs::rename(&new, &old)).expect("renamed over below");
        assert_eq!(view.read(path), "another");
        shows(path, || size(&view, path) == Some(7));
        assert_eq!(open.metadata().expect("fstat").len(), lines(20).len() as u64);
        let mut bytes = vec![0; 4096];
        let count = open.read_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes[..count], lines(20).as_bytes());
    }
}

/// The kernel does not say by which name it opens, and keeps the name for as long as nobody tells it otherwise.
#[test]
fn one_of_several_names_that_is_renamed_over_below_is_the_new_file_at_the_next_open() {
    let scratch = mounted_scratch!();
    for round in 0..20 {
        let [first, second, third] = ["a", "b", "c"].map(|name| format!("{name}{round}"));
        scratch.write(&first, "old\n");
        let project = scratch.project();
        for name in [&second, &third] {
            fs::hard_link(project.join(&first), project.join(name)).expect("a further name");
        }
    }
    let view = scratch.mount();
    for round in 0..20 {
        let [first, second, third] = ["a", "b", "c"].map(|name| format!("{name}{round}"));
        assert_eq!([&first, &second, &third].map(|name| view.read(name)), ["old\n"; 3]);
        scratch.write("new", format!("new {round}\n"));
        fs::rename(scratch.lower().join("new"), scratch.lower().join(&second)).expect("renamed over it");
        assert_eq!(view.read(&second), format!("new {round}\n"));
        assert_eq!([&first, &third].map(|name| view.read(name)), ["old\n"; 2]);
    }
}

/// Whatever the kernel still knows of both names, and whether anybody tells it or not.
#[test]
fn what_is_renamed_below_is_what_is_opened_and_changed_by_its_new_name_at_once() {
    for word in ["watches=8192", "nowatch"] {
        let scratch = mounted_scratch!();
        for name in ["over", "log"].iter().flat_map(|name| (0..20).map(move |round| format!("{name}{round}"))) {
            scratch.write(&name, "old\n");
            scratch.write(format!("{name}.new"), "new\n");
        }
        let view = scratch.mounting().flag("-o").flag(word).start();
        view.sh("cat *").ok();
        let below = |name: &str| scratch.lower().join(name);
        for round in 0..20 {
            let over = format!("over{round}");
            fs::rename(below(&format!("{over}.new")), below(&over)).expect("renamed over");
            assert_eq!(view.read(&over), "new\n", "{word}, {round}");
            let (log, aside) = (format!("log{round}"), format!("log{round}.1"));
            fs::rename(below(&log), below(&aside)).expect("renamed aside");
            scratch.write(&log, "another\n");
            let private = fs::Permissions::from_mode(0o600);
            fs::set_permissions(view.path(&aside), private).expect("chmod in the view");
            let modes = [&aside, &log].map(|name| below(name).metadata().expect("stat").mode() & 0o777);
            assert_eq!(modes, [0o600, 0o644], "{word}, {round}");
            assert_eq!(view.read(&aside), "old\n", "{word}, {round}");
            shows("the file that was made anew", || view.read(&log) == "another\n");
        }
    }
}

#[test]
fn a_file_that_is_removed_below_stays_what_it_was_for_whoever_has_it_open() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    for path in ["src/a.txt", "target/a.txt"] {
        let open = File::open(view.path(path)).expect("open in the view");
        fs::remove_file(scratch.lower().join(path)).expect("removed below");
        let looks = || open.metadata().expect("fstat");
        assert_eq!(looks().len(), lines(20).len() as u64, "{path}");
        shows("a link that goes", || looks().nlink() == 0);
        let mut bytes = vec![0; 4096];
        let count = open.read_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes[..count], lines(20).as_bytes());
        shows("a name that goes", || !view.has(path));
        let looks = looks();
        assert_eq!((looks.len(), looks.nlink()), (lines(20).len() as u64, 0), "{path}");
    }
}

#[test]
fn names_that_come_and_go_below_come_and_go_in_the_view() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    for dir in ["src", "src/deep", "target"] {
        let lower = scratch.lower().join(dir);
        for turn in 0..3 {
            let text = lines(10 + turn);
            fs::write(lower.join("new.txt"), &text).expect("made below");
            shows("a new file", || view.try_read(format!("{dir}/new.txt")).is_ok_and(|read| read == text.as_bytes()));
            fs::create_dir(lower.join("newdir")).expect("made below");
            fs::write(lower.join("newdir/in"), "in").expect("made below");
            shows("a new directory", || view.try_read(format!("{dir}/newdir/in")).is_ok_and(|read| read == b"in"));
            symlink("new.txt", lower.join("link")).expect("made below");
            shows("a symlink", || view.try_read(format!("{dir}/link")).is_ok_and(|read| read == text.as_bytes()));
            fs::remove_file(lower.join("link")).expect("removed below");
            symlink("a.txt", lower.join("link")).expect("made below");
            let target = || fs::read_link(view.path(format!("{dir}/link")));
            shows("another symlink", || target().is_ok_and(|to| to == Path::new("a.txt")));
            for name in ["new.txt", "link"] {
                fs::remove_file(lower.join(name)).expect("removed below");
            }
            assert!(File::open(view.path(format!("{dir}/new.txt"))).is_err(), "it opens what is gone");
            fs::remove_dir_all(lower.join("newdir")).expect("removed below");
            shows("names that go", || {
                ["new.txt", "link", "newdir"].iter().all(|name| !view.has(format!("{dir}/{name}")))
            });
        }
    }
}

#[test]
fn a_directory_renamed_below_goes_on_under_its_new_name() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let inode = |path: &str| view.path(path).symlink_metadata().ok().map(|meta| meta.ino());
    let number = inode("src/deep");
    let rename = |from: &str, to: &str| {
        fs::rename(scratch.lower().join(from), scratch.lower().join(to)).expect("renamed below");
        // By the old name first: a look at the new one lets the kernel itself see that it is the same directory.
        shows(from, || !view.has(from) && view.try_read(format!("{from}/a.txt")).is_err());
        shows(to, || view.try_read(format!("{to}/a.txt")).is_ok_and(|read| read == lines(20).as_bytes()));
        assert_eq!(inode(to), number);
    };
    rename("src/deep", "src/deeper");
    rename("src/deeper", "target/deep");
    rename("target/deep", "src/deep");
    // And it is followed where it is now.
    scratch.write("src/deep/a.txt", lines(7));
    shows("what is written in it", || size(&view, "src/deep/a.txt") == Some(lines(7).len() as u64));
    scratch.write("src/deep/new.txt", "new");
    shows("what is made in it", || view.has("src/deep/new.txt"));
}

#[test]
fn attributes_changed_below_show() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let mode = |path: &str| view.path(path).symlink_metadata().map(|meta| meta.mode() & 0o777).ok();
    for (path, set) in [("src/a.txt", 0o600), ("src/deep", 0o700), ("src/deep", 0o755), ("target/a.txt", 0o640)] {
        fs::set_permissions(scratch.lower().join(path), fs::Permissions::from_mode(set)).expect("chmod below");
        shows(path, || mode(path) == Some(set));
    }
    let times = |path: &Path| path.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.nlink())).ok();
    scratch.write("src/new.txt", "x");
    fs::create_dir(scratch.lower().join("src/newdir")).expect("made below");
    shows("a directory's times", || times(&view.path("src")) == times(&scratch.lower().join("src")));
}

#[test]
fn a_file_with_another_name_elsewhere_shows_what_is_written_there() {
    let scratch = mounted_scratch!();
    scratch.write("src/a.txt", lines(20));
    let elsewhere = scratch.root().join("elsewhere");
    fs::hard_link(scratch.lower().join("src/a.txt"), &elsewhere).expect("a second name outside the project");
    let view = scratch.mount();
    assert_eq!(size(&view, "src/a.txt"), Some(lines(20).len() as u64));
    fs::write(&elsewhere, lines(5)).expect("written by its other name");
    let late = within(PROMPTLY * 2, || size(&view, "src/a.txt") == Some(lines(5).len() as u64));
    assert!(late, "nobody is told, and so it must not hold for long");
    fs::write(&elsewhere, lines(9)).expect("written by its other name");
    assert_eq!(view.read("src/a.txt"), lines(9), "at the next open at the latest");
}

#[test]
fn git_switching_branches_outside_shows_as_one_tree() {
    let scratch = mounted_scratch!();
    fill(&scratch);
    let git = |script: &str| {
        let output = scratch.command("sh").current_dir(scratch.lower()).args(["-c", script]).output();
        Output::from(output.expect("a shell")).ok();
    };
    git("git switch -q -c other; for i in 1 2 3; do mkdir d$i; for j in 1 2 3; do seq $i$j >d$i/$j; done; done
         git rm -q -r src/deep; seq 50 >src/a.txt; git add .; git commit -q -m other; git switch -q main");
    let view = scratch.mount_at("view");
    let listed = |root: &Path| {
        let script = "find . -path ./.git -prune -o -path ./.fettle -prune -o -printf '%p %y %m %s %T@\\n' | sort
                      find . -path ./.git -prune -o -path ./.fettle -prune -o -type f -print0 | sort -z | xargs -0 cat";
        scratch.command("sh").current_dir(root).args(["-c", script]).output().expect("find").stdout
    };
    for branch in ["other", "main", "other", "main"] {
        assert_eq!(listed(view.root()), listed(&scratch.lower()));
        git(&format!("git switch -q {branch}"));
        shows(branch, || listed(view.root()) == listed(&scratch.lower()));
    }
}

#[test]
fn what_is_held_stays_in_the_view_whatever_happens_below() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    view.write("src/a.txt", lines(300));
    let id = view.only_held().id;
    scratch.write("src/a.txt", "edited outside\n");
    fs::remove_file(scratch.lower().join("src/b.txt")).expect("removed below");
    shows("what goes beside it", || !view.has("src/b.txt"));
    assert_eq!(view.read("src/a.txt"), lines(300));
    view.cli(&["discard", &id]).ok();
    assert_eq!(view.read("src/a.txt"), "edited outside\n");
}

/// With its watches, and with nothing that tells of what happens below.
#[test]
fn a_directory_that_is_removed_below_stays_for_what_is_held_or_written_in_it() {
    for flags in [&[][..], &["-o", "nowatch"]] {
        let scratch = mounted_scratch!();
        fill(&scratch);
        let mounting = || flags.iter().fold(scratch.mounting().at("view"), |mounting, flag| mounting.flag(*flag));
        let view = mounting().start();
        look_at_all(&view);
        view.write("src/deep/a.txt", lines(300));
        let standing = "
at = os.getcwd()
put('written', b'before')
made = open('made', 'wb', buffering=0)
made.write(b'first ')
print('ready', flush=True)
sys.stdin.readline()
made.write(b'last')
made.close()
assert os.getcwd() == at
assert sorted(os.listdir()) == ['a.txt', 'made'], os.listdir()
os.mkdir('sub')
put('sub/new', b'x')
put('.a.txt.new', get('a.txt') + b'more')
os.rename('.a.txt.new', 'a.txt')
";
        let mut command = script::command(&scratch, &view.path("src/deep"), standing);
        let mut program =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3");
        let mut ready = [0; 6];
        program.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("the program gets ready");
        fs::remove_dir_all(scratch.lower().join("src")).expect("removed below");
        assert_eq!(view.read("src/deep/a.txt"), lines(300), "{flags:?}");
        assert_eq!(view.sh("find src | sort").stdout, "src\nsrc/deep\nsrc/deep/a.txt\nsrc/deep/made\n", "{flags:?}");
        shows("what else was in it", || !view.has("src/a.txt") && !view.has("src/deep/written"));
        program.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it waits");
        Output::from(program.wait_with_output().expect("python3")).ok();
        let all = "src\nsrc/deep\nsrc/deep/a.txt\nsrc/deep/made\nsrc/deep/sub\nsrc/deep/sub/new\n";
        let seen = |view: &View<'_>| {
            assert_eq!(view.sh("find src | sort").stdout, all, "{flags:?}");
            assert_eq!(view.read("src/deep/a.txt"), lines(300) + "more");
            assert_eq!(view.read("src/deep/made"), "first last");
            assert!(!scratch.has("src"));
        };
        seen(&view);
        view.kill_all();
        let view = mounting().start();
        seen(&view);
        view.unmount();
        let view = mounting().start();
        seen(&view);
        let kinds = |view: &View<'_>| {
            let held = view.held().into_iter().map(|held| format!("{} {} {}", held.path, held.kind, held.reason));
            held.collect::<Vec<_>>()
        };
        let told = [
            "src structure external",
            "src/deep structure external",
            "src/deep/a.txt modify external",
            "src/deep/made create parent",
            "src/deep/sub structure parent",
            "src/deep/sub/new create parent",
        ];
        assert_eq!(kinds(&view), told);
        assert_eq!(view.cli(&["confirm", "src/deep/a.txt", "--yes", "--json"]).exits(5).error_code(), "conflict");
        // And back: what is held is held in the project's directories again.
        scratch.git(&["checkout", "-q", "--", "src"]).ok();
        shows("the branch with the directory", || view.has("src/b.txt") && view.has("src/deep/b.txt"));
        assert_eq!(view.read("src/deep/a.txt"), lines(300) + "more");
        assert_eq!(kinds(&view), told[2..]);
        view.cli(&["confirm", "--all", "--yes"]).ok();
        assert_eq!(scratch.read("src/deep/made"), "first last");
    }
}

#[test]
fn a_directory_that_is_removed_below_goes_with_the_last_change_in_it_that_is_discarded() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    view.write("src/deep/a.txt", lines(300));
    let id = view.only_held().id;
    fs::remove_dir_all(scratch.lower().join("src")).expect("removed below");
    shows("what else was in it", || !view.has("src/a.txt"));
    assert_eq!(view.read("src/deep/a.txt"), lines(300));
    view.cli(&["discard", &id]).ok();
    shows("that nothing is left", || !view.has("src"));
    assert!(view.held().is_empty());
}

#[test]
fn what_is_held_keeps_its_name_to_itself_when_its_file_is_renamed_below() {
    for to in ["src/new.txt", "src/deep/new.txt"] {
        let scratch = mounted_scratch!();
        let view = warm(&scratch);
        view.write("src/a.txt", lines(300));
        assert_eq!(view.only_held().path, "src/a.txt");
        let lower = |path: &str| scratch.lower().join(path);
        fs::rename(lower("src/a.txt"), lower(to)).expect("renamed below");
        shows(to, || view.try_read(to).is_ok_and(|read| read == lines(20).as_bytes()));
        assert_eq!(size(&view, to), Some(lines(20).len() as u64));
        view.sh(&format!("echo more >> {to}")).ok();
        assert_eq!(fs::read_to_string(lower(to)).expect("read below"), lines(20) + "more\n");
        assert_eq!(view.read("src/a.txt"), lines(300));
    }
}

/// Also what the kernel has cached of it: names, attributes, content and the listing.
#[test]
fn what_was_held_in_a_directory_that_is_renamed_below_shows_lower_by_the_new_name() {
    for is_read_first in [true, false] {
        let scratch = mounted_scratch!();
        for file in ["changed", "gone"] {
            scratch.write(format!("d/s/{file}"), lines(100));
        }
        let view = scratch.mount();
        let look = |dir: &str| view.sh(&format!("ls -l {dir}/s; cat {dir}/s/changed; stat {dir}/s/gone")).stdout;
        look("d");
        view.write("d/s/changed", lines(300));
        fs::remove_file(view.path("d/s/gone")).expect("removed");
        look("d");
        assert_eq!((names(&view.path("d/s")), size(&view, "d/s/gone")), (vec!["changed".to_owned()], None));
        for (from, to) in [("d", "e"), ("e", "d"), ("d", "g")] {
            fs::rename(scratch.lower().join(from), scratch.lower().join(to)).expect("renamed below");
            let (content, listed) = match to {
                "d" => (lines(300), vec!["changed"]),
                _ => (lines(100), vec!["changed", "gone"]),
            };
            let changed = format!("{to}/s/changed");
            if is_read_first {
                look(to);
            }
            shows(&changed, || size(&view, &changed) == Some(content.len() as u64));
            assert_eq!(view.read(&changed), content);
            shows("the listing", || names(&view.path(format!("{to}/s"))) == listed);
            shows("what is held as deleted", || view.has(format!("{to}/s/gone")) == (to != "d"));
        }
    }
}

#[test]
fn a_file_opens_whatever_is_renamed_above_it_below_and_back() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let (dir, away) = (scratch.lower().join("src/deep"), scratch.lower().join("src/away"));
    let look = || view.sh("find . -type f -exec cat {} + >/dev/null").status;
    for round in 0..60 {
        let writer = File::options().write(true).open(view.path("src/deep/a.txt")).expect("open in the view");
        if round % 2 == 1 {
            writer.write_all_at(b"L", 0).expect("write");
        }
        fs::rename(&dir, &away).expect("renamed below");
        match round % 3 {
            0 => {}
            1 => symlink("away", &dir).expect("made below"),
            _ => fs::write(&dir, "a file").expect("made below"),
        }
        look();
        if round % 3 != 0 {
            fs::remove_file(&dir).expect("removed below");
        }
        fs::rename(&away, &dir).expect("renamed below");
        look();
        drop(writer);
        for file in ["a.txt", "b.txt"] {
            shows("what opens", || view.try_read(format!("src/deep/{file}")).is_ok());
        }
    }
}

#[test]
fn what_a_program_makes_it_can_go_on_with_at_once() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    // Its own acts make events below, too: none of them may take a name from under its feet.
    let script = "import os
top = os.getcwd()
for dir in 'src', 'target':
    for turn in range(150):
        at = f'{top}/{dir}/made{turn}'
        os.mkdir(at)
        os.chdir(at)
        assert os.getcwd() == at
        with open('f', 'w') as f: f.write('x')
        os.rename('f', 'g')
        before = os.stat('g')
        os.rename(at, at + 'x')
        assert os.getcwd() == at + 'x'
        assert os.stat('g').st_ino == before.st_ino
        os.unlink('g')
        os.chdir(top)
        os.rmdir(at + 'x')
";
    let ran = scratch.command("python3").current_dir(view.root()).args(["-c", script]).output();
    Output::from(ran.expect("python3")).ok();
}

#[test]
fn without_watches_changes_below_show_within_a_second_too() {
    for word in ["nowatch", "watches=1"] {
        let scratch = mounted_scratch!();
        fill(&scratch);
        let view = scratch.mounting().flag("-o").flag(word).start();
        look_at_all(&view);
        let late = |what: &str, condition: &mut dyn FnMut() -> bool| {
            assert!(within(PROMPTLY * 2, condition), "{what} with {word}");
        };
        scratch.write("src/deep/a.txt", lines(40));
        assert_eq!(view.read("src/deep/a.txt"), lines(40), "at the next open with {word}");
        scratch.write("src/deep/b.txt", lines(41));
        late("an edit", &mut || size(&view, "src/deep/b.txt") == Some(lines(41).len() as u64));
        scratch.write("src/deep/new.txt", "new");
        assert_eq!(view.read("src/deep/new.txt"), "new", "at the next open with {word}");
        fs::remove_file(scratch.lower().join("src/deep/c.txt")).expect("removed below");
        late("a deletion", &mut || !view.has("src/deep/c.txt"));
    }
}

#[test]
fn more_changes_than_the_kernel_queues_lose_none() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let queued = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("the kernel's limit");
    let queued: usize = queued.trim().parse().expect("a number");
    let stopped = Stopped::new(view.daemon_pid());
    // In turns: the kernel makes one of two that are the same. Twice what fits, should the first still be read.
    let logs = ["src/b.txt", "src/c.txt"]
        .map(|path| fs::OpenOptions::new().append(true).open(scratch.lower().join(path)).expect("a log below"));
    for turn in 0..2 * queued {
        std::io::Write::write_all(&mut &logs[turn % 2], b"x").expect("append below");
    }
    // These no event tells of.
    scratch.write("src/a.txt", lines(33));
    scratch.write("src/new.txt", "new");
    fs::remove_file(scratch.lower().join("src/deep/a.txt")).expect("removed below");
    fs::rename(scratch.lower().join("src/deep"), scratch.lower().join("src/deeper")).expect("renamed below");
    drop(stopped);
    let below = |path: &str| fs::metadata(scratch.lower().join(path)).ok().map(|meta| meta.len());
    for path in ["src/a.txt", "src/new.txt", "src/deep", "src/deeper/b.txt", "src/deeper/a.txt", "src/b.txt"] {
        let told = within(AFTER_A_FLOOD, || size(&view, path) == below(path));
        assert!(told, "{path}: {:?} where below is {:?}", size(&view, path), below(path));
    }
}

/// A program that watches something of the view.
struct Watcher {
    child: std::process::Child,
    seen: std::path::PathBuf,
}

impl Watcher {
    /// Watches from when this returns.
    fn on(scratch: &Scratch, view: &View<'_>, path: &str) -> Self {
        let seen = scratch.root().join(format!("seen-{}", path.replace('/', "-")));
        let mut wait = scratch.command("inotifywait");
        wait.args(["--monitor", "--quiet", "--format", "%e %f", "--outfile"]).arg(&seen).current_dir(view.root());
        wait.args(["-e", "modify,attrib,create,delete,move,close_write", path]);
        let watcher = Self { child: wait.spawn().expect("inotifywait, of Debian's inotify-tools"), seen };
        let descriptors = format!("/proc/{}/fdinfo", watcher.child.id());
        eventually("inotifywait watches", || {
            let notes = fs::read_dir(&descriptors).expect("a process of ours").flatten();
            notes.filter_map(|note| fs::read_to_string(note.path()).ok()).any(|note| note.contains("inotify wd:"))
        });
        watcher
    }

    /// The events so far, in order.
    fn seen(&self) -> Vec<String> {
        let seen = fs::read_to_string(&self.seen).expect("what inotifywait writes");
        seen.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[track_caller]
    fn sees(&self, event: &str, what: &str) {
        eventually(&format!("{event:?}, of {what}"), || self.seen().iter().any(|seen| seen == event));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("inotifywait ends");
    }
}

#[test]
fn programs_that_watch_the_view_learn_of_what_changes_below() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let lower = scratch.lower();
    let (of_file, of_dir) = (Watcher::on(&scratch, &view, "src/a.txt"), Watcher::on(&scratch, &view, "src"));
    scratch.write("src/a.txt", lines(21));
    of_file.sees("MODIFY", "an edit of the file");
    of_dir.sees("MODIFY a.txt", "an edit in the directory");
    fs::write(lower.join("new~"), "another").expect("written below");
    fs::rename(lower.join("new~"), lower.join("src/b.txt")).expect("renamed over below");
    of_dir.sees("MODIFY b.txt", "a file renamed over");
    scratch.write("src/new.txt", "new");
    of_dir.sees("MODIFY new.txt", "a new file");
    // Nothing else tells of a directory that a name is gone.
    drop(of_dir);
    let of_dir = Watcher::on(&scratch, &view, "src/deep");
    fs::remove_file(lower.join("src/deep/c.txt")).expect("removed below");
    eventually("an event of a deletion", || !of_dir.seen().is_empty());
}

#[test]
fn programs_that_watch_the_view_learn_of_confirm_discard_and_rollback() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    view.write("src/b.txt", lines(21));
    view.write("src/a.txt", lines(300));
    view.write("src/c.txt", lines(300));
    let held = view.held();
    let id_of = |path: &str| held.iter().find(|held| held.path == path).expect("held").id.clone();
    let watcher = Watcher::on(&scratch, &view, "src");
    view.cli(&["confirm", &id_of("src/a.txt")]).ok();
    watcher.sees("MODIFY a.txt", "a confirm");
    view.cli(&["discard", &id_of("src/c.txt")]).ok();
    watcher.sees("MODIFY c.txt", "a discard");
    let backups = view.cli(&["backups", "src/b.txt", "--json"]).ok().json();
    view.cli(&["rollback", backups["backups"][0]["name"].as_str().expect("a backup")]).ok();
    watcher.sees("MODIFY b.txt", "a rollback");
    assert_eq!(watcher.seen().iter().filter(|seen| !seen.starts_with("MODIFY ")).count(), 0, "{:?}", watcher.seen());
}

/// With descriptors that write nothing, as of a shell's `exec 3<>a.txt`.
#[test]
fn what_somebody_edits_below_stays_while_programs_have_the_file_open_for_writing() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    scratch.write("src/a.txt", lines(100));
    let open = || File::options().read(true).write(true).open(view.path("src/a.txt")).expect("opened in the view");
    let edited = |content: &str| content.replace("line 99\n", "by a person\n").replace("line 98\n", "");
    let rewritten = with_changed_lines(&lines(100), 60);
    let idle = open();
    view.write("src/a.txt", &rewritten);
    let opened_while_held = open();
    scratch.write("src/a.txt", edited(&lines(100)));
    let merged = view.cli(&["confirm", "src/a.txt", "--yes", "--json"]).ok().json();
    assert_eq!(merged["outcomes"][0]["action"], "merged", "{merged}");
    view.assert_landed("src/a.txt", &edited(&rewritten));
    open().write_all_at(b"CHANGED", 0).expect("saved");
    let saved = edited(&rewritten).replacen("changed", "CHANGED", 1);
    view.assert_landed("src/a.txt", &saved);
    scratch.write("src/a.txt", saved.replace("line 80\n", ""));
    view.assert_landed("src/a.txt", &saved.replace("line 80\n", ""));
    for unseeing in [idle, opened_while_held] {
        unseeing.write_all_at(b"Changed", 0).expect("written");
        drop(unseeing);
        let shown = saved.replace("line 80\n", "").replacen("CHANGED", "Changed", 1);
        let held = view.assert_held("src/a.txt", &shown, &saved.replace("line 80\n", ""));
        assert_eq!(held.reason, "stale");
        view.cli(&["discard", "src/a.txt", "--yes"]).ok();
    }
}

#[test]
fn what_tells_watchers_changes_nothing() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let watcher = Watcher::on(&scratch, &view, "src");
    scratch.write("src/a.txt", lines(21));
    watcher.sees("MODIFY a.txt", "an edit");
    let times =
        |path: &Path| path.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.ctime_nsec())).expect("stat");
    assert_eq!(times(&view.path("src/a.txt")), times(&scratch.lower().join("src/a.txt")));
    let log = view.cli(&["log", "--json"]).ok();
    assert!(!log.stdout.contains("a.txt"), "{}", log.stdout);
    assert!(view.held().is_empty() && view.status()["writers"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_program_s_own_writing_makes_no_events_but_its_own() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let watcher = Watcher::on(&scratch, &view, "src");
    view.write("src/a.txt", lines(21));
    view.write_by_rename("src/b.txt", lines(21));
    view.assert_landed("src/a.txt", &lines(21));
    // What comes after it has passed all that the landings made.
    scratch.write("src/c.txt", lines(21));
    watcher.sees("MODIFY c.txt", "an edit below");
    let seen = watcher.seen();
    let after_close = |name: &str| {
        let of_it: Vec<_> = seen.iter().filter(|event| event.ends_with(&format!(" {name}"))).collect();
        of_it.iter().skip_while(|line| !line.contains("CLOSE_WRITE") && !line.contains("MOVED_TO")).skip(1).count()
    };
    assert_eq!((after_close("a.txt"), after_close("b.txt")), (0, 0), "{seen:?}");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name != ".fettle").collect();
    names.sort();
    names
}

/// How often the kernel has asked the view for such a thing.
fn asked(view: &View<'_>, request: &str) -> u64 {
    let said = view.cli(&["status", "--trace-ops", "--json"]).ok().stdout;
    let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    status["requests"][request].as_u64().unwrap_or(0)
}

/// It may name thousands of nodes in one request.
#[test]
fn all_that_the_kernel_lets_go_of_is_forgotten() {
    const FILES: u64 = 1000;
    let scratch = mounted_scratch!();
    (0..FILES).for_each(|number| scratch.write(format!("d/{number}"), ""));
    let view = scratch.mount_at("view");
    assert!(names(&view.path("d")).iter().all(|name| view.path("d").join(name).is_file()));
    let away = scratch.root().join("away");
    fs::rename(scratch.lower().join("d"), away).expect("moved out of the project");
    // By the socket: a request of the view would call a thread that rests.
    let forgotten = || scratch.cli(&["status", "--trace-ops", "--json"]).ok().json()["requests"]["forget"].as_u64();
    eventually("each is forgotten", || forgotten().is_some_and(|forgotten| forgotten >= FILES));
}

#[test]
fn a_listing_is_kept_by_the_kernel_and_every_change_of_names_below_shows_at_the_next() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let (ours, below) = (view.path("src/deep"), scratch.lower().join("src/deep"));
    names(&ours);
    let listings = |view: &View<'_>| asked(view, "readdir") + asked(view, "readdirplus");
    let before = (listings(&view), asked(&view, "opendir"));
    for _ in 0..5 {
        assert_eq!(names(&ours), ["a.txt", "b.txt", "c.txt"]);
    }
    assert_eq!(listings(&view), before.0, "the kernel asked for what it has");
    assert_eq!(asked(&view, "opendir"), before.1 + 5, "and each open was counted");

    let shows_same = |what: &str| assert_eq!(names(&ours), names(&below), "{what}");
    for round in 0..20 {
        let (one, other) = (below.join(format!("one{round}")), below.join(format!("other{round}")));
        fs::write(&one, "new\n").expect("made below");
        shows_same("made");
        fs::rename(&one, &other).expect("renamed below");
        shows_same("renamed");
        fs::remove_file(&other).expect("removed below");
        shows_same("removed");
        fs::create_dir(&one).expect("made below");
        shows_same("a directory made");
        fs::remove_dir(&one).expect("removed below");
        shows_same("a directory removed");
    }
}

#[test]
fn a_listing_that_the_kernel_keeps_shows_what_programs_do_and_what_is_discarded() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let dir = view.path("src/deep");
    let listed = |want: &[&str]| {
        assert_eq!(names(&dir), want);
        assert_eq!(names(&dir), want, "and again");
    };
    listed(&["a.txt", "b.txt", "c.txt"]);
    view.write("src/deep/d.txt", "new\n");
    listed(&["a.txt", "b.txt", "c.txt", "d.txt"]);
    fs::rename(dir.join("d.txt"), dir.join("e.txt")).expect("renamed");
    listed(&["a.txt", "b.txt", "c.txt", "e.txt"]);
    fs::remove_file(dir.join("e.txt")).expect("removed");
    fs::create_dir(dir.join("sub")).expect("made");
    listed(&["a.txt", "b.txt", "c.txt", "sub"]);
    fs::remove_dir(dir.join("sub")).expect("removed");
    // A deletion of so many lines is held: lower does not change by it, nor by giving it up.
    view.write("src/deep/long.txt", lines(500));
    let unmounted = view.unmount();
    unmounted.ok();
    let view = scratch.mount();
    let dir = view.path("src/deep");
    assert_eq!(names(&dir), ["a.txt", "b.txt", "c.txt", "long.txt"]);
    fs::remove_file(dir.join("long.txt")).expect("removed");
    assert_eq!(names(&dir), ["a.txt", "b.txt", "c.txt"]);
    let held = view.only_held();
    view.cli(&["discard", &held.id]).ok();
    assert_eq!(names(&dir), ["a.txt", "b.txt", "c.txt", "long.txt"]);
}

/// The kernel knows no such name by then, and nothing below has changed.
#[test]
fn a_directory_held_open_lists_what_an_undo_brings_back() {
    let scratch = mounted_scratch!();
    scratch.write("d/kept", "kept");
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"d/*\"\naction = \"hold\"\n");
    let view = scratch.mount();
    let script = "
fd = os.open('d', os.O_RDONLY)
def lists(*names):
    until = time.monotonic() + 3
    while sorted(os.listdir(fd)) != list(names):
        assert time.monotonic() < until, (names, os.listdir(fd))
        time.sleep(0.01)
lists('kept')
put('d/new', b'new')
lists('kept', 'new')
discarded = ask(op='discard', all=True)
lists('kept')
assert ask(op='undo', operation=discarded['outcomes'][0]['operation'])['ok']
lists('kept', 'new')
";
    script::python(&scratch, view.root(), script).ok();
}

#[test]
fn a_directory_that_a_discard_brings_back_is_listed_with_what_is_in_it() {
    let scratch = mounted_scratch!();
    scratch.write("d/f", lines(300));
    let view = scratch.mount();
    let dir = view.path("d");
    assert_eq!(names(&dir), ["f"]);
    fs::remove_file(dir.join("f")).expect("removed");
    assert!(names(&dir).is_empty());
    fs::remove_dir(&dir).expect("removed");
    view.cli(&["discard", "--all", "--yes"]).ok();
    assert_eq!(names(&dir), ["f"]);
}

/// `rm -r` removes what it has read before it reads on, and what it has not read must not be passed over, whatever others
/// list meanwhile.
#[test]
fn who_reads_a_directory_sees_each_name_once_while_names_go_and_others_list_it() {
    let scratch = mounted_scratch!();
    scratch.write(".gitignore", "target/\n");
    for number in 0..3000 {
        scratch.write(format!("target/a-name-that-is-not-short-{number:05}"), "");
    }
    scratch.git_init();
    let view = scratch.mount();
    let dir = view.path("target");
    assert_eq!(names(&dir).len(), 3000);
    let mut left = Vec::new();
    for (count, entry) in fs::read_dir(&dir).expect("list").enumerate() {
        let name = entry.expect("an entry").file_name();
        fs::remove_file(dir.join(&name)).expect("each name is there, and once");
        if count % 500 == 250 {
            left.push(names(&dir).len());
        }
    }
    assert_eq!(left.len(), 6);
    assert_eq!(names(&dir), Vec::<String>::new());
    assert_eq!(names(&scratch.lower().join("target")), Vec::<String>::new());
}

/// The kernel is not told of what a landing has only moved; of what others do afterwards it is.
#[test]
fn after_a_landing_attributes_changed_below_show() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let (ours, below) = (view.path("src/a.txt"), scratch.lower().join("src/a.txt"));
    let mode = |path: &Path| path.metadata().expect("stat").permissions().mode() & 0o777;
    for round in 0..6_u32 {
        view.write("src/a.txt", format!("{}round {round}\n", lines(20)));
        let want = if round % 2 == 0 { 0o600 } else { 0o644 };
        fs::set_permissions(&below, fs::Permissions::from_mode(want)).expect("chmod below");
        shows("the mode", || mode(&ours) == want);

        view.write("src/b.txt", format!("{}round {round}\n", lines(20)));
        fs::write(scratch.lower().join(format!("src/new{round}")), "").expect("made below");
        let modified = |dir: &Path| dir.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).expect("stat");
        shows("the directory's time", || modified(&view.path("src")) == modified(&scratch.lower().join("src")));
        assert_eq!(ours.metadata().expect("stat").len(), below.metadata().expect("stat").len());
    }
}

/// The project's directory moves when a new file lands in it, which is later than the view had the name.
#[test]
fn a_new_file_moves_the_time_of_its_directory_again_when_it_lands() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let modified = |dir: &Path| dir.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).expect("stat");
    let (dir, below) = (view.path("src"), scratch.lower().join("src"));
    for round in 0..4 {
        let mut made = fs::File::create(dir.join(format!("made{round}"))).expect("made in the view");
        made.write_all(b"one line\n").expect("written");
        // As whoever opens another file there meanwhile has the kernel ask.
        assert!(modified(&dir) > modified(&below), "the view has the name");
        let before = modified(&below);
        drop(made);
        assert!(modified(&below) > before, "it lands");
        shows("the directory's time", || modified(&dir) == modified(&below));
    }
}

/// Stores through a mapping change a file without the kernel's attributes knowing.
#[test]
fn after_a_mapping_has_landed_its_time_shows() {
    let scratch = mounted_scratch!();
    let view = warm(&scratch);
    let script = "
import mmap, os
for round in range(4):
    before = os.stat('src/c.txt').st_mtime_ns
    fd = os.open('src/c.txt', os.O_RDWR)
    with mmap.mmap(fd, 0) as mapped:
        mapped[0:1] = b'%d' % round
        mapped.flush()
    os.close(fd)
    assert os.stat('src/c.txt').st_mtime_ns > before, round
    assert open('src/c.txt').read()[0] == str(round)
";
    crate::harness::script::python(&scratch, view.root(), script).ok();
    shows("the time", || {
        let time =
            |path: &Path| path.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.len())).expect("stat");
        time(&view.path("src/c.txt")) == time(&scratch.lower().join("src/c.txt"))
    });
}
