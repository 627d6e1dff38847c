//! Undoing changes of attributes: modes, owners, times and extended attributes become what they were.
//!
//! Each takes one call below and is recorded then; if the record fails, the attributes are set back.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use super::{UndoHow, already, not_undone, structure_outcome, undone_event};
use crate::model::{Looks, OperationId, RelPath, Timestamp};
use crate::overlay::files::xattrs::is_privileged;
use crate::overlay::review::{Reviewed, failed};
use crate::overlay::{Error, Overlay, Result};
use crate::protocol::{ErrorCode, Outcome, refused_at};
use crate::store::{Effect, Epilogue, EventDraft, Operation, PathEffect};
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta, SET_ID};
use crate::sys::tree::{Place, is_absent};
use crate::sys::xattr;

/// The attributes that an operation has changed, either as wanted or as found.
#[derive(Clone, Debug, Default, PartialEq)]
struct Attributes {
    looks: Looks,
    /// Of last access and last modification.
    times: Option<(Timestamp, Timestamp)>,
}

/// What to sync for an entry's attributes to reach the disk.
enum ToSync {
    Inode(File),
    FileSystem(OwnedFd),
}

impl ToSync {
    /// FIFOs, sockets and devices are not opened, since that would wake a process waiting for the other end of a pipe.
    /// For them, for symlinks and for files that we may not read, the whole file system is synced.
    fn of(kind: FileKind, place: &Place, fd: BorrowedFd<'_>) -> io::Result<Self> {
        let opened = match kind {
            FileKind::Regular | FileKind::Directory => file::reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK),
            FileKind::Symlink | FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                return place.open_dir().map(Self::FileSystem);
            }
        };
        match opened {
            Err(err) if err.raw_os_error() == Some(libc::EACCES) => place.open_dir().map(Self::FileSystem),
            opened => opened.map(Self::Inode),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Inode(file) => file.sync_all(),
            Self::FileSystem(dir) => Ok(rustix::fs::syncfs(dir)?),
        }
    }
}

/// True if an effect is one on attributes.
pub(super) fn is_on_attributes(effect: &Effect) -> bool {
    matches!(effect, Effect::Mode { .. } | Effect::Owner { .. } | Effect::Times { .. } | Effect::Xattr { .. })
}

impl Overlay {
    pub(super) fn undo_attributes(&self, operation: &Operation, how: &UndoHow) -> Reviewed<Vec<Outcome>> {
        let done = &operation.effects[0];
        let path = &done.path;
        self.check_may_land(path, &how.review.by)?;
        let (place, fd) = self.find_to_dress(path)?;
        let now = Meta::of(fd.as_fd()).map_err(|err| failed(path, &err.into()))?;
        self.check_is_same(done, &now, operation)?;
        self.check_may_rewrite(path, Some(&now), &how.review.by)?;
        self.check_may_dress(path, &now, operation, &how.permits)?;
        let (mut wanted, mut found) = (Attributes::default(), Attributes::default());
        for effect in operation.effects.iter().filter_map(|done| self.grantable(&done.effect, &now)) {
            let is_changed = wanted.add(&mut found, &effect, &now, fd.as_fd()).map_err(|err| failed(path, &err))?;
            if is_changed && !how.force {
                return Err(refused_at(path, ErrorCode::Conflict, "its attributes were changed since"));
            }
        }
        if wanted == Attributes::default() {
            return Err(already(operation));
        }
        let mut outcome = structure_outcome(path);
        if how.review.dry_run {
            return Ok(vec![outcome]);
        }
        let effects = wanted.effects(&found).into_iter().map(|effect| PathEffect::on(path, effect, Some(&now)));
        let event = undone_event(self, path, operation, how).doing(effects);
        let set_back = self.set_back(path, (&place, fd.as_fd()), &now, (&wanted, &found), event);
        let (undone, to_sync) = set_back.map_err(|err| not_undone(path, &err))?;
        if let Err(err) = self.dress_held(path, &now) {
            log::error!("{path} has its attributes again, and what is held over it does not: {err}");
        }
        self.tell_content_changed(path);
        self.durable(path, to_sync.sync().map_err(Error::from)).map_err(|err| failed(path, &err))?;
        outcome.operation = undone.map(|undone| undone.to_string());
        Ok(vec![outcome])
    }

    /// What stands at a path, as a path descriptor, with its place.
    fn find_to_dress(&self, path: &RelPath) -> Reviewed<(Place, OwnedFd)> {
        let found = self.lower.place(path).and_then(|place| Ok((place.open(OFlags::PATH)?, place)));
        match found {
            Err(err) if is_absent(&err) => Err(refused_at(path, ErrorCode::Conflict, "it is not there any more")),
            found => found.map(|(fd, place)| (place, fd)).map_err(|err| failed(path, &err.into())),
        }
    }

