//! The trees git would write from an index: comparing their ids with a commit's tells what differs, without reading it.

use std::collections::HashMap;
use std::io::Write as _;

use gix::ObjectId;
use gix::hash::Kind;

use super::IndexError;
use super::unpacked::Unpacked;
use crate::model::RelPath;

/// The tree of each directory.
#[derive(Clone, Debug, Default)]
pub struct IndexTrees(HashMap<RelPath, ObjectId>);

impl IndexTrees {
    /// Whether the index has at `dir` exactly what the tree `id` has, at any depth.
    pub fn has(&self, dir: &RelPath, id: &ObjectId) -> bool {
        self.0.get(dir) == Some(id)
    }
}

/// Builds trees from entries in index order. The index sorts by whole path, so the contents of a directory come one after
/// another, and directories in the order trees need.
pub struct Trees {
    hash: Kind,
    /// The directory of the last entry, with a trailing slash; empty for the root.
    dir: Vec<u8>,
    /// That directory and those above it, from the root down.
    open: Vec<Open>,
    done: HashMap<RelPath, ObjectId>,
    /// By what is open and done.
    unpacked: Unpacked,
}

struct Open {
    /// The length of this directory's path within `Trees::dir`.
    length: usize,
    content: Vec<u8>,
}

impl Trees {
    pub fn new(hash: Kind) -> Self {
        let root = Open { length: 0, content: Vec::new() };
        Self { hash, dir: Vec::new(), open: vec![root], done: HashMap::new(), unpacked: Unpacked::default() }
    }

    pub fn add(&mut self, path: &[u8], mode: u32, object: ObjectId) -> Result<(), IndexError> {
        while !path.starts_with(&self.dir) {
            self.close()?;
        }
        while let Some(slash) = path[self.dir.len()..].iter().position(|byte| *byte == b'/') {
            self.dir.extend_from_slice(&path[self.dir.len()..][..=slash]);
            self.open.push(Open { length: self.dir.len(), content: Vec::new() });
        }
        self.entry(mode, &path[self.dir.len()..], object)
    }

    pub fn finish(mut self) -> Result<IndexTrees, IndexError> {
        while !self.open.is_empty() {
            self.close()?;
        }
        Ok(IndexTrees(self.done))
    }

    fn close(&mut self) -> Result<(), IndexError> {
        let Some(closed) = self.open.pop() else { return Ok(()) };
        // Hashing fails only for content crafted to collide, which git refuses as well.
        let tree = gix::objs::compute_hash(self.hash, gix::objs::Kind::Tree, &closed.content);
        let tree = tree.map_err(|_| IndexError::Malformed)?;
        self.unpacked.forget(closed.content.len());
        let path = self.dir[..closed.length].strip_suffix(b"/").unwrap_or_default();
        self.unpacked.add_path(path)?;
        // Callers never ask about a path that is no [`RelPath`].
        if let Ok(dir) = RelPath::parse(path) {
            self.done.insert(dir, tree);
        }
        let above = self.open.last().map_or(0, |above| above.length);
        let name = path.get(above..).unwrap_or_default().to_vec();
        self.dir.truncate(above);
        self.entry(MODE_TREE, &name, tree)
    }

    fn entry(&mut self, mode: u32, name: &[u8], object: ObjectId) -> Result<(), IndexError> {
        let Some(dir) = self.open.last_mut() else { return Ok(()) };
        let before = dir.content.len();
        write!(dir.content, "{mode:o} ").expect("memory takes all that is written to it");
        dir.content.extend_from_slice(name);
        dir.content.push(0);
        dir.content.extend_from_slice(object.as_slice());
        self.unpacked.add(dir.content.len() - before)
    }
}

const MODE_TREE: u32 = 0o040_000;
