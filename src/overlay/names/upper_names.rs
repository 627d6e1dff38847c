//! Upper entries under other names. A held change has its path in its id: under a new one it is a new change (SPEC §4.7).

use super::carry::Move;
use super::parting::{Departure, Parting};
use crate::model::{ChangeKind, RelPath};
use crate::overlay::{Error, Result, State};
use crate::store::{Base, Epilogue, Fate, Held, UpperId, UpperRow};

/// Upper entries as they will be.
#[derive(Default)]
pub(super) struct RenamedRows {
    pub rows: Vec<UpperRow>,
    pub epilogue: Epilogue,
}

impl State {
    /// Upper entries as they will be once each path of `moves` is called by its new name, and what the database shall
    /// say of them. A held change has its path in its id: under a new name it is a new change (SPEC §4.7).
    pub(in crate::overlay) fn renamed_rows(
        &mut self,
        ids: &[UpperId],
        moves: &[Move<'_>],
    ) -> Result<(Vec<UpperRow>, Epilogue)> {
        let mut renamed = RenamedRows::default();
        for id in ids {
            if let Some(row) = self.uppers.get(*id).map(|upper| moved(&upper.row, moves)) {
                self.call(row, &mut renamed)?;
            }
        }
        Ok((renamed.rows, renamed.epilogue))
    }

    /// The same for changes that go on without a name each; `ESTALE` if one of them has gone.
    pub(super) fn parted_rows(&mut self, departures: &[Departure]) -> Result<RenamedRows> {
        let mut renamed = RenamedRows::default();
        for Departure { id, path, parting } in departures {
            let upper = self.uppers.get(*id).ok_or(Error::Errno(libc::ESTALE))?;
            let row = match parting {
                Parting::Unmade => upper.row.without_name(path),
                Parting::Other(to) => moved(&upper.row, &[Move { from: path, to }]),
                Parting::Moves(ends) => moved(&upper.row, &[Move { from: path, to: &ends[1].path }]),
                Parting::Leaves => left(&upper.row, path),
            };
            self.call(row, &mut renamed)?;
        }
        Ok(renamed)
    }

    /// The same for a change whose file leaves the name `gone` in lower and keeps `first`: `gone` is made again when the
    /// change lands.
    pub(in crate::overlay) fn unmade(
        &mut self,
        id: UpperId,
        gone: &RelPath,
        first: &RelPath,
    ) -> Result<(UpperRow, Epilogue)> {
        let upper = self.uppers.get(id).ok_or(Error::Errno(libc::ESTALE))?;
        let others = upper.row.names.iter().filter(|name| *name != gone && *name != first);
        let names = [first].into_iter().chain(others).chain([gone]).cloned().collect();
        let row = UpperRow { names, ..upper.row.clone() };
        let mut renamed = RenamedRows::default();
        self.call(row, &mut renamed)?;
        let row = renamed.rows.pop().ok_or(Error::Errno(libc::ESTALE))?;
        Ok((row, renamed.epilogue))
    }

    /// The same for one entry, which is to be `row`.
    fn call(&mut self, mut row: UpperRow, renamed: &mut RenamedRows) -> Result<()> {
        let RenamedRows { rows, epilogue } = renamed;
        let upper = self.uppers.get(row.id).ok_or(Error::Errno(libc::ESTALE))?;
        let (was, has_row) = (upper.row.path().clone(), upper.has_row());
        if let Some(full) = row.full_id().filter(|_| *row.path() != was) {
            let id = self.unused_id(full, row.id)?;
            let old = row.held.as_mut().map(|held| std::mem::replace(&mut held.id, id.clone()));
            let superseded = old.filter(|old| *old != id).map(|old| (old, was, Fate::Superseded { by: id }));
            epilogue.verdicts.extend(superseded);
        }
        if has_row {
            // An entry without one has landed and is only still open, or the coming judgement records it.
            epilogue.save.push(row.clone());
        }
        rows.push(row);
        Ok(())
    }

    pub(super) fn rows_changed(&mut self, rows: Vec<UpperRow>) {
        rows.into_iter().for_each(|row| self.uppers.set_row(row));
    }

    /// To be called before `row` is set for a change whose base stays behind. If it is held, it must be judged anew, as
    /// something new.
    pub(super) fn leaves_base(&mut self, row: &UpperRow) {
        self.epoch += 1;
        if let Some(node) = self.nodes.at(row.path()) {
            self.nodes.set_lower(node, None);
        }
        if let Some(upper) = self.uppers.get_mut(row.id) {
            (upper.left, upper.moved_on) = (row.held.is_some(), false);
        }
    }
}

/// A row once each path of `moves` is called by its new name.
fn moved(row: &UpperRow, moves: &[Move<'_>]) -> UpperRow {
    let mut names: Vec<RelPath> = Vec::new();
    for name in row.names.iter().map(|name| Move::all(moves, name).unwrap_or_else(|| name.clone())) {
        // A name that was still to be made may be there already.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    UpperRow { names, ..row.clone() }
}

/// A row without the name that it is based on. That stays below, so under the other names it is something new.
fn left(row: &UpperRow, base: &RelPath) -> UpperRow {
    let held = row.held.clone().map(|held| Held { kind: ChangeKind::Create, ..held });
    UpperRow { base: Base::NOTHING, held, looks: None, ..row.without_name(base) }
}
