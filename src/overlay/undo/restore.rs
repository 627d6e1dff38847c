//! Putting contents and directories back as an operation found them: planned without the lock, and then part of a landing
//! ([`super::contents`]).
//!
//! What was edited since is merged if possible, as a confirm merges (SPEC §9). Otherwise the undo is refused or, if the
//! caller insists, the edit becomes a backup.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{UndoHow, check_is_file, removed, structure_outcome, undone_event};
use crate::model::{BackupKind, ChangeKind, RelPath, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::files::handles::{Access, Handle};
use crate::overlay::judge::flush::WAIT_FOR_RELEASES;
use crate::overlay::judge::land::{Replacement, content_effect};
use crate::overlay::judge::side::Side;
use crate::overlay::review::merge::edited_since;
use crate::overlay::review::{Reviewed, busy_judging, busy_open, failed};
use crate::overlay::{Error, Overlay, Result, State};
use crate::protocol::{Action as Done, ErrorBody, ErrorCode, Note, Outcome, refused_at};
use crate::store::{
    self, Anchor, AnchorState, Applied, Base, Below, DirLooks, Effect, Epilogue, EventDraft, Kept, Known, Landing,
    NewContent, NodeLooks, Operation, PathEffect, UpperId, UpperRow, Version,
};
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::process;

/// How many other paths a refusal names besides the first.
const OTHERS_NAMED: usize = 10;

/// The reverse of what an operation did to one file or symlink.
struct Reversal<'a> {
    path: &'a RelPath,
    wanted: Option<&'a Version>,
    left: Left<'a>,
    shared: bool,
    /// All that the operation did.
    effects: &'a [PathEffect],
}

/// What the operation left at a path.
enum Left<'a> {
    Content(Option<&'a Version>),
    /// One more name of the file at this path.
    Link(&'a RelPath),
}

/// One file or symlink on its way back. Its sides are open only while it is staged, except a merged side, which exists
/// only behind its descriptor.
struct Restoring<'a> {
    path: &'a RelPath,
    reversal: Reversal<'a>,
    present: Side,
    new: Side,
    base: Base,
    merged: bool,
    backup: Option<Kept>,
}

/// What a file is going to be, with its kept content if that is known beforehand.
pub(super) struct Coming {
    pub exists: bool,
    pub content: Option<Kept>,
    /// The size and time that it had.
    pub looks: Option<(u64, Timestamp)>,
}

