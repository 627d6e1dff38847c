//! Somebody writes below at the very moment at which something lands there, is confirmed or is rolled back: whatever he
//! wrote is in the project or in a backup afterwards. A few dozen rounds here; `scripts/races` does a thousand of each.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, chmodat, mkdirat, openat, renameat, statat, symlinkat, unlinkat,
};

use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

/// How many rounds of each kind.
const ROUNDS_VARIABLE: &str = "FETTLE_TEST_RACES";
const ROUNDS: usize = 24;

/// What the other one does.
#[derive(Clone, Copy, Debug)]
enum Outside {
    Overwrite,
    Append,
    RenameOver,
    RenameOverTwice,
}

const OUTSIDE: [Outside; 4] = [Outside::Overwrite, Outside::Append, Outside::RenameOver, Outside::RenameOverTwice];

impl Outside {
    /// Writes below. Gives what must be found afterwards: what he wrote into a file that had lost its name by then is
    /// gone as on any file system.
    fn write(self, path: &Path, round: usize) -> Vec<String> {
        let token = |part: usize| format!("outside {round} {part}\n");
        match self {
            Self::Overwrite => in_place(OpenOptions::new().write(true).truncate(true), path, token(0)),
            Self::Append => in_place(OpenOptions::new().append(true), path, token(0)),
            Self::RenameOver => vec![rename_over(path, token(0))],
            // The first he gave up himself, unless something landed over it in between.
            Self::RenameOverTwice => {
                rename_over(path, token(0));
                vec![rename_over(path, token(1))]
            }
        }
    }
}

fn in_place(how: &OpenOptions, path: &Path, token: String) -> Vec<String> {
    let mut file = how.open(path).expect("a file below");
    file.write_all(token.as_bytes()).expect("written below");
    let own = file.metadata().expect("fstat").ino();
    let has_its_name = path.metadata().is_ok_and(|named| named.ino() == own);
    if has_its_name { vec![token] } else { Vec::new() }
}

fn rename_over(path: &Path, token: String) -> String {
    let new = path.with_extension("outside");
    fs::write(&new, &token).and_then(|()| fs::rename(&new, path)).expect("renamed over below");
    token
}

fn rounds() -> usize {
    std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"))
}

/// Runs `act` and the other one's write at once, the write a little later in each round until it comes too late.
fn race(scratch: &Scratch, view: &View<'_>, prepare: impl Fn(&str) -> String, act: impl Fn(&str, &str)) {
    let mut took = Duration::from_millis(2);
    for round in 0..rounds() {
        let path = format!("{round}.txt");
        scratch.write(&path, lines(60));
        let prepared = prepare(&path);
        let outside = OUTSIDE[round % OUTSIDE.len()];
        let below = scratch.lower().join(&path);
        let begin = Barrier::new(2);
        // Spread over the time the act took the last time.
        let late = took.mul_f64((round / OUTSIDE.len() % 16) as f64 / 16.0);
        let written = thread::scope(|scope| {
            let other = scope.spawn(|| {
                begin.wait();
                // Finer than any timer.
                let until = Instant::now() + late;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                outside.write(&below, round)
            });
            begin.wait();
            let begun = Instant::now();
            act(&path, &prepared);
            took = begun.elapsed().max(Duration::from_micros(200));
            other.join().expect("the other one writes")
        });
        for token in written {
            assert!(is_kept(scratch, view, &path, &token), "round {round}: {outside:?} wrote {token:?}, which is lost");
        }
        assert!(!fs::read(view.path(&path)).expect("the view shows something").is_empty());
    }
}

/// In the project, or in a backup that can be rolled back.
fn is_kept(scratch: &Scratch, view: &View<'_>, path: &str, token: &str) -> bool {
    if scratch.read(path).contains(token) {
        return true;
    }
    let backups = view.cli(&["backups", path, "--json"]).ok().json();
    let names = backups["backups"].as_array().expect("backups").iter().filter_map(|backup| backup["name"].as_str());
    names.into_iter().any(|name| view.read(Path::new(".fettle/backups").join(name)).contains(token))
}

fn mounted(scratch: &Scratch) -> View<'_> {
    // Hundreds of files a second, each of which is to land.
    scratch.mounting().flag("--window=0").flag("--burst=1000000").at("view").start()
}

/// `prepare`: what is done to the file below before it is saved.
fn race_with_a_save(scratch: &Scratch, prepare: impl Fn(&Path)) {
    let view = mounted(scratch);
    let small = with_changed_lines(&lines(60), 2);
    let prepare = |path: &str| {
        prepare(&scratch.lower().join(path));
        view.read(path)
    };
    race(scratch, &view, prepare, |path, _| view.write(path, &small));
    view.unmount();
}

#[test]
fn no_byte_written_below_is_lost_to_what_lands() {
    race_with_a_save(&mounted_scratch!(), |_| ());
}

/// Which is written in place.
#[test]
fn no_byte_written_below_is_lost_to_what_lands_in_a_file_of_two_names() {
    race_with_a_save(&mounted_scratch!(), |below| {
        fs::hard_link(below, below.with_extension("other")).expect("another name");
    });
}

#[test]
fn no_byte_written_below_is_lost_to_a_rename_that_lands() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    let small = with_changed_lines(&lines(60), 2);
    race(&scratch, &view, |path| view.read(path), |path, _| view.write_by_rename(path, &small));
    view.unmount();
}

