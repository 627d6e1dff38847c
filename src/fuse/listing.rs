//! Open directories. Each shows one snapshot, taken anew when it is read from its beginning.
//!
//! An offset is the number of entries before it, so that seeking back to any earlier one works, whatever came and went
//! meanwhile (`rm -r` deletes while it reads).
//!
//! The kernel caches what it was told of a directory that is watched, and each open tells it whether that is still true:
//! it is as long as the directory's [`Version`] is the one it had when the listing was made. We keep what the kernel
//! caches, for readers that go on after the kernel has dropped it: an offset means something in one listing only.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuser::{FileHandle, FileType, FopenFlags, INodeNo};
use parking_lot::Mutex;

use super::attr::{Named, Shown};
use super::view::View;
use crate::overlay::{Error, ListingStamp, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: OsString,
    pub inode: u64,
    pub kind: FileType,
}

impl Listed {
    pub fn of_desk(name: OsString, inode: u64, is_dir: bool) -> Self {
        Self { name, inode, kind: if is_dir { FileType::Directory } else { FileType::RegularFile } }
    }
}

/// Entries of all listings that are kept together: about 6 MiB. Past it all are dropped, and made anew when asked for.
const KEPT_ENTRIES_MAX: usize = 200_000;

/// Entries of all listings that some handle reads: about 128 MiB. Past it none is made until some are closed.
const READ_ENTRIES_MAX: usize = 4_000_000;

#[derive(Default)]
pub struct Listings {
    open: Mutex<Open>,
    changes: Changes,
    /// Counts the entries of all listings that exist.
    entries: Arc<AtomicUsize>,
}

/// How often names of each directory came or went in the view, as far as [`Changes::note`] was told.
#[derive(Clone, Default)]
pub struct Changes(Arc<Mutex<HashMap<u64, u64>>>);

impl Changes {
    /// To be called once the change shows, and before the program that made it is answered.
    pub fn note(&self, dir: u64) {
        *self.0.lock().entry(dir).or_default() += 1;
    }

    fn count(&self, dir: u64) -> u64 {
        self.0.lock().get(&dir).copied().unwrap_or_default()
    }

    fn forget(&self, dir: u64) {
        self.0.lock().remove(&dir);
    }
}

/// Two listings of a directory at the same version are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    changes: u64,
    below: ListingStamp,
}

#[derive(Default)]
struct Open {
    last: u64,
    handles: HashMap<u64, OpenDir>,
    /// For each directory the listing that the kernel may have, and the version at which it was made.
    kept: HashMap<u64, (Version, Snapshot)>,
    kept_entries: usize,
}

struct OpenDir {
    dir: u64,
    /// `None` until it is read.
    snapshot: Option<Snapshot>,
    /// The version at its opening, if what is read through it goes into the kernel's cache.
    cached_at: Option<Version>,
}

type Snapshot = Arc<Listing>;

/// The entries of a directory. The names are stored end to end to save memory: many listings are kept.
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Compact>,
    /// The count of entries in all listings, which includes these.
    counted: Arc<AtomicUsize>,
}

/// An entry whose name ends here, and begins where the one before it ends.
struct Compact {
    inode: u64,
    name_end: u32,
    kind: FileType,
}

/// An entry as a reader is given it.
pub struct Entry<'a> {
    pub name: &'a OsStr,
    pub inode: u64,
    pub kind: FileType,
}

impl Listing {
    pub fn of(listed: Vec<Listed>, counted: &Arc<AtomicUsize>) -> Self {
        let mut names = Vec::with_capacity(listed.iter().map(|entry| entry.name.len()).sum());
        let compact = |Listed { name, inode, kind }| {
            names.extend(OsString::into_vec(name));
            let name_end = u32::try_from(names.len()).expect("the names of one directory take less than 4 GiB");
            Compact { inode, name_end, kind }
        };
        let entries: Vec<Compact> = listed.into_iter().map(compact).collect();
        counted.fetch_add(entries.len(), Ordering::Relaxed);
        Self { names, entries, counted: Arc::clone(counted) }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, at: usize) -> Entry<'_> {
        let end = |entry: &Compact| entry.name_end as usize;
        let Compact { inode, kind, .. } = self.entries[at];
        let begin = at.checked_sub(1).map_or(0, |before| end(&self.entries[before]));
        Entry { name: OsStr::from_bytes(&self.names[begin..end(&self.entries[at])]), inode, kind }
    }

    /// Returns the entries after the first `offset`, each with the offset that follows it.
    pub fn after(&self, offset: u64) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        (skipped..self.len()).map(|at| (at as u64 + 1, self.entry(at)))
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.counted.fetch_sub(self.entries.len(), Ordering::Relaxed);
    }
}

