//! Keeps `git worktree remove` from a linked work tree with held changes, by the lock that `git worktree lock` makes. What
//! is held is in no file that git looks at, and the state directory would go with the work tree.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use super::{DIRECTORY, own_directory, read_line};
use crate::sys::file;

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
    let mut made = match OpenOptions::new().write(true).create_new(true).open(own.join("locked")) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    };
    file::give_to_owner_of(rustix::fs::open(own, DIRECTORY, Mode::empty())?.as_fd(), made.as_fd())?;
    made.write_all(REASON.as_bytes())
}

fn unlock(own: &Path) -> io::Result<()> {
    let lock = own.join("locked");
    match read_line(&lock) {
        Ok(reason) if reason == REASON.as_bytes() => std::fs::remove_file(lock),
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