/// `confirm`: the command and its flags. Applied, merged, or refused as a conflict: with 0 or 5.
fn race_with_a_confirm(confirm: &[&str]) {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    let large = with_changed_lines(&lines(60), 50);
    let hold = |path: &str| {
        view.write(path, &large);
        let held = view.held();
        held.iter().find(|held| held.path == path).expect("it is held").id.clone()
    };
    let confirm = |path: &str, id: &str| {
        let confirmed = view.cli(&[confirm, &[id]].concat());
        assert!(matches!(confirmed.status, 0 | 5), "{path}: {confirmed:?}");
        if confirmed.status == 5 {
            view.cli(&["discard", id]).ok();
        }
    };
    race(&scratch, &view, hold, confirm);
    view.unmount();
}

#[test]
fn no_byte_written_below_is_lost_to_a_confirm() {
    race_with_a_confirm(&["confirm"]);
}

#[test]
fn no_byte_written_below_is_lost_to_a_forced_confirm() {
    race_with_a_confirm(&["confirm", "--force"]);
}

#[test]
fn no_byte_written_below_is_lost_to_a_rollback() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    let small = with_changed_lines(&lines(60), 2);
    let land = |path: &str| {
        view.write(path, &small);
        let backups = view.cli(&["backups", path, "--json"]).ok().json();
        backups["backups"][0]["name"].as_str().expect("a landing leaves a backup").to_owned()
    };
    let roll_back = |path: &str, name: &str| {
        let restored = view.cli(&["rollback", name]);
        assert!(matches!(restored.status, 0 | 5), "{path}: {restored:?}");
    };
    race(&scratch, &view, land, roll_back);
    view.unmount();
}

/// Two directories change places again and again, or one its name, while somebody works in what lies below: by a
/// descriptor, so that only the directory's own path moves. Each of his acts is done to his own file.
fn race_with_renames(view: &View<'_>, flags: RenameFlags) {
    let (one, other) = (view.path("one"), view.path("other"));
    for dir in [&one, &other] {
        fs::create_dir_all(dir.join("sub")).expect("a directory");
    }
    if flags == RenameFlags::NOREPLACE {
        fs::remove_dir_all(&other).expect("a free name");
    }
    let sub = File::open(one.join("sub")).expect("a directory");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut ends = [&one, &other];
            while !is_over.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, ends[0], CWD, ends[1], flags).expect("a rename");
                ends.swap(0, 1);
            }
        });
        let worked = std::panic::catch_unwind(|| (0..4 * rounds()).for_each(|round| work_in(&sub, round)));
        is_over.store(true, Ordering::Relaxed);
        worked.expect("what is done is done there");
    });
    assert_eq!(view.cli(&["status", "--json"]).ok().json()["held"], serde_json::json!([]));
    view.cli(&["fsck"]).ok();
}

/// Makes, changes and removes a name of each kind in `sub`, and sees each come and go.
fn work_in(sub: &File, round: usize) {
    let [file, temp, dir, link] = ["file", "temp", "dir", "link"].map(|kind| format!("{kind}{round}"));
    let has = |name: &str| statat(sub, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let make = |name: &str| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut made = File::from(openat(sub, name, flags, Mode::from_raw_mode(0o644)).expect("a file is made"));
        made.write_all(b"text\n").expect("written");
    };
    make(&file);
    mkdirat(sub, &dir, Mode::from_raw_mode(0o755)).expect("a directory is made");
    symlinkat(&file, sub, &link).expect("a symlink is made");
    make(&temp);
    renameat(sub, &temp, sub, &file).expect("renamed over");
    chmodat(sub, &file, Mode::from_raw_mode(0o640), AtFlags::empty()).expect("a mode is set");
    let mode = statat(sub, &file, AtFlags::empty()).expect("it is there").st_mode;
    assert_eq!(mode & 0o777, 0o640, "the mode of {file}");
    for (name, how) in [(&file, AtFlags::empty()), (&link, AtFlags::empty()), (&dir, AtFlags::REMOVEDIR)] {
        assert!(has(name), "{name} was made");
        unlinkat(sub, name, how).expect("it goes");
        assert!(!has(name), "{name} was removed");
    }
}

#[test]
fn what_is_done_in_a_directory_is_done_there_though_one_above_it_is_renamed() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    race_with_renames(&view, RenameFlags::NOREPLACE);
}

#[test]
fn what_is_done_in_a_directory_is_done_there_though_one_above_it_changes_places() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    race_with_renames(&view, RenameFlags::EXCHANGE);
}

/// By temporary files, so that each change is another entry's.
#[test]
fn what_is_saved_again_while_it_is_shown_is_shown() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(300));
    let view = mounted(&scratch);
    let save = |turn: usize| {
        fs::write(view.path("temp"), with_changed_lines(&lines(300), 200 + turn % 100)).expect("written");
        fs::rename(view.path("temp"), view.path("a")).expect("saved");
    };
    save(0);
    let is_shown = AtomicBool::new(false);
    let shown: Vec<Output> = thread::scope(|scope| {
        scope.spawn(|| (1..).take_while(|_| !is_shown.load(Ordering::SeqCst)).for_each(save));
        let shown = (0..rounds()).map(|_| view.cli(&["diff", "--json"])).collect();
        is_shown.store(true, Ordering::SeqCst);
        shown
    });
    shown.into_iter().for_each(|shown| drop(shown.ok()));
    view.cli(&["unmount", "--discard-all"]).ok();
}
