//! Which held content is in git's HEAD already: commits are the agent's to make, and a commit can carry what the project
//! does not have yet (SPEC §8). This is only shown, and nothing is decided by it.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use gix::ObjectId;

use super::repository::{self, Unread, unread};
use crate::model::RelPath;
use crate::overlay::Overlay;
use crate::store::{UpperId, UpperRow, What};

/// How many commits are looked at for what a later one has removed.
const COMMITS_MAX: usize = 100;

/// The directories of HEAD, or of a commit before it, each of them read once.
struct Head<'a> {
    repository: &'a gix::Repository,
    /// `None` for one that cannot be read.
    dirs: HashMap<RelPath, Option<Names>>,
}

type Names = HashMap<Vec<u8>, Entry>;

#[derive(Clone, Copy)]
struct Entry {
    object: ObjectId,
    is_dir: bool,
}

/// What HEAD has at a path; the outer `None` if the directory cannot be read.
type At = Option<Option<Entry>>;

/// What was committed at the path of a held change.
enum Committed {
    Has(Entry),
    /// It is deleted, and a commit that leads to HEAD has removed it.
    Removed,
}

impl Overlay {
    /// The entries of `rows` whose content HEAD has at their path. Empty if there is no repository, no commit, or one
    /// that cannot be read in time: the mark is for people, and its absence promises nothing.
    pub fn in_head<'a>(&self, rows: impl IntoIterator<Item = &'a UpperRow>) -> HashSet<UpperId> {
        let rows: Vec<&UpperRow> = rows.into_iter().collect();
        let asked = rows.iter().map(|row| (row.path().clone(), row.what == What::Whiteout)).collect();
        let committed = match rows.is_empty() {
            true => Vec::new(),
            false => self.committed_at(asked).unwrap_or_default(),
        };
        let is_there = |(row, committed): &(&UpperRow, Option<Committed>)| match committed {
            Some(Committed::Has(Entry { object, .. })) => {
                self.blob_of(row, object.kind()).is_some_and(|blob| blob == *object)
            }
            Some(Committed::Removed) => true,
            None => false,
        };
        rows.into_iter().zip(committed).filter(is_there).map(|(row, _)| row.id).collect()
    }

    /// What is known to be committed at these paths, each with whether it is deleted.
    fn committed_at(&self, asked: Vec<(RelPath, bool)>) -> Result<Vec<Option<Committed>>, Unread> {
        let root = self.lower.root().try_clone_to_owned().map_err(unread)?;
        self.head_turns.in_time(move || {
            let repository = repository::open(root.as_fd())?;
            let mut head = Head::of(&repository, repository.head_tree_id().map_err(unread)?.detach());
            let found: Vec<At> = asked.iter().map(|(path, _)| head.entry(path)).collect();
            let is_gone = |((_, is_deleted), at): (&(RelPath, bool), &At)| *is_deleted && matches!(at, Some(None));
            // Only deletions ask for what was before: it takes longer than all else.
            let mut before = match asked.iter().zip(&found).any(is_gone) {
                true => Head::before(&repository)?,
                false => Vec::new(),
            };
            let mut had = |path: &RelPath| before.iter_mut().any(|head| matches!(head.entry(path), Some(Some(_))));
            let committed = |((path, is_deleted), at): (&(RelPath, bool), At)| match at? {
                Some(entry) => Some(Committed::Has(entry)),
                None => (*is_deleted && had(path)).then_some(Committed::Removed),
            };
            Ok(asked.iter().zip(found).map(committed).collect())
        })
    }

    /// The git object id of the held content. `None` if git would not store it as content, or if it is too large to hash.
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

impl<'a> Head<'a> {
    fn of(repository: &'a gix::Repository, root: ObjectId) -> Self {
        Self { repository, dirs: HashMap::from([(RelPath::root(), names_in(repository, root))]) }
    }

    /// The commits from which HEAD has come, the latest first.
    fn before(repository: &'a gix::Repository) -> Result<Vec<Self>, Unread> {
        let commits =
            repository.head_commit().map_err(unread)?.ancestors().first_parent_only().all().map_err(unread)?;
        let root = |commit: gix::revision::walk::Info<'_>| Some(commit.object().ok()?.tree_id().ok()?.detach());
        let read = commits.skip(1).take(COMMITS_MAX).map_while(Result::ok).filter_map(root);
        Ok(read.map(|root| Self::of(repository, root)).collect())
    }

    /// The path must not be the root.
    fn entry(&mut self, path: &RelPath) -> At {
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
