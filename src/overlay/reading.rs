//! Files by their paths, for who asks beside the kernel: a reader's content, a patch's base.
//!
//! Nothing is followed: what is no file of the project is refused with what it is. Rights are asked elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::Context;
use super::handles::Backing;
use super::lookup::Origin;
use super::review::{Reviewed, check_not_ours, failed, refused_at};
use super::{Error, Overlay, Result};
use crate::model::{Acl, RelPath};
use crate::protocol::{ErrorBody, ErrorCode};
use crate::store::UpperId;
use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::is_absent;
use crate::sys::xattr::{self, ACCESS_ACL};

/// A regular file as the view shows it at this moment.
#[derive(Debug)]
pub struct Shown {
    pub file: Arc<File>,
    pub meta: Meta,
    pub acl: Option<Acl>,
}

/// How often a path is looked at again because it became something else between two looks.
const LOOKS_MAX: usize = 8;

impl Overlay {
    pub fn shown(&self, path: &RelPath) -> Reviewed<Shown> {
        check_not_ours(path)?;
        let mut looks = 0;
        loop {
            looks += 1;
            let meta = self.file_at(path)?;
            match self.open_shown(path) {
                Ok(Some(file)) => {
                    let acl = acl_of(file.as_fd()).doing(|| format!("look at {path}"));
                    return Ok(Shown { acl: acl.map_err(|err| not_shown(path, &err))?, file, meta });
                }
                Ok(None) if looks < LOOKS_MAX => {}
                Ok(None) => return Err(refused_at(path, ErrorCode::Busy, "it is being replaced again and again")),
                Err(err) => return Err(not_shown(path, &err)),
            }
        }
    }

    /// What decides who may go through a directory of the view.
    pub fn dir_access(&self, path: &RelPath) -> Result<(Meta, Option<Acl>)> {
        let dir = self.dir_in_view(path)?;
        Ok(access_of(dir.as_fd())?)
    }

    /// What decides who may read what lower has at a path; none where that is nothing.
    pub fn access_below(&self, path: &RelPath) -> Result<Option<(Meta, Option<Acl>)>> {
        let opened = match self.lower.open_at(path, OFlags::PATH) {
            Err(err) if is_absent(&err) => return Ok(None),
            opened => opened?,
        };
        Ok(Some(access_of(opened.as_fd())?))
    }

    /// The same for what upper has.
    pub fn access_above(&self, id: UpperId) -> Result<(Meta, Option<Acl>)> {
        let opened = self.store.upper_place(id)?.open(OFlags::PATH)?;
        Ok(access_of(opened.as_fd())?)
    }

    /// None when what was there is gone: look again.
    fn open_shown(&self, path: &RelPath) -> Result<Option<Arc<File>>> {
        let origin = self.origin(path)?;
        match self.backing_of(path, &origin) {
            Ok(Backing::Lower(file) | Backing::Upper(_, file) | Backing::Orphan(file)) => Ok(Some(file)),
            Err(err) if err.code() == libc::ENOENT => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// What the view tells of a regular file.
    fn file_at(&self, path: &RelPath) -> Reviewed<Meta> {
        let (meta, origin) = match self.origin(path).map_err(|err| not_shown(path, &err))? {
            Origin::Nothing | Origin::Hidden(_) => return Err(self.nothing_at(path)),
            origin @ (Origin::Lower(meta) | Origin::Upper(_, meta)) => (meta, origin),
        };
        match meta.kind {
            FileKind::Regular => Ok(meta),
            FileKind::Symlink => Err(self.link_refused(path, &origin)),
            kind => {
                let why = format!("it is a {}, not a file", kind.name());
                Err(refused_at(path, ErrorCode::BadRequest, &why))
            }
        }
    }

    /// A link on the way leads to nothing that could be found by this path.
    fn nothing_at(&self, path: &RelPath) -> ErrorBody {
        let is_link = |dir: &RelPath| match self.origin(dir) {
            Ok(Origin::Lower(meta) | Origin::Upper(_, meta)) => meta.kind == FileKind::Symlink,
            Ok(Origin::Nothing | Origin::Hidden(_)) | Err(_) => false,
        };
        match std::iter::successors(path.parent(), RelPath::parent).find(is_link) {
            Some(link) => {
                let why = format!("{link} is a symbolic link: name the file itself");
                refused_at(path, ErrorCode::BadRequest, &why)
            }
            None => refused_at(path, ErrorCode::UnknownPath, "there is no such file"),
        }
    }

    fn link_refused(&self, path: &RelPath, origin: &Origin) -> ErrorBody {
        let target = match origin {
            Origin::Upper(id, _) => self
                .store
                .upper_place(*id)
                .map_err(Error::from)
                .and_then(|place| place.read_symlink().doing(|| format!("read symlink {path}"))),
            Origin::Lower(_) | Origin::Hidden(_) | Origin::Nothing => {
                let place = self.lower.place(path).doing(|| format!("find {path}"));
                place.and_then(|place| place.read_symlink().doing(|| format!("read symlink {path}")))
            }
        };
        match target {
            Ok(target) => {
                let target = String::from_utf8_lossy(target.as_bytes()).into_owned();
                refused_at(path, ErrorCode::BadRequest, &format!("it is a symbolic link to {target}: name that"))
            }
            Err(err) => failed(path, &err),
        }
    }
}

fn access_of(fd: BorrowedFd<'_>) -> io::Result<(Meta, Option<Acl>)> {
    Ok((Meta::of(fd)?, acl_of(fd)?))
}

/// None where there is no list, or the file system has none. One that cannot be understood is an error.
fn acl_of(fd: BorrowedFd<'_>) -> io::Result<Option<Acl>> {
    let value = match xattr::find(fd, OsStr::new(ACCESS_ACL)) {
        Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
        value => value?,
    };
    value.map(|value| Acl::parse(&value).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))).transpose()
}

fn not_shown(path: &RelPath, err: &Error) -> ErrorBody {
    match err.code() {
        libc::ENOTDIR | libc::ENOENT => refused_at(path, ErrorCode::UnknownPath, "there is no such file"),
        libc::EACCES | libc::EPERM => refused_at(path, ErrorCode::NotPermitted, "it may not be opened"),
        libc::ENAMETOOLONG => refused_at(path, ErrorCode::UnknownPath, "its name is too long"),
        _ => failed(path, err),
    }
}
