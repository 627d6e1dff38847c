//! Comparing: what a change is judged against, and every reason to hold it. Nothing of lower or upper changes here, but
//! what is known of a path may: a window ends, or what someone else has left there becomes the content to begin with.

use super::claim::Job;
use super::side::Side;
use crate::diff::{self, Measure};
use crate::model::{ChangeKind, Digest, Reason, RelPath};
use crate::overlay::error::Context;
use crate::overlay::{Overlay, Result};
use crate::policy::risk::{self, RiskSide, RiskSubject};
use crate::policy::rules::{Action, HoldSource, risky_git_config_change};
use crate::policy::tier::{self, Facts, LandNote, Thresholds, Verdict};
use crate::store::{AnchorState, Below, Held, Kept, UpperRow, Writer};
use crate::sys::file::{FileKind, Meta};

/// What a change is judged against.
pub(in crate::overlay) enum Old {
    Known(Box<Side>),
    /// It was changed below while it was being written, and the content from before is gone.
    Lost,
}

impl Old {
    pub(super) fn known(side: Side) -> Self {
        Self::Known(Box::new(side))
    }
}

/// Everything a verdict is made of.
pub(in crate::overlay) struct Comparison {
    pub path: RelPath,
    pub old: Side,
    pub new: Side,
    /// What lower has at the path at this moment.
    pub present: Side,
    pub measure: Option<Measure>,
    pub reasons: Vec<Reason>,
    /// A further name that lower lacks is reviewed, whatever the content.
    pub names_wait: bool,
    pub note: LandNote,
    /// What a permission program said of it.
    pub detail: Option<String>,
}

impl Overlay {
    /// The content a change is judged against (SPEC §4.1, §4.3, §4.6).
    pub(in crate::overlay) fn old_side(&self, job: &Job, present: &Side) -> Result<Old> {
        let row = &job.row;
        let mode = present.mode;
        if present.kind == Some(FileKind::Directory) {
            // The directory is hidden and something else took its place: it has no content to judge against.
            return self.present_side(row.path()).map(Old::known);
        }
        if row.held.is_some() {
            return match (row.base.below, row.base.content) {
                // It may have been renamed away from what it was based on, to a path that had something else.
                (Below::Nothing, None) => self.anchor_side(row.path()),
                (_, content) => Ok(match self.kept_side(content, mode)? {
                    Old::Lost if is_content_of(present, content) => Old::known(present.clone()),
                    old => old,
                }),
            };
        }
        let as_it_was = match row.base.below {
            _ if job.moved_on => false,
            Below::Entry { stamp, .. } => !self.has_other_content(row.path(), &stamp, present),
            Below::Nothing => present.meta.is_none(),
        };
        if !as_it_was {
            return Ok(Old::Lost);
        }
        if let Some(first) = self.window_first(row.path(), present)? {
            return self.kept_side(first, mode);
        }
        if let Some(first) = self.handle_first(job) {
            return self.kept_side(first, mode);
        }
        match row.base.below {
            Below::Entry { .. } => Ok(Old::known(present.clone())),
            Below::Nothing => self.anchor_side(row.path()),
        }
    }

    /// Content that can no longer be read counts as lost: the new content is held, its writer not stopped (SPEC §5).
    pub(super) fn kept_side(&self, kept: Option<Kept>, mode: u32) -> Result<Old> {
        let Some(kept) = kept else { return Ok(Old::known(Side::default())) };
        self.read_kept(kept, mode).or_else(|err| {
            log::error!("{err}");
            Ok(Old::Lost)
        })
    }

    fn read_kept(&self, kept: Kept, mode: u32) -> Result<Old> {
        if let Some(bytes) = self.store.unchecked_content(kept.digest)? {
            return Ok(Old::known(Side::of_kept(bytes, kept, mode)));
        }
        let Some(file) = self.store.unchecked_content_file(kept.digest)? else { return Ok(Old::Lost) };
        Ok(Old::known(Side::of_large_kept(file, kept, mode).doing(|| "read kept content".to_owned())?))
    }

