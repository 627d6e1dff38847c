//! Death at every step: a process makes a project ready, acts, and is killed before its n-th change of a file, for
//! n = 1, 2, … until it gets through. What it leaves is recovered by another, and looked at.
//!
//! After each death, and of some acts in a copy of the project (`cp -a`) as well, whose inodes are others: the project is
//! all old or all new; so is what is held, under the same ids; a second recovery finds nothing; `check` finds nothing
//! wrong; no content that was closed, held or replaced is gone.
//!
//! The gate tries every step of each scenario, and kills the recovery at every step after some of them. With
//! FETTLE_CRASH=N (`scripts/crashpoints`) the recovery is killed after each N-th of them, and fifty files are confirmed.
//! Each scenario has a process of its own, in which nothing else runs, so that it can fork.
//!
//! Some acts are several landings: a held file renamed over another, a file over one of several names of a held one, one to
//! where a held file had been, the exchange of two files, and the rename of a directory of which a file is lifted
//! (`overlay/names/carry.rs`). The view is all old or all new then, and each path below by itself (`Rule::EachPath`).

use std::path::Path;

use super::scenarios::{BELOW, FIFTY, Picture, Rule, SCENARIOS, Scenario, try_each_apart};
use super::*;
use crate::sys::steps::{Ended, Steps, Trap, apart};

/// By which a process knows its scenario.
const SCENARIO: &str = "FETTLE_CRASH_SCENARIO";
/// After every which step the recovery is killed too, in the gate. Odd, so that all kinds of steps have their turn.
const RECOVERY_STRIDE: u64 = 17;

/// What they do is told by which names are there. Of others a copy tells by sizes and times, which are not always different
/// where all was made a moment ago.
const COPIED: [&str; 5] = [
    "a file is renamed",
    "a held file is renamed",
    "a directory with held files is renamed",
    "a directory with held files is renamed over an empty one",
    "the rename of a directory with held files is undone",
];

