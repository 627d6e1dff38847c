//! A file's looks: owner, mode and extended attributes, given to another.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, Mode, XattrFlags};

use super::{FileKind, Meta, SET_ID, set_times, to_timespec};
use crate::model::{Acl, Looks, Timestamp};
use crate::sys::xattr;

/// Works on `O_PATH` descriptors too, which `fchmod` refuses.
pub fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    match fs::fchmod(fd, mode) {
        Err(rustix::io::Errno::BADF) => Ok(fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)?),
        other => Ok(other?),
    }
}

/// Works on `O_PATH` descriptors too, symlinks included.
pub fn set_owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    Ok(fs::chownat(fd, c"", uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw), fs::AtFlags::EMPTY_PATH)?)
}

/// Gives what was made in a directory to whoever the directory belongs to: root works in a user's project, too. An ordinary
/// user cannot give files away, and keeps it. By descriptor, since whoever may write there may change what a name leads to.
pub fn give_to_owner_of(dir: BorrowedFd<'_>, made: BorrowedFd<'_>) -> io::Result<()> {
    let owner = Meta::of(dir)?;
    unless_refused(set_owner(made, Some(owner.uid), Some(owner.gid)))
}

/// Gives `to` the owner, mode, extended attributes (ACLs among them) and times of `from`.
/// What the caller may not give (another owner, a `trusted` attribute) is left out, as `cp -p` does.
pub fn copy_metadata(from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    copy_looks(from, meta, to)?;
    give_times(to, meta.atime, meta.mtime)
}

/// Which of its looks a file has of its own. They stay when it gets the looks of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OwnLooks {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mode: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owner: bool,
    /// Names of extended attributes, including those that it is not to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<Vec<u8>>,
}

impl OwnLooks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the values, from a file that looks like `meta`. Without a descriptor, as for a symlink, there are no
    /// attributes.
    pub fn values(&self, file: Option<BorrowedFd<'_>>, meta: &Meta) -> io::Result<Looks> {
        let mut xattrs = Vec::new();
        for (name, file) in self.xattrs.iter().filter_map(|name| Some((name, file?))) {
            xattrs.push((name.clone(), xattr::find(file, OsStr::from_bytes(name))?));
        }
        xattrs.sort();
        Ok(Looks { mode: self.mode.then_some(meta.mode), owner: self.owner.then_some((meta.uid, meta.gid)), xattrs })
    }

    /// Adds the looks of `other`.
    pub fn add(&mut self, other: &Self) {
        self.mode |= other.mode;
        self.owner |= other.owner;
        let more = other.xattrs.iter().filter(|name| !self.xattrs.contains(name));
        self.xattrs.extend(more.cloned().collect::<Vec<_>>());
    }

    /// Keeps only what `other` has too.
    pub fn and(mut self, other: &Self) -> Self {
        self.mode &= other.mode;
        self.owner &= other.owner;
        self.xattrs.retain(|name| other.xattrs.contains(name));
        self
    }
}

/// Copies owner, attributes and mode. A file made a moment ago mostly has them already, and each call that sets them
/// changes the inode.
pub fn copy_looks(from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    copy_looks_but(&OwnLooks::default(), from, meta, to)
}

/// The same, except for what `to` has of its own.
pub fn copy_looks_but(own: &OwnLooks, from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    let now = Meta::of(to)?;
    let owner = if own.owner { false } else { give_owner(meta, &now, to)? };
    let changed = owner | xattr::copy(from, to, &own.xattrs)?;
    let mode = if own.mode { now.mode } else { meta.mode };
    // Last: a change of owner clears set-id bits, and an ACL changes the bits of the group.
    if changed || now.mode != mode { give_mode(to, mode) } else { Ok(()) }
}

/// Gives a file these looks instead of its own.
pub fn give_looks(looks: &Looks, to: BorrowedFd<'_>) -> io::Result<()> {
    for (name, value) in &looks.xattrs {
        let name = OsStr::from_bytes(name);
        match value {
            Some(value) => xattr::set(to, name, value, XattrFlags::empty())?,
            None if xattr::find(to, name)?.is_some() => xattr::remove(to, name)?,
            None => {}
        }
    }
    if let Some((uid, gid)) = looks.owner {
        set_owner(to, Some(uid), Some(gid))?;
    }
    // Last: an ACL changes the mode, and a change of owner clears set-id bits. The mode of a symlink cannot be changed.
    match looks.mode {
        Some(mode) if Meta::of(to)?.kind != FileKind::Symlink => set_mode(to, mode),
        Some(_) | None => Ok(()),
    }
}

