//! Faults below: an act whose n-th call of a kind fails, for n = 1, 2, … until there is no such call any more. Once that
//! call alone, as of a disk with one bad place; once it and all that follow, as of a full disk.
//!
//! After each: the act was done, or it was refused with the errno that came from below; the project is all old or all
//! new; the view and what is held agree with the answer; `check` finds nothing wrong; no content that was closed, held or
//! replaced is gone. Then there is no fault any more. Either the act is tried again, and is done; or the process is gone,
//! and what it leaves is recovered and looked at.
//!
//! The gate tries every [`STRIDE`]-th call; with FETTLE_FAULTS=1 (`scripts/faults`) every one is. Each scenario has a
//! process of its own, in which nothing else runs, so that it can fork.

use std::path::Path;

use super::scenarios::{Acted, FAULTY, Picture, Refusal, Rule, SCENARIOS, Scenario, try_each_apart};
use super::*;
use crate::sys::steps::{Area, Calls, Ended, Fate, PANICKED, Steps, Trap, apart};

/// A kind of call that fails, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    name: &'static str,
    calls: Calls,
    side: SideOf,
    errno: i32,
    lasts: Lasts,
}

/// What lies where, for a call to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SideOf {
    /// The project without the state directory.
    Lower,
    State,
    Both,
    /// Descriptors that are no file of the project, too.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasts {
    Once,
    On,
}

const CLASSES: &[Class] = &[
    Class::of("full disk", Calls::Growing, SideOf::Both, libc::ENOSPC, Lasts::On),
    Class::of("full disk, once", Calls::Growing, SideOf::Both, libc::ENOSPC, Lasts::Once),
    Class::of("quota", Calls::Growing, SideOf::Both, libc::EDQUOT, Lasts::On),
    Class::of("failing writes", Calls::Growing, SideOf::Both, libc::EIO, Lasts::On),
    Class::of("a failing write", Calls::Growing, SideOf::Both, libc::EIO, Lasts::Once),
    Class::of("failing syncs", Calls::Syncing, SideOf::Both, libc::EIO, Lasts::On),
    Class::of("a failing sync", Calls::Syncing, SideOf::Both, libc::EIO, Lasts::Once),
    Class::of("failing reads", Calls::Reading, SideOf::Both, libc::EIO, Lasts::On),
    Class::of("a failing read", Calls::Reading, SideOf::Both, libc::EIO, Lasts::Once),
    Class::of("project read-only", Calls::Changing, SideOf::Lower, libc::EROFS, Lasts::On),
    Class::of("state read-only", Calls::Changing, SideOf::State, libc::EROFS, Lasts::On),
    Class::of("no permission below", Calls::Changing, SideOf::Lower, libc::EACCES, Lasts::On),
    Class::of("no permission below, once", Calls::Changing, SideOf::Lower, libc::EACCES, Lasts::Once),
    Class::of("no descriptors", Calls::Opening, SideOf::All, libc::EMFILE, Lasts::On),
    Class::of("no descriptor, once", Calls::Opening, SideOf::All, libc::EMFILE, Lasts::Once),
];

/// What is done after the fault, in the same act's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The same act once more.
    Again,
    /// Nothing: the process is gone.
    Gone,
}

/// By which a process knows its scenario.
const SCENARIO: &str = "FETTLE_FAULTS_SCENARIO";
/// Every which call fails, in the gate. Odd, so that all kinds of calls have their turn.
const STRIDE: u64 = 13;

/// What was wrong once, by scenario, class and call: the gate tries it too.
const WRONG_ONCE: &[(&str, &str, u64)] = &[
    ("a backup is rolled back", "full disk, once", 1),
    ("a deleted file is rolled back into a directory that is gone", "full disk, once", 1),
    ("a directory is removed of which a file has just been renamed away", "failing writes", 2),
    ("a directory is removed of which a file has just been renamed away", "a failing write", 2),
    ("a directory is removed of which a file has just been renamed away", "state read-only", 2),
    ("a file with two names is written in place", "a failing sync", 2),
    ("a file with two names is written in place", "no permission below", 2),
    ("a path is made anew after a rename, and held", "a failing write", 1),
    ("a small edit is renamed over its file", "a failing sync", 1),
    ("a small edit is renamed over its file", "a failing write", 3),
    ("two files change places, and both land", "a failing sync", 6),
    ("directories change places, and a new file stands where an older one was", "a failing write", 3),
];

/// How a process ends in which a fault was tried.
const RIGHT: u8 = 0;
const WRONG: u8 = 1;
/// There was no such call.
const PASSED: u8 = 2;
/// Right, and the view writes nothing any more: the next start puts it right.
const STOPPED: u8 = 3;