#[test]
fn a_death_at_any_step_leaves_all_old_or_all_new() {
    let wanted = std::env::var("FETTLE_CRASH_ONLY").unwrap_or_default();
    let scenarios = SCENARIOS.iter().chain(BELOW).chain(asked_stride().map(|_| &FIFTY));
    let scenarios = scenarios.filter(|scenario| scenario.name.contains(&wanted));
    let faults = try_each_apart(scenarios, "crash", SCENARIO);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Not a test by itself: what the test above starts once for each scenario.
#[test]
fn one_scenario() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let scenario = SCENARIOS.iter().chain(BELOW).chain([&FIFTY]).find(|scenario| name == scenario.name).unwrap();
    let faults = scenario.try_all(asked_stride().unwrap_or(RECOVERY_STRIDE));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// After every which step the recovery is killed too, when a person asks for it.
fn asked_stride() -> Option<u64> {
    let asked = std::env::var("FETTLE_CRASH").ok()?;
    Some(asked.parse().expect("FETTLE_CRASH is a number from 1"))
}

impl Scenario {
    /// Dies at each step, and in the recovery after each `recovery_stride`-th of these. Gives what was wrong.
    fn try_all(&self, recovery_stride: u64) -> Vec<String> {
        let (before, after) = self.rehearse();
        let (mut faults, mut recoveries, mut step) = (Vec::new(), 0, 0);
        loop {
            step += 1;
            let project = self.scratch();
            if !self.dies(project.path(), step) {
                break;
            }
            let copy = COPIED.contains(&self.name).then(|| self.scratch());
            if let Some(copy) = &copy {
                copy_project(project.path(), copy.path());
            }
            for (which, project) in [("", Some(&project)), (" in a copy", copy.as_ref())] {
                let found = project.map(|project| self.faults(project.path(), &before, &after));
                faults.extend(
                    found.into_iter().flatten().map(|fault| format!("{}, step {step}{which}: {fault}", self.name)),
                );
            }
            if step % recovery_stride == 0 {
                let (found, tried) = self.try_recovery(step, &before, &after);
                faults.extend(found);
                recoveries += tried;
            }
        }
        let points = step - 1;
        eprintln!("crash: {}: {points} points, {recoveries} in recovery, {} faults", self.name, faults.len());
        faults
    }

    /// Dies at `step`, and then at each step of the recovery.
    fn try_recovery(&self, step: u64, before: &Picture, after: &Picture) -> (Vec<String>, u64) {
        let mut faults = Vec::new();
        let mut at = 0;
        loop {
            at += 1;
            let project = self.scratch();
            assert!(self.dies(project.path(), step), "{}: step {step} came only once", self.name);
            if !recovery_dies(project.path(), at) {
                return (faults, at - 1);
            }
            let found = self.faults(project.path(), before, after);
            faults.extend(found.map(|fault| format!("{}, step {step}, recovery step {at}: {fault}", self.name)));
        }
    }

    /// Whether there was such a step to die at.
    fn dies(&self, project: &Path, step: u64) -> bool {
        is_killed(|| {
            let (mut bench, _) = Bench::at(project);
            (self.ready)(&mut bench);
            let _steps = Steps::watch(Trap::death(step)).unwrap();
            (self.act)(&bench).unwrap();
            bench.view().store().record_waiting().unwrap();
        })
    }

    /// What there is before and after the act when nobody dies.
    fn rehearse(&self) -> (Picture, Picture) {
        let project = self.scratch();
        let (mut bench, _) = Bench::at(project.path());
        (self.ready)(&mut bench);
        let before = Picture::of(&bench);
        (self.act)(&bench).unwrap();
        let after = Picture::of(&bench);
        assert_ne!(before, after, "{}: nothing happens", self.name);
        drop(bench);
        let (bench, recovered) = Bench::at(project.path());
        assert_eq!(Picture::of(&bench), after, "{}: a remount changes it", self.name);
        assert!(recovered.is_nothing(), "{}: left behind: {recovered:?}", self.name);
        (before, after)
    }

    fn faults(&self, project: &Path, before: &Picture, after: &Picture) -> impl Iterator<Item = String> {
        let (bench, _) = Bench::at(project);
        let now = Picture::of(&bench);
        let mut faults = Vec::new();
        let right = match self.rule {
            Rule::AllOrNothing | Rule::Looks => now == *before || now == *after,
            Rule::Made => now == *before || now == Picture { past: now.past.clone(), ..after.clone() },
            Rule::Unrecorded => {
                let unrecorded = Picture { past: before.past.clone(), ..after.clone() };
                [before, after, &unrecorded].contains(&&now)
            }
            Rule::EachPath => {
                let views = now.view == before.view || now.view == after.view;
                views
                    && now
                        .lower
                        .iter()
                        .all(|(path, what)| [before, after].iter().any(|then| then.lower.get(path) == Some(what)))
            }
            // A refused one is not among these scenarios.
            Rule::Writes | Rule::Closes | Rule::Shown => {
                now == *after || (now.lower == before.lower && now.view == after.view)
            }
        };
        if !right {
            faults.push(format!("neither old nor new:\n{now:#?}\nold:\n{before:#?}\nnew:\n{after:#?}"));
        }
        let (found, _) = bench.view().check().unwrap();
        faults.extend(found.into_iter().map(|fault| format!("check: {fault:?}")));
        if bench.view().policy().project_file.as_ref().map(|file| &file.text)
            != bench.lower(PROJECT_FILE).map(String::into_bytes).as_ref()
        {
            faults.push("the rules in force are not those of the project".to_owned());
        }
        let lost = self.lost(&bench, &now);
        faults.extend(lost.iter().map(|content| format!("lost: {content:?}")));
        drop(bench);
        let (bench, recovered) = Bench::at(project);
        if !recovered.is_nothing() {
            faults.push(format!("the second recovery did {recovered:?}"));
        }
        if Picture::of(&bench) != now {
            faults.push("the second recovery changed something".to_owned());
        }
        faults.into_iter()
    }
}

pub(super) fn copy_project(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success(), "cp -a: {copied}");
}

/// Whether the recovery of a project had such a step to die at.
fn recovery_dies(project: &Path, step: u64) -> bool {
    is_killed(|| {
        let _steps = Steps::watch(Trap::death(step)).unwrap();
        std::mem::forget(Bench::at(project));
    })
}

/// Whether the work was killed; it must not fail otherwise. Nothing else runs in this process.
fn is_killed(work: impl FnOnce()) -> bool {
    let worked = || {
        work();
        0
    };
    match apart(worked).unwrap() {
        Ended::Killed => true,
        Ended::Exited(0) => false,
        Ended::Exited(status) => panic!("the process exited with status {status}"),
    }
}
