//! Asking the user's permission programs about a judged change, before it is acted on (SPEC §7 "hook").
//!
//! They are asked about everything that is judged, including what already waits for review: they may deny that. They are
//! not asked about what they do themselves, which waits for review, nor about what is not judged. No lock is held
//! meanwhile, but the claim on the entry is: another thread that wants to judge, rename or review that entry waits for
//! the answer, too.

use std::sync::atomic::Ordering;

use super::claim::Job;
use super::compare::{Comparison, Old};
use super::side::Side;
use crate::diff::{FileContent, FileDiff, FileSide, Unreadable, unified};
use crate::hooks::{Answer, Counts, Question, Tier};
use crate::model::{Digest, Reason, RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::names::rename::End;
use crate::overlay::state::lookup::Origin;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::store::{Base, Below, Kept, UpperRow, What, Writer};
use crate::sys::file::FileKind;

/// What permission programs have said of a change that is yet to be made.
#[derive(Clone)]
pub(in crate::overlay) struct Said {
    answer: Answer,
    of: Contents,
}

/// What lower has, and what it is to have.
type Contents = (Option<Digest>, Option<Digest>);

impl Overlay {
    pub(super) fn ask_hooks(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Answer {
        let policy = self.policy();
        if policy.hooks.is_empty() || self.is_beyond_hooks(comparison, actor) {
            return Answer::Land;
        }
        // Asked again, the program could write again, and the change would never settle.
        if job.because.contains(&Reason::Hook) || self.is_hooks_own(actor) {
            return Answer::Hold("a permission program did this itself".to_owned());
        }
        if let Some(said) = &job.said
            && contents(comparison).is_ok_and(|contents| contents == said.of)
        {
            return said.answer.clone();
        }
        self.let_others_go(&comparison.path);
        match self.question(job, comparison, actor) {
            Ok(question) => self.hooks.ask(&policy.hooks, &question, policy.settings.hook_timeout),
            Err(err) => Answer::Hold(format!("the question could not be asked: {err}")),
        }
    }

    /// Asks, before it happens, about the removal of something that waits for review or is being written: afterwards it
    /// could not be brought back. Returns `Error::Denied`, with nothing done, if they refuse; otherwise their answer
    /// counts when the removal is judged.
    pub(in crate::overlay) fn ask_ahead_of_deletion(&self, row: &UpperRow, caller: &Caller) -> Result<()> {
        let Some(by) = self.asked_for(caller) else { return Ok(()) };
        let row = UpperRow { what: What::Whiteout, base: row.base.of_one_name(), ..row.clone() };
        self.ask_ahead(row, None, &by, || Ok(Side::default()))
    }

    /// The same for a rename of such a file, or over one.
    pub(in crate::overlay) fn ask_ahead_of_rename(&self, from: &End, to: &End, caller: &Caller) -> Result<()> {
        let Some(by) = self.asked_for(caller) else { return Ok(()) };
        let row_of = |id| self.state.lock().uppers.row(id).cloned();
        let (base, held) = match &to.origin {
            Origin::Nothing => (Base::NOTHING, None),
            Origin::Lower(meta) => (Base::of_name(meta), None),
            Origin::Hidden(id) | Origin::Upper(id, _) => {
                let row = row_of(*id).ok_or(Error::Errno(libc::ESTALE))?;
                (row.base.of_one_name(), row.held)
            }
        };
        let source = from.upper().and_then(row_of);
        let Some(id) = from.upper().or(to.upper()) else { return Ok(()) };
        let what = source.as_ref().map_or(What::File, |row| row.what.clone());
        let row = UpperRow { held, ..UpperRow::new(id, to.path.clone(), what, base) };
        let along = match (&from.origin, from.action) {
            (Origin::Lower(_), Action::Hold(_) | Action::Pass) => None,
            (Origin::Lower(meta), _) => Some((from.path.clone(), meta.stamp())),
            (Origin::Upper(..) | Origin::Hidden(_) | Origin::Nothing, _) => None,
        };
        self.ask_ahead(row, along, &by, || match &source {
            Some(row) => self.row_side(row),
            None => self.present_side(&from.path),
        })
    }

    /// The same for new content of a file, before it is written. Returns the answer, which counts when that is judged,
    /// however much later. `None` if nobody was asked.
    pub(in crate::overlay) fn ask_ahead_of_rewrite(
        &self,
        path: &RelPath,
        new: &[u8],
        caller: &Caller,
    ) -> Result<Option<Said>> {
        let Some(by) = self.asked_for(caller) else { return Ok(None) };
        let (row, new) = self.rewritten(path, new)?;
        let said = self.said_ahead(&Job::to_come(row, None), &by, || Ok(new))?;
        Ok(said.map(|(_, said)| said))
    }

    /// Compares new content of a file with what the file has, without acting on it. `None` if what it would be judged
    /// against is gone.
    pub(in crate::overlay) fn compare_rewrite(
        &self,
        path: &RelPath,
        new: &[u8],
        caller: &Caller,
    ) -> Result<Option<Comparison>> {
        let (row, new) = self.rewritten(path, new)?;
        self.compare_ahead(&Job::to_come(row, None), &self.writer(caller), || Ok(new))
    }

    fn rewritten(&self, path: &RelPath, new: &[u8]) -> Result<(UpperRow, Side)> {
        let (base, mode) = match self.origin(path)? {
            Origin::Lower(meta) => (Base::of(Below::of(Some(&meta))), meta.mode),
            Origin::Upper(_, meta) => (Base::NOTHING, meta.mode),
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
        };
        let there = self.state.lock().uppers.upper_at(path).map(|upper| upper.row.clone());
        let new_row = || UpperRow::new(self.store.reserve_upper(), path.clone(), What::File, base);
        let row = there.unwrap_or_else(new_row);
        let kept = Kept { digest: Digest::of(new), symlink: false };
        Ok((row, Side::of_kept(new.to_vec(), kept, mode)))
    }

    fn ask_ahead(
        &self,
        row: UpperRow,
        takes_along: Option<(RelPath, Stamp)>,
        by: &Writer,
        new: impl FnOnce() -> Result<Side>,
    ) -> Result<()> {
        let job = Job::to_come(row, takes_along);
        if let Some((mut comparison, said)) = self.said_ahead(&job, by, new)? {
            self.hooks.said_ahead(&self.question(&job, &mut comparison, by)?, said.answer);
        }
        Ok(())
    }

    fn said_ahead(
        &self,
        job: &Job,
        by: &Writer,
        new: impl FnOnce() -> Result<Side>,
    ) -> Result<Option<(Comparison, Said)>> {
        let _judging = self.judging(job.row.path().clone(), by.pid);
        let mut comparison = match self.compare_ahead(job, by, new) {
            Ok(Some(comparison)) => comparison,
            // They are asked again when it is judged. A denial then comes too late to refuse it, and holds it.
            Ok(None) => return Ok(None),
            Err(err) => {
                log::warn!("ask of {} ahead: {err}", job.row.path());
                return Ok(None);
            }
        };
        match self.ask_hooks(job, &mut comparison, by) {
            Answer::Deny(why) => {
                self.counters.denied.fetch_add(1, Ordering::Relaxed);
                self.store.record(&self.denied_event(&comparison, by, &why))?;
                Err(Error::Denied)
            }
            answer @ (Answer::Land | Answer::Hold(_)) => {
                let of = contents(&comparison)?;
                Ok(Some((comparison, Said { answer, of })))
            }
        }
    }

    /// `None` if what the change is to be judged against is gone.
    fn compare_ahead(&self, job: &Job, by: &Writer, new: impl FnOnce() -> Result<Side>) -> Result<Option<Comparison>> {
        let present = self.present_side(job.row.path())?;
        match self.old_side(job, &present)? {
            Old::Known(old) => Ok(Some(self.compare(job, by, *old, new()?, present)?)),
            Old::Lost => Ok(None),
        }
    }

    /// The caller as a writer, if there are permission programs and it is none of them.
    fn asked_for(&self, caller: &Caller) -> Option<Writer> {
        let by = (!self.policy().hooks.is_empty()).then(|| self.writer(caller))?;
        (!self.is_hooks_own(&by)).then_some(by)
    }

    /// True if a process is a permission program being asked, or was started by one: it must not wait for its own answer.
    pub fn is_asked(&self, pid: u32) -> bool {
        self.hooks.is_own(pid)
    }

    /// True if the writer is a permission program being asked, or was started by one. With no programs set none runs.
    pub(in crate::overlay) fn is_hooks_own(&self, by: &Writer) -> bool {
        by.pid != 0 && self.hooks.is_own(by.pid)
    }

    /// A request for attributes waits a moment for a judging that is about to change them. It must not wait for one that
    /// may take as long as a person does.
    fn let_others_go(&self, path: &RelPath) {
        let mut state = self.state.lock();
        let Some(node) = state.node_at(path) else { return };
        state.closing.remove(&node);
        state.judged_at_release.retain(|judged| *judged != node);
        drop(state);
        self.changed.notify_all();
    }

    /// True for what is held whatever they answer, and for what is not judged.
    fn is_beyond_hooks(&self, comparison: &Comparison, actor: &Writer) -> bool {
        let kind = comparison.new.kind.or(comparison.old.kind).unwrap_or(FileKind::Regular);
        let action = self.action_on_content(&comparison.path, kind, actor);
        let is_unjudged = matches!(action, Action::Pass | Action::GitConfig);
        is_unjudged || comparison.reasons.contains(&Reason::Interrupted)
    }

    fn question(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<Question> {
        let sha256 = comparison.new.digest().doing(|| format!("hash {}", comparison.path))?;
        let Comparison { path, old, new, measure, reasons, .. } = &*comparison;
        let counts = |measure: crate::diff::Measure| Counts {
            insertions: measure.insertions,
            deletions: measure.deletions,
            old_lines: measure.old_lines,
        };
        Ok(Question {
            project: self.policy().project.display().to_string(),
            path: path.clone(),
            kind: comparison.kind(),
            from: job.takes_along.as_ref().map(|(source, _)| source.clone()),
            tier: if reasons.is_empty() { Tier::Land } else { Tier::Hold },
            reasons: reasons.clone(),
            counts: measure.map(counts),
            bytes: new.exists().then_some(new.size),
            sha256,
            diff: diff(comparison, old, new),
            pid: actor.pid,
            uid: actor.uid,
            exe: actor.exe().map(str::to_owned),
        })
    }
}

fn contents(comparison: &Comparison) -> Result<Contents> {
    let hash = |side: &Side| side.digest.map_or_else(|| side.hash(), |digest| Ok(Some(digest)));
    let both = || -> std::io::Result<Contents> { Ok((hash(&comparison.present)?, hash(&comparison.new)?)) };
    both().doing(|| format!("hash {}", comparison.path))
}

/// Empty if one side is too large to be compared.
fn diff(comparison: &Comparison, old: &Side, new: &Side) -> Vec<u8> {
    let is_known = |side: &Side| !side.exists() || side.bytes.is_some();
    if !is_known(old) || !is_known(new) {
        return Vec::new();
    }
    unified(&FileDiff { path: &comparison.path, old: file_side(old), new: file_side(new) }, Unreadable::Named)
}

fn file_side(side: &Side) -> Option<FileSide<'_>> {
    let kind = match side.kind? {
        FileKind::Symlink => libc::S_IFLNK,
        _ => libc::S_IFREG,
    };
    Some(FileSide { content: FileContent::Bytes(side.text()), mode: kind | side.mode })
}
