//! Limits against a program that only wants to hinder: each really crossed, told by an error of its own, and with the rest
//! working beyond it (issue 6, docs/SECURITY.md).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use crate::harness::{Scratch, View, eventually, lines, mounted_scratch, with_changed_lines};

const EDQUOT: Option<i32> = Some(libc::EDQUOT);
const ENFILE: Option<i32> = Some(libc::ENFILE);

fn notices(view: &View<'_>) -> String {
    view.status()["notices"].to_string()
}

fn limited<'s>(scratch: &'s Scratch, name: &str, value: &str) -> View<'s> {
    scratch.mounting().at("view").env(name, value).start()
}

#[test]
fn past_the_limit_of_upper_a_write_fails_and_nothing_is_lost() {
    let scratch = mounted_scratch!();
    scratch.write("small", lines(100));
    scratch.write("held", lines(100));
    scratch.write("large", vec![b'x'; 3 << 20]);
    scratch.write(".git/large", "");
    let view = limited(&scratch, "FETTLE_LIMIT_UPPER", "2MiB");
    let new = with_changed_lines(&lines(100), 60);
    view.write("held", &new);
    let id = view.only_held().id;
    let mut file = File::create(view.path("new")).expect("there is room to begin");
    let piece = vec![b'\n'; 64 << 10];
    let refused = (0..100).find_map(|_| file.write_all(&piece).err()).expect("the limit is reached");
    assert_eq!(refused.raw_os_error(), EDQUOT, "{refused}");
    let there = file.metadata().expect("it is there").len();
    assert!((1 << 20..=2 << 20).contains(&there), "{there} bytes were taken");
    // What is there can be written again, and made smaller.
    file.write_all_at(b"again", 0).expect("no more room is needed");
    assert!(notices(&view).contains("limits.upper"), "{}", notices(&view));
    // More does not come in through another door.
    let opened = OpenOptions::new().write(true).open(view.path("large")).expect("opening copies nothing");
    assert_eq!(opened.write_at(b"y", 0).expect_err("its content has no room").raw_os_error(), EDQUOT);
    let fallocate = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 8 << 20);
    assert_eq!(fallocate.map_err(|err| err.raw_os_error()), Err(libc::EDQUOT));
    file.set_len(64 << 20).expect("a hole takes no room");
    assert_eq!(file.write_at(&piece, 32 << 20).expect_err("but what is put into it").raw_os_error(), EDQUOT);
    // The rest works: reading, reviewing, what nobody judges.
    assert_eq!(view.read("large").len(), 3 << 20);
    view.sh("head -c 4M /dev/zero > .git/large").ok();
    view.cli(&["diff", &id]).ok();
    view.cli(&["confirm", &id]).ok();
    view.assert_landed("held", &new);
    file.set_len(there).expect("smaller again");
    drop(file);
    assert_eq!(scratch.lower().join("new").metadata().expect("it landed").len(), there);
    // What has landed makes room.
    let mut other = File::create(view.path("other")).expect("there is room");
    other.write_all(&piece).expect("and for content");
    drop((opened, other));
    assert!(!notices(&view).contains("limits.upper"), "{}", notices(&view));
    view.fsck();
}

#[test]
fn a_file_without_a_name_takes_room_until_it_is_closed() {
    let scratch = mounted_scratch!();
    let view = limited(&scratch, "FETTLE_LIMIT_UPPER", "1MiB");
    let mut nameless = File::create(view.path("gone")).expect("a file");
    fs::remove_file(view.path("gone")).expect("and its name");
    let piece = vec![0_u8; 128 << 10];
    let refused = (0..100).find_map(|_| nameless.write_all(&piece).err()).expect("it counts");
    assert_eq!(refused.raw_os_error(), EDQUOT);
    let other = File::create(view.path("other")).expect("a file");
    assert_eq!(other.write_at(&[b'x'; 256 << 10], 0).expect_err("no room").raw_os_error(), EDQUOT);
    drop(nameless);
    eventually("its room is given back", || other.write_at(&[b'x'; 256 << 10], 0).is_ok());
}

#[test]
fn what_is_held_counts_still_after_a_remount() {
    let scratch = mounted_scratch!();
    scratch.write("a", "old\n".repeat(100));
    let view = scratch.mount_at("view");
    view.write("a", "new and longer\n".repeat(100_000));
    view.unmount();
    let view = limited(&scratch, "FETTLE_LIMIT_UPPER", "1MiB");
    let refused = fs::write(view.path("b"), vec![b'\n'; 256 << 10]).expect_err("a is held, and takes 1.5 MB");
    assert_eq!(refused.raw_os_error(), EDQUOT);
    view.cli(&["discard", "a"]).ok();
    fs::write(view.path("b"), vec![b'\n'; 256 << 10]).expect("there is room again");
}

