//! The operations that an agent needs as tools of the Model Context Protocol, over standard input and output.
//!
//! Owns how calls come in and answers go out; what they mean is decided by whoever answers the client, as for the command
//! line. Never prints: standard output is the protocol's. It alone has a runtime (`tokio`), on which only the protocol
//! runs; each call works in a thread of its own. Begin with [`serve`], then `server.rs` (the protocol), `tools.rs` (what is
//! offered), `acts.rs` (what a call does) and `checks.rs` (the one that lasts).

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

/// What all calls of one connection have in common.
pub struct Desk {
    /// Where relative paths begin.
    pub directory: PathBuf,
    /// Whose reading it is. One connection is one reader: what another one was shown, this one has not seen.
    pub session: String,
    pub offline: Offline,
}

impl Desk {
    /// Looked for at each call: mounts come and go while an agent works.
    fn client(&self) -> Result<Client, ClientError> {
        Client::open(&self.directory, self.offline)
    }
}

/// A name that no other connection has, wherever its process is.
pub fn new_session() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(format!("mcp-{:016x}", u64::from_ne_bytes(bytes)))
}
