//! Open directories. Each shows one snapshot, taken anew when it is read from its beginning.
//!
//! An offset is the number of entries before it, so that seeking back to any earlier one works, whatever came and went
//! meanwhile (`rm -r` deletes while it reads).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use fuser::{FileHandle, FileType, INodeNo};
use parking_lot::Mutex;

use super::attr::{Named, Shown};
use super::view::View;
use crate::overlay::{Error, Result};

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

#[derive(Default)]
pub struct Listings {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    last: u64,
    /// The snapshot of each handle, once it was read.
    snapshots: HashMap<u64, Option<Snapshot>>,
}

type Snapshot = Arc<[Listed]>;

impl Listings {
    pub fn open(&self) -> FileHandle {
        let mut open = self.open.lock();
        open.last += 1;
        let handle = open.last;
        open.snapshots.insert(handle, None);
        FileHandle(handle)
    }

    pub fn release(&self, handle: FileHandle) {
        self.open.lock().snapshots.remove(&handle.0);
    }

    /// Tells entries from `offset` on until `full` says that there is no room for the one it was given.
    pub fn read(
        &self,
        view: &View,
        (dir, handle, offset): (INodeNo, FileHandle, u64),
        mut full: impl FnMut(u64, &Listed) -> bool,
    ) -> Result<()> {
        let snapshot = self.snapshot(view, dir, handle, offset)?;
        let from = from_offset(&snapshot, offset);
        from.take_while(|(next, entry)| !full(*next, entry)).for_each(drop);
        Ok(())
    }

    /// The same with attributes. Each entry told counts as looked up, but for `.` and `..`; one that is gone by now is
    /// left out.
    pub fn read_plus(
        &self,
        view: &View,
        (dir, handle, offset): (INodeNo, FileHandle, u64),
        mut full: impl FnMut(u64, &OsStr, &Shown) -> bool,
    ) -> Result<()> {
        let snapshot = self.snapshot(view, dir, handle, offset)?;
        let mut told_any = false;
        for (next, entry) in from_offset(&snapshot, offset) {
            let itself = match entry.name.as_encoded_bytes() {
                b"." => Some(dir),
                b".." => Some(view.parent(dir)),
                _ => None,
            };
            let shown = match itself {
                Some(ino) => view.attributes(ino),
                None => view.lookup(dir, &entry.name).and_then(Named::entry),
            };
            let shown = match present(shown) {
                Ok(Some(shown)) => shown,
                Ok(None) => continue,
                // What was told must reach the kernel, which counts it; the next read begins with the error.
                Err(_) if told_any => return Ok(()),
                Err(err) => return Err(err),
            };
            if full(next, &entry.name, &shown) {
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
        let known = self.open.lock().snapshots.get(&handle.0).ok_or(Error::errno(libc::EBADF))?.clone();
        match known {
            Some(snapshot) if offset > 0 => Ok(snapshot),
            _ => {
                let snapshot: Snapshot = entries(view, dir)?.into();
                self.open.lock().snapshots.insert(handle.0, Some(snapshot.clone()));
                Ok(snapshot)
            }
        }
    }
}

/// Entries with the offset after each.
pub fn from_offset(entries: &[Listed], offset: u64) -> impl Iterator<Item = (u64, &Listed)> {
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    (1..).zip(entries).skip(skipped)
}

fn entries(view: &View, dir: INodeNo) -> Result<Vec<Listed>> {
    let listed = view.list(dir)?;
    let number = |ino| view.attributes(ino).map(|shown| shown.attr.ino.0);
    let mut entries = Vec::with_capacity(listed.len() + 2);
    entries.push(Listed { name: ".".into(), inode: number(dir)?, kind: FileType::Directory });
    entries.push(Listed { name: "..".into(), inode: number(view.parent(dir))?, kind: FileType::Directory });
    for mut entry in listed {
        // Programs leave out entries without a number.
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
