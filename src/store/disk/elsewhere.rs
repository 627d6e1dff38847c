//! Directories for content that the user has given, and whose they are.
//!
//! Several projects may be given the same directory. Each has one of its own in it, under a name that its state directory
//! knows (`instance`). A copy of a project has the same name, so the directory itself says whose it is: its [`Owner`]. A
//! state that finds another owner there copies what there is to a directory of its own, and never removes anything of the
//! other's. So does a project that was moved to another file system, for nothing tells it from a copy.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs;
use serde::{Deserialize, Serialize};

use super::layout::{self, Location, open_despite_mode, open_outside, replace_whole, write_whole};
use crate::model::{Digest, Timestamp};
use crate::protocol::DirPath;
use crate::store::journal::landing::random_suffix;
use crate::store::rows::upper::UpperId;
use crate::store::{Context, Error, Result};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::{self, Place};
use crate::sys::{Mode, OFlags};

const OWNER: &str = "owner";
const OWNER_BYTES_MAX: u64 = 64 << 10;

/// True for the name of a note that says whose a directory is.
pub(super) fn is_note(name: &str) -> bool {
    name.starts_with(OWNER)
}

/// Identifies a state directory, and tells it from every copy of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    inode: u64,
    btime: Timestamp,
    device: u64,
    /// The file system's own id: most keep it when they get another device number.
    file_system: u64,
    #[serde(flatten)]
    path: DirPath,
}

impl Owner {
    fn of(state: &OwnedFd) -> io::Result<Self> {
        let meta = Meta::of(state.as_fd())?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", state.as_raw_fd()))?;
        let file_system = fs::fstatvfs(state)?.f_fsid;
        Ok(Self { inode: meta.inode, btime: meta.btime, device: meta.device, file_system, path: DirPath(path) })
    }

    /// True if it is the same directory, moved on its file system or seen under another device number. One that did both
    /// is taken for a copy: in a snapshot, or on a copied disk, inodes are the same.
    fn is(&self, other: &Self) -> bool {
        let is_renumbered = self.file_system == other.file_system && self.path == other.path;
        self.inode == other.inode && self.btime == other.btime && (self.device == other.device || is_renumbered)
    }
}

/// Whether a directory is ours.
enum Whose {
    Ours,
    Others(String),
}

/// Returns the name under which a state has its directories in those given for them: `name`, if they are its own or have
/// no owner yet. Otherwise a new name, under which what is there has been copied.
pub(super) fn own_name(state: &OwnedFd, name: String, location: &Location) -> Result<String> {
    let given: BTreeSet<&Path> =
        [&location.stage, &location.backups].into_iter().flatten().map(PathBuf::as_path).collect();
    let owner = Owner::of(state).doing(|| "look at the state directory".to_owned())?;
    for path in &given {
        let variable = location.variable(path);
        let path = path.join(&name);
        let looking = || format!("look whose {} is", path.display());
        if location.known.is_some() {
            let noted = read_owner(&note_in(&given_by(variable, open_there(&path))?)).doing(looking)?;
            match whose(noted.as_ref(), &owner) {
                Whose::Ours => continue,
                Whose::Others(whose) => return Err(io::Error::other(whose)).doing(looking),
            }
        }
        if let Whose::Others(whose) = claim(&given_by(variable, open_outside(&path))?.into(), &owner).doing(looking)? {
            let new = copy_all(&given, &name, &owner)?;
            layout::write_instance(state, &new)?;
            log::warn!("{}: {whose}; what is held or kept was copied to {new} beside it", path.display());
            return Ok(new);
        }
    }
    Ok(name)
}

/// Adds to the error of opening a directory the variable that names it.
fn given_by<T>(variable: &str, opened: Result<T>) -> Result<T> {
    opened.map_err(|err| match err {
        Error::Io { doing, cause } => Error::Io { doing: format!("{doing} ({variable})"), cause },
        other => other,
    })
}

fn open_there(path: &Path) -> Result<Arc<OwnedFd>> {
    let opened = fs::open(path, layout::DIR_FLAGS, Mode::empty()).map_err(io::Error::from);
    Ok(Arc::new(opened.doing(|| format!("open state directory {}", path.display()))?))
}

