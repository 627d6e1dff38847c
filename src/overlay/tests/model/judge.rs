//! Settling in the model: what a path was is compared with what it became, and it lands or is held (SPEC §4-§7).

use super::reference::{Action, Anchor, Held, Known, Model, Upper, Window, WindowLength};
use super::tree::{Leaf, Node, Path, Thing};
use crate::model::{ChangeKind, Reason};
use crate::overlay::judge::compare::leaves_project;
use crate::policy::risk::{RiskSide, RiskSubject, RiskSwitches, signals};
use crate::policy::tier::{Facts, Verdict, judge};

/// What a path is judged against, and whether somebody else changed it meanwhile.
struct Old {
    thing: Option<Thing>,
    mode: u32,
    is_stale: bool,
}

impl Model {
    /// Judges the upper entry at `path`. True when it landed or was nothing new, false when it is held.
    pub(super) fn settle(&mut self, path: &str, because: &[Reason]) -> bool {
        let covering = self.uncover(path);
        let landed = self.judge(path, because);
        if let Some(covering) = covering {
            self.settle(&covering, because);
        }
        landed
    }

    /// The same, of what comes by a rename of its own.
    pub(super) fn judge(&mut self, path: &str, because: &[Reason]) -> bool {
        self.judged(path);
        let upper = self.upper[path].clone();
        let new = upper.leaf.as_ref().map(|leaf| leaf.thing.clone());
        if new == self.lower.thing(path) && !self.looks_wait(path, &upper) {
            if let (Some(ours), Some(theirs)) = (&upper.leaf, self.lower.leaf_mut(path)) {
                theirs.mode = ours.mode;
            }
            self.landed(path);
            return true;
        }
        let old = self.old_of(path, &upper);
        let reasons = self.reasons(path, &upper, &old, because);
        if reasons.is_empty() {
            self.land(path, &upper, old.thing);
            return true;
        }
        self.hold(path, old.thing, reasons);
        false
    }

    /// Whether it is a mode alone that a rule has reviewed.
    fn looks_wait(&self, path: &str, upper: &Upper) -> bool {
        let is_gated = self.rules.action(path) == Action::Hold
            || upper.held.as_ref().is_some_and(|held| held.reasons.contains(&Reason::Rule));
        let modes = upper.leaf.as_ref().zip(self.lower.leaf(path));
        is_gated && modes.is_some_and(|(ours, theirs)| ours.thing.is_file() && ours.mode != theirs.mode)
    }

    fn old_of(&mut self, path: &str, upper: &Upper) -> Old {
        let present = self.lower.leaf(path).cloned();
        let mode = present.as_ref().map_or(0, |leaf| leaf.mode);
        let of = |thing: Option<Thing>| Old { thing, mode, is_stale: false };
        if self.lower.is_dir(path) {
            return of(Some(Thing::Dir));
        }
        if let Some(held) = &upper.held {
            return of(held.base.clone());
        }
        if upper.moved_on || upper.below != present.as_ref().map(|leaf| leaf.stamp) {
            return Old { is_stale: true, ..of(present.map(|leaf| leaf.thing)) };
        }
        if let Some(first) = self.window_first(path) {
            return of(first);
        }
        match (present, self.anchors.get(path).map(|known| known.anchor.clone())) {
            (Some(present), _) => of(Some(present.thing)),
            (None, Some(Anchor::Content(thing))) => Old { mode: 0o644, ..of(Some(thing)) },
            (None, Some(Anchor::Moved { to, inode })) => match self.lower.leaf(&to) {
                Some(moved) if moved.inode == inode => Old { mode: moved.mode, ..of(Some(moved.thing.clone())) },
                // Somebody took it away below.
                _ => Old { is_stale: true, ..of(None) },
            },
            (None, Some(Anchor::Nothing) | None) => of(None),
        }
    }

    /// What several short writes in a row are one change against.
    fn window_first(&mut self, path: &str) -> Option<Option<Thing>> {
        match self.window {
            WindowLength::Each => None,
            WindowLength::Session => match self.open_window(path) {
                Some(Err(())) => {
                    let left = self.lower.leaf(path).map(|leaf| leaf.thing.clone());
                    self.begin_anew(path, left.map_or(Anchor::Nothing, Anchor::Content));
                    None
                }
                Some(Ok(first)) => Some(self.anchor_first(path).unwrap_or(first)),
                None => self.anchor_first(path),
            },
            WindowLength::Long => self.open_window(path)?.ok(),
        }
    }

