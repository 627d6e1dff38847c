//! A project's repository, read in process. Its contents are what programs in the view have made of them: nothing in it
//! is ever run, and no caller waits longer than [`TIME_MAX`] for a reading of it.
//!
//! gix opens by name what git makes as files, reads it to the end, and blocks if it is a FIFO. So those files are checked
//! first, which does not stop anyone from putting something else there after the check. Objects are not checked: gix maps
//! them, and waits at worst.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gix::bstr::ByteSlice;
use gix::discover::path::{from_gitdir_file, from_plain_file};
use gix::refs::file::loose::Reference;
use parking_lot::{Condvar, Mutex};

use crate::sys::thread;

/// How long a caller waits for a reading. All trees of 100 000 files take less, even in a debug build.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Enough for trees of directories with a million names.
const OBJECT_MAX: &str = "gitoxide.objects.allocLimit=67108864";

/// For refs, paths and settings. git takes no more of a path either.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Enough for a million refs.
const PACKED_REFS_BYTES_MAX: u64 = 64 << 20;

/// gix follows fewer.
const REFS_IN_A_ROW_MAX: usize = 8;

/// Why a repository is not read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unread {
    #[error("it takes more than {} s to read", TIME_MAX.as_secs())]
    TooLong,
    #[error("{0}")]
    For(String),
}

pub(super) fn unread(why: impl std::fmt::Display) -> Unread {
    Unread::For(why.to_string())
}

/// Opens it without the user's or the machine's git settings, and so that no object can take all memory. Must be called
/// within a [`Reading`].
pub(super) fn open(root: BorrowedFd<'_>) -> Result<gix::Repository, Unread> {
    // Through the descriptor: the path itself may lead into the mount.
    let dot_git = PathBuf::from(format!("/proc/self/fd/{}/.git", root.as_raw_fd()));
    check_files(&dot_git)?;
    let options = gix::open::Options::isolated().open_path_as_is(true).config_overrides([OBJECT_MAX]);
    gix::open_opts(dot_git, options).map_err(unread)
}

/// A repository that is being read by a thread of its own. If gix waits for ever or panics, only that thread does.
pub(super) struct Reading<T> {
    told: Receiver<Result<T, Unread>>,
    until: Instant,
}

impl<T: Send + 'static> Reading<T> {
    pub(super) fn begin(read: impl FnOnce(Instant) -> Result<T, Unread> + Send + 'static) -> Result<Self, Unread> {
        Self::begin_until(Instant::now() + TIME_MAX, read)
    }

    fn begin_until(
        until: Instant,
        read: impl FnOnce(Instant) -> Result<T, Unread> + Send + 'static,
    ) -> Result<Self, Unread> {
        let (tell, told) = channel();
        thread::start("head", move || tell.send(read(until))).map_err(unread)?;
        Ok(Self { told, until })
    }

    pub(super) fn end(self) -> Result<T, Unread> {
        match self.told.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(read) => read,
            Err(RecvTimeoutError::Timeout) => Err(Unread::TooLong),
            Err(RecvTimeoutError::Disconnected) => Err(unread("reading it panicked")),
        }
    }
}

/// Lets one thread read at a time, so that a repository that blocks a reader blocks only that one.
#[derive(Clone, Default)]
pub(in crate::overlay) struct Turns {
    turn: Arc<(Mutex<Option<Instant>>, Condvar)>,
}

/// The turn of one reader, until it is dropped.
struct Turn(Turns);

