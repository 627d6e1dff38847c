//! What git tracks, by its index and by HEAD: removing something from the index alone does not take it out of review
//! (SPEC §6).
//!
//! This decides what passes, so whatever cannot be read counts as tracked. Of HEAD only those trees are read that the
//! index does not have in the same form: mostly none. And it is read once, before the view covers the project: gix
//! resolves the paths of what it opens, which would lead into the view then, where a request may wait for the thread that
//! made it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use super::repository::{self, Reading, Unread, unread};
use crate::model::RelPath;
use crate::overlay::state::rules::{is_there, read_below};
use crate::policy::ignored::{Index, IndexError, IndexTrees, TrackedSet};
use crate::sys::tree::Tree;

/// Enough for two million files. An index is read whole, and any program may have written it.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Enough for a line with the name of a ref.
const REF_BYTES_MAX: u64 = 4096;

/// Trees that are made for the purpose can have more names than fit into memory.
const ENTRIES_MAX: usize = 2_000_000;

pub struct Tracked {
    /// Where something was tracked at the mount, or by the index at a reload since.
    known: TrackedSet,
    /// Why HEAD may have more, until the next mount.
    head: Option<Unknown>,
    /// Why the index may have more, until the next reload.
    index: Option<Unknown>,
}

/// Why it is not known what git tracks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unknown {
    #[error("there is no repository")]
    NoRepository,
    #[error("the repository is outside (`.git` is no directory)")]
    Outside,
    #[error("git's index is not there")]
    NoIndex,
    #[error("{0}")]
    NotRead(String),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("git's HEAD: {0}")]
    Head(#[from] Unread),
}

/// What git tracks, while HEAD is being read.
pub struct TrackedReading {
    index: TrackedSet,
    index_unread: Option<Unknown>,
    /// `None` if HEAD has nothing.
    head: Result<Option<Reading<Vec<RelPath>>>, Unknown>,
}

impl TrackedReading {
    /// Must be begun, and ended, before anything covers the project.
    pub fn begin(lower: &Tree) -> Self {
        let (index, index_unread) = or_default(read_index(lower));
        let head = begin_to_read_head(lower, index.trees);
        Self { index: index.tracked, index_unread, head }
    }

    pub fn end(self) -> Tracked {
        let read = self.head.and_then(|head| Ok(head.map(Reading::end).transpose()?));
        let (beside, head) = or_default(read.map(Option::unwrap_or_default));
        Tracked { known: self.index.and(&TrackedSet::of(beside)), head, index: self.index_unread }
    }
}

impl Tracked {
    /// What was tracked counts until the next mount, and so does what could not be read of HEAD.
    pub fn at_reload(&self, lower: &Tree) -> Self {
        let (index, index_unread) = or_default(read_index(lower));
        Self { known: index.tracked.and(&self.known), head: self.head.clone(), index: index_unread }
    }

    /// The state in which nothing is known.
    pub fn unknown() -> Self {
        Self { known: TrackedSet::default(), head: None, index: Some(Unknown::NoRepository) }
    }

    /// True if git certainly tracks nothing at `dir` and below.
    pub fn is_none_within(&self, dir: &RelPath) -> bool {
        self.why_unknown().is_none() && !self.known.any_within(dir)
    }

    pub fn why_unknown(&self) -> Option<&Unknown> {
        self.head.as_ref().or(self.index.as_ref())
    }
}

fn or_default<T: Default>(read: Result<T, Unknown>) -> (T, Option<Unknown>) {
    match read {
        Ok(read) => (read, None),
        Err(why) => (T::default(), Some(why)),
    }
}

/// No error ends a mount or a reload: whatever cannot be read is unknown, for any program may have made it so.
fn read_index(lower: &Tree) -> Result<Index, Unknown> {
    match read_below(lower, ".git/index", INDEX_BYTES_MAX).map_err(|err| Unknown::NotRead(err.to_string()))? {
        Some(index) => Ok(Index::read(&index)?),
        None if !is_there(lower, ".git") => Err(Unknown::NoRepository),
        None if is_unborn(lower) => Ok(Index::default()),
        None => Err(Unknown::NoIndex),
    }
}

/// True if nothing has been committed yet: HEAD is a branch, and there is nothing of what a repository keeps once it has
/// a commit. What cannot be determined counts as there.
fn is_unborn(lower: &Tree) -> bool {
    let head = read_below(lower, ".git/HEAD", REF_BYTES_MAX).ok().flatten();
    let heads = RelPath::parse(b".git/refs/heads").expect("a path");
    let has_no_branch = !is_there(lower, ".git/refs/heads") || lower.list(&heads).is_ok_and(|heads| heads.is_empty());
    head.is_some_and(|head| head.starts_with(b"ref: refs/heads/"))
        && has_no_branch
        && !is_there(lower, ".git/logs/HEAD")
        && !is_there(lower, ".git/packed-refs")
}

/// Begins to read where HEAD tracks something, except for directories that the index has in the same form as HEAD.
fn begin_to_read_head(lower: &Tree, trees: IndexTrees) -> Result<Option<Reading<Vec<RelPath>>>, Unknown> {
    match lower.stat(&RelPath::parse(b".git").expect("a path")) {
        Ok(None) => return Ok(None),
        Ok(Some(git)) if !git.is_dir() => return Err(Unknown::Outside),
        Ok(Some(_)) if is_unborn(lower) => return Ok(None),
        Ok(Some(_)) | Err(_) => {}
    }
    let root = lower.root().try_clone_to_owned().map_err(unread)?;
    Ok(Some(Reading::begin(move |until| dirs_beside(&root, &trees, until))?))
}

fn dirs_beside(lower: &OwnedFd, trees: &IndexTrees, until: Instant) -> Result<Vec<RelPath>, Unread> {
    let repository = repository::open(lower.as_fd())?;
    let root = repository.head_tree_id().map_err(unread)?.detach();
    let (mut dirs, mut count) = (Vec::new(), 0);
    let mut left = vec![(RelPath::root(), root)];
    while let Some((dir, tree)) = left.pop() {
        if trees.has(&dir, &tree) {
            continue;
        }
        let tree = repository.find_tree(tree).map_err(unread)?;
        for entry in tree.iter() {
            let entry = entry.map_err(unread)?;
            let path = dir.join(OsStr::from_bytes(entry.filename())).map_err(unread)?;
            if entry.mode().is_tree() {
                left.push((path, entry.object_id()));
            } else if entry.mode().is_commit() {
                dirs.push(path);
            } else if dirs.last() != Some(&dir) {
                dirs.push(dir.clone());
            }
            count += 1;
        }
        if count > ENTRIES_MAX || Instant::now() > until {
            return Err(Unread::TooLong);
        }
    }
    Ok(dirs)
}