    /// What the window of a path began with; an error when somebody else has ended it.
    fn open_window(&mut self, path: &str) -> Option<Result<Option<Thing>, ()>> {
        let window = self.windows.get(path)?;
        if window.landed == self.lower.leaf(path).map(|leaf| leaf.stamp) {
            return Some(Ok(window.first.clone()));
        }
        self.windows.remove(path);
        // What is made where nothing is any more is a change of what was there, whoever removed it.
        self.lower.get(path).map(|_| Err(()))
    }

    fn anchor_first(&self, path: &str) -> Option<Option<Thing>> {
        let known = self.anchors.get(path)?;
        match (&known.anchor, &known.from) {
            (Anchor::Content(thing), _) => Some(Some(thing.clone())),
            (Anchor::Nothing, None) => Some(None),
            // Older than its name: against what it was under the other.
            (Anchor::Nothing, Some(from)) => match &self.anchors.get(from)?.anchor {
                Anchor::Content(thing) => Some(Some(thing.clone())),
                Anchor::Nothing | Anchor::Moved { .. } => None,
            },
            (Anchor::Moved { .. }, _) => None,
        }
    }

    fn reasons(&self, path: &str, upper: &Upper, old: &Old, because: &[Reason]) -> Vec<Reason> {
        let mut reasons = because.to_vec();
        let kept = upper.held.iter().flat_map(|held| &held.reasons).filter(|reason| **reason != Reason::Size);
        let in_dirs_place = self.lower.is_dir(path);
        // Held for the directory it was in, which is asked anew.
        reasons.extend(kept.filter(|reason| **reason != Reason::Parent || upper.below.is_some() || in_dirs_place));
        if self.is_in_held_dir(path) {
            reasons.push(Reason::Parent);
        }
        if upper.held.is_some() && !in_dirs_place && !self.is_as_based(path, upper) {
            reasons.push(Reason::External);
        }
        if old.is_stale || (upper.held.is_none() && self.has_missed(path, old)) {
            reasons.push(Reason::Stale);
        }
        if self.rules.action(path) == Action::Hold {
            reasons.push(Reason::Rule);
        }
        let (before, leaf) = (old.thing.as_ref(), upper.leaf.as_ref());
        let new = leaf.map(|leaf| &leaf.thing);
        if let (Some(before), Some(new)) = (before, new)
            && !before.same_kind(new)
        {
            reasons.push(Reason::Type);
        }
        if matches!((before, new), (None, Some(Thing::File(_) | Thing::Symlink(_)))) && self.had_dir(path) {
            reasons.push(Reason::Type);
        }
        if let Some(Thing::Symlink(target)) = new
            && leaves_project(&super::path(path), target)
        {
            reasons.push(Reason::Symlink);
        }
        if let Some(Leaf { thing: Thing::File(content), mode, .. }) = leaf {
            let side = |content, mode| RiskSide { content, mode };
            let old = before.filter(|old| **old != Thing::Dir).map(|before| side(before.bytes(), old.mode));
            let subject = RiskSubject { old, new: side(content, *mode) };
            reasons.extend(signals(&subject, &RiskSwitches::default()).first().map(|_| Reason::Risk));
        }
        if before != Some(&Thing::Dir) && !(new.is_none() && self.loses_nothing(path)) {
            let facts = Facts::of(before.map(Thing::bytes), new.map(Thing::bytes));
            if let Verdict::Hold(reason) = judge(&facts, &super::thresholds()) {
                reasons.push(reason);
            }
        }
        reasons.sort();
        reasons.dedup();
        reasons
    }

    /// Whether somebody has removed what programs last saw at a path; of what went from there they saw no more under another
    /// name.
    fn has_missed(&self, path: &str, old: &Old) -> bool {
        let is_it = |(to, inode): (Path, u64)| self.lower.leaf(&to).is_some_and(|leaf| leaf.inode == inode);
        let went = || self.lower.get(path).is_none() && old.thing.is_some() && self.went_from(path).is_some_and(is_it);
        self.missed.contains(path) && !went()
    }

