//! What is done to a file that somebody has open, while it cannot be opened once more, or while he writes. Whatever comes of
//! that: what is written and closed afterwards by the name is in the view by that name, and so is what he wrote meanwhile.
//!
//! Each try in a process of its own.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::overlay::review::discard::Writing;
use crate::sys::steps::{Area, Calls, Fate, Steps, Trap, test_apart};

/// By which a process knows what is done, and which open fails meanwhile, the first being 1.
const FAILING: &str = "FETTLE_OPENED_FAILING";
/// By which it knows what is done, and at which open somebody writes.
const WRITING: &str = "FETTLE_OPENED_WRITING";

/// What it says where there was such an open.
const MET: &str = "opened: met";

/// How long a write takes at most, unless it waits for a lock.
const LONGEST: Duration = Duration::from_millis(500);

/// More opens than anything here makes.
const MOMENTS_MAX: usize = 60;

/// What is done to an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    SaveTheSame,
    Confirm,
    /// Once it cannot be refused any more.
    Discard,
    /// Of what is open over a file that is held.
    Rename,
    Exchange,
    /// Of the directory that it is in, to where another file was.
    RenameDir,
    Rollback,
}

const ACTS: [Act; 7] =
    [Act::SaveTheSame, Act::Confirm, Act::Discard, Act::Rename, Act::Exchange, Act::RenameDir, Act::Rollback];

impl Act {
    fn name(self) -> String {
        format!("{self:?}")
    }

    fn of(name: &str) -> Self {
        *ACTS.iter().find(|act| act.name() == name).unwrap()
    }

    /// The path that is opened.
    fn path(self) -> &'static str {
        match self {
            Self::SaveTheSame | Self::Confirm | Self::Discard | Self::Rollback | Self::Exchange => "a",
            Self::Rename => "a.new",
            Self::RenameDir => "d/a",
        }
    }

    /// Where that is afterwards.
    fn leads_to(self) -> &'static str {
        match self {
            Self::SaveTheSame | Self::Confirm | Self::Discard | Self::Rollback | Self::Rename => "a",
            Self::Exchange => "b",
            Self::RenameDir => "e/a",
        }
    }

    fn make_ready(self, bench: &Bench) {
        bench.put("a", &lines(100));
        match self {
            Self::SaveTheSame => {}
            Self::Confirm | Self::Discard => bench.save("a", &changed(100, 60)),
            Self::Rename => {
                bench.save("a", &changed(100, 60));
                bench.save("a.new", &changed(100, 50));
            }
            Self::Exchange => {
                bench.save("a", &changed(100, 60));
                bench.put("b", &lines(90));
            }
            Self::RenameDir => {
                bench.put("e/a", &lines(8));
                bench.unlink("e/a");
                let (root, name) = bench.parent("e");
                bench.view().rmdir(root, name, &ME).unwrap();
                bench.view().mkdir(root, OsStr::new("d"), 0o755, &ME).unwrap();
                bench.save("d/a", &lines(50));
            }
            Self::Rollback => bench.save("a", &changed(100, 2)),
        }
    }

    /// May be refused: then nothing has changed.
    fn run(self, bench: &Bench) {
        let refusal = match self {
            Self::SaveTheSame => bench.open("a", libc::O_WRONLY).and_then(|handle| {
                bench.view().write(handle, 0, lines(100).as_bytes())?;
                let closed = bench.view().flush(handle, &ME);
                bench.view().release(handle).and(closed)
            }),
            Self::Confirm => bench.confirm(&[bench.only_id()]).map(drop).map_err(|_| Error::Errno(libc::EIO)),
            Self::Discard => {
                let (row, path) = (bench.held().remove(0), RelPath::parse(b"a").unwrap());
                // Nobody had it open then.
                let shown = bench.view().what_lower_shows(&path, None).unwrap();
                bench.view().store().remove_upper(row.id).unwrap();
                bench.view().back_to_lower(&row, |_| true, shown, Writing::GoesOn);
                Ok(())
            }
            Self::Rename => bench.try_rename("a.new", "a"),
            Self::Exchange => rename(bench.view(), bench.parent("a"), bench.parent("b"), RenameFlags::EXCHANGE),
            Self::RenameDir => bench.try_rename("d", "e"),
            Self::Rollback => {
                let backups = bench.view().store().backups().unwrap();
                let rolled_back = bench.view().rollback(&backups, &RollbackHow::default());
                rolled_back.map(drop).map_err(|_| Error::Errno(libc::EIO))
            }
        };
        if let Err(err) = refusal {
            eprintln!("{self:?}: {err}");
        }
    }

    /// Where the opened file is now.
    fn found(self, bench: &Bench) -> &'static str {
        let has_moved = match self {
            Self::SaveTheSame | Self::Confirm | Self::Discard | Self::Rollback => true,
            Self::Rename => bench.node("a.new").is_err(),
            Self::Exchange => bench.read("a") == Some(lines(90)),
            Self::RenameDir => bench.node("d").is_err(),
        };
        if has_moved { self.leads_to() } else { self.path() }
    }
}

