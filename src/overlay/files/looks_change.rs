//! Changes of mode, owner and extended attributes. Those of what waits for review are judged with it, and so are those of
//! a file of lower if a rule has its path reviewed (SPEC §4.7).
//!
//! Such a file gets an upper entry first, as by a write. The attributes about to change are noted before, and set while
//! the entry can be neither judged nor landed; then it is judged. If that is refused, it gets its old looks back.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::handles::OpenFile;
use crate::model::{Looks, RelPath};
use crate::overlay::error::Context;
use crate::overlay::judge::claim::Claim;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::{Action, HoldSource};
use crate::store::{FileLooks, UpperId, UpperRow, Writer};
use crate::sys::file::{self, FileKind, Meta, OwnLooks};
use crate::sys::reached::Reached;

/// An entry whose looks are about to change.
struct Changing<'a> {
    claimed: Claim<'a>,
    /// `None` if there is nothing to judge or take back: the entry has landed, is structure, or only times change.
    was: Option<Was>,
}

/// The former looks of an entry. It is opened before the change, so that nothing but the disk can keep it from getting
/// them back.
struct Was {
    reached: Reached,
    looks: Looks,
    noted: Option<FileLooks>,
}

impl Overlay {
    /// Keeps an upper entry from landing while `change` sets these looks and its times: a landing that has copied the old
    /// ones would bring them back. A new empty file lands after its close, just when programs set its mode and times.
    pub(super) fn change_looks(
        &self,
        node: NodeId,
        looks: &OwnLooks,
        caller: &Caller,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.check_asked_name(node)?;
        let _acting = self.acting_on(node);
        let changing = match looks.is_empty() {
            true => self.claim_at(node).map(|claimed| Changing { claimed, was: None }),
            false => self.claim_for_looks(node, looks, caller)?,
        };
        let noted = match &changing {
            Some(Changing { claimed, was: Some(_) }) => self.note_change(claimed.id, looks),
            Some(_) | None => Ok(()),
        };
        let changed = noted.and_then(|()| change());
        let Some(Changing { claimed, was }) = changing else { return changed };
        let id = claimed.id;
        drop(claimed);
        // It may have landed just before, and our claim has kept its entry from being let go then.
        self.evict(id);
        let Some(was) = was else { return changed };
        let judged = changed.and_then(|()| self.judge_looks(id, caller));
        if judged.is_err()
            && let Err(second) = self.look_as_before(id, &was).and_then(|()| self.judge_looks(id, caller))
        {
            log::error!("take back what a file was to look like: {second}");
        }
        judged
    }

