//! Discarding: a change goes from the view, which shows lower again; its content is kept as a backup.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Review, Reviewed, Reviewing, Taken, Writers, busy_within, failed, reviewed};
use crate::model::{BackupKind, ChangeId, Digest, OperationId, RelPath};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Backing, OpenFile};
use crate::overlay::judge::flush::WAIT_FOR_CLOSE;
use crate::overlay::judge::side::Side;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::state::uppers::Upper;
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, EventName, Note, Outcome};
use crate::store::{
    self, Applied, Base, Below, Durability, Effect, Epilogue, Fate, Landing, PathEffect, StagedContent, UpperId,
    UpperRow, Version, What,
};
use crate::sys::file::{FileKind, Meta};

/// What the log of events tells of a discard that could keep nothing.
const GONE: &str = "its content is gone: no backup";

/// Entries whose own files become backups, on a disk that has no room for copies.
struct GivenAway<'a> {
    overlay: &'a Overlay,
    entries: Vec<(UpperId, Digest)>,
    /// The files are backups now, and their entries gone.
    is_done: bool,
}

impl GivenAway<'_> {
    /// Keeps the content of a change that is not open by giving its file one more name. `full` says why it could not be
    /// copied.
    fn stage(&mut self, change: &Taken, side: &mut Side, full: store::Error) -> Result<StagedContent> {
        let id = change.row.id;
        let digest = side.digest().doing(|| format!("hash {}", change.row.path()))?;
        let (Some(digest), Some(FileKind::Regular)) = (digest, side.kind) else { return Err(full.into()) };
        {
            let is_open = |state: &State| state.nodes.open_of(id).is_some();
            let mut state = self.overlay.state.lock();
            // A reader may just have closed it, with the release still under way.
            self.overlay.wait_while(&mut state, WAIT_FOR_CLOSE, is_open);
            let is_open = is_open(&state);
            match state.uppers.get_mut(id) {
                Some(upper) if !is_open => upper.given_away = true,
                Some(_) | None => return Err(full.into()),
            }
        }
        self.entries.push((id, digest));
        let store = &self.overlay.store;
        Ok(store.vitally(|| store.stage_by_name(id, digest, side.size))?.ok_or(full)?)
    }
}

/// After a discard the entries are gone. Otherwise they may be written again, and their files must be theirs alone.
impl Drop for GivenAway<'_> {
    fn drop(&mut self) {
        for (id, digest) in &self.entries {
            if !self.is_done
                && let Err(err) = self.overlay.store.unstage(*id, *digest)
            {
                log::error!("take back what was to be a backup: {err}");
            }
            if let Some(upper) = self.overlay.state.lock().uppers.get_mut(*id) {
                upper.given_away = false;
            }
        }
        self.overlay.changed.notify_all();
    }
}

/// What lower has at the path of a change that is about to go.
pub(in crate::overlay) struct Shown {
    meta: Option<Meta>,
    /// Lower's file, if the change is open in the view.
    file: Option<Arc<File>>,
    /// The file that an open change was written to, found by another name, where it is not at the path any more.
    elsewhere: Option<Arc<File>>,
}

/// What becomes of writes to an entry that goes from the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Writing {
    /// A write under way becomes a change of its own, a later one brings a new file back, and the next close has either
    /// judged (SPEC §8).
    GoesOn,
    /// Writes to a new file belong to no path from then on.
    IsInVain,
}

/// Changes on their way out of the view, claimed.
pub(in crate::overlay) struct Dropping<'a> {
    given_away: GivenAway<'a>,
    reviewing: Reviewing<'a>,
    outcomes: Vec<Outcome>,
    /// Indices of the changes that become backups, in the order in which the landing keeps them.
    kept: Vec<usize>,
    shown: Vec<Shown>,
}