#[test]
fn past_the_limit_of_held_paths_no_new_change_begins() {
    let scratch = mounted_scratch!();
    for number in 0..8 {
        scratch.write(format!("f{number}"), lines(100));
    }
    scratch.write(".git/x", "");
    let view = limited(&scratch, "FETTLE_LIMIT_HELD", "3");
    let new = with_changed_lines(&lines(100), 60);
    for number in 0..3 {
        view.write(format!("f{number}"), &new);
    }
    assert_eq!(view.held().len(), 3);
    assert!(notices(&view).contains("limits.held"), "{}", notices(&view));
    // Each way to begin a change.
    let written =
        OpenOptions::new().write(true).open(view.path("f3")).and_then(|file| file.write_at(b"x", 0).map(|_| ()));
    let refusals = [
        ("a write", written),
        ("O_TRUNC", fs::write(view.path("f3"), "x")),
        ("truncate", OpenOptions::new().write(true).open(view.path("f3")).and_then(|file| file.set_len(5))),
        ("a new file", File::create(view.path("new")).map(|_| ())),
        ("a deletion", fs::remove_file(view.path("f4"))),
        ("a rename over", fs::rename(view.path("f5"), view.path("f6"))),
        ("a link out", symlink("/etc/hostname", view.path("link"))),
    ];
    for (what, refused) in refusals {
        assert_eq!(refused.expect_err(what).raw_os_error(), EDQUOT, "{what}");
    }
    for number in 3..8 {
        view.assert_landed(&format!("f{number}"), &lines(100));
    }
    assert!(!view.has("new") && !view.has("link"));
    // What is held may be written again, removed, confirmed and discarded; other work goes on.
    view.write("f0", with_changed_lines(&lines(100), 70));
    view.sh("mkdir dir && mv f7 dir/f7 && echo x > .git/x").ok();
    let ids: Vec<String> = view.held().into_iter().map(|held| held.id).collect();
    view.cli(&["confirm", &ids[0]]).ok();
    view.cli(&["discard", &ids[1]]).ok();
    view.write("f3", &new);
    view.write("new", "new\n");
    assert_eq!(view.held().len(), 2);
    view.assert_landed("new", "new\n");
    view.fsck();
}

#[test]
fn past_the_limit_of_open_files_reviews_go_on() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("b", lines(100));
    let view = limited(&scratch, "FETTLE_LIMIT_OPEN", "40");
    view.write("b", "all new\n");
    let mut open = Vec::new();
    let refused = (0..100).find_map(|_| match File::open(view.path("a")) {
        Ok(file) => {
            open.push(file);
            None
        }
        Err(err) => Some(err),
    });
    assert_eq!(refused.expect("the limit is reached").raw_os_error(), ENFILE);
    assert!((30..=40).contains(&open.len()), "{} were opened", open.len());
    assert_eq!(File::create(view.path("new")).expect_err("nor made").raw_os_error(), ENFILE);
    let mut dirs = Vec::new();
    let refused = (0..100).find_map(|_| fs::read_dir(view.root()).map(|dir| dirs.push(dir)).err());
    assert_eq!(refused.expect("directories count by themselves").raw_os_error(), ENFILE);
    drop(dirs);
    // From outside, where no file of the view need be opened.
    let outside = |arguments: &[&str]| {
        let mut command = scratch.fettlefs();
        command.args(["-C"]).arg(scratch.project()).args(arguments);
        crate::harness::Output::from(command.output().expect("it runs"))
    };
    let status = outside(&["status", "--json"]).ok().json();
    assert!(status["notices"].to_string().contains("limits.open"), "{status:#}");
    outside(&["confirm", "b"]).ok();
    assert_eq!(scratch.read("b"), "all new\n");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &open[0], &mut text).expect("what is open works");
    assert_eq!(text, lines(100));
    open.truncate(1);
    eventually("there is room again", || File::create(view.path("new")).is_ok());
}

#[test]
fn past_the_quota_of_backups_the_oldest_go_and_saves_go_on() {
    let scratch = mounted_scratch!();
    scratch.write("a", "x".repeat(100_000) + "\n");
    let view = limited(&scratch, "FETTLE_BACKUP_QUOTA", "256KiB");
    for number in 0..6 {
        view.write("a", "x".repeat(100_000) + &format!("\n{number}\n"));
    }
    view.unmount();
    let view = scratch.mount_at("view");
    let backups = view.cli(&["backups", "--json"]).ok().json();
    let sizes = backups["backups"].as_array().expect("backups").iter().filter_map(|backup| backup["size"].as_u64());
    let sizes: Vec<u64> = sizes.collect();
    assert!(!sizes.is_empty() && sizes.iter().sum::<u64>() <= 256 << 10, "{sizes:?}");
    view.assert_landed("a", &("x".repeat(100_000) + "\n5\n"));
}

