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
    /// Its lower inode leads to it.
    pub(super) found_by_lower: bool,
    /// The kernel may have written to it by itself, and may go on doing so through a mapping, which tells nobody.
    pub written_past: bool,
    /// Where the view has it; empty once it is unlinked. The first is the one its path is made of.
    pub names: Names,
    /// References the kernel holds.
    pub(super) lookups: u64,
    pub(super) children: u32,
    /// The lower inode it stands for, while it does.
    pub(super) lower: Option<Lower>,
    pub(super) in_use: Option<Box<InUse>>,
    /// Lower when the kernel last began to cache content of it.
    pub(super) cached: Option<Print>,
    /// The attributes that the kernel may answer from memory.
    pub(super) told: Told,
    /// Lower's content as programs know it: by what they did or by what they were told. None: nobody has looked yet.
    pub(super) shown: Option<ContentPrint>,
    pub(super) rare: Option<Box<Rare>>,
}

/// What all handles on a node share. It is behind a pointer of its own, for most nodes are not open.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) file: FileInUse,
    /// The content that the kernel caches of it.
    pub(super) cached: Option<ContentPrint>,
}

#[derive(Debug)]
pub(super) enum FileInUse {
    Judged(Arc<OpenFile>),
    /// Nobody judges it.
    Passed(Arc<Passed>),
}

impl InUse {
    pub(super) fn of(file: FileInUse) -> Box<Self> {
        Box::new(Self { file, cached: None })
    }
}

/// What most nodes never have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The name that somebody took it from below, and when. The kernel may go on opening it by that until it is told.
    pub(super) parted_below: Option<Box<(Instant, NodeId, OsString)>>,
    pub(super) landed: Option<LandedCtime>,
    /// A directory that is watched: what the kernel is told of it and of names in it may be told for long.
    pub(super) watch: Option<WatchedDir>,
    /// What it was when it was removed, or has been made since: a directory or FIFO that is still open has no descriptor of
    /// ours.
    pub(super) removed: Option<Box<Meta>>,
    /// Its content when another file was renamed over it: an open under way at that moment found this one.
    pub(super) left: Option<Box<Left>>,
    pub(super) apart: Option<Apart>,
}

#[derive(Debug)]
pub(super) struct WatchedDir {
    pub(super) watch: Watch,
    /// How many have been taken.
    pub(super) events: u32,
}

/// A name of a file with several is a node of its own: a rename that is about to be asked for again takes a copy by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// The node that its other names have.
    pub(super) of: NodeId,
    pub(super) since: Instant,
}

/// Programs do not see that a file lands, and git reads again whatever has another ctime than it noted: they go on seeing
/// the one they saw, until lower has another than the landing left.
#[derive(Clone, Copy, Debug)]
pub(super) struct LandedCtime {
    pub(super) below: Timestamp,
    pub(super) shown: Timestamp,
}

/// What stood at a name until another file was renamed over it.
#[derive(Debug)]
pub(in crate::overlay) enum Left {
    /// Nobody judged it, and nobody does now.
    Passed(Arc<File>, InodeKey),
    /// For reading; whoever writes gets a copy, for it may have other names.
    Judged(Arc<File>),
}

impl Left {
    /// To be read.
    pub fn file(&self) -> Arc<File> {
        match self {
            Self::Passed(file, _) | Self::Judged(file) => file.clone(),
        }
    }
}

/// What becomes of the open of a node that somebody has just taken from its name below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum PartedOpen {
    LooksAgain,
    HasNameAgain,
}

impl Node {
    /// As it is before anybody has looked at it.
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

    /// It is removed, or about to be, and was this.
    pub fn note_removed(&mut self, was: &Meta) {
        self.rare().removed = Some(Box::new(*was));
    }

    /// Another file is about to be renamed over it.
    pub fn note_replaced(&mut self, was: &Meta, left: Option<Left>) {
        self.note_removed(was);
        self.rare().left = left.map(Box::new);
    }

    /// It stays.
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

    /// What is open on it and judged.
    pub fn open(&self) -> Option<&Arc<OpenFile>> {
        match &self.in_use.as_ref()?.file {
            FileInUse::Judged(open) => Some(open),
            FileInUse::Passed(_) => None,
        }
    }

    /// What is open on it and not judged.
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
