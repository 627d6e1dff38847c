//! Changes that others made below (SPEC §9): what they are, and the one event that tells of each.
//!
//! A path is compared with what fettlefs last knew of it: the base of what is held there, else what it last put there.
//! Code that sees a sign of a change only names the path ([`Overlay::doubt`]); a thread of its own looks at it and
//! records the event, since a look may hash a large file. Code that is about to replace or pass over what someone else
//! has put there, so that no later look could find it, tells of it in its own record ([`Overlay::unheralded`]).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::{ChangeKind, Digest, RelPath, Stamp, Timestamp};
use crate::overlay::error::Context;
use crate::overlay::judge::side::Side;
use crate::overlay::review::{Reviewed, failed};
use crate::overlay::{Error, Overlay, Result, Seen, State};
use crate::policy::rules::Action;
use crate::protocol::{EventName, ExternalKind};
use crate::store::{AnchorState, Base, Below, EventDraft, Kept, Known};
use crate::sys::file::{FileKind, Meta, Standing};
use crate::sys::tree::StatInTurn;

/// How long a path must be left alone before it is looked at: one save, one event.
const QUIET: Duration = Duration::from_millis(100);

/// It is looked at after this time at the latest.
const LATEST: Duration = Duration::from_secs(1);

/// What fettlefs knows that lower has at a path, unless someone else has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Nothing,
    Content(Seen),
    /// A directory, whatever is in it.
    Directory,
}

/// What someone else has put at a path, or that it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outside {
    kind: ExternalKind,
    standing: Standing,
    digest: Option<Digest>,
    size: Option<u64>,
}

/// What the last event of a path told.
enum LastTold {
    /// An earlier daemon told this content, and nothing of ours has landed there since.
    Before(Option<Digest>),
    /// This daemon told it, with what was known of the path then.
    Now(Outside, Expected),
}

/// Paths that others may have changed.
#[derive(Default)]
pub(in crate::overlay) struct Doubts {
    doubted: Mutex<Doubted>,
    arrived: Condvar,
}

#[derive(Default)]
struct Doubted {
    paths: BTreeSet<RelPath>,
    /// When the latest of them came.
    latest: Option<Instant>,
    /// Set while a thread serves the queue: before [`Overlay::tell_external_until_the_end`] and after its end nothing is
    /// queued.
    is_served: bool,
    is_ending: bool,
}

/// What this daemon has told, and what an earlier one told if nothing of ours has landed at the path since.
#[derive(Default)]
pub(in crate::overlay) struct Heralded(HashMap<RelPath, LastTold>);

/// What others did to the paths that fettlefs knows.
pub struct LookedAt {
    /// Sorted by path.
    pub changed: Vec<(RelPath, ExternalKind)>,
    /// What could not be looked at, and why. A directory may be a network's that is away, or closed to this process.
    pub unseen: Vec<(RelPath, Error)>,
}

impl Overlay {
    /// Returns how others changed a path that fettlefs knows (SPEC §9). Times are only a hint; the hash decides.
    pub fn externally(&self, path: &RelPath) -> Result<Option<ExternalKind>> {
        self.externally_of(path, || self.lower.stat(path))
    }

    fn externally_of(
        &self,
        path: &RelPath,
        stat: impl FnOnce() -> io::Result<Option<Meta>>,
    ) -> Result<Option<ExternalKind>> {
        let Some(expected) = self.state.lock().expected(path) else { return Ok(None) };
        let meta = stat().doing(|| format!("stat {path}"))?;
        let outside = self.outside_of(path, &expected, meta)?;
        if outside.is_some() {
            self.doubt(path);
        }
        Ok(outside.map(|outside| outside.kind))
    }

    pub fn external_paths(&self) -> LookedAt {
        let mut paths: Vec<RelPath> = {
            let state = self.state.lock();
            let held = state.uppers.iter().filter(|upper| upper.row.held.is_some());
            state.seen.keys().cloned().chain(held.map(|upper| upper.row.path().clone())).collect()
        };
        paths.sort();
        paths.dedup();
        let mut looked = LookedAt { changed: Vec::new(), unseen: Vec::new() };
        // In order of path, so that each directory is opened once.
        let mut look = StatInTurn::of(&self.lower);
        for path in paths {
            match self.externally_of(&path, || look.stat(&path)) {
                Ok(Some(kind)) => looked.changed.push((path, kind)),
                Ok(None) => {}
                Err(err) => looked.unseen.push((path, err)),
            }
        }
        looked
    }

