//! Files that are written where nobody judges, and have a judged name as well: whatever becomes of that, lower keeps there
//! what nobody has reviewed.

use std::process::Command;

use rustix::fs::XattrFlags;

use super::*;
use crate::policy::rules;

/// A sensitive file with two more names where nobody judges.
fn linked() -> Bench {
    linked_to(&["ign/x", "ign/y"])
}

fn linked_to(names: &[&str]) -> Bench {
    let mut bench = Bench::with(&[(Key::Window, "0")]);
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "/ign\n");
    bench.put("AGENTS.md", &lines(100));
    bench.put("own", &changed(100, 60));
    std::fs::create_dir(bench.lower_path("ign")).unwrap();
    for name in names {
        std::fs::hard_link(bench.lower_path("AGENTS.md"), bench.lower_path(name)).unwrap();
    }
    bench.remount();
    bench
}

fn attempt_to_open(bench: &Bench, node: NodeId, flags: i32) -> Result<HandleId> {
    Ok(bench.view().open(node, OpenFlags::from_raw(flags), &ME)?.handle)
}

fn open(bench: &Bench, path: &str, flags: i32) -> HandleId {
    attempt_to_open(bench, bench.node(path).unwrap(), flags).unwrap()
}

fn set(bench: &Bench, path: &str, mode: Option<u32>, size: Option<u64>) -> Result<()> {
    let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
    let set = SetAttributes { mode, size, atime, mtime, ..SetAttributes::NOTHING };
    bench.view().set_attributes(bench.node(path).unwrap(), None, &set, &ME).map(drop)
}

/// What waits at the judged name.
fn waiting(bench: &Bench) -> ChangeId {
    let path = RelPath::parse(b"AGENTS.md").unwrap();
    bench.view().state.lock().uppers.held_at(&path).unwrap().id.clone()
}

fn exchange(bench: &Bench) {
    let (one, other) = (OsStr::new("own"), OsStr::new("AGENTS.md"));
    bench.view().rename(ROOT, one, ROOT, other, RenameFlags::EXCHANGE, &ME).unwrap();
}

