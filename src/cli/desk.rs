//! What every command works with: where it looks for a project, and how it prints.

use super::terminal::{Bytes, Style};
use super::text::Text;
use super::{Failure, failure, offline, pager};
use crate::client::{self, Client};
use crate::diff::Unreadable;
use crate::protocol::{ErrorBody, Exit, Reply, Response, Target};
use crate::sys::foreground::{Foreground, Heard};
use rustix::termios::{QueueSelector, tcflush};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Human,
    Json,
}

/// Whether an answer may be long enough for a pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Short,
    Long,
}

/// What has been done by the time an answer is printed. If printing fails, the user must not think that it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Nothing,
    /// An act; the given command tells of it later.
    ToldBy(&'static str),
}

impl Done {
    fn of(reply: &Reply) -> Self {
        match (reply.has_acted(), reply) {
            (false, _) => Self::Nothing,
            (true, Reply::Reload(_)) => Self::ToldBy("fettlefs status"),
            (true, _) => Self::ToldBy("fettlefs log"),
        }
    }
}

pub struct Desk {
    /// `-C`, or where the program was started.
    pub directory: PathBuf,
    pub format: Format,
    stdout: Style,
    stderr: Style,
}

impl Desk {
    pub fn new(directory: Option<PathBuf>, format: Format) -> Self {
        Self {
            directory: directory.unwrap_or_else(|| PathBuf::from(".")),
            format,
            stdout: Style::of(&io::stdout()),
            stderr: Style::of(&io::stderr()),
        }
    }

    pub fn client(&self) -> Result<Client, Failure> {
        Ok(Client::open_patiently(&self.directory, offline::answer)?)
    }

    /// Prints an answer: the reply itself as JSON, or what `render` makes of it.
    pub fn answer(&self, reply: &Reply, length: Length, render: impl FnOnce(&mut Text)) -> Result<(), Failure> {
        self.answer_to_readers(reply, length, render).map(|_readers| ())
    }

    /// The same, and returns whether anyone has read it.
    pub fn answer_to_readers(
        &self,
        reply: &Reply,
        length: Length,
        render: impl FnOnce(&mut Text),
    ) -> Result<Readers, Failure> {
        self.print_answer(|| reply.to_whole_line(), Done::of(reply), length, render)
    }

    /// Prints an answer that is not what was asked for. People read that in what `render` makes of it.
    pub fn answer_refused(
        &self,
        reply: &Reply,
        why: &ErrorBody,
        render: impl FnOnce(&mut Text),
    ) -> Result<(), Failure> {
        self.print_answer(|| reply.to_refused_line(why), Done::of(reply), Length::Short, render).map(|_readers| ())
    }

    /// Prints an answer that is not a reply of the protocol.
    pub fn answer_value(
        &self,
        value: serde_json::Value,
        done: Done,
        render: impl FnOnce(&mut Text),
    ) -> Result<(), Failure> {
        self.print_answer(|| format!("{value}\n").into_bytes(), done, Length::Short, render).map(|_readers| ())
    }

    fn print_answer(
        &self,
        line: impl FnOnce() -> Vec<u8>,
        done: Done,
        length: Length,
        render: impl FnOnce(&mut Text),
    ) -> Result<Readers, Failure> {
        let printed = match self.format {
            Format::Json => self.print(&self.stdout.json(line()), Length::Short),
            Format::Human => {
                let mut text = Text::new(&self.stdout);
                render(&mut text);
                self.print(&text.into_bytes(), length)
            }
        };
        printed.map_err(|failure| match done {
            Done::Nothing => failure,
            Done::ToldBy(command) => failure.after_the_act(command),
        })
    }

    /// Prints one piece of a longer output: a line of JSON for each of `items`, or what `render` makes of it. Returns
    /// whether anyone still reads.
    pub fn stream<T: Serialize>(&self, items: &[T], render: impl Fn(&T, &mut Text)) -> Result<Readers, Failure> {
        let mut text = Text::new(&self.stdout);
        let piece = match self.format {
            Format::Json => {
                let lines = items.iter().map(|item| Ok(format!("{}\n", serde_json::to_string(item)?)));
                let lines = lines.collect::<serde_json::Result<String>>().map_err(io::Error::from)?;
                self.stdout.json(lines.into_bytes())
            }
            Format::Human => {
                items.iter().for_each(|item| render(item, &mut text));
                text.into_bytes()
            }
        };
        Ok(write_out(&piece)?)
    }

