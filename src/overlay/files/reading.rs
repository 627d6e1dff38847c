//! Files by their paths, for those who ask beside the kernel: a reader's content, a patch's base.
//!
//! No symlink is followed: what is not a file of the project is refused, and the refusal says what it is. Rights are
//! checked elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::handles::Backing;
use crate::model::{Acl, RelPath};
use crate::overlay::error::Context;
use crate::overlay::review::{Reviewed, check_not_ours, failed};
use crate::overlay::state::lookup::Origin;
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::{ErrorBody, ErrorCode, refused_at};
use crate::store::UpperId;
use crate::sys::file::{FileKind, Meta, acl_of};
use crate::sys::tree::{Place, is_absent};

/// A regular file as the view shows it at this moment.
#[derive(Debug)]
pub struct Shown {
    pub file: Arc<File>,
    pub meta: Meta,
    pub acl: Option<Acl>,
    /// The directories that lead to this very file, from the root on.
    pub dirs: Vec<(Meta, Option<Acl>)>,
}

/// The directories from the root to a path, and where it is in the last of them.
pub(in crate::overlay) struct Way {
    pub dirs: Vec<(Meta, Option<Acl>)>,
    pub place: Place,
}

impl Shown {
    /// Returns the file that lower has at the end of this way.
    pub(in crate::overlay) fn below(file: Arc<File>, meta: Meta, way: Way) -> io::Result<Self> {
        let acl = acl_of(file.as_fd())?;
        Ok(Self { file, meta, acl, dirs: way.dirs })
    }
}

/// How often a path is looked at again because it became something else between two looks.
const LOOKS_MAX: usize = 8;

impl Overlay {
    pub fn shown(&self, path: &RelPath) -> Reviewed<Shown> {
        check_not_ours(path)?;
        for _ in 0..LOOKS_MAX {
            self.check_file_at(path)?;
            match self.open_shown(path) {
                Ok(Some(shown)) => return Ok(shown),
                Ok(None) => {}
                Err(err) => return Err(not_shown(path, &err)),
            }
        }
        Err(refused_at(path, ErrorCode::Busy, "it is being replaced again and again"))
    }

