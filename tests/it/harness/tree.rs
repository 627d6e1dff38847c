//! A directory tree as whoever walks it sees it, to be compared with another.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

/// What nobody compares: our state, and git's own files, which have times and inode numbers in them.
const LEFT_OUT: [&str; 2] = [".fettle", ".git"];
/// A time further back than this was set by somebody and is compared; any other only says that something was written.
const SET_ON_PURPOSE: Duration = Duration::from_secs(24 * 3600);
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Every entry below a directory, by its path from there.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree(pub BTreeMap<PathBuf, Entry>);

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    /// Names of the file, also those outside the tree; 1 for what is no file.
    pub links: u64,
    /// Another name of the same inode, the first that the walk met.
    pub same_as: Option<PathBuf>,
    /// `user.` attributes.
    pub attributes: BTreeMap<OsString, Vec<u8>>,
    /// Where it was set on purpose: see [`SET_ON_PURPOSE`].
    pub mtime: Option<SystemTime>,
}

#[derive(Clone, PartialEq)]
pub enum Kind {
    File(Vec<u8>),
    Directory,
    Symlink(PathBuf),
    Special,
}

impl std::fmt::Debug for Kind {
    /// A content by its size and its first line: enough to see which one it is.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(bytes) => {
                let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let line = &line[..line.len().min(60)];
                write!(f, "file of {} bytes, {:?}…", bytes.len(), String::from_utf8_lossy(line))
            }
            Self::Directory => write!(f, "directory"),
            Self::Symlink(target) => write!(f, "symlink to {}", target.display()),
            Self::Special => write!(f, "special file"),
        }
    }
}

impl Tree {
    #[track_caller]
    pub fn of(root: &Path) -> Self {
        let mut tree = Self(BTreeMap::new());
        tree.walk(root, Path::new(""), &mut HashMap::new());
        tree
    }

    fn walk(&mut self, root: &Path, dir: &Path, inodes: &mut HashMap<(u64, u64), PathBuf>) {
        let listed = fs::read_dir(root.join(dir)).unwrap_or_else(|err| panic!("list {}: {err}", dir.display()));
        let mut names: Vec<OsString> = listed.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        for name in names.into_iter().filter(|name| !LEFT_OUT.iter().any(|left_out| name == left_out)) {
            let path = dir.join(name);
            let entry = Entry::of(root, &path, inodes);
            let is_directory = entry.kind == Kind::Directory;
            self.0.insert(path.clone(), entry);
            if is_directory {
                self.walk(root, &path, inodes);
            }
        }
    }

    /// The bytes of a file; panics where there is none.
    #[track_caller]
    pub fn content(&self, path: &str) -> &[u8] {
        match self.0.get(Path::new(path)).map(|entry| &entry.kind) {
            Some(Kind::File(content)) => content,
            other => panic!("{path} is {other:?}"),
        }
    }

    /// The same tree with one entry as it is in `other`.
    #[must_use]
    pub fn with_entry_of(mut self, path: &str, other: &Self) -> Self {
        match other.0.get(Path::new(path)) {
            Some(entry) => self.0.insert(path.into(), entry.clone()),
            None => self.0.remove(Path::new(path)),
        };
        self
    }

    /// The same tree as if every name were a file of its own.
    #[must_use]
    pub fn without_links(mut self) -> Self {
        for entry in self.0.values_mut() {
            (entry.links, entry.same_as) = (1, None);
        }
        self
    }

    /// What has to change for this tree to be `want`, one line a path; empty when it is.
    pub fn differences(&self, want: &Self) -> Vec<String> {
        let paths = self.0.keys().chain(want.0.keys().filter(|path| !self.0.contains_key(*path)));
        let differing = paths.filter(|path| self.0.get(*path) != want.0.get(*path));
        let told = differing.map(|path| {
            format!("{}:\n    is   {:?}\n    want {:?}", path.display(), self.0.get(path), want.0.get(path))
        });
        told.collect()
    }
}

impl Entry {
    fn of(root: &Path, path: &Path, inodes: &mut HashMap<(u64, u64), PathBuf>) -> Self {
        let full = root.join(path);
        let meta = full.symlink_metadata().unwrap_or_else(|err| panic!("stat {}: {err}", full.display()));
        let kind = Kind::of(&full, &meta);
        let is_file = matches!(kind, Kind::File(_));
        let same_as = is_file.then(|| inodes.get(&(meta.dev(), meta.ino())).cloned()).flatten();
        inodes.entry((meta.dev(), meta.ino())).or_insert_with(|| path.to_owned());
        let mtime = meta.modified().expect("a time").checked_add(SET_ON_PURPOSE);
        Self {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: if is_file { meta.nlink() } else { 1 },
            same_as,
            attributes: if is_file { attributes(&full) } else { BTreeMap::new() },
            mtime: mtime.filter(|until| is_file && *until < SystemTime::now()),
            kind,
        }
    }
}

impl Kind {
    fn of(path: &Path, meta: &Metadata) -> Self {
        if meta.is_file() {
            Self::File(fs::read(path).unwrap_or_else(|err| panic!("read {}: {err}", path.display())))
        } else if meta.is_dir() {
            Self::Directory
        } else if meta.is_symlink() {
            Self::Symlink(fs::read_link(path).expect("a symlink's target"))
        } else {
            Self::Special
        }
    }
}

/// `user.` attributes of a file.
fn attributes(file: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let length = match rustix::fs::listxattr(file, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        other => other.expect("list attributes"),
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = rustix::fs::getxattr(file, std::ffi::OsStr::from_bytes(name), &mut value[..]);
        value.truncate(length.expect("an attribute"));
        value
    };
    names.map(|name| (OsString::from_vec(name.to_vec()), value(name))).collect()
}
