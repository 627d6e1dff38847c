//! Attributes and extended attributes: told as the view has them, changed where the content is.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT, XattrFlags};

use super::error::Context;
use super::lookup::Origin;
use super::nodes::{Node, NodeId};
use super::open::{Backing, HandleId};
use super::uppers::Upper;
use super::{Caller, Error, Overlay, Result};
use crate::model::{RelPath, Timestamp};
use crate::policy::rules::Action;
use crate::store::UpperId;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::{OFlags, xattr};

#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub inode: u64,
    pub meta: Meta,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Keep,
    Now,
    At(Timestamp),
}

/// Attributes to change; none means as they are.
#[derive(Clone, Copy, Debug)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// Names that the view answers itself, and that no file below has.
const OWN_XATTRS: &[u8] = b"user.fettle.";

impl Attributes {
    pub(super) fn new(inode: u64, meta: Meta) -> Self {
        Self { inode, meta }
    }
}

impl Overlay {
    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let inode = self.state.lock().nodes.number(node);
        Ok(Attributes::new(inode, self.meta_of(node)?))
    }

    fn meta_of(&self, node: NodeId) -> Result<Meta> {
        let (path, unlinked, removed) = {
            let state = self.state.lock();
            let found = state.nodes.get(node)?;
            (state.nodes.path(node).ok(), found.open.clone(), found.removed)
        };
        match (path, unlinked) {
            (Some(path), _) => match self.origin(&path)? {
                Origin::Lower(meta) | Origin::Upper(_, meta) => Ok(meta),
                Origin::Nothing | Origin::Hidden(_) => Err(Error::Errno(libc::ENOENT)),
            },
            // Unlinked and still open: all that is left of it is the descriptor.
            (None, Some(open)) => {
                let meta = Meta::of(open.file().as_fd()).doing(|| "stat an unlinked file".to_owned())?;
                Ok(Meta { links: 0, ..meta })
            }
            (None, None) => removed.map(|meta| Meta { links: 0, ..meta }).ok_or(Error::Errno(libc::ENOENT)),
        }
    }

    /// What the view shows of an upper entry. A landed one that a writer still has open shows what lower has.
    pub(super) fn upper_meta(&self, path: &RelPath, id: UpperId) -> Result<Meta> {
        let (landed, names, links) = {
            let state = self.state.lock();
            let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ENOENT))?;
            (upper.is_landed(), upper.row.names.len(), upper.links_below())
        };
        if landed && let Some(meta) = self.lower.stat(path).doing(|| format!("stat {path}"))? {
            return Ok(meta);
        }
        // Names of the inode below may have come and gone since it was first written.
        let links = match links {
            0 | 1 => links,
            _ => self.lower.stat(path).doing(|| format!("stat {path}"))?.map_or(1, |meta| meta.links),
        };
        let meta = self.store.upper_meta(id)?;
        Ok(Meta { links: links.max(u32::try_from(names).unwrap_or(u32::MAX)), ..meta })
    }

    pub fn set_attributes(
        &self,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
        caller: &Caller,
    ) -> Result<Attributes> {
        self.check_may_write(caller)?;
        if let Some(size) = set.size {
            self.truncate(node, handle, size, caller)?;
        }
        if set.changes_inode() {
            self.set_inode_attributes(node, set, caller)?;
        }
        self.attributes(node)
    }

    fn set_inode_attributes(&self, node: NodeId, set: &SetAttributes, caller: &Caller) -> Result<()> {
        let target = self.inode_of(node)?;
        if let (Some(path), Some(mode)) = (&target.path, set.mode) {
            self.check_set_id(path, target.kind, mode)?;
        }
        let fd = target.fd.as_fd();
        let doing = || target.doing("change attributes of");
        if set.uid.is_some() || set.gid.is_some() {
            set_owner(&target, set.uid, set.gid).doing(doing)?;
        }
        if let Some(mode) = set.mode {
            file::set_mode(fd, mode & 0o7777).doing(doing)?;
        }
        if (set.atime, set.mtime) != (SetTime::Keep, SetTime::Keep) {
            set_times(&target, set.atime.timespec(), set.mtime.timespec()).doing(doing)?;
        }
        target.path.map_or(Ok(()), |path| self.attributes_settled(&path, target.kind, set, caller))
    }

    /// A mode that comes to a held change belongs to it; times do not (SPEC §4.7).
    fn attributes_settled(&self, path: &RelPath, kind: FileKind, set: &SetAttributes, caller: &Caller) -> Result<()> {
        let what = match (set.mode, set.uid.or(set.gid)) {
            (Some(mode), _) => format!("[mode {:03o}]", mode & 0o7777),
            (None, Some(_)) => "[owner]".to_owned(),
            (None, None) => return self.remember_below(path),
        };
        let upper = self.state.lock().uppers.at(path);
        match upper {
            Some(id) => self.mark_dirty(id)?,
            None if self.action(path, kind) == Action::Pass => {}
            None => self.record_structure(path, what, Vec::new(), caller)?,
        }
        // Our own act is not an external change.
        self.remember_below(path)
    }

    /// set-user-id and set-group-id on judged files are refused unless the mount allows them (SPEC §6).
    fn check_set_id(&self, path: &RelPath, kind: FileKind, mode: u32) -> Result<()> {
        let gated = mode & SET_ID != 0 && kind != FileKind::Directory && !self.grants.suid;
        match gated && self.action(path, kind) != Action::Pass {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(()),
        }
    }

    /// The inode whose attributes are those of a node.
    fn inode_of(&self, node: NodeId) -> Result<Inode> {
        let (path, kind, open) = {
            let state = self.state.lock();
            let found: &Node = state.nodes.get(node)?;
            (state.nodes.path(node).ok(), found.kind, found.open.clone())
        };
        let Some(path) = path else {
            let open = open.ok_or(Error::Errno(libc::ENOENT))?;
            let fd = open.file().as_fd().try_clone_to_owned().doing(|| "duplicate a descriptor".to_owned())?;
            return Ok(Inode { path: None, kind, fd, place: None });
        };
        let place = match self.origin(&path)? {
            Origin::Upper(id, _) if !self.is_landed(id) => self.store.upper_place(id)?,
            Origin::Lower(_) | Origin::Upper(..) if path.is_root() => return self.root_inode(),
            Origin::Lower(_) | Origin::Upper(..) => self.lower.place(&path)?,
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
        };
        let fd = place.open(OFlags::PATH).doing(|| format!("open {path}"))?;
        Ok(Inode { path: Some(path), kind, fd, place: Some(place) })
    }

    fn root_inode(&self) -> Result<Inode> {
        let fd = self.lower.open_at(&RelPath::root(), OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Inode { path: Some(RelPath::root()), kind: FileKind::Directory, fd, place: None })
    }

    fn is_landed(&self, id: UpperId) -> bool {
        self.state.lock().uppers.get(id).is_none_or(Upper::is_landed)
    }

    pub fn get_xattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        if let Some(own) = name.as_bytes().strip_prefix(OWN_XATTRS) {
            return self.own_xattr(node, own);
        }
        if name == "security.capability" && !self.grants.all() && self.is_written_in_upper(node)? {
            // The kernel asks at each write; copy-up and creation leave none, and nobody may set one.
            return Err(Error::Errno(libc::ENODATA));
        }
        let inode = self.inode_of(node)?;
        Ok(xattr::get(inode.fd.as_fd(), name)?)
    }

    fn is_written_in_upper(&self, node: NodeId) -> Result<bool> {
        let state = self.state.lock();
        let open = state.nodes.get(node)?.open.as_ref();
        Ok(open.is_some_and(|open| matches!(*open.backing(), Backing::Upper(..) | Backing::Orphan(_))))
    }

    pub fn list_xattrs(&self, node: NodeId) -> Result<Vec<OsString>> {
        let inode = self.inode_of(node)?;
        Ok(xattr::list(inode.fd.as_fd())?)
    }

    pub fn set_xattr(&self, node: NodeId, name: &OsStr, value: &[u8], flags: XattrFlags) -> Result<()> {
        let inode = self.inode_for_xattr(node, name)?;
        xattr::set(inode.fd.as_fd(), name, value, flags)?;
        self.xattrs_settled(&inode)
    }

    pub fn remove_xattr(&self, node: NodeId, name: &OsStr) -> Result<()> {
        let inode = self.inode_for_xattr(node, name)?;
        xattr::remove(inode.fd.as_fd(), name)?;
        self.xattrs_settled(&inode)
    }

    fn inode_for_xattr(&self, node: NodeId, name: &OsStr) -> Result<Inode> {
        self.check_writable()?;
        let inode = self.inode_of(node)?;
        let bytes = name.as_bytes();
        let gated = bytes.starts_with(b"security.") || bytes.starts_with(b"trusted.");
        let allowed = self.grants.all();
        let judged = inode.path.as_ref().is_some_and(|path| self.action(path, inode.kind) != Action::Pass);
        match bytes.starts_with(OWN_XATTRS) || (gated && judged && !allowed) {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(inode),
        }
    }

    fn xattrs_settled(&self, inode: &Inode) -> Result<()> {
        let Some(path) = &inode.path else { return Ok(()) };
        let upper = self.state.lock().uppers.at(path);
        if let Some(id) = upper {
            self.mark_dirty(id)?;
        }
        self.remember_below(path)
    }

    /// `user.fettle.state`, `.id`, `.reason` and `.externally_modified` of every file of the view (SPEC §14).
    fn own_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let path = self.path_of(node)?;
        let held = {
            let state = self.state.lock();
            let upper = state.uppers.at(&path).and_then(|id| state.uppers.get(id));
            upper.map(|upper| (upper.row.held.clone(), upper.dirty))
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

/// The one inode that a change of attributes goes to.
struct Inode {
    /// None once it is unlinked.
    path: Option<RelPath>,
    kind: FileKind,
    fd: OwnedFd,
    place: Option<crate::sys::tree::Place>,
}

impl Inode {
    fn doing(&self, verb: &str) -> String {
        match &self.path {
            Some(path) => format!("{verb} {path}"),
            None => format!("{verb} an unlinked file"),
        }
    }
}

/// By name where there is one: `fchown` and `futimens` refuse the `O_PATH` descriptors that symlinks need.
fn set_owner(inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> std::io::Result<()> {
    match &inode.place {
        Some(place) => place.set_owner(uid, gid),
        None => file::set_owner(reopened(inode)?.as_fd(), uid, gid),
    }
}

fn set_times(inode: &Inode, access: Timespec, modification: Timespec) -> std::io::Result<()> {
    match &inode.place {
        Some(place) => place.set_times(access, modification),
        None => file::set_times(reopened(inode)?.as_fd(), access, modification),
    }
}

fn reopened(inode: &Inode) -> std::io::Result<std::fs::File> {
    file::reopen(inode.fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)
}

impl SetAttributes {
    fn changes_inode(&self) -> bool {
        let times = (self.atime, self.mtime) != (SetTime::Keep, SetTime::Keep);
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || times
    }
}

impl SetTime {
    fn timespec(self) -> Timespec {
        match self {
            Self::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Self::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Self::At(time) => file::to_timespec(time),
        }
    }
}

impl Upper {
    /// How many names the lower inode has that this entry stands for.
    fn links_below(&self) -> u32 {
        match self.row.base.below {
            crate::store::Below::Nothing => 1,
            crate::store::Below::Entry { links, .. } => links,
        }
    }
}

/// What an open file reads from, for those who only want its descriptor.
impl super::open::OpenFile {
    pub(super) fn file(&self) -> std::sync::Arc<std::fs::File> {
        match &*self.backing() {
            Backing::Lower(file) | Backing::Upper(_, file) | Backing::Orphan(file) => file.clone(),
        }
    }
}
