//! One directory tree, reached only through the descriptor of its root.
//!
//! No path leads out of the tree: `..` and symlinks are not followed (but see [`Tree::glance`]), and a mount on top of
//! the root is not entered. A path may be longer than `PATH_MAX`; it is then walked in pieces.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::file::{FileKind, Meta};
use super::lease;
use crate::model::RelPath;

/// A path handed to the kernel in one call stays below this many bytes (`PATH_MAX` is 4096 with its NUL).
const PATH_PIECE_BYTES: usize = 4000;

/// Nothing may lead out of the tree, and no symlink may be followed on the way.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

pub struct Tree {
    root: Arc<OwnedFd>,
    device: u64,
}

/// A directory of a [`Tree`] and a name in it: what every call on a path comes down to.
#[derive(Clone)]
pub struct Place {
    pub dir: Arc<OwnedFd>,
    pub name: OsString,
}

/// Directories of a [`Tree`], each opened once: there may be more places to keep than a process may have files open.
#[derive(Default)]
pub struct Dirs {
    open: HashMap<RelPath, Arc<OwnedFd>>,
}

/// Looks at paths of a [`Tree`] one after the other. A directory is opened once for all paths in it that follow each
/// other.
pub struct StatInTurn<'a> {
    tree: &'a Tree,
    /// The last directory; its descriptor is `None` if it does not exist.
    dir: Option<(RelPath, Option<OwnedFd>)>,
}

pub struct DirEntry {
    pub name: OsString,
    pub inode: u64,
    pub kind: FileKind,
}

impl Tree {
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::from_root(fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub fn from_root(root: OwnedFd) -> io::Result<Self> {
        let device = Meta::of(root.as_fd())?.device;
        Ok(Self { root: Arc::new(root), device })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A path by which the kernel knows an open file, from the root on; `None` if the file has no name or lies elsewhere.
    pub fn path_of(&self, fd: BorrowedFd<'_>) -> Option<RelPath> {
        if Meta::of(fd).ok()?.links == 0 {
            return None;
        }
        let link = |fd: BorrowedFd<'_>| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (root, path) = (link(self.root()).ok()?, link(fd).ok()?);
        RelPath::parse(path.strip_prefix(root).ok()?.as_os_str().as_bytes()).ok()
    }

    /// The device of the root; entries on another one lie on a mount below the project.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Opens what lies at `path`, never through a symlink.
    pub fn open_at(&self, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
        if path.is_root() {
            return Ok(fs::openat(&self.root, ".", flags | OFlags::CLOEXEC, Mode::empty())?);
        }
        let bytes = path.as_bytes();
        if bytes.len() <= PATH_PIECE_BYTES {
            return open_beneath(self.root(), bytes, flags);
        }
        let place = self.place(path)?;
        open_beneath(place.dir.as_fd(), place.name.as_bytes(), flags)
    }

    /// Opens a file for reading without waiting, be it a FIFO. Reads leave its access time as it is, as with
    /// [`super::file::keep_access_time`]; `EPERM` where that may not be asked for.
    pub fn open_quietly(&self, path: &RelPath) -> io::Result<File> {
        self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOATIME).map(File::from)
    }

    /// Opens a file for reading, whatever it is, as [`Place::open_to_read`] does.
    pub fn open_to_read(&self, path: &RelPath) -> io::Result<File> {
        open_to_read(|flags| self.open_at(path, flags))
    }

    /// The parent directory of `path`, as a descriptor that can only be used to reach names in it.
    pub fn place(&self, path: &RelPath) -> io::Result<Place> {
        let name = path.name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let parent = path.parent().unwrap_or_default();
        let dir = if parent.is_root() { Arc::clone(&self.root) } else { Arc::new(self.dir(&parent)?) };
        Ok(Place { dir, name })
    }

    /// A directory, as a descriptor that can only be used to reach names in it.
    pub fn dir(&self, path: &RelPath) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        if path.as_bytes().len() <= PATH_PIECE_BYTES {
            return self.open_at_once(path, flags);
        }
        let mut dir = self.open_at_once(&RelPath::root(), flags)?;
        for name in path.components() {
            dir = open_beneath(dir.as_fd(), name.as_bytes(), flags)?;
        }
        Ok(dir)
    }

    fn open_at_once(&self, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
        match path.is_root() {
            true => Ok(fs::openat(&self.root, ".", flags | OFlags::CLOEXEC, Mode::empty())?),
            false => open_beneath(self.root(), path.as_bytes(), flags),
        }
    }

