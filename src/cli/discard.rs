//! `fettlefs discard`: drop held changes from the view.

use super::act::{Act, Chosen, act};
use super::{Desk, Failure};
use crate::protocol::{Exit, Op, Request};

/// Drop held changes; their content is kept as backups
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    act(&arguments.chosen, Request::new(Op::Discard), Act::Discard, desk)
}
