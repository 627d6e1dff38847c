//! Windows: several short writes in a row are one change (SPEC §4.6).
//!
//! A landing opens a window, which says what the next writes are judged against: the content before the first landing.
//! The window belongs to the file: it follows renames and counts for writes through any of the file's names, even if the
//! name that landed has gone or been replaced. An edit by someone else ends it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{Digest, RelPath, Stamp};
use crate::overlay::error::Context;
use crate::overlay::files::handles::OpenFile;
use crate::overlay::judge::claim::Job;
use crate::overlay::judge::side::Side;
use crate::overlay::names::carry::Move;
use crate::overlay::{Overlay, Result, State};
use crate::policy::settings::Window as Setting;
use crate::store::{AnchorState, Kept, Known, RecentLanding, WindowNote};
use crate::sys::file::Meta;

/// How many windows are remembered before old ones are searched for.
const WINDOWS_MAX: usize = 4096;

/// A temporary file is renamed over its target within this time. One that stands for longer is meant to stay.
const TEMPORARY_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(in crate::overlay) struct Windows {
    at: HashMap<RelPath, Window>,
    /// The windows of files with several names, by inode (device, number).
    of: HashMap<(u64, u64), Window>,
    /// How many were left after the last search for old ones.
    left: usize,
}

#[derive(Clone)]
struct Window {
    /// Where it was opened, by the name that the path had then.
    opened_at: RelPath,
    first: Option<Kept>,
    last: Instant,
    /// What the last landing left in lower. Anything else there was put there by someone else, and ends the window.
    landed: Option<Stamp>,
    learnt_from: LearntFrom,
}

/// Where the knowledge of what a landing left comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LearntFrom {
    /// This daemon, which landed it and has noted what else it did to it since.
    Landing,
    /// The log, after a crash. The file may have been given other times since; then its content tells, if it was hashed.
    Log(Option<Digest>),
}

/// A window of a path, when it is about to be judged.
enum Found {
    None,
    Open(Window),
    /// Someone else has changed what lower has there.
    Ended,
}

impl Window {
    fn touched(&mut self, before: &Stamp, after: &Stamp) {
        if let Some(landed) = self.landed.as_mut().filter(|landed| landed.has_same_content(before)) {
            *landed = *after;
        }
    }

    /// Where it was opened, if that is not at `path`.
    fn opened_elsewhere(&self, path: &RelPath) -> Option<RelPath> {
        (self.opened_at != *path).then(|| self.opened_at.clone())
    }

