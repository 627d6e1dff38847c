//! Limits on what programs may take of the view, so that one that means to obstruct leaves the rest working.
//!
//! Only what begins something is refused: a new change, a write that needs more room, an open. What is there can still be
//! written, removed, confirmed and discarded, and nothing that was done is undone.

use std::fs::File;
use std::sync::atomic::Ordering;

use crate::overlay::files::handles::{Backing, OpenFile};
use crate::overlay::{Error, Overlay, Result};
use crate::store::Nameless;
use crate::sys::file::Meta;
use crate::sys::process;

/// What the daemon has open whatever programs do, with a few to spare.
const OWN_DESCRIPTORS: u64 = 40;

/// Where bytes are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    At(u64),
    /// Wherever a file ends at that moment, as for `O_APPEND`.
    End,
}

/// A run of bytes that may have to find room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) struct Extent {
    pub begins: Position,
    pub length: u64,
}

impl Extent {
    /// Something that takes no room: the file gets a hole at most.
    pub const NONE: Self = Self { begins: Position::At(0), length: 0 };

    /// True if the bytes come after all that the file has. Any other change may take some of that away.
    pub fn adds_to(self, file: &File) -> std::io::Result<bool> {
        let begins_behind = match self.begins {
            Position::At(offset) => offset >= file.metadata()?.len(),
            Position::End => true,
        };
        Ok(self.length > 0 && begins_behind)
    }

    fn ends_behind(self, size: u64) -> bool {
        match self.begins {
            Position::At(offset) => offset.saturating_add(self.length) > size,
            Position::End => true,
        }
    }
}

impl Overlay {
    /// `EDQUOT` if as many changes are held or being written as may be, or if `bytes` more of content have no room.
    pub(in crate::overlay) fn check_may_change(&self, bytes: u64) -> Result<()> {
        self.check_count(1)?;
        self.check_room(bytes)
    }

    /// The same for a change that has an entry already and would now wait for review.
    pub(in crate::overlay) fn check_may_hold(&self) -> Result<()> {
        self.check_count(0)
    }

    fn check_count(&self, more: u64) -> Result<()> {
        let max = self.policy().settings.limits.held;
        match max != 0 && self.state.lock().uppers.count() as u64 + more > max {
            true => Err(Error::Errno(libc::EDQUOT)),
            false => Ok(()),
        }
    }

    fn check_room(&self, bytes: u64) -> Result<()> {
        let max = self.policy().settings.limits.upper_bytes;
        match max != 0 && self.store.room().used().saturating_add(bytes) > max {
            true => Err(Error::Errno(libc::EDQUOT)),
            false => Ok(()),
        }
    }

    /// The same for a write to what upper has already. A write that only replaces bytes is never refused.
    pub(in crate::overlay) fn check_room_in(&self, file: &File, extent: Extent) -> Result<()> {
        let Err(full) = self.check_room(extent.length) else { return Ok(()) };
        use std::os::unix::fs::MetadataExt;
        let there = file.metadata()?;
        let has_holes = there.blocks().saturating_mul(512) < there.size();
        match extent.length > 0 && (has_holes || extent.ends_behind(there.size())) {
            true => Err(full),
            false => Ok(()),
        }
    }

    /// Counts the room of an open file again, after its content has changed.
    pub(in crate::overlay) fn note_room(&self, open: &OpenFile, file: &File) -> Result<()> {
        use std::os::fd::AsFd;
        let blocks = Meta::of(file.as_fd())?.blocks;
        if open.blocks.swap(blocks, Ordering::Relaxed) == blocks {
            return Ok(());
        }
        match &*open.backing() {
            Backing::Upper(id, _) => self.store.room().takes(*id, blocks),
            Backing::Orphan(_) => {
                let mut nameless = open.nameless.lock();
                nameless.get_or_insert_with(|| Nameless::new(self.store.room().clone())).takes(blocks);
            }
            Backing::Lower(_) => {}
        }
        Ok(())
    }

    /// How many files may be open at once. A quarter of the descriptors that programs may take is left for reviews, and for
    /// the copy that a first write makes.
    pub fn open_max(&self) -> u64 {
        let limit = *self.descriptors.get_or_init(process::descriptor_limit);
        let by_descriptors = limit.saturating_sub(OWN_DESCRIPTORS) / 4 * 3;
        match self.policy().settings.limits.open {
            0 => by_descriptors,
            max => max.min(by_descriptors),
        }
    }

    /// `ENFILE` if that many are open in the view.
    pub(in crate::overlay) fn check_may_open(&self) -> Result<()> {
        let max = self.open_max();
        match self.state.lock().handles.len() as u64 >= max {
            true => Err(Error::Errno(libc::ENFILE)),
            false => Ok(()),
        }
    }

    /// What a person should know about limits that are nearly reached.
    pub fn limit_notices(&self) -> Vec<String> {
        let limits = self.policy().settings.limits;
        let state = self.state.lock();
        let used = [
            ("limits.held", "paths held or being written", state.uppers.count() as u64, limits.held),
            ("limits.upper", "bytes held or being written", self.store.room().used(), limits.upper_bytes),
            ("limits.open", "files open", state.handles.len() as u64, limits.open),
        ];
        let is_near = |used: u64, max: u64| max != 0 && used >= max - max / 10;
        let near = used.into_iter().filter(|(.., used, max)| is_near(*used, *max));
        near.map(|(name, what, used, max)| format!("{used} {what} of at most {max} ({name})")).collect()
    }
}