    /// What lies at `path` itself, be it a symlink; `None` if nothing does.
    pub fn stat(&self, path: &RelPath) -> io::Result<Option<Meta>> {
        match path.name() {
            None => Meta::of(self.root()).map(Some),
            Some(name) if name.len() == path.as_bytes().len() => present(Meta::at(self.root(), name)),
            // Opens the path itself, and not its directory: where nothing is, that one call tells it.
            Some(_) => self.find(path)?.map(|found| Meta::of(found.as_fd())).transpose(),
        }
    }

    /// The same in one call, through whatever stands on the way, symlinks too: enough to recognise what is known by its
    /// inode.
    pub fn glance(&self, path: &RelPath) -> io::Result<Meta> {
        match path.is_root() {
            true => Meta::of(self.root()),
            false => Meta::at(self.root(), path.as_os_str()),
        }
    }

    /// Opens whatever is there with `O_PATH`, to be looked at and, once its kind is known, opened for use.
    pub fn find(&self, path: &RelPath) -> io::Result<Option<OwnedFd>> {
        present(self.open_at(path, OFlags::PATH))
    }

    pub fn exists(&self, path: &RelPath) -> io::Result<bool> {
        Ok(self.stat(path)?.is_some())
    }

    /// The entries of a directory but `.` and `..`, in the file system's order.
    pub fn list(&self, path: &RelPath) -> io::Result<Vec<DirEntry>> {
        list(self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?.as_fd())
    }
}

/// True if an error says that nothing is at the path: the name is missing, or its directory is.
pub fn is_absent(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// Turns an error that says so into `None`.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(err) if is_absent(&err) => Ok(None),
        found => found.map(Some),
    }
}

fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || loop {
        match fs::openat2(dir, OsStr::from_bytes(path), flags, Mode::empty(), BENEATH) {
            // A rename anywhere raced with the walk; the kernel asks to try again.
            Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => continue,
            Err(Errno::INTR) => continue,
            result => return result,
        }
    };
    Ok(lease::wait_for_lease(open)?)
}

/// The entries of an open directory, read from its beginning.
pub fn list(dir: BorrowedFd<'_>) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let name = OsString::from_vec(name.to_vec());
        // An entry that is gone meanwhile is left out.
        let Some(kind) = kind_in_listing(dir, &name, entry.file_type())? else { continue };
        entries.push(DirEntry { name, inode: entry.ino(), kind });
    }
    Ok(entries)
}

/// Not all file systems tell the kind in a listing: some never do, some not for all entries. A directory that is taken
/// for a file would be walked past.
fn kind_in_listing(dir: BorrowedFd<'_>, name: &OsStr, told: fs::FileType) -> io::Result<Option<FileKind>> {
    match told {
        fs::FileType::Unknown => Ok(present(Meta::at(dir, name))?.map(|meta| meta.kind)),
        told => Ok(Some(FileKind::from_type(told))),
    }
}

impl<'a> StatInTurn<'a> {
    pub fn of(tree: &'a Tree) -> Self {
        Self { tree, dir: None }
    }

    /// As [`Tree::stat`] does.
    pub fn stat(&mut self, path: &RelPath) -> io::Result<Option<Meta>> {
        let Some(name) = path.name() else { return self.tree.stat(path) };
        let parent = path.parent().unwrap_or_default();
        if self.dir.as_ref().is_none_or(|(dir, _)| *dir != parent) {
            let opened = present(self.tree.dir(&parent))?;
            self.dir = Some((parent, opened));
        }
        let dir = self.dir.as_ref().and_then(|(_, dir)| dir.as_ref());
        dir.map_or(Ok(None), |dir| present(Meta::at(dir.as_fd(), name)))
    }
}

impl Dirs {
    /// The directory of `path` as it was when it was first asked for; `open` opens it.
    pub fn place<E>(&mut self, path: &RelPath, open: impl FnOnce() -> Result<Place, E>) -> Result<Place, E> {
        let (dir, name) = (path.parent().unwrap_or_default(), path.name());
        match (self.open.get(&dir), name) {
            (Some(open), Some(name)) => Ok(Place { dir: Arc::clone(open), name: name.to_owned() }),
            (_, _) => {
                let place = open()?;
                self.open.insert(dir, Arc::clone(&place.dir));
                Ok(place)
            }
        }
    }
}

impl Place {
    pub fn stat(&self) -> io::Result<Option<Meta>> {
        present(Meta::at(self.dir.as_fd(), &self.name))
    }

