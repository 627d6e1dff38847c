//! Which held content is in git's HEAD already: commits are the agent's to make, and a commit can carry what the project
//! does not have yet (SPEC §8). Only told, never decided by.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::Overlay;
use crate::store::{UpperId, UpperRow, What};

impl Overlay {
    /// The entries of `rows` whose content HEAD has at their path. None where there is no repository, no commit, or one
    /// that cannot be read: the mark is for people, and its absence promises nothing.
    pub fn in_head<'a>(&self, rows: impl IntoIterator<Item = &'a UpperRow>) -> HashSet<UpperId> {
        let mut rows = rows.into_iter().peekable();
        let repository = rows.peek().and_then(|_| self.git_repository());
        let Some(tree) = repository.as_ref().and_then(|repository| repository.head_tree().ok()) else {
            return HashSet::new();
        };
        rows.filter(|row| self.is_in_tree(&tree, row)).map(|row| row.id).collect()
    }

    /// Lower's repository, read without the user's or the machine's git settings: nothing in it is ever run.
    fn git_repository(&self) -> Option<gix::Repository> {
        // Through the descriptor: the path itself may lead into the mount.
        let git_dir = format!("/proc/self/fd/{}/.git", self.lower.root().as_raw_fd());
        gix::open_opts(git_dir, gix::open::Options::isolated().open_path_as_is(true)).ok()
    }

    fn is_in_tree(&self, tree: &gix::Tree<'_>, row: &UpperRow) -> bool {
        let path = row.names[0].to_os_string();
        match tree.lookup_entry_by_path(Path::new(&path)) {
            Ok(Some(entry)) => {
                let oid = entry.object_id();
                self.blob_of(row, oid.kind()).is_some_and(|blob| blob == oid)
            }
            // Gone on both sides.
            Ok(None) => row.what == What::Whiteout,
            Err(_) => false,
        }
    }

    /// What git would call what is held. None where it would not have it as content, or that is too large to ask.
    fn blob_of(&self, row: &UpperRow, kind: gix::hash::Kind) -> Option<gix::ObjectId> {
        let held = &row.held.as_ref()?.id;
        if let Some((id, blob)) = self.state.lock().uppers.get(row.id)?.blob.clone()
            && (&id, blob.kind()) == (held, kind)
        {
            return Some(blob);
        }
        let bytes = self.row_side(row).ok()?.bytes?;
        let blob = gix::objs::compute_hash(kind, gix::objs::Kind::Blob, &bytes).ok()?;
        self.state.lock().uppers.get_mut(row.id)?.blob = Some((held.clone(), blob));
        Some(blob)
    }
}