/// Sets the mode where that is permitted: only the owner may. Anyone else who can write to the file leaves its mode as it
/// is.
pub fn give_mode(to: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    unless_refused(set_mode(to, mode))
}

/// Clears the set-id bits of a file with this mode, where that is permitted.
pub fn clear_set_id(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    if mode & SET_ID == 0 { Ok(()) } else { give_mode(file, mode & !SET_ID) }
}

/// Sets times, where that is permitted. Where it is refused, the file keeps the times of its writing.
pub fn give_times(to: BorrowedFd<'_>, access: Timestamp, modification: Timestamp) -> io::Result<()> {
    unless_refused(set_times(to, to_timespec(access), to_timespec(modification)))
}

/// Takes what the kernel does not permit for done.
pub fn unless_refused(given: io::Result<()>) -> io::Result<()> {
    match given {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// Gives a file its owner. An unprivileged daemon cannot give files away; the file then gets the group if possible, and
/// keeps the daemon's uid.
pub fn copy_owner(meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    give_owner(meta, &Meta::of(to)?, to).map(|_| ())
}

/// The same for a file whose metadata is `now`. Returns whether there was anything to change.
fn give_owner(meta: &Meta, now: &Meta, to: BorrowedFd<'_>) -> io::Result<bool> {
    if (now.uid, now.gid) == (meta.uid, meta.gid) {
        return Ok(false);
    }
    let given = match set_owner(to, Some(meta.uid), Some(meta.gid)) {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => unless_refused(set_owner(to, None, Some(meta.gid))),
        other => other,
    };
    given.map(|()| true)
}

/// Returns the access list of an open file; `None` if it has no list or its file system knows none. A list that cannot be
/// parsed is an error.
pub fn acl_of(fd: BorrowedFd<'_>) -> io::Result<Option<Acl>> {
    let value = match xattr::find(fd, OsStr::new(xattr::ACCESS_ACL)) {
        Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
        value => value?,
    };
    value.map(|value| Acl::parse(&value).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))).transpose()
}

/// The result of [`acl_of`], to be kept.
#[derive(Clone, Debug)]
pub enum Listed {
    /// There is no list: the mode says everything.
    Nobody,
    These(Acl),
    /// The list cannot be read, or is not understood.
    Unknown,
}

impl Listed {
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        match acl_of(fd) {
            Ok(None) => Self::Nobody,
            Ok(Some(list)) => Self::These(list),
            Err(_) => Self::Unknown,
        }
    }

    /// What the list allows the owning group. Where there is a list, the group's bits of the mode are its mask.
    pub fn masked_group(&self) -> Option<u32> {
        match self {
            Self::These(list) => list.masked_group(),
            Self::Nobody | Self::Unknown => None,
        }
    }

    /// True if the list may keep out a user whom the mode alone would let in.
    pub fn may_keep_out(&self) -> bool {
        !matches!(self, Self::Nobody)
    }
}

/// True if a mode gives the group any right. Where it does not, no list does either, and none need be read.
pub fn gives_group(mode: u32) -> bool {
    mode & 0o070 != 0
}

/// [`Listed::masked_group`] of a file whose list is needed for nothing else.
pub fn masked_group(file: &File, mode: u32) -> Option<u32> {
    gives_group(mode).then(|| Listed::of(file.as_fd()).masked_group()).flatten()
}

/// Returns the mode for a file with the list of `like`, if any, when `mode` is that of a file whose list allowed its
/// group `group`: without a list the group's bits are its rights, not a mask.
pub fn mode_beside_list(mode: u32, group: Option<u32>, like: Option<&File>) -> io::Result<u32> {
    let Some(group) = group else { return Ok(mode) };
    let list = like.map(|like| xattr::find(like.as_fd(), OsStr::new(xattr::ACCESS_ACL))).transpose()?;
    Ok(if list.flatten().is_some() { mode } else { mode & !0o070 | group << 3 })
}
