//! `fettlefs review`: held changes on a whole screen, by file and hunk.

use std::io::{self, IsTerminal};

use super::desk::Format;
use super::outcome::render_acted;
use super::terminal::{Bytes, Paint, Style};
use super::text::Text;
use super::{Desk, Failure, offline};
use crate::protocol::{Acted, ErrorCode, Exit};
use crate::ui::{self, End, Review, ReviewError};

/// Go through held changes on the terminal, by file and hunk; ? tells the keys
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(_arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    check_terminal(desk)?;
    let paint = Style::of(&io::stdout()).paint;
    let review = Review { directory: desk.directory.clone(), offline: offline::answer, told, paint };
    match ui::review(&review).map_err(failure)? {
        End::Nothing => desk.print_bytes(b"fettlefs: Nothing is held\n")?,
        End::Left => {}
    }
    Ok(Exit::Done)
}

fn check_terminal(desk: &Desk) -> Result<(), Failure> {
    const ELSEWHERE: &str = "`fettlefs status` lists what is held, `fettlefs diff` shows it";
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if desk.format == Format::Json {
        return Err(Failure::usage(format!("review has no --json: {ELSEWHERE}, both take it")));
    }
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) || is_dumb {
        return Err(Failure::usage(format!("review needs a terminal with a whole screen: {ELSEWHERE}")));
    }
    Ok(())
}

fn failure(err: ReviewError) -> Failure {
    match err {
        ReviewError::Refused(body) => Failure::Told(body),
        err @ ReviewError::Terminal(_) => Failure::new(ErrorCode::Io, err.to_string()),
    }
}

/// Words an outcome as every command does, but on one line.
fn told(acted: &Acted) -> String {
    let style = Style { paint: Paint::Plain, bytes: Bytes::Escaped };
    let mut text = Text::new(&style);
    render_acted(acted, &mut text);
    let text = String::from_utf8_lossy(&text.into_bytes()).into_owned();
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("fettlefs: ")).collect();
    match lines.as_slice() {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first, others @ ..] => format!("{first}, and {} more", others.len()),
    }
}
