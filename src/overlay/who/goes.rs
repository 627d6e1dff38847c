//! Goes: what one process does to several paths in one go is one operation, even if it is no burst (SPEC §7).
//!
//! The first change of a go is recorded as if it were alone, which it mostly is. Each that follows is recorded under the
//! operation that the first became. A forked child is a process of its own, even if it runs the same program: only
//! `/proc/PID/stat` would tell, and reading that can hang where a change is judged (head of `sys/process.rs`).
//!
//! ```text
//!   part_of ──► recorded under its operation, or as one of its own ──► recorded: the next one is part of that
//! ```
//! An operation must be undone in one landing, or it could not be undone at all. So a go has only contents and
//! directories: a further name, a FIFO, socket or device is an operation of its own, and ends the go before it. A go also
//! ends where undoing it in one landing would be in doubt: when the process renames something to a free name, when it
//! comes back to a path that is not as it left it, or makes another kind of thing there, when a change belongs to a
//! burst, and when a person decides about anything.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use parking_lot::Mutex;

use super::bursts::WITHIN;
use crate::model::{Digest, OperationId, RelPath};
use crate::overlay::judge::claim::Job;
use crate::overlay::review::Review;
use crate::overlay::{Overlay, Result};
use crate::store::{self, Gathered, Writer};
use crate::sys::process;

/// How many processes are remembered; beyond that, the one that has been quiet longest is forgotten.
const PROCESSES_MAX: usize = 256;

/// How many paths one operation may have: its undo is one landing, which tells all of them in one row.
const PATHS_MAX: usize = 10_000;

/// Guarded by itself; a leaf of the lock order. `/proc` is read without it.
#[derive(Default)]
pub(in crate::overlay) struct Goes(Mutex<KnownGoes>);

#[derive(Default)]
struct KnownGoes {
    processes: HashMap<u32, Go>,
    /// How many goes have begun: a change that was part of an earlier one is not taken into the next.
    count: u64,
    paths: RandomState,
}

struct Go {
    number: u64,
    /// The process tree it belongs to, by which bursts are counted.
    tree: u32,
    /// When its latest change came.
    at: Instant,
    operation: Option<OperationId>,
    /// The one change that is recorded and not yet known as an operation, and since when: a change held alone is none.
    first: Option<(RelPath, i64)>,
    /// What it left at paths, by hashes of the paths. Two paths with the same hash end a go too early, which does no
    /// harm.
    left: HashMap<u64, Stands>,
}

/// What stands at a path, as far as it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Stands {
    Nothing,
    Content(Digest),
    /// What was there before: the change waits for review.
    Held,
    /// What was there before: what waited for review is gone.
    Unheld,
    /// A directory, a symlink, or content that was too large to be hashed by then.
    Something,
}

/// What is about to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) enum Doing {
    Content {
        found: Stands,
        leaves: Stands,
    },
    /// A directory or symlink is made. That is no part of a burst, which counts what is lost.
    Make,
    RemoveDir,
    /// The change is held: there is nothing that an undo would reverse below.
    Hold,
    /// What waits for review goes, and an undo brings it back.
    Unhold,
}

/// What a change is part of, until it is recorded.
#[must_use = "the next change is part of it only once it is told to be recorded"]
pub(in crate::overlay) struct Part {
    process: u32,
    go: u64,
    pub operation: Option<OperationId>,
    path: RelPath,
    doing: Doing,
    since: i64,
}

/// Changes that were recorded apart and belong together.
#[derive(Debug, PartialEq, Eq)]
enum Late {
    Operations([OperationId; 2]),
    /// Changes that were held alone, and since when; and the operation that the others are.
    Held(Vec<(RelPath, i64)>, Option<OperationId>),
}

/// What a go says of a change.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The change begins the go, or continues it while the go is no operation yet.
    Alone,
    Of(OperationId),
    /// The change becomes one operation with the change of this path.
    After(RelPath, i64),
}

