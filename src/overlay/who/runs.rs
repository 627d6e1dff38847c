//! Which processes are in which run (SPEC §2), and so which are one tree (SPEC §7).
//!
//! A run is known by its *runner*: the process that started its command, waits for it, and gets its orphans. A process is
//! in the run if the runner is above it. Going up from each process would cost a look at every process between. So the
//! mount namespaces in which programs of a run were met are remembered, since as a rule each run has its own. Rights are
//! not decided by that memory.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::overlay::{Overlay, Result};
use crate::protocol::EventName;
use crate::store::{EventDraft, Store, now_millis};
use crate::sys::namespace::{self, Kind};
use crate::sys::process;

/// Refused requests beyond this many are not recorded.
const REFUSALS_MAX: usize = 10;
const REFUSALS_WITHIN: Duration = Duration::from_secs(10);

/// Guarded by itself; a leaf of the lock order. `/proc` is read under it, which waits for no process.
#[derive(Default)]
pub struct Runs(Mutex<KnownRuns>);

#[derive(Default)]
struct KnownRuns {
    live: Vec<Run>,
    /// Runners, by the mount namespace that a process of theirs was met in. Never by our own, which any process may be
    /// in.
    namespaces: HashMap<u64, u32>,
    /// How many runs have begun.
    count: u64,
    is_closed: bool,
    is_only_for_runs: bool,
    /// An earlier daemon had runs, of which something may be left.
    had_been: bool,
    /// The mount namespaces that runs were started from, including runs of earlier daemons.
    outside: HashSet<u64>,
    /// Runners whose runs went on when the earlier daemon died, each with a descriptor that tells of its end: they report
    /// by themselves.
    awaited: Vec<(u32, OwnedFd)>,
    /// When requests were last refused.
    refused: Vec<Instant>,
}

/// One run, from the start of its command to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub runner: u32,
    pub uid: u32,
    pub session: String,
    /// As people are told it.
    pub command: String,
    /// In milliseconds since the epoch.
    pub started: i64,
}

impl Runs {
    /// Returns the runs as an earlier daemon has left them.
    pub fn after_others(store: &Store) -> Result<Self> {
        let (had_been, noted) = (store.has_had_runs()?, store.noted_runners()?);
        let awaited = noted.into_iter().filter_map(|(runner, began)| {
            let end = namespace::pidfd_of(runner).ok()?;
            // Asked last: the descriptor may be of a process that has got the runner's pid since.
            (process::began(runner) == Some(began)).then_some((runner, end))
        });
        let outside = store.noted_outside()?.into_iter().collect();
        Ok(Self(Mutex::new(KnownRuns { had_been, outside, awaited: awaited.collect(), ..KnownRuns::default() })))
    }

    /// What `runner` starts is a run from here on. Returns `None` if it has one already, or if none can begin any more.
    pub(super) fn begin(&self, runner: u32, uid: u32, command: &str) -> Option<Run> {
        let mut known = self.0.lock();
        if known.is_closed || known.live.iter().any(|run| run.runner == runner) {
            return None;
        }
        known.awaited.retain(|(awaited, _)| *awaited != runner);
        known.outside.extend(namespace::of(runner, Kind::Mount));
        known.count += 1;
        let session = format!("{:x}-{runner}-{}", now_millis(), known.count);
        let run = Run { runner, uid, session, command: command.to_owned(), started: now_millis() };
        known.live.push(run.clone());
        Some(run)
    }

    /// What is left of the run belongs to no run, and counts as inside all the same.
    pub(super) fn end(&self, runner: u32) -> Option<Run> {
        let mut known = self.0.lock();
        known.namespaces.retain(|_, of| *of != runner);
        let at = known.live.iter().position(|run| run.runner == runner)?;
        Some(known.live.remove(at))
    }

    fn is_refusal_news(&self, now: Instant) -> bool {
        let mut known = self.0.lock();
        known.refused.retain(|then| now - *then < REFUSALS_WITHIN);
        known.refused.push(now);
        known.refused.truncate(REFUSALS_MAX + 1);
        known.refused.len() <= REFUSALS_MAX
    }

    /// If there is no run, none can begin any more. Returns whether that is so.
    pub fn close_if_none(&self) -> bool {
        let mut known = self.0.lock();
        known.is_closed |= known.live.is_empty();
        known.is_closed
    }

    pub fn live(&self) -> Vec<Run> {
        self.0.lock().live.clone()
    }

    /// Notes that nothing but runs sees the view.
    pub fn are_all_there_is(&self) {
        self.0.lock().is_only_for_runs = true;
    }

    /// True if there has been a run since the machine was started, or if nothing but runs sees the view.
    pub fn have_been(&self) -> bool {
        let known = self.0.lock();
        known.is_only_for_runs || known.had_been || known.count > 0
    }

    /// True if a process is in a mount namespace that a run was started from.
    pub fn were_started_beside(&self, pid: u32) -> bool {
        let its = namespace::of(pid, Kind::Mount);
        its.is_ok_and(|its| self.0.lock().outside.contains(&its))
    }

    /// True if a run may have left a process behind: its mount namespace is none that a run was started from, and one of
    /// those is still there. If none is, as in a container that took another's place, no place is more outside than any
    /// other.
    pub fn may_have_left(&self, pid: u32) -> bool {
        !self.0.lock().outside.is_empty() && !self.were_started_beside(pid)
    }

    /// Returns the run of a process, even of one that has ended, if that can have been in no other.
    fn of_writer(&self, pid: u32) -> Option<Run> {
        self.of(pid).or_else(|| {
            let known = self.0.lock();
            match known.live.as_slice() {
                [run] if known.is_only_for_runs => Some(run.clone()),
                _ => None,
            }
        })
    }

