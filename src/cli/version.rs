//! `fettlefs version`: the version of this program, and of the daemon if one answers.

use super::desk::Length;
use super::text::Text;
use super::{Desk, Failure};
use crate::client::Reach;
use crate::protocol::{DaemonVersion, Exit, Op, Reply, Request, VERSION, VersionReply};

/// Show the version of this program, and of the daemon that answers here
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(Arguments {}: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let reply = VersionReply {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: VERSION,
        daemon: daemon(desk)?,
        pid: None,
    };
    desk.answer(&Reply::Version(reply.clone()), Length::Short, |text| render(&reply, text))?;
    Ok(Exit::Done)
}

/// Asks the daemon. Without a project or daemon, or under a dead mount, the program still tells its own version.
fn daemon(desk: &Desk) -> Result<Option<DaemonVersion>, Failure> {
    let Ok(mut client) = desk.client() else { return Ok(None) };
    match client.reach() {
        Reach::Offline | Reach::Stale(_) => return Ok(None),
        Reach::View(_) | Reach::Socket(_) => {}
    }
    match client.ask(&Request::new(Op::Version))? {
        Reply::Version(VersionReply { version, protocol, pid, .. }) => {
            Ok(Some(DaemonVersion { version, protocol, pid }))
        }
        _ => Err(Failure::other_answer()),
    }
}

fn render(reply: &VersionReply, text: &mut Text) {
    text.put(format!("fettlefs {} (protocol {})\n", reply.version, reply.protocol));
    if let Some(daemon) = &reply.daemon {
        text.put("daemon   ").name(&daemon.version).put(format!(" (protocol {})", daemon.protocol));
        if let Some(pid) = daemon.pid {
            text.put(format!(", pid {pid}"));
        }
        text.put("\n");
    }
}
