//! How a change goes on without one of the names of its file. What takes that name is recorded in the same transaction,
//! so that a death leaves the name to either the one or the other.

use std::fs::File;
use std::os::fd::AsFd;

use super::relocate::{Leaves, NameMove};
use super::rename::End;
use super::renamed::Renamed;
use super::upper_names::RenamedRows;
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::state::lookup::Origin;
use crate::overlay::{Overlay, Result, State};
use crate::store::{Backup, Base, Below, Durability, Epilogue, Landing, StagedContent, UpperId, UpperRow, Writer};
use crate::sys::file::Meta;

/// How a change goes on without a name that is about to go.
pub(super) enum Parting {
    /// Lower does not have the file by that name, which was still to be made.
    Unmade,
    /// Under another name that lower has for its inode.
    Other(RelPath),
    /// Lower's file is renamed from the first of the two to the second, which was to be made as its further name.
    Moves(Box<[End; 2]>),
    /// Lower's file stays, because the removal of its name is judged by itself; under its other names the change is new.
    Leaves,
}

/// A change that goes on without a name. The caller that takes the name has claimed it.
pub(super) struct Departure {
    pub id: UpperId,
    pub path: RelPath,
    pub parting: Parting,
}

impl Departure {
    /// True if lower has nothing by that name any more.
    pub fn empties_name(&self) -> bool {
        matches!(self.parting, Parting::Moves(_))
    }
}

/// Changes that have gone on without a name, and names that therefore stand for other nodes.
#[derive(Default)]
#[must_use]
pub(super) struct Parted {
    ids: Vec<UpperId>,
    renamed: Vec<(End, Renamed)>,
}

impl Overlay {
    /// Returns `None` if the change has no other name.
    pub(super) fn departure(&self, path: &RelPath, id: UpperId, row: &UpperRow) -> Result<Option<Departure>> {
        Ok(self.parting(path, row)?.map(|parting| Departure { id, path: path.clone(), parting }))
    }

    /// The base of one name of a change by itself. For a name that was still to be made that is nothing, even if
    /// something was put there below since: the writer of what takes its place has not seen that.
    pub(super) fn base_of_name(&self, path: &RelPath, row: &UpperRow) -> Result<Base> {
        let meta = match row.further_names().contains(path) {
            true => None,
            false => self.meta_below(path)?,
        };
        Ok(Base::of(Below::of(meta.as_ref())).of_one_name())
    }

    fn parting(&self, path: &RelPath, row: &UpperRow) -> Result<Option<Parting>> {
        let further = row.names.iter().find(|name| *name != path);
        let is_base = || -> Result<bool> {
            let below = self.meta_below(path)?;
            // Content is no change of a directory: that goes with what is in it, or stays.
            Ok(path == row.path() && below.is_some_and(|meta| !meta.is_dir()))
        };
        if further.is_some() && !is_base()? {
            return Ok(Some(Parting::Unmade));
        }
        if let Some(other) = self.other_name_below(path, row)? {
            return Ok(Some(Parting::Other(other)));
        }
        let Some(further) = further else { return Ok(None) };
        let (from, free) = (self.end_of(path)?, End { origin: Origin::Nothing, ..self.end_of(further)? });
        // Another program may have put something there since.
        let is_taken = self.is_below(further)?;
        Ok(Some(match is_taken || self.is_judged_there(&from, &free)? {
            true => Parting::Leaves,
            false => Parting::Moves(Box::new([from, free])),
        }))
    }

    /// Lets a change go on without a name that nothing else takes.
    pub(super) fn part(&self, departure: Departure) -> Result<()> {
        let mut state = self.state.lock();
        let (_, parted) = self.depart(&mut state, vec![departure], Epilogue::default(), Vec::new(), |_| ())?;
        drop(state);
        self.tell_parted(parted);
        Ok(())
    }