    /// Opens the file itself; never follows a symlink, never waits for the other end of a pipe.
    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        open_beneath(self.dir.as_fd(), self.name.as_bytes(), flags)
    }

    /// Opens it for reading without following and without waiting, even if its mode denies that to this process as its
    /// owner.
    pub fn open_to_read(&self) -> io::Result<File> {
        open_to_read(|flags| self.open(flags))
    }

    /// Makes a file that did not exist.
    pub fn create(&self, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(fs::openat(&self.dir, &self.name, flags, mode)?)
    }

    /// Makes a file in the directory that has no name yet; `None` if the file system does not support that.
    pub fn create_nameless(&self, mode: Mode) -> io::Result<Option<File>> {
        match fs::openat(&self.dir, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            made => Ok(Some(File::from(made?))),
        }
    }

    /// Gives a nameless file this name, which must be free.
    pub fn name_file(&self, nameless: &File) -> io::Result<()> {
        match fs::linkat(nameless, "", &self.dir, &self.name, AtFlags::EMPTY_PATH) {
            // Without CAP_DAC_READ_SEARCH kernels before 6.10 want to be asked by a path.
            Err(Errno::NOENT) => {
                let itself = format!("/proc/self/fd/{}", nameless.as_raw_fd());
                Ok(fs::linkat(fs::CWD, itself, &self.dir, &self.name, AtFlags::SYMLINK_FOLLOW)?)
            }
            named => Ok(named?),
        }
    }

    pub fn make_dir(&self, mode: Mode) -> io::Result<()> {
        Ok(fs::mkdirat(&self.dir, &self.name, mode)?)
    }

    pub fn make_node(&self, kind: FileKind, mode: Mode, device: u64) -> io::Result<()> {
        Ok(fs::mknodat(&self.dir, &self.name, kind.to_type(), mode, device)?)
    }

    pub fn make_symlink(&self, target: &OsStr) -> io::Result<()> {
        Ok(fs::symlinkat(target, &self.dir, &self.name)?)
    }

    pub fn read_symlink(&self) -> io::Result<OsString> {
        let target = fs::readlinkat(&self.dir, &self.name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// Gives the file here a second name.
    pub fn link(&self, to: &Place) -> io::Result<()> {
        Ok(fs::linkat(&self.dir, &self.name, &to.dir, &to.name, AtFlags::empty())?)
    }

    pub fn rename(&self, to: &Place, flags: RenameFlags) -> io::Result<()> {
        Ok(fs::renameat_with(&self.dir, &self.name, &to.dir, &to.name, flags)?)
    }

    pub fn unlink(&self) -> io::Result<()> {
        Ok(fs::unlinkat(&self.dir, &self.name, AtFlags::empty())?)
    }

    pub fn remove_dir(&self) -> io::Result<()> {
        Ok(fs::unlinkat(&self.dir, &self.name, AtFlags::REMOVEDIR)?)
    }

    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw));
        Ok(fs::chownat(&self.dir, &self.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The same as far as that is allowed: an unprivileged process cannot give files away.
    pub fn give_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        super::file::unless_refused(self.set_owner(Some(uid), Some(gid)))
    }

    /// Not for symlinks, whose mode cannot change.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        super::file::set_mode(self.open(OFlags::PATH)?.as_fd(), mode)
    }

    pub fn set_times(&self, access: Timespec, modification: Timespec) -> io::Result<()> {
        let times = Timestamps { last_access: access, last_modification: modification };
        Ok(fs::utimensat(&self.dir, &self.name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// A name beside this one, in the same directory.
    pub fn sibling(&self, name: impl Into<OsString>) -> Place {
        Place { dir: Arc::clone(&self.dir), name: name.into() }
    }

    /// The directory, so that it can be synced.
    pub fn open_dir(&self) -> io::Result<OwnedFd> {
        open_itself(self.dir.as_fd())
    }

    /// Removes a file or an empty directory, if one is there.
    pub fn remove(&self) -> io::Result<()> {
        match self.unlink() {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) if err.raw_os_error() == Some(libc::EISDIR) => self.remove_dir(),
            removed => removed,
        }
    }

    /// Makes the directory's entries durable.
    pub fn sync_dir(&self) -> io::Result<()> {
        sync_dir(self.dir.as_fd())
    }
}

fn open_to_read(open: impl Fn(OFlags) -> io::Result<OwnedFd>) -> io::Result<File> {
    match open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => {
            super::file::reopen_quietly(open(OFlags::PATH)?.as_fd())
        }
        opened => opened.map(File::from),
    }
}

pub fn sync_dir(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fs::fsync(open_itself(dir)?)?)
}

/// `O_PATH` descriptors cannot be synced; the directory is opened anew through itself.
pub fn open_itself(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