impl Open {
    /// True if another open handle fills the kernel's cache or reads on from it. Two would have to read one listing from
    /// their beginnings to their ends, whatever either removes meanwhile.
    fn is_filled(&self, dir: u64) -> bool {
        self.handles.values().any(|open| open.dir == dir && open.cached_at.is_some())
    }

    fn is_open(&self, dir: u64) -> bool {
        self.handles.values().any(|open| open.dir == dir)
    }

    fn keep(&mut self, dir: u64, version: Version, snapshot: &Snapshot) {
        self.drop_kept(dir);
        if snapshot.len() > KEPT_ENTRIES_MAX {
            return;
        }
        if self.kept_entries + snapshot.len() > KEPT_ENTRIES_MAX {
            self.kept.clear();
            self.kept_entries = 0;
        }
        self.kept_entries += snapshot.len();
        self.kept.insert(dir, (version, snapshot.clone()));
    }

    fn read(&mut self, handle: FileHandle, snapshot: &Snapshot) {
        if let Some(open) = self.handles.get_mut(&handle.0) {
            open.snapshot = Some(snapshot.clone());
        }
    }

    fn drop_kept(&mut self, dir: u64) {
        if let Some((_, snapshot)) = self.kept.remove(&dir) {
            self.kept_entries -= snapshot.len();
        }
    }
}

impl Listings {
    /// Lets others report that names of a directory came or went.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Returns a handle, and flags that say whether the kernel may keep what it reads through it, and use what it has.
    /// `ENFILE` if there are as many as there may be open files.
    pub fn open(&self, view: &View, dir: INodeNo) -> Result<(FileHandle, FopenFlags)> {
        let version = self.version(view, dir);
        let max = view.open_max();
        let mut open = self.open.lock();
        if open.handles.len() as u64 >= max {
            return Err(Error::Errno(libc::ENFILE));
        }
        open.last += 1;
        let handle = open.last;
        let cached_at = version.filter(|_| !open.is_filled(dir.0));
        let snapshot = match (&cached_at, open.kept.get(&dir.0)) {
            (Some(now), Some((kept, snapshot))) if now == kept => Some(snapshot.clone()),
            _ => None,
        };
        let flags = match (cached_at.is_some(), snapshot.is_some()) {
            (true, true) => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            // The kernel drops what it has.
            (true, false) => FopenFlags::FOPEN_CACHE_DIR,
            (false, _) => FopenFlags::empty(),
        };
        if snapshot.is_none() {
            open.drop_kept(dir.0);
        }
        open.handles.insert(handle, OpenDir { dir: dir.0, snapshot, cached_at });
        Ok((FileHandle(handle), flags))
    }

    /// Returns `None` if a change may go unseen.
    fn version(&self, view: &View, dir: INodeNo) -> Option<Version> {
        let changes = self.changes.count(dir.0);
        Some(Version { changes, below: view.listing_stamp(dir)? })
    }

    pub fn release(&self, handle: FileHandle) {
        self.open.lock().handles.remove(&handle.0);
    }

    /// The kernel has let go of a directory, and of what it has cached of it. While the kernel does not know the
    /// directory, changes of its names are not reported, and it may come back under the same number.
    pub fn forget(&self, dir: INodeNo) {
        let mut open = self.open.lock();
        open.drop_kept(dir.0);
        // It may have come back and be open already: its handles compare this count with what it was when they were
        // opened.
        if !open.is_open(dir.0) {
            self.changes.forget(dir.0);
        }
    }

    /// Passes entries from `offset` on to `full`, until that returns true: it had no room for the one it was given.
    pub fn read(
        &self,
        view: &View,
        (dir, handle, offset): (INodeNo, FileHandle, u64),
        mut full: impl FnMut(u64, &Entry) -> bool,
    ) -> Result<()> {
        let snapshot = self.snapshot(view, dir, handle, offset)?;
        let from = snapshot.after(offset);
        from.take_while(|(next, entry)| !full(*next, entry)).for_each(drop);
        Ok(())
    }

    /// The same with attributes. Each entry that `full` takes counts as looked up, except `.` and `..`; one that is gone
    /// by now is left out.
    pub fn read_plus(
        &self,
        view: &View,
        (dir, handle, offset): (INodeNo, FileHandle, u64),
        mut full: impl FnMut(u64, &OsStr, &Shown) -> bool,
    ) -> Result<()> {
        let snapshot = self.snapshot(view, dir, handle, offset)?;
        let mut told_any = false;
        for (next, entry) in snapshot.after(offset) {
            let itself = match entry.name.as_bytes() {
                b"." => Some(dir),
                b".." => Some(view.parent(dir)),
                _ => None,
            };
            let shown = match itself {
                Some(ino) => view.attributes(ino),
                None => view.lookup(dir, entry.name).and_then(Named::entry),
            };
            let shown = match present(shown) {
                Ok(Some(shown)) => shown,
                Ok(None) => continue,
                // What `full` took must reach the kernel, which counts it as looked up; the next read begins with the
                // error.
                Err(_) if told_any => return Ok(()),
                Err(err) => return Err(err),
            };
            if full(next, entry.name, &shown) {
                if itself.is_none() {
                    view.forget(shown.attr.ino, 1);
                }
                return Ok(());
            }
            told_any = true;
        }
        Ok(())
    }