impl Turns {
    /// While one reading is stuck, no other begins. The wait for the turn counts as part of the reading's time.
    pub(super) fn in_time<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, Unread> + Send + 'static,
    ) -> Result<T, Unread> {
        let until = Instant::now() + TIME_MAX;
        let turn = self.next(until).ok_or(Unread::TooLong)?;
        let reading = Reading::begin_until(until, move |_| {
            let _turn = turn;
            read()
        });
        reading?.end()
    }

    /// `None` if no turn comes until then, or if the reader whose turn it is takes too long.
    fn next(&self, until: Instant) -> Option<Turn> {
        let (begun, over) = &*self.turn;
        let mut begun = begun.lock();
        while let Some(others) = *begun {
            let until = until.min(others + TIME_MAX);
            if Instant::now() >= until {
                return None;
            }
            over.wait_until(&mut begun, until);
        }
        *begun = Some(Instant::now());
        Some(Turn(self.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (begun, over) = &*self.0.turn;
        *begun.lock() = None;
        over.notify_one();
    }
}

/// Checks that all that gix reads whole is a file of a bearable size, or not there.
fn check_files(dot_git: &Path) -> Result<(), Unread> {
    let git_dir = match dot_git.metadata().map_err(unread)?.is_dir() {
        true => dot_git.to_owned(),
        false => {
            check(dot_git, FILE_BYTES_MAX)?;
            from_gitdir_file(dot_git).map_err(unread)?
        }
    };
    for name in ["HEAD", "commondir", "gitdir", "config.worktree"] {
        check(&git_dir.join(name), FILE_BYTES_MAX)?;
    }
    let common_dir = match from_plain_file(&git_dir.join("commondir")) {
        Some(path) => git_dir.join(path.map_err(unread)?),
        None => git_dir.clone(),
    };
    check(&common_dir.join("config"), FILE_BYTES_MAX)?;
    check(&common_dir.join("packed-refs"), PACKED_REFS_BYTES_MAX)?;
    check_refs(&git_dir, &common_dir)?;
    check_alternates(&common_dir.join("objects"))
}

/// Checks the refs that lead from HEAD to a commit, wherever they are kept.
fn check_refs(git_dir: &Path, common_dir: &Path) -> Result<(), Unread> {
    let mut name = symbolic(&git_dir.join("HEAD"));
    for _ in 0..REFS_IN_A_ROW_MAX {
        let Some(found) = name else { return Ok(()) };
        if !found.starts_with("refs") {
            return Err(unread(format!("{} is no ref", found.display())));
        }
        let files = [common_dir.join(&found), git_dir.join(&found)];
        for file in &files {
            check(file, FILE_BYTES_MAX)?;
        }
        name = files.iter().find_map(|file| symbolic(file));
    }
    Err(unread("its refs lead on and on"))
}

/// The ref that a ref leads to. `None` if it leads to an object, or cannot be read: gix reports that better.
fn symbolic(file: &Path) -> Option<PathBuf> {
    let content = std::fs::read(file).ok()?;
    // A ref that leads to a ref has no hash, so the kind of hash does not matter.
    let read = Reference::try_from_path("HEAD".try_into().ok()?, &content, gix::hash::Kind::Sha1).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(read.target.try_name()?.as_bstr().as_bytes())))
}

/// Checks where objects are kept besides the repository's own, and besides those.
fn check_alternates(objects: &Path) -> Result<(), Unread> {
    let (mut known, mut left) = (HashSet::new(), vec![objects.to_owned()]);
    while let Some(dir) = left.pop() {
        let file = dir.join("info/alternates");
        check(&file, FILE_BYTES_MAX)?;
        if known.insert(dir)
            && let Ok(content) = std::fs::read(file)
        {
            let others = gix::odb::alternate::parse(&content).map_err(unread)?;
            left.extend(others.into_iter().map(|other| objects.join(other)));
        }
    }
    Ok(())
}

fn check(file: &Path, bytes_max: u64) -> Result<(), Unread> {
    let what = || format!("`{}`", file.strip_prefix("/proc/self/fd").map_or(file, without_first).display());
    match file.metadata() {
        // A directory is not read, and one in the place of a ref does no harm.
        Ok(meta) if meta.is_dir() || meta.is_file() && meta.len() <= bytes_max => Ok(()),
        Ok(meta) if meta.is_file() => Err(unread(format!("{} is larger than {bytes_max} bytes", what()))),
        Ok(_) => Err(unread(format!("{} is no regular file", what()))),
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(err) => Err(unread(format!("{}: {err}", what()))),
    }
}

fn without_first(path: &Path) -> &Path {
    let mut parts = path.components();
    parts.next();
    parts.as_path()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_for_several_readings_waits_no_longer_than_for_one() {
        let turns = Turns::default();
        let reads = |turns: Turns| {
            let begun = Instant::now();
            let read = turns.in_time(|| {
                thread::sleep(TIME_MAX * 3 / 5);
                Ok(())
            });
            (read.is_ok(), begun.elapsed())
        };
        let readers: Vec<_> = (0..4).map(|_| turns.clone()).map(|turns| thread::spawn(move || reads(turns))).collect();
        let ends: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(ends.iter().all(|(_, took)| *took < TIME_MAX * 3 / 2), "{ends:?}");
        assert_eq!(ends.iter().filter(|(in_time, _)| *in_time).count(), 1, "{ends:?}");
    }
}
