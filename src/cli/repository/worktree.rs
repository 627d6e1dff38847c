//! Keeps `git worktree remove` from a linked work tree with held changes, by the lock that `git worktree lock` makes. What
//! is held is in no file that git looks at, and the state directory would go with the work tree.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::{DIRECTORY, own_directory, read_line};
use crate::sys::file;
use crate::sys::tree::Place;

const LOCK: &str = "locked";

/// Git shows the file's content as the reason. By it we know our lock from a person's.
const REASON: &str = "fettlefs is mounted on this work tree or holds changes of it: see `fettlefs status`";

/// Locks the work tree if that is needed, and takes our own lock away otherwise.
pub fn lock_while(project: &Path, is_needed: impl FnOnce() -> bool) -> io::Result<()> {
    match own_of_linked(project)? {
        Some(own) if is_needed() => lock(&own),
        Some(own) => unlock(&own),
        None => Ok(()),
    }
}

/// The directory that the repository has for this work tree; none if the project is no linked work tree.
fn own_of_linked(project: &Path) -> io::Result<Option<PathBuf>> {
    let link = project.join(".git");
    if !std::fs::symlink_metadata(&link).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let Some(own) = own_directory(project)? else { return Ok(None) };
    // Whoever works in the project may have written the link: git's directory has to name this work tree, too. That of a
    // submodule names none.
    let Ok(back) = read_line(&own.join("gitdir")) else { return Ok(None) };
    let is_same = own.join(OsStr::from_bytes(&back)).canonicalize()? == link.canonicalize()?;
    Ok(is_same.then_some(own))
}

fn lock(own: &Path) -> io::Result<()> {
    let directory = Arc::new(rustix::fs::open(own, DIRECTORY, Mode::empty())?);
    let lock = Place { dir: directory, name: LOCK.into() };
    if lock.stat()?.is_some() {
        return Ok(());
    }
    match make(&lock) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// In one step, where the file system can: of an empty one that a killed process left nobody would know whose it is, for
/// a person's lock may be empty, too.
fn make(lock: &Place) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    let nameless = lock.create_nameless(mode)?;
    let is_nameless = nameless.is_some();
    let mut made = nameless.map_or_else(|| lock.create(OFlags::WRONLY, mode).map(File::from), Ok)?;
    file::give_to_owner_of(lock.dir.as_fd(), made.as_fd())?;
    made.write_all(REASON.as_bytes())?;
    if is_nameless { lock.name_file(&made) } else { Ok(()) }
}

fn unlock(own: &Path) -> io::Result<()> {
    let lock = own.join(LOCK);
    match read_line(&lock) {
        Ok(reason) if reason == REASON.as_bytes() => std::fs::remove_file(lock),
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::steps::{Area, Calls, Ended, Fate, Steps, Trap, apart, assert_passes_apart};
    use std::fs;

    /// A work tree `w`, and the directory that the repository has for it.
    fn linked(scratch: &Path) -> (PathBuf, PathBuf) {
        let (tree, own) = (scratch.join("w"), scratch.join("git/worktrees/w"));
        fs::create_dir_all(&own).expect("git's");
        fs::create_dir(&tree).expect("a work tree");
        fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).expect("link");
        fs::write(own.join("gitdir"), format!("{}\n", tree.join(".git").display())).expect("gitdir");
        (tree, own)
    }

    #[test]
    fn our_own_lock_is_made_and_taken_away() {
        let scratch = tempfile::tempdir().expect("scratch");
        let (tree, own) = linked(scratch.path());
        for is_needed in [false, true, true, false, false] {
            lock_while(&tree, || is_needed).expect("told");
            assert_eq!(own.join("locked").exists(), is_needed);
        }
    }

    /// By which a process knows that it may be ended.
    const ALONE: &str = "FETTLE_WORKTREE_ALONE";

    #[test]
    fn no_lock_of_a_killed_daemon_is_taken_for_a_person_s() {
        assert_passes_apart("cli::repository::worktree::tests::killed_at_each_step", (ALONE, "1"));
    }

    #[test]
    fn killed_at_each_step() {
        if std::env::var_os(ALONE).is_none() {
            return;
        }
        let scratch = tempfile::tempdir().expect("scratch");
        let (tree, own) = linked(scratch.path());
        let killed = (1..).take_while(|at| {
            let ended = apart(|| {
                let area = Area::Below { dir: own.clone(), but: None };
                let trap = Trap { calls: Calls::Changing, area, at: *at, fate: Fate::Killed, reserve: None };
                let _steps = Steps::watch(trap).expect("steps");
                lock_while(&tree, || true).expect("locked");
                0
            });
            lock_while(&tree, || false).expect("unlocked");
            assert!(!own.join(LOCK).exists(), "killed at step {at}");
            ended.expect("a process") == Ended::Killed
        });
        assert!(killed.count() > 0);
    }

    #[test]
    fn the_lock_of_a_person_stays() {
        let scratch = tempfile::tempdir().expect("scratch");
        let (tree, own) = linked(scratch.path());
        fs::write(own.join("locked"), "mine").expect("a lock");
        for is_needed in [true, false] {
            lock_while(&tree, || is_needed).expect("told");
        }
        assert_eq!(fs::read(own.join("locked")).expect("a lock"), b"mine");
    }

    /// The link is in the project, and may lead anywhere.
    #[test]
    fn nothing_is_written_where_git_does_not_name_this_work_tree() {
        let scratch = tempfile::tempdir().expect("scratch");
        let (tree, own) = linked(scratch.path());
        let other = scratch.path().join("other");
        fs::create_dir(&other).expect("other");
        fs::copy(tree.join(".git"), other.join(".git")).expect("a copied link");
        lock_while(&other, || true).expect("left alone");
        fs::remove_file(own.join("gitdir")).expect("as in a submodule");
        lock_while(&tree, || true).expect("left alone");
        assert!(!own.join("locked").exists());
    }
}
