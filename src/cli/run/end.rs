//! The end of a run: judging what is left, deciding about what is held, and the status to end with.

use std::collections::BTreeSet;

use super::OnExit;
use super::join::{Gone, Membership, Sessions};
use super::summary::{self, Summary, Touched};
use crate::cli::act::COUNTED_MAX;
use crate::cli::desk::Answer;
use crate::cli::{Desk, Failure};
use crate::client::Client;
use crate::model::{ChangeId, plural};
use crate::protocol::{
    Acted, ErrorBody, ErrorCode, Event, EventName, Held, Op, Outcome, ProjectPath, Reply, Request, Status, Target,
};
use crate::sys::foreground::{Foreground, Heard};

/// What to do once the command has ended.
pub struct Ending<'a> {
    pub on_exit: OnExit,
    pub fail_on_held: bool,
    pub foreground: &'a Foreground,
}

/// What became of a run, and why nothing was decided about what it held, if so.
struct Concluded {
    summary: Summary,
    undecided: Option<Undecided>,
}

/// What became of the changes that the run has held.
type Decided = Result<Vec<Outcome>, Undecided>;

/// Why they stay held.
enum Undecided {
    Interrupted(i32),
    Refused(ErrorBody),
}

impl Ending<'_> {
    /// Ends a run whose command ended with `status`, and prints what the run did, whatever the status.
    pub fn end(&self, status: u8, mut membership: Membership, desk: &Desk) -> Result<u8, Failure> {
        let concluded = match self.concluded(&mut membership, desk) {
            // The daemon may have died of this request: try once more with its replacement, if one comes.
            Err(Failure::Told(body)) if may_have_died(&body) => {
                membership.lose();
                self.concluded(&mut membership, desk)
            }
            concluded => concluded,
        };
        let Some(concluded) = concluded.transpose() else { return gone(membership.why_gone(), status, desk) };
        // A daemon that is not told notices our end by itself, but then a failure of its own goes unreported.
        let left = membership.leave();
        let Concluded { summary, undecided } = concluded?;
        let ended = match undecided {
            Some(Undecided::Interrupted(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Some(Undecided::Refused(_)) => super::OWN_FAILURE,
            None if self.fail_on_held && status == 0 && !summary.held.is_empty() => 1,
            None => status,
        };
        unless_unheard(match undecided {
            Some(Undecided::Interrupted(_)) => end_line(desk).and_then(|()| summary.print(ended, None, desk)),
            Some(Undecided::Refused(refused)) => summary.print(ended, Some(&refused), desk),
            None => summary.print(ended, None, desk),
        })?;
        left.map(|()| ended)
    }

    /// Returns `None` if no daemon answers any more.
    fn concluded(&self, membership: &mut Membership, desk: &Desk) -> Result<Option<Concluded>, Failure> {
        let Some((mut client, sessions)) = membership.reach() else { return Ok(None) };
        self.conclude(&mut client, sessions, desk).map(Some)
    }

    fn conclude(&self, client: &mut Client, sessions: &Sessions, desk: &Desk) -> Result<Concluded, Failure> {
        client.ask(&Request::new(Op::Flush))?;
        // The report includes what was done while a daemon was coming back.
        let told: Vec<String> = sessions.own.iter().chain(&sessions.of_nobody).cloned().collect();
        let events = events_of(client, &told)?;
        let to_decide = self.to_decide(status(client)?.held, sessions);
        let (outcomes, undecided) = match self.decide(client, to_decide, desk)? {
            Ok(outcomes) => (outcomes, None),
            Err(undecided) => (Vec::new(), Some(undecided)),
        };
        let status = status(client)?;
        // What was confirmed in the run, or promoted by a check, has reached the project as well.
        let mut landed = Touched::all(&events, &[EventName::WriteLanded, EventName::Confirmed]);
        let denied = Touched::all(&events, &[EventName::WriteDenied]);
        let project = client.place().root.clone();
        landed.retain(|touched| !touched.has_passed(&project));
        let Status { held, notices, .. } = status;
        let left = self.left(&held, sessions);
        let incomplete = falls_short(&events, &sessions.own);
        let (project, sessions) = (ProjectPath(project), told);
        Ok(Concluded {
            summary: Summary { project, sessions, landed, denied, outcomes, held, left, notices, incomplete },
            undecided,
        })
    }

    /// Selects what this run has begun to hold. Changes that were held before, or by others, are not its own to decide,
    /// even if it has added to them. A directory that the run removed does not land without the deletions that others
    /// hold in it.
    fn to_decide(&self, held: Vec<Held>, sessions: &Sessions) -> Vec<Held> {
        let is_ours = |held: &Held| is_own(held.since_session.as_ref(), sessions);
        let (ours, others): (Vec<Held>, Vec<Held>) = held.into_iter().partition(is_ours);
        let waits_for_others =
            |held: &Held| held.removes_dir() && others.iter().any(|other| other.path.is_within(&held.path));
        match self.on_exit {
            OnExit::Keep | OnExit::Discard => ours,
            OnExit::Confirm | OnExit::Ask => ours.into_iter().filter(|held| !waits_for_others(held)).collect(),
        }
    }

    /// Selects what a decision passes over although this run wrote it, because others began to hold it.
    fn left(&self, held: &[Held], sessions: &Sessions) -> Vec<ChangeId> {
        let is_left =
            |held: &&Held| is_own(held.session.as_ref(), sessions) && !is_own(held.since_session.as_ref(), sessions);
        let decides = self.on_exit != OnExit::Keep;
        held.iter().filter(|_| decides).filter(is_left).map(|held| held.id.clone()).collect()
    }

    /// Confirms, discards or asks. Expiry guards people, so it is overridden here.
    fn decide(&self, client: &mut Client, ours: Vec<Held>, desk: &Desk) -> Result<Decided, Failure> {
        let act = match self.on_exit {
            OnExit::Keep => return Ok(Ok(Vec::new())),
            _ if ours.is_empty() => return Ok(Ok(Vec::new())),
            OnExit::Confirm => Op::Confirm,
            OnExit::Discard => Op::Discard,
            OnExit::Ask if ours.len() > COUNTED_MAX => return Ok(Err(Undecided::Refused(too_many(ours.len())))),
            OnExit::Ask => match self.ask(&ours, desk)? {
                Heard::Answer(Answer::Yes) => Op::Confirm,
                Heard::Answer(Answer::No) => return Ok(Ok(Vec::new())),
                Heard::Signal(signal) => return Ok(Err(Undecided::Interrupted(signal))),
            },
        };
        let mut all = Vec::new();
        for request in requests(act, &ours) {
            match client.ask(&request) {
                Ok(Reply::Confirm(Acted { outcomes, .. }) | Reply::Discard(Acted { outcomes, .. })) => {
                    all.extend(outcomes);
                }
                Ok(_) => return Err(Failure::other_answer()),
                Err(body) if may_have_died(&body) => return Err(body.into()),
                Err(refused) => return Ok(Err(Undecided::Refused(refused))),
            }
        }
        Ok(Ok(all))
    }

    fn ask(&self, ours: &[Held], desk: &Desk) -> Result<Heard<Answer>, Failure> {
        desk.remark(|text| crate::cli::held::render_table(ours, text))?;
        let question = format!("Apply {}?", plural(ours.len() as u64, "held change"));
        desk.agreed_in_front("--on-exit ask", &question, self.foreground)
    }
}

fn is_own(session: Option<&String>, sessions: &Sessions) -> bool {
    session.is_some_and(|session| sessions.own.contains(session))
}

/// One request that names all changes. If they are too many for one, a request for each session that began to hold some:
/// a run has one session, unless its daemon died meanwhile.
fn requests(act: Op, ours: &[Held]) -> Vec<Request> {
    let request = || Request { renew: act == Op::Confirm, ..Request::new(act) };
    if ours.len() <= COUNTED_MAX {
        let targets = ours.iter().map(|held| Target::id(held.id.to_string())).collect();
        return vec![Request { targets, ..request() }];
    }
    let sessions: BTreeSet<&String> = ours.iter().filter_map(|held| held.since_session.as_ref()).collect();
    sessions.into_iter().map(|session| Request { session: Some(session.clone()), ..request() }).collect()
}

fn too_many(count: usize) -> ErrorBody {
    let message = format!("{count} held changes are too many to be asked about: fettlefs confirm --all, or discard");
    ErrorBody::new(ErrorCode::TooLarge, message)
}

fn may_have_died(told: &ErrorBody) -> bool {
    matches!(told.code, ErrorCode::Io | ErrorCode::NotMounted)
}

/// Ends the line of a question that was not answered.
fn end_line(desk: &Desk) -> Result<(), Failure> {
    desk.remark(|text| {
        text.put("\n");
    })
}

/// Reports that the daemon is gone, so that it is unknown what became of the last writes.
fn gone(why: Gone, status: u8, desk: &Desk) -> Result<u8, Failure> {
    let why = match why {
        Gone::Died => "the daemon died and did not come back",
        Gone::Unmounted => "somebody has unmounted the view, which shuts it, or has moved the project away",
    };
    let status = if status == 0 { super::OWN_FAILURE } else { status };
    let message = format!("{why}; what was held and kept is safe: fettlefs status");
    unless_unheard(summary::print_failed(&ErrorBody::new(ErrorCode::NotMounted, message), status, desk))?;
    Ok(status)
}

/// What a run ends with does not depend on whether it can be told: the disk may be full, the reader or terminal gone.
fn unless_unheard(printed: Result<(), Failure>) -> Result<(), Failure> {
    match printed {
        Err(Failure::Print(_)) => Ok(()),
        printed => printed,
    }
}

/// Returns the events of these sessions, oldest first.
fn events_of(client: &mut Client, sessions: &[String]) -> Result<Vec<Event>, Failure> {
    let mut all = Vec::new();
    for session in sessions {
        let request = Request { session: Some(session.clone()), ..Request::new(Op::Log) };
        let Reply::Log(log) = client.ask(&request)? else { return Err(Failure::other_answer()) };
        all.extend(log.events);
    }
    all.sort_by_key(|event| event.seq);
    Ok(all)
}

/// True if the log has let go of the beginning of a session, and of whatever it did then.
fn falls_short(events: &[Event], sessions: &[String]) -> bool {
    let begins = |session: &String| {
        let is_it = |event: &&Event| event.session.as_ref() == Some(session);
        events.iter().filter(is_it).any(|event| event.event == EventName::SessionStarted)
    };
    !sessions.iter().all(begins)
}

fn status(client: &mut Client) -> Result<Status, Failure> {
    match client.ask(&Request::new(Op::Status))? {
        Reply::Status(status) => Ok(*status),
        _ => Err(Failure::other_answer()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_lacks_the_beginning_of_a_session_falls_short() {
        let event = |event, session: &str| {
            let event = Event::new(1, jiff::Timestamp::UNIX_EPOCH, event);
            Event { session: Some(session.to_owned()), ..event }
        };
        let sessions = ["one".to_owned(), "two".to_owned()];
        let mut events = vec![
            event(EventName::SessionStarted, "one"),
            event(EventName::WriteLanded, "one"),
            event(EventName::SessionStarted, "two"),
        ];
        assert!(!falls_short(&events, &sessions));
        events.remove(0);
        assert!(falls_short(&events, &sessions));
    }

    fn held_since(session: &str) -> Held {
        let held = serde_json::json!({
            "id": "a1b2c3d4", "path": "a", "kind": "modify", "also": [], "reason": "size", "insertions": 1, "deletions": 1,
            "old_lines": 1, "ratio": 1.0, "hunks": 1, "base_sha256": null, "new_sha256": null, "expired": false,
            "externally_modified": false, "operation": null, "writer": null, "created": "2026-03-12T14:30:22.471Z",
            "since_session": session,
        });
        serde_json::from_value(held).expect("a held change")
    }

    #[test]
    fn what_is_more_than_one_request_can_name_is_named_by_its_sessions() {
        let mut ours = vec![held_since("one"); COUNTED_MAX];
        let [named] = &requests(Op::Confirm, &ours)[..] else { panic!("more than one request") };
        assert_eq!((named.targets.len(), named.renew, named.to_line().is_ok()), (COUNTED_MAX, true, true));
        ours.push(held_since("two"));
        let requests = requests(Op::Discard, &ours);
        assert!(requests.iter().all(|request| request.targets.is_empty() && !request.all && !request.renew));
        let sessions: Vec<_> = requests.iter().map(|request| request.session.as_deref()).collect();
        assert_eq!(sessions, [Some("one"), Some("two")]);
    }
}
