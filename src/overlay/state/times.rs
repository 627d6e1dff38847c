//! Times that the view shows where lower's would be older than what programs have seen there.
//!
//! Build tools, git's cache of untracked files and Python's of modules go by times: one that went back, or that stayed
//! the same, would tell them that nothing has changed.

use std::collections::HashMap;

use crate::model::{RelPath, Timestamp};
use crate::sys::file::Meta;

/// How many paths have such times at least. What has had none for longest goes first, and shows lower's.
const PATHS_MIN: usize = 8192;

/// A bounded table of paths.
pub(super) struct Latest<T> {
    /// What came since `older` was full.
    newer: HashMap<RelPath, T>,
    older: HashMap<RelPath, T>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self { newer: HashMap::new(), older: HashMap::new() }
    }
}

impl<T> Latest<T> {
    pub fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    pub fn get(&self, path: &RelPath) -> Option<&T> {
        self.newer.get(path).or_else(|| self.older.get(path))
    }

    pub fn get_mut(&mut self, path: &RelPath) -> Option<&mut T> {
        self.newer.get_mut(path).or_else(|| self.older.get_mut(path))
    }

    pub fn note(&mut self, path: RelPath, what: T) {
        self.older.remove(&path);
        if self.newer.len() == PATHS_MIN {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(path, what);
    }

    pub fn take(&mut self, path: &RelPath) -> Option<T> {
        self.newer.remove(path).or_else(|| self.older.remove(path))
    }
}

/// What became of a file in the view without lower's file changing: a change of it was discarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discarded {
    /// The time of lower's file, which counts again from the next time that it is given.
    pub below: Timestamp,
    pub at: Timestamp,
}

impl Discarded {
    pub fn shown(&self, meta: Meta) -> Meta {
        match meta.mtime == self.below {
            true => Meta { mtime: meta.mtime.max(self.at), ctime: meta.ctime.max(self.at), ..meta },
            false => meta,
        }
    }
}
