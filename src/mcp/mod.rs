//! The operations that an agent needs, as tools of the Model Context Protocol over standard input and output.
//!
//! This layer owns how calls come in and answers go out. What a call means is decided by what answers the client, as for
//! the command line. It never prints: standard output is the protocol's. It is the only layer with a runtime (`tokio`),
//! on which only the protocol runs; each call has a thread of its own. Begin with [`serve`], then `server.rs` (the
//! protocol), `tools.rs` (what is offered), `acts.rs` (what a call does) and `checks.rs` (the call that lasts).

mod acts;
mod arguments;
mod checks;
mod outputs;
mod server;
#[cfg(test)]
mod tests;
mod tools;
mod wire;

pub use server::serve;

use std::io;
use std::path::PathBuf;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::client::{Client, ClientError, Offline};

/// What all calls of a connection share.
pub struct Desk {
    /// The directory where relative paths start.
    pub directory: PathBuf,
    /// The session of its reads. Each connection is a reader of its own: it has not seen what others were shown.
    pub session: String,
    pub offline: Offline,
}

impl Desk {
    /// Looks for the daemon at each call, because mounts come and go while an agent works.
    fn client(&self) -> Result<Client, ClientError> {
        Client::open(&self.directory, self.offline)
    }
}

/// Returns a name that no other connection has, in whichever process.
pub fn new_session() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(format!("mcp-{:016x}", u64::from_ne_bytes(bytes)))
}
