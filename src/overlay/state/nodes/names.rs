//! The names of a node. Nearly all nodes have one, which is stored without a list.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;

use super::NodeId;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(in crate::overlay) struct Name {
    pub parent: NodeId,
    pub name: Text,
}

/// How many bytes fit in the place of the pointer to a longer name.
const SHORT_MAX: usize = 22;

/// The text of a name. That of nearly every file is short enough to need no memory of its own.
#[derive(Clone, Debug)]
pub(in crate::overlay) enum Text {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<OsStr>),
}

impl From<&OsStr> for Text {
    fn from(name: &OsStr) -> Self {
        let mut bytes = [0; SHORT_MAX];
        match (u8::try_from(name.len()), bytes.get_mut(..name.len())) {
            (Ok(length), Some(room)) => {
                room.copy_from_slice(name.as_bytes());
                Self::Short { length, bytes }
            }
            _ => Self::Long(name.into()),
        }
    }
}

impl Deref for Text {
    type Target = OsStr;

    fn deref(&self) -> &OsStr {
        match self {
            Self::Short { length, bytes } => OsStr::from_bytes(&bytes[..usize::from(*length)]),
            Self::Long(name) => name,
        }
    }
}

#[derive(Debug)]
pub(in crate::overlay) enum Names {
    One(Name),
    /// Invariant: none, or more than one.
    Others(Box<[Name]>),
}

impl Default for Names {
    fn default() -> Self {
        Self::Others(Box::default())
    }
}

impl Names {
    pub fn push(&mut self, parent: NodeId, name: &OsStr) {
        let mut names = self.take();
        names.push(Name { parent, name: name.into() });
        *self = names.into();
    }

    pub fn remove(&mut self, parent: NodeId, name: &OsStr) {
        let mut names = self.take();
        names.retain(|one| !one.is(parent, name));
        *self = names.into();
    }

    /// The position of a name among them.
    pub fn position(&self, parent: NodeId, name: &OsStr) -> Option<usize> {
        self.iter().position(|one| one.is(parent, name))
    }

    fn take(&mut self) -> Vec<Name> {
        match std::mem::take(self) {
            Self::One(name) => vec![name],
            Self::Others(names) => names.into(),
        }
    }
}

impl Name {
    fn is(&self, parent: NodeId, name: &OsStr) -> bool {
        (self.parent, &*self.name) == (parent, name)
    }
}

impl From<Vec<Name>> for Names {
    fn from(mut names: Vec<Name>) -> Self {
        match (names.len(), names.pop()) {
            (1, Some(name)) => Self::One(name),
            (_, last) => Self::Others(names.into_iter().chain(last).collect()),
        }
    }
}

impl Deref for Names {
    type Target = [Name];

    fn deref(&self) -> &[Name] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Others(names) => names,
        }
    }
}

impl DerefMut for Names {
    fn deref_mut(&mut self) -> &mut [Name] {
        match self {
            Self::One(name) => std::slice::from_mut(name),
            Self::Others(names) => names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_order_while_others_come_and_go() {
        let mut names = Names::default();
        let told = |names: &Names| names.iter().map(|one| (one.parent.0, one.name.to_os_string())).collect::<Vec<_>>();
        assert_eq!(told(&names), []);
        ["a", "b", "c"].iter().for_each(|name| names.push(NodeId(1), name.as_ref()));
        names.remove(NodeId(1), "b".as_ref());
        names.remove(NodeId(2), "a".as_ref());
        assert_eq!(told(&names), [(1, "a".into()), (1, "c".into())]);
        names.swap(0, 1);
        names.remove(NodeId(1), "a".as_ref());
        assert!(matches!(names, Names::One(_)));
        assert_eq!((names.position(NodeId(1), "c".as_ref()), names.len()), (Some(0), 1));
        names.remove(NodeId(1), "c".as_ref());
        assert!(names.is_empty());
    }

    #[test]
    fn a_name_says_what_it_was_given_however_long() {
        for length in [0, 1, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 255] {
            let name = "n".repeat(length);
            assert_eq!(*Text::from(name.as_ref()), *name);
        }
    }

    #[test]
    fn one_name_takes_no_more_than_its_parts() {
        assert_eq!((size_of::<Names>(), size_of::<Text>()), (8 + size_of::<Text>(), 2 + SHORT_MAX));
    }
}
