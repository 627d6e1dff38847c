//! Names that come and go: directories, nodes, symlinks, links, deletions.
//!
//! Structure lands at once; the deletion of content is judged as a change of all lines to none (SPEC §4.4, §4.8).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::compare::leaves_project;
use super::error::Context;
use super::goes::{Doing, Part};
use super::lookup::{Origin, is_reserved};
use super::nodes::NodeId;
use super::relocate::Leaves;
use super::rename::End;
use super::settle::{Claim, Settled};
use super::structure::{Creation, Made};
use super::uppers::Upper;
use super::{Caller, Entry, Error, Known, Overlay, Result, State};
use crate::model::{OperationId, Reason, RelPath, Stamp};
use crate::policy::rules::Action;
use crate::protocol::EventName;
use crate::store::{
    Anchor, AnchorState, Base, Below, DirLooks, Effect, Epilogue, EventDraft, Fate, Held, NewUpper, NodeLooks,
    PathEffect, UpperId, UpperRow, What, Writer,
};

use crate::sys::file::{FileKind, Meta};
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags};

/// How a change goes on without a name that is about to go.
enum Parting {
    /// It has no other.
    Never,
    /// Lower has it not by that name, which was to be made.
    Unmade,
    /// Under another name that lower has for its inode.
    Other(RelPath),
    /// Lower's file takes along what was to be made as its further name.
    Moves(RelPath),
    /// Lower's file stays, for the going of its name is judged by itself; under its other names the change is new.
    Leaves,
}

/// What takes a file system longer to free than to name: kept open while its last name goes.
const LARGE_BYTES: u64 = 1 << 20;

impl Overlay {
    /// The path of a name that is to be made.
    pub(super) fn new_path(&self, parent: NodeId, name: &OsStr) -> Result<RelPath> {
        let path = self.state.lock().nodes.child_path(parent, name)?;
        if is_reserved(&path) {
            return Err(Error::Errno(libc::EPERM));
        }
        self.look_at_dir(&path.parent().unwrap_or_default())?;
        Ok(path)
    }

    pub fn mkdir(&self, parent: NodeId, name: &OsStr, mode: u32, caller: &Caller) -> Result<Entry> {
        let made = Made { kind: FileKind::Directory, mode, device: 0 };
        self.make_structure(parent, name, made, caller, |place, mode| place.make_dir(mode))
    }

    /// A FIFO, socket, device or empty regular file. The kernel does the talking through the first three.
    pub fn mknod(&self, parent: NodeId, name: &OsStr, mode: u32, device: u64, caller: &Caller) -> Result<Entry> {
        let kind = FileKind::from_mode(mode);
        if kind == FileKind::Regular {
            let _acting = self.acting([parent]);
            let flags = super::OpenFlags::from_raw(libc::O_WRONLY | libc::O_EXCL);
            let (entry, opened) = self.create_here(parent, name, mode, flags, caller)?;
            self.release(opened.handle)?;
            return Ok(entry);
        }
        let made = Made { kind, mode, device };
        self.make_structure(parent, name, made, caller, |place, mode| place.make_node(kind, mode, device))
    }