impl Part {
    /// As events tell it.
    pub fn operation_told(&self) -> Option<String> {
        self.operation.map(|operation| operation.to_string())
    }
}

impl Go {
    fn new(number: u64, tree: u32, at: Instant) -> Self {
        Self { number, tree, at, operation: None, first: None, left: HashMap::new() }
    }

    /// True if the go and this change together replace one content at the path by another.
    fn takes(&self, path: u64, doing: Doing) -> bool {
        match (self.left.get(&path), doing) {
            // An undo would find the place taken.
            (Some(Stands::Unheld), _) => false,
            (_, Doing::Hold) => true,
            (None, _) => self.left.len() < PATHS_MAX,
            (Some(Stands::Held), Doing::Content { .. } | Doing::Unhold) => true,
            (Some(Stands::Something), _) | (Some(_), Doing::Make | Doing::RemoveDir | Doing::Unhold) => false,
            (Some(left), Doing::Content { found, .. }) => *left == found,
        }
    }
}

impl KnownGoes {
    fn answer(&mut self, (process, tree): (u32, u32), (path, doing): (&RelPath, Doing), now: Instant) -> (u64, Answer) {
        let hash = self.paths.hash_one(path);
        let live = self.processes.get(&process).filter(|go| now - go.at < WITHIN && go.takes(hash, doing));
        if let Some(go) = live {
            let answer = match (go.operation, &go.first) {
                (Some(operation), _) => Answer::Of(operation),
                (None, Some((first, since))) if first != path => Answer::After(first.clone(), *since),
                (None, _) => Answer::Alone,
            };
            return (go.number, answer);
        }
        self.forget_old(now);
        self.count += 1;
        self.processes.insert(process, Go::new(self.count, tree, now));
        (self.count, Answer::Alone)
    }

    fn forget_old(&mut self, now: Instant) {
        self.processes.retain(|_, go| now - go.at < WITHIN);
        if self.processes.len() >= PROCESSES_MAX
            && let Some(oldest) = self.processes.iter().min_by_key(|(_, go)| go.at).map(|(process, _)| *process)
        {
            self.processes.remove(&oldest);
        }
    }

    /// Returns what still has to become one operation, because two threads began at once.
    fn recorded(&mut self, part: &Part, became: Option<OperationId>, now: Instant) -> Option<Late> {
        let hash = self.paths.hash_one(&part.path);
        let go = self.processes.get_mut(&part.process).filter(|go| go.number == part.go)?;
        go.at = now;
        match part.doing {
            Doing::Content { leaves, .. } => drop(go.left.insert(hash, leaves)),
            Doing::Make | Doing::RemoveDir => drop(go.left.insert(hash, Stands::Something)),
            Doing::Hold => drop(go.left.entry(hash).or_insert(Stands::Held)),
            Doing::Unhold => drop(go.left.insert(hash, Stands::Unheld)),
        }
        let held = || (part.path.clone(), part.since);
        match (go.operation, part.operation.or(became), go.first.take()) {
            (Some(one), Some(other), _) if one != other => Some(Late::Operations([one, other])),
            (Some(_), Some(_), _) => None,
            (Some(operation), None, _) => Some(Late::Held(vec![held()], Some(operation))),
            (None, Some(operation), first) => {
                go.operation = Some(operation);
                let first = first.filter(|_| part.operation.is_none());
                first.map(|first| Late::Held(vec![first], Some(operation)))
            }
            (None, None, Some(first)) if first.0 != part.path => Some(Late::Held(vec![first, held()], None)),
            (None, None, first) => {
                go.first = first.or_else(|| Some(held()));
                None
            }
        }
    }
}

impl Goes {
    /// What came to `path` in a go has become another file's content. If that was all, the go begins anew.
    fn forget(&self, process: u32, path: &RelPath) {
        let mut known = self.0.lock();
        let hash = known.paths.hash_one(path);
        if let Some(go) = known.processes.get_mut(&process)
            && go.left.remove(&hash).is_some()
            && go.left.is_empty()
        {
            (go.operation, go.first) = (None, None);
        }
    }

