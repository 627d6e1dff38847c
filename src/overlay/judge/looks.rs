//! What a file looks like when it lands: its mode, owner and attributes where the change brings them, and otherwise those
//! that lower has by then (SPEC §9).
//!
//! The upper file itself takes over what was changed below ([`Overlay::take_looks_below`]), so that a landing, or a
//! further write, finds the looks in place. Looks changed in the view (`files::looks_change`) are recorded as the
//! change's own ([`Overlay::note_own_looks`]), and those of them that differ when it is held go into its id
//! ([`Overlay::looks_held`]).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::settle::leaves_other_names;
use super::side::Side;
use crate::model::{Looks, escape_name};
use crate::overlay::error::Context;
use crate::overlay::{Overlay, Result};
use crate::store::{Base, Below, Effect, FileLooks, Kept, UpperId, UpperRow};
use crate::sys::file::{self, FileKind, Meta, OwnLooks, SET_ID};
use crate::sys::{OFlags, xattr};

/// The permissions that a new file has as a rule.
const PLAIN_MODE: u32 = 0o644;

/// How much of an attribute's value is shown: a line's worth.
const VALUE_TOLD_BYTES_MAX: usize = 64;

impl Overlay {
    /// Gives the new content the looks that lower's file has now, except those that are its own. Mostly lower's have not
    /// changed since the copy, which the ctime shows.
    pub(in crate::overlay) fn take_looks_below(&self, row: &UpperRow, new: &mut Side, present: &Side) -> Result<()> {
        let (Some(looks), Some(now)) = (&row.looks, present.meta) else { return Ok(()) };
        let (Some(ours), Some(theirs)) = (&new.file, &present.file) else { return Ok(()) };
        if looks.alone || now.ctime == looks.as_of {
            return Ok(());
        }
        let doing = || format!("change attributes of {}", row.path());
        // Set-id bits stay those of the new content: it never gains any from below.
        let meta = Meta { mode: now.mode & !SET_ID | new.mode & SET_ID, ..now };
        file::copy_looks_but(&looks.own, theirs.as_fd(), &meta, ours.as_fd()).doing(doing)?;
        let meta = Meta::of(ours.as_fd()).doing(doing)?;
        (new.mode, new.meta) = (meta.mode, Some(meta));
        self.tell_landed(row.path());
        Ok(())
    }

    /// The looks of an entry as it waits. Its own are those that differ from the file it changes; if it was copied from
    /// that file, only those of them that the view has changed. `None` for a new file with ordinary looks.
    pub(super) fn looks_held(&self, row: &UpperRow, new: &Side, present: &Side) -> Result<Option<FileLooks>> {
        let doing = || format!("compare attributes of {}", row.path());
        let is_alone = || leaves_other_names(&row.base, present).then(FileLooks::alone);
        let looks = row.looks.clone().or_else(is_alone);
        let is_copy = looks.as_ref().is_some_and(|looks| !looks.alone);
        if let Some(differing) = differing_looks(row, new, present).doing(doing)? {
            let looks = looks.unwrap_or_default();
            let own = if is_copy { differing.and(&looks.own) } else { differing };
            return Ok(Some(FileLooks { own, ..looks }));
        }
        let has_own_mode = new.is_file() && differs_in_mode(new.mode, mode_of_base(&row.base));
        match looks {
            // Lower may get back the file that it was copied from.
            Some(looks) if is_copy && row.base.below != Below::Nothing => {
                let own = OwnLooks { mode: looks.own.mode && has_own_mode, ..looks.own };
                Ok(Some(FileLooks { own, ..looks }))
            }
            // It is new, or a copy of a file that was gone when it was first held.
            looks => {
                let is_given = looks.as_ref().is_some_and(|looks| looks.own.owner);
                let own = OwnLooks { mode: has_own_mode, owner: is_given, xattrs: xattrs_of(new).doing(doing)? };
                Ok((looks.is_some() || !own.is_empty()).then(|| FileLooks { own, ..FileLooks::alone() }))
            }
        }
    }

    /// What a held change brings besides content, in words for people. Of what has no upper file that is nothing: its
    /// entry may have ended since the caller took it for held, may be the deletion of what was held and is not judged
    /// yet, or has lost the file, which `fsck` reports.
    pub fn looks_brought(&self, row: &UpperRow) -> Result<Vec<String>> {
        if row.held.as_ref().is_none_or(|held| held.looks.is_none()) {
            return Ok(Vec::new());
        }
        match self.looks_of_row(row) {
            Err(err) if err.code() == libc::ENOENT => Ok(Vec::new()),
            told => told,
        }
    }

    fn looks_of_row(&self, row: &UpperRow) -> Result<Vec<String>> {
        let doing = || format!("look at {}", row.path());
        let fd = self.store.upper_place(row.id).open(OFlags::PATH).doing(doing)?;
        let meta = Meta::of(fd.as_fd()).doing(doing)?;
        let looks = row.own_looks(meta.is_file().then_some(fd.as_fd()), &meta).doing(doing)?;
        self.tell_looks(row, &looks, Some(meta.kind))
    }

    /// Describes these looks of a held change, next to those that lower has if that is of the same kind.
    pub(in crate::overlay) fn tell_looks(
        &self,
        row: &UpperRow,
        looks: &Looks,
        kind: Option<FileKind>,
    ) -> Result<Vec<String>> {
        let path = row.path();
        let doing = || format!("look at {path}");
        let found = self.lower.find(path).doing(doing)?.filter(|_| row.base.below != Below::Nothing);
        let meta = found.as_ref().map(|found| Meta::of(found.as_fd())).transpose().doing(doing)?;
        let below = meta.zip(found.as_ref().map(AsFd::as_fd)).filter(|(below, _)| Some(below.kind) == kind);
        looks_told(looks, below).doing(doing)
    }

