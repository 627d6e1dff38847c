//! `fettlefs events`: what happened as a stream, the oldest first.

use super::desk::Readers;
use super::{Desk, Failure, log};
use crate::client::Client;
use crate::protocol::{EventsReply, Exit, Op, Reply, Request};

/// Earlier events that `--follow` begins with, as `tail -f` has it.
const EARLIER_SHOWN: u64 = 10;

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
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
    /// Only of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mut client = desk.client()?;
    let mut request = Request { session: arguments.session, wait: arguments.follow, ..Request::new(Op::Events) };
    request.since = match (arguments.since, arguments.follow) {
        (None, true) => Some(before_latest(&mut client)?),
        (since, _) => since,
    };
    loop {
        let Reply::Events(EventsReply { events, seq, over }) = client.ask(&request)? else {
            return Err(Failure::other_answer());
        };
        if let (Some(since), Some(first), None) = (request.since, events.first(), &request.session) {
            tell_gap(since, first.seq, desk)?;
        }
        let readers = desk.stream(&events, log::render)?;
        let is_all = request.since.unwrap_or_default() == seq;
        if readers == Readers::Gone || over || (is_all && !arguments.follow) {
            return Ok(Exit::Done);
        }
        request.since = Some(seq);
    }
}

/// Numbers count up by one, so a gap is what the log has let go before it was read.
fn tell_gap(since: u64, first: u64, desk: &Desk) -> Result<(), Failure> {
    if first <= since + 1 {
        return Ok(());
    }
    desk.remark(|text| {
        text.put(format!("fettlefs: the events {} to {} are not kept any more\n", since + 1, first - 1));
    })
}

/// The number after which the latest few events come.
fn before_latest(client: &mut Client) -> Result<u64, Failure> {
    let request = Request { limit: Some(EARLIER_SHOWN), ..Request::new(Op::Log) };
    let Reply::Log(latest) = client.ask(&request)? else { return Err(Failure::other_answer()) };
    Ok(latest.events.last().map_or(0, |event| event.seq.saturating_sub(1)))
}