    /// Events belong to another operation from now on.
    pub fn renamed(&self, gathered: &Gathered) {
        for go in self.0.lock().processes.values_mut() {
            if go.operation.is_some_and(|operation| gathered.were.contains(&operation)) {
                go.operation = Some(gathered.operation);
            }
        }
    }

    /// Returns the operations that the processes of a tree are in right now.
    pub fn operations_of(&self, tree: u32) -> Vec<OperationId> {
        let (known, now) = (self.0.lock(), Instant::now());
        let live = known.processes.values().filter(|go| go.tree == tree && now - go.at < WITHIN);
        live.filter_map(|go| go.operation).collect()
    }

    /// Later changes do not join this operation.
    pub fn end_operation(&self, operation: OperationId) {
        self.0.lock().processes.retain(|_, go| go.operation != Some(operation));
    }

    /// What was held alone has become an operation. Returns what another thread has held alone meanwhile.
    fn is(&self, part: &Part, operation: OperationId) -> Option<Late> {
        let mut known = self.0.lock();
        let go = known.processes.get_mut(&part.process).filter(|go| go.number == part.go)?;
        let of_go = *go.operation.get_or_insert(operation);
        go.first.take().map(|first| Late::Held(vec![first], Some(of_go)))
    }

    fn end(&self, process: u32) {
        self.0.lock().processes.remove(&process);
    }

    fn end_all(&self) {
        self.0.lock().processes.clear();
    }
}

/// Returns the process of a thread. A thread that has ended is a process of its own.
fn process_of(tid: u32) -> u32 {
    process::leader(tid).unwrap_or(tid)
}

fn process_of_writer(by: &Writer) -> u32 {
    by.process().unwrap_or_else(|| process_of(by.pid))
}

impl Overlay {
    /// Returns what a change of `path` that is about to be recorded is part of. Not to be called under the lock of the
    /// state.
    pub(in crate::overlay) fn part_of(&self, path: &RelPath, by: &Writer, doing: Doing) -> Part {
        self.part_in_tree(self.tree_or_itself(by), path, by, doing)
    }

    fn part_in_tree(&self, tree: u32, path: &RelPath, by: &Writer, doing: Doing) -> Part {
        let part = |process, go, operation| Part {
            process,
            go,
            operation,
            path: path.clone(),
            doing,
            since: store::now_millis(),
        };
        let burst = if doing == Doing::Make { None } else { self.burst_of(path, tree) };
        if burst.is_some() {
            self.go_ends(by.pid);
        }
        if burst.is_some() || by.pid == 0 {
            // The kernel is no process, and a writer out of sight is known as none.
            return part(0, 0, burst);
        }
        let process = process_of_writer(by);
        let (go, answer) = self.goes.0.lock().answer((process, tree), (path, doing), Instant::now());
        let operation = match answer {
            Answer::Alone => None,
            Answer::Of(operation) => Some(operation),
            Answer::After(first, since) => self.gathered_or_apart(self.gather(&[(first, since)], &[])),
        };
        part(process, go, operation)
    }

    /// The same for what is judged: a temporary file that was renamed over it is no further change.
    pub(in crate::overlay) fn part_of_job(&self, job: &Job, path: &RelPath, by: &Writer, doing: Doing) -> Part {
        if let Some((source, _)) = &job.takes_along {
            self.goes.forget(process_of_writer(by), source);
        }
        self.part_in_tree(self.tree_of_job_or_itself(job, by), path, by, doing)
    }