impl Dropping<'_> {
    pub fn is_empty(&self) -> bool {
        self.reviewing.taken.is_empty()
    }

    /// Their entries in upper.
    pub fn entries(&self) -> HashSet<UpperId> {
        self.reviewing.taken.iter().map(|change| change.row.id).collect()
    }

    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// How many backups of the landing are theirs; these come first.
    pub fn backups(&self) -> usize {
        self.kept.len()
    }

    /// Notes that lower shows at their paths what the same landing has put there.
    pub fn note_applied(&mut self, applied: &Applied<'_>) {
        let steps: HashMap<&RelPath, Option<Meta>> =
            applied.outcomes.iter().map(|step| (&step.path, step.meta)).collect();
        for (change, shown) in self.reviewing.taken.iter().zip(&mut self.shown) {
            if let Some(meta) = steps.get(change.row.path()) {
                *shown = Shown { meta: *meta, file: None, elsewhere: None };
            }
        }
    }
}

/// The directories that these names are in, each once: trees may be deep.
pub(in crate::overlay) fn dirs_above<'a>(names: impl Iterator<Item = &'a RelPath>) -> BTreeSet<RelPath> {
    let mut dirs = BTreeSet::new();
    for name in names {
        let mut above = name.parent();
        while let Some(dir) = above {
            above = dir.parent();
            if !dirs.insert(dir) {
                break;
            }
        }
    }
    dirs
}

impl Overlay {
    /// Drops changes from the view; their content is kept as backups.
    pub fn discard(&self, ids: &[ChangeId], review: &Review) -> Reviewed<Vec<Outcome>> {
        self.person_decides(review);
        let mut dropping = self.dropping(self.with_dependents(ids)?)?;
        if review.dry_run {
            return Ok(dropping.outcomes);
        }
        let mut landing = Landing::new(&self.store, Durability::Synced).vital();
        let mut epilogue = Epilogue::default();
        self.stage_dropped(&mut dropping, review, &mut landing, &mut epilogue)?;
        self.look_below(&mut dropping)?;
        let done = landing.promise(epilogue).and_then(|promised| promised.apply()).and_then(|applied| applied.finish());
        let landed = done.map_err(|err| self.not_landed(err.into(), "nothing was discarded"))?;
        Ok(self.dropped(dropping, &landed.backups, landed.operation))
    }