/// All that is to be reversed of an operation's effects on contents.
#[derive(Default)]
pub(super) struct Plan<'a> {
    /// Parents first.
    dirs_made: Vec<(&'a RelPath, DirLooks)>,
    files: Vec<Restoring<'a>>,
    /// FIFOs, sockets and devices that come back.
    specials_made: Vec<(&'a RelPath, NodeLooks)>,
    specials_removed: Vec<(&'a RelPath, Meta)>,
    dirs_removed: Vec<&'a RelPath>,
}

impl Overlay {
    /// Plans the reversal, last effect first. What is `dropping` will be gone by then, and is not in the way.
    pub(super) fn plan<'a>(
        &self,
        effects: &'a [PathEffect],
        dropping: &HashSet<UpperId>,
        how: &UndoHow,
    ) -> Reviewed<Plan<'a>> {
        let mut plan = Plan::default();
        let mut refusals = Vec::new();
        for PathEffect { path, effect, .. } in effects.iter().rev() {
            let reversal = match effect {
                // These are held again, or dropped.
                Effect::Discarded { .. } | Effect::HeldAgain { .. } => continue,
                Effect::DirRemoved(looks) => {
                    let is_missing = self.is_missing(path, FileKind::Directory, dropping, how)?;
                    plan.dirs_made.extend(is_missing.then_some((path, *looks)));
                    continue;
                }
                Effect::SpecialRemoved(looks) => {
                    let is_missing = self.is_missing(path, looks.kind, dropping, how)?;
                    plan.specials_made.extend(is_missing.then_some((path, *looks)));
                    continue;
                }
                Effect::DirMade => {
                    plan.dirs_removed.extend(self.is_removable(path, &plan, dropping, how)?.then_some(path));
                    continue;
                }
                Effect::SpecialMade => {
                    plan.specials_removed.extend(self.special_to_remove(path, how)?.map(|meta| (path, meta)));
                    continue;
                }
                Effect::Content { before, after, shared } => {
                    let left = Left::Content(after.as_ref());
                    Reversal { path, wanted: before.as_ref(), left, shared: *shared, effects }
                }
                Effect::Linked { of } => Reversal { path, wanted: None, left: Left::Link(of), shared: false, effects },
                _ => return Err(refused_at(path, ErrorCode::Conflict, "it was done with more than can be undone")),
            };
            match self.reverse(reversal, dropping, how) {
                Ok(restoring) => plan.files.extend(restoring),
                Err(refusal) => refusals.push(refusal),
            }
        }
        plan.dirs_made.sort_by_key(|(dir, _)| *dir);
        match refusals.is_empty() {
            true => Ok(plan),
            false => Err(all_of(refusals)),
        }
    }

    /// True if an entry of this kind, without content, is missing and has to be made again.
    fn is_missing(&self, path: &RelPath, kind: FileKind, dropping: &HashSet<UpperId>, how: &UndoHow) -> Reviewed<bool> {
        match self.stat_below(path)? {
            None => {
                self.check_may_come_or_go(path, None, how)?;
                self.check_would_show(path, dropping)?;
                self.check_way(path).map(|()| true)
            }
            Some(meta) if meta.kind == kind => Ok(false),
            Some(_) => {
                let why = format!("something else has taken the {}'s place", kind.name());
                Err(refused_at(path, ErrorCode::Conflict, &why))
            }
        }
    }

    /// Checks whether an entry without content, which may be `there`, may be added or removed.
    fn check_may_come_or_go(&self, path: &RelPath, there: Option<&Meta>, how: &UndoHow) -> Reviewed<()> {
        self.check_may_land(path, &how.review.by)?;
        self.check_may_change_entry(path, there, &how.permits)
    }

    /// Returns what stands where a FIFO, socket or device was made, if it still is one.
    fn special_to_remove(&self, path: &RelPath, how: &UndoHow) -> Reviewed<Option<Meta>> {
        let meta = self.stat_below(path)?;
        let Some(special) = meta.filter(|meta| meta.kind.is_special()) else { return Ok(None) };
        self.check_may_come_or_go(path, Some(&special), how).map(|()| Some(special))
    }

    /// True if a directory that the operation made can go too. It stays if it has something else in it, or a file is
    /// being written there.
    fn is_removable(
        &self,
        path: &RelPath,
        plan: &Plan<'_>,
        dropping: &HashSet<UpperId>,
        how: &UndoHow,
    ) -> Reviewed<bool> {
        let Some(meta) = self.stat_below(path)? else { return Ok(false) };
        let is_needed = |state: &State| state.uppers.need_dir(path, dropping) || state.written_within(path).is_some();
        if !meta.is_dir() || is_needed(&self.state.lock()) {
            return Ok(false);
        }
        let entries = self.lower.list(path).map_err(|err| failed(path, &err.into()))?;
        let files = plan.files.iter().filter(|file| !file.new.exists()).map(|file| file.path);
        let specials = plan.specials_removed.iter().map(|(path, _)| *path);
        let going: HashSet<&RelPath> = files.chain(specials).chain(plan.dirs_removed.iter().copied()).collect();
        let is_empty = entries.iter().all(|entry| path.join(&entry.name).is_ok_and(|entry| going.contains(&entry)));
        if is_empty {
            self.check_may_come_or_go(path, Some(&meta), how)?;
        }
        Ok(is_empty)
    }

    /// Returns `None` if the path is as it was already.
    fn reverse<'a>(
        &self,
        reversal: Reversal<'a>,
        dropping: &HashSet<UpperId>,
        how: &UndoHow,
    ) -> Reviewed<Option<Restoring<'a>>> {
        let path = reversal.path;
        let fault = |err: Error| failed(path, &err);
        self.check_may_land(path, &how.review.by)?;
        let is_symlink = |wanted: &Version| wanted.content.is_some_and(|kept| kept.symlink);
        let coming = if reversal.wanted.is_some_and(is_symlink) { FileKind::Symlink } else { FileKind::Regular };
        self.check_not_open(path, coming)?;
        let mut present = self.present_side(path).map_err(fault)?;
        check_is_file(path, &present)?;
        if reversal.shared {
            self.check_may_rewrite(path, present.meta.as_ref(), &how.review.by)?;
        }
        let keeps_looks = has_looks_back(&reversal, &present).map_err(|err| failed(path, &err.into()))?;
        if self.is_as(reversal.wanted, &mut present).map_err(fault)? && keeps_looks {
            return Ok(None);
        }
        let stays = reversal.wanted.is_some_and(|wanted| !is_symlink(wanted));
        self.check_may_replace(path, &present, (stays, keeps_looks), &how.permits)?;
        let as_left = match &reversal.left {
            Left::Content(left) => self.is_as(*left, &mut present).map_err(fault)?,
            Left::Link(of) => self.is_link_of(&present, of).map_err(fault)?,
        };
        if reversal.wanted.is_some() {
            self.check_would_show(path, dropping)?;
            self.check_way(path)?;
        }
        let mut new = match reversal.wanted {
            Some(wanted) => self.bare_side_of(&reversal, wanted)?,
            None => Side::default(),
        };
        let mut merged = false;
        if !as_left && !how.review.dry_run {
            self.tell_external(path);
        }
        if !as_left && !how.force {
            (new, merged) = (self.merge_back(&reversal, new, &present)?, true);
        }
        // If the operation changed all names of a file together, they go back together.
        let links = if reversal.shared { 2 } else { 1 };
        let below = |meta: Meta| Below::Entry { stamp: meta.stamp(), mode: meta.mode, links };
        let base = Base::of(present.meta.map_or(Below::Nothing, below));
        let mut restoring = Restoring { path, reversal, present, new, base, merged, backup: None };
        restoring.close();
        Ok(Some(restoring))
    }

    /// Reopens what was closed since it was looked at, if it still is what it was, and makes what is to be there.
    fn dress(&self, file: &mut Restoring<'_>) -> Result<()> {
        let path = file.path;
        if file.present.is_file() {
            let conflict = || store::Error::Conflict { path: path.to_string() };
            file.present = file.present.reopened(self.present_side(path)?).ok_or_else(conflict)?;
        }
        if let Some(wanted) = file.reversal.wanted.filter(|_| !file.merged) {
            let gone = Error::Errno(libc::ESTALE);
            file.new = self.side_of(&file.reversal, wanted, &file.present)?.ok_or(gone)?;
        }
        Ok(())
    }

    fn is_as(&self, version: Option<&Version>, present: &mut Side) -> Result<bool> {
        let Some(version) = version else { return Ok(!present.exists()) };
        let Some(meta) = present.meta else { return Ok(false) };
        match version.content {
            Some(_) if !present.is_symlink() && present.size != version.size => Ok(false),
            Some(content) => Ok(present.kept().doing(|| "hash a file".to_owned())? == Some(content)),
            None => Ok(present.is_file() && (meta.size, meta.mtime) == (version.size, version.mtime)),
        }
    }

    /// True if nothing is lost with one more name of `of`: the content lives on under that or some other name. An undo
    /// that brought the name back made it a copy.
    fn is_link_of(&self, present: &Side, of: &RelPath) -> Result<bool> {
        match present.meta {
            Some(meta) if meta.links == 1 => Ok(present.same_as(&self.present_side(of)?)?),
            Some(_) | None => Ok(present.exists()),
        }
    }

    /// What is to be at a path again, before it gets its looks.
    fn bare_side_of(&self, reversal: &Reversal<'_>, wanted: &Version) -> Reviewed<Side> {
        let path = reversal.path;
        let gone = || refused_at(path, ErrorCode::UnknownBackup, "the content that it had is not kept any more");
        let content = self.content_of(reversal, wanted).map_err(|err| failed(path, &err))?.ok_or_else(gone)?;
        let bare = || -> Result<Side> {
            match wanted.content.is_some_and(|kept| kept.symlink) {
                true => self.symlink_side(&content, wanted),
                false => Ok(Side::of_file(content.try_clone()?)?),
            }
        };
        bare().map_err(|err| failed(path, &err))
    }

    /// What is to be at a path again, with the changes since to its mode and owner. `None` if its content is not kept any
    /// more.
    fn side_of(&self, reversal: &Reversal<'_>, wanted: &Version, present: &Side) -> Result<Option<Side>> {
        let Some(content) = self.content_of(reversal, wanted)? else { return Ok(None) };
        let looks = looks_back(wanted, &reversal.left, present.meta.as_ref());
        match wanted.content.is_some_and(|kept| kept.symlink) {
            true => self.symlink_side(&content, &looks),
            false => self.dressed_side(&content, present.file.as_deref(), &looks),
        }
        .map(Some)
    }

    /// Reads what is kept or, if the operation was a rename, what it put elsewhere.
    fn content_of(&self, reversal: &Reversal<'_>, wanted: &Version) -> Result<Option<Arc<File>>> {
        if let Some(kept) = wanted.content
            && let Some(file) = self.store.content_file(kept.digest)?
        {
            return Ok(Some(Arc::new(file)));
        }
        for PathEffect { path, effect, .. } in reversal.effects {
            if matches!(effect, Effect::Content { after: Some(after), .. } if after == wanted) {
                let mut there = self.present_side(path)?;
                if self.is_as(Some(wanted), &mut there)? && there.is_file() {
                    return Ok(there.file);
                }
            }
        }
        Ok(None)
    }

    pub(super) fn symlink_side(&self, target: &File, looks: &Version) -> Result<Side> {
        use std::os::unix::ffi::OsStrExt;
        let target = file::read_all(target, file::TARGET_BYTES_MAX).doing(|| "read a symlink's target".to_owned())?;
        let like = Meta::of(self.lower.root()).doing(|| "stat the project".to_owned())?;
        let now = file::now();
        let (kind, uid, gid) = (FileKind::Symlink, looks.uid, looks.gid);
        let meta = Meta { kind, mode: 0o777, uid, gid, atime: now, mtime: now, ..like };
        Ok(Side::of_symlink(std::ffi::OsStr::from_bytes(&target), meta))
    }

    /// A file of ours without a name, from which the landing copies.
    pub(super) fn dressed_side(&self, content: &File, like: Option<&File>, looks: &Version) -> Result<Side> {
        let upper = self.store.create_upper(looks.mode)?;
        let dress = || -> Result<Side> {
            file::copy_content(content, &upper.file)?;
            let meta = Meta { uid: looks.uid, gid: looks.gid, ..Meta::of(upper.file.as_fd())? };
            file::copy_owner(&meta, upper.file.as_fd())?;
            if let Some(like) = like {
                crate::sys::xattr::copy(like.as_fd(), upper.file.as_fd(), &[])?;
            }
            let mode = file::mode_beside_list(looks.mode, looks.group, like)?;
            let mode = if self.grants.suid { mode } else { mode & 0o1777 };
            file::set_mode(upper.file.as_fd(), mode)?;
            Ok(Side::of_file(upper.file.try_clone()?)?)
        };
        // Only the descriptor is needed: the name goes with `upper`.
        dress()
    }

    /// The file as edited since, less what the operation did to it.
    fn merge_back(&self, reversal: &Reversal<'_>, new: Side, present: &Side) -> Reviewed<Side> {
        let path = reversal.path;
        let refuse = |clashes| edited_since(path, clashes);
        let Left::Content(Some(left)) = &reversal.left else { return Err(refuse(None)) };
        self.merge_texts(path, left.content, present, &new, refuse)
    }

    /// Prepares all of a plan for a landing.
    pub(super) fn stage_plan(
        &self,
        plan: &mut Plan<'_>,
        (operation, how): (&Operation, &UndoHow),
        landing: &mut Landing<'_>,
        epilogue: &mut Epilogue,
    ) -> Result<()> {
        for (dir, looks) in &plan.dirs_made {
            landing.make_parents(&self.lower, dir)?;
            landing.make_dir(&self.lower, dir, *looks)?;
        }
        for file in &mut plan.files {
            let event = undone_event(self, file.path, operation, how);
            epilogue.events.push(self.stage_returning(file, event, landing, how)?);
            epilogue.anchors.extend(self.anchors_restored(file)?);
            file.close();
        }
        for (path, looks) in &plan.specials_made {
            landing.make_parents(&self.lower, path)?;
            let made = landing.place(&self.lower, path, None, &NewContent::Node { looks: *looks, like: None })?;
            let mut effects = landing.newly_made()?;
            effects.push(PathEffect::on(path, Effect::SpecialMade, Some(&made)));
            epilogue.events.push(undone_event(self, path, operation, how).doing(effects));
            epilogue.anchors.push(self.state.lock().past.made(path, None));
        }
        for (path, meta) in &plan.specials_removed {
            landing.remove(&self.lower, path, meta.stamp())?;
            // One with other names would come back as another file, so its removal cannot be undone.
            let removed = (meta.links == 1).then(|| PathEffect::new(path, removed(meta)));
            epilogue.events.push(undone_event(self, path, operation, how).doing(removed));
            epilogue.anchors.extend(self.state.lock().past.left(path));
        }
        for dir in &plan.dirs_removed {
            landing.remove_dir(&self.lower, dir)?;
            let effect = self.meta_below(dir)?.map(|meta| PathEffect::new(dir, removed(&meta)));
            epilogue.events.push(undone_event(self, dir, operation, how).doing(effect));
        }
        if let Some((dir, _)) = plan.dirs_made.first() {
            let rest = landing.newly_made()?;
            if !rest.is_empty() {
                epilogue.events.push(undone_event(self, dir, operation, how).doing(rest));
            }
        }
        Ok(())
    }

    fn stage_returning(
        &self,
        file: &mut Restoring<'_>,
        event: EventDraft,
        landing: &mut Landing<'_>,
        how: &UndoHow,
    ) -> Result<EventDraft> {
        match &file.present.meta {
            _ if file.new.exists() => landing.make_parents(&self.lower, file.path)?,
            Some(goes) => self.learn_other_name(file.path, goes)?,
            None => {}
        }
        self.dress(file)?;
        self.stage_restored(file, landing, how)?;
        let mut effects = landing.newly_made()?;
        effects.push(PathEffect::new(file.path, file.effect()?));
        Ok(event.doing(effects).with(|event| {
            event.sha256 = file.new.digest;
            event.bytes = file.new.exists().then_some(file.new.size);
        }))
    }

    /// Records that lower has these contents again, and that `tree` has seen them.
    pub(super) fn note_restored(&self, state: &mut State, plan: &Plan<'_>, applied: &Applied<'_>, tree: Option<u32>) {
        plan.files.iter().for_each(|file| self.note_file(state, file, applied, tree));
        plan.specials_removed.iter().for_each(|(path, was)| state.unnamed_at(path, was));
    }

    /// Rebases what is held over restored files, except what was held `again` over them, and tells the kernel.
    pub(super) fn tell_restored(&self, plan: &Plan<'_>, again: &[UpperRow]) {
        let again: HashSet<&RelPath> = again.iter().flat_map(|row| &row.names).collect();
        for file in &plan.files {
            if !again.contains(file.path) {
                self.rebase_restored(file.path);
            }
            self.tell_content_changed(file.path);
        }
        plan.without_content().for_each(|path| self.tell_changed(path));
    }

    fn stage_restored(&self, file: &mut Restoring<'_>, landing: &mut Landing<'_>, how: &UndoHow) -> Result<()> {
        let Restoring { path, present, new, base, .. } = &*file;
        let by = &how.review.by;
        let change = Replacement { path, base, new, raises: None, present, kind: BackupKind::RolledBack, by };
        file.backup = self.stage_replacement(&change, landing)?;
        file.new.digest().doing(|| format!("hash {}", file.path))?;
        self.keep_to_compare(&file.new)
    }

    /// A restored path counts as reviewed: from here on it is judged against what it is now.
    fn anchors_restored(&self, file: &mut Restoring<'_>) -> Result<Vec<Anchor>> {
        let content = file.new.kept().doing(|| format!("hash {}", file.path))?;
        let state = content.map_or(AnchorState::Nothing, AnchorState::Content);
        let moved = file.backup.map(|kept| self.state.lock().past.moved_to(file.path, kept)).unwrap_or_default();
        let elsewhere = moved.into_iter().filter(|anchor| anchor.path != *file.path);
        Ok(elsewhere.chain([Known::of(state).as_anchor(file.path)]).collect())
    }

    fn note_file(&self, state: &mut State, file: &Restoring<'_>, applied: &Applied<'_>, tree: Option<u32>) {
        let meta = applied.meta_of(file.path);
        state.restored(file.path, (file.present.meta.as_ref(), meta.as_ref()), file.new.known());
        state.saw(file.path, meta.map(|meta| meta.stamp()), tree);
        match (meta, file.present.meta) {
            (None, Some(was)) if state.is_taken_from_lower(file.path) => {
                state.note_taken(file.path);
                state.unnamed_at(file.path, &was);
            }
            (Some(_) | None, _) => self.read_on(state, file.path),
        }
    }

    /// Refuses while a handle that is open for writing would go on showing its own content, whatever is `coming`. A program
    /// that has just closed the file is no reason: the release, which comes after its `close` has returned, is waited for.
    pub(super) fn check_not_open(&self, path: &RelPath, coming: FileKind) -> Reviewed<()> {
        // The writer may have opened the file by another name, and the kernel may know that one alone.
        self.learn_name_if_any(path).map_err(|err| failed(path, &err))?;
        self.check_no_writer(path, |state| state.open_unheld(path, coming))
    }

    /// The same for the pid that `writer` returns.
    pub(super) fn check_no_writer(&self, path: &RelPath, writer: impl Fn(&State) -> Option<u32>) -> Reviewed<()> {
        let mut state = self.state.lock();
        if let (Some(pid), Some(node)) = (writer(&state), state.nodes.at(path))
            && let Ok(false) = MutexGuard::unlocked(&mut state, || process::has_open(pid, node.0))
        {
            self.wait_while(&mut state, WAIT_FOR_RELEASES, |state| writer(state).is_some());
        }
        let is_judged = || state.uppers.upper_at(path).is_some_and(|upper| upper.busy);
        match writer(&state) {
            None => Ok(()),
            // Nobody has it open, as far as can be seen.
            Some(0) if is_judged() => Err(busy_judging(path)),
            Some(pid) => Err(busy_open(path, pid)),
        }
    }
}

