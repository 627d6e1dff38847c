//! Death at every step: a process makes a project ready, acts, and is killed before its n-th change of a file, for
//! n = 1, 2, … until it gets through. What it leaves is recovered by another, and looked at.
//!
//! After each death: the project is all old or all new; so is what is held, under the same ids; a second recovery finds
//! nothing; `check` finds nothing wrong; no content that was closed, held or replaced is gone.
//!
//! The gate tries every step of each scenario, and kills the recovery at every step after some of them. With
//! FETTLE_CRASH=N (`scripts/crashpoints`) the recovery is killed after each N-th of them, and fifty files are confirmed.
//! Each scenario has a process of its own, in which nothing else runs, so that it can fork.
//!
//! Not tried, since they are several landings: the rename of a held file over another, the exchange of two files, and
//! directories of which a file is lifted (`overlay/carry.rs`). A death in between loses nothing, and leaves some of it held.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::overlay::review::Review;
use crate::sys::steps::{Fate, Steps, is_killed};

/// What a death may leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Everything as before the act or everything as after it.
    AllOrNothing,
    /// The same, and a death right after the act forgets that what was made came in this session: it is one call below,
    /// and its record. What is taken for older is reviewed sooner, not later.
    Made,
    /// The act is a close: what was written is in the view, whether it has landed, is held, or was interrupted.
    Closes,
}

struct Scenario {
    name: &'static str,
    rule: Rule,
    ready: fn(&mut Bench),
    act: fn(&Bench),
    /// Content that must be somewhere afterwards: in the view, in the project, held, or among the backups.
    precious: &'static [&'static str],
}

/// What there is, as programs and people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Picture {
    lower: BTreeMap<String, String>,
    view: BTreeMap<String, String>,
    held: BTreeSet<String>,
    /// What paths had, by which they will be judged.
    past: Vec<String>,
}

/// By which a process knows its scenario.
const SCENARIO: &str = "FETTLE_CRASH_SCENARIO";
/// After every which step the recovery is killed too, in the gate. Odd, so that all kinds of steps have their turn.
const RECOVERY_STRIDE: u64 = 17;

fn lines(what: &str, count: usize) -> String {
    (0..count).map(|number| format!("{what} {number}\n")).collect()
}

/// Written to and not closed: the close is what is tried.
fn write_and_leave_open(bench: &Bench, path: &str, content: &str) {
    let handle = bench.open_for_save(path);
    bench.view().write(handle, 0, content.as_bytes()).unwrap();
}

fn close_all(bench: &Bench) {
    let handles: Vec<HandleId> = bench.view().state.lock().handles.keys().copied().collect();
    handles.into_iter().for_each(|handle| bench.close(handle));
}

fn small(what: &str) -> String {
    lines(what, 40).replacen(&format!("{what} 7\n"), "small edit\n", 1)
}

fn exchange(bench: &Bench, one: &str, other: &str) {
    let ((one_dir, one), (other_dir, other)) = (bench.parent(one), bench.parent(other));
    bench.view().rename(one_dir, one, other_dir, other, RenameFlags::EXCHANGE, &ME).unwrap();
}

fn ids(bench: &Bench) -> Vec<ChangeId> {
    bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect()
}

fn confirm_all(bench: &Bench) {
    let review = Review::default();
    let how = ConfirmHow { review, force: false, wait: false, renew: false, expiry: Expiry::Ignore };
    bench.view().confirm(&ids(bench), &how).unwrap();
}

fn discard_all(bench: &Bench) {
    bench.view().discard(&ids(bench), &Review::default()).unwrap();
}

fn undo_latest(bench: &Bench) {
    bench.undo_latest();
}

