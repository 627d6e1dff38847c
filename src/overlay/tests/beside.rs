//! Somebody writes below at the very moment of a landing: just before each change that it makes in the project, and again
//! before the one after that. The races of `tests/it/races.rs` come to some of these moments by chance; here each has its
//! turn.
//!
//! After each: what he wrote last is in the project or in a backup; what was saved is in the view, or has landed before he
//! wrote; the view shows the one or the other; no name is left over; `check` finds nothing wrong.
//!
//! All of them in a process of its own, in which nothing else runs, so that it can fork.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::scenarios::scratch_on_disk;
use super::*;
use crate::sys::steps::{Area, Calls, Ended, Fate, Steps, Trap, apart, assert_passes_apart, test_apart};

/// By which a process knows that it is the one.
const ALONE: &str = "FETTLE_BESIDE_ALONE";

/// How a process ends that has landed something.
const RIGHT: u8 = 0;
const WRONG: u8 = 1;

/// What lands.
#[derive(Clone, Copy, Debug)]
enum Act {
    SaveInPlace,
    SaveByRename,
    /// What is on the disk already is copied.
    SyncedSaveByRename,
    Confirm,
    /// Of a file that `b` names, too.
    SaveOfLinked,
    ConfirmOfLinked,
}

const ACTS: [Act; 6] = [
    Act::SaveInPlace,
    Act::SaveByRename,
    Act::SyncedSaveByRename,
    Act::Confirm,
    Act::SaveOfLinked,
    Act::ConfirmOfLinked,
];

/// The mode that somebody gives it.
const THEIR_MODE: u32 = 0o600;

/// What the other one does at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Nothing,
    Overwrite,
    Append,
    Replace,
    Remove,
    /// Opens and truncates, to write at the second moment.
    Begin,
    /// Opens, to write at the second moment.
    Open,
    Chmod,
}

const FIRST: [Deed; 7] =
    [Deed::Overwrite, Deed::Append, Deed::Replace, Deed::Remove, Deed::Begin, Deed::Open, Deed::Chmod];
const SECOND: [Deed; 5] = [Deed::Nothing, Deed::Overwrite, Deed::Append, Deed::Replace, Deed::Remove];

#[test]
fn what_is_written_below_at_any_moment_of_a_landing_is_kept_and_so_is_what_lands() {
    let (passed, told) = test_apart("overlay::tests::beside::each_moment", (ALONE, "1"));
    let tried = told.lines().filter(|line| line.starts_with("beside: "));
    assert_eq!(tried.count(), ACTS.len(), "{told}");
    assert!(passed, "{told}");
}

/// Not a test by itself: what the test above starts.
#[test]
fn each_moment() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let mut wrong = 0;
    a_save_by_rename_takes_its_place();
    for act in ACTS {
        let mut tried = 0;
        for (first, second) in FIRST.into_iter().flat_map(|first| SECOND.map(|second| (first, second))) {
            for moment in 1.. {
                let meeting = Meeting { act, deeds: [first, second], moment };
                let Some(right) = meeting.run() else { break };
                wrong += u64::from(!right);
                tried += 1;
            }
        }
        assert!(tried >= FIRST.len() * SECOND.len(), "{act:?}: {tried} are all");
        eprintln!("beside: {act:?}: {tried} moments");
    }
    assert_eq!(wrong, 0);
}

/// Else nobody would meet that.
fn a_save_by_rename_takes_its_place() {
    let project = scratch_on_disk();
    let (bench, _) = Bench::at(project.path());
    Act::SaveByRename.make_ready(&bench);
    let inode = |path: &str| bench.lower_path(path).metadata().unwrap().ino();
    let saved = inode("a.new");
    Act::SaveByRename.land(&bench).unwrap();
    assert_eq!(inode("a"), saved);
}

/// What meets at which change, the first being 1.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    act: Act,
    deeds: [Deed; 2],
    moment: u64,
}

