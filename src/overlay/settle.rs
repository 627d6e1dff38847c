//! Settling: the moment at which what happened to a path is judged, and lands or is held.
//!
//! The verdict is a function of (base, now) of a path; how it was written does not matter. Facts are gathered by
//! [`Overlay::compare`], the ruling is [`policy`](crate::policy)'s, the act is [`Overlay::land`] or [`Overlay::hold`].
//! No lock is held while contents are read and compared. What was judged is what lands: when a write came in between,
//! the entry stays as it is until that writer is done.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::copy_up::same_content_stamp;
use super::error::Context;
use super::lookup::Origin;
use super::open::{Backing, OpenFile};
use super::{Error, Known, Overlay, Result, Seen, State, Window};
use crate::diff::{self, Measure, TEXT_BYTES_MAX};
use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, ID_DIGITS, Reason, RelPath, Stamp};
use crate::policy::risk::{self, RiskSide, RiskSubject};
use crate::policy::rules::{Action, risky_git_config_change};
use crate::policy::settings::Window as WindowSetting;
use crate::policy::tier::{self, Act, Facts, LandNote, Verdict};
use crate::protocol::EventName;
use crate::store::{
    self, Anchor, AnchorState, Applied, Backup, Base, Below, Durability, Epilogue, Fate, Held, Landing, NewContent,
    StagedContent, StepOutcome, UpperId, UpperRow, What, Writer,
};
use crate::sys::file::{self, FileKind, Meta};

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Lower has the same bytes already.
    Unchanged,
    Landed,
    Held(ChangeId),
    /// Somebody else went on writing: the last one to close decides.
    Postponed,
}

/// One side of a comparison: what is or was at a path.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// None: nothing is there.
    pub kind: Option<FileKind>,
    pub size: u64,
    pub mode: u32,
    /// A symlink's target, or a file's bytes where they are few enough to compare.
    pub bytes: Option<Vec<u8>>,
    pub file: Option<Arc<File>>,
    pub meta: Option<Meta>,
    digest: Option<Digest>,
}

/// What a change is judged against.
enum Old {
    Known(Box<Side>),
    /// Somebody changed it below while it was being written, and what it was is gone.
    Lost,
}

impl Old {
    fn known(side: Side) -> Self {
        Self::Known(Box::new(side))
    }
}

/// Everything a verdict is made of.
struct Comparison {
    path: RelPath,
    old: Side,
    new: Side,
    /// What lower has at the path at this moment.
    present: Side,
    measure: Option<Measure>,
    reasons: Vec<Reason>,
    note: LandNote,
}

/// An entry taken for judging. Nobody else touches it until the job is given back.
struct Job {
    row: UpperRow,
    open: Option<Arc<OpenFile>>,
    version: u64,
    synced: bool,
    moved_on: bool,
    takes_along: Option<(RelPath, Stamp)>,
    /// Reasons that the moment brings, not the content.
    because: Vec<Reason>,
}

impl Side {
    fn exists(&self) -> bool {
        self.kind.is_some()
    }

    pub fn of_file(file: File) -> std::io::Result<Self> {
        let meta = Meta::of(file.as_fd())?;
        let bytes = (meta.size <= TEXT_BYTES_MAX).then(|| file::read_all(&file)).transpose()?;
        let mode = meta.mode;
        Ok(Self {
            kind: Some(FileKind::Regular),
            size: meta.size,
            mode,
            bytes,
            file: Some(Arc::new(file)),
            meta: Some(meta),
            digest: None,
        })
    }

    pub fn of_symlink(target: &std::ffi::OsStr, meta: Meta) -> Self {
        let bytes = target.as_bytes().to_vec();
        Self {
            kind: Some(FileKind::Symlink),
            size: bytes.len() as u64,
            mode: 0o777,
            bytes: Some(bytes),
            meta: Some(meta),
            ..Self::default()
        }
    }

    fn of_content(bytes: Vec<u8>, mode: u32) -> Self {
        Self { kind: Some(FileKind::Regular), size: bytes.len() as u64, mode, bytes: Some(bytes), ..Self::default() }
    }

    fn text(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    pub fn digest(&mut self) -> std::io::Result<Option<Digest>> {
        if self.digest.is_none() {
            self.digest = match (&self.bytes, &self.file) {
                (Some(bytes), _) => Some(Digest::of(bytes)),
                (None, Some(file)) => Some(file::digest(file)?),
                (None, None) => None,
            };
        }
        Ok(self.digest)
    }

    fn diff_side(&self) -> diff::Side {
        match (&self.bytes, self.exists()) {
            (_, false) => diff::Side::Absent,
            (Some(bytes), true) => diff::classify(Some(bytes)),
            (None, true) => diff::Side::Large,
        }
    }

    fn same_as(&self, other: &Self) -> std::io::Result<bool> {
        if (self.kind, self.size) != (other.kind, other.size) {
            return Ok(false);
        }
        match (&self.bytes, &other.bytes, &self.file, &other.file) {
            (Some(ours), Some(theirs), ..) => Ok(ours == theirs),
            (_, _, Some(ours), Some(theirs)) => file::same_content(ours, theirs),
            _ => Ok(!self.exists()),
        }
    }

    /// Safe content of this side, for a backup or as the base of a held change.
    pub fn stage(&self, store: &store::Store) -> store::Result<Option<StagedContent>> {
        match (&self.bytes, &self.file) {
            (Some(bytes), _) if bytes.len() <= 64 * 1024 || self.file.is_none() => {
                Ok(Some(StagedContent::of(bytes.clone())))
            }
            (_, Some(file)) => store.stage_content(file).map(Some),
            (Some(_), None) | (None, None) => Ok(None),
        }
    }
}

impl Overlay {
    /// Judges an upper entry and acts on the verdict.
    pub(super) fn settle(&self, id: UpperId, actor: &Writer) -> Result<Settled> {
        self.settle_because(id, actor, Vec::new())
    }

