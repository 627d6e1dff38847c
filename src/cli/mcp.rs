//! `fettlefs mcp`: the operations as tools for agents.

use super::{Desk, Failure, offline};
use crate::mcp;
use crate::protocol::{ErrorCode, Exit};

/// Serve the Model Context Protocol on standard input and output, for an agent that starts it
///
/// As `{"mcpServers": {"fettlefs": {"command": "fettlefs", "args": ["mcp"]}}}` in .mcp.json. Tools: status, diff, read,
/// patch, check, request_review, discard, confirm. It works with and without a mount, and ends when its input does.
#[derive(clap::Args)]
pub struct Arguments {
    /// Share with this session what was read already; each connection is a session of its own if not given
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let session = match arguments.session {
        Some(named) => named,
        None => mcp::new_session().map_err(|err| Failure::new(ErrorCode::Io, format!("name the session: {err}")))?,
    };
    // A server that was started in the view would stand in a view that is gone, from the first unmount on.
    let directory = std::path::absolute(&desk.directory).unwrap_or_else(|_| desk.directory.clone());
    match mcp::serve(mcp::Desk { directory, session, offline: offline::answer }) {
        Ok(()) => Ok(Exit::Done),
        Err(err) => {
            // Never as JSON: standard output is the protocol's.
            desk.remark(|text| {
                text.put("fettlefs: mcp: ").name(err.to_string()).put("\n");
            })?;
            Ok(Exit::Failed)
        }
    }
}
