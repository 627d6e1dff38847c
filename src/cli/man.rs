//! `fettlefs man`: the manual pages, made from the same source as `--help`.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Desk, Failure, mount_helper};
use crate::protocol::{ErrorCode, Exit};

/// The section of what an administrator uses, as mount(8).
const ADMINISTRATION: &str = "8";

/// Print the manual page, or write all of them into a directory
#[derive(clap::Args)]
pub struct Arguments {
    // Not `directory`: that is the id of `-C`.
    /// Write fettlefs.1, a page for each command, fettlefs-COMMAND.1, and mount.fuse.fettlefs.8 there
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
            let written = write_all(program, &directory);
            written.map_err(|err| {
                Failure::new(ErrorCode::Io, format!("write manual pages to {}: {err}", directory.display()))
            })?;
        }
    }
    Ok(Exit::Done)
}

fn write_all(program: clap::Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(program, directory)?;
    Man::new(mount_helper::described()).section(ADMINISTRATION).generate_to(directory)?;
    Ok(())
}