    /// What was written and not closed when the daemon died is held, however small (SPEC §7).
    pub(super) fn settle_interrupted(&self, id: UpperId) -> Result<()> {
        self.settle_because(id, &Writer::default(), vec![Reason::Interrupted]).map(|_| ())
    }

    pub(super) fn settle_because(&self, id: UpperId, actor: &Writer, because: Vec<Reason>) -> Result<Settled> {
        let settled = loop {
            let Some(mut job) = self.take_job(id) else { return Ok(Settled::Unchanged) };
            job.because = because.clone();
            let mut taken = Taken { overlay: self, id, judged: false };
            let settled = match self.judge(&job, actor) {
                // What was read had changed or gone under our hands: who did that has it judged.
                Err(_) if self.is_disturbed(&job) => Ok(Settled::Postponed),
                other => other,
            };
            taken.judged = !matches!(settled, Err(_) | Ok(Settled::Postponed));
            drop(taken);
            // Renamed meanwhile, perhaps with a directory above: its writer has gone, and nobody else would judge it.
            if !matches!(settled, Ok(Settled::Postponed)) || !self.is_renamed(&job) {
                break settled;
            }
        };
        match &settled {
            Ok(Settled::Landed | Settled::Unchanged) => self.evict(id)?,
            Ok(Settled::Held(_) | Settled::Postponed) | Err(_) => {}
        }
        settled
    }

    fn take_job(&self, id: UpperId) -> Option<Job> {
        let mut state = self.state.lock();
        while state.uppers.get(id)?.busy {
            self.changed.wait(&mut state);
        }
        let path = state.uppers.get(id)?.row.names[0].clone();
        let open = state.nodes.at(&path).and_then(|node| state.nodes.get(node).ok()?.open.clone());
        let open = open.filter(|open| open.upper() == Some(id));
        let upper = state.uppers.get_mut(id)?;
        upper.busy = true;
        upper.dirty = false;
        if let Some(open) = &open {
            // The next write must note itself again.
            open.dirty.store(false, Ordering::SeqCst);
        }
        Some(Job {
            row: upper.row.clone(),
            version: open.as_ref().map_or(0, |open| open.version()),
            open,
            synced: upper.synced,
            moved_on: upper.moved_on,
            takes_along: upper.takes_along.clone(),
            because: Vec::new(),
        })
    }

    /// An entry that nobody is judging, kept from being judged until the claim is dropped; `ESTALE` when it is gone.
    pub(super) fn claim(&self, id: UpperId) -> Result<(UpperRow, Taken<'_>)> {
        let mut state = self.state.lock();
        while state.uppers.get(id).is_some_and(|upper| upper.busy) {
            self.changed.wait(&mut state);
        }
        let upper = state.uppers.get_mut(id).ok_or(Error::Errno(libc::ESTALE))?;
        upper.busy = true;
        Ok((upper.row.clone(), Taken { overlay: self, id, judged: true }))
    }

    fn is_disturbed(&self, job: &Job) -> bool {
        !self.is_untouched(&self.state.lock(), job)
    }

    fn is_renamed(&self, job: &Job) -> bool {
        self.state.lock().uppers.get(job.row.id).is_some_and(|upper| upper.row.names != job.row.names)
    }

    fn judge(&self, job: &Job, actor: &Writer) -> Result<Settled> {
        let path = &job.row.names[0];
        let mut new = self.new_side(job)?;
        let present = self.present_side(path)?;
        if new.same_as(&present).doing(|| format!("compare {path}"))? {
            return self.end_unchanged(job, &new, &present);
        }
        let old = match self.old_side(job, &present)? {
            Old::Known(side) => (*side, false),
            Old::Lost => (self.present_side(path)?, true),
        };
        let mut comparison = self.compare(job, old.0, std::mem::take(&mut new), present);
        if old.1 {
            comparison.add(Reason::Stale);
        }
        if comparison.reasons.is_empty() {
            match self.land(job, &mut comparison, actor) {
                Err(Error::Store(store::Error::Conflict { .. })) => comparison.add(Reason::Stale),
                other => return other,
            }
        }
        self.hold(job, &mut comparison, actor)
    }

    /// What the view has at the entry's path.
    fn new_side(&self, job: &Job) -> Result<Side> {
        let id = job.row.id;
        let doing = || format!("read {}", job.row.names[0]);
        match job.row.what {
            What::Whiteout => Ok(Side::default()),
            What::File => Side::of_file(self.store.open_upper(id)?).doing(doing),
            What::Symlink => {
                let place = self.store.upper_place(id)?;
                Ok(Side::of_symlink(&place.read_symlink().doing(doing)?, self.store.upper_meta(id)?))
            }
        }
    }

