//! Long text on a terminal goes through the user's pager, as git's does.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

use crate::sys::interrupts::start_in_front;

/// The rows of a terminal that does not tell its size, as of a VT100.
const ROWS_DEFAULT: usize = 24;

/// Shows text that is already safe for a terminal.
pub fn show(bytes: &[u8]) -> io::Result<()> {
    match pager().filter(|_| is_long(bytes)) {
        Some(command) => page(&command, bytes),
        None => io::stdout().write_all(bytes),
    }
}

/// Returns the shell command of the pager, or `None` if the user wants none.
fn pager() -> Option<String> {
    let command = std::env::var("PAGER").unwrap_or_else(|_| "less -R".to_owned());
    (!matches!(command.trim(), "" | "cat")).then_some(command)
}

fn is_long(bytes: &[u8]) -> bool {
    let stdout = io::stdout();
    let rows = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_row));
    // A terminal that does not tell its size says 0.
    let rows = if rows == 0 { ROWS_DEFAULT } else { rows };
    stdout.is_terminal() && bytes.iter().filter(|byte| **byte == b'\n').count() >= rows
}

fn page(command: &str, bytes: &[u8]) -> io::Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // As git sets it: quit if the text fits, keep colours, do not clear the screen.
        shell.env("LESS", "FRX");
    }
    // Ctrl-C is the pager's: it ends a search there.
    let (mut child, _ignored) = start_in_front(&mut shell)?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(bytes),
        None => Ok(()),
    };
    let status = child.wait()?;
    match written {
        // sh exits with 127 if the pager does not exist; then nothing has been shown.
        _ if status.code() == Some(127) => io::stdout().write_all(bytes),
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}