    fn claim_at(&self, node: NodeId) -> Option<Claim<'_>> {
        loop {
            let id = {
                let state = self.state.lock();
                state.uppers.at(&state.nodes.path(node).ok()?)?
            };
            if let Some((_, claimed)) = self.claim_if_there(id) {
                return Some(claimed);
            }
        }
    }

    /// Claims the entry whose looks are to change. A file of lower gets one if a rule has its path reviewed.
    fn claim_for_looks(&self, node: NodeId, looks: &OwnLooks, caller: &Caller) -> Result<Option<Changing<'_>>> {
        let by = self.writer(caller);
        loop {
            let Ok(path) = self.path_of(node) else { return Ok(None) };
            if path.is_root() {
                return Ok(None);
            }
            let origin = self.origin(&path)?;
            let (Origin::Lower(meta) | Origin::Upper(_, meta)) = &origin else { return Ok(None) };
            let claimed = match &origin {
                Origin::Upper(id, _) => self.claim_if_there(*id).map(|(_, claimed)| claimed),
                Origin::Lower(_) | Origin::Nothing | Origin::Hidden(_) => match self.gate_of_looks(&path, meta, &by)? {
                    Some(rule) => self.take_up(&path, meta.kind, rule)?,
                    None => return Ok(None),
                },
            };
            let Some(claimed) = claimed else { continue };
            if self.is_landed(claimed.id) && self.gate_of_looks(&path, meta, &by)?.is_none() {
                return Ok(Some(Changing { claimed, was: None }));
            }
            return self.about_to_change(claimed, looks, caller).map(Some);
        }
    }

    fn about_to_change<'a>(&'a self, claimed: Claim<'a>, looks: &OwnLooks, caller: &Caller) -> Result<Changing<'a>> {
        match self.look_of(claimed.id, looks) {
            Ok(was) => Ok(Changing { claimed, was }),
            Err(err) => {
                let id = claimed.id;
                drop(claimed);
                self.judge_looks(id, caller)?;
                Err(err)
            }
        }
    }

    /// Returns `None` for a directory, FIFO, socket or device: their looks are no part of their ids.
    fn look_of(&self, id: UpperId, looks: &OwnLooks) -> Result<Option<Was>> {
        let row = self.state.lock().uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        if row.what.is_structure() {
            return Ok(None);
        }
        let doing = || format!("look at {}", row.path());
        let reached = self.reach_upper(id, row.path())?;
        let meta = reached.meta().doing(doing)?;
        // A new owner, or an ACL, changes the mode as well.
        let looks = OwnLooks { mode: true, ..looks.clone() }.values(Some(reached.as_fd()), &meta).doing(doing)?;
        Ok(Some(Was { reached, looks, noted: row.looks }))
    }

    fn note_change(&self, id: UpperId, looks: &OwnLooks) -> Result<()> {
        // A new file is judged by the looks that it has then, as long as none were noted.
        let is_plain = |row: &UpperRow| row.is_new() && row.looks.is_none();
        if !self.state.lock().uppers.get(id).is_some_and(|upper| is_plain(&upper.row)) {
            self.note_own_looks(id, looks)?;
        }
        self.mark_dirty(id)
    }

    fn look_as_before(&self, id: UpperId, was: &Was) -> Result<()> {
        let Some(_claimed) = self.claim_if_there(id) else { return Ok(()) };
        file::give_looks(&was.looks, was.reached.as_fd()).doing(|| format!("change attributes of upper entry {id}"))?;
        if let Some(upper) = self.state.lock().uppers.get_mut(id) {
            upper.row.looks = was.noted.clone();
        }
        Ok(())
    }

    /// Returns the rule that has mode, owner and attributes of a path of lower reviewed, as it has content (SPEC §4.7). A
    /// rule for another name of the file counts as well, also where nobody judges this one.
    fn gate_of_looks(&self, path: &RelPath, meta: &Meta, by: &Writer) -> Result<Option<HoldSource>> {
        let gate = |path: &RelPath| match self.action_on_content(path, meta.kind, by) {
            Action::Hold(rule) => Some(rule),
            Action::Auto | Action::Pass | Action::GitConfig | Action::Deny | Action::Freeze => None,
        };
        match meta.kind {
            FileKind::Regular if self.links_below(meta) > 1 => {
                let mut found = gate(path);
                if found.is_none() {
                    self.judged_name_below(meta.key(), |name| {
                        found = gate(name);
                        found.is_some()
                    })?;
                }
                Ok(found)
            }
            FileKind::Regular | FileKind::Symlink => Ok(gate(path)),
            FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Ok(None)
            }
        }
    }

    /// Has an entry judged with the looks that it has now, unless a program has written to it as well: its close does
    /// that.
    fn judge_looks(&self, id: UpperId, caller: &Caller) -> Result<()> {
        let is_to_judge = {
            let state = self.state.lock();
            let is_its = |open: &Arc<OpenFile>| open.upper() == Some(id);
            let is_written =
                || state.handles.values().any(|handle| handle.is_unjudged() && handle.judged().is_some_and(is_its));
            state.uppers.get(id).is_some_and(|upper| upper.dirty && !upper.row.what.is_structure()) && !is_written()
        };
        if is_to_judge {
            self.settle(id, &self.doer(caller))?;
        }
        Ok(())
    }
}