    /// What did not exist before the session may go (SPEC §4.4), unless it is all that is left of something older.
    pub(super) fn loses_nothing(&self, path: &str) -> bool {
        let came_from = match self.anchors.get(path).filter(|known| !known.by_dir) {
            Some(known) if !known.fresh => return false,
            Some(known) => known.from.clone(),
            None => match self.left_with_dirs(path) {
                Some(from) => Some(from),
                None => return false,
            },
        };
        came_from.is_none_or(|from| self.lower.leaf(&from).is_some() && matches!(self.at(&from), Some(Node::Leaf(_))))
    }

    fn land(&mut self, path: &str, upper: &Upper, old: Option<Thing>) {
        let present = self.lower.leaf(path).map(|leaf| leaf.thing.clone());
        let existed = present.is_some();
        let first = match &old {
            // What used to be here is gone or elsewhere; what comes next is judged against it too.
            Some(old) if !existed => Some(old.clone()),
            Some(_) | None => present.clone(),
        };
        let before = self.anchors.get(path).cloned();
        let unknown = match self.left_with_dirs(path) {
            Some(from) => Known { anchor: Anchor::Nothing, fresh: true, by_dir: false, from: Some(from), went: None },
            None => {
                let anchor = first.clone().map_or(Anchor::Nothing, Anchor::Content);
                Known { anchor, fresh: false, by_dir: false, from: None, went: None }
            }
        };
        self.replace(path, upper.leaf.clone());
        self.missed.remove(path);
        let mut known = before.unwrap_or(unknown);
        if let (Anchor::Moved { .. }, Some(thing), false) = (&known.anchor, &first, existed) {
            known.anchor = Anchor::Content(thing.clone());
        }
        if !existed {
            known.fresh = known.anchor == Anchor::Nothing;
        }
        known.fresh &= upper.leaf.is_some();
        known.from = known.from.filter(|_| existed && upper.leaf.is_some());
        (known.by_dir, known.went) = (false, None);
        self.anchors.insert(path.to_owned(), known);
        let landed = self.lower.leaf(path).map(|leaf| leaf.stamp);
        let opened = Window { opened_at: path.to_owned(), first, landed };
        let window = self.windows.entry(path.to_owned()).or_insert(opened);
        window.landed = landed;
        self.landed(path);
    }

    /// Lower has other content at `path`, or none, by our doing.
    pub(super) fn replace(&mut self, path: &str, leaf: Option<Leaf>) {
        let fresh = self.next();
        let replaced = match leaf {
            Some(leaf) => {
                let replaced = self.lower.remove(path);
                self.lower.put(path, Node::Leaf(Leaf { inode: fresh, stamp: fresh, ..leaf }));
                replaced
            }
            None => self.lower.remove(path),
        };
        let Some(Node::Leaf(replaced)) = replaced else { return };
        self.replaced.push(replaced.thing.bytes().to_vec());
        for known in self.anchors.values_mut() {
            if matches!(&known.anchor, Anchor::Moved { to, .. } if to == path) {
                known.anchor = Anchor::Content(replaced.thing.clone());
            }
            known.went = known.went.take().filter(|(to, _)| to != path);
        }
    }

    fn hold(&mut self, path: &str, base: Option<Thing>, reasons: Vec<Reason>) {
        self.put_back(path);
        let mode = self.own_mode(path);
        let present = self.lower.leaf(path).cloned();
        let landed = present.as_ref().map(|leaf| leaf.thing.clone());
        let Some(upper) = self.upper.get_mut(path) else { return };
        let found = match &upper.held {
            Some(held) => held.found.clone(),
            None => {
                upper.below = present.as_ref().map(|leaf| leaf.stamp);
                present
            }
        };
        upper.moved_on = false;
        let new = upper.leaf.as_ref().map(|leaf| leaf.thing.clone());
        let kind = match (base.as_ref().or(landed.as_ref()), &new) {
            (None, _) => ChangeKind::Create,
            (Some(_), None) => ChangeKind::Delete,
            (Some(old), Some(new)) if !old.same_kind(new) => ChangeKind::Type,
            (Some(_), Some(_)) => ChangeKind::Modify,
        };
        upper.held = Some(Held { kind, base, found, new, mode, reasons });
    }