    /// What lower has at a path.
    pub(super) fn present_side(&self, path: &RelPath) -> Result<Side> {
        let doing = || format!("read {path} below");
        let Some(meta) = self.lower.stat(path).doing(doing)? else { return Ok(Side::default()) };
        match meta.kind {
            FileKind::Regular => Side::of_file(super::open_lower(&self.lower, path).doing(doing)?).doing(doing),
            FileKind::Symlink => {
                let target = self.lower.place(path)?.read_symlink().doing(doing)?;
                Ok(Side::of_symlink(&target, meta))
            }
            kind => Ok(Side { kind: Some(kind), mode: meta.mode, meta: Some(meta), ..Side::default() }),
        }
    }

    /// The content a change is judged against (SPEC §4.1, §4.3, §4.6).
    fn old_side(&self, job: &Job, present: &Side) -> Result<Old> {
        let row = &job.row;
        let mode = present.mode;
        if row.held.is_some() {
            return self.kept_side(row.base.digest, mode);
        }
        let stamp = present.meta.map(|meta| meta.stamp());
        let as_it_was = match (row.base.below, stamp) {
            _ if job.moved_on => false,
            (Below::Entry { stamp: base, .. }, Some(now)) => same_content_stamp(&base, &now),
            (Below::Nothing, None) => true,
            (Below::Entry { .. }, None) | (Below::Nothing, Some(_)) => false,
        };
        if !as_it_was {
            return Ok(Old::Lost);
        }
        if let Some(first) = self.window_first(&row.names[0], stamp) {
            return self.kept_side(first, mode);
        }
        match row.base.below {
            Below::Entry { .. } => self.present_side(&row.names[0]).map(Old::known),
            Below::Nothing => self.anchor_side(&row.names[0]),
        }
    }

    fn kept_side(&self, digest: Option<Digest>, mode: u32) -> Result<Old> {
        let Some(digest) = digest else { return Ok(Old::known(Side::default())) };
        Ok(match self.store.content(digest)? {
            Some(bytes) => Old::known(Side::of_content(bytes, mode)),
            None => Old::Lost,
        })
    }