    /// Returns whether someone else has changed or replaced what we have made, moved or changed, so that it is theirs. From
    /// then on it counts as older than the session: it does not go without review, and what comes in its place is judged
    /// against it. What cannot be looked at counts as theirs. `read` is what has just been read there, and decides it; the
    /// caller makes sure that it is still there.
    pub(in crate::overlay) fn became_anothers(&self, path: &RelPath, read: Option<&Side>) -> bool {
        self.begin_anew_with_anothers(path, read).unwrap_or_else(|err| {
            log::warn!("look whether somebody else has changed {path}: {err}");
            true
        })
    }

    fn begin_anew_with_anothers(&self, path: &RelPath, mut read: Option<&Side>) -> Result<bool> {
        loop {
            let expected = {
                let state = self.state.lock();
                if !state.is_ours(path) {
                    return Ok(false);
                }
                state.expected(path)
            };
            let Some(expected) = expected else { return Ok(false) };
            match self.outside(path, &expected, read.take())? {
                Some(outside) if outside.kind != ExternalKind::Deleted => {}
                Some(_) | None => return Ok(false),
            }
            let present = self.present_side(path)?;
            // Otherwise something of ours landed during the look.
            if self.state.lock().expected(path).as_ref() == Some(&expected) {
                self.begin_anew_from(path, &present)?;
                return Ok(true);
            }
        }
    }

    /// To be called before what is at a path is renamed away: what comes there is going to be judged by what it was. Whether
    /// what came in this session is still ours is asked where that matters.
    pub(in crate::overlay) fn note_anothers_within(&self, path: &RelPath, kind: FileKind) {
        let touched: Vec<RelPath> = {
            let state = self.state.lock();
            let is_older = |path: &&RelPath| state.is_ours(path) && !state.past.is_fresh(path);
            match kind {
                FileKind::Directory => {
                    state.seen.keys().filter(|touched| touched.is_within(path)).filter(is_older).cloned().collect()
                }
                _ => Some(path).filter(is_older).cloned().into_iter().collect(),
            }
        };
        for path in touched {
            self.became_anothers(&path, None);
        }
    }

    /// True if what is at a path is as we left it there. Where we only brought it there, from `from`, it is if that was
    /// judged against it, or has it again.
    pub(in crate::overlay) fn is_as_brought(
        &self,
        path: &RelPath,
        from: &RelPath,
        read: Option<&Side>,
    ) -> Result<bool> {
        let (expected, had) = {
            let state = self.state.lock();
            (state.expected(path), state.past.had(from).cloned())
        };
        if let Some(expected) = expected {
            return Ok(self.outside(path, &expected, read)?.is_none());
        }
        let mut present = self.present_side(path)?;
        let is_what_was_there = match had {
            Some(AnchorState::Content(kept)) => present.kept().doing(|| format!("hash {path}"))? == Some(kept),
            Some(AnchorState::Moved { to, stamp }) => {
                to == *path && present.meta.is_some_and(|meta| stamp.has_same_content(&meta.stamp()))
            }
            Some(AnchorState::Nothing) | None => false,
        };
        let is_there_again = || present.same_as(&self.present_side(from)?).doing(|| format!("compare {path}"));
        Ok(is_what_was_there || is_there_again()?)
    }

    fn outside(&self, path: &RelPath, expected: &Expected, read: Option<&Side>) -> Result<Option<Outside>> {
        let meta = read.map_or_else(|| self.meta_below(path), |side| Ok(side.meta))?;
        self.outside_of(path, expected, meta)
    }