    /// True if an entry with the same bytes as lower's file is to have other looks.
    pub(super) fn brings_looks(&self, row: &UpperRow, new: &Side, present: &Side) -> Result<bool> {
        Ok(new.exists() && self.looks_held(row, new, present)?.is_some_and(|looks| !looks.own.is_empty()))
    }

    /// Records that a program of the view changes these looks of an entry. This comes before the change itself: after a
    /// crash in between, what is held under an id that does not cover it is judged anew.
    pub(in crate::overlay) fn note_own_looks(&self, id: UpperId, own: &OwnLooks) -> Result<()> {
        let mut state = self.state.lock();
        // The looks of a directory, FIFO, socket or device are no part of its id.
        let Some(upper) = state.uppers.get_mut(id).filter(|upper| !upper.row.what.is_structure()) else {
            return Ok(());
        };
        let before = upper.row.looks.clone();
        match &mut upper.row.looks {
            Some(looks) => looks.own.add(own),
            // The looks of a new file show by themselves, but not whether a program has changed its owner.
            None if own.owner && (upper.row.base.below == Below::Nothing || upper.row.held.is_some()) => {
                upper.row.looks = Some(FileLooks { own: own.clone(), ..FileLooks::alone() });
            }
            None => {}
        }
        if upper.row.looks != before && upper.has_row() {
            self.store.save_upper(&upper.row)?;
        }
        Ok(())
    }
}

/// What a change brings besides content, in words for people: each next to what the file below has, if that is its base.
fn looks_told(looks: &Looks, below: Option<(Meta, BorrowedFd<'_>)>) -> std::io::Result<Vec<String>> {
    let beside = |what: &str, old: Option<String>, new: String| match old {
        Some(old) => format!("{what} {old} -> {new}"),
        None => format!("{what} {new}"),
    };
    let mode = |mode: u32| format!("{mode:03o}");
    let owner = |(uid, gid): (u32, u32)| format!("{uid}:{gid}");
    let new_mode = looks.mode.map(|new| beside("mode", below.map(|(meta, _)| mode(meta.mode)), mode(new)));
    let new_owner =
        looks.owner.map(|new| beside("owner", below.map(|(meta, _)| owner((meta.uid, meta.gid))), owner(new)));
    let mut told: Vec<String> = new_mode.into_iter().chain(new_owner).collect();
    for (name, value) in &looks.xattrs {
        let what = format!("attribute {}", escape_name(name));
        let old = below.map(|(_, file)| xattr::find(file, OsStr::from_bytes(name))).transpose()?;
        told.push(beside(&what, old.map(|old| spelled(old.as_deref())), spelled(value.as_deref())));
    }
    Ok(told)
}

/// The value of an attribute on one line, if it is short enough to read.
fn spelled(value: Option<&[u8]>) -> String {
    match value {
        None => "none".to_owned(),
        Some(value) if value.len() > VALUE_TOLD_BYTES_MAX => format!("({} bytes)", value.len()),
        Some(value) => format!("\"{}\"", value.escape_ascii()),
    }
}

/// How the looks of a file or symlink differ from the one that it changes; `None` if lower has no such thing.
fn differing_looks(row: &UpperRow, new: &Side, present: &Side) -> std::io::Result<Option<OwnLooks>> {
    let (Below::Entry { mode, .. }, Some(ours), Some(theirs)) = (row.base.below, new.meta, present.meta) else {
        return Ok(None);
    };
    if new.kind != present.kind || row.what.is_structure() {
        return Ok(None);
    }
    let is_copy = row.looks.as_ref().is_some_and(|looks| !looks.alone);
    let mode = if is_copy { theirs.mode } else { mode };
    let xattrs = new.file.as_ref().zip(present.file.as_ref());
    let xattrs = xattrs.map(|(ours, theirs)| xattr::differing(ours.as_fd(), theirs.as_fd())).transpose()?;
    Ok(Some(OwnLooks {
        mode: new.is_file() && differs_in_mode(ours.mode, mode),
        owner: (ours.uid, ours.gid) != (theirs.uid, theirs.gid),
        xattrs: xattrs.unwrap_or_default(),
    }))
}

/// Set-id bits that a write has cleared are no difference.
fn differs_in_mode(ours: u32, theirs: u32) -> bool {
    ours & SET_ID & !theirs != 0 || ours & !SET_ID != theirs & !SET_ID
}

/// The mode of the file that a change is based on, or else that of a new file.
fn mode_of_base(base: &Base) -> u32 {
    match (base.below, base.content_below()) {
        (Below::Entry { mode, .. }, Some(Kept { symlink: false, .. })) => mode,
        (Below::Entry { .. } | Below::Nothing, _) => PLAIN_MODE,
    }
}

fn xattrs_of(new: &Side) -> std::io::Result<Vec<Vec<u8>>> {
    let names = new.file.as_ref().map(|file| xattr::list_set(file.as_fd())).transpose()?.unwrap_or_default();
    Ok(names.into_iter().map(OsString::into_vec).collect())
}

/// The looks that these effects changed.
pub(in crate::overlay) fn looks_of_effects(effects: &[Effect]) -> OwnLooks {
    let mut own = OwnLooks::default();
    for effect in effects {
        match effect {
            Effect::Mode { .. } => own.mode = true,
            Effect::Owner { .. } => own.owner = true,
            Effect::Xattr { name, .. } => own.xattrs.push(name.clone()),
            _ => {}
        }
    }
    own
}
