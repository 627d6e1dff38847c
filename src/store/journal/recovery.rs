//! Recovery after a process that died: its landings are finished where possible, and otherwise undone as a whole.
//!
//! Runs before the first request, under the lock, and is idempotent: a second run finds nothing. The journal is read as
//! if an enemy wrote it: paths cannot leave the tree, and only names of our own pattern are removed.

use std::collections::HashSet;

use super::intent::{self, Act, Intent, Step};
use super::landing::{
    Progress, Staged, keep_foreign, open_dirs_of, remove_if_empty, sweep_early, sweep_notes, sync_opened,
};
use super::sweep::{Sweep, SweepNote, note_sweep, told_if_it_stays};
use crate::model::{Digest, InodeKey, RelPath};
use crate::protocol::EventName;
use crate::store::disk::copied::Project;
use crate::store::disk::generation;
use crate::store::rows::backups;
use crate::store::rows::events::{self, EventDraft};
use crate::store::rows::parse_row;
use crate::store::rows::upper::{UpperId, What};
use crate::store::{Context, Error, Result, Store, content, is_reserved_name, is_temp_name};
use crate::sys::file::FileKind;
use crate::sys::sqlite::Transaction;
use crate::sys::tree::{Dirs, Tree, is_absent};

/// What recovery did; empty after a clean end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Paths whose landing was finished.
    pub finished: Vec<RelPath>,
    /// Paths whose landing was undone: what was to land is still held or written.
    pub undone: Vec<RelPath>,
    /// Paths at which an outsider's content stands that was neither old nor new. It was left alone.
    pub foreign: Vec<RelPath>,
    /// Paths whose change was never synced, and of which a power cut left no content: the view shows lower again.
    pub gone: Vec<RelPath>,
    /// Temporary names and upper files without an owner that were removed.
    pub swept: usize,
    /// What files are called now that the database, an older one, does not tell of.
    pub set_aside: Vec<String>,
}

impl Recovered {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns each path with what became of it, in words.
    pub fn told(&self) -> impl Iterator<Item = (&RelPath, &'static str)> {
        let told = [
            (&self.finished, "its interrupted landing was finished"),
            (&self.undone, "its interrupted landing was undone"),
            (&self.foreign, "what somebody else put there was left alone"),
            (&self.gone, "nothing was left of a change that was never synced"),
        ];
        told.into_iter().flat_map(|(paths, words)| paths.iter().map(move |path| (path, words)))
    }

    /// Returns what became of files that the database does not tell of.
    pub fn told_of_files(&self) -> Option<String> {
        generation::words_for(&self.set_aside)
    }

    /// Records this in the event log, in the transaction that decides it: no later process will know.
    pub(in crate::store) fn record(&self, tx: &Transaction<'_>) -> Result<()> {
        let event = |path: Option<&RelPath>, words: &str| {
            EventDraft::new(EventName::Recovered).with(|event| {
                event.path = path.cloned();
                event.message = Some(words.to_owned());
            })
        };
        let of_paths = self.told().map(|(path, words)| event(Some(path), words));
        let of_files = self.told_of_files().map(|words| event(None, &words));
        events::put_all(tx, &of_paths.chain(of_files).collect::<Vec<_>>(), &[]).map(drop)
    }

    pub(in crate::store) fn add(&mut self, other: Self) {
        let Self { finished, undone, foreign, gone, swept, set_aside } = other;
        self.finished.extend(finished);
        self.undone.extend(undone);
        self.foreign.extend(foreign);
        self.gone.extend(gone);
        self.swept += swept;
        self.set_aside.extend(set_aside);
    }
}

