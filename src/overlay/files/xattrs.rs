//! Extended attributes: reported as the view has them, changed where the content is.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::XattrFlags;

use super::inode::Inode;
use super::set_attributes::SetTime;
use super::set_id::may_lend_group;
use crate::overlay::error::Context;
use crate::overlay::judge::looks::looks_of_effects;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::store::{Effect, PathEffect};
use crate::sys::file::{OwnLooks, SET_GID};
use crate::sys::reached::Reached;
use crate::sys::xattr::{self, ACCESS_ACL, CAPABILITY, DEFAULT_ACL};

/// Names that the view answers itself, and that no file below has.
const OWN_XATTRS: &[u8] = b"user.fettle.";

impl Overlay {
    pub fn get_xattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        if let Some(own) = name.as_bytes().strip_prefix(OWN_XATTRS) {
            return self.own_xattr(node, own);
        }
        if name == CAPABILITY && !self.grants.all() && self.is_written_in_upper(node)? {
            // The kernel asks before it writes. Copy-up and creation leave no such attribute, and no program may set one.
            return Err(Error::Errno(libc::ENODATA));
        }
        let passed = self.state.lock().nodes.get(node)?.passed().cloned();
        if let Some(passed) = passed {
            // The kernel asks for `security.capability` before it writes, even by itself.
            return Ok(xattr::get(passed.file().as_fd(), name)?);
        }
        let inode = self.inode_of(node)?;
        match xattr::get(inode.reached.as_fd(), name) {
            // Lower has no ACLs. The kernel would take this error for a failed check of permissions.
            Err(err) if is_acl(name) && err.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Err(Error::Errno(libc::ENODATA))
            }
            other => Ok(other?),
        }
    }

    pub fn list_xattrs(&self, node: NodeId) -> Result<Vec<OsString>> {
        let inode = self.inode_of(node)?;
        Ok(xattr::list(inode.reached.as_fd())?)
    }

    pub fn set_xattr(
        &self,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        caller: &Caller,
    ) -> Result<()> {
        self.change_xattr(node, (name, Some(value)), caller, |inode| {
            inode.each(|inode| xattr::set(inode.as_fd(), name, value, flags))?;
            if name == ACCESS_ACL {
                inode.each(|inode| drop_foreign_set_gid(inode, caller)).doing(|| inode.doing("change the mode of"))?;
            }
            Ok(())
        })
    }

    pub fn remove_xattr(&self, node: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        let remove = |inode: &Reached| xattr::remove(inode.as_fd(), name);
        self.change_xattr(node, (name, None), caller, |inode| Ok(inode.each(remove)?))
    }

    fn change_xattr(
        &self,
        node: NodeId,
        (name, after): (&OsStr, Option<&[u8]>),
        caller: &Caller,
        change: impl Fn(&Inode) -> Result<()>,
    ) -> Result<()> {
        let change = || {
            let inode = self.inode_for_xattr(node, (name, after), caller)?;
            let before = xattr::find(inode.reached.as_fd(), name)?;
            change(&inode)?;
            if name == ACCESS_ACL {
                self.passable.list_given();
            }
            self.xattrs_settled(&inode, (name, before, after.map(<[u8]>::to_vec)), caller)
        };
        self.change_left(node, caller, || self.change_looks(node, &looks_of_attribute(name), caller, change))
    }

    fn inode_for_xattr(&self, node: NodeId, (name, after): (&OsStr, Option<&[u8]>), caller: &Caller) -> Result<Inode> {
        self.check_may_write(caller)?;
        let inode = self.inode_to_change(node)?;
        self.check_not_frozen(&inode, caller)?;
        if is_acl(name) {
            self.check_is_owners(&inode, caller)?;
        }
        let bytes = name.as_bytes();
        // The kernel takes capabilities away as a file is cut or gets another owner.
        let gives = is_privileged(name) && !(name == CAPABILITY && after.is_none());
        let judged = match &inode.path {
            Some(path) if gives && !self.grants.all() => self.is_judged_by_any_name(path, &inode)?,
            Some(_) | None => false,
        };
        match bytes.starts_with(OWN_XATTRS) || judged {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(inode),
        }
    }

    fn xattrs_settled(
        &self,
        inode: &Inode,
        (name, before, after): (&OsStr, Option<Vec<u8>>, Option<Vec<u8>>),
        caller: &Caller,
    ) -> Result<()> {
        let Some(path) = &inode.path else { return Ok(()) };
        let now = inode.meta()?;
        let is_told = || self.action(path, inode.kind) != Action::Pass && !self.state.lock().past.is_fresh(path);
        if before != after && (inode.entry.is_some() || is_told()) {
            let effect = Effect::Xattr { name: name.as_bytes().to_vec(), before, after };
            let effects: Vec<Effect> = std::iter::once(effect).chain(inode.effects(&now)).collect();
            match inode.entry {
                Some(id) => self.note_own_looks(id, &looks_of_effects(&effects))?,
                None => {
                    let what = format!("[attribute {}]", name.to_string_lossy());
                    let effects = effects.into_iter().map(|effect| PathEffect::on(path, effect, Some(&now)));
                    self.record_structure(path, what, effects, Vec::new(), &self.doer(caller))?;
                }
            }
        }
        inode.entry.map_or(Ok(()), |id| self.mark_dirty(id))?;
        self.remember_changed(inode, &now, SetTime::Keep);
        Ok(())
    }

    /// `user.fettle.state`, `.id`, `.reason` and `.externally_modified` of every file of the view (SPEC §14).
    fn own_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let path = self.path_there(node).or_else(|err| match err.code() {
            // If nothing is left of it, the kernel is to look again.
            libc::ENOENT => self.inode_of(node)?.path.ok_or(err),
            _ => Err(err),
        })?;
        let held = match self.origin(&path)? {
            Origin::Upper(id, _) => {
                let state = self.state.lock();
                state.uppers.get(id).map(|upper| (upper.row.held.clone(), upper.dirty))
            }
            Origin::Nothing | Origin::Lower(_) | Origin::Hidden(_) => None,
        };
        let held_change = held.as_ref().and_then(|(held, _)| held.as_ref());
        let absent = Error::Errno(libc::ENODATA);
        let text = match name {
            b"state" => match &held {
                Some((Some(_), _)) => "held".to_owned(),
                Some((None, true)) => "dirty".to_owned(),
                Some((None, false)) | None => "clean".to_owned(),
            },
            b"id" => held_change.ok_or(absent)?.id.to_string(),
            b"reason" => held_change.and_then(|held| held.reasons.first()).ok_or(absent)?.to_string(),
            b"externally_modified" => match self.externally(&path)?.is_some() {
                true => "1".to_owned(),
                false => "0".to_owned(),
            },
            _ => return Err(absent),
        };
        Ok(text.into_bytes())
    }
}

/// An ACL sets the group's permissions, and a caller outside that group must not lend its id with them. Lower would clear
/// the set-gid bit as `chmod` does, but it sees us set the ACL, not the caller.
fn drop_foreign_set_gid(inode: &Reached, caller: &Caller) -> std::io::Result<()> {
    let meta = inode.meta()?;
    match meta.mode & SET_GID != 0 && !may_lend_group(meta.gid, caller) {
        true => inode.set_mode(meta.mode & !SET_GID),
        false => Ok(()),
    }
}

fn looks_of_attribute(name: &OsStr) -> OwnLooks {
    OwnLooks { xattrs: vec![name.as_bytes().to_vec()], ..OwnLooks::default() }
}

/// True for attributes that only a privileged process may set.
pub(in crate::overlay) fn is_privileged(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(b"security.") || bytes.starts_with(b"trusted.")
}

fn is_acl(name: &OsStr) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}
