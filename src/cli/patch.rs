//! `fettlefs patch`: anchored replacements from standard input, all of them or none.

use std::io::{self, Read};

use super::Failure;
use super::desk::{Desk, Length};
use super::outcome::{self, Tense};
use super::read::Session;
use crate::protocol::{ErrorCode, Exit, Op, ProtocolError, REQUEST_BYTES_MAX, Reply, Request, parse_patch};

/// How much standard input is read before it is refused as too large: more than any acceptable patch.
const INPUT_BYTES_MAX: u64 = 16 << 20;

/// Replace exact text in files, all or nothing; the patch comes on standard input
///
/// As JSON (docs/patch.schema.json) or as blocks of text (docs/READING.md). Each file names the SHA-256 it was made for,
/// and each hunk the text around what it replaces, which must be there exactly and once. What comes of it is judged like
/// any write: small changes land, large ones are held.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    session: Session,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let files = parse_patch(&input()?)?;
    let request =
        Request { files, session: arguments.session.name(), dry_run: arguments.dry_run, ..Request::new(Op::Patch) };
    if let Err(ProtocolError::TooLarge(bytes)) = request.to_line() {
        return Err(too_large(bytes as u64, REQUEST_BYTES_MAX as u64));
    }
    let answer = desk.client()?.ask(&request)?;
    let Reply::Patch(reply) = &answer else { return Err(Failure::other_answer()) };
    let tense = if reply.dry_run { Tense::Planned } else { Tense::Done };
    desk.answer(&answer, Length::Short, |text| {
        outcome::render_all(&reply.outcomes, tense, text);
    })?;
    Ok(Exit::Done)
}

fn input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|err| Failure::new(ErrorCode::Io, format!("read the patch: {err}")))?;
    match bytes.len() as u64 > INPUT_BYTES_MAX {
        true => Err(too_large(bytes.len() as u64, INPUT_BYTES_MAX)),
        false => Ok(bytes),
    }
}

fn too_large(bytes: u64, max: u64) -> Failure {
    let message = format!("a patch of {bytes} bytes is too large (the limit is {max}): write the files themselves");
    Failure::new(ErrorCode::TooLarge, message)
}
