//! Whether every user may read a file, which each backup records of the content that it keeps.
//!
//! Asking each directory above for its ACL would take longer than a small save does otherwise. So directories that were
//! found to let everyone through are remembered as they were then: a new mode or ACL moves the ctime. A change of names
//! in a directory moves its mtime to the same moment, and while such changes go on, the ACL is asked for again only after
//! a while.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::reading::access_of;
use crate::model::{Acl, InodeKey, RelPath, Stamp};
use crate::overlay::judge::side::Side;
use crate::overlay::{Overlay, Result};
use crate::sys::file::Meta;

/// How many directories are remembered; beyond that all are forgotten.
const PASSABLE_MAX: usize = 4096;

/// How long ago a directory must have changed for its ctime to reveal the next change: all changes within one tick of the
/// kernel's clock get the same ctime.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// How long a directory in which names change is assumed to have no ACL yet. One that is set through the view counts at
/// once.
const UNLISTED_FOR: Duration = Duration::from_millis(20);

/// Directories of lower that let everybody through. A leaf.
#[derive(Default)]
pub(in crate::overlay) struct Passable(Mutex<KnownDirs>);

#[derive(Default)]
struct KnownDirs {
    dirs: HashMap<InodeKey, Looked>,
    /// How often an ACL was set through the view: what was looked at before that is not learned.
    lists_given: u64,
}

struct Looked {
    at: Instant,
    /// `None` while its ctime cannot reveal the next change.
    settled: Option<Stamp>,
}

impl Passable {
    fn knows(&self, dir: &Meta) -> bool {
        self.0.lock().dirs.get(&dir.key()).is_some_and(|looked| {
            let (is_as_it_was, names_changed) = (looked.settled == Some(dir.stamp()), dir.ctime == dir.mtime);
            is_as_it_was || names_changed && has_for_all(dir.mode, 0o1) && looked.at.elapsed() < UNLISTED_FOR
        })
    }

    fn lists_given(&self) -> u64 {
        self.0.lock().lists_given
    }

    fn forget(&self, dir: &Meta) {
        self.0.lock().dirs.remove(&dir.key());
    }

    fn learn(&self, dir: &Meta, looked: Looked, lists_given: u64) {
        let mut known = self.0.lock();
        if known.lists_given != lists_given {
            return;
        }
        if known.dirs.len() >= PASSABLE_MAX {
            known.dirs.clear();
        }
        known.dirs.insert(dir.key(), looked);
    }

    /// Something in the view was given an ACL, or has lost it.
    pub(super) fn list_given(&self) {
        let mut known = self.0.lock();
        known.dirs.clear();
        known.lists_given += 1;
    }
}

impl Overlay {
    /// True if every user could read what is at a path: no mode and no ACL, there or on the way, keeps anyone out.
    pub(in crate::overlay) fn is_for_all(&self, path: &RelPath, there: &Side) -> bool {
        has_for_all(there.mode, 0o4) && !there.listed().may_keep_out() && self.is_way_open(path).unwrap_or(false)
    }

    fn is_way_open(&self, path: &RelPath) -> Result<bool> {
        if self.is_in_held_dir(path) {
            return Ok(self.way_to(path)?.dirs.iter().all(lets_all_through));
        }
        for dir in std::iter::successors(path.parent(), RelPath::parent) {
            if !self.is_passable(&dir)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_passable(&self, dir: &RelPath) -> Result<bool> {
        if self.lower.glance(dir).is_ok_and(|now| self.passable.knows(&now)) {
            return Ok(true);
        }
        let (at, lists_given) = (Instant::now(), self.passable.lists_given());
        let access = access_of(self.lower.dir(dir)?.as_fd())?;
        let lets_through = lets_all_through(&access);
        if lets_through {
            let stamp = access.0.stamp();
            let looked = Looked { at, settled: is_settled(&stamp).then_some(stamp) };
            self.passable.learn(&access.0, looked, lists_given);
        } else {
            self.passable.forget(&access.0);
        }
        Ok(lets_through)
    }
}

fn is_settled(stamp: &Stamp) -> bool {
    let Ok(seconds) = u64::try_from(stamp.ctime.seconds) else { return true };
    let changed = UNIX_EPOCH + Duration::new(seconds, stamp.ctime.nanoseconds);
    SystemTime::now().duration_since(changed).is_ok_and(|age| age > SETTLED_AFTER)
}

fn lets_all_through((meta, acl): &(Meta, Option<Acl>)) -> bool {
    acl.is_none() && has_for_all(meta.mode, 0o1)
}

/// True if a mode gives this bit to the group and to all others.
fn has_for_all(mode: u32, bit: u32) -> bool {
    mode & mode >> 3 & bit != 0
}
