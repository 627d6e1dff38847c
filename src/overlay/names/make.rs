//! Making directories, nodes and symlinks. Structure lands at once, and is recorded (SPEC §4.8).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::structure::{Creation, Made};
use crate::model::{OperationId, RelPath};
use crate::overlay::error::Context;
use crate::overlay::judge::compare::leaves_project;
use crate::overlay::state::lookup::{Origin, is_reserved};
use crate::overlay::state::nodes::NodeId;
use crate::overlay::who::goes::{Doing, Part};
use crate::overlay::{Caller, Entry, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::protocol::EventName;
use crate::store::{Anchor, AnchorState, Effect, Epilogue, EventDraft, PathEffect, UpperId, What, Writer};
use crate::sys::Mode;
use crate::sys::file::FileKind;
use crate::sys::tree::Place;

impl Overlay {
    /// The path of a name that is to be made.
    pub(in crate::overlay) fn new_path(&self, parent: NodeId, name: &OsStr) -> Result<RelPath> {
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

    /// A FIFO, socket, device or empty regular file. Reads and writes of the first three are served by the kernel itself.
    pub fn mknod(&self, parent: NodeId, name: &OsStr, mode: u32, device: u64, caller: &Caller) -> Result<Entry> {
        let kind = FileKind::from_mode(mode);
        if kind == FileKind::Regular {
            let _acting = self.acting([parent]);
            let flags = crate::overlay::OpenFlags::from_raw(libc::O_WRONLY | libc::O_EXCL);
            let (entry, opened) = self.create_here(parent, name, mode, flags, caller)?;
            self.release(opened.handle)?;
            return Ok(entry);
        }
        let made = Made { kind, mode, device };
        self.make_structure(parent, name, made, caller, |place, mode| place.make_node(kind, mode, device))
    }

    /// Makes an entry in lower at once, or in upper if lower cannot have it yet.
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
        let given = heritage.give_made(&place, kind).doing(|| format!("give {path} an owner"));
        let effect = || self.made(&path, kind).map(Some);
        let what = format!("[{}]", kind.name());
        let noted = given.and_then(|()| self.note_created(&path, kind, None, what, effect, caller));
        noted.inspect_err(|_| unmake(&place, kind, &path))?;
        self.look_up(parent, name)
    }

    /// The effect of making something that is not judged.
    pub(super) fn made(&self, path: &RelPath, kind: FileKind) -> Result<Effect> {
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

    /// Records that what is at the path came in this session, or is older and has a new name; `from` is the name it had.
    pub(super) fn note_created(
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
        let there = self.meta_below(path)?;
        // A landing gives a file another inode than the one it was made with.
        let lasts = kind == FileKind::Directory || kind.is_special();
        let effect = effect.map(|effect| PathEffect::on(path, effect, there.as_ref().filter(|_| lasts)));
        let event = self.structure_event(path, what, &by).doing(effect);
        let event = event.with(|event| event.operation = part.as_ref().and_then(Part::operation_told));
        let mut state = self.state.lock();
        let made = state.past.made(path, from);
        let became = self.record_done(event, vec![made.clone()])?;
        state.know(vec![made]);
        state.put_there(path, (None, there.as_ref()), None);
        drop(state);
        if let Some(part) = part {
            self.recorded(&part, became);
        }
        Ok(())
    }

    /// Records structure that has landed (SPEC §4.8): in words, with the effects that an undo reverses and with its
    /// anchors.
    pub(in crate::overlay) fn record_structure(
        &self,
        path: &RelPath,
        what: String,
        effects: impl IntoIterator<Item = PathEffect>,
        anchors: Vec<Anchor>,
        by: &Writer,
    ) -> Result<()> {
        self.record_done(self.structure_event(path, what, by).doing(effects), anchors).map(|_| ())
    }

    /// Lower has it already, so a full disk must not keep it from being recorded.
    pub(super) fn record_done(&self, event: EventDraft, anchors: Vec<Anchor>) -> Result<Option<OperationId>> {
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
        self.check_not_refused(&path, action, caller)?;
        let used = self.is_used(&path)?;
        self.saw_free(&path, caller);
        let gated = matches!(action, Action::Hold(_)) || self.is_in_held_dir(&path);
        let judged = match action {
            // If a deletion is held here, lower has the name.
            Action::Pass => self.state.lock().uppers.at(&path).is_some(),
            _ => gated || leaves_project(&path, target.as_bytes()) || used,
        };
        if !judged {
            return self.make(parent, name, FileKind::Symlink, 0o777, caller, |place, _| place.make_symlink(target));
        }
        self.symlink_judged(&path, target, caller)?;
        self.look_up(parent, name)
    }

    /// True if something used to be at a free path in this session: what is made there is a modification of that (SPEC
    /// §4.3). `EEXIST` if something is there now.
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
        let place = self.store.upper_place(new.id());
        heritage.give_upper_node(&place, FileKind::Symlink).doing(|| format!("give {path} an owner"))?;
        let id = self.add_upper(new, path, What::Symlink)?;
        self.settle_what_is_shown(id, caller)
    }

    /// Judges what the view shows already and the database knows. The act is done, even if its judging fails; then it is
    /// judged later, as if a close could not have judged it.
    pub(super) fn settle_what_is_shown(&self, id: UpperId, caller: &Caller) -> Result<()> {
        match self.settle(id, &self.doer(caller)) {
            Err(Error::Denied) => Err(Error::Denied),
            Err(err) => {
                log::error!("judge what a program made or deleted: {err}");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }
}

/// Takes away what was made a moment ago and could not be recorded: the caller is told that it was not made.
pub(super) fn unmake(place: &Place, kind: FileKind, path: &RelPath) {
    let gone = if kind == FileKind::Directory { place.remove_dir() } else { place.unlink() };
    if let Err(err) = gone {
        log::error!("take {path} back, which could not be recorded: {err}");
    }
}
