//! One project to ask about, with its view and the way it is mounted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Requests;
use crate::overlay::{Overlay, RuleSource};
use crate::protocol::{ErrorBody, ErrorCode};
use crate::sys::mount::{Device, mount_on};

pub struct Project {
    pub overlay: Arc<Overlay>,
    /// An absolute path. Below a covering mount it is only a name and never followed.
    pub path: PathBuf,
    /// Where `reload` reads settings and rules again.
    pub source: RuleSource,
    /// The user who mounted it; without a mount, the owner of the state directory.
    pub owner: u32,
    /// `None` if a command works on the state directory under the lock, without a mount.
    pub mounted: Option<Mounted>,
}

pub struct Mounted {
    /// Where programs find the view. If it covers the project only in some namespaces, this holds in those.
    pub mountpoint: PathBuf,
    /// Of the view's file system; unset until it is mounted.
    pub number: OnceLock<Device>,
    /// For a view that only runs see: the process that keeps its mount namespace.
    pub keeper: Option<u32>,
    /// Asks the daemon to end, and returns at once. Called once the answer to `unmount` has been delivered.
    pub ask_end: Arc<dyn Fn() + Send + Sync>,
    pub requests: Arc<Requests>,
}

/// What somebody else has mounted over the view `number`, or in it, is not ours to take away with it.
pub fn check_nothing_over(path: &Path, number: Device) -> Result<(), ErrorBody> {
    let place = path.display();
    let over = mount_on(number);
    match over.map_err(|err| ErrorBody::new(ErrorCode::Io, format!("look for a mount on {place}: {err}")))? {
        Some(over) => {
            let how = if over.mountpoint == path { "over" } else { "in" };
            let (what, at) = (over.fs_type.display(), over.mountpoint.display());
            let message = format!("{what} is mounted {how} the view on {at}: umount it first");
            Err(ErrorBody::new(ErrorCode::Busy, message))
        }
        None => Ok(()),
    }
}
