//! What was known of paths a moment ago, kept true while we rename and touch them ourselves.
//!
//! It is known by path, and a file may have several: what we do to it by one of them counts for all. What is known of
//! each is checked against the file as it was, because a name may have become another file's meanwhile.

use crate::model::{Digest, RelPath, Stamp};
use crate::overlay::judge::side::Side;
use crate::overlay::names::carry::Move;
use crate::overlay::{Overlay, Seen, State};
use crate::store::Kept;
use crate::sys::file::Meta;

impl Overlay {
    /// True if lower has other content at `path` than when its stamp was `then`. Anybody may set times, or put the same
    /// content back: the known digest decides, if there is one.
    pub(in crate::overlay) fn has_other_content(&self, path: &RelPath, then: &Stamp, present: &Side) -> bool {
        let Some(now) = present.meta.map(|meta| meta.stamp()) else { return true };
        if *then == now {
            return false;
        }
        let known = self.state.lock().digest_known(path, then);
        match known.zip(present.bytes.as_ref()) {
            Some((known, bytes)) => Digest::of(bytes) != known,
            None => !then.has_same_content(&now),
        }
    }
}

impl State {
    /// What was seen at a path and landed there a moment ago is gone.
    pub(in crate::overlay) fn forget_recent(&mut self, path: &RelPath) {
        self.seen.remove(path);
        self.forget_window(path);
    }

    /// The next write to a path is no part of what was written there before.
    pub(in crate::overlay) fn forget_window(&mut self, path: &RelPath) {
        self.windows.forget(path);
        let node = self.nodes.at(path).filter(|node| self.nodes.open_on(*node).is_some());
        node.into_iter().flat_map(|node| self.handles_on(node)).for_each(|handle| handle.begins_anew());
    }

    /// Lower's file at `path` was `before` and is `after` by our own doing, with the same content.
    pub(in crate::overlay) fn touched(&mut self, path: &RelPath, before: &Stamp, after: &Meta) {
        let stamp = after.stamp();
        for path in [path.clone()].into_iter().chain(self.others_of(path, before, &stamp)) {
            self.sights.unchanged(&path, before, &stamp);
            if let Some(seen) = self.seen.get_mut(&path).filter(|seen| seen.stamp.has_same_content(before)) {
                seen.stamp = stamp;
            }
            self.windows.touched(&path, before, &stamp);
            self.uppers.touched(&path, before, &stamp);
        }
        if let Some(node) = self.nodes.at(path) {
            self.epoch += 1;
            // An open under way has looked at the file as it was before.
            let epoch = self.epoch;
            self.nodes.open_on(node).into_iter().for_each(|open| open.changed_below(epoch));
            self.nodes.note_shown(node, &stamp);
            let handles = self.handles.values().filter(|handle| handle.node == node);
            handles.for_each(|handle| handle.touched(before, &stamp));
        }
    }

    /// The digest of what lower has at `path`, if it is known and the file is as at `then`, but for what a new name or
    /// mode changes.
    pub(in crate::overlay) fn digest_known(&self, path: &RelPath, then: &Stamp) -> Option<Digest> {
        self.seen.get(path).filter(|seen| seen.stamp.has_same_content(then))?.content.map(|kept| kept.digest)
    }

    /// The other paths of lower's file at `path`, if it still is the file that it was before an operation of ours.
    pub(in crate::overlay) fn others_of(&self, path: &RelPath, before: &Stamp, after: &Stamp) -> Vec<RelPath> {
        match before.number() == after.number() {
            true => self.nodes.other_paths(path),
            false => Vec::new(),
        }
    }

    /// Lower has `after` at a path by our own doing, with that content, where it had `before`.
    pub(in crate::overlay) fn put_there(
        &mut self,
        path: &RelPath,
        (before, after): (Option<&Meta>, Option<&Meta>),
        content: Option<Kept>,
    ) {
        if let Some(before) = before.filter(|before| after.is_none_or(|after| after.key() != before.key())) {
            self.nodes.gone(before);
        }
        let Some(after) = after else {
            self.seen.remove(path);
            return;
        };
        let stamp = after.stamp();
        let now = Seen { stamp, content, is_dir: after.is_dir() };
        if let Some(before) = before.map(Meta::stamp) {
            for other in self.others_of(path, &before, &stamp) {
                if let Some(seen) = self.seen.get_mut(&other).filter(|seen| seen.stamp.has_same_content(&before)) {
                    *seen = now.clone();
                }
            }
        }
        self.seen.insert(path.clone(), now);
    }

    /// What was seen of a file, and what landed from it a moment ago, goes with it to its new name.
    pub(in crate::overlay) fn recent_moved(&mut self, from: &RelPath, to: &RelPath) {
        self.seen_moved(from, to);
        self.windows.moved(from, to);
    }

    /// The same for a file that has its first name again.
    pub(in crate::overlay) fn recent_put_back(&mut self, from: &RelPath, path: &RelPath) {
        self.seen_moved(from, path);
        self.windows.moved_back(from, path);
        self.sights.moved(&[Move { from, to: path }], None, &[]);
    }

    /// A rename of ours has moved the ctime of what was seen or opened, and nothing else: the content needs no new look.
    pub(in crate::overlay) fn seen_renamed(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        if let Some(seen) = self.seen.get_mut(path).filter(|seen| seen.stamp == *before) {
            seen.stamp = *after;
        }
        let opened = self.handles.values().filter(|handle| handle.opened() == Some(*before));
        opened.for_each(|handle| handle.touched(before, after));
    }

    fn seen_moved(&mut self, from: &RelPath, to: &RelPath) {
        if let Some(seen) = self.seen.remove(from) {
            self.seen.insert(to.clone(), seen);
        }
    }

    /// Directories were renamed: what was known a moment ago of the files in them goes along.
    pub(in crate::overlay) fn recent_moved_dirs(&mut self, moves: &[Move<'_>]) {
        self.windows.moved_dirs(moves);
        let moved: Vec<_> = self.seen.keys().filter_map(|path| Some((path.clone(), Move::all(moves, path)?))).collect();
        let seen: Vec<_> = moved.into_iter().filter_map(|(path, to)| Some((to, self.seen.remove(&path)?))).collect();
        self.seen.extend(seen);
    }
}