/// Mode and owner as they were, except where they were changed since.
fn looks_back(wanted: &Version, left: &Left<'_>, present: Option<&Meta>) -> Version {
    let (Left::Content(Some(left)), Some(present)) = (left, present) else { return *wanted };
    let back = |wanted: u32, left: u32, now: u32| if now == left { wanted } else { now };
    // The mode of a symlink says nothing about that of a file.
    let has_mode = present.is_file() && !left.content.is_some_and(|kept| kept.symlink);
    let as_left = !has_mode || present.mode == left.mode;
    Version {
        mode: if as_left { wanted.mode } else { present.mode },
        uid: back(wanted.uid, left.uid, present.uid),
        gid: back(wanted.gid, left.gid, present.gid),
        group: wanted.group.filter(|_| as_left),
        ..*wanted
    }
}

/// True if mode and owner are already what they would be put back to.
fn has_looks_back(reversal: &Reversal<'_>, present: &Side) -> std::io::Result<bool> {
    let (Some(wanted), Some(meta)) = (reversal.wanted, present.meta.filter(Meta::is_file)) else { return Ok(true) };
    let back = looks_back(wanted, &reversal.left, Some(&meta));
    let mode = file::mode_beside_list(back.mode, back.group, present.file.as_deref())?;
    // Set-uid and set-gid do not come back where they are not granted.
    Ok((mode & 0o1777, back.uid, back.gid) == (meta.mode & 0o1777, meta.uid, meta.gid))
}