    fn outside_of(&self, path: &RelPath, expected: &Expected, meta: Option<Meta>) -> Result<Option<Outside>> {
        let is_as_expected = match meta {
            Some(meta) => expected.is_told_by(&meta),
            None => matches!(expected, Expected::Nothing | Expected::Directory),
        };
        if is_as_expected {
            // Without reading the content, as nearly always.
            return Ok(None);
        }
        let mut present = self.present_side(path)?;
        let content = present.kept().doing(|| format!("hash {path}"))?;
        let outside = expected.differs(&present, content);
        if let (None, Some(meta)) = (&outside, meta) {
            self.state.lock().found_same(path, expected, &meta.stamp());
        }
        Ok(outside)
    }

    /// Notes that others may have changed what is at a path. Not to be called with `state` locked.
    pub(in crate::overlay) fn doubt(&self, path: &RelPath) {
        if self.state.lock().expected(path).is_some() {
            self.doubts.add(path);
        }
    }

    /// Records what others do below to paths that fettlefs knows, until [`Self::end_doubts`]; begins with what they did
    /// while no daemon ran.
    pub fn tell_external_until_the_end(&self) {
        if let Err(err) = self.begin_doubts() {
            log::error!("look for what changed below meanwhile: {err}");
        }
        while let Some(paths) = self.doubts.wait() {
            paths.iter().for_each(|path| self.tell_external(path));
        }
    }

    pub(in crate::overlay) fn begin_doubts(&self) -> Result<()> {
        let (held, touched) = {
            let state = self.state.lock();
            let held = state.uppers.iter().filter(|upper| upper.row.held.is_some());
            let held: Vec<RelPath> = held.map(|upper| upper.row.path().clone()).collect();
            (held, state.past.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>())
        };
        // A new session has nothing to remember.
        if !held.is_empty() || !touched.is_empty() {
            let told = self.store.told_external()?;
            let told = told.into_iter().map(|(path, digest)| (path, LastTold::Before(digest)));
            self.state.lock().heralded.0.extend(told);
        }
        if !touched.is_empty() {
            let put = self.store.last_put()?;
            touched.iter().filter_map(|path| Some((path, *put.get(path)?))).try_for_each(|put| self.remember(put))?;
        }
        self.doubts.serve(held.into_iter().chain(touched).collect());
        Ok(())
    }

    /// Makes known again what an earlier daemon has put at a path in this session.
    fn remember(&self, (path, content): (&RelPath, Kept)) -> Result<()> {
        let mut present = self.present_side(path)?;
        let now = present.kept().doing(|| format!("hash {path}"))?;
        let found = present.meta.map(|meta| meta.stamp());
        let stamp = match found {
            Some(stamp) if now == Some(content) => stamp,
            // Of what it was like, only the content is known any more.
            Some(stamp) => Stamp { mtime: Timestamp::default(), ..stamp },
            None => Stamp::default(),
        };
        let mut state = self.state.lock();
        let is_there_still = self.meta_below(path)?.map(|meta| meta.stamp()) == found;
        let went_by_itself = found.is_none() && !state.is_to_be_there(path);
        if is_there_still && !went_by_itself {
            // Unless something of ours has come there since this daemon began.
            state.seen.entry(path.clone()).or_insert(Seen { stamp, content: Some(content), is_dir: false });
        }
        Ok(())
    }

    /// What is in doubt now is still told; nothing that comes later is.
    pub fn end_doubts(&self) {
        self.doubts.end();
    }

    /// Records that others changed a path, if they did and if that was not told yet.
    pub(in crate::overlay) fn tell_external(&self, path: &RelPath) {
        if self.fault().is_some() {
            return;
        }
        let told = self.news_of(path).and_then(|news| match news {
            Some(event) => {
                self.store.record(&event)?;
                self.begin_anew_with_anothers(path, None).map(|_| ())
            }
            None => Ok(()),
        });
        if let Err(err) = told {
            // The next sign of the change tells it.
            self.state.lock().heralded.0.remove(path);
            log::error!("record that {path} was changed below: {err}");
        }
    }

