//! A directory tree in memory: paths and what stands at each.

use std::collections::BTreeMap;

/// Relative to the root, which is the empty path.
pub type Path = String;

/// What a file or symlink holds: the bytes that ids and verdicts speak of.
#[derive(Clone, PartialEq, Eq)]
pub enum Thing {
    File(Vec<u8>),
    Symlink(Vec<u8>),
    /// Without content; what takes its place is judged by its kind.
    Dir,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    Leaf(Leaf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub thing: Thing,
    pub mode: u32,
    /// Which inode it is, so that one that was renamed is known again.
    pub inode: u64,
    /// Moves with each new content, whoever made it.
    pub stamp: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<Path, Node>,
}

impl std::fmt::Debug for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::File(_) => "file",
            Self::Symlink(_) => "symlink",
            Self::Dir => "directory",
        };
        write!(f, "{kind} {:?}", String::from_utf8_lossy(self.bytes()))
    }
}

impl Thing {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::File(bytes) | Self::Symlink(bytes) => bytes,
            Self::Dir => &[],
        }
    }

    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    pub fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Node {
    pub fn leaf(&self) -> Option<&Leaf> {
        match self {
            Self::Leaf(leaf) => Some(leaf),
            Self::Dir => None,
        }
    }
}

impl Tree {
    pub fn get(&self, path: &str) -> Option<&Node> {
        if path.is_empty() { Some(&Node::Dir) } else { self.nodes.get(path) }
    }

    pub fn leaf(&self, path: &str) -> Option<&Leaf> {
        self.get(path)?.leaf()
    }

    pub fn is_dir(&self, path: &str) -> bool {
        self.get(path) == Some(&Node::Dir)
    }

    pub fn thing(&self, path: &str) -> Option<Thing> {
        Some(match self.get(path)? {
            Node::Dir => Thing::Dir,
            Node::Leaf(leaf) => leaf.thing.clone(),
        })
    }

    pub fn leaf_mut(&mut self, path: &str) -> Option<&mut Leaf> {
        match self.nodes.get_mut(path)? {
            Node::Leaf(leaf) => Some(leaf),
            Node::Dir => None,
        }
    }

    pub fn put(&mut self, path: &str, node: Node) {
        self.nodes.insert(path.to_owned(), node);
    }

    pub fn remove(&mut self, path: &str) -> Option<Node> {
        self.nodes.remove(path)
    }

    /// Takes what is at `from`, and all below it, to `to`.
    pub fn rename(&mut self, from: &str, to: &str) {
        for path in self.within(from) {
            if let (Some(moved), Some(node)) = (rebase(&path, from, to), self.nodes.remove(&path)) {
                self.nodes.insert(moved, node);
            }
        }
    }

    /// The paths at and below `top`.
    pub fn within(&self, top: &str) -> Vec<Path> {
        self.nodes.keys().filter(|path| is_within(path, top)).cloned().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter()
    }
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

pub fn is_within(path: &str, top: &str) -> bool {
    top.is_empty() || path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

/// Where `path` is once `from` is called `to`.
pub fn rebase(path: &str, from: &str, to: &str) -> Option<Path> {
    is_within(path, from).then(|| format!("{to}{}", &path[from.len()..]))
}