    /// Notes that a change is recorded; `became` is the operation that it was recorded as, if it was not part of one.
    pub(in crate::overlay) fn recorded(&self, part: &Part, became: Option<OperationId>) {
        let mut late = self.goes.0.lock().recorded(part, became, Instant::now());
        while let Some(apart) = late {
            let operation = match apart {
                Late::Operations(two) => self.gathered_or_apart(self.unite(&two)),
                Late::Held(paths, with) => {
                    let held = self.gathered_or_apart(self.gather(&paths, &[]));
                    match (held, with) {
                        (Some(held), Some(with)) => self.gathered_or_apart(self.unite(&[held, with])),
                        (held, with) => held.or(with),
                    }
                }
            };
            late = operation.and_then(|operation| self.goes.is(part, operation));
        }
    }

    /// If changes cannot be gathered they stay recorded, and only do not say what they came with.
    pub(super) fn gathered_or_apart(&self, gathered: Result<Option<OperationId>>) -> Option<OperationId> {
        gathered.unwrap_or_else(|err| {
            log::warn!("gather what was changed in one go: {err}");
            None
        })
    }

    /// What a process does from here on is part of another operation.
    pub(in crate::overlay) fn go_ends(&self, pid: u32) {
        if pid != 0 {
            self.goes.end(process_of(pid));
        }
    }

