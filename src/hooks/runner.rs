//! Asks programs, a few at a time, and knows which processes belong to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::supervisor::{self, ANSWER_BYTES_MAX, Ended, Report};
use super::{Answer, Program, Question};
use crate::sys::{inherited, process, processor, thread};

/// The most programs that run at once. More would not answer sooner, and a build that writes thousands of files must not
/// fill the machine with them.
const RUNNING_MAX: usize = 16;

/// How long after the limit a supervisor may take before it counts as lost, too. It answers after 0.3 s at most.
const SUPERVISOR_MAX: Duration = Duration::from_millis(600);

/// A report is an answer and some of the program's standard error in JSON, which may spell a byte with six.
const REPORT_BYTES_MAX: u64 = 8 * (ANSWER_BYTES_MAX as u64);

/// The only variables passed on to a program, beside `PATH` and `LANG`: they tell it where its user's files are.
const PASSED_ON: [&str; 4] = ["HOME", "USER", "LOGNAME", "TZ"];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Default)]
pub struct Runner {
    running: Arc<Running>,
    /// Answers given in advance to questions that are about to be asked. Each is used once.
    ahead: Mutex<BTreeMap<Vec<u8>, (Instant, Answer)>>,
}

/// How many answers given in advance are kept. The change may have come to nothing, and then nobody asks.
const AHEAD_MAX: usize = 64;
/// How long they are kept: the question follows at once.
const AHEAD_FOR: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Running {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    count: usize,
    /// Supervisors that have not ended. Processes under one may still have requests under way after its answer.
    supervisors: BTreeSet<u32>,
}

/// One of the programs that may run at once.
struct Slot<'a>(&'a Running);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.state.lock().count -= 1;
        self.0.ended.notify_one();
    }
}

impl Runner {
    /// Asks one program after another, each with `limit`. The first whose answer is not to land decides. Takes as long as
    /// the programs do, so the caller must hold no lock.
    pub fn ask(&self, programs: &[Program], question: &Question, limit: Duration) -> Answer {
        let asked = match question.to_json() {
            Ok(json) => json,
            Err(err) => return Answer::Hold(format!("the question could not be asked: {err}")),
        };
        if let Some((when, answer)) = self.ahead.lock().remove(&asked)
            && when.elapsed() < AHEAD_FOR
        {
            return answer;
        }
        let mut answers = programs.iter().map(|program| self.ask_one(program, &asked, limit));
        answers.find(|answer| *answer != Answer::Land).unwrap_or(Answer::Land)
    }

    /// Records the answer to `question`, which is about to be asked again, word for word.
    pub fn said_ahead(&self, question: &Question, answer: Answer) {
        let Ok(asked) = question.to_json() else { return };
        let mut ahead = self.ahead.lock();
        if ahead.len() >= AHEAD_MAX {
            ahead.clear();
        }
        ahead.insert(asked, (Instant::now(), answer));
    }

    /// Whether a process belongs to a program, or was started by one.
    pub fn is_own(&self, pid: u32) -> bool {
        let supervisors = self.running.state.lock().supervisors.clone();
        !supervisors.is_empty() && process::ancestors(pid).any(|pid| supervisors.contains(&pid))
    }

    fn ask_one(&self, program: &Program, question: &[u8], limit: Duration) -> Answer {
        let name = program.name();
        let deadline = Instant::now() + limit;
        let Some(_slot) = self.enter(deadline) else {
            return Answer::unclear(
                &name,
                &format!("its turn did not come within {limit:?}: too many are asked at once"),
            );
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match self.run(program, question, left) {
            Ok(report) => answer_of(&name, &report, limit),
            Err(err) => Answer::unclear(&name, &format!("it could not be asked: {err}")),
        }
    }

    fn enter(&self, deadline: Instant) -> Option<Slot<'_>> {
        let mut state = self.running.state.lock();
        while state.count >= RUNNING_MAX {
            if self.running.ended.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
        state.count += 1;
        Some(Slot(&self.running))
    }

    fn run(&self, program: &Program, question: &[u8], limit: Duration) -> io::Result<Report> {
        let mut command = supervisor::command(program.file().as_os_str(), program.arguments(), limit);
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").current_dir("/");
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut supervised = {
            // Under the lock, so that the supervisor is known before it can ask anything of the view.
            let mut state = self.running.state.lock();
            let child = command.spawn()?;
            state.supervisors.insert(child.id());
            Supervised { running: &self.running, child: Some(child) }
        };
        supervised.report(question, Instant::now() + limit + SUPERVISOR_MAX)
    }
}

/// A supervisor that is reaped however its run ends.
struct Supervised<'a> {
    running: &'a Arc<Running>,
    child: Option<Child>,
}