/// The first refusal, which names the other paths, too.
fn all_of(mut refusals: Vec<ErrorBody>) -> ErrorBody {
    let mut first = refusals.remove(0);
    let others: Vec<String> = refusals.into_iter().filter_map(|other| Some(other.path?.to_string())).collect();
    let named = &others[..others.len().min(OTHERS_NAMED)];
    if !named.is_empty() {
        let more = others.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        first.message = format!("{}; nor can these be undone: {}{more}", first.message, named.join(", "));
    }
    first
}

impl Restoring<'_> {
    fn close(&mut self) {
        self.present = std::mem::take(&mut self.present).closed();
        if !self.merged {
            self.new = std::mem::take(&mut self.new).closed();
        }
    }

    fn effect(&mut self) -> Result<Effect> {
        let content = self.new.kept().doing(|| format!("hash {}", self.path))?;
        Ok(content_effect(&self.base, (&self.present, self.backup), self.new.version(content)))
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(Done::Undone, self.path.clone());
        outcome.kind = Some(match (self.present.exists(), self.new.exists()) {
            (true, true) if self.present.kind != self.new.kind => ChangeKind::Type,
            (true, true) => ChangeKind::Modify,
            (false, _) => ChangeKind::Create,
            (true, false) => ChangeKind::Delete,
        });
        outcome.size = self.new.exists().then_some(self.new.size);
        outcome.lines = self.new.lines();
        outcome.note = self.merged.then_some(Note::Merged);
        outcome
    }
}