    /// In lower at once, or in upper where that cannot be.
    fn make_structure(
        &self,
        parent: NodeId,
        name: &OsStr,
        made: Made,
        caller: &Caller,
        make: impl FnOnce(&Place, Mode) -> std::io::Result<()>,
    ) -> Result<Entry> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.new_path(parent, name)?;
        match self.creation(&path, made.kind, caller)? {
            Creation::AtOnce => return self.make(parent, name, made.kind, made.mode, caller, make),
            Creation::Anew(id) => self.show_dir_again(id, &path, made.mode, caller)?,
            Creation::Held(why) => self.make_held(&path, made, why, caller)?,
        }
        self.look_up(parent, name)
    }

    fn make(
        &self,
        parent: NodeId,
        name: &OsStr,
        kind: FileKind,
        mode: u32,
        caller: &Caller,
        make: impl FnOnce(&Place, Mode) -> std::io::Result<()>,
    ) -> Result<Entry> {
        let path = self.new_path(parent, name)?;
        let heritage = self.heritage(&path, kind, mode, caller)?;
        let place = self.lower.place(&path)?;
        self.store.record_waiting()?;
        make(&place, Mode::from_raw_mode(heritage.mode))?;
        let given = heritage.give_below(&place, kind).doing(|| format!("give {path} an owner"));
        let effect = || self.made(&path, kind).map(Some);
        let what = format!("[{}]", kind.name());
        let noted = given.and_then(|()| self.note_created(&path, kind, None, what, effect, caller));
        noted.inspect_err(|_| unmake(&place, kind, &path))?;
        self.look_up(parent, name)
    }

    /// What making something that is not judged does.
    fn made(&self, path: &RelPath, kind: FileKind) -> Result<Effect> {
        Ok(match kind {
            FileKind::Directory => Effect::DirMade,
            FileKind::Symlink => {
                let mut link = self.present_side(path)?;
                let content = link.kept().doing(|| format!("read {path}"))?;
                Effect::Content { before: None, after: link.version(content), shared: false }
            }
            FileKind::Regular | FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Effect::SpecialMade
            }
        })
    }

    /// What is at the path came in this session, or is older and has a new name: the one it had is `from`.
    fn note_created(
        &self,
        path: &RelPath,
        kind: FileKind,
        from: Option<RelPath>,
        what: String,
        effect: impl FnOnce() -> Result<Option<Effect>>,
        caller: &Caller,
    ) -> Result<()> {
        let passes = self.action(path, kind) == Action::Pass;
        {
            let mut state = self.state.lock();
            state.epoch += 1;
            if passes {
                return Ok(());
            }
        }
        let (effect, by) = (effect()?, self.doer(caller));
        let part = match kind {
            FileKind::Directory | FileKind::Symlink => Some(self.part_of(path, &by, Doing::Make)),
            _ => {
                self.go_ends(by.pid);
                None
            }
        };
        let event = self.structure_event(path, what, &by).doing(effect.map(|effect| PathEffect::new(path, effect)));
        let event = event.with(|event| event.operation = part.as_ref().and_then(Part::operation_told));
        let mut state = self.state.lock();
        let mut known = state.anchors.get(path).cloned().unwrap_or_else(Known::nothing);
        (known.fresh, known.from, known.went) = (known.anchor == AnchorState::Nothing, from, None);
        let became = self.record_done(event, vec![known.as_anchor(path)])?;
        state.anchors.insert(path.clone(), known);
        drop(state);
        if let Some(part) = part {
            self.recorded(&part, became);
        }
        Ok(())
    }

    /// Structure lands at once and is recorded (SPEC §4.8), in words and for who undoes it, with what it means for
    /// anchors.
    pub(super) fn record_structure(
        &self,
        path: &RelPath,
        what: String,
        effects: impl IntoIterator<Item = Effect>,
        anchors: Vec<Anchor>,
        by: &Writer,
    ) -> Result<()> {
        let effects = effects.into_iter().map(|effect| PathEffect::new(path, effect));
        self.record_done(self.structure_event(path, what, by).doing(effects), anchors).map(|_| ())
    }

    /// Lower has it already, which a full disk does not undo.
    fn record_done(&self, event: EventDraft, anchors: Vec<Anchor>) -> Result<Option<OperationId>> {
        let epilogue = Epilogue { anchors, events: vec![event], ..Epilogue::default() };
        Ok(self.store.vitally_for_programs(|| self.store.record_operation(&epilogue))?)
    }

    pub(super) fn structure_event(&self, path: &RelPath, what: String, by: &Writer) -> EventDraft {
        self.event(EventName::WriteLanded, path).with(|event| event.message = Some(what)).by(by)
    }

    pub fn symlink(&self, parent: NodeId, name: &OsStr, target: &OsStr, caller: &Caller) -> Result<Entry> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.new_path(parent, name)?;
        let action = self.action_by(&path, FileKind::Symlink, &self.writer(caller));
        if matches!(action, Action::Deny | Action::Freeze) {
            return Err(self.denied(&path, &self.doer(caller)));
        }
        let used = self.is_used(&path)?;
        let gated = matches!(action, Action::Hold(_)) || self.is_in_held_dir(&path);
        let judged = match action {
            // Where a deletion waits for review lower has the name.
            Action::Pass => self.state.lock().uppers.at(&path).is_some(),
            _ => gated || leaves_project(&path, target.as_bytes()) || used,
        };
        if !judged {
            return self.make(parent, name, FileKind::Symlink, 0o777, caller, |place, _| place.make_symlink(target));
        }
        self.symlink_judged(&path, target, caller)?;
        self.look_up(parent, name)
    }

    /// Whether something used to be at a free path in this session: what is made there is a modification of that (SPEC
    /// §4.3). `EEXIST` where something is.
    fn is_used(&self, path: &RelPath) -> Result<bool> {
        match self.origin(path)? {
            Origin::Lower(_) | Origin::Upper(..) => Err(Error::Errno(libc::EEXIST)),
            Origin::Hidden(_) => Ok(true),
            Origin::Nothing if self.had_dir(path)? => Ok(true),
            Origin::Nothing => Ok(self.anchor_of(path)?.is_some_and(|anchor| anchor != AnchorState::Nothing)),
        }
    }

    fn symlink_judged(&self, path: &RelPath, target: &OsStr, caller: &Caller) -> Result<()> {
        self.check_may_change(0)?;
        let new = self.store.create_upper_symlink(target)?;
        let heritage = self.heritage(path, FileKind::Symlink, 0o777, caller)?;
        let place = self.store.upper_place(new.id())?;
        heritage.give_below(&place, FileKind::Symlink).doing(|| format!("give {path} an owner"))?;
        let id = self.add_upper(new, path, What::Symlink)?;
        self.settle_what_is_shown(id, caller)
    }

    /// A second name for a file. A change that is held or being written takes the name along (SPEC §4.7).
    pub fn link(&self, node: NodeId, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<Entry> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent, self.parent_of(node)]);
        let path = self.new_path(parent, name)?;
        let source = self.path_of(node)?;
        let kind = self.origin(&source)?.kind().unwrap_or(FileKind::Regular);
        let waiting = match self.creation(&path, kind, caller)? {
            Creation::Held(why) => Some(why),
            Creation::AtOnce | Creation::Anew(_) => None,
        };
        // In the place of a deletion that waits for review it is judged with that.
        let replaces_deleted = waiting.as_ref().is_some_and(|why| why.over.is_some());
        // Names of one change in different directories that wait would go with either.
        let in_held_dir = self.is_in_held_dir(&path) && source.parent() != path.parent();
        let used = replaces_deleted || in_held_dir || self.is_used_by_another(&source, &path, kind)?;
        let by = self.writer(caller);
        let action = |path| self.action_by(path, kind, &by);
        let (old, new) = (action(&source), action(&path));
        if old == Action::Freeze || matches!(new, Action::Deny | Action::Freeze) {
            return Err(self.denied(if old == Action::Freeze { &source } else { &path }, &self.doer(caller)));
        }
        // What is written through a name that passes would change the judged one unseen.
        if (old == Action::Pass) != (new == Action::Pass) {
            return Err(Error::Errno(libc::EXDEV));
        }
        let origin = self.origin(&source)?;
        if kind.is_special() {
            // What has no content is not judged, and a copy of it would be another pipe or socket.
            return match waiting.is_some() || matches!(origin, Origin::Upper(..)) {
                true => Err(Error::Errno(libc::EXDEV)),
                false => self.link_below(source, &path, (parent, name), caller),
            };
        }
        let judged = used || matches!(new, Action::Hold(_) | Action::GitConfig);
        let at = (parent, name);
        if let Origin::Upper(id, _) = origin {
            match self.settle(id, &self.doer(caller))? {
                // A change has one base, and this name another, or a rule that the others have not: it is a change of its
                // own, with the same content.
                Settled::Held(_) | Settled::Postponed if judged => {
                    return self.link_as_copy(&source, &path, at, caller, || self.copy_of_upper(id));
                }
                Settled::Held(_) | Settled::Postponed => {
                    return self.link_upper(id, parent, name, &path);
                }
                Settled::Landed | Settled::Unchanged => {}
            }
        }
        let leads_out = new != Action::Pass && self.base_leads_out_there(&source, &path)?;
        if (judged && new != Action::Pass) || leads_out {
            // As what it brings to the path: a copy of what it names.
            return self.link_as_copy(&source, &path, at, caller, || self.copy_to_upper(&source));
        }
        self.link_below(source, &path, at, caller)
    }

    /// In lower at once.
    fn link_below(
        &self,
        source: RelPath,
        path: &RelPath,
        (parent, name): (NodeId, &OsStr),
        caller: &Caller,
    ) -> Result<Entry> {
        let place = self.lower.place(path)?;
        self.store.record_waiting()?;
        self.lower.place(&source)?.link(&place)?;
        let linked = self.lower.stat(path).doing(|| format!("stat {path}"))?;
        let from = {
            let mut state = self.state.lock();
            linked.iter().for_each(|meta| state.linked(&source, meta));
            let known = state.anchors.get(&source);
            known.and_then(|known| known.from.clone()).or(Some(source.clone())).filter(|_| !state.is_fresh(&source))
        };
        let what = format!("[link to {source}]");
        let effect = || Ok(Some(Effect::Linked { of: source }));
        let noted = self.note_created(path, FileKind::Regular, from, what, effect, caller);
        noted.inspect_err(|_| unmake(&place, FileKind::Regular, path))?;
        self.look_up(parent, name)
    }

    fn link_upper(&self, id: UpperId, parent: NodeId, name: &OsStr, path: &RelPath) -> Result<Entry> {
        {
            // Nobody decides about it meanwhile: one that has gone must not come back with another name.
            let (_, _claimed) = self.claim(id)?;
            let mut state = self.state.lock();
            let mut row = state.uppers.get(id).map(|upper| upper.row.clone()).ok_or(Error::Errno(libc::ESTALE))?;
            row.names.push(path.clone());
            // First where it may fail: a name that was refused is nowhere.
            self.store.save_upper(&row)?;
            let first = state.nodes.file_at(&row.names[0]);
            state.uppers.set_row(row);
            if let Some(node) = first {
                state.nodes.name(node, parent, name);
            }
        }
        self.name_changed(path)?;
        self.look_up(parent, name)
    }

    /// In the place of a link: a copy of what it names as a new upper entry at `path`, judged at once.
    fn link_as_copy<'a>(
        &'a self,
        source: &RelPath,
        path: &RelPath,
        (parent, name): (NodeId, &OsStr),
        caller: &Caller,
        copy: impl FnOnce() -> Result<(NewUpper<'a>, What)>,
    ) -> Result<Entry> {
        if is_linked_by_clone(source, path) {
            return Err(Error::Errno(libc::EXDEV));
        }
        let (new, what) = copy()?;
        let id = self.add_upper(new, path, what)?;
        self.settle_what_is_shown(id, caller)?;
        self.look_up(parent, name)
    }

    /// The same content once more.
    pub(super) fn copy_of_upper(&self, id: UpperId) -> Result<(NewUpper<'_>, What)> {
        use std::os::fd::AsFd;
        let meta = self.store.upper_meta(id)?;
        self.check_may_change(meta.blocks.saturating_mul(512))?;
        if meta.kind == FileKind::Symlink {
            let target = self.store.upper_place(id)?.read_symlink()?;
            return Ok((self.store.copy_upper_symlink(&target, &meta)?, What::Symlink));
        }
        let (file, upper) = (self.store.open_upper(id)?, self.store.create_upper(meta.mode)?);
        crate::sys::file::copy_content(&file, &upper.file)?;
        crate::sys::file::copy_metadata(file.as_fd(), &meta, upper.file.as_fd())?;
        Ok((upper.new, What::File))
    }

    /// Upper content that is a copy of a file or symlink of lower.
    pub(super) fn copy_to_upper(&self, source: &RelPath) -> Result<(NewUpper<'_>, What)> {
        use std::os::fd::AsFd;
        let doing = || format!("copy {source}");
        let meta = self.lower.stat(source).doing(doing)?.ok_or(Error::Errno(libc::ENOENT))?;
        self.check_may_change(meta.blocks.saturating_mul(512))?;
        if meta.kind == FileKind::Symlink {
            let target = self.lower.place(source)?.read_symlink().doing(doing)?;
            return Ok((self.store.copy_upper_symlink(&target, &meta)?, What::Symlink));
        }
        let file = super::open_lower(&self.lower, source).doing(doing)?;
        let upper = self.store.create_upper(meta.mode)?;
        crate::sys::file::copy_content(&file, &upper.file).doing(doing)?;
        // As with a copy-up: privileges do not travel with content.
        let mode = if self.grants.suid { meta.mode } else { meta.mode & 0o1777 };
        crate::sys::file::copy_metadata(file.as_fd(), &Meta { mode, ..meta }, upper.file.as_fd()).doing(doing)?;
        Ok((upper.new, What::File))
    }

    pub fn unlink(&self, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.state.lock().nodes.child_path(parent, name)?;
        let origin = self.origin_by_name(&path)?;
        let was = match &origin {
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
            Origin::Lower(meta) | Origin::Upper(_, meta) if meta.is_dir() => return Err(Error::Errno(libc::EISDIR)),
            Origin::Lower(meta) | Origin::Upper(_, meta) => *meta,
        };
        let kind = was.kind;
        match (self.action_by(&path, kind, &self.writer(caller)), origin) {
            (Action::Deny | Action::Freeze, _) => return Err(self.denied(&path, &self.doer(caller))),
            (Action::Pass, Origin::Lower(_)) => return self.unlink_below(&path, (parent, name), &was),
            (_, Origin::Lower(meta)) if !matches!(kind, FileKind::Regular | FileKind::Symlink) => {
                debug_assert!(!meta.is_dir());
                return self.unlink_special(&path, (parent, name), &was, caller);
            }
            (_, Origin::Lower(meta)) => self.unlink_judged(&path, &meta, caller)?,
            (_, Origin::Upper(id, meta)) if meta.kind.is_special() => self.end_structure(&path, id, caller)?,
            (_, Origin::Upper(id, _)) => self.unlink_upper(&path, id, caller)?,
            (_, Origin::Nothing | Origin::Hidden(_)) => return Err(Error::Errno(libc::ENOENT)),
        }
        self.state.lock().unnamed(parent, name, &was);
        self.name_changed(&path)
    }

    /// In lower and in the nodes at once: who looks sees the name before it or no name after it.
    fn unlink_below(&self, path: &RelPath, (parent, name): (NodeId, &OsStr), was: &Meta) -> Result<()> {
        let place = self.lower.place(path)?;
        let is_large = was.is_file() && was.size >= LARGE_BYTES;
        // Freed when nobody has it any more, which then is after the lock.
        let _kept = is_large.then(|| self.lower.open_at(path, OFlags::PATH)).transpose()?;
        self.store.record_waiting()?;
        let mut state = self.state.lock();
        place.unlink()?;
        state.unnamed(parent, name, was);
        Ok(())
    }

    /// A FIFO, socket or device goes at once: it has no content that anybody would review.
    fn unlink_special(&self, path: &RelPath, entry: (NodeId, &OsStr), was: &Meta, caller: &Caller) -> Result<()> {
        self.unlink_below(path, entry, was)?;
        let gone = self.state.lock().left(path).into_iter().collect();
        // One with other names would come back as another.
        let removed = (was.links == 1).then(|| Effect::SpecialRemoved(NodeLooks::of(was)));
        self.record_structure(path, format!("[{} removed]", was.kind.name()), removed, gone, &self.doer(caller))
    }

    /// Hides a path of lower, judges its deletion, and shows it again if that fails.
    fn unlink_judged(&self, path: &RelPath, meta: &Meta, caller: &Caller) -> Result<()> {
        self.learn_other_name(path, meta)?;
        self.unlink_hidden(self.whiteout(path, meta), caller)
    }

    fn unlink_hidden(&self, whiteout: Upper, caller: &Caller) -> Result<()> {
        let (by, id) = (self.doer(caller), whiteout.row.id);
        self.hide_by(Upper { saved: false, ..whiteout })?;
        match self.settle_or_deny(id, &by, Vec::new()) {
            Ok(_) => Ok(()),
            Err(err) => {
                self.state.lock().uppers.remove(id);
                Err(err)
            }
        }
    }

    /// A whiteout that nobody has judged yet; the database learns of it when it is held.
    pub(super) fn hide(&self, path: &RelPath, meta: &Meta) -> Result<UpperId> {
        let whiteout = self.whiteout(path, meta);
        let id = whiteout.row.id;
        self.hide_by(whiteout).map(|()| id)
    }

    fn hide_by(&self, whiteout: Upper) -> Result<()> {
        let mut state = self.state.lock();
        if state.uppers.at(&whiteout.row.names[0]).is_some() {
            return Err(Error::Errno(libc::ESTALE));
        }
        state.uppers.insert(whiteout);
        Ok(())
    }

    /// What hides a path of lower, once it is put there.
    pub(super) fn whiteout(&self, path: &RelPath, meta: &Meta) -> Upper {
        let below = Below::Entry { stamp: meta.stamp(), mode: meta.mode, links: 1 };
        let row = deleted(self.store.reserve_upper(), path, Base::of(below));
        Upper { saved: false, ..Upper::written(row) }
    }

    fn unlink_upper(&self, path: &RelPath, id: UpperId, caller: &Caller) -> Result<()> {
        let (row, claimed) = match self.claim(id) {
            Err(err) if err.code() == libc::ESTALE => return self.unlink_again(path, caller),
            other => other?,
        };
        if !row.names.contains(path) {
            // A name below of an inode that was changed through another: only the name goes.
            return self.unlink_again(path, caller);
        }
        match self.parting(path, &row)? {
            Parting::Never => {}
            Parting::Leaves => return self.unlink_base(path, &row, claimed, caller),
            parting @ (Parting::Unmade | Parting::Other(_) | Parting::Moves(_)) => {
                self.part(path, id, parting)?;
                let (whiteout, base) = (self.store.reserve_upper(), self.base_of_name(path, &row)?);
                return match self.lower.exists(path).doing(|| format!("stat {path}"))? {
                    true => self.unlink_hidden(Upper::written(deleted(whiteout, path, base)), caller),
                    false => Ok(()),
                };
            }
        }
        if let Some(dir) = self.lower.stat(path).doing(|| format!("stat {path}"))?.filter(Meta::is_dir) {
            return self.hide_dir_again(path, &dir, row, caller);
        }
        let existed = row.base.below != Below::Nothing || row.base.content.is_some();
        if !existed {
            return match &row.held {
                Some(held) => self.drop_held(path, &row, held, caller),
                None => self.drop_new(path, row.id),
            };
        }
        self.ask_ahead_of_deletion(&row, caller)?;
        self.delete_changed(path, row, caller)
    }

    /// What a change is based on goes, and that is judged by itself; the change goes on under its other names.
    fn unlink_base(&self, path: &RelPath, row: &UpperRow, claimed: Claim<'_>, caller: &Caller) -> Result<()> {
        let id = self.store.reserve_upper();
        let whiteout = deleted(id, path, Base::of(row.base.of_one_name().below));
        self.ask_ahead_of_deletion(&whiteout, caller)?;
        self.leave_base(row.id, path, Some(whiteout))?;
        drop(claimed);
        self.settle_what_is_shown(id, caller)?;
        self.settle_parted([row.id], &self.doer(caller))
    }

    /// Judges changes that wait for review, where they have left what they were based on. Not under a claim on them.
    pub(super) fn settle_parted(&self, ids: impl IntoIterator<Item = UpperId>, by: &Writer) -> Result<()> {
        let has_left = |id: &UpperId| self.state.lock().uppers.get(*id).is_some_and(|upper| upper.left);
        ids.into_iter().filter(has_left).try_for_each(|id| self.settle_moved(id, by).map(|_| ()))
    }

    /// A change goes on without a name that is about to go. False where it has no other.
    pub(super) fn part_with_name(&self, path: &RelPath, id: UpperId, row: &UpperRow) -> Result<bool> {
        match self.parting(path, row)? {
            Parting::Never => Ok(false),
            parting => self.part(path, id, parting).map(|()| true),
        }
    }

    /// What one name of a change is based on by itself. That is nothing for one that was to be made, whatever somebody has put
    /// there since: what takes its place is judged as one who has not seen that.
    pub(super) fn base_of_name(&self, path: &RelPath, row: &UpperRow) -> Result<Base> {
        let meta = match row.further_names().contains(path) {
            true => None,
            false => self.lower.stat(path).doing(|| format!("stat {path}"))?,
        };
        Ok(Base::of(Below::of(meta.as_ref())).of_one_name())
    }

    fn parting(&self, path: &RelPath, row: &UpperRow) -> Result<Parting> {
        let further = row.names.iter().find(|name| *name != path);
        let is_base = || -> Result<bool> {
            Ok(*path == row.names[0] && self.lower.exists(path).doing(|| format!("stat {path}"))?)
        };
        if further.is_some() && !is_base()? {
            return Ok(Parting::Unmade);
        }
        if let Some(other) = self.other_name_below(path, row)? {
            return Ok(Parting::Other(other));
        }
        let Some(further) = further else { return Ok(Parting::Never) };
        let free = End { origin: Origin::Nothing, ..self.end_of(further)? };
        Ok(match self.is_judged_there(&self.end_of(path)?, &free)? {
            true => Parting::Leaves,
            false => Parting::Moves(further.clone()),
        })
    }

    fn part(&self, path: &RelPath, id: UpperId, parting: Parting) -> Result<()> {
        match parting {
            Parting::Never => Ok(()),
            Parting::Unmade => self.drop_change_name(id, path),
            Parting::Other(other) => self.rename_change(id, path, &other),
            Parting::Leaves => self.leave_base(id, path, None),
            Parting::Moves(further) => {
                let (from, to) = (self.end_of(path)?, self.end_of(&further)?);
                let (renamed, _) = self.move_claimed((&from, Leaves::Name), &to, id, Vec::new())?;
                self.tell_renamed(&to, renamed);
                Ok(())
            }
        }
    }

    /// Another name of the inode that `row` was written through: one that the kernel has looked up, or else one that it
    /// has not, which is looked for.
    pub(super) fn other_name_below(&self, path: &RelPath, row: &UpperRow) -> Result<Option<RelPath>> {
        let Below::Entry { stamp, links: 2.., .. } = row.base.below else { return Ok(None) };
        let names = {
            let state = self.state.lock();
            state.nodes.file_at(path).map(|node| state.nodes.paths(node)).transpose()?.unwrap_or_default()
        };
        let is_it = |meta: &Meta| self.births.are_one(&stamp, &meta.stamp());
        for name in names.into_iter().filter(|name| name != path) {
            let meta = self.lower.stat(&name).doing(|| format!("stat {name}"))?;
            if meta.as_ref().is_some_and(is_it) {
                return Ok(Some(name));
            }
        }
        match self.lower.stat(path).doing(|| format!("stat {path}"))? {
            Some(meta) if is_it(&meta) && self.as_linked(meta).links > 1 => self.find_other_name(path, &meta),
            Some(_) | None => Ok(None),
        }
    }

    fn find_other_name(&self, path: &RelPath, meta: &Meta) -> Result<Option<RelPath>> {
        // One that is held as deleted or replaced is no name of the file in the view.
        let is_shown = |name: &RelPath| name != path && self.state.lock().is_taken_from_lower(name);
        let found = self.judged_name_below(meta, is_shown)?;
        // Whoever has the file open by the name that goes has it open by this one.
        found.iter().try_for_each(|name| self.learn_name(name))?;
        Ok(found)
    }

    /// The same of a file that nobody has changed and somebody has open, if the name that goes is the only one looked up.
    pub(super) fn learn_other_name(&self, path: &RelPath, meta: &Meta) -> Result<()> {
        let is_only_known = {
            let state = self.state.lock();
            let open = state.nodes.at(path).filter(|node| state.nodes.is_open(*node));
            open.is_some_and(|node| state.nodes.names(node).len() == 1)
        };
        match is_only_known && meta.is_file() && meta.links > 1 {
            true => self.find_other_name(path, meta).map(drop),
            false => Ok(()),
        }
    }

    /// It landed between the look and the lock.
    fn unlink_again(&self, path: &RelPath, caller: &Caller) -> Result<()> {
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?.ok_or(Error::Errno(libc::ENOENT))?;
        self.unlink_judged(path, &meta, caller)
    }

    /// A new file goes before anybody judged it: no trace.
    fn drop_new(&self, path: &RelPath, id: UpperId) -> Result<()> {
        let epilogue = Epilogue { drop: vec![id], ..Epilogue::default() };
        self.orphan(path, id, |_| Ok(self.store.record_epilogue(&epilogue)?))?;
        self.store.drop_upper_file(id);
        Ok(())
    }

    /// One that waits for review is kept, and waits again by an undo.
    fn drop_held(&self, path: &RelPath, row: &UpperRow, held: &Held, caller: &Caller) -> Result<()> {
        let by = self.doer(caller);
        let removal = self.removal(row, &by)?;
        let part = self.part_of(path, &by, Doing::Unhold);
        let effect = PathEffect::new(path, removal.effect()?);
        let event = self.hold_ended(path, held, "[deleted]", &by).doing([effect]);
        let event = event.with(|event| event.operation = part.operation_told());
        let verdicts = vec![(held.id.clone(), path.clone(), Fate::Removed)];
        let epilogue = Epilogue { drop: vec![row.id], verdicts, events: vec![event], ..Epilogue::default() };
        let became = self.orphan(path, row.id, |state| self.record_removal(state, removal, &epilogue))?;
        self.recorded(&part, became);
        self.store.drop_upper_file(row.id);
        Ok(())
    }

    /// The same for one whose creation failed after all.
    pub(super) fn take_back(&self, path: &RelPath, id: UpperId) {
        let row = self.state.lock().uppers.get(id).map(|upper| upper.row.clone());
        // In the place of a held deletion it would take that along: it stays as it is, made and not written.
        let new = row.filter(|row| row.base.below == Below::Nothing && row.held.is_none());
        if let Some(Err(err)) = new.map(|row| self.drop_new(path, row.id)) {
            log::error!("take {path} back, which could not be made: {err}");
        }
    }

    /// Takes an entry out of the view; who has it open keeps its content. `record` makes the database agree: under the
    /// lock, or a write in between would save the row anew.
    fn orphan<T>(&self, path: &RelPath, id: UpperId, record: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        let recorded = record(&state)?;
        state.take_out(path, id);
        Ok(recorded)
    }

    /// The same with a whiteout in its place: at no moment does the path show what lower has.
    fn orphan_hidden<T>(
        &self,
        path: &RelPath,
        id: UpperId,
        whiteout: UpperRow,
        record: impl FnOnce(&State) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.lock();
        let recorded = record(&state)?;
        state.take_out(path, id);
        state.uppers.insert(Upper::written(whiteout));
        Ok(recorded)
    }

    /// What took the place of a hidden directory goes; the directory is hidden as before. It may have come below since, in
    /// the place of a file that this was a change of.
    fn hide_dir_again(&self, path: &RelPath, dir: &Meta, row: UpperRow, caller: &Caller) -> Result<()> {
        let by = self.doer(caller);
        let whiteout = self.whiteout(path, dir).row;
        let id = whiteout.id;
        let removal = self.removal(&row, &by)?;
        let mut epilogue = Epilogue { drop: vec![row.id], save: vec![whiteout.clone()], ..Epilogue::default() };
        if let Some(held) = &row.held {
            epilogue.verdicts.push((held.id.clone(), path.clone(), Fate::Removed));
            epilogue.events.push(self.hold_ended(path, held, "[deleted]", &by));
        }
        self.orphan_hidden(path, row.id, whiteout, |state| self.record_removal(state, removal, &epilogue))?;
        self.store.drop_upper_file(row.id);
        self.hold_structure(id, Reason::Parent, &by)
    }

    /// The deletion of something changed is judged against what the change was based on. What waited is kept.
    fn delete_changed(&self, path: &RelPath, row: UpperRow, caller: &Caller) -> Result<()> {
        let id = self.store.reserve_upper();
        let base = row.base.of_one_name();
        let whiteout = UpperRow { id, what: What::Whiteout, base, ..row.clone() };
        let by = self.doer(caller);
        let removal = self.removal(&row, &by)?;
        let epilogue = Epilogue { drop: vec![row.id], save: vec![whiteout.clone()], ..Epilogue::default() };
        self.orphan_hidden(path, row.id, whiteout, |state| self.record_removal(state, removal, &epilogue))?;
        self.store.drop_upper_file(row.id);
        self.settle_what_is_shown(id, caller)
    }

    /// Judges what the view shows already, and the database knows: it is done, whatever hinders its judging. What cannot
    /// be judged now is judged later, like what a close could not have judged.
    fn settle_what_is_shown(&self, id: UpperId, caller: &Caller) -> Result<()> {
        match self.settle(id, &self.doer(caller)) {
            Err(Error::Denied) => Err(Error::Denied),
            Err(err) => {
                log::error!("judge what a program made or deleted: {err}");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    pub fn rmdir(&self, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<()> {
        self.check_may_write(caller)?;
        let _acting = self.acting([parent]);
        let path = self.state.lock().nodes.child_path(parent, name)?;
        let was = match self.origin(&path)? {
            Origin::Lower(meta) if meta.is_dir() => meta,
            Origin::Upper(id, meta) if meta.is_dir() => {
                self.end_structure(&path, id, caller)?;
                self.state.lock().unnamed(parent, name, &meta);
                return Ok(());
            }
            Origin::Nothing | Origin::Hidden(_) => return Err(Error::Errno(libc::ENOENT)),
            Origin::Lower(_) | Origin::Upper(..) => return Err(Error::Errno(libc::ENOTDIR)),
        };
        let gated = match self.action_by(&path, FileKind::Directory, &self.writer(caller)) {
            Action::Deny | Action::Freeze => return Err(self.denied(&path, &self.doer(caller))),
            Action::Hold(source) => Some(source.reason()),
            Action::Auto | Action::Pass | Action::GitConfig => None,
        };
        let hidden = self.hidden_below(&path)?;
        let waits = gated.or((!hidden.is_empty()).then_some(Reason::Parent));
        // One that is hidden comes back by a discard.
        let removed = match waits {
            Some(reason) => {
                self.check_may_change(0)?;
                self.hide_dir(&path, reason, &self.doer(caller))?;
                None
            }
            None => {
                let place = self.lower.place(&path)?;
                let looks = DirLooks::of_going(&place, &was)?;
                // What was renamed out of it would be looked for there.
                self.store.record_waiting()?;
                place.remove_dir()?;
                Some(PathEffect::new(&path, Effect::DirRemoved(looks)))
            }
        };
        if self.action(&path, FileKind::Directory) != Action::Pass {
            let gone = match removed {
                Some(_) => self.state.lock().dir_left(&path),
                None => self.state.lock().left(&path).into_iter().collect(),
            };
            let by = self.doer(caller);
            let doing = if removed.is_some() { Doing::RemoveDir } else { Doing::Hold };
            let part = self.part_of(&path, &by, doing);
            let event = self.structure_event(&path, "[directory removed]".to_owned(), &by).doing(removed);
            let event = event.with(|event| {
                event.operation = part.operation_told();
                if waits.is_some() {
                    (event.event, event.reason) = (EventName::WriteHeld, waits);
                    event.id = self.state.lock().uppers.held_at(&path).map(|held| held.id.to_string());
                }
            });
            let became = self.record_done(event, gone)?;
            self.recorded(&part, became);
        }
        self.state.lock().unnamed(parent, name, &was);
        Ok(())
    }

    /// Held deletions in a directory that shows nothing; `ENOTEMPTY` when it shows something.
    pub(super) fn hidden_below(&self, path: &RelPath) -> Result<Vec<UpperId>> {
        let below = self.lower.list(path).doing(|| format!("list {path}"))?;
        let state = self.state.lock();
        let entries: std::collections::HashMap<&OsStr, UpperId> = state.uppers.in_dir(path).collect();
        let is_whiteout = |id: &UpperId| state.uppers.get(*id).is_some_and(|upper| upper.row.what == What::Whiteout);
        let all_hidden =
            entries.values().all(is_whiteout) && below.iter().all(|entry| entries.contains_key(entry.name.as_os_str()));
        match all_hidden {
            true => Ok(entries.into_values().collect()),
            false => Err(Error::Errno(libc::ENOTEMPTY)),
        }
    }

    /// A directory whose removal waits for review is made anew, as git does at every switch of branches: lower has it
    /// still. What was deleted in it stays hidden and held.
    fn show_dir_again(&self, id: UpperId, path: &RelPath, mode: u32, caller: &Caller) -> Result<()> {
        if matches!(self.action_by(path, FileKind::Directory, &self.writer(caller)), Action::Deny | Action::Freeze) {
            return Err(self.denied(path, &self.doer(caller)));
        }
        let heritage = self.heritage(path, FileKind::Directory, mode, caller)?;
        let (row, _claimed) = self.claim(id)?;
        let given = heritage.give_anew(&self.lower.place(path)?, FileKind::Directory);
        given.doing(|| format!("give {path} an owner"))?;
        let ended = row.held.iter().map(|held| (held.id.clone(), path.clone(), Fate::Ended)).collect();
        let epilogue = Epilogue { drop: vec![row.id], verdicts: ended, ..Epilogue::default() };
        self.orphan(path, row.id, |_| Ok(self.store.record_epilogue(&epilogue)?))?;
        self.note_created(path, FileKind::Directory, None, "[directory]".to_owned(), || Ok(None), caller)
    }

    /// The view shows a directory no more; lower keeps it until that is confirmed, or the last deletion in it.
    fn hide_dir(&self, path: &RelPath, reason: Reason, by: &Writer) -> Result<()> {
        let meta = self.lower.stat(path).doing(|| format!("stat {path}"))?.ok_or(Error::Errno(libc::ENOENT))?;
        let id = self.hide(path, &meta)?;
        self.hold_structure(id, reason, by)
    }
}

impl State {
    /// Lower's file at `source`, which is `meta` now, has one more name. Who has it open for writing writes under both.
    fn linked(&mut self, source: &RelPath, meta: &Meta) {
        self.windows.linked(source, meta);
        let Some(upper) = self.uppers.at(source).and_then(|id| self.uppers.get(id)) else { return };
        let Below::Entry { stamp, mode, .. } = upper.row.base.below else { return };
        if (stamp.device, stamp.inode) == (meta.device, meta.inode) {
            let below = Below::Entry {
                stamp: Stamp { ctime: meta.ctime, btime: meta.btime, ..stamp },
                mode,
                links: meta.links,
            };
            let base = Base { below, ..upper.row.base };
            self.uppers.set_row(UpperRow { base, ..upper.row.clone() });
        }
    }

    /// The view has an entry no more; who has it open keeps its content.
    pub(super) fn take_out(&mut self, path: &RelPath, id: UpperId) {
        use super::handles::Backing;
        if let Some(open) = self.open_of(id, path) {
            open.set_backing(Backing::Orphan(open.file()));
        }
        self.uppers.remove(id);
        self.epoch += 1;
    }

    /// The node loses the name; who has it open keeps it.
    pub(super) fn unnamed(&mut self, parent: NodeId, name: &OsStr, was: &Meta) {
        self.epoch += 1;
        if let Some(node) = self.nodes.child(parent, name).and_then(|node| self.nodes.get_mut(node).ok()) {
            node.note_removed(was);
        }
        self.nodes.unname(parent, name);
    }
}

/// What hides a path, and is not judged yet.
fn deleted(id: UpperId, path: &RelPath, base: Base) -> UpperRow {
    UpperRow { id, names: vec![path.clone()], what: What::Whiteout, base, held: None, looks: None }
}

/// Whether `path` is in one object store of git what `source` is in another. `git clone` makes such links, gives up where
/// they turn out to be copies, and copies by itself where there can be none. Who unpacks a tree or saves a file does not.
fn is_linked_by_clone(source: &RelPath, path: &RelPath) -> bool {
    fn in_store(path: &RelPath) -> Option<Vec<&OsStr>> {
        let names: Vec<&OsStr> = path.components().collect();
        names.iter().rposition(|name| *name == "objects").map(|store| names[store + 1..].to_vec())
    }
    in_store(source).is_some_and(|names| in_store(path) == Some(names))
}

/// Takes away what was made a moment ago and could not be recorded: who asked for it is told that it was not made.
fn unmake(place: &Place, kind: FileKind, path: &RelPath) {
    let gone = if kind == FileKind::Directory { place.remove_dir() } else { place.unlink() };
    if let Err(err) = gone {
        log::error!("take {path} back, which could not be recorded: {err}");
    }
}
