//! The threads that ask while keys are read: one works on tasks, one follows events.
//!
//! One looks for the daemon anew for each task, the other after each mount: mounts come and go during a review.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use super::model::{Act, Input, Task};
use crate::client::{Client, Offline, Reach, other_answer};
use crate::protocol::{Acted, DiffReply, ErrorBody, Op, Reply, Request, Status, Target};

/// How often to look for a mount while there is none. Nothing is asked meanwhile: that would take the project's lock.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long one question for events waits. Ctrl-Z takes effect only when all threads have stopped, and a thread that
/// reads the control file stops only with its answer: the kernel does not tell the daemon of the stop.
const WAIT_SECONDS: u64 = 1;

/// How to reach the daemon.
#[derive(Clone)]
pub struct Way {
    pub directory: PathBuf,
    pub offline: Offline,
    /// Words what an act has done.
    pub told: fn(&Acted) -> String,
}

impl Way {
    pub fn status(&self) -> Result<Box<Status>, ErrorBody> {
        match self.ask(&Request::new(Op::Status))? {
            Reply::Status(status) => Ok(status),
            _ => Err(other_answer()),
        }
    }

    fn compare(&self, id: String) -> Result<DiffReply, ErrorBody> {
        match self.ask(&Request { targets: vec![Target::id(id)], ..Request::new(Op::Diff) })? {
            Reply::Diff(diff) => Ok(diff),
            _ => Err(other_answer()),
        }
    }

    fn act(&self, act: &Act) -> Result<(Acted, String), ErrorBody> {
        match self.ask(&request(act))? {
            Reply::Confirm(acted) | Reply::Discard(acted) | Reply::Undo(acted) => {
                let told = (self.told)(&acted);
                Ok((acted, told))
            }
            _ => Err(other_answer()),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, ErrorBody> {
        Client::open(&self.directory, self.offline)?.ask(request)
    }
}

fn request(act: &Act) -> Request {
    let on = |op, id: &crate::model::ChangeId, hunks: &Vec<u32>| Request {
        targets: vec![Target::id(id.to_string())],
        hunks: hunks.clone(),
        ..Request::new(op)
    };
    match act {
        Act::Confirm { id, hunks } => on(Op::Confirm, id, hunks),
        Act::Discard { id, hunks } => on(Op::Discard, id, hunks),
        Act::Undo { operation } => Request { operation: Some(operation.clone()), ..Request::new(Op::Undo) },
    }
}

/// Works on tasks in order, until the sender or the receiver is gone.
pub fn work(way: &Way, tasks: &Receiver<Task>, answer: impl Fn(Input) -> bool) {
    for task in tasks {
        let input = match task {
            Task::List => Input::Listed(way.status()),
            Task::Diff(id) => {
                let compared = way.compare(id.to_string());
                Input::Compared(id, compared)
            }
            Task::Act(act) => {
                let acted = way.act(&act);
                Input::Acted(act, acted)
            }
            // Those are for the thread that draws.
            Task::Stop | Task::Redraw => continue,
        };
        if !answer(input) {
            return;
        }
    }
}

/// Calls `happened` whenever something has happened since event `seq`, with or without a mount, until it returns false.
pub fn follow(way: &Way, mut seq: u64, happened: impl Fn() -> bool) {
    loop {
        if !follow_mount(way, &mut seq, &happened) {
            return;
        }
        // The mount went away: what is held is asked for once more, from whatever answers now.
        if !happened() {
            return;
        }
        while !is_served(way) {
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Returns false once the receiver is gone.
fn follow_mount(way: &Way, seq: &mut u64, happened: &impl Fn() -> bool) -> bool {
    let Ok(mut client) = Client::open(&way.directory, way.offline) else { return true };
    loop {
        let timeout_seconds = Some(WAIT_SECONDS);
        let request = Request { since: Some(*seq), wait: true, timeout_seconds, ..Request::new(Op::Events) };
        // The same failure also reaches the request for the list, which reports it.
        let Ok(Reply::Events(events)) = client.ask(&request) else { return true };
        *seq = events.seq;
        if !events.events.is_empty() && !happened() {
            return false;
        }
        if events.over {
            return true;
        }
    }
}

fn is_served(way: &Way) -> bool {
    let client = Client::open(&way.directory, way.offline);
    client.is_ok_and(|client| matches!(client.reach(), Reach::View(_) | Reach::Socket(_)))
}

/// Returns a function that sends inputs to the thread that draws, and returns false once that is gone.
pub fn hand_to<T>(sender: Sender<T>, wrap: impl Fn(Input) -> T) -> impl Fn(Input) -> bool {
    move |input| sender.send(wrap(input)).is_ok()
}