    /// Returns the run that a process belongs to; `None` also for a process that has ended.
    pub fn of(&self, pid: u32) -> Option<Run> {
        let mut known = self.0.lock();
        if known.live.is_empty() || pid == 0 {
            return None;
        }
        let runner = known.runner_of(pid)?;
        known.live.iter().find(|run| run.runner == runner).cloned()
    }

    /// True if a process was started by a runner, or if its ancestors cannot be followed to the end.
    pub fn has_started(&self, pid: u32) -> bool {
        let known = self.0.lock();
        if known.live.is_empty() && known.awaited.is_empty() {
            return false;
        }
        !matches!(known.above(pid), Above::Nobody)
    }
}

/// Which run a process is in, by its ancestors.
enum Above {
    Runner(u32),
    Nobody,
    /// One of the ancestors is gone, or there are too many.
    Unknown,
}

impl KnownRuns {
    fn runner_of(&mut self, pid: u32) -> Option<u32> {
        let namespace = namespace::of(pid, Kind::Mount).ok();
        if let Some(runner) = namespace.and_then(|namespace| self.namespaces.get(&namespace)) {
            return Some(*runner);
        }
        let Above::Runner(runner) = self.above(pid) else { return None };
        if let Some(namespace) = namespace
            && namespace::own(Kind::Mount).is_ok_and(|own| own != namespace)
        {
            self.namespaces.insert(namespace, runner);
        }
        Some(runner)
    }

    fn is_runner(&self, pid: u32) -> bool {
        let is_it = |(awaited, end): &(u32, OwnedFd)| *awaited == pid && !namespace::has_ended(end);
        self.live.iter().any(|run| run.runner == pid) || self.awaited.iter().any(is_it)
    }

    /// The runner itself is not in its run.
    fn above(&self, pid: u32) -> Above {
        let ends = |above: &u32| *above == 0 || self.is_runner(*above);
        match process::ancestors(pid).skip(1).find(ends) {
            None => Above::Unknown,
            Some(0) => Above::Nobody,
            Some(runner) => Above::Runner(runner),
        }
    }
}

impl Overlay {
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// What `runner` starts is a run of its own from here on. Returns `None` if it cannot begin.
    pub fn run_begun(&self, runner: u32, uid: u32, command: &str) -> Result<Option<Run>> {
        self.store.vitally(|| self.store.note_run(runner))?;
        let Some(run) = self.runs.begin(runner, uid, command) else { return Ok(None) };
        self.record_run(EventName::SessionStarted, &run)?;
        Ok(Some(run))
    }

    /// Returns whether there was one.
    pub fn run_ended(&self, runner: u32) -> Result<bool> {
        let Some(run) = self.runs.end(runner) else { return Ok(false) };
        self.store.vitally(|| self.store.forget_run(runner))?;
        self.record_run(EventName::SessionEnded, &run)?;
        Ok(true)
    }

    fn record_run(&self, name: EventName, run: &Run) -> Result<()> {
        let draft = EventDraft::new(name).with(|event| {
            event.session = Some(run.session.clone());
            (event.pid, event.uid) = (Some(run.runner), Some(run.uid));
            event.message = Some(run.command.clone());
        });
        Ok(self.store.vitally(|| self.store.record(&draft))?)
    }

    /// Records a request that was refused, at most `REFUSALS_MAX` in `REFUSALS_WITHIN`: asking without end fills no
    /// log.
    pub fn note_refused(&self, what: &str, pid: u32, uid: u32) {
        if !self.runs.is_refusal_news(Instant::now()) {
            return;
        }
        let draft = EventDraft::new(EventName::RequestRefused).with(|event| {
            event.message = Some(what.to_owned());
            (event.pid, event.uid, event.session) = (Some(pid), Some(uid), Some(self.session_of(pid)));
        });
        if let Err(err) = self.store.record(&draft) {
            log::error!("record a refused request: {err}");
        }
    }

    /// Returns the process tree of a process (SPEC §7): its run, or else what descends from the leader of its session. 0
    /// if that is out of our sight; `None` for a process that has ended.
    pub(in crate::overlay) fn tree_of(&self, pid: u32) -> Option<u32> {
        match self.runs.of(pid) {
            Some(run) => Some(run.runner),
            None => process::session(pid),
        }
    }

    /// Returns the session that a process acts in: its run's, or else the mount's. To be asked while the process waits,
    /// if it does: then the shell that it belongs to is noted as well.
    pub(in crate::overlay) fn session_of(&self, pid: u32) -> String {
        self.shells.note(pid);
        self.runs.of_writer(pid).map_or_else(|| self.session.clone(), |run| run.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_descends_from_a_runner_is_in_its_run_and_the_runner_is_not() {
        let runs = Runs::default();
        let (own, parent) = (std::process::id(), process::parent(std::process::id()).unwrap());
        assert!(!runs.has_started(own) && runs.of(own).is_none() && !runs.have_been());
        let run = runs.begin(parent, 0, "agent").unwrap();
        assert_eq!(runs.begin(parent, 0, "another"), None, "one at a time");
        assert_eq!((runs.of(own), runs.of(parent)), (Some(run.clone()), None));
        assert!(runs.has_started(own) && !runs.has_started(parent));
        // Who is gone, or cannot be seen, might have been one of them.
        assert!(runs.has_started(0) && runs.has_started(u32::MAX >> 1));
        assert_eq!(runs.end(parent), Some(run));
        assert!(runs.of(own).is_none() && runs.have_been() && runs.live().is_empty());
    }
}