/// Held changes of all kinds: files changed, made and deleted, one in a directory that somebody removes below.
fn hold_many(bench: &mut Bench, count: usize) {
    for number in 0..count {
        let path = format!("d{}/f{number}", number % 3);
        match number % 3 {
            0 => {
                bench.put(&path, &lines("old", 100));
                bench.save(&path, &lines(&format!("new {number}"), 100));
            }
            1 => {
                std::fs::create_dir_all(bench.lower_path("d1/deep")).unwrap();
                bench.save(&format!("d1/deep/AGENTS{number}.md"), &format!("made {number}\n"));
                bench.save("d1/deep/AGENTS.md", &lines("agents", 3));
            }
            _ => {
                bench.put(&path, &lines("gone", 100));
                bench.unlink(&path);
            }
        }
    }
    if count > 1 {
        let made = bench.lower_path("d1/deep");
        for entry in std::fs::read_dir(&made).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::fs::remove_dir(made).unwrap();
    }
    bench.remount();
}

/// A directory in which there are files held, made and untouched, one of them in a directory of its own.
fn hold_in_directory(bench: &mut Bench) {
    bench.put("d/a", &lines("old", 100));
    bench.put("d/sub/b", &lines("old", 100));
    bench.put("d/gone", &lines("gone", 100));
    bench.put("d/plain", "plain\n");
    bench.save("d/a", &lines("new a", 100));
    bench.save("d/sub/b", &lines("new b", 100));
    bench.save("d/AGENTS.md", "made\n");
    bench.save("d/fresh", "fresh\n");
    bench.unlink("d/gone");
}