    fn snapshot(&self, view: &View, dir: INodeNo, handle: FileHandle, offset: u64) -> Result<Snapshot> {
        let (known, cached_at) = {
            let open = self.open.lock();
            let handle = open.handles.get(&handle.0).ok_or(Error::Errno(libc::EBADF))?;
            (handle.snapshot.clone(), handle.cached_at.clone())
        };
        let is_first = known.is_none();
        if let Some(snapshot) = known.filter(|_| offset > 0) {
            return Ok(snapshot);
        }
        let version = cached_at.as_ref().and_then(|_| self.version(view, dir));
        let shared = {
            let open = self.open.lock();
            let kept = open.kept.get(&dir.0).filter(|(kept, _)| version.as_ref() == Some(kept));
            kept.map(|(_, snapshot)| snapshot.clone())
        };
        let snapshot: Snapshot = match shared {
            Some(shared) => shared,
            None => self.list(view, dir)?,
        };
        let mut open = self.open.lock();
        match cached_at {
            // If two handles fill the kernel's cache, both must read one listing, from its beginning to its end.
            Some(at) if is_first && version.as_ref() == Some(&at) => match open.kept.get(&dir.0) {
                Some((kept, first)) if *kept == at => {
                    let first = first.clone();
                    open.read(handle, &first);
                    return Ok(first);
                }
                _ => open.keep(dir.0, at, &snapshot),
            },
            Some(_) => open.drop_kept(dir.0),
            None => {}
        }
        open.read(handle, &snapshot);
        Ok(snapshot)
    }

    /// `ENFILE` if as many entries as allowed are already kept for readers.
    fn list(&self, view: &View, dir: INodeNo) -> Result<Snapshot> {
        match self.entries.load(Ordering::Relaxed) {
            READ_ENTRIES_MAX.. => Err(Error::Errno(libc::ENFILE)),
            _ => Ok(Arc::new(Listing::of(entries(view, dir)?, &self.entries))),
        }
    }
}

fn entries(view: &View, dir: INodeNo) -> Result<Vec<Listed>> {
    let listed = view.list(dir)?;
    let number = |ino| view.attributes(ino).map(|shown| shown.attr.ino.0);
    let mut entries = Vec::with_capacity(listed.len() + 2);
    entries.push(Listed { name: ".".into(), inode: number(dir)?, kind: FileType::Directory });
    entries.push(Listed { name: "..".into(), inode: number(view.parent(dir))?, kind: FileType::Directory });
    for mut entry in listed {
        // Programs skip entries whose inode number is 0.
        if entry.inode == 0 {
            let Some(shown) = present(view.lookup(dir, &entry.name).and_then(Named::entry))? else { continue };
            entry.inode = shown.attr.ino.0;
            view.forget(shown.attr.ino, 1);
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn present(shown: Result<Shown>) -> Result<Option<Shown>> {
    match shown {
        Ok(shown) => Ok(Some(shown)),
        Err(err) if err.code() == libc::ENOENT => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::tests::door_to;

    #[test]
    fn of_a_directory_that_the_kernel_forgets_nothing_is_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let (_overlay, door) = door_to(scratch.path());
        let (dir, listings) = (INodeNo(1), &door.listings);
        let (handle, _) = listings.open(&door.view, dir).unwrap();
        listings.changes.note(dir.0);
        listings.forget(dir);
        assert_eq!(listings.changes.count(dir.0), 1, "what the handle reads is another listing");
        listings.release(handle);
        listings.forget(dir);
        assert!(listings.changes.0.lock().is_empty());
    }

    #[test]
    fn past_the_limit_of_entries_that_are_kept_for_readers_nothing_is_listed() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("a"), "x").unwrap();
        let (_overlay, door) = door_to(scratch.path());
        let (dir, listings) = (INodeNo(1), &door.listings);
        let read = || {
            let (handle, _) = listings.open(&door.view, dir).unwrap();
            let listed = listings.read(&door.view, (dir, handle, 0), |_, _| false);
            (handle, listed.map_err(|err| err.code()))
        };
        let count = || listings.entries.load(Ordering::Relaxed);
        let (first, second) = (read(), read());
        assert_eq!((first.1, second.1, count()), (Ok(()), Ok(()), 6), "`.`, `..` and the file");
        for (handle, _) in [first, second] {
            listings.release(handle);
        }
        listings.forget(dir);
        assert_eq!(count(), 0);
        listings.entries.store(READ_ENTRIES_MAX, Ordering::Relaxed);
        assert_eq!(read().1, Err(libc::ENFILE));
    }
}
