//! The owner of a new entry, and what it takes over from its directory: group, set-group-id bit, default ACL.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::XattrFlags;

use crate::model::{Acl, Inherited, RelPath, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta, SET_GID, SET_ID};
use crate::sys::tree::Place;
use crate::sys::xattr::{self, ACCESS_ACL, DEFAULT_ACL};

/// How long after its birth a file may have changed and still count as just made; each rename changes it.
const NEW_SECONDS_MAX: i64 = 10;

/// Owner, mode and ACL of an entry about to be made.
#[derive(Debug)]
pub(in crate::overlay) struct Heritage {
    uid: u32,
    gid: u32,
    pub mode: u32,
    acl: Option<Acl>,
    /// What a new directory hands down in its turn.
    default: Option<Acl>,
}

impl Overlay {
    /// Returns what an entry that `caller` makes at `path` with `mode` begins with; `EPERM` if that needs a grant.
    pub(in crate::overlay) fn heritage(
        &self,
        path: &RelPath,
        kind: FileKind,
        mode: u32,
        caller: &Caller,
    ) -> Result<Heritage> {
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
    /// For an entry just made in its directory in lower, which has already handed down the ACL.
    pub fn give_made(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        self.give_itself(open_made(place, kind)?.as_fd(), kind)
    }

    /// Through a descriptor that only refers to the entry: a FIFO, socket or device must not be opened, and its name may
    /// lead to another entry by now.
    fn give_itself(&self, fd: BorrowedFd<'_>, kind: FileKind) -> std::io::Result<()> {
        self.give(|| file::set_owner(fd, Some(self.uid), Some(self.gid)))?;
        match kind {
            FileKind::Symlink => Ok(()),
            // Last, because a change of owner clears set-id bits.
            _ => file::set_mode(fd, self.mode),
        }
    }

    /// The same for a file that is open.
    pub fn give_opened(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        let made = Meta::of(fd)?;
        let is_whose = (made.uid, made.gid) == (self.uid, self.gid);
        if !is_whose {
            self.give(|| file::set_owner(fd, Some(self.uid), Some(self.gid)))?;
        }
        if is_whose && made.mode == self.mode { Ok(()) } else { file::set_mode(fd, self.mode) }
    }

    /// For a file made elsewhere, which then comes to stand in that directory.
    pub fn give_upper(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.give_lists(fd)?;
        self.give_opened(fd)
    }

    /// The same for a node that is not open.
    pub fn give_upper_node(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        self.give_all(place.open(OFlags::PATH)?.as_fd(), kind)
    }

    /// For a directory that lower has kept all the time, and that a program makes anew.
    pub fn give_anew(&self, place: &Place, kind: FileKind) -> std::io::Result<()> {
        let made = place.open(OFlags::PATH)?;
        xattr::clear(made.as_fd())?;
        self.give_all(made.as_fd(), kind)
    }

    fn give_all(&self, fd: BorrowedFd<'_>, kind: FileKind) -> std::io::Result<()> {
        self.give_lists(fd)?;
        self.give_itself(fd, kind)
    }

    fn give_lists(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        for (name, acl) in [(ACCESS_ACL, &self.acl), (DEFAULT_ACL, &self.default)] {
            if let Some(acl) = acl {
                xattr::set(fd, OsStr::new(name), &acl.to_bytes(), XattrFlags::empty())?;
            }
        }
        Ok(())
    }

    /// An unprivileged daemon serves only its own user, whose files need no change of owner.
    fn give(&self, set_owner: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        match set_owner() {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) && rustix::process::geteuid().as_raw() == self.uid => {
                Ok(())
            }
            other => other,
        }
    }
}

/// Opens what was just made under a name, but nothing that someone has put there since: that would be given away. Where
/// no birth times are told, only kind and links show the difference.
fn open_made(place: &Place, kind: FileKind) -> std::io::Result<OwnedFd> {
    let made = place.open(OFlags::PATH)?;
    let meta = Meta::of(made.as_fd())?;
    let is_young = meta.btime == Timestamp::default() || meta.ctime.seconds - meta.btime.seconds <= NEW_SECONDS_MAX;
    let links_max = if kind == FileKind::Directory { 2 } else { 1 };
    match meta.kind == kind && meta.links <= links_max && is_young {
        true => Ok(made),
        false => Err(std::io::Error::from_raw_os_error(libc::ESTALE)),
    }
}

/// Returns the ACL that new entries of a directory begin with; `None` if it has none, or if lower has no ACLs.
fn default_acl(dir: BorrowedFd<'_>) -> std::io::Result<Option<Acl>> {
    match xattr::get(dir, OsStr::new(DEFAULT_ACL)) {
        Ok(value) => Ok(Acl::parse(&value)),
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Mode;
    use crate::sys::tree::Tree;

    #[test]
    fn what_is_given_is_what_was_made_under_the_name() {
        let scratch = tempfile::tempdir().unwrap();
        let lower = Tree::open(scratch.path()).unwrap();
        let place = |name: &str| lower.place(&RelPath::parse(name.as_bytes()).unwrap()).unwrap();
        place("made").make_node(FileKind::Fifo, Mode::RWXU, 0).unwrap();
        assert!(open_made(&place("made"), FileKind::Fifo).is_ok());
        let code = |place: &Place, kind| open_made(place, kind).unwrap_err().raw_os_error();
        assert_eq!(code(&place("made"), FileKind::Directory), Some(libc::ESTALE));
        place("made").link(&place("known")).unwrap();
        assert_eq!(code(&place("made"), FileKind::Fifo), Some(libc::ESTALE));
    }
}