    /// The old inode had been renamed away: lower has it back, and its other name becomes a copy (SPEC §4.3a).
    fn put_back(&mut self, path: &str) {
        let Some((to, inode)) = self.went_from(path) else { return };
        let is_free = self.upper[path].held.is_none() && self.lower.get(path).is_none();
        let Some(moved) = self.lower.leaf(&to).filter(|leaf| leaf.inode == inode).cloned() else { return };
        if !is_free || self.upper.contains_key(&to) || !moved.thing.is_file() || !self.may_exchange_names(path, &to) {
            return;
        }
        let copy = Leaf { inode: self.next(), ..moved.clone() };
        self.lower.put(path, Node::Leaf(moved));
        self.lower.put(&to, Node::Leaf(copy));
        self.anchors_put_back(path, &to, inode);
        if let Some(there) = self.anchors.get_mut(&to) {
            (there.fresh, there.from) = (there.anchor == Anchor::Nothing, Some(path.to_owned()));
        }
    }

    /// Where a rule waits, both its coming and its going are reviewed.
    fn may_exchange_names(&self, path: &str, to: &str) -> bool {
        [path, to].iter().all(|name| self.rules.action(name) == Action::Auto)
    }

    fn went_from(&self, path: &str) -> Option<(Path, u64)> {
        if self.is_in_held_dir(path) {
            return None;
        }
        let known = self.anchors.get(path)?;
        match &known.anchor {
            Anchor::Nothing => None,
            Anchor::Content(_) => known.went.clone(),
            Anchor::Moved { to, inode } => Some(known.went.clone().unwrap_or((to.clone(), *inode))),
        }
    }

    /// The inode has its last name again: the path is its own anchor, unless it had something else first.
    fn anchors_put_back(&mut self, path: &str, to: &str, inode: u64) {
        // What was opened where it was meanwhile is no window of this path.
        if self.windows.get(to).is_some_and(|window| window.opened_at == path)
            && let Some(window) = self.windows.remove(to)
        {
            self.windows.insert(path.to_owned(), window);
        }
        let home = match &self.anchors[path].anchor {
            Anchor::Moved { .. } => Anchor::Moved { to: path.to_owned(), inode },
            first => first.clone(),
        };
        self.anchors
            .insert(path.to_owned(), Known { anchor: home, fresh: false, by_dir: false, from: None, went: None });
        // A name that nothing came to had this content all along.
        if self.left_with_dirs(to).is_some() {
            let unknown = Known { anchor: Anchor::Nothing, fresh: false, by_dir: false, from: None, went: None };
            self.anchors.entry(to.to_owned()).or_insert(unknown);
        }
        if let Some(there) = self.anchors.get_mut(to) {
            (there.fresh, there.from, there.by_dir) = (false, None, false);
        }
    }

    /// What the path had stands below where something else covers it: it goes back before the path is judged, whose
    /// change is one of that; what covers the other name is new there.
    fn uncover(&mut self, path: &str) -> Option<String> {
        let ours = self.upper.get(path)?;
        let is_made = ours.leaf.is_some() && ours.held.is_none() && ours.below.is_none();
        let (to, inode) = self.went_from(path)?;
        let (theirs, moved) = (self.upper.get(&to)?.clone(), self.lower.leaf(&to)?.clone());
        let is_covered = to != path && moved.inode == inode && theirs.below == Some(moved.stamp);
        let came_here = self.anchors.contains_key(&to) || self.left_with_dirs(&to).is_some();
        if !is_made || !is_covered || self.lower.get(path).is_some() || !came_here {
            return None;
        }
        if !self.may_exchange_names(path, &to) {
            return None;
        }
        self.lower.rename(&to, path);
        self.anchors_put_back(path, &to, inode);
        if let Some(ours) = self.upper.get_mut(path) {
            (ours.below, ours.held) = (Some(moved.stamp), theirs.held);
        }
        if let Some(theirs) = self.upper.get_mut(&to) {
            (theirs.below, theirs.held) = (None, None);
        }
        let is_unjudged = self.handles.values().any(|handle| handle.is_at(&to) && handle.is_unjudged());
        (!is_unjudged).then_some(to)
    }
}
