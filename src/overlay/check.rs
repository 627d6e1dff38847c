//! Checks that all that is kept agrees with itself and with what the view has in memory (`fettlefs fsck`).

use std::collections::{HashMap, HashSet};

use super::state::past::MovedDirs;
use super::{Overlay, Result};
use crate::model::RelPath;
use crate::store::{Anchor, Fault, FaultKind, Scope, UpperId, UpperRow, What};

impl Overlay {
    /// Returns all that is wrong, and how many things were looked at. Programs may go on writing meanwhile, so a fault is
    /// looked at once more and only reported if it is there both times.
    pub fn check(&self) -> Result<(Vec<Fault>, u64)> {
        let (first, checked) = self.check_once()?;
        if first.is_empty() {
            return Ok((first, checked));
        }
        let (again, checked) = self.check_once()?;
        let again: HashSet<Fault> = again.into_iter().collect();
        Ok((first.into_iter().filter(|fault| again.contains(fault)).collect(), checked))
    }

    fn check_once(&self) -> Result<(Vec<Fault>, u64)> {
        let (mut faults, checked) = self.store.check(&self.lower, &self.moving())?;
        faults.extend(self.check_memory()?);
        faults.extend(self.check_past()?);
        Ok((faults, checked))
    }

    fn moving(&self) -> Scope {
        let state = self.state.lock();
        let ids = |is: &dyn Fn(&super::state::uppers::Upper) -> bool| -> HashSet<UpperId> {
            state.uppers.iter().filter(|upper| is(upper)).map(|upper| upper.row.id).collect()
        };
        Scope { moving: ids(&|upper| upper.busy || upper.dirty), rowless: ids(&|upper| !upper.has_row()) }
    }

    /// The view must show what the database would show after a restart.
    fn check_memory(&self) -> Result<Vec<Fault>> {
        // Before the lock, for which everybody else would wait. What changes in between is no fault at the second look.
        let rows = self.store.load_upper()?;
        let rows: HashMap<UpperId, &UpperRow> = rows.iter().map(|row| (row.id, row)).collect();
        let state = self.state.lock();
        let mut faults = Vec::new();
        for upper in state.uppers.iter() {
            let held = upper.row.held.as_ref();
            if let Some(held) = held.filter(|held| state.uppers.by_id(&held.id) != Some(upper.row.id)) {
                let (about, message) = (upper.row.path().to_string(), format!("is not found as {:?}", held.id));
                faults.push(Fault { kind: FaultKind::Upper, about, message });
            }
        }
        for upper in state.uppers.iter().filter(|upper| upper.has_row() && !upper.busy && upper.dirty) {
            if upper.row.what != What::Whiteout
                && let Err(err) = self.store.upper_meta(upper.row.id)
            {
                let (about, message) = (upper.row.path().to_string(), format!("was not judged, and is gone: {err}"));
                faults.push(Fault { kind: FaultKind::Upper, about, message });
            }
        }
        for upper in state.uppers.iter().filter(|upper| upper.has_row() && !upper.busy && !upper.dirty) {
            if rows.get(&upper.row.id) != Some(&&upper.row) {
                let about = upper.row.path().to_string();
                let message = format!("is {:?} in the view, {:?} in the database", upper.row, rows.get(&upper.row.id));
                faults.push(Fault { kind: FaultKind::Upper, about, message });
            }
        }
        Ok(faults)
    }

    /// The database must know what paths had, too, so that after a restart they are judged by the same. Nothing is
    /// reported while something lands: that is recorded without the lock.
    pub(super) fn check_past(&self) -> Result<Vec<Fault>> {
        let kept = self.store.load_anchors()?;
        let kept: HashMap<&RelPath, &Anchor> = kept.iter().map(|anchor| (&anchor.path, anchor)).collect();
        let mut kept_dirs = MovedDirs::default();
        kept_dirs.know(self.store.load_moved_dirs()?);
        let state = self.state.lock();
        let mut faults = Vec::new();
        if self.store.is_landing()? {
            return Ok(faults);
        }
        let mut tell = |about: String, message: String| {
            faults.push(Fault { kind: FaultKind::Anchor, about, message });
        };
        for (path, known) in state.past.iter() {
            if kept.get(path).is_none_or(|kept| kept.known != *known) {
                tell(path.to_string(), format!("had {known:?} in the view, {:?} in the database", kept.get(path)));
            }
        }
        for path in kept.keys().filter(|path| state.past.get(path).is_none()) {
            tell(path.to_string(), format!("had {:?} in the database, nothing in the view", kept[path]));
        }
        if kept_dirs != *state.past.dirs() {
            let message = format!("are {:?} in the view, {kept_dirs:?} in the database", state.past.dirs());
            tell("renamed directories".to_owned(), message);
        }
        Ok(faults)
    }
}
