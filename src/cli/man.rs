//! `fettlefs man`: the manual pages, made from the same source as `--help`.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Desk, Failure, mount_helper};
use crate::protocol::{ErrorCode, Exit};

/// The section for commands of an administrator, such as mount(8).
const ADMINISTRATION: &str = "8";

/// The table of docs/COMMANDS.md, in short.
const EXIT_STATUS: &str = "\
.SH EXIT STATUS
.TP
0
done
.TP
1
failed; or, with \\-\\-exit\\-code, something is held
.TP
2
usage, a setting that is not allowed
.TP
3
no mount and no state here
.TP
4
unknown id, path or backup
.TP
5
refused: conflict, expired, superseded, already done, ambiguous, busy
.TP
6
not permitted
.TP
8
the command of check failed
.TP
125, 126, 127
of run: our own failure, a command that cannot be run, one that is not there; else the command\\(aqs own status
";

/// Print the manual page, or write all of them into a directory
#[derive(clap::Args)]
pub struct Arguments {
    // Not `directory`: that is the id of `-C`.
    /// Write man1/fettlefs.1, a page for each command, man1/fettlefs-COMMAND.1, and man8/mount.fuse.fettlefs.8 there
    #[arg(value_name = "DIR")]
    into: Option<PathBuf>,
}

pub fn run(Arguments { into }: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let program = super::Arguments::command();
    match into {
        None => {
            desk.print_bytes(&page(program)?)?;
        }
        Some(directory) => {
            let directory = desk.directory.join(directory);
            let written = write_all(program, &directory);
            written.map_err(|err| {
                Failure::new(ErrorCode::Io, format!("write manual pages to {}: {err}", directory.display()))
            })?;
        }
    }
    Ok(Exit::Done)
}

fn write_all(program: clap::Command, directory: &Path) -> io::Result<()> {
    // As man(1) looks for them.
    let (commands, administration) = (directory.join("man1"), directory.join("man8"));
    std::fs::create_dir_all(&commands)?;
    std::fs::create_dir_all(&administration)?;
    clap_mangen::generate_to(program.clone(), &commands)?;
    std::fs::write(commands.join("fettlefs.1"), page(program)?)?;
    Man::new(mount_helper::described()).section(ADMINISTRATION).generate_to(administration)?;
    Ok(())
}

/// The page of the program itself.
fn page(program: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(program).render(&mut page)?;
    page.extend_from_slice(EXIT_STATUS.as_bytes());
    Ok(page)
}