    /// Returns what was opened at a path, with the directories on the way to it. Returns `None` if the path leads to
    /// something else by now, or if what waits for review may have moved since `epoch`, which was read before the open:
    /// look again.
    pub(super) fn come_to(&self, path: &RelPath, opened: &Backing, epoch: u64) -> Result<Option<Shown>> {
        let Way { dirs, place } = match self.way_to(path) {
            Err(err) if err.code() == libc::ENOENT => return Ok(None),
            way => way?,
        };
        let (file, meta) = match (self.origin_at_place(path, &place)?, opened) {
            (Origin::Lower(meta), Backing::Lower(file)) if meta.key() == Meta::of(file.as_fd())?.key() => (file, meta),
            (Origin::Upper(there, meta), Backing::Upper(id, file)) if there == *id => (file, meta),
            (Origin::Lower(_) | Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_), _) => return Ok(None),
        };
        if matches!(opened, Backing::Upper(..)) && self.state.lock().epoch != epoch {
            return Ok(None);
        }
        let acl = acl_of(file.as_fd()).doing(|| format!("look at {path}"))?;
        Ok(Some(Shown { file: Arc::clone(file), meta, acl, dirs }))
    }

    /// Walks to a path, reaching each directory from the one before it: no rename meanwhile can lead the walk past a
    /// directory without going through it.
    pub(in crate::overlay) fn way_to(&self, path: &RelPath) -> Result<Way> {
        // The innermost first. What is in a held directory is not lower's.
        let held: Vec<UpperId> = {
            let uppers = &self.state.lock().uppers;
            if uppers.is_in_held_dir(path) { uppers.held_dirs_above(path).collect() } else { Vec::new() }
        };
        let depth = path.components().count();
        let mut dir = Arc::new(self.lower.dir(&RelPath::root())?);
        let mut dirs = vec![access_of(dir.as_fd())?];
        for name in path.components().take(depth.saturating_sub(held.len() + 1)) {
            dir = Arc::new(in_dir(&dir, name).open(OFlags::PATH | OFlags::DIRECTORY)?);
            dirs.push(access_of(dir.as_fd())?);
        }
        for id in held.into_iter().rev() {
            dirs.push(self.access_above(id)?);
        }
        Ok(Way { dirs, place: in_dir(&dir, path.name().unwrap_or_default()) })
    }

    /// Returns what the view has at a path; `place` is where lower has it.
    fn origin_at_place(&self, path: &RelPath, place: &Place) -> Result<Origin> {
        let is_lowers = self.state.lock().is_taken_from_lower(path);
        match is_lowers {
            true => place.stat()?.map_or(Ok(Origin::Nothing), |meta| self.origin_of_lower(path, meta)),
            false => self.origin(path),
        }
    }

    /// Returns what decides who may go through a directory of the view.
    pub fn dir_access(&self, path: &RelPath) -> Result<(Meta, Option<Acl>)> {
        let dir = self.dir_in_view(path)?;
        Ok(access_of(dir.as_fd())?)
    }

    /// Returns what decides who may read what lower has at a path; `None` if lower has nothing there.
    pub fn access_below(&self, path: &RelPath) -> Result<Option<(Meta, Option<Acl>)>> {
        let opened = match self.lower.open_at(path, OFlags::PATH) {
            Err(err) if is_absent(&err) => return Ok(None),
            opened => opened?,
        };
        Ok(Some(access_of(opened.as_fd())?))
    }

    /// The same for what upper has.
    pub fn access_above(&self, id: UpperId) -> Result<(Meta, Option<Acl>)> {
        let opened = self.store.upper_place(id).open(OFlags::PATH)?;
        Ok(access_of(opened.as_fd())?)
    }

    /// Returns `None` if what was there is gone or moving: look again.
    fn open_shown(&self, path: &RelPath) -> Result<Option<Shown>> {
        let epoch = self.state.lock().epoch;
        let origin = self.origin(path)?;
        match self.backing_of(path, &origin) {
            Ok(opened) => self.come_to(path, &opened, epoch),
            Err(err) if err.code() == libc::ENOENT => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Refuses what is not a regular file of the view, and says what it is.
    fn check_file_at(&self, path: &RelPath) -> Reviewed<()> {
        let (meta, origin) = match self.origin(path).map_err(|err| not_shown(path, &err))? {
            Origin::Nothing | Origin::Hidden(_) => return Err(self.nothing_at(path)),
            origin @ (Origin::Lower(meta) | Origin::Upper(_, meta)) => (meta, origin),
        };
        match meta.kind {
            FileKind::Regular => Ok(()),
            FileKind::Symlink => Err(self.link_refused(path, &origin)),
            kind => {
                let why = format!("it is a {}, not a file", kind.name());
                Err(refused_at(path, ErrorCode::BadRequest, &why))
            }
        }
    }

    /// If a directory on the way is a symlink, the refusal names it: this path leads to nothing.
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
        let place = match origin {
            Origin::Upper(id, _) => Ok(self.store.upper_place(*id)),
            Origin::Lower(_) | Origin::Hidden(_) | Origin::Nothing => self.lower.place(path),
        };
        match place.and_then(|place| place.read_symlink()).doing(|| format!("read symlink {path}")) {
            Ok(target) => {
                let target = String::from_utf8_lossy(target.as_bytes()).into_owned();
                refused_at(path, ErrorCode::BadRequest, &format!("it is a symbolic link to {target}: name that"))
            }
            Err(err) => failed(path, &err),
        }
    }
}

fn in_dir(dir: &Arc<OwnedFd>, name: &OsStr) -> Place {
    Place { dir: Arc::clone(dir), name: name.to_owned() }
}

pub(super) fn access_of(fd: BorrowedFd<'_>) -> io::Result<(Meta, Option<Acl>)> {
    Ok((Meta::of(fd)?, acl_of(fd)?))
}

fn not_shown(path: &RelPath, err: &Error) -> ErrorBody {
    match err.code() {
        libc::ENOTDIR | libc::ENOENT => refused_at(path, ErrorCode::UnknownPath, "there is no such file"),
        libc::EACCES | libc::EPERM => refused_at(path, ErrorCode::NotPermitted, "it may not be opened"),
        libc::ENAMETOOLONG => refused_at(path, ErrorCode::UnknownPath, "its name is too long"),
        _ => failed(path, err),
    }
}