type Act = (&'static str, fn(&Bench));

/// Ways in which a change that waits hides what lower has at the judged name.
const HIDDEN: [Act; 4] = [
    ("deleted", |bench| bench.unlink("AGENTS.md")),
    ("renamed away", |bench| bench.rename("AGENTS.md", "away")),
    ("replaced", |bench| {
        bench.save("new", "new\n");
        bench.rename("new", "AGENTS.md");
    }),
    ("exchanged", exchange),
];

/// Ways to write.
const WRITTEN: [Act; 5] = [
    ("emptied", |bench| bench.save("ign/x", "evil\n")),
    ("overwritten", |bench| {
        let handle = open(bench, "ign/x", libc::O_RDWR);
        bench.view().write(handle, 0, b"evil").unwrap();
        bench.close(handle);
    }),
    ("truncated by path", |bench| set(bench, "ign/x", None, Some(7)).unwrap()),
    ("allocated", |bench| {
        let handle = open(bench, "ign/x", libc::O_RDWR);
        bench.view().fallocate(handle, 0, 0, 9999, &ME).unwrap();
        bench.close(handle);
    }),
    ("copied to", |bench| {
        let (from, to) = (open(bench, "own", libc::O_RDONLY), open(bench, "ign/x", libc::O_WRONLY));
        assert_eq!(bench.view().copy_file_range(from, 0, to, 10, 20, &ME).unwrap(), 20);
        bench.close(to);
    }),
];

#[test]
fn what_a_waiting_change_hides_stays_as_it_is_however_its_other_names_are_written() {
    for names in [&["ign/x"][..], &["ign/x", "ign/y"]] {
        for (hidden, hide) in HIDDEN {
            for (written, write) in WRITTEN {
                eprintln!("{hidden}, {written}, {names:?}");
                stays_as_it_is(linked_to(names), names, hide, write);
            }
        }
    }
}

fn stays_as_it_is(mut bench: Bench, names: &[&str], hide: fn(&Bench), write: fn(&Bench)) {
    hide(&bench);
    let waits = waiting(&bench);
    write(&bench);
    assert_eq!(bench.lower("AGENTS.md"), Some(lines(100)));
    let written = bench.lower("ign/x");
    assert_ne!(written, Some(lines(100)));
    for name in names {
        assert_eq!((&bench.lower(name), &bench.read(name)), (&written, &written), "{name} stays a name of the file");
    }
    assert_eq!(waiting(&bench), waits);
    assert!(bench.view().external_paths().changed.is_empty(), "nobody else has done anything");
    bench.remount();
    assert_eq!(waiting(&bench), waits);
    bench.view().discard(&[waits], &Review::default()).unwrap();
    assert_eq!(bench.read("AGENTS.md"), Some(lines(100)));
}

#[test]
fn what_waits_there_is_confirmed_as_if_nobody_had_written() {
    for (hidden, hide) in HIDDEN {
        let bench = linked();
        hide(&bench);
        let shown = bench.read("AGENTS.md");
        bench.save("ign/x", "evil\n");
        bench.confirm(&[waiting(&bench)]).unwrap();
        assert_eq!((bench.lower("AGENTS.md"), bench.read("AGENTS.md")), (shown.clone(), shown), "{hidden}");
        assert_eq!(bench.lower("ign/x").as_deref(), Some("evil\n"), "{hidden}");
    }
}

#[test]
fn a_name_that_is_shown_again_is_judged_again() {
    let bench = linked();
    bench.unlink("AGENTS.md");
    let reader = open(&bench, "ign/x", libc::O_RDONLY);
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    let node = bench.node("ign/x").unwrap();
    // Who reads where nobody judges keeps what he has; the kernel looks the name up anew.
    let refused = attempt_to_open(&bench, node, libc::O_WRONLY);
    assert_eq!(refused.unwrap_err().code(), libc::ESTALE);
    bench.save("ign/x", "evil\n");
    assert_eq!((bench.lower("AGENTS.md"), bench.read("AGENTS.md").as_deref()), (Some(lines(100)), Some("evil\n")));
    bench.close(reader);
}

#[test]
fn a_change_that_goes_on_under_a_passing_name_is_judged_by_the_one_that_is_hidden() {
    // Only its size has it reviewed.
    let bench = linked();
    bench.put("plain", &lines(100));
    std::fs::hard_link(bench.lower_path("plain"), bench.lower_path("ign/plain")).unwrap();
    bench.save("ign/plain", &changed(100, 60));
    bench.unlink("plain");
    bench.save("ign/plain", "evil\n");
    assert_eq!((bench.lower("plain"), bench.lower("ign/plain")), (Some(lines(100)), Some(lines(100))));
    assert_eq!((bench.read("plain"), bench.read("ign/plain").as_deref()), (None, Some("evil\n")));
    assert_eq!(bench.held().len(), 2);
}

#[test]
fn a_file_without_a_name_in_the_view_is_not_written_under_its_judged_one() {
    for hide in [None, Some(HIDDEN[0].1)] {
        let bench = linked();
        hide.iter().for_each(|hide| hide(&bench));
        let node = bench.node("ign/x").unwrap();
        let reader = open(&bench, "ign/x", libc::O_RDONLY);
        bench.save("ign/new", "new\n");
        bench.rename("ign/new", "ign/x");
        // As through `/proc/self/fd`.
        if let Ok(writer) = attempt_to_open(&bench, node, libc::O_WRONLY) {
            bench.view().write(writer, 0, b"evil").unwrap();
            bench.close(writer);
        }
        assert_eq!(bench.lower("AGENTS.md"), Some(lines(100)));
        bench.close(reader);
    }
}

#[test]
fn set_id_and_privileges_do_not_come_to_a_judged_name_by_another() {
    for hide in [None, Some(HIDDEN[0].1)] {
        let bench = linked();
        hide.iter().for_each(|hide| hide(&bench));
        assert_eq!(set(&bench, "ign/x", Some(0o4755), None).unwrap_err().code(), libc::EPERM);
        let (node, name) = (bench.node("ign/x").unwrap(), OsStr::new("security.other"));
        let given = bench.view().set_xattr(node, name, b"1", XattrFlags::empty(), &ME);
        assert_eq!(given.unwrap_err().code(), libc::EPERM);
        set(&bench, "ign/x", Some(0o755), None).unwrap();
        assert_eq!((bench.looks_below("AGENTS.md").0, bench.meta("ign/x").mode), (0o644, 0o755), "it waits");
        bench.check();
    }
}

#[test]
fn what_is_refused_by_a_name_that_is_hidden_is_refused_by_another() {
    for action in ["deny", "freeze"] {
        let mut bench = linked();
        bench.put("plain", &lines(100));
        std::fs::hard_link(bench.lower_path("plain"), bench.lower_path("judged")).unwrap();
        bench.unlink("plain");
        bench.put(".fettle.toml", &format!("[[rule]]\nmatch = \"plain\"\naction = \"{action}\"\n"));
        bench.remount();
        let refused = attempt_to_open(&bench, bench.node("judged").unwrap(), libc::O_WRONLY);
        assert_eq!(refused.unwrap_err().code(), libc::EPERM);
    }
}

#[test]
fn a_name_that_is_judged_from_now_on_leaves_behind_who_writes_by_one_that_goes_on_passing() {
    let mut bench = Bench::new();
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "/ign\n");
    bench.put("ign/x", &lines(100));
    std::fs::create_dir(bench.lower_path("ign/kept")).unwrap();
    std::fs::hard_link(bench.lower_path("ign/x"), bench.lower_path("ign/kept/x")).unwrap();
    bench.remount();
    let writer = open(&bench, "ign/kept/x", libc::O_RDWR);
    bench.put(".gitignore", "/ign/kept\n");
    read_rules_again(&bench).unwrap();
    bench.view().write(writer, 0, b"evil").unwrap();
    assert_eq!(bench.lower("ign/x"), Some(lines(100)));
    assert_eq!(bench.lower("ign/kept/x"), Some(lines(100).replacen("line", "evil", 1)));
    bench.close(writer);
}

