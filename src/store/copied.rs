//! A copy of the project, or one that was brought back from an archive: its files have other inodes than the rows name, and
//! one may have the number of another. What a row names is taken to be what looks like it where it is to be.

use super::anchors::{self, Anchor};
use super::upper::{self, Below, UpperRow};
use super::{AnchorState, Context, Result, Store};
use crate::model::{RelPath, Stamp};
use crate::sys::file::Meta;
use crate::sys::tree::Tree;

/// Whether rows name the inodes of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Project {
    Itself,
    Copy,
}

impl Store {
    /// What waits, and what was renamed away, is of the copy's inodes from now on.
    pub(super) fn adopt(&self, lower: &Tree) -> Result<()> {
        let mut rows = self.load_upper()?;
        rows.iter_mut().try_for_each(|row| adopt_row(lower, row))?;
        let mut anchors = self.load_anchors()?;
        anchors.iter_mut().try_for_each(|anchor| adopt_anchor(lower, anchor))?;
        self.database.lock().write(|tx| {
            rows.iter().try_for_each(|row| upper::put(tx, row))?;
            anchors.iter().try_for_each(|anchor| anchors::put(tx, anchor))?;
            // Last: a recovery that dies before begins anew.
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

/// Of a directory the size says nothing: file systems have their own.
pub(super) fn looks_like(meta: &Meta, stamp: &Stamp) -> bool {
    meta.mtime == stamp.mtime && (meta.is_dir() || meta.size == stamp.size)
}

/// The rest of a stamp stays: it says whether the content is as it was.
pub(super) fn name_inode(stamp: &mut Stamp, meta: &Meta) {
    (stamp.device, stamp.inode, stamp.btime) = (meta.device, meta.inode, meta.btime);
}