    /// Claims changes, together with the held removals that would hide what comes back.
    pub(in crate::overlay) fn dropping(&self, ids: Vec<ChangeId>) -> Reviewed<Dropping<'_>> {
        let ids = self.with_emptied_stand_ins(self.with_hidden_parents(ids));
        // Open descriptors go on working, and their next close is judged anew (SPEC §8).
        let reviewing = self.take_all(&ids, Writers::LeftAlone)?;
        self.check_nothing_left_inside(&reviewing.taken)?;
        Ok(self.dropping_claimed(reviewing))
    }

    /// Takes changes on their way out of the view out of a claim on these and others.
    pub(super) fn dropping_of(&self, claimed: &mut Reviewing<'_>, going: &HashSet<UpperId>) -> Dropping<'_> {
        let (taken, rest) = std::mem::take(&mut claimed.taken).into_iter().partition(|one| going.contains(&one.row.id));
        claimed.taken = rest;
        self.dropping_claimed(Reviewing { overlay: self, taken })
    }

    fn dropping_claimed<'a>(&'a self, reviewing: Reviewing<'a>) -> Dropping<'a> {
        let given_away = GivenAway { overlay: self, entries: Vec::new(), is_done: false };
        let outcomes = reviewing.taken.iter().map(|change| change.outcome(Done::Discarded)).collect();
        Dropping { given_away, reviewing, outcomes, kept: Vec::new(), shown: Vec::new() }
    }

    /// Adds the held removals of directories above these changes: what comes back needs its directories, so they come
    /// back too.
    fn with_hidden_parents(&self, mut ids: Vec<ChangeId>) -> Vec<ChangeId> {
        let state = self.state.lock();
        let given: HashSet<&ChangeId> = ids.iter().collect();
        let uppers = ids.iter().filter_map(|id| state.uppers.of_change(id));
        let hidden = dirs_above(uppers.map(|upper| upper.row.path())).into_iter().filter_map(|dir| {
            let row = &state.uppers.get(state.uppers.at(&dir)?)?.row;
            let held = row.held.as_ref().filter(|_| row.removes_dir())?;
            (!given.contains(&held.id)).then(|| held.id.clone())
        });
        let hidden: Vec<ChangeId> = hidden.collect();
        ids.extend(hidden);
        ids
    }

    /// Adds the directories removed below that the view has kept only for these changes: they go with the last of them.
    fn with_emptied_stand_ins(&self, mut ids: Vec<ChangeId>) -> Vec<ChangeId> {
        let state = self.state.lock();
        let going: HashSet<UpperId> = ids.iter().filter_map(|id| state.uppers.by_id(id)).collect();
        let names = going.iter().filter_map(|id| state.uppers.get(*id)).flat_map(|upper| &upper.row.names);
        let dirs = dirs_above(names);
        let stand_ins = dirs.iter().filter_map(|dir| Some((dir, state.uppers.stand_in_at(dir)?)));
        let goes = |upper: &Upper| going.contains(&upper.row.id);
        // A file that is being written would come back into it.
        let ends = |dir: &RelPath| state.uppers.shown_within(dir).all(goes) && state.written_within(dir).is_none();
        let emptied = stand_ins.filter(|(dir, upper)| !goes(upper) && ends(dir));
        ids.extend(emptied.filter_map(|(_, upper)| Some(upper.row.held.as_ref()?.id.clone())));
        ids
    }

    /// Has a landing keep the contents as backups, and drop the changes when it is done.
    pub(in crate::overlay) fn stage_dropped(
        &self,
        dropping: &mut Dropping<'_>,
        review: &Review,
        landing: &mut Landing<'_>,
        epilogue: &mut Epilogue,
    ) -> Reviewed<()> {
        let Dropping { given_away, reviewing, outcomes, kept, .. } = dropping;
        for (index, change) in reviewing.taken.iter().enumerate() {
            let path = change.row.path();
            let fault = |err: Error| failed(path, &err);
            let mut side = match self.row_side(&change.row) {
                // Its upper file was removed from outside: nothing is left to keep, and there is no other way to be rid
                // of the change.
                Err(err) if err.code() == libc::ENOENT && !change.row.what.is_structure() => {
                    log::error!("{path}: its content is gone: {err}");
                    outcomes[index].note = Some(Note::Gone);
                    Side::default()
                }
                side => side.map_err(fault)?,
            };
            let staged = match side.stage(&self.store) {
                Err(err) if err.is_full() => given_away.stage(change, &mut side, err).map(Some),
                staged => staged.map_err(Error::from),
            };
            let content = staged.map_err(|err| self.failed_in_room(path, &err))?;
            let digest = content.as_ref().map(|content| content.digest);
            let effect = discarded(&change.row, &side, digest).map_err(fault)?;
            if let Some(content) = content {
                let backup = self.backup_there(path, &side, &content, BackupKind::Discarded, &review.by);
                landing.keep(content, backup);
                kept.push(index);
            }
            epilogue.drop.push(change.row.id);
            epilogue.verdicts.push((change.held.id.clone(), path.clone(), Fate::Discarded));
            let event = self.event(EventName::Discarded, path).with(|event| {
                event.id = Some(change.held.id.to_string());
                event.message = (outcomes[index].note == Some(Note::Gone)).then(|| GONE.to_owned());
            });
            let event = reviewed(event, &change.held, &review.by);
            epilogue.events.push(event.doing([PathEffect::new(path, effect)]));
        }
        Ok(())
    }

    /// Looks at what lower has at their paths, so that nothing can prevent the view from showing it once they are gone.
    pub(in crate::overlay) fn look_below(&self, dropping: &mut Dropping<'_>) -> Reviewed<()> {
        let Dropping { reviewing, shown, .. } = dropping;
        self.check_nothing_left_inside(&reviewing.taken)?;
        let below = |change: &Taken| {
            let path = change.row.path();
            let look = || {
                self.learn_names(change)?;
                let shown = self.what_lower_shows(path, change.open.as_ref())?;
                let elsewhere = self.own_file_elsewhere(change, shown.meta.as_ref())?;
                Ok(Shown { elsewhere, ..shown })
            };
            look().map_err(|err| failed(path, &err))
        };
        *shown = reviewing.taken.iter().map(below).collect::<Reviewed<_>>()?;
        Ok(())
    }

    /// Makes the first name of an open change known as it is now: what comes back after the discard comes back there, even
    /// if the kernel knows a further name alone, or has not looked since somebody renamed the directory below.
    fn learn_names(&self, change: &Taken) -> Result<()> {
        let Some(open) = &change.open else { return Ok(()) };
        let mut names = vec![change.row.path().clone()];
        if !change.row.base.is_shared() {
            // By its former directory it may have a name that is another file's.
            names.extend(self.state.lock().nodes.paths(open.node).unwrap_or_default());
        }
        for name in names {
            match self.learn_name(&name) {
                // Without the directory nothing can come back there.
                Err(err) if err.code() == libc::ENOENT => {}
                learnt => learnt?,
            }
        }
        Ok(())
    }

    /// Opens the file that an open change was written to by another name, where the first one does not lead to it any
    /// more. The kernel need not have looked that name up.
    fn own_file_elsewhere(&self, change: &Taken, at_first: Option<&Meta>) -> Result<Option<Arc<File>>> {
        let base = &change.row.base;
        let Below::Entry { stamp, links: 2.., .. } = base.below else { return Ok(None) };
        if change.open.is_none() || at_first.is_some_and(|meta| self.may_be_its_file(base, meta)) {
            return Ok(None);
        }
        let found = self.judged_name_below(stamp.key(), |name| self.state.lock().is_taken_from_lower(name))?;
        Ok(self.open_of_file(base, found.as_ref()).map(|(_, file)| Arc::new(file)))
    }

    /// Ends a discard that has landed and kept contents as `backups`: the view shows lower again, as far as it can.
    pub(in crate::overlay) fn dropped(
        &self,
        dropping: Dropping<'_>,
        backups: &[String],
        operation: Option<OperationId>,
    ) -> Vec<Outcome> {
        let Dropping { mut given_away, reviewing, mut outcomes, kept, shown } = dropping;
        given_away.is_done = true;
        for (index, name) in kept.into_iter().zip(backups) {
            outcomes[index].backup = Some(name.clone());
        }
        for outcome in &mut outcomes {
            outcome.operation = operation.map(|operation| operation.to_string());
        }
        // The contents of a directory go before the directory itself: they are found by their paths.
        let mut inner_first: Vec<(&Taken, Shown)> = reviewing.taken.iter().zip(shown).collect();
        inner_first.sort_by(|(a, _), (b, _)| b.row.path().cmp(a.row.path()));
        for (change, shown) in inner_first {
            self.back_to_lower(&change.row, |state| state.is_as_taken(change), shown, Writing::GoesOn);
        }
        drop(given_away);
        let taken = reviewing.give_back();
        let names = || taken.iter().flat_map(|change| &change.row.names);
        self.end_emptied_stand_ins(names());
        names().for_each(|name| self.tell_content_changed(name));
        outcomes
    }

    /// What lower has at a path, with its file if the path is `open` in the view.
    pub(in crate::overlay) fn what_lower_shows(&self, path: &RelPath, open: Option<&Arc<OpenFile>>) -> Result<Shown> {
        let meta = self.meta_below(path)?;
        let needs_file = open.is_some() && meta.as_ref().is_some_and(Meta::is_file);
        let file = needs_file.then(|| self.lower.open_to_read(path)).transpose().doing(|| format!("open {path}"))?;
        Ok(Shown { meta, file: file.map(Arc::new), elsewhere: None })
    }

    /// Refuses to drop a directory while something in it stays: what is being written there would have no place, and none
    /// to come back to.
    fn check_nothing_left_inside(&self, taken: &[Taken]) -> Reviewed<()> {
        let state = self.state.lock();
        let mut dirs = taken.iter().filter(|change| change.row.what == What::Dir).map(|dir| dir.row.path());
        let inside = dirs.clone().flat_map(|dir| state.uppers.within(dir)).filter_map(|id| state.uppers.get(id));
        // A deletion needs no place if its directory was removed below. Nor does a stand-in that a look at lower has made
        // a moment ago for what is in it: it goes with the last of that.
        let needs_place = |upper: &Upper| upper.row.what != What::Whiteout && !upper.is_stand_in();
        let stays = |upper: &Upper| !taken.iter().any(|change| change.row.id == upper.row.id);
        let mut left = inside.filter(|upper| needs_place(upper) && stays(upper)).map(|upper| upper.row.path().clone());
        match left.next().or_else(|| dirs.find_map(|dir| state.written_within(dir))) {
            Some(left) => Err(busy_within(&left)),
            None => Ok(()),
        }
    }

    /// The view shows lower at the entry's names again. Open descriptors go on with what lower has.
    pub(in crate::overlay) fn back_to_lower(
        &self,
        row: &UpperRow,
        is_as_taken: impl FnOnce(&State) -> bool,
        shown: Shown,
        writing: Writing,
    ) {
        let path = row.path();
        let mut state = self.state.lock();
        state.epoch += 1;
        let is_in_the_midst = writing == Writing::GoesOn && state.is_in_the_midst(row);
        if is_in_the_midst || !is_as_taken(&state) {
            return self.begin_anew(&mut state, row.id);
        }
        let node = state.node_at(path);
        if let (Writing::GoesOn, Some(below)) = (writing, shown.meta.filter(|meta| !meta.is_dir())) {
            state.uppers.note_discarded(path, &below);
        }
        let by_other_name = node.filter(|node| state.nodes.at(path) != Some(*node));
        let meta = self.goes_on_below(&mut state, row, shown);
        if let Some(node) = node {
            let key = meta.filter(Meta::is_file).map(|meta| meta.key());
            state.nodes.set_lower(node, key);
        }
        // One of several hard links again: the next lookup finds the node that the others have.
        let is_others = node.is_some_and(|node| meta.is_some_and(|meta| state.nodes.is_of_another(node, meta.key())));
        if let Some(node) = node.filter(|_| row.what.is_structure()) {
            self.note_removed_dir(&mut state, node, row);
        }
        let is_gone = |name: &RelPath| meta.is_none() || name != path || is_others || row.what.is_structure();
        // The first name last: the file comes back to that one.
        for name in row.names.iter().rev().filter(|name| is_gone(name)) {
            if writing == Writing::GoesOn {
                state.note_taken(name);
            }
            state.nodes.unname_path(name);
        }
        if let Some(node) = node
            && let Some(key) = state.nodes.open_on(node).and_then(|open| open.key_below())
        {
            // If its file has another name only, it is found by that.
            state.nodes.set_lower(node, Some(key));
        }
        state.uppers.remove(row.id);
        if row.what == What::Whiteout && meta.is_some_and(|meta| meta.is_file()) {
            self.read_on(&mut state, path);
        }
        drop(state);
        if let Some(node) = by_other_name {
            self.tell(|observer| observer.content_changed(node));
        }
        match row.what {
            What::File | What::Symlink | What::Dir | What::Node => self.store.drop_upper_file(row.id),
            What::Whiteout => {}
        }
    }

    /// Switches the handles on a change that goes to what lower has, or to an orphan that nothing shows. Returns what the
    /// change's node stands for from then on.
    fn goes_on_below(&self, state: &mut State, row: &UpperRow, shown: Shown) -> Option<Meta> {
        let (path, Shown { meta, file, elsewhere }) = (row.path(), shown);
        let Some(open) = state.nodes.open_of(row.id).cloned() else { return meta };
        // Nobody has asked to write to another file that has taken the change's first name.
        let meta = meta.filter(|meta| self.may_be_its_file(&row.base, meta));
        // If a reader opened the change only after `shown` was made, lower is opened here.
        let now = || self.lower.open_to_read(path).ok().map(Arc::new);
        let lower = meta.filter(Meta::is_file).and_then(|_| file.or_else(now));
        // Otherwise what is there gets a node of its own: writes through this one go to the orphan, and must not count as
        // its content.
        let meta = meta.filter(|_| lower.is_some());
        let names = state.nodes.paths(open.node).unwrap_or_default();
        let others = names.iter().filter(|other| *other != path && state.is_taken_from_lower(other));
        let other = if lower.is_none() { self.open_of_file(&row.base, others) } else { None };
        let backing = match (lower, other, elsewhere) {
            (Some(file), ..) => Backing::Lower(file),
            (None, Some((other, file)), _) => {
                state.nodes.lead_with(open.node, other);
                Backing::Lower(Arc::new(file))
            }
            // The next write looks for its name once more.
            (None, None, Some(file)) => Backing::Lower(file),
            (None, None, None) => Backing::Orphan(open.file()),
        };
        open.set_backing(&mut state.nodes, backing);
        open.dirty.store(false, Ordering::SeqCst);
        meta
    }

    /// Lets a process whose working directory goes keep standing in it.
    fn note_removed_dir(&self, state: &mut State, node: NodeId, row: &UpperRow) {
        let was = self.store.upper_meta(row.id).map_err(Error::from);
        let noted = was.and_then(|was| {
            state.nodes.get_mut(node)?.note_removed(&was);
            Ok(())
        });
        if let Err(err) = noted {
            log::error!("{} is not in the view any more, and who stands in it is told nothing: {err}", row.path());
        }
    }

    /// What was written while the change was being discarded is a change of its own, judged when its writer closes. It
    /// stays one of the file that the discarded change was based on, because its writer has seen nothing else of lower.
    fn begin_anew(&self, state: &mut State, id: UpperId) {
        state.uppers.held_no_more(id);
        let Some(upper) = state.uppers.get_mut(id) else { return };
        upper.dirty = true;
        let below = upper.row.base.below;
        state.uppers.set_base(id, Base::of(below));
        self.row_dropped(state, id);
    }
}

