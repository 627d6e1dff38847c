//! The mounts of fettlefs that this process can see, and the projects of mounts that only other processes can.

use super::{ClientError, place::io_error};
use crate::model::shell_word;
use crate::protocol::STATE_DIRECTORY;
use crate::sys::mount::{self, FS_TYPE, MountEntry, is_death};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// Returns the mounts of fettlefs that no other covers, parents before children. Their sources are the projects' paths.
pub fn fettle_mounts() -> Result<Vec<MountEntry>, ClientError> {
    let mounts =
        mount::mounts().map_err(|cause| io_error("read the mount table of", Path::new("this process"), cause))?;
    let ours: Vec<_> = mounts.into_iter().filter(|mount| mount.fs_type == FS_TYPE).collect();
    let covers = |one: &MountEntry, other: &MountEntry| one.parent == other.id && one.mountpoint == other.mountpoint;
    Ok(ours.iter().filter(|mount| !ours.iter().any(|other| covers(other, mount))).cloned().collect())
}

/// Returns the view whose root a directory is, from the mount table: programs can make what looks like a view.
pub(super) fn view_at(root: &Path) -> Result<Option<MountEntry>, ClientError> {
    Ok(fettle_mounts()?.into_iter().find(|mount| is_root_of(mount, root)))
}

/// True if a mount shows the root of a view at a directory, not a part of it by a bind mount.
pub(super) fn is_root_of(mount: &MountEntry, directory: &Path) -> bool {
    mount.mountpoint == directory && mount.root == Path::new("/")
}

/// Returns the project of the view whose root a directory is.
pub(super) fn project_of(root: &Path) -> Result<Option<PathBuf>, ClientError> {
    Ok(view_at(root)?.map(|view| view.source.into()))
}

/// Returns the projects that have a view in another mount namespace: those of runs.
pub fn projects_elsewhere() -> Result<BTreeSet<PathBuf>, ClientError> {
    let mounts = mount::mounts_elsewhere()
        .map_err(|cause| io_error("read the mount tables of", Path::new("other processes"), cause))?;
    Ok(mounts.into_iter().filter(|mount| mount.fs_type == FS_TYPE).map(|mount| mount.source.into()).collect())
}

/// A mount whose daemon is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMount {
    pub mountpoint: PathBuf,
    /// What to mount again; not always the mountpoint.
    pub project: PathBuf,
}

impl fmt::Display for DeadMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the mount on {} is dead (its daemon is gone)", self.mountpoint.display())
    }
}

impl DeadMount {
    /// Returns the dead mount at a directory or around it.
    pub fn found_at(directory: &Path) -> Option<Self> {
        // Looks for a name that only the view has, so that no cache can answer.
        let looked_at = std::fs::symlink_metadata(directory.join(STATE_DIRECTORY));
        looked_at.is_err_and(|err| is_death(&err)).then(|| Self::around(directory))
    }

    /// The remedy, valid in any working directory.
    pub fn remedy(&self) -> String {
        let [project, mountpoint] = [&self.project, &self.mountpoint].map(|path| shell_word(&path.to_string_lossy()));
        format!("`fettlefs mount {project}` recovers it, `fettlefs unmount {mountpoint}` detaches it")
    }

    /// Returns the mount around `directory` by the mount table, or the directory itself if there is none.
    pub(super) fn around(directory: &Path) -> Self {
        let mounts = fettle_mounts().unwrap_or_default();
        let around = mounts.into_iter().filter(|mount| directory.starts_with(&mount.mountpoint));
        match around.max_by_key(|mount| OsStr::len(mount.mountpoint.as_os_str())) {
            Some(mount) => Self { mountpoint: mount.mountpoint, project: mount.source.into() },
            None => Self { mountpoint: directory.to_owned(), project: directory.to_owned() },
        }
    }
}
