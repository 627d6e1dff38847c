//! Extended attributes of what a descriptor stands for, `O_PATH` descriptors of symlinks included.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{self, XattrFlags};

/// The access control list of a file or directory, and the one that a directory hands down.
pub const ACCESS_ACL: &str = "system.posix_acl_access";
pub const DEFAULT_ACL: &str = "system.posix_acl_default";

/// The rights of those who run a file.
pub const CAPABILITY: &str = "security.capability";

/// The two lists in the words of xfs, which lists each twice for root. Copying both names from one file to another would
/// leave it with whichever came last.
const XFS_ACLS: [&str; 2] = ["trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT"];

/// The largest value and list Linux knows (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Nearly all values fit, and the kernel asks for one at each write.
const VALUE_BYTES_USUAL: usize = 256;

/// The path by which the kernel reaches an open file again. `l…xattr` on it would act on the magic link itself, so the
/// calls that follow links are used; they end at the file, be it a symlink.
fn itself(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub fn get(fd: BorrowedFd<'_>, name: &OsStr) -> io::Result<Vec<u8>> {
    let ask = |room: usize| {
        let mut value = vec![0; room];
        let length = match fs::fgetxattr(fd, name, &mut value[..]) {
            // An `O_PATH` descriptor.
            Err(rustix::io::Errno::BADF) => fs::getxattr(itself(fd), name, &mut value[..])?,
            other => other?,
        };
        value.truncate(length);
        Ok(value)
    };
    match ask(VALUE_BYTES_USUAL) {
        Err(rustix::io::Errno::RANGE) => Ok(ask(VALUE_BYTES_MAX)?),
        other => Ok(other?),
    }
}

pub fn set(fd: BorrowedFd<'_>, name: &OsStr, value: &[u8], flags: XattrFlags) -> io::Result<()> {
    Ok(fs::setxattr(itself(fd), name, value, flags)?)
}

/// Like [`get`]; `None` if there is no such attribute.
pub fn find(fd: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    match get(fd, name) {
        Err(err) if err.raw_os_error() == Some(libc::ENODATA) => Ok(None),
        found => found.map(Some),
    }
}

pub fn remove(fd: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    Ok(fs::removexattr(itself(fd), name)?)
}

/// The names, one for each attribute; none on a file system without attributes.
pub fn list(fd: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let ask = |room: usize| {
        let mut names = vec![0u8; room];
        let length = match fs::flistxattr(fd, &mut names[..]) {
            // An `O_PATH` descriptor.
            Err(rustix::io::Errno::BADF) => fs::listxattr(itself(fd), &mut names[..]),
            other => other,
        };
        length.map(|length| {
            names.truncate(length);
            names
        })
    };
    let names = match ask(VALUE_BYTES_USUAL) {
        Err(rustix::io::Errno::RANGE) => ask(VALUE_BYTES_MAX)?,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let split = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let split = split.filter(|name| XFS_ACLS.iter().all(|again| again.as_bytes() != *name));
    Ok(split.map(|name| OsString::from_vec(name.to_vec())).collect())
}

/// Gives `to` every attribute of `from` that it may have, and removes those set by programs that `from` lacks, including
/// an ACL inherited from the directory. Capabilities are dropped by any write, so they are never copied; what this
/// process may not set (`trusted.*` and `security.*` without privilege) is left out. Those that are `spared` stay as `to`
/// has them. Returns whether either file had any.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, spared: &[Vec<u8>]) -> io::Result<bool> {
    let wanted = list(from)?;
    let is_spared = |name: &OsString| spared.iter().any(|spared| spared == name.as_bytes());
    let had = list(to)?;
    let any = !(wanted.is_empty() && had.is_empty());
    let extra =
        had.into_iter().filter(|name| is_programs(name)).filter(|name| !wanted.contains(name) && !is_spared(name));
    extra.into_iter().try_for_each(|name| remove(to, &name))?;
    let wanted = wanted.into_iter().filter(|name| name.as_os_str() != CAPABILITY && !is_spared(name));
    for name in wanted {
        let value = get(from, &name)?;
        match set(to, &name, &value, XattrFlags::empty()) {
            Err(err) if matches!(err.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {}
            other => other?,
        }
    }
    Ok(any)
}

/// What programs can give to files, where the file system allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gift {
    Attributes,
    AccessLists,
}

impl Gift {
    pub const ALL: [Self; 2] = [Self::Attributes, Self::AccessLists];

    pub fn words(self) -> &'static str {
        match self {
            Self::Attributes => "extended attributes (user.*)",
            Self::AccessLists => "access control lists",
        }
    }

    /// Whether files can have it on the file system of `fd`: where they cannot, asking for one that is not there fails
    /// with `EOPNOTSUPP`.
    pub fn is_had(self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        let name = match self {
            Self::Attributes => "user.fettle.none",
            Self::AccessLists => ACCESS_ACL,
        };
        match find(fd, OsStr::new(name)) {
            Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            asked => asked.map(|_| true),
        }
    }
}

/// The names of the attributes that programs have set.
pub fn list_set(fd: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    Ok(list(fd)?.into_iter().filter(|name| is_programs(name)).collect())
}

/// Removes what programs have set, so that the file has no more than one made a moment ago.
pub fn clear(fd: BorrowedFd<'_>) -> io::Result<()> {
    list_set(fd)?.iter().try_for_each(|name| remove(fd, name))
}

/// Other attributes come from the system: a label, say.
fn is_programs(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"user.") || name.as_bytes().starts_with(b"system.")
}

/// The names of all attributes in which two files differ.
pub fn differing(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = list(a)?;
    names.extend(list(b)?);
    names.sort();
    names.dedup();
    let mut differing = Vec::new();
    for name in names {
        if find(a, &name)? != find(b, &name)? {
            differing.push(name.into_vec());
        }
    }
    Ok(differing)
}
