//! Whether a caller may open a file of lower. The kernel has checked that already, of what it found at the name. But
//! someone may put another file there below at any moment, and what root does by a name is done to that one.

use std::os::fd::AsFd;

use super::handles::OpenFlags;
use super::inode::Inode;
use super::open::Look;
use super::reading::access_of;
use crate::model::{Acl, RelPath};
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::store::Writer;
use crate::sys::file::Meta;
use crate::sys::process;

/// The bits of a mode, for one class.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const RUN: u32 = 0o1;

/// Where the bits of a class are in a mode.
const OWNER: u32 = 6;
const GROUP: u32 = 3;
const OTHERS: u32 = 0;

impl Overlay {
    /// Returns `ESTALE` if neither the mode nor the ACL of what is there lets `caller` open it: the kernel looks again,
    /// and refuses. Never stricter than the kernel: of callers outside our pid namespace nothing is known, and they are
    /// let through.
    pub(super) fn check_permission(
        &self,
        path: &RelPath,
        (meta, look): (&Meta, &Look),
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<()> {
        let wanted = wanted(flags);
        if may_without_groups(meta, caller.uid, wanted) {
            return Ok(());
        }
        let access = match &look.file {
            Some(file) => Some(access_of(file.as_fd())?),
            None => self.access_below(path)?,
        };
        let Some((meta, list)) = access else { return Err(Error::Errno(libc::ESTALE)) };
        if group_may(&meta, list.as_ref(), caller.uid, &[caller.gid]) & wanted == wanted {
            return Ok(());
        }
        let Some(rights) = process::rights(caller.pid) else { return Ok(()) };
        let may = group_may(&meta, list.as_ref(), caller.uid, &rights.groups()) & wanted == wanted;
        if may || rights.opens_all() { Ok(()) } else { Err(Error::Errno(libc::ESTALE)) }
    }

    /// The same for what only the owner of a file may do, or a process that may act for owners.
    pub(super) fn check_is_owners(&self, inode: &Inode, caller: &Caller) -> Result<()> {
        if inode.entry.is_some() || caller.uid == 0 || inode.meta()?.uid == caller.uid {
            return Ok(());
        }
        match process::rights(caller.pid).is_some_and(|rights| rights.acts_for_owners()) {
            true => Ok(()),
            false => Err(Error::Errno(libc::ESTALE)),
        }
    }
}

fn wanted(flags: OpenFlags) -> u32 {
    if flags.executes() {
        return RUN;
    }
    let reads = if flags.only_writes() { 0 } else { READ };
    reads | if flags.may_change() { WRITE } else { 0 }
}

/// True if mode and ACL of a directory let a writer make something in it, as far as that is known.
pub(super) fn may_make_in((meta, list): &(Meta, Option<Acl>), writer: &Writer) -> bool {
    let wanted = WRITE | RUN;
    let by_groups = |groups: &[u32]| group_may(meta, list.as_ref(), writer.uid, groups) & wanted == wanted;
    may_without_groups(meta, writer.uid, wanted)
        || process::rights(writer.pid).is_some_and(|rights| by_groups(&rights.groups()))
}

/// True if a user may as root, as the owner or as all others may, which takes no further look.
fn may_without_groups(meta: &Meta, uid: u32, wanted: u32) -> bool {
    let lets = |class: u32| meta.mode >> class & wanted == wanted;
    uid == 0 || lets(OTHERS) || (meta.uid == uid && lets(OWNER))
}

/// Returns what a user may do by being in these groups, or by being named in the ACL.
fn group_may(meta: &Meta, list: Option<&Acl>, uid: u32, groups: &[u32]) -> u32 {
    let is_owners = groups.contains(&meta.gid);
    match list {
        Some(list) => list.permits(uid, groups, is_owners),
        None if is_owners => meta.mode >> GROUP & 0o7,
        None => 0,
    }
}