/// Makes a directory ours if it has no owner.
fn claim(dir: &Arc<OwnedFd>, owner: &Owner) -> io::Result<Whose> {
    let place = note_in(dir);
    let note = serde_json::to_vec(owner)?;
    let is_used = tree::list(dir.as_fd())?.iter().any(|entry| !entry.name.to_str().is_some_and(is_note));
    if place.stat()?.is_none() && !is_used {
        match write_whole(&place, &note) {
            // Another process was faster.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            written => return written.map(|()| Whose::Ours),
        }
    }
    let noted = read_owner(&place)?;
    let found = whose(noted.as_ref(), owner);
    if matches!(found, Whose::Ours) && noted.as_ref() != Some(owner) {
        replace_whole(&place, &note)?;
    }
    Ok(found)
}

fn note_in(dir: &Arc<OwnedFd>) -> Place {
    Place { dir: Arc::clone(dir), name: OWNER.into() }
}

fn whose(noted: Option<&Owner>, owner: &Owner) -> Whose {
    match noted {
        Some(noted) if noted.is(owner) => Whose::Ours,
        Some(noted) => Whose::Others(format!("it belongs to the state directory {}", noted.path.0.display())),
        None => Whose::Others("it does not say whose it is".to_owned()),
    }
}

/// Returns `None` if there is no note that can be read: then the directory is not known to be ours.
fn read_owner(place: &Place) -> io::Result<Option<Owner>> {
    let mut note = String::new();
    match place.open(OFlags::RDONLY) {
        Ok(file) => File::from(file).take(OWNER_BYTES_MAX).read_to_string(&mut note)?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    Ok(serde_json::from_str(&note).ok())
}

/// Copies what stands under `name` in all given directories to a new name, and returns that. The copy is durable, because
/// the state relies on it from then on.
fn copy_all(given: &BTreeSet<&Path>, name: &str, owner: &Owner) -> Result<String> {
    let new = random_suffix();
    let copied = given.iter().try_for_each(|path| {
        let (from, to) = (path.join(name), Arc::new(open_outside(&path.join(&new))?));
        let copied = claim(&to, owner).and_then(|_ours| copy_content(&from, &to));
        copied.doing(|| format!("copy {} to {new}", from.display()))
    });
    match copied {
        Ok(()) => Ok(new),
        Err(err) => {
            given.iter().for_each(|path| give_up(&path.join(&new)));
            Err(err)
        }
    }
}

fn give_up(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => log::error!("remove {}: {err}", path.display()),
        Ok(()) | Err(_) => {}
    }
}

fn copy_content(from: &Path, to: &Arc<OwnedFd>) -> io::Result<()> {
    let from = Arc::new(fs::open(from, layout::DIR_FLAGS, Mode::empty())?);
    for entry in tree::list(from.as_fd())? {
        let is_content = entry.name.to_str().and_then(Digest::parse).is_some();
        if is_content || UpperId::parse(&entry.name).is_some() {
            let place = |dir: &Arc<OwnedFd>| Place { dir: Arc::clone(dir), name: entry.name.clone() };
            copy_entry(&place(&from), &place(to))?;
        }
    }
    Ok(fs::syncfs(to)?)
}

/// Copies a file, symlink or directory with all its looks. The other state may be at work: what has gone is not copied.
fn copy_entry(from: &Place, to: &Place) -> io::Result<()> {
    let Some(meta) = from.stat()? else { return Ok(()) };
    match meta.kind {
        FileKind::Symlink => {
            to.make_symlink(&from.read_symlink()?)?;
            to.give_owner(meta.uid, meta.gid)
        }
        FileKind::Directory => {
            to.make_dir(file::mode_at_first(meta.mode) | Mode::XUSR)?;
            let open = |place: &Place| place.open(layout::DIR_FLAGS);
            file::copy_metadata(open(from)?.as_fd(), &meta, open(to)?.as_fd())
        }
        FileKind::Regular => {
            let source = match from.open(OFlags::RDONLY) {
                Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(err) if err.kind() == io::ErrorKind::PermissionDenied => open_despite_mode(from)?,
                opened => File::from(opened?),
            };
            let copy = File::from(to.create(OFlags::RDWR, file::mode_at_first(meta.mode))?);
            file::copy_content(&source, &copy)?;
            file::copy_metadata(source.as_fd(), &meta, copy.as_fd())
        }
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            to.make_node(meta.kind, Mode::from_raw_mode(meta.mode), meta.special_device)
        }
    }
}
