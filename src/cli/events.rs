//! `fettlefs events`: what happened, as a stream, the oldest first.
//!
//! A follower asks again and again. If the daemon dies it waits, since the watchdog soon starts another; if the mount
//! goes, the last events are read from the state directory.

use std::thread;
use std::time::{Duration, Instant};

use super::desk::Readers;
use super::{Desk, Failure, at_least, log, offline};
use crate::client::{Client, Reach};
use crate::protocol::{ErrorBody, ErrorCode, EventsReply, Exit, Op, Reply, Request};

/// How many earlier events `--follow` begins with, as `tail -f` does with lines.
const EARLIER_SHOWN: u64 = 10;

/// How long to wait for the next daemon, or for one to end. The watchdog needs 2 s (SPEC §10), on a busy machine more.
const LOOKS_FOR: Duration = Duration::from_secs(10);
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// Print what happened as a stream, the oldest first
///
/// With --json one object a line, as in .fettle/events.jsonl. Each event has a number, `seq`: a reader that was stopped
/// goes on after the last it has seen, with --since, and misses none.
#[derive(clap::Args)]
pub struct Arguments {
    /// Go on with what happens until the mount goes; begins with the last 10 unless --since says otherwise
    #[arg(short, long)]
    follow: bool,
    /// Only what came after the event of this number
    #[arg(long, value_name = "SEQ", value_parser = at_least(0))]
    since: Option<u64>,
    /// Only of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = match arguments.follow {
        true => desk.client()?.outlive_view()?,
        false => desk.client()?,
    };
    let mut request = Request { session: arguments.session, wait: arguments.follow, ..Request::new(Op::Events) };
    request.since = match (arguments.since, arguments.follow) {
        (None, true) => Some(before_latest(&mut client)?),
        (since, _) => since,
    };
    let mut has_followed = false;
    loop {
        let reply = match ask(&mut client, &request) {
            Err(Failure::Told(died)) if has_followed && died.code == ErrorCode::NotMounted => {
                client = after_death(&client, *died)?;
                match client.reach() {
                    Reach::Offline => return last_words(client, request, desk),
                    Reach::View(_) | Reach::Socket(_) | Reach::Stale(_) => continue,
                }
            }
            answered => answered?,
        };
        has_followed = arguments.follow;
        let readers = tell(&reply, &request, desk)?;
        let is_all = request.since.unwrap_or_default() == reply.seq;
        request.since = Some(reply.seq);
        match (readers, reply.over, arguments.follow) {
            (Readers::Listening, true, true) => return last_words(client, request, desk),
            (Readers::Listening, false, _) if arguments.follow || !is_all => {}
            _ => return Ok(Exit::Done),
        }
    }
}

fn ask(client: &mut Client, request: &Request) -> Result<EventsReply, Failure> {
    match client.ask(request)? {
        Reply::Events(reply) => Ok(reply),
        _ => Err(Failure::other_answer()),
    }
}

fn tell(reply: &EventsReply, request: &Request, desk: &Desk) -> Result<Readers, Failure> {
    if let (Some(since), Some(first), None) = (request.since, reply.events.first(), &request.session) {
        tell_gap(since, first.seq, desk)?;
    }
    desk.stream(&reply.events, log::render)
}

/// Returns the next daemon, or the state directory if the old one has taken its mount away silently. `failure` is the
/// error if neither appears.
fn after_death(client: &Client, failure: ErrorBody) -> Result<Client, Failure> {
    let began = Instant::now();
    let mut missing = None;
    while began.elapsed() < LOOKS_FOR {
        thread::sleep(LOOKS_EVERY);
        match client.again() {
            Ok(next) if answers(&next)? => return Ok(next),
            // Not yet: an ordinary user's dead mount is taken away before the next one comes.
            found => missing = found.err(),
        }
    }
    // A mount that is no longer there is not reported as dead.
    Err(missing.map_or_else(|| failure.into(), Failure::from))
}

/// Prints the last events of a mount that goes away. If nothing else can be reached from here, all has been told.
fn last_words(mut client: Client, mut request: Request, desk: &Desk) -> Result<Exit, Failure> {
    request.wait = false;
    let began = Instant::now();
    while began.elapsed() < LOOKS_FOR {
        if answers(&client)? {
            match ask(&mut client, &request) {
                Ok(reply) => {
                    let readers = tell(&reply, &request, desk)?;
                    let is_all = !reply.over && request.since == Some(reply.seq);
                    request.since = Some(reply.seq);
                    if readers == Readers::Gone || is_all {
                        return Ok(Exit::Done);
                    }
                }
                // It went away between the two requests.
                Err(Failure::Told(error)) if error.code == ErrorCode::NotMounted => {}
                Err(failure) => return Err(failure),
            }
        }
        thread::sleep(LOOKS_EVERY);
        match client.again() {
            Ok(next) => client = next,
            Err(_) => break,
        }
    }
    Ok(Exit::Done)
}

/// True if the client reaches what knows how it went on: the state directory does not while another daemon is due.
fn answers(client: &Client) -> Result<bool, Failure> {
    match client.reach() {
        Reach::View(_) | Reach::Socket(_) => Ok(true),
        Reach::Offline => Ok(!offline::is_left_by_dead(client.place())?),
        Reach::Stale(_) => Ok(false),
    }
}

/// Reports a gap in the numbers, which count up by one: the log dropped these events before they were read.
fn tell_gap(since: u64, first: u64, desk: &Desk) -> Result<(), Failure> {
    if first <= since + 1 {
        return Ok(());
    }
    desk.remark(|text| {
        text.put(format!("fettlefs: the events {} to {} are not kept any more\n", since + 1, first - 1));
    })
}

/// Returns the number of the event before the latest few.
fn before_latest(client: &mut Client) -> Result<u64, Failure> {
    let request = Request { limit: Some(EARLIER_SHOWN), ..Request::new(Op::Log) };
    let Reply::Log(latest) = client.ask(&request)? else { return Err(Failure::other_answer()) };
    Ok(latest.events.last().map_or(0, |event| event.seq.saturating_sub(1)))
}
