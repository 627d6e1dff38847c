//! Whose a new entry is, and what it takes over from its directory: group, set-group-id bit, default ACL.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::XattrFlags;

use super::error::Context;
use super::{Caller, Error, Overlay, Result};
use crate::model::{Acl, Inherited, RelPath};
use crate::policy::rules::Action;
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta, SET_GID, SET_ID};
use crate::sys::tree::Place;
use crate::sys::xattr::{self, ACCESS_ACL, DEFAULT_ACL};

/// Owner, mode and ACL of an entry about to be made.
#[derive(Debug)]
pub(super) struct Heritage {
    uid: u32,
    gid: u32,
    pub mode: u32,
    acl: Option<Acl>,
    /// What a directory hands down in its turn.
    default: Option<Acl>,
}

impl Overlay {
    /// What an entry that `caller` makes at `path` with `mode` begins with; `EPERM` where that needs a grant.
    pub(super) fn heritage(&self, path: &RelPath, kind: FileKind, mode: u32, caller: &Caller) -> Result<Heritage> {
        let doing = || format!("look at the directory of {path}");
        let dir = self.dir_in_view(&path.parent().unwrap_or_default())?;
        let dir_meta = Meta::of(dir.as_fd()).doing(doing)?;
        let hands_group_down = dir_meta.mode & SET_GID != 0;
        let gid = if hands_group_down { dir_meta.gid } else { caller.gid };
        if kind == FileKind::Symlink {
            return Ok(Heritage { uid: caller.uid, gid, mode: 0o777, acl: None, default: None });
        }
        let mode = mode & 0o7777;
        let default = default_acl(dir.as_fd()).doing(doing)?;
        let Inherited { mode, access } = match &default {
            Some(acl) => acl.inherited(mode),
            None => Inherited { mode: mode & !caller.umask, access: None },
        };
        self.check_new_mode(path, kind, mode)?;
        let mode = if hands_group_down && kind == FileKind::Directory { mode | SET_GID } else { mode };
        let default = default.filter(|_| kind == FileKind::Directory);
        Ok(Heritage { uid: caller.uid, gid, mode, acl: access, default })
    }

    fn check_new_mode(&self, path: &RelPath, kind: FileKind, mode: u32) -> Result<()> {
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let gated =
            (mode & SET_ID != 0 && kind != FileKind::Directory && !self.grants.suid) || (is_device && !self.grants.dev);
        match gated && self.action(path, kind) != Action::Pass {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(()),
        }
    }
}

impl Heritage {
    /// For what was made in its directory in lower, which has handed down the ACL itself.
    pub fn give_below(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        self.give(|| place.set_owner(Some(self.uid), Some(self.gid)))?;
        match kind {
            FileKind::Symlink => Ok(()),
            // Last: a change of owner takes set-id bits away.
            _ => place.set_mode(self.mode),
        }
    }

    /// The same, by descriptor.
    pub fn give_opened(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        let made = Meta::of(fd)?;
        let is_whose = (made.uid, made.gid) == (self.uid, self.gid);
        if !is_whose {
            self.give(|| file::set_owner(fd, Some(self.uid), Some(self.gid)))?;
        }
        if is_whose && made.mode == self.mode { Ok(()) } else { file::set_mode(fd, self.mode) }
    }

    /// For what was made elsewhere and comes to stand in that directory.
    pub fn give_upper(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.give_lists(fd)?;
        self.give_opened(fd)
    }

    /// The same by name: a FIFO, socket or device is not opened.
    pub fn give_upper_node(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        self.give_lists(place.open(OFlags::PATH)?.as_fd())?;
        self.give_below(place, kind)
    }

    /// For what has stood in that directory before, and is made anew.
    pub fn give_anew(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        xattr::clear(place.open(OFlags::PATH)?.as_fd())?;
        self.give_upper_node(place, kind)
    }

    fn give_lists(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        for (name, acl) in [(ACCESS_ACL, &self.acl), (DEFAULT_ACL, &self.default)] {
            if let Some(acl) = acl {
                xattr::set(fd, OsStr::new(name), &acl.to_bytes(), XattrFlags::empty())?;
            }
        }
        Ok(())
    }

    /// An unprivileged daemon serves only its own user, whose files need no giving.
    fn give(&self, set_owner: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        match set_owner() {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) && rustix::process::geteuid().as_raw() == self.uid => {
                Ok(())
            }
            other => other,
        }
    }
}

/// The list that a directory's new entries begin with; none where there is none, or where lower knows no lists.
fn default_acl(dir: BorrowedFd<'_>) -> std::io::Result<Option<Acl>> {
    match xattr::get(dir, OsStr::new(DEFAULT_ACL)) {
        Ok(value) => Ok(Acl::parse(&value)),
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        Err(err) => Err(err),
    }
}
