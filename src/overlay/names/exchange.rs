//! Exchange: both paths change at once, and each is judged by what it becomes (SPEC §4.5).

use std::sync::Arc;

use super::carry::Move;
use super::relocate::{How, Moving};
use super::rename::{End, is_gated, is_special};
use super::rename_over::{GivesWay, Taken};
use crate::overlay::files::handles::OpenFile;
use crate::overlay::judge::claim::Claim;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Caller, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{Epilogue, NewUpper, UpperId};
use crate::sys::file::FileKind;

/// A claimed entry that is copied, as it was before the copy.
struct Original<'a> {
    open: Option<Arc<OpenFile>>,
    version: u64,
    _claim: Claim<'a>,
}

impl Original<'_> {
    /// True if it was not written to meanwhile. The kernel keeps write calls from a file that is renamed, but not its
    /// write-back of a mapping; the claim keeps out everything else.
    fn is_as_copied(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.version() == self.version)
    }
}

impl Overlay {
    /// Both paths change at once; each is judged by what it becomes. Returns entries that came along and still have to be
    /// judged.
    pub(super) fn exchange(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        if to.kind().is_none() {
            return Err(Error::Errno(libc::ENOENT));
        }
        if self.same_file(from, to) || from.path == to.path {
            return Ok(Vec::new());
        }
        let waits = |end: &End| end.structure().is_some() || self.is_in_held_dir(&end.path);
        if from.structure().or(to.structure()).is_some()
            || ((from.is_dir() || to.is_dir()) && (waits(from) || waits(to)))
        {
            // The program copies.
            return Err(Error::Errno(libc::EXDEV));
        }
        match (&from.origin, &to.origin, from.action == Action::Pass, to.action == Action::Pass) {
            (Origin::Lower(_), Origin::Lower(_), true, true) => self.exchange_passing(from, to, caller),
            // Between a judged and a passing path: the program copies.
            (_, _, true, false) | (_, _, false, true) => Err(Error::Errno(libc::EXDEV)),
            _ if from.is_dir() && to.is_dir() => self.exchange_dirs(from, to, caller),
            _ if from.is_dir() => self.exchange_with_dir(to, from, caller),
            _ if to.is_dir() => self.exchange_with_dir(from, to, caller),
            _ if is_special(&from.origin) && is_special(&to.origin) => self.exchange_below(from, to, caller),
            // Entries of different kinds, only one of which has content that upper could hold.
            _ if is_special(&from.origin) || is_special(&to.origin) => Err(Error::Errno(libc::EXDEV)),
            _ => self.exchange_judged(from, to, caller).map(|()| Vec::new()),
        }
    }

    /// Exchanges two passing paths. What a directory brings along may still come to a judged path, or leave one.
    fn exchange_passing(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        let with_dir = from.is_dir() || to.is_dir();
        if !with_dir || (self.passes_throughout(from) && self.passes_throughout(to)) {
            return self.exchange_below(from, to, caller);
        }
        if from.is_dir() && to.is_dir() {
            return self.exchange_dirs(from, to, caller);
        }
        let (file, dir) = if from.is_dir() { (to, from) } else { (from, to) };
        let arrives_passing =
            self.action_by(&dir.path, file.kind().unwrap_or(FileKind::Regular), &self.writer(caller)) == Action::Pass;
        match arrives_passing && self.survey(&[Move { from: &dir.path, to: &file.path }], caller)?.is_empty() {
            true => self.exchange_below(from, to, caller),
            false => Err(Error::Errno(libc::EXDEV)),
        }
    }

    /// Exchanges directories with all that is in them.
    fn exchange_dirs(&self, from: &End, to: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        let moves = [Move { from: &from.path, to: &to.path }, Move { from: &to.path, to: &from.path }];
        let cargo = self.lift(self.survey(&moves, caller)?, &self.doer(caller))?;
        self.relocate_told(&Moving { from, to, how: How::ExchangeDirs }, cargo, caller)
    }

    /// Two renames in one, each to the name that the other leaves. No content is lost by it, and both paths remember what
    /// they had. If anything would have to be judged at its new path, the program copies.
    fn exchange_with_dir(&self, file: &End, dir: &End, caller: &Caller) -> Result<Vec<UpperId>> {
        self.check_in_its_own_place(&file.path, &file.origin)?;
        let kind = file.kind().unwrap_or(FileKind::Regular);
        let action = self.action_by(&dir.path, kind, &self.writer(caller));
        let carried = self.survey(&[Move { from: &dir.path, to: &file.path }], caller)?;
        let plain = carried.is_empty() && action == Action::Auto && !is_gated(file.action);
        let stands_for_older = kind == FileKind::Symlink && !self.is_fresh(&dir.path);
        if !plain
            || stands_for_older
            || self.base_leads_out_there(&file.path, &dir.path)?
            || self.is_used_by_another(&file.path, &dir.path, kind)?
            || self.hides_anothers(file)?
        {
            return Err(Error::Errno(libc::EXDEV));
        }
        let cargo = self.lift(carried, &self.doer(caller))?;
        self.relocate_told(&Moving { from: file, to: dir, how: How::ExchangeFileAndDir }, cargo, caller)
    }

