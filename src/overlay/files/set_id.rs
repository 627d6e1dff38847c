//! Set-id bits, which lend the rights of a file's owner or group to those who run it. A change of content ends that, unless
//! who changes it may keep such bits. The kernel leaves it to us. (Lower itself clears them as the owner changes.)

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::overlay::{Caller, Overlay};
use crate::sys::file::{self, Meta, SET_GID, SET_ID, SET_UID};
use crate::sys::process;

impl Overlay {
    /// Judged content lends nobody's rights, whoever changes it, unless the mount allows that (SPEC §6).
    pub(super) fn lend_nothing(&self, file: &File, meta: &Meta) -> io::Result<()> {
        if self.grants.suid { Ok(()) } else { file::clear_set_id(file.as_fd(), meta.mode) }
    }
}

/// Clears the bits that `caller` may not keep on a file whose content it changes.
pub(super) fn drop_set_id(file: &File, caller: &Caller) -> io::Result<()> {
    drop_set_id_of(file, &Meta::of(file.as_fd())?, caller)
}

pub(super) fn drop_set_id_of(file: &File, meta: &Meta, caller: &Caller) -> io::Result<()> {
    let keeps = || process::rights(caller.pid).is_some_and(|rights| rights.keeps_set_id());
    if meta.mode & SET_ID == 0 || keeps() {
        return Ok(());
    }
    match without_set_id(meta, caller) {
        kept if kept == meta.mode => Ok(()),
        // Where we are not its owner, we have no right to keep the bits either: lower clears them as we write.
        kept => file::give_mode(file.as_fd(), kept),
    }
}

/// Returns the mode that is left of a file's.
pub(super) fn without_set_id(meta: &Meta, caller: &Caller) -> u32 {
    let mode = meta.mode & !SET_UID;
    // Without the group's execute bit, set-gid lends no group but marks the file for mandatory locks.
    let is_mark = mode & (SET_GID | 0o010) == SET_GID;
    if is_mark && may_lend_group(meta.gid, caller) { mode } else { mode & !SET_GID }
}

/// Whether `caller` may set set-gid on files of a group.
pub(super) fn may_lend_group(gid: u32, caller: &Caller) -> bool {
    caller.gid == gid || process::rights(caller.pid).is_some_and(|rights| rights.lends_group(gid))
}