#[test]
fn a_fault_at_any_call_leaves_all_old_or_all_new_and_is_told() {
    let wanted = std::env::var("FETTLE_FAULTS_ONLY").unwrap_or_default();
    let scenarios = SCENARIOS.iter().chain(FAULTY).filter(|scenario| scenario.name.contains(&wanted));
    let faults = try_each_apart(scenarios, "faults", SCENARIO);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Not a test by itself: what the test above starts once for each scenario.
#[test]
fn one_scenario() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let scenario = SCENARIOS.iter().chain(FAULTY).find(|scenario| name == scenario.name).unwrap();
    let wanted = std::env::var("FETTLE_FAULTS_CLASS").unwrap_or_default();
    let stride =
        std::env::var("FETTLE_FAULTS").map_or(STRIDE, |asked| asked.parse().expect("FETTLE_FAULTS is a number"));
    let (before, after) = scenario.before_and_after();
    let (mut tried, mut wrong) = (0, 0);
    for (index, class) in CLASSES.iter().enumerate().filter(|(_, class)| class.name.contains(&wanted)) {
        // Another first call for each class, so that all of them together try more than every `stride`-th.
        let mut at = 1 + index as u64 % stride;
        loop {
            let then = if (at / stride).is_multiple_of(2) { Then::Again } else { Then::Gone };
            let attempt = Attempt { scenario, class, at, then, before: &before, after: &after };
            match attempt.run() {
                PASSED => break,
                ended => wrong += u64::from(ended != RIGHT),
            }
            tried += 1;
            at += stride;
        }
        let known = WRONG_ONCE.iter().filter(|(of, by, _)| (*of, *by) == (scenario.name, class.name));
        for (&(.., at), then) in known.flat_map(|known| [(known, Then::Again), (known, Then::Gone)]) {
            let attempt = Attempt { scenario, class, at, then, before: &before, after: &after };
            wrong += u64::from(attempt.run() != RIGHT);
            tried += 1;
        }
    }
    eprintln!("faults: {name}: {tried} points, {wrong} faults");
    assert_eq!(wrong, 0);
}

impl Class {
    const fn of(name: &'static str, calls: Calls, side: SideOf, errno: i32, lasts: Lasts) -> Self {
        Self { name, calls, side, errno, lasts }
    }

    fn trap(&self, project: &Path, at: u64) -> Trap {
        let (project, state) = (project.to_owned(), project.join(".fettle"));
        let reserve = state.join("reserve");
        let area = match self.side {
            SideOf::Lower => Area::Below { dir: project, but: Some(state) },
            SideOf::State => Area::Below { dir: state, but: None },
            SideOf::Both => Area::Below { dir: project, but: None },
            SideOf::All => Area::Anywhere,
        };
        let fate = match self.lasts {
            Lasts::Once => Fate::Fails(self.errno),
            Lasts::On => Fate::AllFail(self.errno),
        };
        let is_full = matches!(self.errno, libc::ENOSPC | libc::EDQUOT) && self.lasts == Lasts::On;
        Trap { calls: self.calls, area, at, fate, reserve: is_full.then_some(reserve) }
    }
}

impl Scenario {
    /// What there is before and after the act when nothing fails.
    fn before_and_after(&self) -> (Picture, Picture) {
        let project = self.scratch();
        let (mut bench, _) = Bench::at(project.path());
        (self.ready)(&mut bench);
        let before = Picture::of(&bench);
        (self.act)(&bench).unwrap();
        (before, Picture::of(&bench))
    }
}

/// One fault in one act.
struct Attempt<'a> {
    scenario: &'a Scenario,
    class: &'a Class,
    at: u64,
    then: Then,
    before: &'a Picture,
    after: &'a Picture,
}

