//! Which held content is in git's HEAD already: commits are the agent's to make, and a commit can carry what the project
//! does not have yet (SPEC §8). Only told, never decided by.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use gix::ObjectId;

use super::Overlay;
use crate::model::RelPath;
use crate::store::{UpperId, UpperRow, What};

/// HEAD's directories, each of them read once.
struct Head<'a> {
    repository: &'a gix::Repository,
    /// None where one cannot be read.
    dirs: HashMap<RelPath, Option<Names>>,
}

/// Trees of directories with a million names fit.
const OBJECT_MAX: &str = "gitoxide.objects.allocLimit=67108864";

type Names = HashMap<Vec<u8>, Entry>;

#[derive(Clone, Copy)]
struct Entry {
    object: ObjectId,
    is_dir: bool,
}

impl Overlay {
    /// The entries of `rows` whose content HEAD has at their path. None where there is no repository, no commit, or one
    /// that cannot be read: the mark is for people, and its absence promises nothing.
    pub fn in_head<'a>(&self, rows: impl IntoIterator<Item = &'a UpperRow>) -> HashSet<UpperId> {
        let mut rows = rows.into_iter().peekable();
        let repository = rows.peek().and_then(|_| repository(self.lower.root()).ok());
        let Some(mut head) = repository.as_ref().and_then(Head::of) else { return HashSet::new() };
        rows.filter(|row| self.has(&mut head, row)).map(|row| row.id).collect()
    }

    fn has(&self, head: &mut Head<'_>, row: &UpperRow) -> bool {
        match head.entry(&row.names[0]) {
            Some(Some(Entry { object, .. })) => self.blob_of(row, object.kind()).is_some_and(|blob| blob == object),
            // Gone on both sides.
            Some(None) => row.what == What::Whiteout,
            None => false,
        }
    }

    /// What git would call what is held. None where it would not have it as content, or that is too large to ask.
    fn blob_of(&self, row: &UpperRow, kind: gix::hash::Kind) -> Option<ObjectId> {
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

/// The repository of a project, read without the user's or the machine's git settings: nothing in it is ever run, and no
/// object of it takes all memory.
pub(super) fn repository(root: BorrowedFd<'_>) -> gix::Result<gix::Repository> {
    // Through the descriptor: the path itself may lead into the mount.
    let git_dir = format!("/proc/self/fd/{}/.git", root.as_raw_fd());
    let options = gix::open::Options::isolated().open_path_as_is(true).config_overrides([OBJECT_MAX]);
    gix::open_opts(git_dir, options)
}

impl<'a> Head<'a> {
    fn of(repository: &'a gix::Repository) -> Option<Self> {
        let root = repository.head_tree_id().ok()?.detach();
        let dirs = HashMap::from([(RelPath::root(), names_in(repository, root))]);
        Some(Self { repository, dirs })
    }

    /// What HEAD has at a path, which is no root. None where the directory cannot be read.
    fn entry(&mut self, path: &RelPath) -> Option<Option<Entry>> {
        let (dir, name) = (path.parent()?, path.name()?);
        Some(self.names(&dir)?.get(name.as_bytes()).copied())
    }

    fn names(&mut self, dir: &RelPath) -> Option<&Names> {
        if !self.dirs.contains_key(dir) {
            let names = match self.entry(dir) {
                Some(Some(Entry { object, is_dir: true })) => names_in(self.repository, object),
                Some(_) => Some(Names::new()),
                None => None,
            };
            self.dirs.insert(dir.clone(), names);
        }
        self.dirs.get(dir)?.as_ref()
    }
}

fn names_in(repository: &gix::Repository, tree: ObjectId) -> Option<Names> {
    let tree = repository.find_tree(tree).ok()?;
    let entry = |entry: Result<gix::object::tree::EntryRef<'_, '_>, _>| {
        let entry = entry.ok()?;
        let (object, is_dir) = (entry.object_id(), entry.mode().is_tree());
        Some((entry.filename().to_vec(), Entry { object, is_dir }))
    };
    tree.iter().map(entry).collect()
}
