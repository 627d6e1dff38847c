//! What somebody saves below at the very moment at which a program writes for the first time, or does something that leaves
//! the content as it is: it is neither lost, nor hidden, nor taken for what the program has done, and stops nobody.
//!
//! Each try in a process of its own.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::sys::steps::{Area, Calls, Fate, Steps, Trap, test_apart};

/// By which a process knows what is done, how somebody saves, and at which call of which kind.
const TOLD: &str = "FETTLE_MEANWHILE";

/// By which who saves knows the file.
const THEIRS: &str = "FETTLE_MEANWHILE_THEIRS";

/// What it says where there was such a call.
const MET: &str = "meanwhile: met";

/// What he exits with who has saved.
const SAVED: i32 = 3;

/// More calls than anything here makes.
const MOMENTS_MAX: usize = 30;

/// As which the program leaves what it saves.
const LONG_AGO: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    SaveTheSame,
    Chmod,
    Touch,
    /// Whose landing leaves the directory as it was.
    Edit,
    /// Copies a file that is small, or large, first.
    AppendToSmall,
    AppendToLarge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theirs {
    InPlace,
    Replaces,
    Appends,
    /// The file is empty for a moment, and then shorter.
    Shortens,
    /// In place, and takes it back soon: at the second call after that.
    ForAMoment,
    /// The directory, and nothing in it.
    ChmodsDir,
}

const TRIES: [(Act, Theirs); 12] = [
    (Act::SaveTheSame, Theirs::InPlace),
    (Act::SaveTheSame, Theirs::Replaces),
    (Act::Chmod, Theirs::InPlace),
    (Act::Touch, Theirs::InPlace),
    (Act::Edit, Theirs::ChmodsDir),
    (Act::AppendToSmall, Theirs::InPlace),
    (Act::AppendToSmall, Theirs::Appends),
    (Act::AppendToSmall, Theirs::Shortens),
    (Act::AppendToSmall, Theirs::ForAMoment),
    (Act::AppendToLarge, Theirs::InPlace),
    (Act::AppendToLarge, Theirs::Appends),
    (Act::AppendToLarge, Theirs::Shortens),
];

const KINDS: [Calls; 3] = [Calls::Changing, Calls::Opening, Calls::Reading];

/// What a program appends.
const LINE: &str = "by the program\n";

/// What is tried in a process.
struct Told {
    act: Act,
    theirs: Theirs,
    calls: Calls,
    at: u64,
}

impl Told {
    fn from_environment() -> Option<Self> {
        let told = std::env::var(TOLD).ok()?;
        let [act, theirs, calls, at] = told.split(' ').collect::<Vec<_>>()[..] else { panic!("{told}") };
        let is =
            |try_: &&(Act, Theirs)| (format!("{:?}", try_.0), format!("{:?}", try_.1)) == (act.into(), theirs.into());
        let (act, theirs) = *TRIES.iter().find(is)?;
        let calls = KINDS.into_iter().find(|kind| format!("{kind:?}") == calls)?;
        Some(Self { act, theirs, calls, at: at.parse().unwrap() })
    }
}

fn set(mode: Option<u32>, mtime: SetTime) -> SetAttributes {
    SetAttributes { mode, mtime, ..SetAttributes::NOTHING }
}

impl Act {
    /// What is done before anybody else comes, and after that.
    fn begin<'a>(self, bench: &'a Bench) -> Box<dyn FnOnce() + 'a> {
        let node = bench.node("d/f").unwrap();
        let look = bench.open("d/f", libc::O_RDONLY).unwrap();
        bench.close(look);
        let change = move |set: SetAttributes| {
            bench.view().set_attributes(node, None, &set, &ME).unwrap();
        };
        match self {
            Self::SaveTheSame => self.write(bench, &lines(100)),
            Self::Edit => self.write(bench, &changed(100, 1)),
            Self::Chmod => Box::new(move || change(set(Some(0o600), SetTime::Keep))),
            Self::Touch => Box::new(move || change(set(None, SetTime::Now))),
            Self::AppendToSmall | Self::AppendToLarge => {
                let handle = bench.open("d/f", libc::O_WRONLY | libc::O_APPEND).unwrap();
                Box::new(move || {
                    bench.view().write_by(handle, Position::End, LINE.as_bytes(), &ME).unwrap();
                    bench.close(handle);
                })
            }
        }
    }

    fn begins_with(self) -> String {
        match self {
            Self::SaveTheSame | Self::Chmod | Self::Touch | Self::Edit | Self::AppendToSmall => lines(100),
            Self::AppendToLarge => lines(10_000),
        }
    }

    fn kinds(self) -> &'static [Calls] {
        match self {
            Self::SaveTheSame | Self::Chmod | Self::Touch | Self::Edit => &KINDS[..2],
            Self::AppendToSmall | Self::AppendToLarge => &KINDS[2..],
        }
    }

    fn write<'a>(self, bench: &'a Bench, content: &str) -> Box<dyn FnOnce() + 'a> {
        let handle = bench.open("d/f", libc::O_WRONLY).unwrap();
        bench.view().write(handle, 0, content.as_bytes()).unwrap();
        let times = set(None, SetTime::At(LONG_AGO));
        bench.view().set_attributes(bench.node("d/f").unwrap(), Some(handle), &times, &ME).unwrap();
        Box::new(move || bench.close(handle))
    }
}

