//! Further names: of lower's files at once, of what is in upper when that lands (SPEC §4.8). Where there can be no link,
//! a copy is made.

use std::ffi::OsStr;

use super::make::unmake;
use super::structure::Creation;
use crate::model::{RelPath, Stamp};
use crate::overlay::judge::settle::Settled;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Caller, Entry, Error, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{Base, Below, Effect, NewUpper, UpperId, UpperRow, What};
use crate::sys::file::{FileKind, Meta};

impl Overlay {
    /// A second name for a file. A change that is held or being written takes the name along (SPEC §4.7).
    pub fn link(&self, node: NodeId, parent: NodeId, name: &OsStr, caller: &Caller) -> Result<Entry> {
        self.check_may_write(caller)?;
        self.check_asked_name(node)?;
        let _acting = self.acting([parent, self.parent_of(node)]);
        let path = self.new_path(parent, name)?;
        // A node without a path may be one that the kernel wrongly takes for the name; `ESTALE` makes the kernel look
        // again.
        let source = self.path_of(node).map_err(|_| Error::Errno(libc::ESTALE))?;
        let kind = self.origin(&source)?.kind().unwrap_or(FileKind::Regular);
        let waiting = match self.creation(&path, kind, caller)? {
            Creation::Held(why) => Some(why),
            Creation::AtOnce | Creation::Anew(_) => None,
        };
        // In the place of a held deletion, the link is judged together with that.
        let replaces_deleted = waiting.as_ref().is_some_and(|why| why.over.is_some());
        // One change with names in different directories, some of them held, would go with either.
        let in_held_dir = self.is_in_held_dir(&path) && source.parent() != path.parent();
        let used = replaces_deleted || in_held_dir || self.is_used_by_another(&source, &path, kind)?;
        let by = self.writer(caller);
        let action = |path| self.action_by(path, kind, &by);
        let (old, new) = (action(&source), action(&path));
        if old == Action::Freeze || new.refuses() {
            return Err(self.denied(if old == Action::Freeze { &source } else { &path }, &self.doer(caller)));
        }
        // A write through a passing name would change the judged one unseen.
        if (old == Action::Pass) != (new == Action::Pass) {
            return Err(Error::Errno(libc::EXDEV));
        }
        let origin = self.origin(&source)?;
        self.check_in_its_own_place(&source, &origin)?;
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
                // A change has one base, and this name has another one, or a rule that the other names do not have. So it
                // is a change of its own, with the same content.
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
            // Judged as what it brings to the path: a copy of what it names.
            return self.link_as_copy(&source, &path, at, caller, || self.copy_to_upper(&source));
        }
        self.link_below(source, &path, at, caller)
    }

    /// Makes the link in lower at once.
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
        let linked = self.meta_below(path)?;
        let from = {
            let mut state = self.state.lock();
            linked.iter().for_each(|meta| state.linked(&source, meta));
            state.past.came_from(&source)
        };
        let what = format!("[link to {source}]");
        let effect = || Ok(Some(Effect::Linked { of: source }));
        let noted = self.note_created(path, FileKind::Regular, from, what, effect, caller);
        noted.inspect_err(|_| unmake(&place, FileKind::Regular, path))?;
        self.look_up(parent, name)
    }

    fn link_upper(&self, id: UpperId, parent: NodeId, name: &OsStr, path: &RelPath) -> Result<Entry> {
        {
            // Claimed, so that the change is not decided meanwhile: one that has gone must not come back with another
            // name.
            let (_, _claimed) = self.claim(id)?;
            let mut state = self.state.lock();
            // What has landed is lower's: a name that was added to its entry would go with that.
            let upper = state.uppers.get(id).filter(|upper| !upper.is_landed());
            let mut row = upper.map(|upper| upper.row.clone()).ok_or(Error::Errno(libc::ESTALE))?;
            row.names.push(path.clone());
            // This may fail, so it comes first: a name that was refused must not be left anywhere.
            self.store.save_upper(&row)?;
            let first = state.nodes.file_at(row.path());
            state.uppers.set_row(row);
            if let Some(node) = first {
                state.nodes.name(node, parent, name);
            }
        }
        self.name_changed(path)?;
        self.look_up(parent, name)
    }

    /// Instead of a link, makes a copy of what it names: a new upper entry at `path`, judged at once.
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
}

impl State {
    /// Notes that lower's file at `source`, which is `meta` now, has one more name. Handles open for writing write under
    /// both.
    fn linked(&mut self, source: &RelPath, meta: &Meta) {
        self.windows.linked(source, meta);
        let Some(upper) = self.uppers.upper_at(source) else { return };
        let Below::Entry { stamp, mode, .. } = upper.row.base.below else { return };
        if stamp.number() == meta.number() {
            let below = Below::Entry {
                stamp: Stamp { ctime: meta.ctime, btime: meta.btime, ..stamp },
                mode,
                links: meta.links,
            };
            let base = Base { below, ..upper.row.base };
            self.uppers.set_row(UpperRow { base, ..upper.row.clone() });
        }
    }
}

/// True if `path` is in one object store of git what `source` is in another. `git clone` makes such links and gives up if
/// they turn out to be copies, but copies by itself if links cannot be made. Programs that unpack a tree or save a file
/// do not.
fn is_linked_by_clone(source: &RelPath, path: &RelPath) -> bool {
    fn in_store(path: &RelPath) -> Option<Vec<&OsStr>> {
        let names: Vec<&OsStr> = path.components().collect();
        names.iter().rposition(|name| *name == "objects").map(|store| names[store + 1..].to_vec())
    }
    in_store(source).is_some_and(|names| in_store(path) == Some(names))
}
