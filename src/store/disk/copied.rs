//! A copy of the project, or one that was restored from an archive: its files have other inodes than the rows name, and
//! one may have another's number. A row is taken to name what looks like its file, at the place where that should be.

use crate::model::{RelPath, Stamp};
use crate::store::rows::anchors::{self, Anchor};
use crate::store::rows::upper::{self, Below, UpperRow};
use crate::store::{AnchorState, Context, Result, Store};
use crate::sys::file::Meta;
use crate::sys::tree::Tree;

/// Whether the project is the one whose inodes the rows name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Project {
    Itself,
    Copy,
}

impl Store {
    /// Makes the rows of what waits and the anchors of what was renamed name the copy's inodes.
    pub(in crate::store) fn adopt(&self, lower: &Tree) -> Result<()> {
        let mut rows = self.load_upper()?;
        rows.iter_mut().try_for_each(|row| adopt_row(lower, row))?;
        let mut anchors = self.load_anchors()?;
        anchors.iter_mut().try_for_each(|anchor| adopt_anchor(lower, anchor))?;
        self.database.lock().write(|tx| {
            rows.iter().try_for_each(|row| upper::put(tx, row))?;
            anchors.iter().try_for_each(|anchor| anchors::put(tx, anchor))?;
            // Last, so that a recovery that dies before this begins anew.
            super::device::note(tx, lower)
        })
    }
}

fn adopt_row(lower: &Tree, row: &mut UpperRow) -> Result<()> {
    let path = &row.names[0];
    match &mut row.base.below {
        Below::Entry { stamp, .. } => adopt_at(lower, path, stamp),
        Below::Nothing => Ok(()),
    }
}

fn adopt_anchor(lower: &Tree, anchor: &mut Anchor) -> Result<()> {
    if let Some(AnchorState::Moved { to, stamp }) = &mut anchor.known.had {
        adopt_at(lower, to, stamp)?;
    }
    anchor.known.went.as_mut().map_or(Ok(()), |went| adopt_at(lower, &went.to, &mut went.stamp))
}

fn adopt_at(lower: &Tree, path: &RelPath, stamp: &mut Stamp) -> Result<()> {
    let there = lower.stat(path).doing(|| format!("stat {path}"))?;
    if let Some(there) = there.filter(|there| looks_like(there, stamp)) {
        name_inode(stamp, &there);
    }
    Ok(())
}

/// The size of a directory says nothing: each file system counts in its own way.
pub(in crate::store) fn looks_like(meta: &Meta, stamp: &Stamp) -> bool {
    meta.mtime == stamp.mtime && (meta.is_dir() || meta.size == stamp.size)
}

/// Replaces the inode in a stamp. The rest stays: it says whether the content is as it was.
pub(in crate::store) fn name_inode(stamp: &mut Stamp, meta: &Meta) {
    (stamp.device, stamp.inode, stamp.btime) = (meta.device, meta.inode, meta.btime);
}
