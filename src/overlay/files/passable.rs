//! What all the world may read: each backup is to know it of what it keeps.
//!
//! To ask every directory above for its list would take longer than a small save takes otherwise. So those that were found to let
//! everybody through are remembered, each as it was then: a new mode or list moves its ctime. A change of a name in it moves
//! its mtime to the same moment, and where somebody is at work the list is asked for again after a while only.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::reading::access_of;
use crate::model::{Acl, InodeKey, RelPath, Stamp};
use crate::overlay::judge::side::Side;
use crate::overlay::{Overlay, Result};
use crate::sys::file::Meta;

/// How many directories are remembered; beyond that it begins anew.
const PASSABLE_MAX: usize = 4096;

/// How long ago a directory must have changed for its ctime to tell of the next change: what changes within one tick of the
/// kernel's clock has one ctime.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// So long a directory in which names change is taken to have no list yet. One that is given by the view counts at once.
const UNLISTED_FOR: Duration = Duration::from_millis(20);

/// Directories of lower that let everybody through. A leaf.
#[derive(Default)]
pub(in crate::overlay) struct Passable(Mutex<Known>);

#[derive(Default)]
struct Known {
    dirs: HashMap<InodeKey, Looked>,
    /// How often a list was given by the view: who has looked before knows nothing.
    lists_given: u64,
}

struct Looked {
    at: Instant,
    /// None where its ctime tells nothing yet.
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

    /// Something in the view has been given a list of who may do what, or has it no more.
    pub(super) fn list_given(&self) {
        let mut known = self.0.lock();
        known.dirs.clear();
        known.lists_given += 1;
    }
}

impl Overlay {
    /// Whether all the world could read what is at a path: neither a mode there or on the way keeps anybody out, nor a list.
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

/// Whether a mode gives this bit to the group and to all others.
fn has_for_all(mode: u32, bit: u32) -> bool {
    mode & mode >> 3 & bit != 0
}