    /// Content before the first landing of a window that is still open; none when none is.
    fn window_first(&self, path: &RelPath, present: Option<Stamp>) -> Option<Option<Digest>> {
        let length = match self.policy().settings.window {
            WindowSetting::Seconds(length) => length,
            WindowSetting::Session => {
                return match self.state.lock().anchors.get(path)?.anchor {
                    AnchorState::Content { digest } => Some(Some(digest)),
                    AnchorState::Nothing => Some(None),
                    AnchorState::Moved { .. } => None,
                };
            }
            WindowSetting::Each => return None,
        };
        let mut state = self.state.lock();
        let window = state.windows.get(path)?;
        let untouched = match (window.landed, present) {
            (Some(landed), Some(present)) => same_content_stamp(&landed, &present),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if untouched && window.last.elapsed() <= length {
            return Some(window.first);
        }
        state.windows.remove(path);
        None
    }

    /// What used to be at a free path in this session: making it anew is a modification of that (SPEC §4.3).
    fn anchor_side(&self, path: &RelPath) -> Result<Old> {
        match self.anchor_of(path)? {
            Some(AnchorState::Content { digest }) => self.kept_side(Some(digest), 0o644),
            Some(AnchorState::Moved { to, stamp }) => {
                let side = self.present_side(&to)?;
                // The inode tells, and not its times, which anybody sets: a touch must not make the old name new.
                let same = |meta: Meta| (meta.device, meta.inode) == (stamp.device, stamp.inode);
                Ok(if side.meta.is_some_and(same) { Old::known(side) } else { Old::Lost })
            }
            Some(AnchorState::Nothing) | None => Ok(Old::known(Side::default())),
        }
    }

    /// What used to be at a path in this session, also by way of a directory that was renamed.
    pub(super) fn anchor_of(&self, path: &RelPath) -> Result<Option<AnchorState>> {
        let to = {
            let state = self.state.lock();
            if let Some(known) = state.anchors.get(path) {
                return Ok(Some(known.anchor.clone()));
            }
            let Some(to) = state.moved_with_dir(path) else { return Ok(None) };
            match state.anchors.get(&to) {
                Some(Known { anchor: AnchorState::Nothing, .. }) | None => to,
                Some(known) => return Ok(Some(known.anchor.clone())),
            }
        };
        let meta = self.lower.stat(&to).doing(|| format!("stat {to}"))?;
        Ok(meta.filter(|meta| !meta.is_dir()).map(|meta| AnchorState::Moved { to, stamp: meta.stamp() }))
    }

    /// Gathers every reason to hold. Touches nothing.
    fn compare(&self, job: &Job, old: Side, new: Side, present: Side) -> Comparison {
        let policy = self.policy();
        let path = job.row.names[0].clone();
        let facts = facts(&old, &new);
        let mut comparison = Comparison {
            path,
            measure: facts.measure,
            reasons: job.because.clone(),
            note: LandNote::Small,
            old,
            new,
            present,
        };
        if let Some(held) = &job.row.held {
            // A change keeps why it was held, but for its size, which is judged anew (SPEC §4.7).
            comparison.reasons.extend(held.reasons.iter().copied().filter(|reason| *reason != Reason::Size));
        }
        let fresh = comparison.is_fresh_deletion(self);
        let kind = comparison.new.kind.or(comparison.old.kind).unwrap_or(FileKind::Regular);
        match self.action(&comparison.path, kind) {
            Action::Hold(source) => comparison.add(source.reason()),
            Action::GitConfig => return comparison.judged_as_git_config(),
            Action::Auto | Action::Pass | Action::Deny | Action::Freeze => {}
        }
        comparison.add_type_reasons();
        comparison.add_risk(&policy.settings.risk);
        if !fresh {
            match tier::judge(&facts, &policy.settings.thresholds) {
                Verdict::Hold(reason) => comparison.add(reason),
                Verdict::Land(note) => comparison.note = note,
                // Back to what it was judged against; lower has something else by now, which is a small step back.
                Verdict::Unchanged => {}
            }
        }
        comparison
    }

    /// Lower has these bytes already: nothing to write, nothing to keep, but the times a program saw stay (SPEC §4.10).
    fn end_unchanged(&self, job: &Job, new: &Side, present: &Side) -> Result<Settled> {
        let path = &job.row.names[0];
        if let (Some(FileKind::Regular), Some(ours), Some(theirs)) = (new.kind, new.meta, present.meta) {
            let place = self.lower.place(path)?;
            let doing = || format!("change attributes of {path}");
            if (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
                place.set_owner(Some(ours.uid), Some(ours.gid)).doing(doing)?;
            }
            if ours.mode != theirs.mode {
                place.set_mode(ours.mode).doing(doing)?;
            }
            place.set_times(file::to_timespec(ours.atime), file::to_timespec(ours.mtime)).doing(doing)?;
        }
        let mut epilogue = Epilogue { drop: vec![job.row.id], ..Epilogue::default() };
        if let Some(held) = &job.row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Ended));
        }
        let along = self.remove_along(job)?;
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let mut state = self.state.lock();
        if !self.is_untouched(&state, job) {
            return Ok(Settled::Postponed);
        }
        self.store.record_epilogue(&epilogue)?;
        state.landed(job, meta.as_ref());
        drop(state);
        along.map_or(Ok(Settled::Unchanged), |_| Ok(Settled::Unchanged))
    }

    /// The source of a rename goes with what it was renamed over.
    fn remove_along(&self, job: &Job) -> Result<Option<()>> {
        let Some((source, stamp)) = &job.takes_along else { return Ok(None) };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.remove(&self.lower, source, *stamp)?;
        let mut applied = landing.promise(Epilogue::default())?.apply()?;
        applied.epilogue().anchors.extend(self.state.lock().left(source));
        applied.finish()?;
        Ok(Some(()))
    }

    /// Nobody wrote to, renamed or removed the entry since it was taken.
    fn is_untouched(&self, state: &State, job: &Job) -> bool {
        let same_names = state.uppers.get(job.row.id).is_some_and(|upper| upper.row.names == job.row.names);
        same_names && state.is_still(job.row.id, &job.row.names[0], job.open.as_ref(), job.version)
    }

    fn land(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<Settled> {
        let durability = if job.synced { Durability::Synced } else { Durability::Cached };
        let mut landing = Landing::new(&self.store, durability);
        let replaced = match self.stage_landing(job, comparison, &mut landing, BackupKind::Landed, actor) {
            Ok(replaced) => replaced,
            Err(err) if comparison.present.exists() && is_unreadable(&err) => {
                comparison.add(Reason::Backup);
                return self.hold(job, comparison, actor);
            }
            Err(err) => return Err(err),
        };
        let judged_against = self.keep_judged_against(comparison, replaced)?;
        let epilogue = self.landed_epilogue(job, comparison, replaced, actor)?;
        let anchors = epilogue.anchors.clone();
        let promised = landing.promise(epilogue)?;
        let applied = {
            let mut state = self.state.lock();
            if !self.is_untouched(&state, job) {
                drop(state);
                drop(promised);
                return Ok(Settled::Postponed);
            }
            let applied = promised.apply()?;
            state.know(anchors);
            self.note_landed(&mut state, job, comparison, judged_against, &applied);
            applied
        };
        applied.finish()?;
        self.link_aliases(&job.row)?;
        self.counters.landed.fetch_add(1, Ordering::Relaxed);
        self.tell_landed(&comparison.path);
        Ok(Settled::Landed)
    }

    /// What further changes in the window are judged against, too. It is not always what lower had: that may be
    /// nothing, where the old content was renamed away or deleted before (SPEC §4.3, §4.6).
    fn keep_judged_against(&self, comparison: &Comparison, replaced: Option<Digest>) -> Result<Option<Digest>> {
        if comparison.present.exists() || !comparison.old.exists() {
            return Ok(replaced);
        }
        let Some(content) = comparison.old.stage(&self.store)? else { return Ok(None) };
        self.store.keep_content(&content)?;
        self.state.lock().pin_anchor(&comparison.path, content.digest);
        Ok(Some(content.digest))
    }

    /// Prepares lower's new state for a path, its old content kept. Gives the hash of what is replaced.
    fn stage_landing(
        &self,
        job: &Job,
        comparison: &Comparison,
        landing: &mut Landing<'_>,
        kind: BackupKind,
        actor: &Writer,
    ) -> Result<Option<Digest>> {
        let Comparison { path, new, present, .. } = comparison;
        let expect = present.meta.map(|meta| meta.stamp());
        let mut replaced = None;
        if let Some(content) = present.stage(&self.store)? {
            replaced = Some(content.digest);
            let kind = if new.exists() { kind } else { BackupKind::Deleted };
            let backup = backup_of(path, present, &content, kind, actor);
            landing.keep(content, backup);
        }
        let stays = present.meta.is_some_and(|meta| must_stay(&job.row.base, &meta));
        match (new.kind, &new.file, expect) {
            (Some(FileKind::Regular), Some(file), Some(expect)) if stays => {
                let old = present.file.as_ref().ok_or(Error::Errno(libc::EIO))?;
                landing.rewrite(&self.lower, path, expect, file, old)?;
            }
            (Some(FileKind::Regular), Some(file), _) => {
                let meta = Meta::of(file.as_fd()).doing(|| format!("stat {path}"))?;
                let source = NewContent::File { file, like: file, meta };
                landing.place(&self.lower, path, expect, &source)?;
            }
            (Some(_), _, _) => {
                let target = new.bytes.as_deref().unwrap_or_default();
                let (uid, gid) = new.meta.map_or((0, 0), |meta| (meta.uid, meta.gid));
                let target = std::ffi::OsStr::from_bytes(target);
                landing.place(&self.lower, path, expect, &NewContent::Symlink { target, uid, gid })?;
            }
            (None, _, Some(expect)) => landing.remove(&self.lower, path, expect)?,
            (None, _, None) => {}
        }
        if let Some((source, stamp)) = &job.takes_along {
            landing.remove(&self.lower, source, *stamp)?;
        }
        for alias in job.row.names.iter().skip(1) {
            self.stage_alias(landing, path, alias)?;
        }
        Ok(replaced)
    }

    /// Further names of a new file become links of the first, once that has landed; here they only must be free.
    fn stage_alias(&self, _landing: &mut Landing<'_>, path: &RelPath, alias: &RelPath) -> Result<()> {
        match self.lower.exists(alias).doing(|| format!("stat {alias}"))? {
            true => Err(Error::Store(store::Error::Conflict { path: path.to_string() })),
            false => Ok(()),
        }
    }

    fn landed_epilogue(
        &self,
        job: &Job,
        comparison: &mut Comparison,
        replaced: Option<Digest>,
        actor: &Writer,
    ) -> Result<Epilogue> {
        let path = comparison.path.clone();
        let digest = comparison.new_digest_if_small()?;
        let measure = comparison.measure;
        let size = comparison.new.exists().then_some(comparison.new.size);
        let note = match comparison.note {
            LandNote::NewFile => Some("[new file]"),
            LandNote::DiffSkipped(diff::Side::Binary) => Some("[diff skipped: binary]"),
            LandNote::DiffSkipped(_) => Some("[diff skipped: large]"),
            LandNote::Small if size.is_none() => Some("[deleted]"),
            LandNote::Small => None,
        };
        let event = self.event(EventName::WriteLanded, &path).with(|event| {
            event.sha256 = digest;
            event.bytes = size;
            event.insertions = measure.map(|measure| measure.insertions);
            event.deletions = measure.map(|measure| measure.deletions);
            event.pid = Some(actor.pid);
            event.uid = Some(actor.uid);
            event.message = note.map(str::to_owned);
        });
        let mut epilogue = Epilogue { drop: vec![job.row.id], events: vec![event], ..Epilogue::default() };
        if let Some(held) = &job.row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Ended));
        }
        let mut state = self.state.lock();
        epilogue.anchors = state.anchor_landed(&path, comparison.present.exists(), replaced, comparison.new.exists());
        if let Some((source, _)) = &job.takes_along {
            epilogue.anchors.extend(state.left(source));
        }
        Ok(epilogue)
    }

    /// Under the lock that saw lower change: everything that speaks of the path agrees again.
    fn note_landed(
        &self,
        state: &mut State,
        job: &Job,
        comparison: &mut Comparison,
        judged_against: Option<Digest>,
        applied: &Applied<'_>,
    ) {
        let meta = applied.outcomes.iter().find(|outcome| outcome.path == comparison.path).and_then(|found| found.meta);
        let landed = meta.map(|meta| meta.stamp());
        let window = state.windows.entry(comparison.path.clone());
        let window = window.or_insert(Window { first: judged_against, last: Instant::now(), landed });
        (window.last, window.landed) = (Instant::now(), landed);
        state.forget_old_windows();
        if let Some(meta) = meta {
            let seen = Seen { stamp: meta.stamp(), digest: comparison.new.digest };
            state.seen.insert(comparison.path.clone(), seen);
        } else {
            state.seen.remove(&comparison.path);
        }
        state.landed(job, meta.as_ref());
    }

    fn tell_landed(&self, path: &RelPath) {
        let node = self.state.lock().nodes.at(path);
        if let Some(node) = node {
            self.tell(|observer| observer.attributes_changed(node));
        }
    }

    fn hold(&self, job: &Job, comparison: &mut Comparison, actor: &Writer) -> Result<Settled> {
        let path = comparison.path.clone();
        let doing = || format!("read {path}");
        self.put_back(job, comparison)?;
        comparison.reasons.sort();
        comparison.reasons.dedup();
        let old_digest = comparison.old.digest().doing(doing)?;
        let new_digest = comparison.new.digest().doing(doing)?;
        if let Some(content) = comparison.old.stage(&self.store)? {
            self.store.keep_content(&content)?;
        }
        let kind = comparison.kind();
        let id = self.unused_id(&ChangeId::full(&path, kind, old_digest, new_digest), job.row.id)?;
        let hunks = comparison.hunk_count();
        let now = store::now_millis();
        let before = job.row.held.clone();
        let same = before.clone().filter(|held| held.id == id);
        let measure = comparison.measure;
        let held = Held {
            id: id.clone(),
            kind,
            reasons: comparison.reasons.clone(),
            insertions: measure.map_or(0, |measure| measure.insertions),
            deletions: measure.map_or(0, |measure| measure.deletions),
            old_lines: measure.map_or(0, |measure| measure.old_lines),
            hunks,
            new: new_digest,
            created: same.as_ref().map_or(now, |held| held.created),
            renewed: same.as_ref().map_or(now, |held| held.renewed),
            // Whoever only caused it to be judged anew did not write it.
            writer: same.as_ref().map_or_else(|| Some(actor.clone()), |held| held.writer.clone()),
        };
        let mut row = job.row.clone();
        row.base.digest = old_digest;
        if before.is_none() {
            row.base.below = comparison.below();
            if !job.row.base.is_shared() {
                row.base = row.base.of_one_name();
            }
        }
        row.held = Some(held);
        let mut epilogue = Epilogue { save: vec![row.clone()], ..Epilogue::default() };
        if same.is_none() {
            epilogue.events.push(self.held_event(&row, comparison, actor));
            if let Some(old) = before {
                let fate = Fate::Superseded { by: id.clone() };
                epilogue.verdicts.push((old.id, path.clone(), fate));
            }
        }
        let mut state = self.state.lock();
        if state.uppers.get(job.row.id).is_none_or(|upper| upper.row.names != job.row.names) {
            return Ok(Settled::Postponed);
        }
        self.store.record_epilogue(&epilogue)?;
        if let Some(upper) = state.uppers.get_mut(job.row.id) {
            upper.row = row;
            upper.saved = true;
            upper.moved_on = false;
        }
        drop(state);
        if same.is_none() {
            self.counters.held.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Settled::Held(id))
    }

    /// The old inode was renamed away before the path was made anew, and that is held: lower gets it back under its own
    /// name, and what it was renamed to becomes a copy (SPEC §4.3a).
    fn put_back(&self, job: &Job, comparison: &mut Comparison) -> Result<()> {
        let path = &comparison.path;
        let anchor = self.anchor_of(path)?;
        let Some(AnchorState::Moved { to, stamp }) = anchor else { return Ok(()) };
        if job.row.held.is_some() || comparison.present.exists() {
            return Ok(());
        }
        let moved = match self.origin(&to)? {
            Origin::Lower(meta) if same_content_stamp(&meta.stamp(), &stamp) && meta.is_file() => meta,
            Origin::Lower(_) | Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => return Ok(()),
        };
        let file = super::open_lower(&self.lower, &to).doing(|| format!("read {to}"))?;
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.rename(&self.lower, &to, path, moved.stamp())?;
        let copy = NewContent::File { file: &file, like: &file, meta: moved };
        landing.place(&self.lower, &to, None, &copy)?;
        let promised = landing.promise(Epilogue::default())?;
        let applied = {
            let mut state = self.state.lock();
            let applied = promised.apply()?;
            state.put_back(path, &to, &applied.outcomes);
            applied
        };
        applied.finish()?;
        comparison.present = self.present_side(path)?;
        Ok(())
    }

    fn held_event(&self, row: &UpperRow, comparison: &Comparison, actor: &Writer) -> store::EventDraft {
        self.event(EventName::WriteHeld, &comparison.path).with(|event| {
            let held = row.held.as_ref();
            event.id = held.map(|held| held.id.to_string());
            event.reason = held.and_then(|held| held.reasons.first().copied());
            event.sha256 = held.and_then(|held| held.new);
            event.bytes = comparison.new.exists().then_some(comparison.new.size);
            event.insertions = held.map(|held| held.insertions);
            event.deletions = held.map(|held| held.deletions);
            event.pid = Some(actor.pid);
            event.uid = Some(actor.uid);
        })
    }

    /// The first digits of `full` that no other live change has.
    pub(super) fn unused_id(&self, full: &str, own: UpperId) -> Result<ChangeId> {
        let state = self.state.lock();
        let others = || state.uppers.iter().filter(|upper| upper.row.id != own);
        let taken = |digits: &str| {
            others().filter_map(|upper| upper.row.held.as_ref()).any(|held| held.id.as_str().starts_with(digits))
        };
        let length = (ID_DIGITS..full.len()).find(|length| !taken(&full[..*length])).unwrap_or(full.len());
        ChangeId::parse(&full[..length]).ok_or(Error::Errno(libc::EIO))
    }
}