    /// Records at once what would otherwise be told within a second. Fails if something cannot be looked at.
    pub fn tell_all_external(&self) -> Reviewed<()> {
        let LookedAt { changed, unseen } = self.external_paths();
        changed.iter().for_each(|(path, _)| self.tell_external(path));
        unseen.first().map_or(Ok(()), |(path, err)| Err(failed(path, err)))
    }

    fn news_of(&self, path: &RelPath) -> Result<Option<EventDraft>> {
        loop {
            let Some(expected) = self.state.lock().expected(path) else { return Ok(None) };
            let Some(outside) = self.outside(path, &expected, None)? else {
                // The path is as it was. If the same change comes once more, it is another one.
                self.state.lock().heralded.0.remove(path);
                return Ok(None);
            };
            if self.action(path, FileKind::Regular) == Action::Pass {
                return Ok(None);
            }
            let mut state = self.state.lock();
            if state.expected(path).as_ref() != Some(&expected) {
                // Something of ours landed during the look.
                continue;
            }
            if state.heralded.has(path, &expected, &outside) {
                return Ok(None);
            }
            let event = self.external_event(&state, path, &outside);
            state.heralded.0.insert(path.clone(), LastTold::Now(outside, expected));
            return Ok(Some(event));
        }
    }

    fn external_event(&self, state: &State, path: &RelPath, outside: &Outside) -> EventDraft {
        let held = state.uppers.held_at(path);
        self.event(EventName::ExternalModified, path).with(|event| {
            event.id = held.map(|held| held.id.to_string());
            event.sha256 = outside.digest;
            event.bytes = outside.size;
            event.message = Some(outside.kind.word().to_owned());
        })
    }

    /// Returns the event that tells what someone else had put at `path` by the time we make something of it there, unless
    /// it was told already: `base` is what our change was based on, `present` what it found, `content` the content of
    /// that.
    pub(in crate::overlay) fn unheralded(
        &self,
        state: &State,
        path: &RelPath,
        base: &Base,
        (present, content): (&Side, Option<Kept>),
    ) -> Option<EventDraft> {
        let expected = state.expected(path).unwrap_or_else(|| Expected::of_base(base));
        let outside = expected.differs(present, content)?;
        (!state.heralded.has(path, &expected, &outside)).then(|| self.external_event(state, path, &outside))
    }
}

impl State {
    /// True if lower must have something at a path that content was put at, unless someone else took it away. A file that
    /// came in this session may have gone without a trace; that an older one went, an event tells.
    fn is_to_be_there(&self, path: &RelPath) -> bool {
        let is_to_be = |known: &Known| {
            let had_content = matches!(known.had, Some(AnchorState::Content(_) | AnchorState::Moved { .. }));
            known.is_fresh() || (had_content && !known.put_back)
        };
        self.past.get(path).is_some_and(is_to_be)
    }

    /// True if something is known of a path by which what is there may count as ours. What is held there is judged against
    /// its base, whatever was there before.
    fn is_ours(&self, path: &RelPath) -> bool {
        let is_held = || self.uppers.upper_at(path).is_some_and(|upper| upper.row.held.is_some());
        self.past.get(path).is_some_and(|known| known.is_fresh() || !is_held())
    }

    /// The content at a path was read, and is as expected: the next look need not read it.
    fn found_same(&mut self, path: &RelPath, expected: &Expected, now: &Stamp) {
        if let (Expected::Content(was), Some(seen)) = (expected, self.seen.get_mut(path))
            && was == seen
            && was.is_like(now)
        {
            seen.stamp = *now;
        }
    }

    /// Returns `None` for a path that fettlefs has not touched, which is never flagged.
    fn expected(&self, path: &RelPath) -> Option<Expected> {
        let row = self.uppers.upper_at(path).map(|upper| &upper.row);
        match row.and_then(|row| Some((row, row.held.as_ref()?))) {
            // Of a directory only its existence counts, even if its removal is held. One in the place of a file still has
            // that below.
            Some((row, held)) if held.kind == ChangeKind::Structure && row.base.content.is_none() => {
                Some(Expected::Directory)
            }
            Some((row, _)) => Some(Expected::of_base(&row.base)),
            None => self.seen.get(path).map(|seen| match seen.is_dir {
                true => Expected::Directory,
                false => Expected::Content(seen.clone()),
            }),
        }
    }
}

