//! Times that the view shows where lower's would be older than what programs have seen there.
//!
//! Build tools, git's cache of untracked files and Python's of modules go by times: one that went back, or that stayed
//! the same, would tell them that nothing has changed.

use std::collections::HashMap;

use crate::model::RelPath;

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