impl Attempt<'_> {
    fn run(&self) -> u8 {
        let project = self.scenario.scratch();
        let ended = apart(|| self.act(project.path())).unwrap();
        let mut then = self.then;
        match ended {
            Ended::Exited(RIGHT) => {}
            Ended::Exited(STOPPED) => then = Then::Gone,
            Ended::Exited(PASSED) => return PASSED,
            Ended::Exited(PANICKED) => {
                self.tell(&["it panicked, as told above".to_owned()]);
                return WRONG;
            }
            Ended::Exited(_) => return WRONG,
            Ended::Killed => panic!("nothing kills here"),
        }
        let wrong = self.look_again(project.path(), then);
        self.tell(&wrong);
        if wrong.is_empty() { RIGHT } else { WRONG }
    }

    fn tell(&self, wrong: &[String]) {
        let Self { scenario, class, at, then, .. } = self;
        wrong
            .iter()
            .for_each(|fault| eprintln!("{}, {}, call {at}, then {then:?}: {fault}", scenario.name, class.name));
    }

    /// The act with its fault, up to where it is recorded, and what follows.
    fn act(&self, project: &Path) -> u8 {
        let (mut bench, _) = Bench::at(project);
        (self.scenario.ready)(&mut bench);
        let steps = Steps::watch(self.class.trap(project, self.at)).unwrap();
        let recorded = || bench.view().store().record_waiting().map_err(|err| Error::from(err).into());
        let acted = (self.scenario.act)(&bench).and_then(|()| recorded());
        steps.relent();
        if steps.failed() == 0 {
            return PASSED;
        }
        let mut wrong = Vec::from_iter(self.wrong_answer(&acted, &bench));
        if self.class.side == SideOf::Lower && bench.view().fault().is_none() {
            // Directories made for it cannot be taken away where nothing can be changed: they go when the session ends.
            bench.view().store().clear_up(bench.view().lower()).unwrap();
        }
        let now = self.picture(&bench);
        wrong.extend(self.wrong_state(&now, &acted, bench.view().fault().is_some()));
        if self.then == Then::Again && bench.view().fault().is_none() {
            wrong.extend(self.again(&bench, &acted));
        }
        self.tell(&wrong);
        let stopped = bench.view().fault().is_some();
        // Not dropped, as after a kill.
        std::mem::forget(bench);
        match wrong.is_empty() {
            true if stopped => STOPPED,
            true => RIGHT,
            false => WRONG,
        }
    }

    /// Where nothing can be changed our temporary names cannot be taken away either. The view hides them, and they go when
    /// the session ends, or in recovery.
    fn picture(&self, bench: &Bench) -> Picture {
        let mut now = Picture::of(bench);
        now.lower.retain(|path, _| !path.contains(crate::store::TEMP_PREFIX));
        now
    }

    fn wrong_answer(&self, acted: &Acted, bench: &Bench) -> Option<String> {
        let Err(Refusal { errno, words }) = acted else { return None };
        let cause = std::io::Error::from_raw_os_error(self.class.errno).to_string();
        let right = match errno {
            Some(errno) => *errno == self.class.errno,
            None => words.contains(&cause) || self.class.errno == libc::EIO && is_sqlites(words),
        };
        let stopped = bench.view().fault();
        if stopped.is_some() && matches!(self.class.errno, libc::ENOSPC | libc::EDQUOT) {
            return Some(format!("a full disk stopped all writing: {stopped:?}"));
        }
        (!right).then(|| format!("told errno {errno:?}, {words:?}, and not {cause:?}; writing stopped: {stopped:?}"))
    }

    fn wrong_state(&self, now: &Picture, acted: &Acted, stopped: bool) -> Vec<String> {
        let Self { before, after, .. } = self;
        let mut wrong = Vec::new();
        // A refused write may leave the file made and without content, as on any disk.
        let all_or_nothing = !stopped && !matches!(self.scenario.rule, Rule::Writes | Rule::EachPath);
        if all_or_nothing && now.lower != before.lower && now.lower != after.lower && !self.is_held_instead(now) {
            wrong.push(format!(
                "the project is neither old, but{}\nnor new, but{}",
                now.against(before),
                now.against(after)
            ));
        }
        let right = match (self.scenario.rule, acted) {
            _ if stopped => true,
            (Rule::Closes, _) => now.view == after.view,
            (Rule::Writes, Err(_)) => true,
            // It was made, and nothing can take it away again, or there is no descriptor left to tell of it.
            (Rule::Made, Err(_)) if self.cannot_be_taken_back() => *now == **before || now.lower == after.lower,
            (Rule::Looks, Err(_)) if self.class.errno == libc::EROFS => {
                *now == **before || (now.lower == before.lower && now.view == after.view)
            }
            (Rule::Shown, Ok(())) => now.view == after.view,
            (_, Ok(())) => self.is_after(now),
            (_, Err(_)) => *now == **before,
        };
        if !right {
            let how = acted.as_ref().map_or_else(|refusal| refusal.words.clone(), |()| "done".to_owned());
            let (old, new) = (now.against(before), now.against(after));
            wrong.push(format!("answered {how:?}, and there is not the old:{old}\nnor the new:{new}"));
        }
        wrong
    }

    /// Done, or held for want of a backup where it would have landed.
    fn is_after(&self, now: &Picture) -> bool {
        if self.scenario.rule == Rule::EachPath {
            return now.view == self.after.view && self.each_path_is_old_or_new(now);
        }
        now == self.after || self.is_held_instead(now)
    }

    /// Below nothing has changed, but that the source of a rename is gone where that came in this session.
    fn is_held_instead(&self, now: &Picture) -> bool {
        let (old, new) = (&self.before.lower, &self.after.lower);
        let unchanged = now.lower.iter().all(|(path, content)| old.get(path) == Some(content));
        let gone_too = old.keys().filter(|path| !now.lower.contains_key(*path)).all(|path| !new.contains_key(path));
        unchanged && gone_too && now.view == self.after.view && !now.held.is_empty()
    }

    fn each_path_is_old_or_new(&self, now: &Picture) -> bool {
        let Self { before, after, .. } = self;
        let is_either =
            |(path, what): (&String, &String)| [before, after].iter().any(|then| then.lower.get(path) == Some(what));
        (now.view == before.view || now.view == after.view) && now.lower.iter().all(is_either)
    }

    fn cannot_be_taken_back(&self) -> bool {
        let is_lower = self.class.side == SideOf::Lower && self.class.lasts == Lasts::On;
        is_lower || self.class.errno == libc::EMFILE
    }

    /// The fault is gone: what was refused is done at the second attempt.
    fn again(&self, bench: &Bench, acted: &Acted) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.scenario.rule == Rule::Made && self.cannot_be_taken_back() {
            return wrong;
        }
        let again = match (self.scenario.rule, acted) {
            (Rule::Closes, _) | (Rule::Shown, Ok(())) => {
                bench.view().flush_all(None).map(|_| ()).map_err(Refusal::from)
            }
            (_, Err(_)) => (self.scenario.act)(bench),
            (_, Ok(())) => Ok(()),
        };
        if let Err(refusal) = again {
            wrong.push(format!("the second attempt: {refusal:?}"));
        }
        bench.view().store().clear_up(bench.view().lower()).unwrap();
        let now = Picture::of(bench);
        if !self.is_after(&now) {
            wrong.push(format!("after the second attempt there is not the new:{}", now.against(self.after)));
        }
        let (faults, _) = bench.view().check().unwrap();
        // Content that was being copied goes with the next start, where it could not be removed at once.
        let is_copy = |about: &str| about.starts_with("content/new-") && self.class.side == SideOf::State;
        let faults = faults.into_iter().filter(|fault| !is_copy(&fault.about));
        wrong.extend(faults.map(|fault| format!("check: {fault:?}")));
        wrong.extend(self.scenario.lost(bench, &now).iter().map(|content| format!("lost: {content:?}")));
        wrong
    }

    /// What is there after a kill and a recovery.
    fn look_again(&self, project: &Path, then: Then) -> Vec<String> {
        let Self { before, after, .. } = self;
        let (bench, _) = Bench::at(project);
        let now = Picture::of(&bench);
        let mut wrong = Vec::new();
        let right = match self.scenario.rule {
            Rule::Made if self.cannot_be_taken_back() => now.lower == before.lower || now.lower == after.lower,
            _ if then == Then::Again => self.is_after(&now),
            Rule::AllOrNothing | Rule::Looks | Rule::Shown => now == **before || self.is_after(&now),
            Rule::EachPath => self.each_path_is_old_or_new(&now),
            Rule::Made => now == **before || now == Picture { past: now.past.clone(), ..(**after).clone() },
            Rule::Unrecorded => {
                let unrecorded = Picture { past: before.past.clone(), ..(**after).clone() };
                [*before, *after, &unrecorded].contains(&&now)
            }
            Rule::Closes => self.is_after(&now),
            Rule::Writes => true,
        };
        if !right {
            let (old, new) = (now.against(before), now.against(after));
            wrong.push(format!("recovered is neither old, but{old}\nnor new, but{new}"));
        }
        let (faults, _) = bench.view().check().unwrap();
        wrong.extend(faults.into_iter().map(|fault| format!("check after recovery: {fault:?}")));
        wrong.extend(self.scenario.lost(&bench, &now).iter().map(|content| format!("lost in recovery: {content:?}")));
        drop(bench);
        let (bench, recovered) = Bench::at(project);
        if !recovered.is_nothing() || Picture::of(&bench) != now {
            wrong.push(format!("the second recovery did {recovered:?}"));
        }
        wrong
    }
}

/// What SQLite calls an error of the disk.
fn is_sqlites(words: &str) -> bool {
    ["disk I/O error", "database disk image is malformed"].iter().any(|words_of| words.contains(words_of))
}