impl Seen {
    /// True if no more has changed than a new name or mode changes.
    fn is_like(&self, now: &Stamp) -> bool {
        self.stamp.has_same_content(now)
    }

    /// True if `now` may be the same inode. The number alone does not tell: it is soon reused.
    fn is_inode(&self, now: &Meta) -> bool {
        let is_of_kind = self.content.is_none_or(|kept| kept.standing() == Standing::of(Some(now)));
        is_of_kind && now.inode == self.stamp.inode
    }
}

impl Expected {
    fn of_base(base: &Base) -> Self {
        match base.below {
            Below::Entry { stamp, .. } => Self::Content(Seen { stamp, content: base.content_below(), is_dir: false }),
            Below::Nothing => Self::Nothing,
        }
    }

    /// True if the attributes alone show that it is unchanged.
    fn is_told_by(&self, meta: &Meta) -> bool {
        match self {
            Self::Nothing => false,
            Self::Content(seen) => seen.stamp == meta.stamp() || seen.content.is_none() && seen.is_like(&meta.stamp()),
            Self::Directory => meta.is_dir(),
        }
    }

    fn differs(&self, present: &Side, content: Option<Kept>) -> Option<Outside> {
        let (standing, digest) = (present.standing(), content.map(|kept| kept.digest));
        let size = present.meta.filter(|_| digest.is_some()).map(|meta| meta.size);
        let outside = |kind| Some(Outside { kind, standing, digest, size });
        match (self, present.meta) {
            (Self::Nothing | Self::Directory, None) => None,
            (Self::Content(_), None) => outside(ExternalKind::Deleted),
            (_, Some(meta)) if self.is_told_by(&meta) => None,
            (Self::Nothing | Self::Directory, Some(_)) => outside(ExternalKind::Replaced),
            (Self::Content(seen), Some(_)) if seen.content.is_some() && seen.content == content => None,
            (Self::Content(seen), Some(meta)) if seen.is_inode(&meta) => outside(ExternalKind::Modified),
            (Self::Content(_), Some(_)) => outside(ExternalKind::Replaced),
        }
    }
}

impl Heralded {
    fn has(&self, path: &RelPath, expected: &Expected, outside: &Outside) -> bool {
        self.0.get(path).is_some_and(|told| match told {
            LastTold::Before(digest) => *digest == outside.digest,
            LastTold::Now(told, since) => {
                (told.standing, told.digest) == (outside.standing, outside.digest) && since == expected
            }
        })
    }
}

impl Doubts {
    fn add(&self, path: &RelPath) {
        let mut doubted = self.doubted.lock();
        if !doubted.is_served {
            return;
        }
        let was_empty = doubted.paths.is_empty();
        if doubted.paths.insert(path.clone()) {
            doubted.latest = Some(Instant::now());
        }
        // A thread that has paths already waits by the clock.
        if was_empty {
            self.arrived.notify_one();
        }
    }

    fn serve(&self, first: Vec<RelPath>) {
        let mut doubted = self.doubted.lock();
        doubted.is_served = true;
        doubted.paths.extend(first);
    }

    fn end(&self) {
        self.doubted.lock().is_ending = true;
        self.arrived.notify_one();
    }

    /// Returns paths in doubt that have been left alone for a moment; `None` at the end.
    fn wait(&self) -> Option<BTreeSet<RelPath>> {
        let mut doubted = self.doubted.lock();
        while doubted.paths.is_empty() && !doubted.is_ending {
            self.arrived.wait(&mut doubted);
        }
        let begin = Instant::now();
        loop {
            let until = (doubted.latest.unwrap_or(begin) + QUIET).min(begin + LATEST);
            if doubted.is_ending || Instant::now() >= until {
                break;
            }
            self.arrived.wait_until(&mut doubted, until);
        }
        let paths = std::mem::take(&mut doubted.paths);
        doubted.is_served &= !doubted.is_ending;
        (!paths.is_empty() || !doubted.is_ending).then_some(paths)
    }
}
