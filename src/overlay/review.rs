//! What a person does about held changes and backups: confirm, discard, roll back. And what there is to know of them.
//!
//! Several changes are one transaction: either all of them land, durably, or lower and the view are as they were.
//! Rights are not asked here. Answers are the protocol's own, so that nobody translates them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::copy_up::same_content_stamp;
use super::error::Context;
use super::lookup::Origin;
use super::open::{Backing, OpenFile};
use super::settle::{Settled, Side, backup_of, must_stay};
use super::uppers::Upper;
use super::{Error, Known, Overlay, Result, Seen, open_lower};
use crate::diff::{self, Merge};
use crate::model::{BackupKind, ChangeId, ChangeKind, Reason, RelPath};
use crate::policy::settings::Ttl;
use crate::protocol::{Action as Done, Counts, ErrorBody, ErrorCode, EventName, ExternalKind, Outcome, WritingNow};
use crate::store::{
    self, Anchor, AnchorState, Backup, Below, Durability, Epilogue, Fate, Held, Landing, NewContent, UpperId, UpperRow,
    What, Writer,
};
use crate::sys::file::{FileKind, Meta};
use crate::sys::process;

type Reviewed<T> = std::result::Result<T, ErrorBody>;

/// Whether changes held for too long without a look are refused (SPEC §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Guard,
    Ignore,
}

#[derive(Clone, Copy, Debug)]
pub struct ConfirmHow {
    pub force: bool,
    pub wait: bool,
    pub renew: bool,
    pub dry_run: bool,
    pub expiry: Expiry,
}

/// Both sides of a held change, as a diff shows them.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    pub old: Option<SideContent>,
    pub new: Option<SideContent>,
}

#[derive(Clone, Debug)]
pub struct SideContent {
    pub content: Vec<u8>,
    /// `st_mode`, with the kind.
    pub mode: u32,
}

/// How long a request waits for writers that were asked to be waited for.
const WAIT_FOR_WRITERS: Duration = Duration::from_secs(60);
/// How long a release that the kernel is about to send is waited for.
const WAIT_FOR_RELEASES: Duration = Duration::from_secs(1);

/// What is done about writers of a change that is taken for review.
#[derive(Clone, Copy, Debug)]
enum Writers {
    WaitedFor { deadline: Instant },
    LeftAlone,
}

/// A held change taken for review: nobody judges it meanwhile.
struct Taken {
    row: UpperRow,
    held: Held,
    open: Option<Arc<OpenFile>>,
    version: u64,
}

/// Changes taken for review. Given back however that ends: their writers wait for it.
struct Reviewing<'a> {
    overlay: &'a Overlay,
    taken: Vec<Taken>,
}

impl Reviewing<'_> {
    fn give_back(mut self) -> Vec<Taken> {
        let taken = std::mem::take(&mut self.taken);
        self.overlay.give_back(&taken);
        taken
    }
}

impl Drop for Reviewing<'_> {
    fn drop(&mut self) {
        self.overlay.give_back(&self.taken);
    }
}

/// One change on its way into lower.
struct Landable {
    taken: Taken,
    new: Side,
    present: Side,
    done: Done,
    backup: Option<crate::model::Digest>,
}

impl Overlay {
    /// Everything that waits for review, by path.
    pub fn held_rows(&self) -> Vec<UpperRow> {
        let state = self.state.lock();
        let held = state.uppers.iter().filter(|upper| upper.row.held.is_some());
        let mut rows: Vec<UpperRow> = held.map(|upper| upper.row.clone()).collect();
        rows.sort_by(|a, b| a.names[0].cmp(&b.names[0]));
        rows
    }

    pub fn sides(&self, row: &UpperRow) -> Reviewed<Sides> {
        let old = self.shown_old(row).map_err(|err| failed(&row.names[0], &err))?;
        let new = self.row_side(row).map_err(|err| failed(&row.names[0], &err))?;
        Ok(Sides { old: content(old)?, new: content(new)? })
    }

    /// What a diff compares with: lower as it is, or what the change was based on when lower has moved on.
    fn shown_old(&self, row: &UpperRow) -> Result<Side> {
        let present = self.present_side(&row.names[0])?;
        let stamp = present.meta.map(|meta| meta.stamp());
        if let (Below::Entry { stamp: base, .. }, Some(now)) = (row.base.below, stamp)
            && same_content_stamp(&base, &now)
        {
            return Ok(present);
        }
        let kept = row.base.digest.map(|digest| self.store.content_file(digest)).transpose()?.flatten();
        kept.map_or(Ok(Side::default()), |file| Side::of_file(file).doing(|| "read a base".to_owned()))
    }

    fn row_side(&self, row: &UpperRow) -> Result<Side> {
        let doing = || format!("read {}", row.names[0]);
        match row.what {
            What::Whiteout => Ok(Side::default()),
            What::File => Side::of_file(self.store.open_upper(row.id)?).doing(doing),
            What::Symlink => {
                let target = self.store.upper_place(row.id)?.read_symlink().doing(doing)?;
                Ok(Side::of_symlink(&target, self.store.upper_meta(row.id)?))
            }
        }
    }

