//! Merging what was reviewed with what lower has by now, where both have moved on from the same base (SPEC §9).

use std::os::fd::AsFd;

use super::confirm::Merging;
use super::{Reviewed, Taken, failed, goes_back};
use crate::diff::{self, Merge};
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::judge::side::Side;
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::{ErrorBody, ErrorCode, refused_at};
use crate::store::{Below, Kept, UpperRow};
use crate::sys::file::{self, Meta};

impl Overlay {
    /// True if lower has what a change was based on when it was held.
    pub(in crate::overlay) fn is_as_based(&self, row: &UpperRow, present: &mut Side) -> Result<bool> {
        let stamp = present.meta.map(|meta| meta.stamp());
        Ok(match (row.base.below, stamp) {
            (Below::Nothing, None) => true,
            (Below::Entry { stamp: base, .. }, Some(now)) if base == now => true,
            // Times are a hint. Any program can set them, except ctime, and that one moves with every change of a name.
            // The content decides.
            (Below::Entry { stamp: base, .. }, Some(now)) => {
                match present.kept().doing(|| format!("hash {}", row.path()))? {
                    Some(content) => Some(content) == row.base.content_below(),
                    // What is in a directory is the matter of other entries.
                    None => row.base.content_below().is_none() && (present.is_dir() || base.key() == now.key()),
                }
            }
            (Below::Entry { .. }, None) | (Below::Nothing, Some(_)) => false,
        })
    }

    /// Merges the held change with the change below, or refuses if they clash.
    pub(super) fn merged(
        &self,
        change: &Taken,
        new: &mut Side,
        present: &mut Side,
        merging: Merging,
    ) -> Reviewed<Side> {
        let (path, is_there) = (change.row.path(), present.exists());
        let refuse = |detail: Option<String>| {
            let what = if is_there { "changed" } else { "deleted" };
            let message = format!("{path} was {what} below since {} was based on it", change.held.id);
            let error = ErrorBody::new(ErrorCode::Conflict, message).about(change.held.id.as_str()).at(path);
            ErrorBody { detail: detail.map(String::into_boxed_str), ..error }
        };
        let contents = (new.kept().ok().flatten(), present.kept().ok().flatten());
        if contents.0 == contents.1 {
            // Entries without content are the same only if they are of the same kind.
            return match contents.0.is_some() || present.kind.is_none() || present.kind == new.kind {
                true => Ok(std::mem::take(new)),
                false => Err(refuse(None)),
            };
        }
        if merging == Merging::Refused {
            // Without the error's id: it would tell programs and people that the confirm can be forced.
            let id = &change.held.id;
            let why = format!(
                "it was changed below since {id} was based on it, and the two together were not tested: confirm {id} by \
                 itself, and check again"
            );
            return Err(refused_at(path, ErrorCode::Conflict, &why));
        }
        let mut merged = self.merge_texts(path, change.row.base.content_below(), present, new, refuse)?;
        // Until it takes over those of lower.
        if change.row.looks.is_some() {
            wear_looks(&mut merged, new).map_err(|err| failed(path, &err.into()))?;
        }
        Ok(merged)
    }

    /// True if nothing of a change is left to land: `merged` with others' edits it is what lower has already.
    pub(super) fn is_spent(&self, change: &Taken, merged: &mut Side, present: &mut Side) -> Reviewed<bool> {
        let (row, path) = (&change.row, change.row.path());
        let fault = |err: Error| failed(path, &err);
        let hash = |side: &mut Side| side.kept().doing(|| format!("hash {path}")).map_err(fault);
        let (merges_to, has) = (hash(merged)?, hash(present)?);
        if merges_to.is_none() || merges_to != has || change.held.is_of(merged.standing(), merged.digest) {
            return Ok(false);
        }
        let brings_more = !row.further_names().is_empty() || !self.looks_brought(row).map_err(fault)?.is_empty();
        if brings_more && goes_back(row) {
            let why = "nothing of its content is left to apply, and what else it brings was held with that";
            return Err(refused_at(path, ErrorCode::Conflict, why).about(change.held.id.as_str()));
        }
        Ok(!brings_more)
    }

    /// Merges two edits of the same text that changed different lines (SPEC §9). `refuse` gets the hunks that clash, if
    /// it is for hunks that the edits cannot be merged.
    pub(in crate::overlay) fn merge_texts(
        &self,
        path: &RelPath,
        base: Option<Kept>,
        present: &Side,
        new: &Side,
        refuse: impl Fn(Option<String>) -> ErrorBody,
    ) -> Reviewed<Side> {
        // A base too large to be read at once counts as no text, like the other sides.
        let base = base.filter(|kept| !kept.symlink).map(|kept| self.store.content(kept.digest)).transpose();
        let base = base.map_err(|err| failed(path, &err.into()))?.flatten();
        let (Some(base), Some(ours), Some(theirs)) = (base, &present.bytes, &new.bytes) else {
            return Err(refuse(None));
        };
        let text = |bytes: &[u8]| diff::classify(Some(bytes)) == diff::Side::Text;
        if !(text(&base) && text(ours) && text(theirs) && present.is_file() && new.is_file()) {
            return Err(refuse(None));
        }
        match diff::merge(&base, ours, theirs) {
            Merge::Clean(merged) => self.side_like(present, path, &merged),
            Merge::Conflict { hunks } => Err(refuse(Some(hunks))),
        }
    }

    /// Content as a file that can be landed, with the looks of `model`, which is a file.
    pub(super) fn side_like(&self, model: &Side, path: &RelPath, content: &[u8]) -> Reviewed<Side> {
        use std::io::Write;
        let fault = |err: Error| self.failed_in_room(path, &err);
        let upper = self.store.create_upper(0o600).map_err(|err| fault(err.into()))?;
        let write = || -> std::io::Result<Side> {
            (&upper.file).write_all(content)?;
            let mut side = Side::of_file(upper.file.try_clone()?)?;
            wear_looks(&mut side, model)?;
            Ok(side)
        };
        // Only the descriptor is needed: the name goes with `upper`.
        write().map_err(|err| fault(err.into()))
    }
}

/// The refusal to put content back over what it was edited to since; `clashes` are the hunks of both that cannot be
/// merged.
pub(in crate::overlay) fn edited_since(path: &RelPath, clashes: Option<String>) -> ErrorBody {
    let error = refused_at(path, ErrorCode::Conflict, "it was edited since; --force keeps that as a backup");
    ErrorBody { detail: clashes.map(String::into_boxed_str), ..error }
}

/// Gives content the looks of `model`.
fn wear_looks(side: &mut Side, model: &Side) -> std::io::Result<()> {
    let (Some(to), Some(from), Some(meta)) = (&side.file, &model.file, &model.meta) else { return Ok(()) };
    file::copy_looks(from.as_fd(), meta, to.as_fd())?;
    let meta = Meta::of(to.as_fd())?;
    (side.mode, side.meta) = (meta.mode, Some(meta));
    Ok(())
}