    /// Prints a failure and returns the exit status for it.
    pub fn report(&self, failure: &Failure) -> Exit {
        let printed = match (failure, self.format) {
            (Failure::Told(body), Format::Json) => {
                io::stdout().write_all(&self.stdout.json(Response::failed((**body).clone()).to_whole_line()))
            }
            (Failure::Told(body), Format::Human) => {
                let mut text = Text::new(&self.stderr);
                failure::render(body, &mut text);
                io::stderr().write_all(&text.into_bytes())
            }
            (Failure::Print(err), _) => writeln!(io::stderr(), "fettlefs: print the answer: {err}"),
        };
        match printed {
            Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Exit::Failed,
            Ok(()) | Err(_) => failure.exit(),
        }
    }

    /// A pipe or file gets an unreadable file whole, as a patch for `git apply`; a person only sees that it differs.
    pub fn unreadable(&self) -> Unreadable {
        match (self.format, self.stdout.bytes) {
            (Format::Human, Bytes::Raw) => Unreadable::Whole,
            (Format::Human, Bytes::Escaped) | (Format::Json, _) => Unreadable::Named,
        }
    }

    /// True if there is a person to ask.
    pub fn can_ask(&self) -> bool {
        self.format == Format::Human && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Asks a person whether to do `what` they asked for. Without a terminal, the error names the flag to use.
    pub fn agreed(&self, what: &str, question: &str) -> Result<Answer, Failure> {
        self.ask(what, question)?;
        let mut line = Vec::new();
        io::stdin().lock().read_until(b'\n', &mut line)?;
        Ok(Answer::of(&line))
    }

    /// The same while signals are kept back to be passed on, and would not end a process that waits for the answer.
    pub fn agreed_in_front(
        &self,
        what: &str,
        question: &str,
        foreground: &Foreground,
    ) -> Result<Heard<Answer>, Failure> {
        self.ask(what, question)?;
        Ok(match foreground.hear(io::stdin().as_fd())? {
            Heard::Answer(line) => Heard::Answer(Answer::of(&line)),
            Heard::Signal(number) => Heard::Signal(number),
        })
    }

    /// Prints the question. Input from before it is dropped and cannot answer it: neither what a person typed ahead, nor
    /// what a program that had the terminal pushed into it (TIOCSTI).
    fn ask(&self, what: &str, question: &str) -> Result<(), Failure> {
        if !self.can_ask() {
            return Err(Failure::usage(format!("{what} needs --yes where there is no terminal to ask")));
        }
        tcflush(io::stdin(), QueueSelector::IFlush).map_err(io::Error::from)?;
        Ok(write!(io::stderr(), "fettlefs: {question} [y/N] ")?)
    }

    /// Prints on stderr what a person should know before the answer.
    pub fn remark(&self, render: impl FnOnce(&mut Text)) -> Result<(), Failure> {
        let mut text = Text::new(&self.stderr);
        render(&mut text);
        Ok(io::stderr().write_all(&text.into_bytes())?)
    }

    /// Prints an answer that is JSON already.
    pub fn print_json(&self, line: Vec<u8>) -> Result<(), Failure> {
        self.print(&self.stdout.json(line), Length::Short).map(|_readers| ())
    }

    /// Prints what is neither an answer nor for a person: a script, a page for another program.
    pub fn print_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.print(bytes, Length::Short).map(|_readers| ())
    }

    /// A reader that closes the pipe is no failure: by then the request has been carried out.
    fn print(&self, bytes: &[u8], length: Length) -> Result<Readers, Failure> {
        match length {
            Length::Long if io::stdout().is_terminal() => {
                pager::show(bytes)?;
                Ok(Readers::Listening)
            }
            Length::Long | Length::Short => Ok(write_out(bytes)?),
        }
    }
}

/// Whether standard output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Listening,
    Gone,
}

fn write_out(bytes: &[u8]) -> io::Result<Readers> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(Readers::Gone),
        written => written.map(|()| Readers::Listening),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
}

impl Answer {
    fn of(line: &[u8]) -> Self {
        match line.trim_ascii() {
            b"y" | b"Y" | b"yes" => Self::Yes,
            _ => Self::No,
        }
    }
}

/// Turns every argument into a target with all its possible readings.
pub fn targets(client: &Client, arguments: &[OsString]) -> Result<Vec<Target>, Failure> {
    arguments.iter().map(|argument| Ok(client::target(client.place(), argument)?)).collect()
}