    /// Since how many minutes a change needs a fresh look, if it does.
    pub fn is_expired(&self, held: &Held) -> Option<u64> {
        let Ttl::After(ttl) = self.policy().settings.ttl else { return None };
        let age = u64::try_from(store::now_millis() - held.renewed).unwrap_or(0);
        let over = age.checked_sub(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))?;
        (over > 0).then_some(over / 60_000)
    }

    /// Somebody looked at a change.
    pub fn renew(&self, id: &ChangeId) -> Reviewed<()> {
        let mut state = self.state.lock();
        let upper = state.uppers.by_id(id).and_then(|upper| state.uppers.get_mut(upper));
        let Some(upper) = upper else { return Err(unknown(id)) };
        if let Some(held) = &mut upper.row.held {
            held.renewed = store::now_millis();
        }
        self.store.save_upper(&upper.row).map_err(|err| failed(&upper.row.names[0], &err.into()))
    }

    /// Remarks of the settings for people.
    pub fn policy_notices(&self) -> Vec<String> {
        self.policy().notices.clone()
    }

    /// Lands what was reviewed, all of it or nothing.
    pub fn confirm(&self, ids: &[ChangeId], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        let deadline = Instant::now() + if how.wait { WAIT_FOR_WRITERS } else { Duration::ZERO };
        let ids = self.with_children(ids)?;
        let taken = self.take_all(&ids, Writers::WaitedFor { deadline })?;
        let result = self.confirm_taken(&taken.taken, how);
        let taken = taken.give_back();
        if let Ok(outcomes) = &result
            && !how.dry_run
        {
            self.after_landing(&taken, outcomes);
        }
        result
    }

    /// A held removal of a directory takes the deletions in it along.
    fn with_children(&self, ids: &[ChangeId]) -> Reviewed<Vec<ChangeId>> {
        let state = self.state.lock();
        let mut all: Vec<ChangeId> = Vec::new();
        for id in ids {
            let upper = state.uppers.by_id(id).and_then(|upper| state.uppers.get(upper)).ok_or_else(|| unknown(id))?;
            let held = upper.row.held.as_ref().ok_or_else(|| unknown(id))?;
            if held.kind == ChangeKind::Structure {
                let below = state.uppers.within(&upper.row.names[0]).into_iter();
                let below = below.filter_map(|id| state.uppers.get(id)?.row.held.as_ref());
                all.extend(below.map(|held| held.id.clone()));
            }
            all.push(id.clone());
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|id| seen.insert(id.clone()));
        Ok(all)
    }

    fn take_all(&self, ids: &[ChangeId], writers: Writers) -> Reviewed<Reviewing<'_>> {
        let mut taken = Reviewing { overlay: self, taken: Vec::new() };
        // In one order, whatever the request's: two requests never wait for each other.
        let mut in_order: Vec<&ChangeId> = ids.iter().collect();
        {
            let state = self.state.lock();
            in_order.sort_by_key(|id| state.uppers.by_id(id));
        }
        for id in in_order {
            taken.taken.push(self.take(id, writers)?);
        }
        taken.taken.sort_by_key(|change| ids.iter().position(|id| *id == change.held.id));
        Ok(taken)
    }

    fn take(&self, id: &ChangeId, writers: Writers) -> Reviewed<Taken> {
        let mut state = self.state.lock();
        let judged_by = Instant::now() + WAIT_FOR_WRITERS;
        loop {
            let upper_id = state.uppers.by_id(id).ok_or_else(|| unknown(id))?;
            let path = state.uppers.get(upper_id).map(|upper| upper.row.names[0].clone()).unwrap_or_default();
            let writer = match writers {
                Writers::WaitedFor { deadline } => state.writer_of(&path).map(|pid| (pid, deadline)),
                Writers::LeftAlone => None,
            };
            let busy = state.uppers.get(upper_id).is_some_and(|upper| upper.busy);
            if !busy && writer.is_none() {
                let open = state.nodes.at(&path).and_then(|node| state.nodes.get(node).ok()?.open.clone());
                let open = open.filter(|open| open.upper() == Some(upper_id));
                let upper = state.uppers.get_mut(upper_id).ok_or_else(|| unknown(id))?;
                let held = upper.row.held.clone().ok_or_else(|| unknown(id))?;
                upper.busy = true;
                if let Some(open) = &open {
                    // The next write must note itself again.
                    open.dirty.store(false, Ordering::SeqCst);
                }
                let version = open.as_ref().map_or(0, |open| open.version());
                return Ok(Taken { row: upper.row.clone(), held, open, version });
            }
            // Judging is short; a writer is waited for only when asked.
            let until = writer.map_or(judged_by, |(_, deadline)| deadline);
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Err(writer.map_or_else(|| busy_judging(id, &path), |(pid, _)| busy_writing(id, &path, pid)));
            }
        }
    }

    fn give_back(&self, taken: &[Taken]) {
        let mut state = self.state.lock();
        for change in taken {
            if let Some(upper) = state.uppers.get_mut(change.row.id) {
                upper.busy = false;
            }
        }
        self.changed.notify_all();
    }

    fn confirm_taken(&self, taken: &[Taken], how: &ConfirmHow) -> Reviewed<Vec<Outcome>> {
        if how.expiry == Expiry::Guard && !how.renew {
            taken.iter().try_for_each(|change| self.check_fresh(change))?;
        }
        let (dirs, files): (Vec<&Taken>, Vec<&Taken>) =
            taken.iter().partition(|change| change.held.kind == ChangeKind::Structure);
        let mut landables = Vec::new();
        for change in files {
            let landable = self.landable(change, how).inspect_err(|err| self.record_failed_confirm(change, err))?;
            landables.push(landable);
        }
        let outcomes: Vec<Outcome> = landables.iter().map(outcome).collect();
        if how.dry_run {
            return Ok(outcomes);
        }
        let names = self.land_all(&mut landables, &dirs).map_err(|err| match err {
            Error::Store(store::Error::Conflict { path }) => conflict(&path, "it changed below at this very moment"),
            other => ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was applied: {other}")),
        })?;
        self.remove_dirs(&dirs)?;
        let mut names = names.into_iter();
        let with_backup = outcomes.into_iter().zip(&landables).map(|(mut outcome, landable)| {
            outcome.backup = landable.backup.and_then(|_| names.next());
            outcome
        });
        Ok(with_backup.collect())
    }

    fn check_fresh(&self, change: &Taken) -> Reviewed<()> {
        let Some(minutes) = self.is_expired(&change.held) else { return Ok(()) };
        let message = format!("{} of {} expired {minutes} minutes ago", change.held.id, change.row.names[0]);
        Err(ErrorBody::new(ErrorCode::Expired, message).about(change.held.id.as_str()))
    }

    fn record_failed_confirm(&self, change: &Taken, error: &ErrorBody) {
        let event = self.event(EventName::ConfirmFailed, &change.row.names[0]).with(|event| {
            event.id = Some(change.held.id.to_string());
            event.message = Some(error.message.clone());
        });
        if let Err(err) = self.store.record(&event) {
            log::error!("record a failed confirm: {err}");
        }
    }

    /// Checks one change against its id and against lower as it is now; merges where lower has moved on.
    fn landable(&self, change: &Taken, how: &ConfirmHow) -> Reviewed<Landable> {
        let path = &change.row.names[0];
        let fault = |err: Error| failed(path, &err);
        let mut new = self.row_side(&change.row).map_err(fault)?;
        if new.digest().map_err(|err| fault(err.into()))? != change.held.new {
            let message = format!("{} of {path} was written to since it was reviewed", change.held.id);
            return Err(ErrorBody::new(ErrorCode::Superseded, message).about(change.held.id.as_str()));
        }
        let mut present = self.present_side(path).map_err(fault)?;
        let taken = |change: &Taken| Taken {
            row: change.row.clone(),
            held: change.held.clone(),
            open: change.open.clone(),
            version: change.version,
        };
        let as_based = self.is_as_based(change, &mut present).map_err(fault)?;
        if as_based || how.force {
            return Ok(Landable { taken: taken(change), new, present, done: Done::Applied, backup: None });
        }
        let merged = self.merged(change, &mut new, &mut present)?;
        Ok(Landable { taken: taken(change), new: merged, present, done: Done::Merged, backup: None })
    }

    fn is_as_based(&self, change: &Taken, present: &mut Side) -> Result<bool> {
        let stamp = present.meta.map(|meta| meta.stamp());
        Ok(match (change.row.base.below, stamp) {
            (Below::Nothing, None) => true,
            (Below::Entry { stamp: base, .. }, Some(now)) if same_content_stamp(&base, &now) => true,
            // Times are a hint; the content decides.
            (Below::Entry { .. }, Some(_)) => {
                let digest = present.digest().doing(|| format!("hash {}", change.row.names[0]))?;
                digest == change.row.base.digest
            }
            (Below::Entry { .. }, None) | (Below::Nothing, Some(_)) => false,
        })
    }

    /// What comes out when the held change and the change below are put together; a refusal where they clash.
    fn merged(&self, change: &Taken, new: &mut Side, present: &mut Side) -> Reviewed<Side> {
        let path = &change.row.names[0];
        let refuse = |detail: Option<String>| {
            let message = format!("{path} was changed below since {} was based on it", change.held.id);
            let error = ErrorBody::new(ErrorCode::Conflict, message).about(change.held.id.as_str());
            ErrorBody { path: Some(path.clone()), detail: detail.map(String::into_boxed_str), ..error }
        };
        let digests = (new.digest().ok().flatten(), present.digest().ok().flatten());
        if digests.0 == digests.1 {
            return Ok(std::mem::take(new));
        }
        let base = change.row.base.digest.map(|digest| self.store.content(digest)).transpose();
        let base = base.map_err(|err| failed(path, &err.into()))?.flatten();
        let (Some(base), Some(ours), Some(theirs)) = (base, &present.bytes, &new.bytes) else {
            return Err(refuse(None));
        };
        let text = |bytes: &[u8]| diff::classify(Some(bytes)) == diff::Side::Text;
        if !(text(&base) && text(ours) && text(theirs)) {
            return Err(refuse(None));
        }
        match diff::merge(&base, ours, theirs) {
            Merge::Clean(merged) => self.merged_side(path, &merged),
            Merge::Conflict { hunks } => Err(refuse(Some(hunks))),
        }
    }

    /// Merged content as a file that can be landed, with the metadata of what lower has.
    fn merged_side(&self, path: &RelPath, merged: &[u8]) -> Reviewed<Side> {
        use std::io::Write;
        let fault = |err: Error| failed(path, &err);
        let upper = self.store.create_upper().map_err(|err| fault(err.into()))?;
        let write = || -> Result<Side> {
            let lower = open_lower(&self.lower, path)?;
            let meta = Meta::of(lower.as_fd())?;
            (&upper.file).write_all(merged)?;
            crate::sys::file::copy_owner(&meta, upper.file.as_fd())?;
            crate::sys::xattr::copy(lower.as_fd(), upper.file.as_fd())?;
            crate::sys::file::set_mode(upper.file.as_fd(), meta.mode)?;
            Ok(Side::of_file(upper.file.try_clone()?)?)
        };
        let side = write();
        // The descriptor is all that is needed; the name would only be left behind.
        self.store.drop_upper_file(upper.id).map_err(|err| fault(err.into()))?;
        side.map_err(fault)
    }

    /// One landing for all of them. Gives the names of the backups, in order.
    fn land_all(&self, landables: &mut [Landable], dirs: &[&Taken]) -> Result<Vec<String>> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut epilogue = Epilogue::default();
        for landable in landables.iter_mut() {
            self.make_parents(&landable.taken.row.names[0])?;
            self.stage_confirmed(landable, &mut landing)?;
            self.confirmed_epilogue(landable, &mut epilogue)?;
        }
        for dir in dirs {
            epilogue.drop.push(dir.row.id);
            epilogue.verdicts.push((dir.held.id.clone(), dir.row.names[0].clone(), Fate::Applied));
        }
        let promised = landing.promise(epilogue)?;
        let applied = {
            let mut state = self.state.lock();
            for landable in landables.iter() {
                if !state.is_as_taken(&landable.taken) {
                    drop(state);
                    return Err(Error::Errno(libc::EBUSY));
                }
            }
            let applied = promised.apply()?;
            for landable in landables.iter_mut() {
                let path = landable.taken.row.names[0].clone();
                let meta = applied.outcomes.iter().find(|outcome| outcome.path == path).and_then(|found| found.meta);
                state.confirmed(&landable.taken.row, meta.as_ref(), landable.new.digest().ok().flatten());
            }
            for dir in dirs {
                state.uppers.remove(dir.row.id);
            }
            applied
        };
        let names = applied.finish()?;
        for landable in landables.iter() {
            self.link_aliases(&landable.taken.row)?;
        }
        Ok(names)
    }

    /// Directories above that went below meanwhile come back; the change was reviewed with its path.
    fn make_parents(&self, path: &RelPath) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if self.lower.exists(&parent).doing(|| format!("stat {parent}"))? {
            return Ok(());
        }
        self.make_parents(&parent)?;
        let place = self.lower.place(&parent)?;
        place.make_dir(crate::sys::Mode::from_raw_mode(0o755)).doing(|| format!("make {parent}"))
    }

    fn stage_confirmed(&self, landable: &mut Landable, landing: &mut Landing<'_>) -> Result<()> {
        let path = &landable.taken.row.names[0];
        let present = &landable.present;
        let expect = present.meta.map(|meta| meta.stamp());
        if let Some(content) = present.stage(&self.store)? {
            landable.backup = Some(content.digest);
            let kind = if landable.new.kind.is_some() { BackupKind::Confirmed } else { BackupKind::Deleted };
            let backup = backup_of(path, present, &content, kind, &Writer::default());
            landing.keep(content, backup);
        }
        let shared = present.meta.is_some_and(|meta| must_stay(&landable.taken.row.base, &meta));
        match (landable.new.kind, &landable.new.file, expect) {
            (Some(FileKind::Regular), Some(file), Some(expect)) if shared && present.file.is_some() => {
                let old = present.file.as_ref().ok_or(Error::Errno(libc::EIO))?;
                Ok(landing.rewrite(&self.lower, path, expect, file, old)?)
            }
            (Some(FileKind::Regular), Some(file), _) => {
                let meta = Meta::of(file.as_fd()).doing(|| format!("stat {path}"))?;
                let source = NewContent::File { file, like: file, meta };
                Ok(landing.place(&self.lower, path, expect, &source).map(|_| ())?)
            }
            (Some(_), ..) => {
                use std::os::unix::ffi::OsStrExt;
                let target = landable.new.bytes.clone().unwrap_or_default();
                let (uid, gid) = landable.new.meta.map_or((0, 0), |meta| (meta.uid, meta.gid));
                let target = std::ffi::OsStr::from_bytes(&target);
                let link = NewContent::Symlink { target, uid, gid };
                Ok(landing.place(&self.lower, path, expect, &link).map(|_| ())?)
            }
            (None, _, Some(expect)) => Ok(landing.remove(&self.lower, path, expect)?),
            (None, _, None) => Ok(()),
        }
    }

    fn confirmed_epilogue(&self, landable: &mut Landable, epilogue: &mut Epilogue) -> Result<()> {
        let Landable { taken, new, done, .. } = landable;
        let path = &taken.row.names[0];
        let digest = new.digest().doing(|| format!("hash {path}"))?;
        epilogue.drop.push(taken.row.id);
        epilogue.verdicts.push((taken.held.id.clone(), path.clone(), Fate::Applied));
        let state = digest.map_or(AnchorState::Nothing, |digest| AnchorState::Content { digest });
        // Reviewed: from here on the path is judged against what was reviewed.
        epilogue.anchors.push(Anchor { path: path.clone(), state, fresh: false });
        epilogue.events.push(self.event(EventName::Confirmed, path).with(|event| {
            event.id = Some(taken.held.id.to_string());
            event.sha256 = digest;
            event.bytes = new.kind.map(|_| new.size);
            event.insertions = Some(taken.held.insertions);
            event.deletions = Some(taken.held.deletions);
            event.message = (*done == Done::Merged).then(|| "merged with a change below".to_owned());
        }));
        // What is compared with later must be there even when the file is replaced from outside.
        if let Some(content) = new.stage(&self.store)? {
            self.store.keep_content(&content)?;
        }
        Ok(())
    }

    /// Further names of what landed become links to it.
    pub(super) fn link_aliases(&self, row: &UpperRow) -> Result<()> {
        for alias in row.names.iter().skip(1) {
            let linked = self.lower.place(&row.names[0])?.link(&self.lower.place(alias)?);
            linked.doing(|| format!("link {alias} to {}", row.names[0]))?;
        }
        Ok(())
    }

    /// The last deletions in them have landed: the directories go too, deepest first.
    fn remove_dirs(&self, dirs: &[&Taken]) -> Reviewed<()> {
        let mut paths: Vec<&RelPath> = dirs.iter().map(|dir| &dir.row.names[0]).collect();
        paths.sort();
        for path in paths.into_iter().rev() {
            let removed = self.lower.place(path).and_then(|place| place.remove_dir());
            if let Err(err) = removed
                && err.kind() != std::io::ErrorKind::NotFound
            {
                return Err(failed(path, &Error::Io { doing: format!("remove {path}"), cause: err }));
            }
        }
        Ok(())
    }

    fn after_landing(&self, taken: &[Taken], outcomes: &[Outcome]) {
        for change in taken {
            if let Err(err) = self.evict(change.row.id).and_then(|()| self.empty_hidden_dirs(&change.row.names[0])) {
                log::error!("let go of {}: {err}", change.row.names[0]);
            }
        }
        let merged = |path: &RelPath| outcomes.iter().any(|done| done.path == *path && done.action == Done::Merged);
        for change in taken {
            self.tell_changed(&change.row.names[0], merged(&change.row.names[0]));
        }
    }

    /// A hidden directory goes below when the last held deletion in it has landed.
    fn empty_hidden_dirs(&self, path: &RelPath) -> Result<()> {
        let Some(dir) = path.parent() else { return Ok(()) };
        let hidden = {
            let state = self.state.lock();
            let id = state.uppers.at(&dir);
            id.and_then(|id| state.uppers.get(id)).map(|upper| upper.row.clone())
        };
        let Some(row) = hidden.filter(|row| row.what == What::Whiteout && row.held.is_some()) else { return Ok(()) };
        if !self.lower.list(&dir)?.is_empty() {
            return Ok(());
        }
        self.lower.place(&dir)?.remove_dir()?;
        let mut epilogue = Epilogue { drop: vec![row.id], ..Epilogue::default() };
        if let Some(held) = row.held {
            epilogue.verdicts.push((held.id, dir.clone(), Fate::Applied));
        }
        self.store.record_epilogue(&epilogue)?;
        self.state.lock().uppers.remove(row.id);
        self.empty_hidden_dirs(&dir)
    }

    fn tell_changed(&self, path: &RelPath, content: bool) {
        let (node, parent) = {
            let state = self.state.lock();
            let parent = path.parent().and_then(|dir| state.nodes.at(&dir));
            (state.nodes.at(path), parent)
        };
        if let Some(node) = node {
            self.tell(
                |observer| if content { observer.content_changed(node) } else { observer.attributes_changed(node) },
            );
        }
        if let (Some(parent), Some(name)) = (parent, path.name()) {
            self.tell(|observer| observer.entry_changed(parent, name));
        }
    }

    /// Drops changes from the view; their content is kept as backups.
    pub fn discard(&self, ids: &[ChangeId], dry_run: bool) -> Reviewed<Vec<Outcome>> {
        let ids = self.with_children(ids)?;
        // Open descriptors go on working, and their next close is judged anew (SPEC §8).
        let taken = self.take_all(&ids, Writers::LeftAlone)?;
        let result = self.discard_taken(&taken.taken, dry_run);
        let taken = taken.give_back();
        if result.is_ok() && !dry_run {
            taken.iter().for_each(|change| self.tell_changed(&change.row.names[0], true));
        }
        result
    }

    fn discard_taken(&self, taken: &[Taken], dry_run: bool) -> Reviewed<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        let mut epilogue = Epilogue::default();
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut kept = Vec::new();
        for change in taken {
            let path = &change.row.names[0];
            let fault = |err: Error| failed(path, &err);
            let side = self.row_side(&change.row).map_err(fault)?;
            let mut outcome = Outcome::new(Done::Discarded, path.clone());
            outcome.id = Some(change.held.id.clone());
            outcome.kind = Some(change.held.kind);
            if let Some(content) = side.stage(&self.store).map_err(|err| fault(err.into()))? {
                let backup = backup_of(path, &side, &content, BackupKind::Discarded, &Writer::default());
                landing.keep(content, backup);
                kept.push(outcomes.len());
            }
            outcomes.push(outcome);
            epilogue.drop.push(change.row.id);
            epilogue.verdicts.push((change.held.id.clone(), path.clone(), Fate::Discarded));
            let event = self.event(EventName::Discarded, path);
            epilogue.events.push(event.with(|event| event.id = Some(change.held.id.to_string())));
        }
        if dry_run {
            return Ok(outcomes);
        }
        let whole = |err: Error| ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was discarded: {err}"));
        let done = landing.promise(epilogue).and_then(|promised| promised.apply()).and_then(|applied| applied.finish());
        let names = done.map_err(|err| whole(err.into()))?;
        for (index, name) in kept.into_iter().zip(names) {
            outcomes[index].backup = Some(name);
        }
        // All of them are discarded by now: one that cannot be shown so must not keep the others from it.
        let mut first_failure = Ok(());
        for change in taken {
            let back = self.back_to_lower(change).map_err(|err| failed(&change.row.names[0], &err));
            first_failure = first_failure.and(back);
        }
        first_failure?;
        Ok(outcomes)
    }

    /// The view shows lower at the entry's names again. Open descriptors go on with what lower has.
    fn back_to_lower(&self, change: &Taken) -> Result<()> {
        let row = &change.row;
        let path = &row.names[0];
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let mut state = self.state.lock();
        state.epoch += 1;
        if !state.is_as_taken(change) {
            return self.begin_anew(&mut state, row.id, meta);
        }
        let node = state.nodes.at(path);
        if let Some(node) = node {
            let open = state.nodes.get(node).ok().and_then(|node| node.open.clone());
            if let Some(open) = open.filter(|open| open.upper() == Some(row.id)) {
                let lower = meta.filter(Meta::is_file).map(|_| open_lower(&self.lower, path)).transpose()?;
                open.set_backing(match lower {
                    Some(file) => Backing::Lower(Arc::new(file)),
                    None => Backing::Orphan(open.file()),
                });
                open.dirty.store(false, Ordering::SeqCst);
            }
            state.nodes.set_lower(node, meta.filter(Meta::is_file).map(|meta| meta.key()));
        }
        for name in &row.names {
            let gone = meta.is_none() || name != path;
            if let (true, Some(dir), Some(name)) = (gone, name.parent(), name.name())
                && let Some(parent) = state.nodes.at(&dir)
            {
                state.nodes.unname(parent, name);
            }
        }
        state.uppers.remove(row.id);
        drop(state);
        match row.what {
            What::File | What::Symlink => Ok(self.store.drop_upper_file(row.id)?),
            What::Whiteout => Ok(()),
        }
    }

    /// What was written while the change was being discarded is a change of its own, judged when its writer closes.
    fn begin_anew(&self, state: &mut super::State, id: UpperId, below: Option<Meta>) -> Result<()> {
        let Some(upper) = state.uppers.get_mut(id) else { return Ok(()) };
        upper.row.held = None;
        upper.row.base.digest = None;
        upper.row.base.below = match below {
            Some(meta) => Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links },
            None => Below::Nothing,
        };
        (upper.dirty, upper.saved) = (true, true);
        Ok(self.store.save_upper(&upper.row)?)
    }

    /// Puts kept content back where it was, or to `to`. Never judged; what it replaces is kept in its turn.
    pub fn rollback(
        &self,
        backups: &[Backup],
        to: Option<&RelPath>,
        force: bool,
        dry_run: bool,
    ) -> Reviewed<Vec<Outcome>> {
        let mut landing = Landing::new(&self.store, Durability::Synced);
        let mut epilogue = Epilogue::default();
        let mut outcomes = Vec::new();
        let mut replaced = Vec::new();
        for backup in backups {
            let path = to.unwrap_or(&backup.path);
            let mut outcome = Outcome::new(Done::Restored, path.clone());
            outcome.from = Some(backup.name.clone());
            outcome.size = Some(backup.size);
            if !dry_run {
                let keeps = self.stage_rollback(backup, path, force, &mut landing, &mut epilogue)?;
                if keeps {
                    replaced.push(outcomes.len());
                }
            }
            outcomes.push(outcome);
        }
        if dry_run {
            return Ok(outcomes);
        }
        let whole = |err: store::Error| ErrorBody::new(ErrorCode::WriteFailed, format!("nothing was restored: {err}"));
        let promised = landing.promise(epilogue).map_err(whole)?;
        let applied = {
            let mut state = self.state.lock();
            let applied = promised.apply().map_err(whole)?;
            applied.outcomes.iter().for_each(|outcome| state.restored(&outcome.path, outcome.meta.as_ref()));
            applied
        };
        let names = applied.finish().map_err(whole)?;
        for (index, name) in replaced.into_iter().zip(names) {
            outcomes[index].backup = Some(name);
        }
        for outcome in &outcomes {
            self.rebase_held(&outcome.path).map_err(|err| failed(&outcome.path, &err))?;
            self.tell_changed(&outcome.path, true);
        }
        Ok(outcomes)
    }

    fn stage_rollback(
        &self,
        backup: &Backup,
        path: &RelPath,
        force: bool,
        landing: &mut Landing<'_>,
        epilogue: &mut Epilogue,
    ) -> Reviewed<bool> {
        use crate::policy::rules::Action;
        let fault = |err: Error| failed(path, &err);
        if matches!(self.action(path, FileKind::Regular), Action::Freeze | Action::Deny) {
            return Err(ErrorBody::new(ErrorCode::NotPermitted, format!("a rule keeps {path} from being written")));
        }
        self.make_parents(path).map_err(fault)?;
        let mut present = self.present_side(path).map_err(fault)?;
        if !force {
            self.check_untouched(path, &mut present)?;
        }
        if present.kind.is_some_and(|kind| !matches!(kind, FileKind::Regular | FileKind::Symlink)) {
            return Err(ErrorBody::new(ErrorCode::Conflict, format!("{path} is not a file any more")));
        }
        let expect = present.meta.map(|meta| meta.stamp());
        let kept = present.stage(&self.store).map_err(|err| fault(err.into()))?;
        let keeps = kept.is_some();
        if let Some(content) = kept {
            let made = backup_of(path, &present, &content, BackupKind::RolledBack, &Writer::default());
            landing.keep(content, made);
        }
        self.place_backup(backup, path, expect, &present, landing).map_err(fault)?;
        epilogue.anchors.push(Anchor {
            path: path.clone(),
            state: AnchorState::Content { digest: backup.digest },
            fresh: false,
        });
        epilogue.events.push(self.event(EventName::RolledBack, path).with(|event| {
            event.sha256 = Some(backup.digest);
            event.bytes = Some(backup.size);
            event.message = Some(backup.name.clone());
        }));
        Ok(keeps)
    }

    fn place_backup(
        &self,
        backup: &Backup,
        path: &RelPath,
        expect: Option<crate::model::Stamp>,
        present: &Side,
        landing: &mut Landing<'_>,
    ) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let kept = self.store.content_file(backup.digest)?;
        let kept = kept.ok_or(Error::Errno(libc::ENOENT))?;
        if backup.symlink {
            let target = crate::sys::file::read_all(&kept)?;
            let (uid, gid) = present.meta.map_or((0, 0), |meta| (meta.uid, meta.gid));
            let link = NewContent::Symlink { target: std::ffi::OsStr::from_bytes(&target), uid, gid };
            return Ok(landing.place(&self.lower, path, expect, &link).map(|_| ())?);
        }
        let kept_meta = Meta::of(kept.as_fd())?;
        let (uid, gid) = match present.meta {
            Some(meta) => (meta.uid, meta.gid),
            None => self.lower.stat(&path.parent().unwrap_or_default())?.map_or((0, 0), |meta| (meta.uid, meta.gid)),
        };
        let now = jiff_now();
        let meta = Meta { mode: backup.mode & 0o7777, uid, gid, atime: now, mtime: now, ..kept_meta };
        let like: &File = present.file.as_deref().unwrap_or(&kept);
        Ok(landing.place(&self.lower, path, expect, &NewContent::File { file: &kept, like, meta }).map(|_| ())?)
    }

    /// A file that somebody else edited after fettlefs last wrote it is not rolled back over his work.
    fn check_untouched(&self, path: &RelPath, present: &mut Side) -> Reviewed<()> {
        let known = self.known_digest(path).map_err(|err| failed(path, &err))?;
        let digest = present.digest().map_err(|err| failed(path, &err.into()))?;
        match (known, digest) {
            (Some(known), Some(digest)) if known != digest => {
                Err(conflict(&path.to_string(), "it was edited since; --force keeps that as a backup"))
            }
            _ => Ok(()),
        }
    }

    /// The hash of what fettlefs last put at a path.
    fn known_digest(&self, path: &RelPath) -> Result<Option<crate::model::Digest>> {
        let seen = self.state.lock().seen.get(path).and_then(|seen| seen.digest);
        match seen {
            Some(digest) => Ok(Some(digest)),
            None => Ok(self.store.last_landed(path)?),
        }
    }

    /// A held change over what was just restored goes on against that, under a new id.
    fn rebase_held(&self, path: &RelPath) -> Result<()> {
        let row = {
            let state = self.state.lock();
            state.uppers.at(path).and_then(|id| state.uppers.get(id)).map(|upper| upper.row.clone())
        };
        let Some(mut row) = row.filter(|row| row.held.is_some()) else { return Ok(()) };
        let mut present = self.present_side(path)?;
        let base = present.digest().doing(|| format!("hash {path}"))?;
        if let Some(meta) = present.meta {
            row.base.below = Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links };
        }
        row.base.digest = base;
        if let Some(content) = present.stage(&self.store)? {
            self.store.keep_content(&content)?;
        }
        let id = row.id;
        if let Some(upper) = self.state.lock().uppers.get_mut(id) {
            upper.row = row;
        }
        self.settle(id, &Writer::default()).map(|_| ())
    }

    /// Settles what nobody writes any more, waiting for writers up to `wait`.
    pub fn flush_all(&self, wait: Option<Duration>) -> Reviewed<Vec<Outcome>> {
        self.settle_pending();
        let deadline = Instant::now() + wait.unwrap_or(Duration::ZERO);
        let mut state = self.state.lock();
        while state.handles.values().any(|handle| handle.is_unjudged()) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let open: std::collections::HashSet<RelPath> = state.writing().into_iter().map(|(path, _)| path).collect();
        let idle: Vec<(UpperId, RelPath)> = state
            .uppers
            .iter()
            .filter(|upper| upper.dirty && !upper.busy && !open.contains(&upper.row.names[0]))
            .map(|upper| (upper.row.id, upper.row.names[0].clone()))
            .collect();
        drop(state);
        let mut outcomes = Vec::new();
        for (id, path) in idle {
            // What cannot land (a full disk, a path that something is mounted on) is held: it blocks nobody else.
            let settled = self.settle(id, &Writer::default());
            let settled = settled.or_else(|_| self.settle_because(id, &Writer::default(), vec![Reason::Backup]));
            let (action, id) = match settled.map_err(|err| failed(&path, &err))? {
                Settled::Landed => (Done::Landed, None),
                Settled::Held(id) => (Done::Held, Some(id)),
                Settled::Unchanged | Settled::Postponed => continue,
            };
            outcomes.push(Outcome { id, ..Outcome::new(action, path) });
        }
        Ok(outcomes)
    }

    /// Who has a file open that was written and not judged.
    pub fn writers(&self) -> Vec<WritingNow> {
        let writing = self.state.lock().writing();
        writing.into_iter().map(|(path, pid)| WritingNow { path, pid }).collect()
    }

    /// Waits for releases that are under way, and for those that the kernel is about to send: of files whose writer
    /// has gone.
    pub fn settle_pending(&self) {
        let deadline = Instant::now() + WAIT_FOR_RELEASES;
        let mut state = self.state.lock();
        loop {
            let coming = state.writing().iter().any(|(_, pid)| *pid != 0 && process::name(*pid).is_none());
            if !coming && self.releasing.load(Ordering::SeqCst) == 0 {
                return;
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// How somebody else changed a path that fettlefs knows (SPEC §9). Times are only a hint; the hash decides.
    pub fn externally(&self, path: &RelPath) -> Result<Option<ExternalKind>> {
        let known = {
            let state = self.state.lock();
            let held =
                state.uppers.at(path).and_then(|id| state.uppers.get(id)).filter(|upper| upper.row.held.is_some());
            match (held.map(|upper| upper.row.base), state.seen.get(path)) {
                (Some(base), _) => match base.below {
                    Below::Entry { stamp, .. } => Some((stamp, base.digest)),
                    Below::Nothing => None,
                },
                (None, Some(seen)) => Some((seen.stamp, seen.digest)),
                (None, None) => None,
            }
        };
        let Some((stamp, digest)) = known else { return Ok(None) };
        let mut present = self.present_side(path)?;
        let Some(meta) = present.meta else { return Ok(Some(ExternalKind::Deleted)) };
        if same_content_stamp(&stamp, &meta.stamp()) {
            return Ok(None);
        }
        if digest.is_some() && present.digest().doing(|| format!("hash {path}"))? == digest {
            return Ok(None);
        }
        Ok(Some(if meta.inode == stamp.inode { ExternalKind::Modified } else { ExternalKind::Replaced }))
    }

    pub fn external_paths(&self) -> Reviewed<Vec<(RelPath, ExternalKind)>> {
        let mut paths: Vec<RelPath> = {
            let state = self.state.lock();
            let held = state.uppers.iter().filter(|upper| upper.row.held.is_some());
            state.seen.keys().cloned().chain(held.map(|upper| upper.row.names[0].clone())).collect()
        };
        paths.sort();
        paths.dedup();
        let mut external = Vec::new();
        for path in paths {
            if let Some(kind) = self.externally(&path).map_err(|err| failed(&path, &err))? {
                external.push((path, kind));
            }
        }
        Ok(external)
    }

    /// Holds a whiteout for a reason that is not its content: of a directory, or of a rename's source.
    pub(super) fn hold_structure(&self, id: UpperId, reason: Reason) -> Result<()> {
        let Some(mut row) = self.state.lock().uppers.get(id).map(|upper| upper.row.clone()) else { return Ok(()) };
        let path = row.names[0].clone();
        if !matches!(self.origin_below(&path)?, Origin::Lower(meta) if meta.is_dir()) {
            return self.settle_because(id, &Writer::default(), vec![reason]).map(|_| ());
        }
        let now = store::now_millis();
        let full = ChangeId::full(&path, ChangeKind::Structure, None, None);
        row.held = Some(Held {
            id: self.unused_id(&full, id)?,
            kind: ChangeKind::Structure,
            reasons: vec![reason],
            insertions: 0,
            deletions: 0,
            old_lines: 0,
            hunks: 0,
            new: None,
            created: now,
            renewed: now,
            writer: None,
        });
        self.store.save_upper(&row)?;
        if let Some(upper) = self.state.lock().uppers.get_mut(id) {
            *upper = Upper { dirty: false, ..Upper::written(row) };
        }
        Ok(())
    }
}

impl super::State {
    /// Paths written and not judged, and the process that opened each.
    fn writing(&self) -> Vec<(RelPath, u32)> {
        let unjudged = self.handles.values().filter(|handle| handle.is_unjudged());
        let mut writing: Vec<(RelPath, u32)> =
            unjudged.filter_map(|handle| Some((self.nodes.path(handle.node()).ok()?, handle.opener.pid))).collect();
        writing.sort();
        writing.dedup();
        writing
    }

    fn writer_of(&self, path: &RelPath) -> Option<u32> {
        self.writing().into_iter().find(|(writing, _)| writing == path).map(|(_, pid)| pid)
    }

    /// Neither written to nor renamed since it was taken for review.
    fn is_as_taken(&self, taken: &Taken) -> bool {
        let Taken { row, open, version, .. } = taken;
        let same_names = self.uppers.get(row.id).is_some_and(|upper| upper.row.names == row.names);
        same_names && self.is_still(row.id, &row.names[0], open.as_ref(), *version)
    }

    /// A reviewed change is lower's now.
    fn confirmed(&mut self, row: &UpperRow, meta: Option<&Meta>, digest: Option<crate::model::Digest>) {
        let path = &row.names[0];
        self.restored(path, meta);
        let state = digest.map_or(AnchorState::Nothing, |digest| AnchorState::Content { digest });
        self.anchors.insert(path.clone(), Known { anchor: state, fresh: false });
        self.windows.remove(path);
        if let (Some(meta), Some(seen)) = (meta, digest) {
            self.seen.insert(path.clone(), Seen { stamp: meta.stamp(), digest: Some(seen) });
        }
        if let Some(upper) = self.uppers.get_mut(row.id) {
            upper.saved = false;
            upper.dirty = false;
            upper.row.held = None;
            if let Some(meta) = meta {
                upper.row.base.below = Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: meta.links };
            }
        }
    }

    /// Lower has something new at a path by our own doing.
    fn restored(&mut self, path: &RelPath, meta: Option<&Meta>) {
        self.epoch += 1;
        self.windows.remove(path);
        match meta {
            Some(meta) => {
                let digest = None;
                self.seen.insert(path.clone(), Seen { stamp: meta.stamp(), digest });
            }
            None => {
                self.seen.remove(path);
            }
        }
        if let Some(node) = self.nodes.at(path) {
            self.nodes.set_lower(node, meta.map(Meta::key));
        }
    }
}

fn outcome(landable: &Landable) -> Outcome {
    let held = &landable.taken.held;
    let mut outcome = Outcome::new(landable.done, landable.taken.row.names[0].clone());
    outcome.id = Some(held.id.clone());
    outcome.kind = Some(held.kind);
    outcome.size = landable.new.kind.map(|_| landable.new.size);
    outcome.lines = landable.new.bytes.as_ref().map(|bytes| {
        let breaks = bytes.iter().filter(|byte| **byte == b'\n').count();
        (breaks + usize::from(bytes.last().is_some_and(|byte| *byte != b'\n'))) as u64
    });
    let ratio =
        if held.old_lines == 0 { 0.0 } else { (held.insertions + held.deletions) as f64 / held.old_lines as f64 };
    outcome.counts = Some(Counts { insertions: held.insertions, deletions: held.deletions, ratio });
    outcome
}

fn content(side: Side) -> Reviewed<Option<SideContent>> {
    let Some(kind) = side.kind.filter(|kind| matches!(kind, FileKind::Regular | FileKind::Symlink)) else {
        // A directory has no content that a diff could show.
        return Ok(None);
    };
    let kind_bits = if kind == FileKind::Symlink { libc::S_IFLNK } else { libc::S_IFREG };
    let bytes = match (side.bytes, side.file) {
        (Some(bytes), _) => bytes,
        (None, Some(file)) => crate::sys::file::read_all(&file)
            .map_err(|err| ErrorBody::new(ErrorCode::Io, format!("read content: {err}")))?,
        (None, None) => Vec::new(),
    };
    Ok(Some(SideContent { content: bytes, mode: side.mode | kind_bits }))
}

fn jiff_now() -> crate::model::Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    crate::model::Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

fn unknown(id: &ChangeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::UnknownId, format!("no held change {id}")).about(id.as_str())
}

fn failed(path: &RelPath, err: &Error) -> ErrorBody {
    ErrorBody { path: Some(path.clone()), ..ErrorBody::new(ErrorCode::Io, format!("{path}: {err}")) }
}

fn conflict(path: &str, why: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Conflict, format!("{path}: {why}"))
}

fn busy_judging(id: &ChangeId, path: &RelPath) -> ErrorBody {
    ErrorBody::new(ErrorCode::Busy, format!("{path} is being judged")).about(id.as_str())
}

fn busy_writing(id: &ChangeId, path: &RelPath, pid: u32) -> ErrorBody {
    let name = process::name(pid).unwrap_or_else(|| "unknown".into());
    let name = name.to_string_lossy();
    let message = format!("{path} is being written by {name} (pid {pid})");
    ErrorBody { path: Some(path.clone()), ..ErrorBody::new(ErrorCode::Busy, message).about(id.as_str()) }
}