    /// True if lower has something at a change's name that is not the change's: an exchange would take it along.
    fn hides_anothers(&self, end: &End) -> Result<bool> {
        let Some(id) = end.upper() else { return Ok(false) };
        let row = self.state.lock().uppers.row(id).cloned().ok_or(Error::Errno(libc::ESTALE))?;
        Ok(self.meta_below(&end.path)?.is_some_and(|below| !self.is_changed_by(&row, &end.path, &below)))
    }

    fn exchange_judged(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        self.check_in_its_own_place(&from.path, &from.origin)?;
        self.check_in_its_own_place(&to.path, &to.origin)?;
        self.set_apart(&[from, to])?;
        let by = self.doer(caller);
        let [from_changed, to_changed] = [from, to].map(|end| self.changed_at(end));
        let originals = self.claim_originals([from_changed, to_changed])?;
        let (for_from, from_synced) = self.copy_of(to, to_changed)?;
        let (for_to, to_synced) = self.copy_of(from, from_changed)?;
        let from_kind = from.kind().unwrap_or(FileKind::Regular);
        let to_kind = to.kind().unwrap_or(FileKind::Regular);
        let (opened_from, opened_to) = (self.open_copy(&for_from, to_kind)?, self.open_copy(&for_to, from_kind)?);
        let at_from = self.take_target(from, for_from.id(), to_kind)?;
        let at_to = self.take_target(to, for_to.id(), from_kind)?;
        let (replaced_from, replaced_to) = (at_from.gives_way.goes(), at_to.gives_way.goes());
        let ((for_from, for_to, copies), parted) = {
            let mut state = self.state.lock();
            let as_found = |end: &End, taken: &Taken| state.uppers.at(&end.path) == taken.gives_way.stands();
            if !as_found(from, &at_from) || !as_found(to, &at_to) {
                return Err(Error::Errno(libc::ESTALE));
            }
            if !originals.iter().all(Original::is_as_copied) {
                // Writes alone do not change the view; with a new epoch the rename looks again all the same.
                state.epoch += 1;
                return Err(Error::Errno(libc::ESTALE));
            }
            // Both at once, so that a death right after this leaves both in the view.
            let epilogue = Epilogue {
                drop: replaced_from.into_iter().chain(replaced_to).collect(),
                save: vec![at_from.row.clone(), at_to.row.clone()],
                ..Epilogue::default()
            };
            let departures = [at_from.gives_way, at_to.gives_way].into_iter().filter_map(GivesWay::departure).collect();
            let enter = |state: &mut State| {
                let written = |row, synced| Upper { synced, ..Upper::written(row) };
                state.enter_over(written(at_from.row, from_synced), replaced_from);
                state.enter_over(written(at_to.row, to_synced), replaced_to);
                let copies = state.exchanged_as_copies(from, to);
                // Taking the targets has made orphans of both open files; they go on with the copies.
                state.bind(&from.path, opened_from);
                state.bind(&to.path, opened_to);
                (for_from.keep(), for_to.keep(), copies)
            };
            self.depart(&mut state, departures, epilogue, Vec::new(), enter)?
        };
        drop(originals);
        let parted = self.tell_parted(parted);
        for (end, renamed) in copies {
            self.tell_renamed(end, renamed);
        }
        self.drop_replaced(replaced_from);
        self.drop_replaced(replaced_to);
        self.settle_parted(parted, &by)?;
        self.settle_moved(for_from, &by)?;
        self.settle_moved(for_to, &by).map(|_| ())
    }

    /// The entry that one end shows, if it is not lower's own.
    fn changed_at(&self, end: &End) -> Option<UpperId> {
        match &end.origin {
            Origin::Upper(id, _) => Some(*id),
            Origin::Lower(meta) => self.changed_by_other_name(meta),
            Origin::Nothing | Origin::Hidden(_) => None,
        }
    }

    /// Claims what is copied, so that nothing judges it meanwhile. In one order, so that two requests for the same
    /// entries never wait for each other.
    fn claim_originals(&self, mut ids: [Option<UpperId>; 2]) -> Result<Vec<Original<'_>>> {
        ids.sort_unstable();
        ids.into_iter().flatten().map(|id| self.claim_original(id)).collect()
    }

    fn claim_original(&self, id: UpperId) -> Result<Original<'_>> {
        let (_, claim) = self.claim(id)?;
        let open = self.state.lock().nodes.open_of(id).cloned();
        let version = open.as_ref().map_or(0, |open| open.version());
        Ok(Original { open, version, _claim: claim })
    }

    /// Copies what the view has at one end to new upper content: from the `changed` entry, which the caller has claimed,
    /// or from lower. Also returns whether the original was on disk; then the copy is.
    fn copy_of(&self, end: &End, changed: Option<UpperId>) -> Result<(NewUpper<'_>, bool)> {
        if let Some(id) = changed {
            return self.copy_synced(id, &end.path);
        }
        let (copy, _) = self.copy_to_upper(&end.path)?;
        let Origin::Lower(meta) = &end.origin else { return Ok((copy, false)) };
        let synced = self.is_on_disk(&end.path, meta)?;
        if synced {
            self.sync_copy(copy.id(), &end.path)?;
        }
        Ok((copy, synced))
    }
}