    /// What a free path had earlier in this session: creating it again is a modification of that (SPEC §4.3).
    fn anchor_side(&self, path: &RelPath) -> Result<Old> {
        match self.anchor_of(path)? {
            Some(AnchorState::Content(kept)) => self.kept_side(Some(kept), 0o644),
            Some(AnchorState::Moved { to, stamp }) => {
                let side = self.present_side(&to)?;
                // The inode tells, not its times, which any program can set: a touch must not make the old name new.
                let same = |meta: Meta| self.births.may_be_one(stamp.key(), meta.key());
                Ok(if side.meta.is_some_and(same) { Old::known(side) } else { Old::Lost })
            }
            Some(AnchorState::Nothing) | None => Ok(Old::known(Side::default())),
        }
    }

    /// A write through one name of a lower inode shows under all its names, so the rules for each of them apply. If the
    /// other names cannot be looked up, one is taken to be gated.
    fn gated_by_other_name(&self, job: &Job, comparison: &Comparison, by: &Writer) -> Option<HoldSource> {
        let meta = comparison.present.meta.filter(|meta| meta.links > 1 && job.row.base.is_shared())?;
        let source = std::cell::Cell::new(None);
        let is_gated = |path: &RelPath| {
            source.set(match self.action_on_content(path, FileKind::Regular, by) {
                Action::GitConfig => comparison.is_risky_git_config(path).then_some(HoldSource::Sensitive),
                action => action.gate(),
            });
            source.get().is_some()
        };
        match self.judged_name_below(meta.key(), is_gated) {
            Ok(_) => source.get(),
            Err(err) => {
                log::warn!("look for other names of {}: {err}", comparison.path);
                Some(HoldSource::Rule)
            }
        }
    }

    /// Adds the reasons that each further name brings; rules may be younger than the names. The base of a change is what
    /// its first name had, and the change may have left that name. So what used to be under a name that the landing makes
    /// counts, too (SPEC §4.3).
    fn judge_further_names(&self, job: &Job, comparison: &mut Comparison, kind: FileKind, by: &Writer) -> Result<()> {
        let thresholds = self.policy().settings.thresholds;
        for name in job.row.further_names() {
            let gate = self.action_on_content(name, kind, by).gate();
            let mut reasons: Vec<Reason> = gate.into_iter().map(HoldSource::reason).collect();
            let is_new = !self.is_below(name)?;
            if is_new {
                match self.anchor_side(name)? {
                    Old::Known(old) if old.exists() => {
                        reasons.extend(against_further(&old, &comparison.new, &thresholds))
                    }
                    Old::Known(_) => {}
                    Old::Lost => reasons.push(Reason::Stale),
                }
            }
            comparison.names_wait |= is_new && !reasons.is_empty();
            reasons.into_iter().for_each(|reason| comparison.add(reason));
        }
        Ok(())
    }

    /// True if a file that passes by its own name also has a judged one. If that is unknown, it counts as judged.
    fn is_judged_by_other_name(&self, job: &Job, comparison: &Comparison) -> bool {
        let Some(meta) = comparison.present.meta.filter(|_| job.row.base.is_shared()) else { return false };
        self.has_judged_name(&meta).unwrap_or_else(|err| {
            log::warn!("look for other names of {}: {err}", comparison.path);
            true
        })
    }

    /// True if the path used to be a directory, which had no content to judge against. If that is unknown, it counts as
    /// one.
    fn stands_for_dir(&self, comparison: &Comparison) -> bool {
        let is_new = comparison.new.exists() && !comparison.old.exists();
        is_new
            && self.had_dir(&comparison.path).unwrap_or_else(|err| {
                log::warn!("look for what was at {}: {err}", comparison.path);
                true
            })
    }

    /// A change keeps the reasons it was held for, except size, which is judged anew (SPEC §4.7), and a burst if it takes
    /// nothing any more.
    fn keep_reasons(&self, held: &Held, row: &UpperRow, comparison: &mut Comparison) -> Result<()> {
        let is_back = comparison.is_back();
        let is_over = |reason: Reason| reason == Reason::Size || reason == Reason::Burst && is_back;
        comparison.reasons.extend(held.reasons.iter().copied().filter(|reason| !is_over(*reason)));
        if row.base.below == Below::Nothing {
            // This reason came from the directory it was in, and that is looked at anew.
            comparison.reasons.retain(|reason| *reason != Reason::Parent);
        }
        // However small the change is by now, landing it would take away what someone else has put there since (SPEC §9).
        if !self.is_as_based(row, &mut comparison.present)? {
            comparison.add(Reason::External);
        }
        Ok(())
    }