/// A directory in the place of a held deletion, with files, a symlink, a FIFO and a directory in it.
fn hold_dir_for_file(bench: &mut Bench) {
    bench.put("f", &lines("gone", 100));
    bench.unlink("f");
    bench.mkdir("f");
    bench.mkdir("f/sub");
    bench.save("f/x", "made x\n");
    bench.save("f/sub/y", "made y\n");
    let dir = bench.node("f").unwrap();
    bench.view().symlink(dir, OsStr::new("l"), OsStr::new("x"), &ME).unwrap();
    bench.view().mknod(dir, OsStr::new("p"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
}

/// A file of lower with two names.
fn two_names(bench: &Bench) {
    bench.put("a", &lines("old", 40));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a small edit is closed",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            write_and_leave_open(bench, "a", &small("old"));
        },
        act: close_all,
        precious: &["old 39\n", "small edit\n"],
    },
    Scenario {
        name: "a new file is closed",
        rule: Rule::Closes,
        ready: |bench| write_and_leave_open(bench, "a", "new\n"),
        act: close_all,
        precious: &["new\n"],
    },
    Scenario {
        name: "a large rewrite is closed",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            write_and_leave_open(bench, "a", &lines("new", 100));
        },
        act: close_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file is written again",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            write_and_leave_open(bench, "a", &lines("newer", 100));
        },
        act: close_all,
        precious: &["old 99\n", "newer 99\n"],
    },
    Scenario {
        name: "large content is replaced",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 9000));
            write_and_leave_open(bench, "a", &lines("old", 9000).replacen("old 7\n", "small edit\n", 1));
        },
        act: close_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a file with two names is written in place",
        rule: Rule::Closes,
        ready: |bench| {
            two_names(bench);
            write_and_leave_open(bench, "a", &small("old"));
        },
        act: close_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a path is made anew after a rename, and held",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.rename("a", "a~");
            write_and_leave_open(bench, "a", &lines("new", 100));
        },
        act: close_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a small file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| bench.unlink("a"),
        precious: &["one\n"],
    },
    Scenario {
        name: "a large file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", &lines("old", 100)),
        act: |bench| bench.unlink("a"),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a held file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| bench.unlink("a"),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a held deletion is made anew as a symlink",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.unlink("a");
        },
        act: |bench| {
            bench.view().symlink(ROOT, OsStr::new("a"), OsStr::new("b"), &ME).unwrap();
        },
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a small edit is renamed over its file",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.save("a.tmp", &small("old"));
        },
        act: |bench| bench.rename("a.tmp", "a"),
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "an older file is renamed over another",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &small("old"));
        },
        act: |bench| bench.rename("b", "a"),
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "an older file of the same content is renamed over another",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &lines("old", 40));
        },
        act: |bench| bench.rename("b", "a"),
        precious: &["old 7\n"],
    },
    Scenario {
        name: "a large rewrite is renamed over its file",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a.tmp", &lines("new", 100));
        },
        act: |bench| bench.rename("a.tmp", "a"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a file is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| bench.rename("a", "b"),
        precious: &["one\n"],
    },
    Scenario {
        name: "a held file is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| bench.rename("a", "b"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file that was made is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("sub/x", "x\n");
            bench.save("AGENTS.md", &lines("made", 3));
        },
        act: |bench| bench.rename("AGENTS.md", "sub/plan.md"),
        precious: &["made 2\n"],
    },
    Scenario {
        name: "a held file is renamed to where its directory had been",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("old", 100));
            bench.save("d/a", &lines("new", 100));
            bench.rename("d", "e");
        },
        act: |bench| bench.rename("e/a", "d"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a directory with held files is renamed",
        rule: Rule::AllOrNothing,
        ready: hold_in_directory,
        act: |bench| bench.rename("d", "e"),
        precious: &["new a 99\n", "new b 99\n", "gone 99\n", "made\n", "fresh\n"],
    },
    Scenario {
        name: "a directory with held files is renamed over an empty one",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            std::fs::create_dir(bench.lower_path("e")).unwrap();
        },
        act: |bench| bench.rename("d", "e"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "a directory is renamed to where another had been",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("e/a", &lines("other", 100));
            bench.save("e/a", &lines("other new", 100));
            bench.rename("e", "f");
        },
        act: |bench| bench.rename("d/sub", "e"),
        precious: &["new a 99\n", "new b 99\n", "other new 99\n"],
    },
    Scenario {
        name: "a directory is renamed back",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.rename("d", "e");
        },
        act: |bench| bench.rename("e", "d"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "two directories with held files change places",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("e/x", &lines("old", 100));
            bench.save("e/x", &lines("new x", 100));
        },
        act: |bench| exchange(bench, "d", "e"),
        precious: &["new a 99\n", "new b 99\n", "new x 99\n"],
    },
    Scenario {
        name: "a held file and a directory with held files change places",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("f", &lines("old f", 100));
            bench.save("f", &lines("new f", 100));
        },
        act: |bench| exchange(bench, "f", "d"),
        precious: &["old f 99\n", "new f 99\n", "new a 99\n", "new b 99\n"],
    },
    Scenario {
        name: "a symlink is made",
        rule: Rule::Made,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| {
            bench.view().symlink(ROOT, OsStr::new("l"), OsStr::new("a"), &ME).unwrap();
        },
        precious: &["one\n"],
    },
    Scenario {
        name: "one change is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 1),
        act: confirm_all,
        precious: &["old 99\n", "new 0 99\n"],
    },
    Scenario {
        name: "three changes are confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 3),
        act: confirm_all,
        precious: &["old 99\n", "new 0 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "ten changes are confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 10),
        act: confirm_all,
        precious: &["old 99\n", "new 9 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a change with a second name is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            let node = bench.node("a").unwrap();
            bench.view().link(node, ROOT, OsStr::new("also"), &ME).unwrap();
        },
        act: confirm_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a removed directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("gone a", 100));
            bench.put("d/b", &lines("gone b", 100));
            bench.unlink("d/a");
            bench.unlink("d/b");
            bench.view().rmdir(ROOT, OsStr::new("d"), &ME).unwrap();
        },
        act: confirm_all,
        precious: &["gone a 99\n", "gone b 99\n"],
    },
    Scenario {
        name: "a directory is made where a deletion is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("f", &lines("gone", 100));
            bench.unlink("f");
        },
        act: |bench| bench.mkdir("f"),
        precious: &["gone 99\n"],
    },
    Scenario {
        name: "a held directory is removed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("f", &lines("gone", 100));
            bench.unlink("f");
            bench.mkdir("f");
        },
        act: |bench| bench.rmdir("f").unwrap(),
        precious: &["gone 99\n"],
    },
    Scenario {
        name: "a new file is closed in a held directory",
        rule: Rule::Closes,
        ready: |bench| {
            hold_dir_for_file(bench);
            write_and_leave_open(bench, "f/new", "new\n");
        },
        act: close_all,
        precious: &["gone 99\n", "made y\n", "new\n"],
    },
    Scenario {
        name: "a held directory is renamed",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: |bench| bench.rename("f", "g"),
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is renamed to where a deletion is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_dir_for_file(bench);
            bench.put("g", &lines("other", 100));
            bench.unlink("g");
        },
        act: |bench| bench.rename("f", "g"),
        precious: &["gone 99\n", "other 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is confirmed with all that is in it",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: confirm_all,
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "one file in a held directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: |bench| {
            bench.confirm(&[bench.id_of("f/sub/y")]).unwrap();
        },
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is discarded",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: discard_all,
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "one change is discarded",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 1),
        act: discard_all,
        precious: &["old 99\n", "new 0 99\n"],
    },
    Scenario {
        name: "all changes are discarded",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 10),
        act: discard_all,
        precious: &["old 99\n", "new 9 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a backup is rolled back",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("old", 40));
            bench.save("d/a", &small("old"));
        },
        act: |bench| {
            let backups = bench.view().store().backups().unwrap();
            bench.view().rollback(&backups, &RollbackHow::default()).unwrap();
        },
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a deleted file is rolled back into a directory that is gone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/deep/a", "one\n");
            bench.unlink("d/deep/a");
            std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
        },
        act: |bench| {
            let backups = bench.view().store().backups().unwrap();
            bench.view().rollback(&backups, &RollbackHow::default()).unwrap();
        },
        precious: &["one\n"],
    },
    Scenario {
        name: "a confirm is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_many(bench, 4);
            confirm_all(bench);
        },
        act: undo_latest,
        precious: &["old 99\n", "new 3 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a discard is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_many(bench, 4);
            discard_all(bench);
        },
        act: undo_latest,
        precious: &["old 99\n", "new 3 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "the rename of a directory with held files is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.rename("d", "e");
        },
        act: undo_latest,
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
];