    fn is_as_left(&self, present: Option<Stamp>) -> bool {
        match (self.landed, present) {
            (Some(landed), Some(present)) => landed.has_same_content(&present),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Overlay {
    /// The content before the first of several writes that are one change; `None` if this write is judged alone.
    pub(in crate::overlay) fn window_first(&self, path: &RelPath, present: &Side) -> Result<Option<Option<Kept>>> {
        let setting = self.policy().settings.window;
        if setting == Setting::Each {
            return Ok(None);
        }
        self.recognise(path, present)?;
        let mut state = self.state.lock();
        let found = state.windows.find(path, present);
        Ok(match (setting, found) {
            (Setting::Seconds(length), Found::Open(window)) if window.last.elapsed() <= length => {
                let first = window.first;
                self.go_on_by(&mut state, path, window)?;
                Some(first)
            }
            (Setting::Session, Found::Ended) => {
                drop(state);
                self.begin_anew_from(path, present)?;
                None
            }
            (Setting::Session, Found::Open(window)) => {
                let first = window.first;
                self.go_on_by(&mut state, path, window)?;
                Some(state.anchor_first(path, present).unwrap_or(first))
            }
            (Setting::Session, Found::None) => state.anchor_first(path, present),
            (Setting::Seconds(_) | Setting::Each, _) => {
                state.windows.end(path, present);
                None
            }
        })
    }

    /// After a crash only the log tells what landed, and the file may have other times by now: with the same content it
    /// is as it landed.
    fn recognise(&self, path: &RelPath, present: &Side) -> Result<()> {
        let Some(now) = present.meta.map(|meta| meta.stamp()) else { return Ok(()) };
        let told = self.state.lock().windows.told_otherwise(path, &now);
        let Some((landed, content)) = told else { return Ok(()) };
        let is_it = match content {
            Some(content) => present.hash().doing(|| format!("hash {path}"))? == Some(content),
            // It was too large to be hashed when it landed.
            None => true,
        };
        if is_it {
            self.state.lock().windows.touched(path, &landed, &now);
        }
        Ok(())
    }

    /// The same for what is written through one handle that was opened longer ago than the window (SPEC §4.1).
    pub(in crate::overlay) fn handle_first(&self, job: &Job) -> Option<Option<Kept>> {
        let through = job.through.as_ref()?;
        match self.policy().settings.window {
            Setting::Seconds(_) => through.first_at(job.row.path()),
            Setting::Each | Setting::Session => None,
        }
    }

    /// Restores windows that were open when the last daemon died, except those that an act of that daemon ended.
    pub(in crate::overlay) fn restore_windows(&self) -> Result<()> {
        let age_max = match self.policy().settings.window {
            Setting::Each => return Ok(()),
            Setting::Seconds(length) => length,
            Setting::Session => Duration::MAX,
        };
        let landings = self.store.recent_landings(age_max)?;
        for mut landing in landings {
            let there = self.seen_at(&landing.path);
            if self.has_gone_back(&landing, there.as_ref()) {
                // The window stays here, with the copy if there is one.
                let Some(copy) = &there else { continue };
                landing.note.file = Some(copy.number());
            }
            let mut state = self.state.lock();
            let is_older = state.past.get(&landing.path).is_some_and(|known| known.from.is_some());
            // See `older_came`.
            if landing.note.first.is_some() || !is_older {
                state.windows.restore(&landing, there.as_ref());
            }
        }
        Ok(())
    }

    /// True if what landed has its first name again, the window was not opened there, and `there` is something else: see
    /// `moved_back`.
    fn has_gone_back(&self, landing: &RecentLanding, there: Option<&Meta>) -> bool {
        let Some(file) = landing.note.file else { return false };
        let is_it = |there: &Meta| there.number() == file;
        let is_at = |path: &RelPath| self.seen_at(path).as_ref().is_some_and(is_it);
        if there.is_some_and(is_it) || is_at(landing.opened_at()) {
            return false;
        }
        let known = self.state.lock().past.get(&landing.path).cloned();
        match known {
            Some(Known { from: Some(from), .. }) => is_at(&from),
            // Nothing is left here.
            Some(Known { put_back, went, .. }) => put_back && went.is_none(),
            None => false,
        }
    }

    /// Returns what is at a path, or `None` also where one may not look, which must not make a start fail: the window of a
    /// file goes on once the file is seen again, as by another name.
    fn seen_at(&self, path: &RelPath) -> Option<Meta> {
        self.lower.stat(path).unwrap_or_else(|err| {
            log::error!("look at {path}, to go on with its window: {err}");
            None
        })
    }

    /// A file that landed by one of its names goes on by another: it is the same change, judged against the same content.
    fn go_on_by(&self, state: &mut State, path: &RelPath, window: Window) -> Result<()> {
        let first = window.first;
        state.windows.at.insert(path.clone(), window);
        first.map_or(Ok(()), |first| self.note_first(state, path, first))
    }

    /// What a lower file had before it landed by another of its names is what this name had first, too. Noted before the
    /// name goes elsewhere, or becomes another file.
    pub(in crate::overlay) fn note_first_by_any_name(&self, path: &RelPath, meta: &Meta) -> Result<()> {
        let stamp = meta.stamp();
        let mut state = self.state.lock();
        let window = state.windows.of.get(&stamp.number()).filter(|window| window.is_as_left(Some(stamp)));
        match window.and_then(|window| window.first) {
            Some(first) => self.note_first(&mut state, path, first),
            None => Ok(()),
        }
    }

    fn note_first(&self, state: &mut State, path: &RelPath, first: Kept) -> Result<()> {
        if state.past.get(path).is_some() {
            return Ok(());
        }
        let mut anchors = state.past.moved_to(path, first);
        anchors.push(Known::of(AnchorState::Content(first)).as_anchor(path));
        self.store.save_anchors(&anchors)?;
        state.know(anchors);
        Ok(())
    }

    /// What someone else left at a path is what the path is judged against for the rest of the session.
    pub(in crate::overlay) fn begin_anew_from(&self, path: &RelPath, present: &Side) -> Result<()> {
        let content = present.stage_found(&self.store)?;
        content.iter().try_for_each(|content| self.store.keep_content(content))?;
        let kept = content.map(|content| present.kept_as(content.digest));
        let mut state = self.state.lock();
        let anchors = state.past.begun_anew(path, kept, present.meta.map(|meta| meta.stamp()));
        self.store.save_anchors(&anchors)?;
        state.know(anchors);
        Ok(())
    }
}

impl State {
    /// A landing was judged against `old`: its handle goes on from that, and all other handles on the file from what the
    /// landing has left (SPEC §4.1).
    pub(in crate::overlay) fn goes_on(&self, job: &Job, old: Option<Kept>) {
        let through = job.through.as_ref();
        if let Some(through) = through {
            through.lands(job.row.path(), old);
        }
        let has_others = |open: &&Arc<OpenFile>| through.is_none() || open.writers() > 1;
        let Some(open) = job.open.as_ref().filter(has_others) else { return };
        let others = self.handles_on(open.node).filter(|handle| through.is_none_or(|own| !Arc::ptr_eq(own, handle)));
        others.for_each(|other| other.begins_anew());
    }

    /// What a path is judged against until the session ends, if something has happened to it.
    fn anchor_first(&self, path: &RelPath, present: &Side) -> Option<Option<Kept>> {
        match (self.past.had(path)?, self.past.older_from(path).filter(|_| present.exists())) {
            (AnchorState::Content(kept), _) => Some(Some(*kept)),
            // What came with a directory, or from someone else, is not a change of the nothing that was here.
            (AnchorState::Nothing, None) if present.exists() && !self.past.is_fresh(path) => None,
            (AnchorState::Nothing, None) => Some(None),
            // It is older than its name, and judged against what it was under the former one.
            (AnchorState::Nothing, Some(from)) => match self.past.had(&from)? {
                AnchorState::Content(kept) => Some(Some(*kept)),
                AnchorState::Nothing | AnchorState::Moved { .. } => None,
            },
            (AnchorState::Moved { .. }, _) => None,
        }
    }
}

impl Windows {
    fn find(&mut self, path: &RelPath, present: &Side) -> Found {
        let stamp = present.meta.map(|meta| meta.stamp());
        let of_inode = stamp.and_then(|stamp| self.of.get(&stamp.number()));
        // The inode number may be another file's by now.
        let of_inode = of_inode.filter(|window| window.learnt_from == LearntFrom::Landing || window.is_as_left(stamp));
        let windows = [self.at.get(path), of_inode];
        if let Some(open) = windows.into_iter().flatten().find(|window| window.is_as_left(stamp)) {
            let is_own = self.at.get(path).is_some_and(|own| own.is_as_left(stamp));
            let opened_at = if is_own { open.opened_at.clone() } else { path.clone() };
            return Found::Open(Window { opened_at, ..open.clone() });
        }
        if windows.iter().all(Option::is_none) {
            return Found::None;
        }
        self.end(path, present);
        // What is made at a free path is a change of what was there, whoever removed that.
        if present.exists() { Found::Ended } else { Found::None }
    }

    /// True if what was judged at a path a moment ago was judged together with what had landed there before.
    pub fn is_open(&self, path: &RelPath, setting: Setting) -> bool {
        setting != Setting::Each && self.at.contains_key(path)
    }

    /// True if lower has at `path` what landed there a moment ago, and no one else has changed it since.
    pub fn has_just_landed(&self, path: &RelPath, present: &Stamp) -> bool {
        let is_it = |window: &Window| window.is_as_left(Some(*present)) && window.last.elapsed() <= TEMPORARY_MAX;
        self.at.get(path).is_some_and(is_it)
    }

    /// The content that the next writes are judged against.
    pub fn needed_content(&self) -> impl Iterator<Item = Digest> {
        let firsts = self.at.values().chain(self.of.values()).filter_map(|window| window.first);
        firsts.map(|kept| kept.digest)
    }

    /// What the log is to say of a landing about to come: it goes on with an open window, or opens one.
    pub fn note_of_landing(
        &self,
        path: &RelPath,
        judged_against: Option<Kept>,
        setting: Setting,
    ) -> Option<WindowNote> {
        let window = self.at.get(path);
        let first = window.map_or(judged_against, |window| window.first);
        let opened_at = window.and_then(|window| window.opened_elsewhere(path));
        (setting != Setting::Each).then(|| WindowNote::now(opened_at, first, None))
    }

    /// The same for a landing that has come; `None` if what comes next is judged by itself.
    pub fn note_of_landed(&self, path: &RelPath) -> Option<WindowNote> {
        let window = self.at.get(path)?;
        Some(WindowNote::now(window.opened_elsewhere(path), window.first, window.landed.map(|landed| landed.number())))
    }

    /// Restores the window of a landing in the log; `there` is what its path has now. Called for the latest landings
    /// first.
    fn restore(&mut self, landing: &RecentLanding, there: Option<&Meta>) {
        let there = there.filter(|meta| !meta.is_dir()).map(|meta| (meta.stamp(), meta.links));
        let mut landed = landing.stamp();
        if let (Some(landed), None, Some((there, _))) = (&mut landed, landing.note.file, there) {
            (landed.device, landed.inode) = there.number();
        }
        let now = Instant::now();
        let window = Window {
            opened_at: landing.opened_at().clone(),
            first: landing.note.first,
            last: now.checked_sub(landing.age).unwrap_or(now),
            landed,
            learnt_from: LearntFrom::Log(landing.left.and_then(|left| left.content).map(|kept| kept.digest)),
        };
        let here = there.filter(|(there, _)| landed.is_some_and(|landed| landed.number() == there.number()));
        if landing.is_last && (landed.is_none() || here.is_some()) {
            self.at.entry(landing.path.clone()).or_insert_with(|| window.clone());
        }
        // It is found by another name, which it had or which a rename has given it.
        if let Some(landed) = landed.filter(|_| here.is_none_or(|(_, links)| links > 1)) {
            self.of.entry(landed.number()).or_insert(window);
        }
    }

    /// If the log says that what is at `path` landed with other times: its stamp then, and its content.
    fn told_otherwise(&self, path: &RelPath, now: &Stamp) -> Option<(Stamp, Option<Digest>)> {
        let windows = [self.at.get(path), self.of.get(&now.number())];
        windows.into_iter().flatten().find_map(|window| match (window.learnt_from, window.landed) {
            (LearntFrom::Log(content), Some(landed))
                if landed.number() == now.number() && landed.size == now.size && landed.mtime != now.mtime =>
            {
                Some((landed, content))
            }
            (LearntFrom::Log(_) | LearntFrom::Landing, _) => None,
        })
    }

    fn end(&mut self, path: &RelPath, present: &Side) {
        self.at.remove(path);
        if let Some(meta) = present.meta {
            self.of.remove(&meta.number());
        }
    }

    /// A landing at `path` has left `landed` there; a window that it opens begins with what it was `judged_against`.
    pub fn note(&mut self, path: &RelPath, judged_against: Option<Kept>, landed: Option<&Meta>, setting: Setting) {
        let last = Instant::now();
        let stamp = landed.map(Meta::stamp);
        let opened = || Window {
            opened_at: path.clone(),
            first: judged_against,
            last,
            landed: stamp,
            learnt_from: LearntFrom::Landing,
        };
        let window = self.at.entry(path.clone()).or_insert_with(opened);
        (window.last, window.landed, window.learnt_from) = (last, stamp, LearntFrom::Landing);
        let window = window.clone();
        if let Some(landed) = landed.filter(|landed| landed.links > 1) {
            self.of.insert(landed.number(), window);
        }
        // If thousands land within one window none of them is old. The search is repeated only at twice as many, and so
        // costs each landing next to nothing.
        if self.len() > WINDOWS_MAX.max(2 * self.left) {
            self.forget_old(setting, last);
        }
    }

    /// With a setting that has no length no window is old.
    pub fn forget_old(&mut self, setting: Setting, now: Instant) {
        let Setting::Seconds(length) = setting else { return };
        let is_open = |window: &Window| now - window.last <= length;
        self.at.retain(|_, window| is_open(window));
        self.of.retain(|_, window| is_open(window));
        self.left = self.len();
    }

    fn len(&self) -> usize {
        self.at.len() + self.of.len()
    }

    /// A file gets a further name: the window of its landing at `path` counts for both from now on.
    pub fn linked(&mut self, path: &RelPath, meta: &Meta) {
        let stamp = meta.stamp();
        if let Some(window) = self.at.get(path).filter(|window| window.is_as_left(Some(stamp))) {
            self.of.insert(stamp.number(), window.clone());
        }
    }

    /// Older content has come to `path`, where all that came before was new: the next change to it is judged by itself.
    pub fn older_came(&mut self, path: &RelPath) {
        if self.at.get(path).is_some_and(|window| window.first.is_none()) {
            self.at.remove(path);
        }
    }

    pub fn forget(&mut self, path: &RelPath) {
        self.at.remove(path);
    }

    /// A rename in between does not make one change two (SPEC §4.6).
    pub fn moved(&mut self, from: &RelPath, to: &RelPath) {
        if let Some(window) = self.at.remove(from) {
            self.at.insert(to.clone(), window);
        }
    }

    /// A renamed file is back at `path`. A window that was opened at the other name meanwhile does not come along.
    pub fn moved_back(&mut self, from: &RelPath, path: &RelPath) {
        if self.at.get(from).is_some_and(|window| window.opened_at == *path) {
            self.moved(from, path);
        }
    }

    /// Only windows of files that are there move: what was deleted from a path stays with the path.
    pub fn moved_dirs(&mut self, moves: &[Move<'_>]) {
        let there = self.at.iter().filter(|(_, window)| window.landed.is_some());
        let moved: Vec<_> = there.filter_map(|(path, _)| Some((path.clone(), Move::all(moves, path)?))).collect();
        let windows: Vec<_> = moved.into_iter().filter_map(|(path, to)| Some((to, self.at.remove(&path)?))).collect();
        self.at.extend(windows);
    }

    /// What a landing left at `path` was `before` and is `after` by our own doing, with the same content.
    pub fn touched(&mut self, path: &RelPath, before: &Stamp, after: &Stamp) {
        // If a copy took its place, its other names are still those of the inode.
        let shared = self.of.get_mut(&before.number()).filter(|_| before.number() == after.number());
        let windows = self.at.get_mut(path).into_iter().chain(shared);
        windows.for_each(|window| window.touched(before, after));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn old_ones_are_looked_for_when_there_are_too_many_and_then_when_there_are_twice_as_many() {
        let mut windows = Windows::default();
        let mut note = |number: usize, length| {
            let path = RelPath::parse(format!("f{number}").as_bytes()).unwrap();
            windows.note(&path, None, None, Setting::Seconds(length));
            windows.len()
        };
        let (hour, at_once) = (Duration::from_secs(3600), Duration::ZERO);
        let looked = WINDOWS_MAX + 1;
        (0..looked).for_each(|number| assert_eq!(note(number, hour), number + 1));
        assert_eq!(note(looked, at_once), looked + 1, "none was old when they were looked at, and now nobody looks");
        (looked + 1..2 * looked).for_each(|number| assert_eq!(note(number, hour), number + 1));
        assert!(note(2 * looked, at_once) < looked, "those before are old");
    }
}
