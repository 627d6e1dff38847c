//! Failures of a command: what is printed, and the exit status of the program.

use super::outcome::render_diff_summary;
use super::run;
use super::terminal::{Ink, Style};
use super::text::Text;
use crate::client::{ClientError, NotInProject, other_answer};
use crate::protocol::{ErrorBody, ErrorCode, Exit, ProtocolError, Response};
use std::ffi::OsString;
use std::io::{self, Write};

#[derive(Debug)]
pub enum Failure {
    /// Something was refused or failed.
    Told(Box<ErrorBody>),
    /// The answer could not be printed.
    Print(io::Error),
}

/// For callers that send it as an answer instead of printing it.
impl From<Failure> for ErrorBody {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Told(body) => *body,
            Failure::Print(err) => Self::new(ErrorCode::Io, err.to_string()),
        }
    }
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Told(Box::new(ErrorBody::new(code, message)))
    }

    /// The command line asks for something that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// The daemon sent an answer that does not fit the request.
    pub fn other_answer() -> Self {
        other_answer().into()
    }

    /// For an answer that could not be printed although its act is done; `command` tells of that from then on.
    pub fn after_the_act(self, command: &str) -> Self {
        match self {
            Self::Print(err) => {
                let message = format!("{err}; what was asked for is done: {command} tells it");
                Self::Print(io::Error::new(err.kind(), message))
            }
            told @ Self::Told(_) => told,
        }
    }

    /// The message, to be put into another sentence.
    pub fn message(&self) -> String {
        match self {
            Self::Told(body) => body.message.clone(),
            Self::Print(err) => err.to_string(),
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::Told(body) => body.code.exit(),
            Self::Print(_) => Exit::Failed,
        }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self::Told(Box::new(body))
    }
}

impl From<ClientError> for Failure {
    fn from(err: ClientError) -> Self {
        ErrorBody::from(err).into()
    }
}

impl From<ProtocolError> for Failure {
    fn from(err: ProtocolError) -> Self {
        ErrorBody::from(err).into()
    }
}

impl From<NotInProject> for Failure {
    fn from(err: NotInProject) -> Self {
        Self::new(err.code(), err.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Self {
        Self::Print(err)
    }
}

/// An error as a person reads it: the message, its details, and a remedy if there is one.
pub fn render(body: &ErrorBody, text: &mut Text) {
    text.ink(Ink::Warning, "fettlefs: ").name(&body.message).put("\n");
    if let Some(detail) = &body.detail {
        render_diff_summary(detail.as_bytes(), text);
    }
    if let Some(remedy) = body.remedy() {
        text.put("  ").name(remedy).put("\n");
    }
}

/// Prints what clap says about a command line: help and version are answers, the rest are errors.
pub fn report_usage(err: &clap::Error, argv: &[OsString]) -> Exit {
    let is_error = err.use_stderr();
    let printed = match is_error {
        true => print_usage(&err.render().to_string(), argv),
        false => err.print(),
    };
    match (is_error, printed) {
        (true, _) => Exit::Usage,
        (false, Ok(())) => Exit::Done,
        (false, Err(err)) if err.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        (false, Err(_)) => Exit::Failed,
    }
}

/// Clap repeats the words of the command line, which may be file names that a shell's glob brought in.
fn print_usage(message: &str, argv: &[OsString]) -> io::Result<()> {
    if wants_json(argv) {
        let message = message.trim_end().trim_start_matches("error: ");
        let response = Response::failed(ErrorBody::new(ErrorCode::BadRequest, message));
        let line = response.to_whole_line();
        return match run::is_meant(argv) {
            true => io::stderr().write_all(&Style::of(&io::stderr()).json(line)),
            false => io::stdout().write_all(&Style::of(&io::stdout()).json(line)),
        };
    }
    let style = Style::of(&io::stderr());
    let mut text = Text::new(&style);
    text.content(message.as_bytes());
    io::stderr().write_all(&text.into_bytes())
}

/// True if `--json` stands before the `--` that ends the options. It is searched for, as the arguments did not parse.
fn wants_json(argv: &[OsString]) -> bool {
    argv.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}
