//! What all the world may read: each backup is to know it of what it keeps.
//!
//! To open every directory above would take longer than a small save takes otherwise, so those that were found to let
//! everybody through are remembered, each as it was then. A new mode, a new list or another place moves its ctime; the
//! directory that a path lies in itself is asked each time, for each change of a name in it moves that, too.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::reading::access_of;
use super::side::Side;
use super::{Overlay, Result};
use crate::model::{Acl, RelPath, Stamp};
use crate::sys::file::Meta;

/// How many directories are remembered; beyond that it begins anew.
const PASSABLE_MAX: usize = 4096;

/// How long ago a directory must have changed to be remembered: what changes within one tick of the kernel's clock has one
/// ctime.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// Directories of lower that let everybody through. A leaf.
#[derive(Default)]
pub(super) struct Passable(Mutex<HashMap<RelPath, Stamp>>);

impl Passable {
    fn knows(&self, dir: &RelPath, now: &Stamp) -> bool {
        self.0.lock().get(dir) == Some(now)
    }

    fn learn(&self, dir: RelPath, stamp: Stamp) {
        if !is_settled(&stamp) {
            return;
        }
        let mut dirs = self.0.lock();
        if dirs.len() >= PASSABLE_MAX {
            dirs.clear();
        }
        dirs.insert(dir, stamp);
    }
}

impl Overlay {
    /// Whether all the world could read what is at a path: neither a mode there or on the way keeps anybody out, nor a list.
    pub(super) fn is_for_all(&self, path: &RelPath, there: &Side) -> bool {
        has_for_all(there.mode, 0o4) && !there.listed().may_keep_out() && self.is_way_open(path).unwrap_or(false)
    }

    fn is_way_open(&self, path: &RelPath) -> Result<bool> {
        let Some(dir) = path.parent().filter(|_| !self.is_in_held_dir(path)) else {
            return Ok(self.way_to(path)?.dirs.iter().all(lets_all_through));
        };
        let above: Vec<_> = std::iter::successors(dir.parent(), RelPath::parent).collect();
        if !self.are_known(&above)? {
            return self.learn_way(path, above);
        }
        let access =
            if dir.is_root() { access_of(self.lower.root()) } else { access_of(self.lower.dir(&dir)?.as_fd()) };
        Ok(lets_all_through(&access?))
    }

    fn are_known(&self, dirs: &[RelPath]) -> Result<bool> {
        for dir in dirs {
            let now = self.lower.stat(dir)?;
            if !now.is_some_and(|meta| self.passable.knows(dir, &meta.stamp())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same by a walk through all of them; `above` are those that it may be spared next time, the innermost first.
    fn learn_way(&self, path: &RelPath, above: Vec<RelPath>) -> Result<bool> {
        let dirs = self.way_to(path)?.dirs;
        for (dir, access) in above.into_iter().rev().zip(&dirs).filter(|(_, access)| lets_all_through(access)) {
            self.passable.learn(dir, access.0.stamp());
        }
        Ok(dirs.iter().all(lets_all_through))
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