/// Only in the script: some thousand deaths.
const FIFTY: Scenario = Scenario {
    name: "fifty changes are confirmed",
    rule: Rule::AllOrNothing,
    ready: |bench| hold_many(bench, 50),
    act: confirm_all,
    precious: &["old 99\n", "new 48 99\n", "gone 99\n", "agents 2\n"],
};

#[test]
fn a_death_at_any_step_leaves_all_old_or_all_new() {
    let wanted = std::env::var("FETTLE_CRASH_ONLY").unwrap_or_default();
    let scenarios = SCENARIOS.iter().chain(asked_stride().map(|_| &FIFTY));
    let queue = Mutex::new(scenarios.filter(|scenario| scenario.name.contains(&wanted)).collect::<Vec<_>>());
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while let Some(scenario) = { queue.lock().pop() } {
                    faults.lock().extend(scenario.try_apart());
                }
            });
        }
    });
    let faults = faults.into_inner();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Not a test by itself: what the test above starts once for each scenario.
#[test]
fn one_scenario() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let scenario = SCENARIOS.iter().chain([&FIFTY]).find(|scenario| name == scenario.name).unwrap();
    let faults = scenario.try_all(asked_stride().unwrap_or(RECOVERY_STRIDE));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// After every which step the recovery is killed too, when a person asks for it.
fn asked_stride() -> Option<u64> {
    let asked = std::env::var("FETTLE_CRASH").ok()?;
    Some(asked.parse().expect("FETTLE_CRASH is a number from 1"))
}

