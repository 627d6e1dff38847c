//! The end of a run: what is left to be judged, what becomes of what is held, and the status to end with.

use super::OnExit;
use super::join::{Membership, Sessions};
use super::summary::{Summary, Touched};
use crate::cli::desk::Answer;
use crate::cli::words::plural;
use crate::cli::{Desk, Failure};
use crate::client::Client;
use crate::protocol::{Acted, ErrorCode, Event, EventName, Held, Op, Outcome, Reply, Request, Status, Target};

/// The command has ended with `status`. What it has done is told whatever that is.
pub fn end(
    status: u8,
    on_exit: OnExit,
    fail_on_held: bool,
    mut membership: Membership,
    desk: &Desk,
) -> Result<u8, Failure> {
    let summary = match concluded(&mut membership, on_exit, desk) {
        // It died over it: with the next, or not at all.
        Err(Failure::Told(body)) if matches!(body.code, ErrorCode::Io | ErrorCode::NotMounted) => {
            membership.lose();
            concluded(&mut membership, on_exit, desk)
        }
        concluded => concluded,
    };
    // A daemon that is not told waits for us to end, which comes to the same, but says nothing of what fails.
    let left = membership.leave();
    let Some(summary) = summary? else { return gone(status, desk) };
    let ended = if fail_on_held && status == 0 && !summary.held.is_empty() { 1 } else { status };
    summary.print(ended, desk)?;
    left.map(|()| ended)
}

/// Nobody can say what became of the last writes.
fn gone(status: u8, desk: &Desk) -> Result<u8, Failure> {
    desk.remark(|text| {
        text.put("fettlefs: the daemon died and did not come back; what was held and kept is safe: fettlefs status\n");
    })?;
    Ok(if status == 0 { super::OWN_FAILURE } else { status })
}

/// None where nobody answers any more.
fn concluded(membership: &mut Membership, on_exit: OnExit, desk: &Desk) -> Result<Option<Summary>, Failure> {
    let Some((mut client, sessions)) = membership.reach() else { return Ok(None) };
    conclude(&mut client, sessions, on_exit, desk).map(Some)
}

fn conclude(client: &mut Client, sessions: &Sessions, on_exit: OnExit, desk: &Desk) -> Result<Summary, Failure> {
    client.ask(&Request::new(Op::Flush))?;
    // To be told, what was done while a daemon came back counts, too.
    let told: Vec<String> = sessions.own.iter().chain(&sessions.of_nobody).cloned().collect();
    let events = events_of(client, &told)?;
    let is_ours = |held: &Held| held.since_session.as_ref().is_some_and(|since| sessions.own.contains(since));
    let ours = status(client)?.held.into_iter().filter(is_ours).collect();
    let outcomes = decide(client, on_exit, ours, desk)?;
    let status = status(client)?;
    // What was confirmed in the run, or promoted by a check, has come to the project as well.
    let mut landed = Touched::all(&events, &[EventName::WriteLanded, EventName::Confirmed]);
    let denied = Touched::all(&events, &[EventName::WriteDenied]);
    landed.retain(|touched| !touched.has_passed(&client.place().root));
    Ok(Summary { sessions: told, landed, denied, outcomes, held: status.held })
}

/// Oldest first.
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

/// Only of what this run has begun to hold: what waited before, and what others wait with, is not its own to decide,
/// although it may have written more to it. Expiry guards people, not this.
fn decide(client: &mut Client, on_exit: OnExit, ours: Vec<Held>, desk: &Desk) -> Result<Vec<Outcome>, Failure> {
    let act = match on_exit {
        OnExit::Keep => return Ok(Vec::new()),
        _ if ours.is_empty() => return Ok(Vec::new()),
        OnExit::Confirm => Op::Confirm,
        OnExit::Discard => Op::Discard,
        OnExit::Ask => match ask(&ours, desk)? {
            Answer::Yes => Op::Confirm,
            Answer::No => return Ok(Vec::new()),
        },
    };
    let targets = ours.into_iter().map(|held| Target::id(held.id.to_string())).collect();
    match client.ask(&Request { targets, renew: act == Op::Confirm, ..Request::new(act) })? {
        Reply::Confirm(Acted { outcomes, .. }) | Reply::Discard(Acted { outcomes, .. }) => Ok(outcomes),
        _ => Err(Failure::other_answer()),
    }
}

fn ask(ours: &[Held], desk: &Desk) -> Result<Answer, Failure> {
    desk.remark(|text| crate::cli::held::render_table(ours, text))?;
    desk.agreed("--on-exit ask", &format!("Apply {}?", plural(ours.len() as u64, "held change")))
}

fn status(client: &mut Client) -> Result<Status, Failure> {
    match client.ask(&Request::new(Op::Status))? {
        Reply::Status(status) => Ok(*status),
        _ => Err(Failure::other_answer()),
    }
}
