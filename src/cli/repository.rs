//! What git is told of a project in a repository: to ignore the state directory, and to keep a linked work tree while it
//! has held changes. Git knows nothing of either and would take the work tree for clean.

mod exclude;
mod worktree;

use std::ffi::OsStr;
use std::fs::FileType;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, OFlags};

use crate::model::RelPath;
use crate::overlay::Overlay;
use crate::protocol::STATE_DIRECTORY;
use crate::sys::file;
use crate::sys::mount::is_death;

/// A `.git` file is one line.
const LINK_BYTES_MAX: u64 = 8 << 10;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Brings up to date what git is told. `is_mounted`: changes may come to be held at any moment.
pub fn tell(project: &Path, overlay: &Overlay, is_mounted: bool) {
    log_failure("tell git to ignore the state directory", exclude_state(project, overlay));
    let is_needed = || is_mounted || !overlay.held_rows().is_empty() || !overlay.unjudged().is_empty();
    log_failure("tell git to keep the work tree", worktree::lock_while(project, is_needed));
}

fn log_failure(doing: &str, told: io::Result<()>) {
    match told {
        // The project lies under a dead mount, and the daemon of that mount has told git already.
        Err(err) if is_death(&err) => {}
        Err(err) => log::warn!("{doing}: {err}"),
        Ok(()) => {}
    }
}

/// Without the line `git add -A` would fail over the state directory, which looks like a repository without commits.
fn exclude_state(project: &Path, overlay: &Overlay) -> io::Result<()> {
    if project.join(STATE_DIRECTORY).exists() && exclude::add_line(project)? {
        // Who confirms the agent's version of the file must not find it changed by others.
        overlay.rebase_on_own(&RelPath::parse(b".git/info/exclude").expect("a path"));
    }
    Ok(())
}

fn is_there(directory: &OwnedFd, name: &str) -> bool {
    rustix::fs::accessat(directory.as_fd(), name, Access::EXISTS, AtFlags::empty()).is_ok()
}

/// Returns the directory that a repository's work trees share (gitrepository-layout(5)), if `project` is in a repository.
fn common_directory(project: &Path) -> io::Result<Option<PathBuf>> {
    match work_tree_around(project)? {
        Some((work_tree, kind)) if kind.is_file() => shared_directory(work_tree),
        Some((work_tree, _)) => Ok(Some(work_tree.join(".git"))),
        None => Ok(None),
    }
}

/// The work tree of a repository in which the project is only a directory.
pub fn above(project: &Path) -> io::Result<Option<&Path>> {
    Ok(work_tree_around(project)?.map(|(work_tree, _)| work_tree).filter(|work_tree| *work_tree != project))
}

/// The nearest directory with a `.git`, which is a directory or a file.
fn work_tree_around(project: &Path) -> io::Result<Option<(&Path, FileType)>> {
    for directory in project.ancestors() {
        match std::fs::symlink_metadata(directory.join(".git")) {
            Ok(metadata) if metadata.is_dir() || metadata.is_file() => {
                return Ok(Some((directory, metadata.file_type())));
            }
            Ok(_) => {}
            Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(None)
}

/// In a work tree's own directory the file `commondir` names the shared one. That of a submodule is shared with nobody.
fn shared_directory(work_tree: &Path) -> io::Result<Option<PathBuf>> {
    let Some(own) = own_directory(work_tree)? else { return Ok(None) };
    match read_line(&own.join("commondir")) {
        Ok(common) => Ok(Some(own.join(OsStr::from_bytes(&common)))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Some(own)),
        Err(err) => Err(err),
    }
}

/// The directory that the `.git` file of a linked work tree or submodule names: `gitdir: PATH`.
fn own_directory(work_tree: &Path) -> io::Result<Option<PathBuf>> {
    let text = read_line(&work_tree.join(".git"))?;
    Ok(text.strip_prefix(b"gitdir: ").map(|target| work_tree.join(OsStr::from_bytes(target))))
}

fn read_line(path: &Path) -> io::Result<Vec<u8>> {
    Ok(file::read_named(path, LINK_BYTES_MAX)?.trim_ascii_end().to_vec())
}