impl Meeting {
    /// Whether all is right afterwards; none if there was no such moment.
    fn run(self) -> Option<bool> {
        let project = scratch_on_disk();
        let path = project.path().join("a");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let outsider = Outsider { path, open: None, wrote: Vec::new(), mode: None };
            ready.send(()).unwrap();
            outsider.serve(self, theirs)
        });
        is_ready.recv().unwrap();
        // Nobody else does anything now: he waits to be told of the first change.
        let ended = apart(|| self.land(project.path(), &ours)).unwrap();
        drop(ours);
        let outsider = other.join().unwrap()?;
        assert!(matches!(ended, Ended::Exited(RIGHT | WRONG)), "{self:?}: {ended:?}");
        let wrong = self.look(project.path(), &outsider);
        wrong.iter().for_each(|wrong| eprintln!("{self:?}: {wrong}"));
        Some(wrong.is_empty() && ended == Ended::Exited(RIGHT))
    }

    fn land(self, project: &Path, other: &UnixStream) -> u8 {
        let (bench, _) = Bench::at(project);
        self.act.make_ready(&bench);
        let area = Area::Below { dir: project.to_owned(), but: Some(project.join(".fettle")) };
        let fate = Fate::Told(other.as_raw_fd());
        let steps = Steps::watch(Trap { calls: Calls::Changing, area, at: 0, fate, reserve: None }).unwrap();
        let landed = self.act.land(&bench);
        bench.view().store().record_waiting().unwrap();
        steps.relent();
        let (below, shown) = (bench.lower("a"), bench.read("a"));
        let shown_wrong = match bench.held().is_empty() {
            true if shown != below => Some(format!("the view shows {shown:?}, below is {below:?}")),
            false if shown.as_deref() != Some(&self.act.saved()) => Some(format!("held is {shown:?}")),
            _ => None,
        };
        let wrong: Vec<String> = shown_wrong.into_iter().chain(landed.err()).collect();
        wrong.iter().for_each(|wrong| eprintln!("{self:?}: {wrong}"));
        // Not dropped, as after a kill.
        std::mem::forget(bench);
        if wrong.is_empty() { RIGHT } else { WRONG }
    }

    /// At the project that the other process has left.
    fn look(self, project: &Path, outsider: &Outsider) -> Vec<String> {
        let (bench, recovered) = Bench::at(project);
        let mut wrong = Vec::new();
        if !recovered.is_nothing() {
            wrong.push(format!("left to recovery: {recovered:?}"));
        }
        let store = bench.view().store();
        let backups = store.backups().unwrap().into_iter().map(|backup| store.content(backup.digest).unwrap().unwrap());
        let mut kept: Vec<String> = backups.map(|content| String::from_utf8(content).unwrap()).collect();
        kept.extend(["a", "b"].iter().filter_map(|name| bench.lower(name)));
        let mode = bench.lower_path("a").metadata().ok().map(|meta| meta.mode() & 0o777);
        // What he writes to while it changes places may be another file than the one he gave a mode.
        let stays = !self.act.brings_mode() && self.deeds[1] == Deed::Nothing;
        if mode.zip(outsider.mode).is_some_and(|(mode, theirs)| mode != theirs) && stays {
            wrong.push(format!("it has mode {:o}", mode.unwrap_or_default()));
        }
        for token in outsider.wrote.iter().filter(|token| !kept.iter().any(|kept| kept.contains(*token))) {
            wrong.push(format!("{token:?} is lost"));
        }
        kept.extend(bench.read("a"));
        let events = store.events_since(0).unwrap();
        let has_landed = events.iter().any(|event| {
            matches!(event.event, EventName::WriteLanded | EventName::Confirmed)
                && event.path.as_ref().is_some_and(|path| path.to_string() == "a")
        });
        if !has_landed && !kept.contains(&self.act.saved()) {
            wrong.push(format!("what was saved is lost: {kept:?}"));
        }
        let left: Vec<String> = bench.lower_names().into_iter().filter(|name| name != "a" && name != "b").collect();
        if !left.is_empty() {
            wrong.push(format!("left over: {left:?}"));
        }
        let (faults, _) = bench.view().check().unwrap();
        wrong.extend(faults.into_iter().map(|fault| format!("check: {fault:?}")));
        wrong
    }
}

impl Act {
    fn saved(self) -> String {
        match self {
            Self::SaveInPlace | Self::SaveByRename | Self::SyncedSaveByRename | Self::SaveOfLinked => changed(100, 2),
            Self::Confirm | Self::ConfirmOfLinked => changed(100, 60),
        }
    }

    /// Whether what is saved is a file of its own until it is renamed over the other.
    fn brings_mode(self) -> bool {
        matches!(self, Self::SaveByRename | Self::SyncedSaveByRename)
    }

    fn make_ready(self, bench: &Bench) {
        bench.put("a", &lines(100));
        if matches!(self, Self::SaveOfLinked | Self::ConfirmOfLinked) {
            std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
        }
        assert_eq!(bench.read("a"), Some(lines(100)));
        match self {
            Self::SaveInPlace | Self::SaveOfLinked => {}
            Self::SaveByRename => bench.save("a.new", &self.saved()),
            Self::SyncedSaveByRename => {
                bench.save("a.new", &self.saved());
                File::open(bench.lower_path("a.new")).unwrap().sync_all().unwrap();
            }
            Self::Confirm | Self::ConfirmOfLinked => bench.save("a", &self.saved()),
        }
        bench.view().store().record_waiting().unwrap();
    }

    fn land(self, bench: &Bench) -> std::result::Result<(), String> {
        match self {
            Self::SaveInPlace | Self::SaveOfLinked => bench.save("a", &self.saved()),
            Self::SaveByRename | Self::SyncedSaveByRename => {
                bench.try_rename("a.new", "a").map_err(|err| err.to_string())?
            }
            Self::Confirm | Self::ConfirmOfLinked => match bench.confirm(&[bench.only_id()]) {
                Ok(_) | Err(ErrorCode::Conflict) => {}
                Err(code) => return Err(format!("{code:?}")),
            },
        }
        Ok(())
    }
}