impl Store {
    pub fn recover(&self, lower: &Tree) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        // If disk space has to be freed first, recovery goes on from where it was.
        self.vitally(|| self.recover_once(lower, &mut recovered))?;
        self.database.lock().pass_saved_uppers(&self.dirs)?;
        Ok(recovered)
    }

    fn recover_once(&self, lower: &Tree, recovered: &mut Recovered) -> Result<()> {
        self.check_places()?;
        let project = self.follow_device(lower)?;
        self.record_done()?;
        self.dirs.restore_modes()?;
        for (id, intent) in self.load_intents()? {
            let mut waiting = self.decide_intent((lower, project), id, intent, recovered)?;
            waiting.try_for_each(|staged| told_if_it_stays(staged.remove_waiting(self)).map(|_| ()))?;
        }
        if project == Project::Copy {
            self.adopt(lower)?;
        }
        let mut sweep = Sweep::of(lower);
        recovered.swept += self.sweep_noted(&mut sweep)?;
        recovered.swept += self.sweep_strays(&sweep)?;
        self.recover_from_power_cut(&sweep, recovered)?;
        self.remove_doomed(lower)?;
        let (known, made) = (self.generation()?, self.generation_of_files()?);
        let is_cleared = match made > known {
            true => self.set_unknown_aside(recovered)?,
            false => {
                recovered.swept += self.sweep_stage()?;
                recovered.swept += self.sweep_content()?;
                true
            }
        };
        // While something stays, the next start must not take it for left over either.
        if is_cleared {
            self.expect_generation(known.max(made));
        }
        Ok(())
    }

    /// Removes what landings could not remove, at a time when none is under way.
    pub fn clear_up(&self, lower: &Tree) -> Result<()> {
        self.record_waiting()?;
        let left_over = std::mem::take(&mut *self.left_over.lock());
        left_over.into_iter().for_each(|id| self.remove_upper_file(id));
        self.vitally(|| {
            self.sweep_noted(&mut Sweep::of(lower))?;
            self.remove_doomed(lower)
        })
    }

    /// Records what the dead process knew to be done, without a look at the paths: others may have changed them since.
    fn record_done(&self) -> Result<()> {
        let mut intents = self.load_intents()?;
        let done: Vec<i64> = intents.iter().flat_map(|(_, intent)| intent.done.iter().copied()).collect();
        let done = done.iter().filter_map(|id| {
            let index = intents.iter().position(|(intent, _)| intent == id)?;
            Some(intents.swap_remove(index))
        });
        let done: Vec<(i64, Intent)> = done.collect();
        match done.is_empty() {
            true => Ok(()),
            false => self
                .database
                .lock()
                .write(|tx| done.iter().try_for_each(|(id, intent)| intent::fulfil(tx, *id, intent).map(|_| ()))),
        }
    }

    pub(in crate::store) fn load_intents(&self) -> Result<Vec<(i64, Intent)>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare("SELECT id, row FROM intent ORDER BY id")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
        rows.map(|row| {
            let (id, json) = row?;
            Ok((id, parse_row(&json, self.dirs.describe())?))
        })
        .collect()
    }

    /// Finishes or undoes one landing. Returns what may wait under temporary names, in the order in which these can go:
    /// what waits in a directory comes before that directory.
    pub(in crate::store) fn decide_intent(
        &self,
        (lower, project): (&Tree, Project),
        id: i64,
        intent: Intent,
        recovered: &mut Recovered,
    ) -> Result<impl Iterator<Item = Staged>> {
        let Reopened { mut staged, unreachable, gone } = reopen_all((self, lower, project), &intent.steps)?;
        // The directory may have another name by now, and the step's temporary name in it.
        if !unreachable.is_empty() || !gone.is_empty() {
            self.note_strays()?;
        }
        staged.iter_mut().try_for_each(|staged| staged.look_for_upper(self))?;
        let progress = staged.iter().map(Staged::progress).collect::<Result<Vec<_>>>()?;
        let paths = |wanted: Progress| {
            let pairs = staged.iter().zip(&progress).filter(move |(_, progress)| **progress == wanted);
            pairs.map(|(staged, _)| staged.step.path.clone()).collect::<Vec<_>>()
        };
        let mut foreign = paths(Progress::Foreign);
        foreign.extend(unreachable);
        // A landing that was promised but not begun has not been reported as done. It may have been reported as failed,
        // if it was undone and its intent could not be retracted.
        let is_begun = match staged.is_empty() {
            true => are_there(lower, &intent.made)?,
            false => progress.iter().any(|one| matches!(one, Progress::Done | Progress::Torn)),
        };
        let is_finished = || {
            let finished = self.finish_all(&staged, &progress);
            finished.inspect_err(|err| log::error!("finish a landing, which is undone instead: {err}")).is_ok()
        };
        recovered.add(match foreign.is_empty() && is_begun && is_finished() {
            true => self.record_finished(lower, (id, intent), &staged, gone)?,
            false => self.undo_and_record((id, intent), &staged, foreign)?,
        });
        // As after any landing: what waits may be needed as long as a power cut can take the decision back.
        if staged.len() > 1 {
            self.sync()?;
        }
        Ok(staged.into_iter().rev())
    }

    fn record_finished(
        &self,
        lower: &Tree,
        (id, intent): (i64, Intent),
        staged: &[Staged],
        gone: Vec<RelPath>,
    ) -> Result<Recovered> {
        let intent = self.spare_written(lower, intent)?;
        // Noted in the transaction that decides: a crash right after it leaves only names that the notes list.
        let waiting = if sweep_early(staged, self) { Vec::new() } else { sweep_notes(staged) };
        let finished = staged.iter().map(|staged| staged.step.path.clone()).chain(gone).collect();
        let decided = Recovered { finished, ..Recovered::default() };
        self.database.lock().write(|tx| {
            intent::fulfil(tx, id, &intent)?;
            decided.record(tx)?;
            note_sweep(tx, &waiting)
        })?;
        Ok(decided)
    }

    fn undo_and_record(
        &self,
        (id, intent): (i64, Intent),
        staged: &[Staged],
        mut foreign: Vec<RelPath>,
    ) -> Result<Recovered> {
        foreign.extend(self.undo_all(staged)?);
        let waiting = sweep_notes(staged);
        // An entry that an outsider has replaced since may have been the only place of the old content.
        let kept = if foreign.is_empty() { &[][..] } else { &intent.backups };
        let undone = staged.iter().map(|staged| staged.step.path.clone()).collect();
        let decided = Recovered { undone, foreign, ..Recovered::default() };
        self.database.lock().write(|tx| {
            kept.iter().try_for_each(|backup| backups::put(tx, backup).map(|_| ()))?;
            intent::retract(tx, id)?;
            decided.record(tx)?;
            note_sweep(tx, &waiting)
        })?;
        Ok(decided)
    }

    fn finish_all(&self, staged: &[Staged], progress: &[Progress]) -> Result<()> {
        staged.iter().zip(progress).try_for_each(|(staged, progress)| match progress {
            Progress::Todo => staged.apply(self),
            Progress::Torn => staged.write_again(self),
            Progress::Done | Progress::Foreign => Ok(()),
        })?;
        // Entries come before the directory they are in, whose final mode may let nothing in any more.
        staged.iter().rev().try_for_each(Staged::dress)?;
        staged.iter().try_for_each(Staged::sync_rewritten)?;
        // Synced before the intent goes: its process may have promised that the landing lasts.
        sync_names(staged)
    }

    /// Asks each step again how far it is, because a failed attempt to finish may have taken it further. Returns the
    /// paths that others have taken meanwhile, and keep.
    fn undo_all(&self, staged: &[Staged]) -> Result<Vec<RelPath>> {
        let mut foreign = Vec::new();
        for staged in staged.iter().rev() {
            if !matches!(staged.progress()?, Progress::Done | Progress::Torn) {
                continue;
            }
            match staged.undo(self) {
                // Its old name has been taken: it stays under the new one.
                Err(err) if err.errno() == libc::EEXIST => foreign.push(staged.step.path.clone()),
                undone => undone?,
            }
        }
        staged.iter().try_for_each(Staged::sync_rewritten)?;
        // An error is only logged: what was to land waits in upper as before.
        sync_names(staged).unwrap_or_else(|err| log::error!("after an undone landing: {err}"));
        Ok(foreign)
    }

    /// Removes the temporary names that finished landings had no time to remove. If a name stays, so does its note.
    fn sweep_noted(&self, sweep: &mut Sweep<'_>) -> Result<usize> {
        let mut noted: Vec<(i64, Option<SweepNote>)> = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT id, path FROM sweep ORDER BY id")?;
            let rows =
                statement.query_map([], |row| Ok((row.get(0)?, SweepNote::parse(&row.get::<_, Vec<u8>>(1)?))))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        // Names with something to keep come before sweeps of their directory; else the order of `sweep_notes` stays.
        noted.sort_by_key(|(_, note)| note.as_ref().is_none_or(|note| note.of.is_none()));
        let (mut swept, mut done) = (0, Vec::new());
        for (id, note) in noted {
            let sweeping = note.map_or(Ok(0), |note| self.sweep(sweep, &note));
            if let Some(gone) = told_if_it_stays(sweeping)? {
                swept += gone;
                done.push(id);
            }
        }
        self.database.lock().write(|tx| {
            let mut forget = tx.prepare_cached("DELETE FROM sweep WHERE id = ?1")?;
            done.iter().try_for_each(|id| Ok(forget.execute([id]).map(|_| ())?))
        })?;
        Ok(swept)
    }

    fn sweep(&self, sweep: &mut Sweep<'_>, note: &SweepNote) -> Result<usize> {
        if !note.at.name().is_some_and(is_temp_name) {
            return sweep.dir(&note.at);
        }
        let kept = note.of.as_ref().map_or(Ok(()), |of| self.keep_theirs(sweep.lower, &note.at, of));
        kept.inspect_err(|_| sweep.spare(note.at.clone()))?;
        sweep.name(&note.at).map(usize::from)
    }

    /// Makes a backup, by its path, of what another program wrote before it came to stand under a temporary name, or put
    /// into a directory that stands there.
    fn keep_theirs(&self, lower: &Tree, at: &RelPath, of: &RelPath) -> Result<()> {
        match lower.place(at) {
            Err(err) if is_absent(&err) => Ok(()),
            place => keep_foreign(self, of, &place.doing(|| format!("look at {at}"))?),
        }
    }

    /// Removes temporary names that no intent tells of, since the crash came first. They stand beside what was to land.
    fn sweep_strays(&self, sweep: &Sweep<'_>) -> Result<usize> {
        let rows = self.load_upper()?;
        let dirs: HashSet<RelPath> = rows.iter().flat_map(|row| &row.names).filter_map(RelPath::parent).collect();
        dirs.iter().map(|dir| told_if_it_stays(sweep.dir(dir)).map(Option::unwrap_or_default)).sum()
    }

    /// Removes upper files without a row: those that were being made, and those that a recorded landing left behind.
    fn sweep_stage(&self) -> Result<usize> {
        let mut swept = 0;
        for id in self.rowless_uppers()? {
            swept += usize::from(told_if_it_stays(self.dirs.remove_stage_file(id))?.is_some());
        }
        Ok(swept)
    }

    fn rowless_uppers(&self) -> Result<Vec<UpperId>> {
        let owned: HashSet<UpperId> =
            self.load_upper()?.iter().filter(|row| row.what != What::Whiteout).map(|row| row.id).collect();
        Ok(self.dirs.stage_files()?.into_iter().filter(|id| !owned.contains(id)).collect())
    }

    /// Moves all that an older database does not tell of to where nothing removes it. Returns false if something stays.
    fn set_unknown_aside(&self, recovered: &mut Recovered) -> Result<bool> {
        let uppers = self.rowless_uppers()?.into_iter().map(|id| self.set_upper_aside(id));
        let contents = self.rowless_content()?;
        let contents =
            contents.iter().filter_map(|name| Digest::parse(name)).map(|digest| self.set_content_aside(digest));
        let (mut moved, mut is_all) = (Recovered::default(), true);
        for name in uppers.chain(contents) {
            match told_if_it_stays(name)? {
                Some(name) => moved.set_aside.push(name),
                None => is_all = false,
            }
        }
        if !moved.is_nothing() {
            self.database.lock().write(|tx| moved.record(tx))?;
        }
        recovered.add(moved);
        Ok(is_all)
    }

    /// Removes, deepest first, the directories that finished landings had no time to remove and those made for landings
    /// that did not come about. If a removal fails, its note stays, and so do those of the directories above.
    fn remove_doomed(&self, lower: &Tree) -> Result<()> {
        let mut doomed = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT path FROM doomed_dir")?;
            let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        if doomed.is_empty() {
            return Ok(());
        }
        doomed.sort();
        let (mut done, mut stay) = (Vec::new(), Vec::<RelPath>::new());
        for path in doomed.iter().rev().filter_map(|bytes| RelPath::parse(bytes).ok()) {
            let removed = match lower.place(&path) {
                Err(err) if is_absent(&err) => Ok(()),
                place => place.and_then(|place| remove_if_empty(&place)).doing(|| format!("remove {path}")),
            };
            let is_done = told_if_it_stays(removed)?.is_some() && !stay.iter().any(|stays| stays.is_within(&path));
            if is_done { done.push(path) } else { stay.push(path) }
        }
        self.database.lock().write(|tx| done.iter().try_for_each(|dir| spare_dir(tx, dir)))
    }

    /// Forgets the notes of names that are gone. They are deleted along with the next note, for free.
    pub(super) fn swept(&self, notes: Vec<i64>) {
        self.database.lock().swept.extend(notes);
    }

    /// Forgets the notes of directories that are gone, and at once: a new directory under such a name must stay.
    pub(super) fn dirs_gone(&self, dirs: &[RelPath]) -> Result<()> {
        match dirs.is_empty() {
            true => Ok(()),
            false => {
                self.vitally(|| self.database.lock().write(|tx| dirs.iter().try_for_each(|dir| spare_dir(tx, dir))))
            }
        }
    }

    /// Notes a directory before a temporary name is made in it, because not every directory has an upper entry that leads
    /// recovery there. Done once a session for each.
    pub(in crate::store) fn announce(&self, dir: &RelPath) -> Result<()> {
        let mut announced = self.announced.lock();
        if announced.contains(dir) {
            return Ok(());
        }
        self.database.lock().write(|tx| note_sweep(tx, &[SweepNote { at: dir.clone(), of: None }]).map(|_| ()))?;
        announced.insert(dir.clone());
        Ok(())
    }

    /// Removes content files that were being made, and those without a row.
    fn sweep_content(&self) -> Result<usize> {
        let mut swept = 0;
        for name in self.rowless_content()? {
            swept += usize::from(told_if_it_stays(content::remove_file(&self.dirs, &name))?.is_some());
        }
        Ok(swept)
    }

    fn rowless_content(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.dirs.content_files()? {
            if !Digest::parse(&name).map_or(Ok(false), |digest| self.has_content(digest))? {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// The steps of an intent. Some may be out of reach, which must not keep the rest from being decided.
struct Reopened {
    staged: Vec<Staged>,
    /// Steps that were planted, or whose directory has been taken away since.
    unreachable: Vec<RelPath>,
    /// Entries that were to be removed and are gone with their directory: nothing is left to do.
    gone: Vec<RelPath>,
}

fn reopen_all((store, lower, project): (&Store, &Tree, Project), steps: &[Step]) -> Result<Reopened> {
    let (plausible, planted): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|step| step.is_plausible());
    let mut unreachable: Vec<RelPath> = planted.iter().map(|step| step.path.clone()).collect();
    let (mut dirs, mut among, mut gone) = (Dirs::default(), Vec::new(), Vec::new());
    let staged = |step: &Step, among: &[Staged], dirs: &mut Dirs| {
        let staged = Staged::reopen((store, lower), by_a_name_it_has(lower, step)?, among, dirs)?;
        if project == Project::Copy { staged.adopted() } else { Ok(staged) }
    };
    let mut reopen = |step: &Step, among: &mut Vec<Staged>| match staged(step, among, &mut dirs) {
        Err(Error::Io { cause, .. }) if is_absent(&cause) => Ok(false),
        other => other.map(|staged| among.push(staged)).map(|()| true),
    };
    // Renames come last, and the steps before them act in the renamed directories, wherever these are by now: so the
    // renames are reopened first.
    for step in plausible.iter().filter(|step| step.is_rename()) {
        reopen(step, &mut among)?;
    }
    let renames = among.len();
    for step in plausible {
        if !reopen(step, &mut among)? {
            let out_of_reach = if matches!(step.act, Act::Remove { .. }) { &mut gone } else { &mut unreachable };
            out_of_reach.push(step.path.clone());
        }
    }
    Ok(Reopened { staged: among.split_off(renames), unreachable, gone })
}

/// A file that was being written in place may have lost its name to another file, and be half written under its others.
/// Returns the step with a name that the file has.
fn by_a_name_it_has(lower: &Tree, step: &Step) -> Result<Step> {
    let (Act::Rewrite { .. }, Some(file)) = (&step.act, step.expect) else { return Ok(step.clone()) };
    let here = lower.stat(&step.path).doing(|| format!("stat {}", step.path))?;
    let is_here = here.is_some_and(|here| here.number() == file.number());
    let other = if is_here { None } else { find_name(lower, file.key()) };
    Ok(Step { path: other.unwrap_or_else(|| step.path.clone()), ..step.clone() })
}

/// Searches the whole project. This is rare: few files are in the middle of a rewrite, and those seldom lose their name.
fn find_name(lower: &Tree, file: InodeKey) -> Option<RelPath> {
    let mut dirs = vec![RelPath::root()];
    while let Some(dir) = dirs.pop() {
        // A directory that cannot be listed, or has been removed meanwhile, cannot be mended.
        let Ok(entries) = lower.list(&dir) else { continue };
        for entry in entries.into_iter().filter(|entry| !is_reserved_name(&dir, &entry.name)) {
            let Ok(path) = dir.join(&entry.name) else { continue };
            let is_it = || lower.stat(&path).is_ok_and(|found| found.is_some_and(|found| found.key() == file));
            match entry.kind {
                FileKind::Directory => dirs.push(path),
                FileKind::Regular if entry.inode == file.inode && is_it() => return Some(path),
                _ => {}
            }
        }
    }
    None
}

/// True if the directories made for a landing are all there, so that no undoing has taken them away.
fn are_there(lower: &Tree, made: &[RelPath]) -> Result<bool> {
    for dir in made {
        if !lower.exists(dir).doing(|| format!("stat {dir}"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sync_names(staged: &[Staged]) -> Result<()> {
    sync_opened(&open_dirs_of(staged.iter().flat_map(Staged::places))?)
}

/// Notes a directory that is to be removed if it is empty.
pub(in crate::store) fn doom_dir(tx: &Transaction<'_>, path: &RelPath) -> Result<()> {
    tx.prepare_cached("INSERT INTO doomed_dir (path) VALUES (?1)")?.execute([path.as_bytes()])?;
    Ok(())
}

/// Deletes the note: the directory stays.
pub(super) fn spare_dir(tx: &Transaction<'_>, path: &RelPath) -> Result<()> {
    tx.prepare_cached("DELETE FROM doomed_dir WHERE path = ?1")?.execute([path.as_bytes()])?;
    Ok(())
}