/// Files that pass, of which a writer has each open, and that are judged once the rules are read again.
fn passing_and_open<const N: usize>(paths: [&str; N]) -> (Bench, [HandleId; N]) {
    let mut bench = Bench::new();
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "/ign\n");
    paths.iter().for_each(|path| bench.put(path, &lines(100)));
    bench.remount();
    let writers = paths.map(|path| open(&bench, path, libc::O_RDWR));
    bench.put(".gitignore", "");
    (bench, writers)
}

fn read_rules_again(bench: &Bench) -> std::result::Result<(), String> {
    let lower = Tree::open(&bench.dir).unwrap();
    let policy = Policy::load(&lower, &RuleSource::default()).unwrap();
    bench.view().set_policy(policy).map_err(|err| err.to_string())
}

#[test]
fn one_file_that_stays_with_its_writer_keeps_no_other_with_theirs_and_is_tried_again() {
    let paths = ["ign/bad", "ign/a", "ign/b", "ign/c"];
    let (bench, writers) = passing_and_open(paths);
    let append_only = |flag| {
        let status = Command::new("chattr").args([flag, bench.lower_path("ign/bad").to_str().unwrap()]).status();
        assert!(status.unwrap().success(), "the test needs a file system that knows files one can only append to");
    };
    append_only("+a");
    let tries = [read_rules_again(&bench), read_rules_again(&bench)];
    append_only("-a");
    for tried in tries {
        let told = tried.unwrap_err();
        assert!(told.contains("ign/bad") && !told.contains("ign/a"), "{told}");
    }
    assert_eq!(read_rules_again(&bench), Ok(()));
    for (path, writer) in paths.into_iter().zip(writers) {
        bench.view().write(writer, 0, b"evil").unwrap();
        assert_eq!(bench.lower(path), Some(lines(100)), "{path}");
        bench.close(writer);
    }
}

#[test]
fn a_file_that_is_written_all_the_time_leaves_its_writer_behind() {
    use std::os::unix::fs::FileExt;
    let (bench, [writer]) = passing_and_open(["ign/log"]);
    // So that a copy of it takes longer than many writes.
    let begins = lines(500_000);
    bench.put("ign/log", &begins);
    let log = std::fs::File::options().read(true).write(true).open(bench.lower_path("ign/log")).unwrap();
    let stops = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Longer with every write, so that no two looks at it agree.
        scope.spawn(|| {
            let mut size = log.metadata().unwrap().len();
            while !stops.load(std::sync::atomic::Ordering::SeqCst) {
                log.write_all_at(b"more\n", size).unwrap();
                size += 5;
            }
        });
        while log.metadata().unwrap().len() == begins.len() as u64 {
            std::thread::yield_now();
        }
        let told = read_rules_again(&bench);
        stops.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(told, Ok(()));
    });
    let parted = bench.lower("ign/log").unwrap();
    bench.view().write(writer, 0, b"evil").unwrap();
    assert!(parted.starts_with(&begins));
    // Not shown: it is long.
    assert!(bench.lower("ign/log") == Some(parted));
    assert_eq!((bench.lower_names().len(), bench.names("ign").len()), (3, 1), "nothing is left behind");
    bench.close(writer);
}

#[test]
fn who_writes_below_more_directories_than_a_stack_has_room_for_is_judged() {
    let bench = Bench::new();
    let deep = RelPath::parse(format!("{}f", "d/".repeat(5_000)).as_bytes()).unwrap();
    let (view, small) = (bench.view(), std::thread::Builder::new().stack_size(256 << 10));
    std::thread::scope(|scope| {
        let asked =
            small.spawn_scoped(scope, || view.policy().action(&view.lower, &deep, rules::Entry::File, None)).unwrap();
        assert_eq!(asked.join().unwrap(), rules::Action::Auto);
    });
}

#[test]
fn what_comes_with_a_directory_from_where_nobody_judges_waits_as_if_it_came_by_itself() {
    let key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n";
    for together in [true, false] {
        let mut bench = linked_to(&[]);
        bench.put("ign/x/key", key);
        bench.put("ign/x/plain", &lines(100));
        for (name, target) in [("in", "plain"), ("out", "/nonexistent")] {
            std::os::unix::fs::symlink(target, bench.lower_path(&format!("ign/x/{name}"))).unwrap();
        }
        match together {
            true => bench.rename("ign/x", "x"),
            false => {
                bench.mkdir("x");
                let names = ["key", "plain", "in", "out"];
                names.iter().for_each(|name| bench.rename(&format!("ign/x/{name}"), &format!("x/{name}")));
            }
        }
        for _ in 0..2 {
            let held = |path: &str, reason| (path.to_owned(), ChangeKind::Create, vec![reason]);
            assert_eq!(bench.waiting(), [held("x/key", Reason::Risk), held("x/out", Reason::Symlink)], "{together}");
            assert_eq!(bench.names("x"), ["in", "key", "out", "plain"]);
            assert_eq!((bench.read("x/key").as_deref(), bench.lower("x/key")), (Some(key), None));
            assert_eq!((bench.lower("x/plain"), bench.lower("x/in")), (Some(lines(100)), Some(lines(100))));
            bench.check();
            bench.remount();
        }
    }
}
