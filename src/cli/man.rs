//! `fettlefs man`: the manual pages, made from the same source as `--help`.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Desk, Failure};
use crate::protocol::{ErrorCode, Exit};

/// Print the manual page, or write all of them into a directory
#[derive(clap::Args)]
pub struct Arguments {
    // Not `directory`: that is the id of `-C`.
    /// Write fettlefs.1 and a page for each command, fettlefs-COMMAND.1, there
    #[arg(value_name = "DIR")]
    into: Option<PathBuf>,
}

pub fn run(Arguments { into }: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let program = super::Arguments::command();
    match into {
        None => {
            let mut page = Vec::new();
            Man::new(program).render(&mut page)?;
            desk.print_bytes(&page)?;
        }
        Some(directory) => {
            let written =
                std::fs::create_dir_all(&directory).and_then(|()| clap_mangen::generate_to(program, &directory));
            written.map_err(|err| {
                Failure::new(ErrorCode::Io, format!("write manual pages to {}: {err}", directory.display()))
            })?;
        }
    }
    Ok(Exit::Done)
}
