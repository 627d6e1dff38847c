//! Putting back what a path had, if it was renamed away before the path was made anew (SPEC §4.3).
//!
//! Lower gets it back under its first name if the new content is held, so that the project is as it was, and in any case
//! once the view shows it nowhere.

use std::fs::File;
use std::sync::Arc;

use super::claim::{Claim, Job};
use super::compare::Comparison;
use crate::model::{RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::files::handles::Backing;
use crate::overlay::state::lookup::Origin;
use crate::overlay::state::uppers::{Recorded, Upper};
use crate::overlay::{NodeId, Overlay, Result, State};
use crate::policy::rules::Action;
use crate::store::{
    self, AnchorState, Base, Below, Durability, Epilogue, Landing, NewContent, UpperId, UpperRow, Went, What, Writer,
};
use crate::sys::file::{FileKind, Meta};

/// What a path had, now under another name in lower, at which the view has an entry of its own.
struct Covered {
    path: RelPath,
    /// Its name in lower now, and the entry that covers it.
    to: RelPath,
    by: UpperId,
    stamp: Stamp,
}

impl Overlay {
    /// The old inode was renamed away before the path was made anew, and the new content is held: lower gets the inode
    /// back under its own name, and the name that it was renamed to gets a copy (SPEC §4.3a).
    pub(super) fn put_back(&self, job: &Job, comparison: &mut Comparison) -> Result<()> {
        let path = &comparison.path;
        let Some(Went { to, stamp }) = self.went_from(path)? else { return Ok(()) };
        if job.row.held.is_some() || comparison.present.exists() {
            return Ok(());
        }
        // The inode tells, not its times, as for the content that the change was judged against.
        let is_it = |meta: &Meta| self.births.may_be_one(stamp.key(), meta.key());
        let may_go = |meta: &Meta| self.may_exchange_names(path, &to, meta.kind);
        let moved = match self.origin(&to)? {
            Origin::Lower(meta) if is_it(&meta) && meta.kind.has_content() && may_go(&meta) => meta,
            Origin::Lower(_) | Origin::Upper(..) | Origin::Nothing | Origin::Hidden(_) => return Ok(()),
        };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        let opened = self.stage_exchange(&mut landing, path, &to, moved)?;
        let anchors = self.state.lock().past.put_back(path, &to, moved.stamp());
        let promised = landing.promise(Epilogue { anchors: anchors.clone(), ..Epilogue::default() })?;
        let (applied, parted) = {
            let mut state = self.state.lock();
            let applied = promised.apply()?;
            state.know(anchors);
            let copied = applied.meta_of(&to).map(|copy| (copy, opened));
            let parted = state.put_back(path, &to, &moved, copied);
            (applied, parted)
        };
        applied.finish()?;
        self.tell_changed(&to);
        if let Some(node) = parted {
            self.forget_attributes(node);
        }
        comparison.present = self.present_side(path)?;
        Ok(())
    }

    /// Moves what is at `to` to `path` and puts a copy in its place. Returns the copy of a file, opened under its
    /// temporary name: once it is applied only the disk may be in the way.
    fn stage_exchange(
        &self,
        landing: &mut Landing<'_>,
        path: &RelPath,
        to: &RelPath,
        meta: Meta,
    ) -> Result<Option<File>> {
        landing.rename(&self.lower, to, path, meta.stamp())?;
        if meta.kind == FileKind::Symlink {
            let target = self.lower.place(to)?.read_symlink().doing(|| format!("read {to}"))?;
            let times = Some((meta.atime, meta.mtime));
            let copy = NewContent::Symlink { target: &target, uid: meta.uid, gid: meta.gid, times };
            landing.place(&self.lower, to, None, &copy)?;
            return Ok(None);
        }
        let file = self.lower.open_to_read(to).doing(|| format!("read {to}"))?;
        landing.place(&self.lower, to, None, &NewContent::File { file: &file, like: &file, meta })?;
        Ok(landing.open_new(to)?)
    }

    /// What the path of `id` had may stand below under a name where the view shows something else by now: a held change
    /// that was renamed away with it, or nothing. Then it goes back before the path is judged. The path's change becomes
    /// one of what lower has there again and stays held; what covers the other name is new there. A change of a file with
    /// several names goes on under those that are left, and the name that goes back is made again when it lands. Returns
    /// the entry at the other name if no writer is going to have it judged.
    pub(super) fn uncover(&self, id: UpperId, actor: &Writer) -> Result<Option<UpperId>> {
        let Some(covered) = self.covered(id)? else { return Ok(None) };
        let Some([(ours, _ours), (theirs, _theirs)]) = self.claim_both([id, covered.by]) else { return Ok(None) };
        let Some(meta) = self.goes_back(&covered, &ours, &theirs)? else { return Ok(None) };
        let ([ours, theirs], epilogue) = match self.name_left(&covered, &theirs)? {
            Some(name) => {
                let (theirs, epilogue) = self.state.lock().unmade(covered.by, &covered.to, &name)?;
                ([UpperRow { base: Base::of_name(&meta), ..ours }, theirs], epilogue)
            }
            None => (exchange_bases(ours, theirs, &meta), Epilogue::default()),
        };
        let mut landing = Landing::new(&self.store, Durability::Cached);
        landing.rename(&self.lower, &covered.to, &covered.path, meta.stamp())?;
        let anchors = self.state.lock().past.uncovered(&covered.path, &covered.to, meta.stamp());
        // Both are saved, whatever the database knew of them until now.
        let save = vec![ours.clone(), theirs.clone()];
        let promised = landing.promise(Epilogue { save, anchors: anchors.clone(), ..epilogue })?;
        let tree = self.tree_of(actor.pid);
        let (applied, is_left) = {
            let mut state = self.state.lock();
            let applied = match promised.apply() {
                // Someone else has put something there, which the judging will find.
                Err(err) if matches!(err, store::Error::Conflict { .. }) || err.errno() == libc::EEXIST => {
                    return Ok(None);
                }
                other => other?,
            };
            let is_left = theirs.held.is_none() && !state.is_unjudged(theirs.path());
            state.know(anchors);
            state.uncovered(&covered, [ours, theirs]);
            // The writer's own process tree emptied that name (SPEC §7).
            state.saw(&covered.to, None, tree);
            (applied, is_left)
        };
        applied.finish()?;
        Ok(is_left.then_some(covered.by))
    }

    /// What lower has where the path's old content went, if it still is that content, unchanged since it was covered.
    fn goes_back(&self, covered: &Covered, ours: &UpperRow, theirs: &UpperRow) -> Result<Option<Meta>> {
        let Covered { path, to, stamp, .. } = covered;
        let as_it_was = *ours.path() == *path && (*theirs.path() == *to || theirs.base.is_shared());
        // Structure is one change with the deletion whose place it took, and would not be judged without that.
        let is_content = |meta: &Meta| meta.kind.has_content() && !theirs.what.is_structure();
        let below = self.meta_below(to)?;
        let is_base = |meta: &Meta| matches!(theirs.base.below, Below::Entry { stamp, .. } if stamp.has_same_content(&meta.stamp()));
        let is_it = |meta: &Meta| self.births.may_be_one(stamp.key(), meta.key());
        let may_go = |meta: &Meta| self.may_exchange_names(path, to, meta.kind);
        Ok(below.filter(|meta| as_it_was && is_content(meta) && is_it(meta) && is_base(meta) && may_go(meta)))
    }

    /// The name under which the covering change goes on, once the file that it covers is back under its own name.
    fn name_left(&self, covered: &Covered, theirs: &UpperRow) -> Result<Option<RelPath>> {
        match *theirs.path() == covered.to {
            true => self.other_name_below(&covered.to, theirs),
            false => Ok(Some(theirs.path().clone())),
        }
    }

    /// True if what lower has may move from one name to the other without review. Where a rule waits, both its coming and
    /// its going are reviewed; where nothing is judged it may have become anything since.
    fn may_exchange_names(&self, path: &RelPath, to: &RelPath, kind: FileKind) -> bool {
        [path, to].iter().all(|name| self.action(name, kind) == Action::Auto)
    }

    /// Where the last content of a free path went, by a rename of its own or of a directory.
    pub(in crate::overlay) fn went_from(&self, path: &RelPath) -> Result<Option<Went>> {
        if self.is_in_held_dir(path) {
            // Lower has no place for it there.
            return Ok(None);
        }
        let went = self.state.lock().past.get(path).and_then(|known| known.went.clone());
        Ok(match (went, self.anchor_of(path)?) {
            // Nothing older than the session was here, so nothing has to come back.
            (_, Some(AnchorState::Nothing) | None) => None,
            (Some(went), Some(_)) => Some(went),
            (None, Some(AnchorState::Moved { to, stamp })) => Some(Went { to, stamp }),
            (None, Some(AnchorState::Content(_))) => None,
        })
    }

    fn covered(&self, id: UpperId) -> Result<Option<Covered>> {
        let is_new = |row: &&UpperRow| row.what != What::Whiteout && row.is_new();
        let path = {
            let state = self.state.lock();
            state.uppers.row(id).filter(is_new).map(|row| row.path().clone())
        };
        let Some(path) = path else { return Ok(None) };
        let Some(Went { to, stamp }) = self.went_from(&path)? else { return Ok(None) };
        let state = self.state.lock();
        let by = state.uppers.at(&to).or_else(|| state.uppers.of_inode(&stamp)).and_then(|by| state.uppers.get(by));
        // An entry that was written through another name of the inode is a change of all its names.
        let covers = |by: &&Upper| by.row.id != id && (*by.row.path() == to || by.row.base.is_shared());
        if !state.past.came_here(&to) {
            // The other name had this content all along, and is judged against it.
            return Ok(None);
        }
        Ok(by.filter(covers).map(|by| Covered { path, to: to.clone(), by: by.row.id, stamp }))
    }

    /// Claims two entries at once; `None` if one is gone. While it waits it holds neither, so that no two wait for each
    /// other.
    fn claim_both(&self, ids: [UpperId; 2]) -> Option<[(UpperRow, Claim<'_>); 2]> {
        let mut state = self.state.lock();
        while ids.iter().any(|id| state.uppers.get(*id).is_some_and(|upper| upper.busy)) {
            self.changed.wait(&mut state);
        }
        if ids.iter().any(|id| state.uppers.get(*id).is_none()) {
            return None;
        }
        Some(ids.map(|id| {
            let upper = state.uppers.get_mut(id).expect("looked for under the same lock");
            upper.busy = true;
            (upper.row.clone(), Claim { overlay: self, id, judged: true })
        }))
    }
}

/// The path has its old file below it again, and the change of that; the other name has nothing below.
fn exchange_bases(ours: UpperRow, theirs: UpperRow, meta: &Meta) -> [UpperRow; 2] {
    let content = theirs.base.content.filter(|_| theirs.held.is_some());
    let base = Base { content, found: theirs.base.found, ..Base::of_name(meta) };
    [
        UpperRow { base, held: theirs.held.clone(), ..ours },
        UpperRow { base: Base::NOTHING, held: None, looks: None, ..theirs },
    ]
}

impl State {
    /// A renamed inode, which was `moved`, has its first name again, and a copy has the other name, opened if it is a
    /// file. Returns the node of its further names, which have one link less.
    pub(super) fn put_back(
        &mut self,
        path: &RelPath,
        to: &RelPath,
        moved: &Meta,
        copied: Option<(Meta, Option<File>)>,
    ) -> Option<NodeId> {
        self.epoch += 1;
        self.recent_put_back(to, path);
        let (copy, file) = copied?;
        self.touched(to, &moved.stamp(), &copy);
        let node = self.nodes.at(to)?;
        if self.nodes.names(node).len() > 1 {
            // Its other names remain those of the renamed inode, and the copy is a file of its own.
            if let Some((parent, name)) = self.nodes.entry_at(to) {
                self.nodes.part_below(node, parent, name);
            }
            return Some(node);
        }
        self.nodes.set_lower(node, Some(copy.key()));
        if let Some((open, file)) = self.nodes.open_on(node).cloned().zip(file)
            && open.upper().is_none()
            && !open.backing().is_orphan()
        {
            open.set_backing(&mut self.nodes, Backing::Lower(Arc::new(file)));
        }
        None
    }

    /// True if a writer is still going to have it judged at a close.
    fn is_unjudged(&self, path: &RelPath) -> bool {
        let node = self.nodes.at(path);
        self.handles.values().any(|handle| Some(handle.node) == node && handle.is_unjudged())
    }

    /// Lower has a path's old inode again, and nothing under the name that the inode had meanwhile.
    fn uncovered(&mut self, covered: &Covered, rows: [UpperRow; 2]) {
        self.epoch += 1;
        self.recent_put_back(&covered.to, &covered.path);
        for row in rows {
            if let (Below::Nothing, Some(node)) = (row.base.below, self.nodes.at(row.path())) {
                self.nodes.set_lower(node, None);
            }
            if let Some(upper) = self.uppers.remove(row.id) {
                // What went back can no longer be taken along.
                let takes_along = upper.takes_along.filter(|(source, _)| *source != covered.to);
                // A change that goes on waiting is judged already.
                let dirty = upper.dirty || upper.row.held.is_none() || row.held.is_none();
                self.uppers.insert(Upper { row, recorded: Recorded::Row, dirty, takes_along, ..upper });
            }
        }
    }
}