impl Comparison {
    fn add(&mut self, reason: Reason) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// The deletion of what did not exist before the session loses nothing that the session had not made; unless it
    /// is all that is left of something older that was renamed here.
    fn is_fresh_deletion(&self, overlay: &Overlay) -> bool {
        let state = overlay.state.lock();
        let fresh = !self.new.exists() && state.anchors.get(&self.path).is_some_and(|known| known.fresh);
        let came_from = state.moved_from(&self.path).filter(|_| fresh);
        drop(state);
        fresh && came_from.is_none_or(|from| !matches!(overlay.origin(&from), Ok(Origin::Nothing | Origin::Hidden(_))))
    }

    /// Git writes its own config at will; only what could run a program or include a file is reviewed (SPEC §6).
    fn judged_as_git_config(mut self) -> Self {
        let old = self.old.bytes.as_deref().unwrap_or_default();
        let new = self.new.bytes.as_deref().unwrap_or_default();
        if risky_git_config_change(&self.path, old, new).is_some() {
            self.add(Reason::Sensitive);
        }
        self
    }

    /// One kind of thing in the place of another, and symlinks that lead out, are always reviewed (SPEC §4.5).
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
        let (Some(new), Some(FileKind::Regular)) = (&self.new.bytes, self.new.kind) else { return };
        let side = |side: &Side| side.bytes.as_ref().map(|_| side.mode);
        let old = side(&self.old).filter(|_| self.old.exists());
        let old = old.map(|mode| RiskSide { content: self.old.bytes.as_deref().unwrap_or_default(), mode });
        let subject = RiskSubject { old, new: RiskSide { content: new, mode: self.new.mode } };
        if !risk::signals(&subject, switches).is_empty() {
            self.add(Reason::Risk);
        }
    }

    pub fn kind(&self) -> ChangeKind {
        match (self.old.kind, self.new.kind) {
            (None, _) => ChangeKind::Create,
            (Some(_), None) => ChangeKind::Delete,
            (Some(old), Some(new)) if old != new => ChangeKind::Type,
            (Some(_), Some(_)) => ChangeKind::Modify,
        }
    }

    fn hunk_count(&self) -> u64 {
        self.measure.map_or(0, |_| diff::hunks(self.old.text(), self.new.text()).len() as u64)
    }

    fn below(&self) -> Below {
        match self.present.meta {
            Some(meta) => Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links },
            None => Below::Nothing,
        }
    }

    /// Hashing something large would make its writer wait (SPEC §10).
    fn new_digest_if_small(&mut self) -> Result<Option<Digest>> {
        match self.new.bytes.is_some() {
            true => self.new.digest().doing(|| format!("hash {}", self.path)),
            false => Ok(None),
        }
    }
}