    /// The part of a reversal that may be granted. Since then the file may have been written by a program without the
    /// right to give it set-id bits or privileged attributes, so these do not come back (SPEC §6).
    fn grantable(&self, effect: &Effect, now: &Meta) -> Option<Effect> {
        match effect {
            Effect::Mode { before, after } if now.is_file() && !self.grants.suid => {
                // Set-id bits stay as they are now.
                let before = before & !SET_ID | now.mode & SET_ID;
                Some(Effect::Mode { before, after: *after })
            }
            Effect::Xattr { name, .. } if is_privileged(OsStr::from_bytes(name)) && !self.grants.all() => None,
            other => Some(other.clone()),
        }
    }

    /// Gives an entry that looks like `now` the attributes `wanted` instead of those it was `found` with. Also returns
    /// what to sync, opened beforehand: after the change only the disk may fail.
    fn set_back(
        &self,
        path: &RelPath,
        (place, fd): (&Place, BorrowedFd<'_>),
        now: &Meta,
        (wanted, found): (&Attributes, &Attributes),
        event: EventDraft,
    ) -> Result<(Option<OperationId>, ToSync)> {
        self.store.open_log()?;
        let to_sync = ToSync::of(now.kind, place, fd)?;
        let record = || Ok(self.store.record_operation(&Epilogue { events: vec![event], ..Epilogue::default() })?);
        let undone = match wanted.give(place, fd).and_then(|()| record()) {
            Ok(undone) => undone,
            Err(err) => {
                found.give(place, fd)?;
                return Err(err);
            }
        };
        self.state.lock().touched(path, &now.stamp(), &Meta::of(fd)?);
        Ok((undone, to_sync))
    }

    /// What is held over an entry that was `found` at a path takes over the attributes that this has again, except those
    /// of its own, and the database learns its new base.
    fn dress_held(&self, path: &RelPath, found: &Meta) -> Result<()> {
        let held = {
            let state = self.state.lock();
            state.uppers.at(path).or_else(|| state.uppers.of_inode(&found.stamp()))
        };
        let Some(id) = held else { return Ok(()) };
        let Some((row, claimed)) = self.claim_if_there(id) else { return Ok(()) };
        self.take_looks_below(&row, &mut self.row_side(&row)?, &self.present_side(path)?)?;
        if let Some(upper) = self.state.lock().uppers.get(id).filter(|upper| upper.has_row()) {
            self.store.save_upper(&upper.row)?;
        }
        drop(claimed);
        // It may have landed just before, when our claim kept its entry from being evicted.
        self.evict(id);
        Ok(())
    }
}

impl Attributes {
    /// Adds what reverses an effect, with the present value in `found`; nothing if that is as before. Returns true if the
    /// attribute was changed again since the effect.
    fn add(&mut self, found: &mut Self, effect: &Effect, now: &Meta, fd: BorrowedFd<'_>) -> Result<bool> {
        let is_changed = |is_before: bool, is_after: bool| !is_before && !is_after;
        Ok(match effect {
            Effect::Mode { before, after } if *before != now.mode => {
                (self.looks.mode, found.looks.mode) = (Some(*before), Some(now.mode));
                is_changed(false, *after == now.mode)
            }
            Effect::Owner { before, after } if *before != (now.uid, now.gid) => {
                (self.looks.owner, found.looks.owner) = (Some(*before), Some((now.uid, now.gid)));
                is_changed(false, *after == (now.uid, now.gid))
            }
            Effect::Times { before, after } if *before != (now.atime, now.mtime) => {
                (self.times, found.times) = (Some(*before), Some((now.atime, now.mtime)));
                // Reading alone moves the access time.
                is_changed(before.1 == now.mtime, after.1 == now.mtime)
            }
            Effect::Xattr { name, before, after } => {
                let value = xattr::find(fd, OsStr::from_bytes(name))?;
                let changed = is_changed(value == *before, value == *after);
                if value != *before {
                    self.looks.xattrs.push((name.clone(), before.clone()));
                    found.looks.xattrs.push((name.clone(), value));
                }
                changed
            }
            _ => false,
        })
    }

    /// The effects of giving these attributes to what was `found`.
    fn effects(&self, found: &Self) -> Vec<Effect> {
        let mode = found.looks.mode.zip(self.looks.mode).map(|(before, after)| Effect::Mode { before, after });
        let owner = found.looks.owner.zip(self.looks.owner).map(|(before, after)| Effect::Owner { before, after });
        let times = found.times.zip(self.times).map(|(before, after)| Effect::Times { before, after });
        let xattrs = found.looks.xattrs.iter().zip(&self.looks.xattrs).map(|((name, before), (_, after))| {
            Effect::Xattr { name: name.clone(), before: before.clone(), after: after.clone() }
        });
        xattrs.chain(owner).chain(mode).chain(times).collect()
    }

    fn give(&self, place: &Place, fd: BorrowedFd<'_>) -> Result<()> {
        file::give_looks(&self.looks, fd)?;
        let times = self.times.map(|(access, change)| (file::to_timespec(access), file::to_timespec(change)));
        Ok(times.map_or(Ok(()), |(access, change)| place.set_times(access, change))?)
    }
}
