//! Checks that a file system can rename as landings do: exchange two names in one step, and take a name only while it is
//! free. Some cannot (NFS, mergerfs), and say so only at the first attempt.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs;

use super::layout::{DIR_FLAGS, Location, TEMP_PREFIX};
use crate::store::journal::landing::random_suffix;
use crate::store::{Context, Result, STATE_DIR_NAME};
use crate::sys::tree::{Place, Tree};
use crate::sys::{Mode, OFlags, RenameFlags};

/// Refuses a project in which nothing could land. Tried in its own state directory, if it has one: no one looks there.
pub fn check_renames(lower: &Tree, location: &Location) -> Result<()> {
    let inside = fs::openat(lower.root(), STATE_DIR_NAME, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty());
    match (inside, &location.state) {
        (Ok(inside), None) => check_in(inside.as_fd(), "the project"),
        (Ok(_) | Err(_), _) => check_in(lower.root(), "the project"),
    }
}

pub(super) fn check_in(dir: BorrowedFd<'_>, what: &str) -> Result<()> {
    let tried = dir.try_clone_to_owned().and_then(|dir| try_in(dir.into()));
    match tried {
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {
            let reason = "its file system knows none by which two names change places (renameat2 with flags): nothing could land";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason)).doing(|| format!("try renames in {what}"))
        }
        // Any other obstacle is one for a landing, too, which reports it.
        Ok(()) | Err(_) => Ok(()),
    }
}

fn try_in(dir: Arc<OwnedFd>) -> io::Result<()> {
    let [one, other] = [(); 2].map(|()| {
        let name = format!("{TEMP_PREFIX}{}", random_suffix());
        Place { dir: Arc::clone(&dir), name: name.into() }
    });
    let tried = one
        .create(OFlags::WRONLY, Mode::RUSR)
        .and_then(|_| other.create(OFlags::WRONLY, Mode::RUSR))
        .and_then(|_| one.rename(&other, RenameFlags::EXCHANGE))
        .and_then(|()| other.remove())
        .and_then(|()| one.rename(&other, RenameFlags::NOREPLACE));
    let removed = one.remove().and(other.remove());
    tried.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::steps::{Calls, Ended, Fate, Steps, Trap, apart, assert_passes_apart};

    const APART: &str = "FETTLE_RENAMES_WITHOUT_FLAGS";
    /// Two names are made first, and one goes between the two renames.
    const RENAMES: [u64; 2] = [3, 5];

    #[test]
    fn a_project_whose_names_cannot_change_places_is_refused() {
        assert_passes_apart("store::disk::renames::tests::one_that_knows_no_such_renames", (APART, "1"));
    }

    /// Not a test by itself: what the test above starts in a process of its own.
    #[test]
    fn one_that_knows_no_such_renames() {
        let Some(_) = std::env::var_os(APART) else { return };
        let scratch = tempfile::tempdir().unwrap();
        let lower = Tree::open(scratch.path()).unwrap();
        let elsewhere = Location { state: Some(scratch.path().join("state")), ..Location::default() };
        let is_refused = |at: u64, errno: i32| {
            let ended = apart(|| {
                let trap = Trap::below(scratch.path().to_owned(), Calls::Changing, at, Fate::Fails(errno));
                let _steps = Steps::watch(trap).unwrap();
                let checked = check_renames(&lower, &elsewhere);
                let is_told = |told: String| told.contains("in the project") && told.contains("renameat2");
                match checked {
                    Ok(()) => 0,
                    Err(err) => 1 + u8::from(!is_told(err.to_string())),
                }
            });
            assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "step {at}: nothing is left");
            ended.unwrap()
        };
        for at in RENAMES {
            assert_eq!(is_refused(at, libc::EINVAL), Ended::Exited(1));
            assert_eq!(is_refused(at, libc::ENOSPC), Ended::Exited(0), "what is not about renames a landing tells");
        }
        assert_eq!(is_refused(100, libc::EINVAL), Ended::Exited(0));
    }
}