fn facts(old: &Side, new: &Side) -> Facts {
    let (old_side, new_side) = (old.diff_side(), new.diff_side());
    let comparable = old_side == diff::Side::Text && matches!(new_side, diff::Side::Text | diff::Side::Absent)
        || old_side == diff::Side::Absent && new_side == diff::Side::Text;
    Facts {
        act: if new.exists() { Act::Write } else { Act::Delete },
        identical: old.exists() == new.exists() && old.bytes.is_some() && old.bytes == new.bytes,
        old: old_side,
        old_bytes: old.size,
        new: new_side,
        measure: comparable.then(|| diff::measure(old.text(), new.text())),
    }
}

/// New content must go into the inode itself: something is mounted on it, or all its names are to show the change.
pub(super) fn must_stay(base: &Base, present: &Meta) -> bool {
    present.is_mount_root || (present.links > 1 && base.is_shared())
}

/// Whether a symlink at `path` points outside the project; judged by its text alone.
pub(super) fn leaves_project(path: &RelPath, target: &[u8]) -> bool {
    if target.first() == Some(&b'/') {
        return true;
    }
    let mut depth = path.components().count() as i64 - 1;
    target.split(|byte| *byte == b'/').any(|name| {
        match name {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        depth < 0
    })
}

/// The old content cannot be read or kept: the writer is not stopped, the change is held instead (SPEC §5).
fn is_unreadable(err: &Error) -> bool {
    matches!(err.code(), libc::EIO | libc::EACCES | libc::EPERM)
}

pub(super) fn backup_of(
    path: &RelPath,
    side: &Side,
    content: &StagedContent,
    kind: BackupKind,
    actor: &Writer,
) -> Backup {
    let created = store::now_millis();
    Backup {
        name: Backup::name_for(path, created),
        path: path.clone(),
        kind,
        digest: content.digest,
        size: content.size,
        mode: side.mode,
        symlink: side.kind == Some(FileKind::Symlink),
        mtime: side.meta.map(|meta| meta.mtime).unwrap_or_default(),
        created,
        by: Some(actor.clone()),
    }
}

/// How many recent landings are remembered before old ones are looked through.
const WINDOWS_MAX: usize = 4096;

/// An entry that is being judged. Given back however the judging ends: others wait for it.
pub(super) struct Taken<'a> {
    overlay: &'a Overlay,
    id: UpperId,
    judged: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.overlay.state.lock();
        if let Some(upper) = state.uppers.get_mut(self.id) {
            upper.busy = false;
            // An error judged nothing: it is still what it was.
            upper.dirty |= !self.judged;
        }
        self.overlay.changed.notify_all();
    }
}

