//! Other places at which a directory stands: its file system may be mounted more than once, and parts of it bound
//! elsewhere.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::FS_TYPE;
use super::table::{MountEntry, mount_id, mounts, origin};

/// A place, outside a directory, at which that or something in it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    pub place: PathBuf,
    /// What stands there, as a path in the directory; empty for the directory itself.
    pub within: PathBuf,
}

/// Returns the aliases of what lies below all views at a path without links.
pub fn aliases(directory: &Path) -> io::Result<Vec<Alias>> {
    let others: Vec<_> = mounts()?.into_iter().filter(|mount| mount.fs_type != FS_TYPE).collect();
    let Some((device, below)) = origin(directory, &others) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for mount in others.iter().filter(|mount| mount.device == device) {
        let alias = match (below.strip_prefix(&mount.root), mount.root.strip_prefix(&below)) {
            (Ok(rest), _) => Alias { place: beyond(&mount.mountpoint, rest), within: PathBuf::new() },
            (_, Ok(within)) => Alias { place: mount.mountpoint.clone(), within: within.to_owned() },
            (Err(_), Err(_)) => continue,
        };
        if !alias.place.starts_with(directory) && leads_into(&alias.place, mount)? {
            found.push(alias);
        }
    }
    Ok(found)
}

/// A path in another, without the slash at the end that an empty one would leave.
fn beyond(path: &Path, rest: &Path) -> PathBuf {
    path.join(rest).components().collect()
}

/// True if a path is to be found in this very mount, and not in one that covers it.
fn leads_into(path: &Path, mount: &MountEntry) -> io::Result<bool> {
    match rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(place) => Ok(mount_id(&place)? == mount.id),
        // Who may not go there cannot write there either.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