#[test]
fn a_difference_too_large_to_be_found_counts_as_a_whole_and_is_held() {
    let scratch = mounted_scratch!();
    // Every line moves: more edits than the search follows.
    let numbered = |step: usize| (0..40_000).map(|at| format!("{}\n", at * step % 40_009)).collect::<String>();
    scratch.write("a", numbered(1));
    let view = scratch.mount_at("view");
    view.write("a", numbered(7919));
    let held = view.status()["held"][0].clone();
    assert_eq!((&held["reason"], &held["insertions"]), (&"size".into(), &40_000.into()), "{held:#}");
}

#[test]
fn a_limit_that_cannot_be_is_refused_by_name() {
    let scratch = mounted_scratch!();
    for (name, value) in [("FETTLE_LIMIT_UPPER", "much"), ("FETTLE_LIMIT_HELD", "-1"), ("FETTLE_LIMIT_OPEN", "2000000")]
    {
        let output = scratch.mounting().at("view").env(name, value).run();
        assert_eq!(output.status, 2, "{}{}", output.stdout, output.stderr);
        assert!(output.stderr.contains(name), "{}", output.stderr);
    }
    // A project may tighten them, and does not widen them before it is trusted.
    scratch.write(".fettle.toml", "[limits]\nheld = 2\nupper = \"1TiB\"\n");
    let view = scratch.mount_at("view");
    assert!(view.mount_output.stdout.contains("limits.upper") || view.mount_output.stderr.contains("limits.upper"));
    view.write("a", "1\n");
    let mut open = Vec::new();
    let refused = (0..3).find_map(|number| match File::create(view.path(format!("open{number}"))) {
        Ok(file) => {
            open.push(file);
            None
        }
        Err(err) => Some(err),
    });
    let refused = refused.expect("two are being written");
    assert_eq!((refused.kind(), refused.raw_os_error()), (ErrorKind::QuotaExceeded, EDQUOT));
}

/// Whoever may look may open texts and leave answers unread, but not so many that no memory is left, nor keep the owner from
/// looking.
#[test]
fn what_is_open_in_the_desk_is_bounded() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Others cannot enter a user's mount at all.
        return;
    }
    let lines_of = |letter: &str| format!("{}\n", letter.repeat(1 << 10)).repeat(2 << 10);
    scratch.write("a", lines_of("a"));
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let view = limited(&scratch, "FETTLE_LIMIT_OPEN", "100");
    view.write("a", lines_of("b"));
    let script = r#"
diff = ".fettle/held/" + sys.argv[1] + "/diff"
full, go_on = os.pipe(), os.pipe()
def fill(path):
    opened = []
    try:
        while len(opened) < 200: opened.append(os.open(path, os.O_RDONLY))
    except OSError as err:
        assert err.errno == errno.ENFILE, err
    for fd in opened: os.close(fd)
    return len(opened)
def unread():
    opened = []
    while len(opened) < 60:
        opened.append(os.open(".fettle/control", os.O_RDWR))
        os.write(opened[-1], json.dumps(dict(v=1, op="diff", ids=[sys.argv[1]])).encode())
        if b'"busy"' in os.read(opened[-1], 100): break
    return opened
child = os.fork()
if child == 0:
    os.setgid(65534); os.setgroups([]); os.setuid(65534)
    texts, files = fill(diff), fill(".fettle/NOTICE.md")
    assert 5 <= texts < 30 and files == 100, (texts, files)
    answers = unread()
    assert 5 <= len(answers) < 60, len(answers)
    raises("ENFILE", os.open, diff, os.O_RDONLY)
    os.write(full[1], b"x"); os.read(go_on[0], 1)
    for fd in answers: os.close(fd)
    os.close(os.open(diff, os.O_RDONLY))
    os._exit(0)
os.close(full[1])
assert os.read(full[0], 1) == b"x"
assert len(get(diff)) > 4 << 20
assert ask(op="status")["ok"]
os.write(go_on[1], b"x")
assert os.waitpid(child, 0)[1] == 0
"#;
    let id = view.only_held().id;
    let mut command = crate::harness::script::command(&scratch, view.root(), script);
    crate::harness::Output::from(command.arg(id).output().expect("python3")).ok();
}
