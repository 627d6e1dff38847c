//! Upper entries under other names. A held change has its path in its id: under a new one it is a new change (SPEC §4.7).

use std::collections::BTreeSet;

use super::carry::Move;
use super::uppers::Upper;
use super::{Error, Overlay, Result, State};
use crate::model::{ChangeId, ChangeKind, RelPath};
use crate::store::{Base, Below, Epilogue, Fate, Held, UpperId, UpperRow};

/// Upper entries as they will be.
#[derive(Default)]
struct RenamedRows {
    rows: Vec<UpperRow>,
    /// The new ids among them.
    changes: BTreeSet<ChangeId>,
    epilogue: Epilogue,
}

impl Overlay {
    /// A change goes on under another name of its inode: the database learns of it, and of its new id.
    pub(super) fn rename_change(&self, id: UpperId, from: &RelPath, to: &RelPath) -> Result<()> {
        let mut state = self.state.lock();
        let (rows, epilogue) = state.renamed_rows(&[id], &[Move { from, to }])?;
        self.store.record_epilogue(&epilogue)?;
        state.rows_changed(rows);
        Ok(())
    }

    /// The same without one of its names, which was to be made when it lands.
    pub(super) fn drop_change_name(&self, id: UpperId, gone: &RelPath) -> Result<()> {
        let mut state = self.state.lock();
        let Some(upper) = state.uppers.get(id) else { return Ok(()) };
        let mut renamed = RenamedRows::default();
        state.call(upper, upper.row.without_name(gone), &mut renamed)?;
        self.store.record_epilogue(&renamed.epilogue)?;
        state.rows_changed(renamed.rows);
        Ok(())
    }

    /// The same without the name that it is based on, which stays below: under the others it is something new. `whiteout`
    /// hides that name from then on.
    pub(super) fn leave_base(&self, id: UpperId, base: &RelPath, whiteout: Option<UpperRow>) -> Result<()> {
        let mut state = self.state.lock();
        let upper = state.uppers.get(id).ok_or(Error::Errno(libc::ESTALE))?;
        let held = upper.row.held.clone().map(|held| Held { kind: ChangeKind::Create, ..held });
        let row = UpperRow { base: Base::of(Below::Nothing), held, looks: None, ..upper.row.without_name(base) };
        let mut renamed = RenamedRows::default();
        state.call(upper, row, &mut renamed)?;
        let RenamedRows { rows, mut epilogue, .. } = renamed;
        epilogue.save.extend(whiteout.clone());
        self.store.record_epilogue(&epilogue)?;
        state.based_on_nothing(rows);
        whiteout.into_iter().for_each(|row| state.uppers.insert(Upper::written(row)));
        Ok(())
    }
}

impl State {
    /// Upper entries as they will be once each path of `moves` is called by its new name, and what the database shall
    /// say of them. A held change has its path in its id: under a new name it is a new change (SPEC §4.7).
    pub(super) fn renamed_rows(&self, ids: &[UpperId], moves: &[Move<'_>]) -> Result<(Vec<UpperRow>, Epilogue)> {
        let mut renamed = RenamedRows::default();
        for upper in ids.iter().filter_map(|id| self.uppers.get(*id)) {
            let mut names: Vec<RelPath> = Vec::new();
            for name in upper.row.names.iter().map(|name| Move::all(moves, name).unwrap_or_else(|| name.clone())) {
                // One that was to be made is there already.
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            self.call(upper, UpperRow { names, ..upper.row.clone() }, &mut renamed)?;
        }
        Ok((renamed.rows, renamed.epilogue))
    }

    /// The same for one whose file leaves the name `gone` below and has `first`: what it left is made again when it lands.
    pub(super) fn unmade(&self, id: UpperId, gone: &RelPath, first: &RelPath) -> Result<(UpperRow, Epilogue)> {
        let upper = self.uppers.get(id).ok_or(Error::Errno(libc::ESTALE))?;
        let others = upper.row.names.iter().filter(|name| *name != gone && *name != first);
        let names = [first].into_iter().chain(others).chain([gone]).cloned().collect();
        let mut renamed = RenamedRows::default();
        self.call(upper, UpperRow { names, ..upper.row.clone() }, &mut renamed)?;
        let row = renamed.rows.pop().ok_or(Error::Errno(libc::ESTALE))?;
        Ok((row, renamed.epilogue))
    }

    /// The same for one entry, which is to be `row`.
    fn call(&self, upper: &Upper, mut row: UpperRow, renamed: &mut RenamedRows) -> Result<()> {
        let RenamedRows { rows, changes, epilogue } = renamed;
        let was = &upper.row.names[0];
        if let Some(held) = row.held.as_mut().filter(|_| row.names[0] != *was) {
            let full = ChangeId::full(&row.names[0], held.kind, row.base.digest(), held.new, held.looks);
            let old = std::mem::replace(&mut held.id, self.unused_id(&full, row.id, changes)?);
            changes.insert(held.id.clone());
            if old != held.id {
                epilogue.verdicts.push((old, was.clone(), Fate::Superseded { by: held.id.clone() }));
            }
        }
        if upper.saved {
            // One that is not has landed, and is only open still: the database need not know of it.
            epilogue.save.push(row.clone());
        }
        rows.push(row);
        Ok(())
    }

    pub(super) fn rows_changed(&mut self, rows: Vec<UpperRow>) {
        rows.into_iter().for_each(|row| self.uppers.set_row(row));
    }

    /// The same of changes of what stays behind. What waits for review is to be judged anew, as something new.
    fn based_on_nothing(&mut self, rows: Vec<UpperRow>) {
        self.epoch += 1;
        for row in rows {
            if let Some(node) = self.nodes.at(&row.names[0]) {
                self.nodes.set_lower(node, None);
            }
            if let Some(upper) = self.uppers.get_mut(row.id) {
                (upper.left, upper.moved_on) = (row.held.is_some(), false);
            }
            self.uppers.set_row(row);
        }
    }
}