impl State {
    /// Nobody wrote to an entry since it was taken: neither through what was open then, nor through what was opened
    /// since.
    pub(super) fn is_still(&self, id: UpperId, path: &RelPath, open: Option<&Arc<OpenFile>>, version: u64) -> bool {
        let now = self.nodes.at(path).and_then(|node| self.nodes.get(node).ok()?.open.as_ref());
        let now = now.filter(|now| now.upper() == Some(id) && open.is_none_or(|then| !Arc::ptr_eq(then, now)));
        open.is_none_or(|open| open.is_still(version)) && now.is_none_or(|now| now.is_still(0))
    }

    /// The entry's content is lower's now. It stays only for who still has it open.
    fn landed(&mut self, job: &Job, meta: Option<&Meta>) {
        self.epoch += 1;
        let path = job.row.names[0].clone();
        if let Some(node) = self.nodes.at(&path) {
            self.nodes.set_lower(node, meta.map(Meta::key));
            if let Some(meta) = meta {
                self.nodes.set_cached(node, meta.stamp());
            }
        }
        let Some(upper) = self.uppers.get_mut(job.row.id) else { return };
        upper.saved = false;
        upper.synced = false;
        upper.moved_on = false;
        upper.row.held = None;
        upper.takes_along = None;
        upper.row.base.digest = None;
        upper.row.base.below = match meta {
            Some(meta) => Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links },
            None => Below::Nothing,
        };
    }

    /// Anchors after a landing on `path`, of the path itself and of paths whose content was moved to it.
    pub(super) fn anchor_landed(
        &self,
        path: &RelPath,
        existed: bool,
        replaced: Option<Digest>,
        exists: bool,
    ) -> Vec<Anchor> {
        let mut changed = Vec::new();
        let first = match (existed, replaced) {
            (true, Some(digest)) => AnchorState::Content { digest },
            (true, None) | (false, _) => AnchorState::Nothing,
        };
        let known = self.anchors.get(path).cloned();
        let mut known = known.unwrap_or(Known { anchor: first, fresh: false });
        if !existed {
            known.fresh = known.anchor == AnchorState::Nothing && exists;
        }
        known.fresh &= exists;
        changed.push(Anchor { path: path.clone(), state: known.anchor.clone(), fresh: known.fresh });
        if let Some(digest) = replaced {
            for (from, known) in &self.anchors {
                if matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path) {
                    let state = AnchorState::Content { digest };
                    changed.push(Anchor { path: from.clone(), state, fresh: known.fresh });
                }
            }
        }
        changed
    }

    /// What was renamed away from `path` may change from now on; what `path` is judged against may not.
    fn pin_anchor(&mut self, path: &RelPath, digest: Digest) {
        if let Some(known) = self.anchors.get_mut(path)
            && matches!(known.anchor, AnchorState::Moved { .. })
        {
            known.anchor = AnchorState::Content { digest };
        }
    }

    /// Anchors that a landing has brought, once lower has changed.
    fn know(&mut self, anchors: Vec<Anchor>) {
        for Anchor { path, state: anchor, fresh } in anchors {
            self.anchors.insert(path, Known { anchor, fresh });
        }
    }

    /// A renamed inode has its first name again, and a copy of it has the other.
    fn put_back(&mut self, path: &RelPath, to: &RelPath, outcomes: &[StepOutcome]) {
        self.epoch += 1;
        self.anchors.remove(path);
        let copy = outcomes.iter().rfind(|outcome| outcome.path == *to).and_then(|outcome| outcome.meta);
        if let Some(node) = self.nodes.at(to) {
            self.nodes.set_lower(node, copy.as_ref().map(Meta::key));
        }
    }

    /// The path is free now; what was there went elsewhere.
    pub(super) fn left(&mut self, path: &RelPath) -> Option<Anchor> {
        self.seen.remove(path);
        let known = self.anchors.get_mut(path)?;
        known.fresh = false;
        Some(Anchor { path: path.clone(), state: known.anchor.clone(), fresh: false })
    }

    /// The path that what is at `path` had when the session began, if it was renamed.
    fn moved_from(&self, path: &RelPath) -> Option<RelPath> {
        let moved_here = |known: &Known| matches!(&known.anchor, AnchorState::Moved { to, .. } if to == path);
        self.anchors.iter().find(|(_, known)| moved_here(known)).map(|(from, _)| from.clone())
    }

    /// Where what lay at a path is now, if a directory above it was renamed.
    fn moved_with_dir(&self, path: &RelPath) -> Option<RelPath> {
        let moved =
            |at: Option<RelPath>, (from, to): &(RelPath, RelPath)| at.as_ref().unwrap_or(path).rebase(from, to).or(at);
        self.moved_dirs.iter().fold(None, moved).filter(|to| to != path)
    }

    fn forget_old_windows(&mut self) {
        if self.windows.len() > WINDOWS_MAX {
            self.windows.retain(|_, window| window.last.elapsed().as_secs() < 60);
        }
    }
}

impl Backing {
    pub(super) fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_))
    }
}