impl Supervised<'_> {
    fn report(&mut self, question: &[u8], deadline: Instant) -> io::Result<Report> {
        let child = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        inherited::give_limits_back(child.id())?;
        processor::unbind(Some(child.id()))?;
        let (Some(stdin), Some(stdout)) = (&child.stdin, &mut child.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        // The supervisor reads all of it before it does anything else.
        supervisor::write_question(stdin, question)?;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
            let left = left.map_err(io::Error::other)?;
            let mut ready = [PollFd::new(stdout, PollFlags::IN)];
            if rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&left)))? == 0 {
                // The supervisor's death kills the program, too.
                child.kill()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "who watches over it does not answer"));
            }
            let mut piece = [0; 16 << 10];
            match stdout.read(&mut piece)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "who watches over it has died")),
                count => line.extend_from_slice(&piece[..count]),
            }
            if line.len() as u64 > REPORT_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

impl Drop for Supervised<'_> {
    /// Usually the supervisor has ended. Not so if something it runs waits for this very answer: then a thread reaps it.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        drop(child.stdin.take());
        if !matches!(child.try_wait(), Ok(None)) {
            return self.running.ended(child.id());
        }
        let running = Arc::clone(self.running);
        let reaper = thread::start("hook-reaper", move || {
            if let Err(err) = child.wait() {
                log::error!("wait for a permission program's end: {err}");
            }
            running.ended(child.id());
        });
        if let Err(err) = reaper {
            log::error!("start a thread that waits for a permission program's end: {err}");
        }
    }
}

impl Running {
    fn ended(&self, supervisor: u32) {
        self.state.lock().supervisors.remove(&supervisor);
    }
}

fn answer_of(name: &str, report: &Report, limit: Duration) -> Answer {
    if !report.said.is_empty() {
        log::warn!("{name}: {}", report.said.trim_end().escape_debug());
    }
    let unclear = |why: String| Answer::unclear(name, &why);
    match &report.ended {
        Ended::Exited(0) => Answer::parse(name, report.answer.as_bytes()),
        Ended::Exited(status) => unclear(format!("it exited with status {status}")),
        Ended::Killed(signal) => unclear(format!("it was killed by signal {signal}")),
        Ended::TimedOut => unclear(format!("no answer within {limit:?}")),
        Ended::Flooded => unclear(format!("it answered more than {} KiB", ANSWER_BYTES_MAX >> 10)),
        Ended::Garbled => unclear("what it said is no answer: it is not UTF-8".to_owned()),
        Ended::Failed(why) => unclear(format!("it could not be asked: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::Tier;
    use crate::model::{ChangeKind, Digest, RelPath};

    fn question(content: &str) -> Question {
        Question {
            project: "/p".to_owned(),
            path: RelPath::parse(b"a").expect("a path"),
            kind: ChangeKind::Modify,
            from: None,
            tier: Tier::Land,
            reasons: vec![],
            counts: None,
            bytes: Some(content.len() as u64),
            sha256: Some(Digest::of(content.as_bytes())),
            // Of what is too large to be compared there is none.
            diff: vec![],
            pid: 7,
            uid: 1000,
            exe: None,
        }
    }

    #[test]
    fn what_was_said_ahead_counts_once_and_for_that_content_alone() {
        let (runner, no) = (Runner::default(), Answer::Deny("no".to_owned()));
        let ask = |content| runner.ask(&[], &question(content), Duration::from_secs(1));
        runner.said_ahead(&question("this"), no.clone());
        assert_eq!([ask("that"), ask("this"), ask("this")], [Answer::Land, no, Answer::Land]);
    }
}
