//! What rows refer to and what is not on disk yet. The rows become durable with the log, so this is synced before the
//! log. A row that others commit between the two may be on disk without its content for a moment: it has not been told as
//! durable, and the recovery from a power cut drops it (`disk/boot.rs`).
//!
//! The kernel reports a failed sync once and the next one as successful, though what could not be written is in memory
//! only. So what failed is not synced again: content is copied into another file, and if names could not be synced,
//! nothing is written any more.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::halt::Halt;
use crate::model::Digest;
use crate::store::content::{open_kept, passing_name};
use crate::store::disk::layout::StateDirs;
use crate::store::{Context, Result};
use crate::sys::file::{self, Overwritten};
use crate::sys::tree::{self, Place};
use crate::sys::{Mode, OFlags, RenameFlags};

pub(in crate::store) struct Unsynced {
    content: Arc<OwnedFd>,
    stage: Arc<OwnedFd>,
    halt: Arc<Halt>,
    left: Mutex<Left>,
    /// One sync at a time: otherwise a second one finds nothing to do before the first has done it. Taken before `left`.
    one: Mutex<()>,
}

#[derive(Default)]
struct Left {
    /// Large content.
    digests: HashSet<Digest>,
    /// Large content whose file could not be synced.
    failed: HashSet<Digest>,
    /// True if something has come to stand in `stage/` that is not synced by itself: a directory, symlink or node.
    names: bool,
}

impl Unsynced {
    pub fn new(dirs: &StateDirs, halt: &Arc<Halt>) -> Self {
        let (content, stage, halt) = (dirs.content_dir(), dirs.stage_dir(), Arc::clone(halt));
        Self { content, stage, halt, left: Mutex::default(), one: Mutex::default() }
    }

    pub fn note_content(&self, digest: Digest) {
        self.left.lock().digests.insert(digest);
    }

    pub fn note_names(&self) {
        self.left.lock().names = true;
    }

    /// Called before the log is synced.
    pub fn sync(&self) -> Result<()> {
        let _one = self.one.lock();
        let mut left = std::mem::take(&mut *self.left.lock());
        let synced = self.sync_contents(&mut left).and_then(|()| self.sync_names(left.names));
        if synced.is_err() {
            let mut again = self.left.lock();
            again.digests.extend(left.digests);
            again.failed.extend(left.failed);
            again.names |= left.names;
        }
        synced
    }

    /// What is not on disk stays in `left`, for another try.
    fn sync_contents(&self, left: &mut Left) -> Result<()> {
        if left.digests.is_empty() && left.failed.is_empty() {
            return Ok(());
        }
        let doing = || "sync kept content".to_owned();
        let whole = left.digests.difference(&left.failed).copied().collect::<Vec<_>>();
        for digest in whole {
            let Some(kept) = self.open(digest).doing(doing)? else { continue };
            if let Err(err) = kept.sync_all() {
                log::error!("sync kept content {digest}, of which another copy is made: {err}");
                left.failed.insert(digest);
            }
        }
        for digest in left.failed.clone() {
            self.make_anew(digest).doing(doing)?;
            left.failed.remove(&digest);
            left.digests.remove(&digest);
        }
        self.sync_dir(&self.content, "sync kept content")
    }

    /// Puts a copy in the place of a file that could not be synced. Its content is in memory, unless the kernel has
    /// needed the room. If part of it is lost, the hash tells wherever it is read, and there is nothing to be synced.
    fn make_anew(&self, digest: Digest) -> io::Result<()> {
        let Some(kept) = self.open(digest)? else { return Ok(()) };
        if file::digest(&kept)? != digest {
            log::error!("kept content {digest} is lost: it could not be written to the disk");
            return Ok(());
        }
        let temp = self.place(passing_name());
        let copy = temp.create(OFlags::RDWR, Mode::RUSR | Mode::WUSR).map(File::from)?;
        let to = Overwritten { file: &copy, was: None, written: &Cell::default() };
        // Byte by byte: a clone would have the blocks that are bad.
        let written = file::overwrite(&kept, &to).and_then(|()| copy.sync_all());
        match written.and_then(|()| temp.rename(&self.place(digest.to_string()), RenameFlags::empty())) {
            Ok(()) => Ok(()),
            Err(err) => {
                temp.unlink()?;
                Err(err)
            }
        }
    }

    /// Returns `None` if it was purged, or taken back.
    fn open(&self, digest: Digest) -> io::Result<Option<File>> {
        match open_kept(&self.place(digest.to_string())) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            kept => kept.map(Some),
        }
    }

    fn place(&self, name: String) -> Place {
        Place { dir: Arc::clone(&self.content), name: name.into() }
    }

    fn sync_names(&self, are_new: bool) -> Result<()> {
        match are_new {
            true => self.sync_dir(&self.stage, "sync the names of upper content"),
            false => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &OwnedFd, doing: &str) -> Result<()> {
        let dir = tree::open_itself(dir.as_fd()).map(File::from).doing(|| doing.to_owned())?;
        let synced = dir.sync_all().doing(|| doing.to_owned());
        synced.inspect_err(|err| self.halt.halt(&err.to_string()))
    }
}