impl Scenario {
    /// In a process of its own. Gives what that had to say, if anything was wrong.
    fn try_apart(&self) -> Option<String> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "overlay::tests::crash::one_scenario", "--nocapture", "--test-threads=1"]);
        let output = command.env(SCENARIO, self.name).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        told.lines().filter(|line| line.starts_with("crash: ")).for_each(tell);
        let tried = told.contains("crash: ");
        (!output.status.success() || !tried).then_some(format!("{}: {told}", self.name))
    }

    /// Dies at each step, and in the recovery after each `recovery_stride`-th of these. Gives what was wrong.
    fn try_all(&self, recovery_stride: u64) -> Vec<String> {
        let (before, after) = self.rehearse();
        let (mut faults, mut recoveries, mut step) = (Vec::new(), 0, 0);
        loop {
            step += 1;
            let project = scratch();
            if !self.dies(project.path(), step) {
                break;
            }
            let found = self.faults(project.path(), &before, &after);
            faults.extend(found.map(|fault| format!("{}, step {step}: {fault}", self.name)));
            if step % recovery_stride == 0 {
                let (found, tried) = self.try_recovery(step, &before, &after);
                faults.extend(found);
                recoveries += tried;
            }
        }
        let points = step - 1;
        eprintln!("crash: {}: {points} points, {recoveries} in recovery, {} faults", self.name, faults.len());
        faults
    }

    /// Dies at `step`, and then at each step of the recovery.
    fn try_recovery(&self, step: u64, before: &Picture, after: &Picture) -> (Vec<String>, u64) {
        let mut faults = Vec::new();
        let mut at = 0;
        loop {
            at += 1;
            let project = scratch();
            assert!(self.dies(project.path(), step), "{}: step {step} came only once", self.name);
            if !recovery_dies(project.path(), at) {
                return (faults, at - 1);
            }
            let found = self.faults(project.path(), before, after);
            faults.extend(found.map(|fault| format!("{}, step {step}, recovery step {at}: {fault}", self.name)));
        }
    }

    /// Whether there was such a step to die at.
    fn dies(&self, project: &Path, step: u64) -> bool {
        is_killed(|| {
            let (mut bench, _) = Bench::at(project);
            (self.ready)(&mut bench);
            let _steps = Steps::watch(step, Fate::Killed).unwrap();
            (self.act)(&bench);
        })
        .unwrap()
    }

    /// What there is before and after the act when nobody dies.
    fn rehearse(&self) -> (Picture, Picture) {
        let project = scratch();
        let (mut bench, _) = Bench::at(project.path());
        (self.ready)(&mut bench);
        let before = Picture::of(&bench);
        (self.act)(&bench);
        let after = Picture::of(&bench);
        assert_ne!(before, after, "{}: nothing happens", self.name);
        drop(bench);
        let (bench, recovered) = Bench::at(project.path());
        assert_eq!(Picture::of(&bench), after, "{}: a remount changes it", self.name);
        assert!(recovered.is_nothing(), "{}: left behind: {recovered:?}", self.name);
        (before, after)
    }

    fn faults(&self, project: &Path, before: &Picture, after: &Picture) -> impl Iterator<Item = String> {
        let (bench, _) = Bench::at(project);
        let now = Picture::of(&bench);
        let mut faults = Vec::new();
        let right = match self.rule {
            Rule::AllOrNothing => now == *before || now == *after,
            Rule::Made => now == *before || now == Picture { past: now.past.clone(), ..after.clone() },
            Rule::Closes => now == *after || (now.lower == before.lower && now.view == after.view),
        };
        if !right {
            faults.push(format!("neither old nor new:\n{now:#?}\nold:\n{before:#?}\nnew:\n{after:#?}"));
        }
        let (found, _) = bench.view().check().unwrap();
        faults.extend(found.into_iter().map(|fault| format!("check: {fault:?}")));
        let backups = bench.view().store().backups().unwrap();
        let backups = backups.iter().map(|backup| bench.view().store().content(backup.digest).unwrap().unwrap());
        let held = bench.held();
        let held = held.iter().filter_map(|row| Some(bench.view().sides(row).unwrap().new?.content));
        let kept: Vec<String> =
            backups.chain(held).map(|content| String::from_utf8_lossy(&content).into_owned()).collect();
        let everywhere = || now.lower.values().chain(now.view.values()).chain(&kept);
        let lost = self.precious.iter().filter(|content| !everywhere().any(|found| found.contains(**content)));
        faults.extend(lost.map(|content| format!("lost: {content:?}")));
        drop(bench);
        let (bench, recovered) = Bench::at(project);
        if !recovered.is_nothing() {
            faults.push(format!("the second recovery did {recovered:?}"));
        }
        if Picture::of(&bench) != now {
            faults.push("the second recovery changed something".to_owned());
        }
        faults.into_iter()
    }
}

