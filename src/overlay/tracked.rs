//! What git tracks, as it was when the rules were read: by its index, and by its HEAD, for who has taken something out of the
//! index alone has it reviewed still (SPEC §6).
//!
//! Decides what passes, so whatever cannot be read counts as tracked. HEAD is asked for no more than the directories that
//! would pass, each of them once.

use gix::ObjectId;
use gix::objs::tree::EntryMode;

use super::head;
use super::rules::{PolicyError, is_there, read_below};
use crate::model::RelPath;
use crate::policy::ignored::{TrackedSet, tracked_dirs};
use crate::sys::tree::Tree;

const INDEX_BYTES_MAX: u64 = 1 << 30;
/// A line with the name of a branch, or a commit.
const HEAD_BYTES_MAX: u64 = 4096;

pub(super) struct Tracked {
    /// None: it cannot be read, so everything may be tracked.
    index: Option<TrackedSet>,
    head: HeadTree,
}

enum HeadTree {
    /// Nobody has committed anything.
    Unborn,
    Is(ObjectId),
    Unreadable,
}

impl Tracked {
    pub fn read(lower: &Tree) -> Result<Self, PolicyError> {
        let is_unborn = is_unborn(lower);
        let index = match read_below(lower, ".git/index", INDEX_BYTES_MAX)? {
            Some(index) => tracked_dirs(&index).ok(),
            None => is_unborn.then(TrackedSet::default),
        };
        // Without an index nothing passes, whatever HEAD has.
        let head = match is_unborn {
            true => HeadTree::Unborn,
            false => index.as_ref().and_then(|_| head_tree(lower)).map_or(HeadTree::Unreadable, HeadTree::Is),
        };
        Ok(Self { index, head })
    }

    /// Nothing is known not to be tracked.
    pub fn unknown() -> Self {
        Self { index: None, head: HeadTree::Unreadable }
    }

    /// Whether git is known to track nothing in `dir`, at any depth.
    pub fn is_none_within(&self, lower: &Tree, dir: &RelPath) -> bool {
        self.index.as_ref().is_some_and(|index| !index.any_within(dir)) && self.head.is_none_within(lower, dir)
    }
}

impl HeadTree {
    fn is_none_within(&self, lower: &Tree, dir: &RelPath) -> bool {
        match self {
            Self::Unborn => true,
            Self::Is(tree) => head::repository(lower).and_then(|git| has_within(&git, *tree, dir)) == Some(false),
            Self::Unreadable => false,
        }
    }
}

/// Whether somebody has begun a repository and committed nothing. What cannot be read is not known to be that.
fn is_unborn(lower: &Tree) -> bool {
    let Ok(Some(head)) = read_below(lower, ".git/HEAD", HEAD_BYTES_MAX) else { return false };
    let branch = head.strip_prefix(b"ref: ").map(<[u8]>::trim_ascii).and_then(|name| std::str::from_utf8(name).ok());
    let is_missing = |name: &str| !is_there(lower, &format!(".git/{name}"));
    // What a repository keeps where it has commits; with reftables HEAD names no branch.
    branch.is_some_and(is_missing) && ["logs/HEAD", "packed-refs", "reftable"].into_iter().all(is_missing)
}

fn head_tree(lower: &Tree) -> Option<ObjectId> {
    Some(head::repository(lower)?.head_tree_id().ok()?.detach())
}

/// Whether `tree` has a submodule or a directory at `dir`: git keeps no empty ones. None where it cannot be read.
fn has_within(git: &gix::Repository, mut tree: ObjectId, dir: &RelPath) -> Option<bool> {
    let mut mode = None;
    for name in dir.components() {
        if mode.is_some_and(|mode: EntryMode| !mode.is_tree()) {
            return Some(false);
        }
        let names = git.find_tree(tree).ok()?;
        let Some(entry) = names.lookup_entry([name.as_encoded_bytes()]).ok()? else { return Some(false) };
        (tree, mode) = (entry.object_id(), Some(entry.mode()));
    }
    Some(mode.is_none_or(|mode| mode.is_tree() || mode.is_commit()))
}