    /// Nothing that comes joins the operations so far.
    pub(in crate::overlay) fn person_decides(&self, review: &Review) {
        if !review.dry_run {
            self.goes.end_all();
            self.bursts.end_all();
            self.forget_inspections();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goes of process 1 and 2, at times in milliseconds.
    struct Clock(KnownGoes, Instant);

    impl Clock {
        /// What a change is part of, recorded as `became`.
        fn change(&mut self, process: u32, name: &str, doing: Doing, millis: u64, became: u64) -> Answer {
            let (now, path) = (self.1 + Duration::from_millis(millis), RelPath::parse(name.as_bytes()).unwrap());
            let (go, answer) = self.0.answer((process, 0), (&path, doing), now);
            let operation = match &answer {
                Answer::Of(operation) => Some(*operation),
                Answer::After(..) => Some(OperationId::of_first_event(became)),
                Answer::Alone => None,
            };
            let became = Some(became).filter(|became| *became > 0).map(OperationId::of_first_event);
            let part = Part { process, go, operation, path, doing, since: 0 };
            assert_eq!(self.0.recorded(&part, became, now), None);
            answer
        }
    }

    fn clock() -> Clock {
        Clock(KnownGoes::default(), Instant::now())
    }

    fn of(first: u64) -> Answer {
        Answer::Of(OperationId::of_first_event(first))
    }

    const CREATES: Doing = Doing::Content { found: Stands::Nothing, leaves: Stands::Something };

    #[test]
    fn a_go_lasts_as_long_as_its_process_pauses_for_less_than_two_seconds() {
        let mut clock = clock();
        assert_eq!(clock.change(1, "a", CREATES, 0, 7), Answer::Alone);
        assert_eq!(clock.change(2, "b", CREATES, 10, 8), Answer::Alone, "another process");
        assert_eq!(clock.change(1, "c", CREATES, 1990, 0), of(7));
        assert_eq!(clock.change(1, "d", Doing::Make, 3980, 0), of(7));
        assert_eq!(clock.change(2, "e", CREATES, 3980, 9), Answer::Alone);
        assert_eq!(clock.change(1, "f", CREATES, 5981, 10), Answer::Alone);
    }

    #[test]
    fn a_path_that_is_not_as_it_was_left_begins_another() {
        let [one, two] = [b"1", b"2"].map(|bytes| Stands::Content(Digest::of(bytes)));
        let content = |found, leaves| Doing::Content { found, leaves };
        let mut clock = clock();
        clock.change(1, "a", content(Stands::Nothing, one), 0, 1);
        assert_eq!(clock.change(1, "a", content(one, two), 1, 0), of(1));
        assert_eq!(clock.change(1, "a", content(two, Stands::Nothing), 2, 0), of(1));
        assert_eq!(clock.change(1, "a", Doing::Make, 3, 4), Answer::Alone, "another kind of thing");
        assert_eq!(clock.change(1, "b", content(Stands::Nothing, one), 4, 0), of(4));
        assert_eq!(clock.change(1, "b", content(two, one), 5, 6), Answer::Alone, "somebody else's is between");
    }

    #[test]
    fn what_is_held_alone_becomes_part_with_the_next_path() {
        let mut clock = clock();
        assert_eq!(clock.change(1, "a", Doing::Hold, 0, 0), Answer::Alone);
        assert_eq!(clock.change(1, "a", Doing::Hold, 1, 0), Answer::Alone, "again");
        assert!(matches!(clock.change(1, "b", Doing::Hold, 2, 5), Answer::After(path, 0) if path.to_string() == "a"));
        assert_eq!(clock.change(1, "c", CREATES, 3, 0), of(5));
    }

    #[test]
    fn two_threads_that_begin_at_once_are_told_and_what_was_over_meanwhile_brings_nothing() {
        let (mut clock, path) = (clock(), RelPath::parse(b"a").unwrap());
        let now = clock.1;
        let part = |go| Part { process: 1, go, operation: None, path: path.clone(), doing: CREATES, since: 0 };
        let (go, _) = clock.0.answer((1, 0), (&path, CREATES), now);
        let [one, two, three] = [1, 2, 3].map(OperationId::of_first_event);
        assert_eq!(clock.0.recorded(&part(go), Some(one), now), None);
        assert_eq!(clock.0.recorded(&part(go), Some(two), now), Some(Late::Operations([one, two])));
        clock.0.processes.clear();
        assert_eq!(clock.0.recorded(&part(go), Some(three), now), None);
        assert_eq!(clock.0.answer((1, 0), (&path, CREATES), now).1, Answer::Alone);
    }

    #[test]
    fn what_two_threads_hold_at_once_is_told_whichever_is_recorded_last() {
        let (mut clock, now) = (clock(), Instant::now());
        let [a, b, c] = ["a", "b", "c"].map(|name| RelPath::parse(name.as_bytes()).unwrap());
        let (go, _) = clock.0.answer((1, 0), (&a, Doing::Hold), now);
        let part =
            |path: &RelPath, operation, doing| Part { process: 1, go, operation, path: path.clone(), doing, since: 0 };
        let hold = |path| part(path, None, Doing::Hold);
        assert_eq!(clock.0.recorded(&hold(&a), None, now), None);
        assert_eq!(clock.0.recorded(&hold(&a), None, now), None, "the same again");
        let both = vec![(a.clone(), 0), (b.clone(), 0)];
        assert_eq!(clock.0.recorded(&hold(&b), None, now), Some(Late::Held(both, None)));
        let operation = OperationId::of_first_event(7);
        clock.0.processes.get_mut(&1).unwrap().operation = Some(operation);
        assert_eq!(clock.0.recorded(&hold(&c), None, now), Some(Late::Held(vec![(c.clone(), 0)], Some(operation))));
        // One that landed beside one that was held, neither of which knew of the other.
        clock.0.processes.clear();
        let (go, _) = clock.0.answer((1, 0), (&a, Doing::Hold), now);
        let part =
            |path: &RelPath, doing| Part { process: 1, go, operation: None, path: path.clone(), doing, since: 0 };
        assert_eq!(clock.0.recorded(&part(&a, Doing::Hold), None, now), None);
        let landed = clock.0.recorded(&part(&b, CREATES), Some(operation), now);
        assert_eq!(landed, Some(Late::Held(vec![(a, 0)], Some(operation))));
    }

    #[test]
    fn processes_that_are_too_many_are_forgotten_the_oldest_first() {
        let mut clock = clock();
        let processes = PROCESSES_MAX as u32;
        (0..=processes).for_each(|process| drop(clock.change(process, "a", CREATES, u64::from(process), 9)));
        assert_eq!(clock.0.processes.len(), PROCESSES_MAX);
        assert_eq!(clock.change(0, "b", CREATES, 300, 10), Answer::Alone);
        assert_eq!(clock.change(processes, "b", CREATES, 300, 0), of(9));
    }
}
