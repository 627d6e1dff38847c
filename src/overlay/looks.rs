//! What a file looks like when it lands: its mode, owner and attributes, as far as the change brings them, and for the rest
//! those that lower has by then (SPEC §9).
//!
//! The upper file itself takes over what somebody has changed below ([`Overlay::take_looks_below`]), so that whatever lands
//! it, or goes on writing to it, finds it dressed. What the view changes is noted as the change's own
//! ([`Overlay::note_own_looks`]).

use std::os::fd::AsFd;

use super::error::Context;
use super::settle::leaves_other_names;
use super::side::Side;
use super::{Overlay, Result};
use crate::store::{Base, Below, Effect, FileLooks, UpperId, UpperRow};
use crate::sys::file::{self, Meta, OwnLooks, SET_ID};
use crate::sys::xattr;

impl Overlay {
    /// What lower's file looks like now the new content looks like, too, but for what is its own. Mostly nobody has touched
    /// that since it was copied, which its ctime tells.
    pub(super) fn take_looks_below(&self, row: &UpperRow, new: &mut Side, present: &Side) -> Result<()> {
        let (Some(looks), Some(now)) = (&row.looks, present.meta) else { return Ok(()) };
        let (Some(ours), Some(theirs)) = (&new.file, &present.file) else { return Ok(()) };
        if looks.alone || now.ctime == looks.as_of {
            return Ok(());
        }
        let doing = || format!("change attributes of {}", row.names[0]);
        // What is written lends nobody's rights, whoever may do so below.
        let meta = Meta { mode: now.mode & !SET_ID | new.mode & SET_ID, ..now };
        file::copy_looks_but(&looks.own, theirs.as_fd(), &meta, ours.as_fd()).doing(doing)?;
        let meta = Meta::of(ours.as_fd()).doing(doing)?;
        (new.mode, new.meta) = (meta.mode, Some(meta));
        self.tell_landed(&row.names[0]);
        Ok(())
    }

    /// What an entry begins to wait with: of a file that came in the place of another its own is what differs, and all where
    /// that other has further names.
    pub(super) fn looks_beside(&self, base: &Base, new: &Side, present: &Side) -> Result<Option<FileLooks>> {
        if leaves_other_names(base, present) {
            return Ok(Some(FileLooks::alone()));
        }
        let (Below::Entry { mode, .. }, Some(ours), Some(theirs)) = (base.below, new.meta, present.meta) else {
            return Ok(None);
        };
        let (Some(file), Some(below)) = (&new.file, &present.file) else { return Ok(None) };
        let own = OwnLooks {
            mode: ours.mode & !SET_ID != mode & !SET_ID,
            owner: (ours.uid, ours.gid) != (theirs.uid, theirs.gid),
            xattrs: xattr::differing(file.as_fd(), below.as_fd())?,
        };
        Ok(Some(FileLooks { own, ..FileLooks::default() }))
    }

    /// A program of the view has changed what an entry looks like, by these effects.
    pub(super) fn note_own_looks(&self, id: UpperId, effects: Vec<Effect>) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(upper) = state.uppers.get_mut(id)
            && let Some(looks) = &mut upper.row.looks
        {
            let before = looks.own.clone();
            effects.into_iter().for_each(|effect| looks.note_own(effect));
            if looks.own != before && upper.saved {
                self.store.save_upper(&upper.row)?;
            }
        }
        Ok(())
    }
}

impl FileLooks {
    fn note_own(&mut self, effect: Effect) {
        match effect {
            Effect::Mode { .. } => self.own.mode = true,
            Effect::Owner { .. } => self.own.owner = true,
            Effect::Xattr { name, .. } if !self.own.xattrs.contains(&name) => self.own.xattrs.push(name),
            _ => {}
        }
    }
}