impl Plan<'_> {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.without_content().next().is_none()
    }

    /// Where files change, come or go.
    pub fn files(&self) -> impl Iterator<Item = &RelPath> {
        self.files.iter().map(|file| file.path)
    }

    /// Directories, FIFOs, sockets and devices that come and go.
    fn without_content(&self) -> impl Iterator<Item = &RelPath> {
        let dirs = self.dirs_made.iter().map(|(dir, _)| *dir).chain(self.dirs_removed.iter().copied());
        let made = self.specials_made.iter().map(|(path, _)| *path);
        dirs.chain(made).chain(self.specials_removed.iter().map(|(path, _)| *path))
    }

    /// True if a file of the plan is open for writing, and so must not be replaced underneath its writer, or if a file is
    /// being written in a directory that goes.
    pub fn is_busy(&self, state: &State) -> bool {
        let coming = |file: &Restoring<'_>| file.new.kind.unwrap_or(FileKind::Regular);
        let is_written = |file: &Restoring<'_>| state.open_unheld(file.path, coming(file)).is_some();
        self.files.iter().any(is_written) || self.dirs_removed.iter().any(|dir| state.written_within(dir).is_some())
    }

    /// What is going to be at a path, if the plan changes it.
    pub fn coming(&self, path: &RelPath) -> Option<Coming> {
        let mut removed = self.dirs_removed.iter().copied().chain(self.specials_removed.iter().map(|(path, _)| *path));
        if removed.any(|removed| removed == path) {
            return Some(Coming { exists: false, content: None, looks: None });
        }
        let file = self.files.iter().find(|file| file.path == path)?;
        let wanted = file.reversal.wanted.filter(|_| !file.merged);
        let looks = wanted.map(|wanted| (wanted.size, wanted.mtime));
        Some(Coming { exists: file.new.exists(), content: wanted.and_then(|wanted| wanted.content), looks })
    }

    /// Files first, as [`Self::note_backups`] counts on.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.files.iter().map(Restoring::outcome).chain(self.without_content().map(structure_outcome)).collect()
    }

    /// How many backups the landing keeps of what was there.
    pub fn backups(&self) -> usize {
        self.files.iter().filter(|file| file.backup.is_some()).count()
    }

    /// Completes the outcomes, once the plan has landed, with the backups of what was there.
    pub fn note_backups(&self, outcomes: &mut [Outcome], names: &[String]) {
        let kept = self.files.iter().zip(outcomes).filter(|(file, _)| file.backup.is_some());
        for ((_, outcome), name) in kept.zip(names) {
            outcome.backup = Some(name.clone());
        }
    }
}

impl State {
    /// The pid, or 0, of a program that may go on writing over what is put back at a path: an unheld file is open after a
    /// write, or a held one has a write that is not judged yet. Nobody can go on writing to a symlink that is `coming`.
    pub(in crate::overlay) fn open_unheld(&self, path: &RelPath, coming: FileKind) -> Option<u32> {
        let node = self.nodes.file_at(path);
        // An entry has the name that it was written by, and is open by all names of its file.
        let opened_as = || self.nodes.open_on(node?)?.upper();
        let upper = self.uppers.at(path).or_else(opened_as).and_then(|id| self.uppers.get(id));
        if upper.is_some_and(|upper| upper.row.held.is_some()) {
            return self.writer_of(path);
        }
        let mut opened = node.into_iter().flat_map(|node| self.handles_on(node));
        let is_ousted = |handle: &Handle| coming == FileKind::Symlink && handle.access == Access::Write;
        match upper {
            Some(_) => Some(opened.next().map_or(0, |handle| handle.opener.pid)),
            None => opened.find(|handle| is_ousted(handle) || handle.has_landed()).map(|handle| handle.opener.pid),
        }
    }
}
