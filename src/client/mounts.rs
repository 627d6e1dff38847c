//! The mounts of fettlefs that this process can see.

use super::{ClientError, place::io_error};
use crate::sys::mount::{self, FS_TYPE, MountEntry};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The mounts of fettlefs, parents before children. Their sources are the projects' paths.
pub fn fettle_mounts() -> Result<Vec<MountEntry>, ClientError> {
    let mounts =
        mount::mounts().map_err(|cause| io_error("read the mount table of", Path::new("this process"), cause))?;
    Ok(mounts.into_iter().filter(|mount| mount.fs_type == FS_TYPE).collect())
}

/// The mountpoint that `directory` lies in, as far as the mount table tells; else the directory itself.
pub(super) fn mountpoint_of(directory: &Path) -> PathBuf {
    let mounts = fettle_mounts().unwrap_or_default();
    let around = mounts.into_iter().map(|mount| mount.mountpoint).filter(|point| directory.starts_with(point));
    around.max_by_key(|point| OsStr::len(point.as_os_str())).unwrap_or_else(|| directory.to_owned())
}
