//! What rows tell of and need not be on disk yet. The rows are durable with the log, so it goes there before that.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::content::open_kept;
use super::layout::StateDirs;
use super::{Context, Result};
use crate::model::Digest;
use crate::sys::tree::{self, Place};

pub(super) struct Unsynced {
    content: Arc<OwnedFd>,
    stage: Arc<OwnedFd>,
    left: Mutex<Left>,
    /// One syncs at a time: who comes meanwhile must not find that nothing is left to do. Taken before `left`.
    one: Mutex<()>,
}

#[derive(Default)]
struct Left {
    /// Large content.
    digests: HashSet<Digest>,
    /// What has come to stand in `stage/` and is not synced by itself: directories, symlinks, nodes.
    names: bool,
}

impl Unsynced {
    pub fn new(dirs: &StateDirs) -> Self {
        Self { content: dirs.content_dir(), stage: dirs.stage_dir(), left: Mutex::default(), one: Mutex::default() }
    }

    pub fn note_content(&self, digest: Digest) {
        self.left.lock().digests.insert(digest);
    }

    pub fn note_names(&self) {
        self.left.lock().names = true;
    }

    /// Before the log is synced.
    pub fn sync(&self) -> Result<()> {
        let _one = self.one.lock();
        let left = std::mem::take(&mut *self.left.lock());
        let synced = self.sync_contents(&left.digests).and_then(|()| self.sync_names(left.names));
        if synced.is_err() {
            let mut again = self.left.lock();
            again.digests.extend(left.digests);
            again.names |= left.names;
        }
        synced
    }

    fn sync_contents(&self, digests: &HashSet<Digest>) -> Result<()> {
        if digests.is_empty() {
            return Ok(());
        }
        let files = digests.iter().try_for_each(|digest| self.sync_file(*digest));
        files.and_then(|()| tree::sync_dir(self.content.as_fd())).doing(|| "sync kept content".to_owned())
    }

    fn sync_file(&self, digest: Digest) -> io::Result<()> {
        match open_kept(&Place { dir: Arc::clone(&self.content), name: digest.to_string().into() }) {
            // Purged, or taken back.
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            file => file?.sync_all(),
        }
    }

    fn sync_names(&self, are_new: bool) -> Result<()> {
        match are_new {
            true => tree::sync_dir(self.stage.as_fd()).doing(|| "sync the names of upper content".to_owned()),
            false => Ok(()),
        }
    }
}