impl Picture {
    fn of(bench: &Bench) -> Self {
        let mut lower = BTreeMap::new();
        collect_lower(&bench.dir, "", &mut lower);
        let mut view = BTreeMap::new();
        collect_view(bench, "", &mut view);
        let held = |row: UpperRow| {
            let held = row.held.unwrap();
            format!("{} {:?} {}", held.id, row.names, held.kind)
        };
        Self { lower, view, held: bench.held().into_iter().map(held).collect(), past: past(bench) }
    }
}

/// Anchors and renamed directories, without what differs between two projects: inodes and times.
fn past(bench: &Bench) -> Vec<String> {
    let state = bench.view().state.lock();
    let anchors: BTreeMap<&RelPath, &Known> = state.anchors.iter().collect();
    let anchor = |(path, known): (&RelPath, &Known)| {
        let had = match &known.anchor {
            AnchorState::Moved { to, .. } => format!("is at {to}"),
            AnchorState::Content(kept) => format!("is kept as {}", kept.digest),
            AnchorState::Nothing => "was free".to_owned(),
        };
        let went = known.went.as_ref().map(|went| &went.to);
        format!("{path} {had}, fresh: {}, from: {:?}, went: {went:?}", known.fresh, known.from)
    };
    let moved = state.moved_dirs.iter().map(|(from, to)| format!("{from} -> {to}"));
    anchors.into_iter().map(anchor).chain(moved).collect()
}

pub(super) fn collect_lower(dir: &Path, below: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if below.is_empty() && name == ".fettle" {
            continue;
        }
        let path = format!("{below}{name}");
        let meta = std::fs::symlink_metadata(entry.path()).unwrap();
        let mode = meta.permissions().mode();
        let what = if meta.is_dir() {
            collect_lower(&entry.path(), &format!("{path}/"), found);
            format!("{mode:o}")
        } else if meta.is_symlink() {
            format!("-> {}", std::fs::read_link(entry.path()).unwrap().display())
        } else if meta.file_type().is_fifo() {
            format!("{mode:o}")
        } else {
            format!("{mode:o} {}", std::fs::read_to_string(entry.path()).unwrap())
        };
        found.insert(path, what);
    }
}

fn collect_view(bench: &Bench, dir: &str, found: &mut BTreeMap<String, String>) {
    use crate::sys::file::FileKind;
    let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    for name in bench.names(dir) {
        let path = format!("{prefix}{name}");
        let looked_up = bench.node(&path).and_then(|node| Ok((node, bench.view().attributes(node)?.meta)));
        let Ok((node, meta)) = looked_up else {
            // Somebody has removed its directory below.
            found.insert(path, "out of reach".to_owned());
            continue;
        };
        let what = match meta.kind {
            FileKind::Directory => {
                collect_view(bench, &path, found);
                format!("{:o}", meta.mode)
            }
            FileKind::Symlink => format!("-> {}", bench.view().read_symlink(node).unwrap().to_string_lossy()),
            FileKind::Fifo => format!("{:o}", meta.mode),
            _ => format!("{:o} {}", meta.mode, bench.read(&path).unwrap()),
        };
        found.insert(path, what);
    }
}

/// In memory where there is such a place: a death of a process asks nothing of a disk.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Whether the recovery of a project had such a step to die at.
fn recovery_dies(project: &Path, step: u64) -> bool {
    is_killed(|| {
        let _steps = Steps::watch(step, Fate::Killed).unwrap();
        std::mem::forget(Bench::at(project));
    })
    .unwrap()
}

/// Past the capture of the test harness: the numbers are part of the result.
fn tell(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}