    /// Gathers every reason to hold that contents and rules give.
    pub(in crate::overlay) fn compare(
        &self,
        job: &Job,
        by: &Writer,
        old: Side,
        new: Side,
        present: Side,
    ) -> Result<Comparison> {
        let policy = self.policy();
        let path = job.row.path().clone();
        let facts = facts(&old, &new);
        let mut comparison = Comparison {
            path,
            measure: facts.measure,
            reasons: job.because.clone(),
            names_wait: false,
            note: LandNote::Small,
            detail: None,
            old,
            new,
            present,
        };
        if let Some(held) = &job.row.held {
            self.keep_reasons(held, &job.row, &mut comparison)?;
        }
        if self.is_in_held_dir(&comparison.path) {
            comparison.add(Reason::Parent);
        }
        let fresh = !comparison.new.exists() && self.loses_nothing(&comparison.path, Some(&comparison.present));
        let kind = comparison.new.kind.or(comparison.old.kind).unwrap_or(FileKind::Regular);
        self.judge_further_names(job, &mut comparison, kind, by)?;
        let action = self.action_on_content(&comparison.path, kind, by);
        if action == Action::Pass && !self.is_judged_by_other_name(job, &comparison) {
            // It was renamed, while open, to where nothing is judged: it has nothing to wait for.
            return Ok(comparison);
        }
        let gate = action.gate().or_else(|| self.gated_by_other_name(job, &comparison, by));
        if let Some(source) = gate {
            comparison.add(source.reason());
        }
        if action == Action::GitConfig {
            return Ok(comparison.judged_as_git_config());
        }
        comparison.add_type_reasons();
        if self.stands_for_dir(&comparison) {
            comparison.add(Reason::Type);
        }
        comparison.add_risk(&policy.settings.risk);
        if !fresh {
            match tier::judge(&facts, &policy.settings.thresholds) {
                Verdict::Hold(reason) => comparison.add(reason),
                Verdict::Land(note) => comparison.note = note,
                // Back to what it is judged against. Lower has something else by now, so landing it is a small step back.
                Verdict::Unchanged => {}
            }
        }
        Ok(comparison)
    }
}

impl Comparison {
    pub(super) fn add(&mut self, reason: Reason) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// Closes lower's file: a rewrite in place needs it to itself.
    pub(super) fn close_below(&mut self) {
        (self.old.file, self.present.file) = (None, None);
    }

    /// True if the path has what it is judged against, to the byte: the project gets back what it had.
    pub(in crate::overlay) fn is_back(&self) -> bool {
        let (old, new) = (&self.old, &self.new);
        old.bytes.is_some() && (old.kind, &old.bytes) == (new.kind, &new.bytes)
    }

    /// True if a rule has the path reviewed, whatever its content.
    pub(super) fn is_gated(&self) -> bool {
        self.reasons.iter().any(|reason| matches!(reason, Reason::Sensitive | Reason::Rule))
    }

    pub(super) fn hold_for_hook(&mut self, why: String) {
        self.add(Reason::Hook);
        self.detail = Some(why);
    }

    /// Git writes its own config at will; only what could run a program or include a file is reviewed (SPEC §6).
    fn judged_as_git_config(mut self) -> Self {
        if self.is_risky_git_config(&self.path) {
            self.add(Reason::Sensitive);
        }
        self
    }

    /// True if git could run a program that the new content names, which shows at `config`. Content too large to be read
    /// here counts as such: git reads it all the same.
    fn is_risky_git_config(&self, config: &RelPath) -> bool {
        let is_unread = self.new.exists() && self.new.bytes.is_none();
        is_unread || risky_git_config_change(config, self.old.text(), self.new.text()).is_some()
    }

    /// A different kind of file in the place of another, and symlinks that lead out, are always reviewed (SPEC §4.5).
    fn add_type_reasons(&mut self) {
        if self.old.exists() && self.new.exists() && self.old.kind != self.new.kind {
            self.add(Reason::Type);
        }
        if self.new.kind == Some(FileKind::Symlink)
            && leaves_project(&self.path, self.new.bytes.as_deref().unwrap_or_default())
        {
            self.add(Reason::Symlink);
        }
    }