/// Tries each moment until there is none any more.
fn at_each_moment(act: Act, test: &str, variable: &str) {
    for moment in 1.. {
        let (passed, told) = test_apart(test, (variable, &format!("{act:?} {moment}")));
        assert!(passed, "{act:?}, open {moment}: {told}");
        if !told.contains(MET) {
            assert!(moment > 1, "{act:?} opens nothing");
            return;
        }
        assert!(moment < MOMENTS_MAX, "{act:?}: {told}");
    }
}

fn told_by(variable: &str) -> Option<(Act, u64)> {
    let told = std::env::var(variable).ok()?;
    let (act, moment) = told.split_once(' ').unwrap();
    Some((Act::of(act), moment.parse().unwrap()))
}

#[test]
fn what_cannot_be_opened_for_a_moment_keeps_what_is_written_by_its_name() {
    for act in ACTS {
        at_each_moment(act, "overlay::tests::opened::an_open_fails", FAILING);
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn an_open_fails() {
    let Some((act, at)) = told_by(FAILING) else { return };
    let bench = Bench::new();
    act.make_ready(&bench);
    let reading = bench.open(act.path(), libc::O_RDONLY).unwrap();
    let state = bench.lower_path(".fettle");
    let area = match act {
        Act::Rename | Act::Exchange | Act::RenameDir => Area::Below { dir: state.join("stage"), but: None },
        Act::SaveTheSame | Act::Confirm | Act::Discard | Act::Rollback => {
            Area::Below { dir: bench.dir.clone(), but: Some(state) }
        }
    };
    let trap = Trap { calls: Calls::Opening, area, at, fate: Fate::Fails(libc::EMFILE), reserve: None };
    let steps = Steps::watch(trap).unwrap();
    act.run(&bench);
    if steps.failed() > 0 {
        eprintln!("{MET}");
    }
    steps.relent();
    let found = act.found(&bench);
    let handle = bench.open(found, libc::O_WRONLY).unwrap();
    bench.view().write(handle, 0, b"mine\n").unwrap();
    bench.close(handle);
    bench.view().release(reading).unwrap();
    let shown = bench.read(found).unwrap();
    assert!(shown.starts_with("mine\n"), "{found} has {shown:?}");
    if act == Act::Rollback {
        assert!(bench.held().is_empty(), "he has seen what was restored");
    }
}

/// As the kernel writes stores of a mapping: also while it keeps a rename from the file.
#[test]
fn what_is_written_through_what_is_open_while_it_is_renamed_goes_along() {
    for act in [Act::Rename, Act::Exchange] {
        at_each_moment(act, "overlay::tests::opened::somebody_writes", WRITING);
    }
}

/// Not a test by itself: what the one above starts.
#[test]
fn somebody_writes() {
    let Some((act, at)) = told_by(WRITING) else { return };
    let bench = Bench::new();
    act.make_ready(&bench);
    let writing = bench.open(act.path(), libc::O_RDWR).unwrap();
    if act == Act::Exchange {
        bench.view().write(writing, 0, b"mine 0\n").unwrap();
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (begin, begun) = channel();
    let (done, is_done) = channel();
    let has_written = std::thread::scope(|scope| {
        // Both begin before the calls count, and theirs do not.
        let view = bench.view();
        scope.spawn(move || {
            begun.iter().for_each(|()| drop(done.send(view.write(writing, 0, b"mine 1\n"))));
        });
        let served = scope.spawn(move || serve(theirs, at, (begin, is_done)));
        let steps = Steps::watch(Trap::below(
            bench.lower_path(".fettle/stage"),
            Calls::Opening,
            0,
            Fate::Told(ours.as_raw_fd()),
        ))
        .unwrap();
        act.run(&bench);
        steps.relent();
        drop(ours);
        served.join().unwrap()
    });
    bench.close(writing);
    let found = act.found(&bench);
    assert_eq!(found, act.leads_to());
    let shown = bench.read(found).unwrap();
    assert!(shown.starts_with("mine 1\n") || !has_written, "{found} has {shown:?}");
}

/// Has it written at the moment, and whoever is renaming wait for that; but not where the view waits for him.
fn serve(mut told: UnixStream, at: u64, (begin, is_done): (Sender<()>, Receiver<Result<usize>>)) -> bool {
    let (mut number, mut met) = ([0; 8], false);
    while told.read_exact(&mut number).is_ok() {
        if u64::from_ne_bytes(number) == at {
            eprintln!("{MET}");
            met = true;
            begin.send(()).unwrap();
            let _under_way = is_done.recv_timeout(LONGEST);
        }
        told.write_all(&number).unwrap();
    }
    met
}