/// Who writes below. What he wrote and did not take away himself is to be found afterwards.
struct Outsider {
    path: PathBuf,
    open: Option<File>,
    wrote: Vec<String>,
    mode: Option<u32>,
}

impl Outsider {
    /// None if the first moment never came.
    fn serve(mut self, meeting: Meeting, mut told: UnixStream) -> Option<Self> {
        let mut number = [0; 8];
        let mut met = false;
        while told.read_exact(&mut number).is_ok() {
            let at = u64::from_ne_bytes(number);
            for (part, deed) in meeting.deeds.into_iter().enumerate() {
                if at == meeting.moment + part as u64 {
                    self.finish();
                    self.do_deed(deed, part);
                    met = true;
                }
            }
            told.write_all(&number).unwrap();
        }
        // After all of it: what has lost its name by then is gone as on any file system.
        self.finish();
        met.then_some(self)
    }

    fn do_deed(&mut self, deed: Deed, part: usize) {
        let token = format!("outside {part}\n");
        match deed {
            Deed::Nothing => {}
            Deed::Overwrite => self.write(OpenOptions::new().write(true).truncate(true), &token),
            Deed::Append => self.write(OpenOptions::new().append(true), &token),
            Deed::Begin => self.open = self.opened(OpenOptions::new().write(true).truncate(true)),
            Deed::Open => self.open = self.opened(OpenOptions::new().append(true)),
            Deed::Replace => {
                let new = self.path.with_extension("outside");
                std::fs::write(&new, &token).and_then(|()| std::fs::rename(&new, &self.path)).unwrap();
                (self.wrote, self.mode) = (vec![token.clone()], None);
            }
            Deed::Remove => {
                let removed = std::fs::remove_file(&self.path);
                assert!(removed.is_ok() || !self.path.exists());
                self.wrote.clear();
                self.mode = None;
            }
            Deed::Chmod => {
                let given = std::fs::set_permissions(&self.path, Permissions::from_mode(THEIR_MODE));
                self.mode = given.ok().map(|()| THEIR_MODE);
            }
        }
        if matches!(deed, Deed::Overwrite | Deed::Begin) {
            self.wrote.retain(|wrote| *wrote == token);
        }
    }

    fn opened(&self, how: &OpenOptions) -> Option<File> {
        match how.clone().custom_flags(libc::O_NONBLOCK).open(&self.path) {
            // He removed it himself, or it is between two names.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => None,
            // Who waits does not come to write at this moment.
            Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => None,
            opened => Some(opened.unwrap()),
        }
    }

    fn write(&mut self, how: &OpenOptions, token: &str) {
        if let Some(file) = self.opened(how) {
            self.write_to(file, token);
        }
    }

    /// What was opened at the first moment is written at the second.
    fn finish(&mut self) {
        if let Some(file) = self.open.take() {
            self.write_to(file, "outside, late\n");
        }
    }

    fn write_to(&mut self, mut file: File, token: &str) {
        file.write_all(token.as_bytes()).unwrap();
        let own = file.metadata().unwrap().ino();
        if self.path.metadata().is_ok_and(|named| named.ino() == own) {
            self.wrote.push(token.to_owned());
        }
    }
}

/// By which a process knows that it is the one.
const IN_THE_VIEW: &str = "FETTLE_BESIDE_IN_THE_VIEW";

#[test]
fn who_writes_in_the_view_at_the_moment_of_a_confirm_is_named() {
    assert_passes_apart("overlay::tests::beside::a_write_in_the_view", (IN_THE_VIEW, "1"));
}

/// Not a test by itself: what the test above starts.
#[test]
fn a_write_in_the_view() {
    if std::env::var_os(IN_THE_VIEW).is_none() {
        return;
    }
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let handle = bench.view().open(bench.node("a").unwrap(), OpenFlags::from_raw(libc::O_WRONLY), &ME).unwrap().handle;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let area =
        Area::Below { dir: bench.lower_path("a").parent().unwrap().to_owned(), but: Some(bench.lower_path(".fettle")) };
    let fate = Fate::Told(ours.as_raw_fd());
    let steps = Steps::watch(Trap { calls: Calls::Syncing, area, at: 0, fate, reserve: None }).unwrap();
    let refused = std::thread::scope(|threads| {
        // At the first sync; a write syncs nothing, and so does not wait for itself.
        threads.spawn(|| {
            let mut number = [0; 8];
            theirs.read_exact(&mut number).unwrap();
            bench.view().write(handle, 0, b"LINE").unwrap();
            steps.relent();
            theirs.write_all(&number).unwrap();
        });
        bench.view().confirm(&[bench.only_id()], &HOW).unwrap_err()
    });
    assert_eq!((refused.code, refused.path), (ErrorCode::Busy, RelPath::parse(b"a").ok()));
    assert!(refused.message.contains("(pid 1) has it open for writing"), "{}", refused.message);
    assert_eq!(bench.lower("a"), Some(lines(100)));
    bench.close(handle);
}
