//! `fettlefs confirm`: land held changes.

use super::act::{Act, Chosen, act};
use super::{Desk, Failure};
use crate::protocol::{Exit, Op, Request};

/// Land held changes in the project, all of them or none
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Land it though the file changed outside, keeping the other content as a backup
    #[arg(long)]
    force: bool,
    /// Wait for whoever still writes
    #[arg(long)]
    wait: bool,
    /// Expired changes too, without another look
    #[arg(long)]
    renew: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let Arguments { chosen, force, wait, renew } = arguments;
    act(&chosen, Request { force, wait, renew, ..Request::new(Op::Confirm) }, Act::Confirm, desk)
}
