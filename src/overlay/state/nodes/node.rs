//! What is known of one node.

use std::ffi::OsString;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use super::lower::Lower;
use super::names::Names;
use super::print::{ContentPrint, Print};
use super::told::Told;
use super::{NodeId, OpenFile, Passed};
use crate::model::{InodeKey, Timestamp};
use crate::sys::file::{FileKind, Meta};
use crate::sys::watch::Watch;

#[derive(Debug)]
pub(in crate::overlay) struct Node {
    pub(super) id: NodeId,
    pub kind: FileKind,
    /// This is the node that its lower inode leads to.
    pub(super) found_by_lower: bool,
    /// The kernel may have written to it by itself, and may go on through a mapping without a request.
    pub written_past: bool,
    /// Its names in the view; empty once it is unlinked. Its path is made of the first.
    pub names: Names,
    /// References the kernel holds.
    pub(super) lookups: u64,
    pub(super) children: u32,
    /// The lower inode that it stands for, if any.
    pub(super) lower: Option<Lower>,
    pub(super) in_use: Option<Box<InUse>>,
    /// Lower's stamp when the kernel last began to cache its content.
    pub(super) cached: Option<Print>,
    /// The attributes that the kernel may answer from memory.
    pub(super) told: Told,
    /// Lower's content as programs know it, by what they did or were told. `None` until the first look.
    pub(super) shown: Option<ContentPrint>,
    pub(super) rare: Option<Box<Rare>>,
}

/// What all handles on a node share, behind a pointer of its own because most nodes are not open.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) file: FileInUse,
    /// The content that the kernel caches of it.
    pub(super) cached: Option<ContentPrint>,
    /// Lower was written to since the last look.
    pub(super) written_below: bool,
}

#[derive(Debug)]
pub(super) enum FileInUse {
    Judged(Arc<OpenFile>),
    /// It is not judged.
    Passed(Arc<Passed>),
}

impl InUse {
    pub(super) fn of(file: FileInUse) -> Box<Self> {
        Box::new(Self { file, cached: None, written_below: false })
    }
}

/// What most nodes never have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The name that someone took from it below, and when. Until it is told, the kernel may go on opening the node by
    /// that name.
    pub(super) parted_below: Option<Box<(Instant, NodeId, OsString)>>,
    pub(super) landed: Option<LandedCtime>,
    /// The watch of a directory: what the kernel is told of it and of names in it may hold for long.
    pub(super) watch: Option<WatchedDir>,
    /// What it was when it was removed, or has become since: we have no descriptor of a directory or FIFO still open.
    pub(super) removed: Option<Box<Meta>>,
    /// Its content when another file was renamed over it, for an open under way at that moment that found this node.
    pub(super) left: Option<Box<Left>>,
    pub(super) apart: Option<Apart>,
}

#[derive(Debug)]
pub(super) struct WatchedDir {
    pub(super) watch: Watch,
    /// How many events it has reported.
    pub(super) events: u32,
}

/// For a moment one name of a file with several has a node of its own: the rename that the kernel is about to request
/// again makes it a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// The node of the file's other names.
    pub(super) of: NodeId,
    pub(super) since: Instant,
}

/// Programs do not notice that a file lands, and git reads a file again if it has another ctime than git noted. So they
/// go on seeing the ctime that they saw, until lower has another one than the landing left.
#[derive(Clone, Copy, Debug)]
pub(super) struct LandedCtime {
    pub(super) below: Timestamp,
    pub(super) shown: Timestamp,
}

/// What stood at a name until another file was renamed over it.
#[derive(Debug)]
pub(in crate::overlay) enum Left {
    /// It was not judged and is not now.
    Passed(Arc<File>, InodeKey),
    /// For reading. A write goes to a copy, because the file may have other names.
    Judged(Arc<File>),
}

impl Left {
    /// The file, for reading.
    pub fn file(&self) -> Arc<File> {
        match self {
            Self::Passed(file, _) | Self::Judged(file) => file.clone(),
        }
    }
}

/// What becomes of the open of a node whose name someone has just taken below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum PartedOpen {
    LooksAgain,
    HasNameAgain,
}

impl Node {
    /// A node before the first look at it.
    pub(super) fn new(id: NodeId, kind: FileKind, lower: Option<InodeKey>) -> Self {
        Self {
            id,
            kind,
            found_by_lower: false,
            written_past: false,
            names: Names::default(),
            lookups: 0,
            children: 0,
            lower: lower.map(Lower::of),
            in_use: None,
            cached: None,
            told: Told::Nothing,
            shown: None,
            rare: None,
        }
    }

    pub fn removed(&self) -> Option<&Meta> {
        self.rare.as_ref()?.removed.as_deref()
    }

    pub fn removed_mut(&mut self) -> Option<&mut Meta> {
        self.rare.as_mut()?.removed.as_deref_mut()
    }

    pub fn left(&self) -> Option<&Left> {
        self.rare.as_ref()?.left.as_deref()
    }

    /// The node is removed, or about to be, and was `was`.
    pub fn note_removed(&mut self, was: &Meta) {
        self.rare().removed = Some(Box::new(*was));
    }

    /// Another file is about to be renamed over it.
    pub fn note_replaced(&mut self, was: &Meta, left: Option<Left>) {
        self.note_removed(was);
        self.rare().left = left.map(Box::new);
    }

    /// The node stays after all.
    pub fn forget_removed(&mut self) {
        if let Some(rare) = &mut self.rare {
            (rare.removed, rare.left) = (None, None);
        }
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub(super) fn lower(&self) -> Option<InodeKey> {
        self.lower.map(Lower::key)
    }

    pub(super) fn is_found_by(&self, key: InodeKey) -> bool {
        self.found_by_lower && self.lower() == Some(key)
    }

    /// Its open file, if it is open and judged.
    pub fn open(&self) -> Option<&Arc<OpenFile>> {
        match &self.in_use.as_ref()?.file {
            FileInUse::Judged(open) => Some(open),
            FileInUse::Passed(_) => None,
        }
    }

    /// Its passed file, if it is open and not judged.
    pub fn passed(&self) -> Option<&Arc<Passed>> {
        match &self.in_use.as_ref()?.file {
            FileInUse::Passed(passed) => Some(passed),
            FileInUse::Judged(_) => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.in_use.is_some()
    }
}