    fn add_risk(&mut self, switches: &risk::RiskSwitches) {
        if is_risky(&self.old, &self.new, switches) {
            self.add(Reason::Risk);
        }
    }

    /// What the change does to lower. Where nothing was before, lower may already have what landed a moment ago.
    pub fn kind(&self) -> ChangeKind {
        let landed = || self.present.kind.filter(|kind| *kind != FileKind::Directory);
        match (self.old.kind.or_else(landed), self.new.kind) {
            (None, _) => ChangeKind::Create,
            (Some(_), None) => ChangeKind::Delete,
            (Some(old), Some(new)) if old != new => ChangeKind::Type,
            (Some(_), Some(_)) => ChangeKind::Modify,
        }
    }

    /// The number of hunks against `old`, one of the sides it is compared with, by the `measure` of that comparison.
    pub(super) fn hunk_count(&self, old: &Side, measure: Option<Measure>) -> u64 {
        let found_otherwise = || diff::hunks(old.text(), self.new.text()).len() as u64;
        measure.map_or(0, |measure| measure.hunks.unwrap_or_else(found_otherwise))
    }

    /// The hash of the new content if that is small. Hashing a large one would make its writer wait (SPEC §10).
    pub(super) fn new_digest_if_small(&mut self) -> Result<Option<Digest>> {
        match self.new.bytes.is_some() {
            true => self.new.digest().doing(|| format!("hash {}", self.path)),
            false => Ok(None),
        }
    }
}

/// True if a side is the content that a held change is based on. What could not be kept, lower still has.
fn is_content_of(present: &Side, content: Option<Kept>) -> bool {
    let now = present.hash().ok().flatten().map(|digest| present.kept_as(digest));
    content.is_some() && now == content
}

/// True if a file's content shows signs of risk. What is too large to be read here shows none.
pub(in crate::overlay) fn is_risky(old: &Side, new: &Side, switches: &risk::RiskSwitches) -> bool {
    let (Some(content), Some(FileKind::Regular)) = (&new.bytes, new.kind) else { return false };
    let old = old.bytes.as_ref().filter(|_| old.exists()).map(|content| RiskSide { content, mode: old.mode });
    let subject = RiskSubject { old, new: RiskSide { content, mode: new.mode } };
    !risk::signals(&subject, switches).is_empty()
}

/// Reasons from kind and size, against what used to be under a further name.
fn against_further(old: &Side, new: &Side, thresholds: &Thresholds) -> Vec<Reason> {
    let by_kind = (old.kind != new.kind).then_some(Reason::Type);
    let by_size = match tier::judge(&facts(old, new), thresholds) {
        Verdict::Hold(reason) => Some(reason),
        Verdict::Land(_) | Verdict::Unchanged => None,
    };
    by_kind.into_iter().chain(by_size).collect()
}

pub(in crate::overlay) fn facts(old: &Side, new: &Side) -> Facts {
    let (old_side, new_side) = (old.diff_side(), new.diff_side());
    let comparable = old_side == diff::Side::Text && matches!(new_side, diff::Side::Text | diff::Side::Absent)
        || old_side == diff::Side::Absent && new_side == diff::Side::Text;
    Facts {
        identical: old.exists() == new.exists() && old.bytes.is_some() && old.bytes == new.bytes,
        old: old_side,
        old_bytes: old.size,
        new: new_side,
        measure: comparable.then(|| diff::measure(old.text(), new.text())),
    }
}

/// True if a symlink at `path` points outside the project, judged by its text alone. A name before `..` may itself be a
/// symlink, and the climb begins wherever that leads, so such a target counts as leading out.
pub(in crate::overlay) fn leaves_project(path: &RelPath, target: &[u8]) -> bool {
    let depth = path.components().count().saturating_sub(1);
    let names: Vec<&[u8]> = target.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let climbs = names.iter().take_while(|name| **name == b"..").count();
    target.first() == Some(&b'/') || climbs > depth || names[climbs..].contains(&b"..".as_slice())
}