    /// Lets changes go on without one name each, and has `enter` put into the view what takes those names: all of it or
    /// nothing, even if lower's file moves to another name of its own.
    pub(super) fn depart<T>(
        &self,
        state: &mut State,
        departures: Vec<Departure>,
        epilogue: Epilogue,
        kept: Vec<(StagedContent, Backup)>,
        enter: impl FnOnce(&mut State) -> T,
    ) -> Result<(T, Parted)> {
        let RenamedRows { rows, epilogue: mut recorded } = state.parted_rows(&departures)?;
        recorded.add(epilogue);
        let Some(one) = self.move_below_of(&departures)? else {
            self.store.record_keeping(&recorded, &kept)?;
            let parted = state.parted(departures, rows);
            return Ok((enter(state), parted));
        };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        kept.into_iter().for_each(|(content, backup)| landing.keep(content, backup));
        let applied = self.apply_move(state, &one, landing, recorded)?;
        let parted = state.parted(departures, rows);
        // Not after it is recorded: should that fail, the journal still tells of all of it.
        let entered = enter(state);
        applied.finish()?;
        Ok((entered, parted))
    }

    /// The rename of lower's file that this needs, if any. If two changes part at once, only the file whose name nothing
    /// takes moves.
    fn move_below_of<'a>(&self, departures: &'a [Departure]) -> Result<Option<NameMove<'a>>> {
        let ends = departures.iter().find_map(|departure| match &departure.parting {
            Parting::Moves(ends) => Some(&**ends),
            Parting::Unmade | Parting::Other(_) | Parting::Leaves => None,
        });
        ends.map_or(Ok(None), |[from, to]| self.name_move(from, Leaves::Name, to))
    }

    pub(super) fn tell_parted(&self, parted: Parted) -> Vec<UpperId> {
        parted.renamed.into_iter().for_each(|(to, renamed)| self.tell_renamed(&to, renamed));
        parted.ids
    }

    /// Judges held changes that have left what they were based on. Not to be called with a claim on them.
    pub(super) fn settle_parted(&self, ids: impl IntoIterator<Item = UpperId>, by: &Writer) -> Result<()> {
        let has_left = |id: &UpperId| self.state.lock().uppers.get(*id).is_some_and(|upper| upper.left);
        ids.into_iter().filter(has_left).try_for_each(|id| self.settle_moved(id, by).map(|_| ()))
    }

    /// A change belongs to the file that was written. If the name that it goes by leads to another file below by now, the
    /// change goes on by another name of its own file.
    pub(in crate::overlay) fn follow_file(&self, id: UpperId) -> Result<()> {
        let is_shared = self.state.lock().uppers.get(id).is_some_and(|upper| upper.row.base.is_shared());
        if !is_shared {
            return Ok(());
        }
        let Some((row, _claim)) = self.claim_if_there(id) else { return Ok(()) };
        let path = row.path();
        let below = self.meta_below(path)?;
        if self.is_of_file(&row.base, below.as_ref()) {
            return Ok(());
        }
        let Some(other) = self.other_name_below(path, &row)? else { return Ok(()) };
        self.part(Departure { id, path: path.clone(), parting: Parting::Other(other) })?;
        let node = self.state.lock().nodes.at(path);
        node.map_or(Ok(()), |node| self.drop_lost_name(node, path).map(drop))
    }

    /// The base of a change that is about to be written where `present` is. If that is another file by now, the change
    /// replaces this one name only, whatever others that file has.
    pub(in crate::overlay) fn base_over(&self, base: &Base, present: Option<&Meta>) -> Base {
        match self.is_of_file(base, present) {
            true => *base,
            false => base.of_one_name(),
        }
    }

    /// Opens the file of lower that a change was written to, by the first of these names that still leads to it.
    pub(in crate::overlay) fn open_of_file<'a>(
        &self,
        base: &Base,
        names: impl IntoIterator<Item = &'a RelPath>,
    ) -> Option<(&'a RelPath, File)> {
        let is_its = |file: &File| Meta::of(file.as_fd()).is_ok_and(|meta| self.may_be_its_file(base, &meta));
        names.into_iter().find_map(|name| Some((name, self.lower.open_to_read(name).ok().filter(is_its)?)))
    }

    /// True if what lower has at a name of a change may count as the file that the change was written to. Another file
    /// may have taken one of the names of a file that has several.
    pub(in crate::overlay) fn may_be_its_file(&self, base: &Base, present: &Meta) -> bool {
        !base.is_shared() || self.is_of_file(base, Some(present))
    }

    /// True if `present` is the very file that a change was written to, whatever is in it by now.
    pub(super) fn is_of_file(&self, base: &Base, present: Option<&Meta>) -> bool {
        match (base.below, present) {
            (Below::Entry { stamp, .. }, Some(present)) => self.births.may_be_one(stamp.key(), present.key()),
            (_, _) => false,
        }
    }

    /// Another name of the inode that `row` was written through: one that the kernel has looked up, or else one found by
    /// a search.
    pub(in crate::overlay) fn other_name_below(&self, path: &RelPath, row: &UpperRow) -> Result<Option<RelPath>> {
        let Below::Entry { stamp, links: 2.., .. } = row.base.below else { return Ok(None) };
        let names = {
            let state = self.state.lock();
            state.nodes.file_at(path).map(|node| state.nodes.paths(node)).transpose()?.unwrap_or_default()
        };
        let is_it = |meta: &Meta| self.births.are_one(&stamp, &meta.stamp());
        for name in names.into_iter().filter(|name| name != path) {
            let meta = self.meta_below(&name)?;
            if meta.as_ref().is_some_and(is_it) {
                return Ok(Some(name));
            }
        }
        match self.meta_below(path)? {
            Some(meta) if is_it(&meta) && self.as_linked(meta).links > 1 => self.find_name_but(Some(path), &meta),
            Some(_) | None => Ok(None),
        }
    }

    /// Makes a judged name of a file that is open below known to the nodes, if the view has one.
    pub(in crate::overlay) fn learn_any_name(&self, lower: &File) -> Result<()> {
        let meta = Meta::of(lower.as_fd()).doing(|| "stat a file without a name".to_owned())?;
        match self.as_linked(meta).links {
            0 => Ok(()),
            _ => self.find_name_but(None, &meta).map(drop),
        }
    }

    fn find_name_but(&self, path: Option<&RelPath>, meta: &Meta) -> Result<Option<RelPath>> {
        // A name that is held as deleted or replaced is no name of the file in the view.
        let is_shown = |name: &RelPath| Some(name) != path && self.state.lock().is_taken_from_lower(name);
        let found = self.judged_name_below(meta.key(), is_shown)?;
        // Handles that have the file open by the name that goes then have it open by this one.
        found.iter().try_for_each(|name| self.learn_name(name))?;
        Ok(found)
    }

    /// The same for an open file that is unchanged, if the name that goes is the only one looked up.
    pub(in crate::overlay) fn learn_other_name(&self, path: &RelPath, meta: &Meta) -> Result<()> {
        let is_only_known = {
            let state = self.state.lock();
            let open = state.nodes.at(path).filter(|node| state.nodes.is_open(*node));
            open.is_some_and(|node| state.nodes.names(node).len() == 1)
        };
        match is_only_known && meta.is_file() && meta.links > 1 {
            true => self.find_name_but(Some(path), meta).map(drop),
            false => Ok(()),
        }
    }
}

impl State {
    fn parted(&mut self, departures: Vec<Departure>, rows: Vec<UpperRow>) -> Parted {
        let mut parted = Parted::default();
        for (departure, row) in departures.into_iter().zip(rows) {
            parted.ids.push(departure.id);
            if matches!(departure.parting, Parting::Leaves) {
                self.leaves_base(&row);
            }
            self.uppers.set_row(row);
            if let Parting::Moves(ends) = departure.parting {
                let [from, to] = *ends;
                let renamed = self.moved_below(&from, &to);
                parted.renamed.push((to, renamed));
            }
        }
        parted
    }
}