impl State {
    /// True if a program has begun to write the change anew and that is not judged yet: it has not closed the file, or has
    /// left it to another writer. A program that only appends may append to lower.
    fn is_in_the_midst(&self, row: &UpperRow) -> bool {
        let open = self.nodes.open_of(row.id);
        open.is_some_and(|open| open.is_rewritten() || self.handles_on(open.node).any(|handle| handle.has_begun()))
    }
}

/// The effect of discarding a change, as an undo needs it.
pub(in crate::overlay) fn discarded(row: &UpperRow, side: &Side, kept: Option<Digest>) -> Result<Effect> {
    discarded_for(None, row, side, kept)
}

/// The same for a change in whose place another is held from then on.
pub(in crate::overlay) fn discarded_for(
    instead: Option<ChangeId>,
    row: &UpperRow,
    side: &Side,
    kept: Option<Digest>,
) -> Result<Effect> {
    let content = kept.map(|digest| side.kept_as(digest));
    let version = side.meta.map(|meta| Version { group: side.masked_group(), ..Version::of(&meta, content) });
    let looks = side.looks(row).doing(|| format!("look at {}", row.path()))?;
    Ok(Effect::Discarded { row: Box::new(row.clone()), content: version, xattrs: looks.given_xattrs(), instead })
}