impl Theirs {
    /// What he makes of the content.
    fn of(self, content: &str) -> String {
        match self {
            Self::InPlace | Self::ForAMoment | Self::Replaces => content.replace("line 50\n", "LINE 50\n"),
            Self::Appends => content.to_owned() + "LINE 50\n",
            Self::Shortens => content.replace("line 50\nline 51\n", "LINE 50\n"),
            Self::ChmodsDir => content.to_owned(),
        }
    }

    fn save(self, file: &Path) {
        let text = self.of(&std::fs::read_to_string(file).unwrap());
        match self {
            Self::InPlace | Self::Appends | Self::ForAMoment => write_over(file, &text),
            Self::Shortens => std::fs::write(file, text).unwrap(),
            Self::Replaces => {
                let temp = file.with_extension("theirs");
                std::fs::write(&temp, text).unwrap();
                std::fs::rename(temp, file).unwrap();
            }
            Self::ChmodsDir => {
                std::fs::set_permissions(file.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
            }
        }
    }
}

fn write_over(file: &Path, text: &str) {
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

#[test]
fn what_somebody_saves_while_a_program_does_something_is_his() {
    for (act, theirs) in TRIES {
        for kind in act.kinds() {
            for moment in 1.. {
                let told = format!("{act:?} {theirs:?} {kind:?} {moment}");
                let (passed, said) = test_apart("overlay::tests::meanwhile::somebody_saves", (TOLD, &told));
                assert!(passed, "{told}: {said}");
                if !said.contains(MET) {
                    break;
                }
                assert!(moment < MOMENTS_MAX, "{told}: {said}");
            }
        }
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn somebody_saves() {
    let Some(told) = Told::from_environment() else { return };
    let Told { act, theirs, .. } = told;
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("d/older", "");
    bench.save("d/f", &act.begins_with());
    let dir = bench.node("d").unwrap();
    // As it was before the file came.
    bench.view().forget_attributes(dir);
    let mode = bench.view().attributes(dir).unwrap().meta.mode;
    let run = act.begin(&bench);
    if !meanwhile(&bench, &told, run) {
        return;
    }
    eprintln!("{MET}");
    if theirs == Theirs::ChmodsDir {
        let now = bench.view().lower().stat(&RelPath::parse(b"d").unwrap()).unwrap().unwrap();
        assert_ne!(now.mode, mode);
        assert!(!bench.view().state.lock().nodes.told(dir).is(&now.stamp()), "the kernel was told of another mode");
        return;
    }
    let is_below = bench.lower("d/f").unwrap().contains("LINE 50");
    if theirs == Theirs::ForAMoment {
        assert!(!is_below, "he has taken it back, and nobody else has written it");
        return;
    }
    assert!(is_below);
    if bench.held().is_empty() {
        let shown = bench.view().attributes(bench.node("d/f").unwrap()).unwrap().meta;
        assert_eq!(shown.mtime, bench.view().lower().stat(&RelPath::parse(b"d/f").unwrap()).unwrap().unwrap().mtime);
        assert!(act != Act::SaveTheSame || shown.mtime != LONG_AGO, "the times of what was there before");
        bench.save_by_rename("d/f", &changed(100, 2));
    } else if let Some(copied) = bench.read("d/f").unwrap().strip_suffix(LINE) {
        let was = act.begins_with();
        assert!(copied == was || copied == theirs.of(&was), "neither the one nor the other");
    }
    // What changes its size while it is copied for its backup cannot be kept.
    let cannot_be_kept = matches!(theirs, Theirs::Appends | Theirs::Shortens) && bench.reasons() == [Reason::Backup];
    assert!(cannot_be_kept || bench.reasons() == [Reason::Stale], "{:?}", bench.reasons());
    assert!(bench.lower("d/f").unwrap().contains("LINE 50"));
}

/// Runs something, and what somebody else does at a call that it makes; gives whether there was such a call.
fn meanwhile(bench: &Bench, told: &Told, run: impl FnOnce()) -> bool {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // He is another process, whose calls do not count.
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "overlay::tests::meanwhile::somebody_else", "--nocapture"])
        .env(THEIRS, bench.lower_path("d/f"))
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let area = Area::Below { dir: bench.dir.clone(), but: Some(bench.lower_path(".fettle")) };
    let fate = Fate::Told(ours.as_raw_fd());
    let steps = Steps::watch(Trap { calls: told.calls, area, at: 0, fate, reserve: None }).unwrap();
    run();
    steps.relent();
    drop(ours);
    other.wait().unwrap().code() == Some(SAVED)
}

/// Not a test by itself: who saves.
#[test]
fn somebody_else() {
    let Some(file) = std::env::var_os(THEIRS) else { return };
    let (file, told) = (Path::new(&file), Told::from_environment().unwrap());
    let was = std::fs::read_to_string(file).unwrap();
    let last = told.at + if told.theirs == Theirs::ForAMoment { 2 } else { 0 };
    let mut steps = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (mut number, mut ends_with) = ([0; 8], 0);
    while steps.read_exact(&mut number).is_ok() {
        match u64::from_ne_bytes(number).checked_sub(told.at) {
            Some(0) => told.theirs.save(file),
            Some(2) if told.theirs == Theirs::ForAMoment => write_over(file, &was),
            Some(_) | None => {}
        }
        if u64::from_ne_bytes(number) == last {
            ends_with = SAVED;
        }
        steps.write_all(&number).unwrap();
    }
    std::process::exit(ends_with);
}
